"""Results as a plain-text table, a Markdown table and JSON."""

import math
import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from benchmarks.case import Axis
from benchmarks.memory import METHODS
from benchmarks.resident import METHOD as RESIDENT_METHOD
from benchmarks.runner import OK, RED, UNAVAILABLE, CaseResult, ContenderResult
from benchmarks.sweep import SLOWER, SweepResult

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


def faults(count: float) -> str:
    """``0``, ``0.25``, ``12,345``."""
    return f"{count:.2g}" if count < 10 else f"{count:,.0f}"


def share(value: float) -> str:
    """In per cent."""
    return f"{value:.0%}"


@dataclass(frozen=True)
class Quantity:
    """What a sweep tells of a row.

    Attributes:
        title: with its unit.
        of: its value; None: the row has none.
        quartiles: of the samples; None: not told.
        tell: the value as tables have it.
    """

    title: str
    of: Callable[[ContenderResult], Optional[float]]
    tell: Callable[[float], str]
    quartiles: Callable[[ContenderResult], Optional[Tuple[float, float]]] = lambda row: None


def _share_quartiles(row: ContenderResult) -> Optional[Tuple[float, float]]:
    if row.copy_share is None or row.timing is None:
        return None
    copy = row.copy_share * row.timing.median
    return copy / row.timing.upper_quartile, copy / row.timing.lower_quartile


QUANTITIES = {
    "time": Quantity(
        "median ms",
        lambda row: 1e3 * row.timing.median if row.timing else None,
        lambda value: milliseconds(value / 1e3),
        lambda row: (1e3 * row.timing.lower_quartile, 1e3 * row.timing.upper_quartile) if row.timing else None,
    ),
    "copy_share": Quantity("share of the copy's speed", lambda row: row.copy_share, share, _share_quartiles),
    "memory": Quantity(
        "peak MiB",
        lambda row: row.peak_bytes / MEBIBYTE if row.peak_bytes is not None and row.timing else None,
        lambda value: f"{value:.1f}",
    ),
    "speedup": Quantity("times the reference's speed", lambda row: None, times),
    "faults": Quantity("page faults a step", lambda row: row.timing.faults if row.timing else None, faults),
}


def _ratio_columns(result: CaseResult) -> List[ContenderResult]:
    return [r for r in result.results if r.contender.own and r.contender.ratio_label]


def table_rows(result: CaseResult) -> List[List[str]]:
    """Heading and rows; the row of a contender that did not run has two cells: its name and why."""
    columns = _ratio_columns(result)
    reference = result.memory_reference()
    heading = ["", "check", "median ms", "quartiles ms", *(f"÷ {r.contender.ratio_label}" for r in columns)]
    has_share = any(r.copy_share is not None for r in result.results)
    if has_share:
        heading.append("of copy")
    if result.case.show_faults:
        heading += ["faults", "kernel"]
    phases = next((list(r.phases) for r in result.results if r.phases), [])
    heading += phases
    heading.append("peak MiB")
    if reference:
        heading.append(f"of {result.case.memory_label}")
    resident = _has_resident(result)
    if resident:
        heading.append("resident MiB")
    rows = [heading]
    marks = note_marks(result)
    for r in result.results:
        label = r.contender.label + "".join(f" [{mark}]" for mark in marks.get(r.contender.name, []))
        if r.check is None or r.timing is None:
            rows.append([label, f"RED, not timed: {r.reason}" if r.status == RED else f"{r.status}: {r.reason}"])
            continue
        t = r.timing
        quartiles = f"{milliseconds(t.lower_quartile)} … {milliseconds(t.upper_quartile)}"
        row = [label, f"pass ({r.check.against})", milliseconds(t.median), quartiles]
        row += [times(r.ratios[c.contender.name]) if c.contender.name in r.ratios else "–" for c in columns]
        if has_share:
            row.append("–" if r.copy_share is None else share(r.copy_share))
        if result.case.show_faults:
            row.append("–" if t.faults is None else faults(t.faults))
            row.append("–" if t.system_share is None else share(t.system_share))
        row += [share(r.phases[phase]) if phase in r.phases else "–" for phase in phases]
        row.append("–" if r.peak_bytes is None else f"{r.peak_bytes / MEBIBYTE:.1f}")
        if reference:
            row.append("–" if r.peak_bytes is None else f"{r.peak_bytes / reference:.0%}")
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
    phases = next((list(r.phases) for r in result.results if r.phases), [])
    own = "; ".join(f"{r.contender.ratio_label} = {r.contender.label}" for r in _ratio_columns(result))
    check = (
        "check: the same results as snnTorch's eager loop, or, for a library whose neuron is another function, as its "
        "own update rule in plain PyTorch."
    )
    return (
        f"{result.case.check_meaning or check} ÷: how many times as long as that row, by medians ({own}). "
        + (
            "of copy: the time of the copy of the row's least traffic over the row's. "
            if any(r.copy_share is not None for r in result.results)
            else ""
        )
        + (
            "faults: page faults a step. kernel: the kernel's share of the processor time. "
            if result.case.show_faults
            else ""
        )
        + (f"{', '.join(phases)}: share of a step's time, of a few steps. " if phases else "")
        + f"peak: {RESIDENT_METHOD if result.memory_apart else 'what one step allocates beyond its inputs'}."
        + (f" resident: {RESIDENT_METHOD}." if _has_resident(result) else "")
    )


