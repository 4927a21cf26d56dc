"""Leaky integrate-and-fire neurons over a sequence or one step: ``neuron_sequence`` with the equation ``leaky``."""

from typing import Optional, Tuple

import torch

from snnipu._layout import SINGLE_STEP
from snnipu.ops._arguments import Parameter, check_input, check_sequence, reset_code
from snnipu.ops.neuron_sequence import neuron_apply
from snnipu.surrogate import SpikeGrad


def leaky_apply(
    x: torch.Tensor,
    mem: Optional[torch.Tensor],
    num_steps: Optional[int],
    beta: Parameter,
    threshold: Parameter,
    graded_spikes_factor: Parameter,
    reset_mechanism: str,
    reset_delay: bool,
    spike_grad: Optional[SpikeGrad],
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return spikes and membranes of ``leaky``; ``x`` has been checked."""
    reset_code(reset_mechanism)
    results = neuron_apply(
        "leaky",
        x,
        [mem],
        {"beta": beta, "threshold": threshold, "graded_spikes_factor": graded_spikes_factor},
        options={"reset_mechanism": reset_mechanism, "reset_delay": bool(reset_delay)},
        num_steps=num_steps,
        spike_grad=spike_grad,
    )
    mems = results.states[0]
    assert mems is not None
    return results.spk, mems


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
    r"""Run leaky integrate-and-fire neurons over ``T`` time steps, as one operator.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        u_t &= \beta u_{t-1} + x_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= \beta (1 - r_t) u_{t-1} + x_t \quad \text{(zero)} \\
        u_t &= \beta u_{t-1} + x_t \quad \text{(none)} \\
        s_t &= H(u_t - \theta)

    with :math:`H(0) = 0`, ``spk = graded_spikes_factor * s`` and ``mem = u``. The spike has the gradient of the
    surrogate; the reset has none. With ``reset_delay=False`` the reset takes place in the step of its spike:
    ``mem = u - (s - r) * threshold`` (subtract) or ``u - (s - r) * u`` (zero). Its gradient then passes through ``s``.

    Args:
        x: input current, ``[T, B, ...]``; float32, float64, float16 or bfloat16.
        mem: membrane before the first step, of shape ``x.shape[1:]``; None: zeros.
        beta: decay of the membrane per step: a number, or a tensor that broadcasts to one step of ``x``. It is clamped
            to [0, 1] by ``torch.clamp``. Its gradient is 0 outside, and at the bounds that of the installed PyTorch.
        threshold: firing threshold: a number or a tensor, likewise.
        reset_mechanism: ``"subtract"``, ``"zero"`` or ``"none"``.
        spike_grad: a surrogate of ``snnipu.surrogate`` or ``snntorch.surrogate``, which is fused; None: ``atan()``. Or
            any callable of ``u - threshold``, which runs step by step in PyTorch.
        graded_spikes_factor: value of a spike: a number or a tensor, likewise.
        reset_delay: the reset takes place one step after its spike.
        num_steps: if given, ``x`` is ``[B, ...]`` and is held constant for that many steps.

    Returns:
        ``(spk, mem)``, both ``[T, B, ...]`` in the dtype of ``x``. State and parameters are float64 for float64 inputs,
        else float32. Spikes are computed from ``mem`` in the dtype in which it is returned. In float32 and float64 the
        result equals snnTorch's loop bit by bit.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: a shape, device, reset mechanism or number of steps is wrong; the message names the argument.

    Source: ``snntorch.Leaky`` 1.0; Eshraghian et al., "Training spiking neural networks using lessons from deep
    learning", Proc. IEEE 2023.
    """
    check_sequence(x, num_steps)
    return leaky_apply(
        x, mem, num_steps, beta, threshold, graded_spikes_factor, reset_mechanism, reset_delay, spike_grad
    )


def lif_step(
    x: torch.Tensor,
    mem: Optional[torch.Tensor] = None,
    *,
    beta: Parameter,
    threshold: Parameter = 1.0,
    reset_mechanism: str = "subtract",
    spike_grad: Optional[SpikeGrad] = None,
    graded_spikes_factor: Parameter = 1.0,
    reset_delay: bool = True,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Run one step of :func:`lif_sequence`: ``x``, ``mem`` and the results ``(spk, mem)`` are ``[B, ...]``.

    Equations, dtypes and errors are those of :func:`lif_sequence`.

    Args:
        x: input currents, ``[B, ...]``.
        mem: membranes before the step; None: zeros.
        beta, threshold, reset_mechanism, spike_grad, graded_spikes_factor, reset_delay: as in :func:`lif_sequence`.
    """
    check_input(x, 0, "[B, ...]")
    return leaky_apply(
        x, mem, SINGLE_STEP, beta, threshold, graded_spikes_factor, reset_mechanism, reset_delay, spike_grad
    )
