"""Models, options and expected errors in one line for the tests of PopTorch."""

import logging

import pytest
import torch

from snnipu import poptorch


def model_of(forward, **members):
    """Return a module with these attributes whose ``forward`` is a function of the module and its inputs."""
    module = type("Model", (torch.nn.Module,), {"forward": forward})()
    for name, member in members.items():
        setattr(module, name, member)
    return module


def squares(outputs):
    """Return a network of a linear layer from 3 inputs whose loss is the sum of squares."""
    layer = torch.nn.Linear(3, outputs)
    return model_of(lambda self, x: poptorch.identity_loss(self.fc(x).square().sum(), "sum"), fc=layer)


def options(iterations=1, replicas=1, accumulation=1, **settings):
    """Return options of these numbers, after a call of each setter in ``settings``."""
    opts = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    for name, value in settings.items():
        getattr(opts, name)(value)
    return opts


def training(model, name, opts=None, **settings):
    """Return the wrapped model, and its optimizer of ``poptorch.optim``."""
    optimizer = getattr(poptorch.optim, name)(model.parameters(), **settings)
    return poptorch.trainingModel(model, opts, optimizer), optimizer


def refused(message):
    """Expect PopTorch's error with a message that matches."""
    return pytest.raises(poptorch.Error, match=message)


def warnings_in(caplog):
    return caplog.at_level(logging.WARNING, "poptorch::python")


def evaluated(text, **names):
    """Return the value of an expression of PopTorch's names."""
    return eval(text, {**vars(poptorch), "__name__": __name__, "poptorch": poptorch, "torch": torch, **names})
