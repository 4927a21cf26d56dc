"""What every event data set here is: recordings binned into SparseSpikes, one by one or in batches."""

import operator
from dataclasses import dataclass
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from snnipu.spikes import SparseSpikes, collate

Item = Tuple[SparseSpikes, int]
Batch = Tuple[SparseSpikes, torch.Tensor]
# (times, units) of a recording, one entry per event.
Reader = Callable[[int], Tuple[Any, Any]]


class _Packed(NamedTuple):
    """A binned recording without padding: what the cache holds."""

    counts: np.ndarray  # int32 [T]: spikes of each step
    ids: np.ndarray  # uint16 or int32: the neurons, by step and then by id
    values: Optional[np.ndarray]  # float32, as ids; None: every spike is 1
    dropped: Optional[np.ndarray]  # int32 [T]: spikes that did not fit into max_spikes; None: no max_spikes
    outside: int


def _pack(spikes: SparseSpikes, binary: bool, limited: bool) -> _Packed:
    """Of one sample in which every carried slot is a spike, as binning makes them."""
    counts = spikes.counts[:, 0, 0].numpy()
    used = np.arange(spikes.capacity) < counts[:, None]
    ids = spikes.ids[:, 0].numpy()[used].astype(np.uint16 if spikes.num_neurons <= 2**16 else np.int32)
    values = None if binary else spikes.values[:, 0].numpy()[used]
    dropped = spikes.dropped[:, 0, 0].numpy() if limited and spikes.dropped is not None else None
    return _Packed(np.ascontiguousarray(counts), ids, values, dropped, spikes.outside)


def _unpack(samples: Sequence[_Packed], num_neurons: int) -> SparseSpikes:
    """The samples as one batch, in as many slots as its busiest step needs."""
    counts = np.stack([sample.counts for sample in samples])  # [B, T]
    slots = int(counts.max()) if counts.size else 0
    used = np.arange(slots) < counts.T[..., None]  # [T, B, S]
    shape = used.shape
    # Where each spike goes: the first slot of its step plus its place there. Ids are ordered by sample, then by step.
    rows = counts.reshape(-1)
    first = (np.arange(shape[0]) * shape[1] + np.arange(shape[1])[:, None]).reshape(-1) * slots
    before = np.cumsum(rows, dtype=np.int64) - rows
    to = np.repeat(first - before, rows) + np.arange(int(rows.sum()))
    ids = np.zeros(used.size, np.int32)
    ids[to] = np.concatenate([sample.ids for sample in samples])
    if samples[0].values is None:
        values = used.astype(np.float32)
    else:
        values = np.zeros(used.size, np.float32)
        values[to] = np.concatenate([sample.values for sample in samples if sample.values is not None])
    dropped = None
    if samples[0].dropped is not None:
        dropped = _pairs(np.stack([sample.dropped for sample in samples if sample.dropped is not None]))
    return SparseSpikes._trusted(
        torch.from_numpy(ids.reshape(shape)),
        torch.from_numpy(values.reshape(shape)),
        _pairs(counts),
        num_neurons,
        dropped,
        sum(sample.outside for sample in samples),
    )


def _pairs(counts: np.ndarray) -> torch.Tensor:
    """``[B, T]`` spikes as ``[T, B, 2]``: spikes, and spikes + gradient-only slots, of which events have none."""
    return torch.from_numpy(np.ascontiguousarray(np.repeat(counts.T[..., None], 2, -1), dtype=np.int32))


class _Items(Sequence[Item]):
    """Several items of a data set, which become SparseSpikes where they are looked at, or all at once."""

    def __init__(self, samples: List[_Packed], labels: torch.Tensor, num_neurons: int) -> None:
        self._samples, self._labels, self._num_neurons = samples, labels, num_neurons

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Items(self._samples[index], self._labels[index], self._num_neurons)
        return _unpack([self._samples[index]], self._num_neurons), int(self._labels[index])

    def batch(self) -> Batch:
        return _unpack(self._samples, self._num_neurons), self._labels


