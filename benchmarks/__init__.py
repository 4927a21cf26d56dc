"""Benchmarks of snnipu beside its peers: what ``python -m snnipu bench`` runs.

One run prepares every contender of a case, checks what each of them computes, and only then times those whose check
passed, in interleaved rounds. A case is one module of :mod:`benchmarks.cases`; one that has a ``sweep`` runs
over a range of settings, each with a table.
"""

from benchmarks.case import Axis, Case, Contender, Settings, Sweep, Workload
from benchmarks.checks import Check
from benchmarks.peers import PEERS, Unavailable
from benchmarks.runner import CaseResult, ContenderResult, run_case
from benchmarks.sweep import SweepResult

__all__ = [
    "PEERS",
    "Axis",
    "Case",
    "CaseResult",
    "Check",
    "Contender",
    "ContenderResult",
    "Settings",
    "Sweep",
    "SweepResult",
    "Unavailable",
    "Workload",
    "run_case",
]
