"""Cycles that vertices and exchange are taken for, in one place, each formula with its source.

A tile has six workers that take turns, so that a worker's instruction takes six cycles of the tile. A ``MultiVertex``
costs its supervisor's overhead and six times its slowest worker. The formulas count the instructions of our vertices,
as ``csrc/ipu_model/perf_estimates.cpp`` does, where each of them is explained; that of the weight update, which is
PopART's own, counts operations of PopLibs. Anchors are the estimators that PopLibs ships for its vertices (MIT):

* 29 instructions of a worker's start and end, 11 cycles of the supervisor; addition, subtraction or multiplication of
  N floats: ``6 (29 + 3 ceil(ceil(N / 6) / 2)) + 11``;
* gather of rows (MultiSlice): ``6 (30 + sum over the rows (19 + 2 vectors))``, a vector being two floats; it checks and
  divides each index. Our vertices take 5 instructions a row and 3 a vector;
* exchange: ``ceil(bytes / bytes per cycle)``. The instructions of messages are not PopLibs': 3 for one that a tile
  receives, 2 for one that it sends, beside the words, as in https://github.com/osmarks/ipu-stack, a public exchange
  compiler for Mk2.

``rows`` are samples of the batch, which the workers share; ``lanes`` neurons of a tile, rounded up to pairs. A cycle
count here is a model's, not a measurement.
"""

import math
from typing import Callable, Tuple

from snnipu.ops._maps import Geometry

WORKERS = 6
# Overhead of a MultiVertex: its supervisor, and start and end of each worker.
SUPERVISOR = 11
WORKER = 29
# Instructions. A load or a store of two lanes, a loop's branch and addresses, a choice by a mask, H(u).
MOVE, LOOP, SELECT, HEAVISIDE, DIVISION = 1, 3, 3, 2, 10
CLAMP_UNIT = 2 * (1 + SELECT)
# A spike: its id and address; a vector of its row: two loads and an addition, or a multiplication too.
SPIKE = 5
# Reset to zero: beta (1 - r) u + x forwards, and its adjoint.
INTEGRATE, CARRY = 4, 5
# 1 / (slope |u| + 1)^2 times a gradient, cut off below a bound.
SURROGATE = (2 + SELECT) + 3 + DIVISION + 1 + SELECT
# Registers of the vertices' inner loop: ids are read once for so many vectors.
GROUP_VECTORS = 4
# Instructions of PopLibs for two floats.
ARITHMETIC = 3


def multi_vertex(worker: float) -> float:
    """Cycles of a MultiVertex whose slowest worker takes ``worker`` instructions after its start."""
    return SUPERVISOR + WORKERS * (WORKER + worker)


def share(items: float) -> int:
    """The largest share of ``items`` that a worker has."""
    return math.ceil(items / WORKERS)


def vectors(lanes: int) -> int:
    """Vectors of two lanes."""
    return math.ceil(lanes / 2)


def lanes(neurons: int) -> int:
    """Neurons rounded up to pairs."""
    return 2 * vectors(neurons)


def over_groups(lanes: int, of: Callable[[int], float]) -> float:
    """``of(vectors)`` over the groups that lanes are worked on in: ``csrc/neuron/sparse.hpp``, ``forLaneGroups``."""
    total = vectors(lanes)
    return total // GROUP_VECTORS * of(GROUP_VECTORS) + total % GROUP_VECTORS * of(1)


def gather(spikes: float, group: int, unit: bool = True) -> float:
    """A worker's instructions to sum ``spikes`` rows of ``group`` vectors of weights; ``unit``: all of value 1."""
    return spikes * (SPIKE + (0 if unit else 1) + group * (MOVE + (1 if unit else 2)))


def search(ids: float) -> int:
    """A worker's instructions to find a number among ``ids`` that ascend."""
    return 8 + 7 * round(ids).bit_length()


def sparse_lif_forward(rows: int, lanes: int, spikes: float, unit: bool = True, own: float = 0.0) -> float:
    """``SparseLifForward``: for each row the gather of ``spikes`` inputs and ``own`` spikes of a recurrent layer, the
    neurons' step, and their bits. The input of the first layer may have other values than 1."""
    neuron = 6 * MOVE + 2 + 1 + HEAVISIDE + INTEGRATE + 3 + 28
    each = over_groups(lanes, lambda group: 16 + gather(spikes, group, unit) + gather(own, group) + group * neuron)
    return multi_vertex(22 + share(rows) * (20 + each))


