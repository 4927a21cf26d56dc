"""Random shapes and options for the sparse operators, against the dense oracle and the reference.

``SNNIPU_HYPOTHESIS_EXAMPLES`` sets how many cases each property is tried with.

All numbers of the forward passes are small multiples of powers of two, so that sums are exact in whatever order and the
same neurons must spike, also those that are exactly at the threshold.
"""

import os

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
    random_spikes,
    reference_of,
    relative_error,
    slots_of,
    trimmed,
)

from snnipu import SparseSpikes, ops
from snnipu.ops._slots import AS_NEEDED

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


def assert_close(own, expected, terms, dtype, name=""):
    """Gradients are sums that may cancel: compared with the size of their terms, the upstream gradients."""
    assert own.shape == expected.shape, name
    if own.numel() and terms.numel():
        assert relative_error(own, expected, terms) <= tolerance(dtype), name
    else:
        assert not own.any(), name


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
    # Limited afterwards is what a limit from the start is.
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
    for own, expected in zip(ours, theirs):
        # A function evaluated in PyTorch may give its gradient in the float32 of snnTorch's spikes.
        precision = torch.float32 if name == "custom_surrogate" else dtype
        assert_close(own.grad, expected.grad, upstream, precision)
    SparseSpikes(spikes.ids, spikes.values, spikes.counts, N, dropped=spikes.dropped)


@tried
@given(steps, batches, neurons, neurons, rates, rates, *[st.booleans()] * 3, dtypes, seeds)
def test_sparse_linear(T, B, inputs, outputs, rate, carried, graded, shuffled, bias, dtype, seed):
    torch.manual_seed(seed)
    spikes = random_spikes(T, B, inputs, rate, carried, graded=graded, dtype=dtype, shuffled=shuffled)
    own = [on_grid(outputs, inputs, dtype=dtype), on_grid(outputs, dtype=dtype) if bias else None]
    x = densified(spikes.values, spikes).requires_grad_()
    theirs = [p if p is None else p.clone().requires_grad_() for p in own]
    ours = [p if p is None else p.clone().requires_grad_() for p in own]
    expected = torch.nn.functional.linear(x, *theirs)
    spikes.requires_grad_()
    out = ops.sparse_linear(spikes, *ours)
    assert torch.equal(out, expected)
    upstream = on_grid(T, B, outputs, step=8, most=4.0, dtype=dtype)
    expected.backward(upstream)
    out.backward(upstream)
    # Exact, as every sum is.
    assert torch.equal(spikes.values.grad, at_slots(x.grad, spikes))
    assert torch.equal(ours[0].grad, theirs[0].grad)
    assert not bias or torch.equal(ours[1].grad, theirs[1].grad)


@st.composite
def layers(draw, surrogates):
    """Sizes, tensors and options of a layer; sums of its forward pass are exact."""
    torch.manual_seed(draw(seeds))
    dtype, inputs, outputs = draw(dtypes), draw(neurons), draw(neurons)
    sizes = (draw(steps), draw(batches), inputs)
    kinds = {"graded": draw(st.booleans()), "shuffled": draw(st.booleans())}
    spikes = random_spikes(*sizes, draw(rates), draw(rates), dtype=dtype, **kinds)
    betas = torch.tensor([0.0, 0.25, 0.5, 1.0, 1.5, -0.5], dtype=dtype)
    sized = st.sampled_from([(), (1,), (outputs,)])
    tensors = {
        "weight": on_grid(outputs, inputs, step=8, most=1.0, dtype=dtype),
        "beta": betas[torch.randint(0, 6, draw(sized))],
        "threshold": on_grid(*draw(sized), step=4, most=1.0, dtype=dtype),
    }
    if draw(st.booleans()):
        tensors["bias"] = on_grid(outputs, step=8, most=0.5, dtype=dtype)
    if draw(st.booleans()):
        tensors["recurrent_weight"] = on_grid(outputs, outputs, step=8, most=0.5, dtype=dtype)
    options = {
        "grad_threshold": draw(grad_thresholds),
        "max_spikes": draw(caps),
        "reset_mechanism": draw(st.sampled_from(RESETS)),
        "input_scale": draw(st.sampled_from([1.0, 0.5, -2.0])),
        "overflow": draw(orders),
        "delay": draw(st.sampled_from([0, 0, 1, 1, 3, 8])),
    }
    name = draw(st.sampled_from([s for s in surrogates if s in FUSED or "recurrent_weight" not in tensors]))
    return spikes, tensors, options, name


