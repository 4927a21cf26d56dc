"""Run the pointwise part of a spiking LSTM's step on CPU threads (C interface: csrc/host/spiking_lstm.h).

PyTorch computes the products before it. The dtype is float32 or float64.
"""

import ctypes
from functools import partial
from typing import Any, List, Optional, Sequence

import torch

from snnipu._pointers import pointer, pointer_to_read
from snnipu.backends import host
from snnipu.ops import spiking_lstm as operator

_DTYPES = {torch.float32: 0, torch.float64: 1}
Tensors = Sequence[Optional[torch.Tensor]]
Call: Any = host.struct_of("lstm", "spiking_lstm.h")
if host.library is not None:
    host.declare(host.library, "lstm", Call, ("lstm_forward", "lstm_backward"))


class Pointwise:
    """The native :class:`snnipu.ops.spiking_lstm.ReferencePointwise`; its outputs are contiguous."""

    def __init__(self, cell: operator.Cell, threshold: torch.Tensor, reset: int) -> None:
        self.dtype = threshold.dtype
        self.call = Call(dtype=_DTYPES[self.dtype], threads=torch.get_num_threads(), reset=reset)
        self.call.tanh_gate = operator.tanh_gate(cell)
        self.call.threshold = threshold.item()
        self.pointer = ctypes.byref(self.call)
        self.keep_alive: List[torch.Tensor] = []

    def _run(self, backward: bool, like: torch.Tensor) -> None:
        if like.numel():
            self.call.rows, self.call.width = len(like), like.numel() // len(like)
            library: Any = host.library
            function = library.snnipu_lstm_backward if backward else library.snnipu_lstm_forward
            host._check(function(self.pointer), f"spiking_lstm_{'bwd' if backward else 'fwd'}")
        self.keep_alive.clear()

    def _read(self, name: str, tensor: Optional[torch.Tensor], shape: Sequence[int]) -> Optional[int]:
        return None if tensor is None else pointer_to_read(name, tensor, self.dtype, tuple(shape), self.keep_alive)

    def _write(self, name: str, tensor: Optional[torch.Tensor], shape: Sequence[int]) -> Optional[int]:
        return None if tensor is None else pointer(name, tensor, self.dtype, tuple(shape))

    def forward(self, gates: torch.Tensor, before: Tensors, after: Tensors) -> None:
        """Overwrite the gates by their activations, and write the states after the step."""
        call, (syn, mem) = self.call, after
        assert syn is not None
        shape = syn.shape
        call.gates = self._write("gates", gates, _gates_shape(shape))
        call.syn_before, call.mem_before = (self._read(name, t, shape) for name, t in zip(("syn", "mem"), before))
        call.syn, call.mem = self._write("syn", syn, shape), self._write("mem", mem, shape)
        self._run(False, syn)

    def backward(self, a: operator.PointwiseBackward) -> None:
        """Write the gradients of the gates, of the cell state before the step and of the threshold."""
        call, shape = self.call, a.syn.shape
        call.gates = self._read("activations", a.activations, _gates_shape(shape))
        call.syn = self._read("syns", a.syn, shape)
        call.syn_before, call.mem_before = (self._read(name, t, shape) for name, t in zip(("syn", "mem"), a.before))
        names = ("grad_syns", "grad_mems")
        call.grad_syn, call.grad_mem = (self._read(name, t, shape) for name, t in zip(names, a.grad))
        call.carried_syn, call.carried_mem = (self._read(name, t, shape) for name, t in zip(names, a.carried))
        call.grad_gates = self._write("grad_gates", a.grad_gates, _gates_shape(shape))
        call.grad_before = self._write("grad_syn", a.grad_before, shape)
        call.grad_reset = self._write("grad_threshold", a.grad_reset, shape)
        self._run(True, a.syn)


def _gates_shape(state: torch.Size) -> Sequence[int]:
    """Return the shape of the gates, ``[B, 4 * neurons, ...]``, for states ``[B, neurons, ...]``."""
    return (state[0], 4 * state[1], *state[2:])


def _pointwise(cell: operator.Cell, threshold: torch.Tensor, reset: int) -> Any:
    supported = threshold.dtype in _DTYPES and threshold.numel() == 1
    return (Pointwise if supported else operator.ReferencePointwise)(cell, threshold, reset)


# CPU kernels of the operators.
spiking_lstm_fwd = partial(operator.run_forward, _pointwise)
spiking_lstm_bwd = partial(operator.run_backward, _pointwise)
