import sys

import pytest
import torch
from support.commands import python

import snnipu
from benchmarks.memory import extra_bytes, sums_of_events
from benchmarks.timing import process_usage

CPU = torch.device("cpu")
KIB = 1024


def block(kib):
    return torch.empty(kib * KIB, dtype=torch.uint8)


def events(*sizes):
    return [{"args": {"Bytes": size}} for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "sums"),
    [
        ((), (0, 0)),
        ((5,), (5, 5)),
        ((5, -5, 7, -7), (7, 0)),
        ((5, 7, -5, 1), (12, 8)),
        ((-3, 2), (0, -1)),
        ((4, -4, 4, 4, -8), (8, 0)),
    ],
)
def test_sums_of_events(sizes, sums):
    assert sums_of_events(events(*sizes)) == sums


def test_peak_of_a_known_pattern():
    def step():
        first = block(100)
        second = block(50)
        del first
        third = block(80)
        return second, third

    assert extra_bytes(step, CPU) == (150 * KIB, 130 * KIB)


def test_results_count_and_inputs_do_not():
    x = torch.ones(64 * KIB // 4)
    assert extra_bytes(x.exp, CPU) == (64 * KIB, 64 * KIB)
    assert extra_bytes(x.exp_, CPU) == (0, 0)


def test_results_in_memory_of_the_call_before_count():
    """Results use memory blocks again, which the allocator counts only once."""
    x = torch.zeros(8, 64, 1024)
    lif = snnipu.Leaky(beta=0.9)
    lif.sequence(x)
    sequence = x.numel() * 4
    assert 2 * sequence <= extra_bytes(lambda: lif.sequence(x), CPU)[0] < 2.1 * sequence
    # Memory of freed results that the call left for later ones is no result.
    assert sequence <= extra_bytes(lambda: lif.sequence(x)[0], CPU)[1] < 1.1 * sequence


@pytest.mark.slow
@pytest.mark.skipif(
    process_usage() is None or not sys.platform.startswith("linux"), reason="the system does not report resident memory"
)
def test_profiling_does_not_grow_with_the_steps_of_a_loop():
    """A profiled loop kept one sequence per step in memory; it needs a few."""
    code = """
import torch
from benchmarks.case import Settings
from benchmarks.cases import lif
from benchmarks.memory import extra_bytes
def most():  # getrusage would tell the most of the process that started this one, too
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
torch.set_num_threads(1)
settings = Settings(steps=100, batch_size=64, neurons=1024)
step = lif.Work(settings).loop().step
step()
before = most()
extra_bytes(step, settings.device)
print((most() - before) * 1024 / (100 * 64 * 1024 * 4))
"""
    assert float(python("-c", code).stdout) < 20
