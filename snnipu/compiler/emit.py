"""The rolled graph, from a plan."""

import heapq
import itertools
import operator
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from snnipu.compiler import helpers, nodes, rules
from snnipu.compiler.parts import Stretch, in_parts, stretches
from snnipu.compiler.plan import (
    Chain,
    Constant,
    Feedback,
    Operator,
    Part,
    Pieces,
    Plan,
    Series,
    Slices,
    Source,
    is_output,
    listed_by,
)
from snnipu.ops import leaves

# More parts than this are put together from single steps.
_PARTS = 4
# Operators whose own results no backward pass needs.
_NOT_KEPT = {"linear", "matmul", "mm", "bmm", "conv1d", "conv2d", "conv3d", "add", "sub", "mul", "batch_norm"}


class _Body:
    """The graph of a part of time, while it is written: what it takes from outside becomes an input."""

    def __init__(self, inside: Set[Series]) -> None:
        self.graph = Graph()
        self.inside = inside
        self.sequences: Dict[Node, Node] = {}  # outside -> inside
        self.constants: Dict[Node, Node] = {}
        self.step_values: List[Any] = []  # of the sequences
        self.states: List[Tuple[Any, Node]] = []
        self.finals: List[Tuple[Series, Node]] = []
        self.num_steps = self.graph.placeholder("num_steps")
        self.goes_on = self.graph.placeholder("goes_on")

    def sequence(self, node: Node, step: Any) -> Node:
        if node not in self.sequences:
            self.step_values.append(step)
        return self._input(self.sequences, node, "sequence")

    def constant(self, node: Node) -> Node:
        return self._input(self.constants, node, "constant")

    def _input(self, known: Dict[Node, Node], node: Node, name: str) -> Node:
        if node not in known:
            known[node] = self._placeholder(f"{name}_{len(known)}")
        return known[node]

    def state(self, value: Any) -> Node:
        self.states.append((value, self._placeholder(f"state_{len(self.states)}")))
        return self.states[-1][1]

    def _placeholder(self, name: str) -> Node:
        with self.graph.inserting_before(self.num_steps):
            return self.graph.placeholder(name)

    def order_inputs(self) -> None:
        """Sequences first, then constants, then states."""
        for node in (*self.sequences.values(), *self.constants.values(), *(node for _, node in self.states)):
            self.num_steps.prepend(node)


