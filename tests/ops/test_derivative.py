"""Second derivatives: fused operators raise an error by name, and its advice works."""

import pytest
import snntorch
import torch
from oracle import random_spikes
from support.operators import machine, needs_library

import snnipu as snn
from snnipu import ops
from snnipu.ipu.model import IpuModel


def leaf(*shape):
    torch.manual_seed(0)
    return torch.rand(shape).requires_grad_()


def spikes():
    torch.manual_seed(0)
    return random_spikes(3, 2, 5, slack=0).requires_grad_()


def on_ipu_model():
    x, parameters = leaf(3, 2, 4), [torch.tensor([value]) for value in (1.0, 0.9, 1.0)]
    neuron = {"neuron": "leaky", "variant": 0, "states": 1}
    attributes = {**neuron, "surrogate": 3, "surrogate_a": 2.0, "surrogate_b": 0.0}
    model: IpuModel = machine(2, options=())
    return x, model.apply("NeuronSequence", [x, torch.zeros(2, 4), *parameters], attributes)[1]


def from_values(function):
    spk = spikes()
    return spk.values, function(spk)


def from_tensor(function, *shape):
    x = leaf(*shape)
    return x, function(x)


WEIGHT = torch.full((4, 5), 0.7)
OPERATORS = {
    "neuron_sequence": lambda: from_tensor(lambda x: ops.lif_sequence(x, beta=0.9)[1], 3, 2, 4),
    "neuron_sequence, one step": lambda: from_tensor(lambda x: ops.lif_step(x, beta=0.9)[0], 2, 4),
    "neuron_step": lambda: from_tensor(lambda x: snn.Leaky(beta=0.9)(x)[0], 2, 4),
    "neuron_recurrent": lambda: from_tensor(snn.RLeaky(beta=0.8, linear_features=4).spikes, 3, 2, 4),
    "select_spikes": lambda: from_tensor(lambda x: ops.select_spikes(x).values, 3, 2, 4),
    "dense_to_sparse": lambda: from_tensor(lambda x: ops.dense_to_sparse(x).values, 3, 2, 4),
    "sparse_to_dense": lambda: from_values(ops.sparse_to_dense),
    "sparse_linear": lambda: from_values(lambda spikes: ops.sparse_linear(spikes, WEIGHT)),
    "sparse_lif_sequence": lambda: from_values(lambda spikes: ops.sparse_lif_sequence(spikes, WEIGHT, beta=0.9).values),
    "spiking_lstm": lambda: from_tensor(lambda x: snn.SLSTM(4, 4).sequence(x)[2], 3, 2, 4),
    "PopART operators": on_ipu_model,
}
CASES = [
    pytest.param(make, name.partition(",")[0], id=name, marks=[needs_library] if make is on_ipu_model else [])
    for name, make in OPERATORS.items()
]


class NoGradient(torch.autograd.Function):
    """A function that returns no gradient, not even zeros."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


MORE = {
    "sparse_pool2d": lambda: from_values(
        lambda spikes: ops.sparse_pool2d(spikes, (1, 5), mode="sum", input_size=(1, 1, 5)).values
    ),
    "recurrent_sequence": lambda: from_tensor(
        lambda x: snn.RLeaky(beta=0.9, V=0.5, all_to_all=False).sequence(x)[0], 3, 2, 4
    ),
}


@pytest.mark.parametrize(("make", "name"), [*CASES, *(pytest.param(make, "", id=name) for name, make in MORE.items())])
def test_of_no_gradient_there_is_none(make, name):
    x, out = make()
    assert out.requires_grad
    NoGradient.apply(out).sum().backward(retain_graph=True)
    assert x.grad is None or not x.grad.any()
    out.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("loss", [torch.sum, lambda out: (out**2).sum()], ids=["sum", "squares"])
@pytest.mark.parametrize(("make", "name"), CASES)
def test_refused_by_name(make, name, loss):
    x, out = make()
    (gradient,) = torch.autograd.grad(loss(out), x, create_graph=True)
    # A further term with a second derivative must not hide the error.
    with pytest.raises(RuntimeError, match=rf"a second derivative through snnipu's {name} was asked for"):
        ((gradient**2).sum() + (x**2).sum()).backward()


def test_first_derivatives_with_create_graph_are_the_same():
    x = leaf(4, 3, 5)
    layer = snn.Leaky(beta=0.9, learn_beta=True)
    expected = torch.autograd.grad((layer.sequence(x)[1] ** 2).sum(), [x, layer.beta])
    actual = torch.autograd.grad((layer.sequence(x)[1] ** 2).sum(), [x, layer.beta], create_graph=True)
    for gradient, other in zip(actual, expected):
        assert gradient.requires_grad
        assert torch.equal(gradient, other)


def test_what_the_message_advises_works():
    """snntorch.Leaky, and snnipu.Leaky with a Python function, can be differentiated twice."""
    penalties = []
    for layer in (
        snntorch.Leaky(beta=0.9, learn_beta=True),
        snn.Leaky(beta=0.9, learn_beta=True, spike_grad=lambda u: snn.surrogate.atan()(u)),
        "operator",
    ):
        torch.manual_seed(0)
        linear, x = torch.nn.Linear(5, 4), leaf(6, 3, 5)
        if layer == "operator":
            out = ops.lif_sequence(linear(x), beta=0.9, spike_grad=lambda u: snn.surrogate.atan()(u))[0]
        elif isinstance(layer, snn.Leaky):
            out = layer.sequence(linear(x))[0]
        else:
            out, mem = [], layer.reset_mem()
            for current in linear(x):
                spk, mem = layer(current, mem)
                out.append(spk)
            out = torch.stack(out)
        (gradient,) = torch.autograd.grad(
            (out * torch.linspace(0, 1, out.numel()).view_as(out)).sum(), x, create_graph=True
        )
        (gradient**2).sum().backward()
        penalties.append(linear.weight.grad)
    assert penalties[0].any()
    for penalty in penalties[1:]:
        torch.testing.assert_close(penalty, penalties[0])


FORWARD = {
    "sequence": lambda layer, x: layer.sequence(x)[0],
    "spikes": lambda layer, x: layer.spikes(x),
    "step": lambda layer, x: layer(x[0])[0],
}


@pytest.mark.parametrize("function", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("layer", [snn.Leaky(0.9), snn.Leaky(0.9, learn_beta=True), snn.Lapicque(0.9)])
def test_no_tangent_is_lost(layer, function):
    """Kernels have no forward derivative: they raise instead of returning zero tangents."""
    x = torch.rand(3, 2, 4)
    with pytest.raises(RuntimeError, match=r"autograd\.Function"):
        torch.func.jvp(lambda x: function(layer, x), (x,), (x,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="jvp"):
        function(layer, torch.autograd.forward_ad.make_dual(x, x))
    layer.reset_mem()
