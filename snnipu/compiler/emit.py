"""The rolled graph, from a plan."""

import heapq
import operator
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from snnipu.compiler import helpers, nodes, rules
from snnipu.compiler.plan import (
    Chain,
    Constant,
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


class Emitter:
    """Writes the graph of a plan."""

    def __init__(self, plan: Plan, outputs: Any) -> None:
        self.plan = plan
        self.graph = Graph()
        self.single: Dict[Node, Node] = {}
        self.sequence: Dict[Series, Node] = {}
        self.final: Dict[Series, Node] = {}
        self.unbound: Dict[Series, Node] = {}
        self.taken: Dict[Tuple[Series, int], Node] = {}
        self.outputs = outputs  # the output node's arguments before equal calls became one
        self.whole: Set[Series] = set()
        self.steps: Dict[Series, Set[int]] = {}
        self._needed = self._reachable()
        self._note_uses()

    # ---- what is needed

    def _reachable(self) -> List[Any]:
        """The units that the results need, and those that have effects."""
        plan = self.plan
        start = [node for node in plan.graph.nodes if node.op in ("placeholder", "output")]
        start += [
            node for node in plan.graph.nodes if node in plan.fixed and node.op not in ("placeholder", "get_attr")
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
                    self._note(stacked)
                else:
                    for node in unit.all_input_nodes:
                        self._note_step(node)
            else:
                for source in unit.sources():
                    self._note(source)

    def _note(self, source: Source) -> None:
        if isinstance(source, Constant):
            self._note_step(source.value)
        elif len(source.parts) <= _PARTS:
            for part in source.parts:
                if isinstance(part, Part):
                    self.whole.add(part.series)
        else:
            for part in source.parts:
                if isinstance(part, Part):
                    self.steps.setdefault(part.series, set()).update(range(part.first, part.last))

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
        plan = self.plan
        place = {unit: min(plan.place[n] for n in _nodes(unit)) for unit in self._needed}
        needs = {unit: plan.needs(unit) for unit in self._needed}
        waiting = {unit: len(needs[unit]) for unit in self._needed}
        after: Dict[Any, List[Any]] = {}
        for unit, others in needs.items():
            for other in others:
                after.setdefault(other, []).append(unit)
        # Placeholders come first, as in the graph.
        heap = [((_rank(unit), place[unit]), id(unit), unit) for unit in self._needed if not waiting[unit]]
        heapq.heapify(heap)
        done = 0
        while heap:
            _, _, unit = heapq.heappop(heap)
            self._emit(unit)
            done += 1
            for other in after.get(unit, ()):
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(heap, ((_rank(other), place[other]), id(other), other))
        if done != len(self._needed):
            raise RuntimeError("the graph of bundles has a cycle")
        return self.graph

    def _emit(self, unit: Any) -> None:
        before = len(self.graph.nodes)
        if isinstance(unit, Chain):
            self._emit_chain(unit)
        elif isinstance(unit, Slices):
            self._emit_slices(unit)
        elif isinstance(unit, Operator):
            self._emit_operator(unit)
        elif unit.op == "output":
            self.graph.output(self._results(unit))
        else:
            self._emit_single(unit)
        trace = _nodes(unit)[0].meta.get("stack_trace")
        if trace:
            for node in list(self.graph.nodes)[before:] if not isinstance(unit, Node) else ():
                node.meta.setdefault("stack_trace", trace)

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
        self.single[node] = made

    def _emit_chain(self, chain: Chain) -> None:
        first: Any = chain.nodes[0]
        states, parameters, kernel, options = (map_arg(first.args[place], self.value) for place in (1, 2, 3, 4))
        assert chain.input is not None
        constant = isinstance(chain.input, Constant)
        last = chain.steps - 1
        store, need_final = [], False
        for place, series in enumerate(chain.series[1:]):
            steps = self.steps.get(series, set())
            keep = series in self.whole or bool(steps - {last})
            if is_output(first, place):
                keep = True  # it is the spikes
            store.append(keep)
            need_final = need_final or last in steps
        over_time: Any = leaves.SEQUENCES[first.target]
        made = self.graph.call_function(
            over_time,
            (
                self.source(chain.input),
                chain.steps if constant else None,
                states,
                parameters,
                kernel,
                options,
                tuple(store),
                need_final,
            ),
        )
        count = len(chain.series)
        for place, series in enumerate(chain.series):
            if series in self.whole or series in self.steps:
                if place == 0 or store[place - 1]:
                    self.sequence[series] = self.graph.call_function(operator.getitem, (made, place))
                if place and last in self.steps.get(series, ()):
                    self.final[series] = self.graph.call_function(operator.getitem, (made, count + place - 1))
        self._take(chain)

    def _emit_slices(self, slices: Slices) -> None:
        assert slices.of is not None
        sequence = self.value(slices.of)
        size = nodes.value_of(slices.of).shape[slices.dim]
        if slices.dim:
            sequence = self.graph.call_function(torch.movedim, (sequence, slices.dim, 0))
        if slices.first or size != slices.steps:
            where = slice(slices.first, slices.first + slices.steps)
            sequence = self.graph.call_function(operator.getitem, (sequence, where))
        self.sequence[slices.series[0]] = sequence
        self._take(slices)

    def _emit_operator(self, bundle: Operator) -> None:
        assert bundle.call is not None
        assert bundle.make is not None

        def given(argument: Any) -> Any:
            if isinstance(argument, rules.Lifted):
                return self.source(argument.source)
            return self.value(argument) if isinstance(argument, Node) else argument

        args = rules.changed(bundle.call.args, given)
        kwargs = rules.changed(bundle.call.kwargs, given)
        self.sequence[bundle.series[0]] = bundle.make(self.graph, args, kwargs)
        self._take(bundle)

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
        if node in self.plan.member:
            return self.taken[self.plan.member[node]]
        return self.single[node]

    def source(self, source: Source) -> Any:
        """A sequence; what is constant as one step."""
        if isinstance(source, Constant):
            return self.value(source.value) if isinstance(source.value, Node) else source.value
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
        """The results, none of which shares memory with another or with what was theirs alone before."""
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
            stacked = self._stacked(node)
            if stacked is not None:
                part: Any = stacked.parts[0]
                shared = shared or self._has_others(part.series, node)
            return self.graph.call_function(helpers.own_copy, (made,)) if shared else made

        given_for: Dict[Any, Any] = {}
        flat_now = nodes.leaves_of(output.args[0])
        results = [result(pair) for pair in zip(flat_now, self.outputs)]
        left = iter(results)
        return map_arg(output.args[0], lambda n: next(left))

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
    return (unit,) if isinstance(unit, Node) else unit.nodes


def _rank(unit: Any) -> int:
    return 0 if isinstance(unit, Node) and unit.op in ("placeholder", "get_attr") else 1
