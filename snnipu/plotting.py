"""Figures of spiking networks: rasters, membrane traces, training curves.

Every function returns a matplotlib ``Figure`` built without pyplot: it changes no global state and needs no
display. ``figure.savefig("raster.png")`` writes the figure; a notebook displays it.
"""

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import torch

from snnipu._extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from snnipu.diagnose import LayerDiagnosis

INK = "#1f2933"
MUTED = "#9aa5b1"
SLATE = "#616e7c"
BLUE = "#1f77b4"
RED = "#d1495b"
GREEN = "#2a9d6f"


def raster(
    images: torch.Tensor,
    labels: torch.Tensor,
    hidden_spikes: torch.Tensor,
    output_spikes: torch.Tensor,
) -> "Figure":
    """Draw each image with its raster of the hidden layer and its raster of the output layer.

    Args:
        images: ``[B, height, width]``, 0 to 1.
        labels: ``[B]``, the true classes.
        hidden_spikes: ``[T, B, hidden]``.
        output_spikes: ``[T, B, classes]``; the class with the most spikes is the prediction.

    Returns:
        The figure, with a row for each image.

    Raises:
        MissingExtra: matplotlib is not installed.
        ValueError: the tensors have different numbers of images, labels or steps.
    """
    check_layout("hidden_spikes", hidden_spikes, 3)
    check_layout("output_spikes", output_spikes, 3)
    rows = len(images)
    for name, entries in (
        ("labels", len(labels)),
        ("hidden_spikes", hidden_spikes.shape[1]),
        ("output_spikes", output_spikes.shape[1]),
    ):
        if entries != rows:
            raise ValueError(f"{name}: expected one entry for each of the {rows} images, got {entries}")
    if len(hidden_spikes) != len(output_spikes):
        raise ValueError(
            f"output_spikes: expected {len(hidden_spikes)} steps, as in hidden_spikes, got {len(output_spikes)}"
        )
    num_steps, _, hidden = hidden_spikes.shape
    classes = output_spikes.shape[2]

    figure = new_figure(11, 0.6 + 2.9 * rows)
    axes = figure.subplots(rows, 3, squeeze=False, gridspec_kw={"width_ratios": [1, 2.2, 1.7]})
    for row, (digit_axis, hidden_axis, output_axis) in enumerate(axes):
        counts = output_spikes[:, row].sum(0)
        predicted, label = int(counts.argmax()), int(labels[row])
        digit_axis.imshow(images[row].cpu().numpy(), cmap="gray_r", vmin=0, vmax=1)
        digit_axis.set(xticks=[], yticks=[])
        digit_axis.set_title(f"test image of a {label}")

        draw_spikes(hidden_axis, hidden_spikes[:, row], BLUE, max(2.0, min(4.0, 500 / hidden)))
        rate = float(hidden_spikes[:, row].mean())
        hidden_axis.set_title(f"hidden spikes: {100 * rate:.1f} % of neurons per step")
        hidden_axis.set(ylabel="hidden neuron", ylim=(-0.5, hidden - 0.5))

        draw_spikes(output_axis, output_spikes[:, row], INK, 5.0, chosen=predicted)
        verdict = "correct" if predicted == label else "wrong"
        output_axis.set_title(
            f"output spikes: prediction {predicted}, {verdict}", color=GREEN if predicted == label else RED
        )
        output_axis.set(ylabel="output neuron (class)", ylim=(-0.5, classes - 0.5), yticks=range(classes))
        counts_axis = output_axis.secondary_yaxis("right")
        counts_axis.set_yticks(range(classes), [f"{int(count)}" for count in counts])
        counts_axis.set_ylabel("spike count")
        for axis in (hidden_axis, output_axis):
            axis.set(xlabel="time step", xlim=(-0.5, num_steps - 0.5))
    return figure


