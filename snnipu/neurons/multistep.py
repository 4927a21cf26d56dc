"""PLACEHOLDER while the fused layer is written: same interface."""

import torch
from torch import nn

from snnipu.neurons.leaky import Leaky


class MultiStep(nn.Sequential):
    def forward(self, x, num_steps=None):
        if num_steps is not None:
            x = x.unsqueeze(0).expand(num_steps, *x.shape)
        out = x
        for module in self:
            if isinstance(out, tuple):
                out = out[0]
            out = module.sequence(out) if isinstance(module, Leaky) else torch.stack([module(step) for step in out])
        return out
