"""Hand-coded neurons of the program: elementwise operations whose result is an input of the next step.

The operations of one step are recorded as the step of a neuron, as :func:`snnipu.neuron` records a function. A call of
this neuron replaces them in the body, and the distribution treats it like any other neuron.
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
# Operations that turn a membrane into spikes, besides autograd functions. They join the kernel although the next step
# does not read their result.
_SPIKE_OPERATIONS = ("add", "sub", "mul", "gt", "ge", "float", "to", "spike_of", "getitem")
# The fields of a surrogate for a step without spikes.
_NO_SPIKES = (0, 1.0, 0.0)


class SameStep(NamedTuple):
    """An argument computed in the same step."""

    node: Node


class PreviousStep(NamedTuple):
    """An argument computed in the previous step."""

    mark: Node


class Outside(NamedTuple):
    """An argument computed outside of the neuron, with the shape of a state."""

    node: Node


class Constant(NamedTuple):
    """An argument with the same value at all steps."""

    value: Any


Argument = Union[SameStep, PreviousStep, Outside, Constant]


class Term(NamedTuple):
    """A summand. Several inputs of a step are added before the neuron runs."""

    minus: bool
    value: Any


class Sum(NamedTuple):
    """A tree of additions: the node of the sum, and the inner nodes that only this sum reads."""

    node: Node
    inner: Tuple[Node, ...]
    terms: Tuple[Term, ...]


@functools.lru_cache(maxsize=None)
def _warn(missing: str) -> None:
    _LOG.warning("hand-coded neuron arithmetic runs step by step: %s", missing)


def as_neurons(body: Any) -> None:
    """Replace the elementwise recurrences of a body by neurons."""
    taken: Set[Node] = set()
    for form in dict.fromkeys(form_of(mark) for mark in body.before.values()):
        if form[1] is not torch.float32 or not form[0]:
            continue
        for neuron in list(_Operations(body, form).neurons(taken)):
            neuron.replace_members(body)
    for node in reversed(body.graph.nodes):
        if node in taken and not node.users:
            body.graph.erase_node(node)


def _neurons_and_sums(body: Any) -> Set[Node]:
    """Return the nodes in cycles of a neuron or of a sum: the distribution has better forms for both."""

    def needs(node: Node) -> List[Node]:
        after = body.after.get(body.number_of[node]) if node in body.number_of else None
        return [*node.all_input_nodes, *([after] if isinstance(after, Node) else [])]

    excluded: Set[Node] = set()
    for component in components(list(body.graph.nodes), needs):
        calls = [node for node in component if node not in body.number_of]
        steps = [node for node in calls if node.target in step_operators.SEQUENCES]
        others = [node for node in calls if node not in steps and nodes.name_of(node) != "getitem"]
        if len(steps) == 1 and not others:
            excluded.update(steps, *(step.users for step in steps))
        elif len(component) == len(calls) + 1:
            (before,) = set(component) - set(calls)
            if summands(body.after[body.number_of[before]], before, component):
                excluded.update(calls)
    return excluded


def form_of(node: Any) -> Any:
    """Return shape, dtype and device of a result; for a neuron's step, of its spikes."""
    value = nodes.value_of(node)
    if isinstance(value, (tuple, list)) and value and len({nodes.key_of(part) for part in value}) == 1:
        value = value[0]
    return nodes.key_of(value) if isinstance(value, torch.Tensor) else ((), None, None)


def _is_neuron(node: Node) -> bool:
    """Return True if a call is a neuron's step that has an equation, and may be a part of a sequence."""
    return node.target is step_operators.neuron_step and not node.args[5]


def _has_several(node: Node) -> bool:
    """Return True if a call returns a tuple of results."""
    return _is_neuron(node) or autograd_functions.is_autograd_function(node)


