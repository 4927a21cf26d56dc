"""Damaged files of event data sets: an error names the file, or the contents are valid by the format's rules."""

import resource
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.damage import variants
from support.recordings import nmnist_event, write_shd

from snnipu import datasets
from snnipu.datasets import _hdf5
from snnipu.datasets._hdf5 import read_recordings, time_limit
from snnipu.datasets.dvs_gesture import read_events as read_dvs_gesture
from snnipu.datasets.nmnist import read_events as read_nmnist

VARIANTS = 150


@pytest.fixture
def little_memory():
    """Limit the memory, so that an allocation of one more gigabyte fails."""
    if not sys.platform.startswith("linux"):
        pytest.skip("limits memory as Linux does")
    with open("/proc/self/statm") as file:
        present = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (present + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def outcomes(read, content, path, often=()):
    """Return what ``read`` gives for each damaged copy; None if it raised an error, which must name the file."""
    results = []
    for name, data in variants(content, VARIANTS, seed=0, often=often):
        path.write_bytes(data)
        try:
            results.append((name, data, read(str(path))))
        except datasets.DamagedFileError as error:
            assert_names(error, path)
            results.append((name, data, None))
    assert len(results) == VARIANTS
    return results


def assert_names(error, path):
    assert str(error).startswith(f"root: damaged file {path}: ")


def some_of_each(results):
    """Check that some copies were refused and some were read."""
    refused = sum(events is None for _, _, events in results)
    assert 15 < refused < VARIANTS - 15


def nmnist_events(data):
    """Read N-MNIST events one by one by the data set's description; return None if they are damaged."""
    if not data or len(data) % 5:
        return None
    events, turns = [], 0
    for at in range(0, len(data), 5):
        bits = int.from_bytes(data[at : at + 5], "big")
        x, y, polarity, time = bits >> 32, bits >> 24 & 255, bits >> 23 & 1, bits & 2**23 - 1
        if y == 240:
            turns += 1
            continue
        time += turns * 2**13
        if x >= 34 or y >= 34 or (events and time < events[-1][0]):
            return None
        events.append((time, x, y, polarity))
    return events or None


@pytest.mark.parametrize("real", [False, True])
def test_nmnist(tmp_path, little_memory, request, real):
    if real:
        recordings = request.getfixturevalue("data_folder") / "nmnist"
        if not (recordings / "Train").is_dir():
            pytest.skip(f"no N-MNIST in {recordings}")
        content = min(recordings.glob("Train/*/*.bin"), key=lambda path: (path.stat().st_size, path)).read_bytes()
    else:
        random = np.random.default_rng(0)
        times = np.sort(random.integers(0, 300_000, 400))
        pixels = random.integers(0, 34, (400, 2))
        content = b"".join(
            nmnist_event(x, y, i % 2, t) for i, (t, (x, y)) in enumerate(zip(times.tolist(), pixels.tolist()))
        )
    assert nmnist_events(content) is not None
    results = outcomes(read_nmnist, content, tmp_path / "1.bin")
    for name, data, events in results:
        got = None if events is None else list(zip(*(column.tolist() for column in events)))
        assert got == nmnist_events(data), name
    some_of_each(results)


def dvs_is_valid(data, shape, columns):
    """Return True if the recording is valid by the guide; ``columns`` is the file as NumPy reads it."""
    times, x, y, polarity = columns
    return (
        len(data) == shape[0] + shape[1]
        and ((x >= 0) & (x < 128) & (y >= 0) & (y < 128) & (x % 1 == 0) & (y % 1 == 0)).all()
        and np.isin(polarity, (0, 1)).all()
        and np.isfinite(times).all()
        and times.max() - times.min() < 3_600_000
    )


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int64, np.float32, np.float64])
def test_dvs_gesture(tmp_path, little_memory, dtype):
    random = np.random.default_rng(1)
    events = random.integers(0, 128, (200, 4))
    events[:, 2] %= 2
    events[:, 3] = np.sort(random.integers(0, 6000, 200))
    path = tmp_path / "1.npy"
    np.save(path, events.astype(dtype))
    content = path.read_bytes()
    results = outcomes(read_dvs_gesture, content, path, often=[(0, 128)])
    for name, data, got in results:
        if got is None:
            continue
        path.write_bytes(data)
        with path.open("rb") as file:
            raw = np.load(file, allow_pickle=False)
            header = file.tell() - raw.nbytes
        x, y, polarity, times = raw.astype(np.float64).T
        assert dvs_is_valid(data, (header, raw.nbytes), (times, x, y, polarity)), name
        expected = [(times - times.min()) * 1000, x, y, polarity]
        assert all(np.array_equal(a, b) for a, b in zip(got, expected)), name
    some_of_each(results)
    for _, data, got in results:
        if data == content:
            assert got is not None


