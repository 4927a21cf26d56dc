"""A call at one step, its arguments that differ from step to step, and ways to make the call over all steps."""

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.fx import Graph, Node

from snnipu.compiler import helpers
from snnipu.compiler.nodes import is_tensor, value_of

# (graph, arguments, keywords) -> node. The arguments have sequences in place of each Lifted.
Make = Callable[[Graph, Tuple[Any, ...], Dict[str, Any]], Node]


@dataclass
class Lifted:
    """An argument that differs from step to step: a tensor, or a tuple of tensors."""

    value: Any  # TorchDynamo's fake tensor of one step
    source: Any  # the node of one step

    @property
    def dims(self) -> int:
        return int(self.value.dim())


@dataclass
class Call:
    """A call at one step; a :class:`Lifted` replaces each argument that differs from step to step."""

    node: Node
    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]

    @property
    def out(self) -> Any:
        return value_of(self.node)

    def lifted(self) -> List[Lifted]:
        lifted: List[Lifted] = []
        walk((self.args, self.kwargs), lambda a: lifted.append(a) if isinstance(a, Lifted) else None)
        return lifted

    def constant_tensors(self) -> List[Node]:
        tensors: List[Node] = []
        walk((self.args, self.kwargs), lambda a: tensors.append(a) if isinstance(a, Node) and is_tensor(a) else None)
        return tensors

    def call_with(self, graph: Graph, args: Any, kwargs: Any) -> Node:
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
    """Return ``value`` with ``change`` applied to its leaves in tuples, lists, dictionaries and slices."""
    if isinstance(value, (tuple, list)):
        return type(value)(map_leaves(item, change) for item in value)
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(map_leaves(item, change) for item in (value.start, value.stop, value.step)))
    return change(value)


def only_first(call: Call) -> Optional[Lifted]:
    """Return the first argument if no other argument differs from step to step, or None."""
    lifted = call.lifted()
    first = call.args[0] if call.args else None
    return first if len(lifted) == 1 and lifted[0] is first and isinstance(first.value, torch.Tensor) else None


def same_call(call: Call) -> Make:
    """Make the same call on the sequence, for operators that only use trailing dimensions."""
    return lambda graph, args, kwargs: call.call_with(graph, args, kwargs)


def folded(call: Call) -> Make:
    """Make the call with all steps as one batch, ``[T * B, ...]``."""

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        sequence, *others = args
        folded = graph.call_function(helpers.fold_time, (sequence,))
        out = call.call_with(graph, (folded, *others), kwargs)
        return graph.call_function(helpers.split_time, (out, sequence))

    return make


def all_held(graph: Graph, arguments: Sequence[Any], values: Sequence[Any]) -> List[Any]:
    """Return ``values`` with the constants expanded over time, so that all of them are sequences.

    Args:
        arguments: the arguments of the step; a :class:`Lifted` has a sequence in ``values``.
    """
    steps = next(node for argument, node in zip(arguments, values) if isinstance(argument, Lifted))
    if all(isinstance(argument, Lifted) for argument in arguments):
        return list(values)
    count = graph.call_function(len, (steps,))
    return [
        node if isinstance(argument, Lifted) else graph.call_function(helpers.held, (node, count))
        for argument, node in zip(arguments, values)
    ]
