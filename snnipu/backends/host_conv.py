"""The host backend of the operators on maps: float32 and float64, through the C interface of csrc/host/snnipu.h."""

from ctypes import byref, c_int64, c_void_p
from typing import List, Optional, Tuple

import torch

from snnipu.backends import host, memory
from snnipu.backends.host_sparse import _call, _carries_densely, _check, _words, _zeroed, sparse_to_dense_bwd

AS_NEEDED = -1

Layer = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _sizes(geometry: List[int]) -> "c_int64 * 0":  # type: ignore[valid-type]
    return (c_int64 * len(geometry))(*geometry)


def _inputs(geometry: List[int]) -> int:
    return geometry[0] * geometry[1] * geometry[2]


def sparse_conv2d_fwd(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    geometry: List[int],
) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_conv2d_fwd``."""
    ids, values, counts, weight = ids.contiguous(), values.contiguous(), counts.contiguous(), weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    steps, batch, slots = ids.shape
    neurons = geometry[3] * geometry[4] * geometry[5]
    host._check_sizes(steps * batch, neurons)
    out = memory.empty(weight, torch.Size((steps, batch, neurons)))
    if steps * batch:
        status = _call(
            "sparse_conv2d_fwd",
            weight.dtype,
            ids.data_ptr(),
            values.data_ptr(),
            counts.data_ptr(),
            weight.data_ptr(),
            host._pointer(bias),
            out.data_ptr(),
            _sizes(geometry),
            steps * batch,
            slots,
            torch.get_num_threads(),
        )
        _check(status, "sparse_conv2d_fwd", ids, counts, _inputs(geometry))
    return out


def sparse_conv2d_bwd(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    geometry: List[int],
    need_values: bool,
    need_weight: bool,
    need_bias: bool,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::sparse_conv2d_bwd``; empty where not needed."""
    grad, ids, values, counts = grad.contiguous(), ids.contiguous(), values.contiguous(), counts.contiguous()
    weight = weight.contiguous()
    steps, batch, slots = ids.shape
    by_convolution = need_values and _carries_densely(counts, _inputs(geometry))
    grad_values = weight.new_empty(ids.shape) if need_values and not by_convolution else None
    grad_weight = torch.empty_like(weight) if need_weight else None
    grad_bias = weight.new_empty(weight.shape[0]) if need_bias else None
    if steps * batch:
        status = _call(
            "sparse_conv2d_bwd",
            weight.dtype,
            grad.data_ptr(),
            ids.data_ptr(),
            values.data_ptr(),
            counts.data_ptr(),
            weight.data_ptr(),
            *map(host._pointer, (grad_values, grad_weight, grad_bias)),
            _sizes(geometry),
            steps * batch,
            slots,
            torch.get_num_threads(),
        )
        _check(status, "sparse_conv2d_bwd", ids, counts, _inputs(geometry))
    if by_convolution:
        maps = grad.reshape(-1, *geometry[3:6])
        grad_values = sparse_to_dense_bwd(_input_gradient(maps, weight, geometry, steps), ids, counts)
    return _zeroed(weight, steps * batch == 0, grad_values, grad_weight, grad_bias)  # type: ignore[return-value]


def _input_gradient(grad: torch.Tensor, weight: torch.Tensor, geometry: List[int], steps: int) -> torch.Tensor:
    """Of a convolution, ``[T, B, inputs]``, from that of its maps ``[T * B, C, H, W]``, in any memory format."""
    like = grad.new_empty(1).expand(grad.shape[0], *geometry[:3])
    sizes = (geometry[8:10], geometry[10:12], geometry[12:14], False, [0, 0], geometry[14])
    found, _, _ = torch.ops.aten.convolution_backward(grad, like, weight, None, *sizes, [True, False, False])
    return found.reshape(steps, -1, _inputs(geometry))  # type: ignore[no-any-return]


