"""Steps of neurons whose parameters span some of a step's dimensions, for example ``[C, 1, 1]``."""

from unittest import mock

import pytest
import snntorch
import torch

import snnipu as snn
from snnipu.backends import host, neuron_step

STEP = (2, 3, 4, 5)


def run(kind, shape, learns):
    torch.manual_seed(0)
    lif = kind(
        beta=torch.rand(shape) * 0.5 + 0.4, threshold=torch.rand(shape) + 0.3, learn_beta=learns, learn_threshold=learns
    )
    x = torch.randn(4, *STEP, requires_grad=True)
    mem, spks, mems = torch.zeros(STEP), [], []
    for current in x:
        spk, mem = lif(current, mem)
        spks.append(spk)
        mems.append(mem)
    (torch.stack(spks).sum() + (torch.stack(mems) ** 2).sum()).backward()
    return torch.stack(spks).detach(), torch.stack(mems).detach(), x.grad, [p.grad for p in lif.parameters()]


@pytest.mark.skipif(host.library is None, reason="needs the kernels")
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize(
    "shape", [(3, 1, 1), (1, 3, 1, 1), (3, 4, 1), (1, 5), (4, 1), (5,), (1, 1, 1), (2, 1, 1, 1), STEP]
)
def test_a_step_takes_parameters_that_broadcast_as_snntorch_does(shape, learns):
    with mock.patch.object(neuron_step, "neuron_apply", side_effect=AssertionError("not by the direct call")):
        spk, mem, grad, grads = run(snn.Leaky, shape, learns)
    expected_spk, expected_mem, expected_grad, expected_grads = run(snntorch.Leaky, shape, learns)
    assert torch.equal(spk, expected_spk)
    assert torch.equal(mem, expected_mem)
    assert len(grads) == 2 * learns
    torch.testing.assert_close(grad, expected_grad)
    torch.testing.assert_close(grads, expected_grads)


@pytest.mark.parametrize("shape", [(2, 1, 1), (3, 1), (2, 2, 3, 4, 5)])
def test_a_parameter_that_does_not_broadcast_to_a_step_is_refused(shape):
    with pytest.raises(ValueError, match="beta"):
        snn.Leaky(beta=torch.rand(shape))(torch.rand(STEP), torch.zeros(STEP))
