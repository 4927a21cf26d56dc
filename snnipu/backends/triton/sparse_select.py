"""Triton kernels that make slots of dense tensors and go back: selection by thresholds, scatter, gather.

A row, one step of one sample, is one program's, and positions in it are prefix sums: nothing depends on the order in
which programs run. Ids and counts are not checked, as that would make the host wait; what is out of range is not read.
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
from snnipu.ops._slots import AS_NEEDED
from snnipu.ops.select_spikes import SelectBackward

Slots = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

_SLOT_BLOCK = 256
# Elements of dense rows whose sum is taken at once: 32 MiB in float32.
_COUNTED_AT_ONCE = 1 << 23

# What makes a neuron want a slot.
_NONZERO, _ONE_THRESHOLD, _TWO_THRESHOLDS = range(3)


@triton.jit
def _above(x, threshold_ptr, second, cols, mask, KIND: tl.constexpr, PER_NEURON: tl.constexpr):
    """Which neurons fired, and which only carry gradient. KIND: 0 nonzero, 1 one threshold, 2 two of them."""
    if KIND == 0:
        fired = (x != 0) & mask
        others = fired & (cols < 0)  # none
    else:
        threshold = per_neuron(threshold_ptr, cols, mask, PER_NEURON)
        fired = (x - threshold > 0) & mask
        others = fired ^ mask
        if KIND == 2:
            others = others & (x > second)
    return fired, others


@triton.jit(do_not_specialize=["second"])
def found_kernel(
    x_ptr,
    threshold_ptr,
    second,
    found_ptr,
    neurons,
    KIND: tl.constexpr,
    PER_NEURON: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How many neurons of each row want a slot."""
    row = tl.program_id(0).to(tl.int64)
    second = scalar(second, DOUBLE)
    count = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, neurons, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < neurons
        x = tl.load(x_ptr + row * neurons + cols, mask=mask, other=0.0)
        fired, others = _above(x, threshold_ptr, second, cols, mask, KIND, PER_NEURON)
        count += fired.to(tl.int32) + others.to(tl.int32)
    tl.store(found_ptr + row, tl.sum(count, 0))


