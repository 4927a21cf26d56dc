"""The networks of the published benchmark of sparse training at a given activity: a forward and backward pass.

The second threshold, the decay, the surrogate and the layers are those of Gruen et al., "Sparse spiking neural networks
on the IPU", arXiv 2311.04386, 2023. The spikes are random, and the weights are scaled so that every layer has the
activity.
"""

import functools

import torch

from benchmarks.case import Case, Contender, Workload, cross
from benchmarks.checks import both
from benchmarks.sparse_problem import SECOND_THRESHOLD, THRESHOLD, LayeredProblem, linears
from snnipu.training import METHODS, benchmark_network

# Neurons of the input, of the hidden layers by their number, and of the output.
NETWORKS = {
    "nmnist": (
        34 * 34 * 2,
        {2: [1466] * 2, 3: [978, 978, 976], 4: [734, 734, 732, 732], 5: [588, *[586] * 4]},
        10,
    ),
    "shd": (700, {2: [1462, 1460], 3: [974] * 3, 4: [732, *[730] * 3], 5: [586, *[584] * 4]}, 20),
}
# Tolerance of a gradient through up to five products of two factors, each rounded to TF32's 11 bits.
TF32_TOLERANCE = 5e-3
# Weights of mean zero do not reach higher activities, since half of their sums are negative.
HIGH_ACTIVITY = 0.2
# Shift of the weights at high activities, as a fraction of the largest weight.
MEAN_SHIFT = 0.05


def network_sizes(settings):
    """Return the neurons of the input and of every layer."""
    inputs, published, outputs = NETWORKS[settings.input]
    hidden = [settings.hidden_neurons] * settings.hidden_layers
    return [inputs, *(hidden if settings.hidden_neurons else published[settings.hidden_layers]), outputs]


class Problem(LayeredProblem):
    """Fully connected layers, with a step from layer to layer."""

    delay = True

    def __init__(self, settings):
        super().__init__(settings)
        self.sizes = network_sizes(settings)
        self.tf32 = self.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
        if self.tf32:
            self.tolerance = TF32_TOLERANCE
        self.draw_input(self.sizes[0])
        self.draw_targets(self.sizes[-1])
        net = self._network(self.generator)
        with torch.no_grad():
            for layer in net.layers if settings.activity > HIGH_ACTIVITY else []:
                layer.weight.add_(MEAN_SHIFT * layer.weight.abs().max())
        self.scale(net, tolerance=0.01, tf32=self.tf32)
        self.input_scale = net.layers[0].input_scale

    def _network(self, generator=None, grad_threshold=SECOND_THRESHOLD):
        net = benchmark_network(
            self.sizes,
            decay=self.settings.beta,
            threshold=THRESHOLD,
            grad_threshold=grad_threshold,
            generator=generator or torch.Generator(),
        )
        return _with_path(net, "sparse").to(self.device)

    def network(self, grad_threshold=SECOND_THRESHOLD, path="sparse"):
        """Return the network with these weights; nothing is dropped."""
        return _with_path(self.filled(self._network(grad_threshold=grad_threshold)), path)

    def stages(self):
        """Return ``nn.Linear`` layers with these weights times the input scale, which dense networks do not have."""
        return [[layer] for layer in linears(self.weights, self.input_scale)]


def _with_path(net, path):
    """Return ``net`` with this path: "auto" would select the matrix product at high activity."""
    for part in (net, *net.layers):
        part.path = path
    return net


# A single entry: the next point of a sweep replaces the last one.
problem_of = functools.lru_cache(maxsize=1)(Problem)


def _sparse(settings, method, path="sparse"):
    problem = problem_of(settings)
    net = problem.network(path=path)

    def gradients(net, layers):
        return problem.gradients(layers[-1].spike_count(), [layer.weight for layer in net.layers])

    def compare(net, expected):
        layers = METHODS[method](net, problem.x)
        # The weights of the dense networks include the input scale.
        scaled = [gradient / problem.input_scale for gradient in gradients(net, layers)]
        return problem.compare([layer.to_dense() for layer in layers], scaled, expected)

    def check():
        full = compare(problem.network(grad_threshold=None, path=path), problem.reference)
        return both(compare(net, problem.selected_reference), full, "without a second threshold")

    return Workload(lambda: gradients(net, METHODS[method](net, problem.x)), check)


