"""The contract of ``snnipu.ops.sparse_conv_lif_sequence``; random options are in test_sparse_conv_properties.py."""

import pytest
import torch
from oracle import (
    assert_all_equal,
    needs_kernel,
    on_grid,
    poison_new_tensors,
    random_spikes,
    reference_of,
    relative_error,
    with_threads,
)
from support.versions import needs_compile

from snnipu import SparseSpikes, ops, surrogate
from snnipu.ops._maps import conv_geometry
from snnipu.ops._slots import AS_NEEDED

REFERENCE = reference_of("sparse_conv_lif_sequence_fwd")

SPIKES = SparseSpikes.from_dense(torch.ones(2, 1, 2 * 3 * 4)).with_maps((2, 3, 4))
WEIGHT = torch.zeros(5, 2, 2, 2)


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


@needs_kernel("sparse_conv_lif_sequence_fwd")
@pytest.mark.parametrize("capacity", [AS_NEEDED, 30])
def test_threads_do_not_change_a_bit(capacity):
    spikes = random_spikes(12, 9, 6 * 9 * 9)
    weight, bias, beta = torch.randn(70, 3, 3, 3) / 4, torch.randn(70) / 8, torch.rand(70)
    geometry = list(conv_geometry(weight, (9, 9), (2, 1), (1, 1), (1, 1), 2))
    threshold = torch.rand(70) + 0.5

    def run():
        own = (spikes.ids, spikes.values, spikes.counts, weight)
        out = torch.ops.snnipu.sparse_conv_lif_sequence_fwd(
            *own, bias, beta, threshold, geometry, 0.3, 1.0, capacity, True, 0, 1, True
        )
        grad = (torch.arange(out[1].numel()) % 13).reshape(out[1].shape).float()
        kept = (out[0], out[2], out[4], out[5], out[6])
        back = torch.ops.snnipu.sparse_conv_lif_sequence_bwd(
            grad, *own, beta, threshold, geometry, 1.0, 0, 1, *kept, 2, 10.0, 0.0, *[True] * 5
        )
        return *out, *back

    assert_all_equal(with_threads(run))


