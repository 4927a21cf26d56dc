"""Marks of tests that need features of newer PyTorch versions, or parts that a machine may lack."""

import shutil

import pytest
import torch
from torch import distributed

from snnipu.backends import host
from snnipu.compiler import backend


def _why_no_compile():
    try:
        torch.compile(lambda x: x)
    except RuntimeError as error:
        return f"PyTorch {torch.__version__}: {error}"
    if backend.version() < backend.OLDEST:
        return f"PyTorch {torch.__version__}: TorchDynamo cannot trace a neuron's call whole, nor is the backend there"
    return None


def _why_no_half(function):
    try:
        function(torch.ones(2, 2, dtype=torch.float16))
    except RuntimeError as error:
        return f"PyTorch {torch.__version__}: {error}"
    return None


def _why_no_masks_in_modes():
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    try:
        with Mode():
            torch.ones(2, dtype=torch.int32).bitwise_and_(1)
    except RuntimeError as error:
        return f"PyTorch {torch.__version__}: {error}"
    return None


NO_COMPILE = _why_no_compile()
NO_HALF_CLAMP = _why_no_half(lambda x: x.clamp(0, 1))
NO_HALF_PRODUCT = _why_no_half(lambda x: x @ x)
NO_HALF_RELU = _why_no_half(torch.relu)
NO_HALF_LOSS = _why_no_half(lambda x: torch.nn.functional.mse_loss(x.requires_grad_(), x.detach()).backward())
NO_MASKS_IN_MODES = _why_no_masks_in_modes()

needs_compile = pytest.mark.skipif(NO_COMPILE is not None, reason=str(NO_COMPILE))
# The backend "snnipu".
needs_backend = needs_compile
# Right in every version, and slower where TorchDynamo cannot continue.
needs_dynamo_of_2_12 = pytest.mark.skipif(
    backend.version() < (2, 12),
    reason=f"PyTorch {torch.__version__}: TorchDynamo has other graphs of autograd functions, or no locals()",
)
needs_gloo = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)
needs_native = pytest.mark.skipif(host.library is None, reason=f"no native library: {host.unavailable_reason}")
needs_make = pytest.mark.skipif(not shutil.which("make"), reason="needs make")
