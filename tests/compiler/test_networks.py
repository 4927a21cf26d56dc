"""Networks as people write them: unmodified loops, compiled, against the same loop and against MultiStep."""

import copy
import io
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from snntorch import utils
from support.versions import needs_backend
from torch import nn

import snnipu as snn
from snnipu import compiler, surrogate
from snnipu._names import installed
from snnipu.compiler import backend
from snnipu.neurons import multistep
from snnipu.ops import leaves

pytestmark = needs_backend


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    """A graph that cannot be rolled is an error here."""
    torch.manual_seed(0)
    monkeypatch.setattr(backend, "strict", True)
    torch._dynamo.reset()


class Watched:
    """A compiled function, and the reports of its graphs."""

    def __init__(self, function, **keywords):
        backend.enable()
        self.reports = []

        def collect(module, inputs, **options):
            return backend.compile_graph(module, inputs, observer=self.reports.append, **options)

        self.function = torch.compile(function, backend=collect, **keywords)

    def __call__(self, *args):
        return self.function(*args)

    @property
    def neurons(self):
        return [neuron for report in self.reports for neuron in report.neurons]

    def count(self, text):
        return sum(report.code.count(text) for report in self.reports)


class FullyConnected(nn.Module):
    """snnTorch's tutorial 5."""

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


class Convolutional(nn.Sequential):
    """snnTorch's tutorials 6 and 7."""

    def __init__(self):
        hidden = {"beta": 0.5, "spike_grad": surrogate.fast_sigmoid(slope=25), "init_hidden": True}
        super().__init__(
            nn.Conv2d(1, 3, 3),
            nn.MaxPool2d(2),
            snn.Leaky(**hidden),
            nn.Flatten(),
            nn.Linear(27, 4),
            snn.Leaky(output=True, **hidden),
        )


def forward_pass(net, num_steps, data):
    mem_rec, spk_rec = [], []
    utils.reset(net)
    for step in range(num_steps):
        spk_out, mem_out = net(data[step] if data.dim() == 5 else data)
        spk_rec.append(spk_out)
        mem_rec.append(mem_out)
    return torch.stack(spk_rec), torch.stack(mem_rec)


class Zoo(nn.Module):
    """Several kinds of neurons, a skip connection, a population code."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(12, 8)
        self.synaptic = snn.Synaptic(alpha=0.8, beta=0.7)
        self.alpha = snn.Alpha(alpha=0.8, beta=0.7, threshold=0.3)
        self.rleaky = snn.RLeaky(beta=0.7, V=0.5, all_to_all=False, threshold=0.4)

    def forward(self, x):
        syn, mem = self.synaptic.reset_mem()
        exc, inh, mem2 = self.alpha.reset_mem()
        spk3, mem3 = self.rleaky.reset_mem()
        counts, membranes = torch.zeros(x.shape[1], 2), []
        for current in x.unbind():
            spk, syn, mem = self.synaptic(self.fc1(current), syn, mem)
            spk2, exc, inh, mem2 = self.alpha(self.fc2(spk) * 3, exc, inh, mem2)
            spk3, mem3 = self.rleaky(self.fc3(torch.cat([spk, spk2], dim=1)), spk3, mem3)
            counts = counts + spk3.view(-1, 2, 4).sum(2)
            membranes.append(mem3)
        return counts, torch.stack(membranes)


class Autoencoder(nn.Module):
    """A spiking autoencoder, and regression on its membranes."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.BatchNorm2d(3), snn.Leaky(0.9, init_hidden=True))
        self.decoder = nn.Sequential(nn.ConvTranspose2d(3, 1, 3, stride=2), nn.ReLU())
        self.out = snn.Leaky(beta=0.9, reset_mechanism="none", init_hidden=True, output=True)

    def forward(self, x):
        utils.reset(self.encoder)
        self.out.reset_mem()
        record = torch.zeros(3, *x.shape)
        loss = torch.zeros(())
        for step in range(3):
            _, mem = self.out(self.decoder(self.encoder(x)))
            record[step] = mem
            loss = loss + nn.functional.mse_loss(mem, x)
        return record, loss


