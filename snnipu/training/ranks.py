"""The processes of a run that torchrun started: their ranks, and collectives over them."""

import contextlib
import datetime
import os
import time
import uuid
from typing import Any, Callable, Iterator, Optional, TypeVar

import torch
from torch import distributed, nn

_Result = TypeVar("_Result")

TIMEOUT = 600.0  # seconds


class OtherRankError(RuntimeError):
    """Another process failed in a common action; that process reports the reason."""


class Ranks:
    """A process among ``size`` that train one network; by default the only one.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
        local_rank, local_size: the same among the processes of this machine.
    """

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0, local_size: int = 1) -> None:
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size

    @property
    def is_first(self) -> bool:
        """True if this process writes files and prints messages."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Return this process's part of ``count`` items in order; the sizes of the parts differ by at most one."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    # ---- collectives, called by all processes in the same order

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of ``values`` over the processes, on the CPU."""
        values = values.detach().cpu().clone()
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def largest(self, value: int) -> int:
        """Return the largest ``value`` of all processes."""
        result = torch.tensor(value)
        if self.size > 1:
            distributed.all_reduce(result, distributed.ReduceOp.MAX)
        return int(result)

    def any(self, flag: bool) -> bool:
        """Return True if ``flag`` is true in any process."""
        return bool(self.largest(int(flag)))

    def from_first(self, value: Any) -> Any:
        """Return the ``value`` of the first process."""
        values = [value]
        if self.size > 1:
            distributed.broadcast_object_list(values, device=torch.device("cpu"))
        return values[0]

    def together(self, action: Callable[[], _Result]) -> _Result:
        """Call ``action`` in every process; if it raises in one process, raise in all.

        Raises:
            OtherRankError: another process of lower rank failed. The first process that failed raises its own error.
        """
        if self.size == 1:
            return action()
        error: Optional[Exception] = None
        try:
            result = action()
        except Exception as raised:
            error = raised
        failed = self.size - self.largest(0 if error is None else self.size - self.rank)
        if failed == self.size:
            return result
        if failed == self.rank and error is not None:
            raise error
        raise OtherRankError(f"rank {self.rank}: rank {failed} failed")

    def local_first(self, action: Callable[[], _Result]) -> _Result:
        """Call ``action`` in one process of each machine, then in the others, for example for a download."""
        if self.local_rank == 0:
            result = action()
        self.any(False)
        return result if self.local_rank == 0 else action()

    def wrapped(self, module: nn.Module) -> nn.Module:
        """Return ``module`` with gradients averaged over the processes."""
        return module if self.size == 1 else nn.parallel.DistributedDataParallel(module)


def _common_word(store: Any, rank: int, size: int, timeout: float) -> str:
    """Return a word that all living processes share and that is new to the store.

    torchrun keeps its store when it restarts processes, with the addresses of the killed ones. Each process stores a
    new word. The first process answers every word until each living process has confirmed its answer.
    """
    word, deadline = uuid.uuid4().hex, time.monotonic() + timeout
    if rank:
        store.set(f"hello/{rank}", word)
        answer: str = store.get(word).decode()  # blocks until the answer arrives
        store.set(f"{answer}/{rank}", "")
        return answer
    missing = list(range(1, size))
    while missing:
        if time.monotonic() > deadline:
            raise RuntimeError(f"rank 0: no answer from ranks {missing} of {size} within {timeout:g} s")
        for other in missing:
            if store.check([f"hello/{other}"]):
                store.set(store.get(f"hello/{other}").decode(), word)
        missing = [other for other in missing if not store.check([f"{word}/{other}"])]
        time.sleep(0.02)
    return word


@contextlib.contextmanager
def joined(cuda: bool = False, timeout: float = TIMEOUT) -> Iterator[Ranks]:
    """Connect the processes of this run within the block; a process that torchrun did not start is alone.

    Args:
        cuda: reduce gradients on GPUs by NCCL. Everything else is reduced by gloo.
        timeout: seconds after which a collective fails if a process is missing.

    Raises:
        ValueError: variables of the environment are missing, or are not numbers.
        RuntimeError: a process did not connect; in the block, PyTorch's error if a process ended or hangs.
    """
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", 1)) < 2:
        yield Ranks()
        return
    backend, wait = "cpu:gloo,cuda:nccl" if cuda else "gloo", datetime.timedelta(seconds=timeout)
    store, rank, size = next(distributed.rendezvous("env://", timeout=wait))
    store = distributed.PrefixStore(_common_word(store, rank, size, timeout), store)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    local = (int(os.environ.get(name, default)) for name, default in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    try:
        yield Ranks(rank, size, *local)
    finally:
        # A traceback may free a DistributedDataParallel after its group. PyTorch 2.13 then joins gloo's threads while
        # it holds the GIL, and deadlocks if such a thread needs the GIL to free the last sum. The pause lets that
        # thread finish.
        time.sleep(0.01)
        distributed.destroy_process_group()
