"""One time step of leaky integrate-and-fire neurons: ``neuron_sequence`` of the equation ``leaky`` over one step."""

from typing import Optional, Tuple

import torch

from snnipu._layout import SINGLE_STEP
from snnipu.ops._arguments import Parameter, check_input
from snnipu.ops.lif_sequence import leaky_apply
from snnipu.surrogate import SpikeGrad


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
    """One time step of :func:`lif_sequence`: ``x`` is ``[B, ...]``, and so are ``mem`` and the results ``(spk, mem)``.

    Equations, arguments, dtypes and errors are those of :func:`lif_sequence`.
    """
    check_input(x, 0, "[B, ...]")
    return leaky_apply(
        x, mem, SINGLE_STEP, beta, threshold, graded_spikes_factor, reset_mechanism, reset_delay, spike_grad
    )
