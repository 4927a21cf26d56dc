"""PopART operators on spike ids of maps, on the IPU model, compared with the host kernels."""

import pytest
import torch
from support.operators import (
    MACHINES,
    as_floats,
    backward,
    forward,
    forward_steps,
    machine,
    needs_model_and_host,
    slots_of,
)
from support.tables import cells_of

from snnipu.backends.popart import pool_slots
from snnipu.ops._maps import conv_geometry, pool_geometry

pytestmark = needs_model_and_host

T, B, SLOTS = 3, 4, 20


def spikes(neurons, density=0.15, slots=SLOTS, seed=0, half_values=False):
    """Return (ids, values, counts) of random spikes and gradient-only slots; ``half_values``: rounded to float16."""
    torch.manual_seed(seed)
    x = torch.randn(T, B, neurons) * (torch.rand(T, B, neurons) < density)
    ids, values, counts = slots_of(x, slots)
    # A few slots after the spikes only carry gradient.
    counts[..., 0] -= torch.randint(0, 4, counts.shape[:2]).clamp(max=counts[..., 0])
    values[torch.arange(slots) >= counts[..., :1]] = 0
    return ids, values.half().float() if half_values else values, counts


def geometry(in_channels, size, out, kernel, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    return conv_geometry(torch.empty(out, in_channels // groups, *kernel), size, stride, padding, dilation, groups)


CONVOLUTIONS = {
    name: eval(f"geometry({sizes})")
    for name, sizes in cells_of(
        """
    3x3                 | 3, (7, 9), 10, (3, 3)
    padded              | 2, (6, 5), 5, (3, 3), padding=(1, 2)
    strides             | 4, (9, 8), 6, (3, 2), stride=(2, 3), padding=(1, 0)
    dilated             | 2, (9, 9), 7, (2, 3), stride=(2, 1), padding=(2, 3), dilation=(3, 2)
    groups              | 6, (5, 6), 9, (2, 2), groups=3
    depthwise           | 4, (5, 5), 4, (3, 3), padding=(1, 1), groups=4
    1x1                 | 5, (4, 3), 20, (1, 1)
    one place           | 3, (4, 4), 3, (4, 4)
    larger than the map | 2, (2, 2), 4, (5, 5), padding=(2, 2)
    wide                | 1, (3, 2), 70, (3, 2), padding=(1, 1)
    """
    )
}
# (channels of a block, lines of a band, rows of a share): a plan with one part, the smallest parts, and medium parts.
PLANS = [(64, 99, 99), (2, 1, 1), (4, 2, 5)]


def attributes(sizes, plan, input_gradient=1):
    return {"geometry": list(sizes), "plan": list(plan), "input_gradient": input_gradient}


def weight_of(sizes):
    return torch.randn(sizes.out_channels, sizes.in_channels // sizes.groups, sizes.kernel_height, sizes.kernel_width)


def check_conv(model, sizes, plan, bias=True, slots=None, unit=False, atol=2e-5):
    ids, values, counts = spikes(sizes.inputs) if slots is None else slots
    if unit:
        values = (torch.arange(SLOTS) < counts[..., :1]).float()
    weight, offset = weight_of(sizes), torch.randn(sizes.out_channels)
    grad = torch.randn(*ids.shape[:2], sizes.neurons)
    inputs = [*as_floats(ids, values, counts), weight, *([offset] if bias else [])]
    expected = torch.ops.snnipu.sparse_conv2d_fwd(ids, values, counts, weight, offset if bias else None, list(sizes))
    (out,) = forward(model, "SparseConv2d", inputs, attributes(sizes, plan))
    if unit:  # the spikes add their weights in the order of the host
        assert torch.equal(out, expected)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    got = backward(model, "SparseConv2d", inputs, attributes(sizes, plan), [out], [grad])
    expected_grads = torch.ops.snnipu.sparse_conv2d_bwd(
        grad, ids, values, counts, weight, list(sizes), True, True, bias
    )
    in_use = torch.arange(ids.shape[2]) < counts[..., 1:]
    torch.testing.assert_close(got[1][in_use], expected_grads[0][in_use], rtol=1e-5, atol=atol)
    assert not got[1][~in_use].any()
    for place, gradient in zip((3, 4), expected_grads[1:]):
        if place < len(inputs):
            torch.testing.assert_close(got[place], gradient, rtol=1e-5, atol=atol)
    # Zero gradients of ids and counts: without them PopART would drop the gradient of the operator before.
    for place in (0, 2):
        assert torch.equal(got[place], torch.zeros_like(inputs[place]))


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("plan", PLANS)
def test_sparse_conv2d(tiles, ipus, plan):
    check_conv(machine(tiles, ipus), CONVOLUTIONS["3x3"], plan)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_sizes_of_convolutions(name, plan):
    check_conv(machine(4), CONVOLUTIONS[name], plan, bias=name != "groups")


def test_rows_in_pieces():
    """The spikes and maps exceed one piece of a tile's work: sums continue over the pieces."""
    torch.manual_seed(0)
    sizes, model = geometry(2, (24, 24), 6, (3, 3)), machine(2, options=())
    slots = slots_of(torch.randn(10, 6, sizes.inputs) * (torch.rand(10, 6, sizes.inputs) < 0.05), 90)
    check_conv(model, sizes, (6, 22, 30), slots=slots, atol=2e-4)
    assert len(forward_steps(model.programs()[0])) > 1


def test_unit_spikes_are_summed_in_the_hosts_order():
    check_conv(machine(4), CONVOLUTIONS["strides"], (2, 1, 1), bias=False, unit=True)


def test_the_gradient_of_the_input_is_computed_on_request_only():
    sizes = CONVOLUTIONS["3x3"]
    ids, values, counts = spikes(sizes.inputs)
    weight, grad = weight_of(sizes), torch.randn(T, B, sizes.neurons)
    inputs = [*as_floats(ids, values, counts), weight]
    model = machine(4)
    requested, skipped = (
        backward(model, "SparseConv2d", inputs, attributes(sizes, PLANS[2], flag), [grad], [grad]) for flag in (1, 0)
    )
    assert torch.equal(requested[3], skipped[3])
    assert requested[1].any()
    assert not skipped[1].any()
    steps = [{step["name"].rsplit("/", 1)[-1] for step in program.report()["steps"]} for program in model.programs()]
    assert ["sum" in names for names in steps] == [True, False]


def test_work_is_divided_among_all_tiles():
    """Channels, lines and rows are on different tiles."""
    sizes = CONVOLUTIONS["3x3"]
    ids, values, counts = spikes(sizes.inputs)
    inputs = [*as_floats(ids, values, counts), weight_of(sizes)]
    model = machine(0, options=())
    for plan in PLANS:
        forward(model, "SparseConv2d", inputs, attributes(sizes, plan))
    tiles = [max(step["tiles"] for step in forward_steps(program)) for program in model.programs()]
    assert tiles == [1, 5 * 5 * 12, 3 * 3 * 3]


POOLS = {
    name: eval(f"pool_geometry({sizes})")
    for name, sizes in cells_of(
        """
    2x2         | (3, 6, 8), (2, 2), (2, 2), (0, 0)
    leftover    | (3, 7, 5), (2, 2), (2, 2), (0, 0)
    overlapping | (2, 7, 7), (3, 3), (2, 2), (0, 0)
    padded      | (2, 6, 7), (3, 2), (2, 1), (1, 1)
    gaps        | (8, 7, 7), (2, 1), (3, 2), (0, 0)
    one window  | (40, 2, 2), (2, 2), (2, 2), (0, 0)
    """
    )
}
MODES = (0, 1, 2)


def check_pool(model, sizes, mode, positive, half=False):
    ids, values, counts = spikes(sizes.inputs, density=0.3, half_values=half)
    if positive:
        values = (torch.arange(SLOTS) < counts[..., :1]).float()
    options = {"geometry": list(sizes), "mode": mode, "capacity": min(sizes.neurons, SLOTS * 4)}
    expected = torch.ops.snnipu.sparse_pool2d_fwd(ids, values, counts, list(sizes), mode, options["capacity"])
    kind = torch.float16 if half else torch.float32
    inputs = [ids.float(), values.to(kind), counts.float()]
    outputs = forward(model, "SparsePool2d", inputs, options)
    assert [out.dtype for out in outputs] == [torch.float32, kind, torch.float32, torch.float32]
    assert torch.equal(outputs[0], expected[0].float())
    assert torch.equal(outputs[2], expected[2].float())
    torch.testing.assert_close(
        outputs[1].float(), expected[1].to(kind).float(), rtol=2.0**-10 if half else 1e-6, atol=1e-7
    )
    if mode == 0:
        assert torch.equal(outputs[3], expected[3].float())
    torch.manual_seed(1)
    grad = torch.randn(expected[1].shape).to(kind)
    got = backward(model, "SparsePool2d", inputs, options, outputs, [None, grad, None, None])
    expected_grad = torch.ops.snnipu.sparse_pool2d_bwd(
        grad.float(), ids, counts, expected[0], expected[2], expected[3], list(sizes), mode
    )
    tolerance = {"rtol": 2.0**-10, "atol": 2.0**-10} if half else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(got[1].float(), expected_grad, **tolerance)
    assert got[1].dtype == kind
    assert torch.equal(got[0], torch.zeros(T, B, SLOTS))
    assert torch.equal(got[2], torch.zeros(T, B, 2))


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "half"), [("2x2", False), ("padded", True)])
def test_sparse_pool2d(tiles, ipus, mode, name, half):
    check_pool(machine(tiles, ipus), POOLS[name], mode, positive=not half, half=half)


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", POOLS)
def test_sizes_of_pools(name, mode, positive):
    check_pool(machine(4), POOLS[name], mode, positive)


@pytest.mark.parametrize("name", POOLS)
def test_slots_of_pools_are_enough(name):
    """``pool_slots`` bounds the number of windows that an input neuron reaches."""
    sizes = POOLS[name]
    ids = torch.arange(sizes.inputs, dtype=torch.int32).reshape(-1, 1, 1)
    counts = torch.ones(sizes.inputs, 1, 2, dtype=torch.int32)
    pooled = torch.ops.snnipu.sparse_pool2d_fwd(ids, torch.ones(ids.shape), counts, list(sizes), 2, sizes.neurons)
    assert pool_slots(sizes, 1) == int(pooled[2].max())
    assert pool_slots(sizes, 3) == min(3 * pool_slots(sizes, 1), sizes.neurons)


def test_ids_out_of_range_stay_in_memory():
    """An IPU clamps ids to the neurons, since it cannot check them; NaN becomes 0."""
    ids, counts = torch.tensor([[[-5.0, 1e9, float("nan")]]]), torch.tensor([[[3.0, 99.0]]])
    sizes = geometry(2, (2, 2), 1, (1, 1))
    inputs = [ids, torch.ones(1, 1, 3), counts, torch.tensor([1.0, 10.0]).reshape(1, 2, 1, 1)]
    (outputs,) = forward(machine(1), "SparseConv2d", inputs, attributes(sizes, (1, 2, 1)))
    assert outputs.tolist() == [[[2.0, 0.0, 0.0, 10.0]]]
    pool = pool_geometry((2, 2, 2), (2, 2), (2, 2), (0, 0))
    options = {"geometry": list(pool), "mode": 2, "capacity": 2}
    outputs = forward(machine(1), "SparsePool2d", inputs[:3], options)
    assert [out.tolist() for out in outputs[:3]] == [[[[0.0, 1.0]]], [[[2.0, 1.0]]], [[[2.0, 2.0]]]]
