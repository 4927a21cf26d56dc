"""The neurons that operators know, by name: their equations, recorded once."""

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

# In the order in which setup.py compiles them: a neuron's number in the native library.
BUILT = {function.__name__: number for number, function in enumerate(equations.NEURONS)}
_EQUATIONS: Dict[str, Callable[..., Any]] = {function.__name__: function for function in equations.NEURONS}
# Those recorded so far; users' own by a name that tells their steps apart. A dict: torch.compile looks through a cache.
_RECORDED: Dict[str, Neuron] = {}


def register(function: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """The name by which the operators know the neuron of this step, with these options and no others."""
    recorded = neuron(function, {name: [value] for name, value in options.items()})
    text = print_neurons([recorded._replace(name="neuron")])
    name = f"{recorded.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    _RECORDED.setdefault(name, recorded)
    return name


def find(name: str) -> Neuron:
    """The neuron with its variants."""
    if name not in _RECORDED:
        _RECORDED.setdefault(name, neuron(_EQUATIONS[name], equations.OPTIONS))
    return _RECORDED[name]


def arguments(name: str) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """The names of a neuron's states and parameters, by its equation's signature: nothing is recorded yet."""
    names = signature(_EQUATIONS[name])
    return names.states, names.parameters


@lru_cache(maxsize=None)
def adjoint(name: str, variant: int) -> Adjoint:
    return Adjoint(find(name).steps[variant])


@lru_cache(maxsize=None)
def derived_names(name: str, variant: int) -> List[str]:
    """The names, in ``Neuron.parameters``, of what a variant's step takes."""
    return [expression(value) for value in find(name).steps[variant].derived]


# A value: the operation's name and its operands, each a place among the values or a number.
_Operation = Tuple[str, Tuple[Tuple[bool, Any], ...]]


class NeuronPlan(NamedTuple):
    """What a call needs to know of a neuron with its options: plain data, which ``torch.compile`` can trace."""

    neuron: str
    states: Tuple[str, ...]
    parameters: Tuple[str, ...]  # of the equation
    variant: int
    output: Optional[int]  # the state that is the output
    # Values of parameters alone: the equation's parameters, then one for each operation; and the places of those that
    # the kernels take, in their order (None: the variant does not read it).
    operations: Tuple[_Operation, ...]
    places: Tuple[Optional[int], ...]
    names: Tuple[str, ...]  # of what the kernels take, for errors
    reads: Reads  # for the gradients of the input and the states,
    reads_for: Tuple[Reads, ...]  # and of each that the kernels take
    reads_all: Reads  # for all of them
    remakes_output: bool  # kernels on CPUs then read no states that are the output
    spikes_of_states: bool  # the spikes are no state, and made of the states after the step and parameters alone

    def needed_states(self, reads: Reads) -> int:
        """Of the states that are read, by bits, those that kernels on CPUs must be given after each step."""
        if self.output is None or not self.remakes_output or reads.after >> self.output & 1:
            return reads.states
        return reads.states & ~(1 << self.output)  # but for that before the first step

    def derive(self, parameters: Mapping[str, Any], unread: Any) -> List[Any]:
        """What the kernels take, from tensors by name; ``one`` stands for what the variant does not read."""
        values = [parameters[name] for name in self.parameters]
        for operation, operands in self.operations:
            values.append(OPERATIONS[operation].tensor(*[values[o] if is_place else o for is_place, o in operands]))
        return [unread if place is None else values[place] for place in self.places]


_PLANS: Dict[str, Dict[Tuple[Tuple[str, Any], ...], NeuronPlan]] = {}


def plan(name: str, options: Mapping[str, Any]) -> NeuronPlan:
    """The plan of a neuron; it is made at its first use, which must not be one that is compiled."""
    plans = _PLANS.get(name)
    if plans is None:
        plans = _PLANS[name] = _plans(name)
    chosen = plans.get(tuple(options.items())) or plans.get(tuple(sorted(options.items())))
    if chosen is None:
        raise TraceError(f"{name} has no options {dict(options)}")
    return chosen


def prepare(name: str) -> None:
    """Make the plans of a neuron."""
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
    """What the adjoint of a variant reads for the gradients of the input and the states, and for that of each value
    that the kernels take."""
    derivative = adjoint(name, variant)
    sums = dict(zip(derived_names(name, variant), derivative.grad_derived))
    return derivative.reads(derivative.main), tuple(
        [derivative.reads([sums.get(text)]) for text in find(name).parameters]
    )


@lru_cache(maxsize=None)
def reads_all(name: str, variant: int) -> Reads:
    """What it reads for all of them."""
    main, each = reads(name, variant)
    return functools.reduce(operator.or_, each, main)


@lru_cache(maxsize=None)
def only_affects_spikes(name: str, variant: int) -> Tuple[bool, ...]:
    """For each value that the kernels take, whether only the spikes depend on it, as a threshold without a reset.

    Where nobody asks for the spikes' gradient, such a value has none: None, as autograd has it, and not zeros. Spikes
    that are a state are asked for by the next step.
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
    return tuple(bool(values) and not any(id(value) in states for value in values) for values in sources)


def requested_gradients(
    name: str, variant: int, need: Sequence[bool], has_spikes: bool, single: bool
) -> Tuple[bool, ...]:
    """Which gradients of the values that the kernels take are asked for and exist; ``single``: of one step alone."""
    if has_spikes or (not single and find(name).steps[variant].output_state is not None):
        return tuple(need)
    return tuple(needed and not spikes_only for needed, spikes_only in zip(need, only_affects_spikes(name, variant)))
