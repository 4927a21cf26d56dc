"""The PopART operator's interface on machines without PopART, and the refusal where a real PopTorch traces."""

import inspect
import math
import re
import shutil
import subprocess
import sys
import types

import pytest
import torch
from support.operators import needs_library
from torch import nn

import snnipu as snn
from snnipu import ops, poptorch, surrogate
from snnipu.backends import popart
from snnipu.ipu.model import IpuModel
from snnipu.ops._maps import conv_geometry, pool_geometry
from snnipu.ops.sparse_pool2d import mode_code

KERNEL = surrogate.fast_sigmoid(10).kernel
ATTRIBUTES = {
    "variant": 0,
    "surrogate": KERNEL.id,
    "surrogate_a": KERNEL.a,
    "surrogate_b": -math.inf,
}


def custom(name, inputs, shapes, attributes):
    return poptorch.custom_op(inputs, name, "ai.snnipu", 1, [torch.empty(shape) for shape in shapes], attributes)


@pytest.mark.parametrize(
    ("neuron", "parameters", "attributes"),
    [  # parameters in the order of the struct
        (snn.Leaky(beta=0.9, threshold=0.3), (0.3, 0.9, 1.0), {"neuron": "leaky", "states": 1}),
        (snn.Synaptic(alpha=0.8, beta=0.9, threshold=0.3), (0.3, 0.8, 0.9, 1.0), {"neuron": "synaptic", "states": 3}),
    ],
)
def test_a_neuron_as_a_custom_op_is_the_op(neuron, parameters, attributes):
    neuron.spike_grad = surrogate.fast_sigmoid(10)
    count = len(parameters) - 2
    x, states = torch.randn(5, 2, 7, requires_grad=True), [torch.randn(2, 7) for _ in range(count)]
    inputs = [x, *states, *(torch.tensor([value]) for value in parameters)]
    made = custom("NeuronSequence", inputs, [x.shape] * (1 + count), {**ATTRIBUTES, **attributes})
    expected = neuron.sequence(x, *states)
    assert all(map(torch.equal, made, expected))
    assert torch.equal(*(torch.autograd.grad(out[0].sum(), x)[0] for out in (made, expected)))


def test_bad_arguments():
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="NeuronSequence takes 5 inputs"):
        custom("NeuronSequence", [x], [x.shape] * 2, {**ATTRIBUTES, "neuron": "leaky", "states": 1})
    with pytest.raises(ValueError, match="NeuronSequence takes the attributes"):
        custom("NeuronSequence", [x, x[0], x[0], x[0], x[0]], [x.shape] * 2, {"neuron": "leaky"})


@pytest.fixture
def real(monkeypatch):
    """A PopTorch that traces."""
    module = types.ModuleType("poptorch")
    module.isRunningOnIpu = lambda: True
    monkeypatch.setitem(sys.modules, "poptorch", module)
    monkeypatch.setattr(popart, "_POPTORCH_INSTALLED", True)
    return module


def test_a_real_poptorch_is_refused_while_it_traces(real):
    lif = snn.Leaky(beta=0.9)
    for run in (lambda: lif(torch.zeros(2, 3)), lambda: lif.sequence(torch.zeros(4, 2, 3))):
        with pytest.raises(RuntimeError, match="no PopART operators"):
            run()
    real.isRunningOnIpu = lambda: False
    assert lif.sequence(torch.zeros(4, 2, 3))[0].shape == (4, 2, 3)


def test_the_host_runtime_is_not_a_real_poptorch():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif = snn.Leaky(beta=0.9)

        def forward(self, x):
            assert poptorch.isRunningOnIpu()
            return self.lif.sequence(x)[0]

    model = poptorch.inferenceModel(Net())
    assert model(torch.ones(4, 2, 3)).shape == (4, 2, 3)


