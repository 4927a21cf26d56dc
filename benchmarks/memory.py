"""Peak memory of one step, above what was allocated when it began; and how much there is."""

import contextlib
import ctypes
import gc
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

import torch
from torch.profiler import ProfilerActivity, profile

from snnipu.backends import release_memory
from snnipu.backends.memory import keep_freed_memory, memory_of_machine
from benchmarks.timing import synchronise

METHODS = {
    "cpu": "torch.profiler memory events: largest sum of live bytes of torch's CPU allocator during one warm step",
    "cuda": "torch.cuda.max_memory_allocated during one warm step, less what was allocated before it",
}


def peak_of_events(events: Iterable[Mapping[str, Any]]) -> int:
    """Largest running sum of the bytes of allocator events (frees are negative), in the order they happened."""
    live = peak = 0
    for event in events:
        live += int(event["args"]["Bytes"])
        peak = max(peak, live)
    return peak


# <malloc.h>
_M_MMAP_THRESHOLD, _M_MMAP_MAX = -3, -4


@contextlib.contextmanager
def _large_blocks_apart() -> Iterator[None]:
    """Large blocks lie outside glibc's heap meanwhile, as they do unless snnipu keeps freed memory.

    The profiler's small blocks stay. One that lands where a large one was leaves too little for the next: a loop that
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


def peak_extra_bytes(step: Callable[[], Any], device: torch.device) -> int:
    """Bytes that ``step`` holds at its peak beyond what is allocated before it.

    Counted: every tensor of every library, whether Python, compiled code or a native op asked for it, since all of them
    allocate through torch; results count, inputs do not. Not counted: what bypasses torch's allocator, such
    as a GEMM library's packing buffers. ``step`` should have run before, so that nothing is set up lazily.
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
    # Above every level it has: it would report its start and stop on stderr, in the middle of the progress bar.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with _large_blocks_apart(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = step()
    del result
    handle, path = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)["traceEvents"]
    finally:
        os.unlink(path)
    events = [event for event in trace if event.get("name") == "[memory]"]
    # Time stamps can repeat; the profiler's own index, where this torch writes one, says which came first.
    events.sort(key=lambda event: (event["ts"], event["args"].get("Ev Idx", 0)))
    return peak_of_events(events)


def available_memory(device: Optional[torch.device] = None) -> Optional[int]:
    """Bytes this process can still get without swapping; None where the system does not tell (but Linux).

    ``device``: of its memory, where that is a GPU.
    """
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
