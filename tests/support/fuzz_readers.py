"""File readers on bytes drawn by atheris: ``python tests/support/fuzz_readers.py READER [libFuzzer's options]``.

Each reader returns a complete result, or raises its documented error, which names the file. Any other exception, a hang
or too much memory ends the run. ``tests/test_fuzz.py`` runs seeds, damaged copies, and inputs found before.
"""

import hashlib
import importlib
import io
import os
import struct
import sys
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None
_folder = tempfile.TemporaryDirectory(dir=SCRATCH)
FOLDER = Path(_folder.name)


def written(content, name="recording"):
    path = FOLDER / name
    path.write_bytes(content)
    return path


def assert_mentions(error, *words):
    """Check that an error message contains one of the words."""
    assert any(word in str(error) for word in words), error


def recordings_of(module, function):
    """Return a reader of recordings; the columns must have one length, or the error must name the file."""

    def read(content):
        from snnipu import datasets

        path = written(content)
        try:
            columns = getattr(importlib.import_module(f"snnipu.datasets.{module}"), function)(str(path))
        except datasets.DamagedFileError as error:
            return assert_mentions(error, f"damaged file {path}: ")
        columns = columns if isinstance(columns, tuple) else (columns,)
        assert len({len(column) for column in columns}) == 1

    return read


# ---- N-MNIST: five bytes an event


def nmnist_seeds():
    random = np.random.default_rng(0)
    times, pixels = np.sort(random.integers(0, 300_000, 40)).tolist(), random.integers(0, 34, (40, 2)).tolist()
    rows = [
        bytes([x, y, (i % 2) << 7 | t >> 16, t >> 8 & 255, t & 255]) for i, (t, (x, y)) in enumerate(zip(times, pixels))
    ]
    return [b"".join(rows), b"".join([rows[0], bytes([0, 240, 0, 0, 0]), rows[1]])]


# ---- DVS gestures: NumPy's arrays


def dvs_seeds():
    seeds = []
    for dtype in (np.int16, np.float64):
        file = io.BytesIO()
        np.save(file, np.array([[1, 2, 0, 3], [5, 6, 1, 9]], dtype))
        seeds.append(file.getvalue())
    return seeds


# ---- spoken digits: WAVE


def wave_seeds():
    samples = np.arange(-20, 20, dtype="<i2").tobytes()
    sizes = (16, 1, 1, 8000, 16000, 2, 16)
    return [
        struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + 80, b"WAVE", b"fmt ", *sizes, b"data", 80) + samples,
        struct.pack("<4sI4s4sI4x", b"RIFF", 60 + 80, b"WAVE", b"LIST", 4)
        + struct.pack("<4sIHHIIHH4sI", b"fmt ", *sizes, b"data", 80)
        + samples,
    ]


# ---- MNIST: IDX, by torchvision


def idx_seeds():
    return [struct.pack(">HBBIII", 0, 8, 3, 2, 3, 4) + bytes(range(24)), struct.pack(">HBBI", 0, 8, 1, 2) + b"\x01\x07"]


def mnist(content):
    """Read training images or labels from ``content``; the other files are valid."""
    from snnipu.datasets import mnist

    images, labels = idx_seeds()
    folder = FOLDER / "MNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"images-idx3": images, "labels-idx1": labels}
    files = {f"{part}-{name}": data for part in ("train", "t10k") for name, data in contents.items()}
    files["train-labels-idx1" if content[2:4] == labels[2:4] else "train-images-idx3"] = content
    for name, data in files.items():
        (folder / f"{name}-ubyte").write_bytes(data)
    try:
        dataset = mnist(FOLDER)
    except ValueError as error:
        return assert_mentions(error, "damaged MNIST files")
    assert dataset.train_images.dim() == 3
    assert len(dataset.train_images) == len(dataset.train_labels)


# ---- the Heidelberg digits: HDF5, read by another process


