"""Gradients do not depend on the division of a stream into chunks, for every network that is accepted."""

import random
import re

import pytest
import torch
from online import drawn
from torch import nn

import snnipu as snn
from snnipu.neurons import multistep

NAMED = re.compile(r"module \d+|x must not require a gradient")
# Modules that are nonlinear and have parameters.
PARAMETRIC = {nn.LayerNorm, nn.GroupNorm, nn.PReLU}
LINEAR = {
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.Upsample, nn.ZeroPad2d, nn.PixelShuffle),
    *(getattr(nn, f"BatchNorm{dims}d") for dims in (1, 2, 3)),
    *(getattr(nn, f"{kind}{dims}d") for kind in ("AvgPool", "AdaptiveAvgPool") for dims in (1, 2, 3)),
}
DROPOUTS = set(multistep._RANDOM)


@pytest.fixture
def masks(monkeypatch):
    """Use dropout masks that depend only on the step. The result must be called with the first step of a chunk."""
    batch, first = 2, 0

    def begins(step):
        nonlocal first
        first = step

    def dropout(x, p=0.5, training=True, inplace=False):
        if not training:
            return x
        step = first + torch.arange(len(x)) // batch
        places = torch.arange(x[0].numel()).reshape(x.shape[1:])
        mask = torch.sin(12.9898 * (1 + places) * (1 + step.reshape(-1, *[1] * places.dim()))) > 0
        return x.mul_(mask.to(x.dtype)) if inplace else x * mask

    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
        monkeypatch.setattr(nn.functional, name, dropout)
    return begins


def divisions(steps):
    return ([1] * steps, [1, steps - 1], [steps - 1, 1], [2] * (steps // 2) + [1] * (steps % 2))


def compare(online, x, begins):
    """Check that a stream of several chunks has the gradients of a single chunk."""
    with torch.no_grad():
        whole = drawn.flat(online(x, single=False))
    upstream = [torch.randn_like(part) for part in whole]
    expected, grads, of_x = drawn.learn(online, x, upstream, [len(x)], begins)
    largest = max([grad.abs().max().item() for grad in grads.values()] + [1e-3])
    for lengths in divisions(len(x)):
        outputs, actual, found_x = drawn.learn(online, x, upstream, lengths, begins)
        torch.testing.assert_close(outputs, expected, rtol=1e-9, atol=1e-9)
        assert actual.keys() == grads.keys()
        for name, grad in grads.items():
            assert (actual[name] - grad).abs().max() <= 1e-9 * largest, (name, lengths)
        assert (found_x is None) == (of_x is None)
        if of_x is not None:
            torch.testing.assert_close(found_x, of_x, rtol=1e-9, atol=1e-9)
    return grads


def refused_or_equal(net, x, rule, options, begins):
    """Compare and return the gradients, or return the error that refuses the network before it learns."""
    online = None
    try:
        online = snn.Online(net, rule=rule, **options).double()
        grads = compare(online, x, begins)
    except (TypeError, ValueError) as error:
        assert online is None or online._memory is None
        return error
    return grads


def test_every_kind_is_tried():
    known = {*multistep._STATELESS, *multistep._RANDOM, *multistep._BATCH_NORMS}
    assert known == {*drawn.KINDS, *drawn.WEIGHTS, nn.Embedding}


@pytest.mark.slow
@pytest.mark.parametrize("kind", drawn.KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("rule", drawn.RULES)
def test_each_kind_between_neurons(rule, kind, masks):
    """Gradients are equal in all divisions, or the rule refuses the module: exactly those that it cannot handle."""
    make, dims = drawn.KINDS[kind]
    shape = drawn.STEPS[dims or 1]
    between = make(shape).double().eval()
    after = drawn.shape_of(between, shape)
    net = snn.MultiStep(
        nn.Linear(8, torch.Size(shape).numel()),
        snn.Leaky(beta=0.8, threshold=0.3),
        *([nn.Unflatten(1, shape)] if len(shape) > 1 else []),
        between.train(kind in DROPOUTS),
        nn.Flatten(),
        nn.Linear(torch.Size(after).numel(), 3),
        snn.Leaky(beta=0.9, reset_mechanism="none"),
    ).double()
    x = (torch.rand(6, 2, 8) < 0.5).double()
    name, options = drawn.RULES[rule]
    outcome = refused_or_equal(net, x, name, options, masks)
    place = 2 + (len(shape) > 1)
    if kind in PARAMETRIC and name != "sltt":
        assert isinstance(outcome, TypeError)
        assert f"module {place} ({kind.__name__}) stands between weights and their neurons" in str(outcome)
    elif rule == "eprop" and kind not in LINEAR:
        assert isinstance(outcome, TypeError)
        assert f"module {place} ({kind.__name__}) stands between neurons and the next weights" in str(outcome)
        assert "low_pass=False" in str(outcome)
    else:
        assert outcome["net.0.weight"].any()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(12))
def test_networks_that_are_drawn(part, masks):
    """Layers, neurons, rules, frozen weights and an input that learns: equal in all divisions, or refused by name."""
    learnt = refused = 0
    for seed in range(25 * part, 25 * part + 25):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        name, options = drawn.RULES[draw.choice([*drawn.RULES, "eprop", "eprop"])]
        net, shape = drawn.network(draw, name)
        x = (torch.rand(draw.randint(3, 8), 2, *shape) < 0.6).double().requires_grad_(draw.random() < 0.3)
        outcome = refused_or_equal(net, x, name, options, masks)
        if isinstance(outcome, Exception):
            assert NAMED.search(str(outcome)), (seed, outcome)
            refused += 1
        else:
            learnt += any(grad.any() for grad in outcome.values())
    assert min(learnt, refused) > 3