def _arguments_of_call(node: Node) -> List[Any]:
    """Return the arguments of a call; for a neuron's step the input, the states and the parameters."""
    if autograd_functions.is_autograd_function(node):
        return autograd_functions.tensor_arguments(node)
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
        self.effects |= nodes.changed_memory(body.graph)
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
        arguments = [self._argument(value) for value in _arguments_of_call(node)]
        return None if any(one is None or not self._broadcasts(one) for one in arguments) else arguments  # type: ignore

    def _argument(self, value: Any) -> Optional[Argument]:
        if not isinstance(value, Node):
            return Constant(value)
        if value not in self.body.varying:
            whole = nodes.is_tensor(value) and form_of(value) == self.form and len(self.form[0]) > 1
            return Outside(value) if whole else Constant(value)
        if value in self.body.number_of:
            return PreviousStep(value) if form_of(value) == self.form else None
        return SameStep(value) if value.op.startswith("call") else Outside(value)

    def _broadcasts(self, argument: Argument) -> bool:
        """Return True if a constant tensor broadcasts to the shape of a state; True for all other arguments."""
        if not isinstance(argument, Constant) or not isinstance(argument.value, Node):
            return True
        value = argument.value
        if not nodes.is_tensor(value):
            return True  # a number of a surrogate; other values are refused when the step is recorded
        sizes, shape = form_of(value)[0], self.form[0]
        broadcasts = len(sizes) <= len(shape) and all(a in (1, b) for a, b in zip(sizes[::-1], shape[::-1]))
        return broadcasts and form_of(value)[1:] == (torch.float32, self.form[2])

    def after(self, mark: Node) -> Any:
        """Return the new value of a carried variable."""
        return self.body.after[self.body.number_of[mark]]

    def neurons(self, taken: Set[Node]) -> Iterator["_RecordedNeuron"]:
        def needs(node: Node) -> List[Node]:
            sources = [one.node if isinstance(one, SameStep) else self.after(one.mark) for one in self._within(node)]
            return [source for source in sources if source in self.arguments]

        # The last components first: a filter whose result another neuron reads becomes a part of this neuron's step.
        for component in reversed(list(components(list(self.arguments), needs))):
            inside = set(component)
            if not any(
                isinstance(argument, PreviousStep) and self.after(argument.mark) in inside
                for n in component
                for argument in self.arguments[n]
            ):
                continue
            if inside & taken or all(map(_is_neuron, (n for n in component if nodes.name_of(n) != "getitem"))):
                continue
            upstream = {node for part in components(component, needs) for node in part}
            for chosen, more in ((upstream, True), (inside, True), (inside, False)):
                neuron = None if chosen & taken else _NeuronRecording(self, chosen, taken, more).neuron()
                if neuron is not None:
                    taken |= neuron.members
                    yield neuron
                    break

    def _within(self, node: Node) -> List[Any]:
        """Return the arguments that other operations compute, in this step or in the previous one."""
        return [one for one in self.arguments[node] if isinstance(one, (SameStep, PreviousStep))]


