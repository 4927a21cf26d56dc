"""The case of a linear layer with delays."""

import importlib.util

import pytest

import snnipu
from benchmarks import Settings
from benchmarks.cases import delays

SMALL = {"steps": 12, "batch_size": 2, "neurons": 16, "activity": 0.2, "longest_delay": 5}


def check(name):
    return next(c for c in delays.build(Settings(**SMALL)).contenders if c.name == name).build().check()


@pytest.mark.parametrize(
    "name",
    [
        "events",
        "from-dense",
        "convolution",
        pytest.param("dcls", marks=pytest.mark.skipif(not importlib.util.find_spec("DCLS"), reason="no dcls")),
    ],
)
def test_every_row_is_right(name):
    result = check(name)
    assert result.passed, result.detail


def test_a_wrong_layer_is_red(monkeypatch):
    forward = snnipu.DelayLinear.forward
    monkeypatch.setattr(snnipu.DelayLinear, "forward", lambda self, x: 1.001 * forward(self, x))
    assert not check("events").passed


def test_the_sweep_has_both_axes():
    sweep = delays.sweep(Settings(**SMALL), [0.05, 0.2], [3, 5])
    assert [(p.activity, p.longest_delay) for p in sweep.points] == [(0.05, 5), (0.2, 5), (0.2, 3)]
    with pytest.raises(ValueError, match="activity"):
        delays.build(Settings(activity=0.0))


def test_delays_keep_away_from_whole_steps():
    """There a peer's rounding would give a synapse's delay another derivative, and its check would be red."""
    delay = delays.Problem(Settings(**{**SMALL, "neurons": 200})).layer.delay.detach()
    assert 0 < float(delay.min()) < float(delay.max()) < SMALL["longest_delay"]
    assert 0.009 < float((delay % 1).min()) < float((delay % 1).max()) < 0.991
