"""Reports of compiled loops: each neuron and operator, and the reason why it runs step by step."""

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import snntorch
import torch
from torch.fx import Node

from snnipu.compiler import nodes
from snnipu.compiler.distribute import Distribution
from snnipu.compiler.marks import MARKS
from snnipu.compiler.reasons import Reason, line_of, reason
from snnipu.compiler.steps import is_step, module_of
from snnipu.neurons.paths import Path, text_table

_UNREPORTED = ("getitem", "setitem", "stack", "select", "narrow")


@dataclass(frozen=True)
class NeuronReport:
    """A layer of neurons in a loop.

    Attributes:
        name: the name of the module in the network.
        kind: the class of the module.
        line: the line that calls it, as ``file:line``.
        steps: the number of steps.
        reason: why its steps are not one operator; None if they are.
    """

    name: str
    kind: str
    line: str
    steps: int
    reason: Optional[Reason]

    @property
    def rolled(self) -> bool:
        return self.reason is None

    @property
    def why_not(self) -> str:
        return "" if self.reason is None else self.reason.why


@dataclass(frozen=True)
class OperatorReport:
    """An operator around the neurons.

    Attributes:
        name: the name that PyTorch gives it.
        line: the line that calls it, as ``file:line``.
        calls: the number of calls in the program's loop.
        times: the number of calls in the compiled loop.
        reason: why it is called more than once; None if it is called once.
    """

    name: str
    line: str
    calls: int
    times: int
    reason: Optional[Reason]


@dataclass(frozen=True)
class LoopReport:
    """A loop that ran.

    Attributes:
        label: file, line and function.
        neurons, operators: the neurons and operators of the body, in the program's order.
        runs_as: ``compiled``, or why the loop runs in Python.
        reason: the program's lines for which the loop runs in Python, and what to write instead; None if unknown.
    """

    label: str
    neurons: Tuple[NeuronReport, ...] = ()
    operators: Tuple[OperatorReport, ...] = ()
    runs_as: str = "compiled"
    reason: Optional[Reason] = None

    def text_lines(self) -> List[str]:
        """Return lines of text: the neurons, the operators, and why some of them run step by step."""
        if self.runs_as != "compiled":
            return [
                f"{self.label} runs in Python: {self.runs_as}",
                *(self.reason.text_lines("the cause") if self.reason else ()),
            ]
        notes = self._notes()
        neurons = [
            (n.name, n.kind, n.line, str(n.steps), f"step by step {_mark(n, notes)}" if n.reason else "one operator")
            for n in self.neurons
        ]
        operators = [(o.name, o.line, str(o.calls), str(o.times), _mark(o, notes)) for o in self.operators]
        lines = [self.label, "", *text_table(("neuron", "kind", "line", "steps", "runs as"), neurons)]
        if operators:
            lines += ["", *text_table(("operator", "line", "in the loop", "now", "why"), operators)]
        return [*lines, *self.notes()]

    def notes(self) -> List[str]:
        """Return lines of text: why some neurons and operators run step by step."""
        lines: List[str] = []
        for number, (key, same) in enumerate(self._notes().items(), 1):
            causes = [line for entry in same if entry.reason is not None for line in entry.reason.lines]
            why = replace(key, lines=tuple(dict.fromkeys(causes)))
            lines += ["", *why.text_lines(f"[{number}] {', '.join(dict.fromkeys(entry.name for entry in same))}")]
        return lines

    def _notes(self) -> Dict[Reason, List[Union[NeuronReport, OperatorReport]]]:
        """Return the neurons and operators that run step by step, by their reason."""
        notes: Dict[Reason, List[Union[NeuronReport, OperatorReport]]] = {}
        entries: List[Union[NeuronReport, OperatorReport]] = [*self.neurons, *self.operators]
        for entry in entries:
            if entry.reason is not None:
                notes.setdefault(_key(entry.reason), []).append(entry)
        return notes


def _key(reason: Reason) -> Reason:
    """Return the reason without its lines. A feedback keeps its lines, which distinguish it from other feedbacks."""
    return reason if reason.is_feedback else replace(reason, lines=())


def _mark(
    entry: Union[NeuronReport, OperatorReport], notes: Dict[Reason, List[Union[NeuronReport, OperatorReport]]]
) -> str:
    return "" if entry.reason is None else f"[{list(notes).index(_key(entry.reason)) + 1}]"


@dataclass(frozen=True)
class Report:
    """The result of :func:`snnipu.compiler.explain`; ``str`` gives tables.

    Attributes:
        loops: the loops that ran.
        seconds: the time of the whole call, compilation included.
        products: linear layers and convolutions that can skip zeros of their input.
    """

    loops: Tuple[LoopReport, ...]
    seconds: float
    products: Tuple[Path, ...] = ()

    @property
    def neurons(self) -> List[NeuronReport]:
        return [neuron for loop in self.loops for neuron in loop.neurons]

    @property
    def operators(self) -> List[OperatorReport]:
        return [operator for loop in self.loops for operator in loop.operators]

    def __str__(self) -> str:
        lines: List[str] = []
        for loop in self.loops:
            lines += [*loop.text_lines(), ""]
        if not self.loops:
            lines += ["no loop over time steps ran", ""]
        products = [product.cells for product in self.products if product.limit]
        if products:
            lines += [*text_table(("product", "kind", "runs by", "input not zero", "events up to"), products), ""]
        lines.append(f"the call, compilation included: {self.seconds:.2f} s")
        return "\n".join(lines)