class _NeuronRecording:
    """Recording of operations as the step of a neuron; with ``more``, also of their elementwise neighbours."""

    def __init__(self, operations: _Operations, inside: Set[Node], taken: Set[Node], more: bool) -> None:
        self.operations, self.inside, self.taken = operations, set(inside), taken
        for node in operations.arguments:  # all results of a neuron's step
            if nodes.name_of(node) == "getitem" and node.args[0] in inside:
                self.inside.add(node)
        if more:
            self._include_input_operations()
            self._include_spike_operations()
        self.order = [node for node in operations.body.graph.nodes if node in self.inside]
        self.sum: Optional[Sum] = None
        self.fixed: Dict[Node, str] = {}
        self.kernel: Any = None

    def _arguments_of(self, node: Node) -> List[Argument]:
        """Return the arguments of an operation; results of operations outside of the neuron are ``Outside``."""
        arguments: List[Argument] = []
        for one in self.operations.arguments[node]:
            if isinstance(one, SameStep) and one.node not in self.inside:
                one = Outside(one.node)
            elif isinstance(one, PreviousStep) and self.operations.after(one.mark) not in self.inside:
                one = Outside(one.mark)
            arguments.append(one)
        return arguments

    def _arguments(self) -> Iterator[Argument]:
        for node in self.operations.body.graph.nodes:  # a set's order would make other kernels in each process
            if node in self.inside:
                yield from self._arguments_of(node)

    def _include_input_operations(self) -> None:
        """Include elementwise operations that only prepare the input."""
        while True:
            inputs = {one.node for one in self._arguments() if isinstance(one, Outside)}
            if len(inputs) != 1:
                return
            (node,) = inputs
            if node not in self.operations.arguments or node in self.taken or set(node.users) - self.inside:
                return
            outer = [one for one in self._arguments_of(node) if not isinstance(one, Constant)]
            if len(outer) != 1 or not isinstance(outer[0], (Outside, SameStep)):
                return
            self.inside.add(node)

    def _include_spike_operations(self) -> None:
        """Include operations that turn results into spikes."""
        waiting = [node for node in self.operations.body.graph.nodes if node in self.inside]
        for node in waiting:  # the list grows
            for user in node.users:
                if user in self.inside or user in self.taken or user not in self.operations.arguments:
                    continue
                if nodes.name_of(user) not in _SPIKE_OPERATIONS and not autograd_functions.is_autograd_function(user):
                    continue
                if all(isinstance(one, (Constant, SameStep)) for one in self._arguments_of(user)):
                    self.inside.add(user)
                    waiting.append(user)

    def _sum_of(self, node: Node) -> Sum:
        """Return the summands of a node that adds or subtracts."""
        inner: List[Node] = []
        terms: List[Term] = []
        for place, one in enumerate(self._arguments_of(node)):
            minus = place == 1 and nodes.name_of(node) == "sub"
            if not isinstance(one, SameStep) or not _is_addition(one.node) or set(one.node.users) != {node}:
                terms.append(Term(minus, one))
                continue
            part = self._sum_of(one.node)
            inner += [one.node, *part.inner]
            terms += [Term(minus != term.minus, term.value) for term in part.terms]
        return Sum(node, tuple(inner), tuple(terms))

    def _inputs(self) -> Optional[Tuple[Term, ...]]:
        """Return the summands of the step's input, or None if several inputs are not summands of one sum."""
        inputs = [one for one in self._arguments() if isinstance(one, Outside)]
        if len({one.node for one in inputs}) == 1:
            return (Term(False, inputs[0].node),)
        sums = [self._sum_of(node) for node in self.order if _is_addition(node)]
        whole = [one for one in sums if sum(isinstance(term.value, Outside) for term in one.terms) == len(inputs) > 0]
        if not whole:
            return None
        self.sum = min(whole, key=lambda one: len(one.inner))
        terms = [Term(term.minus, term.value.node) for term in self.sum.terms if isinstance(term.value, Outside)]
        # The feedback is the last summand: this sum may then become a recurrent layer.
        dependents = self._dependents()
        return tuple(sorted(terms, key=lambda term: (term.value in dependents, term.minus)))

    def _dependents(self) -> Set[Node]:
        """Return the nodes that depend on a result of this step, in the same step or a later one."""
        body = self.operations.body
        dependents: Set[Node] = set()
        waiting = list(self.inside)
        for node in waiting:  # the list grows
            for user in (*node.users, *body.marks_of(node)):
                if user not in dependents and user not in self.inside:
                    dependents.add(user)
                    waiting.append(user)
        return dependents

    def neuron(self) -> Optional["_RecordedNeuron"]:
        """Return the neuron, or None if the operations are not a neuron or cannot be compiled on this machine."""
        if self.inside & self.taken:
            return None
        inputs = self._inputs()
        summed = [] if inputs is None else [term.value for term in inputs]
        if inputs is None or any(form_of(node) != self.operations.form or node in self.inside for node in summed):
            return None
        marks = dict.fromkeys(one.mark for one in self._arguments() if isinstance(one, PreviousStep))
        before = {self.operations.after(mark): mark for mark in marks}
        if len(before) < len(marks):
            return None
        outside = [node for node in self.order if self._is_taken(node, set(marks))]
        outputs = [node for node in outside if node not in before]
        results = list(dict.fromkeys((*before, *outside)))
        if not results or any(form_of(node) != self.operations.form or _has_several(node) for node in results):
            return None
        # The result that feeds back through a layer must be the spikes.
        cyclic = self._feedback_nodes(self._dependents())
        fed = [node for node in results if cyclic & {*node.users, *self.operations.body.marks_of(node)}]
        chosen = fed or outputs or list(before)
        spk = chosen[-1 if fed or outputs else 0]
        states = [*before, *(node for node in outputs if node is not spk)]
        kind = _module_kind(spk)
        try:
            name = self._register(kind or "recurrence", spk, states)
        except TypeError:  # operations that kernels do not have; TraceError is a TypeError
            return None
        missing = backends.why_not_compiled(name, self.operations.form[2])
        if missing:
            _warn(missing)
            return None
        return _RecordedNeuron(
            name,
            inputs,
            tuple(before.get(node) for node in states),
            (spk, *states),
            tuple(self.fixed),
            _NO_SPIKES if self.kernel is None else self.kernel,
            set(self.inside),
            self.operations.form,
        )

    def _is_taken(self, node: Node, marks: Set[Node]) -> bool:
        """Return True if a node outside of the step reads this result, of this step or of the previous one."""
        body = self.operations.body
        if set(node.users) - self.inside:
            users = set(node.users) - self.inside
            marks_of_node = {user for user in users if user.target in body.marks}
            if users - marks_of_node:
                return True
            numbers = [k for k, after in body.after.items() if after is node]
            if any(user.op == "output" or set(user.users) for user in marks_of_node):
                return (
                    any(number not in body.before or body.before[number] not in marks for number in numbers)
                    or not numbers
                )
        return False

    def _feedback_nodes(self, dependents: Set[Node]) -> Set[Node]:
        """Return the ``dependents`` of this step's results on which an input of a step depends."""
        body = self.operations.body
        feedback: Set[Node] = set()
        waiting = [one.node for one in self._arguments() if isinstance(one, Outside)]
        for node in waiting:  # the list grows
            after = body.after.get(body.number_of[node]) if node in body.number_of else None
            for source in (*node.all_input_nodes, *([after] if isinstance(after, Node) else [])):
                if source in dependents and source not in feedback:
                    feedback.add(source)
                    waiting.append(source)
            if node in dependents:
                feedback.add(node)
        return feedback

    def _register(self, name: str, spk: Node, states: Sequence[Node]) -> str:
        """Register the step with the operators, and return its name."""
        for node in self.order:
            for at, one in enumerate(self._arguments_of(node)):
                spike = nodes.name_of(node) == "spike_of" and at > 0
                if isinstance(one, Constant) and isinstance(one.value, Node) and not spike:
                    self.fixed.setdefault(one.value, f"p{len(self.fixed)}")
        before = {node: f"s{place}" for place, node in enumerate(states)}

        def step(x: Value, *states_before: Value, spike: Any, **parameters: Value) -> Tuple[Any, ...]:
            was = dict(zip(before, states_before))
            now: Dict[Node, Any] = {}

            def value(source: Argument) -> Any:
                if isinstance(source, Outside):
                    return x
                if isinstance(source, Constant):
                    fixed = source.value
                    return parameters[self.fixed[fixed]] if isinstance(fixed, Node) else fixed
                return now[source.node] if isinstance(source, SameStep) else was[self.operations.after(source.mark)]

            for node in self.order:
                arguments = self._arguments_of(node)
                if self.sum is not None and node in self.sum.inner:
                    continue
                if self.sum is not None and node is self.sum.node:
                    now[node] = _sum_with_input(x, self.sum, value)
                elif _is_neuron(node):
                    self._note_surrogate(node.args[3])
                    now[node] = _step_on_symbols(node, [value(one) for one in arguments], spike)
                elif nodes.name_of(node) == "spike_of":
                    self._note_surrogate(node.args[1:])
                    now[node] = spike(value(arguments[0]))
                else:
                    now[node] = autograd_functions.apply_to_symbols(node, [value(one) for one in arguments])
            return tuple(now[node] for node in (spk, *states))

        keyword = [Parameter(each, Parameter.KEYWORD_ONLY) for each in (*self.fixed.values(), "spike")]
        positional = [Parameter(each, Parameter.POSITIONAL_OR_KEYWORD) for each in ("x", *before.values())]
        step.__name__ = name
        step.__signature__ = Signature([*positional, *keyword])  # type: ignore[attr-defined]
        registered = _neurons.register(step, {})
        _neurons.prepare(registered)
        return registered

    def _note_surrogate(self, kernel: Any) -> None:
        """Store the surrogate of a spike.

        Raises:
            TraceError: the step has another surrogate already.
        """
        if self.kernel is not None and tuple(kernel) != self.kernel:
            raise TraceError("two surrogates in one step")
        self.kernel = tuple(kernel)


