"""The native library: its build, the choice of instruction set, and errors for unsuitable libraries."""

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from support.commands import ROOT, python
from support.versions import needs_native

from snnipu import backends
from snnipu._version import __version__
from snnipu.backends import host, libraries

ORDER = ["baseline", "avx2", "avx512"]
VERSION = re.compile(r"\((GLIBC|GLIBCXX|CXXABI)_([\d.]+)\)")
CHECK = (
    "import torch, snntorch, snnipu\n"
    "from snnipu.backends import host\n"
    "torch.manual_seed(0)\n"
    "x = torch.randn(6, 4, 77)\n"
    "lif, ref = snnipu.Leaky(beta=0.9), snntorch.Leaky(beta=0.9)\n"
    "spk, mem = lif.sequence(x)\n"
    "state = ref.reset_mem()\n"
    "for t in range(6):\n"
    "    s, state = ref(x[t], state)\n"
    "    assert torch.equal(spk[t], s) and torch.equal(mem[t], state)\n"
    "print(host.isa())\n"
)


def run(code, **environment):
    return python("-c", code, status=None, env=environment)


def test_native_library_is_there_where_it_is_required():
    if os.environ.get("SNNIPU_REQUIRE_NATIVE") != "1":
        pytest.skip("SNNIPU_REQUIRE_NATIVE is not 1")
    assert host.library is not None, host.unavailable_reason


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("isa", host.available_isas())
def test_every_instruction_set(isa):
    best = host.library.snnipu_best_isa().decode()
    if isa in ORDER and ORDER.index(isa) > ORDER.index(best):
        pytest.skip(f"this processor has no {isa}")
    done = run(CHECK, SNNIPU_ISA=isa)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == isa


