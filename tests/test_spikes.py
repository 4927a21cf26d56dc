"""``snnipu.SparseSpikes``."""

import collections
import copy
import dataclasses
import importlib.util
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.utils._pytree as pytree
from oracle import at_slots, densified, random_spikes
from support.tables import assert_refused, each_row
from torch.utils.data import DataLoader, Dataset

import snnipu as snn
from snnipu import SparseSpikes
from snnipu.spikes import collate


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def parts(**changes):
    """Return arguments of the constructor for 2 steps, 3 samples and 4 slots of 5 neurons."""
    arguments = {
        "ids": torch.arange(4, dtype=torch.int32).repeat(2, 3, 1),
        "values": torch.ones(2, 3, 4),
        "counts": torch.tensor([2, 3], dtype=torch.int32).repeat(2, 3, 1),
        "num_neurons": 5,
    }
    return {**arguments, **changes}


def changed(name, at, value):
    """Return the arguments with one element changed."""
    arguments = parts()
    tensor = arguments[name].clone()
    tensor[at] = value
    return {**arguments, name: tensor}


def assert_equal(actual, expected):
    """Compare all parts, padding included."""
    for name in ("ids", "values", "counts", "dropped"):
        part, other = getattr(actual, name), getattr(expected, name)
        assert (part is None) == (other is None), name
        if part is not None:
            assert part.dtype == other.dtype, name
            assert torch.equal(part, other), name
    assert actual.num_neurons == expected.num_neurons
    assert actual.outside == expected.outside


def clean(*arguments, **keywords):
    """Return random spikes whose padding is 0, so that they equal their copies."""
    spikes = random_spikes(*arguments, graded=True, **keywords)
    used = torch.arange(spikes.capacity) < spikes.counts[..., 1:]
    zero = torch.zeros((), dtype=spikes.dtype)
    dropped = torch.randint(0, 3, spikes.counts.shape, dtype=torch.int32)
    values = torch.where(used, spikes.values, zero)
    return SparseSpikes(torch.where(used, spikes.ids, 0), values, spikes.counts, spikes.num_neurons, dropped=dropped)


# ---- the constructor


def test_constructor():
    spikes = SparseSpikes(**parts())
    assert spikes.shape == torch.Size([2, 3, 5])
    assert (spikes.num_steps, spikes.batch_size, spikes.num_neurons, spikes.capacity) == (2, 3, 5, 4)
    assert len(spikes) == 2
    assert spikes.dtype == torch.float32
    assert spikes.device == torch.device("cpu")
    assert not spikes.requires_grad
    assert spikes.num_spikes == 12
    assert spikes.activity == 12 / 30
    assert spikes.overflow == 0
    assert spikes.dropped is None
    assert spikes.outside == 0
    dropped = torch.tensor([2, 7], dtype=torch.int32).repeat(2, 3, 1)
    assert SparseSpikes(**parts(), dropped=dropped).overflow == 12
    assert isinstance(snn.SparseSpikes(**parts()), SparseSpikes)


