"""Segments of time: the results of one call, with the memory of one segment."""

import pytest
import snntorch
import torch
from neurons.test_own import Adaptive
from support.loops import with_gradients
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn


def network(init_hidden=False):
    torch.manual_seed(0)
    return snn.MultiStep(
        nn.Linear(6, 20),
        snn.Leaky(beta=0.9, threshold=0.3, init_hidden=init_hidden, learn_beta=True),
        nn.Sequential(nn.Linear(20, 20), nn.ReLU()),
        snn.MultiStep(snn.Leaky(beta=0.8, threshold=0.2, reset_mechanism="zero", init_hidden=init_hidden)),
        nn.Linear(20, 4),
        snntorch.Synaptic(alpha=0.7, beta=0.8, threshold=0.1, init_hidden=init_hidden, output=True),
    ).double()


def inputs(steps=23):
    torch.manual_seed(1)
    return torch.rand(steps, 3, 6, dtype=torch.float64)


def in_one_call(net, x):
    return net(x)


def in_segments(steps, checkpoint):
    return lambda net, x: snn.run_segments(net, x, steps, checkpoint=checkpoint)


@pytest.mark.parametrize("init_hidden", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("steps", [1, 5, 40])
def test_a_call_in_segments_is_the_call(steps, checkpoint, init_hidden):
    """Neurons with hidden states continue in the second call from the end of the first."""
    whole, parts = network(init_hidden), network(init_hidden)
    for _ in range(2 if init_hidden else 1):
        for net in (whole, parts):
            for module in net.modules():
                if isinstance(module, snntorch.SpikingNeuron):
                    for state in {"mem", "syn"} & set(dir(module)):
                        setattr(module, state, getattr(module, state).detach())
        expected = with_gradients(in_one_call, whole, inputs())
        actual = with_gradients(in_segments(steps, checkpoint), parts, inputs())
        assert expected[0][0].any()
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)
    assert parts[1].init_hidden is init_hidden
    assert parts[3][0].output is False
    if init_hidden:
        torch.testing.assert_close(parts[1].mem, whole[1].mem)


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: snn.Synaptic(alpha=0.7, beta=0.8, threshold=0.3),
        lambda: snn.RLeaky(beta=0.9, threshold=0.3, V=0.2, all_to_all=False),
        lambda: snn.RLeaky(beta=0.9, threshold=0.3, linear_features=20),
        lambda: Adaptive(threshold=0.3),
    ],
    ids=["Synaptic", "RLeaky one-to-one", "RLeaky all-to-all", "own"],
)
def test_neurons_of_several_states(make, checkpoint):
    """Each call starts from zeros unless init_hidden is set, whatever ran before."""
    net = snn.MultiStep(nn.Linear(6, 20), make(), nn.Linear(20, 4), snn.Leaky(beta=0.8, threshold=0.2)).double()
    snn.run_segments(net, inputs(7), 3, checkpoint=False)
    expected = with_gradients(in_one_call, net, inputs())
    assert expected[0][0].any()
    torch.testing.assert_close(
        with_gradients(in_segments(5, checkpoint), net, inputs()), expected, rtol=1e-11, atol=1e-12
    )


def test_a_constant_input():
    net = network()
    x = inputs()[0]
    torch.testing.assert_close(snn.run_segments(net, x, 4, num_steps=10), net(x, num_steps=10), rtol=1e-12, atol=1e-13)


def test_truncated_gradients_are_those_of_detached_states():
    net = snn.MultiStep(nn.Linear(6, 4), snn.Leaky(beta=0.9, threshold=0.3)).double()
    x = inputs(12)
    spk, _ = snn.run_segments(net, x, 2, checkpoint=False, detach_every=4)
    spk.sum().backward()
    gradient = net[0].weight.grad.clone()
    net.zero_grad()
    state, total = None, 0
    for chunk in x.split(4):
        spk, mem = net[1].sequence(net[0](chunk), state)
        state, total = mem[-1].detach(), total + spk.sum()
    total.backward()
    torch.testing.assert_close(gradient, net[0].weight.grad, rtol=1e-12, atol=0)
    net.zero_grad()
    net(x)[0].sum().backward()
    assert not torch.allclose(gradient, net[0].weight.grad)


def test_ten_times_the_steps_need_the_memory_of_one_segment():
    """Count the bytes that autograd saves between the passes."""
    net = snn.MultiStep(nn.Linear(6, 200), snn.Leaky(beta=0.9), nn.Linear(200, 4), snn.Leaky(beta=0.9))

    def saved_bytes(run):
        held = {}

        def keep(tensor):
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = run()
        assert out[0].requires_grad
        return sum(held.values())

    x = torch.rand(2000, 8, 6)
    whole, short = saved_bytes(lambda: net(x)), saved_bytes(lambda: net(x[:200]))
    segments = saved_bytes(lambda: snn.run_segments(net, x, 200))
    assert segments < short < whole / 8


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.LSTM(6, 4), "LSTM"),
        (snn.SparseLinear(6, 4), "SparseLinear"),
        (nn.BatchNorm1d(6), "BatchNorm1d"),
        (type("Own", (nn.Module,), {"forward": lambda self, x: x})(), "Own"),
    ],
)
def test_modules_of_unknown_states_are_refused(module, name):
    with pytest.raises(TypeError, match=rf"module 0\.0 \({name}\) cannot run in segments of time"):
        snn.run_segments(snn.MultiStep(nn.Sequential(module)), inputs().float(), 5)
    module.stateless = True
    if name == "Own":
        snn.run_segments(snn.MultiStep(nn.Sequential(module)), inputs().float(), 5)


@each_row("""
run(0) | ValueError: steps must be at least 1
run(True) | TypeError: steps must be an int
run(4, detach_every=6) | ValueError: detach_every must be a multiple of steps=4
run(4, num_steps=0) | ValueError: num_steps must be at least 1
run(4, x=[1]) | TypeError: x must be a torch.Tensor
run(4, net=nn.Linear(6, 4)) | TypeError: network must be a MultiStep
""")
def test_bad_arguments(row):
    def run(steps, net=None, x=None, **options):
        snn.run_segments(net or network(), x or inputs(), steps, **options)

    assert_refused(row, globals(), run=run)
