"""Records of a run: all kinds of rows, and a run that is stopped."""

import signal
import subprocess
import sys

import pytest
from support.commands import ROOT, read_json, words

from benchmarks import runner
from benchmarks.case import Settings, Unavailable
from benchmarks.runner import passed, run_table


def run(case, peers=("snntorch", "norse", "compile", "spikingjelly"), **arguments):
    records = []
    run_table("case", case, Settings(), records, peers, **{"repeats": 2, **arguments})
    return records


def rows(records):
    """Return the first record of each contender."""
    return {record["contender"]: record for record in reversed(records)}


def test_every_kind_of_row(make_case, make_contender):
    steps = []
    records = run(
        make_case(
            make_contender("own", note="a note"),
            make_contender("snntorch", "snntorch"),
            make_contender("wrong", "compile", passed=False, steps=steps),
            make_contender("absent", "norse", raises=Unavailable("not installed")),
            make_contender("raising", "spikingjelly", raises=TypeError("no float16\n  here " + "x" * 500)),
        )
    )
    first = rows(records)
    assert {name: row["status"] for name, row in first.items()} == {
        "own": "ok",
        "snntorch": "ok",
        "wrong": "red",
        "absent": "unavailable",
        "raising": "failed",
    }
    assert first["absent"]["reason"] == "not installed"
    assert first["raising"]["reason"].startswith("TypeError: no float16 here xxx")
    assert len(first["raising"]["reason"]) == 200
    # A failed check gives no time: the contender is not timed.
    assert first["wrong"]["reason"] == "detail of wrong"
    assert not {"seconds", "peak_bytes"} & set(first["wrong"])
    assert steps == []
    assert not passed(records)
    assert first["own"]["peak_bytes"] == 4096
    assert (first["own"]["note"], first["own"]["against"]) == ("a note", "a reference")


def test_passed(make_case, make_contender):
    """A peer that cannot run is no failure; a row of snnipu that cannot run is."""
    contender = make_contender("own")
    assert passed(run(make_case(contender, make_contender("peer", "norse", raises=ImportError("no")))))
    assert not passed(run(make_case(make_contender("own", raises=RuntimeError("no")), contender)))


def test_memory_of_a_process_of_its_own(make_case, make_contender, monkeypatch):
    answers = {"a": 7, "b": None}
    monkeypatch.setattr(runner, "resident_peak_bytes", lambda case, contender, settings: answers[contender])
    case = make_case(make_contender("a"), make_contender("b"))
    both = rows(run(case, resident=True))
    assert (both["a"]["resident_bytes"], both["a"]["peak_bytes"]) == (7, 4096)
    apart = rows(run(case, memory_apart=True))
    assert apart["a"]["peak_bytes"] == 7
    assert apart["b"]["status"] == "unavailable"


def test_a_stop_keeps_what_was_measured(make_case, make_contender):
    records, saved = [], []
    calls = []

    def stop():
        calls.append(1)
        saved.append(len(records))
        if len(calls) == 4:
            raise KeyboardInterrupt

    case = make_case(make_contender("a"), make_contender("b"))
    with pytest.raises(KeyboardInterrupt):
        run_table("case", case, Settings(), records, repeats=100, after_measurement=stop)
    # Each contender is checked, then timed twice.
    assert len(records) == saved[-1] == 2
    assert all("seconds" in record for record in records)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a process is stopped otherwise")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_command_has_written_its_records(tmp_path, number):
    """A command that is stopped before its tables are done has saved and printed its measurements."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    out = tmp_path / "out.json"
    command = "-m benchmarks lif steps=2,3 batch_size=2 neurons=4 --peers none --min-seconds 600 --json"
    process = subprocess.Popen(
        [sys.executable, *words(command, out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while '"seconds"' not in (out.read_text(encoding="utf-8") if out.exists() else ""):
        assert process.poll() is None, process.communicate()
    process.send_signal(number)
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "stopped: finished measurements are saved" in errors
    records = read_json(out)["records"]
    assert {record["steps"] for record in records} == {2}
    assert all(record["status"] == "ok" for record in records)
    assert "T=2 × B=2 × N=4" in printed
