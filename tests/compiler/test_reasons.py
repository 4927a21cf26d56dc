"""Why a neuron is called step by step: the program's lines are named, and what is to be written instead helps.

Each kind of reason has a program whose lines that cause it are marked ``# here``, in the order in which they are to be
told, and the program that is written instead.
"""

import inspect
import logging
import time

import pytest
import torch
from support.versions import needs_backend, needs_dynamo_of_2_12, needs_newer_dynamo
from torch import nn
from tqdm import tqdm

import snnipu as snn
from snnipu import compiler
from snnipu.compiler import reasons

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore")]
STEPS, BATCH, WIDTH = 5, 3, 4
LOG = logging.getLogger(__name__)


@snn.neuron(states=("mem",), parameters={"beta": 0.9})
def Clamped(x, mem, *, beta, spike):
    """The membrane stays above a bound."""
    mem = torch.clamp(beta * mem + x, min=-0.25)
    return spike(mem - 1), mem


@snn.neuron(states=("spk", "mem", "extra"), parameters={"beta": 0.9})
def Adaptive(x, spk, mem, extra, *, beta, spike):
    """Each spike raises the threshold, and comes back to the input."""
    mem = beta * mem + x - 0.5 * spk
    extra = extra + 0.1 * spk
    return spike(mem - 1 - extra), mem, extra


class Quiet(snn.Leaky):
    """A part of snnTorch's step replaced."""

    def _base_state_function(self, input_):
        return super()._base_state_function(input_) - 0.1 * self.mem.mean(1, keepdim=True)


class Net(nn.Module):
    """What the programs are made of."""

    def __init__(self, **keywords):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.lif1 = nn.Linear(WIDTH, WIDTH), snn.Leaky(beta=0.9)
        self.fc2, self.lif2 = nn.Linear(WIDTH, WIDTH), snn.Leaky(beta=0.8)
        self.rec, self.rec2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.clamped, self.adaptive = Clamped(), Adaptive()
        self.syn, self.spike = snn.Synaptic(alpha=0.8, beta=0.9), snn.surrogate.atan()
        for name, module in keywords.items():
            setattr(self, name, module)

    def states(self):
        return self.lif1.init_leaky(), self.lif2.init_leaky()


class Hooked(Net):
    def __init__(self):
        super().__init__()
        self.seen = []
        self.lif1.register_forward_hook(lambda module, given, out: self.seen.append(out[0]))


class OfAll(torch.autograd.Function):
    """Spikes whose gradient depends on all neurons."""

    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return grad / (1 + (u - u.mean()).abs())


def plain(net, x):
    mem, mem2 = net.states()
    spikes = []
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)  # here
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
        spikes.append(spk2)
    return torch.stack(spikes)


def records(net, x):
    mem, mem2 = net.states()
    seen, spikes = [], []
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        seen.append(spk)
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
        spikes.append(spk2)
    return torch.stack(spikes), torch.stack(seen)


def one_step(net, x):
    mem, mem2 = net.states()
    spk, mem = net.lif1(net.fc1(x[0]), mem)  # here
    return net.lif2(net.fc2(spk), mem2)  # here


def restarted(net, x):
    spikes, start = [], torch.full((x.shape[1], WIDTH), 0.5)
    for t in range(STEPS):
        spk, _mem = net.lif1(net.fc1(x[t]), start)  # here
        spikes.append(spk)
    return torch.stack(spikes)


def centred(net, x):
    mem, mem2 = net.states()
    spikes = []
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        mem = mem - mem.mean(1, keepdim=True)  # here
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
        spikes.append(spk2)
    return torch.stack(spikes)


def spikes_in_its_place(net, x):
    spk, mem2 = net.states()
    spikes = []
    for t in range(STEPS):
        spk, _mem = net.lif1(net.fc1(x[t]), spk)  # here
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
        spikes.append(spk2)
    return torch.stack(spikes)


