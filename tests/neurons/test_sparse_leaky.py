"""``snnipu.SparseLeaky``."""

import copy

import pytest
import snntorch
import torch
from oracle import (
    FUSED,
    RESETS,
    assert_slots,
    at_slots,
    dense_layer,
    densified,
    on_grid,
    random_spikes,
    relative_error,
    soft,
)
from torch import nn

import snnipu as snn
from snnipu import SparseSpikes, surrogate

PATHS = ["auto", "sparse", "dense"]


def made(inputs=40, outputs=65, **keywords):
    """A layer whose sums are exact, in whatever order, and that spikes now and then."""
    layer = snn.SparseLeaky(inputs, outputs, **{"beta": 0.85, "threshold": 0.7, **keywords})
    with torch.no_grad():
        layer.weight.copy_(on_grid(outputs, inputs) + 1 / 8)
        if layer.bias is not None:
            layer.bias.copy_(on_grid(outputs, most=0.25))
        if layer.recurrent_weight is not None:
            layer.recurrent_weight.copy_(on_grid(outputs, outputs, most=0.25))
    return layer


def oracle(layer, x, delay=0, spike_grad=None):
    """The layer by the dense oracle, on copies of its parameters: spikes, slots, and the copies."""
    own = {"beta": layer.beta, "threshold": layer.threshold, **dict(layer.named_parameters())}
    own = {name: value.detach().clone().requires_grad_() for name, value in own.items()}
    spk, slots, _ = dense_layer(
        x,
        grad_threshold=layer.grad_threshold,
        max_spikes=layer.max_spikes,
        reset_mechanism=layer.reset_mechanism,
        input_scale=layer.input_scale,
        overflow=layer.overflow_order,
        spike_grad=spike_grad,
        delay=delay,
        **own,
    )
    return spk, slots, own


def assert_equals_oracle(layer, x, spike_grad=None, tolerance=1e-5):
    dense = densified(x.values, x) if isinstance(x, SparseSpikes) else x
    spk, slots, own = oracle(layer, dense, spike_grad=spike_grad)
    upstream = torch.randn_like(spk)
    (spk * upstream).sum().backward()
    layer.zero_grad()
    out = layer(x)
    assert_slots(out, slots)
    (out.to_dense() * upstream).sum().backward()
    for name, parameter in layer.named_parameters():
        terms = own["weight"].grad if parameter.numel() == 1 else None
        assert relative_error(parameter.grad, own[name].grad, terms) <= tolerance, name
    assert layer.weight.grad.any()
    return out


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "keywords",
    [
        {"grad_threshold": 0.3},
        {"grad_threshold": 0.3, "max_spikes": 12, "overflow": "rotate"},
        {"max_spikes": 12},
        {"max_spikes": 0},
        {"grad_threshold": 0.3, "input_scale": 0.5, "bias": True},
        {
            "beta": torch.linspace(0, 1, 65),
            "threshold": torch.linspace(1.3, 0.3, 65),
            "learn_beta": True,
            "learn_threshold": True,
        },
        {"learn_beta": True, "grad_threshold": 0.2, "reset_mechanism": "subtract"},
    ],
    ids=",".join,
)
def test_every_path_equals_the_oracle(keywords, path):
    layer = made(path=path, **keywords)
    for rate in (0.1, 0.6):
        spikes = random_spikes(7, 3, 40, rate, 0.0)
        if keywords.get("max_spikes") == 0:
            assert layer(spikes).num_spikes == 0
            assert layer.overflow > 0
            continue
        for x in (spikes, densified(spikes.values, spikes)):
            out = assert_equals_oracle(layer, x)
            assert layer.overflow == out.overflow
            assert layer.activity == out.activity


def test_snntorchs_surrogates_are_recognised():
    for ours, theirs in (FUSED["atan"], FUSED["fast_sigmoid"]):
        assert snn.SparseLeaky(3, 4, beta=0.9, spike_grad=theirs).spike_grad == ours
    assert snn.SparseLeaky(3, 4, beta=0.9, spike_grad=soft).spike_grad is soft


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("delay", [0, 1, 3, 9])
def test_delay(delay, path):
    layer = made(path=path, bias=True, threshold=0.3)
    spikes = random_spikes(5, 3, 40)
    for x in (spikes, densified(spikes.values, spikes)):
        spk, slots, _ = oracle(layer, densified(spikes.values, spikes), delay)
        assert spk.any()
        assert_slots(layer(x, delay=delay), slots)


