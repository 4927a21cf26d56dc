"""DVS128 Gesture: hand and arm gestures in front of an event camera, from the files that tonic makes."""

import io
import os
import re
from typing import List, Optional, Tuple, Union

import numpy as np
from numpy.lib import format as npy

from snnipu.datasets._recordings import (
    Camera,
    PathLike,
    Size,
    check_pixels,
    damaged,
    find,
    read_bytes,
    step_length,
)
from snnipu.datasets.event_data import EventData, EventDataset

SIDE = 128
CLASSES = 11
# Of recordings of about 6 seconds, what published runs use.
WINDOW_US = 1_500_000
# No recording is nearly as long: what says so is damaged.
LONGEST_US = 3_600_000_000


def read_events(path: str) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Times in microseconds from the first event on, x, y and polarity (0 or 1) of the events of a ``.npy`` file.

    The file holds an array ``[events, 4]``: x, y, polarity, and time in milliseconds.

    Raises:
        OSError: there is no such file, or it cannot be read.
        DamagedFileError: it is no such array or has more or fewer bytes than it says, or an event is off the sensor, of
            no polarity, or an hour or more behind the first.
    """
    events = _array(path, read_bytes(path))
    if not len(events):
        raise damaged(path, "it holds no event")
    if not np.isfinite(events).all():
        raise damaged(path, "it holds numbers that are not finite")
    x, y, polarity, milliseconds = np.ascontiguousarray(events.T).astype(np.float64)
    check_pixels(path, x, y, SIDE, SIDE)
    if not (np.array_equal(x, np.floor(x)) and np.array_equal(y, np.floor(y))):
        raise damaged(path, "x and y must be whole numbers")
    if not np.isin(polarity, (0, 1)).all():
        raise damaged(path, "polarities must be 0 or 1")
    times = (milliseconds - milliseconds.min()) * 1000
    if times.max() >= LONGEST_US:
        raise damaged(
            path, f"{times.max() / 1e6:g} seconds from the first event to the last, expected less than an hour"
        )
    return times, x.astype(np.int64), y.astype(np.int64), polarity.astype(np.int64)


def _array(path: str, data: bytes) -> np.ndarray:
    """The numbers ``[events, 4]`` of a ``.npy`` file."""
    stream = io.BytesIO(data)
    try:
        events: np.ndarray = npy.read_array(stream, allow_pickle=False)
    except Exception as error:  # a damaged header is a damaged Python literal: it fails in any way
        raise damaged(path, f"no array of a .npy file: {type(error).__name__} {error}") from error
    if events.ndim != 2 or events.shape[1] != 4 or events.dtype.kind not in "iuf":
        raise damaged(path, f"expected numbers [events, 4], got {events.dtype} {events.shape}")
    if stream.tell() != len(data):
        raise damaged(path, f"{len(data) - stream.tell()} bytes behind the events")
    return events


class _Recordings:
    """Recording ``i`` as times and neuron ids."""

    def __init__(self, paths: List[str], camera: Camera) -> None:
        self._paths, self._camera = paths, camera

    def __call__(self, index: int) -> Tuple[np.ndarray, np.ndarray]:
        return self._camera.neurons(*read_events(self._paths[index]))


def _files(folder: str) -> Tuple[List[str], List[int]]:
    """Recordings of ``folder/user<number>_<light>/<label>.npy`` by folder and label, and their labels."""
    found = []
    for name in sorted(os.listdir(folder)):
        inner = os.path.join(folder, name)
        if not re.match(r"user\d+_", name) or not os.path.isdir(inner):
            continue
        for file in os.listdir(inner):
            label, ending = os.path.splitext(file)
            if ending != ".npy":
                continue
            path = os.path.join(inner, file)
            if not (label.isdecimal() and int(label) < CLASSES):
                raise ValueError(
                    f"root: {path} is not of DVS128 Gesture: expected names from 0.npy to {CLASSES - 1}.npy"
                )
            found.append((name, int(label), path))
    if not found:
        raise FileNotFoundError(f"root: no recordings in {folder}: expected user*_*/<label>.npy, as tonic makes them")
    found.sort()
    return [path for _, _, path in found], [label for _, label, _ in found]


def dvs_gesture(
    root: PathLike,
    num_steps: int = 50,
    *,
    step_us: Optional[float] = None,
    window_us: Optional[float] = None,
    crop: Optional[Size] = None,
    downsample: int = 1,
    merge_polarity: bool = False,
    values: str = "binary",
    max_spikes: Optional[int] = None,
    overflow: str = "lowest",
    cache: Union[bool, str] = True,
    download: bool = False,
) -> EventData:
    """DVS128 Gesture as tonic prepares it: 128 x 128 pixels, 2 polarities, 11 classes, one gesture per recording.

    Args:
        root: the folder that holds ``ibmGestureTrain`` and ``ibmGestureTest`` (each with folders
            ``user<number>_<light>`` of files ``<label>.npy``), or whose folder ``DVSGesture`` does.
        num_steps: time steps T.
        step_us: microseconds of a time step, from the recording's first event on; events behind the last step are left
            out. The files have milliseconds.
        window_us: in place of ``step_us``: microseconds that the steps divide evenly. With neither, 1,500,000.
        crop: use the central ``crop`` x ``crop`` or ``(height, width)`` pixels only.
        downsample: take squares of ``downsample`` x ``downsample`` pixels, after cropping, as one: 4 makes 2,048
            neurons of 32,768.
        merge_polarity: one neuron per pixel, for events of both polarities.
        values, max_spikes, overflow: as in :meth:`~snnipu.SparseSpikes.from_events`.
        cache: where binned recordings are kept, as in :class:`EventDataset`: in memory and on the disk.
        download: let tonic download what is missing into ``root/DVSGesture``. By default nothing is downloaded.

    Raises:
        FileNotFoundError: ``root`` does not hold the data set, and ``download`` is false.
        ValueError: an argument is out of range.
        DamagedFileError: reading a recording raises it where the file is damaged.
        MissingExtra, RuntimeError: ``download`` without tonic, or it failed.

    Source: Amir et al., A low power, fully event-based gesture recognition system, CVPR (2017); the first 1.5 seconds:
    Shrestha & Orchard, SLAYER: spike layer error reassignment in time, NeurIPS (2018).
    """
    step = step_length(num_steps, step_us, window_us, WINDOW_US)
    camera = Camera.of(SIDE, SIDE, crop, downsample, merge_polarity)
    names = ("ibmGestureTrain", "ibmGestureTest")
    folder = find("DVS128 Gesture", "DVSGesture", root, names, download)

    def part(name: str) -> EventDataset:
        paths, labels = _files(os.path.join(folder, name))
        return EventDataset(
            _Recordings(paths, camera),
            labels,
            num_steps=num_steps,
            num_neurons=camera.num_neurons,
            step=step,
            max_spikes=max_spikes,
            overflow=overflow,
            values=values,
            cache=cache,
            cache_key=f"dvs_gesture {tuple(camera)}",
            files=paths,
        )

    train, test = part(names[0]), part(names[1])
    return EventData("dvs_gesture", train, test, camera.num_neurons, num_steps, CLASSES, camera.shape)
