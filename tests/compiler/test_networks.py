"""Networks of tutorials and applications: compiled loops against the same loops in Python."""

import copy
import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import snntorch
import torch
from oracle import function_of
from support.loops import compared, network, rolled
from support.tables import each_row
from support.versions import needs_backend, needs_gloo
from torch import nn
from torch.testing import assert_close

import snnipu as snn
from benchmarks import programs
from benchmarks.case import Settings
from snnipu import compiler
from snnipu.compiler import backend
from snnipu.neurons import multistep
from snnipu.ops import step_operators

pytestmark = [needs_backend, pytest.mark.usefixtures("found")]
SETTINGS = Settings(steps=6, batch_size=2, neurons=12)


class FullyConnected(nn.Module):
    """The network of snnTorch's tutorial 5."""

    def __init__(self, steps=4, **keywords):
        super().__init__()
        self.steps = steps
        self.fc1 = nn.Linear(12, 9)
        self.lif1 = snn.Leaky(beta=0.9, **keywords)
        self.fc2 = nn.Linear(9, 5)
        self.lif2 = snn.Leaky(beta=0.8, **keywords)

    def forward(self, x):
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        spk2_rec, mem2_rec = [], []
        for _ in range(self.steps):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spk2_rec.append(spk2)
            mem2_rec.append(mem2)
        return torch.stack(spk2_rec, dim=0), torch.stack(mem2_rec, dim=0)


class Recorded(nn.Module):
    """A network of the benchmark. The loop over time is in the program's forward pass or in a function."""

    def __init__(self, kind):
        super().__init__()
        self.program = programs.make(kind, snn, SETTINGS)
        del self.program.snn  # copies hold no modules of Python

    def forward(self, x):
        return self.program.record(x)


@pytest.mark.slow
@pytest.mark.parametrize("part_bytes", [multistep.CHUNK_BYTES, 1])
@pytest.mark.parametrize("name", [*programs.NETWORKS, "autoencoder in evaluation"])
def test_training_steps_are_those_of_the_loop(name, part_bytes, monkeypatch):
    monkeypatch.setattr(multistep, "CHUNK_BYTES", part_bytes)
    kind = programs.NETWORKS[name.partition(" ")[0]]
    net, x = Recorded(kind).train("evaluation" not in name), kind.data(SETTINGS, torch.Generator().manual_seed(1)) * 2
    # utils.reset leaves out neurons that were copied, so it has no effect in both networks.
    report = compared(copy.deepcopy(net), x, x, x, rtol=1e-4, atol=1e-4)
    neurons = sum(isinstance(module, snntorch.SpikingNeuron) for module in net.modules())
    assert [neuron.rolled for neuron in report.neurons] == [True] * neurons or name == "deep", report


def _autocast(net, x):
    with torch.autocast("cpu", torch.bfloat16):
        return net(x)


def _modes(net, x):
    with torch.no_grad():
        scale = x.abs().mean()
    return [one * scale for one in _autocast(net, x)]


@pytest.mark.slow
@pytest.mark.parametrize("call", [_autocast, _modes])
def test_precisions_and_modes(call):
    compared(FullyConnected(learn_beta=True), *[3 * torch.rand(3, 12)] * 3, call=call, rtol=0.02, atol=0.02)


def _twice(module, args, out):
    return tuple(2 * one for one in out) if isinstance(out, tuple) else 2 * out


def _twice_each(module, into, out):
    return tuple(None if one is None else 2 * one for one in into)


