"""SparseNetwork on the IPU model, all layers in parallel, compared with the host's layers one after the other."""

import pytest
import torch
from support.operators import (
    MACHINES,
    SURROGATE,
    SURROGATES,
    as_floats,
    backward,
    compiled,
    forward,
    machine,
    needs_model_and_host,
    slots_of,
)
from support.tables import each_row

from snnipu import SparseSpikes
from snnipu.ipu import NetworkSpec
from snnipu.ipu import plan as plan_of
from snnipu.ipu.model import IpuModelError, TensorType, tensor_type
from snnipu.ops import _sparse_layers
from snnipu.ops.connections import FullyConnected
from snnipu.ops.sparse_lif_sequence import OPERATORS
from snnipu.planning.search import operator_plan
from snnipu.surrogate import Kernel

pytestmark = needs_model_and_host

T, B = 6, 5
SIZES, SLOTS = (40, 37, 21, 10), (12, 9, 8, 10)


def network(
    sizes=SIZES,
    slots=SLOTS,
    steps=T,
    batch=B,
    unit=True,
    bias=False,
    per_neuron=True,
    seed=0,
    recurrent=None,
    **changes,
):
    """Return spikes, the parameters of each layer and the attributes."""
    torch.manual_seed(seed)
    x = (torch.rand(steps, batch, sizes[0]) < 0.25) * (1.0 if unit else torch.randn(steps, batch, sizes[0]))
    ids, values, counts = slots_of(x, slots[0])
    layers = len(sizes) - 1
    recurrent = recurrent or [0] * layers
    parameters = []
    for inputs, neurons, reads_itself in zip(sizes, sizes[1:], recurrent):
        size = neurons if per_neuron else 1
        weight = torch.randn(neurons, inputs) * 1.2 / (inputs / 4) ** 0.5
        layer = [weight, torch.rand(size) * 1.1, torch.rand(size) * 0.5 + 0.5]
        layer += [torch.randn(neurons) * 0.1] if bias else []
        parameters.append(layer + ([torch.randn(neurons, neurons) * 0.5] if reads_itself else []))
    attributes = {
        "slots": list(slots[1:]),
        "has_grad_threshold": [1] * layers,
        "grad_threshold": [0.2] * layers,
        "input_scale": [1.0, 0.5, 1.25][:layers],
        "reset": 1,
        "rotate": 0,
        "has_bias": int(bias),
        "unit_values": int(unit),
        "input_gradient": 1,
        **SURROGATE,
        **({"recurrent": recurrent} if any(recurrent) else {}),
        **changes,
    }
    return (ids, values, counts), parameters, attributes


def inputs_of(spikes, parameters, attributes, weights=torch.float32):
    """Return the operator's inputs, with weights of this dtype, and its attributes."""
    tensors = [tensor for layer in parameters for tensor in layer]
    return [*as_floats(*spikes), *(t.to(weights) if t.dim() == 2 else t for t in tensors)], attributes


def on_host(spikes, parameters, attributes):
    """Return (ids, values, counts, dropped) of each layer, with a step of delay between layers; differentiable."""
    ids, values, counts = spikes
    kernel = Kernel(attributes["surrogate"], attributes["surrogate_a"], attributes["surrogate_b"])
    outputs = []
    for layer, (weight, beta, threshold, *more) in enumerate(parameters):
        bias = more.pop(0) if attributes["has_bias"] else None
        second = attributes["grad_threshold"][layer] if attributes["has_grad_threshold"][layer] else None
        options = _sparse_layers.NeuronOptions(
            second, attributes["input_scale"][layer], attributes["reset"], 1 if layer else 0, kernel, None
        )
        ids, values, counts, dropped = _sparse_layers.layer_apply(
            OPERATORS,
            SparseSpikes._trusted(ids, values, counts, weight.shape[1]),
            FullyConnected(weight),
            bias,
            _sparse_layers.LayerNeurons(beta, threshold, options),
            recurrent_weight=more[0] if more else None,
            max_spikes=attributes["slots"][layer],
            overflow="rotate" if attributes["rotate"] else "lowest",
        )
        outputs.append((ids, values, counts, dropped))
    return outputs


