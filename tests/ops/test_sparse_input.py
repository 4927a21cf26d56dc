"""Products whose input is mostly zeros: PyTorch's results up to the order of additions, and the break-even."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.test_operator_arguments import CHANGES
from support.operators import needs_host_runtime
from support.versions import needs_backend
from torch import nn

import snnipu as snn
from snnipu.ops import _break_even, sparse_input
from snnipu.ops._arguments import count_nonzero

pytestmark = needs_host_runtime


@pytest.fixture
def taken(monkeypatch):
    """Return a list that records for each candidate product whether it used events."""
    took_events, slots = [], sparse_input._slots

    def counted(*args):
        events = slots(*args)
        took_events.append(events is not None)
        return events

    monkeypatch.setattr(sparse_input, "_slots", counted)
    return took_events


@pytest.fixture
def events(taken, monkeypatch):
    """Use events at any size and share of zeros; return the same list."""
    always_use_events(monkeypatch)
    return taken


def always_use_events(patch):
    patch.setattr(_break_even, "FEWEST_PRODUCTS", 0)
    patch.setattr(_break_even, "FEWEST_CHANNELS", {1: 1, 2: 1})
    patch.setattr(_break_even, "LINEAR_INPUT", ((1, 1.0),))
    patch.setattr(_break_even, "ROWS_OF_WEIGHTS", 0)
    patch.setattr(_break_even, "INPUTS_OF_A_ROW", 0)
    for table in ("CONVOLUTION_INPUT", "FIRST_CONVOLUTION"):
        patch.setattr(_break_even, table, dict.fromkeys((1, 2), ((1, 1, 1e3),)))
    patch.setattr(sparse_input, "_LARGEST_ROW", 1.0)


def run(function, x, weight, bias, upstream):
    leaves = [t if t is None else t.detach().clone().requires_grad_(t.requires_grad) for t in (x, weight, bias)]
    out = function(*leaves)
    if out.requires_grad:
        out.backward(upstream)
    return out.detach(), [None if leaf is None else leaf.grad for leaf in leaves]


def compare(ours, pytorchs, x, weight, learns):
    """Compare products of events with random weights, and their gradients, with PyTorch's."""
    with pytest.MonkeyPatch.context() as patch:
        always_use_events(patch)
        x.requires_grad_(learns[0])
        weight = torch.randn(weight, dtype=torch.float64, requires_grad=learns[1])
        bias = torch.randn(len(weight), dtype=torch.float64, requires_grad=learns[2]) if learns[3] else None
        try:
            upstream = torch.randn_like(pytorchs(x, weight, bias))
        except RuntimeError:  # a kernel larger than the map
            with pytest.raises(RuntimeError, match="ernel size"):
                ours(x, weight, bias)
            return
        actual, expected = (run(function, x, weight, bias, upstream) for function in (ours, pytorchs))
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12 if x.dim() == 2 else 1e-11)


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(1, 40)),
    st.floats(0, 1),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.booleans(),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=150)
def test_linear_is_pytorchs_up_to_rounding(sizes, activity, learns, graded, seed):
    rows, inputs, outputs = sizes
    torch.manual_seed(seed)
    x = (torch.rand(rows, inputs, dtype=torch.float64) < activity).double()
    compare(sparse_input.linear, F.linear, x * torch.randn_like(x) if graded else x, (outputs, inputs), learns)


PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


def first_dims(sizes, spatial):
    return sizes[:spatial] if isinstance(sizes, tuple) else sizes


@pytest.mark.slow
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 11), st.integers(1, 11)),
    st.tuples(PAIRS, PAIRS, st.one_of(PAIRS, st.integers(0, 2), st.sampled_from(["same", "valid"])), PAIRS),
    st.floats(0, 1),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=200)
@pytest.mark.parametrize("spatial", [1, 2])
def test_convolutions_are_pytorchs_up_to_rounding(spatial, counts, size, shape, activity, learns, seed):
    batch, groups, inputs, outputs = counts
    size, (kernel, stride, padding, dilation) = size[:spatial], (first_dims(sizes, spatial) for sizes in shape)
    stride = (1,) * spatial if padding == "same" else stride

    def convolution(function):
        return lambda x, w, b: function(x, w, b, stride, padding, dilation, groups)

    torch.manual_seed(seed)
    x = torch.rand(batch, inputs * groups, *size, dtype=torch.float64)
    functions = ((sparse_input.conv1d, F.conv1d), (sparse_input.conv2d, F.conv2d))[spatial - 1]
    weight = (outputs * groups, inputs, *kernel)
    compare(*map(convolution, functions), (x < activity) * torch.randn_like(x), weight, learns)


