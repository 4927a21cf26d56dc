"""Random shapes and options for the event-driven operators, against the dense oracle and the reference.

``SNNIPU_HYPOTHESIS_EXAMPLES`` sets the number of cases of each property. All numbers of the forward passes are small
multiples of powers of two. Sums are therefore exact in every order, and the same neurons must spike, even exactly at
the threshold. A convolution is the product with a matrix that PyTorch's own convolution computes from the weight. One
oracle, with its autograd, therefore serves all layers.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import (
    FUSED,
    RESETS,
    SURROGATES,
    assert_slots,
    at_slots,
    dense_layer,
    densified,
    masked_spikes,
    needs_kernel,
    on_grid,
    poison_new_tensors,
    random_spikes,
    reference_of,
    relative_error,
    slots_of,
    trimmed,
)
from support import sparse_cases as cases
from support.sparse_cases import AS_NEEDED, POOLED, arguments, assert_is_the_reference, case

from snnipu import SparseSpikes, ops
from snnipu.ops.sparse_conv_lif_sequence import Maps, sparse_conv_lif_pool

LIF = cases.LAYERS[0]

EXAMPLES = int(os.environ.get("SNNIPU_HYPOTHESIS_EXAMPLES", "60"))
tried = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])

steps = st.integers(0, 6)
batches = st.integers(0, 3)
neurons = st.one_of(st.integers(1, 12), st.integers(60, 70), st.integers(120, 135))
caps = st.one_of(st.none(), st.integers(0, 20), st.integers(0, 140))
orders = st.sampled_from(["lowest", "rotate"])
grad_thresholds = st.one_of(st.none(), st.sampled_from([-float("inf"), -1e30, -1.0, 0.0, 0.25, 0.5, 2.0]))
rates = st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0])
dtypes = st.sampled_from([torch.float32, torch.float64])
seeds = st.integers(0, 2**31 - 1)


def tolerance(dtype):
    return 1e-4 if dtype == torch.float32 else 1e-10


def assert_close(actual, expected, terms, dtype, name=""):
    """Compare gradients relative to the size of their terms, the upstream gradients: sums may cancel."""
    assert actual.shape == expected.shape, name
    if actual.numel() and terms.numel():
        assert relative_error(actual, expected, terms) <= tolerance(dtype), name
    else:
        assert not actual.any(), name


@tried
@given(steps, batches, neurons, caps, orders, rates, dtypes, seeds)
def test_dense_to_sparse_and_back(T, B, N, max_spikes, overflow, rate, dtype, seed):
    torch.manual_seed(seed)
    x = torch.where(torch.rand(T, B, N) < rate, on_grid(T, B, N), torch.zeros(())).to(dtype).requires_grad_()
    spikes = ops.dense_to_sparse(x, max_spikes, overflow=overflow)
    expected = slots_of(x != 0, x != 0, max_spikes, overflow, dtype)
    assert_slots(spikes, expected._replace(values=spikes.values.detach()))
    dense = spikes.to_dense()
    assert torch.equal(dense, torch.where(expected.taken, x, torch.zeros((), dtype=dtype)))
    assert torch.equal(spikes.spike_count(), dense.sum(0))
    upstream = torch.randn_like(dense)
    dense.backward(upstream)
    assert torch.equal(x.grad, torch.where(expected.taken, upstream, torch.zeros((), dtype=dtype)))
    # limit() equals a limit from the start.
    limited = ops.dense_to_sparse(x).limit(N if max_spikes is None else max_spikes, overflow=overflow)
    assert torch.equal(limited.to_dense(), dense)
    assert limited.overflow == spikes.overflow
    SparseSpikes(spikes.ids, spikes.values, spikes.counts, N, dropped=spikes.dropped)  # is valid


@tried
@given(steps, batches, neurons, caps, orders, grad_thresholds, st.sampled_from(list(SURROGATES)), dtypes, seeds)
def test_select_spikes(T, B, N, max_spikes, overflow, grad_threshold, name, dtype, seed):
    torch.manual_seed(seed)
    mem = on_grid(T, B, N, step=8, most=2.0, dtype=dtype)
    threshold = on_grid(N, step=4, most=1.0, dtype=dtype) if seed % 2 else torch.tensor(0.5, dtype=dtype)
    options = {"grad_threshold": grad_threshold, "max_spikes": max_spikes, "overflow": overflow}
    theirs = [t.clone().requires_grad_() for t in (mem, threshold)]
    dense, slots = masked_spikes(*theirs, spike_grad=SURROGATES[name][1], **options)
    upstream = torch.randn_like(mem).float().to(dtype)
    (dense * upstream).sum().backward()
    ours = [t.clone().requires_grad_() for t in (mem, threshold)]
    spikes = ops.select_spikes(*ours, spike_grad=SURROGATES[name][0], **options)
    assert_slots(spikes, trimmed(slots) if max_spikes is None else slots)
    spikes.values.backward(at_slots(upstream, spikes, padding=1e6))
    for actual, expected in zip(ours, theirs):
        # A surrogate evaluated in PyTorch may return its gradient in the float32 of snnTorch's spikes.
        precision = torch.float32 if name == "custom_surrogate" else dtype
        assert_close(actual.grad, expected.grad, upstream, precision)
    SparseSpikes(spikes.ids, spikes.values, spikes.counts, N, dropped=spikes.dropped)


@st.composite
def convolutions(draw, most=7):
    """Draw keywords of a convolution and shapes of its input and weight; kernels may exceed an unpadded map."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels = groups * draw(st.integers(1, 3))
    # Sometimes more than one block of output channels.
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
    """Return the matrix ``[neurons, inputs]`` of a convolution; a matrix is returned unchanged."""
    if shape is None:
        return weight
    inputs = shape[0] * shape[1] * shape[2]
    unit = torch.eye(inputs, dtype=weight.dtype).reshape(inputs, *shape)
    return torch.nn.functional.conv2d(unit, weight, **keywords).reshape(inputs, -1).t()


