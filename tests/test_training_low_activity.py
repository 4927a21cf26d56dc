import math
import warnings
from fractions import Fraction

import pytest
import torch
from support.tables import assert_refused, each_row
from torch import nn
from torch.testing import assert_close

import snnipu as snn
from snnipu import training
from snnipu.training import ActivityRegularizer, GradThresholdSchedule, scale_to_activity


def network(sizes=(20, 30, 12), seed=0, **settings):
    generator = torch.Generator().manual_seed(seed)
    return training.benchmark_network(list(sizes), generator=generator, **{"grad_threshold": None, **settings})


def events(steps=15, batch=6, neurons=20, rate=0.2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(steps, batch, neurons, generator=generator) < rate).float()


# ---- the benchmark's network


@pytest.mark.parametrize("activity", ["0.005", "0.01", "0.02", "0.05", "0.07", "0.1", "0.29", "0.5", "1"])
def test_slots_are_those_of_exact_arithmetic(activity):
    for neurons in [*range(1, 40), 100, 200, 588, 734, 978, 1466, 4000]:
        exact = 2 * math.floor(Fraction(activity) * neurons / 2)
        assert training.benchmark_slots(float(activity), neurons) == min(max(exact, 2), neurons), neurons


def test_slots_of_a_network():
    assert training.benchmark_max_spikes([2312, 1466, 1466, 10], 0.02, 32) == [32, 28, 28, 10]
    net = training.benchmark_network([700, 100, 50, 20], activity=0.1, input_slots=48)
    assert [net.max_input_spikes, *(layer.max_spikes for layer in net.layers)] == [48, 10, 4, 20]


def test_the_networks_step_is_the_published_rule():
    """The reference is a loop of the paper's equations, with a delay of one step between layers."""
    net = network((20, 30, 25, 12), decay=0.9)
    x = events(rate=0.4)
    spikes = [layer.to_dense() for layer in net(snn.SparseSpikes.from_dense(x), all_layers=True)]
    weights = [layer.weight for layer in net.layers]
    state = [torch.zeros(6, size) for size in (30, 25, 12)]
    fired = [torch.zeros(6, size) for size in (30, 25, 12)]
    total = 0
    for t in range(15):
        inputs = [x[t], *fired[:-1]]
        for i, weight in enumerate(weights):
            state[i] = 0.9 * (1 - (state[i] > 1).float()) * state[i] + (1 - 0.9) * 10 * inputs[i] @ weight.t()
        fired = [(u > 1).float() for u in state]
        for i, layer in enumerate(fired):
            assert torch.equal(spikes[i][t], layer), (t, i)
            total += int(layer.sum())
    assert total > 100


def test_surrogate_of_the_benchmark():
    mem = torch.linspace(-2, 3, 21)
    u = (mem - 1).requires_grad_()
    network().layers[0].spike_grad(u).sum().backward()
    assert_close(u.grad, 1 / (10 * (mem - 1).abs() + 1) ** 2)


def test_weights_are_uniform_within_the_bound():
    net = network((500, 400, 10))
    for layer in net.layers:
        bound = 2 * math.sqrt(6 / layer.in_features)
        assert float(layer.weight.detach().abs().max()) <= bound
        assert float(layer.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)
    half = network((500, 400, 10), gain=1.0)
    assert torch.allclose(half.layers[0].weight * 2, net.layers[0].weight)