def shd_seeds():
    import h5py

    file = io.BytesIO()
    with h5py.File(file, "w") as archive:
        archive["labels"] = np.array([3, 19], np.uint16)
        for name, kind in (("times", np.float16), ("units", np.uint16)):
            data = archive.create_dataset(f"spikes/{name}", (2,), dtype=h5py.vlen_dtype(kind))
            data[0], data[1] = np.array([0, 1, 1], kind), np.array([], kind)
    return [file.getvalue()]


# ---- saved spikes


def spikes_seeds():
    return [bytes([2, 1, 3, 5, *range(30)]), bytes(40), bytes(range(40, 80))]


def spikes(content):
    """Load spikes of another program: tensors of any kind and shape under the names of the class, without code."""
    import torch

    from snnipu.spikes import SparseSpikes, check_ids

    draw = Bytes(content)
    shape = draw.sizes()

    def tensor(*dtypes):
        kind = (torch.int32, torch.float32, torch.float64, torch.int64, torch.bool)[draw.number(4)]
        size = dtypes if draw.number(5) else draw.sizes(4)
        return torch.tensor([draw.number(6) - 1 for _ in range(int(np.prod(size)))]).reshape(size).to(kind)

    state = {
        "ids": tensor(*shape), "values": tensor(*shape), "counts": tensor(*shape[:2], 2),
        "num_neurons": (1, 5, -1, 2**40, 2.5, None)[draw.number(5)],
        "dropped": tensor(*shape[:2], 2) if draw.number(1) else None,
        "outside": (0, 3, -1, "1")[draw.number(3)], "map_shape": (None, (1, 1, 5), (5, 1), (0, 1, 1))[draw.number(3)],
    }  # fmt: skip
    forged = SparseSpikes.__new__(SparseSpikes)
    forged.__dict__.update(state)
    file = io.BytesIO()
    torch.save(forged, file)
    file.seek(0)
    try:
        loaded = torch.load(file, weights_only=True)
    except (TypeError, ValueError) as error:
        return assert_mentions(error, *state)
    check_ids(loaded.ids, loaded.counts, loaded.num_neurons)


# ---- checkpoints


def checkpoint_seeds():
    import torch

    from snnipu import training

    path = FOLDER / "seed.pt"
    training.save_checkpoint(path, {"model": {"weight": torch.ones(2, 3)}, "epoch": 3, "config": {"hidden": 8}})
    return [path.read_bytes()[:-64]]


def checkpoint(content):
    """Append a valid checksum: the contents before it may be anything."""
    from snnipu import training

    path = written(content + hashlib.sha256(content).hexdigest().encode(), "run.pt")
    try:
        assert isinstance(training.load_checkpoint(path), dict)
    except training.CheckpointError as error:
        assert_mentions(error, "run.pt")


# ---- profiles


def profile_seeds():
    return [b"100,50,10", b"2312,1466,1466,10", b"8,8", b"0,5", b"a.py:name", b"1e9,3", b"-1,2"]


def profile(content):
    """Run ``python -m snnipu profile`` with ``content`` as its ``--model``."""
    from snnipu.cli.profile import main

    text = content.decode("utf-8", "replace").replace("\0", "")
    if ".py" in text:
        return  # the user's own program
    stderr = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(stderr):
        try:
            status = main(["--model", text, "--steps", "3", "--batch-size", "2"])
        except SystemExit as ended:
            status = ended.code
    assert status == 0 or (status == 2 and stderr.getvalue()), (status, stderr.getvalue())


# ---- graphs of NIR


