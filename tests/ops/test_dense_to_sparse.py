"""The contract of ``snnipu.ops.dense_to_sparse``."""

import itertools

import pytest
import torch
from oracle import (
    assert_all_equal,
    needs_kernel,
    poison_new_tensors,
    reference_of,
    slots_of,
    with_threads,
    with_workers,
)
from support.versions import needs_compile

from snnipu import ops
from snnipu.ops._slots import AS_NEEDED

SIZES = [1, 5, 63, 64, 65, 200]

needs_native = needs_kernel("dense_to_sparse_fwd")


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


@pytest.mark.parametrize("shape", [(0, 2, 5), (3, 0, 5), (0, 0, 5), (1, 1, 1), (1, 2, 65)])
@pytest.mark.parametrize("max_spikes", [None, 0, 2])
def test_empty_and_single(shape, max_spikes, poisoned):
    for overflow in ("lowest", "rotate"):
        x = torch.ones(shape, requires_grad=True)
        spikes = ops.dense_to_sparse(x, max_spikes, overflow=overflow)
        assert spikes.shape == shape
        taken = assert_holds(spikes, x, max_spikes, overflow)
        spikes.values.sum().backward()
        assert torch.equal(x.grad, taken.float())


def test_non_contiguous(poisoned):
    x = some(66, 4, 7).permute(2, 1, 0)
    assert not x.is_contiguous()
    assert_holds(ops.dense_to_sparse(x), x)
    x = some(5, 3, 140)[..., ::2]
    assert_holds(ops.dense_to_sparse(x, 7), x, 7)
    x = torch.ones(1, 1, 1).expand(3, 2, 70)
    assert_holds(ops.dense_to_sparse(x), x)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_becomes_float32(dtype):
    x = some(3, 2, 20).to(dtype).requires_grad_()
    spikes = ops.dense_to_sparse(x)
    assert_holds(spikes, x.detach().float())
    spikes.values.sum().backward()
    assert x.grad.dtype == dtype
    assert torch.equal(x.grad, (x != 0).to(dtype))


def test_gradcheck():
    """Away from zero the op is linear in what it keeps."""
    x = torch.randn(3, 2, 9, dtype=torch.float64)
    x = torch.where(torch.rand_like(x) < 0.5, x.sign() + x, torch.ones_like(x)).requires_grad_()
    for max_spikes, overflow in ((None, "lowest"), (4, "lowest"), (4, "rotate")):
        assert torch.autograd.gradcheck(
            lambda x, m=max_spikes, o=overflow: ops.dense_to_sparse(x, m, overflow=o).values, x
        )


def test_only_the_values_are_differentiable():
    x = some(3, 2, 9).requires_grad_()
    spikes = ops.dense_to_sparse(x)
    assert spikes.values.requires_grad
    assert not spikes.ids.requires_grad
    assert not spikes.counts.requires_grad
    assert not ops.dense_to_sparse(x.detach()).requires_grad


def test_second_derivative_is_refused():
    x = torch.ones(3, 2, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad((ops.dense_to_sparse(x).values ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="a second derivative through snnipu's dense_to_sparse"):
        gradient.sum().backward()


# ---- kernels


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("capacity", [AS_NEEDED, 0, 1, 17, 64])
@pytest.mark.parametrize("neurons", SIZES)
def test_kernels_equal_the_reference(neurons, capacity, dtype, poisoned):
    capacity = min(capacity, neurons)
    for rate, rotate in itertools.product((0.0, 0.3, 1.0), (False, True)):
        x = some(6, 3, neurons, rate, dtype)
        out = torch.ops.snnipu.dense_to_sparse_fwd(x, capacity, rotate)
        expected = reference_of("dense_to_sparse_fwd")(x, capacity, rotate)
        assert_all_equal([expected, out])


@needs_native
def test_workers_and_threads_do_not_change_a_bit():
    x = some(40, 16, 149)

    def run():
        return (
            *torch.ops.snnipu.dense_to_sparse_fwd(x, 20, True),
            *torch.ops.snnipu.dense_to_sparse_fwd(x, AS_NEEDED, False),
        )

    assert_all_equal(with_workers(run) + with_threads(run))


def test_opcheck():
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch.library.opcheck came with torch 2.4")
    tests = ("test_schema", "test_faketensor")
    for dtype, shape, capacity in itertools.product(
        (torch.float32, torch.float64), ((3, 2, 9), (0, 2, 9), (3, 0, 9)), (0, 4, 9)
    ):
        arguments = (torch.randn(shape, dtype=dtype), capacity, True)
        torch.library.opcheck(torch.ops.snnipu.dense_to_sparse_fwd.default, arguments, test_utils=tests)


@needs_compile
def test_compiles_into_one_graph():
    def loss(x):
        spikes = ops.dense_to_sparse(x, 7, overflow="rotate")
        return (spikes.values * torch.arange(7.0)).sum() + spikes.ids.sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for function in (loss, compiled):
        x = torch.linspace(-1, 2, 240).reshape(4, 3, 20).clamp_min(0).requires_grad_()
        out = function(x)
        out.backward()
        results.append((out.detach(), x.grad))
    assert_all_equal(results)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": [1.0]}, TypeError, "x must be a torch.Tensor, got list"),
        ({"x": torch.zeros(4, 2, 3, dtype=torch.bool)}, TypeError, "x must be floating, got torch.bool"),
        ({"x": torch.zeros(4, 2, 3, dtype=torch.complex64)}, TypeError, "x must be floating"),
        ({"x": torch.zeros(2, 3)}, ValueError, r"x must have shape \[T, B, N\] .* got \(2, 3\)"),
        ({"x": torch.zeros(1, 4, 2, 3)}, ValueError, r"x must have shape"),
        ({"x": torch.zeros(4, 2, 0)}, ValueError, r"x must have shape .* got \(4, 2, 0\)"),
        ({"max_spikes": 2.0}, TypeError, "max_spikes must be an int or None, got 2.0"),
        ({"max_spikes": False}, TypeError, "max_spikes must be an int or None"),
        ({"max_spikes": -1}, ValueError, "max_spikes must be 0 or more, got -1"),
        ({"overflow": "highest"}, ValueError, "overflow must be 'lowest' or 'rotate', got 'highest'"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        ops.dense_to_sparse(**{"x": torch.zeros(4, 2, 3), **arguments})
