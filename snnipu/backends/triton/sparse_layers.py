"""CUDA kernels of currents and of layers of spiking neurons, for linear connections and convolutions.

They take the records of the operators.
"""

from typing import Any, Optional, Tuple

import torch

from snnipu.backends import triton as backend
from snnipu.backends.triton.sparse_conv import gather_maps, gradients_of_maps
from snnipu.backends.triton.sparse_lif import membrane_gradient, select_slots
from snnipu.backends.triton.sparse_linear import gather_weights, grad_values_of, grad_weight_of
from snnipu.ops._sparse_currents import CurrentsBackward, CurrentsForward, CurrentsGradients
from snnipu.ops._sparse_layers import LayerBackward, LayerForward, LayerGradients, LayerResults, gradients_of_sums
from snnipu.ops.sparse_conv2d import OPERATORS as CONV2D
from snnipu.ops.sparse_conv_lif_sequence import OPERATORS as CONV_LIF
from snnipu.ops.sparse_lif_sequence import OPERATORS as LIF
from snnipu.ops.sparse_linear import OPERATORS as LINEAR


def _currents(a: Any, scale: float = 1.0, delay: int = 0) -> torch.Tensor:
    """Return ``scale`` times the weighted spikes of ``delay`` steps before, plus the bias: ``[T, B, neurons]``."""
    if a.geometry is None:
        return gather_weights(a.ids, a.values, a.counts, a.weight, a.bias, scale, delay)
    weight = a.weight if scale == 1 else a.weight * scale
    return gather_maps(a.ids, a.values, a.counts, weight, a.bias, a.geometry, delay)


def _gradients(
    a: Any, grad: torch.Tensor, scale: float = 1.0, delay: int = 0
) -> Tuple[Optional[torch.Tensor], Optional[torch.Tensor]]:
    """Return the gradients of values and weight for the gradient of the currents; None if they are not needed."""
    if a.geometry is None:
        inputs = a.weight.shape[1]
        return (
            grad_values_of(grad, a.ids, a.counts, a.weight, scale, delay) if a.need_values else None,
            grad_weight_of(grad, a.ids, a.values, a.counts, inputs, scale, delay) if a.need_weight else None,
        )
    need = (a.need_values, a.need_weight)
    gradients = gradients_of_maps(grad, a.ids, a.values, a.counts, a.weight, a.geometry, *need, delay)
    values, weight = (gradient if gradient is None or scale == 1 else gradient * scale for gradient in gradients)
    return values, weight


def currents_fwd(a: CurrentsForward) -> torch.Tensor:
    """CUDA kernel of ``snnipu::sparse_linear_fwd`` and ``snnipu::sparse_conv2d_fwd``."""
    return _currents(a)


def currents_bwd(a: CurrentsBackward) -> CurrentsGradients:
    """CUDA kernel of ``snnipu::sparse_linear_bwd`` and ``snnipu::sparse_conv2d_bwd``."""
    return CurrentsGradients(*_gradients(a, a.grad), a.connection.per_parameter(a.grad) if a.need_bias else None)


def layer_fwd(a: LayerForward) -> LayerResults:
    """CUDA kernel of ``snnipu::sparse_lif_sequence_fwd`` and ``snnipu::sparse_conv_lif_sequence_fwd``."""
    connected = a.connection
    backend.check_launch(a.ids, a.values, a.counts, a.weight, a.bias, a.recurrent_weight, a.beta, a.threshold)
    # These are the currents: the kernels overwrite them by the membranes.
    mem = _currents(a, a.input_scale, a.delay)
    slots, fired = select_slots(mem, connected.per_neuron(a.beta), connected.per_neuron(a.threshold), a)
    stored = connected.to_stored(mem) if a.store_mem else mem.new_empty(0)
    return LayerResults(slots.ids, slots.values, slots.counts, slots.dropped, None, None, slots.slot_x, fired, stored)


def layer_bwd(a: LayerBackward) -> LayerGradients:
    """CUDA kernel of ``snnipu::sparse_lif_sequence_bwd`` and ``snnipu::sparse_conv_lif_sequence_bwd``."""
    connected, stored = a.connection, a.stored
    backend.check_launch(a.grad, a.ids, a.values, a.counts, a.weight, a.beta, a.threshold)
    mem = a.mem if stored is None else connected.from_stored(stored).flatten(2)
    parameters = (connected.per_neuron(a.beta), connected.per_neuron(a.threshold))
    dense, sum_grad, sum_beta, sum_threshold = membrane_gradient(a, mem, *parameters)
    grad_recurrent = None
    if a.need_recurrent:
        ones = torch.ones_like(a.slot_mem)
        grad_recurrent = grad_weight_of(dense, a.ids_out, ones, a.counts_out, connected.neurons, a.input_scale, 1)
    grads = _gradients(a, dense, a.input_scale, a.delay)
    return gradients_of_sums(a, *grads, grad_recurrent, sum_grad, sum_beta, sum_threshold)


sparse_linear_fwd, sparse_linear_bwd = LINEAR.forward.kernel(currents_fwd), LINEAR.backward.kernel(currents_bwd)
sparse_conv2d_fwd, sparse_conv2d_bwd = CONV2D.forward.kernel(currents_fwd), CONV2D.backward.kernel(currents_bwd)
sparse_lif_sequence_fwd, sparse_lif_sequence_bwd = LIF.forward.kernel(layer_fwd), LIF.backward.kernel(layer_bwd)
sparse_conv_lif_sequence_fwd = CONV_LIF.forward.kernel(layer_fwd)
sparse_conv_lif_sequence_bwd = CONV_LIF.backward.kernel(layer_bwd)
