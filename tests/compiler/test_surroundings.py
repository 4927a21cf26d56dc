"""Random scripts around a loop over time behave the same with ``snn.auto()``."""

import os

import pytest
import torch
from support import surroundings
from support.versions import needs_backend

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore")]
SCRIPTS = int(os.environ.get("SNNIPU_SURROUNDINGS_EXAMPLES", "4"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SCRIPTS))
def test_a_script_does_what_it_does_without(seed, tmp_path, monkeypatch):
    records = []
    for auto in ("", "1"):
        monkeypatch.setenv(surroundings.AUTO, auto)
        folder = tmp_path / f"auto{auto}"
        folder.mkdir()
        records.append(surroundings.play(seed, folder))
    print(surroundings.Writer(seed).source)
    assert surroundings.differences(seed, *records) == []


def test_a_difference_is_seen():
    """A difference in a single number, counter or record is reported."""
    plain = [("0: out", ("facts", torch.ones(3))), ("0: counters", [("steps", 4)])]
    others = [
        [("0: out", ("facts", torch.tensor([1.0, 1.0, 1.001]))), plain[1]],
        [plain[0], ("0: counters", [("steps", 5)])],
        [("0: error", "RuntimeError"), *plain],
        plain[:1],
    ]
    assert surroundings.differences(0, plain, plain) == []
    assert all(len(surroundings.differences(0, plain, other)) == 1 for other in others)


def test_a_seed_gives_one_script():
    sources = [surroundings.Writer(seed).source for seed in (*range(30), *range(30))]
    assert sources[:30] == sources[30:]
    assert len(set(sources)) == 30
    for source in sources[:30]:
        compile(source, "script", "exec")
