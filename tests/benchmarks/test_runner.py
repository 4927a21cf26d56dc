import pytest
import torch

from benchmarks import Case, report, run_case


def by_name(result):
    return {r.contender.name: r for r in result.results}


def test_every_kind_of_row(mixed_result):
    rows = by_name(mixed_result)
    assert {name: r.status for name, r in rows.items()} == {
        "own": "ok",
        "snntorch": "ok",
        "wrong": "red",
        "absent": "unavailable",
        "raising": "failed",
    }
    assert rows["absent"].reason == 'not installed: pip install "snnipu[bench]"'
    assert rows["raising"].reason == "TypeError: no float16 here"
    assert rows["wrong"].reason == "detail of wrong"


def test_red_gate_gives_no_time(mixed_result):
    red = by_name(mixed_result)["wrong"]
    assert red.timing is None
    assert red.peak_bytes is None
    assert red.ratios == {}
    assert red.contender.steps == []
    assert not mixed_result.passed


def test_ratios_are_of_medians(mixed_result):
    rows = by_name(mixed_result)
    assert rows["own"].ratios == {"own": 1.0}
    assert rows["snntorch"].ratios["own"] == rows["snntorch"].timing.median / rows["own"].timing.median


def test_share_of_a_copy_is_of_medians(run, make_contender):
    rows = by_name(
        run(make_contender("own", floor="copy"), make_contender("copy", peer="copy"), peers=["copy"]),
    )
    assert rows["own"].copy_share == rows["copy"].timing.median / rows["own"].timing.median
    assert rows["copy"].copy_share is None


def test_no_share_of_a_copy_that_did_not_run(run, make_contender):
    wrong = make_contender("copy", peer="copy", passed=False)
    assert by_name(run(make_contender("own", floor="copy"), wrong, peers=["copy"]))["own"].copy_share is None
    assert by_name(run(make_contender("own", floor="copy"), peers=[]))["own"].copy_share is None


def test_peak_memory(mixed_result):
    assert by_name(mixed_result)["own"].peak_bytes == 4096
    assert mixed_result.memory_reference() == 4096


def test_resident_memory_is_asked_for_by_name(run, make_contender):
    asked = []
    result = run(make_contender("a"), make_contender("b", passed=False), resident=lambda name: asked.append(name) or 7)
    assert asked == ["a"]
    assert by_name(result)["a"].resident_bytes == 7
    assert by_name(result)["a"].peak_bytes > 7
    assert "resident MiB" in report.text(result)


def test_memory_apart_is_that_of_the_other_process(run, make_contender):
    found = {"a": 7 * 2**20, "b": None}
    result = run(make_contender("a"), make_contender("b"), resident=found.get, memory_apart=True)
    rows = by_name(result)
    assert rows["a"].peak_bytes == 7 * 2**20
    assert rows["b"].status == "unavailable"
    assert "resident MiB" not in report.text(result)
    assert "peak: growth of VmHWM" in " ".join(report.text(result).split())


def test_missing_or_raising_peer_is_no_failure(run, make_contender):
    assert run(make_contender("own"), make_contender("peer", peer="norse", raises=ImportError("no"))).passed


def test_raising_own_row_is_a_failure(run, make_contender):
    result = run(make_contender("own", raises=RuntimeError("no")), make_contender("peer", peer="norse"))
    assert not result.passed
    assert by_name(result)["peer"].ratios == {}
    assert by_name(result)["peer"].timing is not None


def test_red_own_row_gives_no_ratio(run, make_contender):
    result = run(make_contender("a", passed=False), make_contender("b"), make_contender("peer", peer="norse"))
    assert not result.passed
    assert list(by_name(result)["peer"].ratios) == ["b"]


def test_only_asked_peers_run(run, make_contender):
    own, asked, other = make_contender("own"), make_contender("p", peer="norse"), make_contender("q", peer="snntorch")
    result = run(own, asked, other, peers=["norse"])
    assert [r.contender.name for r in result.results] == ["own", "p"]
    assert other.steps == []
    assert result.memory_reference() is None


def test_no_peer_at_all(run, make_contender):
    result = run(make_contender("own"), make_contender("p", peer="norse"), peers=[])
    assert [r.contender.name for r in result.results] == ["own"]
    assert result.passed


def test_stages_and_rounds_are_told(run, make_contender):
    stages, rounds = [], []
    run(make_contender("own"), repeats=3, on_stage=stages.append, on_round=lambda: rounds.append(1))
    assert stages == ["case: checking label of own", "case: timing"]
    assert len(rounds) == 3


def test_long_reason_is_cut(run, make_contender):
    result = run(make_contender("own"), make_contender("p", peer="norse", raises=ValueError("x" * 5000)))
    reason = by_name(result)["p"].reason
    assert reason.startswith("ValueError: xxx")
    assert len(reason) == 200


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_stop_stops(run, make_contender, stop):
    with pytest.raises(stop):
        run(make_contender("own", raises=stop()))


@pytest.mark.parametrize("alone", [False, True])
def test_memory_of_the_contender_before_is_given_back(monkeypatch, make_contender, alone):
    released = []
    monkeypatch.setattr("benchmarks.runner.release_memory", lambda: released.append(1))
    case = Case("case", "Title", "Caption.", [make_contender("a"), make_contender("b")], alone=alone)
    run_case(case, [], torch.device("cpu"), repeats=3, min_seconds=0.0)
    assert len(released) == (2 * 3 if alone else 0)
