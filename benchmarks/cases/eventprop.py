"""EventProp beside surrogates: forward pass, backward pass and memory of a network of neurons with a synaptic current.

The loss reads the membranes of an output layer that does not spike, which every contender can do.
"""

import functools
from unittest import mock

import snntorch
import torch

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Contender, Workload
from benchmarks.sparse_problem import SECOND_THRESHOLD, SLOPE, THRESHOLD, LayeredProblem, linears
from snnipu.ops import eventprop

INPUTS, CLASSES, ALPHA = 700, 20, 0.9
# Threshold of the output, which no membrane reaches.
SILENT = 1e9
SURROGATE = snntorch.surrogate.fast_sigmoid(slope=SLOPE)


class Problem(LayeredProblem):
    """Fully connected layers; the results of the last one are membranes."""

    def __init__(self, settings):
        super().__init__(settings)
        self.draw_input(INPUTS)
        self.draw_targets(CLASSES)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            net = self._network()
        with torch.no_grad():
            net.layers[-1].weight.div_(settings.steps)  # the loss reads a sum over steps
        self.scale(net, 0.01, target=[settings.activity, settings.activity, None])

    def _network(self, **options):
        return snnipu.SparseNetwork(
            [INPUTS, self.settings.neurons, self.settings.neurons, CLASSES],
            neuron="synaptic",
            alpha=ALPHA,
            beta=self.settings.beta,
            threshold=[THRESHOLD, THRESHOLD, SILENT],
            delay=0,
            reset_mechanism="subtract",
            path="sparse",
            **options,
        )

    def network(self, **options):
        return self.filled(self._network(**options))

    def stages(self):
        return [[layer] for layer in linears(self.weights)]

    def by_loop(self, spike_grad=SURROGATE):
        """Return the results of loops over snnTorch's neurons, a layer after another."""
        options = {"alpha": ALPHA, "beta": self.settings.beta, "spike_grad": spike_grad}
        neuron = functools.partial(snntorch.Synaptic, **options, reset_mechanism="subtract")
        output = neuron(threshold=SILENT)

        def membranes(current, syn, mem):
            _, syn, mem = output(current, syn, mem)
            return mem, syn, mem

        rules = [neuron(), neuron(), membranes]
        stages, neurons = self.stages(), [functools.partial(peers.over_time, rule, states=2) for rule in rules]
        return self.expected(lambda: self.in_layers(stages, neurons), [stage[0].weight for stage in stages])

    @functools.cached_property
    def exact_reference(self):
        """The spikes of snnTorch, and the gradients of EventProp's reference in plain PyTorch."""
        net = self.network(gradient="eventprop")
        with mock.patch.object(eventprop, "OPERATOR", lambda record, *_: eventprop.backward_reference(record)):
            return self.reference[0], self.gradients(run(net, self.x)[-1].sum(0), [*net.parameters()])

    def workload(self, forward, weights, reference, against):
        """Return the workload of ``forward``, which returns the spikes and the membranes."""

        def train():
            return self.gradients(forward()[-1].sum(0), weights)

        def check():
            *layers, mem = forward()
            layers = [*(layer.to_dense() for layer in layers), mem]
            return self.compare(layers, self.gradients(mem.sum(0), weights), getattr(self, reference), against)

        if self.settings.work == "forward":
            return Workload(forward, check, kept=forward)
        sums = forward()[-1].sum(0)
        step = functools.partial(self.gradients, sums, weights, retain_graph=True)
        return Workload(step, check, memory=train, kept=forward)


# A single entry: the next point of a sweep replaces the last one.
problem_of = functools.lru_cache(maxsize=1)(Problem)


def run(net, x):
    """Return the spikes of the hidden layers, and the membranes of the output."""
    layers = []
    for layer in net.layers[:-1]:
        x = layer(x)
        layers.append(x)
    return [*layers, net.layers[-1].membranes(x)]


def contenders(settings):
    def row(name, label, reference, note, against="snnTorch", **options):
        def build():
            problem = problem_of(settings)
            net = problem.network(**options)
            return problem.workload(lambda: run(net, problem.x), [*net.parameters()], reference, against)

        return Contender(name, label, build, note=note)

    every = "every neuron has a gradient"
    selected = {"spike_grad": SURROGATE, "grad_threshold": SECOND_THRESHOLD}
    return [
        row("eventprop", "EventProp", "exact_reference", "gradient='eventprop'", "the reference", gradient="eventprop"),
        row("selected", "surrogate, second threshold", "selected_reference", f"{SECOND_THRESHOLD:g}", **selected),
        row("surrogate", "surrogate", "reference", every, spike_grad=SURROGATE),
    ]


CASE = Case(
    summary="EventProp beside surrogates, against activity and steps: forward pass, backward pass, memory",
    work=(
        "From random input spikes, the spikes and the membranes of an output that does not spike; or, backward, from "
        "the cross-entropy of their sum the gradient of every weight. The peak memory of the backward pass is that of "
        "a whole training step. Every hidden layer has the activity, by the scale of its weights; reset by subtraction."
    ),
    title=lambda settings: (
        f"Synaptic network {INPUTS}-{settings.neurons}-{settings.neurons}-{CLASSES}, {100 * settings.activity:.3g} % "
        f"active, {settings.work}: T={settings.steps} × B={settings.batch_size}"
    ),
    contenders=contenders,
    sizes={
        "steps": (100, 500, 1000),
        "batch_size": 16,
        "neurons": 512,
        "beta": 0.95,
        "activity": (0.01, 0.02, 0.05),
        "work": ("forward", "backward"),
    },
    axes=("activity",),
    tables=("milliseconds", "peak_mebibytes", "kept_mebibytes"),
    charts=("milliseconds", "peak_mebibytes", "kept_mebibytes"),
    choices={"work": ["forward", "backward"]},
    reference="surrogate",
    devices=("cpu",),
    measured=lambda settings: problem_of(settings).measured(),
    check=(
        "The spikes and membranes equal to those of snnTorch's loop, and the weight gradients within 1e-4: of "
        "EventProp's reference in plain PyTorch, or of snnTorch's loop, whose surrogate is cut off below a second "
        "threshold."
    ),
)
