"""One step of a neuron by a direct call of the kernels: what a loop over small steps takes is mostly the calls."""

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu import surrogate as surrogates
from snnipu._layout import SINGLE_STEP
from snnipu.backends import host, neurons, popart
from snnipu.ops import _neurons
from snnipu.ops._arguments import PLAIN, Parameter, is_direct
from snnipu.ops._derivative import once_differentiable
from snnipu.ops.neuron_sequence import Results, constants, neuron_apply
from snnipu.surrogate import Kernel, SpikeGrad

_DTYPES = (torch.float32, torch.float64)


class _Options(NamedTuple):
    neuron: str
    plan: _neurons.Plan
    kernel: Kernel
    constant: bool  # nobody writes into the parameters
    silent: bool  # the spikes have no gradient


def _run(
    o: _Options, x: torch.Tensor, initial: Sequence[Optional[torch.Tensor]], parameters: Sequence[torch.Tensor]
) -> List[torch.Tensor]:
    """The spikes, and the states but for one that is the output."""
    spk = torch.empty_like(x)
    after = [None if place == o.plan.output else torch.empty_like(x) for place in range(len(initial))]
    neurons.Steps(neurons.built(_neurons.BUILT[o.neuron]), o.plan.variant, x, parameters).forward(
        x, initial, spk, after
    )
    return [spk, *(state for state in after if state is not None)]