def membranes(
    mem: torch.Tensor,
    spikes: torch.Tensor,
    threshold: float = 1.0,
    names: Optional[Sequence[str]] = None,
    title: str = "membrane potential",
) -> "Figure":
    """Draw the membrane of each neuron over time, with the threshold and the spikes.

    Args:
        mem: membranes, ``[T, neurons]``.
        spikes: ``[T, neurons]``.
        threshold: the level above which a neuron spikes; a dashed line.
        names: a label for each neuron; by default their numbers.
        title: the title of the figure.

    Returns:
        The figure, with a strip for each neuron.

    Raises:
        MissingExtra: matplotlib is not installed.
        ValueError: ``mem`` and ``spikes`` have different shapes, or ``names`` is of another length.
    """
    check_layout("mem", mem, 2)
    if spikes.shape != mem.shape:
        raise ValueError(f"spikes: expected the shape of mem, {tuple(mem.shape)}, got {tuple(spikes.shape)}")
    num_steps, neurons = mem.shape
    names = _labels(names, [f"neuron {index}" for index in range(neurons)])

    steps = list(range(num_steps))
    traces, fired = mem.detach().cpu(), spikes.detach().cpu() > 0
    figure = new_figure(9, 1.4 + 1.1 * neurons)
    figure.suptitle(title)
    axes = figure.subplots(neurons, 1, sharex=True, squeeze=False)[:, 0]
    for index, axis in enumerate(axes):
        trace = traces[:, index].tolist()
        axis.plot(steps, trace, color=BLUE, linewidth=1.3, marker=".", markersize=4, label="membrane")
        axis.axhline(threshold, color=MUTED, linestyle="--", linewidth=1.1, label=f"threshold, {threshold:g}")
        at = torch.nonzero(fired[:, index]).flatten().tolist()
        axis.plot(at, [trace[t] for t in at], "v", color=RED, markersize=6, label="spike (reset in the next step)")
        low, high = min([0.0, *trace]), max([threshold, *trace])
        margin = 0.15 * (high - low)
        axis.set(ylim=(low - margin, high + margin), xlim=(-0.5, num_steps - 0.5))
        axis.set_ylabel(names[index], rotation=0, ha="right", va="center", labelpad=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("time step")
    figure.supylabel("membrane potential")
    handles, texts = axes[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=3, frameon=False)
    return figure


def training_curve(history: Sequence[Dict[str, float]], title: str = "training") -> "Figure":
    """Draw loss and accuracy over the epochs.

    Args:
        history: for each epoch a dict with ``train_loss``, ``train_accuracy`` and ``test_accuracy``. Accuracies are
            fractions, 0 to 1.
        title: the title of the figure.

    Returns:
        The figure.

    Raises:
        MissingExtra: matplotlib is not installed.
        ValueError: ``history`` is empty.
    """
    if not history:
        raise ValueError("history: expected at least one epoch, got none")
    epochs = list(range(1, len(history) + 1))
    figure = new_figure(9, 3.6)
    figure.suptitle(title)
    loss_axis, accuracy_axis = figure.subplots(1, 2)
    loss_axis.plot(epochs, [record["train_loss"] for record in history], "o-", color=BLUE, markersize=4)
    loss_axis.set(ylabel="training loss (cross entropy)", ylim=(0, None))
    for name, color, label in (("train_accuracy", MUTED, "training set"), ("test_accuracy", BLUE, "test set")):
        percent = [100 * record[name] for record in history]
        accuracy_axis.plot(epochs, percent, "o-", color=color, markersize=4, label=label)
    last = 100 * history[-1]["test_accuracy"]
    accuracy_axis.annotate(
        f"{last:.1f} %", (epochs[-1], last), xytext=(0, -14), textcoords="offset points", ha="right", color=BLUE
    )
    accuracy_axis.set(ylabel="accuracy (%)")
    accuracy_axis.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.08))
    _by_epoch(loss_axis, accuracy_axis)
    return figure


