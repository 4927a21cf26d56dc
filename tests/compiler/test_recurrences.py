"""Hand-coded neurons, and neurons whose step a subclass changes, run as one operator over time."""

import textwrap

import pytest
import torch
from oracle import function_of
from support.loops import compared, executed, network, rolled
from support.versions import needs_backend, needs_dynamo_of_2_12
from torch import nn

import snnipu as snn
from snnipu import backends, surrogate

pytestmark = [
    needs_backend,
    pytest.mark.usefixtures("found"),
    pytest.mark.filterwarnings("ignore:.*replaces"),
]
STEPS, BATCH, WIDTH = 6, 3, 70
spike = surrogate.fast_sigmoid(slope=5)


class Part(nn.Module):
    """Base class of hand-coded neurons with their parameters; ``step`` returns the output and the new states."""

    def __init__(self, step, starts):
        super().__init__()
        self.gain, self.beta = nn.Parameter(torch.rand(WIDTH) + 0.3), nn.Parameter(torch.rand(WIDTH))
        self.rate, self.threshold = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.full((1, WIDTH), 0.3))
        self.rec, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.lif = snn.Leaky(0.9, threshold=0.3, spike_grad=spike)
        self.syn = snn.Synaptic(0.8, 0.9, threshold=0.3, spike_grad=spike, reset_mechanism="zero")
        self.alpha = snn.Alpha(0.8, 0.7, threshold=0.3, spike_grad=spike)
        self.step, self.starts = step, starts


class Written(nn.Module):
    """Parallel hand-coded neurons, from steps and initial states: a number of states, or a function of the input."""

    def __init__(self, ways, rows=True):
        super().__init__()
        self.parts, self.out, self.rows = nn.ModuleList(Part(*way) for way in ways), nn.Linear(WIDTH, 2), rows

    def forward(self, x):
        states, total, rows = [], 0, [[] for _ in self.parts]
        for part in self.parts:
            count = part.starts
            states.append([torch.zeros_like(x[0]) for _ in range(count)] if isinstance(count, int) else count(x))
        for now in x:
            for i, part in enumerate(self.parts):
                spk, *after = part.step(part, part.gain * now, *states[i])
                states[i] = after
                total = total + self.out(spk)
                if self.rows:
                    rows[i].append(after[0])
        return [total, *(torch.stack(row) for row in rows if row), *(one for each in states for one in each)]


def check(ways, x=None, **how):
    """Check a network of hand-coded neurons, and return its report."""
    x = 2 * torch.randn(STEPS, BATCH, WIDTH) if x is None else x
    return compared(Written(ways, how.pop("rows", True)), x, **{"rtol": 1e-4, "atol": 1e-4, **how})


class Rectangle(torch.autograd.Function):
    """A surrogate whose backward pass assigns by a mask."""

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
        gradient = grad.clone()
        gradient[u.abs() > ctx.width] = 0
        return gradient, None


def is_positive(u):
    return (u > 0).float()


Ternary = function_of(
    lambda u: (u > 0).float() - (u < -0.5).float(), lambda grad, u: 1 / (1 + (3.0 * u).pow_(2)) * grad
)


class Above(torch.autograd.Function):
    """A surrogate of two tensors that saves their difference. Its backward pass is not linear in the gradient."""

    @staticmethod
    def forward(ctx, mem, threshold):
        above = mem - threshold
        ctx.save_for_backward(above)
        return torch.where(above > 0, 1.0, 0.0)

    @staticmethod
    def backward(ctx, grad):
        (above,) = ctx.saved_tensors
        gradient = grad.clamp(-0.5, 0.5) * torch.exp(-above.abs())
        return gradient, -gradient


def written(states, statements):
    """Return a step from its statements, which read the network ``net``, the input ``x`` and the states, and its number
    of states.
    """
    source = f"def step(net, x, {states}):\n{textwrap.indent(statements, '    ')}"
    return executed(source, spike=spike, Rectangle=Rectangle, Ternary=Ternary, Above=Above)["step"], 1 + states.count(
        ","
    )


