"""poptorch.DataLoader: sizes, order, processes and the asynchronous modes."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from support.poptorch_models import evaluated, model_of, options, refused, warnings_in
from support.tables import each_row
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset

from snnipu import poptorch
from snnipu.poptorch import AsynchronousDataAccessor, DataLoader, DataLoaderMode

every_mode = pytest.mark.parametrize("mode", list(DataLoaderMode))


def dataset(n=50):
    return TensorDataset(torch.arange(n), torch.arange(n) * 2.0)


class Counting(IterableDataset):
    def __init__(self, n=50):
        self.n = n

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.n, step))

    def __len__(self):
        return self.n


@every_mode
@pytest.mark.parametrize(
    ("iterations", "replicas", "accumulation", "batch_size", "combined"),
    [(1, 1, 1, 1, 1), (1, 1, 1, 4, 4), (2, 3, 2, 2, 24), (5, 1, 1, 2, 10)],
)
def test_batches_hold_the_inputs_of_a_call(mode, iterations, replicas, accumulation, batch_size, combined):
    loader = DataLoader(options(iterations, replicas, accumulation), dataset(), batch_size, mode=mode)
    assert loader.combinedBatchSize == combined
    assert len(loader) == 50 // combined
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == 50 // combined
        assert torch.equal(torch.cat([batch[0] for batch in batches]), torch.arange(50 // combined * combined))
        assert all(torch.equal(batch[1], batch[0] * 2.0) for batch in batches)
    loader.terminate()


@every_mode
def test_the_last_batch_is_kept_on_request(mode, caplog):
    with warnings_in(caplog):
        loader = DataLoader(options(3), dataset(), 5, drop_last=False, mode=mode)
    assert "50 elements do not divide by the combined batch size of 15" in caplog.text
    assert len(loader) == 4
    assert [len(batch[0]) for batch in loader] == [15, 15, 15, 5]


def test_a_batch_feeds_a_model():
    def forward(self, n, x):
        assert n.shape == (4,)
        return x * 2

    opts = options(3, 2)
    model = poptorch.inferenceModel(model_of(forward), opts)
    for n, x in DataLoader(opts, dataset(48), batch_size=4):
        assert torch.equal(model(n, x), x * 2)


def test_replicas_that_share_an_input_need_fewer_elements():
    opts = options(replicas=4).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    assert DataLoader(opts, dataset(), batch_size=3).combinedBatchSize == 6


def test_options_are_frozen_by_a_loader():
    opts = options()
    loader = DataLoader(opts, dataset())
    assert loader.options is opts
    for change in (lambda: opts.deviceIterations(2), lambda: loader.options.Training.gradientAccumulation(2)):
        with refused("frozen"):
            change()


@every_mode
def test_shuffling_yields_each_element_once(mode):
    torch.manual_seed(0)
    loader = DataLoader(options(5), dataset(), batch_size=2, shuffle=True, mode=mode)
    first, second = (torch.cat([batch[0] for batch in loader]) for _ in range(2))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(50))
    assert not torch.equal(first, second)


def test_workers_read_the_same_batches():
    loader = DataLoader(options(5), dataset(), batch_size=2, num_workers=2)
    assert loader.persistent_workers
    for _ in range(2):
        assert torch.equal(torch.cat([batch[0] for batch in loader]), torch.arange(50))


@every_mode
def test_workers_end_with_their_loader(mode):
    """The garbage collector would wait 5 s for each worker, so references must free the loader."""
    loader = DataLoader(options(5), dataset(), batch_size=2, num_workers=1, mode=mode)
    assert sum(1 for _ in loader) == 5
    reference = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert reference() is None
    finally:
        gc.enable()


@every_mode
def test_iterating_without_keeping_the_loader(mode):
    batches = iter(DataLoader(options(5), dataset(), batch_size=2, mode=mode))
    assert len(list(batches)) == 5


@every_mode
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_copies_iterate_independently(again, mode):
    loader = DataLoader(options(5), dataset(), batch_size=2, mode=mode)
    list(loader)
    other = again(loader)
    del loader
    assert len(list(other)) == len(list(other)) == 5


def test_without_a_batch_size_elements_are_not_batched():
    loader = DataLoader(options(5), dataset(3), batch_size=None)
    assert loader.combinedBatchSize is None
    assert [int(n) for n, _ in loader] == [0, 1, 2]


@every_mode
@pytest.mark.parametrize("drop_last", [True, False])
def test_a_batch_sampler_gives_micro_batches(drop_last, mode):
    sampler = BatchSampler(SequentialSampler(range(29)), batch_size=4, drop_last=True)
    loader = DataLoader(options(5), dataset(), batch_sampler=sampler, drop_last=drop_last, mode=mode)
    assert loader.combinedBatchSize == 20
    assert [len(batch[0]) for batch in loader] == ([20] if drop_last else [20, 8])
    assert len(loader) == (1 if drop_last else 2)


# Several processes.


def shares(processes, **arguments):
    loaders = []
    for process in range(processes):
        opts = options(2).randomSeed(1)
        opts.Distributed.configureProcessId(process, processes)
        loaders.append(DataLoader(opts, dataset(), batch_size=4, **arguments))
    return loaders


def read(loader):
    return [int(n) for batch in loader for n in batch[0]]


def test_processes_share_a_dataset():
    loaders = shares(2)
    assert [len(loader) for loader in loaders] == [3, 3]
    assert read(loaders[0]) == list(range(24))
    assert read(loaders[1]) == list(range(24, 48))


def test_processes_share_all_of_a_dataset_on_request():
    loaders = shares(3, drop_last=False)
    assert [n for loader in loaders for n in read(loader)] == list(range(50))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_shuffling_processes_read_different_elements_and_in_time_all(num_workers):
    loaders = shares(2, shuffle=True, num_workers=num_workers)
    seen = set()
    for _ in range(20):
        first, second = read(loaders[0]), read(loaders[1])
        assert len(set(first) | set(second)) == 48
        seen |= set(first) | set(second)
    assert seen == set(range(50))


# Asynchronous modes and iterable datasets.


@every_mode
def test_an_iterable_dataset(mode):
    loader = DataLoader(options(3), Counting(), batch_size=4, mode=mode)
    assert len(loader) == 4
    for _ in range(2):
        batches = list(loader)
        assert torch.equal(torch.cat(batches), torch.arange(48))


def test_rebatching_loses_nothing_at_the_workers_ends():
    plain = DataLoader(options(3), Counting(), batch_size=4, num_workers=2)
    assert sum(len(batch) for batch in plain) == 48
    lossy = DataLoader(options(5), Counting(), batch_size=4, num_workers=2)
    assert sum(len(batch) for batch in lossy) == 40
    loader = DataLoader(
        options(5),
        Counting(39 + 6),
        batch_size=4,
        num_workers=2,
        mode=DataLoaderMode.AsyncRebatched,
        rebatched_worker_size=3,
        drop_last=False,
    )
    batches = list(loader)
    assert [len(batch) for batch in batches] == [20, 20, 5]
    assert sorted(torch.cat(batches).tolist()) == list(range(45))


def test_workers_without_an_init_function_warn(caplog):
    with warnings_in(caplog):
        DataLoader(options(), Counting(), num_workers=2)
    assert "each element is read 2 times" in caplog.text


def test_an_accessor_iterates_again_and_again_until_terminated():
    accessor = AsynchronousDataAccessor(DataLoader(options(2), dataset(8), batch_size=2))
    assert len(accessor) == 2
    for _ in range(2):
        assert [batch[0].tolist() for batch in accessor] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    iterator = iter(accessor)
    assert next(iterator)[0].tolist() == [0, 1, 2, 3]
    assert next(iter(accessor))[0].tolist() == [0, 1, 2, 3]
    accessor.terminate()
    with refused("has been terminated"):
        iter(accessor)


def test_an_accessor_of_any_iterable_can_rebatch():
    accessor = AsynchronousDataAccessor(list(torch.arange(10.0).split(3)), rebatched_size=4)
    assert [batch.tolist() for batch in accessor] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    big = AsynchronousDataAccessor([torch.arange(10)], rebatched_size=4)
    assert [batch.tolist() for batch in big] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@each_row(r"""
