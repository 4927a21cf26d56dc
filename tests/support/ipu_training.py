"""Training loops through PopTorch: on the IPU model they give what they give on the host."""

from collections import namedtuple

import torch

from snnipu import poptorch

Trained = namedtuple("Trained", "net outputs model")


def on_model():
    return poptorch.Options().useIpuModel(True)


def operators(model):
    """Names of the operators that the IPU model ran for a wrapped model."""
    return [entry["operator"] for entry in model.ipuModelReport()]


def trained(options, make, batches, optimizer, **arguments):
    """Train a network by a step for each batch; every parameter changes."""
    net = make()
    before = [weight.detach().clone() for weight in net.parameters()]
    model = poptorch.trainingModel(net, options, optimizer(net.parameters(), **arguments))
    outputs = [model(*batch) for batch in batches]
    for (name, weight), old in zip(net.named_parameters(), before):
        assert not torch.equal(weight, old), name
    return Trained(net, outputs, model), before


def check_training(make, batches, optimizer=poptorch.optim.SGD, host=None, close=None, outputs_close=None, **arguments):
    """Outputs and weights are the host's; the first of the outputs is a count of spikes. Return the model's."""
    made, _ = trained(on_model(), make, batches, optimizer, **arguments)
    expected, before = trained(poptorch.Options(), host or make, batches, optimizer, **arguments)
    assert torch.equal(made.outputs[0][0], expected.outputs[0][0])
    assert expected.outputs[0][0].any()
    for got, wanted in zip(made.outputs, expected.outputs):
        torch.testing.assert_close(got, wanted, **(outputs_close or {}))
    for (name, weight), other, old in zip(made.net.named_parameters(), expected.net.parameters(), before):
        tolerance = close or {"rtol": 1e-5, "atol": 1e-6}
        if weight.dtype == torch.float16:
            # The gradient, a sum in float32, and the weight are rounded: a unit in the last place of either.
            tolerance = {"rtol": 2.0**-10, "atol": 2.0**-10 * float((other.detach() - old).abs().max())}
        torch.testing.assert_close(
            weight, other.to(weight.dtype), **tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
    return made
