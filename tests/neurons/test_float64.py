"""Recurrent neurons and spiking LSTMs in float64, where snnTorch 1.0 loses the dtype between steps and fails.

The expected results are those of snnTorch's code, with float64 as the default dtype and a surrogate that keeps it.
"""

import pytest
import snntorch
import torch
from torch import nn

import snnipu as snn
from snnipu._names import installed

STEPS, BATCH, SIZE = 4, 2, 4
F64 = torch.float64
LSTM = {"threshold": 0.125, "input_size": SIZE, "hidden_size": SIZE}
CONV_LSTM = {"threshold": 0.125, "in_channels": 2, "out_channels": 2, "kernel_size": 3}
KINDS = {
    "SLSTM": ("SLSTM", LSTM),
    "SLSTM, to zero": ("SLSTM", {**LSTM, "reset_mechanism": "zero"}),
    "SLSTM, by subtraction": ("SLSTM", {**LSTM, "reset_mechanism": "subtract"}),
    "SLSTM, of two sizes": ("SLSTM", {**LSTM, "threshold": -0.125, "hidden_size": 3}),
    "SConv2dLSTM": ("SConv2dLSTM", {**CONV_LSTM, "max_pool": 2}),
    "SConv2dLSTM, to zero": ("SConv2dLSTM", {**CONV_LSTM, "reset_mechanism": "zero"}),
    "RLeaky": ("RLeaky", {"beta": 0.75, "linear_features": SIZE}),
    "RLeaky, to zero": ("RLeaky", {"beta": 0.75, "linear_features": SIZE, "reset_mechanism": "zero"}),
    "RLeaky, at once": ("RLeaky", {"beta": 0.75, "linear_features": SIZE, "reset_delay": False}),
    "RLeaky, maps": ("RLeaky", {"beta": 0.75, "conv2d_channels": 2, "kernel_size": 3}),
    "RLeaky, one to one": ("RLeaky", {"beta": 0.75, "V": 0.5, "all_to_all": False}),
    "RSynaptic": ("RSynaptic", {"alpha": 0.75, "beta": 0.5, "linear_features": SIZE}),
    "RSynaptic, maps": ("RSynaptic", {"alpha": 0.75, "beta": 0.5, "conv2d_channels": 2, "kernel_size": 3}),
}
pytestmark = pytest.mark.filterwarnings("ignore:SLSTM with input_size", "ignore::torch.jit.TracerWarning")


def keeping(u):
    return snntorch.surrogate.atan()(u).to(u.dtype)


def make(module, name, **how):
    kind, keywords = KINDS[name]
    torch.manual_seed(0)
    return getattr(module, kind)(**keywords, **how).to(F64)


def current(name):
    torch.manual_seed(1)
    maps = "maps" in name or "Conv" in name
    return (3 * torch.rand(STEPS, BATCH, *((2, 4, 4) if maps else (SIZE,)), dtype=F64)).requires_grad_()


class Loop(nn.Module):
    def __init__(self, neuron):
        super().__init__()
        self.neuron = neuron

    def forward(self, x):
        states, outs = self.neuron.reset_mem(), []
        for t in range(len(x)):
            out = self.neuron(x[t], *states)
            states = out if isinstance(self.neuron, (snntorch.RLeaky, snntorch.RSynaptic)) else out[1:]
            outs.append(out)
        return [torch.stack(parts) for parts in zip(*outs)]


@pytest.fixture
def expected():
    """Return a function that computes results and gradients of a named neuron by snnTorch's code."""

    def compute(name):
        neuron, x = make(snntorch, name, spike_grad=keeping), current(name)
        torch.set_default_dtype(F64)
        try:
            out = Loop(neuron)(x)
            return out, gradients(out, x, neuron)
        finally:
            torch.set_default_dtype(torch.float32)

    return compute


def gradients(out, x, neuron):
    loss = sum(
        (part.to(F64) * torch.linspace(-1, 1, part.numel(), dtype=F64).reshape(part.shape)).sum() for part in out
    )
    return torch.autograd.grad(loss, [x, *neuron.parameters()])


