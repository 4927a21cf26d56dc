"""snnTorch's ``utils``, with a :func:`reset` that also resets the neurons of ``snnipu.neuron`` and delays."""

from typing import Any, List

import snntorch.utils
from torch import nn

from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.own import OwnNeuron
from snnipu.neurons.synaptic_delay import SynapticDelay

# Other names are looked up in snnTorch's module at each access, because some of its variables are reassigned.
__all__ = [name for name in dir(snntorch.utils) if not name.startswith("_")]


def reset(net: nn.Module) -> None:
    """Clear the hidden states of the neurons and delays in ``net``.

    Neurons of :func:`snnipu.neuron`, ``SynapticDelay`` and ``DelayLinear`` are reset at any depth of ``net``. Other
    neurons are reset by the installed ``snntorch.utils.reset``:

    * Up to snnTorch 1.0 it resets all neurons, of any network, whose class is that of a direct child of ``net``.
    * In its next release it resets the neurons of ``net`` alone, at any depth.

    Args:
        net: the network.
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
