"""The contract of ``snnipu.ops.lif_sequence``."""

import copy
import itertools
import math

import pytest
import snntorch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import relative_error, snntorch_loop
from support.leaky_operator import leaky_loop
from support.versions import needs_compile

from snnipu import ops, surrogate

RESETS = ["subtract", "zero", "none"]
SURROGATES = [
    surrogate.straight_through_estimator(),
    surrogate.triangular(0.7),
    surrogate.fast_sigmoid(10),
    surrogate.atan(3.0),
    surrogate.heaviside(),
    surrogate.sigmoid(2.0),
    surrogate.spike_rate_escape(1.5, 2.0),
    surrogate.SFS(5, 0.1),
]
# snnTorch's own objects of the same surrogates.
SNNTORCH = [
    snntorch.surrogate.straight_through_estimator(),
    snntorch.surrogate.triangular(0.7),
    snntorch.surrogate.fast_sigmoid(10),
    snntorch.surrogate.atan(3.0),
    snntorch.surrogate.heaviside(),
    snntorch.surrogate.sigmoid(2.0),
    snntorch.surrogate.spike_rate_escape(1.5, 2.0),
    snntorch.surrogate.SFS(5, 0.1),
]
IDS = [s.name for s in SURROGATES]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    """Every output the native kernels are given is NaN before they write it."""
    new_empty, empty_like = torch.Tensor.new_empty, torch.empty_like

    def poison(tensor):
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **kwargs: poison(new_empty(*args, **kwargs)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: poison(empty_like(*args, **kwargs)))


def both(x, mem, options, parameters, upstream_spk=True, upstream_mem=True, num_steps=None):
    """Outputs and gradients of snnTorch's loop and of ours, for equal inputs and random upstream gradients."""
    results = []
    upstream = None
    for ours in (False, True):
        leaf = x.detach().clone().requires_grad_()
        state = None if mem is None else mem.detach().clone().requires_grad_()
        own = {name: torch.as_tensor(value).clone().requires_grad_() for name, value in parameters.items()}
        if ours:
            spk, out = ops.lif_sequence(leaf, state, num_steps=num_steps, **own, **options)
        else:
            keywords = {**options, **own}
            spk, out, _ = snntorch_loop(leaf, state, num_steps=num_steps, **keywords)
        if upstream is None:
            upstream = torch.randn_like(spk), torch.randn_like(out)
        loss = out.sum() * 0
        if upstream_spk:
            loss = loss + (spk * upstream[0]).sum()
        if upstream_mem:
            loss = loss + (out * upstream[1]).sum()
        loss.backward()
        gradients = {"x": leaf.grad, **{name: value.grad for name, value in own.items()}}
        if state is not None:
            gradients["mem"] = state.grad
        results.append((spk.detach(), out.detach(), gradients))
    return results


def assert_same(results, tolerance=1e-5):
    (spk, mem, gradients), (own_spk, own_mem, own_gradients) = results
    assert torch.equal(own_spk, spk)
    assert torch.equal(own_mem, mem)
    assert own_gradients.keys() == gradients.keys()
    for name, expected in gradients.items():
        if expected is None:
            assert own_gradients[name] is None or not own_gradients[name].any(), name
            continue
        assert own_gradients[name].shape == expected.shape
        assert own_gradients[name].dtype == expected.dtype
        terms = gradients["x"] if name not in ("x", "mem") else None
        assert relative_error(own_gradients[name], expected, terms) <= tolerance, name


@pytest.mark.parametrize("reset_delay", [True, False], ids=["delayed", "immediate"])
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("index", range(len(SURROGATES)), ids=IDS)
def test_equals_snntorch(index, reset, reset_delay, poisoned):
    x = 0.7 * torch.randn(9, 3, 37)
    mem = torch.randn(3, 37)
    options = {"reset_mechanism": reset, "reset_delay": reset_delay, "spike_grad": SNNTORCH[index]}
    parameters = {"beta": 0.8, "threshold": 0.5, "graded_spikes_factor": 1.25}
    expected, actual = both(x, mem, options, parameters)
    assert_same([expected, actual])
    # The same surrogate as an object of ours gives the same gradient.
    again = both(x, mem, {**options, "spike_grad": SURROGATES[index]}, parameters)[1]
    torch.manual_seed(1)
    assert torch.equal(again[0], actual[0])


