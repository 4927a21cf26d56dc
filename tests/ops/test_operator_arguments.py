"""Arguments of native code: tensors of another dtype, device, shape or layout than the operator's.

The kernels give the reference's results, or raise. The address sanitizer finds no access out of bounds.
"""

import re
from pathlib import Path

import pytest
import torch
from oracle import assert_all_equal
from support import sparse_cases
from support.neuron_cases import arguments_of
from support.sparse_cases import arguments, backward_values, case

import snnipu
from snnipu import _pointers, surrogate
from snnipu.ops import _library
from snnipu.ops.dense_pool2d import windows

pytestmark = pytest.mark.skipif(
    "CPU" not in _library.REGISTERED["sparse_linear_fwd"], reason="there are no CPU kernels"
)
STEPS, BATCH, NEURONS = 4, 3, 5
KERNEL = surrogate.fast_sigmoid(slope=5).kernel


# ---- arguments of every operator, in the order of its schema


def event_examples():
    """Return {operator: arguments} of the event-driven operators."""
    examples = {}
    sizes = {"neurons": NEURONS, "rows": (STEPS, BATCH), "rates": (0.4, 0.2), "graded": False}
    for op in (*sparse_cases.OPS, sparse_cases.POOLED, sparse_cases.DELAYED):
        recurrent = op == "sparse_lif_sequence"
        values = case(op, inputs=7, recurrent=recurrent, each=True, **sizes)
        if "values" in values:
            values["values"] = values["values"].nan_to_num()
        examples[f"{op}_fwd"] = arguments(f"{op}_fwd", values)
        results = reference(f"{op}_fwd")(*examples[f"{op}_fwd"])
        after = backward_values(op, values, results)
        after["grad"] = after["grad"].nan_to_num()
        after = {**values, **after, "num_neurons": NEURONS}
        adjoint = sparse_cases.adjoint_of(op)
        examples.setdefault(adjoint, arguments(adjoint, after))
    ids, values, counts, neurons = examples["sparse_to_dense_fwd"]
    examples["spike_count_fwd"] = (ids, values, counts, neurons)
    examples["spike_count_bwd"] = (torch.randn(BATCH, neurons), ids, counts)
    weight, _, geometry, lags = examples["delay_linear_fwd"][3:]
    examples["delay_linear_input_bwd"] = (torch.randn(STEPS, BATCH, NEURONS), weight, lags, geometry[0])
    return examples


def pool_examples():
    geometry = list(windows((5, 6), (2, 3), (2, 3)))
    x, grad = torch.randn(BATCH, 2, 5, 6), torch.randn(BATCH, 2, 2, 2)
    which = reference("max_pool2d_fwd")(x, geometry)[1]
    return {
        "max_pool2d_fwd": (x, geometry),
        "max_pool2d_bwd": (grad, which, geometry),
        "avg_pool2d_fwd": (x, geometry),
        "avg_pool2d_bwd": (grad, geometry),
    }


def neuron_examples():
    """Return {operator: arguments} of the neurons: initial states are given, parameters have a value per neuron."""
    x, initial, parameters = arguments_of("synaptic", (STEPS, BATCH, NEURONS))
    step, options = (BATCH, NEURONS), ("synaptic", 0, None)
    examples = {"neuron_sequence_fwd": (x, initial, parameters, *options, 0b11, True)}
    spk, states, final = reference("neuron_sequence_fwd")(*examples["neuron_sequence_fwd"])
    grads = (torch.randn_like(spk), [torch.randn_like(s) for s in states], [torch.randn_like(s) for s in final])
    needs = ([True] * len(initial), [True] * len(parameters))
    examples["neuron_sequence_bwd"] = (*grads, x, initial, parameters, *options, *KERNEL, *needs, states)

    connection, before = (torch.randn(NEURONS, NEURONS), torch.randn(NEURONS), [], []), [torch.rand(step), *initial]
    recurrent = (x, *connection, before, parameters, *options, [False, True, True], True, True)
    examples["neuron_recurrent_fwd"] = recurrent
    spk, states, final, incoming = reference("neuron_recurrent_fwd")(*recurrent)
    upstream = (torch.randn_like(spk), [None, *(torch.randn_like(s) for s in states[1:])], [torch.randn(step)] * 3)
    stored = (x, spk, states, incoming)
    needs = (True, True, [True] * len(before), [True] * len(parameters))
    examples["neuron_recurrent_bwd"] = (*upstream, *stored, *connection, before, parameters, *options, *KERNEL, *needs)
    return examples


