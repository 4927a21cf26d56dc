"""The two pictures of the page "Start here", as SVG files. ``python docs/start_here.py`` draws them again.

A test compares the files with this script, and the figures below with README's benchmark section.
"""

from html import escape
from pathlib import Path
from typing import Dict, List, Tuple

DOCS = Path(__file__).resolve().parent
INK, QUIET, LINE, BLUE, PAPER = "#1d2733", "#5b6776", "#9aa7b5", "#1f5fa8", "#ffffff"

# The gain of each way over snnTorch's loop, as README quotes it: these texts are in its benchmark section.
COMPILED = ("5.9", "3.7")
MULTISTEP = "8.1"
SPARSE = ("21", "6.2")
LIMIT = "30"

# A question, the lines of code that are its answer, and the gain; the last way has no question.
WAYS: List[Tuple[List[str], List[str], str]] = [
    (
        ["Shall an snnTorch script", "run unchanged?"],
        ["python -m snnipu run --compile script.py"],
        "as fast as snn.auto(), below",
    ),
    (
        ["Shall your code keep", "its loop over time?"],
        ["import snnipu as snn", "snn.auto()"],
        f"{COMPILED[1]} to {COMPILED[0]} × as fast (22 programs)",
    ),
    (
        [f"Do more than {LIMIT} % of the", "neurons spike in a step, or", "do you not know yet?"],
        ["net = snn.MultiStep(nn.Linear(784, 1000),", "    snn.Leaky(beta=0.9), ...)"],
        f"{MULTISTEP} × as fast (the network 784-1000-10)",
    ),
    (
        [],
        ["net = snn.SparseNetwork([784, 1000, 10],", "    beta=0.9)"],
        f"{SPARSE[1]} × as fast at 10 % activity, {SPARSE[0]} × at 2 %",
    ),
]


def text(x: float, y: float, words: str, size: int = 15, fill: str = INK, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}"{more}>{escape(words)}</text>'


def code(x: float, y: float, words: str, size: int = 13, fill: str = INK) -> str:
    return text(
        x, y, words, size, fill, ' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" xml:space="preserve"'
    )


def box(x: float, y: float, width: float, height: float, fill: str, line: str = LINE) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{line}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{QUIET}" stroke-width="1.5" marker-end="url(#head)"/>'


def picture(width: int, height: int, title: str, parts: List[str]) -> str:
    marker = '<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
        f"<title>{escape(title)}</title>",
        f'<defs>{marker}<path d="M0 0L8 4L0 8z" fill="{QUIET}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def ways() -> str:
    """Return the picture of the ways to run a network fast, as questions with their answers."""
    width, left, right, row, top = 680, 16, 296, 108, 100
    parts = [
        box(left, 16, width - 2 * left, 52, "#eef2f6"),
        text(left + 14, 47, "Install, in a clone:"),
        code(right + 14, 47, 'pip install ".[data]"'),
        arrow(left + 115, 68, left + 115, top),
    ]
    for place, (question, answer, gain) in enumerate(WAYS):
        y, tall = top + place * row, 80
        if question:
            first = y + tall / 2 + 5 - 10 * (len(question) - 1)
            parts.append(box(left, y, 230, tall, "#fff8e6", "#d9b44a"))
            parts += [text(left + 12, first + 20 * line, words) for line, words in enumerate(question)]
            parts += [
                arrow(left + 230, y + tall / 2, right, y + tall / 2),
                text(left + 237, y + tall / 2 - 7, "yes", 13, QUIET),
            ]
            if place + 1 < len(WAYS) - 1:
                parts.append(arrow(left + 115, y + tall, left + 115, y + row))
            else:
                across = y + row + tall / 2
                parts.append(f'<path d="M{left + 115} {y + tall}V{across:g}" stroke="{QUIET}" stroke-width="1.5"/>')
                parts.append(arrow(left + 115, across, right, across))
            parts.append(text(left + 123, y + tall + 18, "no", 13, QUIET))
        parts.append(box(right, y, width - left - right, tall, "#eaf2fb", BLUE))
        first = y + (26 if len(answer) == 2 else 34)
        parts += [code(right + 14, first + 18 * line, words) for line, words in enumerate(answer)]
        parts.append(text(right + 14, y + 68, gain, 14, BLUE, ' font-weight="bold"'))
    bottom = top + len(WAYS) * row
    parts.append(text(left, bottom + 2, "× as fast: a training step beside the loop of snnTorch, on CPUs.", 13, QUIET))
    return picture(width, bottom + 18, "Which way to run a spiking network fast", parts)


def shapes() -> str:
    """Return the picture of a tensor ``[T, B, N]`` as sheets, one for each step, and of its parts."""
    steps, samples, neurons, cell = 4, 3, 6, 26
    width, height, left, top, shift = 680, 300, 60, 50, 30
    wide, tall = neurons * cell + 8, samples * cell + 8
    parts = []
    for step in reversed(range(steps)):
        x, y = left + shift * step, top + shift * (steps - 1 - step)
        parts.append(box(x, y, wide, tall, "#eaf2fb" if step == 0 else PAPER, BLUE))
        for sample in range(samples):
            for neuron in range(neurons):
                spikes = (7 * step + 5 * sample + 3 * neuron + step * neuron) % 4 == 0
                fill = BLUE if spikes else "#d3dbe4"
                at = (x + 4 + cell * (neuron + 0.5), y + 4 + cell * (sample + 0.5))
                parts.append(f'<circle cx="{at[0]:g}" cy="{at[1]:g}" r="6" fill="{fill}"/>')
    front = top + shift * (steps - 1)
    parts += [
        text(left, front + tall + 24, "N neurons"),
        arrow(left + 82, front + tall + 19, left + wide, front + tall + 19),
        text(left - 14, front + 4, "B samples", more=f' transform="rotate(90 {left - 14} {front + 4})"'),
        text(left - 44, front - 50, "T steps"),
        arrow(left - 8, front - 14, left - 8 + shift * 2.4, front - 14 - shift * 2.4),
    ]
    rows = [
        ("x", "[T, B, N]", "all steps"),
        ("x[0]", "[B, N]", "the first step"),
        ("x[:, 0]", "[T, N]", "the first sample"),
        ("x[..., 0]", "[T, B]", "the first neuron"),
        ("frames", "[T, B, C, H, W]", "time first, too"),
    ]
    for place, (name, shape, meaning) in enumerate(rows):
        y = 78 + 34 * place
        parts += [code(352, y, name), code(436, y, shape), text(564, y, meaning, 13, QUIET)]
    parts += [
        text(352, 262, "Data [B, T, N]:", 13),
        code(462, 262, "x.transpose(0, 1)"),
        text(352, 284, "A still image [B, N]:", 13),
        code(502, 284, "net(x, num_steps=T)"),
    ]
    return picture(width, height, "A tensor of spikes: time, samples, neurons", parts)


def pictures() -> Dict[str, str]:
    """Return the text of each file by its name in ``docs``."""
    return {"start-here.svg": ways(), "time-batch-neurons.svg": shapes()}


if __name__ == "__main__":
    for name, drawing in pictures().items():
        (DOCS / name).write_text(drawing, encoding="utf-8")
