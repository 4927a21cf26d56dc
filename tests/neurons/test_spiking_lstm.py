"""``snnipu.SLSTM`` and ``snnipu.SConv2dLSTM`` against snnTorch's loop."""

import copy
import pickle
import warnings

import pytest
import snntorch
import torch
from oracle import assert_all_equal, relative_error, with_threads
from support.loops import sequence, with_gradients
from support.tables import assert_refused, each_row
from support.versions import needs_backend

import snnipu as snn
from snnipu.backends import host
from snnipu.functional import quant
from snnipu.ops import spiking_lstm as op

pytestmark = pytest.mark.filterwarnings("ignore:SLSTM with input_size")
SHAPES = {"linear": (6, 3, 8), "forgetful": (6, 3, 5), "convolution": (5, 2, 3, 6, 7)}


def make(module, shape, **options):
    torch.manual_seed(1)
    if len(shape) == 5:
        return module.SConv2dLSTM(shape[2], 4, 3, **{"threshold": 0.05, **options})
    return module.SLSTM(shape[2], 8, **{"threshold": 0.05, **options})


def loop(neuron, x, *state):
    if not (state or neuron.init_hidden):
        neuron.syn, neuron.mem = torch.zeros(0, dtype=x.dtype), torch.zeros(0, dtype=x.dtype)
    outs = []
    for step in x:
        out = neuron(step, *state)
        state = () if neuron.init_hidden else out[1:]
        outs.append(out if isinstance(out, tuple) else (out,))
    return tuple(torch.stack(parts) for parts in zip(*outs))


def compare(shape, state=False, **options):
    """Compare ``sequence`` with snnTorch's loop in float32; in float64 both agree closely."""
    neuron, theirs = make(snn, shape, **options), make(snntorch, shape, **options)
    assert isinstance(neuron, type(theirs))
    assert list(neuron.state_dict()) == list(theirs.state_dict())
    torch.manual_seed(0)
    hidden = (shape[1], 8) if len(shape) == 3 else (shape[1], 4, *shape[3:])
    inputs = [torch.randn(shape) * 2, *(torch.randn(hidden) * 0.1 for _ in range(2 * state))]
    ours, desired = with_gradients(sequence, neuron, *inputs), with_gradients(loop, theirs, *inputs)
    assert ours[0][0].any()
    for actual, expected in zip((*ours[0], *ours[1]), (*desired[0], *desired[1])):
        assert (actual is None) == (expected is None)
        if expected is not None:
            assert actual.shape == expected.shape
            assert relative_error(actual, expected) <= 1e-5


@pytest.mark.parametrize("reset_mechanism", ["subtract", "zero", "none"])
@pytest.mark.parametrize("kind", SHAPES)
def test_equals_snntorchs_loop(kind, reset_mechanism):
    compare(SHAPES[kind], reset_mechanism=reset_mechanism)
    compare((1, *SHAPES[kind][1:]), reset_mechanism=reset_mechanism)
    if kind != "forgetful":
        compare(SHAPES[kind], state=True, reset_mechanism=reset_mechanism, learn_threshold=True)


@pytest.mark.parametrize("kind", SHAPES)
def test_options(kind):
    shape = SHAPES[kind]
    compare(shape, bias=False)
    compare(shape, spike_grad=snntorch.surrogate.fast_sigmoid())
    compare(shape, surrogate_disable=True)
    threshold = torch.linspace(0.01, 0.2, shape[-1] if len(shape) == 5 else 8)
    compare(shape, threshold=threshold, learn_threshold=True, reset_mechanism="subtract")
    if len(shape) == 5:
        compare(shape, max_pool=2, reset_mechanism="zero")
        compare(shape, avg_pool=2, reset_mechanism="subtract")


@pytest.mark.parametrize("library", [snntorch, snn])
def test_spikes_without_a_surrogate_require_no_gradient(library):
    lstm = library.SLSTM(4, 4, surrogate_disable=True)
    spk, syn, mem = lstm(torch.rand(2, 4, requires_grad=True), *lstm.reset_mem())
    assert not spk.requires_grad
    assert syn.requires_grad
    assert mem.requires_grad


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_quantized_states(kind):
    """Rounding may choose another level: most states are equal, and all are levels."""
    quantizer = quant.state_quant(4, threshold=0.5)
    quantized = make(snn, SHAPES[kind], state_quant=quantizer, reset_mechanism="subtract")
    assert quantized.runs_fused()
    x = torch.randn(SHAPES[kind])
    outs, expected = quantized.sequence(x), loop(quantized, x)
    for ours, desired in zip(outs, expected):
        assert (ours != desired).float().mean() < 0.01
    assert torch.isin(outs[1], quantizer.levels).all()


