"""Run one step of a neuron by a direct call of its kernel, without PyTorch's dispatcher.

A loop over small steps spends its time in calls, not in arithmetic. Only :class:`KernelStep` is kept between calls. It
holds no tensor: each call compares every tensor with the dtype, shape and device that the kernel reads.
"""

from functools import lru_cache
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from snnipu import surrogate as surrogates
from snnipu._layout import SINGLE_STEP, broadcasts_to
from snnipu.backends import host, neurons, popart, triton
from snnipu.ops import _neurons
from snnipu.ops._arguments import PLAIN, Parameter, is_eager
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._reference import StepBackward
from snnipu.ops.neuron_sequence import Constants, Results, constants, is_silent, neuron_apply
from snnipu.surrogate import Kernel, SpikeGrad

_DTYPES = (torch.float32, torch.float64)
Tensors = Sequence[Optional[torch.Tensor]]


class KernelStep:
    """A step of a neuron of the native library, for one choice of options, surrogate, dtype and kind of device.

    Attributes:
        plan: the equation with its options.
        kernel: the surrogate.
        calls: the kernel's single steps, from which a call is copied with its size and parameters.
        dtype: dtype of the input, the states and the results.
        silent: True if the spikes have no gradient.
        results: number of results: the spikes, and the states that are not the output.
    """

    __slots__ = ("_on_cpu", "_saved", "calls", "dtype", "kernel", "plan", "results", "silent")

    def __init__(
        self, plan: _neurons.NeuronPlan, kernel: Kernel, dtype: torch.dtype, on_cpu: bool, silent: bool
    ) -> None:
        self.plan, self.kernel, self.dtype, self.silent = plan, kernel, dtype, silent
        self._on_cpu = on_cpu
        self.results = 1 + len(plan.states) - (plan.output is not None)
        self.calls: Any = (
            neurons.UncheckedSteps(neurons.built_in_kernels(_neurons.BUILT[plan.neuron]), plan.variant, dtype)
            if on_cpu
            else triton.single_steps(plan.neuron, plan.variant)
        )
        # Keyed by the parameters that learn: whether the backward pass reads x, each state before and after the step.
        self._saved: Dict[Tuple[bool, ...], Tuple[bool, List[bool], List[bool]]] = {}

    def read_by_adjoint(self, learns: Tuple[bool, ...]) -> Tuple[bool, List[bool], List[bool]]:
        """Return whether the backward pass reads x, each state before the step, and each state after it."""
        saved = self._saved.get(learns)
        if saved is None:
            reads = self.plan.reads
            for learnt, needs in zip(learns, self.plan.reads_for):
                reads = reads | needs if learnt else reads
            places = range(len(self.plan.states))
            saved = self._saved[learns] = (
                reads.x,
                [bool(reads.before >> place & 1) for place in places],
                [bool(reads.after >> place & 1) for place in places],
            )
        return saved

    def copy_parameters(self, parameters: Sequence[Any], shape: torch.Size) -> Sequence[torch.Tensor]:
        """Return the parameters as the kernel reads them, in memory that no caller can write."""
        if not self._on_cpu and all(parameter.dim() == 0 for parameter in parameters):
            return torch.stack(list(parameters)).unbind()  # copies all of them by one launch
        values = [_broadcast_to_step(parameter, shape) for parameter in parameters]
        return [v.clone() if v.data_ptr() == p.data_ptr() else v for v, p in zip(values, parameters)]

    def __call__(
        self, x: torch.Tensor, states: Tensors, parameters: Sequence[torch.Tensor]
    ) -> Tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Return spikes and states of a step whose arguments have been checked. They are differentiable."""
        x = x.contiguous()  # x[:, t], one step of a batch-major input, is not
        fixed = parameters if isinstance(parameters, Constants) else None
        learning = () if fixed is not None else parameters
        if torch.is_grad_enabled():
            for tensor in (x, *states, *learning):
                if tensor is not None and tensor.requires_grad:
                    spk, *after = NeuronStep.apply(self, fixed, x, *states, *learning)[: self.results]
                    if self.plan.output is not None:
                        after.insert(self.plan.output, spk)
                    return spk, after
        if fixed is None:
            parameters = [_broadcast_to_step(parameter, x.shape) for parameter in parameters]
        return self.run(x, states, parameters)[:2]

    def run(
        self, x: torch.Tensor, initial: Tensors, parameters: Sequence[torch.Tensor], copied: Sequence[bool] = ()
    ) -> Tuple[torch.Tensor, List[torch.Tensor], List[Optional[torch.Tensor]]]:
        """Return spikes, states, and second copies of the states that are marked in ``copied``."""
        empty, output = torch.empty_like, self.plan.output
        spk = empty(x)
        after: List[Any] = []
        for place in range(len(initial)):
            after.append(None if place == output else empty(x))
        copies = [empty(x) if copy and place != output else None for place, copy in enumerate(copied)] if copied else []
        self.calls.copy(x.numel(), parameters).forward(x, initial, spk, after, copies)
        if output is not None:
            after[output] = spk
            if copied and copied[output]:
                copies[output] = spk.clone()
        return spk, after, copies


class NeuronStep(torch.autograd.Function):
    """A differentiable step. It saves copies of what the adjoint reads, because loops write to states in place.

    Copies of the states after the step and of x are results, too, so that a second derivative finds this function's
    inputs: the gradient reads at least one of them, unless it is constant.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, step: KernelStep, fixed: Optional[Constants], x: torch.Tensor, *tensors: Optional[torch.Tensor]
    ) -> Any:
        count = len(step.plan.states)
        initial, parameters = tensors[:count], tensors[count:]
        with_x, with_before, with_after = step.read_by_adjoint(ctx.needs_input_grad[3 + count :])
        read = step.copy_parameters(parameters, x.shape) if fixed is None else fixed
        spk, after, copies = step.run(x, initial, read, with_after)
        copied_x = x.clone() if with_x else None
        # A first state is None, and zeros when torch.utils.checkpoint runs the step again and compares what it saves.
        before = [torch.zeros_like(x) if state is None else state for state in initial]
        ctx.save_for_backward(
            copied_x,
            *[state.clone() if saved else None for saved, state in zip(with_before, before)],
            *copies,
            *(read if fixed is None else ()),
        )
        ctx.step, ctx.fixed, ctx.shape = step, fixed, x.shape
        if parameters:
            ctx.sizes = [(value.shape, p.shape) for value, p in zip(read, parameters)]  # type: ignore[union-attr]
        ctx.set_materialize_grads(False)
        if step.silent:
            ctx.mark_non_differentiable(spk)
        output = step.plan.output
        if output is not None:
            del after[output]
        return (spk, *after, *copies, copied_x)

    @staticmethod
    @once_differentiable("neuron_step")
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        step: KernelStep = ctx.step
        fixed: Optional[Constants] = ctx.fixed
        plan, shape = step.plan, ctx.shape
        count = len(plan.states)
        need = ctx.needs_input_grad[3:]
        rows = [None if grad is None else grad.contiguous() for grad in grads[: step.results]]
        # The kernel takes a pointer for each tensor, even for those that the requested gradients do not read.
        unread = next((row for row in rows if row is not None), None)
        if unread is None:
            return (None,) * (3 + len(need))
        x, *tensors = ctx.saved_tensors
        before, after, parameters = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        for tensor in (x, *before, *after, *rows):
            if tensor is not None:
                _compare("a tensor of the backward pass of a neuron", tensor, shape, step.dtype)
        grad_spk, *grad_states = rows
        if plan.output is not None:
            grad_states.insert(plan.output, None)
        grad_x = torch.empty_like(unread)
        grad_initial = [torch.empty_like(unread) if needed else None for needed in need[:count]]
        grad_parameters: List[Optional[torch.Tensor]] = []
        if parameters:
            for parameter, (size, _) in zip(parameters, ctx.sizes):
                _compare("a parameter of the backward pass of a neuron", parameter, size, step.dtype)
            learns = _neurons.requested_gradients(
                plan.neuron, plan.variant, need[count:], grad_spk is not None, single=True
            )
            grad_parameters = [torch.empty_like(p) if needed else None for p, needed in zip(parameters, learns)]
        calls = step.calls.copy(unread.numel(), parameters if fixed is None else fixed)
        calls.differentiate(*step.kernel, grad_parameters)
        after = [unread if state is None else state for state in after]
        x = unread if x is None else x
        calls.backward(StepBackward(x, grad_spk, before, after, grad_states, (), grad_x, grad_initial))
        for place, grad in enumerate(grad_parameters):
            if grad is not None:
                target = ctx.sizes[place][1]
                if grad.shape != target:
                    leading = (1,) * (len(target) - grad.dim())  # the kernel's parameters have no leading ones
                    grad_parameters[place] = grad.reshape(leading + grad.shape).sum_to_size(target)
        return (None, None, grad_x, *grad_initial, *grad_parameters)


