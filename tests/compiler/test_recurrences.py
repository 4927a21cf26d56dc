"""Neurons that a program writes out, or whose step a subclass changes, run as one operator over time."""

import pytest
import torch
from support.versions import needs_backend, needs_dynamo_of_2_12
from torch import nn

import snnipu as snn
from snnipu import backends, compiler, surrogate
from snnipu.compiler import backend

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore:.*replaces")]
STEPS, BATCH, WIDTH = 6, 3, 70
spike = surrogate.fast_sigmoid(slope=5)


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    """A graph that cannot be rolled is an error here."""
    torch.manual_seed(0)
    monkeypatch.setattr(backend, "strict", True)
    torch._dynamo.reset()


class Written(nn.Module):
    """``step`` is one step of a neuron: a function of the network, the current and the states."""

    def __init__(self, step, starts, rows=True):
        super().__init__()
        self.gain, self.out = nn.Parameter(torch.rand(WIDTH)), nn.Linear(WIDTH, 2)
        self.beta = nn.Parameter(torch.rand(WIDTH))
        self.rate = nn.Parameter(torch.tensor(0.7))
        self.threshold = nn.Parameter(torch.full((1, WIDTH), 0.3))
        self.step, self.starts, self.rows = step, starts, rows

    def forward(self, x):
        states = self.starts(x)
        spikes, last = [], []
        for current in x:
            spk, *states = self.step(self, self.gain * current, *states)
            spikes.append(self.out(spk))
            last.append(states[0])
        if not self.rows:
            return [sum(spikes), *states]
        return [torch.stack(spikes), torch.stack(last), *states]


def zeros(count):
    return lambda x: [torch.zeros(x.shape[1], WIDTH, device=x.device) for _ in range(count)]


def subtracted(net, x, mem):
    mem = net.beta * mem + x
    spk = spike(mem - net.threshold)
    return spk, mem - spk * net.threshold


def multiplied(net, x, mem):
    spk = spike(mem - 1.0)
    return spk, (0.9 * mem + x) * (1.0 - spk.detach())


def selected(net, x, mem):
    mem = mem + (x - mem) / 2.0
    spk = spike(mem - 0.1)
    return spk, torch.where(mem > 0.1, torch.zeros_like(mem), mem)


def of_comparisons(net, x, mem):
    mem = torch.sigmoid(net.rate) * mem + x
    reset = (mem > net.threshold).float()
    return spike(mem - net.threshold), mem * (1 - reset)


def clamped(net, x, mem):
    mem = (net.beta.clamp(0, 1) * mem + x).clamp(min=-0.5)
    spk = spike(mem - 0.5)
    return spk, mem - 0.5 * spk.detach()


def adaptive(net, x, mem, threshold):
    mem = net.beta * mem + x
    spk = spike(mem - (0.3 + threshold))
    threshold = net.rate * threshold + 0.5 * spk
    return spk, mem - spk.detach() * (0.3 + threshold), threshold


def two_filters(net, x, syn, mem):
    syn = net.beta * syn + x
    mem = net.rate * mem + syn
    spk = spike(mem - net.threshold)
    return spk, syn, mem * (1 - spk)


def spikes_come_first(net, x, syn, mem):
    above = mem - 0.2
    out = spike(above)
    after = (0.9 * mem + syn) * (1 - out.detach())
    return out, 0.8 * syn + x, after


def without_spikes(net, x, mem):
    mem = torch.tanh(net.beta * mem + x)
    return mem, mem


class Rectangle(torch.autograd.Function):
    """With assignments where a comparison holds."""

    @staticmethod
    def forward(ctx, u, width=0.7):
        ctx.save_for_backward(u)
        ctx.width = width
        out = torch.zeros_like(u)
        out[u > 0] = 1.0
        return out

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        made = grad.clone()
        made[u.abs() > ctx.width] = 0
        return made, None


class Ternary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).float() - (u < -0.5).float()

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return 1 / (1 + (3.0 * u).pow_(2)) * grad


class Above(torch.autograd.Function):
    """Of two tensors, whose difference is saved, and a gradient that is not linear in what comes in."""

    @staticmethod
    def forward(ctx, mem, threshold):
        above = mem - threshold
        ctx.save_for_backward(above)
        return torch.where(above > 0, 1.0, 0.0)

    @staticmethod
    def backward(ctx, grad):
        (above,) = ctx.saved_tensors
        made = grad.clamp(-0.5, 0.5) * torch.exp(-above.abs())
        return made, -made


def by_rectangle(net, x, mem):
    mem = net.beta * mem + x
    spk = Rectangle.apply(mem - net.threshold)
    return spk, mem - spk * net.threshold


def ternary(net, x, mem, trace):
    mem = net.beta * mem + x
    spk = Ternary.apply(mem - 0.3)
    return spk, mem * (1 - spk.abs().detach()), 0.5 * trace + spk


def of_two_tensors(net, x, mem):
    mem = net.beta * mem + x
    spk = Above.apply(mem, net.threshold)
    return spk, mem - spk.detach() * net.threshold


