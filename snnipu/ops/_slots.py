"""Slots of SparseSpikes in plain PyTorch: selection of the neurons, and conversion from and to a dense tensor."""

from typing import Any, Optional, Tuple

import torch

from snnipu._checks import check_int
from snnipu.ops._arguments import is_compiling
from snnipu.spikes import SparseSpikes

OVERFLOWS = {"lowest": False, "rotate": True}
# The capacity that means: as many slots as the busiest row needs.
AS_NEEDED = -1

# Tensors ids, values, counts and a fourth one, as a rule the dropped spikes.
Slots = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def slot_results(ctx: Any, slots: Slots) -> Slots:
    """Return the results of an autograd function, of which only the values have a gradient."""
    ids, _, counts, last = slots
    ctx.mark_non_differentiable(ids, counts, last)
    # Zeros for the outputs without gradient would take memory: ids are as large as values.
    ctx.set_materialize_grads(False)
    return slots


def overflow_code(overflow: str) -> bool:
    """Return True if the order is ``rotate``; check that it is known."""
    if overflow not in OVERFLOWS:
        raise ValueError(f"overflow must be 'lowest' or 'rotate', got {overflow!r}")
    return OVERFLOWS[overflow]


def check_max_spikes(max_spikes: object) -> None:
    """Check that ``max_spikes`` is None or an int of 0 or more."""
    check_int("max_spikes", max_spikes, 0, or_none=True)


def capacity_argument(max_spikes: Optional[int], num_neurons: int, x: torch.Tensor) -> int:
    """Return the number of slots for ``max_spikes``: at most the number of neurons, and AS_NEEDED for None.

    Meta tensors and traces have no data, so None then gives as many slots as neurons.
    """
    check_max_spikes(max_spikes)
    if max_spikes is not None:
        return min(max_spikes, num_neurons)
    return num_neurons if is_compiling() or x.device.type == "meta" else AS_NEEDED


def stored_membranes(mem: torch.Tensor, needed: bool, ids: torch.Tensor, neurons: int) -> Optional[torch.Tensor]:
    """Return the membranes ``mem`` that a forward operator stored, or None if they are not ``needed``.

    Raises:
        ValueError: they are needed and were not stored.
    """
    if not needed:
        return None
    steps, batch, _ = ids.shape
    if mem.numel() != steps * batch * neurons:
        raise ValueError(
            f"mem must be the {steps} x {batch} x {neurons} membranes that the forward operator stores with store_mem "
            f"where the gradient of beta is asked for, got {list(mem.shape)}"
        )
    return mem


def first_ids(steps: int, num_neurons: int, capacity: int, rotate: bool, device: torch.device) -> torch.Tensor:
    """Return the first neuron of each step's order, int64 ``[T]``: 0, or with ``rotate`` ``t * capacity % N``."""
    if not rotate or capacity <= 0:
        return torch.zeros(steps, dtype=torch.int64, device=device)
    return torch.arange(steps, device=device) * capacity % num_neurons


def select(
    fired: torch.Tensor, carried: torch.Tensor, capacity: int, rotate: bool
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Select the neurons that get a slot; return ids, counts and dropped as in SparseSpikes.

    Spikes come before gradient-only neurons. Each group is filled in cyclic order from the first id of the step, and
    stored by ascending id.

    Args:
        fired: the neurons that spiked, bool ``[T, B, N]``.
        carried: the neurons above the second threshold, likewise.
        capacity: number of slots, or AS_NEEDED.
        rotate: the first id moves from step to step, see :func:`first_ids`.
    """
    steps, _, neurons = fired.shape
    carried = carried | fired
    counted = torch.stack([fired.sum(-1), carried.sum(-1)], -1)
    if capacity == AS_NEEDED:
        capacity = int(counted[..., 1].max()) if counted.numel() else 0
    everyone = torch.arange(neurons, device=fired.device)
    first = first_ids(steps, neurons, capacity, rotate, fired.device)
    rank = (everyone - first[:, None]).remainder(neurons)[:, None]
    group = torch.where(fired, 0, torch.where(carried, 1, 2))
    chosen = (group * neurons + rank).argsort(-1)[..., :capacity]
    order = (group.gather(-1, chosen) * neurons + chosen).sort(-1).values
    counts = counted.clamp(max=capacity)
    used = torch.arange(capacity, device=fired.device) < counts[..., 1:]
    ids = torch.where(used, order % neurons, 0)
    return ids.int(), counts.int(), (counted - counts).int()


def limit(spikes: SparseSpikes, max_spikes: int, overflow: str) -> Slots:
    """Select among the slots of ``spikes`` in the order of :func:`select`, for ``SparseSpikes.limit``.

    Returns ids, the old slot of each new slot, counts and dropped.
    """
    check_int("max_spikes", max_spikes, 0)
    neurons, counts = spikes.num_neurons, spikes.counts
    slots = torch.arange(spikes.capacity, device=spikes.device)
    ids = torch.where(slots < counts[..., 1:], spikes.ids, 0)  # padding may hold anything
    first = first_ids(ids.shape[0], neurons, max_spikes, overflow_code(overflow), ids.device)
    rank = (ids - first[:, None, None]).remainder(neurons)
    group = (slots >= counts[..., :1]).long() + (slots >= counts[..., 1:]).long()
    chosen = (group * neurons + rank).argsort(-1)[..., :max_spikes]
    order = (group.gather(-1, chosen) * neurons + ids.gather(-1, chosen)).argsort(-1)
    chosen = chosen.gather(-1, order)
    kept = counts.clamp(max=max_spikes)
    return ids.gather(-1, chosen).contiguous(), chosen, kept, counts - kept


def scatter(values: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> torch.Tensor:
    """Return a dense ``[T, B, N]`` with the values of the carried slots, 0 elsewhere."""
    used = torch.arange(ids.shape[2], device=ids.device) < counts[..., 1:]
    dense = values.new_zeros(*ids.shape[:2], num_neurons + 1)
    # Padding is written to an extra last column, which is cut off.
    dense.scatter_add_(2, torch.where(used, ids.long(), num_neurons), torch.where(used, values, 0))
    return dense[..., :num_neurons]


def gather(dense: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the elements of a dense ``[T, B, N]`` at the carried slots; 0 in padding."""
    used = torch.arange(ids.shape[2], device=ids.device) < counts[..., 1:]
    return torch.where(used, dense.gather(2, torch.where(used, ids.long(), 0)), 0)


def check_spikes(name: str, spikes: object) -> SparseSpikes:
    """Check that ``spikes`` is a SparseSpikes; return it."""
    if not isinstance(spikes, SparseSpikes):
        raise TypeError(f"{name} must be a snnipu.SparseSpikes, got {type(spikes).__name__}")
    return spikes
