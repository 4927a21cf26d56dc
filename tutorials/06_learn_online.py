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
# # Learn online: ten minutes of a stream in constant memory
#
# Backpropagation through time stores every step until the last one. A stream has no last step. This tutorial is for
# long recordings and for streams without an end. You
#
# 1. make a stream of spikes with one step per millisecond, in which two sounds differ only by their order in time,
# 2. learn to distinguish the sounds while the stream runs, by `snnipu.Online`,
# 3. look at the traces, which carry over from step to step, and at the learning signals,
# 4. compare the memory with backpropagation through time,
# 5. stop within the stream, and continue.
#
# You need `pip install ".[tutorials]"` in a clone of the repository. This environment variable changes the tutorial:
#
# | variable | meaning | default |
# | --- | --- | --- |
# | `SNNIPU_TUTORIAL_MINUTES` | length of the stream | 10 |

# %%
# %matplotlib inline
import io
import os
import time
from pathlib import Path
from typing import List, Tuple

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import snnipu as snn

minutes = float(os.environ.get("SNNIPU_TUTORIAL_MINUTES", "10"))
channels, hidden, chunk = 40, 100, 100
classes = ["silence", "rising", "falling"]
steps = int(minutes * 60_000) // chunk * chunk

torch.set_num_threads(1)  # a hundred neurons are no work for more
_ = torch.manual_seed(0)

# %% [markdown]
# ## A stream
#
# Sounds of 100 ms follow after pauses of 50 to 150 ms. A rising sound goes through the channels from the lowest to the
# highest, a falling sound in reverse. Each channel spikes equally often in both, so only the order distinguishes them.
# All channels also spike at random.


# %%
class Stream:
    """Spikes ``[steps, 1, channels]`` and what is heard at each step, as many steps at a time as are asked for."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.sound, self.left, self.done = 0, 50, 0

    def draw(self, low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=self.generator))

    def take(self, count: int) -> Tuple[torch.Tensor, torch.Tensor]:
        rates, heard = torch.full((count, channels), 0.005), torch.zeros(count, dtype=torch.int64)
        for step in range(count):
            if self.left == 0:
                self.sound = 0 if self.sound else self.draw(1, 3)
                self.left = 100 if self.sound else self.draw(50, 150)
            if self.sound:
                place = (100 - self.left) / 100 * channels
                centre = place if self.sound == 1 else channels - 1 - place
                rates[step] += 0.4 * torch.exp(-((torch.arange(channels) - centre) ** 2) / 8)
                heard[step] = self.sound
            self.left -= 1
        return (torch.rand(count, 1, channels, generator=self.generator) < rates.unsqueeze(1)).float(), heard


x, heard = Stream(seed=0).take(1500)
figure, axes = plt.subplots(figsize=(9, 2.6))
when, which = x[:, 0].nonzero(as_tuple=True)
axes.scatter(when, which, s=1.5, c=[f"C{int(heard[step])}" for step in when])
axes.set(xlabel="ms", ylabel="channel", title="silence, rising and falling sounds")
plt.show()

# %% [markdown]
# ## Learn while it runs
#
# `Online` needs the network and a rule. The rule OTTT has a trace for each input. Each call processes the next 100
# steps, and `backward()` adds their gradients. The optimizer steps after each chunk, since the stream has no end. The
# accuracy counts answers of the network before it learns from the chunk.


# %%
def network() -> snn.MultiStep:
    torch.manual_seed(0)
    made = snn.MultiStep(
        nn.Linear(channels, hidden),
        snn.Leaky(beta=0.95, threshold=0.5),
        nn.Linear(hidden, hidden),
        snn.Leaky(beta=0.95, threshold=0.5),
        nn.Linear(hidden, len(classes)),
        snn.Leaky(beta=0.9, reset_mechanism="none"),
    )
    return made


def resident() -> float:
    """MiB of this process; none where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), float("nan"))


