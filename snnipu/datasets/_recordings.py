"""Helpers of the readers of event recordings: time windows, event cameras, downloads."""

import contextlib
import functools
import io
import os
import sys
from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from snnipu._extras import require
from snnipu.datasets.event_data import EventData, EventDataset

PathLike = Union[str, "os.PathLike[str]"]
Size = Union[int, Tuple[int, int]]


def step_length(num_steps: int, step_us: Optional[float], window_us: Optional[float], default_us: float) -> float:
    """Return the microseconds of a time step: ``step_us``, or the window divided by ``num_steps``.

    Raises:
        ValueError: both are given, or one is not a number above 0.
    """
    if isinstance(num_steps, bool) or not isinstance(num_steps, int) or num_steps < 1:
        raise ValueError(f"num_steps must be an int of 1 or more, got {num_steps!r}")
    if step_us is not None and window_us is not None:
        raise ValueError(f"step_us and window_us exclude each other, got {step_us!r} and {window_us!r}")
    for name, value in (("step_us", step_us), ("window_us", window_us)):
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{name} must be a number of microseconds above 0, got {value!r}")
    step = step_us if step_us is not None else (default_us if window_us is None else window_us) / num_steps
    return int(step) if step == int(step) else step


class DamagedFileError(ValueError):
    """A file of a data set violates its format; the message names the file and the fault."""


def damaged(path: str, reason: object) -> DamagedFileError:
    return DamagedFileError(f"root: damaged file {path}: {reason}")


