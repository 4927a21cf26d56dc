"""A few random cases of ``make fuzz-numbers``, and that it sees a wrong number."""

import pytest
import torch
from support import differential

import snnipu as snn

CASES = 60


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(differential.FAMILIES))
def test_random_cases(family):
    wrong = {seed: error for seed in range(CASES) if (error := differential.run(family, seed)) is not None}
    assert not wrong


def test_a_wrong_number_is_seen(monkeypatch):
    sequence = snn.Leaky.over_time

    def scaled(self, x, **how):
        return sequence(self, x * (1 + 1e-6), **how)

    monkeypatch.setattr(snn.Leaky, "over_time", scaled)
    assert any(differential.run("networks", seed) for seed in range(30))


def test_what_differs_is_named():
    with pytest.raises(differential.Mismatch, match=r"spikes: 1 of 2 differ, at \(1,\) 3.0, not 2.0"):
        differential.same("spikes", torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]))
    with pytest.raises(differential.Mismatch, match="x: None, not a tensor"):
        differential.same("x", None, torch.zeros(1))
