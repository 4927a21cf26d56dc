"""Pools of spikes on maps: public function, schema, meta, autograd, reference."""

from typing import Any, List, NamedTuple, Optional, Tuple

import torch

from snnipu import _route
from snnipu.ops import _library
from snnipu.ops._arguments import is_compiling
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._maps import Pair, PoolGeometry, as_list, pair, pool_geometry, spike_maps
from snnipu.ops._records import define
from snnipu.ops._slots import AS_NEEDED, Slots, check_spikes, gather, scatter, select, slot_results
from snnipu.spikes import SparseSpikes, check_ids

# Other pools, such as "lp", have no sparse form.
MODES = {"max": 0, "average": 1, "sum": 2}


def _windows(x: torch.Tensor, sizes: PoolGeometry) -> torch.Tensor:
    """Return ``[T, B, C * H * W]`` as windows ``[T, B, neurons, kh * kw]``."""
    rows = x.shape[0] * x.shape[1]
    maps = x.reshape(rows, sizes.channels, sizes.in_height, sizes.in_width)
    py, px = sizes.padding_y, sizes.padding_x
    padded = torch.nn.functional.pad(maps, (px, px, py, py))
    cut = padded.unfold(2, sizes.kernel_height, sizes.stride_y).unfold(3, sizes.kernel_width, sizes.stride_x)
    return cut.reshape(*x.shape[:2], sizes.neurons, sizes.kernel_height * sizes.kernel_width)


def sparse_pool2d_fwd_reference(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, geometry: List[int], mode: int, capacity: int
) -> Slots:
    """Compute ``snnipu::sparse_pool2d_fwd`` in plain PyTorch.

    The last result, ``source``, is the input slot that gets the gradient of each output slot of a maximum. It is empty
    for other modes. A ``capacity`` other than ``AS_NEEDED`` must be large enough for all slots.
    """
    sizes = PoolGeometry(*geometry)
    check_ids(ids, counts, sizes.inputs)
    slots = ids.shape[2]
    dense, carried = spike_maps(values, ids, counts, sizes.inputs)
    reached = _windows(carried.to(values.dtype), sizes) > 0
    source = ids.new_empty(0)
    if mode == MODES["max"]:
        lowest = -float("inf")
        candidates = _windows(dense, sizes).masked_fill(~reached, lowest)
        # NaN is larger than any number, as in PyTorch's pools.
        order = candidates.masked_fill(candidates.isnan(), float("inf"))
        best = order.amax(-1)
        at = ((order == best[..., None]) & reached).int().argmax(-1)
        inside = _windows(torch.ones_like(dense), sizes) > 0
        silent = (inside & ~reached).any(-1)  # windows with a neuron without a slot, whose value is 0
        top = candidates.gather(-1, at[..., None])[..., 0]
        takes = reached.any(-1) & ~(silent & (top < 0))
        value = torch.where(takes, top, torch.zeros_like(top))
        numbers = scatter(torch.arange(slots, device=ids.device).expand_as(ids).double(), ids, counts, sizes.inputs)
        from_slot = _windows(numbers, sizes).gather(-1, at[..., None])[..., 0]
    else:
        value = _windows(dense, sizes).sum(-1)
        value = value / (sizes.kernel_height * sizes.kernel_width) if mode == MODES["average"] else value
        takes = reached.any(-1)
        from_slot = None
    fired = takes & (value != 0)
    ids_out, counts_out, _ = select(fired, takes, capacity, False)
    values_out = gather(value, ids_out, counts_out)
    if from_slot is not None:
        source = gather(from_slot, ids_out, counts_out).int()
    return ids_out, values_out, counts_out, source


class PoolBackward(NamedTuple):
    """Arguments of ``sparse_pool2d_bwd``, in the order of its schema."""

    grad: torch.Tensor
    ids: torch.Tensor
    counts: torch.Tensor
    ids_out: torch.Tensor
    counts_out: torch.Tensor
    source: torch.Tensor
    geometry: List[int]
    mode: int


