"""Predictions of the performance model for the networks of the published sparse benchmark on IPUs.

Sizes, slots and batches are those of Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
``python docs/ipu_published.py`` writes the predictions and their chart.
"""

import json
import textwrap
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from snnipu._extras import require
from snnipu.ipu import NetworkSpec
from snnipu.ipu.report import OVER_COLOUR, SEQUENCE, SHARE_COLOURS
from snnipu.planning.mapping import Plan
from snnipu.planning.network import benchmark_slots
from snnipu.planning.performance import LABEL, Performance, estimate
from snnipu.planning.search import plan
from snnipu.planning.targets import KIBIBYTE, Target

ROOT = Path(__file__).resolve().parent.parent
TEXT, QUIET = "#22303c", "#5f6f7d"

# Neurons of the input, of the hidden layers (keyed by their number) and of the output; slots of the input.
NETWORKS: Dict[str, Dict[str, Any]] = {
    "N-MNIST": {
        "input": 34 * 34 * 2,
        "hidden": {2: [1466] * 2, 3: [978, 978, 976], 4: [734, 734, 732, 732], 5: [588, *[586] * 4]},
        "output": 10,
        "input_slots": 32,
    },
    "SHD": {
        "input": 700,
        "hidden": {2: [1462, 1460], 3: [974] * 3, 4: [732, *[730] * 3], 5: [586, *[584] * 4]},
        "output": 20,
        "input_slots": 48,
    },
}
ACTIVITIES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
BATCH_SIZE, STEPS = 48, 100
CLAIMS = "published: 5 to 10 times an A100, up to 38 times at high sparsity (arXiv 2311.04386)"
# Peak rates of an A100, in operations a second: upper bounds for its dense matrix products.
A100_FLOPS = {"FP32": 19.5e12, "TF32": 156e12}

# The runs with many neurons: N-MNIST cropped, ten steps, SGD. Their two fully connected hidden layers are an
# assumption of this script.
LARGE_INPUT, LARGE_OUTPUT, LARGE_STEPS = 24 * 24 * 2, 10, 10
IPUS = (1, 2, 4, 8, 16)
NEURONS_PER_TILE = (2, 4, 8, 16)
LARGE_LAYERS = 2
LARGE_ACTIVITY = 0.005
# A published network on more IPUs.
SCALED, SCALED_LAYERS, SCALED_ACTIVITIES = "N-MNIST", 2, (0.005, 0.02, 0.1)
SELECTION = 16


def figure(**more: Any) -> Any:
    return require("matplotlib.figure", "plot", "a picture").Figure(facecolor="white", dpi=150, **more)


def network(name: str, hidden_layers: int, activity: float, **more: Any) -> NetworkSpec:
    """Return a published network with hidden layers at ``activity``; all slots of the input are in use."""
    about = NETWORKS[name]
    sizes = (about["input"], *about["hidden"][hidden_layers], about["output"])
    slots = [benchmark_slots(activity, size) for size in sizes]
    slots[0], slots[-1] = about["input_slots"], about["output"]
    spikes = [float(slots[0]), *(min(activity * size, float(slot)) for size, slot in zip(sizes[1:], slots[1:]))]
    return NetworkSpec(sizes, tuple(spikes), tuple(slots), **{"batch_size": BATCH_SIZE, "steps": STEPS, **more})


def dense_ceiling(spec: NetworkSpec, flops: float) -> float:
    """Return an upper bound of samples a second for dense matrix products at this peak rate.

    The products take two operations for each weight, sample and step forward, and four backward.
    """
    return flops / (6.0 * spec.parameters * spec.steps)


def large_sizes(ipus: int, neurons_per_tile: int, tiles_per_ipu: int = 1472) -> Tuple[int, ...]:
    """Return layer sizes with two hidden layers that fill the tiles, except those that select spikes."""
    tiles = ipus * tiles_per_ipu - (LARGE_LAYERS + 1) * SELECTION - LARGE_OUTPUT // 2
    each = tiles // LARGE_LAYERS * neurons_per_tile
    return (LARGE_INPUT, *[each] * LARGE_LAYERS, LARGE_OUTPUT)