@each_row(r"""
build(parts(values=torch.ones(2, 3, 5))) | ValueError: values must have shape \(2, 3, 4\).* got \(2, 3, 5\)
build(parts(counts=torch.ones(2, 3).int())) | ValueError: counts must have shape \(2, 3, 2\).* got \(2, 3\)
build(parts(dropped=torch.zeros(2, 3).int())) | ValueError: dropped must have shape \(2, 3, 2\)
build(parts(num_neurons=0)) | ValueError: num_neurons must be from 1 to .*, got 0
build(parts(values=torch.ones(2, 3, 4, device="meta"))) | ValueError: values must be on the device of ids, cpu
build(parts(counts=torch.ones(2, 3, 2, device="meta").int())) | ValueError: counts must be on the device of ids
build(changed("ids", (1, 2, 1), 5)) | ValueError: ids must be from 0 to 4, got 5 at step 1, sample 2, slot 1
build(changed("ids", (0, 0, 0), -1)) | ValueError: ids must be from 0 to 4, got -1
build(changed("ids", (1, 0, 2), 1)) | ValueError: ids must not name a neuron twice in a step: step 1, sample 0
build(changed("counts", (1, 1, 0), -1)) | ValueError: counts must satisfy .*, got \[-1, 3\] at step 1, sample 1
build(changed("counts", (1, 1, 1), 5)) | ValueError: counts must satisfy 0 <= spikes <= carried <= 4 slots, got
build(parts(ids=[[[0]]])) | TypeError: ids must be a torch.Tensor, got list
build(parts(ids=torch.zeros(2, 3, 4, dtype=torch.int64))) | TypeError: ids must be int32, got torch.int64
build(parts(values=torch.ones(2, 3, 4).half())) | TypeError: values must be float32 or float64, got torch.float16
build(parts(counts=torch.ones(2, 3, 2))) | TypeError: counts must be int32, got torch.float32
build(parts(num_neurons=5.0)) | TypeError: num_neurons must be an int, got 5.0
""")
def test_bad_arguments(row):
    assert_refused(row, globals(), build=lambda arguments: SparseSpikes(**arguments))


def test_padding_may_hold_anything():
    for value in (1, 5, -1, 2**31 - 1, -(2**31)):
        arguments = changed("ids", (1, 2, 3), value)
        arguments["values"] = arguments["values"].clone()
        arguments["values"][1, 2, 3] = float("nan")
        spikes = SparseSpikes(**arguments)
        assert torch.isfinite(spikes.to_dense()).all()
        assert torch.isfinite(spikes.spike_count()).all()
        assert torch.isfinite(spikes.limit(2).to_dense()).all()


def saved(spikes):
    file = io.BytesIO()
    torch.save({"spikes": spikes}, file)
    file.seek(0)
    return file


@pytest.mark.skipif(
    not hasattr(torch.serialization, "add_safe_globals"),
    reason=f"PyTorch {torch.__version__} has no list of safe classes for weights_only=True, 2.4 has",
)
def test_files_of_weights_may_hold_spikes():
    for spikes_in in (
        capped(5),
        SparseSpikes.from_events([0, 1, 9], [0, 2, 1], num_steps=5, num_neurons=3, outside="drop"),
    ):
        loaded = torch.load(saved(spikes_in), weights_only=True)["spikes"]
        assert_equal(loaded, spikes_in)
        assert (loaded.outside, loaded.overflow) == (spikes_in.outside, spikes_in.overflow)


def capped(slots):
    return SparseSpikes.from_dense((torch.rand(4, 3, 20) < 0.3).float(), max_spikes=slots)


def damaged(**changes):
    """Return spikes that the constructor would refuse."""
    spikes = SparseSpikes(**parts())
    for name, value in changes.items():
        setattr(spikes, name, value)
    return spikes


@each_row("""
damaged(ids=changed("ids", (1, 2, 0), 5)["ids"]) | ids must be from 0 to 4, got 5 at step 1, sample 2
damaged(counts=changed("counts", (0, 0, 1), 9)["counts"]) | counts must satisfy
damaged(num_neurons=2.0) | num_neurons must be an int
damaged(values=None) | values must be a torch.Tensor
damaged(outside=-1) | outside must be an int of 0 or more
""")
def test_damaged_spikes_are_not_loaded(row):
    def weights_only(file):
        return torch.load(file, **({"weights_only": True} if hasattr(torch.serialization, "add_safe_globals") else {}))

    call, message = row.split(" | ")
    spikes = eval(call)
    for load in (lambda: pickle.loads(pickle.dumps(spikes)), lambda: weights_only(saved(spikes))):
        with pytest.raises((TypeError, ValueError, pickle.UnpicklingError), match=message):
            load()


@pytest.mark.parametrize("state", [None, {}, {"ids": torch.zeros(1, 1, 1)}, {**parts(), "dropped": None, "more": 1}])
def test_a_saved_state_of_other_parts_is_refused(state):
    with pytest.raises(ValueError, match="saved SparseSpikes must hold"):
        SparseSpikes.__new__(SparseSpikes).__setstate__(state)


