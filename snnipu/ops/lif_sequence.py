"""Leaky integrate-and-fire neurons over a whole sequence: public function, schema, meta, autograd, reference."""

from typing import Any, List, Optional, Tuple

import torch

from snnipu import _route
from snnipu import surrogate as surrogates
from snnipu._layout import SINGLE_STEP, fits, in_order, layout, memory_order, permuted, saved_layout
from snnipu.ops import _library
from snnipu.ops._arguments import (
    Parameter,
    check_input,
    compute_dtype,
    is_direct,
    parameter_argument,
    reset_code,
    state_argument,
)
from snnipu.ops._derivative import once_differentiable
from snnipu.surrogate import Kernel, SpikeGrad, Surrogate

# A gradient that passes unchanged: what the adjoint runs with when the surrogate was evaluated outside of it.
_IDENTITY = Kernel(surrogates.LEAKY_STEP, 1.0, 0.0)

# A SymInt: compiled graphs need not be made anew for every number of steps.
_SCHEMA_FWD = (
    "lif_sequence_fwd(Tensor x, Tensor? mem0, Tensor beta, Tensor threshold, Tensor graded, SymInt? num_steps, "
    "int reset, bool reset_delay, bool store_mem, bool store_pre_reset, bool store_last=False) -> "
    "(Tensor spk, Tensor mem, Tensor pre_reset, Tensor last)"
)
_SCHEMA_BWD = (
    "lif_sequence_bwd(Tensor? grad_spk, Tensor? grad_mem, Tensor? x, Tensor? mem, Tensor? pre_reset, "
    "Tensor? mem0, Tensor beta, Tensor threshold, Tensor graded, SymInt? num_steps, int reset, bool reset_delay, "
    "int surrogate, float surrogate_a, float surrogate_b, bool need_mem0, bool need_beta, bool need_threshold, "
    "bool need_graded, Tensor? grad_last=None) -> "
    "(Tensor grad_x, Tensor grad_mem0, Tensor grad_beta, Tensor grad_threshold, Tensor grad_graded)"
)


def _spread(parameter: torch.Tensor, step_shape: torch.Size) -> torch.Tensor:
    """A parameter as the ops take it (one value, or one for each element modulo its length), as [*step_shape]."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    elements = step_shape.numel()
    return parameter.reshape(-1).repeat(elements // max(parameter.numel(), 1)).reshape(step_shape)


def lif_sequence_fwd_reference(
    x: torch.Tensor,
    mem0: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    graded: torch.Tensor,
    num_steps: Optional[int],
    reset: int,
    reset_delay: bool,
    store_mem: bool,
    store_pre_reset: bool,
    store_last: bool = False,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What ``snnipu::lif_sequence_fwd`` computes, in plain PyTorch: the equations of csrc/neuron/lif.hpp.

    ``mem``, ``pre_reset`` (the membrane before an immediate reset) and ``last`` (the membrane after the last step, in
    the dtype it is computed in) are empty where they are not to be stored.
    """
    steps, step_shape, shape = layout(x, num_steps)
    beta, threshold, graded = (_spread(p, step_shape) for p in (beta.clamp(0, 1), threshold, graded))
    state = beta.new_zeros(step_shape) if mem0 is None else mem0
    spk = x.new_empty((steps, *step_shape))
    mem = torch.empty_like(spk) if store_mem else x.new_empty(0)
    pre_reset = torch.empty_like(spk) if store_pre_reset else x.new_empty(0)
    for t in range(steps):
        current = (x[t] if num_steps is None else x).to(state.dtype)
        was_above = _spike(state, threshold, x.dtype)
        if reset == 0:
            u = (beta * state + current) - was_above * threshold
        elif reset == 1:
            u = beta * ((1 - was_above) * state) + current
        else:
            u = beta * state + current
        spike = _spike(u, threshold, x.dtype)
        spk[t] = spike * graded
        state = u
        if store_pre_reset:
            pre_reset[t] = u
        if not reset_delay and reset == 0:
            state = u - (spike - was_above) * threshold
        elif not reset_delay and reset == 1:
            state = u - (spike - was_above) * u
        if store_mem:
            mem[t] = state
    return (
        spk.reshape(shape),
        mem.reshape(shape if store_mem else 0),
        pre_reset.reshape(shape if store_pre_reset else 0),
        state.clone() if store_last else beta.new_empty(0),
    )


