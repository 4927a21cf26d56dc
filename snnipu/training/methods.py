"""Three ways to run a ``SparseNetwork``: dense products, sparse operators one by one, and the layers' own operator."""

from typing import Any, Callable, Dict, List, Tuple, Union

import torch

from snnipu import ops
from snnipu.neurons import SparseConvLeaky, SparseNetwork
from snnipu.ops._sparse_layers import delayed
from snnipu.spikes import SparseSpikes

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
        spikes, _ = _neurons(layer, layer.weighted(out), network.delay if index else 0)
        layers.append(spikes.flatten(2))
        out = network.pooled_densely(index, spikes)
    return layers


def _neurons(layer: Any, weighted: torch.Tensor, delay: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Spikes and membranes of a layer's neurons, in the shape of its weighted spikes."""
    current = delayed(weighted * layer.input_scale, delay)
    return ops.lif_sequence(
        current if layer.bias is None else current + layer._per_neuron(layer.bias),
        beta=layer._per_neuron(layer.beta),
        threshold=layer._per_neuron(layer.threshold),
        reset_mechanism=layer.reset_mechanism,
        spike_grad=layer.spike_grad,
    )


def sparse_ops(network: SparseNetwork, x: SparseSpikes) -> Layers:
    """SparseSpikes of every layer: ``sparse_linear`` or ``sparse_conv2d``, ``lif_sequence``, ``select_spikes``."""
    out = limited(network, x)
    layers: Layers = []
    for index, layer in enumerate(network.layers):
        threshold, maps = layer.threshold, None
        if isinstance(layer, SparseConvLeaky):
            geometry = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}
            current = ops.sparse_conv2d(out, layer.weight, input_size=layer.input_size, **geometry)
            maps = (current.shape[2], current.shape[3], current.shape[4])
            if threshold.numel() > 1:
                threshold = threshold.repeat_interleave(maps[1] * maps[2])
        else:
            current = layer.weighted(out)
        _, mem = _neurons(layer, current, network.delay if index else 0)
        spikes = ops.select_spikes(
            mem.flatten(2),
            threshold,
            layer.grad_threshold,
            layer.max_spikes,
            spike_grad=layer.spike_grad,
            overflow=layer.overflow_order,
        ).with_maps(maps)
        layers.append(spikes)
        out = network.pools[str(index)](spikes) if str(index) in network.pools else spikes
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