def _has_resident(result: CaseResult) -> bool:
    """Whether there is a column for it beside that of the peak."""
    return not result.memory_apart and any(r.resident_bytes is not None for r in result.results)


def _aligned(rows: Sequence[Sequence[str]], left: int = 2) -> List[str]:
    """Rows as lines; the first ``left`` columns flush left. A row of two cells is a name and a remark."""
    full = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(len(row[i]) for row in full) for i in range(len(rows[0]))]
    widths[0] = max(len(row[0]) for row in rows)

    def line(row: Sequence[str]) -> str:
        if len(row) < len(widths):
            return f"{row[0]:<{widths[0]}}  {row[1]}"
        cells = [f"{cell:<{width}}" for cell, width in zip(row[:left], widths)]
        return "  ".join(cells + [f"{cell:>{width}}" for cell, width in zip(row[left:], widths[left:])])

    return [line(rows[0]).rstrip(), "-" * len(line(rows[0])), *(line(row).rstrip() for row in rows[1:])]


def _markdown_rows(rows: Sequence[Sequence[str]], left: int = 2) -> List[str]:
    columns = len(rows[0])

    def line(row: Sequence[str]) -> str:
        cells = list(row) + [""] * (columns - len(row))
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "| " + " | ".join(["---"] * left + ["---:"] * (columns - left)) + " |"
    return [line(rows[0]), rule, *(line(row) for row in rows[1:])]


def text(result: CaseResult, explain: bool = True) -> str:
    """Aligned plain text; without ``explain`` the title and the table alone."""
    if not explain:
        return "\n".join([result.case.title, *_aligned(table_rows(result))])
    lines = [result.case.title, *textwrap.wrap(result.case.caption, WIDTH), ""]
    lines += [*_aligned(table_rows(result)), ""]
    lines += textwrap.wrap(reading_aid(result), WIDTH)
    for number, note in enumerate(notes(result), start=1):
        lines += textwrap.wrap(f"[{number}] {note}", WIDTH, subsequent_indent="    ")
    return "\n".join(lines)


def markdown(result: CaseResult, explain: bool = True) -> str:
    """A Markdown section, ready to paste; without ``explain`` the title and the table alone."""
    if not explain:
        return "\n".join([f"### {result.case.title}", "", *_markdown_rows(table_rows(result))])
    lines = [f"### {result.case.title}", "", result.case.caption, "", *_markdown_rows(table_rows(result))]
    lines += ["", reading_aid(result), ""]
    lines += [f"{number}. {note}" for number, note in enumerate(notes(result), start=1)]
    return "\n".join(lines).rstrip()


