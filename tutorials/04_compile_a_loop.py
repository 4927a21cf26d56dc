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
# # One loop, from 1 × to its full speed
#
# snnTorch's tutorial network loops over its time steps in Python. In this tutorial you run the network in four stages:
# with snnTorch's neurons, with snnipu's neurons by changing only the import, with the unchanged loop compiled by
# `snn.compile`, and rewritten as `MultiStep`. A picture shows the time of each stage.
#
# You need `pip install ".[tutorials]"` in a clone. `SNNIPU_TUTORIAL_HIDDEN` sets the hidden neurons (default 1000).

# %%
# %matplotlib inline
import os
import time

import matplotlib.pyplot as plt
import snntorch
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import snnipu as snn
from snnipu import compiler

num_hidden = int(os.environ.get("SNNIPU_TUTORIAL_HIDDEN", "1000"))
num_steps, batch_size = 25, 128
torch.manual_seed(0)
images, labels = torch.rand(batch_size, 784), torch.randint(10, (batch_size,))

# %% [markdown]
# ## The loop
#
# This is the network of the tutorial. `library` is snnTorch or snnipu.


# %%
class Net(nn.Module):
    def __init__(self, library):
        super().__init__()
        self.fc1 = nn.Linear(784, num_hidden)
        self.lif1 = library.Leaky(beta=0.95)
        self.fc2 = nn.Linear(num_hidden, 10)
        self.lif2 = library.Leaky(beta=0.95)

    def forward(self, x):
        mem1 = self.lif1.reset_mem()
        mem2 = self.lif2.reset_mem()
        mem2_rec = []
        for _ in range(num_steps):
            cur1 = self.fc1(x)
            spk1, mem1 = self.lif1(cur1, mem1)
            cur2 = self.fc2(spk1)
            _, mem2 = self.lif2(cur2, mem2)
            mem2_rec.append(mem2)
        return torch.stack(mem2_rec)


def training_step(forward):
    mem = forward(images)
    loss = nn.functional.cross_entropy(mem.flatten(0, 1), labels.repeat(num_steps))
    loss.backward()
    return mem.detach()


# %% [markdown]
# ## Four stages
#
# All stages have the same weights. The first call of a compiled loop runs two steps in Python and compiles the others.
# Later calls run all steps compiled.

# %%
reference = Net(snntorch)
net = Net(snn)
net.load_state_dict(reference.state_dict())
compiled = snn.compile(net)
multi_step = snn.MultiStep(net.fc1, net.lif1, net.fc2, net.lif2)

stages = {
    "snnTorch": reference,
    "one import": net,
    "compiled": compiled,
    "MultiStep": lambda x: multi_step(x, num_steps=num_steps)[1],
}
training_step(compiled)
results = {name: training_step(forward) for name, forward in stages.items()}
assert torch.equal(results["compiled"], results["MultiStep"])
agreement = (results["compiled"] - results["snnTorch"]).abs().max().item()
print(f"compiled and MultiStep: the same bits; compiled and snnTorch's loop: {agreement:.1e} apart at most")

# %% [markdown]
# ## What the compiler did
#
# Both layers of neurons became one operator over 25 steps. `fc1`, whose input is the same image at every step, runs
# once for the 25 times that the loop calls it; `fc2` runs once over all steps.

# %%
report = compiler.explain(net, images)
print(report)
assert all(neuron.rolled for neuron in report.neurons)

# %% [markdown]
# ## Where the time goes
#
# PyTorch's profiler divides one training step of each stage into matrix products, neurons, and everything else, which
# is mostly many small operators. Wall time is measured without the profiler.

# %%
PRODUCTS = ("addmm", "mm", "linear")


def milliseconds(forward, rounds=5):
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        training_step(forward)
        found.append(1e3 * (time.perf_counter() - start))
    return sorted(found)[rounds // 2]


def shares(forward):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        training_step(forward)
    found = {"matrix products": 0.0, "fused neurons": 0.0, "everything else": 0.0}
    for event in profiler.key_averages():
        name = event.key.split("::")[-1]
        kind = "everything else"
        if name in PRODUCTS:
            kind = "matrix products"
        elif event.key.startswith("snnipu::"):
            kind = "fused neurons"
        found[kind] += event.self_cpu_time_total
    total = sum(found.values())
    return {kind: value / total for kind, value in found.items()}


times = {name: milliseconds(forward) for name, forward in stages.items()}
parts = {name: shares(forward) for name, forward in stages.items()}
for name, value in times.items():
    print(f"{name:11} {value:7.1f} ms  {times['snnTorch'] / value:5.1f} x")

# %% tags=["gallery"]
figure, axes = plt.subplots(figsize=(7, 3))
left = dict.fromkeys(stages, 0.0)
for kind in ("matrix products", "fused neurons", "everything else"):
    widths = [times[name] * parts[name][kind] for name in stages]
    axes.barh(list(stages), widths, left=list(left.values()), label=kind)
    left = {name: left[name] + width for name, width in zip(stages, widths)}
axes.invert_yaxis()
axes.set_xlabel("ms for a training step")
axes.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# [Compile a loop over time](../docs/how-to/compile.md) has more examples. [Loops over time](../docs/reference/loops.md)
# lists the loops that stay in Python.
