"""N-MNIST: MNIST's digits recorded by an event camera, from the data set's own files."""

import os
from typing import List, Optional, Tuple, Union

import numpy as np

from snnipu.datasets._recordings import (
    Camera,
    PathLike,
    Size,
    check_order,
    check_pixels,
    damaged,
    data_of_files,
    find,
    read_bytes,
    step_length,
)
from snnipu.datasets.event_data import EventData

SIDE = 34
CLASSES = 10
# The camera makes three saccades of about 100 ms, which end a recording.
SACCADE_US = 105_000
RECORDING_US = 3 * SACCADE_US

_EVENT_BYTES = 5
# An event with this y reports an overflow of the 13-bit clock; its other fields are void.
_OVERFLOW_Y = 240
_OVERFLOW_US = 2**13


def read_events(path: str) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return times in microseconds, x, y and polarity (0 or 1) of the events of a ``.bin`` file.

    An event has 40 bits, the first byte first: x (8 bits), y (8), polarity (1), time (23).

    Raises:
        OSError: there is no such file, or it cannot be read.
        DamagedFileError: the file is empty or ends within an event, an event is off the sensor, or a time decreases.
    """
    data = np.frombuffer(read_bytes(path), dtype=np.uint8)
    if not len(data):
        raise damaged(path, "it is empty")
    if len(data) % _EVENT_BYTES:
        raise damaged(path, f"{len(data)} bytes, not a multiple of the {_EVENT_BYTES} of an event")
    x, y, high, middle, low = np.ascontiguousarray(data.reshape(-1, _EVENT_BYTES).T).astype(np.int64)
    polarity, times = high >> 7, (high & 127) << 16 | middle << 8 | low
    overflow = y == _OVERFLOW_Y
    if overflow.any():
        times += overflow.cumsum() * _OVERFLOW_US
        times, x, y, polarity = (column[~overflow] for column in (times, x, y, polarity))
        if not len(times):
            raise damaged(path, "it holds no event of a pixel")
    check_pixels(path, x, y, SIDE, SIDE)
    check_order(path, times)
    return times, x, y, polarity


def _read_first_saccade(path: str) -> Tuple[np.ndarray, ...]:
    """Return the events of a recording during the first saccade."""
    events = read_events(path)
    end = int(np.searchsorted(events[0], SACCADE_US))
    return tuple([field[:end] for field in events])


def _files(folder: str) -> Tuple[List[str], List[int]]:
    """Return the recordings of ``folder/<label>/*.bin``, sorted by label and name, and their labels."""
    paths, labels = [], []
    for name in sorted(os.listdir(folder)):
        subfolder = os.path.join(folder, name)
        if name.startswith((".", "_")) or not os.path.isdir(subfolder):
            continue
        if not (name.isdecimal() and int(name) < CLASSES):
            raise ValueError(f"root: {subfolder} is not a folder of N-MNIST: expected folders named 0 to {CLASSES - 1}")
        files = sorted(file for file in os.listdir(subfolder) if file.endswith(".bin"))
        paths += [os.path.join(subfolder, file) for file in files]
        labels += [int(name)] * len(files)
    if not paths:
        raise FileNotFoundError(f"root: no recordings in {folder}: expected {os.path.join(folder, '<label>', '*.bin')}")
    return paths, labels


def nmnist(
    root: PathLike,
    num_steps: int = 100,
    *,
    step_us: Optional[float] = None,
    window_us: Optional[float] = None,
    first_saccade: bool = False,
    crop: Optional[Size] = None,
    merge_polarity: bool = False,
    values: str = "binary",
    max_spikes: Optional[int] = None,
    overflow: str = "lowest",
    cache: Union[bool, str] = True,
    download: bool = False,
) -> EventData:
    """Load N-MNIST from its ``.bin`` files: 34 x 34 pixels, 2 polarities (0: darker, 1: brighter), 10 classes.

    Args:
        root: the folder that holds ``Train/<label>/*.bin`` and ``Test/<label>/*.bin``, or the parent of such a folder
            ``NMNIST``.
        num_steps: time steps T.
        step_us: microseconds of a time step; events after the last step are dropped. Published runs of sparse networks
            use 1,000 and 100 steps: roughly the first saccade.
        window_us: instead of ``step_us``: microseconds of all steps together. Default: 315,000, the whole recording, or
            105,000 with ``first_saccade``.
        first_saccade: True: drop events from 105,000 microseconds on, after the camera's first of three moves.
        crop: use only the central ``crop`` x ``crop`` or ``(height, width)`` pixels.
        merge_polarity: True: one neuron per pixel, for events of both polarities.
        values, max_spikes, overflow: arguments of :meth:`~snnipu.SparseSpikes.from_events`.
        cache: place of binned recordings, see :class:`EventDataset`; True: in memory and on the disk.
        download: let tonic download missing files into ``root/NMNIST``. By default nothing is downloaded.

    Returns:
        An :class:`EventData`.

    Raises:
        FileNotFoundError: ``root`` does not hold the data set, and ``download`` is false.
        ValueError: an argument is out of range.
        DamagedFileError: a file is damaged; raised when the recording is read.
        MissingExtra, RuntimeError: ``download`` without tonic, or it failed.

    Source: Orchard, Jayawant, Cohen & Thakor, Converting static image datasets to spiking neuromorphic datasets using
    saccades, Frontiers in Neuroscience 9 (2015). Published runs: arXiv 2311.04386.
    """
    step = step_length(num_steps, step_us, window_us, SACCADE_US if first_saccade else RECORDING_US)
    camera = Camera.of(SIDE, SIDE, crop, 1, merge_polarity)
    folder = find("N-MNIST", "NMNIST", root, ("Train", "Test"), download)

    return data_of_files(
        "nmnist",
        [_files(os.path.join(folder, name)) for name in ("Train", "Test")],
        _read_first_saccade if first_saccade else read_events,
        camera.neurons,
        camera.num_neurons,
        CLASSES,
        camera.shape,
        num_steps=num_steps,
        step=step,
        max_spikes=max_spikes,
        overflow=overflow,
        values=values,
        cache=cache,
        cache_key=f"nmnist {tuple(camera)} {first_saccade}",
    )
