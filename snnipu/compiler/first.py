"""Comparison of the first step of a loop with later steps: initial values may have another shape or type."""

from typing import Any, Dict

import torch
from torch.fx import Node

from snnipu.compiler import nodes
from snnipu.compiler.body import Body, First
from snnipu.compiler.helpers import sizes_of
from snnipu.compiler.marks import Refused, carried
from snnipu.ops import step_operators


def _same_kind(one: Node, other: Node) -> bool:
    """Return True if a graph for one input is valid for the other one, whose sizes may differ."""
    a, b = nodes.value_of(one), nodes.value_of(other)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and (isinstance(a, (torch.SymInt, torch.SymFloat)) or a == b)
    if a.requires_grad != b.requires_grad:
        return False
    ones = [[type(size) is int and size < 2 for size in each.shape] for each in (a, b)]
    return a.dtype == b.dtype and a.device == b.device and ones[0] == ones[1]


def _is_number(value: Any) -> bool:
    """Return True for a floating-point number of the program, which TorchDynamo reads from a tensor."""
    return isinstance(value, Node) and value.target == "item" and value.args[0].op == "placeholder"  # type: ignore[union-attr]


def matched(steady: Body, first: Body) -> First:
    """Compare the first step with the later ones, operation by operation.

    Raises:
        Refused: the first step has other operations.
    """
    if steady.learns != first.learns:
        raise Refused("its first step is traced in another gradient mode")
    match = First(first, {}, {})
    same: Dict[Node, Node] = {}

    def compare(one: Any, other: Any) -> None:
        if isinstance(one, Node) and one.target is carried:
            number: Any = one.args[1]
            if isinstance(other, Node):
                # The mark may be that of another variable, as for a neuron's hidden state. A number has no mark.
                other = other.args[0] if other.target is carried else other
                if other.op != "placeholder" and not _is_number(other):
                    raise Refused("its first step reads another value")
            if match.starts.setdefault(number, other) is not other:
                raise Refused("its first step reads two values in place of one of a later step")
        elif isinstance(one, Node) and one.op == "placeholder":
            fits = isinstance(other, Node) and other.op == "placeholder"
            if not fits or not _same_kind(one, other) or match.inputs.setdefault(one, other) is not other:
                raise Refused("its first step reads another value")
        elif _is_number(one) and _is_number(other):
            compare(one.args, other.args)
        elif isinstance(one, Node):
            if same.get(one) is not other:
                raise Refused("its first step has another operation")
        elif isinstance(one, (tuple, list)):
            if type(one) is not type(other) or len(one) != len(other):
                raise Refused("its first step has another operation")
            for a, b in zip(one, other):
                compare(a, b)
        elif isinstance(one, dict):
            compare(list(one), list(other))
            compare(list(one.values()), list(other.values()))
        elif isinstance(one, slice):
            compare((one.start, one.stop, one.step), (other.start, other.stop, other.step))
        elif one != other:
            raise Refused("its first step has another operation")

    lists = [
        [n for n in body.graph.nodes if n.op != "placeholder" and n.target is not carried and not _is_number(n)]
        for body in (steady, first)
    ]
    if len(lists[0]) != len(lists[1]):
        raise Refused("its first step has another operation")
    for one, other in zip(*lists):
        if one.op != other.op or one.target != other.target:
            raise Refused("its first step has another operation")
        args = other.args
        if nodes.name_of(one) == "add" and len(args) == 2 and type(args[1]) in (int, float):
            args = args[::-1] if getattr(one.args[0], "target", None) is carried else args  # 0 + x is x + 0
        compare(one.args, args)
        compare(one.kwargs, other.kwargs)
        same[one] = other
        for mark in nodes.leaves_of((one.args, one.kwargs)):
            if mark.target is carried and not _may_be_expanded(mark.args[1], match, one, other):
                raise Refused("an operation of its first step reads a value of another shape")
    if len(set(match.inputs.values())) < len(match.inputs):
        raise Refused("its first step reads one value in place of two of a later step")
    return match


def _may_be_expanded(number: Any, match: First, reader: Node, first_reader: Node) -> bool:
    """Return True if an operation can read an initial value that is expanded to the shape of the later ones."""
    start, after = match.starts[number], match.body.after.get(number)
    if not isinstance(after, Node) or not nodes.is_tensor(after):
        return False
    steady = sizes_of(nodes.value_of(after))
    if isinstance(start, Node) and nodes.is_tensor(start) and sizes_of(nodes.value_of(start)) == steady:
        return True
    value = nodes.value_of(first_reader)
    if reader.target not in step_operators.SEQUENCES and nodes.name_of(reader) not in nodes.ELEMENTWISE:
        return False
    sizes = [sizes_of(part) for part in (value if isinstance(value, tuple) else (value,))]
    return all(each == torch.broadcast_shapes(each, steady) for each in sizes)
