"""Predicted cycles of vertices and exchange: all formulas, each with its source.

A tile has six workers that take turns, so that a worker's instruction takes six cycles of the tile. A ``MultiVertex``
costs its supervisor's overhead and six times its slowest worker. The formulas count the instructions of snnipu's
vertices; ``csrc/ipu_model/perf_estimates.cpp`` explains each. The weight update is PopART's operator, so its formula
counts operations of PopLibs. The formulas agree with the estimators that PopLibs ships for its vertices (MIT licence):

* A worker's start and end take 29 instructions, the supervisor 11 cycles. Addition, subtraction or multiplication of N
  floats takes ``6 (29 + 3 ceil(ceil(N / 6) / 2)) + 11`` cycles.
* A gather of rows (MultiSlice) takes ``6 (30 + sum over the rows (19 + 2 vectors))``, a vector being two floats. It
  checks and divides each index. snnipu's vertices take 5 instructions per row and 3 per vector.
* Exchange takes ``ceil(bytes / bytes per cycle)``. A message adds 3 instructions on the receiving tile and 2 on the
  sending tile. These numbers are from https://github.com/osmarks/ipu-stack, a public exchange compiler for Mk2.

``rows`` are samples of the batch, which the workers divide; ``lanes`` are the neurons of a tile, rounded up to pairs.
All cycles are predicted, not measured.
"""

import math
from typing import Callable, Tuple

from snnipu.ops._maps import Geometry

WORKERS = 6
# Overhead of a MultiVertex: its supervisor, and start and end of each worker.
SUPERVISOR = 11
WORKER = 29
# Instructions: a load or store of two lanes; a loop's branch and addresses; a selection by a mask; H(u); a division.
MOVE, LOOP, SELECT, HEAVISIDE, DIVISION = 1, 3, 3, 2, 10
CLAMP_UNIT = 2 * (1 + SELECT)
# Instructions for the id and address of a spike.
SPIKE = 5
# A step with reset to zero, beta (1 - r) u + x, and its adjoint.
INTEGRATE, CARRY = 4, 5
# 1 / (slope |u| + 1)^2 times a gradient, zero below a bound.
SURROGATE = (2 + SELECT) + 3 + DIVISION + 1 + SELECT
# Vectors in the registers of the inner loops; ids are read once for that many vectors.
GROUP_VECTORS = 4
# Instructions of a PopLibs operation on two floats.
ARITHMETIC = 3


def multi_vertex(worker: float) -> float:
    """Return the cycles of a MultiVertex whose slowest worker takes ``worker`` instructions after its start."""
    return SUPERVISOR + WORKERS * (WORKER + worker)


def share(items: float) -> int:
    """Return the largest share of ``items`` of a worker."""
    return math.ceil(items / WORKERS)


def vectors(lanes: int) -> int:
    """Return the number of vectors, of two lanes each."""
    return math.ceil(lanes / 2)


def lanes(neurons: int) -> int:
    """Return the number of neurons, rounded up to pairs."""
    return 2 * vectors(neurons)


def over_groups(lanes: int, cost: Callable[[int], float]) -> float:
    """Return the sum of ``cost(vectors)`` over the groups of ``forLaneGroups`` (``csrc/neuron/sparse.hpp``)."""
    total = vectors(lanes)
    return total // GROUP_VECTORS * cost(GROUP_VECTORS) + total % GROUP_VECTORS * cost(1)


def gather(spikes: float, group: int, unit: bool = True) -> float:
    """Return a worker's instructions to sum ``spikes`` rows of ``group`` vectors; ``unit``: all spikes have value 1.

    A vector takes two loads and an addition; other values than 1 need a multiplication.
    """
    return spikes * (SPIKE + (0 if unit else 1) + group * (MOVE + (1 if unit else 2)))


def search(ids: float) -> int:
    """Return a worker's instructions for a binary search among ``ids`` ascending ids."""
    return 8 + 7 * round(ids).bit_length()


def sparse_lif_forward(rows: int, lanes: int, spikes: float, unit: bool = True, recurrent: float = 0.0) -> float:
    """Return the cycles of ``SparseLifForward``: for each row the gathers, the neurons' step and their fired bits.

    Args:
        rows: samples.
        lanes: lanes of the tile.
        spikes: input spikes of a row.
        unit: True if all inputs have value 1; those of the first layer may have others.
        recurrent: a recurrent layer's spikes of a row.
    """
    neuron = 6 * MOVE + 2 + 1 + HEAVISIDE + INTEGRATE + 3 + 28
    each = over_groups(
        lanes, lambda group: 16 + gather(spikes, group, unit) + gather(recurrent, group) + group * neuron
    )
    return multi_vertex(22 + share(rows) * (20 + each))


