"""The base class of snnTorch's neurons in snnipu: hidden states are attributes, not buffers as in snnTorch."""

import inspect
import itertools
import threading
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import snntorch
import torch

from snnipu._names import installed
from snnipu.backends import popart
from snnipu.backends.neuron_step import NeuronStep
from snnipu.functional.quant import as_state_quant
from snnipu.neurons import _instances
from snnipu.ops import step_operators
from snnipu.ops._arguments import is_compiling, reset_code
from snnipu.ops.neuron_sequence import NeuronSequence
from snnipu.ops.recurrent_sequence import RecurrentSequence
from snnipu.surrogate import Surrogate, as_surrogate

# PyTorch's names of the backward nodes of kernels.
_MADE_BY_KERNELS = {f"{function.__name__}Backward" for function in (NeuronStep, NeuronSequence, RecurrentSequence)}
MEM_RESET = snntorch.SpikingNeuron.mem_reset
STATE_FUNCTIONS = ("_base_sub", "_base_zero", "_base_int")  # by the code of the reset mechanism
_numbers = itertools.count(1)
_WARNED: Set[Tuple[Any, ...]] = set()


class _Trace(threading.local):
    """The last trace of ``torch.jit`` in this thread.

    A reference to its state keeps Python from reusing the state's identity for another trace.
    """

    state: Any = None
    number = 0


_trace = _Trace()


def _trace_number() -> int:
    """Return the number of the trace that ``torch.jit`` records in this thread; 0 if there is none."""
    state = torch._C._get_tracing_state()
    if state is None:
        return 0
    if state is not _trace.state:
        _trace.state, _trace.number = state, next(_numbers)
    return _trace.number


def _for_trace(state: Any) -> Any:
    """Return the state with which a trace may begin: detached if it was computed before the trace.

    A state was computed before the trace if one of our kernels computed it, or if it requires a gradient under
    ``torch.no_grad()``. Any other state may belong to the trace and is kept; for an earlier state PyTorch then raises.
    """
    if not isinstance(state, torch.Tensor) or state.grad_fn is None:
        return state
    return state.data if not torch.is_grad_enabled() or state.grad_fn.name() in _MADE_BY_KERNELS else state


