"""``snnipu.SparseSynaptic``: an event-driven layer of second-order neurons, from spikes to spikes."""

from typing import Optional, Union

import torch

from snnipu.neurons.sparse_leaky import FullyConnectedNeurons, Parameter
from snnipu.neurons.zoo import Synaptic
from snnipu.surrogate import SpikeGrad


class SparseSynaptic(FullyConnectedNeurons):
    r"""``nn.Linear`` and second-order neurons, ``Synaptic``, as an event-driven layer.

    Only weights of neurons that spiked are read, and only neurons whose membrane is above ``grad_threshold`` carry
    gradient. With ``max_spikes=None`` and ``grad_threshold=None`` the layer equals ``nn.Linear`` followed by
    ``Synaptic``, up to the order of the additions. The product follows the spikes, the neurons run as one operator over
    all steps, by the equation that ``Synaptic`` has.

    .. code-block:: python

        layer = snn.SparseSynaptic(700, 128, alpha=0.9, beta=0.95, grad_threshold=0.9)
        spikes = layer(x)                # x: SparseSpikes or a dense [T, B, 700] -> SparseSpikes of 128 neurons

    Args:
        in_features: neurons of the input.
        out_features: neurons of the layer.
        alpha: decay of the synaptic current per step, clamped to [0, 1]: a number, or a tensor of one element or
            ``[out]``.
        beta: decay of the membrane, likewise.
        threshold: firing threshold, likewise.
        learn_alpha, learn_beta, learn_threshold: whether these are learnt.
        grad_threshold, max_spikes, reset_mechanism, spike_grad, bias, input_scale, overflow, path: as in
            :class:`SparseLeaky`.
        max_delay, delay, learn_delay: likewise.

    Attributes:
        weight, activity, overflow: as of :class:`SparseLeaky`.

    Raises:
        TypeError, ValueError: the message names the argument.
    """

    neuron = Synaptic

    alpha: torch.Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        alpha: Parameter,
        beta: Parameter,
        threshold: Parameter = 1.0,
        grad_threshold: Optional[float] = None,
        max_spikes: Optional[int] = None,
        reset_mechanism: str = "zero",
        spike_grad: Optional[SpikeGrad] = None,
        bias: bool = False,
        learn_alpha: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        input_scale: float = 1.0,
        overflow: str = "lowest",
        path: str = "auto",
        max_delay: Optional[int] = None,
        delay: Union[float, torch.Tensor, None] = None,
        learn_delay: bool = True,
    ) -> None:
        super().__init__()
        self._set_features(in_features, out_features, bias, max_delay, delay, learn_delay)
        self._set_neurons(locals())
