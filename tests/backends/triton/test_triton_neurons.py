"""The generated Triton kernels of neuron sequences in Triton's interpreter, against the reference."""

import itertools

import pytest
import torch
from oracle import FUSED, reference_of, relative_error
from support.leaky_operator import backward_arguments, flat, forward_arguments
from support.neuron_cases import KERNEL, VARIANTS, check

from snnipu import surrogate
from snnipu.backends import neuron_step
from snnipu.ops import _neurons


@pytest.fixture
def kernels(interpreted, monkeypatch):
    """The kernels' module, with every output NaN before a kernel writes to it."""
    module = interpreted("neurons")
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda *args, **keywords: new_empty(*args, **keywords).fill_(float("nan"))
    )
    return module


NAMES = ["leaky", "synaptic", "rleaky"]
ONE = {"counts": (1,), "initial": False}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_variant(kernels, name, variant):
    check(kernels, name, variant, (3, 2, 33))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shape", "constant", "keywords"),
    [
        ((1, 1, 1), None, ONE),
        ((7, 2, 1000), None, ONE),
        ((3, 130), 5, {"counts": (1,)}),
        ((2, 16), 0, {}),
        ((3, 2, 65), None, {"same": True, "learn": [False] * 4}),
        ((11, 1, 7), None, {"counts": (1,), "same": True}),
        ((5, 2, 33), None, {"upstream": True}),
        ((5, 2, 33), None, {"upstream": False}),
        ((7, 3, 33), None, {"gaps": True}),
        ((4, 2, 3, 4), None, {"counts": (4, 12, 24, 1)}),
        ((3, 2, 7), None, {"learn": [True, False, False, False]}),
        ((3, 2, 7), None, {"counts": (1,), "learn": [False, True, False, True]}),
        ((0, 2, 3), None, {}),
        ((3, 0, 3), None, ONE),
    ],
)
def test_sizes_and_gradients(kernels, name, shape, constant, keywords):
    count = len(_neurons.find(name).parameters)
    learn = {"learn": keywords["learn"][:count]} if "learn" in keywords else {}
    check(kernels, name, 0, shape, constant=constant, **{**keywords, **learn})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", NAMES)
def test_dtypes(kernels, name, dtype):
    check(kernels, name, 0, (3, 2, 33), dtype)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(kernels, name):
    """The values are exact in bfloat16, as the interpreter does not round to nearest."""
    check(kernels, name, 0, (3, 2, 33), torch.bfloat16, exact=True, initial=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spike_grad", FUSED)
def test_surrogates(kernels, spike_grad, dtype):
    """The parameters of a surrogate reach the kernel with more than the digits of a float32."""
    for name in ("leaky", "synaptic"):
        check(kernels, name, 0, (3, 2, 9), dtype, kernel=FUSED[spike_grad][0].kernel)


@pytest.mark.slow
def test_what_is_asked_for_in_advance(kernels):
    """Sequences are shorter and longer than the kernel reads ahead."""
    for steps, name in itertools.product((1, 3, 4, 5, 8, 9, 19), ("leaky", "synaptic")):
        check(kernels, name, 1, (steps, 2, 40))


def bare(x, mem, other, *, spike):
    """A neuron without parameters, with operations whose name in Triton differs from PyTorch's."""
    mem = torch.tanh(mem) * 0.9 + torch.where(x > 0.3, x, other.exp() * 0.1)
    return spike(mem - 0.5), mem, torch.sigmoid(other) - 0.1 * x.abs()


def everything(x, mem, slow, *, tau, gain, spike):
    """A neuron with every kind of operation, and a constant that is no float32."""
    u = torch.tanh(mem) + torch.sigmoid(slow).clamp(0.1, max=0.7) - 0.3
    spk = spike(u)
    slow = torch.maximum(slow / 3, torch.minimum(x, mem)) - slow.abs() * mem.sign()
    mem = torch.where(x > 0.2, (mem * mem + 1) ** 0.5, mem.relu()) * tau + torch.exp(-mem * mem) / gain
    return spk, mem - spk.detach(), 1 / (slow**2 + 1) + torch.log(x * x + 1)


def with_a_gradient_of_its_own(x, mem, *, tau, spike):
    u = mem * tau + x
    spk = (u > 0.1).float().with_gradient((u, tau), lambda g: (g * (1 - u.tanh() * u.tanh()), g * x))
    return spk, u - spk * 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [bare, everything, with_a_gradient_of_its_own])
def test_a_neuron_of_a_user(kernels, function, dtype):
    name = _neurons.register(function, {})
    for shape, constant in (((4, 2, 9), None), ((2, 9), 4)):
        check(kernels, name, 0, shape, dtype, constant, close=True)


# beta, threshold and graded factor.
SCALARS = [torch.tensor(value) for value in (0.85, 0.6, 1.25)]


def test_states_that_are_given_take_no_room_again(kernels, monkeypatch):
    x = torch.randn(6, 2, 40)
    forward = forward_arguments(x, None, SCALARS)
    spk, (mem,), _ = kernels.neuron_sequence_fwd(*forward)
    allocated, new_empty = [], torch.Tensor.new_empty

    def recorded(*arguments, **keywords):
        allocated.append(new_empty(*arguments, **keywords))
        return allocated[-1]

    monkeypatch.setattr(torch.Tensor, "new_empty", recorded)
    # The interpreter would copy tensors, too.
    monkeypatch.setattr(kernels._kernels("leaky"), "backward", {(1,): lambda *arguments, **options: None})
    kernel = surrogate.atan().kernel
    kernels.neuron_sequence_bwd(*backward_arguments(forward, (spk, None), kernel, states=mem))
    assert sum(tensor.numel() >= x.numel() for tensor in allocated) == 1  # the gradient of x


