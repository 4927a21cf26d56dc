"""``snnipu.SparseNetwork``."""

import copy

import pytest
import torch
from oracle import (
    assert_slots,
    dense_layer,
    densified,
    on_grid,
    random_spikes,
    relative_error,
    slots_of,
)
from support.tables import assert_refused, each_row

import snnipu as snn
from snnipu import SparseSpikes

PATHS = ["auto", "sparse", "dense"]
SIZES = [40, 65, 33, 7]


def make_network(sizes=SIZES, **keywords):
    """Return a network whose sums are exact in every order, and whose layers all spike sometimes."""
    net = snn.SparseNetwork(sizes, **{"beta": 0.85, "threshold": 0.7, **keywords})
    with torch.no_grad():
        for layer in net.layers:
            layer.weight.copy_(on_grid(*layer.weight.shape, most=0.375) + 1 / 16)
            if layer.bias is not None:
                layer.bias.copy_(on_grid(layer.out_features, most=0.25))
    return net


def kept_inputs(x, net):
    """Return the input in at most ``max_spikes[0]`` slots, as a dense tensor and as slots."""
    slots = slots_of(x != 0, x != 0, net.max_input_spikes, net.overflow_order)
    return torch.where(slots.taken, x, torch.zeros(())), slots


def oracle(net, x, delay):
    """Run the network by the dense oracle on copies of its parameters.

    Return the spikes and slots of each layer, and the copies.
    """
    every, parameters = [], []
    for index, layer in enumerate(net.layers):
        copies = {"beta": layer.beta, "threshold": layer.threshold, **dict(layer.named_parameters())}
        copies = {name: value.detach().clone().requires_grad_() for name, value in copies.items()}
        x, slots, _ = dense_layer(
            x,
            grad_threshold=layer.grad_threshold,
            max_spikes=layer.max_spikes,
            reset_mechanism=layer.reset_mechanism,
            input_scale=layer.input_scale,
            overflow=layer.overflow_order,
            delay=delay if index else 0,
            **copies,
        )
        every.append((x, slots))
        parameters.append(copies)
    return every, parameters


def assert_equals_oracle(net, x, delay, tolerance=1e-5):
    dense = densified(x.values, x) if isinstance(x, SparseSpikes) else x
    dense, taken = kept_inputs(dense, net)
    expected, parameters = oracle(net, dense, delay)
    upstream = torch.randn_like(expected[-1][0])
    (expected[-1][0] * upstream).sum().backward()
    net.zero_grad()
    every = net(x, all_layers=True)
    for out, (_, slots) in zip(every, expected):
        assert_slots(out, slots)
    assert net.overflow == [int(slots.dropped[..., 0].sum()) for _, slots in expected]
    if net.max_input_spikes is not None:
        assert net.input_overflow == int(taken.dropped[..., 0].sum())
    (every[-1].to_dense() * upstream).sum().backward()
    for layer, copies in zip(net.layers, parameters):
        for name, parameter in layer.named_parameters():
            terms = copies["weight"].grad if parameter.numel() == 1 else None
            assert relative_error(parameter.grad, copies[name].grad, terms) <= tolerance, name
    assert net.layers[-1].weight.grad.any()
    return every


# ---- no cap, no second threshold: a stack of nn.Linear and Leaky


def test_delay_is_between_layers_only():
    """The first layer reads its input in the same step, the others one step later."""
    net = snn.SparseNetwork([1, 1, 1, 1], beta=0.0, threshold=0.5)
    with torch.no_grad():
        for layer in net.layers:
            layer.weight.fill_(1)
    x = torch.zeros(5, 1, 1)
    x[1] = 1
    assert [out.to_dense().flatten().nonzero().tolist() for out in net(x, all_layers=True)] == [[[1]], [[2]], [[3]]]
    net.delay = 0
    assert [out.to_dense().flatten().nonzero().tolist() for out in net(x, all_layers=True)] == [[[1]]] * 3
    net.delay = 1
    assert net(x[:3]).num_spikes == 0  # still in transit


def test_one_entry_for_each_layer():
    options = {
        "beta": [0.9, torch.rand(33), 0.5],
        "threshold": (torch.rand(65) + 0.5, 0.75, 0.5),
        "input_scale": [1.0, 0.5, 2.0],
        "grad_threshold": [0.25, None, -0.5],
        "max_spikes": [None, 30, None, 3],
    }
    net = make_network(**options, learn_beta=True, bias=True)
    for index, layer in enumerate(net.layers):
        for name in ("beta", "threshold"):
            assert torch.equal(getattr(layer, name), torch.as_tensor(options[name][index]))
        assert layer.input_scale == options["input_scale"][index]
        assert layer.grad_threshold == options["grad_threshold"][index]
        assert layer.max_spikes == options["max_spikes"][index + 1]
    assert_equals_oracle(net, random_spikes(9, 3, 40), delay=1)
    # A tensor is one layer's parameter, not a list with an entry for each layer.
    with pytest.raises(ValueError, match=r"beta must have one element or shape \(4,\), got \(2,\)"):
        snn.SparseNetwork([3, 4, 5], beta=torch.rand(2))


