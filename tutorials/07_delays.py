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
# # Delays: spoken digits, and synapses that wait
#
# A word is a sequence of sounds. A leaky neuron forgets a sound within a tenth of a second, so it cannot compare the
# beginning of a word with its end. Synapses with delays solve this: if an early sound has a longer delay than a late
# one, both arrive together. This tutorial is about layers that learn the delays of their synapses. You
#
# 1. convert sounds to spikes by a model of the inner ear,
# 2. see the effect of a delay on a spike,
# 3. train a network without delays, and one with delays,
# 4. compare the delays before and after the training,
# 5. round them to whole steps, and process a stream in chunks.
#
# You need `pip install ".[tutorials]"` in a clone of the repository. These environment variables change the tutorial:
#
# | variable | meaning | default |
# | --- | --- | --- |
# | `SNNIPU_DATA` | folder that contains the data set's recordings in `fsdd` | `./data/fsdd` contains them |
# | `SNNIPU_TUTORIAL_SAMPLES` | maximum number of recordings for training | all |
# | `SNNIPU_TUTORIAL_EPOCHS` | passes over the training recordings | 8 |

# %%
# %matplotlib inline
import os
import wave
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import snnipu as snn
from snnipu import datasets, plotting

samples = int(os.environ.get("SNNIPU_TUTORIAL_SAMPLES", "0")) or None
epochs = int(os.environ.get("SNNIPU_TUTORIAL_EPOCHS", "8"))
num_steps, channels, longest, num_hidden = 100, 70, 25, 64

_ = torch.manual_seed(0)

# %% [markdown]
# ## Sounds, as an inner ear has them
#
# The [Free Spoken Digit Dataset](https://github.com/Jakobovski/free-spoken-digit-dataset) (CC BY-SA 4.0) has 3,000
# recordings of ten digits by six speakers. If you have them, set `SNNIPU_DATA` to the folder above `fsdd`. Without them
# this notebook makes synthetic words: three tones, one after another, in one of six orders. All words have the same
# tones, so only the order distinguishes them.
#
# `datasets.Cochlea` is a simple model of the inner ear: 70 band-pass filters from 80 to 3,800 Hz, hair cells that
# compress, and one leaky neuron for each of them. `datasets.spoken_digits` processes every recording by this model, in
# 100 steps of 10 ms.


# %%
class Words:
    """Recording ``i``: the times in microseconds and the channels of its spikes."""

    orders = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))

    def __init__(self, labels, seed):
        self.labels, self.seed, self.cochlea = labels, seed, datasets.Cochlea(channels)

    def sound(self, index):
        """Samples at 8 kHz: tones of 120 to 200 ms, not always of the same pitch, a pause before them, and noise."""
        random = np.random.default_rng([self.seed, index])
        parts = [np.zeros(random.integers(200, 1600))]
        for tone in self.orders[self.labels[index]]:
            seconds = np.arange(random.integers(960, 1600)) / 8000
            hertz = (300, 900, 2400)[tone] * random.uniform(0.9, 1.1)
            parts.append(np.sin(2 * np.pi * hertz * seconds))
        sound = np.concatenate(parts)
        return sound + 0.02 * random.standard_normal(len(sound))

    def __call__(self, index):
        return self.cochlea(self.sound(index))


