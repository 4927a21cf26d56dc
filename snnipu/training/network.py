"""The network of snnTorch's tutorials, Linear-Leaky-Linear-Leaky, and the activity of its layers."""

from typing import Dict, List, Tuple

import snntorch
import torch
from torch import nn

from snnipu.neurons import Leaky, MultiStep
from snnipu.training.config import TrainConfig


class StepLoop(nn.Sequential):
    """A network that runs step by step, like snnTorch: one Python pass over all layers for each time step.

    The reference for speed and accuracy: results and state_dict keys are those of ``MultiStep``.

    Args:
        args: the modules, as for ``nn.Sequential``.
    """

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, num_steps: int
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Run the network on a constant input.

        Args:
            x: ``[B, features]``.
            num_steps: number of time steps T.

        Returns:
            Spikes and membranes of the last layer, ``[T, B, classes]`` each.
        """
        state: Dict[int, torch.Tensor] = {}
        spk_steps: List[torch.Tensor] = []
        mem_steps: List[torch.Tensor] = []
        for _ in range(num_steps):
            out = x
            for index, module in enumerate(self):
                if isinstance(module, snntorch.Leaky):
                    out, state[index] = module(out, state.get(index, torch.zeros_like(out)))
                else:
                    out = module(out)
            spk_steps.append(out)
            mem_steps.append(state[len(self) - 1])
        return torch.stack(spk_steps), torch.stack(mem_steps)


def build_network(config: TrainConfig, num_features: int, num_classes: int) -> nn.Sequential:
    """Return Linear, Leaky, Linear, Leaky, to be called as ``spk, mem = network(x, num_steps=T)``.

    The initial weights depend on ``config.seed`` alone and are the same for every engine. PyTorch's global random state
    is not changed.

    Args:
        config: the settings.
        num_features: number of inputs.
        num_classes: number of output neurons.
    """
    leaky = Leaky if config.engine == "snnipu" else snntorch.Leaky
    container = MultiStep if config.engine == "snnipu" else StepLoop
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return container(
            nn.Linear(num_features, config.hidden),
            leaky(beta=config.beta),
            nn.Linear(config.hidden, num_classes),
            leaky(beta=config.beta),
        )


@torch.no_grad()
def layer_activity(network: nn.Sequential, x: torch.Tensor, num_steps: int) -> List[Tuple[torch.Tensor, torch.Tensor]]:
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
        if isinstance(module, snntorch.Leaky):
            part = MultiStep(*modules)
            spk, mem = part(layers[-1][0]) if layers else part(x, num_steps=num_steps)
            layers.append((spk, mem))
            modules = []
    return layers
