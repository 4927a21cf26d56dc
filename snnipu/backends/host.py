"""Load the native library, which runs the C++ vertices on CPU threads, with ctypes (C interface: csrc/host/snnipu.h).

The library does not link PyTorch. Environment:

* ``SNNIPU_ISA``: the instruction set (``baseline``, ``avx2``, ``avx512`` or ``neon``) in place of the best one.
* ``SNNIPU_NATIVE_DIR``: the folder of the library; see :mod:`snnipu.backends.libraries`.
* ``SNNIPU_KEEP_FREED_MEMORY=0``: do not change the memory allocator of the process.
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

# Sizes are 32-bit in a vertex.
_MAX_SIZE = 2**32 - 1
# Instruction sets of x86-64; each contains the ones before.
_LEVELS = ("baseline", "avx2", "avx512")
_NUMBERS = {"int64_t": c_int64, "double": c_double}
# The message of PyTorch's allocator. Training tools search for it, and then try a smaller batch.
_PYTORCH_MESSAGE = "DefaultCPUAllocator: can't allocate memory"


class NativeLibraryError(RuntimeError):
    """The native library is missing, of another version, or cannot be loaded."""


class OutOfMemoryError(MemoryError, RuntimeError):
    """A kernel could not allocate memory. It is a MemoryError, and a RuntimeError as PyTorch raises."""


def available_isas() -> List[str]:
    """Return the instruction sets for which a library was built."""
    names = (path.stem.split("-", 1)[1] for path in native_folder().glob(HERE.library("*")))
    # The IPU model's library is in the same folder.
    return sorted(isa for isa in names if isa != "ipu-model")


def _open(isa: str) -> ctypes.CDLL:
    path = native_folder() / HERE.library(isa)
    try:
        library = ctypes.CDLL(str(path))
        for name in ("version", "isa", "best_isa", "thread_runtime"):
            getattr(library, f"snnipu_{name}").restype = c_char_p
    except (OSError, AttributeError) as error:
        raise NativeLibraryError(f"{path} cannot be loaded: {error}") from None
    version = library.snnipu_version().decode()
    if version != __version__:
        raise NativeLibraryError(f"{path} is of version {version}, the package of {__version__}: {BUILD_HINT}")
    return library


def _load() -> ctypes.CDLL:
    problem = find().problem
    if problem is not None:
        raise NativeLibraryError(problem)
    isas = available_isas()
    if not isas:
        raise NativeLibraryError(f"{native_folder()} has no library for an instruction set: {BUILD_HINT}")
    chosen = os.environ.get("SNNIPU_ISA")
    if chosen is None:
        # snnipu_best_isa can be called in any library: it contains no instructions of its set.
        best = _open("baseline" if "baseline" in isas else isas[0]).snnipu_best_isa().decode()
        levels = _LEVELS if best in _LEVELS else (best,)
        runnable = [isa for isa in levels[: levels.index(best) + 1] if isa in isas]
        if not runnable:
            raise NativeLibraryError(f"{native_folder()} has libraries for {isas}, the processor {best}: {BUILD_HINT}")
        chosen = runnable[-1]
    elif chosen not in isas:
        raise NativeLibraryError(f"SNNIPU_ISA must be one of {isas}, got {chosen!r}")
    library = _open(chosen)
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
def float_bits(number: float) -> int:
    """Return the 64 bits of a double as an integer, for a call that is filled in as an array of words."""
    (bits,) = struct.unpack("q", struct.pack("d", number))
    return int(bits)


def struct_of(name: str, header: str) -> Type[ctypes.Structure]:
    """Return a ctypes structure for the struct ``snnipu_NAME_call`` of ``csrc/host/HEADER``.

    It is read from the header, where every field has 64 bits.
    """
    text = re.sub(r"/\*.*?\*/", "", (header_folder() / "host" / header).read_text(encoding="utf-8"), flags=re.DOTALL)
    lengths = {constant: int(value) for constant, value in re.findall(r"(\w+) = (\d+)", text)}
    (body,) = re.findall(rf"struct snnipu_{name}_call {{(.*?);\s*}}", text, re.DOTALL)
    fields: List[Tuple[str, Any]] = []
    for declaration in body.split(";"):
        # A declaration of any other type is a pointer.
        kind: Any = c_void_p if "*" in declaration else _NUMBERS.get(declaration.split()[0], c_void_p)
        if "void (*" in declaration:
            kind = ctypes.CFUNCTYPE(None, c_void_p)
        for field, length in re.findall(r"(\w+)(?:\[(\w+)\])?(?=,|$|\)\()", declaration):
            fields.append((field, kind * lengths[length] if length else kind))
    return type(f"snnipu_{name}_call", (ctypes.Structure,), {"_fields_": fields})


def declare(library: Any, name: str, call: Type[ctypes.Structure], functions: Iterable[str]) -> None:
    """Declare that functions of ``library`` take a pointer to a ``call``.

    Raises:
        NativeLibraryError: the library's struct ``snnipu_NAME_call`` has another size than ``call``.
    """
    size = getattr(library, f"snnipu_{name}_call_size")
    size.restype = c_int64
    if size() != ctypes.sizeof(call):
        raise NativeLibraryError(f"snnipu_{name}_call has another size in the library: {BUILD_HINT}")
    for function in functions:
        getattr(library, f"snnipu_{function}").argtypes = [c_void_p]


def isa() -> Optional[str]:
    """Return the instruction set in use; None if the library is missing."""
    return library.snnipu_isa().decode() if library is not None else None


def thread_runtime() -> Optional[str]:
    """Return ``openmp`` (threads shared with PyTorch) or ``std::thread``; None if the library is missing."""
    return library.snnipu_thread_runtime().decode() if library is not None else None


def _check(status: int, name: str) -> None:
    if status == 2:
        raise OutOfMemoryError(f"{name}: no memory for intermediate values ({_PYTORCH_MESSAGE})")
    if status != 0:
        raise RuntimeError(f"{name} refused its arguments (status {status})")


def _check_sizes(steps: int, elements: int) -> None:
    if max(steps, elements) > _MAX_SIZE:
        raise ValueError(f"x must have at most {_MAX_SIZE} steps and elements a step, got {steps} and {elements}")


def check_parameter_size(name: str, parameter: torch.Tensor, count: int) -> int:
    """Return the number of elements of a parameter; raise ValueError unless it is one, or one for each neuron."""
    if parameter.numel() != 1 and parameter.shape != (count,):
        raise ValueError(f"{name} must have one element or shape [{count}], got shape {tuple(parameter.shape)}")
    return parameter.numel()


def upstream_row(grad: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], bool]:
    """Return an upstream gradient as kernels take it, and True if it is one row for all steps.

    The gradient of a sum over time is the same row at each step, with stride 0.
    """
    if grad is None:
        return None, False
    if grad.shape[0] > 1 and grad.stride(0) == 0:
        return grad[0].contiguous(), True
    return grad.contiguous(), False
