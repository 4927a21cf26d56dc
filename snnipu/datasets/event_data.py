"""The common form of all event data sets: recordings binned into SparseSpikes, one by one or in batches."""

import operator
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from snnipu.datasets._disk_cache import DiskCache
from snnipu.spikes import SparseSpikes, collate

Item = Tuple[SparseSpikes, int]
Batch = Tuple[SparseSpikes, torch.Tensor]
# Returns (times, units) of a recording, one entry per event.
Reader = Callable[[int], Tuple[Any, Any]]
# Values of the argument ``cache``: the places of binned recordings.
CACHES = (True, False, "memory", "disk")


class _PackedRecording(NamedTuple):
    """A binned recording without padding, the form that the cache stores."""

    counts: np.ndarray  # int32 [T]: spikes of each step
    ids: np.ndarray  # uint16 or int32: the neurons, by step and then by id
    values: Optional[np.ndarray]  # float32, as ids; None: every spike is 1
    dropped: Optional[np.ndarray]  # int32 [T]: spikes dropped because of max_spikes; None: no max_spikes
    outside: int


def _pack(spikes: SparseSpikes, binary: bool, limited: bool) -> _PackedRecording:
    """Pack one sample in which every used slot is a spike, as after binning."""
    counts = spikes.counts[:, 0, 0].numpy()
    used = np.arange(spikes.capacity) < counts[:, None]
    ids = spikes.ids[:, 0].numpy()[used].astype(_ids_type(spikes.num_neurons))
    values = None if binary else spikes.values[:, 0].numpy()[used]
    dropped = spikes.dropped[:, 0, 0].numpy() if limited and spikes.dropped is not None else None
    return _PackedRecording(np.ascontiguousarray(counts), ids, values, dropped, spikes.outside)


def _ids_type(num_neurons: int) -> Any:
    return np.uint16 if num_neurons <= 2**16 else np.int32


def _to_bytes(packed: _PackedRecording) -> bytes:
    head = np.array([packed.outside, len(packed.ids)], np.int64)
    parts = (head, packed.counts, packed.ids, packed.values, packed.dropped)
    return b"".join(part.tobytes() for part in parts if part is not None)


def _from_bytes(content: bytes, num_neurons: int, num_steps: int, binary: bool, limited: bool) -> _PackedRecording:
    """Invert :func:`_to_bytes` with the same settings."""
    outside, spikes = np.frombuffer(content, np.int64, 2).tolist()
    parts, offset = [], 16
    for dtype, count in (
        (np.int32, num_steps),
        (_ids_type(num_neurons), spikes),
        (np.float32, 0 if binary else spikes),
        (np.int32, num_steps if limited else 0),
    ):
        parts.append(np.frombuffer(content, dtype, count, offset))
        offset += parts[-1].nbytes
    counts, ids, values, dropped = parts
    return _PackedRecording(counts, ids, None if binary else values, dropped if limited else None, outside)


def _unpack(samples: Sequence[_PackedRecording], num_neurons: int) -> SparseSpikes:
    """Return the samples as one batch, with as many slots as its busiest step needs."""
    counts = np.stack([sample.counts for sample in samples])  # [B, T]
    slots = int(counts.max()) if counts.size else 0
    used = np.arange(slots, dtype=np.int32) < counts[..., None]  # [B, T, S], in the order of the spikes
    ids = np.zeros(used.shape, samples[0].ids.dtype)
    ids[used] = np.concatenate([sample.ids for sample in samples])
    values = used
    if samples[0].values is not None:
        values = np.zeros(used.shape, np.float32)
        values[used] = np.concatenate([sample.values for sample in samples if sample.values is not None])
    dropped = None
    if samples[0].dropped is not None:
        dropped = _pairs(np.stack([sample.dropped for sample in samples if sample.dropped is not None]))
    return SparseSpikes._trusted(
        torch.from_numpy(np.ascontiguousarray(ids.transpose(1, 0, 2), dtype=np.int32)),
        torch.from_numpy(np.ascontiguousarray(values.transpose(1, 0, 2), dtype=np.float32)),
        _pairs(counts),
        num_neurons,
        dropped,
        sum(sample.outside for sample in samples),
    )


