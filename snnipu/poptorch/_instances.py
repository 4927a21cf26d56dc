"""Several processes (PopDist's *instances*) that train one model: their number, and sums over them.

The processes are those that ``torchrun`` starts, with its variables ``RANK`` and ``WORLD_SIZE``; gradients are summed
by ``torch.distributed`` (gloo).
"""

import atexit
import os
import time
from typing import Any, Iterable, Tuple

import torch
import torch.distributed as dist

from snnipu.poptorch._errors import Error, InvalidArgument

_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)
_LONGEST_SECONDS = 1.0


def launched() -> bool:
    """Whether a launcher started this process as one of several, or as the only one."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def instance() -> Tuple[int, int]:
    """This process's number and how many there are; ``(0, 1)`` without a launcher.

    Raises ``poptorch.Error`` for values of ``RANK`` and ``WORLD_SIZE`` that are no such numbers.
    """
    if not launched():
        return 0, 1
    texts = os.environ["RANK"], os.environ["WORLD_SIZE"]
    try:
        index, count = (int(text) for text in texts)
    except ValueError:
        index, count = -1, 0
    if not 0 <= index < count:
        raise InvalidArgument(f"RANK and WORLD_SIZE must be numbers, RANK below WORLD_SIZE, got {texts}")
    return index, count


def connect() -> None:
    """Meet the other processes; nothing where there are none, or where they have met."""
    if instance()[1] > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
        # Its threads, where the interpreter ends with them, may abort the process.
        atexit.register(_disconnect)


def _disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def check_connected(count: int) -> None:
    """Raises ``poptorch.Error`` unless ``count`` processes have met."""
    met = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if met != count:
        raise Error(
            f"training in {count} processes (Options.Distributed) needs them in one group of torch.distributed, which "
            f"has {met}: start the script with torchrun --nproc-per-node {count}, and call popdist.init() or "
            "torch.distributed.init_process_group('gloo') first. Gradients would not be shared otherwise."
        )


def sum_over_instances(tensors: Iterable[torch.Tensor]) -> None:
    """Each (strided) tensor, in place, becomes its sum over all processes, which call this with as many tensors."""
    for tensor in tensors:
        storage: Any = tensor.untyped_storage()
        before = _references(storage)
        dist.all_reduce(tensor.detach())
        # A thread of gloo's lets go of its tensor when it comes to it, and takes Python's lock for that: where the
        # interpreter ends before, the process aborts.
        until = time.monotonic() + _LONGEST_SECONDS
        while _references(storage) > before and time.monotonic() < until:
            time.sleep(0)


def _references(storage: Any) -> int:
    """How many hold the memory; 0 before PyTorch 2.1, which does not tell."""
    return 0 if _use_count is None else int(_use_count(storage._cdata))
