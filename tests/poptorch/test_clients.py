"""Undocumented names of PopTorch and PopART that public programs use, for instance optimum-graphcore."""

import torch
from support.poptorch_models import refused
from torch import nn

from snnipu import popart, poptorch


def test_executable_is_none_until_compiled():
    model = poptorch.inferenceModel(nn.Linear(4, 2))
    assert model._executable is None
    model(torch.rand(2, 4))
    assert model._executable
    model.destroy()
    assert model._executable is None


def test_wrapped_models():
    from snnipu.poptorch._impl import rewrapModelIfNecessary, unwrapIfWrapped, unwrapModelIfNecessary
    from snnipu.poptorch._poplar_executor import PoplarExecutor

    assert PoplarExecutor is poptorch.PoplarExecutor
    model = nn.Linear(4, 2)
    poptorch.trainingModel(model)
    classes = {type(weight) for weight in model.parameters()}
    unwrapModelIfNecessary(model)
    rewrapModelIfNecessary(model)
    assert {type(weight) for weight in model.parameters()} == classes
    assert type(model) is not nn.Linear
    assert unwrapIfWrapped(model) is model
    assert type(model) is nn.Linear
    assert unwrapIfWrapped(model) is model


def test_enumerations_of_popart_are_options():
    options = poptorch.Options()
    assert int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized) == 3
    assert int(popart.SubgraphCopyingStrategy.JustInTime) == 1
    options._Popart.set("autoRecomputation", int(popart.RecomputationType.Pipeline))
    options.enableSyntheticData(int(popart.SyntheticDataMode.RandomNormal))
    assert options._Popart.options["autoRecomputation"] == 3
    assert options._Popart.options["syntheticDataMode"] == 2
    with refused(r"popart\.Session is not available"):
        _ = popart.Session


class Named(nn.Module):
    def forward(self, x):
        torch.ops.poptorch.push_name_scope("named")
        half = torch.ops.poptorch.internal_cast(3 * x, "FLOAT16")
        torch.ops.poptorch.pop_name_scope()
        return half, poptorch.identity_loss(torch.ops.poptorch.internal_cast(half, "FLOAT"), "sum")


def test_operators_of_torch_ops():
    x = torch.rand(4, requires_grad=True)
    half, loss = Named()(x)
    assert half.dtype == torch.float16
    assert torch.equal(torch.autograd.grad(loss, x)[0], torch.full((4,), 3.0))
    assert poptorch.inferenceModel(Named())(x.detach())[0].dtype == torch.float16
    with refused(r"dtype must be one of .*'FLOAT16'.*, got 'BFLOAT16'"):
        torch.ops.poptorch.internal_cast(x, "BFLOAT16")
