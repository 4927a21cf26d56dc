"""Convolutional networks of spike ids beside dense ones, at a given activity: one whole forward and backward pass.

The networks are the field's standard small ones for event cameras, and single layers; the spikes are random and the
weights scaled, so that every layer has the activity.
"""

import functools
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from snntorch import surrogate as snntorch_surrogate
from torch import nn

import snnipu
from snnipu import SparseNetwork
from benchmarks.case import Axis, Case, Contender, Settings, Sweep, Workload
from benchmarks.checks import Check, relative_error
from benchmarks.options import Option
from benchmarks.sparse_problem import (
    THRESHOLD,
    Layers,
    SnnTorchNet,
    SparseProblem,
    check_activity,
    parse_activities,
)
from snnipu.training import EventConfig

SUMMARY = "convolutional networks of spike ids beside dense ones, against activity"
DTYPES = (torch.float32,)
DEVICES = ("cpu", "cuda")
FULL = {"steps": 20, "batch_size": 48, "neurons": 1000, "beta": 0.95, "repeats": 9, "min_seconds": 0.0}
QUICK = {"steps": 4, "batch_size": 2, "neurons": 32, "beta": 0.95, "repeats": 2, "min_seconds": 0.0}
ACTIVITIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
QUICK_ACTIVITIES = (0.05, 0.2)


def _trained(dataset: str, side: int, classes: int, **settings: Any) -> Tuple[Tuple[int, int, int], str]:
    """The network that ``train --network conv`` trains on ``dataset``."""
    hidden = EventConfig.for_dataset(dataset, network="conv", **settings).hidden
    layers = [layer if isinstance(layer, str) else f"FC{layer}" for layer in (*hidden, classes)]
    return (2, side, side), "-".join(layers)


# Layers by themselves: shape of the input, output channels and size of the kernel.
LAYERS: Dict[str, Tuple[Tuple[int, int, int], int, int]] = {
    "16-17x17": ((16, 17, 17), 32, 5),
    "32-32x32": ((32, 32, 32), 64, 3),
    "64-24x24": ((64, 24, 24), 128, 3),
    "2-34x34": ((2, 34, 34), 12, 5),
}
# Shape of the input and the layers.
NETWORKS: Dict[str, Tuple[Tuple[int, int, int], str]] = {
    "nmnist": _trained("nmnist", 34, 10),
    "dvs32": _trained("dvs", 32, 11, downsample=4),
    "dvs64": _trained("dvs", 64, 11, downsample=2),
    **{f"layer-{name}": (shape, f"{out}C{kernel}") for name, (shape, out, kernel) in LAYERS.items()},
}
OPTIONS = (
    Option("network", "which network, or layer (default: nmnist)", setting="input", choices=list(NETWORKS)),
    Option(
        "conv_activities",
        f"default: {','.join(map(str, ACTIVITIES))}",
        parse_activities,
        ACTIVITIES,
        QUICK_ACTIVITIES,
        metavar="LIST",
    ),
)
SECOND_THRESHOLD = 0.9
SLOPE = 10.0
SLOW_SECONDS = 0.1
# Membranes are added up in another order than dense ones: some within rounding of the threshold fall on its other side.
FLIPS = 1e-5
GRADIENT_TOLERANCE = 5e-4

# Spikes of layers, and the gradients of the loss of the masked samples.
Run = Callable[[Optional[torch.Tensor]], Tuple[Layers, Layers]]


def description(settings: Settings) -> List[Any]:
    """What :class:`snnipu.SparseNetwork` is made of."""
    shape, layers = NETWORKS[settings.input]
    return [shape, layers]


class Problem(SparseProblem):
    """Layers on maps, in one step."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.draw_input(*NETWORKS[settings.input][0])
        # The gradient of a layer's input is part of its work; the input of a network needs none.
        self.of_input = settings.input.startswith("layer")
        net = self._made()
        with torch.no_grad():
            for layer in net.layers:
                layer.weight.uniform_(-1, 1, generator=self.generator)
                # Weights of mean zero do not come to high activities.
                layer.weight.add_(0.25 * settings.activity)
        self.scale(net.to(self.device), tolerance=0.02)
        self.draw_targets(net.sizes[-1])

    def _made(self, path: str = "sparse", grad_threshold: Any = SECOND_THRESHOLD) -> SparseNetwork:
        return SparseNetwork(
            description(self.settings),
            beta=self.settings.beta,
            threshold=THRESHOLD,
            grad_threshold=grad_threshold,
            delay=0,
            spike_grad=snnipu.surrogate.fast_sigmoid(SLOPE),
            path=path,
        )

    def network(self, path: str = "sparse", grad_threshold: Any = SECOND_THRESHOLD) -> SparseNetwork:
        return self.filled(self._made(path, grad_threshold).to(self.device))

    def by_snntorch(self) -> SnnTorchNet:
        stages: List[List[nn.Module]] = [[]]
        for module in self.network().to_dense():
            if isinstance(module, snnipu.Leaky):
                stages.append([])
            else:
                stages[-1].append(module)
        spike_grad = snntorch_surrogate.fast_sigmoid(slope=SLOPE)
        return SnnTorchNet(stages[:-1], self.settings.beta, spike_grad, delay=False)

    @functools.cached_property
    def _reference(self) -> Tuple[Layers, Layers]:
        return self._expected(None)

    def _expected(self, samples: Optional[torch.Tensor]) -> Tuple[Layers, Layers]:
        net = self.by_snntorch()
        every = net.all_layers(self.dense_x)
        return [spikes.detach() for spikes in every], self.gradients(every[-1].sum(0), net.weights(), samples)

    def reference(self, samples: Optional[torch.Tensor] = None) -> Tuple[Layers, Layers]:
        """Spikes of every spiking layer and the gradients, of the loss of ``samples``, by snnTorch's loop."""
        return self._reference if samples is None else self._expected(samples)


