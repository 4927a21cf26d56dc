"""Batch norm in training over time."""

from typing import Optional

import torch
from torch.nn import functional

# Larger steps are normed one by one on a CPU: copying them together would take longer than the calls.
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
    """``batch_norm`` in training of each step of ``[T, B, C, ...]``: small steps as one norm of ``T * C`` channels.

    The result is that of T calls; the running averages are theirs to rounding.
    """
    steps, channels = x.shape[0], x.shape[2]
    # Of an empty batch the averages stay as they are; one value a channel is PyTorch's error.
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
    # Averages of momentum 1 are the batch's own.
    out = functional.batch_norm(batch, means, variances, weights, biases, True, 1.0, eps)
    if means is not None and running_mean is not None:
        _average(running_mean, means, momentum)
    if variances is not None and running_var is not None:
        _average(running_var, variances, momentum)
    return out.unflatten(1, (steps, channels)).transpose(0, 1)


def _average(running: torch.Tensor, values: torch.Tensor, momentum: float) -> None:
    """``running = momentum * value + (1 - momentum) * running`` for the values of all steps, ``[T * C]``."""
    steps = values.numel() // running.numel()
    weights = [momentum * (1 - momentum) ** (steps - 1 - t) for t in range(steps)]
    total = torch.mv(values.view(steps, -1).t(), values.new_tensor(weights))
    # As in PyTorch's own, the averages' version stays: each call of batch_norm keeps them for its backward pass, which
    # does not read them. Under a compiler's tensors, .data would be lost.
    target = running.data if type(running) is torch.Tensor else running
    target.mul_((1 - momentum) ** steps).add_(total)
