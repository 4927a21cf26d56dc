"""Loops over time steps at the speed of sequences."""

from snnipu.compiler.automatic import auto, compile
from snnipu.compiler.backend import compile_graph
from snnipu.compiler.discovery import Discovery
from snnipu.compiler.explain import explain
from snnipu.compiler.report import Report

__all__ = ["Discovery", "Report", "auto", "compile", "compile_graph", "explain"]
