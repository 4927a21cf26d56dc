"""A chunk as one graph that is compiled once: states and traces are buffers, and the rules use ``detach``.

The graph consists of operators that PopTorch compiles. A neuron's current is computed twice. The first computation has
gradients for the weights, which flow through the neuron's history. The second one has gradients for the layer below,
and separates the steps.
"""

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from snnipu.neurons.leaky import Leaky
from snnipu.neurons.multistep import is_random
from snnipu.online.afferents import Named, apply_affine, run_steps
from snnipu.online.layer import Layer, check_same, describe_modules
from snnipu.online.rules import Rule
from snnipu.ops._arguments import compute_dtype

RULES = ("sltt", "ottt")
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def check(layers: Sequence[Layer], rule: Rule) -> None:
    """Check that one graph supports every layer.

    Raises:
        TypeError, ValueError: an unsupported layer, by name.
    """
    if rule.name not in RULES or not all(rule.options.values()):
        raise ValueError(
            f"rule {rule.name!r} cannot run as one graph: use {' or '.join(map(repr, RULES))}, with default options"
        )
    for layer in layers:
        first = layer.afferents[0]
        if first.events is not None or first.delays:
            raise TypeError(f"module {layer.name}: event-driven layers and delays cannot run as one graph")
        for name, module in first.body:
            has_weights = any(True for _ in module.parameters())
            if (has_weights and type(module) not in (nn.Linear, *_CONVOLUTIONS)) or is_random(module):
                raise TypeError(
                    f"module {name} ({type(module).__name__}) cannot run as one graph: linear layers, convolutions "
                    "and modules without parameters can, and dropout in front of the weights"
                )
        if layer.dynamics is None:
            continue
        neuron = layer.dynamics.neuron
        if type(neuron) is not Leaky:
            raise TypeError(f"module {layer.name} ({type(neuron).__name__}) cannot run as one graph: use Leaky")
        if not rule.history:
            continue
        learnt = [name for name, _ in neuron.named_parameters(recurse=False)]
        reasons = {
            f'its reset_mechanism is "{neuron.reset_mechanism}"': neuron.reset_mechanism == "zero",
            "it has reset_delay=False": not neuron.reset_delay,
            "its beta is one for each neuron": neuron.beta.numel() > 1,
            f"it learns {', '.join(learnt)}": bool(learnt),
        }
        reason = next((reason for reason, holds in reasons.items() if holds), None)
        if reason is not None:
            raise TypeError(f'module {layer.name} (Leaky): rule "{rule.name}" cannot run as one graph where {reason}')


