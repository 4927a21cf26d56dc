"""Reasons for which neurons and operators run step by step: the report names the program's lines, and its advice helps.

Each kind of reason has a program and its replacement. The lines that cause the reason are marked ``# here``, in the
order of the report.
"""

import linecache
import re
import textwrap
import time

import pytest
import torch
from oracle import function_of
from support.versions import needs_backend
from torch import nn

import snnipu as snn
from snnipu import compiler
from snnipu.compiler import reasons

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore")]
STEPS, BATCH, WIDTH = 6, 3, 4


@snn.neuron(states=("mem",), parameters={"beta": 0.9})
def Clamped(x, mem, *, beta, spike):
    """The membrane stays above a bound."""
    mem = torch.clamp(beta * mem + x, min=-0.25)
    return spike(mem - 1), mem


class Quiet(snn.Leaky):
    """A neuron that replaces a part of snnTorch's step."""

    def _base_state_function(self, input_):
        return super()._base_state_function(input_) - 0.1 * self.mem.mean(1, keepdim=True)


# Spikes whose gradient depends on all neurons.
OfAll = function_of(lambda u: (u > 0).float(), lambda grad, u: grad / (1 + (u - u.mean()).abs()))


class Net(nn.Module):
    """The layers and neurons of the programs."""

    def __init__(self, **modules):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.lif1 = nn.Linear(WIDTH, WIDTH), snn.Leaky(beta=0.9)
        self.fc2, self.lif2 = nn.Linear(WIDTH, WIDTH), snn.Leaky(beta=0.8)
        self.rec, self.rec2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.clamped, self.spike = Clamped(), snn.surrogate.atan()
        self.back = snn.RLeaky(beta=0.9, linear_features=WIDTH)
        for name, module in modules.items():
            setattr(self, name, module)


def hooked():
    net = Net()
    net.lif1.register_forward_hook(lambda module, given, out: None)
    return net


def with_custom_function():
    return Net(spike=OfAll.apply)


PROGRAM = """
def run(net, x):
    mem, mem2 = net.lif1.init_leaky(), net.lif2.init_leaky()
    (hand,), (spk, mem3) = net.clamped.reset_mem(), net.back.reset_mem()
    rec, last = [], torch.zeros(BATCH, WIDTH)
    table, noise, numbers = torch.zeros(STEPS, BATCH, WIDTH), torch.rand(STEPS, BATCH, WIDTH), torch.arange(STEPS) + 0.5
    for t in range(STEPS):
{body}
        spk2, mem2 = net.lif2(net.fc2(spk), mem2)
        rec.append(spk2)
    return torch.stack(rec), mem2
"""
# Code of a step.
STEP = "spk, mem = net.lif1(net.fc1(x[t]), mem)"
HERE = f"{STEP}  # here"
CUSTOM = "spk, hand = net.clamped(net.fc1(x[t]), hand)"
NOISY = "spk, mem = net.lif1(cur, mem)"
# Kind, body, the body that is written instead, and the network if it is not Net.
NEURONS = [
    ("hooks", HERE, STEP, hooked),
    ("restarted", "spk, _mem = net.lif1(net.fc1(x[t]), last)  # here", STEP),
    ("state", f"{STEP}\nmem = mem - mem.mean(1, keepdim=True)  # here", CUSTOM),
    ("state", "spk, _mem = net.lif1(net.fc1(x[t]), spk)  # here", CUSTOM),
    ("parameter", f"{STEP}\nnet.lif1.threshold += 0.01 * spk.mean()  # here", STEP),
    ("parameter", f"{STEP}\nnet.lif1.threshold.add_(0.01 * spk.mean())  # here", STEP),
    (
        "feedback_elementwise",
        "cur = net.fc1(x[t]) - net.fc2(x[t]) * last  # here\nspk, mem = net.lif1(cur, mem)  # here\nlast = spk",
        CUSTOM,
    ),
    (
        "feedback_layer",
        "back = net.rec(last)  # here\nback = net.rec2(back)  # here\ncur = net.fc1(x[t]) + back  # here\n"
        "spk, mem = net.lif1(cur, mem)  # here\nlast = spk",
        "spk, mem = net.lif1(net.fc1(x[t]) + net.rec(last), mem)\nlast = spk",
    ),
    (
        "feedback_others",
        "cur = net.fc1(x[t]) + net.rec(last)  # here\nfirst, mem = net.lif1(cur, mem)  # here\n"
        "last, hand = net.clamped(net.fc2(first), hand)  # here\nspk = last",
        "spk, mem3 = net.back(net.fc1(x[t]), spk, mem3)",
    ),
    (
        "random_order",
        "cur = net.fc1(x[t])\nspk, mem = net.lif1(cur + torch.bernoulli(cur.sigmoid()), mem)  # here\n"
        "spk = torch.normal(net.fc2(spk), 1.0)  # here",
        "cur = net.fc1(x[t])\nspk, mem = net.lif1(cur + (noise[t] < cur.sigmoid()), mem)",
    ),
    ("written", "table[t] = net.fc1(x[t])  # here\nspk, mem = net.lif1(table[t], mem)", STEP),
    ("unfused", HERE, STEP, lambda: Net(lif1=snn.Leaky(0.9, spike_grad=lambda mem: (mem > mem.mean()).float()))),
    ("unfused", HERE, STEP, lambda: Net(lif1=snn.Leaky(0.9, state_quant=lambda mem: mem.round()))),
    ("unfused", HERE, STEP, lambda: Net(lif1=Quiet(0.9))),
]
OPERATORS = [
    ("recurrent", f"{STEP}\nlast = torch.softmax(last + spk, 1)  # here", f"{CUSTOM}"),
    ("random", f"cur = net.fc1(x[t]) + torch.randn(BATCH, WIDTH)  # here\n{NOISY}", f"cur = noise[t]\n{NOISY}"),
    ("masks", f"cur = nn.functional.dropout(x[t], 0.25)  # here\n{NOISY}", STEP),
    (
        "in_place",
        f"cur = net.fc1(x[t])\nfirst = cur[:1]\ncur += 1  # here\n{NOISY}\n_, hand = net.clamped(first, hand)",
        f"cur = net.fc1(x[t])\ncur = cur + 1\nfirst = cur[:1]\n{NOISY}\n_, hand = net.clamped(first, hand)",
    ),
    ("function", f"cur = net.spike(net.fc1(x[t]))  # here\n{NOISY}", STEP, with_custom_function),
    ("unknown", f"{STEP}\nspk = spk + nn.functional.bilinear(mem, mem, net.rec.weight[None])  # here", STEP),
    (
        "numbers",
        f"cur = x[t].masked_fill(x[t] > 0, 0.5 + t)  # here\n{NOISY}",
        f"cur = net.fc1(x[t]) * numbers[t]\n{NOISY}",
    ),
]
LOOPS = [
    ("neuron", HERE, STEP, lambda: Net(lif1=snn.Leaky(0.9, inhibition=True))),
    (
        "branch",
        f"{STEP}\nif spk.sum() > 3:  # here\n    spk = spk * 0.5",
        f"{STEP}\nspk = spk * (1 - 0.5 * (spk.sum() > 3).float())",
    ),
    ("list", f"{STEP}\nif rec:  # here\n    spk = spk * 0.5", f"{STEP}\nspk = spk * (0.5 if t else 1)"),
    ("clock", f"began = time.perf_counter()  # here\n{STEP}\nspk = spk + 0 * began", STEP),
    ("break", f"{STEP}\ntorch._dynamo.graph_break()  # here", STEP),
]
# Kinds whose replacement has the same results.
SAME = {"in_place", "branch", "list", "clock", "break"}
_files = iter(range(1000))


