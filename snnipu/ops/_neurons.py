"""The neurons that operators know, by name: their equations, recorded once."""

import hashlib
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping

from snnipu import equations
from snnipu._generator import Adjoint, Neuron, expression, neuron, print_neurons

# In the order in which setup.py compiles them: a neuron's number in the native library.
BUILT = {function.__name__: number for number, function in enumerate(equations.GENERATED)}
_EQUATIONS: Dict[str, Callable[..., Any]] = {function.__name__: function for function in equations.NEURONS}
# Those recorded so far; users' own by a name that tells their steps apart. A dict: torch.compile looks through a cache.
_RECORDED: Dict[str, Neuron] = {}


def register(function: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """The name by which the operators know the neuron of this step, with these options and no others."""
    made = neuron(function, {name: [value] for name, value in options.items()})
    text = print_neurons([made._replace(name="neuron")])
    name = f"{made.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    _RECORDED.setdefault(name, made)
    return name


def find(name: str) -> Neuron:
    """The neuron with its variants."""
    if name not in _RECORDED:
        _RECORDED.setdefault(name, neuron(_EQUATIONS[name], equations.OPTIONS))
    return _RECORDED[name]


@lru_cache(maxsize=None)
def adjoint(name: str, variant: int) -> Adjoint:
    return Adjoint(find(name).steps[variant])


@lru_cache(maxsize=None)
def derived_texts(name: str, variant: int) -> List[str]:
    """The names, in ``Neuron.parameters``, of what a variant's step takes."""
    return [expression(value) for value in find(name).steps[variant].derived]