def spiking_lstm_examples():
    x, syn, mem = torch.randn(STEPS, BATCH, NEURONS), torch.randn(BATCH, 6), torch.randn(BATCH, 6)
    cell = [torch.randn(24, NEURONS), torch.randn(24, 6), torch.randn(24), torch.randn(24)]
    forward = (x, syn, mem, cell, [], torch.tensor(0.1), 0, None)
    activations, syns, mems = reference("spiking_lstm_fwd")(*forward)
    grads = (torch.randn_like(syns), torch.randn_like(mems))
    return {
        "spiking_lstm_fwd": forward,
        "spiking_lstm_bwd": (*grads, activations, syns, mems, *forward, [True] * 8),
    }


def eventprop_examples():
    spikes = snnipu.ops.select_spikes(torch.randn(STEPS, BATCH, NEURONS), 0.3, 0.0)
    slots = [torch.rand_like(spikes.values) for _ in range(3)]
    decays = [torch.rand(NEURONS) * 0.4 + 0.6 for _ in range(3)]
    grad_mem, recurrent = torch.randn(STEPS, BATCH, NEURONS), torch.randn(NEURONS, NEURONS)
    return {
        "eventprop_bwd": (slots[0], spikes.ids, spikes.counts, *slots[1:], grad_mem, *decays, recurrent, NEURONS, True)
    }


def reference(name):
    return _library.REGISTERED[name]["CompositeExplicitAutograd"]


def all_examples():
    torch.manual_seed(0)
    return {
        **event_examples(),
        **pool_examples(),
        **neuron_examples(),
        **spiking_lstm_examples(),
        **eventprop_examples(),
    }


NATIVE = sorted(name for name, kernels in _library.REGISTERED.items() if "CPU" in kernels)


@pytest.fixture(scope="module")
def examples():
    return all_examples()


def test_every_operator_has_an_example(examples):
    assert sorted(examples) == NATIVE


# ---- one tensor changed


def shrunk(dim):
    def change(tensor):
        if dim >= tensor.dim() or not tensor.shape[dim]:
            return tensor[..., None]
        return tensor.narrow(dim, 0, tensor.shape[dim] - 1).contiguous()

    return change


def in_odd_strides(tensor):
    return torch.stack([tensor, torch.full_like(tensor, 7)], -1)[..., 0]


def twice_as_long(tensor):
    return torch.cat([tensor, tensor]) if tensor.dim() else tensor.repeat(2)


# Other layouts of the same values.
LAYOUTS = {
    "strided": in_odd_strides,
    "transposed": lambda tensor: tensor.mT.contiguous().mT if tensor.dim() > 1 else in_odd_strides(tensor),
    "negative": lambda tensor: torch._neg_view(-tensor) if tensor.is_floating_point() else tensor,
    "of a conjugate": lambda t: torch.complex(t, -t).conj().imag if t.is_floating_point() else t,
    "COO": torch.Tensor.to_sparse,
}
CHANGES = {
    "float64": torch.Tensor.double,
    "float32": torch.Tensor.float,
    "float16": torch.Tensor.half,
    "int64": torch.Tensor.long,
    "int16": torch.Tensor.short,
    "complex": lambda tensor: torch.complex(tensor.float(), tensor.float()),
    "on meta": lambda tensor: tensor.to("meta"),
    "zeros without memory": lambda t: torch._efficientzerotensor(t.shape) if t.is_floating_point() else t,
    "expanded": lambda tensor: tensor[:1].expand(tensor.shape) if tensor.dim() else tensor.expand(3),
    "empty": lambda tensor: tensor.new_empty(0),
    "flat": lambda tensor: tensor.reshape(-1)[:-1],
    "grown": twice_as_long,
    "of the same size": lambda tensor: tensor.mT.contiguous() if tensor.dim() > 1 else tensor,
    **{f"dimension {dim} smaller": shrunk(dim) for dim in range(5)},
    **LAYOUTS,
}


