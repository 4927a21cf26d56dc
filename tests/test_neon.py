"""The arm64 library's kernels against the reference: cross-compiled, and run by an emulator.

The tests of the operators run once more, with every call of the native library sent to one for NEON
(``support/emulated_library.py``).
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from snnipu.backends import host

ROOT = Path(__file__).resolve().parent.parent
COMPILER, EMULATOR, LIBRARIES = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"

pytestmark = [
    pytest.mark.skipif(not shutil.which(COMPILER), reason=f"no {COMPILER} (Debian: g++-aarch64-linux-gnu)"),
    pytest.mark.skipif(not shutil.which(EMULATOR), reason=f"no {EMULATOR} (Debian: qemu-user)"),
    pytest.mark.skipif(host.library is None, reason=f"no native library: {host.unavailable_reason}"),
]


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


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """The command that runs the library's functions."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("neon")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--isa", "neon", "--build-lib", str(folder)]
    flags = {"CXXFLAGS": "-O1", "LDFLAGS": ""}  # half as long to compile
    run(command, CXX=COMPILER, SNNIPU_REQUIRE_NATIVE="1", **flags)
    runner = folder / "kernel_runner"
    source = str(ROOT / "tests" / "support" / "kernel_runner.cpp")
    run([COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Icsrc", source, "-o", str(runner), "-ldl"])
    return f"{EMULATOR} -L {LIBRARIES} {runner} {folder / 'snnipu' / '_native' / 'libsnnipu-neon.so'}"


FILES = sorted(path.name for path in (ROOT / "tests" / "ops").glob("test_*.py"))
if os.environ.get("SNNIPU_TEST_NEON") != "all":  # it takes minutes
    FILES = ["test_lif_sequence.py", "test_neuron_sequence.py"]


@pytest.mark.parametrize("file", FILES)
def test_kernels(emulated, file):
    """What is compiled by torch.compile is no kernel of ours."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "support.emulated_library", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", f"tests/ops/{file}", "-k", "not compile and not opcheck"]
    own = {k: v for k, v in os.environ.items() if k not in ("SNNIPU_ISA", "SNNIPU_NATIVE_DIR")}
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, [own.get("PYTHONPATH")])])
    said = run(command, SNNIPU_EMULATE=emulated, SNNIPU_HYPOTHESIS_EXAMPLES="5", PYTHONPATH=path)
    calls = re.search(r"(\d+) calls of the emulated library", said)
    assert calls is not None, said
    assert int(calls.group(1)) > 20, said
    assert " passed" in said