def two_functions(net, x, mem):
    spk = Rectangle.apply(mem - 0.4, 0.2)
    return spk, (net.beta * mem + x) * (1 - Ternary.apply(mem - 0.2)) - 0.3 * spk


OWN = {
    "by rectangle": (by_rectangle, zeros(1)),
    "ternary": (ternary, zeros(2)),
    "of two tensors": (of_two_tensors, zeros(1)),
    "two functions": (two_functions, zeros(1)),
}
# TorchDynamo of PyTorch 2.13 fails at two assignments where a comparison holds, of unknown sizes.
HOW = {"by rectangle": {"dynamic": False}, "two functions": {"dynamic": False}}
WAYS = {
    **OWN,
    "subtracted": (subtracted, zeros(1)),
    "multiplied": (multiplied, zeros(1)),
    "selected": (selected, zeros(1)),
    "of comparisons": (of_comparisons, zeros(1)),
    "clamped": (clamped, zeros(1)),
    "adaptive": (adaptive, zeros(2)),
    "two filters": (two_filters, zeros(2)),
    "spikes come first": (spikes_come_first, zeros(2)),
    "without spikes": (without_spikes, zeros(1)),
    "from a number": (subtracted, lambda x: [0.0]),
    "from one value": (subtracted, lambda x: [torch.zeros(1, device=x.device)]),
    "adaptive from numbers": (adaptive, lambda x: [0.0, 0.0]),
    "from one value each": (subtracted, lambda x: [torch.linspace(0, 1, WIDTH, device=x.device)]),
}


def compare(net, x, exact=True, gradients=1e-4, **how):
    """Spikes to rounding, states equal where ``exact``, gradients to rounding."""
    compiled = snn.compile(net, **how)
    results = []
    for run in (net, compiled):
        net.zero_grad()
        given = x.clone().requires_grad_()
        torch.manual_seed(5)
        made = run(given)
        weights = torch.Generator().manual_seed(3)
        sum((a * torch.randn(a.shape, generator=weights).to(a.device)).sum() for a in made).backward()
        results.append(([a.detach() for a in made], [given.grad, *(p.grad for p in net.parameters())]))
    (one, *states), (other, *others) = results[0][0], results[1][0]
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    for a, b in zip(states, others):
        torch.testing.assert_close(a, b, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-5)
    assert one.unique().numel() > 1
    for a, b in zip(results[0][1], results[1][1]):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=gradients, atol=gradients / 10)


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param(way, marks=needs_dynamo_of_2_12 if way in OWN else ()) for way in WAYS])
def test_a_neuron_that_is_written_out(way):
    net, x = Written(*WAYS[way]), torch.randn(STEPS, BATCH, WIDTH) * 2
    compare(net, x, exact=way != "without spikes", **HOW.get(way, {}))
    torch._dynamo.reset()
    report = compiler.explain(net, x)
    assert report.neurons, report
    assert all(neuron.rolled for neuron in report.neurons)
    assert {operator.name: operator.times for operator in report.graphs[0].operators}["linear"] == 1


# The next membrane of neurons with several inputs: of the network, the current, spikes and membrane of the step before.
SUMS = {
    "a current and a layer of the spikes": lambda n, x, spk, mem: n.beta * mem + x + n.rec(spk),
    "the layer first": lambda n, x, spk, mem: n.rec(spk) + n.beta * mem + x,
    "the layer subtracted": lambda n, x, spk, mem: n.beta * mem + x - n.rec(spk),
    "a product": lambda n, x, spk, mem: n.beta * mem + x + spk @ n.rec.weight,
    "three, of which one is subtracted": lambda n, x, spk, mem: n.rec(spk) + n.beta * mem - n.other(x) + x + n.gain,
    "all subtracted": lambda n, x, spk, mem: n.beta * mem - n.other(x) - x,
    "in brackets": lambda n, x, spk, mem: mem - (n.other(x) - (0.5 * mem + x)),
    "a step of Euler": lambda n, x, spk, mem: mem + (-(mem - 0.1) + x + n.rec(spk)) / 2.0,
    "noise": lambda n, x, spk, mem: n.beta * mem + (1 - n.beta) * x + torch.randn_like(mem) * n.rate,
    "noise of a step before": lambda n, x, spk, mem: n.beta * mem + (x + torch.rand_like(spk)) + n.other(x),
    "a layer of the membrane": lambda n, x, spk, mem: n.beta * mem + x + n.rec(mem),
}
# What stays a loop, as the sum is not the only place of an input.
NO_SUMS = {
    "multiplied, too": lambda n, x, spk, mem: n.beta * mem + x + n.other(x) * mem,
    "two sums": lambda n, x, spk, mem: (mem + x) * (0.3 * mem + n.other(x)),
    "with a factor": lambda n, x, spk, mem: torch.add(n.beta * mem + x, n.rec(spk), alpha=2),
}


