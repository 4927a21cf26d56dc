"""The options of ``python -m snnipu train``, each defined once, and the settings that they select."""

import argparse
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Type, Union

from snnipu import training
from snnipu.cli._streams import called, positive_integer
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
into --steps time steps, and --method selects how the layers run.

The predicted class is that of the output neuron with the most spikes. The loss is the cross entropy of these spike
counts, the optimizer Adam. After each epoch a checkpoint is written. Ctrl-C stops at once and loses the running epoch
only, and nothing with --save-every.
"""


class UsageError(Exception):
    """A wrong argument of the user; the message names it."""


# ---- values


def natural_int(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer from 0, got {text!r}")
    return int(text)


def hidden_layers(text: str) -> Tuple[Union[int, str], ...]:
    """Parse ``256,128`` or ``12C5-MP2-100``."""
    if not any(letter.isalpha() for letter in text):
        return tuple(map(positive_integer, text.split(",")))
    return tuple(positive_integer(part) if part.isdecimal() else part.upper() for part in re.split("[-,]", text))


def none_or(kind: Callable[[str], Any], what: str = "") -> Callable[[str], Any]:
    """Return an option type that accepts ``kind`` or the word none; ``what`` describes ``kind`` in errors."""

    def read(text: str) -> Any:
        try:
            return None if text.lower() == "none" else kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {what} or none, got {text!r}") from None

    return read


def slot_numbers(text: str) -> Any:
    """Parse ``64``, ``none`` or ``64,16,none``: one number for all layers, or one for each."""
    values = tuple(map(none_or(positive_integer), text.split(",")))
    return values if len(values) > 1 else values[0]


number_or_none = none_or(float, "a number")


# ---- options


class TrainOption(NamedTuple):
    """An option of the command.

    Attributes:
        name: the setting, or the argument, that it sets.
        kind: a function of its text, a tuple of all its values, or True for an option without a value.
        metavar: its value in the help.
        help: its help, in which ``{default}`` stands for the defaults of the data sets.
        flag: its flag; empty: the name with hyphens.
        default: its default, if the settings have none.
        repeated: True if the command that resumes a run must repeat the option, because no checkpoint stores it.
    """

    name: str
    kind: Any
    metavar: str
    help: str
    flag: str = ""
    default: Any = None
    repeated: bool = False


_IMAGES = training.TrainConfig()
_CONV = " and ".join(f"{values['grad_threshold']:g} for {name}" for name, values in CONV_DEFAULTS.items())
_RANDMAN = EVENT_DEFAULTS["randman"]
OPTIONS: Dict[str, List[TrainOption]] = {
    "network and schedule": [
        TrainOption(
            "dataset", (*training.DATASETS, *training.EVENT_DATASETS), "", f"data set (default: {_IMAGES.dataset})"
        ),
        TrainOption("steps", positive_integer, "T", "time steps ({default})"),
        TrainOption(
            "hidden", hidden_layers, "N[,N...]",
            "hidden neurons, for events of one or more layers ({default}); for --network conv layers such as "
            "12C5-MP2-32C5-MP2-100: convolutions to 12 and 32 maps by 5 x 5, maxima of 2 x 2, 100 neurons",
        ),
        TrainOption("epochs", positive_integer, "N", "passes over the data ({default})"),
        TrainOption(
            "batch_size", positive_integer, "N",
            "samples that a step of the optimizer takes, over all processes ({default})",
        ),
        TrainOption("lr", float, "", "learning rate of Adam ({default})"),
        TrainOption("lr_decay", float, "F", "multiplies the learning rate after each epoch ({default})"),
        TrainOption("beta", float, "", "decay of the membrane per step ({default})"),
        TrainOption("seed", int, "", f"seed of weights and batch order (default: {_IMAGES.seed})"),
        TrainOption(
            "engine", training.ENGINES, "",
            "digits and mnist: library that runs the neurons: snnipu (default), or snnTorch's loop with the same "
            "weights, to compare",
        ),
        TrainOption(
            "precision", PRECISIONS, "",
            "bf16: products and spikes in bfloat16, by autocast; for events with --method dense (default: float32)",
        ),
        TrainOption(
            "bptt_steps", positive_integer, "N",
            "digits and mnist: truncated backpropagation through time: the gradient is cut every N steps (default: "
            "it flows through all steps)",
        ),
        TrainOption(
            "rule", (*RULES, "decolle"), "",
            "learn online, without backpropagation through time, by this rule of snnipu.Online; events: with --delay 0 "
            "and --method dense, which become the defaults; sltt and ottt also with sparse_network (default: "
            "backpropagation through time)",
        ),
        TrainOption("chunk", positive_integer, "N", f"with --rule: steps of a chunk (default: {CHUNK})"),
    ],
    "less memory, and several processes (torchrun --nproc-per-node N -m snnipu train)": [
        TrainOption(
            "accumulate", positive_integer, "N",
            "compute each process's share of a batch in N parts, one after the other, and sum their gradients",
            default=1, repeated=True,
        ),
        TrainOption(
            "checkpoint_steps", positive_integer, "N",
            "digits and mnist: store the states of every N-th step only, and recompute the others in the backward "
            "pass: less memory, the same results",
            repeated=True,
        ),
        TrainOption(
            "timeout", float, "S",
            "seconds after which a process that waits for another one fails (default: %(default)g)",
            default=training.TIMEOUT,
        ),
    ],
    "events: sparsity": [
        TrainOption(
            "network", NETWORKS, "",
            "nmnist, dvs: fc, fully connected (default), or conv, the small convolutional network of the literature, "
            f"by default without delay and slots, with the second threshold {_CONV}",
        ),
        TrainOption(
            "method", tuple(training.METHODS), "",
            "sparse_network (default): one operator a layer; sparse_ops: operator by operator; dense: matrix products "
            "over all steps, which has no slots and no second threshold",
        ),
        TrainOption(
            "slot_activity", number_or_none, "A",
            "fraction of the hidden neurons that have a slot for their spike in a step: 2 * floor(A * N / 2) slots "
            "({default})",
            "--activity",
        ),
        TrainOption(
            "input_slots", none_or(positive_integer), "N",
            "with --activity: slots of the input, or none: as many as needed ({default})",
        ),
        TrainOption(
            "max_spikes", slot_numbers, "N[,N...]",
            "instead of --activity: slots of the input and of each layer, one number for all or one for each; none: "
            "as many as needed ({default})",
        ),
        TrainOption(
            "overflow_order", OVERFLOW_ORDERS, "",
            "spikes that get a slot if there are too few: those of the lowest ids (default), or in rotation",
        ),
        TrainOption(
            "grad_threshold", number_or_none, "G",
            "second threshold, above which hidden neurons have a gradient; none: every neuron has one (default: 0.9)",
        ),
        TrainOption(
            "grad_threshold_start", number_or_none, "G",
            "initial second threshold, or none: no schedule (default: -100)",
        ),
        TrainOption(
            "grad_threshold_every", positive_integer, "N",
            "batches between two halvings of its distance to --grad-threshold ({default})",
        ),
        TrainOption(
            "initial_activity", number_or_none, "A",
            "spikes per neuron and step to which the initial weights of each layer are scaled, or none: not scaled "
            "({default})",
        ),
        TrainOption(
            "initial_output_activity", number_or_none, "A",
            "the same for the output layer, or none: --initial-activity ({default})",
        ),
        TrainOption(
            "rate_limit", number_or_none, "A",
            "mean spikes per step above which a term of the loss acts on hidden neurons (default: none)",
        ),
        TrainOption(
            "rate_strength", float, "S",
            f"factor of the term of --rate-limit (default: {training.EventConfig.rate_strength:g})",
        ),
        TrainOption("delay", (0, 1), "", "steps from layer to layer (default: 1)"),
    ],
    "data and device": [
        TrainOption(
            "data_dir", Path, "D",
            "the folder that holds MNIST/raw, or the recordings; required except for --dataset digits and randman",
            repeated=True,
        ),
        TrainOption("download", True, "", "let torchvision download MNIST, tonic nmnist, shd and dvs, into --data-dir"),
        TrainOption("step_us", float, "US", "recordings: a time step ({default}, else the recording over --steps)"),
        TrainOption("crop", positive_integer, "N", "nmnist, dvs: the central N x N pixels only"),
        TrainOption("downsample", positive_integer, "N", "dvs: squares of N x N pixels become one ({default})"),
        TrainOption("classes", positive_integer, "N", f"randman: classes (default: {_RANDMAN['classes']})"),
        TrainOption(
            "samples_per_class", positive_integer, "N",
            f"randman: samples of a class, training and test (default: {_RANDMAN['samples_per_class']})",
        ),
        TrainOption("manifold_dim", positive_integer, "D", "randman: dimension of the manifolds (default: 1)"),
        TrainOption("alpha", float, "", "randman: smoothness of the manifolds (default: 2)"),
        TrainOption(
            "no_cache", True, "",
            "recordings: do not cache binned recordings on the disk, only in memory",
            repeated=True,
        ),
        TrainOption("workers", natural_int, "N", "events: processes that read recordings", repeated=True),
        TrainOption(
            "device", ("auto", "cpu", "cuda", IPU_MODEL), "",
            "ipu-model: the layers' operators on a model of an IPU, the rest on the CPU (default: auto, a GPU if any)",
            default="auto", repeated=True,
        ),
        TrainOption(
            "threads", positive_integer, "N",
            "CPU threads (default: 1 for a small network, else PyTorch's number or OMP_NUM_THREADS)",
        ),
    ],
    "output": [
        TrainOption("json", Path, "FILE", "write settings and results (accuracies: 0 to 1)", repeated=True),
        TrainOption(
            "plot_dir", Path, "D",
            "write raster.png, training.png and membranes.png (for events: activity.png) there",
            repeated=True,
        ),
        TrainOption(
            "checkpoint", Path, "FILE",
            "saved after each epoch (default: out/train-DATASET.pt; an explicit FILE needs an existing folder)",
        ),
        TrainOption("no_checkpoint", True, "", "save no checkpoint"),
        TrainOption(
            "save_every", positive_integer, "N",
            "also save the checkpoint after every N batches of an epoch, and when a signal stops the training",
            repeated=True,
        ),
        TrainOption(
            "resume", True, "",
            "continue from the checkpoint, with its settings; the result is that of an uninterrupted run",
        ),
    ],
}  # fmt: skip


_ALL = [option for options in OPTIONS.values() for option in options]
SETTINGS = {*training.TrainConfig.names(), *training.EventConfig.names()}
_FLAGS = {option.name: option.flag or f"--{option.name.replace('_', '-')}" for option in _ALL}


def flag(name: str) -> str:
    """Return the flag of a setting: ``--batch-size`` for ``batch_size``."""
    return _FLAGS.get(name, name)


def flag_message(message: str) -> str:
    """Replace the setting at the beginning of a message by its flag, as in ``--batch-size: expected ...``."""
    name, colon, reason = message.partition(":")
    return f"{flag(name)}{colon}{reason}"


def _default(name: str) -> str:
    """Return the defaults of a setting as text, as in ``default: 25 for digits and mnist, 100 for randman``."""
    datasets_of: Dict[str, List[str]] = {}
    images, events = _IMAGES.to_dict(), {"batch_size": training.EventConfig.batch_size}
    for common, defaults in ((images, DATASET_DEFAULTS), (events, EVENT_DEFAULTS)):
        for dataset, specific in defaults.items():
            value = {**common, **specific}.get(name)
            if value is not None:
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                datasets_of.setdefault(text, []).append(dataset)
    return "default: " + ", ".join(f"{text} for {' and '.join(names)}" for text, names in datasets_of.items())


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=called("train"), description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for option in options:
            # A setting without its option is absent from the result: None is a value.
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
    """Return the command that resumes from ``checkpoint`` with the same data and outputs."""
    command = ["python", "-m", "snnipu", "train", "--resume", "--checkpoint", str(checkpoint)]
    for option in _ALL:
        value = getattr(options, option.name) if option.repeated else None
        if value is not None and value is not False and value != option.default:
            command += [flag(option.name), *([] if value is True else [str(value)])]
    return command


# ---- settings


def config_kind(dataset: object) -> Type[Config]:
    return training.EventConfig if dataset in training.EVENT_DATASETS else training.TrainConfig


def choose_config(options: argparse.Namespace, saved: Optional[Dict[str, Any]]) -> Config:
    """Return the settings of the options, which update those of the checkpoint or the defaults of the data set."""
    chosen = {name: value for name, value in vars(options).items() if name in SETTINGS}
    dataset = (saved["config"] if saved is not None else chosen).get("dataset", training.TrainConfig.dataset)
    if saved is not None and "dataset" in chosen and isinstance(dataset, str):
        training.check_same_run({"dataset": dataset}, {"dataset": chosen["dataset"]})
    kind = config_kind(dataset)
    absent = "workers" if kind is training.TrainConfig else "checkpoint_steps"
    for name in [*chosen, *([] if getattr(options, absent) is None else [absent])]:
        if name not in kind.names():
            raise UsageError(f"argument {flag(name)}: not for --dataset {dataset}")
    if kind is training.TrainConfig and len(chosen.get("hidden", ())) == 1:
        (chosen["hidden"],) = chosen["hidden"]
    try:
        if saved is None:
            return kind.for_dataset(**{"dataset": dataset, **chosen})
        try:
            stored = kind(**saved["config"])
        except (TypeError, ValueError) as error:
            raise training.CheckpointError(f"the checkpoint is damaged: {error}") from error
        settings = {**stored.to_dict(), **chosen}
        training.check_same_run(stored.to_dict(), settings)
        return kind(**settings)
    except ValueError as error:
        raise UsageError(f"argument {flag_message(str(error))}") from error
