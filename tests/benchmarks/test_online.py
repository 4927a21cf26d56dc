"""The case of streams learnt online."""

from dataclasses import replace

import pytest
import torch

from benchmarks import Settings, Unavailable
from benchmarks.cases import online

SMALL = Settings(steps=60, batch_size=3, neurons=24)


def contenders(settings=SMALL):
    return online.build(settings).contenders


@pytest.mark.parametrize("name", [contender.name for contender in contenders()])
def test_every_contender_passes(name):
    contender = next(c for c in contenders() if c.name == name)
    try:
        workload = contender.build()
    except Unavailable as reason:
        pytest.skip(str(reason))
    check = workload.check()
    assert check.passed, check.detail
    made = workload.step()
    assert [grad.shape for grad in made] == [weight.shape for weight in online.Problem(SMALL).weights]
    assert all(grad.abs().sum() > 0 for grad in made)


def test_a_wrong_gradient_is_seen(monkeypatch):
    by_steps = online.Problem.by_steps
    monkeypatch.setattr(
        online.Problem, "by_steps", lambda *args, **more: [1.001 * grad for grad in by_steps(*args, **more)]
    )
    for name in ("sltt", "ottt"):
        assert not next(c for c in contenders() if c.name == name).build().check().passed


def test_a_stream_has_its_length_whatever_is_drawn_of_it():
    problem = online.Problem(replace(SMALL, steps=470))
    chunks = list(problem.chunks(470, online.CHUNK))
    assert sum(map(len, chunks)) == 470
    assert max(map(len, chunks)) == online.CHUNK
    assert torch.equal(torch.cat(chunks)[200:400], torch.cat(chunks)[:200])


def test_backpropagation_that_does_not_fit_is_left_out(monkeypatch):
    monkeypatch.setattr(online, "available_memory", lambda: 1 << 20)
    with pytest.raises(Unavailable, match=r"keeps .* GB at least"):
        contenders(replace(SMALL, steps=5000))[0].build()


def test_the_sweep_has_a_point_for_each_length():
    sweep = online.sweep(SMALL, [200, 50, 200])
    assert [point.steps for point in sweep.points] == [50, 200]
    with pytest.raises(ValueError, match="1 or more"):
        online.OPTIONS[0].parse("0,5")


def test_a_trace_for_each_weight_is_left_out_of_long_streams():
    row = next(c for c in contenders(replace(SMALL, steps=1000)) if c.name == "braintrace-D-RTRL")
    with pytest.raises(Unavailable, match="takes minutes for 1000 steps"):
        row.build()
