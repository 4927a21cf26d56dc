"""How long a plan takes: an analytic model of compute, exchange and synchronisation, forwards and backwards.

A step is a sequence of phases; in each, all tiles compute, or all exchange, and the slowest one decides
(bulk-synchronous parallel). What a phase's tiles compute is counted by :mod:`snnipu.planning.cycles`.

Forwards, with layers one step apart, all at once: ids of the spikes go to all tiles of the next layer; neurons
integrate; bits of what fired become words beside the neurons, and go to the selection tiles; these make ids.
Backwards: ids and spike gradients go to all tiles; these find their neurons, run the adjoint, add to the weight
gradients and make partial gradients of their input's spikes, which the layer's tiles together sum. A recurrent layer
also gets its own spikes of the step before, and sums partial gradients for them, too. Without delay the layers' phases
follow one another.

What is left out: host input and output, the loss, control flow, and the memory that two phases of exchange code share.
"""

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from snnipu.planning import cycles
from snnipu.planning.costs import forward_cycles, gradient_cycles, output_slots, slot_shares, stage_sum
from snnipu.planning.cycles import lanes
from snnipu.planning.mapping import LayerPlan, Plan
from snnipu.planning.network import COUNTS_BYTES, FLOAT, ID_BYTES

LABEL = "predicted by snnipu's IPU performance model, not measured"


@dataclass(frozen=True)
class Phase:
    """A compute phase or an exchange phase of all tiles, with its synchronisation, in cycles.

    Attributes:
        name: what is done.
        direction: ``forward`` or ``backward``, once a time step, or ``update``, once a batch.
        kind: ``compute`` or ``exchange``.
        cycles: of the slowest tile.
        sync: of the synchronisation that begins the phase.
        where: the layer whose tile is the slowest, 0 where it is none.
    """

    name: str
    direction: str
    kind: str
    cycles: float
    sync: float
    where: int


@dataclass(frozen=True)
class Performance:
    """What the model predicts. Every figure is a model's, none is measured.

    Attributes:
        plan: what was looked at.
        phases: of one time step, and the update of a batch.
        tile_cycles: cycles that each tile computes in a step, forwards and backwards, ``[tiles]``.
        exchange_bytes_per_step: received by all tiles.
    """

    plan: Plan
    phases: Tuple[Phase, ...]
    tile_cycles: np.ndarray
    exchange_bytes_per_step: float

    def _sum(self, kind: str, *directions: str) -> float:
        """Cycles per batch of a kind: compute, exchange or sync."""
        steps = self.plan.network.steps
        total = 0.0
        for phase in self.phases:
            if directions and phase.direction not in directions:
                continue
            times = 1 if phase.direction == "update" else steps
            if kind == "sync":
                total += times * phase.sync
            elif phase.kind == kind:
                total += times * phase.cycles
        return total

    @property
    def cycles_per_batch(self) -> float:
        return sum(self._sum(kind) for kind in ("compute", "exchange", "sync"))

    @property
    def cycles_per_step(self) -> float:
        """Forwards and backwards; the weight update is not in it."""
        kinds, steps = ("compute", "exchange", "sync"), self.plan.network.steps
        return sum(self._sum(kind, "forward", "backward") for kind in kinds) / steps

    @property
    def compute_share(self) -> float:
        return self._sum("compute") / self.cycles_per_batch

    @property
    def exchange_share(self) -> float:
        return self._sum("exchange") / self.cycles_per_batch

    @property
    def sync_share(self) -> float:
        return self._sum("sync") / self.cycles_per_batch

    @property
    def bound(self) -> str:
        """What takes most of the time: ``compute``, ``exchange`` or ``sync``; ``memory`` where it does not fit."""
        if not self.plan.fits:
            return "memory"
        shares = {"compute": self.compute_share, "exchange": self.exchange_share, "sync": self.sync_share}
        return max(shares, key=lambda kind: shares[kind])

    @property
    def slowest_phase(self) -> Phase:
        """The phase of a step that takes longest."""
        return max((phase for phase in self.phases if phase.direction != "update"), key=lambda phase: phase.cycles)

    @property
    def samples_per_s(self) -> float:
        """Samples a second; a plan that does not fit has none, and gets 0."""
        if not self.plan.fits:
            return 0.0
        return self.plan.network.batch_size * self.plan.target.clock_hz / self.cycles_per_batch

    @property
    def seconds_per_batch(self) -> float:
        return self.cycles_per_batch / self.plan.target.clock_hz

    @property
    def balance(self) -> float:
        """Mean over largest compute time of the tiles that are used, 0 to 1."""
        used = self.tile_cycles[: self.plan.tiles_used]
        return float(used.mean() / used.max()) if used.size and used.max() > 0 else 0.0


