"""``snn.auto()`` finds loops over time in all usual places. Compiled loops have the results of the loops in Python."""

import contextlib
import logging
import pathlib
import re
import sys
import textwrap

import numpy as np
import pytest
import snntorch
import torch
from snntorch import utils
from support.commands import python
from support.exact import exact, exact_numbers
from support.loops import as_written
from support.versions import needs_backend
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import snnipu as snn
from snnipu._names import installed

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore")]
STEPS, BATCH, INPUTS = 6, 3, 4


class Net(nn.Module):
    """The loop is in ``forward``."""

    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(INPUTS, 5), snn.Leaky(beta=0.9, threshold=0.5)
        self.fc2, self.lif2 = nn.Linear(5, 2), snn.Leaky(beta=0.8, threshold=0.25)

    def states(self):
        return self.lif1.reset_mem(), self.lif2.reset_mem()

    def step(self, x, mem1, mem2):
        spk, mem1 = self.lif1(self.fc1(x), mem1)
        spk, mem2 = self.lif2(self.fc2(spk), mem2)
        return spk, mem1, mem2

    def forward(self, x):
        mem1, mem2 = self.states()
        spikes = []
        for t in range(len(x)):
            spk, mem1, mem2 = self.step(x[t], mem1, mem2)
            spikes.append(spk)
        return torch.stack(spikes)


def numbers(batches=4, steps=STEPS, batch=BATCH):
    generator = torch.Generator().manual_seed(0)
    return [exact_numbers(steps, batch, INPUTS, generator=generator) for _ in range(batches)]


def plain(value):
    """Return True for values that a program stores in attributes."""
    return isinstance(value, (int, float, str, list, dict, torch.Tensor))


def trained(run, make, data):
    """Train on each batch; return its results, gradients, attributes, buffers and the states of random generators."""
    torch.manual_seed(1)
    net, batches = exact(make()), []
    for number, x in enumerate(data):
        net.zero_grad()
        net.number = number
        out = run(net, x)
        out.sum().backward()
        grads = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        attributes = {name: value for name, value in vars(net).items() if plain(value) and name[0] != "_"}
        attributes = {name: list(value) if isinstance(value, list) else value for name, value in attributes.items()}
        buffers = [buffer.clone() for buffer in net.buffers()]
        batches.append([out.detach().clone(), grads, attributes, buffers, torch.get_rng_state(), np.random.rand()])
    return batches


def alike(one, other):
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other):
            alike(*pair)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        alike(list(one.values()), list(other.values()))
    else:
        assert type(one) is type(other)
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)


def compare(auto, run, make=Net, data=None):
    """Compare training with compiled loops and with loops in Python. Return the loops that ran compiled."""
    data = numbers() if data is None else data
    for generator in (np.random.seed, torch.manual_seed):
        generator(3)
    with as_written(auto):
        expected = trained(run, make, data)
    np.random.seed(3)
    runs = {id(loop): loop.runs for loop in auto.loops}
    alike(trained(run, make, data), expected)
    return [loop for loop in auto.loops if loop.runs > runs.get(id(loop), 0)]


def in_forward(net, x):
    return net(x)


# ---- programs


def in_a_function(net, x):
    mem1, mem2 = net.states()
    total = torch.zeros(())
    for step in range(x.size(0)):
        spk, mem1, mem2 = net.step(x[step], mem1, mem2)
        total = total + spk.sum()
    return total


def on_a_device(net, x):
    with torch.device("cpu"):
        return net(x)


class Appending(Net):
    """A list in an attribute, which grows with each call."""

    fails = False

    def __init__(self):
        super().__init__()
        self.spikes = []

    def forward(self, x):
        mem1, mem2 = self.states()
        for t in range(len(x)):
            spk, mem1, mem2 = self.step(x[t], mem1, mem2)
            self.spikes.append(spk.detach())
            if self.fails:
                raise RuntimeError("in the middle")
        return mem2


def assert_types(trace, spikes):
    assert {type(one) for one in trace} == {float}
    assert type(spikes) is int