def large(ipus: int, neurons_per_tile: int) -> Tuple[Plan, Optional[Performance]]:
    """Return the plan of the largest network on ``ipus`` IPUs, and its performance if it fits."""
    sizes = large_sizes(ipus, neurons_per_tile)
    spec = NetworkSpec.from_sizes(
        sizes,
        LARGE_ACTIVITY,
        NETWORKS["N-MNIST"]["input_slots"],
        batch_size=BATCH_SIZE,
        steps=LARGE_STEPS,
        optimizer="sgd",
    )
    made = plan(spec, "mk2", ipus, selection_tiles=SELECTION)
    return made, estimate(made) if made.layers else None


def all_reduce_seconds(spec: NetworkSpec, copies: int, target: Target) -> float:
    """Return the time to sum the gradients of copies on a ring of IPUs, without latency.

    Each IPU sends and receives ``(copies - 1) / copies`` of the gradients twice.
    """
    return 2.0 * (copies - 1) / copies * spec.parameters * spec.weight_bytes / target.link_bytes_per_second


def scaling(ipus: Sequence[int], target: str = "mk2") -> List[Dict[str, Any]]:
    """Predict a published network on more IPUs: divided over them, and as one copy for each with its own batch."""
    found = []
    for activity in SCALED_ACTIVITIES:
        spec = network(SCALED, SCALED_LAYERS, activity)
        alone = estimate(plan(spec, target))
        for number in ipus:
            made = plan(spec, target, number)
            together = alone.seconds_per_batch + all_reduce_seconds(spec, number, made.target)
            found.append(
                {
                    "network": SCALED,
                    "hidden_layers": SCALED_LAYERS,
                    "activity": activity,
                    **record(made, estimate(made)),
                    "ipus_used": made.ipus_used,
                    "copies_samples_per_s": number * spec.batch_size / together,
                }
            )
    return found


def shares(performance: Performance) -> Dict[str, float]:
    """Return shares of a batch's cycles: each compute phase by name, all exchange, all synchronisation."""
    found = {"exchange": performance.exchange_share, "sync": performance.sync_share}
    for phase in performance.phases:
        if phase.kind == "compute":
            times = 1 if phase.direction == "update" else performance.plan.network.steps
            found[phase.name] = found.get(phase.name, 0.0) + times * phase.cycles / performance.cycles_per_batch
    return found


def record(made: Plan, performance: Optional[Performance]) -> Dict[str, Any]:
    found: Dict[str, Any] = {
        "sizes": list(made.network.sizes),
        "slots": list(made.network.slots),
        "fits": made.fits,
        "problems": list(made.problems),
        "tiles_used": made.tiles_used,
        "ipus": made.ipus,
    }
    if performance is not None:
        found.update(
            samples_per_s=performance.samples_per_s if made.fits else None,
            ms_per_batch=1e3 * performance.seconds_per_batch,
            bound=performance.bound,
            slowest_phase=performance.slowest_phase.name,
            compute_share=performance.compute_share,
            exchange_share=performance.exchange_share,
            sync_share=performance.sync_share,
            shares=shares(performance),
            tile_memory_max_bytes=made.tile_memory_max_bytes,
        )
    return found


