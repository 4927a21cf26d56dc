"""EventProp, the gradient of spike times, for neurons with a synaptic current: operator, reference, autograd."""

from typing import Any, List, NamedTuple, Optional, Tuple

import torch

from snnipu.ops._derivative import once_differentiable
from snnipu.ops._records import Operator
from snnipu.ops._slots import check_spikes, scatter
from snnipu.ops._sparse_currents import CurrentsBackward
from snnipu.ops._spike_gradient import at_slots
from snnipu.ops.connections import Connection, Convolution2d, Delayed, FullyConnected, connection
from snnipu.ops.delay_linear import OPERATORS as DELAY_LINEAR
from snnipu.ops.select_spikes import spike_values
from snnipu.ops.sparse_conv2d import OPERATORS as SPARSE_CONV2D
from snnipu.ops.sparse_linear import OPERATORS as SPARSE_LINEAR
from snnipu.spikes import SparseSpikes

_CURRENTS = {FullyConnected: SPARSE_LINEAR, Delayed: DELAY_LINEAR, Convolution2d: SPARSE_CONV2D}

_NO_GRADIENT_OF_VALUES = (
    'a loss reads the values of the spikes of a layer with gradient="eventprop", and only the times of these spikes '
    'have a gradient: use snnipu.functional.first_spike_times(spikes), layer.membranes(x), or gradient="surrogate"'
)


class Neurons(NamedTuple):
    """Parameters of neurons with a synaptic current, each with one element or ``[N]``; the reset is to zero or not."""

    alpha: torch.Tensor
    beta: torch.Tensor
    threshold: torch.Tensor
    resets_to_zero: bool


class EventPropBackward(NamedTuple):
    """Arguments of ``snnipu::eventprop_bwd``.

    Attributes:
        grad: gradient of the times of the spikes, ``[T, B, S]``, in the slots of ``ids`` and ``counts``.
        early: time by which a spike comes earlier for each unit of the membrane before its step, ``[T, B, S]``.
        late: the same for the membrane after the step.
        grad_mem: gradient of the membranes ``[T, B, N]``; None: zeros.
        alpha: decay of the current, in (0, 1], one element or ``[N]``; ``beta`` and ``threshold`` likewise.
        recurrent_weight: ``[N, N]``, a row for each neuron that receives the spikes of the step before; or None.
        neurons: N.
        need_change: compute ``change``.
    """

    grad: torch.Tensor
    ids: torch.Tensor
    counts: torch.Tensor
    early: torch.Tensor
    late: torch.Tensor
    grad_mem: Optional[torch.Tensor]
    alpha: torch.Tensor
    beta: torch.Tensor
    threshold: torch.Tensor
    recurrent_weight: Optional[torch.Tensor]
    neurons: int
    need_change: bool


class EventPropGradients(NamedTuple):
    """Results of ``snnipu::eventprop_bwd``.

    Attributes:
        grad_current: gradient of the synaptic currents, ``[T, B, N]``.
        change: ``grad_current`` of the next step minus that of this step, or empty.
    """

    grad_current: torch.Tensor
    change: torch.Tensor


def backward_reference(a: EventPropBackward) -> EventPropGradients:
    """Compute ``snnipu::eventprop_bwd`` in plain PyTorch; ``adjoint`` is the gradient of the membranes."""
    faster = -a.beta.log() * a.threshold  # rise of the membrane per step, after a reset minus before it
    times, early, late = (scatter(slots, a.ids, a.counts, a.neurons) for slots in (a.grad, a.early, a.late))
    grad_current = torch.empty_like(times)
    adjoint = after = change_after = times.new_zeros(times.shape[1:])
    for t in range(len(times) - 1, -1, -1):
        of_time = times[t] - faster * adjoint
        if a.recurrent_weight is not None:
            of_time = of_time + change_after @ a.recurrent_weight
        adjoint = adjoint - late[t] * of_time
        if a.grad_mem is not None:
            adjoint = adjoint + a.grad_mem[t]
        now = grad_current[t] = a.alpha * after + adjoint
        change_after, after = after - now, now
        adjoint = a.beta * adjoint - early[t] * of_time
    change = _earlier(grad_current, 1) - grad_current if a.need_change else grad_current.new_empty(0)
    return EventPropGradients(grad_current, change)


def _meta(a: EventPropBackward) -> EventPropGradients:
    grad_current = a.early.new_empty((*a.ids.shape[:2], a.neurons))
    return EventPropGradients(grad_current, grad_current.new_empty(grad_current.shape if a.need_change else 0))


OPERATOR = Operator("eventprop_bwd", EventPropBackward, EventPropGradients)
OPERATOR.define(backward_reference, _meta)


