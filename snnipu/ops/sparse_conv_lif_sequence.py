"""A convolutional layer of spiking neurons on spike ids: public function, schema, meta, autograd, reference."""

from typing import Any, List, Optional, Tuple

import torch

from snnipu import _route
from snnipu.ops import _library
from snnipu.ops._arguments import Parameter, parameter_argument, reset_code
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._maps import Geometry, Pair, as_list, spike_maps
from snnipu.ops._slots import AS_NEEDED, capacity_argument, check_delay, check_ids, check_spikes, gather, overflow_code
from snnipu.ops._spike_gradient import IDENTITY, evaluate, fused
from snnipu.ops.lif_sequence import learnt_decay
from snnipu.ops.select_spikes import grad_threshold_argument
from snnipu.ops.sparse_conv2d import conv_argument, conv_weight_argument
from snnipu.ops.sparse_lif_sequence import delayed, integrated, membrane_gradient, selected, spikes_of_current, words
from snnipu.ops.sparse_linear import bias_argument
from snnipu.spikes import SparseSpikes
from snnipu.surrogate import Kernel, SpikeGrad

_SCHEMA_FWD = (
    "sparse_conv_lif_sequence_fwd(Tensor ids, Tensor values, Tensor counts, Tensor weight, Tensor? bias, Tensor beta, "
    "Tensor threshold, int[] geometry, float? grad_threshold, float input_scale, int capacity, bool rotate, int reset, "
    "int delay, bool store_mem) -> (Tensor ids_out, Tensor values_out, Tensor counts_out, Tensor dropped, "
    "Tensor slot_mem, Tensor fired, Tensor mem)"
)
_SCHEMA_BWD = (
    "sparse_conv_lif_sequence_bwd(Tensor grad, Tensor ids, Tensor values, Tensor counts, Tensor weight, Tensor beta, "
    "Tensor threshold, int[] geometry, float input_scale, int reset, int delay, Tensor ids_out, Tensor counts_out, "
    "Tensor slot_mem, Tensor fired, Tensor mem, int surrogate, float surrogate_a, float surrogate_b, bool need_values, "
    "bool need_weight, bool need_bias, bool need_beta, bool need_threshold) -> (Tensor grad_values, "
    "Tensor grad_weight, Tensor grad_bias, Tensor grad_beta, Tensor grad_threshold)"
)

ForwardResult = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
BackwardResult = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def per_neuron(parameter: torch.Tensor, sizes: Geometry) -> torch.Tensor:
    """A parameter of one element, or one of a channel, which all places of its map have."""
    return parameter if parameter.numel() == 1 else parameter.reshape(-1).repeat_interleave(sizes.positions)


def over_places(parameter: torch.Tensor, sizes: Geometry) -> torch.Tensor:
    """A parameter of one element, or of each channel, likewise as a view: ``repeat_interleave`` counts on the host."""
    flat = parameter.reshape(-1, 1)
    return parameter.reshape(-1) if flat.numel() == 1 else flat.expand(-1, sizes.positions).reshape(-1)


def channels_last(x: torch.Tensor, sizes: Geometry) -> torch.Tensor:
    """``[T, B, neurons]`` as ``[T, B, places, channels]``."""
    return x.reshape(*x.shape[:2], sizes.out_channels, sizes.positions).transpose(2, 3).contiguous()


