"""Arguments of ``neuron_sequence`` for every neuron, and the comparison of its kernels with the reference."""

import itertools

import pytest
import torch
from oracle import reference_of, relative_error
from support.leaky_operator import flat

from snnipu import surrogate
from snnipu.ops import _neurons

KERNEL = surrogate.atan(2.0).kernel
VARIANTS = [
    pytest.param(name, variant, id=f"{name}-{variant}")
    for name in _neurons.BUILT
    for variant in range(len(_neurons.find(name).steps))
]
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2**-6}


def arguments_of(name, shape, dtype=torch.float32, constant=None, counts=None, initial=True):
    """Return x, the initial states and the kernels' parameters, in a range in which the neuron is stable.

    ``counts`` are the numbers of values of the parameters, in turn; by default each neuron has its own values.
    """
    neuron, c = _neurons.find(name), torch.float64 if dtype == torch.float64 else torch.float32
    step = shape if constant is not None else shape[1:]
    states = [torch.randn(step, dtype=c) if initial else None for _ in neuron.states]
    sizes = itertools.cycle(counts or step[-1:])
    parameters = [torch.rand(next(sizes), dtype=c) * 0.6 + 0.3 for _ in neuron.parameters]
    return (torch.randn(shape) * 2).to(dtype), states, parameters or [torch.ones((), dtype=c)]


def stored_states(name, variant):
    """Return the bits of all states but the output."""
    neuron = _neurons.find(name)
    output = neuron.steps[variant].output_state
    return sum(1 << place for place in range(len(neuron.states)) if place != output)


def check(kernels, name, variant, shape, dtype=torch.float32, constant=None, counts=None, **chosen):
    """Compare with the reference: the forward pass bit by bit, gradients up to the order of sums.

    Gradients are computed from stored states and from states that are computed again. Return the results of both
    forward passes.
    """
    initial = chosen.get("initial", True)
    x, states, parameters = arguments_of(name, shape, dtype, constant, counts, initial)
    if chosen.get("exact"):
        x, parameters = x.round().clamp(-2, 2), [torch.full_like(value, 0.5) for value in parameters]
    if chosen.get("gaps"):
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    forward = (x, states, parameters, name, variant, constant, stored_states(name, variant), True)
    actual, expected = kernels.neuron_sequence_fwd(*forward), reference_of("neuron_sequence_fwd")(*forward)
    results = [*flat(actual), *flat(expected)]
    for result, other in zip(flat(actual), flat(expected)):
        assert (result.dtype, result.shape) == (other.dtype, other.shape)
        assert (
            torch.allclose(result, other, rtol=1e-5, atol=1e-6) if chosen.get("close") else torch.equal(result, other)
        )
    spk, states_after, final = expected
    grads = [torch.randn_like(spk), *(torch.randn_like(s) if s.numel() else None for s in states_after)]
    if chosen.get("same"):  # the gradient that a sum over time passes
        grads = [None if grad is None else grad[0].expand_as(grad) for grad in grads]
    if "upstream" in chosen:  # gradients of the spikes or of the states
        grads = [grad if chosen["upstream"] == (place > 0) else None for place, grad in enumerate(grads)]
    ends = [torch.randn_like(state) for state in final]
    learn, kernel = chosen.get("learn", [True] * len(parameters)), chosen.get("kernel", KERNEL)
    if constant == 0:
        constant, grads = 1, [None if grad is None else grad.unsqueeze(0) for grad in grads]
    what = (states, parameters, name, variant, constant, *kernel, [True] * len(states), learn)
    ways = [(x, *what)]
    if constant is None and x.numel():
        every = (*forward[:6], (1 << len(states)) - 1, False)
        stored, read = reference_of("neuron_sequence_fwd")(*every)[1], _neurons.reads_all(name, variant)
        stored = [state if read.states >> place & 1 else x.new_empty(0) for place, state in enumerate(stored)]
        ways.append((x if read.x or not read.states else None, *what, stored))
    tolerance = max(TOLERANCES[dtype], 1e-4 if chosen.get("close") else 0)
    for way in ways:
        backward = (grads[0], grads[1:], ends, *way)
        actual, expected = kernels.neuron_sequence_bwd(*backward), reference_of("neuron_sequence_bwd")(*backward)
        terms = expected[0].double().abs().sum() / max(1, expected[0].numel()) * max(1, x.numel()) ** 0.5
        for place, (result, other) in enumerate(zip(flat(actual), flat(expected))):
            assert (result.dtype, result.shape) == (other.dtype, other.shape)
            if other.numel():
                assert relative_error(result, other, terms if place > len(states) else None) <= tolerance
    return results
