"""Models in one line for the tests of PopTorch."""

import torch


def model_of(forward, **members):
    """Return a module with these attributes whose ``forward`` is a function of the module and its inputs."""
    module = type("Model", (torch.nn.Module,), {"forward": forward})()
    for name, member in members.items():
        setattr(module, name, member)
    return module
