"""The options of ``python -m snnipu train``, each in one place, and the settings that they ask for."""

import argparse
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Type, Union

from snnipu import training
from snnipu.cli._streams import positive_integer
from snnipu.training.config import (
    CONV_DEFAULTS,
    DATASET_DEFAULTS,
    EVENT_DEFAULTS,
    NETWORKS,
    OVERFLOW_ORDERS,
    PRECISIONS,
)
from snnipu.training.online import CHUNK, RULES

Config = Union[training.TrainConfig, training.EventConfig]

IPU_MODEL = "ipu-model"
DESCRIPTION = """\
Train a spiking network on handwritten digits or, with --dataset randman, nmnist, shd, dvs or spoken_digits, on
events.

Digits: features-hidden-10 leaky integrate-and-fire neurons; each image is shown for --steps time steps. Events: the
network, initial weights and update rule of the published sparse benchmark (arXiv 2311.04386); recordings are binned
into --steps time steps, and --method tells what runs the layers.

The class whose output neuron spikes most is the answer. The loss is the cross entropy of these spike counts, the
optimizer Adam. After each epoch a checkpoint is written; Ctrl-C stops at once and loses the running epoch only, and
with --save-every nothing.
"""


class UsageError(Exception):
    """What the user asked for cannot be done; the message names the argument."""


# ---- values


