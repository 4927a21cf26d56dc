"""Threads of the commands: as many as the work needs, and asleep soon after it."""

import json
import os
import subprocess
import sys

import pytest
import torch
from support.commands import read_json, words

from snnipu import _wait_policy, training
from snnipu.cli import train


def info(*command, **environment):
    """Return the thread settings that ``info`` prints in a new process."""
    names = (*_wait_policy.VARIABLES, "OMP_NUM_THREADS")
    variables = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, *command, "info", "--json", "-"]
    done = subprocess.run(command, env={**variables, **environment}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["native"]


@pytest.mark.slow
def test_threads_of_our_commands_wait_briefly():
    assert info("-m", "snnipu")["waiting"] == {"GOMP_SPINCOUNT": _wait_policy.SPIN_COUNT}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "7")])
def test_the_users_own_policy_stays(name, value):
    assert info("-m", "snnipu", **{name: value})["waiting"] == {name: value}


@pytest.mark.slow
def test_a_program_that_imports_us_is_left_alone(tmp_path):
    code = "import sys; from snnipu.cli import main; sys.exit(main(sys.argv[1:]))"
    assert info("-c", code)["waiting"] == {}
    # The same holds for a program that imports snnipu during Python's search for its module.
    package = tmp_path / "other"
    package.mkdir()
    (package / "__init__.py").write_text("import snnipu")
    (package / "__main__.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert info("-m", "other", PYTHONPATH=path)["waiting"] == {}


class Network:
    ranks = training.Ranks()

    def __init__(self, multiplications, device="cpu"):
        self.device, self.size = torch.device(device), multiplications

    def multiplications(self):
        return self.size


@pytest.mark.parametrize(
    ("network", "arguments", "environment", "threads"),
    [
        (Network(train.ONE_THREAD_BELOW - 1), "", None, 1),
        (Network(train.ONE_THREAD_BELOW), "", None, 3),
        (Network(1000), "", "3", 3),
        (Network(1000), "--threads 2", None, 2),
        (Network(train.ONE_THREAD_BELOW), "--threads 1", None, 1),
        (Network(1000, "cuda"), "", None, 3),
    ],
)
def test_a_small_network_has_one_thread(network, arguments, environment, threads, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if environment is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert train.choose_threads(network, train.build_parser().parse_args(arguments.split())) == threads


def test_threads_are_told(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    small = "--hidden 16 --steps 5 --epochs 1 --batch-size 128 --no-checkpoint"
    assert train.main(words(small, "--threads 2 --json report.json")) == 0
    assert read_json(tmp_path / "report.json")["threads"] == 2
    assert torch.get_num_threads() == before
