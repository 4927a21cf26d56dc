"""The search for a plan: of the plans of a network that fit, the one with the fewest predicted cycles."""

import itertools
from dataclasses import replace
from functools import lru_cache
from typing import List, NamedTuple, Optional, Tuple, Union

from snnipu.planning import cycles
from snnipu.planning.costs import split_cycles, tile_cycles
from snnipu.planning.mapping import MAX_FILL, LayerPlan, Plan, check_memory, layer_memory, memory_of
from snnipu.planning.network import BaseNetworkSpec
from snnipu.planning.performance import estimate
from snnipu.planning.targets import Target, target_named

MAX_IPUS = 64
SELECTION_TILES = (1, 2, 4, 8, 16, 24, 48, 96, 192)
PAIRS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# The narrowest widths of a tile, which are all tried; of the others every eighth.
MOST_WIDTHS = 48


class _Split(NamedTuple):
    """A division of a layer among tiles: pairs of neurons on a tile, and groups of tiles."""

    cycles: float
    tiles: int
    pairs: int
    groups: int


def _best_splits(network: BaseNetworkSpec, target: Target, available: int, fitting: bool) -> List[List[_Split]]:
    """Return for each layer its best splits, the fewest tiles first; each split is faster than those before it.

    Args:
        network: the network.
        target: the machine.
        available: number of tiles.
        fitting: True: consider only splits that fit into memory. False: consider all, and compare their memory instead
            of their cycles.
    """
    layers = []
    counts = sorted({-(-network.batch_size // rows) for rows in range(1, network.batch_size + 1)})
    for entry, size in enumerate(network.sizes[1:], 1):
        all_pairs = cycles.vectors(size)
        widths = sorted({-(-all_pairs // tiles) for tiles in range(1, min(all_pairs, available) + 1)})
        # Neighbouring large widths differ little.
        widths = widths if len(widths) <= MOST_WIDTHS else sorted({*widths[:MOST_WIDTHS], *widths[MOST_WIDTHS::8]})
        splits: List[_Split] = []
        for pairs in widths:
            for groups in counts:
                tiles = -(-all_pairs // pairs) * groups
                if tiles > available:
                    break
                rows = -(-network.batch_size // groups)
                memory = sum(layer_memory(network, entry, 2 * pairs, rows, groups).values())
                time = tile_cycles(network, entry, 2 * pairs, rows) + split_cycles(network, entry, pairs, groups)
                if not fitting:
                    splits.append(_Split(float(memory), tiles, pairs, groups))
                elif memory <= MAX_FILL * target.bytes_per_tile:
                    splits.append(_Split(time, tiles, pairs, groups))
        best: List[_Split] = []
        for split in sorted(splits, key=lambda split: (split.tiles, split.cycles)):
            if not best or split.cycles < best[-1].cycles:
                best.append(split)
        layers.append(best)
    return layers


def _divide(total: int, parts: int, unit: int) -> Tuple[int, ...]:
    """Divide ``total`` into ``parts`` of whole units, as equal as possible, larger parts first.

    The last part is smaller if ``total`` is not a multiple of ``unit``.
    """
    units = -(-total // unit)
    each, more = divmod(units, parts)
    counts = [unit * (each + (index < more)) for index in range(parts)]
    counts[-1] -= unit * units - total
    return tuple(counts)


def _place_layers(
    network: BaseNetworkSpec, available: int, selection: int, least: int, splits: List[List[_Split]]
) -> Optional[List[LayerPlan]]:
    """Place the layers one after another on the tiles; return None if there are too few tiles.

    Args:
        network: the network.
        available: number of tiles.
        selection: selection tiles of a layer.
        least: least pairs of neurons on a tile, for layers with that many.
        splits: the result of :func:`_best_splits`.
    """
    selecting = min(selection, network.batch_size)
    if selecting * network.layers > available:
        return None
    ways = []
    for index, size in enumerate(network.sizes[1:]):
        layer_least = min(least, cycles.vectors(size))
        wide = [split for split in splits[index] if split.pairs >= layer_least]
        ways.append(wide or splits[index][:1])
    if not all(ways):
        return None
    chosen = [0] * network.layers
    taken = sum(way[0].tiles for way in ways)
    if taken > available:
        return None
    while True:
        # The slowest layer gets more tiles while tiles are left.
        slowest = max(range(network.layers), key=lambda index: ways[index][chosen[index]].cycles)
        if chosen[slowest] + 1 == len(ways[slowest]):
            break
        more = ways[slowest][chosen[slowest] + 1].tiles - ways[slowest][chosen[slowest]].tiles
        if taken + more > available:
            break
        chosen[slowest] += 1
        taken += more
    placed, tile = [], 0
    for index, size in enumerate(network.sizes[1:]):
        split = ways[index][chosen[index]]
        neurons = _divide(size, -(-cycles.vectors(size) // split.pairs), 2)
        groups = _divide(network.batch_size, split.groups, 1)
        placed.append(LayerPlan(index + 1, tile, neurons, groups, 0, _divide(network.batch_size, selecting, 1)))
        tile += placed[-1].tiles
    first = min(tile, available - selecting * network.layers)
    return [replace(layer, first_selection_tile=first + selecting * index) for index, layer in enumerate(placed)]


def plan(
    network: BaseNetworkSpec,
    target: Union[str, Target] = "mk2",
    ipus: int = 1,
    *,
    neurons_per_tile: Optional[int] = None,
    selection_tiles: Optional[int] = None,
) -> Plan:
    """Plan a network on tiles.

    The search tries several numbers of selection tiles per layer and several least numbers of neurons per tile. For
    each, it divides the tiles among the layers so that the busiest tile has the least work. Of the plans that fit, it
    returns the one with the fewest cycles in the performance model.

    Args:
        network: the network.
        target: ``mk1``, ``mk2`` or ``bow``, or a :class:`Target`.
        ipus: the number of IPUs, up to 64.
        neurons_per_tile: the least neurons on a tile, an even number; None: several are tried.
        selection_tiles: selection tiles of each layer; None: several are tried.

    Returns:
        A plan. If no plan fits, the plan whose fullest tile is the least full; ``problems`` has the reasons.

    Raises:
        ValueError: an argument is wrong; the message names it.
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
    best: Optional[Tuple[Tuple[bool, float], Plan]] = None
    seen = set()
    for fitting in (True, False):
        splits = _best_splits(network, machine, tiles, fitting)
        for least, selection in itertools.product(widths, selections):
            layers = _place_layers(network, tiles, selection, least, splits)
            if layers is None or tuple(layers) in seen:
                continue
            seen.add(tuple(layers))
            memory = memory_of(network, machine, ipus, layers)
            candidate = Plan(network, machine, ipus, tuple(layers), memory=memory)
            too_full = candidate.tile_memory_max_bytes > machine.bytes_per_tile
            cost = float(candidate.tile_memory_max_bytes) if too_full else estimate(candidate).cycles_per_batch
            if best is None or (too_full, cost) < best[0]:
                best = ((too_full, cost), candidate)
        if best is not None and not best[0][0]:
            break
    if best is None:
        reason = f"{tiles} tiles cannot hold {network.layers} layers, each with neurons on tiles of its own"
        return Plan(network, machine, ipus, (), (f"{reason}: at least {network.layers} tiles.",))
    fastest = best[1]
    notes = []
    if fastest.ipus_used < ipus:
        notes.append(
            f"only {fastest.ipus_used} of {ipus} IPUs have work: use fewer per replica, and more replicas "
            "(replicationFactor)"
        )
    return replace(fastest, problems=tuple(check_memory(fastest)), notes=tuple(notes))


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
    """Return the default plan of the operator ``SparseNetwork``, as :meth:`Plan.attribute`.

    It is the result of :func:`plan` if all slots are in use. If there are too few tiles, each layer is on all tiles.
    """
    expected = tuple(map(float, slots))
    network = BaseNetworkSpec(
        sizes,
        expected,
        slots,
        batch_size,
        steps,
        dtype,
        training=training,
        recurrent=recurrent if any(recurrent) else (),
    )
    planned = plan(network, target, ipus)
    if not planned.layers:
        planned = replace(planned, layers=_on_all_tiles(network, planned.tiles))
    return tuple(planned.attribute())


def _on_all_tiles(network: BaseNetworkSpec, tiles: int) -> Tuple[LayerPlan, ...]:
    """Place each layer on all tiles, in one group, with one selection tile."""
    batch = (network.batch_size,)
    return tuple(
        LayerPlan(index + 1, 0, _divide(size, min(tiles, cycles.vectors(size)), 2), batch, index % tiles, batch)
        for index, size in enumerate(network.sizes[1:])
    )


# Most of the tiles' memory for one layer's stored states.
STATES_SHARE = 1 / 8


def stores_states(size: int, target: Target, ipus: int) -> bool:
    """Return True if ``NeuronSequence`` stores ``size`` bytes of states; else its backward pass recomputes them."""
    return size <= STATES_SHARE * target.bytes_per_tile * target.tiles_per_ipu * ipus