@tried
@given(layers(list(SURROGATES)))
def test_sparse_lif_sequence(layer):
    spikes, tensors, options, name = layer
    ours, theirs = SURROGATES[name]
    dtype = tensors["weight"].dtype
    x = densified(spikes.values, spikes).requires_grad_()
    dense = {key: tensor.clone().requires_grad_() for key, tensor in tensors.items()}
    spk, slots, _ = dense_layer(x, spike_grad=theirs, **dense, **options)
    upstream = torch.randn_like(spk)
    ((spk * upstream).sum() + 0 * (x.sum() + sum(leaf.sum() for leaf in dense.values()))).backward()
    spikes.requires_grad_()
    own = {key: tensor.clone().requires_grad_() for key, tensor in tensors.items()}
    out = ops.sparse_lif_sequence(spikes, spike_grad=ours, **own, **options)
    assert_slots(out, slots)
    out.values.backward(at_slots(upstream, out, padding=1e6))
    precision = torch.float32 if name == "custom_surrogate" else dtype
    # Back through time and recurrence gradients may grow: their terms are as large as the largest of them.
    grads = [x.grad, *(leaf.grad for leaf in dense.values()), upstream]
    terms = torch.stack([grad.abs().max() if grad.numel() else grad.new_zeros(()) for grad in grads])
    assert_close(spikes.values.grad, at_slots(x.grad, spikes), terms, precision, "values")
    for key, leaf in dense.items():
        assert_close(own[key].grad, leaf.grad, terms, precision, key)
    SparseSpikes(out.ids, out.values, out.counts, out.num_neurons, dropped=out.dropped)


@needs_kernel("sparse_lif_sequence_fwd")
@tried
@given(layers(list(FUSED)), st.booleans())
def test_sparse_lif_sequence_kernels(layer, needed):
    """Kernel and reference on the same arguments, forward and backward."""
    spikes, tensors, options, name = layer
    outputs = tensors["weight"].shape[0]
    cap = options["max_spikes"]
    parameters = [tensors.get(key) for key in ("weight", "bias", "recurrent_weight", "beta", "threshold")]
    reset = RESETS.index(options["reset_mechanism"])
    start = (spikes.ids, spikes.values, spikes.counts)
    forward = (
        *start,
        *parameters,
        options["grad_threshold"],
        options["input_scale"],
        AS_NEEDED if cap is None else min(cap, outputs),
        options["overflow"] == "rotate",
        reset,
        options["delay"],
        True,
    )
    out = torch.ops.snnipu.sparse_lif_sequence_fwd(*forward)
    for own, expected in zip(out, reference_of("sparse_lif_sequence_fwd")(*forward)):
        assert own.dtype == expected.dtype
        assert torch.equal(own, expected)  # exact, as every sum is
    weight, _, recurrent, beta, threshold = parameters
    ids_out, values_out, counts_out, _, slot_mem, fired, mem = out
    grad = torch.randn_like(values_out)
    need = [needed, True, not needed, needed and recurrent is not None, needed, True]
    backward = (grad, *start, weight, recurrent, beta, threshold, options["input_scale"], reset, options["delay"])
    backward += (ids_out, counts_out, slot_mem, fired, mem, *FUSED[name][0].kernel, *need)
    results = torch.ops.snnipu.sparse_lif_sequence_bwd(*backward)
    expected = reference_of("sparse_lif_sequence_bwd")(*backward)
    terms = torch.stack([other.abs().max() for other in (*expected, grad) if other.numel()] or [grad.new_zeros(())])
    for own, other in zip(results, expected):
        assert own.dtype == other.dtype
        assert_close(own, other, terms, grad.dtype)


def assert_kernel_equals_reference(operator, *arguments, exact=True):
    """The results of the kernel, after they have been found to be the reference's."""
    results = getattr(torch.ops.snnipu, operator)(*arguments)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    expected = reference_of(operator)(*arguments)
    for own, other in zip(results, [expected] if isinstance(expected, torch.Tensor) else expected):
        assert own.dtype == other.dtype
        assert own.shape == other.shape
        if exact or not other.dtype.is_floating_point:
            assert torch.equal(own, other), operator
        else:
            assert_close(own, other, arguments[0], other.dtype, operator)
    return results


