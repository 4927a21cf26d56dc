import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from support.commands import read_json, read_up_to, refusal, resume_command, words
from support.operators import needs_host_runtime, needs_library
from support.tables import cells_of
from support.trainers import same_run

from snnipu import datasets, training
from snnipu.cli import train

pytest.importorskip("sklearn")
pytestmark = pytest.mark.usefixtures("own_folder")

SMALL = "--hidden 16 --steps 5 --epochs 2 --batch-size 128"


def run(*arguments):
    return train.main(words(SMALL, *arguments))


def fails(capsys, *arguments):
    """Return the last line of the error."""
    return refusal(capsys, train.main, SMALL, *arguments).splitlines()[-1]


def report():
    return read_json("report.json")


def test_defaults_reach_95_percent_on_digits(tmp_path, capsys):
    assert train.main(words("--json report.json --device cpu")) == 0
    assert 0.95 <= report()["test_accuracy"] <= 1
    assert report()["test_accuracy"] == report()["history"][-1]["test_accuracy"]
    assert (tmp_path / "out" / "train-digits.pt").exists()
    assert "64-128-10, T=25" in capsys.readouterr().out


@needs_host_runtime
@needs_library
def test_on_the_ipu_model(capsys, tmp_path, ipu_target):
    """The IPU model runs the layers' operators, and the training is the same up to rounding."""
    ipu_target("mk2:8")
    reports = {}
    for device in ("cpu", "ipu-model"):
        assert run(f"--device {device} --json {device}.json --no-checkpoint --epochs 1") == 0
        reports[device] = read_json(tmp_path / f"{device}.json")
    modelled, host = reports["ipu-model"], reports["cpu"]
    assert (modelled["backend"], modelled["device"]) == ("ipu-model", "ipu-model")
    assert modelled["test_accuracy"] == host["test_accuracy"]
    assert modelled["history"][0]["train_loss"] == pytest.approx(host["history"][0]["train_loss"], rel=1e-5)
    counted = {entry["operator"] for entry in modelled["ipu_model"]}
    assert counted == {"NeuronSequence", "NeuronSequence (gradient)"}
    assert all(entry["cycles"] > 0 and entry["tile_memory_max_bytes"] > 0 for entry in modelled["ipu_model"])
    assert "ipu_model" not in host
    assert "NeuronSequence (gradient), 5 x 128 x 16: " in capsys.readouterr().out
    assert "argument --engine: snntorch does not run on the IPU model" in fails(
        capsys, "--device ipu-model --engine snntorch"
    )
    ipu_target("mk9")
    assert "argument --device: SNNIPU_IPU_MODEL_TARGET" in fails(capsys, "--device ipu-model")


@needs_host_runtime
@needs_library
def test_parts_of_a_batch_on_the_ipu_model(tmp_path, ipu_target):
    """Four parts of a batch (two replicas with two parts each) give the weights of the whole batch."""
    ipu_target("mk2:8")
    small = "--epochs 1 --hidden 8 --steps 3"
    assert run(small, "--device ipu-model --accumulate 4 --checkpoint ipu.pt --json ipu.json") == 0
    assert run(small, "--device cpu --checkpoint cpu.pt") == 0
    in_parts, whole = (training.load_checkpoint(tmp_path / name)["model"] for name in ("ipu.pt", "cpu.pt"))
    for name in whole:
        torch.testing.assert_close(in_parts[name], whole[name], rtol=1e-4, atol=1e-6)
    counted = read_json(tmp_path / "ipu.json")
    assert [3, 32, 8] in [entry["inputs"][0] for entry in counted["ipu_model"]]  # a quarter of the batch


def test_memory_and_precision_options(capsys, tmp_path):
    """Recomputed segments change only rounding. A cut gradient and bfloat16 change results, and a resume keeps them."""
    losses = {}
    for name, more in {
        "plain": "",
        "checkpoint": "--checkpoint-steps 2",
        "bptt": "--bptt-steps 2",
        "both": "--bptt-steps 4 --checkpoint-steps 2",
        "bf16": "--precision bf16",
    }.items():
        assert run(f"--device cpu --epochs 1 {more} --checkpoint {name}.pt") == 0
        losses[name] = training.load_checkpoint(tmp_path / f"{name}.pt")
    first = {name: state["model"]["0.weight"] for name, state in losses.items()}
    torch.testing.assert_close(first["checkpoint"], first["plain"], rtol=1e-5, atol=1e-7)
    for name in ("bptt", "both", "bf16"):
        assert not torch.allclose(first[name], first["plain"], rtol=1e-5, atol=1e-7), name
        assert first[name].dtype == torch.float32
    assert losses["bf16"]["config"]["precision"] == "bf16"
    assert losses["bptt"]["config"]["bptt_steps"] == 2
    assert run("--resume --checkpoint bf16.pt --device cpu --epochs 2") == 0
    # A checkpoint of a version without these settings.
    state = training.load_checkpoint(tmp_path / "plain.pt")
    for name in ("precision", "bptt_steps"):
        del state["config"][name]
    training.save_checkpoint(tmp_path / "plain.pt", state)
    assert run("--resume --checkpoint plain.pt --device cpu --epochs 2") == 0
    capsys.readouterr()
    message = "argument --precision: expected float32, got 'bf16': sparse operators have no other"
    assert message in fails(capsys, "--dataset randman --precision bf16")
    assert "argument --bptt-steps: not for --dataset randman" in fails(capsys, "--dataset randman --bptt-steps 2")


