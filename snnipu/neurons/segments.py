"""Sequences in segments of time: activation checkpointing and truncated backpropagation through time."""

import contextlib
from typing import Any, Dict, Iterator, List, Optional, Tuple

import snntorch
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from snnipu._checks import check_int
from snnipu.backends import memory
from snnipu.neurons._states import AttributeStates
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
    """Run ``network`` over time in segments, and pass the states from segment to segment.

    ``checkpoint`` saves memory: the forward pass stores the states and the result of each segment alone, and the
    backward pass computes the segment again (``torch.utils.checkpoint``). The gradient equals that of a single call,
    in the memory of one segment. ``detach_every`` truncates backpropagation through time: no gradient passes a cut.

    .. code-block:: python

        spk, mem = snn.run_segments(net, x, 200)                  # x [2000, B, 784], in the memory of 200 steps
        spk, mem = snn.run_segments(net, x, 50, checkpoint=False, detach_every=50)

    Neurons with ``init_hidden=True`` continue from the last call and keep their last states, as in ``network(x)``.

    Args:
        network: a :class:`MultiStep` of neurons, stateless modules, dropout, and containers of them.
        x: input, ``[T, B, ...]``. With ``num_steps``: ``[B, ...]``, the same input at every step.
        steps: time steps of a segment; the last segment may be shorter.
        num_steps: number of steps ``T`` of a constant input; None: ``x`` has a time dimension.
        checkpoint: if True, the backward pass computes each segment again; if False, all activations are stored.
        detach_every: time steps between two cuts of the gradient, a multiple of ``steps``; None: no cuts.

    Returns:
        The results of ``network``, with all steps.

    Raises:
        TypeError: wrong type of an argument. Or the state of a module between segments is unknown: of a recurrent or
            event-driven layer, batch norm in training, or a custom module without the attribute ``stateless = True``.
        ValueError: ``steps``, ``num_steps`` or ``detach_every`` is below 1, or ``detach_every`` is no multiple of
            ``steps``.

    Sources: Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174, 2016, for checkpoints;
    Williams and Peng, "An efficient gradient-based algorithm for on-line training of recurrent network trajectories",
    Neural Computation 1990, for truncation.
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
    values = [_initial_state(holder) for holder in states]
    segments: List[Any] = []
    for start in range(0, total, steps):
        length = min(steps, total - start)
        if detach_every is not None and start and start % detach_every == 0:
            values = [None if value is None else value.detach() for value in values]
        inputs = x[start : start + length] if num_steps is None else x
        constant = None if num_steps is None else length
        if checkpoint and torch.is_grad_enabled():
            out, values = torch_checkpoint(
                _run_checkpointed, network, states, constant, inputs, *values, use_reentrant=False
            )
        else:
            out, values = _run_segment(network, states, constant, inputs, *values)
        segments.append(out)
    for holder, value in zip(states, values):
        if getattr(holder[0], "init_hidden", False):
            setattr(*holder, value)
    return _concatenated(segments)


def _run_segment(
    network: MultiStep, states: List[_State], num_steps: Optional[int], x: torch.Tensor, *values: Any
) -> Any:
    """Run a segment from the states ``values``; return its result and the states after it.

    Restores the states that the neurons held before.
    """
    before = [_get_state(holder) for holder in states]
    try:
        with _holding_states(network):
            for holder, value in zip(states, values):
                setattr(*holder, value)
            out = network(x) if num_steps is None else network(x, num_steps=num_steps)
            return out, [_get_state(holder) for holder in states]
    finally:
        for holder, value in zip(states, before):
            setattr(*holder, value)


@contextlib.contextmanager
def _holding_states(network: MultiStep) -> Iterator[None]:
    """Within this context all neurons continue from the call before, and return the same results as otherwise."""
    neurons = [module for module in network.modules() if isinstance(module, snntorch.SpikingNeuron)]
    before: List[Tuple[Any, bool, Dict[str, Any]]] = []
    for neuron in neurons:
        options = {name: getattr(neuron, name) for name in ("output",) if hasattr(neuron, name)}
        before.append((neuron, neuron.init_hidden, options))
        if not neuron.init_hidden:
            neuron.init_hidden = True
            neuron.output = True
    try:
        yield
    finally:
        for neuron, init_hidden, options in before:
            neuron.init_hidden = init_hidden
            for name, value in options.items():
                setattr(neuron, name, value)


def _run_checkpointed(*arguments: Any) -> Any:
    """Run a segment after releasing the memory of the segment before."""
    memory.release_memory()
    return _run_segment(*arguments)


def _get_state(holder: _State) -> Optional[torch.Tensor]:
    value: Optional[torch.Tensor] = getattr(*holder)
    return value


def _initial_state(holder: _State) -> Optional[torch.Tensor]:
    """Return the state before a sequence: with ``init_hidden=True`` the last one, otherwise an empty one.

    An empty state fits no input, so that the neuron starts from zeros.
    """
    state = _get_state(holder)
    return state if state is None or getattr(holder[0], "init_hidden", False) else torch.zeros_like(state[:0])


def _states(network: nn.Module, prefix: str = "") -> Iterator[_State]:
    for name, module in network.named_children():
        path = prefix + name
        if isinstance(module, (nn.Sequential, MultiStep)) and not is_hooked(module):
            yield from _states(module, f"{path}.")
        elif isinstance(module, AttributeStates):
            for state in module._states():
                yield module, state
        elif isinstance(module, snntorch.SpikingNeuron) and not takes_whole_sequences(module):
            for state in sorted(module._non_persistent_buffers_set):
                yield module, state
        elif not (is_stateless(module) or is_random(module) or getattr(module, "stateless", False) is True):
            raise TypeError(
                f"module {path} ({type(module).__name__}) cannot run in segments of time: its state between segments "
                "is unknown (if a module of your own has no state, give it the attribute stateless = True)"
            )


def _concatenated(segments: List[Any]) -> Any:
    if isinstance(segments[0], torch.Tensor):
        return torch.cat(segments)
    return tuple(_concatenated(list(parts)) for parts in zip(*segments))
