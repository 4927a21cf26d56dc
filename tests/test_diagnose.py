"""``snnipu.diagnose``: its numbers are those of the network's own run, and it leaves the network unchanged."""

import copy
import random
import warnings

import numpy as np
import pytest
import snntorch
import torch
from torch import nn

import snnipu as snn
from snnipu import compiler

STEPS, BATCH = 8, 4
NEURONS = {
    "Leaky": {"beta": 0.9},
    "Lapicque": {"beta": 0.9},
    "Synaptic": {"alpha": 0.8, "beta": 0.9},
    "Alpha": {"alpha": 0.9, "beta": 0.8},
    "RLeaky": {"beta": 0.9, "linear_features": 20},
    "RSynaptic": {"alpha": 0.8, "beta": 0.9, "linear_features": 20},
}


class Loop(nn.Module):
    """A network as a loop over time, with dropout and batch norm. Its layers are not defined in the order of calls."""

    def __init__(self, library, hidden=False):
        super().__init__()
        options = {"beta": 0.9, "init_hidden": hidden}
        self.lif2, self.fc2 = library.Leaky(**options), nn.Linear(20, 5)
        self.lif1, self.fc1 = library.Leaky(**options), nn.Linear(30, 20)
        self.norm, self.drop, self.hidden = nn.BatchNorm1d(20), nn.Dropout(0.2), hidden

    def forward(self, x):
        if self.hidden:
            return torch.stack([self.lif2(self.fc2(self.lif1(self.norm(self.fc1(step))))) for step in x.unbind()])
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        spikes = []
        for step in x.unbind():
            spk1, mem1 = self.lif1(self.norm(self.fc1(self.drop(step))), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spikes.append(spk2)
        return torch.stack(spikes)


def two_layers(**options):
    return snn.MultiStep(nn.Linear(30, 20), snn.Leaky(beta=0.9), nn.Linear(20, 5), snn.Leaky(beta=0.9, **options))


@pytest.fixture
def x():
    torch.manual_seed(0)
    return (torch.rand(STEPS, BATCH, 30) < 0.3).float() * 3


either_library = pytest.mark.parametrize("library", [snn, snntorch], ids=["snnipu", "snntorch"])


def check(row, spk, mem=None):
    """Compare a row with a layer's spikes ``[T, B, ...]`` and membranes."""
    counts = (spk != 0).sum((0, 1))
    assert row.neurons == counts.numel()
    assert row.activity == pytest.approx(float((spk != 0).float().mean()))
    assert row.dead == int((counts == 0).sum())
    assert row.saturated == int((counts == spk.shape[0] * spk.shape[1]).sum())
    if mem is not None:
        assert row.membranes == pytest.approx((float(mem.min()), float(mem.max())), rel=1e-5)


@either_library
@pytest.mark.parametrize("kind", NEURONS)
def test_neurons_in_a_multistep(x, kind, library):
    net = snn.MultiStep(nn.Linear(30, 20), getattr(library, kind)(**NEURONS[kind]))
    with torch.no_grad():
        results = net(x)
    (row,) = snn.diagnose(net, x)
    assert (row.name, row.kind, row.threshold, row.grad_norm) == ("1", kind, 1.0, None)
    check(row, results[0], results[-1])


def test_gradients_are_those_of_a_backward_pass(x):
    net = two_layers(learn_beta=True)
    report = snn.diagnose(net, x[0], num_steps=STEPS, loss=lambda out: out[1].square().sum())
    assert all(parameter.grad is None for parameter in net.parameters())
    net(x[0], num_steps=STEPS)[1].square().sum().backward()
    for row, layers in zip(report, (net[:2], net[2:])):
        norm = torch.cat([parameter.grad.flatten() for parameter in layers.parameters()]).norm()
        assert row.grad_norm == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.parametrize("sizes", [[30, 20, 5], [(2, 8, 8), "4C3", "MP2", 5]], ids=["fc", "conv"])
def test_event_driven_layers(x, sizes):
    net = snn.SparseNetwork(sizes, beta=0.9, input_scale=3.0, grad_threshold=0.5)
    if len(sizes) > 3:
        x = (torch.rand(STEPS, BATCH, 2, 8, 8) < 0.2).float()
    every = [spikes.to_dense().detach() for spikes in net(x, all_layers=True)]
    activity = net.activity
    report = snn.diagnose(net, x, loss=lambda out: out.spike_count().square().sum())
    assert [row.name for row in report] == ["layers.0", "layers.1"]
    for row, spikes in zip(report, every):
        check(row, spikes)
        assert row.grad_norm > 0
    assert report[0].membranes[1] == pytest.approx(float(net.layers[0].membranes(x).detach().max()), rel=1e-5)
    assert net.activity == activity


@either_library
@pytest.mark.parametrize("hidden", [False, True])
def test_a_loop_and_its_state_afterwards(x, library, hidden):
    net = Loop(library, hidden)
    net(x).sum().backward()  # the neurons now keep membranes within a graph
    state, mem = copy.deepcopy(net.state_dict()), net.lif1.mem.clone()
    gradient, random = net.fc1.weight.grad.clone(), torch.get_rng_state()
    report = snn.diagnose(net, x, loss=lambda out: out.sum())
    assert [row.name for row in report] == ["lif1", "lif2"]
    assert [row.neurons for row in report] == [20, 5]
    assert all(row.grad_norm > 0 for row in report)
    assert net.training
    assert "forward" not in vars(net.lif1)
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert torch.equal(net.lif1.mem, mem)
    assert torch.equal(net.fc1.weight.grad, gradient)
    assert torch.equal(torch.get_rng_state(), random)


class Noise(nn.Module):
    def forward(self, x):
        return x * (0.5 + random.random() + np.random.rand() + torch.rand(()))


def test_random_states_stay_and_hooks_run(x):
    net, calls = snn.MultiStep(nn.Linear(30, 20), Noise(), snn.Leaky(beta=0.9)), []
    net[1].register_forward_hook(lambda module, arguments, out: calls.append(module))

    def draws():
        return random.random(), np.random.rand(), float(torch.rand(()))

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = draws()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    snn.diagnose(net, x)
    assert draws() == expected
    assert len(calls) == STEPS
    assert net[1] not in calls


def test_a_sequence_is_seen_without_a_warning(x):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.lif = nn.Linear(30, 20), snn.Leaky(beta=0.9)

        def forward(self, x):
            return self.lif.sequence(self.fc(x))

    net = Whole()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (row,) = snn.diagnose(net, x, loss=lambda out: out[0].sum())
    check(row, *(result.detach() for result in net(x)))


@pytest.mark.skipif(compiler.backend.version() < compiler.backend.OLDEST, reason="this PyTorch is too old")
def test_a_compiled_network(x):
    net = Loop(snn).eval()
    compiled = snn.compile(net)
    for _ in range(2):
        spk = compiled(x)
        check(snn.diagnose(compiled, x)[1], spk)


def test_integrators_are_no_layers_of_neurons(x):
    if not hasattr(snntorch, "StateLeaky"):
        pytest.skip("snnTorch came with StateLeaky in version 1.0")
    net = snn.MultiStep(nn.Linear(30, 20), snn.Leaky(beta=0.9), snn.StateLeaky(beta=0.9, channels=20, output=False))
    assert [row.kind for row in snn.diagnose(net, x)] == ["Leaky"]


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"threshold": 1e9}, "20 of 20 neurons never spike: raise"),
        ({"threshold": -1e9}, "20 of 20 neurons always spike: lower"),
        ({"beta": float("nan")}, "NaN or infinite numbers"),
        ({"threshold": 0.5}, ""),
    ],
)
def test_hints(x, change, hint):
    net = snn.MultiStep(nn.Linear(30, 20), snn.Leaky(**{"beta": 0.9, **change}))
    torch.nn.init.constant_(net[0].weight, 0.01)
    (row,) = report = snn.diagnose(net, x)
    assert row.hint.startswith(hint)
    assert bool(row.hint) == bool(hint)
    head, line, *hints = str(report).splitlines()
    assert head.split()[:4] == ["layer", "kind", "neurons", "dead"]
    assert line.split()[:3] == ["1", "Leaky", "20"]
    assert hints == ([f"1: {row.hint}"] if hint else [])