class Counting(Net):
    """Python numbers that each step stores in an attribute, a dictionary and a list."""

    def forward(self, x):
        mem1, mem2 = self.states()
        self.spikes, largest, trace = 0, {"mem": 0.0}, []
        for t in range(len(x)):
            spk, mem1, mem2 = self.step(x[t], mem1, mem2)
            self.spikes += int(spk.sum().item())
            largest["mem"] += mem2.detach().cpu().abs().max().item()
            trace.append(mem1[0, 0].item())
        assert_types(trace, self.spikes)
        return torch.stack([mem2.sum(), *(torch.tensor(one) for one in (self.spikes, largest["mem"], *trace))])


class Counted(Net):
    """Counters over several calls, which also decide branches and scale results."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.steps, self.last = 0, 0, 0, 0.0
        self.often = {"calls": 0}

    def forward(self, x):
        self.calls += 1
        self.seen += x.shape[1]
        self.last = self.last + 0.5
        self.often["calls"] += 1
        mem1, mem2 = self.states()
        spikes = []
        for t in range(len(x)):
            self.steps += 1
            spk, mem1, mem2 = self.step(x[t] * (1 + 1 / self.seen), mem1, mem2)
            spikes.append(spk)
        if self.calls > 3:
            spikes = spikes[1:]
        return torch.stack(spikes) * self.last + self.calls


class Blocks(nn.Module):
    """A network that resets one block. snnTorch then resets all neurons of the same classes, also in other blocks."""

    halves = not installed.reset_reaches_others()

    def __init__(self):
        super().__init__()
        self.first, *blocks = (
            nn.Sequential(
                nn.Linear(INPUTS, INPUTS), snn.Leaky(0.9, init_hidden=True), snn.Synaptic(0.9, 0.8, init_hidden=True)
            )
            for _ in range(3)
        )
        self.blocks = nn.ModuleList(nn.Sequential(block) for block in blocks)

    def forward(self, x):
        utils.reset(self if self.halves else self.first)
        out = []
        for t in range(len(x)):
            if self.halves and t == STEPS // 2:
                utils.reset(self.first)
            y = self.first(x[t])
            for block in self.blocks:
                y = block(y + x[t])
            out.append(y)
        return torch.stack(out)


class OfEither(nn.Module):
    """A network for neurons of snnTorch or snnipu."""

    def __init__(self, lif):
        super().__init__()
        self.fc, self.lif = nn.Linear(INPUTS, 5), lif

    def forward(self, x):
        mem, spikes = torch.zeros(x.shape[1], 5), []
        for current in x:
            spk, mem = self.lif(self.fc(current), mem)
            spikes.append(spk)
        return torch.stack(spikes)


FOUND = {
    "in a function": (in_a_function, Net),
    "numbers of Python's": (in_forward, Counting),
    "numbers that an object counts": (in_forward, Counted),
    "another part is reset": (in_forward, Blocks),
    "numbers of Python's on a device": (on_a_device, Counting),
}
SOON = ("in a function", "numbers of Python's")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SOON else pytest.mark.slow) for n in FOUND])
def test_loops_that_are_compiled(name, auto):
    run, make = FOUND[name]
    ran = compare(auto, run, make)
    assert len(ran) == 1
    assert f"{ran[0].label}  compiled: " in str(auto)
    line = pathlib.Path(__file__).read_text().splitlines()[int(re.findall(r":(\d+)", ran[0].label)[0]) - 1]
    assert line.strip().startswith("for ")


@pytest.mark.slow
def test_neurons_of_snntorch_alone_run_as_they_are_written(auto):
    assert compare(auto, in_forward, lambda: OfEither(snntorch.Leaky(0.9))) == [], str(auto)


def called(net, data):
    with torch.no_grad():
        return [net(x) for x in data]


def reset_alone(net):
    """Reset one network, as in the next release of snnTorch."""
    for module in net.modules():
        if isinstance(module, snntorch.SpikingNeuron):
            module.reset_mem()


@pytest.mark.slow
def test_a_reset_of_one_network_alone(auto, monkeypatch):
    monkeypatch.setattr(utils, "reset", reset_alone)
    monkeypatch.setattr(Blocks, "halves", True)
    assert not installed.reset_reaches_others()
    compare(auto, in_forward, Blocks)


@pytest.mark.slow
def test_hooks_of_a_neuron_and_other_compilers(found):
    net, (x,) = Net(), numbers(1)
    net(x)
    gradients = []
    net.lif1.register_full_backward_hook(lambda module, into, out: (2 * into[0], *into[1:]))
    for run in (net, torch.compile(net, backend="eager"), snn.compile(net)):
        net.zero_grad()
        run(x).sum().backward()
        gradients.append(net.fc1.weight.grad.clone())
    torch.testing.assert_close(gradients[1:], gradients[:1] * 2)


@contextlib.contextmanager
def hook_of_all_modules(seen):
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        yield
    finally:
        handle.remove()


AROUND = {
    "a mode": lambda: FlopCounterMode(display=False),
    "a hook of all modules": lambda: hook_of_all_modules([]),
    "a stance": lambda: torch.compiler.set_stance("force_eager"),
}


@pytest.mark.slow
@pytest.mark.parametrize("why", AROUND)
def test_calls_that_cannot_be_compiled(why, auto):
    """Calls in Python, before and after the first compilation. Later calls run compiled."""

    def run(net, x):
        with AROUND[why]() if net.number in (0, 2) else contextlib.nullcontext():
            return net(x)

    (loop,) = compare(auto, run, Counted)
    assert loop.runs == 2


def test_hooks_of_all_modules_see_compiled_loops(auto):
    net, (x, *_), seen = Net(), numbers(), []
    called(net, [x] * 3)
    with hook_of_all_modules(seen):
        net(x)
    assert any(loop.runs == 3 for loop in auto.loops)
    assert [seen.count(one) for one in (nn.Linear, snn.Leaky, Net)] == [2 * STEPS, 2 * STEPS, 1]


class Looks(Net):
    """A network that fails at a step for some inputs."""

    def __init__(self):
        super().__init__()
        self.table, self.calls = nn.Embedding(7, INPUTS), 0

    def forward(self, words):
        self.calls += 1
        mem1, mem2 = self.states()
        for t in range(len(words)):
            spk, mem1, mem2 = self.step(F.dropout(self.table(words[t]), training=self.training), mem1, mem2)
        return spk


def test_an_error_in_a_graph_is_the_loops_own(auto):
    """The traceback has the program's lines. Code before the loop runs once, and random numbers are drawn once."""
    words, after = torch.arange(STEPS * BATCH).view(STEPS, BATCH) % 7, []
    wrong = words.clone()
    wrong[3] += 4
    for written in (True, False):
        net = Looks()
        with as_written(auto) if written else contextlib.nullcontext():
            called(net, [words] * 3)
            torch.manual_seed(4)
            with pytest.raises(IndexError) as error:
                net(wrong)
            after.append(torch.get_rng_state())
        assert any(entry.name == "forward" and "self.table(words" in str(entry.statement) for entry in error.traceback)
        assert net.calls == 4
    assert any(loop.runs for loop in auto.loops)
    assert torch.equal(*after)
    assert torch.equal(net.eval()(words), net(words))


