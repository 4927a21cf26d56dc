"""Train a two-layer spiking classifier: what ``python -m snnipu train`` does, as functions to build on.

>>> from snnipu import datasets, training
>>> config = training.TrainConfig(dataset="digits", hidden=128, epochs=5)
>>> trainer = training.Trainer(config, datasets.digits())
>>> trainer.fit()
>>> trainer.history[-1]["test_accuracy"]
"""

from snnipu.training.checkpoint import CheckpointError, check_same_run, load_checkpoint, save_checkpoint
from snnipu.training.config import DATASETS, ENGINES, TrainConfig
from snnipu.training.files import writable_file, write_atomically
from snnipu.training.network import StepLoop, build_network, layer_activity
from snnipu.training.trainer import DivergedError, Trainer, backend_name

__all__ = [
    "DATASETS",
    "ENGINES",
    "CheckpointError",
    "DivergedError",
    "StepLoop",
    "TrainConfig",
    "Trainer",
    "backend_name",
    "build_network",
    "check_same_run",
    "layer_activity",
    "load_checkpoint",
    "save_checkpoint",
    "writable_file",
    "write_atomically",
]
