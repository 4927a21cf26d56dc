"""A neuron's step as a graph, recorded from its equation, and the adjoint of the step."""

import inspect
import itertools
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .graph import Graph, Operand, TraceError, Value
from .operations import OPERATIONS

# A state with this name is the output of the step.
OUTPUT = "spk"


class Signature(NamedTuple):
    """The parts of an equation's signature ``(x, *states, *, parameters, spike, options=default)``."""

    states: Tuple[str, ...]
    parameters: Tuple[str, ...]
    options: Dict[str, Any]


def signature(function: Callable[..., Any]) -> Signature:
    name = getattr(function, "__name__", str(function))
    arguments = list(inspect.signature(function).parameters.values())
    for argument in arguments:
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            raise TraceError(f"{name}: *{argument.name} in its signature: states and parameters are named one by one")
    positional = [a for a in arguments if a.kind != a.KEYWORD_ONLY]
    keywords = [a for a in arguments if a.kind == a.KEYWORD_ONLY]
    if len(positional) < 2:
        raise TraceError(
            f"{name}: its signature must be (x, states..., *, parameters..., spike), with one state or more"
        )
    if "spike" not in [a.name for a in keywords]:
        raise TraceError(f"{name}: its signature has no keyword `spike`, the function that makes spikes")
    tensors = tuple(a.name for a in keywords if a.default is a.empty and a.name != "spike")
    options = {a.name: a.default for a in keywords if a.default is not a.empty and a.name != "spike"}
    return Signature(tuple(a.name for a in positional[1:]), tensors, options)


class Step:
    """The operations of one time step.

    ``derived`` are the values that depend on parameters alone and that the step uses. They are equal in every step, and
    are the parameters of the kernels. Operators compute them in PyTorch, so autograd covers them.
    """

    def __init__(self, function: Callable[..., Any], options: Optional[Mapping[str, Any]] = None) -> None:
        self.name = getattr(function, "__name__", str(function))
        self.function = function
        parts = signature(function)
        self.states, self.parameters = parts.states, parts.parameters
        self.options = {**parts.options, **(options or {})}
        unknown = set(self.options) - set(parts.options)
        if unknown:
            raise TraceError(f"{self.name} has no option {', '.join(sorted(unknown))}")
        self.graph = graph = Graph(self.name)
        self.x = graph.input("x", "x")
        self.before = [graph.input("state", name) for name in self.states]
        self.raw = {name: graph.input("parameter", name) for name in self.parameters}

        def spike(u: Any) -> Value:
            if not isinstance(u, Value):
                graph.refuse(f"spike takes a {type(u).__name__}: it must be made of the step's arguments")
            return u.spike()

        returned = function(self.x, *self.before, **self.raw, spike=spike, **self.options)
        self.output_state = self.states.index(OUTPUT) if OUTPUT in self.states else None
        self.spk, self.after = self._outputs(returned)
        self._read_membranes_as_stored()
        self.derived = self._derived([self.spk, *self.after])
        self.recorded = len(graph.values)

    def _outputs(self, returned: Any) -> Tuple[Value, List[Value]]:
        expected = [OUTPUT, *(name for name in self.states if name != OUTPUT)]
        values = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if len(values) != len(expected):
            raise TraceError(
                f"{self.name} must return {len(expected)} values, {', '.join(expected)}; it returned {len(values)}"
            )
        for name, value in zip(expected, values):
            if not isinstance(value, Value) or value.graph is not self.graph or value.is_bool:
                kind = "a comparison" if isinstance(value, Value) else f"a {type(value).__name__}"
                raise TraceError(f"{self.name} must return {name} as a tensor made of its arguments, got {kind}")
        named = dict(zip(expected, values))
        return named[OUTPUT], [named[name] for name in self.states]

    def _read_membranes_as_stored(self) -> None:
        """Make every spike read the membrane rounded to the dtype in which it is stored.

        The membrane is the first term of the spike's argument that is a state; else the first term.
        """
        states = [*self.before, *self.after]
        for spike in [value for value in self.graph.values if value.operation == "spike"]:
            terms, places = [spike.operands[0]], []
            while isinstance(terms[-1], Value) and terms[-1].operation in ("add", "sub"):
                if is_one_of(terms[-1], states):
                    break
                places.append(0 if getattr(terms[-1].operands[0], "varies", False) else 1)
                terms.append(terms[-1].operands[places[-1]])
            if not is_one_of(terms[-1], states):
                del terms[2:], places[1:]
            stored: Operand = self.graph.insert(spike, "stored", (terms.pop(),))
            for term, place in zip(reversed(terms), reversed(places)):
                assert isinstance(term, Value)
                operands = (stored, term.operands[1]) if place == 0 else (term.operands[0], stored)
                stored = self.graph.insert(spike, term.operation, operands)
            spike.operands = (stored,)

    def _derived(self, outputs: Sequence[Value]) -> List[Value]:
        """Return the derived parameters: inputs of values that vary, or outputs, that do not vary themselves."""
        derived: List[Value] = []
        for value in needed(outputs, ()):
            users = value.inputs if value.varies else ((value,) if is_one_of(value, outputs) else ())
            for other in users:
                if not other.varies and not is_one_of(other, derived):
                    derived.append(other)
        return derived