def _train(function, net, calls, *inputs):
    """Results of several training steps: outputs, gradients, and the states that are left."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for _ in range(calls):
        out = function(*inputs)
        sum((part * torch.linspace(-1, 2, part.numel()).view(part.shape)).sum() for part in out).backward()
        found += [*(part.detach() for part in out), *(p.grad.clone() for p in net.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    found += [m.mem.detach().clone() for m in net.modules() if hasattr(m, "mem")]
    return found


CASES = {
    "tutorial 5": (FullyConnected, (3, 12), 2),
    "tutorial 6": (Convolutional, (2, 1, 8, 8), 2),
    "tutorial 7": (Convolutional, (3, 2, 1, 8, 8), 2),
    "zoo": (Zoo, (4, 3, 6), 3),
    "autoencoder in training": (Autoencoder, (2, 1, 7, 7), 2),
    "autoencoder in evaluation": (lambda: Autoencoder().eval(), (2, 1, 7, 7), 2),
}


def _pass(net):
    return (lambda x: forward_pass(net, 3, x)) if isinstance(net, Convolutional) else net


@pytest.mark.slow
@pytest.mark.parametrize("part_bytes", [multistep.PART_BYTES, 1])
@pytest.mark.parametrize("name", CASES)
def test_two_training_steps_are_those_of_the_loop(name, part_bytes, monkeypatch):
    monkeypatch.setattr(multistep, "PART_BYTES", part_bytes)
    make, shape, layers = CASES[name]
    torch.manual_seed(1)
    net, other, x = make(), make(), torch.rand(shape) * 2
    other.load_state_dict(net.state_dict())
    expected = _train(_pass(net), net, 2, x)
    watched = Watched(_pass(other), fullgraph=True)
    found = _train(watched, other, 2, x)
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(watched.reports) == 1
    assert [neuron.rolled for neuron in watched.neurons] == [True] * layers


def test_bit_by_bit_what_multistep_gives_without_recompiling():
    torch.manual_seed(0)
    net = FullyConnected(steps=10)
    watched = Watched(net, fullgraph=True)
    multi = snn.MultiStep(net.fc1, net.lif1, net.fc2, net.lif2)
    for batch in (3, 5, 4, 7):
        x = torch.rand(batch, 12) * 3
        for a, b in zip(watched(x), multi(x, num_steps=10)):
            assert torch.equal(a, b)
    with torch.no_grad():
        assert torch.equal(watched(x)[1], multi(x, num_steps=10)[1])
    assert len(watched.reports) <= 3  # static, any batch, without gradients
    assert watched.count("linear(") == 2 * len(watched.reports)


@pytest.mark.slow
@pytest.mark.parametrize("part_bytes", [2**20, 2 * 16 * 6 * 6 * 4 * 2])  # all steps; two of two samples, of 16 channels
@pytest.mark.parametrize("constant", [False, True])
def test_convolutions_bit_by_bit_what_multistep_gives(part_bytes, constant, monkeypatch):
    """Parts of time are MultiStep's, for another batch size too."""
    monkeypatch.setattr(multistep, "PART_BYTES", part_bytes)
    torch.manual_seed(0)
    net = Convolutional()
    watched = Watched(forward_pass, fullgraph=True)
    calls = []
    lif = leaves.lif_apply
    monkeypatch.setattr(leaves, "lif_apply", lambda *a, **k: (calls.append(a[0].shape[0]), lif(*a, **k))[1])
    for batch in (2, 3, 1):
        x = torch.rand(*(() if constant else (5,)), batch, 1, 8, 8) * 3
        calls.clear()
        found = watched(net, 5, x)
        gradients = torch.autograd.grad(found[1].sum(), list(net.parameters()))
        if not constant and batch == 2:
            assert calls[-2:] == [5, 5] if part_bytes == 2**20 else calls[-6:] == [2, 2, 2, 2, 1, 1]
        utils.reset(net)
        expected = snn.MultiStep(*net)(x, **({"num_steps": 5} if constant else {}))
        for a, b in zip(found, expected):
            assert torch.equal(a, b)
        for a, b in zip(gradients, torch.autograd.grad(expected[1].sum(), list(net.parameters()))):
            assert torch.equal(a, b)
    assert watched.count("in_parts(") == len(watched.reports)


