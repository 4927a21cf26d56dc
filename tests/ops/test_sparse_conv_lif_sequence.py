"""What is particular to ``snnipu.ops.sparse_conv_lif_sequence``: the contract of all is in test_sparse_contract.py."""

import pytest
import torch
from oracle import (
    needs_kernel,
    on_grid,
    poison_new_tensors,
    random_spikes,
    relative_error,
)

from snnipu import SparseSpikes, ops, surrogate
from snnipu.ops._maps import conv_geometry
from snnipu.ops._slots import AS_NEEDED

SPIKES = SparseSpikes.from_dense(torch.ones(2, 1, 2 * 3 * 4)).with_maps((2, 3, 4))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    poison_new_tensors(monkeypatch)


@pytest.mark.parametrize("reset", ["subtract", "zero", "none"])
@pytest.mark.parametrize("delay", [0, 1])
def test_equals_the_layers_one_by_one(reset, delay, poisoned):
    """Convolution, fused neurons and selection, whose gradients PyTorch chains."""
    spikes = random_spikes(9, 3, 3 * 8 * 8, 0.1, 0.1).with_maps((3, 8, 8))
    own, other = (
        [t.requires_grad_() for t in leaves] for leaves in _twice(on_grid(20, 3, 3, 3), torch.rand(20) / 2 + 0.4)
    )
    values = [spikes.values.nan_to_num(0).requires_grad_() for _ in range(2)]
    results = []
    for (weight, beta), slot_values, fused in ((own, values[0], True), (other, values[1], False)):
        x = SparseSpikes._trusted(spikes.ids, slot_values, spikes.counts, 192, map_shape=(3, 8, 8))
        options = {"spike_grad": surrogate.fast_sigmoid(10)}
        if fused:
            out = ops.sparse_conv_lif_sequence(
                x, weight, beta=beta, threshold=0.5, grad_threshold=0.25, reset_mechanism=reset, delay=delay, **options
            )
        else:
            current = ops.sparse_conv2d(x, weight)
            current = torch.cat([torch.zeros_like(current[:delay]), current[: 9 - delay]])
            _, mem = ops.lif_sequence(
                current, beta=beta.reshape(-1, 1, 1), threshold=0.5, reset_mechanism=reset, **options
            )
            out = ops.select_spikes(mem.flatten(2), 0.5, 0.25, **options)
        weights = torch.arange(out.num_neurons).float()[out.ids.long()] % 7
        used = torch.arange(out.capacity) < out.counts[..., 1:]
        out.values.backward(torch.where(used, weights, torch.zeros(())))
        results.append((out, weight.grad, beta.grad, slot_values.grad))
    assert results[0][0].num_spikes > 50
    for name in ("ids", "counts", "values"):
        assert torch.equal(getattr(results[0][0], name), getattr(results[1][0], name)), name
    for a, b in zip(results[0][1:], results[1][1:]):
        assert relative_error(a, b) <= 1e-5


def _twice(*tensors):
    return [t.clone() for t in tensors], [t.clone() for t in tensors]


def test_dropped_spikes_are_counted():
    out = ops.sparse_conv_lif_sequence(SPIKES, torch.ones(5, 2, 2, 2), beta=0.5, max_spikes=4, grad_threshold=0.5)
    assert out.counts.tolist() == [[[4, 4]], [[4, 4]]]
    assert out.dropped.tolist() == [[[26, 26]], [[26, 26]]]
    assert out.overflow == 52
    assert out.map_shape == (5, 2, 3)


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
