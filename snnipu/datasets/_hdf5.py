"""Recordings from an HDF5 file, read by a process of its own: see ``_hdf5_process.py``."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, List, NamedTuple, Optional

import numpy as np

from snnipu.datasets import _hdf5_process
from snnipu.datasets._recordings import damaged

VARIABLE = "SNNIPU_READ_SECONDS"
# An intact file takes a tenth of that.
SECONDS, BYTES_PER_SECOND = 10, 20_000_000
CLOCK_SECONDS = 30


class Recordings(NamedTuple):
    """What the file holds; entry ``i`` is recording ``i``."""

    labels: np.ndarray
    times: List[np.ndarray]
    units: List[np.ndarray]


def time_limit(file_bytes: int, seconds: Optional[float] = None) -> float:
    """Processor seconds that reading a file may take: ``seconds``, else those of the environment, else by its size.

    Raises:
        ValueError: not a number above 0.
    """
    given: object = os.environ.get(VARIABLE) or None if seconds is None else seconds
    name = VARIABLE if seconds is None else "read_seconds"
    if given is None:
        return SECONDS + file_bytes / BYTES_PER_SECOND
    try:
        limit = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        limit = 0
    if isinstance(given, bool) or not 0 < limit <= threading.TIMEOUT_MAX:
        raise ValueError(f"{name} must be a number of seconds above 0, got {given!r}")
    return limit


def read_recordings(path: str, seconds: Optional[float] = None) -> Recordings:
    """Labels, times and units of the file, as its types have them; whether they make sense is not checked.

    Args:
        path: the file, in the layout of the Heidelberg digits.
        seconds: as :func:`time_limit` takes them.

    Raises:
        DamagedFileError: the HDF5 library finds no such recordings in it, crashes, or takes longer than that.
        OSError: there is no such file, or no process can be started.
    """
    file_bytes = os.path.getsize(path)
    limit = time_limit(file_bytes, seconds)
    # By the clock there are slow disks and busy machines, too.
    clock = CLOCK_SECONDS + 4 * limit
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # Of numpy's libraries, which would start a thread a core.
    environment.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    process = subprocess.Popen(
        [sys.executable, str(Path(_hdf5_process.__file__).resolve()), os.path.abspath(path), str(limit), str(clock)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Ctrl-C is for this process, not for the reader.
        start_new_session=True,
    )
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        process.kill()

    timer = threading.Timer(clock, stop)
    timer.daemon = True
    timer.start()
    assert process.stdout is not None
    try:
        return _Reader(process.stdout, path, file_bytes).recordings()
    except EOFError:
        timer.cancel()
        raise damaged(path, _why(process.wait(), expired.is_set(), limit, clock)) from None
    finally:
        timer.cancel()
        process.kill()
        process.stdout.close()
        process.wait()


def _why(status: int, expired: bool, limit: float, clock: float) -> str:
    """Why a process ended before it was done."""
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"status {status}"
    took = f"{clock:g} seconds" if expired or name == "SIGALRM" else f"{limit:g} seconds of the processor"
    if expired or name in ("SIGALRM", "SIGXCPU"):
        return (
            f"reading it took more than {took}: damage can keep the HDF5 library busy for ever. If it is only slow, "
            f"{VARIABLE} sets another limit"
        )
    return f"the HDF5 library crashed on it ({name})"


class _Reader:
    """The other end of ``_hdf5_process``; raises EOFError where that stops early."""

    def __init__(self, stream: IO[bytes], path: str, file_bytes: int) -> None:
        self._stream, self._path = stream, path
        # All that an intact file holds, and lengths: what says more is not believed.
        self._most = 4 * file_bytes + 2**16

    def recordings(self) -> Recordings:
        header = json.loads(self._frame())
        number, types = header["recordings"], [np.dtype(name) for name in header["types"]]
        labels = self._array(np.dtype(header["labels"]), number)
        columns: List[List[np.ndarray]] = [[], []]
        for start in range(0, number, _hdf5_process.PART):
            recordings = min(_hdf5_process.PART, number - start)
            lengths = [self._array(np.dtype("<i8"), recordings) for _ in columns]
            for column, length, kind in zip(columns, lengths, types):
                column += np.split(self._array(kind, int(length.sum())), np.cumsum(length)[:-1])
        if self._frame(end=True):
            raise damaged(self._path, "its reader did not come to an end")
        return Recordings(labels, *columns)

    def _array(self, kind: np.dtype, length: int) -> np.ndarray:
        content = self._frame()
        if len(content) != length * kind.itemsize:
            raise damaged(self._path, f"{len(content)} bytes where {length} numbers of {kind} were announced")
        return np.frombuffer(content, kind)

    def _frame(self, end: bool = False) -> bytes:
        kind, length = _hdf5_process.FRAME.unpack(self._exactly(_hdf5_process.FRAME.size))
        if length > self._most:
            raise damaged(self._path, "its recordings take more bytes than it has")
        self._most -= length
        content = self._exactly(length)
        if kind == b"E":
            raise damaged(self._path, content.decode("utf-8", "replace"))
        if kind != (b"." if end else b"D"):
            raise EOFError
        return content

    def _exactly(self, length: int) -> bytes:
        content = self._stream.read(length)
        if len(content) < length:
            raise EOFError
        return content