def test_under_autocast_and_in_double_precision():
    torch.manual_seed(0)
    net = FullyConnected(learn_beta=True)
    x = torch.rand(3, 12) * 3
    watched = Watched(net)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = watched(x), net(x)
    for a, b in zip(found, expected):
        assert a.dtype == b.dtype == installed.spike_dtype(torch.bfloat16)
        assert torch.equal(a, b)
    # Where spikes and states are of 16 bits, snnTorch's operations round after each of them, and no kernel does.
    assert [neuron.rolled for neuron in watched.neurons] == ([] if installed.SPIKES_KEEP_DTYPE else [True, True])

    fc, lif = nn.Linear(12, 9).double(), snn.Leaky(beta=0.9)

    def double(x):
        mem, record = lif.reset_mem(), []
        for _ in range(4):
            spk, mem = lif(fc(x), mem)
            record.append(mem)
        return spk, torch.stack(record)

    watched = Watched(double)
    for a, b in zip(watched(x.double()), double(x.double())):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b)
    assert [neuron.rolled for neuron in watched.neurons] == [True]


def test_autocast_and_gradient_modes_inside_the_function():
    net = FullyConnected()

    def function(x):
        with torch.no_grad():
            scale = net.fc1(x).abs().mean()
        with torch.autocast("cpu", torch.bfloat16):
            _spk, mem = net(x)
        return mem.sum() * scale

    x = torch.rand(3, 12) * 3
    watched = Watched(function, fullgraph=True)
    expected = torch.autograd.grad(function(x), list(net.parameters()))
    for a, b in zip(torch.autograd.grad(watched(x), list(net.parameters())), expected):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)  # sums of bfloat16
    assert all(neuron.rolled for neuron in watched.neurons)


def test_a_hooked_neuron_is_called_step_by_step():
    net = FullyConnected()
    x = torch.rand(3, 12) * 3
    seen = []
    net.lif1.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    watched = Watched(net)
    for a, b in zip(watched(x), net(x)):
        torch.testing.assert_close(a, b)
    assert len(seen) == 8
    for a, b in zip(seen[:4], seen[4:]):
        assert torch.equal(a, b)
    assert [neuron.reason and neuron.reason.kind for neuron in watched.neurons] == ["hooks", None]


def _twice(module, args, out):
    return tuple(2 * one for one in out) if isinstance(out, tuple) else 2 * out


@pytest.mark.slow
@pytest.mark.parametrize("make", [snn.compile, Watched])
@pytest.mark.parametrize("part", ["fc1", "lif1"])
def test_a_hook_that_is_registered_after_compilation_is_called(make, part):
    net, x = FullyConnected(), torch.rand(3, 12) * 3
    compiled = make(net)
    before = compiled(x)
    hook = getattr(net, part).register_forward_hook(_twice)
    for a, b in zip(compiled(x), net(x)):
        torch.testing.assert_close(a, b)
    assert not torch.equal(compiled(x)[1], before[1])
    hook.remove()
    for a, b in zip(compiled(x), before):
        assert torch.equal(a, b)
    hook = getattr(net, part).register_full_backward_hook(lambda module, into, out: tuple(2 * one for one in into))
    gradients = [torch.autograd.grad(run(x.requires_grad_())[1].sum(), (x, net.fc1.weight)) for run in (compiled, net)]
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b)
    hook.remove()


