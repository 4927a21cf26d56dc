"""Neurons and the maximum of their spikes' windows as one operator: against its reference, and the layers' slots."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import snnipu as snn
from snnipu import ops
from snnipu.backends import host
from snnipu.ops import lif_max_pool2d as op
from snnipu.ops.max_pool2d import windows
from snnipu.surrogate import Kernel

pytestmark = pytest.mark.skipif(host.library is None, reason=host.unavailable_reason or "")
SURROGATES = [
    snn.surrogate.fast_sigmoid(10),
    snn.surrogate.atan(),
    snn.surrogate.sigmoid(5),
    snn.surrogate.triangular(),
]


@st.composite
def cases(draw):
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    size = [draw(st.integers(k, k + 23)) for k in kernel]
    torch.manual_seed(draw(st.integers(0, 2**20)))
    channels = draw(st.integers(1, 4))
    x = torch.randn(draw(st.integers(1, 5)), draw(st.integers(1, 3)), channels, *size, dtype=torch.float64)
    x = (0.5 + x).to(draw(st.sampled_from([torch.float32, torch.float64])))
    beta = torch.rand(draw(st.sampled_from([1, channels]))).to(x) * draw(st.sampled_from([1.0, 2.0]))
    threshold = 0.2 + torch.rand(draw(st.sampled_from([1, channels]))).to(x)
    second = draw(st.sampled_from([None, 0.1, 0.6]))
    if draw(st.booleans()):  # membranes of halves: some are just at a threshold
        x, beta, threshold = (2 * x).round() / 2, beta.round(), torch.ones_like(threshold)
        second = draw(st.sampled_from([None, 0.5]))
    return x, beta, threshold, windows(size, kernel, kernel), second, draw(st.integers(0, 2))


@settings(max_examples=80, deadline=None)
@given(cases(), st.sampled_from(SURROGATES))
def test_the_kernels_give_the_reference(case, surrogate):
    x, beta, threshold, geometry, _, reset = case
    found = torch.ops.snnipu.lif_max_pool2d_fwd(*case)
    expected = op.lif_max_pool2d_fwd_reference(*case)
    for one, other in zip(found, expected):
        assert torch.equal(one, other)
    grad = torch.randn_like(expected[0])
    arguments = (grad, x, beta, threshold, expected[1], list(geometry), reset, *surrogate.kernel, True, True)
    found = torch.ops.snnipu.lif_max_pool2d_bwd(*arguments)
    for one, other in zip(found, op.lif_max_pool2d_bwd_reference(*arguments)):
        torch.testing.assert_close(one, other, rtol=1e-4 if x.dtype == torch.float32 else 1e-11, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_it_is_selection_and_pool_of_the_slots(case):
    """Spikes, counts and every gradient are those of the neurons' slots and the pool from ids to ids."""
    x, beta, threshold, geometry, second, reset = case
    x, threshold = x.double(), threshold.double()
    beta = beta.double().clamp(0.01, 0.99)
    kernel = (geometry.kernel_height, geometry.kernel_width)
    surrogate = snn.surrogate.fast_sigmoid(10)

    def gradients(run):
        leaves = [leaf.clone().requires_grad_() for leaf in (x, beta, threshold)]
        out, counts = run(*leaves)
        torch.manual_seed(1)
        return out.detach(), counts, torch.autograd.grad((out * torch.randn_like(out)).sum(), leaves)

    def fused(x, beta, threshold):
        made = op.lif_max_pool2d(x, beta, threshold, kernel, second, reset, surrogate.kernel)
        assert int(made.spikes) == int(made.maps.sum())
        return made.maps.flatten(2), made.counts

    def by_slots(x, beta, threshold):
        places = x.shape[3] * x.shape[4]
        mechanism = ("subtract", "zero", "none")[reset]
        per_map = lambda p: p.reshape(-1, 1, 1)  # noqa: E731
        mem = ops.lif_sequence(
            x, beta=per_map(beta), threshold=per_map(threshold), reset_mechanism=mechanism, spike_grad=surrogate
        )[1]
        level = threshold if threshold.numel() == 1 else threshold.repeat_interleave(places)
        spikes = ops.select_spikes(mem.flatten(2), level, second, spike_grad=surrogate).with_maps(tuple(x.shape[2:]))
        return ops.sparse_pool2d(spikes, kernel).to_dense(), spikes.counts

    for one, other in zip(gradients(fused), gradients(by_slots)):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)
            continue
        for a, b in zip(one, other):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_wide_maps_in_bands():
    """A map that is worked on in several pieces, whose last rows are in no window."""
    torch.manual_seed(0)
    x = 0.3 + torch.randn(40, 2, 2, 65, 67)
    one = torch.tensor([0.9])
    case = (x, one, one, windows((65, 67), (2, 2), (2, 2)), 0.8, 1)
    found, expected = torch.ops.snnipu.lif_max_pool2d_fwd(*case), op.lif_max_pool2d_fwd_reference(*case)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    grad = torch.randn_like(expected[0])
    kernel = Kernel(*snn.surrogate.atan().kernel)
    arguments = (grad, x, one, one, expected[1], list(case[3]), 1, *kernel, True, True)
    for a, b in zip(torch.ops.snnipu.lif_max_pool2d_bwd(*arguments), op.lif_max_pool2d_bwd_reference(*arguments)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_windows_without_a_kernel():
    assert op.fits((2, 2), (2, 2), (0, 0))
    assert not op.fits((3, 3), (2, 2), (0, 0))
    assert not op.fits((2, 2), (2, 2), (1, 1))
    assert not op.fits((16, 16), (16, 16), (0, 0))


def test_the_second_derivative_is_refused():
    x = torch.randn(2, 1, 1, 4, 4, requires_grad=True)
    one = torch.ones(1)
    made = op.lif_max_pool2d(x, one, one, (2, 2), None, 1, Kernel(*snn.surrogate.atan().kernel))
    (grad,) = torch.autograd.grad(made.maps.sum(), x, create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError), match="lif_max_pool2d"):
        grad.sum().backward()
