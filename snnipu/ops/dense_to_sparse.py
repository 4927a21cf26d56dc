"""Nonzero elements of a dense tensor as spikes: public function, schema, meta, autograd, reference."""

from typing import Any, Optional, Tuple

import torch

from snnipu import _route
from snnipu._checks import check_tensor
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._records import define
from snnipu.ops._slots import Slots, capacity_argument, check_max_spikes, gather, overflow_code, select, slot_results
from snnipu.spikes import SparseSpikes


def dense_to_sparse_fwd_reference(x: torch.Tensor, capacity: int, rotate: bool) -> Slots:
    """Compute ``snnipu::dense_to_sparse_fwd`` in plain PyTorch."""
    ids, counts, dropped = select(x != 0, x != 0, capacity, rotate)
    return ids, gather(x, ids, counts), counts, dropped


def meta_slots(x: torch.Tensor, capacity: int, *_: Any) -> Slots:
    """Return empty ids, values, counts and dropped of the right shapes and dtypes."""
    shape = (*x.shape[:2], capacity if capacity >= 0 else x.shape[2])
    pair = (*x.shape[:2], 2)
    counts = x.new_empty(pair, dtype=torch.int32)
    return x.new_empty(shape, dtype=torch.int32), x.new_empty(shape), counts, torch.empty_like(counts)


define(dense_to_sparse_fwd_reference, meta_slots, "(Tensor ids, Tensor values, Tensor counts, Tensor dropped)")


class DenseToSparse(torch.autograd.Function):
    """The autograd function of ``snnipu::dense_to_sparse_fwd``; the adjoint is ``snnipu::sparse_to_dense_fwd``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: torch.Tensor, capacity: int, rotate: bool
    ) -> Slots:
        ids, values, counts, dropped = torch.ops.snnipu.dense_to_sparse_fwd(x, capacity, rotate)
        ctx.save_for_backward(ids, counts)
        ctx.num_neurons = x.shape[2]
        return slot_results(ctx, (ids, values, counts, dropped))

    @staticmethod
    @once_differentiable("dense_to_sparse")
    def backward(  # type: ignore[override]
        ctx: Any, _ids: None, grad: Optional[torch.Tensor], *_: None
    ) -> Tuple[Optional[torch.Tensor], None, None]:
        if grad is None:
            return None, None, None
        ids, counts = ctx.saved_tensors
        return torch.ops.snnipu.sparse_to_dense_fwd(ids, grad.contiguous(), counts, ctx.num_neurons), None, None


def dense_to_sparse(x: torch.Tensor, max_spikes: Optional[int] = None, *, overflow: str = "lowest") -> SparseSpikes:
    r"""Return the nonzero elements of a dense tensor, with their values, as :class:`snnipu.SparseSpikes`.

    .. math::

        \{(i_s, v_s)\}_{t,b} = \{(n, x_{tbn}) : x_{tbn} \neq 0\}

    The gradient of ``x`` is that of the values, and 0 for elements without a slot.

    Args:
        x: ``[T, B, N]``, floating; float16 and bfloat16 are converted to float32. NaN counts as nonzero.
        max_spikes: the number of slots. None: as many as the busiest step needs.
        overflow: the order in which elements are dropped if more are nonzero, see :func:`select_spikes`.

    Returns:
        SparseSpikes with ids in ascending order. All carried slots are spikes.

    Raises:
        TypeError, ValueError: a dtype, shape or option is wrong; the message names the argument.

    Source: the format of Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
    """
    x = dense_argument("x", x)
    if _route.uses_operator("dense_to_sparse", "DenseToSparse"):
        check_max_spikes(max_spikes)
        return _route.call("dense_to_sparse", x, max_spikes, overflow_code(overflow))
    capacity = capacity_argument(max_spikes, x.shape[2], x)
    ids, values, counts, dropped = DenseToSparse.apply(x, capacity, overflow_code(overflow))
    return SparseSpikes._trusted(ids, values, counts, x.shape[2], dropped)


def dense_argument(name: str, x: Any) -> torch.Tensor:
    """Check that ``x`` is a floating tensor ``[T, B, N]`` with N of 1 or more; return it in float32 or float64."""
    check_tensor(name, x)
    if x.dim() != 3 or x.shape[2] == 0:
        raise ValueError(f"{name} must have shape [T, B, N] with N of 1 or more, got {tuple(x.shape)}")
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
