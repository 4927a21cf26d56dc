"""The C++ that the generator prints, compiled by itself, against the equations looped under autograd."""

import shutil

import pytest
import torch
from support.leaky_operator import NAMES as LEAKY
from support.leaky_operator import backward_arguments, flat, forward_arguments, leaky_loop
from support.neuron_library import compiled
from test_generator import KERNEL, Spike

from snnipu import _generator, equations, surrogate
from snnipu._generator import neuron
from snnipu.ops.neuron_sequence import neuron_sequence_bwd_reference

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")


def adaptive(x, mem, adapt, *, beta, rho, strength, threshold, spike):
    spk = spike(mem - threshold - strength * adapt)
    rises = torch.sigmoid(mem).clamp(max=0.9)
    return spk, beta * mem * (1 - spk) + x, torch.where(adapt > 2, adapt / 2, rho * adapt) + spk * rises**2


# Two states and one that is the output: what else the driver does is the same for all.
FUNCTIONS = (equations.leaky, equations.synaptic, equations.rleaky, adaptive)
NEURONS = [neuron(function, equations.OPTIONS) for function in FUNCTIONS]


@pytest.fixture(scope="module")
def library(tmp_path_factory, repository):
    folder = tmp_path_factory.mktemp("neurons")
    return compiled(NEURONS, folder, repository / "csrc", ["-O1", "-march=native"])


def reference(function, options, x, initial, parameters, num_steps=None):
    """Spikes and states of every step."""
    states, recorded = initial, []
    output = _generator.signature(function).states[0] == "spk"
    for t in range(len(x) if num_steps is None else num_steps):
        spk, *states = function(x[t] if num_steps is None else x, *states, **parameters, spike=Spike.apply, **options)
        states = [spk, *states] if output else states
        recorded.append([spk, *states])
    return [torch.stack(values) for values in zip(*recorded)]


def made(number, options, dtype, steps, shape, num_steps, per_neuron):
    torch.manual_seed(11)
    signature = _generator.signature(FUNCTIONS[number])
    x = torch.randn(*shape, dtype=dtype) if num_steps else torch.randn(steps, *shape, dtype=dtype)
    initial = [torch.randn(shape, dtype=dtype) for _ in signature.states]
    values = {}
    for place, name in enumerate(signature.parameters):
        value = torch.tensor(0.9 - 0.1 * place, dtype=dtype)
        values[name] = torch.linspace(0.3, 0.9, shape[-1], dtype=dtype) if place == per_neuron else value
    return (x * 1.5).requires_grad_(), [i.requires_grad_() for i in initial], values


def equal_or_close(found, expected, tolerance):
    scale = max(1.0, expected.abs().max().item())
    assert (found.double() - expected.double()).abs().max().item() <= tolerance * scale


CASES = [(n, options) for n, made_of in enumerate(NEURONS) for options, _ in made_of.options]
NAMES = ["-".join([NEURONS[n].name, *map(str, options.values())]) for n, options in CASES]
SHAPES = {
    "one step": (1, (1, 5), None, None, 1),
    "elements left over": (6, (3, 11), None, 1, 1),
    "constant input": (7, (2, 16), 7, 0, 2),
    "segments": (140, (1, 19), None, None, 1),
}


def runs():
    """Segments, which are slow, once for each neuron."""
    for (number, options), name in zip(CASES, NAMES):
        for shape in SHAPES:
            for dtype in (torch.float32, torch.float64):
                slow = shape == "segments"
                if not slow or (dtype == torch.float32 and options.get("reset_mechanism", "zero") == "zero"):
                    yield pytest.param(number, options, shape, dtype, id=f"{name}-{shape}-{dtype}")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "options", "shape", "dtype"), list(runs()))
def test_it_equals_the_loop(library, number, options, shape, dtype):
    """Spikes, states and the gradients of the input and of the first states bit by bit."""
    steps, sizes, num_steps, per_neuron, threads = SHAPES[shape]
    function, compiled_as = FUNCTIONS[number], NEURONS[number]
    variant = compiled_as.variant(**options)
    x, initial, values = made(number, options, dtype, steps, sizes, num_steps, per_neuron)
    values = {name: value.requires_grad_() for name, value in values.items()}
    expected = reference(function, options, x, initial, values, num_steps)
    derived = compiled_as.derive(variant, values, torch.ones((), dtype=dtype))
    arguments = (number, variant, x.detach(), [i.detach() for i in initial], [d.detach() for d in derived])
    exact = function is not adaptive  # exp is ours
    spk, states, finals = library.forward(*arguments, num_steps=num_steps, threads=threads)
    for found, wanted in [(spk, expected[0]), *zip(states, expected[1:]), *zip(finals, [e[-1] for e in expected[1:]])]:
        if found is not None:
            assert torch.equal(found, wanted) if exact else torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)
    if not exact and dtype == torch.float32:
        return  # a last bit may be a spike
    grads = [torch.randn_like(output) for output in expected]
    grad_final = [torch.randn_like(i) for i in initial]
    output = compiled_as.steps[0].output_state
    total = (expected[0] * grads[0]).sum() + sum((e[-1] * g).sum() for e, g in zip(expected[1:], grad_final))
    grad_states = [None if s == output else grad for s, grad in enumerate(grads[1:])]
    total = total + sum((e * g).sum() for e, g in zip(expected[1:], grad_states) if g is not None)
    wanted = torch.autograd.grad(total, [x, *initial, *values.values()], retain_graph=True, allow_unused=True)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    saved = [spk if s == output else state for s, state in enumerate(states)]
    for use in (None, saved) if num_steps is None else (None,):
        common = {"states": use, "num_steps": num_steps}
        backward = (*arguments, KERNEL, grads[0], grad_states, grad_final)
        found = library.backward(*backward, **common, threads=threads)
        for one, other in zip([found[0], *found[1]], wanted):
            other = torch.zeros_like(one) if other is None else other
            if exact and not (num_steps is not None and one is found[0]):
                assert torch.equal(one, other)
            else:
                equal_or_close(one, other, tolerance)
        through = [(value, grad) for value, grad in zip(derived, found[2]) if value.requires_grad]
        back = torch.autograd.grad(
            [value for value, _ in through], list(values.values()), [g for _, g in through], True, allow_unused=True
        )
        for one, other in zip(back, wanted[1 + len(initial) :]):
            assert (one is None) == (other is None)
            if one is not None:
                equal_or_close(one, other, 5 * tolerance)
        # Without the parameters' gradients, and whatever the threads.
        alone = library.backward(*backward, **common, learn=False, threads=2)
        assert torch.equal(alone[0], found[0])
        assert all(torch.equal(one, other) for one, other in zip(alone[1], found[1]))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(library, threads):
    number, options = 1, {"reset_mechanism": "subtract", "reset_delay": True}
    variant = NEURONS[number].variant(**options)
    x, initial, values = made(number, options, torch.float32, 40, (5, 1003), None, 0)
    derived = NEURONS[number].derive(variant, values, torch.ones(()))
    arguments = (number, variant, x.detach(), [i.detach() for i in initial], derived)
    grad = torch.randn(x.shape)
    backward = (*arguments, KERNEL, grad, [None, grad], [None, None])
    results = [(library.forward(*arguments, threads=t), library.backward(*backward, threads=t)) for t in (1, threads)]

    def flat(value):
        return [t for v in value for t in flat(v)] if isinstance(value, (list, tuple)) else [value]

    for one, other in zip(flat(results[0]), flat(results[1])):
        assert torch.equal(one, other)


