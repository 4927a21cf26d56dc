"""Sizes beyond the other tests: results equal those of parts, or an error says that the size is too large."""

import os

import pytest
import torch
from support.versions import needs_native
from torch import nn
from torch.testing import assert_close

import snnipu as snn

LARGE = pytest.mark.skipif(
    os.environ.get("SNNIPU_LARGE_SIZES") != "1", reason="needs 20 GiB of memory and minutes: SNNIPU_LARGE_SIZES=1"
)
STEPS, MANY = 100_000, 1_000_000


def random_spikes(*shape, rate=0.3):
    return torch.bernoulli(torch.full(shape, rate), generator=torch.Generator().manual_seed(0))


def on_grid(*shape):
    """Return weights whose sums are exact in every order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(1)) / 16


# ---- many steps, many neurons, a large batch


@needs_native
def test_many_steps():
    x, lif = torch.randn(STEPS, 1, 3, requires_grad=True), snn.Leaky(0.9, learn_beta=True)
    spk, mem = lif.sequence(x)
    (spk.sum() + mem.mean()).backward()
    whole = x.grad, lif.beta.grad
    halves = x.detach()[: STEPS // 2].requires_grad_(), x.detach()[STEPS // 2 :].requires_grad_()
    lif.beta.grad = None
    first, before = lif.sequence(halves[0])
    last, after = lif.sequence(halves[1], before[-1])
    assert torch.equal(torch.cat([first, last]), spk)
    assert torch.equal(torch.cat([before, after]), mem)
    (first.sum() + last.sum() + torch.cat([before, after]).mean()).backward()
    assert_close(torch.cat([part.grad for part in halves]), whole[0])
    assert_close(lif.beta.grad, whole[1], rtol=1e-4, atol=0)


@needs_native
@pytest.mark.parametrize("shape", [(3, 2, MANY), (3, STEPS, 20)], ids=["many neurons", "a large batch"])
def test_many_at_once(shape):
    x, lif = torch.randn(shape, requires_grad=True), snn.Leaky(0.9)
    spk, mem = lif.sequence(x)
    (spk.sum() + mem.sum()).backward()
    for part in (slice(0, 999), slice(-999, None)):
        dimension = 1 if shape[1] > 999 else 2
        selection = (slice(None), part) if dimension == 1 else (slice(None), slice(None), part)
        leaf = x.detach()[selection].clone().requires_grad_()
        result = lif.sequence(leaf)
        (result[0].sum() + result[1].sum()).backward()
        assert torch.equal(result[0], spk[selection])
        assert torch.equal(result[1], mem[selection])
        assert torch.equal(leaf.grad, x.grad[selection])


@needs_native
@pytest.mark.parametrize("shape", [(STEPS, 1, 8), (2, STEPS, 8), (2, 1, MANY)], ids=["steps", "batch", "neurons"])
def test_event_driven_layers(shape):
    """Compare with the dense layers and their gradients."""
    x, outputs = random_spikes(*shape, rate=0.1 if shape[2] < 100 else 1e-4), 4
    weight = on_grid(outputs, shape[2])
    layer, dense = (
        snn.SparseLeaky(shape[2], outputs, beta=1.0, reset_mechanism="subtract"),
        nn.Linear(shape[2], outputs, bias=False),
    )
    with torch.no_grad():
        layer.weight.copy_(weight)
        dense.weight.copy_(weight)
    upstream = on_grid(*shape[:2], outputs)
    spikes = layer(snn.SparseSpikes.from_dense(x, 400))
    (spikes.to_dense() * upstream).sum().backward()
    expected = snn.Leaky(1.0, spike_grad=layer.spike_grad).sequence(dense(x))[0]
    (expected * upstream).sum().backward()
    assert spikes.num_spikes > 0
    assert torch.equal(spikes.to_dense(), expected)
    assert_close(layer.weight.grad, dense.weight.grad, rtol=1e-4, atol=1e-3)


# ---- empty tensors


def modules():
    return {
        "Leaky": lambda: snn.MultiStep(snn.Leaky(0.9, learn_beta=True)),
        "Synaptic": lambda: snn.MultiStep(snn.Synaptic(alpha=0.8, beta=0.9)),
        "RLeaky": lambda: snn.MultiStep(snn.RLeaky(beta=0.9, linear_features=6)),
        "Linear": lambda: snn.MultiStep(snn.nn.Linear(6, 6), snn.Leaky(0.9)),
        "DelayLinear": lambda: snn.DelayLinear(6, 6, max_delay=2),
        "SynapticDelay": lambda: snn.MultiStep(snn.SynapticDelay(3, 1.0, channels=6)),
        "Online": lambda: snn.Online(snn.MultiStep(nn.Linear(6, 6), snn.Leaky(0.9))),
    }


@pytest.mark.parametrize("name", modules())
def test_no_sample(name):
    shape = (3, 0, 6)
    x = torch.zeros(shape, requires_grad=name != "Online")
    out = modules()[name]()(x)
    for part in out if isinstance(out, tuple) else (out,):
        assert part.shape == shape
    out = out[0] if isinstance(out, tuple) else out
    out.sum().backward()
    if name != "Online":
        assert x.grad.shape == shape


@pytest.mark.parametrize("name", modules())
def test_no_step(name):
    x = torch.zeros(0, 2, 6)
    if name == "DelayLinear":
        assert modules()[name]()(x).shape == x.shape
        return
    with pytest.raises(ValueError, match="x must have at least one time step"):
        modules()[name]()(x)


@pytest.mark.parametrize("shape", [(0, 2, 6), (3, 0, 6)], ids=["no step", "no sample"])
def test_no_events(shape):
    net = snn.SparseNetwork([6, 5, 4], beta=0.9)
    out = net(snn.SparseSpikes.from_dense(torch.zeros(shape), 3))
    assert out.shape == (*shape[:2], 4)
    out.values.sum().backward()
    for parameter in net.parameters():
        assert parameter.grad is None or not parameter.grad.any()


# ---- sizes that raise errors


@needs_native
@pytest.mark.parametrize("shape", [(2, 1, 2**33), (2**33, 1, 1), (2, 2**20, 2**13)])
def test_what_is_too_large_is_refused(shape):
    x = torch.zeros(1).expand(shape)  # takes no memory
    sizes = f"got {shape[0]} and {shape[1] * shape[2]}"
    for call in (snn.Leaky(0.9).sequence, snn.MultiStep(snn.Synaptic(alpha=0.8, beta=0.9))):
        with pytest.raises(ValueError, match=f"x must have at most 4294967295 steps and elements a step, {sizes}"):
            call(x)


# ---- more than 2**31 elements


@LARGE
@pytest.mark.parametrize("shape", [(2300, 1000, 1000), (2, 1, 1_150_000_000)], ids=["steps", "neurons"])
def test_neurons_of_more_elements_than_an_int_counts(shape):
    x = torch.empty(shape, dtype=torch.bfloat16).uniform_(-1, 2, generator=torch.Generator().manual_seed(0))
    lif = snn.Leaky(0.9)
    with torch.no_grad():
        spk, mem = lif.sequence(x)
        for selection in (slice(0, 777), slice(shape[2] // 2, shape[2] // 2 + 777), slice(-777, None)):
            result = lif.sequence(x[:, -1:, selection].contiguous())
            assert torch.equal(result[0], spk[:, -1:, selection])
            assert torch.equal(result[1], mem[:, -1:, selection])


@LARGE
@pytest.mark.parametrize("shape", [(1100, 1000, 2000), (3, 1, 750_000_000)], ids=["rows", "neurons"])
def test_events_among_more_places_than_an_int_counts(shape):
    x = torch.zeros(shape)  # pages that are never written
    places = [(0, 0, 0), (shape[0] // 2, shape[1] // 3, shape[2] // 2), tuple(size - 1 for size in shape)]
    for place in places:
        x[place] = 1
    spikes = snn.SparseSpikes.from_dense(x, 2)
    assert [tuple(place) for place in (spikes.counts[..., 0] > 0).nonzero().tolist()] == [place[:2] for place in places]
    assert [int(spikes.ids[place[0], place[1], 0]) for place in places] == [place[2] for place in places]
    dense = spikes.to_dense()
    assert int(dense.count_nonzero()) == 3
    assert all(dense[place] == 1 for place in places)


@LARGE
def test_products_of_more_inputs_than_an_int_counts():
    rows, inputs = 1_100_000, 2000
    x, weight = torch.zeros(2, rows // 2, inputs), on_grid(3, inputs)
    x[0, 0, 0] = x[1, -1, -1] = 1
    layer = snn.nn.Linear(inputs, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    out = layer(x)
    out.sum().backward()
    expected = torch.zeros(2, rows // 2, 3)
    expected[0, 0], expected[1, -1] = weight[:, 0], weight[:, -1]
    assert torch.equal(out, expected)
    assert layer.weight.grad.count_nonzero() == 6
    maps = torch.zeros(rows // 2, 1, 64, 64)
    maps[-1, 0, 40, 50] = 1
    convolution = snn.nn.Conv2d(1, 1, 3, stride=8, bias=False)
    with torch.no_grad():
        result = convolution(maps)
    assert result.shape == (rows // 2, 1, 8, 8)
    assert torch.equal(result[-1, 0, 5, 6], convolution.weight[0, 0, 0, 2])
    assert result.count_nonzero() == 1
