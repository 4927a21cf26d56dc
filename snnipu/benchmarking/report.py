"""Results as a plain-text table, a Markdown table and JSON."""

import textwrap
from typing import Any, Dict, List, Sequence

from snnipu.benchmarking.memory import METHODS
from snnipu.benchmarking.resident import METHOD as RESIDENT_METHOD
from snnipu.benchmarking.runner import RED, CaseResult, ContenderResult

SCHEMA = 1
WIDTH = 120
MEBIBYTE = 2**20


def milliseconds(seconds: float) -> str:
    """Three significant digits, and no exponent."""
    value = seconds * 1e3
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{decimals}f}"


def times(ratio: float) -> str:
    """``57 ×``, ``8.3 ×``, ``0.14 ×``."""
    return f"{ratio:.0f} ×" if ratio >= 20 else f"{ratio:.1f} ×" if ratio >= 1 else f"{ratio:.2f} ×"


def _ratio_columns(result: CaseResult) -> List[ContenderResult]:
    return [r for r in result.results if r.contender.own and r.contender.ratio_label]


def table_rows(result: CaseResult) -> List[List[str]]:
    """Heading and rows; the row of a contender that did not run has two cells: its name and why."""
    columns = _ratio_columns(result)
    reference = result.memory_reference()
    heading = ["", "check", "median ms", "quartiles ms", *(f"÷ {r.contender.ratio_label}" for r in columns), "peak MiB"]
    if reference:
        heading.append("of snnTorch")
    resident = any(r.resident_bytes is not None for r in result.results)
    if resident:
        heading.append("resident MiB")
    rows = [heading]
    marks = note_marks(result)
    for r in result.results:
        label = r.contender.label + "".join(f" [{mark}]" for mark in marks.get(r.contender.name, []))
        if r.check is None or r.timing is None or r.peak_bytes is None:
            rows.append([label, f"RED, not timed: {r.reason}" if r.status == RED else f"{r.status}: {r.reason}"])
            continue
        t = r.timing
        quartiles = f"{milliseconds(t.lower_quartile)} … {milliseconds(t.upper_quartile)}"
        row = [label, f"pass ({r.check.against})", milliseconds(t.median), quartiles]
        row += [times(r.ratios[c.contender.name]) if c.contender.name in r.ratios else "–" for c in columns]
        row.append(f"{r.peak_bytes / MEBIBYTE:.1f}")
        if reference:
            row.append(f"{r.peak_bytes / reference:.0%}")
        if resident:
            row.append("–" if r.resident_bytes is None else f"{r.resident_bytes / MEBIBYTE:.1f}")
        rows.append(row)
    return rows


def notes(result: CaseResult) -> List[str]:
    """Footnotes, in the order of the rows that carry them."""
    said = []
    for r in result.results:
        if r.contender.note:
            said.append(r.contender.note)
        if r.compile_seconds is not None:
            said.append(f"compiled in {r.compile_seconds:.1f} s, not part of its time")
    return said


def note_marks(result: CaseResult) -> Dict[str, List[int]]:
    """Numbers of the footnotes of each contender."""
    marks: Dict[str, List[int]] = {}
    number = 0
    for r in result.results:
        for _ in range(bool(r.contender.note) + (r.compile_seconds is not None)):
            number += 1
            marks.setdefault(r.contender.name, []).append(number)
    return marks


def reading_aid(result: CaseResult) -> str:
    """What the columns mean."""
    own = "; ".join(f"{r.contender.ratio_label} = {r.contender.label}" for r in _ratio_columns(result))
    return (
        "check: the same results as snnTorch's eager loop, or, for a library whose neuron is another function, as its "
        f"own update rule in plain PyTorch. ÷: how many times as long as that row, by medians ({own}). "
        "peak: what one step allocates beyond its inputs."
        + (f" resident: {RESIDENT_METHOD}." if any(r.resident_bytes is not None for r in result.results) else "")
    )


