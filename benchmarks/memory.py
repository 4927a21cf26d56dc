"""Peak memory of one step, above what was allocated when it began; and how much there is."""

import contextlib
import ctypes
import gc
import itertools
import json
import os
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.case import Unavailable
from benchmarks.timing import synchronise
from snnipu.backends import release_memory
from snnipu.backends.memory import keep_freed_memory, memory_of_machine


def peak_of_events(events):
    """Return the largest running sum of the bytes of allocator events, in their order; frees are negative."""
    return max(itertools.accumulate((int(event["args"]["Bytes"]) for event in events), initial=0))


# <malloc.h>
_M_MMAP_THRESHOLD, _M_MMAP_MAX = -3, -4


@contextlib.contextmanager
def _large_blocks_apart():
    """Keep large blocks outside glibc's heap meanwhile, as they are unless snnipu keeps freed memory.

    The profiler's small blocks stay. One that lands where a large block was leaves too little for the next: a loop that
    makes a sequence's gradient at every step would take as many sequences of memory as it has steps.
    """
    if not keep_freed_memory():  # it does already, or nobody changed the allocator
        yield
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 2**20)
    libc.mallopt(_M_MMAP_MAX, 2**16)
    try:
        yield
    finally:
        keep_freed_memory()


def peak_extra_bytes(step, device):
    """Return the bytes that ``step`` holds at its peak beyond what is allocated before it.

    On a CPU this is the largest sum of live bytes in the profiler's events of PyTorch's allocator. All libraries
    allocate through it; results count, inputs do not. Not counted are a GEMM library's packing buffers, say. On CUDA
    it is the allocator's own peak. ``step`` should have run before, so that nothing is set up lazily.
    """
    if device.type == "cuda":
        gc.collect()  # garbage that is only collected during the step would lower its peak
        synchronise(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = step()
        synchronise(device)
        peak = torch.cuda.max_memory_allocated(device) - before
        del result
        return int(peak)
    release_memory()  # results in memory of the call before would not be seen by the allocator
    # Above every level it has: it would report its start and stop on stderr, in the middle of the progress.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with _large_blocks_apart(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = step()
    del result
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    events = [event for event in trace if event.get("name") == "[memory]"]
    # Time stamps can repeat; the profiler's own index, where this PyTorch writes one, says which came first.
    events.sort(key=lambda event: (event["ts"], event["args"].get("Ev Idx", 0)))
    return peak_of_events(events)


def available_memory(device=None):
    """Return the bytes this process, or a GPU, can still give without swapping; None where the system does not tell."""
    if device is not None and device.type == "cuda":
        torch.cuda.empty_cache()  # what PyTorch keeps is free, too
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, StopIteration):
        return None
    # A control group can allow less than the machine has.
    return max(0, min(free, memory_of_machine() - resident))


def tells_resident(device):
    """Return True if this system tells the peak of a process, and lets it be reset."""
    return device.type == "cpu" and Path("/proc/self/clear_refs").exists()


def _status(field):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def growth_here(case, contender, settings, threads):
    """Return the growth of VmHWM over VmRSS during one warm step; None where the contender cannot run here."""
    torch.set_num_threads(threads)
    try:
        step = next(found for found in case.contenders(settings) if found.name == contender).build().step
    except Unavailable:  # it was not in the process that asks: there is less memory left
        return None
    step()
    gc.collect()
    release_memory()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    result = step()
    growth = max(0, _status("VmHWM") - before)
    del result
    return growth
