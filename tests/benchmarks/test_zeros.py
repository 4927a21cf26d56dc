"""The case of ordinary layers whose input is mostly zeros."""

import pytest
import torch

import snnipu
from benchmarks import Settings, Unavailable
from benchmarks.cases import zeros

SMALL = {"steps": 5, "batch_size": 2, "neurons": 24, "activity": 0.1}


def check(name, **settings):
    case = zeros.build(Settings(**{**SMALL, **settings}))
    try:
        return next(c for c in case.contenders if c.name == name).build().check()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("work", ["training", "inference"])
@pytest.mark.parametrize("name", ["multistep", "dense", "snntorch", "spikingjelly"])
def test_every_row_is_right(name, work):
    result = check(name, input="linear", work=work)
    assert result.passed, result.detail


def test_convolutions_by_events_are_right():
    """At these sizes the two hidden convolutions go by events, and where it learns the first one, too."""
    for work, first in (("training", True), ("inference", False)):
        settings = Settings(**{**SMALL, "input": "conv", "work": work})
        result = check("multistep", input="conv", work=work)
        assert result.passed, result.detail
        measured = zeros.build(settings).measured()
        assert [path.endswith("events") for path in measured["path"]] == [first, True, True, False]
        assert measured["activity"] == pytest.approx([0.1] * 4, abs=0.02)


def test_a_wrong_network_is_red(monkeypatch):
    sequence = snnipu.Leaky.over_time
    zeros._made.cache_clear()
    monkeypatch.setattr(snnipu.Leaky, "over_time", lambda self, x, **kw: sequence(self, 1.05 * x, **kw))
    assert not check("multistep", input="linear").passed
    zeros._made.cache_clear()


def test_the_sweep_has_training_and_inference():
    sweep = zeros.sweep(Settings(input="nmnist"), [0.3, 0.05, 0.3])
    assert [(point.work, point.activity) for point in sweep.points] == [
        ("training", 0.05),
        ("inference", 0.05),
        ("training", 0.3),
        ("inference", 0.3),
    ]
    with pytest.raises(ValueError, match="activity"):
        zeros.build(Settings(activity=1.5))
    assert torch.float32 in zeros.DTYPES
