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
    r"""First-order leaky integrate-and-fire neurons: ``snntorch.Leaky`` 1.0, fused.

    Signature, defaults, numbers, gradients and ``state_dict`` are snnTorch's, and so are the dtypes of a step: in
    snnTorch 1.0 spikes are float32, and so is the membrane of 16-bit inputs; in a later one both keep the input's. See
    ``snntorch.Leaky`` for the keywords. The equations are those of :func:`snnipu.ops.lif_sequence`.

    .. code-block:: python

        lif = snn.Leaky(beta=0.9)
        spk, mem = lif(x, mem)           # one step, x and mem [B, ...]
        spk, mem = lif.sequence(x)       # all steps at once, x [T, B, ...]

    Fused: every reset mechanism and delay, scalar and per-neuron ``beta``, ``threshold`` and ``graded_spikes_factor``,
    learnable or not, and every surrogate of ``snntorch.surrogate``, given as ours
    or as snnTorch's. snnTorch's own code runs for ``inhibition``, ``state_quant``, any other ``spike_grad``, and where
    a subclass or an instance replaces a part of snnTorch's step (``fire``, ``mem_reset``, ``state_function``,
    ``_base_*``, or a parameter by a property); the last is said once, as a warning. Where ``forward`` is replaced,
    :meth:`sequence` calls it for each step.

    Differences from snnTorch:

    * setting ``reset_mechanism`` after construction takes effect;
    * the ``sigmoid`` surrogate is finite far from the threshold and ``LSO`` works;
    * modules can be pickled and deep-copied, also after a forward pass;
    * ``mem`` is no buffer, though it moves with the module: ``DistributedDataParallel`` leaves each process its own;
    * a parameter of one element loads from one of no dimension, and the other way round;
    * a membrane of another layer's shape is an error; of another batch size, it starts from zeros as in snnTorch, with
      a warning;
    * a second derivative through fused neurons is an error;
    * ``SpikingNeuron.instances`` does not keep neurons alive.
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
        # On every device, and a surrogate that is a function of PyTorch's is evaluated beside it.
        return self._surrogate() is not None

    def _on_ipu(self) -> bool:
        on_ipu = popart.uses_operator("Leaky", "NeuronSequence")
        if on_ipu and not self._fuses():
            raise RuntimeError(
                "Leaky cannot run on an IPU with inhibition, state_quant, a spike_grad that is a Python function, or "
                "parts of its step replaced: its PopART operator has none of these"
            )
        return on_ipu

    def forward(  # type: ignore[override]  # its state may be given by name
        self, input_: torch.Tensor, mem: Optional[torch.Tensor] = None
    ) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        """One time step.

        Args:
            input_: current, ``[B, ...]``.
            mem: membrane of the step before, of the same shape; None: the layer's own ``mem``, or zeros where its shape
                is another.

        Returns:
            ``(spk, mem)``; only ``spk`` with ``init_hidden=True`` unless ``output=True``.

        Raises:
            TypeError: ``mem`` passed with ``init_hidden=True``; not a floating tensor.
            ValueError: ``beta``, ``threshold`` or ``graded_spikes_factor`` of a shape that does not fit.

        Warns:
            UserWarning: ``mem`` of another shape: zeros stand in for it, as in snnTorch.
        """
        if step_operators.enabled and self._reset_in_trace():
            self.reset_mem()
        if is_exporting():
            return self._exported(super(FusedNeuron, self).forward, input_, mem)
        if not is_compiling():
            description = self._describe()
            if description.plan is not None:
                made = self._direct_step(description, input_, (mem,))
                if made is not None:
                    return made
            elif self._can_hand_on(input_, mem):
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
        mixed = state.dtype if not fresh else input_.dtype
        dtype = input_.dtype if mixed == input_.dtype else torch.promote_types(input_.dtype, mixed)
        dtype = self._promoted(dtype)
        if dtype not in DTYPES:
            raise TypeError(f"input_ must be real and floating (or integer), got {input_.dtype}")
        # snnTorch rounds the decayed membrane to the state's narrower dtype, or to 16 bit: its own operations do.
        rounds = not fresh or self._reset_mechanism == "none" or installed.SPIKES_KEEP_DTYPE
        rounds = rounds and dtype in _LOW_PRECISION
        rounds = rounds or not (fresh or state.dtype == dtype)
        surrogate = self._surrogate()
        # A surrogate in PyTorch, a fused step beside it takes longer than snnTorch's; a sequence does not. In a trace,
        # what snnTorch's operations and the surrogate's do together may be one.
        evaluated = surrogate is not None and surrogate.kernel is None
        if ((rounds or evaluated or self._is_snntorchs_on_gpu(input_)) and not on_ipu) or not self._fuses():
            if is_compiling() and self._replaced():
                self._say_slow(stacklevel=6)
            self.mem = state
            if self.inhibition and step_operators.tracing():
                # TorchDynamo fails at the indices of the inhibition.
                return step_operators.apart(super(FusedNeuron, self).forward, input_)
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

    def _can_hand_on(self, input_: torch.Tensor, mem: Optional[torch.Tensor]) -> bool:
        """Whether snnTorch's code may have this call as it is; if so, ``mem`` is the layer's by then."""
        if not isinstance(input_, torch.Tensor) or input_.dtype is not _FLOAT or popart.on_ipu():
            return False
        if mem is None:
            return True
        if self.init_hidden or not isinstance(mem, torch.Tensor) or mem.shape != input_.shape:
            return False
        self.mem = mem
        return True

    def _promoted(self, dtype: torch.dtype, parameters: Optional[Tuple[torch.Tensor, ...]] = None) -> torch.dtype:
        """``dtype`` after arithmetic with the parameters: those of no dimension do not widen a floating dtype."""
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
        # `init_leaky()` gives zeros of the last call's shape: a smaller last batch is no mistake.
        if not mem.is_meta and not torch._C._functorch.is_batchedtensor(mem) and not mem.any():
            return
        said = f"mem of shape {tuple(mem.shape)} does not fit the input's {tuple(input_.shape)}: starting from zeros"
        if mem.shape[1:] != input_.shape[1:]:
            said += "; is it another layer's?"
        warnings.warn(said, stacklevel=5)  # behind forward and two functions of nn.Module's

    def sequence(  # type: ignore[override]  # its state may be given by name
        self, x: torch.Tensor, mem: Optional[torch.Tensor] = None, *, num_steps: Optional[int] = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """All time steps as one fused operator.

        Args:
            x: current, ``[T, B, ...]``; or ``[B, ...]``, held constant, with ``num_steps``.
            mem: membrane before the first step, ``[B, ...]``; None: zeros, or with ``init_hidden=True`` where the
                last call ended.
            num_steps: number of steps of a constant current.

        Returns:
            ``(spk, mem)``, both ``[T, B, ...]`` in x's dtype (the state is kept in float32 for 16-bit inputs).

        Raises:
            TypeError: ``mem`` passed with ``init_hidden=True``; ``x`` not a floating tensor.
            ValueError: a shape or device that does not fit; the message names the argument.
        """
        if self.init_hidden and mem is not None:
            raise TypeError("`mem` should not be passed as an argument while `init_hidden=True`")
        return self._sequence(x, [mem], num_steps, need_states=True)[0]

    def _returns_states(self) -> bool:
        return True
