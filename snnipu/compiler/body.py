"""The graph of one step of a loop, with neurons in place of elementwise recurrences."""

from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Set, Tuple

import torch
from torch.fx import Graph, GraphModule, Node

from snnipu.compiler import arithmetic, autograd_functions, nodes
from snnipu.compiler.marks import MARKS, Refused, carried, clock, result, unmarked
from snnipu.compiler.prepare import prepare


class Body:
    """The graph of one step, with neurons in place of elementwise recurrences.

    Attributes:
        graph: the operations, normalised (:mod:`snnipu.compiler.prepare`).
        learns: True if gradients were enabled in the trace.
        clocks: the nodes of the clock, which is the step's number plus :data:`OFFSET`.
        marks: the functions that mark nodes.
        ordered: the calls on inputs that a step changes in place.
        varying: the nodes that are not constant over time.
        before: the nodes of carried values, by number.
        after: the nodes of their new values, by number.
        spike_states: states of generated neurons that are their spikes: a neuron's step, and the number of the state.
    """

    marks = MARKS

    def __init__(self, module: GraphModule, clocks: Sequence[Node] = ()) -> None:
        """
        Args:
            clocks: the nodes of ``module`` that are the clock; without any, it is the first size of a marked tensor.

        Raises:
            Refused: the step's number is unknown.
        """
        autograd_functions.note_passes(module.graph)
        self.module = module
        self.learns = torch.is_grad_enabled()
        graph = Graph()
        copies: Dict[Any, Any] = {}
        graph.output(graph.graph_copy(module.graph, copies))
        for old, new in copies.items():
            new.meta = dict(old.meta)
        autograd_functions.call_directly(graph)
        prepare(graph)
        _erase_dead_code(graph)
        self.graph = graph
        self.clocks: Set[Node] = {copies[node] for node in clocks} or self._find_clocks()
        self.before: Dict[int, Node] = {}
        self.after: Dict[int, Node] = {}
        for node in graph.nodes:
            if node.target is carried:
                self.before[node.args[1]] = node
            elif node.target is result:
                self.after[node.args[1]] = unmarked(node)
        self.spike_states: Set[Tuple[Node, int]] = set()
        self.number_of: Dict[Any, int] = {node: number for number, node in self.before.items()}
        self.ordered = self._find_ordered()
        self.varying = self._find_varying()
        arithmetic.as_neurons(self)

    def marks_of(self, node: Node) -> List[Node]:
        """Return the carried values of which a node is the new value."""
        return [before for number, before in self.before.items() if self.after.get(number) is node]

    def _find_clocks(self) -> Set[Node]:
        """Return the nodes that are the first size of the marked tensor."""
        sizes = [nodes.value_of(node).shape[0] for node in self.module.graph.nodes if node.target is clock]
        if len(sizes) != 1 or not isinstance(sizes[0], torch.SymInt):
            raise Refused("its steps depend on their number")
        values = {node: nodes.value_of(node) for node in self.graph.nodes}
        key = nodes.size_key(sizes[0])
        return {node for node, one in values.items() if isinstance(one, torch.SymInt) and nodes.size_key(one) == key}

    def _find_ordered(self) -> Set[Node]:
        """Return the calls that change an input in place, or read such an input.

        Counters and running averages are left out if no other call reads them.
        """
        memory = nodes.Memory(self.graph)
        changed = memory.changed_roots()
        inputs = {memory.root(node) for node in self.graph.nodes if node.op in ("placeholder", "get_attr")}
        ordered: Set[Node] = set()
        for root in changed & inputs:
            group = on_memory(self.graph, memory, root)
            if len(group) > 1 or not (nodes.is_norm_in_training(group[0]) or adds_integer(group[0])):
                ordered.update(group)
        return ordered

    def _find_varying(self) -> Set[Node]:
        """Return the nodes that are not constant over time."""
        varying = {*self.clocks, *self.ordered}
        varying.update(node for node in self.graph.nodes if nodes.is_random(node))
        # A backward pass that is not linear in the gradient has to run for each step.
        varying.update(filter(autograd_functions.is_not_linear, self.graph.nodes))
        varying.update(node for number, node in self.before.items() if self.after.get(number) is not node)
        waiting = list(varying)
        for node in waiting:  # the list grows
            for user in node.users:
                if user not in varying and user.op != "output":
                    varying.add(user)
                    waiting.append(user)
        return varying


def on_memory(graph: Graph, memory: nodes.Memory, root: Any) -> List[Node]:
    """Return the calls that read or change a memory."""
    return [
        node
        for node in graph.nodes
        if node.op.startswith("call")
        and node.target not in MARKS
        and any(memory.root(one) == root for one in (*node.all_input_nodes, node) if one in memory)
    ]


def _erase_dead_code(graph: Graph) -> None:
    """Erase calls without users and side effects."""
    for node in reversed(graph.nodes):
        if node.users or node.op not in ("call_function", "call_method", "get_attr"):
            continue
        if node.op == "get_attr" or not (nodes.changed_by(node) or nodes.is_random(node) or nodes.is_barrier(node)):
            graph.erase_node(node)


@dataclass
class First:
    """The first step of a loop: the operations of later steps, on values with another shape or type.

    Attributes:
        body: the graph of the first step.
        inputs: the inputs of the first step, by the inputs of later steps.
        starts: the initial value of each carried value: an input, a number or None.
    """

    body: Body
    inputs: Dict[Node, Node]
    starts: Dict[int, Any]


def attributes_of(module: GraphModule) -> Dict[str, Any]:
    """Return the attributes of a module that its graph reads."""
    return {
        str(node.target): _attribute(module, str(node.target)) for node in module.graph.nodes if node.op == "get_attr"
    }


def _attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def adds_integer(node: Node) -> bool:
    """Return True if a call adds an integer to a tensor of integers, and nothing reads its result."""
    return (
        node.op == "call_method"
        and node.target == "add_"
        and not node.users
        and len(node.args) == 2
        and not node.kwargs
        and type(node.args[1]) is int
        and nodes.value_of(node.args[0]).dtype == torch.int64
    )
