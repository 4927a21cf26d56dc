"""One convolution of spike ids beside the dense one over all steps: its currents alone, its weights' gradient alone.

The layers are those that ``conv`` measures with their neurons; the spikes are random.
"""

import functools
from dataclasses import replace
from typing import Any, Callable, List, Sequence

import torch
from torch.nn import functional

from snnipu import SparseConv2d
from benchmarks.case import Axis, Case, Contender, Settings, Sweep, Workload
from benchmarks.cases.conv import LAYERS
from benchmarks.checks import Check, relative_error
from benchmarks.options import Option, comma_separated
from benchmarks.sparse_problem import SparseProblem, check_activity, parse_activities
from snnipu.neurons.multistep import PART_BYTES

SUMMARY = "one convolution on spike ids beside the dense one: currents, and the weights' gradient, against activity"
DTYPES = (torch.float32,)
DEVICES = ("cpu",)
FULL = {"steps": 20, "batch_size": 16, "neurons": 1000, "repeats": 15, "min_seconds": 0.0}
QUICK = {"steps": 4, "batch_size": 2, "neurons": 32, "repeats": 2, "min_seconds": 0.0}
ACTIVITIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
QUICK_ACTIVITIES = (0.05, 0.2)
# What is computed, in the words of the tables.
WORKS = {"currents": "currents", "weights": "gradient of the weights"}
# Sums over all places, samples and steps, which libraries add up one after the other, have an error of their own.
TOLERANCES = {"currents": 1e-5, "weights": 1e-4}


def _layers(text: str) -> List[str]:
    names = comma_separated(text, str, "layers")
    unknown = [name for name in names if name not in LAYERS]
    if unknown:
        raise ValueError(f"expected layers of {list(LAYERS)}, separated by commas, but has {unknown}")
    return names


OPTIONS = (
    Option(
        "layers",
        f"input channels and size of the maps; default: {','.join(LAYERS)}",
        _layers,
        tuple(LAYERS),
        tuple(LAYERS)[:1],
        metavar="LIST",
    ),
    Option(
        "layer_activities",
        f"default: {','.join(map(str, ACTIVITIES))}",
        parse_activities,
        ACTIVITIES,
        QUICK_ACTIVITIES,
        metavar="LIST",
    ),
)

Tensors = List[torch.Tensor]


