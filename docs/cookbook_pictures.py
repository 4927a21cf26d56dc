"""The pictures of the cookbook: each page's code runs, and its results are drawn.

``python docs/cookbook_pictures.py`` draws all of them, ``--only NAME`` one.
"""

import argparse
import contextlib
import io
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import torch
from PIL import Image

from snnipu import plotting
from snnipu.plotting import BLUE, GREEN, INK, MUTED, RED

FOLDER = Path(__file__).resolve().parent / "cookbook"
Values = Dict[str, Any]


def blocks(name: str, language: str) -> List[str]:
    """Return the code blocks of a page, without those after the comment ``<!-- not run: ... -->``."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    text = re.sub(r"<!-- not run: [^\n]+ -->\n```.*?\n```", "", text, flags=re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(name: str) -> Tuple[Values, str]:
    """Run the Python blocks of a page in the current folder; return their variables and what they print."""
    values: Values = {"__name__": "cookbook"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for number, code in enumerate(blocks(name, "python"), start=1):
            exec(compile(code, f"docs/cookbook/{name}.md, block {number}", "exec"), values)
    return values, printed.getvalue()


def plain(*axes: Any) -> None:
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)


def lengths(page: Values) -> Any:
    figure = plotting.new_figure(9, 4)
    axes = figure.subplots(2, 3, sharex=True, sharey="row", gridspec_kw={"height_ratios": [2, 1]})
    x, spk, steps = page["x"], page["spk"].detach(), page["lengths"]
    for column, sample in enumerate((0, 29, 59)):
        for axis, spikes, color in ((axes[0, column], x, INK), (axes[1, column], spk, BLUE)):
            plotting.draw_spikes(axis, spikes[:, sample], color, 5)
            axis.axvspan(int(steps[sample]) - 0.5, len(x) - 0.5, color=MUTED, alpha=0.3, linewidth=0)
        axes[0, column].set_title(f"{int(steps[sample])} steps, class {int(page['labels'][sample])}")
        axes[1, column].set(xlabel="time step", xlim=(-0.5, len(x) - 0.5), ylim=(-0.5, 3.5), yticks=range(4))
    axes[0, 0].set(ylabel="input")
    axes[1, 0].set(ylabel="output (class)")
    axes[0, 0].text(29, 9.5, "padding", ha="center", va="center", color=INK)
    return figure


def quantisation(page: Values) -> Any:
    figure = plotting.new_figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    bits = list(page["results"])
    for index, (label, color) in enumerate((("rounded after training", MUTED), ("trained on, rounded", BLUE))):
        heights = [100 * page["results"][number][index] for number in bits]
        places = [place + 0.38 * (index - 0.5) for place in range(len(bits))]
        bars = left.bar(places, heights, width=0.36, color=color, label=label)
        left.bar_label(bars, fmt="%.0f", fontsize=8)
    left.set(xlabel="bits of a weight", ylabel="test accuracy (%)", ylim=(0, 130), yticks=range(0, 101, 20))
    left.set_xticks(range(len(bits)), [str(number) for number in bits])
    left.legend(frameon=False, loc="upper right", ncols=2, fontsize=8)
    weight = page["net"][0].weight.detach()[0]
    rounded = page["Quantised"](4)(weight.unsqueeze(0))[0]
    right.plot(weight, rounded, ".", color=BLUE, label="4 bits")
    low, high = float(weight.min()), float(weight.max())
    right.plot([low, high], [low, high], color=MUTED, linewidth=1, label="not rounded")
    right.set(xlabel="weight", ylabel="rounded weight", title="weights of one hidden neuron")
    right.legend(frameon=False)
    plain(left, right)
    return figure


def energy(page: Values) -> Any:
    figure = plotting.new_figure(9, 3.2)
    rows, joules = page["rows"], page["PICOJOULES"]
    names = [f"layer {name}" for name, *_ in rows]
    panels = figure.subplots(1, 2)
    units = (
        ("operations for a sample", (1, 1)),
        ("picojoules for a sample", (joules["multiply-add"], joules["addition"])),
    )
    for axis, (unit, factors) in zip(panels, units):
        for index, (label, color) in enumerate((("dense, multiply-adds", MUTED), ("spikes, additions", BLUE))):
            values = [row[1 + index] * factors[index] for row in rows]
            places = [place + 0.38 * (index - 0.5) for place in range(len(rows))]
            bars = axis.bar(places, values, width=0.36, color=color, label=label)
            axis.bar_label(bars, [f"{value:,.0f}" for value in values], fontsize=8)
        axis.set(ylabel=unit, yscale="log", ylim=(1e3, 1e8))
        axis.set_xticks(range(len(rows)), names)
    panels[0].legend(frameon=False, ncols=2, fontsize=8)
    plain(*panels)
    return figure


def hidden_activity(page: Values) -> Any:
    figure = plotting.new_figure(8, 3.4)
    axis = figure.subplots()
    for (strength, (history, _)), color in zip(page["results"].items(), (MUTED, BLUE)):
        for layer, style in enumerate(("-", "--")):
            values = [100 * rates[layer] for rates in history]
            label = f"strength {strength}, hidden layer {layer + 1}"
            axis.plot(range(1, len(values) + 1), values, style, color=color, label=label)
    axis.set(xlabel="training step", ylabel="activity (% of the neurons a step)", ylim=(0, None))
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    plain(axis)
    return figure


def save(page: Values) -> Any:
    figure = plotting.new_figure(7.5, 2.4)
    axis = figure.subplots()
    axis.set(xlim=(0.4, 9), ylim=(0, 2.6))
    axis.axis("off")

    def box(x: float, y: float, words: str, color: str) -> None:
        style = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": color, "linewidth": 1.4}
        axis.text(x, y, words, ha="center", va="center", bbox=style, color=INK, fontsize=10)

    def arrow(start: Tuple[float, float], end: Tuple[float, float], words: str, style: str) -> None:
        axis.annotate("", end, start, arrowprops={"arrowstyle": style, "color": INK})
        middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.13
        axis.text(*middle, words, ha="center", va="bottom", fontsize=8.5, family="monospace", color=INK)

    box(4.5, 1.3, "MultiStep", BLUE)
    box(1.0, 1.3, "net.pt,\nrun.pt", MUTED)
    box(8.0, 2.1, "snnTorch's network", GREEN)
    box(8.0, 0.5, "other simulators,\nchips", RED)
    arrow((3.85, 1.3), (1.5, 1.3), "state_dict", "<->")
    arrow((5.2, 1.45), (6.95, 2.05), "", "<->")
    arrow((5.2, 1.15), (7.0, 0.55), "", "<->")
    axis.text(5.6, 2.0, "state_dict, to_snntorch", ha="center", va="bottom", fontsize=8.5, family="monospace")
    axis.text(5.6, 0.6, "NIR: net.nir", ha="center", va="top", fontsize=8.5, family="monospace")
    return figure


def time_series(page: Values) -> Any:
    figure = plotting.new_figure(9, 3)
    axis = figure.subplots()
    ahead, warm_up = page["AHEAD"], page["WARM_UP"]
    for start in range(0, page["forecast"].shape[1], 8):  # windows start 10 steps apart and overlap
        first = 800 + 10 * start + ahead + warm_up
        steps = range(first, first + 80)
        label = "forecast, 10 steps ahead" if start == 0 else None
        axis.plot(steps, page["forecast"][warm_up:, start, 0], color=RED, label=label)
    axis.plot(range(830, 1190), page["series"][830:1190], color=INK, linewidth=0.8, label="series")
    axis.set(xlabel="time step", ylim=(-2.1, 2.1), xlim=(825, 1195))
    axis.legend(frameon=False, loc="upper right", ncols=2)
    plain(axis)
    return figure


def audio(page: Values) -> Any:
    import numpy as np

    figure = plotting.new_figure(8, 3.8)
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    for column, (i, title) in enumerate(((0, "a rising tone"), (1, "a falling tone"))):
        low, high = np.random.default_rng(i).uniform([200, 1500], [600, 3000])
        hertz = np.geomspace(low, high, 4000)[:: 1 if i % 2 == 0 else -1]
        currents = page["cochlea"].currents(np.sin(2 * np.pi * np.cumsum(hertz) / 8000))
        axes[0, column].imshow(currents.T, origin="lower", aspect="auto", cmap="Greys")
        times, channels = page["tone"](i)
        axes[1, column].plot(times / 1000, channels, "|", color=BLUE, markersize=3)
        axes[0, column].set_title(title)
        axes[1, column].set(xlabel="time (ms)")
    axes[0, 0].set(ylabel="cochleagram\nchannel")
    axes[1, 0].set(ylabel="spikes\nchannel")
    plain(*axes.flat)
    return figure


def reinforcement(page: Values) -> Any:
    figure = plotting.new_figure(9, 3.4)
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.4, 1]})
    history = page["history"]
    left.plot(range(1, len(history) + 1), [100 * share for share in history], color=BLUE)
    left.set(xlabel="episode of 64 games", ylabel="balls caught (%)", ylim=(0, 105))
    torch.manual_seed(3)
    environment, fields, done = page["Catch"](), None, False
    fields = environment.reset()
    game = int((environment.ball - environment.paddle).abs().argmax())
    path = [(int(environment.ball[game]), int(environment.paddle[game]))]
    while not done:
        with torch.no_grad():
            _, mem = page["agent"](fields, num_steps=5)
        fields, done, _ = environment.step(mem.mean(0).argmax(1))
        path.append((int(environment.ball[game]), int(environment.paddle[game])))
    right.plot([ball for ball, _ in path], range(len(path)), "o--", color=RED, label="ball", markersize=9)
    right.plot([paddle for _, paddle in path], range(len(path)), "s-", color=BLUE, label="paddle", alpha=0.7)
    right.set(xlabel="column", ylabel="move", xlim=(-0.5, 4.5), xticks=range(5), title="one game after training")
    right.invert_yaxis()
    right.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    plain(left, right)
    return figure


def stdp(page: Values) -> Any:
    figure = plotting.new_figure(9, 3.2)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, weight, title in zip(axes, (page["before"], page["weight"]), ("before", "after STDP")):
        image = axis.imshow(weight, aspect="auto", cmap="Blues", vmin=0, vmax=0.5, interpolation="nearest")
        axis.set(xlabel="input", title=title)
    axes[0].set(ylabel="neuron", yticks=range(len(page["weight"])))
    figure.colorbar(image, ax=axes, label="weight")
    return figure


def membranes(page: Values) -> Any:
    return page["figure"]


def several_networks(page: Values) -> Any:
    figure = plotting.new_figure(8, 3.2)
    axis = figure.subplots()
    pairs = zip(page["one_by_one"], page["side_by_side"], (BLUE, RED))
    for number, (points, line, color) in enumerate(pairs, start=1):
        steps = range(1, len(line) + 1)
        axis.plot(steps, line, color=color, label=f"network {number}, in a thread")
        axis.plot(steps, points, ".", color=color, label=f"network {number}, one after the other")
    axis.set(xlabel="training step", ylabel="loss", ylim=(0, None))
    axis.legend(frameon=False)
    plain(axis)
    return figure


def write(figure: Any, path: Path) -> None:
    """Write a figure with 64 colours, a third of the bytes of all colours."""
    pixels = io.BytesIO()
    figure.savefig(pixels, dpi=100)
    Image.open(pixels).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


PICTURES: Dict[str, Callable[[Values], Any]] = {
    "lengths": lengths,
    "quantisation": quantisation,
    "energy": energy,
    "hidden-activity": hidden_activity,
    "save": save,
    "time-series": time_series,
    "audio": audio,
    "reinforcement": reinforcement,
    "stdp": stdp,
    "membranes": membranes,
    "several-networks": several_networks,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PICTURES, metavar="NAME", help=f"one of {', '.join(PICTURES)}")
    only = parser.parse_args().only
    for name in [only] if only else PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            before = os.getcwd()
            os.chdir(folder)
            try:
                page, printed = run(name)
            finally:
                os.chdir(before)
        print(printed, end="")
        write(PICTURES[name](page), FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
