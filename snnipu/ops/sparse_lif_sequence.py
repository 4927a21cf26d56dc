"""A layer of spiking neurons on spike ids over a sequence: public function, schema, meta, autograd, reference."""

from typing import Any, List, Optional, Tuple, cast

import torch

from snnipu import _route
from snnipu.ops import _library
from snnipu.ops._arguments import Parameter, parameter_argument, reset_code
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._slots import (
    AS_NEEDED,
    capacity_argument,
    check_delay,
    check_ids,
    check_spikes,
    gather,
    overflow_code,
    scatter,
    select,
    stored_membranes,
)
from snnipu.ops._spike_gradient import IDENTITY, evaluate, fused, through_spikes
from snnipu.ops.lif_sequence import learnt_decay, lif_apply
from snnipu.ops.select_spikes import grad_threshold_argument, select_spikes, spike_values
from snnipu.ops.sparse_linear import bias_argument, spikes_only, weight_argument
from snnipu.spikes import SparseSpikes
from snnipu.surrogate import Kernel, SpikeGrad

_SCHEMA_FWD = (
    "sparse_lif_sequence_fwd(Tensor ids, Tensor values, Tensor counts, Tensor weight, Tensor? bias, "
    "Tensor? recurrent_weight, Tensor beta, Tensor threshold, float? grad_threshold, float input_scale, int capacity, "
    "bool rotate, int reset, int delay, bool store_mem) -> (Tensor ids_out, Tensor values_out, Tensor counts_out, "
    "Tensor dropped, Tensor slot_mem, Tensor fired, Tensor mem)"
)
_SCHEMA_BWD = (
    "sparse_lif_sequence_bwd(Tensor grad, Tensor ids, Tensor values, Tensor counts, Tensor weight, "
    "Tensor? recurrent_weight, Tensor beta, Tensor threshold, float input_scale, int reset, int delay, "
    "Tensor ids_out, Tensor counts_out, Tensor slot_mem, Tensor fired, Tensor mem, int surrogate, float surrogate_a, "
    "float surrogate_b, bool need_values, bool need_weight, bool need_bias, bool need_recurrent, bool need_beta, "
    "bool need_threshold) -> (Tensor grad_values, Tensor grad_weight, Tensor grad_bias, Tensor grad_recurrent, "
    "Tensor grad_beta, Tensor grad_threshold)"
)

WORD_BITS = 32

ForwardResult = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
BackwardResult = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def words(num_neurons: int) -> int:
    """32-bit words of one bit a neuron."""
    return (num_neurons + WORD_BITS - 1) // WORD_BITS


def pack_bits(fired: torch.Tensor) -> torch.Tensor:
    """bool ``[..., N]`` as int32 ``[..., words(N)]``, the lowest bit first."""
    n = fired.shape[-1]
    padded = torch.nn.functional.pad(fired, (0, words(n) * WORD_BITS - n))
    bits = padded.reshape(*fired.shape[:-1], words(n), WORD_BITS).long()
    total = (bits << torch.arange(WORD_BITS, device=fired.device)).sum(-1)
    return torch.where(total >= 2**31, total - 2**32, total).int()


def unpack_bits(packed: torch.Tensor, num_neurons: int) -> torch.Tensor:
    """The inverse of :func:`pack_bits`."""
    bits = (packed[..., None].long() >> torch.arange(WORD_BITS, device=packed.device)) & 1
    return bits.reshape(*packed.shape[:-1], packed.shape[-1] * WORD_BITS)[..., :num_neurons].bool()


def delayed(x: torch.Tensor, delay: int) -> torch.Tensor:
    """``x`` ``[T, ...]``, ``delay`` steps later: zeros first."""
    if delay == 0:
        return x
    return torch.cat([torch.zeros_like(x[:delay]), x[: max(x.shape[0] - delay, 0)]])


