"""Neurons compiled on this machine, when they are first used: a library for a step and a dtype, kept for the next time.

Environment: ``SNNIPU_NEURONS_DIR``, the folder they are kept in (default: ``snnipu/neurons`` in ``XDG_CACHE_HOME`` or
``~/.cache``); ``CXX``, the C++ compiler.

The name of a library tells what it was made from (step, headers, versions, compiler, flags) and what is in it, so that
a damaged one is noticed and made anew. A library is code: none is loaded that somebody else owns or may write.
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
from snnipu._native_sources import FLAGS, HERE, X86_FLAGS, find_compiler, said_by
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
# Whatever the neuron is called: its name in C++.
_STRUCT = "users_neuron"
# A process that compiles takes seconds. One that was stopped meanwhile is waited for no longer than this.
_PATIENCE = 120.0
_OLD = 3600.0
# Windows would take bytes for line ends, and has neither of the others.
_READ = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    _READ |= getattr(os, _flag, 0)


class CompileError(RuntimeError):
    """A neuron cannot be compiled here; the message says why."""


class _Compiler(NamedTuple):
    words: List[str]
    version: str
    flags: List[str]


# Kernels, or why there are none.
_loaded: Dict[Tuple[str, torch.dtype], Union[neurons.Kernels, str]] = {}
_lock = threading.Lock()


def kernels(name: str, neuron: Neuron, dtype: torch.dtype) -> Optional[neurons.Kernels]:
    """The library's kernels of ``neuron``, known by ``name``, for tensors of ``dtype``.

    None where it cannot be compiled: the reference is to run, and a warning has told why, once for each reason.
    """
    found = _load(name, neuron, dtype)
    if isinstance(found, str):
        _warn(found)
        return None
    return found


def why_not(name: str, neuron: Neuron, dtype: torch.dtype) -> Optional[str]:
    """Why ``neuron`` has no kernels; None: it has, they are compiled."""
    found = _load(name, neuron, dtype)
    return found if isinstance(found, str) else None


def _load(name: str, neuron: Neuron, dtype: torch.dtype) -> Union[neurons.Kernels, str]:
    key = (name, dtype)
    if key not in _loaded:
        with _lock:
            if key not in _loaded:
                try:
                    _loaded[key] = _find(neuron, dtype)
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


# ---- what a library is made of


@lru_cache(maxsize=None)
def _headers(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("neuron/*.hpp"), *folder.glob("host/*.h*"), folder / "host" / "parallel.cpp"]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _compiler() -> _Compiler:
    """The machine's compiler, and the flags of the instruction set in use."""
    try:
        words = find_compiler()
        version = said_by([*words, "--version"])
    except (RuntimeError, OSError) as error:
        raise CompileError(f"{error}; install one, or name it in CXX") from None
    flags = [*FLAGS, *X86_FLAGS.get(host.isa() or "", []), "-shared"]
    return _Compiler(words, version, flags)


def _find(neuron: Neuron, dtype: torch.dtype) -> neurons.Kernels:
    """Load the library of ``neuron``, made by an earlier run or now."""
    compiler, headers = _compiler(), header_folder()
    text, surrogates = print_neurons([neuron._replace(name=_STRUCT)]), print_surrogates(equations.SURROGATES)
    flags = [*compiler.flags, f"-DSNNIPU_STORAGE={_STORAGE[dtype]}"]
    made_of = [__version__, text, surrogates, _SOURCE, _headers(headers), *compiler.words, compiler.version, *flags]
    key = hashlib.sha256(json.dumps([*made_of, platform.machine()]).encode()).hexdigest()[:32]
    folder = _folder()
    path = _kept(folder, key)
    if path is None:
        with _sole_maker(folder):
            path = _kept(folder, key)
            if path is None:
                what = f"{neuron.name} for {str(dtype)[6:]}"
                _say(f"compiling the neuron {what} with {compiler.words[0]}; it is kept in {folder}")
                started = time.monotonic()
                path = _keep(
                    folder,
                    key,
                    _compiled(
                        compiler.words, flags, headers, {"neurons.hpp": text, SURROGATES_HEADER: surrogates}, what
                    ),
                )
                _say(f"compiled {what} in {time.monotonic() - started:.1f} s")
    return neurons.kernels(neurons.prepared(_open(path)), 0, neuron)


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileError(
            f"{path} cannot be loaded ({error}); SNNIPU_NEURONS_DIR names a folder from which programs may run"
        ) from None