def clamp_in_place(net, x):
    mem, mem2 = net.states()
    spikes, mems = [], []
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        mems.append(mem)
        mem.clamp_(min=-0.25)  # here
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
        spikes.append(spk2)
    return torch.stack(spikes), torch.stack(mems)


def clamped_by_its_equations(net, x):
    (mem,), mem2 = net.clamped.reset_mem(), net.lif2.init_leaky()
    spikes = []
    for t in range(STEPS):
        spk, mem = net.clamped(net.fc1(x[t]), mem)
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
        spikes.append(spk2)
    return torch.stack(spikes)


def threshold_in_place(net, x):
    mem, mem2 = net.states()
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        net.lif1.threshold += 0.01 * spk.mean()  # here
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
    return spk2


def threshold_by_a_method(net, x):
    mem, mem2 = net.states()
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        net.lif1.threshold.add_(0.01 * spk.mean())  # here
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
    return spk2


def threshold_after_the_loop(net, x):
    mem, mem2 = net.states()
    spikes = []
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        spikes.append(spk)
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
    net.lif1.threshold += 0.01 * torch.stack(spikes).mean()
    return spk2


def adaptive(net, x):
    states, mem2 = net.adaptive.reset_mem(), net.lif2.init_leaky()
    for t in range(STEPS):
        spk, *others = net.adaptive(net.fc1(x[t]), *states)
        states = (spk, *others)
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
    return spk2


def last_is_smaller(net, x):
    mem, _ = net.states()
    spikes = []
    for t in range(STEPS):
        cur = net.fc1(x[t])
        cur = cur[:2] if t == STEPS - 1 else cur.relu()  # here
        spk, mem = net.lif1(cur, mem)
        spikes.append(spk[:2])
    return torch.stack(spikes)


def resets_by_turns(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        net.lif1.reset_mechanism = ("subtract", "zero")[t % 2]
        spk, mem = net.lif1(net.fc1(x[t]), mem)  # here
    return spk


def resets_as_set_before(net, x):
    mem, _ = net.states()
    net.lif1.reset_mechanism = "zero"
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
    return spk


def doubled_in_place(net, x):
    mem, mem2 = net.states()
    spikes = []
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        spikes.append(spk[:, 1:])
        spk *= 2  # here
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
    return torch.stack(spikes), spk2


def doubled(net, x):
    mem, mem2 = net.states()
    spikes = []
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        spk = spk * 2
        spikes.append(spk[:, 1:])
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
    return torch.stack(spikes), spk2


def inhibits_itself(net, x):
    mem, _ = net.states()
    spk = torch.zeros(BATCH, WIDTH)
    for t in range(STEPS):
        cur = net.fc1(x[t])
        cur = cur - net.fc2(x[t]) * spk  # here
        spk, mem = net.lif1(cur, mem)  # here
    return spk


def comes_back_by_two_layers(net, x):
    mem, mem2 = net.states()
    spk = torch.zeros(BATCH, WIDTH)
    for t in range(STEPS):
        back = net.rec(spk)  # here
        back = net.rec2(back)  # here
        cur = net.fc1(x[t]) + back  # here
        spk, mem = net.lif1(cur, mem)  # here
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
    return spk2


def comes_back_through_another(net, x):
    mem, mem2 = net.states()
    spk2 = torch.zeros(BATCH, WIDTH)
    for t in range(STEPS):
        cur = net.fc1(x[t]) + net.rec(spk2)  # here
        spk, mem = net.lif1(cur, mem)  # here
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)  # here
    return spk2


def comes_back_by_one_layer(net, x):
    mem, mem2 = net.states()
    spk = torch.zeros(BATCH, WIDTH)
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]) + net.rec(spk), mem)
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
    return spk2


def comes_back_in_rleaky(net, x):
    (spk, mem), mem2 = net.recurrent.reset_mem(), net.lif2.init_leaky()
    for t in range(STEPS):
        spk, mem = net.recurrent(net.fc1(x[t]), spk, mem)
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
    return spk2


