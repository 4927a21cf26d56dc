"""Linear layers and convolutions that skip the zeros of an ordinary dense input."""

import contextlib
import threading
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn import grad as gradients

from snnipu import _route
from snnipu.ops import _break_even, _fixed, _library
from snnipu.ops._arguments import count_nonzero, has_plain_memory, is_autocast, is_differentiated, is_direct
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._maps import Geometry, unchecked_pair
from snnipu.ops._slots import AS_NEEDED

# Size of the sample from which the share of nonzero inputs is estimated: most rows, most numbers.
_ROWS, _NUMBERS = 64, 1 << 17
# With a larger share of slots in a row, the slots take as much memory as the tensor.
_LARGEST_ROW = 0.5

_switch = threading.local()


class Choice(NamedTuple):
    """A record of how one product ran.

    Attributes:
        weight: the layer's weight.
        numbers: number of elements of the input.
        nonzero: number of elements that are not zero.
        limit: the share of nonzero elements up to which the product runs by events; 0: never for this layer or so few
            rows.
        by_events: True if the product ran by events, False if it was dense.
    """

    weight: torch.Tensor
    numbers: int
    nonzero: int
    limit: float
    by_events: bool


@contextlib.contextmanager
def watched() -> Iterator[List[Choice]]:
    """Yield a list to which every product of this thread appends its :class:`Choice`."""
    before = getattr(_switch, "choices", None)
    _switch.choices = []
    try:
        yield _switch.choices
    finally:
        _switch.choices = before


@contextlib.contextmanager
def dense_only() -> Iterator[None]:
    """Use PyTorch's dense products in ``MultiStep`` and compiled loops, with its order of additions.

    .. code-block:: python

        with snn.dense_only():
            out = net(x)
    """
    before = getattr(_switch, "dense", False)
    _switch.dense = True
    try:
        yield
    finally:
        _switch.dense = before


