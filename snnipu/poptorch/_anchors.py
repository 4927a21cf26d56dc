"""``Options.anchorTensor``: tensors that a call keeps beside its outputs, by PopART's names.

On a host those are weights (``fc.weight``), in training their gradients (``Gradient___fc.weight``, of a micro-batch,
with the loss scaling in it) and new values (``UpdatedVar___fc.weight``, of a step), inputs (``input``,
``input/1``, ...) and ``loss``.
"""

from typing import Any, Dict, List

import torch

from snnipu.poptorch._errors import InvalidArgument
from snnipu.poptorch._outputs import OutputCollector
from snnipu.poptorch.options import Options

_GRADIENT, _UPDATED = "Gradient___", "UpdatedVar___"


def names(model: torch.nn.Module, inputs: int, training: bool) -> List[str]:
    """What can be anchored."""
    weights = [name for name, _ in model.named_parameters()]
    made = ["input" if number == 0 else f"input/{number}" for number in range(inputs)] + weights
    if training:
        learned = [name for name, weight in model.named_parameters() if weight.requires_grad]
        made += ["loss", *(_GRADIENT + name for name in learned), *(_UPDATED + name for name in learned)]
    return made


class Anchors:
    """The anchored tensors of one call."""

    def __init__(self, options: Options, model: torch.nn.Module, inputs: int, training: bool) -> None:
        self._wanted: Dict[str, str] = {short: entry[0] for short, entry in options.anchored_tensors.items()}
        known = names(model, inputs, training) if self._wanted else []
        for short, name in self._wanted.items():
            if name not in known:
                raise InvalidArgument(
                    f"anchorTensor: {short!r} stands for {name!r}, which a host does not have; it has {known}. Return "
                    "any other tensor from forward instead."
                )
        self._collectors = {
            short: OutputCollector(options, mode, period)
            for short, (_, _, mode, period) in options.anchored_tensors.items()
        }
        self._weights = dict(model.named_parameters()) if self._wanted else {}

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def of_forward(self, place: Any, inputs: List[torch.Tensor], loss: Any) -> None:
        """``place``: device iteration, accumulation step and replica of a micro-batch."""
        for short, name in self._wanted.items():
            if name == "loss":
                self._collectors[short].add(loss, *place)
            elif name == "input" or name.startswith("input/"):
                self._collectors[short].add(inputs[int(name[6:] or 0)], *place)
            elif name in self._weights:
                self._collectors[short].add(self._weights[name], *place)

    def of_backward(self, place: Any, gradients: Dict[Any, torch.Tensor]) -> None:
        for short, name in self._wanted.items():
            if name.startswith(_GRADIENT):
                weight = self._weights[name[len(_GRADIENT) :]]
                gradient = gradients.get(weight)
                self._collectors[short].add(torch.zeros_like(weight) if gradient is None else gradient, *place)

    def of_update(self, place: Any) -> None:
        for short, name in self._wanted.items():
            if name.startswith(_UPDATED):
                self._collectors[short].add(self._weights[name[len(_UPDATED) :]], *place)

    def result(self) -> Dict[str, torch.Tensor]:
        return {short: collector.result() for short, collector in self._collectors.items()}
