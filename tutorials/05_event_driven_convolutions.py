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
# # Event-driven convolutions: from an event camera's recordings to a trained network
#
# Convolutional spiking networks suit event cameras, whose events are few. This tutorial is about convolutional layers
# that add a kernel's weights where a pixel spiked, and do no work elsewhere. You
#
# 1. look at recordings of an event camera,
# 2. build a standard small network, 12C5-MP2-32C5-MP2-FC, of event-driven layers,
# 3. train it at low activity,
# 4. see the features that its first layer has learnt,
# 5. compare the time of each layer with its dense twin, on your machine,
# 6. convert it to `nn.Conv2d`, `Leaky` and `nn.MaxPool2d`.
#
# You need `pip install ".[tutorials]"` in a clone of the repository. These environment variables change the tutorial:
#
# | variable | meaning | default |
# | --- | --- | --- |
# | `SNNIPU_DATA` | folder that contains `nmnist/Train` and `nmnist/Test` | `./data/nmnist` contains N-MNIST |
# | `SNNIPU_TUTORIAL_SAMPLES` | maximum number of recordings for training and testing | 600 |
# | `SNNIPU_TUTORIAL_EPOCHS` | passes over the training recordings | 4 |

# %%
# %matplotlib inline
import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Subset

import snnipu as snn
from snnipu import datasets, plotting, training

samples = int(os.environ.get("SNNIPU_TUTORIAL_SAMPLES", "600"))
epochs = int(os.environ.get("SNNIPU_TUTORIAL_EPOCHS", "4"))
num_steps, step_us, side, batch_size = 20, 5000, 34, 32

_ = torch.manual_seed(0)

# %% [markdown]
# ## The recordings
#
# An event camera has no frames. Each pixel reports independently when it gets brighter or darker. N-MNIST has such
# recordings of handwritten digits. The [second tutorial](02_sparse_nmnist.ipynb) shows how to get them. Without them
# this notebook makes synthetic events: bright bars that move right, down, left or up, recorded by a camera of 34 x 34
# pixels. The pixels in front of a bar get brighter, the pixels at its back get darker, and a few pixels flicker. A
# single event does not show the direction of a bar. The order of bright and dark edges does, and a convolution can
# detect it.


# %%
class MovingBars:
    """Recording ``i``: times in microseconds, and neuron ids ``(polarity * side + y) * side + x``."""

    def __init__(self, labels, seed):
        self.labels, self.seed = labels, seed

    def __call__(self, index):
        random = np.random.default_rng([self.seed, index])
        label, length, start = self.labels[index], random.integers(12, 24), random.integers(2, 8)
        columns = np.repeat(np.arange(start, start + 22), 2 * length)  # where the bar's two edges are, step by step
        times = (columns - start + random.random(len(columns))) * num_steps * step_us / 22
        across = random.integers(2, side - length) + np.tile(np.arange(length), 2 * 22)
        polarity = np.tile(np.repeat([1, 0], length), 22)
        along = columns + np.where(polarity == 1, 3, 0)
        if label >= 2:
            along = side - 1 - along
        y, x = (across, along) if label % 2 == 0 else (along, across)
        flicker = np.stack([random.integers(0, n, 100) for n in (2, side, side)])
        polarity, y, x = (np.concatenate(pair) for pair in zip((polarity, y, x), flicker))
        times = np.concatenate([times, random.random(100) * num_steps * step_us])
        kept = random.random(len(times)) < 0.7
        return times[kept], ((polarity * side + y) * side + x)[kept]


def moving_bars(recordings):
    """As many recordings to test as for training."""
    labels = np.arange(recordings) % 4
    options = {"num_steps": num_steps, "num_neurons": 2 * side * side, "step": step_us}
    train, test = (datasets.EventDataset(MovingBars(labels, seed), labels, **options) for seed in (0, 1))
    return datasets.EventData("moving bars", train, test, 2 * side * side, num_steps, 4, (2, side, side))


