"""Memory that is there already: freed memory is kept for the next training step.

What a training step frees, the next one needs again. glibc hands large blocks back to the operating system, which
clears their pages again at the next step's first touch: at sequences of tens of megabytes these page faults cost more
than the kernels that fill them. So the operators' results lie in blocks that are used again once no tensor uses them
any more. glibc is told to keep blocks of up to 32 MiB and, only where the environment asks for it, to take all blocks
from its heap and to keep what is freed, for PyTorch's own tensors. What is kept has a limit. Environment:
``SNNIPU_KEEP_FREED_MEMORY``, ``SNNIPU_POISON_MEMORY``.
"""

import ctypes
import math
import os
import re
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import torch

# <malloc.h>
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
# What glibc itself works up to, and what it keeps then.
_LARGEST_MMAP_THRESHOLD, _KEPT_BYTES = 32 * 2**20, 2**30
_TOP_PAD = 16 * 2**20
_LARGEST_INT = 2**31 - 1
_VARIABLE = "SNNIPU_KEEP_FREED_MEMORY"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
# Of the machine's memory. The heap is looked at again when so much of that has been allocated.
_SHARE, _CHECKED_SHARE = 1 / 4, 1 / 8


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
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


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of Windows."""

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("memory", "free", "page_file", "free_page_file", "space", "free_space")),
        ("extended", ctypes.c_uint64),
    ]


def memory_of_machine() -> int:
    """Bytes this process may use: the machine's memory, or the limit of its control group."""
    if sys.platform == "win32":
        status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status.memory)
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
    size = bytes_of(text)
    if size is None:
        raise ValueError(f"{_VARIABLE} must be 0, 1, or a size such as 512M or 4G, got {text!r}")
    return size


def bytes_of(text: str) -> Optional[int]:
    """The size that ``512M`` or ``4G`` says; None for what is none."""
    size = re.fullmatch(r"(\d+)([KMG]?)", text)
    return None if size is None else int(size[1]) * _UNITS[size[2]]


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
    settings = {_M_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD, _M_TRIM_THRESHOLD: min(limit, _KEPT_BYTES)}
    if _VARIABLE in os.environ:
        # Not unasked: where small blocks that stay come between large ones that go, such a heap grows and grows.
        settings = {
            _M_MMAP_MAX: 0,  # large blocks come from the heap, too
            _M_TOP_PAD: min(_TOP_PAD, limit),
            _M_TRIM_THRESHOLD: limit if limit <= _LARGEST_INT else -1,  # -1 is the largest there is
        }
    if not all(libc.mallopt(name, value) for name, value in settings.items()):
        return False
    _heap = _Heap(libc, limit)
    return True


