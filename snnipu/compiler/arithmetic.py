"""Neurons written as arithmetic in the program: elementwise operations whose result is an input of the next step.

The operations of one step are recorded as the step of a neuron, as :func:`snnipu.neuron` records a function. A call of
that neuron replaces them in the body, and the distribution treats it like any other neuron.
"""

import functools
import logging
import operator
from inspect import Parameter, Signature
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import torch
from torch.fx import Node

from snnipu import backends
from snnipu._generator import TraceError
from snnipu._generator.graph import FUNCTIONS, Value
from snnipu._generator.step import OUTPUT
from snnipu.compiler import autograd_functions, nodes
from snnipu.compiler.autograd_functions import COPIES, NUMBERS, SAME
from snnipu.compiler.cycles import components
from snnipu.compiler.steps import summands
from snnipu.ops import _neurons, step_operators

_LOG = logging.getLogger("snnipu.compiler")
# Operations that turn a membrane into spikes. They join the kernel although the next step does not read their result.
_BEHIND = ("add", "sub", "mul", "gt", "ge", "float", "to", "spike_of", "getitem")
# The fields of a surrogate for a step without spikes.
_NO_SPIKES = (0, 1.0, 0.0)


class Same(NamedTuple):
    """An argument computed in the same step."""

    node: Node


class Before(NamedTuple):
    """An argument computed in the previous step."""

    mark: Node


class Given(NamedTuple):
    """An argument computed outside of the neuron, with the shape of a state."""

    node: Node


class Fixed(NamedTuple):
    """An argument with the same value at all steps."""

    value: Any


Argument = Union[Same, Before, Given, Fixed]


class Term(NamedTuple):
    """A summand. Several inputs of a step are added before the neuron runs."""

    minus: bool
    of: Any


class Sum(NamedTuple):
    """A tree of additions: the node of the sum, and the inner nodes that only this sum reads."""

    node: Node
    inner: Tuple[Node, ...]
    terms: Tuple[Term, ...]


@functools.lru_cache(maxsize=None)
def _say(missing: str) -> None:
    _LOG.warning("hand-coded neuron arithmetic runs step by step: %s", missing)


def as_neurons(body: Any) -> None:
    """Replace the elementwise recurrences of a body by neurons."""
    taken: Set[Node] = set()
    for form in dict.fromkeys(form_of(mark) for mark in body.before.values()):
        if form[1] is not torch.float32 or not form[0]:
            continue
        for found in list(_Operations(body, form).neurons(taken)):
            found.put(body)
    for node in reversed(body.graph.nodes):
        if node in taken and not node.users:
            body.graph.erase_node(node)


def _neurons_and_sums(body: Any) -> Set[Node]:
    """Return the nodes of neurons' cycles, and of sums: the distribution has better forms for both."""

    def needs(node: Node) -> List[Node]:
        after = body.after.get(body.number_of[node]) if node in body.number_of else None
        return [*node.all_input_nodes, *([after] if isinstance(after, Node) else [])]

    found: Set[Node] = set()
    for component in components(list(body.graph.nodes), needs):
        calls = [node for node in component if node not in body.number_of]
        steps = [node for node in calls if node.target in step_operators.SEQUENCES]
        others = [node for node in calls if node not in steps and nodes.name_of(node) != "getitem"]
        if len(steps) == 1 and not others:
            found.update(steps, *(step.users for step in steps))
        elif len(component) == len(calls) + 1:
            (before,) = set(component) - set(calls)
            if summands(body.after[body.number_of[before]], before, component):
                found.update(calls)
    return found


def form_of(node: Any) -> Any:
    """Return shape, dtype and device; for a neuron's step, of its spikes."""
    value = nodes.value_of(node)
    if isinstance(value, (tuple, list)) and value and len({nodes.key_of(one) for one in value}) == 1:
        value = value[0]
    return nodes.key_of(value) if isinstance(value, torch.Tensor) else ((), None, None)


