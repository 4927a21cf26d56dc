"""Tables and charts of records."""

import functools
import itertools
import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from snnipu.training import write_atomically

# Columns that all records of a run may lack.
COLUMNS = (
    "reason",
    "against",
    "seconds",
    "faults",
    "user",
    "system",
    "peak_bytes",
    "kept_bytes",
    "resident_bytes",
    "compile_seconds",
)
# Columns of a summary, with their heading and number format.
QUANTITIES = {
    "milliseconds": ("median ms", "{:.3g}"),
    "lower": ("from", "{:.3g}"),
    "upper": ("to", "{:.3g}"),
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
    "kept_mebibytes": ("kept MiB", "{:,.1f}"),
    "resident_mebibytes": ("resident MiB", "{:,.1f}"),
    "compile_seconds": ("compiled in s", "{:.1f}"),
}
# Below this fraction of the reference's speed a row is slower; smaller differences are noise.
SLOWER = 0.97
OWN_COLOURS = ("#d1495b", "#e39aa5", "#b07aa1")
PEER_COLOURS = ("#1f4e79", "#8a97a3", "#c2a15a", "#6fa287", "#9aa7d0", "#7a4b2b", "#3fa7b5", "#d9d0a0")


def summarise(records):
    """Return one row for each contender of each table: medians, and values relative to other rows of the table."""
    frame = pd.DataFrame(records)
    frame = frame.reindex(columns=[*frame.columns, *(name for name in COLUMNS if name not in frame)])
    groups = frame.groupby(["title", "contender"], sort=False)
    summary = groups.first()
    seconds = groups["seconds"]
    summary["milliseconds"] = 1e3 * seconds.median()
    summary["lower"], summary["upper"] = 1e3 * seconds.quantile(0.25), 1e3 * seconds.quantile(0.75)
    summary["samples_per_second"] = pd.to_numeric(summary["samples"]) / seconds.median()
    summary["faults"] = groups["faults"].median()
    used = groups[["system", "user"]].sum(min_count=1)
    summary["kernel"] = used["system"] / used.sum(axis=1, min_count=1)
    for prefix in ("peak", "kept", "resident"):
        summary[f"{prefix}_mebibytes"] = pd.to_numeric(summary[f"{prefix}_bytes"]) / 2**20

    def of_row(name, column):
        keys = zip(summary.index.get_level_values("title"), summary[name])
        return np.array([summary[column].get(key, np.nan) for key in keys], dtype=float)

    summary["speed"] = of_row("reference", "milliseconds") / summary["milliseconds"]
    summary["of_copy"] = of_row("floor", "milliseconds") / summary["milliseconds"]
    summary["of_memory"] = summary["peak_mebibytes"] / of_row("reference", "peak_mebibytes")
    return summary.reset_index()


def cell(quantity, value, status="ok"):
    """Return a value as text; for a row without times, its status."""
    if not pd.isna(value):
        return QUANTITIES[quantity][1].format(value)
    return "–" if status == "ok" else "RED" if status == "red" else status


def aligned(rows):
    """Return a heading and rows as a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join("-" * width for width in widths) + " |", *lines[1:]])


def table(rows):
    """Return the table of one title."""
    quantities = [name for name in QUANTITIES if name in rows and rows[name].notna().any()]
    lines = [["", "check", *(QUANTITIES[name][0] for name in quantities)]]
    for row in rows.itertuples():
        check = f"pass ({row.against})" if row.status == "ok" else f"{cell('speed', None, row.status)}, not timed"
        lines.append([row.label, check, *(cell(name, getattr(row, name)) for name in quantities)])
    reference = rows.label[rows.contender == rows.reference]
    remarks_on_reference = [f"speed, memory: beside {label}." for label in reference]
    return "\n\n".join([f"### {rows.title.iloc[0]}", aligned(lines), *remarks_on_reference])


def groups_along(case, summary):
    """Yield each axis, the other parameters as text, and the rows along the axis."""
    parameters = [name for name in dict.fromkeys([*case.axes, *case.sizes, "dtype"]) if name in summary]
    for axis in case.axes:
        others = [name for name in parameters if name != axis and summary[name].nunique() > 1]
        for values, rows in summary.groupby(others, sort=False) if others else [((), summary)]:
            if rows[axis].nunique() > 1:
                yield axis, ", ".join(f"{name} {value}" for name, value in zip(others, values)), rows


def break_even(axis, speeds):
    """Return the value from which a row is slower than the reference, by straight lines on logarithmic axes.

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


