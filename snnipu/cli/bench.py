"""``python -m snnipu bench``: time snnipu and snnTorch on this machine, in less than a minute.

``make bench`` in the repository has more cases, peers and records.
"""

import argparse
import functools
import gc
import json
import math
import random
import statistics
import sys
import textwrap
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import snntorch
import torch
from snntorch import surrogate
from torch import nn
from torch.nn import functional

import snnipu
from snnipu._extras import MissingExtra, require
from snnipu._files import write_atomically, write_text
from snnipu.cli._streams import called, output_path, positive_integer
from snnipu.cli.info import collect
from snnipu.datasets import random_spikes
from snnipu.training import scale_to_activity

# Spikes, which must all be equal, and tensors, whose error is relative to their largest element.
Results = Tuple[torch.Tensor, Sequence[torch.Tensor]]
Step = Callable[[], Results]
# Fraction of spikes that may differ on a GPU, whose fused multiply-adds round differently near the threshold.
FLIPS_ON_CUDA = 1e-4
MIN_ROUNDS = 3
# A call shorter than the first is repeated within a sample; one longer than the second needs no untimed call before.
MIN_SAMPLE_SECONDS, LONG_SAMPLE_SECONDS = 5e-3, 0.1
OWN_COLOUR, PEER_COLOUR = "#d1495b", "#8ea4b8"


@dataclass(frozen=True)
class Contender:
    """A row of a table: ``step`` is timed, and its results must equal those of ``expected``."""

    label: str
    step: Step
    expected: Step


@dataclass(frozen=True)
class Case:
    """A table whose last contender is snnTorch's loop; ``tolerance`` is the relative error of the tensors."""

    name: str
    title: str
    contenders: Sequence[Contender]
    tolerance: float = 1e-5


@dataclass(frozen=True)
class Sizes:
    """The sizes of the problems: T, B and N of the layer and the tutorial network, and those of the sparse network."""

    steps: int = 25
    batch_size: int = 128
    neurons: int = 1000
    sparse_steps: int = 100
    sparse_batch_size: int = 48
    sparse_neurons: int = 1466


QUICK = Sizes(5, 8, 16, 10, 4, 32)


