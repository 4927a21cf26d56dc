"""snnipu's networks in NeuroBench (Yik et al., "The neurobench framework for benchmarking neuromorphic computing
algorithms and systems", Nature Communications 2025)."""

from typing import List, Optional, Tuple, Union

import snntorch
import torch
from neurobench.models import NeuroBenchModel
from torch import nn

from snnipu.neurons import Leaky, MultiStep, SparseNetwork
from snnipu.spikes import SparseSpikes


class Model(NeuroBenchModel):
    """A :class:`~snnipu.MultiStep` or :class:`~snnipu.SparseNetwork` for NeuroBench's ``Benchmark``.

    The metrics are those of the same network as an snnTorch loop. NeuroBench looks at modules by hooks: a ``MultiStep``
    with hooks calls its modules step by step. Of a ``SparseNetwork`` every layer's input, membranes and spikes are shown
    to NeuroBench as those of an ``nn.Linear`` and a neuron, after the network has run.

    Args:
        net: the network; put into evaluation mode.

    Raises:
        TypeError: another kind of network.
    """

    def __init__(self, net: Union[MultiStep, SparseNetwork]) -> None:
        super().__init__()
        if not isinstance(net, (MultiStep, SparseNetwork)):
            raise TypeError(f"net must be a snnipu.MultiStep or a snnipu.SparseNetwork, got {type(net).__name__}")
        self.net = net.eval()
        self._shown = None if isinstance(net, MultiStep) else nn.ModuleList(_Shown(layer) for layer in net.layers)
        self.add_activation_module(snntorch.SpikingNeuron)

    def __net__(self) -> nn.Module:
        """What NeuroBench counts parameters of and hooks."""
        return self.net if self._shown is None else self._shown

    def __call__(self, data: torch.Tensor) -> torch.Tensor:
        """Spikes ``[batch, time, classes]`` for ``data [batch, time, ...]``, NeuroBench's order."""
        x = data.transpose(0, 1)
        if self._shown is None:
            out = self.net(x)
            return (out[0] if isinstance(out, tuple) else out).transpose(0, 1)
        every = self.net(x, all_layers=True)
        inputs: List[Union[torch.Tensor, SparseSpikes]] = [x, *every[:-1]]
        for index, (layer, shown) in enumerate(zip(self.net.layers, self._shown)):
            delay = self.net.delay if index else 0
            dense = inputs[index].to_dense() if isinstance(inputs[index], SparseSpikes) else inputs[index]
            arrived = torch.cat([torch.zeros_like(dense[:delay]), dense[: dense.shape[0] - delay]])
            membranes = layer.membranes(inputs[index], delay=delay)
            shown(arrived, every[index].to_dense(), membranes)
        return every[-1].to_dense().transpose(0, 1)


class _Shown(nn.Module):
    """An event-driven layer as the two modules that NeuroBench knows, called once for each step."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        linear, _ = layer.to_dense()
        self.linear, self.neuron = linear, _Replayed(beta=layer.beta.detach(), threshold=layer.threshold.detach())

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
