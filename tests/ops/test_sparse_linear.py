"""The contract of ``snnipu.ops.sparse_linear``."""

import itertools

import pytest
import torch
from oracle import (
    assert_all_equal,
    at_slots,
    densified,
    needs_kernel,
    on_grid,
    poison_new_tensors,
    random_spikes,
    reference_of,
    relative_error,
    with_threads,
    with_workers,
)
from support.versions import needs_compile

from snnipu import SparseSpikes, ops

SIZES = [1, 5, 63, 64, 65, 200]

needs_native = needs_kernel("sparse_linear_fwd")


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


@pytest.mark.parametrize("rows", [(0, 2), (3, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("bias", [False, True])
def test_empty(rows, bias, poisoned):
    spikes = random_spikes(*rows, 7)
    results = both(spikes, on_grid(9, 7), on_grid(9) if bias else None)
    assert_same(results)
    if 0 in rows:
        assert not results[1][1][1].any()  # the weight's gradient


@pytest.mark.parametrize("outputs", [1, 65])
def test_no_slots(outputs, poisoned):
    spikes = SparseSpikes(
        torch.zeros(3, 2, 0, dtype=torch.int32), torch.zeros(3, 2, 0), torch.zeros(3, 2, 2, dtype=torch.int32), 7
    )
    bias = on_grid(outputs)
    results = both(spikes, on_grid(outputs, 7), bias)
    assert_same(results)
    assert torch.equal(results[1][0], bias.expand(3, 2, outputs))


def test_non_contiguous(poisoned):
    spikes = random_spikes(6, 4, 30, graded=True)
    across = SparseSpikes(*(part.transpose(0, 1) for part in (spikes.ids, spikes.values, spikes.counts)), 30)
    assert_same(both(across, on_grid(30, 65).t(), on_grid(130)[::2]))
    assert_same(both(across, on_grid(130, 60)[::2, 1::2]))
    assert_same(both(spikes[1::2, ::3], on_grid(65, 30)))
    weight = on_grid(65, 30)
    gradients = []
    for upstream in (torch.tensor(0.5).expand(6, 4, 65), torch.full((6, 4, 65), 0.5)):
        leaf = weight.clone().requires_grad_()
        ops.sparse_linear(spikes, leaf).backward(upstream)
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_weights_are_computed_in_float32(dtype):
    spikes = random_spikes(4, 3, 20, graded=True)
    weight, bias = on_grid(9, 20).to(dtype).requires_grad_(), on_grid(9).to(dtype).requires_grad_()
    full, full_bias = (p.detach().float().requires_grad_() for p in (weight, bias))
    out, expected = ops.sparse_linear(spikes, weight, bias), ops.sparse_linear(spikes, full, full_bias)
    assert out.dtype == torch.float32
    assert torch.equal(out, expected)
    upstream = torch.randn_like(out)
    out.backward(upstream)
    expected.backward(upstream)
    assert weight.grad.dtype == bias.grad.dtype == dtype
    assert torch.equal(weight.grad, full.grad.to(dtype))
    assert torch.equal(bias.grad, full_bias.grad.to(dtype))


def test_the_weight_decides_the_dtype():
    for spikes_dtype, weight_dtype in itertools.product((torch.float32, torch.float64), repeat=2):
        spikes = random_spikes(4, 3, 20, graded=True, dtype=spikes_dtype).requires_grad_()
        weight = on_grid(9, 20, dtype=weight_dtype)
        out = ops.sparse_linear(spikes, weight)
        assert out.dtype == weight_dtype
        assert torch.equal(out, torch.nn.functional.linear(spikes_alone(spikes).to(weight_dtype), weight))
        out.sum().backward()
        assert spikes.values.grad.dtype == spikes_dtype


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


def test_weights_changed_in_place_are_seen():
    """By every way there is: nothing that was derived from the old weights may be used."""
    spikes = random_spikes(4, 3, 20, graded=True).requires_grad_()
    weight = torch.nn.Parameter(torch.zeros(65, 20))

    def set_by_data():
        weight.data[2, 3] += 0.25

    def swap_by_data():
        weight.data[[0, 1]] = weight.data[[1, 0]]
        weight.data[:, [4, 5]] = -weight.data[:, [5, 4]]

    def set_without_gradient():
        with torch.no_grad():
            weight.add_(0.5)

    def set_through_numpy():
        weight.detach().numpy()[64, 19] = 3.0

    def set_anew():
        weight.data = on_grid(65, 20)

    for change in (set_by_data, set_anew, swap_by_data, set_without_gradient, set_through_numpy):
        for _ in range(3):  # whatever is kept of the weights is kept by now
            ops.sparse_linear(spikes, weight).sum().backward()
        change()
        out = ops.sparse_linear(spikes, weight)
        assert torch.equal(out, torch.nn.functional.linear(spikes_alone(spikes), weight)), change.__name__
        spikes.values.grad = None
        out.sum().backward()
        expected = at_slots(weight.detach().sum(0).expand(4, 3, 20), spikes)
        assert torch.equal(spikes.values.grad, expected), change.__name__


@pytest.mark.parametrize("need", list(itertools.product((False, True), repeat=3)))
def test_each_gradient_alone(need, poisoned):
    spikes = random_spikes(4, 3, 20, graded=True)
    weight, bias, values = on_grid(9, 20), on_grid(9), spikes.values.clone()
    upstream = torch.randn(4, 3, 9)

    def gradients(need):
        tensors = [t.clone().requires_grad_(n) for t, n in zip((values, weight, bias), need)]
        out = ops.sparse_linear(SparseSpikes(spikes.ids, tensors[0], spikes.counts, 20), *tensors[1:])
        assert out.requires_grad == any(need)
        if any(need):
            out.backward(upstream)
        return [t.grad for t in tensors]

    for own, expected, wanted in zip(gradients(need), gradients((True, True, True)), need):
        assert (own is not None) == wanted
        assert own is None or torch.equal(own, expected)


def test_gradcheck():
    spikes = random_spikes(3, 2, 9, 0.4, 0.0, slack=0, graded=True, dtype=torch.float64)
    values = at_slots(densified(spikes.values, spikes), spikes).requires_grad_()
    weight = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def function(values, weight, bias):
        return ops.sparse_linear(SparseSpikes(spikes.ids, values, spikes.counts, 9), weight, bias)

    assert torch.autograd.gradcheck(function, (values, weight, bias))


def test_second_derivative_is_refused():
    spikes = random_spikes(3, 2, 9)
    weight = torch.randn(4, 9, requires_grad=True)
    (gradient,) = torch.autograd.grad((ops.sparse_linear(spikes, weight) ** 2).sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="a second derivative through snnipu's sparse_linear"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spikes: spikes.ids[1, 0].fill_(9), "ids must be from 0 to 8, got 9 at step 1, sample 0, slot 0"),
        (lambda spikes: spikes.ids[1, 0].fill_(-1), "ids must be from 0 to 8, got -1"),
        (lambda spikes: spikes.counts[2, 1].fill_(99), "counts must satisfy .* at step 2, sample 1"),
        (lambda spikes: spikes.counts[2, 1, 0].fill_(-1), "counts must satisfy"),
        (lambda spikes: spikes.counts[2, 1, 1].fill_(0), "counts must satisfy"),
    ],
)
def test_tensors_changed_after_construction_are_noticed(change, message):
    spikes = random_spikes(3, 2, 9, 0.9, 0.0)
    change(spikes)
    weight = torch.randn(4, 9)
    with pytest.raises(ValueError, match=message):
        ops.sparse_linear(spikes, weight)
    with pytest.raises(ValueError, match=message):
        torch.ops.snnipu.sparse_linear_bwd(
            torch.ones(3, 2, 4), spikes.ids, spikes.values, spikes.counts, weight, True, True, True
        )


# ---- kernels


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(i, o) for i in (1, 64, 200) for o in SIZES])
def test_kernels_equal_the_reference(inputs, outputs, bias, dtype, poisoned):
    tolerance = 2e-6 if dtype == torch.float32 else 1e-14
    for rate, carried in ((0.0, 0.2), (0.15, 0.1), (1.0, 0.0)):
        spikes = random_spikes(7, 3, inputs, rate, carried, graded=True, dtype=dtype)
        weight = torch.randn(outputs, inputs, dtype=dtype)
        offset = torch.randn(outputs, dtype=dtype) if bias else None
        forward = (spikes.ids, spikes.values, spikes.counts, weight, offset)
        out = torch.ops.snnipu.sparse_linear_fwd(*forward)
        expected = reference_of("sparse_linear_fwd")(*forward)
        assert out.dtype == expected.dtype
        assert relative_error(out, expected, terms=weight) <= tolerance
        grad = torch.randn_like(out)
        for need in ((True, True, True), (True, False, False), (False, True, False)):
            backward = (grad, spikes.ids, spikes.values, spikes.counts, weight, *need)
            results = torch.ops.snnipu.sparse_linear_bwd(*backward)
            for own, other in zip(results, reference_of("sparse_linear_bwd")(*backward)):
                assert own.shape == other.shape
                assert own.dtype == other.dtype
                if own.numel():
                    assert relative_error(own, other, terms=grad) <= tolerance


