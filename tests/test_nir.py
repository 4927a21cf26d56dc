"""NIR graphs to and from networks: equal spikes, NIR's equations, and other tools' graphs."""

import importlib.metadata
import sys
import warnings

import numpy as np
import pytest
import snntorch
import torch
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn
from snnipu import _extras
from snnipu._extras import MissingExtra
from snnipu.neurons.nir_nodes import Integrator, ModuleGraph, Scale, Threshold, Unsupported

nir = pytest.importorskip("nir")
try:
    _extras.require("nir", "nir", "these tests", _extras.LEAST_NIR)
except MissingExtra as error:
    pytest.skip(str(error), allow_module_level=True)
from snnipu.export_nir import export_to_nir  # noqa: E402
from snnipu.import_nir import RSynaptic, import_from_nir, reset  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NIRS = {"reset_mechanism": "zero", "reset_delay": False, "init_hidden": True}
WITHOUT_RESET = {"reset_mechanism": "none", "init_hidden": True}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def numbers(*shape):
    return torch.rand(shape) * 4


def unsupported(message):
    """Expect an error that names what NIR cannot express."""
    return pytest.raises(Unsupported, match=message)


def through_a_file(graph, tmp_path):
    nir.write(tmp_path / "graph.nir", graph)
    return nir.read(tmp_path / "graph.nir")


def run(net, x):
    outs = [net(step) for step in x]
    return torch.stack([out[0] if isinstance(out, tuple) else out for out in outs])


def assert_round_trip(net, x, tmp_path, exact=True):
    """Check that the network read back gives the same results step by step and as a sequence, and so does its graph."""
    expected = run(net, x)
    assert expected.any()
    reset(net)
    graph = export_to_nir(net, x[0])
    again = import_from_nir(through_a_file(graph, tmp_path))
    close = torch.equal if exact else (lambda a, b: torch.allclose(a, b, atol=1e-5))
    assert close(run(again, x), expected)
    reset(again)
    out = snn.MultiStep(again)(x)
    out = out[0] if isinstance(out, tuple) else out
    assert torch.allclose(out, expected, atol=1e-5)
    twice = export_to_nir(again, x[0])
    assert sorted(type(node).__name__ for node in twice.nodes.values()) == sorted(
        type(node).__name__ for node in graph.nodes.values()
    )
    return again


@pytest.mark.parametrize("library", [snn, snntorch])
def test_tutorial_network(library, tmp_path):
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(36, 50),
        library.Leaky(beta=0.9, init_hidden=True),
        nn.Linear(50, 10),
        library.Leaky(beta=0.9, init_hidden=True, output=True),
    )
    with pytest.warns(UserWarning, match="the reset of 2, 4 is another"):
        again = assert_round_trip(net, numbers(12, 3, 1, 6, 6), tmp_path)
    fused = [module for module in again if isinstance(module, snntorch.SpikingNeuron)]
    assert all(type(module) is snn.Leaky and module.runs_fused() for module in fused)
    assert torch.equal(fused[0].beta, torch.tensor(0.9))


