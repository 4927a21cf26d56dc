"""Triton kernels of the operators on maps: convolutions of spike ids, and the gradient of their weights.

The spikes are sorted by the line of the input. A program adds up a line of the output, or the gradient of a row of the
convolution's kernel. Every sum has one program and a fixed order; there are no atomic additions. Ids and counts are not
checked, because the host would have to wait for the result. Indices out of range are skipped. The gradient of the input
is that of a dense convolution, gathered at the slots.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch
import triton
import triton.language as tl

from snnipu.backends import triton as backend
from snnipu.backends.triton.sparse_maths import block_of, where_all
from snnipu.backends.triton.sparse_select import sparse_to_dense_bwd

_CHANNEL_BLOCK = 64
_PLACE_BLOCK = 64
# Number of programs among which the spikes of a channel are divided.
_SPLITS = 8
_SIZES = ["in_height", "in_width", "out_height", "out_width", "group_inputs", "group_channels"]


@triton.jit(do_not_specialize=["late_lines", *_SIZES])
def gather_maps_kernel(
    order_ptr,
    begin_ptr,
    ids_ptr,
    values_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    late_lines,
    in_height,
    in_width,
    out_height,
    out_width,
    group_inputs,
    group_channels,
    KERNEL_Y: tl.constexpr,
    KERNEL_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    DILATION_Y: tl.constexpr,
    DILATION_X: tl.constexpr,
    GROUPS: tl.constexpr,
    BIAS: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up the weighted spikes for some places of a line of the output and some channels of a group."""
    line = tl.program_id(0).to(tl.int64)
    row = line // out_height
    y = line % out_height
    blocks = tl.cdiv(group_channels, BLOCK)
    group = tl.program_id(1) // blocks
    cols = tl.program_id(1) % blocks * BLOCK + tl.arange(0, BLOCK)
    real = cols < group_channels
    channel = group * group_channels + cols
    x = tl.program_id(2) * PLACES + tl.arange(0, PLACES)
    total = tl.zeros([PLACES, BLOCK], dtype=out_ptr.dtype.element_ty)
    for ky in tl.static_range(KERNEL_Y):
        at_y = y * STRIDE_Y + (ky * DILATION_Y - PADDING_Y)
        from_line = row * in_height + at_y - late_lines
        there = (at_y >= 0) & (at_y < in_height) & (from_line >= 0)
        begin = tl.load(begin_ptr + from_line, mask=there, other=0)
        end = tl.load(begin_ptr + from_line + 1, mask=there, other=0)
        for at in range(begin, end):
            slot = tl.load(order_ptr + at)
            neuron = tl.load(ids_ptr + slot)
            input_channel = neuron // (in_height * in_width) - group * group_inputs
            reach = neuron % in_width + PADDING_X - x * STRIDE_X
            kx = reach // DILATION_X
            leads = (reach >= 0) & (kx * DILATION_X == reach) & (kx < KERNEL_X)
            leads = where_all(leads, (input_channel >= 0) & (input_channel < group_inputs))
            tap = (input_channel * KERNEL_Y + ky) * KERNEL_X + kx
            weight = tl.load(
                weight_ptr + tap.to(tl.int64)[:, None] * (GROUPS * group_channels) + channel[None, :],
                mask=leads[:, None] & real[None, :],
                other=0.0,
            )
            total += weight * tl.load(values_ptr + slot)
    if BIAS:
        total += tl.load(bias_ptr + channel, mask=real, other=0.0)[None, :]
    out = ((row * GROUPS * group_channels + channel)[None, :] * out_height + y) * out_width + x[:, None]
    tl.store(out_ptr + out, total, mask=(x < out_width)[:, None] & real[None, :])


