"""A plan of an event-driven network on one or more IPUs: the tiles of each layer, their memory and problems.

The neurons of a layer are divided among tiles in pairs (two floats form a vector), at least two neurons per tile. The
batch is divided among groups of such tiles; each group has all neurons of the layer and its weights. Without groups, a
small layer after a large one would have few tiles for all samples, and be the slowest. The tiles are divided among the
layers so that the busiest tile has the least work.

Layers follow one another over the tiles, and so over the IPUs. The vertices that select spikes are on the tiles after
them. If too few tiles are left, selection uses the last tiles of neurons as well, and runs in turn with them.
"""

import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from snnipu.planning.costs import slot_shares
from snnipu.planning.cycles import lanes
from snnipu.planning.network import COUNTS_BYTES, FLOAT, ID_BYTES, BaseNetworkSpec
from snnipu.planning.targets import KIBIBYTE, Target

# Bytes of code on each tile of a program: vertices, control and exchange code. An assumption.
CODE_BYTES = {"neurons": 20 * KIBIBYTE, "selection": 12 * KIBIBYTE}
INFERENCE_CODE_SHARE = 0.5
# Largest share of a tile's memory for its neurons.
MAX_FILL = 0.9
CATEGORIES = ("weights", "weight gradients", "optimiser state", "neuron state", "history", "exchange buffers", "code")


