"""A loop over time while the program runs: its first steps as they are written, the others distributed.

The loop's body is a function of the item and of the variables that it reads; it returns those that it sets. What else
a step hands to the next one (attributes of objects, items of lists and dictionaries) is found by looking at the objects
that the body can reach, before and after the first two steps. The body is then traced once, by ``torch.compile``, as a
function of all these values, and :mod:`snnipu.compiler.distribute` makes a graph of all steps of it.
"""

import builtins
import contextlib
import functools
import itertools
import logging
import random
import threading
import types
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy
import torch

from snnipu.compiler import distribute, nodes, reasons, shown, tracing
from snnipu.compiler.distribute import CLOCK, OFFSET, Body, Distribution, Refused
from snnipu.neurons._states import PlainStates
from snnipu.surrogate import Surrogate

_LOG = logging.getLogger("snnipu.compiler")
# A loop with fewer steps runs as it is written.
FEWEST = 3
# So many steps run as they are written before the body is traced.
LOOKED_AT = 2
# So many runs without a neuron that is called again show that a loop is none over time.
LOOKS = 3
# Objects that are looked at.
_MOST = 4000
# Tensors in one value that is carried.
_LEAVES = 256


class Recorder:
    """In place of a list to which the body appends: it can do nothing else."""

    def __init__(self) -> None:
        self.items: List[Any] = []

    def append(self, value: Any) -> None:
        self.items.append(value)


