"""HDF5Contents from an HDF5 file, read by a separate process: see ``_hdf5_process.py``."""

import io
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import List, NamedTuple

import numpy as np

from snnipu.datasets._recordings import damaged

VARIABLE = "SNNIPU_READ_SECONDS"
# An intact file takes a tenth of this time.
SECONDS, BYTES_PER_SECOND = 60, 5_000_000
PROCESS = Path(__file__).resolve().with_name("_hdf5_process.py")


class HDF5Contents(NamedTuple):
    """The contents of a file; entry ``i`` is recording ``i``."""

    labels: np.ndarray
    times: List[np.ndarray]
    units: List[np.ndarray]


def time_limit(file_bytes: int) -> float:
    """Return the time limit in seconds for reading a file, from the environment or the size of the file.

    Raises:
        ValueError: the environment variable is not a number above 0.
    """
    setting = os.environ.get("SNNIPU_READ_SECONDS")
    try:
        limit = float(setting) if setting else SECONDS + file_bytes / BYTES_PER_SECOND
    except ValueError:
        limit = 0
    if not 0 < limit <= threading.TIMEOUT_MAX:
        raise ValueError(f"{VARIABLE} must be a number of seconds above 0, got {setting!r}")
    return limit


def read_recordings(path: str) -> HDF5Contents:
    """Return labels, times and units of a file in the layout of the Heidelberg digits, without checking their values.

    Raises:
        DamagedFileError: the file has no such recordings, or the HDF5 library crashes or exceeds the time limit.
        OSError: there is no such file, or no process can be started.
    """
    limit = time_limit(os.path.getsize(path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(PROCESS), os.path.abspath(path)]
    try:
        process = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        raise damaged(
            path,
            f"reading it took more than {limit:g} seconds: damage can keep the HDF5 library busy for ever. If it is "
            f"only slow, {VARIABLE} sets another limit",
        ) from None
    if process.returncode:
        message = process.stderr.decode("utf-8", "replace").strip()
        raise damaged(path, message or f"the HDF5 library crashed on it (status {process.returncode})")
    with np.load(io.BytesIO(process.stdout)) as arrays:
        times, units = (np.split(arrays[name], arrays[f"{name}_lengths"].cumsum()[:-1]) for name in ("times", "units"))
        return HDF5Contents(arrays["labels"], times, units)
