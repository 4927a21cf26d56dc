"""Peak memory of one step, above the memory allocated before it; and the available memory."""

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


def sums_of_events(events):
    """Return the largest and the last running sum of the bytes of allocator events in order; frees are negative."""
    sums = list(itertools.accumulate((int(event["args"]["Bytes"]) for event in events), initial=0))
    return max(sums), sums[-1]


# Constants of <malloc.h>.
_M_MMAP_THRESHOLD, _M_MMAP_MAX = -3, -4


@contextlib.contextmanager
def _large_blocks_apart():
    """Allocate large blocks outside glibc's heap within the block, as without snnipu.

    The profiler's small blocks stay allocated. A small block at the place of a freed large one fragments the heap. A
    loop that allocates a sequence's gradient at every step would then need as many sequences of memory as it has steps.
    """
    if not keep_freed_memory():  # large blocks are outside the heap already
        yield
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 2**20)
    libc.mallopt(_M_MMAP_MAX, 2**16)
    try:
        yield
    finally:
        keep_freed_memory()


def extra_bytes(step, device):
    """Return the bytes that ``step`` holds at its peak beyond those allocated before it, and those of its results.

    On a CPU this is the largest sum of live bytes in the profiler's events of PyTorch's allocator, through which all
    libraries allocate. Results count, inputs do not. Other memory, such as a GEMM library's buffers, is not counted. On
    CUDA it is the allocator's own peak. Call ``step`` before, so that lazy initialisation is done.
    """
    if device.type == "cuda":
        gc.collect()  # garbage collected during the step would lower its peak
        synchronise(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = step()
        synchronise(device)
        peak, kept = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
        del result
        return peak - before, kept - before
    release_memory()  # otherwise results would reuse memory that the allocator does not report
    # Above every log level: the profiler would print its start and stop on stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with _large_blocks_apart(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = step()
        release_memory()
    del result
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    events = [event for event in trace if event.get("name") == "[memory]"]
    # Time stamps can repeat; the profiler's index, if this PyTorch writes one, gives the order.
    events.sort(key=lambda event: (event["ts"], event["args"].get("Ev Idx", 0)))
    return sums_of_events(events)


def available_memory(device=None):
    """Return the bytes that this process or a GPU can allocate without swapping; None if unknown."""
    if device is not None and device.type == "cuda":
        torch.cuda.empty_cache()  # memory cached by PyTorch is available, too
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, StopIteration):
        return None
    # A control group may have less memory than the machine.
    return max(0, min(free, memory_of_machine() - resident))


def reports_resident(device):
    """Return True if this system reports the peak memory of a process, and can reset it."""
    return device.type == "cpu" and Path("/proc/self/clear_refs").exists()


def _status(field):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def growth_here(case, contender, settings, threads):
    """Return the growth of VmHWM over VmRSS during one warm step; None if the contender cannot run here."""
    torch.set_num_threads(threads)
    try:
        step = next(row for row in case.contenders(settings) if row.name == contender).build().step
    except Unavailable:  # less memory is available than in the parent process
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