DataLoader({}, dataset()) | DataLoader: options: expected a poptorch\.Options, got {} of type dict
DataLoader(options(), dataset(), 0) | batch_size: expected an int of at least 1
DataLoader(options(), dataset(), mode='Async') | mode: expected one of DataLoaderMode.Sync
DataLoader(options(), dataset(), 2, batch_sampler=[[1, 2]]) | batch_sampler excludes batch_size and shuffle
DataLoader(options(2), dataset(), 2, mode=DataLoaderMode.AsyncRebatched, rebatched_worker_size=5)
    | rebatched_worker_size 5 is above the combined batch size 4
DataLoader(options(2), dataset(), 2, mode=DataLoaderMode.Async, async_options={'rebatched_size': 2})
    | async_options cannot set rebatched_size
AsynchronousDataAccessor(DataLoader(options(), dataset(), mode=DataLoaderMode.Async))
    | the DataLoader is asynchronous already
AsynchronousDataAccessor(DataLoader(options(), dataset(), 3, drop_last=False)) | drop_last=False needs rebatched_size
AsynchronousDataAccessor([1], buffer_size=0) | buffer_size: expected an int of at least 1
AsynchronousDataAccessor([1], sharing_strategy=3) | expected one of SharingStrategy
""")
def test_wrong_arguments_are_named(row):
    call, message = row.split(" | ")
    with refused(message):
        evaluated(call, options=options, dataset=dataset)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle": True}, r"shuffling in several processes needs poptorch\.Options\.randomSeed"),
        ({"batch_size": None}, "batch_size=None does not go with auto_distributed_partitioning"),
        ({"batch_sampler": [[0]]}, "batch_sampler excludes auto_distributed_partitioning"),
        ({"dataset": Counting()}, "does not support an IterableDataset"),
        ({"batch_size": 30}, "less than one combined batch of 30 for each of 2 processes"),
    ],
)
def test_arguments_that_partitioning_excludes(arguments, message):
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(0, 2)
    with refused(message):
        DataLoader(opts, **{"dataset": dataset(), **arguments})
