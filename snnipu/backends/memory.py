"""The process's memory allocator: freed memory is kept for the next training step.

What a training step frees, the next one needs again. glibc hands large blocks back to the operating system, which
clears their pages again at the next step's first touch: at sequences of tens of megabytes these page faults cost more
than the kernels that fill them. Here glibc is told to take all blocks from its heap and to keep what is freed, up to a
limit: PyTorch's tensors profit as the operators' results do. Environment: ``SNNIPU_KEEP_FREED_MEMORY``.
"""

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import Optional

# <malloc.h>
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_TOP_PAD = 16 * 2**20
_LARGEST_INT = 2**31 - 1
_VARIABLE = "SNNIPU_KEEP_FREED_MEMORY"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
# Of the machine's memory. The heap is looked at again when so much of that has been allocated.
_SHARE, _CHECKED_SHARE = 1 / 4, 1 / 8


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]
    ]


class _Heap:
    """glibc's heap, from :func:`keep_freed_memory` on."""

    def __init__(self, libc: ctypes.CDLL, limit: int) -> None:
        self.limit = limit
        self._libc = libc
        self._mallinfo2 = getattr(libc, "mallinfo2", None)  # glibc 2.33
        if self._mallinfo2 is not None:
            self._mallinfo2.restype = _Mallinfo2
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
        self._unchecked = 0

    def kept(self) -> Optional[int]:
        if self._mallinfo2 is None:
            return None
        found = self._mallinfo2()
        resident = _resident_heap()
        # What was given back is still free, but has no pages.
        return min(found.fordblks, max(resident - found.uordblks, 0))

    def trim(self) -> None:
        self._libc.malloc_trim(0)

    def used(self, nbytes: int) -> None:
        self._unchecked += nbytes
        if self._unchecked < self.limit * _CHECKED_SHARE or self._mallinfo2 is None:
            return
        self._unchecked = 0
        found = self._mallinfo2()
        # What is kept cannot be more than either; to tell it exactly takes milliseconds.
        if min(found.fordblks, _resident() - found.uordblks) > self.limit and (self.kept() or 0) > self.limit:
            self.trim()


def _resident() -> int:
    """Bytes of the process that have pages."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _resident_heap() -> int:
    """Bytes of the heap that have pages."""
    inside = False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if inside and line.startswith("Rss:"):
                return int(line.split()[1]) * 1024
            inside = inside or line.rstrip().endswith("[heap]")
    return 0


_heap: Optional[_Heap] = None


def memory_of_machine() -> int:
    """Bytes this process may use: the machine's memory, or the limit of its control group."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # "max"
            continue
    return total


def limit_asked_for() -> int:
    """Bytes to keep at most, as ``SNNIPU_KEEP_FREED_MEMORY`` says: 0, a size, or by default a quarter of the memory.

    Raises:
        ValueError: the variable holds something else.
    """
    text = os.environ.get(_VARIABLE, "1")
    if text == "1":
        return int(memory_of_machine() * _SHARE)
    size = re.fullmatch(r"(\d+)([KMG]?)", text)
    if size is None:
        raise ValueError(f"{_VARIABLE} must be 0, 1, or a size such as 512M or 4G, got {text!r}")
    return int(size[1]) * _UNITS[size[2]]


def _uses_glibc() -> bool:
    """Whether ``malloc`` is glibc's, and not that of a library loaded before it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc, process = ctypes.CDLL("libc.so.6"), ctypes.CDLL(None)
        same = ctypes.cast(libc.malloc, ctypes.c_void_p).value == ctypes.cast(process.malloc, ctypes.c_void_p).value
        return same and hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt")
    except (OSError, AttributeError):
        return False


def keep_freed_memory() -> bool:
    """Have glibc keep freed memory; returns whether it does from now on.

    Left alone with ``SNNIPU_KEEP_FREED_MEMORY=0``, where the user has set glibc's own variables, and with other
    allocators and C libraries.
    """
    global _heap
    configured = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    limit = limit_asked_for()
    if configured or not limit or not _uses_glibc():
        return False
    libc = ctypes.CDLL(None)
    settings = {
        _M_MMAP_MAX: 0,  # large blocks come from the heap, too
        _M_TOP_PAD: min(_TOP_PAD, limit),
        _M_TRIM_THRESHOLD: limit if limit <= _LARGEST_INT else -1,  # -1 is the largest there is
    }
    if not all([libc.mallopt(name, value) for name, value in settings.items()]):
        return False
    _heap = _Heap(libc, limit)
    return True


def used(nbytes: int) -> None:
    """Operators tell what their results take: from time to time the heap is held to its limit."""
    if _heap is not None:
        _heap.used(nbytes)


def kept_memory() -> Optional[int]:
    """Bytes of freed memory that the process holds for later use; None where the allocator is left alone.

    All freed memory of glibc's heap counts, PyTorch's too; None also before glibc 2.33, which does not tell.
    """
    return None if _heap is None else _heap.kept()


def release_memory() -> None:
    """Give the freed memory back to the operating system; the next training step takes it anew."""
    if _heap is not None:
        _heap.trim()