def _is_neuron(node: Node) -> bool:
    """Return True if a call is a neuron's step that has an equation, and may be a part of a sequence."""
    return node.target is step_operators.neuron_step and not node.args[5]


def _has_several(node: Node) -> bool:
    """Return True if a call's results are taken from it one by one."""
    return _is_neuron(node) or autograd_functions.is_own(node)


def _given_to(node: Node) -> List[Any]:
    """Return the arguments of a call; for a neuron's step the input, the states and the parameters."""
    if autograd_functions.is_own(node):
        return autograd_functions.given(node)
    if not _is_neuron(node):
        return list(node.args)
    x, states, parameters = node.args[:3]
    return [x, *states, *parameters]  # type: ignore[misc]


class _Operations:
    """The operations of a body that can be recorded, with results of one shape, dtype and device."""

    def __init__(self, body: Any, form: Any) -> None:
        self.body, self.form = body, form
        self.arguments: Dict[Node, List[Argument]] = {}
        self.others = _neurons_and_sums(body)
        self.effects = {*body.ordered, *filter(nodes.is_random, body.graph.nodes)}
        self.effects |= nodes.changed_memory(body.graph)[0]
        for node in body.graph.nodes:
            arguments = self._arguments_of(node)
            if arguments is not None:
                self.arguments[node] = arguments

    def _arguments_of(self, node: Node) -> Optional[List[Argument]]:
        """Return the arguments of a call, or None if the call cannot be recorded."""
        if node.op not in ("call_function", "call_method") or node in self.effects or node in self.body.number_of:
            return None
        if node in self.others:
            return None
        name = nodes.name_of(node)
        known = name in (*COPIES, *NUMBERS, "spike_of", "getitem") or SAME.get(name, name) in FUNCTIONS
        if not known and not _has_several(node):
            return None
        shape, _, device = self.form
        if form_of(node) not in [(shape, torch.float32, device), (shape, torch.bool, device)]:
            return None
        if known and not (autograd_functions.keywords_are_known(node) and not autograd_functions.is_cast_to_bool(node)):
            return None
        if name == "getitem" and not (isinstance(node.args[0], Node) and _has_several(node.args[0])):
            return None
        arguments = [self._argument(value) for value in _given_to(node)]
        return None if any(one is None or not self._fits(one) for one in arguments) else arguments  # type: ignore

    def _argument(self, value: Any) -> Optional[Argument]:
        if not isinstance(value, Node):
            return Fixed(value)
        if value not in self.body.varying:
            whole = nodes.is_tensor(value) and form_of(value) == self.form and len(self.form[0]) > 1
            return Given(value) if whole else Fixed(value)
        if value in self.body.number_of:
            return Before(value) if form_of(value) == self.form else None
        return Same(value) if value.op.startswith("call") else Given(value)

    def _fits(self, argument: Argument) -> bool:
        if not isinstance(argument, Fixed) or not isinstance(argument.value, Node):
            return True
        value = argument.value
        if not nodes.is_tensor(value):
            return True  # a surrogate's number; others are refused when the step is recorded
        own, shape = form_of(value)[0], self.form[0]
        spreads = len(own) <= len(shape) and all(a in (1, b) for a, b in zip(own[::-1], shape[::-1]))
        return spreads and form_of(value)[1:] == (torch.float32, self.form[2])

    def after(self, mark: Node) -> Any:
        """Return the new value of a carried variable."""
        return self.body.after[self.body.number_of[mark]]

    def neurons(self, taken: Set[Node]) -> Iterator["_Neuron"]:
        def needs(node: Node) -> List[Node]:
            given = [one.node if isinstance(one, Same) else self.after(one.mark) for one in self._within(node)]
            return [one for one in given if one in self.arguments]

        # The last ones first: a filter whose result another one takes up is a part of that one's step.
        for component in reversed(list(components(list(self.arguments), needs))):
            inside = set(component)
            if not any(
                isinstance(one, Before) and self.after(one.mark) in inside
                for n in component
                for one in self.arguments[n]
            ):
                continue
            if inside & taken or all(map(_is_neuron, (n for n in component if nodes.name_of(n) != "getitem"))):
                continue
            upstream = {node for found in components(component, needs) for node in found}
            for chosen, more in ((upstream, True), (inside, True), (inside, False)):
                made = None if chosen & taken else _Recording(self, chosen, taken, more).neuron()
                if made is not None:
                    taken |= made.members
                    yield made
                    break

    def _within(self, node: Node) -> List[Any]:
        return [one for one in self.arguments[node] if isinstance(one, (Same, Before))]


