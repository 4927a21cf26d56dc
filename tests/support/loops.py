"""Neurons over time in loops."""

import contextlib
import copy
import functools
import itertools
import linecache
import sys
import types

import torch
from snntorch import utils
from torch import nn
from torch.nn import functional

import snnipu as snn
from snnipu import compiler


def by_steps(layer, x, states):
    """Stack spikes and states of a call for each step of ``x``; DeltaLeaky's states are a pair."""
    rows = []
    for current in x:
        row = layer(current, tuple(states)) if hasattr(layer, "delta_threshold") else layer(current, *states)
        row = (row[0], *row[1]) if isinstance(row[1], tuple) else row
        states = row[-len(states) :]
        rows.append(row)
    return [torch.stack(values) for values in zip(*rows)]


def steps(layer, x, *states):
    return by_steps(layer, x, states)


def sequence(layer, x, *states):
    return layer.sequence(x, *states)


def with_gradients(run, module, *inputs):
    """Return the results of ``run(module, *inputs)``, and the gradients of the inputs and the parameters that learn.

    The upstream gradients are random, and the same for results of the same shapes.
    """
    leaves = [value.clone().requires_grad_() for value in inputs]
    out = run(module, *leaves)
    generator = torch.Generator().manual_seed(1)
    loss = sum((part * torch.randn(part.shape, generator=generator)).sum() for part in out)
    leaves += [parameter for parameter in module.parameters() if parameter.requires_grad]
    return out, torch.autograd.grad(loss, leaves, allow_unused=True)


def kinds(size):
    """Return {name: (class, keywords)} of neurons of every kind with ``size`` neurons."""
    each, learn = torch.linspace(0.3, 0.9, size), {"learn_beta": True, "learn_threshold": True}
    to_all, one_to_one = {"linear_features": size}, {"V": 0.5, "all_to_all": False}
    return {
        "Leaky": ("Leaky", {"beta": 0.9}),
        "Leaky, learnt": ("Leaky", {"beta": each, "threshold": each.flip(0), **learn}),
        "Leaky, to zero": ("Leaky", {"beta": each, "learn_beta": True, "reset_mechanism": "zero"}),
        "Leaky, to zero at once": ("Leaky", {"beta": 0.9, "reset_mechanism": "zero", "reset_delay": False}),
        "Lapicque": ("Lapicque", {"beta": 0.9}),
        "Synaptic": ("Synaptic", {"alpha": 0.8, "beta": 0.9}),
        "Synaptic, learnt": ("Synaptic", {"alpha": 0.7, "beta": each, "learn_alpha": True, "learn_beta": True}),
        "Alpha": ("Alpha", {"alpha": 0.9, "beta": 0.8}),
        "RLeaky": ("RLeaky", {"beta": 0.9, **to_all}),
        "RLeaky, learnt": ("RLeaky", {"beta": 0.9, **to_all, "learn_beta": True}),
        "RLeaky, one to one": ("RLeaky", {"beta": 0.9, **one_to_one}),
        "RSynaptic": ("RSynaptic", {"alpha": 0.8, "beta": 0.9, **to_all}),
        "RSynaptic, one to one": ("RSynaptic", {"alpha": 0.8, "beta": 0.9, **one_to_one}),
        "DeltaLeaky": ("DeltaLeaky", {"beta": 0.9, "delta_threshold": 0.2}),
    }


def neuron_of(name, size, source=snn, **how):
    kind, keywords = kinds(size)[name]
    return getattr(source, kind)(**keywords, **how)


@contextlib.contextmanager
def as_written(search):
    """Run the program's own loops in spite of ``snn.auto()``."""
    search.searches = False
    try:
        yield
    finally:
        search.searches = True


# ---- loops that run compiled

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lif, self.map = snn.Leaky(beta=0.5, learn_beta=True), nn.Linear(6, 6)
        {init}
    def forward(self, x):
        mem, out, rec = self.lif.reset_mem(), torch.zeros_like(x[0]), []
        {start}
        for t in range(len(x)):
            {step}
            rec.append(mem)
        return {result}
