"""The PopART operators on spike ids, through the IPU model, against the host's kernels."""

import pytest
import torch
from support.operators import MACHINES, backward, forward, machine, needs_model_and_host

from snnipu.ipu.model import IpuModelError
from snnipu.ops.select_spikes import threshold_gradient

pytestmark = needs_model_and_host

T, B, N, SLOTS = 4, 5, 70, 9


def spikes(unit=True, seed=0, neurons=N, slots=SLOTS, density=0.15):
    """ids, values, counts of a random input whose busiest rows overflow."""
    torch.manual_seed(seed)
    x = torch.randn(T, B, neurons) * (torch.rand(T, B, neurons) < density)
    ids, values, counts, dropped = torch.ops.snnipu.dense_to_sparse_fwd(x, slots, False)
    assert int(dropped.sum()) > 0
    return ids, torch.ones_like(values) if unit else values, counts


def as_floats(ids, values, counts):
    return [ids.float(), values, counts.float()]


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("rotate", [0, 1])
@pytest.mark.parametrize("second", [0, 1])
def test_select_spikes(tiles, ipus, rotate, second):
    model = machine(tiles, ipus)
    torch.manual_seed(0)
    for size in (1, N):
        mem, threshold, grad = torch.randn(T, B, N), torch.rand(size), torch.randn(T, B, SLOTS)
        attributes = {
            "capacity": SLOTS,
            "rotate": rotate,
            "has_grad_threshold": second,
            "grad_threshold": 0.25,
            "surrogate": 3,
            "surrogate_a": 2.0,
            "surrogate_b": 0.0,
        }
        expected = torch.ops.snnipu.select_spikes_fwd(mem, threshold, 0.25 if second else None, SLOTS, bool(rotate))
        made = forward(model, "SelectSpikes", [mem, threshold], attributes)
        for got, wanted in zip(made, expected):
            assert torch.equal(got, wanted.float())
        ids, _, counts, _ = expected
        grad_mem, through = torch.ops.snnipu.select_spikes_bwd(grad, mem, threshold, ids, counts, 3, 2.0, 0.0)
        got = backward(model, "SelectSpikes", [mem, threshold], attributes, made, [None, grad, None, None])
        assert torch.equal(got[0], grad_mem)
        torch.testing.assert_close(got[1], threshold_gradient(through, ids, threshold), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("rotate", [0, 1])
def test_dense_to_sparse(tiles, ipus, rotate):
    model = machine(tiles, ipus)
    torch.manual_seed(0)
    x, grad = torch.randn(T, B, N) * (torch.rand(T, B, N) < 0.15), torch.randn(T, B, SLOTS)
    attributes = {"capacity": SLOTS, "rotate": rotate}
    expected = torch.ops.snnipu.dense_to_sparse_fwd(x, SLOTS, bool(rotate))
    made = forward(model, "DenseToSparse", [x], attributes)
    for got, wanted in zip(made, expected):
        assert torch.equal(got, wanted.float())
    got = backward(model, "DenseToSparse", [x], attributes, made, [None, grad, None, None])[0]
    ids, _, counts, _ = expected
    assert torch.equal(got, torch.ops.snnipu.sparse_to_dense_fwd(ids, grad, counts, N))


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
def test_sparse_to_dense(tiles, ipus):
    model = machine(tiles, ipus)
    ids, values, counts = spikes(unit=False)
    inputs, grad = as_floats(ids, values, counts), torch.randn(T, B, N)
    made = forward(model, "SparseToDense", inputs, {"num_neurons": N})
    assert torch.equal(made[0], torch.ops.snnipu.sparse_to_dense_fwd(ids, values, counts, N))
    got = backward(model, "SparseToDense", inputs, {"num_neurons": N}, made, [grad])
    assert torch.equal(got[1], torch.ops.snnipu.sparse_to_dense_bwd(grad, ids, counts))
    # Carriers: without them PopART would drop the gradient of whoever made the spikes.
    assert torch.equal(got[0], torch.zeros(T, B, SLOTS))
    assert torch.equal(got[2], torch.zeros(T, B, 2))


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("unit", [1, 0])
@pytest.mark.parametrize("bias", [False, True])
def test_sparse_linear(tiles, ipus, unit, bias):
    model = machine(tiles, ipus)
    ids, values, counts = spikes(unit=bool(unit))
    out = 37
    weight, offset, grad = torch.randn(out, N), torch.randn(out), torch.randn(T, B, out)
    inputs = [*as_floats(ids, values, counts), weight, *([offset] if bias else [])]
    expected = torch.ops.snnipu.sparse_linear_fwd(ids, values, counts, weight, offset if bias else None)
    (made,) = forward(model, "SparseLinear", inputs, {"unit_values": unit})
    if unit:
        assert torch.equal(made, expected)
    else:  # the host may round a product and its sum once
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    got = backward(model, "SparseLinear", inputs, {"unit_values": unit}, [made], [grad])
    wanted = torch.ops.snnipu.sparse_linear_bwd(grad, ids, values, counts, weight, True, True, bias)
    for place, gradient in zip((1, 3, 4), wanted):
        if place < len(inputs):
            torch.testing.assert_close(got[place], gradient, rtol=1e-5, atol=2e-5)
    assert torch.equal(got[0], torch.zeros(T, B, SLOTS))
    assert torch.equal(got[2], torch.zeros(T, B, 2))


def delayed(kind, taps, out=37, inputs=N, seed=3):
    """Weights ``[in, out, taps]`` and lags ``[in, out]``: up to the last step, beyond it, or none at all."""
    torch.manual_seed(seed)
    longest = {"short": T - 1, "long": 3 * T, "none": 0}[kind]
    return torch.randn(inputs, out, taps), torch.randint(longest + 1, (inputs, out), dtype=torch.int32)


def delayed_on_the_host(slots, weight, lags, bias, grad):
    """Currents, and the gradients of values, weight and bias, of the host's kernels in float64."""
    ids, values, counts = slots
    weight, values = weight.double(), values.double()
    bias = None if bias is None else bias.double()
    # As the layer: ways that end behind the last step are cut off.
    lags = lags.clamp(max=grad.shape[0])
    geometry = [grad.shape[0] + weight.shape[2], weight.shape[2]]
    out = torch.ops.snnipu.delay_linear_fwd(ids, values, counts, weight, bias, geometry, lags)
    needs = (True, True, bias is not None)
    grads = torch.ops.snnipu.delay_linear_bwd(grad.double(), ids, values, counts, weight, geometry, *needs, lags)
    return [out, *grads]


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("unit", [1, 0])
@pytest.mark.parametrize(("kind", "taps", "bias"), [("short", 2, True), ("long", 2, False), ("none", 1, True)])
def test_delay_linear(tiles, ipus, unit, kind, taps, bias):
    model = machine(tiles, ipus)
    slots = spikes(unit=bool(unit))
    weight, lags = delayed(kind, taps)
    offset, grad = torch.randn(37) if bias else None, torch.randn(T, B, 37)
    inputs = [*as_floats(*slots), weight, lags.float(), *([offset] if bias else [])]
    wanted = delayed_on_the_host(slots, weight, lags, offset, grad)
    (made,) = forward(model, "DelayLinear", inputs, {"unit_values": unit})
    torch.testing.assert_close(made.double(), wanted[0], rtol=1e-5, atol=1e-5)
    got = backward(model, "DelayLinear", inputs, {"unit_values": unit}, [made], [grad])
    for place, gradient in zip((1, 3, 5), wanted[1:]):
        if place < len(inputs):
            torch.testing.assert_close(got[place].double(), gradient, rtol=1e-5, atol=2e-5)
    for place in (0, 2, 4):
        assert torch.equal(got[place], torch.zeros_like(inputs[place]))


def test_delay_linear_in_pieces():
    """More spikes than a tile is given at a time: what is on its way at a border arrives behind it."""
    torch.manual_seed(0)
    x = (torch.rand(30, 16, 300) < 0.2).float()
    slots = torch.ops.snnipu.dense_to_sparse_fwd(x, 100, False)[:3]
    weight, grad = torch.randn(300, 20, 2), torch.randn(30, 16, 20)
    lags = torch.randint(25, (300, 20), dtype=torch.int32)
    inputs = [*as_floats(*slots), weight, lags.float()]
    model = machine(4, options=())
    wanted = delayed_on_the_host(slots, weight, lags, None, grad)
    (made,) = forward(model, "DelayLinear", inputs, {"unit_values": 1})
    torch.testing.assert_close(made.double(), wanted[0], rtol=1e-5, atol=1e-4)
    names = [step["name"] for step in model.programs()[0].report()["steps"]]
    assert sum(name.endswith("forward") for name in names) > 1
    got = backward(model, "DelayLinear", inputs, {"unit_values": 1}, [made], [grad])
    torch.testing.assert_close(got[1].double(), wanted[1], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(got[3].double(), wanted[2], rtol=1e-5, atol=1e-4)


def test_delayed_samples_are_spread_over_groups_of_tiles():
    """Few neurons: tiles share the samples, of which the last of them may have fewer."""
    torch.manual_seed(0)
    model = machine(7, options=())
    x = (torch.rand(12, 11, 50) < 0.1).float()
    slots = torch.ops.snnipu.dense_to_sparse_fwd(x, 12, False)[:3]
    weight, grad = torch.randn(50, 2, 2), torch.randn(12, 11, 2)
    lags = torch.randint(9, (50, 2), dtype=torch.int32)
    inputs = [*as_floats(*slots), weight, lags.float()]
    wanted = delayed_on_the_host(slots, weight, lags, None, grad)
    (made,) = forward(model, "DelayLinear", inputs, {"unit_values": 1})
    torch.testing.assert_close(made.double(), wanted[0], rtol=1e-5, atol=1e-5)
    steps = [step for step in model.programs()[-1].report()["steps"] if step["name"].endswith("forward")]
    assert max(step["tiles"] for step in steps) == 6  # two samples each, and one with the eleventh
    got = backward(model, "DelayLinear", inputs, {"unit_values": 1}, [made], [grad])
    torch.testing.assert_close(got[1].double(), wanted[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[3].double(), wanted[2], rtol=1e-5, atol=1e-5)


def test_the_longest_delay_takes_no_memory():
    """Currents lie on their tile for all steps: they are the ring that spikes on their way are in."""
    sizes = []
    for longest in (5, 200):
        weight, lags = torch.randn(N, 37, 2), torch.randint(longest + 1, (N, 37))
        model = machine(4, options=())
        forward(model, "DelayLinear", [*as_floats(*spikes()), weight, lags.float()], {"unit_values": 1})
        sizes.append(max(model.programs()[-1].report()["tile_variables_bytes"]))
    assert sizes[0] == sizes[1]


def test_sparse_linear_in_pieces():
    """More spikes than a tile is given at a time."""
    torch.manual_seed(0)
    x = (torch.rand(30, 16, 300) < 0.2).float()
    ids, values, counts, _ = torch.ops.snnipu.dense_to_sparse_fwd(x, 100, False)
    weight, grad = torch.randn(20, 300), torch.randn(30, 16, 20)
    inputs = [*as_floats(ids, values, counts), weight]
    model = machine(2, options=())
    (made,) = forward(model, "SparseLinear", inputs, {"unit_values": 1})
    assert torch.equal(made, torch.ops.snnipu.sparse_linear_fwd(ids, values, counts, weight, None))
    names = [step["name"] for step in model.programs()[0].report()["steps"]]
    assert sum(name.endswith("forward") for name in names) > 1
    got = backward(model, "SparseLinear", inputs, {"unit_values": 1}, [made], [grad])
    grad_values, grad_weight, _ = torch.ops.snnipu.sparse_linear_bwd(
        grad, ids, values, counts, weight, True, True, False
    )
    torch.testing.assert_close(got[1], grad_values, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(got[3], grad_weight, rtol=1e-5, atol=1e-4)


def test_ids_in_any_order():
    """A user's spikes need not ascend: workers then look at all of them."""
    ids, values, counts = spikes(unit=False)
    shuffled = (0, 1), (1, 3), (3, 4)
    torch.manual_seed(1)
    for t, b in shuffled:
        count = int(counts[t, b, 0])
        order = torch.randperm(count)
        ids[t, b, :count], values[t, b, :count] = ids[t, b, order], values[t, b, order]
        assert count > 3
        assert not torch.equal(order, torch.arange(count))
    weight, grad = torch.randn(37, N), torch.randn(T, B, 37)
    inputs = [*as_floats(ids, values, counts), weight]
    made = torch.ops.snnipu.sparse_linear_fwd(ids, values, counts, weight, None)
    got = backward(machine(4), "SparseLinear", inputs, {"unit_values": 0}, [made], [grad])
    wanted = torch.ops.snnipu.sparse_linear_bwd(grad, ids, values, counts, weight, True, True, False)
    torch.testing.assert_close(got[1], wanted[0], rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(got[3], wanted[1], rtol=1e-5, atol=2e-5)


def test_rows_are_spread_over_groups_of_tiles():
    """Few neurons: every tile works on its share of the rows, with a copy of the weights where they are small."""
    torch.manual_seed(0)
    model = machine(0, options=())
    for inputs, tiles in ((50, 1200), (30000, 5)):
        x = (torch.rand(10, 150, inputs) < 8 / inputs).float()
        ids, values, counts, _ = torch.ops.snnipu.dense_to_sparse_fwd(x, 12, False)
        arguments = [*as_floats(ids, values, counts), torch.randn(10, inputs)]
        (made,) = forward(model, "SparseLinear", arguments, {"unit_values": 1})
        assert torch.equal(made, torch.ops.snnipu.sparse_linear_fwd(ids, values, counts, arguments[3], None))
        steps = [step for step in model.programs()[-1].report()["steps"] if step["name"].endswith("forward")]
        assert min(step["tiles"] for step in steps) >= tiles
        assert (max(step["tiles"] for step in steps) == tiles) == (inputs == 30000)


def test_ids_out_of_range_stay_in_memory():
    """Nothing checks ids on an IPU: they are held to the neurons there are, NaN to 0; likewise lags to the steps."""
    lags, one = torch.tensor([[float("nan"), -1e9, 1e9, 2.0]]), torch.ones(4, 1, 1)
    inputs = [torch.zeros(4, 1, 1), one, torch.ones(4, 1, 2), torch.ones(1, 4, 1), lags]
    (made,) = forward(machine(1), "DelayLinear", inputs, {"unit_values": 1})
    assert made[:, 0].t().tolist() == [[1.0] * 4, [1.0] * 4, [0.0] * 4, [0.0, 0.0, 1.0, 1.0]]
    ids = torch.tensor([[[-5.0, 1e9, float("nan")]]])
    counts = torch.tensor([[[3.0, 99.0]]])
    (dense,) = forward(machine(1), "SparseToDense", [ids, torch.ones(1, 1, 3), counts], {"num_neurons": 4})
    assert dense.tolist() == [[[2.0, 0.0, 0.0, 1.0]]]


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "message"),
    [
        ("SelectSpikes", [torch.zeros(4, 5)], {}, "no attribute capacity"),
        ("DenseToSparse", [torch.zeros(2, 3, 4)], {"capacity": 0, "rotate": 0}, "capacity must be 1 or more, got 0"),
        ("DenseToSparse", [torch.zeros(3, 4)], {"capacity": 1, "rotate": 0}, "three dimensions"),
        (
            "DelayLinear",
            [*[torch.zeros(2, 3, 4)] * 2, torch.zeros(2, 3, 2), torch.zeros(6, 5), torch.zeros(6, 5)],
            {"unit_values": 0},
            r"weight must be \[inputs, neurons, taps\]",
        ),
        (
            "DelayLinear",
            [*[torch.zeros(2, 3, 4)] * 2, torch.zeros(2, 3, 2), torch.zeros(6, 5, 2), torch.zeros(5, 6)],
            {"unit_values": 0},
            r"delay_linear: lags must be FLOAT \[inputs, neurons\]",
        ),
        (
            "SparseToDense",
            [torch.zeros(2, 3, 4)] * 3,
            {"num_neurons": 4},
            r"counts must have shape \[steps, batch, 2\]",
        ),
        (
            "SparseToDense",
            [torch.zeros(2, 3, 4).int(), torch.zeros(2, 3, 4), torch.zeros(2, 3, 2)],
            {"num_neurons": 4},
            "ids must be FLOAT",
        ),
    ],
)
def test_bad_input(name, inputs, attributes, message):
    with pytest.raises(IpuModelError, match=message):
        forward(machine(4), name, inputs, attributes)
