"""The PopART operators on spike ids with float16 values and weights, on the IPU model, against runs in float32.

Ids, counts, parameters, states and sums are float32 whatever the values are, so that a run with numbers that float16
holds differs from float32 by the rounding of its outputs alone. Numbers that it does not hold may move a membrane over
its threshold: such spikes are few, as many of them too many as too few, and each of them near it.
"""

import pytest
import torch
from support.operators import MACHINES, backward, forward, machine, needs_model_and_host

from snnipu.ipu.model import IpuModelError

pytestmark = needs_model_and_host

T, B, N, SLOTS = 4, 5, 70, 9
SELECT = {"capacity": SLOTS, "rotate": 0, "has_grad_threshold": 1, "grad_threshold": 0.25}
SURROGATE = {"surrogate": 3, "surrogate_a": 2.0, "surrogate_b": 0.0}
# One unit in the last place of float16, as the rounding of a sum in float32 may go either way.
ROUNDED = {"rtol": 2.0**-10, "atol": 2.0**-20}


def held(*shape):
    """Random numbers that float16 holds."""
    return torch.randn(*shape).half().float()


def check_rounded(got, expected, scale=1.0):
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.float(), expected, rtol=ROUNDED["rtol"], atol=ROUNDED["atol"] * scale)


def slots_of(x, slots=SLOTS):
    ids, values, counts, _ = torch.ops.snnipu.dense_to_sparse_fwd(x, slots, False)
    return ids.float(), values, counts.float()


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("per_neuron", [False, True])
def test_select_spikes(tiles, ipus, per_neuron):
    model = machine(tiles, ipus)
    torch.manual_seed(0)
    mem, grad, threshold = held(T, B, N), held(T, B, SLOTS), torch.rand(N if per_neuron else 1)
    attributes = {**SELECT, **SURROGATE}
    expected = forward(model, "SelectSpikes", [mem, threshold], attributes)
    made = forward(model, "SelectSpikes", [mem.half(), threshold], attributes)
    assert [out.dtype for out in made] == [torch.float32, torch.float16, torch.float32, torch.float32]
    for got, wanted in zip(made, expected):
        assert torch.equal(got.float(), wanted)
    upstream = [None, grad, None, None]
    wanted = backward(model, "SelectSpikes", [mem, threshold], attributes, expected, upstream)
    upstream[1] = grad.half()
    got = backward(model, "SelectSpikes", [mem.half(), threshold], attributes, made, upstream)
    check_rounded(got[0], wanted[0])
    torch.testing.assert_close(got[1], wanted[1], rtol=1e-6, atol=1e-6)


