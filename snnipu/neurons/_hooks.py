"""Whether somebody wants to see a module's calls."""

from torch import nn
from torch.nn.modules import module as torch_module

_GLOBAL_HOOKS = tuple(f"_global_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre"))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook, its own or a global one, wants to see the module's calls.

    A global hook with the attribute ``only_watches = True`` looks at the calls there are, and asks for no more.
    """
    own = module.__dict__
    if any(own.get(name) for name in _HOOKS):
        return True
    everywhere = [hook for name in _GLOBAL_HOOKS for hook in getattr(torch_module, name, {}).values()]
    return not all(getattr(hook, "only_watches", False) for hook in everywhere)


def is_plain(module: nn.Module) -> bool:
    """Whether calling the module is running its class's ``forward``."""
    return "forward" not in module.__dict__ and not is_hooked(module)
