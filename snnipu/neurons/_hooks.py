"""Whether somebody wants to see a module's calls."""

from torch import nn
from torch.nn.modules import module as torch_module

_GLOBAL_HOOKS = tuple(f"_global_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre"))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook, its own or a global one, wants to see the module's calls."""
    own = module.__dict__
    return any(own.get(name) for name in _HOOKS) or any(getattr(torch_module, name, None) for name in _GLOBAL_HOOKS)


def is_plain(module: nn.Module) -> bool:
    """Whether calling the module is running its class's ``forward``."""
    return "forward" not in module.__dict__ and not is_hooked(module)
