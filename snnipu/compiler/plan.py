"""Which nodes of an unrolled loop become one: chains of neuron steps, and the operators around them."""

import functools
import re
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

import torch
from torch.fx import Graph, Node

from snnipu.backends import has_kernels
from snnipu.compiler import nodes, rules
from snnipu.compiler.cycles import components
from snnipu.compiler.reasons import Reason, reason
from snnipu.compiler.steps import fed_back, is_output, is_step, module_of
from snnipu.compiler.rules import Call, Lifted, Make
from snnipu.ops import leaves


@dataclass(eq=False)
class Series:
    """One result of a bundle, over time."""

    bundle: "Bundle"
    output: int
    value: Any  # of the first step

    @property
    def steps(self) -> int:
        return self.bundle.steps


@dataclass(frozen=True)
class Constant:
    """The same at every step: a node, or what is not one."""

    value: Any


@dataclass(frozen=True)
class Part:
    """Steps ``first`` to ``last`` (excluded) of a series."""

    series: Series
    first: int
    last: int


@dataclass(frozen=True)
class Pieces:
    """A sequence put together from parts of series and single nodes."""

    parts: Tuple[Union[Part, Node], ...]
    steps: int

    def whole(self) -> Optional[Series]:
        if len(self.parts) == 1 and isinstance(self.parts[0], Part):
            part = self.parts[0]
            if part.first == 0 and part.last == part.series.steps:
                return part.series
        return None


Source = Union[Constant, Pieces]


@dataclass(eq=False)
class Bundle:
    """Nodes of all steps that become one."""

    nodes: Tuple[Node, ...]
    series: List[Series] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.nodes)

    def sources(self) -> Iterator[Source]:
        raise NotImplementedError

    def all_nodes(self) -> Tuple[Node, ...]:
        """With those that it does besides."""
        return self.nodes


@dataclass(eq=False)
class Operator(Bundle):
    """One operator over time."""

    call: Optional[Call] = None
    make: Optional[Make] = None

    def sources(self) -> Iterator[Source]:
        assert self.call is not None
        for lifted in self.call.lifted():
            yield lifted.source
        found: List[Node] = []
        rules.walk((self.call.args, self.call.kwargs), lambda a: found.append(a) if isinstance(a, Node) else None)
        for node in found:
            yield Constant(node)


@dataclass(eq=False)
class Slices(Bundle):
    """Steps of a tensor that is there already: ``x[t]``, ``x[..., t]``, ``x[:, 2 * t, 1:]``, results of ``x.unbind()``.

    Attributes:
        index: of all steps together.
        dim: of time in what it gives.
        each: indices of one step, where it is a slice, ``x[t * 4 : t * 4 + 4]``; 0: it is a number.
        backwards: the last step comes first.
    """

    of: Optional[Node] = None
    index: Tuple[Any, ...] = ()
    dim: int = 0
    each: int = 0
    backwards: bool = False

    def sources(self) -> Iterator[Source]:
        yield Constant(self.of)


@dataclass(frozen=True)
class Feedback:
    """A summand of a neuron's input: a layer's output for its own spikes of the step before."""

    spikes: Node  # before the first step
    weight: Node
    bias: Optional[Node]
    geometry: Tuple[int, ...]  # of a Connection
    transposed: bool  # the weight is that of a product from the left
    minus: bool  # the layer's output is subtracted
    inputs: Tuple[Any, ...]  # the other summand, of each step
    done: Tuple[Node, ...]  # the layer's and the sum's calls, which the chain does in their place


@dataclass(eq=False)
class Chain(Bundle):
    """A neuron's steps."""

    input: Optional[Source] = None
    name: str = ""
    feedback: Optional[Feedback] = None

    def all_nodes(self) -> Tuple[Node, ...]:
        return self.nodes if self.feedback is None else (*self.nodes, *self.feedback.done)

    def sources(self) -> Iterator[Source]:
        assert self.input is not None
        yield self.input
        if self.feedback is not None:
            for given in (self.feedback.spikes, self.feedback.weight, self.feedback.bias):
                yield Constant(given)
        # States, parameters; a surrogate's numbers and options, which TorchDynamo makes inputs once they have changed.
        for node in nodes.leaves_of(self.nodes[0].args[1:5]):
            yield Constant(node)


