"""``snnipu.SparseNetwork``."""

import copy
import inspect
import pickle

import pytest
import torch
from oracle import (
    FUSED,
    RESETS,
    assert_all_equal,
    assert_slots,
    dense_layer,
    densified,
    on_grid,
    random_spikes,
    relative_error,
    slots_of,
    soft,
    with_threads,
)
from torch import nn

import snnipu as snn
from snnipu import SparseSpikes, surrogate

PATHS = ["auto", "sparse", "dense"]
SIZES = [40, 65, 33, 7]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def made(sizes=SIZES, **keywords):
    """A network whose sums are exact, in whatever order, and whose layers all spike now and then."""
    net = snn.SparseNetwork(sizes, **{"beta": 0.85, "threshold": 0.7, **keywords})
    with torch.no_grad():
        for layer in net.layers:
            layer.weight.copy_(on_grid(*layer.weight.shape, most=0.375) + 1 / 16)
            if layer.bias is not None:
                layer.bias.copy_(on_grid(layer.out_features, most=0.25))
    return net


def later(spk, delay):
    """``delay`` steps later, zeros first."""
    return torch.cat([torch.zeros_like(spk[:delay]), spk[: spk.shape[0] - delay]])


def stack_of(net):
    """``nn.Linear`` and ``Leaky`` for each layer, with copies of its parameters."""
    modules = []
    for layer in net.layers:
        linear = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        linear.load_state_dict({key: value for key, value in layer.named_parameters() if key in ("weight", "bias")})
        leaky = snn.Leaky(
            layer.beta.detach().clone(),
            threshold=layer.threshold.detach().clone(),
            learn_beta=isinstance(layer.beta, nn.Parameter),
            learn_threshold=isinstance(layer.threshold, nn.Parameter),
            reset_mechanism=layer.reset_mechanism,
            spike_grad=layer.spike_grad,
        )
        modules.append((linear, leaky))
    return modules


def run_stack(modules, x, delay):
    """Spikes of each layer, dense."""
    spks = []
    for index, (linear, leaky) in enumerate(modules):
        spk, _ = leaky.sequence(linear(later(x, delay) if index else x))
        spks.append(spk)
        x = spk
    return spks


def assert_gradients_equal_the_stack(net, modules, tolerance=1e-5):
    for layer, (linear, leaky) in zip(net.layers, modules):
        pairs = [(layer.weight, linear.weight), (layer.bias, linear.bias)]
        pairs += [(layer.beta, leaky.beta), (layer.threshold, leaky.threshold)]
        assert layer.weight.grad.any()
        for own, expected in pairs:
            if isinstance(own, nn.Parameter):
                # A scalar parameter's gradient is a sum over all neurons that may cancel.
                terms = linear.weight.grad if own.numel() == 1 else None
                assert relative_error(own.grad, expected.grad, terms) <= tolerance


def assert_equals_stack(net, x, delay):
    """Spikes of every layer, statistics, and the gradient of every parameter."""
    modules = stack_of(net)
    spks = run_stack(modules, densified(x.values, x) if isinstance(x, SparseSpikes) else x, delay)
    upstream = torch.randn_like(spks[-1])
    (spks[-1] * upstream).sum().backward()
    net.zero_grad()
    every = net(x, all_layers=True)
    for out, spk in zip(every, spks):
        assert isinstance(out, SparseSpikes)
        assert spk.any()
        assert torch.equal(out.to_dense(), spk)
    assert net.activity == pytest.approx([float(spk.detach().mean()) for spk in spks], rel=1e-6)
    assert net.overflow == [0] * len(spks)
    (every[-1].to_dense() * upstream).sum().backward()
    assert_gradients_equal_the_stack(net, modules)


def kept_inputs(x, net):
    """The input in at most ``max_spikes[0]`` slots: dense, and the slots."""
    slots = slots_of(x != 0, x != 0, net.max_input_spikes, net.overflow_order)
    return torch.where(slots.taken, x, torch.zeros(())), slots


