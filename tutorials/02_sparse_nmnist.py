# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Event-driven layers: N-MNIST as the ids of the neurons that spiked
#
# In a spiking network most neurons are silent most of the time, but a matrix product multiplies every weight, also by
# zeros. This tutorial is for users of snnTorch. It is about layers that read only the weights of neurons that spiked.
# You
#
# 1. load recordings of an event camera as `SparseSpikes`,
# 2. train a `SparseNetwork` on them,
# 3. look at its spikes,
# 4. see the effect of two settings: slots (`max_spikes`) and the second threshold (`grad_threshold`),
# 5. measure, on your machine, how the speed depends on the activity,
# 6. convert the network to `nn.Linear` and `Leaky`, and back.
#
# You need `pip install ".[tutorials]"` in a clone of the repository. These environment variables change the tutorial:
#
# | variable | meaning | default |
# | --- | --- | --- |
# | `SNNIPU_DATA` | folder that contains `nmnist/Train` and `nmnist/Test` | `./data/nmnist` contains N-MNIST |
# | `SNNIPU_TUTORIAL_SAMPLES` | maximum number of recordings for training and testing | all |
# | `SNNIPU_TUTORIAL_EPOCHS` | passes over the training recordings | 5 |
# | `SNNIPU_TUTORIAL_HIDDEN` | neurons in each of the two hidden layers | 1000 |

# %%
# %matplotlib inline
import os
import statistics
import time
from pathlib import Path

import snntorch
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.utils.data import Subset

import snnipu as snn
from snnipu import datasets, plotting, training

samples = int(os.environ.get("SNNIPU_TUTORIAL_SAMPLES", "0")) or None
epochs = int(os.environ.get("SNNIPU_TUTORIAL_EPOCHS", "5"))
num_hidden = int(os.environ.get("SNNIPU_TUTORIAL_HIDDEN", "1000"))

torch.manual_seed(0)
batch_size = 48

# %% [markdown]
# ## The recordings
#
# For N-MNIST, an event camera that moves a little recorded MNIST's digits. Each pixel of the camera reports
# independently: one event when it gets brighter, one when it gets darker, and none while nothing changes. A recording
# is a list of events (time, x, y, polarity).
#
# If you have the recordings, set `SNNIPU_DATA` to the folder above `nmnist`. Otherwise
# `datasets.nmnist("data/nmnist", download=True)` downloads them by tonic (`pip install ".[events]"`). Without them this
# notebook uses *Randman*, synthetic spike trains that need no files. The camera picture is then missing.

# %%
folder = Path(os.environ.get("SNNIPU_DATA", "data")) / "nmnist"
try:
    data = datasets.nmnist(folder, num_steps=100, step_us=1000)
except FileNotFoundError as error:
    print(f"{error}\nGoing on with Randman.")
    data = datasets.randman(num_neurons=256, num_classes=10, samples_per_class=120, num_steps=100)

order = torch.Generator().manual_seed(0)
train_set = Subset(data.train, torch.randperm(len(data.train), generator=order)[:samples].tolist())
test_set = Subset(data.test, torch.randperm(len(data.test), generator=order)[:samples].tolist())
print(f"{data.name}: {len(train_set)} training and {len(test_set)} test recordings of {data.num_neurons} neurons")

# %% [markdown]
# ## Events, not frames
#
# A recording becomes `SparseSpikes`: the ids of the neurons that spiked, for each of 100 time steps of one millisecond.
# A dense tensor `[T, B, N]` would be zero nearly everywhere. `SparseSpikes` has three small tensors instead:
#
# | tensor | shape | contents |
# | --- | --- | --- |
# | `ids` | `[T, B, S]` | numbers of neurons, in `S` *slots* for each step of each sample |
# | `values` | `[T, B, S]` | 1 for a spike |
# | `counts` | `[T, B, 2]` | the number of used slots; the other slots are never read |
#
# `event_loader` is PyTorch's `DataLoader` with a function that joins `SparseSpikes` to a batch. A batch prints its
# shape, the share of its neurons that spike in a step, and the number of events that were dropped because they are
# after the last step.

# %%
loader = datasets.event_loader(train_set, batch_size, shuffle=True, generator=torch.Generator().manual_seed(0))
test_loader = datasets.event_loader(test_set, batch_size=100)

