"""``snnipu.SparseLinear``."""

import pytest
import torch
from oracle import at_slots, densified, on_grid, random_spikes, relative_error
from torch import nn

import snnipu as snn


def make_layer(inputs, outputs, bias=True, path="auto"):
    """Return a layer whose sums are exact in every order."""
    layer = snn.SparseLinear(inputs, outputs, bias, path=path)
    with torch.no_grad():
        layer.weight.copy_(on_grid(outputs, inputs))
        if bias:
            layer.bias.copy_(on_grid(outputs))
    return layer


def test_is_a_linear_layer():
    layer = snn.SparseLinear(30, 20, bias=True)
    assert isinstance(layer, nn.Linear)
    twin = nn.Linear(30, 20)
    assert layer.state_dict().keys() == twin.state_dict().keys()
    twin.load_state_dict(layer.state_dict())
    layer.load_state_dict(twin.state_dict())
    assert snn.SparseLinear(30, 20).bias is None
    torch.manual_seed(3)
    expected = nn.Linear(30, 20, bias=False).weight
    torch.manual_seed(3)
    assert torch.equal(snn.SparseLinear(30, 20).weight, expected)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("path", ["auto", "sparse", "dense"])
def test_every_path_gives_the_same(path, rate, bias):
    spikes = random_spikes(6, 4, 30, rate, 0.0, graded=True)
    dense = densified(spikes.values, spikes)
    layer = make_layer(30, 20, bias, path)
    expected = nn.functional.linear(dense, layer.weight, layer.bias)
    upstream = torch.randn_like(expected)
    expected_grads = torch.autograd.grad((expected * upstream).sum(), list(layer.parameters()))
    for x in (spikes, dense):
        layer.zero_grad()
        out = layer(x)
        assert torch.equal(out, expected)
        (out * upstream).sum().backward()
        for parameter, grad in zip(layer.parameters(), expected_grads):
            assert relative_error(parameter.grad, grad, terms=upstream) <= 1e-6


@pytest.mark.parametrize("path", ["auto", "sparse", "dense"])
def test_the_gradient_of_the_input(path):
    layer = make_layer(30, 20, path=path)
    expected = layer.weight.sum(0).detach().expand(6, 4, 30)
    spikes = random_spikes(6, 4, 30, 0.2, 0.2).requires_grad_()
    layer(spikes).sum().backward()
    assert torch.equal(spikes.values.grad, at_slots(expected, spikes))
    dense = densified(spikes.values, spikes).requires_grad_()
    layer(dense).sum().backward()
    # Zeros of a dense input have a gradient, except on the sparse path.
    assert torch.equal(dense.grad, expected * (dense != 0) if path == "sparse" else expected)
