"""Loops over neurons of each class: the steps become one operator."""

import copy

import pytest
import torch
from support.loops import compared, network, rolled, times
from support.versions import needs_backend
from torch import nn

import snnipu as snn
from snnipu import backends, surrogate

pytestmark = [needs_backend, pytest.mark.usefixtures("found"), pytest.mark.filterwarnings("ignore:.*replaces")]
STEPS, BATCH, WIDTH = 5, 3, 4
HOW = {"threshold": 0.1, "spike_grad": surrogate.fast_sigmoid(slope=5)}
RECURRENT = {"beta": 0.8, "linear_features": WIDTH}
MAPS = {"beta": 0.8, "conv2d_channels": 2, "kernel_size": 3}
LEARNT = {"learn_beta": True, "learn_threshold": True}
CELL, MAP_CELL = {"input_size": WIDTH, "hidden_size": WIDTH}, {"in_channels": 2, "out_channels": 2, "kernel_size": 3}
NEURONS = {
    "rleaky": ("RLeaky", RECURRENT),
    "rleaky zero": ("RLeaky", {**RECURRENT, "reset_mechanism": "zero"}),
    "rleaky undelayed": ("RLeaky", {**RECURRENT, "reset_delay": False}),
    "rleaky learnt": ("RLeaky", {**RECURRENT, "beta": torch.full((WIDTH,), 0.7), **LEARNT}),
    "rsynaptic": ("RSynaptic", {"alpha": 0.7, **RECURRENT}),
    "one to one": ("RLeaky", {"beta": 0.8, "all_to_all": False, "V": torch.rand(WIDTH)}),
    "slstm": ("SLSTM", CELL),
    "slstm subtract": ("SLSTM", {**CELL, "reset_mechanism": "subtract", "learn_threshold": True}),
    "slstm zero": ("SLSTM", {**CELL, "bias": False, "reset_mechanism": "zero"}),
    "lapicque": ("Lapicque", {"R": 5.1, "C": 5e-3, "time_step": 1e-3}),
    "rleaky conv": ("RLeaky", MAPS),
    "rsynaptic conv": ("RSynaptic", {"alpha": 0.7, **MAPS}),
    "sconv2dlstm": ("SConv2dLSTM", {**MAP_CELL, "reset_mechanism": "subtract"}),
    "sconv2dlstm pooled": ("SConv2dLSTM", {**MAP_CELL, "out_channels": 3, "max_pool": 2}),
}


def neuron_of(name, **how):
    kind, options = NEURONS[name]
    return getattr(snn, kind)(**copy.deepcopy(options), **HOW, **how)


class Several(nn.Module):
    """Parallel neurons of vectors or maps, whose results of all steps are stacked.

    Args:
        start: ``reset``, ``hidden``, or ``given``: the initial states are parameters.
    """

    def __init__(self, names, start):
        super().__init__()
        self.maps, self.start, self.front = ["conv" in name for name in names], start, nn.Linear(WIDTH, WIDTH)
        how = {"init_hidden": True, "output": True} if start == "hidden" else {}
        self.neurons = nn.ModuleList(neuron_of(name, **how) for name in names)
        self.given = nn.ParameterList(torch.rand(1, *((2, 6, 4) if maps else (WIDTH,))) for maps in self.maps)

    def forward(self, x):
        states = [neuron.reset_mem() for neuron in self.neurons]
        states = [state if isinstance(state, tuple) else (state,) for state in states]
        if self.start == "given":
            one = x.new_ones(x.shape[1], 1)
            states = [[one.view(-1, *[1] * (g.dim() - 1)) * g for _ in s] for s, g in zip(states, self.given)]
        rows = [[] for _ in states]
        for now in x:
            now = self.front(now)
            for i, neuron in enumerate(self.neurons):
                inputs = now if self.maps[i] else now[:, 0, 0]
                results = neuron(inputs) if self.start == "hidden" else neuron(inputs, *states[i])
                states[i] = results[len(results) - len(states[i]) :]
                rows[i].append(results)
        return [torch.stack(one) for row in rows for one in zip(*row)]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["reset", "hidden", "given"])
