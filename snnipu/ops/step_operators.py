"""A neuron's step as one node of the graphs of ``torch.compile``, and the same neuron over all steps.

``snnipu.compiler`` finds chains of :data:`STEPS` in a graph, and puts their :data:`SEQUENCES` in their place.
"""

import weakref
from functools import lru_cache
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import snntorch
import torch

from snnipu._layout import SINGLE_STEP
from snnipu.ops import _neurons
from snnipu.ops import spiking_lstm as lstm
from snnipu.ops.neuron_sequence import neuron_apply
from snnipu.ops.recurrent_sequence import SPIKES, STRENGTH, RecurrentConnection, recurrent_apply
from snnipu.surrogate import Kernel, Surrogate

Tensors = Tuple[Optional[torch.Tensor], ...]

# Set by `snnipu.compiler`, which makes the functions below known to TorchDynamo; without it a step is traced.
enabled = False


def look_up(neuron: Any, parts: Iterable[str]) -> None:
    """Ask the instance for its methods: TorchDynamo compiles anew once something else stands in their place there."""
    for name in parts:
        getattr(neuron, name)


def at_trace_time(function: Any) -> Any:
    """Mark of a method that TorchDynamo calls where it meets it, its result being a constant of the graph."""
    function._dynamo_marked_constant = True
    return function


@at_trace_time
def tracing() -> bool:
    """Whether ``torch.compile`` is to see a neuron's step as one node."""
    return enabled and torch._guards.TracingContext.try_get() is not None


def apart(function: Any, *args: Any, **keywords: Any) -> Any:
    """Call ``function``, into which ``snnipu.compiler`` does not let TorchDynamo look: the graph ends there."""
    return function(*args, **keywords)


# What snntorch.utils.reset has reset in a trace: how often each kind, and how often a neuron had been by its last step.
_resets: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()


@at_trace_time
def note_reset(kinds: Tuple[str, ...]) -> bool:
    """The trace that goes on resets all neurons of these kinds of snnTorch's, whoever has them."""
    context = torch._guards.TracingContext.try_get()
    if context is not None:
        counts, _ = _resets.setdefault(context, ({}, {}))
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
    return True


