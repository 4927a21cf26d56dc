"""What is particular to ``snnipu.ops.sparse_conv2d``: the contract of all is in test_sparse_contract.py."""

import pytest
import torch
from oracle import on_grid, poison_new_tensors, random_spikes

from snnipu import SparseSpikes, ops


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    poison_new_tensors(monkeypatch)


@pytest.mark.parametrize("outputs", [1, 16, 17, 64, 65, 130])
def test_blocks_of_output_channels(outputs, poisoned):
    spikes = random_spikes(4, 3, 3 * 6 * 7, graded=True).with_maps((3, 6, 7)).requires_grad_()
    dense = torch.where(torch.arange(spikes.capacity) < spikes.counts[..., :1], spikes.values.detach(), torch.zeros(()))
    x = SparseSpikes._trusted(spikes.ids, dense, spikes.counts, spikes.num_neurons).to_dense().requires_grad_()
    own, other = (on_grid(outputs, 3, 3, 3).requires_grad_() for _ in range(2))
    other.data.copy_(own.data)
    out = ops.sparse_conv2d(spikes, own, padding=1, stride=(2, 1))
    expected = torch.nn.functional.conv2d(x.reshape(-1, 3, 6, 7), other, padding=1, stride=(2, 1))
    assert torch.equal(out.flatten(0, 1), expected)
    upstream = on_grid(*expected.shape)
    expected.backward(upstream)
    out.backward(upstream.reshape(out.shape))
    assert torch.equal(own.grad, other.grad)


@pytest.mark.parametrize("size", [1, 5, 63])
def test_long_maps(size, poisoned):
    spikes = random_spikes(2, 2, size, graded=True).with_maps((1, 1, size))
    weight = on_grid(2, 1, 1, 3)
    out = ops.sparse_conv2d(spikes, weight, padding=(0, 1))
    values = torch.where(torch.arange(spikes.capacity) < spikes.counts[..., :1], spikes.values, torch.zeros(()))
    x = SparseSpikes._trusted(spikes.ids, values, spikes.counts, size).to_dense()
    expected = torch.nn.functional.conv2d(x.reshape(-1, 1, 1, size), weight, padding=(0, 1))
    assert torch.equal(out.flatten(0, 1), expected)
