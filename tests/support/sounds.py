"""Sound files for tests of the spoken digits."""

import wave

import numpy as np

RATE = 8000


def tone(hertz, seconds=0.5):
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)


def write_sound(path, sound=None, channels=1, bits=16, rate=RATE):
    """Write a ``.wav`` file with samples from -1 to 1, or a tone of 500 Hz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.round((tone(500, 0.2) if sound is None else sound) * 0.5 * 2**15).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(bits // 8)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
