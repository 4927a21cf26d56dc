"""Classes of snnTorch's neurons by name, with a placeholder for those that the installed snnTorch lacks."""

from functools import lru_cache
from typing import Any

import snntorch


class MissingNeuron(NotImplementedError):
    """The installed snnTorch is older than the neuron."""


@lru_cache(maxsize=None)
def stock(name: str) -> Any:
    """Return snnTorch's class of this name. If there is none, return a class whose constructor raises MissingNeuron."""
    neuron = getattr(snntorch, name, None)
    if neuron is not None:
        return neuron

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise MissingNeuron(f"snnTorch {snntorch.__version__} has no {name}: it came with snnTorch 1.0")

    return type(name, (snntorch.SpikingNeuron,), {"__init__": refuse})
