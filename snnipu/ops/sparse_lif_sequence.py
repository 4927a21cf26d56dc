"""A fully connected layer of leaky integrate-and-fire neurons on spikes: public function, operators."""

from typing import Optional, cast

import torch

from snnipu import _route
from snnipu._checks import check_device, check_tensor
from snnipu.ops import _sparse_layers
from snnipu.ops._arguments import Parameter, learnt_decay
from snnipu.ops._slots import check_spikes, overflow_code
from snnipu.ops._sparse_layers import delayed
from snnipu.ops.connections import FullyConnected
from snnipu.ops.sparse_linear import bias_argument, weight_argument
from snnipu.spikes import SparseSpikes
from snnipu.surrogate import SpikeGrad

OPERATORS = _sparse_layers.define("sparse_lif_sequence", without=["geometry"])


def _recurrent_argument(recurrent_weight: torch.Tensor, weight: torch.Tensor, own_gradient: bool) -> torch.Tensor:
    """Check the recurrent weight, and that the surrogate is a kernel's; return it in the dtype of ``weight``."""
    neurons = weight.shape[0]
    check_tensor("recurrent_weight", recurrent_weight, or_none=True)
    if recurrent_weight.shape != (neurons, neurons):
        raise ValueError(f"recurrent_weight must have shape {(neurons, neurons)}, got {tuple(recurrent_weight.shape)}")
    check_device("recurrent_weight", recurrent_weight, "weight", weight.device)
    if own_gradient:
        raise ValueError(
            "spike_grad must be a fused surrogate of snnipu.surrogate with recurrent_weight: the gradient goes "
            "through it from step to step"
        )
    return recurrent_weight.to(weight.dtype)


def sparse_lif_sequence(
    spikes: SparseSpikes,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    *,
    beta: Parameter,
    threshold: Parameter = 1.0,
    grad_threshold: Optional[float] = None,
    max_spikes: Optional[int] = None,
    reset_mechanism: str = "zero",
    spike_grad: Optional[SpikeGrad] = None,
    input_scale: float = 1.0,
    overflow: str = "lowest",
    delay: int = 0,
    recurrent_weight: Optional[torch.Tensor] = None,
) -> SparseSpikes:
    r"""Run a fully connected layer of leaky integrate-and-fire neurons on spikes over ``T`` steps, as one operator.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        x_t &= \alpha \Big(\sum_s v_{t-d,s} W_{\cdot, i_{t-d,s}} + \sum_s v'_{t-1,s} V_{\cdot, i'_{t-1,s}}\Big) + b \\
        u_t &= \beta u_{t-1} + x_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= \beta (1 - r_t) u_{t-1} + x_t \quad \text{(zero)} \\
        u_t &= \beta u_{t-1} + x_t \quad \text{(none)} \\
        s_t &= H(u_t - \theta)

    with :math:`u_{-1} = 0`, :math:`\alpha` the ``input_scale``, :math:`d` the ``delay``, :math:`V` the
    ``recurrent_weight``, and :math:`(i', v')` the returned spikes. The reset has no gradient. Neurons get slots as in
    :func:`select_spikes`; only a neuron with a slot has the surrogate gradient of its spike. A neuron whose spike was
    dropped is reset, too. The gradient of the membrane goes back in time for every neuron.

    Args:
        spikes: SparseSpikes of ``in`` neurons.
        weight: ``[out, in]``, as ``nn.Linear``'s. float16 and bfloat16 are converted to float32.
        bias: ``[out]`` or None; not scaled by ``input_scale``.
        beta: decay of the membrane per step, clamped to [0, 1]: a number, or a tensor of one element or ``[out]``.
        threshold: firing threshold, likewise.
        grad_threshold: second threshold. None: every neuron gets a slot.
        max_spikes: the number of slots. None: as many as the busiest step needs.
        reset_mechanism: ``"subtract"``, ``"zero"`` or ``"none"``.
        spike_grad: surrogate gradient, as in :func:`lif_sequence`; None: ``atan()``. Only the gradient of other
            callables is used, not their spikes.
        input_scale: factor of the weighted spikes.
        overflow: ``"lowest"`` or ``"rotate"``, see :func:`select_spikes`.
        delay: delay of the input spikes in steps, 0 or more.
        recurrent_weight: ``[out, out]``, the weight of the layer's spikes of the step before; or None.

    Returns:
        SparseSpikes of ``out`` neurons, differentiable in the weights, ``bias``, ``beta``, ``threshold`` and
        ``spikes.values``.

    Raises:
        TypeError, ValueError: a shape, dtype, device or option is wrong, or an id or count is out of range; the message
            names the argument. On CUDA ids and counts out of range are ignored, as in :func:`sparse_linear`.

    Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023; the neuron is
    ``snntorch.Leaky`` 1.0's.
    """
    spikes = check_spikes("spikes", spikes)
    original_weight = weight
    weight = weight_argument("weight", weight, spikes)
    bias = bias_argument(bias, weight)
    connected = FullyConnected(weight)
    neurons = _sparse_layers.neurons_argument(
        connected, beta, threshold, grad_threshold, input_scale, reset_mechanism, delay, spike_grad
    )
    n, level = neurons.options, neurons.threshold
    if recurrent_weight is not None:
        recurrent_weight = _recurrent_argument(recurrent_weight, weight, n.spike_grad is not None)
        if _route.uses_operator("sparse_lif_sequence with recurrent_weight", "SparseNetwork"):
            later = spikes._map_tensors(lambda tensor: delayed(tensor, delay))
            decay = learnt_decay(neurons.beta)
            layer = (original_weight, decay, level, bias, max_spikes, n.grad_threshold, input_scale, recurrent_weight)
            spikes_out = _route.call("sparse_layer", later, *layer, n.reset, overflow_code(overflow), n.kernel)
            return cast(SparseSpikes, spikes_out)
    elif _route.uses_operator("sparse_lif_sequence", "SparseLinear"):
        current = _route.call("sparse_linear", spikes, original_weight, None)
        return _sparse_layers.spikes_of_current(current, bias, beta, level, n, max_spikes, spike_grad, overflow)
    ids, values, counts, dropped = _sparse_layers.layer_apply(
        OPERATORS,
        spikes,
        connected,
        bias,
        neurons,
        recurrent_weight=recurrent_weight,
        max_spikes=max_spikes,
        overflow=overflow,
    )
    return SparseSpikes._trusted(ids, values, counts, weight.shape[0], dropped)
