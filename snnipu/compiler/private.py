"""Private names of PyTorch that the compiler reads."""

import importlib
import sys
from typing import Any

import torch

from snnipu.ops._arguments import is_interpreted

# Functions that stand in TorchDynamo's graphs.
SET_GRAD, LOG_USE = torch._C._set_grad_enabled, torch._C._log_api_usage_once
_CALL = torch.nn.Module.__call__


def dynamo() -> Any:
    """Return TorchDynamo's module, which takes long to import."""
    return importlib.import_module("torch._dynamo")


def version_of(tensor: torch.Tensor) -> Any:
    """Return how often a tensor was changed in place; None for a tensor that does not count it."""
    return None if tensor.is_inference() else tensor._version


def hindrance() -> str:
    """Return why a call cannot be compiled, whatever its function, or an empty text."""
    # torch.utils.checkpoint compares the saved tensors of the forward pass and of its recomputation.
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:  # type: ignore[attr-defined]
        return "hooks on saved tensors are active, as in torch.utils.checkpoint"
    # TorchDynamo skips a call with a trace function, and all later calls of the same function.
    if sys.gettrace() is not None:
        return "a debugger or a coverage tool traces its lines"
    if _sees_functions():
        return "a TorchFunctionMode is active"
    if is_interpreted():
        return "a TorchDispatchMode, a tracer or a transform of torch.func is active"
    if torch.nn.modules.module._has_any_global_hook() or torch.nn.Module.__call__ is not _CALL:
        return "a hook of all modules is active"
    if dynamo().config.disable or dynamo().eval_frame._stance.stance == "force_eager":
        return "compilation is disabled in PyTorch"
    return ""


def _sees_functions() -> bool:
    """Return True if a TorchFunctionMode of the program is active, other than PyTorch's mode of a default device."""
    modes = map(type, torch.overrides._get_current_function_mode_stack())
    return any(mode.__name__ != "DeviceContext" or not mode.__module__.startswith("torch.") for mode in modes)
