"""Reasons why a part of a loop runs step by step: the program's lines that cause it, and what to write instead."""

import linecache
import os
import re
import textwrap
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Tuple

import snntorch
import torch
from torch.fx import Node

# Folders of PyTorch, snnTorch and this package: their frames are not the program's.
PACKAGES = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (str(torch.__file__), str(snntorch.__file__), os.path.dirname(os.path.abspath(__file__)))
)
# Columns of wrapped texts, and characters of a quoted line of the program.
_WIDTH, _LONGEST = 110, 90
_FRAME = re.compile(r'^ *File "(.+?)", line (\d+)(?:, in .*)?(?:\n(?! *File ") *(.*))?', re.MULTILINE)


class Kind(NamedTuple):
    """A kind of reason: the explanation, and what to write instead (empty if there is no advice)."""

    why: str
    instead: str


_CUSTOM = "a custom neuron (snnipu.neuron)"
_FED_BACK = (
    "lif(inp(x) + rec(spk), mem), where rec is one nn.Linear or one nn.Conv2d of stride 1, or RLeaky or RSynaptic"
)
# The arithmetic that snnipu.compiler.arithmetic turns into one operator.
_ELEMENTWISE = "elementwise arithmetic in float32 that only adds its inputs, and one surrogate of snnipu.surrogate"
_FUSED = (
    "give the neuron float32 inputs and states and a surrogate of snnipu.surrogate, no inhibition and no "
    f"state_quant; a subclass may replace a part of the step by {_ELEMENTWISE}"
)
_BEFORE_THE_LOOP = (
    "draw the numbers of all steps before the loop, noise = torch.randn(num_steps, ...), and use noise[step]"
)

KINDS: Dict[str, Kind] = {
    # Neurons.
    "hooks": Kind(
        "a hook reads every call",
        "remove the hook, and collect in the loop what it reads: record.append(spk)",
    ),
    "restarted": Kind(
        "a step does not start from the state of the step before",
        "reset before the loop, and give each step the state that the step before returned",
    ),
    "state": Kind(
        "the state is changed between steps",
        f"leave the state alone, or make the change {_ELEMENTWISE}",
    ),
    "parameter": Kind(
        "a parameter is changed between steps",
        f"change it after the loop; if spikes change it immediately, make it a state of {_CUSTOM}",
    ),
    "feedback_elementwise": Kind(
        "the input is computed from the neuron's result of the step before",
        f"use {_ELEMENTWISE}, or write both as {_CUSTOM} with that result as a state",
    ),
    "feedback_layer": Kind(
        "the result reaches the next step's input, but not through one layer that is added to it",
        f"if the model allows it, feed the spikes back by {_FED_BACK}",
    ),
    "feedback_others": Kind(
        "the result reaches the next step's input through another neuron",
        "this model needs a loop over time; if the model may change, feed the spikes of each neuron only to the "
        f"neuron itself, by {_FED_BACK}",
    ),
    "random_order": Kind(
        "random numbers are drawn between the steps, in the loop's order, by calls that take a neuron's result",
        _BEFORE_THE_LOOP,
    ),
    "written": Kind(
        "the input is read from a tensor that every step writes into",
        "give the neuron the value itself; collect the values in a list, and torch.stack it after the loop",
    ),
    "unfused": Kind("the step is not fused: it runs as PyTorch's operators, one by one", _FUSED),
    # Operators.
    "recurrent": Kind("reads its result of the step before", f"use {_ELEMENTWISE}"),
    "random": Kind("draws random numbers, in the loop's order", _BEFORE_THE_LOOP),
    "masks": Kind("draws a mask for each step, in the loop's order", ""),
    "in_place": Kind(
        "a tensor with several names is changed in place",
        "write x = x + y for x += y, and keep no other name for x",
    ),
    "function": Kind(
        "an autograd function that is not known to run over time",
        "make both of its passes elementwise in float32, with one result, or use one of snnipu.surrogate",
    ),
    "unknown": Kind("not known to run over time", "call it after the loop, on the stacked sequence"),
    "numbers": Kind(
        "a number differs from step to step",
        "make a tensor of the numbers before the loop, and use numbers[step]",
    ),
    # Graphs that end early.
    "branch": Kind(
        "Python branches on a tensor's value",
        "write torch.where(condition, a, b) for `if`, or decide after the loop",
    ),
    "value": Kind(
        "Python reads a tensor's value",
        "keep the tensor in the loop, total = total + spk.sum(), and call .item() after the loop",
    ),
    "sizes": Kind(
        "the size of a tensor depends on values of another one",
        "make such tensors outside of the function, for example those of spikegen",
    ),
    "list": Kind(
        "a list that grows in the loop is read in it",
        "keep what the next step needs in a variable, and read the list after the loop",
    ),
    "prints": Kind("it prints, logs or shows progress", "do that after the loop, or between batches"),
    "clock": Kind("it reads the clock", "measure the whole loop"),
    "resets": Kind(
        "snnTorch's class methods reset or detach all neurons of the process, also those of other networks",
        "snntorch.utils.reset(net), or the method of each neuron: lif.reset_mem(), lif.mem = lif.mem.detach()",
    ),
    "neuron": Kind("the neuron's step cannot be traced", _FUSED),
    "break": Kind("this line ends the graph", "move it after the loop"),
}
# Kinds of lines that TorchDynamo cannot trace, and patterns of the line or of TorchDynamo's message. The first match
# counts.
_BREAKS = (
    ("branch", r"(?i)data-dependent|^(if|elif|while)\b.*\.item\(|^assert\b"),
    ("value", r"\.(item|tolist|numpy)\("),
    ("prints", r"\b(print|tqdm|trange)\(|\blogging\."),
    ("clock", r"\btime\.\w+\b"),
)
# Files with the steps of neurons.
_NEURONS = r"[/\\]_?neurons[/\\]"