def text(result: CaseResult) -> str:
    """Aligned plain text."""
    rows = table_rows(result)
    full = [row for row in rows if len(row) > 2]
    first = max(len(row[0]) for row in rows)
    widths = [first, *(max(len(row[i]) for row in full) for i in range(1, len(rows[0])))]

    def line(row: Sequence[str]) -> str:
        if len(row) == 2:
            return f"{row[0]:<{first}}  {row[1]}"
        cells = [f"{row[0]:<{first}}", f"{row[1]:<{widths[1]}}"]
        return "  ".join(cells + [f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:])])

    lines = [result.case.title, *textwrap.wrap(result.case.caption, WIDTH), ""]
    lines += [line(rows[0]).rstrip(), "-" * len(line(rows[0])), *(line(row).rstrip() for row in rows[1:]), ""]
    lines += textwrap.wrap(reading_aid(result), WIDTH)
    for number, note in enumerate(notes(result), start=1):
        lines += textwrap.wrap(f"[{number}] {note}", WIDTH, subsequent_indent="    ")
    return "\n".join(lines)


def markdown(result: CaseResult) -> str:
    """A Markdown section, ready to paste."""
    rows = table_rows(result)
    columns = len(rows[0])

    def line(row: Sequence[str]) -> str:
        cells = list(row) + [""] * (columns - len(row))
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [f"### {result.case.title}", "", result.case.caption, "", line(rows[0])]
    lines += ["| " + " | ".join(["---", "---"] + ["---:"] * (columns - 2)) + " |", *(line(row) for row in rows[1:])]
    lines += ["", reading_aid(result), ""]
    lines += [f"{number}. {note}" for number, note in enumerate(notes(result), start=1)]
    return "\n".join(lines).rstrip()


def environment_line(environment: Dict[str, Any]) -> str:
    """One sentence on where the numbers come from."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items() if version)
    backends = "; " + ", ".join(f"{op}: {backend}" for op, backend in environment["backends"].items())
    native = environment["native_instruction_set"] or "no native library"
    instructions = f" (torch: {environment['instruction_set'] or 'instruction set unknown'}, snnipu: {native})"
    tf32 = f", TF32 {'on' if environment['tf32'] else 'off'}" if environment["device"].startswith("cuda") else ""
    threads = f"{environment['threads']} thread" + ("s" if environment["threads"] != 1 else "")
    return (
        f"{environment['device_name']}{instructions}, {threads}, {environment['dtype']}{tf32}; {versions}{backends}; "
        f"{environment['date']}"
    )


def to_json(results: Sequence[CaseResult], environment: Dict[str, Any], settings: Dict[str, Any]) -> Dict[str, Any]:
    """The whole run as JSON values; ``benchmarks/README.md`` describes the fields."""
    return {
        "schema": SCHEMA,
        "passed": all(result.passed for result in results),
        "environment": environment,
        "settings": settings,
        "memory_method": METHODS[environment["device"].split(":")[0]],
        "resident_memory_method": RESIDENT_METHOD,
        "cases": [_case_to_json(result) for result in results],
    }


def _case_to_json(result: CaseResult) -> Dict[str, Any]:
    reference = result.memory_reference()
    return {
        "name": result.case.name,
        "title": result.case.title,
        "caption": result.case.caption,
        "passed": result.passed,
        "memory_reference": result.case.memory_reference,
        "results": [
            {
                "name": r.contender.name,
                "label": r.contender.label,
                "own": r.contender.own,
                "peer": r.contender.peer,
                "note": r.contender.note,
                "status": r.status,
                "reason": r.reason,
                "check": None
                if r.check is None
                else {
                    "passed": r.check.passed,
                    "against": r.check.against,
                    "detail": r.check.detail,
                    # JSON has no infinity: an error that is not a number is null.
                    "errors": {k: v if v != float("inf") else None for k, v in r.check.errors.items()},
                },
                "time": None
                if r.timing is None
                else {
                    "median_s": r.timing.median,
                    "lower_quartile_s": r.timing.lower_quartile,
                    "upper_quartile_s": r.timing.upper_quartile,
                    "rounds": r.timing.rounds,
                    "calls_per_round": r.timing.calls,
                },
                "ratios": r.ratios,
                "peak_bytes": r.peak_bytes,
                "resident_peak_bytes": r.resident_bytes,
                "peak_ratio": r.peak_bytes / reference if r.peak_bytes is not None and reference else None,
                "compile_s": r.compile_seconds,
            }
            for r in result.results
        ],
    }
