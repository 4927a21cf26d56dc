"""The networks of the published sparse benchmark on IPUs, as the performance model sees them.

Sizes, slots and batches are those of Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

from snnipu.planning.mapping import Plan
from snnipu.planning.network import NetworkSpec, benchmark_slots
from snnipu.planning.performance import LABEL, Performance, estimate
from snnipu.planning.search import plan
from snnipu.planning.targets import Target

# Neurons of the input, of the hidden layers by their number, of the output; slots of the input; time steps.
NETWORKS: Dict[str, Dict[str, Any]] = {
    "N-MNIST": {
        "input": 34 * 34 * 2,
        "hidden": {2: [1466] * 2, 3: [978, 978, 976], 4: [734, 734, 732, 732], 5: [588, *[586] * 4]},
        "output": 10,
        "input_slots": 32,
    },
    "SHD": {
        "input": 700,
        "hidden": {2: [1462, 1460], 3: [974] * 3, 4: [732, *[730] * 3], 5: [586, *[584] * 4]},
        "output": 20,
        "input_slots": 48,
    },
}
ACTIVITIES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
BATCH_SIZE, STEPS = 48, 100
CLAIMS = "published: 5 to 10 times an A100, up to 38 times at high sparsity (arXiv 2311.04386)"
# Peak rates of an A100: what its dense matrix products cannot exceed.
A100_FLOPS = {"FP32": 19.5e12, "TF32": 156e12}

# The many-neuron runs: N-MNIST cropped, ten steps, SGD. Two hidden layers, fully connected, are our choice.
LARGE_INPUT, LARGE_OUTPUT, LARGE_STEPS = 24 * 24 * 2, 10, 10
IPUS = (1, 2, 4, 8, 16)
NEURONS_PER_TILE = (2, 4, 8, 16)
LARGE_LAYERS = 2
LARGE_ACTIVITY = 0.005
# One published network on more IPUs.
SCALED, SCALED_LAYERS, SCALED_ACTIVITIES = "N-MNIST", 2, (0.005, 0.02, 0.1)
SELECTION = 16


def network(name: str, hidden_layers: int, activity: float, **more: Any) -> NetworkSpec:
    """A published network: all slots of the input used, hidden layers at ``activity``."""
    about = NETWORKS[name]
    sizes = (about["input"], *about["hidden"][hidden_layers], about["output"])
    slots = [benchmark_slots(activity, size) for size in sizes]
    slots[0], slots[-1] = about["input_slots"], about["output"]
    spikes = [float(slots[0]), *(min(activity * size, float(slot)) for size, slot in zip(sizes[1:], slots[1:]))]
    return NetworkSpec(sizes, tuple(spikes), tuple(slots), **{"batch_size": BATCH_SIZE, "steps": STEPS, **more})


def dense_ceiling(spec: NetworkSpec, flops: float) -> float:
    """Samples a second that a machine of this peak rate cannot exceed in dense matrix products alone.

    Two operations a weight, sample and step forwards, and twice as many backwards.
    """
    return flops / (6.0 * spec.parameters * spec.steps)


def large_sizes(ipus: int, neurons_per_tile: int, tiles_per_ipu: int = 1472) -> Tuple[int, ...]:
    """Two hidden layers as large as the tiles can hold at so many neurons each, once selection has its tiles."""
    tiles = ipus * tiles_per_ipu - (LARGE_LAYERS + 1) * SELECTION - LARGE_OUTPUT // 2
    each = tiles // LARGE_LAYERS * neurons_per_tile
    return (LARGE_INPUT, *[each] * LARGE_LAYERS, LARGE_OUTPUT)


def large(ipus: int, neurons_per_tile: int) -> Tuple[Plan, Optional[Performance]]:
    """A run of as many neurons as fit on so many IPUs."""
    sizes = large_sizes(ipus, neurons_per_tile)
    spec = NetworkSpec.from_sizes(
        sizes,
        LARGE_ACTIVITY,
        NETWORKS["N-MNIST"]["input_slots"],
        batch_size=BATCH_SIZE,
        steps=LARGE_STEPS,
        optimizer="sgd",
    )
    made = plan(spec, "mk2", ipus, selection_tiles=SELECTION)
    return made, estimate(made) if made.layers else None


def all_reduce_seconds(spec: NetworkSpec, copies: int, target: Target) -> float:
    """To sum the gradients of a network's copies, a copy an IPU, around a ring: each sends and receives all but one
    ``copies``-th of them twice. Latency is left out."""
    return 2.0 * (copies - 1) / copies * spec.parameters * spec.weight_bytes / target.link_bytes_per_second


def scaling(ipus: Sequence[int], target: str = "mk2") -> List[Dict[str, Any]]:
    """A published network on more IPUs: one network spread over them, and a copy on each with a batch of its own."""
    found = []
    for activity in SCALED_ACTIVITIES:
        spec = network(SCALED, SCALED_LAYERS, activity)
        alone = estimate(plan(spec, target))
        for number in ipus:
            made = plan(spec, target, number)
            together = alone.seconds_per_batch + all_reduce_seconds(spec, number, made.target)
            found.append(
                {
                    "network": SCALED,
                    "hidden_layers": SCALED_LAYERS,
                    "activity": activity,
                    **record(made, estimate(made)),
                    "ipus_used": made.ipus_used,
                    "copies_samples_per_s": number * spec.batch_size / together,
                }
            )
    return found


def shares(performance: Performance) -> Dict[str, float]:
    """Of a batch's cycles: each compute phase by its name, all exchange, all synchronisation."""
    found = {"exchange": performance.exchange_share, "sync": performance.sync_share}
    for phase in performance.phases:
        if phase.kind == "compute":
            times = 1 if phase.direction == "update" else performance.plan.network.steps
            found[phase.name] = found.get(phase.name, 0.0) + times * phase.cycles / performance.cycles_per_batch
    return found


