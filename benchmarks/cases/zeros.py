"""Ordinary networks, of ``nn.Linear`` or ``nn.Conv2d`` and ``Leaky``, what leaving out zeros gains.

``MultiStep`` finds out by itself what is zero. The input is random, and the weights are scaled so that every layer has
the activity.
"""

import contextlib
import functools
from dataclasses import replace
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from snntorch import surrogate as snntorch_surrogate
from torch import nn

import snnipu
from benchmarks import peers
from benchmarks.case import Axis, Case, Contender, Settings, Sweep, Workload
from benchmarks.checks import Check, check_network
from benchmarks.options import Option
from benchmarks.sparse_problem import (
    THRESHOLD,
    Layers,
    SnnTorchNet,
    SparseProblem,
    check_activity,
    on_grid,
    parse_activities,
)

SUMMARY = "ordinary layers whose input is mostly zeros, training and inference, against activity"
DTYPES = (torch.float32,)
DEVICES = ("cpu",)
FULL = {"steps": 25, "batch_size": 64, "neurons": 1000, "repeats": 9, "min_seconds": 0.0}
QUICK = {"steps": 4, "batch_size": 2, "neurons": 32, "repeats": 2, "min_seconds": 0.0}
ACTIVITIES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5)
QUICK_ACTIVITIES = (0.05, 0.3)
WORKS = {"training": "forward + backward", "inference": "inference"}
SLOPE = 10.0
GRADIENT_TOLERANCE = 1e-4
SLOW_SECONDS = 0.5
CLASSES = 10
# Half of the sums of weights of mean zero are negative: no scale brings more neurons to fire.
_MEAN = 0.25


def _linear(neurons: int) -> List[List[nn.Module]]:
    sizes = [512, neurons, neurons, neurons, CLASSES]
    return [[nn.Linear(a, b, bias=False)] for a, b in zip(sizes, sizes[1:])]


