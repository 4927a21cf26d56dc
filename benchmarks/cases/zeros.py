"""Ordinary networks of ``nn.Linear`` or ``nn.Conv2d`` and ``Leaky``: the gain of skipping zeros.

``MultiStep`` detects zeros itself. The input is random, and the weights are scaled so that every layer has the
activity.
"""

import contextlib
import functools
from dataclasses import replace

import torch
from torch import nn

import snnipu
from benchmarks.case import Case, Contender, Settings
from benchmarks.sparse_problem import SLOPE, THRESHOLD, LayeredProblem, on_grid

CLASSES = 10
# Mean of the weights: with mean zero, half of the sums are negative, and no scale makes more neurons spike.
MEAN = 0.25


def _linear(neurons):
    sizes = [512, neurons, neurons, neurons, CLASSES]
    return [[nn.Linear(a, b, bias=False)] for a, b in zip(sizes, sizes[1:])]


def _conv(neurons):
    shapes = ((2, 16, 5), (16, 64, 5), (64, 64, 3))
    stages = [[nn.Conv2d(a, b, k, padding=k // 2, bias=False)] for a, b, k in shapes]
    return [*stages, [nn.Flatten(), nn.Linear(64 * 32 * 32, CLASSES, bias=False)]]


# Shape of the input of a step, a function that returns the layers, and the title.
NETWORKS = {
    "linear": ((512,), _linear, "512-{0}-{0}-{0}-10"),
    "conv": ((2, 32, 32), _conv, "2x32x32-16C5-64C5-64C3-10"),
}


class Problem(LayeredProblem):
    """A network, its input and targets; sums of its weights are exact in any order."""

    def __init__(self, settings):
        super().__init__(settings)
        self.draw_input(*NETWORKS[settings.network][0])
        self.draw_targets(CLASSES)
        self.weights = []
        out = self.dense_x
        for modules in self._stages():
            out = self._scaled(modules, out)
            self.weights.append(modules[-1].weight.detach())

    def _stages(self):
        with torch.random.fork_rng(devices=[]):
            return NETWORKS[self.settings.network][1](self.settings.neurons)

    def _neuron(self):
        return snnipu.Leaky(
            beta=self.settings.beta,
            threshold=THRESHOLD,
            spike_grad=snnipu.surrogate.fast_sigmoid(SLOPE),
            reset_mechanism="zero",
        )

    @torch.no_grad()
    def _scaled(self, modules, x):
        """Draw the weights of the last module, scaled to the activity, on a grid; return the spikes of ``x``."""
        layer, spikes = modules[-1], self._neuron().spikes
        layer.weight.uniform_(-1, 1, generator=self.generator).add_(MEAN * self.settings.activity)
        (unscaled,) = self.in_layers([modules], [lambda currents: currents], x)
        low, high = 0.0, 64.0
        for _ in range(24):
            scale = (low + high) / 2
            low, high = (scale, high) if spikes(unscaled * scale).mean() < self.settings.activity else (low, scale)
        layer.weight.copy_(on_grid(layer.weight * high))
        return self.in_layers([modules], [spikes], x)[0]

    def stages(self):
        """Return each layer's modules before its neurons, with these weights."""
        stages = self._stages()
        with torch.no_grad():
            for modules, weight in zip(stages, self.weights):
                modules[-1].weight.copy_(weight)
        return stages

    def multistep(self):
        return snnipu.MultiStep(*[module for stage in self.stages() for module in (*stage, self._neuron())])

    def measured(self):
        """Return the activities and paths that ``MultiStep.paths`` reports for the layers."""
        paths = [path for path in self.multistep().paths(self.dense_x) if path.limit is not None]
        return {"activity": [path.activity for path in paths], "path": [path.runs_as for path in paths]}


# A single entry: the next point of a sweep replaces the last one.
_problem = functools.lru_cache(maxsize=1)(Problem)


def problem_of(settings):
    """Return the same problem for training and inference."""
    problem = _problem(replace(settings, work=Settings.work))
    problem.settings = settings
    return problem


def measured(settings):
    with torch.set_grad_enabled(settings.work == "training"):
        return problem_of(settings).measured()


def _multistep(settings, dense):
    problem = problem_of(settings)
    net = problem.multistep()

    def forward():
        with snnipu.dense_only() if dense else contextlib.nullcontext():
            return [net(problem.dense_x)[0]]

    return problem.workload(forward, [p for p in net.parameters() if p.dim() > 1])


def contenders(settings):
    return [
        Contender(
            "multistep",
            "snnipu MultiStep",
            functools.partial(_multistep, settings, dense=False),
            note="ordinary layers; each call looks how much of its input is zero",
        ),
        Contender(
            "dense",
            "snnipu MultiStep, dense",
            functools.partial(_multistep, settings, dense=True),
            note="in dense_only(): PyTorch's products",
        ),
        Contender(
            "snntorch",
            "snnTorch loop",
            lambda: problem_of(settings).snntorch_workload(),
            "snntorch",
            "the layer and Leaky at every step",
        ),
        Contender(
            "spikingjelly",
            "SpikingJelly multi-step",
            lambda: problem_of(settings).spikingjelly_workload(),
            "spikingjelly",
            "a product a layer, then LIFNode with hard reset",
        ),
    ]


def title(settings):
    network = NETWORKS[settings.network][2].format(settings.neurons)
    return (
        f"Network {network}, {100 * settings.activity:.3g} % active, {settings.work}: T={settings.steps} × "
        f"B={settings.batch_size}"
    )


CASE = Case(
    summary="ordinary layers whose input is mostly zeros, training and inference, against activity",
    work=(
        "From random input spikes, the output spikes of all steps; in training the cross-entropy of their sum and the "
        "gradient of every weight. Every layer has the activity, by the scale of its weights; threshold 1, reset to 0."
    ),
    title=title,
    contenders=contenders,
    sizes={
        "steps": 25,
        "batch_size": 64,
        "neurons": 1000,
        "beta": 0.9,
        "activity": (0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5),
        "work": ("training", "inference"),
        "network": "linear",
    },
    axes=("activity",),
    tables=("milliseconds", "faults"),
    choices={"network": list(NETWORKS), "work": ["training", "inference"]},
    reference="dense",
    slow_seconds=0.5,
    devices=("cpu",),
    measured=measured,
    check=(
        "The output spikes equal and the weight gradients within 1e-4 of those of snnTorch's loop, "
        "or, for a library that rounds otherwise, of its own update rule in plain PyTorch."
    ),
)
