"""Checkpoints: plain tensors, numbers and strings, so that reading one never runs code from it, and a checksum.

A checkpoint is the ZIP archive that ``torch.save`` writes, with ``snnipu sha256`` and 64 hexadecimal digits as the
archive's comment: the SHA-256 of all bytes before the digits. ``torch.load(path, weights_only=True)`` reads it, without
a look at the checksum.
"""

import contextlib
import hashlib
import io
import math
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List

import torch

from snnipu._files import InUseError, is_held, sole_writer, write_atomically

FORMAT = "snnipu-train-3"
# Without a checksum: what is in such a file cannot be trusted.
OLD_FORMAT = "snnipu-train-1"
ENTRIES = {
    "format": str,
    "config": dict,
    "data": dict,
    "model": dict,
    "optimizer": dict,
    "rng": dict,
    "history": list,
    "running": dict,  # of an epoch under way; empty between two
}

_COMMENT = b"snnipu sha256 "
_DIGITS = 2 * hashlib.sha256().digest_size
# The end record of a ZIP archive without a comment; its last two bytes are the comment's length.
_END = b"PK\5\6"
_END_BYTES = 22


class CheckpointError(Exception):
    """A checkpoint cannot be read, belongs to another run, or is written by another one."""


def save_checkpoint(path: Path, state: Dict[str, Any]) -> None:
    """Write ``state`` (``Trainer.state_dict()``); ``path`` holds the old or the new one, never half of one.

    Raises:
        WriteError: it cannot be written, on a full disk, say; the old one is still there.
        CheckpointError: another run holds ``path``, see :func:`lock_checkpoint`.
    """

    def write(file: BinaryIO) -> None:
        torch.save({**state, "format": FORMAT}, file)
        _seal(file)

    with contextlib.nullcontext() if is_held(path) else lock_checkpoint(path):
        write_atomically(path, write)


def load_checkpoint(path: Path) -> Dict[str, Any]:
    """Read what :func:`save_checkpoint` wrote, onto the CPU; nothing of it is looked at before its checksum is right.

    Raises:
        CheckpointError: there is no such file, it is damaged, or it is no checkpoint of this version of the package.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    _check_seal(path, content)
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # not what torch.save wrote: it fails anywhere in zip, pickle or torch
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise CheckpointError(f"{path} is damaged or no checkpoint: {reason}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version of snnipu train ({FORMAT})")
    for name, kind in ENTRIES.items():
        if not isinstance(state.get(name), kind):
            raise CheckpointError(f"{path} is damaged: its entry {name!r} should be a {kind.__name__}")
    for name in ("config", "data"):
        if not _is_plain(state[name]):
            raise CheckpointError(f"{path} is damaged: its entry {name!r} should hold numbers and words only")
    return state


@contextlib.contextmanager
def lock_checkpoint(path: Path) -> Iterator[None]:
    """Keep other runs from writing ``path``, until the block ends or this process does, however it ends.

    Where there are no file locks (Windows; some network file systems), a warning says so.

    Raises:
        CheckpointError: another run holds it; the message names its process.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(sole_writer(path))
        except InUseError as error:
            raise CheckpointError(str(error)) from error
        yield


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


# ---- what a checkpoint holds, against what it is to go into; the messages go behind "the checkpoint is damaged: "


def check_model(saved: Dict[str, Any], own: Dict[str, torch.Tensor]) -> None:
    """The same tensors by name, shape and type, and finite; else a ValueError."""
    check_names("model", saved, own)
    for name, tensor in own.items():
        check_tensor(f"model: {name}", saved[name], tensor, finite=bool(torch.isfinite(tensor).all()))


def check_optimizer(saved: Dict[str, Any], optimizer: torch.optim.Adam, trained: bool) -> Dict[str, Any]:
    """What Adam is to load: the saved state with the saved learning rate, and all else as ``optimizer`` has it.

    Args:
        saved: the ``state_dict`` of an Adam.
        optimizer: the Adam that is to go on.
        trained: whether a step is behind it: each parameter has a state then, and none otherwise.

    Raises:
        ValueError: ``saved`` is none of an Adam with the same parameters and options.
    """
    check_names("optimizer", saved, ("state", "param_groups"))
    groups: List[Dict[str, Any]] = optimizer.state_dict()["param_groups"]
    _check_groups(saved["param_groups"], groups)
    parameters = dict(
        zip(
            (index for group in groups for index in group["params"]),
            (parameter for group in optimizer.param_groups for parameter in group["params"]),
        )
    )
    check_names("optimizer: state of the parameters", saved["state"], parameters if trained else ())
    for index, state in saved["state"].items():
        _check_state(f"optimizer: state of parameter {index}", state, parameters[index])
    groups = [{**group, "lr": there["lr"]} for group, there in zip(groups, saved["param_groups"])]
    return {"state": saved["state"], "param_groups": groups}


