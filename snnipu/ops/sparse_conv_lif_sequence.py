"""A convolutional layer of leaky integrate-and-fire neurons on spikes: public function, operators."""

from typing import Any, NamedTuple, Optional, Tuple

import torch

from snnipu import _route
from snnipu.ops import _sparse_layers
from snnipu.ops._arguments import Parameter
from snnipu.ops._maps import Geometry, Pair
from snnipu.ops._slots import check_spikes
from snnipu.ops.connections import Convolution2d
from snnipu.ops.sparse_conv2d import conv_argument, conv_weight_argument
from snnipu.ops.sparse_linear import bias_argument
from snnipu.spikes import SparseSpikes
from snnipu.surrogate import SpikeGrad

_WITHOUT = ["recurrent_weight", "need_recurrent", "grad_recurrent"]
OPERATORS = _sparse_layers.define("sparse_conv_lif_sequence", _WITHOUT)
# The same layer followed by a maximum pool; not public.
WITH_POOL = _sparse_layers.define_with_pool("sparse_conv_lif_pool", OPERATORS, _WITHOUT)


def per_position(parameter: torch.Tensor, sizes: Geometry) -> torch.Tensor:
    """Return a parameter with one element, or expanded from channels to neurons.

    The expansion avoids ``repeat_interleave``, which synchronises with the host.
    """
    flat = parameter.reshape(-1, 1)
    return parameter.reshape(-1) if flat.numel() == 1 else flat.expand(-1, sizes.positions).reshape(-1)


def sparse_conv_lif_sequence(
    spikes: SparseSpikes,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    *,
    beta: Parameter,
    threshold: Parameter = 1.0,
    input_size: Optional[Pair] = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    grad_threshold: Optional[float] = None,
    max_spikes: Optional[int] = None,
    reset_mechanism: str = "zero",
    spike_grad: Optional[SpikeGrad] = None,
    input_scale: float = 1.0,
    overflow: str = "lowest",
    delay: int = 0,
) -> SparseSpikes:
    r"""Run a convolutional layer of leaky integrate-and-fire neurons on spikes over ``T`` steps, as one operator.

    .. math::

        x_{t} = \alpha\, (W * s_{t-d}) + b

    with :math:`*` the convolution of :func:`sparse_conv2d`, :math:`\alpha` the ``input_scale`` and :math:`d` the
    ``delay``. Membranes, reset, slots and gradients are those of :func:`sparse_lif_sequence`. The neurons are those of
    ``[out, H', W']`` flattened.

    Args:
        spikes: SparseSpikes of ``C * H * W`` neurons.
        weight: ``[out, C / groups, kh, kw]``, as ``nn.Conv2d``'s. float16 and bfloat16 are converted to float32.
        bias: ``[out]`` or None; not scaled by ``input_scale``.
        beta: decay of the membrane per step, clamped to [0, 1]: a number, or a tensor of one element or ``[out]``.
        threshold: firing threshold, likewise.
        input_size: ``(H, W)``; None: that of ``spikes.map_shape``.
        stride: an int, or two, vertical first.
        padding: zeros on each side, likewise.
        dilation: likewise.
        groups: number of groups, as in ``nn.Conv2d``.
        grad_threshold: second threshold. None: every neuron gets a slot.
        max_spikes: the number of slots. None: as many as the busiest step needs.
        reset_mechanism: ``"subtract"``, ``"zero"`` or ``"none"``.
        spike_grad: surrogate gradient, as in :func:`sparse_lif_sequence`; None: ``atan()``.
        input_scale: factor of the weighted spikes.
        overflow: ``"lowest"`` or ``"rotate"``, see :func:`select_spikes`.
        delay: delay of the input spikes in steps, 0 or more.

    Returns:
        SparseSpikes of ``out * H' * W'`` neurons with a ``map_shape``, differentiable in ``weight``, ``bias``,
        ``beta``, ``threshold`` and ``spikes.values``.

    Raises:
        TypeError, ValueError: a shape, size, dtype, device or option is wrong, or an id or count is out of range; the
            message names the argument.

    Source: see :func:`sparse_lif_sequence` and :func:`sparse_conv2d`.
    """
    spikes = check_spikes("spikes", spikes)
    original_weight = weight
    maps = Maps(input_size, stride, padding, dilation, groups)
    connected, bias = _connection(spikes, weight, bias, maps)
    sizes = connected.sizes
    neurons = _sparse_layers.neurons_argument(
        connected, beta, threshold, grad_threshold, input_scale, reset_mechanism, delay, spike_grad
    )
    if _route.uses_operator("sparse_conv_lif_sequence", "SparseConv2d"):
        current = _route.call("sparse_conv2d", spikes, original_weight, None, sizes)
        offset = None if bias is None else per_position(bias, sizes)
        decay, level = per_position(neurons.beta, sizes), per_position(neurons.threshold, sizes)
        spikes_out = _sparse_layers.spikes_of_current(
            current, offset, decay, level, neurons.options, max_spikes, spike_grad, overflow
        )
        return spikes_out.with_maps(sizes.out_shape)
    ids, values, counts, dropped = _sparse_layers.layer_apply(
        OPERATORS,
        spikes,
        connected,
        bias,
        neurons,
        max_spikes=max_spikes,
        overflow=overflow,
    )
    return SparseSpikes._trusted(ids, values, counts, sizes.neurons, dropped, map_shape=sizes.out_shape)


class Maps(NamedTuple):
    """Size arguments of the public convolutions."""

    input_size: Optional[Pair]
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


def _connection(
    spikes: SparseSpikes, weight: torch.Tensor, bias: Optional[torch.Tensor], maps: Maps
) -> Tuple[Convolution2d, Optional[torch.Tensor]]:
    weight = conv_weight_argument(weight, spikes, maps.groups)
    return Convolution2d(weight, conv_argument(spikes, weight, *maps)), bias_argument(bias, weight)


def sparse_conv_lif_pool(
    spikes: SparseSpikes,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    window: Tuple[int, int],
    maps: Maps,
    **neurons: Any,
) -> Tuple[SparseSpikes, torch.Tensor]:
    """Run :func:`sparse_conv_lif_sequence` and a maximum :func:`sparse_pool2d` as one operator; not public.

    The windows of the pool do not overlap. ``neurons`` are the options of ``_sparse_layers.neurons_argument``.

    Returns:
        The spikes of the pool, and the layer's counts ``[T, B, 2]`` before the pool.
    """
    spikes = check_spikes("spikes", spikes)
    connected, bias = _connection(spikes, weight, bias, maps)
    ids, values, counts, neuron_counts = _sparse_layers.layer_apply(
        WITH_POOL,
        spikes,
        connected,
        bias,
        _sparse_layers.neurons_argument(connected, **neurons),
        window=list(window),
    )
    pool = _sparse_layers.pool_of(connected.sizes, window)
    return SparseSpikes._trusted(ids, values, counts, pool.neurons, map_shape=pool.out_shape), neuron_counts
