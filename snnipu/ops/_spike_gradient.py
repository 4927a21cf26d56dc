"""The surrogate gradient at the slots of SparseSpikes."""

from typing import Optional, Tuple, Union

import torch

from snnipu import equations
from snnipu import surrogate as surrogates
from snnipu.surrogate import Kernel, SpikeGrad

# The surrogate that passes gradients unchanged, for adjoints whose surrogate PyTorch has already evaluated.
IDENTITY = Kernel.of(equations.leaky_step, 1.0)
_DEFAULT = surrogates.as_surrogate(None)


def fused(spike_grad: Optional[SpikeGrad]) -> Tuple[Optional[Kernel], Optional[SpikeGrad]]:
    """Return (kernel, None) if the kernels have the surrogate, else (None, function to evaluate in PyTorch)."""
    surrogate = _DEFAULT if spike_grad is None else surrogates.as_surrogate(spike_grad)
    if surrogate is not None and surrogate.kernel is not None:
        return surrogate.kernel, None
    function = surrogate if surrogate is not None else spike_grad
    if not callable(function):
        raise TypeError(f"spike_grad must be callable or None, got {function!r}")
    return None, function


def at_slots(parameter: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the parameter of the neuron in each slot; a parameter of one element stays a scalar."""
    return parameter.reshape(()) if parameter.numel() == 1 else parameter.reshape(-1)[ids.long()]


def through_spikes(
    surrogate: Union[Kernel, SpikeGrad],
    slot_mem: torch.Tensor,
    threshold: torch.Tensor,
    ids: torch.Tensor,
    counts: torch.Tensor,
    grad: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of ``u`` at every slot from that of the spikes, 0 in padding.

    ``surrogate``: a kernel, or a PyTorch function of ``u``.
    """
    u = slot_mem - at_slots(threshold, ids)
    if isinstance(surrogate, Kernel):
        through = surrogates.surrogate_gradient(surrogate, u, grad)
    else:
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            spikes = surrogate(u)
            through = torch.autograd.grad(spikes, u, grad.to(spikes.dtype))[0]
    return torch.where(torch.arange(ids.shape[2], device=ids.device) < counts[..., 1:], through, 0)
