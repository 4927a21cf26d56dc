"""The GPU lines of the command, without a GPU: see tests/support/pretended_card.py."""

import pytest
from support.commands import ROOT, python, read_json, words

from snnipu.backends import triton

SCRIPT = ROOT / "tests" / "support" / "pretended_card.py"
pytest.importorskip("triton.runtime.interpreter")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("lif steps=3 batch_size=2 neurons=8", {"snnipu"}),
        ("memory tensor=3x2x8", {"snnipu", "snnipu-spikes", "copy-24", "copy-20"}),
        ("neurons neuron=Synaptic steps=3 batch_size=2 neurons=8", {"snnipu", "snnipu-spikes", "copy"}),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_bench_on_a_card(command, rows, tmp_path):
    """Each check compares Triton's kernels. The cases sparse and conv take minutes: run them by hand."""
    if triton.unavailable_reason() is not None:
        pytest.skip(triton.unavailable_reason())
    record = tmp_path / "record.json"
    python(*words(SCRIPT, "benchmarks", command, "--device cuda --quick --peers copy --repeats 1 --json", record))
    written = read_json(record)
    assert written["environment"]["device_name"] == "a pretended card"
    assert {row["contender"] for row in written["records"] if row["status"] == "ok"} >= rows
