"""Lists on objects that a loop appends to, call after call.

TorchDynamo compiles for a list as long as it finds it, so that each call would be compiled anew. A list with which the
loop does nothing but append to it stands aside during a call: an empty one stands in its place, and what was appended
to that is appended to it afterwards.
"""

import contextlib
import dis
import gc
import sys
import sysconfig
import threading
import types
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Sequence, Set, Tuple

import torch

from snnipu.compiler import tracing
from snnipu.compiler.reasons import PACKAGES

_LIBRARY = (*PACKAGES, *{str(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")})
# By these, code reaches an attribute without writing its name.
_UNNAMED = {"getattr", "vars", "__dict__", "__getattribute__", "attrgetter"}
# Of a list: the object's attributes, the name here and the argument of getrefcount.
_ALONE = 3
# Objects without lists of a program's; and so many are looked at.
_OTHERS = (type, types.ModuleType, types.FunctionType, torch.Tensor)
_MOST = 1000

Key = Tuple["weakref.ReferenceType[Any]", str]


class Read(Exception):
    """What was compiled does more with a list than append to it."""


class Lists:
    """The lists that stand aside while one function runs compiled."""

    def __init__(self) -> None:
        self._grow: List[Key] = []
        self._code: List[Any] = []
        self._aside = False
        self._left = False  # whether a trace may have left references behind
        self._lock = threading.RLock()

    def watch(self, values: Iterable[Any]) -> Dict[Key, Tuple[Any, int]]:
        """The lists on the objects among ``values``, with their lengths."""
        found: Dict[Key, Tuple[Any, int]] = {}
        for owner in _owners(values):
            for name, value in vars(owner).items():
                if type(value) is list:
                    with contextlib.suppress(TypeError):
                        found[weakref.ref(owner), name] = value, len(value)
        return found

    def note(self, before: Dict[Key, Tuple[Any, int]]) -> None:
        """Those that a call has made longer stand aside from now on."""
        for (reference, name), (value, length) in before.items():
            owner = reference()
            grown = owner is not None and len(value) > length and vars(owner).get(name) is value
            if grown and self._code and _only_appends(self._code, name):
                self._grow.append((reference, name))

    def traced(self) -> None:
        """TorchDynamo has made a graph: look at the code that it has gone through.

        Raises:
            Read: a list that stands aside is read there.
        """
        self._left = True
        self._code = tracing.traced_code()
        if not self._code:
            return
        read = {name for _, name in self._grow if not _only_appends(self._code, name)}
        if read:
            self._grow = [key for key in self._grow if key[1] not in read]
            if self._aside:
                raise Read(", ".join(sorted(read)))

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Let empty lists stand in their places; two threads do so one after the other."""
        if not self._grow:
            yield
            return
        with self._lock:
            taken = list(self._taken())
            self._aside = bool(taken)
            try:
                yield
            finally:
                self._aside = False
                for attributes, name, value in taken:
                    value.extend(attributes[name])
                    attributes[name] = value

    def _taken(self) -> Iterator[Tuple[Dict[str, Any], str, List[Any]]]:
        for reference, name in self._grow:
            owner = reference()
            attributes: Dict[str, Any] = {} if owner is None else owner.__dict__
            value: Any = attributes.get(name)
            if type(value) is not list:
                continue
            if sys.getrefcount(value) > _ALONE and self._left:
                gc.collect()
                self._left = False
            # One that is known by another name, too, could be read by that.
            if sys.getrefcount(value) <= _ALONE:
                attributes[name] = []
                yield attributes, name, value


def _owners(values: Iterable[Any]) -> Iterator[Any]:
    """The objects among ``values``, and those that these have, that have attributes."""
    seen: Set[int] = set()
    waiting = list(values)
    for value in waiting:
        if id(value) in seen or len(seen) >= _MOST or not hasattr(value, "__dict__") or isinstance(value, _OTHERS):
            continue
        seen.add(id(value))
        yield value
        waiting.extend(vars(value).values())
        if isinstance(value, torch.nn.Module):
            waiting.extend(value.modules())


def _only_appends(code: Sequence[Any], name: str) -> bool:
    """Whether ``code`` does nothing with an attribute but append to it."""
    return all(_appends(one, name) for one in code)


def _appends(code: Any, name: str) -> bool:
    if _UNNAMED & set(code.co_names) and not code.co_filename.startswith(_LIBRARY):
        return False
    steps = list(dis.get_instructions(code))
    for step, after in zip(steps, [*steps[1:], None]):
        if step.argval == name:
            appended = after is not None and after.opname in ("LOAD_ATTR", "LOAD_METHOD") and after.argval == "append"
            if not (step.opname == "LOAD_ATTR" and appended):
                return False
    return all(_appends(one, name) for one in code.co_consts if isinstance(one, types.CodeType))
