"""Random sizes and options for the operators on maps, against the dense oracle and the reference.

``SNNIPU_HYPOTHESIS_EXAMPLES`` sets how many cases each property is tried with.

A convolution is the product with a matrix, which PyTorch's own convolution makes of the weight: the oracle of the fully
connected layers then serves, with its autograd. All numbers of the forward passes are small multiples of powers of two,
so that sums are exact in whatever order and the same neurons must spike.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import (
    RESETS,
    SURROGATES,
    assert_slots,
    at_slots,
    dense_layer,
    densified,
    needs_kernel,
    on_grid,
    random_spikes,
    reference_of,
    relative_error,
)

from snnipu import SparseSpikes, ops
from snnipu.ops._maps import conv_geometry, pool_geometry
from snnipu.ops._slots import AS_NEEDED
from snnipu.ops.sparse_conv_lif_sequence import Maps, sparse_conv_lif_pool

EXAMPLES = int(os.environ.get("SNNIPU_HYPOTHESIS_EXAMPLES", "40"))
tried = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])

dtypes = st.sampled_from([torch.float32, torch.float64])
rates = st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0])
seeds = st.integers(0, 2**31 - 1)


@st.composite
def convolutions(draw, most=7):
    """Keywords of a convolution, shapes of its input and weight; kernels larger than the map where padding allows."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels = groups * draw(st.integers(1, 3))
    # More than one block of output channels now and then.
    out = groups * draw(st.one_of(st.integers(1, 4), st.sampled_from([17, 65])))
    small = out > 30
    axes = []
    for _ in range(2):
        size = draw(st.integers(1, 3 if small else most))
        padding = draw(st.integers(0, 3))
        dilation = draw(st.integers(1, 3))
        reach = size + 2 * padding
        kernel = draw(st.integers(1, min(5, (reach - 1) // dilation + 1)))
        axes.append((size, kernel, draw(st.integers(1, 4)), padding, dilation))
    sizes, kernels, strides, paddings, dilations = zip(*axes)
    keywords = {"stride": strides, "padding": paddings, "dilation": dilations, "groups": groups}
    return keywords, (channels, *sizes), (out, channels // groups, *kernels)


def matrix(weight, shape, keywords):
    """``[neurons, inputs]``: the convolution, one input after the other."""
    inputs = shape[0] * shape[1] * shape[2]
    unit = torch.eye(inputs, dtype=weight.dtype).reshape(inputs, *shape)
    return torch.nn.functional.conv2d(unit, weight, **keywords).reshape(inputs, -1).t()


def spread(parameter, weight, neurons):
    """A parameter of channels as one of neurons."""
    return parameter if parameter.numel() == 1 else parameter.repeat_interleave(neurons // weight.shape[0])


def assert_close(own, expected, terms, dtype, name=""):
    assert own.shape == expected.shape, name
    if own.numel() and terms.numel():
        assert relative_error(own, expected, terms) <= (1e-4 if dtype == torch.float32 else 1e-10), name
    else:
        assert not own.any(), name


@tried
@given(convolutions(), st.integers(0, 3), st.integers(0, 3), rates, rates, *[st.booleans()] * 3, dtypes, seeds)
def test_sparse_conv2d(convolution, T, B, rate, carried, graded, shuffled, bias, dtype, seed):
    torch.manual_seed(seed)
    keywords, shape, weights = convolution
    inputs = shape[0] * shape[1] * shape[2]
    spikes = random_spikes(T, B, inputs, rate, carried, graded=graded, dtype=dtype, shuffled=shuffled)
    own = [on_grid(*weights, dtype=dtype), on_grid(weights[0], dtype=dtype) if bias else None]
    x = densified(spikes.values, spikes).requires_grad_()
    theirs = [p if p is None else p.clone().requires_grad_() for p in own]
    ours = [p if p is None else p.clone().requires_grad_() for p in own]
    expected = x @ matrix(theirs[0], shape, keywords).t()
    expected = expected if not bias else expected + spread(theirs[1], own[0], expected.shape[2])
    spikes.requires_grad_()
    out = ops.sparse_conv2d(spikes, *ours, input_size=shape[1:], **keywords)
    assert out.shape[:3] == (T, B, weights[0])
    assert torch.equal(out.flatten(2), expected)
    upstream = on_grid(*expected.shape, step=8, most=4.0, dtype=dtype)
    expected.backward(upstream)
    out.backward(upstream.reshape(out.shape))
    # Exact, as every sum is.
    assert torch.equal(spikes.values.grad, at_slots(x.grad, spikes))
    assert torch.equal(ours[0].grad, theirs[0].grad)
    assert not bias or torch.equal(ours[1].grad, theirs[1].grad)


@st.composite
def layers(draw, surrogates):
    """Sizes, tensors and options of a layer; sums of its forward pass are exact."""
    keywords, shape, weights = draw(convolutions(most=4))
    torch.manual_seed(draw(seeds))
    dtype = draw(dtypes)
    inputs = shape[0] * shape[1] * shape[2]
    kinds = {"graded": draw(st.booleans()), "shuffled": draw(st.booleans())}
    sizes = (draw(st.integers(0, 5)), draw(st.integers(0, 3)), inputs)
    spikes = random_spikes(*sizes, draw(rates), draw(rates), dtype=dtype, **kinds)
    betas = torch.tensor([0.0, 0.25, 0.5, 1.0, 1.5, -0.5], dtype=dtype)
    sized = st.sampled_from([(), (1,), (weights[0],)])
    tensors = {
        "weight": on_grid(*weights, step=8, most=1.0, dtype=dtype),
        "beta": betas[torch.randint(0, 6, draw(sized))],
        "threshold": on_grid(*draw(sized), step=4, most=1.0, dtype=dtype),
    }
    if draw(st.booleans()):
        tensors["bias"] = on_grid(weights[0], step=8, most=0.5, dtype=dtype)
    options = {
        "grad_threshold": draw(st.sampled_from([None, -float("inf"), -1.0, 0.0, 0.25, 0.5, 2.0])),
        "max_spikes": draw(st.one_of(st.none(), st.integers(0, 20), st.integers(0, 140))),
        "reset_mechanism": draw(st.sampled_from(RESETS)),
        "input_scale": draw(st.sampled_from([1.0, 0.5, -2.0])),
        "overflow": draw(st.sampled_from(["lowest", "rotate"])),
        "delay": draw(st.sampled_from([0, 0, 1, 1, 3, 8])),
    }
    return spikes, shape, keywords, tensors, options, draw(st.sampled_from(surrogates))


@tried
@given(layers(list(SURROGATES)))
def test_sparse_conv_lif_sequence(layer):
    spikes, shape, keywords, tensors, options, name = layer
    ours, theirs = SURROGATES[name]
    weight = tensors["weight"]
    x = densified(spikes.values, spikes).requires_grad_()
    leaves = {key: tensor.clone().requires_grad_() for key, tensor in tensors.items()}
    whole = matrix(leaves["weight"], shape, keywords)
    neurons = whole.shape[0]
    dense = {"weight": whole, **{k: spread(t, weight, neurons) for k, t in leaves.items() if k != "weight"}}
    spk, slots, _ = dense_layer(x, spike_grad=theirs, **dense, **options)
    upstream = torch.randn_like(spk)
    ((spk * upstream).sum() + 0 * (x.sum() + sum(leaf.sum() for leaf in leaves.values()))).backward()
    spikes.requires_grad_()
    own = {key: tensor.clone().requires_grad_() for key, tensor in tensors.items()}
    out = ops.sparse_conv_lif_sequence(spikes, spike_grad=ours, input_size=shape[1:], **keywords, **own, **options)
    assert_slots(out, slots)
    assert out.num_neurons == neurons
    SparseSpikes(out.ids, out.values, out.counts, neurons, dropped=out.dropped, map_shape=out.map_shape)  # is valid
    out.values.backward(at_slots(upstream, out, padding=1e6))
    precision = torch.float32 if name == "custom_surrogate" else weight.dtype
    grads = [x.grad, *(leaf.grad for leaf in leaves.values()), upstream]
    terms = torch.stack([grad.abs().max() if grad.numel() else grad.new_zeros(()) for grad in grads])
    assert_close(spikes.values.grad, at_slots(x.grad, spikes), terms, precision, "values")
    for key, leaf in leaves.items():
        assert_close(own[key].grad, leaf.grad, terms, precision, key)


@needs_kernel("sparse_conv_lif_sequence_fwd")
@tried
@given(layers(["fast_sigmoid"]))
def test_the_kernel_is_the_reference(layer):
    """Every output, those that only the backward pass reads too."""
    spikes, shape, keywords, tensors, options, _ = layer
    weight = tensors["weight"]
    pairs = [keywords[name] for name in ("stride", "padding", "dilation")]
    geometry = list(conv_geometry(weight, shape[1:], *pairs, keywords["groups"]))
    arguments = (
        *(spikes.ids, spikes.values, spikes.counts, weight, tensors.get("bias"), tensors["beta"], tensors["threshold"]),
        *(geometry, options["grad_threshold"], options["input_scale"]),
        AS_NEEDED
        if options["max_spikes"] is None
        else min(options["max_spikes"], geometry[3] * geometry[4] * geometry[5]),
        *(options["overflow"] == "rotate", RESETS.index(options["reset_mechanism"]), options["delay"], True),
    )
    own = torch.ops.snnipu.sparse_conv_lif_sequence_fwd(*arguments)
    expected = reference_of("sparse_conv_lif_sequence_fwd")(*arguments)
    for number, (a, b) in enumerate(zip(own, expected)):
        assert torch.equal(a, b), number


@needs_kernel("sparse_conv_lif_pool_fwd")
@tried
@given(layers(["fast_sigmoid"]), st.integers(1, 3), st.integers(1, 3))
def test_a_layer_and_its_pool_are_the_reference(layer, height, width):
    """As one operator: every output, and the gradients of layer and pool one after the other."""
    spikes, shape, keywords, tensors, options, name = layer
    weight = tensors["weight"]
    pairs = [keywords[name] for name in ("stride", "padding", "dilation")]
    geometry = conv_geometry(weight, shape[1:], *pairs, keywords["groups"])
    window = (min(height, geometry.out_height), min(width, geometry.out_width))
    bias, beta, threshold = tensors.get("bias"), tensors["beta"], tensors["threshold"]
    arguments = (
        *(spikes.ids, spikes.values, spikes.counts, weight, bias, beta, threshold, list(geometry)),
        *(options["grad_threshold"], options["input_scale"], AS_NEEDED, False),
        *(RESETS.index(options["reset_mechanism"]), options["delay"], True, list(window)),
    )
    own = torch.ops.snnipu.sparse_conv_lif_pool_fwd(*arguments)
    expected = reference_of("sparse_conv_lif_pool_fwd")(*arguments)
    for number, (a, b) in enumerate(zip(own, expected)):
        assert torch.equal(a, b), number
    one, other = dict(options), dict(options, max_spikes=None)
    del one["max_spikes"], one["overflow"]
    results = []
    for fused in (True, False):
        x = spikes.detach().requires_grad_()
        leaves = {key: tensor.clone().requires_grad_() for key, tensor in tensors.items()}
        keys = {**leaves, "spike_grad": SURROGATES[name][0]}
        maps = {**keywords, "input_size": shape[1:]}
        if fused:
            first, bias = keys.pop("weight"), keys.pop("bias", None)
            out, counts = sparse_conv_lif_pool(x, first, bias, window, Maps(**maps), **keys, **one)
        else:
            full = ops.sparse_conv_lif_sequence(x, **maps, **keys, **other)
            out, counts = ops.sparse_pool2d(full, window), full.counts
        torch.manual_seed(0)
        out.values.backward(at_slots(torch.randn(out.shape, dtype=weight.dtype), out, padding=1e6))
        grads = [x.values.grad, *(leaf.grad for leaf in leaves.values())]
        results.append(((out.ids, out.values.detach(), out.counts, counts), out.map_shape, grads))
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0]))
    assert results[0][1] == results[1][1]
    for a, b in zip(results[0][2], results[1][2]):
        assert_close(a, b, b, weight.dtype)


def _pooled(window, channels=40, grad_threshold=0.75, size=(34, 30)):
    """Arguments of ``sparse_conv_lif_pool_fwd`` for maps of many words of 64 places; sums are exact."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(3, 2, 2 * size[0] * size[1], generator=generator) < 0.1).float()
    spikes = SparseSpikes.from_dense(x)
    weight = torch.randint(-16, 40, (channels, 2, 3, 3), generator=generator) / 64
    geometry = list(conv_geometry(weight, size, (1, 1), (0, 0), (1, 1), 1))
    parameters = (weight, None, torch.tensor(0.5), torch.tensor(1.0))
    return (
        *(spikes.ids, spikes.values, spikes.counts, *parameters, geometry),
        *(grad_threshold, 1.0, AS_NEEDED, False, RESETS.index("zero"), 0, True, list(window)),
    )


@needs_kernel("sparse_conv_lif_pool_fwd")
@pytest.mark.parametrize("grad_threshold", [None, 0.75])
@pytest.mark.parametrize("window", [(1, 1), (2, 2), (2, 3), (4, 4), (3, 7), (16, 16), (8, 28)])
def test_windows_of_large_maps(window, grad_threshold):
    arguments = _pooled(window, grad_threshold=grad_threshold)
    own = torch.ops.snnipu.sparse_conv_lif_pool_fwd(*arguments)
    assert own[2].sum() > 0
    for number, (a, b) in enumerate(zip(own, reference_of("sparse_conv_lif_pool_fwd")(*arguments))):
        assert torch.equal(a, b), number


@needs_kernel("sparse_conv_lif_pool_fwd")
@pytest.mark.parametrize("window", [(0, 2), (2, -1), (17, 16)])
def test_windows_that_are_none_are_refused(window):
    with pytest.raises(ValueError, match="window must be two sizes of at least 1 and at most 256 places"):
        torch.ops.snnipu.sparse_conv_lif_pool_fwd(*_pooled(window))


@st.composite
def pools(draw):
    axes = []
    for _ in range(2):
        kernel = draw(st.integers(1, 4))
        padding = draw(st.integers(0, kernel // 2))
        size = draw(st.integers(max(1, kernel - 2 * padding), 8))
        axes.append((size, kernel, draw(st.integers(1, 5)), padding))
    return draw(st.integers(1, 4)), *zip(*axes)


@tried
@given(pools(), st.integers(0, 3), st.integers(0, 3), rates, rates, *[st.booleans()] * 2, dtypes, seeds)
def test_sparse_pool2d(pool, T, B, rate, carried, graded, shuffled, dtype, seed):
    """Against the reference for any slots, and PyTorch's pools where every neuron has one."""
    torch.manual_seed(seed)
    channels, size, kernel, stride, padding = pool
    shape = (channels, *size)
    neurons = channels * size[0] * size[1]
    spikes = random_spikes(T, B, neurons, rate, carried, graded=graded, dtype=dtype, shuffled=shuffled)
    everyone = random_spikes(T, B, neurons, rate, 1.0, graded=graded, dtype=dtype, shuffled=shuffled)
    geometry = list(pool_geometry(shape, kernel, stride, padding))
    for code, mode in enumerate(("max", "average", "sum")):
        x = densified(everyone.values, everyone).requires_grad_()
        maps = x.reshape(-1, *shape)
        if mode == "max":
            dense = torch.nn.functional.max_pool2d(maps, kernel, stride, padding) if len(maps) else None
        else:
            divisor = 1 if mode == "sum" else None
            dense = (
                torch.nn.functional.avg_pool2d(maps, kernel, stride, padding, divisor_override=divisor)
                if len(maps)
                else None
            )
        own = SparseSpikes(everyone.ids, everyone.values.clone().requires_grad_(), everyone.counts, neurons)
        out = ops.sparse_pool2d(own, kernel, stride, padding, mode=mode, input_size=shape)
        assert out.shape[2] == out.map_shape[0] * out.map_shape[1] * out.map_shape[2]
        SparseSpikes(out.ids, out.values.detach(), out.counts, out.num_neurons)  # is valid
        if dense is not None:
            dense = dense.reshape(T, B, -1)
            assert_close(out.to_dense().detach(), dense.detach(), dense.detach(), dtype)
            upstream = on_grid(*dense.shape, dtype=dtype)
            dense.backward(upstream)
            out.values.backward(at_slots(upstream, out, padding=1e6))
            assert_close(own.values.grad, at_slots(x.grad, own), upstream, dtype)
        arguments = (spikes.ids, spikes.values, spikes.counts, geometry, code, AS_NEEDED)
        found = torch.ops.snnipu.sparse_pool2d_fwd(*arguments)
        expected = reference_of("sparse_pool2d_fwd")(*arguments)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[2], expected[2])
        assert torch.equal(found[3], expected[3])
        assert_close(found[1], expected[1], expected[1], dtype)
        grad = on_grid(*found[0].shape, dtype=dtype)
        backward = (grad, spikes.ids, spikes.counts, found[0], found[2], found[3], geometry, code)
        own_grad, other = torch.ops.snnipu.sparse_pool2d_bwd(*backward), reference_of("sparse_pool2d_bwd")(*backward)
        assert_close(own_grad, other, grad, dtype)