def is_one_of(value: Operand, values: Sequence[Value]) -> bool:
    return any(value is other for other in values)


def needed(results: Sequence[Optional[Operand]], leaves: Sequence[Value]) -> List[Value]:
    """Return the values on which ``results`` depend, in recorded order; the inputs of ``leaves`` are not followed."""
    stop = {id(leaf) for leaf in leaves}
    values: Dict[int, Value] = {}
    remaining = [result for result in results if isinstance(result, Value)]
    while remaining:
        value = remaining.pop()
        if id(value) not in values:
            values[id(value)] = value
            if id(value) not in stop:
                remaining.extend(value.inputs)
    return sorted(values.values(), key=lambda value: value.index)


class Reads(NamedTuple):
    """The values that an adjoint reads besides gradients.

    ``before`` and ``after`` have a bit for each state before and after the step; ``x`` is True for the input.
    """

    before: int
    after: int
    x: bool

    def __or__(self, other: "Reads") -> "Reads":  # type: ignore[override]
        return Reads(self.before | other.before, self.after | other.after, self.x or other.x)

    @property
    def states(self) -> int:
        return self.before | self.after


class Adjoint:
    """The reverse-mode derivative of a step, in the order of PyTorch's autograd.

    The inputs are ``grad_spk`` and ``grad_after``, the gradients of the results, and ``seeds``. Seeds are the upstream
    gradients of the states before the step; the step's gradients are added to them, which is autograd's order. The
    results are ``grad_x``, ``grad_before`` and ``grad_derived``; None is zero. If the output is a state, ``grad_spk``
    is part of the gradient of that state, and is not read.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        graph = step.graph
        forward = graph.values[: step.recorded]
        self.grad_spk = graph.input("grad_spk", "grad_spk")
        self.grad_after = [graph.input("grad_state", name) for name in step.states]
        self.seeds = [graph.input("seed", name) for name in step.states]
        leaves = [step.x, *step.before, *step.derived]
        grads: Dict[int, Value] = {id(state): seed for state, seed in zip(step.before, self.seeds)}
        differentiable = _differentiable(forward, leaves)

        def add(value: Operand, grad: Optional[Operand]) -> None:
            if grad is None or not isinstance(value, Value) or not differentiable[id(value)]:
                return
            assert isinstance(grad, Value)
            grads[id(value)] = grads[id(value)] + grad if id(value) in grads else grad

        if step.output_state is None:
            add(step.spk, self.grad_spk)
        for value, grad in zip(step.after, self.grad_after):
            add(value, grad)
        for value in reversed(forward):
            if id(value) not in grads or is_one_of(value, leaves) or value.operation == "input":
                continue
            rule = _rule(value)
            if rule is not None:
                for operand, contribution in zip(value.operands, rule(grads[id(value)], value, *value.operands)):
                    if isinstance(operand, Value) and differentiable[id(operand)]:
                        add(operand, contribution)
        self.grad_x = grads.get(id(step.x))
        self.grad_before = [grads[id(state)] for state in step.before]
        self.grad_derived = [grads.get(id(value)) for value in step.derived]

    @property
    def stored_states(self) -> List[Tuple[int, Value]]:
        """Number and value of each state after the step that the adjoint can read instead of recomputing it."""
        values: List[Tuple[int, Value]] = []
        for number, value in enumerate(self.step.after):
            if value.operation != "input" and not is_one_of(value, [other for _, other in values]):
                values.append((number, value))
        return values

    @property
    def non_output_states(self) -> List[Tuple[int, Value]]:
        """:attr:`stored_states` other than the output."""
        return [(number, value) for number, value in self.stored_states if number != self.step.output_state]

    @property
    def remakes_output(self) -> bool:
        """True if the output is a state, and is a function of the other states after the step and parameters."""
        if self.step.output_state is None:
            return False
        leaves = [*(value for _, value in self.non_output_states), *self.step.derived]
        inputs = needed([self.step.spk], leaves)
        return all(value.operation != "input" or is_one_of(value, leaves) for value in inputs)

    def leaves(self) -> List[Value]:
        return [*(value for _, value in self.stored_states), *self.step.derived]

    @property
    def main(self) -> List[Operand]:
        """The gradients of the input and the states."""
        return [0.0 if self.grad_x is None else self.grad_x, *self.grad_before]

    def reads(self, results: Sequence[Optional[Operand]]) -> Reads:
        """Return the values that the adjoint reads for these results."""
        read = {id(value) for value in needed(results, self.leaves())}
        return Reads(
            sum(1 << number for number, value in enumerate(self.step.before) if id(value) in read),
            sum(1 << number for number, value in self.stored_states if id(value) in read),
            id(self.step.x) in read,
        )


def _rule(value: Value) -> Optional[Callable[..., Tuple[Any, ...]]]:
    if value.operation == "spike":
        return lambda g, y, u: (g.graph.add("surrogate", (u, g)),)
    if value.operation == "stored":
        return lambda g, y, a: (g,)
    gradient = value.gradient
    if gradient is not None:
        return lambda g, y, a, *operands: (None, *gradient(g))
    return OPERATIONS[value.operation].derivative


def _differentiable(values: Sequence[Value], leaves: Sequence[Value]) -> Dict[int, bool]:
    differentiable: Dict[int, bool] = {}
    for value in values:
        by_rule = value.operation != "input" and not value.is_bool and _rule(value) is not None
        differentiable[id(value)] = is_one_of(value, leaves) or (
            by_rule and any(differentiable[id(v)] for v in value.inputs)
        )
    return differentiable


def evaluate(
    results: Sequence[Optional[Operand]], given: Mapping[int, Any], **functions: Callable[..., Any]
) -> List[Any]:
    """Compute ``results`` with tensors.

    Args:
        results: recorded values, numbers or None.
        given: tensors by the ``id`` of the values that they replace.
        functions: implementations of ``spike``, ``surrogate`` and ``stored``, which tensors do not have.
    """
    computed = dict(given)
    values = [result for result in results if isinstance(result, Value)]
    for value in needed(values, [v for v in values[0].graph.values if id(v) in given] if values else ()):
        if id(value) not in computed:
            operands = [computed[id(o)] if isinstance(o, Value) else o for o in value.operands]
            function = functions.get(value.operation) or OPERATIONS[value.operation].tensor
            computed[id(value)] = function(*operands)
    return [computed[id(result)] if isinstance(result, Value) else result for result in results]


def variants(function: Callable[..., Any], values: Mapping[str, Sequence[Any]]) -> List[Dict[str, Any]]:
    """Return every choice of the options of ``function``; ``values`` has the values of each option, in order."""
    options = signature(function).options
    for name in options:
        if name not in values:
            raise TraceError(
                f"{getattr(function, '__name__', function)}: the values of its option {name} are not known"
            )
    return [dict(zip(options, chosen)) for chosen in itertools.product(*(values[name] for name in options))]
