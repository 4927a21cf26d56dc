"""A neuron as it is compiled: the variants of its equation, and the parameters they have in common."""

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .graph import Operand, TraceError, Value
from .step import Step, variants

# csrc/neuron/sequence.hpp's.
MOST_STATES, MOST_PARAMETERS = 8, 16


class Neuron(NamedTuple):
    """A neuron as it is compiled."""

    name: str
    states: Tuple[str, ...]
    steps: List[Step]  # one for each variant
    parameters: List[str]  # the derived ones of all variants, as expressions
    options: List[Tuple[Dict[str, Any], int]]  # choices of options -> variant

    def variant(self, **options: Any) -> int:
        """The number of the variant with these options."""
        for chosen, number in self.options:
            if chosen == options:
                return number
        raise TraceError(f"{self.name} has no options {options}")


def neuron(function: Callable[..., Any], values: Optional[Mapping[str, Sequence[Any]]] = None) -> Neuron:
    """The variants of an equation, those alone that differ; ``values`` are the values its options may take."""
    steps: List[Step] = []
    options: List[Tuple[Dict[str, Any], int]] = []
    printed: List[str] = []
    for chosen in variants(function, values or {}):
        step = Step(function, chosen)
        text = "".join(map(expression, [step.spk, *step.after]))
        if text not in printed:
            printed.append(text)
            steps.append(step)
        options.append((chosen, printed.index(text)))
    parameters: List[str] = []
    for step in steps:
        parameters += [text for text in map(expression, step.derived) if text not in parameters]
    name = getattr(function, "__name__", "neuron")
    for what, found, most in (
        ("states", len(steps[0].states), MOST_STATES),
        ("parameters, counting what is made of them alone", len(parameters), MOST_PARAMETERS),
    ):
        if found > most:
            raise TraceError(f"{name} has {found} {what}; kernels take up to {most}")
    return Neuron(name, steps[0].states, steps, parameters, options)


def expression(value: Operand) -> str:
    """A value written out, as one line."""
    if not isinstance(value, Value):
        return repr(value)
    return value.name or f"{value.operation}({', '.join(map(expression, value.operands))})"
