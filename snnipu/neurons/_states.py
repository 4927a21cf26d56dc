"""Hidden states as plain attributes of a neuron, which in snnTorch are buffers."""

from typing import Any, Dict, Optional, Sequence, Tuple

import snntorch
import torch

from snnipu.backends import popart
from snnipu.ops import leaves
from snnipu.ops._arguments import is_compiling
from snnipu.surrogate import Surrogate, as_surrogate

MEM_RESET = snntorch.SpikingNeuron.mem_reset


class PlainStates(snntorch.SpikingNeuron):
    """A neuron whose hidden states are no buffers.

    Of buffers DistributedDataParallel broadcasts rank 0's over those of the others, and a compiled loop is compiled
    anew for what the last call left in them.
    """

    # Copies are not: snnTorch lists neurons that are made, and resets those that it has listed.
    _is_listed = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self._states():
            if name in self._buffers:
                self.__dict__[name] = self._buffers.pop(name)
                self._non_persistent_buffers_set.discard(name)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        self._is_listed = False

    def _states(self) -> Tuple[str, ...]:
        """Their names."""
        raise NotImplementedError

    def _surrogate(self) -> Optional[Surrogate]:
        """What the kernels take for ``spike_grad``, which may be exchanged at any time."""
        return as_surrogate(self.spike_grad)

    def mem_reset(self, mem: torch.Tensor) -> torch.Tensor:
        """The detached reset signal: snnTorch's, without a surrogate gradient that nobody reads."""
        known, plain = self._surrogate(), super().mem_reset
        own = known is not None and known.kernel is not None and plain.__func__ is MEM_RESET
        if not own or is_compiling() or popart.on_ipu():
            return plain(mem)  # type: ignore[no-any-return]
        return ((mem - self.threshold).detach() > 0).float()

    def _left_to_give(self, states: Sequence[Any]) -> Sequence[Any]:
        """What of a step's states snnTorch's code is given: in a trace none of them, but they are the neuron's own by
        then, as its ``if not mem == None`` would make them. TorchDynamo of PyTorch 2.11 cannot compare a tensor with
        None."""
        if not leaves.tracing() or self.init_hidden or len(states) > len(self._states()):
            return states
        for name, state in zip(self._states(), states):
            if state is not None:
                setattr(self, name, state)
        return ()

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
        for name in self._states():
            if isinstance(state.get(name), torch.Tensor):
                state[name] = state[name].detach()
        return state
