"""Tools that read every attribute of a module: before, between and after calls, and without data."""

import inspect

import pytest
import snntorch
import torch
from snntorch.functional.probe import AttributeMonitor
from torch import nn

import snnipu as snn

MODULES = {
    "Leaky": lambda: snn.Leaky(beta=0.9, learn_beta=True),
    "Leaky, per neuron": lambda: snn.Leaky(beta=torch.rand(6), threshold=torch.rand(6)),
    "Leaky, init_hidden": lambda: snn.Leaky(beta=0.9, init_hidden=True),
    "MultiStep": lambda: snn.MultiStep(nn.Linear(6, 4), snn.Leaky(beta=0.9)),
    "SparseLinear": lambda: snn.SparseLinear(6, 4),
    "SparseLeaky": lambda: snn.SparseLeaky(6, 4, beta=0.9, max_spikes=3),
    "SparseLeaky, per neuron": lambda: snn.SparseLeaky(6, 4, beta=torch.rand(4), learn_beta=True),
    "SparseLeaky, recurrent": lambda: snn.SparseLeaky(6, 4, beta=0.9, recurrent=True),
    "SparseSynaptic": lambda: snn.SparseSynaptic(6, 4, alpha=0.8, beta=0.9, max_spikes=3),
    "recurrent SparseSynaptic": lambda: snn.SparseSynaptic(6, 4, alpha=0.8, beta=0.9, recurrent=True),
    "SparseNetwork": lambda: snn.SparseNetwork([6, 5, 4], beta=0.9),
}
X = (torch.arange(3 * 2 * 6).reshape(3, 2, 6) % 4 == 0).float()


@pytest.mark.parametrize("name", MODULES)
def test_members_and_text(name):
    module = MODULES[name]()
    inspect.getmembers(module)
    assert repr(module)
    module(X)
    assert dict(inspect.getmembers(module)).keys() >= {"forward", "training"}
    assert repr(module)
    moved = module.to("meta")
    inspect.getmembers(moved)
    assert type(module).__name__ in repr(moved)
    other = MODULES[name]().to("meta")
    other(X.to("meta"))
    inspect.getmembers(other)
    assert repr(other)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("Sparse")])
def test_traces_of_event_driven_layers(name):
    """Trace before and after a call. test_export.py traces the neurons."""

    class Dense(nn.Module):
        def forward(self, x):
            out = self.inner(x)
            return out.to_dense() if isinstance(out, snn.SparseSpikes) else out

    net = Dense()
    net.inner = MODULES[name]()
    for _ in range(2):
        with torch.no_grad():
            traced = torch.jit.trace(net, (X,), check_trace=False)
            assert torch.equal(traced(X), net(X))


def test_snntorchs_probe_finds_the_states():
    recorded = []
    for module in (snn, snntorch):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 4), module.Synaptic(alpha=0.7, beta=0.8, init_hidden=True))
        probes = [AttributeMonitor(name, False, net, instance=snntorch.SpikingNeuron) for name in ("mem", "syn")]
        for _ in range(3):
            net(torch.ones(1, 5))
        assert [probe["1"] for probe in probes] == [probe.records for probe in probes]
        recorded.append([record for probe in probes for record in probe.records])
    assert len(recorded[0]) == 6
    assert all(torch.equal(actual, desired) for actual, desired in zip(*recorded))


def test_repr_tells_parameters_where_there_is_data():
    layer = snn.SparseLeaky(6, 4, beta=0.5)
    assert "beta=0.5" in repr(layer)
    assert "beta=[1]" in repr(layer.to("meta"))
