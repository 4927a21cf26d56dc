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


def names(model: torch.nn.Module, inputs: int, training: bool) -> List[str]:
    """Return the names of the tensors that can be anchored; ``inputs`` is the number of input tensors."""
    weights = [name for name, _ in model.named_parameters()]
    tensors = ["input" if number == 0 else f"input/{number}" for number in range(inputs)] + weights
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

    def add_forward(self, place: Any, inputs: List[torch.Tensor], loss: Any) -> None:
        """Keep a micro-batch's tensors; ``place`` is its device iteration, accumulation step and replica."""
        for short, name in self._long_names.items():
            if name == "loss":
                self._collectors[short].add(loss, *place)
            elif name == "input" or name.startswith("input/"):
                self._collectors[short].add(inputs[int(name[6:] or 0)], *place)
            elif name in self._weights:
                self._collectors[short].add(self._weights[name], *place)

    def add_gradients(self, place: Any, gradients: Dict[Any, torch.Tensor]) -> None:
        for short, name in self._long_names.items():
            if name.startswith(_GRADIENT):
                weight = self._weights[name[len(_GRADIENT) :]]
                gradient = gradients.get(weight)
                self._collectors[short].add(torch.zeros_like(weight) if gradient is None else gradient, *place)

    def add_updates(self, place: Any) -> None:
        for short, name in self._long_names.items():
            if name.startswith(_UPDATED):
                self._collectors[short].add(self._weights[name[len(_UPDATED) :]], *place)

    def result(self) -> Dict[str, torch.Tensor]:
        return {short: collector.result() for short, collector in self._collectors.items()}
