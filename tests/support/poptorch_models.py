"""Models of a line for the tests of PopTorch."""

import torch


def model_of(forward, **members):
    """A module with these attributes whose ``forward`` is a function of it and of its inputs."""
    made = type("Model", (torch.nn.Module,), {"forward": forward})()
    for name, member in members.items():
        setattr(made, name, member)
    return made