def _selected(plan: Plan) -> List[Sequence[LayerPlan]]:
    """Layers that run at once, group after group."""
    return [list(plan.layers)] if plan.network.delay else [[layer] for layer in plan.layers]


class _Estimator:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.network, self.target = plan.network, plan.target
        self.sync = plan.target.sync_cycles if plan.ipus_used == 1 else plan.target.ipu_sync_cycles
        self.tile_cycles = np.zeros(plan.tiles)
        self.received = 0.0
        self.phases: List[Phase] = []

    def compute(
        self, name: str, direction: str, layers: Sequence[LayerPlan], cost: Callable[[LayerPlan, int], float]
    ) -> None:
        """A phase of the layers' neuron tiles; ``cost`` takes a layer and the lanes of a tile."""
        slowest, where = 0.0, 0
        for layer in layers:
            counts = np.asarray(layer.neurons)
            by_count = {count: cost(layer, lanes(count)) for count in set(layer.neurons)}
            if direction != "update":
                first = layer.first_tile
                for count, cycles_ in by_count.items():
                    part = self.tile_cycles[first : first + layer.tiles].reshape(len(layer.groups), -1)
                    part[:, counts == count] += cycles_
            most = max(by_count.values())
            slowest, where = (most, layer.layer) if most > slowest else (slowest, where)
        if slowest:
            self.phases.append(Phase(name, direction, "compute", slowest, self.sync, where))

    def exchange(
        self,
        name: str,
        direction: str,
        tile_bytes: Dict[int, float],
        link_bytes: float,
        instructions: Optional[Dict[int, float]] = None,
    ) -> None:
        """A phase in which a tile of a layer receives or sends so many bytes, with so many instructions for messages
        where there are many, and an IPU so many bytes over its links."""
        of, bandwidth = instructions or {}, self.target.exchange_bytes_per_cycle
        times = {layer: cycles.exchange(size, bandwidth, of.get(layer, 0.0)) for layer, size in tile_bytes.items()}
        where = max(times, key=lambda layer: times[layer])
        within = times[where]
        across = cycles.exchange(link_bytes, self.target.link_bytes_per_cycle)
        if max(within, across):
            self.phases.append(Phase(name, direction, "exchange", max(within, across), self.sync, where))

    def foreign(self, layer: LayerPlan, entry: int) -> int:
        """IPUs of a layer that have no selection tile of ``entry``, from where its ids come."""
        if entry == 0:
            return 0  # every IPU gets its input from the host
        own = set(self.plan.layers[entry - 1].selection_ipus(self.target))
        return len(set(layer.ipus(self.target)) - own)

    def forward(self, layers: Sequence[LayerPlan]) -> None:
        network, rows = self.network, self.network.batch_size
        ids = {layer.layer: layer.samples * sum(self._trains_read(layer)) for layer in layers}
        self.received += sum(ids[layer.layer] * layer.tiles for layer in layers)
        links = sum(self._read_over_links(layer) for layer in layers)
        self.exchange("spike ids to the layers' tiles", "forward", ids, links)
        self.compute(
            "integrate and fire",
            "forward",
            layers,
            lambda layer, width: forward_cycles(network, layer.layer, width, layer.samples),
        )
        pieces = {layer.layer: layer.samples * float(FLOAT) * layer.merged_words for layer in layers}
        self.received += sum(rows * 2.0 * FLOAT * layer.words for layer in layers if layer.merged_words)
        short = {
            layer.layer: cycles.RECEIVE * (layer.merged_words - 1.0) + cycles.SEND
            for layer in layers
            if layer.merged_words
        }
        self.exchange("fired bits to neighbours", "forward", pieces, 0.0, short)
        self.compute(
            "words of bits",
            "forward",
            layers,
            lambda layer, width: cycles.merge_bits(layer.samples, layer.merged_words, layer.samples * width),
        )
        words = {layer.layer: math.ceil(network.sizes[layer.layer] / 32) for layer in layers}
        bits = {layer.layer: max(layer.rows) * 2.0 * FLOAT * words[layer.layer] for layer in layers}
        self.received += sum(rows * 2.0 * FLOAT * words[layer.layer] for layer in layers)
        links = sum(
            rows
            * 2.0
            * FLOAT
            * words[layer.layer]
            * (len(layer.ipus(self.target)) > 1 or self.foreign(layer, layer.layer) > 0)
            for layer in layers
        )
        short = {layer.layer: cycles.RECEIVE * 2.0 * layer.word_tiles for layer in layers}
        self.exchange("fired bits to the selection tiles", "forward", bits, links, short)
        seen = network.slots if network.training else network.spikes
        self.select(
            "spike selection",
            "forward",
            layers,
            lambda entry, samples: cycles.select_spikes(samples, words[entry], seen[entry], network.slots[entry]),
        )
        # Ids, values and counts of the step are kept, and ids made floats in the end.
        self.select(
            "spikes that are kept",
            "forward",
            layers,
            lambda entry, samples: (
                2 * (cycles.each(samples * network.slots[entry], 5) + cycles.each(2 * samples, 5))
                + cycles.each(samples * network.slots[entry], 7)
            ),
        )

    def select(self, name: str, direction: str, layers: Sequence[LayerPlan], cost: Callable[[int, int], float]) -> None:
        """Add a phase of the layers' selection tiles; ``cost`` takes a layer's number and a tile's samples."""
        slowest, where = 0.0, 0
        for layer in layers:
            for offset, samples in enumerate(layer.rows):
                spent = cost(layer.layer, samples)
                self.tile_cycles[layer.first_selection_tile + offset] += spent
                slowest, where = (spent, layer.layer) if spent > slowest else (slowest, where)
        self.phases.append(Phase(name, direction, "compute", slowest, self.sync, where))

    def _own_weights(self, layer: LayerPlan, width: int) -> int:
        """Weights of a tile that its optimiser updates: the groups share them."""
        return sum(-(-inputs // len(layer.groups)) for inputs in self.network.reads(layer.layer)) * width

    def _train_bytes(self, entry: int) -> float:
        # The input has values, too.
        return self.network.slots[entry] * (ID_BYTES if entry else ID_BYTES + FLOAT) + COUNTS_BYTES

    def _trains_read(self, layer: LayerPlan) -> List[float]:
        """Bytes of a sample's ids that a layer reads: of the layer before it, and of itself."""
        own = [self._train_bytes(layer.layer)] if self.network.is_recurrent(layer.layer) else []
        return [self._train_bytes(layer.layer - 1), *own]

    def _read_over_links(self, layer: LayerPlan) -> float:
        entries = (layer.layer - 1, layer.layer)
        trains = zip(entries, self._trains_read(layer))
        return layer.samples * sum(train * self.foreign(layer, entry) for entry, train in trains)

    def backward(self, layers: Sequence[LayerPlan]) -> None:
        network = self.network
        # Each selection tile brings what it kept: ids of two steps, gradients of their values.
        self.select(
            "spikes of the step",
            "backward",
            layers,
            lambda entry, samples: 3 * cycles.each(samples * network.slots[entry], 8),
        )
        arriving = {
            layer.layer: layer.samples
            * (self._train_bytes(layer.layer) + network.slots[layer.layer] * FLOAT + sum(self._trains_read(layer)))
            for layer in layers
        }
        self.received += sum(arriving[layer.layer] * layer.tiles for layer in layers)
        links = sum(arriving[layer.layer] * self.foreign(layer, layer.layer - 1) for layer in layers)
        self.exchange("spike gradients and ids to the layers' tiles", "backward", arriving, links)

        self.compute(
            "neuron gradients",
            "backward",
            layers,
            lambda layer, width: cycles.neuron_gradient(
                layer.samples, width, network.slots[layer.layer], output_slots(network, layer.layer, width)
            ),
        )
        self.compute(
            "weight and spike gradients",
            "backward",
            layers,
            lambda layer, width: gradient_cycles(network, layer.layer, width, layer.samples),
        )
        for at, (name, of) in enumerate(
            (
                ("sum of neighbours", "partial spike gradients to neighbours"),
                ("sum of spike gradients", "partial spike gradients"),
                ("sum of own spikes' gradients", "partial gradients of own spikes"),
            )
        ):
            # Of each layer: slots, numbers that a tile gets to sum of them, and whether those are a first stage's.
            sums: Dict[int, List[Tuple[int, int, int]]] = {}
            for layer in layers:
                for slots, where in zip(network.passes_back(layer.layer), self._sum_phases(layer)):
                    numbers = slot_shares(layer.samples * slots, layer.group_tiles)
                    stages = list(enumerate(numbers)) if len(numbers) == 2 else [(1, numbers[0])]
                    for stage, number in stages:
                        if at == (where if stage else 0):
                            sums.setdefault(layer.layer, []).append((layer.samples * slots, number, stage))
            taking = [layer for layer in layers if layer.layer in sums]
            if not taking:
                continue
            arriving = {entry: float(FLOAT * sum(number for _, number, _ in each)) for entry, each in sums.items()}
            self.received += sum(arriving[layer.layer] * layer.tiles for layer in taking)
            # A tile sends all its slots; of a second stage a share.
            busiest = {
                layer.layer: max(
                    arriving[layer.layer],
                    float(
                        FLOAT
                        * sum(
                            slots
                            for slots, _, stage in sums[layer.layer]
                            if stage == 0 or layer.group_tiles <= cycles.FEW_PARTIALS
                        )
                    ),
                )
                for layer in taking
            }
            links = sum(arriving[layer.layer] * max(len(layer.ipus(self.target)) - 1, 0) for layer in taking)
            self.exchange(of, "backward", busiest, links)
            self.compute(
                name,
                "backward",
                taking,
                lambda layer, width, sums=sums: sum(  # type: ignore[misc]
                    stage_sum(elements, layer.group_tiles, number, stage)
                    for elements, number, stage in sums[layer.layer]
                ),
            )

    def _sum_phases(self, layer: LayerPlan) -> List[int]:
        """For each entry of ``passes_back`` the phase that ends its sum: that of a recurrent layer's own spikes waits
        for the layer behind it, where both run at once."""
        behind = [1] if layer.layer > 1 else []
        waits = bool(self.network.delay) and layer.layer < self.network.layers
        return behind + ([1 + waits] if self.network.is_recurrent(layer.layer) else [])

    def run(self) -> Performance:
        groups = _selected(self.plan)
        for layers in groups:
            self.forward(layers)
        if self.network.training:
            for layers in reversed(groups):
                self.backward(layers)
            several = [layer for layer in self.plan.layers if len(layer.groups) > 1]
            if several:
                # To every group its copy of the weights, and from every group its gradients, which all of them sum.
                weights = {
                    layer.layer: float(sum(self.network.reads(layer.layer)) * lanes(max(layer.neurons)))
                    for layer in several
                }
                copies = {entry: size * self.network.weight_bytes for entry, size in weights.items()}
                self.received += sum(copies[layer.layer] * layer.tiles for layer in several)
                links = sum(copies[layer.layer] * (len(layer.ipus(self.target)) - 1) for layer in several)
                self.exchange("weights to the groups", "update", copies, links)
                found = {entry: size * FLOAT for entry, size in weights.items()}
                self.received += sum(found[layer.layer] * layer.tiles for layer in several)
                links = sum(found[layer.layer] * (len(layer.ipus(self.target)) - 1) for layer in several)
                self.exchange("gradients of the groups", "update", found, links)
                self.compute(
                    "sum of the groups",
                    "update",
                    several,
                    lambda layer, width: cycles.row_sum(self._own_weights(layer, width), len(layer.groups)),
                )
            self.compute(
                "weight update",
                "update",
                self.plan.layers,
                lambda layer, width: cycles.weight_update(self._own_weights(layer, width), self.network.optimizer),
            )
        return Performance(self.plan, tuple(self.phases), self.tile_cycles, self.received)


def estimate(plan: Plan) -> Performance:
    """Predict the speed of a plan; raises ValueError for one without layers."""
    if not plan.layers:
        raise ValueError(f"plan: it has no layers on tiles: {'; '.join(plan.problems)}")
    return _Estimator(plan).run()


def summary(performance: Performance) -> Dict[str, Any]:
    """The figures as JSON has them."""
    plan = performance.plan
    return {
        "label": LABEL,
        "fits": plan.fits,
        "problems": list(plan.problems),
        "notes": list(plan.notes),
        "bound": performance.bound,
        "slowest_phase": performance.slowest_phase.name,
        "samples_per_s": performance.samples_per_s if plan.fits else None,
        "seconds_per_batch": performance.seconds_per_batch if plan.fits else None,
        "cycles_per_step": performance.cycles_per_step,
        "cycles_per_batch": performance.cycles_per_batch,
        "compute_share": performance.compute_share,
        "exchange_share": performance.exchange_share,
        "sync_share": performance.sync_share,
        "balance": performance.balance,
        "tile_memory_max_bytes": plan.tile_memory_max_bytes,
        "tile_memory_limit_bytes": plan.target.bytes_per_tile,
        "tiles_used": plan.tiles_used,
        "tiles": plan.tiles,
        "ipus_used": plan.ipus_used,
        "exchange_bytes_per_step": performance.exchange_bytes_per_step,
        "phases": [
            {
                "name": phase.name,
                "direction": phase.direction,
                "kind": phase.kind,
                "cycles": phase.cycles,
                "sync_cycles": phase.sync,
                "slowest_layer": phase.where,
            }
            for phase in performance.phases
        ],
    }
