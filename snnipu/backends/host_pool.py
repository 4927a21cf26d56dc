"""The host backend of ``max_pool2d``, alone and behind neurons, and of ``avg_pool2d``: float32 and float64, through
csrc/host/sparse.h."""

from typing import Any, Dict, List, Optional, Tuple

import torch

from snnipu.backends import host, memory
from snnipu.backends.sparse_call import run
from snnipu.ops.lif_max_pool2d import NOWHERE, BackwardArguments, BackwardResult, ForwardArguments, ForwardResult, fits
from snnipu.ops.max_pool2d import Windows


def _of_maps(maps: int, geometry: List[int], **tensors: torch.Tensor) -> Dict[str, Any]:
    """The fields of tensors ``[N, C, ...]``, of ``N * C`` maps."""
    rows = {name: tensor.flatten(0, 1) for name, tensor in tensors.items()}
    return {"neurons": maps, "geometry": geometry, **rows}


def _check_places(which: torch.Tensor, window: Windows, nowhere: Optional[int] = None) -> None:
    """Raise ValueError for a place that no window has: gradients are written there."""
    places = window.kernel_height * window.kernel_width
    if places > torch.iinfo(which.dtype).max:
        return  # the dtype holds no other place; PyTorch would wrap the number that is compared
    outside = which >= places
    if nowhere is not None:
        outside &= which != nowhere
    if bool(outside.any()):
        raise ValueError(f"which must hold places in windows of {window.kernel_height} x {window.kernel_width}")


def max_pool2d_fwd(x: torch.Tensor, geometry: List[int]) -> Tuple[torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::max_pool2d_fwd``."""
    maps = x.shape[0] * x.shape[1]
    out = memory.empty(x, (*x.shape[:2], *geometry[6:]))
    which = out.new_empty(out.shape, dtype=torch.uint8)
    run("max_pool2d_fwd", x.dtype, _of_maps(maps, geometry, x=x, out=out, which=which))
    return out, which


def max_pool2d_bwd(grad: torch.Tensor, which: torch.Tensor, geometry: List[int]) -> torch.Tensor:
    """CPU kernel of ``snnipu::max_pool2d_bwd``."""
    maps = grad.shape[0] * grad.shape[1]
    grad_x = memory.empty(grad, (*grad.shape[:2], *geometry[:2]))
    _check_places(which, Windows(*geometry))
    run("max_pool2d_bwd", grad.dtype, _of_maps(maps, geometry, grad=grad, which=which, grad_x=grad_x))
    return grad_x


def avg_pool2d_fwd(x: torch.Tensor, geometry: List[int]) -> torch.Tensor:
    """CPU kernel of ``snnipu::avg_pool2d_fwd``."""
    out = memory.empty(x, (*x.shape[:2], *geometry[6:]))
    maps = x.shape[0] * x.shape[1]
    run("avg_pool2d_fwd", x.dtype, _of_maps(maps, geometry, x=x, out=out))
    return out


def avg_pool2d_bwd(grad: torch.Tensor, geometry: List[int]) -> torch.Tensor:
    """CPU kernel of ``snnipu::avg_pool2d_bwd``."""
    grad_x = memory.empty(grad, (*grad.shape[:2], *geometry[:2]))
    maps = grad.shape[0] * grad.shape[1]
    run("avg_pool2d_bwd", grad.dtype, _of_maps(maps, geometry, grad=grad, grad_x=grad_x))
    return grad_x


def _given(a: Any) -> Dict[str, Any]:
    """What both passes of ``lif_max_pool2d`` read."""
    window = Windows(*a.geometry)
    if not fits(window[2:4], window[4:6], (0, 0)):
        raise ValueError(f"geometry must be of windows side by side, of less than {NOWHERE} places, got {window}")
    sizes = dict(zip(("steps", "batch", "neurons"), a.x.shape))
    counts = {
        f"{name}_size": host.one_or_each(name, parameter, a.x.shape[2])
        for name, parameter in (("beta", a.beta), ("threshold", a.threshold))
    }
    parameters = {**counts, "reset": a.reset}
    return {"x": a.x, "beta": a.beta, "threshold": a.threshold, "geometry": a.geometry, **sizes, **parameters}


def lif_max_pool2d_fwd(*arguments: Any) -> ForwardResult:
    """CPU kernel of ``snnipu::lif_max_pool2d_fwd``."""
    a = ForwardArguments(*arguments)
    out = memory.empty(a.x, (*a.x.shape[:3], *a.geometry[6:]))
    which = out.new_empty(out.shape, dtype=torch.uint8)
    counts = out.new_empty((*a.x.shape[:2], 2), dtype=torch.int32)
    given = {**_given(a), "out": out, "which": which, "counts_out": counts, "second_threshold": a.grad_threshold}
    pooled = run("lif_max_pool2d_fwd", a.x.dtype, {**given, "has_second_threshold": a.grad_threshold is not None})
    return out, which, counts, torch.tensor(pooled, device="cpu")


def lif_max_pool2d_bwd(*arguments: Any) -> BackwardResult:
    """CPU kernel of ``snnipu::lif_max_pool2d_bwd``; empty where not needed."""
    a = BackwardArguments(*arguments)
    _check_places(a.which, Windows(*a.geometry), NOWHERE)
    grad_x = memory.empty(a.x, a.x.shape)
    grad_beta = torch.empty_like(a.beta) if a.need_beta else a.beta.new_empty(0)
    grad_threshold = torch.empty_like(a.threshold) if a.need_threshold else a.beta.new_empty(0)
    fields = {
        **_given(a),
        "grad": a.grad,
        "which": a.which,
        "surrogate": a.surrogate,
        "surrogate_a": a.surrogate_a,
        "surrogate_b": a.surrogate_b,
        "grad_x": grad_x,
        "grad_beta": grad_beta if a.need_beta else None,
        "grad_threshold": grad_threshold if a.need_threshold else None,
    }
    run("lif_max_pool2d_bwd", a.x.dtype, fields)
    return grad_x, grad_beta, grad_threshold
