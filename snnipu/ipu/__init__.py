"""IPUs without hardware: plans of networks on tiles, and the speed that a performance model predicts for them."""

from snnipu.ipu.network import NetworkSpec
from snnipu.planning.mapping import LayerPlan, Plan
from snnipu.planning.performance import Performance, Phase, estimate
from snnipu.planning.search import plan
from snnipu.planning.targets import TARGETS, Target

__all__ = ["TARGETS", "LayerPlan", "NetworkSpec", "Performance", "Phase", "Plan", "Target", "estimate", "plan"]
