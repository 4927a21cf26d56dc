"""Pools of maps on spike ids: public function, schema, meta, autograd, reference."""

from typing import Any, List, NamedTuple, Optional, Tuple

import torch

from snnipu import _route
from snnipu.ops import _library
from snnipu.ops._arguments import is_compiling
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._maps import Pair, PoolGeometry, as_list, pair, pool_geometry, spike_maps
from snnipu.ops._records import define
from snnipu.ops._slots import AS_NEEDED, check_spikes, gather, scatter, select
from snnipu.spikes import SparseSpikes, check_ids

# "lp" pools and others have no sparse form.
MODES = {"max": 0, "average": 1, "sum": 2}


def _windows(x: torch.Tensor, sizes: PoolGeometry, padding_value: float) -> torch.Tensor:
    """``[T, B, C * H * W]`` as windows ``[T, B, neurons, kh * kw]``."""
    rows = x.shape[0] * x.shape[1]
    maps = x.reshape(rows, sizes.channels, sizes.in_height, sizes.in_width)
    py, px = sizes.padding_y, sizes.padding_x
    padded = torch.nn.functional.pad(maps, (px, px, py, py), value=padding_value)
    cut = padded.unfold(2, sizes.kernel_height, sizes.stride_y).unfold(3, sizes.kernel_width, sizes.stride_x)
    return cut.reshape(*x.shape[:2], sizes.neurons, sizes.kernel_height * sizes.kernel_width)


