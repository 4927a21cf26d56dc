"""``NeuronSequence``, ``SurrogateSpike`` and their gradients on the IPU model, compared with the host."""

import pytest
import torch
from support.operators import MACHINES, SURROGATES, backward, forward, forward_steps, machine, needs_model_and_host

from snnipu.ipu.model import IpuModelError
from snnipu.ops import _neurons
from snnipu.ops.neuron_sequence import neuron_sequence_bwd_reference, neuron_sequence_fwd_reference
from snnipu.surrogate import Kernel, surrogate_gradient

pytestmark = needs_model_and_host

VARIANTS = [(name, variant) for name in _neurons._EQUATIONS for variant in range(len(_neurons.find(name).steps))]


def case(name, steps=5, batch=3, neurons=7, per_neuron=True, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    equations = _neurons.find(name)
    inputs = [torch.randn(steps, batch, neurons).to(dtype)]
    inputs += [torch.randn(batch, neurons) for _ in equations.states]
    sizes = [neurons if per_neuron and place != 1 else 1 for place in range(len(equations.parameters))]
    inputs += [0.1 + 0.85 * torch.rand(size) for size in sizes]
    return inputs


def attributes_of(name, variant, states, surrogate=3):
    a, b = SURROGATES[surrogate]
    neuron = {"neuron": name, "variant": variant, "states": states}
    return {**neuron, "surrogate": surrogate, "surrogate_a": a, "surrogate_b": b}


def check(model, name, variant, inputs, stored, surrogate=3, paths=None):
    """Check that outputs and gradients equal the host's; for each path the loss depends on these outputs."""
    equations = _neurons.find(name)
    count, output = len(equations.states), equations.steps[variant].output_state
    x, initial, parameters = inputs[0], inputs[1 : 1 + count], inputs[1 + count :]
    has_kernel = name in _neurons.BUILT
    run = torch.ops.snnipu.neuron_sequence_fwd if has_kernel else neuron_sequence_fwd_reference
    spk, states, _ = run(x, initial, parameters, name, variant, None, (1 << count) - 1, False)
    attributes = attributes_of(name, variant, stored, surrogate)
    outputs = forward(model, "NeuronSequence", inputs, attributes)
    places = [place for place in range(count) if stored >> place & 1]
    for got, expected in zip(outputs, [spk, *(states[place] for place in places)]):
        assert torch.equal(got, expected)
    assert len(outputs) == 1 + len(places)
    upstream = [torch.randn_like(out) for out in outputs]
    back = torch.ops.snnipu.neuron_sequence_bwd if has_kernel else neuron_sequence_bwd_reference
    for path in paths or [range(len(outputs))]:
        grads = [grad if place in path else None for place, grad in enumerate(upstream)]
        state_grads = [None] * count
        for place, grad in zip(places, grads[1:]):
            state_grads[place] = grad
        options = (surrogate, *SURROGATES[surrogate], [True] * count, [True] * len(parameters))
        expected = back(grads[0], state_grads, [], x, initial, parameters, name, variant, None, *options)
        got = backward(model, "NeuronSequence", inputs, attributes, outputs, grads)
        assert set(got) == set(range(len(inputs)))
        # Stored states are rounded to float16 between the passes; recomputed states are not.
        read = _neurons.reads_all(name, variant).states & ~(0 if output is None else 1 << output)
        rounded = x.dtype == torch.float16 and not read & ~stored
        close = {"rtol": 2e-2, "atol": 2e-3} if rounded else {"rtol": 1e-5, "atol": 1e-5}
        for place, gradient in enumerate([expected[0], *expected[1]]):
            torch.testing.assert_close(got[place].float(), gradient.float(), **close)
            if has_kernel and not rounded and surrogate < 4:
                assert torch.equal(got[place], gradient)
        # The sums over steps and samples have another order.
        for place, gradient in enumerate(expected[2], 1 + count):
            scale = max(1.0, float(gradient.abs().max()))
            torch.testing.assert_close(got[place], gradient, rtol=close["rtol"], atol=close["atol"] * scale)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_variant(name, variant):
    """The backward pass reads stored states, or recomputes them."""
    model, every_state = machine(4), (1 << len(_neurons.find(name).states)) - 1
    output = _neurons.find(name).steps[variant].output_state
    every_state &= ~(0 if output is None else 1 << output)
    for stored in (every_state, 0):
        check(model, name, variant, case(name, seed=variant), stored)
    check(model, name, variant, case(name, neurons=9, dtype=torch.float16, per_neuron=False), 0)


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize(("name", "stored"), [("leaky", 1), ("synaptic", 3), ("alpha", 0), ("rleaky", 2)])
def test_machines(tiles, ipus, name, stored):
    model = machine(tiles, ipus)
    outputs = 1 + bin(stored).count("1")
    check(model, name, 0, case(name), stored, paths=[range(outputs), [0], [outputs - 1]])
    check(model, name, 0, case(name, neurons=11, per_neuron=False), stored)


def test_on_a_whole_ipu():
    """Each tile has more than two neurons, the last one fewer."""
    check(machine(0, options=()), "leaky", 0, case("leaky", steps=8, batch=16, neurons=501), 1)


def test_neurons_are_divided_in_pairs():
    """A tile has at least two neurons, which form a vector."""
    model = machine(0, options=())
    forward(model, "NeuronSequence", case("leaky", steps=2, batch=1, neurons=9), attributes_of("leaky", 0, 1))
    (program,) = model.programs()
    (step,) = forward_steps(program)
    assert step["vertices"] == step["tiles"] == 5


def test_tile_memory_is_refused():
    """The sequence exceeds the memory of a tile."""
    inputs = case("leaky", steps=200, batch=8, neurons=100)
    with pytest.raises(IpuModelError) as caught:
        forward(machine(1, options=()), "NeuronSequence", inputs, attributes_of("leaky", 0, 1))
    assert caught.value.kind == "graph_memory_allocation_error"
    assert "tile 0" in str(caught.value)


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
@pytest.mark.parametrize("name", ["lapicque", "synaptic"])
def test_surrogates(name, surrogate):
    check(machine(4), name, 0, case(name, seed=surrogate), 0, surrogate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_long_sequence_is_computed_again_in_segments(dtype):
    """The states of all steps exceed a sixteenth of the tile's memory: 601 x 16 x 2 floats."""
    model = machine(1)
    inputs = case("synaptic", steps=601, batch=2, neurons=8, dtype=dtype)
    for stored in (0, 3):
        check(model, "synaptic", 0, inputs, stored)
    recomputed, from_stored = (program.report()["tile_memory_max_bytes"] for program in model.programs()[1::2])
    assert recomputed < 0.6 * from_stored


@pytest.mark.parametrize("name", ["lapicque", "delta_leaky"])
def test_one_element(name):
    check(machine(4), name, 0, case(name, steps=1, batch=1, neurons=1), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_stored_states_in_both_types(dtype):
    """A step has an odd number of elements, on several tiles."""
    check(machine(4), "alpha", 1, case("alpha", neurons=37, dtype=dtype), 7)


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
