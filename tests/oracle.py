"""Independent definitions the package is checked against: snnTorch's own loop and comparisons."""

import inspect

import snntorch
import torch


def snntorch_loop(x, mem=None, num_steps=None, **keywords):
    """snnTorch's layer, one step after the other; spikes and membranes stacked."""
    layer = snntorch.Leaky(**keywords)
    layer.to(x.device)
    steps = x.shape[0] if num_steps is None else num_steps
    layer.mem = torch.zeros_like(x[0] if num_steps is None else x) if mem is None else mem
    spks, mems = [], []
    for t in range(steps):
        spk, mem = layer(x[t] if num_steps is None else x)
        spks.append(spk)
        mems.append(mem)
    return torch.stack(spks), torch.stack(mems), layer


def relative_error(actual, expected):
    """Largest absolute difference over the largest expected magnitude."""
    actual, expected = actual.double(), expected.double()
    return ((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()


def keyword_names(function):
    return list(inspect.signature(function).parameters)
