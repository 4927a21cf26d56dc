"""The host backend of ``max_pool2d``, alone and behind neurons: float32 and float64, through csrc/host/snnipu.h."""

from ctypes import byref, c_int64
from typing import Any, List, Tuple

import torch

from snnipu.backends import host, memory
from snnipu.ops.lif_max_pool2d import BackwardArguments, BackwardResult, ForwardArguments, ForwardResult


def _run(name: str, dtype: torch.dtype, pointers: Tuple[Any, ...], geometry: List[int], *options: Any) -> None:
    sizes = (c_int64 * len(geometry))(*geometry)
    function = getattr(host.library, f"snnipu_{name}_{host._SUFFIX[dtype]}")
    host._check(function(*pointers, sizes, *options, torch.get_num_threads()), name)


def max_pool2d_fwd(x: torch.Tensor, geometry: List[int]) -> Tuple[torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::max_pool2d_fwd``."""
    x = x.contiguous()
    out = memory.empty(x, (*x.shape[:2], *geometry[6:]))
    which = torch.empty(out.shape, dtype=torch.uint8)
    pointers = (x.data_ptr(), out.data_ptr(), which.data_ptr())
    _run("max_pool2d_fwd", x.dtype, pointers, geometry, x.shape[0] * x.shape[1])
    return out, which


def max_pool2d_bwd(grad: torch.Tensor, which: torch.Tensor, geometry: List[int]) -> torch.Tensor:
    """CPU kernel of ``snnipu::max_pool2d_bwd``."""
    grad = grad.contiguous()
    grad_x = memory.empty(grad, (*grad.shape[:2], *geometry[:2]))
    pointers = (grad.data_ptr(), which.data_ptr(), grad_x.data_ptr())
    _run("max_pool2d_bwd", grad.dtype, pointers, geometry, grad.shape[0] * grad.shape[1])
    return grad_x


def lif_max_pool2d_fwd(*arguments: Any) -> ForwardResult:
    """CPU kernel of ``snnipu::lif_max_pool2d_fwd``."""
    a = ForwardArguments(*arguments)
    x, beta, threshold = a.x.contiguous(), a.beta.contiguous(), a.threshold.contiguous()
    out = memory.empty(x, (*x.shape[:3], *a.geometry[6:]))
    which = torch.empty(out.shape, dtype=torch.uint8)
    counts = torch.empty((*x.shape[:2], 2), dtype=torch.int32)
    pooled = c_int64(0)
    level = 0.0 if a.grad_threshold is None else a.grad_threshold
    pointers = (*(t.data_ptr() for t in (x, beta, threshold)), level, *(t.data_ptr() for t in (out, which, counts)))
    sizes = (*x.shape[:3], beta.numel(), threshold.numel())
    _run(
        "lif_max_pool2d_fwd",
        x.dtype,
        (*pointers, byref(pooled)),
        a.geometry,
        *sizes,
        a.grad_threshold is not None,
        a.reset,
    )
    return out, which, counts, torch.tensor(pooled.value)


def lif_max_pool2d_bwd(*arguments: Any) -> BackwardResult:
    """CPU kernel of ``snnipu::lif_max_pool2d_bwd``; empty where not needed."""
    a = BackwardArguments(*arguments)
    grad, x, beta, threshold, which = (t.contiguous() for t in (a.grad, a.x, a.beta, a.threshold, a.which))
    grad_x = memory.empty(x, x.shape)
    grad_beta = torch.empty_like(beta) if a.need_beta else beta.new_empty(0)
    grad_threshold = torch.empty_like(threshold) if a.need_threshold else beta.new_empty(0)
    pointers = (
        *(t.data_ptr() for t in (grad, x, beta, threshold, which, grad_x)),
        grad_beta.data_ptr() if a.need_beta else None,
        grad_threshold.data_ptr() if a.need_threshold else None,
    )
    sizes = (*x.shape[:3], beta.numel(), threshold.numel())
    _run(
        "lif_max_pool2d_bwd", x.dtype, pointers, a.geometry, *sizes, a.reset, a.surrogate, a.surrogate_a, a.surrogate_b
    )
    return grad_x, grad_beta, grad_threshold
