"""The operators behind the modules: functions of tensors, with their own gradients, on every backend."""

from snnipu.ops.lif_sequence import lif_sequence
from snnipu.ops.lif_step import lif_step

__all__ = ["lif_sequence", "lif_step"]
