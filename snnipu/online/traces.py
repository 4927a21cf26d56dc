"""Traces: what the states after a chunk owe to the parameters, carried forward in place of the chunk.

Where the history of the states is the same for all neurons, the trace of a weight is one of its input: ``[B, inputs]``
for each state. Elsewhere every neuron has its own, ``[B, neurons, inputs]``.
"""

from typing import Any, List, NamedTuple, Optional, Sequence

import torch

from snnipu.online.afferents import Afferents
from snnipu.online.dynamics import Chunk, Dynamics, Gradients


class Trace(NamedTuple):
    """Of one state and one of the neurons' inputs: the weighted sum of the steps' inputs, and that of ones."""

    inputs: torch.Tensor
    ones: torch.Tensor


class Traces(NamedTuple):
    """Of a neuron's states: for each that counts the traces of its inputs, and of its parameters ``[B * neurons]``."""

    inputs: List[List[Optional[Trace]]]
    parameters: List[List[Optional[torch.Tensor]]]


def jacobian(dynamics: Dynamics, chunk: Chunk, place: int, spread: Optional[List[torch.Tensor]]) -> Gradients:
    """The gradients of a state after the chunk."""
    final: List[Optional[torch.Tensor]] = [None] * len(chunk.states)
    final[place] = torch.ones_like(chunk.initial[place])
    return dynamics.history(chunk, [], final, spread)


def spread(values: Sequence[torch.Tensor], like: torch.Tensor) -> List[torch.Tensor]:
    """Parameters, one for each neuron of each sample."""
    count = like.numel()
    return [v.reshape(-1).repeat(count // v.numel()) if v.numel() != count else v.reshape(-1) for v in values]


def one_neuron(chunk: Chunk) -> Chunk:
    """A chunk of one neuron, for derivatives that do not depend on the states."""
    none = chunk.x.new_zeros((chunk.x.shape[0], 1))
    states = [none] * len(chunk.states)
    return Chunk(none, none, [none[0]] * len(states), states, None, [v.reshape(-1)[:1] for v in chunk.values])


def after(
    dynamics: Dynamics,
    chunk: Chunk,
    afferents: Sequence[Afferents],
    inputs: Sequence[torch.Tensor],
    needs: Sequence[bool],
    before: Optional[Traces],
) -> Traces:
    """The traces after a chunk; ``needs``: of which parameters."""
    uniform = dynamics.is_uniform(chunk.values)
    places = dynamics.remembers
    full = any(needs) or (not uniform and any(a.parameters() for a in afferents))
    wide = spread(chunk.values, chunk.initial[0]) if full else None
    own = [jacobian(dynamics, chunk, place, wide) for place in places] if full else []
    alike = [jacobian(dynamics, one_neuron(chunk), place, None) for place in places] if uniform else own
    patches = [u if uniform or not a.parameters() else a.patches(u) for a, u in zip(afferents, inputs)]
    made = Traces([], [])
    for row in range(len(places)):
        made.inputs.append(
            [
                (_shared if uniform else _own)(
                    alike[row], places, u, [t[number] for t in before.inputs] if before else []
                )
                if a.parameters()
                else None
                for number, (a, u) in enumerate(zip(afferents, patches))
            ]
        )
        made.parameters.append(
            [
                _of_parameter(own[row], places, number, [t[number] for t in before.parameters] if before else [])
                if need
                else None
                for number, need in enumerate(needs)
            ]
        )
    return made


def _shared(row: Gradients, places: Sequence[int], u: torch.Tensor, before: Sequence[Trace]) -> Trace:
    weights = row.x.reshape(-1).to(u.dtype)
    inputs = (weights @ u.flatten(1)).reshape(u.shape[1:])
    ones = weights.sum()
    for place, trace in zip(places, before):
        inputs = inputs + row.before[place].reshape(()) * trace.inputs
        ones = ones + row.before[place].reshape(()) * trace.ones
    return Trace(inputs, ones)


def _own(row: Gradients, places: Sequence[int], patches: torch.Tensor, before: Sequence[Trace]) -> Trace:
    steps, batch, groups, _, count = patches.shape
    weights = row.x.reshape(steps, batch, groups, -1, count)
    inputs = torch.einsum("tbgop,tbgkp->bgopk", weights, patches)
    ones = weights.sum(0)
    for place, trace in zip(places, before):
        by = row.before[place].reshape(ones.shape)
        inputs = inputs + by.unsqueeze(-1) * trace.inputs
        ones = ones + by * trace.ones
    return Trace(inputs, ones)


def _of_parameter(row: Gradients, places: Sequence[int], number: int, before: Sequence[Any]) -> torch.Tensor:
    made = row.parameters[number]
    for place, trace in zip(places, before):
        made = made + row.before[place].reshape(-1) * trace
    return made


def of_inputs(traces: Traces, afferents: Afferents, number: int, shape: torch.Size) -> List[torch.Tensor]:
    """What the body of one of the neurons' inputs makes of its traces, state by state, ``[B, ...]``."""
    made = []
    for state in traces.inputs:
        trace = state[number]
        assert trace is not None
        of_trace = afferents.of_own_traces if trace.ones.dim() else afferents.of_trace
        made.append(of_trace(trace.inputs, trace.ones).reshape(shape))
    return made


def of_parameter(traces: Traces, number: int, grads: Sequence[torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter by what the states before a chunk owe to it."""
    total = sum(grad.reshape(-1) * state[number] for grad, state in zip(grads, traces.parameters))
    assert isinstance(total, torch.Tensor)
    return total.reshape(-1, value.numel()).sum(0).reshape(value.shape)
