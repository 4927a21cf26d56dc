"""``torch.compile(net, backend="snnipu")``: the unrolled loop is found in the graph, and gives what the loop gives."""

import pytest
import torch
from compiler.test_leaves import NEURONS, built
from compiler.test_networks import Convolutional, FullyConnected, forward_pass
from compiler.test_programs import check as check_program
from snntorch import utils
from support import loop_programs
from support.versions import needs_backend
from torch import nn
from torch.nn import functional

import snnipu as snn
from snnipu import surrogate
from snnipu.compiler import backend, unrolled
from snnipu.ops import leaves

pytestmark = needs_backend


@pytest.fixture(autouse=True)
def found(monkeypatch):
    """The neurons that are one operator, and the steps that are left, of each graph."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    backend.enable()
    graphs = []
    rolled = unrolled.rolled

    def noted(module, **options):
        made = rolled(module, **options)
        after = module if made is None else made.module
        left = sum(node.target in leaves.SEQUENCES for node in after.graph.nodes)
        graphs.append((sum(len(loop.neurons) for loop in made.loops) if made else 0, left))
        return made

    monkeypatch.setattr(unrolled, "rolled", noted)
    return graphs


class Net(nn.Module):
    """A layer in front of a neuron; ``loop(net, x)`` is the loop."""

    def __init__(self, loop, neuron=None, **parts):
        super().__init__()
        self.loop, self.fc = loop, nn.Linear(4, 4)
        self.lif = snn.Leaky(beta=0.8, threshold=0.3) if neuron is None else neuron
        self.register_buffer("total", torch.zeros(()))
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.loop(self, x)


def steps(net, x, between=lambda net, t, spk, mem: mem, count=None):
    """Spikes and membranes of all steps, with something between the steps."""
    mem, spikes, mems = net.lif.reset_mem(), [], []
    for t in range(len(x) if count is None else count):
        spk, mem = net.lif(net.fc(x[t]), mem)
        mem = between(net, t, spk, mem)
        spikes.append(spk)
        mems.append(mem)
    return spikes, mems


def stacked(net, x, between=lambda net, t, spk, mem: mem):
    return [torch.stack(one) for one in steps(net, x, between)]


def numbers(net, x, weight=0.9):
    total = 0
    for t, (spk, mem) in enumerate(zip(*steps(net, x))):
        total += (spk + mem) * weight**t
    return [total]


def weighted(net, x):
    mem, total, count = net.lif.reset_mem(), 0, 0
    for t in range(len(x)):
        spk, mem = net.lif(net.fc(x[t]), mem)
        total = total + (spk + mem) * 0.9**t
        count += 1
    return [total, mem * count]


def in_place(net, x):
    mem, sums, rows = net.lif.reset_mem(), torch.zeros(x.shape[1], 4), torch.zeros(len(x), x.shape[1], 4)
    for t in range(len(x)):
        spk, mem = net.lif(net.fc(x[t]), mem)
        sums += spk
        rows[t] = mem
        net.total += mem.detach().sum()
    return [sums, rows]


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
    """Layers of a step with a dropout and a batch norm, states in the modules."""
    utils.reset(net.body)
    out = [net.body(current) for current in x]
    return [torch.stack([spk for spk, _ in out]), *[mem for _, mem in out]]


def body(*more):
    hidden = {"beta": 0.8, "threshold": 0.3, "init_hidden": True}
    # A bias in front of a batch norm would have no gradient but rounding.
    return nn.Sequential(
        nn.Linear(4, 4, bias=False), *more, snn.Leaky(**hidden), nn.Linear(4, 4), snn.Leaky(output=True, **hidden)
    )


def half(net, x):
    with torch.autocast("cpu", torch.bfloat16):
        return stacked(net, x)


def other_step(net, t, spk, mem):
    return mem * 0.5 if t == 3 else mem


def every_second(net, t, spk, mem):
    return mem + 0.1 * (net.fc if t % 2 else net.other)(spk)


# name -> the network, and the numbers of neurons that are one operator and of steps that are left; None: any
CASES = {
    "stacked": (lambda: Net(stacked), (1, 0)),
    "a list": (lambda: Net(lambda net, x: [*steps(net, x)[0], *steps(net, x)[1][::2]]), None),
    "nested": (lambda: Net(lambda net, x: [one * 2 for part in steps(net, x) for one in part]), (1, 0)),
    "the last": (lambda: Net(lambda net, x: [steps(net, x)[0][-1]]), (1, 0)),
    "numbers": (lambda: Net(numbers), (1, 0)),
    "numbers of steps": (lambda: Net(weighted), (1, 0)),
    "in place": (lambda: Net(in_place), (1, 0)),
    "feedback": (lambda: Net(feedback, back=nn.Linear(4, 4)), (1, 0)),
    "written out": (lambda: Net(written, spike=surrogate.atan(alpha=1.5)), (1, 0)),
    "two loops": (lambda: Net(two_loops, last=snn.Leaky(beta=0.9)), (2, 0)),
    "dropout": (lambda: Net(layers, body=body(nn.Dropout(0.3))), (2, 0)),
    "batch norm": (lambda: Net(layers, body=body(nn.BatchNorm1d(4))), (2, 0)),
    "scaled": (lambda: Net(lambda net, x: stacked(net, x, lambda net, t, spk, mem: mem * 0.9)), None),
    "one other step": (lambda: Net(lambda net, x: stacked(net, x, other_step)), None),
    "every second": (lambda: Net(lambda net, x: stacked(net, x, every_second), other=nn.Linear(4, 4)), None),
    "no loop": (lambda: Net(lambda net, x: [net.lif(net.fc(x[0]), net.lif.reset_mem())[1]]), (0, 1)),
    "state given": (lambda: Net(lambda net, x: [net.lif(net.fc(x[1]), x[0] * 0.1)[1]]), (0, 1)),
    "constant input": (lambda: Net(lambda net, x: stacked(net, [x[0]] * 6)), (1, 0)),
    "autocast": (lambda: Net(half), None),
}


def results(function, net, x, train=True):
    """Results of two calls, gradients, buffers, states, and the next random numbers."""
    torch.manual_seed(3)
    found = []
    for _ in range(2):
        with torch.set_grad_enabled(train):
            out = function(x)
        found += [one.detach().clone() for one in out]
        if train:
            sum((one * torch.linspace(-1, 2, one.numel()).view(one.shape)).sum() for one in out).backward()
        for one in out:
            one.detach().fill_(7.0)  # they are memory of their own
    found += [x.grad, *(parameter.grad for parameter in net.parameters()), *net.buffers(), torch.rand(())]
    return found + [module.mem for module in net.modules() if isinstance(getattr(module, "mem", None), torch.Tensor)]


def check(make, x, train=True, tolerance=1e-5, **options):
    torch.manual_seed(1)
    net = make()
    other = make()
    other.load_state_dict(net.state_dict())
    inputs = [x.clone().requires_grad_(train) for _ in range(2)]
    expected = results(net, net, inputs[0], train)
    made = results(torch.compile(other, backend="snnipu", **options), other, inputs[1], train)
    assert len(made) == len(expected)
    for a, b in zip(made, expected):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "count",
    [
        3,
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(6, marks=pytest.mark.slow),
        pytest.param(25, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_results_gradients_and_effects_are_those_of_the_loop(name, count, found):
    make, expected = CASES[name]
    check(make, torch.rand(count, 3, 4), tolerance=3e-2 if name == "autocast" else 1e-5)
    if expected is not None and count > unrolled.FEWEST:
        assert found
        assert set(found) == {expected}


@pytest.mark.slow
@pytest.mark.parametrize("train", [True, False])
def test_one_compilation_serves_all_batch_sizes(train, found):
    net = Net(weighted)
    compiled = torch.compile(net, backend="snnipu", dynamic=True)
    for batch in (3, 5, 2):
        x = torch.rand(6, batch, 4)
        with torch.set_grad_enabled(train):
            for a, b in zip(compiled(x), net(x)):
                torch.testing.assert_close(a, b)
    assert found == [(1, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("name", NEURONS)
def test_a_loop_over_each_neuron_is_one_operator(name, hidden, found):
    _, x = built(name, hidden=hidden)
    check(lambda: built(name, hidden=hidden)[0], x, tolerance=1e-4)
    # A cell that starts anew at each step stays as it is.
    assert set(found) == {(0, 5) if name == "slstm other size" else (1, 0)}


@pytest.mark.slow
@pytest.mark.parametrize("then", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["numbers of steps", "in place", "batch norm", "written out"])
def test_another_backend_compiles_what_is_left(name, then, found):
    check(CASES[name][0], torch.rand(6, 3, 4), options={"then": then}, tolerance=1e-4)
    assert set(found) == {CASES[name][1]}


@pytest.mark.slow
@pytest.mark.parametrize("train", [True, False])
def test_networks_of_the_tutorials(train, found):
    x = torch.rand(3, 12) * 3
    check(lambda: FullyConnected(steps=6), x, train)
    assert set(found) == {(2, 0)}
    net, x = Convolutional(), torch.rand(5, 2, 1, 8, 8)
    compiled = torch.compile(forward_pass, backend="snnipu")
    for a, b in zip(compiled(net, 5, x), forward_pass(net, 5, x)):
        torch.testing.assert_close(a, b)
    assert found[-1] == (2, 0)


def test_a_result_that_is_changed_in_place_afterwards():
    def loop(net, x):
        spikes, mems = steps(net, x)
        same = mems[2]
        with torch.no_grad():
            same += 1.0
        return [torch.stack(spikes), mems[2], torch.stack(mems)]

    check(lambda: Net(loop), torch.rand(6, 3, 4), train=False)


def test_an_input_of_several_tensors():
    def loop(net, x):
        return stacked(net, [functional.relu(one) for one in x.unbind(1)])

    check(lambda: Net(loop), torch.rand(3, 6, 4))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 40))
def test_random_programs(seed):
    program = loop_programs.Writer(seed)
    net, other = (loop_programs.make(program.source, seed) for _ in range(2))
    compiled = torch.compile(other, backend="snnipu", dynamic=program.dynamic)
    for batch in program.batches:
        x = torch.rand(program.steps, batch, *program.input) * 2 - 0.5
        inputs = [x.clone().requires_grad_(program.train and program.input_gradient) for _ in range(2)]
        expected = loop_programs.run(net, net, inputs[0], program.train)
        check_program(loop_programs.run(compiled, other, inputs[1], program.train), expected)
