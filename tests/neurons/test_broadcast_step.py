"""Steps of neurons whose parameters span some of a step's dimensions, for example ``[C, 1, 1]``."""

from unittest import mock

import pytest
import snntorch
import torch
from support.loops import steps, with_gradients

import snnipu as snn
from snnipu.backends import host, neuron_step

STEP = (2, 3, 4, 5)


def run(kind, shape, learns):
    torch.manual_seed(0)
    beta, threshold = torch.rand(shape) * 0.5 + 0.4, torch.rand(shape) + 0.3
    lif = kind(beta=beta, threshold=threshold, learn_beta=learns, learn_threshold=learns)
    return with_gradients(steps, lif, torch.randn(4, *STEP), torch.zeros(STEP))


@pytest.mark.skipif(host.library is None, reason="needs the kernels")
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize(
    "shape", [(3, 1, 1), (1, 3, 1, 1), (3, 4, 1), (1, 5), (4, 1), (5,), (1, 1, 1), (2, 1, 1, 1), STEP]
)
def test_a_step_takes_parameters_that_broadcast_as_snntorch_does(shape, learns):
    with mock.patch.object(neuron_step, "neuron_apply", side_effect=AssertionError("not by the direct call")):
        out, gradients = run(snn.Leaky, shape, learns)
    expected, others = run(snntorch.Leaky, shape, learns)
    assert all(map(torch.equal, out, expected))
    assert len(gradients) == 2 + 2 * learns
    torch.testing.assert_close(gradients, others)


@pytest.mark.parametrize("shape", [(2, 1, 1), (3, 1)])
def test_a_parameter_that_does_not_broadcast_to_a_step_is_refused(shape):
    with pytest.raises(ValueError, match="beta"):
        snn.Leaky(beta=torch.rand(shape))(torch.rand(STEP), torch.zeros(STEP))
