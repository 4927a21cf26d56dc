"""Three ways to run a ``SparseNetwork``: dense products, separate sparse operators, and one operator a layer."""

from typing import Callable, Dict, List, Union

import torch

from snnipu import ops
from snnipu.neurons import SparseNetwork
from snnipu.ops._sparse_layers import delayed
from snnipu.spikes import SparseSpikes
from snnipu.surrogate import atan

Spikes = Union[torch.Tensor, SparseSpikes]
Layers = List[Spikes]


def _check_surrogate(network: SparseNetwork) -> None:
    if any(getattr(layer, "gradient", "surrogate") != "surrogate" for layer in network.layers):
        raise ValueError('network must have gradient="surrogate" for this method')


def dense(network: SparseNetwork, x: SparseSpikes) -> Layers:
    """Return the spikes ``[T, B, N]`` of every layer, by one dense product or convolution and fused neurons each.

    The result is that of :meth:`~snnipu.SparseNetwork.to_dense` in a ``MultiStep``. Every neuron has a gradient, and no
    spike is dropped: ``max_spikes`` and ``grad_threshold`` are ignored.
    """
    _check_surrogate(network)
    out = ops.sparse_to_dense(x)
    layers: Layers = []
    for index, layer in enumerate(network.layers):
        current = delayed(layer.weighted(out) * layer.input_scale, network.delay if index else 0)
        spikes = layer.stepped(current, spike_grad=layer.spike_grad or atan()).spk
        layers.append(spikes.flatten(2))
        out = network.pooled_densely(index, spikes)
    return layers


def sparse_ops(network: SparseNetwork, x: SparseSpikes) -> Layers:
    """Return the SparseSpikes of every layer, computed by separate operators.

    These are ``sparse_linear`` or ``sparse_conv2d``, ``lif_sequence`` and ``select_spikes``.
    """
    _check_surrogate(network)
    out = limited(network, x)
    layers: Layers = []
    for index, layer in enumerate(network.layers):
        mem, _ = layer.integrated(layer.weighted(out), network.delay if index else 0)
        spikes = layer.selected(mem)
        layers.append(spikes)
        out = network.pooled(index, spikes)
    return layers


def sparse_network(network: SparseNetwork, x: SparseSpikes) -> Layers:
    """Return the SparseSpikes of every layer, by the network's own forward: one operator a layer."""
    layers = network(x, all_layers=True)
    assert isinstance(layers, list)
    return list(layers)


METHODS: Dict[str, Callable[[SparseNetwork, SparseSpikes], Layers]] = {
    "dense": dense,
    "sparse_ops": sparse_ops,
    "sparse_network": sparse_network,
}


def limited(network: SparseNetwork, x: SparseSpikes) -> SparseSpikes:
    """Limit the input to the network's slots for it, ``max_spikes[0]``."""
    limit = network.max_input_spikes
    return x if limit is None or x.capacity <= limit else x.limit(limit, overflow=network.overflow_order)


def spike_count(spikes: Spikes) -> torch.Tensor:
    """Return the differentiable sum over time ``[B, N]``."""
    return spikes.spike_count() if isinstance(spikes, SparseSpikes) else spikes.sum(0)


def num_spikes(spikes: Spikes) -> int:
    """Return the total number of spikes."""
    return spikes.num_spikes if isinstance(spikes, SparseSpikes) else int(torch.count_nonzero(spikes))


def overflow(spikes: Spikes) -> int:
    """Return the number of spikes that were dropped because there were too few slots."""
    return spikes.overflow if isinstance(spikes, SparseSpikes) else 0
