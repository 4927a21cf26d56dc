import json

import pytest
import torch

import snnipu
from snnipu.benchmarking.resident import supported
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
    assert {"lif", "network"} <= {case["name"] for case in document["cases"]}
    assert document["settings"]["quick"] is True
    assert document["settings"]["peers"] == ["snntorch", "spikingjelly", "norse"]
    for case in document["cases"]:
        assert case["title"] in printed
        for row in case["results"]:
            assert row["label"] in printed
            assert (row["time"] is not None) == (row["status"] == "ok")
    assert picture.stat().st_size > 5000


def test_one_case_with_sizes_of_its_own(capsys):
    assert bench("lif", *TINY, "--peers", "none") == 0
    printed = capsys.readouterr().out
    assert "T=3 × B=2 × N=9" in printed
    assert "Tutorial" not in printed
    assert "snnTorch loop" not in printed


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda_is_status_2(capsys):
    with pytest.raises(SystemExit) as stop:
        bench("--device", "cuda")
    assert stop.value.code == 2
    assert "argument --device: cuda: this PyTorch finds no CUDA device" in capsys.readouterr().err


def test_chart_without_matplotlib_is_status_2_before_the_run(monkeypatch, tmp_path, capsys):
    import sys

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
    for said in ("lif", "network", "spikingjelly", "norse", "Exit status"):
        assert said in printed
