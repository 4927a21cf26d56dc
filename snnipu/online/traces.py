"""Traces: what the states after a chunk owe to the parameters, carried forward in place of the chunk.

Where the history of the states is the same for all neurons, the trace of a weight is one of its input: ``[B, inputs]``
for each state. Elsewhere every neuron has its own, ``[B, neurons, inputs]``.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu.online.afferents import Afferents, Trace
from snnipu.online.dynamics import Chunk, Dynamics, Gradients
from snnipu.online.events import DenseOrSparse, dense, weighted

Pairs = List[Tuple[torch.Tensor, torch.Tensor]]


class Traces(NamedTuple):
    """Of a neuron's states: for each that counts the traces of its inputs, and of its parameters ``[B * neurons]``."""

    inputs: List[List[Optional[Trace]]]
    parameters: List[List[Optional[torch.Tensor]]]


def jacobian(dynamics: Dynamics, chunk: Chunk, place: int, spread: Optional[List[torch.Tensor]]) -> Gradients:
    """The gradients of a state after the chunk."""
    final: List[Optional[torch.Tensor]] = [None] * len(chunk.states)
    final[place] = torch.ones_like(chunk.initial[place])
    return dynamics.history(chunk, None, [], final, spread)


def spread(values: Sequence[torch.Tensor], like: torch.Tensor) -> List[torch.Tensor]:
    """Parameters, one for each neuron of each sample."""
    count = like.numel()
    return [v.reshape(-1).repeat(count // v.numel()) if v.numel() != count else v.reshape(-1) for v in values]


def after(
    dynamics: Dynamics,
    chunk: Chunk,
    afferents: Sequence[Afferents],
    inputs: Sequence[DenseOrSparse],
    before: Optional[Traces],
) -> Traces:
    """The traces after a chunk."""
    # Traces of single weights cannot become traces of inputs again.
    earlier = [] if before is None else [trace for state in before.inputs for trace in state if trace is not None]
    uniform = dynamics.is_uniform and not any(trace.ones.dim() for trace in earlier)
    places = dynamics.remembers
    full = any(chunk.needs) or (not uniform and any(a.parameters() for a in afferents))
    wide = spread(chunk.values, chunk.initial[0]) if full else None
    own = [jacobian(dynamics, chunk, place, wide) for place in places] if full else []
    alike = dynamics.of_one(chunk) if uniform else own
    made = Traces([], [])
    for row in range(len(places)):
        made.inputs.append(
            [
                _summed(alike[row], places, u, a, _at(before, number), uniform) if a.parameters() else None
                for number, (a, u) in enumerate(zip(afferents, inputs))
            ]
        )
        made.parameters.append(
            [
                _of_parameter(own[row], places, number, before) if need else None
                for number, need in enumerate(chunk.needs)
            ]
        )
    return made


def _at(traces: Optional[Traces], number: int) -> List[Optional[Trace]]:
    """State by state, those of one of the neurons' inputs."""
    return [] if traces is None else [state[number] for state in traces.inputs]


def _summed(
    row: Gradients,
    places: Sequence[int],
    u: DenseOrSparse,
    afferents: Afferents,
    before: Sequence[Optional[Trace]],
    uniform: bool,
) -> Trace:
    """A chunk's inputs by a state's gradient, and the traces before it by the gradient of the states they are of."""
    if uniform:
        weights = row.x.reshape(-1).to(u.dtype)
        inputs, ones = weighted(weights, u), weights.sum()
        for place, trace in zip(places, before):
            if trace is not None:
                by = row.before[place].reshape(())
                inputs, ones = inputs + by * trace.inputs, ones + by * trace.ones
        return Trace(inputs, ones)
    seen = [afferents.patches(dense(u))]
    groups, positions = seen[0].shape[2], seen[0].shape[-1]
    outputs = row.x.shape[2:].numel() // (groups * positions)
    weights = row.x.reshape(*seen[0].shape[:3], outputs, positions)
    rows, ones = [weights], weights.sum(0)
    own: Pairs = []
    for place, trace in zip(places, before):
        if trace is None:
            continue
        by = row.before[place].reshape(weights.shape[1:])
        ones = ones + by * trace.ones
        if trace.ones.dim():
            own.append((by, trace.inputs))
        else:  # that of an input: like one step more
            rows.append(by.unsqueeze(0))
            seen.append(afferents.patches(trace.inputs.unsqueeze(0)))
    inputs = torch.einsum("tbgop,tbgkp->bgopk", _stacked(rows), _stacked(seen))
    for by, earlier in own:
        inputs.addcmul_(by.unsqueeze(-1), earlier)  # a copy is as large as all weights of all samples
    return Trace(inputs, ones)


def _stacked(parts: List[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _of_parameter(row: Gradients, places: Sequence[int], number: int, before: Optional[Traces]) -> torch.Tensor:
    made = row.parameters[number]
    for place, state in zip(places, [] if before is None else before.parameters):
        trace = state[number]
        if trace is not None:
            made = made + row.before[place].reshape(-1) * trace
    return made


# ---- through a leaky readout: its states remember the spikes of the neurons in front of it


class Filter(NamedTuple):
    """A readout's states after a chunk: by the steps of its input ``[T]``, and by the states before, each by each."""

    steps: List[torch.Tensor]
    before: List[List[torch.Tensor]]


def filter_of(dynamics: Dynamics, chunk: Chunk) -> Filter:
    places = dynamics.remembers
    rows = dynamics.of_one(chunk)
    return Filter(
        [row.x.reshape(-1) for row in rows], [[row.before[place].reshape(()) for place in places] for row in rows]
    )


def low_passed(by: Filter, spk: torch.Tensor, before: Optional[List[torch.Tensor]]) -> List[torch.Tensor]:
    """What each of the readout's states remembers of spikes ``[T, B, ...]``."""
    made = []
    for weights, carry in zip(by.steps, by.before):
        row = (weights.to(spk.dtype) @ spk.flatten(1)).reshape(spk.shape[1:])
        for factor, value in zip(carry, before or []):
            row = row + factor * value
        made.append(row)
    return made


def filtered_after(
    by: Filter,
    dynamics: Dynamics,
    chunk: Chunk,
    afferents: Sequence[Afferents],
    inputs: Sequence[DenseOrSparse],
    states: Optional[Traces],
    before: Optional[Traces],
) -> Traces:
    """The traces of :func:`low_passed` spikes; ``states``: those of the neuron's states before the chunk."""
    wide = spread(chunk.values, chunk.initial[0])
    none: List[Optional[torch.Tensor]] = [None] * len(chunk.states)
    places = dynamics.remembers
    made = Traces([], [])
    for weights, carry in zip(by.steps, by.before):
        upstream = weights.to(chunk.spk.dtype).reshape(-1, *[1] * (chunk.spk.dim() - 1)).expand_as(chunk.spk)
        row = dynamics.whole(chunk, upstream, none, wide)
        of_inputs: List[Optional[Trace]] = []
        for number, (a, u) in enumerate(zip(afferents, inputs)):
            trace = None
            if a.parameters():
                trace = _summed(row, places, u, a, _at(states, number), False)
                for factor, earlier in zip(carry, _at(before, number)):
                    if earlier is not None:
                        trace.inputs.addcmul_(factor.to(trace.inputs.dtype), earlier.inputs)
                        trace = trace._replace(ones=trace.ones + factor * earlier.ones)
            of_inputs.append(trace)
        of_parameters: List[Optional[torch.Tensor]] = []
        for number, need in enumerate(chunk.needs):
            if not need:
                of_parameters.append(None)
                continue
            total = _of_parameter(row, places, number, states)
            for factor, state in zip(carry, [] if before is None else before.parameters):
                own = state[number]
                total = total if own is None else total + factor * own
            of_parameters.append(total)
        made.inputs.append(of_inputs)
        made.parameters.append(of_parameters)
    return made


def carried(known: Sequence[Tuple[Traces, Sequence[torch.Tensor]]], number: int) -> List[Tuple[Trace, torch.Tensor]]:
    """The traces of one of the neurons' inputs, each with the gradient of the state that it is of."""
    pairs = [pair for traces, grads in known for pair in zip(_at(traces, number), grads)]
    return [(trace, grad) for trace, grad in pairs if trace is not None]


def of_parameter(traces: Traces, number: int, grads: Sequence[torch.Tensor], value: torch.Tensor) -> Any:
    """The gradient of a parameter by what the states before a chunk owe to it."""
    total: Any = 0
    for grad, state in zip(grads, traces.parameters):
        trace = state[number]
        if trace is not None:
            total = total + (grad.reshape(-1) * trace).reshape(-1, value.numel()).sum(0).reshape(value.shape)
    return total