def test_convolutions_that_stay_dense(events):
    x, weight = (torch.rand(3, 4, 6, 6) < 0.2).float(), torch.randn(5, 4, 3, 3)
    for maps in (x.to(memory_format=torch.channels_last), x[0], x.half()):
        operands = maps, weight.to(maps.dtype)
        assert torch.equal(sparse_input.conv2d(*operands), F.conv2d(*operands))
    even = torch.randn(5, 4, 2, 2)
    assert torch.equal(sparse_input.conv2d(x, even, padding="same"), F.conv2d(x, even, padding="same"))
    assert not any(events)
    for bad in ({"stride": 0}, {"padding": -1}, {"groups": 3}):
        with pytest.raises(RuntimeError):
            sparse_input.conv2d(x, weight, **bad)
        with pytest.raises(RuntimeError):
            sparse_input.conv1d(x[..., 0], weight[..., 0], **bad)
    for two in ("stride", "padding", "dilation"):
        with pytest.raises(RuntimeError):
            sparse_input.conv1d(x[..., 0].contiguous(), weight[..., 0], **{two: (1, 2)})


def test_other_layouts(events):
    x = (torch.rand(30, 8, 2) < 0.2).float()
    weight = torch.randn(5, 8)
    for rows in (x[..., 0], x[..., 1].t().contiguous().t(), x[::2, :, 0]):
        for w in (weight, torch.randn(8, 5).t()):
            torch.testing.assert_close(sparse_input.linear(rows, w), F.linear(rows, w))
    assert events == [True] * 6


class Subclass(torch.Tensor):
    pass


# Changes to an operand that the kernels read: another layout, device, dtype or type.
# Changes to an operand that the kernels read: another layout, device, dtype or type.
SHARED = ("negative", "of a conjugate", "strided", "COO", "expanded", "float64", "int64", "complex")
ODD = {
    **{name: CHANGES[name] for name in SHARED},
    "bfloat16": torch.Tensor.bfloat16,
    "subclass": lambda tensor: tensor.as_subclass(Subclass),
    "mkldnn": torch.Tensor.to_mkldnn,
    "empty": lambda tensor: tensor[:0],
    "one element": lambda tensor: tensor[:1],
    "one less": lambda tensor: tensor[:-1],
    "one more": lambda tensor: torch.cat([tensor, tensor[:1]]),
    "one dimension more": lambda tensor: tensor[..., None],
    "no dimension": torch.Tensor.sum,
}
PRODUCTS = {
    "linear": ((30, 40), (20, 40)),
    "conv1d": ((4, 6, 30), (20, 6, 3)),
    "conv2d": ((4, 6, 9, 9), (20, 6, 3, 3)),
}


