import dataclasses
import json

import pytest
import torch

from benchmarks import environment, report

SETTINGS = {"steps": 5, "quick": True}


@pytest.fixture
def machine():
    return environment.record(torch.device("cpu"), torch.float32)


def test_text(mixed_result):
    text = report.text(mixed_result)
    lines = text.splitlines()
    assert lines[:2] == ["Title of the case", "Caption of the case."]
    own, snntorch, wrong, absent, raising = lines[5:10]
    assert own.startswith("label of own [1]")
    assert "pass (a reference)" in own
    assert own.rstrip().endswith("100%")
    assert len(own) == len(snntorch) == len(lines[3])
    assert "RED, not timed: detail of wrong" in wrong
    assert 'unavailable: not installed: pip install "snnipu[bench]"' in absent
    assert "failed: TypeError: no float16 here" in raising
    assert "[1] a note of its own" in text


def test_markdown_has_the_same_cells(mixed_result):
    rows = [line for line in report.markdown(mixed_result).splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row for i, row in enumerate(cells) if i != 1] == [
        row + [""] * (len(cells[0]) - len(row)) for row in report.table_rows(mixed_result)
    ]


def test_without_reference_there_is_no_share_of_it(run, make_contender):
    text = report.text(run(make_contender("own"), peers=[]))
    assert "snnTorch  " not in text
    assert "%" not in text


def test_red_own_row_leaves_a_dash(run, make_contender):
    result = run(make_contender("own", passed=False), make_contender("peer", peer="norse"))
    assert any("–" in row for row in report.table_rows(result))


def test_only_failures_still_make_a_table(run, make_contender):
    assert "RED" in report.text(run(make_contender("own", passed=False)))


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.25, "250"), (0.0123, "12.3"), (0.00151, "1.51"), (0.000042, "0.042"), (9.994, "9994")]
)
def test_milliseconds(seconds, said):
    assert report.milliseconds(seconds) == said


@pytest.mark.parametrize(("ratio", "said"), [(57.3, "57 ×"), (8.31, "8.3 ×"), (1.0, "1.0 ×"), (0.137, "0.14 ×")])
def test_times(ratio, said):
    assert report.times(ratio) == said


def test_json(mixed_result, machine):
    document = json.loads(json.dumps(report.to_json([mixed_result], machine, SETTINGS), allow_nan=False))
    assert list(document) == [
        "schema",
        "passed",
        "environment",
        "settings",
        "memory_method",
        "resident_memory_method",
        "cases",
        "sweeps",
    ]
    assert document["schema"] == report.SCHEMA
    assert document["passed"] is False
    assert document["settings"] == SETTINGS
    assert document["sweeps"] == []
    (case,) = document["cases"]
    assert case["parameters"] == case["measured"] == {}
    rows = {row["name"]: row for row in case["results"]}
    assert list(rows) == ["own", "snntorch", "wrong", "absent", "raising"]
    for row in rows.values():
        assert list(row) == [
            "name",
            "label",
            "own",
            "peer",
            "note",
            "status",
            "reason",
            "check",
            "time",
            "ratios",
            "copy_share",
            "peak_bytes",
            "resident_peak_bytes",
            "peak_ratio",
            "compile_s",
            "phases",
        ]
    assert set(rows["own"]["time"]) == {
        "median_s",
        "lower_quartile_s",
        "upper_quartile_s",
        "rounds",
        "calls_per_round",
        "faults_per_call",
        "system_share",
    }
    assert rows["own"]["copy_share"] is None
    assert rows["own"]["own"] is True
    assert rows["own"]["peak_ratio"] == 1.0
    assert rows["snntorch"]["ratios"] == {"own": pytest.approx(mixed_result.results[1].ratios["own"])}
    assert rows["wrong"]["time"] is None
    assert rows["wrong"]["check"] == {
        "passed": False,
        "against": "a reference",
        "detail": "detail of wrong",
        "errors": {"error": None},
    }
    assert rows["absent"]["check"] is None


def test_columns_of_memory(mixed_result):
    """Only where a row has them, or the case asks for them."""
    assert not {"of copy", "faults", "kernel"} & set(report.table_rows(mixed_result)[0])
    mixed_result.case = dataclasses.replace(mixed_result.case, show_faults=True)
    own, snntorch = mixed_result.results[:2]
    own.copy_share = 0.814
    own.timing = dataclasses.replace(own.timing, faults=12345.0, system_share=0.25)
    snntorch.timing = dataclasses.replace(snntorch.timing, faults=None, system_share=None)
    heading, first, second = report.table_rows(mixed_result)[:3]
    told = [dict(zip(heading, row)) for row in (first, second)]
    assert [(row["of copy"], row["faults"], row["kernel"]) for row in told] == [("81%", "12,345", "25%"), ("–",) * 3]
    assert "page faults a step" in report.reading_aid(mixed_result)


@pytest.mark.parametrize(("count", "said"), [(0.0, "0"), (0.25, "0.25"), (7.0, "7"), (41.5, "42"), (12345.0, "12,345")])
def test_faults(count, said):
    assert report.faults(count) == said


def test_environment(machine):
    assert machine["dtype"] == "float32"
    assert machine["tf32"] is False
    assert machine["threads"] == torch.get_num_threads()
    assert machine["versions"]["torch"] == torch.__version__
    assert machine["versions"]["snntorch"]
    assert machine["cpu_model"]
    assert "lif_sequence" in machine["backends"]
    json.dumps(machine, allow_nan=False)


def test_environment_line(machine):
    line = report.environment_line(machine)
    for said in (machine["cpu_model"], "float32", "thread", "snntorch", machine["date"], "lif_sequence: "):
        assert said in line


def test_version_of_what_is_not_installed():
    assert environment.package_version("snnipu-no-such-package") is None