@each_row("""
snn.Leaky(0.9, **NIRS)
snn.Leaky(torch.rand(8), threshold=torch.rand(8) + 0.1, **NIRS)
snn.Leaky(0.0, **NIRS)
snn.Leaky(1.0, **NIRS)
snn.Leaky(0.9, graded_spikes_factor=0.25, **NIRS)
snn.Leaky(0.7, **WITHOUT_RESET)
snn.Synaptic(0.8, 0.9, **NIRS)
snn.Synaptic(torch.rand(8), torch.rand(8), threshold=torch.rand(8) + 0.1, **NIRS)
snn.Synaptic(0.6, 0.7, **WITHOUT_RESET)
snn.RLeaky(0.9, linear_features=8, **NIRS)
snn.RLeaky(0.9, all_to_all=False, V=torch.randn(8), **NIRS)
snn.RLeaky(1.0, all_to_all=False, V=-0.3, **NIRS)
RSynaptic(0.8, 0.9, linear_features=8, **NIRS)
RSynaptic(0.8, 0.9, all_to_all=False, V=torch.randn(8), **NIRS)
Integrator(snn.Leaky(0.9, **WITHOUT_RESET), v_leak=0.5)
Integrator(snn.Leaky(1.0, **WITHOUT_RESET))
Integrator(snn.Synaptic(0.8, 0.9, **WITHOUT_RESET))
""")
def test_neurons(row, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert_round_trip(nn.Sequential(nn.Linear(6, 8), eval(row)), numbers(15, 3, 6), tmp_path)


@pytest.mark.parametrize(
    "delay",
    [
        lambda: snn.SynapticDelay(9, torch.tensor([0.0, 0.3, 1.0, 2.5, 3.0, 7.0, 8.999, 9.0]), learn_delay=True),
        lambda: snn.SynapticDelay(30, 3.0),
        lambda: snn.SynapticDelay(0, channels=8),
    ],
)
def test_delays(delay, tmp_path):
    net = nn.Sequential(nn.Linear(6, 8), snn.Leaky(0.9, **NIRS), delay(), nn.Linear(8, 4), snn.Leaky(0.9, **NIRS))
    before = run(net, (x := numbers(15, 3, 6)))
    in_transit = list(net[2]._last)
    graph = export_to_nir(net, x[0], dt=2e-3)
    assert all(a is b for a, b in zip(net[2]._last, in_transit))  # spikes in transit are unchanged
    np.testing.assert_allclose(graph.nodes["2"].delay, np.broadcast_to(net[2].delay.detach().double() * 2e-3, 8))
    reset(net)
    assert torch.equal(run(net, x), before)
    reset(net)
    again = assert_round_trip(net, x, tmp_path)
    assert torch.equal(again[2].delay.expand(8), net[2].delay.expand(8))
    assert again[2].max_delay == net[2].max_delay


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("delay", "nodes"),
    [
        (torch.tensor([[0.0, 0.3, 1.0, 2.5, 3.0, 4.9]]), ["delay", "weight"]),
        (torch.tensor([[0.0], [1.7], [3.0], [5.0]]), ["weight", "delay", "bias"]),
        (2.5, ["delay", "weight"]),
    ],
    ids=["of each input", "of each output", "one"],
)
def test_linear_layers_with_delays(delay, nodes, bias, tmp_path):
    net = nn.Sequential(snn.DelayLinear(6, 4, 5, delay=delay, bias=bias, init_hidden=True), snn.Leaky(0.9, **NIRS))
    x = numbers(15, 3, 6)
    graph = export_to_nir(net, x[0])
    assert [name.split(".")[1] for name in graph.nodes if name.startswith("0.")] == nodes[: 3 if bias else 2]
    assert_round_trip(net, x, tmp_path, exact=False)


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(6, 6),
        Integrator(snn.Leaky(0.9, **WITHOUT_RESET)),
        Scale(2.0),
        Threshold(1.0, snn.surrogate.atan()),
        snn.DelayLinear(6, 6, 5, delay=1.0),
        snn.SynapticDelay(5, 1.0),
    ],
    ids=lambda module: type(module).__name__,
)
def test_a_subclass_of_a_layer_is_not_taken_for_it(module):
    module.__class__ = type("Own", (type(module),), {"forward": lambda self, x: 2 * x})
    with unsupported(r"module 1 \(Own\) cannot be written to NIR"):
        export_to_nir(nn.Sequential(nn.Linear(6, 6), module), torch.rand(2, 6))


def test_delays_of_other_tools():
    def graph(delay):
        nodes = {"input": nir.Input(np.array(delay.shape)), "d": nir.Delay(delay), "output": nir.Output(delay.shape)}
        return nir.NIRGraph(nodes, [("input", "d"), ("d", "output")])

    # Milliseconds in float32 are whole steps, and maps have a delay for each channel.
    steps = np.array([0, 1, 3, 7, 29])
    net = import_from_nir(graph((steps * 1e-3).astype(np.float32)), dt=1e-3)
    assert net[0].delay.tolist() == steps.tolist()
    assert net[0].max_delay == 29
    maps = import_from_nir(graph(np.array([2e-3, 1.5e-3]).reshape(2, 1, 1).repeat(3, 1).repeat(3, 2)), dt=1e-3)
    x = torch.zeros(5, 1, 2, 3, 3)
    x[0] = 1
    out = snn.MultiStep(maps)(x)[:, 0, :, 1, 1]
    assert out[:, 0].tolist() == [0, 0, 1, 0, 0]
    torch.testing.assert_close(out[:, 1], torch.tensor([0, 0.5, 0.5, 0, 0]))
    with unsupported(r"node d \(Delay\): its delays must be the same in all places of a channel"):
        import_from_nir(graph(np.array([[1.0, 2.0]])))
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="node d: delay must be 0 or more and finite"):
            import_from_nir(graph(np.array([bad])))


