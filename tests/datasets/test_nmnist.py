"""N-MNIST: the file format byte by byte, equality with tonic, and errors for invalid files."""

import sys
import types

import numpy as np
import pytest
import torch
from support.recordings import nmnist_event as event
from support.recordings import places
from support.tables import assert_refused, each_row
from tqdm import tqdm

from snnipu import datasets
from snnipu._extras import MissingExtra
from snnipu.datasets.nmnist import read_events


def write(root, train, test=None, folder=""):
    """Write the files ``{"label/name": bytes}`` of both parts."""
    for part, files in (("Train", train), ("Test", test or train)):
        for name, data in files.items():
            path = root / folder / part / f"{name}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return root


EVENTS = [(0, 0, 0, 0), (33, 33, 1, 1000), (5, 28, 0, 104_999), (17, 16, 1, 105_000), (17, 16, 1, 106_000)]


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path, {"3/00001": b"".join(event(*e) for e in EVENTS), "0/00009": event(1, 2, 1, 3)})


def test_format(tmp_path):
    path = tmp_path / "one.bin"
    path.write_bytes(bytes([0x21, 0x09, 0x81, 0x02, 0x03]) + bytes([0x02, 0x20, 0x7F, 0xFF, 0xFF]))
    times, x, y, polarity = read_events(str(path))
    assert times.tolist() == [0x010203, 2**23 - 1]
    assert x.tolist() == [0x21, 0x02]
    assert y.tolist() == [0x09, 0x20]
    assert polarity.tolist() == [1, 0]


def test_overflow_of_the_clock(tmp_path):
    path = tmp_path / "one.bin"
    turn = event(0, 240, 0, 0)
    path.write_bytes(event(1, 2, 0, 8000) + turn + event(3, 4, 1, 5) + turn + turn + event(5, 6, 0, 7))
    times, x, y, polarity = read_events(str(path))
    assert times.tolist() == [8000, 8192 + 5, 3 * 8192 + 7]
    assert (x.tolist(), y.tolist(), polarity.tolist()) == ([1, 3, 5], [2, 4, 6], [0, 1, 0])


