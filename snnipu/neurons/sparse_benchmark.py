"""The networks of the published benchmark of sparse training, with its weights, surrogate, update rule and slots."""

import math
from typing import Any, List, Optional, Sequence, Union

import torch

from snnipu.neurons.sparse_network import SparseNetwork
from snnipu.planning.network import benchmark_slots
from snnipu.surrogate import fast_sigmoid

SURROGATE_SLOPE = 10.0
WEIGHT_GAIN = 2.0
SECOND_THRESHOLD = 0.9


def benchmark_max_spikes(
    sizes: Sequence[int], activity: float, input_slots: Optional[int] = None
) -> List[Optional[int]]:
    """Return ``max_spikes`` for :class:`snnipu.SparseNetwork`, one entry for the input and for each layer.

    Args:
        sizes: neurons of the input and of each layer.
        activity: share of the hidden neurons that have a slot, from 0 to 1; see :func:`benchmark_slots`.
        input_slots: slots of the input; None: as many as needed.

    Returns:
        ``[input_slots, slots of each hidden layer, sizes[-1]]``: the output layer has a slot for each neuron.
    """
    hidden = [benchmark_slots(activity, size) for size in sizes[1:-1]]
    return [input_slots, *hidden, sizes[-1]]


@torch.no_grad()
def benchmark_weights_(
    network: SparseNetwork, gain: float = WEIGHT_GAIN, generator: Optional[torch.Generator] = None
) -> None:
    r"""Draw the weights of every layer from :math:`U(-b, b)`, :math:`b = g \sqrt{6 / n_{in}}`, and set biases to 0.

    :math:`n_{in}` is the number of a neuron's inputs; for a convolution, the number of a kernel's weights.

    Args:
        network: the network, changed in place.
        gain: :math:`g`; 2 in the benchmark.
        generator: generator of the random numbers; None: torch's global generator.

    Source: Gruen et al., arXiv 2311.04386, 2023.
    """
    for layer in network.layers:
        bound = gain * math.sqrt(6 / layer.weight[0].numel())
        drawn = torch.rand(layer.weight.shape, generator=generator, dtype=torch.float32)
        layer.weight.copy_(bound * (2 * drawn - 1))
        if layer.bias is not None:
            layer.bias.zero_()


def benchmark_network(
    sizes: Sequence[Any],
    *,
    activity: Optional[float] = None,
    max_spikes: Union[int, Sequence[Optional[int]], None] = None,
    input_slots: Optional[int] = None,
    decay: float = 0.95,
    threshold: float = 1.0,
    grad_threshold: Union[float, Sequence[Optional[float]], None] = SECOND_THRESHOLD,
    delay: int = 1,
    gain: float = WEIGHT_GAIN,
    overflow: str = "lowest",
    generator: Optional[torch.Generator] = None,
) -> SparseNetwork:
    r"""Return a :class:`snnipu.SparseNetwork` of the published benchmark of sparse training.

    .. math::

        u_t = d\,(1 - r_t)\,u_{t-1} + 10\,(1 - d) \sum_j W_{\cdot j} s_{j,t-\Delta}, \qquad
        \sigma'(u) = \frac{1}{(10\,|u - \theta| + 1)^2}

    The reset :math:`r` sets the membrane :math:`u` to zero and carries no gradient. The weights :math:`W` are drawn
    from :math:`U(-b, b)`, :math:`b = g \sqrt{6 / n_{in}}`. :math:`\Delta` is 1 between layers, 0 for the input.

    .. code-block:: python

        net = benchmark_network([2312, 1466, 1466, 10], activity=0.02, input_slots=32)
        net.layers[0].max_spikes                          # 28 slots: 2 * floor(0.02 * 1466 / 2)

    Args:
        sizes: neurons of the input and of each layer; or maps and layers, as in :class:`snnipu.SparseNetwork`.
        activity: share of the hidden neurons that have a slot, from 0 to 1. The last layer has a slot for each neuron.
            None: ``max_spikes`` gives the slots.
        max_spikes: slots, as in :class:`snnipu.SparseNetwork`; not together with ``activity``.
        input_slots: slots of the input; only together with ``activity``. None: as many as needed.
        decay: :math:`d`, the decay of the membrane per time step, from 0 to below 1.
        threshold: :math:`\theta`, the firing threshold.
        grad_threshold: second threshold: a number, or one entry for each layer; None: every neuron carries gradient.
        delay: :math:`\Delta` between layers, 0 or 1 time steps.
        gain: :math:`g`, the scale of the weights.
        overflow: order in which neurons lose their slot if there are too few: ``"lowest"`` or ``"rotate"``, as in
            :func:`snnipu.ops.select_spikes`.
        generator: generator of the weights; None: torch's global generator.

    Raises:
        TypeError, ValueError: wrong type or value; the message names the argument.

    Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
    """
    if activity is not None and max_spikes is not None:
        raise ValueError("max_spikes: not allowed with activity, which sets the slots")
    if activity is None and input_slots is not None:
        raise ValueError("input_slots: only with activity; max_spikes has an entry for the input")
    if activity is not None:
        max_spikes = benchmark_max_spikes(sizes, activity, input_slots)
    if isinstance(decay, bool) or not isinstance(decay, (int, float)) or not 0 <= decay < 1:
        raise ValueError(f"decay: expected a number from 0 to 1, 1 excluded, got {decay!r}")
    # SparseNetwork draws weights, which must not advance torch's global generator.
    with torch.random.fork_rng(devices=[]):
        network = SparseNetwork(
            sizes,
            beta=decay,
            max_spikes=max_spikes,
            grad_threshold=grad_threshold,
            delay=delay,
            threshold=threshold,
            reset_mechanism="zero",
            spike_grad=fast_sigmoid(SURROGATE_SLOPE),
            input_scale=(1 - decay) * 10,
            overflow=overflow,
        )
    benchmark_weights_(network, gain, generator)
    return network


__all__ = ["benchmark_max_spikes", "benchmark_network", "benchmark_slots", "benchmark_weights_"]
