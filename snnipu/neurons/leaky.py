"""``snnipu.Leaky``: snnTorch's leaky integrate-and-fire layer on fused kernels."""

import warnings
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple, Union

import snntorch
import torch
from torch.nn.utils import parametrize

from snnipu._layout import SINGLE_STEP
from snnipu.backends import popart
from snnipu.functional.quant import as_state_quant
from snnipu.neurons import _instances
from snnipu.neurons._hooks import is_hooked
from snnipu.ops import leaves
from snnipu.ops._arguments import DTYPES, RESET_MECHANISMS, check_input, reset_code
from snnipu.ops.lif_sequence import check_num_steps, lif_apply
from snnipu.surrogate import SpikeGrad, Surrogate, as_surrogate

_LOW_PRECISION = (torch.float16, torch.bfloat16)
_TENSOR, _FLOAT = torch.Tensor, torch.float32
# What a step of snnTorch's consists of besides `state_function`; the values are the functions that are fused.
_STEP = {
    name: vars(owner)[name]
    for owner, names in (
        (snntorch.Leaky, ("_base_state_function", "_base_sub", "_base_zero", "_base_int")),
        (snntorch.SpikingNeuron, ("fire", "mem_reset")),
    )
    for name in names
}
_STATE_FUNCTIONS = ("_base_sub", "_base_zero", "_base_int")  # by the code of the reset mechanism
_PARAMETERS = ("beta", "threshold", "graded_spikes_factor")
_SAID: Set[Tuple[Any, ...]] = set()


def load_scalars(module: torch.nn.Module, state_dict: Any, prefix: str, names: Iterable[str]) -> None:
    """Give the entries of one element in ``state_dict`` the shapes of ``module``'s: FSDP2 takes ``[1]``, not ``[]``."""
    for name in names:
        own, saved = getattr(module, name, None), state_dict.get(prefix + name)
        if isinstance(own, torch.Tensor) and isinstance(saved, torch.Tensor) and own.numel() == saved.numel() == 1:
            state_dict[prefix + name] = saved.reshape(own.shape)