@each_row("""
snn.DelayLinear(6, 4, 5) | NIR's Delay is of a channel, not of a synapse
snn.DelayLinear(6, 4, 5, delay=1.0, kernel="gaussian") | kernel 'gaussian': NIR's Delay has one delay time
snn.SynapticDelay(5, 1.0, kernel="gaussian") | kernel 'gaussian': NIR's Delay has one delay time
snn.SynapticDelay(5, torch.ones(4)) | it has delays for 4 channels
""")
def test_delays_that_nir_cannot_express_are_named(row):
    call, why = row.split(" | ")
    module = eval(call)
    with unsupported(rf"module 1 \({type(module).__name__}\) cannot be written to NIR: {why}"):
        export_to_nir(nn.Sequential(nn.Linear(6, 6), module), torch.rand(2, 6))


@each_row("""
snn.Leaky(0.9, reset_mechanism="subtract", init_hidden=True)
snn.Leaky(0.9, reset_mechanism="subtract", reset_delay=False, init_hidden=True)
snn.Leaky(0.9, reset_mechanism="zero", init_hidden=True)
snn.Synaptic(0.8, 0.9, reset_mechanism="subtract", init_hidden=True)
snn.Synaptic(0.8, 0.9, reset_mechanism="subtract", reset_delay=False, init_hidden=True)
snn.Synaptic(0.8, 0.9, reset_mechanism="zero", init_hidden=True)
snn.RLeaky(0.9, linear_features=8, reset_mechanism="subtract", init_hidden=True)
snn.RLeaky(0.9, linear_features=8, reset_mechanism="subtract", reset_delay=False, init_hidden=True)
snn.RLeaky(0.9, linear_features=8, reset_mechanism="zero", init_hidden=True)
snn.RSynaptic(0.8, 0.9, linear_features=8, reset_mechanism="zero", reset_delay=False, init_hidden=True)
""")
def test_other_resets_are_named_and_kept(row, tmp_path):
    with pytest.warns(UserWarning, match="the reset of 1 is another"):
        assert_round_trip(nn.Sequential(nn.Linear(6, 8), eval(row)), numbers(15, 3, 6), tmp_path)


def test_convolutions_and_pooling(tmp_path):
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=1),
        snn.Leaky(0.8, **NIRS),
        nn.AvgPool2d(2, stride=1),
        nn.Conv2d(4, 6, (3, 3), padding="same", groups=1, bias=False),
        snn.Leaky(0.8, threshold=0.2, **NIRS),
        nn.AvgPool2d(2, padding=1, divisor_override=1),
        nn.Identity(),
        nn.Flatten(1, 2),
        nn.Flatten(),
        nn.Linear(54, 5),
        snn.Leaky(0.9, threshold=0.2, **NIRS),
    )
    assert_round_trip(net, numbers(8, 2, 2, 10, 10), tmp_path, exact=False)
    graph = export_to_nir(net, torch.rand(1, 2, 10, 10))
    assert [type(node).__name__ for node in graph.nodes.values()][:7] == [
        "Input", "Conv2d", "LIF", "AvgPool2d", "Conv2d", "LIF", "SumPool2d",
    ]  # fmt: skip
    assert graph.nodes["1"].tau.shape == (4, 5, 5)
    assert graph.check_types()


def test_one_dimension(tmp_path):
    net = nn.Sequential(nn.Conv1d(2, 4, 3, stride=2, padding=1), snn.Leaky(0.8, **NIRS), nn.Flatten(), nn.Linear(20, 2))
    assert_round_trip(net, numbers(8, 2, 2, 9), tmp_path, exact=False)
    grouped = nn.Sequential(nn.Conv1d(4, 8, 3, groups=2), snn.Leaky(0.8, **NIRS))
    again = import_from_nir(export_to_nir(grouped, torch.rand(1, 4, 9)))
    x = numbers(5, 3, 4, 9)
    assert torch.equal(run(again, x), run(grouped, x))


