"""A linear layer on spikes: public function, operators."""

from typing import Optional

import torch

from snnipu import _route
from snnipu._checks import check_device, check_tensor
from snnipu.ops import _sparse_currents
from snnipu.ops._arguments import compute_dtype
from snnipu.ops._slots import check_spikes
from snnipu.spikes import SparseSpikes

OPERATORS = _sparse_currents.define("sparse_linear", without=["geometry", "synapses", "lags"])


def sparse_linear(spikes: SparseSpikes, weight: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    r"""Apply a linear layer to spikes: add up the weights of the neurons that spiked.

    .. math::

        y_{tbo} = \sum_{s < \text{spikes}_{tb}} v_{tbs} W_{o, i_{tbs}} + b_o

    The gradient of the weight comes from the spikes. The gradient of ``spikes.values``, at every carried slot, is
    :math:`\partial L / \partial v_{tbs} = \sum_o W_{o, i_{tbs}} \, \partial L / \partial y_{tbo}`.

    Args:
        spikes: SparseSpikes of ``in`` neurons.
        weight: ``[out, in]``, as ``nn.Linear``'s. float16 and bfloat16 are converted to float32.
        bias: ``[out]`` or None.

    Returns:
        ``[T, B, out]``: float64 for float64 weights, else float32.

    Raises:
        TypeError, ValueError: a shape, dtype or device is wrong, or an id or count is out of range; the message names
            the argument. On CUDA ids and counts are not checked, because the host would have to wait; those out of
            range are ignored.

    Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
    """
    spikes = check_spikes("spikes", spikes)
    original_weight = weight
    weight = weight_argument("weight", weight, spikes)
    bias = bias_argument(bias, weight)
    if _route.uses_operator("sparse_linear", "SparseLinear"):
        return _route.call("sparse_linear", spikes, original_weight, bias)
    values = spikes.values.to(weight.dtype)
    return _sparse_currents.currents_apply(OPERATORS, spikes.ids, values, spikes.counts, weight, bias)


def weight_argument(name: str, weight: torch.Tensor, spikes: SparseSpikes) -> torch.Tensor:
    """Check ``weight``, ``[out, in]`` on the spikes' device; return it in the compute dtype."""
    check_tensor(name, weight, common=True)
    if weight.dim() != 2 or weight.shape[1] != spikes.num_neurons or weight.shape[0] == 0:
        raise ValueError(
            f"{name} must have shape [out, {spikes.num_neurons}], for spikes of {spikes.num_neurons} neurons, got "
            f"{tuple(weight.shape)}"
        )
    check_device(name, weight, "the spikes", spikes.device)
    return weight.to(compute_dtype(weight.dtype))


def bias_argument(bias: object, weight: torch.Tensor) -> Optional[torch.Tensor]:
    """Check ``bias``, None or ``[out]``; return it in the dtype of ``weight``."""
    if bias is None:
        return None
    if not isinstance(bias, torch.Tensor) or not bias.dtype.is_floating_point:
        raise TypeError(f"bias must be a floating torch.Tensor or None, got {bias!r}")
    if bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape {(weight.shape[0],)}, as weight says, got {tuple(bias.shape)}")
    check_device("bias", bias, "weight", weight.device)
    return bias.to(weight.dtype)
