"""What ``python -m snnipu train`` tells of a run: lines, the JSON report and pictures."""

import functools
from pathlib import Path
from typing import Any, Dict, List, Union

import snntorch
import torch

from snnipu import training
from snnipu._version import __version__

AnyTrainer = Union[training.Trainer, training.EventTrainer]


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
