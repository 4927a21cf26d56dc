import dataclasses
import json
import math

import pytest
import torch

from benchmarks import (
    Axis,
    Case,
    CaseResult,
    Check,
    Contender,
    ContenderResult,
    Settings,
    Sweep,
    SweepResult,
    environment,
    report,
    sweep_chart,
)
from benchmarks.chart import FORMATS
from benchmarks.sweep import crossing
from benchmarks.timing import Timing

ACTIVITIES, DEPTHS = (0.01, 0.1, 0.4), (2, 3)
PASSED = Check(True, "a reference", "fine", {"gradient_error": 0.0})


def row(name, seconds, peer=None, status="ok", reason=""):
    contender = Contender(name, f"label of {name}", lambda: None, peer=peer, ratio_label="" if peer else name)
    if seconds is None:
        return ContenderResult(contender, status, reason)
    timing = Timing(seconds, 0.9 * seconds, 1.1 * seconds, 5, 1)
    return ContenderResult(contender, "ok", check=PASSED, timing=timing, peak_bytes=2**20)


def make_sweep(rows):
    """A sweep whose tables are ``rows(activity, depth)``."""
    points = [*((activity, 2) for activity in ACTIVITIES), *((0.01, depth) for depth in DEPTHS[1:])]
    results = []
    for activity, depth in points:
        found = rows(activity, depth)
        parameters = {"activity": activity, "hidden_layers": depth}
        case = Case("case", "Title of the case", "Caption.", [r.contender for r in found], "dense", "dense", parameters)
        own = {r.contender.name: r.timing.median for r in found if r.contender.own and r.timing}
        for r in found:
            r.ratios = {name: r.timing.median / median for name, median in own.items()} if r.timing else {}
        results.append(CaseResult(case, found, {"activity": [activity]}))
    axes = [
        Axis("activity", "activity of every layer", ACTIVITIES, {"hidden_layers": 2}, percent=True),
        Axis("hidden_layers", "hidden layers", DEPTHS, {"activity": 0.01}),
    ]
    headline = {"activity": 0.01, "hidden_layers": 2}
    sweep = Sweep("case", "Title of the sweep", "Caption of the sweep.", [Settings()] * 4, axes, "dense", headline)
    return SweepResult(sweep, results)


@pytest.fixture
def linear():
    """Sparse takes 2 s an activity of 1, dense 0.4 s: they meet at 20 %."""
    return make_sweep(
        lambda activity, depth: [
            row("sparse", 2 * activity),
            row("ops", 0.01 * activity),
            row("dense", 0.4),
            row("peer", 1.0, peer="snntorch"),
        ]
    )


@pytest.fixture
def machine():
    return environment.record(torch.device("cpu"), torch.float32)


def test_crossing_of_powers_is_exact():
    values = [0.01, 0.1, 1.0]
    assert crossing(values, [3 * v for v in values], [0.6] * 3) == pytest.approx(0.2)
    assert crossing(values, [3 * v**2 for v in values], [0.3 * v for v in values]) == pytest.approx(0.1)


def test_crossing_outside_the_values():
    assert crossing([1, 2], [1.0, 2.0], [3.0, 3.0]) == math.inf
    assert crossing([1, 2], [4.0, 5.0], [3.0, 3.0]) == 0
    # As fast at the last value is not slower.
    assert crossing([1, 2], [1.0, 3.0], [3.0, 3.0]) == math.inf


def test_crossing_takes_the_first_and_skips_what_was_not_measured():
    assert crossing([1, 2, 4, 8], [1, 4, 1, 4], [2, 2, 2, 2]) == pytest.approx(math.sqrt(2))
    assert crossing([1, 2, 4], [1.0, None, 4.0], [2.0, 9.0, 2.0]) == pytest.approx(2)
    assert math.isnan(crossing([1, 2], [None, 1.0], [1.0, None]))
    assert math.isnan(crossing([], [], []))


@pytest.mark.parametrize(
    ("values", "times", "said"),
    [([1, 2], [1.0], "times"), ([2, 1], [1.0, 1.0], "values"), ([0, 1], [1.0, 1.0], "values")],
)
def test_crossing_of_nonsense(values, times, said):
    with pytest.raises(ValueError, match=said):
        crossing(values, times, [1.0] * len(values))


