"""Sums of spikes over time, for ``SparseSpikes.spike_count``: schema, meta, autograd, reference."""

from typing import Any, Tuple

import torch

from snnipu.ops import _library
from snnipu.ops._arguments import is_eager
from snnipu.ops._records import define
from snnipu.spikes import SparseSpikes


def _cells(ids: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> torch.Tensor:
    """Return the index of each slot in ``[B, N]`` flattened; padding gets the index after the last element."""
    _, batch, slots = ids.shape
    carried = torch.arange(slots, device=ids.device) < counts[..., 1:]
    rows = torch.arange(batch, device=ids.device)[None, :, None]
    return torch.where(carried, rows * num_neurons + ids, batch * num_neurons).reshape(-1)


def spike_count_fwd_reference(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, num_neurons: int
) -> torch.Tensor:
    """Compute ``snnipu::spike_count_fwd`` in plain PyTorch, differentiable any number of times."""
    batch = ids.shape[1]
    total = values.new_zeros(batch * num_neurons + 1).index_add(0, _cells(ids, counts, num_neurons), values.reshape(-1))
    return total[:-1].reshape(batch, num_neurons)


def spike_count_bwd_reference(grad: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Compute ``snnipu::spike_count_bwd`` in plain PyTorch, differentiable any number of times."""
    padded = torch.cat([grad.reshape(-1), grad.new_zeros(1)])
    return padded[_cells(ids, counts, grad.shape[1])].reshape(ids.shape)


define(spike_count_fwd_reference)
define(spike_count_bwd_reference)


class SpikeCount(torch.autograd.Function):
    """The autograd function of ``snnipu::spike_count_fwd`` and ``snnipu::spike_count_bwd``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, values: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor, num_neurons: int
    ) -> torch.Tensor:
        ctx.save_for_backward(ids, counts)
        return _library.kernel_for("spike_count_fwd", ids, values, counts)(ids, values, counts, num_neurons)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        ids, counts = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient will be differentiated
            return spike_count_bwd_reference(grad, ids, counts), None, None, None
        return _library.kernel_for("spike_count_bwd", grad, ids, counts)(grad, ids, counts), None, None, None


def spike_count(spikes: SparseSpikes) -> torch.Tensor:
    """Compute :meth:`SparseSpikes.spike_count`."""
    if is_eager(spikes.values, dispatched=True):
        return SpikeCount.apply(spikes.values, spikes.ids, spikes.counts, spikes.num_neurons)
    # Transforms and compilers can differentiate only PyTorch's operators.
    return spike_count_fwd_reference(spikes.ids, spikes.values, spikes.counts, spikes.num_neurons)
