"""All steps of a neuron whose spikes come back through a linear layer, in one call: csrc/host/recurrent.h.

The products are by the BLAS that PyTorch has, called as PyTorch calls it: they round as those of a loop.
"""

import ctypes
import functools
import platform
import sys
from ctypes import c_void_p
from pathlib import Path
from typing import Any, List, Optional, Sequence

import torch

from snnipu._pointers import pointer, pointer_to_read
from snnipu.backends import host, neurons
from snnipu.ops.recurrent_sequence import SPIKES, RecurrentBackwardArguments, RecurrentForwardArguments, adds_to_input

Tensors = Sequence[Optional[torch.Tensor]]
# Of a step: larger ones take PyTorch's threads for the sum, too, and the calls between them take no time.
_MOST_ELEMENTS = 1 << 16
_GEMM = {torch.float32: "sgemm_", torch.float64: "dgemm_"}
Call: Any = host.struct_of("recurrent", "recurrent.h")


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
        and a.weight.shape == (step[-1], step[-1])
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


def _call(every: neurons._Arguments, neuron: Any, a: Any, num_states: int, bias: Optional[torch.Tensor]) -> Call:
    made, dtype = Call(), every.compute
    made.all = every.words.buffer_info()[0]
    made.neuron = ctypes.cast(neuron, c_void_p).value
    made.gemm = _gemm(dtype)
    made.num_states, made.features = num_states, a.weight.shape[0]
    made.adds, made.transposed = adds_to_input(a.neuron), not a.weight.is_contiguous()
    weight = a.weight.t() if made.transposed else a.weight
    made.weight = pointer_to_read("weight", weight, dtype, a.weight.shape, every.kept)
    if bias is not None:
        made.bias = pointer_to_read("bias", bias, dtype, a.weight.shape[:1], every.kept)
    return made


def forward(
    kernels: neurons.Kernels,
    a: RecurrentForwardArguments,
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
    dtype = every.compute
    every.read(neurons._X, "x", a.x, dtype, a.x.shape)
    every.read_parameters(a.parameters)
    every.write(neurons._SPK, "spk", spk, dtype, spk.shape)
    final = [None if place == SPIKES else a.parameters[0].new_empty(step_shape) for place in range(len(states))]
    before = [None if place == SPIKES else state for place, state in enumerate(initial)]
    every.read_all(neurons._INITIAL, "initial", before[adds:], dtype, step_shape)
    kept = [state if state.numel() and place != SPIKES else None for place, state in enumerate(states)]
    every.write_all(neurons._STATES, "states", kept[adds:], dtype, spk.shape)
    every.write_all(neurons._FINAL, "final", final[adds:], dtype, step_shape)
    call = _call(every, kernels.forward, a, len(states) - adds, a.bias)
    first = initial[SPIKES]
    if first is not None:
        call.first = pointer_to_read("initial", first, dtype, step_shape, every.kept)
    if a.store_incoming:
        call.incoming = pointer("incoming", incoming, dtype, spk.shape)
    host._check(library.snnipu_recurrent_forward(ctypes.byref(call)), "neuron_recurrent_fwd")
    final[SPIKES] = spk[-1]
    return final


def backward(
    kernels: neurons.Kernels,
    a: RecurrentBackwardArguments,
    grad_final: Tensors,
    grad_rows: torch.Tensor,
    total: Tensors,
) -> Optional[Tensors]:
    """Write ``grad_rows`` and add to ``total``; returns the gradients of the first states, or None: not of these."""
    adds, step_shape, like, library = adds_to_input(a.neuron), a.spk.shape[1:], a.parameters[0], host.library
    if library is None or not _is_known(a, a.spk, step_shape):
        return None
    every = neurons._Arguments(kernels, a.variant, a.spk.dtype, len(a.spk), step_shape.numel(), a.num_steps is not None)
    dtype, shape = every.compute, a.spk.shape
    if a.x is not None:
        every.read(neurons._X, "x", a.x, dtype, shape if a.num_steps is None else step_shape)
    every.read_parameters(a.parameters)
    every.read(neurons._SPK, "spk", a.spk, dtype, shape)
    every.set_surrogate(a.surrogate, a.surrogate_a, a.surrogate_b)

    def own(tensors: Tensors) -> Tensors:
        """Those of the neuron itself, without its spikes."""
        return [None if place == SPIKES else tensor for place, tensor in enumerate(tensors)][adds:]

    every.read_all(neurons._INITIAL, "initial", own(a.initial), dtype, step_shape)
    after = own([state if state.numel() else None for state in a.states])
    every.read_all(neurons._STATES, "states", after, dtype, shape)
    every.read_all(neurons._GRAD_FINAL, "grad_final", own(grad_final), dtype, step_shape)
    every.read_upstream(neurons._GRAD_SPK, 0, "grad_spk", a.grad_spk, shape)
    neurons._check_count("grad_states", a.grad_states[adds:], kernels, needed=True)
    for place, grad in enumerate(a.grad_states[adds:]):
        every.read_upstream(neurons._GRAD_STATES + place, 1 + place, "grad_states", grad, shape)
    before: List[Optional[torch.Tensor]] = [
        None if place == SPIKES and not a.need_initial[SPIKES] else like.new_empty(step_shape)
        for place in range(len(a.states))
    ]
    every.write(neurons._GRAD_X, "grad_x", grad_rows, dtype, shape)
    every.write_all(neurons._GRAD_INITIAL, "grad_initial", own(before), dtype, step_shape)
    every.write_grad_parameters(total)
    call = _call(every, kernels.backward, a, len(a.states) - adds, None)
    if a.incoming.numel():
        call.incoming = pointer_to_read("incoming", a.incoming, dtype, shape, every.kept)
    last, first = grad_final[SPIKES], before[SPIKES]
    if last is not None:
        call.grad_last = pointer_to_read("grad_final", last, dtype, step_shape, every.kept)
    if first is not None:
        call.grad_first = pointer("grad_initial", first, dtype, step_shape)
    host._check(library.snnipu_recurrent_backward(ctypes.byref(call)), "neuron_recurrent_bwd")
    return before
