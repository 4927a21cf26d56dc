"""The Triton kernels of the sparse operators in Triton's interpreter, against the references: no GPU needed."""

import itertools

import pytest
import torch
from oracle import RESETS, on_grid, poison_new_tensors, random_spikes, reference_of, relative_error

from snnipu import surrogate
from snnipu.ops._slots import AS_NEEDED

SIZES = [1, 5, 63, 130]
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14}
SURROGATES = [
    surrogate.LSO(0.3),
    surrogate.triangular(0.7),
    surrogate.fast_sigmoid(10),
    surrogate.atan(3.0),
    surrogate.sigmoid(2.0),
    surrogate.spike_rate_escape(1.5, 2.0),
    surrogate.SFS(5, 0.1),
]
ATAN = surrogate.atan(3.0).kernel
GRADIENTS = ("values", "weight", "bias", "recurrent", "beta", "threshold")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def kernels(interpreted, monkeypatch):
    """The operators, gradients by kernels of their own; memory that is not set holds NaN."""
    module = interpreted("sparse")
    monkeypatch.setattr(interpreted("sparse_linear"), "by_product", lambda *_: False)
    # Several blocks of a row, and a last one that is not full.
    monkeypatch.setattr(interpreted("sparse_select"), "_ROW_BLOCK", 64)
    poison_new_tensors(monkeypatch)
    return module


def assert_equal(actual, expected):
    assert len(actual) == len(expected)
    for own, other in zip(actual, expected):
        assert own.dtype == other.dtype
        assert torch.equal(own, other)


def assert_close(actual, expected, tolerance, names):
    for own, other, name in zip(actual, expected, names):
        assert own.shape == other.shape, name
        assert own.dtype == other.dtype, name
        assert own.is_contiguous(), name
        if own.numel():
            terms = expected[1] if other.numel() == 1 and expected[1].numel() else None
            assert relative_error(own, other, terms) <= tolerance, name


def both(kernels, operator, *arguments):
    return getattr(kernels, operator)(*arguments), reference_of(operator)(*arguments)


# ---- selection


