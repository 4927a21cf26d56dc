"""Layers with weights, and the versions of tensors."""

import torch
from torch import nn

LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def version(tensor: torch.Tensor) -> int:
    """Return the tensor's version, which each change in place increments; 0 for inference tensors."""
    return 0 if tensor.is_inference() else tensor._version
