"""Plans of the operator ``SparseConv2d``, a convolution on spike ids: the work of each tile, memory and cycles.

A part of the work is a block of output channels, a band of lines of their maps, and a share of the rows (time,
sample). Parts are assigned to tiles in turn, one per tile if there are enough tiles. All tiles of a block store its
weights, so more shares need more memory for weights, and less for maps. Every part receives all spikes of its rows, so
more blocks and bands exchange more bytes. Of the plans that fit, the one with the fewest predicted cycles is chosen.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Dict, Iterator, List, Optional, Tuple

from snnipu.ops._maps import Geometry
from snnipu.planning import cycles
from snnipu.planning.cycles import lanes
from snnipu.planning.mapping import MAX_FILL, code_bytes
from snnipu.planning.network import COUNTS_BYTES, DTYPES, FLOAT, ID_BYTES
from snnipu.planning.targets import KIBIBYTE, TARGETS, Target

# These two are also in csrc/graph/sparse_conv2d.cpp: bytes of the rows that a tile processes at a time, and the least
# number of inputs whose shared weights one tile stores for the others.
BYTES_AT_ONCE = 64 * KIBIBYTE
LEAST_INPUTS = 2
# The most lanes (neurons or channels) of a tile.
BLOCK_LANES = 64


@dataclass(frozen=True)
class ConvolutionPlan:
    """A convolution on tiles.

    Attributes:
        geometry: the sizes of maps and kernels.
        slots: slots of an input row.
        rows: pairs (time, sample).
        dtype: format of the weights, ``float32`` or ``float16``.
        training: True if there is a backward pass.
        target, ipus: the machine.
        channels: most output channels of a block.
        lines: most lines of a band.
        share: most rows of a share.
    """

    geometry: Geometry
    slots: int
    rows: int
    dtype: str
    training: bool
    target: Target
    ipus: int
    channels: int
    lines: int
    share: int

    @property
    def blocks(self) -> int:
        group_channels = self.geometry.out_channels // self.geometry.groups
        return self.geometry.groups * -(-group_channels // self.channels)

    @property
    def bands(self) -> int:
        return -(-self.geometry.out_height // self.lines)

    @property
    def shares(self) -> int:
        return -(-self.rows // self.share)

    @property
    def parts(self) -> int:
        return self.blocks * self.bands * self.shares

    @property
    def tiles(self) -> int:
        """Tiles of the machine."""
        return self.ipus * self.target.tiles_per_ipu

    @property
    def tiles_used(self) -> int:
        return min(self.parts, self.tiles)

    @property
    def parts_of_tile(self) -> int:
        return -(-self.parts // self.tiles)

    @property
    def attribute(self) -> Tuple[int, int, int]:
        """The plan as an attribute of the PopART operator."""
        return self.channels, self.lines, self.share

    @property
    def inputs(self) -> int:
        """Weights of an output channel."""
        sizes = self.geometry
        return sizes.in_channels // sizes.groups * sizes.kernel_height * sizes.kernel_width

    @property
    def lanes(self) -> int:
        return lanes(self.channels)

    @property
    def holders(self) -> int:
        """Parts with the same weights."""
        return self.bands * self.shares

    @property
    def stored(self) -> int:
        """Weights of a block that one of its parts stores for all."""
        return max(LEAST_INPUTS, -(-self.inputs // self.holders)) * self.lanes

    @property
    def places(self) -> int:
        """Positions of a band, in one channel."""
        return self.lines * self.geometry.out_width

    @property
    def chunk(self) -> int:
        """Rows that a tile processes at a time."""
        row = self.slots * (ID_BYTES + FLOAT) + COUNTS_BYTES + FLOAT + FLOAT * self.places * self.lanes
        return min(self.share, max(1, BYTES_AT_ONCE // row))

    def memory(self) -> Dict[str, int]:
        """Return the bytes on the fullest tile by category: variables and outputs of the operator and its gradient."""
        each, weight_bytes = self.parts_of_tile, DTYPES[self.dtype]
        holders, stored, block_weights = self.holders, self.stored, self.inputs * self.lanes
        alone = self.parts == self.blocks
        received = self.chunk * (self.slots * (ID_BYTES + FLOAT) + COUNTS_BYTES)
        maps = FLOAT * self.chunk * self.places
        weights = (0 if alone else block_weights * weight_bytes) + stored * weight_bytes
        categories = {
            "weights": weights * each,
            "maps": (FLOAT * self.share * self.channels * self.places + maps * self.lanes) * each,
            # Ids and values, each as input and as working copy; in training the values' gradients likewise.
            "spikes": -(-self.rows // self.tiles) * self.slots * FLOAT * (6 if self.training else 4),
            "exchange buffers": received,
            "code": code_bytes("neurons", self.training),
        }
        if self.training:
            categories["weight gradients"] = (block_weights + stored) * FLOAT * each + (
                stored * weight_bytes if weight_bytes < FLOAT else 0
            )
            # The maps' gradients are spread over all tiles and arrive channel by channel.
            upstream = FLOAT * -(-self.rows * self.geometry.neurons // self.tiles)
            categories["maps"] = max(categories["maps"], maps * (self.lanes + self.channels) * each + upstream)
            categories["gradients of the input"] = FLOAT * self.chunk * self.slots * each
            gathered = stored * holders * FLOAT if self.parts > self.blocks else 0
            categories["exchange buffers"] = max(received, gathered)
        return categories

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory().values())

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.target.bytes_per_tile

    def predicted_cycles(self) -> float:
        """Return the cycles of the busiest tile, forwards and backwards, if all slots are in use."""
        sizes = self.geometry
        arriving = self.share * (self.slots * (ID_BYTES + FLOAT) + COUNTS_BYTES)
        work = cycles.conv_forward(sizes, self.share, self.slots, self.lanes, self.lines)
        weights = FLOAT * self.inputs * self.lanes * (0 if self.parts == self.blocks else 1)
        if self.training:
            work += cycles.conv_weight_gradient(sizes, self.share, self.slots, self.lanes, self.lines)
            work += cycles.conv_value_gradient(sizes, self.share, self.slots, self.lanes, self.lines)
            arriving += self.share * (self.slots * 2 * ID_BYTES + FLOAT * self.channels * self.places)
            work += cycles.zero(self.inputs * self.lanes)
            # The tiles of a block share the sum of their weight gradients.
            weights += self.stored * self.holders * FLOAT
            work += cycles.row_sum(self.stored, self.holders)
            slots = -(-self.share * self.slots // (self.blocks * self.bands))
            work += cycles.slot_sum(slots, self.blocks * self.bands)
            arriving += slots * self.blocks * self.bands * FLOAT
        each = self.parts_of_tile
        return each * work + (each * arriving + weights) / self.target.exchange_bytes_per_cycle

    def remedy(self) -> str:
        """Return the change that makes the fullest tile less full."""
        memory = self.memory()
        return _REMEDIES[max(memory, key=lambda name: memory[name])]

    def __str__(self) -> str:
        sizes, each = self.geometry, self.parts_of_tile
        return (
            f"{'x'.join(map(str, sizes.in_shape))} to {'x'.join(map(str, sizes.out_shape))} on {self.tiles_used} tiles"
            + (f", {each} parts each" if each > 1 else "")
            + f": {min(self.channels, sizes.out_channels)} of {sizes.out_channels} channels, "
            f"{min(self.lines, sizes.out_height)} of {sizes.out_height} lines and {self.share} of {self.rows} rows "
            f"(time, sample) a part; fullest tile {self.memory_bytes / KIBIBYTE:.0f} of "
            f"{self.target.bytes_per_tile // KIBIBYTE} KiB"
        )


_REMEDIES = {
    "weights": "weights in float16, or fewer channels before the convolution",
    "weight gradients": "fewer channels before the convolution",
    "maps": "fewer time steps or samples at once, smaller maps, or more IPUs",
    "gradients of the input": "fewer slots (max_spikes of the layer before)",
    "exchange buffers": "fewer slots (max_spikes of the layer before) or channels",
    "spikes": "fewer slots (max_spikes of the layer before), time steps or samples at once",
    "code": "more tiles",
}


def _part_sizes(total: int, least: int, most: int) -> List[int]:
    """Return the sizes, from ``least`` to ``most``, of equal parts of ``total``: one size for each number of parts."""
    return sorted({size for size in (-(-total // parts) for parts in range(1, total + 1)) if least <= size <= most})


def _candidates(
    geometry: Geometry, slots: int, rows: int, dtype: str, training: bool, target: Target, ipus: int
) -> Iterator[ConvolutionPlan]:
    group_channels, tiles = geometry.out_channels // geometry.groups, ipus * target.tiles_per_ipu
    least = min(group_channels, 2)
    for channels in _part_sizes(group_channels, least, BLOCK_LANES) or [min(group_channels, BLOCK_LANES)]:
        # Two lanes form a vector, so an odd number wastes a lane.
        if channels % 2 and channels != group_channels:
            continue
        for lines in _part_sizes(geometry.out_height, 1, geometry.out_height):
            parts = geometry.groups * -(-group_channels // channels) * -(-geometry.out_height // lines)
            shares = {max(1, min(rows, times * tiles // parts)) for times in (1, 2, 4)}
            for count in sorted(shares | {1}):
                share = -(-rows // count)
                yield ConvolutionPlan(geometry, slots, rows, dtype, training, target, ipus, channels, lines, share)


@lru_cache(maxsize=256)
def plan_convolution(
    geometry: Geometry,
    slots: int,
    rows: int,
    dtype: str = "float32",
    training: bool = True,
    target: Optional[Target] = None,
    ipus: int = 1,
) -> ConvolutionPlan:
    """Return the plan for ``SparseConv2d``. If no plan fits, return the one whose fullest tile is the least full.

    The arguments are attributes of :class:`ConvolutionPlan`. Without a ``target`` the plan is for Mk2.
    """
    machine = TARGETS["mk2"] if target is None else target
    best: Optional[Tuple[Tuple[bool, float], ConvolutionPlan]] = None
    for candidate in _candidates(geometry, slots, rows, dtype, training, machine, ipus):
        memory = candidate.memory_bytes
        fits = memory <= MAX_FILL * machine.bytes_per_tile
        key = (not fits, candidate.predicted_cycles() if fits else float(memory))
        if best is None or key < best[0]:
            best = (key, candidate)
    assert best is not None
    return best[1]
