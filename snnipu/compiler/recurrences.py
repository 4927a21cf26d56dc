"""Neurons that a program writes out, or whose step a subclass changes: elementwise operators whose results come back.

The operators of one step are recorded as the step of a neuron, as :func:`snnipu.neuron` records a function, and a call
of that neuron takes their place in the graph: its steps are then a chain like that of any other neuron.
"""

import functools
import logging
import operator
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, Callable, Container, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch
from torch.fx import Graph, Node

from snnipu import backends
from snnipu._generator import TraceError
from snnipu._generator.graph import Value
from snnipu._generator.step import OUTPUT
from snnipu.compiler import nodes, own_functions
from snnipu.compiler.cycles import components
from snnipu.compiler.plan import Plan
from snnipu.compiler.runs import Argument, Before, Fixed, Given, Runs, Same, form_of, has_several, runs_of
from snnipu.ops import _neurons, leaves

_LOG = logging.getLogger("snnipu.compiler")
# What makes spikes of a membrane, though nothing of the step takes them up again: the same kernel does it.
_BEHIND = ("add", "sub", "mul", "gt", "ge", "float", "to", "spike_of", "getitem")
# In place of a surrogate where a step has no spikes.
_NO_SPIKES = (0, 1.0, 0.0)


class Term(NamedTuple):
    """A summand; the sum of a step's inputs is added before the neuron runs."""

    minus: bool
    of: Any


class Sum(NamedTuple):
    """Runs that add: the one whose result is the sum, the others whose results only it takes."""

    number: int
    inner: Tuple[int, ...]
    terms: Tuple[Term, ...]


@functools.lru_cache(maxsize=None)
def _say(missing: str) -> None:
    _LOG.warning("a neuron that is written out runs step by step: %s", missing)


def as_neurons(plan: Plan, without: Container[str] = ()) -> Dict[Node, str]:
    """Put neurons in the places of recurrences of elementwise operators.

    Args:
        without: names of nodes that are left as they are.

    Returns:
        The steps of these neurons, with the name of the node in whose place each is.
    """
    taken: Set[Node] = set()
    found: List[_Neuron] = []
    added = _with_all_results(plan)
    # The first step often differs from the others: it has nothing before it.
    for apart, ends in ((0, False), (1, False), (0, True), (1, True)):
        for runs in runs_of(plan.cycles, apart, ends):
            for made in _neurons_in(plan, runs, taken):
                if made.results[0][0].name not in without:
                    found.append(made)
                    taken |= made.members
    now: Dict[Node, Node] = {}
    steps: Dict[Node, str] = {}
    for made in found:
        steps.update(dict.fromkeys(made.put(plan.graph, now), made.results[0][0].name))
    for node in reversed(plan.graph.nodes):
        if (node in taken or node in added) and not node.users:
            plan.graph.erase_node(node)
    return steps


def _with_all_results(plan: Plan) -> Set[Node]:
    """Let all steps of a layer give what one of them does, of which the program may take the last one's alone."""
    layers: Dict[str, List[Node]] = {}
    for chain in plan.chains:
        if chain.reason is not None:
            layers.setdefault(str(chain.steps[0].args[2]), []).extend(chain.steps)
    added: Set[Node] = set()
    for steps in layers.values():
        given = [{user.args[1] for user in step.users if nodes.name_of(user) == "getitem"} for step in steps]
        for step, places in zip(steps, given):
            for place in set().union(*given) - places:
                with plan.graph.inserting_after(step):
                    made = plan.graph.call_function(operator.getitem, (step, place))
                made.meta.update(step.meta)
                made.meta["example_value"] = nodes.value_of(step)[place]
                plan.place[made] = plan.place[step]
                added.add(made)
    return added


def _neurons_in(plan: Plan, runs: Runs, taken: Set[Node]) -> Iterator["_Neuron"]:
    for number in range(len(runs.runs)):
        runs.look(number)

    def needs(number: int) -> List[int]:
        found = runs.arguments[number]
        return [one.run for one in found if isinstance(one, (Same, Before)) and one.run in runs.arguments]

    # The last ones first: a filter whose result another one takes up is a part of that one's step.
    for component in reversed(list(components(list(runs.arguments), needs))):
        inside = set(component)
        if not any(isinstance(one, Before) and one.run in inside for n in component for one in runs.arguments[n]):
            continue
        upstream = {number for found in components(component, needs) for number in found}
        for chosen, more in ((upstream, True), (inside, True), (inside, False)):
            made = _Recording(plan, runs, chosen, taken, more).neuron()
            if made is not None:
                yield made
                break


