"""Checks of operators' arguments. Each error names the argument, the expected value and the given one."""

from typing import Any, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch.autograd import forward_ad

from snnipu import _route
from snnipu._checks import check_int, check_tensor

Parameter = Union[float, torch.Tensor]
RESET_MECHANISMS = {"subtract": 0, "zero": 1, "none": 2}
PLAIN = (torch.Tensor, torch.nn.Parameter)

# New in PyTorch 2.1.
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)


def _in_forward_mode() -> bool:
    """Return True if tensors may have tangents of forward-mode AD, which kernels do not compute."""
    return forward_ad._current_level >= 0


# True while a transform of torch.func is active; PyTorch 2.0 has no such function.
_in_transform = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
# Conditions under which PyTorch replaces the operators that are called: modes, transforms, tracers.
_INTERPRETERS = (
    _in_forward_mode,
    _in_transform,
    *(
        getattr(torch._C, name)
        for name in ("_len_torch_dispatch_stack", "_get_tracing_state")
        if hasattr(torch._C, name)
    ),
)
# The same conditions and a profiler, which only observes the operators.
_WATCHERS = (*_INTERPRETERS, torch.autograd._profiler_enabled)


def is_compiling() -> bool:
    """Return True while ``torch.compile`` traces this call; always False before PyTorch 2.1."""
    return _is_compiling is not None and bool(_is_compiling())


def is_interpreted() -> bool:
    """Return True if a mode, a transform or a tracer replaces PyTorch's operators."""
    return any(look() for look in _INTERPRETERS)


def is_direct(x: torch.Tensor, dispatched: bool = False) -> bool:
    """Return True if a kernel may read the memory of ``x`` on the CPU directly, without PyTorch's dispatcher.

    This holds if ``x`` is an ordinary CPU tensor, and no profiler, mode, transform or tracer is active. The dispatcher
    takes as long for lists of tensors as a small kernel. ``dispatched``: the caller uses the dispatcher, so a profiler
    may be active.
    """
    return is_eager(x, dispatched) and x.is_cpu


def has_plain_memory(x: torch.Tensor) -> bool:
    """Return True if the memory of ``x`` holds its elements: no subclass, no sparse layout, no negation bit."""
    return type(x) in PLAIN and x.layout is torch.strided and not x.is_neg()


def is_eager(x: torch.Tensor, dispatched: bool = False) -> bool:
    """Return True if :func:`is_direct`, or if the same holds for a GPU tensor ``x``."""
    if is_compiling() or not has_plain_memory(x) or not (x.is_cpu or x.is_cuda):
        return False
    watched: Any = False
    for watcher in _INTERPRETERS if dispatched else _WATCHERS:
        watched = watched or watcher()
    return not watched


def count_nonzero(x: torch.Tensor) -> int:
    """Return the number of elements that are not zero or are NaN. On a CPU NumPy takes a tenth of PyTorch's time."""
    if not is_direct(x, dispatched=True):
        return int(x.count_nonzero())
    return int(np.count_nonzero(x.detach().bool().numpy()))


def is_differentiated(tensors: Sequence[Optional[torch.Tensor]]) -> bool:
    """Return True if a derivative by any of ``tensors`` may be needed, so that they must go to an autograd function.

    The autograd functions of this package raise an error in forward mode and in transforms of torch.func. A bare
    operator would return zeros instead.
    """
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        return True
    return not is_compiling() and (_in_forward_mode() or bool(_in_transform()))


def is_autocast(kind: str = "cpu") -> bool:
    """Return True if autocast is on for devices of this kind: products then run in another dtype."""
    is_enabled: Any = torch.is_autocast_enabled
    try:
        return bool(is_enabled(kind))
    except TypeError:  # before PyTorch 2.4
        return bool(torch.is_autocast_cpu_enabled() if kind == "cpu" else is_enabled())


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of states and parameters for inputs of ``dtype``: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_input(x: Any, minimum_dims: int, shape: str) -> None:
    """Check that ``x`` is a floating tensor of at least ``minimum_dims`` dimensions."""
    check_tensor("x", x, common=True)
    if x.dim() < minimum_dims:
        raise ValueError(f"x must have shape {shape}, got {tuple(x.shape)}")


def check_sequence(x: object, num_steps: object) -> None:
    """Check that ``x`` is ``[T, B, ...]``, or ``[B, ...]`` if ``num_steps`` is given."""
    if num_steps is None:
        check_input(x, 1, "[T, B, ...]")
    else:
        check_input(x, 0, "[B, ...]")
        check_int("num_steps", num_steps)


