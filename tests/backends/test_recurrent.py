"""Recurrence on the CPU: one call for a sequence equals a call per step bit by bit."""

import ctypes

import pytest
import torch
from torch import nn

import snnipu as snn
from snnipu import surrogate
from snnipu.backends import host, kernels, neurons, recurrent
from snnipu.ops import recurrent_sequence
from snnipu.ops.neuron_sequence import neuron_apply
from snnipu.ops.recurrent_sequence import RecurrentConnection

pytestmark = pytest.mark.skipif(
    host.library is None or recurrent._gemm(torch.float32) is None, reason="this PyTorch shows no product of its BLAS"
)
STEPS = 7
# Rows and features: odd sizes give unaligned rows.
SIZES = [(1, 5), (3, 7), (4, 16), (33, 65)]
DTYPES = [torch.float32, torch.float64]
KINDS = ["plain", "bias", "spaced bias", "transposed", "states", "constant", "one step", "few stored"]
# Adjoints that read the recurrent input and the input.
KINDS += ["reset at once", "reset at once, constant"]
SUBTRACTED = {"reset_mechanism": "subtract"}
NEURONS = {
    "leaky": (2, {"beta": 0.8, "threshold": 0.4, "graded_spikes_factor": 1.0}),
    "synaptic": (3, {"alpha": 0.6, "beta": 0.8, "threshold": 0.4, "graded_spikes_factor": 1.0}),
    "rleaky": (2, {"beta": 0.8, "threshold": 0.4, "graded_spikes_factor": 1.0}),
    "rsynaptic": (3, {"alpha": 0.6, "beta": 0.8, "threshold": 0.4, "graded_spikes_factor": 1.0}),
}


@pytest.fixture
def calls(monkeypatch):
    """Record the native calls that run all steps."""
    directions = []
    for name in ("forward", "backward"):
        plain = getattr(recurrent, name)

        def counted(*arguments, plain=plain, name=name):
            result = plain(*arguments)
            directions.extend([name] * (result is not None))
            return result

        monkeypatch.setattr(recurrent, name, counted)
    return directions


def parameters_of(neuron, size=(), dtype=torch.float32):
    """Return parameters of a value, or of a value for each neuron, that learn."""
    return {
        name: torch.full(size, value, dtype=dtype, requires_grad=True) for name, value in NEURONS[neuron][1].items()
    }


def apply(neuron, x, states, connection, parameters, reset_delay=True, **keywords):
    """Call the operator; the states None are zeros."""
    return neuron_apply(
        neuron,
        x,
        states or [None] * NEURONS[neuron][0],
        parameters,
        connection=connection,
        options=SUBTRACTED if neuron == "rsynaptic" else {**SUBTRACTED, "reset_delay": reset_delay},
        spike_grad=surrogate.fast_sigmoid(slope=5),
        **keywords,
    )


def run_recurrent(neuron, x, states, connection, learnt, reset_delay=True, **keywords):
    """Return all results, final states included, and the gradients of all inputs."""
    out = apply(neuron, x, states, connection, learnt, reset_delay, need_final=True, **keywords)
    results = [
        tensor for part in out if part is not None for tensor in (part if isinstance(part, (list, tuple)) else [part])
    ]
    results = [tensor for tensor in results if tensor is not None and tensor.numel()]
    generator = torch.Generator().manual_seed(2)
    loss = sum(
        (tensor * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)).sum() for tensor in results
    )
    inputs = [x, *(states or ()), connection.weight, connection.bias, *learnt.values()]
    inputs = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
    return results, torch.autograd.grad(loss, inputs, allow_unused=True)


def filled(like, shape):
    """Return result memory full of NaN, which shows each element that is not written."""
    return like.new_full(shape, torch.nan)


def run_both(monkeypatch, compute, *arguments, **keywords):
    """Compute with one call for the sequence, and with one call per step."""
    with monkeypatch.context() as patched:
        patched.setattr(kernels, "_LOOP_FUNCTIONS", kernels._LOOP_FUNCTIONS._replace(empty=filled))
        at_once = compute(*arguments, **keywords)
        patched.setattr(
            kernels,
            "_LOOP_FUNCTIONS",
            kernels._LOOP_FUNCTIONS._replace(forward=lambda *a: None, backward=lambda *a: None),
        )
        return at_once, compute(*arguments, **keywords)


