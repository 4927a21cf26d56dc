"""The neurons that operators know, by name: their equations, recorded once."""

from functools import lru_cache
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple

from snnipu import equations
from snnipu._generator import Adjoint, Neuron, expression, neuron
from snnipu._generator.step import needed

# In the order in which setup.py compiles them: a neuron's number in the native library.
BUILT = {function.__name__: number for number, function in enumerate(equations.GENERATED)}
_EQUATIONS: Dict[str, Callable[..., Any]] = {function.__name__: function for function in equations.NEURONS}


@lru_cache(maxsize=None)
def find(name: str) -> Neuron:
    """The neuron with its variants."""
    return neuron(_EQUATIONS[name], equations.OPTIONS)


def equation(name: str) -> Callable[..., Any]:
    return _EQUATIONS[name]


@lru_cache(maxsize=None)
def adjoint(name: str, variant: int) -> Adjoint:
    return Adjoint(find(name).steps[variant])


@lru_cache(maxsize=None)
def derived_texts(name: str, variant: int) -> List[str]:
    """The names, in ``Neuron.parameters``, of what a variant's step takes."""
    return [expression(value) for value in find(name).steps[variant].derived]


class Reads(NamedTuple):
    """What an adjoint reads beside gradients: states before and after the step, by number, and whether the input."""

    before: FrozenSet[int]
    after: FrozenSet[int]
    x: bool


@lru_cache(maxsize=None)
def reads(name: str, variant: int, wanted: FrozenSet[str]) -> Reads:
    """What the adjoint reads for the gradients of the input, of the states and of the parameters ``wanted``."""
    found = adjoint(name, variant)
    sums = [grad for text, grad in zip(derived_texts(name, variant), found.grad_derived) if text in wanted]
    read = {id(value) for value in needed([found.grad_x, *found.grad_before, *sums], found.leaves())}
    return Reads(
        frozenset(number for number, value in enumerate(found.step.before) if id(value) in read),
        frozenset(number for number, value in found.kept if id(value) in read),
        id(found.step.x) in read,
    )
