"""Layers with delays in PopTorch's training loops: the IPU model trains the same weights as the host kernels."""

import pytest
import torch
from support.ipu_training import check_training, on_model
from support.operators import needs_host_runtime, needs_library
from torch import nn

import snnipu as snn
from snnipu import poptorch
from snnipu.backends import popart

pytestmark = [needs_host_runtime, needs_library]
LEAKY = {"beta": 0.9, "threshold": 0.5}


def dense(longest, **options):
    """Return a layer with delays, its neurons and a readout."""
    return [snn.DelayLinear(20, 16, longest, **options), snn.Leaky(**LEAKY), nn.Linear(16, 5)]


NETWORKS = {
    "linear": lambda: dense(5, bias=True),
    "gaussian": lambda: dense(5, kernel="gaussian"),
    # The longest delay exceeds the sequence; other delays are between steps.
    "axonal": lambda: dense(15, delay=3 * torch.rand(1, 20)),
    "whole steps": lambda: dense(3, delay=torch.randint(4, (16, 1)).float(), learn_delay=False),
    "events": lambda: [snn.SparseLeaky(20, 16, max_delay=5, **LEAKY), snn.SparseLinear(16, 5)],
    "recurrent": lambda: [snn.SparseLeaky(20, 16, max_delay=5, recurrent=True, **LEAKY), snn.SparseLinear(16, 5)],
    "slots": lambda: [
        snn.SparseNetwork([20, 16, 12], max_delay=4, max_spikes=8, grad_threshold=0.1, **LEAKY),
        snn.SparseLinear(12, 5),
    ],
}


NETWORKS["of spikes"] = NETWORKS["linear"]
# Networks whose layer with delays reads spikes in slots, and so calls the operator; the others call dense products.
IN_SLOTS = {"recurrent", "slots", "of spikes"}


class Model(nn.Module):
    def __init__(self, make):
        super().__init__()
        torch.manual_seed(0)
        self.in_slots = make == "of spikes"
        self.net = snn.MultiStep(*NETWORKS[make](), snn.Leaky(beta=0.7, threshold=0.2))
        with torch.no_grad():
            for name, parameter in self.net.named_parameters():
                parameter.mul_(2 if name.endswith("weight") else 1)

    def forward(self, x, labels):
        spk, mem = self.net(snn.SparseSpikes.from_dense(x, 12) if self.in_slots else x)
        return spk, nn.functional.cross_entropy(mem.mean(0), labels)


@pytest.mark.parametrize("make", NETWORKS)
def test_training_gives_the_weights_and_delays_of_the_kernels(make, monkeypatch, ipu_target):
    ipu_target("mk2:16")
    torch.manual_seed(1)
    x, labels = (torch.rand(3, 12, 4, 20) < 0.3).float(), torch.randint(5, (3, 4))
    called, call = [], popart.call
    monkeypatch.setattr(popart, "call", lambda name, *more: (called.append(name), call(name, *more))[1])
    check_training(lambda: Model(make), [*zip(x, labels)], close={"rtol": 1e-5, "atol": 1e-5}, lr=0.1)
    assert ("DelayLinear" in called) == (make in IN_SLOTS)


def test_a_compiled_graph_cannot_carry_delayed_inputs_between_calls():
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.delay = snn.DelayLinear(4, 3, 2, init_hidden=True)

        def forward(self, x):
            return self.delay(x)

    model = poptorch.inferenceModel(Step(), on_model())
    with pytest.raises(RuntimeError, match="DelayLinear with init_hidden=True cannot run on the IPU model"):
        model(torch.rand(5, 2, 4))
