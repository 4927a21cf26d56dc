"""What a model does to its weights and buffers that an IPU would refuse or not see.

An IPU runs a compiled graph on its own copy of the weights. Replacing a parameter or buffer object in ``forward``, and
changing weights on the host without ``copyWeightsToDevice``, work on a host; here they raise or warn, so that they do
not come as a surprise on hardware.
"""

from typing import Dict, Iterable, List, Tuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from snnipu.poptorch._errors import Error
from snnipu.poptorch._logging import logger
from snnipu.poptorch.options import Options

# The version of each parameter that compiled models are known to hold.
_versions = WeakTensorKeyDictionary()


def accept_weights(parameters: Iterable[torch.Tensor]) -> None:
    """The weights as they are now are those that compiled models hold."""
    for parameter in parameters:
        _versions[parameter] = parameter._version


class ModelWatch:
    """A model as it was when its first run began."""

    def __init__(self, model: torch.nn.Module, options: Options) -> None:
        self._model = model
        self._options = options
        self._parameters: List[Tuple[str, torch.nn.Parameter]] = list(model.named_parameters())
        self._buffers: Dict[str, torch.Tensor] = dict(self._own_buffers())
        # Batch normalisation changes its statistics without a trace in their version: values are compared.
        shared = options.replication_factor > 1 and options.broadcast_buffers
        self._values = {name: buffer.clone() for name, buffer in self._buffers.items()} if shared else {}
        self._warned = False
        accept_weights(parameter for _, parameter in self._parameters)

    def _own_buffers(self) -> List[Tuple[str, torch.Tensor]]:
        # Neurons of snnTorch and snnipu replace the buffers that hold their state: their users are not to blame.
        return [
            (f"{module_name}.{name}" if module_name else name, buffer)
            for module_name, module in self._model.named_modules()
            if not any(base.__module__.startswith(("snntorch.", "snnipu.")) for base in type(module).__mro__)
            for name, buffer in module._buffers.items()
            if isinstance(buffer, torch.Tensor)
        ]

    def check_forward(self) -> None:
        """After the first run: raise ``poptorch.Error`` for a replaced parameter, warn of buffers."""
        parameters = dict(self._model.named_parameters())
        for name, parameter in self._parameters:
            if parameters.get(name) is not parameter:
                raise Error(
                    f"forward: it replaces parameter {name}, which the optimizer would no longer see. Change its "
                    f"values instead: self.{name}.copy_(new_values)."
                )
        buffers = dict(self._own_buffers())
        for name, buffer in self._buffers.items():
            if buffers.get(name) is not buffer:
                logger.warning(
                    "forward replaces buffer %s, an error on an IPU; change its values instead: self.%s.copy_(values).",
                    name,
                    name,
                )
            elif name in self._values and not torch.equal(buffer, self._values[name]):
                logger.warning(
                    "forward changes buffer %s, which several replicas cannot share on an IPU unless "
                    "Options.broadcastBuffers(False) lets each have its own; a host has one.",
                    name,
                )

    def warn_of_changed_weights(self) -> None:
        """Say so, once, where weights were changed on the host and ``copyWeightsToDevice`` was not called."""
        changed = [name for name, weight in self._parameters if weight._version != _versions.get(weight)]
        if changed and not self._warned:
            self._warned = True
            logger.warning(
                "Weights were changed on the host (%s%s). A host uses them at once; an IPU goes on with its own copy "
                "until copyWeightsToDevice() is called on the poptorch model.",
                ", ".join(changed[:3]),
                ", ..." if len(changed) > 3 else "",
            )
        accept_weights(weight for _, weight in self._parameters)
