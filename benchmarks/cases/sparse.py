"""The networks of the published benchmark of sparse training, at a given activity: one whole forward and backward pass.

The second threshold, the decay, the surrogate and the layers are those of Gruen et al., "Sparse spiking neural networks
on the IPU", arXiv 2311.04386, 2023; the spikes are random and the weights scaled, so that every layer has the activity.
"""

import contextlib
import functools
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from snntorch import surrogate as snntorch_surrogate
from torch import nn
from torch.nn import functional

from snnipu import Leaky, SparseNetwork, SparseSpikes
from benchmarks import peers
from benchmarks.case import Axis, Case, Contender, Settings, Sweep, Workload
from benchmarks.checks import Check, check_network
from benchmarks.options import Option, comma_separated
from benchmarks.sparse_problem import (
    THRESHOLD,
    Layers,
    SnnTorchNet,
    SparseProblem,
    check_activity,
    parse_activities,
    parse_activity,
)
from snnipu.neurons.sparse_benchmark import SECOND_THRESHOLD, SURROGATE_SLOPE
from snnipu.ops._break_even import tf32_allowed
from snnipu.training import benchmark_network
from snnipu.training.methods import sparse_network, sparse_ops

SUMMARY = "networks of spike ids beside dense ones, against activity and depth"
# snnTorch's spikes are float32 whatever its input is, and a Linear layer of another type refuses them.
DTYPES = (torch.float32,)
DEVICES = ("cpu", "cuda")
FULL = {"steps": 100, "batch_size": 48, "beta": 0.95, "repeats": 15, "min_seconds": 0.0}
QUICK = {"steps": 10, "batch_size": 4, "beta": 0.95, "repeats": 2, "min_seconds": 0.0, "hidden_neurons": 32}
ACTIVITIES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
QUICK_ACTIVITIES = (0.02, 0.1, 0.3)
DEPTHS = (2, 3, 4, 5)
QUICK_DEPTHS = (2, 3)

# Neurons of the input, of the hidden layers by their number, and of the output.
NETWORKS: Dict[str, Tuple[int, Dict[int, List[int]], int]] = {
    "nmnist": (
        34 * 34 * 2,
        {2: [1466] * 2, 3: [978, 978, 976], 4: [734, 734, 732, 732], 5: [588, *[586] * 4]},
        10,
    ),
    "shd": (700, {2: [1462, 1460], 3: [974] * 3, 4: [732, *[730] * 3], 5: [586, *[584] * 4]}, 20),
}
INPUT_NAMES = {"nmnist": "N-MNIST", "shd": "SHD"}

GRADIENT_TOLERANCE = 1e-4
# Of a gradient that goes through up to five products of two factors, each rounded to TF32's 11 bits.
TF32_GRADIENT_TOLERANCE = 5e-3
SLOW_SECONDS = 0.1
# Activities from here on are out of reach of weights of mean zero, half of whose sums are negative.
HIGH_ACTIVITY = 0.2
# What the weights are shifted by there, as a share of the largest.
MEAN_SHIFT = 0.05


def _depths(text: str) -> List[int]:
    values = comma_separated(text, int, "whole numbers")
    unknown = [value for value in values if value not in DEPTHS]
    if unknown:
        raise ValueError(f"published are 2, 3, 4 and 5 hidden layers, not {unknown[0]}")
    return values


# --neurons sets this; without it the numbers are those that were published.
NEURONS = "hidden_neurons"
OPTIONS = (
    Option("input", "whose published sizes to take (default: nmnist)", setting="input", choices=list(NETWORKS)),
    Option(
        "activities",
        f"default: {','.join(map(str, ACTIVITIES))}",
        parse_activities,
        ACTIVITIES,
        QUICK_ACTIVITIES,
        metavar="LIST",
    ),
    Option(
        "depths",
        f"hidden layers; default: {','.join(map(str, DEPTHS))}",
        _depths,
        DEPTHS,
        QUICK_DEPTHS,
        metavar="LIST",
    ),
    Option(
        "depth_activity",
        "activity of the sweep over the depths (default: 0.02)",
        parse_activity,
        setting="activity",
        metavar="A",
    ),
)

Gradients = List[torch.Tensor]
Forward = Callable[[], Layers]


