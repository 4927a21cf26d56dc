"""Neurons with feedback through a linear layer or a convolution, over a sequence: schema, autograd, reference.

The spikes of a step go through the recurrent connection into the next step. If the neuron has a state ``spk``, the
connection's output replaces that state, with a ``V`` of 1. Else the output is added to the neuron's input, and the
operator's states are the spikes followed by the neuron's states.

The forward pass is a loop over the connection's product and the fused step, without autograd. The backward pass is a
loop over the adjoint; the gradients of the connection's weights are one product over all steps.
"""

from functools import partial
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.nn import functional as F

from snnipu import surrogate as surrogates
from snnipu._layout import layout, permute_step, upstream_rows
from snnipu.ops import _neurons
from snnipu.ops._arguments import Parameter, compute_dtype, state_argument
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._records import define
from snnipu.ops._reference import ReferenceStep, StepBackward, Tensors, sum_to_parameter
from snnipu.ops.neuron_sequence import Results, is_silent, kernel_arguments, results_of
from snnipu.surrogate import Kernel

# The parameter that one-to-one neurons multiply their spikes by, and the index of the spikes among the states.
STRENGTH, SPIKES = "V", 0
# Alignment of PyTorch's tensors in bytes. The rounding of a product may depend on the alignment of its rows.
_ALIGNMENT = 64

ForwardResults = Tuple[torch.Tensor, List[torch.Tensor], List[torch.Tensor], torch.Tensor]
BackwardResults = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, List[torch.Tensor], List[torch.Tensor]]