def results(
    activities: Sequence[float] = ACTIVITIES,
    ipus: Sequence[int] = IPUS,
    neurons_per_tile: Sequence[int] = NEURONS_PER_TILE,
    target: str = "mk2",
) -> Dict[str, Any]:
    """Return all data of the charts."""
    depth: List[Dict[str, Any]] = []
    for name, about in NETWORKS.items():
        for hidden in about["hidden"]:
            for activity in activities:
                spec = network(name, hidden, activity)
                made = plan(spec, target)
                depth.append(
                    {
                        "network": name,
                        "hidden_layers": hidden,
                        "activity": activity,
                        **record(made, estimate(made) if made.layers else None),
                        "a100_ceiling": {kind: dense_ceiling(spec, rate) for kind, rate in A100_FLOPS.items()},
                    }
                )
    many = [
        {"neurons_per_tile": count, **record(*large(number, count))} for number in ipus for count in neurons_per_tile
    ]
    return {
        "label": LABEL,
        "target": target,
        "claims": CLAIMS,
        "depth": depth,
        "scaling": scaling(ipus, target),
        "many_neurons": many,
    }


# ---- the chart

GRID = "#e6eaee"
DEPTH_COLOURS = {2: "#0f3a63", 3: "#3674a9", 4: "#5b9a68", 5: "#c2703d"}
# The activity at which shares are shown and claims are set beside.
SHOWN_ACTIVITY = 0.02
FOOT_WIDTH = 215
# Compute by phase in cold colours.
PHASE_COLOURS = {
    "integrate and fire": "#1f5587",
    "words of bits": "#5b8fbd",
    "spike selection": "#86b0d3",
    "neuron gradients": "#a9cdb2",
    "weight and spike gradients": "#2f7d6d",
    "sum of spike gradients": "#7a6fb0",
    "weight update": "#c3c7d6",
    "exchange": SHARE_COLOURS["exchange"],
    "sync": "#b0555f",
}


def _frame(axes: Any, title: str, label: str) -> None:
    axes.set_title(title, fontsize=10, color=TEXT, loc="left")
    axes.set_xlabel(label, fontsize=8.5, color=QUIET)
    axes.tick_params(labelsize=8, colors=QUIET)
    for name, side in axes.spines.items():
        side.set_visible(name in ("left", "bottom"))
        side.set_color("#c3ccd4")


