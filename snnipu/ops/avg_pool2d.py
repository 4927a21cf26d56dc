"""The average of each window of maps: schema, meta, autograd, reference.

Not public: ``MultiStep`` and compiled loops pool by it. PyTorch's own kernel takes several times as long.
"""

from typing import Any, Optional, Sequence

import torch
from torch.nn import functional as F

from snnipu.ops._records import define
from snnipu.ops.max_pool2d import Windows, windows_of


def avg_pool2d_fwd_reference(x: torch.Tensor, geometry: Sequence[int]) -> torch.Tensor:
    """What ``snnipu::avg_pool2d_fwd`` computes, in plain PyTorch."""
    w = Windows(*geometry)
    return F.avg_pool2d(x, (w.kernel_height, w.kernel_width), (w.stride_height, w.stride_width))


def avg_pool2d_bwd_reference(grad: torch.Tensor, geometry: Sequence[int]) -> torch.Tensor:
    """What ``snnipu::avg_pool2d_bwd`` computes, in plain PyTorch."""
    w = Windows(*geometry)
    kernel, stride = (w.kernel_height, w.kernel_width), (w.stride_height, w.stride_width)
    maps = grad.new_empty((*grad.shape[:2], w.height, w.width))
    made: torch.Tensor = torch.ops.aten.avg_pool2d_backward(grad, maps, kernel, stride, (0, 0), False, True, None)
    return made


def _fwd_meta(x: torch.Tensor, geometry: Sequence[int]) -> torch.Tensor:
    return x.new_empty((*x.shape[:2], *geometry[6:]))


def _bwd_meta(grad: torch.Tensor, geometry: Sequence[int]) -> torch.Tensor:
    return grad.new_empty((*grad.shape[:2], *geometry[:2]))


_fwd = define(avg_pool2d_fwd_reference, _fwd_meta)
_bwd = define(avg_pool2d_bwd_reference, _bwd_meta)


class _AvgPool2d(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: Windows) -> torch.Tensor:  # type: ignore[override]
        ctx.windows = w
        return _fwd(x, w)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return _Adjoint.apply(grad, ctx.windows), None


class _Adjoint(torch.autograd.Function):
    """Linear in the gradient: its own adjoint is the average."""

    @staticmethod
    def forward(ctx: Any, grad: torch.Tensor, w: Windows) -> torch.Tensor:  # type: ignore[override]
        ctx.windows = w
        return _bwd(grad, w)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return _AvgPool2d.apply(grad, ctx.windows), None


def avg_pool2d(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Optional[int] = None,
) -> torch.Tensor:
    """``F.avg_pool2d``: the same numbers and gradients, by our kernel where there is one for ``x`` as it lies."""
    w = None if divisor_override is not None else windows_of(x, kernel_size, stride, padding, ceil_mode=ceil_mode)
    if w is not None:
        made: torch.Tensor = _AvgPool2d.apply(x, w)
        return made
    return F.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