def check(model, spikes, parameters, attributes, paths=None, names=None):
    ids, values, counts = spikes
    leaves = [values] + [tensor for layer in parameters for tensor in layer]
    for leaf in leaves:
        leaf.requires_grad_()
    expected = on_host(spikes, parameters, attributes)
    assert all(int(layer[2][..., 0].sum()) > 0 for layer in expected), "a layer is silent"
    inputs = [ids.float(), values.detach(), counts.float(), *(leaf.detach() for leaf in leaves[1:])]
    outputs = forward(model, "SparseNetwork", inputs, attributes)
    layers = len(parameters)
    for layer in range(layers):
        for output, value in enumerate(expected[layer]):
            assert torch.equal(outputs[5 * layer + output], value.detach().float()), (layer, output)
    torch.manual_seed(1)
    grads = [torch.randn_like(layer[1]) for layer in expected]
    for path in paths or ((layers - 1,), tuple(range(layers))):
        upstream = [None] * (5 * layers)
        for layer in path:
            upstream[5 * layer + 1] = grads[layer]
        got = backward(model, "SparseNetwork", inputs, attributes, outputs, upstream)
        expected_grads = torch.autograd.grad(
            [expected[layer][1] for layer in path], leaves, [grads[layer] for layer in path], retain_graph=True
        )
        assert torch.equal(got[0], torch.zeros_like(inputs[0]))
        assert torch.equal(got[2], torch.zeros_like(inputs[2]))
        for place, gradient in zip([1, *range(3, len(inputs))], expected_grads):
            if place == 1 and not attributes["input_gradient"]:
                assert torch.equal(got[1], torch.zeros_like(inputs[1]))
                continue
            scale = max(1.0, float(gradient.abs().max()))
            torch.testing.assert_close(got[place], gradient, rtol=1e-4, atol=1e-5 * scale)
        place = 3
        for layer, tensors in enumerate(parameters):
            assert bool(got[place].any()), f"no gradient reaches layer {layer}"
            place += len(tensors)
            if attributes.get("recurrent", [0] * layers)[layer]:
                assert bool(got[place - 1].any()), f"no gradient reaches the recurrent weight of layer {layer}"


@pytest.mark.parametrize(("tiles", "ipus"), [*MACHINES, (16, 1), (64, 1)])
def test_machines(tiles, ipus):
    check(machine(tiles, ipus), *network())


@pytest.mark.parametrize("reset", [0, 1, 2])
@pytest.mark.parametrize(("unit", "bias", "per_neuron"), [(True, False, True), (False, True, False)])
@pytest.mark.parametrize("rotate", [0, 1])
def test_variants(reset, unit, bias, per_neuron, rotate):
    check(machine(16), *network(unit=unit, bias=bias, per_neuron=per_neuron, reset=reset, rotate=rotate))


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
def test_surrogates(surrogate):
    a, b = SURROGATES[surrogate]
    check(machine(16), *network(surrogate=surrogate, surrogate_a=a, surrogate_b=b), paths=((2,),))


@pytest.mark.parametrize(
    ("tiles", "changes"),
    [
        (16, {"slots": (12, 37, 21, 10), "has_grad_threshold": [0, 0, 0]}),  # every neuron carries gradient
        (16, {"input_gradient": 0}),
        (4, {"sizes": (40, 11), "slots": (12, 6)}),
        # Partial gradients of recurrent spikes are summed in two stages as well.
        (64, {"sizes": (40, 80, 10), "slots": (12, 20, 10), "recurrent": [1, 1]}),
        # Several blocks of up to 64 neurons are on a tile; their bits do not fill whole words.
        (4, {"sizes": (40, 301, 70, 10), "slots": (20, 60, 30, 10)}),
        # In the only step a second layer would have no input yet.
        (8, {"sizes": (40, 37), "slots": (12, 9), "steps": 1}),
    ],
)
def test_sizes_and_options(tiles, changes):
    check(machine(tiles), *network(**changes))


def test_ids_in_any_order():
    """A user's ids may be unsorted."""
    (ids, values, counts), parameters, attributes = network(unit=False)
    for t in range(T):
        count = int(counts[t, 0, 0])
        ids[t, 0, :count] = ids[t, 0, :count].flip(0)
        assert count > 2
    check(machine(16), (ids, values, counts), parameters, attributes)


@pytest.mark.parametrize(("tiles", "ipus"), [(1, 1), (4, 1), (0, 1), (24, 2)])
def test_recurrent(tiles, ipus):
    """The first and the last layer are recurrent: one before another layer, one at the end."""
    check(machine(tiles, ipus), *network(recurrent=[1, 0, 1]))