def _throughput(axes: Any, rows: Sequence[Dict[str, Any]], name: str) -> None:
    own = [row for row in rows if row["network"] == name]
    axes.set_xscale("log")
    axes.set_yscale("log")
    ends = []
    for hidden, colour in DEPTH_COLOURS.items():
        line = [row for row in own if row["hidden_layers"] == hidden and row["fits"]]
        where = [100 * row["activity"] for row in line]
        axes.plot(where, [row["samples_per_s"] for row in line], color=colour, marker="o", markersize=4, linewidth=2)
        ends.append((hidden, where[-1], line[-1]["samples_per_s"], colour))
        full = [row for row in own if row["hidden_layers"] == hidden and not row["fits"]]
        if full:
            where, height = [100 * row["activity"] for row in full], 120 * 1.4 ** (hidden - min(DEPTH_COLOURS))
            axes.plot(where, [height] * len(full), color=colour, marker="x", markersize=6, linestyle="")
            kib = " and ".join(f"{row['tile_memory_max_bytes'] / KIBIBYTE:,.0f}" for row in full)
            axes.annotate(
                f"{hidden} layers do not fit: {kib} KiB a tile",
                (where[0], height),
                (-8, 0),
                textcoords="offset points",
                fontsize=7,
                color=colour,
                ha="right",
                va="center",
            )
    for hidden, x, y, colour in ends:
        heights = [other[2] for other in ends if other[1] == x]
        side = "center" if len(heights) == 1 else "top" if y == min(heights) else "bottom"
        axes.annotate(f"{hidden}", (x, y), (5, 0), textcoords="offset points", fontsize=9, color=colour, va=side)
    two = next(row for row in own if row["hidden_layers"] == 2)
    ceiling = two["a100_ceiling"]["FP32"]
    note = f"dense products on an A100 at FP32 peak,\n2 hidden layers: at most {ceiling:,.0f}"
    axes.axhline(ceiling, color=QUIET, linewidth=1, linestyle=(0, (4, 3)), label=note)
    axes.legend(loc="upper right", fontsize=7, labelcolor=QUIET, frameon=False)
    if name == "N-MNIST" and any(row["activity"] == SHOWN_ACTIVITY for row in own):
        low, high = implied_a100(rows)
        axes.axhspan(low, high, color="#c2703d", alpha=0.13, linewidth=0)
        said = f"an A100 with 2 hidden layers, if the\npublished 5 to 10 times hold at {100 * SHOWN_ACTIVITY:g} %"
        axes.annotate(said, (0.52, low), (0, 3), textcoords="offset points", fontsize=7, color="#8a4a22")
    axes.set_ylim(100, 30000)
    ticks = sorted({100 * row["activity"] for row in own})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(True, which="major", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    _frame(axes, f"{name}: samples per second, one Mk2, by hidden layers", "activity of the hidden layers, %")


def _shares(axes: Any, rows: Sequence[Dict[str, Any]]) -> None:
    own = [row for row in rows if row["network"] == "N-MNIST" and row["activity"] in (0.005, SHOWN_ACTIVITY, 0.1)]
    own.sort(key=lambda row: (row["hidden_layers"], row["activity"]), reverse=True)
    for place, row in enumerate(own):
        start = 0.0
        for kind, colour in PHASE_COLOURS.items():
            share = 100 * row["shares"].get(kind, 0.0)
            axes.barh(place, share, left=start, color=colour, height=0.72)
            if share > 9:
                ink = TEXT if kind in ("spike selection", "neuron gradients") else "white"
                axes.text(start + share / 2, place, f"{share:.0f}", fontsize=7, color=ink, va="center", ha="center")
            start += share
    axes.set_yticks(range(len(own)), [f"{row['hidden_layers']} layers, {100 * row['activity']:g} %" for row in own])
    axes.set_xlim(0, 100)
    _frame(axes, "N-MNIST: where a batch's time goes (warm colours: exchange, sync)", "% of the cycles")
    axes.tick_params(axis="y", labelsize=7.5)
    patches = require("matplotlib.patches", "plot", "a picture")
    handles = [patches.Patch(color=colour, label=kind) for kind, colour in PHASE_COLOURS.items()]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.42, -0.115), ncol=4, fontsize=7, frameon=False)


def _bounds(axes: Any, rows: Sequence[Dict[str, Any]]) -> None:
    """Draw the limiting phase of each network and activity, and its share of the cycles."""
    colours = require("matplotlib.colors", "plot", "a picture")
    networks = sorted({(row["network"], row["hidden_layers"]) for row in rows})
    activities = sorted({row["activity"] for row in rows})
    share = np.full((len(networks), len(activities)), np.nan)
    for row in rows:
        y, x = networks.index((row["network"], row["hidden_layers"])), activities.index(row["activity"])
        limit = row["bound"]
        if row["fits"]:
            share[y, x] = row[f"{limit}_share"]
            said, colour = f"{limit}\n{100 * share[y, x]:.0f} %", "white"
        else:
            said, colour = f"{limit}\nfull", OVER_COLOUR
        axes.text(x, y, said, ha="center", va="center", fontsize=7, color=colour)
    shaded = colours.LinearSegmentedColormap.from_list("share", SEQUENCE[1:])
    axes.imshow(
        np.ma.masked_invalid(share), cmap=shaded.with_extremes(bad="#fbf1ef"), vmin=0.85, vmax=0.95, aspect="auto"
    )
    axes.set_xticks(range(len(activities)), [f"{100 * activity:g}" for activity in activities])
    axes.set_yticks(range(len(networks)), [f"{name}, {hidden}" for name, hidden in networks])
    phases = {row["slowest_phase"] for row in rows}
    slowest = f"; the longest phase of all: {phases.pop()}" if len(phases) == 1 else ""
    title = f"What limits on one Mk2, and its share of the cycles{slowest}"
    _frame(axes, title, "activity of the hidden layers, %")
    axes.set_title(title, fontsize=9, color=TEXT, loc="left")
    axes.tick_params(axis="y", labelsize=7.5)


