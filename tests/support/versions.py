"""What some PyTorch that the tests run with cannot do by itself."""

import pytest
import torch

from snnipu.compiler import backend


def _why_no_compile():
    try:
        torch.compile(lambda x: x)
    except RuntimeError as error:
        return f"PyTorch {torch.__version__}: {error}"
    return None


def _why_no_half(function):
    try:
        function(torch.ones(2, 2, dtype=torch.float16))
    except RuntimeError as error:
        return f"PyTorch {torch.__version__}: {error}"
    return None


NO_COMPILE = _why_no_compile()
NO_HALF_CLAMP = _why_no_half(lambda x: x.clamp(0, 1))
NO_HALF_PRODUCT = _why_no_half(lambda x: x @ x)

NO_HALF_RELU = _why_no_half(torch.relu)
NO_BACKEND = NO_COMPILE or (
    f"PyTorch {torch.__version__}: the backend snnipu refuses it" if backend.version() < backend.OLDEST else None
)

needs_compile = pytest.mark.skipif(NO_COMPILE is not None, reason=str(NO_COMPILE))
needs_backend = pytest.mark.skipif(NO_BACKEND is not None, reason=str(NO_BACKEND))
