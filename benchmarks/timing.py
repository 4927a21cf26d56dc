"""Interleaved timing: every round times every contender once, so that drift of the machine hits all alike."""

import gc
import math
import random
import time
from typing import NamedTuple, Optional

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None

# A sample shorter than this is repeated: timer and interpreter jitter are then below 1 %.
MIN_SAMPLE_SECONDS = 5e-3
# A slow contender has at least as many samples, where there are as many rounds.
SLOW_ROUNDS = 5


class Sample(NamedTuple):
    """Some calls in a row; times and page faults are those of a call.

    Attributes:
        faults: page faults that the kernel served without a disk: memory that was touched for the first time.
        user, system: processor time of all threads in their own code and in the kernel. None on a GPU.
    """

    round: int
    calls: int
    seconds: float
    faults: Optional[float] = None
    user: Optional[float] = None
    system: Optional[float] = None


def process_usage():
    """Return page faults, user and system seconds of the process; None on a system that does not tell."""
    if resource is None:
        return None
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt, used.ru_utime, used.ru_stime


def synchronise(device):
    """Wait for what was started on ``device``."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleaved(
    steps,
    settings,
    repeats,
    min_seconds,
    slow_seconds=None,
    slow_rounds=SLOW_ROUNDS,
    before=None,
    clock=time.perf_counter,
    usage=process_usage,
):
    """Time ``steps`` side by side, on the device of ``settings``; yield each sample with the name of its step.

    Rounds go on until there are ``repeats`` of them and ``min_seconds`` have passed. A round visits the contenders in a
    new random order, so that none always runs in the caches its predecessor left. Each contender runs once untimed
    before its timed calls, as it would in a training loop.

    With ``slow_seconds``, a contender that takes n times as long takes part in every n-th round only, but in at least
    ``slow_rounds`` of ``repeats``, and without the untimed calls. Its samples still lie all over the run.

    ``before`` is called before the calls of each contender in a round. All contenders then have untimed calls, slow
    ones a single one, so that what it undid is there again.
    """

    def timed(step, calls, number):
        synchronise(device)
        before = usage() if device.type == "cpu" else None
        start = clock()
        for _ in range(calls):
            step()
        synchronise(device)
        seconds = (clock() - start) / calls
        after = usage() if before is not None else None
        used = () if before is None or after is None else ((b - a) / calls for a, b in zip(before, after))
        return Sample(number, calls, seconds, *used)

    device, slow = settings.device, slow_seconds or math.inf
    calls, every = {}, {}
    for name, step in steps.items():
        seconds = timed(step, 1, 0).seconds
        if seconds <= slow:
            step()
            seconds = timed(step, 1, 0).seconds
        calls[name] = max(1, math.ceil(MIN_SAMPLE_SECONDS / max(seconds, 1e-9)))
        most = max(1, repeats // slow_rounds)
        every[name] = min(max(1, math.ceil(seconds / slow)), most)

    order = list(steps)
    shuffle = random.Random(0).shuffle
    number, start = 0, clock()
    collector_was_on = gc.isenabled()
    gc.collect()
    gc.freeze()  # the collections between the rounds then only visit what the rounds left
    try:
        while steps and (number < repeats or clock() - start < min_seconds):
            gc.collect()
            gc.disable()
            shuffle(order)
            samples = []
            for name in order:
                if number % every[name] != every[name] // 2:
                    continue
                if before is not None:
                    before()
                for _ in range((every[name] == 1) + (before is not None)):
                    steps[name]()
                samples.append((name, timed(steps[name], calls[name], number)))
            if collector_was_on:
                gc.enable()
            number += 1
            yield from samples
    finally:
        gc.unfreeze()
        if collector_was_on:
            gc.enable()
