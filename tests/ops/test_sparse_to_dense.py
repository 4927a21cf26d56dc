"""What is particular to ``snnipu.ops.sparse_to_dense``: the contract of all is in test_sparse_contract.py."""

import pytest
import torch
from oracle import (
    at_slots,
    densified,
    poison_new_tensors,
    random_spikes,
)

from snnipu import SparseSpikes, ops

SIZES = [1, 5, 63, 64, 65, 200]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    poison_new_tensors(monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("neurons", SIZES)
def test_equals_the_oracle(neurons, dtype, poisoned):
    """Padding, whatever it holds, is neither read nor given a gradient; gradient-only slots are."""
    for rate, carried in ((0.0, 0.0), (0.0, 0.3), (0.2, 0.2), (1.0, 0.0)):
        spikes = random_spikes(4, 3, neurons, rate, carried, graded=True, dtype=dtype).requires_grad_()
        dense = ops.sparse_to_dense(spikes)
        assert dense.dtype == dtype
        assert torch.equal(dense, densified(spikes.values, spikes))
        upstream = torch.randn_like(dense)
        dense.backward(upstream)
        assert torch.equal(spikes.values.grad, at_slots(upstream, spikes))


def test_values_of_gradient_only_slots_are_added():
    ids = torch.tensor([[[4, 1, 3, 9]]], dtype=torch.int32)
    counts = torch.tensor([[[1, 3]]], dtype=torch.int32)
    spikes = SparseSpikes(ids, torch.tensor([[[1.0, 0.0, 0.25, 7.0]]]), counts, 5)
    assert ops.sparse_to_dense(spikes).tolist() == [[[0.0, 0.0, 0.0, 0.25, 1.0]]]


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_ids_in_any_order(order, poisoned):
    ids = torch.arange(70, dtype=torch.int32).expand(2, 3, 70)
    spikes = SparseSpikes(
        ids if order == "ascending" else ids.flip(-1),
        torch.arange(70.0).expand(2, 3, 70),
        torch.full((2, 3, 2), 70, dtype=torch.int32),
        70,
    )
    expected = torch.arange(70.0) if order == "ascending" else torch.arange(70.0).flip(0)
    assert torch.equal(spikes.to_dense(), expected.expand(2, 3, 70))


def test_round_trip():
    x = torch.randn(4, 3, 65) * (torch.rand(4, 3, 65) < 0.3)
    leaf = x.clone().requires_grad_()
    dense = ops.dense_to_sparse(leaf).to_dense()
    assert torch.equal(dense, x)
    upstream = torch.randn_like(x)
    dense.backward(upstream)
    assert torch.equal(leaf.grad, upstream * (x != 0))


# ---- kernels
