"""Leaky integrate-and-fire neurons over a whole sequence: the equation ``leaky`` under its own names.

Its kernels are those of every neuron, :mod:`snnipu.ops.neuron_sequence`. Here are its arguments, and what no kernel
has: a surrogate that is a function of PyTorch's.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch

from snnipu import _route
from snnipu import surrogate as surrogates
from snnipu._layout import SINGLE_STEP, layout
from snnipu.ops._arguments import (
    RESET_MECHANISMS,
    Parameter,
    check_input,
    compute_dtype,
    parameter_argument,
    reset_code,
    state_argument,
)
from snnipu.ops._derivative import once_differentiable
from snnipu.ops.neuron_sequence import neuron_apply, spread
from snnipu.surrogate import SpikeGrad, Surrogate

MECHANISMS = tuple(RESET_MECHANISMS)  # by their codes


def _evaluate(spike_grad: SpikeGrad, u: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """grad * dS/du of a surrogate known only as a PyTorch function."""
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        spikes = spike_grad(u)
        return torch.autograd.grad(spikes, u, grad.to(spikes.dtype))[0]


def _through_evaluated(
    surrogate: Surrogate, grad_spk: torch.Tensor, mem: torch.Tensor, threshold: torch.Tensor, graded: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor]:
    """The gradient behind the surrogate, one time step at a time from the last, and that of ``graded``."""
    out: List[torch.Tensor] = []
    for t in range(mem.shape[0] - 1, -1, -1):
        out.append(_evaluate(surrogate, mem[t].to(threshold.dtype) - threshold, grad_spk[t].to(graded.dtype) * graded))
    spike = (mem.to(threshold.dtype) - threshold > 0).to(threshold.dtype)
    total = (grad_spk.to(threshold.dtype) * spike).sum(0)
    return torch.stack(out[::-1]).to(grad_spk.dtype), total


class EvaluatedSpikes(torch.autograd.Function):
    """Spikes of a surrogate evaluated in PyTorch, from those of a kernel that passes their gradient unchanged.

    Possible outside of the recurrence because a delayed reset carries no gradient.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        spk: torch.Tensor,
        mem: torch.Tensor,
        threshold: torch.Tensor,
        graded: torch.Tensor,
        surrogate: Surrogate,
        single: bool,
    ) -> torch.Tensor:
        # Loops over single steps change what they hold in place.
        ctx.save_for_backward(*((mem.clone(), threshold.clone()) if single else (mem, threshold)), graded)
        ctx.surrogate, ctx.single = surrogate, single
        return (spk.to(graded.dtype) * graded).to(spk.dtype)

    @staticmethod
    @once_differentiable("lif_sequence")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        mem, threshold, graded = ctx.saved_tensors
        rows = (grad.unsqueeze(0), mem.unsqueeze(0)) if ctx.single else (grad, mem)
        grad_spk, grad_graded = _through_evaluated(ctx.surrogate, *rows, threshold, graded)
        return grad_spk.reshape(grad.shape), None, None, grad_graded, None, None


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
    parameters = {"beta": beta, "threshold": threshold, "graded_spikes_factor": graded_spikes_factor}
    how: Dict[str, Any] = {
        "options": {"reset_mechanism": MECHANISMS[reset], "reset_delay": reset_delay},
        "num_steps": num_steps,
        "need_final": need_last,
    }
    if known is not None and known.kernel is not None and not on_ipu:
        made = neuron_apply("leaky", x, [mem], parameters, spike_grad=known, store=[need_mem], **how)
        return made.spk, made.states[0], None if made.final is None else made.final[0]
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
    beta_, threshold_, graded = (spread(p, step_shape) for p in (beta_, threshold_, graded))
    if known is not None and reset_delay:
        passing = surrogates.straight_through_estimator()
        made = neuron_apply(
            "leaky", x, [mem], {**parameters, "graded_spikes_factor": 1.0}, spike_grad=passing, store=[True], **how
        )
        mems = made.states[0]
        assert mems is not None
        single = num_steps == SINGLE_STEP
        spk = EvaluatedSpikes.apply(made.spk, mems.detach(), threshold_.detach(), graded, known, single)
        return spk, mems if need_mem else None, None if made.final is None else made.final[0]
    # With an immediate reset the membrane's gradient passes through the spike: the recurrence needs the surrogate.
    function = known if known is not None else spike_grad
    if not callable(function):
        raise TypeError(f"spike_grad must be callable or None, got {function!r}")
    dtype = compute_dtype(x.dtype)
    first = x.new_zeros(step_shape, dtype=dtype) if state is None else state
    spk, mems = lif_by_steps(
        x.to(dtype), first, beta_, threshold_, graded, steps, num_steps is not None, reset, reset_delay, function
    )
    return spk.to(x.dtype).reshape(shape), mems.to(x.dtype).reshape(shape), mems[-1].clone() if need_last else None


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
