"""Random programs in which Python reads the number of the step, and arguments that change from call to call.

``f(net, x, a)`` is a loop over time whose steps read ``a`` and ``t`` in several ways. ``a`` is an argument, an
attribute, an element of a dictionary, a global variable or a variable of a closure. Its values differ between the
calls, or are equal.
"""

import random
import textwrap
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, List

import torch
from torch import nn

import snnipu as snn

STEPS, BATCH, INPUTS, CALLS = 6, 2, 3, 6
Pair = namedtuple("Pair", "low high")


@dataclass
class Option:
    """Fields that a program reads."""

    low: int
    high: float = 2.5


class Net(nn.Module):
    """The network of every program."""

    def __init__(self):
        super().__init__()
        self.fc, self.lif = nn.Linear(INPUTS, 2), snn.Leaky(beta=0.5, threshold=0.25)
        self.calls = 0


# The expressions that reach the value.
CARRIERS = ("a", "a", "net.a", "cfg.a", "table['a']", "nested[0]['a'][0]", "SHARED", "held")
# Values of a kind, drawn for each call; expressions of {a} and t that Python evaluates to a number.
KINDS = {
    "integers": (
        lambda r: tuple(r.randrange(-1, STEPS + 1) for _ in range(r.choice((2, 2, 3)))),
        """
        t in {a}
        t not in {a}
        not t in {a}
        t in {a}[1:]
        t in list({a})
        t in {{*{a}}}
        t in ({a}[0], 5)
        t in sorted({a})
        {a}.count(t)
        {a}[0] in (t, 3)
        (t, 0) in [(k, 0) for k in {a}]
        t in tuple(k + 1 for k in {a})
        t in range(min({a}), max({a}) + 1)
        t in dict.fromkeys({a})
        {a}.index(t) if t in {a} else -1
        {a}[t % len({a})]
        {a}[-1 - t % len({a})]
        {a} == (1, 3)
        any(t == k for k in {a})
        sum(k > t for k in {a})
        max({a}) - t
        min({a}, key=lambda k: -k)
        next((k for k in {a} if k > t), 9)
        {{k: k * 2 for k in {a}}}.get(t, 0)
        {a}[0] <= t < {a}[1]
        t % ({a}[0] + 2)
        t // ({a}[0] + 2)
        -t // ({a}[0] + 2)
        -t % ({a}[0] + 2)
        t & {a}[0]
        t | 1
        divmod(t, {a}[0] + 2)[1]
        bool({a}[0])
        {a}[0] ** 2
        len({a}) - t
        int(str({a}[0])) + t
        len(f'{{t}}:{{{a}[0]}}')
        isinstance({a}[0], int)
        len({a}[::2])
        operator.contains({a}, t)
        {a}.__contains__(t)
        [*{a}, t].index(t)
        sum(zip(*[{a}, range(9)]).__next__())
        {a} > (t,)
        len(range(*sorted({a})[:2]))
        bisect.bisect(sorted({a}), t)
        round({a}[0] / 3, 2)
        abs({a}[0] - t)
        math.sqrt(abs({a}[0]))
        {a}[0] << 1
        ~{a}[0]
        t if {a}[0] else -t
        {a}[0] or t
        {a}[0] and t
        (lambda low, *more: low + len(more))(*{a})
        hash({a}[0]) == hash(t)
        set({a}) >= {{t}}
        {a}[0] is None
        sum(k in (t, 2) for k in {a})
        [k for k in range(9) if k in {a}][:1] == [t]
        {a}[bool(t)]
        sum(i for i, k in enumerate({a}) if k == t)
        functools.reduce(operator.add, {a}, t)
        t in {a} or t in (0,)
        """,
    ),
    "lists": (
        lambda r: [r.randrange(STEPS) for _ in range(r.choice((1, 2, 3)))],
        """
        t in {a}
        t not in {a}
        {a}[0] * t
        [t] == {a}
        len({a})
        sum({a}) > t
        {a}[-1]
        t in {a} + [0]
        t in {a} * 2
        t in reversed({a})
        t in [*map(int, {a})]
        max({a} + [t])
        t in {a}[:-1]
        t in tuple({a})
        all(k >= t for k in {a})
        {a}.copy().pop() == t
        {a} < [t]
        """,
    ),
    "ranges": (
        lambda r: range(r.randrange(3), r.choice((3, 4, 5)), r.choice((1, 2))),
        """
        t in {a}
        t not in {a}
        len({a})
        {a}[0] + t
        sum({a})
        t in list({a})
        max({a}) > t
        t in {a}[1:]
        """,
    ),
    "pairs of lists": (
        lambda r: ([r.randrange(STEPS), 1], (r.randrange(STEPS), (r.randrange(STEPS),))),
        """
        t in {a}[0]
        t in {a}[1]
        t in {a}[1][1]
        [t, 1] in {a}
        t in (*{a}[0], *{a}[1])
        {a}[1][0] == t
        """,
    ),
    "numbers": (
        lambda r: r.choice((0, 1, 2, 3, 2, True, 1.0, 2.5, 3.0)),
        """
        t == {a}
        t < {a}
        t * {a}
        t + {a}
        {a} in (t, 2)
        t in ({a},)
        t in [{a}, {a} + 1]
        int({a})
        isinstance({a}, float)
        type({a}) is int
        {a} is True
        len(str({a}))
        float({a}) / 2
        {a} // 2
        max({a}, t)
        {a} if t else 0
        (t > {a}) + (t <= {a})
        round({a})
        {a} == int({a})
        -{a}
        t in (int({a}),)
        [{a}].count(t)
        {a} in range(t)
        {a} in {{t, 1}}
        {a} in {{1: 2}}
        """,
    ),
    "fractions": (
        lambda r: tuple(r.choice((0.0, 0.5, 1.0, 1.5, 2.0)) for _ in range(2)),
        """
        t / 2 in {a}
        t / 2 not in {a}
        t * {a}[0]
        {a}[0] > t
        round({a}[1] * t)
        int({a}[0]) in (t, 1)
        {a}[0] in {a}[1:]
        t in {a}
        min({a})
        math.floor({a}[0]) + t
        {a}[0].is_integer()
        sum({a}) // 1
        """,
    ),
    "slices": (
        lambda r: slice(r.randrange(3), r.choice((None, 3, 5)), r.choice((None, 1, 2))),
        """
        t in range(len(x))[{a}]
        t in [0, 1, 2, 3, 4][{a}]
        t in ({a}.start, 5)
        len('abcdef'[{a}])
        {a} == slice(1, 3)
        """,
    ),
    "dictionaries": (
        lambda r: {name: r.randrange(STEPS) for name in r.sample(("low", "high", "mid"), 2)},
        """
        t in {a}.values()
        t not in {a}.values()
        'low' in {a}
        {a}.get('low', t)
        t in [*{a}.values()]
        sum({a}.values())
        ('low', t) in {a}.items()
        max({a}.values()) > t
        len({a}) * t
        min({a}) == 'low'
        next(iter({a}.values()))
        {{v: k for k, v in {a}.items()}}.get(t) == 'low'
        {a} == {{'low': t}}
        """,
    ),
    "sets": (
        lambda r: {r.randrange(STEPS) for _ in range(2)},
        """
        t in {a}
        t not in {a}
        len({a})
        {{t}} <= {a}
        t in sorted({a})
        max({a})
        len({a} & {{t, 1}})
        """,
    ),
    "words": (
        lambda r: r.choice(("ab", "b", "3", "03", "")),
        """
        str(t) in {a}
        {a} in ('b', 'c')
        len({a})
        {a} == 'ab'
        bool({a}) * t
        {a}.startswith('a')
        """,
    ),
    "named": (
        lambda r: Pair(r.randrange(STEPS), r.randrange(STEPS)),
        """
        t in {a}
        t == {a}.low
        {a}.low + {a}.high > t
        t in ({a}.high,)
        {a} == (1, 2)
        {a}._asdict()['low']
        """,
    ),
    "objects": (
        lambda r: Option(r.randrange(STEPS), r.choice((0.5, 2.5, 2))),
        """
        t in ({a}.low, 5)
        t == {a}.low
        {a}.high * t
        {a}.low in (t, 1)
        t > {a}.high
        [{a}.low].count(t)
        """,
    ),
    "nothing": (
        lambda r: r.choice((None, (), (1,), 2)),
        """
        {a} is None
        t in ({a} or ())  if not isinstance({a}, int) else t == {a}
        bool({a})
        t in ({a}, 1)
        """,
    ),
}
# Uses of the number that a step has read.
EFFECTS = (
    "current = current * ({r})",
    "current = current + ({r}) * 0.25",
    "if {r}: continue",
    "if {r}: current = -current",
    "if ({r}) > 3: break",
    "record.append({r})",
    "current = x[int({r}) % len(x)]",
    "total = total + ({r})",
)
HEADS = (
    "for t in range(len(x)):",
    "for t in range(STEPS):",
    "for t, current in enumerate(x):",
    "for t in range(1, len(x)):",
)


