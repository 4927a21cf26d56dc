"""Plans of the operators ``SparseLinear`` and ``DelayLinear``, a linear layer on spike ids: the work of each tile.

Each group of tiles has all neurons and a share of the rows (time, sample). More groups leave fewer spikes to each tile
and need more memory, since every group stores the weights. With delays a sample's steps must be on one tile, so a row
is a sample, with the slots of all its steps.
"""

from functools import lru_cache
from typing import Optional, Tuple

from snnipu.planning.convolution import BLOCK_LANES
from snnipu.planning.cycles import vectors
from snnipu.planning.targets import Target

# Most of a tile's memory for the weights, their gradient and the gradients received from other tiles.
WEIGHTS_SHARE = 0.5
# Cycles, forwards and backwards: for a spike that arrives; for a spike and a neuron; to clear a weight's gradient; to
# fetch a weight and sum its gradient over groups, without the half cycle for each byte of the weight.
SPIKE, SYNAPSE, CLEARED, SUMMED = 28.0, 9.5, 4.0, 6.0
# Cycles for a spike and a neuron with delays, which are processed one by one, and for each tap.
DELAYED_SYNAPSE, TAP = 30.0, 27.0


@lru_cache(maxsize=256)
def plan_linear(
    neurons: int, inputs: int, rows: int, slots: int, weight_bytes: int, target: Target, ipus: int, taps: int = 0
) -> Tuple[int, int]:
    """Return the plan for the operator: (neurons of a tile, rows of a group of tiles).

    If no plan fits, the neurons are divided among all tiles.

    Args:
        neurons, inputs: sizes of the layer.
        rows: pairs (time, sample), or with delays samples.
        slots: slots of a row.
        weight_bytes: bytes of a weight.
        target, ipus: the machine.
        taps: taps of each synapse; 0 without delays.
    """
    tiles, ways = ipus * target.tiles_per_ipu, max(1, taps)
    synapse = DELAYED_SYNAPSE + TAP * taps if taps else SYNAPSE
    best: Optional[Tuple[float, int, int]] = None
    for lanes in range(2, min(BLOCK_LANES, 2 * vectors(neurons)) + 1, 2):
        blocks = -(-neurons // lanes)
        if blocks > tiles:
            continue
        for groups in (min(rows, tiles // blocks), 1):
            share = -(-rows // groups)
            shared = share < rows
            weights = inputs * lanes * ways
            lags = 4 * inputs * lanes if taps else 0
            if weights * (weight_bytes + (8 if shared else 4)) + lags > WEIGHTS_SHARE * target.bytes_per_tile:
                continue
            weight = CLEARED + (SUMMED + 0.5 * weight_bytes if shared else 0.0)
            cycles = share * slots * (SPIKE + synapse * lanes) + weights * weight
            if best is None or cycles < best[0]:
                best = (cycles, lanes, share)
    return (2 * -(-vectors(neurons) // tiles), rows) if best is None else best[1:]
