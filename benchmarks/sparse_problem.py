"""The problem of the sparse cases: random spikes, and a network whose layers all have a given activity."""

import contextlib
import functools
import math
import warnings

import snntorch
import torch
from torch import nn
from torch.nn import functional

from benchmarks import peers
from benchmarks.case import Workload
from benchmarks.checks import check_network
from snnipu.datasets import random_spikes
from snnipu.training import scale_to_activity

THRESHOLD = 1.0
SECOND_THRESHOLD = 0.9
# Slope of the surrogate.
SLOPE = 10.0
# Index of all samples.
EVERY = slice(None)
FLOAT32_DIGITS, TF32_DIGITS = 24, 11


def on_grid(weight, tf32=False):
    """Round ``weight`` ``[out, ...]`` to multiples of a power of two, so that float32 sums of a row are exact.

    The sums are then equal in every order, and so are the spikes of a gather and of a matrix product. With ``tf32`` the
    weights are also exact in TF32, to which some products round their factors.
    """
    largest = float(weight.abs().max()) * weight[0].numel()
    if largest == 0:
        return weight.clone()
    # The added bit is for weights that are rounded up.
    step = 2.0 ** (math.ceil(math.log2(largest)) + 1 - FLOAT32_DIGITS)
    if tf32:
        step = max(step, 2.0 ** (math.ceil(math.log2(float(weight.abs().max()))) - TF32_DIGITS))
    return (weight / step).round() * step


def linears(weights, scale=1.0):
    """Return a linear layer for each of the weights times ``scale``."""
    layers = [nn.Linear(weight.shape[1], weight.shape[0], bias=False).to(weight.device) for weight in weights]
    for layer, weight in zip(layers, weights):
        layer.weight.data.copy_(weight * scale)
    return layers


class SparseProblem:
    """A point of a sweep: the same input, weights and targets for every contender.

    A subclass has ``network()``, the network with these weights.

    Attributes:
        generator: generator of all random numbers.
        x: input ``[T, B, S]``, spikes with probability ``settings.activity``.
        dense_x: the same, ``[T, B, N]`` or ``[T, B, C, H, W]``.
        weights: weights of each layer, on a grid, see :func:`on_grid`.
        targets: classes ``[B]``.
    """

    def __init__(self, settings):
        self.settings = settings
        self.device = settings.device
        self.generator = torch.Generator().manual_seed(settings.seed)

    def draw_input(self, *shape):
        """Draw ``x`` and ``dense_x`` of ``shape``: N, or C, H and W."""
        settings = self.settings
        steps, batch, activity = settings.steps, settings.batch_size, settings.activity
        x = random_spikes(steps, batch, math.prod(shape), activity, self.generator, exact=False)
        self.x = (x.with_maps(shape) if len(shape) == 3 else x).to(self.device)
        self.dense_x = self.x.to_dense().reshape(steps, batch, *shape)

    def draw_targets(self, classes):
        self.targets = torch.randint(classes, (self.settings.batch_size,), generator=self.generator).to(self.device)

    def scale(self, net, tolerance, tf32=False, target=None):
        """Set ``weights`` to those of ``net``, scaled until each layer has the activity, or that of ``target``."""
        with warnings.catch_warnings():
            # A layer of few neurons cannot reach every activity; the report has the measured one.
            warnings.simplefilter("ignore", RuntimeWarning)
            scale_to_activity(net, self.x, target or self.settings.activity, tolerance=tolerance)
        self.weights = [on_grid(layer.weight.detach(), tf32) for layer in net.layers]

    def filled(self, net):
        """Return ``net`` with these weights.

        On a GPU the slots of its layers are limited to those of their busiest row, as a user would do, so that the host
        does not wait for the device.
        """
        with torch.no_grad():
            for layer, weight in zip(net.layers, self.weights):
                layer.weight.copy_(weight)
            if self.device.type == "cuda":
                layers = net(self.x, all_layers=True)
                for layer, spikes in zip(net.layers, layers):
                    layer.max_spikes = max(1, int(spikes.counts[..., 1].max()))
        return net

    def gradients(self, spike_count, leaves, samples=EVERY, **options):
        """Return the gradients of the loss for the output's spike counts ``[B, ...]``, over a mask of ``samples``.

        The loss is the cross-entropy.
        """
        loss = functional.cross_entropy(spike_count.flatten(1)[samples], self.targets[samples])
        return list(torch.autograd.grad(loss, leaves, **options))

    def measured(self):
        """Return properties of the input and each layer.

        These are spikes and used slots for each neuron and step, and the slots of the busiest step.
        """
        with torch.no_grad():
            layers = self.network()(self.x, all_layers=True)
        trains = [self.x, *layers]
        rows = self.settings.steps * self.settings.batch_size
        return {
            "activity": [train.activity for train in trains],
            "carried": [int(train.counts[..., 1].sum()) / (rows * train.num_neurons) for train in trains],
            "slots": [int(train.counts[..., 1].max()) for train in trains],
            "dropped": sum(train.overflow for train in trains),
        }


