"""The cost of networks that run on IPUs operator by operator.

A network of fully connected layers is planned as a whole (:func:`snnipu.ipu.plan`). A network with convolutions or
delays, or a chunk of :class:`snnipu.Online`, runs operator by operator. ``snnipu.poptorch._operators_profile`` counts
these operators on the IPU model.
"""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from torch import nn

from snnipu.neurons import SparseConv2d
from snnipu.neurons.delay_linear import Delays
from snnipu.neurons.sparse_conv import ConvolutionalNeurons
from snnipu.online import Online
from snnipu.planning.convolution import ConvolutionPlan
from snnipu.planning.targets import KIBIBYTE, Target

_FIGURES = (
    "fits", "problems", "samples_per_s", "tile_memory_max_bytes", "cycles_per_batch", "batch_size", "steps", "dtype",
    "training", "ipus",
)  # fmt: skip
LABEL = "predicted by snnipu's IPU model, not measured"


@dataclass(frozen=True)
class OperatorFigures:
    """The cost of an operator, or its gradient, on all tiles.

    Attributes:
        name: for instance ``SparseConv2d`` or ``SparseConv2d (gradient)``.
        inputs: shape of the first input.
        cycles: cycles of a batch, with exchange and synchronisation.
        tile_memory_max_bytes: bytes on the fullest tile: the operator's inputs, outputs, variables and code.
        plan: the plan of a convolution; None for other operators.
    """

    name: str
    inputs: Tuple[int, ...]
    cycles: float
    tile_memory_max_bytes: int
    plan: Optional[ConvolutionPlan] = None

    def to_dict(self) -> Dict[str, Any]:
        figures = {**vars(self), "inputs": list(self.inputs)}
        plan = figures.pop("plan")
        if plan is not None:
            figures["plan"] = dict(zip(("channels", "lines", "rows"), plan.attribute), tiles=plan.tiles_used)
        return figures


@dataclass(frozen=True)
class OperatorsProfile:
    """The cost of a network that runs as PopART operators, one after the other.

    Attributes:
        batch_size, steps, dtype, training: the batch that was counted.
        target, ipus: the machine.
        operators: the operators in the order in which they run; gradients last.
        chunk: steps of a chunk of online learning; None: one graph holds all steps.
        kept_bytes: bytes of states and traces between chunks, on all tiles together.
    """

    batch_size: int
    steps: int
    dtype: str
    training: bool
    target: Target
    ipus: int
    operators: Tuple[OperatorFigures, ...]
    chunk: Optional[int] = None
    kept_bytes: int = 0

    @property
    def cycles_per_batch(self) -> float:
        chunks = 1 if self.chunk is None else -(-self.steps // self.chunk)
        return chunks * sum(operator.cycles for operator in self.operators)

    @property
    def tile_memory_max_bytes(self) -> int:
        """Bytes on the fullest tile of any operator, without tensors that other operators keep meanwhile."""
        return max(operator.tile_memory_max_bytes for operator in self.operators)

    @property
    def problems(self) -> List[str]:
        """The operators that do not fit, each with a remedy."""
        limit, problems = self.target.bytes_per_tile, []
        for operator in self.operators:
            if operator.tile_memory_max_bytes <= limit:
                continue
            usage = f"{operator.tile_memory_max_bytes / KIBIBYTE:,.0f} of {limit // KIBIBYTE} KiB"
            remedy = "fewer slots (max_spikes), time steps or samples at once"
            if operator.plan is not None and not operator.plan.fits:
                remedy = operator.plan.remedy()
            problems.append(
                f"{operator.name} of {list(operator.inputs)}: its fullest tile needs {usage}. What helps: {remedy}."
            )
        return problems

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def samples_per_s(self) -> float:
        """Samples per second; 0 if an operator does not fit."""
        return self.batch_size * self.target.clock_hz / self.cycles_per_batch if self.fits else 0.0

    def __str__(self) -> str:
        lines = [
            f"batch {self.batch_size}, {self.steps:,} steps, {self.dtype}, "
            f"{'training' if self.training else 'inference'}, on {self.ipus} x {self.target.name}, layer by layer"
        ]
        if self.chunk is not None:
            lines += [
                f"  one graph for every chunk of {self.chunk} steps: its memory is the same for any number of chunks",
                f"  kept from chunk to chunk: {self.kept_bytes / KIBIBYTE:,.0f} KiB of states and traces, on all tiles",
            ]
        # For instance the product of a dense input with a layer's weights, with or without delays.
        lines.append("  not counted: operations of PyTorch, such as products of dense tensors")
        plans = [operator.plan for operator in self.operators if operator.plan is not None]
        lines += [f"  convolution {plan}" for plan in dict.fromkeys(plans)]
        lines += [f"  does not fit: {problem}" for problem in self.problems]
        lines += ["", f"{LABEL[0].upper()}{LABEL[1:]}:"]
        rate = f"{self.samples_per_s:,.0f}" if self.fits else "none: it does not fit"
        lines += [f"  samples per second  {rate}", ""]
        lines.append(f"  {'operator':<30} {'input':<20} {'cycles':>14} {'fullest tile':>13}")
        for operator in self.operators:
            shape, size = " x ".join(map(str, operator.inputs)), f"{operator.tile_memory_max_bytes / KIBIBYTE:,.0f} KiB"
            lines.append(f"  {operator.name:<30} {shape:<20} {operator.cycles:>14,.0f} {size:>13}")
        return "\n".join(lines)

    def to_dict(self) -> Dict[str, Any]:
        """The document of ``python -m snnipu profile --json``."""
        return {
            "label": LABEL,
            **{name: getattr(self, name) for name in _FIGURES},
            "target": self.target.to_dict(),
            **({} if self.chunk is None else {"chunk": self.chunk, "kept_bytes": self.kept_bytes}),
            "operators": [operator.to_dict() for operator in self.operators],
        }


def runs_by_operators(module: nn.Module) -> bool:
    """Return True if a module runs operator by operator: it learns online, or has sparse convolutions or delays."""
    return isinstance(module, Online) or any(map(_has_own_operators, module.modules()))


def _has_own_operators(layer: nn.Module) -> bool:
    """Return True for a convolution of spikes, or a layer with delays."""
    if isinstance(layer, Delays):
        return layer.max_delay is not None
    return isinstance(layer, (SparseConv2d, ConvolutionalNeurons))
