"""What a case is made of: settings, contenders and the workloads they build."""

from dataclasses import dataclass, field
from typing import Any, Callable, List, Optional

import torch

from snnipu.benchmarking.checks import Check


@dataclass(frozen=True)
class Settings:
    """Sizes and where to run. ``beta`` is the decay of every neuron of every contender."""

    steps: int = 25
    batch_size: int = 128
    neurons: int = 1000
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    beta: float = 0.9
    seed: int = 0


@dataclass(frozen=True)
class Workload:
    """A contender that is ready to run.

    Attributes:
        step: one timed unit of work; what it returns stays alive until its memory is measured.
        check: compares what the contender computes with its reference. Called once, before any ``step``.
        compile_seconds: what just-in-time compilation took, where there is any; never part of a step's time.
    """

    step: Callable[[], Any]
    check: Callable[[], Check]
    compile_seconds: Optional[float] = None


@dataclass(frozen=True)
class Contender:
    """One row of a table.

    Attributes:
        name: key in the JSON file.
        label: name in the table and the chart.
        build: makes the :class:`Workload`; raises :class:`snnipu.benchmarking.Unavailable` where it cannot run here.
        peer: the entry of ``--peers`` that selects this row; None for snnipu's own rows, which always run.
        ratio_label: heading of the column of times relative to this row; only snnipu's own rows have one.
        note: what a reader must know to compare this row with the others.
    """

    name: str
    label: str
    build: Callable[[], Workload]
    peer: Optional[str] = None
    ratio_label: str = ""
    note: str = ""

    @property
    def own(self) -> bool:
        return self.peer is None


@dataclass(frozen=True)
class Case:
    """One table. ``memory_reference`` names the contender whose peak memory is 100 %."""

    name: str
    title: str
    caption: str
    contenders: List[Contender]
    memory_reference: str = "snntorch"
