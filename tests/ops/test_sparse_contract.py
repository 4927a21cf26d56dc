"""The contract of the event-driven operators, for each operator and each provider.

A provider's kernels equal the reference bit by bit in the forward pass, whose sums are exact. In the backward pass
they are equal up to the order of sums. Properties of one operator are in that operator's file.
"""

import functools
import itertools

import pytest
import torch
from oracle import (
    assert_all_equal,
    reference_of,
    with_threads,
    with_workers,
)
from support import sparse_cases as cases
from support.interpreter import small_blocks
from support.sparse_cases import (
    AS_NEEDED,
    adjoint_of,
    arguments,
    assert_is_the_reference,
    backward_values,
    case,
    needs_of,
    outputs,
)
from support.tables import assert_refused, each_row, rows
from support.versions import needs_compile

from snnipu import SparseSpikes, ops
from snnipu.ops import _library

LIF, CONV_LIF = cases.LAYERS
KERNELS = (*cases.OPS, cases.POOLED, cases.DELAYED)
ROWS = [(0, 2), (3, 0), (0, 0), (1, 1), (1, 5), (50, 1), (2, 40)]
DTYPES = (torch.float32, torch.float64)


# ---- providers


def _reference(request):
    return reference_of


def _cpu(request):
    if "CPU" not in _library.REGISTERED["sparse_linear_fwd"]:
        pytest.skip("there are no CPU kernels")
    return lambda operator: getattr(torch.ops.snnipu, operator)


def _triton(request):
    module = small_blocks(request.getfixturevalue("interpreted"), request.getfixturevalue("monkeypatch"))
    return lambda operator: getattr(module, operator)


def _cuda(request):
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no CUDA device")

    def moved(value, device):
        if isinstance(value, (tuple, list)):
            return type(value)(moved(each, device) for each in value)
        return value.to(device) if isinstance(value, torch.Tensor) else value

    def kernel(operator):
        run = getattr(torch.ops.snnipu, operator)
        return lambda *arguments: moved(run(*moved(arguments, "cuda")), "cpu")

    return kernel


PROVIDERS = {"reference": _reference, "CPU": _cpu, "Triton": _triton, "CUDA": _cuda}


@pytest.fixture
def kernels(provider, request, poisoned):
    """``kernels("sparse_linear_fwd")`` is the provider's kernel."""
    return PROVIDERS[provider](request)


# ---- kernels


