"""The Spiking Heidelberg Digits, from small files in the data set's format."""

import pickle
import sys

import numpy as np
import pytest
from support.recordings import places
from support.recordings import write_shd as write
from support.tables import each_row

from snnipu import datasets
from snnipu._extras import MissingExtra

h5py = pytest.importorskip("h5py")


ONE = ([0.0, 0.0625, 0.125, 0.125, 1.375], [0, 699, 12, 12, 5])
TWO = ([0.5], [350])


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "shd_train.h5", [ONE, TWO, ([], [])], [3, 19, 0])
    write(tmp_path / "shd_test.h5", [TWO], [7], times_type=np.float32)
    return tmp_path


def test_reads_the_files(folder):
    data = datasets.shd(folder, 1400, values="count")
    assert (data.name, data.num_neurons, data.num_steps, data.num_classes) == ("shd", 700, 1400, 20)
    assert data.sensor_shape is None
    assert data.train.labels.tolist() == [3, 19, 0]
    assert places(data.train[0][0]) == [(0, 0, 1), (62, 699, 1), (125, 12, 2), (1375, 5, 1)]
    assert places(data.test[0][0]) == [(500, 350, 1)]
    assert data.train[2][0].num_spikes == 0
    spikes, labels = data.train.batch([0, 1])
    assert spikes.shape == (1400, 2, 700)
    assert labels.tolist() == [3, 19]


def test_window(folder):
    assert datasets.shd(folder).train.step == 14_000
    spikes, _ = datasets.shd(folder, 100, step_us=1000).train[0]
    assert (spikes.num_spikes, spikes.outside) == (2, 3)
    assert places(datasets.shd(folder, 10, window_us=1_000_000).test[0][0]) == [(5, 350, 1)]
    with pytest.raises(ValueError, match=r"^step_us must be"):
        datasets.shd(folder, step_us=-1)
    assert datasets.shd(folder, 1, max_spikes=1).train[0][0].overflow == 3


def test_reads_tonics_layout(tmp_path):
    for name in ("shd_train.h5", "shd_test.h5"):
        write(tmp_path / "SHD" / name, [ONE, TWO], [3, 19])
        (tmp_path / "SHD" / f"{name}.zip").write_bytes(b"")  # tonic looks for it
    data = datasets.shd(tmp_path, 2000, step_us=1000, values="count")
    tonic_datasets = pytest.importorskip("tonic.datasets")
    theirs = tonic_datasets.SHD(save_to=str(tmp_path), train=True)
    assert len(theirs) == len(data.train)
    for (events, label), (spikes, ours) in zip((theirs[i] for i in range(2)), data.train):
        assert label == ours
        expected = sorted((int(t) // 1000, int(x)) for t, x in zip(events["t"], events["x"]))
        assert [(t, n) for t, n, number in places(spikes) for _ in range(int(number))] == expected


def test_file_is_opened_again_after_pickling_and_by_workers(folder):
    data = datasets.shd(folder, 10, cache=False)
    expected = places(data.train[0][0])
    assert places(pickle.loads(pickle.dumps(data.train))[0][0]) == expected
    ((spikes, labels),) = datasets.event_loader(data.train, 3, num_workers=1)
    assert places(spikes[:, :1]) == expected
    assert labels.tolist() == [3, 19, 0]


def test_missing_data(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"root: no Spiking Heidelberg Digits: .*absent' is not a folder"):
        datasets.shd(tmp_path / "absent")
    write(tmp_path / "shd_train.h5", [TWO], [1])
    with pytest.raises(FileNotFoundError, match=r"root: .* does not hold shd_train.h5 and shd_test.h5; download=True"):
        datasets.shd(tmp_path)


def damaged(folder):
    return pytest.raises(ValueError, match=rf"root: damaged file .*shd_train.h5: {folder}")


def test_damaged_files(folder):
    path = folder / "shd_train.h5"
    whole = path.read_bytes()
    for data in (b"", b"not HDF5" * 100, whole[: len(whole) // 2]):
        path.write_bytes(data)
        with damaged(""):
            datasets.shd(folder)
    write(path, [ONE, TWO], [3])
    with damaged(r"labels of shape \(1,\), spikes/times of shape \(2,\) and spikes/units"):
        datasets.shd(folder)
    write(path, [], [])
    with damaged("it holds no recordings"):
        datasets.shd(folder)
    write(path, [ONE], [20])
    with damaged("labels must be whole numbers from 0 to 19"):
        datasets.shd(folder)
    for missing in ("labels", "spikes/units"):
        write(path, [ONE], [1])
        with h5py.File(path, "a") as file:
            del file[missing]
        with damaged(f"{missing} cannot be read"):
            datasets.shd(folder)


@pytest.mark.slow
@each_row(r"""
([0.5], [700]) | recording 1 has unit 700, expected 0 to 699
([0.5, 0.6], [1]) | recording 1 has times of shape \(2,\) and units of shape \(1,\)
([-0.5], [1]) | recording 1 has times that are negative or NaN
([np.nan], [1]) | recording 1 has times that are negative or NaN
([0.5, 60.5], [1, 1]) | recording 1 has a time of 60.5 seconds, expected a minute at most
""")
def test_damaged_recording(folder, row):
    recording, message = row.split(" | ")
    write(folder / "shd_train.h5", [ONE, eval(recording)], [3, 4])
    train = datasets.shd(folder).train
    train[0]
    with damaged(message):
        train[1]


def test_a_recording_of_a_minute(folder):
    write(folder / "shd_train.h5", [([0.5, 60.0], [1, 2])], [3])
    assert places(datasets.shd(folder, 2, step_us=60_000_000).train[0][0]) == [(0, 1, 1), (1, 2, 1)]


def test_without_h5py(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r'h5py.*pip install "snnipu\[events\]"'):
        datasets.shd(tmp_path)
