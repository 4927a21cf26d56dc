"""``torch.compile(net, backend="snnipu")`` finds the unrolled loop in the graph, and has the loop's results."""

import pytest
import torch
from compiler.test_leaves import NEURONS, Several
from snntorch import utils
from support import loop_programs
from support.versions import needs_backend
from torch import nn

import snnipu as snn
from snnipu import surrogate
from snnipu.compiler import backend, unrolled
from snnipu.ops import step_operators

pytestmark = needs_backend
SEQUENCES = {*step_operators.SEQUENCES.values(), *step_operators.FED_BACK.values()}


@pytest.fixture(autouse=True)
def counts(monkeypatch):
    """Return a list that gets an item for each graph: the numbers of neurons that are one operator and of steps."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    backend.enable()
    graphs, rolled = [], unrolled.rolled

    def noted(module, **options):
        with_loops = rolled(module, **options)
        parts = [part for part in (with_loops or module).modules() if isinstance(part, torch.fx.GraphModule)]
        neurons = sum(node.target in SEQUENCES for part in parts for node in part.graph.nodes)
        graphs.append((neurons, sum(node.target in step_operators.SEQUENCES for node in parts[0].graph.nodes)))
        return with_loops

    monkeypatch.setattr(unrolled, "rolled", noted)
    return graphs


class Net(nn.Module):
    """A layer and a neuron; ``loop(net, x)`` is the loop."""

    def __init__(self, loop, **parts):
        super().__init__()
        self.loop, self.fc, self.lif = loop, nn.Linear(4, 4), snn.Leaky(beta=0.8, threshold=0.3)
        self.register_buffer("total", torch.zeros(()))
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.loop(self, x)


def steps(net, x, between=lambda net, t, spk, mem: mem):
    """Run the loop with code ``between`` the steps; return the spikes and membranes of all steps."""
    mem, spikes, mems = net.lif.reset_mem(), [], []
    for t in range(len(x)):
        spk, mem = net.lif(net.fc(x[t]), mem)
        mem = between(net, t, spk, mem)
        spikes.append(spk)
        mems.append(mem)
    return spikes, mems


def stacked(*arguments):
    return [torch.stack(one) for one in steps(*arguments)]


def totals(net, x):
    mem, total, count, sums, rows = net.lif.reset_mem(), 0, 0, torch.zeros(x.shape[1], 4), torch.zeros(*x.shape)
    for t in range(len(x)):
        spk, mem = net.lif(net.fc(x[t]), mem)
        total = total + (spk + mem) * 0.9**t
        count += 1
        sums += spk
        rows[t] = mem
        net.total += mem.detach().sum()
    return [total, mem * count, sums, rows]


def feedback(net, x):
    mem, spk, rows = net.lif.reset_mem(), torch.zeros(x.shape[1], 4), []
    for current in x:
        spk, mem = net.lif(net.fc(current) + net.back(spk), mem)
        rows.append(mem)
    return [torch.stack(rows)]


def written(net, x):
    mem, spikes = 0.0, []
    for t in range(len(x)):
        mem = 0.8 * mem + net.fc(x[t])
        spk = net.spike(mem - 0.35)
        mem = mem - 0.35 * spk
        spikes.append(spk)
    return [torch.stack(spikes), mem]


def two_loops(net, x):
    spikes, _ = steps(net, x)
    mem, rows = net.last.reset_mem(), []
    for spk in spikes:
        _, mem = net.last(spk, mem)
        rows.append(mem)
    return [torch.stack(rows, 1)]


def layers(net, x):
    """Run layers with hidden states at each step, as in snnTorch's tutorials 6 and 7."""
    utils.reset(net.body)
    out = [net.body(current) for current in x]
    return [torch.stack([spk for spk, _ in out]), *[mem for _, mem in out]]


def body(*more, size=4):
    hidden = {"beta": 0.8, "threshold": 0.1, "spike_grad": surrogate.fast_sigmoid(slope=5), "init_hidden": True}
    last = [nn.Flatten(), nn.Linear(size, 4), snn.Leaky(output=True, **hidden)]
    return nn.Sequential(nn.Linear(4, 4, bias=False), *more, snn.Leaky(**hidden), *last)


def every_second(net, x):
    return stacked(net, x, lambda net, t, spk, mem: mem + (net.fc if t % 2 else net.other)(spk))


