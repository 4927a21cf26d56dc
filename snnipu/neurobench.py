"""snnipu's networks in NeuroBench (Yik et al., "The neurobench framework for benchmarking neuromorphic computing
algorithms and systems", Nature Communications 2025)."""

from typing import Optional, Tuple, Union

import snntorch
import torch
from neurobench.models import NeuroBenchModel
from torch import nn

from snnipu.neurons import Leaky, MultiStep, SparseLeaky, SparseNetwork
from snnipu.spikes import SparseSpikes


class Model(NeuroBenchModel):
    """A :class:`~snnipu.MultiStep` or :class:`~snnipu.SparseNetwork` for NeuroBench's ``Benchmark``.

    The metrics are those of the same network as an snnTorch loop. NeuroBench looks at modules by hooks, and a
    ``MultiStep`` with hooks calls its modules step by step. Of a ``SparseNetwork`` every layer's input, membranes and
    spikes are shown to NeuroBench as those of an ``nn.Linear`` and a neuron, after the network has run.

    Args:
        net: the network; put into evaluation mode.

    Raises:
        TypeError: another kind of network.
    """

    def __init__(self, net: Union[MultiStep, SparseNetwork]) -> None:
        super().__init__()
        if not isinstance(net, (MultiStep, SparseNetwork)):
            raise TypeError(f"net must be a snnipu.MultiStep or a snnipu.SparseNetwork, got {type(net).__name__}")
        self.net: Union[MultiStep, SparseNetwork] = net.eval()
        self._shown = None if isinstance(net, MultiStep) else nn.ModuleList(_Shown(layer) for layer in net.layers)
        self.add_activation_module(snntorch.SpikingNeuron)

    def __net__(self) -> nn.Module:
        """What NeuroBench counts parameters of and hooks."""
        return self.net if self._shown is None else self._shown

    def __call__(self, data: torch.Tensor) -> torch.Tensor:
        """Spikes ``[batch, time, classes]`` for ``data [batch, time, ...]``, NeuroBench's order."""
        x = data.transpose(0, 1)
        net, shown = self.net, self._shown
        if not isinstance(net, SparseNetwork) or shown is None:
            out = net(x)
            return (out[0] if isinstance(out, tuple) else out).transpose(0, 1)
        every = net(x, all_layers=True)
        inputs = SparseSpikes.from_dense(x)
        for index, (layer, spikes) in enumerate(zip(net.layers, every)):
            delay = net.delay if index else 0
            dense = inputs.to_dense()
            arrived = torch.cat([torch.zeros_like(dense[:delay]), dense[: len(dense) - delay]])
            shown[index](arrived, spikes.to_dense(), layer.membranes(inputs, delay=delay))
            inputs = spikes
        return inputs.to_dense().transpose(0, 1)


class _Shown(nn.Module):
    """An event-driven layer as the two modules that NeuroBench knows, called once for each step."""

    def __init__(self, layer: SparseLeaky) -> None:
        super().__init__()
        self.linear = layer.to_dense()[0]
        self.neuron = _Replayed(beta=layer.beta.detach(), threshold=layer.threshold.detach())

    def forward(self, inputs: torch.Tensor, spikes: torch.Tensor, membranes: torch.Tensor) -> None:
        for current, spk, mem in zip(inputs, spikes, membranes):
            self.linear(current)
            self.neuron(spk, mem)


class _Replayed(Leaky):
    """Neurons whose spikes and membranes are given."""

    def forward(self, input_: torch.Tensor, mem: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
        assert mem is not None
        self.mem = mem
        return input_, mem
