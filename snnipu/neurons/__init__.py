"""Neuron modules."""

from snnipu.neurons.leaky import Leaky
from snnipu.neurons.multistep import MultiStep

__all__ = ["Leaky", "MultiStep"]
