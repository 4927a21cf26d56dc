"""The settings of a training run: everything that its result depends on."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

from snnipu.neurons.sparse_benchmark import SECOND_THRESHOLD, benchmark_max_spikes
from snnipu.training.methods import METHODS
from snnipu.training.online import CHUNK, RULES, SPIKE_RULES

DATASETS = ("digits", "mnist")
EVENT_DATASETS = ("randman", "nmnist", "shd", "dvs", "spoken_digits")
ENGINES = ("snnipu", "snntorch")
OVERFLOW_ORDERS = ("lowest", "rotate")
PRECISIONS = ("float32", "bf16")
NETWORKS = ("fc", "conv")
# Defaults that differ between the data sets. With the decay of the learning rate the accuracy settles in the last
# epochs, so that runs with different rounding end at the same accuracy.
DATASET_DEFAULTS: Dict[str, Dict[str, Any]] = {
    "digits": {"hidden": 128, "epochs": 15, "batch_size": 32, "lr": 1e-3, "lr_decay": 0.92},
    "mnist": {"hidden": 1000, "epochs": 8, "batch_size": 128, "lr": 1e-3, "lr_decay": 0.7},
}


@dataclass(frozen=True)
class Settings:
    """The settings of every run; two runs with equal settings on one machine have equal results.

    Attributes:
        dataset: name of the data set.
        steps: time steps T of a sample.
        epochs: passes over the training set.
        batch_size: samples in a batch, over all processes.
        lr: learning rate of Adam in the first epoch.
        lr_decay: factor of the learning rate after each epoch, above 0 and at most 1.
        beta: decay of the membrane per step, 0 to 1.
        seed: seed of the initial weights and of the order of the batches.
        precision: ``"float32"``, or ``"bf16"`` for products and spikes in bfloat16, by ``torch.autocast``.
        rule: rule of :class:`snnipu.Online`: ``"sltt"``, ``"ottt"``, ``"eprop"`` (without its low-pass) or ``"snap1"``;
            None: backpropagation through time.
        chunk: steps of a chunk, with ``rule``; None: 50.
    """

    dataset: str = "digits"
    steps: int = 25
    epochs: int = 15
    batch_size: int = 32
    lr: float = 1e-3
    lr_decay: float = 0.92
    beta: float = 0.9
    seed: int = 0
    precision: str = "float32"
    rule: Optional[str] = None
    chunk: Optional[int] = None

    @classmethod
    def names(cls) -> Tuple[str, ...]:
        """Return the names of the settings."""
        return tuple(field.name for field in fields(cls))

    def to_dict(self) -> Dict[str, Any]:
        """Return names and values, as a checkpoint and the JSON report store them; the constructor is the inverse."""
        return asdict(self)

    def _check_values(self) -> None:
        """Check each value on its own, and the rule with its chunks. None is valid if it is the default."""
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name in _ACCEPTED and not (value is None and setting.default is None):
                _check(setting.name, value)
        if self.rule is None:
            if self.chunk is not None:
                raise ValueError("chunk: only with a rule of online learning")
            return
        if self.rule == "decolle":
            raise ValueError("rule: decolle trains local readouts, which no network here has: use snn.Online")
        self._check_choice("rule", RULES)
        object.__setattr__(self, "chunk", CHUNK if self.chunk is None else self.chunk)
        check_positive_int("chunk", self.chunk)
        if self.precision != "float32":
            raise ValueError("precision: expected float32 with a rule of online learning")

    def rule_in_words(self) -> str:
        """Return the part of a run's description about its rule of online learning."""
        return "" if self.rule is None else f"; online by {self.rule}, chunks of {self.chunk} steps"

    def _check_choice(self, name: str, allowed: Sequence[str]) -> None:
        value = getattr(self, name)
        if value not in allowed:
            raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")