BOTH, RESETS = (False, True), (0, 1, 2)
RATES = [(0.0, 0.2), (0.15, 0.1), (1.0, 0.0)]
SECOND = [None, 0.25, -1e30, float("-inf"), 2.0]
MAPS = {
    "padding": ((2, 3, 3), (3, 3), (1, 1), (2, 1), (1, 1), 1),
    "stride": ((2, 5, 6), (3, 2), (2, 3), (1, 0), (1, 1), 1),
    "dilation": ((2, 5, 5), (3, 2), (1, 1), (0, 1), (2, 3), 1),
    "groups": ((4, 3, 3), (3, 2), (1, 1), (0, 0), (1, 1), 2),
    "one": ((1, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1), 1),
    "wide": ((1, 1, 20), (1, 3), (1, 1), (0, 0), (1, 1), 1),
    "plain": ((2, 4, 3), (3, 2), (1, 1), (0, 0), (1, 1), 1),
    "many places": ((3, 12, 11), (3, 3), (1, 1), (1, 0), (1, 1), 1),
}
# 64 and 96 neurons: the bits of the spikes fill whole words of 64 and of 32 bits.
WORDS = [((1, 8, width), (1, 1), (1, 1), (0, 0), (1, 1), 1) for width in (8, 12)]
# Option -> its values, in all combinations; surrogates take turns. These cases are larger than the cases that
# test_sparse_properties draws on a CPU. They have several groups of blocks, chunks of time, and tiles of 192 or 96
# inputs.
GRIDS = {
    "sparse_linear": [{"neurons": [1100], "inputs": [20], "rows": [(20, 30)], "rates": [(0.1, 0.05)]}],
    "sparse_conv2d": [{"neurons": [18], "geometry": [*MAPS.values()], "dtype": DTYPES}],
    LIF: [
        {"capacity": [AS_NEEDED, 20, 64], "rotate": BOTH, "recurrent": BOTH, "each": [True]},
        {
            "inputs": [192, 193, 400],
            "rows": [(11, 50)],
            "rates": [(0.3, 0.1)],
            "neurons": [70],
            "delay": [0, 2],
            "graded": BOTH,
            "shuffled": BOTH,
            "threshold": [torch.tensor(4.0)],
            "grad_threshold": [3.0],
        },
    ],
    CONV_LIF: [
        {"geometry": [*MAPS.values()], "neurons": [2, 66], "reset": RESETS, "capacity": [AS_NEEDED, 20]},
        {"geometry": [MAPS["many places"]], "neurons": [70], "rates": [(0.02, 0.1), (0.4, 0.1)], "dtype": DTYPES},
        {"geometry": WORDS, "neurons": [3], "rows": [(3, 2)], "reset": RESETS},
    ],
}
# Small, as the interpreter is slow: the weights' gradient has a program for each input.
FEW, SMALL, LENGTHS = [1, 5, 63, 130], {"inputs": [9], "neurons": [7]}, [(1, 0), (1, 1), (2, 5), (5, 2), (11, 1)]
IN_TRITON = {
    "sparse_linear": [
        {"neurons": FEW, "inputs": [9], "shuffled": [True], "dtype": DTYPES},
        {"neurons": [6], "inputs": [63]},
        {"neurons": [128], "inputs": [9]},  # whole blocks
    ],
    cases.DELAYED: [
        {"neurons": FEW, "inputs": [20], "rows": [(5, 2)], "shuffled": [True], "dtype": DTYPES},
        {"neurons": [40], "inputs": [7], "rows": [(0, 2), (3, 0), (1, 1), (20, 1)], "max_delay": [1, 9], "bias": BOTH},
        {"neurons": [6], "inputs": [7], "rows": [(4, 2)], "max_delay": [0, 5], "taps": [1], "rates": RATES},
        {"neurons": [6], "inputs": [7], "rows": [(6, 2)], "max_delay": [4], "taps": [5]},
    ],
    "sparse_conv2d": [
        {"geometry": [*MAPS.values()][:-1], "neurons": [4], "rows": [(2, 2)]},
        {"geometry": [MAPS["groups"]], "neurons": [4], "rows": [(2, 2)], "dtype": DTYPES[1:]},
    ],
    "sparse_to_dense": [{"neurons": FEW, "shuffled": [True], "rows": [(2, 2)], "dtype": DTYPES}],
    "dense_to_sparse": [{"neurons": FEW, "capacity": [AS_NEEDED, 0, 30], "rotate": BOTH, "rows": [(4, 1)]}],
    "select_spikes": [
        {"neurons": FEW, "capacity": [AS_NEEDED, 0, 30], "rotate": BOTH, "each": [True], "rows": [(3, 1)]},
        {"neurons": [5], "grad_threshold": SECOND, "dtype": DTYPES, "rows": [(2, 2)]},
    ],
    LIF: [
        {"recurrent": BOTH, "reset": RESETS, "each": [True], "delay": [1], "capacity": [9], **SMALL},
        {
            "neurons": FEW,
            "inputs": [9],
            "recurrent": BOTH,
            "rotate": [True],
            "grad_threshold": [None],
            "capacity": [3],
            "rows": [(2, 1)],
        },
        {"neurons": FEW[1::2], "inputs": [9], "recurrent": BOTH, "grad_threshold": [0.1], "rows": [(2, 1)]},
        {"inputs": FEW, "neurons": [6], "dtype": DTYPES[1:]},
        # Fewer steps than are loaded in advance, and more; delays up to and beyond the steps.
        *({"rows": [(t, 1)], "delay": [d], "recurrent": BOTH, **SMALL} for t, d in LENGTHS),
        {"rates": [(0.0, 0.2)], "bias": BOTH, "recurrent": BOTH, **SMALL},
        # Every surrogate.
        {"neurons": [6], "inputs": [9], "recurrent": BOTH, "rows": [(2, 1)], "capacity": [AS_NEEDED, 4, 5, 6]},
        {"inputs": [9], "rows": ROWS[:2], "capacity": [AS_NEEDED, 0, 3]},
    ],
    CONV_LIF: [
        {"geometry": [MAPS["plain"]], "neurons": [4], "reset": RESETS},
        {
            "geometry": [MAPS["padding"]],
            "neurons": [4],
            "delay": [1],
            "each": [True],
            "capacity": [9],
            "exact": BOTH,
        },
        {"geometry": [MAPS["groups"]], "neurons": [6], "delay": [5]},
        {"geometry": [MAPS["plain"]], "neurons": [70], "rows": ROWS[:2]},
        {"geometry": [MAPS["plain"]], "neurons": [70], "capacity": [0, AS_NEEDED], "rows": [(2, 1)]},
        {"geometry": [MAPS["stride"]], "neurons": [4], "each": [True], "exact": [False]},
    ],
}


