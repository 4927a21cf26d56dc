"""The interface of the PopART operators on machines without PopART, and the error under a real PopTorch trace."""

import contextlib
import inspect
import math
import re
import shutil
import subprocess
import sys
import types

import pytest
import torch
from oracle import assert_all_equal
from support.operators import needs_library
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn
from snnipu import ops, poptorch, surrogate
from snnipu.backends import popart
from snnipu.ipu.model import IpuModel
from snnipu.planning.targets import TARGETS

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
    outputs = custom("NeuronSequence", inputs, [x.shape] * (1 + count), {**ATTRIBUTES, **attributes})
    expected = neuron.sequence(x, *states)
    assert all(map(torch.equal, outputs, expected))
    assert torch.equal(*(torch.autograd.grad(out[0].sum(), x)[0] for out in (outputs, expected)))


@each_row(r"""
custom("NeuronSequence", [x], [x.shape] * 2, {**ATTRIBUTES, "neuron": "leaky", "states": 1})
    | ValueError: NeuronSequence takes 5 inputs
custom("NeuronSequence", [x, x[0], x[0], x[0], x[0]], [x.shape] * 2, {"neuron": "leaky"})
    | ValueError: NeuronSequence takes the attributes
custom("SparsePool2d", [x] * 3, [(1,)] * 4, {"geometry": [], "mode": 3, "capacity": 1})
    | ValueError: mode must be from 0 to 2
custom("SelectSpikes", [x], [(1,)], {"other": 1})
    | ValueError: SelectSpikes takes 2 inputs \(mem, threshold\), got 1
custom("SparseConv2d", [x] * 3, [(1,)], {"other": 1}) | ValueError: SparseConv2d takes 4 inputs
custom("SparsePool2d", [x] * 3, [(1,)], {"other": 1}) | ValueError: SparsePool2d takes the attributes
""")
def test_bad_arguments(row):
    assert_refused(row, globals(), x=torch.zeros(3, 2))


@pytest.fixture
def tracing_poptorch(monkeypatch):
    """Install a stand-in for PopTorch that is tracing."""
    module = types.ModuleType("poptorch")
    module.isRunningOnIpu = lambda: True
    monkeypatch.setitem(sys.modules, "poptorch", module)
    monkeypatch.setattr(popart, "_POPTORCH_INSTALLED", True)
    return module


def test_a_real_poptorch_is_refused_while_it_traces(tracing_poptorch):
    lif = snn.Leaky(beta=0.9)
    for run in (lambda: lif(torch.zeros(2, 3)), lambda: lif.sequence(torch.zeros(4, 2, 3))):
        with pytest.raises(RuntimeError, match="no PopART operators"):
            run()
    tracing_poptorch.isRunningOnIpu = lambda: False
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


class OnHost:
    """An IPU model that offers the operators that run on the host."""

    def operators(self):
        return {(domain, name, version) for name, domain, version in popart.HOST_OPERATORS}

    def machine(self):
        return TARGETS["mk2"], 1


def operator_results(mem, matrix, filters, bias, mode):
    """Return results of all sparse operators for membranes ``[T, B, 60]``, which are maps [2, 5, 6]."""
    spike_grad = surrogate.fast_sigmoid(10)
    spikes = ops.select_spikes(mem, 0.4, 0.1, 20, spike_grad=spike_grad, overflow="rotate")
    maps, dense = spikes.with_maps((2, 5, 6)), spikes.to_dense()
    all_spikes = [spikes, ops.dense_to_sparse(dense.detach(), 5), ops.sparse_pool2d(maps, 2, mode=mode)]
    return [
        *(part for each in all_spikes for part in (each.counts, each.dropped, each.to_dense()) if part is not None),
        ops.sparse_linear(spikes, matrix, bias),
        ops.sparse_conv2d(maps, filters, bias, stride=(1, 2), padding=(1, 0)).flatten(2),
        spike_grad(mem),
    ]


@pytest.mark.parametrize("mode", ["max", "average", "sum"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_sparse_operators_equal_the_ops(mode, with_bias):
    """Ids and counts between operators are floats, and gradients flow through the values."""
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((4, 3, 60), (3, 60), (3, 2, 2, 3))]
    arguments = [*leaves, torch.randn(3) if with_bias else None, mode]
    results = []
    for run in (popart.running_on(OnHost(), poptorch.custom_op), contextlib.nullcontext()):
        with run:
            actual = operator_results(*arguments)
        loss = sum(part.square().sum() for part in actual if part.requires_grad)
        results.append([*(part.float() for part in actual), *torch.autograd.grad(loss, leaves)])
    assert_all_equal(results)
    assert all(part.any() for part in results[0])


@needs_library
@pytest.mark.parametrize("operator", sorted(popart.HOST_OPERATORS))
def test_operators_are_described_alike(operator):
    """The host's operators have the inputs and attributes of the C++ description."""
    name, domain, version = operator
    described = IpuModel().operators()[domain, name, version]
    snake = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
    parameters = inspect.signature(getattr(popart, snake)).parameters.values()
    keys = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    inputs = [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    assert [each["name"] for each in described["inputs"]] == inputs
    assert sorted(described["attributes"]) == sorted(keys)


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
def test_a_real_poptorch_without_the_library_refuses_event_driven_layers(
    layer, tracing_poptorch, monkeypatch, tmp_path
):
    monkeypatch.setenv("SNNIPU_POPART_LIBRARY", str(tmp_path / "libsnnipu_popart.so"))
    with pytest.raises(RuntimeError, match=r"no PopART operators of snnipu in .*libsnnipu_popart.so"):
        layer(torch.zeros(2, 3, 8))
    (tmp_path / "libsnnipu_popart.so").write_text("no library")
    with pytest.raises(RuntimeError, match=r"libsnnipu_popart.so cannot be loaded"):
        layer(torch.zeros(2, 3, 8))


def test_a_library_of_another_version_is_refused(tracing_poptorch, monkeypatch, tmp_path):
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
