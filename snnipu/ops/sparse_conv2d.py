"""A convolution on spikes: public function, operators."""

from typing import Optional

import torch

from snnipu import _route
from snnipu._checks import check_device, check_int, check_tensor
from snnipu.ops import _sparse_currents
from snnipu.ops._arguments import compute_dtype
from snnipu.ops._maps import Geometry, Pair, as_list, conv_geometry, input_map_shape, pair
from snnipu.ops._slots import check_spikes
from snnipu.ops.sparse_linear import bias_argument
from snnipu.spikes import SparseSpikes

OPERATORS = _sparse_currents.define("sparse_conv2d", without=["synapses", "lags"])


def sparse_conv2d(
    spikes: SparseSpikes,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    *,
    input_size: Optional[Pair] = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> torch.Tensor:
    r"""Apply ``torch.nn.functional.conv2d`` to spikes: each spike adds its kernel to the output at its position.

    .. math::

        y_{tb,o,p} = b_o + \sum_{s < \text{spikes}_{tb}} v_{tbs}
            \sum_{k \,:\, \text{stride} \cdot p = q_s + \text{padding} - \text{dilation} \cdot k} W_{o, c_s, k}

    for the spike of value :math:`v_{tbs}` at position :math:`q_s` of channel :math:`c_s`. Its id is that of ``[C, H,
    W]`` flattened: ``(c * H + y) * W + x``. The gradient of the weight comes from the spikes. ``spikes.values`` has a
    gradient at every carried slot, and nowhere else.

    Args:
        spikes: SparseSpikes of ``C * H * W`` neurons.
        weight: ``[out, C / groups, kh, kw]``, as ``nn.Conv2d``'s. float16 and bfloat16 are converted to float32.
        bias: ``[out]`` or None.
        input_size: ``(H, W)``; None: that of ``spikes.map_shape``.
        stride: an int, or two, vertical first.
        padding: zeros on each side, likewise.
        dilation: likewise.
        groups: number of groups, as in ``nn.Conv2d``.

    Returns:
        ``[T, B, out, H', W']``: float64 for float64 weights, else float32.

    Raises:
        TypeError, ValueError: a shape, size, dtype or device is wrong, or an id or count is out of range; the message
            names the argument. On CUDA ids and counts out of range are ignored without an error.

    On CUDA the gradient of the values is computed by a dense convolution and read at the slots.

    Source: event-driven convolutions, for example Messikommer et al., "Event-based asynchronous sparse convolutional
    networks", ECCV 2020.
    """
    spikes = check_spikes("spikes", spikes)
    original_weight = weight
    weight = conv_weight_argument(weight, spikes, groups)
    bias = bias_argument(bias, weight)
    geometry = conv_argument(spikes, weight, input_size, stride, padding, dilation, groups)
    out_shape = geometry[3:6]  # TorchDynamo 2.9 cannot read the property out_shape of a named tuple
    if _route.uses_operator("sparse_conv2d", "SparseConv2d"):
        maps: torch.Tensor = _route.call("sparse_conv2d", spikes, original_weight, bias, geometry)
        return maps.reshape(*maps.shape[:2], *out_shape)
    values, sizes = spikes.values.to(weight.dtype), as_list(geometry)
    out = _sparse_currents.currents_apply(OPERATORS, spikes.ids, values, spikes.counts, weight, bias, sizes)
    return out.reshape(*out.shape[:2], *out_shape)


def conv_weight_argument(weight: torch.Tensor, spikes: SparseSpikes, groups: object) -> torch.Tensor:
    """Check ``weight``, ``[out, in / groups, kh, kw]`` on the spikes' device; return it in the compute dtype."""
    check_tensor("weight", weight, common=True)
    if weight.dim() != 4 or weight.numel() == 0:
        raise ValueError(f"weight must have shape [out, in / groups, kh, kw], got {tuple(weight.shape)}")
    check_device("weight", weight, "the spikes", spikes.device)
    check_groups(groups, weight.shape[0], "weight's output channels")
    return weight.to(compute_dtype(weight.dtype))


def check_groups(groups: object, channels: int, meaning: str) -> None:
    """Check that ``groups`` is a positive int that divides ``channels``."""
    if channels % check_int("groups", groups):
        raise ValueError(f"groups must divide {meaning}, {channels}, got {groups}")


def conv_argument(
    spikes: SparseSpikes,
    weight: torch.Tensor,
    input_size: Optional[Pair],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Geometry:
    """Check the sizes of a convolution of ``spikes``; return them."""
    size = None if input_size is None else pair("input_size", input_size, 1)
    shape = input_map_shape(spikes, weight.shape[1] * groups, size)
    strides, paddings, dilations = pair("stride", stride, 1), pair("padding", padding, 0), pair("dilation", dilation, 1)
    return conv_geometry(weight, (shape[1], shape[2]), strides, paddings, dilations, groups)
