"""The processes of a run that torchrun started, by PyTorch's own collectives: who they are, and what they agree on."""

import contextlib
import datetime
import os
import time
import uuid
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, TypeVar

import torch
from torch import distributed, nn

_Result = TypeVar("_Result")

TIMEOUT = 600.0  # seconds
# How long processes whose collective failed wait for each other, to tell which of them is gone.
GRACE = 3.0
# One may fail at once, by a connection that ends, and another only when its time is over: the first process, whose
# store the others ask, waits for them that much longer at most.
LATEST = 10.0
# What torchrun, or whoever starts the processes, tells them.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class LostRankError(RuntimeError):
    """A process did not take part in a collective; the message names it."""


class OtherRankError(RuntimeError):
    """Another process failed at what all do together, and says why itself."""


class Ranks:
    """One process of ``size``, which train one network; alone by default, where every method is a matter of course.

    Attributes:
        rank: number of this process, from 0.
        size: how many there are.
        local_rank, local_size: the same among those of this machine.
    """

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0, local_size: int = 1) -> None:
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size
        self._store: Any = None
        self._timeout = TIMEOUT
        self._seconds = 0.0  # in collectives

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and speaks to the user."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This process's part of ``count`` things in order; the parts differ by one at most."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    # ---- what all do together, in the same order

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the processes, on the CPU."""
        values = values.detach().cpu().clone()
        if self.size > 1:
            with self.watched():
                distributed.all_reduce(values)
        return values

    def largest(self, value: int) -> int:
        """The largest of the processes' numbers."""
        if self.size == 1:
            return value
        found = torch.tensor(value)
        with self.watched():
            distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return int(found)

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is true in one of the processes."""
        return bool(self.largest(int(flag)))

    def from_first(self, value: Any) -> Any:
        """The first process's ``value``."""
        held = [value]
        if self.size > 1:
            with self.watched():
                distributed.broadcast_object_list(held, device=torch.device("cpu"))
        return held[0]

    def together(self, action: Callable[[], _Result]) -> _Result:
        """``action()`` in every process; where it raises in one, it does in all.

        Raises:
            OtherRankError: in the processes but the first of those in which it raised; there, its own error.
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
        """``action()`` in one process of each machine, then in its others: for what is fetched once and then there."""
        if self.local_rank == 0:
            result = action()
        if self.size > 1:
            self.any(False)
        return result if self.local_rank == 0 else action()

    def wrapped(self, module: nn.Module) -> nn.Module:
        """``module``, with gradients averaged over the processes."""
        if self.size == 1:
            return module
        with self.watched():
            return nn.parallel.DistributedDataParallel(module)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A collective: where it fails, the error names the process that did not come.

        Raises:
            LostRankError: it failed, or took longer than the timeout.
        """
        if self.size == 1:
            yield
            return
        started = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, LostRankError) or not _is_of_a_collective(error):
                raise
            raise LostRankError(self._who_is_missing(error)) from error
        finally:
            self._seconds += time.perf_counter() - started

    def _who_is_missing(self, error: RuntimeError) -> str:
        """Processes that wait in vain, too, say so in the store; the others are those that are gone or hang."""
        names = {rank: f"waiting/{rank}" for rank in range(self.size)}
        reason = str(error).strip().split("\n", 1)[0]
        missing: Optional[List[int]] = None
        try:
            self._store.set(names[self.rank], "1")
            until = time.monotonic() + GRACE + (min(self._timeout, LATEST) if self.is_first else 0)
            while missing is None or (missing and time.monotonic() < until):
                missing = [rank for rank in missing or names if not self._store.check([names[rank]])]
                time.sleep(0.05)
            if self.is_first:  # others may be about to ask
                time.sleep(GRACE)
        except Exception as gone:  # the first process has waited long enough
            if missing is None:
                first = str(gone).split("\n", 1)[0]
                return f"rank {self.rank}: the other processes are gone, and so is what they met at ({first}); {reason}"
        if not missing:
            return f"rank {self.rank}: all {self.size} processes are there, and a collective failed: {reason}"
        who = "rank " + str(missing[0]) if len(missing) == 1 else "ranks " + ", ".join(map(str, missing))
        return f"rank {self.rank}: no answer from {who} of {self.size}, which ended or hangs ({reason})"


def _is_of_a_collective(error: RuntimeError) -> bool:
    kind = getattr(distributed, "DistError", None)
    if kind is not None and isinstance(error, kind):
        return True
    text = str(error)
    return any(word in text for word in ("gloo", "Gloo", "NCCL", "Connection", "connection", "Timed out", "timed out"))