def network_sizes(settings: Settings) -> List[int]:
    """Neurons of the input and of every layer."""
    inputs, published, outputs = NETWORKS[settings.input]
    if settings.hidden_neurons is not None:
        return [inputs, *[settings.hidden_neurons] * settings.hidden_layers, outputs]
    return [inputs, *published[settings.hidden_layers], outputs]


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Matrix products on CUDA without TF32, for references."""
    if not tf32_allowed():
        yield
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = True


class Problem(SparseProblem):
    """Fully connected layers, a step apart."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.sizes = network_sizes(settings)
        self.tf32 = self.device.type == "cuda" and tf32_allowed()
        self.gradient_tolerance = TF32_GRADIENT_TOLERANCE if self.tf32 else GRADIENT_TOLERANCE
        self.draw_input(self.sizes[0])
        self.draw_targets(self.sizes[-1])
        net = self._network(self.generator)
        with torch.no_grad():
            for layer in net.layers if settings.activity > HIGH_ACTIVITY else []:
                layer.weight.add_(MEAN_SHIFT * layer.weight.abs().max())
        self.scale(net, tolerance=0.01, tf32=self.tf32)
        self.input_scale = net.layers[0].input_scale

    def _network(
        self, generator: Optional[torch.Generator] = None, grad_threshold: Optional[float] = SECOND_THRESHOLD
    ) -> SparseNetwork:
        net = benchmark_network(
            self.sizes,
            decay=self.settings.beta,
            threshold=THRESHOLD,
            grad_threshold=grad_threshold,
            generator=generator or torch.Generator(),
        )
        # "auto" would take the matrix product at high activity: here the two are compared.
        net.path = "sparse"
        for layer in net.layers:
            layer.path = "sparse"
        return net.to(self.device)

    def network(self, grad_threshold: Optional[float] = SECOND_THRESHOLD, path: str = "sparse") -> SparseNetwork:
        """The network with these weights; nothing is dropped."""
        net = self.filled(self._network(grad_threshold=grad_threshold))
        net.path = path
        for layer in net.layers:
            layer.path = path
        return net

    def linears(self) -> List[nn.Linear]:
        """``nn.Linear`` layers with these weights times the input scale, which no dense network has."""
        layers = [nn.Linear(w.shape[1], w.shape[0], bias=False) for w in self.weights]
        with torch.no_grad():
            for layer, weight in zip(layers, self.weights):
                layer.weight.copy_(weight * self.input_scale)
        return [layer.to(self.device) for layer in layers]

    def by_snntorch(self, spike_grad: Callable[[torch.Tensor], torch.Tensor]) -> SnnTorchNet:
        return SnnTorchNet([[linear] for linear in self.linears()], self.settings.beta, spike_grad, delay=True)

    def _reference(self, spike_grad: Callable[[torch.Tensor], torch.Tensor]) -> Tuple[Layers, Gradients]:
        net = self.by_snntorch(spike_grad)
        with full_precision():
            layers = net.all_layers(self.dense_x)
            gradients = self.gradients(layers[-1].sum(0), net.weights())
        return [layer.detach().bool() for layer in layers], gradients

    @functools.cached_property
    def reference(self) -> Tuple[Layers, Gradients]:
        """Spikes of every layer and weight gradients by snnTorch's loop."""
        return self._reference(snntorch_surrogate.fast_sigmoid(slope=SURROGATE_SLOPE))

    @functools.cached_property
    def selected_reference(self) -> Tuple[Layers, Gradients]:
        """The same with the gradient only of neurons above the second threshold: a surrogate that is cut off there."""
        cut_off = SECOND_THRESHOLD - THRESHOLD
        return self._reference(snntorch_surrogate.SFS(slope=SURROGATE_SLOPE, B=cut_off))

    @functools.cached_property
    def spikingjelly_reference(self) -> Tuple[Layers, Gradients]:
        """The same by SpikingJelly's update rule in plain PyTorch, with its soft-sign surrogate."""
        rule = peers.spikingjelly_hard_reset_rule(self.settings.beta, SURROGATE_SLOPE)
        linears = self.linears()
        out = self.dense_x
        layers: Layers = []
        with full_precision():
            for index, linear in enumerate(linears):
                v = out.new_zeros(self.settings.batch_size, linear.out_features)
                spk_rec = []
                for cur in linear(before(out, index)).unbind():
                    spk, v = rule(cur, v)
                    spk_rec.append(spk)
                out = torch.stack(spk_rec)
                layers.append(out)
            gradients = self.gradients(out.sum(0), [linear.weight for linear in linears])
        return [layer.detach().bool() for layer in layers], gradients


# One at a time: the next point of a sweep takes the place of the last.
_problem = functools.lru_cache(maxsize=1)(Problem)


def before(spikes: torch.Tensor, layer: int) -> torch.Tensor:
    """What reaches ``layer``: all of the input, and of another layer what arrives by the last step.

    Spikes take a step from layer to layer. A dense layer need not be shifted for it: it begins a step later.
    """
    return spikes if layer == 0 else spikes[:-1]


def aligned(layers: Sequence[torch.Tensor], steps: int) -> Layers:
    """Layers that began late, with the silent steps before; the last ``steps`` in all."""
    return [functional.pad(layer, (0, 0, 0, 0, steps - layer.shape[0], 0)) for layer in layers]