class Summed(Written):
    """``membrane`` is the equation of the membrane; ``detour``: its first part is a result, too."""

    def __init__(self, membrane, detour=False):
        super().__init__(None, zeros(2))
        self.rec, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.membrane, self.detour = membrane, detour

    def forward(self, x):
        spk, mem = self.starts(x)
        spikes, membranes = [], []
        for current in x:
            if self.detour:
                part = self.beta * mem + self.gain * current
                spikes.append(part)
                mem = part + self.other(current)
            else:
                mem = self.membrane(self, self.gain * current, spk, mem)
            spk = spike(mem - self.threshold)
            mem = mem - spk * self.threshold
            spikes.append(self.out(spk) if not self.detour else spk)
            membranes.append(mem)
        return [torch.stack(spikes), torch.stack(membranes), spk, mem]


def rolled_as_one(net, x):
    """How many neurons run over time, how many are left."""
    torch._dynamo.reset()
    found = [neuron.rolled for neuron in compiler.explain(net, x).neurons]
    return sum(found), len(found) - sum(found)


@pytest.mark.slow
@pytest.mark.parametrize("way", SUMS)
def test_inputs_that_a_neuron_only_adds_are_added_first(way):
    net, x = Summed(SUMS[way]), torch.randn(STEPS, BATCH, WIDTH)
    compare(net, x, exact=False)
    assert rolled_as_one(net, x) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("way", NO_SUMS)
def test_inputs_that_are_no_summands_stay(way):
    net, x = Summed(NO_SUMS[way]), torch.randn(STEPS, BATCH, WIDTH) / 2
    compare(net, x, exact=False)
    assert rolled_as_one(net, x)[0] == 0


def test_a_part_of_a_sum_that_is_a_result_is_the_loops():
    net, x = Summed(None, detour=True), torch.randn(STEPS, BATCH, WIDTH)
    compare(net, x, exact=False)


class Chained(Written):
    """The second neuron adds the first one's spikes, and subtracts a layer of the input."""

    def __init__(self):
        super().__init__(None, zeros(2))
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        mem, mem2 = self.starts(x)
        spikes = []
        for current in x:
            mem = self.beta * mem + current
            spk = spike(mem - self.threshold)
            mem = mem - spk * self.threshold
            mem2 = 0.5 * mem2 + spk - self.other(current)
            spk2 = spike(mem2 - 0.4)
            mem2 = mem2 - spk2
            spikes.append(spk2)
        return [torch.stack(spikes), mem, mem2]


def test_one_neurons_spikes_are_a_summand_of_the_next():
    net, x = Chained(), torch.randn(STEPS, BATCH, WIDTH)
    compare(net, x, exact=False)
    assert rolled_as_one(net, x) == (2, 0)
    torch._dynamo.reset()
    assert max(one.times for one in compiler.explain(net, x).graphs[0].operators) == 1


class Reduced(nn.Module):
    """No layer is in the loop; ``recurrent``: but one that takes the spikes back."""

    def __init__(self, recurrent):
        super().__init__()
        self.lif = snn.Synaptic(alpha=0.7, beta=0.8, threshold=0.3, spike_grad=spike)
        self.rec = nn.Conv2d(1, 1, 3, padding=1) if recurrent else None

    def forward(self, x):
        syn, mem = self.lif.reset_mem()
        spk, before, rows = torch.zeros_like(x[0]), torch.zeros_like(x[0]), []
        for current in x:
            given = current if self.rec is None else current + self.rec(spk)
            spk, syn, mem = self.lif(given, syn, mem)
            mem = mem * (1 - 0.5 * spk.detach())
            rows.append(spk + 0.5 * before)
            before = spk
        return [torch.stack(rows), syn]


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [False, True])
def test_a_state_is_changed_between_steps(recurrent):
    net, x = Reduced(recurrent), torch.randn(STEPS, BATCH, 1, 4, 5)
    compare(net, x, exact=False)
    assert rolled_as_one(net, x) == (1, 0)


class LowPass(snn.Leaky):
    """The input decays, too."""

    def _base_state_function(self, input_):
        return self.beta * self.mem + (1 - self.beta) * input_


class Halved(snn.Synaptic):
    def fire(self, mem):
        return super().fire(mem) * 0.5


class Network(nn.Module):
    """Two layers of a subclass; ``across``: the second one excites the first."""

    def __init__(self, make, across=False, states=1):
        super().__init__()
        self.fc1, self.lif1, self.fc2, self.lif2 = nn.Linear(WIDTH, 20), make(), nn.Linear(20, 10), make()
        self.back = nn.Linear(10, 20) if across else None

    def forward(self, x):
        states1, states2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        states1, states2 = (one if isinstance(one, tuple) else (one,) for one in (states1, states2))
        rows = []
        spk2 = torch.zeros(x.shape[1], 10, device=x.device)
        for current in x:
            current = self.fc1(current)
            spk1, *states1 = self.lif1(current if self.back is None else current + self.back(spk2), *states1)
            spk2, *states2 = self.lif2(self.fc2(spk1), *states2)
            rows.append(spk2)
        return [torch.stack(rows), *states1, *states2]


SUBCLASSES = {
    "leaky": lambda: LowPass(0.9, threshold=0.1),
    "learnt": lambda: LowPass(0.9, threshold=0.1, learn_beta=True, learn_threshold=True),
    "zero": lambda: LowPass(torch.rand(1), threshold=0.1, reset_mechanism="zero"),
    "synaptic": lambda: Halved(0.9, 0.8, threshold=0.2, reset_mechanism="none"),
}


