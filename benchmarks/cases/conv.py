"""Convolutional networks of spike ids beside dense ones, at a given activity: one whole forward and backward pass.

The networks are the field's standard small ones for event cameras, and single layers; the spikes are random and the
weights scaled, so that every layer has the activity.
"""

import functools
from typing import Callable, Optional, Tuple

import torch
from snntorch import surrogate as snntorch_surrogate
from torch import nn

import snnipu
from benchmarks.case import Case, Check, Contender, Workload
from benchmarks.checks import relative_error
from benchmarks.sparse_problem import EVERY, THRESHOLD, Layers, SnnTorchNet, SparseProblem, percent
from snnipu import SparseNetwork
from snnipu.training import EventConfig


def _trained(dataset, side, classes, **settings):
    """Return the network that ``train --network conv`` trains on ``dataset``."""
    hidden = EventConfig.for_dataset(dataset, network="conv", **settings).hidden
    layers = [layer if isinstance(layer, str) else f"FC{layer}" for layer in (*hidden, classes)]
    return (2, side, side), "-".join(layers)


# Layers by themselves: shape of the input, output channels and size of the kernel.
LAYERS = {
    "16-17x17": ((16, 17, 17), 32, 5),
    "32-32x32": ((32, 32, 32), 64, 3),
    "64-24x24": ((64, 24, 24), 128, 3),
    "2-34x34": ((2, 34, 34), 12, 5),
}
# Shape of the input and the layers.
NETWORKS = {
    "nmnist": _trained("nmnist", 34, 10),
    "dvs32": _trained("dvs", 32, 11, downsample=4),
    "dvs64": _trained("dvs", 64, 11, downsample=2),
    **{f"layer-{name}": (shape, f"{out}C{kernel}") for name, (shape, out, kernel) in LAYERS.items()},
}
SECOND_THRESHOLD = 0.9
SLOPE = 10.0
# Membranes are added up in another order than dense ones: some within rounding of the threshold fall on its other side.
FLIPS = 1e-5
GRADIENT_TOLERANCE = 5e-4

# Spikes of layers, and the gradients of the loss of the masked samples.
Run = Callable[[Optional[torch.Tensor]], Tuple[Layers, Layers]]


class Problem(SparseProblem):
    """Layers on maps, in one step."""

    def __init__(self, settings):
        super().__init__(settings)
        self.draw_input(*NETWORKS[settings.input][0])
        # The gradient of a layer's input is part of its work; the input of a network needs none.
        self.of_input = settings.input.startswith("layer")
        net = self._network()
        with torch.no_grad():
            for layer in net.layers:
                layer.weight.uniform_(-1, 1, generator=self.generator)
                # Weights of mean zero do not come to high activities.
                layer.weight.add_(0.25 * settings.activity)
        self.scale(net.to(self.device), tolerance=0.02)
        self.draw_targets(net.sizes[-1])

    def _network(self, path="sparse", grad_threshold=SECOND_THRESHOLD):
        return SparseNetwork(
            list(NETWORKS[self.settings.input]),
            beta=self.settings.beta,
            threshold=THRESHOLD,
            grad_threshold=grad_threshold,
            delay=0,
            spike_grad=snnipu.surrogate.fast_sigmoid(SLOPE),
            path=path,
        )

    def network(self, path="sparse", grad_threshold=SECOND_THRESHOLD):
        return self.filled(self._network(path, grad_threshold).to(self.device))

    def by_snntorch(self):
        stages = [[]]
        for module in self.network().to_dense():
            if isinstance(module, snnipu.Leaky):
                stages.append([])
            else:
                stages[-1].append(module)
        spike_grad = snntorch_surrogate.fast_sigmoid(slope=SLOPE)
        return SnnTorchNet(stages[:-1], self.settings.beta, spike_grad, delay=False)

    @functools.cached_property
    def _whole_reference(self):
        return self._expected(EVERY)

    def _expected(self, samples):
        net = self.by_snntorch()
        every = net.all_layers(self.dense_x)
        return [spikes.detach() for spikes in every], self.gradients(every[-1].sum(0), net.weights(), samples)

    def reference(self, samples=EVERY):
        """Return the spikes of every layer and the gradients of the loss of ``samples``, by snnTorch's loop."""
        return self._whole_reference if samples is EVERY else self._expected(samples)

    def last_layer(self, samples):
        layers, gradients = self.reference(samples)
        return layers[-1:], gradients


# One at a time: the next point of a sweep takes the place of the last.
problem_of = functools.lru_cache(maxsize=1)(Problem)