def _earlier(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Return ``x`` ``[T, ...]`` moved ``steps`` steps towards the begin, with zeros last."""
    return torch.cat([x[steps:], torch.zeros_like(x[:steps])]) if steps else x


def crossings(
    mem: torch.Tensor, spikes: SparseSpikes, neurons: Neurons
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    r"""Return ``early`` and ``late`` of :class:`EventPropBackward`, and the times of the spikes, each in its slot.

    A spike crosses its threshold at the part :math:`\varphi` of its step, by linear interpolation. Its membrane then
    rises by :math:`i_t \alpha^\varphi / \sqrt{\alpha \beta} + \theta \ln \beta` per step. A bound of half of the step's
    mean rise limits the gradient. ``early`` and ``late`` divide the inverse between both ends of the step.
    """
    ids, (_, batch, capacity) = spikes.ids, spikes.ids.shape
    is_spike = torch.arange(capacity, device=ids.device) < spikes.counts[..., :1]
    slots = is_spike.flatten().nonzero().squeeze(1)
    spiking = ids.flatten().index_select(0, slots)
    alpha, beta, threshold = (at_slots(each, spiking) for each in neurons[:3])
    rows = torch.div(slots, max(capacity, 1), rounding_mode="floor")
    places = rows * mem.shape[2] + spiking
    places_before = places - batch * mem.shape[2]  # negative in the first step
    mem = mem.flatten()
    now, before = mem.index_select(0, places), mem.index_select(0, places_before.clamp(min=0))
    before = before.masked_fill(places_before < 0, 0)
    current = now - beta * before
    if not neurons.resets_to_zero:
        by_reset = threshold * (before > threshold)
        before, current = before - by_reset, current + by_reset
    crosses = before <= threshold  # a neuron may be above its threshold even after a reset
    mean_rise = (now - before).masked_fill(~crosses, 1)
    part = crosses * (threshold - before) / mean_rise
    rise = current * (part * alpha.log()).exp() / (alpha * beta).sqrt() + threshold * beta.log()
    per_rise = crosses / torch.maximum(rise, mean_rise / 2)
    times = torch.div(rows, max(batch, 1), rounding_mode="floor") + part

    def in_slots(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(ids.numel()).scatter_(0, slots, values).reshape(ids.shape)

    return in_slots((1 - part) * per_rise), in_slots(part * per_rise), in_slots(times)


class EventLayer(NamedTuple):
    """A layer for EventProp, in the dtype of its membranes; its spikes arrive ``delay`` steps after those of ``x``."""

    x: SparseSpikes
    connection: Connection
    bias: Optional[torch.Tensor]
    recurrent_weight: Optional[torch.Tensor]
    neurons: Neurons
    input_scale: float
    delay: int


class _Options(NamedTuple):
    geometry: Optional[List[int]]
    input_scale: float
    delay: int


class _EventProp(torch.autograd.Function):
    """The gradient of a layer's spike times, or of its membranes ``mem``, whose forward pass has been computed."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        options: _Options,
        times: Optional[torch.Tensor],
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        recurrent_weight: Optional[torch.Tensor],
        mem: Optional[torch.Tensor],
        *tensors: Any,
    ) -> Any:
        ctx.save_for_backward(weight, recurrent_weight, *tensors)
        ctx.options, ctx.from_mem = options, mem is not None
        ctx.set_materialize_grads(False)
        if mem is not None:
            return mem
        ids, counts, _, _, spike_times = tensors[4:9]
        return spike_values(ids, counts, spike_times.dtype), spike_times

    @staticmethod
    @once_differentiable("EventProp")
    def backward(  # type: ignore[override]
        ctx: Any, *grads: Optional[torch.Tensor]
    ) -> Tuple[Optional[torch.Tensor], ...]:
        weight, recurrent_weight, lags, *spikes, ids, counts, early, late, _, alpha, beta, threshold = ctx.saved_tensors
        o: _Options = ctx.options
        need_times, need_weight, need_bias, need_recurrent = ctx.needs_input_grad[1:5]
        nothing = (None,) * 13
        if not ctx.from_mem and grads[0] is not None:
            raise RuntimeError(_NO_GRADIENT_OF_VALUES)
        if grads[-1] is None:
            return (None, None, None, None, None, *nothing)
        grad_mem = grads[0].contiguous() if ctx.from_mem and grads[0] is not None else None
        grad = early if ctx.from_mem else grads[-1].contiguous()
        connected = connection(weight, o.geometry, lags=lags)
        feedback = None if recurrent_weight is None else recurrent_weight * o.input_scale
        tensors = (grad, ids, counts, early, late, grad_mem, alpha, beta, threshold, feedback)
        record = EventPropBackward(*tensors, connected.neurons, need_times)
        grad_current, change = OPERATOR(record, *tensors)

        def product(connected: Connection, x: Any, grad: torch.Tensor, steps: int, need_values: bool) -> Any:
            """Return the gradient of the values of ``x``, or of the weight, whose spikes arrive ``steps`` later."""
            early = _earlier(grad, steps)
            early = early * o.input_scale if o.input_scale != 1 else early
            lags = connected.lags if isinstance(connected, Delayed) else None
            tensors, needs = (early, *x, connected.weight), (need_values, not need_values, False)
            a = CurrentsBackward._make((*tensors, connected.geometry, *needs, None, lags))
            gradients = _CURRENTS[type(connected)].backward(a, *tensors, lags)
            return gradients.grad_values if need_values else gradients.grad_weight

        grad_times = product(connected, spikes, change, o.delay, True) * spikes[1] if need_times else None
        grad_weight = product(connected, spikes, grad_current, o.delay, False) if need_weight else None
        grad_bias = connected.per_parameter(grad_current) if need_bias else None
        grad_recurrent = None
        if need_recurrent:
            own = (ids, spike_values(ids, counts, grad_current.dtype), counts)
            grad_recurrent = product(FullyConnected(recurrent_weight), own, grad_current, 1, False)
        return (None, grad_times, grad_weight, grad_bias, grad_recurrent, *nothing)