def _dense_layers(spikes: Sequence[Any]) -> Layers:
    """Spikes ``[T, B, N]``, bool, of SparseSpikes."""
    return [layer.to_dense().detach().bool() for layer in spikes]


def _sparse(
    settings: Settings, run: Callable[[SparseNetwork, SparseSpikes], Sequence[Any]], path: str = "sparse"
) -> Workload:
    problem = _problem(settings)
    net = problem.network(path=path)

    def gradients(net: SparseNetwork, layers: Sequence[Any]) -> Gradients:
        return problem.gradients(layers[-1].spike_count(), [layer.weight for layer in net.layers])

    def step() -> Gradients:
        return gradients(net, run(net, problem.x))

    def check() -> Check:
        # The dense networks have their weights times the input scale.
        def compare(net: SparseNetwork, expected: Tuple[Layers, Gradients]) -> Check:
            layers = run(net, problem.x)
            scaled = [gradient / problem.input_scale for gradient in gradients(net, layers)]
            return check_network(_dense_layers(layers), scaled, *expected, problem.gradient_tolerance, "snnTorch")

        every = compare(problem.network(grad_threshold=None, path=path), problem.reference)
        selected = compare(net, problem.selected_reference)
        return Check(
            every.passed and selected.passed,
            selected.against,
            f"second threshold {SECOND_THRESHOLD:g}: {selected.detail}; none: {every.detail}",
            {**selected.errors, **{f"{name}_without_second_threshold": e for name, e in every.errors.items()}},
        )

    return Workload(step, check)


def _dense_workload(
    problem: Problem,
    weights: List[torch.Tensor],
    forward: Forward,
    expected: Callable[[], Tuple[Layers, Gradients]],
    against: str,
    all_layers: Optional[Forward] = None,
) -> Workload:
    """``forward`` tells the spikes ``[T', B, N]`` of one or more layers, the last of them the output."""

    def step() -> Gradients:
        return problem.gradients(forward()[-1].sum(0), weights)

    def check() -> Check:
        layers = (all_layers or forward)()
        gradients = problem.gradients(layers[-1].sum(0), weights)
        spikes = aligned([layer.detach() for layer in layers], problem.settings.steps)
        wanted = aligned(expected()[0], problem.settings.steps)
        return check_network(spikes, gradients, wanted, expected()[1], problem.gradient_tolerance, against)

    return Workload(step, check)


def _snntorch(settings: Settings) -> Workload:
    problem = _problem(settings)
    net = problem.by_snntorch(snntorch_surrogate.fast_sigmoid(slope=SURROGATE_SLOPE))
    return _dense_workload(
        problem,
        net.weights(),
        lambda: [net(problem.dense_x)],
        lambda: problem.reference,
        "snnTorch",
        lambda: net.all_layers(problem.dense_x),
    )


def _dense(settings: Settings) -> Workload:
    problem = _problem(settings)
    twins = [layer.to_dense() for layer in problem.network().layers]
    layers: List[Tuple[nn.Linear, Leaky]] = [(twin[0], twin[1]) for twin in twins]  # type: ignore[misc]

    def forward() -> Layers:
        out = problem.dense_x
        every = []
        for index, (linear, leaky) in enumerate(layers):
            out, _ = leaky.sequence(linear(before(out, index)))
            every.append(out)
        return every

    weights: List[torch.Tensor] = [linear.weight for linear, _ in layers]
    return _dense_workload(problem, weights, forward, lambda: problem.reference, "snnTorch")


def _spikingjelly(settings: Settings) -> Workload:
    problem = _problem(settings)
    linears = problem.linears()
    lifs = [peers.spikingjelly_hard_reset_lif(settings.beta, SURROGATE_SLOPE).to(settings.device) for _ in linears]

    def forward() -> Layers:
        out = problem.dense_x
        every = []
        for index, (linear, lif) in enumerate(zip(linears, lifs)):
            lif.reset()
            out = lif(linear(before(out, index)))
            every.append(out)
        return every

    weights: List[torch.Tensor] = [linear.weight for linear in linears]
    return _dense_workload(problem, weights, forward, lambda: problem.spikingjelly_reference, "its own rule")


