"""snnipu.auto(): the loop over time is found where people write it, and only what is faster is compiled."""

import contextlib
import gc
import inspect
import itertools
import logging
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import snntorch
import torch
from snntorch import backprop, utils
from snntorch.functional import ce_rate_loss
from support.exact import exact, exact_numbers
from support.versions import needs_backend, needs_dynamo_of_2_12, needs_newer_dynamo
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import snnipu as snn
from snnipu._names import installed
from snnipu.compiler import automatic, tracing

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("auto")]
STEPS, BATCH, INPUTS = 6, 3, 4
ADOPT_ALL = automatic.Automatic.adopt_all


class Net(nn.Module):
    """The loop is in ``forward``."""

    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(INPUTS, 5), snn.Leaky(beta=0.9)
        self.fc2, self.lif2 = nn.Linear(5, 2), snn.Leaky(beta=0.8)

    def step(self, x, mem1, mem2):
        spk, mem1 = self.lif1(self.fc1(x), mem1)
        spk, mem2 = self.lif2(self.fc2(spk), mem2)
        return spk, mem1, mem2

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        spikes = []
        for t in range(len(x)):
            spk, mem1, mem2 = self.step(x[t], mem1, mem2)
            spikes.append(spk)
        return torch.stack(spikes)


def numbers(batches=4, steps=STEPS, batch=BATCH):
    generator = torch.Generator().manual_seed(0)
    return [exact_numbers(steps, batch, INPUTS, generator=generator) for _ in range(batches)]


def trained(run, net, data):
    """Results and gradients of each batch."""
    found = []
    for x in data:
        net.zero_grad()
        out = run(net, x)
        out.sum().backward()
        found.append((out.detach().clone(), [p.grad.clone() for p in net.parameters() if p.grad is not None]))
    return found


def compare(run, make=Net, data=None, most=1):
    """``run`` with loops found and compiled, against snnTorch's; returns the sites.

    ``most``: so often a site is compiled, where all batches are alike.
    """
    alike = data is None
    data = numbers() if data is None else data
    torch.manual_seed(1)
    net = exact(make())
    eager = automatic._auto
    with eager.paused():
        torch.manual_seed(2)
        expected = trained(run, net, data)
    torch.manual_seed(2)
    found = trained(run, net, data)
    for (out, gradients), (wanted, others) in zip(found, expected):
        assert torch.equal(out, wanted)
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(gradients, others))
    assert not alike or all(len(site.reports) <= most for site in eager.sites)
    return eager.sites


def in_forward(net, x):
    return net(x)


def in_a_function(net, x):
    mem1, mem2 = net.lif1.init_leaky(), net.lif2.init_leaky()
    total = torch.zeros(())
    for step in range(x.size(0)):
        spk, mem1, mem2 = net.step(x[step], mem1, mem2)
        total = total + spk.sum()
    return total


def as_many_steps_as_a_tensor_says(net, x):
    mem1, mem2 = net.lif1.init_leaky(), net.lif2.init_leaky()
    lengths = torch.tensor([len(x) - 1, len(x)])
    for step in range(int(lengths.max())):
        _spk, mem1, mem2 = net.step(x[step], mem1, mem2)
    return mem2


def beside_what_ends_a_graph(net, x):
    mem1, mem2 = net.lif1.init_leaky(), net.lif2.init_leaky()
    record = []
    for step in range(x.size(0)):
        _spk, mem1, mem2 = net.step(x[step], mem1, mem2)
        record.append(mem2)
    record[-1].sum().item()
    return torch.stack(record)


def over_batches(net, x):
    out = []
    for half in x.split(2, dim=1):
        mem1, mem2 = net.lif1.init_leaky(), net.lif2.init_leaky()
        for current in half:
            _spk, mem1, mem2 = net.step(current, mem1, mem2)
        out.append(mem2.sum().item() * 0 + mem2)
    return torch.cat(out)


@pytest.mark.parametrize(
    "run", [in_forward, in_a_function, as_many_steps_as_a_tensor_says, beside_what_ends_a_graph, over_batches]
)
def test_the_loop_is_found(run):
    sites = compare(run, most=2 if run is over_batches else 1)  # its halves are of two sizes
    compiled = [site for site in sites if site.compiled]
    assert len(compiled) == 1
    where = {over_batches: "current in half", in_a_function: "in_a_function"}
    where.update(dict.fromkeys((as_many_steps_as_a_tensor_says, beside_what_ends_a_graph), "for step"))
    line = int(compiled[0].label.split(":")[1].split(" ")[0])
    text = pathlib.Path(__file__).read_text().splitlines()[line - 1]
    assert where.get(run, "def forward") in text
    assert {neuron.steps for neuron in compiled[0].reports[0].neurons} == {STEPS}


@pytest.mark.slow
def test_another_compiler_sees_pytorchs_functions():
    """What looks at their calls is no frame to compile, where a hook ends a graph."""
    net, x = Net(), numbers(1)[0]
    net(x)
    gradients = []
    net.lif1.register_full_backward_hook(lambda module, into, out: (2 * into[0], *into[1:]))
    for run in (net, torch.compile(net, backend="eager"), snn.compile(net)):
        net.zero_grad()
        run(x).sum().backward()
        gradients.append(net.fc1.weight.grad.clone())
    torch.testing.assert_close(gradients[1:], gradients[:1] * 2)


class Checkpointed(Net):
    """Chunks of steps, each run again for its backward pass."""

    def chunk(self, x, mem):
        total = 0
        for t in range(len(x)):
            _spk, mem = self.lif1(self.fc1(x[t]), mem)
            total = total + self.fc2(mem)
        return total, mem

    def forward(self, x):
        total, mem = 0, torch.zeros(x.shape[1], 5)
        for part in x.split(5):
            made, mem = checkpoint(self.chunk, part, mem, use_reentrant=False)
            total = total + made
        return total