@triton.jit
def _sums_one_by_one(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    return tl.sum(tl.where(at[None, :] <= at[:, None], x[None, :], 0), 1)


# _ROW_BLOCK: neurons of a row that are looked at at a time; fewer than 2^15, as two prefix sums share an int32.
if hasattr(tl, "cumsum"):
    _ROW_BLOCK = 1024

    @triton.jit
    def _prefix_sums(x, BLOCK: tl.constexpr):
        return tl.cumsum(x, 0)

else:  # Triton 2.0
    _ROW_BLOCK = 64
    _prefix_sums = _sums_one_by_one


@triton.jit
def _place(index, found, before, kept):
    """Where the ``index``-th of ``found`` goes when ``kept`` of them fit, from the ``before``-th on; -1: nowhere.

    What is kept is a window of the indices that may wrap around; places are by ascending index.
    """
    wrapped = tl.maximum(before + kept - found, 0)
    ahead = index - before
    place = tl.where(index < wrapped, index, -1)
    return tl.where((ahead >= 0) & (ahead < kept), wrapped + ahead, place)


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
    """Slots of one row. Two passes over it: how many want one, then who gets which."""
    row = tl.program_id(0).to(tl.int64) + first_row
    second = scalar(second, DOUBLE)
    fired_count = tl.zeros([BLOCK], dtype=tl.int32)
    others_count = tl.zeros([BLOCK], dtype=tl.int32)
    fired_early = tl.zeros([BLOCK], dtype=tl.int32)
    others_early = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, neurons, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < neurons
        x = tl.load(x_ptr + row * neurons + cols, mask=mask, other=0.0)
        fired, others = _above(x, threshold_ptr, second, cols, mask, KIND, PER_NEURON)
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
        cols = start + tl.arange(0, BLOCK)
        mask = cols < neurons
        x = tl.load(x_ptr + row * neurons + cols, mask=mask, other=0.0)
        fired, others = _above(x, threshold_ptr, second, cols, mask, KIND, PER_NEURON)
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
        nothing = tl.zeros([BLOCK], dtype=tl.int32)
        tl.store(ids_ptr + slot + padding, nothing, mask=mask)
        tl.store(values_ptr + slot + padding, nothing.to(values_ptr.dtype.element_ty), mask=mask)
        if SLOT_X:
            tl.store(slot_x_ptr + slot + padding, nothing.to(values_ptr.dtype.element_ty), mask=mask)


@triton.jit
def carried_in_row(counts_ptr, row, slots):
    """Carried slots of a row; never more than there are slots."""
    return tl.minimum(tl.load(counts_ptr + 2 * row + 1), slots)


@triton.jit(do_not_specialize=["slots"])
def scatter_kernel(ids_ptr, values_ptr, counts_ptr, dense_ptr, slots, neurons, BLOCK: tl.constexpr):
    """The carried slots of one row, written to a dense row of zeros."""
    row = tl.program_id(0).to(tl.int64)
    carried = carried_in_row(counts_ptr, row, slots)
    for start in range(0, carried, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < carried
        ids = tl.load(ids_ptr + row * slots + at, mask=mask, other=0)
        values = tl.load(values_ptr + row * slots + at, mask=mask, other=0.0)
        tl.store(dense_ptr + row * neurons + ids, values, mask=mask & (ids >= 0) & (ids < neurons))


@triton.jit(do_not_specialize=["slots", "dense_rows"])
def gather_kernel(dense_ptr, ids_ptr, counts_ptr, values_ptr, slots, neurons, dense_rows, BLOCK: tl.constexpr):
    """What a dense row, one of ``dense_rows`` that repeat, holds at the carried slots; 0 in padding."""
    row = tl.program_id(0).to(tl.int64)
    dense_ptr += row % dense_rows * neurons
    carried = carried_in_row(counts_ptr, row, slots)
    for start in range(0, slots, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < carried
        ids = tl.load(ids_ptr + row * slots + at, mask=mask, other=0)
        values = tl.load(dense_ptr + ids, mask=mask & (ids >= 0) & (ids < neurons), other=0.0)
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
    """The gradient behind the spike function at the slots of one row, written to a dense row of zeros as well.

    AT_SLOTS: the membranes are those of the slots, not of all neurons. STORE: at the slots it is wanted, too.
    """
    row = tl.program_id(0).to(tl.int64)
    zeros = tl.zeros([BLOCK], dtype=dense_ptr.dtype.element_ty)
    p = (zeros + p_high) + p_low
    q = (zeros + q_high) + q_low
    carried = carried_in_row(counts_ptr, row, slots)
    for start in range(0, slots, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < carried
        ids = tl.load(ids_ptr + row * slots + at, mask=mask, other=0)
        inside = mask & (ids >= 0) & (ids < neurons)
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
    """Block and warps of a kernel that goes through the slots of a row."""
    block = block_of(slots, 32, _SLOT_BLOCK)
    return {"BLOCK": block, "num_warps": max(1, min(4, block // 64))}


class Selection:
    """Slots of the rows of ``x`` ``[T, B, N]``, contiguous; made for all rows at once or step by step.

    Args:
        x: membranes, or with ``threshold=None`` a tensor whose nonzero elements are wanted.
        capacity: slots, or ``AS_NEEDED``: the number is then read from the device, which makes the host wait.
        slot_x: whether ``x`` at the slots is wanted, ``[T, B, S]``.
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
        found = torch.empty(self.rows, dtype=torch.int32, device=self.x.device)
        with backend.on_device(self.device):
            found_kernel[(self.rows,)](self.x, self._threshold, self._second, found, self.neurons, **self._options)
        return int(found.max())

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
        """Leave as many slots as the busiest row uses, which makes the host wait."""
        most = int(self.counts[..., 1].max()) if self.rows else 0
        self.ids, self.values, self.slot_x = (
            part[..., :most].contiguous() for part in (self.ids, self.values, self.slot_x)
        )


def _selected(
    x: torch.Tensor,
    threshold: Optional[torch.Tensor],
    grad_threshold: Optional[float],
    capacity: int,
    rotate: bool,
) -> Slots:
    made = Selection(x.contiguous(), threshold, grad_threshold, capacity, rotate)
    made.run(0, made.rows)
    return made.ids, made.values, made.counts, made.dropped


def dense_to_sparse_fwd(x: torch.Tensor, capacity: int, rotate: bool) -> Slots:
    """CUDA kernel of ``snnipu::dense_to_sparse_fwd``."""
    return _selected(x, None, None, capacity, rotate)


def select_spikes_fwd(
    mem: torch.Tensor, threshold: torch.Tensor, grad_threshold: Optional[float], capacity: int, rotate: bool
) -> Slots:
    """CUDA kernel of ``snnipu::select_spikes_fwd``."""
    return _selected(mem, threshold, grad_threshold, capacity, rotate)


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
    """CUDA kernel of ``snnipu::sparse_to_dense_bwd``, and of ``snnipu::spike_count_bwd``, whose rows are one step's."""
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
    """Return the gradient behind the spike function, dense ``[T, B, N]`` and at the slots.

    ``at_slots``: the membranes are those of the slots, and the second result is empty.
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
