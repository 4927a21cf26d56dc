"""The host backend: the C++ vertices on CPU threads, through the C interface of csrc/host/snnipu.h.

The library is torch-free and is loaded with ctypes. Environment: ``SNNIPU_ISA`` (``baseline``, ``avx2``, ``avx512``,
``neon``) overrides the choice of instruction set; ``SNNIPU_NATIVE_DIR`` the folder it is looked for in
(:mod:`snnipu.backends.libraries`); ``SNNIPU_KEEP_FREED_MEMORY=0`` leaves the process's memory allocator alone.
"""

import ctypes
import os
import re
import struct
from ctypes import c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import lru_cache
from typing import Any, Iterable, List, Optional, Tuple, Type

import torch

from snnipu._native_sources import HERE
from snnipu._version import __version__
from snnipu.backends import memory
from snnipu.backends.libraries import BUILD_HINT, find, header_folder, native_folder

# Sizes are 32-bit in a vertex, as on a tile.
_MAX_SIZE = 2**32 - 1
# Instruction sets of x86-64; each has those before it.
_LEVELS = ("baseline", "avx2", "avx512")
_NUMBERS = {"int64_t": c_int64, "double": c_double}
# What PyTorch's allocator says, by which training tools know that a smaller batch is worth a try.
_AS_PYTORCH_SAYS = "DefaultCPUAllocator: can't allocate memory"


class NativeLibraryError(RuntimeError):
    """The native library is missing, of another version, or cannot be loaded."""


class OutOfMemoryError(MemoryError, RuntimeError):
    """A kernel found no memory: an error of Python's kind, and of the kind that PyTorch raises on a CPU."""


def available_isas() -> List[str]:
    """Instruction sets a library was built for."""
    found = (path.stem.split("-", 1)[1] for path in native_folder().glob(HERE.library("*")))
    # The IPU model's library lies beside them.
    return sorted(isa for isa in found if isa != "ipu-model")


def _open(isa: str) -> ctypes.CDLL:
    path = native_folder() / HERE.library(isa)
    try:
        library = ctypes.CDLL(str(path))
        for name in ("version", "isa", "best_isa", "thread_runtime"):
            getattr(library, f"snnipu_{name}").restype = c_char_p
    except (OSError, AttributeError) as error:
        raise NativeLibraryError(f"{path} cannot be loaded: {error}") from None
    found = library.snnipu_version().decode()
    if found != __version__:
        raise NativeLibraryError(f"{path} is of version {found}, the package of {__version__}: {BUILD_HINT}")
    return library


def _load() -> ctypes.CDLL:
    problem = find().problem
    if problem is not None:
        raise NativeLibraryError(problem)
    isas = available_isas()
    if not isas:
        raise NativeLibraryError(f"{native_folder()} has no library for an instruction set: {BUILD_HINT}")
    wanted = os.environ.get("SNNIPU_ISA")
    if wanted is None:
        # Any library of the folder can be asked: the question itself needs no instruction set.
        best = _open("baseline" if "baseline" in isas else isas[0]).snnipu_best_isa().decode()
        levels = _LEVELS if best in _LEVELS else (best,)
        runnable = [isa for isa in levels[: levels.index(best) + 1] if isa in isas]
        if not runnable:
            raise NativeLibraryError(f"{native_folder()} has libraries for {isas}, the processor {best}: {BUILD_HINT}")
        wanted = runnable[-1]
    elif wanted not in isas:
        raise NativeLibraryError(f"SNNIPU_ISA must be one of {isas}, got {wanted!r}")
    library = _open(wanted)
    library.snnipu_set_workers.argtypes = [c_uint32, c_uint32]
    library.snnipu_set_workers.restype = None
    library.snnipu_fingerprint.argtypes = [c_void_p, c_int64, c_int32]
    library.snnipu_fingerprint.restype = c_uint64
    return library


library: Optional[ctypes.CDLL]
unavailable_reason: Optional[str]
try:
    library = _load()
    unavailable_reason = None
    memory.keep_freed_memory()
    memory.keep_results()
except NativeLibraryError as error:
    library = None
    unavailable_reason = str(error)


@lru_cache(maxsize=256)
def word(number: float) -> int:
    """Return a double's bits as a word of a call."""
    (bits,) = struct.unpack("q", struct.pack("d", number))
    return int(bits)


def struct_of(name: str, header: str) -> Type[ctypes.Structure]:
    """Return the struct ``snnipu_NAME_call`` of ``csrc/host/HEADER``, all of whose fields have 64 bits."""
    text = re.sub(r"/\*.*?\*/", "", (header_folder() / "host" / header).read_text(encoding="utf-8"), flags=re.DOTALL)
    lengths = {constant: int(value) for constant, value in re.findall(r"(\w+) = (\d+)", text)}
    (body,) = re.findall(rf"struct snnipu_{name}_call {{(.*?);\s*}}", text, re.DOTALL)
    fields: List[Tuple[str, Any]] = []
    for declaration in body.split(";"):
        # Other types are pointers.
        kind: Any = c_void_p if "*" in declaration else _NUMBERS.get(declaration.split()[0], c_void_p)
        if "void (*" in declaration:
            kind = ctypes.CFUNCTYPE(None, c_void_p)
        for field, length in re.findall(r"(\w+)(?:\[(\w+)\])?(?=,|$|\)\()", declaration):
            fields.append((field, kind * lengths[length] if length else kind))
    return type(f"snnipu_{name}_call", (ctypes.Structure,), {"_fields_": fields})


def declare(library: Any, name: str, call: Type[ctypes.Structure], functions: Iterable[str]) -> None:
    """Let ``library``'s functions take one struct, ``snnipu_NAME_call``, once it is known to be ``call``."""
    size = getattr(library, f"snnipu_{name}_call_size")
    size.restype = c_int64
    if size() != ctypes.sizeof(call):
        raise NativeLibraryError(f"snnipu_{name}_call has another size in the library: {BUILD_HINT}")
    for function in functions:
        getattr(library, f"snnipu_{function}").argtypes = [c_void_p]


def isa() -> Optional[str]:
    """Instruction set in use, or None where the library is missing."""
    return library.snnipu_isa().decode() if library is not None else None


def thread_runtime() -> Optional[str]:
    """What runs the threads: ``openmp`` (shared with PyTorch) or ``std::thread``; None where the library is missing."""
    return library.snnipu_thread_runtime().decode() if library is not None else None


def _check(status: int, name: str) -> None:
    if status == 2:
        raise OutOfMemoryError(f"{name}: no memory for intermediate values ({_AS_PYTORCH_SAYS})")
    if status != 0:
        raise RuntimeError(f"{name} refused its arguments (status {status})")


def _check_sizes(steps: int, elements: int) -> None:
    if max(steps, elements) > _MAX_SIZE:
        raise ValueError(f"x must have at most {_MAX_SIZE} steps and elements a step, got {steps} and {elements}")


def one_or_each(name: str, parameter: torch.Tensor, count: int) -> int:
    """How many elements a parameter of ``count`` neurons has; raises for another number than one or theirs."""
    if parameter.numel() != 1 and parameter.shape != (count,):
        raise ValueError(f"{name} must have one element or shape [{count}], got shape {tuple(parameter.shape)}")
    return parameter.numel()


def _upstream(grad: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], bool]:
    """An upstream gradient as the kernel takes it; one that is the same at all steps, as of a sum over time, once."""
    if grad is None:
        return None, False
    if grad.shape[0] > 1 and grad.stride(0) == 0:
        return grad[0].contiguous(), True
    return grad.contiguous(), False