@pytest.mark.slow
@each_row("""
net.lif1.register_forward_hook(_twice)
net.fc1.register_forward_hook(_twice)
net.fc1.register_full_backward_hook(_twice_each)
net.lif2.inhibition = True
net.lif1.reset_mechanism = "zero"; net.lif2.spike_grad = snn.surrogate.sigmoid(); net.lif2.threshold.fill_(0.5)
net.lif1.spike_grad = snn.surrogate.atan(alpha=5.0)
net.lif1.fire = lambda mem: (mem > 0.1).float()
""")
def test_changes_after_compilation_are_seen(row):
    net, x = FullyConnected(), torch.rand(3, 12) * 3
    compiled = snn.compile(net)
    compiled(x), compiled(x)
    exec(row, globals(), {"net": net})
    for _ in range(2):
        outs = [run(x) for run in (compiled, net)]
        for a, b in zip(*outs):
            assert_close(a, b)
        if "fire" not in row:
            grads = [torch.autograd.grad(out[1].sum() + out[0].sum(), list(net.parameters())) for out in outs]
            for a, b in zip(*grads):
                assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_hook_is_called_where_another_thread_compiles():
    """Settings of TorchDynamo hold per thread, so a hook has to be called if another thread compiles."""
    net, x = FullyConnected(), torch.rand(3, 12) * 3
    compiled = snn.compile(net)
    with ThreadPoolExecutor(1) as threads:
        before = [threads.submit(compiled, x).result() for _ in range(2)][1]
        net.lif1.register_forward_hook(_twice)
        after = threads.submit(compiled, x).result()
    for a, b in zip(after, net(x)):
        assert_close(a, b)
    assert not torch.equal(after[1], before[1])


# Code of a step with hidden states, other resets and changed states.
STEPS = {
    "utils.reset(self) if t == 0 else None\nspk = self.hidden(self.map(x[t]))\nmem = spk": [True],
    "self.lif.reset_mechanism = 'zero' if t % 2 else 'subtract'\nspk, mem = self.lif(x[t], mem)": None,
    "spk, mem = self.lif(x[t], mem)\nmem = mem * 0.5 if t == 2 else mem": None,
    "spk, mem = self.lif(self.drop(self.map(x[t])), mem)\nspk, mem2 = self.lif2(self.map(self.drop(spk)), mem2)": [
        True,
        True,
    ],
    "spk, mem = self.lif(self.map(x[t]) + self.back(2 * spk), mem)\nspk2, mem2 = self.lif2(spk, mem2)": [False, True],
}


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_steps(step):
    init = (
        "self.hidden, self.lif2 = snn.Leaky(0.9, init_hidden=True), snn.Leaky(0.8)\n"
        "self.back, self.drop = nn.Linear(6, 6), nn.Dropout(0.4)"
    )
    start = "mem2, spk = self.lif2.reset_mem(), x[0] * 0\nself.hidden.reset_mem()"
    report = compared(copy.deepcopy(network(step, init, start)), 3 * torch.rand(6, 4, 6))
    assert STEPS[step] in (None, [one.rolled for one in report.neurons]), report


@pytest.mark.slow
def test_results_share_no_memory():
    net = network(
        "spk, mem = self.lif(x[t], mem)\nspikes.append(spk)",
        start="spikes = []",
        result=("torch.stack(spikes), torch.stack(spikes, dim=1), spikes[0], mem, self.lif.mem"),
    )
    compiled, x = snn.compile(net), torch.rand(5, 3, 4) * 3
    for _ in range(2):
        with torch.no_grad():
            out = compiled(x)
        others = [part.clone() for part in out]
        for place, part in enumerate(out[:3]):
            part.fill_(7.0)
            assert all(map(torch.equal, out[place + 1 :], others[place + 1 :]))


def test_errors_and_an_old_pytorch(monkeypatch):
    with pytest.raises(TypeError, match="function must be a module or a function, got int"):
        snn.compile(3)
    with pytest.raises(TypeError, match="function must be"):
        compiler.explain(None)
    monkeypatch.setattr(step_operators, "enabled", False)
    monkeypatch.setattr(backend, "OLDEST", (99, 0))
    with pytest.raises(RuntimeError, match=r"needs PyTorch 99.0 or later"):
        snn.compile(FullyConnected())


def test_another_network_of_the_class_has_its_own_reason():
    net, x = network("spk, mem = self.lif(self.map(x[t]), mem)", result="mem"), torch.rand(5, 3, 6)
    other = copy.deepcopy(net)
    net.map.forward = lambda x: x if x.sum() > 0 else -x
    runs = [compiler.explain(one, x).loops[0].runs_as for one in (net, other)]
    assert runs[0] != "compiled" == runs[1]


def test_reset_reaches_the_neurons_of_a_compiled_network():
    net = nn.Sequential(snn.Leaky(0.9, init_hidden=True))
    compiled = snn.compile(net)
    compiled(torch.ones(3, 2))
    snntorch.utils.reset(compiled)
    assert not net[0].mem.any()


