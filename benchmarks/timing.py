"""Interleaved timing: every round times every contender once, so that drift of the machine affects all equally."""

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

# A shorter call is repeated within a sample: the jitter of timer and interpreter is then below 1 %.
MIN_SAMPLE_SECONDS = 5e-3
# A slow contender has at least this number of samples, if there are as many rounds.
SLOW_ROUNDS = 5


class Sample(NamedTuple):
    """Some calls in a row; times and page faults are those of one call.

    Attributes:
        faults: page faults that the kernel served without a disk: first accesses to memory.
        user, system: processor time of all threads in user code and in the kernel. None on a GPU.
    """

    round: int
    calls: int
    seconds: float
    faults: Optional[float] = None
    user: Optional[float] = None
    system: Optional[float] = None


def process_usage():
    """Return page faults, user and system seconds of the process; None if the system does not report them."""
    if resource is None:
        return None
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt, used.ru_utime, used.ru_stime


def synchronise(device):
    """Wait for all work on ``device``."""
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

    Rounds continue until there are ``repeats`` of them and ``min_seconds`` have passed. Each round has a new random
    order of contenders, so that none always runs in the caches of the same predecessor. Each contender runs once
    untimed before its timed calls, to warm the caches like in a training loop.

    With ``slow_seconds``, a contender that takes n times as long takes part in every n-th round only, without untimed
    calls, but in at least ``slow_rounds`` of ``repeats``. Its samples are spread over the run.

    ``before`` is called before the calls of each contender in a round. All contenders then have untimed calls, slow
    ones a single one, to restore what ``before`` released.
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
    calls, interval = {}, {}
    for name, step in steps.items():
        seconds = timed(step, 1, 0).seconds
        if seconds <= slow:
            step()
            seconds = timed(step, 1, 0).seconds
        calls[name] = max(1, math.ceil(MIN_SAMPLE_SECONDS / max(seconds, 1e-9)))
        longest = max(1, repeats // slow_rounds)
        interval[name] = min(max(1, math.ceil(seconds / slow)), longest)

    order = list(steps)
    shuffle = random.Random(0).shuffle
    number, start = 0, clock()
    collector_was_on = gc.isenabled()
    gc.collect()
    gc.freeze()  # collections between the rounds then only visit objects of the rounds
    try:
        while steps and (number < repeats or clock() - start < min_seconds):
            gc.collect()
            gc.disable()
            shuffle(order)
            samples = []
            for name in order:
                if number % interval[name] != interval[name] // 2:
                    continue
                if before is not None:
                    before()
                for _ in range((interval[name] == 1) + (before is not None)):
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
