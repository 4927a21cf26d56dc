"""Neurons compiled on this machine: the folders of the libraries, the files that are trusted, and the fallback."""

import multiprocessing
import os
import re
import shutil
import stat
import subprocess
import sys
import warnings

import pytest
import torch
from support.killed import ROUNDS, killed_together, needs_kill

from snnipu import _native_sources
from snnipu.backends import compiled, host
from snnipu.ops import _neurons

pytestmark = [
    pytest.mark.skipif(host.library is None, reason=host.unavailable_reason or ""),
    pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users here"),
]
STEP = """
import snnipu as snn

@snn.neuron(states=("mem",), parameters={"beta": 0.9})
def Plain(x, mem, *, beta, spike):
    mem = beta * mem + x
    return spike(mem - 1), mem
"""
namespace = {}
exec(compile(STEP, "plain", "exec"), namespace)
Plain = namespace["Plain"]
NAME = Plain().equation
X = torch.randn(5, 2, 33)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Compile the neuron's library once."""
    compiled._folder_of.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SNNIPU_NEURONS_DIR", str(tmp_path_factory.mktemp("first")))
        patch.setattr(compiled, "_loaded", {})
        assert compiled.kernels(NAME, _neurons.find(NAME), torch.float32) is not None
        (path,) = compiled._folder().glob("*.so")
    return path


@pytest.fixture
def compiler(library, tmp_path, monkeypatch):
    """A compiler that copies the finished library and counts its calls."""
    script, calls = tmp_path / "c++", tmp_path / "calls"
    calls.touch()
    script.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo quick 1.0; exit; fi\n'
        f'echo "$@" >> {calls}; [ -n "$SLOW" ] && sleep 0.5\n'
        f'while [ "$1" != -o ]; do shift; done; cp {library} "$2"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("SNNIPU_NEURONS_DIR", str(tmp_path / "kept" / "neurons"))
    forget(monkeypatch)
    return lambda: len(calls.read_text().splitlines())


def forget(monkeypatch):
    """Clear all caches, which is the state of a new process."""
    monkeypatch.setattr(compiled, "_loaded", {})
    compiled._folder_of.cache_clear()
    compiled._temporary.cache_clear()
    compiled._warn.cache_clear()


def load(monkeypatch):
    forget(monkeypatch)
    return compiled.kernels(NAME, _neurons.find(NAME), torch.float32)


def cached_libraries():
    return sorted(compiled.cache_folder().glob("*.so"))


@pytest.mark.slow
def test_it_is_compiled_once_and_kept(compiler, monkeypatch, capfd):
    assert load(monkeypatch) is not None
    output = capfd.readouterr().err
    assert re.search(
        r"snnipu: compiling the neuron Plain for float32 with \S+/c\+\+; it is kept in \S+/kept/neurons", output
    )
    assert re.search(r"snnipu: compiled Plain for float32 in \d+\.\d s", output)
    assert load(monkeypatch) is not None
    assert compiler() == 1
    assert capfd.readouterr().err == ""
    folder = compiled.cache_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (path,) = cached_libraries()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == os.geteuid()
    assert not list(folder.glob(".*.tmp"))


def in_a_process():
    sys.exit(0 if compiled.kernels(NAME, _neurons.find(NAME), torch.float32) else 1)


@pytest.mark.slow
def test_many_processes_compile_once(compiler, monkeypatch, capfd):
    monkeypatch.setenv("SLOW", "1")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=in_a_process) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 6
    assert compiler() == 1
    assert capfd.readouterr().err.count("compiling the neuron") == 1
    assert len(cached_libraries()) == 1


def compile_again(number):
    while True:
        compiled._loaded.clear()
        compiled.kernels(NAME, _neurons.find(NAME), torch.float32)


@pytest.mark.slow
@needs_kill
def test_processes_that_compile_are_killed(compiler, library, monkeypatch, tmp_path):
    content = library.read_bytes()
    for turn in range(ROUNDS):
        monkeypatch.setenv("SNNIPU_NEURONS_DIR", str(tmp_path / str(turn)))
        forget(monkeypatch)
        killed_together(compile_again)
        before, calls = cached_libraries(), compiler()
        assert all(path.read_bytes() == content for path in before)
        assert load(monkeypatch) is not None
        assert compiler() - calls == (0 if before else 1)
        assert [path.read_bytes() for path in cached_libraries()] == [content]


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "a folder", "a link"])
def test_what_is_damaged_is_made_anew(compiler, monkeypatch, tmp_path, damage):
    assert load(monkeypatch) is not None
    (path,) = cached_libraries()
    content = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage == "a link":
        (tmp_path / "elsewhere").write_bytes(content)
        path.symlink_to(tmp_path / "elsewhere")
    else:
        changed = content[:-1] + bytes([content[-1] ^ 1])
        path.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "changed": changed}[damage])
        path.chmod(0o600)
    if damage == "a folder":
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            assert load(monkeypatch) is None
        return
    assert load(monkeypatch) is not None
    assert compiler() == 2
    (path,) = cached_libraries()
    assert path.read_bytes() == content
    assert not path.is_symlink()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666], ids=oct)
def test_a_library_that_others_may_write_is_not_loaded(compiler, monkeypatch, mode):
    assert load(monkeypatch) is not None
    (path,) = cached_libraries()
    path.chmod(mode)
    assert load(monkeypatch) is not None
    assert compiler() == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def other_user(monkeypatch, *paths):
    """Make ``paths`` look like files of another user."""
    lstat, opened = os.lstat, os.fstat
    keys = {(path.stat().st_dev, path.stat().st_ino) for path in paths}

    def change(result):
        if (result.st_dev, result.st_ino) not in keys:
            return result
        values = list(result)
        values[4] = os.geteuid() + 1
        return os.stat_result(values)

    monkeypatch.setattr(os, "lstat", lambda *args, **more: change(lstat(*args, **more)))
    monkeypatch.setattr(os, "fstat", lambda *args: change(opened(*args)))


