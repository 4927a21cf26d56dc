"""The surrogate gradient at the slots of SparseSpikes."""

from typing import Optional, Tuple, Union

import torch

from snnipu import equations
from snnipu import surrogate as surrogates
from snnipu.surrogate import Kernel, SpikeGrad

# A gradient that passes unchanged: what the adjoint runs with when the surrogate was evaluated outside of it.
IDENTITY = Kernel.of(equations.leaky_step, 1.0)
_DEFAULT = surrogates.as_surrogate(None)


def fused(spike_grad: Optional[SpikeGrad]) -> Tuple[Optional[Kernel], Optional[SpikeGrad]]:
    """The native surrogate that ``spike_grad`` is, or None and the function to be evaluated in PyTorch."""
    surrogate = _DEFAULT if spike_grad is None else surrogates.as_surrogate(spike_grad)
    if surrogate is not None and surrogate.kernel is not None:
        return surrogate.kernel, None
    function = surrogate if surrogate is not None else spike_grad
    if not callable(function):
        raise TypeError(f"spike_grad must be callable or None, got {function!r}")
    return None, function


def at_slots(parameter: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """A parameter of one element, or the elements that belong to the slots."""
    return parameter.reshape(()) if parameter.numel() == 1 else parameter.reshape(-1)[ids.long()]


def through_spikes(
    surrogate: Union[Kernel, SpikeGrad],
    slot_mem: torch.Tensor,
    threshold: torch.Tensor,
    ids: torch.Tensor,
    counts: torch.Tensor,
    grad: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient behind the spike function at every slot, 0 in padding.

    ``surrogate``: a kernel's, or a PyTorch function.
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
