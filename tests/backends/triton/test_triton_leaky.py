"""The Triton kernels of Leaky in Triton's interpreter, against the reference: no GPU needed."""

import itertools

import pytest
import torch
from oracle import reference_of, relative_error
from support.leaky_operator import RESETS, backward_arguments, flat, forward_arguments

from snnipu import surrogate

SURROGATES = [
    surrogate.LSO(0.3),
    surrogate.triangular(0.7),
    surrogate.fast_sigmoid(10),
    surrogate.atan(3.0),
    surrogate.sigmoid(2.0),
    surrogate.spike_rate_escape(1.5, 2.0),
    surrogate.SFS(5, 0.1),
]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 1e-5}
ALL = (True, True, True, True)
NAMES = ("x", "mem0", "threshold", "beta", "graded")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def kernels(interpreted, monkeypatch):
    """The module, with every output NaN before a kernel writes it."""
    module = interpreted("neurons")
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda *args, **keywords: new_empty(*args, **keywords).fill_(float("nan"))
    )
    return module


def parameters_of(count, dtype=torch.float32):
    """beta (some of it outside [0, 1]), threshold, graded factor."""
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    if count is None:
        return tuple(torch.tensor(value, dtype=compute) for value in (0.85, 0.6, 1.25))
    return tuple(torch.rand(count, dtype=compute) * scale + low for scale, low in ((1.4, -0.2), (1, 0.2), (1, 0.5)))


def assert_forward(kernels, arguments):
    """Equal bit by bit; returns the outputs."""
    expected = reference_of("neuron_sequence_fwd")(*arguments)
    for own, other in zip(flat(kernels.neuron_sequence_fwd(*arguments)), flat(expected)):
        assert own.dtype == other.dtype
        assert torch.equal(own, other)
    return expected


def assert_backward(kernels, arguments, tolerance):
    """Gradients but for the rounding of the surrogate's function and the order of sums."""
    expected = reference_of("neuron_sequence_bwd")(*arguments)
    for name, own, other in zip(NAMES, flat(kernels.neuron_sequence_bwd(*arguments)), flat(expected)):
        assert own.shape == other.shape, name
        assert own.dtype == other.dtype, name
        if other.numel():
            terms = None if name in ("x", "mem0") else expected[0].double()
            # A 16-bit gradient may round the other way.
            least = {torch.float16: 1e-3, torch.bfloat16: 2**-6}.get(own.dtype, tolerance)
            assert relative_error(own, other, terms) <= max(tolerance, least), name


def assert_same(
    kernels, x, mem0, parameters, num_steps, reset, delay, kernel, upstream=(True, True), needs=ALL, recompute=True
):
    """Forward, and backward from stored membranes and, with ``recompute``, from recomputed ones."""
    forward = forward_arguments(x, mem0, parameters, num_steps, reset, delay)
    spk, (mem,), (last,) = assert_forward(kernels, forward)
    grads = [torch.randn_like(spk) if given else None for given in upstream]
    if num_steps == 0:
        mem, *grads = (tensor if tensor is None else tensor.unsqueeze(0) for tensor in (mem, *grads))
        forward = forward_arguments(x, mem0, parameters, 1, reset, delay)
    # Without an upstream gradient of the membranes, one of the last.
    grad_last = None if upstream[1] else torch.randn_like(last)
    tolerance = TOLERANCE[spk.dtype]
    for states in (mem, None) if recompute else (mem,):
        # A constant input goes with states that are computed again.
        if states is None or num_steps is None:
            arguments = backward_arguments(forward, grads, kernel, needs, grad_last, states)
            assert_backward(kernels, arguments, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
@pytest.mark.parametrize("reset", range(3), ids=RESETS)
@pytest.mark.parametrize("spike_grad", SURROGATES, ids=lambda s: s.name)
def test_resets_and_surrogates(kernels, spike_grad, reset, delay):
    x, mem0 = torch.randn(3, 3, 45), torch.randn(3, 45)
    assert_same(kernels, x, mem0, parameters_of(None), None, reset, delay, spike_grad.kernel, recompute=False)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("neurons", [1, 5, 63, 1000])
@pytest.mark.parametrize("per_neuron", [False, True], ids=["scalar", "per neuron"])
def test_sizes(kernels, steps, neurons, per_neuron):
    """Fewer elements than a block, several blocks, the last of them not full."""
    x = torch.randn(steps, 2, neurons)
    parameters = parameters_of(neurons if per_neuron else None)
    # Every delay with every number of steps and of neurons; the largest case but once.
    for delay in (True, False) if neurons < 1000 else (per_neuron,):
        assert_same(kernels, x, None, parameters, None, 0, delay, surrogate.atan().kernel, recompute=neurons < 1000)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3, 4, 5, 8, 9, 19])
def test_what_is_asked_for_in_advance(kernels, steps):
    """Sequences shorter and longer than the kernel reads ahead."""
    x, mem0 = torch.randn(steps, 2, 40), torch.randn(2, 40)
    for delay in (True, False):
        assert_same(kernels, x, mem0, parameters_of(None), None, 1, delay, surrogate.atan().kernel)


