"""Keep freed memory for the next training step.

Each training step needs the memory that the previous one has freed. glibc returns large blocks to the operating system,
which clears each page at its next use. For sequences of tens of megabytes these page faults take longer than the
kernels. Therefore:

* Results of operators are allocated in blocks, which are reused when no tensor refers to them.
* glibc is configured to keep freed blocks of up to 32 MiB.
* If ``SNNIPU_KEEP_FREED_MEMORY`` is set, glibc takes all blocks from its heap and keeps them when they are freed. This
  helps PyTorch's tensors, too.

The kept memory has a limit. Environment: ``SNNIPU_KEEP_FREED_MEMORY`` is 0, 1 or the limit, such as 4G.
``SNNIPU_POISON_MEMORY=1`` fills reused blocks with NaN, for tests.
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

# Parameters of mallopt, from <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
# The largest threshold that glibc reaches by adapting, and the bytes that it may keep then.
_LARGEST_MMAP_THRESHOLD, _KEPT_BYTES = 32 * 2**20, 2**30
_TOP_PAD = 16 * 2**20
_LARGEST_INT = 2**31 - 1
_VARIABLE = "SNNIPU_KEEP_FREED_MEMORY"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
# The default limit, as a share of the machine's memory; and the share of the limit to allocate between checks of it.
_SHARE, _CHECKED_SHARE = 1 / 4, 1 / 8


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    ]


class _Heap:
    """The heap of glibc, once :func:`keep_freed_memory` has configured it to keep freed memory."""

    def __init__(self, libc: ctypes.CDLL, limit: int) -> None:
        self.limit = limit
        self._libc = libc
        self._mallinfo2 = getattr(libc, "mallinfo2", None)  # exists from glibc 2.33 on
        if self._mallinfo2 is not None:
            self._mallinfo2.restype = _Mallinfo2
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
        self._unchecked = 0

    def kept(self) -> Optional[int]:
        """Return the bytes of freed memory that have pages; None before glibc 2.33."""
        if self._mallinfo2 is None:
            return None
        info = self._mallinfo2()
        resident = _resident_heap()
        # fordblks also counts free memory whose pages were returned to the operating system.
        return min(info.fordblks, max(resident - info.uordblks, 0))

    def trim(self) -> None:
        self._libc.malloc_trim(0)

    def note_allocation(self, nbytes: int) -> None:
        """Count an allocation; trim the heap if it exceeds the limit, which is checked from time to time."""
        self._unchecked += nbytes
        if self._unchecked < self.limit * _CHECKED_SHARE or self._mallinfo2 is None:
            return
        self._unchecked = 0
        info = self._mallinfo2()
        # The minimum is an upper bound of kept(), which takes milliseconds.
        if min(info.fordblks, _resident() - info.uordblks) > self.limit and (self.kept() or 0) > self.limit:
            self.trim()


def _resident() -> int:
    """Return the bytes of the process that have pages."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _resident_heap() -> int:
    """Return the bytes of the heap that have pages."""
    inside = False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if inside and line.startswith("Rss:"):
                return int(line.split()[1]) * 1024
            inside = inside or line.rstrip().endswith("[heap]")
    return 0


_heap: Optional[_Heap] = None


class _MemoryStatus(ctypes.Structure):
    """The structure MEMORYSTATUSEX of Windows."""

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("memory", "free", "page_file", "free_page_file", "space", "free_space")),
        ("extended", ctypes.c_uint64),
    ]


def memory_of_machine() -> int:
    """Return the bytes that this process may use: the machine's memory, or the limit of its control group."""
    if sys.platform == "win32":
        status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status.memory)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # the file is missing, or contains "max"
            continue
    return total


