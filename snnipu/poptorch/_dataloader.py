"""``poptorch.DataLoader``: a data loader of combined batches (PopTorch user guide, "Efficient data batching")."""

import itertools
import multiprocessing
from typing import Any, Dict, Iterable, Iterator, List, Optional, Union

import torch
import torch.utils.data

from snnipu._names import provides_poptorch
from snnipu.poptorch._errors import Error, InvalidArgument, check_bool, check_enum, check_int, check_type
from snnipu.poptorch._logging import logger
from snnipu.poptorch._structure import flatten, rebuild
from snnipu.poptorch.enums import DataLoaderMode, SharingStrategy
from snnipu.poptorch.options import Options


class _ProcessShare(torch.utils.data.Dataset):
    """The part of a dataset that one of several processes reads: consecutive elements, equally many per process.

    With ``drop_last`` the parts may leave out some elements at the end. Every second epoch shifts all parts by that
    number, so that different elements are left out.
    """

    def __init__(self, dataset: Any, options: Options, step: int, drop_last: bool) -> None:
        processes, process = options.Distributed.numProcesses, options.Distributed.processId
        size = len(dataset)
        if drop_last:
            length = step * (size // (step * processes))
            if length == 0:
                raise InvalidArgument(
                    f"DataLoader: the dataset of {size} elements has less than one combined batch of {step} for each "
                    f"of {processes} processes"
                )
            self._start, self._length = process * length, length
            self._leftover = size - processes * length
        else:
            each, more = divmod(size, processes)
            self._start, self._length = process * each + min(process, more), each + (process < more)
            self._leftover = 0
        self._dataset = dataset
        self._shift = 0
        self._generator = torch.Generator()
        self._order: Optional[torch.Tensor] = None

    def seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def next_epoch(self) -> None:
        """Shuffle the dataset; every process draws the same order."""
        order = torch.randperm(len(self._dataset), generator=self._generator)
        # Persistent workers read the new order from shared memory.
        if self._order is None:
            self._order = order.share_memory_()
        else:
            self._order.copy_(order)
        self._shift = self._leftover - self._shift

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        position = self._start + self._shift + index
        return self._dataset[position if self._order is None else int(self._order[position])]


def _join_batches(batches: List[Any]) -> Any:
    columns = zip(*(flatten(batch) for batch in batches))
    return rebuild(batches[0], iter([torch.cat(list(column)) for column in columns]))


def _combine_batches(batches: Iterable[Any], count: int, drop_last: bool) -> Iterator[Any]:
    """Join ``count`` batches at a time along dim 0."""
    iterator = iter(batches)
    while True:
        waiting = list(itertools.islice(iterator, count))
        if not waiting or (drop_last and len(waiting) < count):
            return
        yield _join_batches(waiting)


def _rebatch(batches: Iterable[Any], size: int, drop_last: bool) -> Iterator[Any]:
    """Cut and join batches of any sizes to batches of ``size``."""
    waiting: List[Any] = []
    num_waiting = 0
    for batch in batches:
        waiting.append(batch)
        num_waiting += flatten(batch)[0].shape[0]
        if num_waiting >= size:
            columns = zip(*(tensor.split(size) for tensor in flatten(_join_batches(waiting))))
            pieces = [rebuild(batch, iter(column)) for column in columns]
            num_waiting %= size
            waiting = [pieces.pop()] if num_waiting else []
            yield from pieces
    if waiting and not drop_last:
        yield _join_batches(waiting)


class AsynchronousDataAccessor:
    """An iterator over a dataset or ``DataLoader``. PopTorch reads in a worker process, the host in this process.

    After ``terminate()`` iterating raises ``poptorch.Error``.

    Args:
        dataset: an iterable of batches, or a ``DataLoader`` in ``Sync`` mode.
        buffer_size, miss_sleep_time_in_ms, load_indefinitely, early_preload, sharing_strategy: settings of PopTorch's
            worker process; no effect on the host.
        rebatched_size: cut and join the batches to this size, at least 2; None: leave them unchanged.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
        rebatched_size: Optional[int] = None,
    ) -> None:
        check_int(buffer_size, "AsynchronousDataAccessor: buffer_size", 1)
        check_bool(load_indefinitely, "AsynchronousDataAccessor: load_indefinitely")
        check_bool(early_preload, "AsynchronousDataAccessor: early_preload")
        check_enum(sharing_strategy, "AsynchronousDataAccessor: sharing_strategy", SharingStrategy)
        if rebatched_size is not None:
            check_int(rebatched_size, "AsynchronousDataAccessor: rebatched_size", 2)
        if isinstance(dataset, DataLoader):
            if dataset._asynchronous:
                raise InvalidArgument(
                    "AsynchronousDataAccessor: the DataLoader is asynchronous already; iterate over it, or create the "
                    "DataLoader with mode=poptorch.DataLoaderMode.Sync"
                )
            whole = dataset.drop_last or dataset._combined_batch_size in (None, 1) or dataset._user_sampler
            if not whole and rebatched_size is None:
                raise InvalidArgument(
                    "AsynchronousDataAccessor: a DataLoader with drop_last=False needs rebatched_size as well"
                )
        self._dataset = dataset
        self.rebatched_size = rebatched_size
        self._iterator: Optional[Iterator[Any]] = None
        self._terminated = False

    def terminate(self) -> None:
        """Stop; iterating then raises ``poptorch.Error``."""
        self._terminated = True
        self._iterator = None

    def __len__(self) -> int:
        length = len(self._dataset)
        if self.rebatched_size:
            length = length * self._dataset.batch_size // self.rebatched_size
        return length

    def __iter__(self) -> "AsynchronousDataAccessor":
        if self._terminated:
            raise Error("AsynchronousDataAccessor: it has been terminated; create a new one")
        batches = iter(self._dataset)
        if self.rebatched_size:
            drop_last = getattr(self._dataset, "_drop_last", True)
            batches = _rebatch(batches, self.rebatched_size, drop_last)
        self._iterator = batches
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            iter(self)
        assert self._iterator is not None
        return next(self._iterator)


class DataLoader(torch.utils.data.DataLoader):
    """PyTorch's data loader with combined batches: each batch holds the inputs of one call of a wrapped model.

    A batch has ``batch_size`` * deviceIterations * replicationFactor / input_group_size * gradientAccumulation elements
    (:attr:`combinedBatchSize`). If there are several processes (``options.Distributed``), each reads its part of a
    map-style dataset. The asynchronous modes read in this process and give the same batches.

    Args:
        options: the options of the model, which the loader freezes.
        dataset: a map-style or iterable dataset.
        batch_size: the size of a micro-batch; None: no automatic batching.
        shuffle: draw a new order in each epoch.
        num_workers: worker processes that read the dataset.
        drop_last: leave out the last batch if it is incomplete; a compiled model accepts complete batches only.
        persistent_workers: keep the workers between epochs; None: yes, if there are any.
        auto_distributed_partitioning: divide the dataset among the processes.
        mode: a :class:`DataLoaderMode`.
        async_options: arguments for :class:`AsynchronousDataAccessor`, except ``rebatched_size``.
        rebatched_worker_size: with ``AsyncRebatched``, the size of the batches that workers read. The loader joins them
            to combined batches, so an iterable dataset loses no elements at the end of each worker's part.
        batch_sampler: a sampler of micro-batches, in place of ``batch_size`` and ``shuffle``.
        kwargs: further arguments of ``torch.utils.data.DataLoader``.

    Raises:
        poptorch.Error: an argument is of the wrong type, or ``batch_sampler`` is given with ``batch_size`` or
            ``shuffle``. Partitioning among processes excludes iterable datasets, ``batch_size=None`` and
            ``batch_sampler``; with ``shuffle`` it needs ``Options.randomSeed``.
    """

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: Optional[int] = 1,
        shuffle: Optional[bool] = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: Optional[bool] = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: Optional[Dict[str, Any]] = None,
        rebatched_worker_size: Optional[int] = None,
        batch_sampler: Optional[Union[torch.utils.data.Sampler, Iterable[Any]]] = None,
        **kwargs: Any,
    ) -> None:
        self._terminated = False
        check_type(options, "DataLoader: options", Options, "a poptorch.Options")
        check_enum(mode, "DataLoader: mode", DataLoaderMode)
        if batch_size is not None and batch_sampler is None:
            check_int(batch_size, "DataLoader: batch_size", 1)
        self._user_sampler = batch_sampler is not None
        if self._user_sampler:
            if batch_size != 1 or shuffle:
                raise InvalidArgument("DataLoader: batch_sampler excludes batch_size and shuffle")
            if options.Distributed.numProcesses > 1 and auto_distributed_partitioning:
                raise InvalidArgument("DataLoader: batch_sampler excludes auto_distributed_partitioning=True")
            batch_size = getattr(batch_sampler, "batch_size", batch_size)
        options._freeze()
        self._options = options
        groups, _ = options._replica_of_input()
        self._combine = options.device_iterations * groups * options.Training.gradient_accumulation
        self._combined_batch_size = None if batch_size is None else batch_size * self._combine
        self._drop_last = drop_last

        self._share: Optional[_ProcessShare] = None
        iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        if options.Distributed.numProcesses > 1 and auto_distributed_partitioning:
            if iterable:
                raise InvalidArgument("DataLoader: auto_distributed_partitioning does not support an IterableDataset")
            dataset, shuffle = self._shared_dataset(dataset, bool(shuffle), drop_last)
        if iterable and num_workers > 1 and "worker_init_fn" not in kwargs:
            logger.warning(
                "IterableDataset with num_workers=%d and no worker_init_fn: each element is read %d times.",
                num_workers,
                num_workers,
            )

        worker_batch, worker_drop_last = self._combined_batch_size, drop_last
        self._asynchronous = mode != DataLoaderMode.Sync
        self._rebatched: Optional[int] = None  # the size to which batches are cut and joined after reading
        remainder = mode == DataLoaderMode.Async and not drop_last
        if (mode == DataLoaderMode.AsyncRebatched or remainder) and (self._combined_batch_size or 0) > 1:
            self._rebatched, worker_drop_last = self._combined_batch_size, False
            if rebatched_worker_size is not None and self._rebatched is not None:
                if check_int(rebatched_worker_size, "DataLoader: rebatched_worker_size", 1) > self._rebatched:
                    raise InvalidArgument(
                        f"DataLoader: rebatched_worker_size {rebatched_worker_size} is above the combined batch size "
                        f"{self._rebatched}"
                    )
                worker_batch = rebatched_worker_size

        if self._user_sampler:
            settings: Dict[str, Any] = {"batch_sampler": batch_sampler}
        elif self._combined_batch_size is None:
            settings = {"batch_size": None, "shuffle": None if iterable else bool(shuffle)}
        else:
            settings = {
                "batch_size": worker_batch,
                "shuffle": None if iterable and not shuffle else bool(shuffle),
                "drop_last": worker_drop_last,
            }
        if persistent_workers is None:
            persistent_workers = num_workers > 0
        if num_workers > 0 and provides_poptorch() and "fork" in multiprocessing.get_all_start_methods():
            # Other start methods run the script's imports in workers, where the drop-in ``poptorch`` is not installed.
            kwargs.setdefault("multiprocessing_context", "fork")
        super().__init__(dataset, num_workers=num_workers, persistent_workers=persistent_workers, **settings, **kwargs)
        self._warn_of_incomplete(iterable, drop_last)
        if self._asynchronous:
            if "rebatched_size" in (async_options or {}):
                raise InvalidArgument("DataLoader: async_options cannot set rebatched_size, the mode does")
            AsynchronousDataAccessor((), **(async_options or {}))  # raises for wrong options

    def _shared_dataset(self, dataset: Any, shuffle: bool, drop_last: bool) -> Any:
        if shuffle and not self._options.exists("random_seed"):
            raise InvalidArgument(
                "DataLoader: shuffling in several processes needs poptorch.Options.randomSeed(), with one seed for all"
            )
        if self._combined_batch_size is None:
            raise InvalidArgument("DataLoader: batch_size=None does not go with auto_distributed_partitioning")
        share = _ProcessShare(dataset, self._options, self._combined_batch_size, drop_last)
        if shuffle:
            share.seed(self._options.random_seed)
            self._share = share
        return share, False

    def _warn_of_incomplete(self, iterable: bool, drop_last: bool) -> None:
        if iterable or drop_last or not self._combined_batch_size or self._user_sampler:
            return
        left = len(self.dataset) % self._combined_batch_size  # type: ignore[arg-type]
        if left:
            logger.warning(
                "The dataset's %d elements do not divide by the combined batch size of %d and drop_last=False: the "
                "last batch has %d elements, which a compiled model refuses.",
                len(self.dataset),  # type: ignore[arg-type]
                self._combined_batch_size,
                left,
            )

    @property
    def combinedBatchSize(self) -> Optional[int]:
        """The elements in a batch, which are the inputs of one call; None with ``batch_size=None``."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        """The options of this loader, frozen."""
        return self._options

    def terminate(self) -> None:
        """Stop an asynchronous loader: iterating then raises ``poptorch.Error``. No effect in ``Sync`` mode."""
        self._terminated = self._asynchronous

    def __len__(self) -> int:
        if self._rebatched:
            elements, size = len(self.dataset), self._rebatched  # type: ignore[arg-type]
            if self._user_sampler:  # it may leave out elements
                elements = min(elements, super().__len__() * size // self._combine)
        else:
            elements, size = super().__len__(), self._combine if self._user_sampler else 1
        batches, left = divmod(elements, size)
        return batches + bool(left and not self._drop_last)

    def __iter__(self) -> Any:
        if self._terminated:
            raise Error("DataLoader: it has been terminated; create a new one")
        if self._share is not None:
            self._share.next_epoch()
        batches: Iterator[Any] = super().__iter__()
        if self._user_sampler and self._combine > 1:
            batches = _combine_batches(batches, self._combine, self._drop_last)
        return _rebatch(batches, self._rebatched, self._drop_last) if self._rebatched else batches
