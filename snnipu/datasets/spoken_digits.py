"""Free Spoken Digit Dataset: recordings of ten spoken digits, as spikes of a simple model of the inner ear."""

import io
import math
import os
import re
import struct
import wave
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch

from snnipu.datasets._recordings import PathLike, damaged, data_of_files, read_bytes, step_length
from snnipu.datasets.event_data import EventData
from snnipu.neurons import Leaky

CLASSES = 10
RATE = 8000
# 99 % of the recordings are shorter.
RECORDING_US = 1_000_000
# A longer recording is damaged.
LONGEST_SECONDS = 60
# Numbers of the test recordings of each digit and speaker, as the data set proposes.
TEST_RECORDINGS = range(5)

_FRAME = 8  # samples, 1 ms
_FILTER = 800  # samples; the longest filter decays to 1e-5 of its maximum
_LOWEST_HZ, _HIGHEST_HZ = 80.0, 3800.0
_COMPRESSION = 0.3
_MEMBRANE_MS = 5.0
_GAIN = 0.6
_NAME = re.compile(r"(\d)_([A-Za-z0-9-]+)_(\d+)\.wav")


def read_sound(path: str) -> np.ndarray:
    """Return the samples of a ``.wav`` file, float64 from -1 to 1.

    Raises:
        OSError: there is no such file, or it cannot be read.
        DamagedFileError: the file is not a WAV file of 16-bit samples, mono, 8 kHz, or it is too short or empty.
    """
    try:
        with wave.open(io.BytesIO(read_bytes(path))) as sound:
            audio_format = (sound.getnchannels(), 8 * sound.getsampwidth(), sound.getframerate())
            number = sound.getnframes()
            data = sound.readframes(number)
    except (wave.Error, EOFError, struct.error, RuntimeError) as error:
        raise damaged(path, str(error) or "it ends too early") from error
    if audio_format != (1, 16, RATE):
        channels, bits, rate = audio_format
        raise damaged(path, f"expected 1 channel of 16 bits at {RATE} Hz, got {channels} of {bits} bits at {rate} Hz")
    if not 0 < number <= LONGEST_SECONDS * RATE:
        raise damaged(path, f"it has {number} samples, expected 1 to {LONGEST_SECONDS * RATE}")
    if len(data) != 2 * number:
        raise damaged(path, f"it has {len(data) // 2} of {number} samples")
    return np.frombuffer(data, "<i2") / 2.0**15


