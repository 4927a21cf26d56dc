"""``MultiStep`` in chunks of time: the results of one call, with states and gradients across chunks."""

import copy

import pytest
import snntorch
import torch
from support.loops import kinds, neuron_of, with_gradients
from support.versions import NO_HALF_RELU
from torch import nn

import snnipu as snn
from snnipu.neurons import multistep


@pytest.fixture
def in_parts(monkeypatch):
    """Return a function that runs another one without and with chunks; it returns both results and the chunks."""

    def run(function, step_bytes, steps):
        monkeypatch.setattr(multistep, "CHUNK_BYTES", 2**40)
        whole = function()
        monkeypatch.setattr(multistep, "CHUNK_BYTES", step_bytes * steps)
        lengths = []
        part = multistep._run_chunk

        def counted(modules, x, states, constant, *others):
            lengths.append(x.shape[0] if constant is None else constant)
            return part(modules, x, states, constant, *others)

        monkeypatch.setattr(multistep, "_run_chunk", counted)
        parts = function()
        monkeypatch.setattr(multistep, "_run_chunk", part)
        return whole, parts, lengths

    return run


def trained(net, x, num_steps=None):
    """Return a function that computes results and gradients of the input and the parameters."""

    def call(net, x):
        torch.manual_seed(1)
        out = net(x, num_steps=num_steps)
        return out if isinstance(out, tuple) else (out,)

    def function():
        twin = copy.deepcopy(net)
        out, (of_x, *gradients) = with_gradients(call, twin, x)
        return [part.detach() for part in out], of_x, gradients, twin

    return function


def assert_same(whole, parts, exact=True):
    for actual, other in zip(parts[0], whole[0]):
        assert (actual.shape, actual.dtype, actual.stride()) == (other.shape, other.dtype, other.stride())
        assert torch.equal(actual, other)
    tolerance = 1e-9 if whole[1].dtype == torch.float64 else 1e-5
    assert torch.equal(parts[1], whole[1]) if exact else torch.allclose(parts[1], whole[1], rtol=tolerance)
    for actual, other in zip(parts[2], whole[2]):
        # The same terms, summed in another order.
        assert torch.allclose(actual, other, rtol=tolerance, atol=tolerance * max(1, other.abs().max()))


NETS = {
    **{name: lambda name=name: (neuron_of(name, 6),) for name in kinds(6)},
    "surrogate in Python": lambda: (snn.Leaky(beta=0.8, spike_grad=lambda u: torch.sigmoid(5 * u)),),
    "snnTorch's": lambda: (snntorch.Synaptic(alpha=0.7, beta=0.8),),
    "init_hidden": lambda: (snn.Leaky(beta=0.8, init_hidden=True),),
    "inhibition": lambda: (snn.Leaky(beta=0.8, inhibition=True),),
    "batch norm": lambda: (nn.BatchNorm1d(6), snn.Leaky(beta=0.8)),
    "cell": lambda: (nn.GRUCell(6, 6),),
    "whole sequences": lambda: (nn.LSTM(6, 6), snn.Leaky(beta=0.8)),
    "nested": lambda: (nn.Sequential(snn.Leaky(beta=0.8), nn.Linear(6, 6)), snn.Leaky(beta=0.5)),
}