folder = Path(os.environ.get("SNNIPU_DATA", "data")) / "nmnist"
try:
    data = datasets.nmnist(folder, num_steps=num_steps, step_us=step_us)
    class_names = [str(digit) for digit in range(10)]
except FileNotFoundError as error:
    print(f"{error}\nGoing on with moving bars.")
    data = moving_bars(samples)
    class_names = ["right", "down", "left", "up"]

order = torch.Generator().manual_seed(0)
train_set = Subset(data.train, torch.randperm(len(data.train), generator=order)[:samples].tolist())
test_set = Subset(data.test, torch.randperm(len(data.test), generator=order)[:samples].tolist())
print(f"{data.name}: {len(train_set)} training and {len(test_set)} test recordings of {data.sensor_shape} neurons")

# %% [markdown]
# A batch contains ids, as in the second tutorial: the numbers of the neurons that spiked, for each time step. Here the
# neurons form two maps. Neuron `(polarity * 34 + y) * 34 + x` is the pixel `y, x` of the map of that polarity. Layers
# on maps number their neurons in the same way. For the picture, `to_dense` makes frames of four recordings, each in
# four parts of time. Bright events are blue and dark ones red.

# %% tags=["gallery"]
loader = datasets.event_loader(train_set, batch_size, shuffle=True, generator=torch.Generator().manual_seed(0))
test_loader = datasets.event_loader(test_set, 100)
spikes, labels = next(iter(loader))
print(spikes)


def draw_event_frames(parts=4):
    shown = [int((labels == label).nonzero()[0]) for label in labels.unique()[:4]]
    frames = spikes.to_dense()[:, shown].unflatten(-1, data.sensor_shape).unflatten(0, (parts, -1)).sum(1)
    figure = plotting.new_figure(8, 2 * len(shown))
    for row, (panels, index) in enumerate(zip(figure.subplots(len(shown), parts, squeeze=False), shown)):
        for part, panel in enumerate(panels):
            change = frames[part, row, 1] - frames[part, row, 0]
            panel.imshow(change, cmap="RdBu", vmin=-3, vmax=3)
            panel.set(xticks=[], yticks=[])
            if row == 0:
                width = num_steps // parts
                panel.set_title(f"steps {part * width} to {(part + 1) * width - 1}", fontsize=9)
        panels[0].set_ylabel(class_names[int(labels[index])])
    return figure


draw_event_frames()

# %% [markdown]
# ## The network
#
# `SparseNetwork` reads the usual notation. `"12C5"` is a convolution to 12 maps by kernels of 5 x 5 and a layer of
# leaky integrate-and-fire neurons (a `snn.SparseConvLeaky`). `"MP2"` takes the maximum of 2 x 2 neurons (a
# `snn.SparsePool2d`). A number is a fully connected layer. All layers pass on ids.
#
# A spike of the input adds a kernel's 12 x 5 x 5 weights around its pixel. A convolution of frames would multiply them
# at each of 900 positions. In the backward pass only neurons above the second threshold, `grad_threshold`, are
# gradient-active. Here these are neurons whose membrane is at least half of the threshold.
#
# `scale_to_activity` then scales the initial weights of one layer after another, until 2 % of its neurons spike in a
# step.

# %%
net = snn.SparseNetwork(
    [data.sensor_shape, "12C5", "MP2", "32C5", "MP2", data.num_classes],
    beta=0.95,
    grad_threshold=[0.5, 0.5, None],
    delay=0,
    spike_grad=snn.surrogate.fast_sigmoid(10),
    input_scale=0.5,
)
print(net)
names = ["12C5", "32C5", f"FC{data.num_classes}"]
for name, scale in zip(names, training.scale_to_activity(net, spikes, target=0.02)):
    print(f"{name}: weights x {scale.scale:.2f}, activity {100 * scale.before:.2f} % -> {100 * scale.activity:.2f} %")

