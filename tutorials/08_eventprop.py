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
# # EventProp: the gradient of spike times
#
# A spike is there or not, and has no derivative. Its *time* has one: if a weight grows a little, the spike comes a
# little earlier. EventProp computes this derivative for all weights at once. The derivative is exact in the limit of
# short time steps. This tutorial shows the method on a network that is small enough to see. You
#
# 1. look at the membranes and spikes of five neurons,
# 2. compute their gradient backwards in time in plain PyTorch, and compare it with the gradient of the package,
# 3. compare the gradient with finite differences, as the time step becomes shorter,
# 4. move spikes to target times,
# 5. do the same with a surrogate, and see the limits of both.
#
# You need `pip install ".[tutorials]"` in a clone of the repository. This environment variable changes the tutorial:
#
# | variable | meaning | default |
# | --- | --- | --- |
# | `SNNIPU_TUTORIAL_STEPS` | training steps of each network | 200 |

# %%
# %matplotlib inline
import math
import os

import torch
from torch import nn

import snnipu as snn
from snnipu import plotting
from snnipu.functional import first_spike_times

training_steps = int(os.environ.get("SNNIPU_TUTORIAL_STEPS", "200"))

torch.set_num_threads(1)  # a few neurons are too little work for several threads
torch.set_default_dtype(torch.float64)  # rounding must not hide small differences
_ = torch.manual_seed(0)

# %% [markdown]
# ## Membranes and spikes
#
# Four inputs spike twice each. Three hidden neurons receive these spikes, and two output neurons receive the spikes of
# the hidden neurons. A spike raises the synaptic current of a neuron by a weight. The current charges the membrane. A
# neuron whose membrane crosses the threshold spikes, and its membrane falls by the threshold.
#
# Times are in units of the membrane's time constant. A step of 0.02 is short enough here.

# %%
tau_m, tau_s, length = 1.0, 0.5, 3.2  # time constants of membrane and current, length of the input


def decays(dt):
    """Return the decays of current and membrane in a step of ``dt``."""
    return math.exp(-dt / tau_s), math.exp(-dt / tau_m)


def layer(weight, dt, gradient="eventprop"):
    """Return a layer with the given weights ``[neurons, inputs]``."""
    alpha, beta = (torch.tensor(decay) for decay in decays(dt))
    scale = float(alpha - beta) * tau_s / (tau_s - tau_m)
    options = {"alpha": alpha, "beta": beta, "input_scale": scale, "reset_mechanism": "subtract", "gradient": gradient}
    neurons = snn.SparseSynaptic(weight.shape[1], weight.shape[0], **options)
    neurons.weight = nn.Parameter(weight.clone())
    return neurons


def input_spikes(times, dt):
    """Return spikes ``[steps, 1, inputs]`` at ``times`` ``[inputs, spikes]``."""
    x = torch.zeros(round(length / dt), 1, len(times))
    for source, own_times in enumerate(times):
        x[(own_times / dt).round().long(), 0, source] = 1
    return x


dt = 0.02
x = input_spikes(torch.tensor([[0.1, 1.3], [0.2, 0.9], [0.3, 1.6], [0.5, 1.1]]), dt)
hidden = layer(torch.tensor([[2.6, 0.8, 1.7, 0.9], [0.5, 1.4, 0.9, 1.6], [0.9, 0.8, 1.9, 1.1]]), dt)
output = layer(torch.tensor([[2.2, 0.9, 1.6], [0.9, 1.4, 1.9]]), dt)

hidden_spikes = hidden(x)
output_spikes = output(hidden_spikes)
first_times = first_spike_times(output_spikes) * dt  # [samples, neurons]
print("first spikes of the outputs:", ", ".join(f"{time:.3f}" for time in first_times[0].tolist()))

# %%
COLOURS = plotting.BLUE, plotting.RED, plotting.GREEN
with torch.no_grad():
    states = {
        "hidden": (hidden.membranes(x)[:, 0], hidden_spikes.to_dense()[:, 0]),
        "output": (output.membranes(hidden_spikes)[:, 0], output_spikes.to_dense()[:, 0]),
    }