@pytest.mark.parametrize("neurons", [1, 5, 63, 1000])
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_sizes_and_per_neuron_parameters(neurons, reset, delay, poisoned):
    x = torch.randn(6, 4, neurons)
    options = {"reset_mechanism": reset, "reset_delay": delay}
    parameters = {
        "beta": torch.rand(neurons) * 1.4 - 0.2,  # some outside [0, 1]: clamped, no gradient
        "threshold": torch.rand(neurons) + 0.2,
        "graded_spikes_factor": torch.rand(neurons) + 0.5,
    }
    assert_same(both(x, None, options, parameters))


@pytest.mark.parametrize(
    ("shape", "beta_shape"),
    [
        ((5, 2, 3, 4, 4), (3, 1, 1)),
        ((5, 2, 3, 4, 4), (4,)),
        ((5, 2, 3, 4, 4), (1, 3, 4, 4)),
        ((5, 2, 3), (2, 3)),
        ((5, 2, 3), (2, 1)),
        ((5, 2, 3), (1,)),
        ((5, 2, 3), (1, 1)),
        ((5, 7), (7,)),
        ((5, 7), (1,)),
        ((5,), ()),
    ],
)
def test_any_trailing_shape(shape, beta_shape, poisoned):
    x = torch.randn(shape)
    parameters = {"beta": torch.rand(beta_shape), "threshold": torch.rand(beta_shape) + 0.1}
    assert_same(both(x, None, {}, parameters))


@pytest.mark.parametrize(("upstream_spk", "upstream_mem"), [(True, False), (False, True)])
@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_one_upstream_gradient(upstream_spk, upstream_mem, delay, poisoned):
    x = torch.randn(7, 2, 33)
    parameters = {"beta": 0.9, "threshold": 1.0}
    assert_same(both(x, None, {"reset_delay": delay}, parameters, upstream_spk, upstream_mem))


@pytest.mark.parametrize("reset", RESETS)
def test_constant_input(reset, poisoned):
    x = torch.rand(3, 41)
    mem = torch.rand(3, 41)
    parameters = {"beta": torch.rand(41), "threshold": 0.8}
    assert_same(both(x, mem, {"reset_mechanism": reset}, parameters, num_steps=8))


@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_float64(delay, poisoned):
    x = torch.randn(6, 3, 21, dtype=torch.float64)
    spk, mem = ops.lif_sequence(x, beta=torch.tensor(0.85), reset_delay=delay)
    expected_spk, expected_mem, _ = snntorch_loop(x, beta=0.85, reset_delay=delay)
    assert spk.dtype == mem.dtype == torch.float64
    assert torch.equal(spk, expected_spk.double())
    assert torch.equal(mem, expected_mem)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_low_precision(dtype, reset, delay, poisoned):
    """16-bit storage, float32 state: equal to a loop of that, and to float32 but for threshold crossings."""
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
    x = (0.5 * torch.randn(10, 4, 50)).to(dtype)
    upstream = torch.randn(10, 4, 50)
    gradients = []
    for own in (x, x.float()):
        leaf = own.clone().requires_grad_()
        beta = torch.tensor(0.9, requires_grad=True)
        # Reset none: no decision feeds back, so that the precisions stay comparable everywhere.
        spk, mem = ops.lif_sequence(leaf, beta=beta, reset_mechanism="none")
        ((spk + mem).float() * upstream).sum().backward()
        gradients.append((leaf.grad.float(), beta.grad))
        assert leaf.grad.dtype == own.dtype
        assert beta.grad.dtype == torch.float32
    tolerance = 0.02 if dtype == torch.bfloat16 else 0.003
    assert relative_error(gradients[0][0], gradients[1][0]) < tolerance
    assert relative_error(gradients[0][1], gradients[1][1]) < tolerance


