"""Pictures of spiking networks: rasters, membrane traces, training curves.

Every function returns a matplotlib ``Figure`` made without pyplot: nothing global is touched and no display is needed.
``figure.savefig("raster.png")`` writes it; a notebook shows it.
"""

from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

import torch

from snnipu._extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#1f2933"
MUTED = "#9aa5b1"
BLUE = "#1f77b4"
RED = "#d1495b"
GREEN = "#2a9d6f"


def raster(
    images: torch.Tensor,
    labels: torch.Tensor,
    hidden_spikes: torch.Tensor,
    output_spikes: torch.Tensor,
) -> "Figure":
    """Each image beside the spikes that it causes in the hidden and in the output layer.

    Args:
        images: ``[B, height, width]``, 0 to 1.
        labels: ``[B]``, the true classes.
        hidden_spikes: ``[T, B, hidden]``.
        output_spikes: ``[T, B, classes]``; the class with the most spikes is the prediction.

    Raises:
        MissingExtra: matplotlib is not installed.
        ValueError: the numbers of images, labels and steps do not fit one another.
    """
    check_layout("hidden_spikes", hidden_spikes, 3)
    check_layout("output_spikes", output_spikes, 3)
    rows = len(images)
    for name, found in (
        ("labels", len(labels)),
        ("hidden_spikes", hidden_spikes.shape[1]),
        ("output_spikes", output_spikes.shape[1]),
    ):
        if found != rows:
            raise ValueError(f"{name}: expected one entry for each of the {rows} images, got {found}")
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
    """Membrane traces, one strip a neuron, with the threshold, the spikes and the reset after each.

    Args:
        mem: ``[T, neurons]``.
        spikes: ``[T, neurons]``.
        threshold: the level above which a neuron spikes; drawn dashed.
        names: one label a neuron; by default their numbers.
        title: the title of the figure.

    Raises:
        MissingExtra: matplotlib is not installed.
        ValueError: the shapes do not fit one another.
    """
    check_layout("mem", mem, 2)
    if spikes.shape != mem.shape:
        raise ValueError(f"spikes: expected the shape of mem, {tuple(mem.shape)}, got {tuple(spikes.shape)}")
    num_steps, neurons = mem.shape
    if names is None:
        names = [f"neuron {index}" for index in range(neurons)]
    elif len(names) != neurons:
        raise ValueError(f"names: expected {neurons} of them, got {len(names)}")

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
    """Loss and accuracy over the epochs.

    Args:
        history: a dict an epoch with ``train_loss``, ``train_accuracy`` and ``test_accuracy`` (fractions, 0 to 1).
        title: the title of the figure.

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
    for axis in (loss_axis, accuracy_axis):
        axis.set(xlabel="epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def draw_spikes(axis: Any, spikes: torch.Tensor, color: str, size: float, chosen: Optional[int] = None) -> None:
    """A mark for every spike of ``spikes`` ``[T, neurons]``; those of the neuron ``chosen`` in red."""
    step, neuron = (index.cpu() for index in torch.nonzero(spikes, as_tuple=True))
    colors = [RED if int(n) == chosen else color for n in neuron]
    axis.scatter(step.numpy(), neuron.numpy(), s=size**2, c=colors, marker="|", linewidths=min(1.5, 0.45 * size))
    axis.spines[["top", "right"]].set_visible(False)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of ``width`` x ``height`` inches that lays itself out."""
    figure: Figure = require("matplotlib.figure", extra="data", purpose="drawing").Figure(
        figsize=(width, height), dpi=120, layout="constrained"
    )
    return figure


def check_layout(name: str, tensor: torch.Tensor, dims: int) -> None:
    layout = "[T, B, neurons]" if dims == 3 else "[T, neurons]"
    if tensor.dim() != dims or 0 in tensor.shape:
        raise ValueError(f"{name}: expected a non-empty tensor {layout}, got the shape {tuple(tensor.shape)}")
