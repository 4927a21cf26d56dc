"""Throughput against the number of processes: strong and weak scaling of data-parallel training, on this machine."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

import torch
from torch import nn

from snnipu._extras import require
from snnipu._files import write_atomically
from snnipu.neurons import Leaky, MultiStep
from snnipu.training import Ranks, joined

SCALINGS = ("strong", "weak")
FEATURES, CLASSES = 784, 10
# A process that hangs ends the benchmark.
TIMEOUT = 600.0


class ScaleError(RuntimeError):
    """A process of the benchmark failed; the message is its own."""


class Point(NamedTuple):
    """What a number of processes does.

    Attributes:
        scaling: ``"strong"``: the batch is shared out; ``"weak"``: each process has a batch of that size.
        processes: how many.
        threads: of each.
        batch: samples of a step, over all processes.
        step_seconds: median of a training step, forward, backward, gradients averaged, Adam.
        samples_per_second: of all processes.
        efficiency: samples per second and process, over those of the smallest number of processes.
        communication: share of the step that is gone where gradients are not averaged; not below 0.
        gradient_bytes: what a process puts into each reduction.
    """

    scaling: str
    processes: int
    threads: int
    batch: int
    step_seconds: float
    samples_per_second: float
    efficiency: float
    communication: float
    gradient_bytes: int


def measure(
    processes: Sequence[int], *, steps: int, batch_size: int, neurons: int, repeats: int, threads: int
) -> List[Point]:
    """Time a network ``784-neurons-10`` over ``steps`` time steps with each number of processes.

    Args:
        processes: numbers of processes, from 1.
        steps, batch_size, neurons: sizes.
        repeats: timed steps.
        threads: to share out among the processes, each of which has one at least.

    Raises:
        ScaleError: a process failed.
    """
    found: List[Dict[str, Any]] = []
    for count in sorted(set(processes)):
        own_threads = max(1, threads // count)
        batches = [batch_size, batch_size * count]  # in the order of SCALINGS
        settings = {"steps": steps, "batches": batches, "neurons": neurons, "repeats": repeats, "threads": own_threads}
        for scaling, batch, times in zip(SCALINGS, batches, _run(count, settings)):
            found.append({"scaling": scaling, "processes": count, "threads": own_threads, "batch": batch, **times})
    points = []
    for entry in found:
        rate = entry["batch"] / entry["step_seconds"]
        first = next(other for other in found if other["scaling"] == entry["scaling"])
        reference = first["batch"] / first["step_seconds"] / first["processes"]
        points.append(Point(**entry, samples_per_second=rate, efficiency=rate / entry["processes"] / reference))
    return points


def _run(count: int, settings: Dict[str, Any]) -> List[Dict[str, Any]]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    started = []
    for rank in range(count):
        place = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}, "MASTER_ADDR": "127.0.0.1"}
        command = [sys.executable, "-m", "benchmarks.scale", json.dumps(settings)]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        said = [process.communicate(timeout=TIMEOUT) for process in started]
    except subprocess.TimeoutExpired as error:
        raise ScaleError(f"a process of {count} took longer than {TIMEOUT:g} s") from error
    finally:
        for process in started:
            process.kill()
    for rank, (process, (_, errors)) in enumerate(zip(started, said)):
        if process.returncode:
            raise ScaleError(f"process {rank} of {count} failed: {errors.strip()[-1000:]}")
    result: List[Dict[str, Any]] = json.loads(said[0][0].splitlines()[-1])
    return result


def worker(settings: Dict[str, Any]) -> None:
    """One of the processes; the first prints the times."""
    torch.set_num_threads(settings["threads"])
    with joined(timeout=TIMEOUT) as ranks:
        times = [_times(ranks, batch, settings) for batch in settings["batches"]]
        if ranks.is_first:
            print(json.dumps(times), flush=True)


def _times(ranks: Ranks, batch: int, settings: Dict[str, Any]) -> Dict[str, Any]:
    torch.manual_seed(0)
    network = MultiStep(
        nn.Linear(FEATURES, settings["neurons"]),
        Leaky(beta=0.9),
        nn.Linear(settings["neurons"], CLASSES),
        Leaky(beta=0.9),
    )
    optimizer = torch.optim.Adam(network.parameters())
    own = ranks.share(batch)
    x = torch.rand(max(1, own.stop - own.start), FEATURES)
    labels = torch.randint(CLASSES, (len(x),))
    model = ranks.wrapped(network)

    def step(averages: bool) -> None:
        optimizer.zero_grad(set_to_none=True)
        apart = ranks.size > 1 and not averages
        with model.no_sync() if apart else nullcontext():  # type: ignore[operator]
            spk, _ = model(x, num_steps=settings["steps"])
            nn.functional.cross_entropy(spk.sum(0), labels).backward()
        optimizer.step()

    seconds: Dict[bool, List[float]] = {True: [], False: []}
    for _ in range(3):
        step(True)
    for _ in range(settings["repeats"]):
        for averages in (True, False):
            ranks.any(False)  # all begin together
            started = time.perf_counter()
            step(averages)
            # The slowest tells, in microseconds.
            seconds[averages].append(ranks.largest(int(1e6 * (time.perf_counter() - started))) / 1e6)
    with_them, without = (sorted(seconds[averages])[settings["repeats"] // 2] for averages in (True, False))
    return {
        "step_seconds": with_them,
        "communication": max(0.0, 1 - without / with_them) if ranks.size > 1 else 0.0,
        "gradient_bytes": sum(parameter.numel() * parameter.element_size() for parameter in network.parameters()),
    }


def table(points: Sequence[Point], markdown: bool = False) -> str:
    """One row a point."""
    head = ("scaling", "processes", "threads each", "batch", "ms a step", "samples/s", "efficiency", "communication")
    rows = [
        (
            point.scaling,
            str(point.processes),
            str(point.threads),
            str(point.batch),
            f"{1e3 * point.step_seconds:.2f}",
            f"{point.samples_per_second:,.0f}",
            f"{point.efficiency:.0%}",
            f"{point.communication:.0%}",
        )
        for point in points
    ]
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]
        return "\n".join(lines)
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in (head, *rows))


def draw(points: Sequence[Point], path: Path) -> None:
    """Samples per second and efficiency against the number of processes."""
    figure = require("matplotlib.figure", "bench", "a chart").Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for scaling in SCALINGS:
        own = [point for point in points if point.scaling == scaling]
        counts = [point.processes for point in own]
        left.plot(counts, [point.samples_per_second for point in own], marker="o", label=scaling)
        right.plot(counts, [point.efficiency for point in own], marker="o", label=scaling)
    left.set_ylabel("samples per second")
    right.set_ylabel("efficiency")
    for axes in (left, right):
        axes.set_xlabel("processes")
        axes.set_xticks(sorted({point.processes for point in points}))
        axes.set_ylim(bottom=0)
        axes.legend()
    write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=120))


if __name__ == "__main__":
    worker(json.loads(sys.argv[1]))
