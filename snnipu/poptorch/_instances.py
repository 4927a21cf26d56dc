"""Several processes (PopDist's *instances*) that train one model: their number, and sums over them.

``torchrun`` starts the processes and sets the variables ``RANK`` and ``WORLD_SIZE``. ``torch.distributed`` (gloo) sums
the gradients.
"""

import atexit
import os
import time
from typing import Any, Iterable, Tuple

import torch
import torch.distributed as dist

from snnipu.poptorch._errors import Error, InvalidArgument

_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)
_MAX_WAIT_SECONDS = 1.0


def launched() -> bool:
    """Return True if a launcher started this process, alone or with others."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def instance() -> Tuple[int, int]:
    """Return (number of this process, number of processes); ``(0, 1)`` without a launcher.

    Raises ``poptorch.Error`` if ``RANK`` and ``WORLD_SIZE`` are not numbers with ``RANK`` below ``WORLD_SIZE``.
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
    """Connect to the other processes, if there are any and they are not connected yet."""
    if instance()[1] > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
        # gloo's threads may abort the process if they still run when the interpreter ends.
        atexit.register(_disconnect)


def _disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def check_connected(count: int) -> None:
    """Raise ``poptorch.Error`` unless ``count`` processes are connected."""
    connected = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if connected != count:
        raise Error(
            f"training in {count} processes (Options.Distributed) needs them in one group of torch.distributed, which "
            f"has {connected}: start the script with torchrun --nproc-per-node {count}, and call popdist.init() or "
            "torch.distributed.init_process_group('gloo') first. Gradients would not be shared otherwise."
        )


def sum_over_instances(tensors: Iterable[torch.Tensor]) -> None:
    """Replace each (strided) tensor by its sum over all processes; all call this with the same number of tensors."""
    for tensor in tensors:
        storage: Any = tensor.untyped_storage()
        before = _references(storage)
        dist.all_reduce(tensor.detach())
        # A thread of gloo frees its reference to the tensor later, and needs the GIL for it. If the interpreter ends
        # first, the process aborts; so wait.
        until = time.monotonic() + _MAX_WAIT_SECONDS
        while _references(storage) > before and time.monotonic() < until:
            time.sleep(0)


def _references(storage: Any) -> int:
    """Return the number of references to a storage; 0 before PyTorch 2.1, which does not count them."""
    return 0 if _use_count is None else int(_use_count(storage._cdata))
