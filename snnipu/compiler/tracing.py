"""What keeps PyTorch from compiling a call."""

import sys

import torch

from snnipu.ops._arguments import is_interpreted

_CALL = torch.nn.Module.__call__


def not_now() -> str:
    """Why a call is to run as it is, whatever its function; empty where nothing is in the way."""
    # torch.utils.checkpoint counts these tensors, in the forward pass and when it runs anew, between which a loop must
    # not become another one.
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:  # type: ignore[attr-defined]
        return "what its backward pass needs is saved in another way there, as torch.utils.checkpoint does"
    # TorchDynamo does not look at such a call, nor ever again at its function.
    if sys.gettrace() is not None:
        return "a debugger, or what measures coverage, sees each of its lines there"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode sees each of its operations there"
    if _sees_functions():
        return "a TorchFunctionMode sees each of its operations there"
    if is_interpreted():
        return "a tracer, or a transform of torch.func, sees each of its operations there"
    if torch.nn.modules.module._has_any_global_hook() or torch.nn.Module.__call__ is not _CALL:
        return "a hook looks at the calls of all modules"
    if torch._dynamo.config.disable or _stance() == "force_eager":  # type: ignore[attr-defined]
        return "PyTorch is told to compile nothing there"
    return ""


def _sees_functions() -> bool:
    """Return True if a mode of the program's sees PyTorch's functions: a default device is PyTorch's own."""
    count = torch._C._len_torch_function_stack()
    modes = map(torch._C._get_function_stack_at, range(count))
    return any(not type(mode).__module__.startswith("torch.utils._device") for mode in modes)


def _stance() -> str:
    """What ``torch.compiler.set_stance`` was told."""
    from torch._dynamo import eval_frame

    return str(getattr(getattr(eval_frame, "_stance", None), "stance", ""))
