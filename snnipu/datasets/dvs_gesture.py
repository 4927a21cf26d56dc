"""DVS128 Gesture: hand and arm gestures in front of an event camera, from the files that tonic writes."""

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
    data_of_files,
    find,
    read_bytes,
    step_length,
)
from snnipu.datasets.event_data import EventData

SIDE = 128
CLASSES = 11
# The part of a recording of about 6 seconds that published runs use.
WINDOW_US = 1_500_000
# A longer recording is damaged.
LONGEST_US = 3_600_000_000


def read_events(path: str) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return times, x, y and polarity (0 or 1) of the events of a ``.npy`` file.

    Times are microseconds from the first event on. The file holds an array ``[events, 4]``: x, y, polarity, and time in
    milliseconds.

    Raises:
        OSError: there is no such file, or it cannot be read.
        DamagedFileError: the file has another array or another length than its header states; or an event is off the
            sensor, has another polarity, or is an hour or more after the first.
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
    """Return the numbers ``[events, 4]`` of a ``.npy`` file."""
    stream = io.BytesIO(data)
    try:
        events: np.ndarray = npy.read_array(stream, allow_pickle=False)
    except Exception as error:  # a damaged header is a damaged Python literal: it raises errors of many types
        raise damaged(path, f"no array of a .npy file: {type(error).__name__} {error}") from error
    if events.ndim != 2 or events.shape[1] != 4 or events.dtype.kind not in "iuf":
        raise damaged(path, f"expected numbers [events, 4], got {events.dtype} {events.shape}")
    if stream.tell() != len(data):
        raise damaged(path, f"{len(data) - stream.tell()} bytes after the events")
    return events


def _files(folder: str) -> Tuple[List[str], List[int]]:
    """Return the files ``folder/user<number>_<light>/<label>.npy``, sorted by folder and label, and their labels."""
    recordings = []
    for name in sorted(os.listdir(folder)):
        subfolder = os.path.join(folder, name)
        if not re.match(r"user\d+_", name) or not os.path.isdir(subfolder):
            continue
        for file in os.listdir(subfolder):
            label, ending = os.path.splitext(file)
            if ending != ".npy":
                continue
            path = os.path.join(subfolder, file)
            if not (label.isdecimal() and int(label) < CLASSES):
                raise ValueError(
                    f"root: {path} is not of DVS128 Gesture: expected names from 0.npy to {CLASSES - 1}.npy"
                )
            recordings.append((name, int(label), path))
    if not recordings:
        raise FileNotFoundError(f"root: no recordings in {folder}: expected tonic's files user*_*/<label>.npy")
    recordings.sort()
    return [path for _, _, path in recordings], [label for _, label, _ in recordings]


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
    """Load DVS128 Gesture in tonic's format: 128 x 128 pixels, 2 polarities, 11 classes, one gesture per recording.

    Args:
        root: the folder that holds ``ibmGestureTrain`` and ``ibmGestureTest`` (each with folders
            ``user<number>_<light>`` of files ``<label>.npy``), or the parent of such a folder ``DVSGesture``.
        num_steps: time steps T.
        step_us: microseconds of a time step, from the recording's first event on; events after the last step are
            dropped. The files have milliseconds.
        window_us: instead of ``step_us``: microseconds of all steps together. Default: 1,500,000.
        crop: use only the central ``crop`` x ``crop`` or ``(height, width)`` pixels.
        downsample: combine squares of ``downsample`` x ``downsample`` pixels into one, after cropping: 4 makes 2,048
            neurons of 32,768.
        merge_polarity: True: one neuron per pixel, for events of both polarities.
        values, max_spikes, overflow: arguments of :meth:`~snnipu.SparseSpikes.from_events`.
        cache: place of binned recordings, see :class:`EventDataset`; True: in memory and on the disk.
        download: let tonic download missing files into ``root/DVSGesture``. By default nothing is downloaded.

    Returns:
        An :class:`EventData`.

    Raises:
        FileNotFoundError: ``root`` does not hold the data set, and ``download`` is false.
        ValueError: an argument is out of range.
        DamagedFileError: a file is damaged; raised when the recording is read.
        MissingExtra, RuntimeError: ``download`` without tonic, or it failed.

    Source: Amir et al., A low power, fully event-based gesture recognition system, CVPR (2017); the first 1.5 seconds:
    Shrestha & Orchard, SLAYER: spike layer error reassignment in time, NeurIPS (2018).
    """
    step = step_length(num_steps, step_us, window_us, WINDOW_US)
    camera = Camera.of(SIDE, SIDE, crop, downsample, merge_polarity)
    names = ("ibmGestureTrain", "ibmGestureTest")
    folder = find("DVS128 Gesture", "DVSGesture", root, names, download)

    return data_of_files(
        "dvs_gesture",
        [_files(os.path.join(folder, name)) for name in names],
        read_events,
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
        cache_key=f"dvs_gesture {tuple(camera)}",
    )
