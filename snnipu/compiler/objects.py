"""Snapshots of the objects that a loop's body can reach, and their differences."""

import collections.abc
import contextlib
import functools
import keyword
import random
import types
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import snntorch
import torch

from snnipu.compiler.marks import Refused
from snnipu.compiler.reasons import PACKAGES
from snnipu.compiler.sources import is_others
from snnipu.neurons._states import AttributeStates

# The largest number of objects in a snapshot, and of items of a list or a dictionary.
_MOST, _MOST_ITEMS = 4000, 1000
_LIBRARIES = ("torch", "numpy", "matplotlib", "tqdm", "logging", "builtins", "snnipu", "snntorch")
# Modules of libraries whose objects have attributes that a step may set.
_OBSERVED = ("torch.optim", "torch.amp")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_PASSED = (torch.Tensor, str, bytes, int, float, bool, torch.Size, torch.dtype, torch.device)
# The attribute of a neuron that records its last step. No step reads it.
LAST_STEP = "_last_step"
_OF_MODULES = set(vars(torch.nn.Module()))

# A position among the arguments (-1: the body), then attributes (True) and items (False): (2, ("lif1", True)).
Path = Tuple[Any, ...]


class Missing:
    """Marks an attribute or item that does not exist."""


class Place(NamedTuple):
    """An attribute of an object, or an item of a list or a dictionary."""

    path: Path
    key: Any
    is_attribute: bool

    def get(self, owner: Any) -> Any:
        return getattr(owner, self.key, Missing) if self.is_attribute else _item(owner, self.key)

    def set(self, owner: Any, value: Any) -> None:
        if not self.is_attribute:
            owner[self.key] = value
        elif value is Missing:
            delattr(owner, self.key)
        else:
            setattr(owner, self.key, value)

    def is_literal(self) -> bool:
        """Return True if :meth:`text` is an expression of Python."""
        if self.is_attribute:
            return str(self.key).isidentifier() and not keyword.iskeyword(self.key)
        keys = self.key if type(self.key) is tuple else (self.key,)
        return all(one is None or type(one) in (bool, int, str, bytes) for one in keys)

    def text(self, owner: str) -> str:
        return f"{owner}.{self.key}" if self.is_attribute else f"{owner}[{self.key!r}]"


def _item(owner: Any, key: Any) -> Any:
    try:
        return owner[key]
    except (KeyError, IndexError):
        return Missing


def find(path: Path, roots: Sequence[Any]) -> Any:
    """Return the object of a path.

    Args:
        roots: the arguments and the body.

    Raises:
        LookupError, AttributeError: the object does not exist.
    """
    value = roots[path[0]]
    for key, is_attribute in path[1:]:
        value = getattr(value, key) if is_attribute else value[key]
    return value


# The attributes of functions and descriptors that a call of them uses.
_PARTS: Dict[type, Tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    types.MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    property: ("fget", "fset"),
}


class _Owner(NamedTuple):
    """The attributes or items of an object."""

    object: Any
    path: Path
    values: Dict[Any, Any]
    length: int


class Changes(NamedTuple):
    """Differences of two snapshots: places with another value, and longer lists with their number of new items."""

    places: Set[Place]
    grown: Dict[Place, int]