# One at a time: the next point of a sweep takes the place of the last.
_problem = functools.lru_cache(maxsize=1)(Problem)


def _compared(own: Run, reference: Run, against: str) -> Check:
    """The spikes of all samples, and the gradients of those whose spikes are all the same.

    One spike on the other side of the threshold changes the ones behind it, and with them gradients.
    """
    (spikes, gradients), (expected, expected_gradients) = own(None), reference(None)
    flipped = [s.flatten(2) != r.flatten(2) for s, r in zip(spikes, expected)]
    differing = sum(int(layer.sum()) for layer in flipped)
    total = sum(spike.numel() for spike in expected)
    same = ~torch.stack([layer.any(2).any(0) for layer in flipped]).any(0)
    enough = 2 * int(same.sum()) >= len(same)
    if differing and enough:
        gradients, expected_gradients = own(same)[1], reference(same)[1]
    error = max(relative_error(own, other) for own, other in zip(gradients, expected_gradients))
    return Check(
        passed=enough and differing <= FLIPS * total and error <= GRADIENT_TOLERANCE and len(spikes) == len(expected),
        against=against,
        detail=f"{differing:,} of {total:,} spikes differ (allowed: {FLIPS:.0e} of them), none in {int(same.sum())} of "
        f"{len(same)} samples (asked: half of them), whose gradient error is {error:.1e} (allowed: "
        f"{GRADIENT_TOLERANCE:.0e})",
        errors={"spikes_differing": float(differing), "gradient_error": error},
    )


def _sparse(settings: Settings, path: str) -> Workload:
    problem = _problem(settings)
    net = problem.network(path)

    def run(net: SparseNetwork, samples: Optional[torch.Tensor]) -> Tuple[Layers, Layers]:
        layers = net(problem.x, all_layers=True)
        out = net.pooled(len(layers) - 1, layers[-1])
        gradients = problem.gradients(out.spike_count(), [layer.weight for layer in net.layers], samples)
        return [layer.to_dense().detach() for layer in layers], gradients

    def step() -> Layers:
        x = problem.x
        leaves = [layer.weight for layer in net.layers]
        if problem.of_input:
            x = x.detach().requires_grad_()
            leaves.append(x.values)
        return problem.gradients(net(x).spike_count(), leaves)

    def check() -> Check:
        everyone, dense = problem.network(path, None), problem.network("dense")
        every = _compared(functools.partial(run, everyone), problem.reference, "snnTorch")
        selected = _compared(functools.partial(run, net), functools.partial(run, dense), "dense convolutions")
        return Check(
            every.passed and selected.passed,
            "snnTorch",
            f"without a second threshold: {every.detail}; with it, of dense convolutions: {selected.detail}",
            {**every.errors, **{f"{name}_with_second_threshold": e for name, e in selected.errors.items()}},
        )

    return Workload(step, check)


def _multistep(settings: Settings) -> Workload:
    problem = _problem(settings)
    net = problem.network().to_dense()
    weights = [module.weight for module in net if isinstance(module, (nn.Conv2d, nn.Linear))]
    spiking = isinstance(net[-1], snnipu.Leaky)

    def forward(x: torch.Tensor) -> torch.Tensor:
        with snnipu.dense_only():
            out = net(x)
        spikes: torch.Tensor = out[0] if spiking else out
        return spikes

    def step() -> Layers:
        x = problem.dense_x.detach().requires_grad_(problem.of_input)
        return problem.gradients(forward(x).sum(0), [*weights, *([x] if problem.of_input else [])])

    def run(samples: Optional[torch.Tensor]) -> Tuple[Layers, Layers]:
        spikes = forward(problem.dense_x)
        return [spikes.detach()], problem.gradients(spikes.sum(0), weights, samples)

    return Workload(step, lambda: _compared(run, functools.partial(_last_layer, problem), "snnTorch"))


