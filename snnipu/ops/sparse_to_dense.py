"""Conversion of spikes to a dense tensor: public function, schema, meta, autograd, reference."""

from typing import Any, Tuple

import torch

from snnipu import _route
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._records import define
from snnipu.ops._slots import check_spikes, gather, scatter
from snnipu.spikes import SparseSpikes, check_ids


def sparse_to_dense_fwd_reference(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, num_neurons: int
) -> torch.Tensor:
    """Compute ``snnipu::sparse_to_dense_fwd`` in plain PyTorch."""
    check_ids(ids, counts, num_neurons)
    return scatter(values, ids, counts, num_neurons).contiguous()


def sparse_to_dense_bwd_reference(grad: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Compute ``snnipu::sparse_to_dense_bwd`` in plain PyTorch."""
    check_ids(ids, counts, grad.shape[2])
    return gather(grad, ids, counts)


def _fwd_meta(ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> torch.Tensor:
    return values.new_empty((*ids.shape[:2], num_neurons))


def values_meta(grad: torch.Tensor, ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return grad.new_empty(ids.shape)


define(sparse_to_dense_fwd_reference, _fwd_meta)
define(sparse_to_dense_bwd_reference, values_meta)


class SparseToDense(torch.autograd.Function):
    """The autograd function of ``snnipu::sparse_to_dense_fwd`` and ``snnipu::sparse_to_dense_bwd``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, values: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor, num_neurons: int
    ) -> torch.Tensor:
        ctx.save_for_backward(ids, counts)
        return torch.ops.snnipu.sparse_to_dense_fwd(ids, values, counts, num_neurons)

    @staticmethod
    @once_differentiable("sparse_to_dense")
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        ids, counts = ctx.saved_tensors
        return torch.ops.snnipu.sparse_to_dense_bwd(grad.contiguous(), ids, counts), None, None, None


def sparse_to_dense(spikes: SparseSpikes) -> torch.Tensor:
    r"""Convert spikes to a dense tensor.

    .. math::

        x_{tbn} = \sum_{s\,:\,i_{tbs} = n} v_{tbs}

    over the carried slots. A gradient-only slot has value 0, and gets the gradient of its element.

    Args:
        spikes: SparseSpikes.

    Returns:
        ``[T, B, N]`` in the dtype of ``spikes.values``, differentiable in them.

    Raises:
        TypeError: ``spikes`` is no SparseSpikes.
        ValueError: an id or count is out of range, because the tensors were changed after construction. On CUDA such
            slots are ignored, as in :func:`sparse_linear`.

    Source: the format of Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
    """
    spikes = check_spikes("spikes", spikes)
    if _route.uses_operator("sparse_to_dense", "SparseToDense"):
        return _route.call("sparse_to_dense", spikes)
    return SparseToDense.apply(spikes.values, spikes.ids, spikes.counts, spikes.num_neurons)