def is_reset(neuron: Any) -> bool:
    """Whether this neuron was reset since it was asked last: its states are those of the graph's begin no longer."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context not in _resets:
        return False
    if not getattr(neuron, "_is_listed", True):
        return False
    counts, seen = _resets[context]
    count = sum(number for kind, number in counts.items() if isinstance(neuron, getattr(snntorch, kind)))
    before = seen.get(id(neuron), 0)
    seen[id(neuron)] = count
    return bool(count > before)


@lru_cache(maxsize=256)
def _surrogate_of(number: int, a: float, b: float) -> Surrogate:
    surrogate = Surrogate("kernel")
    surrogate.kernel = Kernel(number, a, b)
    return surrogate


def _surrogate(number: int, a: float, b: float) -> Surrogate:
    if isinstance(a, torch.SymFloat) or isinstance(b, torch.SymFloat):
        # TorchDynamo asks what comes out, whose form does not depend on them; to look at them would fix them.
        a, b = 1.0, 0.0
    return _surrogate_of(number, a, b)


def neuron_step(
    x: torch.Tensor,
    states: Tensors,
    parameters: Sequence[torch.Tensor],
    kernel: Tuple[int, float, float],
    options: Tuple[str, Tuple[str, ...], Tuple[Tuple[str, Any], ...]],
    rolls: str,
) -> Tuple[torch.Tensor, ...]:
    """One step of a neuron of ``snnipu.equations``: ``(spk, *states)``.

    Args:
        states, parameters: those of the equation, in its order.
        kernel: the fields of a ``surrogate.Kernel``.
        options: the equation's name, its parameters' names, its options.
        rolls: why the step must stay a step; empty where it need not.
    """
    store = [True] * len(states)
    results: Tuple[Any, ...] = neuron_over_time(x, SINGLE_STEP, states, parameters, kernel, options, store, False)
    return results[: 1 + len(states)]


def neuron_over_time(
    x: torch.Tensor,
    num_steps: Optional[int],
    states: Tensors,
    parameters: Sequence[torch.Tensor],
    kernel: Tuple[int, float, float],
    options: Tuple[str, Tuple[str, ...], Tuple[Tuple[str, Any], ...]],
    store: Sequence[bool],
    need_final: bool,
) -> Tuple[Optional[torch.Tensor], ...]:
    """All steps of :func:`neuron_step`: spikes, each state over time, each final state, or None."""
    name, names, chosen = options
    results = neuron_apply(
        name,
        x,
        states,
        dict(zip(names, parameters)),
        options=dict(chosen),
        num_steps=num_steps,
        spike_grad=_surrogate(*kernel),
        store=store,
        need_final=need_final,
    )
    final = results.final if results.final is not None else [None] * len(results.states)
    return (results.spk, *results.states, *final)


RecurrentOptions = Tuple[str, Tuple[str, ...], Tuple[Tuple[str, Any], ...], Tuple[int, ...]]


def recurrent_step(
    x: torch.Tensor,
    states: Tensors,
    parameters: Sequence[Optional[torch.Tensor]],
    kernel: Tuple[int, float, float],
    options: RecurrentOptions,
    rolls: str,
) -> Tuple[torch.Tensor, ...]:
    """One step of a neuron whose spikes come back through a linear layer or a convolution: ``(spk, *states)``.

    Args:
        states: those of the equation, the spikes first.
        parameters: those of the equation without ``V``, then weight and bias of the layer.
        kernel: the fields of a ``surrogate.Kernel``.
        options: the equation's name, its parameters' names, its options, the geometry of a ``RecurrentConnection``.
        rolls: why the step must stay a step; empty where it need not.
    """
    name, _, chosen, _ = options
    connection, values = _connection(parameters, options)
    spikes = states[SPIKES]
    incoming = connection.product(torch.zeros_like(x) if spikes is None else spikes.to(x.dtype))
    results = neuron_apply(
        name,
        x,
        (incoming, *states[1:]),
        {**values, STRENGTH: 1.0},
        options=dict(chosen),
        num_steps=SINGLE_STEP,
        spike_grad=_surrogate(*kernel),
    )
    outputs: List[Any] = [results.spk, *results.states]
    return tuple(outputs)


def recurrent_over_time(
    x: torch.Tensor,
    num_steps: Optional[int],
    states: Tensors,
    parameters: Sequence[Optional[torch.Tensor]],
    kernel: Tuple[int, float, float],
    options: RecurrentOptions,
    store: Sequence[bool],
    need_final: bool,
) -> Tuple[Optional[torch.Tensor], ...]:
    """All steps of :func:`recurrent_step`: spikes, each state over time, each final state, or None."""
    name, _, chosen, _ = options
    connection, values = _connection(parameters, options)
    results = recurrent_apply(
        name,
        x,
        states,
        values,
        connection,
        options=dict(chosen),
        num_steps=num_steps,
        spike_grad=_surrogate(*kernel),
        store=store,
        need_final=need_final,
    )
    final = results.final if results.final is not None else [None] * len(results.states)
    return (results.spk, *results.states, *final)


def _connection(
    parameters: Sequence[Optional[torch.Tensor]], options: RecurrentOptions
) -> Tuple[RecurrentConnection, Dict[str, Any]]:
    """The layer, and the equation's parameters by name."""
    *values, weight, bias = parameters
    assert weight is not None
    return RecurrentConnection(weight, bias, options[3]), dict(zip(options[1], values))


