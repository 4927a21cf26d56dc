"""Some random cases of ``make fuzz-numbers``, and a check that it detects a wrong number."""

import pytest
from support import differential

import snnipu as snn

CASES = 60


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(differential.FAMILIES))
def test_random_cases(family):
    wrong = {seed: error for seed in range(CASES) if (error := differential.run(family, seed))}
    assert not wrong


def test_a_wrong_number_is_seen(monkeypatch):
    sequence = snn.Leaky.over_time

    def scaled(self, x, **how):
        return sequence(self, x * (1 + 1e-6), **how)

    monkeypatch.setattr(snn.Leaky, "over_time", scaled)
    assert any(differential.run("networks", seed) for seed in range(30))
