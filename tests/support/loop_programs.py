"""Random programs with a loop over time steps, in the style of snnTorch's users.

Inputs, weights and thresholds are no round numbers: the probability that rounding moves a membrane across its threshold
is about 1e-7 for each spike.
"""

import random
from typing import Any, Dict, List, Sequence, Tuple

import torch
from support import loops
from support.tables import cells_of, lines_of
from torch import nn

WIDTH, CHANNELS, SIDE = 4, 2, 4
# Kind, arguments, states, whether it takes maps (None: any input).
NEURONS = (
    ("Leaky", "beta=0.8", ("mem",), None),
    ("Synaptic", "alpha=0.7, beta=0.8", ("syn", "mem"), None),
    ("Alpha", "alpha=0.8, beta=0.7", ("syn_exc", "syn_inh", "mem"), None),
    ("Lapicque", "R=0.5, C=4.0, time_step=1.0", ("mem",), None),
    ("RLeaky", "beta=0.8, all_to_all=False, V=0.5", ("spk", "mem"), None),
    ("RLeaky", f"beta=0.8, linear_features={WIDTH}", ("spk", "mem"), False),
    ("RLeaky", f"beta=0.8, conv2d_channels={CHANNELS}, kernel_size=3", ("spk", "mem"), True),
    ("RSynaptic", f"alpha=0.7, beta=0.8, linear_features={WIDTH}", ("spk", "syn", "mem"), False),
    ("SLSTM", f"{WIDTH}, {WIDTH}", ("syn", "mem"), False),
    ("SConv2dLSTM", f"{CHANNELS}, {CHANNELS}, 3", ("syn", "mem"), True),
)
# Neurons in the program's own operations: states, and a step. v: input; f: spike function; p: a learnt parameter.
WRITTEN = (
    (("mem",), ("{mem} = 0.8 * {mem} + {v}", "{spk} = {f}({mem} - 0.35)", "{mem} = {mem} - 0.35 * {spk}")),
    (("mem",), ("{spk} = {f}({mem} - {p})", "{mem} = (0.8 * {mem} + {v}) * (1 - {spk}.detach())")),
    (
        ("mem", "level"),
        (
            "{mem} = {p} * {mem} + {v}",
            "{spk} = {f}({mem} - (0.3 + {level}))",
            "{level} = 0.7 * {level} + 0.4 * {spk}",
            "{mem} = torch.where({spk} > 0, {mem} * 0.5, {mem})",
        ),
    ),
    (
        ("syn", "mem"),
        (
            "{syn} = 0.7 * {syn} + {v}",
            "{mem} = ({mem} + ({syn} - {mem}) / 2.0).clamp(-1.0, 1.5)",
            "{spk} = {f}({mem} - 0.3)",
            "{syn} = {syn} * (1 - {spk})",
        ),
    ),
    (
        ("mem",),
        (
            "{mem} = {p} * {mem} + {v} - 0.2 * torch.rand_like({mem})",
            "{spk} = {f}({mem} - 0.3)",
            "{mem} = {mem} - {spk}.detach()",
        ),
    ),
    # A neuron that cannot take maps.
    (
        ("mem", "was"),
        (
            "{mem} = 0.8 * {mem} + {v} + {was} @ self.after.weight",
            "{spk} = {was} = {f}({mem} - 0.3)",
            "{mem} = {mem} - 0.3 * {spk}",
        ),
    ),
)
# Changes of a membrane between two steps of these neurons.
BETWEEN = ("{m}.clamp(min=-0.25)", "{m} - 0.1 * {s}", "{m} * (1 - 0.5 * {s}.detach())")
ELEMENTWISE = ("Leaky", "Synaptic", "Alpha", "Lapicque")
# Expressions of a value v and an earlier value e of the step, by whether they are maps.
EXPRESSIONS = {
    False: lines_of(
        """
    torch.relu({v})
    {v} * 0.5 + 0.25
    ({v} - self.after.weight[0]).clamp(-2, 2)
    {v} + {e}
    {v}.view(len({v}), 2, 2).transpose(1, 2).flatten(1)
    torch.cat([{v}, {e}], 1)[:, 2:6]
    torch.cat([{v}, {e}])[:len({v})]
    torch.where({v} > 0.1, {v}, {e})
    torch.maximum({v}, torch.as_tensor(0.25))
    F.layer_norm({v}, (4,))
    F.dropout({v}, 0.25)
    {v}.softmax(1) + {v}.mean(0)
    """
    ),
    True: lines_of(
        """
    torch.relu({v})
    {v} + {e}
    F.avg_pool2d({v}, 3, 1, 1)
    F.max_pool2d({v}, 3, 1, 1)
    {v} * {v}.mean()
    """
    ),
}
MODULES = {
    False: lines_of(
        """
    nn.Linear(4, 4)
    nn.Linear(4, 4)
    nn.BatchNorm1d(4, momentum=0.3)
    nn.BatchNorm1d(4)
    nn.BatchNorm1d(4, affine=False)
    nn.BatchNorm1d(4).eval()
    nn.Dropout(0.4)
    nn.Dropout(0.4).eval()
    nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Dropout1d(0.4), nn.Flatten())
    """
    ),
    True: lines_of(
        """
    nn.Conv2d(2, 2, 3, padding=1)
    nn.Conv2d(2, 2, 1, bias=False)
    nn.BatchNorm2d(2)
    nn.Dropout2d(0.4)
    nn.Dropout(0.3)
    """
    ),
}
# Recurrence: a neuron's previous spikes through a layer, which becomes one operator.
RECURRENT = {
    False: (
        "{v} + self.{m}({s})",
        "self.{m}({s}) + {v}",
        "{v} + {s} @ self.{m}.weight",
        "{v}.add(F.linear({s}, self.{m}.weight))",
    ),
    True: ("{v} + self.{m}({s})",),
}
# Head of the loop, statement before it, the step's input, the name of the step's number.
HEADS = cells_of(
    """
    for _ in range({T})                |                               | x[0]                              |
    for step in range({T})             |                               | x[step]                           | step
    for step in range(x.shape[0])      |                               | x[step]                           | step
    for step in range({T})             | y = x.transpose(0, 1)         | y[:, step]                        | step
    for step in range({T})             | y = x.movedim(0, -1)          | y[..., step]                      | step
    for step in range({T})             | y = x.transpose(0, 1)         | y[:, step : step + 1].squeeze(1)  | step
    for step in range({T})             |                               | x[-1 - step, :]                   | step
    for step in range({T})             | y = x.repeat_interleave(2, 0) | y[2 * step : 2 * step + 2].sum(0) | step
    for step in range(1, {T})          |                               | x[step]                           |
    for step in range({T} - 1, -1, -1) |                               | x[step]                           |
    for current in x                   |                               | current                           |
    for current in x.unbind()          |                               | current                           |
    for step, current in enumerate(x)  |                               | current                           | step
    for a, b in zip(x, x.flip(0))      |                               | (a + b)                           |
    """
)
# Records of a value v: statement before the loop, statement in a step, and the result.
RECORDS = cells_of(
    r"""
    {r} = []                               | {r}.append({v})                      | torch.stack({r})
    {r} = []                               | {r}.append({v})                      | torch.stack({r}, dim=1)
    {r} = []                               | {r}.append({v})                      | torch.cat({r})
    {r} = []                               | {r}.append({v})                      | {r}[-1]
    {r} = []                               | {r}.append({v})                      | *{r}
    {r} = []                               | {r}.append({v})                      | torch.stack({r}[::2])
    {r} = []                               | {r}.append({v})                      | torch.stack({r}).mean(0)
    {r} = []                               | {r}.append({v})                      | sum(one * 2 for one in {r})
    {r} = {zeros}                          | {r} += {v}                           | {r}
    {r} = {zeros}                          | {r} = {r} + {v}.detach()             | {r}
    {r} = torch.zeros(())                  | {r} += {v}.sum()                     | {r}
    {r} = 0.0                              | {r} += {v}.mean().item()             | torch.zeros(()) + {r}
    {r} = []                               | {r}.append(float({v}[0].max()))      | torch.zeros(()) + {r}[-1] + {r}[0]
    {r} = torch.zeros(())                  | {r} += {v}.sum().detach()            | {r}
    {r} = 0                                | {r} += {v}                           | {r}
    {r} = 0                                | {r} = {r} + (({v} - 0.5) ** 2).mean() | {r}
    {r} = torch.zeros({T})                 | {r}[step] += {v}.mean()              | {r}
    {r} = torch.zeros({T}, *{zeros}.shape) | {r}[step] = {v}                      | {r}
    {r} = torch.zeros(())                  | with torch.no_grad():\n    {r} += {v}.sum() | {r}
                                           | self.total += {v}.detach().sum()     | {v}
                                           | self.count = self.count + 1          | {v}
    """
)
SURROGATES = ("fast_sigmoid(slope=5)", "atan(alpha=1.5)", "sigmoid(slope=4)", "straight_through_estimator()")