def test_weights_come_from_the_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = network(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    second, other = network(seed=3), network(seed=4)
    assert torch.equal(first.layers[1].weight, second.layers[1].weight)
    assert not torch.equal(first.layers[1].weight, other.layers[1].weight)


# ---- second threshold


def test_schedule_halves_its_distance():
    net = network()
    schedule = GradThresholdSchedule(net, start=-100, target=0.9, every=3)
    seen = []
    for _ in range(10):
        assert {layer.grad_threshold for layer in net.layers} == {schedule.value}
        seen.append(schedule.value)
        schedule.step()
    expected = [0.9 - 100.9 / 2 ** (k // 3) for k in range(10)]
    assert seen == pytest.approx(expected)
    for _ in range(10_000):
        schedule.step()
    assert schedule.value == net.layers[1].grad_threshold == 0.9


def test_schedule_changes_what_carries_gradient():
    net = network()
    x = snn.SparseSpikes.from_dense(events())
    schedule = GradThresholdSchedule(net, start=-100)
    carried = []
    for _ in range(3):
        carried.append([int(layer.counts[..., 1].sum()) for layer in net(x, all_layers=True)])
        for _ in range(8):
            schedule.step()
    assert carried[0] == [15 * 6 * 30, 15 * 6 * 12]
    assert carried[0] > carried[1] > carried[2]


def test_layers_of_maps_are_scaled_to_their_activity():
    generator = torch.Generator().manual_seed(0)
    description = [(2, 12, 12), "6C3", "MP2", "8C3P1", "AP2", 20, 4]
    for delay in (0, 1):
        network = snn.training.benchmark_network(
            description, decay=0.9, grad_threshold=None, delay=delay, generator=generator
        )
        x = (torch.rand(30, 8, 2, 12, 12, generator=generator) < 0.02).float()
        activities = scale_to_activity(network, x, [0.05, 0.04, None, 0.03])
        with torch.no_grad():
            network(x)
        assert [scale.activity for scale in activities] == pytest.approx(network.activity, rel=1e-3)
        assert network.activity[0] == pytest.approx(0.05, rel=0.05)
        assert network.activity[1] == pytest.approx(0.04, rel=0.05)
        assert network.activity[3] == pytest.approx(0.03, rel=0.05)
        assert activities[2].scale == 1
        flat = x.flatten(2)
        assert scale_to_activity(network, flat, 0.04)[0].scale < 1


def test_schedule_needs_sparse_layers():
    with pytest.raises(ValueError, match="network: expected a module with SparseLeaky or SparseConvLeaky layers"):
        GradThresholdSchedule(nn.Linear(3, 3))
    with pytest.raises(TypeError, match="network: expected a module, got str"):
        GradThresholdSchedule("network")
    layer = snn.SparseLeaky(3, 4, beta=0.9)
    assert GradThresholdSchedule(nn.Sequential(layer), -3).value == layer.grad_threshold == -3
    conv = snn.SparseConvLeaky(2, 3, 3, beta=0.9)
    assert GradThresholdSchedule(nn.Sequential(conv), -3).value == conv.grad_threshold == -3


# ---- scaling to an activity


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("gain", [1e-4, 2.0, 300.0])
def test_every_layer_reaches_its_target(delay, gain):
    """The weights start silent, normal or far too active."""
    net = network((20, 200, 100), delay=delay, gain=gain)
    x = events(steps=40, batch=20)
    before = [layer.weight.clone() for layer in net.layers]
    done = scale_to_activity(net, x, target=[0.05, 0.1], tolerance=0.05)
    net(snn.SparseSpikes.from_dense(x))
    for index, (layer, target, result) in enumerate(zip(net.layers, (0.05, 0.1), done)):
        assert layer.activity == pytest.approx(target, rel=0.05), index
        assert result.activity == pytest.approx(layer.activity, rel=1e-3)
        assert result.reached
        assert_close(layer.weight, before[index] * result.scale)
    assert (done[0].before < 0.05) == (done[0].scale > 1)
    again = scale_to_activity(net, x, target=[0.05, 0.1], tolerance=0.06)
    assert [result.scale for result in again] == [1.0, 1.0]


def test_caps_and_second_threshold_have_no_part_in_the_scale():
    x = events(steps=30, batch=10)
    free, capped = network((20, 100, 50)), network((20, 100, 50), max_spikes=[2, 1, 1], grad_threshold=0.5)
    scale_to_activity(free, snn.SparseSpikes.from_dense(x))
    scale_to_activity(capped, snn.SparseSpikes.from_dense(x))
    for ours, theirs in zip(free.layers, capped.layers):
        assert torch.equal(ours.weight, theirs.weight)
    assert [layer.max_spikes for layer in capped.layers] == [1, 1]
    assert {layer.grad_threshold for layer in capped.layers} == {0.5}


def test_none_leaves_a_layer_and_biases_stay():
    net = snn.SparseNetwork([20, 60, 40], beta=0.9, bias=True, delay=0)
    before = [layer.bias.clone() for layer in net.layers]
    weight = net.layers[1].weight.clone()
    done = scale_to_activity(net, events(), [0.1, None])
    assert torch.equal(net.layers[1].weight, weight)
    assert (done[1].scale, done[1].target, done[1].reached) == (1.0, None, True)
    assert all(torch.equal(layer.bias, bias) for layer, bias in zip(net.layers, before))
    assert all(layer.weight.requires_grad for layer in net.layers)


def test_what_cannot_be_reached_is_said():
    net = network((20, 100, 50))
    with pytest.warns(RuntimeWarning, match=r"layer 0: .* an activity of 0\.\d+ instead of 0\.95"):
        done = scale_to_activity(net, events(), [0.95, None])
    assert not done[0].reached
    assert 0.2 < done[0].activity < 0.95
    with pytest.warns(RuntimeWarning, match=r"layer 0: .* an activity of 0\.\d+ instead of 0\.01"):
        scale_to_activity(network((20, 100, 50)), events(), [0.01, None], max_iterations=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scale_to_activity(net, events(), 0.1)


def test_silence_is_an_error_that_names_the_layer():
    net = network((20, 100, 50))
    with torch.no_grad():
        net.layers[0].weight.mul_(1e-6)
    with pytest.raises(ValueError, match=r"x: layer 1 cannot be scaled.*: layer 0 is silent on it"):
        scale_to_activity(net, events(), [None, 0.1])


# ---- rates


def rate_loss(dense, lower, upper, strength):
    rate = dense.mean((0, 1))
    return strength * ((rate - upper).clamp(min=0) ** 2 + (lower - rate).clamp(min=0) ** 2).mean()


def test_regularizer_is_its_formula_with_its_gradient():
    layers = [snn.SparseSpikes.from_dense(events(seed=seed, rate=rate)) for seed, rate in ((1, 0.3), (2, 0.05))]
    bounds = [(0.25, 0.3, 2.0), (0.1, 0.12, 5.0)]
    sparse = [layer.clone().requires_grad_() for layer in layers]
    dense = [layer.to_dense().requires_grad_() for layer in layers]
    regularizer = ActivityRegularizer(*zip(*bounds))
    loss = regularizer(sparse)
    expected = sum(rate_loss(layer, *bound) for layer, bound in zip(dense, bounds))
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert float(regularizer(dense)) == pytest.approx(float(expected), rel=1e-5)
    assert float(loss) > 1e-3
    loss.backward()
    expected.backward()
    for ours, theirs in zip(sparse, dense):
        used = torch.arange(ours.capacity) < ours.counts[..., 1:]
        gathered = theirs.grad.gather(2, ours.ids.long())
        assert_close(ours.values.grad[used], gathered[used])
        assert float(ours.values.grad[used].abs().max()) > 0
        assert not ours.values.grad[~used].any()


def test_no_loss_within_the_bounds():
    x = snn.SparseSpikes.from_dense(events())
    assert float(ActivityRegularizer(lower=0.0, upper=1.0)(x)) == 0
    assert float(ActivityRegularizer()([x, x])) == 0
    assert float(ActivityRegularizer(upper=0.01, strength=0.0)(x)) == 0
    assert float(ActivityRegularizer(upper=0.01)(x)) > 0


def small_network(**settings):
    return training.benchmark_network([20, 30, 10], **settings)


def schedule(**arguments):
    return GradThresholdSchedule(network(), **arguments)


def scaled(**arguments):
    return scale_to_activity(network(), **{"x": events(), **arguments})


@each_row(r"""
small_network(activity=0.0) | ValueError: activity must be above 0 and up to 1, got 0.0
small_network(activity=0.1, max_spikes=3) | ValueError: max_spikes: not allowed with activity
small_network(input_slots=3) | ValueError: input_slots: only with activity
small_network(decay=1.0) | ValueError: decay: expected a number from 0 to 1, 1 excluded
training.benchmark_slots(activity=0.1, num_neurons=0) | ValueError: num_neurons must be an int from 1 to
schedule(start=1.0) | ValueError: start: expected a number up to target=0.9, got 1
schedule(start=-math.inf) | ValueError: start: expected a finite number
schedule(target=math.nan) | ValueError: target: expected a finite number
schedule(every=0) | ValueError: every: expected a positive integer, got 0
scaled(target=0) | ValueError: target: expected numbers above 0 and below 1, got 0
scaled(target=[0.1]) | ValueError: target: expected 2 entries, one for each layer, got 1
scaled(tolerance=0) | ValueError: tolerance: expected a number above 0
scaled(max_iterations=0) | ValueError: max_iterations: expected a positive integer
scaled(x=torch.zeros(3, 4, 5)) | ValueError: x: expected a non-empty \[T, B, 20\], got \(3, 4, 5\)
scaled(x=torch.zeros(10, 4, 20)) | ValueError: x: layer 0 cannot be scaled.*: the batch is silent
scaled(x="x") | TypeError: x: expected SparseSpikes or a torch\.Tensor, got str
scale_to_activity(nn.Linear(2, 2), events()) | TypeError: network: expected a SparseNetwork, got Linear
ActivityRegularizer(upper=1.5) | ValueError: upper: expected numbers from 0 to 1, got 1.5
ActivityRegularizer(strength=-1) | ValueError: strength: expected numbers from 0 to inf, got -1
ActivityRegularizer(strength=None) | ValueError: strength: expected numbers
ActivityRegularizer(upper=[0.1, 0.2])([x]) | ValueError: upper: expected 1 entries, one for each layer, got 2
ActivityRegularizer(upper=0.1)([]) | TypeError: layers: expected
ActivityRegularizer(upper=0.1)("spikes") | TypeError: layers: expected
ActivityRegularizer(upper=0.1)([x, torch.zeros(3)]) | TypeError: layers: expected
""")
def test_wrong_arguments(row):
    assert_refused(row, globals(), math=math, x=snn.SparseSpikes.from_dense(events()))
