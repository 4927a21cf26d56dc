"""``train`` under torchrun: killed processes restart, and two agents, one per machine, meet."""

import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.commands import ROOT
from support.versions import needs_gloo

pytest.importorskip("sklearn")
pytestmark = [
    needs_gloo,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for the processes in /proc"),
]
# SNNIPU_TORCHRUN_RUNS=20 repeats the test 20 times in sequence.
RUNS = int(os.environ.get("SNNIPU_TORCHRUN_RUNS", 1))
LIMIT = 280
GUIDE = ROOT / "docs" / "how-to" / "train-on-many-machines.md"
TRAIN = ["--hidden", "16", "--steps", "5", "--epochs", "30", "--batch-size", "64"]
TRAIN += ["--device", "cpu", "--lr-decay", "1", "--timeout", "120"]


def torchrun(folder, which, log="log", **changes):
    """Start the guide's command with the option ``which``, for a smaller network."""
    (line,) = [
        line for line in GUIDE.read_text().splitlines() if re.match(rf"torchrun {which}\b.* -m snnipu train$", line)
    ]
    for old, new in changes.items():
        assert old in line
        line = line.replace(old, new)
    output = (folder / log).open("w")
    command = [sys.executable, "-m", "torch.distributed.run", *shlex.split(line)[1:], *TRAIN]
    return subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)


def workers(agent):
    """Return the processes that ``agent`` has started; finished ones have no command line."""
    started = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == agent.pid:
            continue
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == agent.pid and b"snnipu" in (entry / "cmdline").read_bytes():
                started.append(int(entry.name))
        except OSError:  # the process has ended
            continue
    return sorted(started)


def wait_for_end(agent):
    try:
        return agent.wait(LIMIT)
    finally:
        for process in workers(agent):
            os.kill(process, signal.SIGKILL)
        agent.kill()


def learnt_weights(path):
    state = torch.load(path, weights_only=True)
    moments = [entry[name] for entry in state["optimizer"]["state"].values() for name in sorted(entry)]
    return [*state["model"].values(), *moments]


def epochs(folder):
    return re.findall(r"^epoch (\d+)/", (folder / "log").read_text(), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("run", range(RUNS))
def test_killed_processes_end_with_the_same_weights(run, two_agents, tmp_path):
    """The processes are killed some epochs after the start."""
    rng = random.Random(run)
    agent, until, started = torchrun(tmp_path, "--standalone"), time.monotonic() + LIMIT, []
    while len(started) < 2 or len(epochs(tmp_path)) <= rng.randrange(3):
        assert time.monotonic() < until
        assert agent.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.2)
        started = workers(agent)
    os.kill(rng.choice(started), signal.SIGKILL)
    assert wait_for_end(agent) == 0, (tmp_path / "log").read_text()[-3000:]
    assert "resumed after epoch" in (tmp_path / "log").read_text()
    disturbed, undisturbed = (learnt_weights(folder / "out" / "train-digits.pt") for folder in (tmp_path, two_agents))
    for mine, expected in zip(disturbed, undisturbed):
        assert torch.equal(mine, expected)


@pytest.fixture(scope="module")
def two_agents(tmp_path_factory):
    """An undisturbed run of two agents with a process each."""
    folder = tmp_path_factory.mktemp("agents")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    # Host names of machines may not resolve here.
    host = {"host1:29400": f"127.0.0.1:{port} --local-addr 127.0.0.1"}
    agents = [torchrun(folder, "--nnodes", log=log, **host) for log in ("log", "other")]
    assert [wait_for_end(agent) for agent in agents] == [0, 0], (folder / "log").read_text() + (
        folder / "other"
    ).read_text()
    return folder


@pytest.mark.slow
def test_two_agents_train_one_network(two_agents):
    logs = [(two_agents / name).read_text() for name in ("log", "other")]
    assert sorted(log.count("test accuracy: ") for log in logs) == [0, 1]
    assert len(epochs(two_agents)) in (0, 30)
    assert torch.load(two_agents / "out" / "train-digits.pt", weights_only=True)["history"][-1]["test_accuracy"] > 0.5
