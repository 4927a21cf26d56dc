import pytest
import torch
from support.tables import assert_refused, each_row
from support.trainers import event_config as config
from support.trainers import same_run

import snnipu as snn
from snnipu import datasets, training

METHODS = tuple(training.METHODS)


@pytest.fixture(scope="module")
def data():
    return datasets.randman(20, num_classes=3, samples_per_class=30, num_steps=20, seed=1)


def fitted(data, **settings):
    trainer = training.EventTrainer(config(**settings), data)
    assert trainer.fit()
    return trainer


def dense_of(spikes):
    return spikes.to_dense() if isinstance(spikes, snn.SparseSpikes) else spikes


# ---- the three methods


def learnt(method, x, labels, sizes, activity=None, **settings):
    """Return spikes of every layer and gradients of their weights, in float64."""
    generator = torch.Generator().manual_seed(0)
    net = training.benchmark_network(sizes, decay=0.9, generator=generator, **settings).double()
    if activity is not None:
        training.scale_to_activity(net, x, activity)
    layers = training.METHODS[method](net, x.to(torch.float64))
    torch.nn.functional.cross_entropy(dense_of(layers[-1]).sum(0), labels).backward()
    return layers, [layer.weight.grad for layer in net.layers], net


def assert_equally_learnt(ours, theirs):
    for mine, other in zip(ours[0], theirs[0]):
        assert torch.equal(dense_of(mine), dense_of(other))
        assert float(dense_of(mine).sum()) > 5
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-9, atol=1e-12)
    for mine in ours[1]:
        assert float(mine.abs().max()) > 1e-4


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("maps", [False, True])
def test_methods_are_equal_without_caps(data, delay, maps):
    """MultiStep gives the spikes of a convolutional network, too, if the delay is 0."""
    x, labels = data.train.batch(range(24))
    sizes, activity = [20, 24, 16, 3], None
    if maps:
        x = datasets.random_spikes(10, 4, 2 * 12 * 12, 0.02, generator=torch.Generator().manual_seed(0))
        labels, activity = torch.tensor([0, 1, 2, 1]), 0.1
        sizes = [(2, 12, 12), "6C3", "MP2", "8C3S2P1", "AP2", 20, 3]
    results = {
        method: learnt(method, x, labels, sizes, activity, grad_threshold=None, delay=delay) for method in METHODS
    }
    for method in ("sparse_ops", "sparse_network"):
        assert_equally_learnt(results[method], results["dense"])
    if maps and not delay:
        layers, _, net = results["dense"]
        with torch.no_grad():
            spk, _ = net.to_dense()(x.to_dense().double().unflatten(-1, (2, 12, 12)))
        assert torch.equal(spk, layers[-1])


@pytest.mark.parametrize("overflow_order", ["lowest", "rotate"])
def test_sparse_methods_are_equal_where_caps_bind(data, overflow_order):
    settings = {"max_spikes": [1, 4, 3, 3], "grad_threshold": 0.2, "overflow": overflow_order}
    x, labels = data.train.batch(range(24))
    ours, theirs = (learnt(method, x, labels, [20, 24, 16, 3], **settings) for method in METHODS if method != "dense")
    assert_equally_learnt(ours, theirs)
    for mine, other in zip(ours[0], theirs[0]):
        assert torch.equal(mine.counts, other.counts)
        assert mine.overflow == other.overflow
    first = ours[0][0]
    assert first.overflow > 0
    assert int((first.counts[..., 1] - first.counts[..., 0]).sum()) > 0


# ---- the trainer


def test_it_learns(data):
    trainer = fitted(data, epochs=10, lr=0.02, lr_decay=0.9, hidden=(64,), max_spikes=(8, 10, 3))
    assert trainer.history[-1]["train_loss"] < 0.5 * trainer.history[0]["train_loss"]
    assert trainer.history[-1]["test_accuracy"] > 0.7