def sparse_lif_sequence_fwd_reference(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    recurrent_weight: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    grad_threshold: Optional[float],
    input_scale: float,
    capacity: int,
    rotate: bool,
    reset: int,
    delay: int,
    store_mem: bool,
) -> ForwardResult:
    """What ``snnipu::sparse_lif_sequence_fwd`` computes, in plain PyTorch.

    ``slot_mem`` is the membrane at the carried slots, ``fired`` one bit for every neuron that was above its threshold
    (also where its spike was dropped), ``mem`` the membranes ``[T, B, N]``, empty without ``store_mem``.
    """
    check_ids(ids, counts, weight.shape[1])
    steps, batch = ids.shape[:2]
    neurons = weight.shape[0]
    dense = spikes_only(values, ids, counts, weight.shape[1])
    current = delayed(torch.nn.functional.linear(dense, weight) * input_scale, delay)
    decay = beta.clamp(0, 1)
    state = weight.new_zeros(batch, neurons)
    own = torch.zeros_like(state)
    mems: List[torch.Tensor] = []
    for t in range(steps):
        x = current[t] if bias is None else current[t] + bias
        if recurrent_weight is not None:
            x = x + torch.nn.functional.linear(own, recurrent_weight) * input_scale
        state = integrated(state, x, decay, threshold, reset)
        mems.append(state)
        if recurrent_weight is not None:
            # The neurons see the spikes that were given a slot: t + 1 steps, so that "rotate" knows the time.
            fired, carried = _above(torch.stack(mems), threshold, grad_threshold)
            kept = select(fired, carried, capacity, rotate)
            own = spikes_only(spike_values(kept[0], kept[1], state.dtype), kept[0], kept[1], neurons)[t]
    mem = torch.stack(mems) if mems else weight.new_zeros(0, batch, neurons)
    return *selected(mem, threshold, grad_threshold, capacity, rotate), mem if store_mem else mem.new_empty(0)


def integrated(
    state: torch.Tensor, x: torch.Tensor, decay: torch.Tensor, threshold: torch.Tensor, reset: int
) -> torch.Tensor:
    """The membrane a step later."""
    was_above = (state - threshold > 0).to(state.dtype)
    if reset == 0:
        return (decay * state + x) - was_above * threshold
    return decay * ((1 - was_above) * state) + x if reset == 1 else decay * state + x


