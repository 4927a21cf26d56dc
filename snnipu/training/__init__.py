"""Train spiking classifiers: the functions behind ``python -m snnipu train``.

>>> from snnipu import datasets, training
>>> config = training.TrainConfig(dataset="digits", hidden=128, epochs=5)
>>> trainer = training.Trainer(config, datasets.digits())
>>> trainer.fit()
>>> trainer.history[-1]["test_accuracy"]

Use :class:`EventConfig` and :class:`EventTrainer` for events. :class:`GradThresholdSchedule`,
:func:`scale_to_activity`, :class:`ActivityRegularizer` and :func:`benchmark_network` serve a custom training loop at
low activity.
"""

from snnipu._files import WriteError, writable_file, write_atomically
from snnipu.neurons.sparse_benchmark import benchmark_max_spikes, benchmark_network, benchmark_weights_
from snnipu.planning.network import benchmark_slots
from snnipu.training.checkpoint import (
    CheckpointError,
    check_same_run,
    load_checkpoint,
    lock_checkpoint,
    save_checkpoint,
)
from snnipu.training.config import DATASETS, ENGINES, EVENT_DATASETS, EventConfig, Settings, TrainConfig
from snnipu.training.events import EventTrainer
from snnipu.training.loop import DivergedError, TrainingLoop
from snnipu.training.low_activity import ActivityRegularizer, GradThresholdSchedule, LayerScale, scale_to_activity
from snnipu.training.methods import METHODS
from snnipu.training.network import StepLoop, build_network, layer_activity
from snnipu.training.online import RULES, SPIKE_RULES
from snnipu.training.ranks import TIMEOUT, OtherRankError, Ranks, joined
from snnipu.training.trainer import Trainer

__all__ = [
    "DATASETS",
    "ENGINES",
    "EVENT_DATASETS",
    "METHODS",
    "RULES",
    "SPIKE_RULES",
    "TIMEOUT",
    "ActivityRegularizer",
    "CheckpointError",
    "DivergedError",
    "EventConfig",
    "EventTrainer",
    "GradThresholdSchedule",
    "LayerScale",
    "OtherRankError",
    "Ranks",
    "Settings",
    "StepLoop",
    "TrainConfig",
    "Trainer",
    "TrainingLoop",
    "WriteError",
    "benchmark_max_spikes",
    "benchmark_network",
    "benchmark_slots",
    "benchmark_weights_",
    "build_network",
    "check_same_run",
    "joined",
    "layer_activity",
    "load_checkpoint",
    "lock_checkpoint",
    "save_checkpoint",
    "scale_to_activity",
    "writable_file",
    "write_atomically",
]