def summed(membrane):
    """Return a step from an expression of its membrane."""
    steps = f"mem = {membrane}\nspk = spike(mem - net.threshold)\nreturn spk, spk, mem - spk * net.threshold"
    return written("spk, mem", steps)


# States of a neuron, and the statements of a step.
WAYS = {
    "subtracted": (
        "mem",
        "mem = net.beta * mem + x\nspk = spike(mem - net.threshold)\nreturn spk, mem - spk * net.threshold",
    ),
    "multiplied": ("mem", "spk = spike(mem - 1.0)\nreturn spk, (0.9 * mem + x) * (1.0 - spk.detach())"),
    "selected": (
        "mem",
        "mem = mem + (x - mem) / 2.0\nspk = spike(mem - 0.1)\n"
        "return spk, torch.where(mem > 0.1, torch.zeros_like(mem), mem)",
    ),
    "of comparisons": (
        "mem",
        "mem = torch.sigmoid(net.rate) * mem + x\nreset = (mem > net.threshold).float()\n"
        "return spike(mem - net.threshold), mem * (1 - reset)",
    ),
    "clamped": (
        "mem",
        "mem = (net.beta.clamp(0, 1) * mem + x).clamp(min=-0.5)\nspk = spike(mem - 0.5)\n"
        "return spk, mem - 0.5 * spk.detach()",
    ),
    "adaptive": (
        "mem, threshold",
        "mem = net.beta * mem + x\nspk = spike(mem - (0.3 + threshold))\n"
        "threshold = net.rate * threshold + 0.5 * spk\n"
        "return spk, mem - spk.detach() * (0.3 + threshold), threshold",
    ),
    "two filters": (
        "syn, mem",
        "syn = net.beta * syn + x\nmem = net.rate * mem + syn\nspk = spike(mem - net.threshold)\n"
        "return spk, syn, mem * (1 - spk)",
    ),
    "spikes come first": (
        "syn, mem",
        "above = mem - 0.2\nout = spike(above)\nafter = (0.9 * mem + syn) * (1 - out.detach())\n"
        "return out, 0.8 * syn + x, after",
    ),
    "without spikes": ("mem", "mem = torch.tanh(net.beta * mem + x)\nreturn mem, mem"),
    "by rectangle": (
        "mem",
        "mem = net.beta * mem + x\nspk = Rectangle.apply(mem - net.threshold)\nreturn spk, mem - spk * net.threshold",
    ),
    "ternary": (
        "mem, trace",
        "mem = net.beta * mem + x\nspk = Ternary.apply(mem - 0.3)\n"
        "return spk, mem * (1 - spk.abs().detach()), 0.5 * trace + spk",
    ),
    "of two tensors": (
        "mem",
        "mem = net.beta * mem + x\nspk = Above.apply(mem, net.threshold)\n"
        "return spk, mem - spk.detach() * net.threshold",
    ),
    "two functions": (
        "mem",
        "spk = Rectangle.apply(mem - 0.4, 0.2)\n"
        "return spk, (net.beta * mem + x) * (1 - Ternary.apply(mem - 0.2)) - 0.3 * spk",
    ),
}
SUMS = {
    "a current and a layer of the spikes": "net.beta * mem + x + net.rec(spk)",
    "the layer first": "net.rec(spk) + net.beta * mem + x",
    "the layer subtracted": "net.beta * mem + x - net.rec(spk)",
    "a product": "net.beta * mem + x + spk @ net.rec.weight",
    "three, of which one is subtracted": "net.rec(spk) + net.beta * mem - net.other(x) + x + net.gain",
    "all subtracted": "net.beta * mem - net.other(x) - x",
    "in brackets": "mem - (net.other(x) - (0.5 * mem + x))",
    "a step of Euler": "mem + (-(mem - 0.1) + x + net.rec(spk)) / 2.0",
    "noise": "net.beta * mem + (1 - net.beta) * x + torch.randn_like(mem) * net.rate",
    "noise of a step before": "net.beta * mem + (x + torch.rand_like(spk)) + net.other(x)",
    "a layer of the membrane": "net.beta * mem + x + net.rec(mem)",
}
AROUND = {
    "inhibited": ("spk, mem", "spk, mem = net.lif(x - 0.5 * spk, mem)\nreturn spk, spk, mem"),
    "bounded": ("mem", "spk, mem = net.lif(x, mem)\nreturn spk, mem.clamp(min=-0.25)"),
    "reset again": (
        "syn, mem",
        "spk, syn, mem = net.syn(x, syn, mem)\nreturn spk, syn * (1 - spk), mem - 0.1 * spk.detach()",
    ),
    "fatigued": (
        "spk, exc, inh, mem",
        "spk, *states = net.alpha(x * (1 - 0.5 * spk), exc, inh, mem)\nreturn (spk, spk, *states)",
    ),
    "tired": ("mem, trace", "spk, mem = net.lif(x - trace, mem)\nreturn spk, mem, 0.9 * trace + 0.3 * spk"),
    "tired at a learnt rate": (
        "mem, trace",
        "spk, mem = net.lif(x - trace, mem)\nreturn spk, mem, net.rate * trace + (1 - net.rate) * spk",
    ),
    "tired and recurrent": (
        "spk, mem, trace",
        "spk, mem = net.lif(x + net.rec(spk) - trace, mem)\nreturn spk, spk, mem, 0.9 * trace + 0.3 * spk",
    ),
    "refractory": (
        "mem, trace",
        "spk, mem = net.lif(x * (trace <= 0).float(), mem)\nreturn spk, mem, (trace - 1).clamp(min=0) + 3 * spk",
    ),
    "depressed": (
        "mem, trace",
        "spk, mem = net.lif(x * (1 - trace), mem)\nreturn spk, mem, 0.9 * trace + 0.2 * spk * (1 - trace)",
    ),
    "tired and written out": (
        "spk, mem, trace",
        "threshold = 0.3 + 1.8 * trace\nmem = 0.9 * mem + (x + net.rec(spk)) - spk * threshold\n"
        "spk = spike(mem - threshold)\nreturn spk, spk, mem, net.rate * trace + 0.2 * spk",
    ),
    "two in a row": (
        "mem, mem2",
        "mem = net.beta * mem + x\nspk = spike(mem - net.threshold)\nmem = mem - spk * net.threshold\n"
        "mem2 = 0.5 * mem2 + spk - net.other(x)\nspk2 = spike(mem2 - 0.4)\nreturn spk2, mem, mem2 - spk2",
    ),
    "reset to zero": (
        "syn, mem",
        "reset, spk = spike(mem - 0.2).detach(), spike(mem - 0.2)\n"
        "syn_after, mem_after = 0.9 * syn + x, 0.8 * mem + 0.2 * syn\n"
        "return spk, syn_after - syn_after * reset, mem_after - mem_after * reset",
    ),
    "spikes make the input": (
        "mem",
        "spk = spike(mem - 0.3)\nreturn spk, 0.9 * mem * (1 - spk.detach()) + (x + net.rec(spk))",
    ),
}
WAYS, AROUND = ({name: written(*row) for name, row in table.items()} for table in (WAYS, AROUND))
SUBTRACTED, ADAPTIVE, BOUNDED = WAYS["subtracted"][0], WAYS["adaptive"][0], AROUND["bounded"]
# Initial states that are numbers, or not zero.
STARTS = (
    (SUBTRACTED, lambda x: [0.0]),
    (SUBTRACTED, lambda x: [torch.zeros(1, device=x.device)]),
    (SUBTRACTED, lambda x: [torch.linspace(0, 1, WIDTH, device=x.device)]),
    (ADAPTIVE, lambda x: [0.0, 0.0]),
    (
        written(
            "mem, one, other",
            "mem = 0.9 * mem + x - 0.3 * one - 0.2 * other\nspk = spike(mem - 0.3)\nreturn spk, mem, spk, spk",
        )[0],
        lambda x: [*[torch.zeros_like(x[0])] * 2, torch.ones_like(x[0])],
    ),
)
GROUPS = {"ways": WAYS.values(), "starts": STARTS, "sums": [*map(summed, SUMS.values())], "around": AROUND.values()}


