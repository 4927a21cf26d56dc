"""The commands when output cannot be written: full disks, closed pipes, a second run, a killed run."""

import errno
import os
import pathlib
import signal
import subprocess

import pytest
from support.commands import read_up_to, refusal, words
from support.tables import cells_of

from snnipu import _files, cli, training
from snnipu.cli import _streams

SMALL = "train --hidden 8 --steps 3 --batch-size 128 --device cpu"
SHORT = f"{SMALL} --epochs 1 --no-checkpoint"
CLOSED_PIPE = 141
pytestmark = pytest.mark.usefixtures("own_folder")


def run(*arguments):
    return cli.main(words(*arguments))


def full_disk(monkeypatch, name):
    """Make every write of the file ``name`` fail: the disk is full."""
    opened = pathlib.Path.open

    def open_one(self, mode="r", *more, **options):
        if self.name.startswith(f".{name}.") and self.name.endswith(".tmp") and full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(self, mode, *more, **options)

    full = []
    monkeypatch.setattr(pathlib.Path, "open", open_one)
    return lambda: full.append(True)


def test_full_disk_keeps_the_old_checkpoint(monkeypatch, capsys, tmp_path):
    pytest.importorskip("sklearn")
    fill, save = full_disk(monkeypatch, "run.pt"), training.save_checkpoint

    def save_and_fill(path, state):
        if len(state["history"]) == 2:
            fill()
        save(path, state)

    monkeypatch.setattr(training, "save_checkpoint", save_and_fill)
    assert run(SMALL, "--epochs 3 --checkpoint run.pt") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (
        f"python -m snnipu train: error: cannot write {tmp_path / 'run.pt'}: No space left on device; the file that "
        "was there is unchanged"
    )
    assert len(training.load_checkpoint(tmp_path / "run.pt")["history"]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("out.json", f"{SHORT} --json out.json"),
        ("training.png", f"{SHORT} --plot-dir ."),
        ("out.json", "info --json out.json"),
        ("out.json", "profile --model 10,10 --json out.json"),
        ("out.html", "profile --model 10,10 --html out.html"),
        ("out.json", "bench lif --quick --json out.json"),
    ],
)
def test_full_disk_for_results(monkeypatch, capsys, tmp_path, name, arguments):
    for package in ("sklearn", "matplotlib"):
        pytest.importorskip(package)
    (tmp_path / name).write_bytes(b"old")
    writable = _files.writable_file

    def fill_afterwards(path):  # the check before the training passes
        path = writable(path)
        fill()
        return path

    fill = full_disk(monkeypatch, name)
    name_of_command = words(arguments)[0]
    if name_of_command == "train":
        monkeypatch.setattr(training, "writable_file", fill_afterwards)
    else:
        fill()
    assert run(arguments) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    where = tmp_path / name if name_of_command == "train" else f"in {tmp_path}"
    assert error.startswith(f"python -m snnipu {name_of_command}: error: cannot write {where}: No space left on ")
    assert (tmp_path / name).read_bytes() == b"old"


@pytest.mark.parametrize(
    ("name", "options"),
    cells_of(
        """
    file            | --no-checkpoint --json file
    file            | --checkpoint file
    raster.png      | --no-checkpoint --plot-dir .
    train-digits.pt |
    """
    ),
)
def test_full_disk_before_the_start(monkeypatch, capsys, name, options):
    """A full disk is no wrong argument: the status is not 2."""
    full_disk(monkeypatch, name)()
    if name == "raster.png":
        pytest.importorskip("matplotlib")
    assert run(SMALL, options) == 1
    assert "error: cannot write in " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_standard_output(command, unbuffered):
    with open("/dev/full", "w") as full:
        process = command("info", stdout=full, env={"PYTHONUNBUFFERED": unbuffered})
    _, errors = process.communicate(timeout=120)
    assert errors == "python -m snnipu info: error: cannot write to standard output: No space left on device\n"
    assert process.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["info", "--help"])
def test_closed_pipe(command, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    process = command(arguments, stdout=writer, env={"PYTHONUNBUFFERED": ""})
    os.close(writer)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (CLOSED_PIPE, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "status", "unbuffered"),
    [
        ("print('first', flush=True); input(); print('second', flush=True)", CLOSED_PIPE, ""),
        ("print('first', flush=True); input(); print('second')", CLOSED_PIPE, ""),
        ("print('first', flush=True); input(); print('second')", CLOSED_PIPE, "1"),
        ("print('first', flush=True); input(); raise BrokenPipeError('of a socket')", 1, ""),
    ],
)
def test_closed_pipe_of_a_script(command, tmp_path, code, status, unbuffered):
    (tmp_path / "script.py").write_text(code)
    process = command("run", "script.py", stdin=subprocess.PIPE, env={"PYTHONUNBUFFERED": unbuffered})
    assert process.stdout.readline() == "first\n"
    if status == CLOSED_PIPE:
        process.stdout.close()
    process.stdin.write("\n")
    process.stdin.close()
    errors = process.stderr.read()
    assert process.wait(timeout=120) == status
    assert ("BrokenPipeError: of a socket" in errors) == (status == 1)
    assert status == 1 or errors == ""


@pytest.mark.slow
def test_closed_pipe_while_training(command, tmp_path):
    """With ``python -m snnipu train | head -1`` the process ends in silence, and the checkpoint can be resumed."""
    pytest.importorskip("sklearn")
    process = command(SMALL, "--epochs 1000 --checkpoint run.pt")
    read_up_to("epoch 1/", process)
    process.stdout.close()
    errors = process.stderr.read()
    assert (process.wait(timeout=120), errors) == (CLOSED_PIPE, "")
    done = len(training.load_checkpoint(tmp_path / "run.pt")["history"])
    assert done >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
    assert run(f"train --resume --checkpoint run.pt --epochs {done + 1}") == 0


def test_an_error_that_is_not_of_the_streams_is_not_hidden(capsys):
    for error in (BrokenPipeError(errno.EPIPE, "of a socket"), FileNotFoundError(errno.ENOENT, "no such", "file")):

        def fail(error=error):
            raise error

        with pytest.raises(type(error)):
            _streams.guarded("name", fail)


@pytest.mark.slow
def test_two_runs_of_one_checkpoint(command, capsys, tmp_path):
    pytest.importorskip("sklearn")
    first = command(SMALL, "--epochs 100000 --checkpoint run.pt")
    try:
        read_up_to("epoch 1/", first)
        for more in ("", "--resume"):
            error = refusal(capsys, cli.main, SMALL, "--checkpoint run.pt", more).splitlines()[-1]
            expected = (
                f"argument --checkpoint: {tmp_path / 'run.pt'} is being written by another run, process {first.pid} on"
            )
            assert expected in error
            assert "--checkpoint FILE names another place, --no-checkpoint saves none" in error
        with pytest.raises(training.CheckpointError, match=f"process {first.pid} on"):
            training.save_checkpoint(tmp_path / "run.pt", {})
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=120)
    assert first.returncode == 143
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
    assert training.load_checkpoint(tmp_path / "run.pt")["history"]