def draw_membranes(axis, mem, spk, dt=dt):
    """Draw the membranes ``[steps, neurons]`` and, above them, the spikes."""
    times = dt * torch.arange(1, len(mem) + 1)
    for neuron, colour in zip(range(mem.shape[1]), COLOURS):
        axis.plot(times, mem[:, neuron], color=colour, linewidth=1.2)
        at = times[spk[:, neuron] > 0]
        axis.plot(at, torch.full_like(at, 1.3 + 0.1 * neuron), "|", color=colour, markersize=7, markeredgewidth=1.8)
    axis.axhline(1, color=plotting.MUTED, linestyle="--", linewidth=1)
    axis.set(ylabel="membrane", xlim=(0, length), ylim=(-0.1, 1.6), yticks=[0, 1])
    axis.spines[["top", "right"]].set_visible(False)


def draw_forward():
    figure = plotting.new_figure(8, 4.2)
    top, *panels = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": [1, 2, 2]})
    step, source = x[:, 0].nonzero(as_tuple=True)
    top.plot(step * dt, source, "|", color=plotting.INK, markersize=8, markeredgewidth=1.8)
    top.set(title="input", ylabel="input", ylim=(-0.6, 3.6), yticks=range(4))
    top.spines[["top", "right"]].set_visible(False)
    for axis, (name, (mem, spk)) in zip(panels, states.items()):
        draw_membranes(axis, mem.detach(), spk.detach())
        axis.set_title(name)
    panels[-1].set_xlabel("time")
    return figure


draw_forward()

# %% [markdown]
# ## Backwards in time
#
# Each output should spike at a target time. The loss is half the squared distance of the first spike.
#
# The backward pass has two variables for each neuron. $\lambda$ is the gradient of the membrane, and $g$ is the
# gradient of the synaptic current. Both are computed backwards in time:
#
# - Between spikes, $\lambda$ and $g$ decay like the membrane and the current. $g$ follows $\lambda$, as the membrane
#   follows the current.
# - At a spike of the neuron, $\lambda$ jumps. A membrane that is higher by $\varepsilon$ crosses the threshold
#   earlier by $\varepsilon$ divided by its slope. The jump is the gradient of the spike's time, divided by this slope.
# - The loss gives the gradient of the output's spike times. A hidden spike reads the gradient of its time from the
#   change of $g$ in the outputs: a later arrival moves its effect along $g$.
# - The gradient of a weight is the sum of $g$ at the spikes of its input.
#
# The function below is the backward pass of one layer. A spike lies between two steps, where the membrane is
# interpolated by a straight line. Its jump is divided between both steps.


# %%
def adjoints(mem, spk, grad_times, dt=dt):
    """Return lambda and g, each ``[steps, neurons]``; ``grad_times`` has the gradient of the time of each spike."""
    alpha, beta = decays(dt)
    is_spike = spk > 0
    mem_before, spk_before = (torch.cat([torch.zeros_like(each[:1]), each[:-1]]) for each in (mem, spk))
    current = mem - beta * mem_before + spk_before
    start = mem_before - spk_before  # the membrane at the begin of the step, after a reset
    part = torch.where(is_spike, (1 - start) / (mem - start), 0)  # part of the step before the crossing
    slope = torch.where(is_spike, current * alpha**part / math.sqrt(alpha * beta) + math.log(beta), 1)

    lam, g = torch.zeros_like(mem), torch.zeros_like(mem)
    lam_after = g_after = torch.zeros_like(mem[0])
    for t in reversed(range(len(mem))):
        jump = torch.where(is_spike[t], (grad_times[t] + math.log(beta) * lam_after) / slope[t], 0)
        lam[t] = lam_after - part[t] * jump
        g[t] = g_after = alpha * g_after + lam[t]
        lam_after = beta * lam[t] - (1 - part[t]) * jump
    return lam, g


