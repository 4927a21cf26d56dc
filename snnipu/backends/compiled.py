"""Compile users' neurons for the CPU at their first use: a library for each step and dtype, kept in a cache.

Environment: ``SNNIPU_NEURONS_DIR``, the folder of the cache (default: ``snnipu/neurons`` in ``XDG_CACHE_HOME`` or
``~/.cache``); ``CXX``, the C++ compiler.

The file name of a library has two hashes. The first covers everything that the library is compiled from: step, headers,
versions, compiler and flags. The second covers its contents, so that damaged files are detected and compiled again.
Libraries are code: a file that another user owns or can write is not loaded.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import shlex
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch

from snnipu import equations
from snnipu._generator import SURROGATES_HEADER, Neuron, print_neurons, print_surrogates
from snnipu._native_sources import FLAGS, HERE, X86_FLAGS, find_compiler, first_output_line
from snnipu._version import __version__
from snnipu.backends import host, neurons
from snnipu.backends.libraries import header_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_STORAGE = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "snnipu::Float16",
    torch.bfloat16: "snnipu::BFloat16",
}
_SOURCE = """#include "host/neuron.hpp"
#include "neurons.hpp"
#include "host/parallel.cpp"

SNNIPU_NEURONS(SNNIPU_GENERATED_NEURONS)
"""
# Name of the neuron's struct in C++; users' names may not be valid there.
_STRUCT = "users_neuron"
# Longest wait for another process that compiles, in seconds. Compiling takes some seconds, unless it was stopped.
_LOCK_TIMEOUT = 120.0
# Age from which temporary files are deleted, in seconds.
_STALE_AGE = 3600.0
# O_BINARY is needed on Windows, which has neither of the others.
_READ = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    _READ |= getattr(os, _flag, 0)


class CompileError(RuntimeError):
    """A neuron cannot be compiled here; the message says why."""


class _Compiler(NamedTuple):
    words: List[str]
    version: str
    flags: List[str]


# Kernels, or the reason why there are none.
_loaded: Dict[Tuple[str, torch.dtype], Union[neurons.Kernels, str]] = {}
_lock = threading.Lock()


def kernels(name: str, neuron: Neuron, dtype: torch.dtype) -> Optional[neurons.Kernels]:
    """Return the kernels of a neuron, compiling them if necessary.

    Args:
        name: the registered name of the neuron.
        neuron: its generated step and adjoint.
        dtype: dtype of the tensors.

    Returns:
        The kernels. None if the neuron cannot be compiled: a warning is given once for each reason, and the caller
        runs the reference.
    """
    loaded = _load(name, neuron, dtype)
    if isinstance(loaded, str):
        _warn(loaded)
        return None
    return loaded


def why_not(name: str, neuron: Neuron, dtype: torch.dtype) -> Optional[str]:
    """Compile a neuron as :func:`kernels` does, and return the reason if that fails, else None."""
    loaded = _load(name, neuron, dtype)
    return loaded if isinstance(loaded, str) else None


def _load(name: str, neuron: Neuron, dtype: torch.dtype) -> Union[neurons.Kernels, str]:
    key = (name, dtype)
    if key not in _loaded:
        with _lock:
            if key not in _loaded:
                try:
                    _loaded[key] = _load_or_compile(neuron, dtype)
                except (CompileError, host.NativeLibraryError, OSError) as error:
                    _loaded[key] = str(error)
    return _loaded[key]


@lru_cache(maxsize=None)
def _warn(reason: str) -> None:
    warnings.warn(
        f"snnipu runs its slow PyTorch reference for neurons of your own on the CPU: {reason}",
        RuntimeWarning,
        stacklevel=5,
    )


# ---- sources of a library


@lru_cache(maxsize=None)
def _headers(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("neuron/*.hpp"), *folder.glob("host/*.h*"), folder / "host" / "parallel.cpp"]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _compiler() -> _Compiler:
    """Return the C++ compiler, and the flags for the instruction set in use."""
    try:
        words = find_compiler()
        version = first_output_line([*words, "--version"])
    except (RuntimeError, OSError) as error:
        raise CompileError(f"{error}; install one, or name it in CXX") from None
    flags = [*FLAGS, *X86_FLAGS.get(host.isa() or "", []), "-shared"]
    return _Compiler(words, version, flags)


def _load_or_compile(neuron: Neuron, dtype: torch.dtype) -> neurons.Kernels:
    """Load the library of ``neuron`` from the cache, or compile it."""
    compiler, headers = _compiler(), header_folder()
    text, surrogates = print_neurons([neuron._replace(name=_STRUCT)]), print_surrogates(equations.SURROGATES)
    flags = [*compiler.flags, f"-DSNNIPU_STORAGE={_STORAGE[dtype]}"]
    inputs = [__version__, text, surrogates, _SOURCE, _headers(headers), *compiler.words, compiler.version, *flags]
    key = hashlib.sha256(json.dumps([*inputs, platform.machine()]).encode()).hexdigest()[:32]
    folder = _folder()
    path = _find_cached(folder, key)
    if path is None:
        with _compile_lock(folder):
            path = _find_cached(folder, key)
            if path is None:
                what = f"{neuron.name} for {str(dtype)[6:]}"
                _log(f"compiling the neuron {what} with {compiler.words[0]}; it is kept in {folder}")
                started = time.monotonic()
                path = _write_to_cache(
                    folder,
                    key,
                    _compile(
                        compiler.words, flags, headers, {"neurons.hpp": text, SURROGATES_HEADER: surrogates}, what
                    ),
                )
                _log(f"compiled {what} in {time.monotonic() - started:.1f} s")
    return neurons.kernels(neurons.declare_functions(_open(path)), 0, neuron)


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileError(
            f"{path} cannot be loaded ({error}); SNNIPU_NEURONS_DIR names a folder from which programs may run"
        ) from None


def _compile(words: List[str], flags: List[str], headers: Path, texts: Mapping[str, str], what: str) -> bytes:
    """Compile a library in a temporary folder and return its bytes; ``what`` names the neuron in error messages."""
    with tempfile.TemporaryDirectory(prefix="snnipu-") as work:
        place = Path(work)
        for name, text in texts.items():
            (place / name).write_text(text, encoding="utf-8")
        (place / "library.cpp").write_text(_SOURCE, encoding="utf-8")
        library = place / HERE.library("own")
        command = [*words, *flags, f"-I{headers}", f"-I{place}", str(place / "library.cpp"), "-o", str(library)]
        command += HERE.link_flags("own")
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
        )
        if done.returncode != 0 or not library.is_file():
            lines = [line for line in done.stdout.splitlines() if "error" in line] or done.stdout.splitlines()
            command_line = " ".join(map(shlex.quote, command[:1]))
            raise CompileError(f"{command_line} failed for {what}: {lines[0] if lines else 'no message'}")
        return library.read_bytes()


def _log(text: str) -> None:
    if sys.stderr is not None:
        print(f"snnipu: {text}", file=sys.stderr, flush=True)


# ---- cache of libraries


def cache_folder() -> Path:
    """Return the folder of the cache, which need not exist."""
    override = os.environ.get("SNNIPU_NEURONS_DIR", "")
    if override:
        return Path(os.path.abspath(override))
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative paths.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "snnipu" / "neurons"


@lru_cache(maxsize=None)
def _folder_of(folder: Path, process: int) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        problem = _why_untrusted(folder)
        if problem is None and not os.access(folder, os.W_OK | os.X_OK):
            problem = f"{folder} cannot be written"
    except (OSError, RuntimeError) as error:
        problem = f"{folder}: {error}"
    if problem is None:
        return folder
    warnings.warn(
        f"{problem}: neurons compiled now are not kept for the next process; SNNIPU_NEURONS_DIR names another folder",
        RuntimeWarning,
        stacklevel=6,
    )
    return Path(_temporary().name).resolve()


@lru_cache(maxsize=None)
def _temporary() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="snnipu-neurons-")


def _folder() -> Path:
    """Return the folder of the cache; a temporary folder if the cache is not writable or other users can write it."""
    try:
        folder = cache_folder()
    except RuntimeError as error:  # the user has no home folder
        raise CompileError(f"{error}: SNNIPU_NEURONS_DIR names a folder to keep libraries in") from None
    return _folder_of(folder, os.getpid())


def _why_untrusted(folder: Path) -> Optional[str]:
    """Return the reason why another user may have written a library in ``folder``, a path without links; else None."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is no folder"
    if not hasattr(os, "geteuid"):
        return None  # on Windows the access lists of a profile's folders exclude other users
    if status.st_uid != os.geteuid():
        return f"{folder} belongs to another user"
    if status.st_mode & 0o022:
        return f"{folder} may be written by other users"
    if status.st_mode & 0o077:
        os.chmod(folder, 0o700)
    for parent in folder.parents:
        status = os.lstat(parent)
        if status.st_uid not in (0, os.geteuid()):
            return f"{parent} belongs to another user"
        if status.st_mode & 0o002 and not status.st_mode & stat.S_ISVTX:
            return f"{parent} may be written by every user"
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _file_name(key: str, digest: str) -> str:
    return f"{key}-{digest}{Path(HERE.library('')).suffix}"