def test_a_hook_is_called_where_another_thread_compiles():
    """What is set in one thread of TorchDynamo's settings does not hold in another."""
    net, x = FullyConnected(), torch.rand(3, 12) * 3
    compiled = snn.compile(net)

    def run() -> Any:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(compiled, x).result()

    before = run()
    net.lif1.register_forward_hook(_twice)
    after = run()
    for a, b in zip(after, net(x)):
        torch.testing.assert_close(a, b)
    assert not torch.equal(after[1], before[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [snn.Leaky, snn.Lapicque])
def test_inhibition_after_compilation_runs_as_it_is_written(kind):
    net, x = FullyConnected(), torch.rand(3, 12) * 3
    net.lif2 = kind(beta=0.8, threshold=-1.0)  # all would spike
    net.lif2.init_leaky = net.lif2.reset_mem
    compiled = snn.compile(net)
    before = compiled(x)
    net.lif2.inhibition = True
    for _ in range(2):
        for a, b in zip(compiled(x), net(x)):
            torch.testing.assert_close(a, b)
    assert not torch.equal(compiled(x)[0], before[0])


def test_a_copys_neurons_go_on_in_the_compiled_function():
    """``snntorch.utils.reset`` leaves out neurons that were copied."""
    torch.manual_seed(0)
    net = copy.deepcopy(Convolutional())
    other = copy.deepcopy(net)
    x = torch.rand(2, 1, 8, 8) * 3
    watched = Watched(forward_pass, fullgraph=True)
    for _ in range(3):
        for a, b in zip(watched(net, 3, x), forward_pass(other, 3, x)):
            torch.testing.assert_close(a, b)


def test_what_a_subclass_replaces_runs():
    class Halved(snn.Leaky):
        def fire(self, mem):
            return super().fire(mem) * 0.5

    class Net(FullyConnected):
        def __init__(self):
            super().__init__()
            self.lif1 = Halved(beta=0.9)

    net, x = Net(), torch.rand(3, 12) * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = net(x)
        watched = Watched(net)
        for a, b in zip(watched(x), expected):
            torch.testing.assert_close(a, b)
    assert [(neuron.name, neuron.rolled) for neuron in watched.neurons] == [("lif1", True), ("lif2", True)]


def test_settings_changed_between_calls_and_between_steps():
    net, x = FullyConnected(), torch.rand(3, 12) * 3
    watched = Watched(net)
    watched(x)
    net.lif1.reset_mechanism = "zero"
    net.lif2.spike_grad = surrogate.sigmoid()
    net.lif2.threshold.fill_(0.5)
    for a, b in zip(watched(x), net(x)):
        torch.testing.assert_close(a, b)
    gradients = [torch.autograd.grad(run(x)[0].sum(), net.fc1.weight)[0] for run in (watched, net)]
    torch.testing.assert_close(*gradients)

    lif = snn.Leaky(beta=0.5)

    def changing(x):
        mem, record = lif.reset_mem(), []
        for step, current in enumerate(x.unbind()):
            lif.reset_mechanism = "zero" if step % 2 else "subtract"
            _spk, mem = lif(current, mem)
            mem = mem * 0.5 if step == 2 else mem
            record.append(mem)
        return torch.stack(record)

    x = torch.rand(6, 3, 4) * 3
    assert torch.equal(Watched(changing)(x), changing(x))


@pytest.mark.slow
@pytest.mark.parametrize("then", [None, "aot_eager"])
def test_a_surrogates_slope_may_change_in_each_call(then):
    net, x = FullyConnected(), torch.rand(3, 12) * 3
    watched = Watched(net, options={"then": then})
    for alpha in (2.0, 3.0, 4.5, 7.0):
        net.lif1.spike_grad = surrogate.atan(alpha=alpha)
        gradients = [torch.autograd.grad(run(x)[0].sum(), net.fc1.weight)[0] for run in (watched, net)]
        torch.testing.assert_close(*gradients)
    assert [neuron.rolled for neuron in watched.neurons] == [True, True] * len(watched.reports)
    # The second slope is an input of the graph, as all that follow; another compiler takes it for a number.
    assert then is not None or len(watched.reports) == 2


def test_one_function_for_networks_with_other_slopes():
    nets, x = [Convolutional(), Convolutional()], torch.rand(3, 2, 1, 8, 8) * 3
    nets[1][2].spike_grad = surrogate.fast_sigmoid(slope=5)
    nets[1][5].spike_grad = surrogate.fast_sigmoid(slope=2)
    watched = Watched(forward_pass)
    for net in nets:
        found, expected = (
            torch.autograd.grad(run(net, 3, x)[1].sum(), net[0].weight)[0] for run in (watched, forward_pass)
        )
        torch.testing.assert_close(found, expected)
    assert [neuron.rolled for neuron in watched.neurons] == [True, True] * len(watched.reports)


def test_state_changed_in_place_between_steps():
    lif = snn.Leaky(beta=0.5)

    def function(x):
        mem, record = lif.reset_mem(), []
        for current in x.unbind():
            spk, mem = lif(current, mem)
            mem.mul_(0.5)
            record.append(spk)
        return torch.stack(record), mem

    x = torch.rand(5, 3, 4) * 3
    watched = Watched(function)
    with torch.no_grad():
        for a, b in zip(watched(x), function(x)):
            assert torch.equal(a, b)
    assert [(neuron.steps, neuron.reason.kind) for neuron in watched.neurons] == [(5, "state")]


def test_results_share_no_memory():
    lif = snn.Leaky(beta=0.5)

    def function(x):
        mem, spikes = lif.reset_mem(), []
        for current in x.unbind():
            spk, mem = lif(current, mem)
            spikes.append(spk)
        return torch.stack(spikes), torch.stack(spikes, dim=1), spikes[0], torch.stack(list(x.unbind())), mem, lif.mem

    x = torch.rand(5, 3, 4) * 3
    with torch.no_grad():
        before = x.clone()
        out = Watched(function)(x)
        others = [part.clone() for part in out]
        for place, part in enumerate(out[:4]):
            part.fill_(7.0)
            for index, (now, then) in enumerate(zip(out, others)):
                assert index <= place or torch.equal(now, then)
        assert torch.equal(x, before)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_dropout_in_training_draws_the_loops_masks(dynamic):
    torch.manual_seed(0)

    class Net(FullyConnected):
        def __init__(self):
            super().__init__()
            self.lif1 = nn.Sequential(nn.Dropout(0.3), snn.Leaky(beta=0.9, init_hidden=True), nn.Dropout(0.5))
            self.lif2 = nn.Sequential(nn.Dropout(0.5), snn.Leaky(beta=0.9, init_hidden=True))

        def forward(self, x):
            self.lif1[1].reset_mem(), self.lif2[1].reset_mem()
            return torch.stack([self.lif2(self.fc2(self.lif1(self.fc1(x)))) for _ in range(4)])

    net, x = Net(), torch.rand(3, 12) * 5
    watched = Watched(net, dynamic=dynamic)
    torch.manual_seed(3)
    found = watched(x)
    torch.manual_seed(3)
    assert torch.equal(found, net(x))
    assert found.any()
    assert all(neuron.rolled for neuron in watched.neurons)
    assert watched.count("linear(") == 2


def test_only_what_needs_its_own_output_stays_a_loop():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.back, self.out = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 2)
            self.lif, self.last = snn.Leaky(beta=0.9), snn.Leaky(beta=0.8)

        def forward(self, x):
            mem, mem2, spk = self.lif.reset_mem(), self.last.reset_mem(), torch.zeros(x.shape[1], 5)
            record = []
            for current in x:
                spk, mem = self.lif(self.fc(current) + self.back(2 * spk), mem)
                _spk2, mem2 = self.last(self.out(spk), mem2)
                record.append(mem2)
            return torch.stack(record)

    torch.manual_seed(0)
    net, x = Net(), torch.rand(6, 3, 6) * 3
    report = compiler.explain(net, x)
    assert [(n.name, n.steps, n.rolled) for n in report.neurons] == [("lif", 6, False), ("last", 6, True)]
    assert report.neurons[0].reason.kind == "feedback_layer"
    times = sorted(operator.times for operator in report.graphs[0].operators if operator.name == "linear")
    assert times == [1, 7]  # fc and back stand in one line: fc once, back in each step
    text = str(report)
    assert "lif" in text
    assert "comes back at the next step" in text
    torch.testing.assert_close(Watched(net)(x), net(x))


