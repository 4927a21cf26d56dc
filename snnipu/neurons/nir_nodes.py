"""Nodes of NIR that are no neuron of snnTorch's: a scaled signal, a threshold, an integrator; a graph of modules."""

from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
from torch import nn

from snnipu.neurons._hooks import is_hooked
from snnipu.neurons.multistep import MultiStep
from snnipu.surrogate import SpikeGrad, as_surrogate


class Unsupported(ValueError, NotImplementedError):
    """What NIR cannot express, or what of NIR has no module here; the message names the node and the reason."""


class Scale(nn.Module):
    """``y = scale x``, ``scale`` a number or of one step's trailing dimensions."""

    takes_whole_sequences = True  # elementwise: a step or all of them
    scale: torch.Tensor

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.register_buffer("scale", torch.as_tensor(scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Threshold(nn.Module):
    """``z = H(x - threshold)``, ``H(0) = 0``, with a surrogate gradient."""

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
    """The membrane of ``neuron``, which has no reset and keeps its states, above ``v_leak``: ``v = v_leak + mem``.

    One step a call, as neurons with ``init_hidden=True``; all steps at once in ``MultiStep``.
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
        """What ``MultiStep`` calls."""
        neuron: Any = self.neuron
        return neuron.sequence(x, num_steps=num_steps)[-1] + self.v_leak


class ModuleGraph(nn.Module):
    """Modules of which each gets the sum of the outputs of those before it.

    Args:
        modules: by name, in an order in which each follows its sources.
        sources: of each module the names of the modules whose outputs it gets; ``None`` is the graph's input.
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
        """What ``MultiStep`` calls: each module over all steps."""
        if num_steps is not None:
            x = x.unsqueeze(0).expand(num_steps, *x.shape)
        return self._run(x, lambda module, value: MultiStep(module)(value))