def _spike(mem: torch.Tensor, threshold: torch.Tensor, storage: torch.dtype) -> torch.Tensor:
    """H(mem - threshold), decided on the membrane as it is stored."""
    return (mem.to(storage).to(mem.dtype) - threshold > 0).to(mem.dtype)


def lif_sequence_bwd_reference(
    grad_spk: Optional[torch.Tensor],
    grad_mem: Optional[torch.Tensor],
    x: Optional[torch.Tensor],
    mem: Optional[torch.Tensor],
    pre_reset: Optional[torch.Tensor],
    mem0: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    graded: torch.Tensor,
    num_steps: Optional[int],
    reset: int,
    reset_delay: bool,
    surrogate: int,
    surrogate_a: float,
    surrogate_b: float,
    need_mem0: bool,
    need_beta: bool,
    need_threshold: bool,
    need_graded: bool,
    grad_last: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What ``snnipu::lif_sequence_bwd`` computes, in plain PyTorch: from ``mem`` or, where it is None, from ``x``.

    The gradient of beta is 0 outside of [0, 1], and not at the bounds: see :func:`learnt_decay`.
    """
    kernel = Kernel(surrogate, surrogate_a, surrogate_b)
    steps, step_shape, _ = saved_layout(x, mem, num_steps)
    if mem is None:
        assert x is not None
        forward = (x, mem0, beta, threshold, graded, num_steps, reset, reset_delay, True, not reset_delay)
        _, mem, pre_reset, _ = lif_sequence_fwd_reference(*forward)
        mem = mem.reshape(steps, *step_shape)
    membranes = mem if reset_delay or pre_reset is None else pre_reset.reshape(steps, *step_shape)
    constant_input = num_steps is not None
    dtype = beta.dtype
    thr, graded_all = _spread(threshold, step_shape), _spread(graded, step_shape)
    raw_beta = _spread(beta, step_shape)
    decay = raw_beta.clamp(0, 1)
    zeros = beta.new_zeros(step_shape)
    carry, sum_beta, sum_threshold, sum_graded, sum_x = (zeros.clone() for _ in range(5))
    if grad_last is not None:
        carry = grad_last.clone()
    grad_x = mem.new_empty(step_shape if constant_input else mem.shape)
    for t in range(steps - 1, -1, -1):
        before = mem[t - 1].to(dtype) if t > 0 else (zeros if mem0 is None else mem0)
        was_above = _spike(before, thr, mem.dtype)
        u = membranes[t].to(dtype)
        spike = (u - thr > 0).to(dtype)
        from_spk = zeros if grad_spk is None else grad_spk[t].to(dtype)
        grad_state = carry if grad_mem is None else carry + grad_mem[t].to(dtype)
        grad_spike, grad_u = from_spk * graded_all, grad_state
        if not reset_delay and reset == 0:
            grad_spike = grad_spike - grad_state * thr
            sum_threshold = sum_threshold - grad_state * (spike - was_above)
        elif not reset_delay and reset == 1:
            grad_spike = grad_spike - grad_state * u
            grad_u = grad_state * (1 - (spike - was_above))
        through_spike = surrogates.surrogate_gradient(kernel, u - thr, grad_spike)
        grad_u = grad_u + through_spike
        sum_threshold = sum_threshold - through_spike
        kept = before
        if reset == 0:
            sum_threshold = sum_threshold - grad_u * was_above
        elif reset == 1:
            kept = (1 - was_above) * before
        sum_beta = sum_beta + grad_u * kept
        sum_graded = sum_graded + from_spk * spike
        carry = decay * grad_u if reset != 1 else decay * (1 - was_above) * grad_u
        if constant_input:
            sum_x = sum_x + grad_u
        else:
            grad_x[t] = grad_u
    if constant_input:
        grad_x.copy_(sum_x)
    sum_beta = torch.where((raw_beta >= 0) & (raw_beta <= 1), sum_beta, zeros)

    def reduced(total: torch.Tensor, like: torch.Tensor, needed: bool) -> torch.Tensor:
        if not needed:
            return beta.new_empty(0)
        if like.numel() == 1:
            return total.sum().reshape(like.shape)
        return total.reshape(-1, like.numel()).sum(0).reshape(like.shape)

    return (
        grad_x,
        carry if need_mem0 else beta.new_empty(0),
        reduced(sum_beta, beta, need_beta),
        reduced(sum_threshold, threshold, need_threshold),
        reduced(sum_graded, graded, need_graded),
    )


def _fwd_meta(
    x: torch.Tensor,
    mem0: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    graded: torch.Tensor,
    num_steps: Optional[int],
    reset: int,
    reset_delay: bool,
    store_mem: bool,
    store_pre_reset: bool,
    store_last: bool = False,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    _, step_shape, shape = layout(x, num_steps)
    return (
        x.new_empty(shape),
        x.new_empty(shape if store_mem else 0),
        x.new_empty(shape if store_pre_reset else 0),
        beta.new_empty(step_shape if store_last else 0),
    )


def _bwd_meta(
    grad_spk: Optional[torch.Tensor],
    grad_mem: Optional[torch.Tensor],
    x: Optional[torch.Tensor],
    mem: Optional[torch.Tensor],
    pre_reset: Optional[torch.Tensor],
    mem0: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    graded: torch.Tensor,
    num_steps: Optional[int],
    reset: int,
    reset_delay: bool,
    surrogate: int,
    surrogate_a: float,
    surrogate_b: float,
    need_mem0: bool,
    need_beta: bool,
    need_threshold: bool,
    need_graded: bool,
    grad_last: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    def parameter(like: torch.Tensor, needed: bool) -> torch.Tensor:
        return like.new_empty(like.shape if needed else 0)

    steps, step_shape, like = saved_layout(x, mem, num_steps)
    return (
        like.new_empty(step_shape if num_steps is not None else (steps, *step_shape)),
        beta.new_empty(step_shape if need_mem0 else 0),
        parameter(beta, need_beta),
        parameter(threshold, need_threshold),
        parameter(graded, need_graded),
    )


_fwd = _library.define(_SCHEMA_FWD, reference=lif_sequence_fwd_reference, meta=_fwd_meta)
_bwd = _library.define(_SCHEMA_BWD, reference=lif_sequence_bwd_reference, meta=_bwd_meta)


def _evaluate(spike_grad: SpikeGrad, u: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """grad * dS/du of a surrogate known only as a PyTorch function."""
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        return torch.autograd.grad(spike_grad(u), u, grad.float())[0]


_KERNELS_FWD, _KERNELS_BWD = (_library.REGISTERED[f"lif_sequence_{direction}"] for direction in ("fwd", "bwd"))


class LifSequence(torch.autograd.Function):
    """Forward and backward operator as one differentiable function: ``spk``, or a tuple of it and what else is needed.

    That is ``mem`` with ``need_mem`` and ``last``, the membrane after the last step, with ``need_last``.

    The backward pass needs the membranes. They are saved where they are an output anyway, and recomputed from the input
    where that saves a sequence of memory: the input is held constant, or ``mem`` is not asked for. Of a single step
    nothing is saved that the caller holds: loops change membranes, thresholds and decays in place between steps.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,
        mem0: Optional[torch.Tensor],
        beta: torch.Tensor,
        threshold: torch.Tensor,
        graded: torch.Tensor,
        num_steps: Optional[int],
        reset: int,
        reset_delay: bool,
        kernel: Kernel,
        evaluated: Optional[Surrogate],
        need_mem: bool,
        recompute: bool,
        save: bool,
        need_last: bool = False,
    ) -> Any:
        store_mem = need_mem or not recompute
        single = num_steps == SINGLE_STEP
        run = _KERNELS_FWD.get("CPU", _fwd) if is_direct(x) else _fwd
        spk, mem, pre_reset, last = run(
            x,
            mem0,
            beta,
            threshold,
            graded,
            num_steps,
            reset,
            reset_delay,
            store_mem,
            save and not recompute and (single or not reset_delay),
            need_last,
        )
        if save:
            beta, threshold = beta.clone(), threshold.clone()
            saved: Tuple[Optional[torch.Tensor], ...]
            if recompute:
                saved = (x, None, None)
            elif single:
                saved = (None, pre_reset, None if reset_delay else pre_reset)
                if mem0 is not None:
                    # The membrane before the step tells whether there was a reset, and is beta's factor.
                    needed = reset == 1 or ctx.needs_input_grad[2] or ctx.needs_input_grad[3]
                    mem0 = mem0.clone() if needed else None
            else:
                saved = (None, mem, None if reset_delay else pre_reset)
            ctx.save_for_backward(*saved, mem0, beta, threshold, graded)
        ctx.set_materialize_grads(False)
        ctx.num_steps = num_steps
        ctx.reset = reset
        ctx.reset_delay = reset_delay
        ctx.kernel = kernel
        ctx.evaluated = evaluated
        if kernel.is_zero and not ctx.needs_input_grad[4]:
            ctx.mark_non_differentiable(spk)
        ctx.need_mem = need_mem
        if not (need_mem or need_last):
            return spk
        return (spk, *((mem,) if need_mem else ()), *((last,) if need_last else ()))

    @staticmethod
    @once_differentiable("lif_sequence")
    def backward(ctx: Any, grad_spk: Optional[torch.Tensor], *others: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        grad_mem = others[0] if ctx.need_mem else None
        grad_last = others[-1] if len(others) > ctx.need_mem else None
        x, mem, pre_reset, mem0, beta, threshold, graded = ctx.saved_tensors
        if grad_spk is None and grad_mem is None and grad_last is None:
            return (None,) * 14
        num_steps = ctx.num_steps
        if num_steps == SINGLE_STEP:
            num_steps = 1
            grad_spk, grad_mem, mem, pre_reset = (
                None if tensor is None else tensor.unsqueeze(0) for tensor in (grad_spk, grad_mem, mem, pre_reset)
            )
        _, need_mem0, need_beta, need_threshold, need_graded = ctx.needs_input_grad[:5]
        kernel = ctx.kernel
        grad_graded_evaluated = None
        if ctx.evaluated is not None:
            kernel = _IDENTITY
            if grad_spk is not None:
                grad_spk, grad_graded_evaluated = _through_evaluated(ctx.evaluated, grad_spk, mem, threshold, graded)
            graded = torch.ones_like(graded)
        run = _KERNELS_BWD.get("CPU", _bwd) if is_direct(beta) else _bwd
        grad_x, grad_mem0, grad_beta, grad_threshold, grad_graded = run(
            grad_spk,
            grad_mem,
            x,
            mem,
            pre_reset,
            mem0,
            beta,
            threshold,
            graded,
            num_steps,
            ctx.reset,
            ctx.reset_delay,
            kernel.id,
            kernel.a,
            kernel.b,
            need_mem0,
            need_beta,
            need_threshold,
            need_graded and ctx.evaluated is None,
            grad_last,
        )
        if ctx.evaluated is not None:
            grad_graded = grad_graded_evaluated
        return (
            grad_x,
            grad_mem0 if need_mem0 else None,
            grad_beta if need_beta else None,
            grad_threshold if need_threshold else None,
            grad_graded if need_graded else None,
            *(None,) * 9,
        )


def _through_evaluated(
    spike_grad: Surrogate, grad_spk: torch.Tensor, mem: torch.Tensor, threshold: torch.Tensor, graded: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Gradient behind a surrogate evaluated in PyTorch, one time step at a time from the last, and graded's gradient.

    Possible ahead of the recurrence because the reset carries no gradient.
    """
    step_shape = mem.shape[1:]
    thr, factor = _spread(threshold, step_shape), _spread(graded, step_shape)
    out: List[torch.Tensor] = []
    for t in range(mem.shape[0] - 1, -1, -1):
        out.append(_evaluate(spike_grad, mem[t].to(thr.dtype) - thr, grad_spk[t].to(thr.dtype) * factor))
    spike = (mem.to(thr.dtype) - thr > 0).to(thr.dtype)
    total = (grad_spk.to(thr.dtype) * spike).sum(0)
    shape = graded.shape
    grad_graded = total.sum() if graded.numel() == 1 else total.reshape(-1, graded.numel()).sum(0)
    return torch.stack(out[::-1]).to(mem.dtype), grad_graded.reshape(shape)


def learnt_decay(beta: torch.Tensor) -> torch.Tensor:
    """``beta``, where it learns clamped to [0, 1] by PyTorch itself.

    Whether a beta of exactly 0 or 1 has a gradient is for the installed PyTorch to say: ``clamp`` passed the gradient
    at its bounds up to PyTorch 2.13, and has none there in 2.15. The kernels clamp too, and pass it there; on an IPU
    that is what counts.
    """
    learns = beta.requires_grad and torch.is_grad_enabled()
    return beta.clamp(0, 1) if learns and not _route.on_real_ipu() else beta


def lif_by_steps(
    x: torch.Tensor,
    mem: torch.Tensor,
    beta: torch.Tensor,
    threshold: torch.Tensor,
    graded: torch.Tensor,
    steps: int,
    constant_input: bool,
    reset: int,
    reset_delay: bool,
    spike_grad: SpikeGrad,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """snnTorch's step, differentiated by autograd: the path of a ``spike_grad`` that may not be a Heaviside step."""
    spks, mems = [], []
    beta = beta.clamp(0, 1)
    for t in range(steps):
        was_above = spike_grad(mem - threshold).detach()
        current = x if constant_input else x[t]
        if reset == 0:
            mem = beta * mem + current - was_above * threshold
        elif reset == 1:
            mem = beta * ((1 - was_above) * mem) + current
        else:
            mem = beta * mem + current
        spike = spike_grad(mem - threshold)
        if not reset_delay and reset == 0:
            mem = mem - (spike - was_above) * threshold
        elif not reset_delay and reset == 1:
            mem = mem - (spike - was_above) * mem
        spks.append(spike * graded)
        mems.append(mem)
    return torch.stack(spks), torch.stack(mems)


def lif_apply(
    x: torch.Tensor,
    mem: Optional[torch.Tensor],
    beta: Parameter,
    threshold: Parameter,
    graded_spikes_factor: Parameter,
    num_steps: Optional[int],
    reset: int,
    reset_delay: bool,
    spike_grad: Optional[SpikeGrad],
    need_mem: bool = True,
    need_last: bool = False,
) -> Tuple[torch.Tensor, Optional[torch.Tensor], Optional[torch.Tensor]]:
    """Common way of ``lif_step`` and ``lif_sequence`` once x and the options have been checked.

    Returns spikes, membranes and the membrane after the last step, [*step_shape] in the dtype it is computed in: where
    another call with it as ``mem`` goes on. Without ``need_mem`` the membranes are not stored and None stands for them,
    without ``need_last`` for the last one.
    """
    on_ipu = _route.uses_operator("lif_sequence", "LifSequence")
    steps, step_shape, shape = layout(x, num_steps)
    known = surrogates.as_surrogate(spike_grad)
    # Neurons are independent: fused, they are taken as they lie (channels_last, say), and so are the results.
    order = memory_order(x, num_steps) if not on_ipu and known is not None and known.kernel is not None else None
    given = (mem, beta, threshold, graded_spikes_factor)
    if order is not None and all(fits(argument, step_shape) for argument in given):
        options = (num_steps, reset, reset_delay, spike_grad, need_mem, need_last)
        moved = [permuted(argument, order) for argument in given]
        out = lif_apply(in_order(x, order), moved[0], moved[1], moved[2], moved[3], *options)
        back = sorted(range(len(order)), key=order.__getitem__)
        spk, mems, last = (None if tensor is None else in_order(tensor, back) for tensor in out)
        assert spk is not None
        return spk, mems, last
    state = None if mem is None else state_argument("mem", mem, step_shape, x)
    beta_ = learnt_decay(parameter_argument("beta", beta, step_shape, x))
    threshold_ = parameter_argument("threshold", threshold, step_shape, x)
    graded = parameter_argument("graded_spikes_factor", graded_spikes_factor, step_shape, x)
    if on_ipu:
        kernel = None if known is None else known.kernel
        own = (beta_, threshold_, graded)
        spk, mems = _route.call("lif_sequence", x, state, own, num_steps, reset, reset_delay, kernel)
        # A copy: a view would keep the whole sequence's membranes.
        return spk, mems, mems[-1].clone() if need_last and steps else None
    evaluated = known if known is not None and known.kernel is None else None
    if known is None or (evaluated is not None and not reset_delay):
        # With an immediate reset the membrane's gradient passes through the spike: the recurrence needs the surrogate.
        function = known if known is not None else spike_grad
        if not callable(function):
            raise TypeError(f"spike_grad must be callable or None, got {function!r}")
        beta_, threshold_, graded = (_spread(p, step_shape) for p in (beta_, threshold_, graded))
        dtype = compute_dtype(x.dtype)
        first = x.new_zeros(step_shape, dtype=dtype) if state is None else state
        spk, mems = lif_by_steps(
            x.to(dtype), first, beta_, threshold_, graded, steps, num_steps is not None, reset, reset_delay, function
        )
        return spk.to(x.dtype).reshape(shape), mems.to(x.dtype).reshape(shape), mems[-1].clone() if need_last else None
    kernel = known.kernel if known.kernel is not None else _IDENTITY
    recompute = num_steps != SINGLE_STEP and evaluated is None and (num_steps is not None or not need_mem)
    arguments = (x, state, beta_, threshold_, graded, num_steps, reset, reset_delay, kernel, evaluated)
    differentiated = (x, state, beta_, threshold_, graded)
    save = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in differentiated)
    made = LifSequence.apply(*arguments, need_mem, recompute, save, need_last)
    if not (need_mem or need_last):
        return made, None, None
    return made[0], made[1] if need_mem else None, made[-1] if need_last else None


def lif_sequence(
    x: torch.Tensor,
    mem: Optional[torch.Tensor] = None,
    *,
    beta: Parameter,
    threshold: Parameter = 1.0,
    reset_mechanism: str = "subtract",
    spike_grad: Optional[SpikeGrad] = None,
    graded_spikes_factor: Parameter = 1.0,
    reset_delay: bool = True,
    num_steps: Optional[int] = None,
) -> Tuple[torch.Tensor, torch.Tensor]:
    r"""Leaky integrate-and-fire neurons over ``T`` time steps, as one operator.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        u_t &= \beta u_{t-1} + x_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= \beta (1 - r_t) u_{t-1} + x_t \quad \text{(zero)} \\
        u_t &= \beta u_{t-1} + x_t \quad \text{(none)} \\
        s_t &= H(u_t - \theta)

    with :math:`H(0) = 0`; ``spk = graded_spikes_factor * s`` and ``mem = u``. The reset carries no gradient, the spike
    the surrogate's. With ``reset_delay=False`` the reset takes place in the step of its spike:
    ``mem = u - (s - r) * threshold`` (subtract) or ``u - (s - r) * u`` (zero), and its gradient passes through ``s``.

    Args:
        x: input current, ``[T, B, ...]`` (any shape behind time); float32, float64, float16 or bfloat16.
        mem: membrane before the first step, ``x.shape[1:]``; None: zeros.
        beta: decay of the membrane per step, clamped to [0, 1] by ``torch.clamp``: its gradient is 0 outside, and at
            the bounds what the installed PyTorch says. A number, or a tensor that broadcasts to one step of ``x``.
        threshold: firing threshold, likewise.
        reset_mechanism: ``"subtract"``, ``"zero"`` or ``"none"``.
        spike_grad: a surrogate of ``snnipu.surrogate`` or ``snntorch.surrogate`` (None: ``atan()``), fused; or any
            callable of ``u - threshold``, evaluated step by step in PyTorch.
        graded_spikes_factor: value of a spike, likewise.
        reset_delay: the reset takes place one step after its spike.
        num_steps: if given, ``x`` is ``[B, ...]``, held constant for so many steps.

    Returns:
        ``(spk, mem)``, both ``[T, B, ...]`` in x's dtype. State and parameters are float32 (float64 for float64
        inputs) whatever the dtype of ``x``; spikes are decided on ``mem`` as it is returned. In float32 and float64 the
        result equals snnTorch's loop bit by bit.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a shape, device, reset mechanism or number of steps that does not fit; the message names it.

    Source: ``snntorch.Leaky`` 1.0; Eshraghian et al., "Training spiking neural networks using lessons from deep
    learning", Proc. IEEE 2023.
    """
    if num_steps is None:
        check_input(x, 1, "[T, B, ...]")
    else:
        check_input(x, 0, "[B, ...]")
        check_num_steps(num_steps)
    reset = reset_code(reset_mechanism)
    spk, mems, _ = lif_apply(
        x, mem, beta, threshold, graded_spikes_factor, num_steps, reset, bool(reset_delay), spike_grad
    )
    assert mems is not None
    return spk, mems


def check_num_steps(num_steps: object) -> None:
    """``num_steps`` is a positive int."""
    if not isinstance(num_steps, int) or isinstance(num_steps, bool):
        raise TypeError(f"num_steps must be an int, got {num_steps!r}")
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
