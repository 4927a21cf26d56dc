"""One time step of leaky integrate-and-fire neurons: ``lif_sequence`` over one step."""

from typing import Optional, Tuple

import torch

from snnipu._layout import SINGLE_STEP
from snnipu.ops._arguments import Parameter, check_input, reset_code
from snnipu.ops.lif_sequence import lif_apply
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
    reset = reset_code(reset_mechanism)
    spk, after, _ = lif_apply(
        x, mem, beta, threshold, graded_spikes_factor, SINGLE_STEP, reset, bool(reset_delay), spike_grad
    )
    assert after is not None
    return spk, after
