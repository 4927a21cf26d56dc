"""What every command does where its output cannot be written: a full disk, a closed pipe."""

import argparse
import os
import select
import sys
from pathlib import Path
from typing import Any, Callable, Optional

from snnipu._files import NO_ROOM, WriteError

# As a shell says it of a process that SIGPIPE ended.
CLOSED_PIPE = 128 + 13


def guarded(name: str, run: Callable[[], int]) -> int:
    """The exit status of ``run``: 1, with a line on standard error, where a file or a stream cannot be written.

    A closed pipe, as of ``| head -1``, ends the command without a word, with status 141.
    """
    try:
        try:
            status = run()
        except SystemExit:
            _flush()
            raise
        _flush()
        return status
    except WriteError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        stream = failing_stream(error)
        if stream is None:
            raise
        _silence(stream)
        if isinstance(error, BrokenPipeError):
            return CLOSED_PIPE
        if stream is not sys.stderr:
            print(f"{name}: error: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return 1


def failing_stream(error: OSError) -> Any:
    """Which of standard output and standard error ``error`` came from; None: of neither."""
    if error.filename is not None:
        return None
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()  # what could not be written is still there
        except OSError:
            return stream
        if isinstance(error, BrokenPipeError) and _is_closed_pipe(stream):
            return stream
    return sys.stdout if error.errno in NO_ROOM else None


def _flush() -> None:
    """Errors of what print kept back come here, and not when Python ends."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _descriptor(stream: Any) -> Optional[int]:
    try:
        number: int = stream.fileno()
    except (OSError, AttributeError, ValueError):  # not a file
        return None
    return number


def _is_closed_pipe(stream: Any) -> bool:
    """Unbuffered streams keep nothing back: the system knows whether somebody reads."""
    descriptor = _descriptor(stream)
    if descriptor is None or not hasattr(select, "poll"):
        return False
    asked = select.poll()
    asked.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in asked.poll(0))


def _silence(stream: Any) -> None:
    """Python flushes its streams once more when it ends: that goes nowhere."""
    descriptor = _descriptor(stream)
    if descriptor is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def output_path(*suffixes: str) -> Callable[[str], Path]:
    """A file that can be written: found out before the run, not after it."""

    def parse(text: str) -> Path:
        path = Path(text)
        if suffixes and path.suffix.lower() not in suffixes:
            raise argparse.ArgumentTypeError(f"{text}: the name must end in {', '.join(suffixes)}")
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text} is a directory")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"{text}: there is no directory {path.parent}")
        # A file is replaced, in its folder; a device or a pipe is written to.
        if not os.access(path if path.exists() and not path.is_file() else path.parent, os.W_OK):
            raise argparse.ArgumentTypeError(f"{text} cannot be written")
        return path

    return parse


def positive_integer(text: str) -> int:
    """An option's whole number of 1 or more."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but is {value}")
    return value
