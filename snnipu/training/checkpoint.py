"""Checkpoints of plain tensors, numbers and strings, with a checksum. Reading one never runs code from it.

A checkpoint is the ZIP archive that ``torch.save`` writes, with ``snnipu sha256`` and 64 hexadecimal digits as the
archive's comment: the SHA-256 of all bytes before the digits. ``torch.load(path, weights_only=True)`` reads it without
comparing the checksum.
"""

import contextlib
import hashlib
import io
from pathlib import Path
from typing import Any, Dict, Iterator

import torch

from snnipu._files import InUseError, is_held, sole_writer, write_atomically

FORMAT = "snnipu-train-3"

_COMMENT = b"snnipu sha256 "
_DIGITS = 2 * hashlib.sha256().digest_size


class CheckpointError(Exception):
    """A checkpoint cannot be read, belongs to another run, or is being written by another one."""


def save_checkpoint(path: Path, state: Dict[str, Any]) -> None:
    """Write ``state`` to ``path`` atomically: the file is always either the old or the new checkpoint.

    Args:
        path: the file.
        state: ``Trainer.state_dict()``.

    Raises:
        WriteError: writing failed, for example because the disk is full; the old checkpoint is unchanged.
        CheckpointError: another run holds ``path``, see :func:`lock_checkpoint`.
    """
    archive = io.BytesIO()
    torch.save({**state, "format": FORMAT}, archive)
    # The last two bytes of an archive without a comment are the comment's length.
    body = archive.getvalue()[:-2] + (len(_COMMENT) + _DIGITS).to_bytes(2, "little") + _COMMENT
    content = body + hashlib.sha256(body).hexdigest().encode()
    with contextlib.nullcontext() if is_held(path) else lock_checkpoint(path):
        write_atomically(path, lambda file: file.write(content))


def load_checkpoint(path: Path) -> Dict[str, Any]:
    """Read a file of :func:`save_checkpoint` onto the CPU, after checking its checksum.

    Args:
        path: the file.

    Returns:
        The ``state`` of :func:`save_checkpoint`.

    Raises:
        CheckpointError: the file is missing, damaged, or not a checkpoint of this version of the package.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    try:
        if hashlib.sha256(content[:-_DIGITS]).hexdigest().encode() != content[-_DIGITS:]:
            reason_text = "its checksum is not that of its contents" if _COMMENT in content else "it has no checksum"
            raise ValueError(reason_text)
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise errors of many types in zip, pickle and torch
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise CheckpointError(f"{path} is damaged or no checkpoint: {reason}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT or not isinstance(state.get("config"), dict):
        raise CheckpointError(f"{path} is not a checkpoint of this version of snnipu train ({FORMAT})")
    return state


@contextlib.contextmanager
def lock_checkpoint(path: Path) -> Iterator[None]:
    """Lock ``path`` against other runs until the block or the process ends.

    Warns where the system has no file locks (Windows; some network file systems).

    Args:
        path: the checkpoint.

    Raises:
        CheckpointError: another run holds the lock; the message names its process.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(sole_writer(path))
        except InUseError as error:
            raise CheckpointError(str(error)) from error
        yield


def check_same_run(saved: Dict[str, Any], own: Dict[str, Any]) -> None:
    """Check that a saved run has the settings of the present one; the number of epochs may differ.

    Args:
        saved: settings of the checkpoint.
        own: settings of the present run.

    Raises:
        CheckpointError: a different setting, network or data set; the message lists the differences.
    """
    differing = [
        f"{name} is {saved.get(name)!r} there and {own[name]!r} here"
        for name in own
        if name != "epochs" and saved.get(name) != own[name]
    ]
    if differing:
        raise CheckpointError("the checkpoint is of another run: " + ", ".join(differing))
