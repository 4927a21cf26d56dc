"""EventDataset and event_loader, on synthetic recordings."""

import pickle

import numpy as np
import pytest
import torch
from support.tables import assert_refused, each_row
from torch.utils.data import ConcatDataset, DataLoader, Subset

from snnipu import SparseSpikes, datasets
from snnipu.spikes import collate

STEPS, NEURONS = 12, 50


class Recordings:
    """Random events for each index, some after the window; ``read`` lists the indices of all reads."""

    def __init__(self, neurons=NEURONS):
        self.neurons, self.read = neurons, []

    def __call__(self, index):
        self.read.append(index)
        random = np.random.default_rng(index)
        number = 20 * index  # the first is empty
        return random.integers(0, 11 * STEPS, number), random.integers(0, self.neurons, number)


def make(samples=9, neurons=NEURONS, **options):
    labels = [i % 4 for i in range(samples)]
    options = {"num_steps": STEPS, "num_neurons": neurons, "step": 10, **options}
    return datasets.EventDataset(Recordings(neurons), labels, **options)


def assert_same(actual, other):
    assert actual.num_neurons == other.num_neurons
    assert actual.outside == other.outside
    assert torch.equal(actual.counts, other.counts)
    for name in ("ids", "values"):
        assert getattr(actual, name).dtype == getattr(other, name).dtype
    assert torch.equal(actual.to_dense(), other.to_dense())
    assert actual.capacity == other.capacity
    assert actual.overflow == other.overflow


