"""Files that are whole or absent: written beside their place, then moved into it; and a file of one writer."""

import contextlib
import errno
import io
import os
import socket
import warnings
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterator

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# What says that nothing is wrong with the name, but that there is no room, or no working disk.
NO_ROOM = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO") if hasattr(errno, name))
# Locked files of this process: the kernel's locks keep out other processes only.
_held: Dict[Path, int] = {}


class WriteError(OSError):
    """A file cannot be written, on a full disk, say; what stood in its place is unchanged."""


class InUseError(OSError):
    """Another run writes the file."""


def failure(what: str, error: OSError) -> OSError:
    """``what: error`` as an OSError, a WriteError where it is not the name that is wrong."""
    return (WriteError if error.errno in NO_ROOM else OSError)(f"{what}: {error.strerror or error}")


def cache_folder(name: str) -> Path:
    """``snnipu/NAME`` in the folder that the environment variable ``XDG_CACHE_HOME`` names, else in ``~/.cache``.

    Raises:
        RuntimeError: the user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # As the XDG specification has it, a relative path does not count.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "snnipu" / name


def writable_file(path: Path) -> Path:
    """Check, before hours of work, that a file can be written at ``path``; returns it with links resolved.

    Raises:
        WriteError: there is no room for it.
        OSError: its folder is absent or takes no file, or something that is no plain file stands there.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(f"{path} exists and is not a plain file")
    if not path.parent.is_dir():
        raise OSError(f"the folder {path.parent} does not exist")
    try:
        partial_file(path).open("wb").close()
        partial_file(path).unlink()
    except OSError as error:
        raise failure(f"cannot write in {path.parent}", error) from error
    remove_leftovers(path)
    return path


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a file in memory, which then takes the place of ``path`` on the disk in one step.

    Whatever ends it, an error or the process, ``path`` holds all of its old contents or all of the new. A pipe or a
    device, which cannot be replaced, is written to.

    Raises:
        WriteError: the file cannot be written; nothing of it is left.
    """
    # Into memory first: then an error of write's is no error of the disk, and one of the disk is an OSError.
    buffer = io.BytesIO()
    write(buffer)
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                file.write(buffer.getbuffer())
            return
        path = path.resolve()
        remove_leftovers(path)
        partial = partial_file(path)
        try:
            with partial.open("wb") as file:
                with contextlib.suppress(_NoLocks):
                    _try_lock(file)  # while it is held, nobody takes the file for a leftover
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
    except OSError as error:
        kept = "; the file that was there is unchanged" if path.is_file() else ""
        raise WriteError(f"cannot write {path}: {error.strerror or error}{kept}") from error


def write_text(path: Path, text: str) -> None:
    """Write ``text`` in UTF-8, as :func:`write_atomically` does."""
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def partial_file(path: Path) -> Path:
    """Where this process writes what will become ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove_leftovers(path: Path) -> None:
    """Remove partial files of ``path`` whose process died before it could do so; others' are left alone."""
    start, end = f".{path.name}.", ".tmp"
    with contextlib.suppress(OSError, _NoLocks):
        for name in os.listdir(path.parent):
            process = name[len(start) : -len(end)]
            if not (name.startswith(start) and name.endswith(end) and process.isdecimal()):
                continue
            if fcntl is None or _alive(int(process)):  # without locks, it may be of another machine
                continue
            with contextlib.suppress(OSError), (path.parent / name).open("r+b") as file:
                # Held: its writer is alive, on another machine.
                if _try_lock(file):
                    os.unlink(path.parent / name)


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Keep other processes that ask for the same from ``path``, until the block or this process ends, however it ends.

    The lock is on a file ``.<name>.lock`` beside ``path``, which holds the process id and is removed at the end. Where
    the file system or the operating system has no locks (Windows; some network file systems), a warning says so.

    Raises:
        InUseError: another process, or another block of this one, holds ``path``; the message names the process.
        OSError: the file of the lock cannot be made.
    """
    path = path.resolve()
    lock = path.with_name(f".{path.name}.lock")
    if _held.get(path) == os.getpid():
        raise InUseError(f"{path} is being written by another run in this process ({os.getpid()})")
    file = None
    while file is None:
        try:
            file = lock.open("ab+")
        except OSError as error:
            raise failure(f"cannot write {lock}", error) from error
        try:
            if not _try_lock(file):
                file.seek(0)
                owner = file.read(300).decode("utf-8", "replace").strip() or "of unknown number"
                file.close()
                raise InUseError(f"{path} is being written by another run, process {owner}")
            # Its last holder may have removed it before we got the lock: then others lock another file.
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):
                raise FileNotFoundError
        except FileNotFoundError:
            file.close()
            file = None
        except _NoLocks as error:
            file.close()
            warnings.warn(f"no file locks here ({error}): nothing keeps a second run from writing {path}", stacklevel=3)
            with contextlib.suppress(OSError):
                lock.unlink()
            yield
            return
    _held[path] = os.getpid()
    try:
        with contextlib.suppress(OSError):  # on a full disk the lock is as good without
            file.truncate(0)
            file.write(f"{os.getpid()} on {socket.gethostname()}\n".encode())
            file.flush()
        yield
    finally:
        del _held[path]
        with contextlib.suppress(OSError):
            lock.unlink()
        with contextlib.suppress(OSError):
            file.close()


def is_held(path: Path) -> bool:
    """Whether this process is within :func:`sole_writer` of ``path``."""
    return _held.get(path.resolve()) == os.getpid()


class _NoLocks(Exception):
    """The system has no file locks."""


def _try_lock(file: BinaryIO) -> bool:
    """Lock ``file`` for this process, until it is closed or the process dies; False where another one holds it.

    Raises:
        _NoLocks: the file system or the operating system has none.
    """
    if fcntl is None:
        raise _NoLocks("this system's Python has no fcntl")
    try:
        # Of the process and not of the open file: a forked worker, which may outlive its parent, does not inherit it.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise _NoLocks(error.strerror or str(error)) from error
    return True


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
