"""Modules for NIR nodes without a counterpart in snnTorch: scale, threshold, integrator, and a graph of modules."""

from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
from torch import nn

from snnipu.neurons._hooks import is_hooked
from snnipu.neurons.multistep import MultiStep
from snnipu.surrogate import SpikeGrad, as_surrogate


class Unsupported(ValueError, NotImplementedError):
    """An error: NIR cannot express a module, or a NIR node has no module here. The message has the name and reason."""


class Scale(nn.Module):
    """A layer that multiplies: ``y = scale * x``.

    Args:
        scale: a number, or a tensor that broadcasts to one step ``[B, ...]``.
    """

    takes_whole_sequences = True  # elementwise: one step or all steps
    scale: torch.Tensor

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.register_buffer("scale", torch.as_tensor(scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Threshold(nn.Module):
    """A layer that spikes: ``z = H(x - threshold)``, ``H(0) = 0``, with a surrogate gradient.

    Args:
        threshold: a number, or a tensor that broadcasts to one step ``[B, ...]``.
        spike_grad: surrogate gradient, a function of ``x - threshold`` that returns the spikes.
    """

    takes_whole_sequences = True
    threshold: torch.Tensor

    def __init__(self, threshold: Any, spike_grad: Optional[SpikeGrad] = None) -> None:
        super().__init__()
        self.register_buffer("threshold", torch.as_tensor(threshold))
        self.spike_grad = as_surrogate(spike_grad) or spike_grad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.spike_grad is not None
        return self.spike_grad(x - self.threshold)


class Integrator(nn.Module):
    """A layer that returns the membrane of a neuron without reset: ``v = v_leak + mem``.

    A call is one step, and the states stay in the neuron (``init_hidden=True``). ``MultiStep`` runs all steps at once.

    Args:
        neuron: the neuron, with ``init_hidden=True`` and ``reset_mechanism="none"``.
        v_leak: a number, or a tensor that broadcasts to one step ``[B, ...]``.
    """

    v_leak: torch.Tensor

    def __init__(self, neuron: nn.Module, v_leak: Any = 0.0) -> None:
        super().__init__()
        self.neuron = neuron
        self.register_buffer("v_leak", torch.as_tensor(v_leak))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        neuron: Any = self.neuron
        neuron(x)
        return neuron.mem + self.v_leak

    def runs_fused(self) -> bool:
        fuses: Any = getattr(self.neuron, "runs_fused", None)
        return fuses is not None and hasattr(self.neuron, "sequence") and not is_hooked(self.neuron) and bool(fuses())

    def over_time(self, x: torch.Tensor, *, num_steps: Optional[int] = None, need_mem: bool = True) -> torch.Tensor:
        """Run all steps for ``MultiStep``."""
        neuron: Any = self.neuron
        return neuron.sequence(x, num_steps=num_steps)[-1] + self.v_leak


class ModuleGraph(nn.Module):
    """A graph of modules. The input of each module is the sum of its sources' outputs.

    Args:
        modules: the modules by name, each after its sources.
        sources: for each module, the names of the modules whose outputs it receives; ``None`` is the graph's input.
        outputs: names of the modules whose outputs the graph returns.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        sources: Mapping[str, Tuple[Optional[str], ...]],
        outputs: Tuple[Optional[str], ...],
    ) -> None:
        super().__init__()
        self.sources = dict(sources)
        self.outputs = tuple(outputs)
        for name, module in modules.items():
            self.add_module(name, module)

    def _run(self, x: Any, call: Any) -> Any:
        values: Dict[Optional[str], Any] = {None: x}
        for name, module in self.named_children():
            parts = [values[source] for source in self.sources[name]]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            out = call(module, total)
            values[name] = out[0] if isinstance(out, tuple) else out
        outs: List[Any] = [values[name] for name in self.outputs]
        return outs[0] if len(outs) == 1 else tuple(outs)

    def forward(self, x: torch.Tensor) -> Any:
        return self._run(x, lambda module, value: module(value))

    def runs_fused(self) -> bool:
        return True

    def over_time(self, x: torch.Tensor, *, num_steps: Optional[int] = None, need_mem: bool = True) -> Any:
        """Run all steps for ``MultiStep``, module after module."""
        if num_steps is not None:
            x = x.unsqueeze(0).expand(num_steps, *x.shape)
        return self._run(x, lambda module, value: MultiStep(module)(value))
