"""Records as tables and as a chart."""

import functools
import itertools
import math
import textwrap
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.case import Case
from snnipu.training import write_atomically

COLUMNS = [
    "case",
    "title",
    "contender",
    "label",
    "own",
    "status",
    "reason",
    "reference",
    "floor",
    "against",
    "check",
    "round",
    "calls",
    "seconds",
    "faults",
    "user",
    "system",
    "peak_bytes",
    "resident_bytes",
    "compile_seconds",
    "samples",
    "note",
    "measured",
]
# What a summary has, with the heading and the format of a number.
QUANTITIES = {
    "milliseconds": ("median ms", "{:.3g}"),
    "samples_per_second": ("samples/s", "{:,.0f}"),
    "speed": ("speed", "{:.2f} ×"),
    "of_copy": ("of a copy's speed", "{:.0%}"),
    "faults": ("page faults", "{:,.3g}"),
    "kernel": ("kernel", "{:.0%}"),
    "forward": ("forward", "{:.0%}"),
    "backward": ("backward", "{:.0%}"),
    "optimizer": ("optimizer", "{:.0%}"),
    "peak_mebibytes": ("peak MiB", "{:,.1f}"),
    "of_memory": ("of its memory", "{:.0%}"),
    "resident_mebibytes": ("resident MiB", "{:,.1f}"),
    "compile_seconds": ("compiled in s", "{:.1f}"),
}
# Below this share of the reference's speed a row is slower, by more than timing tells apart.
SLOWER = 0.97
OWN_COLOURS, PEER_COLOURS = ("#d1495b", "#e39aa5", "#b07aa1"), ("#1f4e79", "#8a97a3", "#c2a15a", "#6fa287", "#9aa7d0")


def frame_of(records: Sequence[Dict[str, Any]]) -> pd.DataFrame:
    """Return the records, a row each."""
    frame = pd.DataFrame(records)
    return frame.reindex(columns=[*frame.columns, *(name for name in COLUMNS if name not in frame.columns)])


