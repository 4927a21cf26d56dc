"""Reference of the online rules: every step of every layer, with all traces, in plain PyTorch and float64.

Autograd gives the derivatives of one step of the neuron's equation. There are no chunks, no adjoint over time and no
kernels.
"""

import math

import torch

from snnipu import equations


def heaviside(u):
    """Return spikes with the gradient of the default surrogate, ``atan``, in the precision of ``u``."""
    soft = torch.atan(math.pi * u) / math.pi
    return (u > 0).to(u.dtype) + (soft - soft.detach())


class Step:
    """A step of an equation: the results, and their derivatives by states, x and parameters."""

    def __init__(self, function, x, states, parameters, options, without_reset=False):
        names, leaves = list(parameters), [x, *states, *parameters.values()]
        leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
        arguments = leaves[: 1 + len(states)], dict(zip(names, leaves[1 + len(states) :]))
        seen = []

        def spike(u):
            seen.append(u)
            return heaviside(u)

        results = function(*arguments[0], **arguments[1], spike=spike, **options)
        self.values = [value.detach() for value in results]
        if without_reset and "reset_mechanism" in options:
            # The neuron without its reset, with the surrogate at the original membranes.
            there = iter(list(seen))
            changed = {**options, "reset_mechanism": "none"}
            results = function(
                *arguments[0],
                **arguments[1],
                spike=lambda u: heaviside(u + (next(there) - u).detach()),
                **changed,
            )
        self.of = []
        for value in results:
            grads = torch.autograd.grad(value.sum(), leaves, allow_unused=True, retain_graph=True)
            self.of.append([torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, leaves)])


class Layer:
    """Linear weights and a neuron: the states, and the traces of every weight and parameter."""

    def __init__(self, linear, neuron, rule, batch):
        self.linear, self.neuron, self.rule = linear, neuron, rule
        self.function, self.options = getattr(equations, neuron.equation), neuron._options()
        count, names = linear.out_features, neuron._states()
        self.all_to_all = getattr(neuron, "all_to_all", False)
        self.states = [torch.zeros(batch, count, dtype=torch.float64) for _ in names]
        self.has_spikes = names[0] == "spk"
        self.values = {k: torch.as_tensor(v, dtype=torch.float64).detach() for k, v in neuron._values().items()}
        if self.all_to_all:
            self.values["V"] = torch.ones((), dtype=torch.float64)
        # The neurons' inputs: from below, the bias, and the recurrent spikes.
        self.sizes = [linear.in_features, 1, *([count, 1] if self.all_to_all else [])]
        self.traces = [[torch.zeros(batch, count, size, dtype=torch.float64) for size in self.sizes] for _ in names]
        self.own = [{k: torch.zeros(batch, count, dtype=torch.float64) for k in self.values} for _ in names]
        self.grads = [torch.zeros(count, size, dtype=torch.float64) for size in self.sizes]
        self.own_grads = dict.fromkeys(self.values, 0.0)

    def step(self, u):
        """Advance one step and return its results."""
        rule, batch, count = self.rule, u.shape[0], self.linear.out_features
        states = list(self.states)
        inputs = [u, u.new_ones(batch, 1)]
        if self.all_to_all:
            inputs += [states[0], u.new_ones(batch, 1)]
            states[0] = self.neuron.recurrent(states[0]).detach()
        spread = {k: v.expand(batch, count) for k, v in self.values.items()}
        now = Step(self.function, self.linear(u).detach(), states, spread, self.options, rule == "ottt")
        names = list(spread)
        # Derivatives of the results by the previous states, reduced by the rule.
        by = [list(of[1 : 1 + len(states)]) for of in now.of]
        for of in by:
            if rule == "sltt":
                of[:] = [torch.zeros_like(g) for g in of]
            elif self.has_spikes and rule != "snap1":
                of[0] = torch.zeros_like(of[0])
            elif self.all_to_all:
                of[0] = of[0] * self.neuron.recurrent.weight.detach().diagonal()
        traces, own_traces = [], []
        for of, before in zip(now.of, by):
            traces.append(
                [
                    of[0][..., None] * value[:, None, :]
                    + sum(j[..., None] * trace[number] for j, trace in zip(before, self.traces))
                    for number, value in enumerate(inputs)
                ]
            )
            own_traces.append(
                {
                    name: of[1 + len(states) + place] + sum(j * trace[name] for j, trace in zip(before, self.own))
                    for place, name in enumerate(names)
                }
            )
        first = 0 if self.has_spikes else 1
        self.states = now.values[first:]
        self.traces, self.own = traces[first:], own_traces[first:]
        self.made, self.of_results = now, (traces, own_traces)
        return now.values

    def low_pass(self, decay):
        """Replace the output by its low-pass, which is the memory of a leaky readout."""
        if not hasattr(self, "low"):
            traces, own_traces = self.of_results
            self.low = (
                [torch.zeros_like(t) for t in traces[0]],
                {k: torch.zeros_like(v) for k, v in own_traces[0].items()},
            )
            self.low_spikes = torch.zeros_like(self.made.values[0])
        traces, own_traces = self.low
        traces = [decay * before + now for before, now in zip(traces, self.of_results[0][0])]
        own_traces = {name: decay * before + self.of_results[1][0][name] for name, before in own_traces.items()}
        self.low, self.low_spikes = (traces, own_traces), decay * self.low_spikes + self.made.values[0]
        self.of_results = [traces], [own_traces]

    def learn(self, grads):
        """Add the gradients of a step with these upstream gradients; return the gradient of its input."""
        traces, own_traces = self.of_results
        for grad, of, of_own in zip(grads, traces, own_traces):
            for total, trace in zip(self.grads, of):
                total += (grad[..., None] * trace).sum(0)
            for name in self.own_grads:
                self.own_grads[name] = self.own_grads[name] + grad * of_own[name]
        return sum(grad * of[0] for grad, of in zip(grads, self.made.of))

    def parameters(self):
        """Return each parameter with its gradient."""
        pairs = [(self.linear.weight, self.grads[0]), (self.linear.bias, self.grads[1].flatten())]
        if self.all_to_all:
            recurrent = self.neuron.recurrent
            pairs += [(recurrent.weight, self.grads[2]), (recurrent.bias, self.grads[3].flatten())]
        for name, parameter in self.neuron.named_parameters(recurse=False):
            grad = self.own_grads.get(name)
            if grad is not None and not (self.all_to_all and name == "V"):
                pairs.append((parameter, grad.sum(0) if parameter.dim() else grad.sum()))
        return pairs


