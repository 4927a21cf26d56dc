"""``python -m snnipu profile``."""

import re

import ipu_published as published
import pytest
import torch
from support.commands import read_json, refusal, words
from support.operators import needs_host_runtime, needs_library
from support.tables import cells_of

import snnipu as snn
from snnipu import ipu
from snnipu.cli import main as command_line
from snnipu.ipu.model import IpuModelError

PINNED = {
    "fits",
    "samples_per_s",
    "bound",
    "tile_memory_max_bytes",
    "cycles_per_step",
    "compute_share",
    "exchange_share",
    "sync_share",
}
MODEL = """
import snnipu as snn
from neighbour import BETA

model = snn.SparseNetwork([120, 60, 10], beta=BETA, max_spikes=[12, 6, 10])


def build():
    return snn.SparseNetwork([80, 40, 10], beta=BETA)


number = 3


def broken():
    raise OSError("no such weights")
"""


@pytest.fixture
def model_file(tmp_path):
    (tmp_path / "neighbour.py").write_text("BETA = 0.9\n")
    (tmp_path / "net.py").write_text(MODEL)
    return tmp_path / "net.py"


def run(*arguments):
    return command_line(words("profile", *arguments))


@pytest.fixture
def document_of(tmp_path):
    """Return a function that runs the command and returns its JSON output."""

    def document(*arguments):
        assert run(*arguments, "--json", tmp_path / "out.json") == 0
        return read_json(tmp_path / "out.json")

    return document


def test_table_json_and_html(document_of, tmp_path, capsys):
    page = tmp_path / "out.html"
    options = "--target bow --ipus 2 --activity 0.05 --batch-size 8 --steps 20"
    document = document_of("--model 300,101,101,10", options, "--html", page)
    output = capsys.readouterr().out
    assert "not measured" in output
    assert "samples per second" in output
    assert set(document) >= PINNED
    assert document["fits"]
    assert document["samples_per_s"] > 0
    assert document["bound"] in ("compute", "exchange", "sync")
    assert sum(document[f"{kind}_share"] for kind in ("compute", "exchange", "sync")) == pytest.approx(1)
    assert document["plan"]["target"]["name"] == "bow"
    assert document["plan"]["network"]["steps"] == 20
    assert sum(document["fullest_tile"]["bytes"].values()) == document["tile_memory_max_bytes"]
    text = page.read_text()
    assert "not measured" in text
    # The page is complete: it loads nothing from outside, and has all figures.
    assert not re.search(r"<(script|link|img)|https?://(?!www.w3.org)", text)
    assert text.count("<svg") == 5
    assert f"{document['samples_per_s']:,.0f}" in text
    assert text.count("M") > 2 * 1472
    for heading in ("Tile memory", "Compute cycles", "What each tile does", "Assumptions"):
        assert heading in text


def test_what_does_not_fit(document_of, tmp_path, capsys):
    page = tmp_path / "out.html"
    document = document_of("--model 20000,12000,10 --html", page)
    assert (document["fits"], document["samples_per_s"], document["bound"]) == (False, None, "memory")
    assert "KiB" in document["problems"][0]
    assert "does not fit" in capsys.readouterr().out
    assert "Does not fit" in page.read_text()


@pytest.mark.slow
def test_no_plan_at_all(document_of, tmp_path):
    page = tmp_path / "out.html"
    document = document_of("--model", ",".join(["10"] * 1500), "--activity 0.3 --html", page)
    assert set(document) >= PINNED
    assert document["fits"] is False
    assert "cannot hold" in page.read_text()


def test_python_files(model_file, document_of):
    assert document_of("--model", model_file, "--activity 0.1")["plan"]["network"]["slots"] == [12, 6, 10]
    network = document_of(f"--model {model_file}:build --inference --activity 0.1,0.1,0.3")["plan"]["network"]
    assert (network["sizes"], network["training"]) == ([80, 40, 10], False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    cells_of(
        """
    --model 300                  | sizes must have an entry for the input
    --model net.txt              | expected sizes such as
    --model missing.py           | there is no file missing.py
    --model FILE:absent          | defines no 'absent'
    --model FILE:number          | must be a torch.nn.Module
    --model FILE:broken          | raised OSError: no such weights
    --model FILE --input-slots 4 | --input-slots is for sizes
    --model 9,8,7 --activity 1.5 | above 0 and up to 1
    --model 9,8,7 --ipus 65      | ipus must be from 1 to 64, got 65
    --model 9,8,7 --html out.txt | must end in
                                 | --model
    """
    ),
)
def test_wrong_arguments(arguments, message, model_file, capsys, monkeypatch):
    monkeypatch.chdir(model_file.parent)
    assert message in refusal(capsys, command_line, "profile", arguments.replace("FILE", str(model_file)))


