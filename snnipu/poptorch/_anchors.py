"""``Options.anchorTensor``: tensors that a call keeps in addition to its outputs, by PopART's names.

On the host they are the weights (``fc.weight``) and inputs (``input``, ``input/1``, ...). Training adds ``loss``, the
gradient of each micro-batch with the loss scaling (``Gradient___fc.weight``) and the weights after each optimizer step
(``UpdatedVar___fc.weight``).
"""

from typing import Any, Dict, List

import torch

from snnipu.poptorch._errors import InvalidArgument
from snnipu.poptorch._outputs import OutputCollector
from snnipu.poptorch.options import Options

_GRADIENT, _UPDATED = "Gradient___", "UpdatedVar___"


def _input_names(inputs: int) -> List[str]:
    return ["input" if number == 0 else f"input/{number}" for number in range(inputs)]


def names(model: torch.nn.Module, inputs: int, training: bool) -> List[str]:
    """Return the names of the tensors that can be anchored; ``inputs`` is the number of input tensors."""
    tensors = [*_input_names(inputs), *(name for name, _ in model.named_parameters())]
    if training:
        learned = [name for name, weight in model.named_parameters() if weight.requires_grad]
        tensors += ["loss", *(_GRADIENT + name for name in learned), *(_UPDATED + name for name in learned)]
    return tensors


class Anchors:
    """The anchored tensors of one call."""

    def __init__(self, options: Options, model: torch.nn.Module, inputs: int, training: bool) -> None:
        self._long_names: Dict[str, str] = {short: entry[0] for short, entry in options.anchored_tensors.items()}
        known = names(model, inputs, training) if self._long_names else []
        for short, name in self._long_names.items():
            if name not in known:
                raise InvalidArgument(
                    f"anchorTensor: {short!r} stands for {name!r}, which a host does not have; it has {known}. Return "
                    "any other tensor from forward instead."
                )
        self._collectors = {
            short: OutputCollector(options, mode, period)
            for short, (_, _, mode, period) in options.anchored_tensors.items()
        }
        self._weights = dict(model.named_parameters()) if self._long_names else {}

    def _add(self, place: Any, tensors: Dict[str, Any]) -> None:
        for short, name in self._long_names.items():
            if name in tensors:
                self._collectors[short].add(tensors[name], *place)

    def add_forward(self, place: Any, inputs: List[torch.Tensor], loss: Any) -> None:
        """Keep a micro-batch's tensors; ``place`` is its device iteration, accumulation step and replica."""
        self._add(place, {**dict(zip(_input_names(len(inputs)), inputs)), **self._weights, "loss": loss})

    def add_gradients(self, place: Any, gradients: Dict[Any, torch.Tensor]) -> None:
        weights = self._weights.items()
        self._add(
            place, {_GRADIENT + name: gradients.get(weight, torch.zeros_like(weight)) for name, weight in weights}
        )

    def add_updates(self, place: Any) -> None:
        self._add(place, {_UPDATED + name: weight for name, weight in self._weights.items()})

    def result(self) -> Dict[str, torch.Tensor]:
        return {short: collector.result() for short, collector in self._collectors.items()}