def read_bytes(path: str) -> bytes:
    """Return the contents of a file; an OSError keeps its type and names the file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise type(error)(f"root: {path} cannot be read: {error.strerror}") from error


class Camera(NamedTuple):
    """The part of an event camera's sensor that is used, and the map of its pixels to neurons."""

    polarities: int
    height: int
    width: int
    top: int = 0
    left: int = 0
    downsample: int = 1

    @classmethod
    def of(cls, height: int, width: int, crop: Optional[Size], downsample: int, merge_polarity: bool) -> "Camera":
        """Return the camera for the centre, of size ``crop``, of a sensor of ``height`` x ``width`` pixels.

        Squares of ``downsample`` x ``downsample`` pixels become one.

        Raises:
            ValueError: ``crop`` is not within the sensor, or ``downsample`` does not divide it.
        """
        size: Tuple[int, ...] = (height, width)
        if crop is not None:
            size = (crop, crop) if isinstance(crop, int) else tuple(crop)
        is_within = len(size) == 2 and all(
            isinstance(n, int) and 1 <= n <= largest for n, largest in zip(size, (height, width))
        )
        if not is_within or isinstance(crop, bool):
            raise ValueError(f"crop must be an int or (height, width), from 1 to {(height, width)}, got {crop!r}")
        if isinstance(downsample, bool) or not isinstance(downsample, int) or downsample < 1:
            raise ValueError(f"downsample must be an int of 1 or more, got {downsample!r}")
        if size[0] % downsample or size[1] % downsample:
            raise ValueError(f"downsample must divide the {size[0]} x {size[1]} pixels used, got {downsample}")
        top, left = (height - size[0]) // 2, (width - size[1]) // 2
        shape = (size[0] // downsample, size[1] // downsample)
        return cls(1 if merge_polarity else 2, *shape, top, left, downsample)

    @property
    def shape(self) -> Tuple[int, int, int]:
        return self.polarities, self.height, self.width

    @property
    def num_neurons(self) -> int:
        return self.polarities * self.height * self.width

    def neurons(self, events: Sequence[np.ndarray]) -> Tuple[np.ndarray, np.ndarray]:
        """Return times and neuron ids of the events (times, x, y, polarities) within the crop."""
        times, x, y, polarity = events
        row, column = y.astype(np.int64) - self.top, x.astype(np.int64) - self.left
        within = (row >= 0) & (row < self.height * self.downsample)
        within &= (column >= 0) & (column < self.width * self.downsample)
        row, column = row // self.downsample, column // self.downsample
        unit = row * self.width + column
        if self.polarities == 2:
            unit += polarity.astype(np.int64) * (self.height * self.width)
        return (times, unit) if within.all() else (times[within], unit[within])


class _FileReader:
    """A reader: recording ``i``, one file, as times and neuron ids."""

    def __init__(self, paths: Sequence[str], read: Callable[[str], Any], spikes_of: Callable[[Any], Any]) -> None:
        self._paths, self._read, self._spikes_of = paths, read, spikes_of

    def __call__(self, index: int) -> Any:
        return self._spikes_of(self._read(self._paths[index]))


def data_of_files(
    name: str,
    parts: Iterable[Tuple[Sequence[str], Sequence[int]]],
    read: Callable[[str], Any],
    spikes_of: Callable[[Any], Any],
    num_neurons: int,
    num_classes: int,
    sensor_shape: Optional[Tuple[int, ...]] = None,
    **options: Any,
) -> EventData:
    """Return a data set of one file for each recording.

    Args:
        name, num_neurons, num_classes, sensor_shape: as in :class:`EventData`.
        parts: files and labels of the training set, and of the test set.
        read: returns the contents of a file. Worker processes need functions that can be pickled.
        spikes_of: returns times and neuron ids of the contents.
        options: arguments of :class:`EventDataset`.
    """
    train, test = (
        EventDataset(_FileReader(paths, read, spikes_of), labels, num_neurons=num_neurons, files=paths, **options)
        for paths, labels in parts
    )
    return EventData(name, train, test, num_neurons, options["num_steps"], num_classes, sensor_shape)


def check_pixels(path: str, x: np.ndarray, y: np.ndarray, height: int, width: int) -> None:
    """Check that every event is on the sensor; raise DamagedFileError otherwise."""
    outside = (x < 0) | (x >= width) | (y < 0) | (y >= height)
    if outside.any():
        event = int(outside.argmax())
        raise damaged(
            path, f"event {event} is at x={x[event]:g}, y={y[event]:g}, outside the sensor's {width} x {height} pixels"
        )


def check_order(path: str, times: np.ndarray) -> None:
    """Check that the times never decrease; raise DamagedFileError otherwise."""
    decreases = times[1:] < times[:-1]
    if decreases.any():
        event = int(decreases.argmax())
        raise damaged(path, f"time runs backwards, from {times[event]:g} to {times[event + 1]:g} at event {event + 1}")


def fetch(name: str, root: PathLike, download: Callable[[], object]) -> None:
    """Call ``download``, without the progress bars of its library if standard error is no terminal.

    Raises:
        RuntimeError: the download failed.
    """
    bars = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    try:
        with bars:
            download()
    except Exception as error:
        reason = f"{type(error).__name__} {error}"
        raise RuntimeError(f"root: {name} could not be downloaded into {os.fspath(root)!r}: {reason}") from error


def find(title: str, name: str, root: PathLike, parts: Sequence[str], download: bool) -> str:
    """Return the folder, ``root`` or ``root/<name>``, that holds all ``parts``; with ``download`` tonic fetches them.

    Raises:
        MissingExtra: tonic is not installed.
        RuntimeError: the download failed.
        FileNotFoundError: there is no such folder.
    """
    root = os.fspath(root)
    if download:
        dataset_class: Any = getattr(require("tonic.datasets", extra="events", purpose=f"downloading {name}"), name)
        for train in (True, False):
            fetch(name, root, functools.partial(dataset_class, save_to=root, train=train))
    for folder in (root, os.path.join(root, name)):
        if all(os.path.exists(os.path.join(folder, part)) for part in parts):
            return folder
    problem = f"does not hold {parts[0]} and {parts[1]}" if os.path.isdir(root) else "is not a folder"
    raise FileNotFoundError(f"root: no {title}: {root!r} {problem}; download=True fetches the data set with tonic")
