"""Loops over time in finished graphs.

TorchDynamo writes a loop of T steps as T copies of its body. The copies are found by comparing calls. They become the
graph of one step (:class:`snnipu.compiler.body.Body`), and that becomes the graph of all steps:

| the copies read | in the graph of one step |
| --- | --- |
| the same value | an input |
| a result of the same copy | that result |
| a result of the previous copy | a carried value |
| numbers that differ | an item of a list, by the clock |
| items of one tensor | an item of that tensor, by the clock |
| other values from before the loop | an item of their stack, by the clock |

Calls before and after the copies are not changed. Copies with any other difference are not a loop.
"""

import operator
from collections import Counter
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from snnipu.compiler import autograd_functions, helpers, marks, nodes
from snnipu.compiler.body import Body, attributes_of
from snnipu.compiler.distribute import Distribution
from snnipu.compiler.marks import Refused
from snnipu.compiler.prepare import simplify, symbols
from snnipu.compiler.steps import is_step

# Loops with fewer steps are not changed.
FEWEST = 3
# The number of periods that are tried.
_PERIODS = 4


def rolled(module: GraphModule, whole: bool = False) -> Optional[GraphModule]:
    """Return the graph with its loops as graphs of all steps, or None if no loop over time is found.

    Args:
        whole: True if another compiler compiles the graph: the numbers of surrogates become constants.
    """
    autograd_functions.note_passes(module.graph)
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    autograd_functions.call_directly(graph)
    if whole:
        _fix_numbers(graph)
    simplify(graph)
    _use_changed_tensors(graph)
    _take_all_results(graph)
    search = _Search(graph)
    loops = search.loops(0, len(search.calls))
    parts = attributes_of(module)
    # The last loop first: it may read results of an earlier one, which must still be in the graph.
    for loop in reversed(loops):
        name = f"loop_{len(parts)}"
        parts[name] = loop.module
        _replace(graph, loop, name)
    graph.lint()
    return GraphModule(parts, graph) if loops else None


def _fix_numbers(graph: Graph) -> None:
    """Make numbers of surrogates constants."""
    for node in graph.nodes:
        if is_step(node) or nodes.name_of(node) == "spike_of":
            node.args = map_arg(
                node.args, lambda one: float(v) if isinstance(v := nodes.value_of(one), torch.SymFloat) else one
            )


def _use_changed_tensors(graph: Graph) -> None:
    """Let operations read a tensor that was changed in place, instead of the result, which is the same tensor."""
    for node in graph.nodes:
        target: Any = node.args[0] if node.args else None
        if nodes.name_of(node) and nodes.changed_by(node) == [target] and _form(node) == _form(target):
            node.replace_all_uses_with(target)


def _take_all_results(graph: Graph) -> None:
    """Take all results of a neuron's step: PyTorch leaves out unread ones, for example at the last step."""
    for node in list(graph.nodes):
        if is_step(node):
            taken = {user.args[1]: user for user in node.users}
            for place, value in reversed(list(enumerate(nodes.value_of(node)))):
                part = taken.get(place) or graph.call_function(operator.getitem, (node, place))
                part.meta["example_value"] = value
                node.append(part)


# ---- the search


def _form(value: Any) -> Any:
    """Return shape, dtype and device of a tensor, or of each of several; of other values the type."""
    value = nodes.value_of(value)
    return nodes.key_of(value) if isinstance(value, (torch.Tensor, tuple, list)) else type(value).__name__


def _leaves(node: Node) -> List[Any]:
    """Return the arguments of a call that are no containers, in order."""
    leaves: List[Any] = []
    map_aggregate((node.args, node.kwargs), leaves.append)  # type: ignore[arg-type]
    return leaves


def _token(node: Node) -> Any:
    """Return a key that is equal for the same calls of all copies."""
    arguments = map_aggregate(
        (node.args, node.kwargs),
        lambda one: "value" if one is None or isinstance(one, (Node, int, float)) else repr(one),
    )
    return node.op, node.target, repr(arguments), _form(node)


def _key(node: Node) -> Any:
    """Return a key that is equal for the same calls of all copies except the first, including the weights they read."""
    shared = [one for one in node.all_input_nodes if len(one.users) >= FEWEST]
    fixed = [one for one in _leaves(node) if one is None or (one in shared and one.op in ("placeholder", "get_attr"))]
    return _token(node), *fixed


