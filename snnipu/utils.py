"""snnTorch's ``utils``; :func:`reset` also resets neurons that ``snnipu.neuron`` has made, and delays."""

from typing import Any, List

import snntorch.utils
from torch import nn

from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.own import OwnNeuron
from snnipu.neurons.synaptic_delay import SynapticDelay

# The rest is looked up in snnTorch's module when it is asked for: some of its names change.
__all__ = [name for name in dir(snntorch.utils) if not name.startswith("_")]


def reset(net: nn.Module) -> None:
    """Clear the hidden states of the neurons in ``net``.

    snnTorch's are reset as the installed ``snntorch.utils.reset`` does: up to 1.0 all neurons of the kinds that stand
    directly in ``net``, in any network; in its next release those in ``net`` alone, at any depth. Own neurons, and what
    is on its way in a ``SynapticDelay`` or ``DelayLinear``, are reset at any depth.
    """
    for module in net.modules():
        if isinstance(module, OwnNeuron):
            module.reset_mem()
        if isinstance(module, (SynapticDelay, DelayLinear)):
            module.reset_delay()
    snntorch.utils.reset(net)


def __getattr__(name: str) -> Any:
    return getattr(snntorch.utils, name)


def __dir__() -> List[str]:
    return sorted({*globals(), *dir(snntorch.utils)})