def compare_networks(net, x):
    """With products, which over all steps round otherwise than over one."""
    compare(net, x, exact=False, gradients=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SUBCLASSES)
def test_a_subclass(kind):
    net, x = Network(SUBCLASSES[kind]), torch.randn(STEPS, BATCH, WIDTH) * 2
    compare_networks(net, x)
    torch._dynamo.reset()
    report = compiler.explain(net, x)
    assert [(one.name, one.steps, one.rolled) for one in report.neurons] == [
        ("lif1", STEPS, True),
        ("lif2", STEPS, True),
    ]


class Around(nn.Module):
    """A neuron of snnTorch's, and what the program does with its results from step to step."""

    def __init__(self, step, taken=torch.stack):
        super().__init__()
        self.gain, self.lif = nn.Parameter(torch.rand(WIDTH) + 0.5), snn.Leaky(0.9, threshold=0.3, spike_grad=spike)
        self.syn = snn.Synaptic(0.8, 0.9, threshold=0.3, spike_grad=spike, reset_mechanism="zero")
        self.alpha = snn.Alpha(0.8, 0.7, threshold=0.3, spike_grad=spike)
        self.step, self.taken = step, taken

    def forward(self, x):
        spk, states = torch.zeros_like(x[0]), [torch.zeros_like(x[0]) for _ in range(3)]
        rows = []
        for current in x:
            spk, *states = self.step(self, self.gain * current, spk, *states)
            rows.append(spk)
        return [self.taken(rows), *states]


def inhibited(net, x, spk, mem, *others):
    return (*net.lif(x - 0.5 * spk, mem), *others)


def bounded(net, x, spk, mem, *others):
    spk, mem = net.lif(x, mem)
    return spk, mem.clamp(min=-0.25), *others


def reset_again(net, x, spk, syn, mem, rest):
    spk, syn, mem = net.syn(x, syn, mem)
    return spk, syn * (1 - spk), mem - 0.1 * spk.detach(), rest


def fatigued(net, x, spk, syn_exc, syn_inh, mem):
    return net.alpha(x * (1 - 0.5 * spk), syn_exc, syn_inh, mem)


AROUND = {"inhibited": inhibited, "bounded": bounded, "reset again": reset_again, "fatigued": fatigued}


@pytest.mark.slow
@pytest.mark.parametrize("way", AROUND)
def test_what_is_done_around_a_neuron(way):
    net, x = Around(AROUND[way]), torch.randn(STEPS, BATCH, WIDTH) * 2
    compare(net, x)
    torch._dynamo.reset()
    report = compiler.explain(net, x)
    assert report.neurons
    assert all(neuron.rolled and neuron.steps == STEPS for neuron in report.neurons)
    assert all(one.times == 0 or one.name.startswith("zeros") for one in report.graphs[0].operators)


class Adaptive(Around):
    """What a step computes last is for the next one alone, and only the spikes are taken: the last one is in vain."""

    def __init__(self, step):
        super().__init__(step)
        self.rec, self.rate = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.tensor(0.9))
        self.fc, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x):
        spk, mem, trace = (torch.zeros_like(x[0]) for _ in range(3))
        total = 0
        for current in x:
            spk, mem, trace = self.step(self, self.fc(current), spk, mem, trace)
            total = total + self.out(spk)
        return [total]


def tired(net, x, spk, mem, trace):
    spk, mem = net.lif(x - trace, mem)
    return spk, mem, 0.9 * trace + 0.3 * spk


def tired_at_a_learnt_rate(net, x, spk, mem, trace):
    spk, mem = net.lif(x - trace, mem)
    return spk, mem, net.rate * trace + (1 - net.rate) * spk


def tired_and_recurrent(net, x, spk, mem, trace):
    spk, mem = net.lif(x + net.rec(spk) - trace, mem)
    return spk, mem, 0.9 * trace + 0.3 * spk


def refractory(net, x, spk, mem, trace):
    spk, mem = net.lif(x * (trace <= 0).float(), mem)
    return spk, mem, (trace - 1).clamp(min=0) + 3 * spk


def depressed(net, x, spk, mem, trace):
    spk, mem = net.lif(x * (1 - trace), mem)
    return spk, mem, 0.9 * trace + 0.2 * spk * (1 - trace)


def tired_and_written_out(net, x, spk, mem, trace):
    threshold = 0.3 + 1.8 * trace
    mem = 0.9 * mem + (x + net.rec(spk)) - spk * threshold
    spk = spike(mem - threshold)
    return spk, mem, net.rate * trace + 0.2 * spk


def recurrent_behind_two_like_operators(net, x, spk, mem, trace):
    """Its membrane is also that before the next step: it is to be seen as this step's, all of them together."""
    mem = 0.9 * mem + x + net.rec(spk)
    spk = surrogate.fast_sigmoid()(mem - 0.3 - 0.4 * trace)
    return spk, mem, 0.9 * trace + 0.2 * spk


ADAPTIVE = [
    tired,
    tired_at_a_learnt_rate,
    tired_and_recurrent,
    refractory,
    depressed,
    tired_and_written_out,
    recurrent_behind_two_like_operators,
]