def cast_at_every_step(net, x):
    mem, mem2 = net.states()
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        with torch.autocast("cpu", torch.bfloat16):
            cur = net.fc2(spk)  # here
        spk2, mem2 = net.lif2(cur.float(), mem2)
    return spk2


def cast_around_the_loop(net, x):
    mem, mem2 = net.states()
    with torch.autocast("cpu", torch.bfloat16):
        for t in range(STEPS):
            spk, mem = net.lif1(net.fc1(x[t]).float(), mem)
            spk2, mem2 = net.lif2(net.fc2(spk).float(), mem2)
    return spk2


def noise_like_results(net, x):
    mem, mem2 = net.states()
    for t in range(STEPS):
        cur = net.fc1(x[t])
        spk, mem = net.lif1(cur + torch.bernoulli(cur.sigmoid()), mem)  # here
        spk2, mem2 = net.lif2(torch.normal(net.fc2(spk), 1.0), mem2)  # here
    return spk2


def noise_of_all_steps(net, x):
    mem, mem2 = net.states()
    noise, more = torch.rand(STEPS, BATCH, WIDTH), torch.randn(STEPS, BATCH, WIDTH)
    for t in range(STEPS):
        cur = net.fc1(x[t])
        spk, mem = net.lif1(cur + (noise[t] < cur.sigmoid()), mem)
        spk2, mem2 = net.lif2(net.fc2(spk) + more[t], mem2)
    return spk2


def reads_what_is_written(net, x):
    mem, _ = net.states()
    record = torch.zeros(STEPS, BATCH, WIDTH)
    for t in range(STEPS):
        record[t] = net.fc1(x[t])  # here
        spk, mem = net.lif1(record[t], mem)
    return spk, record


def gives_the_value(net, x):
    mem, _ = net.states()
    record = []
    for t in range(STEPS):
        cur = net.fc1(x[t])
        record.append(cur)
        spk, mem = net.lif1(cur, mem)
    return spk, torch.stack(record)


def in_sixteen_bit(net, x):
    (syn, mem), mem2 = net.syn.reset_mem(), net.lif2.init_leaky()
    for t in range(STEPS):
        spk, syn, mem = net.syn(net.fc1(x[t]).bfloat16(), syn, mem)  # here
        spk2, mem2 = net.lif2(net.fc2(spk.float()), mem2)
    return spk2


def in_single_precision(net, x):
    (syn, mem), mem2 = net.syn.reset_mem(), net.lif2.init_leaky()
    for t in range(STEPS):
        spk, syn, mem = net.syn(net.fc1(x[t]), syn, mem)
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
    return spk2


NEURONS = [
    ("hooks", Hooked, plain, Net, records),
    ("one_step", Net, one_step, Net, plain),
    ("restarted", Net, restarted, Net, plain),
    ("state", Net, centred, Net, clamped_by_its_equations),
    ("state", Net, spikes_in_its_place, Net, clamped_by_its_equations),
    ("state", Net, clamp_in_place, Net, clamped_by_its_equations),
    ("parameter", Net, threshold_in_place, Net, threshold_after_the_loop),
    ("parameter", Net, threshold_by_a_method, Net, adaptive),
    ("form", Net, last_is_smaller, Net, plain),
    ("options", Net, resets_by_turns, Net, resets_as_set_before),
    ("spikes_in_place", Net, doubled_in_place, Net, doubled),
    ("feedback_elementwise", Net, inhibits_itself, Net, adaptive),
    ("feedback_layer", Net, comes_back_by_two_layers, Net, comes_back_by_one_layer),
    (
        "feedback_others",
        Net,
        comes_back_through_another,
        lambda: Net(recurrent=snn.RLeaky(beta=0.9, linear_features=WIDTH)),
        comes_back_in_rleaky,
    ),
    ("mode", Net, cast_at_every_step, Net, cast_around_the_loop),
    ("random_order", Net, noise_like_results, Net, noise_of_all_steps),
    ("written", Net, reads_what_is_written, Net, gives_the_value),
    ("unfused", Net, in_sixteen_bit, Net, in_single_precision),
    ("unfused", lambda: Net(lif1=snn.Leaky(0.9, spike_grad=lambda mem: (mem > mem.mean()).float())), plain, Net, plain),
    ("unfused", lambda: Net(lif1=snn.Leaky(0.9, state_quant=lambda mem: mem.round())), plain, Net, plain),
    ("unfused", lambda: Net(lif1=Quiet(0.9)), plain, Net, plain),  # its warning, once said, ends no graph
]


