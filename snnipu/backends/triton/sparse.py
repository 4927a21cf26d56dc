"""The sparse operators on CUDA: ``snnipu::<name>`` is the function of that name."""

from snnipu.backends.triton.delay_linear import delay_linear_bwd, delay_linear_fwd, delay_linear_input_bwd
from snnipu.backends.triton.sparse_layers import (
    sparse_conv2d_bwd,
    sparse_conv2d_fwd,
    sparse_conv_lif_sequence_bwd,
    sparse_conv_lif_sequence_fwd,
    sparse_lif_sequence_bwd,
    sparse_lif_sequence_fwd,
    sparse_linear_bwd,
    sparse_linear_fwd,
)
from snnipu.backends.triton.sparse_select import (
    dense_to_sparse_fwd,
    select_spikes_bwd,
    select_spikes_fwd,
    sparse_to_dense_bwd,
    sparse_to_dense_fwd,
    spike_count_bwd,
    spike_count_fwd,
)

__all__ = [
    "delay_linear_bwd",
    "delay_linear_fwd",
    "delay_linear_input_bwd",
    "dense_to_sparse_fwd",
    "select_spikes_bwd",
    "select_spikes_fwd",
    "sparse_conv2d_bwd",
    "sparse_conv2d_fwd",
    "sparse_conv_lif_sequence_bwd",
    "sparse_conv_lif_sequence_fwd",
    "sparse_lif_sequence_bwd",
    "sparse_lif_sequence_fwd",
    "sparse_linear_bwd",
    "sparse_linear_fwd",
    "sparse_to_dense_bwd",
    "sparse_to_dense_fwd",
    "spike_count_bwd",
    "spike_count_fwd",
]