def variants(grids):
    options = [dict(zip(grid, values)) for grid in grids for values in itertools.product(*grid.values())]
    return [{**each, "surrogate": number} for number, each in enumerate(options)]


TRIED = [("CPU", op) for op in GRIDS] + [(other, op) for other in ("Triton", "CUDA") for op in IN_TRITON]


@pytest.mark.slow
@pytest.mark.parametrize(("provider", "op"), TRIED)
def test_kernels_equal_the_reference(provider, op, kernels):
    small = {} if provider == "CPU" else {"rows": (3, 2)}
    for options in variants((GRIDS if provider == "CPU" else IN_TRITON)[op]):
        assert_is_the_reference(kernels, op, **{**small, **options})


NEEDY = (*cases.WEIGHTED, cases.POOLED, cases.DELAYED)
WITH_NEEDS = [(who, op) for who in ("CPU", "Triton", "CUDA") for op in NEEDY if who == "CPU" or op in IN_TRITON]


@pytest.mark.slow
@pytest.mark.parametrize(("provider", "op"), WITH_NEEDS)
def test_kernels_equal_the_reference_whatever_gradients_are_needed(provider, op, kernels):
    # On a CPU the gradient of the values is a product if many inputs carry gradient.
    rows, each, rates = ((3, 2), BOTH, [(0.2, 0.1), (0.1, 0.05)]) if provider == "CPU" else ((2, 1), [True], RATES[1:2])
    grid = {"neurons": [4], "rows": [rows], "rates": rates, "each": each, "recurrent": BOTH if op == LIF else [False]}
    for options in variants([grid]):
        maps = {"geometry": MAPS["plain"]} if "conv" in op else {}
        assert_is_the_reference(kernels, op, each_need=True, **options, **maps)


@pytest.mark.slow
@pytest.mark.parametrize("op", KERNELS)
def test_workers_and_threads_do_not_change_a_bit(op):
    kernels = _cpu(None)
    for options in (
        {"neurons": 149, "capacity": 40, "rotate": True, "reset": 0, "delay": 1},
        {"neurons": 10, "rates": (0.6, 0.1), "recurrent": op == LIF, "mode": 1},
    ):
        if op in ("sparse_pool2d", cases.POOLED):
            options["capacity"] = AS_NEEDED
        values = case(op, each=True, rows=(30, 12), inputs=101, **options)
        if op in cases.WEIGHTED:
            values["weight"] = torch.randn_like(values["weight"]) * 0.3

        def run(values=values):
            results = kernels(f"{op}_fwd")(*arguments(f"{op}_fwd", values))
            to = outputs(results)[min(1, len(outputs(results)) - 1)]
            backward = backward_values(op, values, results, torch.linspace(-1, 1, to.numel()).to(to).reshape(to.shape))
            return [*outputs(results), *outputs(kernels(adjoint_of(op))(*arguments(adjoint_of(op), backward)))]

        assert_all_equal(with_workers(run) + with_threads(run))


