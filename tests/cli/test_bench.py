"""``python -m snnipu bench``: snnipu against snnTorch, in less than a minute."""

import dataclasses
import sys

import pytest
import snntorch
import torch
from support.commands import read_json, refusal, words
from support.tables import cells_of

import snnipu
from snnipu.cli import bench, main

pytestmark = pytest.mark.usefixtures("one_thread")


def test_quick_run_of_everything(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "out.json", tmp_path / "out.svg"
    assert main(words("bench --quick --json", out, "--chart", picture)) == 0
    printed = capsys.readouterr().out
    document = read_json(out)
    assert list(dict.fromkeys(record["case"] for record in document["records"])) == ["lif", "network", "sparse"]
    for record in document["records"]:
        assert record["title"] in printed
        assert record["contender"] in printed
        assert len(record["seconds"]) >= 3
        assert record["red"] == ""
    assert document["environment"]["processor"]
    drawn = picture.read_text(encoding="utf-8")
    for word in ("snnTorch, the tutorial's loop", torch.__version__, snntorch.__version__):
        assert word in drawn


@pytest.mark.parametrize("name", bench.CASES)
def test_wrong_results_are_red_and_have_no_times(name, monkeypatch, tmp_path, capsys):
    right = bench.why_red
    monkeypatch.setattr(bench, "why_red", lambda contender, tolerance: right(wrong(contender), tolerance))

    def wrong(contender):
        def step():
            spikes, numbers = contender.step()
            return spikes, [1.001 * number for number in numbers]

        return dataclasses.replace(contender, step=step) if contender.label.startswith("snnipu") else contender

    out = tmp_path / "out.json"
    assert main(words("bench --quick --json", out, name)) == 1
    printed = capsys.readouterr().out
    for record in read_json(out)["records"]:
        is_ours = record["contender"].startswith("snnipu")
        assert ("seconds" in record) != is_ours
        assert bool(record["red"]) == is_ours
    assert "RED, not timed: error 1.0e-03" in printed


def test_other_spikes_are_red(monkeypatch, capsys):
    sequence = snnipu.Leaky.sequence
    monkeypatch.setattr(snnipu.Leaky, "sequence", lambda self, x, mem=None: sequence(self, x * 1.1, mem))
    assert main(words("bench lif --quick")) == 1
    assert "spikes differ" in capsys.readouterr().out


def test_flipped_spikes_on_a_gpu_leave_out_their_neurons(monkeypatch):
    """Rounding may flip one spike in ten thousand, and the gradient of its neuron then differs."""
    monkeypatch.setattr(bench, "FLIPS_ON_CUDA", 1.0)
    spikes, gradient = torch.zeros(4, 2, 3), torch.ones(4, 2, 3)

    class OnCuda(torch.Tensor):
        is_cuda = True

    flipped, other = spikes.clone(), gradient.clone()
    flipped[1, 0, 0], other[:, 0, 0] = 1, 5
    contender = bench.Contender("a", lambda: (flipped.as_subclass(OnCuda), [other]), lambda: (spikes, [gradient]))
    assert bench.why_red(contender, 1e-5) == ""
    other[:, 1, 1] = 5
    assert "error" in bench.why_red(contender, 1e-5)


def test_rounds_are_interleaved(monkeypatch):
    """After a first call of each contender, every round calls each once, in a random order."""
    now, calls = [0.0], []
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])

    def step(name):
        calls.append(name)
        now[0] += 1.0

    samples = bench.seconds_of_rounds([lambda name=name: step(name) for name in "abc"], torch.device("cpu"), 10.0)
    assert samples == [[1.0] * 4] * 3
    rounds = ["".join(calls[start : start + 3]) for start in range(3, len(calls), 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len(set(rounds)) > 1
    assert bench.seconds_of_rounds([], torch.device("cpu"), 1.0) == []


def test_threads_are_set_recorded_and_restored(tmp_path):
    before, out = torch.get_num_threads(), tmp_path / "out.json"
    main(words("bench lif --quick --threads 2 --json", out))
    assert read_json(out)["environment"]["native"]["threads"] == 2
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    cells_of(
        """
    zeros                          | argument case
    --device tpu                   | argument --device: unknown device 'tpu'
    --json no/such/folder/out.json | argument --json: the folder
    --chart out.txt                | argument --chart: out.txt: the name must end in .png
    """
    ),
)
def test_bad_arguments_are_status_2(arguments, message, capsys):
    assert message in refusal(capsys, main, "bench", arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda_is_status_2(capsys):
    assert "argument --device: cuda: this PyTorch finds no CUDA device" in refusal(capsys, main, "bench --device cuda")


def test_chart_without_matplotlib_is_status_2_before_the_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "argument --chart" in refusal(capsys, main, "bench --chart", tmp_path / "out.png")