def sparse_conv_lif_sequence_fwd(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    geometry: List[int],
    grad_threshold: Optional[float],
    input_scale: float,
    capacity: int,
    rotate: bool,
    reset: int,
    delay: int,
    store_mem: bool,
) -> Layer:
    """CPU kernel of ``snnipu::sparse_conv_lif_sequence_fwd``."""
    ids, values, counts, weight = ids.contiguous(), values.contiguous(), counts.contiguous(), weight.contiguous()
    beta, threshold = beta.contiguous(), threshold.contiguous()
    bias = None if bias is None else bias.contiguous()
    steps, batch, slots = ids.shape
    channels, places = geometry[3], geometry[4] * geometry[5]
    host._check_sizes(steps * batch, channels * places)
    mem = weight.new_empty((steps, batch, places, channels) if store_mem else 0)
    kept, most = c_void_p(), c_int64(0)
    if steps * batch:
        status = _call(
            "sparse_conv_lif_sequence_fwd",
            weight.dtype,
            ids.data_ptr(),
            values.data_ptr(),
            counts.data_ptr(),
            weight.data_ptr(),
            host._pointer(bias),
            beta.data_ptr(),
            threshold.data_ptr(),
            0.0 if grad_threshold is None else grad_threshold,
            input_scale,
            mem.data_ptr() if store_mem else None,
            byref(kept),
            byref(most),
            _sizes(geometry),
            steps,
            batch,
            slots,
            beta.numel(),
            threshold.numel(),
            min(delay, steps),
            grad_threshold is not None,
            reset,
            torch.get_num_threads(),
        )
        _check(status, "sparse_conv_lif_sequence_fwd", ids, counts, _inputs(geometry))
    made = most.value if capacity == AS_NEEDED else capacity
    out: Optional[Tuple[torch.Tensor, ...]] = None
    try:
        rows = (steps, batch)
        counts_out = counts.new_empty((*rows, 2))
        out = (
            ids.new_empty((*rows, made)),
            weight.new_empty((*rows, made)),
            counts_out,
            torch.empty_like(counts_out),
            weight.new_empty((*rows, made)),
            ids.new_empty((*rows, _words(channels * places))),
        )
    finally:
        # Frees what was kept, whatever happened.
        if kept.value:
            pointers = (None,) * 6 if out is None else tuple(map(host._pointer, out))
            status = _call("sparse_conv_select", weight.dtype, kept, *pointers, made, rotate, torch.get_num_threads())
            host._check(status, "sparse_conv_select")
    ids_out, values_out, counts_out, dropped, slot_mem, fired = out
    memory.used(ids_out, values_out, mem)
    return ids_out, values_out, counts_out, dropped, slot_mem, fired, mem