@pytest.mark.parametrize(("provider", "op"), [(p, op) for p in ("reference", "CPU", "Triton") for op in cases.LAYERS])
def test_membranes_that_were_not_stored_are_refused(provider, op, kernels):
    values = case(op, rows=(4, 3), store_mem=False)
    results = reference_of(f"{op}_fwd")(*arguments(f"{op}_fwd", values))
    for mem in (results[-1], torch.zeros(4, 3, 7)):
        backward = {**backward_values(op, values, results), "mem": mem, "need_beta": True}
        with pytest.raises(ValueError, match=r"mem must be the 4 x 3 x \d+ membranes .* store_mem .* got "):
            kernels(f"{op}_bwd")(*arguments(f"{op}_bwd", backward))


@pytest.mark.parametrize("op", cases.LAYERS)
def test_numbers_of_nothing_are_refused(op):
    """Invalid numbers of resets and surrogates, and invalid ids and counts, raise in the library."""
    kernels, values = _cpu(None), case(op)
    results = kernels(f"{op}_fwd")(*arguments(f"{op}_fwd", values))
    values = backward_values(op, values, results)
    wrong = [(name, number) for name in ("reset", "surrogate") for number in (-1, 99)]
    wrong += [(name, torch.full_like(values[name], 9999)) for name in ("ids_out", "counts_out")]
    for operator in (f"{op}_fwd", f"{op}_bwd"):
        names = [argument.name for argument in cases.schema(operator).arguments]
        for name, value in wrong:
            if name in names:
                with pytest.raises(RuntimeError, match=f"{operator} refused its arguments"):
                    kernels(operator)(*arguments(operator, {**values, name: value}))


@pytest.mark.parametrize("op", [*cases.OPS, "listed_linear", cases.DELAYED])
def test_opcheck(op):
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch.library.opcheck came with torch 2.4")
    tests = ("test_schema", "test_faketensor")
    caps = (81,) if op == "sparse_pool2d" else (0, 4, 9)
    capped = ({"rows": rows, "capacity": cap} for rows in [(3, 2), (0, 2), (3, 0)] for cap in caps)
    for number, options in enumerate(capped):
        dtype, flag = DTYPES[number % 2], number % 3 == 0
        more = {"dtype": dtype, "bias": flag, "each": flag, "store_mem": not flag, "recurrent": op == LIF and flag}
        values = case(op, neurons=9, inputs=9, rotate=True, mode=number % 3, **options, **more)
        forward, backward = (getattr(torch.ops.snnipu, name).default for name in (f"{op}_fwd", adjoint_of(op)))
        torch.library.opcheck(forward, arguments(f"{op}_fwd", values), test_utils=tests)
        inputs = backward_values(op, values, forward(*arguments(f"{op}_fwd", values)))
        inputs["grad"] = inputs["grad"].nan_to_num()
        if op == "dense_to_sparse":
            inputs["values"] = inputs["grad"]
        for need in BOTH:
            inputs.update({name: need for name in needs_of(op, values) if name != "need_weight"})
            torch.library.opcheck(backward, arguments(adjoint_of(op), inputs), test_utils=tests)


# ---- public functions with every provider


def leaves(op, values, names=None):
    """Copy the tensors, make those in ``names`` differentiable, and call the public function."""
    tensors = {name: values[name].detach().clone() for name in cases.leaves_of(op, values)}
    if "values" in tensors:
        tensors["values"].nan_to_num_()
    for name, leaf in tensors.items():
        leaf.requires_grad_(names is None or name in names)
    return tensors, cases.call(op, {**values, **tensors})