class Cochlea:
    """A model of the inner ear: sounds of 8 kHz become spikes of ``channels`` neurons, the lowest frequency first.

    1. The sound is scaled to a mean square of 1.
    2. Gammatone filters of order 4, with bands equally spaced on the ERB scale (Glasberg & Moore 1990) from 80 to
       3,800 Hz, of 1.019 ERB each.
    3. Hair cells: half-wave rectification, means over 1 ms, and compression by the power 0.3.
    4. Leaky integrate-and-fire neurons at steps of 1 ms, with a time constant of 5 ms.

    Args:
        channels: number of frequency bands and neurons.

    Attributes:
        frequencies: frequencies of the bands, in Hz.
        filters: the filters' impulse responses, ``[channels, samples]``; a tone in the middle of a band keeps its
            amplitude.

    Raises:
        ValueError: ``channels`` is not a positive int.
    """

    def __init__(self, channels: int) -> None:
        if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
            raise ValueError(f"channels must be an int of 1 or more, got {channels!r}")
        low, high = (21.4 * math.log10(1 + 0.00437 * hertz) for hertz in (_LOWEST_HZ, _HIGHEST_HZ))
        self.frequencies = (10 ** (np.linspace(low, high, channels) / 21.4) - 1) / 0.00437
        widths = 1.019 * 24.7 * (1 + 0.00437 * self.frequencies)
        seconds = np.arange(_FILTER) / RATE
        waves = np.exp(2j * math.pi * self.frequencies[:, None] * seconds)
        shapes = seconds**3 * np.exp(-2 * math.pi * widths[:, None] * seconds)
        filters = shapes * waves.real
        self.filters = filters / np.abs((filters * waves).sum(1, keepdims=True))
        self._neurons = Leaky(beta=math.exp(-1 / _MEMBRANE_MS))
        self._responses: Dict[int, np.ndarray] = {}

    def _filtered(self, sound: np.ndarray) -> np.ndarray:
        """Return the convolutions of the sound with the filters, ``[channels, samples]``."""
        size = 2 ** math.ceil(math.log2(len(sound) + _FILTER))
        if size not in self._responses:
            self._responses[size] = np.fft.rfft(self.filters, size)
        return np.fft.irfft(self._responses[size] * np.fft.rfft(sound, size), size)[:, : len(sound)]

    def currents(self, sound: np.ndarray) -> np.ndarray:
        """Return the output of the hair cells, float32 ``[milliseconds, channels]``: the cochleagram.

        Args:
            sound: samples, see :func:`read_sound`.
        """
        power = float(np.mean(sound**2))
        bands = self._filtered(sound / math.sqrt(power) if power else sound)
        frames = np.maximum(bands, 0)[:, : len(sound) // _FRAME * _FRAME].reshape(len(bands), -1, _FRAME).mean(-1)
        return np.ascontiguousarray(frames.T**_COMPRESSION, np.float32)

    def __call__(self, sound: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Return times in microseconds and channels of the spikes.

        Args:
            sound: samples, see :func:`read_sound`.
        """
        currents = torch.from_numpy(_GAIN * self.currents(sound))
        if not len(currents):
            return np.zeros(0), np.zeros(0, np.int64)
        with torch.no_grad():
            spk, _ = self._neurons.sequence(currents[:, None])
        steps, channels = spk[:, 0].numpy().nonzero()
        return steps * 1000.0, channels


class Recording(NamedTuple):
    """A file: the fields of its name, and its path."""

    digit: int
    speaker: str
    number: int
    path: str


def _recordings(folder: str) -> List[Recording]:
    """Return all recordings of a folder, sorted by digit, speaker and number."""
    recordings = []
    for name in os.listdir(folder):
        if not name.endswith(".wav") or name.startswith("."):
            continue
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"root: {os.path.join(folder, name)} is not named <digit>_<speaker>_<number>.wav")
        recordings.append(Recording(int(match[1]), match[2], int(match[3]), os.path.join(folder, name)))
    return sorted(recordings)


def _is_test(recordings: List[Recording], test_speakers: Optional[Sequence[str]]) -> List[bool]:
    if test_speakers is None:
        return [recording.number in TEST_RECORDINGS for recording in recordings]
    speakers = {recording.speaker for recording in recordings}
    if isinstance(test_speakers, str) or not set(test_speakers) < speakers or not test_speakers:
        raise ValueError(f"test_speakers must be some of {', '.join(sorted(speakers))}, got {test_speakers!r}")
    return [recording.speaker in test_speakers for recording in recordings]


def spoken_digits(
    root: PathLike,
    num_steps: int = 100,
    *,
    channels: int = 70,
    step_us: Optional[float] = None,
    window_us: Optional[float] = None,
    test_speakers: Optional[Sequence[str]] = None,
    values: str = "binary",
    max_spikes: Optional[int] = None,
    overflow: str = "lowest",
    cache: Union[bool, str] = True,
) -> EventData:
    """Load the Free Spoken Digit Dataset: 3,000 recordings of ten spoken digits by six speakers, as a cochlea's spikes.

    :class:`~snnipu.datasets.Cochlea` processes each recording: gammatone filters, hair cells and leaky
    integrate-and-fire neurons at steps of 1 ms, one a frequency channel. A recording lasts 0.14 to 2.3 seconds.

    The data set is not part of this package. It is at https://github.com/Jakobovski/free-spoken-digit-dataset, under
    the licence CC BY-SA 4.0.

    Args:
        root: the folder that holds ``<digit>_<speaker>_<number>.wav``, or the parent of such a folder ``recordings``.
        num_steps: time steps T.
        channels: number of frequency bands and neurons.
        step_us: microseconds of a time step; events after the last step are dropped.
        window_us: instead of ``step_us``: microseconds of all steps together. Default: 1,000,000, which is longer than
            99 % of the recordings.
        test_speakers: speakers of the test set, such as ``["theo"]``; all others are in the training set. None:
            recordings 0 to 4 of each digit and speaker are the test set, as the data set proposes.
        values, max_spikes, overflow: arguments of :meth:`~snnipu.SparseSpikes.from_events`.
        cache: place of binned recordings, see :class:`EventDataset`; True: in memory and on the disk.

    Returns:
        An :class:`EventData`.

    Raises:
        FileNotFoundError: ``root`` does not hold recordings of both sets.
        ValueError: an argument is out of range, or a ``.wav`` file has another name.
        DamagedFileError: a file is damaged, or not 16 bits, mono, 8 kHz; raised when the recording is read.

    Source: Jackson, Souza, Flaks, Pan, Nicolas & Thite, Free Spoken Digit Dataset, v1.0.8 (2018).
    """
    step = step_length(num_steps, step_us, window_us, RECORDING_US)
    cochlea = Cochlea(channels)
    root = os.fspath(root)
    folders = [path for path in (root, os.path.join(root, "recordings")) if os.path.isdir(path)]
    all_recordings = next(filter(None, map(_recordings, folders)), [])
    is_test = _is_test(all_recordings, test_speakers) if all_recordings else []
    if not (any(is_test) and not all(is_test)):
        split_sizes = f"has {sum(is_test)} recordings for testing and {len(is_test) - sum(is_test)} for training"
        raise FileNotFoundError(
            f"root: no Free Spoken Digit Dataset: {root!r} {split_sizes if folders else 'is not a folder'}; it is at "
            "https://github.com/Jakobovski/free-spoken-digit-dataset (CC BY-SA 4.0)"
        )

    parts = []
    for test in (False, True):
        recordings = [recording for recording, in_test in zip(all_recordings, is_test) if in_test == test]
        parts.append(([recording.path for recording in recordings], [recording.digit for recording in recordings]))
    return data_of_files(
        "spoken_digits",
        parts,
        read_sound,
        cochlea,
        channels,
        CLASSES,
        num_steps=num_steps,
        step=step,
        max_spikes=max_spikes,
        overflow=overflow,
        values=values,
        cache=cache,
        cache_key="spoken_digits",
    )