def places(arguments):
    """Yield the place of each tensor: the argument, and the index in a list."""
    for place, value in enumerate(arguments):
        if isinstance(value, torch.Tensor):
            yield place, None
        elif isinstance(value, (list, tuple)):
            yield from ((place, inside) for inside, each in enumerate(value) if isinstance(each, torch.Tensor))


def changed(arguments, at, change):
    place, inside = at
    arguments = list(arguments)
    if inside is None:
        arguments[place] = change(arguments[place])
    else:
        arguments[place] = list(arguments[place])
        arguments[place][inside] = change(arguments[place][inside])
    return arguments


def tensors(results):
    if isinstance(results, (list, tuple)):
        return [tensor for part in results for tensor in tensors(part)]
    return [results] if isinstance(results, torch.Tensor) else []


def outcome(function, arguments):
    try:
        return tensors(function(*arguments))
    except Exception as error:
        return error


def assert_same(results, expected, what):
    if isinstance(results, Exception):
        return
    assert not isinstance(expected, Exception), f"{what}: the reference says {expected}"
    for actual, other in zip(results, expected):
        torch.testing.assert_close(
            actual.to_dense(),
            other.to_dense(),
            rtol=1e-4,
            atol=1e-5,
            equal_nan=True,
            msg=lambda text: f"{what}: {text}",
        )


# PyTorch computes parts of these, and our functions call them only through the dispatcher.
DISPATCHED = ("neuron_recurrent", "spiking_lstm")
# If many inputs carry gradient, their gradient is PyTorch's matrix product, whose bits depend on the layout.
PRODUCTS = ("sparse_linear_bwd", "sparse_lif_sequence_bwd")


def ways(name):
    """Return the call through the dispatcher, and the direct call that our functions use."""
    calls = {"dispatched": getattr(torch.ops.snnipu, name)}
    return calls if name.startswith(DISPATCHED) else {**calls, "direct": _library.REGISTERED[name]["CPU"]}


@pytest.mark.parametrize("name", [name for name in NATIVE if name.startswith(("neuron", "spiking_lstm"))])
def test_results_that_are_not_requested_are_different_tensors(name, examples):
    """PyTorch forbids an operator that returns one tensor twice, even an empty one."""
    unrequested = [
        [False] * len(a) if isinstance(a, list) and set(map(type, a)) == {bool} else a for a in examples[name]
    ]
    if name == "neuron_sequence_fwd":
        unrequested[6] = 0  # the bits of the states to store
    for function in (reference(name), *ways(name).values()):
        results = tensors(function(*unrequested))
        assert len(set(map(id, results))) == len(results)


def assert_reference(name, arguments, what):
    expected = outcome(reference(name), arguments)
    for way, function in ways(name).items():
        assert_same(outcome(function, arguments), expected, f"{what}, {way}")


@pytest.mark.parametrize("name", NATIVE)
def test_kernels_give_what_the_reference_gives_or_raise(name, examples):
    arguments = examples[name]
    expected = outcome(reference(name), arguments)
    for way, function in ways(name).items():
        result = outcome(function, arguments)
        assert not isinstance(result, Exception), result
        assert_same(result, expected, way)
    for at in places(arguments):
        for what, change in CHANGES.items():
            others = changed(arguments, at, change)
            if what == "on meta" and not any(tensor.is_cpu for tensor in tensors(others)):
                continue  # the operator accepts it
            if what == "empty" and sparse_cases.schema(name).arguments[at[0]].name == "states":
                continue  # empty states: the kernel computes them again
            if what == "zeros without memory" and name == "eventprop_bwd":
                continue  # a decay of 0 has no logarithm
            assert_reference(name, others, f"argument {at}, {what}")


@pytest.mark.parametrize("name", NATIVE)
def test_layouts_change_no_bit(name, examples):
    """All layouts are read; only tensors without a layout in memory are refused."""
    arguments = examples[name]
    for way, function in ways(name).items():
        expected = outcome(function, arguments)
        for at in places(arguments):
            for what in LAYOUTS.keys() - {"COO"}:
                result = outcome(function, changed(arguments, at, LAYOUTS[what]))
                assert not isinstance(result, Exception), f"argument {at}, {what}, {way}: {result}"
                if name.startswith(DISPATCHED) or name in PRODUCTS:
                    assert_same(result, expected, f"argument {at}, {what}, {way}")
                else:
                    assert_all_equal([[tensor.nan_to_num(7) for tensor in each] for each in (expected, result)])


