"""PopART operators on spike ids, on the IPU model, compared with the host kernels."""

import pytest
import torch
from support.operators import (
    MACHINES,
    SURROGATE,
    as_floats,
    backward,
    forward,
    forward_steps,
    machine,
    needs_model_and_host,
    slots_of,
)

from snnipu.ops.select_spikes import threshold_gradient

pytestmark = needs_model_and_host

T, B, N, SLOTS = 4, 5, 70, 9


def spikes(unit=True, seed=0, neurons=N, slots=SLOTS, density=0.15):
    """Return (ids, values, counts) of a random input whose busiest rows overflow."""
    torch.manual_seed(seed)
    x = torch.randn(T, B, neurons) * (torch.rand(T, B, neurons) < density)
    ids, values, counts, dropped = torch.ops.snnipu.dense_to_sparse_fwd(x, slots, False)
    assert int(dropped.sum()) > 0
    return ids, torch.ones_like(values) if unit else values, counts


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("rotate", [0, 1])
@pytest.mark.parametrize("second", [0, 1])
def test_select_spikes(tiles, ipus, rotate, second):
    model = machine(tiles, ipus)
    torch.manual_seed(0)
    for size in (1, N):
        mem, threshold, grad = torch.randn(T, B, N), torch.rand(size), torch.randn(T, B, SLOTS)
        attributes = {"capacity": SLOTS, "rotate": rotate, "has_grad_threshold": second, "grad_threshold": 0.25}
        attributes.update(SURROGATE)
        expected = torch.ops.snnipu.select_spikes_fwd(mem, threshold, 0.25 if second else None, SLOTS, bool(rotate))
        outputs = forward(model, "SelectSpikes", [mem, threshold], attributes)
        for got, value in zip(outputs, expected):
            assert torch.equal(got, value.float())
        ids, _, counts, _ = expected
        grad_mem, through = torch.ops.snnipu.select_spikes_bwd(grad, mem, threshold, ids, counts, 3, 2.0, 0.0)
        got = backward(model, "SelectSpikes", [mem, threshold], attributes, outputs, [None, grad, None, None])
        assert torch.equal(got[0], grad_mem)
        torch.testing.assert_close(got[1], threshold_gradient(through, ids, threshold), rtol=1e-5, atol=1e-5)


def on_the_host(slots, parameters, bias, grad):
    """Return currents, and the gradients of values, weight and bias; float64 with delays."""
    ids, values, counts = slots
    needs = (True, True, bias is not None)
    if len(parameters) == 1:
        out = torch.ops.snnipu.sparse_linear_fwd(ids, values, counts, *parameters, bias)
        return [out, *torch.ops.snnipu.sparse_linear_bwd(grad, ids, values, counts, *parameters, *needs)]
    weight, values = parameters[0].double(), values.double()
    bias = None if bias is None else bias.double()
    # The layer clamps delays beyond the last step as well.
    lags = parameters[1].clamp(max=grad.shape[0])
    geometry = [grad.shape[0] + weight.shape[2], weight.shape[2]]
    out = torch.ops.snnipu.delay_linear_fwd(ids, values, counts, weight, bias, geometry, lags)
    grads = torch.ops.snnipu.delay_linear_bwd(grad.double(), ids, values, counts, weight, geometry, *needs, lags)
    return [out, *grads]


def check_linear(model, slots, parameters, unit=1, bias=False, atol=2e-5):
    """Compare SparseLinear, or with lags DelayLinear, with the host; return the steps of the forward pass."""
    weight, name = parameters[0], "SparseLinear" if len(parameters) == 1 else "DelayLinear"
    out = weight.shape[0 if len(parameters) == 1 else 1]
    offset, grad = torch.randn(out) if bias else None, torch.randn(*slots[0].shape[:2], out)
    inputs = [*as_floats(*slots), *(part.float() for part in parameters), *([offset] if bias else [])]
    expected = on_the_host(slots, parameters, offset, grad)
    (out_on_ipu,) = forward(model, name, inputs, {"unit_values": unit})
    if unit and name == "SparseLinear":
        assert torch.equal(out_on_ipu, expected[0])
    else:  # the host may fuse a product with its sum
        torch.testing.assert_close(out_on_ipu, expected[0].float(), rtol=1e-5, atol=atol)
    steps = forward_steps(model.programs()[-1])
    got = backward(model, name, inputs, {"unit_values": unit}, [out_on_ipu], [grad])
    differentiable = [1, 3, *([len(inputs) - 1] if bias else [])]
    for place, gradient in zip(differentiable, expected[1:]):
        torch.testing.assert_close(got[place], gradient.float(), rtol=1e-5, atol=atol)
    # Zero gradients of ids and counts: without them PopART would drop the gradient of the operator before.
    for place in set(range(len(inputs))) - set(differentiable):
        assert torch.equal(got[place], torch.zeros_like(inputs[place]))
    return steps


