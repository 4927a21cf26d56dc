"""The host backend of ``max_pool2d``: float32 and float64, through the C interface of csrc/host/snnipu.h."""

from ctypes import c_int64
from typing import List, Tuple

import torch

from snnipu.backends import host, memory


def _run(name: str, dtype: torch.dtype, pointers: Tuple[int, int, int], geometry: List[int], maps: int) -> None:
    sizes = (c_int64 * len(geometry))(*geometry)
    function = getattr(host.library, f"snnipu_{name}_{host._SUFFIX[dtype]}")
    host._check(function(*pointers, sizes, maps, torch.get_num_threads()), name)


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