@dataclass(frozen=True)
class TrainConfig(Settings):
    """The settings of a run on images.

    Attributes:
        dataset: ``"digits"`` or ``"mnist"``.
        engine: ``"snnipu"``, or ``"snntorch"`` for a loop over snnTorch's steps with the same initial weights.
        hidden: number of hidden neurons.
        bptt_steps: steps after which the gradient through time is cut (truncated backpropagation through time); None:
            it flows through all steps. Like ``rule``, only with the engine ``"snnipu"``.
        steps, epochs, batch_size, lr, lr_decay, beta, seed, precision, rule, chunk: as in :class:`Settings`.

    Raises:
        ValueError: an argument is out of its range; the message starts with its name.
    """

    engine: str = "snnipu"
    hidden: int = 128
    bptt_steps: Optional[int] = None

    def __post_init__(self) -> None:
        self._check_choice("dataset", DATASETS)
        self._check_values()
        for name in ("bptt_steps", "rule"):
            if getattr(self, name) is not None and self.engine != "snnipu":
                raise ValueError(f"{name}: only for the engine snnipu, not {self.engine}")
        if self.rule is not None and self.bptt_steps is not None:
            raise ValueError("bptt_steps: a rule of online learning does not go back through time")
        check_positive_int("hidden", self.hidden)

    @classmethod
    def for_dataset(cls, dataset: str = "digits", **settings: Any) -> "TrainConfig":
        """Return the defaults of ``dataset``, updated with ``settings``."""
        return cls(**{"dataset": dataset, **DATASET_DEFAULTS.get(dataset, {}), **settings})


EVENT_DEFAULTS: Dict[str, Dict[str, Any]] = {
    "randman": {
        "steps": 100,
        "hidden": (256, 256, 256, 64),
        "epochs": 5,
        "lr": 3e-3,
        "lr_decay": 0.7,
        "beta": 0.92,
        "max_spikes": (64, 16, 16, 16, 8, 10),
        "grad_threshold_every": 50,
        "initial_activity": 0.03,
        "classes": 10,
        "samples_per_class": 1000,
        "manifold_dim": 1,
        "alpha": 2.0,
    },
    "nmnist": {
        "steps": 100,
        "hidden": (1466, 1466),
        "epochs": 15,
        "lr": 5e-4,
        "lr_decay": 0.95,
        "beta": 0.95,
        "slot_activity": 0.06,
        "input_slots": 64,
        "step_us": 1000.0,
        "grad_threshold_every": 8,
        "initial_activity": 0.02,
        "initial_output_activity": 0.005,
    },
    "shd": {
        "steps": 100,
        "hidden": (1462, 1460),
        "epochs": 15,
        "lr": 1e-3,
        "lr_decay": 0.9,
        "beta": 0.95,
        "slot_activity": 0.05,
        "input_slots": 48,
        "grad_threshold_every": 50,
        "initial_activity": 0.03,
    },
    "dvs": {
        "steps": 50,
        "hidden": (1466, 1466),
        "epochs": 15,
        "lr": 1e-3,
        "lr_decay": 0.9,
        "beta": 0.95,
        "slot_activity": 0.05,
        "input_slots": 128,
        "downsample": 4,
        "grad_threshold_every": 10,
        "initial_activity": 0.03,
    },
    "spoken_digits": {
        "steps": 100,
        "hidden": (256, 256),
        "epochs": 15,
        "lr": 2e-3,
        "lr_decay": 0.9,
        "beta": 0.95,
        "slot_activity": 0.25,
        "grad_threshold_every": 50,
        "initial_activity": 0.03,
    },
}
# Hidden layers of the standard convolutional networks of the literature, for maps up to a side length, and defaults
# that replace the data set's. They have no limit on slots and a constant second threshold: at -100 every neuron of a
# map would have a slot.
CONV_HIDDEN: Dict[str, Dict[int, Tuple[Union[int, str], ...]]] = {
    "nmnist": {34: ("12C5", "MP2", "32C5", "MP2")},
    "dvs": {
        48: ("16C5P2", "MP2", "32C3P1", "MP2", 512),
        128: ("16C5P2", "MP2", "32C3P1", "MP2", "64C3P1", "MP2", 512),
    },
}
CONV_DEFAULTS: Dict[str, Dict[str, Any]] = {
    "nmnist": {"lr": 2e-3, "grad_threshold": 0.8},
    "dvs": {"lr": 1e-3, "grad_threshold": 0.8},
}
_SIDES = {"nmnist": 34, "dvs": 128}
# Settings that the dense method does not have: it has no slots.
_SPARSE_ONLY = (
    "slot_activity",
    "max_spikes",
    "input_slots",
    "grad_threshold",
    "grad_threshold_start",
    "grad_threshold_every",
)
_RANDMAN_ONLY = ("classes", "samples_per_class", "manifold_dim", "alpha")
_ONLY_FOR = {
    **dict.fromkeys(_RANDMAN_ONLY, ("randman",)),
    "step_us": ("nmnist", "shd", "dvs", "spoken_digits"),
    "crop": ("nmnist", "dvs"),
    "downsample": ("dvs",),
}