def test_multistep_is_read_as_it_stands():
    net = snn.MultiStep(nn.Linear(6, 8), snn.Leaky(0.9, reset_mechanism="zero", reset_delay=False), nn.Linear(8, 2))
    x = numbers(9, 3, 6)
    again = import_from_nir(export_to_nir(net, x, ignore_dims=[0, 1]))
    assert torch.equal(snn.MultiStep(again)(x), net(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(9, 8), snn.Leaky(0.9, reset_mechanism="zero", reset_delay=False)
        self.block = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 4))
        self.lif2 = snn.RLeaky(0.8, linear_features=4, reset_mechanism="zero", reset_delay=False)

    def forward(self, x):
        mem1 = self.lif1.reset_mem()
        spk2, mem2 = self.lif2.reset_mem()
        spikes = []
        for step in x:
            spk1, mem1 = self.lif1(self.fc1(step.flatten(1)), mem1)
            spk2, mem2 = self.lif2(self.block(spk1), spk2, mem2)
            spikes.append(spk2)
        return torch.stack(spikes)


def test_a_loop_in_forward():
    net = Net().eval()
    x = numbers(10, 2, 1, 3, 3)
    expected = net(x)
    before = {name: value.clone() for name, value in net.lif1.__dict__["_buffers"].items()}
    graph = export_to_nir(net, x)
    assert all(torch.equal(value, net.lif1._buffers[name]) for name, value in before.items())
    assert {"fc1.flatten", "fc1", "lif1", "block.1", "lif2.lif", "lif2.w_rec"} < set(graph.nodes)
    assert graph.nodes["input"].input_type["input"].tolist() == [1, 3, 3]
    assert graph.check_types()
    assert torch.equal(run(import_from_nir(graph), x), expected)
    assert torch.equal(net(x), expected)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.lif = nn.Linear(4, 3), nn.Linear(4, 3), snn.Leaky(0.9, **NIRS)

    def forward(self, x):
        return self.lif(self.a(x)), self.b(x)


def test_branches_and_sums():
    net = Branches()
    x = numbers(7, 2, 4)
    again = import_from_nir(export_to_nir(net, x[0]))
    assert isinstance(again, ModuleGraph)
    for step in x:
        for actual, expected in zip(again(step), net(step)):
            assert torch.equal(actual, expected)
    nodes = {
        "in": nir.Input(np.array([3])),
        "w": nir.Linear(np.eye(3, dtype=np.float32) * 2),
        "s": nir.Scale(np.array([1.0, 2.0, 3.0])),
        "li": nir.LI(np.full(3, 2e-4), np.full(3, 2.0), np.zeros(3)),
        "out": nir.Output(np.array([3])),
    }
    edges = [("in", "w"), ("in", "s"), ("w", "li"), ("s", "li"), ("li", "out"), ("in", "out")]
    summing = import_from_nir(nir.NIRGraph(nodes, edges, type_check=False))
    ones, mem = torch.ones(1, 3), torch.zeros(3)
    over_time = snn.MultiStep(import_from_nir(nir.NIRGraph(nodes, edges, type_check=False)))(ones.expand(4, 1, 3))
    for step in range(4):
        mem = 0.5 * mem + torch.tensor([3.0, 4.0, 5.0])
        assert torch.allclose(summing(ones)[0], mem + 1)
        assert torch.allclose(over_time[step, 0], mem + 1)


def graph_of(*nodes, edges=()):
    size = np.array([3])
    named = {"input": nir.Input(size), **{f"n{i}": node for i, node in enumerate(nodes)}, "output": nir.Output(size)}
    names = [name for name in named if not name.startswith("n") or name == "n0"]
    return nir.NIRGraph(named, [*zip(names, names[1:]), *edges], type_check=False)


def arrays(*values):
    return [np.array(value, dtype=np.float64) for value in values]


