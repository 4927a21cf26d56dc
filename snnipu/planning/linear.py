"""Which tile does what of a linear layer on spike ids: a plan of the operators ``SparseLinear`` and ``DelayLinear``.

Groups of tiles have all neurons each, and a share of the rows (time, sample). More groups leave fewer spikes to each
tile, and need more memory: weights are there once for every group. With delays the steps of a sample belong together:
the rows that are shared out are samples, with the slots of all their steps.
"""

from functools import lru_cache
from typing import Optional, Tuple

from snnipu.planning.convolution import BLOCK_LANES
from snnipu.planning.cycles import vectors
from snnipu.planning.targets import Target

# Of a tile's memory, what weights, their gradient, and what is received of the others' gradients may take.
WEIGHTS_SHARE = 0.5
# Cycles, forwards and backwards: of a spike that arrives, of a spike and a neuron; of a weight that is cleared, and
# fetched and summed over groups, the latter with half a cycle for each of its bytes.
SPIKE, SYNAPSE, CLEARED, SUMMED = 28.0, 9.5, 4.0, 6.0
# Of a spike and a neuron with delays, which are gone to one by one, and of each tap.
DELAYED_SYNAPSE, TAP = 30.0, 27.0


@lru_cache(maxsize=256)
def plan_linear(
    neurons: int, inputs: int, rows: int, slots: int, weight_bytes: int, target: Target, ipus: int, taps: int = 0
) -> Tuple[int, int]:
    """Return the plan that the operator takes: neurons of a tile, rows of a group of tiles.

    ``slots`` are those of a row, ``taps`` those of each synapse, 0 without delays. Where nothing fits, the neurons are
    on as many tiles as there are.
    """
    tiles, ways = ipus * target.tiles_per_ipu, max(1, taps)
    synapse = DELAYED_SYNAPSE + TAP * taps if taps else SYNAPSE
    best: Optional[Tuple[float, int, int]] = None
    for lanes in range(2, min(BLOCK_LANES, 2 * vectors(neurons)) + 1, 2):
        blocks = -(-neurons // lanes)
        if blocks > tiles:
            continue
        for wanted in (min(rows, tiles // blocks), 1):
            share = -(-rows // wanted)
            shared = share < rows
            held = inputs * lanes * ways
            lags = 4 * inputs * lanes if taps else 0
            if held * (weight_bytes + (8 if shared else 4)) + lags > WEIGHTS_SHARE * target.bytes_per_tile:
                continue
            weight = CLEARED + (SUMMED + 0.5 * weight_bytes if shared else 0.0)
            cycles = share * slots * (SPIKE + synapse * lanes) + held * weight
            if best is None or cycles < best[0]:
                best = (cycles, lanes, share)
    return (2 * -(-vectors(neurons) // tiles), rows) if best is None else best[1:]
