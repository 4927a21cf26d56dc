"""``to_snntorch`` and ``from_snntorch``: copies with snnTorch's own neurons, and the reverse."""

import warnings

import pytest
import snntorch
import torch
from oracle import flat
from support.tables import each_row
from torch import nn
from torch.nn.utils import parametrize

import snnipu as snn
from snnipu import convert, surrogate
from snnipu.functional import quant

SIZE = 4
# Calls of the constructors of both packages.
CASES = """
Leaky(beta=0.9)
Leaky(beta=torch.rand(4), threshold=torch.rand(4), learn_beta=True, learn_threshold=True, init_hidden=True, \
output=True, reset_mechanism="zero", reset_delay=False, graded_spikes_factor=0.7, learn_graded_spikes_factor=True)
Leaky(beta=0.9, state_quant=quant.state_quant(num_bits=3))
Leaky(beta=0.9, inhibition=True, surrogate_disable=True)
Synaptic(alpha=0.8, beta=0.9, reset_mechanism="none", init_hidden=True)
Alpha(alpha=0.9, beta=0.8)
Lapicque(beta=0.9, learn_threshold=True)
RLeaky(beta=0.9, linear_features=4, init_hidden=True)
RLeaky(beta=0.9, V=torch.rand(4), all_to_all=False)
RSynaptic(alpha=0.8, beta=0.9, linear_features=4)
DeltaLeaky(beta=0.9, init_hidden=True)
SLSTM(input_size=4, hidden_size=4, reset_mechanism="zero")
SConv2dLSTM(in_channels=2, out_channels=2, kernel_size=3, max_pool=2)
StateLeaky(beta=0.9, channels=4, learn_beta=True)
LinearLeaky(beta=0.9, in_features=4, out_features=3)
""".strip().splitlines()
pytestmark = pytest.mark.filterwarnings("ignore:Inhibition is an unstable feature")


def make(module, call):
    kind = call.partition("(")[0]
    if not hasattr(snntorch, kind):
        pytest.skip(f"this snnTorch has no {kind}")
    torch.manual_seed(0)
    return eval(f"module.{call}", {"module": module, "torch": torch, "quant": quant})


def steps(neuron, name):
    torch.manual_seed(1)
    if name.startswith(("StateLeaky", "LinearLeaky")):
        return flat(neuron(torch.rand(5, 2, SIZE, requires_grad=True)))
    xs = (3 * torch.rand(5, 2, *((2, 4, 4) if name.startswith("SConv2dLSTM") else (SIZE,)))).requires_grad_()
    results, states = [], ()
    for x in xs:
        out = neuron(x, *states)
        if not neuron.init_hidden:
            states = out if name.startswith(("RLeaky", "RSynaptic")) else out[1:]
        results += flat(out)
    return results


def assert_equal(actual, expected):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def assert_same_state(net, other):
    actual, expected = net.state_dict(), other.state_dict()
    assert list(actual) == list(expected)
    assert_equal(list(actual.values()), list(expected.values()))
    assert [p.requires_grad for p in net.parameters()] == [p.requires_grad for p in other.parameters()]


@pytest.mark.parametrize("name", CASES)
def test_a_copy_is_what_snntorch_builds(name):
    neuron, stock = make(snn, name), make(snntorch, name)
    neuron.eval()
    converted = snn.to_snntorch(neuron)
    assert type(converted) is type(stock)
    assert type(converted).__module__.startswith("snntorch.")
    assert not converted.training
    assert_same_state(converted, neuron)
    assert vars(converted).keys() == vars(stock).keys()
    assert list(converted._buffers) == list(stock._buffers)
    assert converted._non_persistent_buffers_set == stock._non_persistent_buffers_set
    assert converted.reset_mechanism == neuron.reset_mechanism
    if "StateLeaky" not in name and "LinearLeaky" not in name:
        assert surrogate.as_surrogate(converted.spike_grad) == neuron.spike_grad
        assert not isinstance(converted.spike_grad, surrogate.Surrogate)
    stock.load_state_dict(converted.state_dict())
    assert_equal(steps(converted, name), steps(stock, name))


@pytest.mark.parametrize("after_a_step", [False, True], ids=["", "after a step"])
@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name, after_a_step):
    neuron = make(snn, name)
    if after_a_step:
        sum(part.sum() for part in steps(neuron, name)).backward()
    converted = snn.to_snntorch(neuron)
    back = snn.from_snntorch(converted)
    assert type(back) is type(neuron)
    assert_same_state(back, neuron)
    of_steps = {"_description", "spk", "reset"} - set(getattr(neuron, "state_names", ()))
    assert vars(back).keys() - of_steps == vars(neuron).keys() - of_steps
    results = [steps(layer, name) for layer in (neuron, converted, back)]
    if name.startswith(("StateLeaky", "LinearLeaky")):  # snnTorch's convolution rounds differently
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*results[:2]))
    else:
        assert_equal(results[1], results[0])
    assert_equal(results[2], results[0])
    again = snn.from_snntorch(converted)  # its last step has an autograd graph
    assert_equal(steps(again, name), steps(back, name))


