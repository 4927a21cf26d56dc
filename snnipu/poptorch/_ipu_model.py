"""Custom operators of ``ai.snnipu`` on the IPU model, if a model's options or the environment request it."""

import contextlib
import os
from typing import Any, Dict, Iterator, List, Optional

import snntorch
import torch

from snnipu.backends import popart
from snnipu.ipu.model import IpuModel
from snnipu.poptorch import _tracing
from snnipu.poptorch._errors import InvalidArgument
from snnipu.poptorch.custom_ops import custom_op
from snnipu.poptorch.options import Options


def uses_ipu_model(options: Options) -> bool:
    """Return True if ``Options.useIpuModel(True)`` or ``POPTORCH_IPU_MODEL=1`` is set, as in PopTorch.

    Raises ``poptorch.Error`` if the variable is neither empty, 0 nor 1.
    """
    text = os.environ.get("POPTORCH_IPU_MODEL", "")
    if text not in ("", "0", "1"):
        raise InvalidArgument(f"POPTORCH_IPU_MODEL must be 0 or 1, got {text!r}")
    return text == "1" or bool(options.exists("use_model") and options.use_model)


def _is_neuron(module: torch.nn.Module) -> bool:
    return isinstance(module, snntorch.SpikingNeuron) or type(module).__module__.startswith("snntorch._neurons.")


class IpuModelRunner:
    """A runner of one wrapped model's operators, with its own IPU model."""

    def __init__(self, model: Optional[torch.nn.Module] = None) -> None:
        """Create the IPU model; errors name the modules of ``model``."""
        self._names = {} if model is None else {id(module): name for name, module in model.named_modules()}
        self._applied = 0
        try:
            self.model = IpuModel()
        except ValueError as error:
            raise InvalidArgument(str(error)) from None

    def _run(
        self, name: str, domain: str, version: int, inputs: List[torch.Tensor], attributes: Dict[str, Any]
    ) -> Optional[List[torch.Tensor]]:
        if domain != popart.DOMAIN:
            return None  # a user's custom operator, which has a host implementation
        self._applied += 1
        return self.model.apply(name, inputs, attributes, domain, version)

    @contextlib.contextmanager
    def _watching_neurons(self) -> Iterator[None]:
        """Raise RuntimeError for a neuron that ran on the host, because it called no operator of the IPU model."""
        before: List[int] = []

        def enter(module: torch.nn.Module, args: Any) -> None:
            if _is_neuron(module):
                before.append(self._applied)

        def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
            if _is_neuron(module) and before.pop() == self._applied:
                kind = type(module)
                raise RuntimeError(
                    f"{self._names.get(id(module)) or 'the model'}, a {kind.__module__.split('.')[0]}.{kind.__name__}, "
                    "cannot run on the IPU model: it called no PopART operator of snnipu, and on an IPU the "
                    "gradient of its spikes would be lost silently. Take snnipu.Leaky with a surrogate of "
                    "snnipu.surrogate, or run without Options.useIpuModel and POPTORCH_IPU_MODEL, on the host."
                )

        # With this mark, Leaky and MultiStep still run whole sequences, although modules have hooks.
        enter.only_watches = leave.only_watches = True  # type: ignore[attr-defined]
        handles = [
            torch.nn.modules.module.register_module_forward_pre_hook(enter),
            torch.nn.modules.module.register_module_forward_hook(leave),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The context in which a wrapper runs ``forward``."""
        before = _tracing.set_execution_hook(self._run)
        try:
            with popart.running_on(self.model, custom_op), self._watching_neurons():
                yield
        finally:
            _tracing.set_execution_hook(before)
