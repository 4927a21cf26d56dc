"""Recurrence by hand: a neuron's spikes come back through a layer, in the spellings that people use."""

import pytest
import torch
from support.versions import needs_backend
from torch import nn
from torch.nn import functional as F

import snnipu as snn
from snnipu import surrogate
from snnipu.compiler import backend
from snnipu.neurons import multistep
from snnipu.ops import leaves, recurrent_sequence
from snnipu.ops.recurrent_sequence import Connection, recurrent_apply

pytestmark = needs_backend

STEPS, BATCH, WIDTH = 6, 3, 4
MANY = "neuron_fed_back"


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    """A graph that cannot be rolled is an error here."""
    torch.manual_seed(0)
    monkeypatch.setattr(backend, "strict", True)
    torch._dynamo.reset()


def leaky(**keywords):
    return snn.Leaky(**{"beta": 0.8, "threshold": 0.3, "spike_grad": surrogate.fast_sigmoid(slope=5), **keywords})


class Recurrent(nn.Module):
    """``current`` is the input current of a step: a function of the network, the step's input and the last spikes."""

    def __init__(self, current, neuron=None, start="zeros"):
        super().__init__()
        self.inp, self.rec = nn.Linear(5, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.free = nn.Linear(WIDTH, WIDTH, bias=False)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)
        self.lif, self.out = leaky() if neuron is None else neuron, leaky()
        self.readout = nn.Linear(WIDTH, WIDTH)
        self.current, self.start = current, start

    def forward(self, x):
        states = self.lif.reset_mem()
        states = states if isinstance(states, tuple) else (states,)
        mem2 = self.out.reset_mem()
        spk = None if self.start == "none" else torch.zeros(x.shape[1], WIDTH)
        rows = []
        for current in x:
            given = self.inp(current) if spk is None else self.current(self, current, spk)
            spk, *states = self.lif(given, *states)
            spk2, mem2 = self.out(self.readout(spk), mem2)
            rows.append((spk, states[-1], spk2))
        return [*(torch.stack(row) for row in zip(*rows)), spk]


def compare(net, x, compiled=None):
    """Values equal, gradients to rounding; returns what was compiled."""
    compiled = snn.compile(net) if compiled is None else compiled
    results = []
    for run in (net, compiled):
        net.zero_grad()
        given = x.clone().requires_grad_()
        made = run(given)
        weights = torch.Generator().manual_seed(3)
        sum((a * torch.randn(a.shape, generator=weights)).sum() for a in made).backward()
        results.append(([a.detach() for a in made], [given.grad, *(p.grad for p in net.parameters())]))
    for a, b in zip(results[0][0], results[1][0]):
        assert torch.equal(a, b)
    assert 0 < float((results[0][0][0] != 0).float().mean()) < 1
    for a, b in zip(results[0][1], results[1][1]):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    return compiled


def rolled(graphs):
    return [(neuron.steps, neuron.rolled) for graph in graphs for neuron in graph.neurons]