def test_a_compiled_network_is_saved_and_copied():
    net, x = FullyConnected(), torch.rand(3, 12)
    compiled = snn.compile(net)
    compiled(x), compiled(x)[0].sum().backward()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(net)
    other.load_state_dict(torch.load(file))
    assert_close(other(x)[1], compiled(x)[1])


_RANK = """
import sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
import snnipu as snn

rank, place = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(6, 5), snn.Leaky(beta=0.9, learn_beta=True)
        self.fc2, self.lif2 = nn.Linear(5, 3), snn.Leaky(beta=0.8)

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        record = []
        for _ in range(4):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            _, mem2 = self.lif2(self.fc2(spk1), mem2)
            record.append(mem2)
        return torch.stack(record)


torch.manual_seed(0)
net = Net()
x = torch.rand(8, 6) * 3
expected = torch.autograd.grad(net(x).mean(), list(net.parameters()))
for wrapped in (snn.compile(DistributedDataParallel(net)), DistributedDataParallel(snn.compile(net))):
    for _ in range(2):
        net.zero_grad()
        wrapped(x[rank::2]).mean().backward()
        for parameter, gradient in zip(net.parameters(), expected):
            torch.testing.assert_close(parameter.grad, gradient)
del wrapped  # before its group: see the fixture process_group
distributed.destroy_process_group()
print("done")
"""