@needs_kernel("select_spikes_fwd")
@tried
@given(steps, batches, neurons, caps, orders, grad_thresholds, st.sampled_from(list(FUSED)), dtypes, seeds)
def test_slot_kernels(T, B, N, max_spikes, overflow, grad_threshold, name, dtype, seed):
    """Kernel and reference of the operators between slots and dense tensors; NaN and -0 are in them."""
    torch.manual_seed(seed)
    cap, rotate = AS_NEEDED if max_spikes is None else min(max_spikes, N), overflow == "rotate"
    mem = on_grid(T, B, N, step=4, most=2.0, dtype=dtype)
    mem = torch.where(torch.rand(T, B, N) < 0.05, torch.tensor(-0.0, dtype=dtype), mem)
    threshold = on_grid(*[(), (1,), (N,)][seed % 3], step=4, most=1.0, dtype=dtype)
    assert_kernel_equals_reference("dense_to_sparse_fwd", mem, cap, rotate)
    slots = assert_kernel_equals_reference("select_spikes_fwd", mem, threshold, grad_threshold, cap, rotate)
    ids, values, counts, _ = slots
    grad = torch.randn(values.shape, dtype=dtype)
    kernel = FUSED[name][0].kernel
    arguments = (grad, mem, threshold, ids, counts, *kernel)
    assert_kernel_equals_reference("select_spikes_bwd", *arguments, exact=False)
    assert_kernel_equals_reference("sparse_to_dense_fwd", ids, grad, counts, N)
    assert_kernel_equals_reference("sparse_to_dense_bwd", mem, ids, counts)
    with_nan = torch.where(torch.rand(T, B, N) < 0.1, torch.tensor(float("nan"), dtype=dtype), mem)
    for own, other in zip(
        torch.ops.snnipu.select_spikes_fwd(with_nan, threshold, grad_threshold, cap, rotate),
        reference_of("select_spikes_fwd")(with_nan, threshold, grad_threshold, cap, rotate),
    ):
        assert torch.equal(own, other)


@needs_kernel("sparse_linear_fwd")
@tried
@given(steps, batches, neurons, neurons, rates, rates, st.tuples(*[st.booleans()] * 5), dtypes, seeds)
def test_sparse_linear_kernels(T, B, inputs, outputs, rate, carried, flags, dtype, seed):
    """Kernel and reference on the same arguments, whatever of the gradients is needed."""
    torch.manual_seed(seed)
    graded, shuffled, *need = flags
    spikes = random_spikes(T, B, inputs, rate, carried, graded=graded, dtype=dtype, shuffled=shuffled)
    start = (spikes.ids, spikes.values, spikes.counts)
    weight = on_grid(outputs, inputs, dtype=dtype)
    bias = on_grid(outputs, dtype=dtype) if need[2] else None
    out = assert_kernel_equals_reference("sparse_linear_fwd", *start, weight, bias)
    grad = on_grid(*out[0].shape, step=8, most=4.0, dtype=dtype)
    assert_kernel_equals_reference("sparse_linear_bwd", grad, *start, weight, *need)


@tried
@given(steps, batches, neurons, caps, orders, rates, rates, st.booleans(), seeds)
def test_limit_trim_and_cat(T, B, N, max_spikes, overflow, rate, carried, shuffled, seed):
    torch.manual_seed(seed)
    spikes = random_spikes(T, B, N, rate, carried, graded=True, shuffled=shuffled)
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
    # The start of "rotate" moves by the number of slots asked for.
    slots = slots_of(fired, every, cap, overflow)
    assert torch.equal(limited.counts, slots.counts)
    assert torch.equal(limited.dropped, slots.dropped)
    assert torch.equal(limited.to_dense(), torch.where(slots.taken, dense, torch.zeros(())))
    trim = limited.trim()
    assert trim.capacity == (int(limited.counts[..., 1].max()) if T * B else 0)
    assert torch.equal(trim.to_dense(), limited.to_dense())
    both = SparseSpikes.cat([spikes, limited])
    assert torch.equal(both.to_dense(), torch.cat([dense, limited.to_dense()], 1))
    assert both.overflow == limited.overflow
    SparseSpikes(both.ids, both.values, both.counts, N, dropped=both.dropped)
