"""The machines of plans: the numbers of an IPU that the mapping and the performance model need."""

from dataclasses import asdict, dataclass
from typing import Any, Dict

KIBIBYTE = 1024


@dataclass(frozen=True)
class Target:
    """One kind of IPU.

    Attributes:
        name: ``mk1``, ``mk2`` or ``bow``.
        tiles_per_ipu: tiles of one IPU.
        bytes_per_tile: memory of a tile, code included.
        clock_hz: clock of the tiles.
        workers: worker threads of a tile, which share its issue slots.
        exchange_bytes_per_cycle: bytes that a tile receives, and sends, per cycle within its IPU.
        link_bytes_per_second: bytes that an IPU receives, and sends, over its links to other IPUs.
        sync_cycles: cycles of a synchronisation of the tiles of one IPU.
        ipu_sync_cycles: cycles of a synchronisation of several IPUs.

    Source: Graphcore's documentation of Mk1, Mk2 and Bow, for tiles, memory, clock and exchange. The links are assumed
    to be ten, at 32 GB/s in each direction; the cycles of a synchronisation are an assumption.
    """

    name: str
    tiles_per_ipu: int
    bytes_per_tile: int
    clock_hz: float
    workers: int = 6
    exchange_bytes_per_cycle: float = 4.0
    link_bytes_per_second: float = 320e9
    sync_cycles: int = 150
    ipu_sync_cycles: int = 600

    @property
    def link_bytes_per_cycle(self) -> float:
        return self.link_bytes_per_second / self.clock_hz

    def ipus_of(self, first_tile: int, tiles: int) -> range:
        """Return the IPUs that have some consecutive tiles."""
        return range(first_tile // self.tiles_per_ipu, (first_tile + tiles - 1) // self.tiles_per_ipu + 1)

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


TARGETS: Dict[str, Target] = {
    "mk1": Target("mk1", 1216, 256 * KIBIBYTE, 1.6e9),
    "mk2": Target("mk2", 1472, 624 * KIBIBYTE, 1.33e9),
    "bow": Target("bow", 1472, 624 * KIBIBYTE, 1.85e9),
}


def target_named(name: str) -> Target:
    """Return the target with this name; raise ValueError if there is none."""
    if name not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {name!r}")
    return TARGETS[name]
