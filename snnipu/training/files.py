"""Files that are whole or absent: written beside their place, then moved into it."""

import os
from pathlib import Path
from typing import BinaryIO, Callable


def writable_file(path: Path) -> Path:
    """Check, before hours of work, that a file can be written at ``path``; returns it with links resolved.

    Raises:
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
        raise OSError(f"cannot write in {path.parent}: {error.strerror}") from error
    return path


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a temporary file, which then takes the place of ``path`` in one step."""
    partial = partial_file(path)
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        if partial.exists():
            partial.unlink()


def partial_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
