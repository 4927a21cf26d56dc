"""``SynapticDelay``: step by step, as a sequence and in a network, against its definition."""

import copy
import math

import pytest
import torch
from support.delays import TIGHT, shares
from support.loops import with_gradients
from support.tables import assert_refused, each_row
from support.versions import needs_backend
from torch import nn

import snnipu as snn
from snnipu import utils


def definition(x, delay, max_delay, kernel, sigma):
    by_lag = shares(delay, max_delay, kernel, sigma).reshape(max_delay + 1, -1, *[1] * (x.dim() - 3))
    rows = [sum(by_lag[lag] * x[t - lag] for lag in range(min(t, max_delay) + 1)) for t in range(len(x))]
    return torch.stack(rows)


@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
@pytest.mark.parametrize("shape", [(9, 2, 5), (4, 3, 5, 2, 3), (1, 1, 5)])
@pytest.mark.parametrize("max_delay", [0, 1, 6])
def test_steps_and_sequences_are_the_definition(kernel, shape, max_delay):
    delay = torch.rand(5, dtype=torch.float64) * max_delay
    delay[0], delay[1], delay[2] = 0, max_delay, max_delay // 2
    layer = snn.SynapticDelay(max_delay, delay, learn_delay=True, kernel=kernel, sigma=0.8)
    x = torch.randn(shape, dtype=torch.float64)
    expected = with_gradients(lambda layer, x: [definition(x, layer.delay, max_delay, kernel, 0.8)], layer, x)
    for run in (lambda layer, x: [torch.stack([layer(step) for step in x])], lambda layer, x: [layer.sequence(x)]):
        torch.testing.assert_close(with_gradients(run, layer, x), expected, **TIGHT)
        layer.reset_delay()


def test_one_delay_for_all_and_sequence_mode():
    x = torch.randn(6, 2, 3)
    layer = snn.SynapticDelay(4, 2, step_mode=False)
    assert torch.equal(layer(x)[2:], x[:-2])
    assert not layer(x)[:2].any()
    assert "delay" in layer.state_dict()
    each = snn.SynapticDelay(4, 2.0, channels=3, step_mode=False)
    assert torch.equal(each(x), layer(x))
    assert each.delay.shape == (3,)
    assert snn.SynapticDelay(4, 9.0).delay == 4  # clamped


def test_in_a_network_and_reset():
    x = (torch.rand(8, 2, 6) < 0.5).float()
    delay = snn.SynapticDelay(3, 1.5, channels=4, learn_delay=True)
    net = snn.MultiStep(nn.Linear(6, 4), snn.Leaky(beta=0.9, threshold=0.3), delay, nn.Linear(4, 2))
    out = net(x)
    assert torch.equal(net(x), out)  # the call before has no effect
    lif, mem = net[1], net[1].reset_mem()
    rows = []
    for step in x:
        spk, mem = lif(net[0](step), mem)
        rows.append(net[3](delay(spk)))
        spk.detach().zero_()
    torch.testing.assert_close(torch.stack(rows), out)
    out.square().sum().backward()
    assert delay.delay.grad.abs().sum() > 0
    assert copy.deepcopy(delay).delay.equal(delay.delay)
    utils.reset(net)
    assert not delay._last
    constant = snn.MultiStep(snn.SynapticDelay(3, 2.0))(x[0], num_steps=4)
    assert torch.equal(constant[2:], x[0].expand(2, 2, 6))
    assert not constant[:2].any()


def test_each_call_of_a_network_starts_anew_inside_modules_and_with_hooks():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.delay = snn.SynapticDelay(3, 2)

        def forward(self, x):
            return 2 * self.delay(x)

    x = torch.rand(5, 2, 3)
    wrapped, hooked = Wrapped(), snn.SynapticDelay(3, 2)
    hooked.register_forward_hook(lambda module, inputs, output: None)
    for module, factor in ((wrapped, 2), (hooked, 1)):
        net = snn.MultiStep(module)
        for _ in range(2):
            made = net(x)
            assert not made[:2].any()
            assert torch.equal(made[2:], factor * x[:-2])
    for module in (wrapped, snn.SynapticDelay(3, 2), snn.DelayLinear(3, 3, 2)):
        with pytest.raises((TypeError, ValueError), match="module 0"):
            snn.run_segments(snn.MultiStep(module, snn.Leaky(beta=0.9)), x, 2)


