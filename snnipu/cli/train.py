"""``python -m snnipu train``: train a spiking network on digits or on events, resumably."""

import argparse
import contextlib
import functools
import json
import math
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type, Union

import snntorch
import torch

from snnipu import datasets, training
from snnipu._extras import MissingExtra, require
from snnipu._files import failure, write_text
from snnipu._names import is_installed
from snnipu._version import __version__
from snnipu.training.config import (
    CONV_DEFAULTS,
    CONV_HIDDEN,
    DATASET_DEFAULTS,
    EVENT_DEFAULTS,
    NETWORKS,
    OVERFLOW_ORDERS,
    PRECISIONS,
)
from snnipu.training.interrupt import StopRequest

Config = Union[training.TrainConfig, training.EventConfig]
AnyTrainer = Union[training.Trainer, training.EventTrainer]

SETTINGS = tuple(dict.fromkeys([*training.TrainConfig.names(), *training.EventConfig.names()]))
# Flags that are not called as the setting is.
FLAGS = {"slot_activity": "--activity"}
# Multiply-adds of a batch. Threads of a smaller network wait for each other longer than they compute, above all where
# other processes take their turns: measured on two cores, see docs/how-to/speed-up.md.
ONE_THREAD_BELOW = 20_000_000
NONE = "none"
IPU_MODEL = "ipu-model"
DESCRIPTION = """\
Train a spiking network on handwritten digits or, with --dataset randman, nmnist, shd or dvs, on events.

Digits: features-hidden-10 leaky integrate-and-fire neurons; each image is shown for --steps time steps. Events: the
network, initial weights and update rule of the published sparse benchmark (arXiv 2311.04386); recordings are binned
into --steps time steps, and --method tells what runs the layers.

The class whose output neuron spikes most is the answer. The loss is the cross entropy of these spike counts, the
optimizer Adam. After each epoch a checkpoint is written; Ctrl-C stops at once and loses the running epoch only.
"""


