"""Cycles that vertices and exchange are taken for, in one place, each formula with its source.

A tile has six workers that take turns, so that a worker's instruction takes six cycles of the tile. A ``MultiVertex``
costs its supervisor's overhead and six times its slowest worker. The anchors are the estimators that PopLibs ships for
its own vertices (MIT licence):

* float addition, subtraction or multiplication of N elements: ``6 (29 + 3 ceil(ceil(N / 6) / 2)) + 11``: three
  instructions for two elements;
* gather of rows (MultiSlice): ``6 (30 + sum over the rows (19 + 2 vectors))``, a vector being two floats;
* comparison of floats: 14 cycles for four elements, division: 10 for two;
* exchange: ``ceil(bytes / bytes per cycle)``.

``rows`` are samples of the batch, which the workers share; ``lanes`` neurons of a tile, rounded up to pairs. A cycle
count here is a model's, not a measurement.
"""

import math
from typing import Tuple

WORKERS = 6
# Overhead of a MultiVertex: its supervisor, and start and end of each worker.
SUPERVISOR = 11
WORKER = 30
# Instructions for a vector of two floats.
ARITHMETIC = 3
COMPARE = 7
DIVIDE = 10
# A row of a gather: address and loop; and a vector of it.
GATHER_ROW = 19
GATHER_VECTOR = 2
# Converting a vector of two halves.
CONVERT = 1
# An id read and compared, two of these in a loop that does nothing else.
SCAN = 4
# What a neuron's step costs besides its gather, for a vector: scale, bias, decay, reset and sum; three comparisons.
LIF_STEP = 5 * ARITHMETIC + 3 * COMPARE
# Its adjoint: reset, decay, sums of the gradients of bias, beta and threshold; one comparison.
LIF_ADJOINT = 9 * ARITHMETIC + COMPARE
# 1 / (slope |u| + 1)^2 times a gradient.
SURROGATE = DIVIDE + 4 * ARITHMETIC
# Registers of the vertices' inner loop: ids are read once for so many vectors.
GROUP_VECTORS = 4


def multi_vertex(worker: float) -> float:
    """Cycles of a MultiVertex whose slowest worker takes ``worker`` instructions after its start."""
    return SUPERVISOR + WORKERS * (WORKER + worker)


def share(items: int) -> int:
    """The largest share of ``items`` that a worker has."""
    return math.ceil(items / WORKERS)


def vectors(lanes: int) -> int:
    """Vectors of two lanes."""
    return math.ceil(lanes / 2)


def _groups(lanes: int) -> Tuple[int, int]:
    """Passes over a row's ids, and the vectors of all of them: ``csrc/neuron/sparse.hpp``, ``forLaneGroups``."""
    total = vectors(lanes)
    return total // GROUP_VECTORS + total % GROUP_VECTORS, total


def gather(spikes: float, lanes: int, half: bool = False) -> float:
    """A worker's instructions to sum ``spikes`` rows of ``lanes`` weights: PopLibs' gather."""
    passes, total = _groups(lanes)
    return spikes * (GATHER_ROW * passes + (GATHER_VECTOR + (CONVERT if half else 0)) * total)


def sparse_lif_forward(rows: int, lanes: int, spikes: float, half: bool = False) -> float:
    """``SparseLifForward``: for each row the gather of ``spikes`` inputs, the neurons' step, and their bits."""
    bits = 12
    return multi_vertex(share(rows) * (bits + gather(spikes, lanes, half) + LIF_STEP * vectors(lanes)))


def select_spikes(rows: int, pieces: int, neurons: int, carried: float, slots: int) -> float:
    """``MergeBits`` twice and ``SelectSpikes``: from bits to ids.

    The ``pieces`` that the neuron tiles send become words of 32 neurons, once of what fired and once of what carries
    gradient; the words are counted and searched, ``carried`` ids written, slots filled.
    """
    merge, count, search, write, fill = 8, 7, 4, 10, 4
    words = math.ceil(neurons / 32)
    merged = 2 * multi_vertex(share(rows) * (10 + merge * pieces))
    return merged + multi_vertex(share(rows) * (20 + (count + search) * words + write * carried + fill * slots))


def neuron_gradient(rows: int, lanes: int, slots: int, own: float) -> float:
    """``SparseLifStepBackward``: gradient of a tile's membranes for one step.

    A row's slots are searched for the tile's own neurons, ``own`` of all rows; those pass the surrogate.
    """
    found = share(rows) * SCAN * slots + math.ceil(own / WORKERS) * (SURROGATE + GATHER_ROW)
    return multi_vertex(found + share(rows) * vectors(lanes) * LIF_ADJOINT)


def weight_gradient(events: float, lanes: int) -> float:
    """``SparseLinearWeightUpdate``: gradient of a tile's weights for one step of ``events`` input spikes of all rows.

    Each worker owns a sixth of the inputs, reads all ids, and adds the rows of its own to the sum: no two workers write
    one element, and no index of the spikes is made.
    """
    passes, total = _groups(lanes)
    own = events / WORKERS
    return multi_vertex(SCAN * events + own * (GATHER_ROW * passes + 2 * GATHER_VECTOR * total))


def value_gradient(rows: int, slots: float, lanes: int, half: bool = False) -> float:
    """``SparseLinearValueGradient``: dot products of weight rows with the neurons' gradients, at every input slot."""
    reduce = 6
    return multi_vertex(share(rows) * slots * (gather(1, lanes, half) + reduce))


def reduction(elements: int, partials: int) -> float:
    """``SumSlots``: sum of ``partials`` arrays of ``elements`` floats."""
    return multi_vertex(share(vectors(elements)) * ARITHMETIC * max(partials - 1, 0)) if elements else 0.0


def weight_update(elements: int, optimizer: str) -> float:
    """One optimiser step over a tile's weights: 2 operations for SGD, 12 and a division for Adam."""
    operations = {"sgd": 2 * ARITHMETIC, "adam": 12 * ARITHMETIC + DIVIDE}[optimizer]
    return multi_vertex(share(vectors(elements)) * operations)


def exchange(received: float, bytes_per_cycle: float) -> float:
    """Cycles until a tile has received (or sent) so many bytes."""
    return math.ceil(received / bytes_per_cycle)
