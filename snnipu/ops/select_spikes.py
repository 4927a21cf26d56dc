"""Selection of spikes from a dense membrane by two thresholds: public function, schema, meta, autograd, reference."""

from typing import Any, NamedTuple, Optional, Tuple

import torch

from snnipu import _route
from snnipu.ops._arguments import Parameter, parameter_argument
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._records import define
from snnipu.ops._slots import (
    Slots,
    capacity_argument,
    check_max_spikes,
    gather,
    overflow_code,
    scatter,
    select,
    slot_results,
)
from snnipu.ops._spike_gradient import IDENTITY, fused, through_spikes
from snnipu.ops.dense_to_sparse import dense_argument, meta_slots
from snnipu.spikes import SparseSpikes
from snnipu.surrogate import Kernel, SpikeGrad


def select_spikes_fwd_reference(
    mem: torch.Tensor, threshold: torch.Tensor, grad_threshold: Optional[float], capacity: int, rotate: bool
) -> Slots:
    """Compute ``snnipu::select_spikes_fwd`` in plain PyTorch."""
    fired = mem - threshold > 0
    carried = torch.ones_like(fired) if grad_threshold is None else mem > grad_threshold
    ids, counts, dropped = select(fired, carried, capacity, rotate)
    return ids, spike_values(ids, counts, mem.dtype), counts, dropped