class Spike(torch.autograd.Function):
    """A program's own surrogate."""

    @staticmethod
    def forward(ctx: Any, u: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(u)
        return (u > 0).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (u,) = ctx.saved_tensors
        return grad * torch.exp(-2.0 * u.abs())


class Draws:
    """Choices that a seed determines."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability


class Writer(Draws):
    """A writer of one program.

    Attributes:
        source: the source of the class ``Net``.
        steps, input: the number of steps, and the shape of a step of the input for one sample.
        feedback: whether a step reads a later layer's value of the previous step, which no operator does.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lines: Dict[str, List[str]] = {"init": [], "start": [], "step": [], "end": []}
        self.names = 0
        self.feedback = False
        self.steps = self.pick(2, 3, 4, 5, 8, 9, 11, 14)
        self.maps = self.chance(0.3)
        self.shape = self.input = (CHANNELS, SIDE, SIDE) if self.maps else (WIDTH,)
        self.only_membranes = self.chance(0.2)
        self.hidden = not self.only_membranes and self.chance(0.3)
        self.reset = (
            self.pick("utils", "each", "carried") if self.hidden else self.pick("each", "none", "given", "carried")
        )
        self.train, self.input_gradient = self.chance(0.8), self.chance(0.7)
        self.batches = [self.pick(2, 3, 4)] * self.pick(1, 2, 3)
        if len(self.batches) > 1 and self.reset != "carried" and self.chance(0.5):
            self.batches[1] = 5
        self.dynamic = self.pick(None, True)
        self.part_bytes = self.pick(2**24, 1, 400)
        self.source = self._program()

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def write(self, where: str, *lines: str) -> None:
        self.lines[where] += lines

    def module(self, constructor: str, kind: str = "layer") -> str:
        name = self.name(kind)
        self.write("init", f"self.{name} = {constructor}")
        return name

    def value(self, expression: str) -> str:
        name = self.name("v")
        self.write("step", f"{name} = {expression}")
        self.earlier.append(name)
        return name

    def zeros(self, batch: str = "x.shape[1]") -> str:
        return f"torch.zeros({batch}, {', '.join(map(str, self.shape))})"

    def _program(self) -> str:
        head, before, current, self.number = self.pick(*HEADS)
        self.write("start", *[before] * bool(before))
        if self.reset == "utils":
            self.write("start", "utils.reset(self)")
        self.values: List[Tuple[str, str]] = []  # values that a step may record, and zeros of their shape
        v = current
        if self.maps:
            v = self._layers(v)
            self.maps, self.shape = False, (WIDTH,)
            self.values = self.values[:2]
            v = self.value(f"self.{self.module(f'nn.Linear({CHANNELS * SIDE * SIDE}, {WIDTH})')}({v}.flatten(1))")
        v = self._layers(v)
        if self.only_membranes:
            self.write("step", f"_, mem = self.{self.module('snn.Leaky(beta=0.9, learn_beta=True)')}({v}, mem)")
            self.write("start", f"mem = torch.zeros(x.shape[1], {WIDTH})")
            self.values = [("mem", self.zeros())]
        else:
            self.values += [(v, self.zeros())] * 2
        results = [self.record(*self.pick(*self.values)) for _ in range(self.pick(1, 2, 3))]
        frozen = self.pick("", "", "", "self.requires_grad_(False)", "next(self.children()).requires_grad_(False)")
        self.write(
            "init", "self.after = nn.Linear(4, 4)", 'self.register_buffer("total", torch.zeros(()))', "self.count = 0"
        )
        self.write("init", *[frozen] * bool(frozen))
        lines = ["class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += [f"        {line}" for line in self.lines["init"]]
        lines += ["    def forward(self, x):", *(f"        {line}" for line in self.lines["start"])]
        lines += [f"        {head.format(T=self.steps)}:", *(f"            {line}" for line in self.lines["step"])]
        lines += [f"        {line}" for line in self.lines["end"]]
        return "\n".join([*lines, f"        return [{', '.join(results)}]", ""])

    def _layers(self, v: str) -> str:
        self.earlier = [v]
        kinds = [self.expression, self.expression, self.layer, self.layer, self.branch, self.in_place, self.delayed]
        kinds += [self.spikes] * 3 + [self.several, self.written]
        modules = [self.pick(*kinds) for _ in range(self.random.randrange(4))]
        modules.insert(self.random.randrange(len(modules) + 1), self.spikes)
        modules += [self.pick(*kinds)] * self.chance(0.5)
        if self.chance(0.15):
            modules.insert(self.random.randrange(len(modules)), self.no_gradient)
        back = self.name("back")
        feedback = self.chance(0.15)
        if feedback:
            self.feedback = True
            self.write("start", f"{back} = {self.zeros()}")
            v = self.value(f"{v} + 0.5 * {back}")
        for layer in modules:
            v = layer(v)
        if feedback:
            self.write("step", f"{back} = {v}")
        return v

    # ---- layers: each takes the name of a value and returns the name of its output

    def expression(self, v: str) -> str:
        return self.value(self.pick(*EXPRESSIONS[self.maps]).format(v=v, e=self.pick(*self.earlier)))

    def layer(self, v: str) -> str:
        return self.value(f"self.{self.module(self.pick(*MODULES[self.maps]))}({v})")

    def branch(self, v: str) -> str:
        first, other = (self.module(MODULES[self.maps][0]) for _ in range(2))
        condition = f"{self.number} % 2" if self.number else f"{self.steps} > 9"
        return self.value(f"self.{first}({v}) if {condition} else self.{other}({v})")

    def in_place(self, v: str) -> str:
        value = self.value(f"{v} * 1.5")
        changes = (
            "{v} += {e}",
            "{v}[:, 0] = 0.5",
            "F.relu({v}, inplace=True)",
            "{v}.clamp_(-1, 1)",
            "{v} -= {v}.mean()",
        )
        self.write("step", self.pick(*changes).format(v=value, e=self.pick(*self.earlier)))
        return value

    def delayed(self, v: str) -> str:
        old = self.name("old")
        self.write("start", f"{old} = {self.zeros()}")
        value = self.value(f"{v} + 0.5 * {old}")
        self.write("step", f"{old} = {v}")
        return value

    def no_gradient(self, v: str) -> str:
        scale = self.name("scale")
        self.write("step", "with torch.no_grad():", f"    {scale} = {v}.abs().mean()")
        return self.value(f"{v} * {scale}")

    def spikes(self, v: str) -> str:
        kinds = [neuron for neuron in NEURONS if neuron[3] in (None, self.maps)]
        kind, arguments, states, _ = self.pick(*kinds, *[NEURONS[0]] * 6)
        options = [
            arguments,
            f"threshold={self.pick(0.3, 0.45)}",
            f"spike_grad=surrogate.{self.pick(*SURROGATES)}",
            f"reset_mechanism={self.pick('subtract', 'subtract', 'zero', 'none')!r}",
            f"learn_threshold={self.chance(0.3)}",
        ]
        if kind == "Leaky":
            options += [f"learn_beta={self.chance(0.5)}", f"reset_delay={self.chance(0.7)}"]
        output = self.hidden and self.chance(0.5)
        if self.hidden:
            options += ["init_hidden=True", f"output={output}"]
        module = self.module(f"snn.{kind}({', '.join(options)})", "lif")
        names = [self.name(state) for state in states]
        spikes_are_state = states[0] == "spk"
        spk = names[0] if spikes_are_state else self.name("spk")
        results = ", ".join(names if spikes_are_state else [spk, *names])
        if self.hidden:
            self._start_hidden(module, states)
            self.write("step", f"{results if output else spk} = self.{module}({v})")
        else:
            self._start(module, names)
            if not spikes_are_state and self.reset != "none" and self.chance(0.25):
                self.write("start", f"{spk} = {self.zeros()}")
                m = self.module(MODULES[self.maps][0], "rec")
                v = self.value(self.pick(*RECURRENT[self.maps]).format(v=v, s=spk, m=m))
                self.feedback = self.feedback or "LSTM" in kind
            self.write("step", f"{results} = self.{module}({v}, {', '.join(names)})")
            if kind in ELEMENTWISE and self.chance(0.1):
                self.write("step", f"{names[-1]} = {self.pick(*BETWEEN).format(m=names[-1], s=spk)}")
        if output or not self.hidden:
            self.values.append((names[-1], self.zeros()))
        self.values.append((spk, self.zeros()))
        self.earlier.append(spk)
        return spk

    def _start(self, neuron: str, names: List[str]) -> None:
        """Write the start of states that are arguments."""
        left = ", ".join(names)
        if self.reset == "each" or len(names) > 1:
            self.write("start", f"{left} = self.{neuron}.reset_mem()")
        elif self.reset == "none":
            self.write("start", f"self.{neuron}.reset_mem()", f"{left} = None")
        elif self.reset == "given":
            self.write("start", f"{left} = {self.zeros()} + 0.2")
        else:
            self.write("init", f"self.{left} = {self.zeros(str(self.batches[0]))}")
            self.write("start", f"{left} = self.{left}")
            self.write("end", f"self.{left} = {left}.detach()")

    def _start_hidden(self, neuron: str, states: Tuple[str, ...]) -> None:
        if self.reset == "each":
            self.write("start", f"self.{neuron}.reset_mem()")
        else:  # snnTorch's utils.reset does not reset spikes
            left = states if self.reset == "carried" else [state for state in states if state == "spk"]
            self.write("end", *(f"self.{neuron}.{state} = self.{neuron}.{state}.detach()" for state in left))

    def written(self, v: str) -> str:
        """Write a neuron in the program's own operations."""
        states, lines = self.pick(*(WRITTEN[:-1] if self.maps else WRITTEN))
        spk, learnt, surrogate_name = self.name("spk"), self.name("p"), self.name("spike")
        surrogate = self.pick("surrogate.fast_sigmoid(slope=5)", "surrogate.atan(alpha=1.5)", "Spike.apply")
        self.write("init", f"self.{surrogate_name} = {surrogate}", f"self.{learnt} = nn.Parameter(torch.tensor(0.45))")
        names = {state: self.name(state) for state in states}
        self.write("start", *(f"{name} = {self.zeros()}" for name in names.values()))
        fields = {**names, "v": v, "spk": spk, "f": f"self.{surrogate_name}", "p": f"self.{learnt}"}
        self.write("step", *(line.format(**fields) for line in lines))
        self.values += [(names["mem"], self.zeros()), (spk, self.zeros())]
        self.earlier.append(spk)
        return spk

    def several(self, v: str) -> str:
        """Write a list of layers of neurons with a list of their membranes."""
        if self.hidden or self.maps:
            return self.spikes(v)
        cells, maps, mems, rates = (self.name(kind) for kind in ("cells", "maps", "mems", "rates"))
        self.write("init", f"self.{cells} = nn.ModuleList(snn.Leaky(beta=0.7, threshold=0.3) for _ in range(2))")
        self.write("init", f"self.{maps} = nn.ModuleList(nn.Linear({WIDTH}, {WIDTH}) for _ in range(2))")
        self.write("start", f"{mems} = [cell.reset_mem() for cell in self.{cells}]", f"{rates} = torch.zeros(2)")
        value = self.value(v)
        self.write("step", "for i in range(2):")
        self.write("step", f"    {value}, {mems}[i] = self.{cells}[i](self.{maps}[i]({value}), {mems}[i])")
        self.write("step", f"    {rates}[i] += {value}.mean(){self.pick('', '.detach()')}")
        self.values += [(f"{mems}[1]", self.zeros()), (f"({rates} * 1)", "torch.zeros(2)")]
        return value

    # ---- records of a value

    def record(self, v: str, zeros: str) -> str:
        """Write a record of a value, and return the expression of its result."""
        name = self.name("rec")
        start, step, result = self.pick(*RECORDS)
        if "[step]" in step and not self.number:
            start, step, result = RECORDS[0]
        fields = {"r": name, "v": v, "zeros": zeros, "T": self.steps}
        self.write("start", *[start.format(**fields)] * bool(start))
        self.write("step", *step.format(**fields).splitlines())
        return result.format(**fields)


def make(source: str, seed: int) -> nn.Module:
    """Make the network of a program."""
    torch.manual_seed(seed)
    net: nn.Module = loops.made(source, Spike=Spike)
    return net


def check(program: Writer, nets: Sequence[nn.Module], compiled: Any, batches: Sequence[int]) -> None:
    """Check that the compiled second network returns and changes the same as the loop of the first one."""
    for batch in batches:
        x = torch.rand(program.steps, batch, *program.input) * 2 - 0.5
        expected, actual = (
            loops.outcome(call, net, x, program.train, program.input_gradient)
            for call, net in zip((nets[0], compiled), nets)
        )
        loops.check(actual, expected)
