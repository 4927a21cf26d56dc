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
# # A first network, in plain PyTorch
#
# In this tutorial you train a spiking network on handwritten digits:
#
# 1. load the data,
# 2. build the network by `snn.MultiStep`,
# 3. train it, and measure its accuracy,
# 4. draw its training and its spikes,
# 5. save its weights, and load them,
# 6. run the same network as an snnTorch script, unchanged and compiled.
#
# You need `pip install ".[tutorials]"` in a clone of the repository. The tutorial takes about a minute.

# %%
# %matplotlib inline
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import snnipu as snn
from snnipu import datasets, plotting

torch.manual_seed(0)
num_steps = 25

# %% [markdown]
# ## The data
#
# `datasets.digits` loads scikit-learn's digits: 1,797 images of 8 x 8 pixels, scaled to values from 0 to 1. They are
# part of scikit-learn, so nothing is downloaded.

# %%
data = datasets.digits()
train_images, test_images = data.train_images.flatten(1), data.test_images.flatten(1)
train_set = TensorDataset(train_images, data.train_labels)
train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
print("training images:", list(train_images.shape), "test images:", list(test_images.shape))

# %% [markdown]
# ## The network
#
# Two linear layers are each followed by a layer of leaky integrate-and-fire neurons. `MultiStep` is `nn.Sequential`
# over time: one call runs all steps of each layer. With `num_steps=25` the image is the input at all 25 steps. The
# results are the spikes and the [membranes](../docs/reference/glossary.md) of the output neurons, with time first.


# %%
def new_network():
    return snn.MultiStep(
        nn.Linear(64, 128),
        snn.Leaky(beta=0.9),
        nn.Linear(128, 10),
        snn.Leaky(beta=0.9),
    )


net = new_network()
spk, mem = net(test_images, num_steps=num_steps)
print("spikes [steps, batch, classes]:", list(spk.shape))

# %% [markdown]
# ## Training
#
# The score of a class is the number of spikes of its output neuron. The loss is the cross entropy of these scores. In
# the backward pass a [surrogate](../docs/explanation/gradient.md) replaces the derivative of a spike, which is zero
# almost everywhere. The rest is an ordinary training loop of PyTorch.

# %%
loss_function = snn.functional.ce_count_loss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


@torch.no_grad()
def accuracy(images, labels):
    spk, _ = net(images, num_steps=num_steps)
    return float((spk.sum(0).argmax(1) == labels).float().mean())


history = []
for _ in tqdm(range(15), unit="epoch"):
    losses = []
    for images, labels in train_loader:
        spk, _ = net(images, num_steps=num_steps)
        loss = loss_function(spk, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    history.append(
        {
            "train_loss": sum(losses) / len(losses),
            "train_accuracy": accuracy(train_images, data.train_labels),
            "test_accuracy": accuracy(test_images, data.test_labels),
        }
    )
print(f"test accuracy: {100 * history[-1]['test_accuracy']:.1f} %")

# %% [markdown]
# ## Pictures
#
# The loss falls, and the accuracy rises:

# %%
plotting.training_curve(history)

# %% [markdown]
# With `all_layers=True` the network also returns the spikes of its hidden neurons. The raster has a mark for each
# spike. The output neuron with the most spikes, in red, is the prediction:

# %% tags=["gallery"]
with torch.no_grad():
    hidden_spk, (output_spk, _) = net(test_images[:3], num_steps, all_layers=True)
plotting.raster(data.test_images[:3], data.test_labels[:3], hidden_spk, output_spk)

# %% [markdown]
# ## Save and load
#
# The network is saved as usual in PyTorch. The file contains the weights, and a new network with the same layers loads
# them.

# %%
torch.save(net.state_dict(), "first_network.pt")

loaded = new_network()
loaded.load_state_dict(torch.load("first_network.pt", weights_only=True))
with torch.no_grad():
    spk, _ = net(test_images, num_steps=num_steps)
    loaded_spk, _ = loaded(test_images, num_steps=num_steps)
print("equal spikes:", torch.equal(spk, loaded_spk))

# %% [markdown]
# ## The same as an snnTorch script
#
# With snnTorch alone, the network is a loop over time. This cell writes such a script, `loop.py`, which does not import
# snnipu. It trains for two epochs on one thread, and prints the processor time of each.

# %%
script = """
import time

import snntorch as snn
import torch
from sklearn.datasets import load_digits
from snntorch import functional
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(64, 128), snn.Leaky(beta=0.9)
        self.fc2, self.lif2 = nn.Linear(128, 10), snn.Leaky(beta=0.9)

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        spikes = []
        for step in range(25):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spikes.append(spk2)
        return torch.stack(spikes)


torch.manual_seed(0)
torch.set_num_threads(1)  # enough for a network of this size
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
net, loss_function = Net(), functional.ce_count_loss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(2):
    start, total = time.process_time(), 0.0
    for batch in torch.randperm(len(images)).split(32):
        loss = loss_function(net(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    seconds = time.process_time() - start
    print(f"epoch {epoch + 1}: loss {total / len(images):.3f}, {seconds:.2f} s")
"""
Path("loop.py").write_text(script)


def run(*arguments):
    command = [sys.executable, *arguments]
    print("python", *arguments)
    print(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)


run("loop.py")

# %% [markdown]
# snnipu runs the same file compiled:

# %%
run("-m", "snnipu", "run", "--compile", "loop.py")

# %% [markdown]
# In this run `import snntorch` imports snnipu, and the loop becomes one graph of all steps. The first epoch includes
# the compilation. The losses of both runs differ only by rounding, whose effect grows with each step of the training.
#
# Go on with [start here](../docs/start-here.md), which shows the ways to run a network fast, or with
# [find out what is wrong](../docs/how-to/troubleshooting.md), if your own network does not learn.
