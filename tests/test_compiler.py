"""The search for a C++ compiler, and its target."""

import sys

import pytest

from snnipu import _native_sources
from snnipu._native_sources import HERE, BuildTarget, find_compiler, target_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="compilers made of shell scripts")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without a compiler; returns a function that installs one."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(_native_sources.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(_native_sources.sysconfig, "get_path", lambda name: str(tmp_path / "site"))

    def install(path, answer="echo quick 1.0"):
        program = tmp_path / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{answer}\n")
        program.chmod(0o755)
        return str(program)

    return install


def test_the_order(machine, monkeypatch):
    with pytest.raises(RuntimeError, match=r"looked for \$CXX, c\+\+, g\+\+, clang\+\+, .*`pip install ziglang`"):
        find_compiler()
    zig = machine("site/ziglang/zig")
    assert find_compiler()[:3] == [zig, "c++", "-target"]
    machine("bin/c++", answer="echo install the developer tools; exit 1")
    assert find_compiler()[0] == zig
    machine("bin/clang++")
    assert find_compiler() == ["clang++"]
    machine("bin/g++")
    assert find_compiler() == ["g++"]
    monkeypatch.setenv("CXX", "ccache 'a b/c++' -m64")
    assert find_compiler() == ["ccache", "a b/c++", "-m64"]


@pytest.mark.parametrize("words", ["/opt/zig c++", "python -m ziglang c++"])
def test_zig_is_told_a_target(machine, monkeypatch, words):
    """If zig has no target, it compiles for this processor alone, and the wheel fails on others."""
    monkeypatch.setenv("CXX", words)
    assert find_compiler()[:-2] == words.split()
    assert target_of(find_compiler()) == HERE
    monkeypatch.setenv("CXX", f"{words} -target aarch64-macos.11.0")
    assert target_of(find_compiler()) == BuildTarget("darwin", "aarch64")


@pytest.mark.parametrize(
    ("triple", "system", "machine_name"),
    [
        ("x86_64-linux-gnu", "linux", "x86_64"),
        ("aarch64-redhat-linux", "linux", "aarch64"),
        ("arm64-apple-darwin23.1.0", "darwin", "aarch64"),
        ("x86_64-w64-mingw32", "windows", "x86_64"),
        ("x86_64-pc-windows-msvc", "windows", "x86_64"),
        ("amd64-unknown-freebsd14", "unknown", "x86_64"),
    ],
)
def test_targets(machine, triple, system, machine_name):
    assert target_of([machine("bin/c++", answer=f"echo {triple}")]) == BuildTarget(system, machine_name)


def test_names_of_libraries():
    assert BuildTarget("windows", "x86_64").library("avx2") == "libsnnipu-avx2.dll"
    assert BuildTarget("linux", "x86_64").library("avx2") == BuildTarget("darwin", "x86_64").library("avx2")