class _Recording:
    """Operations that become the step of a neuron; with ``more``, also their elementwise neighbours."""

    def __init__(self, of: _Operations, inside: Set[Node], taken: Set[Node], more: bool) -> None:
        self.of, self.inside, self.taken = of, set(inside), taken
        for node in of.arguments:  # all results of a neuron's step
            if nodes.name_of(node) == "getitem" and node.args[0] in inside:
                self.inside.add(node)
        if more:
            self._take_in()
            self._take_on()
        self.order = [node for node in of.body.graph.nodes if node in self.inside]
        self.sum: Optional[Sum] = None
        self.fixed: Dict[Node, str] = {}
        self.kernel: Any = None

    def _taken_by(self, node: Node) -> List[Argument]:
        """Return the arguments of an operation, seen from the chosen step."""
        made: List[Argument] = []
        for one in self.of.arguments[node]:
            if isinstance(one, Same) and one.node not in self.inside:
                one = Given(one.node)
            elif isinstance(one, Before) and self.of.after(one.mark) not in self.inside:
                one = Given(one.mark)
            made.append(one)
        return made

    def _arguments(self) -> Iterator[Argument]:
        for node in self.inside:
            yield from self._taken_by(node)

    def _take_in(self) -> None:
        """Include elementwise operations that only prepare the input."""
        while True:
            given = {one.node for one in self._arguments() if isinstance(one, Given)}
            if len(given) != 1:
                return
            (node,) = given
            if node not in self.of.arguments or node in self.taken or set(node.users) - self.inside:
                return
            outer = [one for one in self._taken_by(node) if not isinstance(one, Fixed)]
            if len(outer) != 1 or not isinstance(outer[0], (Given, Same)):
                return
            self.inside.add(node)

    def _take_on(self) -> None:
        """Include operations that turn results into spikes."""
        waiting = [node for node in self.of.body.graph.nodes if node in self.inside]
        for node in waiting:  # which grows
            for user in node.users:
                if user in self.inside or user in self.taken or user not in self.of.arguments:
                    continue
                if nodes.name_of(user) not in _BEHIND:
                    continue
                if all(isinstance(one, (Fixed, Same)) for one in self._taken_by(user)):
                    self.inside.add(user)
                    waiting.append(user)

    def _sum_of(self, node: Node) -> Sum:
        """Return the summands of a node that adds or subtracts."""
        inner: List[Node] = []
        terms: List[Term] = []
        for place, one in enumerate(self._taken_by(node)):
            minus = place == 1 and nodes.name_of(node) == "sub"
            if not isinstance(one, Same) or not _adds(one.node) or set(one.node.users) != {node}:
                terms.append(Term(minus, one))
                continue
            found = self._sum_of(one.node)
            inner += [one.node, *found.inner]
            terms += [Term(minus != term.minus, term.of) for term in found.terms]
        return Sum(node, tuple(inner), tuple(terms))

    def _inputs(self) -> Optional[Tuple[Term, ...]]:
        """Return the summands of the step's input, or None if several inputs are not summands of one sum."""
        given = [one for one in self._arguments() if isinstance(one, Given)]
        if len({one.node for one in given}) == 1:
            return (Term(False, given[0].node),)
        sums = [self._sum_of(node) for node in self.order if _adds(node)]
        whole = [one for one in sums if sum(isinstance(term.of, Given) for term in one.terms) == len(given) > 0]
        if not whole:
            return None
        self.sum = min(whole, key=lambda one: len(one.inner))
        terms = [Term(term.minus, term.of.node) for term in self.sum.terms if isinstance(term.of, Given)]
        # The feedback is the last summand: this sum may then become a recurrent layer.
        behind = self._made_of_results()
        return tuple(sorted(terms, key=lambda term: (term.of in behind, term.minus)))

    def _made_of_results(self) -> Set[Node]:
        """Return the nodes that depend on a result of this step, in the same step or a later one."""
        body = self.of.body
        found: Set[Node] = set()
        waiting = list(self.inside)
        for node in waiting:  # which grows
            for user in (*node.users, *body.marks_of(node)):
                if user not in found and user not in self.inside:
                    found.add(user)
                    waiting.append(user)
        return found

    def neuron(self) -> Optional["_Neuron"]:
        """Return the neuron, or None if the operations are no neuron or have no kernel on this machine."""
        if self.inside & self.taken:
            return None
        inputs = self._inputs()
        given = [] if inputs is None else [term.of for term in inputs]
        if inputs is None or any(form_of(node) != self.of.form or node in self.inside for node in given):
            return None
        marks = dict.fromkeys(one.mark for one in self._arguments() if isinstance(one, Before))
        before = {self.of.after(mark): mark for mark in marks}
        if len(before) < len(marks):
            return None
        outside = [node for node in self.order if self._is_taken(node, set(marks))]
        outputs = [node for node in outside if node not in before]
        results = list(dict.fromkeys((*before, *outside)))
        if not results or any(form_of(node) != self.of.form or _has_several(node) for node in results):
            return None
        # The result that feeds back through a layer must be the spikes.
        around = self._made_of_results()
        cyclic = self._reaching(around)
        fed = [node for node in results if cyclic & {*node.users, *self.of.body.marks_of(node)}]
        chosen = fed or outputs or list(before)
        spk = chosen[-1 if fed or outputs else 0]
        states = [*before, *(node for node in outputs if node is not spk)]
        kind = _module_kind(spk)
        try:
            name = self._recorded(kind or "recurrence", spk, states)
        except TypeError:  # of operations that kernels do not have, _generator.TraceError among them
            return None
        missing = backends.why_not_compiled(name, self.of.form[2])
        if missing:
            _say(missing)
            return None
        return _Neuron(
            name,
            inputs,
            tuple(before.get(node) for node in states),
            (spk, *states),
            tuple(self.fixed),
            _NO_SPIKES if self.kernel is None else self.kernel,
            set(self.inside),
            self.of.form,
        )

    def _is_taken(self, node: Node, marks: Set[Node]) -> bool:
        """Return True if a node outside of the step reads this result, of this step or of the previous one."""
        body = self.of.body
        if set(node.users) - self.inside:
            users = set(node.users) - self.inside
            handed = {user for user in users if user.target in body.marks}
            if users - handed:
                return True
            numbers = [k for k, after in body.after.items() if after is node]
            if any(user.op == "output" or set(user.users) for user in handed):
                return (
                    any(number not in body.before or body.before[number] not in marks for number in numbers)
                    or not numbers
                )
        return False

    def _reaching(self, around: Set[Node]) -> Set[Node]:
        """Return the nodes ``around`` on which an input of this step depends."""
        body = self.of.body
        found: Set[Node] = set()
        waiting = [one.node for one in self._arguments() if isinstance(one, Given)]
        for node in waiting:  # which grows
            after = body.after.get(body.number_of[node]) if node in body.number_of else None
            for source in (*node.all_input_nodes, *([after] if isinstance(after, Node) else [])):
                if source in around and source not in found:
                    found.add(source)
                    waiting.append(source)
            if node in around:
                found.add(node)
        return found

    def _recorded(self, name: str, spk: Node, states: Sequence[Node]) -> str:
        """Register the step with the operators, and return its name."""
        for node in self.order:
            for at, one in enumerate(self._taken_by(node)):
                spike = nodes.name_of(node) == "spike_of" and at > 0
                if isinstance(one, Fixed) and isinstance(one.value, Node) and not spike:
                    self.fixed.setdefault(one.value, f"p{len(self.fixed)}")
        before = {node: f"s{place}" for place, node in enumerate(states)}

        def step(x: Value, *given: Value, spike: Any, **parameters: Value) -> Tuple[Any, ...]:
            was = dict(zip(before, given))
            now: Dict[Node, Any] = {}

            def value(argument: Argument) -> Any:
                if isinstance(argument, Given):
                    return x
                if isinstance(argument, Fixed):
                    fixed = argument.value
                    return parameters[self.fixed[fixed]] if isinstance(fixed, Node) else fixed
                return now[argument.node] if isinstance(argument, Same) else was[self.of.after(argument.mark)]

            for node in self.order:
                arguments = self._taken_by(node)
                if self.sum is not None and node in self.sum.inner:
                    continue
                if self.sum is not None and node is self.sum.node:
                    now[node] = _added(x, self.sum, value)
                elif _is_neuron(node):
                    self._use(node.args[3])
                    now[node] = _stepped(node, [value(one) for one in arguments], spike)
                elif nodes.name_of(node) == "spike_of":
                    self._use(node.args[1:])
                    now[node] = spike(value(arguments[0]))
                else:
                    now[node] = autograd_functions.applied(node, [value(one) for one in arguments])
            return tuple(now[node] for node in (spk, *states))

        keyword = [Parameter(one, Parameter.KEYWORD_ONLY) for one in (*self.fixed.values(), "spike")]
        positional = [Parameter(one, Parameter.POSITIONAL_OR_KEYWORD) for one in ("x", *before.values())]
        step.__name__ = name
        step.__signature__ = Signature([*positional, *keyword])  # type: ignore[attr-defined]
        made = _neurons.register(step, {})
        _neurons.prepare(made)
        return made

    def _use(self, kernel: Any) -> None:
        """Note the surrogate of a spike."""
        if self.kernel is not None and tuple(kernel) != self.kernel:
            raise TraceError("two surrogates in one step")
        self.kernel = tuple(kernel)


