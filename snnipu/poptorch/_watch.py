"""Checks of weights and buffers: errors and warnings for changes that an IPU would refuse or not notice.

An IPU runs a compiled graph on its own copy of the weights. ``forward`` must not replace a parameter or buffer object,
and weights changed on the host need ``copyWeightsToDevice``. The host would run either way, so these checks raise or
warn.
"""

from typing import Dict, Iterable, List, Tuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from snnipu.poptorch._attributes import replaces_state_buffers
from snnipu.poptorch._errors import Error
from snnipu.poptorch._logging import logger
from snnipu.poptorch.options import Options

# The version counter of each parameter when compiled models last read it.
_versions = WeakTensorKeyDictionary()


def accept_weights(parameters: Iterable[torch.Tensor]) -> None:
    """Record that compiled models hold the present weights."""
    for parameter in parameters:
        _versions[parameter] = parameter._version


class ModelWatch:
    """The parameters and buffers of a model when its first run began."""

    def __init__(self, model: torch.nn.Module, options: Options) -> None:
        self._model = model
        self._options = options
        self._parameters: List[Tuple[str, torch.nn.Parameter]] = list(model.named_parameters())
        self._buffers: Dict[str, torch.Tensor] = dict(self._checked_buffers())
        # Batch normalisation does not count up the version of its statistics, so values are compared.
        replicated = options.replication_factor > 1
        self._values = {name: buffer.clone() for name, buffer in self._buffers.items()} if replicated else {}
        self._warned = False
        accept_weights(parameter for _, parameter in self._parameters)

    def _checked_buffers(self) -> List[Tuple[str, torch.Tensor]]:
        # Neurons of snnTorch and snnipu are left out: each of their steps replaces the buffers that hold their state.
        return [
            (f"{module_name}.{name}" if module_name else name, buffer)
            for module_name, module in self._model.named_modules()
            if not replaces_state_buffers(module)
            for name, buffer in module._buffers.items()
            if isinstance(buffer, torch.Tensor)
        ]

    def check_forward(self) -> Dict[str, torch.Tensor]:
        """Check the first run of ``forward``; return the buffers that it changed, with their previous values.

        The result is empty for one replica. Raises ``poptorch.Error`` for a parameter or buffer that was replaced or
        removed, and for a changed buffer that several replicas share.
        """
        for kind, before, after in (
            ("Parameter", dict(self._parameters), dict(self._model.named_parameters())),
            ("Buffer", self._buffers, dict(self._checked_buffers())),
        ):
            for name, tensor in before.items():
                if name not in after:
                    raise Error(f"{kind} {name} is removed from the model when calling the forward method.")
                if after[name] is not tensor:
                    raise Error(
                        f"{kind} {name} is reassigned within the model when calling the forward method. This is not "
                        f"supported. Consider using self.{name}.copy_(src) to copy data from a source tensor, where "
                        "src is the name of the source tensor."
                    )
        changed = {
            name: value for name, value in self._values.items() if not torch.equal(self._buffers[name].detach(), value)
        }
        if changed and self._options.broadcast_buffers:
            raise Error(
                "PopTorch does not support broadcasting buffers. If your model is able to tolerate buffers becoming "
                "out of sync between replicas, you can disable buffer broadcasting using "
                f"poptorch.Options.broadcastBuffers(False). forward changes {', '.join(changed)}."
            )
        return changed

    def warn_of_changed_weights(self) -> None:
        """Warn once if weights were changed on the host and ``copyWeightsToDevice`` was not called."""
        changed = [name for name, weight in self._parameters if weight._version != _versions.get(weight)]
        if changed and not self._warned:
            self._warned = True
            logger.warning(
                "Weights were changed on the host (%s%s). The host uses them in the next call; an IPU uses its copy "
                "until copyWeightsToDevice() is called on the poptorch model.",
                ", ".join(changed[:3]),
                ", ..." if len(changed) > 3 else "",
            )
        accept_weights(weight for _, weight in self._parameters)
