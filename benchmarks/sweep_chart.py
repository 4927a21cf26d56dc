"""The chart of a sweep: one line a contender.

With a row of reference, time along each of two axes, and where the lines meet that of the reference; of axes with
titles, a panel each. Without, what the axis has panels for.
"""

import itertools
import math
import textwrap
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from snnipu._extras import require
from snnipu._files import write_atomically
from benchmarks.case import Axis, Contender
from benchmarks.chart import OWN_COLOUR, QUIET_COLOUR, TEXT_COLOUR
from benchmarks.report import MEBIBYTE, QUANTITIES, Quantity, environment_line, times
from benchmarks.runner import RED
from benchmarks.sweep import SweepResult, summary

GRID_COLOUR, AXIS_COLOUR = "#e6eaee", "#c3ccd4"
REFERENCE_COLOUR = "#1f4e79"
OWN_COLOURS = (OWN_COLOUR, "#e39aa5", "#b07aa1")
PEER_COLOURS = ("#8a97a3", "#c2a15a", "#6fa287", "#9aa7d0")
LINES = ("-", "--", ":")
_UNITS = {"hidden_layers": "hidden layers", "activity": "active"}
# Labels at the ends of the lines keep this distance, as a share of the height of the panel.
LABEL_DISTANCE = 0.088
FOOT_WIDTH = 230


def _styles(sweep: SweepResult) -> Dict[str, Dict[str, Any]]:
    # Where there are more lines than colours, they come again with dashes.
    own, peers = (iter(list(itertools.product(LINES, colours))) for colours in (OWN_COLOURS, PEER_COLOURS))
    styles: Dict[str, Dict[str, Any]] = {}
    for index, contender in enumerate(sweep.contenders()):
        line, colour = "-", REFERENCE_COLOUR
        if contender.name != sweep.sweep.reference:
            line, colour = next(own if contender.own else peers)
        styles[contender.name] = {
            "color": colour,
            "linestyle": line,
            "linewidth": 2.6 if index == 0 else 1.8,
            "marker": "o",
            "markersize": 5.5 if index == 0 else 4,
            "zorder": 5 if index == 0 else 3,
        }
    return styles