def test_break_even(linear):
    assert linear.break_even("sparse") == pytest.approx(0.2)
    assert linear.break_even("ops") == math.inf
    assert [c.name for c in linear.compared()] == ["sparse", "ops"]
    assert linear.passed


def test_times_along_an_axis(linear):
    depth = linear.sweep.axes[1]
    assert linear.medians(depth, "sparse") == [0.02, 0.02]
    assert linear.medians(depth, "nobody") == [None, None]
    assert linear.headline().case.parameters == {"activity": 0.01, "hidden_layers": 2}


def test_text(linear):
    text = report.sweep_text(linear)
    lines = text.splitlines()
    assert lines[0] == "Title of the sweep"
    assert any(line.split() == ["1", "%", "10", "%", "40", "%"] for line in lines)
    assert any(line.split() == ["label", "of", "sparse", "20.0", "200", "800"] for line in lines)
    assert any("label of dense ÷ label of sparse" in line and "2.0 ×" in line and "0.50 ×" in line for line in lines)
    said = " ".join(text.split())
    assert "Break-even with label of dense: label of sparse faster below 20 %; label of ops faster up to 40 %" in said
    assert "Title of the case" in text


def test_markdown_tables_are_whole(linear):
    printed = report.sweep_markdown(linear)
    assert printed.startswith("### Title of the sweep")
    for block in printed.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) <= 1
    assert printed.count("\n| --- |") == 3


def test_json(linear, machine):
    document = json.loads(json.dumps(report.to_json(linear.results, machine, {}, [linear]), allow_nan=False))
    assert len(document["cases"]) == 4
    assert document["cases"][0]["parameters"] == {"activity": 0.01, "hidden_layers": 2}
    assert document["cases"][0]["measured"] == {"activity": [0.01]}
    (sweep,) = document["sweeps"]
    assert sweep["case"] == "case"
    assert [axis["parameter"] for axis in sweep["axes"]] == ["activity", "hidden_layers"]
    assert sweep["axes"][1] == {"parameter": "hidden_layers", "values": [2, 3], "fixed": {"activity": 0.01}}
    assert sweep["break_even"] == {
        "parameter": "activity",
        "reference": "dense",
        "values": {"sparse": pytest.approx(0.2), "ops": None},
        "faster_throughout": ["ops"],
    }


@pytest.fixture
def broken():
    """Red at 10 %, a peer that is not installed, and a dense row that never ran."""

    def rows(activity, depth):
        red = activity == 0.1
        return [
            row("sparse", None if red else 0.1, status="red", reason="2 spikes differ"),
            row("dense", None, status="failed", reason="RuntimeError: no memory"),
            row("peer", None, peer="norse", status="unavailable", reason="not installed"),
        ]

    return make_sweep(rows)


def test_failures_are_told_with_their_place(broken):
    assert not broken.passed
    said = " ".join(report.sweep_text(broken).split())
    assert "label of sparse: RED, not timed: 2 spikes differ (activity of every layer 10 %, hidden layers 2)" in said
    assert "label of dense: failed: RuntimeError: no memory (activity of every layer 1 %, hidden layers 2;" in said
    assert "label of peer: unavailable: not installed" in said
    assert "Break-even" not in said
    assert report.sweep_markdown(broken)


def test_json_of_failures(broken, machine):
    document = json.loads(json.dumps(report.to_json(broken.results, machine, {}, [broken]), allow_nan=False))
    assert document["passed"] is False
    assert document["sweeps"][0]["break_even"]["values"] == {"sparse": None}


@pytest.fixture
def of_memory():
    """Along one axis, without a reference: share of a copy and page faults."""

    def rows(activity, depth):
        own, copy = row("own", 0.1), row("copy", 0.08, peer="copy")
        object.__setattr__(copy.contender, "floor", "copy")
        own.copy_share, copy.copy_share = 0.8, 1.0
        own.timing = dataclasses.replace(own.timing, faults=12345.0)
        return [own, copy]

    found = make_sweep(rows)
    tables, panels = ("time", "copy_share", "faults"), ("copy_share", "faults")
    axis = Axis("activity", "size", ACTIVITIES, {}, tables=tables, panels=panels)
    left_out = ["The largest is left out."]
    found.results = found.results[: len(ACTIVITIES)]
    found.sweep = dataclasses.replace(found.sweep, axes=[axis], reference=None, headline=None, left_out=left_out)
    return found


