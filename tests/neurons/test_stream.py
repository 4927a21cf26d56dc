"""Single steps of ``MultiStep``: by a neuron's prepared step, with the results of a sequence."""

import pytest
import torch
from support.loops import kinds, neuron_of, with_gradients
from support.operators import needs_host_runtime
from torch import nn

import snnipu as snn
from snnipu.neurons.fused import FusedNeuron

pytestmark = needs_host_runtime

NEURONS = [name for name in kinds(40) if name != "DeltaLeaky"]


def parts(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def reset_network(neuron):
    neuron.reset_mem()
    return snn.MultiStep(neuron)


@pytest.mark.parametrize("name", NEURONS)
@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_as_they_come_are_the_sequence(name, output, dtype):
    neuron = neuron_of(name, 40, init_hidden=True, output=output).to(dtype)
    x = torch.randn(12, 3, 40).mul(2).to(dtype)

    def as_they_come(neuron, x):
        net = reset_network(neuron)
        rows = [parts(net(step[None])) for step in x]
        return [torch.cat(same) for same in zip(*rows)]

    expected, whole = with_gradients(lambda neuron, x: parts(reset_network(neuron)(x)), neuron, x)
    actual, gradients = with_gradients(as_they_come, neuron, x)
    assert len(actual) == len(expected)
    for value, desired in zip(actual, expected):
        assert value.dtype == desired.dtype == dtype
        if name.startswith("R"):  # products of one step and of several steps round differently
            torch.testing.assert_close(value, desired)
        else:
            assert torch.equal(value, desired)
    assert expected[0].any()
    torch.testing.assert_close(gradients[0], whole[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NEURONS)
def test_a_step_is_no_sequence(name, monkeypatch):
    """The first step, too."""
    neuron = neuron_of(name, 40, init_hidden=True)
    net = reset_network(neuron)
    monkeypatch.setattr(FusedNeuron, "_sequence", lambda *_, **__: pytest.fail("a sequence"))
    with torch.no_grad():
        for _ in range(3):
            assert parts(net(torch.rand(1, 2, 40)))[0].shape == (1, 2, 40)


@pytest.mark.parametrize("name", NEURONS)
@pytest.mark.parametrize("output", [False, True])
@torch.no_grad()
def test_a_result_that_is_written_to_is_no_state(name, output):
    neuron = neuron_of(name, 40, init_hidden=True, output=output)
    x = torch.randn(4, 1, 2, 40) * 3
    net = reset_network(neuron)
    expected = [[part.clone() for part in parts(net(step))] for step in x]
    net = reset_network(neuron)
    if hasattr(neuron, "spk"):
        neuron.spk = torch.zeros_like(neuron.spk)
    for step, row in zip(x, expected):
        for actual, part in zip(parts(net(step)), row):
            assert torch.equal(actual, part)
            actual.fill_(7)


def test_another_batch_begins_anew():
    net = snn.MultiStep(nn.Linear(8, 40), snn.Leaky(0.9, init_hidden=True))
    with torch.no_grad():
        net(torch.ones(1, 2, 8))
        small = net(torch.ones(1, 3, 8))
        other = snn.MultiStep(net[0], snn.Leaky(0.9, init_hidden=True))(torch.ones(1, 3, 8))
    assert torch.equal(small[1], other[1])


def test_no_neurons_and_wrong_arguments_are_refused_as_sequences():
    net = snn.MultiStep(snn.Leaky(0.9, init_hidden=True))
    assert net(torch.zeros(1, 0, 4))[0].shape == (1, 0, 4)
    with pytest.raises(TypeError, match=r"x must be float32, .*, got torch\.int64"):
        net(torch.zeros(1, 2, 4, dtype=torch.int64))