spikes, labels = next(iter(loader))
print(spikes)
held = sum(part.numel() * part.element_size() for part in (spikes.ids, spikes.values, spikes.counts))
print(f"as ids: {held / 2**20:.1f} MiB; as dense float32 frames: {4 * spikes.shape.numel() / 2**20:.1f} MiB")

# %% [markdown]
# The picture shows one recording: the camera's events in windows of 20 steps, and below the spikes of all inputs over
# time. An input is a pixel and a polarity. (Only the picture needs `to_dense()`, the network does not.)

# %%
DARKER, BRIGHTER = plotting.RED, plotting.BLUE


def show_recording(spikes, label):
    """Camera pictures, where there is a camera, above the raster of the inputs; ``spikes`` of one recording."""
    dense = spikes.to_dense()[:, 0]
    num_steps, num_inputs = dense.shape
    if data.sensor_shape is None:
        figure = plotting.new_figure(9, 3.4)
        axis = figure.subplots()
        plotting.draw_spikes(axis, dense, plotting.SLATE, 3.0)
    else:
        windows = 5
        figure = plotting.new_figure(9, 5.4)
        above, below = figure.subfigures(2, 1, height_ratios=[1, 1.5])
        width = num_steps // windows
        frames = dense.unflatten(-1, data.sensor_shape).unflatten(0, (windows, width)).sum(1)
        change = frames[:, 1] - frames[:, 0]
        for window, picture in enumerate(above.subplots(1, windows)):
            picture.imshow(change[window], cmap="RdBu", vmin=-3, vmax=3)
            picture.set(xticks=[], yticks=[])
            picture.set_title(f"steps {window * width} to {(window + 1) * width - 1}", fontsize=9)
        axis = below.subplots()
        half = num_inputs // 2
        for polarity, color, name in ((0, DARKER, "darker"), (1, BRIGHTER, "brighter")):
            only = torch.zeros_like(dense)
            only[:, polarity * half : (polarity + 1) * half] = dense[:, polarity * half : (polarity + 1) * half]
            plotting.draw_spikes(axis, only, color, 2.2)
            axis.annotate(name, (1.01, 0.25 + 0.5 * polarity), xycoords="axes fraction", color=color)
    axis.set(xlabel="time step (1 ms)" if data.sensor_shape else "time step", ylabel="input neuron")
    axis.set(xlim=(-0.5, num_steps - 0.5), ylim=(-0.5, num_inputs - 0.5))
    figure.suptitle(f"a recording of class {label}: {100 * spikes.activity:.2g} % of the inputs spike in a step")
    return figure


show_recording(spikes[:, :1], int(labels[0]))

# %% [markdown]
# ## The network
#
# `SparseNetwork` is a stack of fully connected layers of leaky integrate-and-fire neurons. The layers pass on ids
# instead of dense tensors. It has three new concepts, compared with `nn.Linear` and `snn.Leaky`:
#
# * **Slots.** A layer passes on at most `max_spikes` ids in a step. Further spikes are dropped and counted. With `None`
#   the layer has as many slots as needed.
# * **A second threshold.** A neuron spikes above `threshold`. It is *gradient-active* if its membrane is above
#   `grad_threshold`, which is lower. Slots without spikes go to such neurons, with the value 0. With `None` every
#   neuron is gradient-active.
# * **Delay.** With `delay=1` a layer reads the spikes of the previous layer from one step before.
#
# `training.benchmark_network` makes a network as in the [published benchmark of sparse
# training](https://arxiv.org/abs/2311.04386). It has a reset to zero, inputs that are weighted by $10\,(1 - \beta)$,
# and the surrogate gradient $1 / (10\,|u - \theta| + 1)^2$.

# %%
sizes = [data.num_neurons, num_hidden, num_hidden, data.num_classes]
hidden_slots = training.benchmark_slots(0.06, num_hidden)
slots = [64, hidden_slots, hidden_slots, data.num_classes]


def make_network(**settings):
    return training.benchmark_network(sizes, **{"max_spikes": slots, "decay": 0.95, "grad_threshold": 0.9, **settings})


net = make_network(generator=torch.Generator().manual_seed(0))
print(net)

# %% [markdown]
# ### First weights
#
# A silent layer passes no spikes on. A very active layer overflows its slots and costs time. `scale_to_activity` scales
# the weights of one layer after another until each layer has the target activity on a batch. (For activations,
# layer-sequential unit variance, LSUV, is a similar method.)