def linear(x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    r"""Apply ``torch.nn.functional.linear``, on a CPU by events if most of ``x`` is zero.

    .. math::

        y_{no} = \sum_{i : x_{ni} \neq 0} W_{oi} x_{ni} + b_o

    The gradient of the weight is computed by events, too. The gradient of ``x`` is a dense product. The order of
    additions differs from PyTorch's; it is fixed, so the same input gives the same bits. An infinite or NaN weight has
    no effect if its input is zero.

    Args:
        x: ``[N, in]``.
        weight: ``[out, in]``.
        bias: ``[out]`` or None.

    Returns:
        ``[N, out]``.
    """
    events = linear_events(x, weight, bias)
    return F.linear(x, weight, bias) if events is None else events.product(x, weight, bias)


def linear_events(
    x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None
) -> Optional["InputEvents"]:
    """Return the events of ``x`` for :func:`linear`; None: the product must be dense, or dense is faster."""
    most = 0.0
    if x.dim() == 2 and weight.dim() == 2 and x.shape[1] == weight.shape[1]:
        fixed = _fixed.current_fixed_weights() is not None and type(weight) is torch.nn.Parameter
        fixed = fixed and not (torch.is_grad_enabled() and (weight.requires_grad or x.requires_grad))
        most = _break_even.linear_input_limit(weight.shape[0], weight.shape[1], x.shape[0], fixed)
    slots = _slots(x, weight, bias, most, weight.numel())
    return None if slots is None else InputEvents(slots, None)


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    """Apply ``torch.nn.functional.conv2d``, on a CPU by events if most of ``x`` is zero, as in :func:`linear`.

    Args:
        x: ``[N, C, H, W]``; only a contiguous ``x`` runs by events.
        weight: ``[out, C / groups, kh, kw]``.
        bias: ``[out]`` or None.
        stride: as in PyTorch.
        padding: as in PyTorch.
        dilation: as in PyTorch.
        groups: as in PyTorch.

    Returns:
        ``[N, out, H', W']``.
    """
    sizes = (stride, padding, dilation, groups)
    events = convolution_events(x, weight, bias, weight, *sizes, learns_alone=_needs_only_weight_gradient(x, weight))
    return F.conv2d(x, weight, bias, *sizes) if events is None else events.product(x, weight, bias)


def conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    """Apply ``torch.nn.functional.conv1d``, on a CPU by events if most of ``x`` is zero, as in :func:`linear`.

    Args:
        x: ``[N, C, L]``; only a contiguous ``x`` runs by events.
        weight: ``[out, C / groups, k]``.
        bias: ``[out]`` or None.
        stride: as in PyTorch.
        padding: as in PyTorch.
        dilation: as in PyTorch.
        groups: as in PyTorch.

    Returns:
        ``[N, out, L']``.
    """
    sizes = (_to_map_size(stride, 1), _to_map_size(padding, 0), _to_map_size(dilation, 1))
    if x.dim() == weight.dim() == 3 and None not in sizes and has_plain_memory(x) and has_plain_memory(weight):
        maps, kernels = x.unsqueeze(2), weight.unsqueeze(2)  # maps of height 1
        events = convolution_events(
            maps, kernels, bias, weight, *sizes, groups, learns_alone=_needs_only_weight_gradient(x, weight)
        )
        if events is not None:
            return events.product(maps, kernels, bias).squeeze(2)
    return F.conv1d(x, weight, bias, stride, padding, dilation, groups)


def _to_map_size(size: Any, across: int) -> Any:
    """Return a size for conv1d as one for conv2d, with ``across`` for the height; None: PyTorch raises an error."""
    if isinstance(size, (tuple, list)):
        return (across, size[0]) if len(size) == 1 else None
    return size if isinstance(size, str) else (across, size)


def _needs_only_weight_gradient(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return True if the weight requires a gradient, and ``x`` does not."""
    return torch.is_grad_enabled() and weight.requires_grad and not x.requires_grad


def convolution_events(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    parameter: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    learns_alone: bool = False,
) -> Optional["InputEvents"]:
    """Return the events of ``x`` for :func:`conv2d`, as :func:`linear_events` does for :func:`linear`.

    Args:
        x: input with four dimensions.
        weight: weight with four dimensions.
        bias: bias or None.
        parameter: the layer's parameter; ``weight`` is a view of it.
        stride: as in PyTorch.
        padding: as in PyTorch.
        dilation: as in PyTorch.
        groups: as in PyTorch.
        learns_alone: the weight requires a gradient, and ``x`` does not.
    """
    geometry = _geometry(x, weight, stride, padding, dilation, groups)
    if geometry is None or not x.is_contiguous():
        return None
    stride = geometry.stride_y * geometry.stride_x
    most = _break_even.convolution_input_limit(parameter.shape, groups, stride, learns_alone)
    slots = _slots(x, parameter, bias, most, geometry.positions * weight.numel())
    return None if slots is None else InputEvents(slots, geometry)


def _geometry(
    x: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> Optional[Geometry]:
    """Return the sizes of a valid convolution; None: PyTorch's conv2d handles the arguments or raises an error."""
    if x.dim() != 4 or weight.dim() != 4 or groups < 1 or weight.shape[0] % groups:
        return None
    if x.shape[1] != weight.shape[1] * groups:
        return None
    kernel = (weight.shape[2], weight.shape[3])
    (sy, sx), (dy, dx) = unchecked_pair(stride), unchecked_pair(dilation)
    spans = (dy * (kernel[0] - 1), dx * (kernel[1] - 1))
    if padding == "same" and (sy, sx) == (1, 1) and not (spans[0] % 2 or spans[1] % 2):
        padding = (spans[0] // 2, spans[1] // 2)
    elif padding == "valid":
        padding = 0
    elif isinstance(padding, str):
        return None
    py, px = unchecked_pair(padding)
    if min(sy, sx, dy, dx) < 1 or min(py, px) < 0:
        return None
    height, width = (x.shape[2] + 2 * py - spans[0] - 1) // sy + 1, (x.shape[3] + 2 * px - spans[1] - 1) // sx + 1
    if height < 1 or width < 1:
        return None
    sizes = (*x.shape[1:], weight.shape[0], height, width, *kernel, sy, sx, py, px, dy, dx, groups)
    return Geometry(*map(int, sizes))


Slots = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class InputEvents(NamedTuple):
    """The nonzero elements of an input ``[N, ...]`` for one layer.

    Attributes:
        slots: ids, values and counts; ids and values are ``[1, N, slots]``.
        geometry: sizes of the convolution; None: a linear layer.
    """

    slots: Slots
    geometry: Optional[Geometry]

    def product(self, x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
        """Return the layer's output for ``x``, whose events these are; differentiable."""
        if is_differentiated((x, weight, bias)):
            out: torch.Tensor = _EventProduct.apply(x, weight, bias, *self.slots, self.geometry)
            return out
        return self.forward(weight, bias)

    def forward(self, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
        weight = weight.contiguous()
        if self.geometry is None:
            run = _library.kernel_for("sparse_linear_fwd", weight, *self.slots, bias)
            out: torch.Tensor = run(*self.slots, weight, bias)[0]
            return out
        maps: torch.Tensor = torch.ops.snnipu.sparse_conv2d_fwd(*self.slots, weight, bias, list(self.geometry))[0]
        return maps.view(-1, *self.geometry.out_shape)

    def backward(self, grad: torch.Tensor, weight: torch.Tensor, need_bias: bool) -> Sequence[torch.Tensor]:
        """Return the gradients of the weight and, if needed, of the bias, from that of the output."""
        grad, weight, needs = grad.contiguous(), weight.contiguous(), (False, True, need_bias)
        if self.geometry is None:
            gradients = torch.ops.snnipu.sparse_linear_bwd(grad[None], *self.slots, weight, *needs)
        else:
            rows = grad.flatten(1)[None]
            gradients = torch.ops.snnipu.sparse_conv2d_bwd(rows, *self.slots, weight, list(self.geometry), *needs)
        return gradients[1:]  # type: ignore[no-any-return]


class _EventProduct(torch.autograd.Function):
    """The autograd function of a product by events.

    The weight's gradient is computed by events, and the input's by a dense product. The function saves the slots of
    ``x``; if all values are 1, only the ids.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        ids: torch.Tensor,
        values: torch.Tensor,
        counts: torch.Tensor,
        geometry: Optional[Geometry],
    ) -> torch.Tensor:
        need_x, need_weight = ctx.needs_input_grad[:2]
        ctx.geometry, ctx.shape = geometry, x.shape
        saved: Tuple[Optional[torch.Tensor], ...] = (None, None, None)
        if need_weight:  # spikes need only ids; the values of padding are 0
            all_ones = np.count_nonzero(values.numpy() == 1) == int(counts[..., 1].sum())
            saved = (ids, None if all_ones else values, counts)
        ctx.save_for_backward(weight if need_x or need_weight else None, *saved)
        return InputEvents((ids, values, counts), geometry).forward(weight, bias)

    @staticmethod
    @once_differentiable("product with an input that is mostly zeros (snnipu.dense_only() takes PyTorch's)")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        weight, *slots = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        g: Optional[Geometry] = ctx.geometry
        grad = grad.contiguous()
        grad_x = grad_weight = grad_bias = None
        if need_x and g is None:
            grad_x = grad @ weight
        elif need_x and g is not None:
            grad_x = gradients.conv2d_input(ctx.shape, weight, grad, g[8:10], g[10:12], g[12:14], g.groups)
        if need_weight:
            ids, values, counts = slots
            values = weight.new_ones(ids.shape) if values is None else values
            grad_weight, grad_bias = InputEvents((ids, values, counts), g).backward(grad, weight, need_bias)
        elif need_bias:
            grad_bias = grad.flatten(2).sum((0, 2)) if grad.dim() > 2 else grad.sum(0)
        return grad_x, grad_weight, grad_bias if need_bias else None, None, None, None, None


def _slots(
    x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], most: float, products: int
) -> Optional[Slots]:
    """Return ids, values and counts of the nonzero elements if the product by events is faster, else None.

    Args:
        x: input.
        weight: weight.
        bias: bias or None.
        most: the share of nonzero elements up to which events are faster.
        products: number of multiplications for a row.
    """
    limit = most if most and x.shape[0] * products >= _break_even.FEWEST_PRODUCTS else 0.0
    slots = _chosen(x, weight, bias, limit)
    choices: Optional[List[Choice]] = getattr(_switch, "choices", None)
    if choices is not None and is_direct(x, dispatched=True):
        choices.append(Choice(weight, x.numel(), count_nonzero(x), limit, slots is not None))
    return slots


def _fits(x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> bool:
    """Return True if kernels can read weight and bias with ``x``; PyTorch broadcasts others, or raises an error."""
    for tensor in (weight, bias):
        if tensor is not None and not (
            has_plain_memory(tensor) and tensor.dtype == x.dtype and tensor.device == x.device
        ):
            return False
    return bias is None or bias.shape == weight.shape[:1]


def _chosen(x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], most: float) -> Optional[Slots]:
    if (
        not most
        or not x.numel()
        or getattr(_switch, "dense", False)
        or "CPU" not in _library.REGISTERED["sparse_linear_fwd"]
        or not is_direct(x, dispatched=True)
        or x.dtype not in (torch.float32, torch.float64)
        or not _fits(x, weight, bias)
        or is_autocast()
        or _route.on_ipu()
    ):
        return None
    rows = x.detach().flatten(1)
    if _share(rows) > most:
        return None
    rows = rows.contiguous()[None]
    ids, values, counts, _ = _library.kernel_for("dense_to_sparse_fwd", rows)(rows, AS_NEEDED, False)
    return (ids, values, counts) if ids.shape[2] <= _LARGEST_ROW * rows.shape[2] else None


def _share(rows: torch.Tensor) -> float:
    """Return the share of nonzero elements, estimated from evenly spaced rows, so that it is deterministic."""
    count = max(4, min(_ROWS, _NUMBERS // rows.shape[1]))
    sample = rows[:: max(1, rows.shape[0] // count)]
    return count_nonzero(sample) / sample.numel()