def main(argv: List[str]) -> int:
    """Run the command; returns 0, or 128 + the signal's number after Ctrl-C (130) or SIGTERM (143)."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        return run(options)
    except training.CheckpointError as error:
        parser.error(f"{own_name()}argument --checkpoint: {error}")
    except UsageError as error:
        parser.error(f"{own_name()}{error}")
    except training.OtherRankError:  # it says why itself
        return 2
    except training.LostRankError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1)  # PyTorch's threads may still wait for who is gone
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def own_name() -> str:
    """``rank 3: `` where there are several processes and this is not the first, which speaks to the user."""
    rank = os.environ.get("RANK", "0")
    return "" if rank == "0" else f"rank {rank}: "


class UsageError(Exception):
    """What the user asked for cannot be done; the message names the argument."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m snnipu train", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = training.TrainConfig()
    steps = {dataset: {"steps": defaults.steps, "beta": defaults.beta} for dataset in training.DATASETS}
    batch = {dataset: {"batch_size": training.EventConfig.batch_size} for dataset in training.EVENT_DATASETS}
    known: Dict[str, Dict[str, Any]] = {}
    for part in (steps, DATASET_DEFAULTS, batch, EVENT_DEFAULTS):
        for dataset, values in part.items():
            known.setdefault(dataset, {}).update(values)

    def by_dataset(name: str) -> str:
        """``25 for digits and mnist, 100 for randman``."""
        having: Dict[str, List[str]] = {}
        for dataset, values in known.items():
            if values.get(name) is not None:
                value = values[name]
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                having.setdefault(text, []).append(dataset)
        return "default: " + ", ".join(f"{text} for {' and '.join(names)}" for text, names in having.items())

    network = parser.add_argument_group("network and schedule")
    network.add_argument(
        "--dataset",
        choices=(*training.DATASETS, *training.EVENT_DATASETS),
        help=f"default: {defaults.dataset}",
    )
    network.add_argument("--steps", type=positive_int, metavar="T", help=f"time steps ({by_dataset('steps')})")
    network.add_argument(
        "--hidden",
        type=hidden_layers,
        metavar="N[,N...]",
        help=f"hidden neurons, for events of one or more layers ({by_dataset('hidden')}); for --network conv layers "
        "such as 12C5-MP2-32C5-MP2-100: convolutions to 12 and 32 maps by 5 x 5, maxima of 2 x 2, 100 neurons",
    )
    network.add_argument(
        "--epochs", type=positive_int, metavar="N", help=f"passes over the data ({by_dataset('epochs')})"
    )
    network.add_argument(
        "--batch-size",
        type=positive_int,
        metavar="N",
        help=f"samples that a step of the optimizer takes, over all processes ({by_dataset('batch_size')})",
    )
    network.add_argument(
        "--global-batch", dest="batch_size", type=positive_int, metavar="N", help="the same as --batch-size"
    )
    network.add_argument("--lr", type=float, help=f"learning rate of Adam ({by_dataset('lr')})")
    network.add_argument(
        "--lr-decay",
        type=float,
        metavar="F",
        help=f"multiplies the learning rate after each epoch ({by_dataset('lr_decay')})",
    )
    network.add_argument("--beta", type=float, help=f"decay of the membrane per step ({by_dataset('beta')})")
    network.add_argument("--seed", type=int, help=f"of weights and batch order (default: {defaults.seed})")
    network.add_argument(
        "--engine",
        choices=training.ENGINES,
        help="digits and mnist: what runs the neurons: snnipu (default), or snnTorch's step loop from the same "
        "weights, to compare",
    )
    network.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="bf16: products and spikes in bfloat16, by autocast; for events with --method dense (default: float32)",
    )
    network.add_argument(
        "--bptt-steps",
        type=positive_int,
        metavar="N",
        help="digits and mnist: truncated backpropagation through time: the gradient is cut off every N steps "
        "(default: it goes through all)",
    )
    parts = parser.add_argument_group(
        "parts of a batch, in turn; several processes: torchrun --nproc-per-node N -m snnipu train"
    )
    parts.add_argument(
        "--accumulate",
        type=positive_int,
        default=1,
        metavar="N",
        help="compute each process's share of a batch in N parts, and step on the sum of their gradients",
    )
    parts.add_argument(
        "--replicas",
        type=positive_int,
        metavar="N",
        help="with --device ipu-model: N replicas, each with its share of a batch, as poptorch's replicationFactor; "
        "the model runs them in turn (default: 1)",
    )
    parts.add_argument(
        "--checkpoint-steps",
        type=positive_int,
        metavar="N",
        help="digits and mnist: keep the states of every N-th step only, and compute the others again in the backward "
        "pass: less memory, the same numbers",
    )
    parts.add_argument(
        "--timeout",
        type=positive_float,
        default=training.TIMEOUT,
        metavar="S",
        help="seconds after which processes that wait for another give up and name it (default: %(default)g)",
    )
    events = parser.add_argument_group("events: how sparse")
    events.add_argument(
        "--network",
        choices=NETWORKS,
        help="nmnist, dvs: fc, fully connected (default), or conv, the field's small network of convolutions, by "
        "default without delay and slots, with the second threshold "
        + " and ".join(f"{values['grad_threshold']:g} for {name}" for name, values in CONV_DEFAULTS.items())
        + "; hidden layers: "
        + ", ".join(
            f"{'-'.join(map(str, hidden))} for {dataset}" + (f" up to {side} x {side}" if len(sides) > 1 else "")
            for dataset, sides in CONV_HIDDEN.items()
            for side, hidden in sides.items()
        ),
    )
    events.add_argument(
        "--method",
        choices=tuple(training.METHODS),
        help="sparse_network (default): one operator a layer; sparse_ops: operator by operator; dense: matrix products "
        "over all steps, which has no slots and no second threshold",
    )
    events.add_argument(
        "--dense", dest="method", action="store_const", const="dense", help="the same as --method dense"
    )
    events.add_argument(
        "--activity",
        dest="slot_activity",
        type=none_or(float, "a number"),
        metavar="A",
        help="share of the hidden neurons that have a slot for their spike in a step: 2 * floor(A * N / 2) slots "
        f"({by_dataset('slot_activity')})",
    )
    events.add_argument(
        "--input-slots",
        type=none_or(positive_int),
        metavar="N",
        help=f"with --activity: slots of the input, or none: as many as needed ({by_dataset('input_slots')})",
    )
    events.add_argument(
        "--max-spikes",
        type=slot_numbers,
        metavar="N[,N...]",
        help="in place of --activity: slots of the input and of each layer, one number for all or one for each; none: "
        f"as many as needed ({by_dataset('max_spikes')})",
    )
    events.add_argument(
        "--overflow-order",
        choices=OVERFLOW_ORDERS,
        help="which spikes get a slot where there are too few: of the lowest ids (default), or in rotation",
    )
    events.add_argument(
        "--grad-threshold",
        type=none_or(float, "a number"),
        metavar="G",
        help="second threshold, above which hidden neurons carry gradient, or none: every neuron does (default: 0.9)",
    )
    events.add_argument(
        "--grad-threshold-start",
        type=none_or(float, "a number"),
        metavar="G",
        help="where the second threshold starts, or none: no schedule (default: -100)",
    )
    events.add_argument(
        "--grad-threshold-every",
        type=positive_int,
        metavar="N",
        help="batches after which its distance to --grad-threshold is halved, again and again "
        f"({by_dataset('grad_threshold_every')})",
    )
    events.add_argument(
        "--initial-activity",
        type=none_or(float, "a number"),
        metavar="A",
        help="spikes per neuron and step that the initial weights of each layer are scaled to, or none: as drawn "
        f"({by_dataset('initial_activity')})",
    )
    events.add_argument(
        "--initial-output-activity",
        type=none_or(float, "a number"),
        metavar="A",
        help=f"the same for the output layer, or none: --initial-activity ({by_dataset('initial_output_activity')})",
    )
    events.add_argument(
        "--rate-limit",
        type=none_or(float, "a number"),
        metavar="A",
        help="mean spikes per step above which hidden neurons are held back by a term of the loss (default: none)",
    )
    events.add_argument(
        "--rate-strength",
        type=float,
        metavar="S",
        help=f"factor of that term (default: {training.EventConfig.rate_strength:g})",
    )
    events.add_argument("--delay", type=int, choices=(0, 1), help="steps from layer to layer (default: 1)")
    data = parser.add_argument_group("data and device")
    data.add_argument(
        "--data-dir",
        type=Path,
        metavar="D",
        help="the folder that holds MNIST/raw, or the recordings; needed for --dataset mnist, nmnist, shd and dvs",
    )
    data.add_argument(
        "--download", action="store_true", help="let torchvision download MNIST, tonic the others, into --data-dir"
    )
    data.add_argument(
        "--step-us",
        type=float,
        metavar="US",
        help=f"nmnist, shd, dvs: a time step ({by_dataset('step_us')}, else the recording over --steps)",
    )
    data.add_argument("--crop", type=positive_int, metavar="N", help="nmnist, dvs: the central N x N pixels only")
    data.add_argument(
        "--downsample",
        type=positive_int,
        metavar="N",
        help=f"dvs: squares of N x N pixels become one ({by_dataset('downsample')})",
    )
    for name, what in (("classes", "classes"), ("samples_per_class", "samples of a class, training and test")):
        data.add_argument(
            f"--{name.replace('_', '-')}",
            type=positive_int,
            metavar="N",
            help=f"randman: {what} (default: {EVENT_DEFAULTS['randman'][name]})",
        )
    data.add_argument("--manifold-dim", type=positive_int, metavar="D", help="randman: of the manifolds (default: 1)")
    data.add_argument("--alpha", type=float, help="randman: smoothness of the manifolds (default: 2)")
    data.add_argument(
        "--no-cache",
        action="store_true",
        help="nmnist, shd, dvs: keep no binned recordings on the disk, and take none from there (they are in memory)",
    )
    data.add_argument("--workers", type=natural_int, metavar="N", help="events: processes that read recordings")
    data.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda", IPU_MODEL),
        default="auto",
        help="ipu-model: the layers' operators on a model of an IPU, the rest on the CPU (default: auto, a GPU if any)",
    )
    data.add_argument(
        "--threads",
        type=positive_int,
        metavar="N",
        help="of the CPU (default: 1 for a small network, else PyTorch's number or OMP_NUM_THREADS)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write settings and results (accuracies: 0 to 1)")
    output.add_argument(
        "--plot-dir",
        type=Path,
        metavar="D",
        help="write raster.png, training.png and membranes.png (for events: activity.png) there",
    )
    output.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="saved after each epoch (default: out/train-DATASET.pt; an explicit FILE needs an existing folder)",
    )
    output.add_argument("--no-checkpoint", action="store_true", help="save none")
    output.add_argument(
        "--resume",
        action="store_true",
        help="go on from the checkpoint, with its settings; the result is that of a run never interrupted",
    )
    return parser


