"""Traces: the derivatives of the states with respect to the parameters, carried forward from chunk to chunk.

If the Jacobian of the states is the same for all neurons, the trace of a weight is that of its input: ``[B, inputs]``
for each state. Otherwise every neuron has its own trace, ``[B, neurons, inputs]``.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu.online.afferents import Afferents, WeightTrace
from snnipu.online.dynamics import AdjointGradients, Dynamics, NeuronChunk
from snnipu.online.events import DenseOrSparse, dense_steps, weighted_sum

Pairs = List[Tuple[torch.Tensor, torch.Tensor]]


class Traces(NamedTuple):
    """The traces of a neuron, for each state with a history: of its inputs, and of its parameters ``[B * neurons]``."""

    inputs: List[List[Optional[WeightTrace]]]
    parameters: List[List[Optional[torch.Tensor]]]


def jacobian(
    dynamics: Dynamics, chunk: NeuronChunk, place: int, values: Optional[List[torch.Tensor]]
) -> AdjointGradients:
    """Return the gradients of state ``place`` after the chunk."""
    final: List[Optional[torch.Tensor]] = [None] * len(chunk.states)
    final[place] = torch.ones_like(chunk.initial[place])
    return dynamics.history(chunk, None, [], final, values)


def per_neuron_values(values: Sequence[torch.Tensor], state: torch.Tensor) -> List[torch.Tensor]:
    """Expand the values of parameters to one for each neuron of each sample."""
    count = state.numel()
    return [v.reshape(-1).repeat(count // v.numel()) if v.numel() != count else v.reshape(-1) for v in values]


def traces_after(
    dynamics: Dynamics,
    chunk: NeuronChunk,
    afferents: Sequence[Afferents],
    inputs: Sequence[DenseOrSparse],
    before: Optional[Traces],
) -> Traces:
    """Return the traces after a chunk."""
    # Once each weight has a trace, its inputs cannot have one again.
    earlier = [] if before is None else [trace for state in before.inputs for trace in state if trace is not None]
    uniform = dynamics.is_uniform and not any(trace.ones.dim() for trace in earlier)
    places = dynamics.history_states
    full = any(chunk.needs) or (not uniform and any(a.parameters() for a in afferents))
    expanded = per_neuron_values(chunk.values, chunk.initial[0]) if full else None
    per_neuron = [jacobian(dynamics, chunk, place, expanded) for place in places] if full else []
    for_inputs = dynamics.unit_gradients(chunk) if uniform else per_neuron
    traces = Traces([], [])
    for index in range(len(places)):
        traces.inputs.append(
            [
                _add_chunk(for_inputs[index], places, u, a, _input_traces_of(before, number), uniform)
                if a.parameters()
                else None
                for number, (a, u) in enumerate(zip(afferents, inputs))
            ]
        )
        traces.parameters.append(
            [
                _parameter_trace(per_neuron[index], places, number, before) if need else None
                for number, need in enumerate(chunk.needs)
            ]
        )
    return traces


def _input_traces_of(traces: Optional[Traces], number: int) -> List[Optional[WeightTrace]]:
    """Return the traces of input ``number``, for each state."""
    return [] if traces is None else [state[number] for state in traces.inputs]


def _add_chunk(
    jacobian: AdjointGradients,
    places: Sequence[int],
    u: DenseOrSparse,
    afferents: Afferents,
    before: Sequence[Optional[WeightTrace]],
    uniform: bool,
) -> WeightTrace:
    """Return the trace after a chunk: the weighted inputs of the chunk plus the weighted earlier traces.

    ``jacobian`` has the weights: the gradients of the state with respect to the chunk's inputs and the earlier states.
    """
    if uniform:
        weights = jacobian.x.reshape(-1).to(u.dtype)
        inputs, ones = weighted_sum(weights, u), weights.sum()
        for place, trace in zip(places, before):
            if trace is not None:
                factor = jacobian.before[place].reshape(())
                inputs, ones = inputs + factor * trace.inputs, ones + factor * trace.ones
        return WeightTrace(inputs, ones)
    patches = [afferents.patches(dense_steps(u))]
    groups, positions = patches[0].shape[2], patches[0].shape[-1]
    outputs = jacobian.x.shape[2:].numel() // (groups * positions)
    weights = jacobian.x.reshape(*patches[0].shape[:3], outputs, positions)
    factors, ones = [weights], weights.sum(0)
    weight_traces: Pairs = []
    for place, trace in zip(places, before):
        if trace is None:
            continue
        factor = jacobian.before[place].reshape(weights.shape[1:])
        ones = ones + factor * trace.ones
        if trace.ones.dim():
            weight_traces.append((factor, trace.inputs))
        else:  # a trace of the inputs counts as one more step
            factors.append(factor.unsqueeze(0))
            patches.append(afferents.patches(trace.inputs.unsqueeze(0)))
    inputs = torch.einsum("tbgop,tbgkp->bgopk", _concatenated(factors), _concatenated(patches))
    for factor, earlier in weight_traces:
        inputs.addcmul_(factor.unsqueeze(-1), earlier)  # in place: a copy has the size of the weights for each sample
    return WeightTrace(inputs, ones)


def _concatenated(parts: List[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _parameter_trace(
    jacobian: AdjointGradients, places: Sequence[int], number: int, before: Optional[Traces]
) -> torch.Tensor:
    total = jacobian.parameters[number]
    for place, state in zip(places, [] if before is None else before.parameters):
        trace = state[number]
        if trace is not None:
            total = total + jacobian.before[place].reshape(-1) * trace
    return total


# ---- the leaky readout of e-prop, whose states depend on earlier spikes of the layers below


class ReadoutFilter(NamedTuple):
    """The derivatives of a readout's states after a chunk.

    ``steps`` are those with respect to the input of each step ``[T]``, ``before`` to the states before the chunk.
    """

    steps: List[torch.Tensor]
    before: List[List[torch.Tensor]]


def readout_filter(dynamics: Dynamics, chunk: NeuronChunk) -> ReadoutFilter:
    places = dynamics.history_states
    rows = dynamics.unit_gradients(chunk)
    return ReadoutFilter(
        [gradients.x.reshape(-1) for gradients in rows],
        [[gradients.before[place].reshape(()) for place in places] for gradients in rows],
    )


def low_pass(readout: ReadoutFilter, spk: torch.Tensor, before: Optional[List[torch.Tensor]]) -> List[torch.Tensor]:
    """Return the low-pass filtered spikes ``[T, B, ...]`` for each state of the readout."""
    filtered = []
    for weights, carry in zip(readout.steps, readout.before):
        spikes = (weights.to(spk.dtype) @ spk.flatten(1)).reshape(spk.shape[1:])
        for factor, value in zip(carry, before or []):
            spikes = spikes + factor * value
        filtered.append(spikes)
    return filtered


def filtered_traces_after(
    readout: ReadoutFilter,
    dynamics: Dynamics,
    chunk: NeuronChunk,
    afferents: Sequence[Afferents],
    inputs: Sequence[DenseOrSparse],
    states: Optional[Traces],
    before: Optional[Traces],
) -> Traces:
    """Return the traces of :func:`low_pass` spikes; ``states`` are the traces of the neuron before the chunk."""
    expanded = per_neuron_values(chunk.values, chunk.initial[0])
    no_gradients: List[Optional[torch.Tensor]] = [None] * len(chunk.states)
    places = dynamics.history_states
    traces = Traces([], [])
    for weights, carry in zip(readout.steps, readout.before):
        upstream = weights.to(chunk.spk.dtype).reshape(-1, *[1] * (chunk.spk.dim() - 1)).expand_as(chunk.spk)
        gradients = dynamics.total(chunk, upstream, no_gradients, expanded)
        of_inputs: List[Optional[WeightTrace]] = []
        for number, (a, u) in enumerate(zip(afferents, inputs)):
            trace = None
            if a.parameters():
                trace = _add_chunk(gradients, places, u, a, _input_traces_of(states, number), False)
                for factor, earlier in zip(carry, _input_traces_of(before, number)):
                    if earlier is not None:
                        trace.inputs.addcmul_(factor.to(trace.inputs.dtype), earlier.inputs)
                        trace = trace._replace(ones=trace.ones + factor * earlier.ones)
            of_inputs.append(trace)
        of_parameters: List[Optional[torch.Tensor]] = []
        for number, need in enumerate(chunk.needs):
            if not need:
                of_parameters.append(None)
                continue
            total = _parameter_trace(gradients, places, number, states)
            for factor, state in zip(carry, [] if before is None else before.parameters):
                previous = state[number]
                total = total if previous is None else total + factor * previous
            of_parameters.append(total)
        traces.inputs.append(of_inputs)
        traces.parameters.append(of_parameters)
    return traces


def input_traces(
    trace_grads: Sequence[Tuple[Traces, Sequence[torch.Tensor]]], number: int
) -> List[Tuple[WeightTrace, torch.Tensor]]:
    """Return the traces of input ``number``, each with the gradient of its state."""
    pairs = [pair for traces, grads in trace_grads for pair in zip(_input_traces_of(traces, number), grads)]
    return [(trace, grad) for trace, grad in pairs if trace is not None]


def parameter_gradient(traces: Traces, number: int, grads: Sequence[torch.Tensor], value: torch.Tensor) -> Any:
    """Return the gradient of parameter ``number`` through the states before a chunk."""
    total: Any = 0
    for grad, state in zip(grads, traces.parameters):
        trace = state[number]
        if trace is not None:
            total = total + (grad.reshape(-1) * trace).reshape(-1, value.numel()).sum(0).reshape(value.shape)
    return total