class EventDataset(Dataset[Item]):
    """Recordings of events, each binned into time steps when it is asked for.

    Item ``i`` is ``(SparseSpikes [T, 1, S], label)``, with as many slots ``S`` as the recording's busiest step needs.
    Events behind the last step are left out and counted in ``SparseSpikes.outside``.

    Args:
        read: ``read(i)`` gives the times and the neuron ids of recording ``i``, as
            :meth:`~snnipu.SparseSpikes.from_events` takes them. Worker processes need one that can be pickled.
        labels: class of each recording, whole numbers from 0.
        num_steps, num_neurons, step, max_spikes, overflow, values: as in :meth:`~snnipu.SparseSpikes.from_events`;
            ``step`` in the unit of the times.
        cache: keep binned recordings in memory, 2 bytes per spike (4 from 65,537 neurons on) and 4 per step. Each
            worker process of a loader has its own cache, unless :meth:`preload` filled it before.

    Attributes:
        labels: int64 ``[samples]``; known without reading events.

    Raises:
        TypeError, ValueError: an argument is not as described, or what ``read`` gave cannot be binned.
    """

    def __init__(
        self,
        read: Reader,
        labels: Any,
        *,
        num_steps: int,
        num_neurons: int,
        step: float = 1,
        max_spikes: Optional[int] = None,
        overflow: str = "lowest",
        values: str = "binary",
        cache: bool = True,
    ) -> None:
        if not callable(read):
            raise TypeError(f"read must be a function of a recording's index, got {type(read).__name__}")
        self._read = read
        self.labels = torch.as_tensor(labels, dtype=torch.int64)
        if self.labels.dim() != 1:
            raise ValueError(f"labels must have one dimension, got shape {tuple(self.labels.shape)}")
        self.num_steps, self.num_neurons, self.step = num_steps, num_neurons, step
        self.max_spikes, self.overflow, self.values = max_spikes, overflow, values
        self._cache: Optional[List[Optional[_Packed]]] = [None] * len(self.labels) if cache else None
        self._bin([], [])  # wrong arguments are told here, not in a worker process

    def _bin(self, times: Any, units: Any) -> SparseSpikes:
        return SparseSpikes.from_events(
            times,
            units,
            num_steps=self.num_steps,
            num_neurons=self.num_neurons,
            step=self.step,
            max_spikes=self.max_spikes,
            overflow=self.overflow,
            values=self.values,
            outside="drop",
        )

    def _sample(self, index: Any) -> _Packed:
        at = operator.index(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"index {at} is out of range for {len(self)} recordings")
        at %= len(self)
        known = None if self._cache is None else self._cache[at]
        if known is not None:
            return known
        spikes = self._bin(*self._read(at))
        packed = _pack(spikes, binary=self.values == "binary", limited=self.max_spikes is not None)
        if self._cache is not None:
            self._cache[at] = packed
        return packed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Item:
        return _unpack([self._sample(index)], self.num_neurons), int(self.labels[index])

    def __getitems__(self, indices: Iterable[int]) -> Sequence[Item]:
        """Several items; a DataLoader fetches a batch this way."""
        indices = [operator.index(index) for index in indices]
        return _Items([self._sample(index) for index in indices], self.labels[indices], self.num_neurons)

    def batch(self, indices: Union[Iterable[int], torch.Tensor]) -> Batch:
        """``(SparseSpikes [T, B, S], labels int64 [B])`` of the recordings named, one or more.

        Raises:
            IndexError: an index is out of range.
            ValueError: there is no index.
        """
        indices = [operator.index(index) for index in indices]
        if not indices:
            raise ValueError("indices must name one recording or more, got none")
        return _unpack([self._sample(index) for index in indices], self.num_neurons), self.labels[indices]

    def preload(self) -> "EventDataset":
        """Read and bin every recording now, into the cache, which must not be off; returns the data set itself."""
        if self._cache is None:
            raise ValueError("preload needs a data set made with cache=True")
        for index in range(len(self)):
            self._sample(index)
        return self

    def __repr__(self) -> str:
        return f"EventDataset({len(self)} recordings, T={self.num_steps}, N={self.num_neurons}, step={self.step})"


@dataclass(frozen=True)
class EventData:
    """Labelled recordings of events, split into training and test set.

    Attributes:
        name: what the data set is called.
        train, test: the recordings; item ``i`` is ``(SparseSpikes [T, 1, S], label)``.
        num_neurons: inputs N.
        num_steps: time steps T.
        num_classes: number of classes.
        sensor_shape: ``(polarities, height, width)`` of an event camera, whose row-major index is the neuron id: event
            ``(p, y, x)`` comes from neuron ``(p * height + y) * width + x``. None for data of another kind.
    """

    name: str
    train: EventDataset
    test: EventDataset
    num_neurons: int
    num_steps: int
    num_classes: int
    sensor_shape: Optional[Tuple[int, ...]] = None


def _assemble(items: Sequence[Item]) -> Batch:
    if isinstance(items, _Items):
        return items.batch()
    spikes, labels = collate(list(items))  # a ConcatDataset, say
    return spikes, labels


def event_loader(
    dataset: "Dataset[Item]",
    batch_size: int = 1,
    shuffle: bool = False,
    generator: Optional[torch.Generator] = None,
    num_workers: int = 0,
    drop_last: bool = False,
    pin_memory: bool = False,
    batch_sampler: Optional[Iterable[List[int]]] = None,
) -> "DataLoader[Item]":
    """A ``DataLoader`` of batches ``(SparseSpikes [T, B, S], labels int64 [B])``; no dense frame is ever made.

    ``S`` is what the busiest step of the batch needs.

    Args:
        dataset: an :class:`EventDataset`, or a ``Subset`` or ``ConcatDataset`` of such.
        batch_size, shuffle, generator, num_workers, drop_last, pin_memory, batch_sampler: as in
            ``torch.utils.data.DataLoader``.

    Raises:
        ValueError: what ``torch.utils.data.DataLoader`` refuses.
    """
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        generator=generator,
        num_workers=num_workers,
        drop_last=drop_last,
        pin_memory=pin_memory,
        batch_sampler=batch_sampler,  # type: ignore[arg-type]
        collate_fn=_assemble,
        # Workers keep what they have cached.
        persistent_workers=num_workers > 0,
    )


__all__ = ["EventData", "EventDataset", "event_loader"]
