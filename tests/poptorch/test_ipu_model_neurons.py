"""snnTorch's neurons on the IPU model in a user's training loop: one operator per layer, the host's results."""

import warnings

import pytest
import torch
from support import loops
from support.ipu_training import check_training, classified, on_model, operators
from support.operators import needs_host_runtime, needs_library
from torch import nn

import snnipu as snn
from snnipu import poptorch

pytestmark = [needs_host_runtime, needs_library]
STEPS, BATCH = 7, 4

# Neurons of support.loops, and more arguments.
LAYERS = {
    "Synaptic, learnt": {},
    "Synaptic": {"reset_delay": False},
    "Alpha": {"learn_threshold": True},
    "Lapicque": {"learn_threshold": True},
    "RLeaky, one to one": {"learn_recurrent": True},
    "RSynaptic, one to one": {},
}


class Net(nn.Module):
    def __init__(self, name, how):
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        surrogate = snn.surrogate.fast_sigmoid(slope=10)
        self.fc1, self.layer = nn.Linear(8, 12), loops.neuron_of(name, 12, spike_grad=surrogate, **LAYERS[name])
        self.fc2, self.lif = nn.Linear(12, 3), snn.Leaky(beta=0.8, threshold=0.5)
        self.multistep = snn.MultiStep(self.fc1, self.layer, self.fc2, self.lif) if how == "multistep" else None

    def forward(self, x, labels=None):
        if self.how == "multistep":
            spk, mem = self.multistep(x, num_steps=STEPS)
        elif self.how == "sequence":
            hidden = self.layer.sequence(self.fc1(x), num_steps=STEPS)
            spk, mem = self.lif.sequence(self.fc2(hidden[0] + 0.1 * hidden[-1]))
        else:
            states, mem2, rows = [], None, []
            for _ in range(STEPS):
                spk1, *states = self.layer(self.fc1(x), *states)
                states = [spk1, *states] if type(self.layer).__name__[0] == "R" else states
                spk2, mem2 = self.lif(self.fc2(spk1), mem2)
                rows.append((spk2, mem2))
            spk, mem = (torch.stack(steps) for steps in zip(*rows))
        return classified(spk.sum(0) + 0.1 * mem.sum(0), labels)


def check(ipu_target, name, how, target="mk2:4"):
    """Check that training equals the host's; return the operators that ran."""
    ipu_target(target)
    torch.manual_seed(1)
    batches = [(6 * torch.rand(BATCH, 8), torch.randint(3, (BATCH,)))] * 3
    close = {"rtol": 1e-5, "atol": 1e-5}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training = check_training(lambda: Net(name, how), batches, close=close, outputs_close=close, lr=0.05)
    return operators(training.model)


@pytest.mark.parametrize("how", ["sequence", "multistep", "steps"])
@pytest.mark.parametrize("name", LAYERS)
def test_training(ipu_target, name, how):
    ran = check(ipu_target, name, how)
    assert {"NeuronSequence", "NeuronSequence (gradient)"} <= set(ran)
    assert "SurrogateSpike" not in ran


@pytest.mark.parametrize("target", ["mk2:1", "mk2", "mk2:3:2"])
def test_targets(ipu_target, target):
    check(ipu_target, "Synaptic, learnt", "sequence", target)


def model_of(net, ipu_target):
    ipu_target("mk2:4")
    return poptorch.inferenceModel(net, on_model())


def test_delta_leaky(ipu_target):
    """A step returns the states as a pair."""
    net = snn.MultiStep(nn.Linear(8, 12), snn.DeltaLeaky(beta=0.9, delta_threshold=0.1))
    torch.manual_seed(0)
    x = torch.randn(STEPS, BATCH, 8)
    model = model_of(net, ipu_target)
    (spk, states), (expected_spk, expected_states) = model(x), net(x)
    for got, expected in zip((spk, *states), (expected_spk, *expected_states)):
        assert torch.equal(got, expected.detach())
    assert operators(model) == ["NeuronSequence"]


class Sequence(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, *states):
        return self.net.sequence(x, *states)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_states_go_in_and_out(ipu_target, dtype):
    """The second call starts from the final states of the first."""
    net = snn.RSynaptic(alpha=0.7, beta=0.9, V=0.3, all_to_all=False)
    torch.manual_seed(0)
    x = torch.randn(2, STEPS, BATCH, 5).to(dtype)
    model, states, expected_states = model_of(Sequence(net), ipu_target), [], []
    for chunk in x:
        outputs = model(chunk, *states) if states else model_of(Sequence(net), ipu_target)(chunk)
        expected = net.sequence(chunk, *expected_states)
        for got, value in zip(outputs, expected):
            assert got.dtype == dtype
            assert torch.equal(got, value)
        states, expected_states = [out[-1] for out in outputs], [out[-1] for out in expected]


def test_unsupported_recurrence_runs_step_by_step(ipu_target):
    """With all-to-all recurrence snnTorch's code runs, with an operator for the spikes."""
    net = snn.RLeaky(beta=0.9, linear_features=5, spike_grad=snn.surrogate.atan())
    torch.manual_seed(0)
    model = model_of(snn.MultiStep(nn.Linear(8, 5), net), ipu_target)
    x = torch.randn(STEPS, BATCH, 8)
    assert torch.equal(model(x)[0], snn.MultiStep(model._model[0], net)(x)[0].detach())
    assert set(operators(model)) == {"SurrogateSpike"}
