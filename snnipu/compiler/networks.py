"""Every network of a script compiled, without a change in the script."""

import sys
import weakref
from typing import Any, List

import snntorch
import torch
from torch import nn

from snnipu.compiler import backend
from snnipu.compiler.report import GraphReport


class _Compiled:
    """One network's forward pass: compiled, until that turns out to roll nothing."""

    def __init__(self) -> None:
        self.reports: List[GraphReport] = []

        def collect(module: Any, example_inputs: Any, **options: Any) -> Any:
            return backend.compile_graph(module, example_inputs, observer=self.reports.append, **options)

        def forward(network: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return network._call_impl(*args, **kwargs)

        self.run = torch.compile(forward, backend=collect)

    def useful(self) -> bool:
        """Whether a loop became a sequence, or nothing was compiled yet."""
        return not self.reports or any(neuron.rolled for report in self.reports for neuron in report.neurons)


def _is_network(module: nn.Module) -> bool:
    """Whether it has neurons, and is none."""
    if isinstance(module, snntorch.SpikingNeuron) or type(module).__module__.startswith(
        ("snnipu.", "torch.nn.parallel")
    ):
        return False
    return any(isinstance(part, snntorch.SpikingNeuron) for part in module.modules())


def compile_networks() -> None:
    """From now on the outermost module with neurons in each call runs compiled by the backend ``snnipu``.

    A network whose forward pass has no loop that becomes a sequence runs as it is from its second call on: where the
    loop is in a function of the script's, it is the function that :func:`snnipu.compile` is for.
    """
    backend.enable()
    original = nn.Module._wrapped_call_impl
    inside = False
    known: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside or torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        chosen: Any = known.get(self)
        if chosen is None:
            # Not in the module itself, whose copies and pickles are networks of their own.
            chosen = known[self] = _Compiled() if _is_network(self) else False
        if chosen is False:
            return original(self, *args, **kwargs)
        inside = True
        try:
            result = chosen.run(self, *args, **kwargs)
        finally:
            inside = False
        if not chosen.useful():
            known[self] = False
            name = type(self).__name__
            print(f"snnipu run: {name} runs as it is: its forward pass has no loop over neurons", file=sys.stderr)
        return result

    nn.Module._wrapped_call_impl = call  # type: ignore[method-assign]
    nn.Module.__call__ = call  # type: ignore[method-assign]
