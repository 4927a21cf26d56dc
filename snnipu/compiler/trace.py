"""Trace of a loop's body by ``torch.compile``, and runs of the graph of all steps."""

import contextlib
import itertools
import random
import re
import threading
from collections import Counter
from typing import AbstractSet, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from snnipu.compiler import deferred_output, nodes
from snnipu.compiler.body import Body, First
from snnipu.compiler.calls import uncounted
from snnipu.compiler.distribute import Distribution
from snnipu.compiler.first import matched
from snnipu.compiler.guards import Guards
from snnipu.compiler.helpers import sizes_of, storage
from snnipu.compiler.marks import CLOCK, MARKS, OFFSET, Peel, Refused, Relook, carried, changed_input, collected, result
from snnipu.compiler.objects import LAST_STEP, Missing, Objects, Place, find
from snnipu.compiler.private import dynamo
from snnipu.compiler.report import why_alone
from snnipu.compiler.steps import is_step

# The prefix of names that are added to the program's global variables.
_NAME = "__snnipu_of_"
_KNOWN = ("marked", "Recorder", *(mark.__name__ for mark in MARKS))
# The largest number of tensors in a carried variable.
_LEAVES = 256
# The largest number of graphs of a body.
_GRAPHS = 64
# After this number of errors in graphs a loop is not compiled.
_FAILURES = 3
# Traces up to which PyTorch's limit of recompilations, 8, suffices.
_FEW = 6


class Recorder:
    """Replaces a list during the trace. It can only be appended to."""

    def __init__(self) -> None:
        self.items: List[Any] = []

    def append(self, value: Any) -> None:
        self.items.append(value)

    def __bool__(self) -> bool:
        raise TypeError("a list is read in the loop that appends to it")

    __eq__ = __bool__  # type: ignore[assignment]

    def extend(self, values: Any) -> None:
        self.items.extend(values)

    def __iadd__(self, values: Any) -> "Recorder":
        self.items.extend(values)
        return self


_numbers = itertools.count(1)
_OF_NUMBERS = {int: torch.int64, float: torch.float64, bool: torch.bool}


_Ellipsis = type(Ellipsis)  # an identity test would make the numbers of a slice constants


