"""``snnipu.StateLeaky`` and ``snnipu.LinearLeaky``: snnTorch's leaky integrators as fused operators."""

from typing import Any

import torch

from snnipu._checks import DTYPES
from snnipu._names.stock import stock
from snnipu._route import is_exporting
from snnipu.ops.lif_sequence import lif_sequence

_StateLeaky: Any = stock("StateLeaky")
_LinearLeaky: Any = stock("LinearLeaky")


class _Recurrence(_StateLeaky):
    """The base class of both: membranes by a recurrence, where snnTorch convolves with ``exp(-t / tau)``."""

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
    r"""Leaky integrators without reset, over whole sequences: ``snntorch.StateLeaky`` 1.0, fused.

    .. math::

        U_t &= e^{-1 / \tau} U_{t-1} + I_t, \quad \tau = 1 / (1 - \beta) \\
        S_t &= g^2 H(U_t - \theta)

    :math:`I` is the input current, :math:`U` the membrane ``mem``, :math:`S` the spikes. A call takes all steps:
    ``[T, B, C]``. :math:`H` is the step function with :math:`H(0) = 0`; in the backward pass the surrogate replaces its
    derivative. As in snnTorch 1.0, the factor :math:`g` applies twice.

    .. code-block:: python

        neurons = snn.StateLeaky(beta=0.9, channels=100)
        spk, mem = neurons(x)            # x, spk and mem are [T, B, 100]

    Signature and ``state_dict`` equal snnTorch's. snnTorch convolves the input with :math:`e^{-t / \tau}`, in a time
    that grows with the square of the steps. The recurrence here rounds differently and no worse: in float32 membranes
    differ by 2e-7 of their scale. A spike differs only if the membrane is that close to the threshold. snnTorch's code
    runs for time constants that are not positive.

    Args:
        beta: :math:`\beta`, below 1: a number, or a tensor of one element or ``[C]``. The decay per step is
            :math:`e^{\beta - 1}`, not :math:`\beta`.
        channels: channels ``C`` of the input.
        threshold: :math:`\theta`, the membrane above which a spike is emitted; a number, or a tensor ``[C]``.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes ``mem - threshold`` and returns the spikes. None: ``atan()``.
        surrogate_disable: if True, spikes carry no gradient, and ``spike_grad`` is ignored.
        learn_beta: if True, the time constant ``tau`` is an ``nn.Parameter``, otherwise a buffer.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        state_quant: function that rounds the membranes such as :func:`snnipu.functional.quant.state_quant` returns;
            False: no rounding.
        output: if True, a call returns ``(spk, mem)``; if False, ``mem`` alone, and no spikes are computed.
        graded_spikes_factor: :math:`g`, a factor of the spikes; a number, or a tensor ``[C]``.
        learn_graded_spikes_factor: if True, ``graded_spikes_factor`` is an ``nn.Parameter``, otherwise a buffer.
        kernel_truncation_steps: number of past inputs that contribute to a membrane; None: all. Below the number of
            steps, snnTorch's convolution runs.

    Attributes:
        tau: the time constant :math:`\tau` in steps, of the shape of ``beta``.

    Raises:
        ValueError: ``beta`` has neither one element nor shape ``[C]``.

    Source: ``snntorch.StateLeaky`` 1.0.
    """


class LinearLeaky(_Recurrence, _LinearLeaky):
    r"""An ``nn.Linear`` followed by a :class:`StateLeaky`: ``snntorch.LinearLeaky`` 1.0, fused.

    .. math::

        U_t &= e^{-1 / \tau} U_{t-1} + W x_t + b, \quad \tau = 1 / (1 - \beta) \\
        S_t &= g^2 H(U_t - \theta)

    :math:`x` is the input, :math:`W` and :math:`b` are weight and bias of the layer ``linear``; :class:`StateLeaky`
    defines the other symbols.

    .. code-block:: python

        layer = snn.LinearLeaky(beta=0.9, in_features=784, out_features=100)
        spk, mem = layer(x)              # x [T, B, 784]; spk and mem are [T, B, 100]

    Args:
        beta: :math:`\beta`, below 1: a number, or a tensor of one element or ``[C]``. The decay per step is
            :math:`e^{\beta - 1}`, not :math:`\beta`.
        in_features: features of the input.
        out_features: features ``C`` of the linear layer and channels of the neurons.
        bias: if True, the linear layer has a learnable bias.
        device: device of the linear layer; None: the default device.
        dtype: dtype of the linear layer; None: the default dtype.
        threshold: :math:`\theta`, the membrane above which a spike is emitted; a number, or a tensor ``[C]``.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes ``mem - threshold`` and returns the spikes. None: ``atan()``.
        surrogate_disable: if True, spikes carry no gradient, and ``spike_grad`` is ignored.
        learn_beta: if True, the time constant ``tau`` is an ``nn.Parameter``, otherwise a buffer.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        state_quant: function that rounds the membranes such as :func:`snnipu.functional.quant.state_quant` returns;
            False: no rounding.
        output: if True, a call returns ``(spk, mem)``; if False, ``mem`` alone, and no spikes are computed.
        graded_spikes_factor: :math:`g`, a factor of the spikes; a number, or a tensor ``[C]``.
        learn_graded_spikes_factor: if True, ``graded_spikes_factor`` is an ``nn.Parameter``, otherwise a buffer.
        kernel_truncation_steps: number of past inputs that contribute to a membrane; None: all. Below the number of
            steps, snnTorch's convolution runs.

    Attributes:
        linear: the ``nn.Linear``.
        tau: the time constant :math:`\tau` in steps, of the shape of ``beta``.

    Raises:
        ValueError: ``beta`` has neither one element nor shape ``[C]``.

    Source: ``snntorch.LinearLeaky`` 1.0.
    """