@dataclass
class Found:
    """A chain as it stands in the graph, whether or not it becomes a sequence.

    ``reason``: why it does not; ``apart``: the steps before ``steps`` that stay steps; ``alone``: no step goes on from
    the one before, so that they are an operator like others.
    """

    name: str
    kind: str
    steps: Tuple[Node, ...]
    reason: Optional[Reason] = None
    feedback: Optional[Feedback] = None
    apart: int = 0
    alone: bool = False


# Operators, each the input of the next one, that are looked at before the last is one over time: in a loop that
# only its own earlier steps make, each of these is another step.
_DEEPEST = 200
# Python's calls that are open then.
STACK = 3000


class Plan:
    """Bundles of a graph's nodes, so that the graph of bundles has no cycle."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.place = {node: place for place, node in enumerate(graph.nodes)}
        self.changed, self.before = nodes.changed_memory(graph)
        self.random = [node for node in graph.nodes if nodes.is_random(node)]
        self.barriers = [node for node in graph.nodes if nodes.is_barrier(node)]
        self.effects: Set[Node] = {*self.changed, *self.random, *self.barriers}
        # Batch norms over time change the running averages in the steps' order.
        self.norms = {node for node in graph.nodes if nodes.is_norm_in_training(node)}
        self.fixed: Set[Node] = self.effects - self.norms
        self.chains = self._alone_together(self._find_chains())
        self.alone = {step for chain in self.chains if chain.alone for step in chain.steps}
        self.banned: Set[Node] = set()
        # Why nodes of bundles that need their own results are not one.
        self.reasons: Dict[Node, Reason] = {}
        for chain in self.chains:
            if chain.reason is None:
                self._find_feedback(chain)
        for chain in self.chains:
            if chain.reason is not None and not chain.alone:
                self.banned.update(chain.steps)
        self._order = self._order_edges()
        # What needed its own results when everything was bundled that can be.
        self.cycles: List[List[Any]] = []
        while True:
            self._bundle_all()
            unfit = self._in_cycles() or self._loose_tuples()
            if not unfit:
                break
            self.banned.update(unfit)
        for chain in self.chains:
            left = [step for step in chain.steps if step not in self.bundle_of]
            if chain.alone and left in ([], [chain.steps[0]]):
                chain.steps, chain.reason, chain.apart = chain.steps[len(left) :], None, len(left)
            elif chain.reason is None and left:
                chain.reason = self.reasons[chain.steps[0]]

    # ---- chains

    def _find_chains(self) -> List[Found]:
        steps = [node for node in self.graph.nodes if is_step(node)]
        before: Dict[Node, Optional[Node]] = {step: self._step_before(step) for step in steps}
        before.update(self._independent(steps))
        after: Dict[Node, Node] = {}
        for step, previous in before.items():
            if previous is not None:
                after.setdefault(previous, step)
        names = {step: module_of(step) for step in steps}
        found = []
        for step in steps:
            previous = before[step]
            if previous is not None and after.get(previous) is step:
                continue
            chain = [step]
            while chain[-1] in after:
                chain.append(after[chain[-1]])
            name, kind = names[step]
            why = reason(str(step.args[5]), step) if step.args[5] else None
            if why is None and any(node in self.fixed for node in chain):
                why = self._changed_in_place(chain)
            elif why is None and len(chain) < 2:
                same = [other for other in steps if names[other] == names[step]]
                at = max(same.index(step) - 1, 0)
                why = self._apart(*same[at : at + 2])
            found.append(Found(name, kind, tuple(chain), why))
        return found

    def _alone_together(self, found: Sequence[Found]) -> List[Found]:
        """The steps of a layer none of which goes on from the one before, as one."""
        alone: Dict[Any, List[Found]] = {}
        for chain in found:
            step = chain.steps[0]
            if len(chain.steps) == 1 and step.target is leaves.neuron_step and not self.fixed & {step}:
                alone.setdefault((chain.name, step.target, step.args[2:]), []).append(chain)
        groups = {}
        for chains in alone.values():
            if len(chains) > 1 and not self._comes_from(chains[1].steps[0], chains[0].steps[0]):
                groups[chains[0].steps[0]] = chains
        inside = {chain.steps[0] for chains in groups.values() for chain in chains}
        made = []
        for chain in found:
            if chain.steps[0] in groups:
                steps = tuple(one.steps[0] for one in groups[chain.steps[0]])
                made.append(Found(chain.name, chain.kind, steps, chain.reason, alone=True))
            elif chain.steps[0] not in inside:
                made.append(chain)
        return made

    @functools.cached_property
    def memory(self) -> nodes.Memory:
        return nodes.Memory(self.graph)

    def _changed_in_place(self, chain: Sequence[Node]) -> Reason:
        """Why a neuron's steps stay steps one of whose results is changed in place."""
        memory = self.memory
        results = {memory.root(user): user.args[1] for step in chain for user in step.users}
        for node, changed in memory.changes.items():
            for root in map(memory.root, changed):
                if root in results:
                    spikes = results[root] == 0 and not is_output(chain[0], 0)
                    return reason("spikes_in_place" if spikes else "state", node)
        return reason("state", chain[0])

    def _apart(self, step: Node, after: Optional[Node] = None) -> Reason:
        """Why a step of a neuron is not followed by another one, ``after``: the neuron's next step, if there is one."""
        if after is None:
            return reason("one_step", step)
        shapes = [nodes.key_of(nodes.value_of(given.args[0])) for given in (step, after)]
        if shapes[0] != shapes[1]:
            return reason("form", *(given for given in (step.args[0], after.args[0]) if isinstance(given, Node)))
        states: Any = after.args[1]
        for place, state in enumerate(states):
            own = [place + 1, 0] if is_output(step, place) else [place + 1]
            taken = isinstance(state, Node) and nodes.name_of(state) == "getitem" and state.args[0] is step
            if not taken or state.args[1] not in own:
                made = isinstance(state, Node) and self._comes_from(state, step)
                return reason("state", state) if made else reason("restarted", after)
        parameters: Any = after.args[2]
        for one, other in zip(step.args[2], parameters):  # type: ignore[arg-type]
            if one is not other:
                return reason("parameter", other if isinstance(other, Node) and other.all_input_nodes else after)
        return reason("options", after)

    def _comes_from(self, node: Node, source: Node) -> bool:
        """Whether a node is computed from another one."""
        seen, waiting = {node}, [node]
        while waiting:
            for one in waiting.pop().all_input_nodes:
                if one is source:
                    return True
                if one not in seen and self.place[one] > self.place[source]:
                    seen.add(one)
                    waiting.append(one)
        return False

    def _independent(self, steps: Sequence[Node]) -> Dict[Node, Optional[Node]]:
        """Of the steps that start from zeros whatever came before, the one of the same layer that ran last."""
        found: Dict[Node, Optional[Node]] = {}
        last: Dict[Any, Node] = {}
        for step in steps:
            if leaves.restarts(step.target, nodes.values_of(step.args[2]), step.args[4]):
                key = (step.args[2:], nodes.key_of(nodes.value_of(step.args[0])))
                found[step] = last.get(key)
                last[key] = step
        return found

    def _step_before(self, step: Node) -> Optional[Node]:
        """The step whose states this one goes on with, the same neuron's."""
        states: Any = step.args[1]
        sources = set()
        for place, state in enumerate(states):
            if not isinstance(state, Node) or nodes.name_of(state) != "getitem":
                return None
            previous, output = state.args
            if not isinstance(previous, Node) or not is_step(previous):
                return None
            if output != place + 1 and not (output == 0 and is_output(step, place)):
                return None
            sources.add(previous)
        if len(sources) != 1:
            return None
        previous = sources.pop()
        same = previous.target is step.target and previous.args[2:] == step.args[2:]
        if not same or nodes.key_of(nodes.value_of(previous.args[0])) != nodes.key_of(nodes.value_of(step.args[0])):
            return None
        return previous

    def _find_feedback(self, chain: Found) -> None:
        """Note that the chain's own spikes of the step before come back through a layer.

        The first step, which has none before it, stays a step where its input is of another form.
        """
        steps = chain.steps
        if steps[0].target not in leaves.FED_BACK or leaves.output_state(steps[0].target, steps[0].args[4]) is not None:
            return
        if any(self.place[steps[0].all_input_nodes[0]] < self.place[b] < self.place[steps[-1]] for b in self.barriers):
            return
        found = [fed_back(step, self.fixed) for step in steps]
        own = [_taken(step, 0) for step in steps[:-1]]
        later = [next((one for one in some if one[0] in taken), None) for some, taken in zip(found[1:], own)]
        if later[0] is None or any(one is None or one[1] != later[0][1] for one in later):
            return
        layer: Any = later[0][1]
        first = next((one for one in found[0] if one[1] == layer), None)
        if first is None:
            if len(steps) < 3:
                return
            chain.steps, chain.apart = steps[1:], 1
            first = later.pop(0)
        chosen = [one for one in (first, *later) if one is not None]
        weight, bias, geometry, transposed, minus = layer
        inputs = tuple(one[2] for one in chosen)
        totals: List[Any] = [step.args[0] for step in chain.steps]
        products = [one for total, (_, _, other) in zip(totals, chosen) for one in total.args if one is not other]
        chain.feedback = Feedback(
            chosen[0][0], weight, bias, geometry, transposed, minus, inputs, done=(*totals, *products)
        )
        # Together with those of a first step that stays, they would need the chain's results.
        self.banned.update(chain.feedback.done)

    # ---- bundles

    def _bundle_all(self) -> None:
        self.member: Dict[Node, Tuple[Series, int]] = {}
        self.bundle_of: Dict[Node, Bundle] = {}
        self.bundles: List[Bundle] = []
        self._tried: Set[Tuple[Node, ...]] = set()
        self._in_progress: Set[Node] = set()
        self._depth = 0
        waiting: List[List[Any]] = []
        for found in self.chains:
            if not found.alone and not any(node in self.banned for node in found.steps):
                chain = Chain(found.steps, name=found.name, feedback=found.feedback)
                results = nodes.value_of(found.steps[0])
                chain.series = [Series(chain, place, value) for place, value in enumerate(results)]
                self._add(chain)
                self.bundle_of.update((node, chain) for node in chain.all_nodes())
                for t, step in enumerate(found.steps):
                    for user in step.users:
                        output: Any = user.args[1]
                        if output > 0 and is_output(step, output - 1):
                            output = 0
                        self.member[user] = chain.series[output], t
        for found in self.chains:
            if found.alone:
                self.pull(found.steps)
                waiting.append(_outputs(found.steps))
                continue
            bundle = self.bundle_of.get(found.steps[0])
            inputs: List[Any] = [step.args[0] for step in found.steps]
            if bundle is not None and found.feedback is not None:
                inputs = list(found.feedback.inputs)
            source = self.pull(inputs)
            if isinstance(bundle, Chain):
                bundle.input = source if source is not None else Pieces(tuple(inputs), len(found.steps))
            waiting.append(_outputs(found.steps))
        # A list may hold the results of some steps alone, and is all that shows where no neuron does.
        lists = [listed for listed in map(listed_by, self.graph.nodes) if listed is not None and len(listed) > 1]
        left = any(found.reason is not None for found in self.chains)
        # What a step makes last comes first: by it states are found as those of this step, not of the one before.
        repeated = self._repeated()[::-1] if left or not self.chains else []
        for values in (*repeated, *lists) if left else (*lists, *repeated):
            self.pull(values)
        # What else is done with a sequence, step by step.
        known = 0
        while waiting or known < len(self.bundles):
            for bundle in self.bundles[known:]:
                if not isinstance(bundle, Chain):
                    waiting.append([list(bundle.nodes)])
            known = len(self.bundles)
            for outputs in waiting:
                for output in outputs:
                    self._bundle_users(output)
            waiting = []

    def _repeated(self) -> List[List[Node]]:
        """Calls that the program makes at one place, one a step: where neurons do not show what a step is."""
        found: Dict[Any, List[Node]] = {}
        for node in self.graph.nodes:
            known = node.op in ("call_function", "call_method") and nodes.name_of(node) != "getitem"
            if known and nodes.is_tensor(node) and "stack_trace" in node.meta:
                fixed = tuple(one for one in node.all_input_nodes if one.op in ("placeholder", "get_attr"))
                found.setdefault((fixed, node.op, node.target, node.meta["stack_trace"]), []).append(node)
        # A layer or a neuron is called once in a step; what has no weights may be of several layers.
        named = Counter(chain.name for chain in self.chains for _ in chain.steps if chain.name)
        counts = Counter(calls for calls in named.values() if calls > 2)
        if len(counts) != 1:  # else the neurons agree, and a layer may be called at every second step
            counts.update(len(calls) for (fixed, *_), calls in found.items() if fixed and len(calls) > 2)
        counts = counts or Counter(len(calls) for calls in found.values() if len(calls) > 2)
        steps = counts.most_common(1)[0][0] if counts else 0
        return [calls for calls in found.values() if len(calls) == steps > 2]

    def _bundle_users(self, output: Sequence[Any]) -> None:
        """Bundle what every step does with the nodes of ``output``, one or several for each step."""
        by_kind: List[Dict[Any, List[Node]]] = []
        for t, given in enumerate(output):
            kinds: Dict[Any, List[Node]] = {}
            for node in given if isinstance(given, (list, tuple)) else [given]:
                for user in node.users:
                    if user.op not in ("call_function", "call_method") or is_step(user) or user in self.member:
                        continue
                    places = tuple(place for place, argument in enumerate(user.args) if argument is node)
                    kinds.setdefault((user.op, user.target, places), []).append(user)
            if t == 0 and not kinds:
                return
            by_kind.append(kinds)
        for kind, first in by_kind[0].items():
            if all(len(kinds.get(kind, ())) == len(first) for kinds in by_kind):
                for place in range(len(first)):
                    users = [kinds[kind][place] for kinds in by_kind]
                    if len(set(users)) == len(users):
                        self.pull(users)

    def _add(self, bundle: Bundle) -> None:
        self.bundles.append(bundle)
        for node in bundle.nodes:
            self.bundle_of[node] = bundle

    def pull(self, values: Sequence[Any]) -> Optional[Source]:
        """The values of all steps as one; None where they cannot be stacked."""
        first = values[0]
        if all(value is first for value in values):
            return Constant(first)
        if not any(isinstance(value, Node) for value in values):
            same = all(type(value) is type(first) and value == first for value in values)
            return Constant(first) if same else None
        if not all(isinstance(value, Node) for value in values):
            return None
        key = nodes.key_of(nodes.value_of(first))
        if any(nodes.key_of(nodes.value_of(value)) != key for value in values):
            return None
        if not nodes.is_tensor(first) and not isinstance(nodes.value_of(first), (tuple, list)):
            return Constant(first)  # a size: equal, for its symbols are
        if any(value in self._in_progress for value in values):
            return None  # what needs its own earlier results
        self._bundle(tuple(values))
        parts: List[Union[Part, Node]] = []
        for value in values:
            if value not in self.member:
                parts.append(value)
                continue
            series, t = self.member[value]
            last = parts[-1] if parts else None
            if isinstance(last, Part) and last.series is series and last.last == t:
                parts[-1] = Part(series, last.first, t + 1)
            else:
                parts.append(Part(series, t, t + 1))
        pieces = Pieces(tuple(parts), len(values))
        if not nodes.is_tensor(first) and pieces.whole() is None:
            return None
        return pieces

    def _bundle(self, values: Tuple[Node, ...]) -> None:
        """Make one of the nodes among ``values`` that can be one."""
        if values in self._tried:
            return
        self._tried.add(values)
        start = 0
        while start < len(values):
            end = start
            while end < len(values) and values[end] not in self.member:
                end += 1
            run = values[start:end]
            # The first step often differs from the others: it has nothing before it.
            if len(run) > 1 and not self._bundle_run(run) and len(run) > 2:
                self._bundle_run(run[1:])
            start = max(end, start + 1)

    def _bundle_run(self, run: Tuple[Node, ...]) -> bool:
        first = run[0]
        if first.op not in ("call_function", "call_method") or (is_step(first) and first not in self.alone):
            return False
        if first in self.norms and any(self.place[a] > self.place[b] for a, b in zip(run, run[1:])):
            return False
        if len(set(run)) < len(run) or any((n.op, n.target) != (first.op, first.target) for n in run):
            return False
        if any(len(n.args) != len(first.args) or list(n.kwargs) != list(first.kwargs) for n in run):
            return False
        name = nodes.name_of(first)
        banned = any(node in self.banned or node in self.fixed for node in run)
        if name in ("getitem", "select"):
            sliced = self._slices(run)
            if sliced is not None:
                if not banned:
                    self._register(sliced, nodes.value_of(first))
                return not banned
        if self._depth == _DEEPEST:
            return False
        self._in_progress.update(run)
        self._depth += 1
        args = self._lift([list(n.args) for n in run])
        kwargs = self._lift([dict(n.kwargs) for n in run])
        self._depth -= 1
        self._in_progress.difference_update(run)
        if banned or args is None or kwargs is None or any(n in self.member or n in self.bundle_of for n in run):
            return False
        call = Call(first, tuple(args), kwargs)
        if not call.lifted():
            return False
        make = rules.over_time(call)
        if make is None:
            return False
        self._register(Operator(run, call=call, make=make), nodes.value_of(first))
        return True

    def _register(self, bundle: Bundle, value: Any) -> None:
        self._add(bundle)
        if bundle.nodes[0] in self.alone:
            bundle.series = [Series(bundle, place, one) for place, one in enumerate(value)]
            for t, step in enumerate(bundle.nodes):
                for user in step.users:
                    output: Any = user.args[1]
                    self.member[user] = bundle.series[output], t
            return
        bundle.series = [Series(bundle, 0, value)]
        for t, node in enumerate(bundle.nodes):
            self.member[node] = bundle.series[0], t

    def _lift(self, values: List[Any]) -> Any:
        """An argument of all steps' calls: what is the same stays, the rest is Lifted; None where neither works."""
        first = values[0]
        if isinstance(first, (list, tuple)):
            if any(type(value) is not type(first) or len(value) != len(first) for value in values):
                return None
            made = [self._lift([value[place] for value in values]) for place in range(len(first))]
            # None is an argument, too.
            if any(one is None and first[place] is not None for place, one in enumerate(made)):
                return None
            return tuple(made) if isinstance(first, tuple) else made
        if isinstance(first, dict):
            named = {key: self._lift([value.get(key) for value in values]) for key in first}
            return None if any(named[key] is None and first[key] is not None for key in first) else named
        if isinstance(first, slice):
            if not all(isinstance(value, slice) for value in values):
                return None
            made = [self._lift([getattr(value, name) for value in values]) for name in ("start", "stop", "step")]
            if any(
                one is None and getattr(first, name) is not None for one, name in zip(made, ("start", "stop", "step"))
            ):
                return None
            return slice(*made)
        source = self.pull(values)
        if source is None:
            return None
        return source.value if isinstance(source, Constant) else Lifted(nodes.value_of(first), source)

    def _slices(self, run: Tuple[Node, ...]) -> Optional[Slices]:
        """Steps of one tensor, in order."""
        if any(node.kwargs or not 2 <= len(node.args) <= 3 for node in run):
            return None
        of: Any = run[0].args[0]
        if not isinstance(of, Node) or any(node.args[0] is not of for node in run) or of in self.member:
            return None
        value = nodes.value_of(of)
        if nodes.name_of(run[0]) == "select":
            if not nodes.is_tensor(of) or any(len(node.args) != 3 or type(node.args[1]) is not int for node in run):
                return None
            indices = [((slice(None),) * (node.args[1] % value.dim())) + (node.args[2],) for node in run]
        else:
            indices = [node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],) for node in run]
        if isinstance(value, (tuple, list)):
            if nodes.name_of(of) != "unbind" or not isinstance(of.args[0], Node):
                return None
            dim = of.args[1] if len(of.args) > 1 else of.kwargs.get("dim", 0)
            of, value = of.args[0], nodes.value_of(of.args[0])
            if type(dim) is not int or not nodes.is_tensor(of):
                return None
            indices = [(slice(None),) * (dim % value.dim()) + index for index in indices]
        if not nodes.is_tensor(of) or any(len(index) != len(indices[0]) for index in indices):
            return None
        varying = [at for at, same in enumerate(zip(*indices)) if any(one != same[0] for one in same)]
        if len(varying) != 1 or not _is_basic(indices[0]):
            return None
        at, left = varying[0], value.dim() - sum(one is not None and one is not Ellipsis for one in indices[0])
        size = value.shape[sum(left if one is Ellipsis else one is not None for one in indices[0][:at])]
        found = _progression([index[at] for index in indices], size)
        if found is None:
            return None
        index = (*indices[0][:at], found[0], *indices[0][at + 1 :])
        dim = sum(left if one is Ellipsis else type(one) is not int for one in index[:at])
        return Slices(run, of=of, index=index, dim=dim, each=found[1], backwards=found[2])

    # ---- the graph of bundles

    def _order_edges(self) -> Dict[Node, List[Node]]:
        """What must run before a node besides its arguments."""
        edges = {node: list(earlier) for node, earlier in self.before.items()}
        for earlier, later in zip(self.random, self.random[1:]):
            edges.setdefault(later, []).append(earlier)
        if self.barriers:
            barrier: Optional[Node] = None
            since: List[Node] = []
            for node in self.graph.nodes:
                if node in self.barriers:
                    edges.setdefault(node, []).extend(since + ([barrier] if barrier is not None else []))
                    barrier, since = node, []
                elif node.op not in ("placeholder", "get_attr", "output"):
                    since.append(node)
                    if barrier is not None:
                        edges.setdefault(node, []).append(barrier)
        return edges

    def unit(self, node: Node) -> Any:
        """What a node is part of: its bundle, or itself."""
        if node in self.member:
            return self.member[node][0].bundle
        return self.bundle_of.get(node, node)

    def needs(self, unit: Any) -> List[Any]:
        """The units that must run before this one."""
        return list(dict.fromkeys([*self._given(unit), *(self.unit(earlier) for _, earlier in self._behind(unit))]))

    def _given(self, unit: Any) -> List[Any]:
        """The units whose results this one takes."""
        if isinstance(unit, Bundle):
            return [one for source in unit.sources() for one in self._units_of(source)]
        return [self.unit(node) for node in unit.all_input_nodes]

    def _behind(self, unit: Any) -> List[Tuple[Node, Node]]:
        """What of the unit runs behind what of other units, though it takes no result of theirs."""
        inside = unit.all_nodes() if isinstance(unit, Bundle) else (unit,)
        # A norm's own steps are in order.
        return [
            (node, earlier)
            for node in inside
            for earlier in self._order.get(node, ())
            if node not in self.norms or self.unit(earlier) is not unit
        ]

    def _units_of(self, source: Source) -> Iterable[Any]:
        if isinstance(source, Constant):
            return [self.unit(source.value)] if isinstance(source.value, Node) else []
        return [part.series.bundle if isinstance(part, Part) else self.unit(part) for part in source.parts]

    def _units(self) -> List[Any]:
        return list(dict.fromkeys(self.unit(node) for node in self.graph.nodes))

    def _loose_tuples(self) -> Set[Node]:
        """The nodes of bundles with several results, where a single step takes one of them: there is no such tuple."""
        return {
            node
            for bundle in self.bundles
            if isinstance(bundle, Operator) and isinstance(bundle.series[0].value, (tuple, list))
            if any(user not in self.member for one in bundle.nodes for user in one.users)
            for node in bundle.nodes
        }

    def _in_cycles(self) -> Set[Node]:
        """The nodes of bundles that need their own results."""
        found = [one for one in components(self._units(), self.needs) if len(one) > 1 or one[0] in self.needs(one[0])]
        if not self.cycles:
            self.cycles = found
        for component in found:
            self._note_cycles(component)
        return {node for one in found for unit in one if isinstance(unit, Bundle) for node in unit.nodes}

    def _note_cycles(self, component: Sequence[Any]) -> None:
        """Note why the bundles of a component are none: for each neuron, how its results come back to it."""
        bundles = [unit for unit in component if isinstance(unit, Bundle)]
        chains = [unit for unit in bundles if isinstance(unit, Chain)]
        found = []
        for unit in chains or bundles[:1]:
            path = self._cycle(unit, self._given, component)
            why = self._feedback(path) if path else self._in_order(self._cycle(unit, self.needs, component))
            found.append((path, why))
            self.reasons.update(dict.fromkeys(unit.nodes, why))
        for unit in bundles:
            if unit not in chains:
                why = next((why for path, why in found if unit in path), found[0][1])
                self.reasons.update(dict.fromkeys(unit.nodes, why))

    @staticmethod
    def _cycle(unit: Any, needs: Callable[[Any], List[Any]], component: Sequence[Any]) -> List[Any]:
        """The shortest way on which a unit's results come back to it, the unit first; empty: there is none."""
        inside = set(component)
        taker: Dict[Any, Any] = {}
        waiting = deque([unit])
        while waiting:
            one = waiting.popleft()
            for other in needs(one):
                if other is unit:
                    path = [unit]
                    while one is not unit:
                        path.append(one)
                        one = taker[one]
                    return path
                if other in inside and other not in taker:
                    taker[other] = one
                    waiting.append(other)
        return []

    def _feedback(self, path: Sequence[Any]) -> Reason:
        """The reason that results come back on this way."""
        heads = [unit.nodes[0] if isinstance(unit, Bundle) else unit for unit in path]
        neurons = {module_of(node) for node in heads if is_step(node)}
        between = {nodes.name_of(node) for node in heads if not is_step(node)}
        if not neurons:
            return reason("recurrent", *heads)
        if len(neurons) > 1:
            return reason("feedback_others", *heads)
        elementwise = between <= nodes.ELEMENTWISE | {"getitem"}
        return reason("feedback_elementwise" if elementwise else "feedback_layer", *heads)

    def _in_order(self, path: Sequence[Any]) -> Reason:
        """The reason that what is on this way must run in the loop's order."""
        for unit, other in zip([*path[1:], path[0]], path):
            if other in self._given(unit):
                continue
            node, earlier = next(pair for pair in self._behind(unit) if self.unit(pair[1]) is other)
            barrier = next((one for one in (earlier, node) if one in self.barriers), None)
            if barrier is not None:
                after = (one for one in self.graph.nodes if self.place[one] > self.place[barrier])
                return reason("mode", next(one for one in after if one not in self.barriers))
            changes = self.memory.changes
            writer = earlier if earlier in changes else node
            if writer not in changes:
                return reason("random_order", earlier, node)
            parameters = {
                one for unit in path if isinstance(unit, Chain) for one in nodes.leaves_of(unit.nodes[0].args[2])
            }
            return reason("parameter" if parameters & {*changes[writer]} else "written", writer)
        raise AssertionError("a way of data alone")