def oracle(net, x, delay):
    """The network by the dense oracle on copies of its parameters: spikes and slots of each layer, and the copies."""
    every, parameters = [], []
    for index, layer in enumerate(net.layers):
        own = {"beta": layer.beta, "threshold": layer.threshold, **dict(layer.named_parameters())}
        own = {name: value.detach().clone().requires_grad_() for name, value in own.items()}
        x, slots, _ = dense_layer(
            x,
            grad_threshold=layer.grad_threshold,
            max_spikes=layer.max_spikes,
            reset_mechanism=layer.reset_mechanism,
            input_scale=layer.input_scale,
            overflow=layer.overflow_order,
            delay=delay if index else 0,
            **own,
        )
        every.append((x, slots))
        parameters.append(own)
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
    for layer, own in zip(net.layers, parameters):
        for name, parameter in layer.named_parameters():
            terms = own["weight"].grad if parameter.numel() == 1 else None
            assert relative_error(parameter.grad, own[name].grad, terms) <= tolerance, name
    assert net.layers[-1].weight.grad.any()
    return every


def test_signature():
    parameters = inspect.signature(snn.SparseNetwork).parameters
    pinned = {
        "max_spikes": None,
        "grad_threshold": None,
        "delay": 1,
        "threshold": 1.0,
        "reset_mechanism": "zero",
        "spike_grad": None,
        "bias": False,
        "learn_beta": False,
        "learn_threshold": False,
        "input_scale": 1.0,
        "overflow": "lowest",
    }
    assert list(parameters)[:2] == ["sizes", "beta"]
    assert {name: parameters[name].default for name in pinned} == pinned
    assert all(p.kind is p.KEYWORD_ONLY for name, p in parameters.items() if name != "sizes")
    assert parameters["beta"].default is inspect.Parameter.empty


# ---- no cap, no second threshold: a stack of nn.Linear and Leaky


@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("delay", [0, 1])
def test_equals_the_dense_stack(delay, reset):
    net = made(delay=delay, reset_mechanism=reset, bias=True, learn_beta=True, learn_threshold=True)
    spikes = random_spikes(9, 3, 40, 0.2, 0.0)
    for path in PATHS:
        for layer in (net, *net.layers):
            layer.path = path
        assert_equals_stack(net, spikes, delay)
        assert_equals_stack(net, densified(spikes.values, spikes), delay)


@pytest.mark.parametrize("name", FUSED)
def test_surrogates(name):
    delay = list(FUSED).index(name) % 2
    net = made(delay=delay, spike_grad=FUSED[name][0])
    for path in ("sparse", "dense"):
        for layer in (net, *net.layers):
            layer.path = path
        assert_equals_stack(net, random_spikes(9, 3, 40, 0.2, 0.0), delay)


def test_delay_is_between_layers_only():
    """The first layer reads its input at once, each of the others a step later."""
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
    assert net(x[:3]).num_spikes == 0  # still on the way


def test_one_entry_for_each_layer():
    options = {
        "beta": [0.9, torch.rand(33), 0.5],
        "threshold": (torch.rand(65) + 0.5, 0.75, 0.5),
        "input_scale": [1.0, 0.5, 2.0],
        "grad_threshold": [0.25, None, -0.5],
        "max_spikes": [None, 30, None, 3],
    }
    net = made(**options, learn_beta=True, bias=True)
    for index, layer in enumerate(net.layers):
        for name in ("beta", "threshold"):
            assert torch.equal(getattr(layer, name), torch.as_tensor(options[name][index]))
        assert layer.input_scale == options["input_scale"][index]
        assert layer.grad_threshold == options["grad_threshold"][index]
        assert layer.max_spikes == options["max_spikes"][index + 1]
    assert_equals_oracle(net, random_spikes(9, 3, 40), delay=1)
    # A tensor is one layer's parameter, not an entry for each.
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
    ],
    ids=",".join,
)
def test_caps_and_second_thresholds(keywords, overflow, delay):
    net = made(overflow=overflow, delay=delay, bias=True, **keywords)
    spikes = random_spikes(7, 3, 40, 0.3, 0.0)
    for path in PATHS:
        for layer in (net, *net.layers):
            layer.path = path
        for x in (spikes, densified(spikes.values, spikes)):
            every = assert_equals_oracle(net, x, delay)
            for out, layer in zip(every, net.layers):
                assert layer.max_spikes is None or out.capacity <= layer.max_spikes