def test_sweep_without_reference(of_memory, machine):
    assert of_memory.compared() == []
    assert math.isnan(of_memory.break_even("own"))
    text = report.sweep_text(of_memory)
    lines = [line.split() for line in text.splitlines()]
    for title, own, copy in (
        ("median ms", ["100"] * 3, ["80.0"] * 3),
        ("share of the copy's speed", ["80%"] * 3, ["100%"] * 3),
        ("page faults a step", ["12,345"] * 3, ["–"] * 3),
    ):
        start = lines.index(f"{title} against size".split())
        assert lines[start + 3 : start + 5] == [["label", "of", "own", *own], ["label", "of", "copy", *copy]]
    assert "The largest is left out." in text
    assert "Break-even" not in text
    # All tables, explained once.
    assert text.count("Title of the case") == len(ACTIVITIES)
    assert text.count("÷: how many times") == 1
    assert report.sweep_markdown(of_memory).count("### Title of the case") == len(ACTIVITIES)
    (sweep,) = json.loads(json.dumps(report.to_json(of_memory.results, machine, {}, [of_memory])))["sweeps"]
    assert sweep["break_even"] is None
    assert sweep["left_out"] == ["The largest is left out."]


def test_spread_keeps_order_and_distance():
    moved = sweep_chart.spread([0.5, 0.49, 0.9, 0.1], 0.1)
    assert moved == pytest.approx([0.545, 0.445, 0.9, 0.1])
    crowd = sweep_chart.spread([0.5] * 4, 0.1)
    assert sorted(crowd) == pytest.approx([0.35, 0.45, 0.55, 0.65])
    assert sweep_chart.spread([], 0.1) == []


class TestChart:
    @pytest.fixture(autouse=True)
    def matplotlib(self):
        return pytest.importorskip("matplotlib")

    @pytest.mark.parametrize("suffix", FORMATS)
    def test_draw(self, linear, machine, tmp_path, suffix):
        path = tmp_path / f"chart{suffix}"
        sweep_chart.draw(linear, machine, path)
        assert path.stat().st_size > 5000

    def drawn(self, sweep, machine, tmp_path, matplotlib):
        path = tmp_path / "chart.svg"
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            sweep_chart.draw(sweep, machine, path)
        return path.read_text(encoding="utf-8").replace("\u00a0", " ")

    def test_what_it_says(self, linear, machine, tmp_path, matplotlib):
        drawn = self.drawn(linear, machine, tmp_path, matplotlib)
        for said in ("Title of the sweep", "linear in spikes", "path: 20 %", "label of peer", "100% of dense", "20 ×"):
            assert said in drawn

    def test_what_did_not_run(self, broken, machine, tmp_path, matplotlib):
        drawn = self.drawn(broken, machine, tmp_path, matplotlib)
        assert "label of sparse: check failed at 1 of 5 points, not timed there." in drawn
        assert "label of dense: did not run at 5 of 5 points." in drawn
        assert "break-even" not in drawn

    def test_nothing_timed(self, machine, tmp_path, matplotlib):
        sweep = make_sweep(lambda activity, depth: [row("dense", None, status="red", reason="wrong")])
        assert "Title of the sweep" in self.drawn(sweep, machine, tmp_path, matplotlib)

    def test_without_reference(self, of_memory, machine, tmp_path, matplotlib):
        drawn = self.drawn(of_memory, machine, tmp_path, matplotlib)
        for said in ("share of the copy's speed", "page faults a step", "10,000", "label of own", "copy of the least"):
            assert said in drawn
        assert "The largest is left out." in drawn
        # The copy is the line at 100 %.
        assert "label of copy" not in drawn

    def test_without_reference_and_nothing_timed(self, of_memory, machine, tmp_path, matplotlib):
        for result in of_memory.results:
            for row in result.results:
                row.timing = row.copy_share = None
        assert "page faults a step" in self.drawn(of_memory, machine, tmp_path, matplotlib)
