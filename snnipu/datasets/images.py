"""The common form of all image data sets: tensors, loaded once."""

from dataclasses import dataclass
from typing import Tuple

import torch


@dataclass(frozen=True)
class ImageData:
    """Labelled grey images, split into training and test set.

    Attributes:
        name: name of the data set.
        train_images, test_images: float32 ``[samples, height, width]``, 0 (background) to 1.
        train_labels, test_labels: int64 ``[samples]``, 0 to ``num_classes - 1``.
        num_classes: number of classes.
    """

    name: str
    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    num_classes: int

    @property
    def image_shape(self) -> Tuple[int, int]:
        """Height and width in pixels."""
        return self.train_images.shape[1], self.train_images.shape[2]

    @property
    def num_features(self) -> int:
        """Number of pixels of an image."""
        height, width = self.image_shape
        return height * width
