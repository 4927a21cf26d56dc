"""A loop over time steps at the speed of a sequence: ``torch.compile(net, backend="snnipu")``."""

from snnipu.compiler.automatic import Automatic, auto
from snnipu.compiler.backend import compile, compile_graph
from snnipu.compiler.explain import explain
from snnipu.compiler.report import Report

__all__ = ["Automatic", "Report", "auto", "compile", "compile_graph", "explain"]
