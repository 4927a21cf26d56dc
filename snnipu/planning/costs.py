"""Cycles of a tile by what it has of a layer, and how partial sums of gradients are shared out among tiles."""

from typing import Tuple

from snnipu.planning import cycles
from snnipu.planning.network import COUNTS_BYTES, FLOAT, ID_BYTES, NetworkSpec


def slot_share(elements: int, tiles: int) -> int:
    """Slots that a tile sums where ``tiles`` share ``elements``, in pairs."""
    return 2 * -(-cycles.vectors(elements) // tiles)


def slot_shares(elements: int, tiles: int) -> Tuple[int, ...]:
    """Numbers that a tile gets to sum in each stage, where ``tiles`` have partial sums of so many slots: those of all
    tiles; or of a cluster's tiles first, and then of the clusters."""
    if tiles <= cycles.FEW_PARTIALS:
        return (slot_share(elements, tiles) * tiles,)
    wide = cycles.cluster(tiles)
    clusters = -(-tiles // wide)
    # The last cluster may have fewer tiles, and each of them more to do.
    fewest = tiles - (clusters - 1) * wide
    first = max(slot_share(elements, wide) * wide, slot_share(elements, fewest) * fewest)
    return (first, slot_share(elements, tiles) * clusters)


def stage_sum(elements: int, tiles: int, numbers: int, stage: int) -> float:
    """A tile's cycles for a stage of :func:`slot_shares`: ``numbers`` are those of all its slots."""
    if stage == 0 and tiles > cycles.FEW_PARTIALS:
        share = slot_share(elements, cycles.cluster(tiles))
        return cycles.row_sum(share, -(-numbers // share))
    share = slot_share(elements, tiles)
    return cycles.slot_sum(share, -(-numbers // share))


def output_slots(network: NetworkSpec, entry: int, width: int) -> float:
    """Slots of a row of layer ``entry`` that belong to a tile of ``width`` lanes, on average."""
    return min(network.slots[entry] * width / network.sizes[entry], float(width))


def forward_cycles(network: NetworkSpec, entry: int, width: int, rows: int) -> float:
    """Cycles of a step forwards on a tile with ``width`` lanes of layer ``entry`` for ``rows`` samples."""
    own = network.spikes[entry] if network.is_recurrent(entry) else 0.0
    return cycles.sparse_lif_forward(rows, width, network.spikes[entry - 1], entry > 1, own)


def gradient_cycles(network: NetworkSpec, entry: int, width: int, rows: int) -> float:
    """Cycles of the same tile and step for the gradients of its weights, and of the spikes that it reads."""
    total = cycles.weight_gradient(rows, network.spikes[entry - 1], width)
    if network.is_recurrent(entry):
        total += cycles.weight_gradient(rows, network.spikes[entry], width)
    return total + sum(cycles.value_gradient(rows, slots, width) for slots in network.passes_back(entry))


def tile_cycles(network: NetworkSpec, entry: int, width: int, rows: int) -> float:
    """Cycles of a step, forwards and backwards, on a tile with ``width`` lanes of layer ``entry`` for ``rows``."""
    slots = network.slots[entry]
    total = forward_cycles(network, entry, width, rows)
    if network.training:
        total += cycles.neuron_gradient(rows, width, slots, output_slots(network, entry, width))
        total += gradient_cycles(network, entry, width, rows)
    return total


def spread_cycles(network: NetworkSpec, entry: int, pairs: int, groups: int) -> float:
    """Cycles of a step that a spread costs beside :func:`tile_cycles`: what a tile receives, sums of the partial
    gradients, and its share of what is done once a batch."""
    width, rows = 2 * pairs, -(-network.batch_size // groups)
    tiles = -(-cycles.vectors(network.sizes[entry]) // pairs)
    weights = sum(network.reads(entry)) * width
    arriving = rows * (network.slots[entry - 1] * ID_BYTES + COUNTS_BYTES)
    if network.is_recurrent(entry):
        arriving += rows * (network.slots[entry] * ID_BYTES + COUNTS_BYTES) * (2 if network.training else 1)
    once = 0.0
    if groups > 1:
        once += weights * network.weight_bytes / 4.0  # the weights, to every group
    if network.training:
        arriving += rows * (network.slots[entry] * (ID_BYTES + FLOAT) + network.slots[entry - 1] * ID_BYTES)
        for slots in network.passes_back(entry):
            numbers = slot_shares(rows * slots, tiles)
            arriving += FLOAT * sum(numbers)
            once += network.steps * sum(
                stage_sum(rows * slots, tiles, number, stage) for stage, number in enumerate(numbers)
            )
        if groups > 1:
            own = -(-weights // groups)
            once += own * groups * FLOAT / 4.0 + cycles.row_sum(own, groups)
        once += cycles.zero(weights)
    return arriving / 4.0 + once / network.steps
