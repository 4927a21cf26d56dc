"""The IPU without an IPU: plans of networks on tiles, and what a model of the machine says of them."""

from snnipu.ipu.mapping import LayerPlan, Plan, plan
from snnipu.ipu.network import NetworkSpec
from snnipu.ipu.performance import Performance, Phase, estimate
from snnipu.ipu.targets import TARGETS, Target

__all__ = ["TARGETS", "LayerPlan", "NetworkSpec", "Performance", "Phase", "Plan", "Target", "estimate", "plan"]