def _conv(neurons: int) -> List[List[nn.Module]]:
    shapes = ((2, 16, 5), (16, 64, 5), (64, 64, 3))
    stages: List[List[nn.Module]] = [[nn.Conv2d(a, b, k, padding=k // 2, bias=False)] for a, b, k in shapes]
    return [*stages, [nn.Flatten(), nn.Linear(64 * 32 * 32, CLASSES, bias=False)]]


# Shape of the input of a step, the layers, and what they are in words.
NETWORKS: Dict[str, Tuple[Tuple[int, ...], Callable[[int], List[List[nn.Module]]], str]] = {
    "linear": ((512,), _linear, "512-{0}-{0}-{0}-10"),
    "conv": ((2, 32, 32), _conv, "2x32x32-16C5-64C5-64C3-10"),
}
OPTIONS = (
    Option("zeros_network", "linear (default) or conv", setting="input", choices=list(NETWORKS)),
    Option(
        "zeros_activities",
        f"default: {','.join(map(str, ACTIVITIES))}",
        parse_activities,
        ACTIVITIES,
        QUICK_ACTIVITIES,
        metavar="LIST",
    ),
)


class Problem(SparseProblem):
    """One network, its input and targets; sums of its weights are exact, whatever their order."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        shape, _, _ = NETWORKS[settings.input]
        self.draw_input(*shape)
        self.draw_targets(CLASSES)
        self.weights = []
        out = self.dense_x
        for modules in self._stages():
            layer: Any = modules[-1]
            out = self._scaled(modules[:-1], layer, out)
            self.weights.append(layer.weight.detach())

    def _stages(self) -> List[List[nn.Module]]:
        with torch.random.fork_rng(devices=[]):
            return NETWORKS[self.settings.input][1](self.settings.neurons)

    def _neuron(self) -> snnipu.Leaky:
        return snnipu.Leaky(
            beta=self.settings.beta,
            threshold=THRESHOLD,
            spike_grad=snntorch_surrogate.fast_sigmoid(slope=SLOPE),
            reset_mechanism="zero",
        )

    def _scaled(self, before: Sequence[nn.Module], layer: Any, x: torch.Tensor) -> torch.Tensor:
        """Draw the weights of ``layer``, scaled to the activity and rounded; the spikes that ``x`` then makes."""
        neuron, rows = self._neuron(), x.flatten(0, 1)
        for module in before:
            rows = module(rows)

        def currents() -> torch.Tensor:
            made: torch.Tensor = layer(rows).unflatten(0, x.shape[:2])
            return made

        with torch.no_grad():
            layer.weight.uniform_(-1, 1, generator=self.generator).add_(_MEAN * self.settings.activity)
            unscaled, low, high = currents(), 0.0, 64.0
            for _ in range(24):
                scale = (low + high) / 2
                active = neuron.sequence(unscaled * scale)[0].mean()
                low, high = (scale, high) if active < self.settings.activity else (low, scale)
            layer.weight.copy_(on_grid(layer.weight * high))
            spikes: torch.Tensor = neuron.sequence(currents())[0]
        return spikes

    def stages(self) -> List[List[nn.Module]]:
        """Each layer's modules before its neurons, with these weights."""
        stages = self._stages()
        with torch.no_grad():
            for modules, weight in zip(stages, self.weights):
                modules[-1].weight.copy_(weight)  # type: ignore[operator,union-attr]
        return stages

    def multistep(self) -> snnipu.MultiStep:
        return snnipu.MultiStep(*[module for stage in self.stages() for module in (*stage, self._neuron())])

    def by_snntorch(self) -> SnnTorchNet:
        spike_grad = snntorch_surrogate.fast_sigmoid(slope=SLOPE)
        return SnnTorchNet(self.stages(), self.settings.beta, spike_grad, delay=False)

    @functools.cached_property
    def reference(self) -> Tuple[Layers, Layers]:
        """Spikes of the last layer and weight gradients, by snnTorch's loop."""
        net = self.by_snntorch()
        spikes = net(self.dense_x)
        return [spikes.detach()], self.gradients(spikes.sum(0), net.weights())

    @functools.cached_property
    def spikingjelly_reference(self) -> Tuple[Layers, Layers]:
        """The same by SpikingJelly's update rule in plain PyTorch, with its soft-sign surrogate."""
        rule = peers.spikingjelly_hard_reset_rule(self.settings.beta, SLOPE)
        stages, out = self.stages(), self.dense_x
        for stage in stages:
            currents = _as_one_batch(stage, out)
            v = torch.zeros_like(currents[0])
            record = []
            for current in currents.unbind():
                spk, v = rule(current, v)
                record.append(spk)
            out = torch.stack(record)
        return [out.detach()], self.gradients(out.sum(0), [stage[-1].weight for stage in stages])  # type: ignore[misc]

    def measured(self) -> Dict[str, Any]:
        """What ``MultiStep.paths`` tells of the layers."""
        paths = [path for path in self.multistep().paths(self.dense_x) if path.limit is not None]
        return {"activity": [path.activity for path in paths], "path": [path.runs_as for path in paths]}


# One at a time: the next point of a sweep takes the place of the last.
_made = functools.lru_cache(maxsize=1)(Problem)


def _problem(settings: Settings) -> Problem:
    """The same for training and inference."""
    return _made(replace(settings, work=Settings.work))


def _as_one_batch(modules: Sequence[nn.Module], x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(0, 1)
    for module in modules:
        rows = module(rows)
    return rows.unflatten(0, x.shape[:2])


def _workload(
    problem: Problem,
    work: str,
    spikes: Callable[[], torch.Tensor],
    weights: List[torch.Tensor],
    expected: Callable[[], Tuple[Layers, Layers]],
    against: str,
) -> Workload:
    def train() -> Layers:
        return problem.gradients(spikes().sum(0), weights)

    def infer() -> Layers:
        with torch.no_grad():
            return [spikes()]

    def check() -> Check:
        if work == "inference":
            return check_network(infer(), [], expected()[0], [], GRADIENT_TOLERANCE, against)
        made = spikes()
        gradients = problem.gradients(made.sum(0), weights)
        return check_network([made], gradients, *expected(), GRADIENT_TOLERANCE, against)

    return Workload(train if work == "training" else infer, check)


def _multistep(settings: Settings, dense: bool) -> Workload:
    problem = _problem(settings)
    net = problem.multistep()

    def spikes() -> torch.Tensor:
        with snnipu.dense_only() if dense else contextlib.nullcontext():
            made: torch.Tensor = net(problem.dense_x)[0]
            return made

    weights = [p for p in net.parameters() if p.dim() > 1]
    return _workload(problem, settings.work, spikes, list(weights), lambda: problem.reference, "snnTorch")


def _snntorch(settings: Settings) -> Workload:
    problem = _problem(settings)
    net = problem.by_snntorch()
    return _workload(
        problem, settings.work, lambda: net(problem.dense_x), net.weights(), lambda: problem.reference, "snnTorch"
    )


def _spikingjelly(settings: Settings) -> Workload:
    problem = _problem(settings)
    stages = problem.stages()
    lifs = [peers.spikingjelly_hard_reset_lif(settings.beta, SLOPE) for _ in stages]

    def spikes() -> torch.Tensor:
        out = problem.dense_x
        for stage, lif in zip(stages, lifs):
            lif.reset()
            out = lif(_as_one_batch(stage, out))
        return out

    weights: List[Any] = [stage[-1].weight for stage in stages]
    return _workload(problem, settings.work, spikes, weights, lambda: problem.spikingjelly_reference, "its own rule")


def build(settings: Settings) -> Case:
    """One point: ``settings.work`` of the network ``settings.input`` at ``settings.activity``.

    Raises:
        ValueError: the activity is out of range.
    """
    # In a run of all cases: those of other ones.
    if settings.input not in NETWORKS:
        settings = replace(settings, input="linear")
    if settings.work not in WORKS:
        settings = replace(settings, work="training")
    check_activity(settings)

    def measured() -> Dict[str, Any]:
        with torch.set_grad_enabled(settings.work == "training"):
            return _problem(settings).measured()

    return Case(
        name="zeros",
        title=(
            f"Network {_described(settings)}, {100 * settings.activity:.3g} % active, {WORKS[settings.work]}: "
            f"T={settings.steps} × B={settings.batch_size}"
        ),
        caption=_caption(settings),
        contenders=[
            Contender(
                "multistep",
                "snnipu MultiStep",
                functools.partial(_multistep, settings, dense=False),
                ratio_label="MultiStep",
                note="ordinary layers; each call looks how much of its input is zero",
            ),
            Contender(
                "dense",
                "snnipu MultiStep, dense",
                functools.partial(_multistep, settings, dense=True),
                ratio_label="dense",
                note="in dense_only(): PyTorch's products",
            ),
            Contender(
                "snntorch",
                "snnTorch loop",
                functools.partial(_snntorch, settings),
                peer="snntorch",
                note="the layer and Leaky at every step",
            ),
            Contender(
                "spikingjelly",
                "SpikingJelly multi-step",
                functools.partial(_spikingjelly, settings),
                peer="spikingjelly",
                note="a product a layer, then LIFNode with hard reset",
            ),
        ],
        memory_reference="dense",
        memory_label="dense",
        parameters={
            "network": settings.input,
            "work": settings.work,
            "activity": settings.activity,
            "steps": settings.steps,
            "batch_size": settings.batch_size,
            "neurons": settings.neurons,
            "beta": settings.beta,
        },
        measured=measured,
        slow_seconds=SLOW_SECONDS,
        show_faults=True,
        check_meaning=(
            f"check: the output spikes equal and the weight gradients within {GRADIENT_TOLERANCE:.0e} of those of "
            "snnTorch's loop, or, for a library that rounds otherwise, of its own update rule in plain PyTorch."
        ),
    )


def _described(settings: Settings) -> str:
    return NETWORKS[settings.input][2].format(settings.neurons)


def _caption(settings: Settings) -> str:
    return (
        "The work: from random input spikes, the output spikes of all steps; in training the cross-entropy of their "
        "sum and the gradient of every weight. Every layer has the activity, by the scale of its weights; decay "
        f"{settings.beta:g}, threshold 1, reset to zero."
    )


def sweep(settings: Settings, zeros_activities: Sequence[float]) -> Sweep:
    """The points against activity, of training and of inference.

    Raises:
        ValueError: as for :func:`build`.
    """
    if settings.input not in NETWORKS:
        settings = replace(settings, input="linear")
    activities = sorted(set(zeros_activities))
    return Sweep(
        name="zeros",
        title=f"{_described(settings)}: T={settings.steps} × B={settings.batch_size}",
        caption=_caption(settings),
        points=[replace(settings, work=work, activity=activity) for activity in activities for work in WORKS],
        axes=[
            Axis(
                "activity",
                "activity of every layer",
                activities,
                {"work": work},
                percent=True,
                tables=("time", "faults"),
                title=meaning,
            )
            for work, meaning in WORKS.items()
        ],
        reference="dense",
        headline={"work": "training", "activity": 0.05 if 0.05 in activities else activities[0]},
    )
