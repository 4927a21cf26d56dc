"""The contract of ``snnipu.ops.sparse_to_dense``."""

import itertools

import pytest
import torch
from oracle import (
    assert_all_equal,
    at_slots,
    densified,
    needs_kernel,
    poison_new_tensors,
    random_spikes,
    reference_of,
    with_threads,
    with_workers,
)
from support.versions import needs_compile

from snnipu import SparseSpikes, ops

SIZES = [1, 5, 63, 64, 65, 200]

needs_native = needs_kernel("sparse_to_dense_fwd")


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


@pytest.mark.parametrize("shape", [(0, 2, 3), (3, 0, 3), (3, 2, 0), (0, 0, 0)])
def test_empty(shape, poisoned):
    ids = torch.zeros(shape, dtype=torch.int32)
    values = torch.zeros(shape, requires_grad=True)
    spikes = SparseSpikes(ids, values, torch.zeros(*shape[:2], 2, dtype=torch.int32), 5)
    dense = ops.sparse_to_dense(spikes)
    assert torch.equal(dense, torch.zeros(*shape[:2], 5))
    dense.sum().backward()
    assert torch.equal(values.grad, torch.zeros(shape))


def test_non_contiguous(poisoned):
    spikes = random_spikes(6, 4, 30, graded=True)
    parts = [tensor.transpose(0, 1) for tensor in (spikes.ids, spikes.values, spikes.counts)]
    assert not parts[0].is_contiguous()
    across = SparseSpikes(*parts, 30)
    assert torch.equal(across.to_dense(), densified(spikes.values, spikes).transpose(0, 1))
    across.requires_grad_()
    across.to_dense().sum().backward()  # an expanded upstream gradient
    assert torch.equal(across.values.grad, at_slots(torch.ones(4, 6, 30), across))
    every_second = spikes[::2, 1::2]
    assert torch.equal(every_second.to_dense(), densified(spikes.values, spikes)[::2, 1::2])


def test_round_trip():
    x = torch.randn(4, 3, 65) * (torch.rand(4, 3, 65) < 0.3)
    leaf = x.clone().requires_grad_()
    dense = ops.dense_to_sparse(leaf).to_dense()
    assert torch.equal(dense, x)
    upstream = torch.randn_like(x)
    dense.backward(upstream)
    assert torch.equal(leaf.grad, upstream * (x != 0))


def test_gradcheck():
    spikes = random_spikes(3, 2, 9, 0.3, 0.3, slack=0, graded=True, dtype=torch.float64)
    values = at_slots(spikes.to_dense(), spikes).requires_grad_()

    def function(values):
        return ops.sparse_to_dense(SparseSpikes(spikes.ids, values, spikes.counts, 9))

    assert torch.autograd.gradcheck(function, values)


def test_second_derivative_is_refused():
    spikes = random_spikes(3, 2, 9, 0.3).requires_grad_()
    (gradient,) = torch.autograd.grad((spikes.to_dense() ** 2).sum(), spikes.values, create_graph=True)
    with pytest.raises(RuntimeError, match="a second derivative through snnipu's sparse_to_dense"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spikes: spikes.ids[1, 0].fill_(9), "ids must be from 0 to 8, got 9 at step 1, sample 0, slot 0"),
        (lambda spikes: spikes.ids[1, 0].fill_(-1), "ids must be from 0 to 8, got -1"),
        (lambda spikes: spikes.counts[2, 1].fill_(99), "counts must satisfy .* got .*99, 99.* at step 2, sample 1"),
        (lambda spikes: spikes.counts[2, 1, 0].fill_(-1), "counts must satisfy"),
        (lambda spikes: spikes.counts[2, 1, 1].fill_(0), "counts must satisfy"),
    ],
)
def test_tensors_changed_after_construction_are_noticed(change, message):
    for direction in ("forward", "backward"):
        spikes = random_spikes(3, 2, 9, 0.9, 0.0).requires_grad_()
        dense = spikes.to_dense() if direction == "backward" else None
        with torch.no_grad():
            spikes.ids, spikes.counts = spikes.ids.clone(), spikes.counts.clone()
            change(spikes)
        if dense is None:
            with pytest.raises(ValueError, match=message):
                spikes.to_dense()
        else:
            with pytest.raises(ValueError, match=message):
                torch.ops.snnipu.sparse_to_dense_bwd(torch.ones_like(dense), spikes.ids, spikes.counts)


# ---- kernels


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("neurons", SIZES)
def test_kernels_equal_the_reference(neurons, dtype, poisoned):
    for rate, carried in ((0.0, 0.0), (0.0, 0.3), (0.2, 0.2), (1.0, 0.0)):
        spikes = random_spikes(6, 3, neurons, rate, carried, graded=True, dtype=dtype)
        arguments = (spikes.ids, spikes.values, spikes.counts, neurons)
        dense = torch.ops.snnipu.sparse_to_dense_fwd(*arguments)
        assert_all_equal([(reference_of("sparse_to_dense_fwd")(*arguments),), (dense,)])
        arguments = (torch.randn_like(dense), spikes.ids, spikes.counts)
        expected = reference_of("sparse_to_dense_bwd")(*arguments)
        assert_all_equal([(expected,), (torch.ops.snnipu.sparse_to_dense_bwd(*arguments),)])


@needs_native
def test_workers_and_threads_do_not_change_a_bit():
    spikes = random_spikes(40, 16, 149, graded=True)
    upstream = torch.randn(spikes.shape)

    def run():
        return (
            torch.ops.snnipu.sparse_to_dense_fwd(spikes.ids, spikes.values, spikes.counts, 149),
            torch.ops.snnipu.sparse_to_dense_bwd(upstream, spikes.ids, spikes.counts),
        )

    assert_all_equal(with_workers(run) + with_threads(run))


def test_opcheck():
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch.library.opcheck came with torch 2.4")
    tests = ("test_schema", "test_faketensor")
    forward, backward = torch.ops.snnipu.sparse_to_dense_fwd.default, torch.ops.snnipu.sparse_to_dense_bwd.default
    for dtype, rows in itertools.product((torch.float32, torch.float64), ((3, 2), (0, 2), (3, 0))):
        spikes = random_spikes(*rows, 9, graded=True, dtype=dtype)
        torch.library.opcheck(forward, (spikes.ids, spikes.values, spikes.counts, 9), test_utils=tests)
        grad = torch.randn(*rows, 9, dtype=dtype)
        torch.library.opcheck(backward, (grad, spikes.ids, spikes.counts), test_utils=tests)


@needs_compile
def test_compiles_into_one_graph():
    spikes = random_spikes(4, 3, 20)

    def loss(values):
        dense = ops.sparse_to_dense(SparseSpikes._trusted(spikes.ids, values, spikes.counts, 20))
        return (dense * torch.arange(20.0)).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for function in (loss, compiled):
        values = at_slots(spikes.to_dense(), spikes).requires_grad_()
        out = function(values)
        out.backward()
        results.append((out.detach(), values.grad))
    assert_all_equal(results)


@pytest.mark.parametrize("spikes", [torch.zeros(4, 2, 3), None, [1]])
def test_bad_input(spikes):
    with pytest.raises(TypeError, match=r"spikes must be a snnipu\.SparseSpikes, got"):
        ops.sparse_to_dense(spikes)