def record(made: Plan, performance: Optional[Performance]) -> Dict[str, Any]:
    found: Dict[str, Any] = {
        "sizes": list(made.network.sizes),
        "slots": list(made.network.slots),
        "fits": made.fits,
        "problems": list(made.problems),
        "tiles_used": made.tiles_used,
        "ipus": made.ipus,
    }
    if performance is not None:
        found.update(
            samples_per_s=performance.samples_per_s if made.fits else None,
            ms_per_batch=1e3 * performance.seconds_per_batch,
            bound=performance.bound,
            slowest_phase=performance.slowest_phase.name,
            compute_share=performance.compute_share,
            exchange_share=performance.exchange_share,
            sync_share=performance.sync_share,
            shares=shares(performance),
            tile_memory_max_bytes=made.tile_memory_max_bytes,
        )
    return found


def results(
    activities: Sequence[float] = ACTIVITIES,
    ipus: Sequence[int] = IPUS,
    neurons_per_tile: Sequence[int] = NEURONS_PER_TILE,
    target: str = "mk2",
) -> Dict[str, Any]:
    """Everything that the charts show."""
    depth: List[Dict[str, Any]] = []
    for name, about in NETWORKS.items():
        for hidden in about["hidden"]:
            for activity in activities:
                spec = network(name, hidden, activity)
                made = plan(spec, target)
                depth.append(
                    {
                        "network": name,
                        "hidden_layers": hidden,
                        "activity": activity,
                        **record(made, estimate(made) if made.layers else None),
                        "a100_ceiling": {kind: dense_ceiling(spec, rate) for kind, rate in A100_FLOPS.items()},
                    }
                )
    many = [
        {"neurons_per_tile": count, **record(*large(number, count))} for number in ipus for count in neurons_per_tile
    ]
    return {
        "label": LABEL,
        "target": target,
        "claims": CLAIMS,
        "depth": depth,
        "scaling": scaling(ipus, target),
        "many_neurons": many,
    }
