"""What the compiler made of a graph, and why not more."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from torch.fx import GraphModule, Node

from snnipu.compiler import nodes, rules
from snnipu.compiler.parts import Stretch
from snnipu.compiler.plan import Bundle, Plan, is_step


@dataclass(frozen=True)
class Neuron:
    """A layer of neurons, or what goes on with its states, in one graph.

    Attributes:
        name: as the network calls it.
        kind: its class.
        steps: time steps that the graph has of it.
        rolled: whether they are one operator.
        why_not: where they are not.
    """

    name: str
    kind: str
    steps: int
    rolled: bool
    why_not: str


@dataclass(frozen=True)
class Batched:
    """An operator around the neurons.

    Attributes:
        name: PyTorch's name of it.
        calls: how often the loop calls it.
        times: how often the rolled graph does.
        why_not: why more often than once.
        line: where it stands.
    """

    name: str
    calls: int
    times: int
    why_not: str
    line: str


@dataclass(frozen=True)
class GraphReport:
    """One graph.

    Attributes:
        neurons, operators: what was found in it.
        nodes: their number before and after rolling.
        seconds: that rolling took.
        failed: the error that left the graph as it was; empty: none.
        graph_break: where the graph ends although the function does not, and why; empty where it does.
        code: the rolled graph as Python, then those of what runs in parts of time.
    """

    neurons: Tuple[Neuron, ...]
    operators: Tuple[Batched, ...]
    nodes: Tuple[int, int]
    seconds: float
    failed: str
    graph_break: str
    code: str


@dataclass(frozen=True)
class Report:
    """What :func:`snnipu.compiler.explain` returns; ``str`` gives tables.

    Attributes:
        graphs: one for each graph, in the order in which they were compiled.
        seconds: of the whole first call: tracing, rolling, and one run.
    """

    graphs: Tuple[GraphReport, ...]
    seconds: float

    @property
    def neurons(self) -> List[Neuron]:
        return [neuron for graph in self.graphs for neuron in graph.neurons]

    @property
    def graph_breaks(self) -> List[str]:
        return [graph.graph_break for graph in self.graphs if graph.graph_break]

    def __str__(self) -> str:
        lines: List[str] = []
        for number, graph in enumerate(self.graphs):
            if len(self.graphs) > 1:
                lines += [f"graph {number + 1} of {len(self.graphs)}", ""]
            rows = [
                (n.name, n.kind, str(n.steps), "one operator" if n.rolled else f"step by step: {n.why_not}")
                for n in graph.neurons
            ]
            lines += _table(("neuron", "kind", "steps", "runs as"), rows) if rows else ["no neurons"]
            if graph.operators:
                described = [(o.name, str(o.calls), str(o.times), o.why_not or "", o.line) for o in graph.operators]
                lines += ["", *_table(("operator", "in the loop", "now", "why not once", "line"), described)]
            lines += ["", f"{graph.nodes[0]} nodes before, {graph.nodes[1]} after; rolled in {graph.seconds:.2f} s"]
            if graph.failed:
                lines.append(f"left as it was: {graph.failed}")
            if graph.graph_break:
                lines.append(f"graph break: {graph.graph_break}")
            lines.append("")
        lines.append(f"first call, compilation included: {self.seconds:.2f} s")
        return "\n".join(lines)


def _table(head: Tuple[str, ...], rows: Sequence[Tuple[str, ...]]) -> List[str]:
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [head, *rows]]


def report_of(
    module: GraphModule, rolled: GraphModule, plan: Optional[Plan], seconds: float, failed: str
) -> GraphReport:
    """What was made of ``module``."""
    neurons: Tuple[Neuron, ...] = ()
    operators: Tuple[Batched, ...] = ()
    if plan is not None:
        neurons = tuple(Neuron(c.name, c.kind, len(c.steps) + c.apart, not c.why_not, c.why_not) for c in plan.chains)
        operators = _operators(module, plan)
    graphs = [rolled]
    for node in rolled.graph.nodes:
        stretch = getattr(rolled, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(stretch, Stretch) and stretch.body is not None:
            graphs.append(stretch.body)
    return GraphReport(
        neurons,
        operators,
        (len(module.graph.nodes), sum(len(graph.graph.nodes) for graph in graphs)),
        seconds,
        failed,
        _graph_break(module),
        "\n".join(graph.code for graph in graphs),
    )


def _operators(module: GraphModule, plan: Plan) -> Tuple[Batched, ...]:
    """Operators that the loop calls, by name and line."""

    def key(node: Node) -> Tuple[str, str]:
        return nodes.name_of(node) or getattr(node.target, "__name__", str(node.target)), _line(node)

    def counts(node: Node) -> bool:
        name = nodes.name_of(node)
        return (
            node.op in ("call_function", "call_method", "call_module")
            and not is_step(node)
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
        why = _why_not(single[0], plan) if len(single) > 1 else ""
        found.append(Batched(name, number, len(separate), why, line))
    return tuple(found)


def _why_not(node: Node, plan: Plan) -> str:
    if node in plan.random:
        return "random: in the loop's order"
    if node in plan.changed and node not in plan.norms:
        return "changed in place: write x = x + y for x += y, or keep no other name for x"
    if node in plan.banned:
        return "needs its own result of a step before"
    if nodes.name_of(node) not in rules.RULES:
        return "not an operator known to work over time"
    return "its arguments differ from step to step"


def _line(node: Node) -> str:
    """The line of the user's code that made the node."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    places = [place for place, line in enumerate(lines) if line.startswith("File ")]
    own = [p for p in places if "torch/nn/modules" not in lines[p] and "/snnipu/neurons/" not in lines[p]]
    if not own:
        return ""
    words = lines[own[-1]].split('"')
    number = lines[own[-1]].split("line ")[-1].split(",")[0]
    return f"{words[1].rsplit('/', 1)[-1]}:{number}" if len(words) > 1 else ""


def _graph_break(module: GraphModule) -> str:
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return ""
    stack = list(getattr(reason, "user_stack", None) or [])
    where = f"{stack[0].filename}, line {stack[0].lineno}: {stack[0].line}" if stack else "unknown line"
    first = str(reason.reason).strip().splitlines()
    return f"{where} ({first[0] if first else 'no reason given'})"
