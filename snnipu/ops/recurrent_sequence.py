"""Neurons whose spikes come back through a linear layer or a convolution, over a sequence: schema, autograd, reference.

A neuron with its last spikes as a state takes the connection's output in their place, with a ``V`` of 1. To any other's
input the output is added; the operator's states are then the neuron's with the spikes in front. What runs step by step
is the connection's product and the fused step, without autograd; the backward pass walks back by the adjoint, and
the connection's gradients are one product over all steps.
"""

from functools import partial
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.nn import functional as F

from snnipu import surrogate as surrogates
from snnipu._layout import fits, in_order, layout, memory_order, permuted, upstream_rows
from snnipu.ops import _neurons
from snnipu.ops._arguments import Parameter, compute_dtype, state_argument
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._records import define
from snnipu.ops._reference import ReferenceStep, StepBackward, Tensors, sum_to_parameter
from snnipu.ops.neuron_sequence import Results, kernel_arguments
from snnipu.surrogate import Kernel, SpikeGrad

# The parameter that one-to-one neurons multiply their spikes by, and the state it multiplies.
STRENGTH, SPIKES = "V", 0
# PyTorch's own tensors are aligned so: a product's rounding may depend on where its rows lie.
_ALIGNMENT = 64

MadeForward = Tuple[torch.Tensor, List[torch.Tensor], List[torch.Tensor], torch.Tensor]
MadeBackward = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, List[torch.Tensor], List[torch.Tensor]]


