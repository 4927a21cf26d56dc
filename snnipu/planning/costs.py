"""Cycles of a tile with some neurons of a layer, and the division of partial sums of gradients among tiles."""

from typing import Tuple

from snnipu.planning import cycles
from snnipu.planning.network import COUNTS_BYTES, FLOAT, ID_BYTES, BaseNetworkSpec


def slot_share(elements: int, tiles: int) -> int:
    """Return the slots, an even number, that a tile sums if ``tiles`` divide ``elements`` slots."""
    return 2 * -(-cycles.vectors(elements) // tiles)


def slot_shares(elements: int, tiles: int) -> Tuple[int, ...]:
    """Return the partial sums that a tile receives in each stage of a sum over tiles.

    Few tiles sum ``elements`` slots in one stage. Many tiles sum in two: within clusters of tiles, then over clusters.
    """
    if tiles <= cycles.FEW_PARTIALS:
        return (slot_share(elements, tiles) * tiles,)
    wide = cycles.cluster(tiles)
    clusters = -(-tiles // wide)
    # If the last cluster has fewer tiles, each of its tiles sums more.
    fewest = tiles - (clusters - 1) * wide
    first = max(slot_share(elements, wide) * wide, slot_share(elements, fewest) * fewest)
    return (first, slot_share(elements, tiles) * clusters)


def stage_sum(elements: int, tiles: int, numbers: int, stage: int) -> float:
    """Return a tile's cycles for one stage of :func:`slot_shares`, which gave ``numbers`` partial sums for it."""
    if stage == 0 and tiles > cycles.FEW_PARTIALS:
        share = slot_share(elements, cycles.cluster(tiles))
        return cycles.row_sum(share, -(-numbers // share))
    share = slot_share(elements, tiles)
    return cycles.slot_sum(share, -(-numbers // share))


def output_slots(network: BaseNetworkSpec, entry: int, width: int) -> float:
    """Return the average slots of a row of layer ``entry`` that belong to a tile with ``width`` lanes."""
    return min(network.slots[entry] * width / network.sizes[entry], float(width))


def forward_cycles(network: BaseNetworkSpec, entry: int, width: int, rows: int) -> float:
    """Return the cycles of a forward step on a tile with ``width`` lanes of layer ``entry`` for ``rows`` samples."""
    recurrent = network.spikes[entry] if network.is_recurrent(entry) else 0.0
    return cycles.sparse_lif_forward(rows, width, network.spikes[entry - 1], entry > 1, recurrent)


def gradient_cycles(network: BaseNetworkSpec, entry: int, width: int, rows: int) -> float:
    """Return the cycles of the same tile and step for the gradients of its weights and input spikes."""
    total = cycles.weight_gradient(rows, network.spikes[entry - 1], width)
    if network.is_recurrent(entry):
        total += cycles.weight_gradient(rows, network.spikes[entry], width)
    return total + sum(cycles.value_gradient(rows, slots, width) for slots in network.gradient_slots(entry))


def tile_cycles(network: BaseNetworkSpec, entry: int, width: int, rows: int) -> float:
    """Return the cycles of a step, forwards and backwards, on a tile with ``width`` lanes of layer ``entry``."""
    slots = network.slots[entry]
    total = forward_cycles(network, entry, width, rows)
    if network.training:
        total += cycles.neuron_gradient(rows, width, slots, output_slots(network, entry, width))
        total += gradient_cycles(network, entry, width, rows)
    return total


def split_cycles(network: BaseNetworkSpec, entry: int, pairs: int, groups: int) -> float:
    """Return the cycles of a step that a split of a layer adds to :func:`tile_cycles`.

    They are the exchange, the sums of partial gradients, and a step's share of the work that is done once per batch.
    """
    width, rows = 2 * pairs, -(-network.batch_size // groups)
    tiles = -(-cycles.vectors(network.sizes[entry]) // pairs)
    weights = sum(network.input_sizes(entry)) * width
    arriving = rows * (network.slots[entry - 1] * ID_BYTES + COUNTS_BYTES)
    if network.is_recurrent(entry):
        arriving += rows * (network.slots[entry] * ID_BYTES + COUNTS_BYTES) * (2 if network.training else 1)
    once = 0.0
    if groups > 1:
        once += weights * network.weight_bytes / 4.0  # every group receives a copy of the weights
    if network.training:
        arriving += rows * (network.slots[entry] * (ID_BYTES + FLOAT) + network.slots[entry - 1] * ID_BYTES)
        for slots in network.gradient_slots(entry):
            numbers = slot_shares(rows * slots, tiles)
            arriving += FLOAT * sum(numbers)
            once += network.steps * sum(
                stage_sum(rows * slots, tiles, number, stage) for stage, number in enumerate(numbers)
            )
        if groups > 1:
            updated = -(-weights // groups)
            once += updated * groups * FLOAT / 4.0 + cycles.row_sum(updated, groups)
        once += cycles.zero(weights)
    return arriving / 4.0 + once / network.steps
