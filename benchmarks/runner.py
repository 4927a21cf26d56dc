"""Run a case: prepare, check, measure memory, time; what fails its check gets no numbers."""

from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Dict, List, Optional

import torch

from snnipu.backends import release_memory
from benchmarks.case import Case, Contender, Workload
from benchmarks.checks import Check
from benchmarks.memory import peak_extra_bytes
from benchmarks.peers import Unavailable
from benchmarks.timing import Timing, measure

OK, RED, UNAVAILABLE, FAILED = "ok", "red", "unavailable", "failed"


@dataclass
class ContenderResult:
    """One row.

    Attributes:
        status: ``ok``; ``red`` (its check failed); ``unavailable`` (not installed, no compiler) or ``failed`` (raised).
            Only ``ok`` has a time.
        reason: why the status is not ``ok``.
        ratios: how many times as long as each of snnipu's own rows this one takes, by the name of that row (medians).
        peak_bytes: memory that one step holds at its peak beyond what was allocated before.
        copy_share: time of the row that copies this one's least traffic over this one's (medians); None without either.
        phases: share of a step's time of each of its phases, by name, where it has any.
        resident_bytes: growth of the resident memory of a process of its own, where that was asked for.
    """

    contender: Contender
    status: str
    reason: str = ""
    check: Optional[Check] = None
    timing: Optional[Timing] = None
    ratios: Dict[str, float] = field(default_factory=dict)
    copy_share: Optional[float] = None
    peak_bytes: Optional[int] = None
    resident_bytes: Optional[int] = None
    compile_seconds: Optional[float] = None
    phases: Dict[str, float] = field(default_factory=dict)


@dataclass
class CaseResult:
    """One table. ``measured`` is what :attr:`Case.measured` told; ``memory_apart`` as in :class:`Sweep`."""

    case: Case
    results: List[ContenderResult]
    measured: Dict[str, Any] = field(default_factory=dict)
    memory_apart: bool = False

    @property
    def passed(self) -> bool:
        """No gate is red, and every row of snnipu's own ran."""
        return all(r.status == OK or (r.status != RED and not r.contender.own) for r in self.results)

    def memory_reference(self) -> Optional[int]:
        """Peak bytes of the contender that is 100 %, where it ran."""
        return next((r.peak_bytes for r in self.results if r.contender.name == self.case.memory_reference), None)


def selected(case: Case, peers: Collection[str]) -> List[Contender]:
    """snnipu's own rows and those of ``peers``."""
    return [c for c in case.contenders if c.peer is None or c.peer in peers]


def _reason(error: BaseException) -> str:
    """Type and beginning of the message, on one line: a compiler's error can fill pages."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return said if len(said) <= 200 else said[:199] + "…"


def run_case(
    case: Case,
    peers: Collection[str],
    device: torch.device,
    repeats: int = 20,
    min_seconds: float = 5.0,
    resident: Optional[Callable[[str], Optional[int]]] = None,
    memory_apart: bool = False,
    on_stage: Callable[[str], None] = lambda stage: None,
    on_round: Callable[[], None] = lambda: None,
) -> CaseResult:
    """Run ``case`` with snnipu's own rows and those of ``peers``.

    ``resident`` measures a contender's resident memory, by its name; with ``memory_apart`` that is its peak memory,
    too. ``on_stage`` is told what is being prepared,
    ``on_round`` that a timing round is over. A contender that cannot be built, or raises, keeps its row, with the
    reason; the others go on.
    """
    results: List[ContenderResult] = []
    workloads: Dict[str, Workload] = {}
    for contender in selected(case, peers):
        on_stage(f"{case.name}: checking {contender.label}")
        result = ContenderResult(contender, OK)
        results.append(result)
        try:
            workload = contender.build()
            result.compile_seconds = workload.compile_seconds
            result.check = workload.check()
            if not result.check.passed:
                result.status, result.reason = RED, result.check.detail
                continue
            workload.step()
            if resident is not None:
                result.resident_bytes = resident(contender.name)
            if memory_apart and result.resident_bytes is None:
                raise Unavailable("a process of its own has too little memory for it beside this one")
            if memory_apart:
                result.peak_bytes = result.resident_bytes
            elif contender.torch_memory:
                result.peak_bytes = peak_extra_bytes(workload.step, device)
            workloads[contender.name] = workload
        except Unavailable as error:
            result.status, result.reason = UNAVAILABLE, str(error)
        except Exception as error:  # whatever a library raises, the other rows must go on
            result.status, result.reason = FAILED, _reason(error)

    on_stage(f"{case.name}: timing")
    steps = {name: workload.step for name, workload in workloads.items()}
    timings = measure(
        steps,
        device,
        repeats,
        min_seconds,
        on_round,
        slow_seconds=case.slow_seconds,
        slow_rounds=case.slow_rounds,
        before=release_memory if case.alone else None,
    )
    own = {r.contender.name: timings[r.contender.name].median for r in results if r.contender.own and r.status == OK}
    for result in results:
        if result.status == OK:
            result.timing = timings[result.contender.name]
            result.ratios = {name: result.timing.median / median for name, median in own.items()}
            floor = timings.get(result.contender.floor)
            phases = workloads[result.contender.name].phases
            spent = phases() if phases is not None else {}
            result.phases = {phase: seconds / sum(spent.values()) for phase, seconds in spent.items()}
            result.copy_share = floor.median / result.timing.median if floor else None
    return CaseResult(case, results, case.measured() if workloads else {}, memory_apart)
