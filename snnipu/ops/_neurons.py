"""The registry of neurons: each equation is recorded once and found by its name."""

import functools
import hashlib
import operator
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from snnipu import equations
from snnipu._generator import Adjoint, Neuron, Reads, TraceError, expression, neuron, print_neurons, signature
from snnipu._generator.graph import Value
from snnipu._generator.operations import OPERATIONS
from snnipu._generator.step import is_one_of, needed

# The number of each neuron in the native library: setup.py compiles them in this order.
BUILT = {function.__name__: number for number, function in enumerate(equations.NEURONS)}
_EQUATIONS: Dict[str, Callable[..., Any]] = {function.__name__: function for function in equations.NEURONS}
# The neurons recorded so far. A user's neuron has a hash of its step in its name. This is a dict and not a cache,
# because torch.compile traces through functools caches.
_RECORDED: Dict[str, Neuron] = {}


def register(function: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """Record a user's step function with these options; return the name of the neuron for the operators."""
    recorded = neuron(function, {name: [value] for name, value in options.items()})
    text = print_neurons([recorded._replace(name="neuron")])
    name = f"{recorded.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    _RECORDED.setdefault(name, recorded)
    return name


def find(name: str) -> Neuron:
    """Return the recorded neuron with its variants."""
    if name not in _RECORDED:
        _RECORDED.setdefault(name, neuron(_EQUATIONS[name], equations.OPTIONS))
    return _RECORDED[name]


def arguments(name: str) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """Return the names of a neuron's states and parameters from its signature, without recording its step."""
    names = signature(_EQUATIONS[name])
    return names.states, names.parameters


@lru_cache(maxsize=None)
def adjoint(name: str, variant: int) -> Adjoint:
    return Adjoint(find(name).steps[variant])


@lru_cache(maxsize=None)
def derived_names(name: str, variant: int) -> List[str]:
    """Return the names, as in ``Neuron.parameters``, of the derived parameters that a variant's step reads."""
    return [expression(value) for value in find(name).steps[variant].derived]


# An operation on parameters: its name, and for each operand (True, index of a value) or (False, number).
_Operation = Tuple[str, Tuple[Tuple[bool, Any], ...]]


class NeuronPlan(NamedTuple):
    """A neuron with fixed options, as plain data that ``torch.compile`` can trace.

    The kernels' parameters are called derived: values computed from the equation's parameters alone.

    Attributes:
        neuron: name of the neuron.
        states: names of its states.
        parameters: names of the equation's parameters.
        variant: number of the variant.
        output: index of the state that is the output, or None.
        operations: the operations that compute derived parameters. They append to a list of values that starts with
            the equation's parameters.
        places: for each derived parameter, its index in that list; None: the variant does not read it.
        names: names of the derived parameters, for messages.
        reads: values that the adjoint reads for the gradients of the input and the states.
        reads_for: the same for the gradient of each derived parameter.
        reads_all: the same for all gradients.
        remakes_output: CPU kernels compute the output from the other states, and do not read it.
        spikes_of_states: the spikes are no state, and are a function of the states after the step and parameters.
    """

    neuron: str
    states: Tuple[str, ...]
    parameters: Tuple[str, ...]
    variant: int
    output: Optional[int]
    operations: Tuple[_Operation, ...]
    places: Tuple[Optional[int], ...]
    names: Tuple[str, ...]
    reads: Reads
    reads_for: Tuple[Reads, ...]
    reads_all: Reads
    remakes_output: bool
    spikes_of_states: bool

    def needed_states(self, reads: Reads) -> int:
        """Return a bit for each state after the steps that a CPU kernel needs, if it reads ``reads``."""
        if self.output is None or not self.remakes_output or reads.after >> self.output & 1:
            return reads.states
        return reads.states & ~(1 << self.output)  # the kernel reads the output only before the first step

    def derive(self, parameters: Mapping[str, Any], unread: Any) -> List[Any]:
        """Return the derived parameters; ``unread`` takes the place of those that the variant does not read."""
        values = [parameters[name] for name in self.parameters]
        for operation, operands in self.operations:
            values.append(OPERATIONS[operation].tensor(*[values[o] if is_place else o for is_place, o in operands]))
        return [unread if place is None else values[place] for place in self.places]


_PLANS: Dict[str, Dict[Tuple[Tuple[str, Any], ...], NeuronPlan]] = {}


def plan(name: str, options: Mapping[str, Any]) -> NeuronPlan:
    """Return the plan of a neuron. The first call makes it, and must not be traced by ``torch.compile``."""
    plans = _PLANS.get(name)
    if plans is None:
        plans = _PLANS[name] = _plans(name)
    chosen = plans.get(tuple(options.items())) or plans.get(tuple(sorted(options.items())))
    if chosen is None:
        raise TraceError(f"{name} has no options {dict(options)}")
    return chosen


def prepare(name: str) -> None:
    """Make the plans of a neuron before its first call."""
    if name not in _PLANS:
        _PLANS[name] = _plans(name)


def _plans(name: str) -> Dict[Tuple[Tuple[str, Any], ...], NeuronPlan]:
    equation = find(name)
    by_variant = [_plan(name, variant) for variant in range(len(equation.steps))]
    plans = {tuple(chosen.items()): by_variant[variant] for chosen, variant in equation.options}
    plans.update((tuple(sorted(chosen)), plan) for chosen, plan in list(plans.items()))
    return plans


def _plan(name: str, variant: int) -> NeuronPlan:
    equation = find(name)
    step = equation.steps[variant]
    places = {id(value): place for place, value in enumerate(step.raw.values())}
    operations: List[_Operation] = []
    for value in needed(step.derived, ()):
        if id(value) not in places:
            places[id(value)] = len(step.raw) + len(operations)
            operands = ((True, places[id(o)]) if isinstance(o, Value) else (False, o) for o in value.operands)
            operations.append((value.operation, tuple(operands)))
    by_text = {expression(value): places[id(value)] for value in step.derived}
    return NeuronPlan(
        name,
        equation.states,
        step.parameters,
        variant,
        step.output_state,
        tuple(operations),
        tuple(by_text.get(text) for text in equation.parameters),
        tuple(equation.parameters),
        *reads(name, variant),
        reads_all(name, variant),
        adjoint(name, variant).remakes_output,
        _has_spikes_of_states(adjoint(name, variant)),
    )


def _has_spikes_of_states(adjoint: Adjoint) -> bool:
    leaves = adjoint.leaves()
    made_of = needed([adjoint.step.spk], leaves)
    is_made = all(value.operation != "input" or is_one_of(value, leaves) for value in made_of)
    return is_made and adjoint.step.output_state is None


@lru_cache(maxsize=None)
def reads(name: str, variant: int) -> Tuple[Reads, Tuple[Reads, ...]]:
    """Return the values that a variant's adjoint reads: for the gradients of input and states, and for each parameter.

    The second result has an entry for each derived parameter.
    """
    derivative = adjoint(name, variant)
    sums = dict(zip(derived_names(name, variant), derivative.grad_derived))
    return derivative.reads(derivative.main), tuple(
        [derivative.reads([sums.get(text)]) for text in find(name).parameters]
    )


@lru_cache(maxsize=None)
def reads_all(name: str, variant: int) -> Reads:
    """Return the values that a variant's adjoint reads for all gradients."""
    main, each = reads(name, variant)
    return functools.reduce(operator.or_, each, main)


@lru_cache(maxsize=None)
def only_affects_spikes(name: str, variant: int) -> Tuple[bool, ...]:
    """Return a flag for each derived parameter: True if only the spikes depend on it, as on a threshold without reset.

    Without a gradient of the spikes the gradient of such a parameter is None and not zeros, as in autograd. If the
    spikes are a state, the next step reads them, so their gradient always exists.
    """
    derivative = adjoint(name, variant)
    output = derivative.step.output_state
    states = {
        id(value)
        for values in (derivative.grad_after, derivative.seeds)
        for place, value in enumerate(values)
        if place != output
    }
    sums = dict(zip(derived_names(name, variant), derivative.grad_derived))
    sources = [needed([sums.get(text)], ()) for text in find(name).parameters]
    flags = tuple(bool(values) and not any(id(value) in states for value in values) for values in sources)
    return flags or (False,)  # operators pass one tensor for a neuron without parameters


def requested_gradients(
    name: str, variant: int, need: Sequence[bool], has_spikes: bool, single: bool
) -> Tuple[bool, ...]:
    """Return a flag for each derived parameter: its gradient is requested, and it is not None.

    Args:
        name: name of the neuron.
        variant: number of the variant.
        need: the requested gradients.
        has_spikes: the spikes have an upstream gradient.
        single: the call is one step, so no next step reads the states.
    """
    if has_spikes or (not single and find(name).steps[variant].output_state is not None):
        return tuple(need)
    return tuple(needed and not spikes_only for needed, spikes_only in zip(need, only_affects_spikes(name, variant)))