def test_an_operators_floats_are_saved_as_integers():
    """A PopART operator's ids, counts and dropped are floats."""
    spikes = capped(3)
    floats = spikes._trusted(spikes.ids.float(), spikes.values, spikes.counts.float(), 20, spikes.dropped.float())
    assert_equal(pickle.loads(pickle.dumps(floats)), spikes)
    assert copy.deepcopy(floats).ids.is_floating_point()


def test_workers_hand_spikes_over_unchecked(monkeypatch):
    monkeypatch.setattr(snn.spikes, "_check_contents", None)
    spikes = SparseSpikes._trusted(**parts())
    unpickled = pickle.loads(bytes(ForkingPickler.dumps(spikes)))
    assert_equal(unpickled, spikes)
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(spikes))


def test_a_node_of_pytrees():
    spikes = capped(3)
    spikes.outside = 2
    leaves, structure = pytree.tree_flatten({"a": [spikes], "b": torch.ones(1)})
    assert len(leaves) == 5
    (back,) = pytree.tree_unflatten(leaves, structure)["a"]
    assert_equal(back, spikes)
    assert back.outside == 2
    doubled = pytree.tree_map(lambda x: x * 2, spikes)
    assert torch.equal(doubled.values, 2 * spikes.values)
    nothing_dropped = SparseSpikes(**parts())
    assert pytree.tree_map(lambda x: x, nothing_dropped).dropped is None
    if hasattr(pytree, "treespec_dumps"):
        assert pytree.treespec_loads(pytree.treespec_dumps(structure)) == structure
    replaced = dataclasses.replace(spikes, values=spikes.values + 1)
    assert torch.equal(replaced.values, spikes.values + 1)


@pytest.mark.skipif(importlib.util.find_spec("optree") is None, reason="the C++ pytree needs optree")
def test_a_node_of_c_plus_plus_pytrees():
    cxx = pytest.importorskip("torch.utils._cxx_pytree")
    spikes = SparseSpikes(**parts())
    leaves, structure = cxx.tree_flatten([spikes])
    assert any(leaf is spikes.values for leaf in leaves)
    assert_equal(cxx.tree_unflatten(leaves, structure)[0], spikes)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_empty(shape):
    ids = torch.zeros(shape, dtype=torch.int32)
    spikes = SparseSpikes(ids, ids.float(), torch.zeros(*shape[:2], 2, dtype=torch.int32), 5)
    assert spikes.num_spikes == 0
    assert spikes.activity == 0.0
    assert spikes.trim().capacity == 0
    assert spikes.spike_count().shape == (shape[1], 5)
    assert spikes.limit(2).shape == spikes.shape
    assert SparseSpikes.cat([spikes, spikes]).batch_size == 2 * shape[1]
    assert "0 spikes" in repr(spikes)


# ---- dense, and counts


def test_from_dense_and_back():
    x = torch.zeros(2, 1, 4)
    x[0, 0, 1], x[1, 0, 3], x[1, 0, 0] = 1, 2, 1
    spikes = SparseSpikes.from_dense(x)
    assert spikes.ids.tolist() == [[[1, 0]], [[0, 3]]]
    assert spikes.counts.tolist() == [[[1, 1]], [[2, 2]]]
    assert torch.equal(spikes.to_dense(), x)
    capped = SparseSpikes.from_dense(x, 1)
    assert capped.overflow == 1
    assert capped.to_dense().sum() == 2
    assert SparseSpikes.from_dense(x, 1, overflow="rotate").ids.tolist() == [[[1]], [[3]]]
    with pytest.raises(ValueError, match="overflow must be"):
        SparseSpikes.from_dense(x, 1, overflow="first")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spike_count(dtype):
    spikes = random_spikes(5, 3, 20, 0.4, 0.2, graded=True, dtype=dtype).requires_grad_()
    counts = spikes.spike_count()
    assert counts.dtype == dtype
    assert torch.equal(counts, densified(spikes.values, spikes).sum(0))
    upstream = torch.randn(3, 20, dtype=dtype)
    counts.backward(upstream)
    assert torch.equal(spikes.values.grad, at_slots(upstream.expand(5, 3, 20), spikes))
    loss = (spikes.spike_count() * upstream).square().sum() / 2
    (gradient,) = torch.autograd.grad(loss, spikes.values, create_graph=True)
    (twice,) = torch.autograd.grad(gradient.sum(), spikes.values)
    times = at_slots(torch.ones(5, 3, 20, dtype=dtype), spikes)
    of_count = densified(times, spikes).sum(0) * upstream.square()
    torch.testing.assert_close(twice, at_slots(of_count.expand(5, 3, 20), spikes))


