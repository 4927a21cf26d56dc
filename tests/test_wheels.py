"""The wheels of ``make wheel``: formats, needs and exports of their libraries, pip's choice, and their runs.

``make wheel`` sets ``SNNIPU_WHEELS`` to their folder. Wine runs the wheels for Windows, and qemu those for aarch64
Linux
(``make test-emulated``). Every test of the operators then sends its calls to the wheel's library. The wheels for macOS
cannot run elsewhere. ``SNNIPU_WINDOWS_OPENMP`` names a ``libiomp5md.dll`` for the threads, the library of PyTorch.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.emulation import build_runner, run_tests

from snnipu import _native_sources
from snnipu.backends import host

FOLDER = Path(os.environ.get("SNNIPU_WHEELS", ""))
pytestmark = pytest.mark.skipif(not FOLDER.name, reason="SNNIPU_WHEELS is not set: for make wheel")

X86, NEON = ["baseline", "avx2", "avx512"], ["neon"]
# Wheels' tags -> the libraries in one.
SYSTEMS = {
    "manylinux*_x86_64": {*X86, "ipu-model"},
    "manylinux*_aarch64": {*NEON, "ipu-model"},
    "macosx_11_0_arm64": {*NEON},
    "win_amd64": {*X86},
}
# Libraries of every such system. On Linux auditwheel checks the C++ runtime, which PyTorch needs too.
NEEDED = {
    "manylinux": r"(libc|libm|libpthread|libdl|librt|libgcc_s|libstdc\+\+|ld-linux-.*)\.so\.\d+",
    "macosx": r"/usr/lib/(libSystem\.B|libc\+\+\.1)\.dylib",
    "win": r"(?i)(kernel32|api-ms-win-crt-[a-z]+-l\d-\d-\d)\.dll",
}


def wheel(pattern):
    (path_of_wheel,) = (path for path in FOLDER.glob("snnipu-*.whl") if fnmatch(path.stem.split("-")[-1], pattern))
    return path_of_wheel


def libraries(pattern):
    """Return {name: contents} of the native libraries in the wheel."""
    with zipfile.ZipFile(wheel(pattern)) as archive:
        files = [name for name in archive.namelist() if name.startswith("snnipu/_native/libsnnipu-")]
        return {Path(name).stem.split("-", 1)[1]: archive.read(name) for name in files}


class Library:
    """A library's format and machine, its needed libraries, and its exports."""

    def __init__(self, content):
        lief = pytest.importorskip("lief")
        parsed = lief.parse(list(content))
        self.format = type(parsed).__module__.split(".")[-1]
        if self.format == "ELF":
            self.machine = parsed.header.machine_type.name
            self.needs = list(parsed.libraries)
            self.exports = {symbol.name for symbol in parsed.exported_symbols}
        elif self.format == "MachO":
            self.machine = parsed.header.cpu_type.name
            self.needs = [command.name for command in parsed.libraries if command.command.name != "ID_DYLIB"]
            self.exports = {symbol.name[1:] for symbol in parsed.exported_symbols}
            self.oldest, self.signed = list(parsed.build_version.minos), parsed.has_code_signature
        else:
            self.machine = parsed.header.machine.name
            self.needs = [entry.name for entry in parsed.imports]
            self.exports = {entry.name for entry in parsed.get_export().entries}


def exports_of(name, library):
    prefix = "snnipu_ipu_" if name == "ipu-model" else "snnipu_"
    return {export for export in library.exports if export.startswith(prefix)}