def axis_title(sweep: SweepResult, axis: Axis, quantity: str = "time") -> str:
    """``median ms against hidden layers, activity 2 %``: what the table along ``axis`` tells."""
    if axis.title:
        return f"{axis.title}: {QUANTITIES[quantity].title} against {axis.label}"
    tell = {other.parameter: other.tell for other in sweep.sweep.axes}
    fixed = [f"{key.replace('_', ' ')} {tell.get(key, str)(value)}" for key, value in axis.fixed.items()]
    return f"{QUANTITIES[quantity].title} against {', '.join([axis.label, *fixed])}"


def axis_rows(sweep: SweepResult, axis: Axis, quantity: str = "time") -> List[List[str]]:
    """Heading and one row a contender; of times, then the first row's advantage over the reference."""
    rows = [["", *(axis.tell(value) for value in axis.values)]]
    for contender in sweep.contenders():
        cells = [_cell(row, QUANTITIES[quantity]) for _, row in sweep.rows(axis, contender.name)]
        rows.append([contender.label, *cells])
    references = [c for c in sweep.contenders() if c.name == sweep.sweep.reference] if quantity == "time" else []
    for reference in references:
        for contender in sweep.compared():
            ratios = ["–" if ratio is None else times(ratio) for ratio in sweep.speedups(axis, contender.name)]
            rows.append([f"{reference.label} ÷ {contender.label}", *ratios])
    if axis.has_names and max(map(len, _aligned(rows, left=1))) > WIDTH:
        return [list(column) for column in zip(*rows)]
    return rows


def speedup_rows(sweep: SweepResult) -> List[List[str]]:
    """Geometric means over names, such as programs, along each axis and of all, and how many are slower."""
    found = sweep.summaries()
    if not found:
        return []
    places = list(next(iter(found.values())))
    rows = [["geometric mean; slower", *places]]
    for contender in sweep.compared():
        means = found[contender.name].values()
        rows.append([contender.label, *(f"{m.mean:.2f} ×; {m.slower} of {m.programs}" if m else "–" for m in means)])
    return rows


def _cell(row: Optional[ContenderResult], quantity: Quantity) -> str:
    if row is None:
        return "–"
    if row.timing is None:
        return "RED" if row.status == RED else row.status
    value = quantity.of(row)
    return "–" if value is None else quantity.tell(value)


def break_even_sentence(sweep: SweepResult) -> str:
    """Where the sparse rows begin to take longer than the dense one."""
    axis = sweep.sweep.axes[0]
    reference = next((c.label for c in sweep.contenders() if c.name == sweep.sweep.reference), "")
    said = []
    for contender in sweep.compared():
        value = sweep.break_even(contender.name)
        if math.isnan(value):
            continue
        if math.isinf(value):
            said.append(f"{contender.label} faster up to {axis.tell(axis.values[-1])}, the highest of the sweep")
        elif value == 0:
            said.append(f"{contender.label} slower from {axis.tell(axis.values[0])}, the lowest of the sweep, on")
        else:
            said.append(f"{contender.label} faster below {axis.tell(float(f'{value:.2g}'))}")
    where = f" ({axis.title})" if axis.title else ""
    return f"Break-even with {reference}{where}: {'; '.join(said)}." if said else ""


def _failures(sweep: SweepResult) -> List[str]:
    """Why points have no time: each reason once."""
    said: Dict[str, List[str]] = {}
    for result in sweep.results:
        for r in result.results:
            if r.status != OK:
                what = "RED, not timed" if r.status == RED else r.status
                where = sweep.sweep.place(result.case.parameters)
                places = said.setdefault(f"{r.contender.label}: {what}: {r.reason}", [])
                places += [] if r.status == UNAVAILABLE else [where]
    return [reason + (f" ({'; '.join(places)})" if places else "") for reason, places in said.items()]


def _remarks(sweep: SweepResult) -> List[str]:
    slower = f"Slower: below {SLOWER} of the reference's speed." if sweep.summaries() else ""
    return [slower, break_even_sentence(sweep), *sweep.sweep.left_out, *_failures(sweep)]