@pytest.mark.parametrize("reset_delay", [True, False])
@pytest.mark.parametrize("reset", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit(library, dtype, reset, reset_delay):
    """State and parameters in float32, spikes decided on the membrane as it is stored."""
    options = {"reset_mechanism": ("subtract", "zero", "none")[reset], "reset_delay": reset_delay}
    variant = NEURONS[0].variant(**options)
    torch.manual_seed(2)
    x = torch.randn(140, 1, 19).to(dtype)
    mem0 = torch.randn(1, 19)
    values = [torch.tensor(value) for value in (0.9, 0.4, 1.5)]
    wanted = leaky_loop(x, mem0, *values, reset, reset_delay)
    derived = NEURONS[0].derive(variant, dict(zip(LEAKY, values)), torch.ones(()))
    spk, (mem,), _ = library.forward(0, variant, x, [mem0], derived)
    assert torch.equal(spk, wanted[0])
    assert torch.equal(mem, wanted[1])
    grad = torch.randn(140, 1, 19).to(dtype)
    forward = forward_arguments(x, mem0, values, None, reset, reset_delay)
    expected = neuron_sequence_bwd_reference(*backward_arguments(forward, (grad, None), KERNEL))
    tolerance = 2e-3 if dtype == torch.float16 else 2e-2
    for states in (None, [mem]):
        found = library.backward(0, variant, x, [mem0], derived, KERNEL, grad, [None], [None], states=states)
        equal_or_close(found[0].float(), expected[0].float(), tolerance)
        equal_or_close(found[1][0], expected[1][0], tolerance)


@pytest.mark.parametrize("kernel", [surrogate.Kernel(kind, 0.7, 0.3) for kind in range(6)], ids=str)
def test_every_surrogate(library, kernel):
    variant = NEURONS[0].variant(reset_mechanism="subtract", reset_delay=True)
    x = torch.randn(5, 2, 21, dtype=torch.float64)
    mem0 = torch.randn(2, 21, dtype=torch.float64)
    values = [torch.tensor(v, dtype=torch.float64) for v in (0.9, 0.5, 1.0)]
    derived = NEURONS[0].derive(variant, dict(zip(LEAKY, values)), torch.ones((), dtype=torch.float64))
    grad = torch.randn_like(x)
    found = library.backward(0, variant, x, [mem0], derived, kernel, grad, [grad], [None])
    backward = backward_arguments(forward_arguments(x, mem0, values), (grad, grad), kernel)
    for one, other in zip(flat(found), flat(neuron_sequence_bwd_reference(*backward))):
        equal_or_close(one, other, 1e-12)


def test_a_gradient_that_is_the_same_at_all_steps(library):
    variant = NEURONS[1].variant(reset_mechanism="zero", reset_delay=False)
    x, initial, values = made(1, {}, torch.float32, 9, (2, 19), None, 2)
    derived = NEURONS[1].derive(variant, values, torch.ones(()))
    arguments = (1, variant, x.detach(), [i.detach() for i in initial], derived, KERNEL)
    grads = [torch.randn(2, 19) for _ in range(3)]
    once = library.backward(*arguments, grads[0], grads[1:], [None, None])
    every = [grad.expand(9, 2, 19).contiguous() for grad in grads]
    assert torch.equal(once[0], library.backward(*arguments, every[0], every[1:], [None, None])[0])


def test_unknown_numbers_are_refused(library):
    x, mem = torch.zeros(2, 3), torch.zeros(3)
    parameters = [torch.ones(())] * 3
    with pytest.raises(AssertionError):
        library.forward(0, 99, x, [mem], parameters)
    with pytest.raises(AssertionError):
        library.backward(0, 0, x, [mem], parameters, (6, 0.0, 0.0), x, [None], [None])
