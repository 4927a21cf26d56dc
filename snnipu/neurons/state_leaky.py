"""``snnipu.StateLeaky`` and ``snnipu.LinearLeaky``: snnTorch's leaky integrators over whole sequences, fused."""

from typing import Any

import torch

from snnipu._checks import DTYPES
from snnipu._names.stock import stock
from snnipu._route import is_exporting
from snnipu.ops.lif_sequence import lif_sequence

_StateLeaky: Any = stock("StateLeaky")
_LinearLeaky: Any = stock("LinearLeaky")


class _Recurrence(_StateLeaky):
    """The membranes as a recurrence; snnTorch convolves with ``exp(-t / tau)``."""

    tau: torch.Tensor
    kernel_truncation_steps: Any

    def _base_state_function(self, input_: torch.Tensor) -> torch.Tensor:
        if is_exporting():
            return super()._base_state_function(input_)
        truncated = self.kernel_truncation_steps is not None and self.kernel_truncation_steps < input_.shape[0]
        if truncated or input_.dtype not in DTYPES or input_.numel() == 0 or not bool((self.tau > 0).all()):
            return super()._base_state_function(input_)
        decay = torch.exp(-1 / self.tau.to(input_.device))
        return lif_sequence(input_, beta=decay, reset_mechanism="none")[1]


class StateLeaky(_Recurrence):
    r"""Leaky integrators without reset, ``[T, B, C]`` a call: ``snntorch.StateLeaky`` 1.0, fused.

    .. math:: U[t] = e^{-1 / \tau} U[t - 1] + I[t]

    Signature and ``state_dict`` are snnTorch's. It convolves the input with :math:`e^{-t/\tau}`, in a time that grows
    with the square of the steps; the recurrence here rounds otherwise, and no worse: membranes differ by the rounding
    of sums (2e-7 of their scale in float32), and a spike may where a membrane is that close to the threshold.
    snnTorch's own code runs for ``kernel_truncation_steps`` below the number of steps, and for time constants that are
    not positive.
    """


class LinearLeaky(_Recurrence, _LinearLeaky):
    """An ``nn.Linear`` and a :class:`StateLeaky`: ``snntorch.LinearLeaky`` 1.0, fused."""