class Net(nn.Module):
    """Shared, nested and unregistered neurons; hooks; a neuron's method stored on another module."""

    def __init__(self, module):
        super().__init__()
        self.fc = nn.Linear(SIZE, SIZE)
        self.shared = module.Leaky(beta=0.9, init_hidden=True)
        self.inner = nn.Sequential(
            self.fc, nn.ModuleDict({"lif": self.shared})["lif"], module.Synaptic(0.8, 0.9, init_hidden=True)
        )
        self.outside = [module.Leaky(beta=0.5, init_hidden=True)]
        self.calls = 0
        self.shared.register_forward_hook(self._count)

    def _count(self, *arguments):
        self.calls += 1

    def forward(self, x):
        return self.outside[0](self.shared(self.inner(x)))


def test_networks():
    torch.manual_seed(0)
    net = Net(snn)
    net.shared.eval()
    net.shared.beta = torch.tensor(0.8)
    converted = snn.to_snntorch(net)
    assert type(net.shared) is snn.Leaky
    assert converted.shared is converted.inner[1]
    assert converted.fc is converted.inner[0]
    assert type(converted.shared) is type(converted.outside[0]) is snntorch.Leaky
    assert type(converted.inner[2]) is snntorch.Synaptic
    assert not converted.shared.training
    assert converted.training
    assert_same_state(converted, net)
    x = 2 * torch.rand(3, 2, SIZE)
    with torch.no_grad():  # PyTorch cannot copy the graph of an unregistered neuron
        for step in x:
            assert torch.equal(converted(step), net(step))
    assert (net.calls, converted.calls) == (6, 6)  # a copied method belongs to the copy
    with torch.no_grad():
        converted.fc.weight.zero_()
    assert net.fc.weight.all()
    back = snn.from_snntorch(converted)
    assert type(back.shared) is type(back.outside[0]) is snn.Leaky
    assert back.shared is back.inner[1]


@pytest.mark.parametrize("way", ["to_snntorch", "from_snntorch"])
def test_reset_sees_the_copy(way):
    net = nn.Sequential(nn.Linear(SIZE, SIZE), (snn if way == "to_snntorch" else snntorch).Leaky(0.9, init_hidden=True))
    converted = getattr(snn, way)(net)
    converted(torch.ones(2, SIZE))
    assert converted[1].mem.any()
    (snntorch if way == "to_snntorch" else snn).utils.reset(converted)
    assert not converted[1].mem.any()


@pytest.mark.parametrize("name", [*surrogate._FACTORIES, "no_gradient"])
def test_surrogates(name):
    def own_surrogate(u, grad, spikes):
        return 0.5 * grad

    parameters = {"triangular": (0.5,), "SSO": (0.1, 0.4), "custom_surrogate": (own_surrogate,), "sigmoid": (3.0,)}
    if name == "no_gradient":
        neuron = snn.Leaky(beta=0.9, surrogate_disable=True)
    else:
        neuron = snn.Leaky(beta=0.9, spike_grad=getattr(surrogate, name)(*parameters.get(name, ())))
    converted = snn.to_snntorch(neuron)
    assert surrogate.as_surrogate(converted.spike_grad) == neuron.spike_grad
    assert snn.from_snntorch(converted).spike_grad == neuron.spike_grad
    gradients = []
    for lif in (neuron, converted):
        x = (2 * torch.rand(3, SIZE, generator=torch.Generator().manual_seed(0))).requires_grad_()
        torch.manual_seed(2)
        spk, mem = lif(x, torch.full((3, SIZE), 0.5))
        assert spk.any()
        (spk.sum() + mem.sum()).backward()
        gradients.append(x.grad)
    assert torch.allclose(*gradients)


def test_a_surrogate_of_ones_own_stays():
    def spike(u):
        return (u > 0).float()

    assert snn.to_snntorch(snn.Leaky(beta=0.9, spike_grad=spike)).spike_grad is spike
    assert snn.from_snntorch(snntorch.Leaky(beta=0.9, spike_grad=spike)).spike_grad is spike