def configured_limit() -> int:
    """Return the limit of ``SNNIPU_KEEP_FREED_MEMORY`` in bytes: 0, a size, or by default a quarter of the memory.

    Raises:
        ValueError: the variable is neither 0, nor 1, nor a size.
    """
    text = os.environ.get(_VARIABLE, "1")
    if text == "1":
        return int(memory_of_machine() * _SHARE)
    size = parse_size(text)
    if size is None:
        raise ValueError(f"{_VARIABLE} must be 0, 1, or a size such as 512M or 4G, got {text!r}")
    return size


def parse_size(text: str) -> Optional[int]:
    """Return the bytes of a size such as ``512M`` or ``4G``; None if ``text`` is not a size."""
    size = re.fullmatch(r"(\d+)([KMG]?)", text)
    return None if size is None else int(size[1]) * _UNITS[size[2]]


def _uses_glibc() -> bool:
    """Return True if ``malloc`` is that of glibc, and not of a library that replaces it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc, process = ctypes.CDLL("libc.so.6"), ctypes.CDLL(None)
        same = ctypes.cast(libc.malloc, ctypes.c_void_p).value == ctypes.cast(process.malloc, ctypes.c_void_p).value
        return same and hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt")
    except (OSError, AttributeError):
        return False


def keep_freed_memory() -> bool:
    """Configure glibc to keep freed memory, and return True if that succeeded.

    Nothing is changed with ``SNNIPU_KEEP_FREED_MEMORY=0``, if the user has set glibc's variables, and with other
    allocators or C libraries.
    """
    global _heap
    configured = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    limit = configured_limit()
    if configured or not limit or not _uses_glibc():
        return False
    libc = ctypes.CDLL(None)
    settings = {_M_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD, _M_TRIM_THRESHOLD: min(limit, _KEPT_BYTES)}
    if _VARIABLE in os.environ:
        # This is not the default, because fragmentation by small blocks that stay can let the heap grow without limit.
        settings = {
            _M_MMAP_MAX: 0,  # allocate large blocks on the heap, too
            _M_TOP_PAD: min(_TOP_PAD, limit),
            _M_TRIM_THRESHOLD: limit if limit <= _LARGEST_INT else -1,  # -1 is the largest possible value
        }
    if not all(libc.mallopt(name, value) for name, value in settings.items()):
        return False
    _heap = _Heap(libc, limit)
    return True


class Blocks:
    """A cache of PyTorch storages of a megabyte and more, which results of the same size reuse.

    A storage is free when only this cache refers to it. Users may resize it or share it with other processes; the cache
    then drops it.
    """

    SMALLEST = 2**20
    # Most blocks of one size. A long run may keep many results alive, and each search goes through all blocks.
    MOST = 256

    def __init__(self, limit: int, poison: bool = False) -> None:
        self.limit, self.poison = limit, poison
        self._lock = threading.Lock()
        self._references = _references_of_a_free_block()
        # Size in bytes -> storages, ordered by the last use of the size.
        self._blocks: OrderedDict[int, List[torch.UntypedStorage]] = OrderedDict()
        self._bytes = 0

    def empty(self, like: torch.Tensor, shape: Sequence[int], varies: bool = False) -> torch.Tensor:
        """Return ``like.new_empty(shape)``, in a free block if there is one.

        With ``varies``, the size of the block is rounded up by at most a sixteenth, so that other shapes fit too.
        """
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
                # Start the next search after this block: a loop frees its results in the order of allocation.
                blocks[:] = [*blocks[place + 1 :], *blocks[: place + 1]]
                block = blocks[-1]
                if _is_unchanged(block, nbytes):
                    if self.poison:
                        block.fill_(255)  # type: ignore[attr-defined]
                    return _tensor_in(block, like, shape)
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
        return _tensor_in(block, like, shape)

    def _drop(self, excess: int) -> None:
        """Remove blocks of ``excess`` bytes or more from the cache, beginning with the least recently used sizes."""
        for nbytes in list(self._blocks):
            blocks = self._blocks[nbytes]
            while blocks and excess > 0:
                blocks.pop(0)
                self._bytes -= nbytes
                excess -= nbytes
            if not blocks:
                del self._blocks[nbytes]
            if excess <= 0:
                return

    def kept(self) -> int:
        """Return the bytes of free blocks."""
        with self._lock:
            free = 0
            for nbytes, blocks in self._blocks.items():
                for place in range(len(blocks)):
                    # The slice adds one reference.
                    free += nbytes * (_free_place(blocks[place : place + 1], self._references + 1) is not None)
            return free

    def release(self) -> None:
        with self._lock:
            self._blocks.clear()
            self._bytes = 0

    def after_fork(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may have held it."""
        self._lock = threading.Lock()


