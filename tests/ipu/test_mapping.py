"""Plans of event-driven networks: placement on tiles, memory, and the performance model."""

import itertools
import json

import ipu_published as published
import numpy as np
import pytest
import torch
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn
from snnipu import ipu
from snnipu.planning.mapping import CATEGORIES, layer_memory, selection_memory
from snnipu.planning.performance import summary

SIZES = [2312, 1466, 1466, 10]


def spec(sizes=SIZES, activity=0.02, **more):
    return ipu.NetworkSpec.from_sizes(sizes, activity, **more)


def check_places(plan):
    """Check a plan: each neuron is on one tile of each group, each sample in one group and on one selection tile.

    No tile has neurons of two layers, or two selections, and all tiles exist.
    """
    taken, selecting = np.zeros(plan.tiles, dtype=int), np.zeros(plan.tiles, dtype=int)
    for layer in plan.layers:
        assert sum(layer.neurons) == plan.network.sizes[layer.layer]
        assert sum(layer.rows) == sum(layer.groups) == plan.network.batch_size
        assert min(layer.rows) >= 1 <= min(layer.groups)
        assert layer.tiles == len(layer.neurons) * len(layer.groups)
        assert min(layer.neurons) >= 1
        taken[layer.first_tile : layer.first_tile + layer.tiles] += 1
        selecting[layer.first_selection_tile : layer.first_selection_tile + layer.selection_tiles] += 1
        assert layer.first_tile + layer.tiles <= plan.tiles
        assert layer.first_selection_tile + layer.selection_tiles <= plan.tiles
        # Tiles have pairs of neurons, except a layer's last tile.
        assert all(count % 2 == 0 for count in layer.neurons[:-1])
        assert max(layer.neurons) - min(layer.neurons[:-1] or layer.neurons) <= 2
    assert taken.max() == selecting.max() == 1
    assert np.flatnonzero(taken + selecting).max() + 1 == plan.tiles_used
    # Selection shares tiles with neurons only if no other tiles are left.
    assert not (taken * selecting).any() or plan.tiles_used == plan.tiles


@pytest.mark.parametrize("target", ["mk1", "mk2", "bow"])
@pytest.mark.parametrize("ipus", [1, 2, 4])
def test_every_neuron_has_one_tile(target, ipus):
    plan = ipu.plan(spec([700, 1001, 333, 20], 0.05, batch_size=13), target, ipus)
    assert plan.fits
    check_places(plan)
    assert plan.tiles == ipus * ipu.TARGETS[target].tiles_per_ipu


@pytest.mark.parametrize("hidden", [2, 3, 4, 5])
def test_published_networks_fit_one_mk2(hidden):
    plan = ipu.plan(published.network("N-MNIST", hidden, 0.02))
    assert plan.fits
    assert plan.ipus_used == 1
    check_places(plan)


def test_tiles_follow_the_work():
    """A layer with more input spikes gets more tiles for the same number of neurons."""
    plan = ipu.plan(
        ipu.NetworkSpec((4000, 3000, 3000, 10), (400.0, 15.0, 15.0, 1.0), (400, 30, 30, 10)), neurons_per_tile=2
    )
    first, second = plan.layers[:2]
    assert first.tiles > second.tiles
    assert max(first.neurons) * first.samples < max(second.neurons) * second.samples


def test_a_small_layer_after_a_large_one_has_tiles_for_its_samples():
    """Ten neurons use at most five tiles; without groups, the large layer would wait for these."""
    plan = ipu.plan(ipu.NetworkSpec((784, 1000, 10), (128.0, 128.0, 10.0), (128, 128, 10), batch_size=128, steps=25))
    last = plan.layers[1]
    assert len(last.groups) > 10
    assert {plan.tile_of(2, 3, sample) for sample in range(128)} >= {
        last.first_tile + group * last.group_tiles for group in range(len(last.groups))
    }
    with pytest.raises(IndexError, match="no sample 128"):
        plan.tile_of(2, 3, 128)
    phases = {(phase.name, phase.where): phase.cycles for phase in ipu.estimate(plan).phases}
    assert ("weight and spike gradients", 1) in phases or phases["weight and spike gradients", 2] < 1e5