@pytest.mark.parametrize("rotate", [False, True], ids=["lowest", "rotate"])
@pytest.mark.parametrize("neurons", SIZES)
def test_dense_to_sparse(neurons, rotate, kernels):
    x = torch.randn(4, 1, neurons) * (torch.rand(4, 1, neurons) < 0.3)
    x[2, 0, -1] = float("nan")  # is not 0
    x[3] = 0
    for capacity in sorted({AS_NEEDED, 0, 1, neurons // 4, neurons}):
        actual, expected = both(kernels, "dense_to_sparse_fwd", x, capacity, rotate)
        assert_equal([t.nan_to_num(7.0) for t in actual], [t.nan_to_num(7.0) for t in expected])


@pytest.mark.parametrize("rotate", [False, True], ids=["lowest", "rotate"])
@pytest.mark.parametrize("neurons", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_select_spikes(dtype, neurons, rotate, kernels):
    mem = torch.randn(3, 1, neurons, dtype=dtype)
    mem[0, 0, 0] = float("nan")
    mem[1, 0, -1] = 0.25  # neither above the one nor above the other
    options = itertools.cycle([None, 0.25, -1e30, float("-inf"), 1 / 3, 3.0])
    for capacity in sorted({AS_NEEDED, 0, 1, neurons // 2, neurons}):
        threshold = torch.tensor(0.25, dtype=dtype) if capacity % 2 else torch.rand(neurons, dtype=dtype)
        assert_equal(*both(kernels, "select_spikes_fwd", mem, threshold, next(options), capacity, rotate))


@pytest.mark.parametrize("rotate", [False, True], ids=["lowest", "rotate"])
def test_without_a_scan(rotate, kernels, interpreted, monkeypatch):
    """As with Triton 2.0, which has none."""
    select = interpreted("sparse_select")
    monkeypatch.setattr(select, "_prefix_sums", select._sums_one_by_one)
    mem = torch.randn(3, 2, 130)
    for capacity in (AS_NEEDED, 30):
        assert_equal(*both(kernels, "select_spikes_fwd", mem, torch.tensor(0.3), -0.5, capacity, rotate))


def test_thresholds_are_compared_in_full_precision(kernels):
    close = 0.1 + 2.0**-50
    mem = torch.tensor([[[0.1, close, 0.1, close, -close]]], dtype=torch.float64)
    threshold = torch.tensor(0.5, dtype=torch.float64)
    for second in (0.1, close, -close, 1e-300, 0.0):
        actual, expected = both(kernels, "select_spikes_fwd", mem, threshold, second, 5, False)
        assert_equal(actual, expected)
    assert actual[2].tolist() == [[[0, 4]]]


@pytest.mark.parametrize("spike_grad", SURROGATES, ids=lambda s: s.name)
def test_select_spikes_backward(spike_grad, kernels):
    for dtype, neurons in ((torch.float32, 63), (torch.float64, 5)):
        mem = torch.randn(2, 2, neurons, dtype=dtype)
        for threshold in (torch.tensor(0.2, dtype=dtype), torch.rand(neurons, dtype=dtype)):
            ids, _, counts, _ = reference_of("select_spikes_fwd")(mem, threshold, -0.5, neurons // 2, True)
            grad = torch.randn(ids.shape, dtype=dtype)
            grad[torch.arange(ids.shape[2]) >= counts[..., 1:]] = float("nan")  # padding
            arguments = (grad, mem, threshold, ids, counts, *spike_grad.kernel)
            actual, expected = both(kernels, "select_spikes_bwd", *arguments)
            assert expected[0].any()
            assert_close(actual, expected, TOLERANCE[dtype], ("mem", "through"))


@pytest.mark.parametrize("neurons", SIZES)
def test_to_dense_and_back(neurons, kernels):
    for dtype in (torch.float32, torch.float64):
        spikes = random_spikes(2, 2, neurons, graded=True, dtype=dtype, shuffled=True)
        arguments = (spikes.ids, spikes.values, spikes.counts, neurons)
        assert_equal([kernels.sparse_to_dense_fwd(*arguments)], [reference_of("sparse_to_dense_fwd")(*arguments)])
        grad = torch.randn(2, 2, neurons, dtype=dtype)
        arguments = (grad, spikes.ids, spikes.counts)
        assert_equal([kernels.sparse_to_dense_bwd(*arguments)], [reference_of("sparse_to_dense_bwd")(*arguments)])


# ---- linear


def linear_arguments(inputs, neurons, dtype=torch.float32, steps=3, rate=0.3):
    spikes = random_spikes(steps, 2, inputs, rate, 0.2, graded=True, dtype=dtype, shuffled=True)
    return spikes.ids, spikes.values, spikes.counts, torch.randn(neurons, inputs, dtype=dtype)


def one_after_the_other(ids, values, counts, weight):
    """Sums in the order of the slots."""
    out = weight.new_zeros(*ids.shape[:2], weight.shape[0])
    for t, b in itertools.product(*map(range, ids.shape[:2])):
        for s in range(int(counts[t, b, 0])):
            out[t, b] += values[t, b, s] * weight[:, int(ids[t, b, s])]
    return out


@pytest.mark.parametrize(("inputs", "neurons"), [(1, 130), (5, 1), (63, 5), (130, 63)])
def test_linear(inputs, neurons, kernels):
    for dtype in (torch.float32, torch.float64):
        ids, values, counts, weight = linear_arguments(inputs, neurons, dtype)
        ordered = one_after_the_other(ids, values, counts, weight)
        assert torch.equal(kernels.sparse_linear_fwd(ids, values, counts, weight, None), ordered)
        bias = torch.randn(neurons, dtype=dtype)
        assert torch.equal(kernels.sparse_linear_fwd(ids, values, counts, weight, bias), ordered + bias)
        grad = torch.randn_like(ordered)
        actual, expected = both(kernels, "sparse_linear_bwd", grad, ids, values, counts, weight, True, True, True)
        assert_close(actual, expected, TOLERANCE[dtype], GRADIENTS)


def test_weight_that_is_not_contiguous_and_needs(kernels):
    ids, values, counts, weight = linear_arguments(20, 9)
    weight = weight.t().contiguous().t()
    ordered = one_after_the_other(ids, values, counts, weight)
    assert torch.equal(kernels.sparse_linear_fwd(ids, values, counts, weight, None), ordered)
    grad = torch.randn(2, 3, 9).transpose(0, 1)
    for needs in ((True, False, False), (False, True, False), (False, False, True)):
        actual, expected = both(kernels, "sparse_linear_bwd", grad, ids, values, counts, weight, *needs)
        assert [bool(g.numel()) for g in actual] == list(needs)
        assert_close(actual, expected, 2e-6, GRADIENTS)


def test_gradients_of_many_slots_are_matrix_products(interpreted, monkeypatch):
    module, linear = interpreted("sparse"), interpreted("sparse_linear")
    asked = []
    monkeypatch.setattr(linear, "by_product", lambda slots, inputs, dtype: bool(asked.append((slots, inputs))) or True)
    ids, values, counts, weight = linear_arguments(20, 9)
    grad = torch.randn(3, 2, 9)
    actual, expected = both(module, "sparse_linear_bwd", grad, ids, values, counts, weight, True, True, False)
    assert_close(actual, expected, 2e-6, GRADIENTS)
    assert asked == [(ids.shape[2], 20)] * 2
    arguments = lif_arguments(recurrent=True, delay=1)
    saved = reference_of("sparse_lif_sequence_fwd")(*arguments)
    actual, expected = both(module, "sparse_lif_sequence_bwd", *lif_backward_arguments(arguments, saved))
    assert_close(actual, expected, 1e-5, GRADIENTS)
    assert len(asked) == 5


def test_a_weight_changed_unseen_is_read(kernels):
    """No version counter tells of a change by way of ``.data``; the backward pass reads what the forward pass read."""
    ids, values, counts, weight = linear_arguments(20, 9)
    first = kernels.sparse_linear_fwd(ids, values, counts, weight, None)
    weight.data.mul_(2)
    assert torch.equal(kernels.sparse_linear_fwd(ids, values, counts, weight, None), 2 * first)
    grad = torch.randn_like(first)
    before = kernels.sparse_linear_bwd(grad, ids, values, counts, weight, True, False, False)[0]
    weight.mul_(2)
    after = kernels.sparse_linear_bwd(grad, ids, values, counts, weight, True, False, False)[0]
    assert torch.equal(after, 2 * before)


def test_packed_weights_do_not_outlive_their_weight(interpreted):
    linear = interpreted("sparse_linear")
    known = len(linear._cache)
    weight = torch.randn(3, 4)
    packed = linear.packed_weight(weight)
    assert packed.shape == (4, 16)
    assert torch.equal(packed[:, :3], weight.t())
    assert not packed[:, 3:].any()
    assert linear.packed_weight(weight, trusted=True) is packed
    assert linear.packed_weight(weight) is not packed
    assert len(linear._cache) == known + 1
    del weight
    assert len(linear._cache) == known


def test_what_is_out_of_range_is_not_read(kernels):
    """Tensors that were changed after construction: no error, as a look at them would make the host wait."""
    ids = torch.tensor([[[1, 7, -1, 2]]], dtype=torch.int32)
    values = torch.tensor([[[1.0, 2.0, 4.0, 8.0]]])
    counts = torch.tensor([[[3, 9]]], dtype=torch.int32)
    weight = torch.randn(5, 3)
    assert torch.equal(kernels.sparse_linear_fwd(ids, values, counts, weight, None)[0, 0], weight[:, 1])
    grad = torch.randn(1, 1, 5)
    grads = kernels.sparse_linear_bwd(grad, ids, values, counts, weight, True, True, False)
    wanted = grad[0, 0] @ weight
    torch.testing.assert_close(grads[0], torch.stack([wanted[1], wanted[0] * 0, wanted[0] * 0, wanted[2]])[None, None])
    assert torch.equal(grads[1], torch.nn.functional.pad(grad[0, 0, :, None], (1, 1)))
    assert torch.equal(kernels.sparse_to_dense_fwd(ids, values, counts, 3), torch.tensor([[[0.0, 1.0, 8.0]]]))
    assert torch.equal(
        kernels.sparse_to_dense_bwd(torch.tensor([[[3.0, 5.0, 6.0]]]), ids, counts), torch.tensor([[[5.0, 0, 0, 6.0]]])
    )


# ---- the fused layer


def lif_arguments(
    *,
    inputs=20,
    neurons=37,
    steps=4,
    batch=2,
    dtype=torch.float32,
    recurrent=False,
    delay=0,
    reset=1,
    second=0.2,
    capacity=9,
    rotate=False,
    bias=True,
    each=False,
    scale=0.5,
    rate=0.3,
    lowest=0.2,
    store_mem=True,
):
    """Arguments of the operator; sums of the weights are exact, in whatever order."""
    spikes = random_spikes(steps, batch, inputs, rate, 0.2, graded=True, dtype=dtype)
    beta, threshold = torch.tensor(0.85, dtype=dtype), torch.tensor(0.4, dtype=dtype)
    if each:  # some betas outside [0, 1], some thresholds below 0
        beta, threshold = torch.rand(neurons, dtype=dtype) * 1.4 - 0.2, torch.rand(neurons, dtype=dtype) - lowest
    return (
        spikes.ids,
        spikes.values,
        spikes.counts,
        on_grid(neurons, inputs, dtype=dtype) + 1 / 8,
        on_grid(neurons, most=0.25, dtype=dtype) if bias else None,
        on_grid(neurons, neurons, most=0.25, dtype=dtype) if recurrent else None,
        beta,
        threshold,
        second,
        scale,
        capacity,
        rotate,
        reset,
        delay,
        store_mem,
    )


def lif_backward_arguments(forward, saved, kernel=ATAN, needs=None):
    ids, values, counts, weight, bias, recurrent, beta, threshold, _, scale, _, _, reset, delay, _ = forward
    ids_out, _, counts_out, _, slot_mem, fired, mem = saved
    grad = torch.randn(slot_mem.shape, dtype=weight.dtype)
    grad[torch.arange(ids_out.shape[2]) >= counts_out[..., 1:]] = float("nan")  # padding
    if needs is None:
        needs = (True, True, bias is not None, recurrent is not None, True, True)
    parameters = (ids, values, counts, weight, recurrent, beta, threshold, scale, reset, delay)
    return (grad, *parameters, ids_out, counts_out, slot_mem, fired, mem, *kernel, *needs)


def assert_layer(kernels, tolerance=None, kernel=ATAN, needs=None, **options):
    """Forward bit by bit, gradients but for the rounding of the surrogate and the order of sums; both results."""
    arguments = lif_arguments(**options)
    actual, expected = both(kernels, "sparse_lif_sequence_fwd", *arguments)
    assert_equal(actual, expected)
    arguments = lif_backward_arguments(arguments, expected, kernel, needs)
    actual, grads = both(kernels, "sparse_lif_sequence_bwd", *arguments)
    assert_close(actual, grads, tolerance or 4 * TOLERANCE[options.get("dtype", torch.float32)], GRADIENTS)
    return expected, grads


@pytest.mark.parametrize("reset", range(3), ids=RESETS)
@pytest.mark.parametrize("recurrent", [False, True], ids=["feed-forward", "recurrent"])
def test_layer(recurrent, reset, kernels):
    for dtype, delay, each in ((torch.float32, 0, False), (torch.float64, 1, True)):
        options = {"delay": delay, "each": each, "rotate": each, "bias": each}
        (_, _, counts, dropped, *_), grads = assert_layer(
            kernels, dtype=dtype, recurrent=recurrent, reset=reset, **options
        )
        assert dropped.any()
        assert (counts[..., 1] > counts[..., 0]).any()
        assert all(grad.any() for grad in grads if grad.numel())


@pytest.mark.parametrize("neurons", SIZES)
def test_sizes_of_the_layer(neurons, kernels):
    capacities = itertools.cycle([AS_NEEDED, 0, 1, neurons])
    for recurrent, rotate in itertools.product((False, True), repeat=2):
        options = {"second": None if rotate else 0.1, "capacity": next(capacities), "steps": 2, "batch": 1}
        assert_layer(kernels, neurons=neurons, recurrent=recurrent, rotate=rotate, reset=0, **options)


@pytest.mark.parametrize(("steps", "delay"), [(1, 0), (1, 1), (2, 5), (5, 2), (11, 1)])
def test_lengths_and_delays(steps, delay, kernels):
    """Fewer steps than are asked for in advance, and more; delays up to and beyond them."""
    for recurrent in (False, True):
        _, grads = assert_layer(
            kernels, steps=steps, delay=delay, recurrent=recurrent, batch=1, neurons=5, each=True, capacity=3
        )
        assert grads[1].any() or delay >= steps


@pytest.mark.parametrize("inputs", SIZES)
def test_sizes_of_the_input(inputs, kernels):
    assert_layer(kernels, inputs=inputs, neurons=6, steps=3, capacity=AS_NEEDED, scale=1.0)


@pytest.mark.parametrize("spike_grad", SURROGATES, ids=lambda s: s.name)
def test_surrogates(spike_grad, kernels):
    for recurrent in (False, True):
        assert_layer(kernels, 1e-5, spike_grad.kernel, recurrent=recurrent, steps=2, batch=1, neurons=6, capacity=4)


def test_no_spikes_at_all(kernels):
    (_, _, counts, *_), grads = assert_layer(kernels, rate=0.0, bias=False, second=1.0, recurrent=True)
    assert not counts.any()
    assert not grads[1].any()
    (_, _, counts, *_), grads = assert_layer(kernels, rate=0.0, bias=False, second=None)
    assert (counts[..., 0] == 0).all()
    assert (counts[..., 1] == 9).all()
    assert grads[0].any()  # slots that only carry gradient


def test_only_what_is_needed(kernels):
    for recurrent in (False, True):
        for needed in range(6):
            if needed == 3 and not recurrent:
                continue
            needs = tuple(i == needed for i in range(6))
            options = {"steps": 2, "batch": 1, "neurons": 5, "capacity": 4, "store_mem": needed == 4}
            _, grads = assert_layer(kernels, needs=needs, recurrent=recurrent, **options)
            assert [bool(grad.numel()) for grad in grads] == list(needs)


def test_membranes_that_were_not_stored_are_refused(kernels):
    arguments = lif_arguments(store_mem=False)
    saved = reference_of("sparse_lif_sequence_fwd")(*arguments)
    with pytest.raises(ValueError, match=r"mem must be the .* membranes .* store_mem .* got \[0\]"):
        kernels.sparse_lif_sequence_bwd(*lif_backward_arguments(arguments, saved))


@pytest.mark.parametrize("empty", [{"steps": 0}, {"batch": 0}], ids=["steps", "samples"])
@pytest.mark.parametrize("recurrent", [False, True], ids=["feed-forward", "recurrent"])
def test_nothing_to_do(empty, recurrent, kernels):
    for capacity in (AS_NEEDED, 3):
        arguments = lif_arguments(recurrent=recurrent, capacity=capacity, **empty)
        # The reference of the recurrent layer knows no batch without samples.
        saved = kernels.sparse_lif_sequence_fwd(*arguments)
        slots = max(capacity, 0)
        assert saved[0].shape == saved[1].shape == saved[4].shape == (*arguments[0].shape[:2], slots)
        assert saved[6].shape == (*arguments[0].shape[:2], 37)
        grads = kernels.sparse_lif_sequence_bwd(*lif_backward_arguments(arguments, saved))
        assert grads[0].shape == arguments[0].shape
        assert not any(grad.any() for grad in grads)
    ids, values, counts, weight, bias = arguments[:5]
    out = kernels.sparse_linear_fwd(ids, values, counts, weight, bias)
    assert out.shape == (*ids.shape[:2], 37)
    grads = kernels.sparse_linear_bwd(out, ids, values, counts, weight, True, True, True)
    assert [tuple(grad.shape) for grad in grads] == [tuple(ids.shape), (37, 20), (37,)]
    assert not any(grad.any() for grad in grads)
    for capacity in (AS_NEEDED, 0, 4):
        actual, expected = both(kernels, "dense_to_sparse_fwd", out, capacity, True)
        assert_equal(actual, expected)