@pytest.mark.slow
@pytest.mark.parametrize("way", ADAPTIVE)
def test_what_a_neuron_adapts_to(way):
    steps = 2 * STEPS
    net, x = Adaptive(way), torch.randn(steps, BATCH, WIDTH) * 2
    compare(net, x)
    torch._dynamo.reset()
    report = compiler.explain(net, x)
    # The first steps have nothing before them, and may stay steps.
    over_time = [neuron.steps for neuron in report.neurons if neuron.rolled]
    assert over_time
    assert all(count >= steps - 2 for count in over_time)
    assert all(neuron.steps <= 2 for neuron in report.neurons if not neuron.rolled)


def rolled(net, x):
    torch._dynamo.reset()
    report = compiler.explain(net, x)
    return bool(report.neurons) and all(neuron.rolled for neuron in report.neurons)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["bounded", "reset again"])
@pytest.mark.parametrize("taken", [lambda rows: torch.stack(rows[::2]), lambda rows: rows[-1]], ids=["some", "last"])
def test_results_of_some_steps_alone(way, taken):
    net, x = Around(AROUND[way], taken), torch.randn(STEPS, BATCH, WIDTH) * 2
    compare(net, x)
    assert rolled(net, x)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["inhibited", "reset again", "fatigued"])
def test_under_a_default_device(way):
    """``1 - spk`` is another call there."""
    net, x = Around(AROUND[way]), torch.randn(STEPS, BATCH, WIDTH) * 2
    with torch.device("cpu"):
        compare(net, x)
        assert rolled(net, x)


class Counted(Written):
    """A neuron that learns nothing at the first step, counted without gradient, and a parameter that learns nothing."""

    def __init__(self):
        super().__init__(None, None)
        self.lif, self.bound = snn.Leaky(0.9, threshold=0.3, spike_grad=spike), nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        first, mem, total, rows = torch.zeros_like(x[0]), torch.zeros_like(x[0]), torch.zeros(()), []
        for current in x:
            reset = spike(first - self.bound)
            _spk, mem = self.lif(first, mem)
            first = (self.beta * first + self.gain * current) * (1 - reset.detach())
            with torch.no_grad():
                total += mem.sum()
            rows.append(mem)
        return torch.stack(rows), total, first


@pytest.mark.slow
def test_what_learns_nothing():
    net, x = Counted(), torch.randn(STEPS, BATCH, WIDTH) * 2
    made = [one.requires_grad for one in snn.compile(net)(x)]
    assert made == [one.requires_grad for one in net(x)] == [True, False, True]
    torch._dynamo.reset()
    results = []
    for run in (net, snn.compile(net)):
        net.zero_grad()
        rows, _, first = run(x)
        (rows.sum() + first.sum()).backward()
        results.append([one.grad for one in net.parameters()])
    assert net.bound.grad is None
    assert [one is None for one in results[0]] == [one is None for one in results[1]]
    assert rolled(net, x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("kind", [*WAYS, *SUBCLASSES, *AROUND])
def test_on_cuda(kind):
    if kind in SUBCLASSES:
        net = Network(SUBCLASSES[kind])
    else:
        net = Around(AROUND[kind]) if kind in AROUND else Written(*WAYS[kind])
    net, x = net.cuda(), (torch.randn(STEPS, BATCH, WIDTH) * 2).cuda()
    compare(net, x, exact=False, gradients=1e-3 if kind in SUBCLASSES else 1e-4, **HOW.get(kind, {}))
    torch._dynamo.reset()
    report = compiler.explain(net, x)
    assert report.neurons or (kind in OWN and backend.version() < (2, 12))
    assert all(neuron.rolled for neuron in report.neurons)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["subtracted", "adaptive"])
def test_nothing_is_stacked(way):
    """Where only sums and the last states are returned."""
    net, x = Written(*WAYS[way], rows=False), torch.randn(STEPS, BATCH, WIDTH) * 2
    compare(net, x)
    torch._dynamo.reset()
    report = compiler.explain(net, x)
    assert report.neurons
    assert all(neuron.rolled for neuron in report.neurons)


def test_results_that_have_no_gradient():
    class Net(Written):
        def forward(self, x):
            mem, rows, resets = torch.zeros(x.shape[1], WIDTH), [], []
            for current in x:
                reset = spike(mem - 0.3).detach()
                mem = self.beta * mem + self.gain * current - reset * 0.3
                rows.append(mem)
                resets.append(reset)
            return torch.stack(rows), torch.stack(resets)

    net, x = Net(None, None), torch.randn(STEPS, BATCH, WIDTH) * 2
    expected, made = net(x), snn.compile(net)(x)
    for one, other in zip(expected, made):
        assert torch.equal(one, other)
        assert one.requires_grad == other.requires_grad


def two_inputs(net, x, mem):
    mem = net.beta * mem + x
    spk = spike(mem - net.threshold * x.mean(1, keepdim=True))
    return spk, mem - spk.detach() * x.abs().roll(1, 1)


