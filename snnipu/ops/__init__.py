"""The operators behind the modules: differentiable functions of tensors that run on every backend."""

from snnipu import spikes
from snnipu.ops import _events, _slots
from snnipu.ops import dense_pool2d as _dense_pool2d  # noqa: F401  not public
from snnipu.ops import spike_count as _spike_count
from snnipu.ops.dense_to_sparse import dense_to_sparse
from snnipu.ops.lif_sequence import lif_sequence, lif_step
from snnipu.ops.select_spikes import select_spikes
from snnipu.ops.sparse_conv2d import sparse_conv2d
from snnipu.ops.sparse_conv_lif_sequence import sparse_conv_lif_sequence
from snnipu.ops.sparse_lif_sequence import sparse_lif_sequence
from snnipu.ops.sparse_linear import sparse_linear
from snnipu.ops.sparse_pool2d import sparse_pool2d
from snnipu.ops.sparse_to_dense import sparse_to_dense

__all__ = [
    "dense_to_sparse",
    "lif_sequence",
    "lif_step",
    "select_spikes",
    "sparse_conv2d",
    "sparse_conv_lif_sequence",
    "sparse_lif_sequence",
    "sparse_linear",
    "sparse_pool2d",
    "sparse_to_dense",
]

spikes.register(
    dense_to_sparse=dense_to_sparse,
    sparse_to_dense=sparse_to_dense,
    bin_events=_events.bin_events,
    spike_count=_spike_count.spike_count,
    limit=_slots.limit,
)
