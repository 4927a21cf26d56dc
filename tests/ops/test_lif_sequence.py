"""The contract of ``snnipu.ops.lif_sequence``, and of ``lif_step``, which is one step of it."""

import itertools
import math

import pytest
import snntorch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import FUSED, RESETS, boxcar, relative_error, snntorch_loop, soft
from support.leaky_operator import leaky_loop
from support.loops import by_steps
from support.tables import assert_refused, each_row

from snnipu import ops, surrogate

# snnTorch's and ours; a Python function runs step by step.
SURROGATES = [*((theirs, ours) for name, (ours, theirs) in FUSED.items() if name != "LSO"), (None, None), (soft, soft)]


@st.composite
def cases(draw):
    """Draw an input, an initial membrane or None, parameters that broadcast to a step, options, upstream gradients."""
    step = draw(st.sampled_from([(), (7,), (1, 1), (3, 37), (4, 63), (2, 1000), (2, 3, 4, 4)]))

    def parameter(low, high):
        shape = step[draw(st.integers(0, len(step))) :]
        return torch.rand([draw(st.sampled_from([size, 1])) for size in shape]) * (high - low) + low

    torch.manual_seed(draw(st.integers(0, 2**16)))
    steps, is_constant = draw(st.integers(1, 9)), draw(st.booleans()) and step != ()
    leaves = {"x": torch.randn(step if is_constant else (steps, *step))}
    if draw(st.booleans()):
        leaves["mem"] = torch.randn(step)
    # Betas outside [0, 1] are clamped and have no gradient.
    leaves.update(beta=parameter(-0.2, 1.2), threshold=parameter(0.1, 1.5), graded_spikes_factor=parameter(0.5, 1.5))
    options = {"reset_mechanism": draw(st.sampled_from(RESETS)), "reset_delay": draw(st.booleans())}
    options["num_steps"] = steps if is_constant else None
    # A sum over time passes the same gradient to all steps.
    shape, spike_grads = draw(st.sampled_from([step, (steps, *step)])), draw(st.sampled_from(SURROGATES))
    weights = [torch.randn(shape).expand(steps, *step) for _ in range(2)]
    if soft in spike_grads:  # values between 0 and 1 are multiplied in another order
        leaves["graded_spikes_factor"].fill_(1)
    weights[0] = weights[0] * draw(st.booleans())
    return leaves, options, spike_grads, weights


@pytest.mark.slow
@pytest.mark.usefixtures("poisoned")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases())
def test_equals_snntorch(case):
    tensors, options, (theirs, ours), weights = case
    results = []
    for function, spike_grad in ((snntorch_loop, theirs), (ops.lif_sequence, theirs), (ops.lif_sequence, ours)):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
        out = function(**leaves, **options, spike_grad=spike_grad)[:2]
        loss = sum((part * weight).sum() for part, weight in zip(out, weights))
        results.append([*out, *torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)])
    expected = results[0]
    terms = torch.stack([*weights, expected[2].expand_as(weights[0])])
    for actual in results[1:]:
        assert all(map(torch.equal, actual[:2], expected[:2]))
        for name, gradient, other in zip(tensors, actual[2:], expected[2:]):
            if other is None:
                assert gradient is None or not gradient.any(), name
            else:
                assert (gradient.shape, gradient.dtype) == (other.shape, other.dtype)
                assert relative_error(gradient, other, None if name == "x" else terms) <= 2e-5, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_low_precision(dtype, reset, delay, poisoned):
    """Storage in 16 bits, state in float32: equal to such a loop, and to float32 except threshold crossings."""
    x = torch.randn(20, 8, 203).to(dtype)
    parameters = {"beta": 0.9, "threshold": 1.0, "reset_mechanism": reset, "reset_delay": delay}
    spk, mem = ops.lif_sequence(x, **parameters)
    assert spk.dtype == mem.dtype == dtype
    scalars = [torch.tensor(v) for v in (0.9, 1.0, 1.0)]
    expected_spk, expected_mem = leaky_loop(x, None, *scalars, RESETS.index(reset), delay)
    assert torch.equal(spk, expected_spk)
    assert torch.equal(mem, expected_mem)
    if delay:
        assert torch.equal(spk, (mem > 1).to(dtype))
    full, _ = ops.lif_sequence(x.float(), **parameters)
    flips = (spk.float() != full).float().mean().item()
    assert flips < (0.02 if dtype == torch.bfloat16 else 0.004)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_gradients(dtype, poisoned):
    x, upstream, gradients = (0.5 * torch.randn(10, 4, 50)).to(dtype), torch.randn(10, 4, 50), []
    for leaf in (x, x.float()):
        leaf, beta = leaf.clone().requires_grad_(), torch.tensor(0.9, requires_grad=True)
        # Reset none: no decision feeds back, so that the precisions stay comparable everywhere.
        spk, mem = ops.lif_sequence(leaf, beta=beta, reset_mechanism="none")
        gradients.append(torch.autograd.grad(((spk + mem).float() * upstream).sum(), (leaf, beta)))
        assert [grad.dtype for grad in gradients[-1]] == [leaf.dtype, torch.float32]
    for actual, expected in zip(*gradients):
        assert relative_error(actual, expected) < (0.02 if dtype == torch.bfloat16 else 0.003)


