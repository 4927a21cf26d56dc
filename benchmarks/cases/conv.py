"""Sparse and dense convolutional networks at a given activity: one whole forward and backward pass.

The networks are the standard small networks of the literature for event cameras, and single layers. The spikes are
random, and the weights are scaled so that every layer has the activity.
"""

import functools

import torch

import snnipu
from benchmarks.case import Case, Check, Contender, Workload
from benchmarks.checks import both, relative_error
from benchmarks.sparse_problem import EVERY, SECOND_THRESHOLD, SLOPE, THRESHOLD, LayeredProblem
from snnipu import SparseNetwork

# Single layers: shape of the input, output channels and size of the kernel.
LAYERS = {
    "16-17x17": ((16, 17, 17), 32, 5),
    "32-32x32": ((32, 32, 32), 64, 3),
    "64-24x24": ((64, 24, 24), 128, 3),
    "2-34x34": ((2, 34, 34), 12, 5),
}
# Shape of the input, and the layers; the networks are those of ``train --network conv``.
NETWORKS = {
    "nmnist": ((2, 34, 34), "12C5-MP2-32C5-MP2-FC10"),
    "dvs32": ((2, 32, 32), "16C5P2-MP2-32C3P1-MP2-FC512-FC11"),
    "dvs64": ((2, 64, 64), "16C5P2-MP2-32C3P1-MP2-64C3P1-MP2-FC512-FC11"),
    **{f"layer-{name}": (shape, f"{out}C{kernel}") for name, (shape, out, kernel) in LAYERS.items()},
}
# Sparse and dense membranes are summed in different orders: near the threshold some spikes differ.
FLIPS = 1e-5
GRADIENT_TOLERANCE = 5e-4


class Problem(LayeredProblem):
    """Layers on maps, without delays."""

    def __init__(self, settings):
        super().__init__(settings)
        self.draw_input(*NETWORKS[settings.input][0])
        # A single layer also computes the gradient of its input; a network does not.
        self.of_input = settings.input.startswith("layer")
        net = self._network()
        with torch.no_grad():
            for layer in net.layers:
                layer.weight.uniform_(-1, 1, generator=self.generator)
                # Weights of mean zero do not reach high activities.
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

    def stages(self):
        stages = [[]]
        for module in self.network().to_dense():
            if isinstance(module, snnipu.Leaky):
                stages.append([])
            else:
                stages[-1].append(module)
        return stages[:-1]

    def of_samples(self, samples=EVERY):
        """Return the spikes of every layer and the gradients of the loss of ``samples``, by snnTorch's loop."""
        return self.reference if samples is EVERY else self.by_loop(samples=samples)


# A single entry: the next point of a sweep replaces the last one.
problem_of = functools.lru_cache(maxsize=1)(Problem)


def compared(run, reference, against):
    """Compare the spikes of the last layers, and the gradients of the samples whose spikes are all equal.

    A differing spike changes later spikes, and with them gradients.
    """
    (spikes, gradients), (expected, expected_gradients) = run(EVERY), reference(EVERY)
    expected = expected[-len(spikes) :]
    flipped = [s.flatten(2) != r.flatten(2) for s, r in zip(spikes, expected)]
    differing = sum(int(layer.sum()) for layer in flipped)
    total = sum(spike.numel() for spike in expected)
    unchanged = ~torch.stack([layer.any(2).any(0) for layer in flipped]).any(0)
    is_enough = 2 * int(unchanged.sum()) >= len(unchanged)
    if differing and is_enough:
        gradients, expected_gradients = run(unchanged)[1], reference(unchanged)[1]
    error = max(map(relative_error, gradients, expected_gradients))
    return Check(
        is_enough and differing <= FLIPS * total and error <= GRADIENT_TOLERANCE,
        against,
        f"{differing:,} of {total:,} spikes differ (allowed: {FLIPS:.0e} of them), none in {int(unchanged.sum())} of "
        f"{len(unchanged)} samples (asked: half of them), whose gradient error is {error:.1e} (allowed: "
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
        full = compared(functools.partial(run, everyone), problem.of_samples, "snnTorch")
        selected = compared(functools.partial(run, net), functools.partial(run, dense), "dense convolutions")
        return both(full, selected, "with a second threshold, of dense convolutions")

    return Workload(step, check)


def _dense(settings, by_snntorch):
    problem = problem_of(settings)
    if by_snntorch:
        forward = problem.by_snntorch()
        weights = forward.weights()
    else:
        net = problem.network().to_dense()
        weights = [parameter for parameter in net.parameters() if parameter.dim() > 1]

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

    return Workload(step, lambda: compared(run, problem.of_samples, "snnTorch"))


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
            note="in dense_only(): a convolution over all steps and samples, then Leaky; every neuron has a gradient",
        ),
        Contender(
            "snntorch",
            "snnTorch loop",
            functools.partial(_dense, settings, by_snntorch=True),
            "snntorch",
            "nn.Conv2d and Leaky at every step; every neuron has a gradient",
        ),
    ]


def title(settings):
    shape, layers = NETWORKS[settings.input]
    return (
        f"Network {'x'.join(map(str, shape))}-{layers}, {100 * settings.activity:.3g} % active, forward + backward: "
        f"T={settings.steps} × B={settings.batch_size}"
    )


CASE = Case(
    summary="convolutional networks of spike ids beside dense ones, against activity",
    work=(
        "From random input spikes, the spikes of all steps, the cross-entropy of the summed output spikes, and the "
        "gradient of every weight, of a layer also of the input's values. Every layer has the activity, by the scale "
        f"of its weights; threshold 1, second threshold {SECOND_THRESHOLD:g}, reset to zero."
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
    axes=("activity",),
    choices={"input": list(NETWORKS)},
    reference="dense",
    slow_seconds=0.1,
    measured=lambda settings: problem_of(settings).measured(),
    check=(
        f"The spikes equal but for {FLIPS:.0e} of them, with membranes within rounding of the threshold, and for "
        f"samples without such a spike the weight gradients within {GRADIENT_TOLERANCE:.0e} of those of snnTorch's "
        "loop; with the second threshold, of the same network by dense convolutions."
    ),
)