def _scaling(axes: Any, rows: Sequence[Dict[str, Any]]) -> None:
    """Draw one network that is divided over several IPUs, and copies of it."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ipus = sorted({row["ipus"] for row in rows})
    for activity, colour in zip(sorted({row["activity"] for row in rows}), (*DEPTH_COLOURS.values(),)):
        line = sorted((row for row in rows if row["activity"] == activity), key=lambda row: row["ipus"])
        copies = [row["copies_samples_per_s"] for row in line]
        axes.plot(ipus, copies, color=colour, marker="o", markersize=4, linewidth=2)
        spread = [row["samples_per_s"] for row in line]
        axes.plot(ipus, spread, color=colour, marker="s", markersize=3.5, linewidth=1.3, linestyle=(0, (4, 2)))
        axes.annotate(
            f"{100 * activity:g} % active",
            (ipus[-1], copies[-1]),
            (6, 0),
            textcoords="offset points",
            fontsize=8,
            color=colour,
        )
    first = rows[0]
    axes.plot([], [], color=QUIET, marker="o", markersize=4, label="a copy on each IPU, batch 48 each")
    axes.plot(
        [], [], color=QUIET, marker="s", markersize=3.5, linestyle=(0, (4, 2)), label="one copy, spread over the IPUs"
    )
    axes.legend(loc="upper left", fontsize=7.5, frameon=False)
    axes.set_xticks(ipus, [str(number) for number in ipus])
    axes.set_xticks([], minor=True)
    axes.set_xlim(ipus[0] * 0.88, ipus[-1] * 1.55)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(True, which="major", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    title = f"{first['network']}, {first['hidden_layers']} hidden layers: samples per second on more IPUs"
    _frame(axes, title, "IPUs (Mk2)")


def _many(axes: Any, rows: Sequence[Dict[str, Any]]) -> None:
    colours = require("matplotlib.colors", "plot", "a picture")
    rate = np.full((len(NEURONS_PER_TILE), len(IPUS)), np.nan)
    rates = [row["samples_per_s"] for row in rows if row["fits"]]
    dark = (min(rates) * max(rates)) ** 0.5  # the middle of the colours
    for row in rows:
        y, x = NEURONS_PER_TILE.index(row["neurons_per_tile"]), IPUS.index(row["ipus"])
        neurons = f"{sum(row['sizes'][1:]) / 1000:,.0f}k neurons"
        if row["fits"]:
            rate[y, x] = np.log10(row["samples_per_s"])
            said, colour = f"{row['samples_per_s']:,.0f}/s", "white" if row["samples_per_s"] > dark else TEXT
        else:
            need = row["tile_memory_max_bytes"] / KIBIBYTE
            said, colour = f"does not fit:\n{need:,.0f} KiB a tile", OVER_COLOUR
        axes.text(x, y - 0.13, said, ha="center", va="center", fontsize=8, color=colour)
        axes.text(x, y + 0.27, neurons, ha="center", va="center", fontsize=6.8, color=colour)
    shaded = colours.LinearSegmentedColormap.from_list("rate", SEQUENCE[1:])
    shaded = shaded.with_extremes(bad="#fbf1ef")
    axes.imshow(np.ma.masked_invalid(rate), cmap=shaded, aspect="auto")
    axes.set_xticks(range(len(IPUS)), [str(ipus) for ipus in IPUS])
    axes.set_yticks(range(len(NEURONS_PER_TILE)), [str(count) for count in NEURONS_PER_TILE])
    axes.set_ylabel("neurons a tile", fontsize=8.5, color=QUIET)
    title = "Many neurons: samples per second (2 hidden layers, 0.5 % active, T = 10, SGD)"
    _frame(axes, title, "IPUs (Mk2)")


def implied_a100(rows: Sequence[Dict[str, Any]]) -> List[float]:
    """Samples a second of an A100 with which the published 5 to 10 times would hold against the prediction.

    For N-MNIST with two hidden layers at :data:`SHOWN_ACTIVITY`; lowest first.
    """
    row = next(
        row for row in rows if (row["network"], row["hidden_layers"], row["activity"]) == ("N-MNIST", 2, SHOWN_ACTIVITY)
    )
    return [row["samples_per_s"] / 10, row["samples_per_s"] / 5]


def _foot(rows: Sequence[Dict[str, Any]]) -> List[str]:
    low, high = implied_a100(rows)
    ceiling = next(row["a100_ceiling"] for row in rows if (row["network"], row["hidden_layers"]) == ("N-MNIST", 2))
    rates = {kind: f"{flops / 1e12:g} TFLOP/s" for kind, flops in A100_FLOPS.items()}
    claims = (
        f"{CLAIMS[0].upper()}{CLAIMS[1:]}. The model has no GPU in it: 5 to 10 times, for N-MNIST with 2 hidden layers "
        f"at {100 * SHOWN_ACTIVITY:g} % active, would mean an A100 that trains {low:,.0f} to {high:,.0f} samples a "
        f"second, {100 * low / ceiling['FP32']:.0f} to {100 * high / ceiling['FP32']:.0f} % of what its FP32 peak "
        f"({rates['FP32']}) allows for dense products; at TF32 peak ({rates['TF32']}) these alone would allow "
        f"{ceiling['TF32']:,.0f}."
    )
    assumed = (
        "Assumed: vertices take the instructions counted in their source (a gathered row 5, and 3 for two weights; six "
        "workers in turn); 4 bytes per cycle and tile exchanged, 320 GB/s between IPUs; a synchronisation 150 cycles "
        "on one IPU, 600 on several; all slots are sent and carry gradient; no host input or output. Slots: input 32 "
        "(N-MNIST) and 48 (SHD), all used; of a hidden layer 2 floor(activity n / 2). T = 100 and Adam, but for the "
        "many-neuron runs; their two fully connected layers are our choice. Copies sum their gradients around a ring, "
        "at the links' rate."
    )
    return [*textwrap.wrap(claims, FOOT_WIDTH), *textwrap.wrap(assumed, FOOT_WIDTH)]


def draw_published(results: Dict[str, Any], path: Path) -> None:
    """Write the chart of :func:`results` to ``path``.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    page = figure(figsize=(13, 13.6))
    page.text(
        0.02,
        0.98,
        "The networks of the published sparse benchmark on IPUs, training, as snnipu's performance model predicts",
        fontsize=13,
        fontweight="bold",
        color=TEXT,
        va="center",
    )
    page.text(0.02, 0.962, "Nothing here is measured. Batch 48, float32.", fontsize=9, color=QUIET, va="center")
    rows = results["depth"]
    _throughput(page.add_axes((0.06, 0.7, 0.39, 0.235)), rows, "N-MNIST")
    _throughput(page.add_axes((0.55, 0.7, 0.39, 0.235)), rows, "SHD")
    _bounds(page.add_axes((0.09, 0.425, 0.36, 0.215)), rows)
    _shares(page.add_axes((0.62, 0.425, 0.35, 0.215)), rows)
    _scaling(page.add_axes((0.06, 0.105, 0.39, 0.22)), results["scaling"])
    _many(page.add_axes((0.55, 0.105, 0.42, 0.22)), results["many_neurons"])
    page.text(0.02, 0.012, "\n".join(_foot(rows)), fontsize=7.3, color=QUIET, va="bottom", linespacing=1.5)
    page.savefig(path)


def main() -> None:
    found = results()
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    (ROOT / "benchmarks" / "results" / "ipu-model.json").write_text(text, encoding="utf-8")
    draw_published(found, ROOT / "docs" / "how-to" / "ipu-published.png")


if __name__ == "__main__":
    main()