def test_record_tells_activity_and_overflow(data):
    trainer = fitted(data, epochs=1, max_spikes=(1, 2, 2, 3))
    (record,) = trainer.history
    assert set(record) == {
        *("train_loss", "train_accuracy", "test_accuracy", "seconds", "activity", "overflow"),
        *("input_activity", "input_overflow", "train_overflow", "grad_threshold"),
    }
    x, labels = data.test.batch(range(len(data.test)))
    layers = trainer.network(x, all_layers=True)
    assert record["activity"] == pytest.approx([layer.activity for layer in layers])
    assert record["overflow"] == [layer.overflow for layer in layers]
    assert record["overflow"][0] > 0
    limited = x.limit(1)
    assert record["input_overflow"] == limited.overflow > 0
    assert record["input_activity"] == pytest.approx(limited.activity)
    correct = layers[-1].spike_count().argmax(1) == labels
    assert record["test_accuracy"] == pytest.approx(float(correct.float().mean()))
    assert len(record["train_overflow"]) == 4
    # The training set loses the same share of its spikes.
    share = len(data.train) / len(data.test)
    assert record["train_overflow"][0] == pytest.approx(record["input_overflow"] * share, rel=0.5)


def test_dense_reports_no_overflow(data):
    trainer = fitted(data, epochs=1, method="dense")
    (record,) = trainer.history
    assert record["overflow"] == [0, 0, 0]
    assert record["train_overflow"] == [0, 0, 0, 0]
    assert record["grad_threshold"] is None
    x, _ = data.test.batch(range(len(data.test)))
    assert record["input_activity"] == pytest.approx(x.activity)
    trainer.network.layers[0].grad_threshold = None
    trainer.network(x)
    assert record["activity"] == pytest.approx(trainer.network.activity, rel=1e-3)


@pytest.mark.parametrize("method", ["dense", "sparse_network"])
def test_figures_show_what_the_network_does(data, method):
    pytest.importorskip("matplotlib")
    figures = fitted(data, method=method, epochs=1).figures()
    assert set(figures) == {"raster", "training", "activity"}
    assert len(figures["activity"].axes) == (1 if method == "dense" else 2)
    axes = figures["raster"].axes
    assert [axis.get_ylabel() for axis in axes[::3]] == ["input", "hidden 1", "hidden 2", "output"]
    # The input's spikes in the first recording of each class.
    for column, label in enumerate(range(3)):
        x, _ = data.test.batch([data.test.labels.tolist().index(label)])
        assert len(axes[column].collections[0].get_offsets()) == x.limit(8).num_spikes if method != "dense" else 20


def test_the_second_threshold_rises(data):
    trainer = fitted(data, grad_threshold_start=-3.1, grad_threshold=0.9)
    # 72 recordings in batches of 16: 5 steps an epoch, halved every 2.
    assert [record["grad_threshold"] for record in trainer.history] == pytest.approx([0.9 - 4 / 4, 0.9 - 4 / 32])
    *hidden, output = [layer.grad_threshold for layer in trainer.network.layers]
    assert hidden == [trainer.history[-1]["grad_threshold"]] * 2
    assert output is None  # or a silent output neuron would stay silent
    trainer = fitted(data, grad_threshold_start=None, grad_threshold_every=None, epochs=1)
    assert trainer.history[0]["grad_threshold"] == trainer.network.layers[0].grad_threshold == 0.9


def test_the_output_starts_at_an_activity_of_its_own(data):
    for output in (0.02, None):
        trainer = fitted(data, initial_activity=0.1, initial_output_activity=output, max_spikes=24, epochs=1)
        assert [layer.activity for layer in trainer.scaling] == pytest.approx([0.1, 0.1, output or 0.1], rel=0.1)


def test_rates_are_limited(data):
    activity = []
    for limit in (None, 0.001):
        settings = {"rate_limit": limit, "rate_strength": 1e5, "initial_activity": 0.1}
        trainer = fitted(data, lr=0.03, max_spikes=24, **settings)
        activity.append(trainer.history[-1]["activity"][0])
    assert activity[1] < 0.8 * activity[0]


def test_workers_change_nothing(data):
    states = []
    for workers in (0, 1):
        trainer = training.EventTrainer(config(), data, workers=workers)
        trainer.fit()
        states.append(trainer.state_dict())
    assert same_run(*states)


def test_data_of_another_length(data):
    with pytest.raises(ValueError, match="steps: 10 of the settings are not the 20 of the data"):
        training.EventTrainer(config(steps=10), data)
    with pytest.raises(ValueError, match="batch_size: 73 is larger than the training set of randman, 72 recordings"):
        training.EventTrainer(config(batch_size=73), data)


def test_silent_data_names_the_setting(data):
    silent = datasets.EventDataset(lambda i: ([], []), [0, 1, 2] * 8, num_steps=20, num_neurons=20)
    quiet = datasets.EventData("silent", silent, silent, 20, 20, 3)
    trainer = training.EventTrainer(config(), quiet)
    with pytest.raises(ValueError, match="initial_activity: x: layer 0 cannot be scaled"):
        trainer.fit()


