"""Random manifolds as spike times."""

import math

import pytest
import torch
from support.tables import assert_refused, each_row

from snnipu import datasets
from snnipu.datasets.randman import _manifold

SMALL = {"num_neurons": 16, "num_classes": 3, "samples_per_class": 20, "num_steps": 50}


def steps_of(dataset):
    """Return spike times ``[samples, neurons]``; fail unless every neuron spikes exactly once."""
    dense = dataset.batch(range(len(dataset)))[0].to_dense()
    assert dense.sum(0).eq(1).all()
    return dense.argmax(0)


def test_default_is_the_published_configuration():
    data = datasets.randman()
    assert (data.name, data.num_neurons, data.num_steps, data.num_classes) == ("randman", 128, 100, 10)
    assert data.sensor_shape is None
    assert (len(data.train), len(data.test)) == (8000, 2000)
    spikes, label = data.test[13]
    assert spikes.shape == (100, 1, 128)
    assert label == 3
    assert spikes.counts[..., 0].sum() == 128
    assert spikes.activity == pytest.approx(0.01)


def test_every_neuron_spikes_once_and_uses_the_whole_window():
    data = datasets.randman(**SMALL, test_fraction=0.25)
    assert (len(data.train), len(data.test)) == (45, 15)
    assert data.train.labels.tolist() == [0, 1, 2] * 15
    steps = torch.cat([steps_of(part).reshape(-1, 3, 16) for part in (data.train, data.test)])
    assert steps.amin(0).eq(0).all()
    assert steps.amax(0).eq(49).all()


def test_the_seed_decides():
    first, same, other = (steps_of(datasets.randman(**SMALL, seed=seed).train) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    state = torch.get_rng_state()
    datasets.randman(**SMALL)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("dim", "points", "cutoff"), [(1, 7, 4), (2, 7, 4), (1, 600, 1000)])
def test_formula(dim, points, cutoff):
    """The last case has more waves than fit into one block of neurons."""
    neurons, alpha = 5, 1.5
    x = torch.rand(points, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = _manifold(x, neurons, alpha, cutoff, torch.Generator().manual_seed(1))
    shape = (3, dim, neurons, cutoff)
    height, rate, phase = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    k = torch.arange(1, cutoff + 1, dtype=torch.float64)
    waves = height / k**alpha * torch.sin(2 * math.pi * (k * rate * x[:, :, None, None] + phase))
    values = waves.sum(-1).prod(1)
    torch.testing.assert_close(got, (values - values.amin(0)) / (values.amax(0) - values.amin(0)))


def test_a_higher_alpha_is_smoother():
    points = torch.linspace(0, 1, 1000, dtype=torch.float64)[:, None]
    lengths = []
    for alpha in (0.5, 1.0, 2.0, 4.0):
        values = _manifold(points, 10, alpha, 100, torch.Generator().manual_seed(0))
        lengths.append(float(values.diff(dim=0).abs().sum(0).mean()))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 5 * lengths[-1]


def test_classes_are_told_apart_by_spike_times():
    """The nearest training sample has the right class for most test samples."""
    data = datasets.randman(32, 4, 60, 100, seed=3)
    train, test = steps_of(data.train).double(), steps_of(data.test).double()
    nearest = data.train.labels[torch.cdist(test, train).argmin(1)]
    assert (nearest == data.test.labels).double().mean() > 0.9


@pytest.mark.parametrize("cutoff", [None, 1])
@pytest.mark.parametrize("alpha", [0, 1e-9, 0.5, 3, 100.0])
def test_smoothness_and_cutoff(alpha, cutoff):
    steps_of(datasets.randman(2, 2, 5, 20, alpha=alpha, cutoff=cutoff).train)


@each_row("""
randman(num_neurons=0) | ValueError: ^num_neurons must be
randman(num_neurons=2.0) | TypeError: ^num_neurons must be
randman(samples_per_class=1) | ValueError: ^samples_per_class must be
randman(cutoff=0) | ValueError: ^cutoff must be
randman(alpha=math.nan) | ValueError: ^alpha must be
randman(test_fraction=0.01) | ValueError: ^test_fraction must be
""")
def test_wrong_argument(row):
    assert_refused(row, globals(), randman=lambda **changes: datasets.randman(**{**SMALL, **changes}))