def sparse_conv_lif_sequence_bwd(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    beta: torch.Tensor,
    threshold: torch.Tensor,
    geometry: List[int],
    input_scale: float,
    reset: int,
    delay: int,
    ids_out: torch.Tensor,
    counts_out: torch.Tensor,
    slot_mem: torch.Tensor,
    fired: torch.Tensor,
    mem: torch.Tensor,
    surrogate: int,
    surrogate_a: float,
    surrogate_b: float,
    need_values: bool,
    need_weight: bool,
    need_bias: bool,
    need_beta: bool,
    need_threshold: bool,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::sparse_conv_lif_sequence_bwd``; empty where not needed."""
    ids, values, counts, weight = ids.contiguous(), values.contiguous(), counts.contiguous(), weight.contiguous()
    grad, slot_mem, fired, mem = grad.contiguous(), slot_mem.contiguous(), fired.contiguous(), mem.contiguous()
    ids_out, counts_out = ids_out.contiguous(), counts_out.contiguous()
    beta, threshold = beta.contiguous(), threshold.contiguous()
    steps, batch, slots = ids.shape
    channels, places = geometry[3], geometry[4] * geometry[5]
    delay = min(delay, steps)
    by_convolution = need_values and _carries_densely(counts, _inputs(geometry))
    grad_values = weight.new_empty(ids.shape) if need_values and not by_convolution else None
    grad_weight = torch.empty_like(weight) if need_weight else None
    grad_bias = weight.new_empty(channels) if need_bias else None
    grad_beta = torch.empty_like(beta) if need_beta else None
    grad_threshold = torch.empty_like(threshold) if need_threshold else None
    grad_current = weight.new_empty((steps, batch, places, channels)) if by_convolution else None
    if steps * batch:
        each = threshold.reshape(-1).repeat_interleave(places) if threshold.numel() > 1 else threshold
        status = _call(
            "sparse_conv_lif_sequence_bwd",
            weight.dtype,
            grad.data_ptr(),
            ids.data_ptr(),
            values.data_ptr(),
            counts.data_ptr(),
            weight.data_ptr(),
            beta.data_ptr(),
            threshold.data_ptr(),
            each.data_ptr(),
            ids_out.data_ptr(),
            counts_out.data_ptr(),
            slot_mem.data_ptr(),
            fired.data_ptr(),
            mem.data_ptr() if mem.numel() else None,
            *map(host._pointer, (grad_values, grad_weight, grad_bias, grad_beta, grad_threshold, grad_current)),
            _sizes(geometry),
            input_scale,
            steps,
            batch,
            slots,
            ids_out.shape[2],
            beta.numel(),
            threshold.numel(),
            delay,
            reset,
            surrogate,
            surrogate_a,
            surrogate_b,
            torch.get_num_threads(),
        )
        _check(status, "sparse_conv_lif_sequence_bwd", ids, counts, _inputs(geometry))
    if grad_current is not None:
        early = torch.zeros((steps, batch, _inputs(geometry)), dtype=weight.dtype)
        if delay < steps and batch:
            maps = grad_current[delay:].reshape(-1, geometry[4], geometry[5], channels).permute(0, 3, 1, 2)
            early[: steps - delay] = _input_gradient(maps, weight, geometry, steps - delay)
        grad_values = sparse_to_dense_bwd(early, ids, counts).mul_(input_scale)
    return _zeroed(  # type: ignore[return-value]
        weight, steps * batch == 0, grad_values, grad_weight, grad_bias, grad_beta, grad_threshold
    )


def sparse_pool2d_fwd(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, geometry: List[int], mode: int, capacity: int
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::sparse_pool2d_fwd``."""
    ids, values, counts = ids.contiguous(), values.contiguous(), counts.contiguous()
    steps, batch, slots = ids.shape
    neurons = geometry[0] * geometry[3] * geometry[4]
    host._check_sizes(steps * batch, neurons)
    # An input is in so many windows at most.
    windows = -(-geometry[5] // geometry[7]) * -(-geometry[6] // geometry[8])
    fullest = max(0, int(counts[..., 1].max())) if counts.numel() else 0
    room = min(neurons, min(fullest, slots) * windows) if capacity == AS_NEEDED else capacity
    rows = (steps, batch)
    ids_out, values_out = ids.new_empty((*rows, room)), values.new_empty((*rows, room))
    counts_out = counts.new_empty((*rows, 2))
    source = ids.new_empty((*rows, room) if mode == 0 else 0)
    most = c_int64(0)
    if steps * batch:
        status = _call(
            "sparse_pool2d_fwd",
            values.dtype,
            ids.data_ptr(),
            values.data_ptr(),
            counts.data_ptr(),
            ids_out.data_ptr(),
            values_out.data_ptr(),
            counts_out.data_ptr(),
            source.data_ptr() if mode == 0 else None,
            byref(most),
            _sizes(geometry),
            steps * batch,
            slots,
            room,
            mode,
            torch.get_num_threads(),
        )
        _check(status, "sparse_pool2d_fwd", ids, counts, _inputs(geometry))
    if capacity == AS_NEEDED and most.value < room:
        used = most.value
        ids_out, values_out = ids_out[..., :used].contiguous(), values_out[..., :used].contiguous()
        source = source[..., :used].contiguous() if mode == 0 else source
    return ids_out, values_out, counts_out, source


def sparse_pool2d_bwd(
    grad: torch.Tensor,
    ids: torch.Tensor,
    counts: torch.Tensor,
    ids_out: torch.Tensor,
    counts_out: torch.Tensor,
    source: torch.Tensor,
    geometry: List[int],
    mode: int,
) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_pool2d_bwd``."""
    grad, ids, counts = grad.contiguous(), ids.contiguous(), counts.contiguous()
    ids_out, counts_out, source = ids_out.contiguous(), counts_out.contiguous(), source.contiguous()
    grad_values = grad.new_empty(ids.shape)
    if ids.shape[0] * ids.shape[1]:
        status = _call(
            "sparse_pool2d_bwd",
            grad.dtype,
            grad.data_ptr(),
            ids.data_ptr(),
            counts.data_ptr(),
            ids_out.data_ptr(),
            counts_out.data_ptr(),
            source.data_ptr() if mode == 0 else None,
            grad_values.data_ptr(),
            _sizes(geometry),
            ids.shape[0] * ids.shape[1],
            ids.shape[2],
            ids_out.shape[2],
            mode,
            torch.get_num_threads(),
        )
        _check(status, "sparse_pool2d_bwd", ids, counts, _inputs(geometry))
    return grad_values