MAPS = """
import torch
import snnipu as snn

model = snn.SparseNetwork([(2, 12, 12), "6C3", "MP2", 10], beta=0.9, grad_threshold=0.5, max_spikes=[30, 60, 10])
without_size = torch.nn.Sequential(snn.SparseConvLeaky(2, 6, 3, beta=0.9))
large = torch.nn.Sequential(snn.SparseConv2d(2, 60, 3, input_size=(64, 64)))
"""


@pytest.fixture
def maps_file(tmp_path):
    (tmp_path / "maps.py").write_text(MAPS)
    return tmp_path / "maps.py"


@needs_host_runtime
@needs_library
def test_layers_on_maps_are_counted_operator_by_operator(maps_file, document_of, capsys):
    options = "--batch-size 4 --steps 10 --target mk1 --ipus 2"
    document = document_of("--model", maps_file, options)
    output = capsys.readouterr().out
    assert "convolution 2x12x12 to 6x10x10 on " in output
    assert "not measured" in output
    assert document["fits"]
    assert document["target"]["name"] == "mk1"
    names = [operator["name"] for operator in document["operators"]]
    forwards = [name for name in names if not name.endswith("(gradient)")]
    assert forwards[0] == "SparseConv2d"
    assert [name for name in forwards if name.startswith("Sparse")] == ["SparseConv2d", "SparsePool2d", "SparseLinear"]
    assert sorted(names[len(forwards) :]) == sorted(f"{name} (gradient)" for name in forwards)
    assert all(operator["cycles"] > 0 for operator in document["operators"])
    first = document["operators"][0]
    assert first["inputs"] == [10, 4, 30]
    assert first["plan"]["tiles"] > 100
    total = sum(operator["cycles"] for operator in document["operators"])
    assert document["cycles_per_batch"] == pytest.approx(total)
    assert document["samples_per_s"] == pytest.approx(4 * 1.6e9 / total)
    for operator in document["operators"]:
        assert f"{operator['cycles']:,.0f}" in output
    document = document_of("--model", maps_file, options, "--inference --dtype float16")
    assert [operator["name"] for operator in document["operators"]] == forwards


@needs_host_runtime
@needs_library
def test_layers_on_maps_that_do_not_fit(maps_file, document_of, capsys):
    document = document_of(f"--model {maps_file}:large --target mk1 --steps 120 --batch-size 4 --inference")
    assert (document["fits"], document["samples_per_s"]) == (False, 0)
    assert "What helps: fewer time steps or samples at once" in document["problems"][0]
    assert "does not fit: SparseConv2d" in capsys.readouterr().out


@needs_host_runtime
@needs_library
def test_counting_runs_nothing_and_changes_nothing(monkeypatch):
    """Counting changes neither values nor types of parameters, and runs no program."""
    from snnipu.ipu.model import Program
    from snnipu.poptorch._operators_profile import profile_operators

    def run_it(program, inputs):
        raise AssertionError("a program ran")

    monkeypatch.setattr(Program, "run", run_it)
    net = snn.SparseNetwork([(2, 12, 12), "6C3", 10], beta=0.9, learn_beta=True, max_spikes=[30, 60, 10])
    before = {name: value.clone() for name, value in net.state_dict().items()}
    for dtype in ("float32", "float16"):
        counted = profile_operators(net, 0.05, batch_size=2, steps=5, dtype=dtype)
        assert counted.operators[0].plan.dtype == dtype
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
        assert value.dtype == before[name].dtype
    assert all(parameter.grad is None for parameter in net.parameters())


