import math

import pytest
import torch

from benchmarks.checks import (
    Tolerance,
    check_layer,
    check_training,
    relative_error,
    tolerance_for,
)

EXACT = Tolerance(flips=0.0, gradient=1e-5)


@pytest.fixture
def layer():
    generator = torch.Generator().manual_seed(0)
    spikes = (torch.rand(4, 3, 5, generator=generator) < 0.3).float()
    return spikes, torch.randn(4, 3, 5, generator=generator)


def test_relative_error():
    reference = torch.tensor([1.0, -4.0])
    assert relative_error(reference, reference) == 0.0
    assert relative_error(torch.tensor([1.0, -4.4]), reference) == pytest.approx(0.1)
    assert relative_error(torch.tensor([0.5]), torch.tensor([0.0])) == 0.5
    assert relative_error(torch.empty(0), torch.empty(0)) == 0.0
    for bad in (math.nan, math.inf):
        assert relative_error(torch.tensor([bad, -4.0]), reference) == math.inf
        assert relative_error(reference, torch.tensor([bad, -4.0])) == math.inf
    with pytest.raises(ValueError, match=r"\(3,\).*\(1,\)"):
        relative_error(torch.zeros(3), torch.zeros(1))


def test_flipped_trains_are_left_out_of_the_gradient(layer):
    spikes, gradient = layer
    flipped, other = spikes.clone(), gradient.clone()
    flipped[1, 2, 3] = 1 - flipped[1, 2, 3]
    other[:, 2, 3] += 100  # all following steps of the neuron that flipped
    lenient = Tolerance(flips=0.05, gradient=1e-5)
    assert check_layer([(flipped, other, spikes, gradient)], lenient, "it").passed
    other[:, 0, 0] += 100
    assert not check_layer([(flipped, other, spikes, gradient)], lenient, "it").passed


def test_cpu_single_and_double_precision_allow_no_flip():
    for dtype in (torch.float32, torch.float64):
        assert tolerance_for(dtype, torch.device("cpu")) == EXACT
    assert tolerance_for(torch.float32, torch.device("cuda")).flips > 0
    assert (
        tolerance_for(torch.bfloat16, torch.device("cpu")).flips
        > tolerance_for(torch.float16, torch.device("cpu")).flips
    )


def test_gradients_on_one_side_alone_and_of_the_network():
    ones, small = torch.ones(3), torch.full((2,), 1e-9)
    assert not check_training(ones[0], [ones, None], ones[0], [ones, small], 1e-5, "it").passed
    assert check_training(ones[0], [ones, None], ones[0], [ones, None], 1e-5, "it").passed
    assert not check_training(ones[0], [ones, small], ones[0], [ones, 2 * small], 1e-5, "it").passed
    assert check_training(ones[0], [ones, small], ones[0], [ones, 2 * small], 1e-5, "it", of_network=True).passed
    assert not check_training(ones[0], [ones], ones[0], [1.1 * ones], 1e-5, "it", of_network=True).passed
