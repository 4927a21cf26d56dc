"""A neuron's step and its adjoint as graphs, from the neuron's equation."""

import inspect
import itertools
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .graph import Graph, Operand, TraceError, Value
from .operations import OPERATIONS

# A state of this name is the step's output.
OUTPUT = "spk"


class Signature(NamedTuple):
    """What an equation's signature says: ``(x, *states, *, parameters, spike, options=default)``."""

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

    ``derived`` are the values made of parameters alone that the step uses: they are the same in every step, and are the
    parameters of the kernels. :meth:`derive` computes them with PyTorch, whose gradient and dtypes they then have.
    """

    def __init__(self, function: Callable[..., Any], options: Optional[Mapping[str, Any]] = None) -> None:
        self.name = getattr(function, "__name__", str(function))
        self.function = function
        found = signature(function)
        self.states, self.parameters = found.states, found.parameters
        self.options = {**found.options, **(options or {})}
        unknown = set(self.options) - set(found.options)
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
                what = "a comparison" if isinstance(value, Value) else f"a {type(value).__name__}"
                raise TraceError(f"{self.name} must return {name} as a tensor made of its arguments, got {what}")
        named = dict(zip(expected, values))
        return named[OUTPUT], [named[name] for name in self.states]

    def _read_membranes_as_stored(self) -> None:
        """Let every spike see the membrane as it is rounded in storage.

        The membrane is the first term of the spike's argument that is a state; where none is, the first one.
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
        """Values of parameters alone that a value that changes with time, or an output, is made of."""
        found: List[Value] = []
        for value in needed(outputs, ()):
            users = value.inputs if value.varies else ((value,) if is_one_of(value, outputs) else ())
            for other in users:
                if not other.varies and not is_one_of(other, found):
                    found.append(other)
        return found


def is_one_of(value: Operand, values: Sequence[Value]) -> bool:
    return any(value is other for other in values)


def needed(results: Sequence[Optional[Operand]], leaves: Sequence[Value]) -> List[Value]:
    """What ``results`` are made of, in the order of the trace; what lies behind ``leaves`` is left out."""
    stop = {id(leaf) for leaf in leaves}
    found: Dict[int, Value] = {}
    left = [result for result in results if isinstance(result, Value)]
    while left:
        value = left.pop()
        if id(value) not in found:
            found[id(value)] = value
            if id(value) not in stop:
                left.extend(value.inputs)
    return sorted(found.values(), key=lambda value: value.index)


class Reads(NamedTuple):
    """What an adjoint reads beside gradients: the states before and after the step (bit s), and whether the input."""

    before: int
    after: int
    x: bool

    def __or__(self, other: "Reads") -> "Reads":  # type: ignore[override]
        return Reads(self.before | other.before, self.after | other.after, self.x or other.x)

    @property
    def states(self) -> int:
        return self.before | self.after


class Adjoint:
    """The derivative of a step, by reverse mode, in the order of PyTorch's autograd.

    ``grad_spk`` and ``grad_after`` come in; ``seeds`` are what the states before the step get as outputs,
    to which the step's own are added: that is autograd's order. ``grad_x``, ``grad_before`` and ``grad_derived`` come
    out; None is zero. Of a neuron whose output is a state, ``grad_spk`` is not read: it is part of that state's.
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
    def kept(self) -> List[Tuple[int, Value]]:
        """States after the step that are read where the adjoint needs them, instead of computed again, by number."""
        values: List[Tuple[int, Value]] = []
        for number, value in enumerate(self.step.after):
            if value.operation != "input" and not is_one_of(value, [other for _, other in values]):
                values.append((number, value))
        return values

    @property
    def others(self) -> List[Tuple[int, Value]]:
        """Those but for the one that is the output."""
        return [(number, value) for number, value in self.kept if number != self.step.output_state]

    @property
    def remakes_output(self) -> bool:
        """Whether the state that is the output is made of the other states after the step, and parameters alone."""
        if self.step.output_state is None:
            return False
        leaves = [*(value for _, value in self.others), *self.step.derived]
        found = needed([self.step.spk], leaves)
        return all(value.operation != "input" or is_one_of(value, leaves) for value in found)

    def leaves(self) -> List[Value]:
        return [*(value for _, value in self.kept), *self.step.derived]

    @property
    def main(self) -> List[Operand]:
        """The gradients of the input and the states."""
        return [0.0 if self.grad_x is None else self.grad_x, *self.grad_before]

    def reads(self, results: Sequence[Optional[Operand]]) -> Reads:
        """What these of its results are made of."""
        read = {id(value) for value in needed(results, self.leaves())}
        return Reads(
            sum(1 << number for number, value in enumerate(self.step.before) if id(value) in read),
            sum(1 << number for number, value in self.kept if id(value) in read),
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
    found: Dict[int, bool] = {}
    for value in values:
        by_rule = value.operation != "input" and not value.is_bool and _rule(value) is not None
        found[id(value)] = is_one_of(value, leaves) or (by_rule and any(found[id(v)] for v in value.inputs))
    return found


def evaluate(
    results: Sequence[Optional[Operand]], given: Mapping[int, Any], **functions: Callable[..., Any]
) -> List[Any]:
    """``results`` computed with tensors: those of ``given``, by the ``id`` of the values they stand for.

    ``functions`` are those for operations that are no tensor's: ``spike``, ``surrogate``, ``stored``.
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
    """Every choice of the options of ``function``, those of ``values`` in their order."""
    options = signature(function).options
    for name in options:
        if name not in values:
            raise TraceError(
                f"{getattr(function, '__name__', function)}: the values of its option {name} are not known"
            )
    return [dict(zip(options, chosen)) for chosen in itertools.product(*(values[name] for name in options))]