def test_spikes_that_differ_are_near_the_threshold():
    """Membranes that float16 does not hold."""
    model = machine(128, options=())
    torch.manual_seed(0)
    neurons = 500
    mem, threshold = 1.5 + 0.2 * torch.randn(20, 50, neurons), 1.3 + 0.4 * torch.rand(neurons)
    attributes = {**SELECT, **SURROGATE, "capacity": neurons, "has_grad_threshold": 0}
    dense = []
    for of in (mem, mem.half()):
        ids, values, counts, _ = forward(model, "SelectSpikes", [of, threshold], attributes)
        dense.append(torch.ops.snnipu.sparse_to_dense_fwd(ids.int(), values.float(), counts.int(), neurons))
    more, fewer = dense[1] > dense[0], dense[1] < dense[0]
    differ = more | fewer
    # Numbers from 1 to 2 are 2^-10 apart: rounding moves them by half of it.
    assert float((mem - threshold).abs()[differ].max()) <= 2.0**-11 + 1e-7
    count = int(differ.sum())
    assert 0 < count < 1e-3 * differ.numel()
    assert abs(int(more.sum()) - int(fewer.sum())) <= 4 * count**0.5


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
def test_dense_to_sparse_and_back(tiles, ipus):
    model = machine(tiles, ipus)
    torch.manual_seed(0)
    x, grad = held(T, B, N) * (torch.rand(T, B, N) < 0.15), held(T, B, SLOTS)
    attributes = {"capacity": SLOTS, "rotate": 0}
    expected = forward(model, "DenseToSparse", [x], attributes)
    made = forward(model, "DenseToSparse", [x.half()], attributes)
    assert [out.dtype for out in made] == [torch.float32, torch.float16, torch.float32, torch.float32]
    for got, wanted in zip(made, expected):
        assert torch.equal(got.float(), wanted)
    wanted = backward(model, "DenseToSparse", [x], attributes, expected, [None, grad, None, None])
    got = backward(model, "DenseToSparse", [x.half()], attributes, made, [None, grad.half(), None, None])
    assert torch.equal(got[0], wanted[0].half())

    ids, values, counts, _ = made
    (dense,) = forward(model, "SparseToDense", [ids, values, counts], {"num_neurons": N})
    assert torch.equal(dense, torch.ops.snnipu.sparse_to_dense_fwd(ids.int(), values.float(), counts.int(), N).half())
    upstream = held(T, B, N)
    got = backward(model, "SparseToDense", [ids, values, counts], {"num_neurons": N}, [dense], [upstream.half()])
    assert torch.equal(got[1], torch.ops.snnipu.sparse_to_dense_bwd(upstream, ids.int(), counts.int()).half())
    assert [got[0].dtype, got[2].dtype] == [torch.float32] * 2


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize(("half_values", "half_weight"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", ["SparseLinear", "DelayLinear"])
def test_sparse_linear(tiles, ipus, half_values, half_weight, name):
    model = machine(tiles, ipus)
    torch.manual_seed(0)
    out = 37
    ids, values, counts = slots_of(held(T, B, N) * (torch.rand(T, B, N) < 0.15))
    bias, grad = torch.randn(out), held(T, B, out)
    parameters = [held(out, N)] if name == "SparseLinear" else [held(N, out, 2), torch.randint(T, (N, out)).float()]
    inputs = [ids, values, counts, *parameters, bias]
    attributes = {"unit_values": 0}
    expected = forward(model, name, inputs, attributes)
    wanted = backward(model, name, inputs, attributes, expected, [grad])
    halved = [
        ids,
        values.half() if half_values else values,
        counts,
        parameters[0].half() if half_weight else parameters[0],
        *parameters[1:],
        bias,
    ]
    made = forward(model, name, halved, attributes)
    assert torch.equal(made[0], expected[0].half() if half_values else expected[0])
    got = backward(model, name, halved, attributes, made, [grad.half() if half_values else grad])
    for place in (1, 3, len(inputs) - 1):
        assert got[place].dtype == halved[place].dtype
        if halved[place].dtype == torch.float16:
            check_rounded(got[place], wanted[place])
        else:
            torch.testing.assert_close(got[place], wanted[place], rtol=1e-6, atol=1e-6)
    assert got[0].dtype == got[2].dtype == torch.float32


SIZES, CAPS = (40, 37, 21, 10), (12, 9, 8, 10)


def network(weights, values):
    """Inputs of SparseNetwork with a float16 and a float32 run in mind: ``weights`` and ``values`` convert them."""
    torch.manual_seed(0)
    ids, held_values, counts = slots_of((torch.rand(8, 6, SIZES[0]) < 0.25) * held(8, 6, SIZES[0]).abs(), CAPS[0])
    inputs = [ids, values(held_values), counts]
    for before, neurons in zip(SIZES, SIZES[1:]):
        weight = torch.randn(neurons, before) * 1.2 / (before / 4) ** 0.5
        inputs += [weights(weight), torch.rand(neurons), torch.rand(neurons) * 0.5 + 0.5]
    return inputs


NETWORK = {
    "slots": list(CAPS[1:]),
    "has_grad_threshold": [1] * 3,
    "grad_threshold": [0.2] * 3,
    "input_scale": [1.0, 0.5, 1.25],
    "reset": 1,
    "rotate": 0,
    "has_bias": 0,
    "unit_values": 0,
    "input_gradient": 1,
    **SURROGATE,
}
VALUES, MEM = 1, 4  # of a layer's five outputs


def same(tensor):
    return tensor


def rounded(tensor):
    return tensor.half().float()


@pytest.mark.parametrize(("tiles", "ipus"), [*MACHINES, (16, 1)])
@pytest.mark.parametrize("values", [torch.Tensor.half, same])
def test_sparse_network(tiles, ipus, values):
    model = machine(tiles, ipus)
    inputs, halved = network(rounded, same), network(torch.Tensor.half, values)
    expected = forward(model, "SparseNetwork", inputs, NETWORK)
    made = forward(model, "SparseNetwork", halved, NETWORK)
    for place, (got, wanted) in enumerate(zip(made, expected)):
        assert got.dtype == (halved[1].dtype if place % 5 == VALUES else torch.float32)
        assert torch.equal(got.float(), wanted)
    torch.manual_seed(1)
    upstream = [held(*out.shape) if place % 5 == VALUES else None for place, out in enumerate(expected)]
    wanted = backward(model, "SparseNetwork", inputs, NETWORK, expected, upstream)
    upstream = [None if grad is None else grad.to(halved[1].dtype) for grad in upstream]
    got = backward(model, "SparseNetwork", halved, NETWORK, made, upstream)
    for place, gradient in got.items():
        assert gradient.dtype == halved[place].dtype
        if gradient.dtype == torch.float16:
            check_rounded(gradient, wanted[place], float(wanted[place].abs().max()))
        else:
            torch.testing.assert_close(gradient, wanted[place], rtol=1e-6, atol=1e-6)
    for layer in range(3):
        assert bool(got[3 + 3 * layer].any())


def test_a_network_differs_at_the_threshold_first():
    """Weights that float16 does not hold: a neuron's first other spike is one of a membrane near its threshold."""
    model = machine(16, options=())
    exact, halved = network(same, same), network(torch.Tensor.half, torch.Tensor.half)
    runs = [forward(model, "SparseNetwork", inputs, NETWORK) for inputs in (exact, halved)]
    threshold = exact[5]
    spikes = [run[MEM] > threshold for run in runs]
    other = spikes[0] != spikes[1]
    share = float(other.float().mean())
    assert share < 0.01
    first = other & (other.cumsum(0) == 1)
    distance = (runs[0][MEM] - threshold).abs()
    # Up to 12 weights of up to about 2, each off by 2^-11 of itself, and what was there before, decayed.
    assert not first.any() or float(distance[first].max()) < 0.02
    unchanged = other.cumsum(0) == 0
    torch.testing.assert_close(runs[1][MEM][unchanged], runs[0][MEM][unchanged], rtol=0, atol=0.02)


def test_half_weights_take_half_the_memory():
    model = machine(16, options=())
    sizes = []
    for weights in (same, torch.Tensor.half):
        forward(model, "SparseNetwork", network(weights, same), NETWORK)
        sizes.append(sum(model.programs()[-1].report()["tile_variables_bytes"]))
    weights = sum(a * b for a, b in zip(SIZES, SIZES[1:]))
    # As PopART holds them, and where a tile's odd neuron needs padding once more.
    assert 2 * weights <= sizes[0] - sizes[1] <= 5 * weights


@pytest.mark.parametrize(
    ("name", "place", "message"),
    [
        ("SparseLinear", 0, "ids must be FLOAT"),
        ("SparseLinear", 2, "counts must be FLOAT"),
        ("SparseLinear", 4, "bias must be FLOAT"),
        ("SparseNetwork", 0, "ids must be FLOAT"),
        ("SparseNetwork", 4, "beta must be FLOAT"),
        ("SparseNetwork", 5, "threshold must be FLOAT"),
        ("SelectSpikes", 1, "threshold must be FLOAT"),
    ],
)
def test_what_stays_in_float(name, place, message):
    """Half holds whole numbers up to 2048 only, and parameters of neurons are float32 as their states are."""
    ids, values, counts = slots_of((torch.rand(T, B, N) < 0.15).float())
    inputs = {
        "SparseLinear": [ids, values, counts, torch.randn(3, N), torch.zeros(3)],
        "SparseNetwork": network(same, same),
        "SelectSpikes": [torch.zeros(T, B, N), torch.ones(1)],
    }[name]
    inputs[place] = inputs[place].half()
    attributes = {"SparseLinear": {"unit_values": 0}, "SparseNetwork": NETWORK, "SelectSpikes": {**SELECT, **SURROGATE}}
    with pytest.raises(IpuModelError, match=message):
        forward(machine(4), name, inputs, attributes[name])
