"""The Triton backend: kernels for tensors on CUDA devices, one module per group of operators.

Triton is imported with the first launch, never before. Where it cannot be imported, or the GPU is too old for it, the
operators run their PyTorch reference and say so once. With ``TRITON_INTERPRET=1`` in the environment when a module of
kernels is first imported, Triton's interpreter runs that module's kernels, on CPU tensors too.
"""

import contextlib
import importlib
import os
import sys
import warnings
from functools import lru_cache
from typing import Any, Callable, ContextManager, Dict, Iterable, Optional, Tuple

import torch

from snnipu.ops import _library

# What Triton generates code for.
_LEAST_CAPABILITY = (7, 0)
# Triton's first version with the launch option enable_fp_fusion.
_FP_FUSION_SINCE = (2, 2)


def interpreted() -> bool:
    """Whether the environment asks for Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@lru_cache(maxsize=None)
def _import_error() -> Optional[str]:
    try:
        importlib.import_module("triton.language")
    except Exception as error:  # a Triton that does not fit its PyTorch or its driver fails in many ways
        return f"Triton cannot be imported ({type(error).__name__}: {error}); install it with `pip install triton`"
    return None


@lru_cache(maxsize=None)
def _too_old(index: Optional[int]) -> Optional[str]:
    """Kept: to ask PyTorch takes as long as a small kernel."""
    if torch.version.hip is not None or not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device() if index is None else index
    found = torch.cuda.get_device_capability(index)
    if found >= _LEAST_CAPABILITY:
        return None
    name, least = torch.cuda.get_device_name(index), ".".join(map(str, _LEAST_CAPABILITY))
    return f"Triton needs a GPU of compute capability {least}, {name} has {found[0]}.{found[1]}"


def unavailable_reason(device: Optional[torch.device] = None) -> Optional[str]:
    """Why the kernels cannot run, on ``device`` if one is given, or None where they can."""
    reason = _import_error()
    if reason is None and device is not None and device.type == "cuda":
        return _too_old(device.index)
    return reason


@lru_cache(maxsize=None)
def _warn(reason: str) -> None:
    warnings.warn(f"snnipu runs its slow PyTorch reference on the GPU: {reason}", RuntimeWarning, stacklevel=4)


def _devices(arguments: Iterable[Any]) -> Iterable[torch.device]:
    return (argument.device for argument in arguments if isinstance(argument, torch.Tensor))


def _module(name: str) -> Any:
    """A module of kernels; Triton is imported with the first."""
    name = f"{__name__}.{name}"
    return sys.modules.get(name) or importlib.import_module(name)


def lazily(module: str, function: str) -> Callable[..., Any]:
    """``snnipu.backends.triton.<module>.<function>``, imported with its first call.

    ``function`` is the name of an operator of ``snnipu::``. Where the kernels cannot run, a RuntimeWarning tells why,
    once, and the operator's reference runs.
    """

    def call(*arguments: Any) -> Any:
        reason = unavailable_reason(next(iter(_devices(arguments)), None))
        if reason is None:
            return getattr(_module(module), function)(*arguments)
        _warn(reason)
        return _library.REGISTERED[function]["CompositeExplicitAutograd"](*arguments)

    call.__name__ = call.__qualname__ = function
    call.__doc__ = f"CUDA kernel of ``snnipu::{function}``, in Triton."
    return call


def single_steps(neuron: str, variant: int) -> Any:
    """A neuron's single steps; Triton is imported for them."""
    return _module("steps").Steps(neuron, variant)


def check_launch(*tensors: Optional[torch.Tensor]) -> torch.device:
    """The one device all tensors are on: a CUDA device, or any for the interpreter.

    Raises ValueError for tensors on different devices or on one that no kernel runs on.
    """
    devices = set(_devices(tensors))
    if len(devices) != 1:
        raise ValueError(f"tensors must be on one device, got {sorted(map(str, devices))}")
    (device,) = devices
    if device.type != "cuda" and not interpreted():
        raise ValueError(f"tensors must be on a CUDA device, got {device}")
    return device


def on_device(device: torch.device) -> ContextManager[Any]:
    """Makes ``device`` CUDA's current device, as a launch needs it."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def split(number: float) -> Tuple[float, float]:
    """``number`` as a sum of two float32: a kernel's float arguments are float32."""
    high = torch.tensor(number, dtype=torch.float32).item()
    low = number - high
    return high, low if low == low and abs(low) != float("inf") else 0.0


@lru_cache(maxsize=None)
def version() -> Tuple[int, int]:
    """Triton's major and minor version."""
    major, minor = importlib.import_module("triton").__version__.split(".")[:2]
    return int(major), int(minor)


def _fp_fusion(enabled: bool) -> Dict[str, Any]:
    return {"enable_fp_fusion": enabled} if version() >= _FP_FUSION_SINCE else {}


def exact() -> Dict[str, Any]:
    """Launch options under which a multiplication and an addition are rounded each, as in PyTorch.

    Empty for Triton 2.0 and 2.1, which have no such option; their results may differ in the last bit.
    """
    return _fp_fusion(False)


def fused() -> Dict[str, Any]:
    """Launch options under which they may be one operation, rounded once."""
    return _fp_fusion(True)