# name -> arguments of ``Net``, and the numbers of neurons that are one operator and of separate steps, or None for any
CASES = {
    "tutorial": ("lambda net, x: stacked(net, [x[0]] * 6)", (1, 0)),
    "stacked": ("stacked", (1, 0)),
    "a list": ("lambda net, x: [*steps(net, x)[0], *steps(net, x)[1][::2]]", (2, 0)),
    "the last": ("lambda net, x: [steps(net, x)[0][-1]]", (1, 0)),
    "numbers": ("totals", (1, 0)),
    "feedback": ("feedback, back=nn.Linear(4, 4)", (1, 0)),
    "written out": ("written, spike=surrogate.atan(alpha=1.5)", (1, 0)),
    "two loops": ("two_loops, last=snn.Leaky(beta=0.9)", (2, 0)),
    "convolutional": ("layers, body=body(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2), size=2)", (2, 0)),
    "dropout": ("layers, body=body(nn.Dropout(0.3))", (2, 0)),
    "batch norm": ("layers, body=body(nn.BatchNorm1d(4))", (2, 0)),
    "parts": ("lambda net, x: stacked(net, [nn.functional.relu(one) for one in x.unbind(0)])", (1, 0)),
    "no loop": ("lambda net, x: [net.lif(net.fc(x[1]), x[0] * 0.1)[1]]", (0, 1)),
    "one other step": ("lambda net, x: stacked(net, x, lambda net, t, spk, mem: mem * (t != 3))", None),
    "every second": ("every_second, other=nn.Linear(4, 4)", None),
}


def network(name):
    return eval(f"Net({CASES[name][0]})")


def results(function, net, x, train=True):
    """Return results of two calls, gradients, buffers, states, and the next random numbers."""
    torch.manual_seed(3)
    values = []
    for _ in range(2):
        with torch.set_grad_enabled(train):
            out = function(x)
        values += [one.detach().clone() for one in out]
        if train:
            sum((one * torch.linspace(-1, 2, one.numel()).view(one.shape)).sum() for one in out).backward()
        for one in out:
            one.detach().fill_(7.0)  # the results share no memory
    states = [module.mem for module in net.modules() if isinstance(getattr(module, "mem", None), torch.Tensor)]
    return [*values, x.grad, *(one.grad for one in net.parameters()), *net.buffers(), *states, torch.rand(())]


def check(make, x, train=True, tolerance=1e-5, **options):
    torch.manual_seed(1)
    net, other = make(), make()
    other.load_state_dict(net.state_dict())
    inputs = [x.clone().requires_grad_(train) for _ in range(2)]
    expected = results(net, net, inputs[0], train)
    actual = results(torch.compile(other, backend="snnipu", **options), other, inputs[1], train)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("count", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 6, 25))])
@pytest.mark.parametrize("name", CASES)
def test_results_gradients_and_effects_are_those_of_the_loop(name, count, counts):
    expected = CASES[name][1]
    check(lambda: network(name), torch.rand(count, 3, 4))
    if expected is not None and count > unrolled.FEWEST:
        assert set(counts) == {expected}


@pytest.mark.slow
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", ["numbers", "dropout", "batch norm"])
def test_one_compilation_serves_all_batch_sizes(name, train, counts):
    net = network(name)
    compiled = torch.compile(net, backend="snnipu", dynamic=True)
    for batch in (3, 5, 2):
        x, actual = torch.rand(6, batch, 4), []
        for function in (compiled, net):
            net.total.zero_()
            torch.manual_seed(2)
            with torch.set_grad_enabled(train):
                actual.append(function(x))
        torch.testing.assert_close(*actual)
    assert counts == [CASES[name][1]]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["reset", "hidden", "given"])
@pytest.mark.parametrize("maps", [False, True])
def test_a_loop_over_each_neuron_is_one_operator(maps, start, counts):
    names = [name for name in NEURONS if maps == ("conv" in name)]
    if start == "given":
        names = [name for name in names if name != "sconv2dlstm pooled"]  # of another shape
    check(lambda: Several(names, start), torch.randn(5, 3, 2, 6, 4), tolerance=1e-4)
    assert set(counts) == {(len(names), 0)}


@pytest.mark.slow
@pytest.mark.parametrize("then", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["numbers", "batch norm", "written out"])
def test_another_backend_compiles_what_is_left(name, then, counts):
    check(lambda: network(name), torch.rand(6, 3, 4), options={"then": then}, tolerance=1e-4)
    assert set(counts) == {CASES[name][1]}


def test_a_result_that_is_changed_in_place_afterwards():
    def loop(net, x):
        spikes, mems = steps(net, x)
        mems[2].add_(1.0)
        return [torch.stack(spikes), mems[2], torch.stack(mems)]

    check(lambda: Net(loop), torch.rand(6, 3, 4), train=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 40))
def test_random_programs(seed):
    program = loop_programs.Writer(seed)
    nets = [loop_programs.make(program.source, seed) for _ in range(2)]
    compiled = torch.compile(nets[1], backend="snnipu", dynamic=program.dynamic)
    loop_programs.check(program, nets, compiled, program.batches)