class Line(NamedTuple):
    """A line of the program."""

    file: str
    number: int
    text: str

    @property
    def place(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number}"


@dataclass(frozen=True)
class Reason:
    """Why a neuron or an operator is called at every step.

    Attributes:
        kind: a key of ``KINDS``.
        lines: the lines of the program that cause it. For feedback, each line reads a result of the line before it,
            and the first line reads the last line's result of the previous step.
        detail: the message of TorchDynamo.
    """

    kind: str
    lines: Tuple[Line, ...] = ()
    detail: str = ""

    @property
    def why(self) -> str:
        return KINDS[self.kind].why + (f": {self.detail}" if self.detail else "")

    @property
    def instead(self) -> str:
        return KINDS[self.kind].instead

    @property
    def is_feedback(self) -> bool:
        return _is_feedback(self.kind)

    def text_lines(self, head: str) -> List[str]:
        """Return lines of text: the explanation after ``head``, the program's lines, and what to write instead."""
        width = max((len(line.place) for line in self.lines), default=0)
        places = [f"{line.place.ljust(width)}  {line.text}" for line in self.lines]
        if self.is_feedback and self.lines:
            places.append(f"{self.lines[0].place.ljust(width)}  at the next step")
        remedy = f"Instead: {self.instead}." if self.instead else ""
        return [*_wrapped(f"{head}: {self.why}"), *(f"      {place}" for place in places), *_wrapped(remedy, "    ")]


def _wrapped(text: str, indent: str = "") -> List[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent="    ")


def _is_feedback(kind: str) -> bool:
    return kind.startswith("feedback") or kind == "recurrent"


def reason(kind: str, *causes: Node) -> Reason:
    """Return a reason with the program's lines of ``causes``; the lines of feedback start at the loop's first line."""
    stacks = [stack for stack in (frames(str(node.meta.get("stack_trace") or "")) for node in causes) if stack]
    keys = [tuple(line.number for line in stack) for stack in stacks]
    if _is_feedback(kind) and stacks:
        first = keys.index(min(keys))
        stacks = [*stacks[first:], *stacks[:first]]
    else:
        stacks = [stack for _, stack in sorted(zip(keys, stacks))]
    return Reason(kind, tuple(dict.fromkeys(stack[-1] for stack in stacks)))


def frames(trace: str) -> List[Line]:
    """Return the program's frames of a traceback, the innermost last."""
    lines = []
    for file, number, text in _FRAME.findall(trace):
        if not file.startswith(PACKAGES):
            text = text.strip() or linecache.getline(file, int(number)).strip()
            lines.append(Line(file, int(number), text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."))
    return lines


def line_of(node: Node) -> str:
    """Return the program's line that creates a node, as ``file:line``."""
    lines = frames(str(node.meta.get("stack_trace") or ""))
    return lines[-1].place if lines else ""


def reason_of_break(trace: str, message: str) -> Reason:
    """Return the reason why a graph ends, from the traceback of the line and TorchDynamo's message."""
    lines = frames(trace)
    text = lines[-1].text if lines else ""
    kind = next((kind for kind, pattern in _BREAKS if re.search(pattern, f"{text}\n{message}")), "break")
    inside = (trace.rpartition(f'"{lines[-1].file}"')[2] if lines else "").partition("\n")[2]
    deeper = [match[0] for match in _FRAME.findall(inside) if match[0].startswith(PACKAGES[1:])]
    if re.search(r", in (reset|detach)_hidden\b", inside):
        kind = "resets"
    elif deeper and os.path.basename(deeper[-1]) == "deferred_output.py":
        kind = "prints"
    elif deeper and os.path.basename(deeper[-1]) == "trace.py":
        kind = "list"
    elif deeper:
        # A branch in a neuron's code depends on sizes of its input; a branch in code that the neuron calls, on values.
        is_neuron = [bool(re.search(_NEURONS, file)) for file in deeper]
        kind = "sizes" if kind == "branch" and (is_neuron[-1] or not any(is_neuron)) else "neuron"
    return Reason(kind, tuple(lines[-1:]), message if kind == "break" else "")


def reason_of_error(error: BaseException) -> Reason:
    """Return the reason why TorchDynamo cannot trace a function, from the error that it raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    explanation = next((line.partition(": ")[2] for line in lines if line.startswith("Explanation:")), "")
    return reason_of_break(str(error).rpartition("from user code:")[2], explanation or first)
