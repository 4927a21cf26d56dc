"""Custom operators of ``ai.snnipu`` on the IPU model, where a model's options or the environment ask for it."""

import contextlib
import os
from typing import Any, Dict, Iterator, List, Optional

import torch

from snnipu.backends import popart
from snnipu.ipu.model import IpuModel
from snnipu.poptorch import _tracing
from snnipu.poptorch._errors import InvalidArgument
from snnipu.poptorch.options import Options


def wants_ipu_model(options: Options) -> bool:
    """Whether ``Options.useIpuModel(True)`` or ``POPTORCH_IPU_MODEL=1`` asks for it, as in PopTorch.

    Raises ``poptorch.Error`` for another value of the variable than 0, 1 or nothing.
    """
    text = os.environ.get("POPTORCH_IPU_MODEL", "")
    if text not in ("", "0", "1"):
        raise InvalidArgument(f"POPTORCH_IPU_MODEL must be 0 or 1, got {text!r}")
    return text == "1" or bool(options.exists("use_model") and options.use_model)


class IpuModelRunner:
    """Runs a wrapped model's operators on an IPU model of its own."""

    def __init__(self) -> None:
        try:
            self.model = IpuModel()
        except ValueError as error:
            raise InvalidArgument(str(error)) from None

    def _run(
        self, name: str, domain: str, version: int, inputs: List[torch.Tensor], attributes: Dict[str, Any]
    ) -> Optional[List[torch.Tensor]]:
        if domain != popart.DOMAIN:
            return None  # a user's own operator, with a host implementation
        return self.model.apply(name, inputs, attributes, domain, version)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The context in which a wrapper runs ``forward``."""
        before = _tracing.set_execution_hook(self._run)
        try:
            with popart.running_on(self.model):
                yield
        finally:
            _tracing.set_execution_hook(before)
