"""The arm64 library's kernels against the reference: cross-compiled and emulated.

The tests of the operators run with every call sent to a NEON library (``support/emulated_library.py``).
"""

import os
import shutil
import sys

import pytest
from support.emulation import ROOT, build_runner, run, run_tests

from snnipu.backends import host

COMPILER, EMULATOR, LIBRARIES = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"

pytestmark = [
    pytest.mark.skipif(not shutil.which(COMPILER), reason=f"no {COMPILER} (Debian: g++-aarch64-linux-gnu)"),
    pytest.mark.skipif(not shutil.which(EMULATOR), reason=f"no {EMULATOR} (Debian: qemu-user)"),
    pytest.mark.skipif(host.library is None, reason=f"no native library: {host.unavailable_reason}"),
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """Return the command that runs the library's functions."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("neon")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--isa", "neon", "--build-lib", str(folder)]
    flags = {"CXXFLAGS": "-O1", "LDFLAGS": ""}  # half as long to compile
    run(command, CXX=COMPILER, SNNIPU_REQUIRE_NATIVE="1", **flags)
    runner = folder / "kernel_runner"
    build_runner([COMPILER], runner, "-ldl")
    return f"{EMULATOR} -L {LIBRARIES} {runner} {folder / 'snnipu' / '_native' / 'libsnnipu-neon.so'}"


FILES = sorted(path.name for path in (ROOT / "tests" / "ops").glob("test_*.py"))
if os.environ.get("SNNIPU_TEST_NEON") != "all":  # it takes minutes
    FILES = ["test_lif_sequence.py", "test_neuron_sequence.py"]


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_kernels(emulated, file):
    run_tests(emulated, file)