def test_the_input_is_limited():
    net = made(max_spikes=[4, None, None, None], overflow="rotate")
    spikes = random_spikes(7, 3, 40, 0.3, 0.1)
    out = net(spikes)
    wanted = int((spikes.counts[..., 0] - spikes.counts[..., 0].clamp(max=4)).sum())
    assert net.input_overflow == wanted > 0
    assert net.input_activity == int(spikes.counts[..., 0].clamp(max=4).sum()) / (7 * 3 * 40)
    limited = spikes.limit(4, overflow="rotate")
    net.max_input_spikes = None
    assert torch.equal(net(limited).to_dense(), out.to_dense())
    # What the input itself has lost counts as well.
    assert net.input_overflow == wanted
    assert net(spikes).num_spikes != out.num_spikes


@pytest.mark.parametrize("path", PATHS)
def test_statistics_of_the_input(path):
    net = made(path=path)
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
    net = made(max_spikes=[40, 2, 2, 2])
    assert net.activity is net.overflow is None
    every = net(random_spikes(7, 3, 40, 0.3, 0.0), all_layers=True)
    assert net.activity == [out.activity for out in every]
    assert net.overflow == [out.overflow for out in every]
    assert all(isinstance(number, float) for number in net.activity)
    assert net.overflow[0] > 0
    net(torch.zeros(7, 3, 40))
    assert net.activity == [0.0] * 3
    assert net.overflow == [0] * 3
    # No spikes and no graph are kept alive.
    assert not hasattr(net._input, "values")


def test_the_last_layer_is_what_is_returned():
    net = made()
    spikes = random_spikes(7, 3, 40)
    every = net(spikes, all_layers=True)
    assert [out.num_neurons for out in every] == SIZES[1:]
    out = net(spikes)
    assert isinstance(every, list)
    assert torch.equal(out.ids, every[-1].ids)
    assert torch.equal(out.values, every[-1].values)


@pytest.mark.parametrize("path", PATHS)
def test_the_gradient_of_the_input(path):
    """All of a dense input's, but of one that was made sparse on request; of spike ids at every carried slot."""
    net = made(path=path, delay=0, grad_threshold=0.2)
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
    net = made(bias=True, learn_beta=True, threshold=[torch.rand(65) + 0.5, 0.6, 0.7])
    names = {name for name, _ in net.named_parameters()}
    assert names == {f"layers.{i}.{name}" for i in range(3) for name in ("weight", "bias", "beta")}
    assert set(net.state_dict()) == names | {f"layers.{i}.threshold" for i in range(3)}
    other = made(bias=True, learn_beta=True, beta=0.1, threshold=[torch.ones(65), 1.0, 1.0])
    spikes = random_spikes(7, 3, 40)
    assert not torch.equal(other(spikes).to_dense(), net(spikes).to_dense())
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(spikes).to_dense(), net(spikes).to_dense())


def test_initial_weights_are_those_of_linear_layers():
    torch.manual_seed(3)
    net = snn.SparseNetwork([5, 4, 3], beta=0.9, bias=True)
    torch.manual_seed(3)
    for layer in net.layers:
        linear = nn.Linear(layer.in_features, layer.out_features)
        assert torch.equal(layer.weight, linear.weight)
        assert torch.equal(layer.bias, linear.bias)


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"bias": True, "learn_beta": True, "learn_threshold": True, "reset_mechanism": "subtract"},
        {"beta": [torch.linspace(0, 1, 65), 0.8, 0.7], "input_scale": 0.5, "spike_grad": surrogate.fast_sigmoid(10)},
    ],
    ids=",".join,
)
def test_to_and_from_the_dense_stack(keywords):
    net = made(delay=0, **keywords)
    spikes = random_spikes(9, 3, 40, 0.3, 0.0)
    dense = net.to_dense()
    assert isinstance(dense, snn.MultiStep)
    spk, _ = dense(densified(spikes.values, spikes))
    out = net(spikes)
    assert spk.any()
    assert torch.equal(out.to_dense(), spk)
    upstream = torch.randn_like(spk)
    (spk * upstream).sum().backward()
    (out.to_dense() * upstream).sum().backward()
    linears = [module for module in dense.modules() if isinstance(module, nn.Linear)]
    for layer, linear in zip(net.layers, linears):
        assert relative_error(layer.weight.grad, linear.weight.grad * layer.input_scale) <= 1e-5

    state = net.dense_state_dict()
    assert state.keys() == dense.state_dict().keys()
    dense.load_state_dict(state)
    options = {"bias": False, "input_scale": 1.0, "reset_mechanism": "zero", **keywords, "beta": 0.1}
    other = snn.SparseNetwork(SIZES, delay=0, threshold=9.0, **options)
    other.load_dense_state_dict(state)
    assert torch.equal(other(spikes).to_dense(), spk)