def test_spike_count_of_changed_spikes_is_refused():
    spikes = random_spikes(5, 3, 20, 0.4)
    spikes.ids[2, 1, 0] = 20
    with pytest.raises(ValueError, match="ids must be from 0 to 19, got 20"):
        spikes.spike_count()


def test_spike_count_in_a_transform():
    spikes = random_spikes(5, 3, 20, 0.4, graded=True)

    def count(values):
        return SparseSpikes._trusted(spikes.ids, values, spikes.counts, 20).spike_count()

    tangent = torch.randn_like(spikes.values)
    total, derivative = torch.func.jvp(count, (spikes.values,), (tangent,))
    assert torch.equal(total, spikes.spike_count())
    assert torch.equal(derivative, count(tangent))


# ---- parts and copies


@pytest.mark.parametrize(
    "index",
    [
        slice(1, 4),
        slice(None, None, 2),
        slice(-2, None),
        slice(9, 9),
        (slice(None), slice(1, 3)),
        (slice(2, 5), slice(None, None, 2)),
        [0, 4, 0],
        (slice(None), [2, 0]),
        ([3, 1], [1]),
        (slice(None), []),
        torch.tensor([5, 1]),
        (slice(None), torch.tensor([True, False, True])),
        ([True, False, False, True, True, False],),
    ],
    ids=str,
)
def test_indexing(index):
    spikes = clean(6, 3, 20)
    dense, dropped = spikes.to_dense(), spikes.dropped
    part = spikes[index]
    for position, selector in enumerate(index if isinstance(index, tuple) else (index,)):
        selector = (
            torch.as_tensor(selector, dtype=torch.int64 if selector == [] else None)
            if isinstance(selector, list)
            else selector
        )
        at = (slice(None),) * position + (selector,)
        dense, dropped = dense[at], dropped[at]
    assert torch.equal(part.to_dense(), dense)
    assert torch.equal(part.dropped, dropped)
    assert part.num_neurons == 20
    assert part.shape == dense.shape


@each_row(r"""
spikes[0] | TypeError: use 0:1 in place of 0
spikes[None] | TypeError: slices, lists and tensors as indices, got NoneType
spikes[:, 2] | TypeError: use 2:3 in place of 2
spikes[:, :, :] | IndexError: two dimensions to index, time and batch, got 3
spikes[torch.zeros(2, 2, dtype=torch.int64)] | TypeError: tensors of one dimension as indices, got 2
spikes[[9]] | IndexError: out of bounds
spikes.cat([]) | TypeError: parts must be one or more SparseSpikes
spikes.cat([torch.zeros(3)]) | TypeError: parts must be one or more SparseSpikes, got \['Tensor'\]
spikes.cat([spikes, spikes[:4]]) | ValueError: parts must agree in time steps and neurons
spikes.cat([spikes, clean(6, 1, 5)]) | ValueError: got \[\(6, 5\), \(6, 20\)\]
spikes.limit(-1) | ValueError: max_spikes must be
spikes.limit(1.5) | TypeError: max_spikes must be
spikes.limit(True) | TypeError: max_spikes must be
spikes.limit(None) | TypeError: max_spikes must be
spikes.limit(2, overflow="highest") | ValueError: overflow must be
""")
def test_bad_indices_parts_and_limits(row):
    assert_refused(row, globals(), spikes=clean(6, 3, 20))