# %%
names = ["hidden 1", "hidden 2", "output"]
for name, scale in zip(names, training.scale_to_activity(net, spikes, target=0.02)):
    print(f"{name}: weights x {scale.scale:.2f}, activity {100 * scale.before:.2f} % -> {100 * scale.activity:.2f} %")
initial_state = {name: value.clone() for name, value in net.state_dict().items()}

# %% [markdown]
# ## Training
#
# The score of a class is the number of spikes of its output neuron. The training loop is a usual one.
# `GradThresholdSchedule` starts with a second threshold far below every membrane, so that all slots are used. Then it
# raises the second threshold to 0.9, and halves the distance each time.


# %%
@torch.no_grad()
def evaluate(network):
    """Accuracy on the test recordings; spikes kept and spikes dropped in each layer."""
    correct, kept, dropped = 0, torch.zeros(len(sizes) - 1), torch.zeros(len(sizes) - 1)
    for spikes, labels in test_loader:
        layers = network(spikes, all_layers=True)
        correct += (layers[-1].spike_count().argmax(1) == labels).sum().item()
        kept += torch.tensor([float(layer.num_spikes) for layer in layers])
        dropped += torch.tensor([float(layer.overflow) for layer in layers])
    return correct / len(test_set), kept, dropped


schedule = training.GradThresholdSchedule(net, start=-100, target=0.9, every=max(1, epochs * len(loader) // 12))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
cells = [len(test_set) * data.num_steps * size for size in sizes[1:]]
history = []
for epoch in range(epochs):
    started, losses, correct = time.perf_counter(), [], 0
    for spikes, labels in loader:
        scores = net(spikes).spike_count()
        loss = cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        correct += (scores.argmax(1) == labels).sum().item()
    seconds = time.perf_counter() - started
    accuracy, kept, dropped = evaluate(net)
    history.append(
        {
            "train_loss": statistics.mean(losses),
            "train_accuracy": correct / len(train_set),
            "test_accuracy": accuracy,
            "activity": [float(count) / cell for count, cell in zip(kept, cells)],
            "dropped": dropped.long().tolist(),
        }
    )
    print(
        f"epoch {epoch + 1}/{epochs}: loss {history[-1]['train_loss']:.3f}, "
        f"training accuracy {100 * history[-1]['train_accuracy']:.1f} %, "
        f"second threshold now {schedule.value:.2f}, {len(train_set) / seconds:,.0f} recordings/s"
    )
print(f"test accuracy: {100 * accuracy:.1f} % of {len(test_set)} recordings")

# %%
plotting.training_curve(history, title="training")

# %% [markdown]
# Watch `net.activity` and `net.overflow` in addition to the accuracy. They have the activity and the dropped spikes of
# each layer in the last forward pass. Over the test recordings:

# %%
plotting.activity_curve(
    [record["activity"] for record in history],
    names,
    caps=[count / size for count, size in zip(slots[1:], sizes[1:])],
    dropped=[record["dropped"] for record in history],
    cells=cells,
    title="activity of the layers",
)

# %% [markdown]
# ## What the network does
#
# The picture shows three test recordings and the spikes of every layer. In the forward pass, each mark adds a column of
# weights to the membranes of the next layer. Without marks the membranes decay.

# %% tags=["gallery"]
test_labels = data.test.labels[test_set.indices]
chosen = [int((test_labels == label).nonzero()[0]) for label in test_labels.unique()[:3]]
examples, example_labels = data.test.batch([test_set.indices[index] for index in chosen])
with torch.no_grad():
    layers = net(examples, all_layers=True)
plotting.layer_rasters([part.to_dense() for part in (examples, *layers)], example_labels, names=["input", *names])

# %% [markdown]
# ## The effect of slots
#
# Slots limit the memory and the work of a step. On hardware with fixed shapes they determine the memory. How few are
# enough? Here the trained network runs again with fewer and fewer slots in its hidden layers. Spikes are dropped in one
# of two orders. `"lowest"` keeps the lowest ids, so the same neurons always lose their spikes. `"rotate"` starts at
# another id in each step, so all neurons share the loss.

# %%
shares = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.045, 0.06, 0.09)
slot_counts = sorted({max(2, int(num_hidden * share)) for share in shares})
results = {"lowest": [], "rotate": []}
for order, rows in results.items():
    for count in slot_counts:
        limited = make_network(max_spikes=[slots[0], count, count, slots[-1]], overflow=order)
        limited.load_state_dict(net.state_dict())
        accuracy, kept, dropped = evaluate(limited)
        hidden_kept, hidden_dropped = float(kept[:-1].sum()), float(dropped[:-1].sum())
        rows.append((100 * accuracy, 100 * hidden_dropped / max(hidden_dropped + hidden_kept, 1)))


def draw_slots():
    figure = plotting.new_figure(9, 3.8)
    figure.suptitle("the trained network with other slots")
    accuracy_axis, lost_axis = figure.subplots(1, 2)
    for (order, rows), color in zip(results.items(), (plotting.MUTED, plotting.BLUE)):
        accuracies, lost = zip(*rows)
        accuracy_axis.plot(slot_counts, accuracies, "o-", color=color, markersize=4, label=f'overflow="{order}"')
        lost_axis.plot(slot_counts, lost, "o-", color=color, markersize=4)
    accuracy_axis.set(ylabel="test accuracy (%)", ylim=(0, 102))
    lost_axis.set(ylabel="hidden spikes dropped (%)", ylim=(0, None))
    for axis in (accuracy_axis, lost_axis):
        axis.axvline(hidden_slots, color=plotting.INK, linestyle="--", linewidth=1, label="trained with")
        axis.set(xlabel="slots of each hidden layer", xscale="log")
        axis.set_xticks(slot_counts[::2], [str(count) for count in slot_counts[::2]])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles, texts = accuracy_axis.get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=3, frameon=False)
    return figure