# ---- caps and second thresholds


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
@pytest.mark.parametrize(
    "keywords",
    [
        {"grad_threshold": 0.3},
        {"max_spikes": 6},
        {"max_spikes": [5, 20, 12, 3], "grad_threshold": 0.3, "learn_beta": True, "learn_threshold": True},
        {"max_spikes": [None, 70, 12, 7], "grad_threshold": [0.6, 0.2, None], "reset_mechanism": "subtract"},
        {"sizes": [65, 1, 64, 128], "grad_threshold": -1.0, "reset_mechanism": "none"},
    ],
    ids=",".join,
)
def test_caps_and_second_thresholds(keywords, overflow, delay):
    net = make_network(overflow=overflow, delay=delay, bias=True, **keywords)
    spikes = random_spikes(7, 3, net.sizes[0], 0.3, 0.0)
    for path in PATHS:
        for layer in (net, *net.layers):
            layer.path = path
        for x in (spikes, densified(spikes.values, spikes)):
            every = assert_equals_oracle(net, x, delay)
            for out, layer in zip(every, net.layers):
                assert layer.max_spikes is None or out.capacity <= layer.max_spikes


def test_the_input_is_limited():
    net = make_network(max_spikes=[4, None, None, None], overflow="rotate")
    spikes = random_spikes(7, 3, 40, 0.3, 0.1)
    out = net(spikes)
    dropped = int((spikes.counts[..., 0] - spikes.counts[..., 0].clamp(max=4)).sum())
    assert net.input_overflow == dropped > 0
    assert net.input_activity == int(spikes.counts[..., 0].clamp(max=4).sum()) / (7 * 3 * 40)
    limited = spikes.limit(4, overflow="rotate")
    net.max_input_spikes = None
    assert torch.equal(net(limited).to_dense(), out.to_dense())
    # Spikes that the input dropped count as well.
    assert net.input_overflow == dropped
    assert net(spikes).num_spikes != out.num_spikes


@pytest.mark.parametrize("path", PATHS)
def test_statistics_of_the_input(path):
    net = make_network(path=path)
    assert net.input_activity is None
    assert net.input_overflow == 0
    for rate in (0.1, 0.9):
        spikes = random_spikes(7, 3, 40, rate, 0.0)
        net(spikes)
        assert net.input_activity == spikes.activity
        net(densified(spikes.values, spikes))
        stays_dense = path == "dense" or (path == "auto" and rate == 0.9)
        assert net.input_activity == (None if stays_dense else spikes.activity)
        assert net.input_overflow == 0


def test_activity_and_overflow_are_of_the_last_forward():
    net = make_network(max_spikes=[40, 2, 2, 2])
    assert net.activity is net.overflow is None
    every = net(random_spikes(7, 3, 40, 0.3, 0.0), all_layers=True)
    assert net.activity == [out.activity for out in every]
    assert net.overflow == [out.overflow for out in every]
    assert all(isinstance(number, float) for number in net.activity)
    assert net.overflow[0] > 0
    net(torch.zeros(7, 3, 40))
    assert net.activity == [0.0] * 3
    assert net.overflow == [0] * 3
    # The network keeps neither the graph nor the spikes alive.
    assert not hasattr(net._input, "values")


@pytest.mark.parametrize("path", PATHS)
def test_the_gradient_of_the_input(path):
    """A dense input gets all of its gradient, except on the sparse path; spikes get it in every used slot."""
    net = make_network(path=path, delay=0, grad_threshold=0.2)
    spikes = random_spikes(7, 3, 40, 0.2, 0.2)
    x = densified(spikes.values, spikes).requires_grad_()
    expected, _ = oracle(net, x, 0)
    upstream = torch.randn_like(expected[-1][0])
    (expected[-1][0] * upstream).sum().backward()
    leaf = x.detach().clone().requires_grad_()
    (net(leaf).to_dense() * upstream).sum().backward()
    assert relative_error(leaf.grad, x.grad * (x != 0) if path == "sparse" else x.grad) <= 1e-5
    spikes.requires_grad_()
    (net(spikes).to_dense() * upstream).sum().backward()
    carried = densified(torch.ones_like(spikes.values), spikes)
    assert relative_error(densified(spikes.values.grad, spikes), x.grad * carried) <= 1e-5


