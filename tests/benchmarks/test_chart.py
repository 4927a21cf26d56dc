import pytest
import torch

from benchmarks import chart, environment

pytest.importorskip("matplotlib")


@pytest.fixture
def machine():
    return environment.record(torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("suffix", chart.FORMATS)
def test_draw(mixed_result, machine, tmp_path, suffix):
    path = tmp_path / f"chart{suffix}"
    chart.draw([mixed_result, mixed_result], machine, path)
    assert path.stat().st_size > 5000


def test_draw_says_what_did_not_run(mixed_result, machine, tmp_path):
    path = tmp_path / "chart.svg"
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        chart.draw([mixed_result], machine, path)
    drawn = path.read_text(encoding="utf-8")
    for said in ("Title of the case", "check failed: not timed", "unavailable", "failed", "label of absent", "100%"):
        assert said in drawn


def test_draw_without_any_time(run, make_contender, machine, tmp_path):
    path = tmp_path / "chart.png"
    chart.draw([run(make_contender("own", passed=False))], machine, path)
    assert path.exists()


def test_draw_leaves_pyplot_alone(mixed_result, machine, tmp_path):
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    chart.draw([mixed_result], machine, tmp_path / "chart.png")
    assert pyplot.get_fignums() == before