def _is_addition(node: Node) -> bool:
    return nodes.name_of(node) in ("add", "sub") and len(node.args) == 2 and not node.kwargs


def _sum_with_input(x: Value, total: Sum, value: Callable[[Argument], Any]) -> Any:
    """Return a sum in which ``x`` replaces all inputs."""
    inputs = [at for at, term in enumerate(total.terms) if isinstance(term.value, Outside)]
    terms = [(at == inputs[0] or not term.minus, term) for at, term in enumerate(total.terms) if at not in inputs[1:]]
    (_, first), *others = [(plus, x if isinstance(term.value, Outside) else value(term.value)) for plus, term in terms]
    # The first summand has no minus sign.
    return functools.reduce(lambda so_far, term: so_far + term[1] if term[0] else so_far - term[1], others, first)


def _step_on_symbols(node: Node, arguments: List[Any], spike: Any) -> Tuple[Any, ...]:
    """Return spikes and states of a neuron's step, with symbols as arguments."""
    equation: Any = node.args[4]
    name, names, options = equation[0], equation[1], dict(equation[2])
    neuron = _neurons.find(name)
    x, *others = arguments
    states, parameters = others[: len(neuron.states)], others[len(neuron.states) :]
    step = neuron.steps[neuron.variant(**options)]
    states = [0.0 if state is None else state for state in states]
    spk, *after = step.function(x, *states, **dict(zip(names, parameters)), spike=spike, **options)
    remaining = iter(after)
    return (spk, *(spk if name == OUTPUT else next(remaining) for name in neuron.states))


