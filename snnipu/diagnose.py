"""``snnipu.diagnose``: run a network once, and report for each layer of neurons why it may not learn."""

import functools
import math
import random
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import snntorch
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from snnipu._names.stock import stock
from snnipu.convert import deep_copy
from snnipu.neurons.multistep import takes_whole_sequences
from snnipu.neurons.paths import text_table
from snnipu.neurons.sparse_leaky import SparseNeurons


class LayerDiagnosis(NamedTuple):
    """The record of one layer of neurons over all steps and samples of a run.

    Attributes:
        name: the layer's name in the network.
        kind: name of the layer's class.
        neurons: number of neurons.
        dead: number of neurons without a spike.
        saturated: number of neurons with a spike at each step of each sample.
        activity: share of the neurons that spike in a step, from 0 to 1.
        membranes: smallest and largest membrane; None: the layer shows none.
        threshold: the layer's largest threshold; None: it has none.
        grad_norm: Euclidean norm of the gradient of all parameters between the layer of neurons before and this one;
            None: there was no loss, or there are no parameters that learn.
    """

    name: str
    kind: str
    neurons: int
    dead: int
    saturated: int
    activity: float
    membranes: Optional[Tuple[float, ...]]
    threshold: Optional[float]
    grad_norm: Optional[float]

    @property
    def hint(self) -> str:
        """The layer's fault and its remedy; empty if there is none."""
        if not all(map(math.isfinite, (*(self.membranes or ()), self.grad_norm or 0.0))):
            return "NaN or infinite numbers: check the input, and lower the learning rate"
        if 2 * self.dead > self.neurons:
            return f"{self.dead} of {self.neurons} neurons never spike: raise the weights, or lower the threshold"
        if 2 * self.saturated > self.neurons:
            return f"{self.saturated} of {self.neurons} neurons always spike: lower the weights, or raise the threshold"
        if self.grad_norm == 0:
            return "no gradient arrives: take a wider surrogate, and see to the spikes of the layers after this one"
        return ""


class Diagnosis(Tuple[LayerDiagnosis, ...]):
    """A :class:`LayerDiagnosis` for each layer, in the order of their first calls; ``str`` returns a table."""

    def __str__(self) -> str:
        head = ("layer", "kind", "neurons", "dead", "saturated", "activity", "membranes", "threshold", "gradient")
        rows = [
            (
                *map(str, row[:5]),
                f"{100 * row.activity:.3g} %",
                " to ".join(f"{mem:.3g}" for mem in row.membranes or ()),
                *("" if number is None else f"{number:.3g}" for number in (row.threshold, row.grad_norm)),
            )
            for row in self
        ]
        return "\n".join([*text_table(head, rows), *(f"{row.name}: {row.hint}" for row in self if row.hint)])


@dataclass
class _Record:
    """The counts of a layer: spikes of each neuron, steps times samples, and the range of membranes of each call."""

    module: nn.Module
    sources: List[nn.Module]
    counts: Any = 0
    cells: int = 0
    ranges: List[torch.Tensor] = field(default_factory=list)

    def diagnosis(self, name: str) -> LayerDiagnosis:
        counts = self.counts
        norms = [
            0.0 if p.grad is None else float(p.grad.norm())
            for source in self.sources
            for p in source.parameters(recurse=False)
            if p.requires_grad
        ]
        threshold = getattr(self.module, "threshold", None)
        return LayerDiagnosis(
            name,
            type(self.module).__name__,
            counts.numel(),
            int((counts == 0).sum()),
            int((counts == self.cells).sum()),
            float(counts.sum()) / max(1, self.cells * counts.numel()),
            tuple(map(float, torch.stack(self.ranges).aminmax())) if self.ranges else None,
            None if threshold is None else threshold.max().item(),
            math.hypot(*norms) if norms else None,
        )


def diagnose(
    net: nn.Module, *inputs: Any, loss: Optional[Callable[[Any], torch.Tensor]] = None, **named_inputs: Any
) -> Diagnosis:
    """Run a network once; report activity, faults and remedies of each layer of neurons.

    .. code-block:: python

        print(snn.diagnose(net, x))
        print(snn.diagnose(net, x, num_steps=25, loss=lambda out: loss_function(out[0], labels)))

    The network may be a :class:`MultiStep`, a :class:`SparseNetwork` or a module that calls neurons in a loop. A copy
    of it runs, step by step, in the same mode: parameters, gradients, states and the random states of PyTorch, NumPy
    and Python stay unchanged. The hooks of the network run, too. The loops of a compiled network run in Python.

    Args:
        net: the network, with neurons of snnipu or snnTorch.
        inputs: arguments of ``net``, such as ``x``.
        loss: a function that takes the network's result and returns the loss, one number. It is differentiated. None:
            the report has no gradients.
        named_inputs: arguments of ``net`` by name, such as ``num_steps``.

    Returns:
        A tuple with a :class:`~snnipu.diagnose.LayerDiagnosis` for each layer of neurons. ``str`` returns a table and
        hints; :func:`snnipu.plotting.diagnosis` draws it.

    Raises:
        TypeError: ``net`` is no module.
        ValueError: ``net`` called no neurons.
    """
    net, _ = deep_copy(net, "diagnose")
    records: Dict[Tuple[str, torch.Size], _Record] = {}
    called: Dict[nn.Module, None] = {}

    def run(name: str, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        is_whole = takes_whole_sequences(module)
        if is_whole and isinstance(module, snntorch.SpikingNeuron) and not isinstance(out, tuple):
            return out  # an integrator, which returns no spikes
        spikes = out[0] if isinstance(out, tuple) else out
        mem = getattr(module, "mem", None)
        with torch.no_grad():
            if isinstance(module, SparseNeurons):
                spikes = spikes.to_dense()
                if getattr(module, "recurrent_weight", None) is None:
                    mem = module.membranes(*args, **kwargs)
            fired = spikes != 0
            if not is_whole:
                fired = fired.unsqueeze(0)
            if fired.dim() < 3:
                fired = fired.unsqueeze(1)  # [T, B, ...]
            counts = fired.sum((0, 1))
            record = records.setdefault((name, counts.shape), _Record(module, list(called) if loss else []))
            record.counts = record.counts + counts
            record.cells += fired.shape[0] * fired.shape[1]
            if mem is not None and mem.numel():
                record.ranges.append(torch.stack(mem.aminmax()).cpu())
        called.clear()
        return out

    for name, module in net.named_modules():
        if isinstance(module, (snntorch.SpikingNeuron, stock("LeakyParallel"), SparseNeurons)):
            module.forward = functools.partial(run, name, module, module.forward)  # type: ignore[method-assign]
    net.zero_grad()
    python_random, numpy_random = random.getstate(), np.random.get_state(legacy=False)
    # With a global hook, every module is called at each step.
    handle = register_module_forward_pre_hook(lambda module, _: called.update({module: None}))
    try:
        with torch.random.fork_rng(), torch.set_grad_enabled(loss is not None), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* replaces forward of .*")
            out = net(*inputs, **named_inputs)
            if loss is not None:
                loss(out).backward()
    finally:
        handle.remove()
        random.setstate(python_random)
        np.random.set_state(numpy_random)
    if not records:
        raise ValueError("net must call neurons of snnipu or snnTorch, and it called none")
    return Diagnosis(record.diagnosis(name) for (name, _), record in records.items())
