"""The output of ``python -m snnipu profile``: a table, a JSON document, and a self-contained HTML page."""

import html
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from snnipu._version import __version__
from snnipu.planning.mapping import CATEGORIES, Plan, code_bytes
from snnipu.planning.performance import LABEL, Performance, summary
from snnipu.planning.targets import KIBIBYTE

FORMAT = 1
ROLE_COLOURS = ("#4878a8", "#c2703d", "#5b9a68", "#8a6fb0", "#b0555f", "#7c8a3a", "#3f9aa0", "#a0784f")
SEQUENCE = ("#eef3f8", "#d3e0ee", "#b0cbe2", "#86b0d3", "#5a92c1", "#3674a9", "#1f5587", "#0f3a63")
OVER_COLOUR, IDLE_COLOUR = "#c0392b", "#f4f4f2"
SHARE_COLOURS = {"compute": "#3674a9", "exchange": "#d08a3e", "sync": "#9aa5ae"}
ASSUMPTIONS = (
    "The cycles of a vertex follow from the instructions in its source (snnipu/planning/cycles.py, checked against "
    "PopLibs' estimators): 5 for a gathered row, and 3 for each two weights. Six workers take turns.",
    "Tiles compute, synchronise and exchange in turn; the slowest tile decides. Exchange: 4 bytes per cycle and tile; "
    "between IPUs 320 GB/s each way. A synchronisation takes {sync} cycles on one IPU, {ipu_sync} on several.",
    "All slots are exchanged, since an IPU's exchange is compiled. Neurons gather the expected number of spikes; "
    "in the backward pass every slot carries gradient.",
    "A tile stores its weights, their gradients and the optimiser's state, the membranes of every step, and buffers "
    "for exchange. Code is assumed to take {code} KiB.",
    "Not included: host input and output, the loss, control flow, and the time to load a program.",
)
CELL = 9


def assumptions(plan: Plan) -> List[str]:
    """Return the assumptions behind the figures, a sentence or two each."""
    values = {
        "sync": plan.target.sync_cycles,
        "ipu_sync": plan.target.ipu_sync_cycles,
        "code": code_bytes("neurons", plan.network.training) // KIBIBYTE,
    }
    return [text.format(**values) for text in ASSUMPTIONS]


def _figures(performance: Performance) -> List[Tuple[str, str]]:
    plan = performance.plan
    rate = f"{summary(performance)['samples_per_s']:,.0f}" if plan.fits else "none: it does not fit"
    slowest = performance.slowest_phase
    layer = f", layer {slowest.where}" if slowest.where else ""
    fill = plan.tile_memory_max_bytes / plan.target.bytes_per_tile
    return [
        ("fits", "yes" if plan.fits else "no"),
        ("samples per second", rate),
        ("bound by", f"{performance.bound} (slowest phase: {slowest.name}{layer})"),
        (
            "fullest tile",
            f"{plan.tile_memory_max_bytes / KIBIBYTE:.0f} of {plan.target.bytes_per_tile // KIBIBYTE} KiB ({fill:.0%})",
        ),
        ("cycles per step", f"{performance.cycles_per_step:,.0f}"),
        (
            "compute, exchange, sync",
            f"{performance.compute_share:.1%}, {performance.exchange_share:.1%}, {performance.sync_share:.1%}",
        ),
        ("balance of the tiles used", f"{performance.balance:.0%} (mean over busiest)"),
        ("tiles used", f"{plan.tiles_used} of {plan.tiles}, on {plan.ipus_used} of {plan.ipus} IPUs"),
    ]


def text(performance: Performance) -> str:
    """Return the plan, a table of figures and a table of phases, as text."""
    figures = _figures(performance)
    width = max(len(name) for name, _ in figures)
    lines = [str(performance.plan), "", f"{LABEL[0].upper()}{LABEL[1:]}:"]
    lines += [f"  {name:<{width}}  {value}" for name, value in figures]
    lines += ["", f"  {'phase of a step':<55} {'cycles':>12} {'sync':>6}"]
    for phase in performance.phases:
        name = f"{phase.direction}: {phase.name}"
        lines.append(f"  {name:<55} {phase.cycles:>12,.0f} {phase.sync:>6,.0f}")
    return "\n".join(lines)


def plan_only_text(plan: Plan) -> str:
    """Return the text for a plan without layers on tiles."""
    return f"{plan}\n\nNo figures: there is no plan to estimate."


def to_json(plan: Plan, performance: Optional[Performance]) -> Dict[str, Any]:
    """Return the JSON document; figures are null if ``performance`` is None."""
    if performance is None:
        figures: Dict[str, Any] = {
            "label": LABEL,
            "fits": False,
            "problems": list(plan.problems),
            "notes": list(plan.notes),
            "bound": "memory",
            **dict.fromkeys(
                (
                    "samples_per_s",
                    "tile_memory_max_bytes",
                    "cycles_per_step",
                    "compute_share",
                    "exchange_share",
                    "sync_share",
                )
            ),
        }
    else:
        figures = summary(performance)
        tile = int(plan.tile_memory.argmax())
        figures["fullest_tile"] = {
            "tile": tile,
            "bytes": {name: int(plan.memory[name][tile]) for name in CATEGORIES if plan.memory[name][tile]},
        }
    return {
        "format": FORMAT,
        "snnipu": __version__,
        **figures,
        "assumptions": assumptions(plan),
        "plan": plan.to_dict(),
    }


