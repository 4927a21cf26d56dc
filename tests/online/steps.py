"""Reference of the online rules: every step of every layer, unrolled in plain PyTorch and float64.

Autograd differentiates the steps of the neuron's equation; states through which a rule passes no gradient are detached.
There are no chunks, no traces and no kernels.
"""

import math

import torch

from snnipu import equations


def heaviside(u):
    """Return spikes with the gradient of the default surrogate, ``atan``, in the precision of ``u``."""
    soft = torch.atan(math.pi * u) / math.pi
    return (u > 0).to(u.dtype) + (soft - soft.detach())


class Layer:
    """Linear weights and a neuron, unrolled over time; the rule decides through which states gradients pass."""

    def __init__(self, linear, neuron, rule, batch):
        self.linear, self.neuron, self.rule, self.total = linear, neuron, rule, 0
        self.function, self.options = getattr(equations, neuron.equation), neuron._options()
        self.all_to_all = getattr(neuron, "all_to_all", False)
        names = neuron._states()
        self.states = [torch.zeros(batch, linear.out_features, dtype=torch.float64) for _ in names]
        self.has_spikes = names[0] == "spk"
        values = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in neuron._values().items()}
        self.values = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
        if self.all_to_all:
            self.values["V"] = torch.ones((), dtype=torch.float64)

    def step(self, u):
        """Advance one step and return its results, which carry no gradient."""
        states = [state.detach() if self.rule == "sltt" else state for state in self.states]
        if self.has_spikes and self.rule != "snap1":
            states[0] = states[0].detach()
        if self.all_to_all:  # a neuron's own spikes reach it by the diagonal
            spk, recurrent = states[0], self.neuron.recurrent
            states[0] = recurrent(spk.detach()) + recurrent.weight.detach().diagonal() * (spk - spk.detach())
        self.current, seen = self.linear(u), []

        def spike(u):
            seen.append(u)
            return heaviside(u)

        arguments = (self.current, *states)
        results = self.function(*arguments, **self.values, spike=spike, **self.options)
        if self.rule == "ottt" and "reset_mechanism" in self.options:
            # The gradient of the neuron without its reset, with the surrogate at the original membranes.
            there = iter(list(seen))
            options = {**self.options, "reset_mechanism": "none"}
            without = self.function(
                *arguments, **self.values, spike=lambda u: heaviside(u + (next(there) - u).detach()), **options
            )
            results = [other + (result - other).detach() for result, other in zip(results, without)]
        self.results = self.outputs = list(results)
        self.states = self.results[0 if self.has_spikes else 1 :]
        return [result.detach() for result in results]

    def low_pass(self, decay):
        """Replace the output by its low-pass, which is the memory of a leaky readout."""
        before = decay * self.low if hasattr(self, "low") else 0
        self.low = before + self.results[0]
        self.outputs = [self.low]

    def learn(self, grads):
        """Add the gradients of a step with these upstream gradients; return the gradient of its input."""
        self.total = self.total + sum((grad * output).sum() for grad, output in zip(grads, self.outputs))
        now = sum((grad * result).sum() for grad, result in zip(grads, self.results))
        return torch.autograd.grad(now, self.current, retain_graph=True)[0]

    def parameters(self):
        """Return each parameter with its gradient."""
        parameters = [*self.linear.parameters(), *(self.neuron.recurrent.parameters() if self.all_to_all else ())]
        leaves = dict(zip(parameters, parameters))
        for name, parameter in self.neuron.named_parameters(recurse=False):
            if name in self.values and self.values[name].requires_grad:
                leaves[parameter] = self.values[name]
        grads = torch.autograd.grad(self.total, list(leaves.values()), allow_unused=True)
        return [(p, torch.zeros_like(p) if grad is None else grad) for p, grad in zip(leaves, grads)]


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
                signal = local(readouts[place], layer.results[0].detach(), local_loss)
            if low_pass is not None:
                layer.low_pass(low_pass)
                if feedback:
                    of_feedback[place] += error.T @ layer.low.detach()
            elif feedback:
                of_feedback[place] += error.T @ layer.results[0].detach()
            at_once = layer.learn([signal])
            grad = signal if rule == "eprop" else at_once
        if readouts:
            top.learn([local(readouts[-1], top.results[0].detach(), local_loss)])
    pairs = [pair for layer in layers for pair in layer.parameters()]
    return pairs + [(matrix, grad) for matrix, grad in zip(feedback, of_feedback) if matrix.requires_grad]


def local(matrix, spk, loss):
    spk = spk.detach().requires_grad_()
    return torch.autograd.grad(loss(spk @ matrix.detach().T), spk)[0]
