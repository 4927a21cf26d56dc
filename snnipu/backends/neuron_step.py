"""One step of a neuron by a direct call of the kernels: what a loop over small steps takes is mostly the calls."""

from functools import lru_cache
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from snnipu import surrogate as surrogates
from snnipu._layout import SINGLE_STEP
from snnipu.backends import host, neurons, popart, triton
from snnipu.ops import _neurons
from snnipu.ops._arguments import PLAIN, Parameter, is_eager
from snnipu.ops._derivative import once_differentiable
from snnipu.ops.neuron_sequence import Constants, Results, constants, neuron_apply
from snnipu.surrogate import Kernel, SpikeGrad

_DTYPES = (torch.float32, torch.float64)


class Step:
    """A neuron's step with its options and its surrogate, prepared: what a call needs beside its tensors.

    ``constants``: what the kernels take for the parameters, where nobody writes into it; None: each call brings it.
    ``silent``: the spikes have no gradient.
    """

    __slots__ = ("_calls", "_on_cpu", "_saved", "constants", "kernel", "plan", "silent")

    def __init__(
        self, plan: _neurons.Plan, kernel: Kernel, x: torch.Tensor, constants: Optional[Constants], silent: bool
    ) -> None:
        self.plan, self.kernel, self.constants, self.silent = plan, kernel, constants, silent
        self._on_cpu = x.is_cpu
        self._calls: Any = (
            neurons.Steps(neurons.built(_neurons.BUILT[plan.neuron]), plan.variant, x, constants or ())
            if x.is_cpu
            else triton.single_steps(plan.neuron, plan.variant)
        )
        # By which of the parameters learn: whether x, and the states before and after the step, are read backward.
        self._saved: Dict[Tuple[bool, ...], Tuple[bool, List[bool], List[bool]]] = {}

    def saved(self, learns: Tuple[bool, ...]) -> Tuple[bool, List[bool], List[bool]]:
        """What the backward pass reads."""
        found = self._saved.get(learns)
        if found is None:
            reads = self.plan.reads
            for learnt, needs in zip(learns, self.plan.reads_for):
                reads = reads | needs if learnt else reads
            places = range(len(self.plan.states))
            found = self._saved[learns] = (
                reads.x,
                [bool(reads.before >> place & 1) for place in places],
                [bool(reads.after >> place & 1) for place in places],
            )
        return found

    def calls(self, elements: int, parameters: Sequence[torch.Tensor]) -> Any:
        """The kernels' calls for so many elements; ``parameters`` as they are read."""
        made = self._calls.copy(elements)
        if self.constants is None:
            made.connect_parameters(parameters)
        return made

    def own(self, parameters: Sequence[Any], shape: torch.Size) -> Sequence[torch.Tensor]:
        """The parameters as the kernels read them, where nobody else writes."""
        if not self._on_cpu and all(parameter.dim() == 0 for parameter in parameters):
            return torch.stack(list(parameters)).unbind()  # one launch
        read = [_spread(parameter, shape) for parameter in parameters]
        return [r.clone() if r.data_ptr() == given.data_ptr() else r for r, given in zip(read, parameters)]

    def run(
        self,
        x: torch.Tensor,
        initial: Sequence[Optional[torch.Tensor]],
        parameters: Sequence[torch.Tensor],
        copied: Sequence[bool] = (),
    ) -> Tuple[torch.Tensor, List[torch.Tensor], List[Optional[torch.Tensor]]]:
        """Spikes, states, and copies of the states that are to be ``copied``."""
        empty, output = torch.empty_like, self.plan.output
        spk = empty(x)
        after = [None if place == output else empty(x) for place in range(len(initial))]
        copies = [empty(x) if copy and place != output else None for place, copy in enumerate(copied)]
        self.calls(x.numel(), parameters).forward(x, initial, spk, after, copies)
        if output is not None:
            after[output] = spk
            if copied and copied[output]:
                copies[output] = spk.clone()
        return spk, after, copies  # type: ignore[return-value]

    def __call__(
        self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]], parameters: Sequence[torch.Tensor]
    ) -> Tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Spikes and states of a step, which have been checked; ``parameters``: none where they are constant."""
        x = x.contiguous()  # of steps that are columns, x[:, t]
        if torch.is_grad_enabled():
            for tensor in (x, *states, *parameters):
                if tensor is not None and tensor.requires_grad:
                    return self._differentiable(x, states, parameters)
        spk, after, _ = self.run(x, states, [_spread(parameter, x.shape) for parameter in parameters])
        return spk, after

    def _differentiable(
        self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]], parameters: Sequence[torch.Tensor]
    ) -> Tuple[torch.Tensor, Sequence[torch.Tensor]]:
        spk, *after = NeuronStep.apply(self, x, *states, *parameters)
        output = self.plan.output
        if output is not None:
            after.insert(output, spk)
        return spk, after


class NeuronStep(torch.autograd.Function):
    """A step, differentiable. Kept is what the adjoint reads, copies of it: loops change what they hold in place."""

    @staticmethod
    def forward(ctx: Any, step: Step, x: torch.Tensor, *tensors: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        count = len(step.plan.states)
        initial, parameters = tensors[:count], tensors[count:]
        with_x, with_before, with_after = step.saved(ctx.needs_input_grad[2 + count :])
        spread = step.own(parameters, x.shape)
        spk, after, copies = step.run(x, initial, spread, with_after)  # type: ignore[arg-type]
        ctx.save_for_backward(
            x.clone() if with_x else None,
            *[state.clone() if wanted and state is not None else None for wanted, state in zip(with_before, initial)],
            *copies,
            *spread,
        )
        ctx.step = step
        if parameters:
            ctx.shapes = [parameter.shape for parameter in parameters]  # type: ignore[union-attr]
        ctx.set_materialize_grads(False)
        if step.silent:
            ctx.mark_non_differentiable(spk)
        output = step.plan.output
        return (spk, *after) if output is None else (spk, *after[:output], *after[output + 1 :])

    @staticmethod
    @once_differentiable("neuron_step")
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        step: Step = ctx.step
        plan = step.plan
        count = len(plan.states)
        x, *tensors = ctx.saved_tensors
        before, after, parameters = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        need = ctx.needs_input_grad[2:]
        rows = [None if grad is None else grad.contiguous() for grad in grads]
        # What no gradient that is wanted depends on may be anything of its size.
        anything = next((row for row in rows if row is not None), None)
        if anything is None:
            return (None,) * (1 + len(need) + 1)
        grad_spk, *grad_states = rows
        if plan.output is not None:
            grad_states.insert(plan.output, None)
        grad_x = torch.empty_like(anything)
        grad_initial = [torch.empty_like(anything) if wanted else None for wanted in need[:count]]
        grad_parameters: List[Optional[torch.Tensor]] = []
        if parameters:
            learns = _neurons.wanted(plan.neuron, plan.variant, need[count:], grad_spk is not None, single=True)
            grad_parameters = [torch.empty_like(p) if wanted else None for p, wanted in zip(parameters, learns)]
        calls = step.calls(anything.numel(), parameters)
        calls.differentiate(*step.kernel, grad_parameters)
        calls.backward(
            anything if x is None else x,
            before,
            [anything if state is None else state for state in after],
            grad_spk,
            grad_states,
            (),
            grad_x,
            grad_initial,
        )
        for place, grad in enumerate(grad_parameters):
            own = ctx.shapes[place]
            if grad is not None and grad.shape != own:
                missing = (1,) * (len(own) - grad.dim())  # dimensions of one in front
                grad_parameters[place] = grad.reshape(missing + grad.shape).sum_to_size(own)
        return (None, grad_x, *grad_initial, *grad_parameters)


def step_apply(
    neuron: str,
    x: torch.Tensor,
    states: Sequence[Optional[torch.Tensor]],
    parameters: Mapping[str, Parameter],
    *,
    options: Mapping[str, Any],
    spike_grad: Optional[SpikeGrad] = None,
) -> Tuple[Results, Optional[Step]]:
    """:func:`~snnipu.ops.neuron_sequence.neuron_apply` of a single step, its numbers and errors.

    And the step, where the kernel takes it as it is; None: the operator ran.
    """
    prepared = _prepare(neuron, x, states, parameters, options, spike_grad)
    if prepared is None:
        made = neuron_apply(
            neuron, x, states, parameters, options=options, num_steps=SINGLE_STEP, spike_grad=spike_grad
        )
        return made, None
    step, values = prepared
    spk, after = step(x, states, values)
    return Results(spk, [*after], None), step


def _prepare(
    neuron: str,
    x: torch.Tensor,
    states: Sequence[Optional[torch.Tensor]],
    parameters: Mapping[str, Parameter],
    options: Mapping[str, Any],
    spike_grad: Optional[SpikeGrad],
) -> Optional[Tuple[Step, Sequence[torch.Tensor]]]:
    """The step, and what the kernel takes for the parameters; None where it does not take the arguments."""
    known = surrogates.as_surrogate(spike_grad)
    if known is None or known.kernel is None or neuron not in _neurons.BUILT or not takes(x):
        return None
    plan = _neurons.plan(neuron, options)
    if not all(state is None or fits(state, x) for state in states):
        return None
    made = constants(plan, parameters, x.dtype) if x.is_cpu else None
    values: Sequence[torch.Tensor] = ()
    if made is None:
        if not all(_is_taken(value, x) for value in parameters.values()):
            return None
        values = derived(plan, parameters, x)
    learns = getattr(parameters.get("graded_spikes_factor"), "requires_grad", False)
    silent = known.kernel.is_zero and plan.output is None and not learns
    return Step(plan, known.kernel, x, made, silent), values


def takes(x: torch.Tensor) -> bool:
    """Whether the kernels can take this input."""
    return (
        x.dtype in _DTYPES
        and is_eager(x)
        and (host.library is not None if x.is_cpu else triton.unavailable_reason(x.device) is None)
        and x.layout is torch.strided
        and x.numel() > 0
        and not popart.on_ipu()
    )


def fits(state: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether they can take this state with it."""
    return (
        type(state) in PLAIN
        and state.shape == x.shape
        and state.device == x.device
        and state.dtype == x.dtype
        and state.is_contiguous()
    )


def _is_taken(value: Parameter, x: torch.Tensor) -> bool:
    """Whether they can take this parameter with it."""
    if not isinstance(value, torch.Tensor) or type(value) not in PLAIN or value.device != x.device:
        return False
    if value.is_complex():
        return False
    # What has dimensions widens the dtype of what it is computed with.
    return value.dim() == 0 or (value.dtype == x.dtype and _broadcasts(value.shape, x.shape))


def derived(plan: _neurons.Plan, parameters: Mapping[str, Parameter], x: torch.Tensor) -> List[torch.Tensor]:
    """What the kernel takes for parameters that are not constant."""
    return [
        (value if value.dtype == x.dtype else value.to(x.dtype)).contiguous()
        for value in plan.derive(parameters, one(x.dtype, x.device))
    ]


@lru_cache(maxsize=None)
def one(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """For a parameter that is not read, or is one; nobody writes into it."""
    with torch.inference_mode(False):
        return torch.ones((), dtype=dtype, device=device)


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
