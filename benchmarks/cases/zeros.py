"""Ordinary networks, of ``nn.Linear`` or ``nn.Conv2d`` and ``Leaky``: what leaving out zeros gains.

``MultiStep`` finds out by itself what is zero. The input is random, and the weights are scaled so that every layer has
the activity.
"""

import contextlib
import functools
from dataclasses import replace

import torch
from snntorch import surrogate as snntorch_surrogate
from torch import nn

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Contender, Settings, Workload
from benchmarks.checks import check_network
from benchmarks.sparse_problem import THRESHOLD, SnnTorchNet, SparseProblem, on_grid, percent

SLOPE = 10.0
GRADIENT_TOLERANCE = 1e-4
CLASSES = 10
# Half of the sums of weights of mean zero are negative: no scale brings more neurons to fire.
MEAN = 0.25


def _linear(neurons):
    sizes = [512, neurons, neurons, neurons, CLASSES]
    return [[nn.Linear(a, b, bias=False)] for a, b in zip(sizes, sizes[1:])]


def _conv(neurons):
    shapes = ((2, 16, 5), (16, 64, 5), (64, 64, 3))
    stages = [[nn.Conv2d(a, b, k, padding=k // 2, bias=False)] for a, b, k in shapes]
    return [*stages, [nn.Flatten(), nn.Linear(64 * 32 * 32, CLASSES, bias=False)]]


# Shape of the input of a step, the layers, and what they are in words.
NETWORKS = {
    "linear": ((512,), _linear, "512-{0}-{0}-{0}-10"),
    "conv": ((2, 32, 32), _conv, "2x32x32-16C5-64C5-64C3-10"),
}


def _as_one_batch(modules, x):
    rows = x.flatten(0, 1)
    for module in modules:
        rows = module(rows)
    return rows.unflatten(0, x.shape[:2])


class Problem(SparseProblem):
    """One network, its input and targets; sums of its weights are exact, whatever their order."""

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
            spike_grad=snntorch_surrogate.fast_sigmoid(slope=SLOPE),
            reset_mechanism="zero",
        )

    @torch.no_grad()
    def _scaled(self, modules, x):
        """Draw the weights of the last module, scaled to the activity and rounded; return the spikes that ``x`` makes."""
        neuron, layer = self._neuron(), modules[-1]
        layer.weight.uniform_(-1, 1, generator=self.generator).add_(MEAN * self.settings.activity)
        unscaled, low, high = _as_one_batch(modules, x), 0.0, 64.0
        for _ in range(24):
            scale = (low + high) / 2
            active = neuron.sequence(unscaled * scale)[0].mean()
            low, high = (scale, high) if active < self.settings.activity else (low, scale)
        layer.weight.copy_(on_grid(layer.weight * high))
        return neuron.sequence(_as_one_batch(modules, x))[0]

    def stages(self):
        """Return each layer's modules before its neurons, with these weights."""
        stages = self._stages()
        with torch.no_grad():
            for modules, weight in zip(stages, self.weights):
                modules[-1].weight.copy_(weight)
        return stages

    def multistep(self):
        return snnipu.MultiStep(*[module for stage in self.stages() for module in (*stage, self._neuron())])

    def by_snntorch(self):
        spike_grad = snntorch_surrogate.fast_sigmoid(slope=SLOPE)
        return SnnTorchNet(self.stages(), self.settings.beta, spike_grad, delay=False)

    @functools.cached_property
    def reference(self):
        """Spikes of the last layer and weight gradients, by snnTorch's loop."""
        net = self.by_snntorch()
        spikes = net(self.dense_x)
        return [spikes.detach()], self.gradients(spikes.sum(0), net.weights())

    @functools.cached_property
    def spikingjelly_reference(self):
        """The same by SpikingJelly's update rule in plain PyTorch, with its soft-sign surrogate."""
        rule = peers.spikingjelly_rule(self.settings.beta, SLOPE)
        stages, out = self.stages(), self.dense_x
        for stage in stages:
            out = peers.over_time(rule, _as_one_batch(stage, out))
        return [out.detach()], self.gradients(out.sum(0), [stage[-1].weight for stage in stages])

    def measured(self):
        """Return what ``MultiStep.paths`` tells of the layers."""
        paths = [path for path in self.multistep().paths(self.dense_x) if path.limit is not None]
        return {"activity": [path.activity for path in paths], "path": [path.runs_as for path in paths]}


# One at a time: the next point of a sweep takes the place of the last.
_problem = functools.lru_cache(maxsize=1)(Problem)


def problem_of(settings):
    """Return the same problem for training and inference."""
    return _problem(replace(settings, work=Settings.work))


def measured(settings):
    with torch.set_grad_enabled(settings.work == "training"):
        return problem_of(settings).measured()


def _workload(settings, spikes, weights, by_rule=False):
    problem, trains = problem_of(settings), settings.work == "training"

    def train():
        return problem.gradients(spikes().sum(0), weights)

    def infer():
        with torch.no_grad():
            return [spikes()]

    def check():
        expected, expected_gradients = problem.spikingjelly_reference if by_rule else problem.reference
        against = "its own rule" if by_rule else "snnTorch"
        if not trains:
            return check_network(infer(), [], expected, [], GRADIENT_TOLERANCE, against)
        out = spikes()
        gradients = problem.gradients(out.sum(0), weights)
        return check_network([out], gradients, expected, expected_gradients, GRADIENT_TOLERANCE, against)

    return Workload(train if trains else infer, check)


def _multistep(settings, dense):
    problem = problem_of(settings)
    net = problem.multistep()

    def spikes():
        with snnipu.dense_only() if dense else contextlib.nullcontext():
            return net(problem.dense_x)[0]

    return _workload(settings, spikes, [p for p in net.parameters() if p.dim() > 1])


def _snntorch(settings):
    problem = problem_of(settings)
    net = problem.by_snntorch()
    return _workload(settings, lambda: net(problem.dense_x), net.weights())


def _spikingjelly(settings):
    problem = problem_of(settings)
    stages = problem.stages()
    lifs = [peers.spikingjelly_lif(settings.beta, hard_reset_slope=SLOPE) for _ in stages]

    def spikes():
        out = problem.dense_x
        for stage, lif in zip(stages, lifs):
            lif.reset()
            out = lif(_as_one_batch(stage, out))
        return out

    return _workload(settings, spikes, [stage[-1].weight for stage in stages], by_rule=True)


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
            functools.partial(_snntorch, settings),
            "snntorch",
            "the layer and Leaky at every step",
        ),
        Contender(
            "spikingjelly",
            "SpikingJelly multi-step",
            functools.partial(_spikingjelly, settings),
            "spikingjelly",
            "a product a layer, then LIFNode with hard reset",
        ),
    ]


def title(settings):
    network = NETWORKS[settings.network][2].format(settings.neurons)
    works = {"training": "forward + backward", "inference": "inference"}
    return (
        f"Network {network}, {percent(settings)} active, {works[settings.work]}: T={settings.steps} × "
        f"B={settings.batch_size}"
    )


CASE = Case(
    summary="ordinary layers whose input is mostly zeros, training and inference, against activity",
    work=(
        "From random input spikes, the output spikes of all steps; in training the cross-entropy of their sum and the "
        "gradient of every weight. Every layer has the activity, by the scale of its weights; threshold 1, reset to zero."
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
    quick={"steps": 4, "batch_size": 2, "neurons": 32, "activity": (0.05, 0.3)},
    axes=("activity",),
    tables=("milliseconds", "faults"),
    choices={"network": list(NETWORKS), "work": ["training", "inference"]},
    reference="dense",
    slow_seconds=0.5,
    devices=("cpu",),
    measured=measured,
    check=(
        f"The output spikes equal and the weight gradients within {GRADIENT_TOLERANCE:.0e} of those of snnTorch's loop, "
        "or, for a library that rounds otherwise, of its own update rule in plain PyTorch."
    ),
)
