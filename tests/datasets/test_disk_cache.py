"""Binned recordings on disk: reused, never outdated, never wrong."""

import errno
import os
import pickle

import numpy as np
import pytest
import torch
from datasets.test_event_data import BINNING
from datasets.test_event_data import assert_same as assert_same_spikes
from support.damage import variants
from support.tables import assert_refused, each_row

from snnipu import datasets
from snnipu.datasets import _disk_cache

STEPS, NEURONS, SAMPLES = 12, 50, 9


class Recordings:
    """Recordings with one file each; ``read`` lists the indices of all reads."""

    def __init__(self, folder):
        self.paths = [folder / f"{index}.npy" for index in range(SAMPLES)]
        self.read = []

    def __call__(self, index):
        self.read.append(index)
        times, units = np.load(self.paths[index])
        return times, units


def write(path, index, change=0):
    random = np.random.default_rng(index)
    number = 20 * index  # the first is empty
    events = np.stack([random.integers(0, 11 * STEPS, number), random.integers(0, NEURONS, number)])
    events[1] = (events[1] + change) % NEURONS
    np.save(path, events)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write recordings, and let the cache trust time stamps immediately."""
    monkeypatch.setattr(_disk_cache, "_SETTLED_SECONDS", 0)
    monkeypatch.setenv("SNNIPU_EVENT_CACHE", str(tmp_path / "cache"))
    for index, path in enumerate(Recordings(tmp_path).paths):
        write(path, index)
    return tmp_path


def make(folder, key="recordings", **options):
    read = Recordings(folder)
    options = {"num_steps": STEPS, "num_neurons": NEURONS, "step": 10, "cache_key": key, "files": read.paths, **options}
    return datasets.EventDataset(read, [index % 4 for index in range(SAMPLES)], **options)


def assert_same(actual, other):
    (spikes, labels), (expected, expected_labels) = (dataset.batch(range(SAMPLES)) for dataset in (actual, other))
    assert_same_spikes(spikes, expected)
    assert torch.equal(labels, expected_labels)


def expected(folder, **options):
    dataset = make(folder, **{**options, "cache": False})
    assert dataset.cache_folder is None
    return dataset


def caches(folder):
    return sorted((folder / "cache").glob("*")) if (folder / "cache").exists() else []


OPTIONS = {**BINNING, "many neurons": {"num_neurons": 100_000}, "disk only": {"cache": "disk"}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_is_on_the_disk_is_not_read_again(folder, options):
    first = make(folder, **options)
    assert_same(first, expected(folder, **options))
    assert first._read.read == list(range(SAMPLES))
    assert caches(folder) == [first.cache_folder]
    again = make(folder, **options)
    for _ in range(2):
        assert_same(again, expected(folder, **options))
        again[3], again.preload()
    assert again._read.read == []
    copy = pickle.loads(pickle.dumps(again))
    assert_same(copy, expected(folder, **options))
    assert copy._read.read == []


def test_every_setting_has_a_file_of_its_own(folder):
    datasets = [
        make(folder, **change).preload()
        for change in (
            {},
            {"key": "recordings 2"},
            {"step": 9.5},
            {"num_steps": 7},
            {"num_neurons": 51},
            {"values": "count"},
            {"max_spikes": 3},
            {"max_spikes": 3, "overflow": "rotate"},
        )
    ]
    assert all(len(dataset._read.read) == SAMPLES for dataset in datasets)
    assert len(caches(folder)) == len({dataset.cache_folder for dataset in datasets}) == len(datasets)


def test_a_changed_file_is_read_again(folder):
    make(folder).preload()
    write(folder / "5.npy", 5, change=1)
    again = make(folder)
    assert_same(again, expected(folder))
    assert again._read.read == [5]
    # Equal size and modification time, as some copying tools leave them.
    before = os.stat(folder / "6.npy")
    write(folder / "6.npy", 6, change=1)
    os.utime(folder / "6.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    again = make(folder)
    assert_same(again, expected(folder))
    assert again._read.read == [6]
    assert_same(make(folder), expected(folder))


def test_a_file_that_may_still_change_is_not_kept(folder, monkeypatch):
    monkeypatch.setattr(_disk_cache, "_SETTLED_SECONDS", 3600)
    make(folder).preload()
    assert caches(folder) == []


def test_a_damaged_recording_is_named_and_not_kept(folder):
    class Checked(Recordings):
        def __call__(self, index):
            if self.paths[index].read_bytes()[:1] == b"?":
                raise datasets.DamagedFileError(f"root: damaged file {self.paths[index]}: it is")
            return super().__call__(index)

    (folder / "4.npy").write_bytes(b"?")
    for _ in range(2):
        dataset = make(folder)
        dataset._read = Checked(folder)
        with pytest.raises(datasets.DamagedFileError, match=r"damaged file .*4\.npy"):
            dataset.batch(range(SAMPLES))
    assert dataset._read.read == []  # the four before it are cached
    (folder / "3.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"3\.npy"):
        make(folder)[3]


def test_a_damaged_file_never_gives_other_recordings(folder):
    entries = sorted(make(folder).preload().cache_folder.iterdir())
    assert len(entries) == SAMPLES
    contents = [path.read_bytes() for path in entries]
    right = expected(folder)
    random = np.random.default_rng(0)
    for _, data in variants(contents[0], 20, seed=0):
        entries[0].write_bytes(data)
        entries[1].write_bytes(contents[1][: random.integers(len(contents[1]))])
        # Swap the entries of two recordings.
        entries[2].write_bytes(contents[3])
        for read in ((2, 3), (0,)):
            dataset = make(folder)
            assert_same(dataset, right)
            assert len(dataset._read.read) in read
        assert [path.read_bytes() for path in entries] == contents


@pytest.mark.parametrize("workers", [0, 2])
def test_loader(folder, workers):
    for read in (SAMPLES, 0):
        dataset = make(folder)
        loader = datasets.event_loader(dataset, 4, num_workers=workers)
        for _ in range(2):
            assert sum(len(labels) for _, labels in loader) == SAMPLES
        if not workers:
            assert len(dataset._read.read) == read
    assert len(list(make(folder).cache_folder.iterdir())) == SAMPLES


def test_the_oldest_settings_make_way(folder, monkeypatch):
    monkeypatch.setattr(_disk_cache, "MAX_FOLDERS", 2)
    (folder / "cache" / "of somebody else").mkdir(parents=True)
    first, second = (make(folder, key=name).preload().cache_folder for name in ("a", "b"))
    os.utime(first, (1, 1))
    third = make(folder, key="c").preload().cache_folder
    assert caches(folder) == sorted([second, third, folder / "cache" / "of somebody else"])


@pytest.mark.parametrize("what", ["root", "folder", "disk"])
def test_where_nothing_can_be_written_the_work_goes_on(folder, monkeypatch, what):
    if what == "root":  # the folder's path is a file
        (folder / "cache").write_text("")
    elif what == "folder":
        (folder / "cache").mkdir()
        make(folder).cache_folder.write_text("")
    else:

        def full(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.warns(RuntimeWarning, match="not kept on the disk, .*SNNIPU_EVENT_CACHE names another"):
        assert_same(make(folder), expected(folder))


def test_nothing_is_written_where_that_is_asked_for(folder, monkeypatch):
    for cache in ("memory", False):
        dataset = make(folder, cache=cache)
        dataset.batch(range(SAMPLES))
        assert dataset.cache_folder is None
    monkeypatch.setenv("SNNIPU_EVENT_CACHE", "0")
    assert make(folder).preload().cache_folder is None
    assert caches(folder) == []
    monkeypatch.delenv("SNNIPU_EVENT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "xdg"))
    assert make(folder).cache_folder.parent == folder / "xdg" / "snnipu" / "events"
    assert datasets.randman(4, 2, 5).train.cache_folder is None


@each_row("""
make(folder, cache="tape") | ValueError: cache must be True, False, 'memory' or 'disk', got 'tape'
make(folder, cache=1) | ValueError: cache must be
make(folder, key=None) | ValueError: cache_key and files must both be given
make(folder, files=None) | ValueError: cache_key and files must both be given
make(folder, files=["a"]) | ValueError: files must have one entry for each of 9 recordings, got 1
datasets.randman(4, 2, 5, cache="disk") | ValueError: cache_key and files
make(folder, cache=False).preload() | ValueError: preload needs a data set made with cache=True
""")
def test_wrong_arguments(folder, row):
    assert_refused(row, globals(), folder=folder)


def test_one_file_for_all(folder):
    path = folder / "all.npy"
    np.save(path, np.arange(SAMPLES))

    class Shared:
        def __init__(self):
            self.read = []

        def __call__(self, index):
            self.read.append(index)
            return np.array([0]), np.load(path)[index : index + 1]

    def shared():
        options = {"num_steps": 1, "num_neurons": NEURONS, "cache_key": "shared", "files": path}
        return datasets.EventDataset(Shared(), [0] * SAMPLES, **options)

    shared().preload()
    again = shared()
    assert [int(spikes.ids[0, 0, 0]) for spikes, _ in again] == list(range(SAMPLES))
    assert again._read.read == []