class SnnTorchNet:
    """A network that runs step by step, like a user of snnTorch writes it.

    Args:
        stages: the modules before the neurons of each layer.
        beta, spike_grad, reset_mechanism: arguments of the neurons.
        delay: True if every layer reads its predecessor's spikes of the step before; else those of the same step.
    """

    def __init__(self, stages, beta, spike_grad, delay, reset_mechanism="zero"):
        self.stages, self.delay = stages, delay
        options = {"threshold": THRESHOLD, "spike_grad": spike_grad, "reset_mechanism": reset_mechanism}
        self.lifs = [snntorch.Leaky(beta=beta, **options).to(weight.device) for weight in self.weights()]

    def weights(self):
        kinds = (nn.Conv2d, nn.Linear)
        return [module.weight for modules in self.stages for module in modules if isinstance(module, kinds)]

    def _run(self, x, recorded):
        mems = [lif.reset_mem() for lif in self.lifs]
        spks = [x.new_zeros(x.shape[1], weight.shape[0]) for weight in self.weights()]
        spk_rec = []
        for step in x:
            before = [step, *spks[:-1]]
            for index, (modules, lif) in enumerate(zip(self.stages, self.lifs)):
                cur = before[index] if self.delay or index == 0 else spks[index - 1]
                for module in modules:
                    cur = module(cur)
                spks[index], mems[index] = lif(cur, mems[index])
            spk_rec.append(spks[-recorded:])
        return [torch.stack(record) for record in zip(*spk_rec)]

    def all_layers(self, x):
        """Return the spikes ``[T, B, ...]`` of every layer."""
        return self._run(x, len(self.lifs))

    def __call__(self, x):
        """Return the spikes ``[T, B, ...]`` of the last layer."""
        return self._run(x, 1)[0]


@contextlib.contextmanager
def full_precision():
    """Compute matrix products on CUDA without TF32, for references."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class LayeredProblem(SparseProblem):
    """Layers of modules and neurons, whose spikes do not depend on the order of sums.

    A subclass has ``stages()``, the modules before the neurons of each layer.

    Attributes:
        delay: True if spikes take a step from layer to layer.
        tolerance: relative error of gradients.
    """

    delay = False
    tolerance = 1e-4

    def by_snntorch(self, spike_grad=None):
        spike_grad = spike_grad or snntorch.surrogate.fast_sigmoid(slope=SLOPE)
        return SnnTorchNet(self.stages(), self.settings.beta, spike_grad, self.delay)

    def expected(self, forward, weights, samples=EVERY):
        """Return spikes of every layer and weight gradients, in full precision."""
        with full_precision():
            layers = forward()
            return [layer.detach() for layer in layers], self.gradients(layers[-1].sum(0), weights, samples)

    def by_loop(self, spike_grad=None, samples=EVERY):
        """Return the results of snnTorch's loop."""
        net = self.by_snntorch(spike_grad)
        return self.expected(lambda: net.all_layers(self.dense_x), net.weights(), samples)

    @functools.cached_property
    def reference(self):
        return self.by_loop()

    @functools.cached_property
    def selected_reference(self):
        """The reference with gradients only of neurons above the second threshold, where the surrogate is cut off."""
        return self.by_loop(snntorch.surrogate.SFS(slope=SLOPE, B=SECOND_THRESHOLD - THRESHOLD))

    @functools.cached_property
    def spikingjelly_reference(self):
        """The results of SpikingJelly's update rule in plain PyTorch, with its soft-sign surrogate."""
        rule = functools.partial(peers.over_time, peers.spikingjelly_rule(self.settings.beta, SLOPE))
        stages = self.stages()
        weights = [stage[-1].weight for stage in stages]
        return self.expected(lambda: self.in_layers(stages, [rule] * len(stages)), weights)

    def in_layers(self, stages, neurons, x=None):
        """Return the spikes of every layer: its modules over all steps and samples as one batch, then its neurons.

        With a delay a layer reads its input without the last step, and begins a step later.
        """
        out, layers = self.dense_x if x is None else x, []
        for index, (modules, neuron) in enumerate(zip(stages, neurons)):
            received = out[:-1] if self.delay and index else out
            rows = received.flatten(0, 1)
            for module in modules:
                rows = module(rows)
            out = neuron(rows.unflatten(0, received.shape[:2]))
            layers.append(out)
        return layers

    def compare(self, layers, gradients, expected, against="snnTorch"):
        """Compare the spikes of the last layers, and the weight gradients."""
        steps = self.settings.steps

        def aligned(layer):  # prepend the silent steps before a layer that began late
            return torch.cat([layer.new_zeros(steps - len(layer), *layer.shape[1:]), layer]).detach()

        expected_layers, expected_gradients = expected
        expected_spikes = map(aligned, expected_layers[-len(layers) :])
        expected_gradients = expected_gradients if gradients else []
        return check_network(
            list(map(aligned, layers)), gradients, list(expected_spikes), expected_gradients, self.tolerance, against
        )

    def workload(self, forward, weights, by_rule=False):
        """Return the workload of ``forward``, which returns the spikes of one or more layers, the output last."""

        def train():
            return self.gradients(forward()[-1].sum(0), weights)

        @torch.no_grad()
        def infer():
            return forward()

        def check():
            layers = forward() if trains else infer()
            gradients = self.gradients(layers[-1].sum(0), weights) if trains else []
            if by_rule:
                return self.compare(layers, gradients, self.spikingjelly_reference, "its own rule")
            return self.compare(layers, gradients, self.reference)

        trains = self.settings.work != "inference"
        return Workload(train if trains else infer, check)

    def snntorch_workload(self):
        net = self.by_snntorch()
        return self.workload(lambda: [net(self.dense_x)], net.weights())

    def spikingjelly_workload(self):
        stages = self.stages()
        lifs = [peers.spikingjelly_lif(self.settings.beta, hard_reset_slope=SLOPE).to(self.device) for _ in stages]

        def forward():
            for lif in lifs:
                lif.reset()
            return self.in_layers(stages, lifs)

        return self.workload(forward, [stage[-1].weight for stage in stages], by_rule=True)