# %% [markdown]
# ## Training
#
# The score of a class is the number of spikes of its output neuron. A term of the loss keeps the network sparse:
# `ActivityRegularizer` limits neurons whose rate is above 5 % of the steps. Watch the picture of the activity, since
# the work of a layer is proportional to it.


# %%
@torch.no_grad()
def evaluate():
    """Accuracy on the test recordings, and mean activity of the layers."""
    correct, kept = 0, torch.zeros(len(names))
    for spikes, labels in test_loader:
        layers = net(spikes, all_layers=True)
        correct += (layers[-1].spike_count().argmax(1) == labels).sum().item()
        kept += torch.tensor([float(layer.num_spikes) for layer in layers])
    cells = len(test_set) * num_steps * torch.tensor(net.sizes[1:])
    return correct / len(test_set), (kept / cells).tolist()


regularizer = training.ActivityRegularizer(upper=0.05, strength=20.0)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
history = [{"activity": evaluate()[1]}]
for epoch in range(epochs):
    started, losses, correct = time.perf_counter(), [], 0
    for spikes, labels in loader:
        *hidden, out = net(spikes, all_layers=True)
        scores = out.spike_count()
        loss = cross_entropy(scores, labels) + regularizer(hidden)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        correct += (scores.argmax(1) == labels).sum().item()
    seconds = time.perf_counter() - started
    accuracy, activity = evaluate()
    history.append(
        {
            "train_loss": statistics.mean(losses),
            "train_accuracy": correct / len(train_set),
            "test_accuracy": accuracy,
            "activity": activity,
        }
    )
    print(
        f"epoch {epoch + 1}/{epochs}: loss {history[-1]['train_loss']:.3f}, training accuracy "
        f"{100 * history[-1]['train_accuracy']:.1f} %, {len(train_set) / seconds:,.0f} recordings/s"
    )
print(f"test accuracy: {100 * accuracy:.1f} % of {len(test_set)} recordings")

# %%
plotting.training_curve(history[1:], title="training")

# %%
plotting.activity_curve([record["activity"] for record in history[1:]], names, title="activity of the layers")

# %% [markdown]
# ## The features of the first layer
#
# The first layer has 12 kernels for each polarity. Blue weights excite a neuron, red ones inhibit it. A kernel that is
# blue on one side for bright events, and on the other side for dark ones, detects an edge that moves in one direction.
# After a few epochs the kernels still show much of their random initial weights.


# %%
def draw_filters():
    weight = net.layers[0].weight.detach()
    figure = plotting.new_figure(9, 2.2)
    most = float(weight.abs().max())
    for row, (panels, polarity) in enumerate(zip(figure.subplots(2, 12), ("darker", "brighter"))):
        for panel, kernel in zip(panels, weight[:, row]):
            panel.imshow(kernel, cmap="RdBu", vmin=-most, vmax=most)
            panel.set(xticks=[], yticks=[])
        panels[0].set_ylabel(polarity, fontsize=8)
    figure.suptitle("kernels of the first layer")
    return figure


draw_filters()

# %% [markdown]
# This picture shows the output of the 12 maps for one recording: their spikes, summed over the time steps.

# %%
examples, example_labels = data.test.batch(test_set.indices[:4])
with torch.no_grad():
    layers = net(examples, all_layers=True)


def draw_maps():
    counts = layers[0].spike_count()[0].unflatten(-1, layers[0].map_shape)
    figure = plotting.new_figure(9, 3.2)
    panels = figure.subplots(2, 6).flatten()
    for panel, spikes_of_map in zip(panels, counts):
        panel.imshow(spikes_of_map, cmap="Blues", vmin=0, vmax=float(counts.max()))
        panel.set(xticks=[], yticks=[])
    figure.suptitle(f"maps of the first layer, for a recording of class {class_names[int(example_labels[0])]}")
    return figure


draw_maps()

# %% [markdown]
# ## Time of a layer, event-driven and dense
#
# The input of each layer is the spikes that it had in training, as ids and as frames. `path="sparse"` prevents the
# event-driven layer from choosing the dense path, as `path="auto"` does if that is faster. The dense twin is
# `nn.Conv2d` over all steps and `Leaky.sequence`. Forward and backward pass of both run in turn, and medians are
# compared. The last layer is too small for a gain.