def layer_rasters(
    layers: Sequence[torch.Tensor], labels: torch.Tensor, names: Optional[Sequence[str]] = None
) -> "Figure":
    """Draw the rasters of all layers, with a row for each layer and a column for each sample.

    Args:
        layers: spikes ``[T, B, neurons]`` of each layer, from the input to the output. The neurons of the output are
            the classes; the class with the most spikes is the prediction.
        labels: ``[B]``, the true classes.
        names: a label for each layer; by default ``input``, ``layer 1``, ..., ``output``.

    Returns:
        The figure.

    Raises:
        MissingExtra: matplotlib is not installed.
        ValueError: there are fewer than two layers, or numbers of steps, samples, labels or names differ.
    """
    if len(layers) < 2:
        raise ValueError(f"layers: expected an input and one or more layers, got {len(layers)}")
    for layer in layers:
        check_layout("layers", layer, 3)
        if layer.shape[:2] != layers[0].shape[:2]:
            raise ValueError(
                f"layers: expected {tuple(layers[0].shape[:2])} steps and samples, as of the first, got "
                f"{tuple(layer.shape[:2])}"
            )
    num_steps, samples = layers[0].shape[:2]
    if len(labels) != samples:
        raise ValueError(f"labels: expected one for each of the {samples} samples, got {len(labels)}")
    names = _labels(names, ["input", *(f"layer {index}" for index in range(1, len(layers) - 1)), "output"])

    heights = [1.5] * (len(layers) - 1) + [1.9]
    figure = new_figure(max(5.0, 4.2 * samples), 0.9 + sum(heights))
    axes = figure.subplots(len(layers), samples, squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights})
    counts = layers[-1].sum(0)
    for row, (name, layer) in enumerate(zip(names, layers)):
        neurons = layer.shape[2]
        output = row == len(layers) - 1
        # Marks are as tall as a neuron's share of the panel, but stay visible and do not become blocks.
        size = min(max(72 * heights[row] / neurons, 2.4), 6.0)
        for column in range(samples):
            axis, spikes = axes[row, column], layer[:, column]
            predicted, label = int(counts[column].argmax()), int(labels[column])
            color = SLATE if row == 0 else INK if output else BLUE
            draw_spikes(axis, spikes, color, size, chosen=predicted if output else None)
            axis.set(ylim=(-0.5, neurons - 0.5), xlim=(-0.5, num_steps - 0.5))
            share = float((spikes > 0).float().mean())
            axis.set_title(
                f"{100 * share:.2g} % of {neurons:,} neurons a step", fontsize=8, color=INK, loc="right", pad=3
            )
            if row == 0:
                right = predicted == label
                axis.annotate(
                    f"class {label}: prediction {predicted}, {'correct' if right else 'wrong'}",
                    (0.5, 1),
                    xycoords="axes fraction",
                    xytext=(0, 18),
                    textcoords="offset points",
                    ha="center",
                    color=GREEN if right else RED,
                )
            if output:
                axis.set_xlabel("time step")
                if neurons <= 24:
                    axis.set_yticks(range(neurons))
                    axis.tick_params(axis="y", labelsize=7)
        axes[row, 0].set_ylabel(name)
    figure.align_ylabels(axes[:, 0])
    return figure


def activity_curve(
    activity: Sequence[Sequence[float]],
    names: Optional[Sequence[str]] = None,
    *,
    caps: Optional[Sequence[Optional[float]]] = None,
    dropped: Optional[Sequence[Sequence[int]]] = None,
    cells: Optional[Sequence[int]] = None,
    title: str = "activity",
) -> "Figure":
    """Draw the activity of each layer over the epochs and, in a second panel, the share of its spikes that was dropped.

    Args:
        activity: for each epoch, the mean spikes per neuron and step of each layer, 0 to 1.
        names: a label for each layer; by default ``layer 1``, ``layer 2``, ...
        caps: slots per neuron of each layer, 0 to 1, as dashed lines; None for a layer without a limit.
        dropped: for each epoch, the number of spikes dropped in each layer. None: no second panel.
        cells: neurons times steps times samples of each layer, over which ``activity`` is a mean. Needed with
            ``dropped``.
        title: the title of the figure.

    Returns:
        The figure.

    Raises:
        MissingExtra: matplotlib is not installed.
        ValueError: there is no epoch, or the arguments have different numbers of layers or epochs.
    """
    if not activity:
        raise ValueError("activity: expected at least one epoch, got none")
    layers = len(activity[0])
    names = _labels(names, [f"layer {index + 1}" for index in range(layers)])
    if dropped is not None and cells is None:
        raise ValueError("cells: needed with dropped")
    for name, entries in (("activity", activity), ("dropped", dropped or [])):
        if any(len(entry) != layers for entry in entries):
            raise ValueError(f"{name}: expected {layers} layers in every epoch, got {[len(e) for e in entries]}")
    for name, values in (("caps", caps), ("cells", cells)):
        if values is not None and len(values) != layers:
            raise ValueError(f"{name}: expected {layers} of them, got {len(values)}")
    if dropped is not None and len(dropped) != len(activity):
        raise ValueError(f"dropped: expected {len(activity)} epochs, as in activity, got {len(dropped)}")

    epochs = list(range(1, len(activity) + 1))
    colors = [RED] if layers == 1 else [*_shades(layers - 1), RED]
    figure = new_figure(10 if dropped is not None else 6, 3.8)
    figure.suptitle(title)
    panels = figure.subplots(1, 2 if dropped is not None else 1, squeeze=False)[0]
    for index, (name, color) in enumerate(zip(names, colors)):
        style: Dict[str, Any] = {"color": color, "markersize": 4}
        share = [100 * entry[index] for entry in activity]
        panels[0].plot(epochs, share, "o-", label=name, **style)
        if dropped is not None:
            assert cells is not None
            spikes = [entry[index] * cells[index] for entry in activity]
            percent = [100 * n / max(n + kept, 1) for n, kept in zip((entry[index] for entry in dropped), spikes)]
            panels[1].plot(epochs, percent, "o-", label=name, **style)
    panels[0].set(ylabel="activity (% of the neurons a step)", ylim=(0, None))
    top = panels[0].get_ylim()[1]
    # Caps far above the activity would flatten the curves: they are not drawn.
    drawn_caps = sorted({100 * cap for cap in caps or [] if cap is not None and 100 * cap <= 1.6 * top})
    for cap in drawn_caps:
        panels[0].axhline(cap, color=MUTED, linestyle="--", linewidth=1)
        panels[0].annotate(
            f"slots, {cap:.3g} %",
            (1, cap),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            color=INK,
            fontsize=8,
        )
    panels[0].set_ylim(0, 1.08 * max([top / 1.05, *drawn_caps]))
    if dropped is not None:
        panels[1].set(ylabel="spikes dropped (% of the layer's)", ylim=(0, max(panels[1].get_ylim()[1], 1.0)))
    _by_epoch(*panels)
    handles, texts = panels[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=min(layers, 6), frameon=False)
    return figure