def _find_cached(folder: Path, key: str) -> Optional[Path]:
    """Return the library of ``key`` in the cache, or None.

    Files that are damaged, or that another user owns or can write, are removed.
    """
    for path in sorted(folder.glob(_file_name(key, "*"))):
        try:
            file = os.open(path, _READ)
            with os.fdopen(file, "rb") as opened:
                status = os.fstat(file)
                trusted = stat.S_ISREG(status.st_mode)
                if hasattr(os, "geteuid"):
                    trusted = trusted and status.st_uid == os.geteuid() and not status.st_mode & 0o022
                if trusted and path.name == _file_name(key, _digest(opened.read())):
                    return path
        except OSError:
            pass
        with contextlib.suppress(OSError):
            path.unlink()
    return None


def _write_to_cache(folder: Path, key: str, content: bytes) -> Path:
    """Write a library to the cache, by a temporary file and a rename. Old temporary files are removed."""
    with contextlib.suppress(OSError):
        for leftover in folder.glob(".*.tmp"):
            if time.time() - leftover.stat().st_mtime > _STALE_AGE:
                leftover.unlink()
    path = folder / _file_name(key, _digest(content))
    # mkstemp makes files that only this user can read and write.
    file, partial = tempfile.mkstemp(prefix=f".{key}-", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(file)
        os.replace(partial, path)
    except OSError as error:
        # Windows does not replace a file in use. Then another process has written the same library.
        cached = _find_cached(folder, key)
        if cached is None:
            raise CompileError(f"{path} cannot be written: {error.strerror or error}") from None
        return cached
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)
    return path


@contextlib.contextmanager
def _compile_lock(folder: Path) -> Iterator[None]:
    """Hold a lock in the block so that processes do not compile the same neuron twice; no lock if there are none."""
    if fcntl is None:
        yield
        return
    try:
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError:
        yield
        return
    try:
        started = time.monotonic()
        logged = False
        while time.monotonic() - started < _LOCK_TIMEOUT:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):
                if not logged and time.monotonic() - started > 1.0:
                    logged = True
                    _log(f"another process compiles a neuron in {folder}: waiting for it")
                time.sleep(0.05)
            except OSError:  # no locks: two processes may compile the same library, but each writes a whole file
                break
        yield
    finally:
        os.close(lock)