def over_neurons(net, x, mem):
    mem = net.beta * mem + x
    spk = spike(mem - net.threshold)
    return spk, mem - spk.mean(1, keepdim=True)


def two_surrogates(net, x, mem):
    mem = net.beta * mem + x
    spk = spike(mem - net.threshold)
    return spk, mem - spk * surrogate.atan()(mem - 0.5)


def not_recorded(net, x, mem):
    mem = net.beta * torch.erf(mem) + x
    spk = spike(mem - net.threshold)
    return spk, mem - spk


def in_double_precision(net, x, mem):
    mem = net.beta.double() * mem + x
    spk = spike(mem - 0.3)
    return spk, mem - spk


def cast_to_bool(net, x, mem):
    mem = net.beta * mem + x
    spk = spike(mem - net.threshold)
    return spk, mem - 0.1 * (mem - spk).to(torch.bool)


def rounded_quotient(net, x, mem):
    mem = torch.div(mem, 0.7, rounding_mode="floor") * 0.3 + x
    return spike(mem - net.threshold), mem


def sum_with_a_factor(net, x, mem):
    mem = torch.add(x, mem, alpha=0.7)
    return spike(mem - net.threshold), mem


def bounded_by_a_tensor(net, x, mem):
    mem = (0.9 * mem + x).clamp(max=net.threshold)
    return spike(mem - 0.1), mem


def function_of(forward, backward):
    """An autograd function of these passes."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, u):
            ctx.save_for_backward(u)
            return forward(u)

        @staticmethod
        def backward(ctx, grad):
            return backward(grad, *ctx.saved_tensors)

    return Function


def into_what_comes_in(grad, u):
    grad[u < 0] = 0
    return grad


def into_a_view(grad, u):
    made = grad.clone()
    made.detach()[u < 0] = 0
    return made


def into_what_a_view_reads(grad, u):
    made = grad.clone()
    view = made.detach()
    made[u < 0] = 0
    return made + view


def is_positive(u):
    return (u > 0).float()


UNUSUAL = {
    "a sum": (is_positive, lambda grad, u: grad * u.mean()),
    "a number": (is_positive, lambda grad, u: torch.ones_like(grad)),
    "in double precision": (is_positive, lambda grad, u: (grad.to(torch.float64) * u).to(torch.float32)),
    "no operation of a step": (lambda u: torch.erf(u).round(), lambda grad, u: grad),
    "ones": (torch.ones_like, lambda grad, u: grad * u),
    "another shape": (lambda u: (u.t() > 0).float().t(), lambda grad, u: grad),
    "into what comes in": (is_positive, into_what_comes_in),
    "into a view": (is_positive, into_a_view),
    "into what a view reads": (is_positive, into_what_a_view_reads),
}


@pytest.mark.slow
@needs_dynamo_of_2_12
@pytest.mark.parametrize("kind", [*UNUSUAL, "none of these"])
def test_functions_that_are_not_recorded(kind):
    function = function_of(*UNUSUAL.get(kind, (is_positive, lambda grad, u: grad * u.abs())))

    def step(net, x, mem):
        mem = net.beta * mem + x
        spk = function.apply(mem - 0.3)
        return spk, mem - spk.detach() * 0.3

    net, x = Written(step, zeros(1)), torch.randn(STEPS, BATCH, WIDTH) * 2
    compare(net, x)
    torch._dynamo.reset()
    assert bool(compiler.explain(net, x).neurons) == (kind == "none of these")


def test_a_function_that_draws_numbers():
    """In the loop's order, with other draws around it."""

    def step(net, x, mem):
        mem = net.beta * mem + nn.functional.dropout(x, 0.3)
        spk = function.apply(mem)
        return spk, nn.functional.dropout(mem - spk.detach() * 0.3, 0.3)

    function = function_of(lambda u: (u > torch.rand_like(u)).float(), lambda grad, u: grad * u.abs())
    net, x = Written(step, zeros(1)), torch.randn(STEPS, BATCH, WIDTH) * 2
    found = []
    for run in (net, snn.compile(net)):
        torch.manual_seed(5)
        net.zero_grad()
        made = run(x)
        sum(one.sum() for one in made).backward()
        found.append([*made, net.gain.grad])
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_functions_are_told_apart():
    """By their backward pass, their numbers and their class."""
    x = torch.randn(STEPS, BATCH, WIDTH) * 2
    for width in (0.3, 0.9):

        def step(net, x, mem, width=width):
            mem = 0.5 * mem + x
            return Rectangle.apply(mem - 0.3, width), mem

        compare(Written(step, zeros(1)), x, dynamic=False)
        torch._dynamo.reset()

    def changing(net, x, mem, t):
        mem = 0.5 * mem + x
        return Rectangle.apply(mem - 0.3, 0.1 * (t + 1)), mem

    class Net(Written):
        def forward(self, x):
            mem, rows = torch.zeros(x.shape[1], WIDTH), []
            for t in range(STEPS):
                spk, mem = changing(self, self.gain * x[t], mem, t)
                rows.append(self.out(spk))
            return [torch.stack(rows), mem]

    for then in (None, "eager"):
        torch._dynamo.reset()
        compare(Net(None, None), x, dynamic=False, then=then)


