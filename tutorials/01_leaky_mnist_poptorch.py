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
# # Accelerating snnTorch: MNIST with leaky integrate-and-fire neurons, trained through PopTorch
#
# This tutorial takes the network of snnTorch's tutorials, 784-1000-10 leaky integrate-and-fire neurons shown a digit
# for 25 time steps, and
#
# 1. writes it the snnTorch way, as a Python loop over time,
# 2. changes one import, then lets `snn.MultiStep` run all time steps at once,
# 3. trains it with PopTorch's training loop: the same lines run on this machine and on Graphcore IPUs,
# 4. looks at its spikes and membranes,
# 5. measures, on your machine, what that gained over snnTorch's step loop.
#
# You need `pip install "snnipu[tutorials]"`. Some environment variables change what is run:
#
# | variable | meaning | default |
# | --- | --- | --- |
# | `SNNIPU_DATA` | folder that holds `mnist/MNIST/raw` | MNIST is looked for in `./data/MNIST/raw` |
# | `SNNIPU_TUTORIAL_SAMPLES` | train and test on that many images at most | all |
# | `SNNIPU_TUTORIAL_EPOCHS` | passes over the training images | 5 |
# | `SNNIPU_TUTORIAL_HIDDEN` | hidden neurons | 1000 |

# %%
# %matplotlib inline
import os
import statistics
import time
from pathlib import Path

import snntorch
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snnipu as snn
from snnipu import datasets, plotting, poptorch, training

samples = int(os.environ.get("SNNIPU_TUTORIAL_SAMPLES", "0")) or None
epochs = int(os.environ.get("SNNIPU_TUTORIAL_EPOCHS", "5"))
num_hidden = int(os.environ.get("SNNIPU_TUTORIAL_HIDDEN", "1000"))

torch.manual_seed(0)
num_steps = 25
beta = 0.9
batch_size = 128

# %% [markdown]
# ## The data
#
# MNIST, read by torchvision. If it is not there yet, `datasets.mnist("data", download=True)` fetches it; without it,
# this notebook goes on with scikit-learn's digits (8 x 8 pixels), which need no download.

# %%
folder = Path(os.environ["SNNIPU_DATA"]) / "mnist" if "SNNIPU_DATA" in os.environ else Path("data")
try:
    data = datasets.mnist(folder)
except (FileNotFoundError, ImportError) as error:
    print(f"{error}\nGoing on with scikit-learn's digits.")
    data = datasets.digits()

train_set = TensorDataset(data.train_images[:samples].flatten(1), data.train_labels[:samples])
test_set = TensorDataset(data.test_images[:samples].flatten(1), data.test_labels[:samples])
num_inputs, num_outputs = data.num_features, data.num_classes
print(f"{data.name}: {len(train_set)} training and {len(test_set)} test images of {num_inputs} pixels")

# %% [markdown]
# ## A leaky integrate-and-fire neuron
#
# The neuron adds up its input current $X$ on its membrane $U$, which leaks away by the factor $\beta$ per step. When
# the membrane is above the threshold $\theta$, the neuron spikes, and one step later the threshold is taken off again,
# the *reset*:
#
# $$U[t] = \beta\,U[t-1] + X[t] - S[t-1]\,\theta, \qquad S[t] = H(U[t] - \theta)$$
#
# The Heaviside step $H$ has no useful derivative, so the backward pass puts a smooth one in its place, a *surrogate
# gradient*; snnTorch's default is the derivative of an arctangent. A constant current of 0.3 into one neuron:

# %%
lif = snn.Leaky(beta=beta)
spk, mem = lif.sequence(torch.full((num_steps, 1, 1), 0.3))
plotting.membranes(mem[:, 0], spk[:, 0], names=["one neuron"], title="a constant input current of 0.3")

# %% [markdown]
# ## The snnTorch way: a loop over time
#
# Two linear layers, each followed by a layer of neurons, and one pass over all of them per time step. The digit is the
# same in each step.