class Number:
    """A number among the results of a graph, as a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def plain(value: Any) -> Any:
    """Return results of a graph with numbers in place of :class:`Number`."""
    if type(value) is Number:
        return value.tensor.item()
    if isinstance(value, (tuple, list)):
        return type(value)([plain(one) for one in value])
    return {key: plain(one) for key, one in value.items()} if type(value) is dict else value


class Item:
    """An item that can be set and is no view of a tensor."""

    def __init__(self, value: Any, index: Any) -> None:
        self.value, self.index = value, index

    def __getitem__(self, _: Any) -> Any:
        return self.value[self.index]

    def __setitem__(self, _: Any, new: Any) -> None:
        self.value[self.index] = new


def at(value: Any, index: Any, is_set: bool = False) -> Any:
    """Return ``value[index]``; for a tensor by ``select`` and ``narrow``, which keep numbers symbolic."""
    parts = index if isinstance(index, tuple) else (index,)
    cut = [place for place, one in enumerate(parts) if isinstance(one, _Ellipsis)]
    is_view = not any(isinstance(one, bool) or not isinstance(one, (int, slice, _Ellipsis)) for one in parts)
    if not isinstance(value, torch.Tensor) or not is_view or len(cut) > 1:
        return Item(value, index) if is_set else value[index]
    front, back = (parts[: cut[0]], parts[cut[0] + 1 :]) if cut else (parts, ())
    part = value
    for place, one in enumerate(back):
        part = _part(part, place - len(back), one)
    for dim in range(len(front) - 1, -1, -1):
        part = _part(part, dim, front[dim])
    return part


def _part(value: torch.Tensor, dim: int, one: Any) -> torch.Tensor:
    """Index a dimension of a tensor by a number or a slice."""
    if isinstance(one, int):
        return torch.select(value, dim, one)
    if one.start is None and one.stop is None and one.step is None:
        return value
    # A comparison of slices would make their numbers constants.
    if isinstance(one.start, int) and isinstance(one.stop, int) and one.step is None and one.start >= 0:
        return torch.narrow(value, dim, one.start, one.stop - one.start)
    return value[(slice(None),) * (dim % value.dim()) + (one,)]


def marked(value: Any, mark: Callable[[torch.Tensor, int], torch.Tensor], first: int, count: List[int]) -> Any:
    """Return a value with its tensors marked and numbered from ``first`` on; ``count`` gets an item for each leaf.

    Raises:
        TypeError: a tuple, list or dictionary of another class, which a graph cannot return.
    """
    if type(value) is tuple or type(value) is list:
        items = [marked(one, mark, first, count) for one in value]
        return items if type(value) is list else tuple(items)
    if type(value) is dict:
        return {key: marked(one, mark, first, count) for key, one in value.items()}
    if isinstance(value, (tuple, list, dict)) and not isinstance(value, torch.Size):
        raise TypeError("a tuple, list or dictionary of another class")
    count.append(0)
    if mark is not carried and type(value) in _OF_NUMBERS:
        return Number(mark(torch.scalar_tensor(value, dtype=_OF_NUMBERS[type(value)]), first + len(count)))
    return mark(value, first + len(count)) if isinstance(value, torch.Tensor) else value


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors_of(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_of(one)


class Spec(NamedTuple):
    """The values that a step passes to the next one.

    Attributes:
        text: the item, as an expression of the step's number.
        variables: positions of variables among the body's arguments.
        places: attributes and items.
        numbers: variables and places that are numbers without a constant increment.
        counters: variables and places that are numbers with a constant increment.
        grown: lists that grow; a list without a key is a variable.
        in_place: variables whose tensor a step changes in place.
        written: places that no step reads.
        body: the function of a step, from which places are found.
    """

    text: str
    variables: Tuple[int, ...]
    places: Tuple[Place, ...]
    numbers: Tuple[Any, ...]
    counters: Tuple[Tuple[Any, int], ...]
    grown: Tuple[Place, ...]
    in_place: Tuple[int, ...]
    written: Tuple[Place, ...]
    body: Any

    def owners(self, places: Sequence[Place], arguments: Sequence[Any]) -> List[Any]:
        """Return the objects of places.

        Raises:
            Relook: an object does not exist.
        """
        try:
            return [find(place.path, [*arguments, self.body]) for place in places]
        except (LookupError, AttributeError, TypeError, ValueError):
            raise Relook from None

    def grown_variables(self) -> List[int]:
        """Return the positions of variables that are lists that grow."""
        return [place.path[0] for place in self.grown if place.key is None]

    def recounted(self, number: int) -> "Spec":
        """Return a copy in which a counter is one of the numbers."""
        place = self.counters[number][0]
        name = "places" if isinstance(place, Place) else "variables"
        more: Any = {name: tuple(sorted((*getattr(self, name), place), key=repr if name == "places" else None))}
        numbers = tuple(sorted((*self.numbers, place), key=repr))
        return self._replace(counters=tuple(one for one in self.counters if one[0] != place), numbers=numbers, **more)

    def lists(self, arguments: Sequence[Any]) -> List[Any]:
        """Return the lists that grow."""
        owners = self.owners(self.grown, arguments)
        return [owner if place.key is None else place.get(owner) for place, owner in zip(self.grown, owners)]


class _BodyGraph:
    """A graph of a body; it is wrong if its first run set other attributes or items than a step sets."""

    is_wrong = False


class _Now(threading.local):
    """The current run of this thread: first step, number of steps, and the graph that has started."""

    first = 0
    steps = 0
    numbers: Sequence[int] = ()  # the values of the counters
    began: Optional[Distribution] = None
    random: Any = None
    look: Any = None
    graph: Any = None
    before: Optional[Objects] = None  # the snapshot before the first run of a graph
    cloned: AbstractSet[int] = frozenset()  # the storages of variables that a step changes in place, which are copied
    stacked: AbstractSet[int] = frozenset()  # the storages of items of a list, of which the graph gets one tensor
    saved: Sequence[Tuple[torch.Tensor, torch.Tensor]] = ()  # the tensors that this run changes in place, and copies


class Traced:
    """The traced body of a loop.

    Attributes:
        distribution: the newest graph of all steps.
        first_in_python: True if the first step runs in Python.
        peeled: why the first step runs in Python.
        failures: the number of errors in graphs.
        traces: the number of traces.
    """

    def __init__(self, loop: Any, spec: Spec, count: int) -> None:
        self.loop, self.spec = loop, spec
        self.distribution: Optional[Distribution] = None
        self.peeled = ""
        self.first_in_python = False
        self.failures = 0
        self.traces = 0
        self._steady: List[Body] = []
        self._learnt: Set[int] = set()  # the marks of values that require gradients from the second step on
        self._now = _Now()
        self._same: List[int] = []  # for each object of a run, the first place of the same object
        numbered = [place for place, _ in spec.counters if isinstance(place, Place)]
        self._owned = [*spec.places, *numbered, *(one for one in spec.grown if one.key is not None), *spec.written]
        self.source = self._source_of_step(count)
        known: Dict[str, Any] = {"marked": marked, "Recorder": Recorder, "body": loop.traced}
        known.update({mark.__name__: mark for mark in MARKS})
        # The function uses the program's global variables: TorchDynamo finds other modules by their names.
        space, functions = loop.body.__globals__, {}  # type: ignore[var-annotated]
        space.update({f"{_NAME}{name}": value for name, value in known.items() if name != "body"})
        # The file name is new: PyTorch stores by file and line which sizes have changed.
        exec(compile(self.source, f"<step {next(_numbers)} of {loop.label}>", "exec"), space, functions)
        self._step = torch.compile(functions["step"], backend=self._capture, fullgraph=True)
        self._clock = torch.empty(2 + OFFSET, 0)
        dynamo().mark_dynamic(self._clock, 0)

    def _source_of_step(self, count: int) -> str:
        """Return the source of the traced function: a step with marked inputs and results."""
        spec, loop = self.spec, self.loop
        names = [f"a{place}" for place in range(count)]
        where = {place: place.text(f"C[{number}]") for number, place in enumerate(self._owned)}
        lines = [f"def step({CLOCK}, C, V, N, I, A, body):", f" t = clock({CLOCK}).shape[0] - {OFFSET}"]
        lines += [f" {name} = A[{place}]" for place, name in enumerate(names)]
        values = [*(names[place] for place in spec.variables), *(where[place] for place in spec.places)]
        are_numbers = [place in spec.numbers for place in (*spec.variables, *spec.places)]
        for number, text in enumerate(values):
            item = ".item()" if are_numbers[number] else ""
            lines.append(f" {text} = marked(V[{number}], carried, {number * _LEAVES}, []){item}")
        lines += [f" {where[place]} = None" for place in spec.written]
        for number, (place, by) in enumerate(spec.counters):
            text = where[place] if isinstance(place, Place) else names[place]
            lines.append(f" {text} = N[{number}]" + (f" + {by} * t" if by else ""))
        lists = [names[one.path[0]] if one.key is None else where[one] for one in spec.grown]
        lines += [f" {text} = Recorder()" for text in lists]
        parameters = [spec.text, *names]
        if loop.after is not None:
            lines.append(" shown = Recorder()")
            parameters.append("shown")
        results = [f"r{number}" for number in range(len(loop.carries))]
        lines.append(f" {''.join(f'{one}, ' for one in results) or 'none'} = body({', '.join(parameters)})")
        of = {place: results[number] for number, place in enumerate(loop.carries) if place >= 0}
        lines += [f" {of[place]} = None" for place in spec.grown_variables() if place in of]
        values = [*(of[place] for place in spec.variables), *(where[place] for place in spec.places)]
        lines += [f" c{n} = marked({text}, result, {n * _LEAVES}, [])" for n, text in enumerate(values)]
        lines += [f" {text} = c{n}" for n, text in enumerate(values)]
        lines += [f" {where[place]} = marked({where[place]}, kept, 0, [])" for place in spec.written]
        counted = [place for place, _ in spec.counters]
        others = [one for one, place in zip(results, loop.carries) if place not in (*spec.variables, *counted)]
        counters = [where[place] if isinstance(place, Place) else of[place] for place in counted]
        lines += [f" m{n} = marked({text}, counted, {n}, [])" for n, text in enumerate(counters)]
        lines += [f" {one} = marked({one}, kept, 0, [])" for one in others]
        records = [*lists, *(["shown"] if loop.after is not None else [])]
        lines += [f" k{n} = marked({text}.items, collected, 0, [])" for n, text in enumerate(records)]
        lines += [f" {where[one]} = None" for one in spec.grown if one.key is not None]
        record_names = "".join(f"k{number}, " for number in range(len(records)))
        ends = "".join(f"m{number}, " for number in range(len(counters)))
        lines.append(f" return ({''.join(f'{one}, ' for one in results)}), ({record_names}), ({ends})")
        return re.sub(rf"(?<!\.)\b({'|'.join(_KNOWN)})\b(?=[(,])", rf"{_NAME}\1", "\n".join(lines))

    def run(self, run: Any, look: Callable[[], Objects]) -> Tuple[Any, ...]:
        """Run the remaining steps, and return the results of the last one."""
        spec, loop, now = self.spec, self.loop, self._now
        now.began = now.before = None
        if run.items.text != spec.text:
            raise Relook
        if loop.shown_to is not None and not _may_wait(loop, run.arguments):
            raise Refused("its prints and logs cannot wait until after the loop")
        run.refuse_aliases(spec)
        first, steps = run.step, run.items.count - run.step
        arguments = list(run.arguments)
        owners = spec.owners(self._owned, arguments)
        # A kernel may save an initial value, which the program's tensor is no longer once it has its last value.
        values = [arguments[at].clone() if at in spec.in_place else arguments[at] for at in spec.variables]
        values += [place.get(owner) for place, owner in zip(spec.places, owners)]
        if any(one is Missing or (type(one) is torch.Tensor and vars(one)) for one in values):
            # The first step sets an attribute; if it has not, the arguments are another network's. A tensor's own
            # attributes would be lost.
            raise Relook if run.step else Peel
        for number, place in enumerate((*spec.variables, *spec.places)):
            if place in spec.numbers:
                if type(values[number]) not in _OF_NUMBERS:
                    raise Relook
                values[number] = torch.tensor(values[number], dtype=_OF_NUMBERS[type(values[number])])
        if torch.is_grad_enabled() and not loop.reads_gradients:
            values = [
                _with_gradient(value, number * _LEAVES + 1 in self._learnt) for number, value in enumerate(values)
            ]
        numbers = []
        for place, by in spec.counters:
            number = place.get(owners[self._owned.index(place)]) if isinstance(place, Place) else arguments[place]
            if type(number) is not int and (by or type(number) is not bool):
                raise Peel if number is Missing and not run.step else Relook
            numbers.append(number - by * first if by else number)
        lists = spec.lists(arguments)
        if not all(type(one) is list for one in lists):
            raise Relook
        objects = [*owners, *lists, *(one for at, one in enumerate(arguments) if at not in spec.variables)]
        ids = [place if _is_value(one) else -id(one) for place, one in enumerate(objects)]
        places: Dict[int, int] = {}
        same = [places.setdefault(one, place) for place, one in enumerate(ids)]
        if self._same not in ([], same):
            raise Relook  # two objects were one, or the other way round
        self._same = same
        now.first, now.steps, now.look, now.numbers = first, steps, look, numbers
        now.cloned = {storage(arguments[at]) for at in spec.in_place} - {0}  # 0: no memory
        items = run.items.tensors()
        stacked = [(*value, one) for value, one in zip(run.items.values, items) if one is not value]
        now.stacked = set(map(storage, itertools.chain.from_iterable(stacked))) - {0}
        state = torch.get_rng_state()
        # Settings of PyTorch take long to change.
        few = self.traces < _FEW and self.traces and not self.spec.numbers
        settings = {"recompile_limit": _GRAPHS, "capture_scalar_outputs": True}
        more = contextlib.nullcontext() if few else dynamo().config.patch(settings)
        with more, uncounted():
            try:
                results, records, ends = self._step(
                    self._clock, owners, _distinct(values), numbers, items, arguments, loop.traced
                )
            finally:
                for place, to in zip(spec.grown, lists):
                    if place.key is not None:
                        place.set(owners[self._owned.index(place)], to)
        for place in spec.numbers:
            if isinstance(place, Place):
                place.set(owners[self._owned.index(place)], plain(place.get(owners[self._owned.index(place)])))
        results = plain(results)
        expected = [number + by * (first + steps) for number, (_, by) in zip(numbers, spec.counters)]
        if now.before is not None:
            known = {*spec.variables, *spec.in_place, *spec.grown_variables(), *(place for place, _ in spec.counters)}
            others = [(one, arguments[at]) for one, at in zip(results, loop.carries) if at >= 0 and at not in known]
            is_same = plain(ends) == tuple(expected) and random.getstate() == run.random_state
            is_same = is_same and all(_is_same(one, other) for one, other in others)
            self._check(now.before, look(), state, is_same)
        for place, to, items in zip(spec.grown, lists, records):
            is_record = place.key is None and place.path[0] in loop.records
            if is_record and len(items) == 1 and isinstance(items[0], torch.Tensor):
                to.append(Record(items[0]))
            else:
                _extend(to, items, steps)
        if loop.after is not None:
            shown: List[Any] = []
            _extend(shown, records[-1], steps)
            loop.after(*run.arguments, shown)
        starts = [arguments[place] for place in spec.in_place]
        grown = spec.grown_variables()
        run.results = tuple([arguments[at] if at in grown else one for one, at in zip(results, loop.carries)])
        run.carry()
        for start, place in zip(starts, spec.in_place):
            start.copy_(run.arguments[place])
            run.arguments[place] = start
        return tuple([run.arguments[place] if place >= 0 else value for value, place in zip(results, loop.carries)])

    def _check(self, before: Objects, after: Objects, state: torch.Tensor, is_same: bool) -> None:
        """Undo the first run of a graph if it has changed other values than the observed steps."""
        known = {*self.spec.places, *self.spec.written, *(place for place, _ in self.spec.counters)}
        try:
            changes = before.changes(after)
            # A custom neuron that runs in Python does not record its last step.
            if is_same and not changes.grown and all(one.key == LAST_STEP for one in changes.places - known):
                return
        except Refused:
            pass
        before.undo(after)
        torch.set_rng_state(state)
        with torch.no_grad():
            for tensor, value in self._now.saved:
                tensor.copy_(value)
        self._now.graph.is_wrong = True
        raise Relook

    def has_begun(self, error: BaseException) -> bool:
        """Return True if an error occurred in a graph without side effects.

        Raises:
            BaseException: the error itself, if the graph has side effects.
        """
        now = self._now
        if now.began is None:
            return False
        if now.began.has_effects:
            raise error
        if now.began.draws:
            torch.set_rng_state(now.random)
        self.failures += 1
        if self.failures >= _FAILURES:
            self.loop.refuse(f"its graph fails: {type(error).__name__}: {error}")
        return True

    def _capture(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.traces += 1
        _refuse_unmarked(module)
        _refuse_shared(module)
        body = Body(module)
        guards = Guards(body)
        guards.prove(module, self.spec.counters)
        self._now.before = self._now.look()
        if not _is_steady(module, self._now.before.has_functions()):
            return self._runner(None, guards, body)
        distribution = _distribute(body)
        if not distribution.neurons:
            steps = [node for node in distribution.cycles if is_step(node)]
            note = why_alone(steps[0], distribution) if steps else None
            raise Refused("no neuron's steps become one operator", note)
        self._steady.append(body)
        self._learnt |= {number for number, mark in body.before.items() if nodes.value_of(mark).requires_grad}
        self.distribution = distribution
        return self._runner(distribution, guards)

    def _runner(
        self, distribution: Optional[Distribution], guards: Guards, first: Optional[Body] = None
    ) -> Callable[..., Any]:
        now, known = self._now, [distribution]
        graph = _BodyGraph()

        def run(*inputs: Any) -> Any:
            now.graph = graph
            if graph.is_wrong:
                raise Relook
            if known[0] is None and first is not None:
                known[0] = self._distribute_first(first)
            newest = known[0]
            if newest is None:
                raise Peel
            if not guards.hold(inputs, now.first, now.steps, now.numbers):
                self.peeled = "its steps depend on their number"
                raise Peel
            changed = [inputs[place] for place in newest.changed_inputs]
            read = [storage(one) for one in inputs if isinstance(one, torch.Tensor)] if now.cloned else []
            if not (now.cloned.isdisjoint(read) and now.stacked.isdisjoint(map(storage, changed))):
                raise Refused("it changes a tensor in place that is also another input")
            newest.check(inputs)
            now.saved = [] if now.before is None else [(one, one.detach().clone()) for one in changed]
            now.began = newest
            if newest.draws:
                now.random = torch.get_rng_state()
            return newest.module.forward(*inputs, now.steps, now.first + OFFSET)

        return run

    def _distribute_first(self, first: Body) -> Optional[Distribution]:
        """Return the graph of all steps for initial values with another shape or type, or None."""
        for steady in self._steady:
            try:
                return _distribute(steady, matched(steady, first))
            except Refused as refused:
                self.peeled = str(refused)
        return None


def _distribute(body: Body, first: Optional[First] = None) -> Distribution:
    try:
        return Distribution(body, first)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"its graph cannot be built: {type(error).__name__}: {error}") from error


def _refuse_unmarked(module: torch.fx.GraphModule) -> None:
    """Refuse a graph with unmarked results: the body sets an attribute that the observed steps did not set.

    Raises:
        Refused: an ``assert`` reads a tensor; an operation over all steps would raise its error too late.
        Relook: a result has no mark.
    """
    if any("_assert" in nodes.name_of(node) for node in module.graph.nodes):
        raise Refused("it asserts a condition on a tensor")
    output = next(iter(reversed(module.graph.nodes)))
    for node in nodes.leaves_of(output.args[0]):
        if node.target not in MARKS and nodes.is_tensor(node) and changed_input(node) is None:
            raise Relook


def _refuse_shared(module: torch.fx.GraphModule) -> None:
    """Refuse a variable that a step changes in place if a list, an input or another variable holds its tensor."""
    memory = nodes.Memory(module.graph)
    changed = memory.changed_roots()
    before = {node.args[1] for node in module.graph.nodes if node.target is carried and memory.root(node) in changed}
    holders = [node for node in module.graph.nodes if node.op == "placeholder" or node.target in (result, collected)]
    shared = Counter(memory.root(node) for node in holders if node in memory)
    if any(node.target is result and node.args[1] in before and shared[memory.root(node)] > 1 for node in holders):
        raise Refused("it changes a tensor in place that a list or another variable also holds")


def _with_gradient(value: Any, learns: bool) -> Any:
    """Return an initial value that requires a gradient if it ``learns``, as the values of later steps do.

    One graph then holds for the first step, too. Its gradient is not used.
    """
    if not learns or type(value) is not torch.Tensor or value.requires_grad or not value.is_floating_point():
        return value
    return value.detach().requires_grad_().view_as(value)


def _is_value(one: Any) -> bool:
    return one is None or isinstance(one, (torch.Tensor, int, float, str))


def _is_same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except (RuntimeError, ValueError):  # tensors or arrays, which are compared elementwise
        return False


def _distinct(values: List[Any]) -> List[Any]:
    """Return the values without repeated tensors: a graph for repeated tensors would be valid for those only."""
    seen: Set[int] = set()
    for place, value in enumerate(values):
        if isinstance(value, torch.Tensor) and id(value) in seen:
            values[place] = value.view_as(value)
        seen.add(id(value))
    return values


def _is_steady(module: torch.fx.GraphModule, has_functions: bool) -> bool:
    """Return True if results have shape, dtype and device of the values that they replace.

    Sizes are compared by their values in this call: operations do not always unify symbolic sizes. With autograd
    functions of the program, results have to require gradients if these values do. TorchDynamo traces a function
    without its backward pass if no input requires gradients, as for the zeros of a first step.
    """
    before: Dict[int, Any] = {}
    for node in module.graph.nodes:
        if node.target is carried:
            before[node.args[1]] = node
    for node in module.graph.nodes:
        if node.target is result:
            value, replaced = nodes.value_of(node), before.get(node.args[1])
            if replaced is None:
                return False
            if _traced_form(nodes.value_of(replaced)) != _traced_form(value):
                return False
            if has_functions and nodes.value_of(replaced).requires_grad != value.requires_grad:
                return False
    return True


def _traced_form(value: Any) -> Any:
    """Return shape, dtype and device of a tensor in the traced call."""
    return sizes_of(value), value.dtype, value.device


class Record:
    """The items that a compiled loop appended to a list that only ``torch.stack`` reads."""

    def __init__(self, sequence: torch.Tensor) -> None:
        self.sequence = sequence


def stack(function: Any, items: Any, dim: int = 0, **named: Any) -> Any:
    """Return ``torch.stack`` of a list that may contain records."""
    if type(items) is not list or not any(type(one) is Record for one in items):
        return function(items, dim, **named)
    parts = [one.sequence if type(one) is Record else one.unsqueeze(0) for one in items]
    if function is not torch.stack or named:
        return function([step for part in parts for step in part.unbind()], dim, **named)
    stacked = parts[0].clone() if len(parts) == 1 else torch.cat(parts)
    return stacked if dim == 0 else stacked.movedim(0, dim).contiguous()


def _extend(to: List[Any], items: Sequence[Any], steps: int) -> None:
    """Append the items of all steps, in order."""
    parts = [_values_of_steps(one, steps) for one in items]
    to.extend(itertools.chain.from_iterable(zip(*parts)))


def _values_of_steps(value: Any, steps: int) -> Sequence[Any]:
    if isinstance(value, torch.Tensor):
        return Steps.apply(value)  # type: ignore[no-any-return]
    if type(value) is Number:
        return value.tensor.tolist()  # type: ignore[no-any-return]
    if isinstance(value, (tuple, list)):
        parts = [_values_of_steps(one, steps) for one in value]
        return [type(value)([part[step] for part in parts]) for step in range(steps)]
    if type(value) is dict:
        rows = {key: _values_of_steps(one, steps) for key, one in value.items()}
        return [{key: row[step] for key, row in rows.items()} for step in range(steps)]
    return [value] * steps


class Steps(torch.autograd.Function):
    """The steps of a sequence as separate tensors, which the program can change in place."""

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


def _may_wait(loop: Any, arguments: Sequence[Any]) -> bool:
    """Return True if the loop can print and log after its last step."""
    try:
        return deferred_output.may_wait(*loop.shown_to(*arguments))
    except Exception:
        return False  # the loop in Python raises the error at the program's line
