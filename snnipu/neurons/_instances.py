"""snnTorch's list of all neurons, without keeping them alive."""

import weakref
from collections.abc import MutableSequence
from typing import Any, Iterable, List

import snntorch

from snnipu.ops._arguments import is_compiling


class WeakInstances(MutableSequence):  # type: ignore[type-arg]
    """``SpikingNeuron.instances`` by weak references: a neuron that nobody uses any more leaves it.

    snnTorch's class methods go through it by ``range(len(...))``: a neuron that dies meanwhile reads as None.
    """

    def __init__(self, neurons: Iterable[Any] = ()) -> None:
        self._references: List[weakref.ref[Any]] = [weakref.ref(neuron) for neuron in neurons]

    def __len__(self) -> int:
        if is_compiling():  # TorchDynamo would put the neurons themselves into the list that it writes back
            return len(self._references)
        self._references = [reference for reference in self._references if reference() is not None]
        return len(self._references)

    def __getitem__(self, index: Any) -> Any:
        found = self._references[index]
        return [reference() for reference in found] if isinstance(found, list) else found()

    def __setitem__(self, index: Any, value: Any) -> None:
        self._references[index] = [weakref.ref(v) for v in value] if isinstance(index, slice) else weakref.ref(value)

    def __delitem__(self, index: Any) -> None:
        del self._references[index]

    def insert(self, index: int, value: Any) -> None:
        self._references.insert(index, weakref.ref(value))

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, WeakInstances) else other)

    def __repr__(self) -> str:
        return repr(list(self))


def hold_weakly() -> None:
    """Let snnTorch's list hold its neurons weakly, also after ``SpikingNeuron.init()``, which makes a new one."""
    known = snntorch.SpikingNeuron.instances
    if not isinstance(known, WeakInstances):
        snntorch.SpikingNeuron.instances = WeakInstances(known)