@pytest.mark.slow
@needs_backend
def test_a_compiled_loop_is_the_loop():
    """The loop starts with an empty delay, and continues from the previous call."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.delay = nn.Linear(6, 4), snn.SynapticDelay(3, 1.5, channels=4, learn_delay=True)
            self.lif = snn.Leaky(beta=0.9, threshold=0.3)

        def forward(self, x):
            mem, out = self.lif.reset_mem(), []
            for step in range(len(x)):
                _, mem = self.lif(self.delay(self.inp(x[step])), mem)
                out.append(mem)
            return torch.stack(out)

    torch.manual_seed(0)
    torch._dynamo.reset()
    net, x = Net(), (torch.rand(12, 2, 6) < 0.4).float()
    other = copy.deepcopy(net)
    compiled = snn.compile(other)
    for _ in range(3):
        for module, run in ((net, net), (other, compiled)):
            module.delay._last = [earlier.detach() for earlier in module.delay._last]
            module.zero_grad()
            module.made = run(x)
            module.made.square().sum().backward()
        torch.testing.assert_close(other.made, net.made)
        for actual, expected in zip(other.parameters(), net.parameters()):
            torch.testing.assert_close(actual.grad, expected.grad)


@each_row(r"""
snn.SynapticDelay(-1) | ValueError: max_delay must be at least 0
snn.SynapticDelay(3, "x") | TypeError: delay must be a number
snn.SynapticDelay(3, math.nan) | ValueError: delay must be finite
snn.SynapticDelay(3, torch.ones(2), channels=3) | ValueError: delay must have 1 or channels = 3 elements
snn.SynapticDelay(3, channels=0) | ValueError: channels must be at least 1
snn.SynapticDelay(3, channels=2.0) | TypeError: channels must be an int or None
snn.SynapticDelay(3, kernel="box") | ValueError: kernel
layer(x[:1]) | ValueError: x must have the shape \[2, 4\] of the step before .*, got \[1, 4\]
layer(x.double()) | ValueError: of the step before .torch.float32 on cpu., got .*float64 on cpu.: call reset
layer(torch.zeros(2, 5)) | ValueError: x must have shape \[B, C, ...\] of 4 channels, got \[2, 5\]
layer(x.long()) | TypeError: x must be a floating
""")
def test_bad_arguments_and_input(row):
    layer, x = snn.SynapticDelay(3, channels=4), torch.zeros(2, 4)
    layer(x)
    assert_refused(row, globals(), layer=layer, x=x)


@pytest.mark.parametrize("longest", [2, 4])
def test_another_longest_delay(longest):
    layer = snn.SynapticDelay(3, channels=4)
    layer(torch.zeros(2, 4))
    layer.max_delay = longest
    with pytest.raises(ValueError, match=f"max_delay was 3 at the step before, and is {longest}: call reset_delay"):
        layer(torch.zeros(2, 4))


@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
@pytest.mark.parametrize("max_delay", [0, 3])
def test_delays_that_are_not_finite(kernel, max_delay):
    """NaN gives NaN, in its channel alone; an infinite delay is clamped."""
    layer = snn.SynapticDelay(max_delay, torch.zeros(4), learn_delay=True, kernel=kernel)
    ends = copy.deepcopy(layer)
    with torch.no_grad():
        layer.delay.copy_(torch.tensor([math.nan, math.inf, -math.inf, 0]))
        ends.delay.copy_(torch.tensor([0.0, max_delay, 0, 0]))
    x = torch.rand(6, 2, 4)
    for actual, expected in (
        (layer.sequence(x), ends.sequence(x)),
        (torch.stack([layer(step) for step in x]), torch.stack([ends(step) for step in x])),
    ):
        assert actual[:, :, 0].isnan().all()
        assert torch.equal(actual[:, :, 1:], expected[:, :, 1:])
