"""What is particular to ``snnipu.ops.sparse_linear``: the contract of all is in test_sparse_contract.py."""

import itertools

import pytest
import torch
from oracle import (
    at_slots,
    densified,
    on_grid,
    poison_new_tensors,
    random_spikes,
    relative_error,
)

from snnipu import SparseSpikes, ops

SIZES = [1, 5, 63, 64, 65, 200]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    poison_new_tensors(monkeypatch)


def spikes_alone(spikes):
    """Dense values of the spikes, without what the gradient-only slots hold."""
    fired = torch.arange(spikes.capacity) < spikes.counts[..., :1]
    values = torch.where(fired, spikes.values.detach(), torch.zeros((), dtype=spikes.dtype))
    return densified(values, spikes)


def both(spikes, weight, bias=None):
    """Output and gradients of values, weight and bias: nn.functional.linear's on the dense spikes, then ours."""
    dense = spikes_alone(spikes).to(weight.dtype).requires_grad_()
    theirs = [p if p is None else p.detach().clone().requires_grad_() for p in (weight, bias)]
    expected = torch.nn.functional.linear(dense, *theirs)
    upstream = torch.randn_like(expected)
    (expected * upstream).sum().backward()
    ours = [p if p is None else p.detach().clone().requires_grad_() for p in (weight, bias)]
    values = spikes.values.detach().clone().requires_grad_()
    out = ops.sparse_linear(SparseSpikes(spikes.ids, values, spikes.counts, spikes.num_neurons), *ours)
    (out * upstream).sum().backward()
    grads = [p.grad for p in (values, *ours) if p is not None]
    return (expected, [at_slots(dense.grad, spikes), *(p.grad for p in theirs if p is not None)]), (out, grads)


def assert_same(results, tolerance=1e-6, exact=True):
    (expected, expected_grads), (out, grads) = results
    assert out.dtype == expected.dtype
    if exact:
        assert torch.equal(out, expected)
    elif out.numel():
        assert relative_error(out, expected) <= tolerance
    assert out.shape == expected.shape
    for own, other in zip(grads, expected_grads):
        assert own.shape == other.shape
        if own.numel() and expected.numel():
            assert relative_error(own, other, terms=expected) <= tolerance
        else:
            assert not own.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [*itertools.product(SIZES[:3], SIZES[3:]), (200, 1), (64, 200), (3, 5)])
def test_equals_the_dense_product(inputs, outputs, bias, dtype, poisoned):
    """Weights are such that sums are exact, in whatever order."""
    for rate, carried, graded in ((0.0, 0.0, False), (0.0, 0.3, False), (0.2, 0.2, True), (1.0, 0.0, True)):
        spikes = random_spikes(4, 3, inputs, rate, carried, graded=graded, dtype=dtype)
        weight = on_grid(outputs, inputs, dtype=dtype)
        offset = on_grid(outputs, dtype=dtype) if bias else None
        assert_same(both(spikes, weight, offset), 2e-6 if dtype == torch.float32 else 1e-14)


def test_any_weights(poisoned):
    spikes = random_spikes(5, 4, 300, graded=True)
    assert_same(both(spikes, torch.randn(77, 300), torch.randn(77)), exact=False)


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


@pytest.mark.parametrize("outputs", [1, 65])
def test_no_slots(outputs, poisoned):
    spikes = SparseSpikes(
        torch.zeros(3, 2, 0, dtype=torch.int32), torch.zeros(3, 2, 0), torch.zeros(3, 2, 2, dtype=torch.int32), 7
    )
    bias = on_grid(outputs)
    results = both(spikes, on_grid(outputs, 7), bias)
    assert_same(results)
    assert torch.equal(results[1][0], bias.expand(3, 2, outputs))


def test_nan_weights(poisoned):
    """They reach every row that reads them, and no other output neuron; the weight's gradient has no part in them."""
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


# ---- kernels


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