class Writer:
    """A writer of one program; ``values`` are the values of ``a`` in its calls."""

    def __init__(self, seed: int) -> None:
        r = random.Random(seed)
        kind = r.choice(("integers", "integers", *KINDS))
        draw, lines = KINDS[kind]
        expressions = [line.strip() for line in lines.strip().splitlines()]
        self.carrier = r.choice(CARRIERS)
        count = r.choice((1, 1, 2))
        chosen = r.sample(expressions, count)
        body = [r.choice(EFFECTS).format(r=expression.format(a="b")) for expression in chosen]
        head = r.choice(HEADS)
        lines = [
            "def f(net, x, a, cfg, table, nested):",
            " mem, out, record, total = net.lif.init_leaky(), [], [], 0",
            f" b = {self.carrier}",
            f" {head}",
            *([] if "current" in head else ["  current = x[t]"]),
            *(f"  {line}" for line in body),
            "  spk, mem = net.lif(net.fc(current), mem)",
            "  out.append(mem)",
            " return (torch.stack(out) if out else x), record, total",
        ]
        if self.carrier == "held":
            lines = [
                "def outer(net, x, held):",
                *(f" {line}" for line in lines),
                " return f(net, x, None, None, None, None)",
            ]
        self.source = "\n".join(lines) + "\n"
        first = draw(r)
        values = [first, first]
        while len(values) < CALLS:
            values.append(draw(r) if r.random() < 0.7 else r.choice(values))
        self.values: List[Any] = values

    def namespace(self) -> Any:
        names = "import bisect, functools, math, operator\nimport torch\n"
        scope = {"STEPS": STEPS, "SHARED": None}
        exec(names, scope)
        return scope

    def run(self, namespace: Any, net: Any, x: torch.Tensor, value: Any, call: Any = None) -> Any:
        """Call the program's function, or ``call`` instead, with this value."""
        net.a, namespace["SHARED"] = value, value
        if self.carrier == "held":
            return (call or namespace["outer"])(net, x, value)
        function = call or namespace["f"]
        return function(net, x, value, SimpleNamespace(a=value), {"a": value}, [{"a": (value,)}])

    def text(self) -> str:
        return textwrap.indent(self.source, "    ") + "\n".join(f"    # {value!r}" for value in self.values)