def test_states_that_are_given_take_no_room_again(kernels, monkeypatch):
    x = torch.randn(6, 2, 40)
    forward = forward_arguments(x, None, parameters_of(None))
    spk, (mem,), _ = kernels.neuron_sequence_fwd(*forward)
    made, new_empty = [], torch.Tensor.new_empty

    def recorded(*arguments, **keywords):
        made.append(new_empty(*arguments, **keywords))
        return made[-1]

    monkeypatch.setattr(torch.Tensor, "new_empty", recorded)
    # The interpreter makes copies of its own.
    monkeypatch.setattr(kernels._kernels("leaky"), "backward", {(1,): lambda *arguments, **options: None})
    kernel = surrogate.atan().kernel
    kernels.neuron_sequence_bwd(*backward_arguments(forward, (spk, None), kernel, states=mem))
    assert sum(tensor.numel() >= x.numel() for tensor in made) == 1  # the gradient of x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("reset", range(3), ids=RESETS)
@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_dtypes(kernels, dtype, reset, delay):
    x, mem0 = torch.randn(5, 3, 61).to(dtype), torch.randn(3, 61)
    parameters = parameters_of(61, dtype)
    assert_same(kernels, x, mem0.to(parameters[0].dtype), parameters, None, reset, delay, surrogate.atan().kernel)


@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_half_gradients_are_as_good_as_the_references(kernels, delay):
    """Against the adjoint in float64 at the same membranes: at most twice the reference's error in float16."""
    x, parameters = torch.randn(9, 4, 61).half(), parameters_of(61, torch.float16)
    forward = forward_arguments(x, None, parameters, None, 0, delay)
    spk, (mem,), _ = reference_of("neuron_sequence_fwd")(*forward)
    arguments = backward_arguments(forward, (torch.randn_like(spk), None), surrogate.atan().kernel, states=mem)

    def cast(part):
        if isinstance(part, (list, tuple)):
            return [cast(tensor) for tensor in part]
        return part.double() if isinstance(part, torch.Tensor) else part

    exact, expected, actual = (
        flat(function(*given))
        for function, given in (
            (reference_of("neuron_sequence_bwd"), cast(arguments)),
            (reference_of("neuron_sequence_bwd"), arguments),
            (kernels.neuron_sequence_bwd, arguments),
        )
    )
    for name, own, other, true in zip(NAMES, actual, expected, exact):
        error, allowed = (float((part.double() - true).norm()) for part in (own, other))
        assert error <= 2 * allowed, name
        # Every number of x's gradient is rounded; a sum may be exact.
        assert error > 0 or name != "x"


@pytest.mark.parametrize("spike_grad", SURROGATES, ids=lambda s: s.name)
def test_float64_surrogates(kernels, spike_grad):
    """A surrogate's parameters reach the kernel with more than a float32's digits."""
    x = torch.randn(3, 2, 33, dtype=torch.float64)
    assert_same(kernels, x, None, parameters_of(None, x.dtype), None, 0, True, spike_grad.kernel)


@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_bfloat16(kernels, delay):
    """Values that bfloat16 holds exactly, as the interpreter does not round to it to nearest: all equal."""
    x = torch.randint(-8, 9, (4, 3, 61)).to(torch.bfloat16) / 4
    parameters = tuple(torch.tensor(value) for value in (0.5, 1.0, 2.0))
    forward = forward_arguments(x, None, parameters, None, 0, delay)
    spk, (mem,), _ = assert_forward(kernels, forward)
    assert 0 < spk.mean() < 1
    upstream = torch.randint(-2, 3, x.shape).to(torch.bfloat16)
    assert_backward(
        kernels, backward_arguments(forward, (upstream, None), surrogate.heaviside().kernel, states=mem), 1e-5
    )


@pytest.mark.parametrize(
    "counts", [(1, 1, 1), (12, 1, 1), (1, 12, 1), (1, 1, 12), (4, 12, 24), (24, 24, 24), (12, 4, 1)]
)
def test_shapes_of_parameters(kernels, counts):
    """One value, or one for each element modulo its length, each of the three with a length of its own."""
    x = torch.randn(4, 2, 3, 4)
    parameters = tuple(parameters_of(count)[index] for index, count in enumerate(counts))
    assert_same(kernels, x, None, parameters, None, 0, True, surrogate.atan().kernel)


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [0, 1, 9])
@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_constant_input_and_single_step(kernels, num_steps, delay):
    x, mem0 = torch.rand(3, 41) * 0.5, torch.rand(3, 41)
    for state, reset in itertools.product((mem0, None), range(3)):
        assert_same(kernels, x, state, parameters_of(41), num_steps, reset, delay, surrogate.atan().kernel)


