"""Random spikes of a given activity."""

import pytest
import torch
from support.tables import assert_refused, each_row

from snnipu import SparseSpikes
from snnipu.datasets import random_spikes


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def check(spikes):
    SparseSpikes(spikes.ids, spikes.values, spikes.counts, spikes.num_neurons, dropped=spikes.dropped)
    used = torch.arange(spikes.capacity) < spikes.counts[..., :1]
    assert torch.equal(spikes.values, used.float())
    assert torch.equal(spikes.counts[..., 0], spikes.counts[..., 1])
    # Ids ascend.
    assert (spikes.ids[..., 1:] > spikes.ids[..., :-1])[used[..., 1:]].all()


@pytest.mark.parametrize("activity", [0, 1e-4, 0.02, 0.123, 0.5, 0.51, 0.9, 1])
@pytest.mark.parametrize(("steps", "batch", "neurons"), [(20, 3, 70), (7, 1, 1), (0, 3, 5), (3, 0, 5)])
def test_exact_number(activity, steps, batch, neurons):
    spikes = random_spikes(steps, batch, neurons, activity, seeded())
    check(spikes)
    assert spikes.shape == (steps, batch, neurons)
    assert spikes.num_spikes == round(activity * steps * batch * neurons)
    numbers = spikes.counts[..., 0]
    assert numbers.numel() == 0 or numbers.max() - numbers.min() <= 1


@pytest.mark.parametrize("activity", [0.01, 0.3, 0.5, 0.8])
def test_independent_spikes_are_binomial(activity):
    steps, batch, neurons = 200, 10, 100
    spikes = random_spikes(steps, batch, neurons, activity, seeded(), exact=False)
    check(spikes)
    numbers = spikes.counts[..., 0].double().flatten()
    rows, variance = steps * batch, neurons * activity * (1 - activity)
    # Five standard deviations of the mean and, roughly, of the variance of the rows.
    assert abs(float(numbers.mean()) - neurons * activity) < 5 * (variance / rows) ** 0.5
    assert abs(float(numbers.var()) / variance - 1) < 5 * (2 / rows) ** 0.5 + 0.1


@pytest.mark.parametrize("activity", [0, 1])
def test_nothing_and_everything(activity):
    spikes = random_spikes(5, 2, 7, activity, seeded(), exact=False)
    assert spikes.to_dense().eq(activity).all()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("activity", [0.1, 0.4, 0.7])
def test_no_neuron_step_or_sample_is_preferred(activity, exact):
    dense = random_spikes(50, 20, 30, activity, seeded(), exact=exact).to_dense().double()
    for dims in ((0, 1), (0, 2), (1, 2)):
        rate = dense.mean(dims)
        deviation = (activity * (1 - activity) * len(rate) / dense.numel()) ** 0.5
        assert (rate - activity).abs().max() < 5 * deviation
    # Neighbours spike together as often as independent neurons would.
    together = float((dense[..., 1:] * dense[..., :-1]).mean())
    chance = activity * (activity * 30 - 1) / 29 if exact else activity**2
    assert together == pytest.approx(chance, abs=5 * (chance / dense.numel()) ** 0.5)


def test_generator():
    original, same, other = (random_spikes(10, 2, 100, 0.1, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(original.ids, same.ids)
    assert not torch.equal(original.ids, other.ids)
    torch.manual_seed(5)
    first = random_spikes(10, 2, 100, 0.1)
    torch.manual_seed(5)
    assert torch.equal(first.ids, random_spikes(10, 2, 100, 0.1).ids)


@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
def test_slots(overflow):
    whole = random_spikes(6, 2, 40, 0.25, seeded())
    assert whole.capacity == 10
    assert random_spikes(6, 2, 40, 0.25, seeded(), 16).capacity == 16
    limited = random_spikes(6, 2, 40, 0.25, seeded(), max_spikes=4, overflow=overflow)
    check(limited)
    assert torch.equal(limited.ids, whole.limit(4, overflow=overflow).ids)
    assert limited.overflow == 6 * 2 * 6


@pytest.mark.parametrize("exact", [True, False])
def test_memory_goes_with_the_spikes(exact):
    """A dense tensor of this size would take 64 GiB."""
    spikes = random_spikes(8, 2, 2**30, 1e-6, seeded(), exact=exact)
    assert spikes.num_spikes == pytest.approx(8 * 2 * 2**30 * 1e-6, rel=0.05)
    assert spikes.ids.max() > 2**29


@each_row("""
random_spikes(-1, 2, 5, 0.5) | ValueError: num_steps must be at least 0
random_spikes(2, 1.0, 5, 0.5) | TypeError: batch_size must be an int
random_spikes(2, 2, 0, 0.5) | ValueError: num_neurons must be
random_spikes(2, 2, 5, 1.1) | ValueError: activity must be from 0 to 1
random_spikes(2, 2, 5, 0.5, overflow="highest") | ValueError: overflow must be
""")
def test_wrong_argument(row):
    assert_refused(row, globals())
