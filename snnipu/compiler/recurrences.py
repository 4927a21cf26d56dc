"""Neurons that a program writes out, or whose step a subclass changes: elementwise operators whose results come back.

The operators of one step are recorded as the step of a neuron, as :func:`snnipu.neuron` records a function, and a call
of that neuron takes their place in the graph: its steps are then a chain like that of any other neuron.
"""

import functools
import logging
import operator
from collections import Counter
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Any, Container, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import torch
from torch.fx import Graph, Node

from snnipu import backends
from snnipu._generator import TraceError
from snnipu._generator.graph import FUNCTIONS, Value
from snnipu._generator.step import OUTPUT
from snnipu.compiler import nodes, own_functions
from snnipu.compiler.cycles import components
from snnipu.compiler.own_functions import COPIES, NUMBERS, SAME
from snnipu.compiler.plan import Bundle, Chain, Operator, Plan, is_step, module_of
from snnipu.ops import _neurons, leaves
from snnipu.ops.lif_sequence import MECHANISMS

_LOG = logging.getLogger("snnipu.compiler")
# What makes spikes of a membrane, though nothing of the step takes them up again: the same kernel does it.
_BEHIND = ("add", "sub", "mul", "gt", "ge", "float", "to", "spike_of", "getitem")
_MOST_RUNS = 256
# In place of a surrogate where a step has no spikes.
_NO_SPIKES = (0, 1.0, 0.0)


class Same(NamedTuple):
    """An argument that is a result of the same step."""

    run: int


class Before(NamedTuple):
    """An argument that is a result of the step before; before the first step it is ``first``."""

    run: int
    first: Any


class Given(NamedTuple):
    """An argument that comes from outside, at each step another one."""

    values: Tuple[Any, ...]


class Fixed(NamedTuple):
    """An argument that is the same at all steps."""

    value: Any


Argument = Union[Same, Before, Given, Fixed]


def _form(node: Any) -> Any:
    """Shape, dtype and device; of a neuron's step those of its spikes."""
    value = nodes.value_of(node)
    if isinstance(value, (tuple, list)) and value and len({nodes.key_of(one) for one in value}) == 1:
        value = value[0]
    return nodes.key_of(value) if isinstance(value, torch.Tensor) else ((), None, None)


def _is_neuron(node: Node) -> bool:
    """Whether the call is a neuron's step that has an equation, and may be a part of a sequence."""
    return node.target in (leaves.lif_step, leaves.neuron_step) and not node.args[5]


def _has_several(node: Node) -> bool:
    """Whether a call's results are taken from it one by one: a neuron's step, a function of the program's own."""
    return _is_neuron(node) or own_functions.is_own(node)


def _given(node: Node) -> List[Any]:
    """What a call takes; of a neuron's step the input, its states and its parameters."""
    if own_functions.is_own(node):
        return own_functions.given(node)
    if not is_step(node):
        return list(node.args)
    x, states, parameters = node.args[:3]
    return [x, *states, *parameters]  # type: ignore[misc]


