"""Batch norm over time in training: T calls, each with the statistics of its step."""

import pytest
import torch
from torch.nn import functional

from snnipu.ops import batch_norm

T, C = 4, 3


def norm_by_steps(x, mean, var, *affine):
    return torch.stack([functional.batch_norm(step, mean, var, *affine, True, 0.25, 1e-3) for step in x])


def norm_over_time(x, *parameters):
    return batch_norm.batch_norm_over_time(x, *parameters, momentum=0.25, eps=1e-3)


@pytest.mark.parametrize("known", [True, False], ids=["averages", "none"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("largest", [0, 8192], ids=["step by step", "at once"])
@pytest.mark.parametrize(
    "shape", [(5, C), (2, C, 6), (1, C, 3, 2), (0, C), (0, C, 2, 2), (3, C, 0), (2, C, 3, 0)], ids=str
)
def test_it_is_its_steps(shape, largest, affine, known, monkeypatch):
    """An empty batch leaves the running averages unchanged."""
    monkeypatch.setattr(batch_norm, "SMALL_STEP", largest)
    x, scales, results = torch.randn(T, *shape).double(), torch.randn(2, C).double(), []
    for function in (norm_over_time, norm_by_steps):
        leaf, learnt = x.clone().requires_grad_(), [scale.clone().requires_grad_() for scale in scales]
        averages = [torch.full((C,), value).double() for value in (0.5, 2.0)]
        out = function(leaf, *(averages if known else (None, None)), *(learnt if affine else (None, None)))
        (out * torch.arange(out.numel()).view_as(out)).sum().backward()
        results.append([out.detach(), leaf.grad, *averages, *(scale.grad for scale in learnt)])
    torch.testing.assert_close(*results)


def test_one_value_of_a_channel_is_pytorchs_error_of_a_step():
    mean, var = torch.zeros(C), torch.ones(C)
    with pytest.raises(ValueError, match=rf"got input size torch\.Size\(\[1, {C}\]\)"):
        batch_norm.batch_norm_over_time(torch.ones(T, 1, C), mean, var)
    assert not mean.any()


@pytest.mark.parametrize("largest", [0, 8192], ids=["step by step", "at once"])
def test_between_batch_norms_of_steps_of_one_graph(largest, monkeypatch):
    """A loop may run in Python, then compiled, before one backward pass: PyTorch's norm saves its averages."""
    monkeypatch.setattr(batch_norm, "SMALL_STEP", largest)
    x, mean, var = torch.randn(T, 5, C, requires_grad=True), torch.zeros(C), torch.ones(C)
    before = norm_by_steps(x, mean, var, None, None)
    at_once = norm_over_time(x, mean, var)
    after = norm_by_steps(x, mean, var, None, None)
    gradients = [torch.autograd.grad((out**3).sum(), x)[0] for out in (before, at_once, after)]
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])