def test_recurrent():
    layer = made(recurrent=True, bias=True, grad_threshold=0.3, max_spikes=30)
    spikes = random_spikes(7, 3, 40)
    for x in (spikes, densified(spikes.values, spikes)):
        assert_equals_oracle(layer, x)
    assert layer.recurrent_weight.grad.any()
    assert "recurrent=True" in repr(layer)
    for call in (layer.to_dense, layer.dense_state_dict, lambda: layer.membranes(spikes)):
        with pytest.raises(ValueError, match="a recurrent layer"):
            call()
    with pytest.raises(ValueError, match="a recurrent layer"):
        layer.load_dense_state_dict({})
    with pytest.raises(ValueError, match="spike_grad must be a fused surrogate"):
        made(recurrent=True, spike_grad=soft)


@pytest.mark.parametrize("path", PATHS)
def test_the_gradient_of_the_input(path):
    layer = made(path=path, grad_threshold=0.2)
    spikes = random_spikes(6, 3, 40, 0.2, 0.2).requires_grad_()
    x = densified(spikes.values, spikes).requires_grad_()
    spk, _, _ = oracle(layer, x)
    upstream = torch.randn_like(spk)
    (spk * upstream).sum().backward()
    (layer(spikes).to_dense() * upstream).sum().backward()
    assert relative_error(spikes.values.grad, at_slots(x.grad, spikes)) <= 1e-5
    leaf = x.detach().clone().requires_grad_()
    (layer(leaf).to_dense() * upstream).sum().backward()
    # The zeros of a dense input have a gradient, but where it was made sparse on request.
    expected = x.grad * (x != 0) if path == "sparse" else x.grad
    assert relative_error(leaf.grad, expected) <= 1e-5


@pytest.mark.parametrize("path", PATHS)
def test_membranes(path):
    layer = made(path=path, bias=True, input_scale=0.5)
    spikes = random_spikes(6, 3, 40)
    for delay in (0, 1):
        own = {"beta": layer.beta, "threshold": layer.threshold, "bias": layer.bias}
        _, _, mem = dense_layer(densified(spikes.values, spikes), layer.weight, **own, input_scale=0.5, delay=delay)
        assert torch.equal(layer.membranes(spikes, delay=delay), mem)
        assert torch.equal(layer.membranes(densified(spikes.values, spikes), delay=delay), mem)
    mem = layer.membranes(spikes)
    mem.sum().backward()
    assert layer.weight.grad.any()


def test_parameters_and_buffers():
    layer = snn.SparseLeaky(3, 4, beta=0.9)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert [name for name, _ in layer.named_buffers()] == ["beta", "threshold"]
    assert sorted(layer.state_dict()) == ["beta", "threshold", "weight"]
    layer = snn.SparseLeaky(3, 4, beta=0.9, learn_beta=True, learn_threshold=True, bias=True, recurrent=True)
    assert sorted(name for name, _ in layer.named_parameters()) == [
        "beta",
        "bias",
        "recurrent_weight",
        "threshold",
        "weight",
    ]
    given = torch.rand(4)
    layer = snn.SparseLeaky(3, 4, beta=given, learn_beta=True)
    with torch.no_grad():
        layer.beta += 1
    assert (given <= 1).all()
    torch.manual_seed(3)
    linear = nn.Linear(3, 4)
    torch.manual_seed(3)
    layer = snn.SparseLeaky(3, 4, beta=0.9, bias=True)
    assert torch.equal(layer.weight, linear.weight)
    assert torch.equal(layer.bias, linear.bias)