class Problem(SparseProblem):
    """One layer, its input and an upstream gradient: the same for every contender."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        shape, out, kernel = LAYERS[settings.input]
        self.layer = SparseConv2d(shape[0], out, kernel, input_size=shape[1:], path="sparse")
        with torch.no_grad():
            self.layer.weight.uniform_(-1, 1, generator=self.generator)
            self.draw_input(*shape)
            self.grad = torch.randn(self.sparse()[0].shape, generator=self.generator)
        self.maps = self.dense_x.flatten(0, 1)

    def sparse(self) -> Tensors:
        return [self.layer(self.x)]

    def dense(self) -> Tensors:
        return [functional.conv2d(self.maps, self.layer.weight)]

    def in_parts(self) -> Tensors:
        row = self.grad[0, 0].numel() * self.grad.element_size()
        return [functional.conv2d(part, self.layer.weight) for part in self.maps.split(max(1, PART_BYTES // row))]

    def workload(self, currents: Callable[[], Tensors]) -> Workload:
        """``settings.work`` of a convolution that gives these currents."""
        weight = self.layer.weight
        if self.settings.work == "currents":

            def step() -> Tensors:
                with torch.no_grad():
                    return currents()
        else:
            made = currents()
            rows = self.grad.flatten(0, 1).split([part.flatten(0, -4).shape[0] for part in made])
            upstream = [grad.reshape(part.shape) for grad, part in zip(rows, made)]

            def step() -> Tensors:
                return list(torch.autograd.grad(made, [weight], upstream, retain_graph=True))

        return Workload(step, lambda: self._check(step()))

    def _check(self, made: Tensors) -> Check:
        tolerance = TOLERANCES[self.settings.work]
        weight = self.layer.weight.detach().double().requires_grad_()
        expected = functional.conv2d(self.maps.double(), weight)
        if self.settings.work != "currents":
            expected = torch.autograd.grad(expected, weight, self.grad.double().reshape(expected.shape))[0]
        error = relative_error(torch.cat([part.reshape(-1, *expected.shape[1:]) for part in made]), expected.detach())
        return Check(
            error <= tolerance,
            "a dense convolution in float64",
            f"{WORKS[self.settings.work]}: relative error {error:.1e} (allowed: {tolerance:.0e})",
            {"error": error},
        )


# One at a time: the next point of a sweep takes the place of the last.
_problem = functools.lru_cache(maxsize=1)(Problem)


def _workload(settings: Settings, currents: str) -> Workload:
    problem = _problem(settings)
    return problem.workload(getattr(problem, currents))


def build(settings: Settings) -> Case:
    """One point: ``settings.work`` of the layer ``settings.input`` at ``settings.activity``.

    Raises:
        ValueError: there is no such work, or the activity is out of range.
    """
    if settings.input not in LAYERS:  # in a run of all cases: that of another one
        settings = replace(settings, input=next(iter(LAYERS)))
    if settings.work not in WORKS:
        raise ValueError(f"work: expected one of {list(WORKS)}, got {settings.work!r}")
    check_activity(settings)
    return Case(
        name="convolution",
        title=f"{_described(settings.input)}, {100 * settings.activity:.3g} % active, {WORKS[settings.work]}: "
        f"T={settings.steps} × B={settings.batch_size}",
        caption=_CAPTION,
        contenders=[
            Contender(
                "sparse",
                "snnipu SparseConv2d",
                functools.partial(_workload, settings, "sparse"),
                ratio_label="SparseConv2d",
                note="path='sparse'; its currents lie as nn.Conv2d's do",
            ),
            Contender(
                "dense",
                "dense convolution",
                functools.partial(_workload, settings, "dense"),
                ratio_label="dense",
                note="PyTorch's, of all steps and samples as one batch: results of more than 32 MiB in memory got anew",
            ),
            Contender(
                "dense-parts",
                "dense convolution, in parts",
                functools.partial(_workload, settings, "in_parts"),
                ratio_label="parts",
                note=f"the same for parts of the batch, currents of {PART_BYTES // 2**20} MiB each, as MultiStep does",
            ),
        ],
        memory_reference="dense",
        memory_label="dense",
        parameters={
            "layer": settings.input,
            "work": settings.work,
            "activity": settings.activity,
            "steps": settings.steps,
            "batch_size": settings.batch_size,
        },
        show_faults=True,
        check_meaning=(
            f"check: within {TOLERANCES[settings.work]:.0e} of a dense convolution in float64, relative to the largest."
        ),
    )


_CAPTION = (
    "The work: from random input spikes the currents of all steps, without autograd; or from an upstream gradient of "
    "these that of the weights."
)


def _described(layer: str) -> str:
    shape, out, kernel = LAYERS[layer]
    return f"Convolution {shape[0]}→{out}, {shape[1]}×{shape[2]}, {kernel}×{kernel}"


def sweep(settings: Settings, layers: Sequence[str], layer_activities: Sequence[float]) -> Sweep:
    """The points against activity, for each layer and work.

    Raises:
        ValueError: as for :func:`build`.
    """
    activities = sorted(set(layer_activities))
    points: List[Settings] = []
    axes: List[Axis] = []
    for layer in layers:
        for work, meaning in WORKS.items():
            points += [replace(settings, input=layer, work=work, activity=activity) for activity in activities]
            fixed: Any = {"layer": layer, "work": work}
            title = f"{_described(layer)}: {meaning}"
            tables = ("time", "faults")
            axes.append(Axis("activity", "activity", activities, fixed, percent=True, tables=tables, title=title))
    return Sweep(
        name="convolution",
        title=f"One convolution, ms: T={settings.steps} × B={settings.batch_size}",
        caption=_CAPTION,
        points=points,
        axes=axes,
        reference="dense",
        headline={"layer": layers[0], "work": "currents", "activity": activities[0]},
    )