@pytest.mark.parametrize("constant", [False, True], ids=["sequence", "constant"])
@pytest.mark.parametrize("name", NETS)
def test_parts_give_what_one_piece_gives(in_parts, name, constant):
    net = snn.MultiStep(nn.Linear(5, 6), *NETS[name](), nn.Linear(6, 6), nn.Tanh(), snn.Leaky(beta=0.9, threshold=0.2))
    # Float64, as matrix products of few and many rows add in different orders. snnTorch's neurons give float32 spikes.
    net = net if name == "snnTorch's" else net.double()
    x = 3 * torch.randn(*(() if constant else (7,)), 4, 5, dtype=net[0].weight.dtype)
    function = trained(net, x, 7 if constant else None)
    whole, parts, lengths = in_parts(function, 4 * 6 * x.element_size(), 3)
    assert lengths.count(3) >= 1
    assert sum(lengths) % 7 == 0
    assert whole[0][0].any()
    assert_same(whole, parts, exact=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("need_mem", [True, False])
def test_states_are_handed_on_as_they_are_computed(in_parts, dtype, need_mem):
    """Equality is bit by bit, also in half precision: the state between chunks is float32."""
    if dtype == torch.float16 and NO_HALF_RELU is not None:
        pytest.skip(NO_HALF_RELU)
    torch.manual_seed(0)
    net = snn.MultiStep(nn.ReLU(), snn.Leaky(beta=0.9), nn.Identity(), *([snn.Leaky(beta=0.6)] if need_mem else []))
    x = torch.randn(11, 2, 33).to(dtype)
    whole, parts, lengths = in_parts(trained(net, x), 2 * 33 * x.element_size(), 4)
    assert lengths == [4, 4, 3]
    assert_same(whole, parts)


@pytest.mark.skipif(NO_HALF_RELU is not None, reason=str(NO_HALF_RELU))
def test_init_hidden_goes_on_between_calls(in_parts):
    net = snn.MultiStep(nn.ReLU(), snn.Leaky(beta=0.9, init_hidden=True)).half()

    def function():
        twin = copy.deepcopy(net)
        x = torch.randn(9, 2, 3, generator=torch.Generator().manual_seed(2)).half()
        return [torch.cat([twin(x)[0], twin(x)[0]])], twin[1].mem

    whole, parts, lengths = in_parts(function, 2 * 3 * 2, 2)
    assert lengths == [2, 2, 2, 2, 1] * 2
    assert torch.equal(whole[0][0], parts[0][0])
    assert torch.equal(whole[1], parts[1])
    assert not torch.equal(whole[0][0][:9], whole[0][0][9:])


def test_layouts_pass_through(in_parts):
    net = snn.MultiStep(nn.Conv2d(2, 4, 3, padding=1), snn.Leaky(beta=torch.rand(4, 1, 1))).double()
    net = net.to(memory_format=torch.channels_last)
    x = torch.randn(6 * 3, 2, 5, 5, dtype=torch.float64).to(memory_format=torch.channels_last).unflatten(0, (6, 3))
    whole, parts, lengths = in_parts(trained(net, x), 3 * 16 * 25 * 8, 2)  # 16 channels
    assert lengths == [2, 2, 2]
    assert whole[0][0][0].is_contiguous(memory_format=torch.channels_last)
    assert_same(whole, parts, exact=False)


def test_shared_neurons_and_networks_of_neurons_run_at_once(in_parts):
    shared = snn.Leaky(beta=0.9, init_hidden=True)
    for modules in ((shared, nn.Linear(3, 3), shared), (snn.Leaky(beta=0.9), snn.Leaky(beta=0.8))):
        net = snn.MultiStep(*modules)
        x = torch.randn(6, 2, 3)
        _, _, lengths = in_parts(lambda net=net, x=x: net(x), 2 * 3 * 4, 2)
        assert lengths == [6]


def test_a_subclass_with_its_own_sequence_is_given_all_steps(in_parts):
    class Doubled(snn.Leaky):
        def sequence(self, x, mem=None, *, num_steps=None):
            assert x.shape[0] == 6
            spk, mems = super().sequence(x, mem, num_steps=num_steps)
            return 2 * spk, mems

    net = snn.MultiStep(nn.Linear(3, 3), Doubled(beta=0.9), nn.Linear(3, 3), snn.Leaky(beta=0.9)).double()
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    whole, parts, lengths = in_parts(trained(net, x), 2 * 3 * 8, 2)
    assert lengths == [2, 2, 2] * 2
    assert_same(whole, parts, exact=False)


def test_the_same_call_is_always_cut_in_the_same_way(in_parts):
    """The first call, too. The length depends on the largest activation, not on the input."""
    net = snn.MultiStep(nn.Linear(2, 50), nn.Linear(50, 2), snn.Leaky(beta=0.9))
    x = torch.randn(10, 3, 2)
    _, _, lengths = in_parts(lambda: copy.deepcopy(net)(x), 3 * 50 * 4, 4)
    assert lengths == [4, 3, 3]
    _, _, lengths = in_parts(lambda: net(x) and net(x), 3 * 50 * 4, 4)
    assert lengths == [4, 3, 3] * 2
    _, _, lengths = in_parts(lambda: net(x[:, :1]), 3 * 50 * 4, 4)
    assert lengths == [10] or max(lengths) > 4


NETWORKS = {
    "multistep": lambda: snn.MultiStep(nn.Conv2d(2, 4, 3), nn.ReLU()),
    "sparse convolution": lambda: snn.SparseConv2d(2, 4, 3, input_size=(9, 8), path="dense"),
}


@pytest.mark.skipif(not hasattr(torch, "func"), reason="torch.func is PyTorch 2.0's")
@pytest.mark.parametrize("name", NETWORKS)
def test_transforms_of_large_inputs(name, monkeypatch):
    """If PyTorch's own operators are transformed, all steps run at once."""
    monkeypatch.setattr(multistep, "CHUNK_BYTES", 1000)
    net, x = NETWORKS[name](), torch.rand(5, 2, 2, 9, 8)
    parameters = {key: value.detach() for key, value in net.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(net, parameters, (x,)).square().sum()

    net(x).square().sum().backward()
    for key, gradient in torch.func.grad(loss)(parameters).items():
        torch.testing.assert_close(gradient, net.get_parameter(key).grad, rtol=1e-4, atol=1e-3)
    tangent = torch.func.jvp(loss, (parameters,), (parameters,))[1]
    expected = sum((value * net.get_parameter(key).grad).sum() for key, value in parameters.items())
    torch.testing.assert_close(tangent, expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(torch.vmap(net)(x[None])[0], net(x), rtol=1e-4, atol=1e-5)