def by_hand(net, x):
    mem, _ = net.states()
    hand = torch.zeros(BATCH, WIDTH)
    for t in range(STEPS):
        hand = torch.softmax(hand + net.fc1(x[t]), 1)  # here
        spk, mem = net.lif1(net.spike(hand - 1), mem)
    return spk


def random(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        noisy = torch.randn(BATCH, WIDTH)  # here
        spk, mem = net.lif1(net.fc1(x[t]) + noisy, mem)
    return spk


def random_before(net, x):
    mem, _ = net.states()
    noise = torch.randn(STEPS, BATCH, WIDTH)
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]) + noise[t], mem)
    return spk


def drops(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        cur = nn.functional.dropout(net.fc1(x[t]), 0.25)  # here
        spk, mem = net.lif1(cur, mem)
    return spk


def in_place(net, x):
    mem, mem2 = net.states()
    for t in range(STEPS):
        cur = net.fc1(x[t])
        first = cur[:1]
        cur += 1  # here
        spk, mem = net.lif1(cur, mem)
        spk2, mem2 = net.lif2(first, mem2)
    return spk, spk2


def out_of_place(net, x):
    mem, mem2 = net.states()
    for t in range(STEPS):
        cur = net.fc1(x[t])
        cur = cur + 1
        first = cur[:1]
        spk, mem = net.lif1(cur, mem)
        spk2, mem2 = net.lif2(first, mem2)
    return spk, spk2


def spikes(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        cur = net.spike(net.fc1(x[t]))  # here
        spk, mem = net.lif1(cur, mem)
    return spk


def largest(net, x):
    mem, _ = net.states()
    found = []
    for t in range(STEPS):
        _spk, mem = net.lif1(net.fc1(x[t]), mem)
        found.append(torch.kthvalue(mem, 2).values)  # here
    return torch.stack(found)


def largest_after_the_loop(net, x):
    mem, _ = net.states()
    found = []
    for t in range(STEPS):
        _spk, mem = net.lif1(net.fc1(x[t]), mem)
        found.append(mem)
    return torch.kthvalue(torch.stack(found), 2).values


def scaled(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        cur = net.fc1(x[t]) * (0.5 + t)  # here
        spk, mem = net.lif1(cur, mem)
    return spk


def scaled_by_a_tensor(net, x):
    mem, _ = net.states()
    numbers = 0.5 + torch.arange(STEPS, dtype=torch.float32)
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]) * numbers[t], mem)
    return spk


OPERATORS = [
    ("recurrent", Net, by_hand, clamped_by_its_equations),
    ("random", Net, random, random_before),
    ("in_place", Net, in_place, out_of_place),
    ("function", lambda: Net(spike=OfAll.apply), spikes, spikes),
    ("unknown", Net, largest, largest_after_the_loop),
    ("numbers", Net, scaled, scaled_by_a_tensor),
]