def gradients(op, values, names=None):
    tensors, (out, *others) = leaves(op, values, names)
    assert out.requires_grad == (names is None or bool(names))
    assert not any(each.requires_grad for each in others)
    if out.requires_grad:
        out.backward(torch.linspace(-1, 1, out.numel()).to(out).reshape(out.shape))
    return {name: leaf.grad for name, leaf in tensors.items()}


@pytest.mark.parametrize("op", cases.OPS)
def test_each_gradient_alone(op, poisoned):
    values = case(op, recurrent=op == LIF, each=True, capacity=30, rows=(5, 3))
    everything = gradients(op, values)
    assert all(grad.any() for grad in everything.values())
    for name in [None, *everything]:
        for other, grad in gradients(op, values, [name] if name else []).items():
            assert (grad is not None) == (other == name)
            assert grad is None or torch.equal(grad, everything[other])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("op", [op for op in cases.OPS if op not in ("sparse_to_dense", "sparse_pool2d")])
def test_low_precision_is_computed_in_float32(op, dtype):
    values = case(op, recurrent=op == LIF, capacity=20, graded=False)
    names = [n for n in ("x", "mem", "weight", "bias", "recurrent_weight") if n in cases.leaves_of(op, values)]
    low = {**values, **{name: values[name].to(dtype) for name in names}}
    full = {**values, **{name: low[name].float() for name in names}}
    results = []
    for form in (low, full):
        tensors, out = leaves(op, form, names)
        assert out[0].dtype == torch.float32
        out[0].backward(torch.linspace(-1, 1, out[0].numel()).reshape(out[0].shape))
        assert all(tensors[name].grad.dtype == tensors[name].dtype for name in names)
        results.append([*(each.detach() for each in out), *(tensors[name].grad.to(dtype) for name in names)])
    assert_all_equal(results)


@needs_compile
@pytest.mark.parametrize("op", cases.OPS)
def test_compiles_into_one_graph(op):
    values = case(op, neurons=7, inputs=20, rows=(4, 3), capacity=9, rotate=True, delay=1)
    torch._dynamo.reset()

    def loss(tensors):
        out, *others = cases.call(op, {**values, **tensors})
        return (out * torch.arange(out.shape[-1])).square().sum() + sum(each.sum() for each in others)

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaf_tensors, _ = leaves(op, values)
        out = function(leaf_tensors)
        out.backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaf_tensors.values())])
    assert_all_equal(results)


# Changes of ids and counts, and their errors.
CHANGES = rows("""
v["ids"][1, 0] = v["inputs"] | ids must .*, got {inputs} at step 1, sample 0
v["ids"][1, 0] = -1 | ids must be from 0 to {last}, got -1 at step 1, sample 0
v["ids"][2, 1] = v["inputs"] | ids must be from 0 to {last}, got {inputs} at step 2, sample 1
v["counts"][2, 1] = 999 | counts must satisfy .* at step 2, sample 1
v["counts"][2, 1, 0] = -1 | counts must satisfy
v["counts"][2, 1, 1] = 0 | counts must satisfy
""")


@pytest.mark.parametrize("delay", [0, 1])  # with a delay the spikes of the last step arrive nowhere
@pytest.mark.parametrize("row", CHANGES)
@pytest.mark.parametrize(
    ("provider", "op"),
    [*(("CPU", op) for op in cases.OF_SPIKES), *(("reference", op) for op in (*cases.CURRENTS, "sparse_to_dense"))],
)
def test_ids_and_counts_changed_after_construction_are_noticed(provider, op, row, delay, kernels):
    """The change is before the forward pass, or between it and the backward pass."""
    values = case(op, rows=(3, 2), rates=(0.9, 0.0), delay=delay, each=delay == 1)
    results = reference_of(f"{op}_fwd")(*arguments(f"{op}_fwd", values))
    values = backward_values(op, values, results)
    change, message = row.split(" | ")
    message = message.format(last=values["inputs"] - 1, inputs=values["inputs"])
    values.update(ids=values["ids"].clone(), counts=values["counts"].clone())
    exec(change, {"v": values})
    for operator in (f"{op}_fwd", adjoint_of(op)):
        with pytest.raises(ValueError, match=message):
            kernels(operator)(*arguments(operator, values))
    if op in cases.OPS:
        with pytest.raises(ValueError, match=message):
            cases.call(op, values)