draw_slots()

# %% [markdown]
# Dropping spikes is an approximation. A network can compensate for it if it is trained with the same slots. Look at
# `overflow` in any case: it shows whether the approximation is a large one.
#
# ## The effect of the second threshold
#
# The derivative of the step function is zero. The backward pass replaces it by a surrogate that is largest at the
# threshold. The picture shows the membranes of the first hidden layer before training, over a batch. Few are above the
# threshold, and the surrogate is small for most of the others. The second threshold excludes these.

# %%
free = make_network(max_spikes=None, grad_threshold=None)
free.load_state_dict(initial_state)
spikes, labels = data.train.batch(train_set.indices[:batch_size])
with torch.no_grad():
    membranes = free.layers[0].membranes(spikes).flatten()


def draw_thresholds(second=0.9, threshold=1.0, low=-4.0, high=3.0, bins=140):
    count, edges = torch.histogram(membranes.clamp(low, high), bins, range=(low, high))
    middle, share = (edges[1:] + edges[:-1]) / 2, 100 * count / len(membranes)
    figure = plotting.new_figure(9, 3.8)
    axis = figure.subplots()
    parts = (
        (low, second, plotting.MUTED, "no part in the backward pass"),
        (second, threshold, plotting.GREEN, "carries gradient only"),
        (threshold, high, plotting.BLUE, "spikes"),
    )
    for above, below, color, name in parts:
        part = (middle > above) & (middle <= below)
        label = f"{name}: {share[part].sum():.1f} %"
        axis.bar(middle[part].numpy(), share[part].numpy(), (high - low) / bins, color=color, label=label)
    axis.axvline(second, color=plotting.GREEN, linestyle="--", linewidth=1)
    axis.axvline(threshold, color=plotting.BLUE, linestyle="--", linewidth=1)
    axis.set(xlabel="membrane (outermost bars: all beyond)", ylabel="neurons and steps (%)", yscale="log")
    axis.set(xlim=(low, high))
    surrogate_axis = axis.twinx()
    u = torch.linspace(low, high, 1401)
    surrogate_axis.plot(u, 1 / (10 * (u - threshold).abs() + 1) ** 2, color=plotting.RED, linewidth=1.4)
    surrogate_axis.set_ylabel("surrogate gradient", color=plotting.RED)
    surrogate_axis.set_ylim(0, 1.05)
    for each in (axis, surrogate_axis):
        each.spines["top"].set_visible(False)
    axis.legend(frameon=False, loc="upper left", fontsize=8)
    return figure


draw_thresholds()

