"""An independent client of PopTorch: Lightning's IPU strategy, in a separate environment."""

import json
import os
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("SNNIPU_LIGHTNING_PYTHON")
SUPPORT = Path(__file__).resolve().parents[1] / "support"

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="SNNIPU_LIGHTNING_PYTHON is not set: make test-wheel installs lightning-graphcore where it can"
)


def run(package, folder):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SNNIPU_IPU"))}
    # In so small a network two threads mostly wait for each other while other processes run.
    environment = {**variables, "PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1"}
    script = [str(SUPPORT / "lightning_client.py"), package, str(folder)]
    command = [PYTHON, "-W", "ignore", "-m", "snnipu", "run", "--ipus", "2", *script]
    return subprocess.run(command, cwd=str(folder), env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", ["lightning", "lightning_graphcore"])
def test_it_trains_digits(package, tmp_path):
    done = run(package, tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["replicas"] == 2
    assert results["lr"] == 1e-2 / 4
    assert results["predictions"] == 360
    assert results["checkpoint"]
    assert min(results["validation"], results["test"]) > 0.9, results
