import sys

import pytest
import torch

from snnipu import datasets
from snnipu._extras import MissingExtra

pytest.importorskip("sklearn")


def test_digits_are_scaled_images():
    data = datasets.digits()
    assert data.image_shape == (8, 8)
    assert data.num_features == 64
    assert data.num_classes == 10
    for images, labels in ((data.train_images, data.train_labels), (data.test_images, data.test_labels)):
        assert images.dtype == torch.float32
        assert labels.dtype == torch.int64
        assert len(images) == len(labels)
        assert images.min() == 0
        assert images.max() == 1


def test_split_is_stratified_complete_and_always_the_same():
    from sklearn.datasets import load_digits

    torch.manual_seed(1)
    first = datasets.digits()
    torch.manual_seed(2)
    second = datasets.digits()
    assert torch.equal(first.test_images, second.test_images)
    assert torch.equal(first.train_labels, second.train_labels)

    assert len(first.train_labels) + len(first.test_labels) == 1797
    share = first.test_labels.bincount() / (first.test_labels.bincount() + first.train_labels.bincount())
    assert share.min() > 0.19
    assert share.max() < 0.21
    joined = torch.cat([first.train_images, first.test_images]).flatten(1)
    everything = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    assert sorted(joined.tolist()) == sorted(everything.tolist())


@pytest.mark.parametrize("fraction", [0, -0.1, 0.5, 1, float("nan")])
def test_bad_test_fraction(fraction):
    with pytest.raises(ValueError, match=r"test_fraction: expected a number between 0 and 0\.5"):
        datasets.digits(test_fraction=fraction)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r'scikit-learn.*pip install "snnipu\[data\]"'):
        datasets.digits()