def _tensor_in(block: torch.UntypedStorage, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    # .data gives the tensor a new version counter, which starts at 0.
    return torch.empty(0, dtype=like.dtype).set_(block, 0, tuple(shape)).data  # type: ignore[call-overload]


_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)  # exists from PyTorch 2.1 on


def _free_place(blocks: List[torch.UntypedStorage], references: int) -> Optional[int]:
    """Return the index of the first free block, or None.

    No tensor uses a free block, and its Python object has at most ``references`` references.
    """
    for place in range(len(blocks)):
        if _use_count(blocks[place]._cdata) == 1 and sys.getrefcount(blocks[place]) <= references:
            return place
    return None


def _references_of_a_free_block() -> int:
    """Return the number of references of a free block in ``_free_place``; it depends on the version of Python."""
    block = [torch.UntypedStorage(1)]
    return next(count for count in range(1, 10) if _free_place(block, count) is not None)


def _is_unchanged(block: torch.UntypedStorage, nbytes: int) -> bool:
    """Return True if no user has resized or shared the block."""
    return block.nbytes() == nbytes and block.resizable() and not block.is_shared()


_blocks: Optional[Blocks] = None


def keep_results() -> None:
    """Let :func:`empty` reuse memory; not with ``SNNIPU_KEEP_FREED_MEMORY=0``, and not before PyTorch 2.1."""
    global _blocks
    limit = configured_limit()
    if limit and _use_count is not None:
        _blocks = Blocks(limit, poison=os.environ.get("SNNIPU_POISON_MEMORY") == "1")
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_blocks.after_fork)


def empty(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return ``like.new_empty(shape)`` for an operator's result on the CPU, in reused memory if possible."""
    if _blocks is None or math.prod(shape) * like.element_size() < Blocks.SMALLEST:
        return like.new_empty(shape)
    return _blocks.empty(like, shape)


def empty_varying(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return :func:`empty` for results whose shape differs from call to call.

    Small results are left to glibc, which keeps their memory.
    """
    if _blocks is None or math.prod(shape) * like.element_size() <= _LARGEST_MMAP_THRESHOLD:
        return like.new_empty(shape)
    return _blocks.empty(like, shape, varies=True)


def note_results(*results: torch.Tensor) -> None:
    """Count the bytes of an operator's results. From time to time this trims the heap to its limit."""
    if _heap is not None:
        _heap.note_allocation(sum([result.numel() * result.element_size() for result in results]))


def enabled_caches() -> Dict[str, bool]:
    """Return which freed memory is kept: ``results`` of operators, and blocks of glibc's ``heap``."""
    return {"results": _blocks is not None, "heap": _heap is not None}


def kept_memory() -> Optional[int]:
    """Return the bytes of freed memory that the process keeps for later use.

    They are the free blocks of results, and all freed memory of glibc's heap, including that of PyTorch's tensors. If
    the C library is not glibc, only the blocks count.

    Returns:
        The bytes; None with a glibc before 2.33, which cannot report them.
    """
    heap = 0 if _heap is None else _heap.kept()
    return None if heap is None else heap + (0 if _blocks is None else _blocks.kept())


def release_memory() -> None:
    """Return the freed memory to the operating system. The next training step has to allocate it again."""
    if _blocks is not None:
        _blocks.release()
    if _heap is not None:
        _heap.trim()
