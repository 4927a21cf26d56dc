"""Result memory: reused by the next training step up to a limit, freed on request."""

import gc
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch

import snnipu as snn
from snnipu import backends
from snnipu.backends import host, memory

pytestmark = [
    pytest.mark.skipif(host.library is None, reason=host.unavailable_reason or ""),
    pytest.mark.skipif(not memory._uses_glibc(), reason="glibc's allocator only"),
]


# Peak resident memory in MiB. getrusage would include the peak of the parent process.
PEAK = """
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


def run(code, **environment):
    """Return the words that ``code`` prints in a new process: the allocator of this process is already configured."""
    variables = {
        k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "SNNIPU_KEEP", "LD_PRELOAD"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env={**variables, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
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


@pytest.mark.parametrize(("text", "limit"), [("512M", 512 * 2**20), ("3G", 3 * 2**30), ("7K", 7168), ("0", 0)])
def test_limits(monkeypatch, text, limit):
    monkeypatch.setenv("SNNIPU_KEEP_FREED_MEMORY", text)
    assert memory.configured_limit() == limit


@pytest.mark.parametrize("text", ["", "no", "-1", "1.5G", "4GB"])
def test_a_limit_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("SNNIPU_KEEP_FREED_MEMORY", text)
    with pytest.raises(ValueError, match="SNNIPU_KEEP_FREED_MEMORY must be 0, 1, or a size such as 512M"):
        memory.configured_limit()


def test_a_quarter_of_the_memory_by_default(monkeypatch):
    monkeypatch.delenv("SNNIPU_KEEP_FREED_MEMORY", raising=False)
    assert memory.configured_limit() == memory.memory_of_machine() // 4


STEPS = """
import resource
import torch
import snnipu as snn