def test_a_part_has_the_gradient_of_the_whole():
    spikes = random_spikes(6, 3, 20).requires_grad_()
    spikes[2:4, [0, 2]].to_dense().sum().backward()
    expected = torch.zeros(6, 3, 20)
    expected[2:4, [0, 2]] = 1
    assert torch.equal(spikes.values.grad, at_slots(expected, spikes))


def test_cat():
    first, second = clean(6, 3, 20, slack=0), clean(6, 2, 20, rate=0.6)
    assert first.capacity < second.capacity
    both = SparseSpikes.cat([first, second])
    assert torch.equal(both.to_dense(), torch.cat([first.to_dense(), second.to_dense()], 1))
    assert both.capacity == second.capacity
    assert both.overflow == first.overflow + second.overflow
    pieces = [first.requires_grad_(), second.requires_grad_()]
    SparseSpikes.cat(pieces).spike_count().sum().backward()
    for piece in pieces:
        assert torch.equal(piece.values.grad, at_slots(torch.ones(piece.shape), piece))
    assert_equal(SparseSpikes.cat([first]), first)
    # If only one of them has counts of dropped spikes, the other counts as 0.
    silent = SparseSpikes(first.ids, first.values, first.counts, 20)
    assert SparseSpikes.cat([silent, silent]).dropped is None
    assert torch.equal(SparseSpikes.cat([silent, second]).dropped[:, :3], torch.zeros(6, 3, 2, dtype=torch.int32))
    assert SparseSpikes.cat(iter([silent, second])).overflow == second.overflow


def test_events_rotate_as_dense_spikes():
    """The first id of a step's selection may itself spike."""
    dense = (torch.rand(6, 2, 5) < 0.7).float()
    times, samples, units = dense.nonzero().unbind(1)
    for slots in range(1, 5):
        named = {"num_steps": 6, "num_neurons": 5, "batch_size": 2, "max_spikes": slots, "overflow": "rotate"}
        spikes = SparseSpikes.from_events(times, units, samples, **named)
        expected = SparseSpikes.from_dense(dense, slots, overflow="rotate")
        assert torch.equal(spikes.to_dense(), expected.to_dense())


def test_to():
    spikes = clean(4, 2, 9)
    double = spikes.to(torch.float64)
    assert double.dtype == torch.float64
    assert double.ids.dtype == double.counts.dtype == torch.int32
    assert torch.equal(double.to_dense(), spikes.to_dense().double())
    assert_equal(double.to(dtype=torch.float32), spikes)
    assert_equal(spikes.to("cpu"), spikes)
    assert_equal(spikes.cpu(), spikes)
    assert spikes.to("meta").device.type == "meta"
    assert "meta" in repr(spikes.to("meta"))
    with pytest.raises(TypeError, match="dtype of SparseSpikes must be float32 or float64"):
        spikes.to(torch.float16)
    leaf = clean(4, 2, 9).requires_grad_()
    leaf.to(torch.float64).values.sum().backward()
    assert torch.equal(leaf.values.grad, torch.ones_like(leaf.values))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory is CUDA's")
def test_pin_memory():
    spikes = clean(4, 2, 9)
    pinned = spikes.pin_memory()
    assert pinned.values.is_pinned()
    assert pinned.ids.is_pinned()
    assert_equal(pinned, spikes)
    assert_equal(pinned.cuda(non_blocking=True).cpu(), spikes)


def test_clone_and_detach():
    spikes = clean(4, 2, 9).requires_grad_()
    copied = spikes.clone()
    assert_equal(copied, spikes)
    assert copied.requires_grad
    for name in ("ids", "values", "counts", "dropped"):
        assert getattr(copied, name).data_ptr() != getattr(spikes, name).data_ptr()
    detached = spikes.detach()
    assert not detached.requires_grad
    assert detached.values.data_ptr() == spikes.values.data_ptr()
    assert spikes.requires_grad_(False) is spikes
    assert not spikes.requires_grad


