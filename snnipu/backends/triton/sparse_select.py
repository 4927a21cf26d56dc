"""Triton kernels between dense tensors and slots: selection by thresholds, scatter, gather.

Each program has one row: one step of one sample. Positions in the row are prefix sums, so that results do not depend on
the order of programs. Ids and counts are not checked, because the host would have to wait for the result. Indices out
of range are skipped.
"""

from typing import Any, Dict, Optional, Tuple

import torch
import triton
import triton.language as tl

from snnipu.backends import triton as backend
from snnipu.backends.triton.sequence import _constants as surrogate_constants
from snnipu.backends.triton.sequence import _through_spike as through_spike
from snnipu.backends.triton.sparse_maths import (
    block_of,
    number,
    per_neuron,
    scalar,
)
from snnipu.ops._slots import AS_NEEDED, Slots
from snnipu.ops.select_spikes import SelectBackward

_SLOT_BLOCK = 256
# Limit of the elements in one sum over dense rows: 32 MiB in float32.
_COUNTED_AT_ONCE = 1 << 23

# Conditions for a slot: a nonzero element; a membrane above the threshold; or one above the second threshold, too.
_NONZERO, _ONE_THRESHOLD, _TWO_THRESHOLDS = range(3)


@triton.jit
def _above(
    x_ptr, threshold_ptr, second, start, neurons, KIND: tl.constexpr, PER_NEURON: tl.constexpr, BLOCK: tl.constexpr
):
    """Return the neurons from ``start`` on, their x, and masks: those that fired, those that only get a gradient.

    KIND: 0 nonzero elements, 1 one threshold, 2 two thresholds.
    """
    cols = start + tl.arange(0, BLOCK)
    mask = cols < neurons
    x = tl.load(x_ptr + cols, mask=mask, other=0.0)
    if KIND == 0:
        fired = (x != 0) & mask
        others = fired & (cols < 0)  # none
    else:
        threshold = per_neuron(threshold_ptr, cols, mask, PER_NEURON)
        fired = (x - threshold > 0) & mask
        others = fired ^ mask
        if KIND == 2:
            others = others & (x > second)
    return cols, x, fired, others


@triton.jit(do_not_specialize=["second"])
def count_kernel(
    x_ptr,
    threshold_ptr,
    second,
    out_ptr,
    neurons,
    KIND: tl.constexpr,
    PER_NEURON: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count the neurons of each row that need a slot."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * neurons
    second = scalar(second, DOUBLE)
    count = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, neurons, BLOCK):
        _, _, fired, others = _above(x_ptr, threshold_ptr, second, start, neurons, KIND, PER_NEURON, BLOCK)
        count += fired.to(tl.int32) + others.to(tl.int32)
    tl.store(out_ptr + row, tl.sum(count, 0))


