"""What is particular to ``snnipu.ops.sparse_conv_lif_sequence``: the contract of all is in test_sparse_contract.py."""

import pytest
import torch
from oracle import (
    needs_kernel,
    random_spikes,
)

from snnipu.ops._maps import conv_geometry
from snnipu.ops._slots import AS_NEEDED


@needs_kernel("sparse_conv_lif_sequence_fwd")
@pytest.mark.parametrize("wrong", [-1, 192])
@pytest.mark.parametrize("step", [0, 3])  # with the delay, spikes of the last step arrive at none
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True])
def test_ids_that_are_none_are_refused_in_every_row(delay, step, wrong, per_channel):
    spikes = random_spikes(4, 3, 192, 0.2, 0.1)
    weight = torch.randn(70, 3, 3, 3) / 4
    threshold = torch.full((70,), 0.5) if per_channel else torch.tensor(0.5)
    parameters = (torch.tensor(0.9), threshold, list(conv_geometry(weight, (8, 8), (1, 1), (1, 1), (1, 1), 1)))
    kernel = (1.0, 1, delay)

    def forward(ids):
        return torch.ops.snnipu.sparse_conv_lif_sequence_fwd(
            ids, spikes.values, spikes.counts, weight, None, *parameters, 0.3, 1.0, AS_NEEDED, False, 1, delay, True
        )

    def backward(ids, own):
        kept = (own, out[2], out[4], out[5], out[6])
        torch.ops.snnipu.sparse_conv_lif_sequence_bwd(
            out[1], ids, spikes.values, spikes.counts, weight, *parameters, *kernel, *kept, 2, 10.0, 0.0, *[True] * 5
        )

    out = forward(spikes.ids)
    backward(spikes.ids, out[0])
    ids, own = spikes.ids.clone(), out[0].clone()
    ids[step, 2, 1] = wrong
    own[3, 2, 1] = -1 if wrong < 0 else 70 * 64  # before the delay is over the layer itself has no slots
    assert out[2][3, 2, 1] > 1
    for call in (forward, lambda given: backward(given, out[0])):
        with pytest.raises(
            ValueError, match=f"ids must be from 0 to 191, got {wrong} at step {step}, sample 2, slot 1"
        ):
            call(ids)
    with pytest.raises(RuntimeError, match="sparse_conv_lif_sequence_bwd refused its arguments"):
        backward(spikes.ids, own)