def assert_close(actual, desired, tolerance=1e-12):
    for a, b in zip(actual, desired):
        assert a.dtype == b.dtype == F64
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def assert_is_loop(out, expected):
    """Check equality bit by bit; spikes have snnTorch's dtype."""
    assert [part.dtype for part in out] == [installed.spike_dtype(F64), *[F64] * (len(out) - 1)]
    assert all(torch.equal(actual.to(F64), desired) for actual, desired in zip(out, expected))
    assert out[0].any()


# snnTorch's spikes before a product or a strength round gradients to float32.
ROUNDS = 1e-12 if installed.SPIKES_KEEP_DTYPE else 1e-6


@pytest.mark.parametrize(
    "how",
    [{}, {"spike_grad": keeping}, {"spike_grad": lambda u: keeping(u).float()}],
    ids=["", "a surrogate in float64", "a surrogate in float32"],
)
@pytest.mark.parametrize("name", KINDS)
def test_a_loop(name, how, expected):
    outputs, wanted_gradients = expected(name)
    neuron, x = make(snn, name, **how), current(name)
    out = Loop(neuron)(x)
    if how.get("spike_grad") is keeping:
        out[0] = out[0].to(installed.spike_dtype(F64))
    assert_is_loop(out, outputs)
    assert_close(gradients(out, x, neuron), wanted_gradients, ROUNDS)


@pytest.mark.parametrize("name", KINDS)
def test_hidden_states(name, expected):
    outputs, _ = expected(name)
    neuron, x = make(snn, name, init_hidden=True), current(name)
    spikes = torch.stack([neuron(step) for step in x])
    assert_is_loop([spikes, neuron.mem.expand_as(outputs[-1])], [outputs[0], outputs[-1][-1:].expand_as(outputs[-1])])


@pytest.mark.parametrize("steps_differ", [False, True], ids=["", "by steps"])
@pytest.mark.parametrize("name", KINDS)
def test_sequences_are_of_the_inputs_dtype(name, steps_differ, expected):
    outputs, wanted_gradients = expected(name)
    how = {"spike_grad": lambda u: keeping(u).float()} if steps_differ else {}
    neuron, x = make(snn, name, **how), current(name)
    out = neuron.sequence(x)
    assert_close(out, outputs)
    assert_close(gradients(out, x, neuron), wanted_gradients, ROUNDS)
    assert_close(snn.MultiStep(neuron)(x), outputs)


@pytest.mark.parametrize("name", KINDS)
def test_quantized_states(name):
    quantizer = snn.functional.quant.state_quant(num_bits=8)
    levels = quantizer.levels.to(F64)
    neuron, x = make(snn, name, state_quant=snn.functional.quant.StateQuant(levels)), current(name)
    spk, *states = Loop(neuron)(x)
    assert [state.dtype for state in states] == [F64] * len(states)
    if neuron.__dict__.get("reset_delay", True):  # else the reset follows the quantizer
        assert all(torch.isin(state, levels).all() for state in states)
    neuron.state_quant = quantizer  # levels in float32
    assert Loop(neuron)(x)[0].shape == spk.shape


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_traces(name, expected):
    outputs, _ = expected(name)
    traced = torch.jit.trace(Loop(make(snn, name)), (current(name),), strict=False)
    assert_is_loop(traced(current(name)), outputs)


@pytest.mark.parametrize("name", ["SLSTM", "SLSTM, of two sizes", "SConv2dLSTM", "RLeaky", "RSynaptic"])
def test_compiled_loops(name, expected):
    if snn.compiler.backend.version() < snn.compiler.backend.OLDEST:
        pytest.skip("this PyTorch is too old for the compiler")
    outputs, _ = expected(name)
    assert_is_loop(snn.compile(Loop(make(snn, name)))(current(name)), outputs)
    torch._dynamo.reset()
    assert_is_loop(torch.compile(Loop(make(snn, name)), backend="eager")(current(name)), outputs)