@pytest.mark.slow
def test_report_and_pictures(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert run("--json report.json --plot-dir new/pictures --no-checkpoint --device cpu") == 0
    told = report()
    assert told["finished"] is True
    assert told["backend"]
    assert told["train_samples_per_s"] > 0
    settings = {"dataset": "digits", "engine": "snnipu", "steps": 5, "hidden": 16, "epochs": 2, "batch_size": 128}
    settings.update(
        lr=1e-3, lr_decay=0.92, beta=0.9, seed=0, device="cpu", epochs_done=2, train_samples=1442, test_samples=355
    )
    assert {name: told[name] for name in settings} == settings
    assert set(told["versions"]) == {"snnipu", "torch", "snntorch"}
    assert set(told["spikes_per_neuron_and_step"]) == {"hidden", "output"}
    assert len(told["history"]) == 2
    assert set(told["history"][0]) == {"train_loss", "train_accuracy", "test_accuracy", "seconds"}
    output = capsys.readouterr().out
    for name in ("raster", "membranes", "training"):
        assert f"picture: new/pictures/{name}.png" in output.replace(os.sep, "/")
        assert (tmp_path / "new" / "pictures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "report.json"]


@pytest.mark.slow
def test_one_hidden_neuron_and_one_step_are_enough(tmp_path):
    pytest.importorskip("matplotlib")
    assert train.main(words("--hidden 1 --steps 1 --epochs 1 --batch-size 1442 --plot-dir p")) == 0


def test_resume_gives_what_an_uninterrupted_run_gives(capsys):
    assert run("--epochs 3 --checkpoint straight.pt") == 0
    assert run("--epochs 1 --checkpoint parts.pt") == 0
    assert train.main(words("--resume --checkpoint parts.pt --epochs 3 --json report.json")) == 0
    assert "resumed after epoch 1" in capsys.readouterr().out
    straight, parts = (torch.load(f"{name}.pt", weights_only=True) for name in ("straight", "parts"))
    assert same_run(straight, parts)
    # the training is complete; the report covers the whole run
    before = report()
    assert train.main(words("--resume --checkpoint parts.pt --json report.json")) == 0
    assert report() == before


def test_an_old_checkpoint_is_announced(capsys):
    run("--checkpoint run.pt --epochs 1")
    run("--checkpoint run.pt --epochs 1")
    assert "run.pt will be replaced after the first epoch" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_loses_only_the_running_epoch(command, tmp_path, signum):
    pytest.importorskip("matplotlib")
    options = "--epochs 100000 --device cpu --json report.json --plot-dir pictures --checkpoint"
    with command("train", SMALL, options, Path("my run.pt")) as process:
        read_up_to("epoch 2/", process)
        process.send_signal(signum)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signum
    assert "Traceback" not in errors

    saved = torch.load(tmp_path / "my run.pt", weights_only=True)
    done = len(saved["history"])
    assert 2 <= done == report()["epochs_done"] == len(report()["history"])
    assert report()["finished"] is False
    assert (tmp_path / "pictures" / "training.png").exists()
    assert f"stopped after {done} of 100000 epochs" in output

    resume = resume_command(output)
    assert resume[:4] == ["python", "-m", "snnipu", "train"]
    assert train.main([*resume[4:], "--epochs", str(done + 1)]) == 0
    assert report()["epochs_done"] == done + 1


def test_interrupt_before_the_first_epoch_is_done(monkeypatch, capsys, tmp_path):
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def load(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return datasets.digits()

    monkeypatch.setattr(train, "load_data", load)
    assert run("--json report.json --plot-dir pictures --checkpoint run.pt") == 130
    assert "there is no checkpoint to resume from" in capsys.readouterr().out
    assert report()["test_accuracy"] is None
    assert report()["train_samples_per_s"] is None
    assert not (tmp_path / "run.pt").exists()
    assert list((tmp_path / "pictures").iterdir()) == []
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_second_interrupt_acts_at_once(monkeypatch, capsys):
    def load(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not interrupted")

    monkeypatch.setattr(train, "load_data", load)
    assert run("--no-checkpoint") == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    cells_of(
        """
    --steps 0                         | argument --steps: expected a positive integer, got '0'
    --steps many                      | argument --steps: expected a positive integer, got 'many'
    --batch-size 1443                 | argument --batch-size: 1443 is larger than the training set of digits
    --lr 0                            | argument --lr: expected a number above 0, got 0.0
    --dataset cifar                   | argument --dataset: invalid choice: 'cifar'
    --dataset mnist                   | argument --data-dir: needed for --dataset mnist
    --no-checkpoint --resume          | argument --no-checkpoint: not allowed with --resume
    --no-checkpoint --checkpoint a.pt | argument --no-checkpoint: not allowed with --checkpoint
    --no-checkpoint --save-every 3    | argument --no-checkpoint: not allowed with --save-every
    --save-every 0                    | argument --save-every: expected a positive integer, got '0'
    --json absent/report.json         | argument --json: the folder
    --json .                          | is not a plain file
    --checkpoint absent/run.pt        | argument --checkpoint: the folder
    --checkpoint absent.pt --resume   | argument --checkpoint: there is no checkpoint at
    """
    ),
)
def test_bad_arguments(capsys, arguments, message):
    assert message in fails(capsys, arguments)


def test_unwritable_places_are_found_before_training(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "out").write_text("")
    assert "argument --plot-dir: cannot make the folder file" in fails(capsys, "--plot-dir file")
    assert "argument --plot-dir: cannot make the folder file/a" in fails(capsys, "--plot-dir file/a")
    assert "argument --json: the folder" in fails(capsys, "--json file/report.json")
    assert "argument --checkpoint: cannot make the folder out" in fails(capsys, "--resume")

    monkeypatch.setattr("pathlib.Path.open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    for option in ("--json report.json", "--plot-dir .", "--checkpoint run.pt"):
        message = fails(capsys, option)
        assert f"argument {option.split()[0]}: cannot write in {tmp_path}: Permission denied" in message


def test_a_default_checkpoint_that_cannot_be_written_is_said_and_done_without(capsys, tmp_path):
    (tmp_path / "out").write_text("a file, not a folder")
    assert run("--epochs 1") == 0
    assert "no checkpoint will be saved: " in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_asked_for_and_absent(capsys):
    assert "argument --device: no CUDA device" in fails(capsys, "--device cuda")


def test_bad_checkpoints(capsys, tmp_path):
    path = tmp_path / "run.pt"
    run("--checkpoint", path)
    capsys.readouterr()
    path.write_bytes(path.read_bytes()[:-500])
    assert f"argument --checkpoint: {path} is damaged" in fails(capsys, "--resume --checkpoint", path)
    state = {"config": {"a": 1}, "data": {}, "model": {}, "optimizer": {}, "rng": {}}
    training.save_checkpoint(path, {**state, "history": [], "running": {}})
    assert "argument --checkpoint: the checkpoint is damaged" in fails(capsys, "--resume --checkpoint", path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    cells_of(
        """
    --hidden 17                  | hidden is 16 there and 17 here
    --dataset mnist --data-dir . | dataset is 'digits' there and 'mnist' here
    --seed 1 --lr 0.1            | lr is 0.001 there and 0.1 here, seed is 0 there and 1 here
    --engine snntorch            | engine is 'snnipu' there and 'snntorch' here
    --epochs 1                   | has 2 finished epochs, more than epochs=1
    """
    ),
)
def test_checkpoint_of_another_run(capsys, arguments, message):
    run("--checkpoint run.pt")
    capsys.readouterr()
    error = fails(capsys, "--checkpoint run.pt --resume", arguments)
    assert error.startswith("python -m snnipu train: error: argument --checkpoint: the checkpoint ")
    assert message in error


@pytest.mark.parametrize(
    ("module", "package", "extra", "arguments"),
    [
        ("sklearn.datasets", "scikit-learn", "data", ""),
        ("torchvision.datasets", "torchvision", "vision", "--dataset mnist --data-dir ."),
        ("matplotlib", "matplotlib", "data", "--plot-dir pictures"),
    ],
)
def test_missing_packages(capsys, monkeypatch, module, package, extra, arguments):
    monkeypatch.setitem(sys.modules, module.split(".")[0], None)
    monkeypatch.setitem(sys.modules, module, None)
    error = fails(capsys, arguments)
    assert f"needs {package}, which cannot be imported" in error
    assert f'pip install "snnipu[{extra}]"' in error


def test_mnist(mnist_folder, tmp_path):
    assert run("--dataset mnist --json report.json --epochs 1 --data-dir", mnist_folder) == 0
    assert report()["dataset"] == "mnist"
    assert report()["test_accuracy"] > 0.3
    assert (tmp_path / "out" / "train-mnist.pt").exists()


def test_missing_and_damaged_mnist(torchvision, capsys, tmp_path):
    arguments = "--dataset mnist --data-dir"
    assert "argument --data-dir: " in fails(capsys, arguments, "absent")
    assert "--download" in fails(capsys, arguments, ".")
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{name}-ubyte").write_bytes(b"damaged")
    error = fails(capsys, arguments, ".")
    assert "argument --data-dir: damaged MNIST files" in error
    assert "--download" not in error