def comparison(axis, rows):
    """Return for each row of snnipu the geometric mean of its speeds, or its break-even on a numeric axis."""
    lines = []
    for label, own_rows in rows[rows.own & (rows.contender != rows.reference)].groupby("label", sort=False):
        speeds = own_rows.speed.dropna()
        if speeds.empty:
            continue
        if pd.api.types.is_numeric_dtype(own_rows[axis]):
            value = break_even(own_rows[axis], own_rows.speed)
            text = {np.inf: "faster throughout", 0.0: "slower throughout"}.get(value, f"{value:.2g}")
            lines.append(f"{label}: break-even: {text}.")
        else:
            slower, mean = int((speeds < SLOWER).sum()), np.exp(np.log(speeds).mean())
            lines.append(f"{label}: geometric mean of speeds {mean:.2f} ×; below {SLOWER}: {slower} of {len(speeds)}.")
    return "\n".join(lines)


def sweep_tables(case, summary):
    """Return a table for each axis and quantity."""
    tables = []
    for axis, others, rows in groups_along(case, summary):
        for quantity in case.tables:
            values = list(dict.fromkeys(rows[axis]))
            lines = [["", *map(str, values)]]
            for label, contender in rows.groupby("label", sort=False):
                cells = {row[axis]: cell(quantity, row[quantity], row.status) for _, row in contender.iterrows()}
                lines.append([label, *(cells.get(value, "–") for value in values)])
            lines = list(zip(*lines)) if isinstance(values[0], str) else lines
            heading = ", ".join(filter(None, [f"{QUANTITIES[quantity][0]} against {axis}", others]))
            tables.append(f"### {heading}\n\n{aligned(lines)}")
        tables.append(comparison(axis, rows))
    return list(filter(None, tables))


def remarks(summary):
    """Return the notes on rows, and the reasons why some have no times, each once."""
    notes = [f"- {row.label}: {row.note}" for row in summary.itertuples() if row.note]
    reasons = [f"- {row.label}: {row.status}: {row.reason}" for row in summary[summary.status != "ok"].itertuples()]
    return "\n".join(dict.fromkeys([*notes, *reasons]))


def draw(cases, summary, caption, path):
    """Draw lines along numeric axes, else bars: a panel for each group of rows and quantity, or for each table."""
    panels = []
    for name, rows in summary.groupby("case", sort=False):
        sweeps = list(groups_along(cases[name], rows))
        for axis, others, group in sweeps:
            panels += [(others or name, axis, quantity, group) for quantity in cases[name].charts]
        if not sweeps:
            panels += [
                (title, "title", "milliseconds", table_rows) for title, table_rows in rows.groupby("title", sort=False)
            ]
    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    longest = max(len(rows) for *_, rows in panels)
    figure = Figure(figsize=(6 * columns, 2 + lines * min(12, 2 + 0.1 * longest)), dpi=100, layout="constrained")
    handles = {}
    places = figure.subplots(lines, columns, squeeze=False).flat
    for unused in places[len(panels) :]:
        unused.remove()
    for axes, (title, axis, quantity, rows) in zip(places, panels):
        own_colours, peer_colours = itertools.cycle(OWN_COLOURS), itertools.cycle(PEER_COLOURS)
        colours = {
            row.label: next(own_colours if row.own else peer_colours)
            for row in rows.drop_duplicates("label").itertuples()
        }
        heading, number = QUANTITIES[quantity]
        options = {"ax": axes, "legend": False, "color": colours}
        columns_of_rows = rows.pivot(index=axis, columns="label", values=quantity)
        columns_of_rows = columns_of_rows.loc[list(dict.fromkeys(rows[axis])), list(colours)]
        if pd.api.types.is_numeric_dtype(rows[axis]):
            columns_of_rows.plot(logx=True, logy=quantity == "milliseconds", marker="o", **options)
            axes.set_xticks(list(columns_of_rows.index), [f"{value:g}" for value in columns_of_rows.index])
            axes.minorticks_off()
        else:
            columns_of_rows.plot.barh(width=0.8, **options)
            axes.invert_yaxis()
            for bars in axes.containers:
                axes.bar_label(bars, fmt=lambda value, number=number: number.format(value) if value else "", fontsize=7)
        if axis == "title":
            axes.set_yticks([])
            axes.set_ylabel("")
        handles.update(zip(colours, axes.get_legend_handles_labels()[0]))
        axes.set_title(textwrap.fill(f"{title}: {heading}", 80), loc="left", fontsize=9)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2 * columns, fontsize=8)
    figure.suptitle("\n".join(textwrap.wrap(caption, 60 * columns)), fontsize=7)
    write_atomically(path, functools.partial(figure.savefig, format=path.suffix[1:].lower()))
