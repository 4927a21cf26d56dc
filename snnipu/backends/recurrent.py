"""Run all steps of a recurrent neuron with a linear layer in one call (C interface: csrc/host/recurrent.h).

The products use PyTorch's BLAS and are called as PyTorch calls it. So they round as in a loop over time.
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
from snnipu.ops._reference import StepBackward
from snnipu.ops.neuron_sequence import without_empty
from snnipu.ops.recurrent_sequence import SPIKES, RecurrentBackwardArguments, RecurrentForwardArguments, adds_to_input

Tensors = Sequence[Optional[torch.Tensor]]
# Elements of a step up to which one call is faster. PyTorch adds larger steps on several threads, and the time of its
# calls does not matter then.
_MOST_ELEMENTS = 1 << 16
_GEMM = {torch.float32: "sgemm_", torch.float64: "dgemm_"}
Call: Any = host.struct_of("recurrent", "recurrent.h")


@functools.lru_cache(maxsize=None)
def _gemm(dtype: torch.dtype) -> Optional[int]:
    """Return the address of gemm in PyTorch's BLAS; None if its library does not export it."""
    # On other systems PyTorch multiplies by other libraries, or does not export its BLAS.
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(getattr(library, _GEMM[dtype]), c_void_p).value
    except (OSError, AttributeError):
        return None


def _is_supported(a: Any, x: torch.Tensor, step: torch.Size) -> bool:
    return (
        x.dtype in _GEMM
        and len(step) > 1  # PyTorch does not multiply a single vector by gemm
        and all(tensor is None or tensor.dtype == x.dtype for tensor in (a.weight, a.bias, *a.parameters))
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


def _recurrent_call(
    steps: neurons.NeuronCall, function: Any, a: Any, num_states: int, bias: Optional[torch.Tensor]
) -> Call:
    """Return the call whose ``steps`` are all steps of the neuron, which ``function`` runs."""
    call, dtype = Call(), steps.compute
    call.all = steps.words.buffer_info()[0]
    call.neuron = ctypes.cast(function, c_void_p).value
    call.gemm = _gemm(dtype)
    call.num_states, call.features = num_states, a.weight.shape[0]
    call.adds, call.transposed = adds_to_input(a.neuron), not a.weight.is_contiguous()
    weight = a.weight.t() if call.transposed else a.weight
    call.weight = pointer_to_read("weight", weight, dtype, a.weight.shape, steps.keep_alive)
    if bias is not None:
        call.bias = pointer_to_read("bias", bias, dtype, a.weight.shape[:1], steps.keep_alive)
    return call


def without_spikes(tensors: Tensors, adds: bool) -> Tensors:
    """Return the tensors of the neuron's states, without its spikes, which are a state of the recurrent neuron."""
    return [None if place == SPIKES else tensor for place, tensor in enumerate(tensors)][adds:]


def forward(
    kernels: neurons.Kernels,
    a: RecurrentForwardArguments,
    initial: Tensors,
    spk: torch.Tensor,
    states: Sequence[torch.Tensor],
    incoming: torch.Tensor,
) -> Optional[Tensors]:
    """Run all steps, writing ``spk``, ``states`` and ``incoming``.

    Returns:
        The states after the last step; None if these arguments are not supported.
    """
    adds, step_shape, library = adds_to_input(a.neuron), spk.shape[1:], host.library
    if library is None or not _is_supported(a, a.x, step_shape):
        return None
    steps = neurons.NeuronCall(kernels, a.variant, a.x.dtype, len(spk), step_shape.numel(), a.num_steps is not None)
    dtype = steps.compute
    steps.read_parameters(a.parameters)
    final = [None if place == SPIKES else a.parameters[0].new_empty(step_shape) for place in range(len(states))]
    stored = without_spikes(without_empty(states), adds)
    steps.set_forward(a.x, without_spikes(initial, adds), spk, stored, final[adds:], step_shape, spk.shape)
    call = _recurrent_call(steps, kernels.forward, a, len(states) - adds, a.bias)
    first = initial[SPIKES]
    if first is not None:
        call.first = pointer_to_read("initial", first, dtype, step_shape, steps.keep_alive)
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
    """Run the adjoint of all steps: write ``grad_rows``, and add the parameters' gradients to ``total``.

    Returns:
        The gradients of the initial states; None if these arguments are not supported.
    """
    adds, step_shape, like, library = adds_to_input(a.neuron), a.spk.shape[1:], a.parameters[0], host.library
    if library is None or not _is_supported(a, a.spk, step_shape):
        return None
    steps = neurons.NeuronCall(kernels, a.variant, a.spk.dtype, len(a.spk), step_shape.numel(), a.num_steps is not None)
    dtype, shape = steps.compute, a.spk.shape
    steps.read_parameters(a.parameters)
    steps.read(neurons._SPK, "spk", a.spk, dtype, shape)
    steps.set_surrogate(a.surrogate, a.surrogate_a, a.surrogate_b)
    neurons._check_count("grad_states", a.grad_states[adds:], kernels, needed=True)
    before: List[Optional[torch.Tensor]] = [
        None if place == SPIKES and not a.need_initial[SPIKES] else like.new_empty(step_shape)
        for place in range(len(a.states))
    ]
    first_states, after, last_gradients, gradients = (
        without_spikes(tensors, adds) for tensors in (a.initial, without_empty(a.states), grad_final, before)
    )
    upstream = (a.grad_spk, first_states, after, a.grad_states[adds:], last_gradients)
    steps.set_backward(StepBackward(a.x, *upstream, grad_rows, gradients), step_shape, shape)
    steps.write(neurons._GRAD_X, "grad_x", grad_rows, dtype, shape)
    steps.write_grad_parameters(total)
    call = _recurrent_call(steps, kernels.backward, a, len(a.states) - adds, None)
    if a.incoming.numel():
        call.incoming = pointer_to_read("incoming", a.incoming, dtype, shape, steps.keep_alive)
    last, first = grad_final[SPIKES], before[SPIKES]
    if last is not None:
        call.grad_last = pointer_to_read("grad_final", last, dtype, step_shape, steps.keep_alive)
    if first is not None:
        call.grad_first = pointer("grad_initial", first, dtype, step_shape)
    host._check(library.snnipu_recurrent_backward(ctypes.byref(call)), "neuron_recurrent_bwd")
    return before