def test_half_conversions_are_torchs():
    """All 16-bit inputs, and float32 outputs near rounding boundaries, convert as in PyTorch."""
    for dtype in (torch.float16, torch.bfloat16):
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        _, mem = ops.lif_sequence(every.reshape(1, 16, -1), beta=0.0, reset_mechanism="none")
        same = (mem.reshape(-1) == every) | (mem.reshape(-1).isnan() & every.isnan())
        assert same.all()
        base = every.float()
        nudged = torch.cat([base * (1 + 2**-k) for k in (9, 10, 11, 12, 13)])
        nudged = nudged[torch.isfinite(nudged)]
        # beta * mem0 + 0 reaches the store unrounded.
        _, mem = ops.lif_sequence(torch.zeros(1, nudged.numel(), dtype=dtype), nudged, beta=1.0, reset_mechanism="none")
        assert torch.equal(mem[0], nudged.to(dtype))


@pytest.mark.parametrize("name", ["SSO", "custom_surrogate"])
def test_surrogates_evaluated_in_pytorch(name):
    """The noise is drawn in snnTorch's order: equal seeds before the backward pass give equal gradients."""

    def make(source):
        return source.SSO(0.1, 0.3) if name == "SSO" else source.custom_surrogate(boxcar)

    theirs, results = make(snntorch.surrogate), []
    tensors = [torch.randn(6, 3, 19), torch.rand(19) + 0.5, torch.rand(19) + 0.5]
    for function, spike_grad in (
        (snntorch_loop, theirs),
        (ops.lif_sequence, theirs),
        (ops.lif_sequence, make(surrogate)),
    ):
        x, threshold, factor = leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        spk = function(x, beta=0.9, threshold=threshold, graded_spikes_factor=factor, spike_grad=spike_grad)[0]
        torch.manual_seed(4)
        results.append([spk.detach(), *torch.autograd.grad(spk.sum(), leaves)])
    for actual in results[1:]:
        assert torch.equal(actual[0], results[0][0])
        for gradient, other in zip(actual[1:], results[0][1:]):
            assert relative_error(gradient, other) <= 1e-5


def test_no_gradient_where_disabled():
    x = torch.randn(5, 2, 11, requires_grad=True)
    spk, mem = ops.lif_sequence(x, beta=0.9, spike_grad=snntorch.SpikingNeuron._surrogate_bypass)
    (mem.sum() + spk.sum()).backward()
    expected = torch.zeros(11)
    for _ in range(5):
        expected = expected * 0.9 + 1
    assert torch.allclose(x.grad[0], expected.expand(2, 11))


def test_far_from_the_threshold_gradients_are_finite():
    x = torch.linspace(-1e4, 1e4, 1001).reshape(1, -1).requires_grad_()
    for _, spike_grad in SURROGATES:
        x.grad = None
        ops.lif_sequence(x, beta=0.9, spike_grad=spike_grad)[0].sum().backward()
        assert torch.isfinite(x.grad).all(), spike_grad


def test_nan_and_infinity_propagate_as_in_snntorch():
    x = torch.zeros(4, 1, 40)
    x[0, 0, 3], x[1, 0, 17], x[1, 0, 35], x[2, 0, 39] = float("nan"), float("inf"), -float("inf"), float("nan")
    for reset, delay in itertools.product(RESETS, (True, False)):
        spk, mem = ops.lif_sequence(x, beta=0.9, reset_mechanism=reset, reset_delay=delay)
        expected_spk, expected_mem, _ = snntorch_loop(x, beta=0.9, reset_mechanism=reset, reset_delay=delay)
        assert torch.allclose(spk, expected_spk, rtol=0, atol=0, equal_nan=True)
        assert torch.allclose(mem, expected_mem, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (2, 3, 4, 4)])
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_steps_make_a_sequence(shape, reset, dtype):
    # Between calls the state is rounded to 16 bits; within a sequence it is float32.
    x = torch.randn(1 if dtype == torch.bfloat16 else 6, *shape).to(dtype).requires_grad_()
    beta = torch.tensor(0.8, requires_grad=True)
    keywords = {"beta": beta, "threshold": 0.5, "reset_mechanism": reset}
    results = []
    for spikes in (
        by_steps(lambda current, mem: ops.lif_step(current, mem, **keywords), x, [None]),
        ops.lif_sequence(x, **keywords),
    ):
        assert spikes[0].dtype == spikes[1].dtype == dtype
        loss = spikes[0].sum() + spikes[1].float().square().sum()
        results.append([*spikes, *torch.autograd.grad(loss, [x, beta])])
    assert all(map(torch.equal, results[0][:2], results[1][:2]))
    torch.testing.assert_close(results[0][2:], results[1][2:], rtol=1e-5, atol=1e-6)