def natural_int(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer from 0, got {text!r}")
    return int(text)


def hidden_layers(text: str) -> Tuple[Union[int, str], ...]:
    """``256,128``, or ``12C5-MP2-100``."""
    if not any(letter.isalpha() for letter in text):
        return tuple(map(positive_integer, text.split(",")))
    return tuple(positive_integer(part) if part.isdecimal() else part.upper() for part in re.split("[-,]", text))


def none_or(kind: Callable[[str], Any], what: str = "") -> Callable[[str], Any]:
    """``kind``, or the word none."""

    def read(text: str) -> Any:
        try:
            return None if text.lower() == "none" else kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {what} or none, got {text!r}") from None

    return read


def slot_numbers(text: str) -> Any:
    """``64``, ``none`` or ``64,16,none``: a number for all, or one for each."""
    values = tuple(map(none_or(positive_integer), text.split(",")))
    return values if len(values) > 1 else values[0]


number_or_none = none_or(float, "a number")


# ---- options


class Option(NamedTuple):
    """An option of the command.

    Attributes:
        name: the setting, or the argument, that it sets.
        kind: a function of its text, all its values, or True for an option without a text.
        metavar: its value in the help.
        help: ``{default}`` stands for the defaults of the data sets.
        flag: where it is not the name with hyphens.
        default: where there is none in the settings.
        kept: whether a run that is resumed needs it again: what is no setting, and so in no checkpoint.
    """

    name: str
    kind: Any
    metavar: str
    help: str
    flag: str = ""
    default: Any = None
    kept: bool = False


_IMAGES = training.TrainConfig()
_CONV = " and ".join(f"{values['grad_threshold']:g} for {name}" for name, values in CONV_DEFAULTS.items())
_RANDMAN = EVENT_DEFAULTS["randman"]
OPTIONS: Dict[str, List[Option]] = {
    "network and schedule": [
        Option("dataset", (*training.DATASETS, *training.EVENT_DATASETS), "", f"default: {_IMAGES.dataset}"),
        Option("steps", positive_integer, "T", "time steps ({default})"),
        Option(
            "hidden", hidden_layers, "N[,N...]",
            "hidden neurons, for events of one or more layers ({default}); for --network conv layers such as "
            "12C5-MP2-32C5-MP2-100: convolutions to 12 and 32 maps by 5 x 5, maxima of 2 x 2, 100 neurons",
        ),
        Option("epochs", positive_integer, "N", "passes over the data ({default})"),
        Option(
            "batch_size", positive_integer, "N",
            "samples that a step of the optimizer takes, over all processes ({default})",
        ),
        Option("lr", float, "", "learning rate of Adam ({default})"),
        Option("lr_decay", float, "F", "multiplies the learning rate after each epoch ({default})"),
        Option("beta", float, "", "decay of the membrane per step ({default})"),
        Option("seed", int, "", f"of weights and batch order (default: {_IMAGES.seed})"),
        Option(
            "engine", training.ENGINES, "",
            "digits and mnist: what runs the neurons: snnipu (default), or snnTorch's step loop from the same weights, "
            "to compare",
        ),
        Option(
            "precision", PRECISIONS, "",
            "bf16: products and spikes in bfloat16, by autocast; for events with --method dense (default: float32)",
        ),
        Option(
            "bptt_steps", positive_integer, "N",
            "digits and mnist: truncated backpropagation through time: the gradient is cut off every N steps (default: "
            "it goes through all)",
        ),
        Option(
            "rule", (*RULES, "decolle"), "",
            "learn online, without going back through time, by this rule of snnipu.Online; events: with --delay 0 and "
            "--method dense, which are then the defaults, sltt and ottt with sparse_network, too (default: "
            "backpropagation through time)",
        ),
        Option("chunk", positive_integer, "N", f"with --rule: steps that are computed at a time (default: {CHUNK})"),
    ],
    "parts of a batch, in turn; several processes: torchrun --nproc-per-node N -m snnipu train": [
        Option(
            "accumulate", positive_integer, "N",
            "compute each process's share of a batch in N parts, and step on the sum of their gradients",
            default=1, kept=True,
        ),
        Option(
            "checkpoint_steps", positive_integer, "N",
            "digits and mnist: keep the states of every N-th step only, and compute the others again in the backward "
            "pass: less memory, the same numbers",
            kept=True,
        ),
        Option(
            "timeout", float, "S",
            "seconds after which processes that wait for another give up (default: %(default)g)",
            default=training.TIMEOUT,
        ),
    ],
    "events: how sparse": [
        Option(
            "network", NETWORKS, "",
            "nmnist, dvs: fc, fully connected (default), or conv, the field's small network of convolutions, by "
            f"default without delay and slots, with the second threshold {_CONV}",
        ),
        Option(
            "method", tuple(training.METHODS), "",
            "sparse_network (default): one operator a layer; sparse_ops: operator by operator; dense: matrix products "
            "over all steps, which has no slots and no second threshold",
        ),
        Option(
            "slot_activity", number_or_none, "A",
            "share of the hidden neurons that have a slot for their spike in a step: 2 * floor(A * N / 2) slots "
            "({default})",
            "--activity",
        ),
        Option(
            "input_slots", none_or(positive_integer), "N",
            "with --activity: slots of the input, or none: as many as needed ({default})",
        ),
        Option(
            "max_spikes", slot_numbers, "N[,N...]",
            "in place of --activity: slots of the input and of each layer, one number for all or one for each; none: "
            "as many as needed ({default})",
        ),
        Option(
            "overflow_order", OVERFLOW_ORDERS, "",
            "which spikes get a slot where there are too few: of the lowest ids (default), or in rotation",
        ),
        Option(
            "grad_threshold", number_or_none, "G",
            "second threshold, above which hidden neurons carry gradient, or none: every neuron does (default: 0.9)",
        ),
        Option(
            "grad_threshold_start", number_or_none, "G",
            "where the second threshold starts, or none: no schedule (default: -100)",
        ),
        Option(
            "grad_threshold_every", positive_integer, "N",
            "batches after which its distance to --grad-threshold is halved, again and again ({default})",
        ),
        Option(
            "initial_activity", number_or_none, "A",
            "spikes per neuron and step that the initial weights of each layer are scaled to, or none: as drawn "
            "({default})",
        ),
        Option(
            "initial_output_activity", number_or_none, "A",
            "the same for the output layer, or none: --initial-activity ({default})",
        ),
        Option(
            "rate_limit", number_or_none, "A",
            "mean spikes per step above which hidden neurons are held back by a term of the loss (default: none)",
        ),
        Option("rate_strength", float, "S", f"factor of that term (default: {training.EventConfig.rate_strength:g})"),
        Option("delay", (0, 1), "", "steps from layer to layer (default: 1)"),
    ],
    "data and device": [
        Option(
            "data_dir", Path, "D",
            "the folder that holds MNIST/raw, or the recordings; needed but for --dataset digits and randman",
            kept=True,
        ),
        Option("download", True, "", "let torchvision download MNIST, tonic nmnist, shd and dvs, into --data-dir"),
        Option("step_us", float, "US", "recordings: a time step ({default}, else the recording over --steps)"),
        Option("crop", positive_integer, "N", "nmnist, dvs: the central N x N pixels only"),
        Option("downsample", positive_integer, "N", "dvs: squares of N x N pixels become one ({default})"),
        Option("classes", positive_integer, "N", f"randman: classes (default: {_RANDMAN['classes']})"),
        Option(
            "samples_per_class", positive_integer, "N",
            f"randman: samples of a class, training and test (default: {_RANDMAN['samples_per_class']})",
        ),
        Option("manifold_dim", positive_integer, "D", "randman: of the manifolds (default: 1)"),
        Option("alpha", float, "", "randman: smoothness of the manifolds (default: 2)"),
        Option(
            "no_cache", True, "",
            "recordings: keep no binned ones on the disk, and take none from there (they are in memory)",
            kept=True,
        ),
        Option("workers", natural_int, "N", "events: processes that read recordings", kept=True),
        Option(
            "device", ("auto", "cpu", "cuda", IPU_MODEL), "",
            "ipu-model: the layers' operators on a model of an IPU, the rest on the CPU (default: auto, a GPU if any)",
            default="auto", kept=True,
        ),
        Option(
            "threads", positive_integer, "N",
            "of the CPU (default: 1 for a small network, else PyTorch's number or OMP_NUM_THREADS)",
        ),
    ],
    "output": [
        Option("json", Path, "FILE", "write settings and results (accuracies: 0 to 1)", kept=True),
        Option(
            "plot_dir", Path, "D",
            "write raster.png, training.png and membranes.png (for events: activity.png) there",
            kept=True,
        ),
        Option(
            "checkpoint", Path, "FILE",
            "saved after each epoch (default: out/train-DATASET.pt; an explicit FILE needs an existing folder)",
        ),
        Option("no_checkpoint", True, "", "save none"),
        Option(
            "save_every", positive_integer, "N",
            "save the checkpoint after every N batches of an epoch, too, and when a signal stops the training",
            kept=True,
        ),
        Option(
            "resume", True, "",
            "go on from the checkpoint, with its settings; the result is that of a run never interrupted",
        ),
    ],
}  # fmt: skip


_ALL = [option for options in OPTIONS.values() for option in options]
SETTINGS = {*training.TrainConfig.names(), *training.EventConfig.names()}
_FLAGS = {option.name: option.flag or f"--{option.name.replace('_', '-')}" for option in _ALL}


def flag(name: str) -> str:
    """``batch_size`` -> ``--batch-size``."""
    return _FLAGS.get(name, name)


def flag_message(message: str) -> str:
    """``batch_size: expected ...`` -> ``--batch-size: expected ...``."""
    name, colon, rest = message.partition(":")
    return f"{flag(name)}{colon}{rest}"


def _default(name: str) -> str:
    """``default: 25 for digits and mnist, 100 for randman``."""
    having: Dict[str, List[str]] = {}
    images, events = _IMAGES.to_dict(), {"batch_size": training.EventConfig.batch_size}
    for known, defaults in ((images, DATASET_DEFAULTS), (events, EVENT_DEFAULTS)):
        for dataset, own in defaults.items():
            value = {**known, **own}.get(name)
            if value is not None:
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                having.setdefault(text, []).append(dataset)
    return "default: " + ", ".join(f"{text} for {' and '.join(names)}" for text, names in having.items())


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m snnipu train", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for option in options:
            # A setting that is not given is absent: None is a value.
            default = argparse.SUPPRESS if option.name in SETTINGS else option.default
            kind: Dict[str, Any] = {"metavar": option.metavar or None, "default": default}
            if isinstance(option.kind, tuple):
                kind.update(choices=option.kind, type=type(option.kind[0]))
            elif callable(option.kind):
                kind.update(type=option.kind)
            else:
                kind = {"action": "store_true"}
            text = option.help.replace("{default}", _default(option.name))
            group.add_argument(flag(option.name), dest=option.name, help=text, **kind)
    return parser


def resume_command(options: argparse.Namespace, checkpoint: Path) -> List[str]:
    """The command that goes on from ``checkpoint``, which holds all settings, with the same data and outputs."""
    command = ["python", "-m", "snnipu", "train", "--resume", "--checkpoint", str(checkpoint)]
    for option in _ALL:
        value = getattr(options, option.name) if option.kept else None
        if value is not None and value is not False and value != option.default:
            command += [flag(option.name), *([] if value is True else [str(value)])]
    return command


# ---- settings


def config_kind(dataset: object) -> Type[Config]:
    return training.EventConfig if dataset in training.EVENT_DATASETS else training.TrainConfig


def choose_config(options: argparse.Namespace, saved: Optional[Dict[str, Any]]) -> Config:
    """The settings asked for, over those of the checkpoint or, without one, the data set's defaults."""
    asked = {name: value for name, value in vars(options).items() if name in SETTINGS}
    dataset = (saved["config"] if saved is not None else asked).get("dataset", training.TrainConfig.dataset)
    if saved is not None and "dataset" in asked and isinstance(dataset, str):
        training.check_same_run({"dataset": dataset}, {"dataset": asked["dataset"]})
    kind = config_kind(dataset)
    absent = "workers" if kind is training.TrainConfig else "checkpoint_steps"
    for name in [*asked, *([] if getattr(options, absent) is None else [absent])]:
        if name not in kind.names():
            raise UsageError(f"argument {flag(name)}: not for --dataset {dataset}")
    if kind is training.TrainConfig and "hidden" in asked:
        if len(asked["hidden"]) > 1:
            raise UsageError(f"argument --hidden: expected one number for --dataset {dataset}, got several")
        (asked["hidden"],) = asked["hidden"]
        if not isinstance(asked["hidden"], int):
            raise UsageError(f"argument --hidden: expected a number for --dataset {dataset}, got {asked['hidden']}")
    try:
        if saved is None:
            return kind.for_dataset(**{"dataset": dataset, **asked})
        try:
            stored = kind(**saved["config"])
        except (TypeError, ValueError) as error:
            raise training.CheckpointError(f"the checkpoint is damaged: {error}") from error
        settings = {**stored.to_dict(), **asked}
        training.check_same_run(stored.to_dict(), settings)
        return kind(**settings)
    except ValueError as error:
        raise UsageError(f"argument {flag_message(str(error))}") from error
