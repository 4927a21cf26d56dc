"""Interleaved timing: every round times every contender once, so that drift of the machine hits all alike."""

import gc
import math
import random
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# A sample shorter than this is repeated within the clock's reach: timer and interpreter jitter are then below 1 %.
MIN_SAMPLE_SECONDS = 5e-3
WARM_UP_CALLS = 2
# A slow contender has at least as many samples, where there are as many rounds.
SLOW_ROUNDS = 5


@dataclass(frozen=True)
class Timing:
    """Seconds a call: median and quartiles over ``rounds`` samples, each the mean of ``calls`` calls in a row.

    Attributes:
        faults: page faults a call (median) that the kernel served without a disk: memory that was touched for the first
            time since the process got it. None where the system does not tell, and on a GPU.
        system_share: share of the processor time of all threads that the kernel took, of all timed calls; likewise.
    """

    median: float
    lower_quartile: float
    upper_quartile: float
    rounds: int
    calls: int
    faults: Optional[float] = None
    system_share: Optional[float] = None


class Usage(NamedTuple):
    """What the process has used: page faults, and seconds of processor time in its own code and in the kernel."""

    faults: float
    user: float
    system: float


class Sample(NamedTuple):
    """Some calls in a row: seconds a call, and what all of them used."""

    seconds: float
    usage: Optional[Usage]


def process_usage() -> Optional[Usage]:
    """Of all threads, since the process began; None on a system that does not tell."""
    if resource is None:
        return None
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(used.ru_minflt, used.ru_utime, used.ru_stime)


def summarise(samples: Sequence[float], calls: int = 1) -> Timing:
    """Median and quartiles of ``samples`` (seconds a call)."""
    if not samples:
        raise ValueError("samples: at least one is needed")
    if len(samples) == 1:
        lower = median = upper = samples[0]
    else:
        lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median, lower, upper, rounds=len(samples), calls=calls)


def _summarise(samples: Sequence[Sample], calls: int) -> Timing:
    timing = summarise([sample.seconds for sample in samples], calls)
    usages = [sample.usage for sample in samples if sample.usage is not None]
    if not usages:
        return timing
    system = sum(usage.system for usage in usages)
    spent = system + sum(usage.user for usage in usages)
    return replace(
        timing,
        faults=statistics.median(usage.faults / calls for usage in usages),
        system_share=system / spent if spent > 0 else None,
    )


def synchronise(device: torch.device) -> None:
    """Wait for what was started on ``device``."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    steps: Mapping[str, Callable[[], Any]],
    device: torch.device,
    repeats: int,
    min_seconds: float,
    on_round: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    slow_seconds: Optional[float] = None,
    slow_rounds: int = SLOW_ROUNDS,
    usage: Callable[[], Optional[Usage]] = process_usage,
    before: Optional[Callable[[], Any]] = None,
) -> Dict[str, Timing]:
    """Time ``steps`` side by side.

    Rounds go on until there are ``repeats`` of them and ``min_seconds`` have passed. A round visits the contenders in a
    new random order, so that none always runs in the caches its predecessor left, and each contender runs once untimed
    before its timed calls, as it would in a training loop.

    With ``slow_seconds``, a contender that takes n times as long (rounded up) takes part in every n-th round only, but
    in at least ``slow_rounds`` of ``repeats``, and without the untimed calls: whatever they would set up is lost in
    such a time. Its samples still lie all over the run.

    ``before`` is called before the calls of each contender in a round; all of them then have untimed calls, slow ones
    a single one, so that what it undid is there again.
    """

    def timed(step: Callable[[], Any], calls: int) -> Sample:
        synchronise(device)
        before = usage() if device.type == "cpu" else None
        start = clock()
        for _ in range(calls):
            step()
        synchronise(device)
        seconds = (clock() - start) / calls
        after = usage() if before is not None else None
        used = None if before is None or after is None else Usage(*(b - a for a, b in zip(before, after)))
        return Sample(seconds, used)

    calls: Dict[str, int] = {}
    every: Dict[str, int] = {}
    for name, step in steps.items():
        seconds = timed(step, 1).seconds
        if slow_seconds is None or seconds <= slow_seconds:
            for _ in range(WARM_UP_CALLS - 1):
                step()
            seconds = timed(step, 1).seconds
        calls[name] = max(1, math.ceil(MIN_SAMPLE_SECONDS / max(seconds, 1e-9)))
        most = max(1, repeats // slow_rounds)
        every[name] = 1 if slow_seconds is None else min(max(1, math.ceil(seconds / slow_seconds)), most)

    samples: Dict[str, List[Sample]] = {name: [] for name in steps}
    order = list(steps)
    shuffle = random.Random(0).shuffle
    rounds, start = 0, clock()
    collector_was_on = gc.isenabled()
    gc.collect()
    gc.freeze()  # the collections between the rounds then only visit what the rounds left
    try:
        while steps and (rounds < repeats or clock() - start < min_seconds):
            gc.collect()
            gc.disable()
            shuffle(order)
            for name in order:
                if rounds % every[name] != every[name] // 2:
                    continue
                if before is not None:
                    before()
                    for _ in range(WARM_UP_CALLS if every[name] == 1 else 1):
                        steps[name]()
                elif every[name] == 1:
                    steps[name]()
                samples[name].append(timed(steps[name], calls[name]))
            if collector_was_on:
                gc.enable()
            rounds += 1
            on_round()
    finally:
        gc.unfreeze()
        if collector_was_on:
            gc.enable()
    return {name: _summarise(samples[name], calls[name]) for name in steps}