def summarise(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each contender of each table: medians, and what is relative to other rows of the table."""
    keys = ["title", "contender"]
    groups = frame.groupby(keys, sort=False)
    summary = groups.first()
    seconds = groups["seconds"]
    summary["milliseconds"] = 1e3 * seconds.median()
    summary["samples_per_second"] = pd.to_numeric(summary["samples"]) / seconds.median()
    summary["lower"], summary["upper"] = 1e3 * seconds.quantile(0.25), 1e3 * seconds.quantile(0.75)
    summary["faults"] = groups["faults"].median()
    system, user = groups["system"].sum(min_count=1), groups["user"].sum(min_count=1)
    summary["kernel"] = system / (system + user)
    summary["peak_mebibytes"] = pd.to_numeric(summary["peak_bytes"]) / 2**20
    summary["resident_mebibytes"] = pd.to_numeric(summary["resident_bytes"]) / 2**20

    def of_row(name: str, column: str) -> np.ndarray:
        places = zip(summary.index.get_level_values("title"), summary[name])
        return np.array([summary[column].get(place, np.nan) for place in places], dtype=float)

    summary["speed"] = of_row("reference", "milliseconds") / summary["milliseconds"]
    summary["of_copy"] = of_row("floor", "milliseconds") / summary["milliseconds"]
    summary["of_memory"] = summary["peak_mebibytes"] / of_row("reference", "peak_mebibytes")
    return summary.reset_index()


def _formatted(quantity: str, value: Any, status: str = "ok") -> str:
    if pd.isna(value):
        return "–" if status == "ok" else status.upper() if status == "red" else status
    return QUANTITIES[quantity][1].format(value)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a heading and rows as a Markdown table whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join("-" * width for width in widths) + " |", *lines[1:]])


def table(rows: pd.DataFrame) -> str:
    """Return the whole table of one title."""
    quantities = [name for name in QUANTITIES if name in rows and rows[name].notna().any()]
    reference = next(iter(rows[rows.contender == rows.reference].label), "")
    lines = [["", "check", *(QUANTITIES[name][0] for name in quantities), "quartiles ms"]]
    for row in rows.itertuples():
        check = f"pass ({row.against})" if row.status == "ok" else f"{_formatted('speed', None, row.status)}, not timed"
        spread = "–" if pd.isna(row.lower) else f"{row.lower:.3g} … {row.upper:.3g}"
        lines.append([row.label, check, *(_formatted(name, getattr(row, name)) for name in quantities), spread])
    relative = f"speed, memory: beside {reference}." if reference else ""
    return "\n".join([f"### {rows.title.iloc[0]}", "", aligned(lines), "", relative]).rstrip()


def groups_along(case: Case, summary: pd.DataFrame) -> Iterator[Tuple[str, str, pd.DataFrame]]:
    """Yield each axis, the other parameters in words, and the rows along it."""
    parameters = [name for name in (*case.axes, *case.sizes, "dtype") if name in summary]
    for axis in case.axes:
        others = [name for name in parameters if name != axis and summary[name].nunique() > 1]
        groups = summary.groupby(others, sort=False) if others else [((), summary)]
        for place, rows in groups:
            if rows[axis].nunique() > 1:
                where = zip(others, place if isinstance(place, tuple) else (place,))
                yield axis, ", ".join(f"{name} {value}" for name, value in where), rows


def break_even(axis: Sequence[float], speeds: Sequence[float]) -> float:
    """Return where a row begins to be slower than the reference, of straight lines on logarithmic axes.

    Infinity: it is faster throughout; 0: it is slower from the first value on; NaN: nothing was measured.
    """
    points = [(value, -np.log(speed)) for value, speed in zip(axis, speeds) if not pd.isna(speed)]
    if not points:
        return np.nan
    if points[0][1] > 0:
        return 0.0
    for (left, below), (right, above) in zip(points, points[1:]):
        if above > 0:
            return float(np.exp(np.interp(0, [below, above], np.log([left, right]))))
    return np.inf


def _comparison(axis: str, rows: pd.DataFrame) -> List[str]:
    """Return the geometric means of speeds over names, or where each own row begins to be slower."""
    lines = []
    for label, own in rows[rows.own & (rows.contender != rows.reference)].groupby("label", sort=False):
        speeds = own.speed.dropna()
        if pd.api.types.is_numeric_dtype(own[axis]):
            where = break_even(own[axis], own.speed)
            told = "faster throughout" if where == np.inf else "slower throughout" if where == 0 else f"{where:.2g}"
            lines += [] if np.isnan(where) else [f"{label}: break-even: {told}."]
        elif len(speeds):
            slower = int((speeds < SLOWER).sum())
            mean = np.exp(np.log(speeds).mean())
            lines.append(f"{label}: geometric mean of speeds {mean:.2f} ×; below {SLOWER}: {slower} of {len(speeds)}.")
    return lines


def sweep_tables(case: Case, summary: pd.DataFrame) -> List[str]:
    """Return a table for each axis and quantity."""
    tables = []
    for axis, where, rows in groups_along(case, summary):
        for quantity in case.tables:
            values = list(dict.fromkeys(rows[axis]))
            lines = [["", *map(str, values)]]
            for label, contender in rows.groupby("label", sort=False):
                cells = dict(
                    zip(contender[axis], map(_formatted, [quantity] * 99, contender[quantity], contender.status))
                )
                lines.append([label, *(cells.get(value, "–") for value in values)])
            if all(isinstance(value, str) for value in values):
                lines = [list(column) for column in zip(*lines)]
            heading = f"{QUANTITIES[quantity][0]} against {axis}{', ' if where else ''}{where}"
            tables.append("\n".join([f"### {heading}", "", aligned(lines)]))
        tables.append("\n".join(_comparison(axis, rows)))
    return [text for text in tables if text]


def notes(summary: pd.DataFrame) -> List[str]:
    """Return what a reader must know to compare the rows of a case."""
    rows = summary[summary.note.astype(bool)].drop_duplicates(["label", "note"])
    lines = [f"- {row.label}: {row.note}" for row in rows.itertuples()]
    return ["\n".join(lines)] if lines else []


def reasons(summary: pd.DataFrame) -> List[str]:
    """Return why rows have no times, each reason once."""
    rows = summary[summary.status != "ok"]
    return list(dict.fromkeys(f"{row.label}: {row.status}: {row.reason}" for row in rows.itertuples()))


def draw(cases: Mapping[str, Case], summary: pd.DataFrame, caption: str, path: Path) -> None:
    """Write lines along numeric axes, else bars: a panel for each group of rows and quantity, or for each table."""
    panels: List[Tuple[str, str, str, pd.DataFrame]] = []
    for name, rows in summary.groupby("case", sort=False):
        along = list(groups_along(cases[name], rows))
        for axis, where, group in along:
            panels += [(where or name, axis, quantity, group) for quantity in cases[name].charts]
        panels += (
            [] if along else [(title, "", "milliseconds", one) for title, one in rows.groupby("title", sort=False)]
        )
    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    bars = max(rows[axis or "label"].nunique() for _, axis, _, rows in panels)
    figure = Figure(figsize=(6 * columns, lines * min(14, 3 + 0.3 * bars)), dpi=100, layout="constrained")
    for axes, (title, axis, quantity, rows) in zip(figure.subplots(lines, columns, squeeze=False).flat, panels):
        own, peers = itertools.cycle(OWN_COLOURS), itertools.cycle(PEER_COLOURS)
        colours = {row.label: next(own if row.own else peers) for row in rows.drop_duplicates("label").itertuples()}
        if axis and pd.api.types.is_numeric_dtype(rows[axis]):
            wide = rows.pivot(index=axis, columns="label", values=quantity)[list(colours)]
            wide.plot(ax=axes, logx=True, logy=quantity == "milliseconds", marker="o", color=colours)
            axes.set_xticks(list(wide.index), [f"{value:g}" for value in wide.index])
            axes.minorticks_off()
        elif axis:
            wide = rows.pivot(index=axis, columns="label", values=quantity).loc[list(dict.fromkeys(rows[axis]))]
            wide[list(colours)].plot.barh(ax=axes, logx=quantity == "milliseconds", color=colours, width=0.8)
        else:
            rows.plot.barh(ax=axes, x="label", y=quantity, color=list(colours.values()), legend=False, xlabel="")
        if not axis or not pd.api.types.is_numeric_dtype(rows[axis]):
            axes.invert_yaxis()
            for bars_of_label in axes.containers:
                axes.bar_label(bars_of_label, fmt=QUANTITIES[quantity][1].format, fontsize=7, padding=2)
            axes.set_xlabel(QUANTITIES[quantity][0])
        axes.set_title(f"{title}: {QUANTITIES[quantity][0]}", loc="left", fontsize=9)
    figure.suptitle("\n".join(textwrap.wrap(caption, 60 * columns)), fontsize=7)
    write_atomically(path, functools.partial(figure.savefig, format=path.suffix[1:].lower()))
