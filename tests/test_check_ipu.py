"""`make check-ipu`: Clang compiles the SDK users' sources with warnings as errors."""

import shutil
import subprocess
import sys

import pytest
from support.commands import ROOT
from support.versions import needs_make

CHECK = ROOT / "csrc" / "ipu_model" / "popc" / "check.py"
pytestmark = pytest.mark.skipif(not CHECK.is_file(), reason="needs the sources")


def run(*command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


@needs_make
def test_every_source_is_checked_as_the_sdk_compiles_it():
    done = run("make", "-n", "-C", str(ROOT / "custom_ops"), "check", "CXX=clang++", "INCLUDES=-Iheaders")
    commands = {line.split()[-1]: line for line in done.stdout.splitlines() if line.startswith("clang++ ")}
    assert set(commands) == {
        str(path) for folder in ("custom_ops", "csrc/graph", "csrc/vertices") for path in (ROOT / folder).glob("*.cpp")
    }
    for source, command in commands.items():
        for flag in ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-DSNNIPU_LANE_BYTES=8", "-fsyntax-only"):
            assert flag in command.split()
        vertex = "/vertices/" in source
        assert ("-D__POPC__" in command.split(), "-Iheaders" in command.split()) == (vertex, not vertex)


@needs_make
def test_a_warning_in_a_source_fails_the_check(tmp_path):
    for name in ("custom_ops/Makefile", "snnipu/_version.py", "snnipu/equations.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "snnipu" / "_generator", tmp_path / "snnipu" / "_generator")
    pytest.importorskip("clang.cindex")
    compiler = f"CXX={sys.executable} {CHECK}"
    for folder in ("custom_ops", "csrc/graph", "csrc/vertices"):
        source = tmp_path / folder / "one.cpp"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("void f(int) {}\n")
        assert run("make", "-C", str(tmp_path / "custom_ops"), "check", compiler).returncode == 0
        source.write_text("void f(int unused) {}\n")
        done = run("make", "-C", str(tmp_path / "custom_ops"), "check", compiler)
        assert done.returncode != 0
        assert "unused parameter" in done.stdout
        source.unlink()
