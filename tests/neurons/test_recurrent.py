"""RLeaky and RSynaptic with recurrence through a linear layer or a convolution: snnTorch's numbers, fused."""

import copy

import pytest
import snntorch
import torch
from oracle import relative_error
from support.interpreter import interpreted  # noqa: F401
from support.loops import sequence, steps, with_gradients
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn
from snnipu import equations, surrogate
from snnipu.ops import recurrent_sequence as operator
from snnipu.ops.neuron_sequence import neuron_apply

N = 13
KINDS = {"RLeaky": {"beta": 0.8}, "RSynaptic": {"alpha": 0.7, "beta": 0.8}}
# Keywords of the connection, and the shape of one step of the input.
CONNECTIONS = {
    "linear": ({"linear_features": N}, (3, N)),
    "linear-maps": ({"linear_features": N}, (3, 2, N)),
    "one-sample": ({"linear_features": N}, (N,)),
    "conv": ({"conv2d_channels": 3, "kernel_size": 3}, (2, 3, 5, 4)),
    "conv-1x5": ({"conv2d_channels": 3, "kernel_size": (1, 5)}, (2, 3, 5, 4)),
    "conv-one-sample": ({"conv2d_channels": 3, "kernel_size": 3}, (3, 5, 4)),
}
OPTIONS = [
    {"reset_mechanism": reset, "reset_delay": delay}
    for reset in equations.OPTIONS["reset_mechanism"]
    for delay in (True, False)
]


def learning(name, connection):
    per_neuron = torch.linspace(0.2, 1.1, N) if "linear_features" in connection else torch.rand(3, 1, 1)
    learned = {"learn_beta": True, "learn_threshold": True, "beta": per_neuron}
    return {**learned, **({"learn_alpha": True} if name == "RSynaptic" else {})}


def twins(name, connection, **keywords):
    keywords = {**KINDS[name], **connection, **keywords}
    ours, theirs = getattr(snn, name)(**copy.deepcopy(keywords)), getattr(snntorch, name)(**copy.deepcopy(keywords))
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def loop(layer, x, *states):
    return steps(layer, x, *(states or [torch.zeros_like(x[0]) for _ in layer_states(layer)]))


def layer_states(layer):
    return ("spk", "syn", "mem") if isinstance(layer, snntorch.RSynaptic) else ("spk", "mem")


def gradients(out, inputs):
    generator = torch.Generator().manual_seed(1)
    loss = sum((part * torch.randn(part.shape, generator=generator, dtype=part.dtype)).sum() for part in out)
    return torch.autograd.grad(loss, inputs, allow_unused=True)