def test_pickle_deepcopy_and_save():
    spikes = clean(4, 2, 9).requires_grad_()
    spikes.outside = 3
    copies = [pickle.loads(pickle.dumps(spikes)), copy.deepcopy(spikes), copy.copy(spikes)]
    for copied in [*copies, torch.load(saved(spikes), weights_only=False)["spikes"]]:
        assert_equal(copied, spikes)
        assert copied.requires_grad


def test_repr():
    spikes = SparseSpikes.from_dense(torch.ones(1, 1, 4).double(), 1).requires_grad_()
    expected = "1 spikes, activity 25 %, overflow 3, dtype=torch.float64, requires_grad=True"
    assert repr(spikes) == f"SparseSpikes(T=1, B=1, N=4, slots=1, {expected})"
    assert "6 gradient-only slots" in repr(SparseSpikes(**parts()))


# ---- DataLoader

Pair = collections.namedtuple("Pair", ["spikes", "label"])


class Recordings(Dataset):
    """Samples of different numbers of slots, as spikes and labels, in one of several forms."""

    def __init__(self, form):
        self.form = form

    def __len__(self):
        return 10

    def __getitem__(self, index):
        dense = torch.zeros(5, 1, 12)
        dense[:, 0, : index + 1] = torch.arange(1.0, 6.0)[:, None]
        spikes = SparseSpikes.from_dense(dense, 8)
        samples = {
            "alone": spikes,
            "tuple": (spikes, index),
            "dict": {"spikes": spikes, "label": index, "more": [spikes, torch.tensor([1.0, 2.0])]},
            "named": Pair(spikes, index),
        }
        return samples[self.form]


@pytest.mark.parametrize(
    ("form", "workers"), [("alone", 0), ("alone", 2), ("tuple", 0), ("named", 0), ("dict", 0), ("dict", 2)]
)
def test_data_loader(form, workers):
    data = Recordings(form)
    first = 0
    for batch in DataLoader(data, batch_size=4, collate_fn=collate, num_workers=workers):
        size = min(4, 10 - first)
        if form == "alone":
            spikes, labels = batch, None
        elif form == "dict":
            spikes, labels = batch["spikes"], batch["label"]
            assert_equal(batch["more"][0], spikes)
            assert torch.equal(batch["more"][1], torch.tensor([[1.0, 2.0]]).expand(size, 2))
        else:
            spikes, labels = batch
            assert isinstance(batch, Pair if form == "named" else (tuple, list))
        assert spikes.shape == (5, size, 12)
        assert labels is None or labels.tolist() == list(range(first, first + size))
        for sample in range(size):
            expected = torch.zeros(5, 12)
            expected[:, : min(first + sample + 1, 8)] = torch.arange(1.0, 6.0)[:, None]
            assert torch.equal(spikes[:, [sample]].to_dense()[:, 0], expected)
        assert spikes.overflow == sum(5 * max(0, first + sample + 1 - 8) for sample in range(size))
        first += size
    assert first == 10


def test_collate_refuses_samples_of_different_length():
    spikes = clean(2, 1, 5)
    with pytest.raises(ValueError, match=r"batch must hold samples of one length, got \[1, 2\]"):
        collate([(spikes, 1), (spikes,)])


def test_a_dataclass_is_made_again_of_its_fields():
    """DistributedDataParallel copies its inputs this way."""
    spikes = snn.SparseSpikes.from_dense(torch.ones(2, 1, 3))
    fields = {field.name: getattr(spikes, field.name) for field in dataclasses.fields(spikes)}
    again = dataclasses.replace(spikes, **{**fields, "times": torch.rand(2, 1, 3)})
    assert torch.equal(again.ids, spikes.ids)
    assert again.times.shape == (2, 1, 3)
    with pytest.raises(ValueError, match=r"times must be torch.float32 \(2, 1, 3\), as values, got .* \(2, 1\)"):
        dataclasses.replace(spikes, times=torch.rand(2, 1))
