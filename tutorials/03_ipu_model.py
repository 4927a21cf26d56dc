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
# # The IPU without an IPU: an operator from vertex to profile
#
# Graphcore's IPU has 1472 processors, *tiles*, each with its own memory of 624 KiB and nothing else. A program says
# which tile holds which number, which tile runs which code, and what is sent between them. snnipu brings a model of
# that machine: the same C++ that the Poplar SDK compiles for an IPU runs here, tile by tile, and is counted. In this
# tutorial you
#
# 1. run the smallest Poplar program there is, and see what is refused when it is wrong,
# 2. follow `Leaky` from its vertex to an operator that PopTorch calls,
# 3. train a network through that operator, in PopTorch's training loop, and compare with the host's kernels,
# 4. read what the model counted: memory of tiles, cycles, exchange,
# 5. plan an event-driven network on a whole Mk2, and predict what limits its speed.
#
# **Every number of cycles or bytes here is a model's. None is measured on an IPU.**
#
# You need `pip install ".[tutorials]"` in a clone; for the first part a C++ compiler as well. Some environment
# variables change what is run:
#
# | variable | meaning | default |
# | --- | --- | --- |
# | `SNNIPU_TUTORIAL_SAMPLES` | train on that many images at most | all |
# | `SNNIPU_TUTORIAL_EPOCHS` | passes over the training images | 5 |
# | `SNNIPU_TUTORIAL_HIDDEN` | hidden neurons | 100 |

# %%
# %matplotlib inline
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import snnipu as snn
from snnipu import datasets, ipu, plotting, poptorch
from snnipu.ipu.model import IpuModelError, library_path

samples = int(os.environ.get("SNNIPU_TUTORIAL_SAMPLES", "0")) or None
epochs = int(os.environ.get("SNNIPU_TUTORIAL_EPOCHS", "5"))
num_hidden = int(os.environ.get("SNNIPU_TUTORIAL_HIDDEN", "100"))

os.environ.pop("SNNIPU_IPU_MODEL_TARGET", None)  # one whole Mk2
scratch = Path(tempfile.mkdtemp())
folders = (Path.cwd(), *Path.cwd().parents, Path(snn.__file__).resolve().parent.parent)
clone = next((folder for folder in folders if (folder / "csrc" / "ipu_model").is_dir()), None)

# %% [markdown]
# ## A vertex
#
# What a tile computes is written in a *vertex* (or *codelet*): a class with fields and a method `compute`. Fields of
# type `Input` and `Output` will be connected to tensors, wherever these are. Poplar's classic first one adds two
# numbers:

# %%
if clone is not None:
    examples = clone / "csrc" / "ipu_model" / "examples"
    print((examples / "adder_codelets.cpp").read_text())

# %% [markdown]
# A program makes variables, puts each on a tile, makes vertices, puts these on tiles too, and connects the fields.
# This one adds two vectors of four, an element to a tile. `y` is on tile 0: the other three have to fetch their
# element from there. These are Poplar's own names; with the SDK in place of the model it would be compiled as it is,
# up to the report.

# %%
if clone is not None:
    program = (examples / "adder.cpp").read_text()
    print(program.split("int main() {")[1].split("  poplar::Engine")[0])

# %% [markdown]
# Compiled with the model's headers and library, it runs here. Beside it, two versions with a mistake: one forgets
# where `y` is, in the other all four vertices write the same element.


