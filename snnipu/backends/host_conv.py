"""The host backend of the operators on maps: float32 and float64, through the C interface of csrc/host/snnipu.h."""

import functools
from ctypes import byref, c_int64, c_void_p
from typing import Any, List, Optional, Tuple

import torch

from snnipu.backends import host, memory
from snnipu.backends.host_sparse import _call, _carries_densely, _check, _words, _zeroed, sparse_to_dense_bwd
from snnipu.ops._slots import AS_NEEDED, stored_membranes
from snnipu.ops._sparse_layers import LayerBackward, LayerForward, LayerGradients, LayerMade
from snnipu.ops.sparse_conv_lif_sequence import OPERATORS, WITH_POOL

# Share of the input's neurons that carry gradient, from which on the gradient of their values is a dense convolution.
DENSE_GRADIENT = 0.85
# A place with its lane, and the number of one in a window, as the kernels hold them.
_MOST_PLACES = 2**26 - 1
_MOST_IN_WINDOW = 256


def _sizes(geometry: List[int]) -> Any:
    return _array(tuple(geometry))


# Kernels only read it. ctypes forgets the type of an array that nobody has.
@functools.lru_cache(maxsize=1024)
def _array(geometry: Tuple[int, ...]) -> Any:
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
    by_convolution = need_values and _carries_densely(counts, slots, _inputs(geometry), DENSE_GRADIENT)
    grad_values = memory.varying(weight, ids.shape) if need_values and not by_convolution else None
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
            *host._pointers(grad_values, grad_weight, grad_bias),
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


def _layer(a: LayerForward) -> LayerMade:
    window = a.window
    ids, values, counts, weight = (
        a.ids.contiguous(),
        a.values.contiguous(),
        a.counts.contiguous(),
        a.weight.contiguous(),
    )
    beta, threshold = a.beta.contiguous(), a.threshold.contiguous()
    bias = None if a.bias is None else a.bias.contiguous()
    steps, batch, slots = ids.shape
    channels, places = a.geometry[3], a.geometry[4] * a.geometry[5]
    host._check_sizes(steps * batch, channels * places)
    if places > _MOST_PLACES:
        raise ValueError(f"maps must have at most {_MOST_PLACES} places, got {places}")
    if window is not None and not (min(window) > 0 and window[0] * window[1] <= _MOST_IN_WINDOW):
        raise ValueError(f"window must be two sizes of at least 1 and at most {_MOST_IN_WINDOW} places, got {window}")
    mem = memory.varying(weight, (steps, batch, places, channels) if a.store_mem else (0,))
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
            0.0 if a.grad_threshold is None else a.grad_threshold,
            a.input_scale,
            mem.data_ptr() if a.store_mem else None,
            byref(kept),
            byref(most),
            _sizes(a.geometry),
            None if window is None else _sizes(window),
            steps,
            batch,
            slots,
            beta.numel(),
            threshold.numel(),
            min(a.delay, steps),
            a.grad_threshold is not None,
            a.reset,
            torch.get_num_threads(),
        )
        _check(status, "sparse_conv_lif_sequence_fwd", ids, counts, _inputs(a.geometry))
    made = most.value if a.capacity == AS_NEEDED else a.capacity
    out: Optional[LayerMade] = None
    try:
        rows = (steps, batch)
        counts_out = counts.new_empty((*rows, 2))
        out = LayerMade(
            memory.varying(ids, (*rows, made)),
            memory.varying(weight, (*rows, made)),
            counts_out,
            torch.empty_like(counts_out),
            memory.varying(ids, (0,) if window is None else (*rows, made)),
            counts.new_empty(0 if window is None else (*rows, 2)),
            memory.varying(weight, (*rows, made)),
            ids.new_empty((*rows, _words(channels * places))),
            mem,
        )
    finally:
        # Frees what was kept, whatever happened.
        if kept.value:
            pointers: Tuple[Optional[int], ...] = (None,) * 8
            if out is not None:
                shown = (*out[:4], out.slot_mem, out.fired, out.source, out.neuron_counts)
                pointers = tuple(map(torch.Tensor.data_ptr, shown))
            if window is None:
                pointers = (*pointers[:6], None, None)
            status = _call("sparse_conv_select", weight.dtype, kept, *pointers, made, a.rotate, torch.get_num_threads())
            host._check(status, "sparse_conv_select")
    memory.used(out.ids_out, out.values_out, mem)
    return out


