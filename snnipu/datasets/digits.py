"""scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels that come with the package."""

import torch

from snnipu._extras import require
from snnipu.datasets.images import ImageData


def digits(test_fraction: float = 0.2) -> ImageData:
    """Load the digits of ``sklearn.datasets.load_digits``, scaled from 0..16 to 0..1.

    The split is stratified and deterministic: of each class, every ``round(1 / test_fraction)``-th image in the order
    of the file is a test image. So the test set is the same for every seed.

    Args:
        test_fraction: fraction of each class in the test set, 0 to 0.5, both excluded.

    Returns:
        An :class:`ImageData` of float32 images ``[samples, 8, 8]``.

    Raises:
        MissingExtra: scikit-learn is not installed.
        ValueError: ``test_fraction`` is out of range.

    Source: Alpaydin & Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository (1998).
    """
    if not 0 < test_fraction < 0.5:
        raise ValueError(f"test_fraction: expected a number between 0 and 0.5, both excluded, got {test_fraction}")
    loaded = require("sklearn.datasets", extra="data", purpose="the digits data set").load_digits()
    images = torch.tensor(loaded.images, dtype=torch.float32) / 16
    labels = torch.tensor(loaded.target, dtype=torch.int64)
    num_classes = len(loaded.target_names)

    stride = round(1 / test_fraction)
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(num_classes):
        in_test[torch.nonzero(labels == label).flatten()[stride - 1 :: stride]] = True
    return ImageData(
        name="digits",
        train_images=images[~in_test],
        train_labels=labels[~in_test],
        test_images=images[in_test],
        test_labels=labels[in_test],
        num_classes=num_classes,
    )
