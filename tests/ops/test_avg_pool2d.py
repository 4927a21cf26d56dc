"""The average of windows by our own kernel against PyTorch's: values, gradients; who runs it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.versions import needs_backend
from torch import nn
from torch.nn import functional as F

import snnipu as snn
from snnipu.backends import host
from snnipu.ops import avg_pool2d as op
from snnipu.ops.max_pool2d import windows

needs_native = pytest.mark.skipif(host.library is None, reason=host.unavailable_reason or "")
pairs = st.tuples(st.integers(1, 5), st.integers(1, 5))


@st.composite
def maps(draw):
    """Maps with infinities, NaN and negative zeros, the sizes of windows and strides."""
    kernel, stride = draw(pairs), draw(pairs)
    height, width = (draw(st.integers(k, k + 40)) for k in kernel)
    torch.manual_seed(draw(st.integers(0, 2**20)))
    x = torch.randn((draw(st.integers(0, 3)), draw(st.integers(1, 20)), height, width))
    x = x.to(draw(st.sampled_from([torch.float32, torch.float64])))
    for value in draw(st.lists(st.sampled_from([float("nan"), float("inf"), -0.0]), max_size=2)):
        x[torch.rand(x.shape) < draw(st.sampled_from([0.02, 1.0]))] = value
    return x, kernel, stride


def check(x, kernel, stride):
    """To the last bit: sums are in PyTorch's order."""
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found = op._AvgPool2d.apply(mine, windows(x.shape[2:], kernel, stride))
    expected = F.avg_pool2d(theirs, kernel, stride)
    grad = torch.randn(expected.shape, dtype=x.dtype)
    found.backward(grad)
    expected.backward(grad)
    for one, other in ((found, expected), (mine.grad, theirs.grad)):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
        assert torch.equal(one.signbit() & ~one.isnan(), other.signbit() & ~other.isnan())


@settings(max_examples=60, deadline=None)
@given(maps())
def test_values_and_gradients_are_pytorchs(case):
    check(*case)


@pytest.mark.parametrize(
    ("kernel", "stride"), [((2, 2), (2, 2)), ((3, 3), (1, 2)), ((1, 200), (1, 1)), ((2, 2), (3, 2))]
)
def test_wide_maps_and_large_windows(kernel, stride):
    check(torch.randn(2, 3, 19, 611), kernel, stride)


@needs_native
def test_the_kernel_gives_the_reference():
    x, geometry = torch.randn(3, 2, 11, 9), windows((11, 9), (3, 2), (2, 3))
    found, expected = torch.ops.snnipu.avg_pool2d_fwd(x, geometry), op.avg_pool2d_fwd_reference(x, geometry)
    assert torch.equal(found, expected)
    # Read also where it does not lie in a row.
    grad = torch.randn(*expected.shape[:2], *expected.shape[:1:-1]).transpose(2, 3)
    gradients = [f(grad, geometry) for f in (torch.ops.snnipu.avg_pool2d_bwd, op.avg_pool2d_bwd_reference)]
    assert torch.equal(*gradients)


def test_first_and_second_derivative():
    x = torch.randn(2, 3, 6, 7, dtype=torch.float64, requires_grad=True)
    pooled = lambda x: op._AvgPool2d.apply(x, windows((6, 7), (3, 2), (2, 2)))  # noqa: E731
    assert torch.autograd.gradcheck(pooled, x)
    assert torch.autograd.gradgradcheck(pooled, x)
    torch.library.opcheck(torch.ops.snnipu.avg_pool2d_fwd, (x.detach(), [6, 7, 3, 2, 2, 2, 2, 3]))


POOLS = [
    (nn.AvgPool2d(2), True),
    (nn.AvgPool2d((3, 2), stride=(2, 1)), True),
    (nn.AvgPool2d(2, padding=1), False),
    (nn.AvgPool2d(2, padding=1, count_include_pad=False), False),
    (nn.AvgPool2d(2, ceil_mode=True), False),
    (nn.AvgPool2d(2, divisor_override=3), False),
]


@pytest.fixture
def calls(monkeypatch):
    """One for each call of our kernel."""
    found, run = [], op._fwd
    monkeypatch.setattr(op, "_fwd", lambda *a: found.append(1) or run(*a))
    return found


@needs_native
@pytest.mark.parametrize(("pool", "runs"), POOLS)
def test_multistep_is_the_loop(pool, runs, calls):
    x = torch.rand(4, 2, 2, 9, 8).requires_grad_()
    expected = torch.stack([pool(step) for step in x])
    found = snn.MultiStep(pool, snn.Leaky(beta=0.9))
    assert torch.equal(snn.MultiStep(pool)(x), expected)
    assert bool(calls) == runs
    found(x)[1].sum().backward()
    gradient, x.grad = x.grad, None
    found[1].sequence(expected)[1].sum().backward()
    assert torch.equal(gradient, x.grad)
    count = len(calls)
    rows = x.detach().flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (4, 2))
    assert torch.allclose(snn.MultiStep(pool)(rows), expected)
    assert len(calls) == count  # PyTorch's own kernel is for that layout


@pytest.mark.slow
@needs_native
@needs_backend
@pytest.mark.parametrize(("pool", "runs"), [*POOLS, (lambda x: F.avg_pool2d(x, kernel_size=2, stride=1), True)])
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
    for made, expected in zip(snn.compile(net)(x), net(x)):
        assert torch.allclose(made, expected, atol=1e-6)
    assert bool(calls) == runs


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2, stride=0), nn.MaxPool2d(2, stride=0)])
def test_a_stride_of_zero_is_pytorchs_error(pool):
    with pytest.raises(RuntimeError, match="stride should not be zero"):
        snn.MultiStep(pool)(torch.rand(4, 2, 2, 9, 8))


@needs_native
def test_a_profiler_sees_our_kernel():
    x = torch.rand(2, 3, 8, 8, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        op.avg_pool2d(x, 2).sum().backward()
    assert {"snnipu::avg_pool2d_fwd", "snnipu::avg_pool2d_bwd"} <= {event.key for event in profile.key_averages()}
