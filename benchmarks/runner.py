"""Run a table: build, check, measure memory, time. A contender whose check fails is not timed."""

import concurrent.futures
import multiprocessing

import torch

from benchmarks.case import Unavailable
from benchmarks.cases import CASES
from benchmarks.memory import extra_bytes, growth_here
from benchmarks.timing import interleaved
from snnipu.backends import release_memory

OK, RED, UNAVAILABLE, FAILED = "ok", "red", "unavailable", "failed"


def _growth_by_name(case, *arguments):
    return growth_here(CASES[case], *arguments)


def resident_peak_bytes(case, contender, settings):
    """Return the growth of the resident memory of a fresh process in one step; None if it cannot run there."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(_growth_by_name, case, contender, settings, torch.get_num_threads()).result()


def _reason(error):
    """Return type and beginning of the message on one line: a compiler's error can fill pages."""
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return message if len(message) <= 200 else message[:199] + "…"


def _prepare(name, settings, contender, record, resident, memory_apart):
    """Build and check a contender, and measure its memory; return its workload, or None if its check is red."""
    workload = contender.build()
    check = workload.check()
    record.update(against=check.against, check=check.detail, compile_seconds=workload.compile_seconds)
    if not check.passed:
        record.update(status=RED, reason=check.detail)
        return None
    workload.step()
    if resident or memory_apart:
        record["resident_bytes"] = resident_peak_bytes(name, contender.name, settings)
    if memory_apart:
        record["peak_bytes"] = record.pop("resident_bytes")
        if record["peak_bytes"] is None:
            raise Unavailable("a separate process has too little memory for it")
    elif contender.torch_memory:
        record["peak_bytes"], _ = extra_bytes(workload.memory or workload.step, settings.device)
        if workload.kept is not None:
            record["kept_bytes"] = extra_bytes(workload.kept, settings.device)[1]
    return workload


def run_table(
    name,
    case,
    settings,
    records,
    peers=(),
    repeats=1,
    min_seconds=0.0,
    resident=False,
    memory_apart=False,
    after_measurement=lambda: None,
    tell=lambda stage: None,
):
    """Run the table of ``settings`` and append its records: one for each repetition of each contender.

    A contender without times has one record with the reason. Its ``status`` is ``red`` (the check failed),
    ``unavailable`` (not installed, no memory) or ``failed`` (it raised). The others continue. The first record of a
    contender also has its check and its memory. ``after_measurement`` is called after each new result.
    """
    title = case.title(settings)
    table = {"case": name, "title": title, **case.parameters_of(settings)}
    table["dtype"] = str(settings.dtype).replace("torch.", "")
    first = {}
    workloads = {}
    for contender in case.contenders(settings):
        if contender.peer and contender.peer not in peers:
            continue
        tell(f"{title}: checking {contender.label}")
        record = {**table, "contender": contender.name, "label": contender.label, "own": not contender.peer}
        record.update(status=OK, reference=case.reference, floor=contender.floor)
        first[contender.name] = record
        records.append(record)
        try:
            workload = _prepare(name, settings, contender, record, resident, memory_apart)
            if workload is not None:
                workloads[contender.name] = workload
        except Unavailable as error:
            record.update(status=UNAVAILABLE, reason=str(error))
        except Exception as error:  # a library may raise any error; the other rows continue
            record.update(status=FAILED, reason=_reason(error))
        record.update(note=contender.note, samples=contender.samples)
        after_measurement()

    tell(f"{title}: timing")
    samples = (case.samples or interleaved)(
        {contender: workload.step for contender, workload in workloads.items()},
        settings,
        repeats,
        min_seconds,
        slow_seconds=case.slow_seconds,
        slow_rounds=case.slow_rounds,
        before=release_memory if case.gives_back(settings) else None,
    )
    shared = (*table, "contender", "label", "own", "status", "reference", "floor")
    for contender, sample in samples:
        record = first[contender]
        if "round" in record:
            record = {key: record[key] for key in shared}
            records.append(record)
        record.update(sample._asdict())
        after_measurement()
    measured = case.measured(settings) if workloads else {}
    for contender, workload in workloads.items():
        spent = workload.phases() if workload.phases is not None else {}
        first[contender].update({phase: seconds / sum(spent.values()) for phase, seconds in spent.items()})
        first[contender]["measured"] = measured
    after_measurement()


def passed(records):
    """Return True if no check is red, and every row of snnipu's own ran."""
    return all(record["status"] == OK or (record["status"] != RED and not record["own"]) for record in records)
