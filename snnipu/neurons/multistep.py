"""``snnipu.MultiStep``: ``nn.Sequential`` over time."""

from typing import Any, List, Optional, Tuple, Union

import snntorch
import torch
from torch import nn

from snnipu.neurons.leaky import Leaky
from snnipu.ops.lif_sequence import check_num_steps

# One step's output depends on one step's input only, sample by sample: all steps may run as one batch.
_STATELESS = (
    nn.Linear,
    nn.Bilinear,
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.Embedding,
    nn.Softmax,
    nn.LogSoftmax,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.Tanh,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Threshold,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
    nn.Upsample,
    nn.PixelShuffle,
    nn.ZeroPad2d,
)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _is_exactly(module: nn.Module, types: Tuple[type, ...]) -> bool:
    # A subclass may keep state or look at the whole batch; hooks may count calls.
    return type(module) in types and not module._forward_hooks and not module._forward_pre_hooks


def is_stateless(module: nn.Module) -> bool:
    """Whether every step's output is a function of the same step's input, the same for every step and sample."""
    if type(module) is nn.Sequential:
        return all(is_stateless(child) for child in module)
    if not module.training and (_is_exactly(module, _DROPOUTS) or _is_exactly(module, _BATCH_NORMS)):
        # In evaluation a batch norm uses its running statistics, if it keeps any.
        return not isinstance(module, _BATCH_NORMS) or module.track_running_stats
    return _is_exactly(module, _STATELESS)


def runs_as_one_batch(module: nn.Module) -> bool:
    """Whether all steps may run as one batch: stateless, or dropout, whose masks differ from step to step anyway."""
    if type(module) is nn.Sequential:
        return all(runs_as_one_batch(child) for child in module)
    return is_stateless(module) or _is_exactly(module, _DROPOUTS)


class MultiStep(nn.Sequential):
    """Modules in sequence, over time.

    .. code-block:: python

        net = snn.MultiStep(nn.Linear(784, 1000), snn.Leaky(beta=0.9), nn.Linear(1000, 10), snn.Leaky(beta=0.9))
        spk, mem = net(x)                  # x [T, B, 784]: one current for each step
        spk, mem = net(x, num_steps=25)    # x [B, 784], held constant: the first Linear runs once

    The result is that of a loop over time which passes each step through all modules; spikes are what goes from a
    neuron to the next module, and the last module's result is returned with all steps stacked (``(spk, mem)`` from a
    :class:`Leaky`). What runs how:

    * :class:`Leaky`: the whole sequence as one fused operator;
    * PyTorch's own stateless modules (linear, convolution, pooling, activations, layer norm, dropout; batch norm in
      evaluation): all steps as one batch, and once for a constant input;
    * snnTorch's other neurons and any other module: step by step, in order. Neurons' states are passed from step to
      step. Batch norm in training uses each step's statistics.

    Neurons start from zeros in each call; those with ``init_hidden=True`` go on where they ended, until
    ``utils.reset(net)``.
    """

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, num_steps: Optional[int] = None
    ) -> Union[torch.Tensor, Tuple[torch.Tensor, ...]]:
        """Run all steps.

        Args:
            x: ``[T, B, ...]``; with ``num_steps``, ``[B, ...]``.
            num_steps: number of steps for which ``x`` is held constant.

        Returns:
            What the last module returns, with time as first dimension.

        Raises:
            TypeError: ``x`` is not a tensor; ``num_steps`` is not an int.
            ValueError: no modules; ``x`` without a time (or batch) dimension; ``num_steps`` below 1; no time steps.
        """
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
        if len(self) == 0:
            raise ValueError("MultiStep has no modules")
        if num_steps is not None:
            check_num_steps(num_steps)
        if x.dim() < (2 if num_steps is None else 1):
            raise ValueError(
                f"x must have shape {'[T, B, ...]' if num_steps is None else '[B, ...]'}, got {tuple(x.shape)}"
            )
        if num_steps is None and x.shape[0] == 0:
            raise ValueError(f"x must have at least one time step, got shape {tuple(x.shape)}")
        out: Any = x
        constant = num_steps  # not None: `out` is one step's value, the same at all of them
        for position, module in enumerate(self):
            if isinstance(out, tuple):
                out = out[0]
            if constant is not None and is_stateless(module):
                out = module(out)
            elif isinstance(module, MultiStep):
                out = module(out, num_steps=constant)
                constant = None
            elif isinstance(module, Leaky) and not module._forward_hooks and not module._forward_pre_hooks:
                last = position == len(self) - 1
                out = (module.sequence if last else module.spikes)(out, num_steps=constant)
                constant = None
            else:
                if constant is not None:
                    out = out.unsqueeze(0).expand(constant, *out.shape)
                    constant = None
                out = _as_one_batch(module, out) if runs_as_one_batch(module) else _by_steps(module, out)
        if constant is not None:
            out = out.unsqueeze(0).expand(constant, *out.shape)
        return out


def _as_one_batch(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out = module(x.flatten(0, 1))
    return out.unflatten(0, x.shape[:2])


def _by_steps(module: nn.Module, x: torch.Tensor) -> Union[torch.Tensor, Tuple[torch.Tensor, ...]]:
    """Step by step; a neuron that returns its state gets it back in the next step."""
    threads_state = isinstance(module, snntorch.SpikingNeuron) and not module.init_hidden
    state: Tuple[torch.Tensor, ...] = ()
    steps: List[Any] = []
    for current in x:
        out = module(current, *state)
        if threads_state and isinstance(out, tuple):
            state = out[1:]
        steps.append(out)
    if isinstance(steps[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*steps))
    return torch.stack(steps)
