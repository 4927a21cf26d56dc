"""Loops over time in finished graphs.

TorchDynamo writes a loop of T steps as T copies of its body. The copies are found by comparing operations. They become
the graph of one step (:class:`snnipu.compiler.distribute.Body`), and that becomes the graph of all steps:

| the copies read | in the graph of one step |
| --- | --- |
| the same value | an input |
| a result of the same copy | that result |
| a result of the previous copy | a carried value |
| numbers that differ | an item of a list, by the clock |
| items of one tensor, or other values from before the loop | an item of a tensor, by the clock |

Operations before and after the copies stay as they are, and so do copies that cannot be proven equal.
"""

import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from snnipu.compiler import distribute, helpers, marks, nodes, own_functions
from snnipu.compiler.distribute import Body, Distribution
from snnipu.compiler.marks import Refused
from snnipu.compiler.prepare import shape_of, simplify, symbols
from snnipu.compiler.steps import is_step

# Loops with fewer steps stay as they are.
FEWEST = 3
# The number of periods that are tried.
_TRIES = 4
# Periods are distances of equal operations: this number of distances, to this number of the next ones.
_PERIODS, _EQUAL = 64, 4


class Rolled(NamedTuple):
    """A graph whose loops are graphs of all steps.

    Attributes:
        module: the graph.
        loops: its loops.
    """

    module: GraphModule
    loops: List[Distribution]


class _Mismatch(Exception):
    """A copy differs from those before it; the first copy: from those after it."""

    def __init__(self, copy: int) -> None:
        self.copy = copy


def rolled(module: GraphModule, whole: bool = False) -> Optional[Rolled]:
    """Return the graph with its loops as graphs of all steps, or None if no loop over time is found.

    Args:
        whole: another compiler compiles the graph. The numbers of surrogates are those of this call.
    """
    own_functions.find(module.graph)
    graph = Graph()
    copies: Dict[Any, Any] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    for old, new in copies.items():
        new.meta = dict(old.meta)
    own_functions.call_directly(graph)
    if whole:
        _fix_numbers(graph)
    simplify(graph)
    _use_changed_tensors(graph)
    loops = list(_Finder(graph, _merge_numbers(graph)).loops())
    if not loops:
        return None
    written = _Writer(graph, loops)
    attributes = {**distribute.attributes_of(module), **written.modules}
    return Rolled(GraphModule(attributes, written.graph), [loop.distribution for loop in loops])


def _fix_numbers(graph: Graph) -> None:
    """Make numbers of surrogates constants."""
    for node in graph.nodes:
        if is_step(node) or nodes.name_of(node) == "spike_of":
            node.args = map_arg(node.args, lambda one: _as_now(one))


def _as_now(node: Node) -> Any:
    value = nodes.value_of(node)
    return float(value) if isinstance(value, torch.SymFloat) else node


def _use_changed_tensors(graph: Graph) -> None:
    """Let operations read a tensor that was changed in place, instead of the result, which is the same tensor."""
    for node in graph.nodes:
        target: Any = node.args[0] if node.args else None
        changes = nodes.name_of(node) and nodes.changed_by(node) == [target] and not nodes.is_norm_in_training(node)
        if changes and nodes.is_tensor(node) and _form(nodes.value_of(node)) == _form(nodes.value_of(target)):
            node.replace_all_uses_with(target)


def _merge_numbers(graph: Graph) -> Set[Node]:
    """Compute each number of the inputs once, and return the nodes of these numbers. Unread numbers are erased."""
    for node in reversed(graph.nodes):
        if node.op.startswith("call") and isinstance(nodes.value_of(node), _NUMBERS) and not node.users:
            graph.erase_node(node)
    memory = nodes.Memory(graph)
    changed = {memory.root(one) for found in memory.changes.values() for one in found}
    known: Dict[Any, Node] = {}
    for node in list(graph.nodes):
        if not node.op.startswith("call") or not isinstance(nodes.value_of(node), _NUMBERS):
            continue
        others = [one for one in node.all_input_nodes if one not in known.values()]
        if all(one.op == "placeholder" and memory.root(one) not in changed for one in others):
            first = known.setdefault((node.target, node.args, *node.kwargs.items()), node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)
    return set(known.values())


