"""Fixtures of the commands' tests."""

import os
import subprocess
import sys

import pytest
from support.commands import words


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Run the test in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(repository):
    """Return a function that starts ``python -m snnipu`` in a new process."""

    def start(*arguments, **more):
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "snnipu", *words(*arguments)],
            env={**os.environ, "PYTHONPATH": str(repository), **more.pop("env", {})},
            stdout=more.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    return start
