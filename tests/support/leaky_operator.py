"""Leaky over a sequence: arguments of the neurons' operators, and a loop in plain PyTorch."""

import torch

from snnipu.ops import _neurons

RESETS = ("subtract", "zero", "none")
NAMES = ("beta", "threshold", "graded_spikes_factor")


def forward_arguments(x, mem0, parameters, num_steps=None, reset=0, delay=True, store=True, final=True):
    """Return the arguments of ``neuron_sequence_fwd``; ``parameters`` are the equation's, in the order of ``NAMES``."""
    plan = _neurons.plan("leaky", {"reset_mechanism": RESETS[reset], "reset_delay": bool(delay)})
    initial = [x.new_empty(0) if mem0 is None else mem0]
    taken = plan.derive(dict(zip(NAMES, parameters)), None)
    return (x, initial, taken, "leaky", plan.variant, num_steps, int(store), final)


def backward_arguments(forward, upstream, kernel, needs=(True,) * 4, grad_last=None, states=None):
    """Return the arguments of ``neuron_sequence_bwd``.

    ``upstream``: the gradients of the spikes and the membranes. ``needs``: mem0, then the kernels' parameters in order.
    ``states``: the stored membranes; without them the operator computes them again.
    """
    x, (mem0,), parameters, neuron, variant, num_steps = forward[:6]
    initial = [mem0 if mem0.numel() else None]
    final = [] if grad_last is None else [grad_last]
    what = (initial, parameters, neuron, variant, num_steps, *kernel, list(needs[:1]), list(needs[1:]))
    return (upstream[0], [upstream[1]], final, x, *what, *([[states]] if states is not None else []))


def flat(results):
    """Return the tensors of an operator's results as one list."""
    return [results[0], *results[1], *results[2]]


def leaky_loop(x, mem0, beta, threshold, graded, reset, delay):
    """Return spikes and membranes: state and parameters are float32, and decisions use the dtype of ``x``."""
    mem = torch.zeros(x.shape[1:]) if mem0 is None else mem0
    beta, spks, mems = beta.clamp(0, 1), [], []

    def above():
        return (mem.to(x.dtype).float() - threshold > 0).float()

    for current in x.float():
        was = above()
        mem = beta * ((1 - was) * mem) + current if RESETS[reset] == "zero" else beta * mem + current
        if RESETS[reset] == "subtract":
            mem = mem - was * threshold
        fired = above()
        if not delay and RESETS[reset] != "none":
            mem = mem - (fired - was) * (mem if RESETS[reset] == "zero" else threshold)
        spks.append((fired * graded).to(x.dtype))
        mems.append(mem.to(x.dtype))
    return torch.stack(spks), torch.stack(mems)
