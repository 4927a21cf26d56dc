"""Every neuron is one node of a compiled graph, and a loop over it one operator: against the same loop."""

import copy

import pytest
import snntorch
import torch
from snntorch import utils
from support.exact import exact, exact_numbers
from support.versions import needs_backend, needs_newer_dynamo
from torch import nn

import snnipu as snn
from snnipu import backends, compiler, surrogate
from snnipu.compiler import backend

pytestmark = needs_backend

STEPS, BATCH, WIDTH = 5, 3, 4


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    """A graph that cannot be rolled is an error here."""
    torch.manual_seed(0)
    monkeypatch.setattr(backend, "strict", True)
    torch._dynamo.reset()


def ste(**keywords):
    return {"threshold": 0.1, "spike_grad": surrogate.fast_sigmoid(slope=5), **keywords}


def conv(**keywords):
    return {"conv2d_channels": 2, "kernel_size": 3, **ste(**keywords)}


# name -> how it is built from a package, the shape of a step
NEURONS = {
    "rleaky": (lambda m, **k: m.RLeaky(beta=0.8, linear_features=WIDTH, **ste(**k)), (WIDTH,)),
    "rleaky zero": (
        lambda m, **k: m.RLeaky(beta=0.8, linear_features=WIDTH, **ste(reset_mechanism="zero", **k)),
        (WIDTH,),
    ),
    "rleaky undelayed": (
        lambda m, **k: m.RLeaky(beta=0.8, linear_features=WIDTH, **ste(reset_delay=False, **k)),
        (WIDTH,),
    ),
    "rleaky learnt": (
        lambda m, **k: m.RLeaky(
            beta=torch.full((WIDTH,), 0.7), linear_features=WIDTH, learn_beta=True, learn_threshold=True, **ste(**k)
        ),
        (WIDTH,),
    ),
    "rleaky conv": (lambda m, **k: m.RLeaky(beta=0.8, **conv(**k)), (2, 5, 4)),
    "rsynaptic": (lambda m, **k: m.RSynaptic(alpha=0.7, beta=0.8, linear_features=WIDTH, **ste(**k)), (WIDTH,)),
    "rsynaptic conv": (lambda m, **k: m.RSynaptic(alpha=0.7, beta=0.8, **conv(**k)), (2, 5, 4)),
    "one to one": (lambda m, **k: m.RLeaky(beta=0.8, all_to_all=False, V=torch.rand(WIDTH), **ste(**k)), (WIDTH,)),
    "slstm": (lambda m, **k: m.SLSTM(WIDTH, WIDTH, **ste(**k)), (WIDTH,)),
    "slstm subtract": (
        lambda m, **k: m.SLSTM(WIDTH, WIDTH, **ste(reset_mechanism="subtract", learn_threshold=True, **k)),
        (WIDTH,),
    ),
    "slstm zero": (lambda m, **k: m.SLSTM(WIDTH, WIDTH, bias=False, **ste(reset_mechanism="zero", **k)), (WIDTH,)),
    "slstm other size": (lambda m, **k: m.SLSTM(WIDTH, 6, **ste(reset_mechanism="subtract", **k)), (WIDTH,)),
    "sconv2dlstm": (lambda m, **k: m.SConv2dLSTM(2, 2, 3, **ste(reset_mechanism="subtract", **k)), (2, 5, 4)),
    "sconv2dlstm pooled": (lambda m, **k: m.SConv2dLSTM(2, 3, 3, max_pool=2, **ste(**k)), (2, 6, 4)),
    "lapicque": (lambda m, **k: m.Lapicque(R=5.1, C=5e-3, time_step=1e-3, **ste(**k)), (WIDTH,)),
}
LOOSE = {name for name in NEURONS if "lstm" in name}


class Loop(nn.Module):
    """A layer in front, the neuron, one behind; all that a step returns, stacked."""

    def __init__(self, neuron, shape, hidden=False):
        super().__init__()
        self.front = nn.Linear(shape[-1], shape[-1])
        self.neuron, self.hidden = neuron, hidden

    def forward(self, x):
        states = self.neuron.reset_mem()
        states = states if isinstance(states, tuple) else (states,)
        rows = []
        for current in x:
            current = self.front(current)
            out = self.neuron(current) if self.hidden else self.neuron(current, *states)
            out = out if isinstance(out, tuple) else (out,)
            states = out if len(out) == len(states) else out[1:]
            rows.append(out)
        return [torch.stack(row) for row in zip(*rows)]


def built(name, package=snn, hidden=False, **keywords):
    torch.manual_seed(1)
    make, shape = NEURONS[name]
    if hidden:
        keywords["init_hidden"] = True
    net = exact(Loop(make(package, **keywords), shape, hidden))
    return net, exact_numbers(STEPS, BATCH, *shape)