def _last_layer(problem: Problem, samples: Optional[torch.Tensor]) -> Tuple[Layers, Layers]:
    layers, gradients = problem.reference(samples)
    return layers[-1:], gradients


def _snntorch(settings: Settings) -> Workload:
    problem = _problem(settings)
    net = problem.by_snntorch()

    def step() -> Layers:
        x = problem.dense_x.detach().requires_grad_(problem.of_input)
        return problem.gradients(net(x).sum(0), [*net.weights(), *([x] if problem.of_input else [])])

    def run(samples: Optional[torch.Tensor]) -> Tuple[Layers, Layers]:
        spikes = net(problem.dense_x)
        return [spikes.detach()], problem.gradients(spikes.sum(0), net.weights(), samples)

    return Workload(step, lambda: _compared(run, functools.partial(_last_layer, problem), "snnTorch"))


def build(settings: Settings) -> Case:
    """One point: the network of ``settings.input`` at ``settings.activity``.

    Raises:
        ValueError: there is no such network, or the activity is out of range.
    """
    if settings.input not in NETWORKS:
        raise ValueError(f"input: expected one of {list(NETWORKS)}, got {settings.input!r}")
    check_activity(settings)
    shape, layers = NETWORKS[settings.input]
    contenders = [
        Contender(
            "sparse-network",
            "snnipu SparseNetwork",
            functools.partial(_sparse, settings, "sparse"),
            ratio_label="SparseNetwork",
            note="path='sparse' and all slots that it needs: the sparse kernels at every activity; nothing is dropped",
        ),
        Contender(
            "sparse-network-auto",
            "snnipu SparseNetwork, path='auto'",
            functools.partial(_sparse, settings, "auto"),
            ratio_label="auto",
            note="sparse or dense convolution for each layer, by the activity of its input",
        ),
        Contender(
            "dense",
            "snnipu MultiStep, dense",
            functools.partial(_multistep, settings),
            ratio_label="dense",
            note="in dense_only(): a convolution over all steps and samples, then Leaky; every neuron carries gradient",
        ),
        Contender(
            "snntorch",
            "snnTorch loop",
            functools.partial(_snntorch, settings),
            peer="snntorch",
            note="nn.Conv2d and Leaky at every step; every neuron carries gradient",
        ),
    ]
    return Case(
        name="conv",
        title=(
            f"Network {'x'.join(map(str, shape))}-{layers}, {100 * settings.activity:.3g} % active, "
            f"forward + backward: T={settings.steps} × B={settings.batch_size}"
        ),
        caption=_caption(settings),
        contenders=contenders,
        memory_reference="dense",
        memory_label="dense",
        parameters={
            "input": settings.input,
            "network": f"{'x'.join(map(str, shape))}-{layers}",
            "steps": settings.steps,
            "batch_size": settings.batch_size,
            "activity": settings.activity,
            "beta": settings.beta,
            "threshold": THRESHOLD,
            "grad_threshold": SECOND_THRESHOLD,
        },
        measured=lambda: _problem(settings).measured(),
        slow_seconds=SLOW_SECONDS,
        check_meaning=(
            f"check: the spikes equal but for {FLIPS:.0e} of them, with membranes within rounding of the threshold, "
            f"and for samples without such a spike the weight gradients within {GRADIENT_TOLERANCE:.0e} of those of "
            "snnTorch's loop; with the second threshold, of the same network by dense convolutions."
        ),
    )


def _caption(settings: Settings) -> str:
    of_input = ", and of the input's values" if settings.input.startswith("layer") else ""
    return (
        f"The work: from random input spikes, the spikes of {settings.steps} steps, the cross-entropy of the summed "
        f"output spikes, and the gradient of every weight{of_input}. Every layer has the activity, by the scale of its "
        f"weights; decay {settings.beta:g}, threshold 1, second threshold {SECOND_THRESHOLD:g}, reset to zero."
    )


def sweep(settings: Settings, conv_activities: Sequence[float]) -> Sweep:
    """The points against activity.

    Raises:
        ValueError: as for :func:`build`.
    """
    activities = sorted(set(conv_activities))
    points = [replace(settings, activity=activity) for activity in activities]
    headline = settings.activity if settings.activity in activities else activities[0]
    shape, layers = NETWORKS[settings.input]
    return Sweep(
        name="conv",
        title=(
            f"Network {'x'.join(map(str, shape))}-{layers}, forward + backward: "
            f"T={settings.steps} × B={settings.batch_size}"
        ),
        caption=_caption(settings),
        points=points,
        axes=[Axis("activity", "activity of every layer", activities, {}, percent=True)],
        reference="dense",
        headline={"activity": headline},
    )
