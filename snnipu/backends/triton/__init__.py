"""The Triton backend: kernels for tensors on CUDA devices, one module per group of operators.

Triton is imported with the first launch, never before. If it cannot be imported, or if the GPU is too old for it, the
operators run their PyTorch reference, and a warning is given once. If ``TRITON_INTERPRET=1`` is set when a module of
kernels is first imported, Triton's interpreter runs the kernels of that module. It also takes CPU tensors.
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

# The oldest compute capability that Triton supports.
_LEAST_CAPABILITY = (7, 0)
# First version of Triton with the launch option enable_fp_fusion.
_FP_FUSION_SINCE = (2, 2)


def interpreted() -> bool:
    """Return True if the environment selects Triton's interpreter."""
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
    """Return the reason if GPU ``index`` is too old for Triton, else None.

    The result is cached, because querying PyTorch takes as long as a small kernel.
    """
    if torch.version.hip is not None or not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device() if index is None else index
    capability = torch.cuda.get_device_capability(index)
    if capability >= _LEAST_CAPABILITY:
        return None
    name, least = torch.cuda.get_device_name(index), ".".join(map(str, _LEAST_CAPABILITY))
    return f"Triton needs a GPU of compute capability {least}, {name} has {capability[0]}.{capability[1]}"


def unavailable_reason(device: Optional[torch.device] = None) -> Optional[str]:
    """Return the reason why the kernels cannot run, on ``device`` if one is given; None if they can."""
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
    """Return a module of kernels. The first one imports Triton."""
    name = f"{__name__}.{name}"
    return sys.modules.get(name) or importlib.import_module(name)


def lazily(module: str, function: str) -> Callable[..., Any]:
    """Return a function that imports ``snnipu.backends.triton.<module>`` at its first call and calls its ``function``.

    If the kernels cannot run, it warns once with the reason, and runs the operator's reference.

    Args:
        module: name of a module of kernels.
        function: name of an operator of ``snnipu::``.
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
    """Return the single steps of a neuron; this imports Triton."""
    return _module("steps").TritonSteps(neuron, variant)


def check_launch(*tensors: Optional[torch.Tensor]) -> torch.device:
    """Return the device of all tensors: a CUDA device, or any device for the interpreter.

    Raises:
        ValueError: the tensors are on different devices, or on one on which kernels do not run.
    """
    devices = set(_devices(tensors))
    if len(devices) != 1:
        raise ValueError(f"tensors must be on one device, got {sorted(map(str, devices))}")
    (device,) = devices
    if device.type != "cuda" and not interpreted():
        raise ValueError(f"tensors must be on a CUDA device, got {device}")
    return device


def on_device(device: torch.device) -> ContextManager[Any]:
    """Return a context in which ``device`` is CUDA's current device, which launches use."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def split(number: float) -> Tuple[float, float]:
    """Return two float32 numbers whose sum is ``number``: Triton passes float arguments as float32."""
    high = torch.tensor(number, dtype=torch.float32).item()
    low = number - high
    return high, low if low == low and abs(low) != float("inf") else 0.0


@lru_cache(maxsize=None)
def version() -> Tuple[int, int]:
    """Return the major and minor version of Triton."""
    major, minor = importlib.import_module("triton").__version__.split(".")[:2]
    return int(major), int(minor)


def _fp_fusion(enabled: bool) -> Dict[str, Any]:
    return {"enable_fp_fusion": enabled} if version() >= _FP_FUSION_SINCE else {}


def exact() -> Dict[str, Any]:
    """Return launch options with which a multiplication and an addition are rounded separately, as in PyTorch.

    They are empty for Triton 2.0 and 2.1, which have no such option. Their results may differ in the last bit.
    """
    return _fp_fusion(False)


def fused() -> Dict[str, Any]:
    """Return launch options with which a multiplication and an addition may be fused and rounded once."""
    return _fp_fusion(True)
