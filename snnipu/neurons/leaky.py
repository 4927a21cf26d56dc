"""``snnipu.Leaky``: snnTorch's leaky integrate-and-fire layer on fused kernels."""

import warnings
from typing import Any, Optional, Tuple, Union

import snntorch
import torch

from snnipu._checks import DTYPES
from snnipu._names import installed
from snnipu._route import is_exporting
from snnipu.backends import popart
from snnipu.neurons.fused import FusedNeuron
from snnipu.ops import step_operators
from snnipu.ops._arguments import is_compiling
from snnipu.surrogate import SpikeGrad

_LOW_PRECISION = (torch.float16, torch.bfloat16)
_FLOAT = torch.float32


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

    def __init__(
        self,
        beta: Any,
        threshold: Any = 1.0,
        spike_grad: Optional[SpikeGrad] = None,
        surrogate_disable: bool = False,
        init_hidden: bool = False,
        inhibition: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        reset_mechanism: str = "subtract",
        state_quant: Any = False,
        output: bool = False,
        graded_spikes_factor: Any = 1.0,
        learn_graded_spikes_factor: bool = False,
        reset_delay: bool = True,
    ) -> None:
        super().__init__(
            beta,
            threshold=threshold,
            spike_grad=spike_grad,
            surrogate_disable=surrogate_disable,
            init_hidden=init_hidden,
            inhibition=inhibition,
            learn_beta=learn_beta,
            learn_threshold=learn_threshold,
            reset_mechanism=reset_mechanism,
            state_quant=state_quant,
            output=output,
            graded_spikes_factor=graded_spikes_factor,
            learn_graded_spikes_factor=learn_graded_spikes_factor,
            reset_delay=reset_delay,
        )

    mem: torch.Tensor

    def _has_kernel(self) -> bool:
        # On every device. The operator evaluates a surrogate without a kernel as a PyTorch function.
        return self._surrogate() is not None

    def _on_ipu(self) -> bool:
        on_ipu = popart.uses_operator("Leaky", "NeuronSequence")
        if on_ipu and not self._fuses():
            raise RuntimeError(
                "Leaky cannot run on an IPU with inhibition, state_quant, a spike_grad that is a Python function, or "
                "replaced parts of its step: its PopART operator has none of these"
            )
        return on_ipu

    def forward(  # type: ignore[override]  # callers may pass the state by name
        self, input_: torch.Tensor, mem: Optional[torch.Tensor] = None
    ) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        """Run one time step.

        Args:
            input_: current, ``[B, ...]``.
            mem: membrane after the step before, of the same shape. None: the attribute ``mem``, or zeros if its shape
                differs from the input's.

        Returns:
            ``(spk, mem)``, both ``[B, ...]``; ``spk`` alone with ``init_hidden=True`` and ``output=False``.

        Raises:
            TypeError: ``mem`` is passed although ``init_hidden=True``; ``input_`` or ``mem`` is no floating tensor.
            ValueError: ``beta``, ``threshold`` or ``graded_spikes_factor`` does not broadcast to ``input_``.

        Warns:
            UserWarning: ``mem`` has another shape than ``input_``; the step starts from zeros, as in snnTorch.
        """
        if step_operators.enabled and self._reset_in_trace():
            self.reset_mem()
        if is_exporting():
            return self._exported(super(FusedNeuron, self).forward, input_, mem)
        if not is_compiling():
            description = self._describe()
            if description.plan is not None:
                result = self._direct_step(description, input_, (mem,))
                if result is not None:
                    return result
            elif self._stock_takes(input_, mem):
                return super(FusedNeuron, self).forward(input_)  # snnTorch's
        on_ipu = self._on_ipu()
        if not isinstance(input_, torch.Tensor):
            raise TypeError(f"input_ must be a torch.Tensor, got {type(input_).__name__}")
        if mem is not None:
            if self.init_hidden:
                raise TypeError("`mem` should not be passed as an argument while `init_hidden=True`")
            self._check_state(input_, mem)
        state = self.mem if mem is None else mem
        fresh = state.shape != input_.shape
        state_dtype = state.dtype if not fresh else input_.dtype
        dtype = input_.dtype if state_dtype == input_.dtype else torch.promote_types(input_.dtype, state_dtype)
        dtype = self._promoted(dtype)
        if dtype not in DTYPES:
            raise TypeError(f"input_ must be real and floating (or integer), got {input_.dtype}")
        # snnTorch's operations round the decayed membrane to the state's narrower dtype, or to 16 bits.
        rounds = not fresh or self._reset_mechanism == "none" or installed.SPIKES_KEEP_DTYPE
        rounds = rounds and dtype in _LOW_PRECISION
        rounds = rounds or not (fresh or state.dtype == dtype)
        surrogate = self._surrogate()
        # A single step with a surrogate in PyTorch is slower with the kernel than with snnTorch's code.
        # In a trace, the compiler may fuse snnTorch's operations with the surrogate's.
        evaluated = surrogate is not None and surrogate.kernel is None
        if ((rounds or evaluated or self._is_snntorchs_on_gpu(input_)) and not on_ipu) or not self._fuses():
            if is_compiling() and self._replaced():
                self._warn_replaced(stacklevel=6)
            self.mem = state
            if self.inhibition and step_operators.tracing():
                # TorchDynamo cannot trace the indexing of snnTorch's inhibition.
                return step_operators.call_untraced(super(FusedNeuron, self).forward, input_)
            return super(FusedNeuron, self).forward(input_)  # snnTorch's
        dtype = torch.float32 if dtype in _LOW_PRECISION else dtype
        current = input_ if input_.dtype == dtype else input_.to(dtype)
        spk, (after,) = self._kernel_step(current, [None if fresh else state])
        assert after is not None
        if dtype == torch.float64:
            spk = spk.to(self._promoted(installed.spike_dtype(dtype), (self.graded_spikes_factor,)))
        self.mem = after
        if self.init_hidden and not self.output:
            return spk
        return spk, after

    def _stock_takes(self, input_: torch.Tensor, mem: Optional[torch.Tensor]) -> bool:
        """Return True if snnTorch's ``forward(input_)`` computes this call; ``self.mem`` is then set to ``mem``."""
        if not isinstance(input_, torch.Tensor) or input_.dtype is not _FLOAT or popart.on_ipu():
            return False
        if mem is None:
            return True
        if self.init_hidden or not isinstance(mem, torch.Tensor) or mem.shape != input_.shape:
            return False
        self.mem = mem
        return True

    def _promoted(self, dtype: torch.dtype, parameters: Optional[Tuple[torch.Tensor, ...]] = None) -> torch.dtype:
        """Return ``dtype`` after arithmetic with the parameters; scalar tensors do not widen a floating dtype."""
        if parameters is None:
            parameters = (self.beta, self.threshold)
        for parameter in parameters:
            if (parameter.dim() > 0 or not dtype.is_floating_point) and parameter.dtype != dtype:
                dtype = torch.promote_types(dtype, parameter.dtype)
        return dtype

    def _check_state(self, input_: torch.Tensor, mem: torch.Tensor) -> None:
        if not isinstance(mem, torch.Tensor):
            raise TypeError(f"mem must be a torch.Tensor or None, got {type(mem).__name__}")
        if mem.shape == input_.shape or mem.numel() <= 1:
            return
        if step_operators.tracing():
            return  # a warning ends the graph
        # `init_leaky()` returns zeros of the last call's shape, so zeros before a smaller last batch are no mistake.
        if not mem.is_meta and not torch._C._functorch.is_batchedtensor(mem) and not mem.any():
            return
        message = f"mem of shape {tuple(mem.shape)} does not fit the input's {tuple(input_.shape)}: starting from zeros"
        if mem.shape[1:] != input_.shape[1:]:
            message += "; is it another layer's?"
        warnings.warn(message, stacklevel=5)  # the caller of nn.Module.__call__

    def sequence(  # type: ignore[override]  # callers may pass the state by name
        self, x: torch.Tensor, mem: Optional[torch.Tensor] = None, *, num_steps: Optional[int] = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Run all time steps as one fused operator.

        Args:
            x: current, ``[T, B, ...]``. With ``num_steps``: ``[B, ...]``, the same current at every step.
            mem: membrane before the first step, ``[B, ...]``. None: zeros, or with ``init_hidden=True`` the membrane
                after the last call.
            num_steps: number of steps ``T`` of a constant current; None: ``x`` has a time dimension.

        Returns:
            ``(spk, mem)``, both ``[T, B, ...]`` in x's dtype. For 16-bit inputs the state is computed in float32.

        Raises:
            TypeError: ``mem`` is passed although ``init_hidden=True``; ``x`` is no floating tensor.
            ValueError: wrong shape or device; the message names the argument.
        """
        if self.init_hidden and mem is not None:
            raise TypeError("`mem` should not be passed as an argument while `init_hidden=True`")
        return self._sequence(x, [mem], num_steps, need_states=True)[0]

    def _returns_states(self) -> bool:
        return True
