"""Tests specific to ``snnipu.ops.sparse_linear``; test_sparse_contract.py tests the common contract."""

import torch
from oracle import (
    densified,
    on_grid,
    random_spikes,
)

from snnipu import SparseSpikes, ops


def test_values_of_gradient_only_slots_are_not_added_but_get_a_gradient(poisoned):
    ids = torch.tensor([[[2, 0, 1, 2]]], dtype=torch.int32)
    values = torch.tensor([[[1.5, 100.0, 100.0, 100.0]]], requires_grad=True)
    spikes = SparseSpikes(ids, values, torch.tensor([[[1, 2]]], dtype=torch.int32), 3)
    weight = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]], requires_grad=True)
    out = ops.sparse_linear(spikes, weight)
    assert out.tolist() == [[[6.0, 48.0]]]
    out.backward(torch.tensor([[[1.0, 10.0]]]))
    assert values.grad.tolist() == [[[324.0, 81.0, 0.0, 0.0]]]
    assert weight.grad.tolist() == [[0.0, 0.0, 1.5], [0.0, 0.0, 15.0]]


def test_nan_weights(poisoned):
    """NaN reaches every row that reads the weight, and no other output neuron nor the weight's gradient."""
    spikes = random_spikes(4, 3, 20, 0.3, 0.0).requires_grad_()
    weight = torch.zeros(65, 20)
    weight[3, 7] = float("nan")
    weight.requires_grad_()
    out = ops.sparse_linear(spikes, weight)
    read = densified(spikes.values, spikes)[..., 7] != 0
    assert read.any()
    assert out.detach()[..., 3][read].isnan().all()
    others = [n for n in range(65) if n != 3]
    assert (out.detach()[..., others] == 0).all()
    out.sum().backward()
    assert torch.equal(weight.grad, densified(spikes.values, spikes).sum((0, 1)).expand(65, 20))


def test_ids_beyond_16_bits():
    inputs, outputs = 70_000, 20
    ids = torch.tensor([3, 65_535, 65_536, 69_999], dtype=torch.int32).expand(2, 3, 4).contiguous()
    counts = torch.tensor([3, 4], dtype=torch.int32).expand(2, 3, 2).contiguous()
    values = torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(2, 3, 1).requires_grad_()
    weight = on_grid(outputs, inputs).requires_grad_()
    out = ops.sparse_linear(SparseSpikes(ids, values, counts, inputs), weight)
    assert torch.equal(out, weight[:, [3, 65_535, 65_536]].sum(1).expand(2, 3, outputs))
    upstream = on_grid(2, 3, outputs)
    (out * upstream).sum().backward()
    expected = torch.zeros_like(weight)
    expected[:, [3, 65_535, 65_536]] = upstream.sum((0, 1))[:, None]
    assert torch.equal(weight.grad, expected)
    assert torch.equal(values.grad, upstream @ weight[:, [3, 65_535, 65_536, 69_999]].detach())