def test_to_dense_with_a_delay():
    with pytest.raises(ValueError, match="to_dense: MultiStep hands spikes on within a step"):
        made().to_dense()
    single = made([40, 7])
    spikes = random_spikes(7, 3, 40)
    assert torch.equal(single.to_dense()(densified(spikes.values, spikes))[0], single(spikes).to_dense())
    # The parameters themselves do not depend on it.
    other = made()
    other.load_dense_state_dict(made(delay=0, beta=0.3).dense_state_dict())
    assert other.layers[2].beta == pytest.approx(0.3)


def _without(state, name):
    return {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {}, "layer 0: state must hold"),
        (lambda state: _without(state, "2.weight"), "layer 1: state must hold"),
        (lambda state: {**state, "4.weight": torch.ones(7, 7)}, r"layer 2: state: weight must have shape \(7, 33\)"),
        (lambda state: {**state, "5.beta": torch.ones(3)}, r"layer 2: state: beta must have shape \(7,\), got \(3,\)"),
        (lambda state: {**state, "6.weight": torch.ones(7, 7)}, "state must have the modules 0 to 5, got"),
        (lambda state: {**state, "weight": torch.ones(7, 7)}, "state must have the modules 0 to 5, got"),
    ],
)
def test_bad_dense_state(change, message):
    net = made()
    before = copy.deepcopy(net.state_dict())
    state = change(made(beta=0.3).dense_state_dict())
    with pytest.raises(ValueError, match=message):
        net.load_dense_state_dict(state)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_copies_after_a_forward():
    net = made(bias=True, learn_beta=True, max_spikes=[9, 30, 30, 7], spike_grad=surrogate.sigmoid(5))
    spikes = random_spikes(7, 3, 40, 0.3, 0.0)
    out = net(spikes)
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(copied(spikes).to_dense(), out.to_dense())
        assert copied.input_overflow == net.input_overflow > 0
        assert copied.layers[0].weight is not net.layers[0].weight


def test_double_precision():
    net = made(bias=True, learn_beta=True, grad_threshold=0.2).to(torch.float64)
    for x in (random_spikes(6, 3, 40, dtype=torch.float64), random_spikes(6, 3, 40)):
        assert net(x).dtype == torch.float64
        every = net(densified(x.values, x), all_layers=True)
        assert all(out.dtype == torch.float64 for out in every)
    expected, parameters = oracle(net, densified(x.values, x).double(), 1)
    expected[-1][0].sum().backward()
    every[-1].to_dense().sum().backward()
    for out, (_, slots) in zip(every, expected):
        assert_slots(out, slots)
    for layer, own in zip(net.layers, parameters):
        assert layer.weight.grad.dtype == torch.float64
        assert relative_error(layer.weight.grad, own["weight"].grad) <= 1e-12


# ---- odd sizes and contents


@pytest.mark.parametrize("path", PATHS)
def test_no_spikes_at_all(path):
    net = made(path=path, learn_beta=True, learn_threshold=True)
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