class Normalised(Net):
    """A loop that changes tensors from outside of it."""

    def __init__(self):
        super().__init__()
        self.norm, self.rates, self.ran = nn.BatchNorm1d(INPUTS), torch.zeros(STEPS), 0

    def forward(self, x):
        mem1, mem2 = self.states()
        for step in range(x.size(0)):
            spk, mem1, mem2 = self.step(self.norm(x[step].float()).to(x.dtype), mem1, mem2)
            self.rates[step] = spk.detach().mean()
            self.ran += 1
        return mem2


def test_an_error_of_dtypes_comes_where_the_loop_has_it(auto):
    """The changes of the steps before the error remain."""
    nets, (x,) = [Normalised(), Normalised()], numbers(1)
    for net in nets:
        with as_written(auto) if net is nets[0] else contextlib.nullcontext():
            called(net, [x] * 3)
            with pytest.raises(RuntimeError, match="same dtype"):
                net(x.double())
            net.fc2.double()
            with pytest.raises(RuntimeError, match="same dtype"):
                net(x)
            net.fc2.float()
            net(x)
    alike(list(nets[1].buffers()), list(nets[0].buffers()))
    assert [net.ran for net in nets] == [4 * STEPS] * 2
    assert any(loop.runs for loop in auto.loops)


@pytest.mark.slow
def test_an_error_leaves_the_lists_on_their_objects(auto):
    net, (x, *_) = Appending(), numbers(1)
    net.number = 0
    called(net, [x] * 3)
    record, net.fails = net.spikes, True
    with pytest.raises(RuntimeError, match="in the middle"):
        net(x)
    assert net.spikes is record
    assert len(record) == 3 * STEPS + 1
    net.fails = False
    net(x)
    assert len(record) == 4 * STEPS + 1