class Emitter:
    """Writes the graph of a plan; ``in_parts``: stretches of it run in parts of time."""

    def __init__(self, plan: Plan, outputs: Any, in_parts: bool) -> None:
        self.plan = plan
        self.graph = Graph()
        self.stretches: Dict[str, Stretch] = {}
        self._in_parts = in_parts
        self._body: Optional[_Body] = None
        self._outer = self.graph
        self.single: Dict[Node, Node] = {}
        self.sequence: Dict[Series, Node] = {}
        self.final: Dict[Series, Node] = {}
        self.unbound: Dict[Series, Node] = {}
        self.taken: Dict[Tuple[Series, int], Node] = {}
        self.outputs = outputs  # the output node's arguments before equal calls became one
        self.whole: Dict[Series, Set[Any]] = {}  # by which units
        self.steps: Dict[Series, Set[int]] = {}
        self._needed = self._reachable()
        self._note_uses()
        self._given = self._records_given()

    # ---- what is needed

    def _reachable(self) -> List[Any]:
        """The units that the results need, and those that have effects."""
        plan = self.plan
        start = [node for node in plan.graph.nodes if node.op in ("placeholder", "output")]
        start += [
            node for node in plan.graph.nodes if node in plan.effects and node.op not in ("placeholder", "get_attr")
        ]
        start += [
            node
            for node in plan.graph.nodes
            if node.op in ("call_function", "call_module", "call_method")
            and not nodes.name_of(node)
            and node.target not in leaves.SEQUENCES
        ]
        found: Dict[Any, None] = {}
        waiting = [plan.unit(node) for node in start]
        while waiting:
            unit = waiting.pop()
            if unit not in found:
                found[unit] = None
                waiting.extend(plan.needs(unit))
        return list(found)

    def _note_uses(self) -> None:
        for unit in self._needed:
            if isinstance(unit, Node):
                stacked = self._stacked(unit)
                if stacked is not None:
                    self._note(stacked, unit)
                else:
                    for node in unit.all_input_nodes:
                        self._note_step(node)
            else:
                for source in unit.sources():
                    self._note(source, unit)

    def _note(self, source: Source, unit: Any) -> None:
        if isinstance(source, Constant):
            self._note_step(source.value)
        elif len(source.parts) <= _PARTS:
            for part in source.parts:
                if isinstance(part, Part):
                    self.whole.setdefault(part.series, set()).add(unit)
                else:
                    self._note_step(part)
        else:
            for part in source.parts:
                if isinstance(part, Part):
                    self.steps.setdefault(part.series, set()).update(range(part.first, part.last))
                else:
                    self._note_step(part)

    def _note_step(self, node: Any) -> None:
        if node in self.plan.member:
            series, t = self.plan.member[node]
            self.steps.setdefault(series, set()).add(t)

    def _stacked(self, node: Node) -> Optional[Pieces]:
        """What a ``stack`` or ``cat`` puts together, where that is a sequence as it is."""
        listed = listed_by(node)
        if listed is None or not all(one in self.plan.member for one in listed):
            return None
        series, first = self.plan.member[listed[0]]
        places = [self.plan.member[one] for one in listed]
        if any(place != (series, first + t) for t, place in enumerate(places)) or series.value is None:
            return None
        if not isinstance(series.value, torch.Tensor) or len(listed) < 2:
            return None
        return Pieces((Part(series, first, first + len(listed)),), len(listed))

    # ---- writing

    def run(self) -> Graph:
        needs = {unit: self.plan.needs(unit) for unit in self._needed}
        ordered = self._in_order(self._needed, needs)
        found = stretches(self.plan, ordered, needs.__getitem__) if self._in_parts else []
        part_of = {bundle: stretch for stretch in found for bundle in stretch.bundles}
        units = list(dict.fromkeys(part_of.get(unit, unit) for unit in ordered))
        together: Dict[Any, Dict[Any, None]] = {unit: {} for unit in units}
        for unit, others in needs.items():
            own = part_of.get(unit, unit)
            together[own].update(dict.fromkeys(part_of.get(other, other) for other in others))
        for unit in self._in_order(units, {unit: [o for o in own if o is not unit] for unit, own in together.items()}):
            if isinstance(unit, Stretch):
                self._emit_stretch(unit)
            else:
                self._emit(unit)
        return self.graph

    def _in_order(self, units: List[Any], needs: Dict[Any, List[Any]]) -> List[Any]:
        """Each unit behind what it needs, else as they stand in the graph."""
        place = {unit: min(self.plan.place[n] for n in _nodes(unit)) for unit in units}
        waiting = {unit: len(needs[unit]) for unit in units}
        after: Dict[Any, List[Any]] = {}
        for unit, others in needs.items():
            for other in others:
                after.setdefault(other, []).append(unit)
        # Placeholders come first, as in the graph.
        heap = [((_rank(unit), place[unit]), id(unit), unit) for unit in units if not waiting[unit]]
        heapq.heapify(heap)
        ordered = []
        while heap:
            _, _, unit = heapq.heappop(heap)
            ordered.append(unit)
            for other in after.get(unit, ()):
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(heap, ((_rank(other), place[other]), id(other), other))
        if len(ordered) != len(units):
            raise RuntimeError("the graph of bundles has a cycle")
        return ordered

    def _emit(self, unit: Any) -> None:
        before = len(self.graph.nodes)
        if isinstance(unit, Chain):
            self._emit_chain(unit)
            self._take(unit)
        elif isinstance(unit, Slices):
            self._emit_slices(unit)
            self._take(unit)
        elif isinstance(unit, Operator):
            self._emit_operator(unit)
            self._take(unit)
        elif unit.op == "output":
            self.graph.output(self._results(unit))
        else:
            self._emit_single(unit)
        trace = _nodes(unit)[0].meta.get("stack_trace")
        if trace:
            made = len(self.graph.nodes) - before if not isinstance(unit, Node) else 0
            for node in itertools.islice(reversed(self.graph.nodes), made):
                node.meta.setdefault("stack_trace", trace)

    def _emit_stretch(self, stretch: Stretch) -> None:
        outside = self._outer = self.graph
        body = self._body = _Body({series for bundle in stretch.bundles for series in bundle.series})
        self.graph = body.graph
        for bundle in stretch.bundles:
            if isinstance(bundle, Chain):
                self._emit_chain(bundle)
            else:
                assert isinstance(bundle, Operator)
                self._emit_operator(bundle)
        wanted = [
            series
            for bundle in stretch.bundles
            for series in bundle.series
            if series in self.sequence
            and (self.whole.get(series, set()) - set(stretch.bundles) or self._single_steps(series))
        ]
        body.graph.output((*(self.sequence[series] for series in wanted), *(final for _, final in body.finals)))
        body.order_inputs()
        body.graph.lint()
        self.graph, self._body = outside, None
        stretch.body = GraphModule({}, body.graph)
        stretch.counts, stretch.outputs = (len(body.sequences), len(body.constants)), len(wanted)
        stretch.size(body.step_values, self._held(stretch, body))
        name = f"stretch_{len(self.stretches)}"
        self.stretches[name] = stretch
        given = (*body.sequences, *body.constants, *(value for value, _ in body.states))
        made = self.graph.call_function(in_parts, (self.graph.get_attr(name), *given))
        for bundle in stretch.bundles:
            for series in bundle.series:
                self.sequence.pop(series, None)
        for place, series in enumerate(wanted):
            self.sequence[series] = self.graph.call_function(operator.getitem, (made, place))
        for place, (series, _) in enumerate(body.finals):
            if series.output and series.steps - 1 in self.steps.get(series, ()):
                self.final[series] = self.graph.call_function(operator.getitem, (made, len(wanted) + place))
        for bundle in stretch.bundles:
            self._take(bundle)

    def _held(self, stretch: Stretch, body: _Body) -> Tuple[int, Any]:
        """Which constant is the input of the first layer of neurons, and its value; for a stretch without sequences."""
        for bundle in stretch.bundles:
            if isinstance(bundle, Chain) and isinstance(bundle.input, Constant):
                made = self._outside(bundle.input.value)
                return list(body.constants).index(made), nodes.value_of(bundle.input.value)
        return 0, None

    def _single_steps(self, series: Series) -> Set[int]:
        """The steps of a series that somebody asks for, and gets from the sequence."""
        wanted = self.steps.get(series, set())
        if isinstance(series.bundle, Chain) and series.output:
            return wanted - {series.steps - 1}
        return wanted

    def _emit_single(self, node: Node) -> None:
        stacked = self._stacked(node)
        if stacked is None:
            self.single[node] = self.graph.node_copy(node, self.value)
            return
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))
        sequence = self.source(stacked)
        if nodes.name_of(node) != "stack":
            made = self.graph.call_function(helpers.joined, (sequence, dim))
        elif dim == 0:
            made = self.graph.call_function(helpers.record, (sequence,))
        else:
            made = self.graph.call_function(helpers.record_along, (sequence, dim))
        part: Any = stacked.parts[0]
        if node in self._given and self._has_others(part.series, node):
            made = self.graph.call_function(helpers.own_copy, (made,))
        elif node in self._given and self._is_kept(part.series, node):
            made = self.graph.call_function(helpers.not_kept, (made, sequence))
        self.single[node] = made

    def _emit_chain(self, chain: Chain) -> None:
        first: Any = chain.nodes[0]
        body = self._body
        states = tuple(self.value(s) if isinstance(s, Node) else s for s in first.args[1])
        if body is not None:
            before = first.args[1]
            states = tuple(body.state(self._outside(s)) for s in before)
        parameters, kernel, options = (map_arg(first.args[place], self.value) for place in (2, 3, 4))
        assert chain.input is not None
        constant = isinstance(chain.input, Constant)
        last = chain.steps - 1
        store, need_final = [], False
        for place, series in enumerate(chain.series[1:]):
            keep = bool(self.whole.get(series) or self._single_steps(series))
            if is_output(first, place):
                keep = True  # it is the spikes
            store.append(keep)
            need_final = need_final or last in self.steps.get(series, ())
        over_time: Any = leaves.SEQUENCES[first.target]
        more: Tuple[Any, ...] = ()
        if chain.feedback is not None:
            over_time, more = leaves.FED_BACK[first.target], (self._connection(chain.feedback),)
        made = self.graph.call_function(
            over_time,
            (
                self.source(chain.input),
                None if not constant else chain.steps if body is None else body.num_steps,
                states,
                parameters,
                kernel,
                options,
                tuple(store),
                need_final if body is None or need_final else body.goes_on,
                *more,
            ),
        )
        count = len(chain.series)
        for place, series in enumerate(chain.series):
            if (series in self.whole or series in self.steps) and (place == 0 or store[place - 1]):
                self.sequence[series] = self.graph.call_function(operator.getitem, (made, place))
            if not place:
                continue
            if body is not None:
                body.finals.append((series, self.graph.call_function(operator.getitem, (made, count + place - 1))))
            elif last in self.steps.get(series, ()):
                self.final[series] = self.graph.call_function(operator.getitem, (made, count + place - 1))
        if body is not None and chain.feedback is not None:
            spikes = self.graph.call_function(operator.getitem, (made, 2 * count - 1))
            body.finals.append((chain.series[0], spikes))

    def _connection(self, feedback: Feedback) -> Tuple[Any, ...]:
        """What :func:`snnipu.ops.leaves.neuron_fed_back` takes."""
        weight = self.value(feedback.weight)
        if feedback.transposed:
            weight = self.graph.call_function(torch.t, (weight,))
        bias = None if feedback.bias is None else self.value(feedback.bias)
        if feedback.minus:
            weight = self.graph.call_function(torch.neg, (weight,))
            bias = None if bias is None else self.graph.call_function(torch.neg, (bias,))
        body = self._body
        spikes = self.value(feedback.spikes) if body is None else body.state(self._outside(feedback.spikes))
        return spikes, weight, bias, feedback.geometry

    def _emit_slices(self, slices: Slices) -> None:
        assert slices.of is not None
        sequence = self.value(slices.of)
        last = slices.steps * (slices.each or 1)
        whole = all(one in (Ellipsis, slice(None), slice(0, last, 1)) for one in slices.index)
        if not whole or nodes.value_of(slices.of).shape[slices.dim] != last:
            sequence = self.graph.call_function(operator.getitem, (sequence, slices.index))
        if slices.each:
            sequence = self.graph.call_method("unflatten", (sequence, slices.dim, (slices.steps, slices.each)))
        if slices.dim:
            sequence = self.graph.call_function(torch.movedim, (sequence, slices.dim, 0))
        if slices.backwards:
            sequence = self.graph.call_function(torch.flip, (sequence, (0,)))
        self.sequence[slices.series[0]] = sequence

    def _emit_operator(self, bundle: Operator) -> None:
        assert bundle.call is not None
        assert bundle.make is not None

        def given(argument: Any) -> Any:
            if isinstance(argument, rules.Lifted):
                return self.source(argument.source)
            return self.value(argument) if isinstance(argument, Node) else argument

        args = rules.changed(bundle.call.args, given)
        kwargs = rules.changed(bundle.call.kwargs, given)
        made = bundle.make(self.graph, args, kwargs)
        for series in bundle.series:
            several = len(bundle.series) > 1
            part = self.graph.call_function(operator.getitem, (made, series.output)) if several else made
            self.sequence[series] = part

    def _take(self, bundle: Any) -> None:
        """The single steps of a bundle's results that somebody asks for: here, where the gradient mode is theirs."""
        for series in bundle.series:
            wanted = self.steps.get(series, set())
            if series in self.final:
                self.taken[series, bundle.steps - 1] = self.final[series]
                wanted = wanted - {bundle.steps - 1}
            if not wanted or not isinstance(series.value, torch.Tensor):
                continue
            sequence = self.sequence[series]
            if len(wanted) == 1:
                step = next(iter(wanted))
                self.taken[series, step] = self.graph.call_function(operator.getitem, (sequence, step))
                continue
            unbound = self.graph.call_function(torch.unbind, (sequence,))
            for step in sorted(wanted):
                self.taken[series, step] = self.graph.call_function(operator.getitem, (unbound, step))

    def value(self, node: Node) -> Node:
        """What stands for a node of the graph."""
        made = self._outside(node)
        return made if self._body is None else self._body.constant(made)

    def _outside(self, node: Any) -> Any:
        if not isinstance(node, Node):
            return node
        return self.taken[self.plan.member[node]] if node in self.plan.member else self.single[node]

    def source(self, source: Source) -> Any:
        """A sequence; what is constant as one step."""
        if isinstance(source, Constant):
            return self.value(source.value) if isinstance(source.value, Node) else source.value
        whole = source.whole()
        body = self._body
        if body is None:
            return self._sequence_of(source)
        if whole is not None and whole in body.inside:
            return self.sequence[whole]
        self.graph, self._body = self._outer, None
        made = self._sequence_of(source)
        self.graph, self._body = body.graph, body
        first = source.parts[0]
        return body.sequence(made, first.series.value if isinstance(first, Part) else nodes.value_of(first))

    def _sequence_of(self, source: Pieces) -> Any:
        whole = source.whole()
        if whole is not None:
            return self.sequence[whole]
        if len(source.parts) > _PARTS:
            listed: List[Node] = []
            for part in source.parts:
                if isinstance(part, Part):
                    listed.extend(self.taken[part.series, t] for t in range(part.first, part.last))
                else:
                    listed.append(self.value(part))
            return self.graph.call_function(torch.stack, (listed,))
        joined = []
        for part in source.parts:
            if isinstance(part, Part):
                sequence = self.sequence[part.series]
                if (part.first, part.last) != (0, part.series.steps):
                    sequence = self.graph.call_function(operator.getitem, (sequence, slice(part.first, part.last)))
                joined.append(sequence)
            else:
                joined.append(self.graph.call_function(torch.unsqueeze, (self.value(part), 0)))
        return joined[0] if len(joined) == 1 else self.graph.call_function(torch.cat, (joined,))

    # ---- results

    def _results(self, output: Node) -> Any:
        """The results, none of which shares memory with another or with what was theirs alone before, or with what a
        backward pass needs."""
        given: Set[Any] = set()

        def result(pair: Tuple[Node, Any]) -> Any:
            node, original = pair
            made = self.value(node)
            shared = made in given and given_for[made] is not original
            given.add(made)
            given_for.setdefault(made, original)
            if node in self.plan.member:
                series, step = self.plan.member[node]
                own = series in self.final and step == series.steps - 1
                shared = shared or not own
            return self.graph.call_function(helpers.own_copy, (made,)) if shared else made

        given_for: Dict[Any, Any] = {}
        flat_now = nodes.leaves_of(output.args[0])
        results = [result(pair) for pair in zip(flat_now, self.outputs)]
        left = iter(results)
        return map_arg(output.args[0], lambda n: next(left))

    def _records_given(self) -> Set[Node]:
        """The records of steps that are results, or of which results may be views."""
        found: Set[Node] = set()
        seen: Set[Node] = set()
        waiting = list(next(reversed(self.plan.graph.nodes)).all_input_nodes)
        while waiting:
            node = waiting.pop()
            if node in seen or node in self.plan.member:
                continue
            seen.add(node)
            if self._stacked(node) is not None:
                found.add(node)
            elif not nodes.is_fresh(node):
                waiting += node.all_input_nodes
        return found

    def _is_kept(self, series: Series, node: Node) -> bool:
        """Whether an operator may keep this sequence for its backward pass: as its input, or its own result."""
        if self.whole.get(series, set()) - {node}:
            return True
        bundle, call = series.bundle, series.bundle.nodes[0]
        if not isinstance(bundle, Chain):
            return nodes.name_of(call) not in _NOT_KEPT
        if call.target is not leaves.neuron_step or bundle.feedback is not None:
            return True
        return series is not bundle.series[0] or leaves.output_state(call.target, call.args[4]) is not None

    def _has_others(self, series: Series, node: Node) -> bool:
        """Whether somebody besides ``node`` is handed memory of this sequence, or it is not our own to begin with."""
        if not isinstance(series.bundle, Chain) and not (
            isinstance(series.bundle, Operator) and nodes.is_fresh(series.bundle.nodes[0])
        ):
            return True
        if self.steps.get(series, set()) - ({series.steps - 1} if series in self.final else set()):
            return True
        for unit in self._needed:
            if isinstance(unit, Node) and unit is not node:
                stacked = self._stacked(unit)
                if stacked is not None and any(getattr(part, "series", None) is series for part in stacked.parts):
                    return True
            elif isinstance(unit, Operator) and not nodes.is_fresh(unit.nodes[0]):
                for source in unit.sources():
                    if isinstance(source, Pieces) and any(getattr(p, "series", None) is series for p in source.parts):
                        return True
        return False


def _nodes(unit: Any) -> Tuple[Node, ...]:
    if isinstance(unit, Stretch):
        return tuple(bundle.nodes[0] for bundle in unit.bundles)
    return (unit,) if isinstance(unit, Node) else unit.nodes


def _rank(unit: Any) -> int:
    return 0 if isinstance(unit, Node) and unit.op in ("placeholder", "get_attr") else 1
