"""The equations, looped under autograd, against snnTorch's modules: bit by bit."""

import inspect

import pytest
import snntorch
import torch

from snnipu import equations
from snnipu._names.stock import stock

STEPS, BATCH, NEURONS = 7, 3, 11


def per_neuron(low, high):
    return torch.linspace(low, high, NEURONS)


# The module of each neuron and what it is made with. V, per neuron, is set as its constructor leaves it.
MODULES = {
    equations.leaky: (snntorch.Leaky, {"beta": per_neuron(-0.1, 1.1), "learn_beta": True, "learn_threshold": True}),
    equations.lapicque: (snntorch.Lapicque, {"R": 5.1, "C": 2e-1, "time_step": 1e-1, "learn_threshold": True}),
    equations.synaptic: (
        snntorch.Synaptic,
        {"alpha": per_neuron(0.3, 1.1), "beta": 0.8, "learn_alpha": True, "learn_beta": True, "learn_threshold": True},
    ),
    equations.alpha: (
        snntorch.Alpha,
        {"alpha": per_neuron(0.7, 0.95), "beta": 0.6, "learn_beta": True, "learn_threshold": True},
    ),
    equations.rleaky: (
        snntorch.RLeaky,
        {"beta": 0.85, "V": per_neuron(-1, 1), "all_to_all": False, "learn_beta": True, "learn_threshold": True},
    ),
    equations.rsynaptic: (
        snntorch.RSynaptic,
        {"alpha": 0.7, "beta": per_neuron(0.4, 1.1), "V": 0.6, "all_to_all": False, "learn_alpha": True},
    ),
    equations.delta_leaky: (
        stock("DeltaLeaky"),
        {"delta_threshold": 0.5, "beta": per_neuron(0.2, 1.1), "learn_beta": True},
    ),
}


def signature(function):
    """Names of the states, the parameters and the options of an equation."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    states = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    tensors = [p.name for p in keywords if p.default is p.empty and p.name != "spike"]
    return states, tensors, [p.name for p in keywords if p.default is not p.empty]


def cases():
    for function in equations.NEURONS:
        options = signature(function)[2]
        for mechanism in equations.OPTIONS["reset_mechanism"] if "reset_mechanism" in options else (None,):
            for delay in equations.OPTIONS["reset_delay"] if "reset_delay" in options else (None,):
                chosen = {"reset_mechanism": mechanism, "reset_delay": delay}
                chosen = {name: value for name, value in chosen.items() if value is not None}
                yield pytest.param(function, chosen, id="-".join([function.__name__, *map(str, chosen.values())]))


def loop(step, x, states):
    """Spikes and states of every step, and their sum with random weights, from which gradients flow."""
    recorded = []
    for current in x:
        spk, states = step(current, states)
        recorded.append((spk, *states))
    outputs = [torch.stack(values) for values in zip(*recorded)]
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in outputs]
    return outputs, sum((output * weight).sum() for output, weight in zip(outputs, weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("function", "options"), list(cases()))
def test_equations_are_snntorchs(function, options, dtype):
    kind, keywords = MODULES[function]
    layer = kind(**keywords, **options)
    names, parameters, _ = signature(function)
    if function is equations.leaky and options["reset_delay"]:
        layer.graded_spikes_factor = torch.nn.Parameter(per_neuron(0.5, 1.5))
    generator = torch.Generator().manual_seed(3)
    shape = (STEPS, BATCH, NEURONS)
    x = torch.randn(shape, generator=generator, dtype=dtype).mul_(1.5).requires_grad_()
    initial = [torch.randn(shape[1:], generator=generator, dtype=dtype).requires_grad_() for _ in names]
    values = {}
    for name in parameters:
        value = getattr(layer, name)
        values[name] = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    learnt = {name: value for name, value in values.items() if value.requires_grad}

    def module_step(current, states):
        if kind is stock("DeltaLeaky"):
            return layer(current, states)
        spk, *after = layer(current, *states)
        return spk, ([spk, *after] if names[0] == "spk" else after)

    def own_step(current, states):
        spk, *after = function(current, *states, **values, spike=layer.spike_grad, **options)
        return spk, ([spk, *after] if names[0] == "spk" else after)

    expected, wanted = loop(module_step, x, initial)
    found, total = loop(own_step, x, initial)
    assert 0.02 < (expected[0] != 0).float().mean() < 0.98
    for name, one, other in zip(["spk", *names], found, expected):
        assert torch.equal(one, other), name
    inputs = [x, *initial, *learnt.values()]
    names = ["x", *names, *learnt]
    expected = torch.autograd.grad(wanted, inputs, allow_unused=True)
    found = torch.autograd.grad(total, inputs, allow_unused=True)
    # For a reset to zero snnTorch computes the new state twice: both gradients cancel but for rounding, that of the
    # float32 spikes. Alpha takes its decays four times over, and its parameters' gradients are added in that order.
    twice = options.get("reset_mechanism") == "zero" and function is not equations.leaky
    twice = twice or (function is equations.alpha and options["reset_mechanism"] == "subtract")
    for name, one, other in zip(names, found, expected):
        assert (one is None) == (other is None), name
        if one is None:
            continue
        if twice or (function is equations.alpha and name in learnt):
            assert (one - other).abs().max().item() <= 1e-6 * max(1, other.abs().max().item()), name
        else:
            assert torch.equal(one, other), name
