"""The generated Triton kernels of neurons over a sequence in Triton's interpreter, against the reference."""

import pytest
import torch
from oracle import reference_of, relative_error
from support.leaky_operator import flat

from snnipu import surrogate
from snnipu.backends import neuron_step
from snnipu.ops import _neurons

KERNEL = surrogate.atan(2.0).kernel
VARIANTS = [
    pytest.param(name, variant, id=f"{name}-{variant}")
    for name in _neurons.BUILT
    for variant in range(len(_neurons.find(name).steps))
]


@pytest.fixture
def kernels(interpreted, monkeypatch):
    """The module, with every output NaN before a kernel writes it."""
    module = interpreted("neurons")
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda *args, **keywords: new_empty(*args, **keywords).fill_(float("nan"))
    )
    return module


def check(kernels, name, variant, shape, dtype=torch.float32, constant=None, per_neuron=True, **chosen):
    """Forward bit by bit, gradients up to the order of sums."""
    torch.manual_seed(0)
    neuron = _neurons.find(name)
    output = neuron.steps[variant].output_state
    c = torch.float64 if dtype == torch.float64 else torch.float32
    x = (torch.randn(shape) * 2).to(dtype)
    if chosen.get("exact"):
        x = x.round().clamp(-2, 2)
    step = shape if constant is not None else shape[1:]
    states = [torch.randn(step, dtype=c) if chosen.get("initial", True) else None for _ in neuron.states]
    parameters = [torch.rand(step[-1] if per_neuron else 1, dtype=c) * 0.6 + 0.3 for _ in neuron.parameters]
    if chosen.get("exact"):
        parameters = [torch.full_like(value, 0.5) for value in parameters]
    parameters = parameters or [torch.ones((), dtype=c)]
    store = sum(1 << place for place in range(len(states)) if place != output)
    forward = (x, states, parameters, name, variant, constant, store, True)
    own, expected = kernels.neuron_sequence_fwd(*forward), reference_of("neuron_sequence_fwd")(*forward)
    for one, other in zip(flat(own), flat(expected)):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6) if chosen.get("close") else torch.equal(one, other)
    spk, made, final = expected
    grads = [torch.randn_like(spk), *(torch.randn_like(s) if s.numel() else None for s in made)]
    if chosen.get("same"):  # as of a sum over time
        grads = [None if grad is None else grad[0].expand_as(grad) for grad in grads]
    ends = [torch.randn_like(state) for state in final]
    learn = chosen.get("learn", True)
    need = ([True] * len(states), [learn] * len(parameters))
    kernel = chosen.get("kernel", KERNEL)
    if constant == 0:
        constant, grads = 1, [None if grad is None else grad.unsqueeze(0) for grad in grads]
    backward = (grads[0], grads[1:], ends, x, states, parameters, name, variant, constant, *kernel, *need)
    own, expected = kernels.neuron_sequence_bwd(*backward), reference_of("neuron_sequence_bwd")(*backward)
    tolerance = {torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2**-6}.get(dtype, 1e-5)
    if chosen.get("close"):
        tolerance = max(tolerance, 1e-4)
    for one, other in zip([own[0], *own[1]], [expected[0], *expected[1]]):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert relative_error(one, other) <= tolerance
    terms = expected[0].double().abs().sum() / max(1, expected[0].numel()) * max(1, x.numel()) ** 0.5
    for one, other in zip(own[2], expected[2]):
        assert one.shape == other.shape
        assert not one.numel() or relative_error(one, other, terms) <= tolerance


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_variant(kernels, name, variant):
    check(kernels, name, variant, (3, 2, 33))


@pytest.mark.parametrize("name", ["synaptic", "rleaky"])
@pytest.mark.parametrize(
    ("shape", "constant", "keywords"),
    [
        ((1, 1, 1), None, {"per_neuron": False, "initial": False}),
        ((3, 130), 5, {"per_neuron": False}),
        ((2, 16), 0, {}),
        ((3, 2, 65), None, {"same": True, "learn": False}),
        ((11, 1, 7), None, {"per_neuron": False, "same": True}),
    ],
    ids=["one", "constant", "step", "grads of sums", "longer than ahead"],
)
def test_sizes(kernels, name, shape, constant, keywords):
    check(kernels, name, 0, shape, constant=constant, **keywords)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", ["synaptic", "rleaky"])
def test_dtypes(kernels, name, dtype):
    check(kernels, name, 0, (3, 2, 33), dtype)


