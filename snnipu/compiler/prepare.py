"""Normal form of a graph: equal operations look equal."""

import functools
import operator
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from snnipu.compiler import nodes, rules
from snnipu.compiler.private import SET_GRAD

_CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}


def prepare(graph: Graph) -> None:
    """Rewrite the graph in place; every number it computes stays the same."""
    simplify(graph)
    _masks_apart(graph)
    _noise_apart(graph)


def simplify(graph: Graph) -> None:
    """Rewrite operations that have several forms. Equal steps of a loop stay equal."""
    _without_gradient_modes(graph)
    _drop_casts(graph)
    _differences(graph)
    _out_of_place(graph)


def _without_gradient_modes(graph: Graph) -> None:
    """``with torch.no_grad()`` as ``detach`` of what its calls are given: no call need then stay where its mode is.

    Only where the graph's own mode is left for no gradient, and come back to, and what is called is known.
    """
    own = torch.is_grad_enabled()
    barriers = [node for node in graph.nodes if nodes.is_barrier(node)]
    modes = [node.args[0] for node in barriers if node.target is SET_GRAD]
    if not barriers or len(modes) < len(barriers) or modes[-1] is not own or (True in modes and not own):
        return
    changes = nodes.Memory(graph).changes
    inside: List[Node] = []
    enabled: Any = own
    for node in graph.nodes:
        if node.target is SET_GRAD:
            enabled = node.args[0]
        elif not enabled and node.op not in ("placeholder", "get_attr", "output"):
            inside.append(node)
    for node in inside:
        name = nodes.name_of(node)
        known = nodes.is_fresh(node) or name in rules.RULES or (name and node in changes)
        if not known or any(getattr(nodes.value_of(one), "requires_grad", False) for one in changes.get(node, ())):
            return
    detached: Dict[Node, Node] = {}
    made_inside = set(inside)

    def without_gradient(node: Node, source: Node) -> Node:
        value = nodes.value_of(source)
        if not isinstance(value, torch.Tensor):
            return source
        # What does not learn at the first step, and does later, will be a part of one result that learns.
        may = value.is_floating_point() and source not in made_inside and source.all_input_nodes
        if not value.requires_grad and (not may or source in changes.get(node, ())):
            return source
        if source not in detached:
            # Behind the source, which is in the same step or before the loop.
            with graph.inserting_after(source):
                detached[source] = graph.call_method("detach", (source,))
            detached[source].meta.update(node.meta)
            detached[source].meta["example_value"] = value.detach()
        return detached[source]

    for node in inside if own else ():
        change = functools.partial(without_gradient, node)
        node.args, node.kwargs = map_arg(node.args, change), map_arg(node.kwargs, change)
    for node in barriers:
        graph.erase_node(node)


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


# Python's operators in place, and the same out of place.
_OPERATORS = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.ipow: operator.pow,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
}
# The dtype of a result of 16 bits is its argument's, autocast or not.
_OF_ANY_PRECISION = {"add", "sub", "mul", "truediv", "div", "relu", "relu6", "leaky_relu", "clamp", "neg", "abs"}
_OF_INTEGERS = {"add", "sub", "mul", "neg", "abs", "and_", "or_", "xor", "bitwise_and", "bitwise_or", "clamp"}


def _differences(graph: Graph) -> None:
    """``1 - x`` as it is written, which is ``torch.rsub(x, 1)`` where a default device is set."""
    for node in graph.nodes:
        if node.target is torch.rsub and len(node.args) == 2 and not node.kwargs:
            node.target, node.args = operator.sub, (node.args[1], node.args[0])


def _out_of_place(graph: Graph) -> None:
    """Operations in place on memory that nobody looks at under another name afterwards, as the functions they are.

    What was changed in place is then a value like any other. Memory from outside stays changed in place.
    """
    memory = nodes.Memory(graph)
    if not memory.changes:
        return
    order = {node: place for place, node in enumerate(graph.nodes)}
    modes_change = any(nodes.is_barrier(node) for node in graph.nodes)
    outside: Set[Any] = set()
    last_use: Dict[Node, int] = {}
    names: Dict[Any, List[Node]] = {}  # of each memory, those that may still be used
    for node in list(graph.nodes):
        if node.op in ("placeholder", "get_attr"):
            outside.add(memory.root(node))
            continue
        root = memory.root(node)
        last_use[node] = max((order[user] for user in node.users), default=-1)
        target: Any = node.args[0] if node.args else None
        known = names.setdefault(root, [])
        if node in memory.changes and isinstance(target, Node):
            here = order[node]
            known[:] = [name for name in known if last_use[name] > here]
            if (
                root not in outside
                and memory.root(target) == root
                and not any(name is not target for name in known)
                and not any(user.op == "output" for user in target.users)
                and not (modes_change and getattr(nodes.value_of(node), "requires_grad", True))
            ):
                made = _same_out_of_place(graph, node)
                if made is not None:
                    made.meta.update(node.meta)
                    memory.unite(made, target)
                    for user in [user for user in target.users if order.get(user, -1) > here]:
                        user.replace_input_with(target, made)
                    node.replace_all_uses_with(made)
                    graph.erase_node(node)
                    order[made], last_use[made] = here, max((order[user] for user in made.users), default=-1)
                    known[:] = [made]
                    continue
        known.append(node)


