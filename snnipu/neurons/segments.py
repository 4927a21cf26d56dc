"""Sequences in segments of time: activation checkpointing and truncated backpropagation through time."""

import contextlib
from typing import Any, Dict, Iterator, List, Optional, Tuple

import snntorch
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as run_again

from snnipu._checks import check_int
from snnipu.backends import memory
from snnipu.neurons._states import PlainStates
from snnipu.neurons.multistep import MultiStep, is_hooked, is_random, is_stateless, takes_whole_sequences
from snnipu.spikes import SparseSpikes

# A neuron and the name of one of its states.
_State = Tuple[nn.Module, str]


def run_segments(
    network: MultiStep,
    x: torch.Tensor,
    steps: int,
    *,
    num_steps: Optional[int] = None,
    checkpoint: bool = True,
    detach_every: Optional[int] = None,
) -> Any:
    """``network(x, num_steps=num_steps)``, segment by segment of time, with the states handed on.

    With ``checkpoint`` each segment's states and result alone are kept, and the rest is computed again in the backward
    pass (``torch.utils.checkpoint``): the memory is that of one segment, the gradient exactly that of a single call.
    With ``detach_every`` no gradient goes from a segment into those before: truncated backpropagation through time.

    .. code-block:: python

        spk, mem = snn.run_segments(net, x, 200)                  # x [2000, B, 784], in the memory of 200 steps
        spk, mem = snn.run_segments(net, x, 50, checkpoint=False, detach_every=50)

    Neurons with ``init_hidden=True`` go on where they ended, as in a single call, and hold their states afterwards.

    Args:
        network: of neurons, stateless modules, dropout, and containers of them.
        x: ``[T, B, ...]``; with ``num_steps``, ``[B, ...]``, held constant.
        steps: time steps of a segment; the last may be shorter.
        num_steps: number of steps for which ``x`` is held constant.
        checkpoint: whether to compute segments again in the backward pass.
        detach_every: steps from one cut of the gradient to the next, a multiple of ``steps``; None: there is none.

    Returns:
        What ``network`` returns, with all steps.

    Raises:
        TypeError, ValueError: an argument that is not as described, or a module whose state between two segments is
            not known: a recurrent layer or cell, an event-driven layer, batch norm in training, a module of one's own
            without the attribute ``stateless = True``.
    """
    check_int("steps", steps)
    check_int("num_steps", num_steps, or_none=True)
    check_int("detach_every", detach_every, or_none=True)
    if detach_every is not None and detach_every % steps:
        raise ValueError(f"detach_every must be a multiple of steps={steps}, got {detach_every}")
    if not isinstance(network, MultiStep):
        raise TypeError(f"network must be a MultiStep, got {type(network).__name__}")
    if isinstance(x, SparseSpikes) or not isinstance(x, torch.Tensor) or (num_steps is None and x.dim() < 2):
        raise TypeError("x must be a torch.Tensor [T, B, ...], or [B, ...] with num_steps")
    states = list(_states(network))
    total = x.shape[0] if num_steps is None else num_steps
    values = [_start(at) for at in states]
    segments: List[Any] = []
    for start in range(0, total, steps):
        length = min(steps, total - start)
        if detach_every is not None and start and start % detach_every == 0:
            values = [None if value is None else value.detach() for value in values]
        given = x[start : start + length] if num_steps is None else x
        constant = None if num_steps is None else length
        if checkpoint and torch.is_grad_enabled():
            out, values = run_again(_segment_alone, network, states, constant, given, *values, use_reentrant=False)
        else:
            out, values = _segment(network, states, constant, given, *values)
        segments.append(out)
    for at, value in zip(states, values):
        if getattr(at[0], "init_hidden", False):
            setattr(*at, value)
    return _joined(segments)


def _segment(network: MultiStep, states: List[_State], num_steps: Optional[int], x: torch.Tensor, *values: Any) -> Any:
    """Result and states behind some steps, from the states before them; what the neurons hold is put back."""
    before = [_held(at) for at in states]
    try:
        with _holding_states(network):
            for at, value in zip(states, values):
                setattr(*at, value)
            out = network(x) if num_steps is None else network(x, num_steps=num_steps)
            return out, [_held(at) for at in states]
    finally:
        for at, value in zip(states, before):
            setattr(*at, value)


@contextlib.contextmanager
def _holding_states(network: MultiStep) -> Iterator[None]:
    """All neurons go on where the call before ended, and return what they do otherwise."""
    neurons = [module for module in network.modules() if isinstance(module, snntorch.SpikingNeuron)]
    before: List[Tuple[Any, bool, Dict[str, Any]]] = []
    for neuron in neurons:
        given = {name: getattr(neuron, name) for name in ("output",) if hasattr(neuron, name)}
        before.append((neuron, neuron.init_hidden, given))
        if not neuron.init_hidden:
            neuron.init_hidden = True
            neuron.output = True
    try:
        yield
    finally:
        for neuron, init_hidden, given in before:
            neuron.init_hidden = init_hidden
            for name, value in given.items():
                setattr(neuron, name, value)


def _segment_alone(*arguments: Any) -> Any:
    """A segment once what was kept for the one before is given back: memory is what this is for."""
    memory.release_memory()
    return _segment(*arguments)


def _held(at: _State) -> Optional[torch.Tensor]:
    value: Optional[torch.Tensor] = getattr(*at)
    return value


def _start(at: _State) -> Optional[torch.Tensor]:
    """What a neuron holds where a sequence starts: where the last one ended, or what fits no input."""
    held = _held(at)
    return held if held is None or getattr(at[0], "init_hidden", False) else torch.zeros_like(held[:0])


def _states(network: nn.Module, prefix: str = "") -> Iterator[_State]:
    for name, module in network.named_children():
        place = prefix + name
        if isinstance(module, (nn.Sequential, MultiStep)) and not is_hooked(module):
            yield from _states(module, f"{place}.")
        elif isinstance(module, PlainStates):
            for state in module._states():
                yield module, state
        elif isinstance(module, snntorch.SpikingNeuron) and not takes_whole_sequences(module):
            for state in sorted(module._non_persistent_buffers_set):
                yield module, state
        elif not (is_stateless(module) or is_random(module) or getattr(module, "stateless", False) is True):
            raise TypeError(
                f"module {place} ({type(module).__name__}) cannot run in segments of time: its state between two of "
                "them is not known (a module of your own without a state says so by an attribute stateless = True)"
            )


def _joined(segments: List[Any]) -> Any:
    if isinstance(segments[0], torch.Tensor):
        return torch.cat(segments)
    return tuple(_joined(list(parts)) for parts in zip(*segments))