def _taken(step: Node, output: int) -> List[Node]:
    """The nodes that take a result of a step."""
    return [user for user in step.users if nodes.name_of(user) == "getitem" and user.args[1] == output]


_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def _outputs(steps: Sequence[Node]) -> List[List[List[Node]]]:
    """For each result of a neuron, the nodes that take it from each step."""
    count = len(nodes.value_of(steps[0]))
    return [[[user for user in step.users if user.args[1] == place] for step in steps] for place in range(count)]


def listed_by(node: Node) -> Optional[List[Node]]:
    """The tensors that ``stack`` and ``cat`` put together."""
    if node.op != "call_function" or nodes.name_of(node) not in ("stack", "cat", "concat") or not node.args:
        return None
    listed: Any = node.args[0]
    if not isinstance(listed, (tuple, list)) or not all(isinstance(one, Node) for one in listed):
        return None
    return list(listed)


def _is_basic(index: Tuple[Any, ...]) -> bool:
    """Whether an index gives a view, and names no other node."""
    return all(type(one) is int or one is None or one is Ellipsis or isinstance(one, slice) for one in index) and not (
        nodes.leaves_of(index)
    )


def _progression(places: List[Any], size: Any) -> Optional[Tuple[slice, int, bool]]:
    """The slice of places at equal distances, how many indices each is (a number: 0), whether they run backwards."""
    each, starts = 0, places
    if all(type(one) is int for one in (*places, size)):
        starts = places = [one % size for one in places]
    if isinstance(places[0], slice):
        if any(not isinstance(one, slice) or one.step not in (None, 1) for one in places):
            return None
        each = _distance([one.stop for one in places], [one.start or 0 for one in places])
        starts = [one.start or 0 for one in places]
    if any(type(start) is not int or start < 0 for start in starts) or (places is not starts and not each):
        return None
    by = _distance(starts[1:], starts[:-1])
    if not by or (each and by != each):
        return None
    last = starts[-1] + (each or 1)
    if by > 0:
        return slice(starts[0], last, 1 if each else by), each, False
    return slice(starts[-1], starts[0] + 1, -by), 0, True


def _distance(ends: List[Any], starts: List[Any]) -> int:
    """The distance that all have; 0 where they differ, or are no numbers."""
    if any(type(one) is not int for one in (*ends, *starts)):
        return 0
    found = {end - start for end, start in zip(ends, starts)}
    return found.pop() if len(found) == 1 else 0