def _apply(layer: EventLayer, mem: Optional[torch.Tensor], *out: torch.Tensor) -> Any:
    x, connected = layer.x, layer.connection
    if x.times is None and x.values.requires_grad:
        raise ValueError(
            "x must be spikes without a gradient of their values, such as an input or the spikes of a layer with "
            'gradient="eventprop" as it returned them: EventProp has only a gradient of spike times, which masks and '
            "parts of the steps lack"
        )
    weight, geometry = connected.weight, connected.geometry
    spikes = (x.ids, x.values.detach().to(weight.dtype), x.counts)
    options = _Options(geometry, layer.input_scale, layer.delay)
    lags = connected.lags if isinstance(connected, Delayed) else None
    learnt = (weight, layer.bias, layer.recurrent_weight)
    return _EventProp.apply(options, x.times, *learnt, mem, lags, *spikes, *out, *layer.neurons[:3])


def spikes_with_times(layer: EventLayer, mem: torch.Tensor, spikes: SparseSpikes) -> SparseSpikes:
    """Return ``spikes``, selected from the membranes ``mem`` ``[T, B, N]`` of a layer, with times that have a gradient.

    ``mem`` is not kept.
    """
    values, times = _apply(layer, None, spikes.ids, spikes.counts, *crossings(mem, spikes, layer.neurons))
    result = spikes._replace(values=values)
    result.times = times
    return result


def membranes_with_gradient(layer: EventLayer, mem: torch.Tensor) -> torch.Tensor:
    """Return the membranes ``mem`` ``[T, B, N]`` of a layer that does not spike, with a gradient.

    Raises:
        ValueError: a neuron spikes. A loss would change by steps at its resets.
    """
    if bool((mem > layer.neurons.threshold).any()):
        raise ValueError(
            'membranes: the neurons of a layer with gradient="eventprop" must not spike if a loss reads their '
            "membranes: give the layer a threshold that they do not reach, such as 1e9"
        )
    x, rows = layer.x, mem.shape[:2]
    none = x.ids.new_zeros((*rows, 0)), x.counts.new_zeros((*rows, 2)), *[mem.new_zeros((*rows, 0))] * 3
    result: torch.Tensor = _apply(layer, mem, *none)
    return result


def first_spike_times(spikes: SparseSpikes) -> torch.Tensor:
    """Return the time of the first spike of each neuron in steps, ``[B, N]``, with the gradient of EventProp.

    A spike of step ``t`` has a time between ``t`` and ``t + 1``, by linear interpolation of its membrane. A neuron
    without a spike has the time ``T``, the number of steps, and no gradient.

    Args:
        spikes: SparseSpikes of a layer with ``gradient="eventprop"``.

    Raises:
        TypeError, ValueError: ``spikes`` are not SparseSpikes, or spikes of another layer.

    Source: Wunderlich & Pehle, "Event-based backpropagation can compute exact gradients for spiking neural networks",
    Scientific Reports 11, 2021.
    """
    spikes = check_spikes("spikes", spikes)
    if spikes.times is None:
        raise ValueError(
            'spikes must be those of a layer with gradient="eventprop" as it returned them, got spikes without times, '
            "as masks and parts of the steps are"
        )
    batch, neurons = spikes.batch_size, spikes.num_neurons
    is_spike = torch.arange(spikes.capacity, device=spikes.device) < spikes.counts[..., :1]
    samples = torch.arange(batch, device=spikes.device)[:, None]
    cells = torch.where(is_spike, samples * neurons + spikes.ids, batch * neurons)
    steps = torch.arange(spikes.num_steps, device=spikes.device)[:, None, None].expand_as(cells)
    first = steps.new_full((batch * neurons + 1,), spikes.num_steps)
    first = first.scatter_reduce(0, cells.flatten(), steps.flatten(), "amin")
    is_first = is_spike & (first[cells] == steps)
    times = spikes.times.new_full((batch * neurons,), float(spikes.num_steps))
    return times.index_put((cells[is_first],), spikes.times[is_first]).reshape(batch, neurons)