def spread(positions: Sequence[float], distance: float) -> List[float]:
    """``positions`` moved apart to at least ``distance``, as little as their order allows; the order is kept."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    groups: List[Tuple[float, List[int]]] = []
    for index in order:
        groups.append((positions[index], [index]))
        while len(groups) > 1:
            (low, below), (high, above) = groups[-2:]
            if high - low >= distance * (len(below) + len(above)) / 2:
                break
            members = below + above
            groups[-2:] = [((low * len(below) + high * len(above)) / len(members), members)]
    moved = [0.0] * len(positions)
    for centre, members in groups:
        for place, index in enumerate(members):
            moved[index] = centre + distance * (place - (len(members) - 1) / 2)
    return moved


def _lines(
    axes: Any, sweep: SweepResult, axis: Axis, styles: Dict[str, Dict[str, Any]], quantity: Quantity
) -> List[Tuple[Contender, float]]:
    """Draws the lines; returns each contender with its last value, where it has one."""
    ends = []
    for contender in sweep.contenders():
        if contender.floor == contender.name:
            continue  # a copy, of which the others' shares are told
        measured = []
        for where, row in sweep.rows(axis, contender.name):
            value = quantity.of(row) if row else None
            if row is not None and value is not None:
                measured.append((where, value, quantity.quartiles(row) or (value, value)))
        if not measured:
            continue
        places = [where for where, _, _ in measured]
        axes.plot(places, [value for _, value, _ in measured], **styles[contender.name])
        axes.fill_between(
            places,
            [low for _, _, (low, _) in measured],
            [high for _, _, (_, high) in measured],
            color=styles[contender.name]["color"],
            alpha=0.15,
            linewidth=0,
        )
        ends.append((contender, measured[-1][1]))
    return ends


def _frame(axes: Any, axis: Axis, title: str) -> None:
    ticker = require("matplotlib.ticker", "bench", "the chart")
    axes.set_title(title, fontsize=10.5, loc="left", color=TEXT_COLOUR, pad=10)
    axes.set_xlabel(axis.label, fontsize=9, color=QUIET_COLOUR)
    axes.set_xticks(list(axis.values), [axis.tell(value) for value in axis.values])
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.minorticks_off()
    axes.grid(axis="y", color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, colors=QUIET_COLOUR, length=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(AXIS_COLOUR)


def _limits(axes: Any) -> None:
    """A whole decade more often than not, with room for the labels."""
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.1, high * 1.25)


def _label_ends(
    axes: Any, sweep: SweepResult, ends: Sequence[Tuple[Contender, float]], styles: Dict[str, Dict[str, Any]]
) -> None:
    """The names of the lines and their peak memory beside their ends, moved apart where they meet."""
    memory = _memory_labels(sweep)
    low, high = (math.log(limit) for limit in axes.get_ylim())
    heights = [(math.log(time) - low) / (high - low) for _, time in ends]
    for (contender, _), height in zip(ends, spread(heights, LABEL_DISTANCE)):
        place = {"transform": axes.transAxes, "color": styles[contender.name]["color"]}
        weight = "bold" if contender.own else "normal"
        axes.text(1.03, height, contender.label, va="center", fontsize=9, fontweight=weight, **place)
        axes.text(1.03, height - 0.022, memory.get(contender.name, ""), va="top", fontsize=7.5, **place)


def _guide(axes: Any, sweep: SweepResult, axis: Axis) -> None:
    """What time in proportion to the spikes would look like, through the first own row's time at the highest value."""
    name = sweep.contenders()[0].name
    measured = [(v, t) for v, t in zip(axis.values, sweep.medians(axis, name)) if t is not None]
    if len(measured) < 2:
        return
    (last, time), first = measured[-1], measured[0][0]
    limits = axes.get_ylim()
    start = max(first, last * limits[0] / (1e3 * time))
    axes.plot([start, last], [1e3 * time * start / last, 1e3 * time], color=QUIET_COLOUR, linestyle=":", linewidth=1.2)
    middle = math.sqrt(start * last)
    axes.annotate(
        "linear in spikes",
        (middle, 1e3 * time * middle / last),
        xytext=(6, -5),
        textcoords="offset points",
        va="top",
        fontsize=8,
        color=QUIET_COLOUR,
    )
    axes.set_ylim(limits)


def _mark_break_even(axes: Any, sweep: SweepResult, axis: Axis, styles: Dict[str, Dict[str, Any]]) -> None:
    for contender in sweep.compared()[:1]:
        value = sweep.break_even(contender.name)
        if not 0 < value < math.inf:
            continue
        dense = sweep.medians(axis, str(sweep.sweep.reference))
        known = [(math.log(v), math.log(1e3 * t)) for v, t in zip(axis.values, dense) if t is not None]
        height = math.exp(_interpolate(known, math.log(value)))
        colour = styles[contender.name]["color"]
        axes.plot([value, value], [axes.get_ylim()[0], height], color=colour, linewidth=1, linestyle="--", zorder=1)
        axes.plot([value], [height], marker="o", markersize=10, markerfacecolor="white", color=colour, zorder=6)
        axes.annotate(
            f"break-even with\nthe dense path: {axis.tell(float(f'{value:.2g}'))}",
            (value, axes.get_ylim()[0]),
            xytext=(-6, 8),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8.5,
            color=colour,
        )


def _interpolate(points: Sequence[Tuple[float, float]], where: float) -> float:
    for (left, low), (right, high) in zip(points, points[1:]):
        if left <= where <= right:
            return low + (high - low) * (where - left) / (right - left)
    return points[-1][1]


def _mark_ratios(axes: Any, sweep: SweepResult, axis: Axis, styles: Dict[str, Dict[str, Any]]) -> None:
    """How many times as long the reference takes, at every point of the first own row."""
    for contender in sweep.compared()[:1]:
        pairs = zip(axis.values, sweep.medians(axis, contender.name), sweep.medians(axis, str(sweep.sweep.reference)))
        for value, time, reference in pairs:
            if time is None or reference is None:
                continue
            axes.annotate(
                times(reference / time),
                (value, 1e3 * time),
                xytext=(0, -9),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=8.5,
                color=styles[contender.name]["color"],
            )


