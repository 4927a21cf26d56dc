"""Neuron modules."""

from snnipu.neurons.leaky import Leaky
from snnipu.neurons.multistep import MultiStep
from snnipu.neurons.sparse_leaky import SparseLeaky
from snnipu.neurons.sparse_linear import SparseLinear
from snnipu.neurons.sparse_network import SparseNetwork
from snnipu.neurons.zoo import Alpha, DeltaLeaky, Lapicque, RLeaky, RSynaptic, Synaptic

__all__ = [
    "Alpha",
    "DeltaLeaky",
    "Lapicque",
    "Leaky",
    "MultiStep",
    "RLeaky",
    "RSynaptic",
    "SparseLeaky",
    "SparseLinear",
    "SparseNetwork",
    "Synaptic",
]
