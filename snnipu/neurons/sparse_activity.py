"""The activity of spikes on a GPU, for layers that choose their path by it, without a wait of the host."""

from typing import Any, NamedTuple, Optional, Tuple

import torch

from snnipu.spikes import SparseSpikes

# Calls of a layer between two measurements, and between a measurement and its use.
EVERY = 8
LATER = 2


class _Pending(NamedTuple):
    total: torch.Tensor
    copied: Any  # torch.cuda.Event
    cells: int
    due: int


class DeviceActivity:
    """Spikes per neuron and step of one layer's input, measured a few calls earlier.

    Every :data:`EVERY`-th call starts a copy of its number of spikes to the host. The copy is read :data:`LATER` calls
    later, when it has arrived. The delay depends on the number of calls alone, not on speed, so that a training run
    takes the same paths each time.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._pending: Optional[_Pending] = None
        self._known: Optional[float] = None

    def __reduce__(self) -> Tuple[Any, ...]:
        return DeviceActivity, ()

    def activity(self, spikes: SparseSpikes) -> float:
        """Return the last measured activity, from 0 to 1; before the first measurement, the slots for each neuron.

        Nothing is measured while a CUDA graph is captured.
        """
        most = min(1.0, spikes.capacity / spikes.num_neurons)
        if not torch.cuda.is_current_stream_capturing():
            self._measure(spikes)
        return most if self._known is None else min(self._known, most)

    def _measure(self, spikes: SparseSpikes) -> None:
        if self._pending is not None and self._calls >= self._pending.due:
            self._pending.copied.synchronize()
            self._known = int(self._pending.total) / self._pending.cells
            self._pending = None
        if self._calls % EVERY == 0 and spikes.counts.numel():
            self._pending = self._ask(spikes)
        self._calls += 1

    def _ask(self, spikes: SparseSpikes) -> _Pending:
        total = torch.empty((), dtype=torch.int64, pin_memory=True)
        total.copy_(spikes.counts[..., 0].sum(), non_blocking=True)
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(spikes.device))
        return _Pending(total, copied, spikes.shape.numel(), self._calls + LATER)
