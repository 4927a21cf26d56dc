"""``snnipu.SparseLeaky``."""

import copy

import pytest
import torch
from oracle import (
    dense_layer,
    densified,
    on_grid,
    random_spikes,
)
from support.tables import each_row
from torch import nn

import snnipu as snn

PATHS = ["auto", "sparse", "dense"]


def make_layer(inputs=40, outputs=65, **keywords):
    """Return a layer whose sums are exact in every order, and that spikes sometimes."""
    layer = snn.SparseLeaky(inputs, outputs, **{"beta": 0.85, "threshold": 0.7, **keywords})
    with torch.no_grad():
        layer.weight.copy_(on_grid(outputs, inputs) + 1 / 8)
        if layer.bias is not None:
            layer.bias.copy_(on_grid(outputs, most=0.25))
        if layer.recurrent_weight is not None:
            layer.recurrent_weight.copy_(on_grid(outputs, outputs, most=0.25))
    return layer


def test_a_recurrent_layer_has_no_dense_twin():
    layer = make_layer(recurrent=True)
    calls = [layer.to_dense, layer.dense_state_dict, lambda: layer.membranes(None)]
    for call in [*calls, lambda: layer.load_dense_state_dict({})]:
        with pytest.raises(ValueError, match="a recurrent layer"):
            call()


def test_zeros_of_a_dense_input_have_a_gradient_in_a_recurrent_layer():
    layer, x = make_layer(recurrent=True), random_spikes(7, 3, 40).to_dense().requires_grad_()
    layer.recurrent_weight.data.zero_()
    other = copy.deepcopy(layer)
    other.recurrent_weight = None
    grads = [torch.autograd.grad(each(x).to_dense().cumsum(-1).sum(), x)[0] for each in (layer, other)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("path", PATHS)
def test_membranes(path):
    layer = make_layer(path=path, bias=True, input_scale=0.5)
    spikes = random_spikes(6, 3, 40)
    for delay in (0, 1):
        parameters = {"beta": layer.beta, "threshold": layer.threshold, "bias": layer.bias}
        _, _, mem = dense_layer(
            densified(spikes.values, spikes), layer.weight, **parameters, input_scale=0.5, delay=delay
        )
        assert torch.equal(layer.membranes(spikes, delay=delay), mem)
        assert torch.equal(layer.membranes(densified(spikes.values, spikes), delay=delay), mem)
    mem = layer.membranes(spikes)
    mem.sum().backward()
    assert layer.weight.grad.any()


def test_parameters_and_buffers():
    layer = snn.SparseLeaky(3, 4, beta=0.9)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert [name for name, _ in layer.named_buffers()] == ["beta", "threshold"]
    learnt = {"learn_beta": True, "learn_threshold": True, "bias": True, "recurrent": True}
    names = {name for name, _ in snn.SparseLeaky(3, 4, beta=0.9, **learnt).named_parameters()}
    assert names == {"beta", "bias", "recurrent_weight", "threshold", "weight"}
    beta = torch.rand(4)
    layer = snn.SparseLeaky(3, 4, beta=beta, learn_beta=True)
    with torch.no_grad():
        layer.beta += 1
    assert (beta <= 1).all()
    torch.manual_seed(3)
    linear = nn.Linear(3, 4)
    torch.manual_seed(3)
    layer = snn.SparseLeaky(3, 4, beta=0.9, bias=True)
    assert torch.equal(layer.weight, linear.weight)
    assert torch.equal(layer.bias, linear.bias)


@each_row(r"""
{} | state must hold .* got \[\]
{"0.weight": torch.zeros(4, 3), "1.beta": torch.tensor(0.9)} | state must hold
{**whole, "0.bias": torch.zeros(4)} | state must hold .* and no other weights
{**whole, "0.weight": torch.zeros(3, 4)} | state: weight must have shape \(4, 3\), got \(3, 4\)
{**whole, "1.beta": torch.ones(7)} | state: beta must have .*, got \(7,\)
""")
def test_bad_dense_state(row):
    layer = snn.SparseLeaky(3, 4, beta=0.9)
    before = copy.deepcopy(layer.state_dict())
    wrong, message = row.split(" | ")
    with pytest.raises(ValueError, match=message):
        layer.load_dense_state_dict(eval(wrong, {"torch": torch, "whole": layer.dense_state_dict()}))
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_activity_and_overflow_are_of_the_last_forward():
    layer = make_layer(max_spikes=2)
    assert layer.activity is layer.overflow is None
    out = layer(random_spikes(6, 3, 40))
    assert layer.activity == out.activity == out.num_spikes / (6 * 3 * 65)
    assert layer.overflow == out.overflow > 0
    again = layer(random_spikes(6, 3, 40, 0.0, 0.0))
    assert again.num_spikes == layer.activity == layer.overflow == 0
    # The layer keeps neither the graph nor the spikes alive.
    assert not hasattr(layer._last, "values")
    assert not any(isinstance(value, torch.Tensor) and value.requires_grad for value in layer._last)


def test_repr():
    assert repr(snn.SparseLeaky(3, 4, beta=0.9)) == (
        "SparseLeaky(in_features=3, out_features=4, beta=0.9, threshold=1, reset_mechanism='zero')"
    )
    text = repr(
        snn.SparseLeaky(3, 4, beta=torch.rand(4), grad_threshold=0.5, max_spikes=2, input_scale=2, path="dense")
    )
    for part in ("beta=[4]", "grad_threshold=0.5", "max_spikes=2", "input_scale=2.0", "path='dense'"):
        assert part in text
