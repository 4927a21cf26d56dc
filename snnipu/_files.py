"""Atomic writing of files (a temporary file, then a rename), locks for one writer, and the folder for caches."""

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

# Error numbers of a full or failing disk: another file name would fail too.
NO_ROOM = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO") if hasattr(errno, name))
# Path -> process id, for files that this process has locked. A file lock excludes other processes only.
_held: Dict[Path, int] = {}


class WriteError(OSError):
    """A file cannot be written, because the disk is full, say. A file that existed before is unchanged."""


class InUseError(OSError):
    """Another run is writing the file."""


def failure(what: str, error: OSError) -> OSError:
    """Return an OSError with the message ``what: error``; a WriteError if the disk is full or failing."""
    return (WriteError if error.errno in NO_ROOM else OSError)(f"{what}: {error.strerror or error}")


def cache_folder(name: str) -> Path:
    """Return the path ``snnipu/NAME`` below ``XDG_CACHE_HOME`` (an environment variable) or ``~/.cache``.

    Raises:
        RuntimeError: the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative paths.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "snnipu" / name


def writable_file(path: Path) -> Path:
    """Check that a file can be written at ``path``, before a long computation; return the path with links resolved.

    Raises:
        WriteError: the disk is full or failing.
        OSError: the folder is missing or not writable, or ``path`` is a folder or a device.
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
    """Write a file so that ``path`` holds either all of the old contents or all of the new ones.

    This holds even if the process is killed meanwhile. Pipes and devices cannot be replaced and are written directly.

    Args:
        path: the file to write.
        write: a function that writes the contents to the binary file it is called with.

    Raises:
        WriteError: the file cannot be written. The temporary file is removed.
    """
    # `write` fills a buffer in memory, so that its errors and those of the disk are not confused.
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
                    _try_lock(file)  # remove_leftovers of other processes skips locked files
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
    except OSError as error:
        unchanged = "; the file that was there is unchanged" if path.is_file() else ""
        raise WriteError(f"cannot write {path}: {error.strerror or error}{unchanged}") from error


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in UTF-8 by :func:`write_atomically`."""
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def partial_file(path: Path) -> Path:
    """Return the path of the temporary file that this process renames to ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of ``path`` that processes which have died left behind."""
    start, end = f".{path.name}.", ".tmp"
    with contextlib.suppress(OSError, _NoLocks):
        for name in os.listdir(path.parent):
            process = name[len(start) : -len(end)]
            if not (name.startswith(start) and name.endswith(end) and process.isdecimal()):
                continue
            # If there are no locks, the file may be in use by a process of another machine.
            if fcntl is None or _alive(int(process)):
                continue
            with contextlib.suppress(OSError), (path.parent / name).open("r+b") as file:
                # A locked file has a writer on another machine that is alive.
                if _try_lock(file):
                    os.unlink(path.parent / name)


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Lock ``path`` for the block: other calls of ``sole_writer`` for it fail until the block or the process ends.

    The lock is on a file ``.<name>.lock`` beside ``path``. It holds the process id, and the block removes it at its
    end. Windows and some network file systems have no locks; a warning is given there.

    Raises:
        InUseError: another process, or another block of this process, has locked ``path``. The message names the
            process.
        OSError: the lock file cannot be created.
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
            # The previous owner may have deleted the file before we locked it: a new lock file is needed then.
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
        with contextlib.suppress(OSError):  # the lock works without the process id, if the disk is full
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
    """Return True if this process is inside a :func:`sole_writer` block for ``path``."""
    return _held.get(path.resolve()) == os.getpid()


class _NoLocks(Exception):
    """The system has no file locks."""


def _try_lock(file: BinaryIO) -> bool:
    """Lock ``file`` for this process until the file is closed; return False if another process has locked it.

    Raises:
        _NoLocks: the file system or the operating system has no locks.
    """
    if fcntl is None:
        raise _NoLocks("this system's Python has no fcntl")
    try:
        # lockf locks for the process: a forked worker, which may outlive its parent, does not inherit the lock.
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