@pytest.mark.slow
@needs_dynamo_of_2_12
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("group", GROUPS)
def test_neurons_that_are_written_out(group, training):
    report = check(GROUPS[group], learns=training)
    assert sum(not neuron.rolled for neuron in report.neurons) <= 1, report  # a layer of the membrane


@pytest.mark.slow
def test_nothing_is_stacked():
    """A loop that only returns sums and the last states stores no sequence."""
    report = check([WAYS["subtracted"], WAYS["adaptive"]], rows=False)
    assert rolled(report) == [(STEPS - 1, True)] * 2


def into_what_comes_in(grad, u):
    grad[u < 0] = 0
    return grad


def into_a_view(grad, u):
    out = grad.clone()
    out.detach()[u < 0] = 0
    return out


def into_what_a_view_reads(grad, u):
    out = grad.clone()
    view = out.detach()
    out[u < 0] = 0
    return out + view


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


def in_shares(net, x, mem):
    return SUBTRACTED(net, x, torch.linspace(0.5, 1, len(x)).view(-1, 1) * mem)


# Steps that are not one operator, with the loop's results.
KEPT = {
    "two inputs": (
        "mem",
        "mem = net.beta * mem + x\nspk = spike(mem - net.threshold * x.mean(1, keepdim=True))\n"
        "return spk, mem - spk.detach() * x.abs().roll(1, 1)",
    ),
    "over neurons": (
        "mem",
        "mem = net.beta * mem + x\nspk = spike(mem - net.threshold)\nreturn spk, mem - spk.mean(1, keepdim=True)",
    ),
    "two surrogates": (
        "mem",
        "mem = net.beta * mem + x\nspk = spike(mem - net.threshold)\n"
        "return spk, mem - spk * surrogate.atan()(mem - 0.5)",
    ),
    "not recorded": (
        "mem",
        "mem = net.beta * torch.erf(mem) + x\nspk = spike(mem - net.threshold)\nreturn spk, mem - spk",
    ),
    "in double precision": ("mem", "mem = net.beta.double() * mem + x\nspk = spike(mem - 0.3)\nreturn spk, mem - spk"),
    "cast to bool": (
        "mem",
        "mem = net.beta * mem + x\nspk = spike(mem - net.threshold)\n"
        "return spk, mem - 0.1 * (mem - spk).to(torch.bool)",
    ),
    "rounded quotient": (
        "mem",
        "mem = torch.div(mem, 0.7, rounding_mode='floor') * 0.3 + x\nreturn spike(mem - net.threshold), mem",
    ),
    "sum with a factor": ("mem", "mem = torch.add(x, mem, alpha=0.7)\nreturn spike(mem - net.threshold), mem"),
    "bounded by a tensor": ("mem", "mem = (0.9 * mem + x).clamp(max=net.threshold)\nreturn spike(mem - 0.1), mem"),
    "a part is a result": (
        "mem",
        "part = net.beta * mem + x\nmem = part + net.other(x)\nspk = spike(mem - net.threshold)\n"
        "return part, mem - spk * net.threshold",
    ),
}
NO_SUMS = (
    "net.beta * mem + x + net.other(x) * mem",
    "(mem + x) * (0.3 * mem + net.other(x)) / 4",
    "torch.add(net.beta * mem + x, net.rec(spk), alpha=2)",
)


