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

# "decolle" is missing: it trains local readouts, which are not part of the evaluated network.
RULES = ("sltt", "ottt", "eprop", "snap1")
# Rules that event-driven layers support.
SPIKE_RULES = ("sltt", "ottt")
CHUNK = 50
# low_pass=True would need a trace for every weight, and a readout whose reset is not to zero.
_OPTIONS: Dict[str, Dict[str, Any]] = {"eprop": {"low_pass": False}}


class OnlineSteps:
    """The forward and backward pass of batches, chunk by chunk.

    The loss of a chunk is the cross entropy of the spike counts so far, times the chunk's share of all steps. With a
    single chunk it is the loss of backpropagation through time.

    Args:
        net: the network whose parameters get the gradients.
        rule: one of :data:`RULES`.
        scaled: triples (parameter, parameter of ``net``, factor): the second is kept equal to the first times the
            factor, and the first gets its gradient.

    Raises:
        ValueError: the rule does not support the network; the message begins with ``rule:``.
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
        """Add the gradients of ``weight`` times the loss; return the loss and the spike counts."""
        with torch.no_grad():
            for parameter, net_parameter, factor in self.scaled:
                net_parameter.copy_(parameter * factor)
                net_parameter.grad = None
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
        for parameter, net_parameter, factor in self.scaled:
            grad = net_parameter.grad * factor
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad
        return total, counts


def peak_memory() -> str:
    """Return the peak memory of the process as text; empty if the system does not report it."""
    if resource is None:
        return ""
    unit = 1 if sys.platform == "darwin" else 2**10
    return f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20:,.0f} MiB"