def _dense(settings):
    problem = problem_of(settings)
    linears, leakies = zip(*(layer.to_dense() for layer in problem.network().layers))
    neurons = [lambda currents, leaky=leaky: leaky.sequence(currents)[0] for leaky in leakies]
    stages = [[linear] for linear in linears]
    return problem.workload(lambda: problem.in_layers(stages, neurons), [linear.weight for linear in linears])


def contenders(settings):
    on_gpu = settings.device.type == "cuda"
    auto = Contender(
        "sparse-network-auto",
        "snnipu SparseNetwork, path='auto'",
        functools.partial(_sparse, settings, "sparse_network", "auto"),
        note="gather or matrix product for each layer, by the activity of some calls before",
    )
    return [
        Contender(
            "sparse-network",
            "snnipu SparseNetwork",
            functools.partial(_sparse, settings, "sparse_network"),
            note="path='sparse' and max_spikes "
            + ("what the busiest row needs" if on_gpu else "None")
            + ": the sparse kernels at every activity, and nothing is dropped",
        ),
        *([auto] if on_gpu else []),
        Contender(
            "sparse-ops",
            "snnipu sparse operators",
            functools.partial(_sparse, settings, "sparse_ops"),
            note="sparse_linear, lif_sequence and select_spikes one by one, with a dense membrane between them",
        ),
        Contender(
            "dense",
            "snnipu dense, batched",
            functools.partial(_dense, settings),
            note="a layer is one matrix product over all steps and samples, then Leaky.sequence; every neuron has a "
            "gradient",
        ),
        Contender(
            "snntorch",
            "snnTorch loop",
            lambda: problem_of(settings).snntorch_workload(),
            "snntorch",
            "nn.Linear and Leaky at every step; every neuron has a gradient",
        ),
        Contender(
            "spikingjelly",
            "SpikingJelly multi-step",
            lambda: problem_of(settings).spikingjelly_workload(),
            "spikingjelly",
            "a matrix product a layer, then LIFNode with hard reset, which rounds its membrane in another order. "
            "SoftSign(10) is 5 times the others' surrogate; every neuron has a gradient",
        ),
    ]


CASE = Case(
    summary="networks of spike ids beside dense ones, against activity and depth",
    work=(
        "From random input spikes, the spikes of all steps, the cross-entropy of the summed output spikes, and the "
        "gradient of every weight. Every layer has the activity, by the scale of its weights; threshold 1, second "
        f"threshold {SECOND_THRESHOLD:g}, reset to zero, one step from layer to layer."
    ),
    title=lambda settings: (
        f"Sparse network {'-'.join(map(str, network_sizes(settings)))}, {100 * settings.activity:.3g} % active, "
        f"forward + backward: T={settings.steps} × B={settings.batch_size}"
    ),
    contenders=contenders,
    sizes={
        "steps": 100,
        "batch_size": 48,
        "beta": 0.95,
        "activity": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5),
        "hidden_layers": (2, 3, 4, 5),
        "hidden_neurons": 0,
        "input": "nmnist",
    },
    quick={"steps": 10, "batch_size": 4, "hidden_neurons": 32, "hidden_layers": (2, 3)},
    points=cross,
    axes=("activity", "hidden_layers"),
    choices={"input": list(NETWORKS), "hidden_layers": [2, 3, 4, 5]},
    reference="dense",
    repeats=15,
    slow_seconds=0.1,
    measured=lambda settings: problem_of(settings).measured(),
    check=(
        "The spikes of every layer equal and the weight gradients within 1e-4 (TF32: 5e-3) of those of snnTorch's "
        "loop, for the sparse rows without a second threshold and with it (there snnTorch's surrogate is cut off below "
        "it), or, for a library that rounds otherwise, of its own update rule in plain PyTorch."
    ),
)
