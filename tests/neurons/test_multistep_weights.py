"""``MultiStep`` with layers whose weights are computed from other parameters, against the loop over time."""

import pytest
import torch
from support.computed_weights import COMPUTED, parametrized, weight_norm_hooks
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations

import snnipu as snn


class Counted(nn.Module):
    calls = 0

    def forward(self, weight):
        type(self).calls += 1
        return weight + (torch.round(weight * 8) / 8 - weight).detach()


class Changing(nn.Module):
    """A parametrization whose state changes at each call, in place or not."""

    def __init__(self, in_place):
        super().__init__()
        self.in_place = in_place
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, weight):
        self.calls = self.calls.add_(1) if self.in_place else self.calls + 1
        return weight * (1 + 0.1 * self.calls)


class Noisy(nn.Module):
    def forward(self, weight):
        return weight + torch.rand_like(weight)


ONCE = {
    **COMPUTED,
    "quantised": parametrized(Counted, "weight"),
    "both": parametrized(Counted, "weight", "bias"),
    "dropout": lambda layer: (parametrized(lambda: nn.Dropout(0.5), "weight")(layer), layer.eval()),
}
STEPS = {
    "spectral_norm hooks": utils.spectral_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "in place": parametrized(lambda: Changing(True), "weight"),
    "replaced": lambda layer: (parametrized(lambda: Changing(False), "weight")(layer), layer.eval()),
    "noisy": parametrized(Noisy, "weight"),
    "dropout": parametrized(lambda: nn.Dropout(0.5), "weight"),
}
LAYERS = {"Linear": lambda: nn.Linear(8, 6), "Conv2d": lambda: nn.Conv2d(1, 2, 3, padding=1)}


def network(layer, change):
    torch.manual_seed(0)
    first = LAYERS[layer]()
    behind = [nn.Flatten(), nn.Linear(32, 3)] if layer == "Conv2d" else [nn.Linear(6, 3)]
    net = snn.MultiStep(first, snn.Leaky(beta=0.9, threshold=0.3), *behind).double()
    change(first)
    return net


def results(net, x, num_steps):
    torch.manual_seed(3)
    out = net(x, num_steps=num_steps)
    out.square().sum().backward()
    state = torch.get_rng_state()
    return out.detach(), {name: p.grad for name, p in net.named_parameters()}, dict(net.named_buffers()), state


def assert_equal_to_steps(layer, change, constant):
    """Check two training steps against a network whose first layer is called for each step, because of a hook."""
    net, twin = network(layer, change), network(layer, change)
    twin[0].register_forward_hook(lambda *_: None)
    shape = (4, 8) if isinstance(net[0], nn.Linear) else (4, 1, 4, 4)
    for _ in range(2):
        x = torch.randn(*(() if constant else (7,)), *shape, dtype=torch.float64)
        net.zero_grad()
        twin.zero_grad()
        actual, expected = (results(n, x, 7 if constant else None) for n in (net, twin))
        torch.testing.assert_close(actual[:3], expected[:3], rtol=1e-10, atol=1e-12)
        assert all(grad.any() for grad in actual[1].values())
        assert torch.equal(actual[3], expected[3])
    return net.paths(x, 7 if constant else None)[0].runs_as


@pytest.mark.parametrize("constant", [False, True], ids=["sequence", "constant"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ONCE)
def test_weights_are_computed_once(name, layer, constant, monkeypatch):
    net = network(layer, ONCE[name])
    runs_as = assert_equal_to_steps(layer, ONCE[name], constant)
    assert runs_as.startswith("once, its input" if constant else "all steps as one batch")
    for step_bytes in (2**30, 8 * 4 * 32):  # in one piece, and in chunks of time
        monkeypatch.setattr("snnipu.neurons.multistep.CHUNK_BYTES", step_bytes)
        Counted.calls = 0
        shape = (4, 8) if layer == "Linear" else (4, 1, 4, 4)
        net(torch.randn(7, *shape, dtype=torch.float64))
        assert Counted.calls == {"quantised": 1, "both": 2}.get(name, 0)
    assert len(net._step_bytes) == 1


@pytest.mark.parametrize("constant", [False, True], ids=["sequence", "constant"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", STEPS)
def test_weights_that_change_run_step_by_step(name, layer, constant):
    assert assert_equal_to_steps(layer, STEPS[name], constant) == "step by step"


def test_hooks_of_the_user_see_every_step():
    x, seen = torch.rand(7, 4, 8, dtype=torch.float64), []
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        for name in ("weight_norm hooks", "weight_norm", "pruned"):
            net = network("Linear", ONCE[name])
            getattr(net[0], register)(lambda *_: seen.append(1))
            assert net.paths(x)[0].runs_as == "step by step"
            assert len(seen) == 7
            seen.clear()
    net = network("Linear", ONCE["quantised"])
    net[0].parametrizations.weight[0].register_forward_hook(lambda *_: seen.append(1))
    net(x)
    assert len(seen) == 7


def test_zeros_are_skipped(monkeypatch):
    """A computed weight has the products of a plain one."""
    net = snn.MultiStep(nn.Linear(200, 256), snn.Leaky(beta=0.9))
    weight_norm_hooks(net[0])
    monkeypatch.setattr("snnipu.ops._break_even.FEWEST_PRODUCTS", 0)
    x = (torch.rand(30, 16, 200) < 0.02).float()
    runs_as = net.paths(x)[0].runs_as
    assert runs_as.startswith("all steps as one batch")
    plain = snn.MultiStep(nn.Linear(200, 256), snn.Leaky(beta=0.9))
    assert runs_as == plain.paths(x)[0].runs_as
