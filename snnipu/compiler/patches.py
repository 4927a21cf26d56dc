"""Replacement of attributes of PyTorch, snnTorch and snnipu, and its undoing.

| replaced | why |
| --- | --- |
| ``torch._dynamo.utils.iter_contains``, ``RangeVariable.start``, ``stop``, ``step`` | ``t in skip`` is False where the numbers are symbols |
| ``RandomVariable._supported_fn_names`` | a ``random.Random`` draws in each call what it drew in the trace |
| ``dispatch_table`` of TorchDynamo's interpreters | :mod:`snnipu.compiler.periods` copies the steps of a loop that repeat |
| ``torch._dynamo.config``: ``skip_nnmodule_hook_guards``, ``optimize_ddp`` | hooks of later are called; graphs of loops are not cut |
| ``SpikingNeuron.reset_mechanism_val`` and what it reads | programs' own neurons decide by this number |
| ``WeakInstances``, ``leaves.apart`` | TorchDynamo does not look into them |
| ``SpikingNeuron.__call__``, ``__init__``, ``Surrogate.__call__``, ``Function.apply`` | ``snnipu.auto()`` finds loops by calls |

The last row lasts from :func:`snnipu.auto` to ``stop()``; the others as long as anybody compiles. At import snnipu
replaces ``SpikingNeuron.instances`` alone, by a list that does not keep neurons alive.

With ``SNNIPU_LOOPS=1`` :func:`snnipu.auto` leaves the classes of PyTorch and snnTorch as they are. From ``auto()`` to
``stop()`` it replaces ``__call__`` of snnipu's neurons and surrogates, and the code of the program's functions with
loops, and it adds a finder to ``sys.meta_path``. The names of branches stay in the program's global variables.

TorchDynamo also registers functions for the whole process: neurons' steps as functions that it does not look into, and
``reset.reset`` in place of ``snntorch.utils.reset`` in traces. PyTorch has no way to undo a registration.
"""  # noqa: E501

from typing import Any, Callable, List, Tuple

_ABSENT = object()


class Patches:
    """Attributes that were replaced, with what was there before."""

    def __init__(self) -> None:
        self._undo: List[Tuple[Callable[..., None], Tuple[Any, ...]]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class or a module until :meth:`undo`."""
        before = vars(owner).get(name, _ABSENT)
        self._undo.append((_put_back, (owner, name, value, before)))
        setattr(owner, name, value)

    def configure(self, name: str, value: Any) -> None:
        """Set a setting of TorchDynamo in all threads until :meth:`undo`.

        In newer versions a setting that is set holds in its own thread or context alone: its default is set as well.
        """
        from torch._dynamo import config

        before = getattr(config, name)
        self._undo.append((setattr, (config, name, before)))
        setattr(config, name, value)
        entry: Any = getattr(config, "_config", {}).get(name)
        if hasattr(entry, "default"):
            self._undo.append((setattr, (entry, "default", entry.default)))
            entry.default = value

    def undo(self) -> None:
        """Put back what was there before, the last one first."""
        while self._undo:
            put_back, arguments = self._undo.pop()
            put_back(*arguments)


def _put_back(owner: Any, name: str, value: Any, before: Any) -> None:
    """Set an attribute to what it was, unless somebody else has replaced ``value`` since."""
    if vars(owner).get(name, _ABSENT) is not value:
        return
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