def by_hand(x, hidden, output, states, first_times, targets):
    """Return the adjoints of both layers, and the gradients of their weights."""
    scale = output.input_scale
    mem, spk = states["output"]
    grad_times = torch.zeros_like(mem)  # in steps, at the first spike of each output
    grad_times.scatter_(0, (first_times / dt).long(), (first_times - targets) * dt)
    of_output = adjoints(mem, spk, grad_times)

    g = of_output[1]
    g_later = torch.cat([g[1:], torch.zeros_like(g[:1])])
    grad_times = scale * (g_later - g) @ output.weight  # of the hidden spikes
    mem, spk = states["hidden"]
    of_hidden = adjoints(mem, spk, grad_times)
    weights = scale * of_hidden[1].T @ x[:, 0], scale * g.T @ spk
    return {"hidden": of_hidden, "output": of_output}, weights


targets = torch.tensor([[1.4, 0.9]])
(0.5 * (first_times - targets) ** 2).sum().backward()
with torch.no_grad():
    adjoint, gradients = by_hand(x, hidden, output, states, first_times, targets)
for name, neurons, gradient in zip(("hidden", "output"), (hidden, output), gradients):
    equal = torch.allclose(neurons.weight.grad, gradient, rtol=1e-10)
    print(f"{name}: largest gradient {gradient.abs().max():.4f}, equal to the package's: {equal}")

# %% [markdown]
# The pictures are read from right to left. Behind the last spike that matters, everything is zero.


# %% tags=["gallery"]
def draw_backward():
    figure = plotting.new_figure(9, 5.6)
    panels = figure.subplots(3, 2, sharex=True, sharey="row")
    for column, (name, (mem, spk)) in zip(panels.T, states.items()):
        draw_membranes(column[0], mem.detach(), spk.detach())
        column[0].set_title(f"{name} neurons")
        times = dt * torch.arange(1, len(mem) + 1)
        for axis, values in zip(column[1:], adjoint[name]):
            for neuron, colour in zip(range(mem.shape[1]), COLOURS):
                axis.plot(times, values[:, neuron], color=colour, linewidth=1.2)
            axis.axhline(0, color=plotting.MUTED, linewidth=0.8)
            axis.spines[["top", "right"]].set_visible(False)
        column[2].set_xlabel("time")
    panels[0, 1].set_ylabel("")
    panels[1, 0].set_ylabel("λ, of the membrane")
    panels[2, 0].set_ylabel("g, of the current")
    return figure


draw_backward()

# %% [markdown]
# Start with the output neurons, on the right. Blue spikes too early and red too late. A higher membrane of blue would
# increase the loss, so its $\lambda$ jumps upwards at its first spike. The $\lambda$ of red jumps downwards. Later
# spikes of an output do not change the loss and leave no jump.
#
# Then look at the hidden neurons, on the left. Each of their spikes jumps by the effect of its time on the outputs.
# Hidden spikes after the last first spike of the outputs have no effect, so there is no jump.
#
# EventProp has one product for each spike. The backward pass of a surrogate has products at every step: for all
# neurons, or for those above a second threshold.
#
# ## Finite differences
#
# Twenty neurons have ten inputs each. In continuous time a membrane is a sum of known curves, one for each input spike.
# The time of the first spike is found by bisection. A small change of one weight then gives the derivative of this time
# by finite differences, without time steps. EventProp runs in steps. Its error falls with the square of their length.


# %%
arrivals = 0.08 * torch.randint(1, 15, (10, 1))  # multiples of every step below
many_weights = torch.rand(20, 10) + 0.2


def membrane(weight, time):
    """Return the membranes of neurons with weights ``[neurons, inputs]``, each at its own time ``[neurons]``."""
    since = (time[:, None] - arrivals[:, 0]).clamp(min=0)
    curve = tau_s / (tau_m - tau_s) * (torch.exp(-since / tau_m) - torch.exp(-since / tau_s))
    return (weight * curve).sum(1)


def spike_times(weight):
    """Return the first time at which each membrane crosses 1."""
    grid = torch.linspace(0, length, 321)
    above = torch.stack([membrane(weight, time.expand(len(weight))) > 1 for time in grid])
    high = grid[above.int().argmax(0)]
    low = high - grid[1]
    for _ in range(50):
        middle = (low + high) / 2
        is_above = membrane(weight, middle) > 1
        low, high = torch.where(is_above, low, middle), torch.where(is_above, middle, high)
    return high


