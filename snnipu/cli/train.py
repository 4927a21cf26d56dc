"""``python -m snnipu train``: train a spiking network on digits or on events, resumably."""

import argparse
import contextlib
import json
import os
import shlex
import sys
import traceback
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple, Type

import torch

from snnipu import datasets, training
from snnipu._extras import MissingExtra, require
from snnipu._files import failure, write_text
from snnipu._names import is_installed
from snnipu.cli._train_options import (
    IPU_MODEL,
    SETTINGS,
    Config,
    UsageError,
    build_parser,
    choose_config,
    flag,
    flag_message,
    resume_command,
)
from snnipu.cli._train_report import AnyTrainer, counts_of, draw, make_report, print_counts, print_epoch
from snnipu.training.interrupt import stop_requests

# Multiply-adds of a batch below which one thread is faster: more threads wait for each other longer than they compute,
# especially if other processes use the cores. Measured on two cores, see docs/how-to/slow-layers.md.
ONE_THREAD_BELOW = 20_000_000


def main(argv: List[str]) -> int:
    """Run the command; return 0, or 128 + the signal's number after Ctrl-C (130) or SIGTERM (143)."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        return run(options)
    except training.CheckpointError as error:
        parser.error(f"{rank_prefix()}argument --checkpoint: {error}")
    except UsageError as error:
        parser.error(f"{rank_prefix()}{error}")
    except training.OtherRankError:  # that process prints the reason
        return 2
    except RuntimeError:
        if "RANK" not in os.environ:
            raise
        traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)  # PyTorch's threads may still wait for a process that has ended
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def rank_prefix() -> str:
    """Return ``rank 3: `` in any process but the first, and an empty string in the first."""
    rank = os.environ.get("RANK", "0")
    return "" if rank == "0" else f"rank {rank}: "


def run(options: argparse.Namespace) -> int:
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack, running_on(options.device) as ipu_model:
        stack.callback(torch.set_num_threads, threads)
        cuda = options.device in ("auto", "cuda") and torch.cuda.is_available()
        with usage_errors("torchrun's variables", ValueError):
            ranks = stack.enter_context(training.joined(cuda, options.timeout))
        stop = stack.enter_context(stop_requests())  # after joining: a signal before ends the process
        return train(options, stop, ipu_model, stack, ranks)


@contextlib.contextmanager
def usage_errors(subject: str, *kinds: Type[Exception]) -> Iterator[None]:
    """Raise errors of these kinds as UsageErrors, except a WriteError: a full disk is not a wrong argument."""
    try:
        yield
    except training.WriteError:
        raise
    except kinds as error:
        raise UsageError(f"{subject}: {error}") from error


def prepare(
    options: argparse.Namespace, stack: contextlib.ExitStack, restarted: bool
) -> Tuple[Optional[Path], Optional[Dict[str, Any]]]:
    """Check that the first process can write its files; return the checkpoint and the saved state to resume."""
    if options.plot_dir is not None:
        with usage_errors("argument --plot-dir", OSError, MissingExtra):
            require("matplotlib", extra="data", purpose="--plot-dir")
            make_folder(options.plot_dir)
            training.writable_file(options.plot_dir / "raster.png")
    if options.json is not None:
        with usage_errors("argument --json", OSError):
            options.json = training.writable_file(options.json)
    checkpoint = choose_checkpoint(options)
    if checkpoint is None:
        return None, None
    try:
        stack.enter_context(training.lock_checkpoint(checkpoint))
    except training.CheckpointError as error:
        raise UsageError(
            f"argument --checkpoint: {error}; --checkpoint FILE names another place, --no-checkpoint saves none"
        ) from error
    if options.resume or (restarted and checkpoint.exists()):
        try:
            return checkpoint, training.load_checkpoint(checkpoint)
        except training.CheckpointError as error:
            if options.resume:
                raise
            print(f"starting from scratch: {error}", file=sys.stderr)
    return checkpoint, None


def train(
    options: argparse.Namespace,
    stop: List[int],
    ipu_model: Any,
    stack: contextlib.ExitStack,
    ranks: training.Ranks,
) -> int:
    # torchrun's agents count restarts separately: the first process's own count may be 0 after a restart.
    restarted = ranks.any(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0")
    checkpoint, saved = ranks.together(lambda: prepare(options, stack, restarted) if ranks.is_first else (None, None))
    saved = ranks.from_first(saved)
    trainer = ranks.together(lambda: set_up(options, ipu_model is not None, saved, ranks))
    torch.set_num_threads(choose_threads(trainer, options))
    config = trainer.config
    print_first = print if ranks.is_first else lambda *values, **settings: None
    if saved is not None:
        saved = resume_training(trainer, saved, options.resume)
    print_first(trainer.describe(), flush=True)
    if ranks.size > 1:
        print_first(f"{ranks.size} processes, {torch.get_num_threads()} threads each", flush=True)
    if saved is not None:
        print_first(f"resumed after {progress_text(*progress_of(trainer))} from {checkpoint}", flush=True)
    elif checkpoint is not None and checkpoint.exists():
        print_first(f"{checkpoint} will be replaced after the first epoch (--resume would go on from it)", flush=True)
    saved_at = None if saved is None else progress_of(trainer)

    def save(trainer: AnyTrainer) -> None:
        nonlocal saved_at
        if checkpoint is not None:
            training.save_checkpoint(checkpoint, trainer.state_dict())
            saved_at = progress_of(trainer)

    def on_epoch(trainer: AnyTrainer) -> None:
        save(trainer)
        if ranks.is_first:
            print_epoch(trainer)

    save_every = options.save_every
    try:
        finished = trainer.fit(
            should_stop=lambda: bool(stop),
            on_epoch=on_epoch,
            progress=True,
            on_batches=None if save_every is None else save,
            every=save_every or 1,
        )
    except training.DivergedError as error:
        if not ranks.is_first:  # all processes diverge together; only the first one reports it
            raise training.OtherRankError(str(error)) from error
        raise UsageError(f"argument --lr: {error}") from error
    except (OSError, ValueError) as error:  # errors of the data begin with "root: "
        if isinstance(error, OSError) and (isinstance(error, training.WriteError) or "root: " not in str(error)):
            raise
        raise UsageError(data_message(error)) from error

    signum = ranks.largest(stop[0] if stop else 0)
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
        if trainer.silent > 0.5:
            print(
                f"the output layer is silent: {100 * trainer.silent:.0f} % of the test samples get no spike, and their "
                "class is a guess; try a smaller --lr or more --epochs",
                flush=True,
            )
        return 0
    lost = "the running epoch is dropped"
    if saved_at is not None and saved_at[1]:
        lost = f"the checkpoint is of {progress_text(*saved_at)}"
    print(f"stopped after {len(trainer.history)} of {config.epochs} epochs; {lost}")
    if checkpoint is None or saved_at is None:
        print("there is no checkpoint to resume from", flush=True)
    else:
        print("resume with:\n  " + shlex.join(resume_command(options, checkpoint)), flush=True)
    return 128 + signum


def progress_of(trainer: AnyTrainer) -> Tuple[int, int]:
    """Return the number of finished epochs, and of batches of the next one."""
    return len(trainer.history), trainer.batches


def progress_text(epochs: int, batches: int) -> str:
    """Return ``epoch 2``, or ``epoch 2 and 40 batches``."""
    return f"epoch {epochs}" + (f" and {batches} batches" if batches else "")


def resume_training(trainer: AnyTrainer, saved: Dict[str, Any], resume: bool) -> Optional[Dict[str, Any]]:
    """Load the checkpoint in all processes; return None if torchrun restarted them and it belongs to another run."""
    try:
        trainer.ranks.together(lambda: trainer.load_state_dict(saved))
    except (training.CheckpointError, training.OtherRankError) as error:
        if resume:
            raise
        if trainer.ranks.is_first:
            print(f"starting from scratch: {error}", file=sys.stderr, flush=True)
        return None
    return saved


def set_up(
    options: argparse.Namespace, on_ipu_model: bool, saved: Optional[Dict[str, Any]], ranks: training.Ranks
) -> AnyTrainer:
    """Return the trainer: settings, data and network."""
    device = choose_device(options.device, ranks)
    config = choose_config(options, saved if options.resume else None)
    for name, required in (("engine", "snnipu"), ("precision", "float32"), ("rule", None)):
        value = getattr(config, name, required)
        if on_ipu_model and value != required:
            raise UsageError(f"argument {flag(name)}: {value} does not run on the IPU model; --device cpu does")
    if options.save_every is not None and ranks.size > 1:
        raise UsageError("argument --save-every: only for one process; several save after each epoch")
    data = ranks.local_first(lambda: load_data(config, options)) if options.download else load_data(config, options)
    try:
        if isinstance(config, training.EventConfig):
            return training.EventTrainer(config, data, device, options.workers or 0, ranks, options.accumulate)
        return training.Trainer(config, data, device, ranks, options.accumulate, options.checkpoint_steps)
    except ValueError as error:
        raise UsageError(f"argument {flag_message(str(error))}") from error


@contextlib.contextmanager
def running_on(device: str) -> Iterator[Any]:
    """Run layers on the IPU model and yield it for ``ipu-model``; otherwise yield None."""
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
    """Return the number of threads, by the size of the network alone.

    The load of the machine has no effect, since results may depend on the number of threads.
    """
    if options.threads is not None:
        return int(options.threads)
    small = trainer.device.type == "cpu" and trainer.multiplications() < ONE_THREAD_BELOW
    requested = os.environ.get("OMP_NUM_THREADS")
    if trainer.ranks.local_size > 1 and requested in (None, "1"):  # torchrun sets 1 on every machine
        return 1 if small else max(1, available_cores() // trainer.ranks.local_size)
    return 1 if small and requested is None else torch.get_num_threads()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failure(f"cannot make the folder {folder}", error) from error


def choose_checkpoint(options: argparse.Namespace) -> Optional[Path]:
    if options.no_checkpoint:
        for name in ("checkpoint", "resume", "save_every"):
            if getattr(options, name):
                raise UsageError(f"argument --no-checkpoint: not allowed with {flag(name)}")
        return None
    path: Path = (
        options.checkpoint or Path("out") / f"train-{getattr(options, 'dataset', training.TrainConfig.dataset)}.pt"
    )
    try:
        if options.checkpoint is None:
            make_folder(path.parent)
        training.writable_file(path)
    except training.WriteError:
        raise
    except OSError as error:
        if options.resume or options.checkpoint is not None:
            raise UsageError(f"argument --checkpoint: {error}") from error
        print(f"no checkpoint will be saved: {error} (--checkpoint FILE names another place)", file=sys.stderr)
        return None
    return path


def load_data(config: Config, options: argparse.Namespace) -> Any:
    """Return the :class:`ImageData` or :class:`EventData` of the settings."""
    dataset, downloads = config.dataset, config.dataset != "spoken_digits"
    if options.data_dir is None and dataset not in ("digits", "randman"):
        fetch = "; --download fetches it into that folder" if downloads else ""
        raise UsageError(f"argument --data-dir: needed for --dataset {dataset}{fetch}")
    if options.download and not downloads:
        raise UsageError(f"argument --download: not for --dataset {dataset}")
    try:
        if isinstance(config, training.EventConfig):
            return load_events(config, options)
        if dataset == "digits":
            return datasets.digits()
        return datasets.mnist(options.data_dir, download=options.download)
    except MissingExtra as error:
        raise UsageError(f"argument --dataset: {error}") from error
    except (OSError, ValueError, RuntimeError) as error:
        hint = "; on the command line: --download" if downloads and isinstance(error, FileNotFoundError) else ""
        raise UsageError(data_message(error) + hint) from error


def load_events(config: training.EventConfig, options: argparse.Namespace) -> datasets.EventData:
    values = config.to_dict()
    if config.dataset == "randman":
        names = {"num_classes": "classes", "samples_per_class": "samples_per_class", "dim": "manifold_dim"}
        return datasets.randman(
            num_steps=config.steps, alpha=values["alpha"], **{name: values[setting] for name, setting in names.items()}
        )
    optional = ("step_us", "crop", "downsample")
    settings: Dict[str, Any] = {name: values[name] for name in optional if values[name] is not None}
    if options.download:
        settings["download"] = True
    read = datasets.dvs_gesture if config.dataset == "dvs" else getattr(datasets, config.dataset)
    data: datasets.EventData = read(
        options.data_dir, config.steps, cache="memory" if options.no_cache else True, **settings
    )
    return data


def data_message(error: Exception) -> str:
    """Return the message of a data error, with its argument: ``argument --data-dir: ...`` for ``root: ...``.

    A worker process wraps the message in a traceback, so the last ``root:`` counts.
    """
    message = str(error)
    _, prefix, reason = message.rpartition("root: ")
    if prefix:
        return f"argument --data-dir: {reason.strip()}"
    first, _, reason = message.partition(" ")
    name = first.rstrip(":")
    if name not in SETTINGS:
        raise error
    return f"argument {flag(name)}: {reason}"