class Bytes:
    """Numbers drawn from bytes; zeros after their end."""

    def __init__(self, content):
        self.content, self.at = content, 0

    def number(self, most):
        self.at += 1
        return self.content[self.at - 1] % (most + 1) if self.at <= len(self.content) else 0

    def sizes(self, most=3):
        return tuple(self.number(3) for _ in range(self.number(most)))

    def array(self, *expected_shape):
        values = (0.5, 1.0, 0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"))
        shape = expected_shape if self.number(3) else self.sizes()
        dtype = (np.float32, np.float64, np.int64, np.float16)[self.number(3)]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.full(shape, values[self.number(7)]).astype(dtype)


def nir_graph(draw):
    import nir

    size = 1 + draw.number(3)

    def of(kind, count, size=size):
        return lambda: kind(*(draw.array(size) for _ in range(count)))

    kinds = [  # test_fuzz has inputs that depend on the order
        lambda: nir.Affine(draw.array(size, size), draw.array(size)),
        lambda: nir.Linear(draw.array(size, size)),
        *(of(kind, 1) for kind in (nir.Scale, nir.Threshold, nir.Delay)),
        lambda: nir.Flatten({"input": np.array([1, size])}, draw.number(2), draw.number(2)),
        *(of(nir.LIF, 5), of(nir.LI, 3), of(nir.IF, 3), of(nir.I, 1)),
        lambda: nir.CubaLIF(*(draw.array(size) for _ in range(5)), w_in=draw.array(size), v_reset=draw.array(size)),
        lambda: nir.Conv1d(
            draw.number(4), draw.array(1, 1, 1), *(draw.number(2) for _ in range(4)), draw.array(1)
        ),
        lambda: nir.Conv2d(
            (draw.number(4), draw.number(4)), draw.array(1, 1, 1, 1), draw.sizes(), draw.sizes(), draw.sizes(),
            draw.number(2), draw.array(1),
        ),
        *(of(nir.SumPool2d, 3, 2), of(nir.AvgPool2d, 3, 2)),
    ]  # fmt: skip
    nodes = {"input": nir.Input(np.array([size])), "output": nir.Output(np.array([size]))}
    names = ["input"]
    for place in range(draw.number(4)):
        names.append(str(place))
        nodes[names[-1]] = kinds[draw.number(len(kinds) - 1)]()
    names.append("output")
    edges = list(zip(names, names[1:]))
    last = len(names) - 1
    edges += [(names[draw.number(last)], names[draw.number(last)]) for _ in range(max(0, draw.number(5) - 3))]
    return nir.NIRGraph(nodes=nodes, edges=edges, type_check=False)


def nir_seeds():
    return [
        bytes([1, 2, 6, *[1] * 18, 0, 1, 1]),
        bytes(range(40)),
        bytes([2, 1, 0, 1, 1, 1, 1, 0, 0]),
        bytes([3, 3, *[5] * 30]),
    ]


def nir(content):
    """Import a graph that another program may have written; errors of NIR's constructors are expected."""
    from snnipu.import_nir import import_from_nir

    try:
        graph = nir_graph(Bytes(content))
    except Exception:  # from NIR: there is no graph
        return
    try:
        import_from_nir(graph)
    except ValueError as error:
        assert_mentions(error, "node", "graph")


READERS = {
    "nmnist": (recordings_of("nmnist", "read_events"), nmnist_seeds),
    "dvs-gesture": (recordings_of("dvs_gesture", "read_events"), dvs_seeds),
    "spoken-digits": (recordings_of("spoken_digits", "read_sound"), wave_seeds),
    "mnist": (mnist, idx_seeds),
    "shd": (recordings_of("_hdf5", "read_recordings"), shd_seeds),
    "spikes": (spikes, spikes_seeds),
    "checkpoint": (checkpoint, checkpoint_seeds),
    "profile": (profile, profile_seeds),
    "nir": (nir, nir_seeds),
}
# Modules whose branches tell atheris that a case is new.
WATCHED = (
    "snnipu.datasets",
    "snnipu.training",
    "snnipu.cli.profile",
    "snnipu.import_nir",
    "snnipu.spikes",
    "nir",
    "wave",
)


def main():
    import atheris
    from torchvision_schemas import define_torchvision_schemas

    define_torchvision_schemas()
    warnings.simplefilter("ignore")
    name, *options = sys.argv[1:]
    read, seeds = READERS[name]
    with atheris.instrument_imports(include=["snnipu", "nir", "wave", "torchvision.datasets"]):
        for module in WATCHED:
            importlib.import_module(module)
    corpus = FOLDER / "seeds"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / str(number)).write_bytes(seed)
    atheris.Setup([sys.argv[0], *options, str(corpus)], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
