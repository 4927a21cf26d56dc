"""Which tile does what of a convolution on spike ids: a plan of the operator ``SparseConv2d``, and what it needs.

A part of the work is a block of output channels, a band of lines of their maps, and a share of the rows (time,
sample). Each tile has one part; where there are more of them than tiles, they go on from the first one. All tiles of a
block have its weights, so that more shares need more memory for weights and leave fewer maps to each; every part gets
all spikes of its rows, so that more blocks and bands exchange more. Of what fits, the plan that is predicted fastest is
taken.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Dict, Iterator, List, Optional, Tuple

from snnipu.ops._maps import Geometry
from snnipu.planning import cycles
from snnipu.planning.cycles import lanes
from snnipu.planning.mapping import FULL, code_bytes
from snnipu.planning.network import COUNTS_BYTES, DTYPES, FLOAT, ID_BYTES
from snnipu.planning.targets import KIBIBYTE, TARGETS, Target

# As csrc/graph/sparse_conv2d.cpp has them: bytes of the rows that a tile works on at a time, and inputs of which a tile
# at least holds the weights that others need, too.
BYTES_AT_ONCE = 64 * KIBIBYTE
LEAST_INPUTS = 2
BLOCK_LANES = 64


@dataclass(frozen=True)
class ConvolutionPlan:
    """A convolution on tiles.

    Attributes:
        geometry: its sizes.
        slots: of a row of the input.
        rows: (time, sample), all of them.
        dtype: of the weights, ``float32`` or ``float16``.
        training: whether there is a backward pass.
        target, ipus: the machine.
        channels: output channels of a block, at most.
        lines: of a band, at most.
        share: rows of a share, at most.
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
        own = self.geometry.out_channels // self.geometry.groups
        return self.geometry.groups * -(-own // self.channels)

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
        """All of the machine."""
        return self.ipus * self.target.tiles_per_ipu

    @property
    def tiles_used(self) -> int:
        return min(self.parts, self.tiles)

    @property
    def parts_of_tile(self) -> int:
        return -(-self.parts // self.tiles)

    @property
    def attribute(self) -> Tuple[int, int, int]:
        """The plan as the PopART operator takes it."""
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
    def places(self) -> int:
        """Of a band."""
        return self.lines * self.geometry.out_width

    @property
    def chunk(self) -> int:
        """Rows that a tile works on at a time."""
        row = self.slots * (ID_BYTES + FLOAT) + COUNTS_BYTES + FLOAT + FLOAT * self.places * self.lanes
        return min(self.share, max(1, BYTES_AT_ONCE // row))

    def memory(self) -> Dict[str, int]:
        """Bytes on the fullest tile, by category: what the operator and its gradient need of it, and their output."""
        each, weight_bytes = self.parts_of_tile, DTYPES[self.dtype]
        holders = self.bands * self.shares
        held = self.inputs * self.lanes
        own = max(LEAST_INPUTS, -(-self.inputs // holders)) * self.lanes
        alone = self.parts == self.blocks
        received = self.chunk * (self.slots * (ID_BYTES + FLOAT) + COUNTS_BYTES)
        maps = FLOAT * self.chunk * self.places
        weights = (0 if alone else held * weight_bytes) + own * weight_bytes
        found = {
            "weights": weights * each,
            "maps": (FLOAT * self.share * self.channels * self.places + maps * self.lanes) * each,
            # Ids and values as they come in and as they are worked on, and gradients of the values likewise.
            "spikes": -(-self.rows // self.tiles) * self.slots * FLOAT * (6 if self.training else 4),
            "exchange buffers": received,
            "code": code_bytes("neurons", self.training),
        }
        if self.training:
            found["weight gradients"] = (held + own) * FLOAT * each + (
                own * weight_bytes if weight_bytes < FLOAT else 0
            )
            # The maps' gradients lie on all tiles and arrive channel by channel.
            upstream = FLOAT * -(-self.rows * self.geometry.neurons // self.tiles)
            found["maps"] = max(found["maps"], maps * (self.lanes + self.channels) * each + upstream)
            found["gradients of the input"] = FLOAT * self.chunk * self.slots * each
            gathered = own * holders * FLOAT if self.parts > self.blocks else 0
            found["exchange buffers"] = max(received, gathered)
        return found

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory().values())

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.target.bytes_per_tile

    def predicted_cycles(self) -> float:
        """Of the busiest tile, forwards and backwards, with slots that are all in use."""
        sizes = self.geometry
        arriving = self.share * (self.slots * (ID_BYTES + FLOAT) + COUNTS_BYTES)
        work = cycles.conv_forward(sizes, self.share, self.slots, self.lanes, self.lines)
        weights = FLOAT * self.inputs * self.lanes * (0 if self.parts == self.blocks else 1)
        if self.training:
            work += cycles.conv_weight_gradient(sizes, self.share, self.slots, self.lanes, self.lines)
            work += cycles.conv_value_gradient(sizes, self.share, self.slots, self.lanes, self.lines)
            arriving += self.share * (self.slots * 2 * ID_BYTES + FLOAT * self.channels * self.places)
            work += cycles.zero(self.inputs * self.lanes)
            # Sums of the parts' gradients, of which each holder has a share.
            holders = self.bands * self.shares
            own = max(LEAST_INPUTS, -(-self.inputs // holders)) * self.lanes
            weights += own * holders * FLOAT
            work += cycles.row_sum(own, holders)
            slots = -(-self.share * self.slots // (self.blocks * self.bands))
            work += cycles.slot_sum(slots, self.blocks * self.bands)
            arriving += slots * self.blocks * self.bands * FLOAT
        each = self.parts_of_tile
        return each * work + (each * arriving + weights) / self.target.exchange_bytes_per_cycle

    def remedy(self) -> str:
        """What makes the fullest tile less full."""
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


def _counts(all_: int, least: int, most: int) -> List[int]:
    """Sizes of parts of ``all_``, those that make another number of parts, from ``least`` to ``most``."""
    return sorted({size for size in (-(-all_ // parts) for parts in range(1, all_ + 1)) if least <= size <= most})


def _candidates(
    geometry: Geometry, slots: int, rows: int, dtype: str, training: bool, target: Target, ipus: int
) -> Iterator[ConvolutionPlan]:
    own, tiles = geometry.out_channels // geometry.groups, ipus * target.tiles_per_ipu
    least = min(own, 2)
    for channels in _counts(own, least, BLOCK_LANES) or [min(own, BLOCK_LANES)]:
        # A pair of lanes is a vector.
        if channels % 2 and channels != own:
            continue
        for lines in _counts(geometry.out_height, 1, geometry.out_height):
            parts = geometry.groups * -(-own // channels) * -(-geometry.out_height // lines)
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
    """The plan that ``SparseConv2d`` gets for spikes of ``rows`` (time, sample) in ``slots`` slots each.

    Where nothing fits, the plan whose fullest tile is the least full.
    """
    machine = TARGETS["mk2"] if target is None else target
    best: Optional[Tuple[Tuple[bool, float], ConvolutionPlan]] = None
    for candidate in _candidates(geometry, slots, rows, dtype, training, machine, ipus):
        memory = candidate.memory_bytes
        fits = memory <= FULL * machine.bytes_per_tile
        key = (not fits, candidate.predicted_cycles() if fits else float(memory))
        if best is None or key < best[0]:
            best = (key, candidate)
    assert best is not None
    return best[1]
