"""Tools that read every attribute of a module: before, between and after calls, and without data."""

import inspect

import pytest
import snntorch
import torch
from snntorch.functional.probe import AttributeMonitor
from support.tables import rows
from torch import nn

import snnipu as snn

EVENT_DRIVEN = rows("""
snn.SparseLinear(6, 4)
snn.SparseLeaky(6, 4, beta=0.9, max_spikes=3)
snn.SparseLeaky(6, 4, beta=torch.rand(4), learn_beta=True)
snn.SparseLeaky(6, 4, beta=0.9, recurrent=True)
snn.SparseSynaptic(6, 4, alpha=0.8, beta=0.9, max_spikes=3)
snn.SparseNetwork([6, 5, 4], beta=0.9)
""")
OTHERS = rows("""
snn.Leaky(beta=0.9, learn_beta=True)
snn.Leaky(beta=torch.rand(6), threshold=torch.rand(6))
snn.Leaky(beta=0.9, init_hidden=True)
snn.MultiStep(nn.Linear(6, 4), snn.Leaky(beta=0.9))
snn.SparseSynaptic(6, 4, alpha=0.8, beta=0.9, recurrent=True)
""")
X = (torch.arange(3 * 2 * 6).reshape(3, 2, 6) % 4 == 0).float()


@pytest.mark.parametrize("row", [*EVENT_DRIVEN, *OTHERS])
def test_members_and_text(row):
    module = eval(row)
    inspect.getmembers(module)
    assert repr(module)
    module(X)
    assert dict(inspect.getmembers(module)).keys() >= {"forward", "training"}
    assert repr(module)
    moved = module.to("meta")
    inspect.getmembers(moved)
    assert type(module).__name__ in repr(moved)
    other = eval(row).to("meta")
    other(X.to("meta"))
    inspect.getmembers(other)
    assert repr(other)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("row", EVENT_DRIVEN)
def test_traces_of_event_driven_layers(row):
    """Trace before and after a call. test_export.py traces the neurons."""

    class Dense(nn.Module):
        def forward(self, x):
            out = self.inner(x)
            return out.to_dense() if isinstance(out, snn.SparseSpikes) else out

    net = Dense()
    net.inner = eval(row)
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