def spread(parameter, neurons):
    """Expand a parameter of channels to neurons; keep a parameter of one element or of neurons."""
    return parameter if parameter.numel() == 1 else parameter.repeat_interleave(neurons // parameter.numel())


@st.composite
def connections(draw, most=7):
    """Draw a convolution's keywords and input shape, or None for a matrix; the weight's shape, and random spikes."""
    if draw(st.booleans()):
        keywords, shape, weight = draw(convolutions(most))
        inputs = shape[0] * shape[1] * shape[2]
    else:
        inputs = draw(neurons)
        keywords, shape, weight = {}, None, (draw(neurons), inputs)
    torch.manual_seed(draw(seeds))
    kinds = {"graded": draw(st.booleans()), "shuffled": draw(st.booleans()), "dtype": draw(dtypes)}
    spikes = random_spikes(draw(steps), draw(batches), inputs, draw(rates), draw(rates), **kinds)
    return keywords, shape, weight, spikes


@tried
@given(connections(), st.booleans())
def test_currents(connection, bias):
    keywords, shape, weight, spikes = connection
    dtype = spikes.dtype
    parameters = [on_grid(*weight, dtype=dtype), *([on_grid(weight[0], dtype=dtype)] if bias else [])]
    x = densified(spikes.values, spikes).requires_grad_()
    theirs, ours = ([p.clone().requires_grad_() for p in parameters] for _ in range(2))
    whole = matrix(theirs[0], shape, keywords)
    expected = x @ whole.t() + (spread(theirs[1], len(whole)) if bias else 0)
    spikes.requires_grad_()
    if shape is None:
        out = ops.sparse_linear(spikes, *ours)
    else:
        out = ops.sparse_conv2d(spikes, *ours, input_size=shape[1:], **keywords)
        assert out.shape[:3] == (*spikes.ids.shape[:2], weight[0])
        out = out.flatten(2)
    assert torch.equal(out, expected)
    upstream = on_grid(*expected.shape, step=8, most=4.0, dtype=dtype)
    expected.backward(upstream)
    out.backward(upstream)
    # Equal bit by bit, as every sum is exact.
    assert torch.equal(spikes.values.grad, at_slots(x.grad, spikes))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs))


