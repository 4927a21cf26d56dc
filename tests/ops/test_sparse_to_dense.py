"""Tests specific to ``snnipu.ops.sparse_to_dense``; test_sparse_contract.py tests the common contract."""

import pytest
import torch
from oracle import (
    at_slots,
    densified,
    random_spikes,
)

from snnipu import ops


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("neurons", [1, 63, 64, 65, 200])
def test_equals_the_oracle(neurons, dtype, poisoned):
    """Padding of any content is not read and has no gradient; gradient-only slots have both."""
    for rate, carried in ((0.0, 0.0), (0.0, 0.3), (0.2, 0.2), (1.0, 0.0)):
        spikes = random_spikes(4, 3, neurons, rate, carried, graded=True, dtype=dtype).requires_grad_()
        dense = ops.sparse_to_dense(spikes)
        assert dense.dtype == dtype
        assert torch.equal(dense, densified(spikes.values, spikes))
        upstream = torch.randn_like(dense)
        dense.backward(upstream)
        assert torch.equal(spikes.values.grad, at_slots(upstream, spikes))