def made_up_words(recordings):
    """Half as many recordings to test as for training."""
    options = {"num_steps": num_steps, "num_neurons": channels, "step": 10_000}
    labels = [np.arange(number) % 6 for number in (recordings, recordings // 2)]
    train, test = (datasets.EventDataset(Words(own, seed), own, **options) for seed, own in enumerate(labels))
    return datasets.EventData("made-up words", train, test, channels, num_steps, 6)


folder = Path(os.environ.get("SNNIPU_DATA", "data")) / "fsdd"
try:
    data = datasets.spoken_digits(folder, num_steps, channels=channels)
    class_names = [str(digit) for digit in range(10)]
except FileNotFoundError as error:
    print(f"{error}\nGoing on with made-up words.")
    data = made_up_words(samples or 1200)
    class_names = ["".join("abc"[tone] for tone in order) for order in Words.orders]


def loaded(split, most=None):
    """Spikes ``[T, N, channels]`` of a drawn part, and the classes."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:most].tolist()
    items = [split[number] for number in order]
    return torch.cat([spikes.to_dense() for spikes, _ in items], 1), torch.tensor([int(label) for _, label in items])


x_train, y_train = loaded(data.train, samples)
x_test, y_test = loaded(data.test)
print(f"{data.name}: {len(y_train)} training and {len(y_test)} test recordings of {len(class_names)} words")
print(f"{100 * x_train.mean():.1f} % of the channels spike in a step")

# %% [markdown]
# The picture shows three words. Above is the output of the hair cells, the *cochleagram*, with low frequencies at the
# bottom. Below are the spikes, which are the input of the network.


# %% tags=["gallery"]
def sound_of(word):
    """Samples of one recording of it."""
    if data.name != "spoken_digits":
        return Words(np.arange(6), 0).sound(word)
    with wave.open(str(min(folder.rglob(f"{word}_*_10.wav")))) as recording:
        return np.frombuffer(recording.readframes(recording.getnframes()), "<i2") / 2.0**15


def draw_words(words):
    figure, cochlea = plotting.new_figure(9, 4.4), datasets.Cochlea(channels)
    panels = figure.subplots(2, len(words), sharex="col", sharey="row")
    for (above, below), word in zip(panels.T, words):
        sound = sound_of(word)
        above.imshow(cochlea.currents(sound).T, aspect="auto", origin="lower", cmap="magma")
        times, channel = cochlea(sound)
        below.scatter(times / 1000, channel, s=1.2, color=plotting.BLUE, linewidths=0)
        above.set_title(f'"{class_names[word]}"', fontsize=9)
        below.set_xlabel("time (ms)")
    panels[0, 0].set_ylabel("channel")
    panels[1, 0].set_ylabel("channel")
    return figure


draw_words([1, 3, 5])

# %% [markdown]
# ## The effect of a delay
#
# `snn.DelayLinear` is `nn.Linear` with a delay for each synapse, a real number of steps up to `max_delay`. With a delay
# of 2.25, a spike arrives after two steps with three quarters of its weight, and after three steps with the rest. A
# delay therefore has a gradient. Its sign shows whether the spike should arrive a little earlier or later.
#
# In this cell, two inputs spike at different times. With delays both spikes arrive together. Only together they make
# the neuron spike.

# %%
pair = torch.zeros(10, 1, 2)
pair[1, 0, 0] = pair[6, 0, 1] = 1
for delay in (torch.zeros(1, 2), torch.tensor([[5.0, 0.0]]), torch.tensor([[4.75, 0.0]])):
    waiting = snn.DelayLinear(2, 1, max_delay=8, delay=delay)
    nn.init.constant_(waiting.weight, 0.75)
    arriving = waiting(pair)
    spikes = snn.Leaky(beta=0.5).sequence(arriving)[0].flatten().nonzero().flatten().tolist()
    shown = ", ".join(f"{number:.2f}" for number in arriving.flatten().tolist())
    print(f"delays {delay.flatten().tolist()}: arriving {shown}; spikes at {spikes}")

# %% [markdown]
# ## Without and with delays
#
# The two networks differ only in their first layer. Both have 70 channels, 64 leaky neurons, and a readout whose
# membrane, averaged over time, gives the scores of the words. Initial delays are uniform up to 25 steps, a quarter of a
# second. Delays are larger numbers than weights, so they have a larger learning rate.


# %%
def network(with_delays):
    torch.manual_seed(0)
    first = (
        snn.DelayLinear(channels, num_hidden, longest) if with_delays else nn.Linear(channels, num_hidden, bias=False)
    )
    with torch.no_grad():
        first.weight.mul_(4)
    return snn.MultiStep(
        first,
        snn.Leaky(beta=0.9, spike_grad=snn.surrogate.fast_sigmoid(5)),
        nn.Linear(num_hidden, len(class_names)),
        snn.Leaky(beta=0.97, reset_mechanism="none"),
    )


@torch.no_grad()
def accuracy(net):
    found = torch.cat([net(x)[1].mean(0).argmax(1) for x in x_test.split(100, 1)])
    return 100 * float((found == y_test).float().mean())


def train(net):
    """Loss and test accuracy of each epoch."""
    delays = [parameter for name, parameter in net.named_parameters() if name.endswith("delay")]
    others = [parameter for name, parameter in net.named_parameters() if not name.endswith("delay")]
    optimizer = torch.optim.Adam([{"params": others, "lr": 2e-3}, *([{"params": delays, "lr": 0.2}] if delays else [])])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    history = []
    for _ in range(epochs):
        total = 0.0
        for part in torch.randperm(len(y_train)).split(64):
            optimizer.zero_grad()
            loss = cross_entropy(net(x_train[:, part])[1].mean(0), y_train[part])
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(part)
        schedule.step()
        history.append((total / len(y_train), accuracy(net)))
    return history


nets, histories = {}, {}
for name in ("no delays", "learnt delays"):
    nets[name] = network(name == "learnt delays")
    before = [p.detach().clone() for p in nets[name][0].parameters()]
    histories[name] = train(nets[name])
    count = sum(parameter.numel() for parameter in nets[name].parameters())
    loss, percent = histories[name][-1]
    print(f"{name}: {count:,} parameters, loss {loss:.2f}, test accuracy {percent:.1f} %")

# %%
COLOURS = {"no delays": plotting.SLATE, "learnt delays": plotting.BLUE}


def draw_training():
    figure = plotting.new_figure(8, 2.8)
    for place, (axis, title) in enumerate(zip(figure.subplots(1, 2), ("training loss", "test accuracy (%)"))):
        for name, history in histories.items():
            axis.plot(
                range(1, epochs + 1), [each[place] for each in history], "o-", ms=3, color=COLOURS[name], label=name
            )
        axis.set(title=title, xlabel="epoch", ylim=(0, None if place == 0 else 100))
        axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right")
    return figure


draw_training()

# %% [markdown]
# The network with delays has about twice as many parameters, since each weight of the first layer also has a delay.
# This is not the reason for its higher accuracy: [Delays](../docs/how-to/delays.md) compares networks of equal size,
# with several seeds, and with an epoch that is chosen on a validation set.
#
# ## Delays before and after
#
# The left picture has all delays of the first layer, before and after the training. The other two show the synapses of
# one neuron. Each dot is a synapse with its channel and its delay, red for excitation and blue for inhibition. Long
# delays are on the left, because early sounds need long delays. The picture can thus be read like a small cochleagram.

# %%
layer = nets["learnt delays"][0]
untrained = dict(zip(("weight", "delay"), before))
trained = {name: parameter.detach() for name, parameter in layer.named_parameters()}
moved = (trained["delay"].clamp(0, longest) - untrained["delay"]).abs()
print(f"delays moved by {moved.mean():.1f} steps on average, at most by {moved.max():.1f}")


def draw_delays():
    figure = plotting.new_figure(9, 3.4)
    left, *panels = figure.subplots(1, 3)
    for when, values, colour in (("before", untrained, plotting.MUTED), ("after", trained, plotting.BLUE)):
        left.hist(values["delay"].clamp(0, longest).flatten(), 25, histtype="step", color=colour, label=when)
    left.set(title="all delays", xlabel="delay (steps)", ylabel="synapses")
    left.legend(frameon=False)
    neuron = int(trained["weight"].square().sum(1).argmax())
    for axis, when, values in zip(panels, ("before", "after"), (untrained, trained)):
        weight = values["weight"][neuron]
        colours = [plotting.RED if number > 0 else plotting.BLUE for number in weight.tolist()]
        delay = values["delay"][neuron].clamp(0, longest)
        axis.scatter(delay, range(channels), s=40 * weight.abs() / weight.abs().max(), c=colours, linewidths=0)
        axis.set(title=f"neuron {neuron}, {when}", xlabel="delay (steps)", xlim=(longest + 1, -1))
    panels[0].set_ylabel("channel")
    return figure


draw_delays()

# %% [markdown]
# ## Whole steps, and a stream in chunks
#
# Hardware has delays of whole steps. `round_()` rounds the delays. Each spike then arrives only once.

# %%
exact = accuracy(nets["learnt delays"])
layer.round_()
print(f"test accuracy {exact:.1f} %, with rounded delays {accuracy(nets['learnt delays']):.1f} %")

# %% [markdown]
# A stream from a microphone has no marks at the ends of words. With `init_hidden=True`, spikes that are on their way at
# the end of a call arrive in the next call. Chunks of any length therefore give the same result as one call.

# %%
stream = snn.DelayLinear(channels, num_hidden, longest, init_hidden=True)
stream.load_state_dict(layer.state_dict())
with torch.no_grad():
    whole, pieces = layer(x_test[:, :20]), [stream(piece) for piece in x_test[:, :20].split([7, 1, 42, 50])]
print(f"largest difference between pieces and the whole: {(torch.cat(pieces) - whole).abs().max():.0e}")
snn.utils.reset(stream)  # another stream begins

# %% [markdown]
# ## Where to go from here
#
# - [Delays](../docs/how-to/delays.md): axonal delays, a Gaussian kernel that narrows, event-driven layers with delays.
# - [Load event data](../docs/how-to/load-event-data.md): other recordings.
# - `python -m benchmarks delays` in a clone: the cost of delays on your machine, compared with a convolution over time.