KEPT = [two_inputs, over_neurons, two_surrogates, not_recorded, in_double_precision, cast_to_bool, rounded_quotient]
KEPT += [sum_with_a_factor, bounded_by_a_tensor]


@pytest.mark.slow
@pytest.mark.parametrize("step", KEPT)
def test_what_is_no_step_of_a_neuron_stays(step):
    net, x = Written(step, zeros(1)), torch.randn(STEPS, BATCH, WIDTH) * 2
    compare(net, x)
    torch._dynamo.reset()
    assert not compiler.explain(net, x).neurons


def test_without_a_compiler_the_operators_stay(monkeypatch, caplog):
    monkeypatch.setattr(backends, "why_not_compiled", lambda neuron, device: "no C++ compiler found")
    net, x = Written(*WAYS["subtracted"]), torch.randn(STEPS, BATCH, WIDTH) * 2
    compare(net, x)
    torch._dynamo.reset()
    with caplog.at_level("WARNING", "snnipu.compiler"):
        assert not compiler.explain(net, x).neurons
    assert "no C++ compiler found" in caplog.text


def test_a_weight_that_the_loop_changes_is_read_anew():
    class Net(Written):
        def __init__(self):
            super().__init__(None, None)
            self.register_buffer("gate", torch.full((WIDTH,), 0.5))

        def forward(self, x):
            mem, rows = torch.zeros(x.shape[1], WIDTH), []
            for current in x:
                mem = self.gate * mem + self.gain * current
                spk = spike(mem - 0.3)
                mem = mem - spk * 0.3
                self.gate.mul_(0.9)
                rows.append(spk)
            return torch.stack(rows), mem

    x = torch.randn(STEPS, BATCH, WIDTH) * 2
    one, other = Net(), Net()
    other.load_state_dict(one.state_dict())
    for a, b in zip(one(x), snn.compile(other)(x)):
        assert torch.equal(a, b)
    assert torch.equal(one.gate, other.gate)


@pytest.mark.slow
def test_other_sizes_and_a_second_compiler():
    net = Written(*WAYS["adaptive"])
    compiled = snn.compile(net)
    for batch in (3, 7, 2):
        x = torch.randn(STEPS, batch, WIDTH) * 2
        for a, b in zip(net(x)[1:], compiled(x)[1:]):
            assert torch.equal(a, b)
    images = Written(subtracted, lambda x: [torch.zeros_like(x[0])])
    images.out, images.threshold = nn.Identity(), nn.Parameter(torch.rand(4, 1, 1))
    images.beta, images.gain = nn.Parameter(torch.rand(4, 1, 1)), nn.Parameter(torch.rand(5))
    compare(images, torch.randn(STEPS, BATCH, 4, 3, 5) * 2)


