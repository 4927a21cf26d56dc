"""Spiking Heidelberg Digits: spoken digits as the spikes of a model of the inner ear, from their HDF5 files."""

import os
from typing import Any, Dict, Optional, Tuple

import numpy as np

from snnipu._extras import require
from snnipu.datasets._recordings import PathLike, fetch, step_length
from snnipu.datasets.event_data import EventData, EventDataset

UNITS = 700
CLASSES = 20
# The longest recording lasts 1.37 seconds.
RECORDING_US = 1_400_000


class _Recordings:
    """Recording ``i`` of an HDF5 file as times in microseconds and neuron ids."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open: Optional[Tuple[int, Any]] = None  # process, file

    def _file(self) -> Any:
        # HDF5 files must not be shared with the process that forked.
        if self._open is None or self._open[0] != os.getpid():
            h5py = require("h5py", extra="events", purpose="the Spiking Heidelberg Digits")
            try:
                self._open = os.getpid(), h5py.File(self._path, "r")
            except OSError as error:
                raise ValueError(f"root: damaged file {self._path}: {error}") from error
        return self._open[1]

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def column(self, name: str, index: Any) -> np.ndarray:
        """``name[index]`` of the file."""
        try:
            return np.asarray(self._file()[name][index])
        except (KeyError, OSError, AttributeError, TypeError) as error:
            raise ValueError(f"root: damaged file {self._path}: {name} cannot be read ({error})") from error

    def labels(self) -> np.ndarray:
        """Class of each recording."""
        labels = self.column("labels", ())
        recordings = [
            len(self._file()[name]) if name in self._file() else None for name in ("spikes/times", "spikes/units")
        ]
        if labels.ndim != 1 or recordings != [len(labels)] * 2:
            raise ValueError(
                f"root: damaged file {self._path}: labels of shape {labels.shape}, {recordings[0]} spikes/times and "
                f"{recordings[1]} spikes/units: expected one of each per recording"
            )
        if not len(labels):
            raise ValueError(f"root: damaged file {self._path}: it holds no recording")
        if labels.dtype.kind not in "iu" or int(labels.min()) < 0 or int(labels.max()) >= CLASSES:
            raise ValueError(f"root: damaged file {self._path}: labels must be whole numbers from 0 to {CLASSES - 1}")
        return labels.astype(np.int64)

    def __call__(self, index: int) -> Tuple[np.ndarray, np.ndarray]:
        seconds = self.column("spikes/times", index)
        units = self.column("spikes/units", index)
        if seconds.ndim != 1 or seconds.shape != units.shape:
            raise ValueError(
                f"root: damaged file {self._path}: recording {index} has times of shape {seconds.shape} and units of "
                f"shape {units.shape}"
            )
        times = seconds.astype(np.float64) * 1e6
        if not (np.isfinite(times).all() and (times >= 0).all()):
            raise ValueError(f"root: damaged file {self._path}: recording {index} has times that are negative or NaN")
        if len(units) and not (int(units.min()) >= 0 and int(units.max()) < UNITS):
            wrong = units[(units < 0) | (units >= UNITS)][0]
            raise ValueError(
                f"root: damaged file {self._path}: recording {index} has unit {wrong}, expected 0 to {UNITS - 1}"
            )
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
    cache: bool = True,
    download: bool = False,
) -> EventData:
    """The Spiking Heidelberg Digits: 700 units, 20 classes (zero to nine, spoken in English and German).

    Args:
        root: the folder that holds ``shd_train.h5`` and ``shd_test.h5``, or whose folder ``SHD`` does.
        num_steps: time steps T.
        step_us: microseconds of a time step; events behind the last step are left out.
        window_us: in place of ``step_us``: microseconds that the steps divide evenly. With neither, 1,400,000, which is
            longer than every recording.
        values, max_spikes, overflow: as in :meth:`~snnipu.SparseSpikes.from_events`.
        cache: keep binned recordings in memory.
        download: let tonic download what is missing into ``root/SHD``. By default nothing is downloaded.

    Raises:
        MissingExtra: h5py is not installed, or tonic with ``download``.
        FileNotFoundError: ``root`` does not hold the data set, and ``download`` is false.
        ValueError: an argument is out of range, or a file is damaged. Reading a recording raises it too.
        RuntimeError: the download failed.

    Source: Cramer, Stradmann, Schemmel & Zenke, The Heidelberg spiking data sets for the systematic evaluation of
    spiking neural networks, IEEE Transactions on Neural Networks and Learning Systems 33 (2022).
    """
    step = step_length(num_steps, step_us, window_us, RECORDING_US)
    require("h5py", extra="events", purpose="the Spiking Heidelberg Digits")
    root = os.fspath(root)
    if download:
        fetch("SHD", root)
    names = ("shd_train.h5", "shd_test.h5")
    places = [root, os.path.join(root, "SHD")]
    found = [place for place in places if all(os.path.isfile(os.path.join(place, name)) for name in names)]
    if not found:
        what = f"does not hold {names[0]} and {names[1]}" if os.path.isdir(root) else "is not a folder"
        raise FileNotFoundError(
            f"root: no Spiking Heidelberg Digits: {root!r} {what}; download=True fetches the data set with tonic"
        )

    def part(name: str) -> EventDataset:
        recordings = _Recordings(os.path.join(found[0], name))
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
        )

    return EventData("shd", part(names[0]), part(names[1]), UNITS, num_steps, CLASSES)


__all__ = ["shd"]
