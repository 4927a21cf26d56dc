"""Triton kernels of the linear layer on spike ids: sums of weighted spikes, and their gradients.

Every sum has one program and a fixed order; there are no atomic additions. Ids and counts are not checked, because the
host would have to wait for the result. Indices out of range are skipped.
"""

from typing import Any, Dict, Optional, Tuple

import torch
import triton
import triton.language as tl

from snnipu.backends import triton as backend
from snnipu.backends.triton.sparse_maths import block_of, number, scalar, where_all
from snnipu.backends.triton.sparse_select import carried_in_row, sparse_to_dense_bwd, sparse_to_dense_fwd
from snnipu.ops._break_even import break_even
from snnipu.ops._fixed import WeightCache

# Packed rows begin at a multiple of this number of elements, for loads of 16 bytes.
_ROW_ALIGNMENT = 16
_NEURON_BLOCK = 512
# For the gradient of weights: rows that are loaded together; most programs that share the spikes of an input; number of
# programs from which on they do not share them.
_ROWS_AT_ONCE, _MOST_PARTS, _PROGRAMS_WANTED = 8, 8, 4096
_DOT_NEURONS = 256
_DOT_SLOTS = 8


_cache = WeightCache()


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def packed_weight(weight: torch.Tensor, trusted: bool = False) -> torch.Tensor:
    """Return ``weight`` ``[out, in]`` as ``[in, out]`` with rows padded by zeros, so that lanes read contiguous memory.

    Each call makes a copy, because ``weight.data`` or the replay of a CUDA graph may change the weight unnoticed, and a
    copy takes less time than a comparison.

    Args:
        weight: ``[out, in]``.
        trusted: the weight has not changed since the forward pass: reuse its copy.
    """
    # Version and address show a change; a copy made while a graph is captured is in the graph's memory.
    identity = None if weight.is_inference() else (weight._version, weight.data_ptr(), _capturing(weight.device))
    cached = _cache.find(weight, identity) if trusted and identity is not None else None
    if cached is not None:
        return cached.packed
    neurons, inputs = weight.shape
    stride = -(-neurons // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
    packed = torch.empty((inputs, stride), dtype=weight.dtype, device=weight.device)
    packed[:, :neurons].copy_(weight.detach().t())
    if stride > neurons:
        packed[:, neurons:].zero_()
    return packed if identity is None else _cache.keep(weight, identity, packed)


@triton.jit
def add_weights(
    total,
    ids_ptr,
    values_ptr,
    count,
    weight_ptr,
    stride,
    inputs,
    cols,
    mask,
    VALUES: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Return ``total`` plus the weights of the first ``count`` slots, added in the order of slots as on the host."""
    for start in range(0, count, UNROLL):
        for i in tl.static_range(UNROLL):
            there = start + i < count
            # All lanes load the same id. The loads of UNROLL slots overlap.
            neuron = tl.load(ids_ptr + start + i, mask=there, other=0)
            there = there & (neuron >= 0) & (neuron < inputs)
            weight = tl.load(weight_ptr + neuron.to(tl.int64) * stride + cols, mask=where_all(mask, there), other=0.0)
            if VALUES:
                weight = weight * tl.load(values_ptr + start + i, mask=there, other=0.0)
            total += weight
    return total


@triton.jit(do_not_specialize=["scale", "rows", "late", "slots", "inputs"])
def gather_weights_kernel(
    ids_ptr,
    values_ptr,
    counts_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    scale,
    rows,
    late,
    slots,
    inputs,
    neurons,
    stride,
    SCALE: tl.constexpr,
    BIAS: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Compute ``out[row] = scale * (weights of the spikes of row - late) + bias``, for a row and a block of neurons."""
    program = tl.program_id(0)
    # Programs for the same block of neurons run at the same time: their weights stay in the cache.
    row = (program % rows).to(tl.int64)
    cols = program // rows * BLOCK + tl.arange(0, BLOCK)
    mask = cols < stride
    source = row - late
    total = tl.zeros([BLOCK], dtype=out_ptr.dtype.element_ty)
    count = tl.minimum(tl.load(counts_ptr + 2 * source, mask=source >= 0, other=0), slots)
    at = source * slots
    total = add_weights(
        total, ids_ptr + at, values_ptr + at, count, weight_ptr, stride, inputs, cols, mask, True, UNROLL
    )
    mask = cols < neurons
    if SCALE:
        total = total * scalar(scale, DOUBLE)
    if BIAS:
        total = total + tl.load(bias_ptr + cols, mask=mask, other=0.0)
    tl.store(out_ptr + row * neurons + cols, total, mask=mask)


@triton.jit(do_not_specialize=["rows", "slots", "inputs"])
def slot_keys_kernel(ids_ptr, counts_ptr, keys_ptr, rows, slots, inputs, BLOCK: tl.constexpr):
    """Store each spike's id as the key of its slot. Other slots, and rows from ``rows`` on, get ``inputs``."""
    row = tl.program_id(0).to(tl.int64)
    count = tl.minimum(tl.load(counts_ptr + 2 * row), slots)
    count = tl.where(row < rows, count, 0)
    for start in range(0, slots, BLOCK):
        at = start + tl.arange(0, BLOCK)
        neuron = tl.load(ids_ptr + row * slots + at, mask=at < count, other=-1)
        neuron = tl.where((neuron >= 0) & (neuron < inputs), neuron, inputs)
        tl.store(keys_ptr + row * slots + at, neuron, mask=at < slots)


@triton.jit(do_not_specialize=["scale", "late", "slots", "inputs"])
def grad_weight_kernel(
    grad_ptr,
    values_ptr,
    order_ptr,
    begin_ptr,
    out_ptr,
    scale,
    late,
    slots,
    inputs,
    neurons,
    SCALE: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Compute a part of the gradient of the weights from one input to a block of neurons, over the input's spikes."""
    program = tl.program_id(0)
    part = tl.program_id(1)
    neuron = (program % inputs).to(tl.int64)
    cols = program // inputs * BLOCK + tl.arange(0, BLOCK)
    mask = cols < neurons
    begin = tl.load(begin_ptr + neuron)
    end = tl.load(begin_ptr + neuron + 1)
    share = tl.cdiv(end - begin, tl.num_programs(1))
    begin += part * share
    end = tl.minimum(begin + share, end)
    total = tl.zeros([BLOCK], dtype=out_ptr.dtype.element_ty)
    for start in range(begin, end, UNROLL):
        for i in tl.static_range(UNROLL):
            there = start + i < end
            slot = tl.load(order_ptr + start + i, mask=there, other=0)
            value = tl.load(values_ptr + slot, mask=there, other=0.0)
            row = slot // slots + late
            total += value * tl.load(grad_ptr + row * neurons + cols, mask=where_all(mask, there), other=0.0)
    if SCALE:
        total = total * scalar(scale, DOUBLE)
    tl.store(out_ptr + (part * inputs + neuron) * neurons + cols, total, mask=mask)


@triton.jit
def slot_dots(ids, inside, grad_ptr, weight_ptr, neurons, stride, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the dot product of a row of the gradient with the weights of each of SLOTS ids."""
    total = tl.zeros([SLOTS, BLOCK], dtype=grad_ptr.dtype.element_ty)
    at = ids.to(tl.int64)[:, None] * stride
    for start in range(0, neurons, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        grad = tl.load(grad_ptr + cols, mask=cols < neurons, other=0.0)
        live = inside[:, None] & (cols < stride)[None, :]
        total += tl.load(weight_ptr + at + cols[None, :], mask=live, other=0.0) * grad[None, :]
    return tl.sum(total, 1)


@triton.jit(do_not_specialize=["scale", "rows", "late", "slots", "inputs"])
def grad_values_kernel(
    grad_ptr,
    ids_ptr,
    counts_ptr,
    weight_ptr,
    out_ptr,
    scale,
    rows,
    late,
    slots,
    inputs,
    neurons,
    stride,
    SCALE: tl.constexpr,
    DOUBLE: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the gradient of the values of some slots of a row, from that of row + late.

    It is 0 in unused slots and from ``rows`` on.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * SLOTS + tl.arange(0, SLOTS)
    carried = carried_in_row(counts_ptr, row, slots)
    carried = tl.where(row + late < rows, carried, 0)
    inside = at < carried
    total = tl.zeros([SLOTS], dtype=out_ptr.dtype.element_ty)
    if tl.program_id(1) * SLOTS < carried:
        ids = tl.load(ids_ptr + row * slots + at, mask=inside, other=0)
        inside = inside & (ids >= 0) & (ids < inputs)
        total = slot_dots(ids, inside, grad_ptr + (row + late) * neurons, weight_ptr, neurons, stride, SLOTS, BLOCK)
        if SCALE:
            total = total * scalar(scale, DOUBLE)
    tl.store(out_ptr + row * slots + at, total, mask=at < slots)


def _neuron_block(neurons: int) -> Dict[str, Any]:
    block = block_of(neurons, 32, _NEURON_BLOCK)
    return {"BLOCK": block, "num_warps": max(1, min(4, block // 128)), "UNROLL": 4}


def dot_block(neurons: int) -> Dict[str, int]:
    """Return block sizes and warps for :func:`slot_dots`."""
    return {"SLOTS": _DOT_SLOTS, "BLOCK": block_of(neurons, 32, _DOT_NEURONS), "num_warps": 4}


def gather_weights(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    scale: float = 1.0,
    delay: int = 0,
) -> torch.Tensor:
    """Return ``scale * spikes @ weight.T + bias``, ``[T, B, out]``, for the spikes of ``delay`` steps before."""
    device = backend.check_launch(ids, values, counts, weight, bias)
    ids, values, counts = ids.contiguous(), values.contiguous(), counts.contiguous()
    bias = None if bias is None else bias.contiguous()
    steps, batch, slots = ids.shape
    neurons, inputs = weight.shape
    out = torch.empty((steps, batch, neurons), dtype=weight.dtype, device=weight.device)
    rows = steps * batch
    if rows:
        packed = packed_weight(weight)
        options = _neuron_block(neurons)
        with backend.on_device(device):
            gather_weights_kernel[(rows * triton.cdiv(neurons, options["BLOCK"]),)](
                ids,
                values,
                counts,
                packed,
                packed if bias is None else bias,
                out,
                number(scale, weight.dtype),
                rows,
                min(delay, steps) * batch,
                slots,
                inputs,
                neurons,
                packed.shape[1],
                SCALE=scale != 1,
                BIAS=bias is not None,
                DOUBLE=weight.dtype == torch.float64,
                **options,
                **backend.exact(),
            )
    return out


def by_product(slots: int, inputs: int, dtype: torch.dtype) -> bool:
    """Return True if there are so many slots that gradients are computed by matrix products.

    The decision depends on the number of slots, not of used slots, which would have to be read from the device.
    """
    return slots > break_even(dtype) * inputs


def slots_of_inputs(
    ids: torch.Tensor, counts: torch.Tensor, inputs: int, delay: int = 0
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Sort the slots of all rows, except those of the last ``delay`` steps, by input and then by row.

    Returns:
        The sorted slots, and the index in them at which each input's slots begin; the last index is the end.
    """
    steps, batch, slots = ids.shape
    keys = torch.empty_like(ids)
    with backend.on_device(ids.device):
        slot_keys_kernel[(steps * batch,)](
            ids,
            counts,
            keys,
            (steps - delay) * batch,
            slots,
            inputs,
            BLOCK=block_of(slots, 32, 1024),
            num_warps=2,
            **backend.exact(),
        )
    keys, order = keys.reshape(-1).sort(stable=True)
    return order, torch.searchsorted(keys, torch.arange(inputs + 1, dtype=keys.dtype, device=keys.device))


def grad_weight_of(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    inputs: int,
    scale: float = 1.0,
    delay: int = 0,
) -> torch.Tensor:
    """Return ``scale * grad.T @ spikes``, ``[out, in]``, for the spikes of ``delay`` steps before."""
    device = backend.check_launch(grad, ids, values, counts)
    grad, ids, values, counts = grad.contiguous(), ids.contiguous(), values.contiguous(), counts.contiguous()
    steps, batch, slots = ids.shape
    neurons = grad.shape[2]
    delay = min(delay, steps)
    rows = (steps - delay) * batch
    if not rows or not slots:
        return grad.new_zeros((neurons, inputs))
    if by_product(slots, inputs, grad.dtype):
        spikes = sparse_to_dense_fwd(ids, values, counts[..., :1].expand(-1, -1, 2), inputs)
        product = grad[delay:].reshape(-1, neurons).t() @ spikes[: steps - delay].reshape(-1, inputs)
        return product if scale == 1 else product.mul_(scale)
    order, begin = slots_of_inputs(ids, counts, inputs, delay)
    options = {**_neuron_block(neurons), "UNROLL": _ROWS_AT_ONCE}
    programs = inputs * triton.cdiv(neurons, options["BLOCK"])
    # A few inputs may have most of the spikes. If there are few programs, several share the spikes of an input.
    parts = 1
    while parts < _MOST_PARTS and programs * parts < _PROGRAMS_WANTED:
        parts *= 2
    with backend.on_device(device):
        out = grad.new_empty((parts, inputs, neurons))
        grad_weight_kernel[(programs, parts)](
            grad,
            values,
            order,
            begin,
            out,
            number(scale, grad.dtype),
            delay * batch,
            slots,
            inputs,
            neurons,
            SCALE=scale != 1,
            DOUBLE=grad.dtype == torch.float64,
            **options,
            **backend.exact(),
        )
    return (out[0] if parts == 1 else out.sum(0)).t().contiguous()


def grad_values_of(
    grad: torch.Tensor,
    ids: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    scale: float = 1.0,
    delay: int = 0,
) -> torch.Tensor:
    """Return ``scale * grad @ weight`` for the gradient of ``delay`` steps later, at the used slots, ``[T, B, S]``."""
    device = backend.check_launch(grad, ids, counts, weight)
    grad, ids, counts = grad.contiguous(), ids.contiguous(), counts.contiguous()
    steps, batch, slots = ids.shape
    neurons, inputs = weight.shape
    delay = min(delay, steps)
    if by_product(slots, inputs, grad.dtype):
        dense = grad.new_zeros((steps, batch, inputs))
        torch.matmul(grad[delay:], weight.detach(), out=dense[: steps - delay])
        values = sparse_to_dense_bwd(dense, ids, counts)
        return values if scale == 1 else values.mul_(scale)
    out = grad.new_empty(ids.shape)
    rows = steps * batch
    if out.numel():
        packed = packed_weight(weight, trusted=True)
        options = dot_block(neurons)
        with backend.on_device(device):
            grad_values_kernel[(rows, triton.cdiv(slots, options["SLOTS"]))](
                grad,
                ids,
                counts,
                packed,
                out,
                number(scale, grad.dtype),
                rows,
                delay * batch,
                slots,
                inputs,
                neurons,
                packed.shape[1],
                SCALE=scale != 1,
                DOUBLE=grad.dtype == torch.float64,
                **options,
                **backend.fused(),
            )
    return out