def test_long_inputs_go_in_parts(monkeypatch):
    neuron, x = make(snn, (7, 3, 8)), torch.randn(7, 3, 8)
    expected = neuron.sequence(x)
    lengths = []
    forward = op._fwd
    monkeypatch.setattr(op, "_CHUNK", 2 * 4 * 3 * 8)
    monkeypatch.setattr(op, "_fwd", lambda x, *others: lengths.append(len(x)) or forward(x, *others))
    neuron.sequence(x)
    with torch.no_grad():
        outputs = neuron.sequence(x)
    assert lengths == [7, 2, 2, 2, 1]
    torch.testing.assert_close(outputs, expected, rtol=1e-6, atol=1e-6)


def scattered(tensor):
    """Return the same numbers with a gap between them in memory."""
    return torch.stack([tensor, tensor + 1], -1)[..., 0]


def arguments(kind, reset=0, dtype=torch.float64, states=True, steps=None, threshold=0.05):
    """Return the arguments of ``spiking_lstm_fwd``."""
    neuron = make(snn, SHAPES[kind], bias=kind != "convolution" or steps is None).to(dtype)
    x = torch.randn(SHAPES[kind] if steps is None else SHAPES[kind][1:], dtype=dtype)
    cell, how = neuron._cell().plain()
    shape = neuron._cell().shape(SHAPES[kind][1:])
    syn, mem = (scattered(torch.randn(shape, dtype=dtype) * 0.1) if states else None for _ in range(2))
    cell = [None if tensor is None else tensor.detach() for tensor in cell]
    return [x, syn, mem, cell, list(how[0]) if how else [], torch.as_tensor(threshold, dtype=dtype), reset, steps]


CASES = [
    (kind, reset, states, steps)
    for kind in SHAPES
    for reset in range(3)
    for states, steps in ((True, None), (False, 3))
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "reset", "states", "steps"), CASES)
def test_the_kernels_are_the_reference(kind, reset, states, steps, dtype):
    inputs = arguments(kind, reset, dtype, states, steps)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-13}
    actual, expected = torch.ops.snnipu.spiking_lstm_fwd(*inputs), op.spiking_lstm_fwd_reference(*inputs)
    torch.testing.assert_close(actual, expected, **tolerance)
    assert not states or (inputs[2] > inputs[5]).any()
    grads = [scattered(torch.randn(expected[1].shape, dtype=dtype)) for _ in range(2)]
    for upstream in (grads, [grads[0], None], [None, grads[1]]):
        for needs in ([True] * (4 + len(inputs[3])), [False] * 4 + [True] * len(inputs[3]), [True, False] * 4):
            back = [*upstream, *expected, *inputs, needs[: 4 + len(inputs[3])]]
            gradients = torch.ops.snnipu.spiking_lstm_bwd(*back)
            torch.testing.assert_close(gradients, op.spiking_lstm_bwd_reference(*back), **tolerance)
            tensors = [*inputs[:3], inputs[5], *inputs[3]]
            for grad, need, tensor in zip([*gradients[:4], *gradients[4]], back[-1], tensors):
                shape = (
                    tensor.shape if need and tensor is not None and (tensor is not inputs[5] or reset == 0) else (0,)
                )
                assert grad.shape == shape


def test_a_gradient_is_each_parameters_own():
    neuron = make(snn, SHAPES["linear"])
    neuron.sequence(torch.randn(SHAPES["linear"]))[2].sum().backward()
    cell = neuron.lstm_cell
    assert torch.equal(cell.bias_ih.grad, cell.bias_hh.grad)
    cell.bias_ih.grad.zero_()
    assert cell.bias_hh.grad.any()