def compared(run, reference, against):
    """Compare the spikes of all samples, and the gradients of those whose spikes are all the same.

    One spike on the other side of the threshold changes the ones behind it, and with them gradients.
    """
    (spikes, gradients), (expected, expected_gradients) = run(EVERY), reference(EVERY)
    flipped = [s.flatten(2) != r.flatten(2) for s, r in zip(spikes, expected)]
    differing = sum(int(layer.sum()) for layer in flipped)
    total = sum(spike.numel() for spike in expected)
    same = ~torch.stack([layer.any(2).any(0) for layer in flipped]).any(0)
    enough = 2 * int(same.sum()) >= len(same)
    if differing and enough:
        gradients, expected_gradients = run(same)[1], reference(same)[1]
    error = max(map(relative_error, gradients, expected_gradients))
    return Check(
        enough and differing <= FLIPS * total and error <= GRADIENT_TOLERANCE and len(spikes) == len(expected),
        against,
        f"{differing:,} of {total:,} spikes differ (allowed: {FLIPS:.0e} of them), none in {int(same.sum())} of "
        f"{len(same)} samples (asked: half of them), whose gradient error is {error:.1e} (allowed: "
        f"{GRADIENT_TOLERANCE:.0e})",
    )


def _sparse(settings, path):
    problem = problem_of(settings)
    net = problem.network(path)

    def run(net, samples):
        layers = net(problem.x, all_layers=True)
        out = net.pooled(len(layers) - 1, layers[-1])
        gradients = problem.gradients(out.spike_count(), [layer.weight for layer in net.layers], samples)
        return [layer.to_dense().detach() for layer in layers], gradients

    def step():
        x = problem.x
        leaves = [layer.weight for layer in net.layers]
        if problem.of_input:
            x = x.detach().requires_grad_()
            leaves.append(x.values)
        return problem.gradients(net(x).spike_count(), leaves)

    def check():
        everyone, dense = problem.network(path, None), problem.network("dense")
        every = compared(functools.partial(run, everyone), problem.reference, "snnTorch")
        selected = compared(functools.partial(run, net), functools.partial(run, dense), "dense convolutions")
        told = f"without a second threshold: {every.detail}; with it, of dense convolutions: {selected.detail}"
        return Check(every.passed and selected.passed, "snnTorch", told)

    return Workload(step, check)


def _dense(settings, by_snntorch):
    problem = problem_of(settings)
    if by_snntorch:
        forward = problem.by_snntorch()
        weights = forward.weights()
    else:
        net = problem.network().to_dense()
        weights = [module.weight for module in net if isinstance(module, (nn.Conv2d, nn.Linear))]

        def forward(x):
            with snnipu.dense_only():
                out = net(x)
            return out[0] if isinstance(out, tuple) else out

    def step():
        x = problem.dense_x.detach().requires_grad_(problem.of_input)
        return problem.gradients(forward(x).sum(0), [*weights, *([x] if problem.of_input else [])])

    def run(samples):
        spikes = forward(problem.dense_x)
        return [spikes.detach()], problem.gradients(spikes.sum(0), weights, samples)

    return Workload(step, lambda: compared(run, problem.last_layer, "snnTorch"))


def contenders(settings):
    return [
        Contender(
            "sparse-network",
            "snnipu SparseNetwork",
            functools.partial(_sparse, settings, "sparse"),
            note="path='sparse' and all slots that it needs: the sparse kernels at every activity; nothing is dropped",
        ),
        Contender(
            "sparse-network-auto",
            "snnipu SparseNetwork, path='auto'",
            functools.partial(_sparse, settings, "auto"),
            note="sparse or dense convolution for each layer, by the activity of its input",
        ),
        Contender(
            "dense",
            "snnipu MultiStep, dense",
            functools.partial(_dense, settings, by_snntorch=False),
            note="in dense_only(): a convolution over all steps and samples, then Leaky; every neuron carries gradient",
        ),
        Contender(
            "snntorch",
            "snnTorch loop",
            functools.partial(_dense, settings, by_snntorch=True),
            "snntorch",
            "nn.Conv2d and Leaky at every step; every neuron carries gradient",
        ),
    ]


def title(settings):
    shape, layers = NETWORKS[settings.input]
    return (
        f"Network {'x'.join(map(str, shape))}-{layers}, {percent(settings)} active, forward + backward: "
        f"T={settings.steps} × B={settings.batch_size}"
    )


CASE = Case(
    summary="convolutional networks of spike ids beside dense ones, against activity",
    work=(
        "From random input spikes, the spikes of all steps, the cross-entropy of the summed output spikes, and the "
        "gradient of every weight, of a layer also of the input's values. Every layer has the activity, by the scale of "
        f"its weights; threshold 1, second threshold {SECOND_THRESHOLD:g}, reset to zero."
    ),
    title=title,
    contenders=contenders,
    sizes={
        "steps": 20,
        "batch_size": 48,
        "beta": 0.95,
        "activity": (0.01, 0.02, 0.05, 0.1, 0.2, 0.4),
        "input": "nmnist",
    },
    quick={"steps": 4, "batch_size": 2, "activity": (0.05, 0.2)},
    axes=("activity",),
    choices={"input": list(NETWORKS)},
    reference="dense",
    slow_seconds=0.1,
    measured=lambda settings: problem_of(settings).measured(),
    check=(
        f"The spikes equal but for {FLIPS:.0e} of them, with membranes within rounding of the threshold, and for samples "
        f"without such a spike the weight gradients within {GRADIENT_TOLERANCE:.0e} of those of snnTorch's loop; with the "
        "second threshold, of the same network by dense convolutions."
    ),
)