@dataclass(frozen=True)
class LayerPlan:
    """The tiles of one layer. Tiles are numbered over all IPUs.

    Attributes:
        layer: the layer's number; 1 for the first layer after the input.
        first_tile: the first tile with neurons.
        neurons: number of neurons of each tile of a group; neurons are numbered in this order.
        groups: number of samples of each group of tiles; groups follow one another from ``first_tile`` on.
        first_selection_tile: the first tile with selection vertices.
        rows: number of samples of each selection tile.
    """

    layer: int
    first_tile: int
    neurons: Tuple[int, ...]
    groups: Tuple[int, ...]
    first_selection_tile: int
    rows: Tuple[int, ...]

    @property
    def group_tiles(self) -> int:
        """Tiles of a group, which together have all neurons."""
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
    def end(self) -> int:
        """The number after that of the layer's last tile."""
        return max(self.first_tile + self.tiles, self.first_selection_tile + self.selection_tiles)

    @property
    def lanes(self) -> int:
        """Neurons of the fullest tile, rounded up to pairs."""
        return lanes(self.neurons[0])

    @property
    def words(self) -> int:
        """32-bit words of fired bits of a sample, on all tiles of a group."""
        return sum((count + 31) // 32 for count in self.neurons)

    @property
    def merged_words(self) -> int:
        """Words that the tile which merges most gets from its neighbours; 0 if each tile's neurons fill whole words."""
        return max(pieces if tiles > 1 else 0 for pieces, tiles in self._merges())

    @property
    def word_tiles(self) -> int:
        """Tiles of a group that send words: one for each run of neighbours whose bits are merged."""
        return len(self._merges())

    def _merges(self) -> List[Tuple[int, int]]:
        """Return (words, tiles) of each run of neighbouring tiles whose neurons fill whole words of 32 bits."""
        merges, pieces, neurons, tiles = [], 0, 0, 0
        for index, count in enumerate(self.neurons):
            pieces, neurons, tiles = pieces + (count + 31) // 32, neurons + count, tiles + 1
            if neurons % 32 == 0 or index + 1 == len(self.neurons):
                merges.append((pieces, tiles))
                pieces, neurons, tiles = 0, 0, 0
        return merges

    def ipus(self, target: Target) -> range:
        """Return the IPUs of the layer's neurons."""
        return target.ipus_of(self.first_tile, self.tiles)

    def selection_ipus(self, target: Target) -> range:
        return target.ipus_of(self.first_selection_tile, self.selection_tiles)


@dataclass(frozen=True, repr=False)
class Plan:
    """A network on tiles.

    Attributes:
        network: the network.
        target, ipus: the machine.
        layers: the tiles of each layer; empty if there are too few tiles.
        problems: the reasons why the network does not fit; empty if it does.
        notes: further advice.
        memory: bytes of each tile by category, ``[categories][tiles]``.
    """

    network: BaseNetworkSpec
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
        return max((layer.end for layer in self.layers), default=0)

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
        """Return the role of each tile, ``[tiles]``.

        0: no work; ``l``: neurons of layer l; ``-l``: only the selection of its spikes.
        """
        roles = np.zeros(self.tiles, dtype=np.int32)
        for layer in self.layers:
            roles[layer.first_selection_tile : layer.first_selection_tile + layer.selection_tiles] = -layer.layer
        for layer in self.layers:
            roles[layer.first_tile : layer.first_tile + layer.tiles] = layer.layer
        return roles

    def tile_of(self, layer: int, neuron: int, sample: int = 0) -> int:
        """Return the tile of a neuron.

        Args:
            layer: the layer's number, from 1.
            neuron: the neuron's number in the layer, from 0.
            sample: the sample of the batch, from 0.

        Raises:
            IndexError: there is no such layer, neuron or sample.
        """
        placed = self.layers[layer - 1]
        if layer < 1 or not 0 <= neuron < sum(placed.neurons):
            raise IndexError(f"layer {layer} has no neuron {neuron}")
        if not 0 <= sample < sum(placed.groups):
            raise IndexError(f"the batch has no sample {sample}")
        group = int(np.searchsorted(np.cumsum(placed.groups), sample, side="right"))
        tile_in_group = int(np.searchsorted(np.cumsum(placed.neurons), neuron, side="right"))
        return placed.first_tile + group * placed.group_tiles + tile_in_group

    def describe(self) -> str:
        """Return the plan as text."""
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
            usage, limit = self.tile_memory_max_bytes / KIBIBYTE, target.bytes_per_tile // KIBIBYTE
            lines.append(f"  fullest tile: {usage:.0f} of {limit} KiB")
        lines += [f"  does not fit: {problem}" for problem in self.problems]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        sizes = "-".join(map(str, self.network.sizes))
        return f"<Plan of {sizes} on {self.ipus} x {self.target.name}, {'fits' if self.fits else 'does not fit'}>"

    def to_dict(self) -> Dict[str, Any]:
        """Return the plan without its memory, which :meth:`from_dict` computes again."""
        return {
            "network": self.network.to_dict(),
            "target": self.target.to_dict(),
            "ipus": self.ipus,
            "fits": self.fits,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "layers": [
                {**vars(layer), **{name: _runs(getattr(layer, name)) for name in ("neurons", "groups", "rows")}}
                for layer in self.layers
            ],
        }

    def attribute(self) -> List[int]:
        """Return the plan as an attribute of the PopART operator ``SparseNetwork``.

        The attribute has for each layer: the first tile, the neurons of the tiles, the samples of the groups, the first
        selection tile, and the samples of the selection tiles. Lists are run-length encoded: the number of runs, then
        value and length of each.
        """

        def encoded(counts: Sequence[int]) -> List[int]:
            runs = _runs(counts)
            return [len(runs), *(number for run in runs for number in run)]

        numbers: List[int] = []
        for layer in self.layers:
            numbers += [layer.first_tile, *encoded(layer.neurons), *encoded(layer.groups)]
            numbers += [layer.first_selection_tile, *encoded(layer.rows)]
        return numbers

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, document: Dict[str, Any]) -> "Plan":
        """Return the plan of a document of :meth:`to_dict`."""
        network: Dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in document["network"].items()
        }
        layers = tuple(
            LayerPlan(**{**layer, **{name: _unrolled(layer[name]) for name in ("neurons", "groups", "rows")}})
            for layer in [{"groups": [[network["batch_size"], 1]], **one} for one in document["layers"]]
        )
        plan = cls(BaseNetworkSpec(**network), Target(**document["target"]), document["ipus"], layers)
        return replace(
            plan,
            problems=tuple(document["problems"]),
            notes=tuple(document["notes"]),
            memory=memory_of(plan.network, plan.target, plan.ipus, layers) if layers else {},
        )

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        return cls.from_dict(json.loads(text))


def _runs(values: Sequence[int]) -> List[List[int]]:
    """Return the run-length encoding ``[[value, length], ...]``."""
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


