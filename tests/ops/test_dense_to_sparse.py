"""Tests specific to ``snnipu.ops.dense_to_sparse``; test_sparse_contract.py tests the common contract."""

import pytest
import torch
from oracle import (
    slots_of,
)

from snnipu import ops


@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
@pytest.mark.parametrize("max_spikes", [None, 900])
@pytest.mark.parametrize("neurons", [8191, 8192, 20001])
def test_rows_that_are_looked_at_in_pieces(neurons, max_spikes, overflow, poisoned):
    x = torch.randn(3, 2, neurons) * (torch.rand(3, 2, neurons) < 0.1)
    x[0, 0, [0, -1]] = torch.tensor([float("nan"), float("-inf")])
    spikes = ops.dense_to_sparse(x, max_spikes, overflow=overflow)
    expected = slots_of(x != 0, x != 0, max_spikes, overflow, x.dtype)
    for name in ("ids", "counts", "dropped"):
        assert torch.equal(getattr(spikes, name), getattr(expected, name))
    used = torch.arange(spikes.capacity) < spikes.counts[..., 1:]
    values = torch.where(used, x.gather(2, spikes.ids.long()), torch.zeros(()))
    torch.testing.assert_close(spikes.values, values, rtol=0, atol=0, equal_nan=True)


def test_nan_infinity_and_tiny_numbers_are_no_zeros(poisoned):
    x = torch.zeros(1, 1, 70)
    numbers = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e-45, -1e-45])
    x[0, 0, [3, 64, 69, 68, 5]] = numbers
    x[0, 0, 4] = -0.0
    spikes = ops.dense_to_sparse(x)
    assert spikes.ids.tolist() == [[[3, 5, 64, 68, 69]]]
    torch.testing.assert_close(spikes.values[0, 0], numbers[[0, 4, 1, 3, 2]], rtol=0, atol=0, equal_nan=True)
