"""Neuron modules."""

from snnipu.neurons.leaky import Leaky
from snnipu.neurons.multistep import MultiStep
from snnipu.neurons.segments import run_segments
from snnipu.neurons.sparse_leaky import SparseLeaky
from snnipu.neurons.sparse_linear import SparseLinear
from snnipu.neurons.sparse_network import SparseNetwork

__all__ = ["Leaky", "MultiStep", "SparseLeaky", "SparseLinear", "SparseNetwork", "run_segments"]