@pytest.mark.parametrize("pattern", SYSTEMS)
def test_libraries(pattern):
    by_name = {name: Library(content) for name, content in libraries(pattern).items()}
    assert set(by_name) == SYSTEMS[pattern]
    (needed,) = (expression for system, expression in NEEDED.items() if pattern.startswith(system))
    kind = {"manylinux*_x86_64": ("ELF", "X86_64"), "manylinux*_aarch64": ("ELF", "AARCH64")}
    kind.update({"macosx_11_0_arm64": ("MachO", "ARM64"), "win_amd64": ("PE", "AMD64")})
    # The library whose functions this package calls.
    baseline = Library(libraries("manylinux*_x86_64")["baseline"])
    for name, library in by_name.items():
        assert (library.format, library.machine) == kind[pattern], name
        assert [need for need in library.needs if not re.fullmatch(needed, need)] == [], name
        if name == "ipu-model":
            continue
        # The same interface everywhere.
        assert "snnipu_neuron_forward" in library.exports
        assert exports_of(name, library) == exports_of("baseline", baseline), name
        if library.format == "PE":
            assert library.exports == exports_of(name, library), name
        if library.format == "MachO":
            assert (library.oldest, library.signed) == ([11, 0, 0], True), name


@pytest.mark.parametrize("pattern", SYSTEMS)
def test_pip_finds_it(pattern, tmp_path):
    tag = wheel(pattern).stem.split("-")[-1].split(".")[0]
    # A later macOS accepts wheels for an earlier one.
    platform = "macosx_14_0_arm64" if tag.startswith("macosx") else tag
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-index", f"--find-links={FOLDER}", "--no-deps"]
    command += ["--only-binary=:all:", f"--platform={platform}", "--python-version=3.8", "snnipu"]
    subprocess.run([*command, f"--dest={tmp_path}"], check=True)
    assert [path.name for path in tmp_path.iterdir()] == [wheel(pattern).name]


@pytest.fixture
def ziglang():
    command = _native_sources._ziglang()
    if command is None:
        pytest.skip("no ziglang to compile kernel_runner.cpp")
    return [str(command), "c++", "-target"]


def extracted(pattern, name, folder):
    with zipfile.ZipFile(wheel(pattern)) as archive:
        (member,) = (each for each in archive.namelist() if Path(each).stem == f"libsnnipu-{name}")
        return Path(archive.extract(member, str(folder)))


@pytest.mark.skipif(not shutil.which("wine"), reason="no wine")
@pytest.mark.parametrize("threads", ["std::thread", "openmp"])
@pytest.mark.parametrize("isa", X86)
def test_windows_emulated(isa, threads, ziglang, tmp_path):
    if isa not in X86[: X86.index(host.library.snnipu_best_isa().decode()) + 1]:
        pytest.skip(f"this processor has no {isa}")
    runtime = os.environ.get("SNNIPU_WINDOWS_OPENMP", "")
    if threads == "openmp" and not runtime:
        pytest.skip("SNNIPU_WINDOWS_OPENMP names no libiomp5md.dll")
    runner, library = tmp_path / "kernel_runner.exe", extracted("win_amd64", isa, tmp_path)
    build_runner([*ziglang, "x86_64-windows-gnu"], runner)
    command = f"wine {runner} {runtime if threads == 'openmp' else ''} {library}"
    # Wine 8 does not report the places of processors to Intel's runtime.
    wine = {"WINEPREFIX": str(tmp_path / "wine"), "WINEDEBUG": "-all", "KMP_AFFINITY": "disabled"}
    subprocess.run(["wineboot", "--init"], env={**os.environ, **wine}, check=True)
    try:
        output = run_tests(command, "", **wine)
    finally:
        subprocess.run(["wineserver", "--kill"], env={**os.environ, **wine}, check=False)
    assert f"({isa}, the best is {host.library.snnipu_best_isa().decode()}, threads by {threads})" in output


@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="no qemu-aarch64 (Debian: qemu-user)")
@pytest.mark.skipif(not Path("/usr/aarch64-linux-gnu").is_dir(), reason="no libc6-arm64-cross")
def test_aarch64_emulated(ziglang, tmp_path):
    runner, library = tmp_path / "kernel_runner", extracted("manylinux*_aarch64", "neon", tmp_path)
    build_runner([*ziglang, "aarch64-linux-gnu.2.17"], runner, "-ldl")
    output = run_tests(f"qemu-aarch64 -L /usr/aarch64-linux-gnu {runner} {library}", "")
    assert "(neon, the best is neon, threads by std::thread)" in output
