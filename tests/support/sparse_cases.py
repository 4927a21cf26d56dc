"""Cases of the event-driven operators, their arguments by the names in the schemas, and comparisons of kernels."""

import torch
from oracle import FUSED, RESETS, on_grid, random_spikes, reference_of, relative_error

from snnipu import SparseSpikes, ops
from snnipu.ops._maps import conv_geometry, pool_geometry
from snnipu.ops._slots import AS_NEEDED

CURRENTS = ("sparse_linear", "sparse_conv2d", "listed_linear")
LAYERS = ("sparse_lif_sequence", "sparse_conv_lif_sequence")
WEIGHTED = (*CURRENTS[:2], *LAYERS)
DELAYED = "delay_linear"  # not public
OF_SPIKES = (*WEIGHTED, "sparse_to_dense", "sparse_pool2d")
OPS = (*OF_SPIKES, "select_spikes", "dense_to_sparse")
POOLED = "sparse_conv_lif_pool"  # a layer with its pool; not public
# Operators whose gradients are computed by other operators.
ADJOINTS = {"dense_to_sparse": "sparse_to_dense_fwd", POOLED: "sparse_conv_lif_sequence_bwd"}
LEAVES = ("x", "mem", "values", "weight", "bias", "recurrent_weight", "beta", "threshold")
MODES = ("max", "average", "sum")
SURROGATES = [ours for ours, _ in FUSED.values()]


def schema(operator):
    return getattr(torch.ops.snnipu, operator).default._schema


def arguments(operator, values):
    """Return the arguments of ``snnipu::<operator>`` by position."""
    return tuple(values[argument.name] for argument in schema(operator).arguments)


def adjoint_of(op):
    return ADJOINTS.get(op, f"{op}_bwd")


def leaves_of(op, values):
    """Return the names of the float tensors for which ``op`` has gradients."""
    names = [argument.name for argument in schema(f"{op}_fwd").arguments]
    return [name for name in LEAVES if name in names and values.get(name) is not None]