@st.composite
def layers(draw, surrogates, only_maps=False):
    """Draw a connection, tensors and options of a layer; sums of its forward pass are exact."""
    keywords, shape, weight, spikes = draw(connections(4).filter(lambda drawn: drawn[1] or not only_maps))
    dtype = spikes.dtype
    betas = torch.tensor([0.0, 0.25, 0.5, 1.0, 1.5, -0.5], dtype=dtype)
    sized = st.sampled_from([(), (1,), weight[:1]])
    tensors = {
        "weight": on_grid(*weight, step=8, most=1.0, dtype=dtype),
        "beta": betas[torch.randint(0, 6, draw(sized))],
        "threshold": on_grid(*draw(sized), step=4, most=1.0, dtype=dtype),
    }
    if draw(st.booleans()):
        tensors["bias"] = on_grid(weight[0], step=8, most=0.5, dtype=dtype)
    if shape is None and draw(st.booleans()):
        tensors["recurrent_weight"] = on_grid(weight[0], weight[0], step=8, most=0.5, dtype=dtype)
    options = {
        "grad_threshold": draw(grad_thresholds),
        "max_spikes": draw(caps),
        "reset_mechanism": draw(st.sampled_from(RESETS)),
        "input_scale": draw(st.sampled_from([1.0, 0.5, -2.0])),
        "overflow": draw(orders),
        "delay": draw(st.sampled_from([0, 0, 1, 1, 3, 8])),
    }
    name = draw(st.sampled_from([s for s in surrogates if s in FUSED or "recurrent_weight" not in tensors]))
    return spikes, shape, keywords, tensors, options, name


@pytest.mark.slow
@settings(tried, max_examples=2 * EXAMPLES)
@given(layers(list(SURROGATES)))
def test_layers(layer):
    spikes, shape, keywords, tensors, options, name = layer
    ours, theirs = SURROGATES[name]
    x = densified(spikes.values, spikes).requires_grad_()
    leaves = {key: tensor.clone().requires_grad_() for key, tensor in tensors.items()}
    whole = matrix(leaves["weight"], shape, keywords)
    dense = {key: leaf if "weight" in key else spread(leaf, len(whole)) for key, leaf in leaves.items()}
    spk, slots, _ = dense_layer(x, spike_grad=theirs, **{**dense, "weight": whole}, **options)
    upstream = torch.randn_like(spk)
    ((spk * upstream).sum() + 0 * (x.sum() + sum(leaf.sum() for leaf in leaves.values()))).backward()
    spikes.requires_grad_()
    leaves_of_layer = {key: tensor.clone().requires_grad_() for key, tensor in tensors.items()}
    if shape is None:
        out = ops.sparse_lif_sequence(spikes, spike_grad=ours, **leaves_of_layer, **options)
    else:
        out = ops.sparse_conv_lif_sequence(
            spikes, spike_grad=ours, input_size=shape[1:], **keywords, **leaves_of_layer, **options
        )
    assert_slots(out, slots)
    # The constructor accepts it.
    SparseSpikes(out.ids, out.values, out.counts, len(whole), dropped=out.dropped, map_shape=out.map_shape)
    out.values.backward(at_slots(upstream, out, padding=1e6))
    precision = torch.float32 if name == "custom_surrogate" else spikes.dtype
    # Gradients may grow through time and recurrence: their terms are as large as the largest gradient.
    grads = [x.grad, *(leaf.grad for leaf in leaves.values()), upstream]
    terms = torch.stack([grad.abs().max() if grad.numel() else grad.new_zeros(()) for grad in grads])
    assert_close(spikes.values.grad, at_slots(x.grad, spikes), terms, precision, "values")
    for key, leaf in leaves.items():
        assert_close(leaves_of_layer[key].grad, leaf.grad, terms, precision, key)


@pytest.mark.slow
@needs_kernel("sparse_conv_lif_pool_fwd")
@tried
@given(layers(["fast_sigmoid"], only_maps=True), st.integers(1, 3), st.integers(1, 3))
def test_a_layer_and_its_pool_as_one_operator(layer, height, width):
    """Spikes and gradients equal those of layer and pool in sequence."""
    spikes, shape, keywords, tensors, options, name = layer
    maps = {**keywords, "input_size": shape[1:]}
    size = torch.nn.functional.conv2d(torch.zeros(1, *shape), tensors["weight"].float(), **keywords).shape[2:]
    window = (min(height, size[0]), min(width, size[1]))
    capped, other = dict(options), dict(options, max_spikes=None)
    del capped["max_spikes"], capped["overflow"]
    results = []
    for fused in (True, False):
        x = spikes.detach().requires_grad_()
        leaves = {key: tensor.clone().requires_grad_() for key, tensor in tensors.items()}
        keys = {**leaves, "spike_grad": SURROGATES[name][0]}
        if fused:
            first, bias = keys.pop("weight"), keys.pop("bias", None)
            out, counts = sparse_conv_lif_pool(x, first, bias, window, Maps(**maps), **keys, **capped)
        else:
            full = ops.sparse_conv_lif_sequence(x, **maps, **keys, **other)
            out, counts = ops.sparse_pool2d(full, window), full.counts
        torch.manual_seed(0)
        out.values.backward(at_slots(torch.randn(out.shape, dtype=spikes.dtype), out, padding=1e6))
        grads = [x.values.grad, *(leaf.grad for leaf in leaves.values())]
        results.append(((out.ids, out.values.detach(), out.counts, counts), out.map_shape, grads))
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0]))
    assert results[0][1] == results[1][1]
    for a, b in zip(results[0][2], results[1][2]):
        assert_close(a, b, b, spikes.dtype)


