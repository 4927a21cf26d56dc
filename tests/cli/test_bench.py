import dataclasses
import json
import sys

import pytest
import torch
from support.versions import NO_HALF_CLAMP, needs_compile

import snnipu
from benchmarks.resident import supported
from snnipu.cli import main

TINY = ["--steps", "3", "--batch-size", "2", "--neurons", "9", "--repeats", "1", "--min-seconds", "0"]


@pytest.fixture(autouse=True)
def one_thread():
    """Small steps on several threads mostly wait for each other, for long where other tests run beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bench(*arguments):
    return main(["bench", *arguments])


def test_quick_run_of_everything(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    arguments = ["--quick", "--repeats", "1", "--peers", "snntorch,spikingjelly,norse"]
    assert bench(*arguments, "--json", str(out), "--chart", str(picture)) == 0
    printed = capsys.readouterr().out
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["passed"] is True
    assert {"lif", "network", "sparse"} <= {case["name"] for case in document["cases"]}
    assert document["sweeps"] == []
    assert document["settings"]["quick"] is True
    assert document["settings"]["peers"] == ["snntorch", "spikingjelly", "norse"]
    for case in document["cases"]:
        assert case["title"] in printed
        for row in case["results"]:
            assert row["label"] in printed
            assert (row["time"] is not None) == (row["status"] == "ok")
    assert picture.stat().st_size > 5000


@needs_compile
def test_compiled_loops_alone_and_merged(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for network, file in zip(("deep", "population"), files):
        assert bench("compile", *TINY, "--networks", network, "--peers", "none", "--json", str(file)) == 0
    alone = [json.loads(file.read_text(encoding="utf-8"))["cases"][0] for file in files]
    assert [sorted(row["phases"]) for row in alone[0]["results"]] == [["backward", "forward", "optimizer"]] * 3
    capsys.readouterr()
    out, picture = tmp_path / "all.json", tmp_path / "all.svg"
    merge = ("compile", "--merge", ",".join(map(str, files)))
    assert bench(*merge, "--json", str(out), "--chart", str(picture)) == 0
    printed = capsys.readouterr().out
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["cases"] == [alone[1], alone[0]]  # in the order of the networks
    assert document["sweeps"][0]["axes"][0]["values"] == ["population", "deep"]
    assert "median ms against network" in printed
    assert picture.stat().st_size > 5000

    other = json.loads(files[1].read_text(encoding="utf-8"))
    other["environment"]["threads"] = 99
    files[1].write_text(json.dumps(other), encoding="utf-8")
    with pytest.raises(SystemExit):
        bench(*merge)
    assert "b.json has another threads than" in capsys.readouterr().err
    files[1].write_text("[]", encoding="utf-8")
    with pytest.raises(SystemExit):
        bench(*merge)
    assert "b.json is no record of the case compile" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench("lif", *merge[1:])
    assert "argument --merge: not for lif" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench("compile", "--networks", "tutorial-9")
    assert "one is 'tutorial-9'" in capsys.readouterr().err


def test_neurons(tmp_path, capsys):
    """A table along the neurons, and a group of bars for each."""
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "out.json", tmp_path / "out.svg"
    arguments = [*TINY, "--kinds", "Synaptic,RLeaky all-to-all", "--peers", "snntorch,copy"]
    assert bench("neurons", *arguments, "--json", str(out), "--chart", str(picture)) == 0
    printed = capsys.readouterr().out
    document = json.loads(out.read_text(encoding="utf-8"))
    assert [case["parameters"]["neuron"] for case in document["cases"]] == ["Synaptic", "RLeaky all-to-all"]
    assert document["sweeps"][0]["axes"][0]["values"] == ["Synaptic", "RLeaky all-to-all"]
    for told in ("median ms against neuron", "share of the copy's speed against neuron", "peak MiB against neuron"):
        assert told in printed
    assert picture.stat().st_size > 5000


def test_quick_sweep(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    arguments = [
        "--quick",
        "--activities",
        "0.3,0.05",
        "--depths",
        "2,3",
        "--depth-activity",
        "0.05",
        "--peers",
        "none",
    ]
    assert bench("sparse", *arguments, "--json", str(out), "--chart", str(picture)) == 0
    printed = capsys.readouterr().out
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["passed"] is True
    assert document["settings"]["steps"] == 10
    assert document["settings"]["beta"] == 0.95
    where = [(case["parameters"]["activity"], case["parameters"]["hidden_layers"]) for case in document["cases"]]
    assert where == [(0.05, 2), (0.3, 2), (0.05, 3)]
    for case in document["cases"]:
        assert case["name"] == "sparse"
        assert case["memory_reference"] == "dense"
        assert len(case["measured"]["activity"]) == len(case["parameters"]["sizes"])
        assert case["measured"]["dropped"] == 0
        rows = {row["name"]: row for row in case["results"]}
        assert set(rows) == {"sparse-network", "sparse-ops", "dense"}
        assert all(row["status"] == "ok" and row["check"]["passed"] for row in rows.values())
        assert rows["dense"]["peak_ratio"] == 1.0
    (sweep,) = document["sweeps"]
    assert set(sweep["break_even"]["values"]) == {"sparse-network", "sparse-ops"}
    assert "median ms against activity of every layer, hidden layers 2" in printed
    assert "median ms against hidden layers, activity 5" in printed
    assert picture.stat().st_size > 5000


def test_quick_sweep_of_convolutions(tmp_path):
    out = tmp_path / "out.json"
    arguments = ["--quick", "--repeats", "1", "--conv-activities", "0.1", "--network", "layer-2-34x34"]
    assert bench("conv", *arguments, "--peers", "snntorch", "--json", str(out)) == 0
    (case,) = json.loads(out.read_text(encoding="utf-8"))["cases"]
    rows = {row["name"]: row for row in case["results"]}
    assert list(rows) == ["sparse-network", "sparse-network-auto", "dense", "snntorch"]
    assert all(row["status"] == "ok" and row["check"]["passed"] for row in rows.values())
    assert case["measured"]["activity"] == pytest.approx([0.1, 0.1], rel=0.1)
    assert case["measured"]["dropped"] == 0


@pytest.mark.parametrize("layers", [["2-34x34"], ["16-17x17", "2-34x34"]])
def test_quick_sweep_of_one_convolution(layers, tmp_path, capsys):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    options = ["--layers", ",".join(layers), "--layer-activities", "0.05,0.2", "--chart", str(picture)]
    assert bench("convolution", "--quick", "--repeats", "1", *options, "--json", str(out)) == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    cases = document["cases"]
    found = {(case["parameters"]["layer"], case["parameters"]["work"]) for case in cases}
    assert found == {(layer, work) for layer in layers for work in ("currents", "weights")}
    for case in cases:
        assert [row["name"] for row in case["results"]] == ["sparse", "dense", "dense-parts"]
        assert all(row["status"] == "ok" and row["check"]["passed"] for row in case["results"])
    assert len(document["sweeps"][0]["axes"]) == 2 * len(layers)
    printed = capsys.readouterr().out
    assert "Convolution 2→12, 34×34, 5×5: gradient of the weights: median ms against activity" in printed
    assert picture.stat().st_size > 5000


def test_layers_of_a_convolution_that_are_none(capsys):
    with pytest.raises(SystemExit):
        bench("convolution", "--layers", "3-5x5")
    assert "expected layers of ['16-17x17'" in capsys.readouterr().err


def test_sweep_in_markdown_of_the_other_sizes(capsys):
    sizes = ["--quick", "--steps", "6", "--neurons", "20", "--activities", "0.2", "--depths", "2"]
    assert bench("sparse", *sizes, "--depth-activity", "0.2", "--input", "shd", "--peers", "none", "--markdown") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("### Sparse networks of SHD's size, forward + backward: T=6 × B=4")
    assert "700-20-20-20" in captured.out
    assert "1 of 1 points done" in captured.err


def test_red_gate_of_a_sweep_is_status_1(monkeypatch, tmp_path, capsys):
    from benchmarks.cases import sparse

    monkeypatch.setattr(sparse, "GRADIENT_TOLERANCE", -1.0)
    sparse._problem.cache_clear()
    picture = tmp_path / "out.png"
    arguments = ["--quick", "--activities", "0.2", "--depths", "2", "--depth-activity", "0.2", "--peers", "none"]
    assert bench("sparse", *arguments, "--json", str(tmp_path / "out.json"), "--chart", str(picture)) == 1
    assert "RED, not timed" in capsys.readouterr().out
    assert picture.exists()


@pytest.mark.skipif(not supported(torch.device("cpu")), reason="the system does not tell")
def test_resident_memory_of_a_sweep_is_that_of_its_headline(monkeypatch, tmp_path):
    asked = []

    def measured(case, contender, settings):
        asked.append((case, contender, settings.activity, settings.hidden_layers))
        return 1

    monkeypatch.setattr("snnipu.cli.bench.resident_peak_bytes", measured)
    arguments = ["--quick", "--activities", "0.1,0.2", "--depths", "2", "--depth-activity", "0.2", "--peers", "none"]
    assert bench("sparse", *arguments, "--resident-memory") == 0
    assert asked == [("sparse", name, 0.2, 2) for name in ("sparse-network", "sparse-ops", "dense")]


def test_sweep_over_sizes(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    arguments = ["--quick", "--repeats", "1", "--peers", "snntorch,copy", "--tensors", "4x6x50,3x2x10"]
    assert bench("memory", *arguments, "--json", str(out), "--chart", str(picture)) == 0
    printed = capsys.readouterr().out
    document = json.loads(out.read_text(encoding="utf-8"))
    assert [case["parameters"]["megabytes"] for case in document["cases"]] == [0.00024, 0.0048]
    for case in document["cases"]:
        assert case["title"] in printed
        rows = {row["name"]: row for row in case["results"]}
        assert list(rows) == ["snnipu", "snnipu-spikes", "snntorch-unbind", "copy-24", "copy-20"]
        assert all(row["status"] == "ok" and row["copy_share"] > 0 for row in rows.values())
        if sys.platform.startswith("linux"):
            assert all(row["time"]["faults_per_call"] >= 0 for row in rows.values())
    assert document["settings"]["steps"] is document["settings"]["neurons"] is None
    (sweep,) = document["sweeps"]
    assert sweep["axes"] == [{"parameter": "megabytes", "values": [0.00024, 0.0048], "fixed": {}}]
    assert sweep["break_even"] is None
    for title in ("median ms", "share of the copy's speed", "page faults a step"):
        assert f"{title} against sequence size in MB" in printed
    assert picture.stat().st_size > 5000


@pytest.mark.skipif(not supported(torch.device("cpu")), reason="the system does not tell")
def test_resident_memory_of_a_sweep_whose_tables_are_all_shown(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "snnipu.cli.bench.resident_peak_bytes", lambda case, name, settings: asked.append((name, settings.steps))
    )
    arguments = ["--quick", "--peers", "none", "--tensors", "3x2x10,4x6x50", "--resident-memory"]
    assert bench("memory", *arguments) == 0
    assert asked == [(name, steps) for steps in (3, 4) for name in ("snnipu", "snnipu-spikes")]


def test_sweep_without_memory_is_status_2(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.cases.memory.available_memory", lambda device: 0)
    with pytest.raises(SystemExit) as stop:
        bench("memory", "--quick")
    assert stop.value.code == 2
    assert "argument --tensors: 5 × 16 × 64 is left out: it needs about" in capsys.readouterr().err


def test_one_case_with_sizes_of_its_own(capsys):
    assert bench("lif", *TINY, "--peers", "none") == 0
    printed = capsys.readouterr().out
    assert "T=3 × B=2 × N=9" in printed
    assert "Tutorial" not in printed
    assert "snnTorch loop" not in printed


@pytest.mark.skipif(NO_HALF_CLAMP is not None, reason=f"snntorch.Leaky clamps a float16 beta: {NO_HALF_CLAMP}")
def test_tables_of_a_case_where_no_sizes_are_asked_for(monkeypatch, tmp_path, capsys):
    from benchmarks.cases import lif

    def variants(settings):
        small = dataclasses.replace(settings, steps=2, batch_size=3)
        return [dataclasses.replace(small, neurons=4), dataclasses.replace(small, neurons=5, dtype=torch.float16)]

    monkeypatch.setattr(lif, "variants", variants)
    out = tmp_path / "out.json"
    rounds = ["--repeats", "1", "--min-seconds", "0", "--peers", "copy"]
    assert bench("lif", *rounds, "--json", str(out)) == 0
    printed = capsys.readouterr().out
    assert "T=2 × B=3 × N=4\n" in printed
    assert "T=2 × B=3 × N=5, float16\n" in printed
    tables = json.loads(out.read_text(encoding="utf-8"))["cases"]
    assert [table["parameters"]["dtype"] for table in tables] == ["float32", "float16"]
    assert [row["name"] for row in tables[0]["results"]] == ["snnipu", "copy"]
    # A share of the floor is the time of the copy over a row's own.
    assert tables[0]["results"][1]["ratios"]["snnipu"] > 0
    for asked in (["--neurons", "7", "--steps", "2", "--batch-size", "2"], ["--quick"], [*TINY, "--dtype", "float64"]):
        bench("lif", *rounds, *asked, "--json", str(out))
        assert len(json.loads(out.read_text(encoding="utf-8"))["cases"]) == 1


def test_sizes_override_quick(capsys):
    assert bench("lif", "--quick", "--neurons", "7", "--peers", "none") == 0
    assert "T=5 × B=16 × N=7" in capsys.readouterr().out


def test_markdown(capsys):
    assert bench("lif", *TINY, "--peers", "snntorch", "--markdown") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("### LIF alone")
    assert "| --- | --- | ---: |" in printed


def test_progress_goes_to_stderr(capsys):
    bench("lif", *TINY, "--peers", "none")
    captured = capsys.readouterr()
    assert "checking" in captured.err
    assert "checking snnipu" not in captured.out


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype, tmp_path):
    try:
        torch.ones(1, dtype=getattr(torch, dtype)).clamp(0, 1)
    except RuntimeError as error:
        pytest.skip(str(error))
    out = tmp_path / "out.json"
    assert bench("lif", *TINY, "--dtype", dtype, "--json", str(out), "--peers", "snntorch") == 0
    assert json.loads(out.read_text(encoding="utf-8"))["environment"]["dtype"] == dtype


def test_all_leaves_out_what_does_not_run_in_a_dtype(capsys):
    assert bench("all", *TINY, "--dtype", "float64", "--peers", "none") == 0
    printed = capsys.readouterr().out
    assert "network is left out: it does not run in float64" in printed
    assert "sparse is left out: it does not run in float64" in printed
    assert "LIF alone" in printed


@pytest.mark.skipif(not supported(torch.device("cpu")), reason="the system does not tell")
def test_resident_memory(tmp_path, capsys):
    out = tmp_path / "out.json"
    sizes = ["--steps", "20", "--batch-size", "64", "--neurons", "1024"]
    assert bench("lif", *TINY, *sizes, "--peers", "none", "--resident-memory", "--json", str(out)) == 0
    assert "resident MiB" in capsys.readouterr().out
    (row,) = json.loads(out.read_text(encoding="utf-8"))["cases"][0]["results"]
    sequence = 20 * 64 * 1024 * 4
    assert 1.5 * sequence < row["resident_peak_bytes"] < 6 * sequence


def test_resident_memory_where_the_system_does_not_tell(monkeypatch, capsys):
    monkeypatch.setattr("snnipu.cli.bench.supported", lambda device: False)
    with pytest.raises(SystemExit) as stop:
        bench("--resident-memory")
    assert stop.value.code == 2
    assert "argument --resident-memory" in capsys.readouterr().err


def test_threads_are_set_recorded_and_restored(tmp_path):
    before, out = torch.get_num_threads(), tmp_path / "out.json"
    bench("lif", *TINY, "--peers", "none", "--threads", "2", "--json", str(out))
    assert json.loads(out.read_text(encoding="utf-8"))["environment"]["threads"] == 2
    assert torch.get_num_threads() == before


def test_red_gate_is_status_1(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(snnipu.Leaky, "sequence", lambda self, x, mem=None: (x * 1.0, x))
    out = tmp_path / "out.json"
    assert bench("lif", *TINY, "--peers", "snntorch", "--json", str(out)) == 1
    assert "RED, not timed" in capsys.readouterr().out
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["passed"] is False
    assert document["cases"][0]["results"][0]["time"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "argument case"),
        (["--peers", "snntorch,brian"], "argument --peers: unknown peer 'brian'"),
        (["--peers", ""], "argument --peers"),
        (["--device", "tpu"], "argument --device: unknown device 'tpu'"),
        (["--device", "meta"], "argument --device: unknown device 'meta'"),
        (["--dtype", "float8"], "argument --dtype"),
        (["network", "--dtype", "float64"], "argument --dtype: network does not run in float64"),
        (["sparse", "--dtype", "float64"], "argument --dtype: sparse does not run in float64"),
        (["sparse", "--activities", "0.1,1"], "argument --activities: must be above 0 and below 1, but is 1"),
        (["sparse", "--activities", "0.1,"], "argument --activities: expected numbers above 0 and below 1, separated"),
        (["sparse", "--activities", "nan"], "argument --activities: must be above 0"),
        (["sparse", "--depths", "1"], "argument --depths: published are 2, 3, 4 and 5 hidden layers, not 1"),
        (["sparse", "--depths", "two"], "argument --depths: expected whole numbers, separated by commas"),
        (["sparse", "--depth-activity", "0"], "argument --depth-activity: must be above 0 and below 1, but is 0"),
        (["sparse", "--depth-activity", "low"], "argument --depth-activity: 'low' is not a number"),
        (["sparse", "--input", "mnist"], "argument --input: invalid choice"),
        (["memory", "--tensors", "3x4"], "argument --tensors: expected sizes TxBxN such as 100x128x1024, separated by"),
        (["memory", "--tensors", "3x4x0"], "argument --tensors: sizes must be at least 1, but is '3x4x0'"),
        (["memory", "--tensors", "3x4x5,5x4x3"], "argument --tensors: each must have another size, but two have 60"),
        (["memory", "--steps", "3"], "argument --steps: not for the case memory, which has its sizes from --tensors"),
        (["memory", "--batch-size", "3"], "argument --batch-size: not for the case memory"),
        (["memory", "--dtype", "float64"], "argument --dtype: memory does not run in float64"),
        (["sparse", "--tensors", "3x4x5"], "argument --tensors: only for the case memory, not for sparse"),
        (["lif", "--activities", "0.1"], "argument --activities: only for the case sparse, not for lif"),
        (["--depth-activity", "0.1"], "argument --depth-activity: only for the case sparse, not for all"),
        (["--steps", "0"], "argument --steps: must be at least 1"),
        (["--batch-size", "-3"], "argument --batch-size: must be at least 1"),
        (["--neurons", "many"], "argument --neurons: 'many' is not a whole number"),
        (["--repeats", "0"], "argument --repeats"),
        (["--threads", "0"], "argument --threads"),
        (["--min-seconds", "-1"], "argument --min-seconds"),
        (["--min-seconds", "nan"], "argument --min-seconds"),
        (["--min-seconds", "soon"], "argument --min-seconds"),
        (["--json", "no/such/folder/out.json"], "argument --json: no/such/folder/out.json: there is no directory"),
        (["--json", "."], "argument --json: . is a directory"),
        (["--chart", "no/such/folder/out.png"], "argument --chart: no/such/folder/out.png: there is no directory"),
        (["--chart", "out.txt"], "argument --chart: out.txt: the name must end in .png"),
    ],
)
def test_bad_arguments_are_status_2(arguments, said, capsys):
    with pytest.raises(SystemExit) as stop:
        bench(*arguments)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


def test_case_that_is_not_for_the_device_is_status_2(monkeypatch, capsys):
    monkeypatch.setattr("snnipu.cli.bench._device", torch.device)
    monkeypatch.setattr("benchmarks.cases.sparse.DEVICES", ("cpu",))
    with pytest.raises(SystemExit) as stop:
        bench("sparse", "--device", "cuda")
    assert stop.value.code == 2
    assert "argument --device: sparse does not run on cuda" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda_is_status_2(capsys):
    with pytest.raises(SystemExit) as stop:
        bench("--device", "cuda")
    assert stop.value.code == 2
    assert "argument --device: cuda: this PyTorch finds no CUDA device" in capsys.readouterr().err


def test_chart_without_matplotlib_is_status_2_before_the_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit) as stop:
        bench("--chart", str(tmp_path / "out.png"))
    assert stop.value.code == 2
    assert "argument --chart" in capsys.readouterr().err


def test_help_lists_cases_and_peers(capsys):
    with pytest.raises(SystemExit) as stop:
        bench("--help")
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for said in ("lif", "network", "sparse", "--depth-activity", "spikingjelly", "norse", "Exit status"):
        assert said in printed
