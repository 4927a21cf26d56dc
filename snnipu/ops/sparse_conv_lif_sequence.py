"""A convolutional layer of spiking neurons on spike ids: public function, schema, meta, autograd, reference."""

from typing import Any, List, NamedTuple, Optional, Tuple

import torch

from snnipu import _route
from snnipu.ops import _library
from snnipu.ops._arguments import Parameter, parameter_argument, reset_code
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._maps import Geometry, Pair, PoolGeometry, as_list, pool_geometry, spike_maps
from snnipu.ops._slots import (
    AS_NEEDED,
    capacity_argument,
    check_delay,
    check_ids,
    check_spikes,
    gather,
    overflow_code,
    stored_membranes,
)
from snnipu.ops._spike_gradient import IDENTITY, evaluate, fused
from snnipu.ops.lif_sequence import learnt_decay
from snnipu.ops.select_spikes import grad_threshold_argument
from snnipu.ops.sparse_conv2d import conv_argument, conv_weight_argument
from snnipu.ops.sparse_lif_sequence import delayed, integrated, membrane_gradient, selected, spikes_of_current, words
from snnipu.ops.sparse_linear import bias_argument
from snnipu.ops.sparse_pool2d import MODES, sparse_pool2d_fwd_reference
from snnipu.spikes import SparseSpikes
from snnipu.surrogate import Kernel, SpikeGrad

_FORWARD = (
    "Tensor ids, Tensor values, Tensor counts, Tensor weight, Tensor? bias, Tensor beta, Tensor threshold, "
    "int[] geometry, float? grad_threshold, float input_scale, int capacity, bool rotate, int reset, int delay, "
    "bool store_mem"
)
_SCHEMA_FWD = (
    f"sparse_conv_lif_sequence_fwd({_FORWARD}) -> (Tensor ids_out, Tensor values_out, Tensor counts_out, "
    "Tensor dropped, Tensor slot_mem, Tensor fired, Tensor mem)"
)
# Not public: with a pool of windows that lie side by side behind the layer.
_SCHEMA_POOL_FWD = (
    f"sparse_conv_lif_pool_fwd({_FORWARD}, int[] window) -> (Tensor ids_out, Tensor values_out, Tensor counts_out, "
    "Tensor source, Tensor neuron_counts, Tensor slot_mem, Tensor fired, Tensor mem)"
)
_SCHEMA_BWD = (
    "sparse_conv_lif_sequence_bwd(Tensor grad, Tensor ids, Tensor values, Tensor counts, Tensor weight, Tensor beta, "
    "Tensor threshold, int[] geometry, float input_scale, int reset, int delay, Tensor ids_out, Tensor counts_out, "
    "Tensor slot_mem, Tensor fired, Tensor mem, int surrogate, float surrogate_a, float surrogate_b, bool need_values, "
    "bool need_weight, bool need_bias, bool need_beta, bool need_threshold) -> (Tensor grad_values, "
    "Tensor grad_weight, Tensor grad_bias, Tensor grad_beta, Tensor grad_threshold)"
)

_T = torch.Tensor
ForwardResult = Tuple[_T, _T, _T, _T, _T, _T, _T]
PooledLayer = Tuple[_T, _T, _T, _T, _T, _T, _T, _T]
BackwardResult = Tuple[_T, _T, _T, _T, _T]


class Options(NamedTuple):
    """Of a layer, as its operators take them."""

    geometry: List[int]
    grad_threshold: Optional[float]
    input_scale: float
    capacity: int
    rotate: bool
    reset: int
    delay: int


class ForwardArguments(NamedTuple):
    """Of ``snnipu::sparse_conv_lif_sequence_fwd``."""

    ids: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor
    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    beta: torch.Tensor
    threshold: torch.Tensor
    geometry: List[int]
    grad_threshold: Optional[float]
    input_scale: float
    capacity: int
    rotate: bool
    reset: int
    delay: int
    store_mem: bool