def _check_groups(saved: Any, own: List[Dict[str, Any]]) -> None:
    if not isinstance(saved, list) or len(saved) != len(own):
        raise ValueError(f"optimizer: param_groups: expected {len(own)} in a list, got {_brief(saved)}")
    for there, group in zip(saved, own):
        where = "optimizer: param_groups"
        # PyTorch's versions have more options or fewer than these.
        missing = {"params", "lr", "betas", "eps", "weight_decay", "amsgrad"} - set(_as_dict(where, there))
        if missing:
            raise ValueError(f"{where}: {min(missing)} is missing")
        if not _is_plain(there):
            raise ValueError(f"{where}: expected numbers and words only")
        if isinstance(there["lr"], bool) or not isinstance(there["lr"], (int, float)) or not 0 < there["lr"] < math.inf:
            raise ValueError(f"{where}: lr: expected a number above 0, got {there['lr']!r}")
        for name in group.keys() & there.keys() - {"lr"}:
            same = list(there[name]) == list(group[name]) if name == "betas" else there[name] == group[name]
            if not same:
                raise ValueError(f"{where}: {name} is {there[name]!r} there and {group[name]!r} here")


def _check_state(where: str, state: Any, parameter: torch.Tensor) -> None:
    check_names(where, state, ("step", "exp_avg", "exp_avg_sq"))
    step = state["step"]
    if isinstance(step, torch.Tensor) and step.numel() == 1 and step.dtype in (torch.float32, torch.float64):
        step = step.item()
    if isinstance(step, bool) or not isinstance(step, (int, float)) or not (0 < step < math.inf and step % 1 == 0):
        raise ValueError(f"{where}: step: expected a whole number above 0, got {_brief(step)}")
    for name in ("exp_avg", "exp_avg_sq"):
        check_tensor(f"{where}: {name}", state[name], parameter)
    if bool((state["exp_avg_sq"] < 0).any()):
        raise ValueError(f"{where}: exp_avg_sq: expected no number below 0")


def check_generator(saved: Any, own: torch.Generator) -> torch.Tensor:
    """A state that a generator like ``own`` takes and gives back; else a ValueError."""
    where = "rng: batch_order"
    check_tensor(where, saved, own.get_state())
    trial = torch.Generator(own.device)
    try:
        trial.set_state(saved)
    except RuntimeError as error:
        first = str(error).split("\n", 1)[0]
        raise ValueError(f"{where}: not the state of a random number generator: {first}") from error
    if not torch.equal(trial.get_state(), saved):
        raise ValueError(f"{where}: not the state of a random number generator")
    return saved  # type: ignore[no-any-return]


def check_names(where: str, saved: Any, expected: Any) -> None:
    """A dict with exactly these names; else a ValueError."""
    there = set(_as_dict(where, saved))
    missing = [name for name in expected if name not in there]
    unknown = sorted(map(str, there - set(expected)))
    if missing:
        raise ValueError(f"{where}: {missing[0]} is missing")
    if unknown:
        raise ValueError(f"{where}: {unknown[0]} is not expected")


def check_tensor(where: str, saved: Any, own: torch.Tensor, finite: bool = True) -> None:
    """A dense tensor of the shape and type of ``own``, of finite numbers where ``finite``; else a ValueError."""
    if type(saved) is not torch.Tensor or saved.layout is not torch.strided:
        raise ValueError(f"{where}: expected a tensor, got {_brief(saved)}")
    if saved.shape != own.shape or saved.dtype != own.dtype:
        raise ValueError(
            f"{where}: expected {own.dtype} of shape {tuple(own.shape)}, got {saved.dtype} of shape "
            f"{tuple(saved.shape)}"
        )
    if finite and not bool(torch.isfinite(saved).all()):
        raise ValueError(f"{where}: holds numbers that are not finite")


def _as_dict(where: str, saved: Any) -> Dict[Any, Any]:
    if not isinstance(saved, dict):
        raise ValueError(f"{where}: expected a dict, got {_brief(saved)}")
    return saved


def _is_plain(value: Any) -> bool:
    """Numbers, words, None, and lists, tuples and dicts with names of such."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(entry) for name, entry in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else type(value).__name__


# ---- the checksum


def _seal(file: BinaryIO) -> None:
    """Give the ZIP archive in ``file`` the comment with its checksum."""
    file.seek(-_END_BYTES, io.SEEK_END)
    end = file.read(_END_BYTES)
    if not end.startswith(_END) or end[-2:] != b"\0\0":
        raise RuntimeError("torch.save wrote no ZIP archive, or one with a comment")
    file.seek(-2, io.SEEK_END)
    file.write((len(_COMMENT) + _DIGITS).to_bytes(2, "little") + _COMMENT)
    file.seek(0)
    digest = hashlib.sha256()
    for part in iter(lambda: file.read(2**20), b""):
        digest.update(part)
    file.write(digest.hexdigest().encode())


def _check_seal(path: Path, content: bytes) -> None:
    """The file ends with the SHA-256 of all that stands before it; else a CheckpointError."""
    body, digits = memoryview(content)[:-_DIGITS], content[-_DIGITS:]
    if hashlib.sha256(body).hexdigest().encode() == digits and bytes(body[-len(_COMMENT) :]) == _COMMENT:
        return
    if OLD_FORMAT.encode() in content and _COMMENT not in content:
        raise CheckpointError(
            f"{path} is of an earlier version of snnipu ({OLD_FORMAT}) or damaged: it has no checksum, so that nobody "
            "can tell whether it is as it was written"
        )
    reason = "its checksum is not that of its contents" if _COMMENT in content else "it has no checksum"
    raise CheckpointError(f"{path} is damaged or no checkpoint: {reason}")