@pytest.mark.slow
@needs_dynamo_of_2_12
def test_what_is_no_step_of_a_neuron_stays():
    report = check([*(written(*row) for row in KEPT.values()), (in_shares, 1), *map(summed, NO_SUMS), BOUNDED])
    assert [one.name for one in report.neurons if one.rolled and one.kind == "Leaky"], report
    assert sum(one.rolled for one in report.neurons) <= 2, report


@pytest.mark.slow
@needs_dynamo_of_2_12
def test_functions_that_are_not_recorded():
    functions = {name: function_of(*passes) for name, passes in UNUSUAL.items()}

    def step_of(function):
        def step(net, x, mem):
            mem = net.beta * mem + x
            spk = function.apply(mem - 0.3)
            return spk, mem - spk.detach() * 0.3

        return step

    known = function_of(is_positive, lambda grad, u: grad * u.abs())
    in_place = "into what comes in", "into a view", "into what a view reads"  # they keep the loop's order
    last = [(step_of(functions.pop(name)), 1) for name in in_place]
    report = check([(step_of(one), 1) for one in (*functions.values(), known)])
    assert sum(one.rolled for one in report.neurons) == 1, report
    check(last)


@pytest.mark.slow
def test_a_function_that_draws_numbers():
    """The numbers are drawn in the loop's order, together with other random numbers."""
    function = function_of(lambda u: (u > torch.rand_like(u)).float(), lambda grad, u: grad * u.abs())

    def step(net, x, mem):
        mem = net.beta * mem + nn.functional.dropout(x, 0.3)
        spk = function.apply(mem)
        return spk, nn.functional.dropout(mem - spk.detach() * 0.3, 0.3)

    check([(step, 1), BOUNDED])


