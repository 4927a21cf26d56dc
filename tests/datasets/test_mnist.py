import struct
import sys

import pytest
import torch

from snnipu import datasets
from snnipu._extras import MissingExtra


def write_mnist(root, train=30, test=20):
    """Write random images in the layout of MNIST."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for part, samples in (("train", train), ("t10k", test)):
        images = torch.randint(256, (samples, 28, 28), generator=generator, dtype=torch.uint8)
        labels = torch.arange(samples, dtype=torch.uint8) % 10
        (raw / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">4i", 2051, samples, 28, 28) + bytes(images.flatten())
        )
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, samples) + bytes(labels))
    return raw


def test_reads_torchvisions_layout(torchvision, tmp_path):
    write_mnist(tmp_path)
    data = datasets.mnist(tmp_path)
    assert data.train_images.shape == (30, 28, 28)
    assert data.test_images.shape == (20, 28, 28)
    assert data.train_images.dtype == torch.float32
    assert data.train_images.max() == 1
    assert data.test_labels.tolist() == [i % 10 for i in range(20)]


def test_real_digits(mnist_folder):
    data = datasets.mnist(mnist_folder)
    assert data.image_shape == (28, 28)
    assert set(data.train_labels.tolist()) == set(range(10))
    assert 0.05 < data.train_images.mean() < 0.3


@pytest.mark.parametrize("root", ["absent", "."])
def test_missing_data(torchvision, tmp_path, root):
    with pytest.raises(FileNotFoundError, match=r"root: .*MNIST"):
        datasets.mnist(tmp_path / root)


@pytest.mark.parametrize("damage", [lambda raw: raw[:100], lambda raw: b"", lambda raw: b"\xff" * len(raw)])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_damaged_file(torchvision, tmp_path, name, damage):
    path = write_mnist(tmp_path) / name
    path.write_bytes(damage(path.read_bytes())[: 100 if "images" in name else 12])
    with pytest.raises(ValueError, match="root: damaged MNIST files"):
        datasets.mnist(tmp_path)


def test_images_and_labels_of_different_lengths(torchvision, tmp_path):
    raw = write_mnist(tmp_path)
    (raw / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, 3) + bytes(3))
    with pytest.raises(ValueError, match="root: damaged MNIST files"):
        datasets.mnist(tmp_path)


def test_without_torchvision(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingExtra, match=r'torchvision.*pip install "snnipu\[vision\]"'):
        datasets.mnist(tmp_path)


def test_torchvision_that_does_not_load(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match=r"fails to load .RuntimeError: operator does not exist.*fits this PyTorch"):
        datasets.mnist(tmp_path)