# %% [markdown]
# How good is the remaining gradient? The full gradient has every neuron gradient-active (`grad_threshold=None`, no
# limit on slots). It equals the dense network's gradient to rounding. This cell computes the cosine of the angle
# between the full gradient and the gradients for higher and higher second thresholds: 1 is the same direction, 0 an
# unrelated one. It also counts the used slots, including spikes, since they determine the work of the backward pass.


# %%
def weight_gradients(network, grad_threshold):
    """Gradient of each layer's weight, and the mean number of neurons that carry gradient, as a share of the layer."""
    for layer in network.layers:
        layer.grad_threshold = grad_threshold
    layers = network(spikes, all_layers=True)
    network.zero_grad()
    cross_entropy(layers[-1].spike_count(), labels).backward()
    carried = [float(part.counts[..., 1].float().mean()) / part.num_neurons for part in layers]
    return [layer.weight.grad.flatten().clone() for layer in network.layers], carried


thresholds = [-2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0]
agreement, carried = {}, {}
for state, when in ((initial_state, "before training"), (net.state_dict(), "after training")):
    free.load_state_dict(state)
    full, _ = weight_gradients(free, None)
    found = [weight_gradients(free, value) for value in thresholds]
    agreement[when] = [[float(cosine_similarity(a, b, dim=0)) for a, b in zip(part, full)] for part, _ in found]
    carried[when] = [[100 * share for share in shares] for _, shares in found]


def draw_gradient():
    figure = plotting.new_figure(10, 3.9)
    panels = figure.subplots(1, 3, sharex=True)
    for index, (name, color) in enumerate(zip(names, (plotting.BLUE, plotting.SLATE, plotting.RED))):
        for axis, rows in zip(panels, (*agreement.values(), carried["after training"])):
            axis.plot(thresholds, [row[index] for row in rows], "o-", color=color, markersize=3.5, label=name)
    for axis, (when, rows) in zip(panels, agreement.items()):
        axis.set(title=when, ylabel="cosine with the full gradient", ylim=(min(0, *map(min, rows)), 1.03))
    panels[2].set(title="cost, after training", ylabel="neurons that carry gradient (%)", yscale="log")
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    panels[2].set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    panels[2].minorticks_off()
    panels[2].set_ylim(0.7 * max(min(map(min, carried["after training"])), 0.1), 130)
    for axis in panels:
        axis.axvline(0.9, color=plotting.INK, linestyle="--", linewidth=1)
        axis.set(xlabel="second threshold")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles, texts = panels[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=3, frameon=False, title="weights and neurons of")
    return figure


draw_gradient()

# %% [markdown]
# Read the curve from left to right. Many neurons are far below the threshold, and the gradient hardly changes without
# them. Close to the threshold the last few neurons matter. Why is a schedule needed? A neuron that never exceeds the
# second threshold gets no gradient and never learns. While the second threshold is low, every neuron can learn.
#
# ## Speed against the dense layer
#
# The work of an event-driven layer is:
#
# * forward: one column of weights for each input spike,
# * backward: the same for the gradient of the weights, and one column for each used slot of the input for the gradient
#   of the input,
# * in addition a little for each neuron and step.
#
# Fewer spikes are less work. The work of the dense layer depends only on sizes.
#
# This cell compares one layer whose inputs need a gradient, as in the middle of a network: `nn.Linear` and
# `snn.Leaky.sequence` on dense frames, and `SparseLeaky` on ids of the same spikes, forward and backward. The weights
# are scaled so that the layer has an activity of 2 % for any input. Both run in turn, and medians are compared.


# %%
inputs, steps, batch = min(data.num_neurons, 1024), 50, 32
activities = [0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005]


def time_layers(activity, repeats=9):
    """Median seconds of a forward and a backward pass of the dense and of the event-driven layer."""
    ids = datasets.random_spikes(num_steps=steps, batch_size=batch, num_neurons=inputs, activity=activity)
    network = snn.SparseNetwork([inputs, num_hidden], beta=0.95, grad_threshold=0.9, path="sparse")
    training.scale_to_activity(network, ids, target=0.02)
    linear, leaky = network.layers[0].to_dense()
    frames = ids.to_dense().requires_grad_()
    ids.requires_grad_()
    contenders = {
        "dense": lambda: leaky.sequence(linear(frames))[0].sum().backward(),
        "sparse": lambda: network(ids).values.sum().backward(),
    }
    times = {name: [] for name in contenders}
    for repeat in range(repeats + 2):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            if repeat >= 2:  # the first two warm up
                times[name].append(time.perf_counter() - started)
    return [statistics.median(values) for values in times.values()]