class BackwardArguments(NamedTuple):
    """Of ``snnipu::sparse_conv_lif_sequence_bwd``; ``ids_out`` are neurons also where a pool shows them."""

    grad: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor
    weight: torch.Tensor
    beta: torch.Tensor
    threshold: torch.Tensor
    geometry: List[int]
    input_scale: float
    reset: int
    delay: int
    ids_out: torch.Tensor
    counts_out: torch.Tensor
    slot_mem: torch.Tensor
    fired: torch.Tensor
    mem: torch.Tensor
    surrogate: int
    surrogate_a: float
    surrogate_b: float
    need_values: bool
    need_weight: bool
    need_bias: bool
    need_beta: bool
    need_threshold: bool


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


def sparse_conv_lif_sequence_fwd_reference(*given: Any) -> ForwardResult:
    """What ``snnipu::sparse_conv_lif_sequence_fwd`` computes, in plain PyTorch.

    ``slot_mem`` is the membrane at the carried slots, ``fired`` one bit for every neuron that was above its threshold
    (also where its spike was dropped), ``mem`` the membranes ``[T, B, places, channels]``, empty without ``store_mem``.
    """
    a = ForwardArguments(*given)
    sizes = Geometry(*a.geometry)
    check_ids(a.ids, a.counts, sizes.inputs)
    current = sizes.conv2d(spike_maps(a.values, a.ids, a.counts, sizes.inputs)[0], a.weight)
    current = delayed(current * a.input_scale, a.delay)
    decay, level = per_neuron(a.beta.clamp(0, 1), sizes), per_neuron(a.threshold, sizes)
    if a.bias is not None:
        current = current + per_neuron(a.bias, sizes) if a.bias.numel() > 1 else current + a.bias
    state = a.weight.new_zeros(a.ids.shape[1], sizes.neurons)
    mems = []
    for x in current:
        state = integrated(state, x, decay, level, a.reset)
        mems.append(state)
    mem = torch.stack(mems) if mems else torch.zeros_like(current)
    kept = channels_last(mem, sizes) if a.store_mem else mem.new_empty(0)
    return *selected(mem, level, a.grad_threshold, a.capacity, a.rotate), kept


def _pool_of(geometry: List[int], window: List[int]) -> PoolGeometry:
    kernel = (window[0], window[1])
    return pool_geometry(Geometry(*geometry).out_shape, kernel, kernel, (0, 0))


def sparse_conv_lif_pool_fwd_reference(*given: Any) -> PooledLayer:
    """What ``snnipu::sparse_conv_lif_pool_fwd`` computes, in plain PyTorch: the layer without a cap, and the maximum.

    ``source`` is the neuron that a slot shows, ``neuron_counts`` what ``counts`` are in front of the pool.
    """
    *others, window = given
    a = ForwardArguments(*others)._replace(capacity=AS_NEEDED, rotate=False)
    ids, values, neuron_counts, _, slot_mem, fired, mem = sparse_conv_lif_sequence_fwd_reference(*a)
    pool = as_list(_pool_of(a.geometry, window))
    ids_out, values_out, counts, slot = sparse_pool2d_fwd_reference(
        ids, values, neuron_counts, pool, MODES["max"], AS_NEEDED
    )
    source, shown = gather(ids, slot, counts), gather(slot_mem, slot, counts)
    return ids_out, values_out, counts, source, neuron_counts, shown, fired, mem