def _module_kind(node: Node) -> str:
    """Return the class of the innermost module that computes a node."""
    stack = node.meta.get("nn_module_stack") or {}
    for _, kind in reversed(list(stack.values())):
        return getattr(kind, "__name__", str(kind).rsplit(".", 1)[-1])
    return ""


class _RecordedNeuron(NamedTuple):
    """A neuron found in a body.

    Attributes:
        name: the name of its equation in the operators.
        inputs: the summands of its input.
        starts: the marks of its states; None for a state that starts at zero.
        results: the nodes of the spikes and the states.
        parameters: the nodes of its parameters, in the order of the equation.
        kernel: the fields of its surrogate.
        members: the nodes that it replaces.
        form: shape, dtype and device of its states.
    """

    name: str
    inputs: Tuple[Term, ...]
    starts: Tuple[Any, ...]
    results: Tuple[Node, ...]
    parameters: Tuple[Node, ...]
    kernel: Tuple[Any, ...]
    members: Set[Node]
    form: Any

    def replace_members(self, body: Any) -> None:
        """Replace the members by a call of the neuron."""
        graph = body.graph
        order = {node: place for place, node in enumerate(graph.nodes)}
        needed = [
            *(term.value for term in self.inputs),
            *self.parameters,
            *(one for one in self.starts if one is not None),
        ]
        last = max((*needed, *(n for n in graph.nodes if n.op == "placeholder")), key=order.__getitem__)
        like = nodes.value_of(self.results[-1])

        def write(target: Any, arguments: Tuple[Any, ...], source: Node, value: Any) -> Node:
            nonlocal last
            with graph.inserting_after(last):
                last = graph.create_node("call_function", target, arguments, name="recurrence")
            last.meta.update(
                {key: source.meta[key] for key in ("stack_trace", "nn_module_stack") if key in source.meta}
            )
            last.meta["example_value"] = value
            if any(one in body.varying for one in last.all_input_nodes):
                body.varying.add(last)
            return last

        x: Any = None
        for minus, node in self.inputs:
            if x is None:
                x = write(torch.neg, (node,), node, nodes.value_of(node)) if minus else node
            else:
                x = write(operator.sub if minus else operator.add, (x, node), node, like)
        options = (self.name, tuple(f"p{place}" for place in range(len(self.parameters))), ())
        values = tuple(nodes.value_of(node) for node in self.results)
        step = write(
            step_operators.neuron_step,
            (x, self.starts, self.parameters, self.kernel, options, ""),
            self.results[0],
            values,
        )
        body.varying.add(step)
        replacements: Dict[Node, Node] = {}
        for place, node in enumerate(self.results):
            result = write(operator.getitem, (step, place), node, values[place])
            body.varying.add(result)
            if place and node is self.results[0]:
                body.spike_states.add((step, place - 1))
            replacements.setdefault(node, result)
        for node, result in replacements.items():
            for user in list(node.users):
                if user not in self.members:
                    user.replace_input_with(node, result)
            for number, after in body.after.items():
                if after is node:
                    body.after[number] = result
        _sort(graph)


def _sort(graph: Any) -> None:
    """Move each node after its arguments."""
    placed: Set[Node] = set()
    anchor: Any = None
    for node in list(graph.nodes):
        for unplaced in _unplaced(node, placed):
            if anchor is not None:
                anchor.append(unplaced)
            anchor = unplaced
            placed.add(unplaced)


def _unplaced(node: Node, placed: Set[Node]) -> List[Node]:
    """Return a node and its arguments that have no place yet, in order."""
    sorted_nodes: List[Node] = []
    stack: List[Tuple[Node, bool]] = [(node, False)]
    seen: Set[Node] = set()
    while stack:
        current, ready = stack.pop()
        if ready:
            sorted_nodes.append(current)
        elif current not in placed and current not in seen:
            seen.add(current)
            stack.append((current, True))
            stack.extend((source, False) for source in current.all_input_nodes)
    return sorted_nodes
