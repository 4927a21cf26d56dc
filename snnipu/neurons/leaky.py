"""``snnipu.Leaky``: snnTorch's leaky integrate-and-fire layer on fused kernels."""

import warnings
from typing import Any, Sequence

import snntorch
import torch

from snnipu.backends import popart
from snnipu.neurons.fused import FusedNeuron
from snnipu.ops import step_operators


class Leaky(FusedNeuron, snntorch.Leaky):
    r"""Leaky integrate-and-fire neurons of first order: ``snntorch.Leaky`` 1.0 as a fused operator.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        u_t &= \beta u_{t-1} + x_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= \beta (1 - r_t) u_{t-1} + x_t \quad \text{(zero)} \\
        u_t &= \beta u_{t-1} + x_t \quad \text{(none)} \\
        s_t &= g H(u_t - \theta)

    :math:`x` is the input current, :math:`u` the membrane ``mem``, :math:`s` the spikes, :math:`r` the reset. Membrane,
    current and threshold have the same unit, and a time step is the unit of time. :math:`H` is the step function with
    :math:`H(0) = 0`. In the backward pass the surrogate replaces its derivative. The reset carries no gradient.

    .. code-block:: python

        lif = snn.Leaky(beta=0.9)
        spk, mem = lif(x, mem)           # one step: x, spk and mem are [B, ...]
        spk, mem = lif.sequence(x)       # T steps as one operator: x, spk and mem are [T, B, ...]

    Signature, defaults, numbers, gradients and ``state_dict`` equal snnTorch's. One step has the dtypes of the
    installed snnTorch: 1.0 returns float32 spikes, and a float32 membrane for 16-bit inputs; later versions keep the
    input's dtype.

    Args:
        beta: :math:`\beta`, the decay of the membrane per step. The step clamps it to [0, 1]. A number, or a tensor
            that broadcasts to one step ``[B, ...]``: one element for all neurons, or one for each neuron.
        threshold: :math:`\theta`, the membrane above which a neuron spikes; a number or a tensor, as ``beta``.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes ``mem - threshold`` and returns the spikes. None: ``atan()``.
        surrogate_disable: if True, spikes carry no gradient, and ``spike_grad`` is ignored.
        init_hidden: if True, the layer keeps its membrane from call to call: a call takes the current alone and returns
            the spikes alone. If False, the caller passes ``mem`` to each step.
        inhibition: if True, at most one neuron of each sample spikes: the neuron with the largest
            ``mem - threshold``. Inputs are then ``[B, N]``.
        learn_beta: if True, ``beta`` is an ``nn.Parameter``, otherwise a buffer.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        reset_mechanism: change of the membrane after a spike: ``"subtract"`` the threshold, set it to ``"zero"``, or
            ``"none"``. The attribute may be set at any time.
        state_quant: function that rounds the membrane after each step, such as
            :func:`snnipu.functional.quant.state_quant` returns; False: no rounding.
        output: if True, calls return ``(spk, mem)`` also with ``init_hidden=True``.
        graded_spikes_factor: :math:`g`, the value of a spike; a number or a tensor, as ``beta``.
        learn_graded_spikes_factor: if True, ``graded_spikes_factor`` is an ``nn.Parameter``, otherwise a buffer.
        reset_delay: if True, the reset follows one step after its spike, as in the equations. If False, the membrane is
            reset in the step of the spike.

    Attributes:
        mem: the membrane after the last step, ``[B, ...]``; no elements before the first step.
        reset: the reset :math:`r` of the last step, ``[B, ...]``.

    Raises:
        TypeError: ``spike_grad`` is not callable.
        ValueError: unknown ``reset_mechanism``.

    The fused operator covers every reset mechanism, ``reset_delay``, learnable parameters and all surrogates of
    ``snnipu.surrogate`` and ``snntorch.surrogate``. snnTorch's code runs instead, step by step, for ``inhibition``,
    ``state_quant`` and any other ``spike_grad``. It also runs if a subclass or an instance replaces a part of the step
    (``fire``, ``mem_reset``, ``state_function``, ``_base_*``, or a parameter by a property); a warning names the part.
    If ``forward`` is replaced, :meth:`sequence` calls it for each step.

    Differences from snnTorch:

    * Setting ``reset_mechanism`` after construction takes effect.
    * The ``sigmoid`` surrogate is finite far from the threshold, and ``LSO`` works.
    * Modules can be pickled and deep-copied, also after a forward pass.
    * ``mem`` is an attribute that moves with the module, not a buffer. ``DistributedDataParallel`` does not synchronise
      it.
    * ``load_state_dict`` accepts a parameter of shape ``[1]`` for one of shape ``[]``, and the reverse.
    * If ``mem`` has another shape than the input, the step starts from zeros, as in snnTorch, with a warning.
    * A second derivative through the fused operator is an error.
    * ``SpikingNeuron.instances`` does not keep neurons alive.

    Source: ``snntorch.Leaky`` 1.0; Eshraghian et al., "Training spiking neural networks using lessons from deep
    learning", Proc. IEEE 2023.
    """

    equation, options, stock = "leaky", ("reset_mechanism", "reset_delay"), snntorch.Leaky

    mem: Any

    # The operator is in the graphs of other compilers, too.
    fuses_when_compiled = True

    def _has_kernel(self) -> bool:
        # On every device. The operator evaluates a surrogate without a kernel as a PyTorch function, except in traces.
        surrogate = self._surrogate()
        return surrogate is not None and (surrogate.kernel is not None or not step_operators.tracing())

    def _on_ipu(self) -> bool:
        on_ipu = popart.uses_operator("Leaky", "NeuronSequence")
        if on_ipu and not self._fuses():
            raise RuntimeError(
                "Leaky cannot run on an IPU with inhibition, state_quant, a spike_grad that is a Python function, or "
                "replaced parts of its step: its PopART operator has none of these"
            )
        return on_ipu

    def _check_step(self, input_: Any, states: Sequence[Any]) -> None:
        if not isinstance(input_, torch.Tensor):
            raise TypeError(f"input_ must be a torch.Tensor, got {type(input_).__name__}")
        mem = states[0] if states else None
        if mem is not None and self.init_hidden:
            raise TypeError("`mem` should not be passed as an argument while `init_hidden=True`")
        if mem is not None and not isinstance(mem, torch.Tensor):
            raise TypeError(f"mem must be a torch.Tensor or None, got {type(mem).__name__}")
        if input_.is_complex() or (mem is not None and mem.is_complex()):
            raise TypeError(f"input_ must be real and floating (or integer), got {input_.dtype}")
        if mem is None or mem.shape == input_.shape or mem.numel() <= 1 or step_operators.tracing():
            return  # in a trace, a warning would end the graph
        # `init_leaky()` returns zeros of the last call's shape, so zeros before a smaller last batch are no mistake.
        if not mem.is_meta and not torch._C._functorch.is_batchedtensor(mem) and not mem.any():
            return
        message = f"mem of shape {tuple(mem.shape)} does not fit the input's {tuple(input_.shape)}: starting from zeros"
        if mem.shape[1:] != input_.shape[1:]:
            message += "; is it another layer's?"
        warnings.warn(message, stacklevel=5)  # the caller of nn.Module.__call__

    def _fused_step(self, input_: torch.Tensor, states: Sequence[Any]) -> Any:
        if not self._on_ipu():
            return super()._fused_step(input_, states)
        current = input_ if input_.dtype == torch.float64 else input_.float()
        state = self.mem if not states or states[0] is None else states[0]
        spk, (self.mem,) = self._kernel_step(current, [state if state.shape == current.shape else None])
        return spk if self.init_hidden and not self.output else (spk, self.mem)

    def _returns_states(self) -> bool:
        return True