def case(
    op,
    neurons=33,
    inputs=40,
    rows=(6, 3),
    dtype=torch.float32,
    rates=(0.2, 0.1),
    graded=True,
    shuffled=False,
    bias=True,
    recurrent=False,
    each=False,
    surrogate=0,
    geometry=None,
    exact=None,
    max_delay=4,
    taps=2,
    **changed,
):
    """Return values of all arguments of ``op``; forward sums are exact in every order. ``neurons`` are channels of
    maps.

    ``each``: a beta and a threshold for each neuron, some betas outside [0, 1], some thresholds below 0. ``exact``:
    membranes have no rounding either. Maps need this, as their decay may be computed over several steps together.
    """
    maps = "conv" in op
    if maps:
        shape, kernel, *options = geometry or ((3, 6, 5), (3, 2), (1, 1), (1, 0), (1, 1), 1)
        weight = on_grid(neurons, shape[0] // options[-1], *kernel, dtype=dtype) + 1 / 8
        sizes = conv_geometry(weight, shape[1:], *options)
        inputs = sizes.inputs
    else:
        weight = on_grid(neurons, inputs, dtype=dtype) + 1 / 8
    if op == "sparse_to_dense":
        inputs = neurons
    if op == "sparse_pool2d":
        pool = pool_geometry(*(geometry or ((neurons, 5, 6), (3, 2), (2, 2), (1, 0))))
        inputs = pool.inputs
    values = {"num_neurons": neurons, "weight": weight, "bias": on_grid(neurons, most=0.25, dtype=dtype)}
    if not bias:
        values["bias"] = None
    if op not in ("select_spikes", "dense_to_sparse"):
        spikes = random_spikes(*rows, inputs, *rates, graded=graded, shuffled=shuffled, dtype=dtype)
        values.update(ids=spikes.ids, values=spikes.values, counts=spikes.counts)
        if "weight" in [argument.name for argument in schema(f"{op}_fwd").arguments]:
            # Values in gradient-only slots are not read.
            carrying = torch.arange(spikes.capacity) >= spikes.counts[..., :1]
            values["values"] = torch.where(carrying & ~spikes.values.isnan(), 5.0, spikes.values)
    x = torch.randn(*rows, neurons, dtype=dtype)
    values["mem"] = torch.where(torch.rand_like(x) < 0.1, torch.full_like(x, 0.25), x)  # sometimes at a threshold
    values["x"] = torch.where(torch.rand_like(x) < rates[0], x, torch.full_like(x, -0.0))
    values["recurrent_weight"] = on_grid(neurons, neurons, most=0.25, dtype=dtype) if recurrent else None
    values["beta"], values["threshold"] = torch.tensor(0.85, dtype=dtype), torch.tensor(0.4, dtype=dtype)
    if each:
        values["beta"] = torch.rand(neurons, dtype=dtype) * 1.4 - 0.2
        values["threshold"] = torch.rand(neurons, dtype=dtype) - 0.1
    if maps if exact is None else exact:
        values["beta"] = torch.tensor([0.5, 0.0, 0.25, 1.0, 1.5, -0.5], dtype=dtype)[torch.arange(neurons) % 6]
        values["threshold"] = torch.randint(-1, 8, (neurons,)).to(dtype) / 8
        if not each:
            values["beta"], values["threshold"] = values["beta"][0], torch.tensor(0.5, dtype=dtype)
    if op == DELAYED:
        last = max_delay + 1 - taps
        values["weight"] = on_grid(inputs, neurons, taps, dtype=dtype) + 1 / 8
        values["lags"] = torch.randint(last + 1, (inputs, neurons), dtype=torch.int32)
        values["lags"].view(-1)[: inputs // 2] = last
        values["geometry"] = [max_delay + 1, taps]
    elif op == "listed_linear":
        left = torch.rand(inputs, neurons) < 0.3
        values["synapses"], values["geometry"] = left.nonzero().t().flip(0), [neurons, inputs]
        values["weight"] = weight.t()[left]
    elif maps:
        values["geometry"], values["map_shape"] = list(sizes), shape
    elif op == "sparse_pool2d":
        values["geometry"], values["map_shape"] = list(pool), tuple(pool[:3])
    values["inputs"] = inputs
    values.update(mode=0, window=[2, 2], grad_threshold=0.25, input_scale=0.5, capacity=AS_NEEDED, rotate=False)
    values.update(reset=1, delay=0, store_mem=True)
    values.update(zip(("surrogate", "surrogate_a", "surrogate_b"), SURROGATES[surrogate % len(SURROGATES)].kernel))
    values.update({f"need_{name}": True for name in ("values", "weight", "bias", "beta", "threshold")})
    values.update(need_recurrent=recurrent, **changed)
    values["need_beta"] = values["store_mem"]
    if op == POOLED and min(values["window"]) > 0:
        values["window"] = [min(a, b) for a, b in zip(values["window"], sizes.out_shape[1:])]
    if op == "select_spikes":
        values["grad_threshold"] = changed.get("grad_threshold", 0.1)
    if values["capacity"] != AS_NEEDED and op != "sparse_pool2d":
        values["capacity"] = min(values["capacity"], neurons * (sizes.positions if maps else 1))
    return values


def backward_values(op, values, results, grad=None):
    """Add the results of the forward operator to ``values``, and an upstream gradient that is NaN in padding."""
    returns = [output.name for output in schema(f"{op}_fwd").returns]
    names = dict(zip(returns, results)) if len(returns) > 1 else {"out": results}
    if op == POOLED:  # the layer's own backward pass
        names["ids_out"] = names["source"]
    to = next(names[name] for name in ("values_out", "values", "out") if name in names)
    if grad is None:
        grad = torch.randn_like(to)
        counts = names.get("counts_out", names.get("counts"))
        if counts is not None:
            grad[torch.arange(to.shape[2]) >= counts[..., 1:]] = float("nan")
    more = {"values": grad} if op == "dense_to_sparse" else {}
    return {**values, **names, "grad": grad, **more}


def outputs(results):
    return [results] if isinstance(results, torch.Tensor) else list(results)


def spikes_of(values):
    return SparseSpikes._trusted(
        values["ids"], values["values"], values["counts"], values["inputs"], map_shape=values.get("map_shape")
    )


def call(op, values):
    """Call the public function; return its differentiable result first, then the others."""
    v = values
    cap = None if v["capacity"] == AS_NEEDED else v["capacity"]
    selection = {"max_spikes": cap, "overflow": "rotate" if v["rotate"] else "lowest"}
    through = {"spike_grad": v.get("spike_grad")}
    maps = {}
    if "conv" in op:
        size = v["geometry"]
        maps = {"input_size": tuple(size[1:3]), "stride": tuple(size[8:10]), "padding": tuple(size[10:12])}
        maps.update(dilation=tuple(size[12:14]), groups=size[14])
    if op in CURRENTS:
        return [getattr(ops, op)(spikes_of(v), v["weight"], v["bias"], **maps)]
    if op == "sparse_to_dense":
        return [ops.sparse_to_dense(spikes_of(v))]
    if op == "dense_to_sparse":
        out = ops.dense_to_sparse(v["x"], **selection)
    elif op == "select_spikes":
        out = ops.select_spikes(v["mem"], v["threshold"], v["grad_threshold"], **selection, **through)
    elif op == "sparse_pool2d":
        size = v["geometry"]
        kernel, stride, padding = (tuple(size[at : at + 2]) for at in (5, 7, 9))
        out = ops.sparse_pool2d(spikes_of(v), kernel, stride, padding, mode=MODES[v["mode"]])
    else:
        options = {name: v[name] for name in ("beta", "threshold", "grad_threshold", "input_scale", "delay")}
        if v["recurrent_weight"] is not None:
            options["recurrent_weight"] = v["recurrent_weight"]
        options.update(reset_mechanism=RESETS[v["reset"]], **selection, **maps, **through)
        out = getattr(ops, op)(spikes_of(v), v["weight"], v["bias"], **options)
    return [out.values, out.ids, out.counts]


# ---- kernels


def needs_of(op, values):
    names = [argument.name for argument in schema(adjoint_of(op)).arguments]
    return [name for name in names if name.startswith("need_") and values[name]]


def assert_is_the_reference(kernels, op, each_need=False, **options):
    """Compare forward and backward with the reference; ``each_need``: also each gradient alone, and none."""
    values = case(op, **options)
    forward, backward = f"{op}_fwd", adjoint_of(op)
    expected = reference_of(forward)(*arguments(forward, values))
    results = kernels(forward)(*arguments(forward, values))
    assert len(outputs(results)) == len(outputs(expected))
    for place, (actual, other) in enumerate(zip(outputs(results), outputs(expected))):
        note = (forward, place, options)
        assert (actual.dtype, actual.shape, actual.is_contiguous()) == (other.dtype, other.shape, True), note
        assert torch.equal(actual, other), note
    values = backward_values(op, values, expected)
    needs = needs_of(op, values)
    for need in [needs, *([[], *([name] for name in needs)] if each_need else [])]:
        inputs = arguments(backward, {**values, **{name: name in need for name in needs}})
        actual, other = outputs(kernels(backward)(*inputs)), outputs(reference_of(backward)(*inputs))
        tolerance = {torch.float32: 2e-6, torch.float64: 1e-14}[values["grad"].dtype] * (5 if "lif" in op else 1)
        assert_close(actual, other, values["grad"].nan_to_num(), tolerance, (backward, need, options))


def assert_close(actual, expected, upstream, tolerance, note):
    """Compare gradients whose terms are as large as the upstream gradients."""
    assert len(actual) == len(expected), note
    for place, (a, b) in enumerate(zip(actual, expected)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), (note, place)
        if not (b.numel() and upstream.numel()):
            assert not a.any(), (note, place)
            continue
        # The gradient of a single number is a sum over everything, whose terms may cancel.
        of_weight = [each.flatten() for each in expected[1:2]] if b.numel() == 1 else []
        terms = torch.cat([upstream.flatten(), *of_weight])
        assert relative_error(a, b, terms) <= tolerance, (note, place, relative_error(a, b, terms))