def test_no_gradient_is_told(x):
    net = snn.MultiStep(nn.Linear(30, 20), snn.Leaky(beta=0.9, threshold=0.1))
    (row,) = snn.diagnose(net, x, loss=lambda out: 0 * out[1].sum())
    assert row.grad_norm == 0
    assert row.hint.startswith("no gradient arrives")


def test_the_figure_has_a_row_for_each_layer(x, tmp_path):
    pytest.importorskip("matplotlib")
    from snnipu import plotting

    figure = plotting.diagnosis(snn.diagnose(two_layers(), x))
    figure.savefig(tmp_path / "figure.png")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["1 (Leaky)", "3 (Leaky)"]


def test_errors_name_the_argument(x):
    with pytest.raises(TypeError, match=r"net must be a torch\.nn\.Module, got function"):
        snn.diagnose(lambda x: x, x)
    with pytest.raises(ValueError, match="net must call neurons"):
        snn.diagnose(nn.Linear(30, 2), x)
    with pytest.raises(RuntimeError, match="broken"):
        snn.diagnose(snn.MultiStep(snn.Leaky(beta=0.9), Broken()), x)
    assert not nn.modules.module._has_any_global_hook()


class Broken(nn.Module):
    def forward(self, x):
        raise RuntimeError("broken")