@each_row("""
weight.data[2, 1] += 2.0
weight.data = weight.data.flip(0)
weight.data[[1, 64]] = weight.data[[64, 1]]; weight.data[:, [0, 1]] = -weight.data[:, [1, 0]]
weight.data.neg_()
with torch.no_grad(): weight.add_(0.125)
weight.detach().numpy()[64] = 3.0
""")
@pytest.mark.parametrize("op", cases.WEIGHTED)
def test_weights_changed_in_place_are_seen(op, row):
    """For every kind of change, no tensor derived from the old weights is used."""
    values = case(op, recurrent=op == LIF, rows=(5, 3), neurons=66)
    weights = [torch.nn.Parameter(values[n]) for n in ("weight", "recurrent_weight") if values[n] is not None]
    values.update(zip(("weight", "recurrent_weight"), weights))
    for _ in range(3):  # the third call uses cached weights
        gradients(op, values, ["values"])
    before = cases.call(op, values)
    for weight in weights:
        exec(row, {"torch": torch, "weight": weight})
    fresh = {name: each.clone() if isinstance(each, torch.Tensor) else each for name, each in values.items()}
    results = [[*cases.call(op, v), *filter(torch.is_tensor, gradients(op, v).values())] for v in (values, fresh)]
    assert_all_equal([[each.detach() for each in result] for result in results])
    assert not all(map(torch.equal, before, results[0]))


@pytest.mark.parametrize("op", cases.WEIGHTED)
def test_the_weight_decides_the_dtype(op):
    for spikes_dtype, weight_dtype in itertools.product(DTYPES, repeat=2):
        values = case(op, dtype=weight_dtype)
        same = cases.call(op, {**values, "values": values["values"].nan_to_num()})
        values["values"] = values["values"].to(spikes_dtype)
        tensors, outputs = leaves(op, values)
        assert outputs[0].dtype == weight_dtype
        assert_all_equal([[each.detach() for each in outputs], same])
        outputs[0].sum().backward()
        assert tensors["values"].grad.dtype == spikes_dtype


# ---- invalid arguments that several operators share