change = 1e-6
ends = [
    torch.stack([spike_times(many_weights + sign * change * one_input) for one_input in torch.eye(10)], 1)
    for sign in (1, -1)
]
expected = (ends[0] - ends[1]) / (2 * change)

steps, errors = (0.08, 0.04, 0.02, 0.01, 0.005), []
for step in steps:
    neurons = layer(many_weights, step)
    times = first_spike_times(neurons(input_spikes(arrivals, step))) * step
    times.sum().backward()
    errors.append(float((neurons.weight.grad - expected).norm() / expected.norm()))
    print(f"step {step:.3f}: relative error of the gradient {100 * errors[-1]:.4f} %")


def draw_errors():
    figure = plotting.new_figure(5, 3.2)
    axis = figure.subplots()
    axis.loglog(steps, errors, "o-", color=plotting.BLUE, label="EventProp")
    line = [errors[0] * (step / steps[0]) ** 2 for step in steps]
    axis.loglog(steps, line, "--", color=plotting.MUTED, label="square of the step")
    axis.set(xlabel="time step", ylabel="relative error of the gradient")
    axis.minorticks_off()
    axis.set_xticks(steps, [f"{step:g}" for step in steps])
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


draw_errors()

# %% [markdown]
# Networks of several layers converge with the step itself, because their spikes arrive at whole steps. The page
# [EventProp](../docs/explanation/eventprop.md) has a table.
#
# ## Spikes that move
#
# Ten inputs, twenty hidden neurons, five outputs. At the start all outputs spike at about the same time. They should
# spike one after another. Adam changes the weights of both layers.


# %%
num_steps = round(length / dt)
x = input_spikes(dt * torch.randint(1, 120, (10, 4)), dt)
targets = torch.tensor([[0.7, 0.95, 1.2, 1.45, 1.7]])
initial = [0.63 * torch.rand(20, 10) + 0.07, 0.35 * torch.rand(5, 20) + 0.035]


def network(gradient, factor=1.0):
    return nn.Sequential(*(layer(factor * weight, dt, gradient) for weight in initial))


def loss_of_times(spikes):
    """Return the loss and the first spikes of the outputs."""
    times = first_spike_times(spikes) * dt
    return 0.5 * ((times - targets) ** 2).sum(), times