def test_a_loop_in_a_checkpoint_runs_as_it_is(auto, caplog):
    sites = compare(lambda net, x: net(x), make=Checkpointed)
    assert not any(site.compiled or site.reports for site in sites)
    (said,) = [record.message for record in caplog.records if "torch.utils.checkpoint" in record.message]
    assert "(chunk) runs as it is: " in said
    assert "as it is, what its backward pass needs is saved in another way there" in str(auto)
    net = Checkpointed()
    for _ in range(2):
        net.chunk(torch.ones(5, 1, INPUTS), torch.zeros(1, 5))
    assert any(site.compiled for site in sites)  # outside of one


class CountsItsCalls(Net):
    def __init__(self):
        super().__init__()
        self.calls, self.given = 0, []

    def forward(self, x):
        self.calls += 1
        self.given.append(x.shape[1])
        return super().forward(x)


@contextlib.contextmanager
def hook_of_all_modules(seen):
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        yield
    finally:
        handle.remove()


AROUND = {
    "a TorchDispatchMode sees each of its operations there": lambda: FlopCounterMode(display=False),
    "a hook looks at the calls of all modules": lambda: hook_of_all_modules([]),
    "PyTorch is told to compile nothing there": lambda: torch.compiler.set_stance("force_eager"),
}


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("why", AROUND)
def test_calls_that_pytorch_does_not_compile_run_once(auto, caplog, why, first):
    """Before the first compilation, and after it; then loops run compiled as before."""
    calls, counted = itertools.count(), []

    def run(net, x):
        with AROUND[why]() if next(calls) % 4 == first else contextlib.nullcontext():
            out = net(x)
        counted.append((net.calls, len(net.given)))
        return out

    sites = compare(run, make=CountsItsCalls, data=numbers(4))
    assert [site.label for site in sites if site.compiled]
    assert counted == [(n, n) for n in range(1, 9)]
    assert sum(f"runs as it is: {why}" in record.message for record in caplog.records) == 1


def test_hooks_of_all_modules_see_compiled_loops(auto):
    net, (x, *_), seen = Net(), numbers(), []
    for _ in range(3):
        net(x)
    assert any(site.compiled for site in auto.sites)
    with hook_of_all_modules(seen):
        net(x)
    assert [seen.count(one) for one in (nn.Linear, snn.Leaky, Net)] == [2 * STEPS, 2 * STEPS, 1]


class Looks(Net):
    """Fails at a step, by values alone."""

    def __init__(self):
        super().__init__()
        self.table, self.calls, self.rows = nn.Embedding(7, INPUTS), 0, []

    def forward(self, words):
        self.calls += 1
        self.rows.append(len(words))
        return super().forward(F.dropout(self.table(words), training=self.training))


def test_an_error_in_a_graph_is_the_loops_own(auto):
    """Its lines are the program's, and what stands before it is done, once; so are random numbers drawn."""
    net, words = Looks(), torch.arange(STEPS * BATCH).view(STEPS, BATCH) % 7
    for _ in range(3):
        net(words)
    assert any(site.compiled for site in auto.sites)
    wrong, state = words + 1, torch.get_rng_state()
    with pytest.raises(IndexError) as told:
        net(wrong)
    assert any(entry.name == "forward" and "self.table(words)" in str(entry.statement) for entry in told.traceback)
    assert (net.calls, net.rows) == (4, [STEPS] * 4)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    with auto.paused(), pytest.raises(IndexError):
        Net.forward(net, F.dropout(net.table(wrong)))
    assert torch.equal(after, torch.get_rng_state())
    assert torch.equal(net.eval()(words), net(words))


@pytest.mark.slow
def test_more_sizes_than_graphs(auto, monkeypatch):
    """All of a search over sizes runs compiled: at PyTorch's limit none did any more."""
    monkeypatch.setattr(tracing, "_GRAPHS", 2)

    def net_of(size):
        net = Net()
        net.fc1, net.fc2 = nn.Linear(INPUTS, size), nn.Linear(size, 2)
        return net

    x = numbers(1)[0]
    for size in (3, 4, 5, 6, 3):
        net = net_of(size)
        found = [net(x) for _ in range(3)]
        with auto.paused():
            assert all(torch.equal(one, net(x)) for one in found)
    assert [len(site.reports) for site in auto.sites if site.compiled] == [5]


def test_a_loop_that_is_not_faster_is_tried_once(auto, monkeypatch):
    monkeypatch.setattr(automatic, "LEFT", 0.0)
    sites = compare(lambda net, x: net(x))
    assert {len(site.reports) for site in sites} == {1}
    assert "as it is, not faster: of" in str(auto)
    assert " compiled: " not in str(auto)


def test_a_closure_and_keyword_arguments():
    def make(scale):
        def run(net, x, *, offset=0.0):
            mem1, mem2 = net.lif1.init_leaky(), net.lif2.init_leaky()
            for step in range(len(x)):
                _spk, mem1, mem2 = net.step(x[step] * scale + offset, mem1, mem2)
            return mem2

        return run

    run = make(0.5)
    signature = inspect.signature(run)
    assert any(site.compiled for site in compare(lambda net, x: run(net, x, offset=0.25)))
    assert inspect.signature(run) == signature


@pytest.mark.slow
def test_training_and_evaluation_and_other_lengths():
    def run(net, x):
        with torch.no_grad():
            net(x)
        net.eval()
        net(x[:4])
        net.train()
        return net(x)

    assert any(site.compiled for site in compare(run, data=numbers(3) + numbers(2, steps=9) + numbers(2, batch=1)))


class OfEither(nn.Module):
    """One class for both libraries, as in a comparison."""

    def __init__(self, library):
        super().__init__()
        self.fc, self.lif = nn.Linear(INPUTS, 5), library.Leaky(beta=0.9)

    def forward(self, x):
        mem, spikes = self.lif.reset_mem(), []
        for current in x:
            spk, mem = self.lif(self.fc(current), mem)
            spikes.append(spk)
        return torch.stack(spikes)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_a_network_of_snntorchs_neurons_beside_ours(first, auto, caplog):
    """It runs as it is, and ours compiled, whichever comes first."""
    nets = [OfEither(snn), OfEither(snntorch)]
    nets[1].load_state_dict(nets[0].state_dict())
    x = torch.randn(STEPS, BATCH, INPUTS)
    with caplog.at_level(logging.WARNING, logger="snnipu.compiler"):
        one, other = nets[first], nets[1 - first]
        made = [one(x), other(x), other(x), one(x), one(x), other(x), one(x), one(x), other(x), other(x)]
    assert all(torch.equal(made[0], again) for again in made)
    site = next(site for site in auto.sites if site.waits_for is None)
    assert site.decision == f"compiled: {STEPS} steps of lif"
    assert len(site.reports) == 1
    assert [record.getMessage() for record in caplog.records] == [f"{site.label} runs as it is: {automatic.OTHERS}"]


