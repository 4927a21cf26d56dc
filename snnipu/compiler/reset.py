"""``snntorch.utils.reset`` as TorchDynamo can trace it."""

from typing import Any, Tuple

import snntorch
import torch

from snnipu.compiler.private import is_tracing
from snnipu.ops import step_operators

# In the order in which snnTorch resets them.
_KINDS = ("Lapicque", "Synaptic", "Leaky", "Alpha", "RLeaky", "RSynaptic", "SConv2dLSTM", "SLSTM")


def reset(net: Any) -> None:
    """Traced in place of ``snntorch.utils.reset``: the neurons in ``net`` begin from zeros in this graph.

    snnTorch resets all neurons of the kinds that ``net`` has, whoever uses them: of the others, those of this graph at
    their next step, the rest when the graph runs.
    """
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


def reset_others(kinds: Tuple[str, ...]) -> torch.Tensor:
    """A node of the graph for its effect; nothing happens while it is traced."""
    if not is_tracing():
        for name in kinds:
            kind = getattr(snntorch, name)
            kind.reset_hidden()
            kind.detach_hidden()
    return torch.zeros(())
