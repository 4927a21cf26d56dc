import sys

import pytest
import torch
from support.tables import assert_refused, each_row

from snnipu import plotting
from snnipu._extras import MissingExtra

pytest.importorskip("matplotlib")

HISTORY = [
    {"train_loss": 1.0 / (epoch + 1), "train_accuracy": 0.5 + 0.1 * epoch, "test_accuracy": 0.4 + 0.1 * epoch}
    for epoch in range(4)
]


def assert_drawn(figure, tmp_path):
    path = tmp_path / "figure.png"
    figure.savefig(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def output_spikes():
    """Return spikes of 10 output neurons whose predictions are the classes 3 and 9."""
    output = torch.zeros(25, 2, 10)
    output[:7, 0, 3] = 1
    output[:2, 0, 5] = 1
    output[::2, 1, 9] = 1
    return output


def test_raster_marks_every_spike_and_names_the_prediction(tmp_path):
    hidden = (torch.rand(25, 2, 100) < 0.1).float()
    figure = plotting.raster(torch.rand(2, 8, 8), torch.tensor([3, 1]), hidden, output_spikes())
    digit, hidden_axis, output_axis = figure.axes[:3]
    assert digit.get_title() == "test image of a 3"
    assert (hidden_axis.get_xlabel(), hidden_axis.get_ylabel()) == ("time step", "hidden neuron")
    assert len(hidden_axis.collections[0].get_offsets()) == int(hidden[:, 0].sum())
    assert "prediction 3, correct" in output_axis.get_title()
    assert len(output_axis.collections[0].get_offsets()) == 9
    assert "prediction 9, wrong" in figure.axes[5].get_title()
    assert_drawn(figure, tmp_path)


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
    assert_drawn(figure, tmp_path)


def test_training_curve_is_in_percent(tmp_path):
    figure = plotting.training_curve(HISTORY)
    loss, accuracy = figure.axes
    assert loss.get_xlabel() == accuracy.get_xlabel() == "epoch"
    assert list(loss.lines[0].get_xdata()) == [1, 2, 3, 4]
    assert list(accuracy.lines[1].get_ydata()) == pytest.approx([40, 50, 60, 70])
    assert_drawn(figure, tmp_path)


def test_layer_rasters_mark_every_spike_of_every_layer(tmp_path):
    layers = [(torch.rand(25, 2, neurons) < 0.1).float() for neurons in (300, 40)]
    layers.append(output_spikes())
    figure = plotting.layer_rasters(layers, torch.tensor([3, 1]))
    axes = figure.axes
    assert len(axes) == 6
    for row, layer in enumerate(layers):
        for column in range(2):
            axis = axes[2 * row + column]
            assert len(axis.collections[0].get_offsets()) == int(layer[:, column].sum())
            share = f"{100 * float(layer[:, column].mean()):.2g} % of {layer.shape[2]} neurons a step"
            assert axis.get_title(loc="right") == share
    assert [axes[row].get_ylabel() for row in (0, 2, 4)] == ["input", "layer 1", "output"]
    assert axes[4].get_xlabel() == "time step"
    assert [axes[column].texts[0].get_text() for column in range(2)] == [
        "class 3: prediction 3, correct",
        "class 1: prediction 9, wrong",
    ]
    assert_drawn(figure, tmp_path)


def test_activity_curve_is_in_percent(tmp_path):
    figure = plotting.activity_curve(
        [[0.04, 0.02], [0.03, 0.01]],
        ["hidden", "output"],
        caps=[0.05, None],
        dropped=[[40, 0], [0, 0]],
        cells=[1000, 500],
        title="slots",
    )
    activity, dropped = figure.axes
    assert list(activity.lines[0].get_ydata()) == pytest.approx([4, 3])
    assert list(activity.lines[1].get_ydata()) == pytest.approx([2, 1])
    assert list(activity.lines[2].get_ydata()) == pytest.approx([5, 5])
    assert activity.get_ylim()[1] > 5
    # 40 of 80 spikes.
    assert list(dropped.lines[0].get_ydata()) == pytest.approx([50, 0])
    assert list(dropped.lines[1].get_ydata()) == pytest.approx([0, 0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["hidden", "output"]
    assert_drawn(figure, tmp_path)
    assert len(plotting.activity_curve([[0.1]]).axes) == 1


@pytest.mark.slow
def test_silent_network_and_single_epoch(tmp_path):
    silent = torch.zeros(5, 1, 4)
    for figure in (
        plotting.raster(torch.zeros(1, 8, 8), torch.tensor([0]), silent, silent),
        plotting.membranes(torch.zeros(5, 1), torch.zeros(5, 1)),
        plotting.training_curve(HISTORY[:1]),
        plotting.layer_rasters([silent, silent], torch.tensor([0])),
        plotting.activity_curve([[0.0, 0.0]], dropped=[[0, 0]], cells=[0, 0]),
    ):
        assert_drawn(figure, tmp_path)


def test_pyplot_is_left_alone():
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    plotting.training_curve(HISTORY)
    assert pyplot.get_fignums() == before


@each_row(r"""
raster(x[0], torch.zeros(2), x[0], x) | ValueError: hidden_spikes: expected .*T, B, neurons
raster(x[:2], torch.zeros(3), x, x) | ValueError: labels: expected one entry for each of the 2
raster(x[:2], torch.zeros(2), x, x[1:]) | ValueError: output_spikes: expected 5 steps
membranes(x, x) | ValueError: mem: expected .*T, neurons
membranes(x[0], x[1, :1]) | ValueError: spikes: expected the shape of mem
membranes(x[0], x[1], names=['one']) | ValueError: names: expected 4
layer_rasters([x], torch.zeros(2)) | ValueError: layers: expected an input and one or more layers
layer_rasters([x, x[1:]], torch.zeros(2)) | ValueError: layers: expected \(5, 2\) steps and samples
layer_rasters([x, x], torch.zeros(3)) | ValueError: labels: expected one for each of the 2 samples
layer_rasters([x, x], torch.zeros(2), ['in']) | ValueError: names: expected 2 of them, got 1
activity_curve([]) | ValueError: activity: expected at least one epoch
activity_curve([[0.1], [0.1, 0.2]]) | ValueError: activity: expected 1 layers in every epoch
activity_curve([[0.1]], ['a', 'b']) | ValueError: names: expected 1 of them, got 2
activity_curve([[0.1]], dropped=[[1]]) | ValueError: cells: needed with dropped
activity_curve([[0.1]], dropped=[], cells=[9]) | ValueError: dropped: expected 1 epochs
training_curve([]) | ValueError: history: expected at least one epoch
""")
def test_bad_input(row):
    assert_refused(row, vars(plotting), torch=torch, x=torch.zeros(5, 2, 4))


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r'matplotlib.*pip install "snnipu\[data\]"'):
        plotting.training_curve(HISTORY)
