"""Training by a rule of online learning: each recording is a stream, learnt chunk by chunk."""

import sys
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from snnipu.online import Online
from snnipu.spikes import SparseSpikes

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# DECOLLE learns by readouts of its own, which the network that is evaluated does not have.
RULES = ("sltt", "ottt", "eprop", "snap1")
# Those that event-driven layers take.
SPIKE_RULES = ("sltt", "ottt")
CHUNK = 50
# With its low-pass every weight has a trace, and a readout that is reset to zero has none.
_OPTIONS: Dict[str, Dict[str, Any]] = {"eprop": {"low_pass": False}}


class OnlineSteps:
    """Forward and backward pass of batches, chunk by chunk.

    The loss of a chunk is the cross entropy of the spike counts so far, by the chunk's share of all steps: with one
    chunk it is that of backpropagation through time.

    Args:
        net: the network; its parameters get the gradients.
        rule: one of :data:`RULES`.
        scaled: of parameters that are another module's, times a number: that module's, ``net``'s, and the number.

    Raises:
        ValueError: the rule cannot treat the network; begins with ``rule:``.
    """

    def __init__(self, net: nn.Module, rule: str, scaled: Optional[List[Tuple[Any, Any, float]]] = None) -> None:
        try:
            self.online = Online(net, rule=rule, **_OPTIONS.get(rule, {}))
        except (TypeError, ValueError) as error:
            raise ValueError(f"rule: {error}") from error
        self.scaled = scaled or []

    def learn(
        self, chunks: Iterable[Union[torch.Tensor, SparseSpikes]], steps: int, labels: torch.Tensor, weight: float
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Add the gradients of ``weight`` times the loss; returns the loss and the spike counts."""
        with torch.no_grad():
            for own, of_net, factor in self.scaled:
                of_net.copy_(own * factor)
                of_net.grad = None
        self.online.reset()
        counts, total = torch.zeros(()), torch.zeros((), device=labels.device)
        for chunk in chunks:
            out = self.online(chunk, single=False)
            count = out.spike_count() if isinstance(out, SparseSpikes) else out[0].sum(0)
            counts = counts.to(count) + count
            loss = cross_entropy(counts, labels) * (len(chunk) / steps)
            (loss * weight).backward()
            counts = counts.detach()
            total = total + loss.detach()
        self.online.reset()
        for own, of_net, factor in self.scaled:
            grad = of_net.grad * factor
            own.grad = grad if own.grad is None else own.grad + grad
        return total, counts


def peak_memory() -> str:
    """What the process has had at most, in words; empty where the system does not tell."""
    if resource is None:
        return ""
    unit = 1 if sys.platform == "darwin" else 2**10
    return f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20:,.0f} MiB"