def test_half_conversions_are_torchs():
    """Every 16-bit value in, and float32 values around the rounding edges out, as PyTorch converts them."""
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
    def boxcar(u, grad, spikes):
        return grad * (u.abs() < 0.5) + 0.1 * spikes

    def make(source):
        return source.SSO(0.1, 0.3) if name == "SSO" else source.custom_surrogate(boxcar)

    x = torch.randn(6, 3, 19)
    options = {"spike_grad": make(snntorch.surrogate)}
    parameters = {"beta": 0.9, "threshold": torch.rand(19) + 0.5, "graded_spikes_factor": torch.rand(19) + 0.5}
    results = []
    for spike_grad in (options["spike_grad"], make(surrogate)):
        torch.manual_seed(3)
        expected, _ = both(x, None, {"spike_grad": spike_grad}, parameters)
        torch.manual_seed(3)
        both_again = both(x, None, {"spike_grad": spike_grad}, parameters)
        assert both_again[0][0].equal(expected[0])
        results.append(both_again)
    for expected, actual in results:
        assert torch.equal(actual[0], expected[0])
        if name == "custom_surrogate":
            assert_same([expected, actual])
    # The noise is drawn in snnTorch's order: equal seeds before the backward pass give equal gradients.
    gradients = []
    for ours in (False, True):
        leaf = x.clone().requires_grad_()
        spk = (
            ops.lif_sequence(leaf, beta=0.9, spike_grad=options["spike_grad"])[0]
            if ours
            else snntorch_loop(leaf, beta=0.9, spike_grad=options["spike_grad"])[0]
        )
        torch.manual_seed(4)
        spk.sum().backward()
        gradients.append(leaf.grad)
    assert relative_error(gradients[1], gradients[0]) <= 1e-5


def test_any_callable_runs_by_steps():
    def soft(u):
        return torch.sigmoid(4 * u)

    x = torch.randn(5, 2, 11)
    for reset, delay in itertools.product(RESETS, (True, False)):
        options = {"spike_grad": soft, "reset_mechanism": reset, "reset_delay": delay}
        (spk, mem, gradients), (own_spk, own_mem, own) = both(x, None, options, {"beta": 0.9, "threshold": 0.7})
        assert torch.equal(own_spk, spk)
        assert torch.equal(own_mem, mem)
        assert relative_error(own["x"], gradients["x"]) <= 1e-5
        assert relative_error(own["threshold"], gradients["threshold"]) <= 1e-5


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
    for spike_grad in SURROGATES:
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


def test_non_contiguous_inputs():
    x = torch.randn(33, 4, 7).permute(2, 1, 0)
    mem = torch.randn(33, 4).t()
    assert not x.is_contiguous()
    assert not mem.is_contiguous()
    assert_same(both(x, mem, {}, {"beta": torch.rand(66)[::2].clone()}))
    leaf = x.clone().requires_grad_()
    spk, _ = ops.lif_sequence(leaf, mem, beta=0.9)
    spk.sum().backward()  # an expanded upstream gradient
    other = x.clone().requires_grad_()
    spk, _ = ops.lif_sequence(other, mem, beta=0.9)
    spk.backward(torch.ones_like(spk))
    assert torch.equal(leaf.grad, other.grad)


@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
def test_upstream_gradients_that_do_not_change_with_time(delay):
    """Sums over time hand back one step's gradient for all: it is read as it is, not copied out."""
    x = torch.randn(6, 3, 41)
    results = []
    for own in (True, False):
        start = x.clone().requires_grad_()
        function = ops.lif_sequence if own else (lambda x, **keywords: snntorch_loop(x, **keywords)[:2])
        spk, mem = function(start, beta=0.9, threshold=0.6, reset_delay=delay)
        counts = spk.sum(0)
        (counts * torch.linspace(-1, 1, 123).reshape(3, 41)).sum().backward(retain_graph=True)
        mem.sum().backward()
        results.append(start.grad)
    assert relative_error(*results) <= 1e-5


@pytest.mark.parametrize("shape", [(0, 3, 4), (5, 0, 4), (5, 3, 0)])
def test_empty_inputs(shape):
    x = torch.randn(shape, requires_grad=True)
    beta = torch.tensor(0.9, requires_grad=True)
    spk, mem = ops.lif_sequence(x, beta=beta)
    assert spk.shape == mem.shape == shape
    (spk.sum() + mem.sum()).backward()
    assert x.grad.shape == shape
    assert beta.grad == 0


def test_threads_do_not_change_a_bit():
    x = torch.randn(9, 160, 300)  # enough work for several threads and blocks
    beta = torch.rand(300)
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            leaf, own = x.clone().requires_grad_(), beta.clone().requires_grad_()
            scalar = torch.tensor(1.0, requires_grad=True)
            spk, mem = ops.lif_sequence(leaf, beta=own, threshold=scalar)
            (spk.sum() + (mem**2).sum()).backward()
            results.append((spk.detach(), mem.detach(), leaf.grad, own.grad, scalar.grad))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for own, expected in zip(other, results[0]):
            assert torch.equal(own, expected)


