"""Where operators go in place of their kernels: to a backend that builds graphs of them.

While PopTorch traces, and on an IPU model, ``snnipu.backends.popart`` wants an operator of its own for each of ours. It
registers itself here, so that operators know of no backend.
"""

from typing import Any, Optional

import torch

_backend: Any = None
_compiler = getattr(torch, "compiler", None)  # PyTorch 2.1


def register(backend: Any) -> None:
    """``backend`` has this module's questions, and ``call_NAME`` for each operator."""
    global _backend
    _backend = backend


def uses_operator(op: str, operator: Optional[str] = None) -> bool:
    """Whether ``op`` must go through the backend's ``operator``; RuntimeError where it must, and there is none."""
    return _backend is not None and bool(_backend.uses_operator(op, operator))


def on_real_ipu() -> bool:
    """Whether a real PopTorch traces modules here."""
    return _backend is not None and bool(_backend.on_real_ipu())


def on_ipu() -> bool:
    """Whether modules run on an IPU here, a real one or a model."""
    return _backend is not None and bool(_backend.on_ipu())


def is_exporting() -> bool:
    """Return True while PyTorch records a program: ``torch.jit.trace``, ``torch.export``, the exporters to ONNX.

    Neurons run PyTorch's operations then: other tools know no operators of ours. An IPU's backend has operators.
    """
    # torch.compiler.is_exporting is True in each trace of TorchDynamo of PyTorch 2.9; the flag exists from 2.7 on.
    if torch._C._get_tracing_state() is None and not getattr(_compiler, "_is_exporting_flag", False):
        return False
    return not on_ipu()


def call(name: str, *arguments: Any) -> Any:
    """The backend's operator in place of ours of this name."""
    return getattr(_backend, f"call_{name}")(*arguments)