stream, online = Stream(seed=1), snn.Online(network(), rule="ottt")
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
right, memory, spent = [], [], 0.0
for _ in range(steps // chunk):
    x, heard = stream.take(chunk)
    start = time.perf_counter()
    spk, mem = online(x)
    cross_entropy(mem[:, 0], heard).backward()
    optimizer.step()
    optimizer.zero_grad()
    spent += time.perf_counter() - start
    sounds = heard > 0
    right.append((int((mem[:, 0].argmax(1) == heard)[sounds].sum()), int(sounds.sum())))
    memory.append(resident())


def accuracy(part: List[Tuple[int, int]]) -> float:
    return 100 * sum(hits for hits, _ in part) / max(1, sum(count for _, count in part))


tenth = max(1, len(right) // 10)
print(f"{steps:,} steps, {minutes:g} min of a stream, in {spent:.1f} s of learning")
print(f"right of the steps with a sound: {accuracy(right[:tenth]):.1f} % in the first tenth of the stream")
print(f"                                 {accuracy(right[-tenth:]):.1f} % in the last tenth")

# %%
window = max(1, len(right) // 60)
marks = [end * chunk / 60_000 for end in range(window, len(right) + 1, window)]
figure, axes = plt.subplots(figsize=(9, 2.6))
axes.plot(marks, [accuracy(right[end - window : end]) for end in range(window, len(right) + 1, window)])
axes.axhline(50, color="grey", linestyle="--", linewidth=1)
axes.set(
    xlabel="minutes of the stream", ylabel="%", title="right answers while a sound is heard; 50 %: rising or falling?"
)
plt.show()

# %% [markdown]
# ## Traces and learning signals
#
# `stream_state()` contains the values that carry over from chunk to chunk: the states of the neurons, and a trace for
# each input of a layer. A trace decays like a membrane. The learning signal is the gradient of the loss for each output
# at each step. A weight learns by the product of both. This is half a second, step by step:

# %% tags=["gallery"]
inputs, traces, signals, truth = [], [], [], []
probe = snn.Online(online.net, rule="ottt")
for _ in range(500):
    x, heard = stream.take(1)
    spk, mem = probe(x)
    mem.retain_grad()
    cross_entropy(mem[:, 0], heard).backward()
    states, (by_input, _), *_ = probe.stream_state()["layers"][0]
    trace, _ = by_input[0][0]
    inputs.append(x[0, 0])
    traces.append(trace[0])
    signals.append(mem.grad[0, 0])
    truth.append(int(heard))
optimizer.zero_grad()

figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(9, 6), sharex=True)
top.imshow(torch.stack(inputs).T, aspect="auto", origin="lower", cmap="Greys", interpolation="nearest")
top.set(ylabel="channel", title="input")
middle.imshow(torch.stack(traces).T, aspect="auto", origin="lower", cmap="magma", interpolation="nearest")
middle.set(ylabel="channel", title="traces of the first layer's input")
for number, name in enumerate(classes):
    bottom.plot([float(signal[number]) for signal in signals], label=name, linewidth=1)
bottom.set(xlabel="ms", title="learning signals of the three outputs")
bottom.legend(loc="lower center", fontsize=8)
plt.show()

# %% [markdown]
# ## Memory
#
# The picture compares the memory of the process during learning with the memory of backpropagation through time. The
# latter is a line through the bytes that PyTorch stores for the backward pass of 1,000 and of 2,000 steps.


# %%
def kept(count: int) -> float:
    """MiB that are saved for the backward pass of so many steps at once."""
    found = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    x, _ = Stream(seed=2).take(count)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        network()(x)[1].sum().backward()
    return sum(found.values()) / 2**20


short, long = kept(1000), kept(2000)
by_step = (long - short) / 1000
grown = memory[-1] - memory[len(memory) // 10]
print(f"backpropagation through time keeps {1024 * by_step:.2f} KiB a step: {by_step * steps:,.0f} MiB for this stream")
print(f"the process grew by {grown:.1f} MiB in the last nine tenths of it")

figure, axes = plt.subplots(figsize=(9, 2.8))
time_axis = [number * chunk / 60_000 for number in range(1, len(memory) + 1)]
axes.plot(time_axis, [value - memory[0] for value in memory], label="Online: growth of the process")
axes.plot([0, time_axis[-1]], [0, by_step * steps], "--", label="backpropagation through time: kept at least, computed")
axes.set(xlabel="minutes of the stream", ylabel="MiB")
axes.legend()
plt.show()

# %% [markdown]
# ## Stop and continue
#
# If states and traces are saved, learning continues with the same numbers, bit for bit.

# %%
saved = {"net": online.state_dict(), "optimizer": optimizer.state_dict(), "stream": online.stream_state()}
file = io.BytesIO()  # or the path of one
torch.save(saved, file)

saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
later = snn.Online(network(), rule="ottt")
later.load_state_dict(saved["net"])
later.load_stream_state(saved["stream"])

x, heard = stream.take(chunk)
for net in (online, later):
    cross_entropy(net(x)[1][:, 0], heard).backward()
same = all(torch.equal(a.grad, b.grad) for a, b in zip(online.parameters(), later.parameters()))
print(f"the same gradients after the pause: {same}")

# %% [markdown]
# [Learn online](../docs/how-to/learn-online.md) describes the rules and their limits.
