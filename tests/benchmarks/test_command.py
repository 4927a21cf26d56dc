"""``python -m benchmarks``: files, printed output and errors."""

import json
import re
import shlex

import pytest
import torch
from support.commands import ROOT, read_json, refusal, words
from support.tables import cells_of
from support.versions import needs_native

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from benchmarks.__main__ import arguments_parser, main, tables_of
from benchmarks.cases import CASES
from benchmarks.memory import reports_resident

TINY = "batch_size=2 neurons=9 --repeats 2 --min-seconds 0"


def records_of(path):
    return read_json(path)["records"]


@pytest.mark.slow
def test_a_sweep(tmp_path, capsys):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    arguments = "sparse activity=0.05,0.3 hidden_layers=2,3 --quick --peers snntorch --json"
    assert main(words(arguments, out, "--chart", picture)) == 0
    printed = capsys.readouterr().out
    document = read_json(out)
    assert document["environment"]["settings"] == {"activity": [0.05, 0.3], "hidden_layers": [2, 3]}
    places = {(record["activity"], record["hidden_layers"]) for record in document["records"]}
    assert places == {(0.05, 2), (0.3, 2), (0.05, 3)}
    measured = document["records"][0]["measured"]
    assert measured["activity"] == pytest.approx([0.05] * 4, rel=0.3)
    assert measured["dropped"] == 0
    assert "median ms against activity, hidden_layers 2" in printed
    assert "median ms against hidden_layers, activity 0.05" in printed
    assert "Small sizes (--quick)" in printed
    assert picture.stat().st_size > 5000


def test_all_has_one_table_of_each_case(monkeypatch, tmp_path, capsys):
    ran = []
    monkeypatch.setattr(
        "benchmarks.__main__.run_table", lambda name, case, settings, *_, **__: ran.append((name, settings))
    )
    assert main(words("--quick --dtype float32")) == 0
    assert [name for name, _ in ran] == list(CASES)
    assert dict(ran)["neurons"].neuron == "Leaky"
    ran.clear()
    assert main(words("--dtype float16")) == 0
    assert [(name, settings.dtype) for name, settings in ran] == [("lif", torch.float16)]
    assert "sparse does not run in float16 on cpu: left out" in capsys.readouterr().out


def test_runs_as_one(tmp_path, capsys):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for steps, file in zip((3, 4), files):
        assert main(words(f"lif steps={steps}", TINY, "--peers none --json", file)) == 0
    capsys.readouterr()
    merged = tmp_path / "all.json"
    assert main(words("lif --merge", *files, "--json", merged)) == 0
    assert records_of(merged) == [record for file in files for record in records_of(file)]
    assert "median ms against steps" in capsys.readouterr().out
    # The last of two equal tables is used.
    assert main(words("lif --merge", *files, files[0], "--json", merged)) == 0
    assert len(records_of(merged)) == len(records_of(files[0])) + len(records_of(files[1]))
    other = read_json(files[1])
    other["environment"]["threads"] = 99
    for text, message in ((json.dumps(other), "b.json has another threads than"), ("[]", "b.json is no record")):
        files[1].write_text(text, encoding="utf-8")
        assert message in refusal(capsys, main, "lif --merge", *files)


def test_a_red_check_is_status_1(monkeypatch, tmp_path, capsys):
    import snnipu

    monkeypatch.setattr(snnipu.Leaky, "sequence", lambda self, x, mem=None: (x * 1.0, x))
    out = tmp_path / "out.json"
    assert main(words("lif steps=3", TINY, "--peers snntorch --json", out)) == 1
    printed = capsys.readouterr().out
    assert "RED, not timed" in printed
    assert "spikes differ" in printed
    assert {record["contender"] for record in records_of(out) if "seconds" not in record} == {"snnipu"}


@pytest.mark.slow
@pytest.mark.skipif(not reports_resident(torch.device("cpu")), reason="the system does not report resident memory")
@needs_native
def test_resident_memory(tmp_path):
    """Resident memory of ``Leaky.sequence`` in a new process: spikes, membranes and the gradient of x."""
    out = tmp_path / "out.json"
    sizes = "steps=20 batch_size=64 neurons=1024 --repeats 1 --min-seconds 0 --peers none"
    assert main(words("lif", sizes, "--resident-memory --json", out)) == 0
    (row,) = records_of(out)
    assert 2.9 < row["resident_bytes"] / (20 * 64 * 1024 * 4) < 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    cells_of(
        """
    nothing                 | argument case
    --peers snntorch,brian  | argument --peers: unknown peer 'brian'
    --dtype float8          | argument --dtype
    network --dtype float64 | network does not run in float64 on cpu
    lif steps=0             | steps=0: steps must be above 0
    lif size=3              | expected SETTING=VALUE[,VALUE], got 'size=3'
    lif activity=0.1        | lif has no setting activity; it has steps, batch_size, neurons, beta
    sparse activity=0.1,1   | activity must be below 1
    sparse hidden_layers=1  | hidden_layers: expected one of 2, 3, 4, 5, got 1
    memory tensor=3x4       | tensor: expected sizes TxBxN such as 100x128x1024
    """
    ),
)
def test_wrong_arguments_are_status_2(arguments, message, capsys):
    assert message in refusal(capsys, main, arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda_is_status_2(capsys):
    assert "argument --device: this PyTorch finds no CUDA device" in refusal(capsys, main, "--device cuda")


def test_what_cannot_be_written_is_known_before_the_run(monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.__main__.run_table", lambda *_, **__: pytest.fail("it has run"))
    with pytest.raises(OSError, match="no_such_folder"):
        main(words("lif --json", tmp_path / "no_such_folder" / "out.json"))


def test_documented_commands_can_be_run():
    """Each documented command names an existing case and existing settings."""
    lines = []
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        lines += re.findall(r"python -m benchmarks( [^`\n]*)", text)
    assert len(lines) > 30
    for line in lines:
        command = shlex.split(line, comments=True)
        if "CASE" not in command and "--help" not in command:
            command = [word for word in command if word not in ("cuda", "--device")]
            arguments = arguments_parser().parse_args(command)
            arguments.device = torch.device("cpu")
            for name in CASES if arguments.case == "all" else [arguments.case]:
                if not (name == "memory" and arguments.case == "all"):
                    assert tables_of(name, CASES[name], arguments)


def test_help_lists_cases_settings_and_peers(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in CASES)
    assert "hidden_layers=(2, 3, 4, 5)" in printed
    assert "spikingjelly" in printed