# %%
class StepLoop(nn.Module):
    """The network as snnTorch's tutorials write it; ``library`` is snntorch or snnipu."""

    def __init__(self, library):
        super().__init__()
        self.fc1 = nn.Linear(num_inputs, num_hidden)
        self.lif1 = library.Leaky(beta=beta)
        self.fc2 = nn.Linear(num_hidden, num_outputs)
        self.lif2 = library.Leaky(beta=beta)

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        spk2_rec, mem2_rec = [], []
        for _ in range(num_steps):
            cur1 = self.fc1(x)
            spk1, mem1 = self.lif1(cur1, mem1)
            cur2 = self.fc2(spk1)
            spk2, mem2 = self.lif2(cur2, mem2)
            spk2_rec.append(spk2)
            mem2_rec.append(mem2)
        return torch.stack(spk2_rec), torch.stack(mem2_rec)


# %% [markdown]
# ## One import, and all steps at once
#
# `import snnipu as snn` in place of `import snntorch as snn` is enough to run that very class on fused neurons. But a
# loop in Python still visits every step. `snn.MultiStep` is `nn.Sequential` over time: a layer gets all its time steps
# in one call. The first linear layer sees the same digit in each step, so it is computed once instead of 25 times.
#
# From the same weights, both give the same spikes:

# %%
loop = StepLoop(snntorch)
net = snn.MultiStep(loop.fc1, snn.Leaky(beta=beta), loop.fc2, snn.Leaky(beta=beta))

x = train_set[:batch_size][0]
with torch.no_grad():
    loop_spk, loop_mem = loop(x)
    net_spk, net_mem = net(x, num_steps=num_steps)
print("output spikes [steps, batch, classes]:", tuple(net_spk.shape))
print(f"equal spikes: {100 * (loop_spk == net_spk).float().mean():.3f} %")

# %% [markdown]
# ## Training through PopTorch
#
# PopTorch is PyTorch on Graphcore IPUs. It compiles model, loss and optimizer into one program, so the loss is part of
# `forward`, marked by `poptorch.identity_loss`. `from snnipu import poptorch` gives the real PopTorch where the Poplar
# SDK is installed, and elsewhere a runtime with the same interface that runs on this machine.
#
# A class's score is the number of spikes of its output neuron; the loss is their cross entropy (`ce_count_loss`,
# snnTorch's own: every name that snnipu does not accelerate is snnTorch's). The model returns scores
# `[batch, classes]`, not spikes `[steps, batch, classes]`: PopTorch joins the results of several batches along the
# first axis, which should be the batch.