def _adds(node: Node) -> bool:
    return nodes.name_of(node) in ("add", "sub") and len(node.args) == 2 and not node.kwargs


def _added(x: Value, of: Sum, value: Callable[[Argument], Any]) -> Any:
    """Return a sum in which ``x`` replaces all inputs."""
    inputs = [at for at, term in enumerate(of.terms) if isinstance(term.of, Given)]
    terms = [(at == inputs[0] or not term.minus, term) for at, term in enumerate(of.terms) if at not in inputs[1:]]
    (_, first), *others = [(plus, x if isinstance(term.of, Given) else value(term.of)) for plus, term in terms]
    # The first summand has no minus sign.
    return functools.reduce(lambda total, one: total + one[1] if one[0] else total - one[1], others, first)


def _stepped(node: Node, arguments: List[Any], spike: Any) -> Tuple[Any, ...]:
    """Return spikes and states of a neuron's step, with symbols as arguments."""
    given: Any = node.args[4]
    name, names, options = given[0], given[1], dict(given[2])
    neuron = _neurons.find(name)
    x, *others = arguments
    states, parameters = others[: len(neuron.states)], others[len(neuron.states) :]
    step = neuron.steps[neuron.variant(**options)]
    states = [0.0 if state is None else state for state in states]
    spk, *after = step.function(x, *states, **dict(zip(names, parameters)), spike=spike, **options)
    left = iter(after)
    return (spk, *(spk if name == OUTPUT else next(left) for name in neuron.states))


