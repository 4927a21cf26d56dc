"""A small tutorial network on the IPU model, by the script for the full network, examples/ipu_tutorial.py."""

import math
import runpy
from pathlib import Path

import pytest
from support.commands import read_json
from support.operators import needs_model_and_host

from snnipu import poptorch

SCRIPT = Path(__file__).resolve().parent.parent.parent / "examples" / "ipu_tutorial.py"
pytestmark = [
    *needs_model_and_host,
    pytest.mark.skipif(not hasattr(poptorch, "is_host_runtime"), reason="a real PopTorch is installed"),
    pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the examples of the source tree"),
]
OPERATORS = {
    "dense": {"NeuronSequence"},
    "layers": {"DenseToSparse", "SparseLinear", "NeuronSequence", "SelectSpikes", "SparseToDense"},
    "network": {"DenseToSparse", "SparseNetwork", "SparseToDense"},
}


@pytest.mark.parametrize("kind", sorted(OPERATORS))
def test_forward_and_backward_on_a_whole_ipu(kind, tmp_path, monkeypatch):
    """A small version of 784-1000-10 runs on a whole Mk2, and every weight gets a gradient."""
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2")
    monkeypatch.delenv("POPTORCH_IPU_MODEL", raising=False)
    file = tmp_path / "found.json"
    arguments = ["--kind", kind, "--sizes", "120,150,10", "--batch-size", "12", "--steps", "5", "--slots", "40"]
    (results,) = runpy.run_path(str(SCRIPT))["main"]([*arguments, "--json", str(file)])
    assert read_json(file) == [results]
    assert results["weights_changed"]
    assert all(math.isfinite(loss) for loss in results["losses"])
    ran = {entry["operator"] for entry in results["operators"]}
    assert {name.partition(" ")[0] for name in ran} == OPERATORS[kind]
    # DenseToSparse converts the input, which needs no gradient.
    assert {f"{name} (gradient)" for name in OPERATORS[kind] - {"DenseToSparse"}} <= ran
    assert 0 < results["tile_memory_max_bytes"] < 624 * 1024
    assert results["cycles"] > 0
