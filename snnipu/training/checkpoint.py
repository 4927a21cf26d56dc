"""Checkpoints: plain tensors, numbers and strings, so that reading one never runs code from it."""

from pathlib import Path
from typing import Any, Dict

import torch

from snnipu.training.files import write_atomically

FORMAT = "snnipu-train-1"
ENTRIES = {"format": str, "config": dict, "data": dict, "model": dict, "optimizer": dict, "rng": dict, "history": list}


class CheckpointError(Exception):
    """A checkpoint cannot be read, or belongs to another run."""


def save_checkpoint(path: Path, state: Dict[str, Any]) -> None:
    """Write ``state`` (``Trainer.state_dict()``); ``path`` holds the old or the new one, never half of one."""
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **state}, file))


def load_checkpoint(path: Path) -> Dict[str, Any]:
    """Read what :func:`save_checkpoint` wrote, onto the CPU.

    Raises:
        CheckpointError: there is no such file, it is damaged, or it is no checkpoint of this package.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails anywhere in zip, pickle or torch
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise CheckpointError(f"{path} is damaged or no checkpoint: {reason}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version of snnipu train ({FORMAT})")
    for name, kind in ENTRIES.items():
        if not isinstance(state.get(name), kind):
            raise CheckpointError(f"{path} is damaged: its entry {name!r} should be a {kind.__name__}")
    return state


def check_same_run(saved: Dict[str, Any], own: Dict[str, Any]) -> None:
    """Compare the description of a saved run with that of the present one; the number of epochs may differ.

    Raises:
        CheckpointError: another setting, network or data set; the message lists what differs.
    """
    differing = [
        f"{name} is {saved.get(name)!r} there and {own[name]!r} here"
        for name in own
        if name != "epochs" and saved.get(name) != own[name]
    ]
    if differing:
        raise CheckpointError("the checkpoint is of another run: " + ", ".join(differing))
