"""What the compiler made of a graph, and why not more."""

import traceback
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Union

import snntorch
from torch.fx import GraphModule, Node

from snnipu.compiler import nodes, rules
from snnipu.compiler.parts import Stretch
from snnipu.compiler.plan import Bundle, Plan, is_step, module_of
from snnipu.compiler.reasons import Line, Reason, line_of, of_break, reason
from snnipu.neurons.paths import Path, text_table


@dataclass(frozen=True)
class Neuron:
    """A layer of neurons, or what goes on with its states, in one graph.

    Attributes:
        name: as the network calls it.
        kind: its class.
        line: where it is called.
        steps: time steps that the graph has of it.
        reason: why they are not one operator; None: they are.
        place: of the first step, in the program's order.
    """

    name: str
    kind: str
    line: str
    steps: int
    reason: Optional[Reason]
    place: int = 0

    @property
    def rolled(self) -> bool:
        return self.reason is None

    @property
    def why_not(self) -> str:
        return "" if self.reason is None else self.reason.why


@dataclass(frozen=True)
class Batched:
    """An operator around the neurons.

    Attributes:
        name: PyTorch's name of it.
        line: where it stands.
        calls: how often the loop calls it.
        times: how often the rolled graph does.
        reason: why more often than once; None: it is not known, or called once.
    """

    name: str
    line: str
    calls: int
    times: int
    reason: Optional[Reason]


@dataclass(frozen=True)
class GraphReport:
    """One graph.

    Attributes:
        neurons, operators: what was found in it.
        unfused: neurons whose steps are operators of PyTorch, which are among ``operators``.
        nodes: their number before and after rolling.
        seconds: that rolling took.
        failed: the error that left the graph as it was; empty: none.
        graph_break: why the graph ends although the function does not; None where it does.
        code: the rolled graph as Python, then those of what runs in parts of time.
    """

    neurons: Tuple[Neuron, ...]
    unfused: Tuple[Neuron, ...]
    operators: Tuple[Batched, ...]
    nodes: Tuple[int, int]
    seconds: float
    failed: str
    graph_break: Optional[Reason]
    code: str

    def told(self) -> List[str]:
        """Lines of a text: neurons, operators, then why some of them are called at every step."""
        notes: Dict[Any, Tuple[List[str], List[Line]]] = {}

        def note(one: Union[Neuron, Batched]) -> str:
            if one.reason is None:
                return ""
            # The lines of a way on which results come back belong together.
            key = one.reason if one.reason.comes_back else replace(one.reason, lines=())
            names, lines = notes.setdefault(key, ([], []))
            names.append(one.name)
            lines.extend(one.reason.lines)
            return f"[{list(notes).index(key) + 1}]"

        neurons = [
            (n.name, n.kind, n.line, str(n.steps), f"step by step {note(n)}" if n.reason else "one operator")
            for n in sorted((*self.neurons, *self.unfused), key=lambda neuron: neuron.place)
        ]
        operators = [(o.name, o.line, str(o.calls), str(o.times), note(o)) for o in self.operators]
        lines = text_table(("neuron", "kind", "line", "steps", "runs as"), neurons) if neurons else ["no neurons"]
        if operators:
            lines += ["", *text_table(("operator", "line", "in the loop", "now", "why"), operators)]
        for number, (key, (names, own)) in enumerate(notes.items(), 1):
            why = replace(key, lines=tuple(dict.fromkeys(own)))
            lines += ["", *why.told(f"[{number}] {', '.join(dict.fromkeys(names))}")]
        lines += ["", f"{self.nodes[0]} nodes before, {self.nodes[1]} after; rolled in {self.seconds:.2f} s"]
        return [*lines, *([f"left as it was: {self.failed}"] if self.failed else [])]


@dataclass(frozen=True)
class Report:
    """What :func:`snnipu.compiler.explain` returns; ``str`` gives tables.

    Attributes:
        graphs: one for each graph, in the order in which they were compiled.
        seconds: of the whole first call: tracing, rolling, and one run.
        refused: the first line that TorchDynamo cannot trace; None: there is none.
        alone: names of the module's neurons that no graph has over time, where graphs end early.
        products: linear layers and convolutions that looked whether their input is mostly zeros.
    """

    graphs: Tuple[GraphReport, ...]
    seconds: float
    refused: Optional[Reason] = None
    alone: Tuple[str, ...] = ()
    products: Tuple[Path, ...] = ()

    @property
    def neurons(self) -> List[Neuron]:
        return [one for graph in self._shown() for one in (*graph.neurons, *graph.unfused)]

    @property
    def graph_breaks(self) -> List[Reason]:
        """Where graphs end, one for each line, the first one of the program first."""
        found = [self.refused, *(graph.graph_break for graph in self.graphs)]
        first = {one.lines: one for one in reversed(found) if one is not None}
        return [first[lines] for lines in reversed(list(first)) if lines or len(first) == 1]

    def _shown(self) -> List[GraphReport]:
        """A loop with a graph break in it is no graph: what its steps call is, each a graph of single steps."""
        return [one for one in self.graphs if not self.graph_breaks or any(n.steps > 1 for n in one.neurons)]

    def __str__(self) -> str:
        lines: List[str] = []
        for one in self.graph_breaks:
            lines += [*one.told("graph break"), ""]
        if self.alone:
            lines += [
                f"neurons of no compiled loop, for one with a graph break in it runs as it is: {', '.join(self.alone)}",
                "",
            ]
        shown = self._shown()
        for number, graph in enumerate(shown):
            if len(shown) > 1:
                lines += [f"graph {number + 1} of {len(shown)}", ""]
            lines += [*graph.told(), ""]
        products = [product.cells for product in self.products if product.limit]
        if products:
            lines += [*text_table(("product", "kind", "runs by", "input not zero", "events up to"), products), ""]
        lines.append(f"first call, compilation included: {self.seconds:.2f} s")
        return "\n".join(lines)


