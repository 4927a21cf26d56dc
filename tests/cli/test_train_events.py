import json
import os

import pytest
import torch
from support.commands import refusal, words
from support.operators import needs_host_runtime, needs_library
from support.recordings import nmnist_event
from support.sounds import tone, write_sound
from support.tables import cells_of

from snnipu import training
from snnipu.cli import train

# With ten samples some layers miss their activity.
pytestmark = [
    pytest.mark.usefixtures("own_folder"),
    pytest.mark.filterwarnings("ignore:layer .* in place of:RuntimeWarning"),
]

RANDMAN = "--dataset randman --classes 3 --samples-per-class 10 --steps 12 --batch-size 8"
SMALL = f"{RANDMAN} --hidden 12,8 --epochs 2 --device cpu"
RECORDINGS = "--dataset nmnist --data-dir data"
CONVOLUTIONS = f"{RECORDINGS} --network conv --step-us 2500 --batch-size 8 --lr 0.01"


def run(*arguments):
    return train.main(words(SMALL, *arguments))


def report_of(*arguments):
    """Return the report of a run; the data set is randman by default."""
    command = words(*arguments, "--json report.json --no-checkpoint")
    assert train.main(command if "--dataset" in command else words(SMALL) + command) == 0
    with open("report.json") as file:
        return json.load(file)


def fails(capsys, *arguments):
    """Return the last line of the error."""
    return refusal(capsys, train.main, *arguments).splitlines()[-1]


@pytest.mark.parametrize("method", training.METHODS)
def test_report(method, tmp_path, capsys):
    report = report_of(f"--method {method}")
    assert report["finished"]
    assert (report["dataset"], report["method"], report["hidden"]) == ("randman", method, [12, 8])
    assert report["sizes"] == [128, 12, 8, 3]
    assert 0 <= report["test_accuracy"] == report["history"][-1]["test_accuracy"] <= 1
    assert len(report["activity"]) == len(report["overflow"]) == 3
    assert all(0 <= value <= 1 for value in report["activity"])
    assert report["activity"] == report["history"][-1]["activity"]
    # Each input neuron fires once in 12 steps.
    assert report["input_activity"] == pytest.approx(1 / 12)
    assert (report["train_samples"], report["test_samples"], report["epochs_done"]) == (24, 6, 2)
    assert report["train_samples_per_s"] > 0
    assert report["backend"]
    totals = [sum(column) for column in zip(*(record["train_overflow"] for record in report["history"]))]
    assert report["train_overflow"] == totals
    output = capsys.readouterr().out
    assert f"network: 128-12-8-3, beta=0.92, delay 1; method: {method}" in output
    assert "epoch 2/2: loss " in output
    assert ", activity " in output
    # For other hidden layers the published slots become a share: of 12 neurons less than 2, so 2.
    assert report["slots"] == ([None] * 4 if method == "dense" else [64, 2, 2, 3])
    assert (" spikes dropped, " in output) == (sum(totals) > 0)
    assert ("slots: 64, 2, 2, 3; second threshold: 0.9, from -100 on" in output) == (method != "dense")
    assert os.listdir(tmp_path) == ["report.json"]


def test_dropped_spikes_are_told_in_the_line_of_the_epoch(capsys):
    report = report_of("--max-spikes 3,1,1,3 --initial-activity 0.2")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    for line, record in zip(lines, report["history"]):
        dropped = sum(record["train_overflow"])
        assert dropped > 0
        assert f", {dropped:,} spikes dropped, " in line
    assert report["overflow"][0] > 0
    assert report["input_overflow"] > 0


