"""Freed memory: kept for the next training step, up to a limit, and given back when asked."""

import os
import subprocess
import sys

import pytest

from snnipu.backends import host, memory

pytestmark = [
    pytest.mark.skipif(host.library is None, reason=host.unavailable_reason or ""),
    pytest.mark.skipif(not memory._uses_glibc(), reason="glibc's allocator only"),
]


def run(code, **environment):
    """What ``code`` prints in a process of its own: the allocator of this one is set by now."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "SNNIPU_KEEP", "LD_PRELOAD"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**own, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("environment", "set_here"),
    [
        ({}, True),
        ({"SNNIPU_KEEP_FREED_MEMORY": "64M"}, True),
        ({"SNNIPU_KEEP_FREED_MEMORY": "0"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "100000"}, False),
    ],
)
def test_memory_is_kept_unless_the_user_says_otherwise(environment, set_here):
    code = "from snnipu import backends; from snnipu.backends import memory; print(memory.keep_freed_memory())"
    assert run(code, **environment) == [str(set_here)]
    assert (run("from snnipu import backends; print(backends.kept_memory())", **environment) != ["None"]) == set_here


@pytest.mark.parametrize(("text", "limit"), [("512M", 512 * 2**20), ("3G", 3 * 2**30), ("7K", 7168), ("0", 0)])
def test_limits(monkeypatch, text, limit):
    monkeypatch.setenv("SNNIPU_KEEP_FREED_MEMORY", text)
    assert memory.limit_asked_for() == limit


@pytest.mark.parametrize("text", ["", "no", "-1", "1.5G", "4GB"])
def test_a_limit_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("SNNIPU_KEEP_FREED_MEMORY", text)
    with pytest.raises(ValueError, match="SNNIPU_KEEP_FREED_MEMORY must be 0, 1, or a size such as 512M"):
        memory.limit_asked_for()


def test_a_quarter_of_the_memory_by_default(monkeypatch):
    monkeypatch.delenv("SNNIPU_KEEP_FREED_MEMORY", raising=False)
    assert memory.limit_asked_for() == memory.memory_of_machine() // 4


STEPS = """
import resource
import torch
import snnipu as snn

def faults(step, count=6):
    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // count

"""
SEQUENCE = """
x, lif = torch.randn(100, 32, 3000, requires_grad=True), snn.Leaky(beta=0.9)

def step():
    x.grad = None
    spk, mem = lif.sequence(x)
    (spk.sum(0).sum() + mem[-1].sum()).backward()
"""
SPIKES = """
x, lif = torch.randn(100, 32, 3000, requires_grad=True), snn.Leaky(beta=0.9)

def step():
    x.grad = None
    lif.spikes(x).sum(0).sum().backward()
"""
CONVOLUTIONS = """
from torch import nn
net = snn.MultiStep(
    nn.Conv2d(2, 12, 5), nn.MaxPool2d(2), snn.Leaky(beta=0.5), nn.Flatten(), nn.Linear(12 * 15 * 15, 10), snn.Leaky(0.5)
)
x = (torch.rand(25, 32, 2, 34, 34) < 0.1).float()

def step():
    net.zero_grad()
    net(x)[0].sum().backward()
"""
SPARSE = """
net = snn.SparseNetwork([512, 1024, 10], beta=0.95, max_spikes=[64, 64, 10], grad_threshold=0.9)
x = snn.SparseSpikes.from_dense((torch.rand(50, 32, 512) < 0.03).float())

def step():
    net.zero_grad()
    net(x).spike_count().sum().backward()
"""


@pytest.mark.parametrize("steps", [SEQUENCE, SPIKES, CONVOLUTIONS, SPARSE], ids=["sequence", "spikes", "conv", "sparse"])
def test_a_training_step_makes_no_page_faults(steps):
    """In the steady state; tensors of more than 32 MiB, which glibc by itself maps anew in each step."""
    assert int(run(STEPS + steps + "print(faults(step))")[0]) < 50
    if steps in (SEQUENCE, CONVOLUTIONS):
        assert int(run(STEPS + steps + "print(faults(step))", SNNIPU_KEEP_FREED_MEMORY="0")[0]) > 5000


def test_what_is_kept_is_told_and_given_back():
    code = """
import torch
from snnipu import backends
large = torch.ones(60, 2**20)
before = backends.kept_memory()
del large
print(backends.kept_memory() - before)
backends.release_memory()
print(backends.kept_memory())
"""
    kept, left = map(int, run(code))
    assert 239 * 2**20 < kept < 260 * 2**20
    assert left < 2**20


def test_no_more_than_the_limit_is_kept():
    """What lies between blocks in use, too, where glibc's own limit does not reach."""
    code = """
import torch
import snnipu as snn
from snnipu import backends
lif = snn.Leaky(beta=0.9)
blocks = [torch.ones(2**20) for _ in range(100)]
held = blocks[::10]
del blocks
more = torch.ones(5)
for _ in range(20):
    lif.sequence(torch.zeros(10, 2**14))
print(backends.kept_memory())
"""
    assert int(run(code, SNNIPU_KEEP_FREED_MEMORY="32M")[0]) < 40 * 2**20
    assert int(run(code, SNNIPU_KEEP_FREED_MEMORY="4G")[0]) > 300 * 2**20