class Mixed(OfEither):
    """Its last neuron is snnTorch's."""

    def __init__(self):
        super().__init__(snn)
        self.readout = snntorch.Leaky(beta=0.8)

    def forward(self, x):
        spikes, mem, out = super().forward(x), self.readout.reset_mem(), []
        for current in spikes:
            spk, mem = self.readout(current, mem)
            out.append(spk)
        return torch.stack(out)


@pytest.mark.slow
def test_snntorchs_neurons_in_a_network_of_ours(auto):
    net, x = Mixed(), torch.randn(STEPS, BATCH, INPUTS)
    assert torch.equal(net(x), net(x))
    assert any("compiled" in site.decision for site in auto.sites)
    assert automatic.OTHERS not in str(auto)


def test_snntorchs_neurons_alone(auto):
    net = OfEither(snntorch)
    x = torch.randn(STEPS, BATCH, INPUTS)
    assert torch.equal(net(x), net(x))
    assert f"(forward)  as it is, {automatic.OTHERS}" in str(auto)


def decides(net, x):
    mem1, mem2 = net.lif1.init_leaky(), net.lif2.init_leaky()
    seen = 0
    for step in range(len(x)):
        spk, mem1, mem2 = net.step(x[step], mem1, mem2)
        if spk.sum() > 0:
            seen += 1
    return mem2 + seen


def test_what_cannot_be_compiled_says_so_once(caplog):
    with caplog.at_level(logging.WARNING, "snnipu.compiler"):
        sites = compare(decides, data=numbers(6))
    assert not any(site.compiled for site in sites)
    said = [record.getMessage() for record in caplog.records if "runs as it is" in record.getMessage()]
    assert 1 <= len(said) <= 2
    assert all("test_automatic.py" in one for one in said)


def evaluator():
    """What evaluates the frames of Python in this process; None where Python does not tell."""
    return tracing._evaluator and tracing._evaluator(tracing._interpreter())


@pytest.mark.slow
def test_a_loop_that_is_refused_leaves_pythons_frames_as_they_were():
    """TorchDynamo's evaluation of them would make each call of a function in the process slower."""
    before = evaluator()
    sites = compare(decides)
    assert any("decides by a tensor's value" in site.decision for site in sites)
    assert evaluator() == before
    compare(lambda net, x: net(x))
    assert evaluator() == before


@pytest.mark.parametrize("failed", [False, True])
def test_frames_are_put_back_after_an_error_by_the_last_thread_inside(failed, monkeypatch):
    """Another thread may be at work with TorchDynamo's."""
    now, put = ["python"], []
    monkeypatch.setattr(tracing, "_interpreter", lambda: None)
    monkeypatch.setattr(tracing, "_evaluator", lambda _: now[0])
    monkeypatch.setattr(tracing, "_set_evaluator", lambda _, evaluates: put.append(evaluates))
    monkeypatch.setattr(tracing.Restored, "failed", failed)
    with tracing.Restored():
        now[0] = "dynamo"
        with tracing.Restored():
            pass
        assert not put
    assert put == (["python"] if failed else [])


@pytest.mark.slow
def test_a_call_for_which_there_is_a_graph_does_not_pause_the_search(auto, monkeypatch):
    paused = []
    plain = auto.paused
    monkeypatch.setattr(auto, "paused", lambda: paused.append(1) or plain())
    net, traces = Net(), []
    for batch in (BATCH, BATCH, BATCH, BATCH + 1, BATCH):
        net(torch.randn(STEPS, batch, INPUTS)).sum().backward()
        traces.append(len(paused))
    assert 0 == traces[0] < traces[1] == traces[2] < traces[3] == traces[4]
    assert any(site.compiled for site in auto.sites)


class Record:
    """An object of the program's."""

    def __init__(self):
        self.potentials = []


class Appending(Net):
    """Lists on objects, which grow from call to call."""

    def __init__(self):
        super().__init__()
        self.spikes = []
        self.others = Record()

    def note(self, spk, mem):
        self.spikes.append(spk.detach())
        self.others.potentials.append(mem)

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        for t in range(len(x)):
            spk, mem1, mem2 = self.step(x[t], mem1, mem2)
            self.note(spk, mem2)
        return mem2


def halves(record):
    """What the loop appended, and what the compiled one did."""
    half = len(record) // 2
    return record[:half], record[half:]


@pytest.mark.slow
@needs_newer_dynamo
def test_lists_that_grow_from_call_to_call():
    made = []

    def run(net, x):
        if net not in made:
            made.append(net)
        out = net(x)
        assert len(net.spikes) % STEPS == 0
        return out

    sites = compare(run, make=Appending, data=numbers(12))
    assert [len(site.reports) for site in sites if site.compiled] == [2]
    net = made[0]
    assert len(net.spikes) == len(net.others.potentials) == 2 * 12 * STEPS
    for record in (net.spikes, net.others.potentials):
        assert all(torch.equal(one, other) for one, other in zip(*halves(record)))


@needs_newer_dynamo
class KeepsItsMembrane(Net):
    """On itself, as its spikes: TorchDynamo's trace holds all of it until it is let go of."""

    def __init__(self):
        super().__init__()
        self.mem, self.spikes = None, []

    def forward(self, x):
        self.mem = torch.zeros(x.shape[1], 5)
        for t in range(len(x)):
            spk, self.mem = self.lif1(self.fc1(x[t]), self.mem)
            self.spikes.append(spk.detach())
        return self.fc2(self.mem)


@pytest.mark.slow
def test_a_list_beside_a_state_on_the_object(auto):
    gc.disable()
    try:
        sites = compare(lambda net, x: net(x), make=KeepsItsMembrane, data=numbers(8))
    finally:
        gc.enable()
    assert [len(site.reports) for site in sites if site.compiled] == [2]