TAU, TAU_SYN, R, V_LEAK, W_IN, THRESHOLD, BIAS = arrays(
    [0.01, 0.02, 0.05],
    [0.004, 0.008, 0.01],
    [8.0, 4.0, 30.0],
    [0.3, -0.2, 0.0],
    [2.0, 1.0, 3.0],
    [1.0, 0.5, 0.9],
    [0.1, 0.0, -0.1],
)
WEIGHT = np.array([[0.0, -1.0, 2.0], [1.0, 0.0, 0.5], [0.3, 0.2, -0.1]])
FIRES, SYNAPSE = {"v_threshold": THRESHOLD, "v_reset": V_LEAK}, {"tau_syn": TAU_SYN, "tau_mem": TAU, "w_in": W_IN}
NODES = {
    "LIF": lambda: nir.LIF(tau=TAU, r=R, v_leak=V_LEAK, **FIRES),
    "CubaLIF": lambda: nir.CubaLIF(r=R, v_leak=V_LEAK, **SYNAPSE, **FIRES),
    "LI": lambda: nir.LI(TAU, R, V_LEAK),
    "CubaLI": lambda: nir.CubaLI(r=R, v_leak=V_LEAK, **SYNAPSE),
    "I": lambda: nir.I(R),
}


def membranes_and_spikes(name, xs, dt, weight, bias):
    """Run Euler's steps of the equations in NIR's documentation."""
    v, current, z = np.zeros(3) if name == "I" else V_LEAK.copy(), np.zeros(3), np.zeros(3)
    for x in xs:
        total = x + weight @ z + bias
        current = current + dt / TAU_SYN * (W_IN * total - current) if "Cuba" in name else total
        v = v + (dt * R * current if name == "I" else dt / TAU * (V_LEAK - v + R * current))
        if name.endswith("LIF"):
            z = (v > THRESHOLD).astype(float)
            v = np.where(z == 1, V_LEAK, v)
        yield v, z


@pytest.mark.parametrize("dt", [1e-3, 2e-3])
@pytest.mark.parametrize(("name", "recurrent"), [*((name, False) for name in NODES), ("LIF", True), ("CubaLIF", True)])
def test_nirs_equations(name, recurrent, dt):
    """The neurons have a rest potential, resistances, input weights and optional recurrence."""
    fires = name.endswith("LIF")
    loops = [("n0", "n1"), ("n1", "n0")] if recurrent else []
    graph = graph_of(NODES[name](), *([nir.Affine(WEIGHT, BIAS)] if recurrent else []), edges=loops)
    net = import_from_nir(graph, dt=dt)
    if fires:
        assert isinstance(net[0], Scale)
        assert type(net[1]).__name__ == ("R" if recurrent else "") + ("Synaptic" if "Cuba" in name else "Leaky")
    xs = np.random.default_rng(0).normal(size=(60, 3)) * 2
    x = torch.tensor(xs[:, None], dtype=torch.float32)
    expected = membranes_and_spikes(name, xs, dt, WEIGHT * recurrent, BIAS * recurrent)
    with torch.no_grad():
        all_steps = None if fires else snn.MultiStep(import_from_nir(graph, dt=dt))(x)
        spikes = 0
        for t, (v, z) in enumerate(expected):
            out = net(x[t])
            if fires:
                assert np.array_equal(out[0].numpy(), z)
                assert np.allclose(net[1].mem[0].numpy() + V_LEAK, v, atol=1e-5)
                spikes += z.sum()
            else:
                assert np.allclose(out[0].numpy(), v, atol=1e-5)
                assert np.allclose(all_steps[t, 0].numpy(), v, atol=1e-5)
    assert not fires or 10 < spikes < 170


@pytest.mark.parametrize(("r", "membrane"), [(1.0, 1.0), (2.0, 2e-3), (500.0, 0.5)])
def test_a_unit_of_current_into_an_integrator(r, membrane):
    """An IF of r = 1 equals that of norse, sinabs and snnTorch, which have no dt; others follow the equation."""
    net = import_from_nir(graph_of(nir.IF(*arrays([r] * 3, [10.0] * 3, [0.0] * 3))), dt=1e-3)
    (neuron,) = (module for module in net.modules() if isinstance(module, snn.Leaky))
    net(torch.ones(1, 3))
    torch.testing.assert_close(neuron.mem, torch.full((1, 3), membrane))


def test_graphs_in_graphs():
    inner = graph_of(
        nir.LIF(*arrays([2e-4] * 3, [2.0] * 3, [0.0] * 3, [1.0] * 3)),
        nir.Linear(np.diag([1.0, 2.0, 3.0])),
        edges=[("n0", "n1"), ("n1", "n0")],
    )
    net = import_from_nir(graph_of(graph_of(inner)))
    assert [type(module).__name__ for module in net] == ["RLeaky"]
    assert torch.equal(net[0].recurrent.V, torch.tensor([1.0, 2.0, 3.0]))
    assert net[0].beta == 0.5