def _compare(name: str, tensor: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> None:
    """Check a saved tensor: a hook of ``saved_tensors_hooks`` may have returned another one."""
    if not (tensor.shape == shape and tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_neg()):
        raise RuntimeError(
            f"{name} must be contiguous, {dtype}, of shape {tuple(shape)}, got {tensor.dtype} of shape "
            f"{tuple(tensor.shape)} and strides {tensor.stride()}"
        )


# Keyed by neuron, variant, surrogate, dtype, kind of device, and whether the spikes have no gradient.
_STEPS: Dict[Tuple[Any, ...], KernelStep] = {}
_MAX_STEPS = 256


def _step(plan: _neurons.NeuronPlan, kernel: Kernel, x: torch.Tensor, silent: bool) -> KernelStep:
    on_cpu = x.is_cpu
    key = (plan.neuron, plan.variant, kernel, x.dtype, on_cpu, silent)
    step = _STEPS.get(key)
    if step is None:
        if len(_STEPS) >= _MAX_STEPS:
            _STEPS.clear()
        step = _STEPS[key] = KernelStep(plan, kernel, x.dtype, on_cpu, silent)
    return step


def kernel_step(
    plan: _neurons.NeuronPlan, kernel: Kernel, x: torch.Tensor, states: Tensors, parameters: Mapping[str, Parameter]
) -> Optional[Tuple[torch.Tensor, Sequence[torch.Tensor]]]:
    """Run one step by the kernel.

    Args:
        plan: the equation with its options.
        kernel: the surrogate.
        x: input current, ``[B, ...]``.
        states: states before the step, each of the shape of x; None for zeros.
        parameters: parameters of the equation, by name.

    Returns:
        Spikes and states after the step; None if the kernel does not take these arguments.
    """
    if plan.neuron not in _neurons.BUILT or not accepts_input(x):
        return None
    for state in states:
        if state is not None and not accepts_state(state, x):
            return None
    values: Optional[Sequence[torch.Tensor]] = constants(plan, parameters, x.dtype) if x.is_cpu else None
    if values is None:
        for value in parameters.values():
            if not _accepts_parameter(value, x):
                return None
        values = [
            (value if value.dtype == x.dtype else value.to(x.dtype)).contiguous().resolve_neg()
            for value in plan.derive(parameters, shared_one(x.dtype, x.device))
        ]
    return _step(plan, kernel, x, is_silent(plan.neuron, kernel, parameters))(x, states, values)


def step_apply(
    neuron: str,
    x: torch.Tensor,
    states: Tensors,
    parameters: Mapping[str, Parameter],
    *,
    options: Mapping[str, Any],
    spike_grad: Optional[SpikeGrad] = None,
) -> Results:
    """Run a single step by :func:`kernel_step`, or else by :func:`~snnipu.ops.neuron_sequence.neuron_apply`.

    Args:
        neuron: name of the equation.
        x: input current, ``[B, ...]``.
        states: states before the step, each of the shape of x; None for zeros.
        parameters: parameters of the equation, by name.
        options: options of the equation, by name.
        spike_grad: surrogate gradient; None for snnTorch's default.
    """
    surrogate = surrogates.as_surrogate(spike_grad)
    if surrogate is not None and surrogate.kernel is not None:
        stepped = kernel_step(_neurons.plan(neuron, options), surrogate.kernel, x, states, parameters)
        if stepped is not None:
            return Results(stepped[0], [*stepped[1]], None)
    return neuron_apply(neuron, x, states, parameters, options=options, num_steps=SINGLE_STEP, spike_grad=spike_grad)


def accepts_input(x: torch.Tensor) -> bool:
    """Return True if the kernels can take this input."""
    return (
        x.dtype in _DTYPES
        and is_eager(x)
        and (host.library is not None if x.is_cpu else triton.unavailable_reason(x.device) is None)
        and x.numel() > 0
        and x.dim() > 0
        and not popart.on_ipu()
    )


def accepts_state(state: torch.Tensor, x: torch.Tensor) -> bool:
    """Return True if the kernels can take this state with the input ``x``."""
    return (
        type(state) in PLAIN
        and state.shape == x.shape
        and state.device == x.device
        and state.dtype == x.dtype
        and state.is_contiguous()
        and not state.is_neg()
    )


def _accepts_parameter(value: Parameter, x: torch.Tensor) -> bool:
    """Return True if the kernels can take this parameter with the input ``x``."""
    if type(value) not in PLAIN or value.device != x.device or value.layout is not torch.strided:  # type: ignore[union-attr]
        return False
    if value.is_complex():  # type: ignore[union-attr]
        return False
    # A parameter with dimensions widens the dtype of the result.
    return value.dim() == 0 or (value.dtype == x.dtype and broadcasts_to(value, x.shape))  # type: ignore[union-attr]


@lru_cache(maxsize=None)
def shared_one(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a shared tensor with the value 1, for a parameter that is 1 or that the kernel does not read.

    Do not write to it.
    """
    with torch.inference_mode(False):
        return torch.ones((), dtype=dtype, device=device)


def _broadcast_to_step(parameter: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a parameter as kernels read it: one value, or one for each element of the step's last dimensions."""
    size = parameter.shape
    trailing = shape[len(shape) - len(size) :]
    if size == trailing or parameter.numel() == 1:
        return parameter
    while size[0] == 1:
        size, trailing = size[1:], trailing[1:]
    return parameter.reshape(size).expand(trailing).contiguous()
