"""The chart: time and peak memory of every contender, one row of panels a case."""

from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from snnipu._extras import require
from snnipu._files import write_atomically
from benchmarks.report import MEBIBYTE, environment_line, milliseconds, times
from benchmarks.runner import OK, RED, CaseResult, ContenderResult

FORMATS = (".png", ".svg", ".pdf")
OWN_COLOUR, PEER_COLOUR, TEXT_COLOUR, QUIET_COLOUR = "#d1495b", "#8ea4b8", "#22303c", "#6b7885"
BAR_INCHES, HEAD_INCHES = 0.4, 1.15


def _fastest_own(result: CaseResult) -> str:
    own = [r for r in result.results if r.contender.own and r.timing is not None]
    return min(own, key=lambda r: r.timing.median if r.timing else 0.0).contender.name if own else ""


def _time_label(result: ContenderResult, own: str) -> str:
    if result.timing is None:
        return "check failed: not timed" if result.status == RED else result.status
    said = f"{milliseconds(result.timing.median)} ms"
    return said if result.contender.name == own or not own else f"{said}   {times(result.ratios[own])}"


def _memory_label(result: ContenderResult, reference: Optional[int]) -> str:
    if result.peak_bytes is None:
        return ""
    said = f"{result.peak_bytes / MEBIBYTE:.1f} MiB"
    return f"{said}   {result.peak_bytes / reference:.0%}" if reference else said


def _panel(axes: Any, rows: List[ContenderResult], values: List[float], labels: List[str], title: str) -> None:
    positions = range(len(rows))
    colours = [OWN_COLOUR if r.contender.own else PEER_COLOUR for r in rows]
    axes.barh(positions, values, color=colours, height=0.68)
    longest = max(values, default=0.0) or 1.0
    for position, value, label, row in zip(positions, values, labels, rows):
        axes.text(
            value + 0.015 * longest,
            position,
            label,
            va="center",
            fontsize=9,
            color=TEXT_COLOUR if row.status == OK else QUIET_COLOUR,
            fontweight="bold" if row.contender.own else "normal",
        )
    axes.set_xlim(0, 1.42 * longest)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_title(title, fontsize=9.5, loc="left", color=QUIET_COLOUR)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color("#c3ccd4")


def draw(results: Sequence[CaseResult], environment: Dict[str, Any], path: Path) -> None:
    """Write the chart to ``path``; its suffix is one of :data:`FORMATS`.

    Raises:
        MissingExtra: matplotlib is not installed.
        WriteError: the file cannot be written.
    """
    figure_module = require("matplotlib.figure", "bench", "the chart")
    heights = [HEAD_INCHES + BAR_INCHES * len(result.results) for result in results]
    foot = 0.35
    total = sum(heights) + foot
    figure = figure_module.Figure(figsize=(11, total), dpi=150, facecolor="white")
    top = total
    for result, height in zip(results, heights):
        body = (top - height + 0.15) / total, (height - HEAD_INCHES + 0.1) / total
        time_axes = figure.add_axes((0.215, body[0], 0.44, body[1]))
        memory_axes = figure.add_axes((0.685, body[0], 0.3, body[1]))
        rows, own = result.results, _fastest_own(result)
        figure.text(
            0.015,
            (top - 0.35) / total,
            result.case.title,
            fontsize=12.5,
            fontweight="bold",
            color=TEXT_COLOUR,
            va="center",
        )

        seconds = [r.timing.median if r.timing else 0.0 for r in rows]
        labels = [_time_label(r, own) for r in rows]
        own_label = next((r.contender.label for r in rows if r.contender.name == own), "")
        _panel(time_axes, rows, seconds, labels, f"time, and multiple of {own_label}" if own else "time")
        time_axes.set_yticks(range(len(rows)), [r.contender.label for r in rows], fontsize=9, color=TEXT_COLOUR)

        reference = result.memory_reference()
        peaks = [(r.peak_bytes or 0) / MEBIBYTE for r in rows]
        peak_labels = [_memory_label(r, reference) for r in rows]
        title = "peak memory" + (f", and share of {result.case.memory_label}'s" if reference else "")
        _panel(memory_axes, rows, peaks, peak_labels, title)
        memory_axes.set_yticks([])
        top -= height
    figure.text(0.015, 0.13 / total, environment_line(environment), fontsize=6.5, color=QUIET_COLOUR, va="center")
    write_atomically(path, partial(figure.savefig, format=path.suffix[1:].lower()))