class _Search:
    """The search for the loops of a graph.

    Attributes:
        calls: the calls of the graph, without calls that compute a number from inputs only.
        tokens: a number for each call; equal calls have the same number.
        root: returns the representative of the nodes that may share memory.
        changed: the representatives of memory that is changed in place.
        sizes: the inputs that are sizes.
        learnt: the inputs with a gradient that a node depends on.
    """

    def __init__(self, graph: Graph) -> None:
        memory = nodes.Memory(graph)
        self.root = memory.root
        self.changed = memory.changed_roots()
        self.sizes = symbols(graph)
        self.learnt: Dict[Node, FrozenSet[Node]] = {}
        self.calls: List[Node] = []
        for node in graph.nodes:
            sources = node.all_input_nodes
            is_learnt = not sources and getattr(nodes.value_of(node), "requires_grad", False)
            leaf = frozenset([node] if is_learnt else [])
            self.learnt[node] = leaf.union(*map(self.learnt.__getitem__, sources))
            is_fixed = marks.is_number(node) and not any(
                one in self.calls or self.root(one) in self.changed for one in sources
            )
            if node.op.startswith("call") and not is_fixed:
                self.calls.append(node)
        known: Dict[Any, int] = {}
        self.tokens = [known.setdefault(_key(node), len(known)) for node in self.calls]

    def loops(self, start: int, stop: int) -> List["_UnrolledLoop"]:
        """Return the loops among the calls from ``start`` to ``stop``, in order."""
        for end, size, number in self._repetitions(start, stop):
            # The first step may read other values, or have other operations.
            for count in (number + 1, number, number - 1):
                begin = end - count * size
                if begin < start or count < FEWEST:
                    continue
                try:
                    loop = _UnrolledLoop(self, self.calls[begin:end], count)
                except (Refused, LookupError, ValueError, RuntimeError):
                    continue
                return [*self.loops(start, begin), loop, *self.loops(end, stop)]
        return []

    def _repetitions(self, start: int, stop: int) -> List[Tuple[int, int, int]]:
        """Return stretches of calls that repeat, the longest first: end, size of a copy, number of copies."""
        order = sorted(range(start, stop), key=self.tokens.__getitem__)
        distances = Counter(b - a for a, b in zip(order, order[1:]) if self.tokens[a] == self.tokens[b])
        stretches = []
        for size, _ in distances.most_common(_PERIODS):
            length = 0
            for place in range(start + size, stop + 1):
                if place < stop and self.tokens[place] == self.tokens[place - size]:
                    length += 1
                    continue
                stretches.append((place, size, length // size + 1))
                length = 0
        return sorted(stretches, key=lambda one: (-one[1] * one[2], one[1]))[:_PERIODS]


# ---- one loop


class _UnrolledLoop:
    """A loop: copies of a step as the graph of one step.

    Attributes:
        calls: the calls of all steps.
        count: the number of steps.
        inputs: the value of each input of the graph: a node, a number, None, or a tuple of nodes to stack.
        results: the nodes that are read after the loop, of the last step or of all steps, by the output's position.
        module: the graph of all steps.
    """

    def __init__(self, search: _Search, calls: Sequence[Node], count: int) -> None:
        """
        Raises:
            Refused: the copies differ, or no neuron's steps become one operator.
        """
        self.search, self.calls, self.count = search, calls, count
        size = len(calls) // count
        self.place = {node: divmod(number, size) for number, node in enumerate(calls)}
        self.graph = Graph()
        self.clock = self._last_input = self.graph.placeholder(marks.CLOCK)
        self.clock.meta["example_value"] = marks.OFFSET
        self.inputs: List[Any] = []
        self.results: Dict[int, Sequence[Node]] = {}
        self._known: Dict[Any, Node] = {}
        self._carried: Dict[Any, Node] = {}
        self._written: List[Node] = []
        for node in search.sizes.values():
            self._input(node, nodes.value_of(node))
        steps = [calls[place::size] for place in range(size)]
        for same in steps:
            self._written.append(self._write(same))
        outputs = [(marks.result, place) for place, _ in self._carried]
        for place, same in enumerate(steps):
            read = [node for node in same if any(user not in self.place for user in node.users)]
            if not read:
                continue
            self._check_unchanged(read)
            if not nodes.is_tensor(same[-1]):
                raise Refused("the program reads a number, or several results, of a step")
            self.results[len(outputs)] = same[-1:]
            outputs.append((marks.kept, place))
            if read[0] is not same[-1]:
                self.results[len(outputs)] = same
                outputs.append((marks.collected, place))
        numbered = enumerate(outputs)
        self.graph.output(
            tuple(self.graph.call_function(mark, (self._written[place], n)) for n, (mark, place) in numbered)
        )
        distribution = Distribution(Body(GraphModule({}, self.graph), [self.clock]))
        if not distribution.neurons:
            raise Refused("no neuron's steps become one operator")
        self.module = distribution.module

    def _check_unchanged(self, values: Sequence[Any]) -> None:
        """Check that values which differ from step to step are not changed in place.

        Raises:
            Refused: one of them is.
        """
        if any(self.search.root(node) in self.search.changed for node in nodes.leaves_of(values)):
            raise Refused("a value of a step is changed in place")

    def _input(self, source: Any, value: Any) -> Node:
        """Return the input of the step for a value from before the loop."""
        key = repr(source), _form(value)
        if key not in self._known:
            with self.graph.inserting_after(self._last_input):
                node = self.graph.placeholder(f"input_{len(self.inputs)}")
            node.meta["example_value"] = value
            self._known[key] = self._last_input = node
            self.inputs.append(source)
        return self._known[key]

    def _call(self, target: Any, args: Tuple[Any, ...], value: Any) -> Node:
        node = self.graph.call_function(target, args)
        node.meta["example_value"] = value
        return node

    def _write(self, same: Sequence[Node]) -> Node:
        """Write one call for the same calls of all copies."""
        node = same[-1]
        if len(set(map(_token, same))) > 1:
            raise Refused("its steps call different functions")
        arguments = iter([self._argument(values, node) for values in zip(*map(_leaves, same))])
        call = self.graph.node_copy(node)
        call.args, call.kwargs = map_aggregate((node.args, node.kwargs), lambda _: next(arguments))  # type: ignore
        return call

    def _source(self, value: Any, copy: int) -> Tuple[Any, Any]:
        """Return the source of a copy's value: how many copies earlier it was computed, and its place in a copy."""
        if not isinstance(value, Node):
            return ("number", None) if type(value) in (int, float) else ("constant", value)
        if value not in self.place:
            return "outside", None
        other, place = self.place[value]
        return copy - other, place

    def _argument(self, values: Sequence[Any], reader: Node) -> Any:
        """Return the argument of the step for the same arguments of all copies."""
        sources = [self._source(value, copy) for copy, value in enumerate(values)]
        kind, place = sources[-1]
        is_carried = kind == 1 and sources[0][0] != 0
        if sources[is_carried:] != sources[-1:] * (self.count - is_carried):
            raise Refused("its steps differ")
        if is_carried:
            return self._carry(place, values, reader)
        if kind == 0:
            return self._written[place]
        if kind == "outside":
            return self._outside(values)
        if kind == "number" and len(set(map(repr, values))) > 1:
            return self._call(operator.getitem, (tuple(values), self.clock), values[-1])
        return values[0]

    def _outside(self, values: Sequence[Node]) -> Node:
        """Return an argument whose values are from before the loop."""
        first, value = values[0], nodes.value_of(values[-1])
        if len(set(values)) == 1:
            return self._input(first, value)
        self._check_unchanged(values)
        if nodes.name_of(first) == "getitem" and type(first.args[1]) is int and nodes.is_tensor(first.args[0]):
            return self._write(values)
        # A stack has zero gradients for values that no operation reads. Separate values have the gradient None.
        learnt = self.search.learnt
        if (
            not nodes.is_tensor(first)
            or len(set(map(_form, values))) > 1
            or any(nodes.value_of(one).requires_grad and learnt[one] != learnt[first] for one in values)
        ):
            raise Refused("its steps read different values")
        stacked = self._input(tuple(values), torch.stack([value] * self.count))
        return self._call(torch.select, (stacked, 0, self.clock), value)

    def _carry(self, place: int, values: Sequence[Any], reader: Node) -> Node:
        """Return a result of the previous step."""
        start, value = values[0], nodes.value_of(values[-1])
        self._check_unchanged(values)
        is_same = _form(start) == _form(value) or (start is None and is_step(reader))
        # A first value may be a number or have another shape if the operation broadcasts it.
        is_broadcast = type(start) in (int, float) or _form(start)[1:] == _form(value)[1:]
        fits = is_same or (is_broadcast and nodes.name_of(reader) in nodes.ELEMENTWISE)
        if not isinstance(value, torch.Tensor) or not fits:
            raise Refused("its first value has another shape, dtype or device")
        first = self._input(start, value)
        if (place, first) not in self._carried:
            self._carried[place, first] = self._call(marks.carried, (first, len(self._carried)), value)
        return self._carried[place, first]


# ---- the new graph


def _replace(graph: Graph, loop: _UnrolledLoop, name: str) -> None:
    """Replace the calls of all steps by a call of the loop's graph.

    Args:
        name: the name of the loop's graph.
    """
    with graph.inserting_before(loop.calls[-1]):
        stacked = [graph.call_function(torch.stack, (one,)) if type(one) is tuple else one for one in loop.inputs]
        call = graph.call_module(name, (0, *stacked, loop.count, 0))
        for place, same in reversed(loop.results.items()):
            output = graph.call_function(operator.getitem, (call, place))
            if len(same) == 1:
                same[0].replace_all_uses_with(output)
                continue
            for user in list(same[0].users):
                if user.target is torch.stack and user.args[:1] == (same,) and set(user.kwargs) <= {"dim"}:
                    user.target, user.args = helpers.stacked, (output, *user.args[1:])
            if any(user not in loop.place for node in same[:-1] for user in node.users):
                apart = graph.call_function(helpers.apart, (output,))
                for step, node in enumerate(same[:-1]):
                    node.replace_all_uses_with(graph.call_function(operator.getitem, (apart, step)))
    for node in reversed(loop.calls):
        graph.erase_node(node)