BOTH = [(STEPS, True)] * 2
SPELLINGS = {
    "layer": lambda n, x, spk: n.inp(x) + n.rec(spk),
    "layer first": lambda n, x, spk: n.rec(spk) + n.inp(x),
    "no bias": lambda n, x, spk: n.inp(x) + n.free(spk),
    "product": lambda n, x, spk: n.inp(x) + spk @ n.weight,
    "torch.matmul": lambda n, x, spk: torch.matmul(spk, n.weight) + n.inp(x),
    "mm": lambda n, x, spk: torch.add(n.inp(x), spk.mm(n.weight)),
    "transposed": lambda n, x, spk: n.inp(x) + spk @ n.weight.t(),
    "F.linear": lambda n, x, spk: n.inp(x).add(F.linear(spk, n.weight)),
    "subtracted": lambda n, x, spk: n.inp(x) - n.rec(spk),
    "a product, subtracted": lambda n, x, spk: n.inp(x) - spk @ n.weight,
    "subtracted from": lambda n, x, spk: n.rec(spk) - n.inp(x),
}
NEURONS = {
    "zero": lambda: leaky(reset_mechanism="zero"),
    "none": lambda: leaky(reset_mechanism="none"),
    "undelayed": lambda: leaky(reset_delay=False),
    "graded": lambda: leaky(graded_spikes_factor=0.5, learn_graded_spikes_factor=True),
    "learnt": lambda: leaky(beta=torch.full((WIDTH,), 0.7), learn_beta=True, learn_threshold=True),
    "synaptic": lambda: snn.Synaptic(alpha=0.7, beta=0.8, threshold=0.3, learn_alpha=True),
    "synaptic undelayed": lambda: snn.Synaptic(alpha=0.7, beta=0.8, threshold=0.3, reset_delay=False),
    "alpha": lambda: snn.Alpha(alpha=0.8, beta=0.7, threshold=0.2),
    "lapicque": lambda: snn.Lapicque(beta=0.8, threshold=0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_are_one_operator_with_the_loops_numbers(spelling, graphs):
    net, x = Recurrent(SPELLINGS[spelling]), torch.randn(STEPS, BATCH, 5)
    compiled = compare(net, x)
    compare(net, x[:, :2], compiled)  # another batch
    assert rolled(graphs) == BOTH


@pytest.mark.slow
@pytest.mark.parametrize("kind", NEURONS)
def test_neurons(kind, graphs):
    net, x = Recurrent(SPELLINGS["layer"], NEURONS[kind]()), torch.randn(STEPS, BATCH, 5)
    compare(net, x)
    assert rolled(graphs) == BOTH


def test_a_layer_of_the_membrane(graphs):
    net = Recurrent(lambda n, x, spk: n.inp(x) + n.rec(n.lif.mem if n.lif.mem.numel() else spk))
    compare(net, torch.randn(STEPS, BATCH, 5))
    assert rolled(graphs) == BOTH


def test_what_spikes_alone_depend_on_has_a_gradient_where_only_membranes_are_read(graphs):
    class Membranes(Recurrent):
        def forward(self, x):
            return [super().forward(x)[1].relu()]

    neuron = leaky(reset_mechanism="none", learn_threshold=True, learn_graded_spikes_factor=True)
    net, x = Membranes(SPELLINGS["layer"], neuron), torch.randn(STEPS, BATCH, 5)
    compare(net, x)
    assert net.lif.threshold.grad is not None
    assert rolled(graphs)[0] == (STEPS, True)


def test_a_neuron_of_ones_own(graphs):
    @snn.neuron(states=("mem",), parameters={"beta": 0.8, "threshold": 0.3})
    def OwnLeaky(x, mem, *, beta, threshold, spike):
        mem = beta * mem + x
        spk = spike(mem - threshold)
        return spk, mem - spk.detach() * threshold

    net, x = Recurrent(SPELLINGS["layer"], OwnLeaky(learn=True)), torch.randn(STEPS, BATCH, 5)
    compare(net, x)
    assert rolled(graphs) == BOTH


@pytest.mark.slow
def test_the_first_step_has_nothing_before_it(graphs):
    net, x = Recurrent(SPELLINGS["layer"], start="none"), torch.randn(STEPS, BATCH, 5)
    compare(net, x)
    assert rolled(graphs) == BOTH
    compare(net, x[:2])
    compare(net, x[:1])


def test_the_first_steps_input_is_a_result_too(graphs):
    class Shown(Recurrent):
        def forward(self, x):
            mem, mem2, spk, rows = self.lif.reset_mem(), self.out.reset_mem(), torch.zeros(x.shape[1], WIDTH), []
            first = None
            for t, current in enumerate(x):
                before, mem2 = self.out(self.inp(current), mem2)
                given = before + self.rec(spk)
                first = given if t == 0 else first
                spk, mem = self.lif(given, mem)
                rows.append(spk)
            return [torch.stack(rows), first]

    net, x = Shown(None), torch.randn(STEPS, BATCH, 5)
    compare(net, x)
    assert rolled(graphs) == BOTH


def test_an_input_is_changed_in_place_before_and_behind_the_step(graphs):
    class Changed(Recurrent):
        def forward(self, x):
            mem, spk, rows = self.lif.reset_mem(), torch.zeros(x.shape[1], WIDTH), []
            for current in x:
                given = self.inp(current) * 2
                given[:, 0] = 0.5
                spk, mem = self.lif(given + self.rec(spk), mem)
                given[:, 1] = 0.0
                rows.append((spk, given))
            return [torch.stack(row) for row in zip(*rows)]

    net, x = Changed(None), torch.randn(STEPS, BATCH, 5)
    compare(net, x)
    assert rolled(graphs) == [(STEPS, True)]


def test_a_constant_input(graphs):
    net = Recurrent(lambda n, x, spk: n.inp.bias.expand(BATCH, WIDTH) * 3 + n.rec(spk))
    x = torch.randn(STEPS, BATCH, 5)
    compiled = snn.compile(net)
    assert torch.equal(compiled(x)[0], net(x)[0])
    assert rolled(graphs) == BOTH


class TwoLayers(nn.Module):
    """Spikes of all layers in a list; each layer has its own recurrence, or the first that of the second."""

    def __init__(self, across):
        super().__init__()
        self.inp = nn.ModuleList([nn.Linear(5, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.rec = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.lif = nn.ModuleList([leaky(), leaky(beta=0.6)])
        self.across = across

    def forward(self, x):
        mems = [lif.reset_mem() for lif in self.lif]
        spks = [torch.zeros(x.shape[1], WIDTH) for _ in self.lif]
        rows = []
        for current in x:
            for i in range(2):
                back = spks[1 - i if self.across else i]
                spks[i], mems[i] = self.lif[i](self.inp[i](current) + self.rec[i](back), mems[i])
                current = spks[i]
            rows.append(current)
        return [torch.stack(rows), *spks, *mems]


@pytest.mark.slow
@pytest.mark.parametrize("across", [False, True])
def test_layers(across, graphs):
    net, x = TwoLayers(across), torch.randn(STEPS, BATCH, 5) * 2
    compare(net, x)
    assert rolled(graphs) == [(STEPS, not across)] * 2


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.rec = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, (3, 1), padding=(1, 0))
        self.lif = leaky()

    def forward(self, x):
        mem = self.lif.reset_mem()
        spk = torch.zeros(x.shape[1], 2, *x.shape[3:])
        rows = []
        for current in x:
            spk, mem = self.lif(self.inp(current) + self.rec(spk), mem)
            rows.append(spk)
        return [torch.stack(rows), spk, mem]


def test_a_convolution(graphs):
    net, x = Convolutional(), torch.randn(STEPS, BATCH, 1, 4, 5) * 2
    compare(net, x)
    assert rolled(graphs) == [(STEPS, True)]


def no_gradient(n, x, spk):
    with torch.no_grad():
        back = n.rec(spk)
    return n.inp(x) + back


def in_place(n, x, spk):
    back = n.rec(spk)
    back.mul_(2)
    return n.inp(x) + back


KEPT = {
    "a sum of the spikes": lambda n, x, spk: n.inp(x) + spk.sum(1, keepdim=True),
    "twice the spikes": lambda n, x, spk: n.inp(x) + n.rec(spk * 2),
    "no gradient": no_gradient,
    "detached": lambda n, x, spk: n.inp(x) + n.rec(spk.detach()),
    "a sum with a factor": lambda n, x, spk: torch.add(n.inp(x), n.rec(spk), alpha=2),
    "two layers": lambda n, x, spk: n.inp(x) + n.free(n.rec(spk)),
    "product from the right": lambda n, x, spk: n.inp(x) + (n.weight @ spk.t()).t(),
    "changed in place": in_place,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KEPT)
def test_other_recurrence_stays_a_loop(kind, graphs):
    net, x = Recurrent(KEPT[kind]), torch.randn(STEPS, BATCH, 5)
    compare(net, x)
    assert rolled(graphs)[0] == (STEPS, False)


class Alternating(Recurrent):
    """Another layer at every second step."""

    def forward(self, x):
        mem, spk, rows = self.lif.reset_mem(), torch.zeros(x.shape[1], WIDTH), []
        for t, current in enumerate(x):
            spk, mem = self.lif(self.inp(current) + (self.rec if t % 2 else self.free)(spk), mem)
            rows.append(spk)
        return [torch.stack(rows), spk]


class Late(Recurrent):
    """The spikes of the step before the last."""

    def forward(self, x):
        mem, rows = self.lif.reset_mem(), [torch.zeros(x.shape[1], WIDTH)] * 2
        for current in x:
            spk, mem = self.lif(self.inp(current) + self.rec(rows[-2]), mem)
            rows.append(spk)
        return [torch.stack(rows[2:]), mem]


class Shown(Recurrent):
    """What comes back is a result, too."""

    def forward(self, x):
        mem, spk, rows = self.lif.reset_mem(), torch.zeros(x.shape[1], WIDTH), []
        for current in x:
            back = self.rec(spk)
            spk, mem = self.lif(self.inp(current) + back, mem)
            rows.append(spk)
        return [torch.stack(rows), back]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Alternating, Late, Shown])
def test_other_loops_stay_loops(kind, graphs):
    net, x = kind(None), torch.randn(STEPS, BATCH, 5)
    compare(net, x)
    assert rolled(graphs)[0] == (STEPS, False)


def test_spikes_before_the_first_step_have_a_gradient():
    class GoesOn(Recurrent):
        def forward(self, x, spk, mem):
            rows = []
            for current in x:
                spk, mem = self.lif(self.inp(current) + self.rec(spk), mem)
                rows.append(spk)
            return [torch.stack(rows), spk, mem]

    net, x = GoesOn(None), torch.randn(STEPS, BATCH, 5)
    grads = []
    for run in (net, snn.compile(net)):
        spk, mem = torch.rand(BATCH, WIDTH, requires_grad=True), torch.rand(BATCH, WIDTH, requires_grad=True)
        with torch.no_grad():
            spk.copy_(torch.linspace(0, 1, BATCH * WIDTH).reshape(BATCH, WIDTH))
            mem.copy_(spk)
        made = run(x, spk, mem)
        (made[0].sum() + made[1].square().sum() + made[2].square().sum()).backward()
        grads.append((made, spk.grad, mem.grad))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_autocast_runs_as_the_loop():
    net, x = Recurrent(SPELLINGS["layer"]), torch.randn(STEPS, BATCH, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, made = net(x), snn.compile(net)(x)
    for a, b in zip(made, expected):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("undelayed", [False, True])
def test_the_operator_is_its_reference(monkeypatch, dtype, undelayed):
    x = torch.randn(STEPS, BATCH, WIDTH, dtype=dtype)
    weight, bias = torch.randn(WIDTH, WIDTH, dtype=dtype), torch.randn(WIDTH, dtype=dtype)
    start = torch.randn(2, BATCH, WIDTH, dtype=dtype)
    values = torch.tensor([0.8, 0.3, 1.5], dtype=dtype)
    results = []
    for reference in (False, True):
        if reference:
            for name in ("fwd", "bwd"):
                plain = getattr(recurrent_sequence, f"neuron_recurrent_{name}_reference")
                monkeypatch.setattr(recurrent_sequence, f"_{name}", plain)
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias, start[0], start[1], *values)]
        given, w, b, spk, mem, *parameters = leaves
        made = recurrent_apply(
            "leaky",
            given,
            (spk, mem),
            dict(zip(("beta", "threshold", "graded_spikes_factor"), parameters)),
            Connection(w, b),
            options={"reset_mechanism": "subtract", "reset_delay": not undelayed},
            spike_grad=surrogate.fast_sigmoid(slope=5),
            need_final=True,
        )
        found = [made.spk, made.states[1], *made.final]
        gradients = torch.autograd.grad(sum(f.square().sum() for f in found), leaves)
        results.append((found, gradients))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["zeros", "none"])
@pytest.mark.parametrize("neuron", ["graded", "synaptic undelayed"])
def test_in_parts_of_time_the_spikes_are_handed_on(neuron, start, graphs, monkeypatch):
    net, x = Recurrent(SPELLINGS["layer"], NEURONS[neuron](), start), torch.randn(STEPS, BATCH, 5)
    lengths = []
    apply = leaves.recurrent_apply
    monkeypatch.setattr(leaves, "recurrent_apply", lambda *a, **k: (lengths.append(len(a[1])), apply(*a, **k))[1])
    monkeypatch.setattr(multistep, "PART_BYTES", 2 * BATCH * 5 * 4)
    compare(net, x)
    assert rolled(graphs) == BOTH
    assert lengths[-3:] == ([2, 2, 2] if start == "zeros" else [2, 2, 1])