@pytest.mark.parametrize("steps", [0, 2])
def test_results_that_are_not_requested_are_different_tensors(kernels, steps):
    x = torch.zeros(steps, 1, 3)
    arguments = backward_arguments(forward_arguments(x, None, SCALARS), (x, None), KERNEL, needs=[False] * 4)
    results = flat(kernels.neuron_sequence_bwd(*arguments))
    assert len(set(map(id, results))) == len(results) == 5


@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_half_gradients_are_as_good_as_the_references(kernels, delay):
    """The error against a float64 adjoint is at most twice the reference's error in float16."""
    x, parameters = torch.randn(9, 4, 61).half(), [torch.rand(61) + low for low in (0.1, 0.2, 0.5)]
    forward = forward_arguments(x, None, parameters, None, 0, delay)
    spk, (mem,), _ = reference_of("neuron_sequence_fwd")(*forward)
    arguments = backward_arguments(forward, (torch.randn_like(spk), None), surrogate.atan().kernel, states=mem)

    def cast(part):
        if isinstance(part, (list, tuple)):
            return [cast(tensor) for tensor in part]
        return part.double() if isinstance(part, torch.Tensor) else part

    exact, expected, actual = (
        flat(function(*inputs))
        for function, inputs in (
            (reference_of("neuron_sequence_bwd"), cast(arguments)),
            (reference_of("neuron_sequence_bwd"), arguments),
            (kernels.neuron_sequence_bwd, arguments),
        )
    )
    for name, gradient, other, true in zip(("x", "mem", "threshold", "beta", "graded"), actual, expected, exact):
        error, allowed = (float((part.double() - true).norm()) for part in (gradient, other))
        assert error <= 2 * allowed, name
        # Each element of x's gradient is rounded; a sum may be exact.
        assert error > 0 or name != "x"


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_and_infinity(kernels):
    x = torch.zeros(4, 1, 40)
    x[0, 0, 3], x[1, 0, 17], x[1, 0, 35], x[2, 0, 39] = float("nan"), float("inf"), -float("inf"), float("nan")
    for reset, delay in itertools.product(range(3), (True, False)):
        arguments = forward_arguments(x, None, SCALARS, None, reset, delay)
        expected = reference_of("neuron_sequence_fwd")(*arguments)
        for actual, other in zip(flat(kernels.neuron_sequence_fwd(*arguments)), flat(expected)):
            assert torch.allclose(actual, other, rtol=0, atol=0, equal_nan=True)


def test_spikes_are_decided_on_the_membrane_as_stored(kernels):
    """A membrane that rounds down to the threshold does not spike."""
    x = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float16)
    mem0 = torch.tensor([2.0**-14, 2.0**-10, -(2.0**-14)])
    parameters = [torch.tensor(1.0)] * 3
    spk, (mem,), _ = kernels.neuron_sequence_fwd(*forward_arguments(x, mem0, parameters, None, 2))
    assert spk.tolist() == [[0.0, 1.0, 0.0]]
    assert mem.tolist() == [[1.0, 1.0 + 2.0**-10, 1.0]]


def test_tensors_on_different_devices(kernels):
    mem0 = torch.zeros(3, device="meta")
    with pytest.raises(ValueError, match=r"tensors must be on one device, got \['cpu', 'meta'\]"):
        kernels.neuron_sequence_fwd(*forward_arguments(torch.zeros(2, 3), mem0, SCALARS))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_single_steps(kernels, interpreted, name, variant):
    """Single steps equal the CPU's: spikes and states bit by bit, gradients up to the order of sums."""
    shape = (3, 33)
    plan = next(plan for plan in _neurons._plans(name).values() if plan.variant == variant)
    step, other = (neuron_step.KernelStep(plan, KERNEL, torch.float32, True, False) for _ in range(2))
    other.calls, other._on_cpu = interpreted("steps").TritonSteps(name, variant), False
    for learns, sizes in ((0, ()), (1, ()), (len(plan.names), ()), (len(plan.names), shape[-1:])):
        x, *states = [torch.randn(shape, requires_grad=True) for _ in range(1 + len(plan.states))]
        numbers = [torch.rand(sizes) * 0.6 + 0.3 for _ in plan.names]
        results = []
        for values in (step, other):
            parameters = [value.clone().requires_grad_(place < learns) for place, value in enumerate(numbers)]
            spk, after = values(x, states, parameters)
            with torch.no_grad():
                again = values(x, states, parameters)
            seeds = [torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n in range(1 + len(after))]
            sums = [(value * seed).sum() for value, seed in zip((spk, *after), seeds)]
            for value in parameters:
                value.data.fill_(7.0)  # written after the step
            leaves = [x, *states, *parameters[:learns]]
            results.append(([spk, *after], torch.autograd.grad(sum(sums), leaves, allow_unused=True)))
            assert all(map(torch.equal, (again[0], *again[1]), results[-1][0]))
        (reference, gradients), (actual, own_gradients) = results
        assert all(map(torch.equal, actual, reference))
        for values, expected in zip(own_gradients, gradients):
            assert (values is None) == (expected is None)
            assert values is None or relative_error(values, expected) <= 1e-5
    x, *states = [torch.randn(shape) for _ in range(1 + len(plan.states))]  # before the first step
    parameters = [torch.rand(()) for _ in plan.names]
    results = [values(x, [None] * len(states), parameters) for values in (step, other)]
    for reference, actual in zip(*[(spk, *after) for spk, after in results]):
        assert torch.equal(actual, reference)