def train(net, loss_of):
    """Return the first spikes of the outputs at each training step."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    history = []
    for _ in range(training_steps):
        loss, times = loss_of(net(x))
        history.append(times[0].detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.stack(history)


def show(title, history):
    for when, times in (("before", history[0]), ("after", history[-1])):
        print(f"{title}, {when}: first spikes at", ", ".join(f"{time:.3f}" for time in times.tolist()))
    print(f"{title}: mean distance from the targets {(history[-1] - targets).abs().mean():.4f}")


exact = network("eventprop")
runs = {"EventProp": train(exact, loss_of_times)}
show("EventProp", runs["EventProp"])

# %%
OUTPUT_COLOURS = "C0", "C1", "C2", "C3", "C4"


def draw_moves(runs):
    figure = plotting.new_figure(4.5 * len(runs), 3)
    for axis, (title, history) in zip(figure.subplots(1, len(runs), squeeze=False, sharey=True)[0], runs.items()):
        for times, target, colour in zip(history.T, targets[0].tolist(), OUTPUT_COLOURS):
            axis.axhline(target, color=colour, linestyle="--", linewidth=0.8)
            axis.plot(times, color=colour, linewidth=1.4)
        axis.set(title=title, xlabel="training step")
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("first spike; dashed: target")
    return figure


draw_moves(runs)

# %% [markdown]
# The network before and after: dots are spikes of the hidden neurons, lines are membranes of the outputs.


# %%
@torch.no_grad()
def draw_networks(nets):
    figure = plotting.new_figure(9, 4.2)
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    for column, (title, net) in zip(panels.T, nets.items()):
        spikes = net[0](x)
        step, neuron = spikes.to_dense()[:, 0].nonzero(as_tuple=True)
        column[0].plot((step + 0.5) * dt, neuron, ".", color=plotting.INK, markersize=3)
        column[0].set_title(title)
        mem, first = net[1].membranes(spikes)[:, 0], first_spike_times(net[1](spikes))[0] * dt
        for number, colour in enumerate(OUTPUT_COLOURS):
            end = int(first[number] / dt) + 1  # up to the first spike
            column[1].plot(dt * torch.arange(1, end + 1), mem[:end, number], color=colour, linewidth=1.2)
            column[1].plot(targets[0, number], 1.15, "v", color=colour, markersize=6)
        column[1].axhline(1, color=plotting.MUTED, linestyle="--", linewidth=1)
        column[1].set(xlabel="time", xlim=(0, 2), ylim=(-0.1, 1.3))
        for axis in column:
            axis.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("hidden neuron")
    panels[1, 0].set_ylabel("membrane up to the\nfirst spike; ▼: target")
    return figure


draw_networks({"before": network("eventprop"), "after": exact})

# %% [markdown]
# ## The same with a surrogate
#
# A surrogate replaces the derivative of a spike in its step by a smooth function of the membrane. The spikes are the
# same, but they have no times with a gradient. A loss reads the dense spikes, zeros and ones. snnTorch's
# `mse_temporal_loss` counts the steps until the first spike, and gives this spike the derivative -1.
#
# Before the training, we compare the direction of both gradients. A cosine of 1 means the same direction.


# %%
temporal_loss = snn.functional.mse_temporal_loss(target_is_time=True)


def loss_of_spikes(spikes):
    """Return the loss and the first spikes of the outputs, in the middle of their steps."""
    dense = spikes.to_dense()
    first = torch.where(dense.any(0), dense.argmax(0), num_steps).detach()
    return temporal_loss(dense, (targets / dt).round()), (first + 0.5) * dt


with_surrogate = network("surrogate")
gradients = []
for net, loss_of in ((network("eventprop"), loss_of_times), (with_surrogate, loss_of_spikes)):
    loss_of(net(x))[0].backward()
    gradients.append([neurons.weight.grad for neurons in net])
for name, *both in zip(("hidden", "output"), *gradients):
    cosine = nn.functional.cosine_similarity(*(each.flatten() for each in both), dim=0)
    print(f"{name} layer: cosine of both gradients {cosine:.2f}")

runs["surrogate"] = train(with_surrogate, loss_of_spikes)
show("surrogate", runs["surrogate"])
draw_moves(runs)

# %% [markdown]
# The surrogate learns, too. In the output layer its gradient has nearly the direction of the exact one. In the hidden
# layer the direction differs, but it still leads to the targets. Its loss counts whole steps and is zero when each
# spike is in the step of its target. EventProp moves spikes within a step, so its error is a small part of a step.
#
# ## Silent neurons
#
# EventProp has a gradient at spikes alone. If a neuron is silent, its weights do not change, and nothing makes it spike
# again. A surrogate has a gradient without spikes. The next cell begins with smaller weights, at which no output
# spikes.

# %%
for title, gradient, loss_of in (("EventProp", "eventprop", loss_of_times), ("surrogate", "surrogate", loss_of_spikes)):
    net = network(gradient, factor=0.4)
    loss_of(net(x))[0].backward()
    norm = float(sum(neurons.weight.grad.norm() for neurons in net))
    active = int((train(net, loss_of)[-1] < length).sum())
    print(f"{title}: norm of the gradient {norm:.1e}, outputs that spike after training: {active} of 5")

# %% [markdown]
# The same happens in training when a target is so late that a neuron's membrane no longer reaches the threshold. A
# network for EventProp begins with weights at which every neuron spikes. Its inputs should go on until the latest
# target.
#
# ## Where to go from here
#
# - [Which gradient](../docs/how-to/which-gradient.md): how to choose, and spoken digits by both.
# - [EventProp](../docs/explanation/eventprop.md): all equations, convergence in several layers, limits.