# ---- settings


def nmnist(**settings):
    return training.EventConfig(**{"dataset": "nmnist", **settings})


@pytest.mark.slow
@each_row("""
nmnist(dataset="digits")
    | ValueError: ^dataset: expected one of randman, nmnist, shd, dvs, spoken_digits, got 'digits'
nmnist(method="gemm") | ValueError: ^method: expected one of dense, sparse_ops, sparse_network
nmnist(hidden=()) | ValueError: ^hidden: expected one number of neurons or several
nmnist(hidden=(8, 0)) | ValueError: ^hidden: expected a positive integer, got 0
nmnist(beta=1) | ValueError: ^beta: expected a number below 1
nmnist(delay=2) | ValueError: ^delay: expected 0 or 1, got 2
nmnist(max_spikes=(1, 2)) | ValueError: ^max_spikes: expected 3 numbers, for the input, 1 hidden layers and the output
nmnist(slot_activity=2) | ValueError: ^slot_activity: expected a number above 0 and up to 1, got 2
nmnist(slot_activity=0.1, max_spikes=3)
    | ValueError: ^max_spikes: expected none, got 3: slot_activity sets the slots
nmnist(input_slots=3) | ValueError: ^input_slots: expected none, got 3: only with slot_activity
nmnist(grad_threshold_start=-1.0)
    | ValueError: ^grad_threshold_start: expected none, got -1.0: there is no grad_threshold
nmnist(grad_threshold=0.9, grad_threshold_every=3)
    | ValueError: ^grad_threshold_every: expected none, got 3: there is no grad_threshold_start
nmnist(grad_threshold=0.9, grad_threshold_start=1.0, grad_threshold_every=3)
    | ValueError: ^grad_threshold_start: expected a number up to grad_threshold, 0.9, got 1
nmnist(grad_threshold=0.9, grad_threshold_start=-1.0)
    | ValueError: ^grad_threshold_every: expected a positive integer, got None
nmnist(initial_output_activity=0.1)
    | ValueError: ^initial_output_activity: expected none, got 0.1: initial_activity is none
nmnist(initial_activity=0) | ValueError: ^initial_activity: expected a number above 0 and below 1, got 0
nmnist(classes=3) | ValueError: ^classes: expected none, got 3: only for the data set randman
nmnist(method="dense", max_spikes=8) | ValueError: ^max_spikes: expected none, got 8: the dense method has no slots
build("randman", classes=-1) | ValueError: ^classes: expected a
build("randman", samples_per_class=-1) | ValueError: ^samples_per_class: expected a
build("randman", manifold_dim=-1) | ValueError: ^manifold_dim: expected a
build("randman", alpha=-1) | ValueError: ^alpha: expected a
build("randman", network="conv")
    | ValueError: ^network: expected fc for the data set randman, got conv: only nmnist and dvs
build("nmnist", network="cnn") | ValueError: ^network: expected one of fc, conv, got 'cnn'
build("nmnist", hidden=("12C5",))
    | ValueError: ^hidden: '12C5' is a layer of network conv, and this is network fc
build("nmnist", network="conv", hidden=(0,)) | ValueError: ^hidden: expected a positive integer, got 0
build("nmnist", network="conv", max_spikes=(1, 2))
    | ValueError: ^max_spikes: expected 4 numbers, for the input, 2 hidden
""")
def test_bad_settings(row):
    assert_refused(row, globals(), build=training.EventConfig.for_dataset)


def test_defaults_are_the_published_configurations():
    randman = training.EventConfig.for_dataset("randman")
    assert randman.slots([128, 256, 256, 256, 64, 10]) == (64, 16, 16, 16, 8, 10)
    assert (randman.batch_size, randman.steps, randman.beta, randman.delay) == (48, 100, 0.92, 1)
    assert (randman.classes, randman.samples_per_class, randman.manifold_dim, randman.alpha) == (10, 1000, 1, 2.0)
    nmnist = training.EventConfig.for_dataset("nmnist")
    assert (nmnist.hidden, nmnist.beta, nmnist.steps, nmnist.batch_size) == ((1466, 1466), 0.95, 100, 48)
    assert training.EventConfig.for_dataset("shd").hidden == (1462, 1460)
    assert training.EventConfig.for_dataset("dvs").steps == 50
    for dataset in training.EVENT_DATASETS:
        settings = training.EventConfig.for_dataset(dataset)
        assert (settings.grad_threshold, settings.grad_threshold_start) == (0.9, -100.0)
        assert training.EventConfig(**settings.to_dict()) == settings