def test_tile_of():
    plan = ipu.plan(spec([50, 31, 10], 0.1, batch_size=4), neurons_per_tile=4)
    (first, _) = plan.layers
    tiles = [plan.tile_of(1, neuron) for neuron in range(31)]
    assert tiles == sorted(tiles)
    assert [tiles.count(tile) for tile in dict.fromkeys(tiles)] == list(first.neurons)
    assert plan.roles()[tiles[0]] == 1
    for wrong in (-1, 31):
        with pytest.raises(IndexError, match=f"no neuron {wrong}"):
            plan.tile_of(1, wrong)


def test_memory_is_the_sum_of_the_variables_on_the_tile():
    network = spec([100, 40, 10], 0.1, batch_size=3, steps=7, optimizer="adam")
    parts = layer_memory(network, 1, 4, 3, 1)
    assert parts["weights"] == 100 * 4 * 4
    assert parts["weight gradients"] == 100 * 4 * 4
    assert parts["optimiser state"] == 2 * 100 * 4 * 4
    assert parts["history"] == 7 * 3 * 4 * 4
    assert layer_memory(spec([100, 40, 10], 0.1, dtype="float16"), 1, 3, 3, 1)["weights"] == 100 * 4 * 2
    inference = layer_memory(spec([100, 40, 10], 0.1, batch_size=3, training=False), 1, 4, 3, 1)
    assert inference["weight gradients"] == inference["optimiser state"] == 0
    larger, smaller = (selection_memory(spec([10, 50, 2], share, batch_size=1), 1, 1, 1) for share in (0.2, 0.1))
    assert larger["neuron state"] - smaller["neuron state"] == (10 - 5 + 1) * 20
    plan = ipu.plan(network)
    total = sum(plan.memory[name] for name in CATEGORIES)
    assert np.array_equal(total, plan.tile_memory)
    assert plan.tile_memory_max_bytes == total.max()
    # The tiles after the layers hold the input, one sample each.
    assert (plan.tile_memory[plan.tiles_used : plan.tiles_used + 3] > 0).all()
    assert (plan.tile_memory[plan.tiles_used + 3 :] == 0).all()


def test_a_tile_over_its_memory_is_named_with_a_remedy():
    plan = ipu.plan(spec([20000, 12000, 10], 0.01))
    assert not plan.fits
    problem = plan.problems[0]
    tile = int(plan.tile_memory.argmax())
    assert f"tile {tile} needs {plan.tile_memory_max_bytes / 1024:.0f} KiB" in problem
    assert "weights" in problem
    assert "more IPUs leave less on a tile" in problem
    assert "does not fit" in str(plan)
    figures = summary(ipu.estimate(plan))
    assert figures["fits"] is False
    assert figures["samples_per_s"] is None
    assert figures["bound"] == "memory"
    smallest_tiles = ipu.plan(spec([20000, 12000, 10], 0.01), ipus=16)
    assert "more IPUs do not help, as it has as many tiles as it can use" in smallest_tiles.problems[0]
    assert ipu.plan(spec([20000, 12000, 10], 0.01, optimizer="sgd"), ipus=8).fits


@pytest.mark.slow
def test_too_few_tiles():
    plan = ipu.plan(spec([10] * 1500, 0.3))
    assert not plan.fits
    assert "tiles cannot hold 1499 layers" in plan.problems[0]
    with pytest.raises(ValueError, match="no layers on tiles"):
        ipu.estimate(plan)


def test_more_ipus_than_needed():
    plan = ipu.plan(spec([100, 50, 10], 0.1), ipus=4)
    assert plan.ipus_used == 1
    assert "1 of 4 IPUs have work" in plan.notes[0]


def test_a_plan_survives_json():
    plan = ipu.plan(spec([300, 101, 10], 0.05, batch_size=5), "bow", 2)
    loaded = ipu.Plan.from_json(plan.to_json())
    assert loaded == plan
    assert np.array_equal(loaded.tile_memory, plan.tile_memory)
    document = json.loads(plan.to_json())
    for layer in document["layers"]:
        layer.pop("groups")  # as in plans of the first version, whose batch is one group
    assert [layer.groups for layer in ipu.Plan.from_dict(document).layers] == [(5,), (5,)]


