"""Recordings from an HDF5 file, read by a process of its own: see ``_hdf5_process.py``."""

import io
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import List, NamedTuple, Optional

import numpy as np

from snnipu.datasets._recordings import damaged

VARIABLE = "SNNIPU_READ_SECONDS"
# An intact file takes a tenth of that.
SECONDS, BYTES_PER_SECOND = 60, 5_000_000
PROCESS = Path(__file__).resolve().with_name("_hdf5_process.py")


class Recordings(NamedTuple):
    """The contents of a file; entry ``i`` is recording ``i``."""

    labels: np.ndarray
    times: List[np.ndarray]
    units: List[np.ndarray]


def time_limit(file_bytes: int, seconds: Optional[float] = None) -> float:
    """Seconds that reading a file may take: ``seconds``, else those of the environment, else by its size.

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
    """Return labels, times and units of the file in its own types of numbers; their values are not checked.

    Args:
        path: the file, in the layout of the Heidelberg digits.
        seconds: as :func:`time_limit` takes them.

    Raises:
        DamagedFileError: the HDF5 library finds no such recordings in it, crashes, or takes longer than that.
        OSError: there is no such file, or no process can be started.
    """
    limit = time_limit(os.path.getsize(path), seconds)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(PROCESS), os.path.abspath(path)]
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        raise damaged(
            path,
            f"reading it took more than {limit:g} seconds: damage can keep the HDF5 library busy for ever. If it is "
            f"only slow, {VARIABLE} sets another limit",
        ) from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise damaged(path, said or f"the HDF5 library crashed on it (status {done.returncode})")
    with np.load(io.BytesIO(done.stdout)) as found:
        times, units = (np.split(found[name], found[f"{name}_lengths"].cumsum()[:-1]) for name in ("times", "units"))
        return Recordings(found["labels"], times, units)