@pytest.mark.parametrize("reset", [0, 1, 2])
@pytest.mark.parametrize(("bias", "rotate", "second"), [(False, 0, 1), (True, 1, 1), (True, 0, 0)])
def test_one_recurrent_layer(reset, bias, rotate, second):
    """SparseLeaky with recurrent=True is a network of one layer on an IPU."""
    slots = (12, 6 if second else 23)
    spikes, parameters, attributes = network(
        (40, 23), slots, unit=False, bias=bias, recurrent=[1], reset=reset, rotate=rotate
    )
    check(machine(8), spikes, parameters, {**attributes, "has_grad_threshold": [second]})


def test_runs_again():
    """Each run of a program starts with fresh states, counters and sums."""
    model = machine(16)
    for seed in (0, 1):
        check(model, *network(seed=seed))
    assert len(model.programs()) == 3


# For each layer: first tile, runs of neurons, groups of samples, first selection tile, runs of samples.
PLAN = [
    *(0, 2, 4, 9, 1, 1, 1, 5, 1, 11, 1, 5, 1),
    *(10, 1, 7, 3, 2, 2, 2, 1, 1, 19, 2, 2, 1, 1, 3),
    *(8, 2, 4, 2, 2, 1, 1, 5, 1, 23, 1, 5, 1),
]


@pytest.mark.parametrize("recurrent", [None, [0, 1, 0]])
def test_plan(recurrent):
    """The operator places neurons and samples as PLAN says.

    The first layer is on 9 tiles of 4 neurons and one of 1. The second has 3 groups of samples, each with a copy of the
    weights on 3 tiles of 7 neurons.
    """
    spikes, parameters, attributes = network(recurrent=recurrent)
    model = machine(24)
    check(model, spikes, parameters, {**attributes, "plan": PLAN})
    steps = {step["name"].rsplit("/", 1)[-1]: step for step in model.programs()[0].report()["steps"]}
    assert steps["prepare"]["vertices"] == 2 * (10 + 3 * 3 + 3)  # each block's state and beta
    assert steps["select"]["vertices"] == 1 + 4 + 1
    assert steps["lif"]["executions"] == T


@each_row("""
{"slots": [9, 8]} | an entry for each layer
{"recurrent": [0, 2, 0]} | recurrent 0 or 1
{"plan": PLAN[:-1]} | plan ends too early
{"plan": [1000, *PLAN[1:]]} | each of its neurons to one of 24 tiles
{"plan": [*PLAN[:-2], 4, 1]} | each sample of the batch to one of 24 tiles
{"plan": [*PLAN[:-5], 4, 1, *PLAN[-3:]]} | each sample of the batch to one of the groups
{"plan": [*PLAN[:-2], 5, 0]} | run of nothing
{"plan": [*PLAN[:-2], 5, 1 << 40]} | run of nothing, or one of more than
""")
def test_bad_attributes(row):
    changes, message = row.split(" | ")
    inputs, attributes = inputs_of(*network())
    with pytest.raises(IpuModelError, match=message):
        forward(machine(24), "SparseNetwork", inputs, {**attributes, "plan": PLAN, **eval(changes)})


def test_membranes_carry_no_gradient():
    """A loss that depends on membranes is refused, since it would have no effect."""
    inputs, attributes = inputs_of(*network())
    model = machine(16)
    outputs = forward(model, "SparseNetwork", inputs, attributes)
    upstream = [None] * len(outputs)
    upstream[4] = torch.ones_like(outputs[4])
    with pytest.raises(IpuModelError, match="membranes of layer 0 are on the path to the loss"):
        backward(model, "SparseNetwork", inputs, attributes, outputs, upstream)


# ---- weights in float16. Rounding may move a membrane over its threshold: such spikes must be few, and their membranes
# near the threshold.


MEM = 4  # position of the membranes in a layer's five outputs


def test_half_weights_differ_at_the_threshold_first():
    """A neuron's first different spike has a membrane near the threshold."""
    model, arguments = machine(16, options=()), network(unit=False)
    runs = [
        forward(model, "SparseNetwork", *inputs_of(*arguments, weights)) for weights in (torch.float32, torch.float16)
    ]
    threshold = arguments[1][0][2]
    spikes = [run[MEM] > threshold for run in runs]
    other = spikes[0] != spikes[1]
    assert float(other.float().mean()) < 0.01
    first = other & (other.cumsum(0) == 1)
    distance = (runs[0][MEM] - threshold).abs()
    # At most 12 weights of about 2, each with a relative error of 2^-11, and the decayed errors of earlier steps.
    assert not first.any() or float(distance[first].max()) < 0.02
    unchanged = other.cumsum(0) == 0
    torch.testing.assert_close(runs[1][MEM][unchanged], runs[0][MEM][unchanged], rtol=0, atol=0.02)