def channels_first(x: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`channels_last`."""
    return x.transpose(2, 3).reshape(*x.shape[:2], -1)


def sparse_conv_lif_sequence_fwd_reference(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    geometry: List[int],
    grad_threshold: Optional[float],
    input_scale: float,
    capacity: int,
    rotate: bool,
    reset: int,
    delay: int,
    store_mem: bool,
) -> ForwardResult:
    """What ``snnipu::sparse_conv_lif_sequence_fwd`` computes, in plain PyTorch.

    ``slot_mem`` is the membrane at the carried slots, ``fired`` one bit for every neuron that was above its threshold
    (also where its spike was dropped), ``mem`` the membranes ``[T, B, places, channels]``, empty without ``store_mem``.
    """
    sizes = Geometry(*geometry)
    check_ids(ids, counts, sizes.inputs)
    current = sizes.conv2d(spike_maps(values, ids, counts, sizes.inputs)[0], weight)
    current = delayed(current * input_scale, delay)
    decay, level = per_neuron(beta.clamp(0, 1), sizes), per_neuron(threshold, sizes)
    if bias is not None:
        current = current + per_neuron(bias, sizes) if bias.numel() > 1 else current + bias
    state = weight.new_zeros(ids.shape[1], sizes.neurons)
    mems = []
    for x in current:
        state = integrated(state, x, decay, level, reset)
        mems.append(state)
    mem = torch.stack(mems) if mems else torch.zeros_like(current)
    kept = channels_last(mem, sizes) if store_mem else mem.new_empty(0)
    return *selected(mem, level, grad_threshold, capacity, rotate), kept


def sparse_conv_lif_sequence_bwd_reference(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    beta: torch.Tensor,
    threshold: torch.Tensor,
    geometry: List[int],
    input_scale: float,
    reset: int,
    delay: int,
    ids_out: torch.Tensor,
    counts_out: torch.Tensor,
    slot_mem: torch.Tensor,
    fired: torch.Tensor,
    mem: torch.Tensor,
    surrogate: int,
    surrogate_a: float,
    surrogate_b: float,
    need_values: bool,
    need_weight: bool,
    need_bias: bool,
    need_beta: bool,
    need_threshold: bool,
) -> BackwardResult:
    """What ``snnipu::sparse_conv_lif_sequence_bwd`` computes, in plain PyTorch; empty where not needed.

    The gradient of beta is 0 outside of [0, 1], and not at the bounds: see ``learnt_decay``.
    """
    sizes = Geometry(*geometry)
    steps = ids.shape[0]
    kernel = Kernel(surrogate, surrogate_a, surrogate_b)
    slots = (ids_out, counts_out, slot_mem)
    decay, level = per_neuron(beta, sizes), per_neuron(threshold, sizes)
    mems = channels_first(mem) if need_beta else None
    g, sum_beta, sum_threshold = membrane_gradient(kernel, grad, slots, fired, mems, decay, level, reset, sizes.neurons)
    inside = torch.where((beta >= 0) & (beta <= 1), torch.ones_like(beta), torch.zeros_like(beta))
    # No two outputs may be the same tensor.
    grad_values, grad_weight, grad_bias, grad_beta, grad_threshold = (weight.new_empty(0) for _ in range(5))
    # What reached the input, at the step it came from.
    early = torch.cat([g[delay:], torch.zeros_like(g[: min(delay, steps)])]) * input_scale
    if need_values or need_weight:
        x = spike_maps(values, ids, counts, sizes.inputs)[0] if need_weight else None
        found, grad_x = sizes.conv2d_gradients(early, x, weight)
        grad_weight = grad_weight if found is None else found
        grad_values = gather(grad_x, ids, counts) if need_values else grad_values

    def reduced(total: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        total = total.reshape(-1, sizes.out_channels, sizes.positions).sum((0, 2))
        return total.sum().reshape(like.shape) if like.numel() == 1 else total.reshape(like.shape)

    return (
        grad_values,
        grad_weight,
        g.reshape(-1, sizes.out_channels, sizes.positions).sum((0, 2)) if need_bias else grad_bias,
        reduced(sum_beta, beta) * inside if need_beta else grad_beta,
        reduced(sum_threshold, threshold) if need_threshold else grad_threshold,
    )


def _fwd_meta(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    geometry: List[int],
    grad_threshold: Optional[float],
    input_scale: float,
    capacity: int,
    rotate: bool,
    reset: int,
    delay: int,
    store_mem: bool,
) -> ForwardResult:
    sizes = Geometry(*geometry)
    rows = ids.shape[:2]
    slots = capacity if capacity != AS_NEEDED else sizes.neurons
    counts_out = counts.new_empty((*rows, 2))
    return (
        ids.new_empty((*rows, slots)),
        weight.new_empty((*rows, slots)),
        counts_out,
        torch.empty_like(counts_out),
        weight.new_empty((*rows, slots)),
        ids.new_empty((*rows, words(sizes.neurons))),
        weight.new_empty((*rows, sizes.positions, sizes.out_channels) if store_mem else 0),
    )


def _bwd_meta(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    beta: torch.Tensor,
    threshold: torch.Tensor,
    geometry: List[int],
    input_scale: float,
    reset: int,
    delay: int,
    ids_out: torch.Tensor,
    counts_out: torch.Tensor,
    slot_mem: torch.Tensor,
    fired: torch.Tensor,
    mem: torch.Tensor,
    surrogate: int,
    surrogate_a: float,
    surrogate_b: float,
    need_values: bool,
    need_weight: bool,
    need_bias: bool,
    need_beta: bool,
    need_threshold: bool,
) -> BackwardResult:
    return (
        weight.new_empty(ids.shape if need_values else 0),
        weight.new_empty(weight.shape if need_weight else 0),
        weight.new_empty(weight.shape[0] if need_bias else 0),
        weight.new_empty(beta.shape if need_beta else 0),
        weight.new_empty(threshold.shape if need_threshold else 0),
    )


_library.define(_SCHEMA_FWD, reference=sparse_conv_lif_sequence_fwd_reference, meta=_fwd_meta)
_library.define(_SCHEMA_BWD, reference=sparse_conv_lif_sequence_bwd_reference, meta=_bwd_meta)


class SparseConvLifSequence(torch.autograd.Function):
    """Autograd around ``snnipu::sparse_conv_lif_sequence_fwd`` and ``snnipu::sparse_conv_lif_sequence_bwd``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        beta: torch.Tensor,
        threshold: torch.Tensor,
        ids: torch.Tensor,
        counts: torch.Tensor,
        geometry: List[int],
        grad_threshold: Optional[float],
        input_scale: float,
        capacity: int,
        rotate: bool,
        reset: int,
        delay: int,
        kernel: Optional[Kernel],
        spike_grad: Optional[SpikeGrad],
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        out = torch.ops.snnipu.sparse_conv_lif_sequence_fwd(
            ids,
            values,
            counts,
            weight,
            bias,
            beta,
            threshold,
            geometry,
            grad_threshold,
            input_scale,
            capacity,
            rotate,
            reset,
            delay,
            ctx.needs_input_grad[3],
        )
        ids_out, values_out, counts_out, dropped, slot_mem, fired, mem = out
        ctx.save_for_backward(values, weight, beta, threshold, ids, counts, ids_out, counts_out, slot_mem, fired, mem)
        ctx.geometry, ctx.input_scale, ctx.reset, ctx.delay = geometry, input_scale, reset, delay
        ctx.kernel, ctx.spike_grad = kernel, spike_grad
        ctx.mark_non_differentiable(ids_out, counts_out, dropped)
        # No zeros for the outputs that have no gradient: ids take as much room as values.
        ctx.set_materialize_grads(False)
        return ids_out, values_out, counts_out, dropped

    @staticmethod
    @once_differentiable("sparse_conv_lif_sequence")
    def backward(  # type: ignore[override]
        ctx: Any, _ids: None, grad: Optional[torch.Tensor], *_: None
    ) -> Tuple[Optional[torch.Tensor], ...]:
        if grad is None:
            return (None,) * 16
        values, weight, beta, threshold, ids, counts, *out = ctx.saved_tensors
        ids_out, counts_out, slot_mem, fired, mem = out
        kernel = ctx.kernel
        if kernel is None:
            kernel = IDENTITY
            level = per_neuron(threshold, Geometry(*ctx.geometry))
            grad = evaluate(ctx.spike_grad, slot_mem, level, ids_out, counts_out, grad)
        need = ctx.needs_input_grad[:5]
        grads = torch.ops.snnipu.sparse_conv_lif_sequence_bwd(
            grad.contiguous(),
            ids,
            values,
            counts,
            weight,
            beta,
            threshold,
            ctx.geometry,
            ctx.input_scale,
            ctx.reset,
            ctx.delay,
            ids_out,
            counts_out,
            slot_mem,
            fired,
            mem,
            kernel.id,
            kernel.a,
            kernel.b,
            *need,
        )
        return (*(g if needed else None for g, needed in zip(grads, need)), *(None,) * 11)


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
    r"""A convolutional layer of leaky integrate-and-fire neurons from spikes to spikes, over ``T`` steps, as one
    operator.

    .. math::

        x_{t} = \alpha\, (W * s_{t-d}) + b

    with :math:`*` the convolution of :func:`sparse_conv2d`, :math:`\alpha` the ``input_scale`` and :math:`d` the
    ``delay``; membranes, reset, slots and gradients are those of :func:`sparse_lif_sequence`, of the neurons of
    ``[out, H', W']`` flattened.

    Args:
        spikes: SparseSpikes of ``C * H * W`` neurons.
        weight: ``[out, C / groups, kh, kw]``, as ``nn.Conv2d``'s. float16 and bfloat16 are converted to float32.
        bias: ``[out]`` or None; not scaled by ``input_scale``.
        beta: decay of the membrane per step, clamped to [0, 1]: a number, or a tensor of one element or ``[out]``.
        threshold: firing threshold, likewise.
        input_size, stride, padding, dilation, groups: as in :func:`sparse_conv2d`.
        grad_threshold: second threshold; None: every neuron carries gradient, which makes the slots as many as neurons.
        max_spikes: slots; None: as many as the busiest step needs.
        reset_mechanism, spike_grad, input_scale, overflow, delay: as in :func:`sparse_lif_sequence`.

    Returns:
        SparseSpikes of ``out * H' * W'`` neurons, with their ``map_shape``, differentiable in ``weight``, ``bias``,
        ``beta``, ``threshold`` and ``spikes.values``.

    Raises:
        TypeError, ValueError: a shape, size, dtype, device or option that does not fit, an id or count out of range;
            the message names the argument.

    Source: as :func:`sparse_lif_sequence` and :func:`sparse_conv2d`.
    """
    spikes = check_spikes("spikes", spikes)
    given = weight
    weight = conv_weight_argument(weight, spikes, groups)
    bias = bias_argument(bias, weight)
    geometry = conv_argument(spikes, weight, input_size, stride, padding, dilation, groups)
    channels = (geometry.out_channels,)
    beta_ = learnt_decay(parameter_argument("beta", beta, channels, weight))
    threshold_ = parameter_argument("threshold", threshold, channels, weight)
    grad_threshold = grad_threshold_argument(grad_threshold)
    reset = reset_code(reset_mechanism)
    check_delay(delay)
    if isinstance(input_scale, bool) or not isinstance(input_scale, (int, float)):
        raise TypeError(f"input_scale must be a number, got {input_scale!r}")
    kernel, function = fused(spike_grad)
    if _route.uses_operator("sparse_conv_lif_sequence", "SparseConv2d"):
        current = _route.call("sparse_conv2d", spikes, given, None, geometry)
        offset = None if bias is None else over_places(bias, geometry)
        decay = over_places(parameter_argument("beta", beta, channels, weight), geometry)
        level = over_places(threshold_, geometry)
        selection = (grad_threshold, max_spikes, spike_grad, overflow)
        made = spikes_of_current(current, offset, decay, level, reset, input_scale, delay, *selection)
        return made.with_maps(geometry.out_shape)
    capacity = capacity_argument(max_spikes, geometry.neurons, weight)
    ids, values, counts, dropped = SparseConvLifSequence.apply(
        spikes.values.to(weight.dtype),
        weight,
        bias,
        beta_,
        threshold_,
        spikes.ids,
        spikes.counts,
        as_list(geometry),
        grad_threshold,
        float(input_scale),
        capacity,
        overflow_code(overflow),
        reset,
        delay,
        kernel,
        function,
    )
    return SparseSpikes._trusted(ids, values, counts, geometry.neurons, dropped, map_shape=geometry.out_shape)