@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"bias": True},
        {"learn_beta": True, "learn_threshold": True},
        {"beta": torch.linspace(0, 1, 65), "threshold": torch.linspace(1.3, 0.3, 65), "bias": True},
        {"input_scale": 0.5, "bias": True},
    ],
    ids=",".join,
)
def test_to_and_from_the_dense_layer(keywords, reset):
    layer = made(reset_mechanism=reset, spike_grad=surrogate.fast_sigmoid(10), **keywords)
    spikes = random_spikes(7, 3, 40)
    linear, leaky = layer.to_dense()
    assert isinstance(linear, nn.Linear)
    assert isinstance(leaky, snn.Leaky)
    assert isinstance(leaky.beta, nn.Parameter) == keywords.get("learn_beta", False)
    spk, _ = leaky.sequence(linear(densified(spikes.values, spikes)))
    upstream = torch.randn_like(spk)
    (spk * upstream).sum().backward()
    out = layer(spikes)
    assert torch.equal(out.to_dense(), spk)
    (out.to_dense() * upstream).sum().backward()
    expected = linear.weight.grad * layer.input_scale
    assert relative_error(layer.weight.grad, expected) <= 1e-5

    state = layer.dense_state_dict()
    assert state.keys() == nn.Sequential(linear, leaky).state_dict().keys()
    nn.Sequential(linear, leaky).load_state_dict(state)
    other = snn.SparseLeaky(
        40,
        65,
        beta=0.1,
        reset_mechanism=reset,
        bias=keywords.get("bias", False),
        input_scale=keywords.get("input_scale", 1.0),
        learn_beta=keywords.get("learn_beta", False),
    )
    other.load_dense_state_dict(state)
    assert torch.equal(other(spikes).to_dense(), spk)
    assert isinstance(other.beta, nn.Parameter) == keywords.get("learn_beta", False)


def test_load_dense_state_dict_of_snntorch():
    linear, leaky = nn.Linear(40, 65), snntorch.Leaky(0.8, threshold=0.4)
    layer = snn.SparseLeaky(40, 65, beta=0.9, bias=True)
    layer.load_dense_state_dict(nn.Sequential(linear, leaky).state_dict())
    assert torch.equal(layer.weight, linear.weight)
    assert torch.equal(layer.bias, linear.bias)
    assert layer.beta == 0.8
    assert layer.threshold == 0.4


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "state must hold .* got \\[\\]"),
        ({"0.weight": torch.zeros(4, 3), "1.beta": torch.tensor(0.9)}, "state must hold"),
        (
            {
                "0.weight": torch.zeros(4, 3),
                "0.bias": torch.zeros(4),
                "1.beta": torch.ones(()),
                "1.threshold": torch.ones(()),
            },
            "state must hold .* and no other weights",
        ),
        (
            {"0.weight": torch.zeros(4, 4), "1.beta": torch.ones(()), "1.threshold": torch.ones(())},
            r"state: weight must have shape \(4, 3\), got \(4, 4\)",
        ),
        (
            {"0.weight": torch.zeros(3, 4), "1.beta": torch.ones(()), "1.threshold": torch.ones(())},
            r"state: weight must have shape \(4, 3\), got \(3, 4\)",
        ),
        (
            {"0.weight": torch.zeros(4, 3), "1.beta": torch.ones(7), "1.threshold": torch.ones(())},
            r"state: beta must have .*, got \(7,\)",
        ),
    ],
)
def test_bad_dense_state(state, message):
    layer = snn.SparseLeaky(3, 4, beta=0.9)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match=message):
        layer.load_dense_state_dict(state)
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_activity_and_overflow_are_of_the_last_forward():
    layer = made(max_spikes=2)
    assert layer.activity is layer.overflow is None
    out = layer(random_spikes(6, 3, 40))
    assert layer.activity == out.activity == out.num_spikes / (6 * 3 * 65)
    assert layer.overflow == out.overflow > 0
    again = layer(random_spikes(6, 3, 40, 0.0, 0.0))
    assert again.num_spikes == layer.activity == layer.overflow == 0
    # Nothing of the graph or of the spikes is kept alive.
    assert not hasattr(layer._last, "values")
    assert not any(isinstance(kept, torch.Tensor) and kept.requires_grad for kept in layer._last)


def test_repr():
    assert repr(snn.SparseLeaky(3, 4, beta=0.9)) == (
        "SparseLeaky(in_features=3, out_features=4, beta=0.9, threshold=1, reset_mechanism='zero')"
    )
    text = repr(
        snn.SparseLeaky(3, 4, beta=torch.rand(4), grad_threshold=0.5, max_spikes=2, input_scale=2, path="dense")
    )
    for part in ("beta=[4]", "grad_threshold=0.5", "max_spikes=2", "input_scale=2.0", "path='dense'"):
        assert part in text