@needs_native
@pytest.mark.parametrize("rate", [0.05, 0.6])
@pytest.mark.parametrize("outputs", [10, 149])
def test_workers_and_threads_do_not_change_a_bit(outputs, rate):
    spikes = random_spikes(30, 12, 101, rate, graded=True)
    weight, bias, upstream = torch.randn(outputs, 101), torch.randn(outputs), torch.randn(30, 12, outputs)

    def run():
        out = torch.ops.snnipu.sparse_linear_fwd(spikes.ids, spikes.values, spikes.counts, weight, bias)
        backward = (upstream, spikes.ids, spikes.values, spikes.counts, weight, True, True, True)
        return (out, *torch.ops.snnipu.sparse_linear_bwd(*backward))

    assert_all_equal(with_workers(run) + with_threads(run))


def test_opcheck():
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch.library.opcheck came with torch 2.4")
    tests = ("test_schema", "test_faketensor")
    forward, backward = torch.ops.snnipu.sparse_linear_fwd.default, torch.ops.snnipu.sparse_linear_bwd.default
    for dtype, rows in itertools.product((torch.float32, torch.float64), ((3, 2), (0, 2), (3, 0))):
        spikes = random_spikes(*rows, 9, graded=True, dtype=dtype)
        weight = torch.randn(4, 9, dtype=dtype)
        for bias in (None, torch.randn(4, dtype=dtype)):
            arguments = (spikes.ids, spikes.values, spikes.counts, weight, bias)
            torch.library.opcheck(forward, arguments, test_utils=tests)
        for need in itertools.product((False, True), repeat=3):
            arguments = (torch.randn(*rows, 4, dtype=dtype), spikes.ids, spikes.values, spikes.counts, weight, *need)
            torch.library.opcheck(backward, arguments, test_utils=tests)


