"""The PopART operator of surrogates on the IPU model, compared with PyTorch."""

import pytest
import torch
from support.operators import MACHINES, SURROGATES, backward, forward, machine, needs_model_and_host

from snnipu.surrogate import Kernel, surrogate_gradient

pytestmark = needs_model_and_host


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_surrogate_spike(tiles, ipus, dtype):
    model = machine(tiles, ipus)
    torch.manual_seed(0)
    for surrogate, (a, b) in SURROGATES.items():
        u, grad = torch.randn(3, 21).to(dtype), torch.randn(3, 21).to(dtype)
        u[0, 0] = 0
        attributes = {"surrogate": surrogate, "surrogate_a": a, "surrogate_b": b}
        (spk,) = forward(model, "SurrogateSpike", [u], attributes)
        assert torch.equal(spk, (u > 0).to(dtype))
        got = backward(model, "SurrogateSpike", [u], attributes, [spk], [grad])[0]
        expected = surrogate_gradient(Kernel(surrogate, a, b), u.float(), grad.float()).to(dtype)
        tolerance = {"rtol": 2e-3, "atol": 1e-6} if dtype == torch.float16 else {"rtol": 2e-6, "atol": 1e-7}
        torch.testing.assert_close(got, expected, **tolerance)
