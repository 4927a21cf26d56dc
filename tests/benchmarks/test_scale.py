import json
import sys

import pytest
from torch import distributed

from benchmarks import scale
from snnipu.cli import bench

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)


def test_one_and_two_processes(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert bench.main(["scale", "--quick", "--json", "scale.json", "--chart", "scale.png", "--threads", "2"]) == 0
    document = json.loads((tmp_path / "scale.json").read_text())
    points = [scale.Point(**point) for point in document["points"]]
    assert [(p.scaling, p.processes, p.threads, p.batch) for p in points] == [
        ("strong", 1, 2, 16),
        ("weak", 1, 2, 16),
        ("strong", 2, 1, 16),
        ("weak", 2, 1, 32),
    ]
    for point in points:
        assert point.samples_per_second == pytest.approx(point.batch / point.step_seconds)
        assert 0 <= point.communication < 1
        assert point.gradient_bytes == 4 * (785 * 64 + 65 * 10)
    assert [point.efficiency for point in points[:2]] == [1, 1]
    assert [point.communication for point in points[:2]] == [0, 0]
    first, last = points[1], points[3]
    assert last.efficiency == pytest.approx(last.samples_per_second / first.samples_per_second / 2)
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:2] for row in rows[1:5]] == [["strong", "1"], ["weak", "1"], ["strong", "2"], ["weak", "2"]]
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_a_process_that_fails_is_told(monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert bench.main(["scale", "--quick", "--processes", "1"]) == 1
    assert "error: process 0 of 1 failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scale", "--processes", "1,0"], "must be at least 1"),
        (["scale", "--dtype", "float64"], "argument --dtype: not for scale"),
        (["lif", "--processes", "2"], "argument --processes: only for scale"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert message in capsys.readouterr().err


def test_the_table_has_a_markdown_form():
    point = scale.Point("weak", 2, 1, 32, 0.01, 3200.0, 0.8, 0.1, 1000)
    assert scale.table([point], markdown=True).splitlines()[2] == "| weak | 2 | 1 | 32 | 10.00 | 3,200 | 80% | 10% |"