def same_spikes(made, expected):
    ids, values, counts, dropped = made
    for got, wanted in ((ids, expected.ids), (counts, expected.counts), (dropped, expected.dropped)):
        assert got.is_floating_point()
        assert torch.equal(got, wanted.to(got.dtype))
    assert torch.equal(values, expected.values)


def test_sparse_operators_equal_the_ops():
    """Ids and counts are floats between operators; gradients flow through the values."""
    mem = torch.randn(4, 3, 9, requires_grad=True)
    slots, counts = (4, 3, 5), (4, 3, 2)
    attributes = {"capacity": 5, "rotate": 1, "has_grad_threshold": 1, "grad_threshold": 0.1}
    surrogate_of = {"surrogate": KERNEL.id, "surrogate_a": KERNEL.a, "surrogate_b": KERNEL.b}
    made = custom(
        "SelectSpikes", [mem, torch.tensor([0.4])], [slots, slots, counts, counts], {**attributes, **surrogate_of}
    )
    expected = ops.select_spikes(mem, 0.4, 0.1, 5, spike_grad=surrogate.fast_sigmoid(10), overflow="rotate")
    same_spikes(made, expected)
    weight, bias = torch.randn(6, 9, requires_grad=True), torch.randn(6)
    inputs = [*made[:3], weight, bias]
    (out,) = custom("SparseLinear", inputs, [(4, 3, 6)], {"unit_values": 0, "plan": [2, 4]})
    wanted = ops.sparse_linear(expected, weight, bias)
    assert torch.equal(out, wanted)
    pairs = [torch.autograd.grad(each.square().sum(), (mem, weight), retain_graph=True) for each in (out, wanted)]
    for got, gradient in zip(*pairs):
        assert torch.equal(got, gradient)
        assert got.any()
    (dense,) = custom("SparseToDense", made[:3], [(4, 3, 9)], {"num_neurons": 9})
    assert torch.equal(dense, expected.to_dense())
    again = custom("DenseToSparse", [dense.detach()], [slots, slots, counts, counts], {"capacity": 5, "rotate": 0})
    same_spikes(again, ops.dense_to_sparse(dense.detach(), 5))
    (spk,) = custom("SurrogateSpike", [mem], [mem.shape], surrogate_of)
    assert torch.equal(spk, (mem > 0).float())