@needs_kernel("sparse_conv_lif_sequence_fwd")
@pytest.mark.parametrize("rate", [0.02, 0.4])
@pytest.mark.parametrize(("second", "capacity"), [(0.3, AS_NEEDED), (None, 700), (0.3, 90)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_maps_of_many_places_equal_the_reference(dtype, second, capacity, rate):
    """Few spikes and many, of which a word of neighbours holds more than are listed at once; two blocks."""
    spikes = random_spikes(4, 2, 3 * 12 * 11, rate, dtype=dtype)
    weight, threshold = on_grid(70, 3, 3, 3, dtype=dtype), torch.full((70,), 0.5, dtype=dtype)
    geometry = list(conv_geometry(weight, (12, 11), (1, 1), (1, 0), (1, 1), 1))
    beta = torch.tensor(0.5, dtype=dtype)
    own = (spikes.ids, spikes.values, spikes.counts, weight)
    given = (*own, None, beta, threshold, geometry, second, 1.0, capacity, True, 1, 0, False)
    made = torch.ops.snnipu.sparse_conv_lif_sequence_fwd(*given)
    assert_all_equal([made, reference_of("sparse_conv_lif_sequence_fwd")(*given)])


def test_dropped_spikes_are_counted():
    out = ops.sparse_conv_lif_sequence(SPIKES, torch.ones(5, 2, 2, 2), beta=0.5, max_spikes=4, grad_threshold=0.5)
    assert out.counts.tolist() == [[[4, 4]], [[4, 4]]]
    assert out.dropped.tolist() == [[[26, 26]], [[26, 26]]]
    assert out.overflow == 52
    assert out.map_shape == (5, 2, 3)


def test_second_derivative_is_refused():
    weight = torch.ones(4, 2, 2, 2, requires_grad=True)
    out = ops.sparse_conv_lif_sequence(SPIKES, weight, beta=0.5)
    (gradient,) = torch.autograd.grad((out.values**2).sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="a second derivative through snnipu's sparse_conv_lif_sequence"):
        gradient.sum().backward()


def test_opcheck():
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch.library.opcheck came with torch 2.4")
    tests = ("test_schema", "test_faketensor")
    spikes = random_spikes(3, 2, 24)
    weight = torch.randn(4, 2, 2, 3)
    geometry = list(conv_geometry(weight, (3, 4), (1, 1), (0, 0), (1, 1), 1))
    own = (spikes.ids, spikes.values, spikes.counts, weight)
    parameters = (torch.tensor(0.5), torch.tensor(1.0), geometry)
    forward = torch.ops.snnipu.sparse_conv_lif_sequence_fwd.default
    for store in (False, True):
        arguments = (*own, None, *parameters, 0.5, 1.0, 7, False, 1, 0, store)
        torch.library.opcheck(forward, arguments, test_utils=tests)
    out = forward(*arguments)
    backward = (*own, *parameters, 1.0, 1, 0, out[0], out[2], *out[4:], 2, 10.0, 0.0)
    for need in ([True] * 5, [False, True, False, False, False]):
        torch.library.opcheck(
            torch.ops.snnipu.sparse_conv_lif_sequence_bwd.default, (out[1], *backward, *need), test_utils=tests
        )


@needs_compile
def test_compiles_into_one_graph():
    def loss(values, weight):
        own = SparseSpikes._trusted(SPIKES.ids, values, SPIKES.counts, 24, map_shape=(2, 3, 4))
        out = ops.sparse_conv_lif_sequence(own, weight, beta=0.5, threshold=0.5, max_spikes=9)
        return (out.values * torch.arange(9)).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for function in (loss, compiled):
        torch.manual_seed(1)
        values, weight = SPIKES.values.clone().requires_grad_(), torch.randn(4, 2, 2, 2, requires_grad=True)
        out = function(values, weight)
        out.backward()
        results.append((out.detach(), values.grad, weight.grad))
    assert_all_equal(results)


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


@pytest.mark.parametrize("run", [torch.ops.snnipu.sparse_conv_lif_sequence_fwd, REFERENCE])
@pytest.mark.parametrize(("steps", "batch"), [(0, 2), (3, 0)])
def test_empty_input(steps, batch, run):
    spikes, weight = random_spikes(steps, batch, 192), torch.randn(5, 3, 3, 3)
    geometry = list(conv_geometry(weight, (8, 8), (1, 1), (1, 1), (1, 1), 1))
    own = (spikes.ids, spikes.values, spikes.counts, weight, None, torch.tensor(0.9), torch.tensor(0.5), geometry)
    *made, mem = run(*own, 0.3, 1.0, 7, False, 1, 0, True)
    assert [tuple(each.shape[:2]) for each in made] == [(steps, batch)] * 6
    assert mem.shape == (steps, batch, 64, 5)


@pytest.mark.parametrize(
    "run", [torch.ops.snnipu.sparse_conv_lif_sequence_bwd, reference_of("sparse_conv_lif_sequence_bwd")]
)
def test_membranes_that_were_not_stored_are_refused(run):
    spikes, weight = random_spikes(4, 3, 192), torch.randn(5, 3, 3, 3)
    geometry = list(conv_geometry(weight, (8, 8), (1, 1), (1, 1), (1, 1), 1))
    parameters = (weight, torch.tensor(0.9), torch.tensor(0.5), geometry)
    layer = (spikes.ids, spikes.values, spikes.counts, weight, None, *parameters[1:])
    out = torch.ops.snnipu.sparse_conv_lif_sequence_fwd(*layer, 0.3, 1.0, AS_NEEDED, False, 1, 0, False)
    kept = (out[0], out[2], out[4], out[5])
    for mem in (out[6], torch.zeros(4, 3, 64, 4)):
        with pytest.raises(ValueError, match=r"mem must be the 4 x 3 x 320 membranes .* store_mem"):
            run(out[1], *layer[:3], *parameters, 1.0, 1, 0, *kept, mem, 2, 10.0, 0.0, *[True] * 5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"spikes": torch.zeros(1, 4, 4)}, TypeError, "spikes must be a snnipu.SparseSpikes, got Tensor"),
        ({"weight": torch.zeros(5, 3, 2, 2)}, ValueError, "spikes must be of 3 channels"),
        ({"bias": torch.zeros(4)}, ValueError, r"bias must have shape \(5,\)"),
        ({"beta": torch.zeros(4)}, ValueError, r"beta must broadcast to .*\(5,\), got a tensor of shape \(4,\)"),
        ({"beta": "high"}, TypeError, "beta must be a number or a torch.Tensor"),
        ({"threshold": torch.zeros(5, 2)}, ValueError, "threshold must broadcast"),
        ({"grad_threshold": "low"}, TypeError, "grad_threshold must be a number or None"),
        ({"max_spikes": -1}, ValueError, "max_spikes must be 0 or more, got -1"),
        ({"max_spikes": 1.5}, TypeError, "max_spikes must be an int or None"),
        ({"reset_mechanism": "soft"}, ValueError, "reset_mechanism must be"),
        ({"overflow": "first"}, ValueError, "overflow must be 'lowest' or 'rotate'"),
        ({"delay": -1}, ValueError, "delay must be 0 or more"),
        ({"input_scale": "1"}, TypeError, "input_scale must be a number"),
        ({"spike_grad": 3}, TypeError, "spike_grad must be callable or None"),
        ({"stride": 0}, ValueError, "stride must be at least 1"),
        ({"input_size": (4, 3)}, ValueError, "spikes must be of maps"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        ops.sparse_conv_lif_sequence(**{"spikes": SPIKES, "weight": WEIGHT, "beta": 0.9, **arguments})
