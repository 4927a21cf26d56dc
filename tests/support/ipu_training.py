"""Compare training loops through PopTorch on the IPU model with the same loops on the host."""

from collections import namedtuple

import torch
from torch import nn

from snnipu import poptorch
from snnipu.ipu.model import IpuModel

Run = namedtuple("Run", "net outputs model before")


def on_model():
    return poptorch.Options().useIpuModel(True)


def operators(model):
    """Return the names of the operators that the IPU model ran for a wrapped model."""
    return [entry["operator"] for entry in model.ipuModelReport()]


def trained(options, make, batches, optimizer, **arguments):
    """Train a network by a step for each batch; every parameter must change."""
    net = make()
    before = [weight.detach().clone() for weight in net.parameters()]
    model = poptorch.trainingModel(net, options, optimizer(net.parameters(), **arguments))
    outputs = [model(*batch) for batch in batches]
    for (name, weight), initial in zip(net.named_parameters(), before):
        assert not torch.equal(weight, initial), name
    return Run(net, outputs, model, before)


def check_training(make, batches, optimizer=poptorch.optim.SGD, host=None, close=None, outputs_close=None, **arguments):
    """Train on the model and on the host, compare outputs and weights, and return the run on the model.

    The first output is a count of spikes, which must be equal in the first step. ``host`` makes the host's network if
    it
    differs.
    """
    run = trained(on_model(), make, batches, optimizer, **arguments)
    expected = trained(poptorch.Options(), host or make, batches, optimizer, **arguments)
    assert torch.equal(run.outputs[0][0], expected.outputs[0][0])
    assert expected.outputs[0][0].any()
    for outputs, reference in zip(run.outputs, expected.outputs):
        torch.testing.assert_close(outputs, reference, **(outputs_close or {}))
    weights = zip(run.net.named_parameters(), expected.net.parameters(), expected.before)
    for (name, weight), reference, initial in weights:
        tolerance = close or {"rtol": 1e-5, "atol": 1e-6}
        if weight.dtype == torch.float16:
            # Gradient and weight are rounded, each by a unit in the last place.
            tolerance = {"rtol": 2.0**-10, "atol": 2.0**-10 * float((reference.detach() - initial).abs().max())}
        torch.testing.assert_close(
            weight, reference.to(weight.dtype), **tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
    return run


def classified(counts, labels):
    """Return the outputs of a model: counts, and in training their loss."""
    if labels is None:
        return counts
    return counts, poptorch.identity_loss(nn.functional.cross_entropy(counts, labels), "mean")


def keep_operators(monkeypatch, keeps):
    """Hide the operators of the IPU model for whose names ``keeps`` is false."""
    every = IpuModel.operators

    def kept(model):
        return {key: entry for key, entry in every(model).items() if keeps(key[1])}

    monkeypatch.setattr(IpuModel, "operators", kept)