def test_a_graph_break_is_reported_with_its_line():
    net = FullyConnected()

    def function(x):
        _spk, mem = net(x)
        torch._dynamo.graph_break()
        return mem.sum()

    report = compiler.explain(function, torch.rand(3, 12))
    assert len(report.graphs) == 2
    assert len(report.graph_breaks) == 1
    (line,) = report.graph_breaks[0].lines
    assert line.text == "torch._dynamo.graph_break()"
    assert f"{line.place}  {line.text}" in str(report)


def test_the_short_form_compiles_once_for_all_batch_sizes():
    net, found = FullyConnected(), []
    compiled = snn.compile(net)
    counter = torch._dynamo.utils.counters["stats"]
    counter.clear()
    for batch in (3, 5, 4, 7):
        x = torch.rand(batch, 12) * 3
        assert torch.equal(compiled(x)[0], net(x)[0])
        found.append(counter["unique_graphs"])
    assert found == [1] * 4


def test_neurons_that_keep_their_states_are_compiled_once_too():
    net = nn.Sequential(nn.Linear(5, 7), snn.Synaptic(alpha=0.9, beta=0.8, init_hidden=True, output=True))
    counter = torch._dynamo.utils.counters["stats"]
    counter.clear()

    def forward_pass(x):
        snn.utils.reset(net)
        return torch.stack([net(x)[0] for _ in range(6)])

    compiled = snn.compile(forward_pass)
    for batch in (3, 5, 4):
        x = torch.rand(batch, 5) * 3
        assert torch.equal(compiled(x), forward_pass(x))
    assert counter["unique_graphs"] == 1