@pytest.mark.parametrize("upstream", [(True, False), (False, True)], ids=["spk", "mem"])
@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_one_upstream_gradient(kernels, upstream, delay):
    x = torch.randn(5, 2, 33)
    for reset in range(3):
        assert_same(
            kernels,
            x,
            None,
            parameters_of(None),
            None,
            reset,
            delay,
            surrogate.atan().kernel,
            upstream,
            recompute=False,
        )


@pytest.mark.parametrize("only", range(5), ids=[*NAMES[1:], "x"])
def test_only_needed_gradients(kernels, only):
    x, needs = torch.randn(3, 2, 7), tuple(index == only for index in range(4))
    for count in (None, 7):
        assert_same(
            kernels, x, None, parameters_of(count), None, 0, True, surrogate.atan().kernel, needs=needs, recompute=False
        )


def test_upstream_gradients_that_do_not_change_with_time(kernels):
    x = torch.randn(11, 2, 33)
    parameters = parameters_of(None)
    forward = forward_arguments(x, None, parameters)
    _, (mem,), _ = assert_forward(kernels, forward)
    row = torch.randn(2, 33).expand(11, 2, 33)
    for upstream in ((row, None), (None, row), (row, torch.randn_like(x)), (torch.ones(()).expand(11, 2, 33), row)):
        assert_backward(kernels, backward_arguments(forward, upstream, surrogate.atan().kernel, states=mem), 1e-5)


def test_non_contiguous_inputs(kernels):
    x, mem0 = torch.randn(33, 4, 7).permute(2, 1, 0), torch.randn(33, 4).t()
    parameters = tuple(parameter[::2] for parameter in parameters_of(66))
    assert not x.is_contiguous()
    assert_same(kernels, x, mem0, parameters, None, 0, True, surrogate.atan().kernel)


@pytest.mark.parametrize("shape", [(0, 3, 4), (5, 0, 4), (5, 3, 0)])
@pytest.mark.parametrize("per_neuron", [False, True], ids=["scalar", "per neuron"])
def test_empty_inputs(kernels, shape, per_neuron):
    """Outputs of the right shape; gradients of parameters are 0."""
    x, parameters = torch.randn(shape), parameters_of(shape[2] if per_neuron else None)
    forward = forward_arguments(x, None, parameters, None, 0, False)
    spk, (mem,), (last,) = kernels.neuron_sequence_fwd(*forward)
    assert (spk.shape, mem.shape, last.shape) == (shape, shape, shape[1:])
    assert not last.any()
    for states in (mem, None):
        if states is None or states.numel():
            arguments = backward_arguments(forward, (spk, mem), surrogate.atan().kernel, states=states)
            gradients = flat(kernels.neuron_sequence_bwd(*arguments))
            assert [tuple(g.shape) for g in gradients] == [shape, shape[1:], *(tuple(p.shape) for p in forward[2])]
            assert not any(g.any() for g in gradients)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_and_infinity(kernels):
    x = torch.zeros(4, 1, 40)
    x[0, 0, 3], x[1, 0, 17], x[1, 0, 35], x[2, 0, 39] = float("nan"), float("inf"), -float("inf"), float("nan")
    for reset, delay in itertools.product(range(3), (True, False)):
        arguments = forward_arguments(x, None, parameters_of(None), None, reset, delay)
        expected = reference_of("neuron_sequence_fwd")(*arguments)
        for own, other in zip(flat(kernels.neuron_sequence_fwd(*arguments)), flat(expected)):
            assert torch.allclose(own, other, rtol=0, atol=0, equal_nan=True)


def test_spikes_are_decided_on_the_membrane_as_stored(kernels):
    """A membrane that rounds down to the threshold does not spike."""
    x = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float16)
    mem0 = torch.tensor([2.0**-14, 2.0**-10, -(2.0**-14)])
    parameters = [torch.tensor(1.0)] * 3
    spk, (mem,), _ = kernels.neuron_sequence_fwd(*forward_arguments(x, mem0, parameters, None, 2))
    assert spk.tolist() == [[0.0, 1.0, 0.0]]
    assert mem.tolist() == [[1.0, 1.0 + 2.0**-10, 1.0]]


def test_every_run_gives_the_same_bits(kernels):
    x = torch.randn(5, 3, 1000)
    parameters = parameters_of(None)
    forward = forward_arguments(x, None, parameters)
    _, (mem,), _ = kernels.neuron_sequence_fwd(*forward)
    arguments = backward_arguments(forward, (x, x), surrogate.atan().kernel, states=mem)
    first, second = (flat(kernels.neuron_sequence_bwd(*arguments)) for _ in range(2))
    assert all(torch.equal(own, other) for own, other in zip(first, second))


def test_tensors_on_different_devices(kernels):
    mem0 = torch.zeros(3, device="meta")
    with pytest.raises(ValueError, match=r"tensors must be on one device, got \['cpu', 'meta'\]"):
        kernels.neuron_sequence_fwd(*forward_arguments(torch.zeros(2, 3), mem0, parameters_of(None)))