def decides(net, x):
    mem1, mem2 = net.states()
    for step in range(len(x)):
        spk, mem1, mem2 = net.step(x[step], mem1, mem2)
        if spk.sum() > 0:
            mem2 = mem2 * 0.5
    return mem2


class Deciding(Net):
    def forward(self, x):
        mem1, mem2 = self.states()
        total = 0.0
        for t in range(len(x)):
            spk, mem1, mem2 = self.step(x[t], mem1, mem2)
            if spk.sum().item() > 1:
                total += 1
        return mem2 + total


def test_what_cannot_be_compiled_says_so_once(auto, caplog):
    """Each loop is logged once. The table has the line that causes the reason, and what to write instead."""
    with caplog.at_level(logging.WARNING, "snnipu.compiler"):
        for run, make in ((decides, Net), (in_forward, Deciding)):
            assert compare(auto, run, make) == []
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len({message.split(" runs in Python")[0] for message in messages}) == 2
    lines = pathlib.Path(__file__).read_text().splitlines()
    for text in ("if spk.sum() > 0:", "if spk.sum().item() > 1:"):
        number = next(place for place, line in enumerate(lines, 1) if line.strip() == text)
        assert f"test_automatic.py:{number}  {text}" in str(auto)
    assert str(auto).count("Python branches on a tensor's value") == 4
    assert str(auto).count("Instead: ") == 2


def prints_now_and_then(net, x, step_of_it):
    mem1, mem2 = net.states()
    for step in range(x.size(0)):
        _spk, mem1, mem2 = net.step(x[step], mem1, mem2)
        if step == step_of_it:
            print(*(float(mem.sum()) for mem in (mem1, mem2)))
    return mem2


@pytest.mark.slow
def test_what_stands_under_an_if_is_no_hindrance_where_it_is_not_taken(auto, capsys):
    net, data = exact(Net()), exact_numbers(STEPS, BATCH, INPUTS)
    for step in (STEPS, STEPS, 2, STEPS, 0):
        results = []
        for written in (True, False):
            with as_written(auto) if written else contextlib.nullcontext(), torch.no_grad():
                results.append([prints_now_and_then(net, data, step), capsys.readouterr().out.count(" ")])
        alike(*results)
    assert any(loop.runs for loop in auto.loops)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_a_network_of_snntorchs_neurons_beside_ours(first, auto):
    """snnTorch's network runs in Python and snnipu's compiled, in both orders of calls."""
    nets = [OfEither(snn.Leaky(0.9)), OfEither(snntorch.Leaky(0.9))]
    nets[1].load_state_dict(nets[0].state_dict())
    (x,) = numbers(1)
    one, other = nets[first], nets[1 - first]
    results = called(one, [x]) + called(other, [x] * 2) + called(one, [x] * 4) + called(other, [x])
    alike(results, results[:1] * len(results))
    assert any(loop.runs for loop in auto.loops)


@pytest.mark.slow
def test_networks_of_many_sizes(auto):
    (x,) = numbers(1)
    for size in (3, 4, 5, 6, 7, 8, 9, 10, 11, 3):
        net = Net()
        net.fc1, net.fc2 = nn.Linear(INPUTS, size), nn.Linear(size, 2)
        results = called(net, [x] * 2)
        with as_written(auto):
            alike(results, called(net, [x] * 2))
    assert [loop.runs for loop in auto.loops if loop.runs] == [20]


def test_loops_that_are_none_over_time(auto):
    """A loop over batches with one step each, and a loop over layers with the same surrogate."""
    net = nn.Sequential(nn.Linear(INPUTS, 2), snn.Leaky(0.9, init_hidden=True))
    spike = snn.surrogate.atan()
    layers = [nn.Linear(INPUTS, INPUTS) for _ in range(4)]
    for _ in range(4):
        for x in numbers(1)[0]:
            net(x.detach()).sum().item()
            utils.reset(net)
        for layer in layers:
            x = spike(layer(x))
    assert not any(loop.runs for loop in auto.loops)


