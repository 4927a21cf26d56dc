"""Run a table: prepare, check, measure memory, time; what fails its check gets no times."""

import concurrent.futures
import multiprocessing
from typing import Any, Callable, Collection, Dict, Iterable, List, Optional

import torch

from benchmarks.case import Case, Settings, Unavailable, Workload
from benchmarks.cases import CASES
from benchmarks.memory import growth_here, peak_extra_bytes
from benchmarks.timing import interleaved
from snnipu.backends import release_memory

OK, RED, UNAVAILABLE, FAILED = "ok", "red", "unavailable", "failed"
Record = Dict[str, Any]


def _growth_by_name(case: str, contender: str, settings: Settings, threads: int) -> Optional[int]:
    return growth_here(CASES[case], contender, settings, threads)


def resident_peak_bytes(case: str, contender: str, settings: Settings) -> Optional[int]:
    """Return the growth of the resident memory of a fresh process in one step: fragmentation and all."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(_growth_by_name, case, contender, settings, torch.get_num_threads()).result()


def _reason(error: BaseException) -> str:
    """Return type and beginning of the message on one line: a compiler's error can fill pages."""
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return message if len(message) <= 200 else message[:199] + "…"


def run_table(
    name: str,
    case: Case,
    settings: Settings,
    records: List[Record],
    peers: Collection[str],
    repeats: int,
    min_seconds: float,
    resident: bool = False,
    memory_apart: bool = False,
    after_measurement: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda stage: None,
) -> None:
    """Run the table of ``settings`` and append its records: one for each repetition of each contender.

    A contender without times has one record, whose ``status`` is ``red`` (its check failed), ``unavailable`` (not
    installed, no compiler) or ``failed`` (it raised), with the reason. The others go on. ``after_measurement`` is
    called whenever there is more to write.
    """
    shared = {"case": name, "title": case.title(settings), **case.parameters_of(settings)}
    shared["dtype"] = str(settings.dtype).replace("torch.", "")
    rows: Dict[str, Record] = {}
    workloads = {}
    for contender in case.contenders(settings):
        if contender.peer and contender.peer not in peers:
            continue
        tell(f"{shared['title']}: checking {contender.label}")
        row = rows[contender.name] = {**shared, "contender": contender.name, "label": contender.label}
        row.update(own=not contender.peer, status=OK, reference=case.reference, floor=contender.floor)
        row.update(note=contender.note, samples=contender.samples)
        try:
            workload = contender.build()
            check = workload.check()
            row.update(against=check.against, check=check.detail, compile_seconds=workload.compile_seconds)
            if not check.passed:
                row.update(status=RED, reason=check.detail)
                continue
            workload.step()
            if resident or memory_apart:
                row["resident_bytes"] = resident_peak_bytes(name, contender.name, settings)
            if memory_apart:
                row["peak_bytes"] = row.pop("resident_bytes")
                if row["peak_bytes"] is None:
                    raise Unavailable("a process of its own has too little memory for it beside this one")
            elif contender.torch_memory:
                row["peak_bytes"] = peak_extra_bytes(workload.step, settings.device)
            workloads[contender.name] = workload
        except Unavailable as error:
            row.update(status=UNAVAILABLE, reason=str(error))
        except Exception as error:  # whatever a library raises, the other rows must go on
            row.update(status=FAILED, reason=_reason(error))
        finally:
            records.append(row)
            after_measurement()

    tell(f"{shared['title']}: timing")
    for contender_name, sample in (case.samples or _interleaved_of(case, workloads, min_seconds))(settings, repeats):
        row = rows[contender_name]
        if "round" in row:
            row = {key: value for key, value in row.items() if key not in sample._fields}
            records.append(row)
        row.update(sample._asdict())
        after_measurement()
    measured = case.measured(settings) if workloads else {}
    for contender_name, workload in workloads.items():
        spent = workload.phases() if workload.phases is not None else {}
        measured_too = {phase: seconds / sum(spent.values()) for phase, seconds in spent.items()}
        _update(records, rows[contender_name], {**measured_too, "measured": measured or None})
    after_measurement()


def _interleaved_of(case: Case, workloads: Dict[str, Workload], min_seconds: float) -> Any:
    def samples(settings: Settings, repeats: int) -> Any:
        return interleaved(
            {contender: workload.step for contender, workload in workloads.items()},
            settings.device,
            repeats,
            min_seconds,
            slow_seconds=case.slow_seconds,
            slow_rounds=case.slow_rounds,
            before=release_memory if case.gives_back(settings) else None,
        )

    return samples


def _update(records: Iterable[Record], row: Record, more: Record) -> None:
    """Add ``more`` to the records of the contender of ``row``."""
    for record in records:
        if (record["title"], record["contender"]) == (row["title"], row["contender"]):
            record.update(more)


def passed(records: Iterable[Record]) -> bool:
    """Return True if no check is red, and every row of snnipu's own ran."""
    return all(record["status"] == OK or (record["status"] != RED and not record["own"]) for record in records)
