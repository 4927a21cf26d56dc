"""Run the tests of the operators with every call sent to the native library of another machine or system."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def run(command, **environment):
    done = subprocess.run(
        command,
        cwd=str(ROOT),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build_runner(compiler, path, *flags):
    """Compile ``kernel_runner.cpp``, which calls a library's functions."""
    source = str(ROOT / "tests" / "support" / "kernel_runner.cpp")
    run([*compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Icsrc", source, "-o", str(path), *flags])


def run_tests(emulated, *files, examples=5, **environment):
    """Run ``files`` of tests/ops with the command ``emulated``; return pytest's output.

    Tests with torch.compile are left out: they do not run our kernels.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "support.emulated_library", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", *(f"tests/ops/{file}" for file in files), "-k", "not compile and not opcheck"]
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"SNNIPU_EMULATE": emulated, "SNNIPU_HYPOTHESIS_EXAMPLES": str(examples), **environment}
    output = run(command, PYTHONPATH=path, **environment)
    calls = re.search(r"(\d+) calls of the emulated library", output)
    assert calls is not None, output
    assert int(calls.group(1)) > 20, output
    assert " passed" in output
    return output
