"""Three ways to run a ``SparseNetwork``: dense products, sparse operators one by one, and the layers' own operator."""

from typing import Callable, Dict, List, Union

import torch

from snnipu import ops
from snnipu.neurons import SparseNetwork
from snnipu.ops._sparse_layers import delayed
from snnipu.spikes import SparseSpikes
from snnipu.surrogate import atan

Spikes = Union[torch.Tensor, SparseSpikes]
Layers = List[Spikes]


def dense(network: SparseNetwork, x: SparseSpikes) -> Layers:
    """Spikes ``[T, B, N]`` of every layer: one product or convolution over all steps, then fused neurons.

    The plain dense network, as its :meth:`~snnipu.SparseNetwork.to_dense` in a ``MultiStep``: every neuron carries
    gradient, nothing is dropped; ``max_spikes`` and ``grad_threshold`` have no meaning for it.
    """
    out = ops.sparse_to_dense(x)
    layers: Layers = []
    for index, layer in enumerate(network.layers):
        current = delayed(layer.weighted(out) * layer.input_scale, network.delay if index else 0)
        spikes = layer.stepped(current, spike_grad=layer.spike_grad or atan()).spk
        layers.append(spikes.flatten(2))
        out = network.pooled_densely(index, spikes)
    return layers


def sparse_ops(network: SparseNetwork, x: SparseSpikes) -> Layers:
    """SparseSpikes of every layer: ``sparse_linear`` or ``sparse_conv2d``, ``lif_sequence``, ``select_spikes``."""
    out = limited(network, x)
    layers: Layers = []
    for index, layer in enumerate(network.layers):
        mem, _ = layer.integrated(layer.weighted(out), network.delay if index else 0)
        spikes = layer.selected(mem)
        layers.append(spikes)
        out = network.pooled(index, spikes)
    return layers


def sparse_network(network: SparseNetwork, x: SparseSpikes) -> Layers:
    """SparseSpikes of every layer, by the network itself: one operator a layer."""
    layers = network(x, all_layers=True)
    assert isinstance(layers, list)
    return list(layers)


METHODS: Dict[str, Callable[[SparseNetwork, SparseSpikes], Layers]] = {
    "dense": dense,
    "sparse_ops": sparse_ops,
    "sparse_network": sparse_network,
}


def limited(network: SparseNetwork, x: SparseSpikes) -> SparseSpikes:
    """The input in the network's slots for it, ``max_spikes[0]``."""
    limit = network.max_input_spikes
    return x if limit is None or x.capacity <= limit else x.limit(limit, overflow=network.overflow_order)


def spike_count(spikes: Spikes) -> torch.Tensor:
    """Sum over time ``[B, N]``, differentiable."""
    return spikes.spike_count() if isinstance(spikes, SparseSpikes) else spikes.sum(0)


def num_spikes(spikes: Spikes) -> int:
    """Spikes in all."""
    return spikes.num_spikes if isinstance(spikes, SparseSpikes) else int(torch.count_nonzero(spikes))


def overflow(spikes: Spikes) -> int:
    """Spikes that were dropped for want of slots."""
    return spikes.overflow if isinstance(spikes, SparseSpikes) else 0