@triton.jit
def _sums_one_by_one(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    return tl.sum(tl.where(at[None, :] <= at[:, None], x[None, :], 0), 1)


# _ROW_BLOCK: neurons of a row in one block; fewer than 2^15, because two prefix sums share an int32.
if hasattr(tl, "cumsum"):
    _ROW_BLOCK = 1024

    @triton.jit
    def _prefix_sums(x, BLOCK: tl.constexpr):
        return tl.cumsum(x, 0)

else:  # Triton 2.0
    _ROW_BLOCK = 64
    _prefix_sums = _sums_one_by_one


@triton.jit
def _place(index, candidates, before, selected):
    """Return the slot of the ``index``-th of ``candidates`` neurons if ``selected`` of them get one; else -1.

    The selected neurons are those from the ``before``-th on, wrapping around. Slots are in the order of the index.
    """
    wrapped = tl.maximum(before + selected - candidates, 0)
    ahead = index - before
    place = tl.where(index < wrapped, index, -1)
    return tl.where((ahead >= 0) & (ahead < selected), wrapped + ahead, place)


@triton.jit(do_not_specialize=["second", "first_row", "batch", "capacity"])
def select_kernel(
    x_ptr,
    threshold_ptr,
    second,
    ids_ptr,
    values_ptr,
    slot_x_ptr,
    counts_ptr,
    dropped_ptr,
    first_row,
    batch,
    neurons,
    capacity,
    KIND: tl.constexpr,
    PER_NEURON: tl.constexpr,
    ROTATE: tl.constexpr,
    SLOT_X: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Select the slots of one row. The first pass counts the neurons that need a slot; the second assigns slots."""
    row = tl.program_id(0).to(tl.int64) + first_row
    x_ptr += row * neurons
    second = scalar(second, DOUBLE)
    fired_count = tl.zeros([BLOCK], dtype=tl.int32)
    others_count = tl.zeros([BLOCK], dtype=tl.int32)
    fired_early = tl.zeros([BLOCK], dtype=tl.int32)
    others_early = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, neurons, BLOCK):
        cols, x, fired, others = _above(x_ptr, threshold_ptr, second, start, neurons, KIND, PER_NEURON, BLOCK)
        fired_count += fired.to(tl.int32)
        others_count += others.to(tl.int32)
        if ROTATE:
            early = cols < row // batch * capacity % neurons
            fired_early += (fired & early).to(tl.int32)
            others_early += (others & early).to(tl.int32)
    fired_found = tl.sum(fired_count, 0)
    others_found = tl.sum(others_count, 0)
    fired_before = tl.sum(fired_early, 0)
    others_before = tl.sum(others_early, 0)
    fired_kept = tl.minimum(fired_found, capacity)
    others_kept = tl.minimum(others_found, capacity - fired_kept)
    used = fired_kept + others_kept
    tl.store(counts_ptr + 2 * row, fired_kept)
    tl.store(counts_ptr + 2 * row + 1, used)
    tl.store(dropped_ptr + 2 * row, fired_found - fired_kept)
    tl.store(dropped_ptr + 2 * row + 1, fired_found + others_found - used)

    slot = row * capacity
    fired_seen = fired_found * 0
    others_seen = fired_found * 0
    for start in range(0, neurons, BLOCK):
        cols, x, fired, others = _above(x_ptr, threshold_ptr, second, start, neurons, KIND, PER_NEURON, BLOCK)
        # Two prefix sums in one: each fits into 16 bits.
        both = fired.to(tl.int32) + others.to(tl.int32) * 65536
        running = _prefix_sums(both, BLOCK)
        fired_place = _place(fired_seen + (running & 65535) - 1, fired_found, fired_before, fired_kept)
        others_place = _place(others_seen + (running >> 16) - 1, others_found, others_before, others_kept)
        total = tl.sum(both, 0)
        fired_seen += total & 65535
        others_seen += total >> 16
        others = others & (others_place >= 0)
        place = tl.where(fired, fired_place, fired_kept + others_place)
        taken = (fired & (fired_place >= 0)) | others
        tl.store(ids_ptr + slot + place, cols, mask=taken)
        if KIND == 0:
            tl.store(values_ptr + slot + place, x, mask=taken)
        else:
            tl.store(values_ptr + slot + place, fired.to(values_ptr.dtype.element_ty), mask=taken)
        if SLOT_X:
            tl.store(slot_x_ptr + slot + place, x, mask=taken)
    for start in range(used, capacity, BLOCK):
        padding = start + tl.arange(0, BLOCK)
        mask = padding < capacity
        zeros = tl.zeros([BLOCK], dtype=tl.int32)
        tl.store(ids_ptr + slot + padding, zeros, mask=mask)
        tl.store(values_ptr + slot + padding, zeros.to(values_ptr.dtype.element_ty), mask=mask)
        if SLOT_X:
            tl.store(slot_x_ptr + slot + padding, zeros.to(values_ptr.dtype.element_ty), mask=mask)


@triton.jit
def carried_in_row(counts_ptr, row, slots):
    """Return the number of used slots of a row, limited to the number of slots."""
    return tl.minimum(tl.load(counts_ptr + 2 * row + 1), slots)


@triton.jit
def _slots_from(ids_ptr, start, carried, neurons, BLOCK: tl.constexpr):
    """Return the slots of a row from ``start`` on, a mask of the used ones, their ids, and a mask of valid ids."""
    at = start + tl.arange(0, BLOCK)
    mask = at < carried
    ids = tl.load(ids_ptr + at, mask=mask, other=0)
    return at, mask, ids, mask & (ids >= 0) & (ids < neurons)


@triton.jit(do_not_specialize=["slots"])
def scatter_kernel(ids_ptr, values_ptr, counts_ptr, dense_ptr, slots, neurons, BLOCK: tl.constexpr):
    """Write the values of the used slots of one row to a dense row of zeros."""
    row = tl.program_id(0).to(tl.int64)
    carried = carried_in_row(counts_ptr, row, slots)
    for start in range(0, carried, BLOCK):
        at, mask, ids, inside = _slots_from(ids_ptr + row * slots, start, carried, neurons, BLOCK)
        values = tl.load(values_ptr + row * slots + at, mask=mask, other=0.0)
        tl.store(dense_ptr + row * neurons + ids, values, mask=inside)


@triton.jit(do_not_specialize=["slots", "dense_rows"])
def gather_kernel(dense_ptr, ids_ptr, counts_ptr, values_ptr, slots, neurons, dense_rows, BLOCK: tl.constexpr):
    """Read the elements of a dense row at the used slots of one row; 0 for unused slots.

    Row ``r`` of the slots reads dense row ``r % dense_rows``.
    """
    row = tl.program_id(0).to(tl.int64)
    dense_ptr += row % dense_rows * neurons
    carried = carried_in_row(counts_ptr, row, slots)
    for start in range(0, slots, BLOCK):
        at, _, ids, inside = _slots_from(ids_ptr + row * slots, start, carried, neurons, BLOCK)
        values = tl.load(dense_ptr + ids, mask=inside, other=0.0)
        tl.store(values_ptr + row * slots + at, values, mask=at < slots)


@triton.jit(do_not_specialize=["p_high", "p_low", "q_high", "q_low", "slots"])
def through_spikes_kernel(
    grad_ptr,
    mem_ptr,
    threshold_ptr,
    ids_ptr,
    counts_ptr,
    dense_ptr,
    through_ptr,
    p_high,
    p_low,
    q_high,
    q_low,
    slots,
    neurons,
    KIND: tl.constexpr,
    PER_NEURON: tl.constexpr,
    AT_SLOTS: tl.constexpr,
    STORE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the gradient that has passed the spike function at the slots of one row, into a dense row of zeros.

    AT_SLOTS: membranes are given for the slots, not for all neurons. STORE: write the gradient at the slots, too.
    """
    row = tl.program_id(0).to(tl.int64)
    zeros = tl.zeros([BLOCK], dtype=dense_ptr.dtype.element_ty)
    p = (zeros + p_high) + p_low
    q = (zeros + q_high) + q_low
    carried = carried_in_row(counts_ptr, row, slots)
    for start in range(0, slots, BLOCK):
        at, mask, ids, inside = _slots_from(ids_ptr + row * slots, start, carried, neurons, BLOCK)
        grad = tl.load(grad_ptr + row * slots + at, mask=mask, other=0.0)
        if AT_SLOTS:
            mem = tl.load(mem_ptr + row * slots + at, mask=mask, other=0.0)
        else:
            mem = tl.load(mem_ptr + row * neurons + ids, mask=inside, other=0.0)
        u = mem - per_neuron(threshold_ptr, ids, inside, PER_NEURON)
        through = through_spike(u, grad, p, q, KIND)
        tl.store(dense_ptr + row * neurons + ids, through, mask=inside)
        if STORE:
            through = tl.where(inside, through, 0.0)
            tl.store(through_ptr + row * slots + at, through, mask=at < slots)


def _rows(x: torch.Tensor) -> int:
    return x.shape[0] * x.shape[1]


def _row_block(neurons: int) -> Dict[str, int]:
    block = block_of(neurons, 32, _ROW_BLOCK)
    return {"BLOCK": block, "num_warps": max(1, min(4, block // 128))}


def slot_block(slots: int) -> Dict[str, int]:
    """Return block size and warps for kernels that loop over the slots of a row."""
    block = block_of(slots, 32, _SLOT_BLOCK)
    return {"BLOCK": block, "num_warps": max(1, min(4, block // 64))}


class Selection:
    """The slots of ``x``, which :meth:`run` selects for all rows at once or step by step.

    Args:
        x: membranes ``[T, B, N]``, contiguous; with ``threshold=None`` any tensor, whose nonzero elements get slots.
        threshold: one element, or one for each neuron; None to select nonzero elements.
        grad_threshold: the second threshold; None if there is none.
        capacity: number of slots. With ``AS_NEEDED`` it is read from the device, for which the host waits.
        rotate: True to take turns if a row has more spikes than slots.
        slot_x: True to store ``x`` at the slots, too, ``[T, B, S]``.
    """

    def __init__(
        self,
        x: torch.Tensor,
        threshold: Optional[torch.Tensor],
        grad_threshold: Optional[float],
        capacity: int,
        rotate: bool,
        slot_x: bool = False,
    ) -> None:
        steps, self.batch, self.neurons = x.shape
        self.device = backend.check_launch(x, threshold)
        self.x, self.rows, self.rotate = x, _rows(x), rotate
        kind = _NONZERO if threshold is None else _ONE_THRESHOLD if grad_threshold is None else _TWO_THRESHOLDS
        self._threshold = x if threshold is None else threshold.contiguous()
        self._second = number(0.0 if grad_threshold is None else grad_threshold, x.dtype)
        self._options: Dict[str, Any] = {
            "KIND": kind,
            "PER_NEURON": threshold is not None and threshold.numel() > 1,
            "DOUBLE": x.dtype == torch.float64,
            **_row_block(self.neurons),
            **backend.exact(),
        }
        self.capacity = self._needed() if capacity == AS_NEEDED else capacity
        self.ids = torch.empty((steps, self.batch, self.capacity), dtype=torch.int32, device=x.device)
        self.values = x.new_empty(self.ids.shape)
        self.slot_x = x.new_empty(self.ids.shape if slot_x else 0)
        self.counts = torch.empty((steps, self.batch, 2), dtype=torch.int32, device=x.device)
        self.dropped = torch.empty_like(self.counts)
        self._store_x = slot_x

    def _needed(self) -> int:
        if not self.rows:
            return 0
        counts = torch.empty(self.rows, dtype=torch.int32, device=self.x.device)
        with backend.on_device(self.device):
            count_kernel[(self.rows,)](self.x, self._threshold, self._second, counts, self.neurons, **self._options)
        return int(counts.max())

    def run(self, first_row: int, rows: int) -> None:
        """Fill the slots of these rows."""
        if not rows:
            return
        with backend.on_device(self.device):
            select_kernel[(rows,)](
                self.x,
                self._threshold,
                self._second,
                self.ids,
                self.values,
                self.slot_x,
                self.counts,
                self.dropped,
                first_row,
                self.batch,
                self.neurons,
                self.capacity,
                ROTATE=self.rotate,
                SLOT_X=self._store_x,
                **self._options,
            )

    def trim(self) -> None:
        """Reduce the slots to the number that the busiest row uses. The host waits for it."""
        most = int(self.counts[..., 1].max()) if self.rows else 0
        self.ids, self.values, self.slot_x = (
            part[..., :most].contiguous() for part in (self.ids, self.values, self.slot_x)
        )


def select_spikes_fwd(
    x: torch.Tensor,
    threshold: Optional[torch.Tensor],
    grad_threshold: Optional[float],
    capacity: int,
    rotate: bool,
) -> Slots:
    """CUDA kernel of ``snnipu::select_spikes_fwd``; ``threshold`` None: select the elements that are not 0."""
    selection = Selection(x.contiguous(), threshold, grad_threshold, capacity, rotate)
    selection.run(0, selection.rows)
    return selection.ids, selection.values, selection.counts, selection.dropped


def dense_to_sparse_fwd(x: torch.Tensor, capacity: int, rotate: bool) -> Slots:
    """CUDA kernel of ``snnipu::dense_to_sparse_fwd``."""
    return select_spikes_fwd(x, None, None, capacity, rotate)


def sparse_to_dense_fwd(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, num_neurons: int
) -> torch.Tensor:
    """CUDA kernel of ``snnipu::sparse_to_dense_fwd``."""
    device = backend.check_launch(ids, values, counts)
    ids, values, counts = ids.contiguous(), values.contiguous(), counts.contiguous()
    dense = values.new_zeros((*ids.shape[:2], num_neurons))
    if ids.numel():
        slots = ids.shape[2]
        with backend.on_device(device):
            scatter_kernel[(_rows(ids),)](
                ids, values, counts, dense, slots, num_neurons, **slot_block(slots), **backend.exact()
            )
    return dense


def sparse_to_dense_bwd(grad: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """CUDA kernel of ``snnipu::sparse_to_dense_bwd`` and ``snnipu::spike_count_bwd``.

    In the latter, ``grad`` has the rows of a single step.
    """
    device = backend.check_launch(grad, ids, counts)
    grad, ids, counts = grad.contiguous(), ids.contiguous(), counts.contiguous()
    values = grad.new_empty(ids.shape)
    if ids.numel():
        slots, neurons = ids.shape[2], grad.shape[-1]
        dense_rows = max(1, grad.numel() // max(neurons, 1))
        with backend.on_device(device):
            gather_kernel[(_rows(ids),)](
                grad, ids, counts, values, slots, neurons, dense_rows, **slot_block(slots), **backend.exact()
            )
    return values


spike_count_bwd = sparse_to_dense_bwd


def spike_count_fwd(ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> torch.Tensor:
    """CUDA kernel of ``snnipu::spike_count_fwd``: sums of dense rows, some steps at a time, in a fixed order."""
    steps, batch, _ = ids.shape
    total = values.new_zeros((batch, num_neurons))
    at_once = max(1, _COUNTED_AT_ONCE // max(1, total.numel()))
    for first in range(0, steps, at_once):
        now = slice(first, first + at_once)
        total += sparse_to_dense_fwd(ids[now], values[now], counts[now], num_neurons).sum(0)
    return total


def through_spikes(a: SelectBackward, num_neurons: int, at_slots: bool) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient that has passed the spike function, dense ``[T, B, N]`` and at the slots.

    With ``at_slots``, ``a.mem`` has the membranes of the slots, and the second result is empty.
    """
    tensors = a[:5]
    device = backend.check_launch(*tensors)
    grad, mem, threshold, ids, counts = (tensor.contiguous() for tensor in tensors)
    dense = mem.new_zeros((*ids.shape[:2], num_neurons))
    through = mem.new_empty(0 if at_slots else ids.shape)
    if ids.numel():
        slots = ids.shape[2]
        with backend.on_device(device):
            through_spikes_kernel[(_rows(ids),)](
                grad,
                mem,
                threshold,
                ids,
                counts,
                dense,
                through,
                *surrogate_constants(a.surrogate_a, a.surrogate_b),
                slots,
                num_neurons,
                KIND=a.surrogate,
                PER_NEURON=threshold.numel() > 1,
                AT_SLOTS=at_slots,
                STORE=not at_slots,
                **slot_block(slots),
                **backend.exact(),
            )
    return dense, through


def select_spikes_bwd(*arguments: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """CUDA kernel of ``snnipu::select_spikes_bwd``."""
    a = SelectBackward(*arguments)
    return through_spikes(a, a.mem.shape[2], at_slots=False)
