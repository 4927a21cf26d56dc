"""Hand-coded recurrence: a neuron's spikes reach its input of the next step through a layer, in several spellings."""

import pytest
import torch
from support.loops import compared, network, rolled
from support.tables import rows
from support.versions import needs_backend
from torch import nn

import snnipu as snn
from snnipu import surrogate

pytestmark = [needs_backend, pytest.mark.usefixtures("found")]
STEPS, BATCH, WIDTH = 6, 3, 4


def leaky(**keywords):
    return snn.Leaky(**{"beta": 0.8, "threshold": 0.3, "spike_grad": surrogate.fast_sigmoid(slope=5), **keywords})


@snn.neuron(states=("mem",), parameters={"beta": 0.8, "threshold": 0.3})
def CustomLeaky(x, mem, *, beta, threshold, spike):
    mem = beta * mem + x
    spk = spike(mem - threshold)
    return spk, mem - spk.detach() * threshold


class Recurrent(nn.Module):
    """Parallel recurrent neurons and an output neuron.

    Args:
        currents: functions, or expressions, of the network ``n``, the input ``x`` and the previous spikes ``spk``.
    """

    def __init__(self, currents, neurons=None):
        super().__init__()
        self.inp, self.rec = nn.Linear(5, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.free = nn.Linear(WIDTH, WIDTH, bias=False)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)
        self.lifs = nn.ModuleList(neurons or [leaky() for _ in currents])
        self.currents = [eval(f"lambda n, x, spk: {one}") if isinstance(one, str) else one for one in currents]
        self.out, self.readout = leaky(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        states = [lif.reset_mem() for lif in self.lifs]
        states = [state if isinstance(state, tuple) else (state,) for state in states]
        spks = [torch.zeros(x.shape[1], WIDTH) for _ in self.lifs]
        mem2, rows = self.out.reset_mem(), []
        for now in x:
            for i, lif in enumerate(self.lifs):
                results = lif(self.currents[i](self, now, spks[i]), *states[i])
                spks[i], states[i] = results[0], tuple(results[1:])
            spk2, mem2 = self.out(self.readout(spks[0]), mem2)
            rows.append(torch.stack([spk2, *spks]))
        return [torch.stack(rows), *spks, *(state[-1] for state in states)]


LAYER = "n.inp(x) + n.rec(spk)"


def no_gradient(n, x, spk):
    with torch.no_grad():
        back = n.rec(spk)
    return n.inp(x) + back


def in_place(n, x, spk):
    back = n.rec(spk)
    back.mul_(2)
    return n.inp(x) + back


SPELLINGS = {
    "layer": LAYER,
    "layer first": "n.rec(spk) + n.inp(x)",
    "no bias": "n.inp(x) + n.free(spk)",
    "product": "n.inp(x) + spk @ n.weight",
    "torch.matmul": "torch.matmul(spk, n.weight) + n.inp(x)",
    "mm": "torch.add(n.inp(x), spk.mm(n.weight))",
    "transposed": "n.inp(x) + spk @ n.weight.t()",
    "F.linear": "n.inp(x).add(nn.functional.linear(spk, n.weight))",
    "subtracted": "n.inp(x) - n.rec(spk)",
    "a product, subtracted": "n.inp(x) - spk @ n.weight",
    "a constant input": "n.inp.bias.expand(len(x), WIDTH) * 3 + n.rec(spk)",
}
NEURONS = rows("""
leaky(reset_mechanism="zero")
leaky(reset_mechanism="none", learn_threshold=True, learn_graded_spikes_factor=True)
leaky(reset_delay=False)
leaky(graded_spikes_factor=0.5, learn_graded_spikes_factor=True)
leaky(beta=torch.full((WIDTH,), 0.7), learn_beta=True, learn_threshold=True)
snn.Synaptic(alpha=0.7, beta=0.8, threshold=0.3, learn_alpha=True)
snn.Synaptic(alpha=0.7, beta=0.8, threshold=0.3, reset_delay=False)
snn.Alpha(alpha=0.8, beta=0.7, threshold=0.2)
snn.Lapicque(beta=0.8, threshold=0.3)
CustomLeaky(learn=True)
""")
# Feedback that runs step by step, with the loop's results.
OTHERS = {
    "a sum of the spikes": "n.inp(x) + spk.sum(1, keepdim=True)",
    "twice the spikes": "n.inp(x) + n.rec(spk * 2)",
    "no gradient": no_gradient,
    "detached": "n.inp(x) + n.rec(spk.detach())",
    "a sum with a factor": "torch.add(n.inp(x), n.rec(spk), alpha=2)",
    "two layers": "n.inp(x) + n.free(n.rec(spk))",
    "product from the right": "n.inp(x) + (n.weight @ spk.t()).t()",
    "changed in place": in_place,
    "subtracted from": "n.rec(spk) - n.inp(x)",
}


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_spellings_are_one_operator_with_the_loops_numbers(training):
    report = compared(Recurrent(SPELLINGS.values()), torch.randn(STEPS, BATCH, 5), learns=training)
    assert rolled(report) == [(STEPS - 1, True)] * (len(SPELLINGS) + 1), report


@pytest.mark.slow
def test_neurons():
    net = Recurrent([LAYER] * len(NEURONS), [eval(row) for row in NEURONS])
    report = compared(net, torch.randn(STEPS, BATCH, 5))
    assert rolled(report) == [(STEPS - 1, True)] * (len(NEURONS) + 1), report


@pytest.mark.slow
def test_other_recurrence_runs_step_by_step():
    report = compared(Recurrent(OTHERS.values()), torch.randn(STEPS, BATCH, 5))
    assert [one.rolled for one in report.neurons] == [False] * len(OTHERS) + [True], report
    assert all(one.why_not.startswith(("the result reaches", "the input is computed")) for one in report.neurons[:-1])


# Code of a step -> for each neuron, True if its steps are one operator. Each neuron reads spikes of the previous step.
FORMS = {
    "now = self.map(x[t]) if spk is None else self.map(x[t]) + self.rec(spk)\nspk, mem = self.lif(now, mem)": [True],
    "now = self.map(x[t]) + self.rec(spk)\nfirst = now if t == 0 else first\nspk, mem = self.lif(now, mem)": [True],
    "spk, mem = self.lif(x[t] + self.rec(spk), mem)\nspk2, mem2 = self.lif2(self.map(spk) + self.rec2(spk2), mem2)": [
        True,
        True,
    ],
    # No neuron's steps are one operator: the loop runs in Python.
    "spk, mem = self.lif(x[t] + self.rec(spk2), mem)\nspk2, mem2 = self.lif2(self.map(spk) + self.rec2(spk), mem2)": [],
    "now = self.map(x[t]) * 2\nnow[:, 0] = 0.5\nspk, mem = self.lif(now + self.rec(spk), mem)\nnow[:, 1] = 0\n"
    "out = out + now": [],
    "mem = x[t] * 0 if t == 0 else mem\nspk, mem = self.lif(self.map(x[t]) + self.rec(mem), mem)": [],
    "back = self.rec(spk)\nout = out + back\nspk, mem = self.lif(self.map(x[t]) + back, mem)": [],
    "spk, mem, before = *self.lif(self.map(x[t]) + self.rec(before), mem), spk": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    init = "self.lif2 = snn.Leaky(0.6, threshold=0.3)\nself.rec, self.rec2 = nn.Linear(6, 6), nn.Linear(6, 6)"
    start = "spk, spk2, before, first, mem2 = *[x[0] * 0] * 4, self.lif2.reset_mem()"
    start = start + "\nspk = None" * ("spk is None" in form)
    report = compared(network(form, init, start, "torch.stack(rec), out, spk, first"), torch.randn(STEPS, BATCH, 6))
    assert [one.rolled for one in report.neurons] == FORMS[form], report


@pytest.mark.slow
def test_a_convolution():
    step = "spk, mem = self.lif(self.inp(x[t]) + self.rec(spk), mem)"
    init = "self.inp, self.rec = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, (3, 1), padding=(1, 0))"
    start = "spk = torch.zeros(x.shape[1], 2, 4, 5)"
    report = compared(network(step, init, start, "torch.stack(rec), spk"), 2 * torch.randn(STEPS, BATCH, 1, 4, 5))
    assert rolled(report) == [(STEPS - 1, True)]


@pytest.mark.slow
def test_autocast_runs_as_the_loop():
    net, x = Recurrent([LAYER]), torch.randn(STEPS, BATCH, 5)

    def call(net, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(x)

    compared(net, x, call=call, rtol=0.02, atol=0.02)


class ScaledFeedback(nn.Module):
    """A neuron by hand whose feedback is a summand of a scaled sum."""

    def __init__(self):
        super().__init__()
        self.weight, self.spike = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2), surrogate.fast_sigmoid(slope=5)

    def forward(self, x):
        mem, spk, rows = torch.rand_like(x[0]), torch.rand_like(x[0]), []
        for t in range(x.shape[0]):
            mem = 0.8 * (mem - spk) + (1 - 0.8) * (x[t] + torch.matmul(spk, self.weight))
            spk = self.spike(mem - 0.3)
            rows.append(spk)
        return [torch.stack(rows)]


def test_a_feedback_inside_a_scaled_sum():
    report = compared(ScaledFeedback(), 3 * torch.rand(STEPS, BATCH, WIDTH), rtol=1e-4, atol=1e-4)
    assert rolled(report) == [(STEPS - 1, True)], report
