"""Three ways to run a ``SparseNetwork``: dense products, sparse operators one by one, and the layers' own operator."""

from typing import Callable, Dict, List, Union

import torch
from torch import nn

from snnipu import ops
from snnipu.neurons import SparseNetwork
from snnipu.ops.sparse_lif_sequence import delayed
from snnipu.spikes import SparseSpikes

Spikes = Union[torch.Tensor, SparseSpikes]
Layers = List[Spikes]


def dense(network: SparseNetwork, x: SparseSpikes) -> Layers:
    """Spikes ``[T, B, N]`` of every layer: one matrix product over all steps, then fused neurons.

    The plain dense network: every neuron carries gradient, nothing is dropped; ``max_spikes`` and ``grad_threshold``
    have no meaning for it.
    """
    out = ops.sparse_to_dense(x)
    layers: Layers = []
    for index, layer in enumerate(network.layers):
        current = nn.functional.linear(out.to(layer.weight.dtype), layer.weight) * layer.input_scale
        current = delayed(current, network.delay if index else 0)
        if layer.bias is not None:
            current = current + layer.bias
        out, _ = ops.lif_sequence(
            current,
            beta=layer.beta,
            threshold=layer.threshold,
            reset_mechanism=layer.reset_mechanism,
            spike_grad=layer.spike_grad,
        )
        layers.append(out)
    return layers


def sparse_ops(network: SparseNetwork, x: SparseSpikes) -> Layers:
    """SparseSpikes of every layer: ``sparse_linear``, ``lif_sequence`` and ``select_spikes`` in turn."""
    out = limited(network, x)
    layers: Layers = []
    for index, layer in enumerate(network.layers):
        current = ops.sparse_linear(out, layer.weight) * layer.input_scale
        current = delayed(current, network.delay if index else 0)
        if layer.bias is not None:
            current = current + layer.bias
        _, mem = ops.lif_sequence(
            current,
            beta=layer.beta,
            threshold=layer.threshold,
            reset_mechanism=layer.reset_mechanism,
            spike_grad=layer.spike_grad,
        )
        out = ops.select_spikes(
            mem,
            layer.threshold,
            layer.grad_threshold,
            layer.max_spikes,
            spike_grad=layer.spike_grad,
            overflow=layer.overflow_order,
        )
        layers.append(out)
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


__all__ = ["METHODS", "dense", "limited", "num_spikes", "overflow", "sparse_network", "sparse_ops", "spike_count"]