def _memory_labels(sweep: SweepResult) -> Dict[str, str]:
    """Peak memory of each contender at the point whose whole table is shown."""
    point = sweep.headline()
    if point is None:
        return {}
    reference = point.memory_reference()
    said = {}
    for row in point.results:
        if row.peak_bytes is not None:
            share = f", {row.peak_bytes / reference:.0%} of {point.case.memory_label}" if reference else ""
            said[row.contender.name] = f"{row.peak_bytes / MEBIBYTE:.0f} MiB{share}"
    return said


def _foot(sweep: SweepResult) -> str:
    """What the labels mean, and who was not timed."""
    axes = sweep.sweep.axes
    tell = {axis.parameter: axis.tell for axis in axes}
    headline = sweep.sweep.headline or {}
    where = ""
    if not _is_grid(sweep):  # which tells no peak memory
        where = ", ".join(f"{tell[key](value)} {_UNITS.get(key, key)}" for key, value in headline.items())
    said = ["Medians; times and ratios on a logarithmic axis." if axes[0].has_names else "Medians and quartiles."]
    said = [said[0] + (f" MiB: peak memory of one step, {where}." if where else "")]
    said += sweep.sweep.left_out
    for contender in sweep.contenders():
        rows = [row for axis in axes for _, row in sweep.rows(axis, contender.name) if row is not None]
        red = sum(row.status == RED for row in rows)
        other = sum(row.timing is None for row in rows) - red
        if red:
            said.append(f"{contender.label}: check failed at {red} of {len(rows)} points, not timed there.")
        if other:
            said.append(f"{contender.label}: did not run at {other} of {len(rows)} points.")
    return " ".join(said)


def _times(figure: Any, sweep: SweepResult, styles: Dict[str, Dict[str, Any]]) -> None:
    """Time along the first axis and the second, if there is one, in proportion."""
    first, second = sweep.sweep.axes[0], sweep.sweep.axes[-1]
    alone = len(sweep.sweep.axes) == 1
    left = figure.add_axes((0.045, 0.165, 0.70 if alone else 0.52, 0.70))
    right = left if alone else figure.add_axes((0.63, 0.165, 0.215, 0.70), sharey=left)
    left.set_xscale("log")
    left.set_yscale("log")
    ends = _lines(left, sweep, first, styles, QUANTITIES["time"])
    if not alone:
        ends = _lines(right, sweep, second, styles, QUANTITIES["time"])
    fixed = {axis.parameter: axis.tell for axis in sweep.sweep.axes}

    def title(axis: Axis) -> str:
        return ", ".join(f"{fixed[key](value)} {_UNITS.get(key, key)}" for key, value in axis.fixed.items())

    ratio = "; ×: dense ÷ sparse" if sweep.compared() else ""
    if alone:
        _frame(left, first, f"ms a step{ratio}")
    else:
        _frame(left, first, f"ms a step, {title(first)}")
        _frame(right, second, f"{title(second)}{ratio}")
        right.set_xlim(second.values[0] - 0.3, second.values[-1] + 0.3)
        right.tick_params(labelleft=False)
    if left.lines or right.lines:
        _limits(left)
        _guide(left, sweep, first)
        _mark_break_even(left, sweep, first, styles)
        _mark_ratios(right, sweep, second, styles)
        _label_ends(right, sweep, ends, styles)


def _is_grid(sweep: SweepResult) -> bool:
    return all(axis.title for axis in sweep.sweep.axes)