class PreparedState:
    """States and traces of ``layers`` in buffers of ``owner``.

    ``example`` ``[Tc, B, ...]`` has the shape of every chunk.
    """

    def __init__(self, owner: nn.Module, layers: Sequence[Layer], rule: Rule, example: torch.Tensor) -> None:
        check(layers, rule)
        self.descriptions = describe_modules(layers)
        self.shape, self.dtype, self.rule, self.history = example.shape, example.dtype, rule, rule.history
        x = torch.zeros_like(example)
        with torch.no_grad():
            for number, layer in enumerate(layers):
                inputs = layer.afferents[0].run_head(x)
                assert isinstance(inputs, torch.Tensor)
                x = _body(layer.afferents[0].body, inputs)
                if layer.dynamics is None:
                    continue
                dtype = compute_dtype(x.dtype)
                owner.register_buffer(f"held_mem_{number}", x.new_zeros(x.shape[1:], dtype=dtype))
                if rule.history:
                    owner.register_buffer(f"held_trace_{number}", inputs.new_zeros(inputs.shape[1:], dtype=dtype))
                    owner.register_buffer(f"held_ones_{number}", inputs.new_zeros(inputs.shape[1], dtype=dtype))

    def buffers(self, owner: nn.Module) -> List[torch.Tensor]:
        return [buffer for name, buffer in owner.named_buffers(recurse=False) if name.startswith("held_")]

    def run(
        self, owner: nn.Module, layers: Sequence[Layer], x: torch.Tensor, begins: Optional[torch.Tensor]
    ) -> List[torch.Tensor]:
        """Run a chunk; return the output of the last layer, ``[spikes, membranes]``."""
        check_same(self.descriptions, describe_modules(layers), "call prepare() again")
        check(layers, self.rule)  # options may have changed since prepare()
        if x.shape != self.shape or x.dtype != self.dtype:
            expected = f"{tuple(self.shape)} and {self.dtype}"
            raise ValueError(f"x must be of {expected}, as in prepare(), got {tuple(x.shape)} and {x.dtype}")
        continues = None
        if begins is not None:
            if begins.numel() not in (1, x.shape[1]):
                raise ValueError(
                    f"begins must have one element, or one for each of {x.shape[1]} samples, got {tuple(begins.shape)}"
                )
            continues = 1 - begins.reshape(-1).to(compute_dtype(x.dtype))
        out: List[torch.Tensor] = [x]
        for number, layer in enumerate(layers):
            inputs = layer.afferents[0].run_head(out[0])
            assert isinstance(inputs, torch.Tensor)
            if layer.dynamics is None:
                out = [_body(layer.afferents[0].body, inputs)]
                continue
            mem = _buffer_before(owner, f"held_mem_{number}", continues)
            if self.history:
                past = [_buffer_before(owner, f"held_{kind}_{number}", continues) for kind in ("trace", "ones")]
                out = self._with_history(owner, number, layer, inputs, mem, past)
            else:
                current = _body(layer.afferents[0].body, inputs)
                with torch.no_grad():
                    _, mems = _run(layer, current.detach(), mem)
                out = _each_step(layer, current, mem, mems)
            with torch.no_grad():
                getattr(owner, f"held_mem_{number}").copy_(out[1][-1].detach())
        return out

    def _with_history(
        self, owner: nn.Module, number: int, layer: Layer, inputs: torch.Tensor, mem: torch.Tensor, past: Any
    ) -> List[torch.Tensor]:
        body = layer.afferents[0].body
        trace, ones = past
        detached = inputs.detach()
        # The dependence of the membrane before the chunk on the weights: the body applied to the trace.
        past_current = apply_affine(body, trace.to(detached.dtype), ones.to(detached.dtype))
        spk, mems = _run(layer, _body(body, detached), mem + (past_current - past_current.detach()))
        if number or inputs.requires_grad:
            spk_below, mems_below = _each_step(layer, _body(body, inputs, detached=True), mem, mems.detach())
            spk, mems = spk + (spk_below - spk_below.detach()), mems + (mems_below - mems_below.detach())
        assert layer.dynamics is not None
        with torch.no_grad():
            steps, dtype = detached.shape[0], trace.dtype
            decay = layer.dynamics.neuron.beta.detach().clamp(0, 1).reshape(()).to(dtype)
            weights = decay ** torch.arange(steps - 1, -1, -1, dtype=dtype, device=detached.device)
            summed = (weights @ detached.flatten(1).to(dtype)).reshape(detached.shape[1:])
            getattr(owner, f"held_trace_{number}").copy_(decay**steps * trace + summed)
            getattr(owner, f"held_ones_{number}").copy_(decay**steps * ones + weights.sum())
        return [spk, mems]


def _buffer_before(owner: nn.Module, name: str, continues: Optional[torch.Tensor]) -> torch.Tensor:
    """Return a buffer's value before the chunk; zeros if a stream begins."""
    value: torch.Tensor = getattr(owner, name).detach().clone()
    if continues is None:
        return value
    return value * continues.reshape(-1, *[1] * (value.dim() - 1))


def _run(layer: Layer, x: torch.Tensor, mem: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the spikes and membranes of a sequence."""
    assert layer.dynamics is not None
    results = layer.dynamics.neuron._kernels(x.contiguous(), [mem], num_steps=None, store=[True], need_final=False)
    return results.spk, results.states[0]


def _each_step(layer: Layer, x: torch.Tensor, mem: torch.Tensor, mems: torch.Tensor) -> List[torch.Tensor]:
    """Run every step separately, from the known membrane before it."""
    before = torch.cat([mem.unsqueeze(0), mems[:-1]]).detach()
    results = _run(layer, x.flatten(0, 1).unsqueeze(0), before.flatten(0, 1))
    return [part.reshape(x.shape) for part in results]


def _body(body: Sequence[Named], x: torch.Tensor, detached: bool = False) -> torch.Tensor:
    """Run the modules on ``[T, B, ...]``; with ``detached`` their weights get no gradient."""
    for name, module in body:
        if not detached or not any(True for _ in module.parameters()):
            x = run_steps((name, module), x)
            continue
        m: Any = module
        weight, bias = m.weight.detach(), None if m.bias is None else m.bias.detach()
        rows = x.flatten(0, 1)
        rows = F.linear(rows, weight, bias) if isinstance(m, nn.Linear) else m._conv_forward(rows, weight, bias)
        x = rows.unflatten(0, x.shape[:2])
    return x