@pytest.mark.slow
def test_a_list_that_is_emptied_and_exchanged_between_calls():
    lengths = []

    def run(net, x):
        out = net(x)
        lengths.append((len(net.spikes), len(net.others.potentials)))
        net.spikes.clear()
        net.others.potentials = net.others.potentials[-2:]
        return out

    sites = compare(run, make=Appending, data=numbers(6))
    assert [len(site.reports) for site in sites if site.compiled] == [2]
    assert lengths == [(STEPS, STEPS), *[(STEPS, STEPS + 2)] * 11]


class OnceTooMany(Appending):
    """After an error the lists have what they had."""

    fails = False

    def note(self, spk, mem):
        super().note(spk, mem)
        if self.fails:
            raise RuntimeError("in the middle")


@pytest.mark.slow
@needs_newer_dynamo
def test_an_error_leaves_the_lists_on_their_objects():
    net, data = OnceTooMany(), numbers(5)
    for x in data[:-1]:
        net(x)
    record = net.spikes
    net.fails = True
    with pytest.raises(RuntimeError, match="in the middle"):
        net(data[-1])
    assert net.spikes is record
    assert len(record) == 4 * STEPS + 1
    net.fails = False
    net(data[-1])
    assert len(record) == 5 * STEPS + 1


class Looking(Appending):
    """The list is read from the fifth call on."""

    calls = 0

    def __init__(self):
        super().__init__()
        self.looks = False

    def read(self):
        return sum(one.sum() for one in self.spikes)

    def forward(self, x):
        out = super().forward(x)
        return out + self.read() if self.looks else out


WRITTEN = """
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
"""


@pytest.mark.slow
def test_a_module_without_neurons_that_is_loaded_later(auto, tmp_path, monkeypatch):
    monkeypatch.setattr(automatic.Automatic, "adopt_all", ADOPT_ALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "written_module.py").write_text(WRITTEN)
    import written_module

    x = torch.randn(STEPS, BATCH, INPUTS)
    results = [written_module.run(x) for _ in range(4)]
    monkeypatch.delitem(sys.modules, "written_module")
    assert all(torch.equal(one, results[0]) for one in results)
    assert "compiled: 6 steps" in str(auto), str(auto)


@pytest.mark.slow
@needs_newer_dynamo
def test_a_list_that_is_read_later():
    def run(net, x):
        net.calls += 1
        net.looks = net.calls >= 5
        return net(x)

    torch.manual_seed(1)
    net, data = Looking(), numbers(7)
    with automatic._auto.paused():
        expected = trained(run, net, data)
    net.spikes.clear()
    net.calls = 0
    found = trained(run, net, data)
    for (out, _), (wanted, _) in zip(found, expected):
        assert torch.equal(out, wanted)


class Growing(Appending):
    """A list that grows from call to call, and is read."""

    def note(self, spk, mem):
        super().note(spk, mem)
        assert self.spikes


@pytest.mark.slow
@needs_newer_dynamo
@pytest.mark.parametrize("alias", [False, True])
def test_a_loop_that_is_compiled_anew_at_every_call_is_left_alone(caplog, alias):
    held = []

    def run(net, x):
        if alias:  # whoever has the list could read it
            held[:] = [net.spikes]
        return net(x)

    with caplog.at_level(logging.WARNING, "snnipu.compiler"):
        sites = compare(run, make=Appending if alias else Growing, data=numbers(12))
    site = next(site for site in sites if site.reports)
    assert len(site.reports) <= automatic.USELESS + 1
    assert any("compiled anew" in reason for reason in site.reasons.values())
    assert "compiled anew" in caplog.text
    lines = [line.text for note in site.notes for line in note.lines]
    assert lines == ["self.spikes.append(spk.detach())"]
    assert "begin with a new list" in str(automatic._auto)


class Renewed(Net):
    """A list that each call makes, and gives to the object."""

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        spikes = []
        for t in range(len(x)):
            spk, mem1, mem2 = self.step(x[t], mem1, mem2)
            spikes.append(spk.detach())
        self.spikes = spikes
        return mem2


def test_a_new_list_in_each_call_is_compiled_once():
    sites = compare(in_forward, make=Renewed, data=numbers(6))
    assert [len(site.reports) for site in sites if site.compiled] == [1]
    assert f"compiled: {STEPS} steps of lif1, lif2" in str(automatic._auto)


def assert_types(trace, spikes):
    assert {type(one) for one in trace} == {float}
    assert type(spikes) is int


class Counting(Net):
    """Numbers of Python's, kept at every step: on the network, in a dictionary and in a list."""

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        self.spikes, found, trace = 0, {"mem": 0.0}, []
        for t in range(len(x)):
            spk, mem1, mem2 = self.step(x[t], mem1, mem2)
            self.spikes += int(spk.sum().item())
            found["mem"] += mem2.detach().cpu().abs().max().item()
            trace.append(mem1[0, 0].item())
        assert_types(trace, self.spikes)
        return torch.stack([mem2.sum(), *(torch.tensor(one) for one in (self.spikes, found["mem"], *trace))])


def test_numbers_that_python_keeps():
    sites = compare(in_forward, make=Counting)
    assert [site.compiled for site in sites] == [True]
    assert f"compiled: {STEPS} steps of lif1, lif2" in str(automatic._auto)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["with", "default"])
def test_numbers_that_python_keeps_inside_a_device(auto, device):
    """PyTorch's graph has None for them."""

    def run(net, x):
        with torch.device("cpu") if device == "with" else contextlib.nullcontext():
            return net(x)

    try:
        torch.set_default_device("cpu" if device == "default" else None)
        sites = compare(run, make=Counting)
        assert [site.compiled for site in sites] == [False]
        assert automatic.NO_NUMBER in str(auto)
        sites = compare(run)  # without numbers
    finally:
        torch.set_default_device(None)
    assert [site.compiled for site in sites if site.label.endswith("(forward)")].count(True) == 1