# Statements of a step, and the results.
FORMS = {
    "spk = Rectangle.apply(mem - 0.3, 0.1 * (t + 1))\nmem = 0.5 * mem + x[t]": "rec",
    "mem = (0.9 * mem + x[t]).clamp(min=-0.1 if t < 3 else -0.2)\nspk = spike(mem - 0.3)\nmem = mem - spk * 0.3": "rec",
    "mem = 0.9 * mem + x[t]\nspk = spike(mem - 0.3)\nwith torch.set_grad_enabled(t % 2 == 0):\n"
    "    mem = mem - spk * 0.3": "rec",
    "reset = spike(mem - 0.3).detach()\nmem = 0.9 * mem + self.map(x[t]) - reset * 0.3\nspk = reset\n"
    "out = out + reset": "rec",
    "mem = self.gate * mem + self.map(x[t])\nspk = spike(mem - 0.3)\nmem = mem - spk * 0.3\n"
    "self.gate = self.gate * 0.9": "rec",
    "with torch.no_grad():\n    self.gate.mul_(0.9)\nmem = self.gate.clone() * mem + self.map(x[t])\n"
    "spk = spike(mem - 0.3)\nmem = mem - spk * 0.3": "rec",
    "mem = 0.9 * mem + self.map(x[t])\nspk = spike(mem - 0.3)\nmem = mem * (1 - spk)": "rec[::2]",
}


@pytest.mark.slow
@needs_dynamo_of_2_12
@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    init = 'self.register_buffer("gate", torch.full((6,), 0.5))\nself.seen = snn.Leaky(beta=0.5)'
    start = "mem, mem2 = torch.zeros_like(x[0]), self.seen.reset_mem()"
    step = f"{form}\n_, mem2 = self.seen(spk, mem2)"
    net = network(step, init, start, f"torch.stack({FORMS[form]}), out, mem2", spike=spike, Rectangle=Rectangle)
    compared(net, 2 * torch.randn(STEPS, BATCH, 6))


class LowPass(snn.Leaky):
    """A neuron with a decaying input."""

    def _base_state_function(self, input_):
        return self.beta * self.mem + (1 - self.beta) * input_


class Halved(snn.Synaptic):
    def fire(self, mem):
        return super().fire(mem) * 0.5


