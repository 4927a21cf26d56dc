"""DVS128 Gesture: hand and arm gestures in front of an event camera, from the files that tonic makes."""

import os
import re
from typing import List, Optional, Tuple

import numpy as np

from snnipu.datasets._recordings import Camera, PathLike, Size, check_pixels, fetch, step_length
from snnipu.datasets.event_data import EventData, EventDataset

SIDE = 128
CLASSES = 11
# Of recordings of about 6 seconds, what published runs use.
WINDOW_US = 1_500_000


def read_events(path: str) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Times in microseconds from the first event on, x, y and polarity (0 or 1) of the events of a ``.npy`` file.

    The file holds an array ``[events, 4]``: x, y, polarity, and time in milliseconds.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, holds no such array, or names a pixel off the sensor.
    """
    try:
        events = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"root: damaged file {path}: {error}") from error
    if not isinstance(events, np.ndarray) or events.ndim != 2 or events.shape[1] != 4 or events.dtype.kind not in "iuf":
        what = f"{events.dtype} {events.shape}" if isinstance(events, np.ndarray) else type(events).__name__
        raise ValueError(f"root: damaged file {path}: expected numbers [events, 4], got {what}")
    if not len(events):
        raise ValueError(f"root: damaged file {path}: it holds no event")
    if not np.isfinite(events).all():
        raise ValueError(f"root: damaged file {path}: it holds numbers that are not finite")
    x, y, polarity, milliseconds = np.ascontiguousarray(events.T).astype(np.float64)
    check_pixels(path, x, y, SIDE, SIDE)
    if not np.isin(polarity, (0, 1)).all():
        raise ValueError(f"root: damaged file {path}: polarities must be 0 or 1")
    times = (milliseconds - milliseconds.min()) * 1000
    return times, x.astype(np.int64), y.astype(np.int64), polarity.astype(np.int64)


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
    cache: bool = True,
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
        cache: keep binned recordings in memory.
        download: let tonic download what is missing into ``root/DVSGesture``. By default nothing is downloaded.

    Raises:
        FileNotFoundError: ``root`` does not hold the data set, and ``download`` is false.
        ValueError: an argument is out of range. Reading a recording raises it for a damaged file.
        MissingExtra, RuntimeError: ``download`` without tonic, or it failed.

    Source: Amir et al., A low power, fully event-based gesture recognition system, CVPR (2017); the first 1.5 seconds:
    Shrestha & Orchard, SLAYER: spike layer error reassignment in time, NeurIPS (2018).
    """
    step = step_length(num_steps, step_us, window_us, WINDOW_US)
    camera = Camera.of(SIDE, SIDE, crop, downsample, merge_polarity)
    root = os.fspath(root)
    if download:
        fetch("DVSGesture", root)
    names = ("ibmGestureTrain", "ibmGestureTest")
    places = [root, os.path.join(root, "DVSGesture")]
    found = [place for place in places if all(os.path.isdir(os.path.join(place, name)) for name in names)]
    if not found:
        what = f"has no folders {names[0]} and {names[1]}" if os.path.isdir(root) else "is not a folder"
        raise FileNotFoundError(
            f"root: no DVS128 Gesture: {root!r} {what}; download=True fetches the data set with tonic"
        )

    def part(name: str) -> EventDataset:
        paths, labels = _files(os.path.join(found[0], name))
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
        )

    train, test = part(names[0]), part(names[1])
    return EventData("dvs_gesture", train, test, camera.num_neurons, num_steps, CLASSES, camera.shape)


__all__ = ["dvs_gesture"]
