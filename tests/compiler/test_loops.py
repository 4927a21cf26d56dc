"""Loop distribution: programs have the same results with it, and loops that cannot be distributed run in Python."""

import importlib.util
import itertools
import linecache
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import loop_programs, surroundings
from support.versions import needs_backend
from torch.testing import assert_close

import snnipu as snn
from benchmarks import programs
from benchmarks.cases.programs import Training
from snnipu.compiler import backend, discovery, helpers
from snnipu.compiler.items import Called, Items
from snnipu.compiler.objects import Objects
from snnipu.compiler.trace import Record, Steps, at, stack

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore")]
HEAD = """
import collections
import io
import itertools
import logging
import random
import sys
import numpy as np
import snntorch
import torch
import tqdm
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from snntorch import utils
import snnipu as snn

SEEN, KNOWN, LAST, CALLS = [], set(), collections.deque(maxlen=3), 0
COUNT = itertools.count()
FOUND = {"calls": 0}
LOG = logging.getLogger(__name__)
LOG.setLevel(logging.INFO)
LOG.addHandler(logging.StreamHandler(sys.stdout))


def add_one():
    global CALLS
    CALLS += 1


def tick():
    FOUND["calls"] += 1


def shape_of(tensor):
    return tuple(tensor.shape)


class Box(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).float()

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.saved_tensors[0].abs() < 0.5).float()


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        return weight.round(decimals=1)

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.1, 0.1)


class Decay(snn.Leaky):
    def _base_state_function(self, input_):
        return self.beta.clamp(0, 1) * self.mem + 0.5 * input_


class Own(snntorch.Leaky):
    def forward(self, x, mem):
        mem = self.beta * mem + x
        spk = Box.apply(mem - self.threshold)
        return spk, mem - spk.detach() * self.threshold


class DecidesByTheCode(snntorch.SpikingNeuron):
    def __init__(self):
        super().__init__(threshold=0.4, reset_mechanism="subtract")

    def forward(self, x, mem):
        self.reset = self.mem_reset(mem)
        mem = 0.9 * mem + x
        if self.reset_mechanism_val == 0:
            mem = mem - self.reset * self.threshold
        elif self.reset_mechanism_val == 1:
            mem = mem - self.reset * mem
        return self.fire(mem), mem


class Record:
    def __init__(self):
        self.potentials = []

    def note(self, net, spk, mem):
        net.trace.append(spk.detach())
        self.potentials.append(mem)


def block(x, layer, lif):
    mem, spikes = lif.init_leaky(), []
    for t in range(len(x)):
        spk, mem = lif(layer(x[t]), mem)
        spikes.append(spk)
    return torch.stack(spikes)


class Learner:
    def __init__(self, net):
        self.net = net

    def update(self, spk):
        self.net.fc1.bias.data += spk.mean() / 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(4, 6), snn.Leaky(beta=0.8, threshold=0.4)
        self.fc2, self.lif2 = nn.Linear(6, 4), snn.Synaptic(alpha=0.7, beta=0.8, threshold=0.3)
        self.hidden = snn.Leaky(beta=0.9, threshold=0.4, init_hidden=True)
        self.decay, self.norm = Decay(beta=0.7, threshold=0.3), nn.BatchNorm1d(6)
        self.cells = nn.ModuleList([snn.Leaky(beta=0.6, threshold=0.3) for _ in range(2)])
        self.back = snn.RLeaky(beta=0.8, all_to_all=False, V=0.5, threshold=0.4)
        self.own, self.decides, self.stock = Own(0.9, threshold=0.4), DecidesByTheCode(), snntorch.Leaky(beta=0.8)
        self.spike, self.record = snn.surrogate.fast_sigmoid(), Record()
        self.count, self.trace, self.seen = 0, [], {"steps": 0}
        self.register_buffer("steps", torch.tensor(0))
        self.limit = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x):
"""
START = "mem, (syn2, mem2), rec = self.lif1.reset_mem(), self.lif2.reset_mem(), []"
STEP = "spk, mem = self.lif1(self.fc1(x[step]), mem)"
BOTH = f"{STEP}\n    spk2, syn2, mem2 = self.lif2(self.fc2(spk), syn2, mem2)"
BAR = "file=sys.stdout, mininterval=1e9, bar_format='{desc}{n}/{total};'"
LOOP = "for step in range(x.shape[0]):"
# The first steps have no spikes.
LATE = f"torch.nn.init.zeros_(self.fc1.bias)\nx = x * (torch.arange(len(x)).view(-1, 1, 1) > 1)\n{START}"
DISTRIBUTED = {
    "states": f"{START}\n{LOOP}\n    {BOTH}\n    rec.append(spk2)\nreturn torch.stack(rec), mem, mem2",
    "a backward pass that is not linear": (
        f"{START}\n{LOOP}\n    spk, mem = self.lif1(F.linear(x[step], Clipped.apply(self.fc1.weight)), mem)\n"
        "return spk, mem"
    ),
    "spikes in the next input": (
        f"{START}\nlast = 0\n{LOOP}\n    spk, mem = self.lif1(self.fc1(x[step]) + 0.1 * last, mem)\n    last = spk\n"
        "return last, mem"
    ),
    "a first value of another shape": (
        f"{START}\nlast = torch.ones(1, 4)\n{LOOP}\n"
        "    spk, mem = self.lif1(self.fc1(x[step]) + (0.1 * last).sum(), mem)\n    last = x[step]\nreturn spk, mem"
    ),
    "stacked along 1": f"{START}\n{LOOP}\n    {BOTH}\n    rec.append(mem2)\nreturn torch.stack(rec, dim=1), mem",
    "lists": f"{START}\n{LOOP}\n    {STEP}\n    rec.append((spk, mem))\nreturn [one for pair in rec for one in pair]",
    "lists that are added": (
        f"{START}\nspikes, rows = [], []\n{LOOP}\n    {STEP}\n    rec += [spk, mem]\n    spikes += [spk]\n"
        "    rows.extend((mem, step))\n    self.trace += [mem.detach()]\n"
        "return [*rec, *spikes, *rows, torch.stack(spikes)]"
    ),
    "hidden": (
        "utils.reset(self)\nrec = []\nfor now in x:\n    rec.append(self.hidden(self.fc1(now)))\n"
        "return torch.stack(rec)"
    ),
    "items": (
        f"{START}\nfor step, now in enumerate(x):\n    spk, mem = self.lif1(self.fc1(now), mem)\nreturn spk, mem, step"
    ),
    "backwards": (
        f"{START}\nfor step in reversed(range(x.shape[0])):\n    {STEP}\n    rec.append(spk)\nreturn rec[-1], mem"
    ),
    "pairs": (
        f"{START}\ny = x.flip(0)\nfor a, b in zip(x, y):\n    spk, mem = self.lif1(self.fc1(a + b), mem)\n"
        "return spk, mem"
    ),
    "counters": (
        f"{START}\nout, rates = torch.zeros(x.shape[1], 6), torch.zeros(2)\n{LOOP}\n    {STEP}\n    out += spk\n"
        "    rates[0] += spk.mean()\n    self.total += mem.detach().sum()\n    self.count += 1\n"
        "    self.seen['steps'] += 2\nreturn out, rates, mem"
    ),
    "numbers": (
        f"{START}\ntotal = 0.0\n{LOOP}\n    {STEP}\n    total += spk.mean().item()\nreturn mem, torch.tensor(total)"
    ),
    "by index": (
        f"{START}\nout = torch.zeros(*x.shape[:2], 6)\n{LOOP}\n    {STEP}\n    out[step] = mem\nreturn out, mem"
    ),
    "by column": (
        f"{START}\nout = torch.zeros(2, x.shape[1], x.shape[0], 6)\n{LOOP}\n"
        "    out[0, :, step], mem = self.lif1(self.fc1(x[step]), mem)\n    out[1, ..., step, :] = mem[None]\n"
        "return out, mem"
    ),
    "by two indices": (
        f"{START}\nout = torch.zeros(x.shape[0] + 1, x.shape[1], 6)\n{LOOP}\n    {STEP}\n    out[step] = mem\n"
        "    out[step + 1] = spk\n    out[step, :2] += spk[:2]\nreturn out, mem"
    ),
    "list of states": (
        "mems = [cell.reset_mem() for cell in self.cells]\nrec = []\n"
        f"{LOOP}\n    now = self.fc1(x[step])\n    for i, cell in enumerate(self.cells):\n"
        "        now, mems[i] = cell(now, mems[i])\n    rec.append(now)\nreturn torch.stack(rec), *mems"
    ),
    "before": (
        f"{START}\nlast = torch.zeros(x.shape[1], 6)\n{LOOP}\n    now = self.fc1(x[step])\n"
        "    spk, mem = self.lif1(now - last, mem)\n    last = now\nreturn spk, mem"
    ),
    "unbound": (
        f"{START}\nfor now in x.transpose(0, 1).unbind(dim=1):\n    spk, mem = self.lif1(self.fc1(now), mem)\n"
        "    rec.append(spk)\nreturn torch.stack(rec), mem"
    ),
    "windows": (
        f"{START}\ny = x.transpose(0, 1)\n{LOOP}\n    spk, mem = self.lif1(self.fc1(y[:, step]), mem)\nreturn spk, mem"
    ),
    "parts": (
        f"{START}\ny = x.repeat_interleave(2, 0)\n{LOOP}\n    now = y[2 * step : 2 * step + 2].sum(0)\n"
        "    spk, mem = self.lif1(self.fc1(now * y[..., 1:2][step]), mem)\nreturn spk, mem"
    ),
    "norm": f"{START}\n{LOOP}\n    spk, mem = self.lif1(self.norm(self.fc1(x[step])), mem)\nreturn spk, mem",
    "dropout": f"{START}\n{LOOP}\n    spk, mem = self.lif1(F.dropout(self.fc1(x[step]), 0.25), mem)\nreturn spk, mem",
    "written out": (
        f"{START}\nmem = torch.zeros(x.shape[1], 6)\n{LOOP}\n    mem = 0.8 * mem + self.fc1(x[step])\n"
        "    spk = Box.apply(mem - 0.4)\n    out, self.hidden.mem = self.lif1(spk, mem)\n    mem = mem - spk * 0.4\n"
        "    rec.append(spk)\nreturn torch.stack(rec), mem"
    ),
    "without neurons": (
        f"mem, rec = torch.zeros(x.shape[1], 6), []\n{LOOP}\n    mem = 0.8 * mem + self.fc1(x[step])\n"
        "    spk = Box.apply(mem - 0.4)\n    mem = mem - spk * 0.4\n    rec.append(spk)\nreturn torch.stack(rec), mem"
    ),
    "gradients from the third step on": (
        f"syn, mem, rec = torch.zeros(x.shape[1], 6), torch.zeros(x.shape[1], 6), []\n{LOOP}\n"
        "    spk = Box.apply(mem - 0.4)\n    now = 0.9 * syn + self.fc1(x[step])\n"
        "    mem = (0.8 * mem + syn) * (1 - spk.detach())\n    syn = now\n    rec.append(spk)\n"
        "return torch.stack(rec), mem"
    ),
    "a first tensor of three names": (
        f"mem = spk = total = torch.zeros(x.shape[1], 6)\n{LOOP}\n    mem = 0.8 * mem * (1 - spk) + self.fc1(x[step])\n"
        "    spk = Box.apply(mem - 0.4)\n    total += spk\nreturn total, mem"
    ),
    "subclass": (
        f"{START}\nmem = self.decay.reset_mem()\n{LOOP}\n    spk, mem = self.decay(self.fc1(x[step]), mem)\n"
        "return spk, mem"
    ),
    "recurrent": (
        "spk, mem = self.back.reset_mem()\nrec = []\n"
        f"{LOOP}\n    spk, mem = self.back(self.fc1(x[step]), spk, mem)\n    rec.append(mem)\n"
        "return torch.stack(rec), spk"
    ),
    "without the first": (
        f"{START}\n{LOOP}\n    if step == 0:\n        total = torch.zeros(())\n    {STEP}\n"
        "    total = total + spk.sum()\nreturn total, mem"
    ),
    "a parameter that each step registers": (
        f"{START}\n{LOOP}\n    self.lif1.threshold = self.limit\n    {STEP}\n    rec.append(spk)\nreturn mem, *rec"
    ),
    "on itself": f"{START}\n{LOOP}\n    {STEP}\n    self.trace.append(mem.detach())\nreturn mem, len(self.trace)",
    "dictionaries": (
        f"{START}\n{LOOP}\n    {STEP}\n    rec.append({{'spk': spk, 'at': step, 'late': step > 2}})\n"
        "return [value for row in rec for value in row.values()]"
    ),
    "whole numbers": (
        f"{START}\ncount = torch.zeros(x.shape[1], 6, dtype=torch.int32)\n{LOOP}\n    {STEP}\n"
        "    count = count + spk.int()\nreturn count, mem"
    ),
    "a wider sum": (
        f"{START}\ntotal = torch.zeros(6)\n{LOOP}\n    {STEP}\n    total = total + mem.mean()\nreturn total, mem"
    ),
    "broadcast records": (
        f"{START}\nout, ones = torch.zeros(x.shape[0], 7), torch.zeros(9)\n{LOOP}\n    {STEP}\n"
        "    out[step] = mem.mean()\n    ones[step] = 1\nreturn out, ones, mem"
    ),
    "detached feedback": (
        f"{START}\nlast = torch.zeros(x.shape[1], 6)\n{LOOP}\n    spk, mem = self.lif1(self.fc1(x[step]) + last, mem)\n"
        "    last = spk.detach()\nreturn spk, mem, last"
    ),
    "a function inside": (
        f"def twice(v):\n    return v * 2\n{START}\n{LOOP}\n    {STEP}\n    rec.append(spk)\n"
        "return torch.stack(rec), twice(mem)"
    ),
    "bars": (
        f"{START}\nfor step in tqdm.tqdm(range(x.shape[0]), desc=f'of {{len(x)}}: ', {BAR}):\n    {STEP}\n"
        f"bar = tqdm.trange(x.shape[0], {BAR})\nfor step, _ in enumerate(bar):\n    {STEP}\nreturn spk, mem, bar.n"
    ),
    "one norm twice": (
        f"{START}\n{LOOP}\n    spk, mem = self.lif1(self.norm(self.norm(self.fc1(x[step]))), mem)\nreturn spk, mem"
    ),
    "printed at some steps": (
        f"{START}\nverbose = self.training\n{LOOP}\n    {STEP}\n    if step % 2:\n        print(float(spk.sum()))\n"
        "    elif spk.sum() > 3:\n        print('many')\n    if verbose and step == 3:\n        print(mem.dim())\n"
        "    if step == 99:\n        mem = mem * 0.5\nreturn mem"
    ),
    "printed": (
        f"{START}\n{LOOP}\n    {STEP}\n    print(f'{{step}}: {{spk.sum().item():.1f}}', spk.shape, sep='|')\nreturn mem"
    ),
    "a printed sum that changes in place": (
        f"{START}\ntotal = torch.zeros(6)\n{LOOP}\n    {STEP}\n    other = total\n    total += spk.sum(0)\n"
        "    print(total.sum().item(), other[0].item())\n    total *= 0.5\nreturn mem"
    ),
    "a printed number": (
        f"{START}\ncount = 0\n{LOOP}\n    {STEP}\n    count += spk.sum().item()\n    print(step, count)\nreturn mem"
    ),
    "a bar with a description": (
        f"{START}\nbar = tqdm.tqdm(total=len(x), file=io.StringIO())\n{LOOP}\n    {STEP}\n"
        "    bar.set_description(f'step {step}: {spk.sum().item()}')\n    bar.update(1)\nreturn mem, bar.n, bar.desc"
    ),
    "a bar that is switched off": (
        f"{START}\nfor step in tqdm.trange(1, len(x), disable=True):\n    {STEP}\nreturn mem"
    ),
    "a number of the call": (
        f"{START}\ncall = self.count\nname = f'call {{call}}'\n{LOOP}\n    {STEP}\n"
        "    print(call, name, f'{call}: {spk.sum().item()}', FOUND['calls'])\nself.count += 1\ntick()\nreturn mem"
    ),
    "a number that a function sets": (
        f"{START}\n{LOOP}\n    {STEP}\n    tick()\n    print(FOUND['calls'], spk.sum().item())\nreturn mem"
    ),
    "a log": f"{START}\n{LOOP}\n    {STEP}\n    LOG.info('step %d: %s', step, spk.sum().item())\nreturn mem",
    "as many steps as a tensor says": (
        f"{START}\nlengths = torch.tensor([len(x) - 1, len(x)])\nfor step in range(int(lengths.max())):\n    {STEP}\n"
        "return mem"
    ),
    "beside what ends a graph": (
        f"{START}\n{LOOP}\n    {STEP}\n    rec.append(mem)\nrec[-1].sum().item()\nreturn torch.stack(rec)"
    ),
    "over batches": (
        "out = []\nfor half in x.split(2, dim=1):\n    mem = self.lif1.reset_mem()\n    for now in half:\n"
        "        spk, mem = self.lif1(self.fc1(now), mem)\n    out.append(mem.sum().item() * 0 + mem)\n"
        "return torch.cat(out)"
    ),
    "a closure": (
        f"scale = 0.5\ndef run(x, *, offset=0.0):\n    {START}\n    {LOOP}\n"
        "        spk, mem = self.lif1(self.fc1(x[step] * scale + offset), mem)\n    return mem\n"
        "return run(x, offset=0.25)"
    ),
    "a part of a neuron": (
        f"{START}\nmem = torch.zeros(x.shape[1], 6)\n{LOOP}\n    mem = 0.5 * mem + self.fc1(x[step])\n"
        "    spk = self.lif1.fire(mem)\n    mem = mem - spk\n    rec.append(spk)\nreturn torch.stack(rec)"
    ),
    "a surrogate of snnipu": (
        f"{START}\nmem = torch.zeros(x.shape[1], 6)\n{LOOP}\n    mem = 0.9 * mem + self.fc1(x[step])\n"
        "    spk = self.spike(mem - 0.5)\n    mem = mem - spk * 0.5\n    rec.append(spk)\nreturn torch.stack(rec)"
    ),
    "beside a loop of snnTorch's neuron": (
        f"{START}\nlast = self.stock.reset_mem()\n{LOOP}\n    {STEP}\n    rec.append(spk)\nfor now in rec:\n"
        "    spk, last = self.stock(now, last)\nreturn spk, last"
    ),
    "lists on objects": (
        f"{START}\n{LOOP}\n    {STEP}\n    self.record.note(self, spk, mem)\n"
        "kept, self.record = self.record, Record()\nreturn mem, *kept.potentials, sum(one.sum() for one in self.trace)"
    ),
    "a block for each layer": (
        "for layer, lif in zip([self.fc1, self.fc2], [self.lif1, self.cells[0]]):\n    x = block(x, layer, lif)\n"
        "float(x.sum())\nreturn x"
    ),
    "a neuron of the program's": (
        f"mem = torch.zeros(x.shape[1], 6)\n{LOOP}\n    spk, mem = self.own(self.fc1(x[step]), mem)\nreturn spk, mem"
    ),
}
DISTRIBUTED.update(
    {
        "numbers of late spikes": (
            f"{LATE}\ncount, even = 0, 0\n{LOOP}\n    {STEP}\n    count += int(spk.sum())\n"
            "    even += 1 + int(spk.sum())\nreturn mem, count, even"
        ),
        "late spikes that an object counts": (
            f"{LATE}\n{LOOP}\n    {STEP}\n    self.seen['steps'] += int(spk.sum())\nreturn mem"
        ),
        "a counter that turns": (
            f"{START}\nk = 0\n{LOOP}\n    spk, mem = self.lif1(self.fc1(x[step]) * (1 + k), mem)\n    k = (k + 1) % 3\n"
            "return spk, mem, k"
        ),
        "a total and its first item": (
            f"{START}\ntotal = torch.zeros(6)\n{LOOP}\n    {STEP}\n"
            "    total[0] += 1\n    total += spk.detach().sum(0)\nreturn mem, total"
        ),
        "a new tensor that changes": (
            f"{START}\nself.result = 1\n{LOOP}\n    {STEP}\n    last = torch.ones(6)\n    last[0] = 2\n"
            "    self.result = self.result + 1\nreturn mem, last, self.result"
        ),
        "a number that changes late": (
            f"{START}\nk, n = 0, 0\n{LOOP}\n    spk, mem = self.lif1(self.fc1(x[step]) * (1 + k), mem)\n"
            "    k = step // 3\n    n += 2 * (step // 2)\nreturn mem, k, n"
        ),
    }
)
AS_WRITTEN = {
    "a condition on a number that doubles": (
        f"{START}\nk = 1\n{LOOP}\n    {STEP}\n    if k == 4:\n        mem = mem * 0.5\n    k = k * 2 % 11\n"
        "return mem, k"
    ),
    "a condition on a fraction": (
        f"{START}\nk = 1.0\n{LOOP}\n    {STEP}\n    mem = mem * (0.5 if k < 0.3 else 1)\n    k *= 0.7\nreturn mem, k"
    ),
    "a condition on the number in a tensor": (
        f"{START}\nn = torch.tensor(0)\n{LOOP}\n    {STEP}\n    if n.item() == 3:\n        mem = mem * 0.5\n"
        "    n = n + 1\nreturn mem, n"
    ),
    "a condition on the number in a tensor that changes in place": (
        f"{START}\nself.steps.zero_()\n{LOOP}\n    {STEP}\n    if self.steps.item() == 3:\n        mem = mem * 0.5\n"
        "    self.steps += 1\nreturn mem"
    ),
    "a condition on the number in a view of a tensor that changes": (
        f"{START}\npair = torch.zeros(2, dtype=torch.int64)\nn = pair[0]\n{LOOP}\n    {STEP}\n    if n.item() == 3:\n"
        "        mem = mem * 0.5\n    pair += 1\nreturn mem"
    ),
    "a tensor that the next step changes under another name": (
        f"{START}\na, b = torch.zeros(6), torch.zeros(6)\n{LOOP}\n    a += 1\n    {STEP}\n    mem = mem + b\n"
        "    a = a * 0.5 + mem[0].detach()\n    b = a\nreturn mem, a"
    ),
    "a record that the next step changes": (
        f"{START}\na = torch.zeros(6)\n{LOOP}\n    a += 1\n    {STEP}\n    a = a * 0.5 + mem[0].detach()\n"
        "    rec.append(a)\nreturn mem, *rec"
    ),
    "a mode that the steps switch": (
        f"{START}\n{LOOP}\n    {STEP}\n    self.fc2.training = not self.fc2.training\n"
        "    mem = mem * (0.5 if self.fc2.training else 1)\nreturn mem"
    ),
    "layers that take turns": (
        f"{START}\n{LOOP}\n    spk, mem = self.cells[0](self.fc1(x[step]), mem)\n"
        "    self.cells[0], self.cells[1] = self.cells[1], self.cells[0]\nreturn spk, mem"
    ),
    "a switch": (
        f"{START}\nlate = False\n{LOOP}\n    {STEP}\n    if late:\n        mem = mem * 0.5\n    late = step > 2\n"
        "return spk, mem, late"
    ),
    "a list that is asked for": (
        f"{START}\n{LOOP}\n    {STEP}\n    if rec:\n        mem = mem * 0.5\n    rec.append(mem)\nreturn rec"
    ),
    "every second step": f"{START}\n{LOOP}\n    {STEP}\n    if step % 2:\n        rec.append(spk)\nreturn rec[-1], mem",
    "every third step": f"{START}\n{LOOP}\n    {STEP}\n    if step % 3 == 0:\n        mem = mem * 0.5\nreturn spk, mem",
    "a bar": (
        f"{START}\nfor step in tqdm.trange(x.shape[0], {BAR}):\n    {STEP}\n    mem = mem * (1 + (step == 2))\n"
        "return spk, mem"
    ),
    "no neurons": "for step in range(3):\n    x = x + Box.apply(self.fc1(x)) @ self.fc2.weight.t()\nreturn x, step",
    "some steps": f"{START}\n{LOOP}\n    {STEP}\n    if step in (1, 3):\n        mem = mem * 0.5\nreturn spk, mem",
    "one of a list": f"{START}\nby = [1, 0.5, 2, 1, 3, 1, 1]\n{LOOP}\n    {STEP}\n    mem = mem * by[step]\nreturn mem",
    "random numbers of Python": f"{START}\n{LOOP}\n    {STEP}\n    mem = mem + random.random()\nreturn spk, mem",
    "a global number": (
        f"global CALLS\n{START}\nmem = self.lif1.reset_mem()\n{LOOP}\n    {STEP}\n    add_one()\nreturn spk, mem, CALLS"
    ),
    "other tuples": (
        f"{START}\n{LOOP}\n    {STEP}\n    rec.append(mem.max(1))\nreturn rec[-1].values, rec[0].indices, mem"
    ),
    "items changed": (
        f"{START}\nxs = [one.clone() for one in x]\nfor now in xs:\n    now.clamp_(0, 1)\n"
        "    spk, mem = self.lif1(self.fc1(now), mem)\nreturn spk, mem, *xs"
    ),
    "an iterator": f"{START}\n{LOOP}\n    {STEP}\n    mem = mem + next(COUNT)\nreturn spk, mem",
    "a set": f"{START}\n{LOOP}\n    {STEP}\n    KNOWN.add(step)\nreturn spk, mem, sorted(KNOWN)",
    "two names of a list": (
        f"{START}\nrec = []\nfirst = rec\n{LOOP}\n    {STEP}\n    rec = rec + [spk]\nreturn [mem, *first, *rec]"
    ),
    "a deque": f"{START}\n{LOOP}\n    {STEP}\n    LAST.append(mem.detach())\nreturn spk, mem, *LAST",
    "a global list": f"{START}\n{LOOP}\n    {STEP}\n    SEEN.append(mem.detach())\nreturn mem, len(SEEN)",
    "kept and changed": (
        f"{START}\ntotal = torch.zeros(6)\n{LOOP}\n    {STEP}\n    total += spk.sum(0)\n    rec.append(total)\n"
        "return torch.stack(rec), mem"
    ),
    "text": f"{START}\nname = ''\n{LOOP}\n    {STEP}\n    name = name + 'x'\nreturn mem, len(name)",
    "functions that change places": (
        f"{START}\nf, g = torch.tanh, torch.sigmoid\n{LOOP}\n    {STEP}\n    mem, f, g = f(mem), g, f\nreturn mem"
    ),
    "an attribute of the class": (
        f"{START}\nNet.gain = 0\n{LOOP}\n    {STEP}\n    Net.gain += 1\n    mem = mem * self.gain\nreturn mem"
    ),
    "an attribute of a dictionary": (
        f"{START}\ntable = collections.Counter()\ntable.n = 1\n{LOOP}\n    {STEP}\n    table.n += 1\n"
        "    mem = mem * table.n\nreturn mem"
    ),
    "a number of an optimizer": (
        f"{START}\nsgd = torch.optim.SGD(self.parameters(), 1.0)\n{LOOP}\n    {STEP}\n    sgd.defaults['lr'] *= 0.9\n"
        "    mem = mem * sgd.defaults['lr']\nreturn mem"
    ),
    "an assertion": f"{START}\n{LOOP}\n    {STEP}\n    assert (mem < 9).all()\nreturn mem",
    "an item with a class as its key": (
        f"{START}\ntable = dict.fromkeys([Net], 1)\n{LOOP}\n    {STEP}\n    table[Net] += 1\n"
        "    mem = mem * table[Net]\nreturn mem"
    ),
    "the data of a parameter": f"{START}\nbias = self.fc1.bias.data\n{LOOP}\n    {STEP}\n    bias *= 0.9\nreturn mem",
    "random numbers of NumPy": f"{START}\n{LOOP}\n    {STEP}\n    mem = mem * float(np.random.rand())\nreturn spk, mem",
    "a list of the network that is read": (
        f"{START}\n{LOOP}\n    {STEP}\n    self.trace.append(mem.detach())\n    assert self.trace\nreturn mem"
    ),
    "a neuron that decides by the code of its reset": (
        f"mem = torch.zeros(x.shape[1], 6)\n{LOOP}\n    spk, mem = self.decides(self.fc1(x[step]), mem)\n"
        "return spk, mem"
    ),
    "through two neurons": (
        f"{START}\nback = torch.zeros(x.shape[1], 4)\n{LOOP}\n    spk, mem = self.lif1(self.fc1(x[step] + back), mem)\n"
        "    spk2, syn2, mem2 = self.lif2(self.fc2(spk), syn2, mem2)\n    back = spk2\nreturn spk2, mem"
    ),
}
# Loops that may run compiled or as they are written.
EITHER = {
    "without gradients": (
        f"{START}\n{LOOP}\n    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16, x.shape[1] > 2):\n"
        "        spk, mem = self.lif1(self.fc1(x[step]), mem)\n        if self.count > 5:\n            continue\n"
        "        rec.append(spk)\n        print(spk.requires_grad)\nreturn torch.stack(rec), mem, x"
    ),
    "numbers that change in one mode": (
        f"{START}\nself.train(not self.training)\nk = 1.0\n{LOOP}\n    {STEP}\n    mem = mem * k\n"
        "    if self.training:\n        k *= 0.9\n        self.count += 1\nreturn mem, k"
    ),
    "functions in longer loops": (
        f"{START}\nf, g = torch.tanh, torch.relu\n{LOOP}\n    {STEP}\n    mem = f(mem)\n    if len(x) > 5:\n"
        "        f, g = g, f\nreturn mem"
    ),
    "Python's numbers in longer loops": (
        f"{START}\n{LOOP}\n    {STEP}\n    if len(x) > 5:\n        mem = mem * random.randint(1, 5)\nreturn mem"
    ),
    "a state that requires a gradient": (
        f"{START}\n{LOOP}\n    spk, mem = self.lif1(self.fc1(x[step]) * (1 if mem.requires_grad else 2), mem)\n"
        "return mem"
    ),
    "one list in place of two": (
        f"{START}\na, b = [], []\na = b if len(x) > 5 else a\n{LOOP}\n    {STEP}\n    a.append(spk)\n"
        "    b.append(mem)\nreturn [*a, *b]"
    ),
    "one norm in place of two": (
        f"{START}\nnorm = self.norm if x.shape[1] < 3 else nn.BatchNorm1d(6)\n{LOOP}\n"
        "    spk, mem = self.lif1(norm(torch.relu(self.norm(self.fc1(x[step])))), mem)\nreturn mem"
    ),
    "items that change in longer loops": (
        f"{START}\nxs = [one.clone() for one in self.fc1(x).detach()]\nfor now in xs:\n"
        "    spk, mem = self.lif1(now, mem)\n    if len(x) > 5:\n        xs[-1].mul_(0.5)\nreturn mem"
    ),
    "items of a list of indices": (
        f"{START}\ntable, at, pair = torch.zeros(7), [5, 3, 1, 0, 2, 4, 6], torch.zeros(x.shape[1], 6)\n{LOOP}\n"
        f"    {STEP}\n    table[at] = mem.detach().mean()\n    pair[:, at[:2]] += 1\nreturn mem, table, pair"
    ),
    "comparisons in place": (
        f"{START}\n{LOOP}\n    now = self.fc1(x[step])\n    late = now * 1\n    late.gt_(0)\n"
        "    spk, mem = self.lif1(now + late + late, mem)\nreturn mem"
    ),
    "draws of a distribution": (
        f"{START}\nones = torch.ones(6)\n{LOOP}\n    {STEP}\n    mem = mem + torch.randn(6)\n"
        "    mem = mem + torch.distributions.Gamma(ones, ones, validate_args=False).rsample()\nreturn mem"
    ),
    "statistics of torch.batch_norm": (
        f"{START}\nmean, var = self.norm.running_mean, self.norm.running_var\n{LOOP}\n"
        "    now = torch.batch_norm(self.fc1(x[step]), None, None, mean, var, True, 0.1, 1e-5, False) - mean\n"
        "    spk, mem = self.lif1(now, mem)\nreturn mem"
    ),
    "a product of vectors under autocast": (
        f"{START}\nwith torch.autocast('cpu', torch.bfloat16):\n    {LOOP}\n        {STEP}\n"
        "        mem = mem + torch.dot(x[step, 0], self.fc1.weight[0])\nreturn mem"
    ),
    "a sum in bfloat16": (
        f"{START}\ntotal = torch.full((6,), 256, dtype=torch.bfloat16)\n{LOOP}\n    {STEP}\n"
        "    total = total + torch.ones(6, dtype=torch.bfloat16)\nreturn mem, total"
    ),
    "attributes of a neuron, of a tensor and of an object of Python's": (
        f"{START}\nself.lif1._gain, x.seen, table = 1.0, 0, collections.UserDict(n=0)\n{LOOP}\n    {STEP}\n"
        "    self.lif1._gain *= 0.9\n    x.seen += 2\n    table['n'] = 2 * table['n'] + 1\n"
        "    mem = mem * self.lif1._gain + x.seen + table['n']\nreturn mem, self.lif1._gain, x.seen, table['n']"
    ),
    "arrays": (
        f"{START}\ntable = np.zeros((len(x), 6))\n{LOOP}\n    {STEP}\n    rec.append(spk.detach().cpu().numpy())\n"
        "    table[step] = mem.detach().numpy()[0]\n    self.trace.append(spk.mean(0).tolist())\n"
        "return mem, np.stack(rec).tolist(), table.tolist()"
    ),
    "an early end": (
        f"{START}\n{LOOP}\n    {STEP}\n    print('before', step)\n    if step == 4:\n        break\n"
        "    print('after', spk.sum().item())\nelse:\n    print('never')\nreturn mem"
    ),
    "arrays that share memory": (
        f"{START}\ntotal = torch.zeros(6)\n{LOOP}\n    {STEP}\n    total += spk.detach().sum(0)\n"
        "    rec.append(total.numpy())\nreturn mem, [row.tolist() for row in rec]"
    ),
    "a list whose length is read elsewhere": (
        f"{START}\ndef calls():\n    return 1 + len(self.trace) / 4\n{LOOP}\n"
        "    spk, mem = self.lif1(self.fc1(x[step] * calls()), mem)\n    self.trace.append(spk.mean(0).tolist())\n"
        "return mem"
    ),
    "an attribute that is printed": f"{START}\n{LOOP}\n    {STEP}\n    print(self.trace, step)\nreturn mem",
    "an update that learns": (
        f"{START}\nlearner = Learner(self)\n{LOOP}\n    {STEP}\n    learner.update(spk.detach())\nreturn mem"
    ),
    "arrays whose number is printed": (
        f"{START}\n{LOOP}\n    {STEP}\n    rec.append(spk.detach().numpy())\n    print(len(rec))\nreturn mem"
    ),
    "a list that is printed": (
        f"{START}\n{LOOP}\n    {STEP}\n    rec.append(spk.sum().item())\n    print(rec)\nreturn mem"
    ),
    "functions in a print": (
        f"{START}\n{LOOP}\n    {STEP}\n    print(shape_of(spk), self.trace.append(step))\nreturn mem"
    ),
}
_numbers = itertools.count()


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return the module of a source, the same with branches at its loops, and the search that found the loops."""
    searches = []

    def make(source):
        modules = []
        for _ in range(2):
            name = f"looped_{next(_numbers)}"
            path = tmp_path / f"{name}.py"
            path.write_text(source)
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, module)
            torch.manual_seed(0)
            spec.loader.exec_module(module)
            modules.append(module)
        torch._dynamo.reset()
        search = discovery.Discovery()
        backend.enable(search)
        search.searches = True
        searches.append(search)
        search.adopt(modules[1])
        return *modules, search

    yield make
    for search in searches:
        search.stop()
    linecache.clearcache()


def network(module):
    torch.manual_seed(1)
    return module.Net()


def called(net, x, capsys):
    """Return the results and output of a call, and the state of the network after it."""
    torch.manual_seed(2)
    random.seed(3)
    np.random.seed(3)
    net.zero_grad()
    x = x.clone().requires_grad_(torch.is_grad_enabled())
    out = net(x)
    out = list(out) if isinstance(out, (tuple, list)) else [out]
    learnt = [one for one in out if isinstance(one, torch.Tensor) and one.requires_grad]
    if learnt:
        sum((one * (1 + place)).sum() for place, one in enumerate(learnt)).backward()
    left = {name: value for name, value in vars(net).items() if name in ("count", "trace", "seen")}
    states = [neuron.mem for neuron in net.modules() if hasattr(neuron, "mem")]
    grads = [x.grad, *(parameter.grad for parameter in net.parameters())]
    return [out, states, [*net.buffers()], grads, left, torch.get_rng_state(), capsys.readouterr().out]


def alike(one, other):
    if isinstance(one, torch.Tensor):
        assert_close(one, other, rtol=1e-4, atol=5e-5)
        assert one.requires_grad == other.requires_grad
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for pair in zip(one, other):
            alike(*pair)
    elif isinstance(one, dict):
        alike([*one.items()], [*other.items()])
    else:
        assert one == other


def written(body):
    """Return the source of a module in which ``body`` is the forward pass of the network."""
    return f"{HEAD}        " + body.replace("\n", "\n        ") + "\n"


def compare(body, load, capsys, shapes=((5, 3), (5, 3), (7, 3), (5, 2), (2, 3), (5, 3))):
    *modules, search = load(written(body))
    nets = [network(module) for module in modules]
    for number, shape in enumerate(shapes):
        x = torch.rand(*shape, 4, generator=torch.Generator().manual_seed(number)) * 2
        with torch.set_grad_enabled(number != 4):
            alike(*(called(net, x, capsys) for net in nets))
    return search, nets


SOON = ("states", "counters")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SOON else pytest.mark.slow) for n in DISTRIBUTED])
def test_distributed_loops_give_what_they_give(name, load, capsys):
    search, _ = compare(DISTRIBUTED[name], load, capsys)
    for loop in [one for one in search.loops if one.plans]:
        assert loop.runs >= 4, loop.text_lines()
        assert loop.label in str(search)
    assert any(one.plans for one in search.loops)


FIRST_STEPS = {
    "an autograd function, which PyTorch traces without its backward pass for states without a gradient": (
        f"mem = torch.zeros(x.shape[1], 6)\n{LOOP}\n    mem = 0.5 * mem + self.fc1(x[step])\n"
        "    spk = Box.apply(mem - 0.3)\n    mem = mem - spk.detach()\nreturn spk, mem"
    ),
    "a total that begins as a number": (
        f"{START}\ntotal = 0.0\n{LOOP}\n    {STEP}\n    total += spk.sum()\n"
        "    rec.append(torch.mean(input=mem, dim=-1))\nreturn total, torch.stack(rec)"
    ),
    "three states of two layers": (
        "shape = 2, x.shape[1], 6\na, b, c = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)\n"
        f"a, b, c = list(a), list(b), list(c)\n{LOOP}\n    now = self.fc1(x[step])\n    for n in range(2):\n"
        "        a[n] = 0.5 * a[n] + now\n        b[n] = 0.7 * b[n] * (1 - c[n]) + a[n]\n"
        "        c[n] = Box.apply(b[n] - 0.3)\n        now = self.fc1(c[n][:, :4])\nreturn c[1], b[1]"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST_STEPS)
def test_one_graph_holds_for_the_first_step_too(name, load, capsys):
    search, _ = compare(FIRST_STEPS[name], load, capsys)
    (plan,) = [plan for one in search.loops for plan in one.plans]
    assert not plan.first_in_python
    assert not plan.peeled
    assert not plan.distribution.cycles
    assert len({step.args[4] for step in plan.distribution.neurons}) == 1  # a kernel's name, for all layers


@pytest.mark.slow
@pytest.mark.parametrize("name", AS_WRITTEN)
def test_other_loops_run_as_they_are_written(name, load, capsys):
    search, _ = compare(AS_WRITTEN[name], load, capsys)
    assert [one for one in search.loops if one.reason]
    assert all(one.runs == 0 for one in search.loops)


@pytest.mark.slow
def test_loops_in_checkpoints_run_as_they_are_written(load, capsys):
    body = (
        "def chunk(x, mem):\n    for now in x:\n        spk, mem = self.lif1(self.fc1(now), mem)\n    return spk, mem\n"
        "mem = torch.zeros(x.shape[1], 6)\nfor part in x.split(3):\n"
        "    spk, mem = checkpoint(chunk, part, mem, use_reentrant=False)\nreturn spk, mem"
    )
    search, _ = compare(body, load, capsys)
    assert all(one.runs == 0 for one in search.loops), str(search)


@pytest.mark.slow
@pytest.mark.parametrize("name", EITHER)
def test_output_is_that_of_the_loop(name, load, capsys):
    compare(EITHER[name], load, capsys)


@pytest.mark.slow
def test_a_loop_with_other_neurons_after_some_calls(load, capsys):
    """New neurons have states of another shape, and other code."""
    plain, looped, search = load(written(DISTRIBUTED["states"]))
    nets = network(plain), network(looped)
    for number in range(8):
        if number == 3:
            for net, module in zip(nets, (plain, looped)):
                net.lif1 = snn.Leaky(beta=0.5)
                net.lif1.spike_grad = module.Box.apply
        alike(
            *(called(net, torch.rand(5, 3, 4, generator=torch.Generator().manual_seed(number)), capsys) for net in nets)
        )
    assert search.loops[-1].runs > 4


@pytest.mark.slow
def test_several_networks_take_turns(load, capsys):
    plain, looped, search = load(written(DISTRIBUTED["hidden"]))
    nets = [(network(plain), network(looped)) for _ in range(3)]
    for number in range(9):
        x = torch.rand(5, 3, 4, generator=torch.Generator().manual_seed(number)) * 2
        alike(*(called(net, x, capsys) for net in nets[number % 3]))
    assert search.loops[-1].runs >= 7


@pytest.mark.slow
@pytest.mark.parametrize("name", ["states", "norm", "counters"])
def test_what_a_new_graph_sets_unexpectedly_is_undone(name, load, capsys):
    """A hook that is registered later changes an attribute that no step changed before."""
    _, nets = compare(DISTRIBUTED[name], load, capsys, shapes=((5, 3),) * 3)
    for net in nets:
        net.hooked = []
        net.lif1.register_forward_hook(lambda module, given, out, net=net: net.hooked.append(1))
    for _ in range(3):
        alike(*(called(net, torch.rand(5, 3, 4, generator=torch.Generator()), capsys) for net in nets))
        alike(*(net.hooked for net in nets))


@pytest.mark.slow
def test_errors_of_the_program(load, capsys):
    """After compiled calls, an error is raised as in Python."""
    _, nets = compare(DISTRIBUTED["states"], load, capsys, shapes=((5, 3),) * 3)
    for net in nets:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            net(torch.rand(5, 3, 9))
    alike(*(called(net, torch.ones(5, 3, 4), capsys) for net in nets))


def test_results_may_be_changed_in_place(load):
    _, looped, search = load(written(DISTRIBUTED["lists"]))
    net = network(looped)
    for _ in range(3):
        out = net(torch.rand(5, 3, 4))
        before = [one.detach().clone() for one in out]
        out[0].mul_(2)
        out[3].add_(1)
        assert_close(out[0].detach(), before[0] * 2)
        assert_close(out[1].detach(), before[1])
        sum(one.sum() for one in out).backward()
    assert search.loops[-1].runs == 3


@pytest.mark.slow
@pytest.mark.parametrize("program", programs.PROGRAMS)
def test_programs_of_the_benchmark(program):
    settings = SimpleNamespace(
        steps=5, batch_size=4, neurons=64, beta=0.9, program=program, seed=0, device=torch.device("cpu")
    )
    torch._dynamo.reset()
    search = discovery.Discovery()
    backend.enable(search)
    search.searches = True
    search.adopt(programs)
    try:
        workload = Training(programs.PROGRAMS[program], settings).workload(snn)
        for _ in range(3):
            check = workload.check()
            assert check.passed, check.detail
        assert any(one.runs for one in search.loops), str(search)
    finally:
        search.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 12, 2))
def test_random_programs(seed, load):
    program = loop_programs.Writer(seed)
    imports = "\n".join(
        [
            *("import torch", "from torch import nn", "from torch.nn import functional as F", "import snnipu as snn"),
            *("from snnipu import surrogate", "from snntorch import utils", "from support.loop_programs import Spike"),
        ]
    )
    nets = [network(module) for module in load(f"{imports}\n{program.source}")[:2]]
    loop_programs.check(program, nets, nets[1], (*program.batches, program.batches[0]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 10, 24, 56, 86])
def test_random_scripts(seed, tmp_path, monkeypatch):
    """Scripts that earlier versions of the compiler got wrong."""
    records = []
    for auto in ("", "1"):
        monkeypatch.setenv(surroundings.AUTO, auto)
        (tmp_path / f"auto{auto}").mkdir()
        records.append(surroundings.play(seed, tmp_path / f"auto{auto}"))
    assert surroundings.differences(seed, *records) == []


# ---- parts


@pytest.mark.parametrize(
    "index",
    [
        ([0, 1, 2],),
        ([1, 3, 5],),
        ([4, 2, 0],),
        ([0, 2, 3],),
        ([-3, -2, -1],),
        (slice(None), [0, 1, 2]),
        (slice(None), slice(1, 3), [1, 2, 3]),
        (Ellipsis, [0, 1, 2]),
        (slice([0, 2, 4], [2, 4, 6]),),
        ([0, 1, 2], slice(None), 2),
    ],
)
def test_steps_of_a_tensor(index):
    x = torch.rand(6, 6, 6)
    expected = torch.stack([x[helpers._at(index, step)] for step in range(3)])
    assert torch.equal(helpers.take_steps(x, index, 3), expected)
    copies = x.clone(), x.clone()
    value = torch.rand(expected.shape)
    for step in range(3):
        copies[0][helpers._at(index, step)] = value[step]
    helpers.set_steps(copies[1], index, value, 3)
    assert torch.equal(*copies)


@pytest.mark.parametrize(("start", "length"), [([0, 2, 4], 2), ([1, 2, 3], 3), ([4, 2, 0], 2)])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_windows_of_a_tensor(start, length, dim):
    x = torch.rand(6, 7, 8)
    expected = torch.stack([x.narrow(dim, one, length) for one in start])
    assert torch.equal(helpers.take_windows(x, dim, start, length, 3), expected)


def test_steps_out_of_range():
    with pytest.raises(IndexError, match=r"out of bounds|out of range"):
        helpers.take_steps(torch.rand(2, 3), ([0, 1, 2],), 3)


@pytest.mark.parametrize("index", [(slice(None), 1), (0, slice(1, 3)), (..., 2), (0, ..., slice(0, 1)), (None, 1), 2])
def test_indices(index):
    x = torch.rand(3, 4, 5)
    assert torch.equal(at(x, index), x[index])


def test_indices_of_other_things():
    assert at([3, 4, 5], slice(1, 2)) == [4]


def test_steps_and_stacks():
    sequence = torch.rand(4, 2, 3, requires_grad=True)
    steps = Steps.apply(sequence * 1)
    (steps[1] * 3).sum().backward()
    assert torch.equal(sequence.grad, torch.tensor([0.0, 3, 0, 0])[:, None, None].expand(4, 2, 3))
    rows = [torch.zeros(2, 3), Record(sequence.detach()), torch.ones(2, 3)]
    expected = torch.cat([torch.zeros(1, 2, 3), sequence.detach(), torch.ones(1, 2, 3)])
    for dim in (0, 1, 2, -1):
        assert torch.equal(stack(torch.stack, rows, dim=dim), torch.stack(list(expected), dim=dim))
    assert torch.equal(stack(torch.stack, [torch.ones(2)] * 2), torch.ones(2, 2))


def test_items():
    x = torch.rand(4, 2)
    read = Items(Called(zip, (Called(enumerate, (x, 3)), range(8, 0, -2)))).reader()
    assert [read(t)[0][0] for t in range(4)] == [3, 4, 5, 6]
    assert [read(t)[1] for t in range(4)] == [8, 6, 4, 2]
    assert torch.equal(read(2)[0][1], x[2])
    for iterable in ("text", iter([1]), Called(print, (x,)), [1, 2, 3]):
        with pytest.raises(Exception, match="iterates over"):
            Items(iterable)


def test_objects_are_put_back():
    class Owner:
        def __init__(self):
            self.number, self.rows, self.inner = 1, [1, 2], {"a": torch.ones(2)}

    owner = Owner()

    def function():
        return None

    before = Objects([owner, [owner]], function)
    owner.number, owner.inner["a"] = 2, torch.zeros(2)
    owner.rows.append(3)
    after = Objects([owner, [owner]], function)
    changes = before.changes(after)
    assert {place.key for place in changes.places} == {"number", "a"}
    assert [place.key for place in changes.grown] == ["rows"]
    before.undo(after)
    assert (owner.number, owner.rows) == (1, [1, 2])
    assert torch.equal(owner.inner["a"], torch.ones(2))