def test_a_library_of_another_user_is_not_loaded(compiler, monkeypatch):
    assert load(monkeypatch) is not None
    other_user(monkeypatch, *cached_libraries())
    assert load(monkeypatch) is not None
    assert compiler() == 2


@pytest.mark.parametrize("whose", ["writable", "another user's", "above writable", "above another user's", "a file"])
def test_a_folder_that_others_may_change_is_not_used(compiler, monkeypatch, tmp_path, whose):
    folder = compiled.cache_folder()
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    if whose == "a file":
        folder.rmdir()
        folder.touch()
    elif "writable" in whose:
        (folder.parent if "above" in whose else folder).chmod(0o777)
    else:
        other_user(monkeypatch, folder.parent if "above" in whose else folder)
    with pytest.warns(
        RuntimeWarning, match="are not kept for the next process; SNNIPU_NEURONS_DIR names another folder"
    ):
        assert load(monkeypatch) is not None
    assert compiler() == 1
    assert whose == "a file" or not list(folder.iterdir())
    used = compiled._folder()
    assert used != folder
    assert stat.S_IMODE(used.stat().st_mode) == 0o700
    compiled._temporary().cleanup()


def test_a_folder_that_others_may_read_is_closed(compiler, monkeypatch):
    folder = compiled.cache_folder()
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    assert load(monkeypatch) is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_where_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("SNNIPU_NEURONS_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    for base, folder in (("", ".cache"), ("relative", ".cache"), (str(tmp_path / "other"), "other")):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert compiled.cache_folder() == tmp_path / folder / "snnipu" / "neurons"


@pytest.mark.parametrize("why", ["no compiler", "no such", "fails", "no library"])
def test_the_reference_runs_where_nothing_compiles(compiler, monkeypatch, tmp_path, why):
    expected = Plain().sequence(X)
    forget(monkeypatch)
    match = {"no compiler": "no C\\+\\+ compiler found", "no such": "No such file", "no library": "cannot be loaded"}
    if why == "no compiler":
        monkeypatch.delenv("CXX")
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
        monkeypatch.setattr(_native_sources, "_ziglang", lambda: None)
    elif why == "no such":
        monkeypatch.setenv("CXX", str(tmp_path / "gone"))
    else:
        script = tmp_path / "bad"
        fails = (
            "echo 'x.cpp:1: error: wrong'; exit 1"
            if why == "fails"
            else 'while [ "$1" != -o ]; do shift; done; echo > $2'
        )
        script.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo bad 1.0; exit; fi\n{fails}\n')
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
    x = X.clone().requires_grad_()
    with pytest.warns(
        RuntimeWarning, match=match.get(why, "failed for Plain for float32: x.cpp:1: error: wrong")
    ) as warned:
        out = Plain(learn=True).sequence(x)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out[0].sum().backward()
        Plain().sequence(X)
    for actual, other in zip(out, expected):
        assert torch.equal(actual, other)


@pytest.mark.skipif(_native_sources._ziglang() is None, reason="no ziglang")
def test_ziglang_compiles_where_the_system_has_no_compiler(compiler, monkeypatch, tmp_path, capfd):
    expected = Plain().sequence(X)
    forget(monkeypatch)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    results = Plain().sequence(X)
    assert re.search(r"compiled Plain for float32", capfd.readouterr().err)
    assert compiler() == 1  # the other compiler, called for the expected result
    for actual, other in zip(results, expected):
        assert torch.equal(actual, other)


@pytest.mark.parametrize("what", ["dtype", "compiler", "header", "step"])
def test_each_has_a_library_of_its_own(compiler, monkeypatch, tmp_path, what):
    assert load(monkeypatch) is not None
    forget(monkeypatch)
    neuron, dtype = _neurons.find(NAME), torch.float32
    if what == "dtype":
        dtype = torch.float64
    elif what == "compiler":
        monkeypatch.setenv("CXX", f"{os.environ['CXX']} -g")
        monkeypatch.setattr(compiled, "first_output_line", lambda words: "another 2.0")
    elif what == "header":
        folder = tmp_path / "csrc"
        shutil.copytree(compiled.header_folder(), folder)
        with (folder / "neuron" / "sequence.hpp").open("a") as file:
            file.write("//\n")
        monkeypatch.setattr(compiled, "header_folder", lambda: folder)
    else:
        neuron = neuron._replace(parameters=[*neuron.parameters, "other"])
    assert compiled.kernels(NAME, neuron, dtype) is not None
    assert compiler() == 2
    assert len(cached_libraries()) == 2


def test_leftovers_of_dead_processes_are_removed(compiler, monkeypatch):
    assert load(monkeypatch) is not None
    old, new = (compiled.cache_folder() / f".{age}.tmp" for age in ("old", "new"))
    for file in (old, new):
        file.touch()
    os.utime(old, (0, 0))
    cached_libraries()[0].unlink()
    assert load(monkeypatch) is not None
    assert not old.exists()
    assert new.exists()


def test_a_stopped_process_is_not_waited_for_forever(compiler, monkeypatch, capfd):
    compiled.cache_folder().mkdir(parents=True, mode=0o700)
    lock = compiled.cache_folder() / ".lock"
    hold = (
        f"import fcntl, sys; f = open({str(lock)!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "1\n"
    monkeypatch.setattr(compiled, "_LOCK_TIMEOUT", 1.5)
    assert load(monkeypatch) is not None
    assert "another process compiles a neuron" in capfd.readouterr().err
    process.communicate("\n")
