"""Which tile holds what: a plan of an event-driven network on one or more IPUs, and what does not fit.

Neurons of a layer are spread over tiles in pairs (two floats make a vector), at least two neurons a tile; and the batch
over groups of such tiles, each with all neurons of the layer and its weights: a small layer behind a large one would be
the slowest otherwise, with a few tiles for all samples. Layers share the tiles so that the busiest tile is as little
busy as can be. Layers follow one another over the tiles, and so over the IPUs. The vertices that select spikes are on
the tiles behind; where there are too few, on the last ones that neurons are on too: neurons and selection take turns.
"""

import json
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from snnipu.planning import drawing
from snnipu.planning.costs import slot_shares
from snnipu.planning.cycles import lanes
from snnipu.planning.network import COUNTS_BYTES, FLOAT, ID_BYTES, NetworkSpec
from snnipu.planning.targets import KIBIBYTE, Target

# What a program takes on every tile it runs on: vertices, control and exchange code. An assumption.
CODE_BYTES = {"neurons": 20 * KIBIBYTE, "selection": 12 * KIBIBYTE}
INFERENCE_CODE_SHARE = 0.5
# How full of its neurons a tile may be.
FULL = 0.9
CATEGORIES = ("weights", "weight gradients", "optimiser state", "neuron state", "history", "exchange buffers", "code")