@dataclass(eq=False)
class _Runs:
    """Operators of a loop; those of all steps that are the same one are a run.

    Attributes:
        form: of the results of every step.
        place: run and step of a node.
        arguments: of the runs that can be recorded, as far as can be told without trying.
    """

    steps: int
    form: Any
    runs: List[Tuple[Node, ...]] = field(default_factory=list)
    place: Dict[Node, Tuple[int, int]] = field(default_factory=dict)
    arguments: Dict[int, List[Argument]] = field(default_factory=dict)

    def add(self, run: Sequence[Any]) -> Optional[int]:
        """Take nodes for a run, where they are none yet; returns its number, or None where they cannot be one."""
        if not all(isinstance(node, Node) and node.op in ("call_function", "call_method") for node in run):
            return None
        kinds = {(node.op, node.target, len(_given(node)), tuple(node.kwargs)) for node in run}
        if len(kinds) > 1 or len(set(run)) < self.steps or len(self.runs) >= _MOST_RUNS:
            return None
        if is_step(run[0]) and not all(_is_neuron(node) and node.args[3:5] == run[0].args[3:5] for node in run):
            return None
        if len({node.meta.get(nodes.OWN) for node in run}) > 1:
            return None
        run = tuple(run)
        if run in self.runs:
            return self.runs.index(run)
        if any(run[1:] == other[:-1] for other in self.runs):
            return None  # the results of the step before
        # A node may be of two runs, at different steps, for equal calls of the graph are one.
        for t, node in enumerate(run):
            self.place.setdefault(node, (len(self.runs), t))
        self.runs.append(run)
        return len(self.runs) - 1

    def complete(self, inside: Set[Node]) -> None:
        """Find the other runs among the nodes ``inside``."""
        for number, run in enumerate(self.runs):  # which grow
            for values in zip(*map(_given, run)):
                # The first step needs no result of the loop.
                own = all(isinstance(value, Node) and value in inside for value in values[1:])
                if own and self.add(values) is None:
                    self.add([*values[1:], self.after(values[-1])])
            for users in self.followers(number):
                if users[1] in inside or is_step(run[0]):
                    self.add(users)

    def followers(self, number: int) -> Iterator[List[Node]]:
        """What all steps do with a run's results, where each does it once."""
        run = self.runs[number]

        def kinds(t: int) -> Dict[Any, List[Node]]:
            found: Dict[Any, List[Node]] = {}
            for user in run[t].users:
                places = tuple(at for at, one in enumerate(_given(user)) if one is run[t])
                numbers = str([one for one in user.args if not isinstance(one, Node)]) if not is_step(user) else ""
                found.setdefault((user.op, user.target, places, numbers), []).append(user)
            return found

        steps = [kinds(t) for t in range(self.steps)]
        for kind in steps[0]:
            if all(len(step.get(kind, ())) == 1 for step in steps):
                yield [step[kind][0] for step in steps]

    def after(self, node: Node) -> Optional[Node]:
        """What takes one step later the same results as ``node``; None where that is not known."""
        for at, one in enumerate(_given(node)):
            run, t = self.place.get(one, (-1, self.steps)) if isinstance(one, Node) else (-1, self.steps)
            if t + 1 < self.steps:
                later = self.runs[run][t + 1]
                found = [
                    user
                    for user in later.users
                    if (user.op, user.target) == (node.op, node.target)
                    and len(_given(user)) == len(_given(node))
                    and _given(user)[at] is later
                    and (nodes.name_of(node) != "getitem" or user.args[1] == node.args[1])
                ]
                if len(found) == 1:
                    return found[0]
        return None

    def look(self, number: int) -> bool:
        """Find what a run takes; returns whether it can be recorded."""
        run = self.runs[number]
        name = nodes.name_of(run[0])
        known = name in (*COPIES, *NUMBERS, "spike_of", "getitem") or SAME.get(name, name) in FUNCTIONS
        if not known and not _has_several(run[0]):
            return False
        shape, _, device = self.form
        forms = [(shape, torch.float32, device), (shape, torch.bool, device)]
        if any(_form(node) not in forms for node in run[1:]) or _form(run[0])[1:] != _form(run[-1])[1:]:
            return False
        if not self._spreads(run[0]) or any(node.kwargs != run[0].kwargs for node in run[1:]):
            return False
        if known and not (own_functions.keywords_are_known(run[0]) and not own_functions.is_cast_to_bool(run[-1])):
            return False
        found = [self._argument(values) for values in zip(*map(_given, run))]
        if name == "getitem" and not (isinstance(found[0], Same) and _has_several(self.runs[found[0].run][0])):
            return False
        arguments = [one for one in found if one is not None and self._fits(one)]
        if len(arguments) < len(found):
            return False
        self.arguments[number] = arguments
        return True

    def _argument(self, values: Sequence[Any]) -> Optional[Argument]:
        first, last = values[0], values[-1]
        if all(value is first for value in values):
            whole = isinstance(first, Node) and nodes.is_tensor(first) and _form(first) == self.form
            return Given(tuple(values)) if whole and len(self.form[0]) > 1 else Fixed(first)
        if not any(isinstance(value, Node) for value in values):
            return Fixed(first) if all(type(one) is type(first) and one == first for one in values) else None
        run = self.place.get(last, (-1, 0))[0] if isinstance(last, Node) else -1
        if run >= 0 and tuple(values) == self.runs[run]:
            return Same(run)
        if run >= 0 and tuple(values[1:]) == self.runs[run][:-1]:
            return Before(run, first)
        return Given(tuple(values)) if all(_form(value) == self.form for value in values) else None

    def _fits(self, argument: Argument) -> bool:
        if isinstance(argument, Before):
            first = argument.first
            return first is None or (_of_float(first, self.form[2]) and self._spreads(first))
        if not isinstance(argument, Fixed) or not isinstance(argument.value, Node):
            return True
        if not nodes.is_tensor(argument.value):
            return True  # a surrogate's number; others are refused when the step is recorded
        return _of_float(argument.value, self.form[2]) and self._spreads(argument.value)

    def _spreads(self, value: Any) -> bool:
        """Whether a number or a tensor broadcasts to the form of a step."""
        own, shape = _form(value)[0], self.form[0]
        return len(own) <= len(shape) and all(a in (1, b) for a, b in zip(own[::-1], shape[::-1]))

    def is_narrow(self, number: int) -> bool:
        """Whether the first step's result is broadcast later."""
        return _form(self.runs[number][0])[0] != self.form[0]