def gradients(net, x, loss, rule, *, feedback=(), readouts=(), low_pass=None, local_loss=None):
    """Return the gradients of ``net``'s parameters.

    Args:
        net: Linear layers and neurons in turn.
        x: The input ``[T, B, in]``.
        loss: The loss of each step, ``loss(t, spk, *states)``.
        rule: The rule's name.
        feedback: The feedback matrices of e-prop; if empty, the weights are used.
        readouts: The readouts of DECOLLE.
        low_pass: The decay of the readout.
        local_loss: The loss of each readout of DECOLLE.
    """
    modules = list(net)
    layers = [Layer(*pair, rule, x.shape[1]) for pair in zip(modules[::2], modules[1::2])]
    top, of_feedback = layers[-1], [torch.zeros_like(matrix) for matrix in feedback]
    for t, u in enumerate(x):
        for layer in layers:
            values = layer.step(u)
            u = values[0]
        leaves = [value.requires_grad_() for value in values]
        of_top = torch.autograd.grad(loss(t, *leaves), leaves, allow_unused=True)
        of_top = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(of_top, leaves)]
        grad = top.learn(of_top)
        error = grad
        for place in range(len(layers) - 2, -1, -1):
            layer = layers[place]
            if readouts:
                signal = 0
            elif feedback:
                signal = error @ feedback[place]
            else:
                signal = grad @ layers[place + 1].linear.weight.detach()
            if readouts:
                signal = local(readouts[place], layer.made.values[0], local_loss)
            if low_pass is not None:
                layer.low_pass(low_pass)
                if feedback:
                    of_feedback[place] += error.T @ layer.low_spikes
            elif feedback:
                of_feedback[place] += error.T @ layer.made.values[0]
            at_once = layer.learn([signal])
            grad = signal if rule == "eprop" else at_once
        if readouts:
            top.learn([local(readouts[-1], top.made.values[0], local_loss)])
    pairs = [pair for layer in layers for pair in layer.parameters()]
    return pairs + [(matrix, grad) for matrix, grad in zip(feedback, of_feedback) if matrix.requires_grad]


def local(matrix, spk, loss):
    spk = spk.detach().requires_grad_()
    return torch.autograd.grad(loss(spk @ matrix.detach().T), spk)[0]