def selected(
    mem: torch.Tensor, threshold: torch.Tensor, grad_threshold: Optional[float], capacity: int, rotate: bool
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a layer gives of its membranes ``[T, B, N]``: ids, values, counts, dropped, slot_mem and fired."""
    fired, carried = _above(mem, threshold, grad_threshold)
    ids, counts, dropped = select(fired, carried, capacity, rotate)
    slot_mem = gather(mem, ids, counts)
    return ids, spike_values(ids, counts, mem.dtype), counts, dropped, slot_mem, pack_bits(fired)


def _above(
    mem: torch.Tensor, threshold: torch.Tensor, grad_threshold: Optional[float]
) -> Tuple[torch.Tensor, torch.Tensor]:
    return mem - threshold > 0, torch.ones_like(mem).bool() if grad_threshold is None else mem > grad_threshold


def membrane_gradient(
    kernel: Kernel,
    grad: torch.Tensor,
    slots: Tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    fired: torch.Tensor,
    mem: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    reset: int,
    neurons: int,
    recurrent_weight: Optional[torch.Tensor] = None,
    input_scale: float = 1.0,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradient of the membranes ``[T, B, N]`` from that of the spikes' values, and those of beta (where ``mem`` is
    given) and threshold, a sum for each neuron of each sample."""
    ids, counts, slot_mem = slots
    steps, batch = ids.shape[:2]
    decay = beta.clamp(0, 1)
    above = unpack_bits(fired, neurons).to(slot_mem.dtype)
    carry = slot_mem.new_zeros(batch, neurons)
    g = slot_mem.new_zeros(steps, batch, neurons)
    sum_beta, sum_threshold = torch.zeros_like(carry), torch.zeros_like(carry)
    for t in range(steps - 1, -1, -1):
        now = slice(t, t + 1)
        upstream = grad[now]
        if recurrent_weight is not None and t + 1 < steps:
            upstream = upstream + gather(g[t + 1 : t + 2] @ recurrent_weight, ids[now], counts[now]) * input_scale
        through = through_spikes(kernel, slot_mem[now], threshold, ids[now], counts[now], upstream)
        spread = scatter(through, ids[now], counts[now], neurons)[0]
        g[t] = carry + spread
        # Before the first step the membrane is 0, which is above a negative threshold.
        was_above = above[t - 1] if t > 0 else (0 - threshold > 0).to(carry.dtype).expand_as(carry)
        sum_threshold = sum_threshold - spread - (g[t] * was_above if reset == 0 else 0)
        carry = decay * g[t] if reset != 1 else decay * (1 - was_above) * g[t]
        if mem is not None and t > 0:
            sum_beta = sum_beta + g[t] * (mem[t - 1] if reset != 1 else (1 - was_above) * mem[t - 1])
    return g, sum_beta, sum_threshold


def sparse_lif_sequence_bwd_reference(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    recurrent_weight: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
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
    need_recurrent: bool,
    need_beta: bool,
    need_threshold: bool,
) -> BackwardResult:
    """What ``snnipu::sparse_lif_sequence_bwd`` computes, in plain PyTorch; empty where not needed.

    The gradient of beta is 0 outside of [0, 1], and not at the bounds: see ``learnt_decay``.
    """
    steps, neurons = ids.shape[0], weight.shape[0]
    kernel = Kernel(surrogate, surrogate_a, surrogate_b)
    slots = (ids_out, counts_out, slot_mem)
    g, sum_beta, sum_threshold = membrane_gradient(
        kernel,
        grad,
        slots,
        fired,
        stored_membranes(mem, need_beta, ids, neurons),
        beta,
        threshold,
        reset,
        neurons,
        recurrent_weight,
        input_scale,
    )
    inside = torch.where((beta >= 0) & (beta <= 1), torch.ones_like(beta), torch.zeros_like(beta))
    # No two outputs may be the same tensor.
    grad_values, grad_weight, grad_bias, grad_recurrent, grad_beta, grad_threshold = (
        weight.new_empty(0) for _ in range(6)
    )
    # What reached the input, at the step it came from.
    early = torch.cat([g[delay:], torch.zeros_like(g[: min(delay, steps)])]) if delay else g
    flat = (early * input_scale).reshape(-1, neurons)
    if need_values:
        grad_values = gather(early @ weight * input_scale, ids, counts)
    if need_weight:
        grad_weight = flat.t() @ spikes_only(values, ids, counts, weight.shape[1]).reshape(-1, weight.shape[1])
    if need_recurrent:
        spikes = spikes_only(spike_values(ids_out, counts_out, weight.dtype), ids_out, counts_out, neurons)
        later = (g * input_scale).reshape(-1, neurons)
        grad_recurrent = later.t() @ delayed(spikes, 1).reshape(-1, neurons)

    def reduced(total: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        total = total.sum(0)
        return total.sum().reshape(like.shape) if like.numel() == 1 else total.reshape(like.shape)

    return (
        grad_values,
        grad_weight,
        g.sum((0, 1)) if need_bias else grad_bias,
        grad_recurrent,
        reduced(sum_beta, beta) * inside if need_beta else grad_beta,
        reduced(sum_threshold, threshold) if need_threshold else grad_threshold,
    )


def _fwd_meta(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    recurrent_weight: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    grad_threshold: Optional[float],
    input_scale: float,
    capacity: int,
    rotate: bool,
    reset: int,
    delay: int,
    store_mem: bool,
) -> ForwardResult:
    neurons = weight.shape[0]
    rows = ids.shape[:2]
    slots = capacity if capacity != AS_NEEDED else neurons
    counts_out = counts.new_empty((*rows, 2))
    return (
        ids.new_empty((*rows, slots)),
        weight.new_empty((*rows, slots)),
        counts_out,
        torch.empty_like(counts_out),
        weight.new_empty((*rows, slots)),
        ids.new_empty((*rows, words(neurons))),
        weight.new_empty((*rows, neurons) if store_mem else 0),
    )


def _bwd_meta(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    recurrent_weight: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
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
    need_recurrent: bool,
    need_beta: bool,
    need_threshold: bool,
) -> BackwardResult:
    neurons = weight.shape[0]
    return (
        weight.new_empty(ids.shape if need_values else 0),
        weight.new_empty(weight.shape if need_weight else 0),
        weight.new_empty(neurons if need_bias else 0),
        weight.new_empty((neurons, neurons) if need_recurrent else 0),
        weight.new_empty(beta.shape if need_beta else 0),
        weight.new_empty(threshold.shape if need_threshold else 0),
    )


_library.define(_SCHEMA_FWD, reference=sparse_lif_sequence_fwd_reference, meta=_fwd_meta)
_library.define(_SCHEMA_BWD, reference=sparse_lif_sequence_bwd_reference, meta=_bwd_meta)


class SparseLifSequence(torch.autograd.Function):
    """Autograd around ``snnipu::sparse_lif_sequence_fwd`` and ``snnipu::sparse_lif_sequence_bwd``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        recurrent_weight: Optional[torch.Tensor],
        beta: torch.Tensor,
        threshold: torch.Tensor,
        ids: torch.Tensor,
        counts: torch.Tensor,
        grad_threshold: Optional[float],
        input_scale: float,
        capacity: int,
        rotate: bool,
        reset: int,
        delay: int,
        kernel: Optional[Kernel],
        spike_grad: Optional[SpikeGrad],
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        store_mem = ctx.needs_input_grad[4]
        read = (weight, values, ids, counts, bias, recurrent_weight, beta, threshold)
        out = _library.unwatched("sparse_lif_sequence_fwd", *read)(
            ids,
            values,
            counts,
            weight,
            bias,
            recurrent_weight,
            beta,
            threshold,
            grad_threshold,
            input_scale,
            capacity,
            rotate,
            reset,
            delay,
            store_mem,
        )
        ids_out, values_out, counts_out, dropped, slot_mem, fired, mem = out
        saved = (values, weight, recurrent_weight, beta, threshold, ids, counts)
        ctx.save_for_backward(*saved, ids_out, counts_out, slot_mem, fired, mem)
        ctx.input_scale, ctx.reset, ctx.delay = input_scale, reset, delay
        ctx.kernel, ctx.spike_grad = kernel, spike_grad
        ctx.mark_non_differentiable(ids_out, counts_out, dropped)
        # No zeros for the outputs that have no gradient: ids take as much room as values.
        ctx.set_materialize_grads(False)
        return ids_out, values_out, counts_out, dropped

    @staticmethod
    @once_differentiable("sparse_lif_sequence")
    def backward(  # type: ignore[override]
        ctx: Any, _ids: None, grad: Optional[torch.Tensor], *_: None
    ) -> Tuple[Optional[torch.Tensor], ...]:
        if grad is None:
            return (None,) * 16
        saved = ctx.saved_tensors  # asked for once: torch.utils.checkpoint gives them once
        values, weight, recurrent_weight, beta, threshold, ids, counts, *out = saved
        ids_out, counts_out, slot_mem, fired, mem = out
        kernel = ctx.kernel
        if kernel is None:
            kernel = IDENTITY
            grad = evaluate(ctx.spike_grad, slot_mem, threshold, ids_out, counts_out, grad)
        need = ctx.needs_input_grad[:6]
        grads = _library.unwatched("sparse_lif_sequence_bwd", weight, grad, *saved)(
            grad.contiguous(),
            ids,
            values,
            counts,
            weight,
            recurrent_weight,
            beta,
            threshold,
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
        return (*(g if needed else None for g, needed in zip(grads, need)), *(None,) * 10)


def _recurrent_argument(recurrent_weight: torch.Tensor, weight: torch.Tensor, own_gradient: bool) -> torch.Tensor:
    """The recurrent weight in the type of ``weight``; raises where it does not fit, or the surrogate is a function."""
    neurons = weight.shape[0]
    if not isinstance(recurrent_weight, torch.Tensor):
        raise TypeError(f"recurrent_weight must be a torch.Tensor or None, got {type(recurrent_weight).__name__}")
    if not recurrent_weight.dtype.is_floating_point:
        raise TypeError(f"recurrent_weight must be floating, got {recurrent_weight.dtype}")
    if recurrent_weight.shape != (neurons, neurons):
        raise ValueError(f"recurrent_weight must have shape {(neurons, neurons)}, got {tuple(recurrent_weight.shape)}")
    if recurrent_weight.device != weight.device:
        raise ValueError(
            f"recurrent_weight must be on the device of weight, {weight.device}, got {recurrent_weight.device}"
        )
    if own_gradient:
        raise ValueError(
            "spike_grad must be a fused surrogate of snnipu.surrogate with recurrent_weight: the gradient goes "
            "through it from step to step"
        )
    return recurrent_weight.to(weight.dtype)


def _later(spikes: SparseSpikes, delay: int) -> SparseSpikes:
    """The same spikes, ``delay`` steps later: none first."""
    if delay == 0:
        return spikes
    ids, values, counts = (delayed(each, delay) for each in (spikes.ids, spikes.values, spikes.counts))
    return SparseSpikes._trusted(ids, values, counts, spikes.num_neurons)


def spikes_of_current(
    current: torch.Tensor,
    bias: Optional[torch.Tensor],
    beta: Parameter,
    threshold: torch.Tensor,
    reset: int,
    input_scale: float,
    delay: int,
    grad_threshold: Optional[float],
    max_spikes: Optional[int],
    spike_grad: Optional[SpikeGrad],
    overflow: str,
) -> SparseSpikes:
    """Neurons and selection by operators of their own, of the weighted spikes ``[T, B, N]``; parameters of one element
    or ``[N]``."""
    current = delayed(current * input_scale if input_scale != 1 else current, delay)
    current = current if bias is None else current + bias
    # The surrogate is the selection's: nothing reads the spikes of this operator.
    _, mem, _ = lif_apply(current, None, beta, threshold, 1.0, None, reset, True, None)
    assert mem is not None
    return select_spikes(mem, threshold, grad_threshold, max_spikes, spike_grad=spike_grad, overflow=overflow)


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
    r"""A fully connected layer of leaky integrate-and-fire neurons from spikes to spikes, over ``T`` steps, as one
    operator: weights gathered by spike id, membranes, and selection of the neurons that spiked.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        x_t &= \alpha \Big(\sum_s v_{t-d,s} W_{\cdot, i_{t-d,s}} + \sum_s v'_{t-1,s} V_{\cdot, i'_{t-1,s}}\Big) + b \\
        u_t &= \beta u_{t-1} + x_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= \beta (1 - r_t) u_{t-1} + x_t \quad \text{(zero)} \\
        u_t &= \beta u_{t-1} + x_t \quad \text{(none)} \\
        s_t &= H(u_t - \theta)

    with :math:`u_{-1} = 0`, :math:`\alpha` the ``input_scale``, :math:`d` the ``delay``, and :math:`(i', v')` the
    layer's own spikes, as they are returned. The reset carries no gradient. Which neurons get a slot, and with it the
    surrogate gradient of their spike, is told by :func:`select_spikes`; a neuron whose spike was dropped is reset all
    the same. The gradient of the membrane goes back in time for every neuron.

    Args:
        spikes: SparseSpikes of ``in`` neurons.
        weight: ``[out, in]``, as ``nn.Linear``'s. float16 and bfloat16 are converted to float32.
        bias: ``[out]`` or None; not scaled by ``input_scale``.
        beta: decay of the membrane per step, clamped to [0, 1]: a number, or a tensor of one element or ``[out]``.
        threshold: firing threshold, likewise.
        grad_threshold: second threshold; None: every neuron carries gradient, which makes the slots as many as neurons.
        max_spikes: slots; None: as many as the busiest step needs.
        reset_mechanism: ``"subtract"``, ``"zero"`` or ``"none"``.
        spike_grad: surrogate gradient, as in :func:`lif_sequence`; None: ``atan()``. Callables that are not of
            ``snnipu.surrogate`` or ``snntorch.surrogate`` give the gradient, not the spikes.
        input_scale: factor of the weighted spikes.
        overflow: ``"lowest"`` or ``"rotate"``: see :func:`select_spikes`.
        delay: steps that the input spikes take, 0 or more.
        recurrent_weight: ``[out, out]``: the layer's own spikes of the step before, or None.

    Returns:
        SparseSpikes of ``out`` neurons, differentiable in the weights, ``bias``, ``beta``, ``threshold`` and
        ``spikes.values``.

    Raises:
        TypeError, ValueError: a shape, dtype, device or option that does not fit, an id or count out of range; the
            message names the argument. On CUDA ids and counts out of range are left out without an error, as in
            :func:`sparse_linear`.

    Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023; the neuron is
    ``snntorch.Leaky`` 1.0's.
    """
    spikes = check_spikes("spikes", spikes)
    given = weight
    weight = weight_argument("weight", weight, spikes)
    bias = bias_argument(bias, weight)
    neurons = weight.shape[0]
    beta_ = learnt_decay(parameter_argument("beta", beta, (neurons,), weight))
    threshold_ = parameter_argument("threshold", threshold, (neurons,), weight)
    grad_threshold = grad_threshold_argument(grad_threshold)
    reset = reset_code(reset_mechanism)
    check_delay(delay)
    if isinstance(input_scale, bool) or not isinstance(input_scale, (int, float)):
        raise TypeError(f"input_scale must be a number, got {input_scale!r}")
    kernel, function = fused(spike_grad)
    if recurrent_weight is not None:
        recurrent_weight = _recurrent_argument(recurrent_weight, weight, function is not None)
        if _route.uses_operator("sparse_lif_sequence with recurrent_weight", "SparseNetwork"):
            layer = (given, beta_, threshold_, bias, max_spikes, grad_threshold, input_scale, recurrent_weight)
            made = _route.call("sparse_layer", _later(spikes, delay), *layer, reset, overflow_code(overflow), kernel)
            return cast(SparseSpikes, made)
    elif _route.uses_operator("sparse_lif_sequence", "SparseLinear"):
        current = _route.call("sparse_linear", spikes, given, None)
        selection = (grad_threshold, max_spikes, spike_grad, overflow)
        return spikes_of_current(current, bias, beta, threshold_, reset, input_scale, delay, *selection)
    capacity = capacity_argument(max_spikes, neurons, weight)
    ids, values, counts, dropped = SparseLifSequence.apply(
        spikes.values.to(weight.dtype),
        weight,
        bias,
        recurrent_weight,
        beta_,
        threshold_,
        spikes.ids,
        spikes.counts,
        grad_threshold,
        float(input_scale),
        capacity,
        overflow_code(overflow),
        reset,
        delay,
        kernel,
        function,
    )
    return SparseSpikes._trusted(ids, values, counts, neurons, dropped)
