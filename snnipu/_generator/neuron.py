"""Neurons for the printers: the distinct variants of an equation, and the parameters of all variants."""

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .graph import Operand, TraceError, Value
from .step import Step, variants

# The limits of csrc/neuron/sequence.hpp.
MOST_STATES, MOST_PARAMETERS = 8, 16


class Neuron(NamedTuple):
    """A neuron with all variants of its equation.

    Attributes:
        name: name of the neuron.
        states: names of its states.
        steps: the recorded step of each variant.
        parameters: derived parameters of all variants, as expressions.
        options: each choice of options, with the number of its variant.
    """

    name: str
    states: Tuple[str, ...]
    steps: List[Step]
    parameters: List[str]
    options: List[Tuple[Dict[str, Any], int]]

    def variant(self, **options: Any) -> int:
        """Return the number of the variant with these options."""
        for chosen, number in self.options:
            if chosen == options:
                return number
        raise TraceError(f"{self.name} has no options {options}")


def neuron(function: Callable[..., Any], values: Optional[Mapping[str, Sequence[Any]]] = None) -> Neuron:
    """Record the distinct variants of an equation; ``values`` has the possible values of each option."""
    steps: List[Step] = []
    options: List[Tuple[Dict[str, Any], int]] = []
    printed: List[str] = []
    for chosen in variants(function, values or {}):
        step = Step(function, chosen)
        text = program([step.spk, *step.after])
        if text not in printed:
            printed.append(text)
            steps.append(step)
        options.append((chosen, printed.index(text)))
    parameters: List[str] = []
    for step in steps:
        parameters += [text for text in map(expression, step.derived) if text not in parameters]
    name = getattr(function, "__name__", "neuron")
    for kind, count, most in (
        ("states", len(steps[0].states), MOST_STATES),
        ("parameters, counting what is made of them alone", len(parameters), MOST_PARAMETERS),
    ):
        if count > most:
            raise TraceError(f"{name} has {count} {kind}; kernels take up to {most}")
    return Neuron(name, steps[0].states, steps, parameters, options)


def program(values: Sequence[Operand]) -> str:
    """Return values as text: a line for each distinct operation, on inputs, numbers and the numbers of other lines."""
    lines: Dict[str, int] = {}
    texts: Dict[int, str] = {}

    def text(value: Operand) -> str:
        if not isinstance(value, Value) or value.name:
            return expression(value)
        if id(value) not in texts:
            line = f"{value.operation}({', '.join(map(text, value.operands))})"
            texts[id(value)] = f"${lines.setdefault(line, len(lines))}"
        return texts[id(value)]

    results = list(map(text, values))
    return "\n".join([*lines, *results])


def expression(value: Operand) -> str:
    """Return a value as one line of text: nested calls of operations on inputs and numbers."""
    if not isinstance(value, Value):
        return repr(value)
    return value.name or f"{value.operation}({', '.join(map(expression, value.operands))})"