def test_plan_is_printed():
    plan = ipu.plan(spec([300, 100, 10], 0.05, batch_size=5), ipus=2)
    assert "300-100-10, batch 5" in str(plan)
    assert "layer 2: 10 neurons on tiles" in str(plan)
    assert repr(plan) == "<Plan of 300-100-10 on 2 x mk2, fits>"


# ---- the performance model


def test_shares_make_a_whole_and_steps_add_up():
    performance = ipu.estimate(ipu.plan(spec()))
    assert performance.compute_share + performance.exchange_share + performance.sync_share == pytest.approx(1)
    steps = performance.plan.network.steps
    update = sum(phase.cycles + phase.sync for phase in performance.phases if phase.direction == "update")
    assert performance.cycles_per_batch == pytest.approx(steps * performance.cycles_per_step + update)
    assert performance.samples_per_s == pytest.approx(48 * 1.33e9 / performance.cycles_per_batch)
    assert 0 < performance.balance <= 1
    by_hand = sum(phase.cycles + phase.sync for phase in performance.phases if phase.direction != "update")
    assert performance.cycles_per_step == pytest.approx(by_hand)


def test_more_activity_is_slower_and_a_faster_clock_faster():
    rates = [ipu.estimate(ipu.plan(spec(activity=activity))).samples_per_s for activity in (0.01, 0.05, 0.2)]
    assert rates[0] > 1.3 * rates[1] > 1.69 * rates[2]
    assert ipu.estimate(ipu.plan(spec(), "bow")).samples_per_s == pytest.approx(
        ipu.estimate(ipu.plan(spec())).samples_per_s * 1.85 / 1.33, rel=1e-3
    )


def test_inference_is_faster_and_smaller():
    training, inference = (ipu.plan(spec(training=mode)) for mode in (True, False))
    assert ipu.estimate(inference).samples_per_s > 2 * ipu.estimate(training).samples_per_s
    # Both return the membranes of all steps, an output of the operator.
    assert inference.tile_memory_max_bytes < training.tile_memory_max_bytes
    assert inference.memory["weight gradients"].max() == 0 < training.memory["weight gradients"].max()
    assert {phase.direction for phase in ipu.estimate(inference).phases} == {"forward"}


def test_without_delay_layers_follow_one_another():
    parallel, sequential = (ipu.estimate(ipu.plan(spec(delay=delay))) for delay in (1, 0))
    assert sequential.cycles_per_step > parallel.cycles_per_step
    names = [phase.name for phase in sequential.phases if phase.direction == "forward"]
    assert names.count("integrate and fire") == 3


def test_several_ipus_pay_for_their_links():
    plan = ipu.plan(spec([1152, 12000, 12000, 10], 0.005, steps=10, optimizer="sgd"), ipus=8, neurons_per_tile=2)
    performance = ipu.estimate(plan)
    assert plan.ipus_used > 4
    assert {phase.sync for phase in performance.phases} == {600}
    one_ipu = ipu.estimate(ipu.plan(spec()))
    assert {phase.sync for phase in one_ipu.phases} == {150}


# ---- networks of modules


def test_networks_of_modules():
    net = snn.SparseNetwork([100, 60, 10], beta=0.9, max_spikes=[20, None, 10], delay=0)
    network = ipu.NetworkSpec.from_module(net, 0.1, batch_size=4)
    assert network.sizes == (100, 60, 10)
    assert network.slots == (20, 12, 10)
    assert network.spikes == pytest.approx((10, 6, 1))
    assert network.delay == 0

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

    assert ipu.NetworkSpec.from_module(Model(), 0.1, batch_size=4) == network
    layers = nn.Sequential(snn.SparseLeaky(30, 20, beta=0.9), snn.SparseLeaky(20, 5, beta=0.9, max_spikes=3))
    assert ipu.NetworkSpec.from_module(layers, [0.1, 0.1, 0.2]).slots == (6, 4, 3)
    layers = nn.Sequential(snn.SparseLeaky(30, 20, beta=0.9), snn.SparseLeaky(20, 5, beta=0.9, recurrent=True))
    network = ipu.NetworkSpec.from_module(layers, 0.1)
    assert network.recurrent == (False, True)
    assert network.parameters == 30 * 20 + 20 * 5 + 5 * 5
    assert "20 neurons on tiles" in str(ipu.plan(network))
    assert "5 recurrent neurons on tiles" in str(ipu.plan(network))
    assert ipu.Plan.from_json(ipu.plan(network).to_json()).network == network
    dense = snn.MultiStep(nn.Linear(30, 20), snn.Leaky(beta=0.9), nn.Linear(20, 5), snn.Leaky(beta=0.9))
    assert ipu.NetworkSpec.from_module(dense, 0.1).sizes == (30, 20, 5)


