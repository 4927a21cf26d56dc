"""``python -m snnipu train``: train a spiking network on real digits, resumably."""

import argparse
import functools
import json
import shlex
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import snntorch
import torch

from snnipu import datasets, training
from snnipu._extras import MissingExtra, require
from snnipu._version import __version__
from snnipu.training.config import DATASET_DEFAULTS
from snnipu.training.interrupt import StopRequest

SETTINGS = ("dataset", "engine", "steps", "hidden", "epochs", "batch_size", "lr", "lr_decay", "beta", "seed")
DESCRIPTION = """\
Train a spiking network (features-hidden-10 leaky integrate-and-fire neurons) on handwritten digits.

Each image is shown for --steps time steps; the class whose output neuron spikes most is the answer. The loss is the
cross entropy of these spike counts (snnTorch's ce_count_loss), the optimizer Adam. After each epoch a checkpoint is
written; Ctrl-C stops at once and loses the running epoch only.
"""


def main(argv: List[str]) -> int:
    """Run the command; returns 0, or 128 + the signal's number after Ctrl-C (130) or SIGTERM (143)."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        with StopRequest() as stop:
            return run(options, stop)
    except training.CheckpointError as error:
        parser.error(f"argument --checkpoint: {error}")
    except UsageError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


class UsageError(Exception):
    """What the user asked for cannot be done; the message names the argument."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m snnipu train", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = training.TrainConfig()

    def by_dataset(name: str) -> str:
        return ", ".join(f"{DATASET_DEFAULTS[dataset][name]} for {dataset}" for dataset in training.DATASETS)

    network = parser.add_argument_group("network and schedule")
    network.add_argument("--dataset", choices=training.DATASETS, help=f"default: {defaults.dataset}")
    network.add_argument(
        "--steps", type=positive_int, metavar="T", help=f"time steps per image (default: {defaults.steps})"
    )
    network.add_argument(
        "--hidden", type=positive_int, metavar="N", help=f"hidden neurons (default: {by_dataset('hidden')})"
    )
    network.add_argument(
        "--epochs", type=positive_int, metavar="N", help=f"passes over the data (default: {by_dataset('epochs')})"
    )
    network.add_argument(
        "--batch-size", type=positive_int, metavar="N", help=f"images a batch (default: {by_dataset('batch_size')})"
    )
    network.add_argument("--lr", type=float, help=f"learning rate of Adam (default: {by_dataset('lr')})")
    network.add_argument(
        "--lr-decay",
        type=float,
        metavar="F",
        help=f"multiplies the learning rate after each epoch (default: {by_dataset('lr_decay')})",
    )
    network.add_argument("--beta", type=float, help=f"decay of the membrane per step (default: {defaults.beta})")
    network.add_argument("--seed", type=int, help=f"of weights and batch order (default: {defaults.seed})")
    network.add_argument(
        "--engine",
        choices=training.ENGINES,
        help="what runs the neurons: snnipu (default), or snnTorch's step loop from the same weights, to compare",
    )
    data = parser.add_argument_group("data and device")
    data.add_argument(
        "--data-dir", type=Path, metavar="D", help="the folder that holds MNIST/raw; needed for --dataset mnist"
    )
    data.add_argument("--download", action="store_true", help="let torchvision download MNIST into --data-dir")
    data.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto, a GPU if any")
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write settings and results (accuracies: 0 to 1)")
    output.add_argument(
        "--plot-dir", type=Path, metavar="D", help="write raster.png, membranes.png and training.png there"
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


def run(options: argparse.Namespace, stop: StopRequest) -> int:
    device = choose_device(options.device)
    if options.plot_dir is not None:
        as_usage_error(lambda: require("matplotlib", extra="data", purpose="--plot-dir"), MissingExtra)
        as_usage_error(lambda: make_picture_folder(options.plot_dir), OSError, "argument --plot-dir: ")
    if options.json is not None:
        options.json = as_usage_error(lambda: training.writable_file(options.json), OSError, "argument --json: ")
    checkpoint = choose_checkpoint(options)
    saved = training.load_checkpoint(checkpoint) if options.resume and checkpoint is not None else None
    config = choose_config(options, saved)
    data = load_data(config.dataset, options)
    try:
        trainer = training.Trainer(config, data, device)
    except ValueError as error:
        raise UsageError(f"argument {flag_message(str(error))}") from error
    if saved is not None:
        trainer.load_state_dict(saved)

    backend = training.backend_name(config.engine, device)
    print(
        f"{data.name}: {len(data.train_labels):,} training and {len(data.test_labels):,} test images of "
        f"{'x'.join(map(str, data.image_shape))}\n"
        f"network: {data.num_features}-{config.hidden}-{data.num_classes}, T={config.steps}, beta={config.beta:g}; "
        f"device: {device}; neurons run by: {backend}",
        flush=True,
    )
    if saved is not None:
        print(f"resumed after epoch {len(trainer.history)} from {checkpoint}", flush=True)
    elif checkpoint is not None and checkpoint.exists():
        print(f"{checkpoint} will be replaced after the first epoch (--resume would go on from it)", flush=True)

    def on_epoch(trainer: training.Trainer) -> None:
        if checkpoint is not None:
            training.save_checkpoint(checkpoint, trainer.state_dict())
        print_epoch(trainer)

    try:
        finished = trainer.fit(should_stop=lambda: bool(stop), on_epoch=on_epoch, progress=True)
    except training.DivergedError as error:
        raise UsageError(f"argument --lr: {error}") from error
    except OSError as error:
        raise UsageError(f"argument --checkpoint: cannot write {checkpoint}: {error}") from error

    if options.json is not None:
        text = json.dumps(make_report(trainer, finished, backend), indent=2) + "\n"
        as_usage_error(
            lambda: training.write_atomically(options.json, lambda file: file.write(text.encode())),
            OSError,
            "argument --json: ",
        )
        print(f"results: {options.json}")
    if options.plot_dir is not None and trainer.history:
        for path in as_usage_error(lambda: draw(trainer, options.plot_dir), OSError, "argument --plot-dir: "):
            print(f"picture: {path}")
    if finished:
        print(f"test accuracy: {100 * trainer.history[-1]['test_accuracy']:.2f} %", flush=True)
        return 0
    print(f"stopped after {len(trainer.history)} of {config.epochs} epochs; the running epoch is dropped")
    if checkpoint is None or not trainer.history:
        print("there is no checkpoint to resume from", flush=True)
    else:
        print("resume with:\n  " + shlex.join(resume_command(options, checkpoint)), flush=True)
    return 128 + (stop.signum or 0)


def resume_command(options: argparse.Namespace, checkpoint: Path) -> List[str]:
    """The command that goes on from ``checkpoint``, which holds all settings, with the same data and outputs."""
    command = ["python", "-m", "snnipu", "train", "--resume", "--checkpoint", str(checkpoint)]
    for name in ("data_dir", "json", "plot_dir"):
        if getattr(options, name) is not None:
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    return command + (["--device", options.device] if options.device != "auto" else [])


def as_usage_error(action: Callable[[], Any], kind: Any, prefix: str = "") -> Any:
    try:
        return action()
    except kind as error:
        raise UsageError(f"{prefix}{error}") from error


def flag_message(message: str) -> str:
    """``batch_size: expected ...`` -> ``--batch-size: expected ...``."""
    name, colon, rest = message.partition(":")
    return f"--{name.replace('_', '-')}{colon}{rest}"


def choose_device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UsageError("argument --device: no CUDA device is available to PyTorch here; use --device cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and available) else "cpu")


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {folder}: {error.strerror}") from error


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
    except OSError as error:
        if options.resume:
            raise UsageError(f"argument --checkpoint: {error}") from error
        print(f"no checkpoint will be saved: {error} (--checkpoint FILE names another place)", file=sys.stderr)
        return None
    return path


def choose_config(options: argparse.Namespace, saved: Optional[Dict[str, Any]]) -> training.TrainConfig:
    """The settings asked for, over those of the checkpoint or, without one, the data set's defaults."""
    asked = {name: getattr(options, name) for name in SETTINGS if getattr(options, name) is not None}
    try:
        if saved is None:
            return training.TrainConfig.for_dataset(**asked)
        try:
            stored = training.TrainConfig.from_dict(saved["config"])
        except ValueError as error:
            raise training.CheckpointError(f"the checkpoint is damaged: {error}") from error
        config = training.TrainConfig(**{**stored.to_dict(), **asked})
        training.check_same_run(saved["config"], config.to_dict())
        return config
    except ValueError as error:
        raise UsageError(f"argument {flag_message(str(error))}") from error


def load_data(dataset: str, options: argparse.Namespace) -> datasets.ImageData:
    try:
        if dataset == "digits":
            return datasets.digits()
        if options.data_dir is None:
            raise UsageError(
                "argument --data-dir: needed for --dataset mnist: the folder that holds MNIST/raw "
                "(--download lets torchvision fetch it)"
            )
        return datasets.mnist(options.data_dir, download=options.download)
    except MissingExtra as error:
        raise UsageError(f"argument --dataset: {error}") from error
    except (OSError, ValueError, RuntimeError) as error:
        message = str(error).partition(": ")[2]
        hint = "; on the command line: --download" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"argument --data-dir: {message}{hint}") from error


def print_epoch(trainer: training.Trainer) -> None:
    record = trainer.history[-1]
    speed = len(trainer.data.train_labels) / record["seconds"]
    print(
        f"epoch {len(trainer.history)}/{trainer.config.epochs}: loss {record['train_loss']:.4f}, "
        f"training {100 * record['train_accuracy']:.1f} %, test {100 * record['test_accuracy']:.1f} %, "
        f"{speed:,.0f} images/s",
        flush=True,
    )


def make_report(trainer: training.Trainer, finished: bool, backend: str) -> Dict[str, Any]:
    """What ``--json`` holds; accuracies are fractions, 0 to 1, and None where no epoch was finished."""
    return {
        "test_accuracy": trainer.history[-1]["test_accuracy"] if trainer.history else None,
        "train_samples_per_s": trainer.samples_per_second(),
        "backend": backend,
        "finished": finished,
        **trainer.config.to_dict(),
        "epochs_done": len(trainer.history),
        "device": str(trainer.device),
        "train_samples": len(trainer.data.train_labels),
        "test_samples": len(trainer.data.test_labels),
        "spikes_per_neuron_and_step": trainer.spike_rates(),
        "history": trainer.history,
        "versions": {"snnipu": __version__, "torch": torch.__version__, "snntorch": snntorch.__version__},
    }


def draw(trainer: training.Trainer, folder: Path) -> List[Path]:
    """Write the pictures of test images of three different classes; returns their paths."""
    from snnipu import plotting

    data, config = trainer.data, trainer.config
    chosen = [int((data.test_labels == label).nonzero()[0]) for label in data.test_labels.unique()[:3]]
    x = data.test_images[chosen].flatten(1).to(trainer.device)
    (hidden_spk, hidden_mem), (output_spk, output_mem) = training.layer_activity(trainer.network, x, config.steps)
    label = int(data.test_labels[chosen[0]])
    # neurons that spike about every fifth step show integration, threshold and reset best
    telling = (hidden_spk[:, 0].mean(0) - 0.2).abs().argsort()[:3]
    leading = output_mem[:, 0].sum(0).topk(4).indices.sort().values
    figures = {
        "raster": plotting.raster(data.test_images[chosen], data.test_labels[chosen], hidden_spk, output_spk),
        "membranes": plotting.membranes(
            torch.cat([hidden_mem[:, 0, telling], output_mem[:, 0, leading]], dim=1),
            torch.cat([hidden_spk[:, 0, telling], output_spk[:, 0, leading]], dim=1),
            names=[f"hidden {int(index)}" for index in telling] + [f"class {int(index)}" for index in leading],
            title=f"membranes while a test image of a {label} is shown",
        ),
        "training": plotting.training_curve(trainer.history, title=f"{data.name}, {config.hidden} hidden neurons"),
    }
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        training.write_atomically(paths[-1], functools.partial(figure.savefig, format="png"))
    return paths