# ---- HTML


def _grid(tiles: int) -> Tuple[int, int]:
    """Return the columns and rows of the map of an IPU's tiles."""
    columns = 46 if tiles % 46 == 0 else 38 if tiles % 38 == 0 else math.ceil(math.sqrt(tiles * 1.4))
    return columns, math.ceil(tiles / columns)


def _lighter(colour: str) -> str:
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{(part + 2 * 255) // 3:02x}" for part in parts)


def _map(plan: Plan, colours: Sequence[str], classes: np.ndarray, title: str) -> str:
    """Return an SVG map with a square for each tile, IPU after IPU; tiles of one colour form one path."""
    columns, rows = _grid(plan.target.tiles_per_ipu)
    across = min(plan.ipus, 2 if plan.ipus <= 4 else 4)
    down = -(-plan.ipus // across)
    step_x, step_y = (columns + 2) * CELL, (rows + 3) * CELL
    paths: Dict[int, List[str]] = {}
    labels = []
    for ipu in range(plan.ipus):
        left, top = (ipu % across) * step_x, (ipu // across) * step_y + 2 * CELL
        labels.append(f'<text x="{left}" y="{top - 4}" class="small">IPU {ipu}</text>')
        for place in range(plan.target.tiles_per_ipu):
            row, column = divmod(place, columns)
            kind = int(classes[ipu * plan.target.tiles_per_ipu + place])
            paths.setdefault(kind, []).append(f"M{left + column * CELL} {top + row * CELL}h8v8h-8z")
    drawn = "".join(f'<path fill="{colours[kind]}" d="{"".join(parts)}"/>' for kind, parts in sorted(paths.items()))
    size = f'viewBox="0 0 {across * step_x} {down * step_y}"'
    return f'<svg {size} role="img" aria-label="{html.escape(title)}">{"".join(labels)}{drawn}</svg>'


def _legend(entries: Sequence[Tuple[str, str]]) -> str:
    return (
        '<p class="legend">'
        + " ".join(f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>' for name, colour in entries)
        + "</p>"
    )


def _role_map(plan: Plan) -> str:
    roles = plan.roles()
    names = [("no work", IDLE_COLOUR)]
    colours = [IDLE_COLOUR]
    classes = np.zeros(plan.tiles, dtype=np.int32)
    for layer in plan.layers:
        colour = ROLE_COLOURS[(layer.layer - 1) % len(ROLE_COLOURS)]
        colours += [colour, _lighter(colour)]
        classes[roles == layer.layer] = len(colours) - 2
        classes[roles == -layer.layer] = len(colours) - 1
        names += [(f"layer {layer.layer}", colour), (f"its selection ({layer.selection_tiles})", _lighter(colour))]
    return _map(plan, colours, classes, "what each tile does") + _legend(names)


def _value_map(plan: Plan, values: np.ndarray, limit: float, unit: str, title: str, over: bool) -> str:
    """Return a map in shades, from 0 to ``limit``; with ``over``, tiles above the limit are red."""
    shades = len(SEQUENCE)
    classes = np.clip((values / max(limit, 1e-9) * shades).astype(np.int64), 0, shades - 1)
    if over:
        classes[values > limit] = shades
    classes[plan.roles() == 0] = shades + 1
    colours = [*SEQUENCE, OVER_COLOUR, IDLE_COLOUR]
    entries = [("no work", IDLE_COLOUR)]
    entries += [
        (f"up to {limit * (index + 1) / shades:,.0f} {unit}", SEQUENCE[index])
        for index in (0, shades // 2 - 1, shades - 1)
    ]
    if over and bool((values > limit).any()):
        entries.append((f"over {limit:,.0f} {unit}", OVER_COLOUR))
    return _map(plan, colours, classes, title) + _legend(entries)


def _bar(parts: Sequence[Tuple[str, float, str]], height: int = 34) -> str:
    """Return a bar of shares (name, share, colour), which sum to 1."""
    x, drawn = 0.0, []
    for name, share, colour in parts:
        width = 1000 * share
        drawn.append(f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="{height}" fill="{colour}"/>')
        if share > 0.09:
            label = f"{html.escape(name)} {share:.0%}"
            drawn.append(f'<text x="{x + width / 2:.1f}" y="{height * 0.63:.0f}" class="inbar">{label}</text>')
        x += width
    legend = _legend([(f"{name} {share:.1%}", colour) for name, share, colour in parts])
    return f'<svg viewBox="0 0 1000 {height}" role="img" aria-label="shares">{"".join(drawn)}</svg>{legend}'


def _phase_table(performance: Performance) -> str:
    steps = performance.plan.network.steps
    longest = max(phase.cycles for phase in performance.phases)
    rows = []
    for phase in performance.phases:
        width = 100 * phase.cycles / longest
        colour = SHARE_COLOURS[phase.kind]
        bar = f'<div class="bar" style="width:{width:.1f}%;background:{colour}"></div>'
        often = "once a batch" if phase.direction == "update" else f"{steps} a batch"
        rows.append(
            f"<tr><td>{phase.direction}</td><td>{html.escape(phase.name)}</td><td>{phase.kind}</td>"
            f'<td class="number">{phase.cycles:,.0f}</td><td class="number">{phase.sync:,.0f}</td>'
            f'<td>{phase.where or ""}</td><td>{often}</td><td class="wide">{bar}</td></tr>'
        )
    head = "".join(
        f"<th>{name}</th>"
        for name in ("direction", "phase", "kind", "cycles (model)", "sync (model)", "slowest layer", "how often", "")
    )
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _memory_bar(plan: Plan) -> str:
    tile = int(plan.tile_memory.argmax())
    total = int(plan.tile_memory[tile])
    colours = (*ROLE_COLOURS, *SEQUENCE)
    parts = [
        (name, int(plan.memory[name][tile]) / total, colours[index])
        for index, name in enumerate(CATEGORIES)
        if plan.memory[name][tile]
    ]
    return f"<p>Tile {tile}, {total / KIBIBYTE:.0f} KiB, estimated:</p>" + _bar(parts)


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#22303c;background:#fff;max-width:1060px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin-bottom:.2em}h2{font-size:1.15em;margin-top:2em}svg{width:100%;height:auto;display:block}
.label{background:#fff6e0;border-left:4px solid #d08a3e;padding:.5em .8em}.problem{border-left:4px solid #c0392b;
background:#fdecea;padding:.5em .8em}.cards{display:grid;gap:.7em;
grid-template-columns:repeat(auto-fill,minmax(240px,1fr))}
.cards div{border:1px solid #dde4ea;border-radius:6px;padding:.5em .8em}.cards b{display:block;font-size:1.1em}
.cards small{color:#5f6f7d}table{border-collapse:collapse;width:100%;font-size:.88em}
td,th{text-align:left;padding:.25em .6em;border-bottom:1px solid #e6eaee}.number{text-align:right;white-space:nowrap}
.wide{width:22%}.bar{height:.9em}.legend span{margin-right:1.1em;white-space:nowrap;font-size:.85em}
.legend i{display:inline-block;width:.9em;height:.9em;margin-right:.35em;vertical-align:-.1em;border:1px solid #c3ccd4}
.small{font-size:11px;fill:#5f6f7d}.inbar{font-size:13px;fill:#fff;text-anchor:middle}pre{background:#f6f8fa;padding:.8em;
overflow-x:auto;font-size:.85em}
"""


def to_html(plan: Plan, performance: Optional[Performance], title: str) -> str:
    """Return a self-contained page with figures, maps and assumptions."""
    escaped = html.escape(title)
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escaped}</title>',
        f"<style>{_STYLE}</style></head><body><h1>{escaped}</h1>",
        f'<p class="label">Every figure on this page is <b>{LABEL}</b>. snnipu {__version__}.</p>',
    ]
    parts += [f'<p class="problem">Does not fit: {html.escape(problem)}</p>' for problem in plan.problems]
    if performance is not None:
        cards = "".join(
            f"<div><small>{html.escape(name)} (model)</small><b>{html.escape(value)}</b></div>"
            for name, value in _figures(performance)
        )
        shares = [
            ("compute", performance.compute_share, SHARE_COLOURS["compute"]),
            ("exchange", performance.exchange_share, SHARE_COLOURS["exchange"]),
            ("sync", performance.sync_share, SHARE_COLOURS["sync"]),
        ]
        limit = plan.target.bytes_per_tile / KIBIBYTE
        busiest = float(performance.tile_cycles.max())
        parts += [
            f'<div class="cards">{cards}</div>',
            "<h2>Where a batch's cycles go (model)</h2>",
            _bar(shares),
            "<h2>Phases (model)</h2>",
            _phase_table(performance),
            "<h2>What each tile does</h2>",
            _role_map(plan),
            f"<h2>Tile memory (model), of {limit:.0f} KiB</h2>",
            _value_map(plan, plan.tile_memory / KIBIBYTE, limit, "KiB", "tile memory", over=True),
            _memory_bar(plan),
            "<h2>Compute cycles of a step on each tile (model)</h2>",
            _value_map(plan, performance.tile_cycles, busiest, "cycles", "compute cycles", over=False),
        ]
    parts += ["<h2>Plan</h2>", f"<pre>{html.escape(str(plan))}</pre>", "<h2>Assumptions</h2><ul>"]
    parts += [f"<li>{html.escape(line)}</li>" for line in assumptions(plan)]
    parts.append("</ul></body></html>")
    return "\n".join(parts) + "\n"