def report_of(label: str, distribution: Distribution, steps: int) -> LoopReport:
    """Return the report of a compiled loop."""
    layers: Dict[Any, NeuronReport] = {}
    unfused: Dict[str, Reason] = {}
    for node in distribution.body.graph.nodes:
        name, kind = module_of(node, snntorch.SpikingNeuron)
        if is_step(node):
            name, kind = module_of(node)
            key = name, kind, line_of(node)
            why = why_alone(node, distribution) if node in distribution.cycles else None
            layers.setdefault(key, NeuronReport(*key, steps, why))
    known = {name for name, _, _ in layers}
    for node in distribution.body.graph.nodes:
        name, kind = module_of(node, snntorch.SpikingNeuron)
        if kind and name not in known and _is_call(node):
            unfused.setdefault(name, reason("unfused", node))
            layers.setdefault((name, kind), NeuronReport(name, kind, line_of(node), steps, unfused[name]))
    return LoopReport(label, tuple(layers.values()), _operators(distribution, steps, unfused))


def _is_call(node: Node) -> bool:
    return (
        node.op in ("call_function", "call_method")
        and node.target not in MARKS
        and not is_step(node)
        and isinstance(nodes.value_of(node), (torch.Tensor, tuple, list))
        and nodes.name_of(node) not in _UNREPORTED
    )


def _operators(distribution: Distribution, steps: int, unfused: Dict[str, Reason]) -> Tuple[OperatorReport, ...]:
    """Return the operators of a loop by name and line."""
    calls = [node for node in distribution.body.graph.nodes if _is_call(node)]
    groups: Dict[Tuple[str, str], List[Node]] = {}
    for node in calls:
        groups.setdefault((_name(node), line_of(node)), []).append(node)
    operators = []
    for (name, line), same in groups.items():
        alone = [node for node in same if node in distribution.cycles]
        why = None
        if alone:
            why = unfused.get(module_of(alone[0], snntorch.SpikingNeuron)[0]) or why_alone(alone[0], distribution)
        times = len(same) + len(alone) * (steps - 1)
        operators.append(OperatorReport(name, line, len(same) * steps, times, why))
    return tuple(operators)


def _name(node: Node) -> str:
    return nodes.name_of(node) or getattr(node.target, "__name__", str(node.target))


def why_alone(node: Node, distribution: Distribution) -> Reason:
    """Return the reason why an operation runs step by step, from the cycle of the graph that it is in."""
    component = distribution.cycles[node]
    if len(component) == 1:
        return _why_single(node, distribution)
    steps = [one for one in component if is_step(one)]
    hooked = [one for one in steps if one.args[5]]
    if hooked:
        return reason(str(hooked[0].args[5]), hooked[0])
    drawn = [one for one in component if nodes.is_random(one)]
    if drawn:
        return reason("random_order", *drawn)
    if not steps:
        return reason("recurrent", *(_path(node, component, distribution) or [node]))
    path = _path(steps[0], component, distribution)
    if path and len({module_of(one) for one in steps}) > 1:
        return reason("feedback_others", *path)
    if path:
        between = {nodes.name_of(one) for one in path if not is_step(one)}
        return reason("feedback_elementwise" if between <= nodes.ELEMENTWISE else "feedback_layer", *path)
    changes = [one for one in component if nodes.name_of(one) and one in distribution.memory.changes]
    if changes:
        roots = {distribution.memory.root(one) for each in changes for one in distribution.memory.changes[each]}
        values = {distribution.memory.root(one) for step in steps for one in nodes.leaves_of(step.args[2])}
        kind = "written" if nodes.name_of(changes[0]) == "setitem" else "parameter" if roots & values else "in_place"
        return reason(kind, *changes[:1])
    # The program changes the neuron's state between two steps.
    inside = set(component) & distribution.body.number_of.keys()
    numbers = [distribution.body.number_of[one] for one in nodes.leaves_of(steps[0].args[1]) if one in inside]
    after = [distribution.body.after[number] for number in numbers]
    changed = [one for one in after if isinstance(one, Node) and nodes.name_of(one) != "getitem"]
    return reason("state", *(changed or steps)[:1])


def _path(node: Node, component: Sequence[Node], distribution: Distribution) -> List[Node]:
    """Return the shortest path from the results of a node to its inputs at a later step, the node first.

    The path to a neuron's step ends at its input, and not at its states.
    """
    inside, body = set(component), distribution.body
    came: Dict[Node, Optional[Node]] = {node: None}
    waiting = [node]
    for one in waiting:  # the list grows
        users = [user for user in one.users if user in inside]
        users += [body.before[n] for n, after in body.after.items() if after is one and body.before.get(n) in inside]
        for user in users:
            if user is node and (not is_step(node) or node.args[0] is one):
                path: List[Any] = [one]
                while came[path[-1]] is not None:
                    path.append(came[path[-1]])
                return [n for n in reversed(path) if n.target not in MARKS and nodes.name_of(n) != "getitem"]
            if user not in came:
                came[user] = one
                waiting.append(user)
    return []


def _why_single(node: Node, distribution: Distribution) -> Reason:
    """Return the reason that an operation without a cycle runs step by step."""
    if is_step(node):
        if node.args[5]:
            return reason(str(node.args[5]), node)
        varying = [one for one in nodes.leaves_of(node.args[2]) if one in distribution.body.varying]
        return reason("parameter", *varying[:1]) if varying else reason("restarted", node)
    if nodes.is_random(node):
        return reason("masks" if "dropout" in _name(node) else "random", node)
    if getattr(node.target, "__name__", "") == "autograd_function_apply":
        return reason("function", node)
    if node in distribution.memory.changes and nodes.name_of(node):
        return reason("in_place", node)
    numbers = [one for one in node.all_input_nodes if not nodes.is_tensor(one) and one in distribution.body.varying]
    return reason("numbers" if numbers else "unknown", node)