BINNING = {
    "binary": {},
    "count": {"values": "count"},
    "limited": {"max_spikes": 6},
    "rotate": {"max_spikes": 6, "overflow": "rotate", "values": "count"},
}
OPTIONS = {**BINNING, "many neurons": {"neurons": 100_000}, "uncached": {"cache": False}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_items_are_binned_recordings(options):
    dataset = make(**options)
    binning = {name: option for name, option in options.items() if name in ("values", "max_spikes", "overflow")}
    size = {"num_steps": STEPS, "num_neurons": dataset.num_neurons, "step": 10, "outside": "drop"}
    assert len(dataset) == 9
    for _ in range(2):  # the second time from the cache
        for index, (spikes, label) in enumerate(dataset):
            expected = SparseSpikes.from_events(*Recordings(dataset.num_neurons)(index), **size, **binning).trim()
            assert_same(spikes, expected)
            assert (type(label), label) == (int, index % 4)
    assert dataset[-1][0].num_spikes == dataset[8][0].num_spikes > 0


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_batches_are_joined_items(options):
    dataset = make(**options)
    for indices in ([5], [3, 0, 8, 3, -2], [0, 0], torch.tensor([7, 2])):
        spikes, labels = dataset.batch(indices)
        joined, expected = collate([dataset[int(index)] for index in indices])
        # The constructor checks ids and counts.
        SparseSpikes(spikes.ids, spikes.values, spikes.counts, spikes.num_neurons, dropped=spikes.dropped)
        assert_same(spikes, joined.trim())
        used = torch.arange(spikes.capacity) < spikes.counts[..., 1:]
        assert torch.equal(spikes.ids[used], joined.trim().ids[used])
        assert spikes.values[~used].eq(0).all()
        assert torch.equal(labels, expected)
        assert labels.dtype == torch.int64
    assert dataset.batch(range(9))[0].outside > 0
    assert (dataset.batch(range(9))[0].overflow > 0) == ("max_spikes" in options)


@pytest.mark.parametrize("index", [9, -10])
def test_index_out_of_range(index):
    dataset = make()
    with pytest.raises(IndexError, match=f"index {index} is out of range for 9 recordings"):
        dataset[index]
    with pytest.raises(IndexError, match="out of range"):
        dataset.batch([0, index])
    with pytest.raises(ValueError, match="indices must name one"):
        dataset.batch([])
    with pytest.raises(TypeError):
        dataset[0.5]


def test_cache():
    dataset = make()
    assert dataset._read.read == []  # labels are known without reading
    assert dataset.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert dataset.labels.dtype == torch.int64
    dataset[2], dataset[2], dataset[-7], dataset.batch([2, 3])
    assert dataset._read.read == [2, 3]
    assert dataset.preload() is dataset
    dataset.preload()
    assert sorted(dataset._read.read) == list(range(9))
    uncached = make(cache=False)
    uncached[2], uncached[2]
    assert uncached._read.read == [2, 2]
    with pytest.raises(ValueError, match=r"preload needs .*cache=True"):
        uncached.preload()


def test_changing_an_item_does_not_change_the_cache():
    dataset = make(values="count")
    before = dataset[8][0].clone()
    spikes = dataset[8][0]
    spikes.values.fill_(7), spikes.ids.fill_(0), spikes.counts.fill_(0)
    assert_same(dataset[8][0], before)


def test_pickle():
    dataset = make(max_spikes=6)
    dataset[5]
    copy = pickle.loads(pickle.dumps(dataset))
    copy[5]
    assert copy._read.read == [5]  # the copy includes the cache
    assert_same(copy.batch(range(9))[0], dataset.batch(range(9))[0])
    assert repr(copy) == "EventDataset(9 recordings, T=12, N=50, step=10)"


@each_row("""
make(step=0) | ValueError: ^step must be
make(num_steps=-1) | ValueError: ^num_steps must be
make(num_neurons=1.5) | TypeError: ^num_neurons must be
make(values="sum") | ValueError: ^values must be
make(overflow="highest") | ValueError: ^overflow must be
make(max_spikes=-1) | ValueError: ^max_spikes must be
datasets.EventDataset([1], [0], num_steps=1, num_neurons=1) | TypeError: read must be a function
datasets.EventDataset(Recordings(), [[0]], num_steps=1, num_neurons=1) | ValueError: labels must have one dimension
""")
def test_wrong_arguments(row):
    assert_refused(row, globals())


def samples_of(loader):
    """Return spikes per sample and labels of all batches, in order."""
    batches = list(loader)
    for spikes, labels in batches:
        assert spikes.shape == (STEPS, len(labels), NEURONS)
        assert spikes.capacity == spikes.counts[..., 1].max()
    return [(int(n), int(label)) for spikes, labels in batches for n, label in zip(spikes.counts.sum((0, 2)), labels)]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda dataset: dataset,
        lambda dataset: Subset(Subset(dataset, range(9)), list(range(9))),
        lambda dataset: ConcatDataset([dataset, make(0)]),
    ],
    ids=["dataset", "subset", "concatenation"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_loader_gives_every_recording_once(wrap, workers):
    dataset = make()
    loader = datasets.event_loader(wrap(dataset), 4, num_workers=workers)
    expected = [(2 * spikes.num_spikes, label) for spikes, label in make()]
    assert len(loader) == 3
    assert loader.batch_size == 4
    assert loader.persistent_workers == (workers > 0)  # they keep their caches
    assert samples_of(loader) == expected
    assert samples_of(loader) == expected
    shuffled = datasets.event_loader(wrap(dataset), 4, shuffle=True, generator=torch.Generator().manual_seed(1))
    first, second = samples_of(shuffled), samples_of(shuffled)
    assert first != second
    assert sorted(first) == sorted(second) == sorted(expected)
    again = datasets.event_loader(wrap(dataset), 4, shuffle=True, generator=torch.Generator().manual_seed(1))
    assert samples_of(again) == first
    assert len(samples_of(datasets.event_loader(wrap(dataset), 4, drop_last=True))) == 8


def test_workers_start_from_what_was_preloaded():
    dataset = make().preload()
    dataset._read = None  # a read would raise an error
    assert len(samples_of(datasets.event_loader(dataset, 3, num_workers=1))) == 9


def test_plain_loader():
    """PyTorch's own loader works, too."""
    dataset = make()
    for (spikes, labels), (expected, expected_labels) in zip(
        DataLoader(dataset, 4, collate_fn=collate), datasets.event_loader(dataset, 4)
    ):
        assert_same(spikes.trim(), expected)
        assert torch.equal(labels, expected_labels)
    fetched = dataset.__getitems__([3, 4, 5])
    assert [label for _, label in fetched] == [3, 0, 1]
    assert [label for _, label in fetched[1:]] == [0, 1]
