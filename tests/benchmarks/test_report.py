"""Tables and charts of records."""

import math

import pytest

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from benchmarks import report


def record(case="case", steps=1, contender="own", seconds=1.0, **fields):
    row = {
        "case": case,
        "title": f"T={steps}",
        "steps": steps,
        "contender": contender,
        "label": f"label of {contender}",
    }
    return {
        **row,
        "own": contender.startswith("own"),
        "status": "ok",
        "reference": "snntorch",
        "floor": "copy" if contender == "own" else "",
        "seconds": seconds,
        "note": "",
        "samples": None,
        **fields,
    }


@pytest.fixture
def records():
    """Return rows of ours: 4 and 2 times as fast as the reference for one step, 1 and 0.5 times for two."""
    rows = []
    for steps in (1, 2):
        for repetition in (-0.1, 0.0, 0.1):
            rows += [
                record(steps=steps, seconds=steps * steps + repetition, peak_bytes=2**20),
                record(steps=steps, contender="own-2", seconds=2 * steps * steps + repetition),
                record(steps=steps, contender="snntorch", seconds=4 + repetition, peak_bytes=2**22),
                record(steps=steps, contender="copy", seconds=0.5 + repetition),
            ]
        rows.append(record(steps=steps, contender="wrong", status="red", seconds=None, reason="the spikes differ"))
    return rows


def test_summary_is_of_medians_and_of_each_table(records):
    rows = report.summarise(records).set_index(["title", "contender"])
    assert rows.milliseconds["T=2", "own"] == pytest.approx(4000)
    assert (rows.lower["T=1", "own"], rows.upper["T=1", "own"]) == pytest.approx((950, 1050))
    assert rows.speed["T=1", "own"] == pytest.approx(4)
    assert rows.speed["T=2", "own-2"] == pytest.approx(0.5)
    assert rows.of_copy["T=1", "own"] == pytest.approx(0.5)
    assert rows.of_memory["T=1", "own"] == pytest.approx(0.25)
    assert math.isnan(rows.of_copy["T=1", "snntorch"])
    assert math.isnan(rows.milliseconds["T=1", "wrong"])


def test_a_red_row_has_no_time_in_any_table(make_case, records):
    summary = report.summarise(records)
    case = make_case()
    (along, _) = report.sweep_tables(case, summary)
    whole = report.table(summary[summary.title == "T=1"])
    for text in (along, whole):
        (line,) = (line for line in text.splitlines() if "label of wrong" in line)
        assert "RED" in line
        assert not any(character.isdigit() for character in line)
    assert "- label of wrong: red: the spikes differ" in report.remarks(summary)


def test_tables_along_an_axis(make_case, records):
    along, comparison = report.sweep_tables(make_case(), report.summarise(records))
    lines = along.splitlines()
    assert lines[0] == "### median ms against steps"
    assert [cell.strip() for cell in lines[2].split("|")[2:4]] == ["1", "2"]
    assert len({len(line) for line in lines[2:]}) == 1
    # The second row has the speeds 2 and 0.5, which cross 1 in the middle of logarithmic axes.
    assert "label of own-2: break-even: 1.4." in comparison
    assert "label of own: break-even: faster throughout." in comparison


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ([2.0, 0.5], math.sqrt(2)),
        ([4.0, 0.5], 2 ** (2 / 3)),
        ([2.0, 1.5], math.inf),
        ([0.9, 2.0], 0.0),
        ([math.nan, 2.0], math.inf),
    ],
)
def test_break_even(speeds, expected):
    assert report.break_even([1, 2], speeds) == pytest.approx(expected)


@pytest.mark.parametrize("axes", [(), ("steps",)])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_chart(make_case, records, axes, suffix, tmp_path):
    path = tmp_path / f"chart{suffix}"
    report.draw({"case": make_case(axes=axes)}, report.summarise(records), "where it was measured", path)
    assert path.stat().st_size > 5000
    if suffix == ".svg":
        assert "where it was measured" in path.read_text(encoding="utf-8")
