"""Pictures of tiles, drawn by matplotlib, and their colours."""

import math
from pathlib import Path
from typing import Any, Sequence, Tuple

import numpy as np

from snnipu._extras import require
from snnipu.planning.targets import KIBIBYTE, Target

FORMATS = (".png", ".svg", ".pdf")
TEXT, QUIET = "#22303c", "#5f6f7d"
ROLE_COLOURS = ("#4878a8", "#c2703d", "#5b9a68", "#8a6fb0", "#b0555f", "#7c8a3a", "#3f9aa0", "#a0784f")
SEQUENCE = ("#eef3f8", "#d3e0ee", "#b0cbe2", "#86b0d3", "#5a92c1", "#3674a9", "#1f5587", "#0f3a63")
OVER_COLOUR, IDLE_COLOUR = "#c0392b", "#f4f4f2"
SHARE_COLOURS = {"compute": "#3674a9", "exchange": "#d08a3e", "sync": "#9aa5ae"}


def figure(**more: Any) -> Any:
    return require("matplotlib.figure", "plot", "a picture").Figure(facecolor="white", dpi=150, **more)


def grid(tiles: int) -> Tuple[int, int]:
    """Return the columns and rows of the map of an IPU's tiles."""
    columns = 46 if tiles % 46 == 0 else 38 if tiles % 38 == 0 else math.ceil(math.sqrt(tiles * 1.4))
    return columns, math.ceil(tiles / columns)


def lighter(colour: str) -> str:
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{(part + 2 * 255) // 3:02x}" for part in parts)


def _squares(ipus: int, target: Target, values: np.ndarray, fill: float) -> np.ndarray:
    """Return ``values`` of all tiles as one picture, with up to four IPUs in a row and ``fill`` between them."""
    columns, rows = grid(target.tiles_per_ipu)
    across = min(ipus, 2 if ipus <= 4 else 4)
    down = -(-ipus // across)
    picture = np.full((down * (rows + 1) - 1, across * (columns + 1) - 1), fill)
    for ipu in range(ipus):
        ipu_map = np.full(rows * columns, fill)
        ipu_values = values[ipu * target.tiles_per_ipu : (ipu + 1) * target.tiles_per_ipu]
        ipu_map[: len(ipu_values)] = ipu_values
        top, left = (ipu // across) * (rows + 1), (ipu % across) * (columns + 1)
        picture[top : top + rows, left : left + columns] = ipu_map.reshape(rows, columns)
    return picture


def _mesh(axes: Any, ipus: int, picture: np.ndarray, colours: Any, low: float, high: float) -> Any:
    """Draw tiles as squares with white borders, tile 0 in the upper left corner."""
    width = 0.6 if ipus <= 2 else 0.3 if ipus <= 4 else 0.1
    image = axes.pcolormesh(
        np.ma.masked_invalid(picture), cmap=colours, vmin=low, vmax=high, edgecolors="white", linewidth=width
    )
    axes.invert_yaxis()
    return image


def draw_tiles(
    path: Path, sizes: str, target: Target, ipus: int, layers: Sequence[int], roles: np.ndarray, memory: np.ndarray
) -> None:
    """Write a picture with the role and memory of each tile.

    Args:
        path: the file; its suffix is one of :data:`FORMATS`.
        sizes: the network's sizes, for the title.
        target, ipus: the machine.
        layers: the layers' numbers.
        roles: ``[tiles]``: 0 no work, ``l`` neurons of layer l, ``-l`` only the selection of its spikes.
        memory: ``[tiles]``, in bytes.

    Raises:
        MissingExtra: matplotlib is not installed.
        ValueError: ``path`` has another suffix.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"path must end in {', '.join(FORMATS)}, got {path.name!r}")
    colours = require("matplotlib.colors", "plot", "a picture")
    patches = require("matplotlib.patches", "plot", "a picture")
    picture = figure(figsize=(12, 5.2))
    title = f"{sizes} on {ipus} × {target.name}, as planned (predicted figures)"
    picture.text(0.02, 0.955, title, fontsize=13, fontweight="bold", color=TEXT, va="center")
    left, right = picture.add_axes((0.02, 0.13, 0.455, 0.74)), picture.add_axes((0.49, 0.13, 0.455, 0.74))
    shades, handles = ["white", IDLE_COLOUR], [patches.Patch(color=IDLE_COLOUR, label="no work")]
    classes = np.ones(len(roles))
    for layer in layers:
        colour = ROLE_COLOURS[(layer - 1) % len(ROLE_COLOURS)]
        for role, shade, name in ((layer, colour, "neurons"), (-layer, lighter(colour), "selection")):
            classes[roles == role] = len(shades)
            shades.append(shade)
            handles.append(patches.Patch(color=shade, label=f"layer {layer}: {name}"))
    _mesh(left, ipus, _squares(ipus, target, classes, 0), colours.ListedColormap(shades), -0.5, len(shades) - 0.5)
    left.set_title("role of each tile", fontsize=10, color=TEXT, loc="left")
    left.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.02), ncol=4, fontsize=7, frameon=False)
    limit = target.bytes_per_tile / KIBIBYTE
    shown = np.where(roles == 0, np.nan, memory / KIBIBYTE)
    shaded = colours.LinearSegmentedColormap.from_list("memory", SEQUENCE)
    shaded = shaded.with_extremes(over=OVER_COLOUR, bad="white")
    image = _mesh(right, ipus, _squares(ipus, target, shown, np.nan), shaded, 0, limit)
    over = int((memory > target.bytes_per_tile).sum())
    note = f"; {over} tiles over it in red" if over else ""
    right.set_title(f"memory of a tile, KiB of {limit:.0f}{note}", fontsize=10, color=TEXT, loc="left")
    bar = picture.colorbar(image, cax=picture.add_axes((0.955, 0.13, 0.008, 0.74)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, colors=QUIET, pad=1)
    for axes in (left, right):
        axes.set_xticks([])
        axes.set_yticks([])
        for side in axes.spines.values():
            side.set_visible(False)
    picture.savefig(path)