def test_snntorchs_graphs():
    """A graph of snnTorch's exporter has the meaning of snnTorch's importer."""
    pytest.importorskip("nirtorch")
    from snntorch.export_nir import export_to_nir as theirs
    from snntorch.import_nir import import_from_nir as reads

    net = nn.Sequential(
        nn.Linear(6, 8),
        snntorch.Leaky(torch.full((8,), 0.9), threshold=torch.ones(8), init_hidden=True),
        nn.Linear(8, 4),
        snntorch.Synaptic(torch.full((4,), 0.8), torch.full((4,), 0.9), threshold=torch.ones(4), init_hidden=True),
    )
    graph = theirs(net, torch.rand(1, 6), ignore_dims=[0])
    x = numbers(20, 3, 6)
    actual, desired = run(import_from_nir(graph), x), run(reads(graph), x)
    assert desired.any()
    assert torch.equal(actual, desired)


@pytest.mark.parametrize("dt", [None, 1.0])
def test_norses_graphs(dt):
    norse = pytest.importorskip("norse.torch", reason="norse is not installed")
    net = norse.SequentialState(
        nn.Linear(10, 6), norse.LIFBoxCell(), nn.Linear(6, 5), norse.IAFCell(), nn.Linear(5, 3), norse.LIBoxCell()
    )
    # norse multiplies its time constants by its dt, 0.001 by default.
    graph = norse.to_nir(net, torch.randn(1, 10), **({} if dt is None else {"dt": dt}))
    imported, x = import_from_nir(graph, dt=0.001 * (dt or 0.001)), torch.randn(60, 2, 10) * 9
    state, expected = None, []
    with torch.no_grad():
        for step in x:
            out, state = net(step, state)
            expected.append(out)
        expected = torch.stack(expected)
        assert expected.abs().max() > 0.01
        assert torch.allclose(run(imported, x), expected, atol=1e-6)
        reset(imported)
        assert torch.allclose(snn.MultiStep(imported)(x), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("installed", "enough"), [("1.0.1", False), ("1.0.6", True), ("1.0.6.dev3", True), ("1.1", True)]
)
def test_an_older_nir_is_refused(installed, enough, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: installed)
    if enough:
        assert _extras.require("nir", "nir", "export_to_nir", _extras.LEAST_NIR) is nir
        return
    with pytest.raises(MissingExtra, match=r"export_to_nir needs nir 1.0.6 or later, found 1.0.1: pip install"):
        export_to_nir(snn.MultiStep(snn.Leaky(beta=0.9)), torch.zeros(2, 1, 3))


def test_without_nir(monkeypatch):
    monkeypatch.setitem(sys.modules, "nir", None)
    for call in (lambda: import_from_nir(None), lambda: export_to_nir(nn.Linear(2, 2), torch.rand(1, 2))):
        with pytest.raises(MissingExtra, match=r"pip install .snnipu\[nir\]"):
            call()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.a(x) + x)


class Twice(Residual):
    def forward(self, x):
        return self.b(self.a(self.a(x)))


class OwnFire(snn.Leaky):
    def fire(self, mem):
        return mem


def hooked(module):
    module.register_forward_hook(lambda *arguments: None)
    return module


