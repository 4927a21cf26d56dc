"""Register the kernels of the operators with PyTorch's dispatcher, for the CPU and for CUDA.

The operators of ``snnipu.ops`` do not import backends.
"""

from typing import Any, Optional, Sequence

import torch

from snnipu.backends import compiled, host, host_pool, host_sparse, memory, neurons, recurrent, spiking_lstm, triton
from snnipu.ops import _library, _neurons, recurrent_sequence
from snnipu.ops import neuron_sequence as operator
from snnipu.ops.delay_linear import OPERATORS as DELAY_LINEAR
from snnipu.ops.eventprop import OPERATOR as EVENTPROP
from snnipu.ops.sparse_conv2d import OPERATORS as SPARSE_CONV2D
from snnipu.ops.sparse_conv_lif_sequence import OPERATORS as SPARSE_CONV_LIF
from snnipu.ops.sparse_conv_lif_sequence import WITH_POOL
from snnipu.ops.sparse_lif_sequence import OPERATORS as SPARSE_LIF
from snnipu.ops.sparse_linear import OPERATORS as SPARSE_LINEAR


def _kernels_of(neuron: str, dtype: torch.dtype) -> Optional[neurons.Kernels]:
    """Return the kernels of a neuron, compiling a user's neuron if necessary; None if it cannot be compiled."""
    if neuron in _neurons.BUILT:
        return neurons.built_in_kernels(_neurons.BUILT[neuron])
    return compiled.kernels(neuron, _neurons.find(neuron), dtype)


def neuron_sequence_fwd(*arguments: Any) -> operator.OperatorResults:
    a = operator.ForwardArguments(*arguments)
    kernels = _kernels_of(a.neuron, a.x.dtype)
    return operator.neuron_sequence_fwd_reference(*arguments) if kernels is None else neurons.forward(kernels, a)


def neuron_sequence_bwd(*arguments: Any) -> operator.OperatorResults:
    a = operator.BackwardArguments(*arguments)
    kernels = _kernels_of(a.neuron, a.stored.dtype)
    return operator.neuron_sequence_bwd_reference(*arguments) if kernels is None else neurons.backward(kernels, a)


def _single_steps(neuron: str, variant: int, x: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Any:
    kernels = _kernels_of(neuron, x.dtype)
    if kernels is None:
        return recurrent_sequence.ReferenceSteps(neuron, variant, x, parameters)
    return neurons.SingleSteps(kernels, variant, x.dtype).copy(x.numel(), parameters)


def _run_recurrent_forward(a: recurrent_sequence.RecurrentForwardArguments, *outputs: Any) -> Any:
    kernels = _kernels_of(a.neuron, a.x.dtype)
    return None if kernels is None else recurrent.forward(kernels, a, *outputs)


def _run_recurrent_backward(a: recurrent_sequence.RecurrentBackwardArguments, *outputs: Any) -> Any:
    kernels = _kernels_of(a.neuron, a.spk.dtype)
    return None if kernels is None else recurrent.backward(kernels, a, *outputs)


_LOOP_FUNCTIONS = recurrent_sequence.LoopFunctions(
    _single_steps, memory.empty, memory.note_results, _run_recurrent_forward, _run_recurrent_backward
)


def neuron_recurrent_fwd(*arguments: Any) -> recurrent_sequence.ForwardResults:
    return recurrent_sequence.run_forward(_LOOP_FUNCTIONS, *arguments)


def neuron_recurrent_bwd(*arguments: Any) -> recurrent_sequence.BackwardResults:
    return recurrent_sequence.run_backward(_LOOP_FUNCTIONS, *arguments)


if host.library is not None:
    _library.implement("neuron_sequence_fwd", "CPU", neuron_sequence_fwd)
    _library.implement("neuron_sequence_bwd", "CPU", neuron_sequence_bwd)
    _library.implement("neuron_recurrent_fwd", "CPU", neuron_recurrent_fwd)
    _library.implement("neuron_recurrent_bwd", "CPU", neuron_recurrent_bwd)
    for _kernels, _operators in (
        (spiking_lstm, ("spiking_lstm_fwd", "spiking_lstm_bwd")),
        (host_sparse, ("dense_to_sparse_fwd", "sparse_to_dense_fwd", "sparse_to_dense_bwd")),
        (host_sparse, ("spike_count_fwd", "spike_count_bwd", "select_spikes_fwd", "select_spikes_bwd")),
        (host_sparse, ("sparse_pool2d_fwd", "sparse_pool2d_bwd")),
        (host_pool, ("max_pool2d_fwd", "max_pool2d_bwd", "avg_pool2d_fwd", "avg_pool2d_bwd")),
    ):
        for _operator in _operators:
            _library.implement(_operator, "CPU", getattr(_kernels, _operator))
    for _currents in (SPARSE_LINEAR, SPARSE_CONV2D):
        _currents.forward.implement("CPU", host_sparse.currents_fwd)
        _currents.backward.implement("CPU", host_sparse.currents_bwd)
    DELAY_LINEAR.forward.implement("CPU", host_sparse.currents_fwd)
    DELAY_LINEAR.backward.implement("CPU", host_sparse.delay_bwd)
    _library.implement("delay_linear_input_bwd", "CPU", host_sparse.delay_input_bwd)
    for _layer in (SPARSE_LIF, SPARSE_CONV_LIF):
        _layer.forward.implement("CPU", host_sparse.layer_fwd)
        _layer.backward.implement("CPU", host_sparse.layer_bwd)
    WITH_POOL.forward.implement("CPU", host_sparse.layer_fwd)
    EVENTPROP.implement("CPU", host_sparse.eventprop_bwd)
# Modules of Triton kernels are imported at the first call, and Triton with them.
for _module, _operators in (
    ("neurons", ("neuron_sequence_fwd", "neuron_sequence_bwd")),
    ("steps", ("neuron_recurrent_fwd", "neuron_recurrent_bwd")),
    ("sparse_select", ("dense_to_sparse_fwd", "sparse_to_dense_fwd", "sparse_to_dense_bwd")),
    ("sparse_select", ("spike_count_fwd", "spike_count_bwd", "select_spikes_fwd", "select_spikes_bwd")),
    ("sparse_layers", ("sparse_linear_fwd", "sparse_linear_bwd", "sparse_conv2d_fwd", "sparse_conv2d_bwd")),
    ("sparse_layers", ("sparse_lif_sequence_fwd", "sparse_lif_sequence_bwd")),
    ("sparse_layers", ("sparse_conv_lif_sequence_fwd", "sparse_conv_lif_sequence_bwd")),
    ("delay_linear", ("delay_linear_fwd", "delay_linear_bwd", "delay_linear_input_bwd")),
):
    for _operator in _operators:
        _library.implement(_operator, "CUDA", triton.lazily(_module, _operator))
