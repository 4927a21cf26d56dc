"""All steps of a neuron whose spikes come back through a linear layer, in one call: csrc/host/recurrent.h.

The products are by the BLAS that PyTorch has, called as PyTorch calls it: they round as those of a loop.
"""

import ctypes
import functools
import platform
import sys
from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple

import torch

from snnipu.backends import host, neurons
from snnipu.ops.recurrent_sequence import SPIKES, BackwardArguments, ForwardArguments, adds_to_input

Tensors = Sequence[Optional[torch.Tensor]]
# Of a step: larger ones take PyTorch's threads for the sum, too, and the calls between them take no time.
_MOST_ELEMENTS = 1 << 16
_GEMM = {torch.float32: "sgemm_", torch.float64: "dgemm_"}


class Call(ctypes.Structure):
    """``snnipu_recurrent_call``."""

    _fields_ = [
        *((name, c_void_p) for name in ("all", "neuron", "gemm")),
        *((name, c_int64) for name in ("num_states", "features", "adds", "transposed")),
        *((name, c_void_p) for name in ("weight", "bias", "first", "incoming", "grad_last", "grad_first")),
    ]


@functools.lru_cache(maxsize=None)
def _gemm(dtype: torch.dtype) -> Optional[int]:
    """The address of a product of PyTorch's BLAS; None where it shows none."""
    # Elsewhere PyTorch multiplies by other libraries, or does not show its own.
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(getattr(library, _GEMM[dtype]), c_void_p).value
    except (OSError, AttributeError):
        return None


def _is_known(a: Any, x: torch.Tensor, step: torch.Size) -> bool:
    return (
        x.dtype in _GEMM
        and len(step) > 1  # PyTorch multiplies a single vector otherwise
        and all(one is None or one.dtype == x.dtype for one in (a.weight, a.bias, *a.parameters))
        and (a.bias is None or a.bias.shape == a.weight.shape[:1])
        and not a.geometry
        and not a.order
        and step.numel() <= _MOST_ELEMENTS
        and (a.weight.is_contiguous() or a.weight.t().is_contiguous())
        and torch.get_float32_matmul_precision() == "highest"
        and _gemm(x.dtype) is not None
    )


if host.library is not None:
    host.declare(host.library, "recurrent", Call, ("recurrent_forward", "recurrent_backward"))


def _address(tensor: Optional[torch.Tensor]) -> int:
    return 0 if tensor is None else tensor.data_ptr()  # of an empty one 0, too


def _call(every: Any, neuron: Any, a: Any, num_states: int, bias: Optional[torch.Tensor]) -> Call:
    made = Call()
    made.all = every.words.buffer_info()[0]
    made.neuron = ctypes.cast(neuron, c_void_p).value
    made.gemm = _gemm(a.weight.dtype)
    made.num_states, made.features = num_states, a.weight.shape[0]
    made.adds, made.transposed = adds_to_input(a.neuron), not a.weight.is_contiguous()
    made.weight = a.weight.data_ptr()
    if bias is not None:
        every.kept.append(bias.contiguous())
        made.bias = every.kept[-1].data_ptr()
    return made


def forward(
    kernels: neurons.Kernels,
    a: ForwardArguments,
    initial: Tensors,
    spk: torch.Tensor,
    states: Sequence[torch.Tensor],
    incoming: torch.Tensor,
) -> Optional[Tensors]:
    """Write ``spk``, ``states`` and ``incoming``; returns the states after the last step, or None: not of these."""
    adds, step_shape, library = adds_to_input(a.neuron), spk.shape[1:], host.library
    if library is None or not _is_known(a, a.x, step_shape):
        return None
    every = neurons._Arguments(kernels, a.variant, a.x.dtype, len(spk), step_shape.numel(), a.num_steps is not None)
    every.connect(neurons._X, a.x)
    every.connect_parameters(a.parameters)
    every.connect(neurons._SPK, spk)
    final = [None if place == SPIKES else a.parameters[0].new_empty(step_shape) for place in range(len(states))]
    every.connect_all(neurons._INITIAL, [None if p == SPIKES else one for p, one in enumerate(initial)][adds:])
    every.connect_all(neurons._STATES, states[adds:])
    every.connect_all(neurons._FINAL, final[adds:])
    call = _call(every, kernels.forward, a, len(states) - adds, a.bias)
    first = initial[SPIKES]
    call.first = _address(first)
    call.incoming = _address(incoming)
    host._check(library.snnipu_recurrent_forward(ctypes.byref(call)), "neuron_recurrent_fwd")
    final[SPIKES] = spk[-1]
    return final


def backward(
    kernels: neurons.Kernels, a: BackwardArguments, grad_final: Tensors, grad_rows: torch.Tensor, total: Tensors
) -> Optional[Tensors]:
    """Write ``grad_rows`` and add to ``total``; returns the gradients of the first states, or None: not of these."""
    adds, step_shape, like, library = adds_to_input(a.neuron), a.spk.shape[1:], a.parameters[0], host.library
    if library is None or not _is_known(a, a.spk, step_shape):
        return None
    every = neurons._Arguments(kernels, a.variant, a.spk.dtype, len(a.spk), step_shape.numel(), a.num_steps is not None)
    every.connect(neurons._X, a.x)
    every.connect_parameters(a.parameters)
    every.connect(neurons._SPK, a.spk)
    every.set_surrogate(a.surrogate, a.surrogate_a, a.surrogate_b)
    own = [place for place in range(len(a.states)) if place >= adds]
    for at, place in enumerate(own):
        if place != SPIKES:
            every.connect(neurons._INITIAL + at, a.initial[place])
            every.connect(neurons._STATES + at, a.states[place])
            every.connect(neurons._GRAD_FINAL + at, grad_final[place])
    upstream: List[Tuple[int, int, Optional[torch.Tensor]]] = [(0, neurons._GRAD_SPK, a.grad_spk)]
    upstream += [(1 + at, neurons._GRAD_STATES + at, a.grad_states[place]) for at, place in enumerate(own)]
    for bit, word, grad in upstream:
        if grad is not None:
            if grad.shape[0] > 1 and grad.stride(0) == 0:
                grad = grad[0]
                every.words[neurons._GRAD_CONSTANT] |= 1 << bit
            every.connect(word, grad)
    before: List[Optional[torch.Tensor]] = [
        None if place == SPIKES and not a.need_initial[SPIKES] else like.new_empty(step_shape)
        for place in range(len(a.states))
    ]
    every.connect(neurons._GRAD_X, grad_rows)
    every.connect_all(neurons._GRAD_INITIAL, [None if p == SPIKES else one for p, one in enumerate(before)][adds:])
    every.connect_all(neurons._GRAD_PARAMETERS, total)
    call = _call(every, kernels.backward, a, len(own), None)
    call.incoming = _address(a.incoming)
    call.grad_last, call.grad_first = _address(grad_final[SPIKES]), _address(before[SPIKES])
    host._check(library.snnipu_recurrent_backward(ctypes.byref(call)), "neuron_recurrent_bwd")
    return before