@pytest.mark.parametrize("path", PATHS)
def test_a_layer_without_slots(path):
    net = made(path=path, max_spikes=[None, 0, None, None], bias=True)
    spikes = random_spikes(5, 3, 40, 0.3, 0.0)
    every = net(spikes, all_layers=True)
    assert every[0].capacity == every[0].num_spikes == 0
    free = made(path=path, bias=True)
    free.load_state_dict(net.state_dict())
    assert net.overflow[0] == free(spikes, all_layers=True)[0].num_spikes > 0
    # What comes behind it sees its bias only.
    expected = net.layers[1](torch.zeros(5, 3, 65))
    assert torch.equal(every[1].to_dense(), expected.to_dense())
    assert every[1].num_spikes > 0
    every[-1].to_dense().sum().backward()
    assert not net.layers[0].weight.grad.any()
    assert net.layers[2].weight.grad.any()
    nothing = made(path=path, max_spikes=0)
    assert nothing(spikes).capacity == 0
    assert nothing.input_overflow == spikes.num_spikes
    assert nothing.overflow == [0, 0, 0]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("steps", "batch", "sizes"),
    [(1, 3, SIZES), (1, 1, [1, 1, 1]), (6, 1, [1, 1]), (5, 3, [1, 64, 1]), (5, 3, [65, 1, 64, 128])],
)
@pytest.mark.parametrize("delay", [0, 1])
def test_small_sizes(delay, steps, batch, sizes, path):
    net = made(sizes, path=path, delay=delay, bias=True, grad_threshold=-1.0)
    spikes = random_spikes(steps, batch, sizes[0], 0.5, 0.0)
    expected, parameters = oracle(net, densified(spikes.values, spikes), delay)
    upstream = torch.randn_like(expected[-1][0])
    (expected[-1][0] * upstream).sum().backward()
    every = net(spikes, all_layers=True)
    for out, (_, slots) in zip(every, expected):
        assert_slots(out, slots)
    (every[-1].to_dense() * upstream).sum().backward()
    for layer, own in zip(net.layers, parameters):
        for name, parameter in layer.named_parameters():
            # With one step and a delay, a layer's output depends on its bias only.
            wanted = torch.zeros_like(parameter) if own[name].grad is None else own[name].grad
            assert relative_error(parameter.grad, wanted, upstream) <= 1e-5


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (5, 0), (0, 0)])
def test_empty(steps, batch, path):
    net = made(path=path, bias=True, learn_beta=True, learn_threshold=True)
    for x in (torch.zeros(steps, batch, 40), random_spikes(steps, batch, 40)):
        every = net(x, all_layers=True)
        assert [tuple(out.shape) for out in every] == [(steps, batch, n) for n in SIZES[1:]]
        assert net.activity == [0.0] * 3
        assert net.overflow == [0] * 3
        net.zero_grad()
        every[-1].to_dense().sum().backward()
        for parameter in net.parameters():
            assert not parameter.grad.any()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("delay", [0, 1])
def test_a_neuron_with_nan_weights_is_silent(delay, path):
    """A membrane that is NaN is above no threshold: the others go on as if that neuron were not there."""
    net = made(path=path, delay=delay, grad_threshold=0.3)
    without = copy.deepcopy(net)
    with torch.no_grad():
        net.layers[0].weight[3] = float("nan")
        without.layers[0].weight[3] = 0
    spikes = random_spikes(7, 3, 40, 0.3, 0.0)
    every, expected = (each(spikes, all_layers=True) for each in (net, without))
    for out, other in zip(every, expected):
        assert other.num_spikes > 0
        assert torch.equal(out.to_dense(), other.to_dense())
    every[-1].to_dense().sum().backward()
    expected[-1].to_dense().sum().backward()
    for layer, other in zip(net.layers[1:], without.layers[1:]):
        assert relative_error(layer.weight.grad, other.weight.grad) <= 1e-6


def test_values_other_than_one():
    net = made(delay=0)
    spikes = random_spikes(7, 3, 40, 0.3, 0.0, graded=True)
    assert_equals_stack(net, spikes, 0)


