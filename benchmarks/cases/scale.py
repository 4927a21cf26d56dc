"""Throughput against the number of processes: strong and weak scaling of data-parallel training on one machine."""

import concurrent.futures
import functools
import multiprocessing
import os
import socket
import time
from contextlib import nullcontext

import torch
from torch import nn

from benchmarks.case import Case, Check, Contender, Workload
from benchmarks.timing import Sample
from snnipu import Leaky, MultiStep
from snnipu.training import joined

FEATURES, CLASSES = 784, 10
# Seconds after which a hanging process ends the benchmark.
TIMEOUT = 600.0
# Strong: the processes share a batch; weak: each process has a batch. Alone: gradients are not averaged.
KINDS = {
    "strong": "strong scaling",
    "strong-alone": "strong, gradients not averaged",
    "weak": "weak scaling",
    "weak-alone": "weak, gradients not averaged",
}


def _worker(rank, port, threads, settings, repeats):
    """Run one of the processes; return the seconds of each round of each kind in the slowest process."""
    variables = {"RANK": rank, "WORLD_SIZE": settings.processes, "LOCAL_RANK": rank, "MASTER_PORT": port}
    variables["LOCAL_WORLD_SIZE"] = settings.processes
    os.environ.update({name: str(value) for name, value in variables.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(threads)
    with joined(timeout=TIMEOUT) as ranks:
        return {**_seconds("strong", ranks, settings, repeats), **_seconds("weak", ranks, settings, repeats)}


def batch_of(kind, settings):
    """Return the samples of a step, over all processes."""
    return settings.batch_size * (settings.processes if kind.startswith("weak") else 1)


def _seconds(kind, ranks, settings, repeats):
    """Return the seconds of each round with gradients averaged and without."""
    torch.manual_seed(0)
    neurons = settings.neurons
    network = MultiStep(nn.Linear(FEATURES, neurons), Leaky(beta=0.9), nn.Linear(neurons, CLASSES), Leaky(beta=0.9))
    optimizer = torch.optim.Adam(network.parameters())
    share = ranks.share(batch_of(kind, settings))
    x = torch.rand(max(1, share.stop - share.start), FEATURES)
    labels = torch.randint(CLASSES, (len(x),))
    model = ranks.wrapped(network)

    def step(averages):
        optimizer.zero_grad(set_to_none=True)
        without_sum = ranks.size > 1 and not averages
        with model.no_sync() if without_sum else nullcontext():
            spk, _ = model(x, num_steps=settings.steps)
            nn.functional.cross_entropy(spk.sum(0), labels).backward()
        optimizer.step()

    seconds = {kind: [], f"{kind}-alone": []}
    for _ in range(3):
        step(True)
    for _ in range(repeats):
        for name, times in seconds.items():
            ranks.any(False)  # a barrier: all processes start together
            started = time.perf_counter()
            step(name == kind)
            # The time of the slowest process, exchanged in microseconds.
            times.append(ranks.largest(int(1e6 * (time.perf_counter() - started))) / 1e6)
    return seconds


def samples(steps, settings, repeats, min_seconds, **options):
    """Yield the times of each kind, measured in separate processes that share the threads."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    threads = max(1, torch.get_num_threads() // settings.processes)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(settings.processes, mp_context=spawn) as pool:
        run = functools.partial(_worker, port=port, threads=threads, settings=settings, repeats=repeats)
        seconds_of_kinds, *_ = pool.map(run, range(settings.processes))
    for kind, seconds in seconds_of_kinds.items():
        yield from ((kind, Sample(number, 1, value)) for number, value in enumerate(seconds))


def contenders(settings):
    def build():
        return Workload(lambda: None, lambda: Check(True, "nothing", ""))

    return [
        Contender(name, label, build, torch_memory=False, samples=batch_of(name, settings))
        for name, label in KINDS.items()
    ]


CASE = Case(
    summary="training by several processes on this machine: strong and weak scaling",
    work=(
        "A training step of 784-N-10 on T steps of a constant input by several processes: forward, backward, gradients "
        "averaged, Adam. A batch is shared out (strong) or each process has one (weak)."
    ),
    title=lambda settings: (
        f"784-{settings.neurons}-10, {settings.processes} processes: T={settings.steps} × B={settings.batch_size}"
    ),
    contenders=contenders,
    sizes={"steps": 25, "batch_size": 128, "neurons": 1000, "processes": (1, 2)},
    axes=("processes",),
    tables=("milliseconds", "samples_per_second"),
    charts=("milliseconds", "samples_per_second"),
    samples=samples,
    reference="strong-alone",
    repeats=20,
    devices=("cpu",),
    check="None. What processes compute is tested in tests/test_distributed.py.",
)
