"""The name of a command, option types that several commands share, and output that cannot be written."""

import argparse
import os
import select
import sys
from pathlib import Path
from typing import Callable

from snnipu._files import NO_ROOM, WriteError, writable_file

# The status that a shell reports for a process that SIGPIPE ended.
CLOSED_PIPE = 128 + 13


def called(command: str = "") -> str:
    """Return a command as the user called it: ``snnipu COMMAND`` or ``python -m snnipu COMMAND``."""
    name = "snnipu" if Path(sys.argv[0]).stem == "snnipu" else "python -m snnipu"
    return f"{name} {command}".rstrip()


def guarded(name: str, run: Callable[[], int]) -> int:
    """Return the status of ``run``; 1, with a line on standard error, if a file or the output cannot be written.

    A closed pipe, as in ``| head -1``, ends the command silently with status 141.
    """
    try:
        try:
            return run()
        finally:  # flush now: errors of buffered output belong to the command, not to Python's exit
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()
    except WriteError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is not None or not (is_output_closed(error) or error.errno in NO_ROOM):
            raise
        # Python flushes its streams at exit as well: redirect the remaining output to the null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            return CLOSED_PIPE
        print(f"{name}: error: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return 1


def is_output_closed(error: BaseException) -> bool:
    """Return True if ``error`` reports a closed pipe and standard output is a closed pipe."""
    if not isinstance(error, BrokenPipeError) or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def output_path(*suffixes: str) -> Callable[[str], Path]:
    """Return an option type for an output file: writable, checked before the run, or a device or a pipe."""

    def parse(text: str) -> Path:
        path = Path(text)
        if suffixes and path.suffix.lower() not in suffixes:
            raise argparse.ArgumentTypeError(f"{text}: the name must end in {', '.join(suffixes)}")
        if not path.exists() or path.is_file() or path.is_dir():
            try:
                writable_file(path)
            except WriteError:
                raise
            except OSError as error:
                raise argparse.ArgumentTypeError(str(error)) from error
        return path

    return parse


def positive_integer(text: str) -> int:
    """Return the positive integer of an option's text."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return value
