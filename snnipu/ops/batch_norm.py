"""Batch normalisation in training, step by step over time."""

from typing import Optional

import torch
from torch.nn import functional

# Larger steps are normalised one at a time on a CPU: copying them together takes longer than the calls. In elements.
SMALL_STEP = 8192


def batch_norm_over_time(
    x: torch.Tensor,
    running_mean: Optional[torch.Tensor],
    running_var: Optional[torch.Tensor],
    weight: Optional[torch.Tensor] = None,
    bias: Optional[torch.Tensor] = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Apply ``batch_norm`` in training to each step of ``x`` ``[T, B, C, ...]``.

    Small steps run as one normalisation of ``T * C`` channels. The result equals that of T calls. The running averages
    equal theirs up to rounding.
    """
    steps, channels = x.shape[0], x.shape[2]
    # T calls leave the averages unchanged for an empty batch, and raise PyTorch's error for one value a channel.
    is_large = x.device.type == "cpu" and x.numel() > SMALL_STEP * steps
    if is_large or x.numel() <= steps * channels:
        return torch.stack(
            [
                functional.batch_norm(step, running_mean, running_var, weight, bias, True, momentum, eps)
                for step in x.unbind()
            ]
        )
    batch = x.transpose(0, 1).flatten(1, 2)
    means = variances = None
    if running_mean is not None and running_var is not None:
        means, variances = running_mean.new_zeros(steps * channels), running_var.new_zeros(steps * channels)
    weights = None if weight is None else weight.repeat(steps)
    biases = None if bias is None else bias.repeat(steps)
    # With momentum 1 the averages are those of the batch.
    out = functional.batch_norm(batch, means, variances, weights, biases, True, 1.0, eps)
    if means is not None and running_mean is not None:
        _average(running_mean, means, momentum)
    if variances is not None and running_var is not None:
        _average(running_var, variances, momentum)
    return out.unflatten(1, (steps, channels)).transpose(0, 1)


def _average(running: torch.Tensor, values: torch.Tensor, momentum: float) -> None:
    """Apply ``running = momentum * value + (1 - momentum) * running`` for all steps; ``values`` is ``[T * C]``."""
    steps = values.numel() // running.numel()
    weights = [momentum * (1 - momentum) ** (steps - 1 - t) for t in range(steps)]
    total = torch.mv(values.view(steps, -1).t(), values.new_tensor(weights))
    # .data keeps the version counter, as PyTorch's batch_norm does: its backward pass saves the averages and does not
    # read them. The tensors of a compiler lose changes through .data.
    target = running.data if type(running) is torch.Tensor else running
    target.mul_((1 - momentum) ** steps).add_(total)
