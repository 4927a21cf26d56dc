"""The maximum of windows by our own kernel against PyTorch's: values, places, gradients; who runs it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import snnipu as snn
from snnipu.backends import host
from snnipu.ops import max_pool2d as op

needs_native = pytest.mark.skipif(host.library is None, reason=host.unavailable_reason or "")
pairs = st.tuples(st.integers(1, 5), st.integers(1, 5))


@st.composite
def maps(draw):
    """Maps with equal values, infinities and NaN, the sizes of windows and strides."""
    kernel, stride = draw(pairs), draw(pairs)
    height, width = (draw(st.integers(k, k + 40)) for k in kernel)
    torch.manual_seed(draw(st.integers(0, 2**20)))
    x = torch.randint(0, 4, (draw(st.integers(0, 3)), draw(st.integers(1, 20)), height, width))
    x = x.to(draw(st.sampled_from([torch.float32, torch.float64])))
    for value in draw(st.lists(st.sampled_from([math.nan, math.inf, -math.inf]), max_size=2)):
        x[torch.rand(x.shape) < draw(st.sampled_from([0.02, 1.0]))] = value
    return x, kernel, stride


def check(x, kernel, stride):
    windows = op.windows(x.shape[2:], kernel, stride)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = op._MaxPool2d.apply(mine, windows), F.max_pool2d(theirs, kernel, stride)
    grad = torch.randint(-8, 9, expected.shape).to(x.dtype)  # sums are exact in any order
    found.backward(grad)
    expected.backward(grad)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(9.0), expected.nan_to_num(9.0))
    assert torch.equal(mine.grad, theirs.grad)


@settings(max_examples=60, deadline=None)
@given(maps())
def test_values_and_gradients_are_pytorchs(case):
    check(*case)


@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (16, 16), (1, 200)])
def test_wide_maps_and_large_windows(kernel):
    check(torch.randint(0, 9, (2, 3, 19, 611)).float(), kernel, kernel)
    check(torch.randint(0, 9, (2, 3, 19, 611)).float(), kernel, (1, 2))


@needs_native
def test_the_kernel_gives_the_reference():
    x = torch.randint(0, 4, (3, 2, 11, 9)).float()
    windows = op.windows((11, 9), (3, 2), (2, 3))
    found, expected = torch.ops.snnipu.max_pool2d_fwd(x, windows), op.max_pool2d_fwd_reference(x, windows)
    assert all(torch.equal(one, other) for one, other in zip(found, expected))
    grad = torch.randint(0, 9, expected[0].shape).float()
    gradients = [f(grad, expected[1], windows) for f in (torch.ops.snnipu.max_pool2d_bwd, op.max_pool2d_bwd_reference)]
    assert torch.equal(*gradients)


def test_first_and_second_derivative():
    x = torch.randperm(2 * 3 * 6 * 7).double().view(2, 3, 6, 7).requires_grad_()
    pooled = lambda x: op._MaxPool2d.apply(x, op.windows((6, 7), (3, 2), (2, 2)))  # noqa: E731
    assert torch.autograd.gradcheck(pooled, x)
    assert torch.autograd.gradgradcheck(pooled, x)
    torch.library.opcheck(torch.ops.snnipu.max_pool2d_fwd, (x.detach(), [6, 7, 3, 2, 2, 2, 2, 3]))


def test_what_has_no_windows():
    assert op.windows((3, 9), (4, 2), (1, 1)) is None
    assert op.windows((40, 40), (17, 16), (1, 1)) is None
    assert op.windows((4, 4), (2, 2), (0, 1)) is None


@needs_native
@pytest.mark.parametrize(
    ("pool", "runs"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((3, 2), stride=(2, 1)), True),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d(2, dilation=2), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
    ],
)
def test_multistep_is_the_loop(pool, runs, monkeypatch):
    calls = []
    run = op._fwd
    monkeypatch.setattr(op, "_fwd", lambda *a: calls.append(1) or run(*a))
    net = snn.MultiStep(nn.Conv2d(2, 3, 3), pool, snn.Leaky(beta=0.9))
    x = torch.rand(4, 2, 2, 9, 8).requires_grad_()
    expected = torch.stack([pool(net[0](step)) for step in x])
    found = snn.MultiStep(net[0], pool)(x)
    assert bool(calls) == runs
    assert torch.allclose(found, expected, atol=1e-6)
    spk, mem = net(x)
    (spk.sum() + mem.sum()).backward()
    gradient, x.grad = x.grad, None
    (sum(part.sum() for part in net[2].sequence(expected))).backward()
    assert torch.allclose(gradient, x.grad, atol=1e-5)
    count = len(calls)
    snn.MultiStep(pool)(x.detach().flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (4, 2)))
    assert len(calls) == count  # PyTorch's own kernel is for that layout


def test_transforms_and_tracers_see_pytorchs_operator():
    net, x = snn.MultiStep(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2)), torch.rand(3, 2, 2, 8, 8)
    assert torch.allclose(torch.vmap(net)(x[None])[0], net(x))
    tangent = torch.func.jvp(net, (x,), (torch.ones_like(x),))[1]
    assert tangent.shape == net(x).shape
    assert torch.equal(torch.jit.trace(net, (x,), check_trace=False)(x), net(x))


@needs_native
def test_a_profiler_sees_our_kernel():
    x = torch.rand(2, 3, 8, 8, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        op.max_pool2d(x, 2).sum().backward()
    assert {"snnipu::max_pool2d_fwd", "snnipu::max_pool2d_bwd"} <= {event.key for event in profile.key_averages()}