# %%
def behind_pools(index, spikes):
    return net.pools[str(index)](spikes) if str(index) in net.pools else spikes


spikes, _ = next(iter(loader))
with torch.no_grad():
    inputs = [spikes, *(behind_pools(index, part) for index, part in enumerate(net(spikes, all_layers=True)))]


def time_layer(layer, ids, repeats=3):
    """Median milliseconds of both ways, without the gradient of the input: that of the first layer is not needed."""
    maps = (*ids.shape[:2], -1) if isinstance(layer, snn.SparseLeaky) else (*ids.shape[:2], *ids.map_shape)
    weights, leaky = layer.to_dense()
    frames = ids.to_dense().reshape(maps)
    needs_gradient = layer is not net.layers[0]
    frames.requires_grad_(needs_gradient)
    ids = ids.detach().requires_grad_(needs_gradient)

    def dense():
        current = weights(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        leaky.sequence(current)[0].sum().backward()

    times = {"dense": [], "event-driven": []}
    for repeat in range(repeats + 1):
        for name, run in (("dense", dense), ("event-driven", lambda: layer(ids).values.sum().backward())):
            started = time.perf_counter()
            run()
            if repeat:  # the first warms up
                times[name].append(1000 * (time.perf_counter() - started))
    return [statistics.median(values) for values in times.values()]


milliseconds = []
for name, layer, ids in zip(names, net.layers, inputs):
    ids = ids if ids.map_shape is not None or isinstance(layer, snn.SparseLeaky) else ids.with_maps(data.sensor_shape)
    layer.path = "sparse"
    milliseconds.append(time_layer(layer, ids))
    layer.path = "auto"
    dense_ms, sparse_ms = milliseconds[-1]
    print(
        f"{name}: input activity {100 * ids.activity:4.1f} %: dense {dense_ms:7.2f} ms, "
        f"event-driven {sparse_ms:7.2f} ms"
    )


def draw_times():
    figure = plotting.new_figure(7, 3.2)
    axis = figure.subplots()
    for offset, color, name, values in zip(
        (-0.2, 0.2), (plotting.MUTED, plotting.BLUE), ("dense", "event-driven"), zip(*milliseconds)
    ):
        bars = axis.bar([index + offset for index in range(len(names))], values, 0.38, color=color, label=name)
        axis.bar_label(bars, [f"{value:.3g}" for value in values], fontsize=8)
    axis.set_xticks(range(len(names)), names)
    axis.set(ylabel="ms, forward + backward", yscale="log")
    axis.set_title(f"T={num_steps}, B={batch_size}")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


draw_times()

# %% [markdown]
# ## From and to dense layers
#
# A network without delay becomes a `MultiStep` of `nn.Conv2d`, `Leaky` and `nn.MaxPool2d` with the same parameters. It
# computes the same spikes, up to the order of the additions. `dense_state_dict` and `load_dense_state_dict` use its
# `state_dict`, so a network that was trained elsewhere can become event-driven.

# %%
multi_step = net.to_dense()
print(multi_step)
with torch.no_grad():
    dense_spk, _ = multi_step(examples.to_dense().unflatten(-1, data.sensor_shape))
print(f"equal spikes: {100 * (dense_spk == layers[-1].to_dense()).float().mean():.3f} %")

# %% [markdown]
# ## What to read next
#
# * [Train convolutional networks on events](../docs/how-to/train-convolutional.md): single layers, and the same from
#   the command line.
# * [Train at low activity](../docs/how-to/train-sparse.md): slots, second thresholds, initial weights, rates.
# * [Load event data](../docs/how-to/load-event-data.md): your own recordings, and their cache on the disk.
# * [The sparse gradient](../docs/explanation/sparse-gradient.md): the terms that the second threshold omits.
