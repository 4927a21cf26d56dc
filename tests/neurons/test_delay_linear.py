"""``DelayLinear`` against its definition, spike by spike, in float64."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_all_equal, with_threads
from support.delays import TIGHT, weighted
from support.loops import with_gradients
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn
from snnipu.backends import host_sparse
from snnipu.ops.delay_linear import taps


def layer_of(inputs, outputs, max_delay, delay=None, **options):
    layer = snn.DelayLinear(inputs, outputs, max_delay, delay=delay, **options).double()
    with torch.no_grad():
        layer.weight.normal_()
        if layer.bias is not None:
            layer.bias.normal_()
    return layer


def compare(layer, x, spikes=False):
    """Compare the results and all gradients."""
    leaves = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    dense, given_x = (x.detach().clone().requires_grad_() for _ in range(2))
    if spikes:
        given_x = snn.SparseSpikes.from_dense(x)
        given_x.values.requires_grad_()
    shape = (layer.max_delay, layer.kernel, layer.sigma)
    expected = weighted(dense, leaves["weight"], leaves["delay"], leaves.get("bias"), *shape)
    upstream = torch.randn_like(expected)
    out = layer(given_x)
    torch.testing.assert_close(out, expected, **TIGHT)
    out.backward(upstream)
    expected.backward(upstream)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, leaves[name].grad, **TIGHT)
    if spikes:
        gathered = dense.grad.gather(2, given_x.ids.long())
        used = torch.arange(given_x.ids.shape[2]) < given_x.counts[..., 1:]
        torch.testing.assert_close(given_x.values.grad[used], gathered[used], **TIGHT)
    else:
        torch.testing.assert_close(given_x.grad, dense.grad, **TIGHT)


def spikes_of(steps, batch, inputs, activity, graded):
    x = (torch.rand(steps, batch, inputs, dtype=torch.float64) < activity).double()
    return x * torch.randn_like(x) if graded else x


@given(
    st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(1, 40), st.integers(1, 40), st.integers(0, 15)),
    st.sampled_from(["each", "axonal", "dendritic"]),
    st.sampled_from(["linear", "linear", "gaussian"]),
    st.floats(0, 1),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=40)
def test_it_is_its_definition(sizes, shape, kernel, activity, flags, seed):
    steps, batch, inputs, outputs, longest = sizes
    graded, spikes, whole, bias = flags
    torch.manual_seed(seed)
    delay = torch.rand({"each": (outputs, inputs), "axonal": (1, inputs), "dendritic": (outputs, 1)}[shape]) * longest
    delay = delay.round() if whole else delay
    delay.view(-1)[0], delay.view(-1)[-1] = 0, longest
    layer = layer_of(inputs, outputs, longest, delay, kernel=kernel, sigma=0.7, bias=bias)
    compare(layer, spikes_of(steps, batch, inputs, activity, graded), spikes)


def test_a_spike_arrives_between_steps():
    layer = snn.DelayLinear(1, 1, 4, delay=1.25, learn_delay=False)
    with torch.no_grad():
        layer.weight.fill_(2.0)
    x = torch.zeros(6, 1, 1)
    x[1] = 1
    assert layer(x).flatten().tolist() == [0, 0, 1.5, 0.5, 0, 0]
    assert layer.round_()(x).flatten().tolist() == [0, 0, 2, 0, 0, 0]
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert "delay" in layer.state_dict()


def test_delays_beyond_the_ends_count_as_them_and_learn_no_more():
    layer = layer_of(3, 4, 5)
    with torch.no_grad():
        layer.delay[0], layer.delay[1] = -2, 9
    x = spikes_of(8, 2, 3, 0.5, False)
    layer(x).square().sum().backward()
    assert not layer.delay.grad[:2].any()
    assert layer.delay.grad[2:].all()
    inside = copy.deepcopy(layer)
    with torch.no_grad():
        inside.delay.clamp_(0, 5)
    assert torch.equal(inside(x), layer(x))
    inside.load_state_dict(layer.state_dict())
    assert torch.equal(inside.delay, layer.delay)


@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
def test_infinite_delays_count_as_the_ends(kernel):
    layer = layer_of(3, 4, 5, kernel=kernel)
    x = spikes_of(8, 2, 3, 0.5, False)
    results = []
    for ends in ((-math.inf, math.inf), (0.0, 5.0)):
        with torch.no_grad():
            layer.delay[0], layer.delay[1] = ends
        results.append(layer(x))
    assert torch.equal(*results)


@pytest.mark.parametrize("init_hidden", [False, True])
@pytest.mark.parametrize("spikes", [False, True])
@pytest.mark.parametrize("max_delay", [0, 3])
@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
def test_what_arrives_by_a_delay_that_is_nan_is_nan(kernel, max_delay, spikes, init_hidden):
    """A NaN weight does the same. Other outputs do not change."""
    layer = layer_of(3, 4, max_delay, kernel=kernel, init_hidden=init_hidden)
    x = spikes_of(8, 2, 3, 0.7, False)
    given_x = snn.SparseSpikes.from_dense(x) if spikes else x
    expected = layer(given_x)
    layer.reset_delay()
    with torch.no_grad():
        layer.delay[1, 2] = math.nan
    out = layer(given_x)
    assert out[x[:, :, 2] != 0][:, 1].isnan().all()
    assert torch.equal(out[:, :, [0, 2, 3]], expected[:, :, [0, 2, 3]])
    out.sum().backward()
    assert layer.weight.grad[1, 2].isnan()
    assert layer.weight.grad.isnan().sum() == 1


def test_the_number_of_threads_does_not_change_a_bit():
    layer, x = snn.DelayLinear(120, 100, 20, bias=True), (torch.rand(60, 40, 120) < 0.1).float().requires_grad_()

    def run():
        out = layer(x)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]

    assert_all_equal(with_threads(run, (1, 3)))


def test_other_dtypes_and_empty_inputs():
    layer = snn.DelayLinear(8, 6, 3)
    x = torch.rand(5, 2, 8) < 0.4
    expected = layer(x)
    assert expected.dtype == torch.float32
    half = copy.deepcopy(layer).to(torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.float32
    torch.testing.assert_close(half(x), expected, rtol=0.05, atol=0.05)
    for steps, batch in ((0, 2), (3, 0)):
        empty = layer(torch.zeros(steps, batch, 8))
        assert empty.shape == (steps, batch, 6)
        empty.sum().backward()
    (grad,) = torch.autograd.grad((layer(x.float()) ** 2).sum(), layer.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        grad.sum().backward()


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.integers(0, 9),
    st.sampled_from(["linear", "gaussian"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=30)
def test_a_stream_in_any_division_is_the_whole(lengths, longest, kernel, bias, spikes, seed):
    torch.manual_seed(seed)
    whole = layer_of(5, 4, longest, kernel=kernel, bias=bias)
    x = spikes_of(sum(lengths), 3, 5, 0.4, True)
    streamed = copy.deepcopy(whole)
    streamed.init_hidden = True

    def divided(layer, x):
        parts = x.split(lengths)
        parts = [snn.SparseSpikes.from_dense(part.detach()) for part in parts] if spikes else parts
        return [torch.cat([layer(part) for part in parts])]

    out, gradients = with_gradients(divided, streamed, x)
    expected, others = with_gradients(lambda layer, x: [layer(x)], whole, x)
    torch.testing.assert_close(out, expected, **TIGHT)
    first = 1 if spikes else 0  # spikes have no gradient here
    torch.testing.assert_close(gradients[first:], others[first:], **TIGHT)


def test_what_is_on_its_way():
    net = nn.Sequential(
        layer_of(5, 4, 6, bias=True, init_hidden=True), snn.Leaky(beta=0.9, init_hidden=True, output=True)
    )
    layer, x = net[0], spikes_of(12, 3, 5, 0.5, False)
    whole = copy.deepcopy(net)
    whole[0].init_hidden = False
    expected = snn.MultiStep(*whole)(x)[1]
    for _ in range(2):  # step by step with inputs [B, in]
        snn.utils.reset(net)
        torch.testing.assert_close(torch.stack([net(step)[1] for step in x]), expected, **TIGHT)
    layer.reset_delay()
    first = layer(x[:7])
    # A copy and a pickled module continue the stream without its graph. The memory is neither in the state_dict nor in
    # the buffers, which DDP broadcasts.
    others = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    assert {name for name, _ in layer.named_buffers()} | set(layer.state_dict()) == {"weight", "bias", "delay"}
    later = layer(x[7:])
    assert all(torch.equal(other(x[7:]), later) for other in others)
    torch.testing.assert_close(torch.cat([first, later]), whole[0](x), **TIGHT)
    # The gradient reaches earlier steps unless detach_delay() cuts it.
    layer.reset_delay()
    layer(x[:7]).sum()
    layer(x[:7] * 0).sum().backward()
    assert layer.weight.grad.abs().sum() > 0
    layer.zero_grad()
    layer.detach_delay()
    layer(x[:7] * 0).sum().backward()
    assert not layer.weight.grad.any()
    with pytest.raises(ValueError, match=r"go on with the batch of 3 samples .* got 2 .*: call reset_delay\(\)"):
        layer(x[:, :2])
    layer.reset_delay()
    assert layer(x[:, :2]).shape == (12, 2, 4)


def test_lags_beyond_the_span_are_refused():
    layer = layer_of(4, 3, 5)
    connected = taps(layer.weight, layer.delay, 5, "linear", 1.0)
    grad = torch.randn(6, 2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="lags must be from 0 to 5, got"):
        host_sparse.delay_input_bwd(grad, connected.weight.detach(), connected.lags + 9, connected.span)


@each_row(r"""
snn.DelayLinear(0, 3, 4) | ValueError: in_features
snn.DelayLinear(3, 3, -1) | ValueError: max_delay must be at least 0, got -1
snn.DelayLinear(3, 3, 1.5) | TypeError: max_delay must be an int
snn.DelayLinear(3, 2, 4, delay=5.0) | ValueError: delay must be from 0 to max_delay = 4
snn.DelayLinear(3, 2, 4, delay=math.nan) | ValueError: delay must be from 0 to max_delay = 4
snn.DelayLinear(3, 2, 4, delay=torch.ones(3, 2)) | ValueError: delay must have shape \[2, 3\], \[1, 3\], \[2, 1\]
snn.DelayLinear(3, 2, 4, delay="long") | TypeError: delay must be a number
snn.DelayLinear(3, 2, 4, kernel="box") | ValueError: kernel must be one of 'linear', 'gaussian', got 'box'
snn.DelayLinear(3, 2, 4, sigma=0) | ValueError: sigma must be above 0
snn.DelayLinear(3, 2, 4, init_hidden=1) | TypeError: init_hidden must be a bool
layer(x) | ValueError: x must have shape \[T, B, in_features=3\], got \(2, 1, 4\)
layer(x[0]) | ValueError: x must have shape \[T, B
layer(snn.SparseSpikes.from_dense(x)) | ValueError: x must be spikes of in_features=3 neurons, got 4
layer([1.0]) | TypeError: x must be
""")
def test_bad_arguments_and_input(row):
    assert_refused(row, globals(), layer=snn.DelayLinear(3, 2, 4), x=torch.zeros(2, 1, 4))


def test_a_sigma_that_is_set_to_a_wrong_one():
    layer = snn.DelayLinear(3, 2, 4)
    layer.sigma = -1
    with pytest.raises(ValueError, match="sigma must be above 0"):
        layer(torch.zeros(2, 1, 3))


@each_row(r"""
delay=torch.zeros(3, 2) | delay must have shape \[2, 3\], \[1, 3\], \[2, 1\] or none, got \[3, 2\]
delay=torch.zeros(3) | delay must have shape .* got \[3\]
delay=None | delay must be a torch.Tensor, got None
delay=torch.zeros(2, 3, device="meta") | delay must be on the device of weight, cpu, got meta
weight=torch.zeros(4, 3) | weight must have shape \[2, 3\], got \[4, 3\]
bias=torch.zeros(1) | bias must have shape \[2\], got \[1\]
bias=torch.zeros(5) | bias must have shape \[2\], got \[5\]
""")
@pytest.mark.parametrize("init_hidden", [False, True])
def test_parameters_of_other_shapes(row, init_hidden):
    layer = snn.DelayLinear(3, 2, 4, bias=True, init_hidden=init_hidden)
    change, message = row.split(" | ")
    for name, value in eval(f"dict({change})").items():
        setattr(layer, name, None if value is None else nn.Parameter(value))
    with pytest.raises((TypeError, ValueError), match=message):
        layer(torch.zeros(5, 1, 3))


def test_another_longest_delay_in_the_middle_of_a_stream():
    layer = snn.DelayLinear(3, 2, 4, init_hidden=True)
    layer(torch.zeros(5, 1, 3))
    for longest in (2, 6):
        layer.max_delay = longest
        with pytest.raises(ValueError, match=f"max_delay=4, got .* max_delay={longest}: call reset_delay"):
            layer(torch.zeros(5, 1, 3))