class _Recording:
    """Runs that are to be the step of a neuron; ``more``: with what stands around their recurrence, where it may."""

    def __init__(self, plan: Plan, runs: Runs, inside: Set[int], taken: Set[Node], more: bool) -> None:
        self.plan, self.runs, self.inside, self.taken = plan, runs, set(inside), taken
        # All results of a neuron's step.
        for number, arguments in runs.arguments.items():
            first = arguments[0]
            if nodes.name_of(runs.runs[number][0]) == "getitem" and isinstance(first, Same) and first.run in inside:
                self.inside.add(number)
        if more:
            self._take_in()
            self._take_on()
        self.order = self._in_order()
        self.sum: Optional[Sum] = None
        self.fixed: Dict[Node, str] = {}
        self.kernel: Any = None

    def _members(self) -> Set[Node]:
        return {node for number in self.inside for node in self.runs.runs[number]}

    def _taken_by(self, number: int) -> List[Argument]:
        """What a run takes, as the step sees it."""
        found: List[Argument] = []
        for one in self.runs.arguments[number]:
            if isinstance(one, (Same, Before)) and one.run not in self.inside:
                run = self.runs.runs[one.run]
                one = Given(run if isinstance(one, Same) else (one.first, *run[:-1]))
            found.append(one)
        return found

    def _arguments(self) -> Iterator[Argument]:
        for number in self.inside:
            yield from self._taken_by(number)

    def _is_free(self, run: Iterable[Any]) -> bool:
        plan = self.plan
        return not any(node in self.taken or node in plan.effects or plan.before.get(node) for node in run)

    def _take_in(self) -> None:
        """What is done with the input alone."""
        while True:
            members = self._members()
            given = [one for one in self._arguments() if isinstance(one, Given)]
            for one in given:
                if len(given) > 1 or any(not isinstance(v, Node) or set(v.users) - members for v in one.values):
                    continue
                number = self.runs.add(one.values)
                if number is None or not self._is_free(one.values) or not self.runs.look(number):
                    continue
                outer = [other for other in self._taken_by(number) if not isinstance(other, Fixed)]
                if len(outer) == 1 and isinstance(outer[0], Given):
                    self.inside.add(number)
                    for inner in self.inside:
                        self.runs.look(inner)
                    break
            else:
                return

    def _take_on(self) -> None:
        """What makes spikes of the results."""
        waiting = list(self.inside)
        for number in waiting:  # which grows
            for users in self.runs.followers(number):
                if nodes.name_of(users[0]) not in _BEHIND or not self._is_free(users):
                    continue
                made = self.runs.add(users)
                if made is None or not self.runs.look(made):
                    continue
                if all(isinstance(one, (Fixed, Same)) for one in self._taken_by(made)):
                    self.inside.add(made)
                    waiting.append(made)

    def _in_order(self) -> List[int]:
        def same(number: int) -> List[int]:
            return [one.run for one in self._taken_by(number) if isinstance(one, Same)]

        return [number for component in components(sorted(self.inside), same) for number in component]

    def _sum_of(self, number: int) -> Sum:
        """A run that adds or subtracts, taken apart."""
        run = self.runs.runs[number]
        inner: List[int] = []
        terms: List[Term] = []
        for place, one in enumerate(self._taken_by(number)):
            minus = place == 1 and nodes.name_of(run[0]) == "sub"
            if not isinstance(one, Same) or not self._adds(one.run) or not self._only_for(one.run, number):
                terms.append(Term(minus, one))
                continue
            found = self._sum_of(one.run)
            inner += [one.run, *found.inner]
            terms += [Term(minus != term.minus, term.of) for term in found.terms]
        return Sum(number, tuple(inner), tuple(terms))

    def _only_for(self, number: int, user: int) -> bool:
        """Whether only the run ``user`` takes what a run gives."""
        runs = self.runs.runs
        return all(set(result.users) == {taker} for result, taker in zip(runs[number], runs[user]))

    def _adds(self, number: int) -> bool:
        run = self.runs.runs[number]
        return nodes.name_of(run[0]) in ("add", "sub") and all(len(n.args) == 2 and not n.kwargs for n in run)

    def _inputs(self) -> Optional[List[Tuple[Term, ...]]]:
        """The summands of each step's input; None where it has several that do not belong to one sum."""
        given = [one for one in self._arguments() if isinstance(one, Given)]
        if len({one.values for one in given}) == 1:
            return [(Term(False, node),) for node in given[0].values]
        sums = [self._sum_of(number) for number in self.order if self._adds(number)]
        whole = [one for one in sums if sum(isinstance(term.of, Given) for term in one.terms) == len(given) > 0]
        if not whole:
            return None
        self.sum = min(whole, key=lambda one: len(one.inner))
        # Last what the neuron's own results make: that sum may be a recurrent layer's.
        inside = self.runs.inside
        terms = [term for term in self.sum.terms if isinstance(term.of, Given)]
        terms.sort(key=lambda term: (not inside.isdisjoint(term.of.values), term.minus))
        return [tuple(Term(term.minus, term.of.values[t]) for term in terms) for t in range(self.runs.steps)]

    def neuron(self) -> Optional["_Neuron"]:
        """The neuron; None where it is none, or has no kernel here."""
        members = self._members()
        if not self._is_free(members):
            return None
        places = [self.plan.place[node] for node in members]
        if any(min(places) < self.plan.place[barrier] < max(places) for barrier in self.plan.barriers):
            return None
        starts: Dict[int, Any] = {}
        for one in self._arguments():
            if isinstance(one, Before) and starts.setdefault(one.run, one.first) is not one.first:
                return None
        inputs = self._inputs()
        given = [] if inputs is None else [term.of for terms in inputs for term in terms]
        if inputs is None or any(form_of(node) != self.runs.form or node in members for node in given):
            return None
        outside = [n for n in self.order if any(set(node.users) - members for node in self.runs.runs[n])]
        outputs = [number for number in outside if number not in starts]
        forms = [form_of(self.runs.runs[number][-1]) for number in (*starts, *outside)]
        if any(form != self.runs.form for form in forms) or any(map(self.runs.is_narrow, outside)):
            return None
        # What comes back through a layer must be the spikes.
        around = self.runs.inside - members
        fed = [n for n in outside if any(around.intersection(node.users) for node in self.runs.runs[n])]
        spk = (fed or outputs or list(starts))[-1 if fed or outputs else 0]
        states = [*starts, *(number for number in outputs if number != spk)]
        kind = module_of(self.runs.runs[spk][0])[1]
        try:
            neuron = self._recorded(kind or "recurrence", spk, states)
        except TypeError:  # of operations that kernels do not have, _generator.TraceError among them
            return None
        found = _Neuron(
            name=neuron,
            given=tuple(inputs),
            starts=tuple(starts.get(number) for number in states),
            results=tuple(self.runs.runs[number] for number in (spk, *states)),
            parameters=tuple(self.fixed),
            kernel=_NO_SPIKES if self.kernel is None else self.kernel,
            members=members,
        )
        if not found.stands(self.plan):
            return None
        missing = backends.why_not_compiled(neuron, self.runs.form[2])
        if missing:
            _say(missing)
        return None if missing else found

    def _recorded(self, name: str, spk: int, states: List[int]) -> str:
        """The name by which operators know the step."""
        for number in self.order:
            for at, one in enumerate(self._taken_by(number)):
                spike = nodes.name_of(self.runs.runs[number][0]) == "spike_of" and at > 0
                if isinstance(one, Fixed) and isinstance(one.value, Node) and not spike:
                    self.fixed.setdefault(one.value, f"p{len(self.fixed)}")
        before = {number: f"s{place}" for place, number in enumerate(states)}

        def step(x: Value, *given: Value, spike: Any, **parameters: Value) -> Tuple[Value, ...]:
            was = dict(zip(before, given))
            now: Dict[int, Any] = {}

            def value(argument: Argument) -> Any:
                if isinstance(argument, Given):
                    return x
                if isinstance(argument, Fixed):
                    fixed = argument.value
                    return parameters[self.fixed[fixed]] if isinstance(fixed, Node) else fixed
                return now[argument.run] if isinstance(argument, Same) else was[argument.run]

            for number in self.order:
                node, arguments = self.runs.runs[number][0], self._taken_by(number)
                if self.sum is not None and number in self.sum.inner:
                    continue
                if self.sum is not None and number == self.sum.number:
                    now[number] = _added(x, self.sum, value)
                elif is_step(node):
                    self._use(node.args[3])
                    now[number] = _stepped(node, [value(one) for one in arguments], spike)
                elif nodes.name_of(node) == "spike_of":
                    self._use(node.args[1:])
                    now[number] = spike(value(arguments[0]))
                else:
                    now[number] = own_functions.applied(node, [value(one) for one in arguments])
            return tuple(now[number] for number in (spk, *states))

        keyword = [Parameter(one, Parameter.KEYWORD_ONLY) for one in (*self.fixed.values(), "spike")]
        positional = [Parameter(one, Parameter.POSITIONAL_OR_KEYWORD) for one in ("x", *before.values())]
        step.__name__ = name
        step.__signature__ = Signature([*positional, *keyword])  # type: ignore[attr-defined]
        made = _neurons.register(step, {})
        _neurons.prepare(made)
        return made

    def _use(self, kernel: Any) -> None:
        """A spike has this surrogate."""
        if self.kernel is not None and tuple(kernel) != self.kernel:
            raise TraceError("two surrogates in one step")
        self.kernel = tuple(kernel)


