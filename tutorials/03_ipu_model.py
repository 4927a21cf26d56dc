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
# Graphcore's IPU has 1472 processors, called *tiles*. Each tile has 624 KiB of memory and can access no other memory. A
# program assigns numbers and code to tiles, and sends data between tiles. snnipu has a model of this machine. It runs
# the same C++ that the Poplar SDK compiles for an IPU, tile by tile, and counts memory and cycles. In this tutorial you
#
# 1. run a minimal Poplar program, and see the errors of wrong programs,
# 2. follow `Leaky` from its vertex to an operator that PopTorch calls,
# 3. train a network through that operator, in PopTorch's training loop, and compare with the host's kernels,
# 4. read the counts of the model: memory of tiles, cycles, exchange,
# 5. plan an event-driven network on a whole Mk2, and predict the limit of its speed.
#
# **All numbers of cycles and bytes here are from a model. None is measured on an IPU.**
#
# You need `pip install ".[tutorials]"` in a clone, and a C++ compiler for the first part. These environment variables
# change the tutorial:
#
# | variable | meaning | default |
# | --- | --- | --- |
# | `SNNIPU_TUTORIAL_SAMPLES` | maximum number of images for training | all |
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
# A *vertex* (or *codelet*) is the code of a tile: a class with fields and a method `compute`. Fields of the types
# `Input` and `Output` are connected to tensors on any tile. Poplar's classic first vertex adds two numbers:

# %%
if clone is not None:
    examples = clone / "csrc" / "ipu_model" / "examples"
    print((examples / "adder_codelets.cpp").read_text())

# %% [markdown]
# A program makes variables and vertices, maps each of them to a tile, and connects the fields. This program adds two
# vectors of four elements, with one element on each tile. `y` is on tile 0, so the other three tiles have to fetch
# their element from it. The names are Poplar's. Except for the report, the SDK would compile the same program.

# %%
if clone is not None:
    program = (examples / "adder.cpp").read_text()
    print(program.split("int main() {")[1].split("  poplar::Engine")[0])

# %% [markdown]
# This cell compiles the program with the model's headers and library, and runs it. It also runs two versions with a
# mistake. One does not map `y` to a tile. In the other, all four vertices write the same element.


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
# In the correct program most cycles are synchronisation, and the start and end of a worker thread. A vertex is
# efficient only if it has many elements. The other two programs are refused before they run, as the SDK would refuse
# them. The messages name the variable and the vertices. [IPU model](../docs/reference/ipu-model.md) lists all errors.
#
# ## From vertex to operator
#
# The neurons of snnipu have the same parts. The spike function with its surrogate gradient is short enough to show them
# all. This is the vertex for the elements of a tile, which are shared by six worker threads:


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
# `heaviside`, the maths, is in `csrc/neuron`. The CPU kernels call it, too. The *graph builder* divides the elements
# over tiles, and adds a vertex to each tile:

# %%
print(excerpt("csrc/graph/surrogate_spike.cpp", "Tensor surrogateSpike(", "Tensor surrogateSpikeGrad("))

# %% [markdown]
# `custom_ops/surrogate_spike.cpp` registers it with PopART, the framework below PopTorch, as the operator
# `SurrogateSpike` of the domain `ai.snnipu`. Another operator computes its gradient. `NeuronSequence`, which is any
# neuron over all time steps, has the same three parts. In Python, `snn.Leaky` calls
# `poptorch.custom_op("NeuronSequence")` when PopTorch traces it.
#
# ## Training through the operator
#
# A script does not contain any of this. PopTorch's switch `Options.useIpuModel(True)` runs a program on a model of an
# IPU. In snnipu's host runtime of PopTorch, it runs the operators of `ai.snnipu` in the model, forward and backward.
# All other operations (matrix products, loss, optimizer) run on the host. This cell trains a small version of the first
# tutorial's network on scikit-learn's digits, twice with the same initial weights:

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
# The two lines are the same. With the same weights and inputs the spikes are equal, and the gradients are equal to
# rounding. In a long training, rounding may change a spike, and the lines then differ a little.
# `poptorch.isRunningOnIpu()` was true while `forward` ran, so the code took the same branches as on an IPU.
#
# ## What the model counts
#
# After a call, `ipuModelReport()` has the counts of each operator. For each batch:

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
# A *step* of a program is a set of vertices that run at the same time, or a copy. All tiles wait for the slowest one.
# Then they exchange the data of the next step. Left: the slowest steps. Right: the contents of the tiles' memory.

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
# In each direction one step does most of the work. It contains all 25 time steps, because every element stays on its
# tile with its membrane. All neurons share `beta` and `threshold`, so several short steps sum their gradients over the
# tiles. Memory does not limit such a small layer; most of it is code.
#
# ## What is refused
#
# The model is useful because it refuses wrong programs. On real hardware, refused programs and silent errors cost
# weeks. Here are two examples. The first is a layer that does not fit: half a million neurons over 25 steps, on an IPU
# with only 32 tiles. The second is a surrogate gradient in Python, which an IPU cannot run. PopTorch would compile the
# forward pass and silently drop the gradient of the spikes.


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
# On an IPU, `SparseNetwork` is one operator. Weights stay on the tiles of their neurons, and tiles exchange only the
# ids of neurons that spiked. A *plan* assigns neurons to tiles. This is the plan of a network of the published
# benchmark of sparse training (Gruen et al., [arXiv 2311.04386](https://arxiv.org/abs/2311.04386)), with two hidden
# layers of 1466 neurons, on one Mk2:

# %%
published = ipu.NetworkSpec.from_sizes([2312, 1466, 1466, 10], activity=0.02, input_slots=32)
plan = ipu.plan(published, target="mk2")
print(plan)
print("neuron 17 of layer 1 is on tile", plan.tile_of(1, 17))


# %%
def draw_plan(plan):
    figure = plotting.new_figure(11, 4)
    left, right = figure.subplots(1, 2)
    grid = (32, 46)  # the 1472 tiles of a Mk2
    roles = left.imshow(plan.roles().reshape(grid), cmap="RdBu")
    memory = right.imshow(plan.tile_memory.reshape(grid) / 1024, cmap="Blues", vmin=0)
    left.set_title("role of each tile: +n neurons of layer n, -n their selection")
    right.set_title("memory of a tile, KiB of 624, as predicted")
    for axis, picture in ((left, roles), (right, memory)):
        axis.set(xticks=[], yticks=[])
        figure.colorbar(picture, ax=axis, shrink=0.7)
    return figure


draw_plan(plan)

# %% [markdown]
# Layers with more input spikes get more tiles, so that no tile has much more work than the others. The tiles with
# negative roles convert the bits of spiking neurons to ids.
#
# Two models predict the time of such a plan. The *performance model* has a formula for each phase of a step, and needs
# a fraction of a second for any size. The *IPU model* builds the graph, runs it, and counts it vertex by vertex. This
# cell compares them for a network that is small enough for this tutorial. (`activity` is chosen so that all slots are
# filled, as the IPU model assumes.)


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
# In the integration of the neurons, the IPU model counts more than the performance model predicts. The operator
# multiplies each weight by the value of its spike. The formula assumes that all values are 1, as those of spikes are.
#
# ## Throughput against activity
#
# This cell predicts the training speed of the published network by the performance model, in samples a second against
# the activity. It compares one Mk2 and one Bow, the same chip at a higher clock.

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
# At high activity, twice the spikes take twice the time. At low activity, the spikes of the input (a fixed number) and
# the work for each neuron dominate. More IPUs hardly make this network faster, because one IPU already has only two or
# four neurons on a tile, and two is the minimum. Use more IPUs for larger networks.
#
# `python -m snnipu profile --model 2312,1466,1466,10 --activity 0.02 --html report.html` writes all of this as a page,
# with maps of the tiles.
#
# ## Limits of the model
#
# * **Real time of a step.** Cycles are formulas over the fields of a vertex, like the SDK's own estimates. Exchange is
#   bytes divided by bandwidth. They have not been compared with an IPU. They are more reliable for the limiting phase,
#   and for the comparison of two plans, than for the absolute speed.
# * **Memory to the byte.** Code is an estimate, and the SDK can let variables share memory at different times.
# * **Operations other than the operators of `ai.snnipu`**: matrix products, losses, optimizers, and transfers from and
#   to the host.
# * **The SDK's compiler.** GCC and Clang compile the vertices, and the operators compile against PopART's public
#   headers. `popc` has not compiled them yet.
#
# ## What to read next
#
# * [Run on an IPU](../docs/how-to/run-on-an-ipu.md): from the SDK to `python -m snnipu build-ipu`, step by step.
# * [Predict memory and speed on IPUs](../docs/how-to/profile.md): the performance model, its assumptions, and the
#   networks of the published benchmark compared with the published claims.
# * [IPU model](../docs/reference/ipu-model.md): the subset of Poplar, the errors, the counts.
