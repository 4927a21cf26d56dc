"""Attributes of PyTorch, snnTorch and snnipu that the compiler replaces, and how the replacements are undone.

| replaced | why | from, to |
| --- | --- | --- |
| ``torch._dynamo.config``: ``skip_nnmodule_hook_guards``, ``optimize_ddp`` | a hook that is registered later is called; DistributedDataParallel does not cut graphs | the first compilation, ``stop()`` |
| ``WeakInstances.__len__``, ``__getitem__``, ``__setitem__``, ``step_operators.call_untraced``, ``step_operators.enabled`` | TorchDynamo takes neurons' steps as functions, and does not trace into them | the same |
| ``snntorch.utils._layer_check`` | ``utils.reset`` resets the network of a compiled object | the same |
| ``__call__`` of snnipu's neurons and surrogates | calls in the first steps of a loop are counted | ``auto()``, ``stop()``; else during these steps |
| ``__code__`` of the program's functions with loops | branches in front of the loops | ``auto()`` or a call of a compiled object, ``stop()`` |
| ``sys.meta_path`` | branches in modules that are imported later | ``auto()``, ``stop()`` |

At import snnipu replaces only ``SpikingNeuron.instances``, by a list that does not keep neurons alive. The names of
branches stay in the program's global variables. No class of PyTorch or snnTorch is changed.

TorchDynamo also registers functions for the whole process: neurons' steps as functions without a trace into them, and
``reset.reset`` in place of ``snntorch.utils.reset`` in traces. PyTorch has no way to undo a registration.
"""  # noqa: E501

from typing import Any, Callable, List, Tuple

from snnipu.compiler.private import dynamo

_ABSENT = object()


class Patches:
    """Replaced attributes and settings, with their original values."""

    def __init__(self) -> None:
        self._undo: List[Tuple[Callable[..., None], Tuple[Any, ...]]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class or a module until :meth:`undo`."""
        before = vars(owner).get(name, _ABSENT)
        self._undo.append((_restore, (owner, name, value, before)))
        setattr(owner, name, value)

    def configure(self, name: str, value: Any) -> None:
        """Set a setting of TorchDynamo in all threads until :meth:`undo`.

        In newer versions of PyTorch a setting holds only for its thread or context, so its default is set as well.
        """
        config = dynamo().config
        before = getattr(config, name)
        self._undo.append((setattr, (config, name, before)))
        setattr(config, name, value)
        entry: Any = getattr(config, "_config", {}).get(name)
        if hasattr(entry, "default"):
            self._undo.append((setattr, (entry, "default", entry.default)))
            entry.default = value

    def undo(self) -> None:
        """Restore the original values, the last replacement first."""
        while self._undo:
            restore, arguments = self._undo.pop()
            restore(*arguments)


def _restore(owner: Any, name: str, value: Any, before: Any) -> None:
    """Restore an attribute, unless another package has replaced ``value`` since."""
    if vars(owner).get(name, _ABSENT) is not value:
        return
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
