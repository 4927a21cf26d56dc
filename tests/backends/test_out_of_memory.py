"""If native code runs out of memory, the call raises, and the next call returns the right result."""

import os
import subprocess
import sys

import pytest

from snnipu._native_sources import find_compiler
from snnipu.backends import host

if not sys.platform.startswith("linux"):
    pytest.skip("the allocator that fails is loaded by Linux's LD_PRELOAD", allow_module_level=True)

# The allocator counts the library's allocations, not those of PyTorch, and fails the chosen one.
ALLOCATOR = r"""
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <new>

static std::atomic<long> left{-1};
extern "C" void fail_at(long number) { left = number; }

static void *allocated(size_t bytes, size_t alignment, const void *caller) {
  Dl_info found;
  if (left >= 0 && dladdr(caller, &found) != 0 && std::strstr(found.dli_fname, "libsnnipu-") != nullptr &&
      left.fetch_sub(1) == 0)
    throw std::bad_alloc();
  void *const made = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  return made != nullptr ? made : throw std::bad_alloc();
}

#define HERE __builtin_return_address(0)
void *operator new(size_t bytes) { return allocated(bytes, 16, HERE); }
void *operator new[](size_t bytes) { return allocated(bytes, 16, HERE); }
void *operator new(size_t bytes, std::align_val_t at) { return allocated(bytes, size_t(at), HERE); }
void *operator new[](size_t bytes, std::align_val_t at) { return allocated(bytes, size_t(at), HERE); }
void operator delete(void *data) noexcept { std::free(data); }
void operator delete[](void *data) noexcept { std::free(data); }
void operator delete(void *data, size_t) noexcept { std::free(data); }
void operator delete[](void *data, size_t) noexcept { std::free(data); }
void operator delete(void *data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void *data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void *data, size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void *data, size_t, std::align_val_t) noexcept { std::free(data); }
"""

# Each thread reuses its buffers and enlarges them for a new size: one of the first allocations fails.
STEPS = """
import collections, ctypes, hashlib, os, sys
import torch
import snnipu as snn
from snnipu.backends.host import OutOfMemoryError

torch.manual_seed(0)
torch.set_num_threads(int(sys.argv[1]))
allocator = ctypes.CDLL(os.environ["LD_PRELOAD"]) if "LD_PRELOAD" in os.environ else None

def events(*shape):
    return torch.bernoulli(torch.full(shape, 0.05))

def neurons(size):
    return snn.MultiStep(snn.Leaky(beta=torch.full((size,), 0.9), learn_beta=True)), events(6, 4, size)

def layers(size):
    return snn.SparseNetwork([size, size, 10], beta=0.9), snn.SparseSpikes.from_dense(events(6, 4, size), size)

def maps(size):
    spikes = snn.SparseSpikes.from_dense(events(6, 4, 2 * 20 * (size // 20)), 2 * size)
    return snn.SparseNetwork([(2, 20, size // 20), "8C3-MP2", 10], beta=0.9, threshold=0.1), spikes

def delays(size):
    return snn.DelayLinear(size, 50, max_delay=4), events(6, 4, size)

def recurrences(size):
    return snn.MultiStep(snn.RLeaky(beta=0.9, linear_features=size)), events(6, 4, size)

def step(net, x):
    net.zero_grad()
    out = net(x)
    out = out[0] if isinstance(out, tuple) else out
    out = out.to_dense() if hasattr(out, "to_dense") else out
    out.square().sum().backward()
    return [out.detach(), *(value.grad for value in net.parameters() if value.grad is not None)]

failed, results = collections.Counter(), hashlib.sha256()
for make in (neurons, layers, maps, delays, recurrences):
    for number in range(8):
        net, x = make(200 + 100 * number)
        if allocator is not None:
            allocator.fail_at(number % 4)
            try:
                step(net, x)
            except OutOfMemoryError as error:
                assert "no memory" in str(error), error
                failed[make.__name__] += 1
            allocator.fail_at(-1)
        for value in step(net, x):
            results.update(value.numpy().tobytes())
print(results.hexdigest(), *failed)
"""


@pytest.fixture(scope="module")
def allocator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("allocator")
    (folder / "allocator.cpp").write_text(ALLOCATOR)
    command = [*find_compiler(), "-std=c++17", "-O1", "-fPIC", "-shared", str(folder / "allocator.cpp")]
    subprocess.run([*command, "-ldl", "-o", str(folder / "allocator.so")], check=True)
    return folder / "allocator.so"


@pytest.mark.slow
@pytest.mark.skipif(host.library is None, reason=f"no native library: {host.unavailable_reason}")
@pytest.mark.parametrize("threads", [1, 2])
def test_no_memory_is_an_error_and_no_more(allocator, threads):
    def run(**variables):
        command = [sys.executable, "-c", STEPS, str(threads)]
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    results, *failed = run(LD_PRELOAD=str(allocator))
    assert failed == ["neurons", "layers", "maps", "delays", "recurrences"]
    assert run() == [results]


def test_the_error_is_that_of_python_and_of_pytorch():
    with pytest.raises(host.OutOfMemoryError, match="DefaultCPUAllocator: can't allocate memory") as caught:
        host._check(2, "op")
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, RuntimeError)
