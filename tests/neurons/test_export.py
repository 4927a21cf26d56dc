"""Traces and exported programs contain only PyTorch's operations, and compute the network's results."""

import copy
import functools
import io

import pytest
import torch
from neurons.test_own import Adaptive
from oracle import flat
from support.loops import kinds, neuron_of
from torch import nn

import snnipu as snn
from snnipu import _route

# PyTorch's warnings: TorchScript is deprecated, a trace depends on shapes, a step sets attributes.
pytestmark = pytest.mark.filterwarnings("ignore")

STEPS, BATCH, SIZE = 3, 2, 6
NEURONS = {
    **{name: functools.partial(neuron_of, name, SIZE) for name in kinds(SIZE) if name != "DeltaLeaky"},
    "Leaky, quantized": lambda **how: snn.Leaky(
        beta=0.9, state_quant=snn.functional.quant.state_quant(num_bits=4), **how
    ),
    "Leaky, inhibition": lambda **how: snn.Leaky(beta=0.9, inhibition=True, **how),
    "SLSTM": lambda **how: snn.SLSTM(SIZE, SIZE, **how),
    "an own one": lambda **how: Adaptive(**how),
}
EXPORTED = ["Leaky", "Leaky, to zero at once", "Leaky, quantized", "RLeaky", "SLSTM", "an own one"]


class Loop(nn.Module):
    """A loop over time; the states start from zeros in each call."""

    def __init__(self, neuron):
        super().__init__()
        self.fc, self.neuron = nn.Linear(SIZE, SIZE), neuron

    def forward(self, x):
        states = self.neuron.reset_mem()
        states = states if isinstance(states, tuple) else (states,)
        spikes = []
        for t in range(len(x)):
            out = self.neuron(self.fc(x[t]), *states)
            states = out[-len(states) :] if len(out) > len(states) else out
            spikes.append(out[0])
        return torch.stack(spikes), states[-1]


class Hidden(Loop):
    """The same loop with hidden states."""

    def forward(self, x):
        self.neuron.reset_mem()
        return torch.stack([self.neuron(self.fc(x[t])) for t in range(len(x))])


class Step(Loop):
    """A single step with states as arguments."""

    def forward(self, x, *states):
        return self.neuron(self.fc(x), *states)


class Sequence(Loop):
    def forward(self, x):
        return self.neuron.sequence(self.fc(x))


def over_time(neuron):
    return snn.MultiStep(nn.Linear(SIZE, SIZE), neuron)


FORMS = {"loop": Loop, "hidden": Hidden, "step": Step, "sequence": Sequence, "MultiStep": over_time}


def network(form, name):
    torch.manual_seed(0)
    neuron = NEURONS[name](init_hidden=True) if form == "hidden" else NEURONS[name]()
    net = FORMS[form](neuron)
    if form != "step":
        return net, (2 * torch.rand(STEPS, BATCH, SIZE),)
    states = neuron.reset_mem()
    count = len(states) if isinstance(states, tuple) else 1
    return net, tuple(2 * torch.rand(BATCH, SIZE) for _ in range(1 + count))


def assert_equal(out, expected, name):
    out, expected = flat(out), flat(expected)
    assert len(out) == len(expected)
    for actual, desired in zip(out, expected):
        assert actual.dtype == desired.dtype
        if name == "SLSTM":  # one product of all steps has another order of additions
            assert torch.allclose(actual, desired, atol=1e-6)
        else:
            assert torch.equal(actual, desired)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NEURONS)
def test_traces_are_of_pytorchs_operations(name, form):
    net, inputs = network(form, name)
    traced = torch.jit.trace(net, inputs)  # trace() runs again and compares the two traces
    assert "snnipu::" not in str(traced.inlined_graph)
    other = tuple(x + 0.25 for x in inputs)
    out, expected = traced(*other), net(*other)
    assert_equal(out, expected, name)
    gradients = []
    for result in (out, expected):
        loss = sum(tensor.sum() for tensor in flat(result))
        parameters = list(net.parameters())
        gradients.append(torch.autograd.grad(loss, parameters, allow_unused=True))
    for actual, desired in zip(*gradients):
        assert (actual is None) == (desired is None)
        assert actual is None or torch.allclose(actual, desired, rtol=1e-5, atol=1e-5)


needs_export = pytest.mark.skipif(
    not hasattr(torch.compiler if hasattr(torch, "compiler") else torch, "is_exporting"),
    reason="this PyTorch does not tell that torch.export traces: PyTorch 2.7 does",
)


@needs_export
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("form", ["hidden", "step", "MultiStep"])
@pytest.mark.parametrize("name", EXPORTED)
def test_exported_programs_are_of_pytorchs_operations(name, form, strict):
    net, inputs = network(form, name)
    program = torch.export.export(net, inputs, strict=strict)
    assert not [node for node in program.graph.nodes if "snnipu" in str(node.target)]
    other = tuple(x + 0.25 for x in inputs)
    assert_equal(program.module()(*other), net(*other), name)


def maps():
    """Return modules for which MultiStep has operators besides the neurons'."""
    torch.manual_seed(0)
    net = snn.MultiStep(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        snn.Leaky(beta=0.9),
        nn.MaxPool2d(2),
        snn.SConv2dLSTM(3, 2, 3),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 4),
        snn.SynapticDelay(3, 1.5),
        snn.Leaky(beta=0.9),
    )
    return net.eval(), (torch.rand(STEPS, BATCH, 2, 8, 8),)


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = over_time(snn.Leaky(beta=0.9))

    def forward(self, x):
        return self.net(x, num_steps=STEPS)


