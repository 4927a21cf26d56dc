"""Spoken digits: filters and spikes of known sounds, the split of the recordings, and errors for invalid files."""

import numpy as np
import pytest
from support.sounds import RATE, tone
from support.sounds import write_sound as write
from support.tables import each_row

from snnipu import datasets


@pytest.fixture
def folder(tmp_path):
    """Write two digits by two speakers, recordings 3 to 6; the digit sets the frequency of the tone."""
    for digit in (0, 7):
        for speaker in ("ann", "bob"):
            for number in (3, 4, 5, 10):
                write(tmp_path / "recordings" / f"{digit}_{speaker}_{number}.wav", tone(300 + 300 * digit, 0.3))
    (tmp_path / "recordings" / "README").write_text("no recording")
    return tmp_path


@pytest.mark.parametrize("channels", [1, 7, 100])
def test_filters(channels):
    """The filters equal the equation of a gammatone, and convolutions with it."""
    cochlea = datasets.Cochlea(channels)
    assert len(cochlea.frequencies) == channels
    for hertz, response in zip(cochlea.frequencies, cochlea.filters):
        seconds = np.arange(len(response)) / RATE
        erb = 24.7 * (4.37 * hertz / 1000 + 1)
        expected = seconds**3 * np.exp(-2 * np.pi * 1.019 * erb * seconds) * np.cos(2 * np.pi * hertz * seconds)
        gain = np.abs(np.sum(expected * np.exp(-2j * np.pi * hertz * seconds)))
        np.testing.assert_allclose(response, expected / gain, rtol=1e-9, atol=1e-12)
    sound = np.random.default_rng(0).normal(size=1601)
    sound /= np.sqrt(np.mean(sound**2))
    bands = np.stack([np.convolve(sound, response)[:1600] for response in cochlea.filters])
    expected = (np.maximum(bands, 0).reshape(channels, 200, 8).mean(-1) ** 0.3).T
    np.testing.assert_allclose(cochlea.currents(sound), expected, rtol=1e-5, atol=1e-5)


def test_bands_are_equally_spaced_on_the_erb_scale():
    frequencies = datasets.Cochlea(40).frequencies
    assert frequencies[[0, -1]] == pytest.approx([80, 3800])
    np.testing.assert_allclose(np.diff(np.log10(1 + 0.00437 * frequencies), n=2), 0, atol=1e-12)


def test_a_tone_excites_its_own_channel():
    cochlea = datasets.Cochlea(70)
    for channel in (5, 30, 60):
        times, channels = cochlea(tone(cochlea.frequencies[channel]))
        spikes = np.bincount(channels, minlength=70)
        assert abs(np.average(np.arange(70), weights=spikes) - channel) < 3
        assert spikes[channel] == spikes.max() > 50
        assert 0 <= times.min() < 30_000
        assert 470_000 < times.max() <= 499_000


def test_loudness_and_silence():
    cochlea = datasets.Cochlea(70)
    sound = tone(440) * np.linspace(0, 1, RATE // 2)
    for soft, loud in zip(cochlea(sound * 2.0**-8), cochlea(sound)):
        assert np.array_equal(soft, loud)
    assert [len(part) for part in cochlea(np.zeros(800))] == [0, 0]
    assert [len(part) for part in cochlea(np.ones(7))] == [0, 0]  # less than a millisecond


def test_parts(folder):
    data = datasets.spoken_digits(folder, 30, step_us=10_000, cache="memory")
    assert (data.name, data.num_neurons, data.num_steps, data.num_classes) == ("spoken_digits", 70, 30, 10)
    assert data.sensor_shape is None
    assert data.train.labels.tolist() == data.test.labels.tolist() == [0, 0, 0, 0, 7, 7, 7, 7]
    spikes, labels = data.train.batch([0, 7])
    assert (spikes.shape, labels.tolist(), spikes.outside) == ((30, 2, 70), [0, 7], 0)
    frequencies = datasets.Cochlea(70).frequencies
    for counts, hertz in zip(spikes.spike_count().numpy(), (300, 2400)):
        assert frequencies[counts == counts.max()].mean() == pytest.approx(hertz, rel=0.2)
    assert datasets.spoken_digits(folder / "recordings").train.step == 10_000
    assert datasets.spoken_digits(folder, 2, window_us=100_000, channels=9).test[0][0].outside > 0


def test_split_by_speaker(folder):
    write(folder / "recordings" / "7_bob_11.wav")
    data = datasets.spoken_digits(folder, test_speakers=["bob"])
    assert (len(data.train), len(data.test)) == (8, 9)
    for wrong in (["eve"], ["ann", "bob"], "bob", []):
        with pytest.raises(ValueError, match=r"^test_speakers must be some of ann, bob, got"):
            datasets.spoken_digits(folder, test_speakers=wrong)


def test_missing_and_misnamed(folder, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"root: no Free Spoken Digit Dataset: .*absent' is not a folder; it is"
    ):
        datasets.spoken_digits(tmp_path / "absent")
    write(tmp_path / "few" / "1_ann_5.wav")
    with pytest.raises(FileNotFoundError, match=r"few' has 0 recordings for testing and 1 for training; .*CC BY-SA"):
        datasets.spoken_digits(tmp_path / "few")
    for name in ("one_ann_1.wav", "11_ann_1.wav", "1_ann.wav"):
        write(tmp_path / "few" / name)
        with pytest.raises(ValueError, match=rf"root: .*{name} is not named <digit>_<speaker>_<number>.wav"):
            datasets.spoken_digits(tmp_path / "few")
        (tmp_path / "few" / name).unlink()
    for wrong in (0, 2.0, True):
        with pytest.raises(ValueError, match="channels must be an int of 1 or more"):
            datasets.spoken_digits(folder, channels=wrong)


@each_row("""
channels=2 | expected 1 channel of 16 bits at 8000 Hz, got 2 of 16 bits at 8000 Hz
bits=8 | got 1 of 8 bits
rate=16000 | at 16000 Hz
sound=np.zeros(0) | it has 0 samples, expected 1 to 480000
sound=np.zeros(480_001) | it has 480001 samples
""")
def test_other_sounds_are_refused(folder, row):
    options, message = row.split(" | ")
    path = folder / "recordings" / "0_ann_5.wav"
    write(path, **eval(f"dict({options})"))
    train = datasets.spoken_digits(folder, cache=False).train
    at = [index for index in range(8) if str(path) == train._read._paths[index]]
    train[7]
    with pytest.raises(datasets.DamagedFileError, match=rf"^root: damaged file .*0_ann_5.wav: .*{message}"):
        train.batch(at)


@pytest.mark.slow
def test_recordings(data_folder):
    """The real data set has the right split, and speech in the channels of speech."""
    folder = data_folder / "fsdd"
    if not (folder / "recordings").is_dir():
        pytest.skip(f"no Free Spoken Digit Dataset in {folder}")
    data = datasets.spoken_digits(folder, cache="memory")
    assert (data.train.labels.bincount().tolist(), data.test.labels.bincount().tolist()) == ([270] * 10, [30] * 10)
    spikes, _ = data.test.batch(range(300))
    assert 0.1 < spikes.activity < 0.2
    assert (spikes.spike_count().sum(1) > 100).all()
    assert len(datasets.spoken_digits(folder, test_speakers=["theo", "lucas"]).test) == 1000