def test_short_form_second_compiler_and_errors():
    net, x = FullyConnected(), torch.rand(3, 12)
    called = []

    def second(module, inputs):
        called.append(module)
        return module.forward

    for a, b in zip(snn.compile(net, then=second)(x), net(x)):
        torch.testing.assert_close(a, b)
    assert len(called) == 1
    for a, b in zip(snn.compile(net, then="aot_eager", fullgraph=True)(x), net(x)):
        torch.testing.assert_close(a, b)
    with pytest.raises(TypeError, match="function must be a module or a function, got int"):
        snn.compile(3)
    with pytest.raises(TypeError, match="function must be"):
        compiler.explain(None)
    with pytest.raises(Exception, match="options of the backend snnipu are then, got than"):
        torch.compile(net, backend=compiler.compile_graph, options={"than": 1})(x)


def test_a_graph_that_is_not_understood_runs_as_it_was(monkeypatch, caplog):
    monkeypatch.setattr(backend, "strict", False)

    def broken(module, whole):
        raise KeyError("something")

    monkeypatch.setattr(backend, "roll", broken)
    net, x = FullyConnected(), torch.rand(3, 12)
    watched = Watched(net)
    for a, b in zip(watched(x), net(x)):
        assert torch.equal(a, b)
    assert watched.reports[0].failed == "KeyError: 'something'"
    assert "runs as it was" in caplog.text


def test_too_old_a_pytorch_is_told(monkeypatch):
    monkeypatch.setattr(backend.leaves, "enabled", False)
    monkeypatch.setattr(backend, "OLDEST", (99, 0))
    with pytest.raises(RuntimeError, match=r"needs PyTorch 99.0 or later"):
        snn.compile(FullyConnected())


def test_a_compiled_network_is_saved_copied_and_reset():
    net, x = FullyConnected(), torch.rand(3, 12)
    compiled = snn.compile(net)
    compiled(x)[0].sum().backward()
    with pytest.raises(AttributeError, match="reset"):
        _ = net.lif1.reset
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(net)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x)[1], compiled(x)[1])


def test_reset_reaches_neurons_of_other_networks_where_snntorchs_does():
    net, other = Convolutional(), Convolutional()
    x = torch.rand(2, 1, 8, 8)
    other(x)
    assert other[2].mem.any()
    Watched(forward_pass, fullgraph=True)(net, 3, x)
    assert bool(other[2].mem.any()) == (not installed.reset_reaches_others())
    assert net[2].mem.any()


def test_the_entry_point_names_the_backend(repository):
    text = (repository / "pyproject.toml").read_text()
    assert '[project.entry-points.torch_dynamo_backends]\nsnnipu = "snnipu.compiler.entry:snnipu"' in text
    from snnipu.compiler import entry

    assert entry.snnipu is compiler.compile_graph


