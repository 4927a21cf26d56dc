"""One time step of leaky integrate-and-fire neurons: ``neuron_sequence`` of the equation ``leaky`` over one step."""

from typing import Optional, Tuple

import torch

from snnipu._layout import SINGLE_STEP
from snnipu.ops._arguments import Parameter, check_input, reset_code
from snnipu.ops.neuron_sequence import neuron_apply
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
    reset_code(reset_mechanism)
    made = neuron_apply(
        "leaky",
        x,
        [mem],
        {"beta": beta, "threshold": threshold, "graded_spikes_factor": graded_spikes_factor},
        options={"reset_mechanism": reset_mechanism, "reset_delay": bool(reset_delay)},
        num_steps=SINGLE_STEP,
        spike_grad=spike_grad,
    )
    after = made.states[0]
    assert after is not None
    return made.spk, after