class NeuronStep(torch.autograd.Function):
    """A step, differentiable. Kept is what the adjoint reads, copies of it: loops change what they hold in place."""

    @staticmethod
    def forward(ctx: Any, o: _Options, x: torch.Tensor, *tensors: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        count = len(o.plan.states)
        initial, parameters = tensors[:count], tensors[count:]
        spread = parameters if o.constant else [_spread(parameter, x.shape) for parameter in parameters]
        made = _run(o, x, initial, spread)  # type: ignore[arg-type]
        reads = o.plan.reads
        for need, needs in zip(ctx.needs_input_grad[2 + count :], o.plan.reads_for):
            reads = reads | needs if need else reads
        rest = iter(made[1:])
        after = [made[0] if place == o.plan.output else next(rest) for place in range(count)]
        ctx.save_for_backward(
            x.clone() if reads.x else None,
            *(_copy(state) if reads.before >> place & 1 else None for place, state in enumerate(initial)),
            *(_copy(state) if reads.after >> place & 1 else None for place, state in enumerate(after)),
            *(parameters if o.constant else [_own(read, given) for read, given in zip(spread, parameters)]),
        )
        ctx.options = o
        ctx.shapes = None if o.constant else [parameter.shape for parameter in parameters]  # type: ignore[union-attr]
        ctx.set_materialize_grads(False)
        if o.silent:
            ctx.mark_non_differentiable(made[0])
        return tuple(made)

    @staticmethod
    @once_differentiable("neuron_step")
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        o: _Options = ctx.options
        count = len(o.plan.states)
        x, *tensors = ctx.saved_tensors
        before, after, parameters = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        need = ctx.needs_input_grad[2:]
        like = next((grad for grad in grads if grad is not None), None)
        if like is None:
            return (None,) * (2 + count + len(parameters))
        need = (*need[:count], *_neurons.wanted(o.neuron, o.plan.variant, need[count:], grads[0] is not None))
        rows = [None if grad is None else grad.contiguous() for grad in grads]
        rest = iter(rows[1:])
        grad_states = [None if place == o.plan.output else next(rest) for place in range(count)]
        grad_x = torch.empty_like(like, memory_format=torch.contiguous_format)
        grad_initial = [torch.empty_like(grad_x) if wanted else None for wanted in need[:count]]
        grad_parameters = [torch.empty_like(p) if wanted else None for p, wanted in zip(parameters, need[count:])]
        steps = neurons.Steps(neurons.built(_neurons.BUILT[o.neuron]), o.plan.variant, grad_x, parameters)
        steps.differentiate(o.kernel.id, o.kernel.a, o.kernel.b, grad_parameters)
        # What no gradient that is wanted depends on may be anything of its size.
        anything = next(row for row in rows if row is not None)
        steps.backward(
            anything if x is None else x,
            before,
            [anything if state is None else state for state in after],
            rows[0],
            grad_states,
            (None,) * count,
            grad_x,
            grad_initial,
        )
        if ctx.shapes is not None:
            for place, (grad, own) in enumerate(zip(grad_parameters, ctx.shapes)):
                if grad is not None and grad.shape != own:
                    missing = (1,) * (len(own) - grad.dim())  # dimensions of one in front
                    grad_parameters[place] = grad.reshape(missing + grad.shape).sum_to_size(own)
        return (None, grad_x, *grad_initial, *grad_parameters)


def _own(read: Any, given: Any) -> Any:
    """What the kernels read, where nobody else writes."""
    return read.clone() if read.data_ptr() == given.data_ptr() else read


def _copy(tensor: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    return None if tensor is None else tensor.clone()


def step_apply(
    neuron: str,
    x: torch.Tensor,
    states: Sequence[Optional[torch.Tensor]],
    parameters: Mapping[str, Parameter],
    *,
    options: Mapping[str, Any],
    spike_grad: Optional[SpikeGrad] = None,
) -> Results:
    """:func:`~snnipu.ops.neuron_sequence.neuron_apply` of a single step, its numbers and errors."""
    made = step_direct(neuron, x, states, parameters, options=options, spike_grad=spike_grad)
    if made is not None:
        return made
    return neuron_apply(neuron, x, states, parameters, options=options, num_steps=SINGLE_STEP, spike_grad=spike_grad)


def step_direct(
    neuron: str,
    x: torch.Tensor,
    states: Sequence[Optional[torch.Tensor]],
    parameters: Mapping[str, Parameter],
    *,
    options: Mapping[str, Any],
    spike_grad: Optional[SpikeGrad] = None,
) -> Optional[Results]:
    """The step by the kernel; None where that does not take the arguments as they are."""
    known = surrogates.as_surrogate(spike_grad)
    if known is None or known.kernel is None or not _is_direct(neuron, x):
        return None
    plan = _neurons.plan(neuron, options)
    found = _values(plan, x, states, parameters)
    if found is None:
        return None
    values, constant = found
    taken = (x, *states, *values)
    learns = getattr(parameters.get("graded_spikes_factor"), "requires_grad", False)
    o = _Options(neuron, plan, known.kernel, constant, known.kernel.is_zero and plan.output is None and not learns)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in taken):
        made = NeuronStep.apply(o, *taken)
    else:
        made = _run(o, x, states, values if constant else [_spread(value, x.shape) for value in values])
    rest = iter(made[1:])
    return Results(made[0], [made[0] if place == plan.output else next(rest) for place in range(len(states))], None)


def _is_direct(neuron: str, x: torch.Tensor) -> bool:
    """Whether the kernel can take this call as it is."""
    return (
        host.library is not None
        and neuron in _neurons.BUILT
        and x.dtype in _DTYPES
        and is_direct(x)
        and x.is_contiguous()
        and x.numel() > 0
        and not popart.on_ipu()
    )


def _values(
    plan: _neurons.Plan, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]], parameters: Mapping[str, Parameter]
) -> Optional[Tuple[List[torch.Tensor], bool]]:
    """What the kernel takes for the parameters, whether that is constant; None where one does not fit."""
    shape, dtype = x.shape, x.dtype
    for state in states:
        if state is not None and not (
            type(state) in PLAIN
            and state.shape == shape
            and state.is_cpu
            and state.dtype == dtype
            and state.is_contiguous()
        ):
            return None
    made = constants(plan, parameters, dtype)
    if made is not None:
        return made, True
    for value in parameters.values():
        if not isinstance(value, torch.Tensor) or type(value) not in PLAIN or value.device != x.device:
            return None
        if value.is_complex():
            return None
        # What has dimensions widens the dtype of what it is computed with.
        if value.dim() > 0 and (value.dtype != dtype or not _broadcasts(value.shape, shape)):
            return None
    return [_as_taken(value, dtype) for value in plan.derive(parameters, 1.0)], False


def _broadcasts(own: torch.Size, shape: torch.Size) -> bool:
    """Whether a parameter of shape ``own`` is one value for each element of a step, whose shape stays ``shape``."""
    if len(own) > len(shape):
        return False
    return all(a == b or a == 1 for a, b in zip(own, shape[len(shape) - len(own) :]))


def _spread(parameter: Any, shape: torch.Size) -> Any:
    """As kernels read a parameter: one value, or one for each element of the dimensions of a step that it spans."""
    own = parameter.shape
    trailing = shape[len(shape) - len(own) :]
    if own == trailing or parameter.numel() == 1:
        return parameter
    while own[0] == 1:
        own, trailing = own[1:], trailing[1:]
    return parameter.reshape(own).expand(trailing).contiguous()


def _as_taken(value: Parameter, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=dtype, device="cpu")
    return (value if value.dtype == dtype else value.to(dtype)).contiguous()
