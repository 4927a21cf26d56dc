"""The dense PopART operators, through their graphs and vertices on the IPU model, against the host's kernels."""

import pytest
import torch
from support.leaky_operator import backward_arguments, flat, forward_arguments
from support.operators import MACHINES, SURROGATES, backward, forward, machine, needs_model_and_host

from snnipu.ipu.model import IpuModelError
from snnipu.surrogate import Kernel, surrogate_gradient

pytestmark = needs_model_and_host


def lif_case(steps=5, batch=3, neurons=7, per_neuron=True, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    size = neurons if per_neuron else 1
    # Decays beyond 1 too: they are clamped, and get no gradient.
    inputs = [
        torch.randn(steps, batch, neurons).to(dtype),
        torch.randn(batch, neurons),
        torch.rand(size) * 1.2,
        torch.rand(size) + 0.2,
        torch.rand(size) + 0.5,
    ]
    return inputs, [torch.randn(steps, batch, neurons).to(dtype) for _ in range(2)]


def check_lif(model, inputs, upstream, reset=0, delay=1, surrogate=3, paths=((0, 1), (0,), (1,))):
    a, b = SURROGATES[surrogate]
    attributes = {"reset": reset, "reset_delay": delay, "surrogate": surrogate, "surrogate_a": a, "surrogate_b": b}
    x, mem0, *parameters = inputs
    beta = parameters[0]
    given = forward_arguments(x, mem0, parameters, None, reset, delay)
    spk, (mem,), _ = torch.ops.snnipu.neuron_sequence_fwd(*given)
    made = forward(model, "LifSequence", inputs, attributes)
    assert torch.equal(made[0], spk)
    assert torch.equal(made[1], mem)
    for path in paths:
        grads = [grad if output in path else None for output, grad in enumerate(upstream)]
        # Membranes that an immediate reset needs are computed again, and are not rounded to float16 in between.
        arguments = backward_arguments(given, grads, (surrogate, a, b), states=mem if delay else None)
        of_x, of_mem0, of_threshold, of_beta, of_graded = flat(torch.ops.snnipu.neuron_sequence_bwd(*arguments))
        expected = [of_x, of_mem0, of_beta * (beta == beta.clamp(0, 1)), of_threshold, of_graded]
        got = backward(model, "LifSequence", inputs, attributes, made, grads)
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
        # Sums over steps and samples, in another order.
        for place in (2, 3, 4):
            scale = max(1.0, float(expected[place].abs().max()))
            torch.testing.assert_close(got[place], expected[place], rtol=1e-5, atol=1e-6 * scale * x.shape[1])


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("per_neuron", [True, False])
def test_lif_sequence(tiles, ipus, per_neuron):
    check_lif(machine(tiles, ipus), *lif_case(per_neuron=per_neuron))


@pytest.mark.parametrize("reset", [0, 1, 2])
@pytest.mark.parametrize("delay", [0, 1])
def test_lif_sequence_variants(reset, delay):
    model = machine(4)
    for surrogate in SURROGATES:
        inputs, upstream = lif_case(neurons=33, seed=surrogate)
        check_lif(model, inputs, upstream, reset, delay, surrogate, paths=((0, 1),))


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("delay", [0, 1])
def test_lif_sequence_in_half(tiles, ipus, delay):
    """float16 crosses the border; state and parameters are float32 either way, so nothing differs. An odd number of
    elements in a step."""
    check_lif(machine(tiles, ipus), *lif_case(neurons=37, dtype=torch.float16), delay=delay)


def test_lif_sequence_on_a_whole_ipu():
    """More than two neurons on each tile, a rest on the last one."""
    inputs, upstream = lif_case(steps=8, batch=16, neurons=501)
    check_lif(machine(0, options=()), inputs, upstream, paths=((0, 1),))


def test_lif_sequence_of_one_element():
    check_lif(machine(4), *lif_case(steps=1, batch=1, neurons=1))


def test_neurons_are_spread_by_twos():
    """At least two neurons to a tile: a vector of the machine."""
    inputs, _ = lif_case(steps=2, batch=1, neurons=9)
    model = machine(0, options=())
    attributes = {"reset": 0, "reset_delay": 1, "surrogate": 3, "surrogate_a": 2.0, "surrogate_b": 0.0}
    forward(model, "LifSequence", inputs, attributes)
    (program,) = model.programs()
    (step,) = [step for step in program.report()["steps"] if step["name"].endswith("forward")]
    assert step["vertices"] == step["tiles"] == 5


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_surrogate_spike(tiles, ipus, dtype):
    model = machine(tiles, ipus)
    torch.manual_seed(0)
    for surrogate, (a, b) in SURROGATES.items():
        u, grad = torch.randn(3, 21).to(dtype), torch.randn(3, 21).to(dtype)
        u[0, 0] = 0
        attributes = {"surrogate": surrogate, "surrogate_a": a, "surrogate_b": b}
        (spk,) = forward(model, "SurrogateSpike", [u], attributes)
        assert torch.equal(spk, (u > 0).to(dtype))
        got = backward(model, "SurrogateSpike", [u], attributes, [spk], [grad])[0]
        expected = surrogate_gradient(Kernel(surrogate, a, b), u.float(), grad.float()).to(dtype)
        tolerance = {"rtol": 2e-3, "atol": 1e-6} if dtype == torch.float16 else {"rtol": 2e-6, "atol": 1e-7}
        torch.testing.assert_close(got, expected, **tolerance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, a: a.update(reset=3), "reset must be from 0 to 2, got 3"),
        (lambda i, a: a.update(surrogate=6), "surrogate must be from 0 to 5, got 6"),
        (lambda i, a: a.pop("surrogate_a"), "no attribute surrogate_a"),
        (lambda i, a: a.update(slope=1.0), "has no attribute slope"),
        (lambda i, a: i.__setitem__(2, torch.rand(5)), "beta must fit one step of x"),
        (lambda i, a: i.__setitem__(1, torch.rand(2, 7)), "mem0 must fit one step of x"),
        (lambda i, a: i.__setitem__(3, torch.rand(7).half()), "threshold must be FLOAT"),
        (lambda i, a: i.__setitem__(0, torch.randn(0, 3, 7)), "x must have shape"),
    ],
)
def test_bad_lif_sequence(change, message):
    inputs, _ = lif_case()
    attributes = {"reset": 0, "reset_delay": 1, "surrogate": 3, "surrogate_a": 2.0, "surrogate_b": 0.0}
    change(inputs, attributes)
    with pytest.raises(IpuModelError, match=message):
        forward(machine(4), "LifSequence", inputs, attributes)


def test_tile_memory_is_refused():
    """A sequence that no tile can hold, on one tile."""
    inputs, _ = lif_case(steps=200, batch=8, neurons=100)
    attributes = {"reset": 0, "reset_delay": 1, "surrogate": 3, "surrogate_a": 2.0, "surrogate_b": 0.0}
    with pytest.raises(IpuModelError) as caught:
        forward(machine(1, options=()), "LifSequence", inputs, attributes)
    assert caught.value.kind == "graph_memory_allocation_error"
    assert "tile 0" in str(caught.value)