def sparse_pool2d_bwd_reference(*arguments: Any) -> torch.Tensor:
    """Compute ``snnipu::sparse_pool2d_bwd`` in plain PyTorch."""
    a = PoolBackward(*arguments)
    sizes = PoolGeometry(*a.geometry)
    if a.mode == MODES["max"]:
        return scatter(a.grad, a.source, a.counts_out, a.ids.shape[2]).contiguous()
    dense = scatter(a.grad, a.ids_out, a.counts_out, sizes.neurons)
    if a.mode == MODES["average"]:
        dense = dense / (sizes.kernel_height * sizes.kernel_width)
    every = torch.arange(sizes.inputs, device=a.ids.device).reshape(1, 1, -1) + 1
    places = _windows(every.to(torch.float64), sizes)[0, 0].long()  # 0: padding
    cells = dense.new_zeros(*dense.shape[:2], sizes.inputs + 1)
    cells.index_add_(2, places.reshape(-1), dense.repeat_interleave(places.shape[1], 2))
    return gather(cells[..., 1:], a.ids, a.counts)


def _fwd_meta(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, geometry: List[int], mode: int, capacity: int
) -> Slots:
    slots = PoolGeometry(*geometry).neurons if capacity == AS_NEEDED else capacity
    shape = (*ids.shape[:2], slots)
    source = ids.new_empty(shape if mode == MODES["max"] else 0)
    return ids.new_empty(shape), values.new_empty(shape), counts.new_empty(counts.shape), source


def _bwd_meta(grad: torch.Tensor, ids: torch.Tensor, *_: Any) -> torch.Tensor:
    return grad.new_empty(ids.shape)


define(sparse_pool2d_fwd_reference, _fwd_meta, "(Tensor ids_out, Tensor values_out, Tensor counts_out, Tensor source)")
define(sparse_pool2d_bwd_reference, _bwd_meta, arguments=PoolBackward)
# There is no event-driven kernel for GPUs: the reference runs there, with dense operations of PyTorch.
_library.implement("sparse_pool2d_fwd", "CUDA", sparse_pool2d_fwd_reference)
_library.implement("sparse_pool2d_bwd", "CUDA", sparse_pool2d_bwd_reference)


class SparsePool2d(torch.autograd.Function):
    """The autograd function of ``snnipu::sparse_pool2d_fwd`` and ``snnipu::sparse_pool2d_bwd``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        values: torch.Tensor,
        ids: torch.Tensor,
        counts: torch.Tensor,
        geometry: List[int],
        mode: int,
        capacity: int,
    ) -> Slots:
        slots = torch.ops.snnipu.sparse_pool2d_fwd(ids, values, counts, geometry, mode, capacity)
        ids_out, _, counts_out, source = slots
        ctx.save_for_backward(ids, counts, ids_out, counts_out, source)
        ctx.geometry, ctx.mode = geometry, mode
        return slot_results(ctx, slots)

    @staticmethod
    @once_differentiable("sparse_pool2d")
    def backward(  # type: ignore[override]
        ctx: Any, _ids: None, grad: Optional[torch.Tensor], *_: None
    ) -> Tuple[Optional[torch.Tensor], ...]:
        if grad is None:
            return (None,) * 6
        grads = torch.ops.snnipu.sparse_pool2d_bwd(grad.contiguous(), *ctx.saved_tensors, ctx.geometry, ctx.mode)
        return grads, None, None, None, None, None


def mode_code(mode: str) -> int:
    """Return the operators' number of ``mode``."""
    if mode not in MODES:
        raise ValueError(f"mode must be 'max', 'average' or 'sum', got {mode!r}")
    return MODES[mode]