def test_modules_that_are_no_neurons_stay():
    torch.manual_seed(0)
    net = snn.MultiStep(
        nn.Linear(SIZE, SIZE),
        snn.Leaky(beta=0.9),
        snn.DelayLinear(SIZE, SIZE, max_delay=2),
        snn.RLeaky(0.9, linear_features=SIZE),
    )
    converted = snn.to_snntorch(net)
    assert [type(module) for module in converted] == [nn.Linear, snntorch.Leaky, snn.DelayLinear, snntorch.RLeaky]
    assert type(converted) is snn.MultiStep
    x = 2 * torch.rand(5, 2, SIZE)
    assert_equal(flat(converted(x)), flat(net(x)))


class Mine(snn.Leaky):
    def fire(self, mem):
        return super().fire(mem + 1)


@snn.neuron(states=("mem",), parameters={"beta": 0.9})
def Own(x, mem, *, beta, spike):
    mem = beta * mem + x
    return spike(mem - 1), mem


class Half(nn.Module):
    def forward(self, x):
        return x / 2


def parametrized():
    neuron = snn.Leaky(beta=torch.rand(SIZE), learn_beta=True)
    return parametrize.register_parametrization(neuron, "beta", Half())


@each_row(r"""
snn.SparseLeaky(SIZE, SIZE, beta=0.9) | inner.1 \(SparseLeaky\) is event-driven.*to_dense
snn.SparseNetwork([SIZE, SIZE], beta=0.9) | inner.1 \(SparseNetwork\) is event-driven
Own() | inner.1 \(Own\) is a neuron of one's own
Mine(beta=0.9) | inner.1 \(Mine\) is a subclass
parametrized() | inner.1 \(ParametrizedLeaky\) is parametrized: .*remove_parametrizations
snn.Online(snn.MultiStep(nn.Linear(SIZE, SIZE), snn.Leaky(beta=0.9)), rule="ottt") | inner.1 \(Online\)
""")
def test_neurons_without_a_twin_are_refused_by_name(row):
    call, message = row.split(" | ")
    net = nn.Sequential()
    net.inner = nn.Sequential(nn.Linear(SIZE, SIZE), eval(call))
    with pytest.raises(TypeError, match=f"to_snntorch: {message}"):
        snn.to_snntorch(net)


@pytest.mark.parametrize("way", ["to_snntorch", "from_snntorch"])
def test_what_is_no_module(way):
    with pytest.raises(TypeError, match=f"{way}: net must be a torch.nn.Module, got function"):
        getattr(snn, way)(lambda x: x)


def test_subclasses_of_snntorchs_stay_and_are_told_once():
    class Theirs(snntorch.Leaky):
        pass

    net = nn.Sequential(Theirs(beta=0.9), Theirs(beta=0.8), snntorch.Leaky(beta=0.7), Mine(beta=0.6))
    with pytest.warns(UserWarning, match="from_snntorch leaves 0 as it is: Theirs is a subclass") as warned:
        converted = snn.from_snntorch(net)
    assert len(warned) == 1
    assert [type(module) for module in converted] == [Theirs, Theirs, snn.Leaky, Mine]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snn.from_snntorch(net)


def test_a_reset_mechanism_set_in_snntorch_has_snntorchs_effect():
    stock = snntorch.Leaky(beta=0.9)
    stock.reset_mechanism = "zero"  # the step stays "subtract"
    converted = snn.from_snntorch(stock)
    back = snn.to_snntorch(converted)
    expected = steps(stock, "Leaky")
    assert_equal(steps(converted, "Leaky"), expected)
    assert_equal(steps(back, "Leaky"), expected)


class LeafTracer(torch.fx.Tracer):
    """A tracer like hls4ml's, for which snnTorch's modules are leaves."""

    def is_leaf_module(self, module, name):
        return module.__module__.startswith(("torch.nn", "snntorch")) and not isinstance(module, nn.Sequential)


def hidden():
    return nn.Sequential(
        nn.Linear(SIZE, SIZE),
        snn.Leaky(beta=torch.rand(SIZE), threshold=1.2, init_hidden=True),
        nn.Linear(SIZE, 3),
        snn.Leaky(beta=0.9, reset_mechanism="zero", init_hidden=True),
    ).eval()


def test_tracers_know_the_copys_neurons_by_their_module():
    graph = LeafTracer().trace(snn.to_snntorch(hidden()))
    assert [node.target for node in graph.nodes if node.op == "call_module"] == ["0", "1", "2", "3"]


def test_every_neuron_of_ours_is_here():
    neurons = {call.partition("(")[0] for call in CASES}
    assert {ours.__name__ for ours in convert._STOCK} == neurons
    twins = {getattr(snntorch, kind) for kind in neurons if hasattr(snntorch, kind)}
    assert {theirs for theirs in convert._OURS if theirs.__module__.startswith("snntorch")} == twins