def whole():
    torch.manual_seed(0)
    return snn.MultiStep(snn.StateLeaky(beta=0.9, channels=SIZE), snn.LinearLeaky(0.9, SIZE, 3))


OTHERS = {
    "maps": maps,
    "constant input": lambda: (Constant(), (2 * torch.rand(BATCH, SIZE),)),
    "whole sequences": lambda: (whole(), (torch.rand(STEPS, BATCH, SIZE),)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks(name):
    net, inputs = OTHERS[name]()
    traced = torch.jit.trace(net, inputs)
    assert "snnipu::" not in str(traced.inlined_graph)
    for actual, desired in zip(flat(traced(*inputs)), flat(net(*inputs))):
        assert torch.allclose(actual, desired, atol=1e-6)


ONNX = [(form, name) for form in ("hidden", "MultiStep") for name in EXPORTED] + [("step", "Leaky")]
ONNX += [(None, name) for name in OTHERS]


@pytest.mark.parametrize("dynamo", [False, True], ids=["TorchScript", "dynamo"])
@pytest.mark.parametrize(("form", "name"), ONNX)
def test_onnx_models_give_the_same_numbers(form, name, dynamo, tmp_path):
    pytest.importorskip("onnx", reason="exporters to ONNX need onnx")
    pytest.importorskip("onnxscript", reason="exporters to ONNX need onnxscript")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime runs what is exported")
    if name == "whole sequences" and not dynamo:
        pytest.skip("TorchScript's exporter has no convolution by a computed kernel, as snnTorch's StateLeaky")
    net, inputs = OTHERS[name]() if form is None else network(form, name)
    net.eval()
    path = str(tmp_path / "net.onnx")
    with torch.no_grad():
        torch.onnx.export(net, inputs, path, dynamo=dynamo)
        if form in ("hidden", None):
            getattr(getattr(net, "neuron", None), "reset_mem", tuple)()
        expected = flat(net(*inputs))
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    results = session.run(None, {name: x.numpy() for name, x in zip(names, inputs)})
    assert len(results) == len(expected)
    for actual, desired in zip(results, expected):
        assert torch.allclose(torch.from_numpy(actual), desired, atol=1e-5)


@pytest.mark.parametrize("form", ["hidden", "step", "MultiStep"])
def test_tensorboard_draws_the_graph(form, tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard draws graphs")
    net, inputs = network(form, "RLeaky")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        writer.add_graph(net, inputs)
    assert list(tmp_path.iterdir())


@pytest.mark.parametrize("traces", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("name", ["Leaky", "RSynaptic", "SLSTM", "an own one"])
def test_a_trace_begins_with_the_states_there_are(name, traces):
    net = nn.Sequential(nn.Linear(SIZE, SIZE), NEURONS[name](init_hidden=True, output=True))
    x = 2 * torch.rand(BATCH, SIZE)
    net(x)
    states = {key: value for key, value in vars(net[1]).items() if key in net[1]._states()}
    assert all(state.requires_grad for state in states.values() if state is not net[1].__dict__.get("spk"))
    if name == "SLSTM" and traces is torch.enable_grad:
        # PyTorch's own operations computed these states, so the trace refuses their graph.
        with pytest.raises(RuntimeError, match="Consider making it a parameter or input, or detaching the gradient"):
            torch.jit.trace(net, (x,))
        net[1].__dict__.update({key: state.detach() for key, state in states.items()})
    with traces():
        traced = torch.jit.trace(net, (x,))
        out = traced(x)
    net[1].__dict__.update(states)
    assert_equal(out, net(x), name)
    assert_equal(traced(x), out, name)  # a trace keeps no state


@pytest.mark.parametrize("learns", [False, True])
def test_a_trace_follows_states_that_it_sets_itself(learns):
    class Given(Loop):
        def forward(self, x):
            self.neuron.mem = self.fc(x)
            return self.neuron(x)

    net, x = Given(snn.Leaky(beta=0.9, init_hidden=True, output=True)), torch.rand(BATCH, SIZE)
    net(x)
    with torch.set_grad_enabled(learns):
        traced = torch.jit.trace(net, (x,))
    assert_equal(traced(x + 1), net(x + 1), "Leaky")
    gradients = [torch.autograd.grad(module(x + 1)[1].sum(), net.fc.weight)[0] for module in (traced, net)]
    assert gradients[1].any()
    assert torch.equal(*gradients)


def test_a_trace_without_surrogate_can_be_saved():
    net, inputs = Loop(snn.Leaky(beta=0.9, surrogate_disable=True)), (2 * torch.rand(STEPS, BATCH, SIZE),)
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(net, inputs), buffer)
    buffer.seek(0)
    assert_equal(torch.jit.load(buffer)(*inputs), net(*inputs), "Leaky")


def test_an_ipu_has_operators(monkeypatch):
    seen = []

    class Watched(nn.Module):
        def forward(self, x):
            seen.append(_route.is_exporting())
            return x + 1

    class Backend:
        on_ipu = staticmethod(lambda: True)

    x = torch.rand(2)
    torch.jit.trace(Watched(), (x,), check_trace=False)
    monkeypatch.setattr(_route, "_backend", Backend)
    torch.jit.trace(Watched(), (x,), check_trace=False)
    assert seen == [True, False]
    assert not _route.is_exporting()


def test_no_state_goes_to_a_copy():
    net = nn.Sequential(snn.Leaky(beta=0.9, init_hidden=True))
    torch.jit.trace(net, (torch.rand(BATCH, SIZE),))
    assert "_traced" in vars(net[0])
    assert "_traced" not in vars(copy.deepcopy(net)[0])