"""
_files = itertools.count()


def network(step, init="pass", start="pass", result="torch.stack(rec), out", **names):
    """Make a network from the statements in its loop, before it and in its constructor, and from its result."""
    lines = {"init": (init, 8), "start": (start, 8), "step": (step, 12)}
    statements = {name: text.replace("\n", "\n" + " " * indent) for name, (text, indent) in lines.items()}
    return made(NET.format(result=result, **statements), **names)


def executed(source, **names):
    """Return the names of a module of this source, which PyTorch can import; tracebacks show the source, too."""
    name = f"program_{next(_files)}.py"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    sys.modules[name] = types.ModuleType(name)
    namespace = vars(sys.modules[name])
    namespace.update(torch=torch, nn=nn, F=functional, snn=snn, surrogate=snn.surrogate, utils=utils, **names)
    exec(compile(source, name, "exec"), namespace)
    return namespace


def made(source, **names):
    """Make the network ``Net`` of a source."""
    return executed(source, **names)["Net"]()


def outcome(call, net, x, learns=True, learns_input=True):
    """Return everything that a call returns or changes: results, gradients, attributes of modules, random state."""
    torch.manual_seed(3)
    net.zero_grad()
    x = x.clone().requires_grad_(learns and learns_input and x.is_floating_point())
    with torch.set_grad_enabled(learns):
        out = call(x)
    out = out if isinstance(out, (tuple, list)) else [out]
    left = {f"result {place}": value.detach().clone() for place, value in enumerate(out)}
    left["learns"] = [value.requires_grad for value in out]
    weights = torch.Generator().manual_seed(4)
    losses = [
        (value * torch.randn(value.shape, generator=weights).to(value)).sum() for value in out if value.requires_grad
    ]
    if losses:
        sum(losses).backward()
    for name, value in (("x", x), *net.named_parameters()):
        left[f"gradient of {name}"] = None if value.grad is None else value.grad.clone()
    for name, module in net.named_modules():
        for key, value in {**vars(module), **dict(module.named_buffers(recurse=False))}.items():
            if isinstance(value, torch.Tensor) and key != "reset":  # a step as one operator has no reset
                left[f"{name}.{key}"] = value.detach().clone()
                # The next call gets this state without its graph.
                if value.grad_fn is not None:
                    setattr(module, key, value.detach())
            elif type(value) in (int, float, bool) and key[0] != "_":
                left[f"{name}.{key}"] = value
    left["random state"] = torch.get_rng_state()
    return left


def check(actual, expected, rtol=1e-5, atol=1e-5):
    """Check that two outcomes are equal up to rounding, which is relative to the largest gradient for gradients."""
    assert not actual.keys() ^ expected.keys()
    gradients = [value for name, value in expected.items() if name.startswith("gradient") and value is not None]
    largest = max((float(value.abs().max()) for value in gradients if value.numel()), default=0.0)
    for name, value in expected.items():
        if not isinstance(value, torch.Tensor) or actual[name] is None:
            assert actual[name] == value, f"{name} is {actual[name]}, expected {value}"
            continue
        loose = atol * max(1.0, largest if name.startswith("gradient") else 1.0)
        torch.testing.assert_close(
            actual[name], value, rtol=rtol, atol=loose, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
        )


def compared(net, *inputs, learns=True, call=None, **tolerances):
    """Check that a network with compiled loops returns and changes the same; parameters change between the calls.

    Args:
        inputs: the inputs of the calls. A single input is used twice, then with a smaller batch and fewer steps.
        call: calls a network with an input; the default calls the network.

    Returns:
        The report of the last call.
    """
    other = copy.deepcopy(net)
    compiled = snn.compile(other)
    if len(inputs) == 1:
        inputs = (*inputs, *inputs, inputs[0][:-1, :-1].contiguous())

    def call_both(x):
        expected = outcome(functools.partial(call, net) if call else net, net, x, learns)
        check(
            outcome(functools.partial(call, compiled) if call else compiled, other, x, learns), expected, **tolerances
        )
        with torch.no_grad():
            for parameter in (*net.parameters(), *other.parameters()):
                parameter.mul_(0.95)

    for x in inputs[:-1]:
        call_both(x)
    return compiler.explain(call_both, inputs[-1])


def rolled(report):
    """Return the steps of each layer of neurons, and whether they are one operator."""
    return [(neuron.steps, neuron.rolled) for neuron in report.neurons]


def times(report, name):
    """Return the number of calls of an operator by the loop, and by the compiled loop."""
    named = [operator for operator in report.operators if operator.name == name]
    return sum(operator.calls for operator in named), sum(operator.times for operator in named)
