"""Layers of leaky integrate-and-fire neurons on spikes, for any connection.

The module has the records, schemas, meta kernels, autograd function and reference of their operators.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu._checks import check_int
from snnipu.ops._arguments import RESET_MECHANISMS, Parameter, learnt_decay, parameter_argument, reset_code
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._maps import Geometry, PoolGeometry, as_list, pool_geometry
from snnipu.ops._records import Operator, Operators
from snnipu.ops._reference import leaky_adjoint, leaky_step
from snnipu.ops._slots import (
    AS_NEEDED,
    Slots,
    capacity_argument,
    gather,
    overflow_code,
    scatter,
    select,
    slot_results,
    stored_membranes,
)
from snnipu.ops._sparse_currents import gradients_meta, spikes_only
from snnipu.ops._spike_gradient import IDENTITY, fused, through_spikes
from snnipu.ops.connections import Connection, FullyConnected, connection, parameter_gradient
from snnipu.ops.lif_sequence import lif_sequence
from snnipu.ops.select_spikes import grad_threshold_argument, select_spikes, spike_values
from snnipu.ops.sparse_pool2d import MODES, sparse_pool2d_fwd_reference
from snnipu.spikes import SparseSpikes, check_ids
from snnipu.surrogate import Kernel, SpikeGrad

WORD_BITS = 32


class LayerForward(NamedTuple):
    """Arguments of a layer's forward operator.

    ``recurrent_weight`` is for fully connected layers, ``geometry`` for convolutions, ``window`` for a layer that is
    followed by a pool.
    """

    ids: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor
    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    recurrent_weight: Optional[torch.Tensor]
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
    window: List[int]

    @property
    def connection(self) -> Connection:
        return connection(self.weight, self.geometry)

    @property
    def pool(self) -> PoolGeometry:
        return pool_of(Geometry(*self.geometry), self.window)


class LayerResults(NamedTuple):
    """Results of a layer's forward operator.

    Attributes:
        ids_out: ids of the layer's spikes, or of the pool's.
        values_out: values, likewise.
        counts_out: counts, likewise.
        dropped: dropped spikes; None with a pool.
        source: the neuron whose spike a slot of the pool holds; None without a pool.
        neuron_counts: counts of the layer before the pool; None without a pool.
        slot_mem: membranes at the carried slots.
        fired: a bit for each neuron that was above its threshold, even if its spike was dropped.
        mem: membranes ``[T, B, *stored_shape]``, empty without ``store_mem``.
    """

    ids_out: torch.Tensor
    values_out: torch.Tensor
    counts_out: torch.Tensor
    dropped: Optional[torch.Tensor]
    source: Optional[torch.Tensor]
    neuron_counts: Optional[torch.Tensor]
    slot_mem: torch.Tensor
    fired: torch.Tensor
    mem: torch.Tensor


class LayerBackward(NamedTuple):
    """Arguments of a layer's backward operator; with a pool, ``ids_out`` is ``source``, the neurons' ids."""

    grad: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor
    weight: torch.Tensor
    recurrent_weight: Optional[torch.Tensor]
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
    need_recurrent: bool
    need_beta: bool
    need_threshold: bool

    @property
    def connection(self) -> Connection:
        return connection(self.weight, self.geometry)

    @property
    def stored(self) -> Optional[torch.Tensor]:
        """The membranes if beta's gradient needs them, else None; ValueError if they were not stored."""
        return stored_membranes(self.mem, self.need_beta, self.ids, self.connection.neurons)


class LayerGradients(NamedTuple):
    """Results of a layer's backward operator; None if not needed."""

    grad_values: Optional[torch.Tensor]
    grad_weight: Optional[torch.Tensor]
    grad_bias: Optional[torch.Tensor]
    grad_recurrent: Optional[torch.Tensor]
    grad_beta: Optional[torch.Tensor]
    grad_threshold: Optional[torch.Tensor]


def pool_of(sizes: Geometry, window: Sequence[int]) -> PoolGeometry:
    kernel = (window[0], window[1])
    return pool_geometry(sizes.out_shape, kernel, kernel, (0, 0))


def words(num_neurons: int) -> int:
    """Return the number of 32-bit words that hold a bit for each neuron."""
    return (num_neurons + WORD_BITS - 1) // WORD_BITS


