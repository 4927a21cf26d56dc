"""Whether somebody wants to see a module's calls."""

from torch import nn
from torch.nn.modules import module as torch_module

_GLOBAL_HOOKS = tuple(f"_global_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre"))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_hooked(*modules: nn.Module) -> bool:
    """Whether a hook, their own or a global one, wants to see the modules' calls.

    A global hook with the attribute ``only_watches = True`` looks at the calls there are, and asks for no more.
    """
    for name in _GLOBAL_HOOKS:
        hooks = getattr(torch_module, name, None)
        if hooks and not all(getattr(hook, "only_watches", False) for hook in hooks.values()):
            return True
    for module in modules:
        own = module.__dict__
        for name in _HOOKS:
            if own.get(name):
                return True
    return False


def is_plain(*modules: nn.Module) -> bool:
    """Whether calling the modules is running their classes' ``forward``."""
    for module in modules:
        if "forward" in module.__dict__:
            return False
    return not is_hooked(*modules)