@needs_host_runtime
@needs_library
@pytest.mark.parametrize(
    ("arguments", "used"),
    [
        ("--method dense", {"NeuronSequence"}),
        ("--method sparse_ops", {"SelectSpikes"}),
        ("--method sparse_network", {"SparseNetwork"}),
        (f"{CONVOLUTIONS} --hidden 4C5S2-MP2-6C3 --steps 6 --method sparse_ops", {"SparseConv2d", "SparsePool2d"}),
    ],
    ids=["dense", "sparse_ops", "sparse_network", "convolutions"],
)
def test_on_the_ipu_model(arguments, used, tmp_path, ipu_target):
    """The losses are the host's, and the report lists the operators of the layers."""
    ipu_target("mk2:16")
    write_recordings(tmp_path / "data", samples=4)
    host, modelled = (report_of(arguments, "--epochs 1 --device", name) for name in ("cpu", "ipu-model"))
    assert modelled["backend"] == "ipu-model"
    assert modelled["train_overflow"] == host["train_overflow"]
    assert modelled["activity"] == pytest.approx(host["activity"])
    assert modelled["history"][0]["train_loss"] == pytest.approx(host["history"][0]["train_loss"], rel=1e-5)
    assert used | {f"{name} (gradient)" for name in used} <= {entry["operator"] for entry in modelled["ipu_model"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    cells_of(
        """
    --hidden 12,0                  | argument --hidden: expected a positive integer, got '0'
    --engine snntorch              | argument --engine: not for --dataset randman
    --activity few                 | argument --activity: expected a number or none, got 'few'
    --activity 0.1 --max-spikes 3  | argument --max-spikes: expected none, got 3:
    --max-spikes 3,4               | argument --max-spikes: expected 4 numbers, for the input, 2 hidden layers
    --grad-threshold x             | argument --grad-threshold: expected a number or none, got 'x'
    --crop 2                       | argument --crop: expected none, got 2: only for the data set nmnist or dvs
    --workers -1                   | argument --workers: expected an integer from 0, got '-1'
    --batch-size 25                | argument --batch-size: 25 is larger than the training set of randman, 24 recordings
    --classes 1 --samples-per-class 1 | argument --samples-per-class:
    --dataset nmnist               | argument --classes: expected none, got 3: only for the data set randman
    """
    ),
)
def test_bad_arguments(capsys, arguments, message):
    assert message in fails(capsys, SMALL, arguments)


@pytest.mark.parametrize("dataset", ["nmnist", "shd", "dvs", "spoken_digits"])
def test_recordings_need_a_folder(capsys, dataset, tmp_path):
    assert f"argument --data-dir: needed for --dataset {dataset}" in fails(capsys, "--dataset", dataset)
    if dataset == "shd":
        pytest.importorskip("h5py")
    error = fails(capsys, f"--dataset {dataset} --data-dir", tmp_path)
    assert "argument --data-dir: no " in error
    assert ("--download" in error) == (dataset != "spoken_digits")


@pytest.mark.parametrize(
    ("arguments", "message"),
    cells_of(
        """
    --method dense | argument --method: not for --dataset digits
    --activity 0.1 | argument --activity: not for --dataset digits
    --classes 3    | argument --classes: not for --dataset digits
    --hidden 16,16 | argument --hidden: expected a positive integer, got (16, 16)
    --workers 1    | argument --workers: not for --dataset digits
    """
    ),
)
def test_options_of_events_with_digits(capsys, arguments, message):
    pytest.importorskip("sklearn")
    assert message in fails(capsys, arguments)


def write_recordings(folder, samples):
    """Write N-MNIST files in which the digits 0 and 1 light different rows."""
    generator = torch.Generator().manual_seed(0)
    for part in ("Train", "Test"):
        for label in (0, 1):
            place = folder / part / str(label)
            place.mkdir(parents=True)
            for index in range(samples):
                times = torch.randint(0, 20_000, (200,), generator=generator).sort().values.tolist()
                pixels = torch.randint(0, 34, (200, 2), generator=generator).tolist()
                events = [nmnist_event(x, y // 2 + 17 * label, 0, time) for time, (x, y) in zip(times, pixels)]
                (place / f"{index:05}.bin").write_bytes(b"".join(events))


def test_nmnist(tmp_path):
    write_recordings(tmp_path / "data", samples=8)
    options = "--hidden 20 --epochs 3 --batch-size 4 --lr 0.01 --activity 0.2 --grad-threshold-every 1"
    report = report_of(RECORDINGS, "--steps 20", options)
    assert report["sizes"] == [2312, 20, 10]
    assert report["slots"] == [64, 4, 10]
    assert report["step_us"] == 1000
    assert report["test_accuracy"] > 0.8


def test_spoken_digits(tmp_path, capsys):
    """The data are ten tones by two speakers."""
    for digit in range(10):
        for number in (4, 5, 6):
            for speaker, octaves in (("ann", 0), ("bob", 0.1)):
                sound = tone(200 * 2 ** (0.4 * digit + octaves), 0.1 + 0.01 * number)
                write_sound(tmp_path / "data" / f"{digit}_{speaker}_{number}.wav", sound)
    arguments = "--dataset spoken_digits --data-dir data"
    assert "argument --download: not for --dataset spoken_digits" in fails(capsys, arguments, "--download")
    report = report_of(arguments, "--steps 20 --hidden 30 --epochs 25 --batch-size 10 --lr 0.01")
    assert (report["train_samples"], report["test_samples"], report["sizes"]) == (40, 20, [70, 30, 10])
    assert report["test_accuracy"] > 0.6


def test_convolutions_learn(tmp_path, capsys):
    """All methods give the same losses if no spike is dropped."""
    write_recordings(tmp_path / "data", samples=8)
    options = "--hidden 4C5S2-MP2-8C3-MP2 --steps 8 --epochs 4 --device cpu"
    curves = {}
    for method in ("dense", "sparse_ops", "sparse_network"):
        free = "" if method == "dense" else "--grad-threshold none"
        report = report_of(CONVOLUTIONS, options, f"--method {method}", free)
        assert report["sizes"] == [2312, 900, 200, 10]
        assert (report["network"], report["hidden"]) == ("conv", ["4C5S2", "MP2", "8C3", "MP2"])
        assert len(report["activity"]) == 3
        curves[method] = [record["train_loss"] for record in report["history"]]
        assert "network: 2x34x34-4C5S2-MP2-8C3-MP2-FC10, beta=0.95, delay 0; " in capsys.readouterr().out
    for curve in curves.values():
        assert curve == pytest.approx(curves["dense"], rel=1e-3)
        assert curve[-1] < 0.9 * curve[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    cells_of(
        """
    --dataset randman --network conv                 | argument --network: expected fc for the data set randman
    --dataset digits --network conv                  | argument --network: not for --dataset digits
    --dataset digits --hidden 12C5                   | argument --hidden: expected a positive integer, got '12C5'
    --hidden 12C5-0                                  | argument --hidden: expected a positive integer, got '0'
    --dataset nmnist --hidden 12C5                   | argument --hidden: '12C5' is a layer of network conv
    --dataset nmnist --network conv --hidden 12C5-XY | argument --hidden: 'XY' is no layer
    --dataset nmnist --network conv --crop 4         | argument --hidden: '12C5' does not fit into
    """
    ),
)
def test_wrong_networks(tmp_path, capsys, arguments, message):
    write_recordings(tmp_path, samples=2)
    assert message in fails(capsys, arguments, "--data-dir . --batch-size 2 --no-checkpoint")


def test_binned_recordings_are_kept_on_the_disk(tmp_path, monkeypatch, capsys):
    write_recordings(tmp_path / "data", samples=8)
    monkeypatch.setenv("SNNIPU_EVENT_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr("snnipu.datasets._disk_cache._SETTLED_SECONDS", 0)
    options = "--steps 10 --hidden 4 --epochs 1 --batch-size 4 --device cpu --initial-activity none"
    losses = []
    for more in ("--no-cache", "", "", "--no-cache"):
        report = report_of(RECORDINGS, options, more)
        assert (f"binned recordings are kept in {tmp_path / 'kept'}" in capsys.readouterr().out) == (not more)
        losses.append(report["history"][0]["train_loss"])
        assert len(list((tmp_path / "kept").rglob("*.events/*"))) == (32 if losses[1:] else 0)
    assert len(set(losses)) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_recordings_name_the_file(workers, tmp_path, capsys):
    write_recordings(tmp_path, samples=4)
    broken = tmp_path / "Train" / "0" / "00002.bin"
    broken.write_bytes(b"123")
    options = f"--hidden 4 --batch-size 4 --no-checkpoint --initial-activity none --workers {workers}"
    error = fails(capsys, "--dataset nmnist", options, "--data-dir", tmp_path)
    assert f"argument --data-dir: damaged file {broken}" in error


@pytest.mark.filterwarnings("ignore:layer 2. scaling its weight:RuntimeWarning")
def test_a_silent_output_layer_is_told(capsys):
    silent = "--initial-output-activity 1e-9 --lr 1e-9"
    assert run("--no-checkpoint", silent) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("the output layer is silent: 100 % of the test samples")
    assert run("--no-checkpoint --initial-output-activity 0.5 --lr 1e-9") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("test accuracy: ")
