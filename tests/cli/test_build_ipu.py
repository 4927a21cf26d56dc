"""``python -m snnipu build-ipu`` with stand-ins for the SDK, and with a real compiler and the IPU model."""

import importlib.util
import os
import shutil
import sys
import types
from pathlib import Path

import pytest
from support.commands import ROOT, python, refusal, words
from support.operators import needs_library
from support.versions import needs_make

import snnipu
from snnipu.backends import popart
from snnipu.backends import popart_library as build
from snnipu.cli import main
from snnipu.ipu import model as ipu_model

SDK = "3.3.0-de1f8de2a7"
# These are generated before the compilation and not deleted: their outputs must be newer.
GENERATED = ["generated_neurons.hpp", "generated_surrogates.hpp"]
POPC = """#!/bin/sh
if [ "$1" = --version ]; then
  echo "POPLAR version 3.3.0 (de1f8de2a7)"
  echo "clang version 16.0.0 (0123456789)"
  exit
fi
for word; do out=$word; done
echo "$@" > "$out"
"""
# Writes its arguments to the output file, which therefore is no library that loads.
COMPILER = """#!/bin/sh
echo "warning: something is not used" >&2
told="$*"
while [ "$1" != -o ]; do shift; done
echo "$told" > "$2"
"""
pytestmark = [
    needs_make,
    pytest.mark.skipif(sys.platform == "win32", reason="the SDK is for Linux"),
]


def build_ipu(*arguments):
    return main(words("build-ipu", *arguments))


def fails(capsys, *arguments):
    """Return the error of a build that fails."""
    assert build_ipu(*arguments) == 1
    return capsys.readouterr().err


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def sdk(tmp_path, monkeypatch):
    """Set up an enabled SDK whose popc is a script, and an empty cache."""
    folder = tmp_path / "sdk" / "poplar"
    script(folder / "bin" / "popc", POPC)
    monkeypatch.setenv("POPLAR_SDK_ENABLED", str(folder))
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SNNIPU_POPART_LIBRARY", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    return folder


@pytest.fixture
def compiler(sdk, tmp_path, monkeypatch):
    """Use a script as compiler; its output passes for a library."""
    monkeypatch.setattr(build, "_check_loads", lambda library: None)
    monkeypatch.setenv("CXX", str(script(tmp_path / "cxx", COMPILER)))
    return tmp_path / "cxx"


@pytest.fixture
def no_library_beside(tmp_path, monkeypatch):
    """Use an empty folder for the native libraries."""
    monkeypatch.setattr(build, "native_folder", lambda: tmp_path / "native")
    return tmp_path / "native"


def cached(tmp_path, sdk=SDK, version=snnipu.__version__):
    return tmp_path / "cache" / "snnipu" / "ipu" / f"{version}-{sdk}"


def test_builds_into_the_cache_where_it_is_found(compiler, no_library_beside, tmp_path, capsys):
    assert build_ipu() == 0
    printed = capsys.readouterr().out
    folder = cached(tmp_path)
    library = (folder / build.LIBRARY).read_text()
    for source in [*(ROOT / "custom_ops").glob("*.cpp"), *(ROOT / "csrc" / "graph").glob("*.cpp")]:
        assert str(source) in library
    assert f'-DSNNIPU_VERSION="{snnipu.__version__}"' in library
    assert library.rstrip().endswith("-lpopart -lpoplar -ldl")
    codelets = (folder / build.CODELETS).read_text()
    for source in (ROOT / "csrc" / "vertices").glob("*.cpp"):
        assert str(source) in codelets
    assert "something is not used" in (folder / build.LOG).read_text()
    assert f"for the Poplar SDK {SDK}, in {folder}" in printed
    assert "[2/2] snnipu.gp: vertices, compiled by popc" in printed
    assert f"layers under PopTorch load {folder / build.LIBRARY}" in printed
    assert build.library_path() == folder / build.LIBRARY


def test_what_is_up_to_date_is_left(compiler, tmp_path, capsys):
    assert build_ipu() == 0
    library = cached(tmp_path) / build.LIBRARY
    before = library.stat().st_mtime_ns
    capsys.readouterr()
    assert build_ipu() == 0
    assert capsys.readouterr().out.count("up to date") == 2
    assert library.stat().st_mtime_ns == before
    assert build_ipu("--force") == 0
    assert "up to date" not in capsys.readouterr().out
    assert library.stat().st_mtime_ns > before