def large_maps(window, **options):
    """Return a case whose maps fill many words of 64 bits."""
    maps = ((2, 34, 30), (3, 3), (1, 1), (0, 0), (1, 1), 1)
    return case(POOLED, neurons=40, rows=(3, 2), rates=(0.1, 0.0), geometry=maps, window=list(window), **options)


@needs_kernel("sparse_conv_lif_pool_fwd")
@pytest.mark.parametrize("grad_threshold", [None, 0.75])
@pytest.mark.parametrize("window", [(1, 1), (2, 2), (2, 3), (4, 4), (3, 7), (16, 16), (8, 28)])
def test_windows_of_large_maps(window, grad_threshold):
    inputs = arguments(f"{POOLED}_fwd", large_maps(window, grad_threshold=grad_threshold))
    actual = torch.ops.snnipu.sparse_conv_lif_pool_fwd(*inputs)
    assert actual[2].sum() > 0
    for number, (a, b) in enumerate(zip(actual, reference_of(f"{POOLED}_fwd")(*inputs))):
        assert torch.equal(a, b), number


@needs_kernel("sparse_conv_lif_pool_fwd")
@pytest.mark.parametrize("window", [(0, 2), (2, -1), (17, 16)])
def test_windows_that_are_none_are_refused(window):
    with pytest.raises(ValueError, match="window must be two sizes of at least 1 and at most 256 places"):
        torch.ops.snnipu.sparse_conv_lif_pool_fwd(*arguments(f"{POOLED}_fwd", large_maps(window)))
    with pytest.raises(ValueError, match="capacity must be -1, as many slots as needed, with a pool, got 18"):
        torch.ops.snnipu.sparse_conv_lif_pool_fwd(*arguments(f"{POOLED}_fwd", large_maps((2, 2), capacity=18)))


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
@given(pools(), st.integers(0, 3), st.integers(0, 3), rates, *[st.booleans()] * 2, dtypes, seeds)
def test_sparse_pool2d(pool, T, B, rate, graded, shuffled, dtype, seed):
    """PyTorch's pools are the reference where every neuron has a slot."""
    torch.manual_seed(seed)
    channels, size, kernel, stride, padding = pool
    shape = (channels, *size)
    inputs = channels * size[0] * size[1]
    everyone = random_spikes(T, B, inputs, rate, 1.0, graded=graded, dtype=dtype, shuffled=shuffled)
    for mode in ("max", "average", "sum"):
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
        spikes = SparseSpikes(everyone.ids, everyone.values.clone().requires_grad_(), everyone.counts, inputs)
        out = ops.sparse_pool2d(spikes, kernel, stride, padding, mode=mode, input_size=shape)
        assert out.shape[2] == out.map_shape[0] * out.map_shape[1] * out.map_shape[2]
        SparseSpikes(out.ids, out.values.detach(), out.counts, out.num_neurons)  # is valid
        if dense is not None:
            dense = dense.reshape(T, B, -1)
            assert_close(out.to_dense().detach(), dense.detach(), dense.detach(), dtype)
            upstream = on_grid(*dense.shape, dtype=dtype)
            dense.backward(upstream)
            out.values.backward(at_slots(upstream, out, padding=1e6))
            assert_close(spikes.values.grad, at_slots(x.grad, spikes), upstream, dtype)


