"""Real data sets as tensors: scikit-learn's digits (no download) and MNIST (through torchvision)."""

from snnipu.datasets.digits import digits
from snnipu.datasets.images import ImageData
from snnipu.datasets.mnist import mnist

__all__ = ["ImageData", "digits", "mnist"]