class Connection(NamedTuple):
    """``nn.Linear`` (no ``geometry``) or ``nn.Conv2d`` of stride 1: padding and dilation, two each, and groups."""

    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    geometry: Sequence[int] = ()
    # The dimensions of a step in the order in which they lie in memory; empty: their own.
    order: Sequence[int] = ()

    def __call__(self, spk: torch.Tensor) -> torch.Tensor:
        """A step's output, for the spikes of the step before; both as they lie in memory."""
        if spk.data_ptr() % _ALIGNMENT:
            spk = spk.clone()
        return self._laid(self.product(self._seen(spk)))

    def product(self, spk: torch.Tensor) -> torch.Tensor:
        """The layer's own call."""
        if self.geometry:
            g = self.geometry
            return F.conv2d(spk, self.weight, self.bias, 1, tuple(g[:2]), tuple(g[2:4]), g[4])
        return F.linear(spk, self.weight, self.bias)

    def of_zeros(self, shape: Sequence[int]) -> Optional[torch.Tensor]:
        """A step's output for no spikes; None: zeros."""
        if self.bias is None:
            return None
        own = self.bias.reshape(-1, 1, 1) if self.geometry else self.bias
        seen = [shape[self.order.index(dim)] for dim in range(len(shape))] if self.order else shape
        return self._laid(own.expand(seen))

    def grad_spk(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of the spikes, from that of the output."""
        grad = self._seen(grad)
        if not self.geometry:
            return self._laid((grad.reshape(-1, grad.shape[-1]) @ self.weight).reshape(grad.shape))
        made = self._convolution(grad, grad, (True, False, False))[0]
        assert made is not None
        return self._laid(made.reshape(grad.shape))

    def grad_own(self, grad: torch.Tensor, spk: torch.Tensor, weight: bool, bias: bool) -> Tensors:
        """Gradients of weight and bias, from those of several steps' outputs."""
        grad, spk = self._seen(grad), self._seen(spk)
        if self.geometry:
            made = self._convolution(grad, spk, (False, weight, False))[1] if weight else None
            return made, grad.sum([dim for dim in range(grad.dim()) if dim != grad.dim() - 3]) if bias else None
        rows = grad.reshape(-1, grad.shape[-1])
        made = rows.t() @ spk.reshape(-1, spk.shape[-1]) if weight else None
        return made, rows.sum(0) if bias else None

    def _convolution(self, grad: torch.Tensor, spk: torch.Tensor, mask: Tuple[bool, bool, bool]) -> Tensors:
        maps = (-1, *grad.shape[-3:])
        g = self.geometry
        made: Tensors = torch.ops.aten.convolution_backward(
            grad.reshape(maps), spk.reshape(maps), self.weight, None, [1, 1], g[:2], g[2:4], False, [0, 0], g[4], mask
        )
        return made

    def _seen(self, rows: torch.Tensor) -> torch.Tensor:
        """``rows`` of one or several steps with the dimensions in their own order."""
        if not self.order:
            return rows
        return in_order(rows, sorted(range(len(self.order)), key=self.order.__getitem__))

    def _laid(self, row: torch.Tensor) -> torch.Tensor:
        return (in_order(row, self.order) if self.order else row).contiguous()


class ReferenceSteps:
    """Single steps of a neuron in plain PyTorch, as :class:`snnipu.backends.neurons.Steps`."""

    def __init__(self, neuron: str, variant: int, x: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        self.step = ReferenceStep(neuron, variant, parameters, x.shape, x.dtype)
        self.names = _neurons.find(neuron).parameters
        self.kernel = Kernel(0, 0.0, 0.0)
        self.grad_parameters: Tensors = ()

    def forward(self, x: torch.Tensor, before: Tensors, spk: torch.Tensor, after: Tensors) -> None:
        _write(self.step(x, before), (spk, *after))

    def differentiate(self, surrogate: int, surrogate_a: float, surrogate_b: float, grad_parameters: Tensors) -> None:
        self.kernel, self.grad_parameters = Kernel(surrogate, surrogate_a, surrogate_b), grad_parameters

    def backward(self, a: StepBackward) -> None:
        step, missing = self.step, [None] * len(a.before)
        output = step.step.output_state
        outside = step.filled([a.grad_spk if place == output else grad for place, grad in enumerate(a.grad_states)])
        made, carry, sums = step.adjoint(
            a.x,
            a.before,
            a.after if all(state is not None for state in a.after) else missing,
            a.grad_spk,
            [carried + grad for carried, grad in zip(step.filled(a.grad_after), outside)],
            missing,
            surrogate=partial(surrogates.surrogate_gradient, self.kernel),
        )
        _write((made, *carry), (a.grad_x, *a.grad_before))
        for name, to in zip(self.names, self.grad_parameters):
            if to is not None:
                to.copy_(sum_to_parameter(sums.get(name, step.zero), to))


def _write(made: Sequence[torch.Tensor], to: Tensors) -> None:
    for target, value in zip(to, made):
        if target is not None:
            target.copy_(value)


def _by_steps(*arguments: Any) -> None:
    """For :class:`Means`: every step is a call of its own."""


class Means(NamedTuple):
    """What the operator's loop is made with."""

    steps: Callable[..., Any]  # ReferenceSteps, or what has its methods
    empty: Callable[[torch.Tensor, Sequence[int]], torch.Tensor]  # ``tensor.new_empty(shape)``
    used: Callable[..., None]  # told the results
    # All steps in one call: given arguments and results it returns the states after the last step, or their gradients
    # before the first; None: not of these arguments.
    forward: Callable[..., Optional[Tensors]] = _by_steps
    backward: Callable[..., Optional[Tensors]] = _by_steps


_REFERENCE = Means(ReferenceSteps, torch.Tensor.new_empty, lambda *made: None)


class ForwardArguments(NamedTuple):
    """Of ``neuron_recurrent_fwd``, in the order of its schema."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    geometry: Sequence[int]
    order: Sequence[int]
    initial: Tensors
    parameters: Sequence[torch.Tensor]
    neuron: str
    variant: int
    num_steps: Optional[int]
    store: Sequence[bool]
    store_incoming: bool
    store_final: bool


class BackwardArguments(NamedTuple):
    """Of ``neuron_recurrent_bwd``, in the order of its schema."""

    grad_spk: Optional[torch.Tensor]
    grad_states: Tensors
    grad_final: Tensors
    x: Optional[torch.Tensor]
    spk: torch.Tensor
    states: Sequence[torch.Tensor]
    incoming: torch.Tensor
    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    geometry: Sequence[int]
    order: Sequence[int]
    initial: Tensors
    parameters: Sequence[torch.Tensor]
    neuron: str
    variant: int
    num_steps: Optional[int]
    surrogate: int
    surrogate_a: float
    surrogate_b: float
    need_weight: bool
    need_bias: bool
    need_initial: Sequence[bool]
    need_parameters: Sequence[bool]


def adds_to_input(neuron: str) -> bool:
    """Whether the connection's output is added to the neuron's input."""
    return "spk" not in _neurons.find(neuron).states


def _forward_steps(
    means: Means,
    a: ForwardArguments,
    initial: Tensors,
    spk: torch.Tensor,
    states: Sequence[torch.Tensor],
    incoming: torch.Tensor,
) -> Tensors:
    """Write what the operator gives, step by step; returns the states after the last one."""
    adds = adds_to_input(a.neuron)
    steps, step_shape, _ = layout(a.x, a.num_steps)
    like, before = a.parameters[0], list(initial)
    connection = Connection(a.weight, a.bias, a.geometry, a.order)
    # Two rows in turn for states that nobody asks for.
    spare = [[] if stored else [like.new_empty(step_shape) for _ in range(2)] for stored in a.store]
    rows = [
        list(state.unbind()) if stored else two * (steps // 2 + 1) for state, stored, two in zip(states, a.store, spare)
    ]
    spikes, arriving = spk.unbind(), incoming.unbind() if a.store_incoming else ()
    currents = a.x.unbind() if a.num_steps is None else [a.x] * steps
    one = means.steps(a.neuron, a.variant, currents[0], a.parameters)
    start = a.initial[SPIKES]
    last = None if start is None else start.to(a.x.dtype).contiguous()
    for t, current in enumerate(currents):
        come = connection.of_zeros(step_shape) if last is None else connection(last)
        if adds:
            come = current = current if come is None else current + come
        elif come is not None and come.dtype != like.dtype:
            come = come.to(like.dtype)
        if a.store_incoming:
            arriving[t].zero_() if come is None else arriving[t].copy_(come)
        before[SPIKES] = come
        after = [None if place == SPIKES else row[t] for place, row in enumerate(rows)]
        last = spikes[t]
        one.forward(current.contiguous(), before[adds:], last, after[adds:])
        before = list(after)
    before[SPIKES] = spikes[-1].to(like.dtype)
    return before


def forward_by(means: Means, *arguments: Any) -> MadeForward:
    a = ForwardArguments(*arguments)
    steps, step_shape, shape = layout(a.x, a.num_steps)
    like = a.parameters[0]
    spk = means.empty(a.x, shape)
    states = [means.empty(like, shape) if stored else like.new_empty(0) for stored in a.store]
    incoming = means.empty(like, shape) if a.store_incoming else like.new_empty(0)
    before: Tensors = [None if state is None else state.contiguous() for state in a.initial]
    if steps and step_shape.numel():
        last = means.forward(a, before, spk, states, incoming)
        before = _forward_steps(means, a, before, spk, states, incoming) if last is None else last
    final = []
    if a.store_final:
        final = [like.new_zeros(step_shape) if state is None else state.clone() for state in before]
    means.used(spk, *states, incoming)
    return spk, states, final, incoming


def _backward_steps(
    means: Means, a: BackwardArguments, grad_final: Tensors, grad_rows: torch.Tensor, total: Tensors
) -> Tensors:
    """Write the rows of x's gradient, step by step, and add the parameters'; returns those of the first states."""
    adds = adds_to_input(a.neuron)
    steps, step_shape = a.spk.shape[0], a.spk.shape[1:]
    like, places, carry = a.parameters[0], range(len(a.states)), list(grad_final)
    connection = Connection(a.weight, a.bias, a.geometry, a.order)
    part = [None if sums is None else torch.empty_like(sums) for sums in total]
    one = means.steps(a.neuron, a.variant, a.spk[0], a.parameters)
    one.differentiate(a.surrogate, a.surrogate_a, a.surrogate_b, part)
    upstream = [upstream_rows(grad, steps) for grad in (a.grad_spk, *a.grad_states)]
    kept = [state.unbind() if state.numel() else None for state in a.states]
    arriving = a.incoming.unbind() if a.incoming.numel() else [None] * steps
    currents = [a.x] * steps if a.x is None or a.num_steps is not None else a.x.unbind()
    spikes, gradients = a.spk.unbind(), grad_rows.unbind()
    again = a.spk.dtype != like.dtype  # 16 bit: of states that are wider than the spikes
    spare = [[None if s == SPIKES else like.new_empty(step_shape) for s in places] for _ in range(2)]
    initial = [None if state is None else state.contiguous() for state in a.initial]
    for t in range(steps - 1, -1, -1):
        before = [initial[s] if t == 0 else (None if rows is None else rows[t - 1]) for s, rows in enumerate(kept)]
        before[SPIKES] = arriving[t]
        after = [None if again else (spikes[t] if rows is None else rows[t]) for rows in kept]
        current = arriving[t] if adds else currents[t]
        grad_spk, come = upstream[0][t], carry[SPIKES]
        if adds:  # input and spikes have the input's dtype, what is kept of them the states'
            current = None if current is None else current.to(a.spk.dtype)
        if adds and come is not None:
            come = come.to(a.spk.dtype)
            grad_spk = come if grad_spk is None else grad_spk + come
        one.backward(
            StepBackward(
                spikes[t] if current is None else current.contiguous(),  # not read, or needed
                grad_spk,
                before[adds:],
                after[adds:],
                [rows[t] for rows in upstream[1 + adds :]],
                carry[adds:],
                gradients[t],
                spare[t % 2][adds:],
            )
        )
        carry = list(spare[t % 2])
        if t or a.need_initial[SPIKES]:
            carry[SPIKES] = connection.grad_spk(gradients[t]).to(like.dtype)
        for sums, own in zip(total, part):
            if sums is not None and own is not None:
                sums.add_(own)
    return carry


def backward_by(means: Means, *arguments: Any) -> MadeBackward:
    a = BackwardArguments(*arguments)
    steps, step_shape = a.spk.shape[0], a.spk.shape[1:]
    like = a.parameters[0]
    connection = Connection(a.weight, a.bias, a.geometry, a.order)
    grad_rows = means.empty(a.spk, a.spk.shape)
    carry: Tensors = [None if grad is None else grad.contiguous() for grad in a.grad_final or [None] * len(a.states)]
    total = [torch.zeros_like(p) if need else None for p, need in zip(a.parameters, a.need_parameters)]
    grad_weight = torch.zeros_like(a.weight) if a.need_weight else a.weight.new_empty(0)
    grad_bias = torch.zeros_like(a.bias) if a.need_bias and a.bias is not None else a.weight.new_empty(0)
    first = a.initial[SPIKES]
    if steps and step_shape.numel():
        before = means.backward(a, carry, grad_rows, total)
        carry = _backward_steps(means, a, carry, grad_rows, total) if before is None else before
        if a.need_weight and steps > 1:
            made = connection.grad_own(grad_rows[1:], a.spk[:-1], True, False)[0]
            assert made is not None
            grad_weight = made
        if a.need_weight and first is not None:
            made = connection.grad_own(grad_rows[:1], first.to(a.spk.dtype).unsqueeze(0), True, False)[0]
            assert made is not None
            grad_weight = grad_weight + made
        if a.need_bias:
            made = connection.grad_own(grad_rows, a.spk, False, True)[1]
            assert made is not None
            grad_bias = made
    if a.num_steps is not None:
        grad_rows = grad_rows.sum(0)
    empty = like.new_empty(0)
    zero = [like.new_zeros(step_shape) if need and grad is None else grad for need, grad in zip(a.need_initial, carry)]
    return (
        grad_rows,
        grad_weight,
        grad_bias,
        [grad.clone() if need and grad is not None else empty for need, grad in zip(a.need_initial, zero)],
        [empty if sums is None else sums for sums in total],
    )


neuron_recurrent_fwd_reference = partial(forward_by, _REFERENCE)
neuron_recurrent_bwd_reference = partial(backward_by, _REFERENCE)


def _fwd_meta(*arguments: Any) -> MadeForward:
    a = ForwardArguments(*arguments)
    _, step_shape, shape = layout(a.x, a.num_steps)
    like = a.parameters[0]
    return (
        a.x.new_empty(shape),
        [like.new_empty(shape if stored else 0) for stored in a.store],
        [like.new_empty(step_shape) for _ in a.store] if a.store_final else [],
        like.new_empty(shape if a.store_incoming else 0),
    )


def _bwd_meta(*arguments: Any) -> MadeBackward:
    a = BackwardArguments(*arguments)
    like, step_shape = a.parameters[0], a.spk.shape[1:]
    return (
        a.spk.new_empty(a.spk.shape if a.num_steps is None else step_shape),
        a.weight.new_empty(a.weight.shape if a.need_weight else 0),
        a.weight.new_empty(a.bias.shape if a.need_bias and a.bias is not None else 0),
        [like.new_empty(step_shape if need else 0) for need in a.need_initial],
        [like.new_empty(p.shape if need else 0) for p, need in zip(a.parameters, a.need_parameters)],
    )


_fwd = define(
    neuron_recurrent_fwd_reference,
    _fwd_meta,
    "(Tensor spk, Tensor[] states, Tensor[] final, Tensor incoming)",
    ForwardArguments,
    "neuron_recurrent_fwd",
)
_bwd = define(
    neuron_recurrent_bwd_reference,
    _bwd_meta,
    "(Tensor grad_x, Tensor grad_weight, Tensor grad_bias, Tensor[] grad_initial, Tensor[] grad_parameters)",
    BackwardArguments,
    "neuron_recurrent_bwd",
)


class _Options(NamedTuple):
    neuron: str
    variant: int
    num_steps: Optional[int]
    kernel: Kernel
    asked: Tuple[bool, ...]
    store_final: bool
    reads: Optional[_neurons.Reads]  # None: nothing requires a gradient
    geometry: Tuple[int, ...]
    order: Tuple[int, ...]


class RecurrentSequence(torch.autograd.Function):
    """Forward and backward operator as one differentiable function: spikes, the states asked for, the final states.

    Kept for the backward pass: the spikes, the states that the adjoint reads, and, only where it computes a membrane
    again (reset at once, 16 bit), the input and what arrived through the connection.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        o: _Options,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        *tensors: Optional[torch.Tensor],
    ) -> Any:
        count = len(o.asked)
        initial, parameters = tensors[:count], tensors[count:]
        reads = o.reads or _neurons.Reads(0, 0, False)
        adds = adds_to_input(o.neuron)
        read = (reads.before | reads.after) << adds
        stores_incoming = reads.x if adds else bool(reads.before >> SPIKES & 1)
        kept = [read >> place & 1 for place in range(count)]
        store = [place != SPIKES and bool(o.asked[place] or kept[place]) for place in range(count)]
        spk, states, final, incoming = _fwd(
            x,
            weight,
            bias,
            o.geometry,
            o.order,
            initial,
            parameters,
            o.neuron,
            o.variant,
            o.num_steps,
            store,
            stores_incoming,
            o.store_final,
        )
        ctx.options = o
        ctx.set_materialize_grads(False)
        if o.reads is not None:
            ctx.save_for_backward(
                x if reads.x and not adds else None,
                spk,
                incoming if stores_incoming else None,
                weight,
                bias,
                *(state if store[place] and kept[place] else None for place, state in enumerate(states)),
                *initial,
                *(p.clone() if p is not None else None for p in parameters),
            )
        asked = [state for state, wanted in zip(states, o.asked) if wanted]
        return (spk, *(state.to(x.dtype) for state in asked), *final)

    @staticmethod
    @once_differentiable("neuron_recurrent")
    def backward(ctx: Any, grad_spk: Optional[torch.Tensor], *others: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        o: _Options = ctx.options
        x, spk, incoming, weight, bias, *tensors = ctx.saved_tensors
        count = len(o.asked)
        states, initial, parameters = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        if grad_spk is None and all(grad is None for grad in others):
            return (None,) * (4 + count + len(parameters))
        rest = iter(others)
        grad_states = [next(rest) if asked else None for asked in o.asked]
        grad_final = list(rest)
        need_weight, need_bias, *need = ctx.needs_input_grad[2:]
        empty = parameters[0].new_empty(0)
        grad_x, grad_weight, grad_bias, grad_initial, grad_parameters = _bwd(
            grad_spk,
            grad_states,
            grad_final,
            x,
            spk,
            [empty if state is None else state for state in states],
            empty if incoming is None else incoming,
            weight,
            bias,
            o.geometry,
            o.order,
            initial,
            parameters,
            o.neuron,
            o.variant,
            o.num_steps,
            o.kernel.id,
            o.kernel.a,
            o.kernel.b,
            need_weight,
            need_bias,
            need[:count],
            need[count:],
        )
        own = [grad_weight if need_weight else None, grad_bias if need_bias else None]
        gradients = [g if wanted else None for g, wanted in zip([*grad_initial, *grad_parameters], need)]
        return (None, grad_x, *own, *gradients)


def recurrent_apply(
    neuron: str,
    x: torch.Tensor,
    states: Sequence[Optional[torch.Tensor]],
    parameters: Mapping[str, Parameter],
    connection: Connection,
    *,
    options: Mapping[str, Any],
    num_steps: Optional[int] = None,
    spike_grad: Optional[SpikeGrad] = None,
    store: Optional[Sequence[bool]] = None,
    need_final: bool = False,
) -> Results:
    """:func:`~snnipu.ops.neuron_sequence.neuron_apply` of a neuron whose spikes come back through ``connection``.

    ``neuron`` is a one-to-one neuron, with the spikes as its first state; its ``V`` is not among ``parameters``. Or any
    other, whose input the connection's output is added to: then the spikes are the first of ``states`` all the same.
    """
    step_shape = layout(x, num_steps)[1]
    known = surrogates.as_surrogate(spike_grad)
    if known is None or known.kernel is None:
        raise TypeError(f"spike_grad must be a surrogate of snnipu or snnTorch, got {spike_grad!r}")
    _check_connection(connection, x, step_shape)
    plan = _neurons.plan(neuron, options)
    adds = adds_to_input(neuron)
    if not adds:
        parameters = {**parameters, STRENGTH: 1.0}
    kept = [True] * len(states) if store is None else list(store)
    order = memory_order(x, num_steps) or ()
    if not all(fits(argument, step_shape) for argument in (*states, *parameters.values())):
        order = ()
    if order:
        # Neurons are taken as they lie; the connection sees them as they are.
        x = in_order(x, order)
        step_shape = layout(x, num_steps)[1]
        states = [permuted(state, order) for state in states]
        parameters = {name: permuted(value, order) for name, value in parameters.items()}
    own, values, _ = kernel_arguments(plan, x, step_shape, states[adds:], parameters)
    if adds:
        spikes = states[SPIKES]
        own.insert(SPIKES, None if spikes is None else state_argument("spk", spikes, step_shape, x))
    asked = tuple(bool(stored) and place != SPIKES for place, stored in enumerate(kept))
    taken = (x, connection.weight, connection.bias, *own, *values)
    reads = None
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in taken):
        reads = plan.reads
        for value, needs in zip(values, plan.reads_for):
            reads = reads | needs if value.requires_grad else reads
        if x.dtype != compute_dtype(x.dtype):
            # States are wider than what is stored of them.
            reads = _neurons.Reads((1 << len(states)) - 1, 0, True)
    made = RecurrentSequence.apply(
        _Options(
            neuron,
            plan.variant,
            num_steps,
            known.kernel,
            asked,
            need_final,
            reads,
            tuple(connection.geometry),
            tuple(order),
        ),
        *taken,
    )
    if order:
        back = sorted(range(len(order)), key=order.__getitem__)
        made = [in_order(part, back) for part in made]
    rest = iter(made[1:])
    stored_states = [next(rest) if wanted else None for wanted in asked]
    if kept[SPIKES]:
        stored_states[SPIKES] = made[0]
    return Results(made[0], stored_states, list(rest) if need_final else None)


def _check_connection(connection: Connection, x: torch.Tensor, step_shape: torch.Size) -> None:
    weight = connection.weight
    if weight.dtype != x.dtype or weight.device != x.device:
        raise TypeError(
            f"x must have the dtype and the device of recurrent.weight, {weight.dtype} on {weight.device}, got "
            f"{x.dtype} on {x.device}"
        )
    if not connection.geometry:
        if tuple(weight.shape) != (step_shape[-1:].numel(),) * 2 or not step_shape:
            raise ValueError(
                f"x must have steps of shape [..., {weight.shape[1]}], the size of the recurrent layer, got "
                f"{tuple(step_shape)}"
            )
        return
    channels, (kernel, padding, dilation) = weight.shape[0], _geometry(connection)
    kept = all(2 * p == d * (k - 1) for k, p, d in zip(kernel, padding, dilation))
    if len(step_shape) not in (3, 4) or step_shape[-3] != channels or not kept:
        raise ValueError(
            f"x must have steps of shape [B, {channels}, H, W], and the recurrent convolution must keep it; got "
            f"{tuple(step_shape)} and a kernel of {tuple(kernel)} with padding {tuple(padding)}"
        )


def _geometry(connection: Connection) -> Tuple[Sequence[int], Sequence[int], Sequence[int]]:
    return connection.weight.shape[-2:], connection.geometry[:2], connection.geometry[2:4]