def diagnosis(report: Sequence["LayerDiagnosis"]) -> "Figure":
    """Draw the report of :func:`snnipu.diagnose`: activity, dead and saturated neurons, and membranes of each layer.

    Args:
        report: the report, with at least one layer.

    Returns:
        The figure, with a row for each layer. A dashed line is the threshold.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    names = [f"{row.name} ({row.kind})" for row in report]
    figure = new_figure(10, 1.4 + 0.45 * len(report))
    activity, neurons, membranes = figure.subplots(1, 3, sharey=True)
    activity.barh(names, [100 * row.activity for row in report], color=BLUE)
    activity.set(xlabel="activity (% of the neurons a step)")
    dead = [100 * row.dead / row.neurons for row in report]
    neurons.barh(names, dead, color=MUTED, label="dead")
    neurons.barh(names, [100 * row.saturated / row.neurons for row in report], left=dead, color=RED, label="saturated")
    neurons.set(xlabel="% of the neurons", xlim=(0, 100))
    neurons.legend(frameon=False)
    for place, row in enumerate(report):
        if row.membranes is not None:
            membranes.plot(row.membranes, [place, place], color=BLUE, linewidth=6, solid_capstyle="butt")
        if row.threshold is not None:
            membranes.plot([row.threshold] * 2, [place - 0.4, place + 0.4], color=INK, linestyle="--")
    membranes.set(xlabel="membrane, from smallest to largest")
    activity.invert_yaxis()
    for axis in (activity, neurons, membranes):
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _labels(names: Optional[Sequence[str]], defaults: Sequence[str]) -> Sequence[str]:
    """Return ``names``, or ``defaults`` if it is None; raise ValueError if there are not as many names as defaults."""
    if names is not None and len(names) != len(defaults):
        raise ValueError(f"names: expected {len(defaults)} of them, got {len(names)}")
    return defaults if names is None else names


def _by_epoch(*axes: Any) -> None:
    for axis in axes:
        axis.set(xlabel="epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)


def _shades(count: int) -> List[Tuple[float, ...]]:
    """Return blues from dark to light."""
    dark, light = (0.03, 0.19, 0.42), (0.55, 0.77, 0.93)
    part = [index / max(count - 1, 1) for index in range(count)]
    return [tuple(low + p * (high - low) for low, high in zip(dark, light)) for p in part]


def draw_spikes(axis: Any, spikes: torch.Tensor, color: str, size: float, chosen: Optional[int] = None) -> None:
    """Draw a mark for every spike of ``spikes`` ``[T, neurons]``; in red for the neuron ``chosen``."""
    step, neuron = (index.cpu() for index in torch.nonzero(spikes, as_tuple=True))
    colors = [RED if int(n) == chosen else color for n in neuron]
    axis.scatter(step.numpy(), neuron.numpy(), s=size**2, c=colors, marker="|", linewidths=min(1.5, 0.45 * size))
    axis.spines[["top", "right"]].set_visible(False)


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of ``width`` x ``height`` inches with automatic layout."""
    figure: Figure = require("matplotlib.figure", extra="data", purpose="drawing").Figure(
        figsize=(width, height), dpi=120, layout="constrained"
    )
    return figure


def check_layout(name: str, tensor: torch.Tensor, dims: int) -> None:
    layout = "[T, B, neurons]" if dims == 3 else "[T, neurons]"
    if tensor.dim() != dims or 0 in tensor.shape:
        raise ValueError(f"{name}: expected a non-empty tensor {layout}, got the shape {tuple(tensor.shape)}")