def compare(net, theirs, x, compiled=None, loose=False):
    """Values and gradients of ``net`` compiled against ``theirs`` as it is; whether something fired."""
    compiled = snn.compile(net) if compiled is None else compiled
    own, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    made, expected = compiled(own), theirs(other)
    assert len(made) == len(expected)
    for a, b in zip(made, expected):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-5 if loose else 0, atol=1e-6 if loose else 0)
    assert 0 < float((made[0] != 0).float().mean()) < 1
    weight = [torch.randn(a.shape) for a in made]
    for results, module in ((made, net), (expected, theirs)):
        module.zero_grad()
        loss = sum((a * w).sum() for a, w in zip(results, weight))
        for a in results:
            a.data.fill_(7)  # what a loop stacks is not what its backward pass needs
        loss.backward()
    torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(net.named_parameters(), theirs.parameters()):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(
                a.grad, b.grad, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name} {text}"
            )
    return compiled


def rolled(graphs):
    return [(neuron.steps, neuron.rolled) for graph in graphs for neuron in (*graph.neurons, *graph.unfused)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NEURONS)
def test_a_loop_over_it_is_one_operator_with_snntorchs_numbers(name, graphs):
    net, x = built(name)
    theirs, _ = built(name, snntorch)
    theirs.load_state_dict(net.state_dict())
    compiled = compare(net, theirs, x, loose=name in LOOSE)
    compare(net, theirs, x[:, :2].contiguous(), compiled, loose=name in LOOSE)  # another batch, in the same graph
    assert rolled(graphs) == [(STEPS, True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rleaky", "rsynaptic", "slstm", "sconv2dlstm", "slstm other size"])
def test_hidden_states_after_a_call_are_the_loops(name, graphs):
    net, x = built(name, hidden=True, output=True)
    theirs, _ = built(name, snntorch, hidden=True, output=True)
    theirs.load_state_dict(net.state_dict())
    compare(net, theirs, x, loose=name in LOOSE)
    for state in ("spk", "syn", "mem"):
        if hasattr(theirs.neuron, state):
            a, b = getattr(net.neuron, state), getattr(theirs.neuron, state)
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert rolled(graphs) == [(STEPS, True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rleaky", "rsynaptic", "slstm"])
def test_utils_reset_resets_what_snntorchs_does(name):
    net, x = built(name, hidden=True, output=True)
    layers = nn.ModuleDict({"front": net.front, "neuron": net.neuron})

    def forward_pass(x):
        utils.reset(layers)
        return torch.stack([layers.neuron(layers.front(current))[0] for current in x])

    results = []
    with torch.no_grad():
        for run in (forward_pass, snn.compile(forward_pass)):
            net.neuron.reset_mem()
            results.append([run(x) for _ in range(3)])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b)
    assert results[0][0].any()


class Given(Loop):
    """Results that are views of what it stacks."""

    def forward(self, x):
        spk, mem = super().forward(x)
        return mem.permute(1, 0, 2), spk[1:], torch.relu(mem)


def test_views_of_records_are_no_memory_of_the_backward_pass():
    net, x = built("rleaky")
    net = Given(net.neuron, (WIDTH,))
    grads = []
    for run in (net, snn.compile(net)):
        net.zero_grad()
        made = run(x)
        loss = sum((one * 1.5).sum() for one in made)
        for one in made[:2]:
            one.data.fill_(7)
        loss.backward()
        grads.append([p.grad.clone() for p in net.parameters()])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


class GoesOn(Loop):
    """Whose states are arguments."""

    def forward(self, x, *states):
        rows = []
        for current in x:
            out = self.neuron(self.front(current), *states)
            states = out[len(out) - len(states) :]
            rows.append(out)
        return [*(torch.stack(row) for row in zip(*rows)), *states]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rleaky", "rsynaptic", "slstm"])
def test_a_loop_goes_on_from_states_and_their_gradient(name):
    net, x = built(name)
    net = GoesOn(net.neuron, NEURONS[name][1])
    count = {"rleaky": 2, "rsynaptic": 3, "slstm": 2}[name]
    grads = []
    for run in (net, snn.compile(net)):
        states = [torch.rand(BATCH, WIDTH, generator=torch.Generator().manual_seed(s)) for s in range(count)]
        for state in states:
            state.requires_grad_()
        made = run(x, *states)
        net.zero_grad()
        sum(a.square().sum() for a in made).backward()
        grads.append(([a.detach() for a in made], [s.grad for s in states], [p.grad for p in net.parameters()]))
    for group in zip(*grads):
        for a, b in zip(*group):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(1, float(b.abs().max())))


def test_a_hook_on_the_recurrent_layer_sees_every_step():
    net, x = built("rleaky")
    seen = []
    net.neuron.recurrent.register_forward_hook(lambda module, given, out: seen.append(out.shape))
    expected = net(x)
    assert len(seen) == STEPS
    made = snn.compile(net)(x)
    assert len(seen) > STEPS
    for a, b in zip(made, expected):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_a_hook_on_the_neuron_keeps_it_step_by_step():
    net, x = built("slstm")
    net.neuron.register_forward_hook(lambda module, given, out: None)
    expected = net(x)
    for a, b in zip(snn.compile(net)(x), expected):
        assert torch.equal(a, b)
    torch._dynamo.reset()
    assert [n.reason.kind for n in compiler.explain(net, x).neurons] == ["hooks"]


def test_recurrent_weights_that_change_between_calls_are_seen():
    net, x = built("rleaky")
    compiled = snn.compile(net)
    compiled(x)
    with torch.no_grad():
        net.neuron.recurrent.weight.mul_(-2)
    for a, b in zip(compiled(x), net(x)):
        assert torch.equal(a, b)


class Halved(snn.RLeaky):
    """Adds something around the step."""

    def forward(self, x, *states):
        spk, mem = super().forward(x / 2, *states)
        return spk, mem


class Own(snn.SLSTM):
    """Replaces a part of the step."""

    def fire(self, mem):
        return super().fire(mem * 2)


def test_subclasses(graphs):
    torch.manual_seed(1)
    x = exact_numbers(STEPS, BATCH, WIDTH)
    net = exact(Loop(Halved(beta=0.8, linear_features=WIDTH, **ste()), (WIDTH,)))
    compare(net, copy.deepcopy(net), x)
    assert rolled(graphs) == [(STEPS, True)]


@needs_newer_dynamo
def test_a_subclass_that_replaces_its_step_is_not_rolled(graphs):
    torch.manual_seed(1)
    x = exact_numbers(STEPS, BATCH, WIDTH)
    net = exact(Loop(Own(WIDTH, WIDTH, **ste()), (WIDTH,)))
    compare(net, copy.deepcopy(net), x)
    assert rolled(graphs) == [(STEPS, False)]


class Louder(snn.Synaptic):
    """Replaces a part of the step, which is said; a warning would end the graph."""

    def _base_state_function(self, input_):
        return super()._base_state_function(input_ * 2)


def test_a_subclass_that_says_so_in_a_trace_is_in_the_graph(graphs):
    net = exact(Loop(Louder(alpha=0.7, beta=0.8, **ste()), (WIDTH,)))
    x = exact_numbers(STEPS, BATCH, WIDTH)
    with pytest.warns(UserWarning, match="Louder replaces _base_state_function"):
        made = snn.compile(net, fullgraph=True)(x)
    assert len(graphs) == 1
    assert all(map(torch.equal, made, net(x)))


def test_kernels_of_a_gpu_are_looked_for_as_a_graph_is_made():
    """TorchDynamo must not see how: it cannot trace an import."""

    @torch.compile(backend="eager", fullgraph=True)
    def shifted(x):
        return x + 1 if backends.has_kernels(torch.device("cuda")) else x - 1

    expected = 1 if backends.triton.unavailable_reason() is None else -1
    assert shifted(torch.zeros(2)).tolist() == [expected] * 2


class SumOfSpikes(nn.Module):
    """A neuron written with a spike function, and no state."""

    def __init__(self):
        super().__init__()
        self.front = nn.Linear(WIDTH, WIDTH)
        self.spike = surrogate.fast_sigmoid(slope=5)
        self.neuron = snn.Leaky(beta=0.5)

    def forward(self, x):
        mem = self.neuron.reset_mem()
        rows = []
        for current in x:
            spk, mem = self.neuron(self.spike(self.front(current)) * 3, mem)
            rows.append(spk)
        return [torch.stack(rows)]


def test_a_spike_function_runs_over_time():
    torch.manual_seed(1)
    net, x = SumOfSpikes(), torch.randn(STEPS, BATCH, WIDTH)
    compare(net, copy.deepcopy(net), x)
    torch._dynamo.reset()
    report = compiler.explain(net, x)
    assert [operator.times for operator in report.graphs[0].operators if operator.name == "spike_of"] == [1]


@pytest.mark.slow
def test_another_compiler_is_given_surrogates_as_numbers():
    torch.manual_seed(1)
    net, x = SumOfSpikes(), torch.randn(STEPS, BATCH, WIDTH)
    compiled = snn.compile(net, then="aot_eager", dynamic=True)
    compare(net, copy.deepcopy(net), x, compiled)


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 2])
def test_a_state_given_to_a_layer_that_hides_it_is_an_error(step, monkeypatch):
    monkeypatch.setattr(backend, "strict", False)
    lif = snn.Leaky(beta=0.9, init_hidden=True)

    def loop(x):
        lif.reset_mem()
        return [lif(x[t]) if t != step else lif(x[t], torch.ones(BATCH, WIDTH)) for t in range(STEPS)]

    for function in (loop, snn.compile(loop)):
        with pytest.raises(TypeError, match="should not be passed"):
            function(torch.rand(STEPS, BATCH, WIDTH))