def compare(actual, expected, places=()):
    """Compare outputs bit by bit, and gradients to 1e-5 of their scale."""
    for value, other in zip(actual[0], expected[0]):
        assert torch.equal(value, other)
    scale = max(grad.abs().max() for grad in expected[1] if grad is not None)
    for value, other in zip(actual[1], expected[1]):
        if other is None:
            assert value is None or not value.any()
        else:
            assert value.shape == other.shape
            assert (value - other).abs().max() <= 1e-5 * max(scale, other.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("chosen", OPTIONS, ids=lambda chosen: "-".join(map(str, chosen.values())))
@pytest.mark.parametrize("learns", [False, True], ids=["fixed", "learns"])
@pytest.mark.parametrize("through", CONNECTIONS)
@pytest.mark.parametrize("name", KINDS)
def test_sequences_are_snntorchs(name, through, learns, chosen):
    connection, shape = CONNECTIONS[through]
    ours, theirs = twins(name, connection, **(learning(name, connection) if learns else {}), **chosen)
    assert ours.runs_fused()
    x = torch.randn(7, *shape) * 2
    initial = [(torch.rand(shape) < 0.3).float(), *(torch.randn(shape) for _ in layer_states(ours)[1:])]
    for states in ((), initial):
        expected = with_gradients(loop, theirs, x, *states)
        assert 0.01 < expected[0][0].mean() < 0.99
        compare(with_gradients(sequence, ours, x, *states), expected)
    # Spikes alone: states are stored only for the backward pass, and not returned.
    spikes = with_gradients(lambda layer, x: [layer.spikes(x)], ours, x)
    compare(spikes, with_gradients(lambda layer, x: loop(layer, x)[:1], theirs, x))


@pytest.mark.parametrize("chosen", OPTIONS, ids=lambda chosen: "-".join(map(str, chosen.values())))
@pytest.mark.parametrize("through", ["linear", "conv"])
@pytest.mark.parametrize("name", KINDS)
def test_steps_are_snntorchs(name, through, chosen):
    connection, shape = CONNECTIONS[through]
    x = torch.randn(5, *shape) * 2
    compare(
        *(with_gradients(loop, layer, x) for layer in twins(name, connection, **learning(name, connection), **chosen))
    )


@pytest.mark.parametrize("connection", [{"all_to_all": False}, {"linear_features": N}], ids=["one-to-one", "linear"])
@pytest.mark.parametrize("name", KINDS)
def test_without_a_surrogate_spikes_have_no_gradient(name, connection):
    ours, theirs = twins(name, connection, surrogate_disable=True)
    x, gradients = torch.randn(5, 3, N, requires_grad=True), []
    for out in (loop(theirs, x), loop(ours, x), sequence(ours, x)):
        assert not out[0].requires_grad
        gradients.append(torch.autograd.grad(out[-1].square().sum(), x)[0])
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("through", ["linear", "conv"])
@pytest.mark.parametrize("by", ["reference", "Triton"])
def test_operator_is_its_reference(name, through, by, monkeypatch, request):
    """The reference is a loop with the recorded step and adjoint in PyTorch. Kernels must equal it."""
    forward, backward = operator.neuron_recurrent_fwd_reference, operator.neuron_recurrent_bwd_reference
    if by == "Triton":
        kernels = request.getfixturevalue("interpreted")("steps")
        forward, backward = kernels.neuron_recurrent_fwd, kernels.neuron_recurrent_bwd
    connection, shape = CONNECTIONS[through]
    # Triton's interpreter does not round to bfloat16.
    for dtype in (torch.float32, torch.bfloat16 if by == "reference" else torch.float16):
        layer = getattr(snn, name)(
            **{**KINDS[name], **learning(name, connection)}, **connection, reset_mechanism="zero"
        )
        layer.to(dtype)
        results = []
        x = (torch.randn(6, *shape) * 2).to(dtype)
        for functions in ((operator._fwd, operator._bwd), (forward, backward)):
            with monkeypatch.context() as patch:
                for place, function in zip(("_fwd", "_bwd"), functions):
                    patch.setattr(operator, place, function)
                results.append(with_gradients(sequence, layer, x))
        for actual, other in zip(results[0][0], results[1][0]):
            assert actual.dtype == dtype
            assert torch.equal(actual, other)
        for actual, other in zip(results[0][1], results[1][1]):
            assert relative_error(actual.double(), other.double()) <= (1e-5 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("delay", [True, False])
def test_what_is_kept(delay):
    """Spikes and membranes are stored; the input and its sum only if a membrane is computed again."""
    layer = snn.RLeaky(beta=0.8, linear_features=N, reset_delay=delay)
    x = torch.randn(9, 3, N)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t):
        layer.spikes(x)
    assert saved.count((9, 3, N)) == (2 if delay else 4)
    with torch.no_grad():
        assert not layer.spikes(x).requires_grad


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("through", ["linear", "conv"])
def test_layouts(name, through):
    connection, shape = CONNECTIONS[through]
    ours, theirs = twins(name, connection, beta=learning(name, connection)["beta"])
    batch_first = torch.randn(shape[0], 6, *shape[1:]).transpose(0, 1)
    last = torch.randn(6, *shape[:1], *shape[2:], shape[1]).movedim(-1, 2) * 2
    for x in (batch_first, last):
        compare(with_gradients(sequence, ours, x), with_gradients(loop, theirs, x))


def apply_operator(neuron, x, states, connection=None, reset_delay=True):
    """Call the operator, with final states."""
    values = {name: torch.tensor(0.8) for name in ("beta", "threshold", "graded_spikes_factor")}
    options = {"reset_mechanism": "subtract", "reset_delay": reset_delay}
    connection = nn.Linear(N, N) if connection is None else connection
    return neuron_apply(
        neuron,
        x,
        states,
        values,
        connection=operator.RecurrentConnection(connection.weight, connection.bias),
        options=options,
        spike_grad=surrogate.fast_sigmoid(5),
        need_final=True,
    )


@pytest.mark.parametrize("delay", [True, False])
def test_spikes_that_are_added_to_the_input(delay):
    """A neuron without recurrent input gets the sum of both, which is stored in place of the input."""
    connection = nn.Linear(N, N)
    leaky = snn.Leaky(
        beta=0.8, threshold=0.8, graded_spikes_factor=0.8, spike_grad=surrogate.fast_sigmoid(5), reset_delay=delay
    )
    x = (2 * torch.randn(9, 3, N)).requires_grad_()
    spk, mem, rows = torch.zeros(3, N), torch.zeros(3, N), []
    for current in x:
        spk, mem = leaky(current + connection(spk), mem)
        rows.append((spk, mem))
    expected = [torch.stack(part) for part in zip(*rows)]
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t):
        out = apply_operator("leaky", x, [None, None], connection, delay)
    inputs = [x, connection.weight, connection.bias]
    compare(*((outputs, gradients(outputs, inputs)) for outputs in ([out.spk, out.states[1]], expected)))
    assert saved.count((9, 3, N)) == (2 if delay else 3)


