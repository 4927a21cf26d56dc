"""The contract of ``snnipu.ops.lif_step``: one step of ``lif_sequence``."""

import pytest
import torch

from snnipu import ops


@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (2, 3, 4, 4)])
@pytest.mark.parametrize("reset", ["subtract", "zero", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_steps_make_a_sequence(shape, reset, dtype):
    torch.manual_seed(0)
    x = torch.randn(6, *shape).to(dtype)
    results = []
    for by_steps in (True, False):
        leaf = x.clone().requires_grad_()
        beta = torch.tensor(0.8, requires_grad=True)
        keywords = {"beta": beta, "threshold": 0.5, "reset_mechanism": reset}
        if by_steps:
            mem, spks, mems = None, [], []
            for current in leaf:
                spk, mem = ops.lif_step(current, mem, **keywords)
                spks.append(spk)
                mems.append(mem)
            spk, mem = torch.stack(spks), torch.stack(mems)
        else:
            spk, mem = ops.lif_sequence(leaf, **keywords)
        assert spk.dtype == mem.dtype == dtype
        (spk.sum() + (mem.float() ** 2).sum()).backward()
        results.append((spk.detach(), mem.detach(), leaf.grad, beta.grad))
    (spk, mem, grad, grad_beta), (expected_spk, expected_mem, expected_grad, expected_beta) = results
    if dtype == torch.bfloat16:
        # Between the calls the state is rounded to 16 bit; within a sequence it is float32.
        assert (spk != expected_spk).float().mean() < 0.1
        assert torch.allclose(mem[0], expected_mem[0])
    else:
        assert torch.equal(spk, expected_spk)
        assert torch.equal(mem, expected_mem)
        assert torch.allclose(grad, expected_grad, rtol=1e-5, atol=1e-6)
        assert torch.allclose(grad_beta, expected_beta, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": 1.0}, TypeError, "x must be a torch.Tensor"),
        ({"x": torch.zeros(3, dtype=torch.int32)}, TypeError, "x must be float32"),
        ({"mem": torch.zeros(4)}, ValueError, r"mem must have the shape of one step of x, \(3,\), got \(4,\)"),
        ({"beta": torch.zeros(2)}, ValueError, "beta must broadcast to one step of x"),
        ({"reset_mechanism": None}, ValueError, "reset_mechanism must be"),
        ({"spike_grad": "atan"}, TypeError, "spike_grad must be callable"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        ops.lif_step(**{"x": torch.zeros(3), "beta": 0.9, **arguments})