@dataclass(frozen=True)
class LayerPlan:
    """Where one layer is. Tiles are numbered over all IPUs.

    Attributes:
        layer: 1 for the first layer behind the input.
        first_tile: of its neurons.
        neurons: of each tile of a group, in turn; neurons are numbered in this order.
        groups: samples of each group of tiles, in turn; groups follow one another from ``first_tile`` on.
        first_selection_tile: of its selection vertices.
        rows: samples of each of its selection tiles, in turn.
    """

    layer: int
    first_tile: int
    neurons: Tuple[int, ...]
    groups: Tuple[int, ...]
    first_selection_tile: int
    rows: Tuple[int, ...]

    @property
    def group_tiles(self) -> int:
        """Tiles that have all neurons between them."""
        return len(self.neurons)

    @property
    def tiles(self) -> int:
        """Tiles of neurons of all groups."""
        return len(self.neurons) * len(self.groups)

    @property
    def samples(self) -> int:
        """Samples of the largest group."""
        return max(self.groups)

    @property
    def selection_tiles(self) -> int:
        return len(self.rows)

    @property
    def lanes(self) -> int:
        """Neurons of the fullest tile, rounded up to pairs."""
        return lanes(self.neurons[0])

    @property
    def words(self) -> int:
        """32-bit words of fired bits that a sample has on all tiles of a group."""
        return sum((count + 31) // 32 for count in self.neurons)

    @property
    def merged_words(self) -> int:
        """Words of bits that the tile has to put together which merges most: those of neighbouring tiles, up to where
        their neurons fill words of 32. 0 where each tile's fill them by themselves."""
        return max(pieces if tiles > 1 else 0 for pieces, tiles in self._merges())

    @property
    def word_tiles(self) -> int:
        """Tiles of a group that have words of bits to send on: one of those whose bits are put together."""
        return len(self._merges())

    def _merges(self) -> List[Tuple[int, int]]:
        """Words of bits, and tiles that they are on, of neighbours up to where their neurons fill words of 32."""
        found, pieces, neurons, tiles = [], 0, 0, 0
        for index, count in enumerate(self.neurons):
            pieces, neurons, tiles = pieces + (count + 31) // 32, neurons + count, tiles + 1
            if neurons % 32 == 0 or index + 1 == len(self.neurons):
                found.append((pieces, tiles))
                pieces, neurons, tiles = 0, 0, 0
        return found

    def ipus(self, target: Target) -> range:
        """The IPUs that its neurons are on."""
        last = self.first_tile + self.tiles - 1
        return range(self.first_tile // target.tiles_per_ipu, last // target.tiles_per_ipu + 1)

    def selection_ipus(self, target: Target) -> range:
        last = self.first_selection_tile + self.selection_tiles - 1
        return range(self.first_selection_tile // target.tiles_per_ipu, last // target.tiles_per_ipu + 1)


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
        ends = [
            end
            for layer in self.layers
            for end in (layer.first_tile + layer.tiles, layer.first_selection_tile + layer.selection_tiles)
        ]
        return max(ends, default=0)

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
        """What each tile does, ``[tiles]``: 0 nothing, ``l`` neurons of layer l, ``-l`` its selection and nothing
        else."""
        roles = np.zeros(self.tiles, dtype=np.int32)
        for layer in self.layers:
            roles[layer.first_selection_tile : layer.first_selection_tile + layer.selection_tiles] = -layer.layer
        for layer in self.layers:
            roles[layer.first_tile : layer.first_tile + layer.tiles] = layer.layer
        return roles

    def tile_of(self, layer: int, neuron: int, sample: int = 0) -> int:
        """The tile that holds a neuron of a layer, both counted as in :class:`LayerPlan`, for a sample of the batch.
        Raises IndexError."""
        placed = self.layers[layer - 1]
        if layer < 1 or not 0 <= neuron < sum(placed.neurons):
            raise IndexError(f"layer {layer} has no neuron {neuron}")
        if not 0 <= sample < sum(placed.groups):
            raise IndexError(f"the batch has no sample {sample}")
        group = int(np.searchsorted(np.cumsum(placed.groups), sample, side="right"))
        within = int(np.searchsorted(np.cumsum(placed.neurons), neuron, side="right"))
        return placed.first_tile + group * placed.group_tiles + within

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
                f"  layer {layer.layer}: {network.sizes[layer.layer]} "
                + ("recurrent " if network.is_recurrent(layer.layer) else "")
                + f"neurons on tiles {layer.first_tile} to "
                f"{layer.first_tile + layer.tiles - 1}, up to {max(layer.neurons)} a tile"
                + (f", in {len(layer.groups)} groups of up to {layer.samples} samples" if len(layer.groups) > 1 else "")
                + "; spikes selected on "
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
                    "groups": _runs(layer.groups),
                    "first_selection_tile": layer.first_selection_tile,
                    "rows": _runs(layer.rows),
                }
                for layer in self.layers
            ],
        }

    def attribute(self) -> List[int]:
        """The plan as the PopART operator ``SparseNetwork`` takes it: for each layer its first tile, runs of neurons on
        a tile, runs of samples of a group, its first selection tile, and runs of samples on a tile; runs are their
        number, then value and length.
        """

        def numbered(counts: Sequence[int]) -> List[int]:
            runs = _runs(counts)
            return [len(runs), *(number for run in runs for number in run)]

        numbers: List[int] = []
        for layer in self.layers:
            numbers += [layer.first_tile, *numbered(layer.neurons), *numbered(layer.groups)]
            numbers += [layer.first_selection_tile, *numbered(layer.rows)]
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
                _unrolled(layer["groups"]) if "groups" in layer else (network["batch_size"],),
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
            ValueError: the suffix.
        """
        sizes = "-".join(map(str, self.network.sizes))
        layers = [layer.layer for layer in self.layers]
        drawing.draw_tiles(path, sizes, self.target, self.ipus, layers, self.roles(), self.tile_memory)


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


def layer_memory(network: NetworkSpec, entry: int, neurons: int, rows: int, groups: int) -> Dict[str, int]:
    """Bytes on a tile that holds ``neurons`` neurons of layer ``entry`` for ``rows`` samples, one of ``groups``, by
    category."""
    width = lanes(neurons)
    slots_in, slots = network.slots[entry - 1], network.slots[entry]
    # One matrix, or two: that of the layer's own spikes, too.
    reads = network.reads(entry)
    weights = sum(reads) * width
    # The optimiser's weights and what it keeps are there once, a share of them on each group's tiles.
    own = sum(-(-inputs // groups) for inputs in reads) * width
    training = network.training
    recurrent_slots = slots if network.is_recurrent(entry) else 0
    received = rows * (slots_in * ID_BYTES + COUNTS_BYTES)
    if entry == 1:
        received += rows * slots_in * FLOAT  # values of the input
    if recurrent_slots:
        received += rows * (slots * ID_BYTES + COUNTS_BYTES)
    gathered = 0
    if training:
        # Backwards: its own ids with their gradients, then the input's ids; at the end the groups' gradients.
        own_ids = rows * (slots * (ID_BYTES + FLOAT) + COUNTS_BYTES)
        gathered = own * groups * FLOAT if groups > 1 else 0
        received = max(received, own_ids, gathered)
    states = {"sgd": 0, "adam": 2}[network.optimizer] if training else 0
    bits = rows * 2 * FLOAT * ((width + 31) // 32)
    # Summed in float32; those of float16 weights are handed on as float16.
    gradients = weights * FLOAT + own * (network.weight_bytes if network.weight_bytes < FLOAT else 0)
    shared = groups > 1
    return {
        "weights": weights * network.weight_bytes + (own * network.weight_bytes if shared else 0),
        "weight gradients": gradients + (own * FLOAT if shared else 0) if training else 0,
        "optimiser state": own * FLOAT * states,
        # Membranes and bits; backwards the carried gradient and the step's, and sums for beta, threshold and bias;
        # beta, bias and two thresholds. Partial gradients of the input's slots.
        "neuron state": (rows * (6 if training else 1) + 4) * width * FLOAT
        + bits
        + (rows * ((slots_in if entry > 1 else 0) + recurrent_slots) * FLOAT if training else 0),
        # Membranes of every step, from which surrogate and reset are told.
        "history": network.steps * rows * width * FLOAT,
        "exchange buffers": received,
        "code": code_bytes("neurons", training),
    }


# Bytes for each slot of all steps where spikes are selected. Forwards: ids as integers and as floats, and values;
# backwards: ids, and gradients of the values.
RECORDED_BYTES, RECORDED_GRADIENT_BYTES = 12, 8


def selection_memory(network: NetworkSpec, entry: int, rows: int, words: int) -> Dict[str, int]:
    """Bytes on a tile that selects the spikes of ``rows`` samples of layer ``entry``."""
    slots = network.slots[entry]
    # Of the step: ids and values; backwards ids of two steps and gradients.
    now = ID_BYTES + FLOAT + (2 * ID_BYTES + FLOAT if network.training else 0)
    recorded = RECORDED_BYTES + (RECORDED_GRADIENT_BYTES if network.training else 0)
    return {
        "neuron state": rows * (slots * now + 4 * COUNTS_BYTES),
        "history": network.steps * rows * (slots * recorded + 4 * COUNTS_BYTES),
        "exchange buffers": rows * 2 * FLOAT * words,
        "code": code_bytes("selection", network.training),
    }


def input_memory(network: NetworkSpec, rows: int) -> Dict[str, int]:
    """Bytes on a tile that keeps the input of ``rows`` samples: ids and values of all steps, and of one. Backwards it
    keeps them again, and is told whether they ascend."""
    slot, counts = ID_BYTES + FLOAT, COUNTS_BYTES + (FLOAT if network.training else 0)
    times = 2 if network.training else 1
    return {
        "history": times * network.steps * rows * (network.slots[0] * slot + counts),
        "neuron state": times * rows * (network.slots[0] * slot + counts),
    }


def code_bytes(kind: str, training: bool) -> int:
    return CODE_BYTES[kind] if training else int(CODE_BYTES[kind] * INFERENCE_CODE_SHARE)


def memory_of(network: NetworkSpec, target: Target, ipus: int, layers: Sequence[LayerPlan]) -> Dict[str, np.ndarray]:
    """Bytes of each tile by category, ``[tiles]`` each."""
    tiles = ipus * target.tiles_per_ipu
    memory = {name: np.zeros(tiles, dtype=np.int64) for name in CATEGORIES}

    def add(first: int, counts: Sequence[int], parts_of: Callable[[int], Dict[str, int]]) -> None:
        held = np.asarray(counts)
        for count in set(counts):
            for name, size in parts_of(count).items():
                memory[name][first : first + len(held)][held == count] += size

    for placed in layers:
        entry, words, groups = placed.layer, placed.words, len(placed.groups)
        for number, rows in enumerate(placed.groups):
            first = placed.first_tile + number * placed.group_tiles
            add(first, placed.neurons, partial(layer_memory, network, entry, rows=rows, groups=groups))
            if network.training:
                share = sum(sum(slot_shares(rows * slots, placed.group_tiles)) for slots in network.passes_back(entry))
                memory["exchange buffers"][first : first + placed.group_tiles] += share * FLOAT
        selection = partial(selection_memory, network, entry, words=words)
        add(placed.first_selection_tile, placed.rows, selection)
    # A sample's input is on one tile behind the layers; where there are too few, on the last ones.
    each = -(-network.batch_size // tiles)
    inputs = [each] * -(-network.batch_size // each)
    end = max(max(at.first_tile + at.tiles, at.first_selection_tile + at.selection_tiles) for at in layers)
    add(min(end, tiles - len(inputs)), inputs, partial(input_memory, network))
    # Between the operators, over all tiles that are used: what comes in, and what that is made of.
    used = max(placed.first_selection_tile + placed.selection_tiles for placed in layers)
    between = network.steps * network.batch_size * network.slots[0] * (ID_BYTES + FLOAT) * 2
    memory["history"][:used] += -(-between // used)
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