def _grid(figure: Any, sweep: SweepResult, styles: Dict[str, Dict[str, Any]]) -> None:
    """Time along each axis, a panel with its title, two above each other, and the names of the lines."""
    left, right, bottom, top, gap = 0.045, 0.985, 0.13, 0.85, 0.045
    columns = (len(sweep.sweep.axes) + 1) // 2
    width, height = (right - left - gap * (columns - 1)) / columns, (top - bottom - 0.13) / 2
    handles: Dict[str, Any] = {}
    for index, axis in enumerate(sweep.sweep.axes):
        place = (left + index // 2 * (width + gap), bottom + (1 - index % 2) * (height + 0.13), width, height)
        axes = figure.add_axes(place)
        axes.set_xscale("log")
        axes.set_yscale("log")
        ends = _lines(axes, sweep, axis, styles, QUANTITIES["time"])
        _frame(axes, axis, axis.title.replace(": ", ":\n"))
        if index % 2 == 0:
            axes.set_xlabel("")
        if axes.lines:
            low, high = axes.get_ylim()
            axes.set_ylim(low / 1.7, high * 1.25)
            _mark_ratios(axes, sweep, axis, styles)
        for (contender, _), line in zip(ends, axes.lines):
            handles.setdefault(contender.label, line)
    if handles:
        figure.legend(
            [*handles.values()],
            [*handles],
            loc="upper right",
            bbox_to_anchor=(right, 0.965),  # below the title, however wide that is
            ncols=len(handles),
            frameon=False,
            fontsize=9,
            labelcolor=TEXT_COLOUR,
        )


def _quantities(figure: Any, sweep: SweepResult, styles: Dict[str, Dict[str, Any]]) -> None:
    """The panels of the first axis beside each other, and the names of the lines."""
    axis = sweep.sweep.axes[0]
    left, right, gap = 0.05, 0.80, 0.07
    width = (right - left - gap * (len(axis.panels) - 1)) / len(axis.panels)
    handles: Dict[str, Any] = {}
    floor: Dict[str, Any] = {}
    for index, name in enumerate(axis.panels):
        quantity = QUANTITIES[name]
        axes = figure.add_axes((left + index * (width + gap), 0.165, width, 0.70))
        axes.set_xscale("log")
        if name == "faults":
            axes.set_yscale("symlog", linthresh=1)
        elif name == "time":
            axes.set_yscale("log")
        ends = _lines(axes, sweep, axis, styles, quantity)
        _frame(axes, axis, quantity.title)
        axes.yaxis.set_major_formatter(lambda value, _, tell=quantity.tell: tell(value))
        if axes.lines and axes.get_yscale() != "log":
            # Zero lies above the frame, so that lines along it are seen whole.
            high = axes.get_ylim()[1]
            axes.set_ylim(*((-0.02 * high, high) if name == "copy_share" else (-0.3, max(high, 10))))
        if name == "copy_share" and axes.lines:
            floor["copy of the least traffic"] = axes.axhline(1, color=QUIET_COLOUR, linestyle="--", linewidth=1.2)
        for contender, line in zip([contender for contender, _ in ends], axes.lines):
            handles.setdefault(contender.label, line)
    handles.update(floor)
    if handles:
        figure.legend(
            [*handles.values()],
            [*handles],
            loc="upper left",
            bbox_to_anchor=(right + 0.01, 0.88),
            frameon=False,
            fontsize=9,
            labelspacing=0.9,
            labelcolor=TEXT_COLOUR,
        )


def _name_panels(sweep: SweepResult) -> List[Tuple[Axis, str]]:
    return [(axis, panel) for axis in sweep.sweep.axes if axis.has_names for panel in axis.panels]


def _panel_title(sweep: SweepResult, axis: Axis, panel: str) -> str:
    """What the panel tells; of ratios, with their geometric means."""
    if panel != "speedup":
        return QUANTITIES[panel].title
    found = [summary(sweep.speedups(axis, c.name)) for c in sweep.compared()]
    means = ", ".join("–" if mean is None else times(mean.mean) for mean in found)
    reference = next((c.label for c in sweep.contenders() if c.name == sweep.sweep.reference), "–")
    return f"{axis.title}: speed over {reference}'s\ngeometric means: {means}"


def _names(figure: Any, sweep: SweepResult, styles: Dict[str, Dict[str, Any]]) -> None:
    """Bars: a group for each name of an axis of names, in a panel for each axis and quantity."""
    panels = _name_panels(sweep)
    left, right, gap = 0.14, 0.985, 0.02
    width = (right - left - gap * (len(panels) - 1)) / len(panels)
    height_inches = figure.get_size_inches()[1]
    bottom, top = 0.65 / height_inches, 1 - 1.05 / height_inches
    handles: Dict[str, Any] = {}
    for index, (axis, panel) in enumerate(panels):
        quantity = QUANTITIES[panel]
        axes = figure.add_axes((left + index * (width + gap), bottom, width, top - bottom))
        ratio = panel == "speedup"
        # A copy is what the others' shares are of; it has a line, and no bars.
        contenders = [c for c in (sweep.compared() if ratio else sweep.contenders()) if c.floor != c.name]
        ratios = {c.name: dict(zip(axis.values, sweep.speedups(axis, c.name))) for c in contenders} if ratio else {}
        start, most = (1.0, 1.0) if ratio else (0.0, 0.0)
        for place, name in enumerate(axis.values):
            rows = [(c, row) for c in contenders for value, row in sweep.rows(axis, c.name) if value == name]
            found = [(c, ratios[c.name][name] if ratio else quantity.of(row)) for c, row in rows if row is not None]
            bars = [(c, value) for c, value in found if value is not None]
            height = 0.8 / max(1, len(bars))
            for number, (contender, value) in enumerate(bars):
                where = place + (number - (len(bars) - 1) / 2) * height
                bar = axes.barh(
                    where, value - start, left=start, height=0.86 * height, color=styles[contender.name]["color"]
                )
                handles.setdefault(contender.label, bar)
                weight = "bold" if contender.own else "normal"
                axes.annotate(
                    quantity.tell(value),
                    (max(value, start), where),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7.5,
                    fontweight=weight,
                    color=TEXT_COLOUR,
                )
                most = max(most, value)
        if panel in ("time", "speedup"):
            axes.set_xscale("log")
        axes.set_xlim(right=(2.2 if axes.get_xscale() == "log" else 1.15) * (most or 1.0))
        if panel in ("copy_share", "speedup"):
            axes.axvline(1, color=QUIET_COLOUR, linestyle="--", linewidth=1)
        axes.set_ylim(len(axis.values) - 0.5, -0.5)
        axes.set_yticks(range(len(axis.values)), [axis.tell(name) for name in axis.values] if index == 0 else [])
        axes.set_title(_panel_title(sweep, axis, panel), fontsize=10.5, loc="left", color=TEXT_COLOUR, pad=10)
        axes.set_xticks([])
        axes.minorticks_off()
        axes.tick_params(axis="y", labelsize=9, colors=TEXT_COLOUR, length=0)
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
        axes.spines["left"].set_color(AXIS_COLOUR)
    if handles:
        figure.legend(
            [*handles.values()],
            [*handles],
            loc="upper right",
            bbox_to_anchor=(right, 1 - 0.22 / height_inches),
            ncols=len(handles),
            frameon=False,
            fontsize=8.5,
            labelcolor=TEXT_COLOUR,
        )


def draw(sweep: SweepResult, environment: Dict[str, Any], path: Path) -> None:
    """Write the chart to ``path``; its suffix is one of :data:`benchmarks.chart.FORMATS`.

    Raises:
        MissingExtra: matplotlib is not installed.
        WriteError: the file cannot be written.
    """
    figure = require("matplotlib.figure", "bench", "the chart").Figure(figsize=(12, 6.1), dpi=150, facecolor="white")
    styles = _styles(sweep)
    if sweep.sweep.axes[0].has_names:
        groups = max(len(axis.values) for axis, _ in _name_panels(sweep))
        figure.set_size_inches(12, 2.0 + (0.45 if sweep.compared() else 0.75) * groups)
        _names(figure, sweep, styles)
    elif sweep.sweep.reference is None:
        _quantities(figure, sweep, styles)
    elif _is_grid(sweep):
        figure.set_size_inches(max(12, 3.4 * ((len(sweep.sweep.axes) + 1) // 2) + 0.6), 7.2)
        _grid(figure, sweep, styles)
    else:
        _times(figure, sweep, styles)
    title = 1 - 0.215 / figure.get_size_inches()[1]
    figure.text(0.012, title, sweep.sweep.title, fontsize=13, fontweight="bold", color=TEXT_COLOUR, va="center")
    foot = [*textwrap.wrap(_foot(sweep), FOOT_WIDTH), *textwrap.wrap(environment_line(environment), FOOT_WIDTH)]
    figure.text(0.012, 0.012, "\n".join(foot), fontsize=6.5, color=QUIET_COLOUR, va="bottom", linespacing=1.4)
    write_atomically(path, partial(figure.savefig, format=path.suffix[1:].lower()))
