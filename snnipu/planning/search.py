"""The search for a plan: of all ways to spread a network over tiles that fit, the one that is estimated fastest."""

import itertools
from dataclasses import replace
from functools import lru_cache
from typing import List, NamedTuple, Optional, Tuple, Union

from snnipu.planning import cycles
from snnipu.planning.costs import spread_cycles, tile_cycles
from snnipu.planning.mapping import FULL, LayerPlan, Plan, check_memory, layer_memory, memory_of
from snnipu.planning.network import NetworkSpec
from snnipu.planning.performance import estimate
from snnipu.planning.targets import Target, target_named

MAX_IPUS = 64
SELECTION_TILES = (1, 2, 4, 8, 16, 24, 48, 96, 192)
PAIRS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Widths of tiles that are all tried out.
MOST_WIDTHS = 48


class _Spread(NamedTuple):
    """A way to spread a layer: pairs of neurons on a tile, and groups of tiles."""

    cycles: float
    tiles: int
    pairs: int
    groups: int


def _spreads(network: NetworkSpec, target: Target, available: int, fitting: bool) -> List[List[_Spread]]:
    """For each layer the ways to spread it that no other one beats, the fewest tiles first: of more tiles each is
    faster. ``fitting``: those that tiles have memory for; else all of them, by their memory in the place of cycles."""
    found = []
    counts = sorted({-(-network.batch_size // rows) for rows in range(1, network.batch_size + 1)})
    for entry, size in enumerate(network.sizes[1:], 1):
        all_pairs = cycles.vectors(size)
        widths = sorted({-(-all_pairs // tiles) for tiles in range(1, min(all_pairs, available) + 1)})
        # Of wide tiles a few are enough to choose from.
        widths = widths if len(widths) <= MOST_WIDTHS else sorted({*widths[:MOST_WIDTHS], *widths[MOST_WIDTHS::8]})
        every: List[_Spread] = []
        for pairs in widths:
            for groups in counts:
                tiles = -(-all_pairs // pairs) * groups
                if tiles > available:
                    break
                rows = -(-network.batch_size // groups)
                memory = sum(layer_memory(network, entry, 2 * pairs, rows, groups).values())
                time = tile_cycles(network, entry, 2 * pairs, rows) + spread_cycles(network, entry, pairs, groups)
                if not fitting:
                    every.append(_Spread(float(memory), tiles, pairs, groups))
                elif memory <= FULL * target.bytes_per_tile:
                    every.append(_Spread(time, tiles, pairs, groups))
        best: List[_Spread] = []
        for spread in sorted(every, key=lambda spread: (spread.tiles, spread.cycles)):
            if not best or spread.cycles < best[-1].cycles:
                best.append(spread)
        found.append(best)
    return found


def _balanced(total: int, parts: int, unit: int) -> Tuple[int, ...]:
    """``total`` in ``parts`` as equal as they can be in whole units, larger ones first; the last takes what is left."""
    units = -(-total // unit)
    each, more = divmod(units, parts)
    counts = [unit * (each + (index < more)) for index in range(parts)]
    counts[-1] -= unit * units - total
    return tuple(counts)


def _place(
    network: NetworkSpec, available: int, selection: int, least: int, spreads: List[List[_Spread]]
) -> Optional[List[LayerPlan]]:
    """Layers one after another on ``available`` tiles, ``selection`` tiles each, ``least`` pairs a tile or more where a
    layer has so many; None where there are too few tiles."""
    selecting = min(selection, network.batch_size)
    if selecting * network.layers > available:
        return None
    budget = available
    ways = []
    for index, size in enumerate(network.sizes[1:]):
        wanted = min(least, cycles.vectors(size))
        enough = [spread for spread in spreads[index] if spread.pairs >= wanted]
        ways.append(enough or spreads[index][:1])
    if not all(ways) or sum(way[0].tiles for way in ways) > budget:
        return None
    chosen = [0] * network.layers
    taken = sum(way[0].tiles for way in ways)
    while True:
        # The slowest layer gets more tiles, as long as there are some.
        slowest = max(range(network.layers), key=lambda index: ways[index][chosen[index]].cycles)
        if chosen[slowest] + 1 == len(ways[slowest]):
            break
        more = ways[slowest][chosen[slowest] + 1].tiles - ways[slowest][chosen[slowest]].tiles
        if taken + more > budget:
            break
        chosen[slowest] += 1
        taken += more
    placed, tile = [], 0
    for index, size in enumerate(network.sizes[1:]):
        spread = ways[index][chosen[index]]
        neurons = _balanced(size, -(-cycles.vectors(size) // spread.pairs), 2)
        groups = _balanced(network.batch_size, spread.groups, 1)
        placed.append(LayerPlan(index + 1, tile, neurons, groups, 0, _balanced(network.batch_size, selecting, 1)))
        tile += placed[-1].tiles
    first = min(tile, available - selecting * network.layers)
    return [replace(layer, first_selection_tile=first + selecting * index) for index, layer in enumerate(placed)]


def plan(
    network: NetworkSpec,
    target: Union[str, Target] = "mk2",
    ipus: int = 1,
    *,
    neurons_per_tile: Optional[int] = None,
    selection_tiles: Optional[int] = None,
) -> Plan:
    """Spread a network over tiles.

    The number of selection tiles of a layer and the least number of neurons of a tile are tried out; of what fits, the
    plan that the performance model finds fastest is taken. Within one choice, layers share the tiles so that the
    busiest tile is as little busy as possible.

    Args:
        network: what to map.
        target: ``mk1``, ``mk2`` or ``bow``, or a machine of these with other numbers.
        ipus: how many of them.
        neurons_per_tile: the least number on a tile, an even one; None: tried out.
        selection_tiles: of each layer; None: tried out.

    Returns:
        A plan; where nothing fits, the one whose fullest tile is the least full, with what is wrong in ``problems``.

    Raises:
        ValueError: a wrong argument; the message names it.
    """
    machine = target if isinstance(target, Target) else target_named(target)
    if isinstance(ipus, bool) or not isinstance(ipus, int) or not 1 <= ipus <= MAX_IPUS:
        raise ValueError(f"ipus must be from 1 to {MAX_IPUS}, got {ipus!r}")
    if neurons_per_tile is not None and (neurons_per_tile < 2 or neurons_per_tile % 2):
        raise ValueError(f"neurons_per_tile must be even and at least 2, got {neurons_per_tile!r}")
    if selection_tiles is not None and selection_tiles < 1:
        raise ValueError(f"selection_tiles must be at least 1, got {selection_tiles!r}")
    tiles = ipus * machine.tiles_per_ipu
    widths = [neurons_per_tile // 2] if neurons_per_tile else PAIRS
    selections = (
        [selection_tiles]
        if selection_tiles
        else sorted({network.batch_size, *(n for n in SELECTION_TILES if n <= network.batch_size)})
    )
    best: Optional[Tuple[Tuple[int, float], Plan]] = None
    seen = set()
    for fitting in (True, False):
        spreads = _spreads(network, machine, tiles, fitting)
        for least, selection in itertools.product(widths, selections):
            layers = _place(network, tiles, selection, least, spreads)
            if layers is None or tuple(layers) in seen:
                continue
            seen.add(tuple(layers))
            memory = memory_of(network, machine, ipus, layers)
            made = Plan(network, machine, ipus, tuple(layers), memory=memory)
            fits = made.tile_memory_max_bytes <= machine.bytes_per_tile
            figure = estimate(made).cycles_per_batch if fits else float(made.tile_memory_max_bytes)
            key = (0 if fits else 1, figure)
            if best is None or key < best[0]:
                best = (key, made)
        if best is not None and best[1].tile_memory_max_bytes <= machine.bytes_per_tile:
            break
    if best is None:
        why = f"{tiles} tiles cannot hold {network.layers} layers, each with neurons on tiles of its own"
        return Plan(network, machine, ipus, (), (f"{why}: at least {network.layers} tiles.",))
    found = best[1]
    return replace(found, problems=tuple(check_memory(found)), notes=tuple(_notes(found)))


@lru_cache(maxsize=64)
def operator_plan(
    sizes: Tuple[int, ...],
    slots: Tuple[int, ...],
    recurrent: Tuple[bool, ...],
    batch_size: int,
    steps: int,
    dtype: str,
    training: bool,
    target: Target,
    ipus: int,
) -> Tuple[int, ...]:
    """The plan that ``SparseNetwork`` gets on an IPU where nobody chose one, as :meth:`Plan.attribute` has it: that of
    :func:`plan`, for slots that are all in use. Where there are too few tiles for one, each layer is on all tiles."""
    expected = tuple(map(float, slots))
    network = NetworkSpec(
        sizes,
        expected,
        slots,
        batch_size,
        steps,
        dtype,
        training=training,
        recurrent=recurrent if any(recurrent) else (),
    )
    found = plan(network, target, ipus)
    if not found.layers:
        found = replace(found, layers=_on_all_tiles(network, found.tiles))
    return tuple(found.attribute())


def _on_all_tiles(network: NetworkSpec, tiles: int) -> Tuple[LayerPlan, ...]:
    """Each layer on all tiles, one group; each selects on one tile."""
    batch = (network.batch_size,)
    return tuple(
        LayerPlan(index + 1, 0, _balanced(size, min(tiles, cycles.vectors(size)), 2), batch, index % tiles, batch)
        for index, size in enumerate(network.sizes[1:])
    )


# Of a tile's memory, what the states of one layer may take until its backward pass.
STATES_SHARE = 1 / 8


def keeps_states(size: int, target: Target, ipus: int) -> bool:
    """Whether ``NeuronSequence`` keeps ``size`` bytes of states for its backward pass, or computes them again there."""
    return size <= STATES_SHARE * target.bytes_per_tile * target.tiles_per_ipu * ipus


def _notes(plan: Plan) -> List[str]:
    notes = []
    if plan.ipus_used < plan.ipus:
        notes.append(
            f"only {plan.ipus_used} of {plan.ipus} IPUs have work: replicate the model over the others instead "
            "(replicationFactor)"
        )
    return notes