@pytest.mark.slow
def test_inductor_compiles_what_is_left():
    net, x = FullyConnected(), torch.rand(3, 12) * 3
    gradients = []
    for run in (snn.compile(net, then="inductor"), net):
        spk, mem = run(x)
        gradients.append((spk, mem, *torch.autograd.grad(mem.sum() + spk.sum(), list(net.parameters()))))
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b)


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
def test_gradients_of_two_processes_are_reduced(tmp_path):
    pytest.importorskip("torch.distributed")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("no gloo")
    given = [sys.executable, "-c", _RANK]
    ranks = [
        subprocess.Popen([*given, str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)


def test_a_loop_within_ddp_is_one_graph(process_group):
    """Also where gradients are more than a bucket of DistributedDataParallel, where PyTorch would cut the graph."""

    class Wide(FullyConnected):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(12, 30000)
            self.fc2 = nn.Linear(30000, 3)

    net = Wide()
    wrapped = nn.parallel.DistributedDataParallel(net)
    watched = Watched(wrapped)
    watched(torch.rand(2, 12))[1].sum().backward()
    assert [(neuron.steps, neuron.rolled) for neuron in watched.neurons] == [(4, True)] * 2
    del wrapped, watched


_PEER = """
import torch, snntorch, snnipu
from snntorch import utils
from torch import nn

net = nn.Sequential(nn.Linear(3, 2), snntorch.Leaky(0.9, init_hidden=True, output=True))


def forward_pass(x):
    utils.reset(net)
    return torch.stack([net(x)[1] for _ in range(3)])


x = torch.rand(2, 3)
expected = forward_pass(x)
compiled = torch.compile(forward_pass, backend="eager")
for _ in range(2):
    torch.testing.assert_close(compiled(x), expected)
    utils.reset(net)
"""


@pytest.mark.slow
def test_another_backend_leaves_the_list_of_neurons_as_it_is():
    """In a process of its own: there it does not know our neurons."""
    subprocess.run([sys.executable, "-c", _PEER], check=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: snn.Leaky(beta=0.9), lambda: snn.Lapicque(beta=0.9)])
def test_a_part_replaced_after_compilation_is_seen(make):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif = make()

        def forward(self, x):
            mem, spikes = self.lif.reset_mem(), []
            for current in x:
                spk, mem = self.lif(current, mem)
                spikes.append(spk)
            return torch.stack(spikes)

    net, x = Net(), torch.rand(3, 2, 4) * 2
    compiled = snn.compile(net)
    before = compiled(x)
    assert torch.equal(before, net(x))
    net.lif.fire = lambda mem: (mem > 0.1).float()
    assert torch.equal(compiled(x), net(x))
    assert not torch.equal(net(x), before)


STARTS = {
    "anew": lambda neuron, spk: neuron.init_leaky() if isinstance(neuron, snn.Leaky) else neuron.init_synaptic(),
    "from the layer before": lambda neuron, spk: (spk,) if isinstance(neuron, snn.Leaky) else (spk, spk),
}
RESTARTED = {
    "plain": lambda: snn.Leaky(beta=0.9, threshold=0.4),
    "learnt": lambda: snn.Leaky(beta=torch.full((8,), 0.7), learn_beta=True, threshold=0.4, learn_threshold=True),
    "zero": lambda: snn.Leaky(beta=0.9, threshold=0.4, reset_mechanism="zero", reset_delay=False),
    "graded": lambda: snn.Leaky(beta=0.8, threshold=0.4, learn_graded_spikes_factor=True),
    "synaptic": lambda: snn.Synaptic(alpha=0.8, beta=torch.tensor([0.7]), learn_beta=True, threshold=0.4),
}


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("kind", RESTARTED)
def test_steps_that_do_not_go_on_from_the_one_before_are_one_operator(kind, start, training):
    """Each begins anew, or with what another layer gave it; the last state is kept, and one in the middle read."""

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.fc1, self.fc2, self.fc3 = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.first, self.block, self.last = (
                snn.Leaky(beta=0.8, threshold=0.3),
                RESTARTED[kind](),
                snn.Leaky(beta=0.9),
            )

        def forward(self, x):
            mem1, mem3, rows, some = self.first.init_leaky(), self.last.init_leaky(), [], None
            for t in range(x.shape[0]):
                spk, mem1 = self.first(self.fc1(x[t]), mem1)
                states = STARTS[start](self.block, spk)
                spk, *states = self.block(self.fc2(spk), *(states if isinstance(states, tuple) else (states,)))
                some = states[-1] if t == 2 else some
                spk, mem3 = self.last(self.fc3(spk), mem3)
                rows.append(mem3)
            return torch.stack(rows), some, spk

    results = []
    for make in (lambda net: net, Watched):
        net = Blocks()
        run = make(net)
        for batch in (4, 2):
            x = torch.rand(6, batch, 5, generator=torch.Generator().manual_seed(batch)) * 3
            with torch.set_grad_enabled(training):
                made = run(x)
            if training:
                sum((one * one).sum() for one in made).backward()
        results.append([*made, net.block.mem, *(p.grad for p in net.parameters())])
    for own, expected in zip(results[1], results[0]):
        assert (own is None) == (expected is None)
        if own is not None:
            torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)
    assert [(neuron.steps, neuron.rolled) for neuron in run.neurons] == [(6, True)] * len(run.neurons)