def _added(x: Value, of: Sum, value: Callable[[Argument], Any]) -> Any:
    """A sum, ``x`` being that of its inputs, which stands where the first of them does."""
    inputs = [at for at, term in enumerate(of.terms) if isinstance(term.of, Given)]
    terms = [(at == inputs[0] or not term.minus, term) for at, term in enumerate(of.terms) if at not in inputs[1:]]
    (_, first), *others = [(plus, x if isinstance(term.of, Given) else value(term.of)) for plus, term in terms]
    # The first summand of a sum is one that is added.
    return functools.reduce(lambda total, one: total + one[1] if one[0] else total - one[1], others, first)


def _stepped(node: Node, arguments: List[Any], spike: Any) -> Tuple[Any, ...]:
    """What a neuron's step does, with symbols: spikes and states."""
    given: Any = node.args[4]
    name, names, options = given[0], given[1], dict(given[2])
    neuron = _neurons.find(name)
    x, *others = arguments
    states, parameters = others[: len(neuron.states)], others[len(neuron.states) :]
    step = neuron.steps[neuron.variant(**options)]
    states = [0.0 if state is None else state for state in states]
    made = step.function(x, *states, **dict(zip(names, parameters)), spike=spike, **options)
    spk, *after = made
    left = iter(after)
    return (spk, *(spk if name == OUTPUT else next(left) for name in neuron.states))


