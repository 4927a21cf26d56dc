import gc

import pytest

from benchmarks.case import Settings
from benchmarks.timing import MIN_SAMPLE_SECONDS, SLOW_ROUNDS, interleaved

WARM_UP_CALLS = 2


class Clock:
    """A clock that only a step moves."""

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


def measure(steps, repeats, min_seconds=0.0, **options):
    """Return the samples of each step."""
    samples = {name: [] for name in steps}
    for name, sample in interleaved(steps, Settings(), repeats, min_seconds, **options):
        samples[name].append(sample)
    return samples


def test_short_steps_are_repeated_until_a_sample_is_long_enough():
    clock = Clock()
    steps, _ = fake_steps(clock, short=1e-3)
    sample = measure(steps, 2, clock=clock)["short"][0]
    assert sample.calls == pytest.approx(MIN_SAMPLE_SECONDS / 1e-3, abs=1)
    assert sample.seconds == pytest.approx(1e-3)


def test_contenders_are_interleaved():
    clock = Clock()
    steps, calls = fake_steps(clock, a=1.0, b=1.0, c=1.0)
    measure(steps, 4, clock=clock)
    rounds = calls[3 * (WARM_UP_CALLS + 1) :]
    # Every contender runs twice a round: untimed, then timed.
    assert len(rounds) == 4 * 3 * 2
    for i in range(0, len(rounds), 6):
        assert sorted(rounds[i : i + 6 : 2]) == ["a", "b", "c"]
        assert rounds[i : i + 6 : 2] == rounds[i + 1 : i + 6 : 2]


def test_slow_contenders_take_part_in_fewer_rounds():
    clock = Clock()
    steps, calls = fake_steps(clock, fast=0.05, slow=0.25, slower=9.0)
    samples = measure(steps, 15, clock=clock, slow_seconds=0.1)
    assert {name: len(times) for name, times in samples.items()} == {"fast": 15, "slow": 5, "slower": SLOW_ROUNDS}
    # The first call estimates the duration; all others are timed.
    assert calls.count("slower") == 1 + SLOW_ROUNDS
    assert calls.count("fast") == WARM_UP_CALLS + 1 + 2 * 15
    # The samples are spread over the run.
    rounds = "".join(name[0] for name in calls if name != "slow").partition("s")[2]
    assert max(map(len, rounds.split("s"))) <= 2 * 5


def test_rounds_go_on_for_min_seconds():
    clock = Clock()
    steps, _ = fake_steps(clock, only=1.0)
    assert len(measure(steps, 1, 9.5, clock=clock)["only"]) == 5  # two calls of one second a round
    assert measure({}, 3, 1.0) == {}


def test_the_garbage_collector_is_left_as_it_was():
    def fails_when_timed():
        if not gc.isenabled():
            raise RuntimeError("in a round")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="in a round"):
        measure({"fails": fails_when_timed}, 1)
    assert gc.isenabled()
