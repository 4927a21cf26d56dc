"""Steps of neurons in a graph, and layers from their spikes back to their inputs."""

import re
from typing import Any, Collection, List, Optional, Set, Tuple

import torch
from torch.fx import Node

from snnipu.backends import has_kernels
from snnipu.compiler import nodes
from snnipu.ops import step_operators

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def is_step(node: Node) -> bool:
    return node.op == "call_function" and node.target in step_operators.SEQUENCES


def is_output(step: Node, state: int) -> bool:
    """Return True if a state of the neuron is its spikes."""
    return step_operators.output_state(step.target, step.args[4]) == state


def module_of(node: Node, of: Optional[type] = None) -> Tuple[str, str]:
    """Return name and class of the innermost module whose call created the node.

    Args:
        of: a class; the innermost module of this class is returned.
    """
    stack = node.meta.get("nn_module_stack") or {}
    for name, kind in reversed(list(stack.values())):
        if of is None or (isinstance(kind, type) and issubclass(kind, of)):
            short = re.sub(r"\['(\w+)'\]", r".\1", re.sub(r"^L\['(self|\w)'\](\[\d+\])?\.", "", str(name)))
            short = re.sub(r"^[GL]\.", "", short)
            return short, getattr(kind, "__name__", str(kind).rsplit(".", 1)[-1])
    return node.name, ""


def fed_back(step: Node, fixed: Set[Node]) -> List[Tuple[Node, Tuple[Any, ...], Any]]:
    """Return the layers whose output is added to the input of a neuron's step, or subtracted from it.

    Args:
        fixed: nodes that must stay in the graph.

    Returns:
        For each candidate: the layer's input, the layer (weight, bias, geometry, transposed, minus), and the other
        summand.
    """
    candidates: List[Tuple[Node, Tuple[Any, ...], Any]] = []
    total: Any = step.args[0]
    value = nodes.value_of(total)
    minus = nodes.name_of(total) == "sub"
    if not (minus or nodes.name_of(total) == "add") or len(total.args) != 2 or total.kwargs:
        return candidates
    if set(total.users) != {step}:
        return candidates
    if not has_kernels(value.device) or value.dtype not in (torch.float32, torch.float64):
        return candidates
    for product, other in (total.args[::-1],) if minus else (total.args, total.args[::-1]):
        if not isinstance(product, Node) or not isinstance(other, Node) or set(product.users) != {total}:
            continue
        layer = _layer(product)
        source: Any = product.args[0] if product.args else None
        if layer is None or not isinstance(source, Node) or fixed & {total, product, source}:
            continue
        key = nodes.key_of(value)
        if all(nodes.is_tensor(one) and nodes.key_of(nodes.value_of(one)) == key for one in (product, other, source)):
            candidates.append((source, (*layer, minus), other))
    return candidates


def _layer(product: Node) -> Optional[Tuple[Node, Optional[Node], Tuple[int, ...], bool]]:
    """Return weight, bias, geometry of the connection and True if the weight is transposed; None for another layer."""
    name = nodes.name_of(product)
    bound = nodes.bound(product, _CONV)
    weight: Any = bound.get("weight")
    bias: Any = bound.get("bias")
    if name in ("matmul", "mm") and len(product.args) == 2 and not product.kwargs:
        return (weight, None, (), True) if nodes.is_tensor(weight) and nodes.value_of(weight).dim() == 2 else None
    if not nodes.is_tensor(weight) or not (bias is None or nodes.is_tensor(bias)):
        return None
    if name == "linear":
        return weight, bias, (), False
    if name != "conv2d" or nodes.value_of(weight).dim() != 4 or nodes.value_of(product).dim() != 4:
        return None
    stride, padding, dilation = (
        (size, size) if type(size) is int else size
        for size in (bound.get("stride", 1), bound.get("padding", 0), bound.get("dilation", 1))
    )
    groups = bound.get("groups", 1)
    sizes = [padding, dilation, (groups,)]
    if any(isinstance(size, str) or len(size) > 2 or any(type(n) is not int for n in size) for size in sizes):
        return None
    return (weight, bias, (*padding, *dilation, groups), False) if tuple(stride) == (1, 1) else None


def summands(total: Any, before: Node, inside: Collection[Node]) -> List[Any]:
    """Return the values that ``total`` adds to the value of the previous step; none if it is not such a sum.

    Args:
        inside: the nodes between ``before`` and ``total``, with both.
    """
    added: List[Any] = []
    while total is not before:
        if not isinstance(total, Node) or nodes.name_of(total) not in ("add", "iadd"):
            return []
        if len(total.args) != 2 or total.kwargs:
            return []
        partial = [one for one in total.args if isinstance(one, Node) and one in inside]
        if len(partial) != 1 or len(added) > len(inside):
            return []
        added.append(next(one for one in total.args if one is not partial[0]))
        total = partial[0]
    return added