def parameters_of(kind, taps=2, out=37, inputs=N, longest=0):
    """Return a weight, and with delays lags: up to the last step, beyond it, or none."""
    if kind == "plain":
        return [torch.randn(out, inputs)]
    longest = {"short": T - 1, "long": 3 * T, "none": 0}.get(kind, longest)
    return [torch.randn(inputs, out, taps), torch.randint(longest + 1, (inputs, out), dtype=torch.int32)]


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("unit", [1, 0])
@pytest.mark.parametrize(
    ("kind", "taps", "bias"),
    [("plain", 0, True), ("plain", 0, False), ("short", 2, True), ("long", 2, False), ("none", 1, True)],
)
def test_linear(tiles, ipus, unit, kind, taps, bias):
    check_linear(machine(tiles, ipus), spikes(unit=bool(unit)), parameters_of(kind, taps), unit, bias)


@pytest.mark.parametrize(("kind", "tiles"), [("plain", 2), ("delayed", 4)])
def test_linear_in_pieces(kind, tiles):
    """The spikes exceed one piece of a tile's work: delayed spikes arrive in later pieces."""
    torch.manual_seed(0)
    slots = slots_of((torch.rand(30, 16, 300) < 0.2).float(), 100)
    parameters = parameters_of(kind, out=20, inputs=300, longest=24)
    assert len(check_linear(machine(tiles, options=()), slots, parameters, atol=1e-4)) > 1


def test_delayed_samples_are_divided_among_groups_of_tiles():
    """With few neurons, groups of tiles divide the samples; the last group may have fewer."""
    torch.manual_seed(0)
    slots = slots_of((torch.rand(12, 11, 50) < 0.1).float(), 12)
    steps = check_linear(machine(7, options=()), slots, parameters_of("delayed", out=2, inputs=50, longest=8))
    assert max(step["tiles"] for step in steps) == 6  # five tiles have two samples, the sixth has one


def test_the_longest_delay_takes_no_memory():
    """Delayed spikes are added to the currents of later steps, which the tile stores anyway."""
    sizes = []
    for longest in (5, 200):
        weight, lags = parameters_of("delayed", longest=longest)
        model = machine(4, options=())
        forward(model, "DelayLinear", [*as_floats(*spikes()), weight, lags.float()], {"unit_values": 1})
        sizes.append(max(model.programs()[-1].report()["tile_variables_bytes"]))
    assert sizes[0] == sizes[1]


def test_rows_are_divided_among_groups_of_tiles():
    """With few neurons, the tiles divide the rows, and each has a copy of the weights if they are small."""
    torch.manual_seed(0)
    model = machine(0, options=())
    for inputs, tiles in ((50, 1200), (30000, 5)):
        x = (torch.rand(10, 150, inputs) < 8 / inputs).float()
        ids, values, counts = slots_of(x, 12)
        arguments = [*as_floats(ids, values, counts), torch.randn(10, inputs)]
        (out,) = forward(model, "SparseLinear", arguments, {"unit_values": 1})
        assert torch.equal(out, torch.ops.snnipu.sparse_linear_fwd(ids, values, counts, arguments[3], None))
        steps = forward_steps(model.programs()[-1])
        assert min(step["tiles"] for step in steps) >= tiles
        assert (max(step["tiles"] for step in steps) == tiles) == (inputs == 30000)


def test_ids_out_of_range_stay_in_memory():
    """An IPU clamps ids to the neurons and lags to the steps, since it cannot check them; NaN becomes 0."""
    lags, values = torch.tensor([[float("nan"), -1e9, 1e9, 2.0]]), torch.ones(4, 1, 1)
    inputs = [torch.zeros(4, 1, 1), values, torch.ones(4, 1, 2), torch.ones(1, 4, 1), lags]
    (out,) = forward(machine(1), "DelayLinear", inputs, {"unit_values": 1})
    assert out[:, 0].t().tolist() == [[1.0] * 4, [1.0] * 4, [0.0] * 4, [0.0, 0.0, 1.0, 1.0]]
    ids = torch.tensor([[[-5.0, 1e9, float("nan")]]])
    counts = torch.tensor([[[3.0, 99.0]]])
    (dense,) = forward(machine(1), "SparseToDense", [ids, torch.ones(1, 1, 3), counts], {"num_neurons": 4})
    assert dense.tolist() == [[[2.0, 0.0, 0.0, 1.0]]]