class TutorialNet(nn.Module):
    """The network of snnTorch's tutorial 5; ``snn`` is snntorch or snnipu."""

    def __init__(self, snn: Any, neurons: int, num_steps: int) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.fc1 = nn.Linear(784, neurons)
        self.lif1 = snn.Leaky(beta=0.9)
        self.fc2 = nn.Linear(neurons, 10)
        self.lif2 = snn.Leaky(beta=0.9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        mem2_rec = []
        for _ in range(self.num_steps):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            _, mem2 = self.lif2(self.fc2(spk1), mem2)
            mem2_rec.append(mem2)
        return torch.stack(mem2_rec)

    def over_time(self, x: torch.Tensor) -> torch.Tensor:
        """Run the network as :class:`snnipu.MultiStep`."""
        net = snnipu.MultiStep(self.fc1, self.lif1, self.fc2, self.lif2)
        return net(x, num_steps=self.num_steps)[1]  # type: ignore[no-any-return]


def lif(sizes: Sizes, device: torch.device) -> Case:
    """Neurons alone over a sequence, forward and backward."""
    shape = sizes.steps, sizes.batch_size, sizes.neurons
    generator = torch.Generator().manual_seed(0)
    x, upstream = (torch.randn(shape, generator=generator).to(device) for _ in range(2))
    x.requires_grad_()
    ours, theirs = (library.Leaky(beta=0.9).to(device) for library in (snnipu, snntorch))

    def loop(steps: Sequence[torch.Tensor]) -> torch.Tensor:
        mem = theirs.reset_mem()
        spk_rec = []
        for current in steps:
            spk, mem = theirs(current, mem)
            spk_rec.append(spk)
        return torch.stack(spk_rec)

    def step(forward: Callable[[], torch.Tensor]) -> Step:
        def run() -> Results:
            spk = forward()
            return spk.detach(), torch.autograd.grad(spk, x, upstream)

        return run

    fastest = step(lambda: loop(x.unbind()))
    return Case(
        "lif",
        f"LIF layer, forward + backward: T={shape[0]} × B={shape[1]} × N={shape[2]}",
        [
            Contender("snnipu Leaky.sequence", step(lambda: ours.sequence(x)[0]), fastest),
            Contender("snnTorch loop, x.unbind()", fastest, fastest),
            Contender("snnTorch loop", step(lambda: loop([x[index] for index in range(len(x))])), fastest),
        ],
    )


def network(sizes: Sizes, device: torch.device) -> Case:
    """A training step of snnTorch's tutorial network on a constant input."""
    torch.manual_seed(0)
    steps, batch_size = sizes.steps, sizes.batch_size
    initial = TutorialNet(snntorch, sizes.neurons, steps).state_dict()
    x = (torch.rand(batch_size, 784) * (torch.rand(batch_size, 784) < 0.2)).to(device)
    targets = torch.randint(10, (batch_size,)).to(device)

    def step(library: Any, over_time: bool = False, trains: bool = True) -> Step:
        net = TutorialNet(library, sizes.neurons, steps).to(device)
        net.load_state_dict(initial, strict=False)
        parameters = [*net.fc1.parameters(), *net.fc2.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=5e-4)

        def run() -> Results:
            if over_time:
                loss = steps * functional.cross_entropy(net.over_time(x).flatten(0, 1), targets.repeat(steps))
            else:
                loss = sum((functional.cross_entropy(mem, targets) for mem in net(x)), torch.zeros((), device=device))
            optimizer.zero_grad()
            loss.backward()
            if trains:
                optimizer.step()
            return torch.zeros(0), [loss.detach(), *(parameter.grad for parameter in parameters)]  # type: ignore[list-item]

        return run

    def contender(label: str, *options: Any) -> Contender:
        return Contender(label, step(*options), step(snntorch, False, False))

    return Case(
        "network",
        f"Tutorial network 784-{sizes.neurons}-10, one training step: T={steps} × B={batch_size}",
        [
            contender("snnipu MultiStep", snnipu, True),
            contender("snnipu, the tutorial's loop", snnipu),
            contender("snnTorch, the tutorial's loop", snntorch),
        ],
    )


def on_grid(weight: torch.Tensor) -> torch.Tensor:
    """Round ``weight`` so that float32 sums of a row are exact in any order: then all methods have the same spikes."""
    largest = float(weight.abs().max()) * weight[0].numel()
    step = 2.0 ** (math.ceil(math.log2(largest)) + 1 - 24)
    return (weight / step).round() * step


def sparse(sizes: Sizes, device: torch.device) -> Case:
    """A network of the published sparse benchmark at 2 % activity, forward and backward, and its dense twin."""
    generator = torch.Generator().manual_seed(0)
    steps, batch_size, hidden = sizes.sparse_steps, sizes.sparse_batch_size, sizes.sparse_neurons
    layers = [2312, hidden, hidden, 10]
    slope, threshold, activity = 10.0, 0.9, 0.02

    x = random_spikes(steps, batch_size, layers[0], activity, generator, exact=False)
    net = snnipu.SparseNetwork(
        layers,
        beta=0.95,
        delay=0,
        grad_threshold=threshold,
        spike_grad=snnipu.surrogate.fast_sigmoid(slope),
        path="sparse",
    )
    with torch.no_grad():
        for layer in net.layers:
            layer.weight.uniform_(-1, 1, generator=generator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a network of few neurons cannot reach every activity
            scale_to_activity(net, x, activity, tolerance=0.02)
        for layer in net.layers:
            layer.weight.copy_(on_grid(layer.weight))
    dense = net.to_dense().to(device)
    net, x = net.to(device), x.to(device)
    frames, targets = x.to_dense(), torch.randint(10, (batch_size,), generator=generator).to(device)
    linears = [module for module in dense if isinstance(module, nn.Linear)]

    def results(spikes: torch.Tensor, weights: Sequence[torch.Tensor]) -> Results:
        loss = functional.cross_entropy(spikes if spikes.dim() == 2 else spikes.sum(0), targets)
        return spikes.detach(), torch.autograd.grad(loss, weights)

    def loop(spike_grad: Any) -> Step:
        neurons = [snntorch.Leaky(beta=0.95, spike_grad=spike_grad, reset_mechanism="zero").to(device) for _ in linears]

        def run() -> Results:
            mems, spk_rec = [neuron.reset_mem() for neuron in neurons], []
            for spk in frames:
                for index, (linear, neuron) in enumerate(zip(linears, neurons)):
                    spk, mems[index] = neuron(linear(spk), mems[index])
                spk_rec.append(spk)
            return results(torch.stack(spk_rec), [linear.weight for linear in linears])

        return run

    def by_events() -> Results:
        spikes = net(x)
        _, gradients = results(spikes.spike_count(), [layer.weight for layer in net.layers])
        return spikes.to_dense().detach(), gradients

    def in_one_product() -> Results:
        with snnipu.dense_only():
            return results(dense(frames)[0], [linear.weight for linear in linears])

    full_gradient = loop(surrogate.fast_sigmoid(slope=slope))
    return Case(
        "sparse",
        f"Sparse network {'-'.join(map(str, layers))}, {activity:.0%} active, forward + backward: "
        f"T={steps} × B={batch_size}",
        [
            # Only neurons above the second threshold have gradients: the reference's surrogate is cut off there.
            Contender("snnipu SparseNetwork", by_events, loop(surrogate.SFS(slope=slope, B=threshold - 1))),
            Contender("snnipu MultiStep, dense", in_one_product, full_gradient),
            Contender("snnTorch loop", full_gradient, full_gradient),
        ],
        tolerance=1e-4,
    )


CASES = {"lif": lif, "network": network, "sparse": sparse}


def why_red(contender: Contender, tolerance: float) -> str:
    """Return the reason why the results of a contender are wrong, or an empty string."""
    if contender.step is contender.expected:
        return ""
    (spikes, numbers), (expected_spikes, expected) = contender.step(), contender.expected()
    differs = spikes != expected_spikes
    if differs.sum() > (FLIPS_ON_CUDA if spikes.is_cuda else 0) * differs.numel():
        return f"{int(differs.sum()):,} of {differs.numel():,} spikes differ"
    if differs.any():  # a differing spike changes the gradients of its neuron: compare those of the other neurons
        same = ~differs.any(0)
        per_neuron = [number.shape[1:] == same.shape for number in numbers]
        numbers = [number[:, same] if is_per_neuron else number for number, is_per_neuron in zip(numbers, per_neuron)]
        expected = [number[:, same] if is_per_neuron else number for number, is_per_neuron in zip(expected, per_neuron)]
    errors = [
        float((n - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30)) for n, wanted in zip(numbers, expected)
    ]
    wrong = [error for error in errors if not error <= tolerance]
    return f"error {wrong[0]:.1e} of a gradient or the loss (allowed: {tolerance:.0e})" if wrong else ""


def seconds_of_rounds(steps: Sequence[Step], device: torch.device, least_seconds: float) -> List[List[float]]:
    """Return the seconds of a call of each step in each round; a round calls the steps in a random order."""

    def timed(step: Step, calls: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / calls

    first = [timed(step, 1) for step in steps]
    calls = [max(1, math.ceil(MIN_SAMPLE_SECONDS / seconds)) for seconds in first]
    samples: List[List[float]] = [[] for _ in steps]
    order, shuffle, start = list(range(len(steps))), random.Random(0).shuffle, time.perf_counter()
    while steps and (len(samples[0]) < MIN_ROUNDS or time.perf_counter() - start < least_seconds):
        gc.collect()
        shuffle(order)
        for index in order:
            if first[index] < LONG_SAMPLE_SECONDS:
                steps[index]()
            samples[index].append(timed(steps[index], calls[index]))
    return samples


def run(case: Case, device: torch.device, least_seconds: float) -> List[Dict[str, Any]]:
    """Return a record for each contender; a red one has a reason and no times."""
    records: List[Dict[str, Any]] = []
    for contender in case.contenders:
        reason = why_red(contender, case.tolerance)
        records.append({"case": case.name, "title": case.title, "contender": contender.label, "red": reason})
    green = [index for index, record in enumerate(records) if not record["red"]]
    samples = seconds_of_rounds([case.contenders[index].step for index in green], device, least_seconds)
    for index, seconds in zip(green, samples):
        records[index].update(median=statistics.median(seconds), seconds=seconds)
    return records


def _row_text(record: Dict[str, Any], reference: Dict[str, Any]) -> str:
    """Return the median of a row, and the speed relative to the reference."""
    if record["red"]:
        return f"RED, not timed: {record['red']}"
    speed = f"{reference['median'] / record['median']:8.1f} ×" if "median" in reference else ""
    return f"{1e3 * record['median']:10.2f} ms{speed}"


def table(records: Sequence[Dict[str, Any]]) -> str:
    """Return the rows of a case as text."""
    width = max(len(record["contender"]) for record in records)
    rows = [f"  {record['contender']:{width}}  {_row_text(record, records[-1])}" for record in records]
    return "\n".join([records[0]["title"], *rows])


def draw(tables: Sequence[Sequence[Dict[str, Any]]], footer: str, path: Path) -> None:
    """Draw the medians as bars, with a panel for each case."""
    figure = require("matplotlib.figure", "bench", "a chart").Figure(
        figsize=(9, 0.4 + 1.6 * len(tables)), dpi=120, layout="constrained"
    )
    figure.supxlabel(textwrap.fill(footer, 110), fontsize=8)
    for axes, records in zip(figure.subplots(len(tables), squeeze=False)[:, 0], tables):
        medians = [record.get("median", 0.0) for record in records]
        labels = [record["contender"] for record in records]
        colours = [OWN_COLOUR if label.startswith("snnipu") else PEER_COLOUR for label in labels]
        bars = axes.barh(labels, medians, color=colours)
        axes.bar_label(bars, [" ".join(_row_text(record, records[-1]).split()) for record in records], padding=4)
        axes.set_title(records[0]["title"], loc="left", fontsize=10)
        axes.set_xlim(0, 1.4 * max(medians, default=0.0) or 1.0)
        axes.invert_yaxis()
        axes.set_xticks([])
    write_atomically(path, functools.partial(figure.savefig, format=path.suffix[1:].lower()))


def _device(text: str) -> torch.device:
    if text not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"unknown device {text!r}; known: cpu, cuda")
    if text == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"{text}: this PyTorch finds no CUDA device")
    return torch.device(text)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the benchmarks that ``argv`` selects; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=called("bench"),
        description="Time snnipu and snnTorch, interleaved, after checking the results of each contender: "
        + "; ".join(f"{name}: {build.__doc__}" for name, build in CASES.items()),
        epilog="Exit status: 0 all checks passed, 1 a check is red, 2 wrong arguments.",
    )
    add = parser.add_argument
    add("case", nargs="?", default="all", choices=[*CASES, "all"], help="what to run (default: all)")
    add("--json", type=output_path(), metavar="FILE", help="write the times of all rounds as JSON")
    add("--chart", type=output_path(".png", ".svg", ".pdf"), metavar="FILE.png", help="draw the times")
    add("--device", type=_device, default=torch.device("cpu"), metavar="{cpu,cuda}", help="where to run (default: cpu)")
    add("--threads", type=positive_integer, metavar="N", help="CPU threads (default: PyTorch's)")
    add("--quick", action="store_true", help="small sizes and few rounds: a test that all cases run, not a measurement")
    arguments = parser.parse_args(argv)
    if arguments.chart:
        try:
            require("matplotlib.figure", "bench", "a chart")
        except MissingExtra as error:
            parser.error(f"argument --chart: {error}")
    threads, tables = torch.get_num_threads(), []
    torch.set_num_threads(arguments.threads or threads)
    try:
        environment = collect()
        for name in CASES if arguments.case == "all" else [arguments.case]:
            print(f"{name}: checking, then timing ...", file=sys.stderr)
            case = CASES[name](QUICK if arguments.quick else Sizes(), arguments.device)
            tables.append(run(case, arguments.device, 0.0 if arguments.quick else 5.0))
            print(table(tables[-1]) + "\n")
    finally:
        torch.set_num_threads(threads)
    records = [record for rows in tables for record in rows]
    versions = ", ".join(f"{name} {environment['versions'][name]}" for name in ("snnipu", "torch", "snntorch"))
    machine = f"{environment['processor']}, {environment['native']['threads']} threads"
    footer = f"{machine}; {versions}; ×: snnTorch's loop over the row."
    print(footer)
    if arguments.json:
        document = {"environment": environment, "device": str(arguments.device), "records": records}
        write_text(arguments.json, json.dumps(document, indent=1) + "\n")
    if arguments.chart:
        draw(tables, footer, arguments.chart)
    return 1 if any(record["red"] for record in records) else 0