def _pairs(counts: np.ndarray) -> torch.Tensor:
    """Return spikes ``[B, T]`` as two equal counts ``[T, B, 2]``: events have no gradient-only slots."""
    return torch.from_numpy(np.ascontiguousarray(np.repeat(counts.T[..., None], 2, -1), dtype=np.int32))


def _within(index: int, total: int) -> int:
    if not -total <= index < total:
        raise IndexError(f"index {index} is out of range for {total} recordings")
    return index % total


class _Items(Sequence[Item]):
    """Items of a data set that become SparseSpikes on access, or all at once as a batch."""

    def __init__(self, samples: List[_PackedRecording], labels: torch.Tensor, num_neurons: int) -> None:
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
    """A data set of recorded events, each binned into time steps on access.

    Item ``i`` is ``(SparseSpikes [T, 1, S], label)``, with as many slots ``S`` as the recording's busiest step needs.
    Events after the last step are dropped and counted in ``SparseSpikes.outside``.

    Args:
        read: ``read(i)`` returns the times and the neuron ids of recording ``i``, in the form of
            :meth:`~snnipu.SparseSpikes.from_events`. Worker processes need a function that can be pickled.
        labels: class of each recording, integers from 0.
        num_steps, num_neurons, step, max_spikes, overflow, values: arguments of
            :meth:`~snnipu.SparseSpikes.from_events`; ``step`` in the unit of the times.
        cache: place of binned recordings: in memory (``"memory"``), on the disk (``"disk"``), both (True), or none
            (False). They take 2 bytes per spike (4 from 65,537 neurons on) and 4 per step. Each worker process of a
            loader has its own memory, unless :meth:`preload` filled it before. All processes and later runs share the
            disk.
        cache_key: for the disk: a name of the function ``read``, different for different events. None: no cache on the
            disk.
        files: for the disk: the file of each recording, or one file for all. A changed file makes its binned recordings
            invalid.

    Attributes:
        labels: int64 ``[samples]``; known without reading events.
        num_steps, num_neurons, step: the arguments.
        cache_folder: folder of the binned recordings on the disk, below the environment variable
            ``SNNIPU_EVENT_CACHE``; None: no cache on the disk.

    Raises:
        TypeError, ValueError: a wrong argument, or a result of ``read`` that cannot be binned.
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
        cache: Union[bool, str] = True,
        cache_key: Optional[str] = None,
        files: Union[str, "os.PathLike[str]", Sequence[Any], None] = None,
    ) -> None:
        if not callable(read):
            raise TypeError(f"read must be a function of a recording's index, got {type(read).__name__}")
        self._read = read
        self.labels = torch.as_tensor(labels, dtype=torch.int64)
        if self.labels.dim() != 1:
            raise ValueError(f"labels must have one dimension, got shape {tuple(self.labels.shape)}")
        self._binning: Dict[str, Any] = {"num_steps": num_steps, "num_neurons": num_neurons, "step": step}
        self._binning.update(max_spikes=max_spikes, overflow=overflow, values=values)
        self._form = (num_neurons, num_steps, values == "binary", max_spikes is not None)
        if not (isinstance(cache, (bool, str)) and cache in CACHES):
            raise ValueError(f"cache must be True, False, 'memory' or 'disk', got {cache!r}")
        self._cache: Optional[List[Optional[_PackedRecording]]] = None
        if cache in (True, "memory"):
            self._cache = [None] * len(self.labels)
        self._disk: Optional[DiskCache] = None
        if cache == "disk" or (cache is True and (files is not None or cache_key is not None)):
            if files is None or not cache_key:
                raise ValueError("cache_key and files must both be given, for recordings that are kept on the disk")
            files = [files] * len(self) if isinstance(files, (str, os.PathLike)) else files
            if len(files) != len(self):
                raise ValueError(f"files must have one entry for each of {len(self)} recordings, got {len(files)}")
            self._disk = DiskCache({"key": cache_key, **self._binning}, [os.path.abspath(path) for path in files])
        self._bin([], [])  # raises for wrong arguments here instead of in a worker process

    @property
    def num_steps(self) -> int:
        return self._form[1]

    @property
    def num_neurons(self) -> int:
        return self._form[0]

    @property
    def step(self) -> float:
        step: float = self._binning["step"]
        return step

    @property
    def cache_folder(self) -> Optional[Path]:
        return None if self._disk is None else self._disk.path

    def _bin(self, times: Any, units: Any) -> SparseSpikes:
        return SparseSpikes.from_events(times, units, outside="drop", **self._binning)

    def _samples(self, indices: Iterable[Any]) -> List[_PackedRecording]:
        return [self._sample(_within(operator.index(index), len(self))) for index in indices]

    def _sample(self, index: int) -> _PackedRecording:
        packed = None if self._cache is None else self._cache[index]
        if packed is None:
            packed = self._from_disk(index)
        if self._cache is not None:
            self._cache[index] = packed
        return packed

    def _from_disk(self, index: int) -> _PackedRecording:
        """Return a recording from the disk's cache; read and bin it if the cache does not have it."""
        content, stamp = (None, None) if self._disk is None else self._disk.get(index)
        if content is not None:
            return _from_bytes(content, *self._form)
        packed = _pack(self._bin(*self._read(index)), *self._form[2:])
        if self._disk is not None:
            self._disk.put(index, stamp, _to_bytes(packed))
        return packed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Item:
        return _unpack(self._samples([index]), self.num_neurons), int(self.labels[index])

    def __getitems__(self, indices: Iterable[int]) -> Sequence[Item]:
        """Return several items; a DataLoader fetches a batch by this method."""
        indices = [operator.index(index) for index in indices]
        return _Items(self._samples(indices), self.labels[indices], self.num_neurons)

    def batch(self, indices: Union[Iterable[int], torch.Tensor]) -> Batch:
        """Return ``(SparseSpikes [T, B, S], labels int64 [B])`` of one or more recordings.

        Args:
            indices: indices of the recordings.

        Raises:
            IndexError: an index is out of range.
            ValueError: there is no index.
        """
        indices = [operator.index(index) for index in indices]
        if not indices:
            raise ValueError("indices must name one recording or more, got none")
        return _unpack(self._samples(indices), self.num_neurons), self.labels[indices]

    def preload(self) -> "EventDataset":
        """Read and bin every recording now, into the cache; return the data set itself.

        Raises:
            ValueError: the cache is off.
        """
        if self._cache is None and self._disk is None:
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
        name: name of the data set.
        train, test: the recordings; item ``i`` is ``(SparseSpikes [T, 1, S], label)``.
        num_neurons: inputs N.
        num_steps: time steps T.
        num_classes: number of classes.
        sensor_shape: ``(polarities, height, width)`` of an event camera, whose row-major index is the neuron id: event
            ``(p, y, x)`` comes from neuron ``(p * height + y) * width + x``. None for other data.
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
    spikes, labels = collate(list(items))  # for example items of a ConcatDataset
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
    """Return a ``DataLoader`` of batches ``(SparseSpikes [T, B, S], labels int64 [B])``, without dense frames.

    The number of slots ``S`` is that of the busiest step of the batch.

    Args:
        dataset: an :class:`EventDataset`, or a ``Subset`` or ``ConcatDataset`` of such data sets.
        batch_size, shuffle, generator, num_workers, drop_last, pin_memory, batch_sampler: arguments of
            ``torch.utils.data.DataLoader``.

    Raises:
        ValueError: wrong arguments for ``torch.utils.data.DataLoader``.
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
        # Persistent workers keep their caches in memory.
        persistent_workers=num_workers > 0,
    )
