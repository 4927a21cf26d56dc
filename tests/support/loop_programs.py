"""Networks with a loop over time steps, made at random: a program is data that the forward pass interprets.

Weights, inputs and decays are multiples of powers of two, so that sums are exact in any order: what is compiled must
give the same spikes and states as the loop, bit by bit.
"""

import copy
from dataclasses import dataclass
from typing import Any, List, Tuple

import torch
from hypothesis import strategies as st
from torch import nn

import snnipu as snn
from snnipu import surrogate

WIDTH, CHANNELS, SIDE = 4, 2, 4
NEURONS = ("Leaky", "Leaky", "Leaky", "Synaptic", "Alpha", "Lapicque", "RLeaky")
LAYERS = (
    "linear",
    "neuron",
    "neuron",
    "neuron",
    "linear",
    "linear",
    "relu",
    "scale",
    "norm_eval",
    "norm_train",
    "dropout_eval",
    "dropout_train",
    "reshape",
    "cat",
    "skip",
    "skip_before",
    "feedback",
    "branch",
    "in_place",
    "maximum",
    "attribute",
)
RECORDS = (
    "stack",
    "stack1",
    "list",
    "set",
    "sum",
    "isum",
    "last",
    "loss",
    "cat",
    "mean",
    "every_second",
    "linear_after",
)
INPUTS = ("constant", "index", "unbind", "iterate", "reversed", "second", "middle", "zip")


@dataclass
class Program:
    steps: int
    layers: List[Tuple[str, int, int]]
    records: List[Tuple[str, int]]
    input: str
    states: str
    calls: int
    learn: bool
    init_hidden: bool
    no_grad: bool = False
    batches: Tuple[int, ...] = (3, 3)
    surrogate: str = "straight_through_estimator"
    reset_mechanism: str = "subtract"
    reset_delay: bool = True
    seed: int = 0
    part_bytes: int = 2**24
    dynamic: Any = None


_layer = st.tuples(st.sampled_from(LAYERS), st.integers(0, 7), st.integers(0, 7))
_neuron_layer = st.tuples(st.just("neuron"), st.integers(0, 7), st.integers(0, 7))
programs = st.builds(
    Program,
    steps=st.sampled_from((3, 4, 2, 5, 4, 3, 1)),
    # A loop without neurons is left as it is: there is one at least.
    layers=st.builds(
        lambda before, neuron, behind: [*before, neuron, *behind],
        st.lists(_layer, max_size=3),
        _neuron_layer,
        st.lists(_layer, max_size=3),
    ),
    records=st.lists(st.tuples(st.sampled_from(RECORDS), st.integers(0, 7)), min_size=1, max_size=3),
    input=st.sampled_from(INPUTS),
    states=st.sampled_from(("reset", "none", "given")),
    calls=st.integers(1, 2),
    learn=st.booleans(),
    init_hidden=st.booleans(),
    no_grad=st.booleans(),
    batches=st.sampled_from(((3, 3), (3, 2), (1, 3))),
    reset_mechanism=st.sampled_from(("subtract", "subtract", "zero", "none")),
    reset_delay=st.booleans(),
    seed=st.integers(0, 3),
    part_bytes=st.sampled_from((2**24, 1, 150)),
    dynamic=st.sampled_from((None, True)),
)


def _neuron(kind: str, program: Program) -> nn.Module:
    common = {
        "spike_grad": getattr(surrogate, program.surrogate)(),
        "init_hidden": program.init_hidden,
        "reset_mechanism": program.reset_mechanism,
        "learn_threshold": program.learn,
    }
    if kind == "Leaky":
        return snn.Leaky(beta=0.5, reset_delay=program.reset_delay, learn_beta=program.learn, **common)
    if kind == "Synaptic":
        return snn.Synaptic(alpha=0.5, beta=0.75, **common)
    if kind == "Alpha":
        return snn.Alpha(alpha=0.75, beta=0.5, **common)
    if kind == "Lapicque":
        return snn.Lapicque(beta=False, R=0.5, C=4.0, time_step=1.0, **common)
    return snn.RLeaky(beta=0.5, V=0.5, all_to_all=False, **common)


