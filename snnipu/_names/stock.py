"""snnTorch's own neurons, where the installed snnTorch may not have them."""

from functools import lru_cache
from typing import Any

import snntorch


class MissingNeuron(NotImplementedError):
    """A neuron that came with a later snnTorch than the installed one."""


@lru_cache(maxsize=None)
def stock(name: str) -> Any:
    """snnTorch's class of this name; where there is none, one that refuses to be made."""
    found = getattr(snntorch, name, None)
    if found is not None:
        return found

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise MissingNeuron(f"snnTorch {snntorch.__version__} has no {name}: it came with snnTorch 1.0")

    return type(name, (snntorch.SpikingNeuron,), {"__init__": refuse})
