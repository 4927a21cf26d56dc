"""What is particular to ``snnipu.ops.dense_to_sparse``: the contract of all is in test_sparse_contract.py."""

import itertools

import pytest
import torch
from oracle import (
    poison_new_tensors,
    slots_of,
)

from snnipu import ops

SIZES = [1, 5, 63, 64, 65, 200]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    poison_new_tensors(monkeypatch)


def some(steps, batch, neurons, rate=0.3, dtype=torch.float32):
    """Random values, most of them 0, some -0."""
    x = torch.randn(steps, batch, neurons, dtype=dtype)
    return torch.where(torch.rand_like(x) < rate, x, -0.0 * torch.ones_like(x))


def assert_holds(spikes, x, max_spikes=None, overflow="lowest"):
    """Exactly the elements that are to be kept, with their values; padding is 0."""
    expected = slots_of(x != 0, x != 0, max_spikes, overflow, x.dtype)
    assert torch.equal(spikes.counts, expected.counts)
    assert torch.equal(spikes.ids, expected.ids)
    assert torch.equal(spikes.dropped, expected.dropped)
    assert spikes.values.dtype == x.dtype
    for t, b in itertools.product(range(x.shape[0]), range(x.shape[1])):
        used = int(expected.counts[t, b, 0])
        assert int(expected.counts[t, b, 1]) == used
        kept = spikes.values.detach()[t, b]
        assert torch.equal(kept[:used], x.detach()[t, b, expected.ids[t, b, :used].long()])
        assert torch.equal(kept[used:], torch.zeros(len(kept) - used, dtype=x.dtype))
    return expected.taken


def test_what_is_kept(poisoned):
    x = torch.tensor([0.0, 2.0, 0.0, -1.0, 0.5, 0.0, 3.0, 1.0]).expand(3, 1, 8)
    spikes = ops.dense_to_sparse(x)
    assert spikes.ids.tolist() == [[[1, 3, 4, 6, 7]]] * 3
    assert spikes.values.tolist() == [[[2.0, -1.0, 0.5, 3.0, 1.0]]] * 3
    assert spikes.counts.tolist() == [[[5, 5]]] * 3
    assert spikes.overflow == 0
    spikes = ops.dense_to_sparse(x, 3)
    assert spikes.ids.tolist() == [[[1, 3, 4]]] * 3
    assert spikes.dropped.tolist() == [[[2, 2]]] * 3
    # From 0, 3 and 6 on.
    spikes = ops.dense_to_sparse(x, 3, overflow="rotate")
    assert spikes.ids.tolist() == [[[1, 3, 4]], [[3, 4, 6]], [[1, 6, 7]]]
    assert spikes.values.tolist() == [[[2.0, -1.0, 0.5]], [[-1.0, 0.5, 3.0]], [[2.0, 3.0, 1.0]]]
    assert spikes.overflow == 6


@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
@pytest.mark.parametrize("max_spikes", [None, 900])
@pytest.mark.parametrize("neurons", [8191, 8192, 20001])
def test_rows_that_are_looked_at_in_pieces(neurons, max_spikes, overflow, poisoned):
    x = some(3, 2, neurons, 0.1)
    x[0, 0, [0, -1]] = torch.tensor([float("nan"), float("-inf")])
    spikes = ops.dense_to_sparse(x, max_spikes, overflow=overflow)
    expected = slots_of(x != 0, x != 0, max_spikes, overflow, x.dtype)
    for name in ("ids", "counts", "dropped"):
        assert torch.equal(getattr(spikes, name), getattr(expected, name))
    used = torch.arange(spikes.capacity) < spikes.counts[..., 1:]
    kept = torch.where(used, x.gather(2, spikes.ids.long()), torch.zeros(()))
    torch.testing.assert_close(spikes.values, kept, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
@pytest.mark.parametrize("max_spikes", [None, 0, 1, 9, 64, 1000])
@pytest.mark.parametrize("neurons", SIZES)
def test_equals_the_oracle(neurons, max_spikes, overflow, dtype, poisoned):
    for rate in (0.0, 0.3, 1.0):
        x = some(4, 3, neurons, rate, dtype).requires_grad_()
        spikes = ops.dense_to_sparse(x, max_spikes, overflow=overflow)
        taken = assert_holds(spikes, x, max_spikes, overflow)
        upstream = torch.randn_like(x)
        used = torch.arange(spikes.capacity) < spikes.counts[..., 1:]
        at_ids = torch.where(used, upstream.gather(2, spikes.ids.long()), torch.tensor(1e6, dtype=dtype))
        spikes.values.backward(at_ids)
        assert torch.equal(x.grad, torch.where(taken, upstream, torch.zeros_like(upstream)))


def test_nan_and_infinity_count_as_nonzero(poisoned):
    x = torch.zeros(1, 1, 70)
    x[0, 0, 3], x[0, 0, 64], x[0, 0, 69] = float("nan"), float("inf"), -float("inf")
    spikes = ops.dense_to_sparse(x)
    assert spikes.ids.tolist() == [[[3, 64, 69]]]
    assert torch.equal(spikes.values.isnan(), torch.tensor([[[True, False, False]]]))
    assert spikes.values[0, 0, 1:].tolist() == [float("inf"), -float("inf")]


def test_tiny_values_are_kept(poisoned):
    x = torch.tensor([0.0, 1e-45, -1e-45, 1e-38, 0.0]).reshape(1, 1, 5)
    assert ops.dense_to_sparse(x).ids.tolist() == [[[1, 2, 3]]]


# ---- kernels