def test_a_second_derivative_is_refused_by_name():
    net, x = Written(*WAYS["subtracted"]), (torch.randn(STEPS, BATCH, WIDTH) * 2).requires_grad_()
    (first,) = torch.autograd.grad(snn.compile(net)(x)[1].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        first.sum().backward()


WRITTEN_LAYERS = 3


class Cells(nn.Module):
    """Layers of a neuron that is written out, all with one surrogate, called in a loop within the loop."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(WRITTEN_LAYERS))

    def cell(self, x, state):
        mem, adaptation = state
        mem = 0.95 * mem + x
        threshold = 0.2 + 0.1 * adaptation
        spk = spike(mem - threshold)
        return spk, (mem - spk * threshold, 0.9 * adaptation + spk)

    def forward(self, x):
        states = [(0.0, 0.0) for _ in self.layers]
        total = 0
        for current in x:
            for at, layer in enumerate(self.layers):
                current, states[at] = self.cell(layer(current), states[at])
            total = total + current
        return [total, *(one for state in states for one in state)]


@pytest.mark.slow
def test_layers_of_a_neuron_that_is_written_out():
    net, x = Cells(), torch.randn(STEPS, BATCH, WIDTH) * 2
    compare_networks(net, x)
    torch._dynamo.reset()
    report = compiler.explain(net, x)
    # The first step begins with numbers, and stays apart.
    assert [(one.steps, one.rolled) for one in report.neurons] == [(STEPS - 1, True)] * WRITTEN_LAYERS


def test_a_factor_for_each_sample():
    class Net(Written):
        def forward(self, x):
            share = torch.linspace(0.5, 1, BATCH).view(-1, 1)
            self.starts, self.step = zeros(1), lambda net, x, mem: subtracted(net, x, share * mem)
            return super().forward(x)

    compare(Net(None, None), torch.randn(STEPS, BATCH, WIDTH) * 2)


def from_one_state_with_two_beginnings(net, x, mem, one, other):
    mem = 0.9 * mem + x - 0.3 * one - 0.2 * other
    spk = spike(mem - 0.3)
    return spk, mem, spk, spk


def test_a_state_that_begins_in_two_ways():
    net = Written(from_one_state_with_two_beginnings, lambda x: [*zeros(2)(x), torch.ones(x.shape[1], WIDTH)])
    compare(net, torch.randn(STEPS, BATCH, WIDTH) * 2)


class Later(nn.Module):
    """``step`` knows which step it is."""

    def __init__(self, step):
        super().__init__()
        self.gain, self.rec, self.step = nn.Parameter(torch.rand(WIDTH)), nn.Linear(WIDTH, WIDTH), step

    def forward(self, x):
        mem, rows = torch.zeros(x.shape[1], WIDTH), []
        for t, current in enumerate(x):
            spk, mem = self.step(self, t, self.gain * current, mem)
            rows.append(spk)
        return [torch.stack(rows), mem]


def another_bound(net, t, x, mem):
    mem = (0.9 * mem + x).clamp(min=-0.1 if t < 3 else -0.2)
    spk = spike(mem - 0.3)
    return spk, mem - spk * 0.3


def spikes_that_make_the_input(net, t, x, mem):
    spk = spike(mem - 0.3)
    current = x + net.rec(spk)
    return spk, 0.9 * mem * (1 - spk.detach()) + current


def without_gradient(net, t, x, mem):
    mem = 0.9 * mem + x
    spk = spike(mem - 0.3)
    with torch.set_grad_enabled(t % 2 == 0):
        mem = mem - spk * 0.3
    return spk, mem


@pytest.mark.slow
@pytest.mark.parametrize("step", [another_bound, spikes_that_make_the_input, without_gradient])
def test_steps_that_differ_and_inputs_that_are_results(step):
    net, x = Later(step), torch.randn(STEPS, BATCH, WIDTH) * 2
    compare_networks(net, x)
    torch._dynamo.reset()
    over_time = [neuron for neuron in compiler.explain(net, x).neurons if neuron.rolled and neuron.steps >= STEPS - 1]
    # Spikes that make their own step's input are those of the step before in the next one.
    assert bool(over_time) == (step is spikes_that_make_the_input)


class ResetToZero(nn.Module):
    """Fires by the membrane of the step before; the membrane reads the current of the step before."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 8)

    def forward(self, x):
        spk = syn = mem = torch.zeros(x.shape[1], 8)
        spikes = []
        for t in range(len(x)):
            current = self.fc(x[t])
            reset = spike(mem - 0.2).detach()
            spk = spike(mem - 0.2)
            syn_after, mem_after = 0.9 * syn + current, 0.8 * mem + 0.2 * syn
            syn, mem = syn_after - syn_after * reset, mem_after - mem_after * reset
            spikes.append(spk)
        return [torch.stack(spikes)]


@pytest.mark.slow
def test_steps_that_are_looked_at_from_step_to_step():
    """One of 60 steps of this neuron needs all steps before: Python's stack ended, and the loop stayed as it was."""
    net, x = ResetToZero(), torch.randn(60, BATCH, 5) * 2
    compare(net, x)
    torch._dynamo.reset()
    assert [(neuron.steps, neuron.rolled) for neuron in compiler.explain(net, x).neurons] == [(59, True)]


OF_PYTORCH = function_of(is_positive, lambda grad, u: grad / (1 + 10 * u.abs()) ** 2)
SURROGATES = {
    "a method": OF_PYTORCH.apply,
    "a function": lambda u: OF_PYTORCH.apply(u),
    "snnTorch's": surrogate.custom_surrogate(lambda u, grad, spikes: grad / (1 + u.abs())),
}
STOCK = {
    "leaky": lambda **how: snn.Leaky(beta=0.9, learn_beta=True, **how),
    "leaky to zero": lambda **how: snn.Leaky(beta=0.9, reset_mechanism="zero", learn_threshold=True, **how),
    "synaptic": lambda **how: snn.Synaptic(alpha=0.8, beta=0.9, **how),
    "alpha": lambda **how: snn.Alpha(alpha=0.9, beta=0.8, **how),
    "lapicque": lambda **how: snn.Lapicque(beta=0.9, **how),
    "rleaky": lambda **how: snn.RLeaky(beta=0.9, V=0.5, all_to_all=False, **how),
    "rleaky, all to all": lambda **how: snn.RLeaky(beta=0.9, linear_features=WIDTH, **how),
}


@pytest.mark.slow
@needs_dynamo_of_2_12
@pytest.mark.parametrize("spelled", SURROGATES)
@pytest.mark.parametrize("kind", STOCK)
def test_a_neuron_with_a_surrogate_of_the_programs_own(kind, spelled):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain, self.out = nn.Parameter(torch.rand(WIDTH) + 0.5), nn.Linear(WIDTH, 2)
            self.lif = STOCK[kind](threshold=0.3, spike_grad=SURROGATES[spelled])

        def forward(self, x):
            states = self.lif.reset_mem()
            states, rows, out = states if isinstance(states, tuple) else (states,), [], []
            for current in x:
                spk, *states = self.lif(self.gain * current, *states)
                rows.append(states[-1])
                out.append(self.out(spk))
            return [torch.stack(out), torch.stack(rows)]

    net, x = Net(), torch.randn(STEPS, BATCH, WIDTH) * 2
    compare(net, x, exact=False)
    torch._dynamo.reset()
    assert any(one.rolled and one.steps == STEPS for one in compiler.explain(net, x).neurons)
