"""The neurons that operators know, by name: their equations, recorded once."""

from functools import lru_cache
from typing import Any, Callable, Dict, List, Tuple

from snnipu import equations
from snnipu._generator import Adjoint, Neuron, adjoint_reads, expression, neuron

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


@lru_cache(maxsize=None)
def states_read(name: str, variant: int) -> Tuple[int, bool]:
    """What the adjoint of a variant reads: states, by bits, and whether it reads x."""
    before, after, x = adjoint_reads(find(name), variant)
    return before | after, x