def test_dry_run_runs_nothing(compiler, tmp_path, capsys):
    assert build_ipu("--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"OUT={cached(tmp_path)}" in lines[0]
    assert any(line.startswith(f"{compiler} -O2 ") and build.LIBRARY in line for line in lines)
    assert any(line.startswith("popc ") and line.endswith(f"-o {cached(tmp_path) / build.CODELETS}") for line in lines)
    assert not (tmp_path / "cache").exists()


def test_no_sdk(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("POPLAR_SDK_ENABLED", raising=False)
    error = fails(capsys)
    assert "no Poplar SDK is enabled: POPLAR_SDK_ENABLED is not set and popc is not on the PATH" in error
    assert "source <sdk>/enable" in error
    monkeypatch.setenv("POPLAR_SDK_ENABLED", "/opt/poplar")
    error = fails(capsys, "--output", tmp_path / "out")
    assert "POPLAR_SDK_ENABLED is /opt/poplar, but popc is not on the PATH" in error
    assert not (tmp_path / "out").exists()


def test_popc_without_a_version(sdk, compiler, tmp_path, capsys):
    script(sdk / "bin" / "popc", POPC.replace("POPLAR version", "Poplar").replace("clang version", "clang"))
    assert "does not print a version (Poplar 3.3.0 (de1f8de2a7)): choose a folder with --output" in fails(capsys)
    assert build_ipu("--output", tmp_path / "out") == 0


def test_no_compiler(sdk, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    assert "there is no C++ compiler 'no-such-compiler -m64', which CXX names" in fails(capsys)
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(build, "_COMPILERS", ("no-such-compiler",))
    assert "install g++, or name one in CXX (looked for no-such-compiler)" in fails(capsys)


@pytest.mark.parametrize(
    ("errors", "shown"),
    [
        (
            "op.cpp:3:7: error: no member named 'x'\nop.cpp:9:1: error: another",
            "op.cpp:3:7: error: no member named 'x'\n",
        ),
        (
            "In file included\noperator.hpp:4:10: fatal error: popart/error.hpp: No such file or directory",
            "fatal error: popart/error.hpp: No such file or directory\n  PopART is not enabled: source its enable.sh",
        ),
        ("warning: old\n/usr/bin/ld: cannot find -lpoplar", "cannot find -lpoplar\n  Poplar is not enabled"),
    ],
)
def test_failed_compilation(errors, shown, compiler, tmp_path, capsys):
    """The first error is shown and the log is kept; a partial output is no library."""
    lines = "\n".join(f'echo "{line}"' for line in errors.splitlines())
    script(compiler, COMPILER.replace('echo "warning: something is not used" >&2', lines) + "exit 1\n")
    error = fails(capsys)
    assert f"{build.LIBRARY} was not built:\n" in error
    assert shown in error
    assert "another" not in error
    log = cached(tmp_path) / build.LOG
    assert f"the whole log: {log}" in error
    assert errors.splitlines()[-1] in log.read_text()
    assert sorted(path.name for path in cached(tmp_path).iterdir()) == [build.LOG, *GENERATED]


def test_a_library_that_does_not_load(sdk, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CXX", str(script(tmp_path / "cxx", COMPILER)))
    assert f"{build.LIBRARY} was built, but cannot be loaded: OSError" in fails(capsys)


def test_wrong_folders(compiler, tmp_path, capsys):
    assert "make cannot handle blanks in paths" in fails(capsys, "--output", tmp_path / "a folder")
    (tmp_path / "file").write_text("")
    assert f"cannot write to {tmp_path / 'file'}" in fails(capsys, "--output", tmp_path / "file")
    assert "--no-such-option" in refusal(capsys, main, "build-ipu --no-such-option")


def test_which_library_is_taken(sdk, no_library_beside, tmp_path, monkeypatch):
    """The order is: the variable, beside the native libraries, the cache for this package and SDK."""

    def make(folder):
        folder.mkdir(parents=True)
        (folder / build.LIBRARY).write_text("")
        return folder / build.LIBRARY

    assert build.library_path() == no_library_beside / build.LIBRARY
    make(cached(tmp_path, version="0.0.0"))
    make(cached(tmp_path, sdk="3.2.0-0123456789"))
    assert build.cached_library() is None
    ours = make(cached(tmp_path))
    assert build.library_path() == ours
    # If popc is missing (PopTorch's wheel alone), two cached libraries are ambiguous.
    script(sdk / "bin" / "popc", "#!/bin/sh\nexit 1\n")
    assert build.cached_library() is None
    shutil.rmtree(cached(tmp_path, sdk="3.2.0-0123456789"))
    assert build.library_path() == ours
    beside = make(no_library_beside)
    assert build.library_path() == beside
    monkeypatch.setenv("SNNIPU_POPART_LIBRARY", "/elsewhere/lib.so")
    assert build.library_path() == Path("/elsewhere/lib.so")


def test_layers_say_how_to_build(sdk, no_library_beside, tmp_path, monkeypatch):
    real = types.ModuleType("poptorch")
    real.isRunningOnIpu = lambda: True
    monkeypatch.setitem(sys.modules, "poptorch", real)
    monkeypatch.setattr(popart, "_POPTORCH_INSTALLED", True)
    monkeypatch.setattr(popart, "_loaded", {})
    with pytest.raises(
        RuntimeError, match=r"Leaky cannot run on an IPU: .*`python -m snnipu build-ipu` builds them"
    ) as e:
        popart.uses_operator("Leaky", "NeuronSequence")
    assert str(tmp_path / "native") in str(e.value)
    assert str(tmp_path / "cache") in str(e.value)


@pytest.mark.slow
def test_an_installed_package_has_the_sources(compiler, tmp_path):
    """The build of a wheel copies all files of the Makefile, and the copy builds alone."""
    # setup.py needs these; in an isolated build pip installs them.
    pytest.importorskip("setuptools", minversion="64")
    if importlib.util.find_spec("setuptools.command.bdist_wheel") is None:
        pytest.importorskip("wheel")
    installed = tmp_path / "installed"
    python(*words("setup.py --quiet egg_info --egg-base", tmp_path, "build_py --build-lib", installed), cwd=ROOT)
    copy = installed / "snnipu" / "_ipu_sources"
    for pattern in ("custom_ops/*.?pp", "csrc/graph/*.?pp", "csrc/neuron/*.?pp", "csrc/vertices/*.?pp"):
        ours = {path.relative_to(ROOT): path.read_bytes() for path in ROOT.glob(pattern)}
        assert ours
        assert {path.relative_to(copy): path.read_bytes() for path in copy.glob(pattern)} == ours
    command = words("-W ignore -m snnipu build-ipu --dry-run")
    done = python(*command, cwd=tmp_path, env={"PYTHONPATH": str(installed)})
    assert str(copy / "custom_ops" / "surrogate_spike.cpp") in done.stdout
    assert f"-DSNNIPU_VERSION='\"{snnipu.__version__}\"'" in done.stdout
    assert str(ROOT / "csrc") not in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@needs_library
def test_one_operator_compiled_and_loaded(sdk, no_library_beside, tmp_path, monkeypatch, capsys):
    """A real compiler builds against the IPU model's headers and library, in place of the SDK's."""
    sources = tmp_path / "sources"
    names = ["custom_ops/Makefile", "snnipu/_version.py", "custom_ops/operator.cpp", "custom_ops/surrogate_spike.cpp"]
    names += ["csrc/graph/surrogate_spike.cpp", "csrc/graph/tile_mapping.cpp", "csrc/graph/vertex_name.cpp"]
    names.append("snnipu/equations.py")
    headers = [path for folder in ("custom_ops", "csrc/graph", "csrc/neuron") for path in (ROOT / folder).glob("*.hpp")]
    headers += (ROOT / "snnipu" / "_generator").glob("*.py")
    for path in [*(ROOT / name for name in names), *headers]:
        target = sources / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    monkeypatch.setattr(build, "sources", lambda: sources)
    (sdk / "include").mkdir()
    (sdk / "lib").mkdir()
    for part in ("poplar", "popart"):
        (sdk / "include" / part).symlink_to(ROOT / "csrc" / "ipu_model" / part / "include" / part)
        (sdk / "lib" / f"lib{part}.so").symlink_to(ipu_model.library_path())
    # enable.sh sets these variables.
    monkeypatch.setenv("CPATH", str(sdk / "include"))
    for name in ("LIBRARY_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, os.pathsep.join([str(sdk / "lib"), *filter(None, [os.environ.get(name)])]))
    monkeypatch.setenv("CXXFLAGS", "-O0")
    assert build_ipu() == 0, capsys.readouterr().err
    library = cached(tmp_path) / build.LIBRARY
    assert f"layers under PopTorch load {library}" in capsys.readouterr().out
    code = (
        "import sys, types; real = types.ModuleType('poptorch'); real.isRunningOnIpu = lambda: True; "
        "sys.modules['poptorch'] = real; from snnipu.backends import popart, popart_library; "
        "from pathlib import Path; popart._POPTORCH_INSTALLED = True; "
        "popart_library.native_folder = lambda: Path('/nowhere'); "
        "print(popart.uses_operator('Leaky', 'NeuronSequence'), *(lib._name for lib in popart._loaded.values()))"
    )
    assert python("-c", code, cwd=ROOT).stdout.split() == ["True", str(library)]