@triton.jit(do_not_specialize=["late", "slots", *_SIZES])
def grad_taps_kernel(
    order_ptr,
    begin_ptr,
    ids_ptr,
    values_ptr,
    grad_ptr,
    out_ptr,
    late,
    slots,
    in_height,
    in_width,
    out_height,
    out_width,
    group_inputs,
    group_channels,
    KERNEL_Y: tl.constexpr,
    KERNEL_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    DILATION_Y: tl.constexpr,
    DILATION_X: tl.constexpr,
    GROUPS: tl.constexpr,
    SPLITS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute a part of the gradient of a kernel row, for one input channel and some output channels.

    The gradient of the output has its channels last.
    """
    program = tl.program_id(0)
    ky = program % KERNEL_Y
    input = program // KERNEL_Y
    part = tl.program_id(2)
    group = input // group_inputs
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = cols < group_channels
    kx = tl.arange(0, TAPS)
    first = tl.load(begin_ptr + input)
    last = tl.load(begin_ptr + input + 1)
    share = tl.cdiv(last - first, SPLITS)
    begin = first + part * share
    end = tl.minimum(begin + share, last)
    total = tl.zeros([TAPS, BLOCK], dtype=out_ptr.dtype.element_ty)
    for at in range(begin, end):
        slot = tl.load(order_ptr + at)
        neuron = tl.load(ids_ptr + slot)
        reach_y = neuron // in_width % in_height + PADDING_Y - ky * DILATION_Y
        reach_x = neuron % in_width + PADDING_X - kx * DILATION_X
        y = reach_y // STRIDE_Y
        x = reach_x // STRIDE_X
        leads = (kx < KERNEL_X) & (reach_x >= 0) & (x * STRIDE_X == reach_x) & (x < out_width)
        leads = where_all(leads, (reach_y >= 0) & (y * STRIDE_Y == reach_y) & (y < out_height))
        place = ((slot // slots + late) * out_height + y) * out_width + x
        grad = tl.load(
            grad_ptr + place[:, None] * (GROUPS * group_channels) + (group * group_channels + cols)[None, :],
            mask=leads[:, None] & real[None, :],
            other=0.0,
        )
        total += tl.load(values_ptr + slot) * grad
    programs = tl.num_programs(0).to(tl.int64)
    out = ((part * programs + program) * KERNEL_X + kx)[:, None] * group_channels + cols[None, :]
    tl.store(out_ptr + out, total, mask=(kx < KERNEL_X)[:, None] & real[None, :])


def _options(geometry: List[int]) -> Dict[str, Any]:
    names = ("KERNEL_Y", "KERNEL_X", "STRIDE_Y", "STRIDE_X", "PADDING_Y", "PADDING_X", "DILATION_Y", "DILATION_X")
    return {**dict(zip(names, geometry[6:14])), "GROUPS": geometry[14], "num_warps": 4, **backend.exact()}


def _sizes(geometry: List[int]) -> Tuple[int, int, int, int, int, int]:
    channels, height, width, out_channels, out_height, out_width = geometry[:6]
    return height, width, out_height, out_width, channels // geometry[14], out_channels // geometry[14]


def _sorted(keys: torch.Tensor, valid: torch.Tensor, count: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Sort slots by their key.

    Returns:
        The sorted slots, and where the slots of each key from 0 to ``count`` begin. Slots of a key keep their order.
    """
    keys, order = torch.where(valid, keys, count).reshape(-1).sort(stable=True)
    return order, torch.searchsorted(keys, torch.arange(count + 1, dtype=keys.dtype, device=keys.device))


def _is_spike(ids: torch.Tensor, counts: torch.Tensor, inputs: int) -> torch.Tensor:
    """Return a mask of the slots that hold a spike with a valid id."""
    return (torch.arange(ids.shape[2], device=ids.device) < counts[..., :1]) & (ids >= 0) & (ids < inputs)


def gather_maps(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    geometry: List[int],
    delay: int = 0,
) -> torch.Tensor:
    """Return the convolution of the spikes of ``delay`` steps before, ``[T, B, neurons]``."""
    device = backend.check_launch(ids, values, counts, weight, bias)
    ids, values = ids.contiguous(), values.contiguous()
    steps, batch, _ = ids.shape
    height, width, out_height, out_width, _, channels = _sizes(geometry)
    rows = steps * batch
    out = weight.new_empty((steps, batch, geometry[3] * out_height * out_width))
    if not rows:
        return out
    row = torch.arange(rows, device=ids.device).reshape(steps, batch, 1)
    line = row * height + ids // width % height
    order, begin = _sorted(line, _is_spike(ids, counts, geometry[0] * height * width), rows * height)
    # Output channels last, so that neighbouring lanes read contiguous weights.
    packed = weight.detach().permute(1, 2, 3, 0).contiguous()
    places, block = block_of(out_width, 16, _PLACE_BLOCK), block_of(channels, 16, _CHANNEL_BLOCK)
    grid = (rows * out_height, geometry[14] * triton.cdiv(channels, block), triton.cdiv(out_width, places))
    with backend.on_device(device):
        gather_maps_kernel[grid](
            order,
            begin,
            ids,
            values,
            packed,
            packed if bias is None else bias.contiguous(),
            out,
            min(delay, steps) * batch * height,
            *_sizes(geometry),
            BIAS=bias is not None,
            PLACES=places,
            BLOCK=block,
            **_options(geometry),
        )
    return out


def gradients_of_maps(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    geometry: List[int],
    need_values: bool,
    need_weight: bool,
    delay: int = 0,
) -> Tuple[Optional[torch.Tensor], Optional[torch.Tensor]]:
    """Return the gradients of values and weight, from that of the currents ``delay`` steps later.

    A gradient that is not needed is None.
    """
    device = backend.check_launch(grad, ids, values, counts, weight)
    ids, values, counts = ids.contiguous(), values.contiguous(), counts.contiguous()
    steps, batch, slots = ids.shape
    height, width, _, _, inputs, channels = _sizes(geometry)
    delay = min(delay, steps)
    rows, neurons_in = (steps - delay) * batch, geometry[0] * height * width
    maps = grad.reshape(steps, batch, *geometry[3:6])
    grad_values: Optional[torch.Tensor] = None
    grad_weight: Optional[torch.Tensor] = None
    if need_values:
        dense = grad.new_zeros((steps, batch, neurons_in))
        if rows:
            like = grad.new_empty(1).expand(rows, *geometry[:3])
            sizes = (geometry[8:10], geometry[10:12], geometry[12:14], False, [0, 0], geometry[14])
            late = maps[delay:].flatten(0, 1)
            grad_maps = torch.ops.aten.convolution_backward(late, like, weight, None, *sizes, [True, False, False])[0]
            dense[: steps - delay] = grad_maps.reshape(steps - delay, batch, neurons_in)
        grad_values = sparse_to_dense_bwd(dense, ids, counts)
    if need_weight:
        parts = grad.new_empty((_SPLITS, geometry[14], inputs, *geometry[6:8], channels))
        if not rows or not slots:
            return grad_values, torch.zeros_like(weight, memory_format=torch.contiguous_format)
        valid = _is_spike(ids, counts, neurons_in)
        valid[steps - delay :] = False
        order, begin = _sorted(ids // (height * width), valid, geometry[0])
        block = block_of(channels, 16, _CHANNEL_BLOCK)
        with backend.on_device(device):
            grad_taps_kernel[(geometry[0] * geometry[6], triton.cdiv(channels, block), _SPLITS)](
                order,
                begin,
                ids,
                values,
                maps.permute(0, 1, 3, 4, 2).contiguous(),
                parts,
                delay * batch,
                slots,
                *_sizes(geometry),
                SPLITS=_SPLITS,
                TAPS=block_of(geometry[7], 4, 1 << 30),
                BLOCK=block,
                **_options(geometry),
            )
        grad_weight = parts.sum(0).permute(0, 4, 1, 2, 3).reshape(weight.shape).contiguous()
    return grad_values, grad_weight
