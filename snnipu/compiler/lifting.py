"""A call at one step, and its arguments that differ from step to step."""

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.fx import Graph, Node

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

    def _leaves(self) -> List[Any]:
        leaves: List[Any] = []
        map_leaves((self.args, self.kwargs), leaves.append)
        return leaves

    def lifted(self) -> List[Lifted]:
        return [one for one in self._leaves() if isinstance(one, Lifted)]

    def constant_tensors(self) -> List[Node]:
        return [one for one in self._leaves() if isinstance(one, Node) and is_tensor(one)]

    def call_with(self, graph: Graph, args: Any, kwargs: Any) -> Node:
        return graph.create_node(self.node.op, self.node.target, tuple(args), dict(kwargs))


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
    return call.call_with
