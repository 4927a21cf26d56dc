"""The PopART operator's interface on machines without PopART, and the refusal where a real PopTorch traces."""

import math
import sys
import types

import pytest
import torch
from torch import nn

import snnipu as snn
from snnipu import ops, poptorch, surrogate
from snnipu.backends import popart

KERNEL = surrogate.fast_sigmoid(10).kernel
ATTRIBUTES = {
    "reset": 1,
    "reset_delay": 1,
    "surrogate": KERNEL.id,
    "surrogate_a": KERNEL.a,
    "surrogate_b": -math.inf,
}


def call(inputs, attributes):
    example = [torch.empty_like(inputs[0])] * 2
    return poptorch.custom_op(inputs, "LifSequence", "ai.snnipu", 1, example, attributes)


def test_custom_op_equals_the_op():
    torch.manual_seed(0)
    x, mem0 = torch.randn(5, 2, 7, requires_grad=True), torch.randn(2, 7)
    beta, threshold, graded = torch.rand(7), torch.tensor(0.8), torch.tensor(1.0)
    spk, mem = call([x, mem0, beta, threshold, graded], ATTRIBUTES)
    expected = ops.lif_sequence(
        x, mem0, beta=beta, threshold=threshold, reset_mechanism="zero", spike_grad=surrogate.fast_sigmoid(10)
    )
    assert torch.equal(spk, expected[0])
    assert torch.equal(mem, expected[1])
    gradients = [torch.autograd.grad(out.sum(), x, retain_graph=True)[0] for out in (spk, expected[0])]
    assert torch.equal(*gradients)


def test_bad_arguments():
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="LifSequence takes 5 inputs"):
        call([x], ATTRIBUTES)
    with pytest.raises(ValueError, match="LifSequence takes the attributes"):
        call([x, x[0], x[0], x[0], x[0]], {"reset": 1})


def test_a_real_poptorch_is_refused_while_it_traces(monkeypatch):
    tracing = True
    real = types.ModuleType("poptorch")
    real.isRunningOnIpu = lambda: tracing
    monkeypatch.setitem(sys.modules, "poptorch", real)
    monkeypatch.setattr(popart, "_POPTORCH_INSTALLED", True)
    lif = snn.Leaky(beta=0.9)
    for run in (lambda: lif(torch.zeros(2, 3)), lambda: lif.sequence(torch.zeros(4, 2, 3))):
        with pytest.raises(RuntimeError, match="no PopART operators"):
            run()
    tracing = False
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