sparse_conv_lif_sequence_fwd = OPERATORS.forward.kernel(_layer)
sparse_conv_lif_pool_fwd = WITH_POOL.forward.kernel(_layer)


def _layer_backward(a: LayerBackward) -> LayerGradients:
    a = LayerBackward._make(each.contiguous() if isinstance(each, torch.Tensor) else each for each in a)
    ids, counts, weight, geometry = a.ids, a.counts, a.weight, a.geometry
    steps, batch, slots = ids.shape
    channels, places = geometry[3], geometry[4] * geometry[5]
    delay = min(a.delay, steps)
    by_convolution = a.need_values and _carries_densely(counts, slots, _inputs(geometry), DENSE_GRADIENT)
    grad_values = memory.varying(weight, ids.shape) if a.need_values and not by_convolution else None
    grad_weight = torch.empty_like(weight) if a.need_weight else None
    grad_bias = weight.new_empty(channels) if a.need_bias else None
    grad_beta = torch.empty_like(a.beta) if a.need_beta else None
    grad_threshold = torch.empty_like(a.threshold) if a.need_threshold else None
    grad_current = memory.varying(weight, (steps, batch, places, channels)) if by_convolution else None
    if steps * batch:
        threshold = a.threshold
        each = threshold.reshape(-1).repeat_interleave(places) if threshold.numel() > 1 else threshold
        read = (a.grad, ids, a.values, counts, weight, a.beta, threshold, each)
        mem = stored_membranes(a.mem, a.need_beta, ids, channels * places)
        made = (a.ids_out, a.counts_out, a.slot_mem, a.fired, mem)
        results = (grad_values, grad_weight, grad_bias, grad_beta, grad_threshold, grad_current)
        status = _call(
            "sparse_conv_lif_sequence_bwd",
            weight.dtype,
            *host._pointers(*read, *made, *results),
            _sizes(geometry),
            a.input_scale,
            steps,
            batch,
            slots,
            a.ids_out.shape[2],
            a.beta.numel(),
            threshold.numel(),
            delay,
            a.reset,
            a.surrogate,
            a.surrogate_a,
            a.surrogate_b,
            torch.get_num_threads(),
        )
        _check(status, "sparse_conv_lif_sequence_bwd", ids, counts, _inputs(geometry))
    if grad_current is not None:
        early = torch.zeros((steps, batch, _inputs(geometry)), dtype=weight.dtype)
        if delay < steps and batch:
            maps = grad_current[delay:].reshape(-1, geometry[4], geometry[5], channels).permute(0, 3, 1, 2)
            early[: steps - delay] = _input_gradient(maps, weight, geometry, steps - delay)
        grad_values = sparse_to_dense_bwd(early, ids, counts).mul_(a.input_scale)
    return LayerGradients(
        *_zeroed(weight, steps * batch == 0, grad_values, grad_weight, grad_bias, None, grad_beta, grad_threshold)
    )


sparse_conv_lif_sequence_bwd = OPERATORS.backward.kernel(_layer_backward)


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
    ids_out, values_out = memory.varying(ids, (*rows, room)), memory.varying(values, (*rows, room))
    counts_out = counts.new_empty((*rows, 2))
    source = memory.varying(ids, (*rows, room) if mode == 0 else (0,))
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
    grad_values = memory.varying(grad, ids.shape)
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