def check_lengths(lengths: Any, shape: Sequence[int], device: torch.device) -> None:
    """Check that ``lengths`` ``[B]`` are whole numbers from 1 to ``T``, for a tensor of ``shape`` ``[T, B, ...]``."""
    if not isinstance(lengths, torch.Tensor) or lengths.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"lengths must be an int32 or int64 tensor, got {getattr(lengths, 'dtype', lengths)!r}")
    if lengths.shape != (shape[1],) or lengths.device != device:
        raise ValueError(
            f"lengths must have shape [B] = ({shape[1]},) and be on the input's device {device}, got "
            f"{tuple(lengths.shape)} on {lengths.device}"
        )
    if not is_compiling() and not lengths.clamp(1, shape[0]).equal(lengths):
        raise ValueError(f"lengths must be from 1 to the {shape[0]} steps, got {lengths.tolist()}")


def learnt_decay(beta: torch.Tensor) -> torch.Tensor:
    """Return ``beta``, clamped to [0, 1] by ``torch.clamp`` if it requires a gradient.

    The installed PyTorch then decides the gradient of a beta of exactly 0 or 1. ``clamp`` passes it up to PyTorch 2.13,
    and returns 0 in 2.15. The kernels clamp, too, and pass the gradient at the bounds; on an IPU only they clamp.
    """
    learns = beta.requires_grad and torch.is_grad_enabled()
    return beta.clamp(0, 1) if learns and not _route.on_real_ipu() else beta


def reset_code(reset_mechanism: str) -> int:
    """Return snnTorch's number of the reset mechanism."""
    code = RESET_MECHANISMS.get(reset_mechanism)
    if code is None:
        raise ValueError(f"reset_mechanism must be 'subtract', 'zero' or 'none', got {reset_mechanism!r}")
    return code


def state_argument(name: str, value: torch.Tensor, shape: torch.Size, x: torch.Tensor) -> torch.Tensor:
    """Return ``value`` in the compute dtype; check that it has ``shape`` and is on x's device."""
    check_tensor(name, value, or_none=True)
    if value.shape != shape:
        raise ValueError(f"{name} must have the shape of one step of x, {tuple(shape)}, got {tuple(value.shape)}")
    if value.device != x.device:
        raise ValueError(f"{name} must be on x's device {x.device}, got {value.device}")
    return value.to(compute_dtype(x.dtype))


def parameter_argument(
    name: str, value: Union[float, torch.Tensor], step_shape: Tuple[int, ...], x: torch.Tensor
) -> torch.Tensor:
    """Return a parameter in the compute dtype, with one element or flattened over the trailing dimensions of a step.

    Element ``i`` of a flattened step of x has the parameter ``result[i % result.numel()]``. The result is
    differentiable in ``value``.
    """
    dtype = compute_dtype(x.dtype)
    if not isinstance(value, torch.Tensor):
        if not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number or a torch.Tensor, got {type(value).__name__}")
        return torch.full((), value, dtype=dtype, device=x.device)
    if value.dtype != dtype:
        if value.dtype.is_complex:
            raise TypeError(f"{name} must be real, got {value.dtype}")
        value = value.to(dtype)
    if value.device != x.device:
        if value.dim() > 0:
            raise ValueError(f"{name} must be on x's device {x.device}, got {value.device}")
        if is_direct(value, dispatched=True) and not value.requires_grad:
            return torch.full((), value.item(), dtype=dtype, device=x.device)  # a copy would make the host wait
        value = value.to(x.device)
    dims = value.dim()
    if dims == 0 or value.numel() == 1:
        return value
    shape = tuple(value.shape)
    trailing = step_shape[len(step_shape) - dims :] if dims <= len(step_shape) else None
    if shape == trailing:
        return value.reshape(-1)
    while shape and shape[0] == 1:
        shape = shape[1:]
    trailing = step_shape[len(step_shape) - len(shape) :] if len(shape) <= len(step_shape) else None
    if trailing is None or any(size not in (1, step_size) for size, step_size in zip(shape, trailing)):
        raise ValueError(
            f"{name} must broadcast to one step of x, {tuple(step_shape)}, got a tensor of shape {tuple(value.shape)}"
        )
    return value.reshape(shape).expand(trailing).reshape(-1)
