"""Maximum and average pools of dense maps: schemas, metas, autograd, references; not public.

``MultiStep`` and compiled loops use them. PyTorch's kernels take several times as long. They store the index of a
maximum in eight bytes; these store its position in the window in one byte.
"""

from typing import Any, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.nn import functional as F

from snnipu.ops import _library
from snnipu.ops._arguments import is_direct
from snnipu.ops._maps import unchecked_pair
from snnipu.ops._records import define

# The position of a maximum in its window is stored in a byte.
_MOST_PLACES = 256


class Windows(NamedTuple):
    """Sizes of the input maps, the windows, their strides and the output maps."""

    height: int
    width: int
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    out_height: int
    out_width: int

    @property
    def kernel(self) -> Tuple[int, int]:
        return self.kernel_height, self.kernel_width

    @property
    def stride(self) -> Tuple[int, int]:
        return self.stride_height, self.stride_width


def windows(size: Sequence[int], kernel: Sequence[int], stride: Sequence[int]) -> Optional[Windows]:
    """Return the windows on maps of ``size``; None if no window fits, or if it has more than 256 positions."""
    if any(k < 1 or s < 1 or n < k for n, k, s in zip(size, kernel, stride)) or kernel[0] * kernel[1] > _MOST_PLACES:
        return None
    out = [(n - k) // s + 1 for n, k, s in zip(size, kernel, stride)]
    return Windows(*size, *kernel, *stride, *out)


def is_window_geometry(sizes: Windows) -> bool:
    """Return True if the sizes are consistent with each other."""
    return windows(sizes[:2], sizes[2:4], sizes[4:6]) == sizes


def windows_of(
    x: torch.Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any = 1, ceil_mode: bool = False
) -> Optional[Windows]:
    """Return the windows of a pool; None if these operators do not support it, or the layout of ``x``."""
    if (
        is_direct(x, dispatched=True)
        and "CPU" in _library.REGISTERED["max_pool2d_fwd"]
        and x.dtype in (torch.float32, torch.float64)
        and x.dim() == 4
        and x.is_contiguous()
        and not ceil_mode
        and (unchecked_pair(padding), unchecked_pair(dilation)) == ((0, 0), (1, 1))
    ):
        # PyTorch raises the error for a stride of 0.
        strides = kernel_size if stride is None or stride in ([], ()) else stride
        return windows(x.shape[2:], unchecked_pair(kernel_size), unchecked_pair(strides))
    return None


def _places_in_map(which: torch.Tensor, w: Windows) -> torch.Tensor:
    """Return the index of each maximum in its input map, ``[N, C, windows]``."""
    row, column = which.long() // w.kernel_width, which.long() % w.kernel_width
    row += torch.arange(w.out_height, device=which.device)[:, None] * w.stride_height
    column += torch.arange(w.out_width, device=which.device) * w.stride_width
    return (row * w.width + column).flatten(2)


def max_pool2d_fwd_reference(x: torch.Tensor, geometry: Sequence[int]) -> Tuple[torch.Tensor, torch.Tensor]:
    """Compute ``snnipu::max_pool2d_fwd`` in plain PyTorch."""
    w = Windows(*geometry)
    out, places = F.max_pool2d(x, w.kernel, w.stride, return_indices=True)
    row, column = places // w.width, places % w.width
    row -= torch.arange(w.out_height, device=x.device)[:, None] * w.stride_height
    column -= torch.arange(w.out_width, device=x.device) * w.stride_width
    return out, (row * w.kernel_width + column).to(torch.uint8)


def max_pool2d_bwd_reference(grad: torch.Tensor, which: torch.Tensor, geometry: Sequence[int]) -> torch.Tensor:
    """Compute ``snnipu::max_pool2d_bwd`` in plain PyTorch."""
    w = Windows(*geometry)
    maps = grad.new_zeros((*grad.shape[:2], w.height * w.width))
    return maps.scatter_add_(2, _places_in_map(which, w), grad.flatten(2)).unflatten(2, (w.height, w.width))


def avg_pool2d_fwd_reference(x: torch.Tensor, geometry: Sequence[int]) -> torch.Tensor:
    """Compute ``snnipu::avg_pool2d_fwd`` in plain PyTorch."""
    w = Windows(*geometry)
    return F.avg_pool2d(x, w.kernel, w.stride)


def avg_pool2d_bwd_reference(grad: torch.Tensor, geometry: Sequence[int]) -> torch.Tensor:
    """Compute ``snnipu::avg_pool2d_bwd`` in plain PyTorch."""
    w = Windows(*geometry)
    maps = grad.new_empty((*grad.shape[:2], w.height, w.width))
    gradient: torch.Tensor = torch.ops.aten.avg_pool2d_backward(
        grad, maps, w.kernel, w.stride, (0, 0), False, True, None
    )
    return gradient


_max_fwd = define(max_pool2d_fwd_reference, results="(Tensor out, Tensor which)")
_max_bwd = define(max_pool2d_bwd_reference)
_avg_fwd = define(avg_pool2d_fwd_reference)
_avg_bwd = define(avg_pool2d_bwd_reference)


class DensePool2d(torch.autograd.Function):
    """The autograd function of both pools."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: Windows, average: bool) -> torch.Tensor:  # type: ignore[override]
        ctx.windows = w
        if average:
            return _avg_fwd(x, w)
        out, which = _max_fwd(x, w)
        ctx.save_for_backward(which)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return _Adjoint.apply(grad, ctx.windows, *ctx.saved_tensors), None, None


class _Adjoint(torch.autograd.Function):
    """The pools' gradient as an autograd function, for second derivatives.

    With ``which``, the positions of the maxima, it is that of a maximum pool, else of an average pool.
    """

    @staticmethod
    def forward(ctx: Any, grad: torch.Tensor, w: Windows, *which: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.windows = w
        ctx.save_for_backward(*which)
        return _max_bwd(grad, *which, w) if which else _avg_bwd(grad, w)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        w = ctx.windows
        if not ctx.saved_tensors:
            return DensePool2d.apply(grad, w, True), None
        (which,) = ctx.saved_tensors
        return grad.flatten(2).gather(2, _places_in_map(which, w)).view(which.shape), None, None


def max_pool2d(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Compute ``F.max_pool2d`` with equal numbers and gradients, by a kernel of this module where it applies."""
    w = None if return_indices else windows_of(x, kernel_size, stride, padding, dilation, ceil_mode)
    if w is not None:
        return DensePool2d.apply(x, w, False)
    pool: Any = F.max_pool2d
    return pool(x, kernel_size, stride, padding, dilation, ceil_mode=ceil_mode, return_indices=return_indices)


def avg_pool2d(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Optional[int] = None,
) -> Any:
    """Compute ``F.avg_pool2d`` with equal numbers and gradients, by a kernel of this module where it applies."""
    w = None if divisor_override is not None else windows_of(x, kernel_size, stride, padding, ceil_mode=ceil_mode)
    if w is not None:
        return DensePool2d.apply(x, w, True)
    return F.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