@needs_host_runtime
@needs_library
def test_delays_are_counted_and_their_length_costs_nothing(document_of, tmp_path):
    """Delays up to 5 steps have the counts of delays up to 100, in a network and in a MultiStep."""
    file = tmp_path / "delayed.py"
    file.write_text(
        "import snnipu as snn\n"
        "def short(longest=5):\n"
        "    return snn.SparseNetwork([40, 30, 10], beta=0.9, max_delay=[longest, None], max_spikes=8)\n"
        "def long():\n"
        "    return short(100)\n"
        "def dense():\n"
        "    return snn.MultiStep(snn.DelayLinear(40, 30, 5), snn.Leaky(beta=0.9))\n"
    )
    counted = {
        name: document_of(f"--model {file}:{name} --steps 20 --batch-size 4")["operators"]
        for name in ("short", "long", "dense")
    }
    names = [operator["name"] for operator in counted["short"]]
    assert names.count("DelayLinear") == names.count("DelayLinear (gradient)") == names.count("SparseLinear") == 1
    assert counted["long"] == counted["short"]
    assert [operator["name"] for operator in counted["dense"]][:2] == ["DelayLinear", "NeuronSequence"]
    assert all(operator["cycles"] > 0 for operator in counted["dense"])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    cells_of(
        """
    model        | --html page.html       | --html is for fully connected networks
    model        | --neurons-per-tile 4   | --neurons-per-tile is for fully connected networks
    model        | --activity 0.1,0.2,0.3 | operator by operator takes one --activity
    without_size |                        | the first layer on maps must have its input_size
    """
    ),
)
@needs_host_runtime
def test_wrong_arguments_for_layers_on_maps(name, arguments, message, maps_file, capsys, monkeypatch):
    monkeypatch.chdir(maps_file.parent)
    assert message in refusal(capsys, command_line, "profile", f"--model {maps_file}:{name}", arguments)


@needs_host_runtime
def test_without_the_library_layers_on_maps_are_refused(maps_file, capsys, monkeypatch):
    def missing():
        raise IpuModelError("there is no library of the IPU model")

    monkeypatch.setattr("snnipu.ipu.model.library", missing)
    assert "there is no library of the IPU model" in refusal(capsys, command_line, "profile --model", maps_file)


def test_the_guide_shows_what_it_prints(repository, capsys):
    """The guide's sample output equals the command's line by line, with the rates of the published networks."""
    page = (repository / "docs" / "how-to" / "profile.md").read_text()
    (sample,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert run("--model 2312,1466,1466,10") == 0
    output = capsys.readouterr().out
    for line in sample.splitlines():
        assert line.strip() in {"...", *(known.strip() for known in output.splitlines())}, line
    rate = ipu.estimate(ipu.plan(published.network("N-MNIST", 2, 0.02))).samples_per_s
    words = " ".join(page.split())
    assert f"predicted to train {rate:.0f} samples a second" in words
    assert f"would train {rate / 10:.0f} to {rate / 5:.0f}." in words
    stored = read_json(repository / "benchmarks" / "results" / "ipu-model.json")
    (row,) = [
        row
        for row in stored["depth"]
        if (row["network"], row["hidden_layers"], row["activity"]) == ("N-MNIST", 2, 0.02)
    ]
    assert row["samples_per_s"] == pytest.approx(rate)


def test_published_network_on_more_ipus():
    """Replicas sum their gradients: each of n IPUs sends 2 (n - 1) / n of them over its links."""
    spec = published.network(published.SCALED, published.SCALED_LAYERS, 0.02)
    target = ipu.TARGETS["mk2"]
    assert published.all_reduce_seconds(spec, 1, target) == 0
    weights = 2312 * 1466 + 1466 * 1466 + 1466 * 10
    assert spec.parameters >= weights
    assert published.all_reduce_seconds(spec, 4, target) == pytest.approx(1.5 * 4 * spec.parameters / 320e9)
    rows = [row for row in published.scaling((1, 2, 16)) if row["activity"] == 0.02]
    assert [row["ipus"] for row in rows] == [1, 2, 16]
    assert rows[0]["copies_samples_per_s"] == pytest.approx(rows[0]["samples_per_s"])
    speedup = [row["copies_samples_per_s"] / rows[0]["samples_per_s"] for row in rows]
    assert 1.9 < speedup[1] < 2
    assert 15 < speedup[2] < 16
    assert rows[2]["ipus_used"] <= rows[2]["ipus"]


@pytest.mark.slow
@needs_host_runtime
@needs_library
def test_the_guide_to_convolutions_shows_what_it_prints(repository, tmp_path, capsys):
    """The first network of the guide to convolutions gives the page's numbers; its neurons' cycles are left out."""
    guides = repository / "docs" / "how-to"
    page = (guides / "convolutions-on-an-ipu.md").read_text()
    (sample,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    (caps,) = re.findall(r"with `(max_spikes=.*?)`, in a file", page)
    network = re.search(
        r"net = (snn.SparseNetwork\(.*?)\n\)", (guides / "train-convolutional.md").read_text(), re.DOTALL
    )[1]
    (tmp_path / "net.py").write_text(f"import snnipu as snn\n\nmodel = {network}, {caps})\n")
    assert run("--model", tmp_path / "net.py", "--batch-size 16 --steps 50") == 0
    printed = {line.strip() for line in capsys.readouterr().out.splitlines()}
    assert sample.count("SparseConv2d") == 4
    for line in sample.splitlines():
        assert line.strip() in {"...", *printed}, line