# %%
def start_compiler(name, code):
    """Starts to compile a version of the program; None where there is no clone or no compiler."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if clone is None or not compiler or not library_path().is_file():
        return None
    (scratch / f"{name}.cpp").write_text(code)
    includes = [f"-I{clone / 'csrc'}", f"-I{clone / 'csrc' / 'ipu_model' / 'poplar' / 'include'}"]
    command = [
        *compiler.split(),
        "-std=c++17",
        *includes,
        str(scratch / f"{name}.cpp"),
        str(examples / "adder_table.cpp"),
    ]
    command += [str(library_path()), f"-Wl,-rpath,{library_path().parent}", "-pthread", "-o", str(scratch / name)]
    return subprocess.Popen(command)


versions = {}
if clone is not None:
    versions = {
        "sound": program,
        "unmapped": program.replace("graph.setTileMapping(y[i], 0);", ""),
        "racing": program.replace('graph.connect(vertex["sum"], sum[i]);', 'graph.connect(vertex["sum"], sum[0]);'),
    }
    assert len(set(versions.values())) == 3
compilers = {name: start_compiler(name, code) for name, code in versions.items()}
for name, compiling in compilers.items():
    if compiling is None or compiling.wait() != 0:
        print(f"{name}: not compiled; it needs a clone, a C++ compiler and the IPU model's library")
        continue
    done = subprocess.run([str(scratch / name)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = [line.split("what():")[-1].strip() for line in done.stdout.splitlines() if "terminate called" not in line]
    print(f"--- {name}", *said, sep="\n")

# %% [markdown]
# In the sound program most cycles are synchronisation, and a worker thread's start and end: a vertex is worth its
# while when it has many elements to work on. The other two are refused before anything runs, as the SDK would refuse
# them, and the message names variable and vertices. [IPU model](../docs/reference/ipu-model.md) has the list of what
# is refused.
#
# ## From vertex to operator
#
# A neuron of this package goes the same way. For the spike function with its surrogate gradient it is short enough to
# be shown whole. The vertex, for the elements that a tile has, shared out among six worker threads:


# %%
def excerpt(path, begin, end):
    """The part of a source file from a line to another."""
    if clone is None:
        return f"(see {path} in a clone)"
    text = (clone / path).read_text()
    return text[text.index(begin) : text.index(end, text.index(begin))].rstrip()


print(
    excerpt(
        "csrc/vertices/surrogate_spike.cpp",
        "template <typename S> class SurrogateSpike ",
        "template <typename S, SurrogateKind",
    )
)

# %% [markdown]
# `heaviside`, the maths, stands in `csrc/neuron` and is what the CPU kernels call, too. The *graph builder* spreads
# the elements over tiles, and adds a vertex to each:

# %%
print(excerpt("csrc/graph/surrogate_spike.cpp", "poplar::Tensor surrogateSpike(", "poplar::Tensor surrogateSpikeGrad("))

# %% [markdown]
# And `custom_ops/surrogate_spike.cpp` registers it with PopART, the framework below PopTorch, as operator
# `SurrogateSpike` of domain `ai.snnipu`, with another operator for its gradient. `NeuronSequence`, which is any neuron
# over all time steps, is made of the same three parts. In Python, `snn.Leaky` calls
# `poptorch.custom_op("NeuronSequence")` when PopTorch traces it.
#
# ## Training through the operator
#
# Nothing of this shows in a script. PopTorch has a switch, `Options.useIpuModel(True)`, that runs a program on a
# model of an IPU. Here, with snnipu's host runtime of PopTorch, it sends the operators of `ai.snnipu` through the
# model, forwards and backwards; everything else (matrix products, loss, optimiser) runs on the host. The network of
# the first tutorial, in small, on scikit-learn's digits, twice from the same weights:

# %%
num_steps, batch_size = 25, 64
data = datasets.digits()
train_set = TensorDataset(data.train_images[:samples].flatten(1), data.train_labels[:samples])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = snn.MultiStep(
            nn.Linear(data.num_features, num_hidden),
            snn.Leaky(beta=0.9),
            nn.Linear(num_hidden, data.num_classes),
            snn.Leaky(beta=0.9),
        )
        self.loss_fn = snn.functional.ce_count_loss()

    def forward(self, images, labels):
        spk, _ = self.net(images, num_steps=num_steps)
        return spk.sum(0), poptorch.identity_loss(self.loss_fn(spk, labels), reduction="mean")


def train(on_ipu_model):
    options = poptorch.Options()
    options.randomSeed(0)
    options.useIpuModel(on_ipu_model)
    model = Classifier()
    adam = poptorch.optim.Adam(model.parameters(), lr=5e-3)
    training_model = poptorch.trainingModel(model, options=options, optimizer=adam)
    loader = poptorch.DataLoader(options, train_set, batch_size=batch_size, shuffle=True)
    losses, accuracies, started = [], [], time.perf_counter()
    for _ in range(epochs):
        correct = seen = 0
        for images, labels in loader:
            scores, loss = training_model(images, labels)
            losses.append(float(loss))
            correct += int((scores.argmax(1) == labels).sum())
            seen += len(labels)
        accuracies.append(100 * correct / seen)
    where = "IPU model" if on_ipu_model else "host"
    seconds = time.perf_counter() - started
    print(f"{where:9}: {len(losses)} batches in {seconds:.1f} s, training accuracy {accuracies[-1]:.1f} %")
    return training_model, losses


_, host_losses = train(on_ipu_model=False)
training_model, model_losses = train(on_ipu_model=True)
difference = max(abs(a - b) for a, b in zip(host_losses, model_losses))
print(f"largest difference of the losses: {difference:.2g}")


# %%
def draw_losses():
    figure = plotting.new_figure(8, 3.2)
    axis = figure.subplots()
    batches = range(1, len(host_losses) + 1)
    axis.plot(batches, host_losses, color=plotting.BLUE, linewidth=3.5, alpha=0.35, label="host kernels")
    axis.plot(batches, model_losses, color=plotting.RED, linewidth=1.1, label="operators on the IPU model")
    axis.set(xlabel="batch", ylabel="loss", ylim=(0, None), xlim=(1, len(host_losses)))
    axis.set_title("training, one operator of Leaky for each layer")
    axis.legend(frameon=False)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


draw_losses()

# %% [markdown]
# One line lies on the other. From the same weights and inputs the spikes are equal, and the gradients are to
# rounding; in a long training the rounding may decide a spike somewhere, and the lines then part a little.
# `poptorch.isRunningOnIpu()` was true while `forward` ran, so the path through the code was a real IPU's.
#
# ## What the model counts
#
# After a call, `ipuModelReport()` has for each operator what was counted. Per batch:

# %%
reports = {}
for entry in training_model.ipuModelReport():
    neurons = entry["inputs"][1][-1]
    reports[f"{entry['operator']}, {neurons} neurons"] = entry["report"]

batches = len(model_losses)
print(f"{'':36} {'cycles':>8} {'µs':>6} {'compute':>8} {'exchange':>9} {'sync':>6} {'fullest tile':>14}")
for name, report in reports.items():
    cycles = report["cycles"] / batches
    shares = [report[f"{kind}_cycles"] / report["cycles"] for kind in ("compute", "exchange", "sync")]
    print(
        f"{name:36} {cycles:8,.0f} {1e6 * cycles / report['clock_hz']:6.1f} {shares[0]:8.0%} {shares[1]:9.0%} "
        f"{shares[2]:6.0%} {report['tile_memory_max_bytes'] / 1024:10.1f} KiB"
    )

# %% [markdown]
# A *step* of a program is a set of vertices that run at once, or a copy. All tiles wait for the slowest; then they
# exchange what the next step reads. Left: the steps that take longest. Right: what lies in the memory of the tiles.

# %% tags=["gallery"]
hidden = {name: report for name, report in reports.items() if f"{num_hidden} neurons" in name}
PARTS = {"compute": plotting.BLUE, "exchange": "#d08a3c", "sync": plotting.MUTED}
MEMORY = {
    "variables": ("numbers", plotting.BLUE),
    "vertex_state": ("fields of vertices", plotting.GREEN),
    "exchange_buffers": ("fetched from others", "#d08a3c"),
    "code": ("code (estimate)", plotting.MUTED),
}


def step_name(step):
    words = step["name"].split("/")[2:] or [step["kind"]]
    return " ".join(words) + (f", {step['executions'] // batches} ×" if step["executions"] > batches else "")


def draw_reports():
    figure = plotting.new_figure(11, 6)
    rows = figure.subplots(2, 2, gridspec_kw={"width_ratios": [1.15, 1]})
    figure.suptitle(f"Leaky, T={num_steps} × B={batch_size} × N={num_hidden}, on a modelled Mk2")
    for (bars, tiles), (name, report) in zip(rows, hidden.items()):
        direction = "backwards" if "gradient" in name else "forwards"
        steps = sorted(report["steps"], key=lambda step: -sum(step[f"{part}_cycles"] for part in PARTS))[:6]
        left = torch.zeros(len(steps))
        for part, color in PARTS.items():
            cycles = torch.tensor([step[f"{part}_cycles"] * step["executions"] / batches for step in steps])
            bars.barh([step_name(step) for step in steps], cycles, left=left, color=color, height=0.7, label=part)
            left = left + cycles
        bars.invert_yaxis()
        bars.set(xlabel="cycles a batch", title=f"{direction}: the longest steps")
        bars.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        below = torch.zeros(report["tiles_per_ipu"])
        for key, (label, color) in MEMORY.items():
            above = below + torch.tensor(report[f"tile_{key}_bytes"]) / 1024
            tiles.fill_between(range(len(above)), below, above, step="mid", color=color, linewidth=0, label=label)
            below = above
        limit = report["tile_memory_bytes"] / 1024
        tiles.set(xlabel="tile", ylabel="KiB", xlim=(0, len(below)), ylim=(0, 1.15 * float(below.max())))
        tiles.set_title(f"{direction}: memory, of {limit:.0f} KiB a tile")
        for axis in (bars, tiles):
            axis.spines[["top", "right"]].set_visible(False)
    for axis, place in zip(rows[1], ("lower right", "upper right")):
        axis.legend(fontsize=8, loc=place)
    return figure


draw_reports()

# %% [markdown]
# One step does most of the work in each direction: all 25 time steps are in it, as every element stays on its tile
# with its membrane. The gradients of `beta` and `threshold`, which all neurons share, are summed over tiles in
# several short steps. Memory is no limit for so small a layer; most of it is code.
#
# ## What is refused
#
# A model that only ran would not be worth much: what costs weeks on real hardware is what hardware refuses, or what
# it gets wrong without a word. Two examples. A layer that does not fit: half a million neurons over 25 steps, on an
# IPU cut down to 32 tiles. And a surrogate gradient in Python, which no IPU can run; plain PopTorch would compile the
# forward pass and drop the gradient of the spikes silently.


# %%
class Large(nn.Module):
    def __init__(self, **more):
        super().__init__()
        self.lif = snn.Leaky(beta=0.9, **more)

    def forward(self, x):
        return self.lif.spikes(x, num_steps=num_steps)


def try_it(module, x):
    options = poptorch.Options()
    options.useIpuModel(True)
    try:
        poptorch.inferenceModel(module, options)(x)
    except (IpuModelError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}\n")
    else:
        raise AssertionError("this should have been refused")


os.environ["SNNIPU_IPU_MODEL_TARGET"] = "mk2:32"
try_it(Large(), torch.rand(64, 8000))
try_it(Large(spike_grad=lambda u: (u > 0).float()), torch.rand(64, 8))
del os.environ["SNNIPU_IPU_MODEL_TARGET"]

# %% [markdown]
# ## An event-driven network on its tiles
#
# `SparseNetwork` is one operator on an IPU: weights stay on the tiles of their neurons, and what travels is the ids
# of the neurons that spiked. Which tile gets what is a *plan*. One of the networks of the published benchmark of
# sparse training (Gruen et al., [arXiv 2311.04386](https://arxiv.org/abs/2311.04386)), two hidden layers of 1466
# neurons, on one Mk2:

# %%
published = ipu.NetworkSpec.from_sizes([2312, 1466, 1466, 10], activity=0.02, input_slots=32)
plan = ipu.plan(published, target="mk2")
print(plan)
print("neuron 17 of layer 1 is on tile", plan.tile_of(1, 17))


# %%
def draw_plan(plan):
    plan.draw(scratch / "plan.png")
    try:
        from IPython.display import Image
    except ImportError:  # as a script
        return None
    return Image(str(scratch / "plan.png"), width=900)


draw_plan(plan)

# %% [markdown]
# Neurons of a layer are spread the wider, the more input spikes they have to gather, so that no tile is much busier
# than the others. The tiles in lighter colours make ids from the bits that say who fired.
#
# How long does such a plan take? There are two answers. The *performance model* has a formula for each phase of a
# step, and answers in a fraction of a second for any size. The *IPU model* builds the graph, runs it, and counts it
# vertex by vertex. Here they are beside one another, for a network that fits this tutorial's time. (`activity` is
# what fills all slots: the IPU model takes all of them to be in use.)


# %%
class Sparse(nn.Module):
    def __init__(self, sizes, slots):
        super().__init__()
        torch.manual_seed(0)
        self.net = snn.SparseNetwork(sizes, beta=0.9, max_spikes=slots, grad_threshold=0.5)
        for layer in self.net.layers:
            layer.weight.data *= 4

    def forward(self, x, labels):  # [batch, steps, neurons]: PopTorch splits the first dimension into batches
        counts = self.net(x.transpose(0, 1)).spike_count()
        return counts, poptorch.identity_loss(nn.functional.cross_entropy(counts, labels), reduction="mean")


sizes, slots, steps, batch = [700, 256, 256, 20], [32, 16, 16, 20], 25, 16
sparse = Sparse(sizes, slots)
activity = [slot / size for slot, size in zip(slots, sizes)]
spec = ipu.NetworkSpec.from_module(sparse.net, activity, batch_size=batch, steps=steps)
small_plan = ipu.plan(spec, target="mk2")
sparse.net.ipu_plan = small_plan

options = poptorch.Options()
options.useIpuModel(True)
sgd = poptorch.optim.SGD(sparse.parameters(), lr=0.01)
sparse_model = poptorch.trainingModel(sparse, options=options, optimizer=sgd)
spikes = (torch.rand(batch, steps, sizes[0]) < 0.03).float()
sparse_model(spikes, torch.randint(sizes[-1], (batch,)))

# Of the operator, the steps that run once in each time step, under the names of the performance model's phases.
NAMES = {
    "lif": "integrate and fire",
    "merge": "words of bits",
    "select": "spike selection",
    "lifBackward": "neuron gradients",
    "weights": "weight and spike gradients",
    "sumAll": "sum of spike gradients",
}
counted = {}
for entry in sparse_model.ipuModelReport():
    if entry["operator"].startswith("SparseNetwork"):
        for step in entry["report"]["steps"]:
            name = NAMES.get(step["name"].split("/")[-1])
            if name and step["executions"] == steps:
                counted[name] = step["compute_cycles"]
predicted = {phase.name: phase.cycles for phase in ipu.estimate(small_plan).phases if phase.kind == "compute"}
for name in counted:
    print(f"{name:28} counted {counted[name]:8,.0f}, predicted {predicted[name]:8,.0f} cycles a time step")


# %%
def draw_phases():
    figure = plotting.new_figure(9, 3.6)
    axis = figure.subplots()
    places = torch.arange(len(counted))
    for offset, (found, label, color) in enumerate(
        ((counted, "counted: IPU model", plotting.BLUE), (predicted, "predicted: performance model", plotting.MUTED))
    ):
        axis.barh(places + 0.38 * offset - 0.19, [found[name] for name in counted], 0.36, color=color, label=label)
    axis.set_yticks(places, list(counted))
    axis.invert_yaxis()
    axis.set(xlabel="cycles a time step")
    axis.set_title(f"{'-'.join(map(str, sizes))}, batch {batch}, all slots in use, on a modelled Mk2")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


draw_phases()

# %% [markdown]
# Where the neurons integrate, more is counted than predicted: the operator multiplies each weight by the value of its
# spike, and the formula takes all values for 1, as those of spikes are.
#
# ## Throughput against activity
#
# Now the published network again, by the performance model: how many samples a second it would train, as fewer or
# more of its neurons spike, on one Mk2 and on one Bow, the same chip at a higher clock.

# %%
activities = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
machines = {
    "Mk2": ("mk2", plotting.BLUE),
    "Bow": ("bow", plotting.RED),
}
rates, bounds = {}, {}
for name, (target, _) in machines.items():
    for activity in activities:
        network = ipu.NetworkSpec.from_sizes([2312, 1466, 1466, 10], activity=activity, input_slots=32)
        performance = ipu.estimate(ipu.plan(network, target=target))
        rates[name, activity] = performance.samples_per_s
        bounds[name, activity] = performance.bound
    row = ", ".join(f"{100 * activity:g} %: {rates[name, activity]:,.0f}" for activity in activities)
    print(f"{name}, samples a second at {row}")
print("bound by:", ", ".join(sorted(set(bounds.values()))))


def draw_rates():
    figure = plotting.new_figure(8, 3.8)
    axis = figure.subplots()
    percent = [100 * activity for activity in activities]
    for name, (_, color) in machines.items():
        values = [rates[name, activity] for activity in activities]
        axis.plot(percent, values, "o-", color=color, markersize=4)
        axis.annotate(name, (percent[-1], values[-1]), (7, 0), textcoords="offset points", color=color, va="center")
    axis.set(xscale="log", yscale="log", xlabel="activity of the hidden layers (% of the neurons spike in a step)")
    axis.set(ylabel="samples a second", xlim=(0.45, 30))
    axis.set_xticks(percent, [f"{value:g}" for value in percent])
    ticks = [tick for tick in (100, 200, 500, 1000, 2000, 5000, 10000, 20000) if tick < 2 * max(rates.values())]
    ticks = [tick for tick in ticks if tick > min(rates.values()) / 2]
    axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.set_title("2312-1466-1466-10, T=100, B=48, training: predicted, not measured")
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


draw_rates()

# %% [markdown]
# At high activity, twice the spikes take twice the time. At low activity the spikes of the input, always the same
# number, and what has to be done for each neuron are what is left. More IPUs hardly make this network faster: one
# spreads it to two or four neurons a tile already, and two are the least. They are for larger networks.
#
# `python -m snnipu profile --model 2312,1466,1466,10 --activity 0.02 --html report.html` writes all of this as a
# page, with maps of the tiles.
#
# ## What the model does not tell
#
# * **How long a step really takes.** Cycles are formulas over the fields of a vertex, in the manner of the SDK's own
#   estimates; exchange is bytes over bandwidth. Nobody has compared them with an IPU. Trust them for what limits, and
#   for which of two ways is better, before you trust them for how fast.
# * **Memory to the byte.** Code is an estimate, and the SDK can let variables share memory that are not needed at
#   once.
# * **Whatever is not an operator of `ai.snnipu`**: matrix products, losses, optimisers, and transfers from and to the
#   host.
# * **Whether the SDK's compiler takes the code.** The vertices are compiled by GCC and Clang, and the operators
#   against PopART's public headers; no `popc` has seen them yet.
#
# ## What to read next
#
# * [Run on an IPU](../docs/how-to/run-on-an-ipu.md): from the SDK to `python -m snnipu build-ipu`, step by step.
# * [Predict memory and speed on IPUs](../docs/how-to/profile.md): the performance model, its assumptions, and the
#   networks of the published benchmark beside the published claims.
# * [IPU model](../docs/reference/ipu-model.md): the subset of Poplar, what is refused, what is counted.
