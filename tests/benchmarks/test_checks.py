import math

import pytest
import torch

from benchmarks.checks import (
    Tolerance,
    both,
    check_layer,
    check_network,
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


def of_first(value):
    def change(tensor):
        changed = tensor.clone()
        changed.view(-1)[0] = value(changed.view(-1)[0])
        return changed

    return change


@pytest.mark.parametrize(
    ("spikes", "gradient", "said"),
    [
        (torch.clone, torch.clone, ""),
        (of_first(lambda spike: 1 - spike), torch.clone, "1 of 60 spikes differ"),
        (torch.clone, lambda gradient: gradient * (1 + 1e-4), "gradient error 1.0e-04"),
        (torch.clone, of_first(lambda value: math.nan), "gradient error inf"),
        (of_first(lambda spike: math.nan), torch.clone, "1 of 60 spikes differ"),
        (lambda spikes: 1 - spikes, torch.clone, "gradient error inf"),
    ],
)
def test_layer(layer, spikes, gradient, said):
    check = check_layer([(spikes(layer[0]), gradient(layer[1]), *layer)], EXACT, "itself")
    assert check.passed == (not said)
    assert check.against == "itself"
    assert (said or "0 of 60 spikes differ") in check.detail


def test_flipped_trains_are_left_out_of_the_gradient(layer):
    spikes, gradient = layer
    flipped, other = spikes.clone(), gradient.clone()
    flipped[1, 2, 3] = 1 - flipped[1, 2, 3]
    other[:, 2, 3] += 100  # the whole train of the neuron that flipped
    lenient = Tolerance(flips=0.05, gradient=1e-5)
    assert check_layer([(flipped, other, spikes, gradient)], lenient, "it").passed
    other[:, 0, 0] += 100
    assert not check_layer([(flipped, other, spikes, gradient)], lenient, "it").passed


def test_training():
    loss, gradients = torch.tensor([2.0]), [torch.ones(3), torch.full((2, 2), 4.0)]
    assert check_training(loss, gradients, torch.tensor(2.0), gradients, 1e-5, "it").passed
    assert not check_training(loss * 1.001, gradients, loss, gradients, 1e-5, "it").passed
    assert not check_training(loss, [gradients[0], gradients[1] * 1.001], loss, gradients, 1e-5, "it").passed


def test_two_gates_as_one():
    loss, gradients = torch.tensor([2.0]), [torch.ones(3)]
    good = check_training(loss, gradients, loss, gradients, 1e-5, "it")
    bad = check_training(loss, [gradients[0] * 1.001], loss, gradients, 1e-5, "it")
    assert both(good, good, "else").passed
    for check in (both(good, bad, "else"), both(bad, good, "else")):
        assert not check.passed
        assert "else: loss error" in check.detail


def test_network(layer):
    spikes, gradient = layer
    check = check_network([spikes.bool(), spikes], [gradient], [spikes, spikes.bool()], [gradient], 1e-4, "it")
    assert check.passed
    assert not check_network([spikes], [gradient], [spikes, spikes], [gradient], 1e-4, "it").passed
    assert not check_network([spikes], [gradient * 1.001], [spikes], [gradient], 1e-4, "it").passed
    flipped = spikes.clone()
    flipped[1, 2, 3] = 1 - flipped[1, 2, 3]
    check = check_network([spikes, flipped], [gradient], [spikes, spikes], [gradient], 1e-4, "it")
    assert not check.passed
    assert "1 of 120 spikes differ" in check.detail


def test_cpu_single_and_double_precision_allow_no_flip():
    for dtype in (torch.float32, torch.float64):
        assert tolerance_for(dtype, torch.device("cpu")) == EXACT
    assert tolerance_for(torch.float32, torch.device("cuda")).flips > 0
    assert (
        tolerance_for(torch.bfloat16, torch.device("cpu")).flips
        > tolerance_for(torch.float16, torch.device("cpu")).flips
    )


def test_gradients_on_one_side_alone_and_of_the_network():
    one, small = torch.ones(3), torch.full((2,), 1e-9)
    assert not check_training(one[0], [one, None], one[0], [one, small], 1e-5, "it").passed
    assert check_training(one[0], [one, None], one[0], [one, None], 1e-5, "it").passed
    assert not check_training(one[0], [one, small], one[0], [one, 2 * small], 1e-5, "it").passed
    assert check_training(one[0], [one, small], one[0], [one, 2 * small], 1e-5, "it", of_network=True).passed
    assert not check_training(one[0], [one], one[0], [1.1 * one], 1e-5, "it", of_network=True).passed
