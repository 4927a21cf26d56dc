"""The selection and order of the outputs that a call returns.

A call runs micro-batches in the order [device iteration (D), accumulation (A), replica (R)]. The output mode selects
the micro-batches whose outputs it returns:

========  ================================================================  =============
mode      micro-batches                                                     number
========  ================================================================  =============
All       every micro-batch                                                 D * A * R
EveryN    every micro-batch of every N-th device iteration                  D / N * A * R
Final     the last accumulation step's micro-batch of each replica          R
Sum       the sum over device iterations and accumulation, per replica      R
========  ================================================================  =============

The outputs are joined along dim 0; several scalars become a 1-D tensor (PopTorch user guide, "Efficient data batching",
``outputMode``).
"""

from typing import Any, List, Optional

import torch

from snnipu.poptorch._errors import Error, InvalidArgument
from snnipu.poptorch._inputs import ipu_output
from snnipu.poptorch._structure import flatten, rebuild
from snnipu.poptorch.enums import OutputMode
from snnipu.poptorch.options import Options


class OutputCollector:
    """A collector of micro-batches' outputs that keeps only the outputs that the call returns."""

    def __init__(self, options: Options, mode: Optional[OutputMode] = None, period: int = 1) -> None:
        """Use the output mode and period of the options if ``mode`` is None."""
        self._mode = OutputMode(options.output_mode if mode is None else mode)
        self._period = options.output_return_period if mode is None else period
        self._iterations = options.device_iterations
        self._accumulation = options.Training.gradient_accumulation
        self._replicas = options.replication_factor
        if self._mode == OutputMode.EveryN and self._iterations % self._period:
            raise InvalidArgument(
                f"outputMode: EveryN needs an output_return_period that divides deviceIterations "
                f"({self._iterations}), got {self._period}"
            )
        self._structure: Any = None
        self._count: Optional[int] = None
        self._kept: List[List[torch.Tensor]] = []  # by micro-batch (Sum, Final: by replica), then by output

    def add(self, outputs: Any, iteration: int, accumulation: int, replica: int) -> None:
        """Add the outputs of one micro-batch. Raises ``poptorch.Error`` if their number differs from the first's."""
        tensors = [ipu_output(tensor) for tensor in flatten(outputs)]
        if self._count is None:
            self._structure, self._count = outputs, len(tensors)
        elif len(tensors) != self._count:
            raise Error(f"forward returned {len(tensors)} tensors after {self._count}: an IPU runs one fixed graph")
        if self._mode == OutputMode.Sum:
            if len(self._kept) <= replica:
                self._kept.append(tensors)
            else:
                self._kept[replica] = [old + new for old, new in zip(self._kept[replica], tensors)]
        elif self.is_returned(iteration, accumulation):
            self._kept.append(tensors)

    def is_returned(self, iteration: int, accumulation: int) -> bool:
        """Return True if the outputs of a micro-batch are returned, or complete the sum that is returned."""
        if self._mode == OutputMode.All:
            return True
        if self._mode == OutputMode.EveryN:
            return (iteration + 1) % self._period == 0
        return iteration == self._iterations - 1 and accumulation == self._accumulation - 1

    def result(self) -> Any:
        """Return the joined outputs, in the structure that ``forward`` returned."""
        return rebuild(self._structure, iter([self._join_pieces(list(pieces)) for pieces in zip(*self._kept)]))

    @staticmethod
    def _join_pieces(pieces: List[torch.Tensor]) -> torch.Tensor:
        if len(pieces) == 1:
            return pieces[0]
        if pieces[0].dim() == 0:
            return torch.stack(pieces)
        if any(piece.shape != pieces[0].shape for piece in pieces):
            raise Error(f"outputs of micro-batches differ in shape: {sorted({tuple(piece.shape) for piece in pieces})}")
        return torch.cat(pieces)