@pytest.mark.parametrize("name", ["synaptic", "rleaky"])
def test_bfloat16(kernels, name):
    """Values that bfloat16 holds exactly, as the interpreter does not round to it to nearest."""
    check(kernels, name, 0, (3, 2, 33), torch.bfloat16, exact=True, initial=False)


SURROGATES = [
    surrogate.LSO(0.3),
    surrogate.triangular(0.7),
    surrogate.fast_sigmoid(10),
    surrogate.sigmoid(2.0),
    surrogate.spike_rate_escape(1.5, 2.0),
]


@pytest.mark.parametrize("spike_grad", SURROGATES, ids=lambda s: s.name)
def test_surrogates(kernels, spike_grad):
    check(kernels, "synaptic", 0, (3, 2, 9), kernel=spike_grad.kernel)


def test_what_is_asked_for_in_advance(kernels):
    for steps in (1, 4, 5, 10):
        check(kernels, "synaptic", 0, (steps, 2, 40))


def bare(x, mem, other, *, spike):
    """Without parameters, and with operations whose Triton is not PyTorch's."""
    mem = torch.tanh(mem) * 0.9 + torch.where(x > 0.3, x, other.exp() * 0.1)
    return spike(mem - 0.5), mem, torch.sigmoid(other) - 0.1 * x.abs()


def test_a_neuron_of_a_user(kernels):
    name = _neurons.register(bare, {})
    for shape, constant in (((4, 2, 9), None), ((2, 9), 4)):
        check(kernels, name, 0, shape, constant=constant, close=True)


def test_empty(kernels):
    for shape in ((0, 2, 3), (3, 0, 3)):
        parameters = [torch.ones(()) for _ in _neurons.find("synaptic").parameters]
        x, states = torch.zeros(shape), [torch.ones(shape[1:]), None]
        forward = (x, states, parameters, "synaptic", 0, None, 0b11, True)
        backward = (None, [None] * 2, [torch.ones(shape[1:])] * 2, x, states, parameters, "synaptic", 0, None, *KERNEL)
        backward = (*backward, [True, True], [True] * len(parameters))
        for operator, arguments in (("neuron_sequence_fwd", forward), ("neuron_sequence_bwd", backward)):
            own, expected = getattr(kernels, operator)(*arguments), reference_of(operator)(*arguments)
            for one, other in zip(flat(own), flat(expected)):
                assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_single_steps(kernels, interpreted, name, variant):
    """As those of the CPU: spikes and states bit by bit, gradients up to the order of sums."""
    torch.manual_seed(0)
    shape = (3, 33)
    plan = next(plan for plan in _neurons._plans(name).values() if plan.variant == variant)
    step, other = (neuron_step.Step(plan, KERNEL, torch.float32, True, False) for _ in range(2))
    other.calls, other._on_cpu = interpreted("steps").Steps(name, variant), False
    for learns, sizes in ((0, ()), (1, ()), (len(plan.names), ()), (len(plan.names), shape[-1:])):
        x, *states = [torch.randn(shape, requires_grad=True) for _ in range(1 + len(plan.states))]
        numbers = [torch.rand(sizes) * 0.6 + 0.3 for _ in plan.names]
        found = []
        for one in (step, other):
            parameters = [value.clone().requires_grad_(place < learns) for place, value in enumerate(numbers)]
            spk, after = one(x, states, parameters)
            with torch.no_grad():
                again = one(x, states, parameters)
            seeds = [torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n in range(1 + len(after))]
            sums = [(value * seed).sum() for value, seed in zip((spk, *after), seeds)]
            for value in parameters:
                value.data.fill_(7.0)  # after the step
            wanted = [x, *states, *parameters[:learns]]
            found.append(([spk, *after], torch.autograd.grad(sum(sums), wanted, allow_unused=True)))
            assert all(map(torch.equal, (again[0], *again[1]), found[-1][0]))
        (made, gradients), (own, own_gradients) = found
        assert all(map(torch.equal, own, made))
        for one, expected in zip(own_gradients, gradients):
            assert (one is None) == (expected is None)
            assert one is None or relative_error(one, expected) <= 1e-5
    x, *states = [torch.randn(shape) for _ in range(1 + len(plan.states))]  # before the first step
    parameters = [torch.rand(()) for _ in plan.names]
    found = [one(x, [None] * len(states), parameters) for one in (step, other)]
    for made, own in zip(*[(spk, *after) for spk, after in found]):
        assert torch.equal(own, made)
