"""Training by the times of spikes: silent neurons, which have no gradient, and a loss of the numbers of spikes."""

from typing import Optional

import torch

from snnipu.ops._slots import check_spikes
from snnipu.spikes import SparseSpikes


@torch.no_grad()
def wake_silent(
    weight: torch.Tensor,
    spikes: SparseSpikes,
    needed: Optional[torch.Tensor] = None,
    *,
    share: float = 0.0,
    by: float = 5e-4,
) -> int:
    r"""Raise the incoming weights of neurons that are silent in too many samples; return the number of such neurons.

    .. math:: W_{nm} \leftarrow W_{nm} + \delta \ \text{ for all } m, \quad
        \text{if } |\{b : c_{bn} = 0 \text{ and } q_{bn}\}| > p B

    :math:`c_{bn}` is the number of spikes of neuron :math:`n` in sample :math:`b`. A neuron without a spike has no
    gradient of EventProp. Call the function after each step of the optimizer.

    .. code-block:: python

        hidden, out = net(x, all_layers=True)
        ...
        right = nn.functional.one_hot(labels, 10).bool()  # [B, outputs]
        silent = snn.functional.wake_silent(net.layers[1].weight, out, right)

    Args:
        weight: ``[out, in]`` of the layer, changed in place.
        spikes: spikes of the layer, of a batch of B samples.
        needed: :math:`q`, bool ``[B, out]``: the samples in which a neuron must spike, such as an output in the samples
            of its class. None: all samples.
        share: :math:`p`, the share of samples in which a neuron may be silent, 0 to 1.
        by: :math:`\delta`, in units of the weight.

    Raises:
        TypeError, ValueError: ``spikes`` are not SparseSpikes; ``weight`` or ``needed`` has another shape or dtype.

    Source: Goeltz et al., "Fast and energy-efficient neuromorphic deep learning with first-spike times", Nature Machine
    Intelligence 3, 2021.
    """
    spikes = check_spikes("spikes", spikes)
    if weight.dim() != 2 or len(weight) != spikes.num_neurons:
        raise ValueError(f"weight must have shape [{spikes.num_neurons}, in], got {tuple(weight.shape)}")
    silent = spikes.spike_count() == 0
    if needed is not None:
        if needed.dtype != torch.bool or needed.shape != silent.shape:
            got = f"{needed.dtype} {tuple(needed.shape)}"
            raise ValueError(f"needed must be torch.bool of shape {tuple(silent.shape)}, got {got}")
        silent &= needed
    too_often = silent.sum(0) > share * spikes.batch_size
    weight += by * too_often[:, None]
    return int(too_often.sum())


def spike_count_loss(spikes: SparseSpikes, target: float) -> torch.Tensor:
    r"""Compute a loss that moves the mean number of spikes of each neuron in a sample towards a target.

    .. math:: L = \frac{1}{2N} \sum_n (\bar c_n - \hat c)^2, \quad
        \bar c_n = \frac{1}{B} \sum_b c_{bn}, \quad
        \frac{\partial c_{bn}}{\partial t_k} := -1 \text{ per step}

    The derivative of a number of spikes is zero. It is replaced: the loss moves the spikes of a neuron that spikes too
    often to later times :math:`t_k`, until the last of them vanish, and those of a neuron that spikes too rarely to
    earlier times. A neuron without a spike has no gradient (:func:`wake_silent`).

    Args:
        spikes: SparseSpikes of a layer with ``gradient="eventprop"``.
        target: :math:`\hat c`, in spikes per sample.

    Raises:
        TypeError, ValueError: ``spikes`` are not SparseSpikes, or spikes of another layer.

    Source: Nowotny, Turner & Knight, arXiv 2212.01232, 2022. There the membrane's adjoint jumps by the excess at each
    spike; here the jump is that of a spike's time.
    """
    spikes = check_spikes("spikes", spikes)
    if spikes.times is None:
        raise ValueError('spikes must be those of a layer with gradient="eventprop", got spikes without times')
    excess = spikes.spike_count().detach().mean(0) - target
    is_spike = torch.arange(spikes.capacity, device=spikes.device) < spikes.counts[..., :1]
    ids = torch.where(is_spike, spikes.ids, 0)
    earlier = torch.where(is_spike, -excess[ids] * spikes.times, 0).sum() / (spikes.batch_size * spikes.num_neurons)
    return excess.square().mean() / 2 + earlier - earlier.detach()
