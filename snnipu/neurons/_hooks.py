"""Checks for hooks: a module with hooks must be called as a module."""

from torch import nn
from torch.nn.modules import module as torch_module

_GLOBAL_HOOKS = tuple(f"_global_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre"))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_hooked(*modules: nn.Module) -> bool:
    """Return True if one of the modules has a hook, or if PyTorch has global module hooks.

    Global hooks with the attribute ``only_watches = True`` do not count: fused modules need not call them.
    """
    for name in _GLOBAL_HOOKS:
        hooks = getattr(torch_module, name, None)
        if hooks and not all(getattr(hook, "only_watches", False) for hook in hooks.values()):
            return True
    for module in modules:
        attributes = module.__dict__
        for name in _HOOKS:
            if attributes.get(name):
                return True
    return False


def is_plain(*modules: nn.Module) -> bool:
    """Return True if calling the modules is the same as their classes' ``forward``: no hooks, no replaced method."""
    for module in modules:
        if "forward" in module.__dict__:
            return False
    return not is_hooked(*modules)