def positive_int(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return value


def positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def natural_int(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer from 0, got {text!r}")
    return int(text)


def positive_ints(text: str) -> Tuple[int, ...]:
    """``256`` or ``256,128``."""
    return tuple(map(positive_int, text.split(",")))


def hidden_layers(text: str) -> Tuple[Union[int, str], ...]:
    """``256,128``, or ``12C5-MP2-100``."""
    if not any(letter.isalpha() for letter in text):
        return positive_ints(text)
    return tuple(positive_int(part) if part.isdecimal() else part.upper() for part in re.split("[-,]", text))


def none_or(kind: Callable[[str], Any], what: str = "") -> Callable[[str], Any]:
    """``kind``, or the word none, which an option not given must be told from."""

    def read(text: str) -> Any:
        if text.lower() == NONE:
            return NONE
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {what} or none, got {text!r}") from None

    return read


def slot_numbers(text: str) -> Any:
    """``64``, ``none`` or ``64,16,none``: a number for all, or one for each."""
    values = tuple(None if part == NONE else positive_int(part) for part in text.lower().split(","))
    if len(values) > 1:
        return values
    return NONE if values[0] is None else values[0]


def run(options: argparse.Namespace) -> int:
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as held, running_on(options.device) as ipu_model:
        held.callback(torch.set_num_threads, threads)
        cuda = options.device in ("auto", "cuda") and torch.cuda.is_available()
        ranks = as_usage_error(lambda: held.enter_context(training.joined(cuda, options.timeout)), ValueError)
        stop = held.enter_context(StopRequest())  # while processes wait to meet, a signal ends them at once
        return train(options, stop, ipu_model, held, ranks)


def prepare(options: argparse.Namespace, held: contextlib.ExitStack) -> Tuple[Optional[Path], Optional[Dict[str, Any]]]:
    """Of the first process: its files, found writable, and the checkpoint that the run goes on from."""
    if options.plot_dir is not None:
        as_usage_error(lambda: require("matplotlib", extra="data", purpose="--plot-dir"), MissingExtra)
        as_usage_error(lambda: make_picture_folder(options.plot_dir), OSError, "argument --plot-dir: ")
    if options.json is not None:
        options.json = as_usage_error(lambda: training.writable_file(options.json), OSError, "argument --json: ")
    checkpoint = choose_checkpoint(options)
    if checkpoint is None:
        return None, None
    lock_for_run(checkpoint, held)
    if options.resume:
        return checkpoint, training.load_checkpoint(checkpoint)
    if training.restarts()[0] and checkpoint.exists():
        try:
            return checkpoint, training.load_checkpoint(checkpoint)
        except training.CheckpointError as error:
            print(f"starting anew: {error}", file=sys.stderr)
    return checkpoint, None


def train(
    options: argparse.Namespace,
    stop: StopRequest,
    ipu_model: Any,
    held: contextlib.ExitStack,
    ranks: training.Ranks,
) -> int:
    checkpoint, saved = ranks.together(lambda: prepare(options, held) if ranks.is_first else (None, None))
    saved = ranks.from_first(saved)
    trainer = ranks.together(lambda: set_up(options, ipu_model is not None, saved, ranks))
    torch.set_num_threads(choose_threads(trainer, options))
    config = trainer.config
    say = print if ranks.is_first else lambda *values, **settings: None
    if saved is not None:
        saved = go_on(trainer, saved, options.resume)
    say(trainer.describe(), flush=True)
    for line in cache_lines(trainer):
        say(line, flush=True)
    if ranks.size > 1:
        say(f"{ranks.size} processes, {torch.get_num_threads()} threads each", flush=True)
    if saved is not None:
        say(f"resumed after epoch {len(trainer.history)} from {checkpoint}", flush=True)
    elif checkpoint is not None and checkpoint.exists():
        say(f"{checkpoint} will be replaced after the first epoch (--resume would go on from it)", flush=True)

    def on_epoch(trainer: AnyTrainer) -> None:
        if checkpoint is not None:
            training.save_checkpoint(checkpoint, trainer.state_dict())
        if ranks.is_first:
            print_epoch(trainer)

    try:
        finished = trainer.fit(should_stop=lambda: bool(stop), on_epoch=on_epoch, progress=True)
    except training.DivergedError as error:
        if not ranks.is_first:  # in all processes at once
            raise training.OtherRankError(str(error)) from error
        raise UsageError(f"argument --lr: {error}") from error
    except (OSError, ValueError) as error:  # of the data, where it names them
        if isinstance(error, OSError) and (isinstance(error, training.WriteError) or "root: " not in str(error)):
            raise
        raise UsageError(data_message(error)) from error

    signum = ranks.largest(stop.signum or 0)
    if not ranks.is_first:
        return 0 if finished else 128 + signum
    if options.json is not None:
        report = make_report(trainer, finished)
        if ipu_model is not None:
            report.update(device=IPU_MODEL, ipu_model=[counts_of(entry) for entry in ipu_model.reports()])
        text = json.dumps(report, indent=2) + "\n"
        write_text(options.json, text)
        print(f"results: {options.json}")
    if options.plot_dir is not None and trainer.history:
        for path in draw(trainer, options.plot_dir):
            print(f"picture: {path}")
    if ipu_model is not None:
        print_counts(ipu_model.reports())
    if finished:
        print(f"test accuracy: {100 * trainer.history[-1]['test_accuracy']:.2f} %", flush=True)
        return 0
    print(f"stopped after {len(trainer.history)} of {config.epochs} epochs; the running epoch is dropped")
    if checkpoint is None or not trainer.history:
        print("there is no checkpoint to resume from", flush=True)
    else:
        print("resume with:\n  " + shlex.join(resume_command(options, checkpoint)), flush=True)
    return 128 + signum


def go_on(trainer: AnyTrainer, saved: Dict[str, Any], resume: bool) -> Optional[Dict[str, Any]]:
    """Load the checkpoint, in all processes; None where torchrun has started them again and it is another run's."""
    try:
        trainer.ranks.together(lambda: trainer.load_state_dict(saved))
    except (training.CheckpointError, training.OtherRankError) as error:
        if resume:
            raise
        if trainer.ranks.is_first:
            print(f"starting anew: {error}", file=sys.stderr, flush=True)
        return None
    return saved


def set_up(
    options: argparse.Namespace, on_ipu_model: bool, saved: Optional[Dict[str, Any]], ranks: training.Ranks
) -> AnyTrainer:
    """Settings, data, network."""
    device = choose_device(options.device, ranks)
    config = choose_config(options, saved if options.resume else None)
    if on_ipu_model and isinstance(config, training.TrainConfig) and config.engine != "snnipu":
        raise UsageError(f"argument --engine: {config.engine} does not run on the IPU model; --device cpu does")
    if on_ipu_model and config.precision != "float32":
        raise UsageError(f"argument --precision: {config.precision} does not run on the IPU model; --device cpu does")
    if options.replicas is not None and not on_ipu_model:
        raise UsageError(f"argument --replicas: only for --device {IPU_MODEL}; torchrun starts several processes")
    data = ranks.local_first(lambda: load_data(config, options)) if options.download else load_data(config, options)
    return make_trainer(config, data, device, options, ranks)


def resume_command(options: argparse.Namespace, checkpoint: Path) -> List[str]:
    """The command that goes on from ``checkpoint``, which holds all settings, with the same data and outputs."""
    command = ["python", "-m", "snnipu", "train", "--resume", "--checkpoint", str(checkpoint)]
    for name in ("data_dir", "json", "plot_dir", "workers", "accumulate", "replicas", "checkpoint_steps"):
        if getattr(options, name) is not None and (name, getattr(options, name)) != ("accumulate", 1):
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    command += ["--no-cache"] if options.no_cache else []
    return command + (["--device", options.device] if options.device != "auto" else [])


def lock_for_run(checkpoint: Path, held: contextlib.ExitStack) -> None:
    """Keep other runs from ``checkpoint`` until ``held`` is left."""
    try:
        held.enter_context(training.lock_checkpoint(checkpoint))
    except training.CheckpointError as error:
        raise UsageError(
            f"argument --checkpoint: {error}; --checkpoint FILE names another place, --no-checkpoint saves none"
        ) from error


def as_usage_error(action: Callable[[], Any], kind: Any, prefix: str = "") -> Any:
    try:
        return action()
    except training.WriteError:  # a full disk is no wrong argument
        raise
    except kind as error:
        raise UsageError(f"{prefix}{error}") from error


def flag_message(message: str) -> str:
    """``batch_size: expected ...`` -> ``--batch-size: expected ...``."""
    name, colon, rest = message.partition(":")
    return f"{flag(name)}{colon}{rest}"


def flag(name: str) -> str:
    """``batch_size`` -> ``--batch-size``."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


@contextlib.contextmanager
def running_on(device: str) -> Iterator[Any]:
    """With ``ipu-model`` layers call the operators of the model that is given; otherwise None is."""
    if device != IPU_MODEL:
        yield None
        return
    if is_installed("poptorch"):
        raise UsageError("argument --device: ipu-model needs snnipu's host runtime, and PopTorch is installed here")
    from snnipu.ipu.model import IpuModelError
    from snnipu.poptorch import Error
    from snnipu.poptorch._ipu_model import IpuModelRunner
    from snnipu.poptorch._tracing import tracing

    try:
        runner = IpuModelRunner()
        with runner.running(), tracing(training=True):
            yield runner.model
    except (Error, IpuModelError) as error:
        raise UsageError(f"argument --device: {error}") from error


def counts_of(entry: Dict[str, Any]) -> Dict[str, Any]:
    """Of an operator's report on the IPU model what is the same for all."""
    names = ("cycles", "compute_cycles", "exchange_cycles", "sync_cycles", "clock_hz", "tile_memory_max_bytes")
    kept = {name: entry["report"][name] for name in names}
    return {"operator": entry["operator"], "inputs": entry["inputs"], "target": entry["target"], **kept}


def print_counts(entries: List[Dict[str, Any]]) -> None:
    print("counted by the IPU model, over the run; not measured:")
    for entry in map(counts_of, entries):
        shape = " x ".join(map(str, entry["inputs"][0]))
        print(
            f"  {entry['operator']}, {shape}: {entry['cycles']:,.0f} cycles on {entry['target']}, fullest tile "
            f"{entry['tile_memory_max_bytes'] / 1024:.1f} KiB"
        )


def choose_device(name: str, ranks: training.Ranks) -> torch.device:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UsageError("argument --device: no CUDA device is available to PyTorch here; use --device cpu")
    if not (name == "cuda" or (name == "auto" and available)):
        return torch.device("cpu")
    if ranks.size == 1:
        return torch.device("cuda")
    if ranks.local_size > torch.cuda.device_count():
        raise UsageError(
            f"argument --device: {ranks.local_size} processes on this machine, and {torch.cuda.device_count()} GPUs"
        )
    torch.cuda.set_device(ranks.local_rank)
    return torch.device("cuda", ranks.local_rank)


def choose_threads(trainer: AnyTrainer, options: argparse.Namespace) -> int:
    """By the work, and not by what the machine is doing: another number of threads may round otherwise."""
    if options.threads is not None:
        return int(options.threads)
    small = trainer.device.type == "cpu" and trainer.multiplications() < ONE_THREAD_BELOW
    asked = os.environ.get("OMP_NUM_THREADS")
    if trainer.ranks.local_size > 1 and asked in (None, "1"):  # torchrun sets 1, whatever the machine has
        return 1 if small else max(1, available_cores() // trainer.ranks.local_size)
    return 1 if small and asked is None else torch.get_num_threads()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failure(f"cannot make the folder {folder}", error) from error


def make_picture_folder(folder: Path) -> None:
    """Make ``folder``, and prove that a file can be written in it."""
    make_folder(folder)
    training.writable_file(folder / "raster.png")


def choose_checkpoint(options: argparse.Namespace) -> Optional[Path]:
    if options.no_checkpoint:
        for name, given in (("--checkpoint", options.checkpoint), ("--resume", options.resume)):
            if given:
                raise UsageError(f"argument --no-checkpoint: not allowed with {name}")
        return None
    if options.checkpoint is not None:
        explicit: Path = as_usage_error(
            lambda: training.writable_file(options.checkpoint), OSError, "argument --checkpoint: "
        )
        return explicit
    path = Path("out") / f"train-{options.dataset or training.TrainConfig().dataset}.pt"
    try:
        make_folder(path.parent)
        training.writable_file(path)
    except training.WriteError:
        raise
    except OSError as error:
        if options.resume:
            raise UsageError(f"argument --checkpoint: {error}") from error
        print(f"no checkpoint will be saved: {error} (--checkpoint FILE names another place)", file=sys.stderr)
        return None
    return path


def choose_config(options: argparse.Namespace, saved: Optional[Dict[str, Any]]) -> Config:
    """The settings asked for, over those of the checkpoint or, without one, the data set's defaults."""
    given = {name: getattr(options, name) for name in SETTINGS if getattr(options, name) is not None}
    asked: Dict[str, Any] = {name: None if value == NONE else value for name, value in given.items()}
    dataset = (saved["config"] if saved is not None else asked).get("dataset", training.TrainConfig.dataset)
    if saved is not None and "dataset" in asked and isinstance(dataset, str):
        training.check_same_run({"dataset": dataset}, {"dataset": asked["dataset"]})
    kind = config_kind(dataset)
    for name in asked:
        if name not in kind.names():
            wanted = training.EVENT_DATASETS if kind is training.TrainConfig else training.DATASETS
            raise UsageError(f"argument {flag(name)}: only for --dataset {' or '.join(wanted)}, not {dataset}")
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
            stored = kind.from_dict(saved["config"])
        except ValueError as error:
            raise training.CheckpointError(f"the checkpoint is damaged: {error}") from error
        settings = {**stored.to_dict(), **asked}
        training.check_same_run(stored.to_dict(), settings)
        return kind(**settings)
    except ValueError as error:
        raise UsageError(f"argument {flag_message(str(error))}") from error


def config_kind(dataset: object) -> Type[Config]:
    return training.EventConfig if dataset in training.EVENT_DATASETS else training.TrainConfig


def load_data(config: Config, options: argparse.Namespace) -> Union[datasets.ImageData, datasets.EventData]:
    dataset = config.dataset
    if options.data_dir is None and dataset not in ("digits", "randman"):
        holds = {"mnist": "MNIST/raw", "nmnist": "Train and Test", "shd": "shd_train.h5 and shd_test.h5"}
        holds["dvs"] = "ibmGestureTrain and ibmGestureTest"
        by = "torchvision" if dataset == "mnist" else "tonic"
        raise UsageError(
            f"argument --data-dir: needed for --dataset {dataset}: the folder that holds {holds[dataset]} "
            f"(--download lets {by} fetch it)"
        )
    try:
        if isinstance(config, training.EventConfig):
            return load_events(config, options)
        if dataset == "digits":
            return datasets.digits()
        return datasets.mnist(options.data_dir, download=options.download)
    except MissingExtra as error:
        raise UsageError(f"argument --dataset: {error}") from error
    except (OSError, ValueError, RuntimeError) as error:
        hint = "; on the command line: --download" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(data_message(error) + hint) from error


def load_events(config: training.EventConfig, options: argparse.Namespace) -> datasets.EventData:
    if config.dataset == "randman":
        assert config.alpha is not None
        return datasets.randman(
            num_classes=config.classes or 0,
            samples_per_class=config.samples_per_class or 0,
            num_steps=config.steps,
            dim=config.manifold_dim or 0,
            alpha=config.alpha,
        )
    settings: Dict[str, Any] = {"num_steps": config.steps, "step_us": config.step_us, "download": options.download}
    settings["cache"] = "memory" if options.no_cache else True
    if config.dataset == "shd":
        return datasets.shd(options.data_dir, **settings)
    if config.dataset == "nmnist":
        return datasets.nmnist(options.data_dir, crop=config.crop, **settings)
    return datasets.dvs_gesture(options.data_dir, crop=config.crop, downsample=config.downsample or 1, **settings)


def make_trainer(
    config: Config, data: Any, device: torch.device, options: argparse.Namespace, ranks: training.Ranks
) -> AnyTrainer:
    parts = options.accumulate * (options.replicas or 1)
    try:
        if isinstance(config, training.EventConfig):
            if options.checkpoint_steps is not None:
                raise ValueError(
                    f"checkpoint_steps: only for --dataset {' or '.join(training.DATASETS)}, not {config.dataset}"
                )
            return training.EventTrainer(config, data, device, options.workers or 0, ranks, parts)
        if options.workers is not None:
            raise ValueError(
                f"workers: only for --dataset {' or '.join(training.EVENT_DATASETS)}, not {config.dataset}"
            )
        return training.Trainer(config, data, device, ranks, parts, options.checkpoint_steps)
    except ValueError as error:
        raise UsageError(f"argument {flag_message(str(error))}") from error


def data_message(error: Exception) -> str:
    """``root: no MNIST ...``, ``crop must be ...`` -> ``argument --data-dir: no MNIST ...``, ``argument --crop: ...``.

    A worker process wraps the message that counts in a traceback.
    """
    message = str(error)
    _, found, rest = message.rpartition("root: ")
    if found:
        return f"argument --data-dir: {rest.strip()}"
    words = {"num_steps": "steps", "num_classes": "classes", "dim": "manifold_dim"}
    first, _, rest = message.partition(" ")
    name = words.get(first.rstrip(":"), first.rstrip(":"))
    if name not in SETTINGS:
        raise error
    return f"argument {flag(name)}: {rest}"


def cache_lines(trainer: AnyTrainer) -> List[str]:
    """Where binned recordings are kept from run to run, and how many are there; none where they are not."""
    data = trainer.data if isinstance(trainer, training.EventTrainer) else None
    if data is None or data.train.cache_file is None:
        return []
    there = [part.disk_usage() for part in (data.train, data.test)]
    return [
        f"binned recordings are kept in {data.train.cache_file.parent}: {sum(part.recordings for part in there):,} of "
        f"{len(data.train) + len(data.test):,} are there, {sum(part.bytes for part in there) / 2**20:.1f} MiB "
        "(--no-cache: in memory only)"
    ]


def print_epoch(trainer: AnyTrainer) -> None:
    record = trainer.history[-1]
    speed = trainer.train_samples / record["seconds"]
    more = trainer.describe_epoch()
    print(
        f"epoch {len(trainer.history)}/{trainer.config.epochs}: loss {record['train_loss']:.4f}, "
        f"training {100 * record['train_accuracy']:.1f} %, test {100 * record['test_accuracy']:.1f} %, "
        f"{more + ', ' if more else ''}{speed:,.0f} {trainer.unit}/s",
        flush=True,
    )


def make_report(trainer: AnyTrainer, finished: bool) -> Dict[str, Any]:
    """What ``--json`` holds; accuracies are fractions, 0 to 1, and None where no epoch was finished."""
    return {
        "test_accuracy": trainer.history[-1]["test_accuracy"] if trainer.history else None,
        "train_samples_per_s": trainer.samples_per_second(),
        "backend": trainer.backend,
        "finished": finished,
        **trainer.config.to_dict(),
        "epochs_done": len(trainer.history),
        "device": str(trainer.device),
        "threads": torch.get_num_threads(),
        "processes": trainer.ranks.size,
        "accumulate": trainer.accumulate,
        "train_samples": trainer.train_samples,
        "test_samples": trainer.test_samples,
        **trainer.results(),
        "history": trainer.history,
        "versions": {"snnipu": __version__, "torch": torch.__version__, "snntorch": snntorch.__version__},
    }


def draw(trainer: AnyTrainer, folder: Path) -> List[Path]:
    """Write the pictures of the trainer; returns their paths."""
    paths = []
    for name, figure in trainer.figures().items():
        paths.append(folder / f"{name}.png")
        training.write_atomically(paths[-1], functools.partial(figure.savefig, format="png"))
    return paths