def _without_gradient(graph: Graph) -> Set[Node]:
    """Calls whose results nobody takes, though they stand in the graph still, or only detached."""
    found: Set[Node] = set()
    for node in reversed(graph.nodes):
        result = nodes.is_fresh(node) or has_several(node) or nodes.name_of(node) in ("getitem", "spike_of")
        passed_on = [user for user in node.users if user not in found and nodes.name_of(user) != "detach"]
        if node.op.startswith("call") and result and not passed_on:
            found.add(node)
    return found


@dataclass(eq=False)
class _Neuron:
    """A neuron that was found in a graph.

    Attributes:
        name: by which operators know it.
        given: the summands of its input at each step.
        starts: its states before the first one; None: zeros.
        results: spikes and states, nodes for all steps.
        parameters: in the order of its equation.
        kernel: the fields of its surrogate.
        members: the nodes in whose place it stands.
    """

    name: str
    given: Tuple[Tuple[Term, ...], ...]
    starts: Tuple[Any, ...]
    results: Tuple[Tuple[Node, ...], ...]
    parameters: Tuple[Node, ...]
    kernel: Tuple[Any, ...]
    members: Set[Node]

    def stands(self, plan: Plan) -> bool:
        """Find the nodes behind which its steps stand; returns whether what takes their results comes later."""
        inputs = [node for node in plan.graph.nodes if node.op == "placeholder"]
        at = max([*(plan.place[n] for n in (*self.parameters, *nodes.leaves_of(self.starts))), len(inputs) - 1])
        order = list(plan.graph.nodes)
        self.anchors = []
        for t, terms in enumerate(self.given):
            at = max([at, *(plan.place[term.of] for term in terms)])
            users = {user for run in self.results for user in run[t].users} - self.members
            if any(plan.place[user] <= at for user in users):
                return False
            self.anchors.append(order[at])
        return True

    def _learns(self, parameter: Node, without: Set[Node]) -> bool:
        """Whether anything that the program takes has a gradient for it; ``without``: what it does not."""
        if self.members.isdisjoint(parameter.users):
            return True  # nothing is known
        waiting: List[Node] = [parameter]
        seen: Set[Node] = set()
        for node in waiting:  # which grows
            for user in node.users:
                if nodes.name_of(user) == "detach" or user in seen:
                    continue
                if user in self.members:
                    seen.add(user)
                    waiting.append(user)
                elif node is not parameter and user not in without:
                    return True
        return False

    def put(self, graph: Graph, now: Dict[Node, Node]) -> List[Node]:
        """Write its steps, and return them; ``now``: what stands for the members of others, and then for its own."""
        last: Any = None
        steps: List[Node] = []
        like: Node = self.given[0][0].of

        def write(target: Any, arguments: Tuple[Any, ...], of: Node, value: Any) -> Node:
            nonlocal last
            with graph.inserting_after(last):
                kind = "call_method" if isinstance(target, str) else "call_function"
                last = graph.create_node(kind, target, arguments, name="recurrence")
            last.meta.update({key: of.meta[key] for key in ("stack_trace", "nn_module_stack") if key in of.meta})
            last.meta["example_value"] = value
            return last  # type: ignore[no-any-return]

        without = _without_gradient(graph)

        def given_to_step(one: Node) -> Node:
            value, made = nodes.value_of(one), now.get(one, one)
            learns = not getattr(value, "requires_grad", False) or self._learns(one, without)
            return made if learns else write("detach", (made,), one, value.detach())

        def started(start: Any) -> Any:
            if start is None:
                return None
            if not isinstance(start, Node):
                return write(torch.full_like, (like, start), like, nodes.value_of(like))
            made = given_to_step(start)
            if form_of(start) == form_of(like):
                return made
            return write("expand_as", (made, like), like, nodes.value_of(like))

        values = tuple(nodes.value_of(run[-1]) for run in self.results)
        learns = any(value.requires_grad for value in values)
        options = (self.name, tuple(f"p{place}" for place in range(len(self.parameters))), ())

        def added(terms: Tuple[Term, ...]) -> Node:
            total: Any = None
            for minus, one in terms:
                value, given = nodes.value_of(one), now.get(one, one)
                if total is None:
                    total = write("neg", (given,), one, value) if minus else given
                else:
                    value = value if value.requires_grad else nodes.value_of(total)
                    total = write(operator.sub if minus else operator.add, (total, given), one, value)
            return total  # type: ignore[no-any-return]

        for t, terms in enumerate(self.given):
            if t == 0 or self.anchors[t] is not self.anchors[t - 1]:
                last = self.anchors[t]
            x = added(terms)
            if t == 0:
                like = x
                states = tuple(started(start) for start in self.starts)
                parameters = tuple(given_to_step(one) for one in self.parameters)
            step = write(
                leaves.neuron_step,
                (x, states, parameters, self.kernel, options, ""),
                self.results[0][t],
                values,
            )
            steps.append(step)
            made = [
                write(operator.getitem, (step, place), run[t], value)
                for place, (run, value) in enumerate(zip(self.results, values))
            ]
            states = tuple(made[1:])
            for run, one in zip(self.results, made):
                value = nodes.value_of(run[-1])
                if learns and not value.requires_grad:
                    one = write("detach", (one,), run[t], value)
                now.setdefault(run[t], one)
        for run in self.results:
            for node in run:
                for user in list(node.users):
                    if user not in self.members:
                        user.replace_input_with(node, now[node])
        return steps