def test_the_number_of_threads_does_not_change_a_bit():
    net = made([700, 500, 300, 10], threshold=1.5, grad_threshold=1.0, bias=True, learn_beta=True, learn_threshold=True)
    spikes = random_spikes(12, 8, 700, 0.03, 0.0)
    upstream = torch.randn(12, 8, 10)

    def run():
        net.zero_grad()
        every = net(spikes, all_layers=True)
        (every[-1].to_dense() * upstream).sum().backward()
        grads = [parameter.grad.clone() for parameter in net.parameters()]
        return [part for out in every for part in (out.ids, out.values.detach(), out.counts)] + grads

    for path in ("sparse", "auto"):
        for layer in (net, *net.layers):
            layer.path = path
        results = with_threads(run, (1, 2))
        assert_all_equal(results)
        assert all(out > 0 for out in net.activity)


# ---- tools


def test_shapes_on_the_meta_device():
    for path in PATHS:
        net = made(path=path).to("meta")
        for x in (torch.zeros(5, 3, 40), random_spikes(5, 3, 40)):
            every = net(x.to("meta"), all_layers=True)
            assert [tuple(out.shape) for out in every] == [(5, 3, n) for n in SIZES[1:]]
            assert all(out.device.type == "meta" for out in every)


def test_a_surrogate_of_ones_own():
    net = made([40, 33, 7], spike_grad=soft, delay=0)
    spikes = random_spikes(7, 3, 40, 0.3, 0.0)
    out = net(spikes)
    expected = run_stack(stack_of(made([40, 33, 7])), densified(spikes.values, spikes), 0)
    assert out.num_neurons == expected[-1].shape[2]
    out.to_dense().sum().backward()
    assert all(layer.weight.grad.any() for layer in net.layers)


def test_repr():
    text = repr(snn.SparseNetwork([5, 4, 3], beta=0.9, max_spikes=[None, 2, 3]))
    assert text.startswith("SparseNetwork(\n  sizes=[5, 4, 3], delay=1")
    assert "SparseLeaky(in_features=4, out_features=3, beta=0.9" in text
    assert "max_spikes=2" in text


# ---- wrong input


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sizes": 5}, TypeError, "sizes must be a sequence of ints, got 5"),
        ({"sizes": "345"}, TypeError, "sizes must be a sequence of ints"),
        ({"sizes": [5]}, ValueError, r"sizes must have an entry for the input and one for each layer, got \[5\]"),
        ({"sizes": []}, ValueError, "sizes must have an entry"),
        ({"sizes": [5, 0, 3]}, ValueError, "sizes must be at least 1, got 0"),
        ({"sizes": [5, 4.0, 3]}, TypeError, "sizes must be an int, got 4.0"),
        ({"delay": 2}, ValueError, "delay must be 0 or 1, got 2"),
        ({"delay": True}, ValueError, "delay must be 0 or 1, got True"),
        ({"delay": None}, ValueError, "delay must be 0 or 1, got None"),
        ({"beta": [0.9]}, ValueError, "beta must have 2 entries, one for each layer, got 1"),
        ({"beta": [0.9, 0.9, 0.9]}, ValueError, "beta must have 2 entries"),
        ({"beta": [0.9, "x"]}, TypeError, "beta must be a number or a torch.Tensor, got 'x'"),
        ({"threshold": [1.0, 1.0, 1.0]}, ValueError, "threshold must have 2 entries"),
        (
            {"threshold": [1.0, torch.ones(4)]},
            ValueError,
            r"threshold must have one element or shape \(3,\), got \(4,\)",
        ),
        ({"grad_threshold": [0.5]}, ValueError, "grad_threshold must have 2 entries"),
        ({"max_spikes": [4, 4]}, ValueError, "max_spikes must have 3 entries, one for the input and for each layer"),
        ({"max_spikes": [-1, 4, 3]}, ValueError, "max_spikes must be 0 or more, got -1"),
        ({"max_spikes": [4, 4, 2.5]}, TypeError, "max_spikes must be an int or None, got 2.5"),
        ({"input_scale": [1.0]}, ValueError, "input_scale must have 2 entries"),
        ({"input_scale": [1.0, 0]}, ValueError, "input_scale must be a number other than 0, got 0"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        snn.SparseNetwork(**{"sizes": [5, 4, 3], "beta": 0.9, **arguments})