class Counted(Net):
    """Numbers that an object keeps from call to call, by which it also decides, and computes."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.steps, self.last, self.warm = 0, 0, 0, 0.0, 5
        self.often = {"calls": 0}

    def forward(self, x):
        self.calls += 1
        self.seen += x.shape[1]
        self.last = self.last + 0.5
        self.often["calls"] += 1
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        spikes = []
        for t in range(len(x)):
            self.steps += 1
            spk, mem1, mem2 = self.step(x[t] * (1 + 1 / self.seen), mem1, mem2)
            spikes.append(spk)
        if self.calls > self.warm:
            spikes = spikes[1:]
        return torch.stack(spikes) * self.last + self.calls


@pytest.mark.slow
@needs_newer_dynamo
def test_numbers_that_an_object_counts_are_no_reason_to_compile_anew():
    data, torch_seed = numbers(9), 1
    torch.manual_seed(torch_seed)
    net = Counted()
    with automatic._auto.paused():
        expected = trained(in_forward, net, data)
    torch.manual_seed(torch_seed)
    net = Counted()
    found = trained(in_forward, net, data)
    for (out, gradients), (wanted, others) in zip(found, expected):
        torch.testing.assert_close(out, wanted)
        torch.testing.assert_close(gradients, others)
    counted = [(net.calls, net.seen, net.steps, net.last), net.often]
    assert counted == [(9, 9 * BATCH, 9 * STEPS, 4.5), {"calls": 9}]
    assert [type(one) for one in counted[0]] == [int, int, int, float]
    # One more for numbers that are not the same at each call, and one for where the loop's end is another one.
    assert [len(site.reports) for site in automatic._auto.sites if site.compiled] == [3]
    assert not [site for site in automatic._auto.sites if site.reasons]


class Deciding(Net):
    """A loop that no compiler takes."""

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        total = 0.0
        for t in range(len(x)):
            spk, mem1, mem2 = self.step(x[t], mem1, mem2)
            if spk.sum().item() > 1:
                total += 1
        return mem2 + total


class Entangled(Net):
    """Spikes that come back through another layer of neurons, and nothing besides."""

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        spk = torch.zeros(x.shape[1], 2)
        for t in range(len(x)):
            first, mem1 = self.lif1(self.fc1(x[t] + spk.repeat(1, 2)), mem1)
            spk, mem2 = self.lif2(self.fc2(first), mem2)
        return mem2


def entangled_beside_what_ends_a_graph(net, x):
    mem1, mem2 = net.lif1.reset_mem(), net.lif2.reset_mem()
    mem3, other = net.lif1.reset_mem(), torch.zeros(x.shape[1], 2)
    for t in range(len(x)):
        mixed = net.fc1(x[t]) + other.repeat(1, 3)[:, :5]
        inner, mem1 = net.lif1(mixed, mem1)
        other, mem2 = net.lif2(net.fc2(inner), mem2)
    mem3.sum().item()
    return mem2


@pytest.mark.slow
def test_the_record_tells_of_loops_that_are_left_as_they_are():
    compare(entangled_beside_what_ends_a_graph)
    compare(in_forward, make=Deciding)
    compare(in_forward, make=Entangled)
    told = str(automatic._auto)
    lines = pathlib.Path(__file__).read_text().splitlines()
    for line in (
        "if spk.sum().item() > 1:",
        "first, mem1 = self.lif1(self.fc1(x[t] + spk.repeat(1, 2)), mem1)",
        "mixed = net.fc1(x[t]) + other.repeat(1, 3)[:, :5]",  # of a loop that is compiled alone
    ):
        number = next(place for place, text in enumerate(lines, 1) if text.strip() == line)
        assert f"test_automatic.py:{number}  {line}" in told
    assert "as it is, refused: Python decides by a tensor's value" in told
    assert "as it is, not faster: no neuron's steps become one operator" in told
    assert "through another neuron" in told


class Random(Net):
    """NumPy's random numbers in the loop."""

    def forward(self, x):
        np.random.seed(0)
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        for t in range(len(x)):
            _spk, mem1, mem2 = self.step(x[t] * float(np.random.rand()), mem1, mem2)
        return mem2


def test_random_numbers_of_numpy_are_those_of_the_loop():
    compare(in_forward, make=Random)


class Blocks(nn.Module):
    """``utils.reset`` of a part resets all neurons of its kinds, those of the other parts too."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(
            nn.Linear(INPUTS, INPUTS), snn.Leaky(0.9, init_hidden=True), snn.Synaptic(0.9, 0.8, init_hidden=True)
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Sequential(
                    nn.Linear(INPUTS, INPUTS),
                    snn.Leaky(0.9, init_hidden=True),
                    snn.Synaptic(0.9, 0.8, init_hidden=True),
                )
            )
            for _ in range(2)
        )

    def forward(self, x):
        utils.reset(self.first)
        out = []
        for t in range(len(x)):
            y = self.first(x[t])
            for block in self.blocks:
                y = block(y + x[t])
            out.append(y)
        return torch.stack(out)


@pytest.mark.slow
@pytest.mark.skipif(not installed.reset_reaches_others(), reason="the installed snnTorch's reset is of one network")
def test_a_reset_reaches_neurons_that_other_modules_have():
    assert any(site.compiled for site in compare(in_forward, make=Blocks))


def reset_alone(net):
    """As snnTorch's next release has it."""
    for module in net.modules():
        if isinstance(module, snntorch.SpikingNeuron):
            module.reset_mem()


class TwoHalves(Blocks):
    """The other parts go on where the first begins anew."""

    def forward(self, x):
        utils.reset(self)
        out = []
        for t in range(len(x)):
            if t == STEPS // 2:
                utils.reset(self.first)
            y = self.first(x[t])
            for block in self.blocks:
                y = block(y + x[t])
            out.append(y)
        return torch.stack(out)


@pytest.mark.slow
def test_a_reset_of_that_network_alone(monkeypatch):
    monkeypatch.setattr(utils, "reset", reset_alone)
    before = list(snntorch.SpikingNeuron.instances)
    assert not installed.reset_reaches_others()
    assert list(snntorch.SpikingNeuron.instances) == before
    assert any(site.compiled for site in compare(in_forward, make=TwoHalves))