@needs_compile
def test_compiles_into_one_graph():
    spikes = random_spikes(4, 3, 20, graded=True, slack=0)

    def loss(values, weight, bias):
        own = SparseSpikes._trusted(spikes.ids, values, spikes.counts, 20)
        return (ops.sparse_linear(own, weight, bias) ** 2).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for function in (loss, compiled):
        torch.manual_seed(1)
        values = at_slots(densified(spikes.values, spikes), spikes).requires_grad_()
        weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((7, 20), (7,)))
        out = function(values, weight, bias)
        out.backward()
        results.append((out.detach(), values.grad, weight.grad, bias.grad))
    assert_all_equal(results)


SPIKES = SparseSpikes.from_dense(torch.eye(4)[None])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"spikes": torch.zeros(1, 4, 4)}, TypeError, "spikes must be a snnipu.SparseSpikes, got Tensor"),
        ({"weight": [[1.0]]}, TypeError, "weight must be a torch.Tensor, got list"),
        ({"weight": torch.zeros(3, 4, dtype=torch.int64)}, TypeError, "weight must be float32, .* got torch.int64"),
        ({"weight": torch.zeros(3, 5)}, ValueError, r"weight must have shape \[out, 4\].* got \(3, 5\)"),
        ({"weight": torch.zeros(4)}, ValueError, r"weight must have shape \[out, 4\].* got \(4,\)"),
        ({"weight": torch.zeros(0, 4)}, ValueError, r"weight must have shape \[out, 4\].* got \(0, 4\)"),
        ({"weight": torch.zeros(3, 4, device="meta")}, ValueError, "weight must be on the device of the spikes, cpu"),
        ({"bias": torch.zeros(4)}, ValueError, r"bias must have shape \(3,\).* got \(4,\)"),
        ({"bias": torch.zeros(3, dtype=torch.int64)}, TypeError, "bias must be a floating torch.Tensor or None"),
        ({"bias": 1.0}, TypeError, "bias must be a floating torch.Tensor or None"),
        ({"bias": torch.zeros(3, device="meta")}, ValueError, "bias must be on the device of weight, cpu, got meta"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        ops.sparse_linear(**{"spikes": SPIKES, "weight": torch.zeros(3, 4), **arguments})


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