def report_of(
    module: GraphModule, rolled: GraphModule, plan: Optional[Plan], seconds: float, failed: str
) -> GraphReport:
    """What was made of ``module``."""
    neurons: Tuple[Neuron, ...] = ()
    unfused: Tuple[Neuron, ...] = ()
    operators: Tuple[Batched, ...] = ()
    if plan is not None:
        neurons = _neurons(plan)
        unfused = _unfused(plan, {neuron.name for neuron in neurons})
        operators = _operators(module, plan, {neuron.name: neuron.reason for neuron in unfused})
    graphs = [rolled]
    for node in rolled.graph.nodes:
        stretch = getattr(rolled, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(stretch, Stretch) and stretch.body is not None:
            graphs.append(stretch.body)
    return GraphReport(
        neurons,
        unfused,
        operators,
        (len(module.graph.nodes), sum(len(graph.graph.nodes) for graph in graphs)),
        seconds,
        failed,
        _graph_break(module),
        "\n".join(graph.code for graph in graphs),
    )


def _neurons(plan: Plan) -> Tuple[Neuron, ...]:
    """Neurons in the order in which the program calls them; the steps that stay steps for one reason as one."""
    steps: Dict[Any, List[Node]] = {}
    for chain in plan.chains:
        alone = chain.steps[0] if chain.reason is None else None
        key = (chain.name, chain.kind, line_of(chain.steps[0]), chain.reason, chain.apart, alone)
        steps.setdefault(key, []).extend(chain.steps)
    return tuple(
        Neuron(name, kind, line, len(found) + apart, why, plan.place[found[0]])
        for (name, kind, line, why, apart, _), found in steps.items()
    )


def _unfused(plan: Plan, known: Set[str]) -> Tuple[Neuron, ...]:
    """The neurons whose steps are no nodes, called as often as most of their operators."""
    calls: Dict[Tuple[str, str], List[Node]] = {}
    for node in plan.graph.nodes:
        name, kind = module_of(node, snntorch.SpikingNeuron)
        if kind and name not in known and node.op in ("call_function", "call_method"):
            calls.setdefault((name, kind), []).append(node)
    found = []
    for (name, kind), made in calls.items():
        times = Counter((node.target, str(node.meta.get("stack_trace"))) for node in made)
        steps = Counter(times.values()).most_common(1)[0][0]
        found.append(Neuron(name, kind, line_of(made[0]), steps, reason("unfused", made[0]), plan.place[made[0]]))
    return tuple(found)


def _operators(module: GraphModule, plan: Plan, unfused: Dict[str, Optional[Reason]]) -> Tuple[Batched, ...]:
    """Operators that the loop calls, by name and line."""

    def key(node: Node) -> Tuple[str, str]:
        return _name(node), line_of(node)

    def counts(node: Node) -> bool:
        name = nodes.name_of(node)
        return (
            node.op in ("call_function", "call_method", "call_module")
            and not is_step(node)
            and not nodes.is_barrier(node)
            and name
            not in (
                "getitem",
                "setitem",
                "stack",
            )
        )

    steps = min((len(chain.steps) for chain in plan.chains if len(chain.steps) > 1), default=2)
    calls = Counter(key(node) for node in module.graph.nodes if counts(node))
    units: Dict[Tuple[str, str], List[Any]] = {}
    for node in plan.graph.nodes:
        if counts(node):
            units.setdefault(key(node), []).append((plan.unit(node), node))
    found = []
    for (name, line), number in calls.items():
        if number < steps:
            continue
        there = units.get((name, line), [])
        separate = list(dict.fromkeys(unit for unit, _ in there))
        single = [node for unit, node in there if not isinstance(unit, Bundle)]
        why = None
        if len(single) > 1:
            why = unfused.get(module_of(single[0], snntorch.SpikingNeuron)[0]) or _why_not(single, plan)
        found.append(Batched(name, line, number, len(separate), why))
    return tuple(found)


def _name(node: Node) -> str:
    return nodes.name_of(node) or getattr(node.target, "__name__", str(node.target))


def _why_not(calls: Sequence[Node], plan: Plan) -> Optional[Reason]:
    """Why the calls of an operator, one a step, are not one; None: what it takes is there one step at a time."""
    node = calls[0]
    if node in plan.random:
        return reason("masks" if "dropout" in _name(node) else "random", node)
    if node in plan.reasons:
        return plan.reasons[node]
    if getattr(node.target, "__name__", "") == "autograd_function_apply":
        return reason("function", node)
    if node in plan.memory.changes and nodes.name_of(node):
        return reason("in_place", node)
    if not node.all_input_nodes:
        return None
    if nodes.name_of(node) not in rules.RULES:
        return reason("unknown", node)
    numbers = [[one for one in call.args if not isinstance(one, Node)] for call in calls[:2]]
    return reason("numbers", node) if numbers[0] != numbers[-1] else None


def _graph_break(module: GraphModule) -> Optional[Reason]:
    why = getattr(module, "compile_subgraph_reason", None)
    if why is None or not getattr(why, "graph_break", False):
        return None
    stack = traceback.format_list(list(getattr(why, "user_stack", None) or []))
    said = str(why.reason).strip().splitlines()
    return of_break("".join(stack), said[0] if said else "")
