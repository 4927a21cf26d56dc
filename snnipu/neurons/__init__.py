"""Layers: neurons, event-driven layers, delays, and ``MultiStep`` for whole sequences."""

from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.leaky import Leaky
from snnipu.neurons.multistep import MultiStep
from snnipu.neurons.own import neuron
from snnipu.neurons.segments import run_segments
from snnipu.neurons.sparse_conv import SparseConv2d, SparseConvLeaky, SparsePool2d
from snnipu.neurons.sparse_leaky import SparseLeaky
from snnipu.neurons.sparse_linear import ListedLinear, SparseLinear
from snnipu.neurons.sparse_network import SparseNetwork
from snnipu.neurons.sparse_synaptic import SparseConvSynaptic, SparseSynaptic
from snnipu.neurons.spiking_lstm import SLSTM, SConv2dLSTM
from snnipu.neurons.state_leaky import LinearLeaky, StateLeaky
from snnipu.neurons.synaptic_delay import SynapticDelay
from snnipu.neurons.zoo import Alpha, DeltaLeaky, Lapicque, RLeaky, RSynaptic, Synaptic

__all__ = [
    "SLSTM",
    "Alpha",
    "DelayLinear",
    "DeltaLeaky",
    "Lapicque",
    "Leaky",
    "LinearLeaky",
    "ListedLinear",
    "MultiStep",
    "RLeaky",
    "RSynaptic",
    "SConv2dLSTM",
    "SparseConv2d",
    "SparseConvLeaky",
    "SparseConvSynaptic",
    "SparseLeaky",
    "SparseLinear",
    "SparseNetwork",
    "SparsePool2d",
    "SparseSynaptic",
    "StateLeaky",
    "Synaptic",
    "SynapticDelay",
    "neuron",
    "run_segments",
]