OF_PYTORCH = function_of(is_positive, lambda grad, u: grad / (1 + 10 * u.abs()) ** 2)
SURROGATES = {
    "a method": OF_PYTORCH.apply,
    "a function": lambda u: OF_PYTORCH.apply(u),
    "snnTorch's": surrogate.custom_surrogate(lambda u, grad, spikes: grad / (1 + u.abs())),
}
STOCK = (
    lambda **how: snn.Leaky(beta=0.9, learn_beta=True, **how),
    lambda **how: snn.Leaky(beta=0.9, reset_mechanism="zero", learn_threshold=True, **how),
    lambda **how: snn.Synaptic(alpha=0.8, beta=0.9, **how),
    lambda **how: snn.Alpha(alpha=0.9, beta=0.8, **how),
    lambda **how: snn.Lapicque(beta=0.9, **how),
    lambda **how: snn.RLeaky(beta=0.9, V=0.5, all_to_all=False, **how),
)
SUBCLASSES = (
    lambda: LowPass(0.9, threshold=0.1),
    lambda: LowPass(0.9, threshold=0.1, learn_beta=True, learn_threshold=True),
    lambda: LowPass(torch.rand(1), threshold=0.1, reset_mechanism="zero"),
    lambda: Halved(0.9, 0.8, threshold=0.2, reset_mechanism="none"),
)


def calling(neuron):
    """Return a step that calls ``net.neuron``, and its number of states."""
    count = len(neuron.reset_mem()) if isinstance(neuron.reset_mem(), tuple) else 1

    def step(net, x, *states):
        results = net.neuron(x, *states)
        return (results[0], *results[len(results) - count :])

    return step, count


class Cells(Written):
    """A chain of snnTorch's neurons, and hand-coded neurons in a method."""

    def __init__(self, neurons):
        super().__init__(map(calling, neurons))
        for part, neuron in zip(self.parts, neurons):
            part.neuron = neuron


@pytest.mark.slow
@needs_dynamo_of_2_12
@pytest.mark.parametrize("spelled", [*SURROGATES, None])
def test_subclasses_and_surrogates_of_the_programs_own(spelled):
    if spelled is None:
        neurons = [make() for make in SUBCLASSES]
    else:
        neurons = [make(threshold=0.3, spike_grad=SURROGATES[spelled]) for make in STOCK]
    report = compared(Cells(neurons), 2 * torch.randn(STEPS, BATCH, WIDTH), rtol=1e-4, atol=1e-4)
    assert [one.rolled for one in report.neurons] == [True] * len(neurons), report


class Layers(nn.Module):
    """Layers of a hand-coded neuron in a method, called in an inner loop. Their states start as numbers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

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
    report = compared(Layers(), 2 * torch.randn(STEPS, BATCH, WIDTH), rtol=1e-3, atol=1e-3)
    assert rolled(report) == [(STEPS - 1, True)] * 3, report


@pytest.mark.slow
def test_under_a_default_device():
    """Under a default device PyTorch traces ``1 - spk`` as another call."""
    with torch.device("cpu"):
        report = check([AROUND["inhibited"], AROUND["fatigued"], AROUND["reset again"]])
    assert all(neuron.rolled for neuron in report.neurons), report


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("group", GROUPS)
def test_on_cuda(group):
    net = Written(GROUPS[group]).cuda()
    report = compared(net, (2 * torch.randn(STEPS, BATCH, WIDTH)).cuda(), rtol=1e-3, atol=1e-3)
    assert all(neuron.rolled for neuron in report.neurons), report


@pytest.mark.slow
def test_without_a_compiler_the_operators_stay(monkeypatch, caplog):
    monkeypatch.setattr(backends, "why_not_compiled", lambda neuron, device: "no C++ compiler found")
    with caplog.at_level("WARNING", "snnipu.compiler"):
        report = check([WAYS["subtracted"], BOUNDED])
    assert not any(one.rolled and not one.kind for one in report.neurons), report
    assert "no C++ compiler found" in caplog.text


@pytest.mark.slow
def test_a_second_derivative_is_refused_by_name():
    net, x = snn.compile(Written([WAYS["subtracted"]])), (2 * torch.randn(STEPS, BATCH, WIDTH)).requires_grad_()
    net(x)
    (first,) = torch.autograd.grad(net(x)[1].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        first.sum().backward()