@functools.lru_cache(maxsize=None)
def _say(missing: str) -> None:
    _LOG.warning("a neuron that is written out runs step by step: %s", missing)


def _of_float(value: Any, device: Any) -> bool:
    """A number, or a tensor whose product with one of float32 is one."""
    if not isinstance(value, Node):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return nodes.is_tensor(value) and _form(value)[1:] == (torch.float32, device)


def as_neurons(plan: Plan, without: Container[str] = ()) -> Dict[Node, str]:
    """Put neurons in the places of recurrences of elementwise operators.

    Args:
        without: names of nodes that are left as they are.

    Returns:
        The steps of these neurons, with the name of the node in whose place each is.
    """
    taken: Set[Node] = set()
    found: List[_Neuron] = []
    # The first step often differs from the others: it has nothing before it.
    for apart in (0, 1):
        for runs in _runs_of(plan.cycles, apart):
            for made in _neurons_in(plan, runs, taken):
                if made.results[0][0].name not in without:
                    found.append(made)
                    taken |= made.members
    now: Dict[Node, Node] = {}
    steps: Dict[Node, str] = {}
    for made in found:
        steps.update(dict.fromkeys(made.put(plan.graph, now), made.results[0][0].name))
    for node in reversed(plan.graph.nodes):
        if node in taken and not node.users:
            plan.graph.erase_node(node)
    return steps


def _neurons_in(plan: Plan, runs: _Runs, taken: Set[Node]) -> Iterator["_Neuron"]:
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


def _runs_of(cycles: Sequence[Sequence[Any]], apart: int) -> List[_Runs]:
    """The runs of what needs its own results, those of one form together: from the bundles to all that they take.

    Args:
        apart: so many first steps are left as they are.
    """
    found: Dict[Any, Tuple[_Runs, Set[Node]]] = {}
    for cycle in cycles:
        bundles = [unit for unit in cycle if isinstance(unit, Operator)]
        floats = [bundle for bundle in bundles if _form(bundle.nodes[0])[1] is torch.float32]
        if not floats:
            continue
        whole = Counter(bundle.steps for bundle in floats).most_common(1)[0][0]
        form = Counter(_form(bundle.nodes[-1]) for bundle in floats if bundle.steps == whole).most_common(1)[0][0]
        steps = whole - apart
        if steps < 2:
            continue
        runs, inside = found.setdefault((steps, form), (_Runs(steps, form), set()))
        for unit in cycle:
            own = unit.nodes if isinstance(unit, Bundle) else (unit,)
            inside.update(own)
            inside.update(user for node in own if is_step(node) for user in node.users)
            fed_back = isinstance(unit, Chain) and unit.feedback is not None
            if isinstance(unit, (Operator, Chain)) and steps <= unit.steps <= whole and not fed_back:
                runs.add(own[-steps:])
    for runs, inside in found.values():
        runs.complete(inside)
    return [runs for runs, _ in found.values()]