@each_row(r"""
nn.MaxPool2d(2) | 1, 2, 4, 4 | module 0 \(MaxPool2d\).*no node
snn.Alpha(0.9, 0.8) | 1, 4 | module 0 \(Alpha\).*no node
snn.Leaky(0.9, inhibition=True) | 1, 4 | inhibition has no place
snn.Leaky(0.9, state_quant=snn.functional.quant.state_quant(4)) | 1, 4 | state_quant has no
OwnFire(0.9) | 1, 4 | OwnFire has its own fire
snn.Leaky(0.9, threshold=-1.0) | 1, 4 | threshold must be above 0
snn.Leaky(torch.tensor([0.9, 1.0])) | 1, 2 | beta of 1 has no finite time constant
snn.Synaptic(1.0, 0.9) | 1, 2 | alpha of 1 has no finite time constant
snn.RLeaky(0.9, linear_features=4, reset_mechanism="none") | 1, 4 | reset_mechanism='none' of
snn.RLeaky(0.9, conv2d_channels=2, kernel_size=3, **NIRS) | 1, 2, 4, 4 | one dimension only
nn.Linear(4, 4) | 1, 3, 4 | steps of one dimension
nn.Conv2d(1, 1, 3, padding_mode="circular") | 1, 1, 4, 4 | padding_mode 'circular'
nn.AvgPool2d(2, ceil_mode=True) | 1, 1, 4, 4 | ceil_mode
nn.LSTM(4, 4) | 1, 4 | returns no tensor
hooked(nn.Linear(2, 2)) | 1, 2 | it has hooks
Residual() | 1, 4 | module b \(Linear\).*not the output of another module
Twice() | 1, 4 | must call each module once.*a, a, b
""")
@pytest.mark.filterwarnings("ignore:Inhibition")
def test_what_nir_cannot_express_is_refused_by_name(row):
    call, shape, message = row.split(" | ")
    net, x = eval(call), torch.rand(eval(shape))
    net = net if isinstance(net, Residual) else nn.Sequential(net)
    for error in (Unsupported, ValueError, NotImplementedError):
        with pytest.raises(error, match=message):
            export_to_nir(net, x)


def lif(**values):
    fields = {"tau": 1e-3, "r": 1.0, "v_leak": 0.0, "v_threshold": 1.0, "v_reset": 0.0, **values}
    return nir.LIF(**{key: np.full(3, value) for key, value in fields.items()})


class Unknown(nir.NIRNode):
    """A node of a later version."""

    def __init__(self):
        self.input_type = {"input": np.array([3])}
        self.output_type = {"output": np.array([3])}
        self.metadata = {}


def pool(stride):
    return nir.AvgPool2d(np.array([2, 2]), np.array(stride), np.array([0, 0]))


# A bias of one number would broadcast to all outputs.
@each_row(r"""
import_from_nir(None) | TypeError: graph must be a nir.NIRGraph, got NoneType
import_from_nir(graph_of(lif()), dt=0) | ValueError: dt must be positive
import_from_nir(graph_of(lif(tau=-1.0))) | ValueError: node n0: tau must be positive
import_from_nir(graph_of(lif(tau=1e-5))) | ValueError: node n0: tau = 1e-05 is shorter than the time step
import_from_nir(graph_of(lif(v_reset=-0.5))) | Unsupported: node n0 \(LIF\): v_reset -0.5 must be v_leak 0.0
import_from_nir(graph_of(Unknown())) | Unsupported: node n0: Unknown of NIR has no module
import_from_nir(graph_of(lif(), nir.Scale(np.ones(3)), edges=[("n0", "n1"), ("n1", "n0")]))
    | Unsupported: a loop through nodes n0, n1, output
import_from_nir(graph_of(nir.Affine(np.ones((3, 3)), np.ones(1))))
    | ValueError: node n0 \(Affine\): bias must have shape \(3,\), got \(1,\)
import_from_nir(graph_of(pool([0, 2])))
    | ValueError: node n0 \(AvgPool2d\): stride must be 1 or 2 numbers of at least 1, got \[0, 2\]
export_to_nir(3, torch.rand(1, 2)) | TypeError: module must be an nn.Module
export_to_nir(nn.Linear(2, 2), 3) | TypeError: sample_data must be a torch.Tensor
export_to_nir(snn.MultiStep(nn.Linear(2, 2)), torch.rand(2)) | ValueError: \[T, B, ...\]
export_to_nir(nn.Linear(2, 2), torch.rand(1, 2), "net", [], [5]) | ValueError: ignore_dims
""")
def test_bad_graphs_and_arguments(row):
    assert_refused(row, globals())


def test_a_single_layer_has_the_models_name():
    graph = export_to_nir(nn.Linear(2, 3, bias=False), torch.rand(1, 2), model_name="fc", dt=1e-3)
    assert isinstance(graph.nodes["fc"], nir.Linear)
    assert graph.edges == [("input", "fc"), ("fc", "output")]
    assert graph.metadata["snnipu_dt"] == 1e-3


def test_thresholds_pass_gradients():
    net = import_from_nir(graph_of(nir.Threshold(np.ones(3))), spike_grad=snn.surrogate.fast_sigmoid())
    assert isinstance(net[0], Threshold)
    x = torch.randn(2, 3, requires_grad=True)
    net(x).sum().backward()
    assert (x.grad > 0).all()