def neuron_fed_back(
    x: torch.Tensor,
    num_steps: Optional[int],
    states: Tensors,
    parameters: Sequence[Optional[torch.Tensor]],
    kernel: Tuple[int, float, float],
    options: Tuple[str, Tuple[str, ...], Tuple[Tuple[str, Any], ...]],
    store: Sequence[bool],
    need_final: bool,
    connection: Sequence[Any],
) -> Tuple[Optional[torch.Tensor], ...]:
    """All steps of :func:`neuron_step` whose input is ``x`` plus a layer's output for the spikes of the step before.

    Args:
        connection: the spikes before the first step, then the layer: weight, bias, geometry.

    Returns:
        What :func:`neuron_over_time` does, then the last spikes or None.
    """
    spikes, weight, bias, geometry = connection
    spk, _, *states_and_final = recurrent_over_time(
        x,
        num_steps,
        (spikes, *states),
        (*parameters, weight, bias),
        kernel,
        (*options, geometry),
        (False, *store),
        need_final,
    )
    after, (last, *final) = states_and_final[: len(states)], states_and_final[len(states) :]
    return (spk, *after, *final, last)


def spiking_lstm_step(
    x: torch.Tensor,
    states: Tensors,
    parameters: Sequence[Optional[torch.Tensor]],
    kernel: Tuple[int, float, float],
    options: Tuple[Any, ...],
    rolls: str,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step of a spiking LSTM: ``(spk, syn, mem)``.

    Args:
        states: ``(syn, mem)``; None: zeros.
        parameters: threshold, graded_spikes_factor, then the cell's tensors.
        kernel: the fields of a ``surrogate.Kernel``.
        options: code of the reset mechanism, then what the cell has besides tensors.
        rolls: why the step must stay a step; empty where it need not.
    """
    cell, neuron = _lstm(parameters, kernel, options)
    return lstm.spiking_lstm_step(cell, neuron, x, states[0], states[1])


def spiking_lstm_over_time(
    x: torch.Tensor,
    num_steps: Optional[int],
    states: Tensors,
    parameters: Sequence[Optional[torch.Tensor]],
    kernel: Tuple[int, float, float],
    options: Tuple[Any, ...],
    store: Sequence[bool],
    need_final: bool,
) -> Tuple[Optional[torch.Tensor], ...]:
    """All steps of :func:`spiking_lstm_step`: spikes, each state over time, each final state, or None."""
    cell, neuron = _lstm(parameters, kernel, options)
    spk, syn, mem = lstm.spiking_lstm_sequence(cell, neuron, x, states[0], states[1], num_steps)
    # Copies: views would keep the whole sequence's.
    final = (syn[-1].clone(), mem[-1].clone()) if need_final else (None, None)
    return (spk, syn, mem, *final)


def _lstm(
    parameters: Sequence[Optional[torch.Tensor]], kernel: Tuple[int, float, float], options: Tuple[Any, ...]
) -> Tuple[lstm.Cell, lstm.LSTMNeuron]:
    threshold, graded, *tensors = parameters
    assert threshold is not None
    assert graded is not None
    reset, *how = options
    return lstm.make_cell(tensors, how), lstm.LSTMNeuron(threshold, graded, reset, _surrogate(*kernel))


# Step -> the same over time.
SEQUENCES = {
    neuron_step: neuron_over_time,
    recurrent_step: recurrent_over_time,
    spiking_lstm_step: spiking_lstm_over_time,
}

# Step -> the same over time where the spikes come back through a layer, and are added to the input.
FED_BACK = {neuron_step: neuron_fed_back}


def restarts(step: Any, parameters: Sequence[Any], options: Any) -> bool:
    """Whether a step starts from zeros whatever its states are."""
    return step is spiking_lstm_step and bool(_lstm(parameters, (0, 0.0, 0.0), options)[0].restarts)


def output_state(step: Any, options: Any) -> Optional[int]:
    """Which state of a step with these options is its spikes."""
    if step not in (neuron_step, recurrent_step):
        return None
    states = _neurons.find(options[0]).states
    return states.index("spk") if "spk" in states else None