@pytest.mark.parametrize("mode", ["max", "average", "sum"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_operators_on_maps_are_those_of_the_host(mode, with_bias):
    """A convolution of maps [2, 5, 6], and pools of the same; a plan is only for tiles."""
    x = torch.rand(4, 3, 60) * (torch.rand(4, 3, 60) < 0.2)
    spikes = ops.dense_to_sparse(x, 20).with_maps((2, 5, 6)).requires_grad_()
    slots = [spikes.ids.float(), spikes.values, spikes.counts.float()]
    weight, bias = torch.randn(3, 2, 2, 3, requires_grad=True), torch.randn(3) if with_bias else None
    geometry = conv_geometry(weight, (5, 6), (1, 2), (1, 0), (1, 1), 1)
    attributes = {"geometry": list(geometry), "plan": [3, 1, 1], "input_gradient": 1}
    inputs = [*slots, weight, *([bias] if with_bias else [])]
    (out,) = custom("SparseConv2d", inputs, [(4, 3, geometry.neurons)], attributes)
    wanted = ops.sparse_conv2d(spikes, weight, bias, stride=(1, 2), padding=(1, 0)).flatten(2)
    assert torch.equal(out, wanted)
    pairs = [torch.autograd.grad(each.square().sum(), (spikes.values, weight)) for each in (out, wanted)]
    for got, gradient in zip(*pairs):
        assert torch.equal(got, gradient)
        assert got.any()
    sizes = pool_geometry((2, 5, 6), (2, 2), (2, 2), (0, 0))
    capacity = popart.pool_slots(sizes, 20)
    attributes = {"geometry": list(sizes), "mode": mode_code(mode), "capacity": capacity}
    made = custom("SparsePool2d", slots, [(4, 3, capacity)] * 2 + [(4, 3, 2), (4, 3, capacity)], attributes)
    expected = ops.sparse_pool2d(spikes, 2, mode=mode)
    pooled = snn.SparseSpikes(made[0].int(), made[1], made[2].int(), sizes.neurons)
    assert torch.equal(pooled.to_dense(), expected.to_dense())
    pairs = [torch.autograd.grad(each.square().sum(), spikes.values) for each in (made[1], expected.values)]
    assert torch.equal(pairs[0][0], pairs[1][0])
    with pytest.raises(ValueError, match="mode must be from 0 to 2"):
        custom("SparsePool2d", slots, [(1,)] * 4, {**attributes, "mode": 3})


@needs_library
@pytest.mark.parametrize("operator", sorted(popart.HOST_OPERATORS))
def test_operators_are_described_alike(operator):
    """Inputs and attributes of what runs on the host are those of the C++ description."""
    name, domain, version = operator
    described = IpuModel().operators()[domain, name, version]
    snake = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
    parameters = inspect.signature(getattr(popart, snake)).parameters.values()
    keys = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    inputs = [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    assert [each["name"] for each in described["inputs"]] == inputs
    assert sorted(described["attributes"]) == sorted(keys)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("SelectSpikes", 1, r"SelectSpikes takes 2 inputs \(mem, threshold\), got 1"),
        ("SparseLinear", 3, "SparseLinear takes 4 inputs"),
        ("DenseToSparse", 1, "DenseToSparse takes the attributes"),
        ("SparseToDense", 3, "SparseToDense takes the attributes"),
        ("SurrogateSpike", 1, "SurrogateSpike takes the attributes"),
        ("SparseConv2d", 3, "SparseConv2d takes 4 inputs"),
        ("SparsePool2d", 3, "SparsePool2d takes the attributes"),
    ],
)
def test_wrong_inputs_of_sparse_operators(name, inputs, message):
    with pytest.raises(ValueError, match=message):
        custom(name, [torch.zeros(1, 1, 1)] * inputs, [(1,)], {"other": 1})


@pytest.mark.parametrize(
    "layer",
    [
        snn.SparseNetwork([8, 5, 3], beta=0.9),
        snn.SparseLeaky(8, 5, beta=0.9),
        snn.SparseLinear(8, 5),
        snn.SparseConvLeaky(2, 5, 2, beta=0.9, input_size=(2, 2)),
        snn.SparseConv2d(2, 5, 2, input_size=(2, 2)),
        snn.SparseNetwork([(2, 2, 2), "3C2", 5], beta=0.9),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_real_poptorch_without_the_library_refuses_event_driven_layers(layer, real, monkeypatch, tmp_path):
    monkeypatch.setenv("SNNIPU_POPART_LIBRARY", str(tmp_path / "libsnnipu_popart.so"))
    with pytest.raises(RuntimeError, match=r"no PopART operators of snnipu in .*libsnnipu_popart.so"):
        layer(torch.zeros(2, 3, 8))
    (tmp_path / "libsnnipu_popart.so").write_text("no library")
    with pytest.raises(RuntimeError, match=r"libsnnipu_popart.so cannot be loaded"):
        layer(torch.zeros(2, 3, 8))


def test_a_library_of_another_version_is_refused(real, monkeypatch, tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    for version, name in (("0.0.0", "old.so"), (snn.__version__, "same.so")):
        source = tmp_path / "version.c"
        source.write_text(f'const char *snnipu_popart_version(void) {{ return "{version}"; }}\n')
        path = tmp_path / name
        subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
        monkeypatch.setenv("SNNIPU_POPART_LIBRARY", str(path))
        if version == snn.__version__:
            assert popart.uses_operator("Leaky", "NeuronSequence")
        else:
            with pytest.raises(RuntimeError, match=r"is of version 0\.0\.0, the package of"):
                popart.uses_operator("Leaky", "NeuronSequence")