def sparse_pool2d_fwd_reference(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, geometry: List[int], mode: int, capacity: int
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What ``snnipu::sparse_pool2d_fwd`` computes, in plain PyTorch.

    ``source`` is the slot of the input that gets the gradient of a slot of a maximum; empty for the other modes. A
    ``capacity`` other than ``AS_NEEDED`` is one that holds everything.
    """
    sizes = PoolGeometry(*geometry)
    check_ids(ids, counts, sizes.inputs)
    slots = ids.shape[2]
    dense, carried = spike_maps(values, ids, counts, sizes.inputs)
    reached = _windows(carried.to(values.dtype), sizes, 0.0) > 0
    source = ids.new_empty(0)
    if mode == MODES["max"]:
        lowest = -float("inf")
        candidates = _windows(dense, sizes, 0.0).masked_fill(~reached, lowest)
        # NaN is larger than any number, as in PyTorch's pools.
        order = candidates.masked_fill(candidates.isnan(), float("inf"))
        best = order.amax(-1)
        at = ((order == best[..., None]) & reached).int().argmax(-1)
        inside = _windows(torch.ones_like(dense), sizes, 0.0) > 0
        silent = (inside & ~reached).any(-1)  # neurons without a slot, whose value is 0
        top = candidates.gather(-1, at[..., None])[..., 0]
        takes = reached.any(-1) & ~(silent & (top < 0))
        value = torch.where(takes, top, torch.zeros_like(top))
        numbers = scatter(torch.arange(slots, device=ids.device).expand_as(ids).double(), ids, counts, sizes.inputs)
        from_slot = _windows(numbers, sizes, 0.0).gather(-1, at[..., None])[..., 0]
    else:
        value = _windows(dense, sizes, 0.0).sum(-1)
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
    places = _windows(every.to(torch.float64), sizes, 0.0)[0, 0].long()  # 0: padding
    cells = dense.new_zeros(*dense.shape[:2], sizes.inputs + 1)
    cells.index_add_(2, places.reshape(-1), dense.repeat_interleave(places.shape[1], 2))
    return gather(cells[..., 1:], a.ids, a.counts)


def _fwd_meta(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, geometry: List[int], mode: int, capacity: int
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    slots = PoolGeometry(*geometry).neurons if capacity == AS_NEEDED else capacity
    shape = (*ids.shape[:2], slots)
    source = ids.new_empty(shape if mode == MODES["max"] else 0)
    return ids.new_empty(shape), values.new_empty(shape), counts.new_empty(counts.shape), source


def _bwd_meta(grad: torch.Tensor, ids: torch.Tensor, *_: Any) -> torch.Tensor:
    return grad.new_empty(ids.shape)


define(sparse_pool2d_fwd_reference, _fwd_meta, "(Tensor ids_out, Tensor values_out, Tensor counts_out, Tensor source)")
define(sparse_pool2d_bwd_reference, _bwd_meta, arguments=PoolBackward)
# No event-driven kernels on a GPU yet: there it is dense operations of PyTorch.
_library.implement("sparse_pool2d_fwd", "CUDA", sparse_pool2d_fwd_reference)
_library.implement("sparse_pool2d_bwd", "CUDA", sparse_pool2d_bwd_reference)


class SparsePool2d(torch.autograd.Function):
    """Autograd around ``snnipu::sparse_pool2d_fwd`` and ``snnipu::sparse_pool2d_bwd``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        values: torch.Tensor,
        ids: torch.Tensor,
        counts: torch.Tensor,
        geometry: List[int],
        mode: int,
        capacity: int,
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        out = torch.ops.snnipu.sparse_pool2d_fwd(ids, values, counts, geometry, mode, capacity)
        ids_out, values_out, counts_out, source = out
        ctx.save_for_backward(ids, counts, ids_out, counts_out, source)
        ctx.geometry, ctx.mode = geometry, mode
        ctx.mark_non_differentiable(ids_out, counts_out)
        ctx.set_materialize_grads(False)
        return ids_out, values_out, counts_out

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
    """The operators' number of ``mode``."""
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
    r"""Pools of maps on spikes, from ids to ids.

    .. math::

        y_{tb,c,p} = \max_{q \in w(p)} v_{tb,c,q}, \qquad \frac{1}{|w|} \sum_{q \in w(p)} v_{tb,c,q}, \qquad
        \sum_{q \in w(p)} v_{tb,c,q}

    with :math:`v` the values of the spikes, 0 elsewhere, and :math:`w(p)` the window of place :math:`p`; padding takes
    no part in a maximum, and counts as zeros in an average. What is not 0 is a spike. A place is carried where its
    window has a carried slot; of a maximum, where that one attains it.

    Gradient: that of ``torch.nn.functional.max_pool2d``, ``avg_pool2d`` and of their sum, at the carried slots. The
    gradient of a maximum goes to the first carried slot of the window that attains it, in rows: where all neurons are
    carried that is PyTorch's.

    Args:
        spikes: SparseSpikes of ``C * H * W`` neurons, ids of ``[C, H, W]`` flattened.
        kernel_size: of a window, an int, or two, vertical first.
        stride: likewise; None: ``kernel_size``.
        padding: likewise, at most half of ``kernel_size``.
        mode: ``"max"``, ``"average"`` or ``"sum"``.
        input_size: ``(C, H, W)``; None: what ``spikes.map_shape`` says.

    Returns:
        SparseSpikes of ``C * H' * W'`` neurons; among the spikes and among the gradient-only slots, ids are in
        ascending order. There are as many slots as the busiest step needs: a pool drops nothing.

    Raises:
        TypeError, ValueError: a size or option that does not fit, an id or count out of range; the message names it.

    Source: ``torch.nn.functional.max_pool2d`` and ``avg_pool2d``, on the form of Gruen et al., arXiv 2311.04386, 2023.
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
    # Without data nobody knows what is needed.
    unknown = is_compiling() or spikes.device.type == "meta"
    ids, values, counts = SparsePool2d.apply(
        spikes.values,
        spikes.ids,
        spikes.counts,
        as_list(geometry),
        code,
        geometry.neurons if unknown else AS_NEEDED,
    )
    return SparseSpikes._trusted(ids, values, counts, geometry.neurons, None, map_shape=geometry.out_shape)