def in_environment() -> Optional[Tuple[int, int, int, int]]:
    """Rank, size, local rank and local size that torchrun tells; None where this is the only process.

    Raises:
        ValueError: some of its variables are there and others are not, or one is no number.
    """
    found = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if "RANK" not in found or "WORLD_SIZE" not in found:
        return None
    numbers: Dict[str, int] = {}
    for name, default in (("RANK", None), ("WORLD_SIZE", None), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")):
        text = os.environ.get(name, default)
        if text is None or not text.isdecimal():
            raise ValueError(f"{name}: expected an integer from 0, as torchrun sets it, got {text!r}")
        numbers[name] = int(text)
    if numbers["WORLD_SIZE"] < 2:
        return None
    missing = [name for name in VARIABLES if name not in found]
    if missing:
        raise ValueError(f"{missing[0]}: expected it beside RANK and WORLD_SIZE; torchrun sets all of them")
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise ValueError(f"RANK: expected a number below WORLD_SIZE={numbers['WORLD_SIZE']}, got {numbers['RANK']}")
    return numbers["RANK"], numbers["WORLD_SIZE"], numbers["LOCAL_RANK"], numbers["LOCAL_WORLD_SIZE"]


def restarts() -> Tuple[int, int]:
    """How often torchrun has started the processes again, and how often it will; 0 and 0 without it."""
    counts = [os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS")]
    done, allowed = (int(count) if count.isdecimal() else 0 for count in counts)
    return done, allowed


def _common_word(store: Any, ranks: Ranks, timeout: float) -> str:
    """A word that the processes that are alive now agree on, and none of before knows.

    torchrun may keep its store when it starts processes again: addresses of those that it killed are still in it. So
    each process leaves a word that nobody had before it, and the first answers each word until all have come.
    """
    own, until = uuid.uuid4().hex, time.monotonic() + timeout
    if not ranks.is_first:
        store.set(f"snnipu/hello/{ranks.rank}", own)
        while not store.check([f"snnipu/answer/{own}"]):
            if time.monotonic() > until:
                raise LostRankError(f"rank {ranks.rank}: no answer from rank 0 of {ranks.size} within {timeout:g} s")
            time.sleep(0.02)
        word = str(store.get(f"snnipu/answer/{own}").decode())
        store.set(f"snnipu/came/{word}/{ranks.rank}", "1")
        return word
    missing = list(range(1, ranks.size))
    while missing:
        for rank in missing:
            if store.check([f"snnipu/hello/{rank}"]):
                store.set(f"snnipu/answer/{store.get(f'snnipu/hello/{rank}').decode()}", own)
        missing = [rank for rank in missing if not store.check([f"snnipu/came/{own}/{rank}"])]
        if time.monotonic() > until:
            who = ", ".join(map(str, missing))
            raise LostRankError(f"rank 0: no answer from rank {who} of {ranks.size} within {timeout:g} s")
        time.sleep(0.02)
    return own


@contextlib.contextmanager
def joined(cuda: bool = False, timeout: float = TIMEOUT) -> Iterator[Ranks]:
    """The processes of this run, met and connected within the block; one alone where torchrun did not start it.

    Args:
        cuda: gradients on GPUs are reduced by NCCL; everything else, and all on CPUs, by gloo.
        timeout: seconds after which a collective that not all processes come to fails.

    Raises:
        ValueError: variables of the environment that do not go together.
        LostRankError: not all processes came.
    """
    place = in_environment()
    if place is None:
        yield Ranks()
        return
    if not distributed.is_available():
        raise ValueError("WORLD_SIZE: this PyTorch is built without torch.distributed")
    ranks = Ranks(*place)
    ranks._timeout = timeout
    wait = datetime.timedelta(seconds=timeout)
    try:
        met, _, _ = next(distributed.rendezvous("env://", timeout=wait))
        ranks._store = distributed.PrefixStore(f"snnipu/{_common_word(met, ranks, timeout)}", met)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=ranks._store,
            rank=ranks.rank,
            world_size=ranks.size,
            timeout=wait,
        )
    except RuntimeError as error:
        if isinstance(error, LostRankError):
            raise
        first = str(error).split("\n", 1)[0]
        raise LostRankError(f"rank {ranks.rank}: {ranks.size} processes did not meet ({first})") from error
    try:
        yield ranks
    except LostRankError:  # nobody is there to end it with
        raise
    except BaseException:
        _leave()
        raise
    _leave()


def _leave() -> None:
    # A DistributedDataParallel that an error's traceback holds goes after its group, and then PyTorch (2.13) waits for
    # gloo's threads with Python's lock held; for ever, where one needs that lock to let go of the last sum. Now it can.
    time.sleep(0.01)
    distributed.destroy_process_group()


__all__ = ["LostRankError", "OtherRankError", "Ranks", "in_environment", "joined", "restarts"]