X = torch.zeros(4, 2, 3)


@each_row(r"""
run(x=[1.0, 2.0]) | TypeError: x must be a torch.Tensor
run(x=torch.zeros(4, 2, 3, dtype=torch.int64)) | TypeError: x must be float32
run(x=torch.zeros(())) | ValueError: x must have shape \[T, B, ...\]
run(mem=torch.zeros(3, 3)) | ValueError: mem must have the shape of one step of x, \(2, 3\), got \(3, 3\)
run(mem=torch.zeros(2, 3, dtype=torch.int32)) | TypeError: mem must be floating
run(mem=torch.zeros(2, 3, device="meta")) | ValueError: mem must be on x's device cpu, got meta
run(mem=0.0) | TypeError: mem must be a torch.Tensor or None
run(beta=torch.rand(4)) | ValueError: beta must broadcast to one step of x, \(2, 3\), got .* \(4,\)
run(beta="0.9") | TypeError: beta must be a number or a torch.Tensor
run(beta=torch.rand(3, device="meta")) | ValueError: beta must be on x's device
run(threshold=torch.rand(2)) | ValueError: threshold must broadcast
run(graded_spikes_factor=torch.rand(7, 1)) | ValueError: graded_spikes_factor must broadcast
run(reset_mechanism="substract") | ValueError: reset_mechanism must be 'subtract', 'zero' or 'none'
run(spike_grad=25) | TypeError: spike_grad must be callable
run(num_steps=0) | ValueError: num_steps must be at least 1
run(num_steps=2.5) | TypeError: num_steps must be an int
""")
def test_bad_input(row):
    assert_refused(row, globals(), run=lambda **wrong: ops.lif_sequence(**{"x": X, "beta": 0.9, **wrong}))
    if "num_steps" not in row and "shape" not in row:
        assert_refused(row, globals(), run=lambda **wrong: ops.lif_step(**{"x": X[0], "beta": 0.9, **wrong}))


def channels_last(x):
    """Return [T, B, C, H, W] in the layout of a channels_last convolution with the time folded into the batch."""
    return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, x.shape[:2])


LAYOUTS = {
    "channels_last": channels_last,
    "transposed": lambda x: x.transpose(1, 4).contiguous().transpose(1, 4),
    "gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "time last": lambda x: x.permute(1, 2, 3, 4, 0).contiguous().permute(4, 0, 1, 2, 3),
    "repeated": lambda x: x[:, :, :1].expand(x.shape),
}


BETAS = [0.9, torch.rand(4, 1, 1), torch.rand(4, 6, 5), torch.rand(5), torch.rand(1, 4, 1, 1), torch.rand(6, 1)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("beta", BETAS, ids=lambda beta: str(tuple(getattr(beta, "shape", ()))))
def test_any_layout_gives_the_same_bits(layout, beta):
    x = torch.randn(7, 3, 4, 6, 5) * 2
    results = []
    for leaf in (LAYOUTS[layout](x).contiguous(), LAYOUTS[layout](x)):
        leaf = leaf.detach().requires_grad_()
        decay = torch.as_tensor(beta).clone().requires_grad_()
        spk, mem = ops.lif_sequence(leaf, torch.full(x.shape[1:], 0.3), beta=decay, reset_mechanism="zero")
        single = ops.lif_step(leaf[0], LAYOUTS[layout](x)[1], beta=decay)
        upstream = torch.linspace(-1, 1, x.numel()).reshape(x.shape)
        ((spk + mem) * upstream + single[1] + single[0]).sum().backward()
        results.append((spk, mem, *single, leaf.grad, decay.grad))
    for actual, expected in zip(results[1][:5], results[0][:5]):
        assert torch.equal(actual, expected)
    assert relative_error(results[1][5], results[0][5]) <= 1e-6


def test_dense_layouts_pass_as_they_lie():
    """Results and gradients have the input's layout without a copy."""
    x = channels_last(torch.randn(7, 3, 4, 6, 5)).requires_grad_()
    constant, upstream = x[0].detach(), channels_last(torch.ones(x.shape))
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], record_shapes=True) as profile:
        spk, mem = ops.lif_sequence(x, beta=torch.rand(4, 1, 1))
        held, _ = ops.lif_sequence(constant, constant, beta=0.5, num_steps=3)
        torch.autograd.backward(spk, upstream)
    assert spk.stride() == mem.stride() == x.grad.stride() == x.stride()
    assert held[0].stride() == constant.stride()
    copies = [event.input_shapes[0] for event in profile.events() if event.name == "aten::copy_"]
    assert max((math.prod(shape) for shape in copies), default=0) < constant.numel()