def own_function(made, gradient):
    """A function of two passes; the backward one is given the gradient, the input and the result."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out = made(x)
            ctx.save_for_backward(x, out)
            return out

        @staticmethod
        def backward(ctx, grad):
            return gradient(grad, *ctx.saved_tensors)

    return Function.apply


def _masked(grad, x, out):
    grad = grad.clone()
    grad[x.abs() > 0.3] = 0
    return grad


# Whether the gradient of a sum is the sum of gradients.
PASSES = {
    "straight through": (torch.round, lambda g, x, out: g, True),
    "masked": (lambda x: x.clamp(-0.3, 0.3), lambda g, x, out: g * (x.abs() <= 0.3).float(), True),
    "set": (lambda x: x.clamp(-0.3, 0.3), _masked, True),
    "where": (torch.sign, lambda g, x, out: torch.where(x.abs() < 1, g, 0.0), True),
    "a sum": (lambda x: x * 2, lambda g, x, out: -(g + g / 3), True),
    "clipped": (torch.round, lambda g, x, out: g.clamp(-0.1, 0.1), False),
    "shifted": (torch.round, lambda g, x, out: g + 0.01, False),
    "a difference": (torch.round, lambda g, x, out: g - x, False),
    "a square": (torch.round, lambda g, x, out: g * g, False),
    "divided by": (torch.round, lambda g, x, out: x / (1 + g), False),
    "not of it": (torch.round, lambda g, x, out: x * 0.1, False),
    "where it is not": (torch.sign, lambda g, x, out: torch.where(x.abs() < 1, g, 1.0), False),
    "where it is": (torch.sign, lambda g, x, out: torch.where(g > 0, g, 0.0), False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSES)
def test_weights_made_anew_at_every_step(name):
    """By an autograd function, as in quantised training: made once where its gradients may be added first."""
    made, gradient, linear = PASSES[name]
    quantise = own_function(made, gradient)

    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.lif = nn.Linear(5, 8), snn.Leaky(beta=0.9, threshold=0.3)

        def forward(self, x):
            mem, rows = self.lif.init_leaky(), []
            for t in range(x.shape[0]):
                _spk, mem = self.lif(nn.functional.linear(x[t], quantise(self.fc.weight * 4) / 4, self.fc.bias), mem)
                rows.append(mem)
            return torch.stack(rows)

    net, x = Quantised(), torch.rand(6, 3, 5)
    watched = Watched(net)
    gradients = []
    for run in (net, watched):
        gradients.append(torch.autograd.grad((run(x) ** 2).sum(), (net.fc.weight, net.fc.bias)))
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    calls = [one for one in watched.reports[0].operators if one.name in ("linear", "autograd_function_apply")]
    assert [one.times for one in calls] == ([1, 1] if linear else [6, 6])


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSES)
def test_an_own_function_of_what_differs_from_step_to_step(name):
    quantise = own_function(*PASSES[name][:2])
    net, x = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 8), snn.Leaky(beta=0.9, threshold=0.3)), torch.rand(6, 3, 5)

    def run(x):
        mem, rows = net[2].init_leaky(), []
        for t in range(x.shape[0]):
            _spk, mem = net[2](net[1](quantise(net[0](x[t]) * 3)), mem)
            rows.append(mem)
        return torch.stack(rows)

    watched = Watched(run)
    gradients = [torch.autograd.grad((one(x) ** 2).sum(), list(net.parameters())) for one in (run, watched)]
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    calls = {one.name: one.times for one in watched.reports[0].operators}
    assert calls["linear"] == 2  # two layers, each once
    assert calls["autograd_function_apply"] == (1 if name != "set" else 6)
