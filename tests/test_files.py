"""Files are complete or absent, even with a full disk or other writers."""

import contextlib
import errno
import io
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from snnipu import _files
from snnipu._files import InUseError, WriteError, remove_leftovers, sole_writer, writable_file, write_atomically

resource = pytest.importorskip("resource")
OLD, NEW = b"old" * 100, bytes(range(256)) * 80
# Only this module: an import of PyTorch takes seconds.
ALONE = """
import importlib.util, os, signal, sys
from pathlib import Path
source, path, where = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
spec = importlib.util.spec_from_file_location("files_alone", source)
_files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(_files)
"""
HOLD = "with _files.sole_writer(path):\n    print('held', flush=True); sys.stdin.read()\n"


def start(code, path, where=""):
    command = [sys.executable, "-c", ALONE + code, _files.__file__, str(path), where]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def new(path):
    write_atomically(path, lambda file: file.write(NEW))


@contextlib.contextmanager
def room(size):
    """Limit files to ``size`` bytes; a write beyond it is cut, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("there", [False, True])
def test_no_room(tmp_path, there):
    path = tmp_path / "file"
    if there:
        path.write_bytes(OLD)
    for size in range(0, len(NEW), 977):
        with room(size), pytest.raises(WriteError, match=r"^cannot write .*file: File too large") as caught:
            new(path)
        assert ("the file that was there is unchanged" in str(caught.value)) == there
        assert names(tmp_path) == (["file"] if there else [])
        assert not there or path.read_bytes() == OLD
    with room(len(NEW)):
        new(path)
    assert path.read_bytes() == NEW


class Failing(io.BytesIO):
    """A file whose close fails because the disk is full."""

    def close(self):
        super().close()
        raise OSError(errno.ENOSPC, "No space left on device")

    def fileno(self):
        return self._real.fileno()


@pytest.mark.parametrize("call", ["fsync", "replace", "open", "close"])
def test_no_room_at_the_end(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_bytes(OLD)

    def fail(*arguments, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    opened = pathlib.Path.open

    def failing_file(self, *arguments):
        file = Failing()
        file._real = opened(self, *arguments)
        return file

    with monkeypatch.context() as patch:
        if call in ("open", "close"):
            patch.setattr(pathlib.Path, "open", fail if call == "open" else failing_file)
        else:
            patch.setattr(_files.os, call, fail)
        with pytest.raises(WriteError, match=r"^cannot write .*file: No space left on device; the file that was there"):
            new(path)
    assert names(tmp_path) == ["file"]
    assert path.read_bytes() == OLD


def test_a_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], stderr=subprocess.DEVNULL)
    if mounted.returncode:
        pytest.skip("a small disk needs the right to mount")
    try:
        path = disk / "file"
        path.write_bytes(OLD)
        with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        with pytest.raises(
            WriteError, match=r"cannot write .*file: No space left on device; the file that was there is"
        ):
            new(path)
        assert names(disk) == ["file", "filler"]
        assert path.read_bytes() == OLD
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_no_room_is_no_wrong_name(tmp_path, monkeypatch):
    for number, kind in ((errno.ENOSPC, WriteError), (errno.EACCES, OSError)):
        with monkeypatch.context() as patch:
            patch.setattr(pathlib.Path, "open", lambda *_, n=number: (_ for _ in ()).throw(OSError(n, os.strerror(n))))
            with pytest.raises(OSError, match="cannot write in ") as caught:
                writable_file(tmp_path / "file")
        assert type(caught.value) is kind


def test_an_error_of_the_writer_is_its_own(tmp_path):
    with pytest.raises(ZeroDivisionError):
        write_atomically(tmp_path / "file", lambda file: 1 // 0)
    assert names(tmp_path) == []


def test_a_pipe_is_written_to(tmp_path):
    reader, writer = os.pipe()
    write_atomically(pathlib.Path(f"/dev/fd/{writer}"), lambda file: file.write(b"text"))
    os.close(writer)
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert pathlib.Path(os.devnull).exists()
    new(pathlib.Path(os.devnull))
    assert not pathlib.Path(os.devnull).is_file()


def hold(path):
    """Start another process that holds ``path``."""
    process = start(HOLD, path)
    assert process.stdout.readline() == b"held\n"
    return process


def finish(process, kill=False):
    if kill:
        process.kill()
    process.communicate(timeout=60)


@pytest.mark.parametrize("kill", [False, True])
def test_one_writer(tmp_path, kill):
    path = tmp_path / "file"
    other = hold(path)
    try:
        with pytest.raises(InUseError, match=rf"file is being written by another run, process {other.pid} on "):
            sole_writer(path).__enter__()
        with sole_writer(tmp_path / "other file"):
            pass
    finally:
        finish(other, kill)
    assert names(tmp_path) == ([".file.lock"] if kill else [])
    # The lock ended with its process.
    with sole_writer(path):
        assert _files.is_held(path)
        assert names(tmp_path) == [".file.lock"]
        with pytest.raises(InUseError, match=rf"by another run in this process \({os.getpid()}\)"):
            sole_writer(tmp_path / "." / "file").__enter__()
    assert names(tmp_path) == []
    assert not _files.is_held(path)


def test_a_forked_worker_does_not_hold_the_lock(tmp_path):
    path = tmp_path / "file"
    ready, go = os.pipe()
    with sole_writer(path):
        worker = os.fork()
        if not worker:
            os.close(go)
            os.read(ready, 1)
            os._exit(0)
    finish(hold(path))
    os.close(go)
    os.waitpid(worker, 0)
    os.close(ready)


def test_a_lock_file_removed_in_between_is_made_again(tmp_path, monkeypatch):
    """The last holder removes the file after this process opened it: that lock would exclude no other process."""
    lock, tried, try_lock = tmp_path / ".file.lock", [], _files._try_lock

    def remove_first(file):
        if not tried:
            lock.unlink()
        tried.append(file)
        return try_lock(file)

    monkeypatch.setattr(_files, "_try_lock", remove_first)
    with sole_writer(tmp_path / "file"):
        assert len(tried) == 2
        assert lock.exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, None])
def test_without_locks(tmp_path, monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    if number is None:
        monkeypatch.setattr(_files, "fcntl", None)  # Windows has no fcntl
    else:
        monkeypatch.setattr(_files.fcntl, "lockf", fail)
    warned = pytest.warns(UserWarning, match=r"no file locks here .*: nothing keeps a second run from writing .*file")
    with warned, sole_writer(tmp_path / "file"):
        new(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == NEW
    assert names(tmp_path) == ["file"]
    # Their owner is unknown: they stay.
    (tmp_path / f".file.{dead_process()}.tmp").write_bytes(b"")
    remove_leftovers(tmp_path / "file")
    assert len(names(tmp_path)) == 2


def dead_process():
    done = subprocess.Popen([sys.executable, "-S", "-c", ""])
    done.wait()
    return done.pid


def test_leftovers_of_dead_processes_are_removed(tmp_path):
    dead, alive = dead_process(), subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    ours = [f".file.{dead}.tmp"]
    others = [f".file.{alive.pid}.tmp", f".file2.{dead}.tmp", f".file.{dead}.tmp2", ".file.x.tmp", f"file.{dead}.tmp"]
    for name in ours + others:
        (tmp_path / name).write_bytes(b"half")
    try:
        writable_file(tmp_path / "file")
        assert names(tmp_path) == sorted(others)
        (tmp_path / ours[0]).write_bytes(b"half")
        new(tmp_path / "file")
        assert names(tmp_path) == sorted([*others, "file"])
    finally:
        finish(alive)


def test_a_partial_file_in_use_elsewhere_is_left_alone(tmp_path, monkeypatch):
    """A process of another machine seems dead here; its lock does not."""
    held = tmp_path / f".file.{dead_process()}.tmp"
    held.write_bytes(b"half")
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(held)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        other.stdout.readline()
        remove_leftovers(tmp_path / "file")
        assert held.exists()
    finally:
        finish(other, kill=True)
    remove_leftovers(tmp_path / "file")
    assert not held.exists()


KILLED = """
import io
path.write_bytes(b"old")

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Half(io.FileIO):
    def write(self, content):
        super().write(bytes(content)[:1000])
        die()

if where == "write":
    type(path).open = lambda self, mode: Half(str(self), mode)
else:
    setattr(_files.os, where, die)
_files.write_atomically(path, lambda file: file.write(b"new" * 1000))
"""


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_killed_while_writing(tmp_path, where):
    path = tmp_path / "file"
    process = start(KILLED, path, where)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == [f".file.{process.pid}.tmp", "file"]
    writable_file(path)
    assert names(tmp_path) == ["file"]