class RecurrentConnection(NamedTuple):
    """A recurrent ``nn.Linear``, or a ``nn.Conv2d`` of stride 1.

    Attributes:
        weight: weight of the layer.
        bias: bias or None.
        geometry: padding and dilation of a convolution, two each, and groups; empty: a linear layer.
        order: the dimensions of a step in the order of memory, see ``memory_order``; empty: contiguous.
    """

    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    geometry: Sequence[int] = ()
    order: Sequence[int] = ()

    def __call__(self, spk: torch.Tensor) -> torch.Tensor:
        """Return the output for the spikes of a step; both have their dimensions in the order of memory."""
        if spk.data_ptr() % _ALIGNMENT:
            spk = spk.clone()
        return self._to_memory_order(self.product(self._to_layer_order(spk)))

    def product(self, spk: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for spikes in the layer's order of dimensions."""
        if self.geometry:
            g = self.geometry
            return F.conv2d(spk, self.weight, self.bias, 1, tuple(g[:2]), tuple(g[2:4]), g[4])
        return F.linear(spk, self.weight, self.bias)

    def check(self, x: torch.Tensor, step_shape: torch.Size) -> None:
        """Check that the layer takes and returns the spikes of steps of ``x``."""
        weight = self.weight
        if self.order:
            return  # checked before the dimensions were permuted
        if weight.dtype != x.dtype or weight.device != x.device:
            raise TypeError(
                f"x must have the dtype and the device of recurrent.weight, {weight.dtype} on {weight.device}, got "
                f"{x.dtype} on {x.device}"
            )
        if not self.geometry:
            if tuple(weight.shape) != (step_shape[-1:].numel(),) * 2 or not step_shape:
                raise ValueError(
                    f"x must have steps of shape [..., {weight.shape[1]}], the size of the recurrent layer, got "
                    f"{tuple(step_shape)}"
                )
            return
        channels, kernel, padding = weight.shape[0], weight.shape[-2:], self.geometry[:2]
        keeps_size = all(2 * p == d * (k - 1) for k, p, d in zip(kernel, padding, self.geometry[2:4]))
        if len(step_shape) not in (3, 4) or step_shape[-3] != channels or not keeps_size:
            raise ValueError(
                f"x must have steps of shape [B, {channels}, H, W], and the recurrent convolution must keep it; got "
                f"{tuple(step_shape)} and a kernel of {tuple(kernel)} with padding {tuple(padding)}"
            )

    def run(
        self,
        plan: _neurons.NeuronPlan,
        x: torch.Tensor,
        states: Sequence[Optional[torch.Tensor]],
        parameters: Mapping[str, Parameter],
        num_steps: Optional[int],
        kernel: Kernel,
        store: Sequence[bool],
        need_final: bool,
    ) -> Results:
        """Run the operators for :func:`~snnipu.ops.neuron_sequence.neuron_apply`, differentiable."""
        neuron, step_shape, adds = plan.neuron, layout(x, num_steps)[1], adds_to_input(plan.neuron)
        if not adds:
            parameters = {**parameters, STRENGTH: 1.0}
        initial, values, _ = kernel_arguments(plan, x, step_shape, states[adds:], parameters)
        if adds:
            spikes = states[SPIKES]
            initial.insert(SPIKES, None if spikes is None else state_argument("spk", spikes, step_shape, x))
        store_states = tuple(bool(stored) and place != SPIKES for place, stored in enumerate(store))
        tensors = (x, self.weight, self.bias, *initial, *values)
        reads = None
        if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
            reads = plan.reads
            for value, needs in zip(values, plan.reads_for):
                reads = reads | needs if value.requires_grad else reads
            if x.dtype != compute_dtype(x.dtype):
                # 16 bit: stored states are rounded, so the adjoint recomputes the membranes from the input.
                reads = _neurons.Reads((1 << len(states)) - 1, 0, True)
        silent = is_silent(neuron, kernel, parameters)
        places = (tuple(self.geometry), tuple(self.order))
        options = _RecurrentOptions(
            neuron, plan.variant, num_steps, kernel, store_states, need_final, reads, *places, silent
        )
        spk, *others = RecurrentSequence.apply(options, *tensors)
        return results_of(spk, others, store_states, SPIKES if store[SPIKES] else None, need_final)

    def output_of_zeros(self, shape: Sequence[int]) -> Optional[torch.Tensor]:
        """Return the output of a step without spikes; None: zeros."""
        if self.bias is None:
            return None
        bias = self.bias.reshape(-1, 1, 1) if self.geometry else self.bias
        layer_shape = [shape[self.order.index(dim)] for dim in range(len(shape))] if self.order else shape
        return self._to_memory_order(bias.expand(layer_shape))

    def grad_spk(self, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the spikes from that of the output."""
        grad = self._to_layer_order(grad)
        if not self.geometry:
            return self._to_memory_order((grad.reshape(-1, grad.shape[-1]) @ self.weight).reshape(grad.shape))
        return self._to_memory_order(self._gradient(grad, grad, of_input=True).reshape(grad.shape))

    def grad_weight(self, grad: torch.Tensor, spk: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the weight from those of the outputs of several steps."""
        grad, spk = self._to_layer_order(grad), self._to_layer_order(spk)
        if not self.geometry:
            return grad.reshape(-1, grad.shape[-1]).t() @ spk.reshape(-1, spk.shape[-1])
        return self._gradient(grad, spk, of_input=False)

    def grad_bias(self, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the bias from those of the outputs of several steps."""
        grad = self._to_layer_order(grad)
        channels = grad.dim() - (3 if self.geometry else 1)
        return grad.sum([dim for dim in range(grad.dim()) if dim != channels])

    def _gradient(self, grad: torch.Tensor, spk: torch.Tensor, of_input: bool) -> torch.Tensor:
        """Return the gradient of the convolution's input or of its weight."""
        maps, g = (-1, *grad.shape[-3:]), self.geometry
        sizes = ([1, 1], g[:2], g[2:4], False, [0, 0], g[4], [of_input, not of_input, False])
        gradients = torch.ops.aten.convolution_backward(
            grad.reshape(maps), spk.reshape(maps), self.weight, None, *sizes
        )
        return gradients[0 if of_input else 1]  # type: ignore[no-any-return]

    def _to_layer_order(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows`` of one or several steps with the dimensions in the layer's order."""
        if not self.order:
            return rows
        return permute_step(rows, sorted(range(len(self.order)), key=self.order.__getitem__))

    def _to_memory_order(self, row: torch.Tensor) -> torch.Tensor:
        return (permute_step(row, self.order) if self.order else row).contiguous()


class ReferenceSteps:
    """Single steps of a neuron in plain PyTorch; a backend has a class with the same methods."""

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
        grad_results = step.as_tensors(
            [a.grad_spk if place == output else grad for place, grad in enumerate(a.grad_states)]
        )
        grad_x, carry, sums = step.adjoint(
            a.x,
            a.before,
            a.after if all(state is not None for state in a.after) else missing,
            a.grad_spk,
            [carried + grad for carried, grad in zip(step.as_tensors(a.grad_after), grad_results)],
            missing,
            surrogate=partial(surrogates.surrogate_gradient, self.kernel),
        )
        _write((grad_x, *carry), (a.grad_x, *a.grad_before))
        for name, to in zip(self.names, self.grad_parameters):
            if to is not None:
                to.copy_(sum_to_parameter(sums.get(name, step.zero), to))


def _write(values: Sequence[torch.Tensor], to: Tensors) -> None:
    for target, value in zip(to, values):
        if target is not None:
            target.copy_(value)


def _not_fused(*arguments: Any) -> None:
    """Return None: a default of :class:`LoopFunctions` without a kernel for all steps."""


class LoopFunctions(NamedTuple):
    """A backend's functions for the loop over time.

    Attributes:
        steps: makes an object with the methods of :class:`ReferenceSteps`.
        empty: allocates a tensor like ``tensor.new_empty(shape)``.
        used: called with the results.
        forward: runs all steps in one call on arguments and results, and returns the states after the last step. None:
            it does not support the arguments, and the loop runs.
        backward: likewise; it returns the gradients of the states before the first step.
    """

    steps: Callable[..., Any]
    empty: Callable[[torch.Tensor, Sequence[int]], torch.Tensor]
    used: Callable[..., None]
    forward: Callable[..., Optional[Tensors]] = _not_fused
    backward: Callable[..., Optional[Tensors]] = _not_fused


_REFERENCE = LoopFunctions(ReferenceSteps, torch.Tensor.new_empty, lambda *results: None)


class RecurrentForwardArguments(NamedTuple):
    """Arguments of ``neuron_recurrent_fwd``, in the order of its schema."""

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


class RecurrentBackwardArguments(NamedTuple):
    """Arguments of ``neuron_recurrent_bwd``, in the order of its schema."""

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
    """Return True if the connection's output is added to the neuron's input: the neuron has no state ``spk``."""
    return "spk" not in _neurons.find(neuron).states


def _forward_steps(
    means: LoopFunctions,
    a: RecurrentForwardArguments,
    initial: Tensors,
    spk: torch.Tensor,
    states: Sequence[torch.Tensor],
    incoming: torch.Tensor,
) -> Tensors:
    """Write the operator's results step by step; return the states after the last step."""
    adds = adds_to_input(a.neuron)
    steps, step_shape, _ = layout(a.x, a.num_steps)
    like, before = a.parameters[0], list(initial)
    connection = RecurrentConnection(a.weight, a.bias, a.geometry, a.order)
    # States that are not stored alternate between two buffers.
    buffers = [[] if stored else [like.new_empty(step_shape) for _ in range(2)] for stored in a.store]
    rows = [
        list(state.unbind()) if stored else pair * (steps // 2 + 1)
        for state, stored, pair in zip(states, a.store, buffers)
    ]
    spikes, incoming_rows = spk.unbind(), incoming.unbind() if a.store_incoming else ()
    currents = a.x.unbind() if a.num_steps is None else [a.x] * steps
    kernels = means.steps(a.neuron, a.variant, currents[0], a.parameters)
    start = a.initial[SPIKES]
    last = None if start is None else start.to(a.x.dtype).contiguous()
    for t, current in enumerate(currents):
        incoming_row = connection.output_of_zeros(step_shape) if last is None else connection(last)
        if adds:
            incoming_row = current = current if incoming_row is None else current + incoming_row
        elif incoming_row is not None and incoming_row.dtype != like.dtype:
            incoming_row = incoming_row.to(like.dtype)
        if a.store_incoming:
            incoming_rows[t].zero_() if incoming_row is None else incoming_rows[t].copy_(incoming_row)
        before[SPIKES] = incoming_row
        after = [None if place == SPIKES else row[t] for place, row in enumerate(rows)]
        last = spikes[t]
        kernels.forward(current.contiguous(), before[adds:], last, after[adds:])
        before = list(after)
    before[SPIKES] = spikes[-1].to(like.dtype)
    return before


def run_forward(means: LoopFunctions, *arguments: Any) -> ForwardResults:
    a = RecurrentForwardArguments(*arguments)
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
    means: LoopFunctions, a: RecurrentBackwardArguments, grad_final: Tensors, grad_rows: torch.Tensor, total: Tensors
) -> Tensors:
    """Write the gradient of x step by step, and add up those of the parameters; return those of the first states."""
    adds = adds_to_input(a.neuron)
    steps, step_shape = a.spk.shape[0], a.spk.shape[1:]
    like, places, carry = a.parameters[0], range(len(a.states)), list(grad_final)
    connection = RecurrentConnection(a.weight, a.bias, a.geometry, a.order)
    part = [None if sums is None else torch.empty_like(sums) for sums in total]
    kernels = means.steps(a.neuron, a.variant, a.spk[0], a.parameters)
    kernels.differentiate(a.surrogate, a.surrogate_a, a.surrogate_b, part)
    upstream = [upstream_rows(grad, steps) for grad in (a.grad_spk, *a.grad_states)]
    state_rows = [state.unbind() if state.numel() else None for state in a.states]
    incoming_rows = a.incoming.unbind() if a.incoming.numel() else [None] * steps
    currents = [a.x] * steps if a.x is None or a.num_steps is not None else a.x.unbind()
    spikes, gradients = a.spk.unbind(), grad_rows.unbind()
    recomputes = a.spk.dtype != like.dtype  # in 16 bit, stored states are rounded
    buffers = [[None if s == SPIKES else like.new_empty(step_shape) for s in places] for _ in range(2)]
    initial = [None if state is None else state.contiguous() for state in a.initial]
    for t in range(steps - 1, -1, -1):
        before = [
            initial[s] if t == 0 else (None if rows is None else rows[t - 1]) for s, rows in enumerate(state_rows)
        ]
        before[SPIKES] = incoming_rows[t]
        after = [None if recomputes else (spikes[t] if rows is None else rows[t]) for rows in state_rows]
        current = incoming_rows[t] if adds else currents[t]
        grad_spk, grad_incoming = upstream[0][t], carry[SPIKES]
        if adds:  # the saved input has the states' dtype; the step reads the input's dtype
            current = None if current is None else current.to(a.spk.dtype)
        if adds and grad_incoming is not None:
            grad_incoming = grad_incoming.to(a.spk.dtype)
            grad_spk = grad_incoming if grad_spk is None else grad_spk + grad_incoming
        kernels.backward(
            StepBackward(
                spikes[t] if current is None else current.contiguous(),  # without an input, any tensor will do
                grad_spk,
                before[adds:],
                after[adds:],
                [rows[t] for rows in upstream[1 + adds :]],
                carry[adds:],
                gradients[t],
                buffers[t % 2][adds:],
            )
        )
        carry = list(buffers[t % 2])
        if t or a.need_initial[SPIKES]:
            carry[SPIKES] = connection.grad_spk(gradients[t]).to(like.dtype)
        for sums, gradient in zip(total, part):
            if sums is not None and gradient is not None:
                sums.add_(gradient)
    return carry


def run_backward(means: LoopFunctions, *arguments: Any) -> BackwardResults:
    a = RecurrentBackwardArguments(*arguments)
    steps, step_shape = a.spk.shape[0], a.spk.shape[1:]
    like = a.parameters[0]
    connection = RecurrentConnection(a.weight, a.bias, a.geometry, a.order)
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
            grad_weight = connection.grad_weight(grad_rows[1:], a.spk[:-1])
        if a.need_weight and first is not None:
            grad_weight = grad_weight + connection.grad_weight(grad_rows[:1], first.to(a.spk.dtype).unsqueeze(0))
        if a.need_bias:
            grad_bias = connection.grad_bias(grad_rows)
    if a.num_steps is not None:
        grad_rows = grad_rows.sum(0)
    zero = [like.new_zeros(step_shape) if need and grad is None else grad for need, grad in zip(a.need_initial, carry)]
    return (
        grad_rows,
        grad_weight,
        grad_bias,
        [grad.clone() if need and grad is not None else like.new_empty(0) for need, grad in zip(a.need_initial, zero)],
        [like.new_empty(0) if sums is None else sums for sums in total],
    )


neuron_recurrent_fwd_reference = partial(run_forward, _REFERENCE)
neuron_recurrent_bwd_reference = partial(run_backward, _REFERENCE)


def _fwd_meta(*arguments: Any) -> ForwardResults:
    a = RecurrentForwardArguments(*arguments)
    _, step_shape, shape = layout(a.x, a.num_steps)
    like = a.parameters[0]
    return (
        a.x.new_empty(shape),
        [like.new_empty(shape if stored else 0) for stored in a.store],
        [like.new_empty(step_shape) for _ in a.store] if a.store_final else [],
        like.new_empty(shape if a.store_incoming else 0),
    )


def _bwd_meta(*arguments: Any) -> BackwardResults:
    a = RecurrentBackwardArguments(*arguments)
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
    RecurrentForwardArguments,
    "neuron_recurrent_fwd",
)
_bwd = define(
    neuron_recurrent_bwd_reference,
    _bwd_meta,
    "(Tensor grad_x, Tensor grad_weight, Tensor grad_bias, Tensor[] grad_initial, Tensor[] grad_parameters)",
    RecurrentBackwardArguments,
    "neuron_recurrent_bwd",
)


class _RecurrentOptions(NamedTuple):
    neuron: str
    variant: int
    num_steps: Optional[int]
    kernel: Kernel
    store: Tuple[bool, ...]
    store_final: bool
    reads: Optional[_neurons.Reads]  # absent if nothing requires a gradient
    geometry: Tuple[int, ...]
    order: Tuple[int, ...]
    silent: bool  # the spikes have no gradient


class RecurrentSequence(torch.autograd.Function):
    """The autograd function of the two operators: spikes, the stored states, the final states.

    It saves the spikes and the states that the adjoint reads. If the adjoint recomputes a membrane (without reset
    delay, or in 16 bit), it also saves the input and the connection's outputs.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        o: _RecurrentOptions,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        *tensors: Optional[torch.Tensor],
    ) -> Any:
        count = len(o.store)
        initial, parameters = tensors[:count], tensors[count:]
        reads = o.reads or _neurons.Reads(0, 0, False)
        adds = adds_to_input(o.neuron)
        read = (reads.before | reads.after) << adds
        stores_incoming = reads.x if adds else bool(reads.before >> SPIKES & 1)
        saved = [read >> place & 1 for place in range(count)]
        store = [place != SPIKES and bool(o.store[place] or saved[place]) for place in range(count)]
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
        if o.silent:
            ctx.mark_non_differentiable(spk)
        if o.reads is not None:
            ctx.save_for_backward(
                x if reads.x and not adds else None,
                spk,
                incoming if stores_incoming else None,
                weight,
                bias,
                *(state if store[place] and saved[place] else None for place, state in enumerate(states)),
                *initial,
                *(p.clone() if p is not None else None for p in parameters),
            )
        returned = [state for state, stored in zip(states, o.store) if stored]
        return (spk, *(state.to(x.dtype) for state in returned), *final)

    @staticmethod
    @once_differentiable("neuron_recurrent")
    def backward(ctx: Any, grad_spk: Optional[torch.Tensor], *others: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        o: _RecurrentOptions = ctx.options
        x, spk, incoming, weight, bias, *tensors = ctx.saved_tensors
        count = len(o.store)
        states, initial, parameters = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        if grad_spk is None and all(grad is None for grad in others):
            return (None,) * (4 + count + len(parameters))
        remaining = iter(others)
        grad_states = [next(remaining) if stored else None for stored in o.store]
        grad_final = list(remaining)
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
        grad_connection = [grad_weight if need_weight else None, grad_bias if need_bias else None]
        gradients = [g if needed else None for g, needed in zip([*grad_initial, *grad_parameters], need)]
        return (None, grad_x, *grad_connection, *gradients)