@each_row(r"""
nn.Sequential(nn.Conv2d(1, 2, 3)) | TypeError: expected a SparseNetwork.*holds Conv2d
nn.Sequential(nn.Linear(3, 4), nn.ReLU()) | TypeError: expected a SparseNetwork
nn.Sequential(snn.SparseLeaky(3, 4, beta=0.9), snn.SparseLeaky(5, 2, beta=0.9)) | TypeError: do not match the outputs
snn.SparseNetwork([(1, 8, 8), "4C3", 10], beta=0.9) | TypeError: a plan cannot hold layers on maps
snn.SparseNetwork([8, 4], beta=0.9, max_delay=3) | TypeError: a plan needs layers without max_delay
nn.Sequential(*(snn.SparseNetwork([3, 2], beta=0.9) for _ in range(2))) | TypeError: one SparseNetwork, and it holds 2
torch.zeros(3) | TypeError: must be a torch.nn.Module
""")
def test_modules_that_cannot_be_planned(row):
    module, error = row.split(" | ")
    assert_refused(f"ipu.NetworkSpec.from_module({module}) | {error}", globals(), torch=torch)


@each_row(r"""
ipu.plan(spec(), "mk3") | ValueError: target must be one of mk1, mk2, bow
ipu.plan(spec(), ipus=0) | ValueError: ipus must be from 1
ipu.plan(spec(), selection_tiles=0) | ValueError: selection_tiles must be at least 1
ipu.plan(spec(), neurons_per_tile=3) | ValueError: neurons_per_tile must be even
spec([5]) | ValueError: sizes must have an entry for the input
spec([5, 0]) | ValueError: num_neurons|sizes must be positive
spec(dtype="int8") | ValueError: dtype must be one of
spec(activity=0.0) | ValueError: activity must be above 0
spec(activity=[0.1, 0.1]) | ValueError: activity must be one number, or 4
spec(batch_size=0) | ValueError: batch_size must be an int from 1 to
ipu.NetworkSpec((4, 2), (3.0, 1.0), (2, 2)) | ValueError: at most as many spikes as slots
spec(recurrent=(True, False, True, False, True)) | ValueError: recurrent must have a bool for each of
""")
def test_wrong_arguments(row):
    assert_refused(row, globals())


# ---- the published networks


@pytest.mark.slow
def test_published_chart(tmp_path):
    pytest.importorskip("matplotlib")
    results = published.results(activities=(0.005, 0.02, 0.1), ipus=(1, 2), neurons_per_tile=(2, 16))
    assert all(row["fits"] for row in results["depth"])
    for row in results["depth"]:
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert row["bound"] == "compute"
    assert {row["fits"] for row in results["many_neurons"]} == {True, False}
    published.draw_published(results, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 20000
    low, high = published.implied_a100(results["depth"])
    assert high == 2 * low


def test_labels_of_the_published_chart_do_not_overlap(tmp_path, monkeypatch):
    page = pytest.importorskip("matplotlib.figure").Figure(figsize=(13, 13.6))
    monkeypatch.setattr(published, "figure", lambda figsize: page)
    record = published.ROOT / "benchmarks" / "results" / "ipu-model.json"
    published.draw_published(json.loads(record.read_text(encoding="utf-8")), tmp_path / "chart.png")
    for axes in page.axes:
        boxes = [(text.get_text(), text.get_window_extent()) for text in axes.texts]
        curves = [(line.get_label(), line.get_transform().transform(line.get_xydata())) for line in axes.lines]
        for (label, box), (other, other_box) in itertools.combinations(boxes, 2):
            assert not box.overlaps(other_box), f"{label!r} is over {other!r}"
        for (label, box), (curve, points) in itertools.product(boxes, curves):
            assert not box.count_contains(points), f"{label!r} is over {curve}"
