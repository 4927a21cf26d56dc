"""The logo: the membrane of a leaky neuron with a constant input current. ``python docs/logo.py`` draws it again.

A test compares the file with this script.
"""

from pathlib import Path
from typing import List, Tuple

LOGO = Path(__file__).resolve().parent / "logo.svg"
BLUE, LIGHT, PAPER = "#1f5fa8", "#a9cdf5", "#ffffff"
LEFT, RIGHT, REST, THRESHOLD, PEAK = 8, 56, 52, 30, 10  # places in a square of 64


def membrane(steps: int = 34, beta: float = 0.9, current: float = 0.135) -> List[Tuple[float, float]]:
    """Return the points of the curve: the membrane rises to the threshold, spikes, and is reset."""
    points, mem = [(float(LEFT), float(REST))], 0.0
    for step in range(1, steps + 1):
        x = LEFT + (RIGHT - LEFT) * step / steps
        mem = beta * mem + current
        if mem < 1:
            points.append((x, REST - (REST - THRESHOLD) * mem))
        else:
            points += [(x, THRESHOLD), (x, PEAK), (x, REST)]
            mem = 0.0
    return points


def drawing() -> str:
    curve = " ".join(f"{x:g},{y:.1f}" for x, y in membrane())
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64" width="64" height="64" role="img">',
        "<title>snnipu</title>",
        f'<rect width="64" height="64" rx="12" fill="{BLUE}"/>',
        f'<path d="M{LEFT} {THRESHOLD}H{RIGHT}" stroke="{LIGHT}" stroke-width="2" stroke-dasharray="4 3"/>',
        f'<polyline points="{curve}" fill="none" stroke="{PAPER}" stroke-width="4" stroke-linejoin="round" '
        'stroke-linecap="round"/>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    LOGO.write_text(drawing(), encoding="utf-8")
