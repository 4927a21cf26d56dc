import sys

import pytest
import torch

from snnipu import plotting
from snnipu._extras import MissingExtra

pytest.importorskip("matplotlib")

HISTORY = [
    {"train_loss": 1.0 / (epoch + 1), "train_accuracy": 0.5 + 0.1 * epoch, "test_accuracy": 0.4 + 0.1 * epoch}
    for epoch in range(4)
]


def png(figure, tmp_path):
    path = tmp_path / "figure.png"
    figure.savefig(path)
    return path.read_bytes()


def test_raster_marks_every_spike_and_names_the_prediction(tmp_path):
    hidden = (torch.rand(25, 2, 100) < 0.1).float()
    output = torch.zeros(25, 2, 10)
    output[:7, 0, 3] = 1
    output[:2, 0, 5] = 1
    output[::2, 1, 9] = 1
    figure = plotting.raster(torch.rand(2, 8, 8), torch.tensor([3, 1]), hidden, output)
    digit, hidden_axis, output_axis = figure.axes[:3]
    assert digit.get_title() == "test image of a 3"
    assert (hidden_axis.get_xlabel(), hidden_axis.get_ylabel()) == ("time step", "hidden neuron")
    assert len(hidden_axis.collections[0].get_offsets()) == int(hidden[:, 0].sum())
    assert "prediction 3, correct" in output_axis.get_title()
    assert len(output_axis.collections[0].get_offsets()) == 9
    assert "prediction 9, wrong" in figure.axes[5].get_title()
    assert png(figure, tmp_path).startswith(b"\x89PNG")


def test_membranes_show_threshold_and_spikes(tmp_path):
    mem = torch.tensor([[0.5, 0.2], [1.7, 0.3], [0.6, 0.4], [1.6, 0.5]], requires_grad=True)
    spikes = (mem > 1.5).float()
    figure = plotting.membranes(mem, spikes, threshold=1.5, names=["first", "second"])
    assert [axis.get_ylabel() for axis in figure.axes] == ["first", "second"]
    trace, threshold, fired = figure.axes[0].lines
    assert trace.get_ydata() == pytest.approx([0.5, 1.7, 0.6, 1.6])
    assert list(threshold.get_ydata()) == [1.5, 1.5]
    assert list(fired.get_xdata()) == [1, 3]
    low, high = figure.axes[1].get_ylim()
    assert low < 0 < 1.5 < high
    assert png(figure, tmp_path).startswith(b"\x89PNG")


def test_training_curve_is_in_percent(tmp_path):
    figure = plotting.training_curve(HISTORY)
    loss, accuracy = figure.axes
    assert loss.get_xlabel() == accuracy.get_xlabel() == "epoch"
    assert list(loss.lines[0].get_xdata()) == [1, 2, 3, 4]
    assert list(accuracy.lines[1].get_ydata()) == pytest.approx([40, 50, 60, 70])
    assert png(figure, tmp_path).startswith(b"\x89PNG")


def test_silent_network_and_single_epoch(tmp_path):
    silent = torch.zeros(5, 1, 4)
    png(plotting.raster(torch.zeros(1, 8, 8), torch.tensor([0]), silent, silent), tmp_path)
    png(plotting.membranes(torch.zeros(5, 1), torch.zeros(5, 1)), tmp_path)
    png(plotting.training_curve(HISTORY[:1]), tmp_path)


def test_pyplot_is_left_alone():
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    plotting.training_curve(HISTORY)
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda x: plotting.raster(x[0], torch.zeros(2), x[0], x), "hidden_spikes: expected .*T, B, neurons"),
        (lambda x: plotting.raster(x[:2], torch.zeros(3), x, x), "labels: expected one entry for each of the 2"),
        (lambda x: plotting.raster(x[:3], torch.zeros(3), x, x), "hidden_spikes: expected one entry for each of the 3"),
        (lambda x: plotting.raster(x[:2], torch.zeros(2), x, x[1:]), "output_spikes: expected 5 steps"),
        (lambda x: plotting.membranes(x, x), "mem: expected .*T, neurons"),
        (lambda x: plotting.membranes(x[0], x[1, :1]), "spikes: expected the shape of mem"),
        (lambda x: plotting.membranes(x[0], x[1], names=["one"]), "names: expected 4"),
        (lambda x: plotting.membranes(torch.zeros(0, 4), torch.zeros(0, 4)), "mem: expected a non-empty"),
        (lambda x: plotting.training_curve([]), "history: expected at least one epoch"),
    ],
)
def test_bad_input(draw, message):
    with pytest.raises(ValueError, match=message):
        draw(torch.zeros(5, 2, 4))


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r'matplotlib.*pip install "snnipu\[data\]"'):
        plotting.training_curve(HISTORY)
