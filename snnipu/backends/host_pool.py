"""CPU kernels of the pools of dense maps, float32 and float64 (C interface: csrc/host/sparse.h)."""

from functools import partial
from typing import Any, Dict, List, Tuple

import torch

from snnipu.backends import memory
from snnipu.backends.sparse_call import run
from snnipu.ops.dense_pool2d import Windows


def _map_fields(geometry: List[int], **tensors: torch.Tensor) -> Dict[str, Any]:
    """Return the fields of a call with tensors ``[N, C, ...]``, which are ``N * C`` maps."""
    rows = {name: tensor.flatten(0, 1) for name, tensor in tensors.items()}
    return {"neurons": next(iter(rows.values())).shape[0], "geometry": geometry, **rows}


def _check_places(which: torch.Tensor, window: Windows) -> None:
    """Raise ValueError if ``which`` has a place outside of the window: the kernel would write a gradient there."""
    places = window.kernel_height * window.kernel_width
    if places > torch.iinfo(which.dtype).max:
        return  # every value of the dtype is a place; PyTorch would wrap `places` in the comparison
    if bool((which >= places).any()):
        raise ValueError(f"which must hold places in windows of {window.kernel_height} x {window.kernel_width}")


def _forward(name: str, x: torch.Tensor, geometry: List[int], **more: torch.Tensor) -> torch.Tensor:
    out = memory.empty(x, (*x.shape[:2], *geometry[6:]))
    run(name, x.dtype, _map_fields(geometry, x=x, out=out, **more))
    return out


def _backward(name: str, grad: torch.Tensor, geometry: List[int], **more: torch.Tensor) -> torch.Tensor:
    grad_x = memory.empty(grad, (*grad.shape[:2], *geometry[:2]))
    run(name, grad.dtype, _map_fields(geometry, grad=grad, grad_x=grad_x, **more))
    return grad_x


def max_pool2d_fwd(x: torch.Tensor, geometry: List[int]) -> Tuple[torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::max_pool2d_fwd``."""
    which = x.new_empty((*x.shape[:2], *geometry[6:]), dtype=torch.uint8)
    return _forward("max_pool2d_fwd", x, geometry, which=which), which


def max_pool2d_bwd(grad: torch.Tensor, which: torch.Tensor, geometry: List[int]) -> torch.Tensor:
    """CPU kernel of ``snnipu::max_pool2d_bwd``."""
    _check_places(which, Windows(*geometry))
    return _backward("max_pool2d_bwd", grad, geometry, which=which)


# CPU kernels of the operators.
avg_pool2d_fwd = partial(_forward, "avg_pool2d_fwd")
avg_pool2d_bwd = partial(_backward, "avg_pool2d_bwd")