def pack_bits(fired: torch.Tensor) -> torch.Tensor:
    """Pack bool ``[..., N]`` into int32 ``[..., words(N)]``, the lowest bit first."""
    n = fired.shape[-1]
    padded = torch.nn.functional.pad(fired, (0, words(n) * WORD_BITS - n))
    bits = padded.reshape(*fired.shape[:-1], words(n), WORD_BITS).long()
    return (bits << torch.arange(WORD_BITS, device=fired.device)).sum(-1).int()  # the highest bit is the sign


def unpack_bits(packed: torch.Tensor, num_neurons: int) -> torch.Tensor:
    """Return the inverse of :func:`pack_bits`."""
    bits = (packed[..., None].long() >> torch.arange(WORD_BITS, device=packed.device)) & 1
    return bits.reshape(*packed.shape[:-1], packed.shape[-1] * WORD_BITS)[..., :num_neurons].bool()


def delayed(x: torch.Tensor, delay: int) -> torch.Tensor:
    """Return ``x`` ``[T, ...]`` shifted by ``delay`` steps, with zeros first."""
    if delay == 0:
        return x
    return torch.cat([torch.zeros_like(x[:delay]), x[: max(x.shape[0] - delay, 0)]])


def forward_reference(a: LayerForward) -> LayerResults:
    """Compute a layer's forward operator in plain PyTorch."""
    connected = a.connection
    check_ids(a.ids, a.counts, connected.inputs)
    current = connected.currents(spikes_only(a.values, a.ids, a.counts, connected.inputs))
    current = delayed(current * a.input_scale, a.delay)
    if a.bias is not None:
        current = current + connected.per_neuron(a.bias)
    threshold = connected.per_neuron(a.threshold)
    step = leaky_step(connected.per_neuron(a.beta), threshold, a.reset, current.shape[1:])
    state = spikes = current.new_zeros(current.shape[1:])
    recurrent = None if a.recurrent_weight is None else FullyConnected(a.recurrent_weight)
    mems: List[torch.Tensor] = []
    for x in current:
        if recurrent is not None:
            x = x + recurrent.currents(spikes) * a.input_scale
        state = step(x, [state])[1]
        mems.append(state)
        if recurrent is not None:
            # The feedback has only spikes with a slot. Selection gets all t + 1 steps, because "rotate" needs the time.
            ids, counts, _ = _select_slots(torch.stack(mems), threshold, a)
            spikes = spikes_only(spike_values(ids, counts, state.dtype), ids, counts, connected.neurons)[-1]
    mem = torch.stack(mems) if mems else torch.zeros_like(current)
    ids, counts, dropped = _select_slots(mem, threshold, a)
    results = LayerResults(
        ids,
        spike_values(ids, counts, mem.dtype),
        counts,
        dropped,
        None,
        None,
        gather(mem, ids, counts),
        pack_bits(mem - threshold > 0),
        connected.to_stored(mem) if a.store_mem else mem.new_empty(0),
    )
    return results if a.window is None else _pool_spikes(results, a)