class Leaky(snntorch.Leaky):
    r"""First-order leaky integrate-and-fire neurons: ``snntorch.Leaky`` 1.0, fused.

    Signature, defaults, numbers, gradients and ``state_dict`` are snnTorch's, and so are the dtypes of a step: spikes
    are float32, and so is the membrane of 16-bit inputs. See ``snntorch.Leaky`` for the keywords. The equations are
    those of :func:`snnipu.ops.lif_sequence`.

    .. code-block:: python

        lif = snn.Leaky(beta=0.9)
        spk, mem = lif(x, mem)           # one step, x and mem [B, ...]
        spk, mem = lif.sequence(x)       # all steps at once, x [T, B, ...]

    Fused: every reset mechanism and delay, scalar and per-neuron ``beta``, ``threshold`` and ``graded_spikes_factor``,
    learnable or not, and every surrogate of ``snntorch.surrogate``, given as ours or as snnTorch's. snnTorch's own code
    runs for ``inhibition``, ``state_quant``, any other ``spike_grad``, and where a subclass or an instance replaces a
    part of snnTorch's step (``fire``, ``mem_reset``, ``state_function``, ``_base_*``, or a parameter by a property);
    the last is said once, as a warning. Where ``forward`` is replaced, :meth:`sequence` calls it for each step.

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
        if spike_grad is not None and not callable(spike_grad):
            raise TypeError(f"spike_grad must be callable or None, got {spike_grad!r}")
        reset_code(reset_mechanism)
        known = as_surrogate(spike_grad)
        _instances.hold_weakly()
        super().__init__(
            beta,
            threshold=threshold,
            spike_grad=spike_grad if known is None else known,
            surrogate_disable=surrogate_disable,
            init_hidden=init_hidden,
            inhibition=inhibition,
            learn_beta=learn_beta,
            learn_threshold=learn_threshold,
            reset_mechanism=reset_mechanism,
            state_quant=as_state_quant(state_quant),
            output=output,
            graded_spikes_factor=graded_spikes_factor,
            learn_graded_spikes_factor=learn_graded_spikes_factor,
            reset_delay=reset_delay,
        )
        self._resolved: Tuple[Any, Optional[Surrogate]] = (self.spike_grad, as_surrogate(self.spike_grad))
        # What `reset` is made from: the reset signal itself, or the membrane before the step (None: zeros).
        self._last_step: Optional[Tuple[str, Optional[torch.Tensor]]] = None

    # Set by snnTorch's constructor.
    _reset_mechanism: str
    reset_mechanism_val: torch.Tensor
    mem: torch.Tensor

    def _init_mem(self) -> None:
        # No buffer, as snnTorch's: DistributedDataParallel would broadcast rank 0's state over that of the others.
        self.mem = torch.zeros(0)

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        super()._apply(fn, *args, **kwargs)
        with torch.no_grad():
            self.mem = fn(self.mem)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        load_scalars(self, state_dict, prefix, _PARAMETERS)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def reset_mem(self) -> torch.Tensor:
        """Start from zeros: snnTorch's."""
        if leaves.tracing():
            # Zeros whatever their shape: the graph does not depend on the last call's.
            self.mem = torch.zeros(0, device=self.threshold.device)
        return super().reset_mem()

    @property
    def reset_mechanism(self) -> str:
        """``"subtract"``, ``"zero"`` or ``"none"``; may be set at any time."""
        return self._reset_mechanism

    @reset_mechanism.setter
    def reset_mechanism(self, reset_mechanism: str) -> None:
        code = reset_code(reset_mechanism)
        self.reset_mechanism_val = torch.as_tensor(code, device=self.reset_mechanism_val.device)
        self._reset_mechanism = reset_mechanism
        self.state_function = (self._base_sub, self._base_zero, self._base_int)[code]

    @property
    def reset(self) -> torch.Tensor:
        """The detached reset signal of the last step; after a fused step, computed when it is asked for."""
        if self._last_step is None:
            raise AttributeError("reset: this layer has not made a step yet")
        kind, tensor = self._last_step
        if kind == "reset" and tensor is not None:
            return tensor
        if kind == "compiled":
            raise AttributeError("reset: torch.compile ran this layer's last step, which does not keep it")
        return self.mem_reset(torch.zeros_like(self.mem) if tensor is None else tensor)

    @reset.setter
    def reset(self, reset: torch.Tensor) -> None:
        self._last_step = ("reset", reset)

    def _surrogate(self) -> Optional[Surrogate]:
        """What the fused kernels take for ``spike_grad``, which may be exchanged at any time."""
        if self._resolved[0] is not self.spike_grad:
            self._resolved = (self.spike_grad, as_surrogate(self.spike_grad))
        return self._resolved[1]

    def _fuses(self) -> bool:
        return not (self.inhibition or self.state_quant or self._surrogate() is None or self._replaced())

    def _replaced(self) -> List[str]:
        """Names of what a subclass or this instance has in place of parts of snnTorch's step."""
        kind, own = type(self), self.__dict__
        names = [name for name, function in _STEP.items() if name in own or getattr(kind, name) is not function]
        if leaves.tracing():
            leaves.look_up(self, _STEP)
        stock = _STEP[_STATE_FUNCTIONS[RESET_MECHANISMS[self._reset_mechanism]]]
        if getattr(self.state_function, "__func__", None) is not stock and not names:
            names.append("state_function")
        for name in _PARAMETERS:
            # A parametrization's property gives the same value in every step; any other may look at the state.
            if getattr(kind, name, None) is not None and not parametrize.is_parametrized(self, name):
                names.append(name)
        return names

    def _replaces(self, *methods: str) -> bool:
        """Whether a subclass or this instance has own versions of our ``methods``."""
        return any(name in self.__dict__ or getattr(type(self), name) is not getattr(Leaky, name) for name in methods)

    def runs_fused(self) -> bool:
        """Whether :meth:`sequence` gives what a loop of calls gives, as one operator (in ``MultiStep``)."""
        return self._fuses() and not self._replaces("forward", "reset_mem")

    def _say_slow(self) -> None:
        """Say, once for each class and what it replaces, that the fused operator does not run."""
        names = self._replaced() or ["forward"]
        key = (type(self), *names)
        if key not in _SAID:
            _SAID.add(key)
            warnings.warn(
                f"{type(self).__name__} replaces {', '.join(names)} of Leaky: it runs step by step, in PyTorch",
                stacklevel=4,
            )

    def _on_ipu(self) -> bool:
        """Whether the layer runs as a PopART operator; raises RuntimeError where it must and cannot."""
        on_ipu = popart.uses_operator("Leaky", "LifSequence")
        if on_ipu and not self._fuses():
            raise RuntimeError(
                "Leaky cannot run on an IPU with inhibition, state_quant, a spike_grad that is a Python function, or "
                "parts of its step replaced: its PopART operator has none of these"
            )
        return on_ipu

    def forward(
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
            ValueError: ``beta``, ``threshold``, ``graded_spikes_factor`` or ``mem`` of a shape that does not fit.
        """
        if leaves.enabled and self._known_in_trace():
            again = self._traced_again(input_, mem)
            if again is not None:
                return again[0] if self.init_hidden and not self.output else again
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
        # In 16 bit snnTorch rounds the decayed membrane; only its own operations give the same bits.
        rounds = dtype in _LOW_PRECISION and (not fresh or self._reset_mechanism == "none")
        fuses = self._fuses()
        if (rounds and not on_ipu) or not fuses:
            if not fuses and self._replaced():
                self._say_slow()
            self.mem = state
            return super().forward(input_)
        dtype = torch.float32 if dtype in _LOW_PRECISION else dtype
        current = input_ if input_.dtype == dtype else input_.to(dtype)
        surrogate = self._surrogate()
        if leaves.tracing() and surrogate is not None and surrogate.kernel is not None:
            spk, after = leaves.lif_step(
                current,
                (None if fresh else state,),
                (self.beta, self.threshold, self.graded_spikes_factor),
                surrogate.kernel.plain(),
                (RESET_MECHANISMS[self._reset_mechanism], self.reset_delay),
                "it has hooks" if is_hooked(self) else "",
            )
            self._last_step = ("compiled", None)
            if dtype == torch.float32 and not is_hooked(self):
                self._note_in_trace()
        else:
            spk, made, _ = lif_apply(
                current,
                None if fresh else state,
                self.beta,
                self.threshold,
                self.graded_spikes_factor,
                SINGLE_STEP,
                RESET_MECHANISMS[self._reset_mechanism],
                self.reset_delay,
                surrogate,
            )
            assert made is not None
            after = made
            self._last_step = ("before", None if fresh else state.detach())
        if dtype == torch.float64:
            spk = spk.to(self._promoted(torch.float32, (self.graded_spikes_factor,)))
        self.mem = after
        if self.init_hidden and not self.output:
            return spk
        return spk, after

    @leaves.at_trace_time
    def _known_in_trace(self) -> bool:
        return leaves.is_known(self)

    @leaves.at_trace_time
    def _note_in_trace(self) -> bool:
        return leaves.note(self)

    def _traced_again(
        self, input_: torch.Tensor, mem: Optional[torch.Tensor]
    ) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
        """A further step of this layer in one trace, whose checks and guards the first one made; None: not this one."""
        if mem is None:
            state = self.mem
        elif self.init_hidden:
            return None
        else:
            state = mem
        spike_grad, surrogate = self._resolved
        if self.spike_grad is not spike_grad or self.inhibition or self.state_quant:
            return None
        # Global names cost less to trace than attributes.
        if not isinstance(state, _TENSOR) or state.shape != input_.shape:
            return None
        if input_.dtype != _FLOAT or state.dtype != _FLOAT:
            return None
        kernel = None if surrogate is None else surrogate.kernel
        assert kernel is not None
        spk, after = leaves.lif_step(
            input_,
            (state,),
            (self.beta, self.threshold, self.graded_spikes_factor),
            (*kernel,),
            (RESET_MECHANISMS[self._reset_mechanism], self.reset_delay),
            "",
        )
        object.__setattr__(self, "mem", after)  # what nn.Module's does in the end, after much to trace
        return spk, after

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
        if mem.dim() > 1 and mem.shape[1:] != input_.shape[1:]:
            raise ValueError(
                f"mem must have the input's shape {tuple(input_.shape)}, got {tuple(mem.shape)}: is it another layer's?"
            )
        warnings.warn(
            f"mem of shape {tuple(mem.shape)} does not fit the input's {tuple(input_.shape)}: starting from zeros",
            stacklevel=3,
        )

    def sequence(
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
        spk, mems, _ = self._sequence(x, mem, num_steps, need_mem=True)
        assert mems is not None
        return spk, mems

    def spikes(self, x: torch.Tensor, *, num_steps: Optional[int] = None) -> torch.Tensor:
        """The spikes of :meth:`sequence` alone: the membranes are not stored, and recomputed for the gradient.

        Args:
            x: current, ``[T, B, ...]``; or ``[B, ...]``, held constant, with ``num_steps``.
            num_steps: number of steps of a constant current.

        Returns:
            Spikes ``[T, B, ...]`` in x's dtype.

        Raises:
            TypeError, ValueError: as :meth:`sequence`.
        """
        return self._sequence(x, None, num_steps, need_mem=False)[0]

    def over_time(self, x: torch.Tensor, *, num_steps: Optional[int] = None, need_mem: bool = True) -> Any:
        """What ``MultiStep`` calls: :meth:`sequence`, or :meth:`spikes` where the membranes are not asked for."""
        if need_mem or self._replaces("sequence"):
            return self.sequence(x, num_steps=num_steps)
        return self.spikes(x, num_steps=num_steps)

    def resumes(self) -> bool:
        """Whether :meth:`resume` gives, part by part, what :meth:`over_time` gives at once."""
        return not self._replaces("sequence", "spikes", "over_time")

    def resume(
        self, x: torch.Tensor, state: Optional[torch.Tensor], *, num_steps: Optional[int] = None, need_mem: bool = True
    ) -> Tuple[Any, torch.Tensor]:
        """:meth:`over_time` for a part of a sequence: its result, and the state the next part starts from.

        ``state`` None: the first part. Its gradient is exact.
        """
        spk, mems, last = self._sequence(x, state, num_steps, need_mem, need_last=True)
        assert last is not None
        return (spk, mems) if need_mem else spk, last

    def _sequence(
        self,
        x: torch.Tensor,
        mem: Optional[torch.Tensor],
        num_steps: Optional[int],
        need_mem: bool,
        need_last: bool = False,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor], Optional[torch.Tensor]]:
        self._on_ipu()
        if num_steps is None:
            check_input(x, 1, "[T, B, ...]")
        else:
            check_input(x, 0, "[B, ...]")
            check_num_steps(num_steps)
        if self.init_hidden and mem is None:
            step_shape = x.shape[1:] if num_steps is None else x.shape
            mem = self.mem if self.mem.shape == step_shape and self.mem.numel() else None
        replaced = self._replaces("forward")
        if replaced and not self._replaced():
            self._say_slow()
        if not replaced and self._fuses():
            spk, mems, last = lif_apply(
                x,
                mem,
                self.beta,
                self.threshold,
                self.graded_spikes_factor,
                num_steps,
                RESET_MECHANISMS[self._reset_mechanism],
                self.reset_delay,
                self._surrogate(),
                need_mem=need_mem,
                need_last=need_last or self.init_hidden,
            )
        else:
            spk, mems, last = self._sequence_by_steps(x, mem, num_steps)
        if self.init_hidden and last is not None and spk.shape[0]:
            self.mem = last.to(x.dtype)
        return spk, mems, last

    def _sequence_by_steps(
        self, x: torch.Tensor, mem: Optional[torch.Tensor], num_steps: Optional[int]
    ) -> Tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor]]:
        steps = x.shape[0] if num_steps is None else num_steps
        step_shape = x.shape[1:] if num_steps is None else x.shape
        if steps == 0:
            return torch.empty_like(x), torch.empty_like(x), mem
        if mem is not None and mem.shape != step_shape:
            raise ValueError(f"mem must have the shape of one step of x, {tuple(step_shape)}, got {tuple(mem.shape)}")
        self.mem = x.new_zeros(step_shape) if mem is None else mem
        spks, mems = [], []
        for t in range(steps):
            current = x if num_steps is not None else x[t]
            out = self.forward(current) if self.init_hidden else self.forward(current, self.mem)
            spk, self.mem = out[:2] if isinstance(out, tuple) else (out, self.mem)
            spks.append(spk)
            mems.append(self.mem)
        return torch.stack(spks).to(x.dtype), torch.stack(mems).to(x.dtype), self.mem

    def __getstate__(self) -> Dict[str, Any]:
        # What a forward pass left behind belongs to its autograd graph, which cannot be copied.
        state = self.__dict__.copy()
        state["mem"] = self.mem.detach()
        state["_last_step"] = None
        return state