@pytest.mark.parametrize("maps", [False, True])
def test_a_loop_over_neurons_is_one_operator_each(maps, start):
    names = [name for name in NEURONS if maps == ("conv" in name)]
    if start == "given":
        names = [name for name in names if name != "sconv2dlstm pooled"]  # of another shape
    report = compared(Several(names, start), torch.randn(STEPS, BATCH, 2, 6, 4), rtol=1e-4, atol=1e-5)
    assert rolled(report) == [(STEPS - 1, True)] * len(names), report


@pytest.mark.slow
def test_results_are_no_memory_of_the_backward_pass():
    net, x = Several([name for name in NEURONS if "conv" not in name], "reset"), torch.randn(STEPS, BATCH, 2, 6, 4)
    expected = torch.autograd.grad(sum((one * 1.5).sum() for one in net(x)), net.front.weight)
    compiled = snn.compile(net)
    for _ in range(2):
        out = compiled(x)
        loss = sum((one * 1.5).sum() for one in out)
        for one in out:
            one.data.fill_(7)
        torch.testing.assert_close(torch.autograd.grad(loss, net.front.weight), expected, rtol=1e-4, atol=1e-4)


def count(module, given, out):
    module.calls = getattr(module, "calls", 0) + 1


class Halved(snn.RLeaky):
    """A neuron that adds operations before and after its step."""

    def forward(self, x, *states):
        spk, mem = super().forward(x / 2, *states)
        return spk, mem


class LouderCell(snn.SLSTM):
    """A neuron whose subclass replaces a part of the step by operations without an equation."""

    def fire(self, mem):
        return super().fire(mem * 2)


class Louder(snn.Synaptic):
    """A neuron whose subclass replaces a part of the step, which is recorded as a new neuron."""

    def _base_state_function(self, input_):
        return super()._base_state_function(input_ * 2)


# A neuron, the module that has a hook, and True if the steps are one operator.
CHANGED = {
    "a hook on the recurrent layer": (lambda: neuron_of("rleaky"), "recurrent", False),
    "a hook on the neuron": (lambda: neuron_of("slstm"), "", False),
    "around": (lambda: Halved(**RECURRENT, **HOW), None, True),
    "a part": (lambda: LouderCell(WIDTH, WIDTH, **HOW), None, False),
    "another part": (lambda: Louder(alpha=0.7, beta=0.8, **HOW), None, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHANGED)
def test_hooks_and_subclasses(kind):
    make, hooked, is_one = CHANGED[kind]
    neuron = make()
    if hooked is not None:
        neuron.get_submodule(hooked).register_forward_hook(count)
    step = "made = self.neuron(x[t], *states)\nstates = made[len(made) - len(states) :]\nmem = states[-1]"
    start = "states = self.neuron.reset_mem()\nstates = states if isinstance(states, tuple) else (states,)"
    net = network(step, "self.neuron = neuron", start, "torch.stack(rec), made[0]", neuron=neuron)
    report = compared(net, torch.randn(STEPS, BATCH, WIDTH))
    (loop,) = report.loops
    assert rolled(report) == [(STEPS - 1, True)] or (not is_one and loop.runs_as != "compiled"), report


def test_kernels_of_a_gpu_are_looked_for_as_a_graph_is_made():
    """TorchDynamo does not trace the search for kernels, because it cannot trace an import."""

    @torch.compile(backend="eager", fullgraph=True)
    def shifted(x):
        return x + 1 if backends.has_kernels(torch.device("cuda")) else x - 1

    expected = 1 if backends.triton.unavailable_reason() is None else -1
    assert shifted(torch.zeros(2)).tolist() == [expected] * 2


@pytest.mark.slow
def test_a_spike_function_runs_over_time():
    step = "spk, mem = self.lif(self.spike(self.map(x[t])) * 3, mem)"
    report = compared(network(step, "self.spike = surrogate.fast_sigmoid(slope=5)"), torch.randn(STEPS, BATCH, 6))
    assert times(report, "spike_of") == (STEPS - 1, 1)


@pytest.mark.parametrize("step", [0, 2])
def test_a_state_given_to_a_layer_that_hides_it_is_an_error(step):
    body = f"mem = self.hides(x[t]) if t != {step} else self.hides(x[t], x[t])"
    net = network(body, "self.hides = snn.Leaky(beta=0.9, init_hidden=True)")
    for call in (net, snn.compile(net)):
        with pytest.raises(TypeError, match="should not be passed"):
            call(torch.rand(STEPS, BATCH, 6))
