"""The output of ``python -m snnipu train``: lines, the JSON report and figures."""

import functools
from pathlib import Path
from typing import Any, Dict, List, Union

import snntorch
import torch

from snnipu import training
from snnipu._version import __version__

AnyTrainer = Union[training.Trainer, training.EventTrainer]


def counts_of(entry: Dict[str, Any]) -> Dict[str, Any]:
    """Return the part of an operator's report on the IPU model that all operators have."""
    names = ("cycles", "compute_cycles", "exchange_cycles", "sync_cycles", "clock_hz", "tile_memory_max_bytes")
    counts = {name: entry["report"][name] for name in names}
    return {"operator": entry["operator"], "inputs": entry["inputs"], "target": entry["target"], **counts}


def print_counts(entries: List[Dict[str, Any]]) -> None:
    print("counted by the IPU model, over the run; not measured:")
    for entry in map(counts_of, entries):
        shape = " x ".join(map(str, entry["inputs"][0]))
        print(
            f"  {entry['operator']}, {shape}: {entry['cycles']:,.0f} cycles on {entry['target']}, fullest tile "
            f"{entry['tile_memory_max_bytes'] / 1024:.1f} KiB"
        )


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
    """Return the contents of ``--json``; accuracies are fractions, 0 to 1, and None before the first finished epoch."""
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
    """Write the figures of the trainer; return their paths."""
    paths = []
    for name, figure in trainer.figures().items():
        paths.append(folder / f"{name}.png")
        training.write_atomically(paths[-1], functools.partial(figure.savefig, format="png"))
    return paths
