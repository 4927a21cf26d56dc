import gc
import mmap

import pytest
import torch

from benchmarks.timing import (
    MIN_SAMPLE_SECONDS,
    SLOW_ROUNDS,
    WARM_UP_CALLS,
    Usage,
    measure,
    process_usage,
    summarise,
)

CPU = torch.device("cpu")


class Clock:
    """A clock that only moves when a step says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def fake_steps(clock, **seconds):
    calls = []

    def step(name, duration):
        def run():
            calls.append(name)
            clock.now += duration

        return run

    return {name: step(name, duration) for name, duration in seconds.items()}, calls


def test_summarise_median_and_quartiles():
    timing = summarise([4.0, 1.0, 3.0, 2.0, 5.0], calls=7)
    assert (timing.lower_quartile, timing.median, timing.upper_quartile) == (2.0, 3.0, 4.0)
    assert (timing.rounds, timing.calls) == (5, 7)


def test_summarise_one_sample():
    timing = summarise([2.5])
    assert timing.lower_quartile == timing.median == timing.upper_quartile == 2.5


def test_summarise_nothing():
    with pytest.raises(ValueError, match="samples"):
        summarise([])


def test_measure_reports_seconds_per_call():
    clock = Clock()
    steps, _ = fake_steps(clock, slow=1.0, fast=0.25)
    timings = measure(steps, CPU, repeats=5, min_seconds=0.0, clock=clock)
    assert timings["slow"].median == pytest.approx(1.0)
    assert timings["fast"].median == pytest.approx(0.25)
    assert timings["slow"].rounds == timings["fast"].rounds == 5
    assert timings["slow"].calls == 1


def test_measure_repeats_short_steps_until_a_sample_is_long_enough():
    clock = Clock()
    steps, _ = fake_steps(clock, short=1e-3)
    timing = measure(steps, CPU, repeats=2, min_seconds=0.0, clock=clock)["short"]
    assert timing.calls == pytest.approx(MIN_SAMPLE_SECONDS / 1e-3, abs=1)
    assert timing.median == pytest.approx(1e-3)


def test_measure_interleaves_contenders():
    clock = Clock()
    steps, calls = fake_steps(clock, a=1.0, b=1.0, c=1.0)
    measure(steps, CPU, repeats=4, min_seconds=0.0, clock=clock)
    rounds = calls[3 * (WARM_UP_CALLS + 1) :]
    # Every contender runs twice a round: once untimed, once timed.
    assert len(rounds) == 4 * 3 * 2
    for i in range(0, len(rounds), 6):
        assert sorted(rounds[i : i + 6 : 2]) == ["a", "b", "c"]
        assert rounds[i : i + 6 : 2] == rounds[i + 1 : i + 6 : 2]


def test_slow_contenders_take_part_in_fewer_rounds():
    clock = Clock()
    steps, calls = fake_steps(clock, fast=0.05, slow=0.25, slower=9.0)
    timings = measure(steps, CPU, repeats=15, min_seconds=0.0, clock=clock, slow_seconds=0.1)
    assert {name: timing.rounds for name, timing in timings.items()} == {
        "fast": 15,
        "slow": SLOW_ROUNDS,
        "slower": SLOW_ROUNDS,
    }
    # One call to find out how long it takes, then only timed ones.
    assert calls.count("slower") == 1 + SLOW_ROUNDS
    assert calls.count("fast") == WARM_UP_CALLS + 1 + 2 * 15
    # They are spread over the run.
    rounds = "".join(name[0] for name in calls if name != "slow").partition("s")[2]
    assert max(map(len, rounds.split("s"))) <= 2 * 5


@pytest.mark.parametrize("repeats", [1, 2, 4, 6, 11])
def test_slow_contenders_have_samples_however_few_rounds_there_are(repeats):
    clock = Clock()
    steps, _ = fake_steps(clock, slow=0.15, slower=9.0)
    timings = measure(steps, CPU, repeats=repeats, min_seconds=0.0, clock=clock, slow_seconds=0.1)
    assert all(min(repeats, SLOW_ROUNDS) <= timing.rounds <= repeats for timing in timings.values())


def test_least_rounds_of_slow_contenders():
    clock = Clock()
    steps, _ = fake_steps(clock, fast=0.05, slower=9.0)
    limits = {"slow_seconds": 0.1, "slow_rounds": 2}
    timings = measure(steps, CPU, repeats=8, min_seconds=0.0, clock=clock, **limits)
    assert (timings["fast"].rounds, timings["slower"].rounds) == (8, 2)


def test_what_is_called_before_each_contender():
    """Untimed calls then come first, for slow ones too."""
    clock = Clock()
    steps, calls = fake_steps(clock, fast=0.05, slower=9.0)
    limits = {"slow_seconds": 0.1, "slow_rounds": 1}
    timings = measure(steps, CPU, 2, 0.0, clock=clock, before=lambda: calls.append("before"), **limits)
    assert (timings["fast"].rounds, timings["slower"].rounds) == (2, 1)
    turns = [turn.split() for turn in " ".join(calls).split("before")[1:]]
    assert sorted(turns) == [["fast"] * (WARM_UP_CALLS + 1)] * 2 + [["slower"] * 2]


def test_page_faults_and_time_of_the_kernel_are_those_of_timed_calls():
    clock, used = Clock(), [0.0, 0.0, 0.0]
    calls = []

    def step():
        calls.append(1)
        clock.now += 1e-3
        # Those of the first calls, which are not timed, do not count.
        used[0] += 1000 if len(calls) <= WARM_UP_CALLS else 6
        used[1] += 3e-3
        used[2] += 1e-3

    timing = measure({"a": step}, CPU, 3, 0.0, clock=clock, usage=lambda: Usage(*used))["a"]
    assert timing.calls > 1
    assert timing.faults == pytest.approx(6)
    assert timing.system_share == pytest.approx(0.25)


def test_system_that_does_not_tell_page_faults():
    timing = measure({"a": lambda: None}, CPU, 1, 0.0, usage=lambda: None)["a"]
    assert timing.faults is None
    assert timing.system_share is None


@pytest.mark.skipif(process_usage() is None, reason="the system does not tell")
def test_first_touch_is_a_page_fault():
    def touch():
        with mmap.mmap(-1, 64 * mmap.PAGESIZE) as memory:
            for place in range(0, len(memory), mmap.PAGESIZE):
                memory[place] = 1

    timings = measure({"touch": touch, "nothing": lambda: None}, CPU, 3, 0.0)
    # A page can be larger than the smallest.
    assert timings["touch"].faults >= 1
    assert timings["nothing"].faults < 0.5


def test_measure_goes_on_for_min_seconds():
    clock = Clock()
    steps, _ = fake_steps(clock, only=1.0)
    ended = []
    timing = measure(steps, CPU, repeats=1, min_seconds=9.5, on_round=lambda: ended.append(clock.now), clock=clock)
    assert timing["only"].rounds == len(ended) == 5  # two calls of one second a round


def test_measure_nothing_ends():
    assert measure({}, CPU, repeats=3, min_seconds=1.0) == {}


def test_measure_leaves_the_garbage_collector_as_it_was():
    def fails_when_timed():
        if not gc.isenabled():
            raise RuntimeError("in a round")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="in a round"):
        measure({"fails": fails_when_timed}, CPU, repeats=1, min_seconds=0.0)
    assert gc.isenabled()
