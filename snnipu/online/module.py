"""``snnipu.Online``: a network that learns chunk by chunk, in memory that does not grow with time."""

from typing import Any, List, Optional, Tuple

import torch
from torch import nn

from snnipu.neurons.fused import FusedNeuron
from snnipu.neurons.multistep import MultiStep, _in_turn
from snnipu.neurons.zoo import DeltaLeaky
from snnipu.online.layer import Layer, Memory, Signals, Work
from snnipu.online.rules import RULES
from snnipu.online.traces import filter_of

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
        self.rule = RULES[rule].with_options(options)
        self.net = net
        self.chunks = 0
        self._memory: Optional[List[Memory]] = None
        self._seen: Optional[Tuple[Any, ...]] = None
        # Of e-prop's feedback and DECOLLE's readouts, one for each layer.
        self.matrices = nn.ParameterList()
        # What DECOLLE's local readouts made of the last chunk, [T, B, readouts] each.
        self.readouts: List[torch.Tensor] = []
        self._make_matrices()

    def _make_matrices(self) -> None:
        rule, layers = self.rule, self._layers()
        sizes = [layer.size for layer in layers]
        outputs, count = rule.options.get("readouts"), len(layers)
        if rule.name == "eprop":
            outputs, count = sizes[-1], (0 if rule.options["feedback"] == "symmetric" else count - 1)
        elif rule.name != "decolle":
            return
        for layer, size in zip(layers[:count], sizes):
            if size is None or outputs is None:
                raise TypeError(
                    f'rule "{rule.name}" must know how many neurons module {layer.name} has: a linear layer in front of '
                    "it tells"
                )
            learns = rule.options.get("feedback") == "adaptive"
            like = next(self.net.parameters())
            matrix = nn.Linear(size, outputs, bias=False, device=like.device, dtype=like.dtype).weight
            self.matrices.append(matrix.requires_grad_(learns))

    def _layers(self) -> List[Layer]:
        rule = self.rule
        layers: List[Layer] = []
        between: List[Tuple[str, nn.Module]] = []
        for name, module in _in_turn(self.net):
            if isinstance(module, FusedNeuron):
                layers.append(Layer(between, (name, module), rule, is_first=not layers))
                between = []
            else:
                between.append((name, module))
        if between or not layers:
            layers.append(Layer(between, None, rule, is_first=not layers))
        for layer in layers:
            layer.check()
        layers[-1].is_readout = True
        if rule.name == "eprop":
            for layer, matrix in zip(layers, self.matrices):
                layer.feedback = matrix
        return layers

    def forward(self, x: torch.Tensor, *, single: Optional[bool] = None) -> Any:
        layers = self._layers()
        if single is None:
            single = x.dim() == _step_dims(self.net)
        if single:
            x = x.unsqueeze(0)
        self._check(x)
        self.chunks += 1
        signals = Signals()
        works: List[Work] = []
        self.readouts = []
        is_local = self.rule.name == "decolle"
        for number, layer in enumerate(layers):
            work = layer.run(x, None if self._memory is None else self._memory[number], self, signals)
            works.append(work)
            x = work.out[0]
            if is_local:
                self.readouts.append(nn.functional.linear(x.flatten(2), self.matrices[number]))
                x = x.detach()
        self._memory = self._carried(layers, works)
        result = _as_returned(layers[-1], works[-1].out)
        return _first(result) if single else result

    def _carried(self, layers: List[Layer], works: List[Work]) -> List[Memory]:
        by = None
        last, chunk = layers[-1].dynamics, works[-1].chunk
        if self.rule.options.get("low_pass") and last is not None and chunk is not None:
            if not last.is_uniform(chunk.values):
                raise ValueError(
                    f'module {layers[-1].name}: rule "eprop" passes errors through a leaky readout, whose decay is the '
                    "same for all neurons and whose membrane is not reset to zero; take low_pass=False, or "
                    'reset_mechanism="none"'
                )
            with torch.no_grad():
                by = filter_of(last, chunk)
        return [layer.remember(work, None if layer.is_readout else by) for layer, work in zip(layers, works)]

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
