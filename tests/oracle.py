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


def relative_error(actual, expected, terms=None):
    """Largest absolute difference over the largest expected magnitude.

    A parameter's gradient is a sum whose terms may cancel, and no sum in float32 is better than its terms: with
    ``terms``, their largest magnitude counts as well.
    """
    actual, expected = actual.double(), expected.double()
    scale = expected.abs().max()
    if terms is not None:
        scale = torch.maximum(scale, terms.double().abs().max())
    return ((actual - expected).abs().max() / scale.clamp_min(1e-30)).item()


def keyword_names(function):
    return list(inspect.signature(function).parameters)