def merge_bits(rows: int, pieces: int, stored: int = 0) -> float:
    """Return the cycles of ``MergeBits``: a tile merges ``pieces`` of its neighbours to words of 32 neurons.

    ``StoreStep`` also stores ``stored`` membranes for the backward pass.
    """
    merging = multi_vertex(6 + share(rows) * (10 + pieces * 12)) if pieces else 0.0
    return merging + (multi_vertex(4 + share(stored) * 5) if stored else 0.0)


def select_spikes(rows: int, words: int, ids: float, slots: int) -> float:
    """Return the cycles of ``SelectSpikes``: it counts bits, writes ``ids`` ids of a row and fills the other slots.

    If there are fewer rows than workers, several workers share a row.
    """
    parts = max(1, WORKERS // rows)
    written = ids * 10 + slots * 4 + (slots - ids) * 2
    row = 40 + words * 9 + math.ceil(words / parts) * 6 + math.ceil(written / parts)
    return multi_vertex(20 + share(rows * parts) * row)


def neuron_gradient(rows: int, lanes: int, slots: int, local_slots: float) -> float:
    """Return the cycles of ``SparseLifStepBackward``: the gradient of a tile's membranes for one step.

    A binary search finds the tile's slots, ``local_slots`` of a row, among the row's ascending slots. Their neurons
    evaluate the surrogate.
    """
    each = LOOP + 3 * MOVE + CLAMP_UNIT + 1 + HEAVISIDE + CARRY + 2 * MOVE + 3 * 2 * MOVE + 3 + 1 + SELECT
    row = 16 + 2 * search(slots) + local_slots * (14 + SURROGATE) + vectors(lanes) * each
    return multi_vertex(18 + share(rows) * row)


def weight_gradient(rows: int, spikes: float, lanes: int) -> float:
    """Return the cycles of ``SparseLinearWeightUpdate``: the gradient of a tile's weights for one step.

    Each worker adds the rows of a sixth of the inputs to the sum, so that no two workers write to one element. It
    searches each row, of ``spikes`` input spikes, for its first input.
    """
    searches = rows * (12 + search(spikes))
    return multi_vertex(12 + searches + share(rows * spikes) * (8 + vectors(lanes) * (LOOP + 3 * MOVE + 2)))


def value_gradient(rows: int, slots: float, lanes: int) -> float:
    """Return the cycles of ``SparseLinearValueGradient``: a dot product of weights and gradients per input slot."""
    sums = over_groups(
        lanes, lambda group: 8 + share(rows) * (14 + group * MOVE + slots * (SPIKE + group * (MOVE + 2) + 6))
    )
    return multi_vertex(9 + sums + share(rows) * slots * 2)


def _over_elements(elements: int, start: int, each: int) -> float:
    """Return the cycles of a vertex with ``start`` instructions, and ``each`` instructions for an element."""
    return multi_vertex(start + share(elements) * each) if elements else 0.0


def slot_sum(elements: int, partials: int) -> float:
    """Return the cycles of ``SumSlots``: the sum of ``partials`` arrays of ``elements`` floats."""
    return _over_elements(elements, 7, 8 + partials * 5)


def elementwise(elements: int, instructions: int) -> float:
    """Return the cycles of an elementwise vertex: ``LoadStep``, ``StoreStep`` or ``FloatsOfIds``."""
    return _over_elements(elements, 4, instructions)


# Most tiles whose partial sums are added in one stage; csrc/graph/sparse_network.cpp has the same number.
FEW_PARTIALS = 16


def cluster(tiles: int) -> int:
    """Return the tiles of a cluster, which sum in the first of two stages."""
    return math.isqrt(tiles - 1) + 1 if tiles > 1 else 1


def row_sum(elements: int, rows: int) -> float:
    """Return the cycles of ``SumRows``: the sum of ``rows`` arrays of ``elements`` floats."""
    return _over_elements(elements, 5, 6 + rows * 5)


def zero(elements: int) -> float:
    """Return the cycles of ``Zero``: setting ``elements`` floats to zero."""
    return multi_vertex(4 + share(elements) * 4)


def weight_update(elements: int, optimizer: str) -> float:
    """Return the cycles of an optimiser step of a tile's weights: SGD has 2 operations, Adam 12 and a division."""
    operations = {"sgd": 2 * ARITHMETIC, "adam": 12 * ARITHMETIC + DIVISION}[optimizer]
    return multi_vertex(share(vectors(elements)) * operations)


# Instructions of a tile for a message: an interval of memory that one tile sends to another.
RECEIVE, SEND = 3, 2


def exchange(received: float, bytes_per_cycle: float, instructions: float = 0.0) -> float:
    """Return the cycles in which a tile receives (or sends) bytes and issues the instructions of its messages."""
    return max(math.ceil(received / bytes_per_cycle), math.ceil(instructions))


# ---- convolutions: csrc/vertices/sparse_conv.cpp

# Instructions to step to the next kernel index and test if it reaches a position, and to unpack a packed position.
KERNEL_INDEX, PLACE = 7, 24


def _hits(geometry: Geometry, lines: int) -> Tuple[float, float]:
    """Return the average numbers of kernel lines and columns that map an input position into a band."""
    down = min(geometry.kernel_height, lines * geometry.kernel_height / geometry.in_height)
    across = min(geometry.kernel_width, geometry.out_width * geometry.kernel_width / geometry.in_width)
    return down, across


def _position_instructions(geometry: Geometry) -> float:
    return PLACE + 12 * (geometry.stride_y > 1) + 12 * (geometry.stride_x > 1)


def _over_kernel(geometry: Geometry, lines: int, hit: float, part: float = 1.0) -> float:
    """Return the instructions to visit a kernel's indices for a position; one that hits the band takes ``hit`` more.

    ``part``: the fraction of the band that one worker processes.
    """
    down, across = _hits(geometry, lines)
    columns = 8 + geometry.kernel_width * KERNEL_INDEX + across * hit
    return geometry.kernel_height * KERNEL_INDEX + down * part * columns


def _over_lanes(registers: float, group: int, single: int) -> float:
    """Return the instructions for vectors: ``group`` for each group of four, ``single`` for each one left."""
    groups = registers // GROUP_VECTORS
    return groups * group + (registers - GROUP_VECTORS * groups) * single


def conv_forward(geometry: Geometry, rows: int, slots: float, lanes: int, lines: int) -> float:
    """Return the cycles of ``SparseConvForward`` and ``ChannelsFirst``: the output of a band for ``rows`` rows."""
    places, groups = lines * geometry.out_width, math.ceil(lanes / 8)
    shares = min(lines, math.ceil(WORKERS / (rows * groups)))
    line = 37 - KERNEL_INDEX - 4 * (8 - min(lanes, 8))  # four vectors; each vector fewer saves 8 instructions
    spike = _position_instructions(geometry) + _over_kernel(geometry, lines, line, 1 / shares)
    item = 20 + places / shares * (3 + min(lanes, 8) / 2) + slots * spike
    return multi_vertex(30 + share(rows * groups * shares) * item) + elementwise(rows * places * lanes, 5)


def conv_weight_gradient(geometry: Geometry, rows: int, slots: float, lanes: int, lines: int) -> float:
    """Return the cycles of ``SparseConvWeightUpdate`` and ``ChannelsLast``.

    The workers divide the kernel's indices and groups of 8 lanes.
    """
    taps, groups = geometry.kernel_height * geometry.kernel_width, math.ceil(lanes / 8)
    down, across = _hits(geometry, lines)
    items = share(taps * groups)
    worker_taps = math.ceil(items / groups)
    each_tap = _over_lanes(min(4 * items, vectors(lanes) * worker_taps) / worker_taps, 28, LOOP + 3 * MOVE + 2)
    spike = _position_instructions(geometry) + 6 + worker_taps * (12 + down * across / taps * (10 + each_tap))
    ordered = elementwise(rows * lines * geometry.out_width * lanes, 5)
    return multi_vertex(40 + rows * (12 + slots * spike)) + ordered


def conv_value_gradient(geometry: Geometry, rows: int, slots: float, lanes: int, lines: int) -> float:
    """Return the cycles of ``SparseConvValueGradient``: products of weights and the maps' gradients at every slot."""
    each_tap = _over_lanes(vectors(lanes), 24, LOOP + 2 * MOVE + 2)
    slot = _position_instructions(geometry) + 8 + _over_kernel(geometry, lines, 8 + each_tap)
    return multi_vertex(20 + rows * (16 + share(slots) * slot))
