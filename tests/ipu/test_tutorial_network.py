"""The tutorial network on the IPU model, smaller: the script that runs it whole, benchmarks/ipu_tutorial.py."""

import json
import math
import runpy
from pathlib import Path

import pytest
from support.operators import needs_model_and_host

from snnipu import poptorch

SCRIPT = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "ipu_tutorial.py"
pytestmark = [
    *needs_model_and_host,
    pytest.mark.skipif(not hasattr(poptorch, "is_host_runtime"), reason="a real PopTorch is installed"),
    pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the benchmarks of the source tree"),
]
OPERATORS = {
    "dense": {"NeuronSequence"},
    "layers": {"DenseToSparse", "SparseLinear", "NeuronSequence", "SelectSpikes", "SparseToDense"},
    "network": {"DenseToSparse", "SparseNetwork", "SparseToDense"},
}


@pytest.mark.parametrize("kind", sorted(OPERATORS))
def test_forward_and_backward_on_a_whole_ipu(kind, tmp_path, monkeypatch):
    """784-1000-10 in small: every tile of a Mk2 may be used, and every weight gets its gradient."""
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2")
    monkeypatch.delenv("POPTORCH_IPU_MODEL", raising=False)
    file = tmp_path / "found.json"
    arguments = ["--kind", kind, "--sizes", "120,150,10", "--batch-size", "12", "--steps", "5", "--slots", "40"]
    (found,) = runpy.run_path(str(SCRIPT))["main"]([*arguments, "--json", str(file)])
    assert json.loads(file.read_text()) == [found]
    assert found["weights_changed"]
    assert all(math.isfinite(loss) for loss in found["losses"])
    ran = {entry["operator"] for entry in found["operators"]}
    assert {name.partition(" ")[0] for name in ran} == OPERATORS[kind]
    # The input is no result of an operator: nothing asks for its gradient.
    assert {f"{name} (gradient)" for name in OPERATORS[kind] - {"DenseToSparse"}} <= ran
    assert 0 < found["tile_memory_max_bytes"] < 624 * 1024
    assert found["cycles"] > 0