def decides(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        if spk.sum() > 3:  # here
            spk = spk * 0.5
    return spk


def decides_by_where(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        spk = torch.where(spk.sum() > 3, spk * 0.5, spk)
    return spk


def counts(net, x):
    mem, _ = net.states()
    total = 0
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        total += spk.sum().item()  # here
    return mem, total


def counts_after_the_loop(net, x):
    mem, _ = net.states()
    total = torch.zeros(())
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        total = total + spk.sum()
    return mem, total.item()


def prints(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        print(end="")  # here
        spk, mem = net.lif1(net.fc1(x[t]), mem)
    return spk


def prints_after_the_loop(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
    print(end="")
    return spk


def logs(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        LOG.debug("step %d", t)  # here
        spk, mem = net.lif1(net.fc1(x[t]), mem)
    return spk


def shows_progress(net, x):
    mem, _ = net.states()
    for t in tqdm(range(STEPS), disable=True):  # here
        spk, mem = net.lif1(net.fc1(x[t]), mem)
    return spk


def reads_the_clock(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        began = time.perf_counter()  # here
        spk, mem = net.lif1(net.fc1(x[t]), mem)
    return spk + 0 * began


def reads_the_clock_after_the_loop(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
    return spk + 0 * time.perf_counter()


def breaks(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
        torch._dynamo.graph_break()  # here
    return spk


def breaks_after_the_loop(net, x):
    mem, _ = net.states()
    for t in range(STEPS):
        spk, mem = net.lif1(net.fc1(x[t]), mem)
    torch._dynamo.graph_break()
    return spk * 2


BREAKS = [
    ("neuron", lambda: Net(lif1=snn.Leaky(0.9, inhibition=True)), plain, plain),
    ("neuron", lambda: Net(lif1=snn.Leaky(0.9, state_quant=snn.functional.quant.state_quant(4))), plain, plain),
    ("branch", Net, decides, decides_by_where),
    ("value", Net, counts, counts_after_the_loop),
    ("prints", Net, prints, prints_after_the_loop),
    ("prints", Net, logs, plain),
    ("prints", Net, shows_progress, plain),
    ("clock", Net, reads_the_clock, reads_the_clock_after_the_loop),
    ("break", Net, breaks, breaks_after_the_loop),
]
# What is written instead gives the same numbers.
SAME = {doubled, gives_the_value, out_of_place, largest_after_the_loop, scaled_by_a_tensor, decides_by_where} | {
    counts_after_the_loop,
    prints_after_the_loop,
}


def told(make, program):
    """The report, a program's own numbers and its marked lines."""
    torch._dynamo.reset()
    x = torch.linspace(-1, 2, STEPS * BATCH * WIDTH).view(STEPS, BATCH, WIDTH)
    net = make()
    x = x.to(net.fc1.weight.dtype)
    expected = program(make(), x)
    report = compiler.explain(program, net, x)
    lines, first = inspect.getsourcelines(program)
    marked = [(first + place, line.strip()) for place, line in enumerate(lines) if line.endswith("# here\n")]
    return report, expected, marked


def lines_of(reason):
    assert {line.file for line in reason.lines} == {__file__}
    return [(line.number, line.text) for line in reason.lines]


def all_tensors(value):
    return [value] if not isinstance(value, tuple) else [one for part in value for one in all_tensors(part)]


def compare_numbers(after, expected, instead):
    if after in SAME:
        for one, other in zip(all_tensors(expected), all_tensors(instead)):
            torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "make", "program", "other", "instead"),
    [
        pytest.param(
            *row,
            id=f"{row[0]}-{row[4].__name__}",
            marks=needs_newer_dynamo if row[2] is in_sixteen_bit else (),
        )
        for row in NEURONS
    ],
)
def test_what_keeps_a_neuron_and_what_helps(kind, make, program, other, instead):
    report, expected, marked = told(make, program)
    found = next(neuron.reason for neuron in report.neurons if neuron.reason is not None)
    assert found.kind == kind
    assert set(lines_of(found)) <= set(marked)
    assert lines_of(found) == marked[: len(found.lines)]
    for line in found.lines:
        assert f"{line.place}  {line.text}" in str(report)
    after, numbers, _ = told(other, instead)
    assert all(neuron.rolled for neuron in after.neurons)
    assert after.neurons
    compare_numbers(instead, expected, numbers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "make", "program", "instead"),
    [pytest.param(*row, id=row[0], marks=needs_dynamo_of_2_12 if row[0] == "function" else ()) for row in OPERATORS],
)
def test_what_keeps_an_operator_and_what_helps(kind, make, program, instead):
    report, expected, marked = told(make, program)
    found = [one for graph in report.graphs for one in graph.operators if one.reason is not None]
    assert {one.reason.kind for one in found} == {kind}
    assert all(one.times == STEPS for one in found)
    assert lines_of(found[0].reason) == marked
    after, numbers, _ = told(Net, instead)
    assert all(one.times == 1 for graph in after.graphs for one in graph.operators)
    assert all(neuron.rolled for neuron in after.neurons)
    compare_numbers(instead, expected, numbers)


def kept():
    return Net(lif1=snn.Leaky(beta=0.9, init_hidden=True))


def by_hidden_states(net, x):
    net.lif1.reset_mem()
    return torch.stack([net.lif1(net.fc1(x[t])) for t in range(STEPS)])


def resets_all_there_are(net, x):
    net.lif1.reset_hidden()  # here
    return torch.stack([net.lif1(net.fc1(x[t])) for t in range(STEPS)])


def test_a_class_method_resets_more_than_a_graph_has():
    report, expected, marked = told(kept, resets_all_there_are)
    (found,) = report.graph_breaks
    assert (found.kind, lines_of(found)) == ("resets", marked)
    after, numbers, _ = told(kept, by_hidden_states)
    assert not after.graph_breaks
    torch.testing.assert_close(numbers, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "make", "program", "instead"), BREAKS, ids=[f"{row[0]}-{row[2].__name__}" for row in BREAKS]
)
def test_what_ends_a_graph_and_what_helps(kind, make, program, instead):
    report, expected, marked = told(make, program)
    (found,) = report.graph_breaks
    assert found.kind == kind
    assert lines_of(found) == marked
    assert marked[0][1] in str(report)
    assert not any(neuron.rolled for neuron in report.neurons)
    assert "lif1" in report.alone
    after, numbers, _ = told(Net, instead)
    assert {(neuron.steps, neuron.rolled) for neuron in after.neurons} == {(STEPS, True)}
    compare_numbers(instead, expected, numbers)


def test_masks_of_dropout_have_no_remedy():
    report, _, marked = told(Net, drops)
    found = [one.reason for graph in report.graphs for one in graph.operators if one.reason is not None]
    assert [(one.kind, lines_of(one), one.instead) for one in found] == [("masks", marked, "")]
    assert all(neuron.rolled for neuron in report.neurons)


def test_every_kind_has_a_program():
    elsewhere = {"anew", "sizes", "learns", "resets"}  # tests of their own, here or beside those of snnipu.auto
    remedied = {kind for kind, known in reasons.KINDS.items() if known.instead}
    assert {row[0] for row in [*NEURONS, *OPERATORS, *BREAKS]} == remedied - elsewhere


@needs_newer_dynamo
def test_numbers_of_tensors_in_one_graph():
    """As ``fullgraph`` has it, ``.item()`` is an operator."""
    torch._dynamo.reset()
    net, x = Net(), torch.linspace(-1, 2, STEPS * BATCH * WIDTH).view(STEPS, BATCH, WIDTH)
    found = []
    compiled = torch.compile(
        counts,
        backend=lambda module, inputs: compiler.compile_graph(module, inputs, observer=found.append),
        fullgraph=True,
    )
    for one, other in zip(all_tensors(compiled(net, x)), all_tensors(counts(net, x))):
        torch.testing.assert_close(one, other)
    assert [(neuron.steps, neuron.rolled) for neuron in found[0].neurons] == [(STEPS, True)]