@pytest.mark.skipif(host.library is None, reason=host.unavailable_reason or "")
def test_threads_change_no_bit():
    inputs = arguments("linear", dtype=torch.float32, states=False)
    inputs[0] = torch.randn(2, 1200, 8)  # more rows than a thread takes together

    def run():
        outputs = torch.ops.snnipu.spiking_lstm_fwd(*inputs)
        back = (outputs[1], outputs[2], *outputs, *inputs, [True] * (4 + len(inputs[3])))
        grads = torch.ops.snnipu.spiking_lstm_bwd(*back)
        return [*outputs, *grads[:4], *grads[4][2:]]  # PyTorch computes the weights' products

    assert_all_equal(with_threads(run, (1, 3)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit(dtype):
    neuron, x = make(snn, SHAPES["linear"]), torch.randn(SHAPES["linear"])
    expected = neuron.sequence(x)
    outputs = neuron.to(dtype).sequence(x.to(dtype))
    outputs[2].sum().backward()
    assert outputs[2].dtype == neuron.lstm_cell.weight_hh.grad.dtype == dtype
    torch.testing.assert_close(outputs[2].float(), expected[2], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", SHAPES)
def test_gradients_of_what_is_the_same_at_all_steps(kind):
    """The input is constant, and the loss is a sum over time."""
    neuron = make(snn, SHAPES[kind], reset_mechanism="subtract").double()
    x = torch.randn(SHAPES[kind][1:], dtype=torch.float64, requires_grad=True)
    weight = torch.randn(neuron._cell().shape(x.shape), dtype=torch.float64)
    whole = neuron.sequence(x, num_steps=4)[2].sum(0) * weight
    steps = sum(neuron.sequence(x.expand(4, *x.shape))[2].clone().unbind()) * weight
    torch.testing.assert_close(whole, steps)
    leaves = [x, *neuron.parameters()]
    gradients, expected = (torch.autograd.grad(out.sum(), leaves, allow_unused=True) for out in (whole, steps))
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("reset_mechanism", ["subtract", "zero", "none"])
def test_a_threshold_without_a_part_in_the_loss_has_no_gradient(reset_mechanism):
    neuron = make(snn, SHAPES["linear"], reset_mechanism=reset_mechanism, learn_threshold=True)
    neuron.sequence(torch.randn(SHAPES["linear"]))[2].sum().backward()
    assert (neuron.threshold.grad is None) == (reset_mechanism != "subtract")


def test_autocast_multiplies_as_the_loop():
    neuron, x = make(snn, SHAPES["linear"]), torch.randn(SHAPES["linear"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        membranes = neuron.sequence(x)[2]
    assert membranes.dtype == torch.bfloat16
    torch.testing.assert_close(membranes.float(), neuron.sequence(x)[2], rtol=0.02, atol=0.02)


def test_a_cell_state_of_another_dtype():
    ours_lstm, theirs = (make(module, SHAPES["linear"]) for module in (snn, snntorch))
    x, (syn, mem) = torch.randn(1, 3, 8), torch.randn(2, 3, 8)
    actual = ours_lstm.sequence(x, syn.double(), mem)
    expected = theirs(x[0], syn.double(), mem)
    for ours, desired in zip(actual[1:], expected[1:]):
        assert ours.dtype == desired.dtype == torch.float64
        torch.testing.assert_close(ours[0], desired, rtol=1e-5, atol=1e-6)


def test_one_step_of_quantized_states_gives_all_weights_a_gradient():
    neuron = make(snn, SHAPES["linear"], state_quant=quant.state_quant(num_bits=8, thr_centered=False))
    neuron.sequence(torch.randn(1, 3, 8))[2].sum().backward()
    assert neuron.lstm_cell.weight_hh.grad is not None


@needs_backend
@pytest.mark.parametrize("kind", SHAPES)
def test_one_graph(kind):
    torch._dynamo.reset()
    neuron, x = make(snn, SHAPES[kind]), torch.randn(SHAPES[kind])
    compiled = torch.compile(sequence, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(*(with_gradients(run, neuron, x) for run in (compiled, sequence)))


@pytest.mark.parametrize("kind", SHAPES)
def test_hidden_states_go_on(kind):
    ours, theirs = (make(m, SHAPES[kind], init_hidden=True) for m in (snn, snntorch))
    x = torch.randn(SHAPES[kind])
    for part in x.split(2):
        spk, _, mem = ours.sequence(part)
        assert torch.equal(spk, loop(theirs, part)[0])
        assert relative_error(ours.mem, theirs.mem) <= 1e-5
        assert torch.equal(ours.mem, mem[-1])
    with pytest.raises(TypeError, match="init_hidden=True"):
        ours.sequence(x, ours.syn)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("options", [{}, {"init_hidden": True}, {"init_hidden": True, "output": True}])
def test_multistep_and_a_constant_input(kind, options):
    neuron = make(snn, SHAPES[kind], **options)
    x = torch.randn(SHAPES[kind])
    desired = loop(make(snntorch, SHAPES[kind], **options), x)
    out = snn.MultiStep(neuron)(x)
    out = out if isinstance(out, tuple) else (out,)
    assert len(out) == len(desired)
    for ours, expected in zip(out, desired):
        assert torch.allclose(ours, expected, atol=1e-5)
    constant = make(snn, SHAPES[kind], **options).sequence(x[0], num_steps=4)
    repeated = make(snn, SHAPES[kind], **options).sequence(x[:1].expand(4, *x.shape[1:]))
    for ours, expected in zip(constant, repeated):
        assert torch.allclose(ours, expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_what_is_replaced_or_hooked_runs_by_steps(kind):
    x = torch.randn(SHAPES[kind])
    neuron = make(snn, SHAPES[kind], reset_mechanism="subtract")
    expected = neuron.sequence(x)
    part = neuron.lstm_cell if kind == "linear" else neuron.conv
    calls = []
    handle = part.register_forward_hook(lambda *arguments: calls.append(1))
    for ours, desired in zip(neuron.sequence(x), expected):
        assert torch.allclose(ours, desired, atol=1e-5)
    assert len(calls) == len(x)
    handle.remove()
    neuron.fire = lambda mem: mem * 0 + 3
    with pytest.warns(UserWarning, match="replaces fire"):
        assert (neuron.sequence(x)[0] == 3).all()
    smooth = make(snn, SHAPES[kind], spike_grad=torch.sigmoid, reset_mechanism="subtract")
    for ours, desired in zip(
        smooth.sequence(x), loop(make(snntorch, SHAPES[kind], spike_grad=torch.sigmoid, reset_mechanism="subtract"), x)
    ):
        assert torch.allclose(ours, desired, atol=1e-5)


def test_pickles_and_copies():
    for kind, shape in SHAPES.items():
        neuron = make(snn, shape).double()
        x = torch.randn(shape, dtype=torch.float64)
        expected = neuron.sequence(x)
        if kind != "forgetful":  # snnTorch's step starts from float32 zeros
            neuron(x[0].requires_grad_(), *(state[0] for state in expected[1:]))
        for twin in (pickle.loads(pickle.dumps(neuron)), copy.deepcopy(neuron)):
            twin.reset_mem()
            assert torch.equal(twin.sequence(x)[2], expected[2])


def test_it_says_that_states_are_dropped():
    with pytest.warns(UserWarning, match="starts from zeros in every step"):
        snn.SLSTM(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snn.SLSTM(4, 4)


@each_row(r"""
snn.SLSTM(4, 4).sequence(torch.rand(2, 3, 5)) | ValueError: steps of shape \[B, 4\], got \(3, 5\)
snn.SLSTM(4, 4).sequence(torch.rand(0, 3, 4)) | ValueError: at least one time step
snn.SLSTM(4, 4).sequence([1]) | TypeError: x must be a torch.Tensor
snn.SLSTM(4, 4).sequence(torch.rand(2, 3, 4), torch.rand(3, 5)) | ValueError: syn must have shape
snn.SLSTM(4, 4).sequence(torch.rand(2, 3, 4), mem=3.0) | TypeError: mem must be a torch.Tensor
snn.SLSTM(4, 4, spike_grad=3) | TypeError: spike_grad must be callable
snn.SLSTM(4, 4, reset_mechanism="no") | ValueError: reset_mechanism must be
snn.SConv2dLSTM(2, 3, 3).sequence(torch.rand(2, 3, 4)) | ValueError: \[B, 2, H, W\]
snn.SConv2dLSTM(2, 3, 2).sequence(torch.rand(2, 1, 2, 4, 4)) | ValueError: kernel_size must be odd
""")
def test_bad_input(row):
    assert_refused(row, globals())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_reset_signal_is_snntorchs(dtype):
    ours, theirs = snn.SLSTM(4, 4), snntorch.SLSTM(4, 4)
    mem = torch.tensor([0.5, 1.0, 1.5, float("nan")], dtype=dtype, requires_grad=True)
    signal, expected = ours.mem_reset(mem), theirs.mem_reset(mem)
    assert torch.equal(signal, expected)
    assert signal.dtype == expected.dtype
    assert not signal.requires_grad


def test_a_reset_signal_of_ones_own_stays(monkeypatch):
    monkeypatch.setattr(snntorch.SpikingNeuron, "mem_reset", lambda self, mem: torch.full_like(mem, 0.5))
    assert torch.equal(snn.SLSTM(4, 4).mem_reset(torch.zeros(2, 4)), torch.full((2, 4), 0.5))
    monkeypatch.undo()
    layer = snn.SLSTM(4, 4, spike_grad=lambda u: u * 2)
    assert torch.equal(layer.mem_reset(torch.ones(2, 4) * 3), torch.full((2, 4), 4.0))
