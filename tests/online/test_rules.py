"""Every rule against explicit steps, for every neuron, in chunks of any length."""

import pytest
import torch
from online import steps
from oracle import relative_error
from support.tables import rows
from torch import nn

import snnipu as snn

TIGHT = 1e-9


def with_parameters(neuron, *names):
    """Turn these attributes into parameters: Alpha's constructor cannot."""
    for name in names:
        value = getattr(neuron, name)
        delattr(neuron, name)
        neuron.register_parameter(name, nn.Parameter(value))
    return neuron


def leaky(**options):
    return snn.Leaky(**{"beta": 0.9, "threshold": 0.5, **options})


def one_to_one(**options):
    return snn.RLeaky(beta=0.9, V=0.3, all_to_all=False, threshold=0.5, **options)


def alpha(**options):
    return snn.Alpha(alpha=0.9, beta=0.8, threshold=0.1, **options)


NEURONS = rows("""
leaky()
leaky(learn_beta=True, learn_threshold=True)
leaky(beta=torch.linspace(0.5, 0.9, 6), threshold=1.0, learn_beta=True)
leaky(reset_mechanism="zero", learn_beta=True)
leaky(reset_mechanism="none", learn_threshold=True)
leaky(reset_delay=False, learn_beta=True)
leaky(reset_delay=False, reset_mechanism="zero", learn_threshold=True)
snn.Lapicque(beta=0.9, threshold=0.5, learn_threshold=True)
snn.Synaptic(alpha=0.8, beta=0.9, learn_alpha=True, learn_beta=True)
snn.Synaptic(alpha=0.8, beta=0.9, reset_mechanism="zero", learn_alpha=True)
alpha(learn_threshold=True)
with_parameters(alpha(), "alpha", "beta")
alpha(reset_mechanism="subtract")
one_to_one(learn_beta=True)
one_to_one(reset_mechanism="zero")
one_to_one(reset_delay=False)
snn.RLeaky(beta=0.9, linear_features=6, threshold=0.5, learn_beta=True)
snn.RLeaky(beta=0.9, linear_features=6, threshold=0.5, reset_delay=False)
snn.RSynaptic(alpha=0.8, beta=0.9, V=0.3, all_to_all=False, learn_alpha=True)
snn.RSynaptic(alpha=0.8, beta=0.9, linear_features=6, learn_threshold=True)
snn.DeltaLeaky(beta=0.9, delta_threshold=0.3)
""")
RULES = {
    "sltt": ("sltt", {}),
    "ottt": ("ottt", {}),
    "snap1": ("snap1", {}),
    "eprop": ("eprop", {}),
    "eprop-adaptive": ("eprop", {"feedback": "adaptive"}),
    "eprop-random-now": ("eprop", {"feedback": "random", "low_pass": False}),
    "decolle": ("decolle", {"readouts": 3}),
}
DECAY = 0.8


def network(neuron):
    torch.manual_seed(0)
    net = snn.MultiStep(
        nn.Linear(5, 6),
        eval(neuron),
        nn.Linear(6, 4),
        snn.Leaky(beta=0.7, threshold=0.4, reset_mechanism="zero", learn_beta=True),
        nn.Linear(4, 3),
        snn.Leaky(beta=DECAY, threshold=0.3, reset_mechanism="none", learn_threshold=True),
    ).double()
    with torch.no_grad():
        for layer in net[::2]:
            layer.weight.mul_(2)
    return net


def inputs(steps=12):
    torch.manual_seed(1)
    return (torch.rand(steps, 2, 5, dtype=torch.float64) < 0.6).double()


def loss(t, spk, *states):
    """Return the loss of one step; its gradient differs from step to step."""
    return (spk * (1 + t % 3)).sum() + sum(state.pow(2).sum() for state in states)


def local_loss(readout):
    return (readout - 1).pow(2).sum()


def learn(online, x, length, with_readouts=False):
    """Return the results of a stream of chunks; the gradients are in ``.grad``."""
    online.zero_grad()
    online.reset()
    outputs, t = [], 0
    for chunk in x.split(length):
        out = online(chunk)
        total = sum(loss(t + i, *(part[i] for part in out)) for i in range(len(chunk)))
        if with_readouts:
            total = total + sum(local_loss(readout) for readout in online.readouts)
        total.backward()
        t += len(chunk)
        outputs.append([part.detach() for part in out])
    return [torch.cat(parts) for parts in zip(*outputs)]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("neuron", NEURONS)
def test_a_stream_in_chunks_has_the_gradients_of_explicit_steps(neuron, rule):
    name, options = RULES[rule]
    net, x = network(neuron), inputs()
    torch.manual_seed(2)
    online = snn.Online(net, rule=name, **options)
    low_pass = net[-1].beta.item() if name == "eprop" and options.get("low_pass", True) else None
    readouts = {"readouts": list(online.matrices), "local_loss": local_loss} if name == "decolle" else {}
    feedback = list(online.matrices) if name == "eprop" else ()
    trace_rule = "ottt" if name == "decolle" else name
    expected = steps.gradients(net, x, loss, trace_rule, feedback=feedback, low_pass=low_pass, **readouts)
    whole = net(x)
    assert all(layer.any() for layer in (whole[0], net[:2](x)[0]))
    for length in (1, 7, len(x)):
        for actual, other in zip(learn(online, x, length, name == "decolle"), whole):
            assert torch.equal(actual, other)
        for parameter, grad in expected:
            assert relative_error(parameter.grad, grad, terms=grad.new_tensor(1e-3)) < TIGHT
        assert sum(p.grad is not None for p in online.parameters()) == len(expected)
