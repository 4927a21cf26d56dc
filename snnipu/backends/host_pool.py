"""The host backend of the pools of dense maps: float32 and float64, through csrc/host/sparse.h."""

from typing import Any, Dict, List, Tuple

import torch

from snnipu.backends import memory
from snnipu.backends.sparse_call import run
from snnipu.ops.dense_pool2d import Windows


def _of_maps(geometry: List[int], **tensors: torch.Tensor) -> Dict[str, Any]:
    """The fields of tensors ``[N, C, ...]``, of ``N * C`` maps."""
    rows = {name: tensor.flatten(0, 1) for name, tensor in tensors.items()}
    return {"neurons": next(iter(rows.values())).shape[0], "geometry": geometry, **rows}


def _check_places(which: torch.Tensor, window: Windows) -> None:
    """Raise ValueError for a place that no window has: gradients are written there."""
    places = window.kernel_height * window.kernel_width
    if places > torch.iinfo(which.dtype).max:
        return  # the dtype holds no other place; PyTorch would wrap the number that is compared
    if bool((which >= places).any()):
        raise ValueError(f"which must hold places in windows of {window.kernel_height} x {window.kernel_width}")


def max_pool2d_fwd(x: torch.Tensor, geometry: List[int]) -> Tuple[torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::max_pool2d_fwd``."""
    out = memory.empty(x, (*x.shape[:2], *geometry[6:]))
    which = out.new_empty(out.shape, dtype=torch.uint8)
    run("max_pool2d_fwd", x.dtype, _of_maps(geometry, x=x, out=out, which=which))
    return out, which


def max_pool2d_bwd(grad: torch.Tensor, which: torch.Tensor, geometry: List[int]) -> torch.Tensor:
    """CPU kernel of ``snnipu::max_pool2d_bwd``."""
    grad_x = memory.empty(grad, (*grad.shape[:2], *geometry[:2]))
    _check_places(which, Windows(*geometry))
    run("max_pool2d_bwd", grad.dtype, _of_maps(geometry, grad=grad, which=which, grad_x=grad_x))
    return grad_x


def avg_pool2d_fwd(x: torch.Tensor, geometry: List[int]) -> torch.Tensor:
    """CPU kernel of ``snnipu::avg_pool2d_fwd``."""
    out = memory.empty(x, (*x.shape[:2], *geometry[6:]))
    run("avg_pool2d_fwd", x.dtype, _of_maps(geometry, x=x, out=out))
    return out


def avg_pool2d_bwd(grad: torch.Tensor, geometry: List[int]) -> torch.Tensor:
    """CPU kernel of ``snnipu::avg_pool2d_bwd``."""
    grad_x = memory.empty(grad, (*grad.shape[:2], *geometry[:2]))
    run("avg_pool2d_bwd", grad.dtype, _of_maps(geometry, grad=grad, grad_x=grad_x))
    return grad_x