# ---- state


def test_parameters_and_state_dict():
    net = make_network(bias=True, learn_beta=True, threshold=[torch.rand(65) + 0.5, 0.6, 0.7])
    names = {name for name, _ in net.named_parameters()}
    assert names == {f"layers.{i}.{name}" for i in range(3) for name in ("weight", "bias", "beta")}
    assert set(net.state_dict()) == names | {f"layers.{i}.threshold" for i in range(3)}


def test_to_dense_with_a_delay():
    with pytest.raises(ValueError, match="to_dense: MultiStep passes spikes on within a step"):
        make_network().to_dense()
    single = make_network([40, 7])
    spikes = random_spikes(7, 3, 40)
    assert torch.equal(single.to_dense()(densified(spikes.values, spikes))[0], single(spikes).to_dense())
    # The parameters do not depend on the delay.
    other = make_network()
    other.load_dense_state_dict(make_network(delay=0, beta=0.3).dense_state_dict())
    assert other.layers[2].beta == pytest.approx(0.3)


@each_row(r"""
{} | layer 0: state must hold
{name: value for name, value in state.items() if name != "2.weight"} | layer 1: state must hold
{**state, "4.weight": torch.ones(7, 7)} | layer 2: state: weight must have shape \(7, 33\)
{**state, "5.beta": torch.ones(3)} | layer 2: state: beta must have shape \(7,\), got \(3,\)
{**state, "6.weight": torch.ones(7, 7)} | state must have the modules 0 to 5, got
{**state, "weight": torch.ones(7, 7)} | state must have the modules 0 to 5, got
""")
def test_bad_dense_state(row):
    net = make_network()
    before = copy.deepcopy(net.state_dict())
    wrong, message = row.split(" | ")
    with pytest.raises(ValueError, match=message):
        net.load_dense_state_dict(eval(wrong, {"torch": torch, "state": make_network(beta=0.3).dense_state_dict()}))
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


# ---- odd sizes and contents


@pytest.mark.parametrize("path", PATHS)
def test_no_spikes_at_all(path):
    net = make_network(path=path, learn_beta=True, learn_threshold=True)
    for x in (torch.zeros(5, 3, 40), random_spikes(5, 3, 40, 0.0, 0.0), random_spikes(5, 3, 40, 0.0, 0.3)):
        every = net(x, all_layers=True)
        assert [out.num_spikes for out in every] == [0, 0, 0]
        assert net.activity == [0.0] * 3
        net.zero_grad()
        every[-1].to_dense().sum().backward()
        for layer in net.layers:
            assert not layer.weight.grad.any()
            # Every neuron carries gradient at a membrane of 0, so that a silent network can learn to spike.
            assert torch.isfinite(layer.threshold.grad).all()
        assert net.layers[-1].threshold.grad < 0


# ---- wrong input


def network(sizes=(5, 4, 3), **options):
    return snn.SparseNetwork(sizes, **{"beta": 0.9, **options})


@each_row(r"""
network(5) | TypeError: sizes must be a sequence of ints, got 5
network("345") | TypeError: sizes must be a sequence of ints
network([5]) | ValueError: sizes must have an entry for the input and one for each layer, got \[5\]
network([5, 0, 3]) | ValueError: sizes must be at least 1, got 0
network([5, 4.0, 3]) | TypeError: sizes must be an int, got 4.0
network(delay=2) | ValueError: delay must be 0 or 1, got 2
network(delay=True) | ValueError: delay must be 0 or 1, got True
network(beta=[0.9]) | ValueError: beta must have 2 entries, one for each layer, got 1
network(beta=[0.9, "x"]) | TypeError: beta must be a number or a torch.Tensor, got 'x'
network(threshold=[1.0, 1.0, 1.0]) | ValueError: threshold must have 2 entries
network(threshold=[1.0, torch.ones(4)]) | ValueError: threshold must have one element or shape \(3,\), got \(4,\)
network(grad_threshold=[0.5]) | ValueError: grad_threshold must have 2 entries
network(max_spikes=[4, 4]) | ValueError: max_spikes must have 3 entries, one for the input and for each layer
network(max_spikes=[-1, 4, 3]) | ValueError: max_spikes must be at least 0, got -1
network(input_scale=[1.0]) | ValueError: input_scale must have 2 entries
network(input_scale=[1.0, 0]) | ValueError: input_scale must be a number other than 0, got 0
""")
def test_bad_arguments(row):
    assert_refused(row, globals())