def sparse_pool2d(
    spikes: SparseSpikes,
    kernel_size: Pair,
    stride: Optional[Pair] = None,
    padding: Pair = 0,
    *,
    mode: str = "max",
    input_size: Optional[Tuple[int, int, int]] = None,
) -> SparseSpikes:
    r"""Pool spikes on maps; the result is spikes, too. The three modes are maximum, average and sum:

    .. math::

        y_{tb,c,p} = \max_{q \in w(p)} v_{tb,c,q}, \qquad \frac{1}{|w|} \sum_{q \in w(p)} v_{tb,c,q}, \qquad
        \sum_{q \in w(p)} v_{tb,c,q}

    with :math:`v` the values of the spikes, 0 elsewhere, and :math:`w(p)` the window of position :math:`p`. A maximum
    ignores padding; an average counts it as zeros. A result other than 0 is a spike. A position has a carried slot if
    its window has one; for a maximum, if a carried slot of the window has the maximum.

    The gradient at the carried slots is that of ``torch.nn.functional.max_pool2d``, of ``avg_pool2d``, or of the sum.
    The gradient of a maximum goes to the first carried slot of the window, row by row, that has the maximum. If all
    neurons have a carried slot, this equals PyTorch.

    With EventProp the time of a maximum is that of the spike that gets the gradient. An average or a sum has the mean
    of the times in its window.

    Args:
        spikes: SparseSpikes of ``C * H * W`` neurons, ids of ``[C, H, W]`` flattened.
        kernel_size: size of a window: an int, or two, vertical first.
        stride: likewise; None: ``kernel_size``.
        padding: likewise, at most half of ``kernel_size``.
        mode: ``"max"``, ``"average"`` or ``"sum"``.
        input_size: ``(C, H, W)``; None: ``spikes.map_shape``.

    Returns:
        SparseSpikes of ``C * H' * W'`` neurons. The ids of the spikes are in ascending order, and those of the
        gradient-only slots, too. There are as many slots as the busiest step needs; nothing is dropped.

    Raises:
        TypeError, ValueError: a size or option is wrong, or an id or count is out of range; the message names the
            argument.

    Source: ``torch.nn.functional.max_pool2d`` and ``avg_pool2d``, in the format of Gruen et al., arXiv 2311.04386,
    2023.
    """
    spikes = check_spikes("spikes", spikes)
    code = mode_code(mode)
    kernel = pair("kernel_size", kernel_size, 1)
    strides = kernel if stride is None else pair("stride", stride, 1)
    shape = spikes.map_shape if input_size is None else spikes.with_maps(input_size).map_shape
    if shape is None:
        raise ValueError(
            f"input_size must be given, (channels, height, width): the spikes of {spikes.num_neurons} neurons have no "
            "map_shape that would tell it"
        )
    if spikes.map_shape is not None and spikes.map_shape != shape:
        raise ValueError(f"spikes must be of maps {shape}, as input_size says, got map_shape={spikes.map_shape}")
    geometry = pool_geometry(shape, kernel, strides, pair("padding", padding, 0))
    if _route.uses_operator("sparse_pool2d", "SparsePool2d"):
        pooled: SparseSpikes = _route.call("sparse_pool2d", spikes, geometry, code)
        return pooled.with_maps(geometry.out_shape)
    # A trace or a meta tensor has no data, so the number of slots is that of the neurons.
    unknown = is_compiling() or spikes.device.type == "meta"
    slots = (spikes.ids, spikes.counts, as_list(geometry), code, geometry.neurons if unknown else AS_NEEDED)
    ids, values, counts, source = SparsePool2d.apply(spikes.values, *slots)
    pooled = SparseSpikes._trusted(ids, values, counts, geometry.neurons, None, map_shape=geometry.out_shape)
    if spikes.times is not None and code == MODES["max"]:
        pooled.times = gather(spikes.times, source, counts)
    elif spikes.times is not None:  # a mean, weighted by the values; all are above 0
        weighted = SparsePool2d.apply(spikes.values.detach() * spikes.times, *slots)[1]
        pooled.times = weighted / torch.where(values > 0, values.detach(), 1)
    return pooled