@needs_compile
def test_compiles_into_one_graph():
    def loss(x, beta):
        spk, mem = ops.lif_sequence(x, beta=beta, spike_grad=None)
        return (spk * mem).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    gradients = []
    for function in (loss, compiled):
        x = torch.linspace(-1, 2, 60).reshape(4, 3, 5).requires_grad_()
        beta = torch.tensor(0.9, requires_grad=True)
        function(x, beta).backward()
        gradients.append((x.grad, beta.grad))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert torch.equal(gradients[0][1], gradients[1][1])


@settings(max_examples=60, deadline=None)
@given(
    steps=st.integers(1, 8),
    batch=st.integers(1, 4),
    neurons=st.integers(1, 70),
    reset=st.sampled_from(RESETS),
    delay=st.booleans(),
    beta=st.floats(-0.5, 1.5),
    threshold=st.floats(0.05, 2.0),
    seed=st.integers(0, 2**16),
)
def test_property_equals_snntorch(steps, batch, neurons, reset, delay, beta, threshold, seed):
    torch.manual_seed(seed)
    x = torch.randn(steps, batch, neurons)
    options = {"reset_mechanism": reset, "reset_delay": delay}
    assert_same(both(x, None, options, {"beta": beta, "threshold": threshold}), tolerance=2e-5)


X = torch.zeros(4, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": [1.0, 2.0]}, TypeError, "x must be a torch.Tensor"),
        ({"x": torch.zeros(4, 2, 3, dtype=torch.int64)}, TypeError, "x must be float32"),
        ({"x": torch.zeros(4, 2, 3, dtype=torch.complex64)}, TypeError, "x must be float32"),
        ({"x": torch.zeros(())}, ValueError, r"x must have shape \[T, B, ...\]"),
        ({"mem": torch.zeros(3, 3)}, ValueError, r"mem must have the shape of one step of x, \(2, 3\), got \(3, 3\)"),
        ({"mem": torch.zeros(2, 3, dtype=torch.int32)}, TypeError, "mem must be floating"),
        ({"mem": torch.zeros(2, 3, device="meta")}, ValueError, "mem must be on x's device cpu, got meta"),
        ({"mem": 0.0}, TypeError, "mem must be a torch.Tensor or None"),
        ({"beta": torch.rand(4)}, ValueError, r"beta must broadcast to one step of x, \(2, 3\), got .* \(4,\)"),
        ({"beta": torch.rand(5, 2, 3)}, ValueError, "beta must broadcast"),
        ({"beta": "0.9"}, TypeError, "beta must be a number or a torch.Tensor"),
        ({"beta": torch.rand(3, device="meta")}, ValueError, "beta must be on x's device"),
        ({"threshold": torch.rand(2)}, ValueError, "threshold must broadcast"),
        ({"graded_spikes_factor": torch.rand(7, 1)}, ValueError, "graded_spikes_factor must broadcast"),
        ({"reset_mechanism": "substract"}, ValueError, "reset_mechanism must be 'subtract', 'zero' or 'none'"),
        ({"spike_grad": 25}, TypeError, "spike_grad must be callable"),
        ({"num_steps": 0}, ValueError, "num_steps must be at least 1"),
        ({"num_steps": 2.5}, TypeError, "num_steps must be an int"),
    ],
)
def test_bad_input(arguments, error, message):
    arguments = copy.copy(arguments)
    keywords = {"x": X, "beta": 0.9, **arguments}
    with pytest.raises(error, match=message):
        ops.lif_sequence(**keywords)


def channels_last(x):
    """[T, B, C, H, W] as a convolution of channels_last weights gives it, with the time folded into the batch."""
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
    for own, expected in zip(results[1][:5], results[0][:5]):
        assert torch.equal(own, expected)
    assert relative_error(results[1][5], results[0][5]) <= 1e-6


def test_dense_layouts_pass_as_they_lie():
    """Results and gradients lie as the input does, and nothing is copied."""
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


def test_a_parameter_that_does_not_fit_is_named_in_any_layout():
    with pytest.raises(ValueError, match=r"beta must broadcast to one step of x, \(3, 4, 6, 5\)"):
        ops.lif_sequence(channels_last(torch.randn(7, 3, 4, 6, 5)), beta=torch.rand(3, 1))