ratios = []
for activity in activities:
    dense_time, sparse_time = time_layers(activity)
    ratios.append(dense_time / sparse_time)
    print(
        f"input activity {100 * activity:4.1f} %: dense {1000 * dense_time:7.2f} ms, "
        f"sparse {1000 * sparse_time:7.2f} ms: {ratios[-1]:5.2f} x the dense layer's speed"
    )


def draw_ratios():
    figure = plotting.new_figure(8, 3.8)
    axis = figure.subplots()
    percent = [100 * activity for activity in activities]
    axis.plot(percent, ratios, "o-", color=plotting.BLUE)
    axis.axhline(1, color=plotting.INK, linestyle="--", linewidth=1)
    for place, text, at, align in (
        *((("data", "data"), f"{ratio:.1f}", (x, ratio), "center") for x, ratio in zip(percent, ratios)),
        (("axes fraction", "data"), "as fast as the dense layer", (0.99, 1), "right"),
    ):
        axis.annotate(
            text,
            at,
            xycoords=place,
            xytext=(0, 6),
            textcoords="offset points",
            ha=align,
            fontsize=8,
            color=plotting.INK,
        )
    axis.set(xlabel="input activity (% of the neurons spike in a step)", ylabel="dense time / sparse time")
    axis.set(xscale="log", yscale="log")
    axis.set_title(f"one layer {inputs}-{num_hidden}, T={steps}, B={batch}, forward + backward")
    axis.set_xticks(percent, [f"{x:g}" for x in percent])
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if min(ratios) / 2 < tick < max(ratios) * 2]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.invert_xaxis()
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


draw_ratios()

# %% [markdown]
# Where the curve is below 1, the matrix product is faster. `path="auto"`, the default of `SparseLeaky` and
# `SparseNetwork`, then uses it: it measures the activity of the layer's input in each forward pass. This cell sets
# `path="sparse"` to prevent this.
#
# ## From and to dense layers
#
# A layer without a cap computes the same as `nn.Linear` and `Leaky`. `to_dense` returns these two with the same
# parameters. A network with `delay=0`, in which spikes pass through all layers within a step, becomes a `MultiStep`:

# %%
immediate = make_network(max_spikes=None, grad_threshold=None, delay=0)
immediate.load_state_dict(net.state_dict())
multi_step = immediate.to_dense()
print(multi_step)

with torch.no_grad():
    dense_spk, _ = multi_step(examples.to_dense())
    sparse_spk = immediate(examples).to_dense()
print(f"equal spikes: {100 * (dense_spk == sparse_spk).float().mean():.3f} %")

# %% [markdown]
# (The two add in different orders. A spike may differ if its membrane is within rounding of the threshold.)
#
# A stack that was trained with snnTorch, here with the names of `nn.Sequential`, also becomes an event-driven network.
# `dense_state_dict` and `load_dense_state_dict` use the stack's `state_dict`. `input_scale` is part of the dense
# weights.

# %%
stack = nn.Sequential(
    nn.Linear(data.num_neurons, 64, bias=False),
    snntorch.Leaky(beta=0.9, reset_mechanism="zero"),
    nn.Linear(64, data.num_classes, bias=False),
    snntorch.Leaky(beta=0.8, reset_mechanism="zero"),
)
event_driven = snn.SparseNetwork([data.num_neurons, 64, data.num_classes], beta=0.5, delay=0)
event_driven.load_dense_state_dict(stack.state_dict())
print([round(layer.beta.item(), 2) for layer in event_driven.layers])  # beta and threshold came along
stack.load_state_dict(event_driven.dense_state_dict())  # and back

# %% [markdown]
# ## What to read next
#
# * [Train at low activity](../docs/how-to/train-sparse.md): the same from the command line, and a loss on rates.
# * [Load event data](../docs/how-to/load-event-data.md): your own recordings, the other data sets, and the length of a
#   time step.
# * [The sparse gradient](../docs/explanation/sparse-gradient.md): the equations, the exact terms and the omitted ones.
# * [Port an snnTorch script](../docs/how-to/port-from-snntorch.md): also scripts that stay dense.
