"""A version of ``snntorch.utils.reset`` that TorchDynamo can trace."""

import functools
from typing import Any, Callable, Tuple

import snntorch
import torch

from snnipu.ops import step_operators

# In the order in which snnTorch resets them.
_KINDS = ("Lapicque", "Synaptic", "Leaky", "Alpha", "RLeaky", "RSynaptic", "SConv2dLSTM", "SLSTM")


def reset(net: Any) -> None:
    """Reset the neurons of ``net`` in a graph; TorchDynamo traces this function in place of ``snntorch.utils.reset``.

    snnTorch resets all neurons of the process that have a class of a neuron in ``net``. Other neurons of this graph are
    reset at their next step, and neurons outside of the graph when the graph runs.
    """
    net = getattr(net, "_orig_mod", net)
    kinds: Tuple[str, ...] = ()
    for child in net._modules.values():
        for name in _KINDS:
            if name not in kinds and isinstance(child, getattr(snntorch, name)):
                kinds = (*kinds, name)
    step_operators.note_reset(kinds)
    for module in net.modules():
        for name in kinds:
            if isinstance(module, getattr(snntorch, name)) and getattr(module, "_is_listed", True):
                getattr(module, "_reset_hidden", module.reset_mem)()
                if hasattr(module, "_reset_in_trace"):
                    module._reset_in_trace()
    reset_others(kinds)


def of_network(layer_check: Callable[..., None]) -> Callable[..., None]:
    """Return a version of ``layer_check`` that searches the network of a compiled object, not its wrapper."""

    @functools.wraps(layer_check)
    def check(net: Any) -> None:
        layer_check(net=getattr(net, "_orig_mod", net))

    return check


def reset_others(kinds: Tuple[str, ...]) -> torch.Tensor:
    """Reset all neurons of these classes when the graph runs; do nothing during the trace."""
    if not step_operators.on_fake_tensors():
        for name in kinds:
            kind = getattr(snntorch, name)
            kind.reset_hidden()
            kind.detach_hidden()
    return torch.zeros(())