SPIKES = SparseSpikes.from_dense(torch.eye(4)[None])
OF_MAPS = SparseSpikes.from_dense(torch.ones(2, 1, 2 * 3 * 4)).with_maps((2, 3, 4))
GOOD = {
    "sparse_linear": {"spikes": SPIKES, "weight": torch.zeros(3, 4)},
    "sparse_conv2d": {"spikes": OF_MAPS, "weight": torch.zeros(3, 2, 2, 2)},
    LIF: {"spikes": SPIKES, "weight": torch.zeros(3, 4), "beta": 0.9},
    CONV_LIF: {"spikes": OF_MAPS, "weight": torch.zeros(3, 2, 2, 2), "beta": 0.9},
    "sparse_to_dense": {"spikes": SPIKES},
    "sparse_pool2d": {"spikes": OF_MAPS, "kernel_size": 2},
    "select_spikes": {"mem": torch.zeros(4, 2, 3)},
    "dense_to_sparse": {"x": torch.zeros(4, 2, 3)},
}
MATRIX, MAPPED = ("sparse_linear", LIF), ("sparse_conv2d", CONV_LIF)
SELECTS = (*cases.LAYERS, "select_spikes")
INT, META, COMPLEX = {"dtype": torch.int64}, {"device": "meta"}, {"dtype": torch.complex64}
STEP = torch.zeros(4, 2, 3)
# Operators -> argument, value, error and message.
# Operators -> their wrong arguments and errors; {0} is an operator's first argument.
BAD = {
    cases.OF_SPIKES: "run(spikes=torch.zeros(1, 4, 4)) | TypeError: spikes must be a snnipu.SparseSpikes, got Tensor",
    cases.WEIGHTED: r"""
run(weight=[[1.0]]) | TypeError: weight must be a torch.Tensor, got list
run(bias=torch.zeros(4)) | ValueError: bias must have shape \(3,\).* got \(4,\)
run(bias=torch.zeros(3, **INT)) | TypeError: bias must be a floating torch.Tensor or None
run(bias=1.0) | TypeError: bias must be a floating torch.Tensor or None
run(bias=torch.zeros(3, **META)) | ValueError: bias must be on the device of weight, cpu, got meta
""",
    MATRIX: r"""
run(weight=torch.zeros(3, 4, **INT)) | TypeError: weight must be float32, .* got torch.int64
run(weight=torch.zeros(3, 5)) | ValueError: weight must have shape \[out, 4\].* got \(3, 5\)
run(weight=torch.zeros(4)) | ValueError: weight must have shape \[out, 4\].* got \(4,\)
run(weight=torch.zeros(0, 4)) | ValueError: weight must have shape \[out, 4\].* got \(0, 4\)
run(weight=torch.zeros(3, 4, **META)) | ValueError: weight must be on the device of the spikes, cpu
""",
    MAPPED: r"""
run(weight=torch.zeros(3, 2, 2, 2, **INT)) | TypeError: weight must be float32, .* got torch.int64
run(weight=torch.zeros(3, 2, 2)) | ValueError: weight must have shape \[out, in / groups, kh, kw\]
run(weight=torch.zeros(0, 2, 2, 2)) | ValueError: weight must have shape \[out, in / groups, kh, kw\]
run(weight=torch.zeros(3, 3, 2, 2)) | ValueError: spikes must be of 3 channels, got .*map_shape=.2, 3, 4.
run(weight=torch.zeros(3, 2, 2, 2, **META)) | ValueError: weight must be on the device of the spikes
run(weight=torch.zeros(3, 2, 4, 2)) | ValueError: kernel_size: the kernel's height, 4 .* at most .* 3
run(dilation=4) | ValueError: kernel_size: the kernel's height, 5 with its dilation
run(dilation=0) | ValueError: dilation must be at least 1, got 0
run(stride=0) | ValueError: stride must be at least 1, got 0
run(stride=1.5) | TypeError: stride must be an int or two, got 1.5
run(stride=True) | TypeError: stride must be an int or two, got True
run(padding=-1) | ValueError: padding must be at least 0, got -1
run(padding=(1, 2, 3)) | TypeError: padding must be an int or two
run(groups=2) | ValueError: groups must divide weight's output channels, 3, got 2
run(groups="2") | TypeError: groups must be an int, got '2'
run(input_size=(4, 3)) | ValueError: spikes must be of maps \(2, 4, 3\), .* got map_shape=\(2, 3, 4\)
run(input_size=0) | ValueError: input_size must be at least 1, got 0
""",
    (*MAPPED, "sparse_pool2d"): "run(spikes=OF_MAPS.with_maps(None)) | ValueError: input_size must be given",
    cases.LAYERS: r"""
run(beta="0.9") | TypeError: beta must be a number or a torch.Tensor
run(beta=torch.rand(4)) | ValueError: beta must broadcast .*\(3,\), got .* \(4,\)
run(beta=torch.rand(3, **META)) | ValueError: beta must be on
run(reset_mechanism="substract") | ValueError: reset_mechanism must be 'subtract', 'zero' or 'none'
run(delay=-1) | ValueError: delay must be at least 0, got -1
run(delay=1.0) | TypeError: delay must be an int, got 1.0
run(input_scale="1") | TypeError: input_scale must be a number, got '1'
run(input_scale=True) | TypeError: input_scale must be a number, got True
""",
    SELECTS: r"""
run(threshold="1") | TypeError: threshold must be a number or a torch.Tensor
run(threshold=torch.rand(4)) | ValueError: threshold must broadcast .*\(3,\), got .* \(4,\)
run(threshold=torch.rand(3, **META)) | ValueError: threshold must be on
run(grad_threshold="0.5") | TypeError: grad_threshold must be a number or None
run(grad_threshold=True) | TypeError: grad_threshold must be a number or None
run(grad_threshold=float("nan")) | ValueError: grad_threshold must not be NaN
run(spike_grad=25) | TypeError: spike_grad must be callable or None, got 25
""",
    (*SELECTS, "dense_to_sparse"): """
run(max_spikes=2.0) | TypeError: max_spikes must be an int or None, got 2.0
run(max_spikes=True) | TypeError: max_spikes must be an int or None
run(max_spikes=-1) | ValueError: max_spikes must be at least 0, got -1
run(overflow="highest") | ValueError: overflow must be 'lowest' or 'rotate', got 'highest'
""",
    ("select_spikes", "dense_to_sparse"): r"""
run({0}=[1.0]) | TypeError: {0} must be a torch.Tensor, got list
run({0}=STEP.bool()) | TypeError: {0} must be floating, got torch.bool
run({0}=torch.zeros(4, 2, 3, **COMPLEX)) | TypeError: {0} must be floating
run({0}=STEP[0]) | ValueError: {0} must have shape \[T, B, N\] .* got \(2, 3\)
run({0}=STEP[..., :0]) | ValueError: {0} must have shape .* got \(4, 2, 0\)
""",
    (LIF,): r"""
run(recurrent_weight=[[1.0]]) | TypeError: recurrent_weight must be a torch.Tensor or None, got list
run(recurrent_weight=torch.zeros(3, 4)) | ValueError: recurrent_weight must have shape \(3, 3\), got \(3, 4\)
run(recurrent_weight=torch.zeros(3, 3, **META)) | ValueError: recurrent_weight must be on the device
run(recurrent_weight=torch.zeros(3, 3, **INT)) | TypeError: recurrent_weight must be floating
run(recurrent_weight=torch.zeros(3, 3), spike_grad=torch.sigmoid) | ValueError: spike_grad must be a fused surrogate
""",
    ("sparse_conv2d",): r"""
run(spikes=OF_MAPS.with_maps(None), input_size=(3, 5))
    | ValueError: spikes must be of 2 x 3 x 5 = 30 neurons, as input_size says, got 24
""",
    ("sparse_pool2d",): r"""
run(input_size=(2, 4, 3)) | ValueError: spikes must be of maps
run(input_size=(2, 5, 3)) | ValueError: map_shape must be of num_neurons=24 neurons
run(kernel_size=0) | ValueError: kernel_size must be at least 1
run(kernel_size=4) | ValueError: kernel_size: the window's height, 4, must be at most .* 3
run(kernel_size="2") | TypeError: kernel_size must be an int or two
run(stride=0) | ValueError: stride must be at least 1
run(padding=2) | ValueError: padding must be at most half of kernel_size, \(2, 2\), got \(2, 2\)
run(mode="lp") | ValueError: mode must be 'max', 'average' or 'sum', got 'lp'
""",
}


@pytest.mark.parametrize("op", cases.OPS)
def test_bad_input(op):
    function, first = getattr(ops, op), next(iter(GOOD[op]))
    function(**GOOD[op])
    wrong = [row for which, table in BAD.items() if op in which for row in rows(table)]
    assert wrong
    for row in wrong:
        assert_refused(row.replace("{0}", first), globals(), run=functools.partial(function, **GOOD[op]))