def test_an_error_of_the_program_is_the_programs():
    net = Net()
    data = numbers(3)
    for x in data:
        net(x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        net(torch.zeros(STEPS, BATCH, INPUTS + 1))
    assert torch.isfinite(net(data[0])).all()


@pytest.mark.slow
def test_one_step_in_a_loop_over_batches_is_left_alone():
    net = nn.Sequential(nn.Linear(INPUTS, 2), snn.Leaky(0.9, init_hidden=True))

    def run():
        for x in numbers(1)[0]:
            out = net(x.detach())
            out.sum().item()
            utils.reset(net)

    for _ in range(3):
        run()
    assert not any(site.compiled for site in automatic._auto.sites)


READ = """
import json


def read(lines):
    skipped, v = [], None
    for line in lines:
        try:
            v = float(line)
        except ValueError as e:
            skipped.append(str(e))
    return v, skipped


def pairs(n):
    return [(i, j) for i in range(n) for j in range(n)]


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


def test_functions_without_a_neuron_keep_the_code_that_python_made(auto, tmp_path, monkeypatch):
    """Those with a loop inside another one run it as it is."""
    monkeypatch.setattr(automatic.Automatic, "adopt_all", ADOPT_ALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reading_module.py").write_text(READ)
    import reading_module

    monkeypatch.delitem(sys.modules, "reading_module")
    functions = [reading_module.read, reading_module.pairs, reading_module.Table.rows]
    before = [function.__code__ for function in (*functions, reading_module.Table.largest)]
    net, x = Net(), numbers(1)[0]
    sys.modules["reading_module"] = reading_module
    for _ in range(3):
        net(x)
        assert reading_module.read(["1", "x", "3"]) == (3.0, ["could not convert string to float: 'x'"])
        assert reading_module.Table().largest() == 2
    assert all(function.__code__ is code for function, code in zip(functions, before))
    largest = reading_module.Table.largest
    assert largest.__code__ is not before[-1]
    names = [name for name in largest.__code__.co_names if name.startswith("__snnipu")]
    assert [vars(reading_module)[name] for name in names if "unbound" not in name] == [False] * 3
    auto.stop()
    assert largest.__code__ is before[-1]


class Normalised(Net):
    """A loop that changes tensors from outside of it."""

    def __init__(self):
        super().__init__()
        self.norm, self.rates, self.ran = nn.BatchNorm1d(INPUTS), torch.zeros(STEPS), 0

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        for step in range(x.size(0)):
            spk, mem1, mem2 = self.step(self.norm(x[step].float()).to(x.dtype), mem1, mem2)
            self.rates[step] = spk.detach().mean()
            self.ran += 1
        return mem2


def test_an_error_of_dtypes_comes_where_the_loop_has_it(auto):
    """TorchDynamo's trace of a product does not meet it: the graph would run up to it, and beyond the loop's step."""
    nets, (x,) = [Normalised(), Normalised()], numbers(1)
    for net in nets:
        with auto.paused() if net is nets[0] else contextlib.nullcontext():
            for _ in range(3):
                net(x)
            for change in (lambda net: (net, x.double()), lambda net: (net, x, net.fc2.double())[:2]):
                changed, given = change(net)
                with pytest.raises(RuntimeError, match="same dtype"):
                    changed(given)
                net.fc2.float()
            net(x)
    for own, other in zip(nets[0].buffers(), nets[1].buffers()):
        torch.testing.assert_close(own, other)
    assert [net.ran for net in nets] == [4 * STEPS] * 2
    assert any(site.compiled for site in auto.sites)


def prints_now_and_then(net, x, step_of_it):
    mem1, mem2 = net.lif1.init_leaky(), net.lif2.init_leaky()
    for step in range(x.size(0)):
        _spk, mem1, mem2 = net.step(x[step], mem1, mem2)
        if step == step_of_it:
            print(*(float(mem.sum()) for mem in (mem1, mem2)))
    return mem2


@needs_newer_dynamo
def test_what_stands_under_an_if_is_no_hindrance_where_it_is_not_taken(auto, capsys, monkeypatch):
    """Calls that take it run as they are: some in a row are the end of it, one now and then is not."""
    monkeypatch.setattr(automatic, "FORGOTTEN", 2)
    net, data = exact(Net()), exact_numbers(STEPS, BATCH, INPUTS)
    expected = []
    for step in [*range(STEPS), STEPS]:
        with auto.paused():
            out = prints_now_and_then(net, data, step)
        expected.append((out, capsys.readouterr().out))
    never = STEPS
    for step in [never, never, never, 2, never, never, 4, never, never, 1, never, never, 0, never]:
        out = prints_now_and_then(net, data, step)
        assert torch.equal(out, expected[step][0])
        assert capsys.readouterr().out == expected[step][1]
    (site,) = [one for one in auto.sites if "prints_now" in one.label]
    assert site.compiled
    for step in (0, 1, 2, 3):
        assert torch.equal(prints_now_and_then(net, data, step), expected[step][0])
    assert "refused: it prints" in str(auto)


def stops_early(net, x):
    mem = net.lif1.init_leaky()
    for step in range(x.size(0)):
        spk, mem = net.lif1(net.fc1(x[step]), mem)
        if spk.sum() < -1:
            break
    return spk


def test_a_cause_is_told_once(auto, caplog):
    """Of a function and of its loop, which is tried alone, the same line ends both graphs."""
    caplog.set_level(logging.WARNING, "snnipu.compiler")

    net = Net()
    for x in numbers():
        stops_early(net, x)
    refused = "refused: Python decides by a tensor's value"
    assert caplog.text.count(refused) == 1
    told = str(auto)
    assert told.count(refused) == 2
    assert told.count("the cause: ") == told.count("Instead: ") == 1


class Hooked(Net):
    """All of its neurons are looked at."""

    def __init__(self):
        super().__init__()
        for lif in (self.lif1, self.lif2):
            lif.register_forward_hook(lambda *given: None)


class HookedElsewhere(Hooked):
    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        for t in range(len(x)):
            _spk, mem1, mem2 = self.step(x[t], mem1, mem2)
        return mem2


def test_two_loops_of_one_reason_are_both_named(auto, caplog):
    caplog.set_level(logging.WARNING, "snnipu.compiler")
    for net in (Hooked(), HookedElsewhere()):
        for x in numbers():
            net(x)
    named = {record.getMessage().split(" runs as it is")[0] for record in caplog.records}
    assert len(named) == 2


def by_fire(net, x):
    mem, spikes = torch.zeros(x.shape[1], 5), []
    for step in range(x.size(0)):
        mem = 0.5 * mem + net.fc1(x[step])
        spk = net.lif1.fire(mem)
        mem = mem - spk
        spikes.append(spk)
    return torch.stack(spikes)


def test_a_loop_that_calls_a_part_of_a_neuron_is_found():
    assert [site.label for site in compare(by_fire)]


def test_a_loop_of_snntorchs_own_that_learns(auto):
    net = nn.Sequential(nn.Linear(INPUTS, 3), snn.Leaky(beta=0.9, init_hidden=True, output=True))
    data = [(torch.rand(BATCH, INPUTS), torch.zeros(BATCH, dtype=torch.long)) for _ in range(3)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    how = {"criterion": ce_rate_loss(), "num_steps": 4, "time_var": False, "device": "cpu"}
    backprop.BPTT(net, data, optimizer=optimizer, **how)
    assert "(TBPTT)  as it is, refused: this loop of snnTorch's own learns between its steps" in str(auto)
    assert "write the loop over time in the network" in str(auto)


@pytest.mark.slow
def test_after_stop_all_runs_as_it_is():
    net, data = Net(), numbers()
    code = Net.forward.__code__
    for x in data:
        over_batches(net, x)
        net(x)
    assert Net.forward.__code__ is not code
    sites = [site for site in automatic._auto.sites if site.compiled]
    assert sites
    automatic._auto.stop()
    for site in sites:
        site._compiled = None  # a call would compile it anew
    net(data[0])
    over_batches(net, data[0])
    assert all(site._compiled is None for site in sites)


def test_stop():
    automatic._auto.stop()
    net = Net()
    for x in numbers():
        net(x)
    assert not automatic._auto.sites
    assert "no loop" in str(automatic._auto)


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
"""


@pytest.mark.slow
def test_a_traceback_begins_with_the_scripts_own_lines(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import snntorch\n1 // 0\n")
    command = [sys.executable, "-m", "snnipu", "run", "--compile", str(script)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "automatic.py" not in found.stderr
    assert "ZeroDivisionError" in found.stderr


@pytest.mark.slow
def test_a_script_with_all_of_it_at_its_top_level(tmp_path):
    script = tmp_path / "my.py"
    script.write_text(textwrap.dedent(SCRIPT))
    plain = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    command = [sys.executable, "-m", "snnipu", "run", "--compile", str(script)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=True)
    found, expected = (done.stdout.split() for done in (compiled, plain))
    assert len(found) == 18
    assert list(map(float, found[:-1])) == pytest.approx(list(map(float, expected[:-1])), rel=1e-5, abs=2e-5)
    assert found[-1] == expected[-1]
    assert "my.py:11 runs compiled: 5 steps of lif" in compiled.stderr


class Written(nn.Module):
    """A neuron that is written out: no module, but its surrogate is snnipu's."""

    def __init__(self):
        super().__init__()
        self.fc, self.spike = nn.Linear(INPUTS, 5), snn.surrogate.fast_sigmoid()

    def fire(self, mem):
        return self.spike(mem - 0.5)

    def forward(self, x):
        mem, spikes = torch.zeros(x.shape[1], 5), []
        for current in x:
            mem = 0.9 * mem + self.fc(current)
            spk = self.fire(mem)
            mem = mem - spk * 0.5
            spikes.append(spk)
        return torch.stack(spikes)


def test_a_loop_of_a_neuron_that_is_written_out_is_found():
    sites = compare(in_forward, make=Written)
    assert [(site.reports[0].neurons[0].steps, site.compiled) for site in sites if site.reports] == [(STEPS, True)]


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return grad / (1 + 10 * u.abs()) ** 2


class WrittenWithFunction(Written):
    """Its surrogate is the program's own, too."""

    def __init__(self):
        super().__init__()
        self.spike = Spike.apply


class WithFunctionOfBefore(Net):
    """A network that there was before anyone looked, and so has PyTorch's own ``apply``."""

    def __init__(self):
        super().__init__()
        self.spike = automatic._APPLY.__get__(None, Spike)

    def step(self, x, mem1, mem2):
        spk, mem1, mem2 = super().step(x, mem1, mem2)
        return self.spike(spk - 0.5), mem1, mem2


class OwnNeuron(snntorch.Leaky):
    """The program's own class of a neuron of snnTorch's, which is one that is written out."""

    def forward(self, x, mem):
        mem = self.beta * mem + x
        spk = Spike.apply(mem - self.threshold)
        return spk, mem - spk.detach() * self.threshold


class OfOwnNeurons(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.lif = nn.Linear(INPUTS, 5), OwnNeuron(0.9, threshold=0.4)

    def forward(self, x):
        mem, spikes = torch.zeros(x.shape[1], 5), []
        for current in x:
            spk, mem = self.lif(self.fc(current), mem)
            spikes.append(spk)
        return torch.stack(spikes)


@pytest.mark.slow
@needs_dynamo_of_2_12
@pytest.mark.parametrize("make", [WrittenWithFunction, WithFunctionOfBefore, OfOwnNeurons])
def test_a_loop_of_a_neuron_with_a_function_of_the_programs_is_found(make):
    sites = compare(in_forward, make=make)
    rolled = [site.reports[0].neurons[0] for site in sites if site.compiled]
    assert rolled
    assert all(neuron.rolled and neuron.steps >= STEPS - 1 for neuron in rolled)


class DecidesByTheCode(snntorch.SpikingNeuron):
    """A class of the program's own, written as snnTorch's were."""

    def __init__(self, reset_mechanism="subtract"):
        super().__init__(threshold=0.4, reset_mechanism=reset_mechanism)

    def forward(self, x, mem):
        self.reset = self.mem_reset(mem)
        mem = 0.9 * mem + x
        if self.reset_mechanism_val == 0:
            mem = mem - self.reset * self.threshold
        elif self.reset_mechanism_val == 1:
            mem = mem - self.reset * mem
        return self.fire(mem), mem


class OfDecidingNeurons(OfOwnNeurons):
    def __init__(self):
        super().__init__()
        self.lif = DecidesByTheCode()


def in_place(net):
    net.load_state_dict({**net.state_dict(), "lif.reset_mechanism_val": torch.tensor(1)})


def by_name(net):
    net.lif.reset_mechanism = "none"


@pytest.mark.slow
@needs_dynamo_of_2_12
@pytest.mark.parametrize("change", [in_place, by_name])
def test_a_neuron_that_decides_by_the_code_of_its_reset(change, auto):
    sites = compare(in_forward, make=OfDecidingNeurons)
    assert [site.reports[0].neurons[0].steps for site in sites if site.compiled] == [STEPS]
    torch.manual_seed(1)
    net, (x,) = OfDecidingNeurons(), numbers(1)
    assert list(net.lif.state_dict()) == list(snntorch.SpikingNeuron().state_dict())
    expected, made = [], []
    for _ in range(2):
        net(x)
        torch.testing.assert_close(net(x), as_it_is(auto, net, x), rtol=0, atol=1e-6)
        expected.append(as_it_is(auto, net, x))
        made.append([len(site.reports) for site in auto.sites if site.compiled])
        change(net)
    assert not torch.equal(*expected)
    assert made == [[1], [2]]


def as_it_is(auto, net, x):
    auto.searches = False
    try:
        return net(x)
    finally:
        auto.searches = True


@pytest.mark.slow
@pytest.mark.parametrize("change", [in_place, by_name])
def test_such_a_neuron_in_what_nobody_checks(change, auto):
    """The graph ends where it decides."""
    auto.stop()
    net, (x,) = OfDecidingNeurons(), numbers(1)
    compiled = snn.compile(net)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), net(x), rtol=0, atol=1e-6)
        assert net(x).any()
        change(net)


SCRIPT_OF_LATER_CLASSES = """
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
print([site.decision for site in found.sites if "forward" in site.label])
print([site.decision for site in found.sites if "run" in site.label][-1])
print(sum(len(site.reports) for site in found.sites if "run" in site.label))
"""


@pytest.mark.slow
def test_functions_that_a_script_makes_later(tmp_path):
    """Their loops are compiled alone where the function is no graph, and those of functions that are made anew."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT_OF_LATER_CLASSES)
    found = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True)
    first, second, third = found.stdout.splitlines()
    assert first.count("compiled: 8 steps of lif") == 1
    assert first.count("as it is, refused: the size of a tensor depends on values of another one") == 1
    assert second == "compiled: 7 steps of lif"
    assert int(third) <= 3
    assert "cannot be traced" not in found.stderr


def test_functions_of_a_program_are_what_they_were_when_nobody_looks(auto):
    """They are kept as attributes: ``self.spike = Spike.apply``."""
    kept = Spike.apply
    auto.stop()
    x = torch.randn(5, requires_grad=True)
    for apply in (kept, Spike.apply):
        (made,) = torch.autograd.grad(apply(x).sum(), x)
        assert torch.equal(made, 1 / (1 + 10 * x.detach().abs()) ** 2)
    compiled = torch.compile(lambda x: kept(x) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), (x > 0).float() * 2)


def test_three_layers_with_one_surrogate_are_no_loop():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.spike = snn.surrogate.atan()
            self.cells = nn.ModuleList(Cell(self.spike) for _ in range(4))

        def forward(self, x):
            for cell in self.cells:
                x = cell(x)
            return x

    class Cell(nn.Module):
        def __init__(self, spike):
            super().__init__()
            self.fc, self.spike = nn.Linear(INPUTS, INPUTS), spike

        def forward(self, x):
            return self.spike(self.fc(x))

    net = Layers()
    net(torch.randn(2, INPUTS))
    assert automatic._auto.sites == []


def made_before(net):
    """A function in a function, which was made before its module's loops were looked for."""

    def inside(x):
        mem1, mem2 = net.lif1.init_leaky(), net.lif2.init_leaky()
        total = torch.zeros(())
        for step in range(x.size(0)):
            spk, mem1, mem2 = net.step(x[step], mem1, mem2)
            total = total + spk.sum()
        total.sum().item()
        return total

    return inside


_made = {}


def in_a_closure(net, x):
    return _made[id(net)](x)


def test_a_loop_in_a_function_that_was_made_before():
    code = next(one for one in made_before.__code__.co_consts if getattr(one, "co_name", "") == "inside")

    class Early(Net):
        def __init__(self):
            super().__init__()
            function = made_before(self)
            function.__code__ = code  # as it is where the module was imported, and the function made, before
            _made[id(self)] = function

    sites = compare(in_a_closure, make=Early)
    assert [site.compiled for site in sites if site.reports] == [True]


def test_functions_are_not_looked_for_at_every_call(auto, monkeypatch):
    looked = []
    plain = automatic.gc.get_objects
    monkeypatch.setattr(automatic.gc, "get_objects", lambda: looked.append(1) or plain())
    code = Net.forward.__code__
    for _ in range(20):
        auto._take_out(code)
        auto._take_out(code.replace(co_name="another"))
    assert len(looked) <= automatic.LOOKS


class ABlockForEachLayer(Net):
    """A loop in a method that is called for each layer, with other sizes."""

    def __init__(self):
        super().__init__()
        sizes = [INPUTS, 5, 6, 7, 8, 9]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.lifs = nn.ModuleList(snn.Leaky(beta=0.9) for _ in self.layers)

    def block(self, x, layer, lif):
        mem, spikes = lif.init_leaky(), []
        for t in range(len(x)):
            spk, mem = lif(layer(x[t]), mem)
            spikes.append(spk)
        return torch.stack(spikes)

    def forward(self, x):
        for layer, lif in zip(self.layers, self.lifs):
            x = self.block(x, layer, lif)
        float(x.sum())
        return x


@pytest.mark.slow
def test_a_block_for_each_layer_is_compiled_for_each():
    sites = compare(in_forward, make=ABlockForEachLayer, most=5)
    site = next(site for site in sites if site.reports)
    assert site.compiled
    assert len(site.reports) == 5
    assert not site.reasons
