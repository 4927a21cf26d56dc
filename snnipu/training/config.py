"""What a training run is made of: everything that its result depends on, and nothing else."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Dict

DATASETS = ("digits", "mnist")
ENGINES = ("snnipu", "snntorch")

# What differs between the data sets. With the decay, the last epochs settle instead of wandering about: runs that
# differ in rounding only then end at the same accuracy.
DATASET_DEFAULTS: Dict[str, Dict[str, Any]] = {
    "digits": {"hidden": 128, "epochs": 15, "batch_size": 32, "lr": 1e-3, "lr_decay": 0.92},
    "mnist": {"hidden": 1000, "epochs": 8, "batch_size": 128, "lr": 1e-3, "lr_decay": 0.7},
}


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a run; two runs with equal settings on one machine give equal results.

    Attributes:
        dataset: ``"digits"`` or ``"mnist"``.
        engine: ``"snnipu"``, or ``"snntorch"`` for snnTorch's own step loop from the same initial weights.
        steps: time steps T that an image is shown.
        hidden: hidden neurons.
        epochs: passes over the training set.
        batch_size: images in a batch.
        lr: learning rate of Adam in the first epoch.
        lr_decay: what the learning rate is multiplied with after each epoch, above 0 and up to 1.
        beta: decay of the membrane per step, 0 to 1.
        seed: seeds the initial weights and the order of the batches.

    Raises:
        ValueError: an argument is out of its range; the message starts with its name.
    """

    dataset: str = "digits"
    engine: str = "snnipu"
    steps: int = 25
    hidden: int = 128
    epochs: int = 15
    batch_size: int = 32
    lr: float = 1e-3
    lr_decay: float = 0.92
    beta: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("dataset", DATASETS), ("engine", ENGINES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("steps", "hidden", "epochs", "batch_size"):
            check_positive_int(name, getattr(self, name))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: expected an integer from 0 to 2**63 - 1, got {self.seed!r}")
        if not (is_number(self.lr) and 0 < self.lr < math.inf):
            raise ValueError(f"lr: expected a number above 0, got {self.lr!r}")
        if not (is_number(self.lr_decay) and 0 < self.lr_decay <= 1):
            raise ValueError(f"lr_decay: expected a number above 0 and up to 1, got {self.lr_decay!r}")
        if not (is_number(self.beta) and 0 <= self.beta <= 1):
            raise ValueError(f"beta: expected a number from 0 to 1, got {self.beta!r}")

    @classmethod
    def for_dataset(cls, dataset: str = "digits", **settings: Any) -> "TrainConfig":
        """The defaults of ``dataset``, with ``settings`` over them."""
        return cls(**{"dataset": dataset, **DATASET_DEFAULTS.get(dataset, {}), **settings})

    @classmethod
    def from_dict(cls, values: Dict[str, Any]) -> "TrainConfig":
        """The inverse of :meth:`to_dict`; raises ``ValueError`` where names are missing or unknown."""
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            raise ValueError(f"expected the settings {sorted(names)}, got {sorted(map(str, values))}")
        return cls(**values)

    def to_dict(self) -> Dict[str, Any]:
        """Names and values, as they stand in a checkpoint and in the JSON report."""
        return asdict(self)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_positive_int(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected a positive integer, got {value!r}")
