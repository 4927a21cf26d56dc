"""A loop over time steps at the speed of a sequence: ``torch.compile(net, backend="snnipu")``."""

from snnipu.compiler.backend import compile, compile_graph
from snnipu.compiler.explain import explain
from snnipu.compiler.report import Report

__all__ = ["Report", "compile", "compile_graph", "explain"]
