"""The networks of the published benchmark of sparse training: weights, surrogate, update rule and slots."""

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
    """``max_spikes`` of a network of ``sizes``: of the input, of the hidden layers by :func:`benchmark_slots`, and as
    many slots as neurons for the last layer, whose spikes are the answer."""
    hidden = [benchmark_slots(activity, size) for size in sizes[1:-1]]
    return [input_slots, *hidden, sizes[-1]]


@torch.no_grad()
def benchmark_weights_(
    network: SparseNetwork, gain: float = WEIGHT_GAIN, generator: Optional[torch.Generator] = None
) -> None:
    r"""Draw the weights of every layer from :math:`U(-b, b)`, :math:`b = g \sqrt{6 / n_{in}}`; biases become 0.

    :math:`n_{in}` are a neuron's inputs; of a convolution those of one place, as many as a kernel has weights.

    Args:
        network: changed in place.
        gain: :math:`g`; the benchmark's is 2.
        generator: of the random numbers; None: torch's global one.

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
    r"""A :class:`snnipu.SparseNetwork` as in the published benchmark of sparse training.

    .. math::

        u_t = d\,(1 - r_t)\,u_{t-1} + 10\,(1 - d) \sum_j W_{\cdot j} s_{j,t-\Delta}, \qquad
        \sigma'(u) = \frac{1}{(10\,|u - \theta| + 1)^2}

    with the reset to zero detached, :math:`W` from :math:`U(-b, b)`, :math:`b = 2 \sqrt{6 / n_{in}}`, and layers one
    time step apart.

    .. code-block:: python

        net = benchmark_network([2312, 1466, 1466, 10], activity=0.02, input_slots=32)
        net.layers[0].max_spikes                          # 28 slots: 2 * floor(0.02 * 1466 / 2)

    Args:
        sizes: neurons of the input and of each layer, or maps and layers as :class:`snnipu.SparseNetwork` has them.
        activity: share of the hidden neurons that have a slot; the last layer has a slot for every neuron. None:
            ``max_spikes`` tells the slots.
        max_spikes: as in :class:`snnipu.SparseNetwork`; not together with ``activity``.
        input_slots: slots of the input; only together with ``activity``.
        decay: :math:`d`, per time step.
        threshold: :math:`\theta`.
        grad_threshold: second threshold; None: every neuron carries gradient.
        delay: steps from layer to layer, 0 or 1.
        gain: of the weights.
        overflow: ``"lowest"`` or ``"rotate"``.
        generator: of the weights; None: torch's global one.

    Raises:
        TypeError, ValueError: the message names the argument.

    Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
    """
    if activity is not None and max_spikes is not None:
        raise ValueError("max_spikes: not allowed with activity, which tells the slots")
    if activity is None and input_slots is not None:
        raise ValueError("input_slots: only with activity; max_spikes has an entry for the input")
    if activity is not None:
        max_spikes = benchmark_max_spikes(sizes, activity, input_slots)
    if isinstance(decay, bool) or not isinstance(decay, (int, float)) or not 0 <= decay < 1:
        raise ValueError(f"decay: expected a number from 0 to 1, 1 excluded, got {decay!r}")
    # SparseNetwork draws nn.Linear's weights first: that must not move torch's global generator.
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