def explained(body, make):
    """Return the report of a program, its numbers and its marked lines."""
    source, name = PROGRAM.format(body=textwrap.indent(body, " " * 8)), f"<reasons {next(_files)}>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    namespace = {"time": time, "torch": torch, "nn": nn, "STEPS": STEPS, "BATCH": BATCH, "WIDTH": WIDTH}
    exec(compile(source, name, "exec"), namespace)
    x = torch.linspace(-1, 2, STEPS * BATCH * WIDTH).view(STEPS, BATCH, WIDTH)
    expected = namespace["run"](make(), x)
    report = compiler.explain(namespace["run"], make(), x)
    marked = [(n, line.strip()) for n, line in enumerate(source.splitlines(), 1) if line.endswith("# here")]
    return report, expected, marked


def reasons_of(report):
    parts = [one.reason for one in (*report.neurons, *report.operators)]
    return [one for one in (*parts, *(loop.reason for loop in report.loops)) if one is not None]


@pytest.mark.slow
@pytest.mark.parametrize("row", [*NEURONS, *OPERATORS, *LOOPS], ids=lambda row: row[0])
def test_lines_are_named_and_what_to_write_instead_helps(row, found):
    kind, body, instead, make = (*row, Net)[:4]
    report, expected, marked = explained(body, make)
    (first, *_) = reasons_of(report)
    assert first.kind == kind, str(report)
    assert [(line.number, line.text) for line in first.lines] == marked
    for line in first.lines:
        assert re.search(rf"{line.place} +{re.escape(line.text)}", str(report))
    assert first.instead in " ".join(str(report).split())
    after, numbers, _ = explained(instead, Net)
    assert reasons_of(after) == []
    assert {loop.runs_as for loop in after.loops} == {"compiled"}
    assert all(neuron.rolled and neuron.steps == STEPS for neuron in after.neurons)
    if kind in SAME:
        torch.testing.assert_close(numbers, expected)


def test_every_kind_has_a_program():
    elsewhere = {"value", "prints", "sizes", "resets"}  # alone they do not end the graph of a loop's body
    assert {row[0] for row in [*NEURONS, *OPERATORS, *LOOPS]} == reasons.KINDS.keys() - elsewhere