@pytest.mark.slow
@needs_gloo
def test_gradients_of_two_processes_are_reduced(tmp_path):
    arguments = [sys.executable, "-c", _RANK]
    ranks = [
        subprocess.Popen(
            [*arguments, str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(2)
    ]
    output = [rank.communicate(timeout=300)[0].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(output)


@pytest.mark.slow
def test_a_loop_within_ddp_is_compiled(process_group):
    wrapped = nn.parallel.DistributedDataParallel(FullyConnected())
    x = torch.rand(3, 12) * 3
    report = compiler.explain(wrapped, x)
    report = compiler.explain(wrapped, x)
    assert [neuron.rolled for neuron in report.neurons] == [True, True], report


STARTS = {
    "anew": lambda neuron, spk: neuron.init_leaky() if isinstance(neuron, snn.Leaky) else neuron.init_synaptic(),
    "from the layer before": lambda neuron, spk: (spk,) if isinstance(neuron, snn.Leaky) else (spk, spk),
}


class Blocks(nn.Module):
    """A layer whose steps start from new states or from another layer's output, between two stateful layers."""

    def __init__(self, block, start):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.first, self.block, self.last = snn.Leaky(beta=0.8, threshold=0.3), block, snn.Leaky(beta=0.9)
        self.start = STARTS[start]

    def forward(self, x):
        mem1, mem3, rows = self.first.init_leaky(), self.last.init_leaky(), []
        for t in range(x.shape[0]):
            spk, mem1 = self.first(self.fc1(x[t]), mem1)
            states = self.start(self.block, spk)
            spk, *states = self.block(self.fc2(spk), *(states if isinstance(states, tuple) else (states,)))
            spk, mem3 = self.last(self.fc3(spk), mem3)
            rows.append(mem3)
        return torch.stack(rows), spk


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
@each_row("""
snn.Leaky(beta=0.9, threshold=0.4)
snn.Leaky(beta=torch.full((8,), 0.7), learn_beta=True, threshold=0.4, learn_threshold=True)
snn.Leaky(beta=0.9, threshold=0.4, reset_mechanism="zero", reset_delay=False)
snn.Leaky(beta=0.8, threshold=0.4, learn_graded_spikes_factor=True)
snn.Synaptic(alpha=0.8, beta=torch.tensor([0.7]), learn_beta=True, threshold=0.4)
""")
def test_steps_that_do_not_go_on_from_the_one_before(row, start):
    report = compared(Blocks(eval(row), start), 3 * torch.rand(6, 4, 5), rtol=1e-4, atol=1e-4)
    assert [one.rolled for one in report.neurons if one.name != "block"] == [True, True], report


def masked(grad, x):
    grad = grad.clone()
    grad[x.abs() > 0.3] = 0
    return grad


def own_function(made, gradient):
    """Return an autograd function of two expressions: of the input ``x``, and of the gradient ``g`` and the input."""
    names = {"torch": torch, "masked": masked}
    return function_of(eval(f"lambda x: {made}", names), eval(f"lambda g, x: {gradient}", names)).apply


PASSES = {
    "straight through": ("torch.round(x)", "g"),
    "masked": ("x.clamp(-0.3, 0.3)", "g * (x.abs() <= 0.3).float()"),
    "set": ("x.clamp(-0.3, 0.3)", "masked(g, x)"),
    "where": ("torch.sign(x)", "torch.where(x.abs() < 1, g, 0.0)"),
    "a sum": ("x * 2", "-(g + g / 3)"),
    # The others are not linear in the gradient.
    "clipped": ("torch.round(x)", "g.clamp(-0.1, 0.1)"),
    "shifted": ("torch.round(x)", "g + 0.01"),
    "a difference": ("torch.round(x)", "g - x"),
    "a square": ("torch.round(x)", "g * g"),
    "divided by": ("torch.round(x)", "x / (1 + g)"),
    "not of it": ("torch.round(x)", "x * 0.1"),
    "where it is not": ("torch.sign(x)", "torch.where(x.abs() < 1, g, 1.0)"),
    "where it is": ("torch.sign(x)", "torch.where(g > 0, g, 0.0)"),
}


class Quantised(nn.Module):
    """A weight, or with ``current`` an input, that an autograd function quantises at every step."""

    def __init__(self, quantise, current):
        super().__init__()
        self.front, self.fc = nn.Linear(5, 5), nn.Linear(5, 8)
        self.lif, self.quantise, self.current = snn.Leaky(beta=0.9, threshold=0.3), quantise, current

    def forward(self, x):
        mem, rows = self.lif.init_leaky(), []
        for t in range(x.shape[0]):
            now = self.quantise(self.front(x[t]) * 3) if self.current else self.front(x[t])
            weight = self.fc.weight if self.current else self.quantise(self.fc.weight * 4) / 4
            _spk, mem = self.lif(nn.functional.linear(now, weight, self.fc.bias), mem)
            rows.append(mem)
        return torch.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("current", [False, True])
@pytest.mark.parametrize("name", PASSES)
def test_autograd_functions_of_weights_and_of_inputs(name, current):
    net = Quantised(own_function(*PASSES[name]), current)
    assert rolled(compared(net, torch.rand(6, 3, 5), rtol=1e-4, atol=1e-4)) == [(5, True)]


@pytest.mark.slow
def test_a_state_is_quantised_twice_by_one_kernel():
    """snnTorch rounds the membrane after the step, and again before it fires; the second time is no operation alone."""
    net = FullyConnected(state_quant=snn.functional.quant.state_quant(num_bits=2))
    x = torch.rand(3, 12)
    report = compared(net, x, x, x[:2], rtol=1e-5, atol=1e-6)
    assert rolled(report) == [(4, True), (4, True)]
    assert {operator.name for operator in report.operators} == {"linear", "clamp"}


def test_networks_of_other_layers_through_one_function(found):
    """The states of the second network are attributes of other modules."""

    def run(net, x):
        spikes = []
        for step in range(6):
            spikes.append(net(x[step]))
        return torch.stack(spikes)

    def network(*layers):
        return nn.Sequential(*layers, snn.Leaky(beta=0.9, threshold=0.1, init_hidden=True))

    leaky = snn.Leaky(beta=0.9, threshold=0.1, init_hidden=True)
    networks = [network(nn.Linear(5, 5), leaky, nn.Linear(5, 3)), network(nn.Linear(5, 3), nn.ReLU())]
    compiled = snn.compile(run)
    for net in (*networks, *networks):
        x = torch.rand(6, 2, 5)
        results = []
        for function in (run, compiled, compiled):
            snn.utils.reset(net)
            results.append(function(net, x))
        assert torch.equal(results[1], results[0])
        assert torch.equal(results[2], results[0])
    (loop,) = [loop for loop in found.loops if loop.label.endswith("(run)")]
    assert not loop.reason
    assert len(loop.plans) == 2
