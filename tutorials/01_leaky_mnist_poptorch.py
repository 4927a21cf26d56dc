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
# The network is that of snnTorch's tutorials: 784-1000-10 leaky integrate-and-fire neurons. Its input is one digit,
# shown for 25 time steps. In this tutorial you
#
# 1. write the network like snnTorch, as a Python loop over time,
# 2. change one import, and then let `snn.MultiStep` run all time steps at once,
# 3. train it by PopTorch's training loop, whose lines run on this machine and on Graphcore IPUs,
# 4. look at its spikes and membranes,
# 5. measure, on your machine, the gain over snnTorch's loop.
#
# You need `pip install ".[tutorials]"` in a clone of the repository. These environment variables change the tutorial:
#
# | variable | meaning | default |
# | --- | --- | --- |
# | `SNNIPU_DATA` | folder that contains `mnist/MNIST/raw` | `./data/MNIST/raw` contains MNIST |
# | `SNNIPU_TUTORIAL_SAMPLES` | maximum number of images for training and testing | all |
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
# torchvision reads MNIST. If it is missing, download it by `datasets.mnist("data", download=True)`. Otherwise this
# notebook uses scikit-learn's digits (8 x 8 pixels), which need no download.

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
# The neuron adds its input current $X$ to its membrane $U$. In each step the membrane decays by the factor $\beta$.
# When the membrane is above the threshold $\theta$, the neuron spikes. One step later the threshold is subtracted from
# the membrane, which is the *reset*:
#
# $$U[t] = \beta\,U[t-1] + X[t] - S[t-1]\,\theta, \qquad S[t] = H(U[t] - \theta)$$
#
# The Heaviside step $H$ has no useful derivative. The backward pass replaces it by a smooth one, a *surrogate
# gradient*. snnTorch's default is the derivative of an arctangent. This cell feeds a constant current of 0.3 into one
# neuron:

# %%
lif = snn.Leaky(beta=beta)
spk, mem = lif.sequence(torch.full((num_steps, 1, 1), 0.3))
plotting.membranes(mem[:, 0], spk[:, 0], names=["one neuron"], title="a constant input current of 0.3")

# %% [markdown]
# ## The snnTorch way: a loop over time
#
# The network has two linear layers, each followed by a layer of neurons. Each time step is one pass through all of
# them. The digit is the same in each step.


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
# With `import snnipu as snn` in place of `import snntorch as snn`, the same class runs on fused neurons. But a Python
# loop still runs every step. `snn.MultiStep` is `nn.Sequential` over time: one call runs all time steps of a layer. The
# input of the first linear layer is the same digit in each step, so it is computed once instead of 25 times.
#
# With the same weights, both give the same spikes:

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
# PopTorch is PyTorch on Graphcore IPUs. It compiles model, loss and optimizer into one program. The loss is therefore
# part of `forward`, and `poptorch.identity_loss` marks it. `from snnipu import poptorch` imports the real PopTorch if
# it is installed. Otherwise it imports a runtime with the same interface, which runs on this machine.
#
# The score of a class is the number of spikes of its output neuron. The loss is the cross entropy of the scores
# (`ce_count_loss`, which is snnTorch's own function). The model returns scores `[batch, classes]` and not spikes
# `[steps, batch, classes]`, because PopTorch joins the results of several batches along the first axis, which should be
# the batch.


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
# The options configure the program. With `deviceIterations(2)` one call runs two batches, each with its own optimizer
# step, without returning to Python in between. The loader therefore returns 2 x 128 images for a call. An IPU program
# has fixed shapes, so images that do not fill a call are dropped. With shuffling these are other images in each epoch.

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
# `poptorch.inferenceModel` wraps the same module. Without labels it returns only the scores.

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
# The picture shows three test digits, the spikes of the hidden neurons, and the spikes of the ten output neurons. Few
# hidden neurons spike in a step. Only these spikes have to be communicated, which event-driven hardware makes use of.

# %% tags=["gallery"]
chosen = [int((data.test_labels == label).nonzero()[0]) for label in (2, 5, 7)]
digits, digit_labels = data.test_images[chosen], data.test_labels[chosen]
(hidden_spk, hidden_mem), (output_spk, output_mem) = training.layer_activity(model.net, digits.flatten(1), num_steps)
plotting.raster(digits, digit_labels, hidden_spk, output_spk)

# %% [markdown]
# These are the membranes of the output neurons for the first digit. They integrate, cross the threshold, spike, and are
# reset in the next step.

# %%
plotting.membranes(
    output_mem[:, 0], output_spk[:, 0], names=[f"class {c}" for c in range(num_outputs)], title="output membranes"
)

# %% [markdown]
# ## How much faster?
#
# This cell times one training step (forward, backward, Adam) of the same network on the same batch: for snnTorch's
# loop, for the same loop with only the import changed, and for `MultiStep`. They run in turn, so that other work of
# this machine affects all of them equally. The medians are compared.


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
# Under Graphcore's PopTorch, `Leaky` needs snnipu's PopART operators, which `python -m snnipu build-ipu` builds ([run
# on an IPU](../docs/how-to/run-on-an-ipu.md)). Without them it raises an error, because the gradient of the spikes
# would be lost silently. The operators have not run on an IPU. The training loop is PopTorch's, with these rules on
# hardware:
#
# * The first call of `training_model` compiles the program, which takes minutes.
#   `options.enableExecutableCaching("cache")` keeps the program for later runs.
# * Larger `deviceIterations` keep the IPU busy between two calls from Python. `options.replicationFactor(n)` trains on
#   `n` IPUs, each with a different batch. `options.Training.gradientAccumulation(k)` sums gradients over `k` batches
#   before a step. The loader's batches grow by these factors, and nothing else changes.
# * Control flow in `forward` is traced once. `MultiStep` has no control flow over time: the steps are inside the
#   operator.