def test_reads_the_layout(folder):
    data = datasets.nmnist(folder, 315)
    assert (data.name, data.num_neurons, data.num_steps, data.num_classes) == ("nmnist", 2312, 315, 10)
    assert data.sensor_shape == (2, 34, 34)
    assert data.train.labels.tolist() == [0, 3]  # by label, then by name
    spikes, label = data.train[1]
    assert label == 3
    assert spikes.shape == (315, 1, 2312)
    expected = [(t // 1000, (p * 34 + y) * 34 + x, 1) for x, y, p, t in EVENTS]
    assert places(spikes) == expected
    assert data.test[0][0].num_spikes == 1


def test_reads_tonics_layout(tmp_path):
    write(tmp_path, {"7/00001": event(1, 2, 1, 3)}, folder="NMNIST")
    assert datasets.nmnist(tmp_path).train.labels.tolist() == [7]


def test_window(folder):
    assert datasets.nmnist(folder).train.step == 3150
    assert datasets.nmnist(folder, first_saccade=True).train.step == 1050
    assert datasets.nmnist(folder, 7, window_us=10).train.step == pytest.approx(10 / 7)
    spikes, _ = datasets.nmnist(folder, 100, step_us=1000).train[1]
    assert (spikes.num_spikes, spikes.outside) == (2, 3)
    assert spikes.num_steps == 100
    spikes, _ = datasets.nmnist(folder, 10, window_us=1010).train[1]
    assert places(spikes) == [(0, 0, 1), (9, 2311, 1)]


def test_first_saccade(folder):
    spikes, _ = datasets.nmnist(folder, 300, step_us=1000, first_saccade=True).train[1]
    assert [t for t, _, _ in places(spikes)] == [0, 1, 104]
    assert spikes.outside == 0


def test_crop(folder):
    data = datasets.nmnist(folder, 315, crop=24)
    assert data.sensor_shape == (2, 24, 24)
    assert data.num_neurons == data.train.num_neurons == 2 * 24 * 24
    # The crop takes rows and columns 5 to 28; (x=5, y=28) is its first column and last row.
    at = (24 + 16 - 5) * 24 + 17 - 5
    assert places(data.train[1][0]) == [(104, 23 * 24, 1), (105, at, 1), (106, at, 1)]
    assert datasets.nmnist(folder, crop=(10, 34)).sensor_shape == (2, 10, 34)
    assert datasets.nmnist(folder, 1, crop=34).train[1][0].num_spikes == 4


def test_merged_polarities(tmp_path):
    events = [(4, 5, 0, 10), (4, 5, 1, 20), (4, 5, 1, 30), (6, 5, 1, 30)]
    write(tmp_path, {"0/00001": b"".join(event(*e) for e in events)})
    data = datasets.nmnist(tmp_path, 1, merge_polarity=True, values="count")
    assert data.sensor_shape == (1, 34, 34)
    assert places(data.train[0][0]) == [(0, 174, 3), (0, 176, 1)]
    apart = datasets.nmnist(tmp_path, 1, values="count")
    assert places(apart.train[0][0]) == [(0, 174, 1), (0, 1156 + 174, 2), (0, 1156 + 176, 1)]
    limited = datasets.nmnist(tmp_path, 1, max_spikes=2)
    assert places(limited.train[0][0]) == [(0, 174, 1), (0, 1156 + 174, 1)]
    assert limited.train[0][0].overflow == 1


@each_row(r"""
b"" | it is empty
event(1, 2, 0, 3) + b"\0\0\0" | 8 bytes, not a multiple of the 5
event(1, 2, 0, 3) + event(34, 2, 0, 3) | event 1 is at x=34, y=2, outside the sensor's 34 x 34
event(1, 239, 0, 3) | event 0 is at x=1, y=239
event(1, 2, 0, 9) + event(1, 2, 0, 3) | time runs backwards, from 9 to 3 at event 1
event(0, 240, 0, 0) | no event
""")
@pytest.mark.parametrize("crop", [None, 24])
def test_damaged_file(tmp_path, row, crop):
    data, message = row.split(" | ")
    write(tmp_path, {"0/00001": event(1, 2, 0, 3), "4/00002": eval(data)})
    train = datasets.nmnist(tmp_path, crop=crop).train
    train[0]
    with pytest.raises(ValueError, match=r"root: damaged file .*4.00002.bin: .*" + message):
        train[1]


def test_file_that_went_away(folder):
    train = datasets.nmnist(folder).train
    (folder / "Train" / "0" / "00009.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"00009.bin"):
        train[0]


def test_missing_data(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"root: no N-MNIST: .*absent' is not a folder; download=True"):
        datasets.nmnist(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"root: no N-MNIST: .* does not hold Train and Test"):
        datasets.nmnist(tmp_path)
    (tmp_path / "Train" / "0").mkdir(parents=True)
    (tmp_path / "Test").mkdir()
    with pytest.raises(FileNotFoundError, match=r"root: no recordings in .*Train: expected .*bin"):
        datasets.nmnist(tmp_path)


def test_folder_that_is_no_label(folder):
    (folder / "Train" / ".cache").mkdir()
    (folder / "Train" / "readme.txt").write_text("")
    (folder / "Train" / "3" / "notes.txt").write_text("")
    assert len(datasets.nmnist(folder).train) == 2
    (folder / "Train" / "10").mkdir()
    with pytest.raises(ValueError, match=r"root: .*10 is not a folder of N-MNIST"):
        datasets.nmnist(folder)


@each_row("""
datasets.nmnist(folder, num_steps=1.5) | ValueError: ^num_steps must
datasets.nmnist(folder, step_us=float("nan")) | ValueError: ^step_us must
datasets.nmnist(folder, window_us=-1) | ValueError: ^window_us must
datasets.nmnist(folder, step_us=1, window_us=1) | ValueError: ^step_us and window_us exclude
datasets.nmnist(folder, crop=35) | ValueError: ^crop must
datasets.nmnist(folder, crop=(24,)) | ValueError: ^crop must
datasets.nmnist(folder, values="sum") | ValueError: ^values must
""")
def test_wrong_argument(folder, row):
    assert_refused(row, globals(), folder=folder)


def test_download_is_left_to_tonic(monkeypatch, tmp_path, capsys):
    calls = []

    def fetch(save_to, train):
        calls.extend(tqdm([train]))
        write(tmp_path, {"5/00001": event(1, 2, 1, 3)}, folder="NMNIST")

    tonic = types.ModuleType("tonic")
    tonic.datasets = types.ModuleType("tonic.datasets")
    tonic.datasets.NMNIST = fetch
    monkeypatch.setitem(sys.modules, "tonic", tonic)
    monkeypatch.setitem(sys.modules, "tonic.datasets", tonic.datasets)
    assert datasets.nmnist(tmp_path, download=True).train.labels.tolist() == [5]
    assert calls == [True, False]
    assert capsys.readouterr().err == ""  # no bars: standard error is no terminal here

    def broken(save_to, train):
        raise OSError("no network")

    tonic.datasets.NMNIST = broken
    with pytest.raises(RuntimeError, match=r"root: NMNIST could not be downloaded into .*OSError no network"):
        datasets.nmnist(tmp_path, download=True)
    monkeypatch.setitem(sys.modules, "tonic.datasets", None)
    with pytest.raises(MissingExtra, match=r'tonic.*pip install "snnipu\[events\]"'):
        datasets.nmnist(tmp_path, download=True)


@pytest.fixture(scope="module")
def recordings(data_folder):
    """Return a folder with real recordings; skip if there is none."""
    if not (data_folder / "nmnist" / "Train").is_dir():
        pytest.skip(f"no N-MNIST in {data_folder / 'nmnist'}")
    return data_folder / "nmnist"


def test_equals_tonics_reader_on_real_recordings(recordings):
    tonic_io = pytest.importorskip("tonic.io")
    dtype = np.dtype([("x", int), ("y", int), ("t", int), ("p", int)])
    for path in sorted(recordings.glob("Test/*/*.bin"))[::5]:
        expected = tonic_io.read_mnist_file(str(path), dtype)
        for name, column in zip("txyp", read_events(str(path))):
            assert np.array_equal(column, expected[name]), (path, name)


def test_real_recordings(recordings):
    data = datasets.nmnist(recordings, 100, step_us=1000)
    assert set(data.train.labels.tolist()) == set(data.test.labels.tolist()) == set(range(10))
    spikes, labels = next(iter(datasets.event_loader(data.test, 48, shuffle=True)))
    assert spikes.shape == (100, 48, 2312)
    assert labels.shape == (48,)
    assert 0.001 < spikes.activity < 0.02
    # No event is lost between two adjacent windows.
    halves = [datasets.nmnist(recordings, n, step_us=1000, values="count").test.batch(range(10))[0] for n in (100, 50)]
    assert torch.equal(halves[0][:50].to_dense(), halves[1].to_dense())
    assert halves[1].outside - halves[0].outside == int(halves[0][50:].to_dense().sum())
    # Digits are in the middle: a crop keeps most of the events.
    cropped = datasets.nmnist(recordings, 100, step_us=1000, crop=24).test.batch(range(10))[0]
    assert 0.5 < cropped.num_spikes / data.test.batch(range(10))[0].num_spikes < 1