def sweep_text(sweep: SweepResult) -> str:
    """Aligned plain text: what is told along each axis, then the whole tables."""
    lines = [sweep.sweep.title, *textwrap.wrap(sweep.sweep.caption, WIDTH)]
    for axis in sweep.sweep.axes:
        for quantity in axis.tables:
            lines += ["", axis_title(sweep, axis, quantity), *_aligned(axis_rows(sweep, axis, quantity), left=1)]
    means = speedup_rows(sweep)
    lines += ["", *_aligned(means, left=1)] if means else []
    for remark in _remarks(sweep):
        lines += ["", *textwrap.wrap(remark, WIDTH)] if remark else []
    whole = sweep.whole()
    for result in whole:
        lines += ["", text(result, explain=result is whole[-1])]
    return "\n".join(lines)


def sweep_markdown(sweep: SweepResult) -> str:
    """Markdown sections, ready to paste: as :func:`sweep_text`."""
    lines = [f"### {sweep.sweep.title}", "", sweep.sweep.caption, ""]
    for axis in sweep.sweep.axes:
        for quantity in axis.tables:
            table = _markdown_rows(axis_rows(sweep, axis, quantity), left=1)
            lines += [f"{axis_title(sweep, axis, quantity)}:", "", *table, ""]
    means = speedup_rows(sweep)
    lines += [*_markdown_rows(means, left=1), ""] if means else []
    for remark in _remarks(sweep):
        lines += [remark, ""] if remark else []
    whole = sweep.whole()
    for result in whole:
        lines += [markdown(result, explain=result is whole[-1]), ""]
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


def to_json(
    results: Sequence[CaseResult],
    environment: Dict[str, Any],
    settings: Dict[str, Any],
    sweeps: Sequence[SweepResult] = (),
) -> Dict[str, Any]:
    """The whole run as JSON values; ``benchmarks/README.md`` describes the fields.

    ``results`` has the points of the ``sweeps`` too.
    """
    return {
        "schema": SCHEMA,
        "passed": all(result.passed for result in results),
        "environment": environment,
        "settings": settings,
        "memory_method": METHODS[environment["device"].split(":")[0]],
        "resident_memory_method": RESIDENT_METHOD,
        "cases": [_case_to_json(result) for result in results],
        "sweeps": [_sweep_to_json(sweep) for sweep in sweeps],
    }


def _sweep_to_json(sweep: SweepResult) -> Dict[str, Any]:
    axis = sweep.sweep.axes[0]
    values = {contender.name: sweep.break_even(contender.name) for contender in sweep.compared()}
    return {
        "case": sweep.sweep.name,
        "title": sweep.sweep.title,
        "axes": [
            {"parameter": axis.parameter, "values": list(axis.values), "fixed": dict(axis.fixed)}
            for axis in sweep.sweep.axes
        ],
        "left_out": list(sweep.sweep.left_out),
        "speedups": {
            name: {place: asdict(speedup) if speedup else None for place, speedup in along.items()}
            for name, along in sweep.summaries().items()
        },
        "break_even": None
        if sweep.sweep.reference is None or axis.has_names
        else {
            "parameter": axis.parameter,
            "reference": sweep.sweep.reference,
            # Null: the lines do not cross within the sweep.
            "values": {name: value if 0 < value < math.inf else None for name, value in values.items()},
            "faster_throughout": [name for name, value in values.items() if value == math.inf],
        },
    }


def _case_to_json(result: CaseResult) -> Dict[str, Any]:
    reference = result.memory_reference()
    return {
        "name": result.case.name,
        "title": result.case.title,
        "caption": result.case.caption,
        "passed": result.passed,
        "parameters": dict(result.case.parameters),
        "measured": result.measured,
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
                    "faults_per_call": r.timing.faults,
                    "system_share": r.timing.system_share,
                },
                "ratios": r.ratios,
                "copy_share": r.copy_share,
                "peak_bytes": r.peak_bytes,
                "resident_peak_bytes": r.resident_bytes,
                "peak_ratio": r.peak_bytes / reference if r.peak_bytes is not None and reference else None,
                "compile_s": r.compile_seconds,
                "phases": r.phases,
            }
            for r in result.results
        ],
    }