def outcome(function, *operands):
    try:
        return function(*operands)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("place", ["x", "weight", "bias"])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_pytorch_takes_or_refuses_what_kernels_do_not_read(kind, place, odd, events):
    shape, weight = PRODUCTS[kind]
    operands = {"x": (torch.rand(shape) < 0.3).float(), "weight": torch.randn(weight), "bias": torch.randn(weight[:1])}
    ours, pytorchs = getattr(sparse_input, kind), getattr(F, kind)
    ours(*operands.values())
    assert events == [True]
    operands[place] = ODD[odd](operands[place])
    with torch.no_grad():
        actual, expected = outcome(ours, *operands.values()), outcome(pytorchs, *operands.values())
    assert type(actual) is type(expected)
    if isinstance(expected, tuple):
        assert actual == expected
    else:
        torch.testing.assert_close(actual.to_dense(), expected.to_dense(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", ["x", "weight", "bias"])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_operands_on_meta_are_pytorchs(kind, place, events, monkeypatch):
    shape, weight = PRODUCTS[kind]
    operands = {"x": torch.zeros(shape), "weight": torch.randn(weight), "bias": torch.randn(weight[:1])}
    operands[place] = operands[place].to("meta")
    # PyTorch is not called: PyTorch 2.13 would read invalid memory for such weights.
    monkeypatch.setattr(F, kind, lambda *_: "PyTorch's")
    assert getattr(sparse_input, kind)(*operands.values()) == "PyTorch's"


@pytest.mark.parametrize(
    ("place", "odd"),
    [*((place, odd) for place in ("x", "weight", "bias") for odd in ("negative", "strided")), ("bias", "one element")],
)
def test_gradients_of_what_kernels_do_not_read(place, odd, events):
    shape, weight = PRODUCTS["linear"]
    results = []
    for function in (sparse_input.linear, F.linear):
        torch.manual_seed(0)
        operands = {"x": (torch.rand(shape) < 0.3).float(), "weight": torch.randn(weight), "bias": torch.randn(20)}
        for operand in operands.values():
            operand.requires_grad_()
        changed = {**operands, place: ODD[odd](operands[place])}
        out = function(*changed.values())
        out.backward(torch._neg_view(torch.randn_like(out)))
        results.append([out.detach(), *(operand.grad for operand in operands.values())])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_what_is_not_a_number_is_an_event(events):
    x = torch.zeros(4, 3)
    x[1, 2], x[2, 0], x[3, 1] = float("nan"), float("inf"), -0.0
    actual, expected = sparse_input.linear(x, torch.ones(2, 3)), F.linear(x, torch.ones(2, 3))
    torch.testing.assert_close(actual, expected, equal_nan=True)
    assert events == [True]


def test_others_who_look_on_get_the_dense_product(events):
    x, weight = (torch.rand(6, 4) < 0.3).float(), torch.randn(3, 4)
    expected = F.linear(x, weight)

    def dense(function):
        events.clear()
        result = function()
        assert not any(events)
        return result

    def by_jvp():
        return torch.func.jvp(lambda w: sparse_input.linear(x, w), (weight,), (torch.ones_like(weight),))

    assert torch.equal(
        dense(lambda: torch.func.vmap(lambda row: sparse_input.linear(row[None], weight)[0])(x)), expected
    )
    primal, tangent = dense(by_jvp)
    assert torch.equal(primal, expected)
    torch.testing.assert_close(tangent, x.sum(1, keepdim=True).expand(6, 3))
    with torch.autocast("cpu", torch.bfloat16):
        assert dense(lambda: sparse_input.linear(x, weight)).dtype == torch.bfloat16
    with snn.dense_only():
        assert torch.equal(dense(lambda: sparse_input.linear(x, weight)), expected)
        with snn.dense_only():
            pass
        assert torch.equal(dense(lambda: sparse_input.linear(x, weight)), expected)
    events.clear()
    sparse_input.linear(x, weight)
    assert events == [True]


def test_a_second_derivative_is_refused_by_name(events):
    x, weight = (torch.rand(6, 4) < 0.3).float(), torch.randn(3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad((sparse_input.linear(x, weight) ** 2).sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="dense_only"):
        grad.sum().backward()
    with snn.dense_only():
        (grad,) = torch.autograd.grad((sparse_input.linear(x, weight) ** 2).sum(), weight, create_graph=True)
        grad.sum().backward()
    assert weight.grad is not None


def test_the_choice_is_by_size_and_share(taken):
    def linear(share, outputs, rows=1600, inputs=1000):
        torch.manual_seed(0)
        sparse_input.linear((torch.rand(rows, inputs) < share).float(), torch.randn(outputs, inputs))
        return taken[-1]

    def conv(share, maps, kernel, channels, spatial=2, learns=(False, False), batch=20, **options):
        torch.manual_seed(0)
        x = (torch.rand(batch, channels, *((400,) if spatial == 1 else (40, 40))) < share).float()
        weight = torch.randn(maps, channels, *[kernel] * spatial, requires_grad=learns[1])
        getattr(sparse_input, f"conv{spatial}d")(x.requires_grad_(learns[0]), weight, **options)
        return taken[-1]

    for outputs, _ in _break_even.LINEAR_INPUT:
        limit = _break_even.linear_input_limit(outputs, 1000, 1600)
        assert [linear(factor * limit, outputs) for factor in (0.7, 1.3)] == [True, False], outputs
    for spatial, alone in itertools.product((1, 2), (False, True)):
        # Recorded events: the weight learns, and the input needs no gradient.
        table = _break_even.FIRST_CONVOLUTION if alone else _break_even.CONVOLUTION_INPUT
        channels = (_break_even.MOST_CHANNELS if alone else _break_even.FEWEST_CHANNELS)[spatial]
        for taps, maps, limit in table[spatial]:
            layer = (maps, round(taps ** (1 / spatial)), channels, spatial, (False, alone), 20 if alone else 5)
            assert [conv(factor * limit, *layer) for factor in (0.7, 1.3)] == [True, False], layer
    assert [conv(share, 64, 3, 4, stride=2) for share in (0.03, 0.06)] == [True, False]
    # Few products, few outputs, few inputs of a row, few channels, and kernels of one number.
    assert not linear(0.01, 256, rows=10, inputs=50)
    assert not linear(0.01, 4)
    assert not linear(0.01, 10, rows=4000, inputs=200)
    assert not conv(0.02, 64, 3, 3)
    assert not conv(0.02, 64, 1, 12)
    assert not any(conv(0.1, 16, 3, 2, learns=learns) for learns in ((True, True), (False, False)))
    with torch.no_grad():
        assert not conv(0.1, 16, 3, 2, learns=(False, True))
    # A full row, which the sample of rows misses, would make slots as large as the tensor.
    x = torch.zeros(400, 500)
    x[1] = 1
    sparse_input.linear(x, torch.randn(256, 500))
    assert not taken[-1]


INPUTS = {"linear": (300,), "conv1d": (8, 100), "conv2d": (8, 12, 12)}


def network(kind="linear"):
    torch.manual_seed(0)
    if kind != "linear":
        layer, size = (nn.Conv1d, 9) if kind == "conv1d" else (nn.Conv2d, 3)
        return nn.Sequential(layer(8, 32, size), snn.Leaky(beta=0.9), layer(32, 32, size), snn.Leaky(beta=0.9))
    return nn.Sequential(nn.Linear(300, 256), snn.Leaky(beta=0.9), nn.Linear(256, 256), snn.Leaky(beta=0.9))


def loop(net, x):
    mem1, mem2, out = net[1].init_leaky(), net[3].init_leaky(), []
    for current in x:
        spk, mem1 = net[1](net[0](current), mem1)
        spk, mem2 = net[3](net[2](spk), mem2)
        out.append(mem2)
    return torch.stack(out)


@pytest.mark.slow
@pytest.mark.parametrize("layers", INPUTS)
@pytest.mark.parametrize("kind", ["multistep", pytest.param("compiled", marks=needs_backend)])
def test_networks_take_events_and_give_the_loops_numbers(kind, layers, taken):
    x = (torch.rand(10, 16, *INPUTS[layers]) < 0.05).float()
    results = []
    for way in (loop, kind):
        net = network(layers)
        if way == "multistep":
            out = snn.MultiStep(*net)(x)[1]
        else:
            out = (snn.compile(loop) if way == "compiled" else loop)(net, x)
        (out**2).sum().backward()
        results.append([out.detach(), *(p.grad for p in net.parameters())])
    scale = max(float(grad.abs().max()) for grad in results[0][1:])
    for actual, expected in zip(*results):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5 * scale)
    assert any(taken)
    taken.clear()
    with snn.dense_only():
        snn.MultiStep(*network(layers))(x)
    assert not any(taken)


def test_hooks_and_subclasses_keep_their_call():
    seen = []

    class Mine(nn.Linear):
        def forward(self, x):
            seen.append("mine")
            return super().forward(x)

    hooked = nn.Linear(300, 256)
    hooked.register_forward_hook(lambda *_: seen.append("hook"))
    x = (torch.rand(10, 16, 300) < 0.05).float()
    for layer in (Mine(300, 256), hooked):
        snn.MultiStep(layer, snn.Leaky(beta=0.9))(x)
    assert set(seen) == {"mine", "hook"}


@pytest.mark.parametrize("value", [1.0, 0.5])
def test_of_spikes_the_ids_alone_are_kept(events, value):
    x = value * (torch.rand(30, 40) < 0.2).float()
    x[3] = 0
    weight, upstream = torch.randn(20, 40, requires_grad=True), torch.randn(30, 20)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = sparse_input.linear(x, weight)
    assert events == [True]
    slots = [t for t in saved if t is not weight]
    assert [t.dtype for t in slots] == [torch.int32, *[torch.float32] * (value != 1), torch.int32]
    out.backward(upstream)
    torch.testing.assert_close(weight.grad, upstream.T @ x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_what_is_not_zero_is_counted(dtype):
    x = torch.tensor([[0.0, -0.0, 1e-45, -2.0], [float("nan"), float("inf"), 0.0, 1.0]])
    x = (x.nan_to_num() if dtype == torch.int64 else x).to(dtype)
    tensors = [x, x.t(), x[:, ::2], x[:0], x[0, 1]]
    tensors += [x.clone().requires_grad_(), torch.nn.Parameter(x.clone())] if dtype.is_floating_point else []
    for tensor in tensors:
        assert count_nonzero(tensor) == int(torch.count_nonzero(tensor))