def sparse_conv_lif_sequence_bwd_reference(*given: Any) -> BackwardResult:
    """What ``snnipu::sparse_conv_lif_sequence_bwd`` computes, in plain PyTorch; empty where not needed.

    The gradient of beta is 0 outside of [0, 1], and not at the bounds: see ``learnt_decay``.
    """
    a = BackwardArguments(*given)
    sizes = Geometry(*a.geometry)
    steps = a.ids.shape[0]
    kernel = Kernel(a.surrogate, a.surrogate_a, a.surrogate_b)
    slots = (a.ids_out, a.counts_out, a.slot_mem)
    decay, level = per_neuron(a.beta, sizes), per_neuron(a.threshold, sizes)
    stored = stored_membranes(a.mem, a.need_beta, a.ids, sizes.neurons)
    mems = None if stored is None else channels_first(stored)
    g, sum_beta, sum_threshold = membrane_gradient(
        kernel, a.grad, slots, a.fired, mems, decay, level, a.reset, sizes.neurons
    )
    inside = torch.where((a.beta >= 0) & (a.beta <= 1), torch.ones_like(a.beta), torch.zeros_like(a.beta))
    # No two outputs may be the same tensor.
    grad_values, grad_weight, grad_bias, grad_beta, grad_threshold = (a.weight.new_empty(0) for _ in range(5))
    # What reached the input, at the step it came from.
    early = torch.cat([g[a.delay :], torch.zeros_like(g[: min(a.delay, steps)])]) * a.input_scale
    if a.need_values or a.need_weight:
        x = spike_maps(a.values, a.ids, a.counts, sizes.inputs)[0] if a.need_weight else None
        found, grad_x = sizes.conv2d_gradients(early, x, a.weight)
        grad_weight = grad_weight if found is None else found
        grad_values = gather(grad_x, a.ids, a.counts) if a.need_values else grad_values

    def reduced(total: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        total = total.reshape(-1, sizes.out_channels, sizes.positions).sum((0, 2))
        return total.sum().reshape(like.shape) if like.numel() == 1 else total.reshape(like.shape)

    return (
        grad_values,
        grad_weight,
        g.reshape(-1, sizes.out_channels, sizes.positions).sum((0, 2)) if a.need_bias else grad_bias,
        reduced(sum_beta, a.beta) * inside if a.need_beta else grad_beta,
        reduced(sum_threshold, a.threshold) if a.need_threshold else grad_threshold,
    )


def _fwd_meta(*given: Any) -> ForwardResult:
    a = ForwardArguments(*given)
    sizes = Geometry(*a.geometry)
    rows = a.ids.shape[:2]
    slots = a.capacity if a.capacity != AS_NEEDED else sizes.neurons
    counts_out = a.counts.new_empty((*rows, 2))
    return (
        a.ids.new_empty((*rows, slots)),
        a.weight.new_empty((*rows, slots)),
        counts_out,
        torch.empty_like(counts_out),
        a.weight.new_empty((*rows, slots)),
        a.ids.new_empty((*rows, words(sizes.neurons))),
        a.weight.new_empty((*rows, sizes.positions, sizes.out_channels) if a.store_mem else 0),
    )


def _pool_fwd_meta(*given: Any) -> PooledLayer:
    *others, window = given
    a = ForwardArguments(*others)
    slots = _pool_of(a.geometry, window).neurons
    ids, values, counts, neuron_counts, slot_mem, fired, mem = _fwd_meta(*a._replace(capacity=slots))
    return ids, values, counts, torch.empty_like(ids), neuron_counts, slot_mem, fired, mem


def _bwd_meta(*given: Any) -> BackwardResult:
    a = BackwardArguments(*given)
    return (
        a.weight.new_empty(a.ids.shape if a.need_values else 0),
        a.weight.new_empty(a.weight.shape if a.need_weight else 0),
        a.weight.new_empty(a.weight.shape[0] if a.need_bias else 0),
        a.weight.new_empty(a.beta.shape if a.need_beta else 0),
        a.weight.new_empty(a.threshold.shape if a.need_threshold else 0),
    )


_library.define(_SCHEMA_FWD, reference=sparse_conv_lif_sequence_fwd_reference, meta=_fwd_meta)
_library.define(_SCHEMA_POOL_FWD, reference=sparse_conv_lif_pool_fwd_reference, meta=_pool_fwd_meta)
_library.define(_SCHEMA_BWD, reference=sparse_conv_lif_sequence_bwd_reference, meta=_bwd_meta)


class SparseConvLifSequence(torch.autograd.Function):
    """Autograd around ``snnipu::sparse_conv_lif_sequence_fwd`` and ``snnipu::sparse_conv_lif_sequence_bwd``.

    With a ``window`` around ``snnipu::sparse_conv_lif_pool_fwd``, whose adjoint is the same; the last output is then
    that one's ``neuron_counts``, else ``dropped``.
    """

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
        options: Options,
        kernel: Optional[Kernel],
        spike_grad: Optional[SpikeGrad],
        window: Optional[List[int]],
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        store_mem = ctx.needs_input_grad[3]
        read = (weight, values, ids, counts, bias, beta, threshold)
        given = ForwardArguments(ids, values, counts, weight, bias, beta, threshold, *options, store_mem)
        if window is None:
            run = _library.unwatched("sparse_conv_lif_sequence_fwd", *read)
            ids_out, *made, last, slot_mem, fired, mem = run(*given)
            source = ids_out
        else:
            run = _library.unwatched("sparse_conv_lif_pool_fwd", *read)
            ids_out, *made, source, last, slot_mem, fired, mem = run(*given, window)
        values_out, counts_out = made
        ctx.save_for_backward(values, weight, beta, threshold, ids, counts, source, counts_out, slot_mem, fired, mem)
        ctx.options, ctx.kernel, ctx.spike_grad = options, kernel, spike_grad
        ctx.mark_non_differentiable(ids_out, counts_out, last)
        # No zeros for the outputs that have no gradient: ids take as much room as values.
        ctx.set_materialize_grads(False)
        return ids_out, values_out, counts_out, last

    @staticmethod
    @once_differentiable("sparse_conv_lif_sequence")
    def backward(  # type: ignore[override]
        ctx: Any, _ids: None, grad: Optional[torch.Tensor], *_: None
    ) -> Tuple[Optional[torch.Tensor], ...]:
        if grad is None:
            return (None,) * 11
        saved = ctx.saved_tensors  # asked for once: torch.utils.checkpoint gives them once
        values, weight, beta, threshold, ids, counts, *out = saved
        ids_out, counts_out, slot_mem, _, _ = out
        options, kernel = ctx.options, ctx.kernel
        if kernel is None:
            kernel = IDENTITY
            level = per_neuron(threshold, Geometry(*options.geometry))
            grad = evaluate(ctx.spike_grad, slot_mem, level, ids_out, counts_out, grad)
        need = ctx.needs_input_grad[:5]
        read = (options.geometry, options.input_scale, options.reset, options.delay)
        arguments = BackwardArguments(
            grad.contiguous(), ids, values, counts, weight, beta, threshold, *read, *out, *kernel.plain(), *need
        )
        run = _library.unwatched("sparse_conv_lif_sequence_bwd", weight, grad, *saved)
        grads = run(*arguments)
        return (*(g if needed else None for g, needed in zip(grads, need)), *(None,) * 6)


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
    maps = (input_size, stride, padding, dilation, groups)
    if _route.uses_operator("sparse_conv_lif_sequence", "SparseConv2d"):
        c = _checked(spikes, weight, bias, (beta, threshold), maps, grad_threshold, reset_mechanism, input_scale, delay)
        fused(spike_grad)
        current = _route.call("sparse_conv2d", c.spikes, weight, None, c.geometry)
        offset = None if c.bias is None else over_places(c.bias, c.geometry)
        decay, level = over_places(c.beta, c.geometry), over_places(c.threshold, c.geometry)
        selection = (c.grad_threshold, max_spikes, spike_grad, overflow)
        made = spikes_of_current(current, offset, decay, level, c.reset, input_scale, delay, *selection)
        return made.with_maps(c.geometry.out_shape)
    out, geometry = _layer(
        spikes,
        weight,
        bias,
        (beta, threshold),
        maps,
        grad_threshold,
        max_spikes,
        reset_mechanism,
        spike_grad,
        input_scale,
        overflow,
        delay,
        None,
    )
    ids, values, counts, dropped = out
    return SparseSpikes._trusted(ids, values, counts, geometry.neurons, dropped, map_shape=geometry.out_shape)


def sparse_conv_lif_pool(
    spikes: SparseSpikes,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    window: Tuple[int, int],
    *,
    beta: Parameter,
    threshold: Parameter,
    input_size: Optional[Pair],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    grad_threshold: Optional[float],
    reset_mechanism: str,
    spike_grad: Optional[SpikeGrad],
    input_scale: float,
    delay: int,
) -> Tuple[SparseSpikes, torch.Tensor]:
    """:func:`sparse_conv_lif_sequence` and :func:`sparse_pool2d` of its maxima as one operator; not public.

    Returns:
        The spikes behind the pool, whose windows lie side by side, and the layer's own counts ``[T, B, 2]``.
    """
    out, geometry = _layer(
        spikes,
        weight,
        bias,
        (beta, threshold),
        (input_size, stride, padding, dilation, groups),
        grad_threshold,
        None,
        reset_mechanism,
        spike_grad,
        input_scale,
        "lowest",
        delay,
        list(window),
    )
    ids, values, counts, neuron_counts = out
    pool = _pool_of(as_list(geometry), list(window))
    return SparseSpikes._trusted(ids, values, counts, pool.neurons, map_shape=pool.out_shape), neuron_counts


def _layer(
    spikes: SparseSpikes,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    parameters: Tuple[Parameter, Parameter],
    maps: Tuple[Optional[Pair], Pair, Pair, Pair, int],
    grad_threshold: Optional[float],
    max_spikes: Optional[int],
    reset_mechanism: str,
    spike_grad: Optional[SpikeGrad],
    input_scale: float,
    overflow: str,
    delay: int,
    window: Optional[List[int]],
) -> Tuple[Tuple[torch.Tensor, ...], Geometry]:
    """What :class:`SparseConvLifSequence` returns for checked arguments."""
    c = _checked(spikes, weight, bias, parameters, maps, grad_threshold, reset_mechanism, input_scale, delay)
    kernel, function = fused(spike_grad)
    capacity = capacity_argument(max_spikes, c.geometry.neurons, c.weight)
    scale, rotate = float(input_scale), overflow_code(overflow)
    options = Options(as_list(c.geometry), c.grad_threshold, scale, capacity, rotate, c.reset, delay)
    values = c.spikes.values.to(c.weight.dtype)
    beta = learnt_decay(c.beta)
    return SparseConvLifSequence.apply(
        values, c.weight, c.bias, beta, c.threshold, c.spikes.ids, c.spikes.counts, options, kernel, function, window
    ), c.geometry


class _Checked(NamedTuple):
    spikes: SparseSpikes
    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    geometry: Geometry
    beta: torch.Tensor
    threshold: torch.Tensor
    grad_threshold: Optional[float]
    reset: int


def _checked(
    spikes: SparseSpikes,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    parameters: Tuple[Parameter, Parameter],
    maps: Tuple[Optional[Pair], Pair, Pair, Pair, int],
    grad_threshold: Optional[float],
    reset_mechanism: str,
    input_scale: float,
    delay: int,
) -> _Checked:
    """The arguments of a layer as its operators take them."""
    spikes = check_spikes("spikes", spikes)
    weight = conv_weight_argument(weight, spikes, maps[-1])
    geometry = conv_argument(spikes, weight, *maps)
    channels = (geometry.out_channels,)
    check_delay(delay)
    if isinstance(input_scale, bool) or not isinstance(input_scale, (int, float)):
        raise TypeError(f"input_scale must be a number, got {input_scale!r}")
    return _Checked(
        spikes,
        weight,
        bias_argument(bias, weight),
        geometry,
        parameter_argument("beta", parameters[0], channels, weight),
        parameter_argument("threshold", parameters[1], channels, weight),
        grad_threshold_argument(grad_threshold),
        reset_code(reset_mechanism),
    )
