"""Second derivatives: fused operators raise an error by name, and its advice works."""

import functools

import pytest
import snntorch
import torch
from support import sparse_cases
from support.loops import by_steps
from support.operators import machine, needs_library

import snnipu as snn
from snnipu import ops
from snnipu.ipu.model import IpuModel

one_to_one = snn.RLeaky(beta=0.9, V=0.5, all_to_all=False)


def leaf(*shape):
    torch.manual_seed(0)
    return torch.rand(shape).requires_grad_()


def on_ipu_model():
    x, parameters = leaf(3, 2, 4), [torch.tensor([value]) for value in (1.0, 0.9, 1.0)]
    neuron = {"neuron": "leaky", "variant": 0, "states": 1}
    attributes = {**neuron, "surrogate": 3, "surrogate_a": 2.0, "surrogate_b": 0.0}
    model: IpuModel = machine(2, options=())
    return [x], model.apply("NeuronSequence", [x, torch.zeros(2, 4), *parameters], attributes)[1]


def from_tensor(function, *shape):
    x = leaf(*shape)
    return [x], function(x)


def from_events(op):
    """Return all tensors that have a gradient, and the differentiable result."""
    torch.manual_seed(0)
    values = sparse_cases.case(op, recurrent=op == sparse_cases.LAYERS[0])
    leaves = {name: values[name].nan_to_num().requires_grad_() for name in sparse_cases.leaves_of(op, values)}
    return list(leaves.values()), sparse_cases.call(op, {**values, **leaves})[0]


OPERATORS = {
    "neuron_sequence": lambda: from_tensor(lambda x: ops.lif_sequence(x, beta=0.9)[1], 3, 2, 4),
    "neuron_sequence, one step": lambda: from_tensor(lambda x: ops.lif_step(x, beta=0.9)[0], 2, 4),
    "neuron_step": lambda: from_tensor(lambda x: snn.Leaky(beta=0.9)(x)[0], 2, 4),
    "neuron_step, immediate reset": lambda: from_tensor(lambda x: snn.Leaky(beta=0.9, reset_delay=False)(x)[0], 2, 4),
    "neuron_step, its spikes a state": lambda: from_tensor(lambda x: one_to_one(x[0])[0], 3, 2, 4),
    "neuron_step, learnt": lambda: from_tensor(lambda x: snn.Synaptic(0.9, 0.8, learn_beta=True)(x)[0], 2, 4),
    "neuron_recurrent": lambda: from_tensor(snn.RLeaky(beta=0.8, linear_features=4).spikes, 3, 2, 4),
    "spiking_lstm": lambda: from_tensor(lambda x: snn.SLSTM(4, 4).sequence(x)[2], 3, 2, 4),
    "PopART operators": on_ipu_model,
    **{op: functools.partial(from_events, op) for op in sparse_cases.OPS},
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


ONE_TO_ONE = lambda: from_tensor(lambda x: one_to_one.sequence(x)[0], 3, 2, 4)  # noqa: E731


@pytest.mark.parametrize(("make", "name"), [*CASES, pytest.param(ONE_TO_ONE, "", id="one to one")])
def test_of_no_gradient_there_is_none(make, name):
    leaves, out = make()
    assert out.requires_grad
    NoGradient.apply(out).sum().backward(retain_graph=True)
    assert not any(x.grad is not None and x.grad.any() for x in leaves)
    out.sum().backward()
    assert all(x.grad is not None for x in leaves)


# The gradient of a sum is a constant.
LINEAR = ("sparse_to_dense", "sparse_pool2d", "dense_to_sparse")


@pytest.mark.parametrize(
    ("make", "name", "loss_of"),
    [
        pytest.param(*case.values, loss_of, id=f"{case.id}-{kind}", marks=case.marks)
        for case in CASES
        for kind, loss_of in (("sum", torch.sum), ("squares", lambda out: (out**2).sum()))
        if kind == "squares" or case.id not in LINEAR
    ],
)
def test_a_penalty_on_gradients_is_refused_for_chosen_inputs(make, name, loss_of):
    leaves, out = make()
    loss = loss_of(out)
    penalty = sum((gradient**2).sum() for gradient in torch.autograd.grad(loss, leaves, create_graph=True))
    with pytest.raises(RuntimeError, match=f"a second derivative through snnipu's {name} was asked for"):
        torch.autograd.grad(loss + penalty, leaves)


@pytest.mark.parametrize("loss", [torch.sum, lambda out: (out**2).sum()], ids=["sum", "squares"])
@pytest.mark.parametrize(("make", "name"), CASES)
def test_refused_by_name(make, name, loss):
    leaves, out = make()
    for x, gradient in zip(leaves, torch.autograd.grad(loss(out), leaves, create_graph=True)):
        # A further term with a second derivative must not hide the error.
        with pytest.raises(RuntimeError, match=rf"a second derivative through snnipu's {name} was asked for"):
            ((gradient**2).sum() + (x**2).sum()).backward(retain_graph=True)


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
    function, penalties = {"beta": 0.9, "spike_grad": lambda u: snn.surrogate.atan()(u)}, []
    for spikes in (
        lambda x: by_steps(snntorch.Leaky(beta=0.9, learn_beta=True), x, [torch.zeros(3, 4)])[0],
        lambda x: snn.Leaky(**function, learn_beta=True).sequence(x)[0],
        lambda x: ops.lif_sequence(x, **function)[0],
    ):
        torch.manual_seed(0)
        linear, x = torch.nn.Linear(5, 4), leaf(6, 3, 5)
        out = spikes(linear(x))
        loss = (out * torch.linspace(0, 1, out.numel()).view_as(out)).sum()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
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
