"""``wake_silent`` raises the weights of silent neurons; ``spike_count_loss`` moves the number of spikes to a target."""

import pytest
import torch

import snnipu as snn
from snnipu.functional import spike_count_loss, wake_silent


def layer_of(neurons=30, **options):
    torch.manual_seed(0)
    layer = snn.SparseSynaptic(20, neurons, **{"alpha": 0.8, "beta": 0.9, "gradient": "eventprop", **options}).double()
    with torch.no_grad():
        layer.weight.uniform_(-0.2, 0.5)
    return layer


def spikes_in(steps=25, batch=4):
    generator = torch.Generator().manual_seed(1)
    return snn.SparseSpikes.from_dense((torch.rand(steps, batch, 20, generator=generator) < 0.15).double())


@pytest.mark.parametrize(("share", "woken"), [(0.0, [1, 2]), (0.5, [2]), (0.99, [2]), (1.0, [])])
def test_only_neurons_silent_in_too_many_samples_are_woken(share, woken):
    dense = torch.zeros(6, 4, 3)
    dense[2, :, 0] = 1
    dense[3, :2, 1] = 1  # neuron 1 is silent in half of the samples, neuron 2 in all
    weight = torch.nn.Parameter(torch.rand(3, 5))
    before = weight.detach().clone()
    assert wake_silent(weight, snn.SparseSpikes.from_dense(dense), share=share, by=0.25) == len(woken)
    expected = before.clone()
    expected[woken] += 0.25
    assert torch.equal(weight.detach(), expected)


def test_neurons_need_to_spike_in_some_samples_only():
    dense = torch.zeros(6, 4, 3)
    dense[2, :2, 0] = dense[3, :2, 1] = 1
    needed = torch.tensor([[True, True, False]] * 2 + [[False, True, False]] * 2)  # neuron 1 in all, neuron 2 in none
    weight = torch.zeros(3, 5)
    assert wake_silent(weight, snn.SparseSpikes.from_dense(dense), needed, by=0.25) == 1
    assert weight.sum(1).tolist() == [0, 5 * 0.25, 0]


def test_silent_neurons_wake():
    layer, x = layer_of(), spikes_in()
    with torch.no_grad():
        layer.weight[:3] = -0.1
    counts = [wake_silent(layer.weight, layer(x), by=0.02) for _ in range(40)]
    assert counts[0] >= 3
    assert counts[-1] == 0


def test_gradient_of_the_loss_is_the_excess_at_each_spike():
    layer, x = layer_of(), spikes_in()
    spikes = layer(x)
    count = spikes.spike_count().detach().mean(0)
    spike_count_loss(spikes, 2.0).backward()
    expected, layer.weight.grad = layer.weight.grad, None
    spikes = layer(x)
    excess = count - 2.0
    used = torch.arange(spikes.capacity) < spikes.counts[..., :1]
    terms = (-excess[spikes.ids[used]] * spikes.times[used]).sum() / (4 * 30)
    terms.backward()
    torch.testing.assert_close(layer.weight.grad, expected)
    assert spike_count_loss(layer(x), 2.0).item() == pytest.approx((excess.square().mean() / 2).item())


@pytest.mark.parametrize("target", [1.0, 4.0])
def test_the_loss_moves_counts_to_the_target(target):
    layer, x = layer_of(), spikes_in()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        spikes = layer(x)
        loss = spike_count_loss(spikes, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wake_silent(layer.weight, spikes, share=0.5, by=0.01)
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_wrong_arguments():
    layer, x = layer_of(), spikes_in()
    with pytest.raises(ValueError, match=r"weight must have shape \[30, in\], got \(20, 30\)"):
        wake_silent(layer.weight.t(), layer(x))
    for wrong in (torch.ones(4, 30), torch.ones(30, 4, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"needed must be torch.bool of shape \(4, 30\), got torch"):
            wake_silent(layer.weight, layer(x), wrong)
    with pytest.raises(TypeError, match=r"spikes must be a snnipu\.SparseSpikes, got Tensor"):
        wake_silent(layer.weight, torch.rand(3, 2, 30))
    with pytest.raises(TypeError, match=r"spikes must be a snnipu\.SparseSpikes, got Tensor"):
        spike_count_loss(torch.rand(3, 2, 30), 1.0)
    with pytest.raises(ValueError, match='spikes must be those of a layer with gradient="eventprop"'):
        spike_count_loss(x, 1.0)
