"""Pools of dense maps by our kernels against PyTorch's: values, indices, gradients, and the choice of the kernel."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.versions import needs_backend
from torch import nn
from torch.nn import functional as F

import snnipu as snn
from snnipu.backends import host
from snnipu.ops import dense_pool2d as op

needs_native = pytest.mark.skipif(host.library is None, reason=host.unavailable_reason or "")
pairs = st.tuples(st.integers(1, 5), st.integers(1, 5))
on_both_pools = pytest.mark.parametrize("average", [False, True])


@st.composite
def maps(draw):
    """Draw maps with infinities, NaN and negative zeros, and windows. Maps for maxima have equal values."""
    kernel, stride, average = draw(pairs), draw(pairs), draw(st.booleans())
    height, width = (draw(st.integers(k, k + 40)) for k in kernel)
    torch.manual_seed(draw(st.integers(0, 2**20)))
    shape = (draw(st.integers(0, 3)), draw(st.integers(1, 20)), height, width)
    x = torch.randn(shape) if average else torch.randint(0, 4, shape)
    x = x.to(draw(st.sampled_from([torch.float32, torch.float64])))
    values = [math.nan, math.inf, -0.0 if average else -math.inf]
    for value in draw(st.lists(st.sampled_from(values), max_size=2)):
        x[torch.rand(x.shape) < draw(st.sampled_from([0.02, 1.0]))] = value
    return x, kernel, stride, average


def check(x, kernel, stride, average):
    """Compare bit by bit: sums are in PyTorch's order. Gradients of maxima are integers with exact sums."""
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    pooled = op.DensePool2d.apply(mine, op.windows(x.shape[2:], kernel, stride), average)
    expected = (F.avg_pool2d if average else F.max_pool2d)(theirs, kernel, stride)
    grad = torch.randn(expected.shape, dtype=x.dtype)
    grad = grad if average else (8 * grad).round()
    pooled.backward(grad)
    expected.backward(grad)
    for actual, other in ((pooled, expected), (mine.grad, theirs.grad)):
        assert torch.equal(actual.isnan(), other.isnan())
        assert torch.equal(actual.nan_to_num(9.0), other.nan_to_num(9.0))
        if average:
            assert torch.equal(actual.signbit() & ~actual.isnan(), other.signbit() & ~other.isnan())


@settings(max_examples=120, deadline=None)
@given(maps())
def test_values_and_gradients_are_pytorchs(case):
    check(*case)


@on_both_pools
@pytest.mark.parametrize(
    ("kernel", "stride"),
    [((2, 2), (2, 2)), ((3, 3), (1, 2)), ((1, 200), (1, 1)), ((2, 2), (3, 2)), ((16, 16), (16, 16)), ((3, 3), (3, 3))],
)
def test_wide_maps_and_large_windows(kernel, stride, average):
    check(torch.randint(0, 9, (2, 3, 19, 611)).float(), kernel, stride, average)


@on_both_pools
def test_first_and_second_derivative(average):
    x = torch.randperm(2 * 3 * 6 * 7).double().view(2, 3, 6, 7).requires_grad_()
    pooled = lambda x: op.DensePool2d.apply(x, op.windows((6, 7), (3, 2), (2, 2)), average)  # noqa: E731
    assert torch.autograd.gradcheck(pooled, x)
    assert torch.autograd.gradgradcheck(pooled, x)


def test_what_has_no_windows():
    assert op.windows((3, 9), (4, 2), (1, 1)) is None
    assert op.windows((40, 40), (17, 16), (1, 1)) is None
    assert op.windows((4, 4), (2, 2), (0, 1)) is None


AVERAGES = [
    (nn.AvgPool2d(2), True),
    (nn.AvgPool2d((3, 2), stride=(2, 1)), True),
    (nn.AvgPool2d(2, padding=1), False),
    (nn.AvgPool2d(2, padding=1, count_include_pad=False), False),
    (nn.AvgPool2d(2, ceil_mode=True), False),
    (nn.AvgPool2d(2, divisor_override=3), False),
]
MAXIMA = [
    (nn.MaxPool2d(2), True),
    (nn.MaxPool2d((3, 2), stride=(2, 1)), True),
    (nn.MaxPool2d(2, padding=1), False),
    (nn.MaxPool2d(2, dilation=2), False),
    (nn.MaxPool2d(2, ceil_mode=True), False),
]


@pytest.fixture
def calls(monkeypatch):
    """Return a list with one element for each call of our kernels."""
    counted = []
    for name in ("_avg_fwd", "_max_fwd"):
        run = getattr(op, name)
        monkeypatch.setattr(op, name, lambda *a, run=run: counted.append(1) or run(*a))
    return counted


@needs_native
@pytest.mark.parametrize(("pool", "runs"), AVERAGES + MAXIMA)
def test_multistep_is_the_loop(pool, runs, calls):
    x = torch.rand(4, 2, 2, 9, 8).requires_grad_()
    expected = torch.stack([pool(step) for step in x])
    net = snn.MultiStep(pool, snn.Leaky(beta=0.9))
    assert torch.equal(snn.MultiStep(pool)(x), expected)
    assert bool(calls) == runs
    net(x)[1].sum().backward()
    gradient, x.grad = x.grad, None
    net[1].sequence(expected)[1].sum().backward()
    assert torch.equal(gradient, x.grad)
    count = len(calls)
    rows = x.detach().flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (4, 2))
    assert torch.allclose(snn.MultiStep(pool)(rows), expected)
    assert len(calls) == count  # PyTorch has a kernel for that layout


@pytest.mark.slow
@needs_native
@needs_backend
@pytest.mark.parametrize(("pool", "runs"), [*AVERAGES, (lambda x: F.avg_pool2d(x, kernel_size=2, stride=1), True)])
def test_a_compiled_loop_is_the_loop(pool, runs, calls):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.lif = nn.Conv2d(2, 3, 3), snn.Leaky(beta=0.9, threshold=0.1)

        def forward(self, x):
            mem, rows = self.lif.reset_mem(), []
            for step in x:
                spk, mem = self.lif(pool(self.conv(step)), mem)
                rows.append(spk)
            return torch.stack(rows), mem

    torch.manual_seed(0)
    net, x = Net(), torch.rand(4, 2, 2, 9, 8)
    for actual, expected in zip(snn.compile(net)(x), net(x)):
        assert torch.allclose(actual, expected, atol=1e-6)
    assert bool(calls) == runs


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2, stride=0), nn.MaxPool2d(2, stride=0)])
def test_a_stride_of_zero_is_pytorchs_error(pool):
    with pytest.raises(RuntimeError, match="stride should not be zero"):
        snn.MultiStep(pool)(torch.rand(4, 2, 2, 9, 8))


def test_transforms_and_tracers_see_pytorchs_operator():
    net, x = snn.MultiStep(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2)), torch.rand(3, 2, 2, 8, 8)
    assert torch.allclose(torch.vmap(net)(x[None])[0], net(x))
    tangent = torch.func.jvp(net, (x,), (torch.ones_like(x),))[1]
    assert tangent.shape == net(x).shape
    assert torch.equal(torch.jit.trace(net, (x,), check_trace=False)(x), net(x))


@needs_native
@pytest.mark.parametrize("pool", [op.max_pool2d, op.avg_pool2d])
def test_a_profiler_sees_our_kernel(pool):
    x = torch.rand(2, 3, 8, 8, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        pool(x, 2).sum().backward()
    names = {f"snnipu::{pool.__name__}_{way}" for way in ("fwd", "bwd")}
    assert names <= {event.key for event in profile.key_averages()}
