"""An adapter that runs snnipu's networks in NeuroBench.

NeuroBench is a set of metrics for neuromorphic networks (Yik et al., "The neurobench framework for benchmarking
neuromorphic computing algorithms and systems", Nature Communications 2025).
"""

from typing import Optional, Tuple, Union

import snntorch
import torch
from neurobench.models import NeuroBenchModel
from torch import nn

from snnipu.neurons import Leaky, MultiStep, SparseLeaky, SparseNetwork
from snnipu.spikes import SparseSpikes


class Model(NeuroBenchModel):
    """A :class:`~snnipu.MultiStep` or :class:`~snnipu.SparseNetwork` for NeuroBench's ``Benchmark``.

    The metrics equal those of the same network written as a loop with snnTorch. NeuroBench reads modules by hooks. A
    ``MultiStep`` with hooks calls its modules step by step. The layers of a ``SparseNetwork`` are replayed after the
    network has run: each as an ``nn.Linear`` and a neuron, called with that layer's inputs, membranes and spikes.

    Args:
        net: the network. It is put into evaluation mode.

    Raises:
        TypeError: ``net`` is another kind of network.
    """

    def __init__(self, net: Union[MultiStep, SparseNetwork]) -> None:
        super().__init__()
        if not isinstance(net, (MultiStep, SparseNetwork)):
            raise TypeError(f"net must be a snnipu.MultiStep or a snnipu.SparseNetwork, got {type(net).__name__}")
        self.net: Union[MultiStep, SparseNetwork] = net.eval()
        self._replayed_layers = (
            None if isinstance(net, MultiStep) else nn.ModuleList(_ReplayedLayer(layer) for layer in net.layers)
        )
        self.add_activation_module(snntorch.SpikingNeuron)

    def __net__(self) -> nn.Module:
        """Return the module whose parameters NeuroBench counts and which it hooks."""
        return self.net if self._replayed_layers is None else self._replayed_layers

    def __call__(self, data: torch.Tensor) -> torch.Tensor:
        """Return the output spikes ``[batch, time, classes]`` for ``data [batch, time, ...]``."""
        x = data.transpose(0, 1)
        net, replayed = self.net, self._replayed_layers
        if not isinstance(net, SparseNetwork) or replayed is None:
            out = net(x)
            return (out[0] if isinstance(out, tuple) else out).transpose(0, 1)
        layer_spikes = net(x, all_layers=True)
        inputs = SparseSpikes.from_dense(x)
        for index, (layer, spikes) in enumerate(zip(net.layers, layer_spikes)):
            delay = net.delay if index else 0
            dense = inputs.to_dense()
            arrived = torch.cat([torch.zeros_like(dense[:delay]), dense[: len(dense) - delay]])
            replayed[index](arrived, spikes.to_dense(), layer.membranes(inputs, delay=delay))
            inputs = spikes
        return inputs.to_dense().transpose(0, 1)


class _ReplayedLayer(nn.Module):
    """An event-driven layer as an ``nn.Linear`` and a neuron, which it calls once for each step."""

    def __init__(self, layer: SparseLeaky) -> None:
        super().__init__()
        self.linear = layer.to_dense()[0]
        self.neuron = _ReplayedNeuron(beta=layer.beta.detach(), threshold=layer.threshold.detach())

    def forward(self, inputs: torch.Tensor, spikes: torch.Tensor, membranes: torch.Tensor) -> None:
        for current, spk, mem in zip(inputs, spikes, membranes):
            self.linear(current)
            self.neuron(spk, mem)


class _ReplayedNeuron(Leaky):
    """A neuron whose input is the spikes, and whose membrane is an argument: it returns both unchanged."""

    def forward(self, input_: torch.Tensor, mem: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
        assert mem is not None
        self.mem = mem
        return input_, mem