@pytest.fixture(scope="module")
def shd_content(tmp_path_factory):
    random = np.random.default_rng(2)
    recordings = [
        (np.sort(random.uniform(0, 1.3, events)), random.integers(0, 700, events)) for events in range(3, 120, 3)
    ]
    pytest.importorskip("h5py")
    path = tmp_path_factory.mktemp("shd") / "whole.h5"
    write_shd(path, recordings, np.arange(len(recordings)) % 20)
    return path.read_bytes()


@pytest.mark.slow
def test_shd(tmp_path, shd_content, monkeypatch):
    """The HDF5 library may raise, crash, run out of memory, or never end."""
    monkeypatch.setenv("SNNIPU_READ_SECONDS", "10")
    (tmp_path / "shd_test.h5").write_bytes(shd_content)
    whole = read_recordings(str(tmp_path / "shd_test.h5"))
    # The file's own structure is at its start, and between the first and the last recordings.
    damaged = list(
        variants(shd_content, VARIANTS, seed=3, often=[(0, 3000), (len(shd_content) - 4000, len(shd_content))])
    )

    def read(entry):
        name, data = entry
        path = tmp_path / f"{name}.h5"
        path.write_bytes(data)
        try:
            return read_recordings(str(path))
        except datasets.DamagedFileError as error:
            assert_names(error, path)
            return str(error)
        finally:
            path.unlink()

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(read, damaged))
    read_through = [(name, data, got) for (name, data), got in zip(damaged, results) if not isinstance(got, str)]
    assert 15 < len(read_through) < VARIANTS - 15
    for name, data, got in read_through:
        # The file contains all values of the result, and types and number of recordings are unchanged.
        assert len(got.labels) == len(got.times) == len(got.units) == len(whole.labels), name
        for before, after in zip((*whole[1], *whole[2], whole.labels), (*got[1], *got[2], got.labels)):
            assert after.dtype == before.dtype, name
            assert np.array_equal(before, after, equal_nan=False) or after.tobytes() in data, name


BROKEN_READERS = {
    "crash": ("os.kill(os.getpid(), signal.SIGSEGV)", r"the HDF5 library crashed on it \(status -11\)"),
    "stops": ("sys.exit(3)", r"crashed on it \(status 3\)"),
    "no end": ("time.sleep(1000)", "reading it took more than 2 seconds: damage can keep"),
    "error": ("sys.exit('torn')", "any.h5: torn"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="signals as on Linux")
@pytest.mark.parametrize(("body", "message"), BROKEN_READERS.values(), ids=BROKEN_READERS)
def test_shd_whatever_becomes_of_its_reader(monkeypatch, tmp_path, body, message):
    script = tmp_path / "reader.py"
    script.write_text(f"import os, signal, sys, time\n{body}\n")
    monkeypatch.setattr(_hdf5, "PROCESS", script)
    if "sleep" in body:
        monkeypatch.setenv("SNNIPU_READ_SECONDS", "2")
    (tmp_path / "any.h5").write_bytes(bytes(1000))
    with pytest.raises(datasets.DamagedFileError, match=message):
        read_recordings(str(tmp_path / "any.h5"))


def test_shd_a_length_that_no_memory_holds(tmp_path, shd_content):
    """The length of a recording precedes the address of its heap, in 4 bytes."""
    path = tmp_path / "long.h5"
    data, length = bytearray(shd_content), struct.pack("<I", 117)
    at = [i for i in range(len(data) - 16) if data[i : i + 4] == length and data[i + 4 : i + 12] != bytes(8)]
    for place in at:
        data[place : place + 4] = struct.pack("<I", 2**31)
    assert at
    path.write_bytes(bytes(data))
    with pytest.raises(datasets.DamagedFileError, match=r"long.h5: "):
        read_recordings(str(path))


def test_shd_types_that_hdf5_would_convert(tmp_path):
    h5py = pytest.importorskip("h5py")
    odd = h5py.h5t.IEEE_F16LE.copy()
    odd.set_ebias(14)
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as file:
        file["labels"] = np.zeros(1, np.uint16)
        space = h5py.h5s.create_simple((1,))
        file.create_group("spikes")
        h5py.h5d.create(file["spikes"].id, b"times", h5py.h5t.vlen_create(odd), space)
        file.create_dataset("spikes/units", (1,), dtype=h5py.vlen_dtype(np.uint16))
    with pytest.raises(datasets.DamagedFileError, match=r"spikes/times cannot be read \(stored as no float"):
        read_recordings(str(path))


def test_time_limit(monkeypatch, tmp_path):
    assert time_limit(0) < time_limit(10**8) < time_limit(10**9)
    monkeypatch.setenv("SNNIPU_READ_SECONDS", "7.5")
    assert time_limit(10**9) == 7.5
    for wrong in ("soon", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("SNNIPU_READ_SECONDS", wrong)
        with pytest.raises(ValueError, match=f"SNNIPU_READ_SECONDS must be a number of seconds above 0, got '{wrong}'"):
            datasets.shd(tmp_path)
