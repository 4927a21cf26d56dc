"""``snnipu.Online``: a network that learns chunk by chunk, in memory that does not grow with time."""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn

from snnipu.neurons.fused import FusedNeuron
from snnipu.neurons.multistep import MultiStep, _in_turn
from snnipu.neurons.zoo import DeltaLeaky
from snnipu.online.layer import Layer, Memory
from snnipu.online.rules import RULES

# Dimensions of a step by the type of the first module that tells.
_DIMS = (
    (2, (nn.Linear,)),
    (3, (nn.Conv1d, nn.ConvTranspose1d, nn.AvgPool1d, nn.MaxPool1d)),
    (4, (nn.Conv2d, nn.ConvTranspose2d, nn.AvgPool2d, nn.MaxPool2d, nn.BatchNorm2d)),
    (5, (nn.Conv3d, nn.ConvTranspose3d, nn.AvgPool3d, nn.MaxPool3d, nn.BatchNorm3d)),
)


class Online(nn.Module):
    """A network over time that learns online."""

    def __init__(self, net: nn.Module, rule: str = "ottt", **options: Any) -> None:
        super().__init__()
        if rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))}, got {rule!r}")
        if not isinstance(net, (MultiStep, nn.Sequential)):
            raise TypeError(f"net must be a MultiStep or an nn.Sequential, got {type(net).__name__}")
        self.rule = rule
        self.net = net
        self.chunks = 0
        self._memory: Optional[List[Optional[Memory]]] = None
        self._seen: Optional[Tuple[Any, ...]] = None
        self._layers()

    def _layers(self) -> List[Layer]:
        layers: List[Layer] = []
        between: List[Tuple[str, nn.Module]] = []
        for name, module in _in_turn(self.net):
            if isinstance(module, FusedNeuron):
                layers.append(Layer(between, (name, module), RULES[self.rule]))
                between = []
            else:
                between.append((name, module))
        if between or not layers:
            layers.append(Layer(between, None, RULES[self.rule]))
        for layer in layers:
            layer.check()
        return layers

    def forward(self, x: torch.Tensor, *, single: Optional[bool] = None) -> Any:
        layers = self._layers()
        if single is None:
            single = x.dim() == _step_dims(self.net)
        if single:
            x = x.unsqueeze(0)
        self._check(x)
        memory = self._memory or [None] * len(layers)
        self.chunks += 1
        after: List[Optional[Memory]] = []
        out: List[torch.Tensor] = []
        for layer, before in zip(layers, memory):
            out, carried = layer(x, before, self)
            x = out[0]
            after.append(carried)
        self._memory = after
        result = _as_returned(layers[-1], out)
        return _first(result) if single else result

    def _check(self, x: torch.Tensor) -> None:
        seen = (x.shape[1:], x.device, x.dtype)
        if self._seen is not None and self._seen != seen:
            raise ValueError(
                f"a stream goes on with steps of shape {tuple(self._seen[0])}, {self._seen[2]} on {self._seen[1]}; got "
                f"{tuple(x.shape[1:])}, {x.dtype} on {x.device}: call reset() where another stream begins"
            )
        self._seen = seen

    def reset(self) -> None:
        """Begin a new sequence: the next call starts from the neurons' first states, without traces."""
        self._memory, self._seen = None, None
        self.chunks = 0


def _step_dims(net: nn.Module) -> Optional[int]:
    for _, module in _in_turn(net):
        for dims, kinds in _DIMS:
            if isinstance(module, kinds):
                return dims
        if isinstance(module, (nn.Flatten, nn.Unflatten)):
            return None
    return None


def _as_returned(layer: Layer, out: List[torch.Tensor]) -> Any:
    """As the last module's ``sequence`` returns it."""
    if layer.dynamics is None:
        return out[0]
    neuron = layer.dynamics.neuron
    if not neuron._returns_states():
        return out[0]
    states = [state for name, state in zip(neuron._states(), out[1:]) if name != "spk"]
    return (out[0], tuple(states)) if isinstance(neuron, DeltaLeaky) else (out[0], *states)


def _first(made: Any) -> Any:
    return tuple(_first(part) for part in made) if isinstance(made, tuple) else made[0]
