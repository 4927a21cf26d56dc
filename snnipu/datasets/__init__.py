"""Data sets: images as tensors (digits, MNIST), and events as SparseSpikes (cameras, spoken digits, Randman)."""

from snnipu.datasets._recordings import DamagedFileError
from snnipu.datasets.digits import digits
from snnipu.datasets.dvs_gesture import dvs_gesture
from snnipu.datasets.event_data import EventData, EventDataset, event_loader
from snnipu.datasets.images import ImageData
from snnipu.datasets.mnist import mnist
from snnipu.datasets.nmnist import nmnist
from snnipu.datasets.randman import randman
from snnipu.datasets.random_spikes import random_spikes
from snnipu.datasets.shd import shd
from snnipu.datasets.spoken_digits import Cochlea, spoken_digits

__all__ = [
    "Cochlea",
    "DamagedFileError",
    "EventData",
    "EventDataset",
    "ImageData",
    "digits",
    "dvs_gesture",
    "event_loader",
    "mnist",
    "nmnist",
    "randman",
    "random_spikes",
    "shd",
    "spoken_digits",
]