@dataclass(frozen=True)
class EventConfig(Settings):
    """The settings of a run on events.

    Attributes:
        dataset: ``"randman"``, ``"nmnist"``, ``"shd"``, ``"dvs"`` or ``"spoken_digits"``.
        method: ``"sparse_network"``, ``"sparse_ops"`` or ``"dense"``; see :mod:`snnipu.training.methods`.
        network: ``"fc"`` for fully connected layers, or ``"conv"`` for convolutions of an event camera's maps.
        hidden: hidden neurons, one entry a layer. With ``"conv"``, layers in the notation of
            :class:`snnipu.SparseNetwork`, such as ``("12C5", "MP2", "32C5", "MP2", 100)``.
        delay: steps from layer to layer, 0 or 1.
        slot_activity: fraction of the hidden neurons that have a slot, see
            :func:`~snnipu.training.benchmark_slots`; None: ``max_spikes`` sets the slots.
        input_slots: slots of the input, with ``slot_activity``; None: as many as needed.
        max_spikes: slots of the input and of each layer. An int holds for all of them; None: as many as needed.
        overflow_order: the spikes that are dropped if there are too few slots, ``"lowest"`` or ``"rotate"``.
        grad_threshold: second threshold of the hidden layers; None: every neuron has a gradient. The output layer has
            no second threshold, because a silent output neuron could never spike again.
        grad_threshold_start: initial second threshold, see :class:`~snnipu.training.GradThresholdSchedule`; None:
            ``grad_threshold`` is constant.
        grad_threshold_every: batches between two halvings of the distance to ``grad_threshold``.
        initial_activity: activity to which the initial weights of each layer are scaled, see
            :func:`~snnipu.training.scale_to_activity`; None: the weights are not scaled.
        initial_output_activity: the same for the output layer alone; None: ``initial_activity``. With few output spikes
            the counts of the classes differ little at first, so that the loss is small.
        rate_limit: mean rate, in spikes per step, above which a loss acts on hidden neurons, see
            :class:`~snnipu.training.ActivityRegularizer`; None: no limit.
        rate_strength: strength of that loss.
        classes, samples_per_class, manifold_dim, alpha: arguments of :func:`~snnipu.datasets.randman`; None for other
            data sets.
        step_us: microseconds of a time step of a recording; None: the data set's default. Not for Randman.
        crop: use only the central ``crop`` x ``crop`` pixels of an event camera; None: all pixels.
        downsample: side length of the squares of pixels that are combined into one, for ``"dvs"``.
        precision: ``"bf16"`` only with ``method="dense"``.
        rule: needs ``delay=0`` and ``method="dense"``, which it makes the defaults; ``"sltt"`` and ``"ottt"`` also
            support ``method="sparse_network"``.
        steps, epochs, batch_size, lr, lr_decay, beta, seed, chunk: as in :class:`Settings`.

    Raises:
        ValueError: an argument is out of its range, or excludes another; the message starts with its name.
    """

    method: str = "sparse_network"
    steps: int = 100
    hidden: Tuple[Any, ...] = (256,)
    epochs: int = 10
    batch_size: int = 48
    lr_decay: float = 1.0
    beta: float = 0.95
    delay: int = 1
    slot_activity: Optional[float] = None
    input_slots: Optional[int] = None
    max_spikes: Union[int, Tuple[Optional[int], ...], None] = None
    overflow_order: str = "lowest"
    grad_threshold: Optional[float] = None
    grad_threshold_start: Optional[float] = None
    grad_threshold_every: Optional[int] = None
    initial_activity: Optional[float] = None
    initial_output_activity: Optional[float] = None
    rate_limit: Optional[float] = None
    rate_strength: float = 100.0
    classes: Optional[int] = None
    samples_per_class: Optional[int] = None
    manifold_dim: Optional[int] = None
    alpha: Optional[float] = None
    step_us: Optional[float] = None
    crop: Optional[int] = None
    downsample: Optional[int] = None
    network: str = "fc"

    def __post_init__(self) -> None:
        self._check_choice("dataset", EVENT_DATASETS)
        if self.network == "conv" and self.dataset not in CONV_HIDDEN:
            raise ValueError(
                f"network: expected fc for the data set {self.dataset}, got conv: only {' and '.join(CONV_HIDDEN)} "
                "have maps"
            )
        self._check_values()
        if self.beta == 1:
            raise ValueError("beta: expected a number below 1: the input is scaled with 1 - beta, got 1")
        self._check_layers()
        if self.precision != "float32" and self.method != "dense":
            raise ValueError(f"precision: expected float32, got {self.precision!r}: sparse operators have no other")
        for names, applies, reason in (
            (_SPARSE_ONLY, self.method == "dense", "the dense method has no slots and no second threshold"),
            (("max_spikes",), self.slot_activity is not None, "slot_activity sets the slots"),
            (("input_slots",), self.slot_activity is None, "only with slot_activity; max_spikes includes the input's"),
            (_SPARSE_ONLY[-2:], self.grad_threshold is None, "there is no grad_threshold"),
            (_SPARSE_ONLY[-1:], self.grad_threshold_start is None, "there is no grad_threshold_start"),
            (("initial_output_activity",), self.initial_activity is None, "initial_activity is none"),
            (("rate_limit",), self.rule is not None, "a limit on a whole recording's mean, which is learnt in chunks"),
            *(
                ((name,), self.dataset not in datasets, f"only for the data set {' or '.join(datasets)}")
                for name, datasets in _ONLY_FOR.items()
            ),
        ):
            for name in names:
                if applies and getattr(self, name) is not None:
                    raise ValueError(f"{name}: expected none, got {getattr(self, name)!r}: {reason}")
        if self.dataset == "randman":
            for name in _RANDMAN_ONLY:
                _check(name, getattr(self, name))
        if self.grad_threshold_start is not None and self.grad_threshold is not None:
            _check("grad_threshold_every", self.grad_threshold_every)
            if self.grad_threshold_start > self.grad_threshold:
                raise ValueError(
                    f"grad_threshold_start: expected a number up to grad_threshold, {self.grad_threshold:g}, got "
                    f"{self.grad_threshold_start:g}"
                )
        self._check_slots()
        if self.rule is None:
            return
        if self.delay:
            raise ValueError("delay: expected 0 with a rule of online learning, got 1")
        if self.method != "dense" and (self.method == "sparse_ops" or self.rule not in SPIKE_RULES):
            raise ValueError(
                f"method: expected dense with the rule {self.rule}, or sparse_network with {' or '.join(SPIKE_RULES)}, "
                f"got {self.method!r}"
            )

    def _check_layers(self) -> None:
        hidden: Any = self.hidden
        hidden = (hidden,) if isinstance(hidden, (int, str)) else hidden
        if not isinstance(hidden, (list, tuple)) or not hidden:
            raise ValueError(f"hidden: expected one number of neurons or several, got {hidden!r}")
        if self.network == "conv":
            hidden = [part for entry in hidden for part in (entry.split("-") if isinstance(entry, str) else [entry])]
        for size in hidden:
            if isinstance(size, str) and self.network == "conv":
                continue  # SparseNetwork checks the notation of layers
            if isinstance(size, str):
                raise ValueError(f"hidden: {size!r} is a layer of network conv, and this is network {self.network}")
            check_positive_int("hidden", size)
        object.__setattr__(self, "hidden", tuple(hidden))

    @property
    def num_hidden_layers(self) -> int:
        """Number of hidden layers that spike, without pools."""
        return sum(not (isinstance(part, str) and part[1:2] == "P") for part in self.hidden)

    def _check_slots(self) -> None:
        if isinstance(self.max_spikes, (list, tuple)):
            object.__setattr__(self, "max_spikes", tuple(self.max_spikes))
        slots = self.max_spikes if isinstance(self.max_spikes, tuple) else (self.max_spikes,)
        layers = self.num_hidden_layers + 2
        if isinstance(self.max_spikes, tuple) and len(slots) != layers:
            raise ValueError(
                f"max_spikes: expected {layers} numbers, for the input, {layers - 2} hidden layers and the output, "
                f"got {len(slots)}"
            )
        for value in slots:
            if value is not None:
                check_positive_int("max_spikes", value)

    @classmethod
    def for_dataset(cls, dataset: str, **settings: Any) -> "EventConfig":
        """Return the defaults of ``dataset``, updated with ``settings``.

        The defaults are the published configuration, if there is one. With ``network="conv"`` they are those of the
        standard network for the data set's maps. Defaults that conflict with ``settings`` are dropped: slots if other
        slots or hidden layers are given, slots and second threshold for ``method="dense"``.
        """
        defaults: Dict[str, Any] = {"dataset": dataset, "grad_threshold": SECOND_THRESHOLD}
        defaults.update(grad_threshold_start=-100.0, **EVENT_DEFAULTS.get(dataset, {}))
        if settings.get("rule") is not None:
            defaults.update(method="dense", delay=0)
        if settings.get("network") == "conv" and dataset in CONV_HIDDEN:
            pixels = settings.get("downsample", defaults.get("downsample")) or 1
            side = (settings.get("crop") or _SIDES[dataset]) // pixels if is_number(pixels) else 0
            candidates = [hidden for largest_side, hidden in CONV_HIDDEN[dataset].items() if side <= largest_side]
            for name in (*_SPARSE_ONLY, "initial_output_activity"):
                defaults.pop(name, None)
            defaults.update(hidden=candidates[0] if candidates else None, delay=0, **CONV_DEFAULTS[dataset])
        if "max_spikes" in settings:
            defaults.update(slot_activity=None, input_slots=None)
        elif "slot_activity" in settings:
            defaults.pop("max_spikes", None)
        elif "hidden" in settings and "max_spikes" in defaults:
            # Other hidden layers: the same fraction of slots instead of the numbers; the input is unchanged.
            slots = defaults.pop("max_spikes")
            defaults.update(slot_activity=slots[1] / defaults["hidden"][0], input_slots=slots[0])
        while True:
            try:
                return cls(**{**defaults, **settings})
            except ValueError as error:
                name = str(error).partition(":")[0]
                if name in settings or defaults.pop(name, None) is None:
                    raise

    def slots(self, sizes: Sequence[int]) -> Tuple[Optional[int], ...]:
        """Return the slots of the input and of each layer of a network of ``sizes``; None: as many as needed."""
        if self.slot_activity is not None:
            return tuple(benchmark_max_spikes(sizes, self.slot_activity, self.input_slots))
        return self.max_spikes if isinstance(self.max_spikes, tuple) else (self.max_spikes,) * len(sizes)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_positive_int(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected a positive integer, got {value!r}")


def _check(name: str, value: Any) -> None:
    expected, accepts = _ACCEPTED[name]
    if not accepts(value):
        raise ValueError(f"{name}: expected {expected}, got {value!r}")


_Accepted = Dict[str, Tuple[str, Callable[[Any], bool]]]


def _numbers(expected: str, accepts: Callable[[Any], bool], *names: str) -> _Accepted:
    return {name: (expected, lambda value: is_number(value) and accepts(value)) for name in names}


def _one_of(name: str, choices: Sequence[str]) -> _Accepted:
    return {name: (f"one of {', '.join(choices)}", choices.__contains__)}


# The values that a setting accepts on its own, and their description in errors.
_ACCEPTED: _Accepted = {
    **_numbers(
        "a positive integer",
        lambda value: isinstance(value, int) and value >= 1,
        *("steps", "epochs", "batch_size", "bptt_steps", "input_slots", "grad_threshold_every"),
        *("classes", "samples_per_class", "manifold_dim", "crop", "downsample"),
    ),
    **_numbers("an integer from 0 to 2**63 - 1", lambda value: isinstance(value, int) and 0 <= value < 2**63, "seed"),
    **_numbers("0 or 1", lambda value: value in (0, 1), "delay"),
    **_numbers("a number above 0", lambda value: 0 < value < math.inf, "lr", "step_us"),
    **_numbers("a number from 0", lambda value: 0 <= value < math.inf, "rate_strength", "alpha"),
    **_numbers("a number from 0 to 1", lambda value: 0 <= value <= 1, "beta"),
    **_numbers("a number above 0 and up to 1", lambda value: 0 < value <= 1, "lr_decay", "slot_activity"),
    **_numbers(
        "a number above 0 and below 1",
        lambda value: 0 < value < 1,
        *("initial_activity", "initial_output_activity", "rate_limit"),
    ),
    **_numbers("a finite number", math.isfinite, "grad_threshold", "grad_threshold_start"),
    **_one_of("engine", ENGINES),
    **_one_of("precision", PRECISIONS),
    **_one_of("method", tuple(METHODS)),
    **_one_of("network", NETWORKS),
    **_one_of("overflow_order", OVERFLOW_ORDERS),
}
