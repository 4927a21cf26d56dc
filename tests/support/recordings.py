"""Files of event recordings, and what is read from them."""

import importlib

import numpy as np


def nmnist_event(x, y, polarity, time):
    """Return the 5 bytes of an event of N-MNIST, by the data set's description."""
    return (x << 32 | y << 24 | polarity << 23 | time).to_bytes(5, "big")


def places(spikes):
    """Return ``(t, id, value)`` of the spikes of one sample."""
    dense = spikes.to_dense()[:, 0]
    return [(int(t), int(n), float(dense[t, n])) for t, n in dense.nonzero()]


def write_shd(path, recordings, labels, times_type=np.float16):
    """Write ``recordings``, pairs of (seconds, units), as arrays of different lengths, in the data set's format."""
    h5py = importlib.import_module("h5py")
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["labels"] = np.array(labels, dtype=np.uint16)
        for name, column, dtype in (("times", 0, times_type), ("units", 1, np.uint16)):
            data = file.create_dataset(f"spikes/{name}", (len(recordings),), dtype=h5py.vlen_dtype(dtype))
            for index, recording in enumerate(recordings):
                data[index] = np.array(recording[column], dtype=dtype)
        file["extra/keys"] = np.array([b"zero"] * 20)
        file["extra/speaker"] = np.zeros(len(recordings), np.uint16)
