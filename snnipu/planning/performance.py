"""The predicted speed of a plan: an analytic model of compute, exchange and synchronisation.

A step is a sequence of phases. In each phase all tiles compute, or all exchange, and the slowest tile determines the
duration (bulk-synchronous parallel). :mod:`snnipu.planning.cycles` has the cycles of each computation.

The phases of a forward step, which all layers run in parallel if they are one step apart:

1. The ids of spikes are sent to all tiles of the next layer.
2. The neurons integrate and fire.
3. Neighbouring neuron tiles merge the bits of fired neurons to words.
4. The words are sent to the selection tiles, which make ids of them.

The phases of a backward step:

1. The ids and gradients of spikes are sent to all tiles of the layer.
2. The tiles find their neurons, compute the adjoint, and add to the gradients of their weights.
3. They compute partial gradients of their input spikes, which the tiles of the layer sum.

A recurrent layer also receives its spikes of the previous step and sums partial gradients for them. Without delay, the
layers run these phases one after another. The model does not include host input and output, the loss, control flow,
and the memory that two phases of exchange code share.
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

FIGURES = (
    "bound", "cycles_per_step", "cycles_per_batch", "compute_share", "exchange_share", "sync_share", "balance",
    "exchange_bytes_per_step",
)  # fmt: skip
LABEL = "predicted by snnipu's IPU performance model, not measured"


@dataclass(frozen=True)
class Phase:
    """A compute phase or an exchange phase of all tiles, with its synchronisation.

    Attributes:
        name: the work of the phase.
        direction: ``forward`` or ``backward``, once per time step, or ``update``, once per batch.
        kind: ``compute`` or ``exchange``.
        cycles: cycles of the slowest tile.
        sync: cycles of the synchronisation that begins the phase.
        where: the layer of the slowest tile; 0: no layer.
    """

    name: str
    direction: str
    kind: str
    cycles: float
    sync: float
    where: int


@dataclass(frozen=True)
class Performance:
    """The predicted speed of a plan; no figure is measured.

    Attributes:
        plan: the plan.
        phases: the phases of one time step, and of the update of a batch.
        tile_cycles: ``[tiles]``, the compute cycles of each tile in a step, forwards and backwards.
        exchange_bytes_per_step: bytes that all tiles receive in a step.
    """

    plan: Plan
    phases: Tuple[Phase, ...]
    tile_cycles: np.ndarray
    exchange_bytes_per_step: float

    def _sum(self, kind: str, *directions: str) -> float:
        """Return the cycles per batch of a kind: compute, exchange or sync."""
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
        """Cycles of a step, forwards and backwards, without the weight update."""
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
        """The kind with most cycles: ``compute``, ``exchange`` or ``sync``; ``memory`` if the plan does not fit."""
        if not self.plan.fits:
            return "memory"
        shares = {"compute": self.compute_share, "exchange": self.exchange_share, "sync": self.sync_share}
        return max(shares, key=lambda kind: shares[kind])

    @property
    def slowest_phase(self) -> Phase:
        """The phase of a step with most cycles."""
        return max((phase for phase in self.phases if phase.direction != "update"), key=lambda phase: phase.cycles)

    @property
    def samples_per_s(self) -> float:
        """Samples per second; 0 if the plan does not fit."""
        if not self.plan.fits:
            return 0.0
        return self.plan.network.batch_size * self.plan.target.clock_hz / self.cycles_per_batch

    @property
    def seconds_per_batch(self) -> float:
        return self.cycles_per_batch / self.plan.target.clock_hz

    @property
    def balance(self) -> float:
        """Mean compute cycles of the used tiles divided by the largest, from 0 to 1."""
        used = self.tile_cycles[: self.plan.tiles_used]
        return float(used.mean() / used.max()) if used.size and used.max() > 0 else 0.0


class _Estimator:
    """The computation of :func:`estimate`: appends the phases of a plan and sums cycles and bytes."""

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
        """Append a phase of the layers' neuron tiles; ``cost(layer, lanes)`` returns the cycles of a tile."""
        slowest, where = 0.0, 0
        for layer in layers:
            counts = np.asarray(layer.neurons)
            by_count = {count: cost(layer, lanes(count)) for count in set(layer.neurons)}
            if direction != "update":
                first = layer.first_tile
                for count, cycles_ in by_count.items():
                    part = self.tile_cycles[first : first + layer.tiles].reshape(len(layer.groups), -1)
                    part[:, counts == count] += cycles_
            largest = max(by_count.values())
            slowest, where = (largest, layer.layer) if largest > slowest else (slowest, where)
        if slowest:
            self.phases.append(Phase(name, direction, "compute", slowest, self.sync, where))

    def exchange(
        self,
        name: str,
        direction: str,
        layers: Sequence[LayerPlan],
        received: Callable[[LayerPlan], float],
        links: Optional[Callable[[LayerPlan], float]] = None,
        *,
        sent: Callable[[LayerPlan], float] = lambda layer: 0.0,
        total: Optional[Callable[[LayerPlan], float]] = None,
        instructions: Callable[[LayerPlan], float] = lambda layer: 0.0,
    ) -> None:
        """Append a phase of exchange.

        Args:
            name, direction: as in :class:`Phase`.
            layers: the layers that take part.
            received, sent: the bytes that a tile of a layer receives and sends.
            links: the bytes for a layer that pass the links between IPUs; None: what a tile receives, for each further
                IPU of the layer.
            total: the bytes that all tiles of a layer receive; None: ``received`` on each of them.
            instructions: the message instructions of a tile, which may take longer than the bytes.
        """
        self.received += sum(total(layer) if total else received(layer) * layer.tiles for layer in layers)
        rate = self.target.exchange_bytes_per_cycle
        times = [cycles.exchange(max(received(layer), sent(layer)), rate, instructions(layer)) for layer in layers]
        if links is None:
            linked = sum(received(layer) * (len(layer.ipus(self.target)) - 1) for layer in layers)
        else:
            linked = sum(map(links, layers))
        across = cycles.exchange(linked, self.target.link_bytes_per_cycle)
        slowest = max(*times, across)
        if slowest:
            where = layers[times.index(max(times))].layer
            self.phases.append(Phase(name, direction, "exchange", slowest, self.sync, where))

    def remote_ipus(self, layer: LayerPlan, entry: int) -> int:
        """Return the number of IPUs of a layer without a selection tile of layer ``entry``, whose ids it reads."""
        if entry == 0:
            return 0  # every IPU gets its input from the host
        senders = set(self.plan.layers[entry - 1].selection_ipus(self.target))
        return len(set(layer.ipus(self.target)) - senders)

    def forward(self, layers: Sequence[LayerPlan]) -> None:
        """Append the phases of a forward step of ``layers``, which run in parallel."""
        network, rows = self.network, self.network.batch_size
        self.exchange(
            "spike ids to the layers' tiles",
            "forward",
            layers,
            lambda layer: layer.samples * sum(self._id_bytes_read(layer)),
            self._link_bytes,
        )
        self.compute(
            "integrate and fire",
            "forward",
            layers,
            lambda layer, width: forward_cycles(network, layer.layer, width, layer.samples),
        )
        self.exchange(
            "fired bits to neighbours",
            "forward",
            layers,
            lambda layer: layer.samples * float(FLOAT) * layer.merged_words,
            lambda layer: 0.0,
            total=lambda layer: rows * 2.0 * FLOAT * layer.words if layer.merged_words else 0.0,
            instructions=lambda layer: (
                cycles.RECEIVE * (layer.merged_words - 1.0) + cycles.SEND if layer.merged_words else 0.0
            ),
        )
        self.compute(
            "words of bits",
            "forward",
            layers,
            lambda layer, width: cycles.merge_bits(layer.samples, layer.merged_words, layer.samples * width),
        )
        words = [math.ceil(size / 32) for size in network.sizes]
        self.exchange(
            "fired bits to the selection tiles",
            "forward",
            layers,
            lambda layer: max(layer.rows) * 2.0 * FLOAT * words[layer.layer],
            lambda layer: (
                rows
                * 2.0
                * FLOAT
                * words[layer.layer]
                * (len(layer.ipus(self.target)) > 1 or self.remote_ipus(layer, layer.layer) > 0)
            ),
            total=lambda layer: rows * 2.0 * FLOAT * words[layer.layer],
            instructions=lambda layer: cycles.RECEIVE * 2.0 * layer.word_tiles,
        )
        selected = network.slots if network.training else network.spikes
        self.select(
            "spike selection",
            "forward",
            layers,
            lambda entry, samples: cycles.select_spikes(samples, words[entry], selected[entry], network.slots[entry]),
        )
        # The step's ids, values and counts are stored; after the last step the ids are converted to floats.
        self.select(
            "spikes that are kept",
            "forward",
            layers,
            lambda entry, samples: (
                2 * (cycles.elementwise(samples * network.slots[entry], 5) + cycles.elementwise(2 * samples, 5))
                + cycles.elementwise(samples * network.slots[entry], 7)
            ),
        )

    def select(self, name: str, direction: str, layers: Sequence[LayerPlan], cost: Callable[[int, int], float]) -> None:
        """Append a phase of the layers' selection tiles; ``cost(layer number, samples)`` returns a tile's cycles."""
        slowest, where = 0.0, 0
        for layer in layers:
            for offset, samples in enumerate(layer.rows):
                spent = cost(layer.layer, samples)
                self.tile_cycles[layer.first_selection_tile + offset] += spent
                slowest, where = (spent, layer.layer) if spent > slowest else (slowest, where)
        self.phases.append(Phase(name, direction, "compute", slowest, self.sync, where))

    def _updated_weights(self, layer: LayerPlan, width: int) -> int:
        """Return the weights that a tile's optimiser updates; the groups divide them."""
        return sum(-(-inputs // len(layer.groups)) for inputs in self.network.input_sizes(layer.layer)) * width

    def _id_bytes(self, entry: int) -> float:
        # The input has values as well.
        return self.network.slots[entry] * (ID_BYTES if entry else ID_BYTES + FLOAT) + COUNTS_BYTES

    def _id_bytes_read(self, layer: LayerPlan) -> List[float]:
        """Return the bytes of a sample's ids that a layer reads: the previous layer's, and its recurrent ones."""
        recurrent = [self._id_bytes(layer.layer)] if self.network.is_recurrent(layer.layer) else []
        return [self._id_bytes(layer.layer - 1), *recurrent]

    def _link_bytes(self, layer: LayerPlan) -> float:
        entries = (layer.layer - 1, layer.layer)
        ids = zip(entries, self._id_bytes_read(layer))
        return layer.samples * sum(size * self.remote_ipus(layer, entry) for entry, size in ids)

    def backward(self, layers: Sequence[LayerPlan]) -> None:
        """Append the phases of a backward step of ``layers``, which run in parallel."""
        network = self.network
        # Each selection tile loads its stored ids of two steps, and the gradients of their values.
        self.select(
            "spikes of the step",
            "backward",
            layers,
            lambda entry, samples: 3 * cycles.elementwise(samples * network.slots[entry], 8),
        )

        def arriving(layer: LayerPlan) -> float:
            own = self._id_bytes(layer.layer) + network.slots[layer.layer] * FLOAT
            return layer.samples * (own + sum(self._id_bytes_read(layer)))

        self.exchange(
            "spike gradients and ids to the layers' tiles",
            "backward",
            layers,
            arriving,
            lambda layer: arriving(layer) * self.remote_ipus(layer, layer.layer - 1),
        )
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
        for phase, (name, exchanged) in enumerate(
            (
                ("sum of neighbours", "partial spike gradients to neighbours"),
                ("sum of spike gradients", "partial spike gradients"),
                ("sum of own spikes' gradients", "partial gradients of own spikes"),
            )
        ):
            # For each layer and sum: slots, partial sums that a tile receives, and the stage (0 or 1).
            sums: Dict[int, List[Tuple[int, int, int]]] = {}
            for layer in layers:
                for slots, last_phase in zip(network.gradient_slots(layer.layer), self._sum_phases(layer)):
                    numbers = slot_shares(layer.samples * slots, layer.group_tiles)
                    stages = list(enumerate(numbers)) if len(numbers) == 2 else [(1, numbers[0])]
                    for stage, number in stages:
                        if phase == (last_phase if stage else 0):
                            sums.setdefault(layer.layer, []).append((layer.samples * slots, number, stage))
            if sums:
                self._sum_gradients(name, exchanged, [layer for layer in layers if layer.layer in sums], sums)

    def _sum_gradients(
        self, name: str, exchanged: str, layers: Sequence[LayerPlan], sums: Dict[int, List[Tuple[int, int, int]]]
    ) -> None:
        """Append the exchange and the computation of the partial sums of one phase."""

        def arriving(layer: LayerPlan) -> float:
            return float(FLOAT * sum(number for _, number, _ in sums[layer.layer]))

        def sent(layer: LayerPlan) -> float:
            # A tile sends all its slots, and in the second of two stages only its share.
            few = layer.group_tiles <= cycles.FEW_PARTIALS
            return float(FLOAT * sum(slots for slots, _, stage in sums[layer.layer] if stage == 0 or few))

        self.exchange(exchanged, "backward", layers, arriving, sent=sent)
        self.compute(
            name,
            "backward",
            layers,
            lambda layer, width: sum(
                stage_sum(elements, layer.group_tiles, number, stage) for elements, number, stage in sums[layer.layer]
            ),
        )

    def _copy_to_groups(self, name: str, layers: Sequence[LayerPlan], number_bytes: int) -> None:
        """Append an exchange in which every tile receives a number of some bytes for each of its weights."""

        def received(layer: LayerPlan) -> float:
            return float(sum(self.network.input_sizes(layer.layer)) * lanes(max(layer.neurons))) * number_bytes

        self.exchange(name, "update", layers, received)

    def _sum_phases(self, layer: LayerPlan) -> List[int]:
        """Return the phase that ends the sum of each entry of ``gradient_slots``.

        If layers run in parallel, the sum for a layer's recurrent spikes waits for the next layer.
        """
        phases = [1] if layer.layer > 1 else []
        waits = bool(self.network.delay) and layer.layer < self.network.layers
        return phases + ([1 + waits] if self.network.is_recurrent(layer.layer) else [])

    def run(self) -> Performance:
        """Append all phases and return the result."""
        network = self.network
        groups: List[Sequence[LayerPlan]] = (
            [self.plan.layers] if network.delay else [[each] for each in self.plan.layers]
        )
        for layers in groups:
            self.forward(layers)
        if self.network.training:
            for layers in reversed(groups):
                self.backward(layers)
            several = [layer for layer in self.plan.layers if len(layer.groups) > 1]
            if several:
                # Every group receives a copy of the weights; all groups then sum their gradients.
                self._copy_to_groups("weights to the groups", several, network.weight_bytes)
                self._copy_to_groups("gradients of the groups", several, FLOAT)
                self.compute(
                    "sum of the groups",
                    "update",
                    several,
                    lambda layer, width: cycles.row_sum(self._updated_weights(layer, width), len(layer.groups)),
                )
            self.compute(
                "weight update",
                "update",
                self.plan.layers,
                lambda layer, width: cycles.weight_update(self._updated_weights(layer, width), self.network.optimizer),
            )
        return Performance(self.plan, tuple(self.phases), self.tile_cycles, self.received)


def estimate(plan: Plan) -> Performance:
    """Predict the speed of a plan.

    Args:
        plan: a plan with layers; one without raises ValueError.
    """
    if not plan.layers:
        raise ValueError(f"plan: it has no layers on tiles: {'; '.join(plan.problems)}")
    return _Estimator(plan).run()


def summary(performance: Performance) -> Dict[str, Any]:
    """Return the figures of the JSON report."""
    plan = performance.plan
    return {
        "label": LABEL,
        "fits": plan.fits,
        "problems": list(plan.problems),
        "notes": list(plan.notes),
        "slowest_phase": performance.slowest_phase.name,
        "samples_per_s": performance.samples_per_s if plan.fits else None,
        "seconds_per_batch": performance.seconds_per_batch if plan.fits else None,
        **{name: getattr(performance, name) for name in FIGURES},
        "tile_memory_limit_bytes": plan.target.bytes_per_tile,
        **{name: getattr(plan, name) for name in ("tile_memory_max_bytes", "tiles_used", "tiles", "ipus_used")},
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