class Objects:
    """A snapshot of attributes and items."""

    def __init__(self, arguments: Sequence[Any], function: Any, before: Optional["Objects"] = None) -> None:
        """
        Args:
            arguments, function: the roots; all objects that they reach are in the snapshot.
            before: an earlier snapshot, whose paths are kept.
        """
        self._paths = {} if before is None else {key: one.path for key, one in before._owners.items() if one.path}
        self._owners: Dict[int, _Owner] = {}
        self._names: Dict[Any, Tuple[Any, Place, Any]] = {}  # global variables and closure cells, and their values
        self._others: Dict[int, Tuple[Any, List[Any]]] = {}  # sets, deques and long lists, and their items
        self._modules: Dict[int, List[Any]] = {}  # the mode, layers and parameters of modules
        self._lists: Dict[int, List[Place]] = {}  # the places that hold a list, by the list's id
        self._has_iterators = self.has_hooks = self.reads_gradients = False
        self._space = function.__globals__
        waiting: List[Tuple[Any, Path]] = [(value, (place,)) for place, value in enumerate(arguments)]
        waiting += self._reachable_from(function, (-1,))
        seen: Set[int] = set()
        for value, path in waiting:  # the list grows
            passed = isinstance(value, _PASSED) and not getattr(value, "__dict__", None)
            if id(value) not in seen and value is not None and not passed and len(seen) < _MOST:
                seen.add(id(value))
                waiting += self._visit(value, path)
        self._is_whole = len(seen) < _MOST
        self._arguments = {id(one): place for place, one in enumerate(arguments) if isinstance(one, list)}

    def _visit(self, value: Any, path: Path) -> List[Tuple[Any, Path]]:
        """Store the attributes or items of an object, and return the objects in them."""
        path = self._paths.get(id(value), path)
        parts: List[Tuple[Any, Path]] = []
        for name in next((names for kind, names in _PARTS.items() if isinstance(value, kind)), ()):
            parts.append((getattr(value, name), _to(path, name, True)))
        if parts:
            return parts
        if isinstance(value, types.FunctionType):
            return self._reachable_from(value, path) if _is_of_program(value.__module__) else []
        if isinstance(value, tuple):
            return [(one, _to(path, place, False)) for place, one in enumerate(value)]
        if isinstance(value, types.ModuleType):
            if is_others(str(getattr(value, "__file__", None) or PACKAGES[0])):
                return []
            for name in vars(value):
                self._note(vars(value), name, False)
            inside = f"{value.__name__}."  # the modules of a package
            return [
                (one, ())
                for one in vars(value).values()
                if not isinstance(one, types.ModuleType) or one.__name__.startswith(inside)
            ]
        if isinstance(value, np.ndarray):
            self._others[id(value)] = value, [hash(value.tobytes())] if value.size <= _MOST_ITEMS else []
            return []
        if isinstance(value, random.Random):
            # A SystemRandom has no state, so each snapshot counts it as changed.
            is_system = isinstance(value, random.SystemRandom)
            self._others[id(value)] = value, [object() if is_system else hash(value.getstate())]
            return []
        if isinstance(value, functools._lru_cache_wrapper):
            self._others[id(value)] = value, list(value.cache_info())
            return [(value.__wrapped__, ())]
        if isinstance(value, weakref.ref):
            return [(value(), ())]
        if isinstance(value, collections.abc.Iterator):
            self._has_iterators = True
            return []
        if isinstance(value, (set, collections.deque)):
            self._others[id(value)] = value, list(value)
            return [(one, ()) for one in value]
        is_attribute = not isinstance(value, (list, dict))
        if not is_attribute:
            items = enumerate(value) if isinstance(value, list) else value.items()
            values = dict(items) if len(value) <= _MOST_ITEMS else {}
            if len(value) > _MOST_ITEMS:
                self._others[id(value)] = value, list(value.values() if isinstance(value, dict) else value)
            parts = [(vars(value), ())] if getattr(value, "__dict__", None) else []
        elif isinstance(value, type):
            if not _is_of_program(value.__module__):
                return []
            values = {name: one for name, one in vars(value).items() if name[:2] != "__"}
            parts = [(one, ()) for one in value.__bases__]
        elif (hasattr(value, "__dict__") or hasattr(type(value), "__slots__")) and (
            isinstance(value, (torch.nn.Module, torch.Tensor)) or _is_of_program(type(value).__module__)
        ):
            values = _attributes(value)
            if isinstance(value, torch.nn.Module):
                own = {**value._modules, **value._parameters}
                self._modules[id(value)] = [value.training, *own, *own.values()]
                parts = [(one, _to(path, name, True)) for name, one in own.items()]
                hooks = [(hook, ()) for name in _HOOKS for hook in getattr(value, name, {}).values()]
                self.has_hooks = self.has_hooks or bool(hooks)
                parts += hooks
            parts.append((type(value), _to(path, "__class__", True)))
        else:
            is_observed = type(value).__module__.startswith(_OBSERVED) and hasattr(value, "__dict__")
            return [(vars(value), ())] if is_observed else []
        length = len(value) if isinstance(value, list) else 0
        self._owners[id(value)] = _Owner(value, path, values, length)
        for key, one in values.items():
            if isinstance(one, list):
                self._lists.setdefault(id(one), []).append(Place(path, key, is_attribute))
        return [*parts, *((one, _to(path, key, is_attribute)) for key, one in values.items())]

    def _note(self, owner: Any, key: Any, is_attribute: bool) -> Any:
        """Store a variable's value, and return it."""
        place = Place((), key, is_attribute)
        self._names[id(owner), key] = owner, place, place.get(owner)
        return place.get(owner)

    def _reachable_from(self, function: Any, path: Path) -> List[Tuple[Any, Path]]:
        """Return the objects in a function's defaults, closure and global names."""
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        reachable: List[Tuple[Any, Path]] = [(one, ()) for one in defaults]
        for place, cell in enumerate(function.__closure__ or ()):
            with contextlib.suppress(ValueError):
                where = _to(_to(_to(path, "__closure__", True), place, False), "cell_contents", True)
                reachable.append((self._note(cell, "cell_contents", True), where))
        space = function.__globals__
        self.reads_gradients |= any("requires_grad" in code.co_names for code in _codes(function.__code__))
        where = _to((-1,) if space is self._space else path, "__globals__", True)
        for name in [name for code in _codes(function.__code__) for name in code.co_names if name in space]:
            reachable.append((self._note(space, name, False), _to(where, name, False)))
        return reachable

    def changes(self, later: "Objects") -> Changes:
        """Compare with a later snapshot.

        Raises:
            Refused: the change cannot be repeated by a compiled loop.
        """
        if not (self._is_whole and later._is_whole):
            raise Refused("it can reach too many objects")
        if self._has_iterators or later._has_iterators:
            raise Refused("it can reach an iterator")
        for key, (*_, value) in self._names.items():
            if key in later._names and later._names[key][-1] is not value:
                raise Refused("it sets a global variable, or a variable of a function around it")
        for other, (_, items) in self._others.items():
            if not _are_unchanged(items, later._others.get(other, (None, items))[1]):
                raise Refused("it changes a set, a deque, an array, a cache, a long list or a random generator")
        if self.changes_modules(later):
            raise Refused("it changes the mode, the layers or the parameters of a module")
        changes = Changes(set(), {})
        for key, owner in self._owners.items():
            if key not in later._owners:
                continue
            after = later._owners[key]
            is_list = isinstance(owner.object, list)
            if is_list and after.length != owner.length:
                if after.length < owner.length or any(after.values.get(k) is not v for k, v in owner.values.items()):
                    raise Refused("a list changes its items and its length")
                changes.grown[self._holder(key, owner)] = after.length - owner.length
                continue
            for name in {**owner.values, **after.values}:
                if owner.values.get(name, Missing) is not after.values.get(name, Missing):
                    if not owner.path or isinstance(owner.object, type):
                        raise Refused(
                            f"it sets `{name}` of a class, or of an object behind a hook, library or weak reference"
                        )
                    changes.places.add(Place(owner.path, name, not isinstance(owner.object, (list, dict))))
        return changes

    def changes_modules(self, later: "Objects") -> bool:
        """Return True if a module has another mode, layer or parameter in a later snapshot."""
        return not all(_are_unchanged(parts, later._modules.get(key, parts)) for key, parts in self._modules.items())

    def _holder(self, key: int, owner: _Owner) -> Place:
        """Return the only place of a list that grows."""
        holders = self._lists.get(key, [])
        if key in self._arguments and not holders:
            return Place((self._arguments[key],), None, False)
        if len(holders) != 1 or not holders[0].path or key in self._arguments:
            raise Refused("a list that grows is a global variable, or has several names")
        return holders[0]

    def has_others(self) -> bool:
        """Return True if there are neurons of snnTorch's classes, which have no kernels."""
        neurons = [one.object for one in self._owners.values() if isinstance(one.object, snntorch.SpikingNeuron)]
        return any(type(one).__module__.startswith("snntorch.") for one in neurons)

    def has_functions(self) -> bool:
        """Return True if there are autograd functions of the program: they may compute spikes."""
        kinds = [one.object for one in self._owners.values() if isinstance(one.object, type)]
        return any(issubclass(one, torch.autograd.Function) for one in kinds)

    def value(self, place: Place) -> Any:
        """Return the value of a place."""
        for owner in self._owners.values():
            if owner.path == place.path:
                return owner.values.get(place.key, Missing)
        return Missing

    def undo(self, later: "Objects") -> None:
        """Restore the attributes and items of this snapshot."""
        for holder, place, value in self._names.values():
            place.set(holder, value)
        for other, items in self._others.values():
            if isinstance(other, (set, collections.deque)):
                other.clear()
                (other.update if isinstance(other, set) else other.extend)(items)
        for key, owner in self._owners.items():
            after = later._owners.get(key)
            if after is None:
                continue
            if isinstance(owner.object, list) and after.length > owner.length:
                del owner.object[owner.length :]
            for name, value in owner.values.items():
                if after.values.get(name, Missing) is not value:
                    Place(owner.path, name, not isinstance(owner.object, (list, dict))).set(owner.object, value)