def spike_values(ids: torch.Tensor, counts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the value of each slot: 1 for a spike, 0 for a gradient-only slot and for padding."""
    return (torch.arange(ids.shape[2], device=ids.device) < counts[..., :1]).to(dtype)


class SelectBackward(NamedTuple):
    """Arguments of ``select_spikes_bwd``, in the order of its schema."""

    grad: torch.Tensor
    mem: torch.Tensor
    threshold: torch.Tensor
    ids: torch.Tensor
    counts: torch.Tensor
    surrogate: int
    surrogate_a: float
    surrogate_b: float


def select_spikes_bwd_reference(*arguments: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """Compute ``snnipu::select_spikes_bwd`` in plain PyTorch; ``through`` is the gradient at each slot."""
    a = SelectBackward(*arguments)
    kernel = Kernel(a.surrogate, a.surrogate_a, a.surrogate_b)
    through = through_spikes(kernel, gather(a.mem, a.ids, a.counts), a.threshold, a.ids, a.counts, a.grad)
    return scatter(through, a.ids, a.counts, a.mem.shape[2]).contiguous(), through


def _fwd_meta(
    mem: torch.Tensor, _threshold: torch.Tensor, _level: Optional[float], capacity: int, _rotate: bool
) -> Slots:
    return meta_slots(mem, capacity)


def _bwd_meta(grad: torch.Tensor, mem: torch.Tensor, *_: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(mem, memory_format=torch.contiguous_format), grad.new_empty(grad.shape)


define(select_spikes_fwd_reference, _fwd_meta, "(Tensor ids, Tensor values, Tensor counts, Tensor dropped)")
define(select_spikes_bwd_reference, _bwd_meta, "(Tensor grad_mem, Tensor through)", SelectBackward)


def threshold_gradient(through: torch.Tensor, ids: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the threshold; ``through``, the gradient of ``u`` at each slot, is 0 in padding."""
    if threshold.numel() == 1:
        return -through.sum().reshape(threshold.shape)
    total = through.new_zeros(threshold.numel())
    return -total.index_add(0, ids.reshape(-1).long(), through.reshape(-1)).reshape(threshold.shape)


class SelectSpikes(torch.autograd.Function):
    """The autograd function of ``snnipu::select_spikes_fwd`` and ``snnipu::select_spikes_bwd``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        mem: torch.Tensor,
        threshold: torch.Tensor,
        grad_threshold: Optional[float],
        capacity: int,
        rotate: bool,
        kernel: Optional[Kernel],
        spike_grad: Optional[SpikeGrad],
    ) -> Slots:
        ids, values, counts, dropped = torch.ops.snnipu.select_spikes_fwd(
            mem, threshold, grad_threshold, capacity, rotate
        )
        ctx.save_for_backward(mem, threshold, ids, counts)
        ctx.kernel, ctx.spike_grad = kernel, spike_grad
        return slot_results(ctx, (ids, values, counts, dropped))

    @staticmethod
    @once_differentiable("select_spikes")
    def backward(  # type: ignore[override]
        ctx: Any, _ids: None, grad: Optional[torch.Tensor], *_: None
    ) -> Tuple[Optional[torch.Tensor], ...]:
        if grad is None:
            return (None,) * 7
        mem, threshold, ids, counts = ctx.saved_tensors
        kernel = ctx.kernel
        if kernel is None:
            kernel = IDENTITY
            grad = through_spikes(ctx.spike_grad, gather(mem, ids, counts), threshold, ids, counts, grad)
        grad_mem, through = torch.ops.snnipu.select_spikes_bwd(
            grad.contiguous(), mem, threshold, ids, counts, kernel.id, kernel.a, kernel.b
        )
        grad_threshold = None
        if ctx.needs_input_grad[1]:
            if grad_mem.is_cuda and threshold.numel() > 1:
                # On CUDA index_add is not deterministic.
                grad_threshold = -grad_mem.sum((0, 1)).reshape(threshold.shape)
            else:
                grad_threshold = threshold_gradient(through, ids, threshold)
        return grad_mem, grad_threshold, *(None,) * 5


def select_spikes(
    mem: torch.Tensor,
    threshold: Parameter = 1.0,
    grad_threshold: Optional[float] = None,
    max_spikes: Optional[int] = None,
    *,
    spike_grad: Optional[SpikeGrad] = None,
    overflow: str = "lowest",
) -> SparseSpikes:
    r"""Select the neurons that spike and, by a second threshold, the neurons that have a gradient.

    .. math::

        s_{tbn} = H(u_{tbn} - \theta), \qquad
        \frac{\partial L}{\partial u_{tbn}} = \frac{\partial L}{\partial s_{tbn}}\, \sigma'(u_{tbn} - \theta)
        \quad \text{where } n \text{ has a slot, else } 0

    A neuron gets a slot when it spikes, :math:`u > \theta`, or when :math:`u > \theta_g`, the second threshold
    (``grad_threshold``). If there are too few slots, spikes go before gradient-only neurons. The order in each of the
    two groups is:

    * ``overflow="lowest"``: ascending ids;
    * ``overflow="rotate"``: cyclic from id ``t * max_spikes % N`` on, so that over time no neuron is always dropped.

    Neurons that do not fit are dropped, and counted in ``.dropped`` and ``.overflow``.

    Args:
        mem: membrane ``[T, B, N]``; float16 and bfloat16 are converted to float32. NaN does not spike.
        threshold: firing threshold: a number, or a tensor of one element or ``[N]``.
        grad_threshold: second threshold. None: every neuron gets a slot.
        max_spikes: the number of slots for spikes and gradient-only neurons together. None: as many as the busiest step
            needs; on CUDA the host waits for that number.
        spike_grad: surrogate gradient :math:`\sigma'`, as in :func:`lif_sequence`; None: ``atan()``.
        overflow: ``"lowest"`` or ``"rotate"``.

    Returns:
        SparseSpikes. The ids of the spikes are in ascending order, and those of the gradient-only slots, too.

    Raises:
        TypeError, ValueError: a dtype, shape or option is wrong; the message names the argument.

    Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023 (two thresholds,
    capacity); Perez-Nieves & Goodman, "Sparse spiking gradient descent", NeurIPS 2021.
    """
    mem = dense_argument("mem", mem)
    threshold_ = parameter_argument("threshold", threshold, tuple(mem.shape[2:]), mem)
    grad_threshold = grad_threshold_argument(grad_threshold)
    kernel, function = fused(spike_grad)
    if _route.uses_operator("select_spikes", "SelectSpikes"):
        check_max_spikes(max_spikes)
        rotate = overflow_code(overflow)
        return _route.call("select_spikes", mem, threshold_, grad_threshold, max_spikes, rotate, kernel)
    capacity = capacity_argument(max_spikes, mem.shape[2], mem)
    ids, values, counts, dropped = SelectSpikes.apply(
        mem, threshold_, grad_threshold, capacity, overflow_code(overflow), kernel, function
    )
    return SparseSpikes._trusted(ids, values, counts, mem.shape[2], dropped)


def grad_threshold_argument(grad_threshold: object) -> Optional[float]:
    """Check that ``grad_threshold`` is None or a number that is not NaN; return it."""
    if grad_threshold is None:
        return None
    if isinstance(grad_threshold, bool) or not isinstance(grad_threshold, (int, float)):
        raise TypeError(f"grad_threshold must be a number or None, got {grad_threshold!r}")
    if grad_threshold != grad_threshold:
        raise ValueError("grad_threshold must not be NaN")
    return float(grad_threshold)