def merge_bits(rows: int, pieces: int, stored: int = 0) -> float:
    """``MergeBits``: the ``pieces`` that neighbouring neuron tiles send become words of 32 neurons, on one of them. It
    also stores ``stored`` membranes for the way back, ``StoreStep``."""
    merging = multi_vertex(6 + share(rows) * (10 + pieces * 12)) if pieces else 0.0
    return merging + (multi_vertex(4 + share(stored) * 5) if stored else 0.0)


def select_spikes(rows: int, words: int, carried: float, slots: int) -> float:
    """``SelectSpikes``: bits are counted, ``carried`` ids written, and the other slots filled. Of few rows each has
    several workers."""
    parts = max(1, WORKERS // rows)
    written = carried * 10 + slots * 4 + (slots - carried) * 2
    row = 40 + words * 9 + math.ceil(words / parts) * 6 + math.ceil(written / parts)
    return multi_vertex(20 + share(rows * parts) * row)


def neuron_gradient(rows: int, lanes: int, slots: int, own: float) -> float:
    """``SparseLifStepBackward``: gradient of a tile's membranes for one step.

    The tile's own neurons, ``own`` of a row, are looked for in the row's slots, which ascend; those pass the surrogate.
    """
    each = LOOP + 3 * MOVE + CLAMP_UNIT + 1 + HEAVISIDE + CARRY + 2 * MOVE + 3 * 2 * MOVE + 3 + 1 + SELECT
    row = 16 + 2 * search(slots) + own * (14 + SURROGATE) + vectors(lanes) * each
    return multi_vertex(18 + share(rows) * row)


def weight_gradient(rows: int, spikes: float, lanes: int) -> float:
    """``SparseLinearWeightUpdate``: gradient of a tile's weights for one step of ``spikes`` input spikes a row.

    Each worker owns a sixth of the inputs, looks in each row for the first of its own, and adds their rows to the sum:
    no two workers write one element, and no index of the spikes is made.
    """
    looks = rows * (12 + search(spikes))
    return multi_vertex(12 + looks + share(rows * spikes) * (8 + vectors(lanes) * (LOOP + 3 * MOVE + 2)))


def value_gradient(rows: int, slots: float, lanes: int) -> float:
    """``SparseLinearValueGradient``: dot products of weight rows with the neurons' gradients, at every input slot."""
    sums = over_groups(
        lanes, lambda group: 8 + share(rows) * (14 + group * MOVE + slots * (SPIKE + group * (MOVE + 2) + 6))
    )
    return multi_vertex(9 + sums + share(rows) * slots * 2)


def slot_sum(elements: int, partials: int) -> float:
    """``SumSlots``: sum of ``partials`` arrays of ``elements`` floats."""
    return multi_vertex(7 + share(elements) * (8 + partials * 5)) if elements else 0.0


def each(elements: int, instructions: int) -> float:
    """A vertex that takes so many instructions for each element: ``LoadStep`` 8, ``StoreStep`` 5, ``FloatsOfIds`` 7."""
    return multi_vertex(4 + share(elements) * instructions) if elements else 0.0


# Tiles whose partial sums are added up at once; those of more in two stages, as csrc/graph/sparse_network.cpp.
FEW_PARTIALS = 16


def cluster(tiles: int) -> int:
    """Tiles that sum among themselves in the first of two stages."""
    return math.isqrt(tiles - 1) + 1 if tiles > 1 else 1


def row_sum(elements: int, rows: int) -> float:
    """``SumRows``: sum of ``rows`` arrays of ``elements`` floats."""
    return multi_vertex(5 + share(elements) * (6 + rows * 5)) if elements else 0.0


def zero(elements: int) -> float:
    """``Zero``."""
    return multi_vertex(4 + share(elements) * 4)


def weight_update(elements: int, optimizer: str) -> float:
    """One optimiser step over a tile's weights: 2 operations for SGD, 12 and a division for Adam."""
    operations = {"sgd": 2 * ARITHMETIC, "adam": 12 * ARITHMETIC + DIVISION}[optimizer]
    return multi_vertex(share(vectors(elements)) * operations)


# Instructions of a tile for a message, an interval of memory from one tile.
RECEIVE, SEND = 3, 2


def exchange(received: float, bytes_per_cycle: float, instructions: float = 0.0) -> float:
    """Cycles until a tile has received (or sent) so many bytes, and issued the instructions of its messages."""
    return max(math.ceil(received / bytes_per_cycle), math.ceil(instructions))


# ---- convolutions: csrc/vertices/sparse_conv.cpp

# The next index of a kernel, and whether it leads to a place; a packed place's parts.
KERNEL_INDEX, PLACE = 7, 24


def _hits(geometry: Geometry, lines: int) -> Tuple[float, float]:
    """How many of a kernel's lines, and columns, lead from a coordinate of the input into a band, on average."""
    down = min(geometry.kernel_height, lines * geometry.kernel_height / geometry.in_height)
    across = min(geometry.kernel_width, geometry.out_width * geometry.kernel_width / geometry.in_width)
    return down, across


def _place(geometry: Geometry) -> float:
    return PLACE + 12 * (geometry.stride_y > 1) + 12 * (geometry.stride_x > 1)


def _over_kernel(geometry: Geometry, lines: int, each: float, part: float = 1.0) -> float:
    """All indices of a kernel for a place, ``each`` instructions for one that leads into a ``part`` of the band."""
    down, across = _hits(geometry, lines)
    columns = 8 + geometry.kernel_width * KERNEL_INDEX + across * each
    return geometry.kernel_height * KERNEL_INDEX + down * part * columns


def _over_lanes(registers: float, group: int, single: int) -> float:
    """Groups of four vectors, of ``group`` instructions, and what is left one by one."""
    groups = registers // GROUP_VECTORS
    return groups * group + (registers - GROUP_VECTORS * groups) * single


def conv_forward(geometry: Geometry, rows: int, slots: float, lanes: int, lines: int) -> float:
    """``SparseConvForward`` and ``ChannelsFirst``: what the spikes of ``rows`` add to a band of ``lines`` lines."""
    places, groups = lines * geometry.out_width, math.ceil(lanes / 8)
    shares = min(lines, math.ceil(WORKERS / (rows * groups)))
    line = 37 - KERNEL_INDEX - 4 * (8 - min(lanes, 8))  # of four vectors; a vector less, 8 instructions less
    spike = _place(geometry) + _over_kernel(geometry, lines, line, 1 / shares)
    item = 20 + places / shares * (3 + min(lanes, 8) / 2) + slots * spike
    return multi_vertex(30 + share(rows * groups * shares) * item) + each(rows * places * lanes, 5)


def conv_weight_gradient(geometry: Geometry, rows: int, slots: float, lanes: int, lines: int) -> float:
    """``SparseConvWeightUpdate`` and ``ChannelsLast``: workers share the kernel's indices and groups of 8 lanes."""
    taps, groups = geometry.kernel_height * geometry.kernel_width, math.ceil(lanes / 8)
    down, across = _hits(geometry, lines)
    items = share(taps * groups)
    own = math.ceil(items / groups)
    each_tap = _over_lanes(min(4 * items, vectors(lanes) * own) / own, 28, LOOP + 3 * MOVE + 2)
    spike = _place(geometry) + 6 + own * (12 + down * across / taps * (10 + each_tap))
    ordered = each(rows * lines * geometry.out_width * lanes, 5)
    return multi_vertex(40 + rows * (12 + slots * spike)) + ordered


def conv_value_gradient(geometry: Geometry, rows: int, slots: float, lanes: int, lines: int) -> float:
    """``SparseConvValueGradient``: products of weights with the maps' gradients, at every slot."""
    each_tap = _over_lanes(vectors(lanes), 24, LOOP + 2 * MOVE + 2)
    slot = _place(geometry) + 8 + _over_kernel(geometry, lines, 8 + each_tap)
    return multi_vertex(20 + rows * (16 + share(slots) * slot))