def assert_equal(actual, other):
    for ours, theirs in zip((*actual[0], *actual[1]), (*other[0], *other[1])):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "features"), SIZES)
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_call_gives_the_bits_of_single_ones(neuron, kind, rows, features, dtype, monkeypatch, calls):
    count = NEURONS[neuron][0]
    weight = nn.Parameter(torch.randn(features, features, dtype=dtype) / 2)
    bias = nn.Parameter((torch.randn(features, 2, dtype=dtype) / 2)[:, 0]) if "bias" in kind else None
    if kind == "bias":
        bias = nn.Parameter(bias.detach().contiguous())
    steps = 1 if kind == "one step" else STEPS
    constant = kind.endswith("constant")
    x = torch.randn(*(() if constant else (steps,)), rows, features, dtype=dtype, requires_grad=True)
    states = None
    if kind in ("states", "one step"):
        states = [torch.randn(rows, features, dtype=dtype).relu().requires_grad_() for _ in range(count)]
    connection = RecurrentConnection(weight.t() if kind == "transposed" else weight, bias)
    store = [place == 0 for place in range(count)] if kind == "few stored" else None
    keywords = {"num_steps": STEPS if constant else None, "store": store, "reset_delay": "at once" not in kind}
    learnt = parameters_of(neuron, (features,), dtype)
    at_once, other = run_both(monkeypatch, run_recurrent, neuron, x, states, connection, learnt, **keywords)
    assert_equal(at_once, other)
    assert at_once[0][0].any()
    assert calls == ["forward", "backward"]


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("same", [(True, True), (True, False), (False, True)], ids=["both", "spikes", "states"])
def test_a_gradient_that_is_the_same_at_every_step(same, neuron, monkeypatch, calls):
    parameters, x = parameters_of(neuron), torch.randn(STEPS, 3, 6, requires_grad=True)
    connection = RecurrentConnection(nn.Parameter(torch.randn(6, 6) / 2), None)
    weights = torch.randn(STEPS, 3, 6)

    def gradients():
        out = apply(neuron, x, None, connection, parameters)
        rows = [(out.spk, same[0]), *((state, same[1]) for state in out.states[1:])]
        loss = sum((row if constant else row * weights).sum() for row, constant in rows)
        return (), torch.autograd.grad(loss, [x, connection.weight, *parameters.values()])

    assert_equal(*run_both(monkeypatch, gradients))
    assert calls == ["forward", "backward"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reset_delay", [True, False])
@pytest.mark.parametrize("neuron", NEURONS)
def test_16_bit_steps_are_the_references(neuron, reset_delay, dtype, monkeypatch):
    x = torch.randn(STEPS, 3, 6, dtype=dtype, requires_grad=True)
    weight, bias = torch.randn(6, 6, dtype=dtype) / 2, torch.randn(6, dtype=dtype)
    connection = RecurrentConnection(nn.Parameter(weight), nn.Parameter(bias))
    arguments = (neuron, x, None, connection, parameters_of(neuron, (6,)), reset_delay)
    ours = run_recurrent(*arguments)
    monkeypatch.setattr(kernels, "_LOOP_FUNCTIONS", recurrent_sequence._REFERENCE)
    expected = run_recurrent(*arguments)
    assert ours[0][0].any()
    assert all(map(torch.equal, ours[0], expected[0]))
    torch.testing.assert_close(ours[1], expected[1])


@pytest.mark.parametrize("bias", [torch.zeros(6, dtype=torch.float64), torch.zeros(5)], ids=["dtype", "size"])
def test_a_bias_that_does_not_fit_is_pytorchs_error(bias):
    connection = RecurrentConnection(torch.zeros(6, 6), bias)
    with pytest.raises(RuntimeError):
        apply("leaky", torch.zeros(2, 3, 6), [torch.zeros(3, 6), None], connection, parameters_of("leaky"))


@pytest.mark.parametrize(
    "kind", ["16 bit", "one vector", "large", "precision", "other weights", "one bias", "columns", "no product"]
)
def test_what_runs_step_by_step(kind, monkeypatch, calls):
    dtype = torch.bfloat16 if kind == "16 bit" else torch.float32
    features = 300 if kind == "large" else 6
    rows = (1 << 16) // features + 1 if kind == "large" else 3
    x = torch.randn(2, *(() if kind == "one vector" else (rows,)), features, dtype=dtype)
    if kind == "columns":
        x = x.mT.contiguous().mT
    weight = torch.randn(features, 2 * features if kind == "other weights" else features, dtype=dtype)
    if kind == "other weights":
        weight = weight[:, ::2]
    if kind == "precision":
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    if kind == "no product":
        monkeypatch.setattr(recurrent, "_gemm", lambda dtype: None)
    bias = torch.tensor([0.5]) if kind == "one bias" else None  # which PyTorch broadcasts
    out = apply("leaky", x, None, RecurrentConnection(weight, bias), parameters_of("leaky"))
    assert out.spk.shape == x.shape
    assert not calls


def test_the_struct_is_the_librarys():
    assert host.library.snnipu_recurrent_call_size() == ctypes.sizeof(recurrent.Call)


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_a_step_that_gets_no_memory_is_an_error(name, monkeypatch, calls):
    failing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda call: 2)
    lookup = kernels._kernels_of
    monkeypatch.setattr(kernels, "_kernels_of", lambda *a: lookup(*a)._replace(**{name: failing}))
    layer = snn.RLeaky(beta=0.8, linear_features=6)
    with pytest.raises(host.OutOfMemoryError, match="neuron_recurrent"):
        layer.spikes(torch.ones(STEPS, 3, 6)).sum().backward()


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_a_type_that_blas_does_not_have_is_refused(name):
    steps = neurons.NeuronCall(neurons.built_in_kernels(0), 0, torch.float16, 1, 1, False)
    call = recurrent.Call(all=steps.words.buffer_info()[0])
    assert getattr(host.library, f"snnipu_recurrent_{name}")(ctypes.byref(call)) == 1