def layer_memory(network: BaseNetworkSpec, entry: int, neurons: int, rows: int, groups: int) -> Dict[str, int]:
    """Return the bytes by category on a tile with neurons of a layer.

    Args:
        network: the network.
        entry: the layer's number, from 1.
        neurons: neurons of the tile.
        rows: samples of the tile's group.
        groups: number of groups.
    """
    width = lanes(neurons)
    slots_in, slots = network.slots[entry - 1], network.slots[entry]
    # A recurrent layer has two matrices.
    input_sizes = network.input_sizes(entry)
    weights = sum(input_sizes) * width
    # The groups divide the optimiser's weights and states: each tile updates its share.
    updated = sum(-(-inputs // groups) for inputs in input_sizes) * width
    training = network.training
    recurrent_slots = slots if network.is_recurrent(entry) else 0
    received = rows * (slots_in * ID_BYTES + COUNTS_BYTES)
    if entry == 1:
        received += rows * slots_in * FLOAT  # values of the input
    if recurrent_slots:
        received += rows * (slots * ID_BYTES + COUNTS_BYTES)
    gathered = 0
    if training:
        # The backward pass receives the layer's ids with gradients, then the input's ids, and last the groups'
        # gradients.
        output_ids = rows * (slots * (ID_BYTES + FLOAT) + COUNTS_BYTES)
        gathered = updated * groups * FLOAT if groups > 1 else 0
        received = max(received, output_ids, gathered)
    states = {"sgd": 0, "adam": 2}[network.optimizer] if training else 0
    bits = rows * 2 * FLOAT * ((width + 31) // 32)
    # Summed in float32; gradients of float16 weights are then converted to float16.
    gradients = weights * FLOAT + updated * (network.weight_bytes if network.weight_bytes < FLOAT else 0)
    shared = groups > 1
    return {
        "weights": weights * network.weight_bytes + (updated * network.weight_bytes if shared else 0),
        "weight gradients": gradients + (updated * FLOAT if shared else 0) if training else 0,
        "optimiser state": updated * FLOAT * states,
        # Each sample has a membrane; in training also two gradients (of the step and the step after it) and the sums
        # for beta, threshold and bias. A tile also has beta, bias, two thresholds, fired bits and partial gradients.
        "neuron state": (rows * (6 if training else 1) + 4) * width * FLOAT
        + bits
        + (rows * ((slots_in if entry > 1 else 0) + recurrent_slots) * FLOAT if training else 0),
        # The membranes of every step, from which the backward pass computes surrogate and reset.
        "history": network.steps * rows * width * FLOAT,
        "exchange buffers": received,
        "code": code_bytes("neurons", training),
    }


# Bytes for each slot of all steps on a selection tile. Forward pass: ids as integers and as floats, and values;
# backward pass: ids, and gradients of the values.
RECORDED_BYTES, RECORDED_GRADIENT_BYTES = 12, 8


def selection_memory(network: BaseNetworkSpec, entry: int, rows: int, words: int) -> Dict[str, int]:
    """Return the bytes by category on a tile that selects the spikes of ``rows`` samples of layer ``entry``."""
    slots = network.slots[entry]
    # A step's ids and values; in the backward pass the ids of two steps and the gradients.
    step = ID_BYTES + FLOAT + (2 * ID_BYTES + FLOAT if network.training else 0)
    recorded = RECORDED_BYTES + (RECORDED_GRADIENT_BYTES if network.training else 0)
    return {
        "neuron state": rows * (slots * step + 4 * COUNTS_BYTES),
        "history": network.steps * rows * (slots * recorded + 4 * COUNTS_BYTES),
        "exchange buffers": rows * 2 * FLOAT * words,
        "code": code_bytes("selection", network.training),
    }


def input_memory(network: BaseNetworkSpec, rows: int) -> Dict[str, int]:
    """Return the bytes by category on a tile that stores the input of ``rows`` samples.

    It stores the ids and values of all steps, and of the present step. The backward pass stores them again, and a flag
    that they ascend.
    """
    slot, counts = ID_BYTES + FLOAT, COUNTS_BYTES + (FLOAT if network.training else 0)
    copies = 2 if network.training else 1
    return {
        "history": copies * network.steps * rows * (network.slots[0] * slot + counts),
        "neuron state": copies * rows * (network.slots[0] * slot + counts),
    }


def code_bytes(kind: str, training: bool) -> int:
    return CODE_BYTES[kind] if training else int(CODE_BYTES[kind] * INFERENCE_CODE_SHARE)


def memory_of(
    network: BaseNetworkSpec, target: Target, ipus: int, layers: Sequence[LayerPlan]
) -> Dict[str, np.ndarray]:
    """Return the bytes of each tile by category, ``[tiles]`` each."""
    tiles = ipus * target.tiles_per_ipu
    memory = {name: np.zeros(tiles, dtype=np.int64) for name in CATEGORIES}

    def add(first: int, counts: Sequence[int], bytes_of: Callable[[int], Dict[str, int]]) -> None:
        tile_counts = np.asarray(counts)
        for count in set(counts):
            for name, size in bytes_of(count).items():
                memory[name][first : first + len(counts)][tile_counts == count] += size

    for placed in layers:
        entry, words, groups = placed.layer, placed.words, len(placed.groups)
        for number, rows in enumerate(placed.groups):
            first = placed.first_tile + number * placed.group_tiles
            add(first, placed.neurons, partial(layer_memory, network, entry, rows=rows, groups=groups))
            if network.training:
                numbers = sum(
                    sum(slot_shares(rows * slots, placed.group_tiles)) for slots in network.gradient_slots(entry)
                )
                memory["exchange buffers"][first : first + placed.group_tiles] += numbers * FLOAT
        selection = partial(selection_memory, network, entry, words=words)
        add(placed.first_selection_tile, placed.rows, selection)
    # A sample's input is on one tile after the layers, or on the last tiles if too few are left.
    samples = -(-network.batch_size // tiles)
    inputs = [samples] * -(-network.batch_size // samples)
    add(min(max(layer.end for layer in layers), tiles - len(inputs)), inputs, partial(input_memory, network))
    # All used tiles share the input tensors, and the tensors from which PopART computes them.
    used = max(placed.first_selection_tile + placed.selection_tiles for placed in layers)
    between = network.steps * network.batch_size * network.slots[0] * (ID_BYTES + FLOAT) * 2
    memory["history"][:used] += -(-between // used)
    return memory


def check_memory(plan: Plan) -> List[str]:
    """Return a line for each layer whose tiles are too full: the fullest tile, its contents and a remedy."""
    limit = plan.target.bytes_per_tile
    total = plan.tile_memory
    problems = []
    for placed in plan.layers:
        for kind, first, count in (
            ("neurons", placed.first_tile, placed.tiles),
            ("selection", placed.first_selection_tile, placed.selection_tiles),
        ):
            layer_memories = total[first : first + count]
            over = int((layer_memories > limit).sum())
            if not over:
                continue
            tile = first + int(layer_memories.argmax())
            contents = sorted(((int(plan.memory[name][tile]), name) for name in CATEGORIES), reverse=True)
            smallest = placed.lanes == 2 if kind == "neurons" else max(placed.rows) == 1
            largest = ", ".join(f"{name} {size / KIBIBYTE:.0f}" for size, name in contents[:3])
            problems.append(
                f"layer {placed.layer}, {kind}: {over} of {count} tiles are over {limit // KIBIBYTE} KiB; tile {tile} "
                f"needs {int(total[tile]) / KIBIBYTE:.0f} KiB ({largest}). {_remedy(contents[0][1], smallest)}"
            )
    return problems


def _remedy(largest: str, smallest: bool) -> str:
    """Return a remedy for a full tile.

    ``largest`` is the category with most bytes; ``smallest``: the tile's work cannot be divided further.
    """
    remedies = {
        "history": "Fewer time steps or samples at once leave fewer membranes to keep",
        "weights": "float16 weights take half",
        "weight gradients": "A smaller layer before it leaves fewer weights to a neuron",
        "optimiser state": "The optimiser sgd keeps no state",
        "exchange buffers": "Fewer slots (max_spikes) or samples at once make smaller buffers",
        "neuron state": "Fewer samples at once leave fewer states",
    }
    remedy = remedies.get(largest, "Fewer layers leave less code")
    if smallest:
        return f"{remedy}; more IPUs do not help, as it has as many tiles as it can use."
    return f"{remedy}; more IPUs leave less on a tile."