def _to(path: Path, key: Any, is_attribute: bool) -> Path:
    """Return a path with one more step; an empty path stays empty."""
    return (*path, (key, is_attribute)) if path else ()


def _attributes(owner: Any) -> Dict[str, Any]:
    """Return the attributes that a step may set."""
    if isinstance(owner, AttributeStates):
        caches = _caches(type(owner))
        names = [name for name in vars(owner) if name not in _OF_MODULES and name not in caches]
        return {name: getattr(owner, name) for name in (*names, *owner._states(), LAST_STEP) if hasattr(owner, name)}
    values = dict(getattr(owner, "__dict__", {}))
    slots = [name for kind in type(owner).__mro__ for name in _slots(kind)]
    values.update({name: getattr(owner, name) for name in slots if hasattr(owner, name)})
    if isinstance(owner, torch.nn.Module):
        values = {name: value for name, value in values.items() if name not in _OF_MODULES}
        values.update(owner._buffers)
    return values


def _caches(kind: type) -> Set[str]:
    """Return the names with an underscore that only the methods of snnipu's classes of a neuron read or set."""
    names: Dict[bool, Set[str]] = {True: set(), False: set()}
    for one in kind.__mro__:
        functions = [value for value in vars(one).values() if isinstance(value, types.FunctionType)]
        codes = [code for each in functions for code in _codes(each.__code__)]
        names[_is_of_program(one.__module__)].update(name for code in codes for name in code.co_names if name[0] == "_")
    return names[False] - names[True]


def _are_unchanged(items: Sequence[Any], later: Sequence[Any]) -> bool:
    return len(items) == len(later) and all(map(_is_unchanged, items, later))


def _is_unchanged(one: Any, other: Any) -> bool:
    return one is other or (type(one) is int and type(other) is int and one == other)


def _slots(kind: type) -> Sequence[str]:
    slots = vars(kind).get("__slots__", ())
    return [slots] if isinstance(slots, str) else [name for name in slots if name[:2] != "__"]


def _is_of_program(module: Any) -> bool:
    """Return True if a module of this name belongs to the program."""
    return isinstance(module, str) and module.split(".")[0] not in _LIBRARIES


def _codes(code: Any) -> Iterator[Any]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)
