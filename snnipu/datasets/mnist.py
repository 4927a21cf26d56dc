"""MNIST as tensors, read by torchvision."""

import os
from typing import Tuple, Union

import torch

from snnipu._extras import require
from snnipu.datasets._recordings import fetch
from snnipu.datasets.images import ImageData


def mnist(root: Union[str, "os.PathLike[str]"], download: bool = False) -> ImageData:
    """Load MNIST from a folder in torchvision's layout.

    The files are ``root/MNIST/raw/train-images-idx3-ubyte`` and three others.

    Args:
        root: the folder that holds ``MNIST``.
        download: let torchvision download missing files into ``root``. By default nothing is downloaded.

    Returns:
        An :class:`ImageData` of float32 images ``[samples, 28, 28]``.

    Raises:
        MissingExtra: torchvision is not installed or does not load.
        FileNotFoundError: ``root`` does not hold the data set, and ``download`` is false.
        ValueError: a file of the data set is damaged.
        RuntimeError: the download failed.

    Source: LeCun, Cortes & Burges, The MNIST database of handwritten digits.
    """
    torchvision_datasets = require("torchvision.datasets", extra="vision", purpose="the MNIST data set")
    root = os.fspath(root)
    if download:
        fetch("MNIST", root, lambda: torchvision_datasets.MNIST(root=root, train=True, download=True))
    elif not os.path.isdir(root):
        raise FileNotFoundError(f"root: {root!r} is not a folder: no MNIST there; download=True makes and fills it")

    def split(train: bool) -> Tuple[torch.Tensor, torch.Tensor]:
        try:
            part = torchvision_datasets.MNIST(root=root, train=train, download=False)
            images, labels = part.data, part.targets
        except Exception as error:  # torchvision checks its files with bare assertions
            if "not found" not in str(error).lower():
                raise ValueError(f"root: damaged MNIST files in {root!r}: {type(error).__name__} {error}") from error
            expected = os.path.join(root, "MNIST", "raw", "train-images-idx3-ubyte")
            raise FileNotFoundError(
                f"root: no MNIST in {root!r}: expected {expected} and its three fellows; download=True fetches them"
            ) from error
        if images.dim() != 3 or len(images) != len(labels) or len(labels) == 0:
            shapes = f"images {tuple(images.shape)}, labels {tuple(labels.shape)}"
            raise ValueError(f"root: damaged MNIST files in {root!r}: {shapes}")
        return images.to(torch.float32) / 255, labels.to(torch.int64)

    train_images, train_labels = split(train=True)
    test_images, test_labels = split(train=False)
    return ImageData("mnist", train_images, train_labels, test_images, test_labels, num_classes=10)
