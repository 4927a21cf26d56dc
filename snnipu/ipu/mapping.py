"""Which tile holds what: a plan of an event-driven network on one or more IPUs, and what does not fit.

Neurons of all layers are spread over the tiles by work, that is neurons times the cycles that their expected input
spikes take, in pairs (two floats make a vector), at least two neurons a tile. The vertices that select spikes have
tiles of their own, beside their layer's. Layers follow one another over the tiles, and so over the IPUs.
"""

import json
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from snnipu.ipu import cycles
from snnipu.ipu.network import ID_BYTES, NetworkSpec
from snnipu.ipu.targets import KIBIBYTE, TARGETS, Target, target_named

# What a program takes on every tile it runs on: vertices, control and exchange code. An assumption.
CODE_BYTES = {"neurons": 20 * KIBIBYTE, "selection": 12 * KIBIBYTE}
INFERENCE_CODE_SHARE = 0.5
COUNTS_BYTES = 8
FLOAT = 4
MAX_IPUS = 64
CATEGORIES = ("weights", "weight gradients", "optimiser state", "neuron state", "history", "exchange buffers", "code")


@dataclass(frozen=True)
class LayerPlan:
    """Where one layer is. Tiles are numbered over all IPUs.

    Attributes:
        layer: 1 for the first layer behind the input.
        first_tile: of its neurons.
        neurons: of each of its tiles, in turn; neurons are numbered in this order.
        first_selection_tile: of its selection vertices.
        rows: samples of each of its selection tiles, in turn.
    """

    layer: int
    first_tile: int
    neurons: Tuple[int, ...]
    first_selection_tile: int
    rows: Tuple[int, ...]

    @property
    def tiles(self) -> int:
        return len(self.neurons)

    @property
    def selection_tiles(self) -> int:
        return len(self.rows)

    @property
    def lanes(self) -> int:
        """Neurons of the fullest tile, rounded up to pairs."""
        return lanes(self.neurons[0])

    @property
    def words(self) -> int:
        """32-bit words of fired bits that a sample has on all tiles of the layer."""
        return sum((count + 31) // 32 for count in self.neurons)

    @property
    def merged_words(self) -> int:
        """Words of bits that the tile has to put together which merges most: those of neighbouring tiles, up to where
        their neurons fill words of 32. 0 where each tile's fill them by themselves."""
        most, pieces, neurons, tiles = 0, 0, 0, 0
        for index, count in enumerate(self.neurons):
            pieces, neurons, tiles = pieces + (count + 31) // 32, neurons + count, tiles + 1
            if neurons % 32 == 0 or index + 1 == len(self.neurons):
                most = max(most, pieces if tiles > 1 else 0)
                pieces, neurons, tiles = 0, 0, 0
        return most

    def ipus(self, target: Target) -> range:
        """The IPUs that its neurons are on."""
        last = self.first_tile + self.tiles - 1
        return range(self.first_tile // target.tiles_per_ipu, last // target.tiles_per_ipu + 1)

    def selection_ipus(self, target: Target) -> range:
        last = self.first_selection_tile + self.selection_tiles - 1
        return range(self.first_selection_tile // target.tiles_per_ipu, last // target.tiles_per_ipu + 1)


def lanes(neurons: int) -> int:
    """Neurons rounded up to pairs."""
    return 2 * cycles.vectors(neurons)


@dataclass(frozen=True, repr=False)
class Plan:
    """A network on tiles.

    Attributes:
        network, target, ipus: what was planned for what.
        layers: where each layer is; empty where there are too few tiles.
        problems: why it does not fit: empty where it does.
        notes: what else is worth knowing.
        memory: bytes of each tile by category, ``[categories][tiles]``.
    """

    network: NetworkSpec
    target: Target
    ipus: int
    layers: Tuple[LayerPlan, ...]
    problems: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()
    memory: Dict[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def tiles(self) -> int:
        """Tiles of all IPUs."""
        return self.ipus * self.target.tiles_per_ipu

    @property
    def tiles_used(self) -> int:
        return sum(layer.tiles + layer.selection_tiles for layer in self.layers)

    @property
    def ipus_used(self) -> int:
        return -(-self.tiles_used // self.target.tiles_per_ipu)

    @property
    def tile_memory(self) -> np.ndarray:
        """Bytes of each tile."""
        return np.sum(list(self.memory.values()), axis=0) if self.memory else np.zeros(self.tiles)

    @property
    def tile_memory_max_bytes(self) -> int:
        return int(self.tile_memory.max())

    def roles(self) -> np.ndarray:
        """What each tile does, ``[tiles]``: 0 nothing, ``l`` neurons of layer l, ``-l`` its selection."""
        roles = np.zeros(self.tiles, dtype=np.int32)
        for layer in self.layers:
            roles[layer.first_tile : layer.first_tile + layer.tiles] = layer.layer
            roles[layer.first_selection_tile : layer.first_selection_tile + layer.selection_tiles] = -layer.layer
        return roles

    def tile_of(self, layer: int, neuron: int) -> int:
        """The tile that holds a neuron of a layer, both counted as in :class:`LayerPlan`. Raises IndexError."""
        placed = self.layers[layer - 1]
        if layer < 1 or not 0 <= neuron < sum(placed.neurons):
            raise IndexError(f"layer {layer} has no neuron {neuron}")
        return placed.first_tile + int(np.searchsorted(np.cumsum(placed.neurons), neuron, side="right"))

    def describe(self) -> str:
        """The plan as text."""
        network, target = self.network, self.target
        lines = [
            f"{'-'.join(map(str, network.sizes))}, batch {network.batch_size}, {network.steps} steps, {network.dtype}, "
            f"{'training' if network.training else 'inference'}, on {self.ipus} x {target.name} "
            f"({self.tiles_used} of {self.tiles} tiles)"
        ]
        memory = self.tile_memory
        for layer in self.layers:
            fullest = int(memory[layer.first_tile : layer.first_tile + layer.tiles].max())
            lines.append(
                f"  layer {layer.layer}: {network.sizes[layer.layer]} neurons on tiles {layer.first_tile} to "
                f"{layer.first_tile + layer.tiles - 1}, up to {max(layer.neurons)} a tile; spikes selected on "
                f"{layer.selection_tiles} tile{'s' if layer.selection_tiles > 1 else ''}; fullest tile "
                f"{fullest / KIBIBYTE:.0f} KiB"
            )
        if self.layers:
            most, limit = self.tile_memory_max_bytes / KIBIBYTE, target.bytes_per_tile // KIBIBYTE
            lines.append(f"  fullest tile: {most:.0f} of {limit} KiB")
        lines += [f"  does not fit: {problem}" for problem in self.problems]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        sizes = "-".join(map(str, self.network.sizes))
        return f"<Plan of {sizes} on {self.ipus} x {self.target.name}, {'fits' if self.fits else 'does not fit'}>"

    def to_dict(self) -> Dict[str, Any]:
        """The plan without its memory, which :func:`from_dict` works out again."""
        return {
            "network": self.network.to_dict(),
            "target": self.target.to_dict(),
            "ipus": self.ipus,
            "fits": self.fits,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "layers": [
                {
                    "layer": layer.layer,
                    "first_tile": layer.first_tile,
                    "neurons": _runs(layer.neurons),
                    "first_selection_tile": layer.first_selection_tile,
                    "rows": _runs(layer.rows),
                }
                for layer in self.layers
            ],
        }

    def attribute(self) -> List[int]:
        """The plan as the PopART operator ``SparseNetwork`` takes it: for each layer its first tile, runs of neurons on
        a tile, its first selection tile, and runs of samples on a tile; runs are their number, then value and length.
        """
        numbers: List[int] = []
        for layer in self.layers:
            for first, counts in ((layer.first_tile, layer.neurons), (layer.first_selection_tile, layer.rows)):
                runs = _runs(counts)
                numbers += [first, len(runs), *(number for run in runs for number in run)]
        return numbers

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, document: Dict[str, Any]) -> "Plan":
        """The inverse of :meth:`to_dict`."""
        network: Dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in document["network"].items()
        }
        layers = tuple(
            LayerPlan(
                layer["layer"],
                layer["first_tile"],
                _unrolled(layer["neurons"]),
                layer["first_selection_tile"],
                _unrolled(layer["rows"]),
            )
            for layer in document["layers"]
        )
        found = cls(NetworkSpec(**network), Target(**document["target"]), document["ipus"], layers)
        return replace(
            found,
            problems=tuple(document["problems"]),
            notes=tuple(document["notes"]),
            memory=memory_of(found.network, found.target, found.ipus, layers) if layers else {},
        )

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        return cls.from_dict(json.loads(text))

    def draw(self, path: Path) -> None:
        """Write a map of the tiles, roles and memory, to ``path`` (.png, .svg or .pdf).

        Raises:
            MissingExtra: matplotlib is not installed.
        """
        from snnipu.ipu.charts import draw_plan

        draw_plan(self, path)


def _runs(values: Sequence[int]) -> List[List[int]]:
    """``[[value, how often in a row], ...]``"""
    runs: List[List[int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return runs


def _unrolled(runs: Sequence[Sequence[int]]) -> Tuple[int, ...]:
    return tuple(value for value, count in runs for _ in range(count))


# ---- memory


def layer_memory(network: NetworkSpec, entry: int, neurons: int) -> Dict[str, int]:
    """Bytes on a tile that holds ``neurons`` neurons of layer ``entry``, by category."""
    width, rows = lanes(neurons), network.batch_size
    inputs, slots_in, slots = network.sizes[entry - 1], network.slots[entry - 1], network.slots[entry]
    weights = inputs * width
    training = network.training
    received = rows * (slots_in * ID_BYTES + COUNTS_BYTES)
    sent = rows * 2 * FLOAT * ((width + 31) // 32)
    if training:
        # Backwards: its own ids with their gradients, the input's ids, and partial gradients of the input's slots.
        received += rows * (slots * (ID_BYTES + FLOAT) + COUNTS_BYTES)
        sent += rows * slots_in * FLOAT if entry > 1 else 0
    states = {"sgd": 0, "adam": 2}[network.optimizer] if training else 0
    # Summed in float32; those of float16 weights are handed on as float16.
    gradient_bytes = FLOAT + (network.weight_bytes if network.weight_bytes < FLOAT else 0)
    return {
        "weights": weights * network.weight_bytes,
        "weight gradients": weights * gradient_bytes if training else 0,
        "optimiser state": weights * FLOAT * states,
        # Membranes; backwards also the carried gradient and the step's; beta, bias and two thresholds.
        "neuron state": (rows * (3 if training else 1) + 4) * width * FLOAT,
        # Membranes of every step, from which surrogate and reset are told.
        "history": network.steps * rows * width * FLOAT if training else 0,
        "exchange buffers": received + sent,
        "code": code_bytes("neurons", training),
    }


def selection_memory(network: NetworkSpec, entry: int, rows: int, words: int) -> Dict[str, int]:
    """Bytes on a tile that selects the spikes of ``rows`` samples of layer ``entry``."""
    slot_bytes = ID_BYTES + FLOAT
    return {
        "neuron state": rows * (network.slots[entry] * slot_bytes + 2 * COUNTS_BYTES),
        "exchange buffers": rows * 2 * FLOAT * words,
        "code": code_bytes("selection", network.training),
    }


def code_bytes(kind: str, training: bool) -> int:
    return CODE_BYTES[kind] if training else int(CODE_BYTES[kind] * INFERENCE_CODE_SHARE)


def memory_of(network: NetworkSpec, target: Target, ipus: int, layers: Sequence[LayerPlan]) -> Dict[str, np.ndarray]:
    """Bytes of each tile by category, ``[tiles]`` each."""
    tiles = ipus * target.tiles_per_ipu
    memory = {name: np.zeros(tiles, dtype=np.int64) for name in CATEGORIES}

    def add(first: int, counts: Tuple[int, ...], parts_of: Callable[[int], Dict[str, int]]) -> None:
        held = np.asarray(counts)
        for count in set(counts):
            for name, size in parts_of(count).items():
                memory[name][first : first + len(held)][held == count] += size

    for placed in layers:
        entry, words = placed.layer, placed.words
        add(placed.first_tile, placed.neurons, partial(layer_memory, network, entry))
        selection = partial(selection_memory, network, entry, words=words)
        add(placed.first_selection_tile, placed.rows, selection)
    # Spread over all tiles that are used: the input of all steps, and backwards the ids of all steps.
    used = sum(placed.tiles + placed.selection_tiles for placed in layers)
    entries = range(network.layers + 1) if network.training else range(1)
    spread = sum(
        network.steps * network.batch_size * (network.slots[entry] * ID_BYTES + COUNTS_BYTES) for entry in entries
    )
    memory["history"][:used] += -(-spread // max(used, 1))
    if network.training:
        for placed in layers[1:]:
            # Partial gradients of the input's slots, of which each tile of the layer sums a share.
            share = slot_share(network.batch_size * network.slots[placed.layer - 1], placed.tiles)
            memory["exchange buffers"][placed.first_tile : placed.first_tile + placed.tiles] += (
                share * placed.tiles * FLOAT
            )
    return memory


def check_memory(plan: Plan) -> List[str]:
    """One line for each layer whose tiles are too full: tile, what is on it, and what helps."""
    limit = plan.target.bytes_per_tile
    total = plan.tile_memory
    problems = []
    for placed in plan.layers:
        for kind, first, count in (
            ("neurons", placed.first_tile, placed.tiles),
            ("selection", placed.first_selection_tile, placed.selection_tiles),
        ):
            part = total[first : first + count]
            over = int((part > limit).sum())
            if not over:
                continue
            tile = first + int(part.argmax())
            parts = sorted(((int(plan.memory[name][tile]), name) for name in CATEGORIES), reverse=True)
            spread = placed.lanes == 2 if kind == "neurons" else max(placed.rows) == 1
            listed = ", ".join(f"{name} {size / KIBIBYTE:.0f}" for size, name in parts[:3])
            problems.append(
                f"layer {placed.layer}, {kind}: {over} of {count} tiles are over {limit // KIBIBYTE} KiB; tile {tile} "
                f"needs {int(part.max()) / KIBIBYTE:.0f} KiB ({listed}). {_remedy(parts[0][1], spread)}"
            )
    return problems


def _remedy(largest: str, spread: bool) -> str:
    """What helps against a full tile; ``spread``: its layer has no more tiles to spread over."""
    remedies = {
        "history": "Fewer time steps or samples at once leave fewer membranes to keep",
        "weights": "float16 weights take half",
        "weight gradients": "A smaller layer before it leaves fewer weights to a neuron",
        "optimiser state": "The optimiser sgd keeps no state",
        "exchange buffers": "Fewer slots (max_spikes) or samples at once make smaller buffers",
        "neuron state": "Fewer samples at once leave fewer states",
    }
    remedy = remedies.get(largest, "Fewer layers leave less code")
    if spread:
        return f"{remedy}; more IPUs do not help, as it has as many tiles as it can use."
    return f"{remedy}; more IPUs leave less on a tile."


# ---- mapping


def slot_share(elements: int, tiles: int) -> int:
    """Slots that a tile sums where ``tiles`` share ``elements``, in pairs."""
    return 2 * -(-cycles.vectors(elements) // tiles)


def own_slots(network: NetworkSpec, entry: int, width: int) -> float:
    """Slots of a row of layer ``entry`` that belong to a tile of ``width`` lanes, on average."""
    return min(network.slots[entry] * width / network.sizes[entry], float(width))


def _tile_cycles(network: NetworkSpec, entry: int, width: int) -> float:
    """Cycles of a step, forwards and backwards, on a tile with ``width`` lanes of layer ``entry``."""
    rows, spikes, slots = network.batch_size, network.spikes[entry - 1], network.slots[entry]
    total = cycles.sparse_lif_forward(rows, width, spikes)
    if network.training:
        total += cycles.weight_gradient(rows, spikes, width)
        total += cycles.neuron_gradient(rows, width, slots, own_slots(network, entry, width))
        if entry > 1:
            total += cycles.value_gradient(rows, network.slots[entry - 1], width)
    return total


def _balanced(total: int, parts: int, unit: int) -> Tuple[int, ...]:
    """``total`` in ``parts`` as equal as they can be in whole units, larger ones first; the last takes what is left."""
    units = -(-total // unit)
    each, more = divmod(units, parts)
    counts = [unit * (each + (index < more)) for index in range(parts)]
    counts[-1] -= unit * units - total
    return tuple(counts)


def _place(network: NetworkSpec, available: int, selection: int, least: int) -> Optional[List[LayerPlan]]:
    """Layers one after another on ``available`` tiles, ``selection`` tiles each, ``least`` pairs a tile or more; None
    where there are too few tiles."""
    pairs = [cycles.vectors(size) for size in network.sizes[1:]]
    width = [min(least, count) for count in pairs]

    def tiles(index: int, pairs_per_tile: int) -> int:
        return -(-pairs[index] // pairs_per_tile)

    budget = available - selection * network.layers
    if budget < network.layers:
        return None
    while sum(tiles(index, each) for index, each in enumerate(width)) > budget:
        # Whose fuller tiles would be the least busy gives up tiles.
        def cost(index: int) -> float:
            return _tile_cycles(network, index + 1, 2 * (width[index] + 1))

        candidates = [index for index in range(network.layers) if tiles(index, width[index]) > 1]
        if not candidates:
            return None
        index = min(candidates, key=cost)
        width[index] += 1
        while tiles(index, width[index]) == tiles(index, width[index] - 1):
            width[index] += 1
    placed, tile = [], 0
    for index, size in enumerate(network.sizes[1:]):
        count = tiles(index, width[index])
        rows = tuple(part for part in _balanced(network.batch_size, min(selection, network.batch_size), 1) if part)
        placed.append(LayerPlan(index + 1, tile, _balanced(size, count, 2), tile + count, rows))
        tile += count + len(rows)
    return placed


SELECTION_TILES = (1, 2, 4, 8, 16, 24, 48, 96)
PAIRS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def plan(
    network: NetworkSpec,
    target: str = "mk2",
    ipus: int = 1,
    *,
    neurons_per_tile: Optional[int] = None,
    selection_tiles: Optional[int] = None,
) -> Plan:
    """Spread a network over tiles.

    The number of selection tiles of a layer and the least number of neurons of a tile are tried out; of what fits, the
    plan that the performance model finds fastest is taken. Within one choice, layers share the tiles so that the
    busiest tile is as little busy as possible.

    Args:
        network: what to map.
        target: ``mk1``, ``mk2`` or ``bow``.
        ipus: how many of them.
        neurons_per_tile: the least number on a tile, an even one; None: tried out.
        selection_tiles: of each layer; None: tried out.

    Returns:
        A plan; where nothing fits, the one whose fullest tile is the least full, with what is wrong in ``problems``.

    Raises:
        ValueError: a wrong argument; the message names it.
    """
    from snnipu.ipu.performance import estimate

    machine = target_named(target)
    if isinstance(ipus, bool) or not isinstance(ipus, int) or not 1 <= ipus <= MAX_IPUS:
        raise ValueError(f"ipus must be from 1 to {MAX_IPUS}, got {ipus!r}")
    if neurons_per_tile is not None and (neurons_per_tile < 2 or neurons_per_tile % 2):
        raise ValueError(f"neurons_per_tile must be even and at least 2, got {neurons_per_tile!r}")
    if selection_tiles is not None and selection_tiles < 1:
        raise ValueError(f"selection_tiles must be at least 1, got {selection_tiles!r}")
    tiles = ipus * machine.tiles_per_ipu
    widths = [neurons_per_tile // 2] if neurons_per_tile else PAIRS
    selections = (
        [selection_tiles] if selection_tiles else [n for n in SELECTION_TILES if n <= network.batch_size] or [1]
    )
    best: Optional[Tuple[Tuple[int, float], Plan]] = None
    seen = set()
    for least in widths:
        for selection in selections:
            layers = _place(network, tiles, selection, least)
            if layers is None or tuple(layers) in seen:
                continue
            seen.add(tuple(layers))
            memory = memory_of(network, machine, ipus, layers)
            made = Plan(network, machine, ipus, tuple(layers), memory=memory)
            fits = made.tile_memory_max_bytes <= machine.bytes_per_tile
            figure = estimate(made).cycles_per_batch if fits else float(made.tile_memory_max_bytes)
            key = (0 if fits else 1, figure)
            if best is None or key < best[0]:
                best = (key, made)
    if best is None:
        needed = 2 * network.layers
        why = f"{tiles} tiles cannot hold {network.layers} layers with neurons and selection on tiles of their own"
        return Plan(network, machine, ipus, (), (f"{why}: at least {needed} tiles.",))
    found = best[1]
    return replace(found, problems=tuple(check_memory(found)), notes=tuple(_notes(found)))


def _notes(plan: Plan) -> List[str]:
    notes = []
    if plan.ipus_used < plan.ipus:
        notes.append(
            f"only {plan.ipus_used} of {plan.ipus} IPUs have work: replicate the model over the others instead "
            "(replicationFactor)"
        )
    return notes


__all__ = ["TARGETS", "LayerPlan", "Plan", "layer_memory", "memory_of", "plan", "selection_memory"]