@needs_native
@pytest.mark.skipif(not (sys.platform == "linux" and platform.machine() == "x86_64"), reason="of Linux on x86-64")
@pytest.mark.parametrize("isa", host.available_isas())
def test_the_best_instruction_set_is_what_linux_tells(isa):
    """The compiler of the library does not matter; some compilers' runtimes do not know the processor."""
    (flags,) = {line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")}
    flags = set(flags.split())
    best = "baseline"
    if {"avx2", "fma", "f16c", "bmi1", "popcnt"} <= flags:
        best = "avx512" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else "avx2"
    if ORDER.index(isa) > ORDER.index(best):
        pytest.skip(f"this processor has no {isa}")
    assert host._open(isa).snnipu_best_isa().decode() == best


# The newest versions that a manylinux_2_27 wheel may need (Ubuntu 18.04, Debian 10, RHEL 8 and later).
OLDEST = {"GLIBC": (2, 27), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}


@needs_native
@pytest.mark.skipif(not shutil.which("objdump") or sys.platform != "linux", reason="of Linux, with binutils")
@pytest.mark.parametrize("file", sorted(path.name for path in libraries.native_folder().glob("*.so")))
def test_older_systems_have_what_is_needed(file):
    """``csrc/host/old_runtimes.hpp``, tested where this machine's compiler built the libraries."""
    table = subprocess.run(
        ["objdump", "-T", str(libraries.native_folder() / file)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    needed = [
        (line.split()[-1], needed_version) for line in table.splitlines() for needed_version in VERSION.findall(line)
    ]
    assert needed
    newer = [
        (symbol, f"{runtime}_{version}")
        for symbol, (runtime, version) in needed
        if tuple(map(int, version.split("."))) > OLDEST[runtime]
    ]
    assert newer == []


@pytest.mark.parametrize(
    ("built", "best", "loaded"),
    [
        (["avx2", "avx512", "baseline"], "avx512", "avx512"),
        (["avx2", "avx512", "baseline"], "avx2", "avx2"),
        (["avx2"], "avx512", "avx2"),
        (["avx512"], "avx2", None),
        (["avx2"], "baseline", None),
        (["neon"], "neon", "neon"),
    ],
)
def test_no_library_is_loaded_that_the_processor_cannot_run(monkeypatch, built, best, loaded):
    """A clone or an image that was built on this processor may run on another one."""

    class Library(types.SimpleNamespace):
        def __getattr__(self, name):  # the functions whose arguments are declared
            return types.SimpleNamespace()

    monkeypatch.delenv("SNNIPU_ISA", raising=False)
    monkeypatch.setattr(host, "find", lambda: types.SimpleNamespace(problem=None))
    monkeypatch.setattr(host, "available_isas", lambda: built)
    monkeypatch.setattr(host, "_open", lambda isa: Library(isa=isa, snnipu_best_isa=lambda: best.encode()))
    if loaded is not None:
        assert host._load().isa == loaded
    else:
        with pytest.raises(host.NativeLibraryError, match=f"the processor {best}"):
            host._load()


@pytest.mark.slow
@needs_native
def test_unknown_instruction_set():
    done = run(CHECK, SNNIPU_ISA="avx9000")
    assert "SNNIPU_ISA must be one of" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "__asan_init"), reason="for make sanitize: no address sanitizer")
def test_the_sanitizers_see_an_overrun():
    """The library is built with the sanitizers: they report an output that is one element too short."""
    done = run(
        "import torch\n"
        "from snnipu.backends import sparse_call\n"
        "sparse_call.pointer = lambda name, tensor, dtype, size: tensor.data_ptr()\n"  # would refuse it
        "slots = dict(ids=torch.zeros(1, 1, 1).int(), values=torch.ones(1, 1, 1), counts=torch.ones(1, 1, 2).int())\n"
        "sizes = dict(steps=1, batch=1, slots=1, cells=1, neurons=10)\n"
        "sparse_call.run('sparse_to_dense_fwd', torch.float32, {'out': torch.empty(1, 9), **slots, **sizes})\n"
    )
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    assert "csrc/host/select_spikes.cpp" in done.stderr


@pytest.mark.slow
def test_without_the_library_the_reference_runs_and_says_so_once(tmp_path):
    done = run(CHECK, SNNIPU_NATIVE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "None"
    assert done.stderr.count("slow PyTorch reference") == 1
    assert "SNNIPU_REQUIRE_NATIVE=1 pip install" in done.stderr


@pytest.mark.slow
def test_why_the_build_failed_is_told(tmp_path):
    (tmp_path / "build_failed.txt").write_text("no C++ compiler found\n")
    assert "was not built (no C++ compiler found)" in run(CHECK, SNNIPU_NATIVE_DIR=str(tmp_path)).stderr


@pytest.mark.slow
@needs_native
def test_a_library_of_another_version_is_refused(tmp_path):
    other = __version__.translate(str.maketrans("0123456789", "9876543210"))
    for path in host.native_folder().glob("*.so"):
        binary = path.read_bytes()
        version = __version__.encode() + b"\0"
        assert version in binary
        (tmp_path / path.name).write_bytes(binary.replace(version, other.encode() + b"\0"))
    done = run(CHECK, SNNIPU_NATIVE_DIR=str(tmp_path))
    assert f"of version {other}, the package of {__version__}" in done.stderr
    assert done.stdout.strip() == "None"


@pytest.mark.slow
def test_a_damaged_library_is_told(tmp_path):
    (tmp_path / "libsnnipu-baseline.so").write_bytes(b"not a library")
    assert "cannot be loaded" in run(CHECK, SNNIPU_NATIVE_DIR=str(tmp_path)).stderr


def build(folder, *options, **environment):
    source = folder / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    (source / "README.md").write_text("")
    for name in ("csrc", "snnipu"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "_native"))
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace", *options],
        cwd=str(source),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done, source / "snnipu" / "_native"


def test_without_a_compiler_the_build_goes_on(tmp_path):
    pytest.importorskip("setuptools")
    done, native = build(tmp_path, CXX="/no/such/compiler", SNNIPU_REQUIRE_NATIVE="0")
    assert done.returncode == 0, done.stdout
    assert "native library was not built" in done.stdout
    assert "/no/such/compiler" in (native / "build_failed.txt").read_text()


def test_without_a_compiler_the_build_fails_where_it_is_required(tmp_path):
    pytest.importorskip("setuptools")
    done, _ = build(tmp_path, CXX="/no/such/compiler", SNNIPU_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert "/no/such/compiler" in done.stdout


def test_one_instruction_set_that_does_not_exist(tmp_path):
    pytest.importorskip("setuptools")
    done, _ = build(tmp_path, "--isa", "avx9000", SNNIPU_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert "--isa must be one of" in done.stdout


def test_backend_for():
    expected = "reference" if host.library is None else "host"
    assert backends.backend_for("lif_sequence", torch.device("cpu")) == expected
    assert backends.backend_for("lif_step", torch.device("meta")) == "reference"
    assert "meta" in backends.why_reference(torch.device("meta"))
    with pytest.raises(ValueError, match="op must be one of"):
        backends.backend_for("no_such_op", torch.device("cpu"))


def test_vertices_are_free_of_host_code():
    """Codelets and mathematical functions include only Poplar's vertex header and popc's standard headers."""
    allowed = {"<poplar/Vertex.hpp>", "<cmath>", "<cstdint>", "<cstring>", "<type_traits>", "<utility>", "<cstddef>"}
    for folder in ("neuron", "vertices"):
        for path in (ROOT / "csrc" / folder).iterdir():
            lines = path.read_text().splitlines()
            guarded = False
            for line in lines:
                guarded = (guarded or line.startswith("#if defined(__SSE2__)")) and not line.startswith("#endif")
                if line.startswith("#include") and not guarded:
                    included = line.split()[1]
                    is_ours = included.startswith(('"neuron/', '"vertices/', '"generated_'))
                    assert included in allowed or is_ours, f"{path.name}: {line}"