class AttributeStates(snntorch.SpikingNeuron):
    """A neuron whose hidden states are attributes, not buffers.

    DistributedDataParallel would overwrite buffers with those of rank 0. A compiled loop would be compiled again if a
    buffer changed.
    """

    # The last trace with a step of this neuron: its number, the states before its first and after its last step.
    _traced: Tuple[int, Dict[str, Any], Dict[str, Any]] = (0, {}, {})
    # False for copies: snnTorch's constructor lists a neuron, and its reset functions reset listed neurons only.
    _is_listed = True
    # snnTorch's class, and snnipu's class for it, which a user may subclass.
    stock: Any
    fused_class: type
    spike_grad: Any
    state_quant: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "stock" in cls.__dict__:
            cls.__signature__ = inspect.signature(cls.stock)  # type: ignore[attr-defined]
            cls.fused_class = cls

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _instances.hold_weakly()
        if "reset_mechanism" in kwargs:
            self._check_mechanism(kwargs["reset_mechanism"])
        super().__init__(*args, **kwargs)
        self._hold_states()
        self._take_over()

    def _check_mechanism(self, reset_mechanism: str) -> None:
        """Raise if neither the equations nor the installed snnTorch have this mechanism."""
        if reset_mechanism not in self.stock.reset_dict:
            reset_code(reset_mechanism)

    def _hold_states(self) -> None:
        """Turn the states, which snnTorch's constructor registers as buffers, into attributes."""
        for name in self._states():
            if name in self._buffers:
                self.__dict__[name] = self._buffers.pop(name)
                self._non_persistent_buffers_set.discard(name)

    def _take_over(self) -> None:
        """Replace snnTorch's surrogate and quantizer, which its constructor has stored, with snnipu's."""
        if not callable(self.spike_grad):
            raise TypeError(f"spike_grad must be callable or None, got {self.spike_grad!r}")
        self.spike_grad = as_surrogate(self.spike_grad) or self.spike_grad
        self.state_quant = as_state_quant(self.state_quant)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        self._is_listed = False

    def _states(self) -> Tuple[str, ...]:
        """Return the names of the states."""
        raise NotImplementedError

    def _replaced(self) -> List[str]:
        raise NotImplementedError

    @step_operators.at_trace_time
    def _warn_replaced(self, stacklevel: int = 4) -> None:
        """Warn that the fused operator does not run, once for each class and its replaced parts."""
        names = self._replaced() or ["forward"]
        key = (type(self), *names)
        if key not in _WARNED:
            _WARNED.add(key)
            warnings.warn(
                f"{type(self).__name__} replaces {', '.join(names)} of {self.stock.__name__}: it runs step by step, in "
                "PyTorch",
                stacklevel=stacklevel,
            )

    def _surrogate(self) -> Optional[Surrogate]:
        """Return the known surrogate that equals ``spike_grad``, which may be set at any time; None: there is none."""
        return as_surrogate(self.spike_grad)

    @step_operators.at_trace_time
    def _reset_in_trace(self) -> bool:
        return step_operators.is_reset(self)

    def reset_mem(self) -> Any:
        """Set the states to zeros, and return them as snnTorch's ``reset_mem`` does."""
        if step_operators.tracing() or torch.jit.is_tracing():
            # Empty states stand for zeros of any shape, so that the graph does not depend on the last call's shape.
            for name in self._states():
                setattr(self, name, torch.zeros(0, device=self.threshold.device))
        return super().reset_mem()

    def mem_reset(self, mem: torch.Tensor) -> torch.Tensor:
        """Return the detached reset signal of snnTorch, computed without the surrogate."""
        surrogate, stock = self._surrogate(), super().mem_reset
        is_step = surrogate is not None and surrogate.kernel is not None and stock.__func__ is MEM_RESET
        if not is_step or is_compiling() or popart.on_ipu():
            return stock(mem)  # type: ignore[no-any-return]
        u = (mem - self.threshold).detach()
        return (u > 0).to(installed.spike_dtype(u.dtype))

    def _stock_states(self, states: Sequence[Any]) -> Sequence[Any]:
        """Return the states to pass to snnTorch's ``forward``; in a trace none, after storing them on the neuron.

        snnTorch's ``forward`` stores a state by ``if not mem == None``. TorchDynamo of PyTorch 2.11 cannot trace this
        comparison of a tensor with None.
        """
        if not step_operators.tracing() or self.init_hidden or len(states) > len(self._states()):
            return states
        for name, state in zip(self._states(), states):
            if state is not None:
                setattr(self, name, state)
        return ()

    def _exported(self, step: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Run ``step`` while PyTorch exports or traces it."""
        attributes, number = self.__dict__, _trace_number()
        if number:  # torch.jit.trace; torch.export handles constants itself
            self._begin_trace(number)
        buffers, reset = self._buffers, self._buffers.get("reset_mechanism_val")
        constant = reset is not None and not getattr(self, "reset_delay", True)
        if constant:  # snnTorch's step branches on the buffer's value: a number, so that the branch is a constant
            buffers["reset_mechanism_val"] = self.reset_dict[self._reset_mechanism]
        try:
            result = step(*args, **named)
        finally:
            if constant:
                buffers["reset_mechanism_val"] = reset
        if number:
            before = self._traced[1]
            attributes["_traced"] = (number, before, {name: attributes[name] for name in before})
        return result

    def _begin_trace(self, number: int) -> None:
        """Set the states with which a trace begins, without gradients of earlier computations.

        ``torch.jit.trace`` traces twice and compares. The second trace begins with the same states as the first.
        """
        attributes, (last, before, after) = self.__dict__, self._traced
        if number == last:
            return
        states = {name: attributes[name] for name in self._states() if name in attributes}
        if not after or any(states[name] is not state for name, state in after.items()):
            before = {name: _for_trace(state) for name, state in states.items()}
        attributes.update(before)
        attributes["_traced"] = (number, before, {})

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        super()._apply(fn, *args, **kwargs)
        with torch.no_grad():
            for name in self._states():
                if isinstance(self.__dict__.get(name), torch.Tensor):
                    self.__dict__[name] = fn(self.__dict__[name])
        return self

    def __getstate__(self) -> Dict[str, Any]:
        # The autograd graph of states of an earlier forward pass cannot be copied.
        state = self.__dict__.copy()
        state.pop("_traced", None)
        for name in self._states():
            if isinstance(state.get(name), torch.Tensor):
                state[name] = state[name].detach()
        return state
