"""A call of one step, with the arguments that differ from step to step; the forms of the call over all steps."""

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.fx import Graph, Node

from snnipu.compiler import helpers
from snnipu.compiler.nodes import is_tensor, value_of

# (graph, arguments, keywords) -> node; in the arguments the sequences stand for what was Lifted.
Make = Callable[[Graph, Tuple[Any, ...], Dict[str, Any]], Node]


@dataclass
class Lifted:
    """An argument that is a tensor of its own (or a tuple of them) at each step."""

    value: Any  # what Dynamo found it is at the first step
    source: Any

    @property
    def dims(self) -> int:
        return int(self.value.dim())


@dataclass
class Call:
    """A call at one step."""

    node: Node  # the first step's
    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]

    @property
    def out(self) -> Any:
        return value_of(self.node)

    def lifted(self) -> List[Lifted]:
        found: List[Lifted] = []
        walk((self.args, self.kwargs), lambda a: found.append(a) if isinstance(a, Lifted) else None)
        return found

    def constant_tensors(self) -> List[Node]:
        found: List[Node] = []
        walk((self.args, self.kwargs), lambda a: found.append(a) if isinstance(a, Node) and is_tensor(a) else None)
        return found

    def again(self, graph: Graph, args: Any, kwargs: Any) -> Node:
        return graph.create_node(self.node.op, self.node.target, tuple(args), dict(kwargs))


def walk(value: Any, visit: Callable[[Any], Any]) -> None:
    if isinstance(value, (tuple, list)):
        for item in value:
            walk(item, visit)
    elif isinstance(value, dict):
        for item in value.values():
            walk(item, visit)
    elif isinstance(value, slice):
        for item in (value.start, value.stop, value.step):
            walk(item, visit)
    else:
        visit(value)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with its leaves changed, in tuples, lists, dictionaries and slices."""
    if isinstance(value, (tuple, list)):
        return type(value)(map_leaves(item, change) for item in value)
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(map_leaves(item, change) for item in (value.start, value.stop, value.step)))
    return change(value)


def only_first(call: Call) -> Optional[Lifted]:
    """The first argument where it alone differs from step to step."""
    lifted = call.lifted()
    first = call.args[0] if call.args else call.kwargs.get("input")
    return first if len(lifted) == 1 and lifted[0] is first and isinstance(first.value, torch.Tensor) else None


def replace_first(args: Any, kwargs: Any, value: Any) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    return ((value, *args[1:]), kwargs) if args else (args, {**kwargs, "input": value})


def first_of(args: Any, kwargs: Any) -> Any:
    return args[0] if args else kwargs["input"]


def same_call(call: Call) -> Make:
    """The same call on the sequence: it looks at trailing dimensions alone."""
    return lambda graph, args, kwargs: call.again(graph, args, kwargs)


def folded(call: Call) -> Make:
    """All steps as one batch."""

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        sequence = first_of(args, kwargs)
        folded = graph.call_function(helpers.fold_time, (sequence,))
        out = call.again(graph, *replace_first(args, kwargs, folded))
        return graph.call_function(helpers.split_time, (out, sequence))

    return make


def all_held(graph: Graph, given: Sequence[Any], made: Sequence[Any]) -> List[Any]:
    """Sequences: what does not differ from step to step is one, too."""
    steps = next(node for one, node in zip(given, made) if isinstance(one, Lifted))
    if all(isinstance(one, Lifted) for one in given):
        return list(made)
    count = graph.call_function(len, (steps,))
    return [
        node if isinstance(one, Lifted) else graph.call_function(helpers.held, (node, count))
        for one, node in zip(given, made)
    ]
