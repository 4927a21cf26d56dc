"""``snnipu.MultiStep`` beside the loop it stands for."""

import pytest
import snntorch
import snntorch.utils
import torch
from oracle import relative_error
from support.versions import NO_HALF_PRODUCT, needs_compile
from torch import nn
from torch._dynamo.backends.common import aot_autograd

import snnipu as snn


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def loop(net, x, num_steps=None):
    """Each step through all modules, neurons' states passed on by hand."""
    states = {}
    outs = []
    for t in range(x.shape[0] if num_steps is None else num_steps):
        value = x[t] if num_steps is None else x
        for index, module in enumerate(net):
            if isinstance(value, tuple):
                value = value[0]
            if isinstance(module, snntorch.SpikingNeuron) and not module.init_hidden:
                value = module(value, *states[index]) if index in states else first_step(module, value)
                states[index] = value[1:]
            else:
                value = module(value)
        outs.append(value)
    if isinstance(outs[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*outs))
    return torch.stack(outs)


def first_step(module, value):
    if isinstance(module, snntorch.Leaky):
        return module(value, torch.zeros_like(value))
    module.reset_mem()
    return module(value)


def twins(make):
    nets = []
    for _ in range(2):
        torch.manual_seed(1)
        nets.append(make())
    return nets


def assert_same(make, x, num_steps=None, tolerance=1e-5):
    """Outputs equal the loop's (up to the order of sums in the matrix products), gradients within the tolerance."""
    net, other = twins(make)
    out, expected = net(x, num_steps=num_steps), loop(other, x, num_steps)
    out, expected = (value if isinstance(value, tuple) else (value,) for value in (out, expected))
    assert len(out) == len(expected)
    for own, wanted in zip(out, expected):
        assert own.shape == wanted.shape
        assert torch.allclose(own, wanted, rtol=1e-5, atol=1e-5)
    upstream = [torch.randn_like(value) for value in expected]
    for values in (out, expected):
        sum((value * weight).sum() for value, weight in zip(values, upstream)).backward()
    for (name, own), wanted in zip(net.named_parameters(), other.parameters()):
        assert relative_error(own.grad, wanted.grad) <= tolerance, name


def test_tutorial_network():
    def make():
        return snn.MultiStep(nn.Linear(20, 30), snn.Leaky(beta=0.9), nn.Linear(30, 7), snn.Leaky(beta=0.8))

    assert_same(make, torch.rand(6, 4, 20))
    assert_same(make, torch.rand(4, 20), num_steps=6)


def test_constant_input_runs_the_prefix_once():
    calls = []

    class Counting(nn.Linear):
        def forward(self, x):
            calls.append(x.shape)
            return super().forward(x)

    fc1 = nn.Linear(5, 6)
    original = fc1.forward
    fc1.forward = lambda x: calls.append(tuple(x.shape)) or original(x)
    net = snn.MultiStep(nn.Flatten(), fc1, nn.ReLU(), snn.Leaky(beta=0.9), nn.Linear(6, 2))
    out = net(torch.rand(3, 5, 1), num_steps=11)
    assert calls == [(3, 5)]
    assert out.shape == (11, 3, 2)
    # A subclass may keep state: it runs step by step.
    calls.clear()
    snn.MultiStep(Counting(5, 6))(torch.rand(3, 5), num_steps=4)
    assert len(calls) == 4


def test_only_stateless_modules_and_constant_input():
    net = snn.MultiStep(nn.Linear(3, 2))
    x = torch.rand(4, 3)
    out = net(x, num_steps=5)
    assert out.shape == (5, 4, 2)
    assert torch.equal(out[3], net[0](x))


def test_convolutional_network():
    def make():
        return snn.MultiStep(
            nn.Conv2d(1, 4, 3),
            snn.Leaky(beta=torch.rand(4, 1, 1), learn_beta=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * 3 * 3, 5),
            snn.Leaky(beta=0.9, reset_mechanism="zero"),
        )

    assert_same(make, torch.rand(5, 2, 1, 8, 8))
    assert_same(make, torch.rand(2, 1, 8, 8), num_steps=5)


@pytest.mark.parametrize("neuron", ["Synaptic", "Alpha", "Lapicque", "RLeaky"])
def test_snntorchs_other_neurons(neuron):
    def make():
        keywords = {
            "Synaptic": {"alpha": 0.8, "beta": 0.9},
            "Alpha": {"alpha": 0.9, "beta": 0.8},
            "Lapicque": {"beta": 0.9},
            "RLeaky": {"beta": 0.9, "all_to_all": False, "V": 0.3},
        }[neuron]
        return snn.MultiStep(nn.Linear(6, 8), getattr(snn, neuron)(**keywords), nn.Linear(8, 3))

    assert_same(make, torch.rand(6, 2, 6))


def test_hidden_states_go_on_until_reset():
    net = snn.MultiStep(
        nn.Linear(4, 6), snn.Leaky(beta=0.9, init_hidden=True), snn.Synaptic(0.8, 0.9, init_hidden=True)
    )
    x = torch.rand(6, 3, 4)
    with torch.no_grad():
        whole = net(x)
        snn.utils.reset(net)
        parts = torch.cat([net(x[:2]), net(x[2:])])
    assert torch.equal(parts, whole)


