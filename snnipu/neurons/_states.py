"""Hidden states as plain attributes of a neuron, which in snnTorch are buffers."""

import inspect
import itertools
import threading
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import snntorch
import torch

from snnipu._names import installed
from snnipu.backends import popart
from snnipu.backends.neuron_step import NeuronStep
from snnipu.functional.quant import as_state_quant
from snnipu.ops import step_operators
from snnipu.ops._arguments import is_compiling
from snnipu.ops.neuron_sequence import NeuronSequence
from snnipu.ops.recurrent_sequence import RecurrentSequence
from snnipu.surrogate import Surrogate, as_surrogate

# Names that PyTorch gives the backward nodes of kernels.
_MADE_BY_KERNELS = {f"{function.__name__}Backward" for function in (NeuronStep, NeuronSequence, RecurrentSequence)}
MEM_RESET = snntorch.SpikingNeuron.mem_reset
STATE_FUNCTIONS = ("_base_sub", "_base_zero", "_base_int")  # by the code of the reset mechanism
_numbers = itertools.count(1)


class _Trace(threading.local):
    """The last trace of ``torch.jit`` in this thread: its state, which is kept so that no other has its identity."""

    state: Any = None
    number = 0


_trace = _Trace()


def _trace_number() -> int:
    """Return the number of the trace that ``torch.jit`` records in this thread; 0: none."""
    state = torch._C._get_tracing_state()
    if state is None:
        return 0
    if state is not _trace.state:
        _trace.state, _trace.number = state, next(_numbers)
    return _trace.number


def _for_trace(state: Any) -> Any:
    """Return a state as a trace may begin with it: what was computed before the trace has no gradient in it.

    A trace runs no kernel of ours, and computes nothing that requires a gradient under ``torch.no_grad()``. Any other
    state may be of the trace itself, which follows it; a state of before is PyTorch's error then.
    """
    if not isinstance(state, torch.Tensor) or state.grad_fn is None:
        return state
    return state.data if not torch.is_grad_enabled() or state.grad_fn.name() in _MADE_BY_KERNELS else state


class PlainStates(snntorch.SpikingNeuron):
    """A neuron whose hidden states are no buffers.

    Of buffers DistributedDataParallel broadcasts rank 0's over those of the others, and a compiled loop is compiled
    anew for what the last call left in them.
    """

    # The last trace with a step of this neuron: its number, the states it began with, and those after its last step.
    _traced: Tuple[int, Dict[str, Any], Dict[str, Any]] = (0, {}, {})
    # Copies are not: snnTorch lists neurons that are made, and resets those that it has listed.
    _is_listed = True
    # snnTorch's class, and which of ours it is, not a subclass of a user's.
    stock: Any
    home: type
    spike_grad: Any
    state_quant: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "stock" in cls.__dict__:
            cls.__signature__ = inspect.signature(cls.stock)  # type: ignore[attr-defined]
            cls.home = cls

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hold_states()

    def _hold_states(self) -> None:
        """Make attributes of the states that snnTorch's constructor has made buffers."""
        for name in self._states():
            if name in self._buffers:
                self.__dict__[name] = self._buffers.pop(name)
                self._non_persistent_buffers_set.discard(name)

    def _take_over(self) -> None:
        """Prepare what snnTorch's constructor has built."""
        if not callable(self.spike_grad):
            raise TypeError(f"spike_grad must be callable or None, got {self.spike_grad!r}")
        self.spike_grad = as_surrogate(self.spike_grad) or self.spike_grad
        self.state_quant = as_state_quant(self.state_quant)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        self._is_listed = False

    def _states(self) -> Tuple[str, ...]:
        """Their names."""
        raise NotImplementedError

    def _surrogate(self) -> Optional[Surrogate]:
        """What the kernels take for ``spike_grad``, which may be exchanged at any time."""
        return as_surrogate(self.spike_grad)

    @step_operators.at_trace_time
    def _reset_in_trace(self) -> bool:
        return step_operators.is_reset(self)

    def reset_mem(self) -> Any:
        """Start from zeros: snnTorch's."""
        if step_operators.tracing() or torch.jit.is_tracing():
            # Zeros whatever their shape: the graph does not depend on the last call's.
            for name in self._states():
                setattr(self, name, torch.zeros(0, device=self.threshold.device))
        return super().reset_mem()

    def mem_reset(self, mem: torch.Tensor) -> torch.Tensor:
        """The detached reset signal: snnTorch's, without a surrogate gradient that nobody reads."""
        known, plain = self._surrogate(), super().mem_reset
        own = known is not None and known.kernel is not None and plain.__func__ is MEM_RESET
        if not own or is_compiling() or popart.on_ipu():
            return plain(mem)  # type: ignore[no-any-return]
        u = (mem - self.threshold).detach()
        return (u > 0).to(installed.spike_dtype(u.dtype))

    def _left_to_give(self, states: Sequence[Any]) -> Sequence[Any]:
        """What of a step's states snnTorch's code is given: in a trace none of them, but they are the neuron's own by
        then, as its ``if not mem == None`` would make them. TorchDynamo of PyTorch 2.11 cannot compare a tensor with
        None."""
        if not step_operators.tracing() or self.init_hidden or len(states) > len(self._states()):
            return states
        for name, state in zip(self._states(), states):
            if state is not None:
                setattr(self, name, state)
        return ()

    def _exported(self, step: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Run ``step``, which PyTorch records."""
        own, number = self.__dict__, _trace_number()
        if number:  # torch.export sees to constants itself
            self._begin_trace(number)
        buffers, reset = self._buffers, self._buffers.get("reset_mechanism_val")
        constant = reset is not None and not getattr(self, "reset_delay", True)
        if constant:  # snnTorch's step asks for the buffer's value
            buffers["reset_mechanism_val"] = self.reset_dict[self._reset_mechanism]
        try:
            made = step(*args, **named)
        finally:
            if constant:
                buffers["reset_mechanism_val"] = reset
        if number:
            before = self._traced[1]
            own["_traced"] = (number, before, {name: own[name] for name in before})
        return made

    def _begin_trace(self, number: int) -> None:
        """Let a trace begin with states that it can hold.

        ``torch.jit.trace`` traces twice and compares: the second trace begins with the same states as the first.
        """
        own, (last, before, after) = self.__dict__, self._traced
        if number == last:
            return
        now = {name: own[name] for name in self._states() if name in own}
        if not after or any(now[name] is not state for name, state in after.items()):
            before = {name: _for_trace(state) for name, state in now.items()}
        own.update(before)
        own["_traced"] = (number, before, {})

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        super()._apply(fn, *args, **kwargs)
        with torch.no_grad():
            for name in self._states():
                if isinstance(self.__dict__.get(name), torch.Tensor):
                    self.__dict__[name] = fn(self.__dict__[name])
        return self

    def __getstate__(self) -> Dict[str, Any]:
        # What a forward pass left behind belongs to its autograd graph, which cannot be copied.
        state = self.__dict__.copy()
        state.pop("_traced", None)
        for name in self._states():
            if isinstance(state.get(name), torch.Tensor):
                state[name] = state[name].detach()
        return state