@st.composite
def kernel_cases(draw):
    """Draw an operator and options of a case of it."""
    op = draw(st.sampled_from([*cases.OPS, POOLED, cases.DELAYED]))
    torch.manual_seed(draw(seeds))
    options = {name: draw(st.booleans()) for name in ("graded", "shuffled", "bias", "each", "rotate", "store_mem")}
    options.update(rows=(draw(steps), draw(batches)), inputs=draw(neurons), neurons=draw(neurons), dtype=draw(dtypes))
    options.update(rates=(draw(rates), draw(rates)), reset=draw(st.integers(0, 2)), mode=draw(st.integers(0, 2)))
    options.update(grad_threshold=draw(grad_thresholds), delay=draw(st.sampled_from([0, 0, 1, 1, 3, 8])))
    options.update(input_scale=draw(st.sampled_from([1.0, 0.5, -2.0])), surrogate=draw(st.integers(0, 8)))
    if op == cases.DELAYED:
        options["taps"] = draw(st.integers(1, 4))
        options["max_delay"] = draw(st.sampled_from([0, 1, 6, 60])) + options["taps"] - 1
    if op == "sparse_pool2d":
        channels, size, *windows = draw(pools())
        options["geometry"] = ((channels, *size), *windows)
    elif "conv" in op:
        keywords, shape, weight = draw(convolutions(most=4))
        pairs = (keywords[name] for name in ("stride", "padding", "dilation"))
        options.update(neurons=weight[0], geometry=(shape, weight[2:], *pairs, keywords["groups"]))
    if op == POOLED:
        options["window"] = [draw(st.integers(1, 2)), draw(st.integers(1, 2))]
    elif op != "sparse_pool2d":
        cap = draw(caps)
        options.update(capacity=AS_NEEDED if cap is None else cap, recurrent=op == LIF and draw(st.booleans()))
    return op, options


@pytest.mark.slow
@needs_kernel("sparse_linear_fwd")
@settings(tried, max_examples=20 * EXAMPLES)
@given(kernel_cases(), st.booleans())
def test_kernels_equal_the_reference(drawn, each_need):
    op, options = drawn
    with pytest.MonkeyPatch.context() as patch:
        poison_new_tensors(patch)
        assert_is_the_reference(lambda operator: getattr(torch.ops.snnipu, operator), op, each_need, **options)


@tried
@given(steps, batches, neurons, caps, orders, rates, rates, st.booleans(), seeds)
def test_limit_trim_and_cat(T, B, N, max_spikes, overflow, rate, carried, shuffled, seed):
    """Spikes come before slots that only carry gradient; earlier dropped spikes count, too."""
    torch.manual_seed(seed)
    spikes = random_spikes(T, B, N, rate, carried, graded=True, shuffled=shuffled).requires_grad_()
    spikes.dropped = torch.ones_like(spikes.counts)
    cap = N if max_spikes is None else max_spikes
    limited = spikes.limit(cap, overflow=overflow)
    dense = densified(spikes.values, spikes)
    fired = torch.zeros(spikes.shape, dtype=torch.bool)
    every = torch.zeros_like(fired)
    for t in range(T):
        for b in range(B):
            n, used = spikes.counts[t, b].tolist()
            fired[t, b, spikes.ids[t, b, :n].long()] = True
            every[t, b, spikes.ids[t, b, :used].long()] = True
    # The start of "rotate" advances by the number of slots.
    slots = slots_of(fired, every, cap, overflow)
    assert torch.equal(limited.counts, slots.counts)
    assert torch.equal(limited.dropped, slots.dropped + 1)
    assert limited.overflow == int(slots.dropped[..., 0].sum()) + T * B
    assert torch.equal(limited.to_dense(), torch.where(slots.taken, dense, torch.zeros(())))
    trim = limited.trim()
    assert trim.capacity == (int(limited.counts[..., 1].max()) if T * B else 0)
    assert trim.ids.is_contiguous()
    assert trim.overflow == limited.overflow
    assert torch.equal(trim.to_dense(), limited.to_dense())
    both = SparseSpikes.cat([spikes, limited])
    assert torch.equal(both.to_dense(), torch.cat([dense, limited.to_dense()], 1))
    assert both.overflow == limited.overflow + T * B
    upstream = torch.randn(T, B, N)
    limited.values.backward(at_slots(upstream, limited))
    assert torch.equal(spikes.values.grad, at_slots(upstream * slots.taken, spikes))
    SparseSpikes(both.ids, both.values, both.counts, N, dropped=both.dropped)