def faults(step, count=40):
    '''Of the step in the middle: now and then the heap grows by a block, until it has a place for everything.'''
    made = []
    for _ in range(10 + count):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        made.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return sorted(made[10:])[count // 2]

"""
SEQUENCE = """
x, lif = torch.randn(50, 32, 6000, requires_grad=True), snn.Leaky(beta=0.9)

def step():
    x.grad = None
    spk, mem = lif.sequence(x)
    (spk.sum(0).sum() + mem[-1].sum()).backward()
"""
SPIKES = """
x, lif = torch.randn(50, 32, 6000, requires_grad=True), snn.Leaky(beta=0.9)

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


MAPS = """
from snnipu.datasets.random_spikes import random_spikes
net = snn.SparseNetwork([(16, 24, 24), "64C3"], beta=0.9, threshold=0.1, grad_threshold=0.0, path="sparse")
inputs = [random_spikes(20, 32, 16 * 24 * 24, rate, exact=False) for rate in (0.28, 0.29, 0.3, 0.31)]

def step():
    net.zero_grad()
    inputs.append(inputs.pop(0))
    net(inputs[0]).spike_count().sum().backward()
"""


KINDS = {"sequence": SEQUENCE, "spikes": SPIKES, "convolutions": CONVOLUTIONS, "sparse": SPARSE, "maps": MAPS}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_step_makes_no_page_faults(kind):
    """In the steady state. glibc alone maps tensors above 32 MiB again in each step."""
    code = STEPS + KINDS[kind] + "print(faults(step))"
    assert int(run(code, SNNIPU_KEEP_FREED_MEMORY="1")[0]) < 50
    if kind in ("spikes", "sparse", "maps"):  # all large tensors are results
        assert int(run(code)[0]) < 50
    if kind == "sequence":
        assert int(run(code, SNNIPU_KEEP_FREED_MEMORY="0")[0]) > 5000


@pytest.mark.slow
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
    held, left = map(int, run(code, SNNIPU_KEEP_FREED_MEMORY="1"))
    assert 239 * 2**20 < held < 260 * 2**20
    assert left < 2**20


@pytest.mark.slow
def test_the_heap_does_not_grow_unasked():
    """Small blocks stay allocated between large blocks that are freed."""
    code = """
import torch
import snnipu
kept = []
for step in range(60):
    large = torch.ones(40, 2**20)
    kept.append([torch.ones(300) for _ in range(200)])
    del large
"""
    assert int(run(code + PEAK)[0]) < 1000


@pytest.mark.slow
def test_no_more_than_the_limit_is_kept():
    """Memory between blocks in use counts, too, where glibc's limit has no effect."""
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


@pytest.fixture
def blocks(monkeypatch):
    new_blocks = memory.Blocks(2**30)
    monkeypatch.setattr(memory, "_blocks", new_blocks)
    return new_blocks


X = torch.rand(40, 16, 512)  # 1.25 MiB


def test_results_use_memory_again(blocks):
    lif = snn.Leaky(beta=0.9)
    spk, mem = lif.sequence(X)
    first = {spk.data_ptr(), mem.data_ptr()}
    del spk, mem
    assert blocks.kept() == 2 * X.nbytes
    spk, mem = lif.sequence(X)
    assert {spk.data_ptr(), mem.data_ptr()} == first
    assert blocks.kept() == 0
    backends.release_memory()
    assert lif.sequence(X)[0].data_ptr() not in first


HOLDERS = {
    "tensor": lambda tensor: tensor,
    "view": lambda tensor: tensor[3:4, 2],
    "detached": lambda tensor: tensor.detach(),
    "storage": lambda tensor: tensor.untyped_storage(),
    "typed storage": lambda tensor: tensor.storage(),
    "array": lambda tensor: tensor.numpy()[5],
    "dlpack": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    "memoryview": lambda tensor: memoryview(tensor.numpy()),
    "graph": lambda tensor: tensor.clone().requires_grad_().mul(tensor),
}


@pytest.mark.slow
@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_in_use_is_left_alone(blocks, holder):
    lif = snn.Leaky(beta=0.9)
    mem = lif.sequence(X)[1]
    address, held = mem.data_ptr(), HOLDERS[holder](mem)
    del mem
    gc.collect()
    for _ in range(3):
        assert address not in [result.data_ptr() for result in lif.sequence(X)]
    del held
    gc.collect()
    if holder not in ("array", "memoryview"):  # PyTorch never resizes a tensor after its .numpy()
        assert address in [result.data_ptr() for result in lif.sequence(X)]


def test_results_are_tensors_like_any_other(blocks):
    lif = snn.Leaky(beta=0.9)
    for _ in range(2):
        spk, mem = lif.sequence(X)
        assert spk._version == mem._version == 0
        assert spk.is_contiguous()
        assert spk.untyped_storage().nbytes() == X.nbytes
        mem.add_(1)
        assert mem._version == 1
        assert torch.equal(pickle.loads(pickle.dumps(spk)), spk)
        file = io.BytesIO()
        torch.save(spk, file)
        assert file.tell() < X.nbytes + 4096
        mem.resize_(100, 16, 512)
        assert mem.untyped_storage().nbytes() == 100 * 16 * 512 * 4
        shared = spk.share_memory_()
        assert shared.is_shared()
        address = shared.data_ptr()
        del spk, mem, shared
    # Another process may still read the shared memory.
    assert address not in [result.data_ptr() for result in lif.sequence(X)]


def test_results_whose_shape_varies(blocks, monkeypatch):
    """Results of a size that the allocator does not reuse: similar shapes share a block."""
    monkeypatch.setattr(memory, "_LARGEST_MMAP_THRESHOLD", X.nbytes - 1)
    first = memory.empty_varying(X, (40, 16, 513))
    assert memory.empty_varying(X, (3, 4)).untyped_storage().nbytes() == 48
    assert first.shape == (40, 16, 513)
    assert first.is_contiguous()
    assert not first._is_view()
    assert X.nbytes <= first.untyped_storage().nbytes() < 1.07 * X.nbytes
    address = first.data_ptr()
    del first
    other = memory.empty_varying(X, (40, 16, 515))
    assert other.data_ptr() == address
    assert memory.empty_varying(X, (40, 16, 515)).data_ptr() != address
    other.fill_(1)  # the whole memory is writable
    assert other.sum() == 40 * 16 * 515


def test_no_more_blocks_than_the_limit_are_kept(monkeypatch):
    blocks = memory.Blocks(4 * X.nbytes)
    monkeypatch.setattr(memory, "_blocks", blocks)
    lif = snn.Leaky(beta=0.9)
    for steps in (40, 39, 38, 37, 36):
        lif.sequence(X[:steps])
        assert blocks.kept() <= blocks.limit
    assert len({lif.spikes(X[:36]).data_ptr() for _ in range(5)}) <= 2


def test_no_more_blocks_of_one_size_are_held_than_can_be_looked_through(monkeypatch, blocks):
    monkeypatch.setattr(memory.Blocks, "MOST", 4)
    results = [blocks.empty(X, X.shape) for _ in range(7)]
    assert len({tensor.data_ptr() for tensor in results}) == 7
    del results
    assert blocks.kept() == 4 * X.nbytes
    # In the order of the last use.
    order = [blocks.empty(X, X.shape) for _ in range(4)]
    addresses = [tensor.data_ptr() for tensor in order]
    del order
    again = [blocks.empty(X, X.shape) for _ in range(4)]
    assert [tensor.data_ptr() for tensor in again] == addresses


def test_without_gradients(blocks):
    lif = snn.Leaky(beta=0.9)
    expected = lif.sequence(X)[1].clone()
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            mem = lif.sequence(X)[1]
            assert torch.equal(mem, expected)
        del mem
    x = X.clone().requires_grad_()
    lif.sequence(x)[0].sum().backward()
    assert x.grad.any()


def test_poisoned_blocks(monkeypatch):
    """With poisoned blocks no old values survive, and the results are complete."""
    blocks = memory.Blocks(2**30, poison=True)
    like = blocks.empty(X, X.shape).fill_(3)
    del like
    assert blocks.empty(X, X.shape).isnan().all()
    monkeypatch.setattr(memory, "_blocks", blocks)
    lif = snn.Leaky(beta=0.9)
    first, second = lif.sequence(X)[1].clone(), lif.sequence(X)[1]
    assert torch.equal(first, second)


FORKS = {
    "another thread holds the lock of the blocks": """
import os, threading, torch
import snnipu as snn
from snnipu.backends import memory
lif, x = snn.Leaky(beta=0.9), torch.rand(40, 16, 512)
torch.set_num_threads(1)
expected = lif.sequence(x)[1].clone()
memory._blocks._lock.acquire()  # as another thread may have it at that moment
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(lif.sequence(x)[1], expected) else 1)
print(os.waitpid(child, 0)[1])
""",
    "the child has one thread, its parent several": """
import os, torch
import snnipu as snn
lif, x = snn.Leaky(beta=0.9), torch.rand(40, 64, 2000)
torch.set_num_threads(2)
expected = lif.sequence(x)[1].clone()
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    os._exit(0 if torch.equal(lif.sequence(x)[1], expected) else 1)
print(os.waitpid(child, 0)[1])
""",
}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("name", FORKS)
def test_a_forked_process_goes_on(name):
    assert run(FORKS[name]) == ["0"]


SOAK = """
import os, random, sys, threading
import torch
import snnipu as snn
from snnipu import backends
from snnipu.backends import memory

THREADS, STEPS = 8, int(sys.argv[1])
torch.set_num_threads(1)
failures = []

class Stop(Exception):
    pass

def stop(grad):
    raise Stop

def work(number):
    own = random.Random(number)
    lif, kept = snn.Leaky(beta=0.9, learn_beta=True), []
    try:
        for step in range(STEPS):
            shape = own.randint(1, 60), own.randint(1, 32), own.choice([10, 100, 513, 1024])
            x = torch.randn(shape, requires_grad=True)
            spk, mem = lif.sequence(x)
            if own.random() < 0.1:
                mem.register_hook(stop)
            try:
                (spk.sum() + mem.mean()).backward()
            except Stop:
                pass
            for tensor in (spk.detach(), mem[-1].detach(), x.grad):
                if tensor is not None and own.random() < 0.3:
                    kept.append((tensor, tensor.double().sum().item()))
            while len(kept) > 5:
                tensor, expected = kept.pop(own.randrange(len(kept)))
                if tensor.double().sum().item() != expected:
                    failures.append((number, step, tuple(tensor.shape)))
    except BaseException as error:
        failures.append((number, repr(error)))

threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(failures), *failures[:3])
@PEAK@
print(backends.kept_memory() // 2**20)
"""


@pytest.mark.slow
def test_soak():
    """Soak: threads, changing shapes, errors in backward, results dropped in any order; blocks are poisoned."""
    steps = os.environ.get("SNNIPU_SOAK_STEPS", "60")
    code = f"import sys; sys.argv.append('{steps}')\n{SOAK.replace('@PEAK@', PEAK)}"
    failures, most, held = run(code, SNNIPU_POISON_MEMORY="1", SNNIPU_KEEP_FREED_MEMORY="256M")
    assert failures == "0"
    # Memory of the threads, reusable blocks and PyTorch itself.
    assert int(most) < 1500
    assert int(held) <= 2 * 256
