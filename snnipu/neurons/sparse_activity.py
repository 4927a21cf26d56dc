"""The activity of spikes on a GPU, for layers that choose their path by it, without making the host wait for them."""

from typing import Any, NamedTuple, Optional, Tuple

import torch

from snnipu.spikes import SparseSpikes

# A layer's calls from one measurement to the next, and from a measurement to its use.
EVERY = 8
LATER = 2


class _Pending(NamedTuple):
    total: torch.Tensor
    copied: Any  # torch.cuda.Event
    cells: int
    due: int


class DeviceActivity:
    """Spikes per neuron and step of the input of one layer, as of some calls ago.

    The number of spikes of every :data:`EVERY`-th call is copied to the host while the GPU works, and told
    :data:`LATER` calls later, when it has long arrived. Which call's activity is told depends on the number of calls
    alone, not on how fast anything ran, so that a training run takes the same paths each time.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._pending: Optional[_Pending] = None
        self._known: Optional[float] = None

    def __reduce__(self) -> Tuple[Any, ...]:
        return DeviceActivity, ()

    def of(self, spikes: SparseSpikes) -> float:
        """Until something is known, the most that the slots have room for; so it is while a CUDA graph is captured."""
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