def _module_kind(node: Node) -> str:
    """Return the class of the innermost module that computes a node."""
    stack = node.meta.get("nn_module_stack") or {}
    for _, kind in reversed(list(stack.values())):
        return getattr(kind, "__name__", str(kind).rsplit(".", 1)[-1])
    return ""


class _Neuron(NamedTuple):
    """A neuron found in a body.

    Attributes:
        name: by which operators know it.
        given: the summands of its input.
        starts: the marks of its states; None: zeros.
        results: spikes and states.
        parameters: in the order of its equation.
        kernel: the fields of its surrogate.
        members: the nodes in whose place it stands.
    """

    name: str
    given: Tuple[Term, ...]
    starts: Tuple[Any, ...]
    results: Tuple[Node, ...]
    parameters: Tuple[Node, ...]
    kernel: Tuple[Any, ...]
    members: Set[Node]
    form: Any

    def put(self, body: Any) -> None:
        """Replace the members by a call of the neuron."""
        graph = body.graph
        order = {node: place for place, node in enumerate(graph.nodes)}
        needed = [*(term.of for term in self.given), *self.parameters, *(one for one in self.starts if one is not None)]
        last = max((*needed, *(n for n in graph.nodes if n.op == "placeholder")), key=order.__getitem__)
        like = nodes.value_of(self.results[-1])

        def write(target: Any, arguments: Tuple[Any, ...], of: Node, value: Any) -> Node:
            nonlocal last
            with graph.inserting_after(last):
                last = graph.create_node("call_function", target, arguments, name="recurrence")
            last.meta.update({key: of.meta[key] for key in ("stack_trace", "nn_module_stack") if key in of.meta})
            last.meta["example_value"] = value
            if any(one in body.varying for one in last.all_input_nodes):
                body.varying.add(last)
            return last

        x: Any = None
        for minus, one in self.given:
            if x is None:
                x = write(torch.neg, (one,), one, nodes.value_of(one)) if minus else one
            else:
                x = write(operator.sub if minus else operator.add, (x, one), one, like)
        options = (self.name, tuple(f"p{place}" for place in range(len(self.parameters))), ())
        values = tuple(nodes.value_of(node) for node in self.results)
        step = write(
            step_operators.neuron_step,
            (x, self.starts, self.parameters, self.kernel, options, ""),
            self.results[0],
            values,
        )
        body.varying.add(step)
        made: Dict[Node, Node] = {}
        for place, node in enumerate(self.results):
            one = write(operator.getitem, (step, place), node, values[place])
            body.varying.add(one)
            if place and node is self.results[0]:
                body.spike_states.add((step, place - 1))
            made.setdefault(node, one)
        for node, one in made.items():
            for user in list(node.users):
                if user not in self.members:
                    user.replace_input_with(node, one)
            for number, after in body.after.items():
                if after is node:
                    body.after[number] = one
        _in_order(graph)


def _in_order(graph: Any) -> None:
    """Move each node behind its arguments."""
    placed: Set[Node] = set()
    anchor: Any = None
    for node in list(graph.nodes):
        for one in _unplaced(node, placed):
            if anchor is not None:
                anchor.append(one)
            anchor = one
            placed.add(one)


def _unplaced(node: Node, placed: Set[Node]) -> List[Node]:
    """Return a node and its arguments that have no place yet, in order."""
    found: List[Node] = []
    stack: List[Tuple[Node, bool]] = [(node, False)]
    seen: Set[Node] = set()
    while stack:
        one, ready = stack.pop()
        if ready:
            found.append(one)
        elif one not in placed and one not in seen:
            seen.add(one)
            stack.append((one, True))
            stack.extend((source, False) for source in one.all_input_nodes)
    return found