def _select_slots(
    mem: torch.Tensor, threshold: torch.Tensor, a: LayerForward
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    fired = mem - threshold > 0
    carried = torch.ones_like(fired) if a.grad_threshold is None else mem > a.grad_threshold
    if a.window is not None:
        return select(fired, carried, AS_NEEDED, False)
    return select(fired, carried, a.capacity, a.rotate)


def _pool_spikes(layer: LayerResults, a: LayerForward) -> LayerResults:
    """Return the results after a maximum pool of the layer's spikes, without a cap."""
    ids, values, counts, slot = sparse_pool2d_fwd_reference(
        layer.ids_out, layer.values_out, layer.counts_out, as_list(a.pool), MODES["max"], AS_NEEDED
    )
    source, shown = gather(layer.ids_out, slot, counts), gather(layer.slot_mem, slot, counts)
    return LayerResults(ids, values, counts, None, source, layer.counts_out, shown, layer.fired, layer.mem)


def backward_reference(a: LayerBackward) -> LayerGradients:
    """Compute a layer's backward operator in plain PyTorch.

    The gradient of beta is 0 outside of [0, 1]; at the bounds it passes, see ``learnt_decay``.
    """
    connected, steps = a.connection, a.ids.shape[0]
    g, sum_beta, sum_threshold = _membrane_gradient(a)
    # The gradient of the currents, shifted back to the steps of the input.
    early = torch.cat([g[a.delay :], torch.zeros_like(g[: min(a.delay, steps)])]) * a.input_scale
    dense = spikes_only(a.values, a.ids, a.counts, connected.inputs) if a.need_weight else None
    grad_dense, grad_weight = connected.adjoint(early, dense, a.need_values)
    grad_recurrent = None
    if a.need_recurrent and a.recurrent_weight is not None:
        spikes = spike_values(a.ids_out, a.counts_out, g.dtype)
        spikes_before = delayed(spikes_only(spikes, a.ids_out, a.counts_out, connected.neurons), 1)
        grad_recurrent = FullyConnected(a.recurrent_weight).adjoint(g * a.input_scale, spikes_before, False)[1]
    grad_values = None if grad_dense is None else gather(grad_dense, a.ids, a.counts)
    return gradients_of_sums(a, grad_values, grad_weight, grad_recurrent, g, sum_beta, sum_threshold)


def gradients_of_sums(
    a: LayerBackward,
    grad_values: Optional[torch.Tensor],
    grad_weight: Optional[torch.Tensor],
    grad_recurrent: Optional[torch.Tensor],
    grad: torch.Tensor,
    sum_beta: torch.Tensor,
    sum_threshold: torch.Tensor,
) -> LayerGradients:
    """Return a layer's gradients; ``grad``, of the membranes, and the sums are ``[..., neurons]``."""
    connected, inside = a.connection, (a.beta >= 0) & (a.beta <= 1)
    return LayerGradients(
        grad_values,
        grad_weight,
        connected.per_parameter(grad) if a.need_bias else None,
        grad_recurrent,
        parameter_gradient(connected, sum_beta, a.beta) * inside if a.need_beta else None,
        parameter_gradient(connected, sum_threshold, a.threshold) if a.need_threshold else None,
    )


def _membrane_gradient(a: LayerBackward) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of the membranes ``[T, B, N]``, and of beta and threshold ``[B, N]``, summed over time.

    The gradient of beta is valid only if the membranes are stored.
    """
    connected, kernel = a.connection, Kernel(a.surrogate, a.surrogate_a, a.surrogate_b)
    steps, batch = a.ids.shape[:2]
    threshold = connected.per_neuron(a.threshold)
    step = leaky_step(connected.per_neuron(a.beta), threshold, a.reset, torch.Size((batch, connected.neurons)))
    zeros = a.slot_mem.new_zeros(batch, connected.neurons)
    g = a.slot_mem.new_zeros(steps, batch, connected.neurons)
    above = unpack_bits(a.fired, connected.neurons).to(g.dtype)
    mem = None if a.stored is None else connected.from_stored(a.stored).reshape(g.shape)
    carry = sum_beta = sum_threshold = zeros
    for t in range(steps - 1, -1, -1):
        now = slice(t, t + 1)
        ids, counts, upstream = a.ids_out[now], a.counts_out[now], a.grad[now]
        if a.recurrent_weight is not None and t + 1 < steps:
            back = FullyConnected(a.recurrent_weight).adjoint(g[t + 1 : t + 2], None)[0]
            assert back is not None
            upstream = upstream + gather(back, ids, counts) * a.input_scale
        through = through_spikes(kernel, a.slot_mem[now], threshold, ids, counts, upstream)
        # Before the first step the membrane is 0, which is above a negative threshold.
        before = zeros if mem is None or t == 0 else mem[t - 1]
        fired = above[t - 1] if t > 0 else (zeros - threshold > 0).to(g.dtype)
        grad_spk = scatter(through, ids, counts, connected.neurons)[0]
        g[t], carry, of_beta, of_threshold = leaky_adjoint(step, grad_spk, carry, before, fired)
        sum_beta, sum_threshold = sum_beta + of_beta, sum_threshold + of_threshold
    return g, sum_beta, sum_threshold


def _forward_meta(a: LayerForward) -> LayerResults:
    connected, rows = a.connection, a.ids.shape[:2]
    capacity = connected.neurons if a.capacity == AS_NEEDED else a.capacity
    slots = capacity if a.window is None else a.pool.neurons
    return LayerResults(
        a.ids.new_empty((*rows, slots)),
        a.weight.new_empty((*rows, slots)),
        a.counts.new_empty((*rows, 2)),
        a.counts.new_empty((*rows, 2)),
        a.ids.new_empty((*rows, slots)),
        a.counts.new_empty((*rows, 2)),
        a.weight.new_empty((*rows, slots)),
        a.ids.new_empty((*rows, words(connected.neurons))),
        a.weight.new_empty((*rows, *connected.stored_shape) if a.store_mem else 0),
    )


def _backward_meta(a: LayerBackward) -> LayerGradients:
    neurons = a.connection.neurons
    return LayerGradients(
        *gradients_meta(a),
        a.weight.new_empty((neurons, neurons)) if a.need_recurrent else None,
        a.weight.new_empty(a.beta.shape) if a.need_beta else None,
        a.weight.new_empty(a.threshold.shape) if a.need_threshold else None,
    )


_OF_POOLS = ("source", "neuron_counts", "window")


def define(name: str, without: Sequence[str]) -> Operators:
    """Define ``snnipu::<name>_fwd`` and ``snnipu::<name>_bwd``; their records lack the fields ``without``."""
    operators = Operators(
        name,
        Operator(f"{name}_fwd", LayerForward, LayerResults, [*without, *_OF_POOLS]),
        Operator(f"{name}_bwd", LayerBackward, LayerGradients, without),
    )
    operators.forward.define(forward_reference, _forward_meta)
    operators.backward.define(backward_reference, _backward_meta)
    return operators


def define_with_pool(name: str, layer: Operators, without: Sequence[str]) -> Operators:
    """Define ``snnipu::<name>_fwd``: a layer followed by a pool of non-overlapping windows.

    The backward operator is the layer's.
    """
    operators = layer._replace(forward=Operator(f"{name}_fwd", LayerForward, LayerResults, [*without, "dropped"]))
    operators.forward.define(forward_reference, _forward_meta)
    return operators


class NeuronOptions(NamedTuple):
    """Checked options of a layer. The surrogate is ``kernel``, or ``spike_grad`` if ``kernel`` is None."""

    grad_threshold: Optional[float]
    input_scale: float
    reset: int
    delay: int
    kernel: Optional[Kernel]
    spike_grad: Optional[SpikeGrad]


class LayerNeurons(NamedTuple):
    """Neurons of a layer. Each parameter has one element, or ``Connection.parameters`` elements."""

    beta: torch.Tensor
    threshold: torch.Tensor
    options: NeuronOptions


def neurons_argument(
    connected: Connection,
    beta: Parameter,
    threshold: Parameter,
    grad_threshold: Optional[float],
    input_scale: float,
    reset_mechanism: str,
    delay: int,
    spike_grad: Optional[SpikeGrad],
) -> LayerNeurons:
    """Check the parameters and options of a layer's neurons; return them as :class:`LayerNeurons`."""
    check_int("delay", delay, 0)
    if isinstance(input_scale, bool) or not isinstance(input_scale, (int, float)):
        raise TypeError(f"input_scale must be a number, got {input_scale!r}")
    shape = (connected.parameters,)
    return LayerNeurons(
        parameter_argument("beta", beta, shape, connected.weight),
        parameter_argument("threshold", threshold, shape, connected.weight),
        NeuronOptions(
            grad_threshold_argument(grad_threshold),
            float(input_scale),
            reset_code(reset_mechanism),
            delay,
            *fused(spike_grad),
        ),
    )


class _LayerOptions(NamedTuple):
    layer: Operators
    neurons: NeuronOptions
    geometry: Optional[List[int]]
    capacity: int
    rotate: bool
    window: Optional[List[int]]


class SparseLayer(torch.autograd.Function):
    """The autograd function of a layer: ids, values, counts, and ``dropped`` or, with a pool, ``neuron_counts``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        o: _LayerOptions,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        recurrent_weight: Optional[torch.Tensor],
        beta: torch.Tensor,
        threshold: torch.Tensor,
        ids: torch.Tensor,
        counts: torch.Tensor,
    ) -> Slots:
        n = o.neurons
        record = LayerForward(
            ids,
            values,
            counts,
            weight,
            bias,
            recurrent_weight,
            beta,
            threshold,
            o.geometry,  # type: ignore[arg-type]
            n.grad_threshold,
            n.input_scale,
            o.capacity,
            o.rotate,
            n.reset,
            n.delay,
            ctx.needs_input_grad[5],
            o.window,  # type: ignore[arg-type]
        )
        results = o.layer.forward(record, weight, values, ids, counts, bias, recurrent_weight, beta, threshold)
        shown, last = (
            (results.ids_out, results.dropped) if o.window is None else (results.source, results.neuron_counts)
        )
        saved = (values, weight, recurrent_weight, beta, threshold, ids, counts)
        ctx.save_for_backward(*saved, shown, results.counts_out, results.slot_mem, results.fired, results.mem)
        ctx.options, ctx.operator = o, o.layer.name
        assert last is not None
        return slot_results(ctx, (results.ids_out, results.values_out, results.counts_out, last))

    @staticmethod
    @once_differentiable(None)
    def backward(  # type: ignore[override]
        ctx: Any, _ids: None, grad: Optional[torch.Tensor], *_: None
    ) -> Tuple[Optional[torch.Tensor], ...]:
        if grad is None:
            return (None,) * 9
        saved = ctx.saved_tensors  # read once: torch.utils.checkpoint allows one access
        values, weight, recurrent_weight, beta, threshold, ids, counts, *out = saved
        ids_out, counts_out, slot_mem, _, _ = out
        o: _LayerOptions = ctx.options
        kernel = o.neurons.kernel
        if kernel is None:
            kernel = IDENTITY
            level = connection(weight, o.geometry).per_neuron(threshold)
            assert o.neurons.spike_grad is not None
            grad = through_spikes(o.neurons.spike_grad, slot_mem, level, ids_out, counts_out, grad)
        need = ctx.needs_input_grad[1:7]
        tensors = (grad.contiguous(), ids, values, counts, weight, recurrent_weight, beta, threshold)
        read = (o.geometry, o.neurons.input_scale, o.neurons.reset, o.neurons.delay)
        record = LayerBackward._make((*tensors, *read, *out, *kernel.plain(), *need))
        grads = o.layer.backward(record, weight, grad, *saved)
        return (None, *(g if needed else None for g, needed in zip(grads, need)), None, None)


def layer_apply(
    layer: Operators,
    spikes: SparseSpikes,
    connected: Connection,
    bias: Optional[torch.Tensor],
    neurons: LayerNeurons,
    *,
    recurrent_weight: Optional[torch.Tensor] = None,
    max_spikes: Optional[int] = None,
    overflow: str = "lowest",
    window: Optional[List[int]] = None,
) -> Slots:
    """Run :class:`SparseLayer` on checked arguments."""
    weight, geometry = connected.weight, connected.geometry
    capacity = capacity_argument(max_spikes, connected.neurons, weight)
    outputs: Slots = SparseLayer.apply(
        _LayerOptions(layer, neurons.options, geometry, capacity, overflow_code(overflow), window),
        spikes.values.to(weight.dtype),
        weight,
        bias,
        recurrent_weight,
        learnt_decay(neurons.beta),
        neurons.threshold,
        spikes.ids,
        spikes.counts,
    )
    return outputs


def spikes_of_current(
    current: torch.Tensor,
    bias: Optional[torch.Tensor],
    beta: Parameter,
    threshold: torch.Tensor,
    options: NeuronOptions,
    max_spikes: Optional[int],
    spike_grad: Optional[SpikeGrad],
    overflow: str,
) -> SparseSpikes:
    """Run a layer's neurons and the selection as two operators, for a backend without a fused layer.

    ``current``: weighted spikes ``[T, B, N]``. Parameters have one element or ``[N]``.
    """
    scale = options.input_scale
    current = delayed(current * scale if scale != 1 else current, options.delay)
    current = current if bias is None else current + bias
    # The selection applies the surrogate; the spikes of lif_sequence are not used.
    mechanism = list(RESET_MECHANISMS)[options.reset]
    _, mem = lif_sequence(current, beta=beta, threshold=threshold, reset_mechanism=mechanism)
    level = options.grad_threshold
    return select_spikes(mem, threshold, level, max_spikes, spike_grad=spike_grad, overflow=overflow)