def build(settings: Settings) -> Case:
    """One point: the network of ``settings.input`` with ``settings.hidden_layers`` at ``settings.activity``.

    Input, weights and references are made when the first contender is built.

    Raises:
        ValueError: there is no published network with so many hidden layers, or the activity is out of range.
    """
    if settings.hidden_neurons is None and settings.hidden_layers not in DEPTHS:
        raise ValueError(
            f"hidden_layers: the published networks have 2 to 5 hidden layers, got {settings.hidden_layers}"
        )
    check_activity(settings)
    sizes = network_sizes(settings)
    on_gpu = settings.device.type == "cuda"
    tolerance = "5e-3 (TF32)" if on_gpu and tf32_allowed() else "1e-4"
    contenders = [
        Contender(
            "sparse-network",
            "snnipu SparseNetwork",
            functools.partial(_sparse, settings, sparse_network),
            ratio_label="SparseNetwork",
            note="path='sparse' and max_spikes "
            + ("what the busiest row needs" if on_gpu else "None")
            + ": the sparse kernels at every activity, and nothing is dropped",
        ),
        Contender(
            "sparse-ops",
            "snnipu sparse operators",
            functools.partial(_sparse, settings, sparse_ops),
            note="sparse_linear, lif_sequence and select_spikes one by one, with a dense membrane between them",
        ),
        Contender(
            "dense",
            "snnipu dense, batched",
            functools.partial(_dense, settings),
            ratio_label="dense",
            note="a layer is one matrix product over all steps and samples, then Leaky.sequence; every neuron carries "
            "gradient",
        ),
        Contender(
            "snntorch",
            "snnTorch loop",
            functools.partial(_snntorch, settings),
            peer="snntorch",
            note="nn.Linear and Leaky at every step; every neuron carries gradient",
        ),
        Contender(
            "spikingjelly",
            "SpikingJelly multi-step",
            functools.partial(_spikingjelly, settings),
            peer="spikingjelly",
            note="a matrix product a layer, then LIFNode with hard reset, which rounds its membrane in another order. "
            "SoftSign(10) is 5 times the others' surrogate; every neuron carries gradient",
        ),
    ]
    if on_gpu:
        contenders.insert(
            1,
            Contender(
                "sparse-network-auto",
                "snnipu SparseNetwork, path='auto'",
                functools.partial(_sparse, settings, sparse_network, "auto"),
                ratio_label="auto",
                note="gather or matrix product for each layer, by the activity of some calls before",
            ),
        )
    return Case(
        name="sparse",
        title=(
            f"Sparse network {'-'.join(map(str, sizes))}, {100 * settings.activity:.3g} % active, forward + backward: "
            f"T={settings.steps} × B={settings.batch_size}"
        ),
        caption=_caption(settings),
        contenders=contenders,
        memory_reference="dense",
        memory_label="dense",
        parameters={
            "input": settings.input,
            "sizes": sizes,
            "steps": settings.steps,
            "batch_size": settings.batch_size,
            "activity": settings.activity,
            "hidden_layers": settings.hidden_layers,
            "beta": settings.beta,
            "threshold": THRESHOLD,
            "grad_threshold": SECOND_THRESHOLD,
        },
        measured=lambda: _problem(settings).measured(),
        slow_seconds=SLOW_SECONDS,
        check_meaning=(
            f"check: the spikes of every layer equal and the weight gradients within {tolerance} of those of "
            "snnTorch's loop, for the sparse rows without a second threshold and with it (there snnTorch's surrogate "
            "is cut off below it), or, for a library that rounds otherwise, of its own update rule in plain PyTorch."
        ),
    )


def _caption(settings: Settings) -> str:
    return (
        f"The work: from random input spikes, the spikes of {settings.steps} steps, the cross-entropy of the summed "
        "output spikes, and the gradient of every weight. Every layer has the activity, by the scale of its weights; "
        f"decay {settings.beta:g}, threshold 1, second threshold {SECOND_THRESHOLD:g}, reset to zero, one step from "
        "layer to layer."
    )


def sweep(settings: Settings, activities: Sequence[float], depths: Sequence[int]) -> Sweep:
    """The points against activity, with ``settings.hidden_layers``, and against depth, at ``settings.activity``.

    A point that lies on both lines is run once.

    Raises:
        ValueError: as for :func:`build`.
    """
    activities, depths = sorted(set(activities)), sorted(set(depths))
    across = [replace(settings, activity=activity) for activity in activities]
    down = [replace(settings, hidden_layers=depth) for depth in depths]
    points = list(dict.fromkeys([*across, *down]))
    headline = settings if settings in points else points[0]
    return Sweep(
        name="sparse",
        title=(
            f"Sparse networks of {INPUT_NAMES[settings.input]}'s size, forward + backward: "
            f"T={settings.steps} × B={settings.batch_size}"
        ),
        caption=_caption(settings),
        points=points,
        axes=[
            Axis(
                "activity",
                "activity of every layer",
                activities,
                {"hidden_layers": settings.hidden_layers},
                percent=True,
            ),
            Axis("hidden_layers", "hidden layers", depths, {"activity": settings.activity}),
        ],
        reference="dense",
        headline={"activity": headline.activity, "hidden_layers": headline.hidden_layers},
    )
