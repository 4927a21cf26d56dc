"""A client of PopTorch that nobody here wrote: Lightning's IPU strategy, in an environment of its own."""

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
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SNNIPU_IPU"))}
    # One thread: beside other processes, two wait for each other in a network as small as this.
    environment = {**own, "PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1"}
    script = [str(SUPPORT / "lightning_client.py"), package, str(folder)]
    command = [PYTHON, "-W", "ignore", "-m", "snnipu", "run", "--ipus", "2", *script]
    return subprocess.run(command, cwd=str(folder), env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", ["lightning", "lightning_graphcore"])
def test_it_trains_digits(package, tmp_path):
    done = run(package, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["replicas"] == 2
    assert found["lr"] == 1e-2 / 4
    assert found["predictions"] == 360
    assert found["checkpoint"]
    assert min(found["validation"], found["test"]) > 0.9, found
