"""Tests specific to ``snnipu.ops.sparse_pool2d``; test_sparse_contract.py tests the common contract."""

import torch

from snnipu import SparseSpikes, ops


def one_map(rows, carried=()):
    """Return spikes of one map at one step; ``carried`` are ids of neurons that only carry gradient."""
    dense = torch.tensor(rows)
    flat = dense.flatten()
    spiking = flat.nonzero().flatten().tolist()
    ids = torch.tensor([[[*spiking, *carried]]], dtype=torch.int32)
    values = torch.tensor([[[*flat[spiking].tolist(), *[0.0] * len(carried)]]], requires_grad=True)
    counts = torch.tensor([[[len(spiking), len(spiking) + len(carried)]]], dtype=torch.int32)
    return SparseSpikes(ids, values, counts, flat.numel(), map_shape=(1, *dense.shape))


def test_a_maximum_and_where_its_gradient_goes():
    spikes = one_map(
        [[0.0, 2.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [-1.0, 0.0, -1.0, -2.0], [0.0, 0.0, -3.0, -4.0]], (2, 7)
    )
    out = ops.sparse_pool2d(spikes, 2)
    # Windows: a maximum of 3, a silent one with two carried neurons and a hidden negative value, an all-negative one.
    assert out.ids.tolist() == [[[0, 3, 1]]]
    assert out.values.tolist() == [[[3.0, -1.0, 0.0]]]
    assert out.counts.tolist() == [[[2, 3]]]
    out.values.backward(torch.tensor([[[1.0, 10.0, 100.0]]]))
    assert spikes.ids.tolist() == [[[1, 4, 8, 10, 11, 14, 15, 2, 7]]]
    assert spikes.values.grad.tolist() == [[[0.0, 1.0, 0.0, 10.0, 0.0, 0.0, 0.0, 100.0, 0.0]]]


def test_a_sum_of_zero_carries_gradient_and_is_no_spike():
    out = ops.sparse_pool2d(one_map([[1.0, -1.0]]), (1, 2), mode="sum")
    assert out.counts.tolist() == [[[0, 1]]]