# %%
class Classifier(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.loss_fn = snn.functional.ce_count_loss()

    def forward(self, images, labels=None):
        spk, _ = self.net(images, num_steps=num_steps)
        scores = spk.sum(0)
        if labels is None:
            return scores
        return scores, poptorch.identity_loss(self.loss_fn(spk, labels), reduction="mean")


# %% [markdown]
# The options say how the program runs: `deviceIterations(2)` makes one call run two batches, each with its own
# optimizer step, without going back to Python in between. The loader therefore hands out 2 x 128 images a call. An IPU
# program has fixed shapes: what does not fill a call is left out (with shuffling, other images in each epoch).

# %%
options = poptorch.Options()
options.deviceIterations(2)
options.outputMode(poptorch.OutputMode.All)
options.randomSeed(0)

loader = poptorch.DataLoader(options, train_set, batch_size=batch_size, shuffle=True)

model = Classifier(net)
optimizer = poptorch.optim.Adam(model.parameters(), lr=1e-3)
training_model = poptorch.trainingModel(model, options=options, optimizer=optimizer)

history = []
for epoch in range(epochs):
    started, losses, correct, seen = time.perf_counter(), [], 0, 0
    for images, labels in loader:
        scores, loss = training_model(images, labels)
        losses.append(loss.mean().item())
        correct += (scores.argmax(1) == labels).sum().item()
        seen += len(labels)
    seconds = time.perf_counter() - started
    history.append((statistics.mean(losses), correct / seen))
    print(f"epoch {epoch + 1}/{epochs}: loss {history[-1][0]:.3f}, training accuracy {100 * correct / seen:.1f} %")
print(f"last epoch: {seen / seconds:,.0f} images/s")
training_model.detachFromDevice()

# %% [markdown]
# ## Test accuracy
#
# `poptorch.inferenceModel` wraps the same module; without labels it returns the scores alone.

# %%
inference_options = poptorch.Options()
inference_options.deviceIterations(5)
test_loader = poptorch.DataLoader(inference_options, test_set, batch_size=10)
model.eval()
inference_model = poptorch.inferenceModel(model, options=inference_options)

correct = seen = 0
for images, labels in test_loader:
    correct += (inference_model(images).argmax(1) == labels).sum().item()
    seen += len(labels)
inference_model.detachFromDevice()
test_accuracy = correct / seen
print(f"test accuracy: {100 * test_accuracy:.2f} % of {seen} images")

# %% [markdown]
# ## What the network does
#
# Three test digits, the spikes that they cause among the hidden neurons, and those of the ten output neurons. Few
# hidden neurons spike in a step, and only those need to be told about: the ground that event-driven hardware stands on.

# %% tags=["gallery"]
chosen = [int((data.test_labels == label).nonzero()[0]) for label in (2, 5, 7)]
digits, digit_labels = data.test_images[chosen], data.test_labels[chosen]
(hidden_spk, hidden_mem), (output_spk, output_mem) = training.layer_activity(model.net, digits.flatten(1), num_steps)
plotting.raster(digits, digit_labels, hidden_spk, output_spk)

# %% [markdown]
# The membranes of the output neurons for the first digit: they integrate, cross the threshold, spike, and are reset in
# the next step.

# %%
plotting.membranes(
    output_mem[:, 0], output_spk[:, 0], names=[f"class {c}" for c in range(num_outputs)], title="output membranes"
)

# %% [markdown]
# ## How much faster?
#
# One training step (forward, backward, Adam) of the same network on the same batch: snnTorch's loop, the same loop with
# the one import changed, and `MultiStep`. They take turns, so that whatever else this machine does hits all alike; the
# medians are compared.


# %%
def make_step(network, forward):
    adam = torch.optim.Adam(network.parameters(), lr=1e-3)
    loss_fn = snn.functional.ce_count_loss()

    def step(x, labels):
        adam.zero_grad()
        loss_fn(forward(x), labels).backward()
        adam.step()

    return step


snntorch_loop, snnipu_loop = StepLoop(snntorch), StepLoop(snn)
multi_step = snn.MultiStep(
    nn.Linear(num_inputs, num_hidden), snn.Leaky(beta=beta), nn.Linear(num_hidden, num_outputs), snn.Leaky(beta=beta)
)
contenders = {
    "snnTorch, step loop": make_step(snntorch_loop, lambda x: snntorch_loop(x)[0]),
    "snnipu, step loop": make_step(snnipu_loop, lambda x: snnipu_loop(x)[0]),
    "snnipu, MultiStep": make_step(multi_step, lambda x: multi_step(x, num_steps=num_steps)[0]),
}

x, labels = train_set[:batch_size]
times = {name: [] for name in contenders}
for repeat in range(12):
    for name, step in contenders.items():
        started = time.perf_counter()
        step(x, labels)
        if repeat >= 2:  # the first two warm up
            times[name].append(time.perf_counter() - started)

medians = {name: statistics.median(values) for name, values in times.items()}
slowest = medians["snnTorch, step loop"]
for name, median in medians.items():
    print(f"{name:20s} {1000 * median:7.2f} ms a step, {slowest / median:5.1f} x snnTorch's speed")

# %% [markdown]
# ## On a real IPU
#
# This version of snnipu has no PopART operators yet: under Graphcore's own PopTorch `Leaky` raises an error, because
# the gradient of the spikes would be lost without a word. The training loop itself is PopTorch's, and what it asks
# for on hardware is known:
#
# * The first call of `training_model` compiles the program, which takes minutes;
#   `options.enableExecutableCaching("cache")` keeps it for the next time.
# * Larger `deviceIterations` keep the IPU busy between two visits to Python.
#   `options.replicationFactor(n)` trains on `n` IPUs, each with its own batch, and
#   `options.Training.gradientAccumulation(k)` sums gradients over `k` batches before a step. The loader's batches grow
#   by these factors, nothing else changes.
# * Control flow in `forward` is traced once. `MultiStep` has none over time: the steps are inside the operator.