MODULE = """
import torch
from snnipu import surrogate

spike = surrogate.atan()
weight = torch.nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4))


def run(x):
    x = x * x.abs().max().item()
    mem, total = torch.zeros(3, 4), 0
    for t in range(len(x)):
        mem = 0.9 * mem + x[t] @ weight
        spk = spike(mem - 1)
        mem = mem - spk
        total = total + spk
    return total


class Table:
    def rows(self):
        for i in range(3):
            for j in range(i):
                yield i, j

    def largest(self):
        best = 0
        for i, j in self.rows():
            for k in (i, j):
                best = max(best, k)
        return best
"""


def test_a_module_that_is_imported_later(auto, tmp_path, monkeypatch):
    """``stop()`` restores the code of its functions, and all loops run in Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "written_module.py").write_text(MODULE)
    import written_module

    (x,) = numbers(1)
    results = [written_module.run(x) for _ in range(4)]
    monkeypatch.delitem(sys.modules, "written_module")
    assert written_module.Table().largest() == 2
    (loop,) = [loop for loop in auto.loops if loop.runs]
    assert loop.label.startswith("written_module.py:")
    functions = [written_module.run, written_module.Table.largest]
    changed = [function.__code__ for function in functions]
    auto.stop()
    for function, code in zip(functions, changed):
        assert function.__code__ is not code
        assert not any("snnipu" in name for name in function.__code__.co_names)
    alike([*results, written_module.run(x)], results[:1] * 5)
    assert loop.runs == 4


SCRIPT = """
    import torch, snntorch as snn
    torch.manual_seed(0)
    fc, lif = torch.nn.Linear(4, 3), snn.Leaky(beta=0.9)
    optimizer = torch.optim.SGD(fc.parameters(), lr=0.1)
    spikes_seen = 0
    for batch in range(4):
        x = torch.rand(5, 2, 4) * 3
        mem = lif.init_leaky()
        total = torch.zeros(1)
        for step in range(5):
            spk, mem = lif(fc(x[step]), mem)
            total += spk.sum()
        loss = mem.square().mean() + total.mean() * 0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        spikes_seen += int(total.item())
        print(batch, step, f"{loss.item():.5f}", spikes_seen)
    if __name__ == "__main__":
        print(sum(float(p.sum()) for p in fc.parameters()), __file__[-5:])
        1 // 0
"""


@pytest.mark.slow
def test_a_script_with_all_of_it_at_its_top_level(tmp_path):
    """A traceback begins with the script's lines."""
    script = tmp_path / "my.py"
    script.write_text(textwrap.dedent(SCRIPT))
    plain, compiled = python(script, status=1), python("-m", "snnipu", "run", "--compile", script, status=1)
    printed, expected = (done.stdout.split() for done in (compiled, plain))
    assert len(printed) == 18
    assert list(map(float, printed[:-1])) == pytest.approx(list(map(float, expected[:-1])), rel=1e-5, abs=2e-5)
    assert printed[-1] == expected[-1]
    assert "my.py:11  compiled: 1 layer of neurons over 5 steps" in compiled.stderr
    assert "automatic.py" not in compiled.stderr
    assert "ZeroDivisionError" in compiled.stderr


LATER = """
import torch
from torch import nn

import snnipu as snn
from snnipu import spikegen

found = snn.auto()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.lif = nn.Linear(6, 5), snn.Leaky(beta=0.9)

    def forward(self, x):
        spikes, mem, total = spikegen.rate(x, num_steps=8), self.lif.init_leaky(), 0
        for step in range(8):
            spk, mem = self.lif(self.fc(spikes[step]), mem)
            total = total + spk
        return total


def objective(size):
    fc, lif = nn.Linear(6, size), snn.Leaky(beta=0.9)

    def run(x):
        mem, total = lif.init_leaky(), 0
        for step in range(7):
            spk, mem = lif(fc(x), mem)
            total = total + spk
        return total

    return [run(torch.ones(2, 6)) for _ in range(2)]


net = Net()
for _ in range(4):
    net(torch.rand(3, 6)).sum().backward()
for _ in range(6):
    objective(4)
for loop in found.loops:
    print(loop.label, loop.runs)
"""


@pytest.mark.slow
def test_functions_that_a_script_defines_later(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LATER)
    process = python(script)
    runs = {line.split()[1]: int(line.split()[2]) for line in process.stdout.splitlines()}
    assert runs["(forward)"] >= 3
    assert runs["(run)"] >= 9
    assert "runs in Python" not in process.stderr