class Blocks:
    """PyTorch's own storages, of a megabyte and more, each for all results of its size in turn.

    A storage is free when nobody but this class refers to it. It stays PyTorch's: it can be resized, pickled and shared
    with other processes, and is then left to its user.
    """

    SMALLEST = 2**20
    # Blocks of one size: recordings of a long run are left to their user, and not looked through each time.
    MOST = 256

    def __init__(self, limit: int, poison: bool = False) -> None:
        self.limit, self.poison = limit, poison
        self._lock = threading.Lock()
        self._references = _references_of_a_free_block()
        # Size in bytes -> storages; the size that was used last stands last.
        self._blocks: OrderedDict[int, List[torch.UntypedStorage]] = OrderedDict()
        self._bytes = 0

    def empty(self, like: torch.Tensor, shape: Sequence[int], varies: bool = False) -> torch.Tensor:
        """``like.new_empty(shape)``; varies: in a storage of up to a sixteenth more, which other shapes find again."""
        nbytes = math.prod(shape) * like.element_size()
        if nbytes < self.SMALLEST:
            return like.new_empty(shape)
        if varies:
            step = 1 << max(0, nbytes.bit_length() - 5)
            nbytes = -(-nbytes // step) * step
        with self._lock:
            blocks = self._blocks.setdefault(nbytes, [])
            self._blocks.move_to_end(nbytes)
            place = _free_place(blocks, self._references)
            while place is not None:
                # The next one is looked for behind it: a loop's results come in the order of the last time.
                blocks[:] = [*blocks[place + 1 :], *blocks[: place + 1]]
                block = blocks[-1]
                if _is_as_made(block, nbytes):
                    if self.poison:
                        block.fill_(255)  # type: ignore[attr-defined]
                    return _over(block, like, shape)
                del blocks[-1]
                self._bytes -= nbytes
                place = _free_place(blocks, self._references)
            block = like.new_empty(nbytes // like.element_size()).untyped_storage()
            blocks.append(block)
            self._bytes += nbytes
            if len(blocks) > self.MOST:
                del blocks[0]
                self._bytes -= nbytes
            if self._bytes > self.limit:
                self._drop(self._bytes - self.limit)
        return _over(block, like, shape)

    def _drop(self, wanted: int) -> None:
        """Leave ``wanted`` bytes of blocks to their users, or to the allocator where there are none; old ones first."""
        for nbytes in list(self._blocks):
            blocks = self._blocks[nbytes]
            while blocks and wanted > 0:
                blocks.pop(0)
                self._bytes -= nbytes
                wanted -= nbytes
            if not blocks:
                del self._blocks[nbytes]
            if wanted <= 0:
                return

    def kept(self) -> int:
        """Bytes of free blocks."""
        with self._lock:
            free = 0
            for nbytes, blocks in self._blocks.items():
                for place in range(len(blocks)):
                    # The slice is one more reference.
                    free += nbytes * (_free_place(blocks[place : place + 1], self._references + 1) is not None)
            return free

    def release(self) -> None:
        with self._lock:
            self._blocks.clear()
            self._bytes = 0

    def after_fork(self) -> None:
        """In the child: the lock may have been held by a thread of the parent's."""
        self._lock = threading.Lock()


def _over(block: torch.UntypedStorage, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    # .data: its count of versions starts anew.
    return torch.empty(0, dtype=like.dtype).set_(block, 0, tuple(shape)).data  # type: ignore[call-overload]


_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)  # PyTorch 2.1


def _free_place(blocks: List[torch.UntypedStorage], references: int) -> Optional[int]:
    """Place of the first block that no tensor has, and nobody as an object; those have so many ``references``."""
    for place in range(len(blocks)):
        if _use_count(blocks[place]._cdata) == 1 and sys.getrefcount(blocks[place]) <= references:
            return place
    return None


def _references_of_a_free_block() -> int:
    """As ``_free_place`` counts them, which depends on Python's version."""
    block = [torch.UntypedStorage(1)]
    return next(count for count in range(1, 10) if _free_place(block, count) is not None)


def _is_as_made(block: torch.UntypedStorage, nbytes: int) -> bool:
    """Whether no user changed what a later one could notice."""
    return block.nbytes() == nbytes and block.resizable() and not block.is_shared()


_blocks: Optional[Blocks] = None


def keep_results() -> None:
    """Have :func:`empty` use memory again; not with ``SNNIPU_KEEP_FREED_MEMORY=0``, and not before PyTorch 2.1."""
    global _blocks
    limit = limit_asked_for()
    if limit and _use_count is not None:
        _blocks = Blocks(limit, poison=os.environ.get("SNNIPU_POISON_MEMORY") == "1")
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_blocks.after_fork)


def empty(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """``like.new_empty(shape)`` for an operator's result on the CPU, in memory that is there already if any is."""
    if _blocks is None or math.prod(shape) * like.element_size() < Blocks.SMALLEST:
        return like.new_empty(shape)
    return _blocks.empty(like, shape)


def varying(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The same for results whose shape differs from call to call. Those up to a size glibc keeps itself."""
    if _blocks is None or math.prod(shape) * like.element_size() <= _LARGEST_MMAP_THRESHOLD:
        return like.new_empty(shape)
    return _blocks.empty(like, shape, varies=True)


def used(*made: torch.Tensor) -> None:
    """Operators tell what their results are: from time to time the heap is held to its limit."""
    if _heap is not None:
        _heap.used(sum([one.numel() * one.element_size() for one in made]))


def what_is_kept() -> Dict[str, bool]:
    """Which freed memory is kept for later use: the operators' results, and blocks of glibc's heap."""
    return {"results": _blocks is not None, "heap": _heap is not None}


def kept_memory() -> Optional[int]:
    """Bytes of freed memory that the process holds for later use; None where nobody can tell.

    These are the blocks of results that nobody uses any more, and all freed memory of glibc's heap, PyTorch's tensors'
    too. glibc before 2.33 does not tell; without glibc the blocks alone count.
    """
    heap = 0 if _heap is None else _heap.kept()
    return None if heap is None else heap + (0 if _blocks is None else _blocks.kept())


def release_memory() -> None:
    """Give the freed memory back to the operating system; the next training step takes it anew."""
    if _blocks is not None:
        _blocks.release()
    if _heap is not None:
        _heap.trim()
