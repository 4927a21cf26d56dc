"""DVS128 Gesture, from small files in tonic's layout."""

import numpy as np
import pytest
import torch
from support.tables import each_row

from snnipu import datasets
from snnipu.datasets.dvs_gesture import read_events

# x, y, polarity, milliseconds
EVENTS = np.array(
    [[0, 0, 0, 50], [127, 127, 1, 50], [64, 33, 1, 51], [65, 32, 1, 51], [9, 9, 0, 1549], [9, 9, 0, 1550]]
)


def write(root, files, test=None):
    for part, content in (("ibmGestureTrain", files), ("ibmGestureTest", test or files)):
        for name, events in content.items():
            path = root / part / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, events)
    return root


@pytest.fixture
def folder(tmp_path):
    files = {"user02_led/10": EVENTS, "user02_led/2": EVENTS[:1], "user01_fluorescent_led/0": EVENTS[:2]}
    return write(tmp_path, files)


def places(spikes):
    """Return ``(t, id, value)`` of the spikes of one sample, without a dense tensor of 32,768 neurons."""
    used = (torch.arange(spikes.capacity) < spikes.counts[:, 0, :1]).nonzero()
    return [(int(t), int(spikes.ids[t, 0, s]), float(spikes.values[t, 0, s])) for t, s in used]


def test_reads_the_layout(folder):
    data = datasets.dvs_gesture(folder, 1500)
    assert (data.name, data.num_neurons, data.num_steps, data.num_classes) == ("dvs_gesture", 32768, 1500, 11)
    assert data.sensor_shape == (2, 128, 128)
    assert data.train.labels.tolist() == [0, 2, 10]
    spikes, label = data.train[2]
    assert label == 10
    half = 128 * 128
    first = [(0, 0, 1), (0, 2 * half - 1, 1), (1, half + 32 * 128 + 65, 1), (1, half + 33 * 128 + 64, 1)]
    assert places(spikes) == [*first, (1499, 9 * 128 + 9, 1)]
    assert spikes.outside == 1  # 1,500 ms after the first event
    assert data.test[0][0].num_spikes == 2


def test_window(folder):
    assert datasets.dvs_gesture(folder).train.step == 30_000
    assert datasets.dvs_gesture(folder, 50, step_us=1000).train[2][0].outside == 2
    assert datasets.dvs_gesture(folder, 4, window_us=1_500_001).train[2][0].outside == 0


def test_downsampling_and_cropping(folder):
    data = datasets.dvs_gesture(folder, 1500, downsample=4, values="count")
    assert data.sensor_shape == (2, 32, 32)
    assert data.num_neurons == 2048
    corners = [(0, 0, 1), (0, 2047, 1)]
    assert places(data.train[2][0]) == [*corners, (1, 1024 + 8 * 32 + 16, 2), (1499, 2 * 32 + 2, 1)]
    data = datasets.dvs_gesture(folder, 1500, crop=(64, 64), downsample=2, merge_polarity=True, values="count")
    assert data.sensor_shape == (1, 32, 32)
    assert places(data.train[2][0]) == [(1, 16, 2)]
    with pytest.raises(ValueError, match="downsample must divide the 128 x 128 pixels used, got 3"):
        datasets.dvs_gesture(folder, downsample=3)
    with pytest.raises(ValueError, match="downsample must be an int of 1 or more"):
        datasets.dvs_gesture(folder, downsample=0)
    with pytest.raises(ValueError, match="crop must be"):
        datasets.dvs_gesture(folder, crop=129)


@each_row(r"""
[[128, 0, 0, 1]] | event 0 is at x=128, y=0, outside
[[0, -1, 0, 1]] | event 0 is at x=0, y=-1
[[0, 0, 2, 1]] | polarities must be 0 or 1
[[0, 0, 0, np.nan]] | not finite
np.zeros((0, 4)) | holds no event
np.zeros((3, 5)) | expected numbers \[events, 4\], got float64 \(3, 5\)
[["a"] * 4] | expected numbers
[[{}] * 4] | no array of a .npy file: ValueError Object arrays cannot be loaded
[[0.5, 0, 0, 1]] | x and y must be whole numbers
[[0, 0, 0, 0], [0, 0, 0, 3_600_000]] | 3600 seconds from the first event to the last
""")
def test_damaged_file(folder, row):
    events, message = row.split(" | ")
    np.save(folder / "ibmGestureTrain" / "user02_led" / "10.npy", np.array(eval(events)))
    train = datasets.dvs_gesture(folder).train
    with pytest.raises(datasets.DamagedFileError, match=rf"root: damaged file .*user02_led.10.npy: .*{message}"):
        train[2]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (10**12, "no array of a .npy file"),
        (len(EVENTS) + 1, "no array of a .npy file"),
        (len(EVENTS) - 1, "32 bytes after the events"),
    ],
)
def test_a_wrong_count_of_events(tmp_path, events, message):
    """Both a larger and a smaller count than the file's raise an error."""
    path = tmp_path / "1.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (events, 4)})
        file.write(EVENTS.tobytes())
    with pytest.raises(datasets.DamagedFileError, match=message):
        read_events(str(path))


def test_missing_data(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"root: no DVS128 Gesture: .*absent' is not a folder"):
        datasets.dvs_gesture(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="does not hold ibmGestureTrain and ibmGestureTest; download=True"):
        datasets.dvs_gesture(tmp_path)
    for name in ("ibmGestureTrain", "ibmGestureTest"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileNotFoundError, match=r"root: no recordings in .*ibmGestureTrain"):
        datasets.dvs_gesture(tmp_path)
    write(tmp_path, {"user01_led/11": EVENTS})
    with pytest.raises(ValueError, match=r"root: .*11.npy is not of DVS128 Gesture"):
        datasets.dvs_gesture(tmp_path)