def _same_out_of_place(graph: Graph, node: Node) -> Optional[Node]:
    """The call as a function that changes nothing, in front of it; None where there is none with the same result."""
    base: Any = node.args[0]
    value = nodes.value_of(base)
    target: Any = node.target
    name, args, kwargs = nodes.name_of(node), list(node.args), dict(node.kwargs)
    if target in _OPERATORS:
        target = _OPERATORS[target]
        name = target.__name__
    elif kwargs.pop("inplace", False) is True:
        if name == "dropout" and value.device.type != "cpu":
            return None  # a fused kernel draws otherwise
        if name not in rules.RULES or len(args) != 1:
            return None
    elif node.op == "call_method" and name.endswith("_") and not name.endswith("__"):
        name = target = name[:-1]
    elif node.op == "call_function" and name.endswith("_"):
        name = name[:-1]
        target = getattr(torch, name, None)
    else:
        return None
    if name not in _OUT_OF_PLACE or target is None:
        return None
    given = [nodes.value_of(one) for one in (*args[1:], *kwargs.values())]
    tensors = [one for one in given if isinstance(one, torch.Tensor)]
    if any(torch.promote_types(value.dtype, one.dtype) != value.dtype for one in tensors):
        return None
    if not value.dtype.is_floating_point and name not in _OF_INTEGERS:
        return None
    if value.dtype in (torch.float16, torch.bfloat16) and name not in _OF_ANY_PRECISION:
        return None
    with graph.inserting_before(node):
        return graph.create_node(node.op, target, tuple(args), kwargs)


_OUT_OF_PLACE = (
    nodes.ELEMENTWISE - {"detach", "zeros_like", "ones_like", "clone", "where", "heaviside", "copysign"}
) | {"dropout", "index_add", "scatter_add"}


def symbols(graph: Graph) -> Dict[Any, Node]:
    """Symbols of sizes, by the inputs that have them."""
    return {
        nodes.size_key(nodes.value_of(node)): node
        for node in graph.nodes
        if node.op == "placeholder" and isinstance(nodes.value_of(node), torch.SymInt)
    }


def shape_of(value: torch.Tensor, sizes: Dict[Any, Node]) -> Tuple[Any, ...]:
    """The sizes of a tensor as arguments of a call; None for one that no input has."""
    return tuple(size if isinstance(size, int) else sizes.get(nodes.size_key(size)) for size in value.shape)


_NOISE = {torch.rand_like: torch.rand, torch.randn_like: torch.randn}


def _noise_apart(graph: Graph) -> None:
    """``randn_like(x)`` as ``randn`` of the same shape, which draws the same numbers and need not wait for ``x``."""
    sizes = symbols(graph)
    for node in graph.nodes:
        value = nodes.value_of(node)
        made = _NOISE.get(node.target)
        if node.op != "call_function" or made is None or len(node.args) != 1 or not isinstance(value, torch.Tensor):
            continue
        shape = shape_of(value, sizes)
        if None in shape or not value.is_contiguous() or not set(node.kwargs) <= {"dtype", "device"}:
            continue
        node.target, node.args = made, (shape,)
        node.kwargs = {**node.kwargs, "dtype": value.dtype, "device": value.device}


def _masks_apart(graph: Graph) -> None:
    """Dropout in training as a product with a mask, drawn in the same order: the product need not wait for its turn.

    A mask is dropout of ones, which draws the same numbers where the tensor is dense in its dimensions' order.
    """
    sizes = symbols(graph)
    for node in list(graph.nodes):
        name = nodes.name_of(node)
        if node.op != "call_function" or node.target is not getattr(torch.nn.functional, name, None):
            continue
        if name not in ("dropout", "dropout1d", "dropout2d", "dropout3d") or not nodes.is_random(node):
            continue
        source: Any = node.args[0] if node.args else None
        value = nodes.value_of(source)
        probability = nodes.argument(node, "p", 0.5)
        given = nodes.value_of(probability)
        if nodes.argument(node, "inplace", False) is not False or not isinstance(given, (float, torch.SymFloat)):
            continue
        if not isinstance(value, torch.Tensor) or not 0 < given < 1 or not value.dtype.is_floating_point:
            continue
        shape = shape_of(value, sizes)
        if name == "dropout":
            if not value.is_contiguous():
                continue
        elif value.dim() != int(name[-2]) + 2:
            continue
        else:  # of whole channels, whatever the order in memory
            shape = (*shape[:2], *(1 for _ in shape[2:]))
        if None in shape or 0 in value.shape:
            continue
        if value.device.type != "cpu":
            continue  # elsewhere a fused kernel draws and multiplies, in its own order
        with graph.inserting_before(node):
            ones = graph.call_function(torch.ones, (shape,), {"dtype": value.dtype, "device": value.device})
            mask = graph.call_function(torch.nn.functional.dropout, (ones, probability, True, False))
            product = graph.call_function(torch.mul, (source, mask))
        one = value.new_empty(
            tuple(size if isinstance(size, int) else value.shape[at] for at, size in enumerate(shape))
        )
        for made, like in ((ones, one), (mask, one), (product, value)):
            made.meta.update(node.meta)
            made.meta["example_value"] = like
        node.replace_all_uses_with(product)
        graph.erase_node(node)