def test_networks_of_convolutions_have_defaults_for_their_maps():
    build = training.EventConfig.for_dataset
    nmnist = build("nmnist", network="conv")
    assert nmnist.hidden == ("12C5", "MP2", "32C5", "MP2")
    assert (nmnist.num_hidden_layers, nmnist.delay, nmnist.max_spikes) == (2, 0, None)
    assert training.EventConfig(**nmnist.to_dict()) == nmnist
    assert build("dvs", network="conv").hidden == ("16C5P2", "MP2", "32C3P1", "MP2", 512)
    assert (
        build("dvs", network="conv", downsample=2).hidden == build("dvs", network="conv", crop=64, downsample=1).hidden
    )
    assert "64C3P1" in build("dvs", network="conv", downsample=2).hidden
    assert build("nmnist", network="conv", method="dense").grad_threshold is None
    custom = build("nmnist", network="conv", hidden="8C3-MP2-50", slot_activity=0.1)
    assert custom.hidden == ("8C3", "MP2", "50")
    assert custom.slots([2312, 8192, 50, 10]) == (None, 818, 4, 10)
    assert build("nmnist", network="conv", max_spikes=(64, 900, 300, 10)).slots([1] * 4) == (64, 900, 300, 10)
    before = build("nmnist").to_dict()
    del before["network"]  # a checkpoint from before this setting
    assert training.EventConfig(**before) == build("nmnist")


def test_a_network_that_does_not_fit_its_maps(data):
    x = datasets.random_spikes(5, 1, 2312, 0.01)
    dataset = datasets.EventDataset(
        lambda index: (x.ids[:, 0, 0].sort().values * 0, x.ids[:, 0, 0]), [0, 1], num_steps=100, num_neurons=2312
    )
    maps = datasets.EventData("own", dataset, dataset, 2312, 100, 2, (2, 34, 34))
    settings = training.EventConfig.for_dataset("nmnist", network="conv", hidden="12C50", batch_size=2)
    with pytest.raises(ValueError, match=r"^hidden: '12C50' does not fit into the maps before it, 34 x 34"):
        training.EventTrainer(settings, maps)
    with pytest.raises(ValueError, match=r"^hidden: 'X5' is no layer: expected an entry such as '12C5'"):
        training.EventTrainer(
            training.EventConfig.for_dataset("nmnist", network="conv", hidden="X5", batch_size=2), maps
        )
    settings = training.EventConfig.for_dataset("nmnist", network="conv", steps=20, batch_size=2)
    with pytest.raises(ValueError, match=r"^network: expected fc for randman, got conv: it has no maps"):
        training.EventTrainer(settings, data)


def test_defaults_make_way():
    build = training.EventConfig.for_dataset
    assert build("randman", hidden=(100,)).slots([128, 100, 10]) == (64, 6, 10)
    assert build("randman", slot_activity=0.1).slots([128, 256, 256, 256, 64, 10]) == (None, 24, 24, 24, 6, 10)
    assert build("randman", max_spikes=None).slots([128, 256, 10]) == (None, None, None)
    assert build("nmnist", max_spikes=7).slots([2312, 5, 10]) == (7, 7, 7)
    assert build("nmnist", slot_activity=None).slots([2312, 5, 10]) == (None, None, None)
    assert build("nmnist", grad_threshold=None).grad_threshold_start is None
    assert build("nmnist", grad_threshold_start=None).grad_threshold_every is None
    assert build("nmnist", initial_activity=None).initial_output_activity is None
    dense = build("nmnist", method="dense")
    assert dense.slots([2312, 1466, 1466, 10]) == (None,) * 4
    assert dense.grad_threshold is None
    assert build("nmnist", hidden=[30, 20]).hidden == (30, 20)


@pytest.mark.parametrize("method", ["dense", "sparse_ops"])
def test_other_methods_refuse_eventprop(method):
    net = snn.SparseNetwork([4, 3], beta=0.9, neuron="synaptic", alpha=0.8, gradient="eventprop")
    with pytest.raises(ValueError, match='network must have gradient="surrogate"'):
        training.METHODS[method](net, snn.SparseSpikes.from_dense(torch.ones(2, 1, 4)))
