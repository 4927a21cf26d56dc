"""snnTorch's list of all neurons, with weak references."""

import weakref
from collections.abc import MutableSequence
from typing import Any, Iterable, List

import snntorch

from snnipu.ops._arguments import is_compiling


class WeakInstances(MutableSequence):  # type: ignore[type-arg]
    """``SpikingNeuron.instances`` with weak references: the list does not keep neurons alive.

    snnTorch's class methods index the list by ``range(len(...))``. A neuron that is freed during such a loop reads as
    None.
    """

    def __init__(self, neurons: Iterable[Any] = ()) -> None:
        self._references: List[weakref.ref[Any]] = [weakref.ref(neuron) for neuron in neurons]

    def __len__(self) -> int:
        if is_compiling():  # TorchDynamo would write strong references into the new list
            return len(self._references)
        self._references = [reference for reference in self._references if reference() is not None]
        return len(self._references)

    def __getitem__(self, index: Any) -> Any:
        references = self._references[index]
        return [reference() for reference in references] if isinstance(references, list) else references()

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
    """Make snnTorch's list weak. Every constructor calls this: ``SpikingNeuron.init()`` makes a new, strong list."""
    instances = snntorch.SpikingNeuron.instances
    if not isinstance(instances, WeakInstances):
        snntorch.SpikingNeuron.instances = WeakInstances(instances)
