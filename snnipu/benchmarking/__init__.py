"""Benchmarks of snnipu beside its peers: what ``python -m snnipu bench`` runs.

One run prepares every contender of a case, checks what each of them computes, and only then times those whose check
passed, in interleaved rounds. A case is one module of :mod:`snnipu.benchmarking.cases`.
"""

from snnipu.benchmarking.case import Case, Contender, Settings, Workload
from snnipu.benchmarking.checks import Check
from snnipu.benchmarking.peers import PEERS, Unavailable
from snnipu.benchmarking.runner import CaseResult, ContenderResult, run_case

__all__ = [
    "PEERS",
    "Case",
    "CaseResult",
    "Check",
    "Contender",
    "ContenderResult",
    "Settings",
    "Unavailable",
    "Workload",
    "run_case",
]