def _compiled(words: List[str], flags: List[str], headers: Path, texts: Mapping[str, str], what: str) -> bytes:
    """The library, compiled in a folder of its own."""
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


def _say(text: str) -> None:
    if sys.stderr is not None:
        print(f"snnipu: {text}", file=sys.stderr, flush=True)


# ---- where libraries are kept


def cache_folder() -> Path:
    """Where libraries are kept, whether it is there or not."""
    own = os.environ.get("SNNIPU_NEURONS_DIR", "")
    if own:
        return Path(os.path.abspath(own))
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    # As the XDG specification has it, a relative path does not count.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "snnipu" / "neurons"


@lru_cache(maxsize=None)
def _folder_of(wanted: Path, process: int) -> Path:
    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted = wanted.resolve()
        problem = _not_ours(wanted)
        if problem is None and not os.access(wanted, os.W_OK | os.X_OK):
            problem = f"{wanted} cannot be written"
    except (OSError, RuntimeError) as error:
        problem = f"{wanted}: {error}"
    if problem is None:
        return wanted
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
    """The folder to keep libraries in: the cache's, or, where others could write there, one of this process."""
    try:
        wanted = cache_folder()
    except RuntimeError as error:  # no home
        raise CompileError(f"{error}: SNNIPU_NEURONS_DIR names a folder to keep libraries in") from None
    return _folder_of(wanted, os.getpid())


def _not_ours(folder: Path) -> Optional[str]:
    """Why libraries in ``folder``, a path without links, may be somebody else's; None where they are this user's."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is no folder"
    if not hasattr(os, "geteuid"):
        return None  # Windows: by its access lists, a profile's folders are its user's alone
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to another user"
    if found.st_mode & 0o022:
        return f"{folder} may be written by other users"
    if found.st_mode & 0o077:
        os.chmod(folder, 0o700)
    for above in folder.parents:
        found = os.lstat(above)
        if found.st_uid not in (0, os.geteuid()):
            return f"{above} belongs to another user"
        if found.st_mode & 0o002 and not found.st_mode & stat.S_ISVTX:
            return f"{above} may be written by every user"
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _file_name(key: str, digest: str) -> str:
    return f"{key}-{digest}{Path(HERE.library('')).suffix}"


def _kept(folder: Path, key: str) -> Optional[Path]:
    """The library of ``key``, whole, and this user's alone; what is not so is removed."""
    for path in sorted(folder.glob(_file_name(key, "*"))):
        try:
            file = os.open(path, _READ)
            with os.fdopen(file, "rb") as opened:
                found = os.fstat(file)
                own = stat.S_ISREG(found.st_mode)
                if hasattr(os, "geteuid"):
                    own = own and found.st_uid == os.geteuid() and not found.st_mode & 0o022
                if own and path.name == _file_name(key, _digest(opened.read())):
                    return path
        except OSError:
            pass
        with contextlib.suppress(OSError):
            path.unlink()
    return None


def _keep(folder: Path, key: str, content: bytes) -> Path:
    """Write a library in one step; what dead processes left behind is removed."""
    with contextlib.suppress(OSError):
        for left in folder.glob(".*.tmp"):
            if time.time() - left.stat().st_mtime > _OLD:
                left.unlink()
    path = folder / _file_name(key, _digest(content))
    # Made for this user alone.
    file, partial = tempfile.mkstemp(prefix=f".{key}-", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(file)
        os.replace(partial, path)
    except OSError as error:
        # On Windows a file in use is not replaced: another process may have made the same meanwhile.
        made = _kept(folder, key)
        if made is None:
            raise CompileError(f"{path} cannot be written: {error.strerror or error}") from None
        return made
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)
    return path


@contextlib.contextmanager
def _sole_maker(folder: Path) -> Iterator[None]:
    """Keep other processes from compiling meanwhile what this one does, as far as the file system has locks."""
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
        said = False
        while time.monotonic() - started < _PATIENCE:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):
                if not said and time.monotonic() - started > 1.0:
                    said = True
                    _say(f"another process compiles a neuron in {folder}: waiting for it")
                time.sleep(0.05)
            except OSError:  # no locks here: two processes may compile the same, which is whole all the same
                break
        yield
    finally:
        os.close(lock)