def test_batch_norm_uses_each_steps_statistics_in_training():
    def make():
        return snn.MultiStep(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), snn.Leaky(beta=0.9))

    x = torch.rand(5, 8, 4)
    assert_same(make, x, tolerance=1e-4)
    net, other = twins(make)
    net(x)
    loop(other, x)
    assert torch.equal(net[1].running_mean, other[1].running_mean)
    assert net[1].num_batches_tracked == 5
    # A constant input is normalised in every step as well.
    net.train()
    net(x[0], num_steps=3)
    assert net[1].num_batches_tracked == 8


def test_evaluation_mode():
    def make():
        net = snn.MultiStep(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), snn.Leaky(beta=0.9))
        return net.eval()

    assert_same(make, torch.rand(5, 8, 4))
    assert_same(make, torch.rand(8, 4), num_steps=5)


def test_dropout_masks_differ_between_steps():
    net = snn.MultiStep(nn.Dropout(0.5))
    out = net(torch.ones(3, 50), num_steps=4)
    assert not torch.equal(out[0], out[1])


def test_forward_hooks_see_every_step():
    seen = []
    net = snn.MultiStep(nn.Linear(3, 4), snn.Leaky(beta=0.9))
    for module in net:
        module.register_forward_hook(lambda module, inputs, output: seen.append(type(module).__name__))
    out = net(torch.rand(5, 2, 3))
    assert seen == ["Linear"] * 5 + ["Leaky"] * 5
    assert out[0].shape == (5, 2, 4)


def test_nested():
    def make():
        inner = snn.MultiStep(nn.Linear(5, 6), snn.Leaky(beta=0.9))
        return snn.MultiStep(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), inner, nn.Linear(6, 2))

    net, _ = twins(make)
    flat = snn.MultiStep(*net[0], *net[1], net[2])
    x = torch.rand(3, 4)
    assert torch.equal(net(x, num_steps=4), flat(x, num_steps=4))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        pytest.param(torch.float16, marks=pytest.mark.skipif(NO_HALF_PRODUCT is not None, reason=str(NO_HALF_PRODUCT))),
        torch.bfloat16,
    ],
)
def test_whole_network_in_another_dtype(dtype):
    net = snn.MultiStep(nn.Linear(6, 8), snn.Leaky(beta=0.9), nn.Linear(8, 3), snn.Leaky(beta=0.9)).to(dtype)
    spk, mem = net(torch.rand(2, 6).to(dtype), num_steps=4)
    assert spk.dtype == mem.dtype == dtype
    mem.sum().backward()
    assert net[0].weight.grad.isfinite().all()


@needs_compile
def test_compiles_into_one_graph():
    net = snn.MultiStep(nn.Linear(6, 8), snn.Leaky(beta=0.9), nn.Linear(8, 3), snn.Leaky(beta=0.9))
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = torch.rand(2, 6)
    for own, expected in zip(compiled(x, num_steps=5), net(x, num_steps=5)):
        assert torch.equal(own, expected)


@needs_compile
def test_numbers_of_steps_are_compiled_once():
    """PyTorch takes the first as a constant, and from the second on any."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    net = snn.MultiStep(nn.Linear(6, 8), snn.Leaky(beta=0.9), nn.Linear(8, 3), snn.Leaky(beta=0.9))
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend=aot_autograd(fw_compiler=count))
    x = torch.rand(2, 6)
    for steps in (5, 6, 7, 12, 3, 2):
        spk, mem = compiled(x, num_steps=steps)
        expected = net(x, num_steps=steps)
        assert torch.equal(spk, expected[0])
        gradients = [torch.autograd.grad((out[0] + out[1]).sum(), net[0].weight)[0] for out in ((spk, mem), expected)]
        torch.testing.assert_close(*gradients)
    assert len(graphs) <= 4  # forward and backward, twice


@pytest.mark.parametrize(
    ("net", "arguments", "error", "message"),
    [
        ((), {"x": torch.rand(2, 2)}, ValueError, "no modules"),
        ((nn.Identity(),), {"x": [1.0]}, TypeError, "x must be a torch.Tensor"),
        ((nn.Identity(),), {"x": torch.rand(3)}, ValueError, r"x must have shape \[T, B, ...\], got \(3,\)"),
        ((nn.Identity(),), {"x": torch.rand(()), "num_steps": 2}, ValueError, r"x must have shape \[B, ...\]"),
        ((nn.Identity(),), {"x": torch.rand(0, 3)}, ValueError, "at least one time step"),
        ((nn.Identity(),), {"x": torch.rand(2, 3), "num_steps": 0}, ValueError, "num_steps must be at least 1"),
        ((nn.Identity(),), {"x": torch.rand(2, 3), "num_steps": "3"}, TypeError, "num_steps must be an int"),
    ],
)
def test_bad_input(net, arguments, error, message):
    with pytest.raises(error, match=message):
        snn.MultiStep(*net)(**arguments)
