"""Command lines, commands that refuse their arguments, their output, and new processes."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def words(*arguments):
    """Split the arguments of a command at blanks; paths stay whole."""
    return [
        word
        for argument in arguments
        for word in ([str(argument)] if isinstance(argument, Path) else str(argument).split())
    ]


def refusal(capsys, main, *arguments):
    """Check that a command ends with the status of a wrong argument, and return its standard error."""
    with pytest.raises(SystemExit) as stopped:
        main(words(*arguments))
    assert stopped.value.code == 2
    output = capsys.readouterr()
    assert "epoch " not in output.out
    return output.err


def python(*arguments, status=0, env=(), **how):
    """Run Python with these arguments in a new process and check its status; ``None`` stands for any status."""
    command, variables = [sys.executable, *map(str, arguments)], {**os.environ, **dict(env)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, **how)
    assert status is None or done.returncode == status, done.stdout + done.stderr
    return done


def read_json(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_up_to(start, process):
    """Read the output of a process up to a line that begins with ``start``."""
    for line in process.stdout:
        if line.startswith(start):
            break


def resume_command(output):
    """Return the words of the command that a stopped training prints."""
    return shlex.split(output.partition("resume with:\n")[2].splitlines()[0])