class _Recording:
    """Runs that are to be the step of a neuron; ``more``: with what stands around their recurrence, where it may."""

    def __init__(self, plan: Plan, runs: _Runs, inside: Set[int], taken: Set[Node], more: bool) -> None:
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

    def neuron(self) -> Optional["_Neuron"]:
        """The neuron; None where it is none, or has no kernel here."""
        members = self._members()
        if not self._is_free(members):
            return None
        places = [self.plan.place[node] for node in members]
        if any(min(places) < self.plan.place[barrier] < max(places) for barrier in self.plan.barriers):
            return None
        given = {one.values for one in self._arguments() if isinstance(one, Given)}
        starts: Dict[int, Any] = {}
        for one in self._arguments():
            if isinstance(one, Before) and starts.setdefault(one.run, one.first) is not one.first:
                return None
        if len(given) != 1 or any(_form(node) != self.runs.form or node in members for one in given for node in one):
            return None
        outside = [n for n in self.order if any(set(node.users) - members for node in self.runs.runs[n])]
        outputs = [number for number in outside if number not in starts]
        forms = [_form(self.runs.runs[number][-1]) for number in (*starts, *outside)]
        if any(form != self.runs.form for form in forms) or any(map(self.runs.is_narrow, outside)):
            return None
        spk = outputs[-1] if outputs else next(iter(starts))
        states = [*starts, *(number for number in outputs if number != spk)]
        kind = module_of(self.runs.runs[spk][0])[1]
        try:
            neuron = self._recorded(kind or "recurrence", spk, states)
        except TypeError:  # of operations that kernels do not have, _generator.TraceError among them
            return None
        found = _Neuron(
            name=neuron,
            given=next(iter(given)),
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
                if is_step(node):
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


def _stepped(node: Node, arguments: List[Any], spike: Any) -> Tuple[Any, ...]:
    """What a neuron's step does, with symbols: spikes and states."""
    given: Any = node.args[4]
    if node.target is leaves.lif_step:
        name, names = "leaky", ("beta", "threshold", "graded_spikes_factor")
        options = {"reset_mechanism": MECHANISMS[given[0]], "reset_delay": given[1]}
    else:
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


@dataclass(eq=False)
class _Neuron:
    """A neuron that was found in a graph.

    Attributes:
        name: by which operators know it.
        given: its input at each step.
        starts: its states before the first one; None: zeros.
        results: spikes and states, nodes for all steps.
        parameters: in the order of its equation.
        kernel: the fields of its surrogate.
        members: the nodes in whose place it stands.
    """

    name: str
    given: Tuple[Any, ...]
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
        for t, x in enumerate(self.given):
            at = max(at, plan.place[x])
            users = {user for run in self.results for user in run[t].users} - self.members
            if any(plan.place[user] <= at for user in users):
                return False
            self.anchors.append(order[at])
        return True

    def put(self, graph: Graph, now: Dict[Node, Node]) -> List[Node]:
        """Write its steps, and return them; ``now``: what stands for the members of others, and then for its own."""
        last: Any = None
        steps: List[Node] = []
        like: Node = self.given[0]

        def write(target: Any, arguments: Tuple[Any, ...], of: Node, value: Any) -> Node:
            nonlocal last
            with graph.inserting_after(last):
                kind = "call_method" if isinstance(target, str) else "call_function"
                last = graph.create_node(kind, target, arguments, name="recurrence")
            last.meta.update({key: of.meta[key] for key in ("stack_trace", "nn_module_stack") if key in of.meta})
            last.meta["example_value"] = value
            return last  # type: ignore[no-any-return]

        def started(start: Any) -> Any:
            if start is None:
                return None
            if isinstance(start, Node) and _form(start) == _form(like):
                return now.get(start, start)
            target = "expand_as" if isinstance(start, Node) else torch.full_like
            arguments = (now.get(start, start), like) if isinstance(start, Node) else (like, start)
            return write(target, arguments, like, nodes.value_of(like))

        values = tuple(nodes.value_of(run[-1]) for run in self.results)
        learns = any(value.requires_grad for value in values)
        options = (self.name, tuple(f"p{place}" for place in range(len(self.parameters))), ())
        for t, x in enumerate(self.given):
            if t == 0 or self.anchors[t] is not self.anchors[t - 1]:
                last = self.anchors[t]
            if t == 0:
                like = now.get(x, x)
                states = tuple(started(start) for start in self.starts)
            parameters = tuple(now.get(one, one) for one in self.parameters)
            step = write(
                leaves.neuron_step,
                (now.get(x, x), states, parameters, self.kernel, options, ""),
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
