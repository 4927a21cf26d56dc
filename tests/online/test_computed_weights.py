"""Weights computed from other parameters at each call: weight_norm, parametrizations, pruning, and errors."""

import pytest
import torch
from online import drawn
from support.computed_weights import COMPUTED, parametrized, weight_norm_hooks  # noqa: F401
from support.tables import assert_refused, each_row
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations

import snnipu as snn


class Positive(nn.Module):
    def forward(self, weight):
        return weight.abs() + 0.01


class Drifting(nn.Module):
    """A parametrization with a state that changes at each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, weight):
        self.calls = self.calls + 1
        return weight * (1 + 0.1 * self.calls)


POSITIVE = parametrized(Positive, "weight")
COMPUTED = {**COMPUTED, "both": parametrized(Positive, "weight", "bias")}
RULES = ["sltt", "ottt", "eprop", "eprop-now", "eprop-adaptive", "snap1"]


def network(front):
    torch.manual_seed(0)
    maps = isinstance(front(), nn.Conv2d)
    behind = [nn.Flatten(), nn.Linear(32, 3)] if maps else [nn.Linear(6, 3)]
    neurons = snn.Leaky(beta=0.9, threshold=0.3), snn.Leaky(beta=0.8, reset_mechanism="none")
    torch.manual_seed(0)
    return snn.MultiStep(front(), neurons[0], *behind, neurons[1]).double()


def stream(net):
    torch.manual_seed(1)
    return (torch.rand(12, 4, *((8,) if isinstance(net[0], nn.Linear) else (1, 4, 4))) < 0.5).double()


def learn(net, rule, lengths, prepared=False):
    name, options = drawn.RULES[rule]
    torch.manual_seed(2)
    online, x = snn.Online(net, rule=name, **options).double(), stream(net)
    if prepared:
        online.prepare(x[: lengths[0]])
    outputs = []
    grads = drawn.gradients(online, x, lambda _, out: outputs.append(out[1].detach()), lengths)
    return torch.cat(outputs), {name[len("net.") :]: grad for name, grad in grads.items() if name.startswith("net.")}


@pytest.mark.parametrize(
    "front", [lambda: nn.Linear(8, 6), lambda: nn.Conv2d(1, 2, 3, padding=1)], ids=["rows", "maps"]
)
@pytest.mark.parametrize("computed", COMPUTED)
@pytest.mark.parametrize("rule", RULES)
def test_gradients_reach_what_a_weight_is_made_of(rule, computed, front):
    if rule == "eprop-adaptive" and isinstance(front(), nn.Conv2d):
        return  # it needs the number of neurons
    net = network(front)
    COMPUTED[computed](net[0])
    with torch.no_grad():
        expected = net(stream(net))[1]
    # The chain rule from the gradients of the plain layer's weight and bias.
    plain = network(front)
    parameters = dict(net[0].named_parameters())
    net[0](stream(net)[0])  # hooks compute the weight in a call
    tensors = {name: getattr(net[0], name) for name in ("weight", "bias")}
    with torch.no_grad():
        for name, tensor in tensors.items():
            getattr(plain[0], name).copy_(tensor)
        plain[-2].load_state_dict(net[-2].state_dict())
    _, of_plain = learn(plain, rule, [12])
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    upstream = [of_plain[f"0.{name}"] for name in tensors]
    grads = torch.autograd.grad(list(tensors.values()), list(parameters.values()), upstream)
    for lengths in ([12], [5, 1, 6], [1] * 12):
        outputs, actual = learn(net, rule, lengths)
        torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
        for name, grad in zip(parameters, grads):
            assert grad.any()
            torch.testing.assert_close(actual[f"0.{name}"], grad, rtol=1e-8, atol=1e-9)
        last = f"{len(net) - 2}.weight"
        torch.testing.assert_close(actual[last], of_plain[last], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("computed", COMPUTED)
@pytest.mark.parametrize("rule", ["sltt", "ottt"])
def test_a_held_stream(rule, computed):
    net = network(lambda: nn.Linear(8, 6))
    COMPUTED[computed](net[0])
    outputs, grads = learn(net, rule, [4, 4, 4])
    held, held_grads = learn(net, rule, [4, 4, 4], prepared=True)
    torch.testing.assert_close(held, outputs, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(held_grads, grads, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("computed", ["weight_norm hooks", "weight_norm", "spectral_norm"])
def test_an_optimizer_that_steps_before_the_backward_pass(computed):
    net = network(lambda: nn.Linear(8, 6))
    COMPUTED[computed](net[0])
    online = snn.Online(net, rule="ottt")
    loss = online(stream(net))[1].sum()
    with torch.no_grad():
        for name, p in net[0].named_parameters():
            if name != "bias":
                p.add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "computed",
    [
        utils.spectral_norm,
        parametrizations.spectral_norm,
        parametrized(Drifting, "weight"),
    ],
    ids=["hooks", "spectral_norm", "drifting"],
)
def test_weights_that_change_with_every_call(computed):
    net = network(lambda: nn.Linear(8, 6))
    computed(net[0])
    with pytest.raises(
        ValueError, match=r"module 0 \(Linear\) changes its buffers when its weight is .*\.eval\(\) on the"
    ):
        snn.Online(net, rule="ottt")
    if computed is parametrizations.spectral_norm:
        online = snn.Online(net.eval(), rule="ottt")
        online(stream(net)[:3])
        net.train()
        with pytest.raises(ValueError, match="changes its buffers"):
            online(stream(net)[3:])


@pytest.mark.parametrize("rule", RULES)
def test_a_neurons_own_parameter(rule):
    net = network(lambda: nn.Linear(8, 6))
    net[1] = snn.Leaky(beta=0.8, threshold=0.3, learn_beta=True).double()
    parametrized(Positive, "beta")(net[1])
    _, whole = learn(net, rule, [12])
    assert whole["1.parametrizations.beta.original"].any()
    for lengths in ([5, 1, 6], [1] * 12):
        torch.testing.assert_close(learn(net, rule, lengths)[1], whole, rtol=1e-8, atol=1e-9)


def _recurrent(change):
    neuron = snn.RLeaky(beta=0.9, linear_features=6)
    change(neuron.recurrent)
    return [nn.Linear(8, 6), neuron]


def _changed(module, change):
    change(module)
    return [module, snn.Leaky(beta=0.9)]


def _hooks(layer):
    layer.register_forward_hook(lambda *_: None)


@each_row(r"""
online(_recurrent(POSITIVE)) | TypeError: module 1 .RLeaky.*recurrent layer must be a plain .* remove
online(_recurrent(weight_norm_hooks)) | TypeError: module 1(\.recurrent)? .*(computed at each call|remove its)
online(_changed(snn.DelayLinear(8, 6, 3), POSITIVE)) | TypeError: module 0 .*computed at each call.*make it
online(_changed(snn.SparseLinear(8, 6), POSITIVE)) | TypeError: module 0 .*computed at each call.*make it
online([nn.Linear(8, 6), *_changed(nn.LayerNorm(6), POSITIVE)]) | TypeError: module 1 .*computed at each.*make it
online(_changed(nn.Linear(8, 6), _hooks))
    | TypeError: module 0 .Linear. cannot learn online: it has hooks, .*; remove them
""")
def test_what_is_refused(row):
    assert_refused(row, globals(), online=lambda modules: snn.Online(snn.MultiStep(*modules), rule="sltt"))
