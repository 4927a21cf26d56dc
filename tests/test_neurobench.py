"""NeuroBench's metrics of our networks equal the metrics of the same network as snnTorch's loop."""

import pytest
import snntorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import snnipu as snn

pytest.importorskip("neurobench", reason="NeuroBench is not installed (extra: bench)")

from neurobench.benchmarks import Benchmark
from neurobench.metrics.static import ConnectionSparsity, ParameterCount
from neurobench.metrics.workload import (
    ActivationSparsity,
    ClassificationAccuracy,
    MembraneUpdates,
    SynapticOperations,
)
from neurobench.models import SNNTorchModel
from neurobench.processors.postprocessors import ChooseMaxCount

from snnipu import neurobench

METRICS = [
    [ParameterCount, ConnectionSparsity],
    [ActivationSparsity, ClassificationAccuracy, MembraneUpdates, SynapticOperations],
]
SIZES = [20, 30, 5]


def weights():
    torch.manual_seed(0)
    return [torch.randn(after, before) * 0.4 for before, after in zip(SIZES, SIZES[1:])]


def data():
    generator = torch.Generator().manual_seed(1)
    x = (torch.rand(30, 12, 20, generator=generator) < 0.3).float()  # [sample, time, input]
    return DataLoader(TensorDataset(x, torch.randint(5, (30,), generator=generator)), batch_size=8)


class Loop(nn.Module):
    """The network in the style of snnTorch's users, in the order of NeuroBench's examples."""

    def __init__(self, source, delay=0, **keywords):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(20, 30, bias=False), source.Leaky(beta=0.9, **keywords)
        self.fc2, self.lif2 = nn.Linear(30, 5, bias=False), source.Leaky(beta=0.9, **keywords)
        self.delay = delay
        with torch.no_grad():
            for layer, weight in zip((self.fc1, self.fc2), weights()):
                layer.weight.copy_(weight)

    def forward(self, x):
        mem1 = mem2 = None
        spikes, before = [], torch.zeros(len(x), 30)
        for step in x.unbind(1):
            hidden, mem1 = self.start(self.lif1, self.fc1(step), mem1)
            out, mem2 = self.start(self.lif2, self.fc2(before if self.delay else hidden), mem2)
            before = hidden
            spikes.append(out)
        return torch.stack(spikes)

    @staticmethod
    def start(neuron, current, mem):
        return neuron(current, torch.zeros_like(current) if mem is None else mem)


def results(model):
    benchmark = Benchmark(model, data(), [], [ChooseMaxCount()], METRICS)
    first = benchmark.run(quiet=True)
    # Again: the first run must leave no state.
    assert benchmark.run(quiet=True) == first
    return first


def expected(**keywords):
    metrics = results(SNNTorchModel(Loop(snntorch, **keywords), custom_forward=True))
    assert metrics["SynapticOperations"]["Effective_ACs"] > 0
    assert 0 < metrics["ActivationSparsity"] < 1
    return metrics


def test_loop():
    assert results(SNNTorchModel(Loop(snn), custom_forward=True)) == expected()


@pytest.mark.parametrize("keywords", [{}, {"reset_mechanism": "zero"}, {"reset_delay": False}], ids=str)
def test_multistep(keywords):
    loop = Loop(snn, **keywords)
    net = snn.MultiStep(loop.fc1, loop.lif1, loop.fc2, loop.lif2)
    assert results(neurobench.Model(net)) == expected(**keywords)


@pytest.mark.parametrize("delay", [0, 1])
def test_sparse_network(delay):
    net = snn.SparseNetwork(SIZES, beta=0.9, delay=delay)
    with torch.no_grad():
        for layer, weight in zip(net.layers, weights()):
            layer.weight.copy_(weight)
    assert results(neurobench.Model(net)) == expected(delay=delay, reset_mechanism="zero")


def test_dropped_spikes_are_not_counted():
    net = snn.SparseNetwork(SIZES, beta=0.9, delay=0, max_spikes=[20, 2, 5])
    metrics = results(neurobench.Model(net))
    assert net.overflow[0] > 0
    assert (
        metrics["SynapticOperations"]["Effective_ACs"]
        < expected(reset_mechanism="zero")["SynapticOperations"]["Effective_ACs"]
    )


def test_another_network_is_refused():
    with pytest.raises(TypeError, match=r"net must be a snnipu.MultiStep or a snnipu.SparseNetwork, got Linear"):
        neurobench.Model(nn.Linear(2, 2))