class Net(nn.Module):
    """Runs a program."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        generator = torch.Generator().manual_seed(program.seed)
        self.parts = nn.ModuleList()
        for kind, a, _ in program.layers:
            part: nn.Module = nn.Identity()
            if kind in ("linear", "feedback", "cat", "branch"):
                part = nn.Linear(2 * WIDTH if kind == "cat" else WIDTH, WIDTH)
            elif kind == "neuron":
                part = _neuron(NEURONS[a % len(NEURONS)], program)
            elif kind in ("norm_eval", "norm_train"):
                part = nn.BatchNorm1d(WIDTH, eps=2.0**-20, affine=False)
            elif kind in ("dropout_eval", "dropout_train"):
                part = nn.Dropout(0.5)
            self.parts.append(part)
        self.after = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    for parameter in module.parameters():
                        parameter.copy_(torch.randint(-3, 4, parameter.shape, generator=generator) / 4)
        self.train()
        for (kind, _, _), part in zip(program.layers, self.parts):
            part.train(kind not in ("norm_eval", "dropout_eval"))
        self.counter = 0

    def inputs(self, x: torch.Tensor) -> Any:
        kind, steps = self.program.input, self.program.steps
        if kind == "constant":
            return [x[0]] * steps
        if kind == "index":
            return [x[step] for step in range(steps)]
        if kind == "unbind":
            return x.unbind()
        if kind == "iterate":
            return list(x)
        if kind == "reversed":
            return [x[steps - 1 - step] for step in range(steps)]
        if kind == "second":
            return [x.transpose(0, 1)[:, step] for step in range(steps)]
        if kind == "middle":
            return [x[1:][step] if step + 1 < steps else x[0] for step in range(steps)]
        return [a + b for a, b in zip(x, x.flip(0))]

    def forward(self, x: torch.Tensor) -> Any:
        program = self.program
        count = len(program.layers)
        states: List[Any] = [None] * count
        if not program.init_hidden:
            for place, part in enumerate(self.parts):
                if isinstance(part, snn.Leaky) or hasattr(part, "reset_mem"):
                    if program.states == "reset":
                        made = part.reset_mem()
                        states[place] = made if isinstance(made, tuple) else (made,)
                    elif program.states == "given" and type(part) is snn.Leaky:
                        states[place] = (x[0] * 0.5,)
                    else:
                        part.reset_mem()
        before: List[Any] = [None] * count
        records: List[List[Any]] = [[] for _ in program.records]
        sums: List[Any] = [0.0] * len(program.records)
        preallocated = [x.new_zeros(program.steps, x.shape[1], WIDTH) for _ in program.records]
        for step, current in enumerate(self.inputs(x)):
            now: List[Any] = []
            value = current
            for place, ((kind, a, b), part) in enumerate(zip(program.layers, self.parts)):
                earlier = now[b % len(now)] if now else current
                if kind == "neuron":
                    if program.init_hidden:
                        value = part(value)
                    else:
                        out = part(value, *(states[place] or ()))
                        value = out[0]
                        states[place] = tuple(out if isinstance(part, snn.RLeaky) else out[1:])
                elif kind in ("linear", "norm_eval", "norm_train", "dropout_eval", "dropout_train"):
                    value = part(value)
                elif kind == "relu":
                    value = torch.relu(value)
                elif kind == "scale":
                    value = value * 0.5 + 0.25 if a % 2 else (value - self.after.weight[0]).clamp(-2, 2)
                elif kind == "reshape":
                    value = value.view(-1, 2, 2).transpose(1, 2).flatten(1)
                elif kind == "cat":
                    value = part(torch.cat([value, earlier], dim=a % 2 * 2 - 1))
                elif kind == "skip":
                    value = value + earlier
                elif kind == "skip_before":
                    last = before[b % count]
                    value = value if last is None else value + last
                elif kind == "feedback":
                    last = before[-1 - b % count]
                    value = part(value if last is None else value + part(last))
                elif kind == "branch":
                    value = part(earlier) if step % 2 == a % 2 else part(value)
                elif kind == "in_place":
                    value = value.clone()
                    value[:, 0] = 0.5
                elif kind == "maximum":
                    value = (
                        torch.maximum(value, torch.as_tensor(0.25)) if a % 2 else torch.where(value > 0, value, earlier)
                    )
                elif kind == "attribute":
                    self.counter = self.counter + 1
                now.append(value)
            before = now
            for index, (kind, place) in enumerate(program.records):
                chosen = now[place % count]
                records[index].append(chosen)
                if kind == "set":
                    preallocated[index][step] = chosen
                elif kind == "sum":
                    sums[index] = sums[index] + chosen
                elif kind == "isum":
                    if step == 0:
                        sums[index] = torch.zeros_like(chosen)
                    sums[index] += chosen
                elif kind == "loss":
                    sums[index] = sums[index] + ((chosen - 0.5) ** 2).mean()
        results: List[Any] = []
        for index, (kind, _) in enumerate(program.records):
            listed = records[index]
            if kind == "stack":
                results.append(torch.stack(listed))
            elif kind == "stack1":
                results.append(torch.stack(listed, dim=1))
            elif kind == "list":
                results.extend(listed)
            elif kind == "set":
                results.append(preallocated[index])
            elif kind in ("sum", "isum", "loss"):
                results.append(sums[index])
            elif kind == "last":
                results.append(listed[-1])
            elif kind == "cat":
                results.append(torch.cat(listed))
            elif kind == "mean":
                results.append(torch.stack(listed).sum(0) / 4)
            elif kind == "every_second":
                results.append(torch.stack(listed[::2]))
            else:
                results.append(torch.stack([self.after(one) for one in listed]).sum(0))
        return results


def make(program: Program) -> Tuple[Net, Net, List[torch.Tensor]]:
    """The network twice, and the inputs of its calls."""
    net = Net(program)
    generator = torch.Generator().manual_seed(program.seed + 100)
    inputs = [
        torch.randint(-4, 9, (program.steps, batch, WIDTH), generator=generator) / 4
        for batch in program.batches[: program.calls]
    ]
    return net, copy.deepcopy(net), inputs


def run(function: Any, net: Net, x: torch.Tensor, train: bool) -> Tuple[List[torch.Tensor], List[Any]]:
    """Results and gradients of a call, after which an optimizer step of a power of two was made."""
    torch.manual_seed(3)
    x = x.clone().requires_grad_(train)
    with torch.set_grad_enabled(train):
        out = function(x)
    gradients: List[Any] = []
    if train and any(one.requires_grad for one in out):
        total = sum((one * ((torch.arange(one.numel()) % 5 - 2.0) / 4).view(one.shape)).sum() for one in out)
        total.backward()
        gradients = [x.grad, *(p.grad for p in net.parameters())]
        gradients = [None if g is None else g.clone() for g in gradients]
        net.zero_grad()
    return [one.detach() for one in out], gradients


def states(net: Net) -> List[torch.Tensor]:
    found = []
    for part in net.parts:
        for name in ("syn", "syn_exc", "syn_inh", "mem", "running_mean", "running_var"):
            if isinstance(getattr(part, name, None), torch.Tensor):
                found.append(getattr(part, name).detach())
    return found