@pytest.mark.parametrize("neuron", ["leaky", "rleaky"])
def test_a_gradient_of_final_states_that_is_one_number(neuron):
    x = torch.randn(4, 3, N, requires_grad=True)
    final = apply_operator(neuron, x, [None, None]).final
    whole, one_by_one = (
        torch.autograd.grad(sum(loss), x, retain_graph=True)[0]
        for loss in ([part.sum() for part in final], [(part * torch.ones(3, N)).sum() for part in final])
    )
    assert torch.equal(whole, one_by_one)


def test_final_spikes_have_memory_of_their_own():
    out = apply_operator("rleaky", 2 * torch.ones(4, 3, N), [None, None])
    assert out.spk[-1].any()
    out.final[0].zero_()
    assert out.spk[-1].any()


def test_a_frozen_or_biasless_connection():
    ours, theirs = twins("RLeaky", {"linear_features": N}, learn_recurrent=False)
    x = torch.randn(6, 4, N) * 2
    for layer in (ours, theirs):
        layer.recurrent = nn.Linear(N, N, bias=False)
    theirs.load_state_dict(ours.state_dict())
    for frozen in (False, True):
        for layer in (ours, theirs):
            layer.recurrent.weight.requires_grad_(not frozen)
        compare(with_gradients(sequence, ours, x), with_gradients(loop, theirs, x))


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked(layer):
    layer.recurrent.register_forward_hook(lambda module, args, out: 2 * out)


def subclassed(layer):
    connection = Doubled(N, N)
    connection.load_state_dict(layer.recurrent.state_dict())
    layer.recurrent = connection


def own_forward(layer):
    layer.recurrent.forward = lambda x: 2 * nn.functional.linear(x, layer.recurrent.weight, layer.recurrent.bias)


def parametrized(layer):
    class Twice(nn.Module):
        def forward(self, weight):
            return 2 * weight

    nn.utils.parametrize.register_parametrization(layer.recurrent, "weight", Twice())


@pytest.mark.parametrize("change", [hooked, subclassed, own_forward, parametrized])
def test_a_replaced_connection_is_called(change):
    ours, theirs = twins("RLeaky", {"linear_features": N})
    change(ours), change(theirs)
    x = torch.randn(6, 4, N) * 2
    assert not ours.runs_fused()
    for actual, other in zip(ours.sequence(x), loop(theirs, x)):
        assert torch.equal(actual, other)
    assert torch.equal(snn.MultiStep(ours)(x)[0], loop(theirs, x)[0])


def test_autocast_is_snntorchs():
    ours, theirs = twins("RLeaky", {"linear_features": N})
    x = torch.randn(6, 4, N) * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not ours.runs_fused()
        for actual, other in zip(ours.sequence(x), loop(theirs, x)):
            assert torch.equal(actual, other)
    assert ours.runs_fused()


def rleaky(**connection):
    return snn.RLeaky(beta=0.8, **connection)


@each_row(r"""
rleaky(linear_features=N).sequence(rand(3, 2, 5)) | ValueError: x must have steps of shape \[..., 13\].*\(2, 5\)
rleaky(linear_features=N).sequence(rand(3, 2, N).double()) | TypeError: dtype and the device of recurrent.weight
rleaky(linear_features=N).sequence(rand(3, 2, N), None, rand(3, N)) | ValueError: mem must have the shape of one step
rleaky(conv2d_channels=3, kernel_size=3).sequence(rand(3, 2, 4, 5, 5)) | ValueError: \[B, 3, H, W\].*\(2, 4, 5, 5\)
rleaky(conv2d_channels=3, kernel_size=2).sequence(rand(3, 2, 3, 5, 5)) | ValueError: must keep it
""")
def test_errors_name_the_argument(row):
    assert_refused(row, globals(), rand=torch.rand)


def test_states_before_no_step_have_no_gradient():
    """test_zoo.py tests empty sequences."""
    layer = snn.RLeaky(beta=0.8, linear_features=N)
    states = [torch.ones(2, N, requires_grad=True) for _ in range(2)]
    spk = layer.sequence(torch.zeros(0, 2, N), *states)[0]
    assert not any(grad.any() for grad in torch.autograd.grad(spk.sum(), states))
