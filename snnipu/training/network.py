"""The network of snnTorch's tutorials, Linear-Leaky-Linear-Leaky, and the activity of its layers."""

from typing import List, Tuple

import torch
from torch import nn

from snnipu.neurons import Leaky, MultiStep
from snnipu.training.config import TrainConfig


def build_network(config: TrainConfig, num_features: int, num_classes: int) -> MultiStep:
    """Return Linear, Leaky, Linear, Leaky, to be called as ``spk, mem = network(x, num_steps=T)``.

    The initial weights depend on ``config.seed`` alone. PyTorch's global random state is not changed.

    Args:
        config: the settings.
        num_features: number of inputs.
        num_classes: number of output neurons.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return MultiStep(
            nn.Linear(num_features, config.hidden),
            Leaky(beta=config.beta),
            nn.Linear(config.hidden, num_classes),
            Leaky(beta=config.beta),
        )


@torch.no_grad()
def layer_activity(network: MultiStep, x: torch.Tensor, num_steps: int) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    """Return spikes and membranes, ``[T, B, neurons]``, of every spiking layer for a constant input.

    Args:
        network: modules in order, such as :func:`build_network` returns.
        x: ``[B, features]``.
        num_steps: number of time steps T.
    """
    layers: List[Tuple[torch.Tensor, torch.Tensor]] = []
    modules: List[nn.Module] = []
    for module in network:
        modules.append(module)
        if isinstance(module, Leaky):
            part = MultiStep(*modules)
            layers.append(part(layers[-1][0]) if layers else part(x, num_steps=num_steps))
            modules = []
    return layers