def marked(value: Any, mark: Callable[[torch.Tensor, int], torch.Tensor], first: int, count: List[int]) -> Any:
    """A value whose tensors are marked, and numbered from ``first`` on; ``count`` grows by one for each leaf."""
    if isinstance(value, (tuple, list)):
        found = [marked(one, mark, first, count) for one in value]
        return found if isinstance(value, list) else tuple(found)
    if isinstance(value, dict):
        return {key: marked(one, mark, first, count) for key, one in value.items()}
    count.append(0)
    return mark(value, first + len(count)) if isinstance(value, torch.Tensor) else value


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors_of(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors_of(one)


# ---- items


class Items:
    """The items of a loop by their number.

    Attributes:
        text: the item of step ``t`` as an expression, in which ``I`` are the values that it needs.
        values: these.
    """

    def __init__(self, given: Any) -> None:
        """
        Args:
            given: what the loop goes through; a call of ``enumerate`` or ``zip`` as a tuple: function, arguments.

        Raises:
            Refused: the items are not known by their number.
        """
        self.values: List[Any] = []
        self.text, self.count = self._read(given)

    def _value(self, value: Any) -> str:
        self.values.append(value)
        return f"I[{len(self.values) - 1}]"

    def _read(self, given: Any) -> Tuple[str, int]:
        if isinstance(given, Called):
            return self._called(given)
        if isinstance(given, range):
            return self._numbers(given.start, given.step), len(given)
        if isinstance(given, torch.Tensor) and given.dim():
            return f"{self._value(given)}[t]", given.shape[0]
        if isinstance(given, (list, tuple)) and given and all(isinstance(one, torch.Tensor) for one in given):
            if len({(one.shape, one.dtype, one.device) for one in given}) == 1 and len(given) >= FEWEST:
                return f"{self._value(torch.stack(list(given)))}[t]", len(given)
        raise Refused(f"it goes through a {type(given).__name__}")

    def _numbers(self, start: int, by: int) -> str:
        text = "t" if by == 1 else f"{self._value(by)} * t"
        return f"({self._value(start)} + {text})" if start else text

    def _called(self, given: "Called") -> Tuple[str, int]:
        if given.function is builtins.enumerate and 1 <= len(given.arguments) <= 2:
            inner, count = self._read(given.arguments[0])
            start = given.arguments[1] if len(given.arguments) > 1 else 0
            if type(start) is int:
                return f"({self._numbers(start, 1)}, {inner})", count
        if given.function is builtins.zip and given.arguments:
            read = [self._read(one) for one in given.arguments]
            return f"({''.join(f'{text}, ' for text, _ in read)})", min(count for _, count in read)
        if given.function is builtins.reversed and len(given.arguments) == 1 and isinstance(given.arguments[0], range):
            return self._read(given.arguments[0][::-1])
        raise Refused(f"it goes through what {getattr(given.function, '__name__', given.function)} returns")

    def reader(self) -> Callable[[int], Any]:
        return eval(f"lambda t: {self.text}", {"I": self.values})  # type: ignore[no-any-return]


Missing = object()


class Called(NamedTuple):
    """A call in the head of a loop that is not made yet."""

    function: Any
    arguments: Tuple[Any, ...]


# ---- what a step changes besides variables


@dataclass(eq=False)
class Place:
    """An attribute of an object, or an item of a list or a dictionary."""

    owner: Any
    key: Any

    @property
    def is_attribute(self) -> bool:
        return not isinstance(self.owner, (list, dict))

    def get(self) -> Any:
        return getattr(self.owner, self.key) if self.is_attribute else self.owner[self.key]

    def exists(self) -> bool:
        return hasattr(self.owner, self.key) if self.is_attribute else isinstance(self.owner, list) or self.key in self.owner

    def text(self, owner: str) -> str:
        return f"{owner}.{self.key}" if self.is_attribute else f"{owner}[{self.key!r}]"


def _own_attributes(owner: Any) -> Dict[str, Any]:
    """The attributes that a step may set."""
    if isinstance(owner, PlainStates):
        names = [*owner._states(), *(name for name in vars(owner) if name in ("mem", "syn", "spk"))]
        return {name: getattr(owner, name) for name in dict.fromkeys(names) if hasattr(owner, name)}
    found = dict(vars(owner))
    if isinstance(owner, torch.nn.Module):
        found = {name: value for name, value in found.items() if name not in _OF_MODULES}
        found.update(owner._buffers)
    return found


_OF_MODULES = set(vars(torch.nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_PASSED = (types.ModuleType, torch.Tensor, str, bytes, int, float, bool, torch.Size, torch.dtype, torch.device)
_LIBRARIES = ("torch.", "numpy", "matplotlib", "tqdm", "logging", "builtins", "snnipu.", "snntorch.", "collections")


class Objects:
    """The objects that a function can reach, and what they have at one moment."""

    def __init__(self, roots: Sequence[Any]) -> None:
        self.places: Dict[int, Tuple[Any, Dict[Any, Any]]] = {}
        self.holders: Dict[int, List[Place]] = {}
        self._look(list(roots))

    def _look(self, waiting: List[Any]) -> None:
        seen: Set[int] = set()
        for value in waiting:  # which grows
            if id(value) in seen or value is None or isinstance(value, _PASSED) or len(seen) > _MOST:
                continue
            seen.add(id(value))
            if isinstance(value, (staticmethod, classmethod, types.MethodType)):
                waiting.append(getattr(value, "__self__", None))
                value = value.__func__
            if isinstance(value, functools.partial):
                waiting += [value.func, *value.args, *value.keywords.values()]
                continue
            if isinstance(value, property):
                waiting += [value.fget, value.fset]
                continue
            if isinstance(value, types.FunctionType):
                if _is_own(value.__module__):
                    waiting.extend(reached_by(value))
                continue
            if isinstance(value, (list, dict)):
                inside = dict(enumerate(value)) if isinstance(value, list) else dict(value)
            elif isinstance(value, tuple):
                waiting.extend(value)
                continue
            elif hasattr(value, "__dict__") and _is_of_program(value):
                inside = _own_attributes(value)
                if isinstance(value, torch.nn.Module):
                    waiting.extend(value._modules.values())
                    waiting.extend(hook for name in _HOOKS for hook in getattr(value, name, {}).values())
                waiting.append(type(value))
            elif isinstance(value, type) and _is_own(value.__module__):
                inside = {name: one for name, one in vars(value).items() if name[:2] != "__"}
                waiting.extend(value.__bases__)
            else:
                continue
            self.places[id(value)] = value, inside
            for key, one in inside.items():
                if isinstance(one, list):
                    self.holders.setdefault(id(one), []).append(Place(value, key))
            waiting.extend(inside.values())

    def changed(self, later: "Objects") -> Tuple[List[Place], List[Place], Set[int]]:
        """What differs later: places with other values, holders of lists that grew, ids of tensors changed in place."""
        places: List[Place] = []
        grown: List[Place] = []
        for key, (owner, before) in self.places.items():
            if key not in later.places:
                continue
            after = later.places[key][1]
            if isinstance(owner, list) and len(after) > len(before):
                if any(after[place] is not value for place, value in before.items()):
                    raise Refused("a list grows and its items change")
                if len(self.holders.get(key, ())) != 1:
                    grown.append(Place(owner, None))
                else:
                    grown.append(self.holders[key][0])
                continue
            for name in {*before, *after}:
                if name not in after:
                    raise Refused(f"`{name}` disappears")
                if name not in before:
                    places.append(Place(owner, name))
                elif before[name] is not after[name]:
                    places.append(Place(owner, name))
        return places, grown, set()


def _is_own(module: Any) -> bool:
    """Return True if a module of this name is the program's."""
    return isinstance(module, str) and not module.startswith(_LIBRARIES)


def _is_of_program(value: Any) -> bool:
    module = type(value).__module__
    return isinstance(value, torch.nn.Module) or _is_own(module)


def reached_by(function: Any) -> List[Any]:
    """The objects that a function knows by names."""
    bound = [function.__self__] if isinstance(function, types.MethodType) else []
    function = getattr(function, "__func__", function)
    found = [*bound, *(function.__defaults__ or ())]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):
            found.append(cell.cell_contents)
    waiting = [function.__code__]
    for code in waiting:
        found += [function.__globals__[name] for name in code.co_names if name in function.__globals__]
        waiting.extend(one for one in code.co_consts if isinstance(one, types.CodeType))
    return found


# ---- neurons that are called


class _Calls(threading.local):
    """The neurons and surrogates that are called while a loop is looked at, and whether another loop ran meanwhile."""

    seen: Optional[Dict[int, int]] = None
    has_loop = False


_calls = _Calls()
_lock = threading.RLock()
_SURROGATE_CALL = Surrogate.__call__
# Who is told of each call of a neuron: those who count, and ``snnipu.auto()``.
_listeners: List[Callable[[], None]] = []


def _neuron_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.compiler.is_compiling():
        _count(self)
        for listener in tuple(_listeners):
            listener()
    return torch.nn.Module.__call__(self, *args, **kwargs)


def _surrogate_call(self: Any, u: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        _count(self)
    return _SURROGATE_CALL(self, u)


def _count(called: Any) -> None:
    if _calls.seen is not None:
        _calls.seen[id(called)] = _calls.seen.get(id(called), 0) + 1


def listen(listener: Callable[[], None]) -> None:
    """Call ``listener`` at each call of a neuron of snnipu, until :func:`rest`."""
    with _lock:
        _listeners.append(listener)
        PlainStates.__call__ = _neuron_call  # type: ignore[method-assign]
        Surrogate.__call__ = _surrogate_call  # type: ignore[method-assign]


def rest(listener: Callable[[], None]) -> None:
    """Call it no longer."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        if not _listeners and "__call__" in vars(PlainStates):
            del PlainStates.__call__
            Surrogate.__call__ = _SURROGATE_CALL  # type: ignore[method-assign]


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    """Nobody is told of calls: TorchDynamo traces the classes as they are."""
    with _lock:
        before = list(_listeners)
        for one in before:
            rest(one)
    try:
        yield
    finally:
        for one in before:
            listen(one)


@contextlib.contextmanager
def counting() -> Iterator[_Calls]:
    """How often the neurons and surrogates of snnipu are called inside."""
    outer = _calls.seen, _calls.has_loop
    _calls.seen, _calls.has_loop = {}, False

    def nobody() -> None:
        pass

    listen(nobody)
    try:
        yield _calls
    finally:
        rest(nobody)
        seen, _calls.seen = _calls.seen, outer[0]
        for key, number in (seen or {}).items() if outer[0] is not None else ():
            outer[0][key] = outer[0].get(key, 0) + number
        _calls.has_loop = _calls.has_loop or outer[1]


# ---- the loop


@dataclass
class _Steady:
    """A body whose carried values have one form, and what surrounds it."""

    body: Body
    guards: "Guards"


class _Peel(Exception):
    """The first step is not one like the others."""


class Guards:
    """What the trace of a body took for true of the number of the step."""

    def __init__(self, body: Body) -> None:
        """
        Raises:
            Refused: the trace is that of one step alone.
        """
        self._conditions: List[Any] = []
        self._symbols: Dict[Any, Callable[[Sequence[Any]], int]] = {}
        self._known: Dict[Any, bool] = {}
        self._clock: Any = None
        inputs = [node for node in body.module.graph.nodes if node.op == "placeholder"]
        environment = None
        for place, node in enumerate(inputs):
            value = nodes.value_of(node)
            if isinstance(value, torch.SymInt):
                environment = value.node.shape_env
                self._symbols.setdefault(value.node.expr, lambda given, place=place: int(given[place]))
                if str(node.target).strip("_") == f"L_{CLOCK}":
                    self._clock = value.node.expr
            elif isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt):
                        environment = size.node.shape_env
                        self._symbols.setdefault(
                            size.node.expr, lambda given, place=place, dim=dim: int(given[place].shape[dim])
                        )
        if self._clock is None:
            return
        fixed = [one for symbol, value in environment.replacements.items() for one in (symbol, *value.free_symbols)]
        if getattr(self._clock, "is_Integer", False) or self._clock in fixed:
            raise Refused("its steps depend on their number")
        for guard in environment.guards:
            if self._clock in guard.expr.free_symbols:
                self._conditions.append(guard.expr)

    def hold(self, inputs: Sequence[Any], first: int, steps: int) -> bool:
        """Return True if all steps from ``first`` on are like the one that was traced."""
        if not self._conditions:
            return True
        needed = {symbol for one in self._conditions for symbol in one.free_symbols} - {self._clock}
        if not needed <= self._symbols.keys():
            return False
        values = {symbol: self._symbols[symbol](inputs) for symbol in needed}
        key = first, steps, tuple(values.values())
        if key not in self._known:
            self._known[key] = all(
                bool(one.subs({**values, self._clock: step + OFFSET}))
                for one in self._conditions
                for step in range(first, first + steps)
            )
        return self._known[key]


class Now(threading.local):
    """The run of a loop that goes on in this thread: its first step, their number, the graph that has begun."""

    first = 0
    steps = 0
    began: Optional[Distribution] = None
    random: Any = None


class Loop:
    """A loop of the program.

    Attributes:
        body: called with the item and the variables that the loop reads; returns the variables that it sets.
        label: where it stands: file, line, function.
        carries: for each variable that ``body`` returns, its place among those that it takes, or -1.
        reason: why it runs as it is written; empty: it does not.
    """

    unbound: Any = None

    def __init__(
        self, body: Any, label: str, carries: Sequence[int], keeping: Any = None, after: Any = None, shown_to: Any = None
    ) -> None:
        """
        Args:
            keeping: the body without what it shows, for which it keeps the values; None: it shows nothing.
            after: what shows them.
            shown_to: what returns the objects that are shown something, and the values that are read then.
        """
        self.body, self.label, self.carries = body, label, tuple(carries)
        self.keeping, self.after, self.shown_to = keeping, after, shown_to
        self.reason = ""
        self.note: Optional[reasons.Reason] = None
        self.stopped = False
        self.neurons: List[str] = []
        self.alone: List[str] = []
        self.code = ""
        self.error: Optional[BaseException] = None
        self.runs = 0  # that were distributed
        self.traces = 0
        self.looks = 0
        self._plan: Optional[_Plan] = None
        self._now = Now()
        self._lock = threading.RLock()

    def __bool__(self) -> bool:
        return not (self.reason or self.stopped or torch.compiler.is_compiling())

    def __reduce__(self) -> Any:
        """A function that is pickled with its global names, by cloudpickle say, runs as it is elsewhere."""
        return bool, ()

    def __call__(self, given: Any, *arguments: Any) -> Optional[Tuple[Any, ...]]:
        """Run the loop; None: it is to run as it is written, and nothing has been done."""
        try:
            items = Items(given)
        except Refused as refused:
            self.refuse(str(refused), quiet=True)
            return None
        if items.count < FEWEST or tracing.not_now():
            return None
        return (_Run(self, items, list(arguments)).run(),)

    def refuse(self, reason: str, note: Optional[reasons.Reason] = None, quiet: bool = False) -> None:
        """From now on it runs as it is written."""
        if self.reason:
            return
        self.reason, self.note = reason, note
        if not quiet:
            _LOG.warning("%s runs as it is: %s", self.label, reason)

    def told(self) -> List[str]:
        """Lines of a text: what is done with it."""
        if self.runs and not self.reason:
            return [f"{self.label}  compiled: {', '.join(self.neurons)}"]
        if self._plan is None and not self.note:
            return []
        lines = [f"{self.label}  as it is, {self.reason}"]
        return [*lines, *(f"    {line}" for line in (self.note.told("the cause") if self.note else ()))]


class _Run:
    """One run of a loop."""

    def __init__(self, loop: Loop, items: Items, arguments: List[Any]) -> None:
        self.loop, self.items, self.arguments = loop, items, arguments
        self.at = items.reader()
        self.step = 0
        self.results: Tuple[Any, ...] = ()

    def run(self) -> Tuple[Any, ...]:
        loop = self.loop
        if loop._plan is None:
            self._look()
        if loop._plan is not None and not loop.reason:
            _calls.has_loop = True
            self._distributed(loop._plan)
        while self.step < self.items.count:
            self._written()
        return self.results

    def _written(self) -> None:
        """Run one step as it is written."""
        self.results = self.loop.body(self.at(self.step), *self.arguments)
        self.carry()
        self.step += 1

    def carry(self) -> None:
        """Let the next step take what this one has set."""
        for value, place in zip(self.results, self.loop.carries):
            if place >= 0:
                self.arguments[place] = value

    # ---- the first run

    def _look(self) -> None:
        loop = self.loop
        seen: List[Dict[int, int]] = []
        moments = [self._objects()]
        values = [list(self.arguments)]
        versions = [_versions(self.arguments)]
        random_state = _random_state()
        has_loop = False
        for _ in range(LOOKED_AT):
            with counting() as called:
                self._written()
                seen.append(dict(called.seen or {}))
                has_loop = has_loop or called.has_loop
            moments.append(self._objects())
            values.append(list(self.arguments))
            versions.append(_versions(self.arguments))
        again = [key for key in seen[0] if key in seen[1]]
        if not again or has_loop or any(seen[1][key] >= FEWEST for key in again):
            loop.looks += 1
            if loop.looks >= LOOKS:
                loop.refuse("it is no loop over time", quiet=True)
            return
        try:
            if _random_state() != random_state:
                raise Refused("it draws random numbers of Python's or NumPy's")
            loop._plan = _Plan(loop, self.items, moments, values, versions)
        except Refused as refused:
            loop.refuse(str(refused))

    def _objects(self) -> Objects:
        return Objects([*self.arguments, *reached_by(self.loop.body)])

    # ---- later runs

    def _distributed(self, plan: "_Plan") -> None:
        loop, now = self.loop, self.loop._now
        for first in (self.step, self.step + 1):
            if self.step < first:
                self._written()
            if self.items.count - self.step < 2:
                return
            now.first, now.steps, now.began = self.step, self.items.count - self.step, None
            try:
                self.results = plan.call(self)
                self.step = self.items.count
                loop.runs += 1
                return
            except Exception as error:
                if now.began is not None:
                    if now.began.has_effects:
                        raise
                    # The error with the lines of the program, from the loop as it is written.
                    if now.began.draws:
                        torch.set_rng_state(now.random)
                    return
                cause = _cause(error)
                if isinstance(cause, _Peel):
                    continue
                loop.error = error
                if isinstance(cause, Refused):
                    loop.refuse(str(cause))
                else:
                    why = reasons.of_error(error)
                    loop.refuse(f"refused: {why.why}" + "".join(f" ({line.place})" for line in why.lines), why)
                return
        loop.refuse("its first steps differ from each other")


def _cause(error: BaseException) -> Optional[BaseException]:
    """The error of ours that TorchDynamo raises again as another one."""
    cause: Optional[BaseException] = error
    while cause is not None and not isinstance(cause, (_Peel, Refused)):
        cause = cause.__cause__ or getattr(cause, "inner_exception", None)
    return cause


def _versions(values: Sequence[Any]) -> List[Any]:
    return [one._version if isinstance(one, torch.Tensor) and not one.is_inference() else None for one in values]


def _random_state() -> Any:
    """The state of Python's and NumPy's generators."""
    kind, words, place, *rest = numpy.random.get_state()
    return random.getstate(), kind, words.tobytes(), place, rest


class _Plan:
    """How the body of a loop is traced, and the graphs that were made of it."""

    def __init__(
        self,
        loop: Loop,
        items: Items,
        moments: Sequence[Objects],
        values: Sequence[Sequence[Any]],
        versions: Sequence[Sequence[Any]],
    ) -> None:
        self.loop = loop
        self.text = items.text
        places: Dict[Tuple[int, Any], Place] = {}
        grown: Dict[Tuple[int, Any], Place] = {}
        for before, after in zip(moments, moments[1:]):
            found, lists, _ = before.changed(after)
            places.update({(id(one.owner), one.key): one for one in found})
            grown.update({(id(one.owner), one.key): one for one in lists})
        self.counters: Dict[Any, int] = {}
        self.grown: List[Place] = []
        self.lists: Dict[int, int] = {}  # arguments that are lists that grow
        arguments = {id(one): place for place, one in enumerate(values[0]) if isinstance(one, list)}
        for one in grown.values():
            owner = one.owner if one.key is None else one.get()
            if id(owner) in arguments:
                self.lists[arguments[id(owner)]] = 1
            elif one.key is None:
                raise Refused("a list that grows is known by several names")
            else:
                self.grown.append(one)
        self.places: List[Place] = []
        for key, one in places.items():
            if key in grown:
                continue
            history = [moment.places[id(one.owner)][1].get(one.key, Missing) for moment in moments]
            if Missing in history[1:]:
                raise Refused(f"`{one.key}` appears")
            self._sort(one, history)
        self.carried: List[int] = []  # places of arguments that are carried
        self.in_place: List[int] = []  # of those whose tensor a step changes
        for place in sorted({place for place in loop.carries if place >= 0}):
            history = [moment[place] for moment in values]
            if all(one is history[0] for one in history):
                if not isinstance(history[0], torch.Tensor) or versions[0][place] == versions[-1][place]:
                    continue
                self.in_place.append(place)
            self._sort(place, history)
        self._refuse_aliases(moments, values)
        self._steady: List[_Steady] = []
        self._compile(len(values[0]))

    def _sort(self, place: Any, history: Sequence[Any]) -> None:
        """Note how a value is carried from step to step."""
        first, before, last = history
        if type(last) is int and type(before) is int and (type(first) is int or first is Missing):
            by = last - before
            if first is not Missing and before - first != by:
                raise Refused(f"`{_named(place)}` is a number that changes unevenly")
            self.counters[place] = by
            return
        if type(last) in (int, float, bool, str, type(None)) and last is not before and last != before:
            raise Refused(f"`{_named(place)}` is no tensor, and changes")
        if isinstance(place, Place):
            self.places.append(place)
        else:
            self.carried.append(place)

    def _refuse_aliases(self, moments: Sequence[Objects], values: Sequence[Sequence[Any]]) -> None:
        """A tensor that each step changes must be known by its variable alone."""
        changed = {_storage(values[-1][place]) for place in self.in_place}
        if not changed:
            return
        lists = [one.get() for one in self.grown] + [values[-1][place] for place in self.lists]
        others = [value for place, value in enumerate(values[-1]) if place not in self.in_place]
        others += [one.get() for one in self.places]
        for one in _tensors_of([*(items[-2:] for items in lists), *others]):
            if _storage(one) in changed:
                raise Refused("it changes a tensor in place that it keeps, or that has another name")

    def _compile(self, count: int) -> None:
        """Write the function that is traced."""
        names = [f"a{place}" for place in range(count)]
        owners: List[Any] = []
        for one in (*self.places, *self.grown, *(one for one in self.counters if isinstance(one, Place))):
            if not any(one.owner is other for other in owners):
                owners.append(one.owner)
        where = {id(owner): f"C[{place}]" for place, owner in enumerate(owners)}
        lines = [f"def step({CLOCK}, C, V, N, I, A):", f" t = {CLOCK} - {OFFSET}"]
        lines += [f" {name} = A[{place}]" for place, name in enumerate(names)]
        for number, place in enumerate(self.carried):
            lines.append(f" {names[place]} = marked(V[{number}], carried, {number * _LEAVES}, [])")
        for number, one in enumerate(self.places):
            number += len(self.carried)
            text = f"marked(V[{number}], carried, {number * _LEAVES}, [])"
            lines.append(f" {one.text(where[id(one.owner)])} = {text}")
        for number, (one, by) in enumerate(self.counters.items()):
            to = one.text(where[id(one.owner)]) if isinstance(one, Place) else names[one]
            lines.append(f" {to} = N[{number}] + {by} * t")
        for number, one in enumerate(self.grown):
            text = one.text(where[id(one.owner)])
            lines += [f" l{number} = {text}", f" {text} = Recorder()"]
        for place in self.lists:
            lines.append(f" {names[place]} = Recorder()")
        shows = self.loop.keeping is not None
        given = [self.text, *names]
        if shows:
            lines.append(" shown = Recorder()")
            given.append("shown")
        results = [f"r{number}" for number in range(len(self.loop.carries))]
        lines.append(f" {''.join(f'{one}, ' for one in results) or 'none'} = body({', '.join(given)})")
        by_place = {place: results[number] for number, place in enumerate(self.loop.carries)}
        carried = [by_place[place] for place in self.carried]
        carried += [one.text(where[id(one.owner)]) for one in self.places]
        for number, text in enumerate(carried):
            lines.append(f" c{number} = marked({text}, result, {number * _LEAVES}, [])")
        for number, one in enumerate(self.places):
            lines.append(f" {one.text(where[id(one.owner)])} = c{len(self.carried) + number}")
        for number, place in enumerate(self.carried):
            lines.append(f" {by_place[place]} = c{number}")
        kept = [f"marked({one.text(where[id(one.owner)])}.items, collected, 0, [])" for one in self.grown]
        kept += [f"marked({names[place]}.items, collected, 0, [])" for place in self.lists]
        if shows:
            kept.append("marked(shown.items, collected, 0, [])")
        lines += [f" k{number} = {one}" for number, one in enumerate(kept)]
        lines += [f" {one.text(where[id(one.owner)])} = l{number}" for number, one in enumerate(self.grown)]
        lines.append(f" return ({''.join(f'{one}, ' for one in results)}), ({''.join(f'k{n}, ' for n in range(len(kept)))})")
        space: Dict[str, Any] = {
            "marked": marked,
            "carried": distribute.carried,
            "result": distribute.result,
            "collected": distribute.collected,
            "Recorder": Recorder,
            "body": self.loop.body if self.loop.keeping is None else self.loop.keeping,
        }
        exec("\n".join(lines), space)
        self.source = "\n".join(lines)
        self.owners = owners
        self._traced = torch.compile(space["step"], backend=self._capture, fullgraph=True, dynamic=True)

    def call(self, run: _Run) -> Tuple[Any, ...]:
        """Run the remaining steps; returns what the body does."""
        loop = self.loop
        if run.items.text != self.text:
            raise Refused("what it goes through is of another kind")
        if loop.shown_to is not None and not _may_wait(loop.shown_to, run.arguments):
            raise Refused("what it shows cannot wait until it is over")
        values = [run.arguments[place] for place in self.carried]
        starts = [run.arguments[place] for place in self.in_place]
        if not all(one.exists() for one in (*self.places, *self.counters) if isinstance(one, Place)):
            raise _Peel
        values += [place.get() for place in self.places]
        first, steps = run.step, run.items.count - run.step
        numbers = []
        for one, by in self.counters.items():
            number = one.get() if isinstance(one, Place) else run.arguments[one]
            if type(number) is not int:
                raise Refused(f"`{_named(one)}` is no longer a number")
            numbers.append(number - by * first)
        lists = [one.get() for one in self.grown] + [run.arguments[place] for place in self.lists]
        with self._settings(), _unwatched() if _listeners else contextlib.nullcontext():
            results, kept = self._traced(2 + OFFSET, self.owners, values, numbers, run.items.values, run.arguments)
        for to, items in zip(lists, kept):
            _extend(to, items, steps)
        if loop.after is not None:
            told: List[Any] = []
            _extend(told, kept[-1], steps)
            loop.after(*run.arguments, told)
        run.results = results
        run.carry()
        for start, place in zip(starts, self.in_place):
            start.copy_(run.arguments[place])
            run.arguments[place] = start
        return tuple(
            run.arguments[place] if place in self.in_place else value for value, place in zip(results, loop.carries)
        )

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        with torch._dynamo.config.patch(recompile_limit=64):
            yield

    def _capture(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        loop = self.loop
        loop.traces += 1
        body = Body(module)
        guards = Guards(body)
        if is_steady(module):
            made = Distribution(body)
            if not made.neurons:
                raise Refused("no neuron's steps become one operator")
            self._steady.append(_Steady(body, guards))
            loop.neurons = [str(node) for node in made.neurons]
            loop.alone = [str(node) for node in made.alone]
            loop.code = made.module.code
            return self._runner(made, guards)
        return self._runner(None, guards, body)

    def _runner(self, made: Optional[Distribution], guards: Guards, first: Optional[Body] = None) -> Callable[..., Any]:
        now = self.loop._now
        known = [made]

        def run(*inputs: Any) -> Any:
            if known[0] is None and first is not None:
                known[0] = self._of_first(first)
            if known[0] is None or not guards.hold(inputs, now.first, now.steps):
                raise _Peel
            now.began = known[0]
            if known[0].draws:
                now.random = torch.get_rng_state()
            return known[0].module.forward(*inputs, now.steps, now.first + OFFSET)

        return run

    def _of_first(self, first: Body) -> Optional[Distribution]:
        """The graph of all steps for values before the first step that have another form than those after it."""
        for steady in self._steady:
            with contextlib.suppress(Refused):
                return Distribution(steady.body, distribute.compared(steady.body, first))
        return None


def is_steady(module: torch.fx.GraphModule) -> bool:
    """Return True if a step hands on values of the form that it takes."""
    forms: Dict[Any, Dict[int, Any]] = {distribute.carried: {}, distribute.result: {}}
    for node in module.graph.nodes:
        if node.target in forms:
            forms[node.target][node.args[1]] = nodes.key_of(nodes.value_of(node))
    before, after = forms.values()
    return all(before.get(number) == form for number, form in after.items())


def _may_wait(shown_to: Any, arguments: Sequence[Any]) -> bool:
    """Return True if what a loop shows may come behind it."""
    try:
        return shown.may_wait(*shown_to(*arguments))
    except Exception:
        return False  # the program's own error comes at its line


def _extend(to: List[Any], items: Sequence[Any], steps: int) -> None:
    """Append what the steps appended, step after step."""
    parts = [_of_steps(one, steps) for one in items]
    to.extend(itertools.chain.from_iterable(zip(*parts)))


def _of_steps(value: Any, steps: int) -> Sequence[Any]:
    if isinstance(value, torch.Tensor):
        return Steps.apply(value)  # type: ignore[no-any-return]
    if isinstance(value, (tuple, list)):
        return [type(value)(same) for same in zip(*(_of_steps(one, steps) for one in value))]
    return [value] * steps


class Steps(torch.autograd.Function):
    """The steps of a sequence as tensors that the program may change in place, each in memory of its own."""

    @staticmethod
    def forward(ctx: Any, sequence: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        copy = sequence.clone(memory_format=torch.contiguous_format)
        size, stride = copy.shape[1:], copy.stride()[1:]
        storage, by = copy.untyped_storage(), copy.stride(0)
        return tuple([copy.new_empty(0).set_(storage, step * by, size, stride) for step in range(copy.shape[0])])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        first = next(one for one in grads if one is not None)
        return torch.stack([torch.zeros_like(first) if one is None else one for one in grads])


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _named(place: Any) -> str:
    return str(place.key) if isinstance(place, Place) else f"variable {place}"