# ---- values

# Values that are no tensors, but depend on their sizes and items.
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Size)


def _is_several(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and not isinstance(value, torch.Size)


def _is_part(node: Node) -> bool:
    """Return True if a node takes one result of a call with several results."""
    source = node.args[0] if node.args else None
    return nodes.name_of(node) == "getitem" and isinstance(source, Node) and _is_several(nodes.value_of(source))


class _Ref(NamedTuple):
    """A value: the call that computes it, and its place among the results."""

    call: Node
    path: Tuple[Any, ...]


def _ref(node: Node) -> _Ref:
    path: Tuple[Any, ...] = ()
    while _is_part(node):
        path, node = (node.args[1], *path), node.args[0]  # type: ignore[assignment]
    return _Ref(node, path)


def _form(value: Any) -> Any:
    """Return shape, dtype and device of tensors; of other values the type."""
    if _is_several(value):
        return tuple(map(_form, value))
    return nodes.key_of(value) if isinstance(value, torch.Tensor) else type(value).__name__


def _requires_grad(value: Any) -> bool:
    return any(map(_requires_grad, value)) if _is_several(value) else getattr(value, "requires_grad", False)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


# Classes of containers in arguments, their items, and how they are made.
_CONTAINERS: Tuple[Tuple[Any, Callable[[Any], Tuple[Any, ...]], Callable[[Any, List[Any]], Any]], ...] = (
    (slice, lambda one: (one.start, one.stop, one.step), lambda like, items: slice(*items)),
    (dict, lambda one: tuple(one.values()), lambda like, items: dict(zip(like, items))),
    (tuple, tuple, lambda like, items: tuple(items)),
    (list, tuple, lambda like, items: items),
)


def _mapped(values: Sequence[Any], of: Callable[[Sequence[Any]], Any]) -> Any:
    """Apply ``of`` to what stands in the same place of several values of one structure."""
    for kind, items, make in _CONTAINERS:
        if isinstance(values[0], kind):
            return make(values[0], [_mapped(same, of) for same in zip(*map(items, values))])
    return of(values)


def _token(node: Node, strict: bool) -> Any:
    """Return what equal calls of two copies have in common; if ``strict``, also which inputs they read."""

    def of(value: Any) -> Any:
        if isinstance(value, Node):
            same = strict and value.op in ("placeholder", "get_attr") and len(value.users) > 1
            return value if same else "value"
        for kind, items, _ in _CONTAINERS:
            if isinstance(value, kind):
                return (kind.__name__, *(value if kind is dict else ()), *map(of, items(value)))
        return "value" if value is None or _is_number(value) else (type(value).__name__, value)

    return node.op, node.target, of(node.args), of(node.kwargs), _form(nodes.value_of(node))


def _runs(values: Sequence[Any], of: Callable[[Node], Any]) -> List[Tuple[Any, List[Any]]]:
    """Return the parts of a list that are a result of all steps, by its key, and the other items, by None.

    Args:
        of: returns key, step and number of steps of a value; None: it is no result of a loop.
    """
    found: List[Tuple[Any, List[Any]]] = []
    place = 0
    while place < len(values):
        known = of(values[place]) if isinstance(values[place], Node) else None
        count = 1 if known is None else known[2]
        items = list(values[place : place + count])
        steps = [of(one) if isinstance(one, Node) else None for one in items]
        if known is None or steps != [(known[0], step, count) for step in range(count)]:
            known, items = None, items[:1]
        found.append((None if known is None else known[0], items))
        place += len(items)
    return found


def _listed(node: Node) -> Sequence[Any]:
    """Return the items of a list that a call stacks or concatenates; none: it is another call."""
    known = node.target in (torch.stack, torch.cat, torch.concat) and len(node.args) in (1, 2)
    fits = known and isinstance(node.args[0], (list, tuple)) and set(node.kwargs) <= {"dim"}
    return node.args[0] if fits else ()  # type: ignore[return-value]


def _is_multiple(one: Tuple[int, int, int], other: Tuple[int, int, int]) -> bool:
    """Return True if a stretch (begin, period, length) is in another one of a shorter period."""
    inside = other[0] <= one[0] and one[0] + one[2] <= other[0] + other[2]
    return inside and one[1] % other[1] == 0


# ---- the search


@dataclass
class _Result:
    """A result of the steps that is read after the loop.

    Attributes:
        readers: for each step, the nodes of the value.
        last, every: places among the outputs of the loop's graph: the value of the last step, the values of all.
    """

    readers: List[List[Node]]
    last: Optional[int] = None
    every: Optional[int] = None


@dataclass
class _Loop:
    """A loop.

    Attributes:
        calls: the calls of all steps.
        count: the number of steps.
        inputs: what writes each input of the loop's graph.
        results: values that are read after it.
    """

    calls: Sequence[Node]
    count: int
    inputs: List[Callable[["_Writer"], Any]] = field(default_factory=list)
    results: List[_Result] = field(default_factory=list)
    distribution: Any = None


class _Finder:
    """Finds the loops of a graph."""

    def __init__(self, graph: Graph, numbers: Set[Node]) -> None:
        """
        Args:
            numbers: calls that are computed before the loops.
        """
        called = [node for node in graph.nodes if node.op.startswith("call") and node not in numbers]
        self.calls = [node for node in called if not _is_part(node)]
        self.memory = nodes.Memory(graph)
        self.sizes = symbols(graph)
        known: Dict[Any, int] = {}
        self.strict, self.loose = (
            [known.setdefault(_token(node, strict), len(known)) for node in self.calls] for strict in (True, False)
        )

    def loops(self, start: int = 0, stop: Optional[int] = None) -> Iterator[_Loop]:
        """Find the loops among the calls from ``start`` to ``stop``, in order."""
        end = len(self.calls) if stop is None else stop
        # Steps that read different inputs, as every second one another layer, are the second choice.
        for first, size, length in (*self._periods(self.strict, start, end), *self._periods(self.loose, start, end)):
            for begin in dict.fromkeys((first + length % size, first)):
                found = self._loop(begin, size, length // size, start)
                if found is not None:
                    (begin, loop) = found
                    yield from self.loops(start, begin)
                    yield loop
                    yield from self.loops(begin + len(loop.calls), end)
                    return

    @staticmethod
    def _periods(tokens: Sequence[int], start: int, stop: int) -> List[Tuple[int, int, int]]:
        """Return stretches of calls that repeat, the longest first: begin, period, length."""
        places: Dict[int, List[int]] = {}
        for place in range(start, stop):
            places.setdefault(tokens[place], []).append(place)
        distances: Counter[int] = Counter()
        for same in places.values():
            for by in range(1, min(_EQUAL, len(same) - 1) + 1):
                distances.update(b - a for a, b in zip(same, same[by:]))
        found: List[Tuple[int, int, int]] = []
        for size in sorted(size for size, _ in distances.most_common(_PERIODS)):
            begin = start
            for place in range(start, stop - size + 1):
                if place + size < stop and tokens[place] == tokens[place + size]:
                    continue
                one = (begin, size, place - begin + size)
                if place - begin >= size and not any(_is_multiple(one, other) for other in found):
                    found.append(one)
                begin = place + 1
        return sorted(found, key=lambda one: (-one[2], one[1]))[:_TRIES]

    def _loop(self, begin: int, size: int, count: int, start: int) -> Optional[Tuple[int, _Loop]]:
        """Return a loop and the place of its first call, or None if the copies are no loop over time."""
        first = begin - size
        if first >= start and self.loose[first:begin] == self.loose[begin : begin + size]:
            begin, count = first, count + 1
        while count >= FEWEST:
            try:
                return begin, _Copies(self, self.calls[begin : begin + count * size], count).loop
            except _Mismatch as mismatch:
                left_out = max(mismatch.copy, 1) if mismatch.copy < FEWEST else 0
                begin, count = begin + left_out * size, count - left_out if left_out else mismatch.copy
            except (Refused, LookupError, ValueError, RuntimeError):
                return None
        return None


class _Copies:
    """Copies of a step that become a loop."""

    def __init__(self, finder: _Finder, calls: Sequence[Node], count: int) -> None:
        """
        Raises:
            _Mismatch: a copy differs from the others.
            Refused: they cannot become a loop.
        """
        self.finder, self.count, self.size = finder, count, len(calls) // count
        self.loop = _Loop(calls, count)
        self.place = {node: divmod(place, self.size) for place, node in enumerate(calls)}
        self.graph = Graph()
        self.clock = self.last_input = self.graph.placeholder(marks.CLOCK)
        self.clock.meta["example_value"] = marks.OFFSET
        self.made: List[Node] = []
        self.parts: Dict[Any, Node] = {}
        self.known: Dict[Any, Node] = {}
        self.carried: Dict[Any, Node] = {}
        self.varying: Set[Node] = set()  # nodes that are not the same for all copies
        for node in finder.sizes.values():
            self._input(node)
        steps = [calls[place : place + self.size] for place in range(0, len(calls), self.size)]
        for same in zip(*steps):
            self._write(same)
        if not self.carried and not any(map(is_step, self.made)):
            raise Refused("no neuron's steps become one operator")
        outputs = [self._mark(marks.result, self._own(*key[:2]), n) for n, key in enumerate(self.carried)]
        outputs += self._write_results(len(outputs))
        self._check_memory()
        self.graph.output(tuple(outputs))
        body = Body(GraphModule({}, self.graph), [self.clock])
        self.loop.distribution = Distribution(body)
        if not self.loop.distribution.neurons:
            raise Refused("no neuron's steps become one operator")

    # ---- a step

    def _input(self, node: Any, value: Any = None, write: Any = None, name: str = "") -> Node:
        """Return the input of the step for a value from before the loop.

        Args:
            value: what is known of it; None: what is known of the node.
            write: what writes it; None: it is the node's value.
        """
        key = node if write is None else (name, node, value)
        if key not in self.known:
            with self.graph.inserting_after(self.last_input):
                made = self.graph.placeholder(f"{name or node.name}_{len(self.known)}")
            made.meta["example_value"] = nodes.value_of(node) if value is None else value
            self.known[key] = self.last_input = made
            self.loop.inputs.append(write or (lambda writer: writer.value(node)))
        return self.known[key]

    def _call(self, target: Any, args: Tuple[Any, ...], value: Any) -> Node:
        made = self.graph.call_function(target, args)
        made.meta["example_value"] = value
        return made

    def _write(self, same: Sequence[Node]) -> None:
        """Write a call of the step."""
        node = same[-1]
        if node.op == "call_module":
            raise Refused("it calls a module")  # pragma: no cover
        args = _mapped([one.args for one in same], lambda values: self._argument(values, node))
        kwargs = _mapped([one.kwargs for one in same], lambda values: self._argument(values, node))
        made = self.graph.create_node(node.op, node.target, args, kwargs, node.name)
        made.meta = dict(node.meta)
        self.made.append(made)

    def _kind(self, value: Any, copy: int) -> Tuple[Any, ...]:
        """Return where a copy has a value from; of a result, how many copies earlier it was computed."""
        if not isinstance(value, Node):
            return ("number",) if _is_number(value) else ("constant", type(value), value)
        call, path = _ref(value)
        if call not in self.place:
            return ("outside",)
        other, place = self.place[call]
        return copy - other, place, path

    def _argument(self, values: Sequence[Any], reader: Node) -> Any:
        """Return an argument of the step, of those of the copies."""
        first, *kinds = [self._kind(value, copy) for copy, value in enumerate(values)]
        kind = kinds[0]
        for copy, other in enumerate(kinds):
            if other != kind:
                raise _Mismatch(copy + 1)
        if kind[0] == 1:
            if first[0] not in ("outside", "number") and values[0] is not None:
                raise _Mismatch(0)
            return self._carry(kind, values, reader)
        if first != kind:
            raise _Mismatch(0)
        if kind == ("number",):
            return self._numbers(values)
        if kind == ("outside",):
            return self._outside(values, reader)
        if kind[0] == "constant":
            return values[0]
        return self._own(*kind[1:])

    def _numbers(self, values: Sequence[Any]) -> Any:
        """Return a number, or an item of the list of all steps' numbers."""
        if all(type(one) is type(values[0]) and one == values[0] for one in values):
            return values[0]
        return self._call(operator.getitem, (tuple(values), self.clock), values[-1])

    def _outside(self, values: Sequence[Node], reader: Node) -> Node:
        """Return an argument whose values are from before the loop."""
        if all(one is values[0] for one in values):
            return self._input(values[0])
        self.varying.update(values)
        value, name, (call, path) = nodes.value_of(values[-1]), nodes.name_of(values[0]), _ref(values[0])
        refs = [_ref(one) for one in values]
        if nodes.name_of(call) == "unbind" and len(path) == 1 and all(ref.call is call for ref in refs):
            dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else 0)
            self.varying.add(call.args[0])  # type: ignore[arg-type]
            index = self._numbers([ref.path[0] for ref in refs])
            return self._call(torch.select, (self._input(call.args[0]), dim, index), value)
        alike = len({(one.op, one.target, one.args[:1]) for one in values}) == 1 and name in ("getitem", "select")
        if alike and not path and nodes.is_tensor(values[0].args[0]):
            self.varying.add(values[0].args[0])  # type: ignore[arg-type]
            args = _mapped([one.args for one in values], lambda given: self._argument(given, reader))
            return self._call(values[0].target, args, value)
        if not isinstance(value, torch.Tensor) or len({_form(nodes.value_of(one)) for one in values}) > 1:
            raise Refused("its steps read different values")
        # The gradient of a stack's unread parts is zero; that of values that nothing reads is None.
        if len({self._learns(one, values) for one in set(values) if nodes.value_of(one).requires_grad}) > 1:
            raise Refused("it learns values that only some of its steps read")
        given = list(values)
        stacked = self._input(None, torch.stack([value] * self.count), lambda writer: writer.stack(given), "steps")
        return self._call(torch.select, (stacked, 0, self._numbers(range(self.count))), value)

    def _learns(self, value: Node, values: Sequence[Node]) -> bool:
        """Return True if a result of the graph has a gradient for a value that some steps read."""
        waiting = [user for user in value.users if user in self.place and values[self.place[user][0]] is value]
        seen = set(waiting)
        for node in waiting:  # which grows
            if node.op == "output":
                return True
            learning = [one for one in node.users if one.op == "output" or _requires_grad(nodes.value_of(one))]
            waiting += [one for one in learning if one not in seen]
            seen.update(learning)
        return False

    def _own(self, place: int, path: Tuple[Any, ...]) -> Node:
        """Return a result of this step."""
        if not path:
            return self.made[place]
        if (place, path) not in self.parts:
            source = self._own(place, path[:-1])
            value = nodes.value_of(source)[path[-1]]
            self.parts[place, path] = self._call(operator.getitem, (source, path[-1]), value)
        return self.parts[place, path]

    def _carry(self, kind: Any, values: Sequence[Any], reader: Node) -> Node:
        """Return a result of the previous step."""
        _, place, path = kind
        key = (place, path, values[0])
        if key in self.carried:
            return self.carried[key]
        self.varying.update(one for one in values if isinstance(one, Node))
        value, start = nodes.value_of(values[-1]), values[0]
        if not isinstance(value, torch.Tensor):
            raise Refused("a number goes from step to step")
        form, write = nodes.value_of(start), None
        if start is None:
            if not is_step(reader):
                raise _Mismatch(0)
            write = lambda writer: None  # noqa: E731
        elif _form(form) != _form(value):
            # A first value of another shape, or a number, is as good as a tensor where it is broadcast.
            shape = shape_of(value, self.finder.sizes)
            fits = _is_number(form) or (isinstance(form, torch.Tensor) and form.dtype == value.dtype)
            if nodes.name_of(reader) not in nodes.ELEMENTWISE or not fits or None in shape:
                raise _Mismatch(0)
            write = lambda writer: writer.full(start, shape, value)  # noqa: E731
        given = self._input(start, value, write, "start")
        self.carried[key] = self._mark(marks.carried, given, len(self.carried), value)
        return self.carried[key]

    def _mark(self, mark: Any, node: Node, number: int, value: Any = None) -> Node:
        return self._call(mark, (node, number), nodes.value_of(node) if value is None else value)

    # ---- after the loop

    def _readers(self) -> Dict[Any, List[List[Node]]]:
        """Return the values that are read after the loop: by place and path, the nodes of each copy."""
        found: Dict[Any, List[List[Node]]] = {}
        for call, (copy, place) in self.place.items():
            waiting = [call]
            for node in waiting:  # which grows
                parts = [user for user in node.users if _is_part(user)]
                waiting += parts
                if any(user not in self.place and user not in parts for user in node.users):
                    readers = found.setdefault((place, _ref(node).path), [[] for _ in range(self.count)])
                    readers[copy].append(node)
        return found

    def _write_results(self, place: int) -> List[Node]:
        """Write the results that are read after the loop; ``place``: of the first of them among the outputs."""
        number_of = {key[:2]: number for number, key in enumerate(self.carried)}
        outputs: List[Node] = []
        for key, readers in self._readers().items():
            made = self._own(*key)
            if not nodes.is_tensor(made):
                raise Refused("the program takes a number, or several results, of a step")
            result = _Result(readers)
            apart = [copy for copy, same in enumerate(readers) if any(map(self._is_read_apart, same))]
            if apart == [self.count - 1]:
                result.last = number_of.get(key)
                if result.last is None:
                    result.last = place + len(outputs)
                    outputs.append(self._mark(marks.kept, made, 0))
            if result.last is None or any(readers[:-1]):
                result.every = place + len(outputs)
                outputs.append(self._mark(marks.collected, made, 0))
            self.loop.results.append(result)
        return outputs

    def _is_read_apart(self, node: Node) -> bool:
        """Return True if a value is read without those of the other steps."""

        def of(one: Node) -> Any:
            call, path = _ref(one)
            if call not in self.place:
                return None
            copy, place = self.place[call]
            return (place, path), copy, self.count

        for user in node.users:
            if user in self.place or _is_part(user):
                continue
            if not any(key is None and node in items for key, items in _runs(_listed(user), of)) and _listed(user):
                continue
            return True
        return False

    def _check_memory(self) -> None:
        """Check that a changed tensor has one name in all steps, and that the program changes no result afterwards.

        Raises:
            Refused: it is not so.
        """
        memory = self.finder.memory
        inside = {memory.root(one) for node in self.place for one in memory.changes.get(node, ())}
        outside = {
            memory.root(one) for node, changed in memory.changes.items() if node not in self.place for one in changed
        }
        results = {node for result in self.loop.results for same in result.readers for node in same}
        inputs = {memory.root(node) for node in self.known if isinstance(node, Node)}
        if any(memory.root(node) in inside for node in self.varying):
            raise Refused("it changes a tensor in place that differs from step to step")
        if any(memory.root(node) in outside or memory.root(node) in inside & inputs for node in results):
            raise Refused("the program changes a result in place")


# ---- the new graph


class _Writer:
    """Writes the graph with loops as graphs of all steps.

    Attributes:
        graph: the graph.
        modules: the modules that it calls, by name.
    """

    def __init__(self, graph: Graph, loops: Sequence[_Loop]) -> None:
        self.graph, self.modules = Graph(), {}  # type: ignore[var-annotated]
        self._values: Dict[Node, Any] = {}
        self._steps: Dict[Node, Tuple[Node, int, int]] = {}  # results of loops: all steps' values, the step, the number
        self._items: Dict[Node, Node] = {}
        inside = {node for loop in loops for node in loop.calls}
        last = {loop.calls[-1]: loop for loop in loops}
        for node in graph.nodes:
            if _ref(node).call not in inside:
                self._values[node] = self._copy(node)
            elif node in last:
                self._write(last[node])
        self._erase_unread()
        self.graph.lint()

    def value(self, node: Node) -> Any:
        """Return the value of a node of the old graph."""
        if node not in self._values:
            sequence, step, _ = self._steps[node]
            if sequence not in self._items:
                self._items[sequence] = self.graph.call_function(helpers.apart, (sequence,))
            made = self.graph.call_function(operator.getitem, (self._items[sequence], step))
            value = nodes.value_of(node)
            learns = value.requires_grad or not value.is_floating_point()
            self._values[node] = made if learns else self.graph.call_method("detach", (made,))
        return self._values[node]

    def _copy(self, node: Node) -> Node:
        listed = _listed(node)
        if any(key is not None for key, _ in _runs(listed, self._steps.get)):
            dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
            return self.stack(listed, dim % nodes.value_of(node).dim(), node.target is torch.stack)
        made = self.graph.node_copy(node, self.value)
        made.meta = dict(node.meta)
        return made

    def stack(self, values: Sequence[Node], dim: int = 0, new: bool = True) -> Node:
        """Return values stacked, or concatenated if not ``new``."""
        parts: List[Any] = []
        for sequence, items in _runs(values, self._steps.get):
            if sequence is not None:
                made = self.graph.call_method("movedim", (sequence, 0, dim))
                parts.append(made if new else self.graph.call_method("flatten", (made, dim, dim + 1)))
            else:
                made = self.value(items[0])
                parts.append(self.graph.call_method("unsqueeze", (made, dim)) if new else made)
        return self.graph.call_function(torch.cat, (parts, dim))

    def full(self, start: Any, shape: Sequence[Any], like: torch.Tensor) -> Node:
        """Return a tensor of the given shape, of a tensor or a number that is broadcast."""
        sizes = tuple(self.value(size) if isinstance(size, Node) else size for size in shape)
        if isinstance(start, Node):
            return self.graph.call_method("expand", (self.value(start), sizes))
        return self.graph.call_function(torch.full, (sizes, start), {"dtype": like.dtype, "device": like.device})

    def _write(self, loop: _Loop) -> None:
        """Write the graph of a loop."""
        source = loop.distribution.graph
        inputs = [node for node in source.nodes if node.op == "placeholder"]
        given = [0, *(write(self) for write in loop.inputs), loop.count, 0]
        names = {name: f"loop_{len(self.modules)}_{name}" for name in loop.distribution.modules}
        self.modules.update((names[name], module) for name, module in loop.distribution.modules.items())
        made: Dict[Node, Any] = dict(zip(inputs, given))
        outputs: Any = self.graph.graph_copy(source, made)
        for node in source.nodes:
            if node.op == "get_attr":
                made[node].target = names[str(node.target)]
        for result in loop.results:
            for step, same in enumerate(result.readers):
                for node in same:
                    if result.every is not None:
                        self._steps[node] = outputs[result.every], step, loop.count
                    if result.last is not None and step == loop.count - 1:
                        self._values[node] = outputs[result.last]

    def _erase_unread(self) -> None:
        """Erase parts of loops that nothing reads."""
        for node in reversed(self.graph.nodes):
            pure = node.target in (helpers.last, operator.getitem, "detach")
            if pure and not node.users:
                self.graph.erase_node(node)
