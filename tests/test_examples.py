"""The examples, and the commands in their first lines, run with two processes each."""

import importlib.util
import json
import os
import re
import shlex

import pytest
from support.commands import python
from support.sounds import tone, write_sound
from support.versions import needs_gloo

pytestmark = needs_gloo
# Generous: it guards against a hang.
LIMIT = 300


def run(command, repository):
    paths = [str(repository), str(repository / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return python(*command, cwd=repository, env=environment, timeout=LIMIT).stdout


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lightning", "accelerate"])
def test_two_processes_learn(package, repository):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    script = repository / "examples" / f"train_{package}.py"
    (line,) = re.findall(r"^(?:python|accelerate) .*$", script.read_text(), re.MULTILINE)
    program, *words = shlex.split(line)
    start = [] if program == "python" else ["-m", "accelerate.commands.accelerate_cli"]
    (accuracy,) = re.findall(r"^accuracy: (\S+)$", run([*start, *words], repository), re.MULTILINE)
    assert 0.5 < float(accuracy) <= 1  # of three classes


@pytest.mark.slow
def test_every_rule_learns(repository):
    small = "--seeds 1 --epochs 6 --samples 20 --steps 50 --dim 1 --hidden 64 --lr 0.005"
    text = run(["examples/train_online.py", *small.split()], repository)
    training = dict(re.findall(r"^\| (\S+) \| [^|]+%? \| ([\d.]+) \|", text, re.MULTILINE))
    assert list(training) == ["bptt", "sltt", "ottt", "eprop", "eprop-random", "snap1", "decolle"]
    assert all(float(accuracy) > 30 for accuracy in training.values()), text  # of ten classes


@pytest.mark.slow
def test_yin_yang_is_learnt_by_both_gradients_and_drawn(repository, tmp_path):
    script, runs, picture = "examples/train_yin_yang.py", tmp_path / "runs.jsonl", tmp_path / "yin-yang.png"
    for gradient in ("eventprop", "surrogate"):
        small = f"--gradient {gradient} --epochs 8 --samples 1000 --hidden 60 --batch 50"
        run([script, *small.split(), "--json", str(runs)], repository)
    results = [json.loads(line) for line in runs.read_text().splitlines()]
    assert [result["gradient"] for result in results] == ["eventprop", "surrogate"]
    for result in results:
        assert 0.7 < result["test"] <= 1, result  # of three classes
        assert len(result["validation"]) == 8
        assert {len(row) for row in result["regions"]} == {len(result["regions"])}
    run([script, "--draw", str(runs), str(picture)], repository)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_spoken_digits_are_learnt_by_both_gradients_and_drawn(repository, tmp_path):
    for digit in range(4):
        for number in range(24):
            sound = tone(200 * 2**digit * (1 + 0.004 * number), 0.3)
            write_sound(tmp_path / f"{digit}_somebody_{number}.wav", sound)
    script, picture = "examples/train_spoken_digits.py", tmp_path / "picture.png"
    small = "--seeds 1 --epochs 6 --hidden 32 --batch-size 8"
    text = run([script, tmp_path, *small.split(), "--picture", picture], repository)
    results = [json.loads(line) for line in text.splitlines()]
    losses = {"surrogate": ("plain", "shaped"), "eventprop": ("plain", "shaped", "woken")}
    assert [result["kind"] for result in results] == [f"{key}-{loss}" for key in losses for loss in losses[key]]
    for result in results:
        assert 0.6 < result["accuracy"] <= 1, result  # of four digits
        assert len(result["validation"]) == 6
        assert 0 < result["activity"] < 0.5
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_guide_names_no_command_that_is_not_run(repository):
    """tests/cli/test_torchrun.py, tests/cli/test_train.py and tests/benchmarks/test_cases.py run the other commands."""
    pages = ("how-to/train-on-many-machines.md", "explanation/scaling.md")
    text = "".join((repository / "docs" / page).read_text() for page in pages)
    blocks = re.findall(r"(<!-- not run: .* -->\n)?```sh\n(.*?)```", text, re.DOTALL)
    assert [code.strip() for mark, code in blocks if not mark] == [
        "torchrun --standalone --nproc-per-node 2 --max-restarts 3 -m snnipu train",
        "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id run1 --rdzv-endpoint host1:29400 "
        "-m snnipu train",
        "python -m snnipu train --device ipu-model --accumulate 4 --epochs 1",
        "python -m benchmarks scale processes=1,2,4 --json scale.json --chart scale.png",
    ]
