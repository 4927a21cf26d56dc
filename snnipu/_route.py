"""The route from operators to a backend that builds graphs instead of running kernels.

While PopTorch traces, and on an IPU model, each operator is replaced by a PopART operator. ``snnipu.backends.popart``
registers itself here, so that operators import no backend.
"""

from typing import Any, Optional

import torch

_backend: Any = None
_compiler = getattr(torch, "compiler", None)  # PyTorch 2.1


def register(backend: Any) -> None:
    """Set the backend. It has the predicates of this module as methods, and ``call_NAME`` for each operator."""
    global _backend
    _backend = backend


def uses_operator(op: str, operator: Optional[str] = None) -> bool:
    """Return True if ``op`` must run as the backend's ``operator``.

    Raises:
        RuntimeError: ``op`` must run there, and the backend has no operator for it.
    """
    return _backend is not None and bool(_backend.uses_operator(op, operator))


def on_real_ipu() -> bool:
    """Return True while the real PopTorch traces modules."""
    return _backend is not None and bool(_backend.on_real_ipu())


def on_ipu() -> bool:
    """Return True if modules run on an IPU, a real one or a model."""
    return _backend is not None and bool(_backend.on_ipu())


def is_exporting() -> bool:
    """Return True while PyTorch records a program: ``torch.jit.trace``, ``torch.export``, the exporters to ONNX.

    Neurons then run PyTorch's operations, because other tools lack the operators of snnipu. On an IPU the backend has
    them, so the result is False.
    """
    # torch.compiler.is_exporting() cannot be used: PyTorch 2.9 returns True in every trace of TorchDynamo. The flag
    # exists from 2.7 on.
    if torch._C._get_tracing_state() is None and not getattr(_compiler, "_is_exporting_flag", False):
        return False
    return not on_ipu()


def call(name: str, *arguments: Any) -> Any:
    """Call the backend's operator that replaces the operator ``name``."""
    return getattr(_backend, f"call_{name}")(*arguments)
