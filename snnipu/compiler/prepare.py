"""A graph in a form in which the same thing looks the same: before chains are looked for."""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.fx import Graph, Node

from snnipu.compiler import nodes, rules
from snnipu.ops import leaves

_CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}


def prepare(graph: Graph, fix_numbers: bool = False) -> None:
    """Rewrite the graph in place; every number it computes stays the same."""
    if fix_numbers:
        _fix_numbers(graph)
    _drop_casts(graph)
    _records_as_stacks(graph)
    _merge_equal(graph)
    _masks_apart(graph)


def _fix_numbers(graph: Graph) -> None:
    """Numbers of surrogates as they are now, for compilers that want to know them: to read one guards it."""
    for node in graph.nodes:
        if node.op != "call_function" or not (node.target in leaves.SEQUENCES or nodes.name_of(node) == "spike_of"):
            continue
        steps = not nodes.name_of(node)
        numbers: Any = node.args[3] if steps else node.args[1:]
        fixed = tuple(_as_now(number) for number in numbers)
        node.args = (*node.args[:3], fixed, *node.args[4:]) if steps else (node.args[0], *fixed)


def _as_now(number: Any) -> Any:
    value = nodes.value_of(number)
    return float(value) if isinstance(value, torch.SymFloat) else number


def _drop_casts(graph: Graph) -> None:
    """Casts to the dtype that a tensor has already return the tensor itself."""
    for node in list(graph.nodes):
        if node.op != "call_method" or not node.args or not nodes.is_tensor(node.args[0]) or node.kwargs:
            continue
        wanted = _CASTS.get(str(node.target))
        if node.target == "to" and len(node.args) == 2 and isinstance(node.args[1], torch.dtype):
            wanted = node.args[1]
        elif len(node.args) != 1:
            continue
        source: Any = node.args[0]
        if wanted is not None and nodes.value_of(source).dtype == wanted:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _records_as_stacks(graph: Graph) -> None:
    """``record = torch.zeros(T, ...)`` whose every step is set once, in order, before it is read: a stack."""
    for node in list(graph.nodes):
        if nodes.name_of(node) not in ("zeros", "empty", "ones", "full", "zeros_like", "empty_like", "new_zeros"):
            continue
        value = nodes.value_of(node)
        users = list(node.users)
        writes = [user for user in users if nodes.name_of(user) == "setitem" and user.args[0] is node]
        if not isinstance(value, torch.Tensor) or not writes or value.dim() == 0 or value.requires_grad:
            continue
        order = {n: place for place, n in enumerate(graph.nodes)}
        rest = [user for user in users if user not in writes]
        last = max(writes, key=order.__getitem__)
        if any(order[user] < order[last] for user in rest) or any(user.users for user in writes):
            continue
        dim, places = _places([write.args[1] for write in writes])
        given = [write.args[2] for write in writes]
        steps = value.shape[dim] if dim < value.dim() else -1
        if not isinstance(steps, int) or places != list(range(steps)):
            continue
        shape = (*value.shape[:dim], *value.shape[dim + 1 :])
        wanted = nodes.key_of(value)
        if any(
            not isinstance(one, Node)
            or not nodes.is_tensor(one)
            or nodes.key_of(nodes.value_of(one)) != (tuple(map(nodes.size_key, shape)), *wanted[1:])
            for one in given
        ):
            continue
        if any(one in nodes.changed_memory(graph)[0] - {node, *writes} for one in given):
            continue
        with graph.inserting_after(last):
            stack = graph.call_function(torch.stack, (given,), {"dim": dim})
        stack.meta.update({key: item for key, item in last.meta.items() if key != "example_value"})
        stack.meta["example_value"] = value
        for user in rest:
            user.replace_input_with(node, stack)
        for write in writes:
            graph.erase_node(write)
        if not node.users:
            graph.erase_node(node)


def _places(indices: List[Any]) -> Tuple[int, Optional[List[int]]]:
    """The dimension that is indexed, and where."""
    if isinstance(indices[0], tuple):
        dim = len(indices[0]) - 1
        if any(not isinstance(one, tuple) or one[:-1] != (slice(None),) * dim for one in indices):
            return 0, None
        indices = [one[-1] for one in indices]
    else:
        dim = 0
    return dim, indices if all(type(one) is int for one in indices) else None


def _merge_equal(graph: Graph) -> None:
    """Calls with the same arguments give the same result: of a constant input, say."""
    changed, _ = nodes.changed_memory(graph)
    if any(nodes.is_barrier(node) for node in graph.nodes):
        return
    known: Dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method") or nodes.name_of(node) not in rules.RULES:
            continue
        if node in changed or nodes.is_random(node) or any(source in changed for source in node.all_input_nodes):
            continue
        try:
            key = (node.op, node.target, _hashable(node.args), _hashable(node.kwargs))
            first = known.setdefault(key, node)
        except TypeError:
            continue
        if first is not node:
            node.replace_all_uses_with(first, propagate_meta=False)
            graph.erase_node(node)


def _hashable(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value).__name__, tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, slice):
        return "slice", _hashable((value.start, value.stop, value.step))
    return type(value).__name__, value


def _masks_apart(graph: Graph) -> None:
    """Dropout in training as a product with a mask, drawn in the same order: the product need not wait for its turn.

    A mask is dropout of ones, which draws the same numbers where the tensor is dense in its dimensions' order.
    """
    # Symbols of sizes, by the inputs that have them.
    sizes = {
        nodes.size_key(nodes.value_of(node)): node
        for node in graph.nodes
        if node.op == "placeholder" and isinstance(nodes.value_of(node), torch.SymInt)
    }
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.nn.functional.dropout or not nodes.is_random(node):
            continue
        source: Any = node.args[0] if node.args else None
        value = nodes.value_of(source)
        probability = nodes.argument(node, "p", 0.5)
        given = nodes.value_of(probability)
        if nodes.argument(node, "inplace", False) is not False or not isinstance(given, (float, torch.SymFloat)):
            continue
        if not isinstance(value, torch.Tensor) or not 0 < given < 1 or not value.dtype.is_floating_point:
            continue
        shape = tuple(size if isinstance(size, int) else sizes.get(nodes.size_key(size)) for size in value.shape)
        if None in shape or 0 in value.shape or not value.is_contiguous():
            continue
        if value.device.type != "cpu":
            continue  # elsewhere a fused kernel draws and multiplies, in its own order
        with graph.inserting_before(node):
            ones = graph.call_function(torch.ones, (shape,), {"dtype": value.dtype, "device": value.device})
            mask = graph.call_function(torch.nn.functional.dropout, (ones, probability, True, False))
            product = graph.call_function(torch.mul, (source, mask))
        for made in (ones, mask, product):
            made.meta.update(node.meta)
            made.meta["example_value"] = value
        node.replace_all_uses_with(product)
        graph.erase_node(node)
