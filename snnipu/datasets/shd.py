"""Spiking Heidelberg Digits: spoken digits as spikes of a model of the inner ear, from their HDF5 files."""

import os
from typing import Any, Dict, Optional, Tuple, Union

import numpy as np

from snnipu._extras import require
from snnipu.datasets._hdf5 import HDF5Contents, read_recordings, time_limit
from snnipu.datasets._recordings import PathLike, damaged, find, step_length
from snnipu.datasets.event_data import EventData, EventDataset

UNITS = 700
CLASSES = 20
# The longest recording lasts 1.37 seconds.
RECORDING_US = 1_400_000
# A longer recording is damaged.
LONGEST_US = 60_000_000


class _HDF5Reader:
    """A reader: recording ``i`` of an HDF5 file as times in microseconds and neuron ids.

    It reads the whole file once.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._contents: Optional[HDF5Contents] = None

    def _read(self) -> HDF5Contents:
        if self._contents is None:
            self._contents = read_recordings(self._path)
        return self._contents

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_contents": None}  # a copy reads the file again

    def labels(self) -> np.ndarray:
        """Return the class of each recording."""
        labels = self._read().labels
        if int(labels.min()) < 0 or int(labels.max()) >= CLASSES:
            raise damaged(self._path, f"labels must be whole numbers from 0 to {CLASSES - 1}")
        return labels.astype(np.int64)

    def __call__(self, index: int) -> Tuple[np.ndarray, np.ndarray]:
        contents = self._read()
        seconds, units = contents.times[index], contents.units[index]
        if seconds.shape != units.shape:
            raise damaged(
                self._path,
                f"recording {index} has times of shape {seconds.shape} and units of shape {units.shape}",
            )
        times = seconds.astype(np.float64) * 1e6
        if not (np.isfinite(times).all() and (times >= 0).all()):
            raise damaged(self._path, f"recording {index} has times that are negative or NaN")
        if len(times) and times.max() > LONGEST_US:
            raise damaged(
                self._path, f"recording {index} has a time of {times.max() / 1e6:g} seconds, expected a minute at most"
            )
        if len(units) and not (int(units.min()) >= 0 and int(units.max()) < UNITS):
            wrong = units[(units < 0) | (units >= UNITS)][0]
            raise damaged(self._path, f"recording {index} has unit {wrong}, expected 0 to {UNITS - 1}")
        return times, units


def shd(
    root: PathLike,
    num_steps: int = 100,
    *,
    step_us: Optional[float] = None,
    window_us: Optional[float] = None,
    values: str = "binary",
    max_spikes: Optional[int] = None,
    overflow: str = "lowest",
    cache: Union[bool, str] = True,
    download: bool = False,
) -> EventData:
    """Load the Spiking Heidelberg Digits: 700 units, 20 classes (zero to nine, spoken in English and German).

    Args:
        root: the folder that holds ``shd_train.h5`` and ``shd_test.h5``, or the parent of such a folder ``SHD``.
        num_steps: time steps T.
        step_us: microseconds of a time step; events after the last step are dropped.
        window_us: instead of ``step_us``: microseconds of all steps together. Default: 1,400,000, which is longer than
            every recording.
        values, max_spikes, overflow: arguments of :meth:`~snnipu.SparseSpikes.from_events`.
        cache: place of binned recordings, see :class:`EventDataset`; True: in memory and on the disk. The files are
            read once and stay in memory as well, 4 bytes an event.
        download: let tonic download missing files into ``root/SHD``. By default nothing is downloaded.

    Returns:
        An :class:`EventData`.

    Raises:
        MissingExtra: h5py is not installed, or tonic with ``download``.
        FileNotFoundError: ``root`` does not hold the data set, and ``download`` is false.
        ValueError: an argument is out of range.
        DamagedFileError: a file is damaged, or reading it took too long. A damaged recording raises when it is read.
        RuntimeError: the download failed.

    Source: Cramer, Stradmann, Schemmel & Zenke, The Heidelberg spiking data sets for the systematic evaluation of
    spiking neural networks, IEEE Transactions on Neural Networks and Learning Systems 33 (2022).
    """
    step = step_length(num_steps, step_us, window_us, RECORDING_US)
    time_limit(0)  # raises for a wrong limit before a file is read
    require("h5py", extra="events", purpose="the Spiking Heidelberg Digits")
    names = ("shd_train.h5", "shd_test.h5")
    folder = find("Spiking Heidelberg Digits", "SHD", root, names, download)

    def part(name: str) -> EventDataset:
        recordings = _HDF5Reader(os.path.join(folder, name))
        return EventDataset(
            recordings,
            recordings.labels(),
            num_steps=num_steps,
            num_neurons=UNITS,
            step=step,
            max_spikes=max_spikes,
            overflow=overflow,
            values=values,
            cache=cache,
            cache_key="shd",
            files=os.path.join(folder, name),
        )

    return EventData("shd", part(names[0]), part(names[1]), UNITS, num_steps, CLASSES)