def test_half_weights_take_half_the_memory():
    model = machine(16, options=())
    sizes = []
    for weights in (torch.float32, torch.float16):
        forward(model, "SparseNetwork", *inputs_of(*network(unit=False), weights))
        sizes.append(sum(model.programs()[-1].report()["tile_variables_bytes"]))
    weights = sum(a * b for a, b in zip(SIZES, SIZES[1:]))
    # Float16 saves 2 bytes for each weight that PopART stores, and as much for a padded copy on the tiles.
    assert 2 * weights <= sizes[0] - sizes[1] <= 5 * weights


def programs(model, sizes, slots, steps, batch, plan=None, recurrent=None):
    """Return the operator and its gradient, compiled and not run."""
    more = {"per_neuron": False, "input_gradient": 0, "recurrent": recurrent}
    spikes, parameters, attributes = network(sizes, slots, steps, batch, **more)
    if plan is not None:
        attributes["plan"] = list(plan)
    tensors = [*spikes, *(tensor for layer in parameters for tensor in layer)]
    specs = [tensor_type(tensor.float(), "SparseNetwork") for tensor in tensors]
    last = 5 * (len(parameters) - 1) + 1
    return [compiled(model, "SparseNetwork", specs, attributes, outputs) for outputs in (None, [last])]


def cycles_of(program):
    counts = program.estimate()
    return counts["compute_cycles"] + counts["exchange_cycles"] + counts["sync_cycles"]


def planned(model, sizes, slots, steps, batch):
    return operator_plan(
        tuple(sizes), tuple(slots), (False,) * (len(sizes) - 1), batch, steps, "float32", True, *model.machine()
    )


def test_the_plan_is_not_slower_than_the_layers_one_by_one():
    """A small layer follows a large one. If it ran alone, the other tiles would wait for its few tiles."""
    model = machine(128, options=())
    sizes, slots, steps, batch = (200, 300, 10), (64, 64, 10), 8, 24
    plan = planned(model, sizes, slots, steps, batch)
    network_cycles = sum(map(cycles_of, programs(model, sizes, slots, steps, batch, plan)))
    layer_cycles = 0
    for inputs, neurons, slots_in, slots_out in zip(sizes, sizes[1:], slots, slots[1:]):
        rows = TensorType("FLOAT", (steps, batch, neurons))
        spikes = [TensorType("FLOAT", (steps, batch, slots_in))] * 2 + [TensorType("FLOAT", (steps, batch, 2))]
        scalar = TensorType("FLOAT", (1,))
        operators = [
            ("SparseLinear", [*spikes, TensorType("FLOAT", (neurons, inputs))], {"unit_values": 0}, [0]),
            (
                "NeuronSequence",
                [rows, TensorType("FLOAT", (batch, neurons)), scalar, scalar, scalar],
                {"neuron": "leaky", "variant": 2, "states": 1, **SURROGATE},
                [1],
            ),
            (
                "SelectSpikes",
                [rows, scalar],
                {"capacity": slots_out, "rotate": 0, "has_grad_threshold": 1, "grad_threshold": 0.2, **SURROGATE},
                [1],
            ),
        ]
        for name, specs, attributes, gradient in operators:
            pair = [compiled(model, name, specs, attributes, outputs) for outputs in (None, gradient)]
            layer_cycles += sum(map(cycles_of, pair))
    assert network_cycles <= layer_cycles


@pytest.mark.parametrize("recurrent", [(), (True, False)])
def test_the_operator_takes_networks_that_fit(recurrent):
    """The plan has enough selection tiles to store the spikes of all steps."""
    sizes, slots, steps, batch = (60, 400, 10), (20, 120, 10), 150, 12
    model = machine(48, options=())
    target, ipus = model.machine()
    spec = NetworkSpec(sizes, tuple(map(float, slots)), slots, batch, steps, optimizer="sgd", recurrent=recurrent)
    plan = plan_of(spec, target, ipus)
    assert plan.fits
    for program in programs(model, sizes, slots, steps, batch, plan.attribute(), list(map(int, recurrent))):
        assert program.estimate()["tile_memory_max_bytes"] <= 1.1 * plan.tile_memory_max_bytes
    # With too few selection tiles, the message names the layer and a remedy.
    few = plan_of(spec, target, ipus, selection_tiles=1)
    assert not few.fits
    with pytest.raises(IpuModelError, match=r"layer 1/spikes of all steps.*In the model: fewer time steps.*max_spikes"):
        programs(model, sizes, slots, steps, batch, few.attribute(), list(map(int, recurrent)))