WITHOUT_SLOTS = [name for name in NATIVE if "capacity" not in str(sparse_cases.schema(name))]


@pytest.mark.skipif(not hasattr(torch.library, "opcheck"), reason="torch.library.opcheck came with torch 2.4")
@pytest.mark.parametrize("name", WITHOUT_SLOTS)  # test_sparse_contract.py checks the others with a capacity
def test_opcheck(name, examples):
    operator = getattr(torch.ops.snnipu, name).default
    torch.library.opcheck(operator, examples[name], test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", NATIVE)
def test_numbers_of_tensors(name, examples):
    """A list lacks a tensor, or has one more."""
    arguments = examples[name]
    lists = {place for place, inside in places(arguments) if inside is not None}
    for place in lists:
        for other in (arguments[place][:-1], [*arguments[place], arguments[place][-1]], []):
            others = [*arguments[:place], other, *arguments[place + 1 :]]
            assert_reference(name, others, f"argument {place}, {len(other)} tensors")


@pytest.mark.parametrize("name", NATIVE)
def test_sizes_that_do_not_fit_together(name, examples):
    """The numbers of a geometry must match the shapes, too."""
    arguments = examples[name]
    for place, value in enumerate(arguments):
        if not isinstance(value, list) or not value or not all(type(number) is int for number in value):
            continue
        others = [[*value[:at], number + by, *value[at + 1 :]] for at, number in enumerate(value) for by in (-1, 1, 50)]
        for other in (*others, value[:-1], [*value, 1], []):
            with_other = [*arguments[:place], other, *arguments[place + 1 :]]
            assert_reference(name, with_other, f"argument {place}, {other}")


@pytest.mark.parametrize("name", NATIVE)
def test_a_default_device_is_not_the_kernels(name, examples):
    expected = outcome(reference(name), examples[name])
    with torch.device("meta"):
        for way, function in ways(name).items():
            result = outcome(function, examples[name])
            assert not isinstance(result, Exception), result
            assert_same(result, expected, way)


# ---- addresses of tensors


PACKAGE = Path(snnipu.__file__).parent
# File -> reason for comparing addresses; these addresses never reach native code.
LOOKS_AT_ADDRESSES = {
    "_pointers.py": "the one place: checked, or trusted because the caller has checked",
    "backends/neuron_step.py": "whether a parameter was copied",
    "backends/triton/sparse_linear.py": "whether a weight is the one that was packed",
    "compiler/helpers.py": "whether arguments, or variables of a loop, share memory",
    "export_nir.py": "which module made a tensor",
    "neurons/paths.py": "which module has a weight",
    "online/events.py": "whether a layer's tensors are those that its description was made of",
    "ops/_fixed.py": "whether a weight is the one that was packed",
    "ops/recurrent_sequence.py": "whether rows are aligned",
}


def test_addresses_are_taken_in_one_place():
    looks, trusts = [], []
    for path in sorted(PACKAGE.rglob("*.py")):
        text, name = path.read_text("utf-8"), path.relative_to(PACKAGE).as_posix()
        looks += [name] * (".data_ptr" in text)
        trusts += [name] * (re.search(r"import .*\btrusted_pointer\b", text) is not None)
    assert looks == sorted(LOOKS_AT_ADDRESSES)
    assert trusts == ["backends/neurons.py"]  # single steps, whose caller compares


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), TypeError),
        (torch.zeros(3, 2), ValueError),
        (torch.zeros(6), ValueError),
        (torch.zeros(2, 3, device="meta"), ValueError),
        (torch.zeros(3, 2).t(), ValueError),
        (torch._neg_view(torch.zeros(2, 3)), ValueError),
        (torch.zeros(2, 3).to_sparse(), ValueError),
        (torch._efficientzerotensor((2, 3)), ValueError),
        (torch._efficientzerotensor((5, 2, 3))[4], ValueError),
    ],
)
def test_what_has_no_address(tensor, error):
    with pytest.raises(error, match=r"^gates must "):
        _pointers.pointer("gates", tensor, torch.float32, (2, 3))


def test_storage_that_was_given_back_has_no_address():
    tensor = torch.zeros(2, 3)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="gates must have memory"):
        _pointers.pointer("gates", tensor, torch.float32, (2, 3))
