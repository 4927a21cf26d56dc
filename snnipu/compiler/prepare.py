"""Normal form of a graph: operations with several spellings get one of them, and steps of a loop can be compared."""

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
    """Rewrite the graph in place. All numbers that it computes stay the same."""
    simplify(graph)
    _split_masks(graph)
    _separate_noise(graph)


def simplify(graph: Graph) -> None:
    """Rewrite operations that have several spellings. Equal steps of a loop stay equal."""
    _pass_input_first(graph)
    _replace_gradient_modes(graph)
    _drop_casts(graph)
    _rewrite_differences(graph)
    _rewrite_in_place(graph)


def _pass_input_first(graph: Graph) -> None:
    """Write ``f(input=x)`` as ``f(x)``."""
    for node in graph.nodes:
        if node.args or "input" not in node.kwargs or "condition" in node.kwargs:
            continue
        if node.op == "call_function" and nodes.name_of(node) in rules.RULES:
            keywords = dict(node.kwargs)
            node.args = (keywords.pop("input"),)
            node.kwargs = keywords


def _replace_gradient_modes(graph: Graph) -> None:
    """Replace ``with torch.no_grad()`` by ``detach`` of its calls' arguments, so that the calls can be moved.

    The graph is unchanged if it does not restore its initial mode, enables gradients inside a mode without them, or has
    calls in the block whose effects are unknown.
    """
    initial = torch.is_grad_enabled()
    barriers = [node for node in graph.nodes if nodes.is_barrier(node)]
    modes = [node.args[0] for node in barriers if node.target is SET_GRAD]
    if not barriers or len(modes) < len(barriers) or modes[-1] is not initial or (True in modes and not initial):
        return
    changes = nodes.Memory(graph).changes
    inside: List[Node] = []
    enabled: Any = initial
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
    computed_inside = set(inside)

    def without_gradient(node: Node, source: Node) -> Node:
        value = nodes.value_of(source)
        if not isinstance(value, torch.Tensor):
            return source
        # A value without a gradient at the first step may be joined with values of later steps that have one.
        may = value.is_floating_point() and source not in computed_inside and source.all_input_nodes
        if not value.requires_grad and (not may or source in changes.get(node, ())):
            return source
        if source not in detached:
            # After the source, which is in the same step or before the loop.
            with graph.inserting_after(source):
                detached[source] = graph.call_method("detach", (source,))
            detached[source].meta.update(node.meta)
            detached[source].meta["example_value"] = value.detach()
        return detached[source]

    for node in inside if initial else ():
        change = functools.partial(without_gradient, node)
        node.args, node.kwargs = map_arg(node.args, change), map_arg(node.kwargs, change)
    for node in barriers:
        graph.erase_node(node)


def _drop_casts(graph: Graph) -> None:
    """Remove casts to the dtype that a tensor already has: they return the tensor itself."""
    for node in list(graph.nodes):
        if node.op != "call_method" or not node.args or not nodes.is_tensor(node.args[0]) or node.kwargs:
            continue
        dtype = _CASTS.get(str(node.target))
        if node.target == "to" and len(node.args) == 2 and isinstance(node.args[1], torch.dtype):
            dtype = node.args[1]
        elif len(node.args) != 1:
            continue
        source: Any = node.args[0]
        if dtype is not None and nodes.value_of(source).dtype == dtype:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


# Python's in-place operators, and the operators without side effects.
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
# Operations on 16-bit floats whose result has their argument's dtype, also under autocast.
_OF_ANY_PRECISION = {"add", "sub", "mul", "truediv", "div", "relu", "relu6", "leaky_relu", "clamp", "neg", "abs"}
_OF_INTEGERS = {"add", "sub", "mul", "neg", "abs", "and_", "or_", "xor", "bitwise_and", "bitwise_or", "clamp"}


def _rewrite_differences(graph: Graph) -> None:
    """Rewrite ``torch.rsub(x, 1)``, which PyTorch traces under a default device, as ``1 - x``."""
    for node in graph.nodes:
        if node.target is torch.rsub and len(node.args) == 2 and not node.kwargs:
            node.target, node.args = operator.sub, (node.args[1], node.args[0])


def _rewrite_in_place(graph: Graph) -> None:
    """Replace in-place operations by functions without side effects.

    An operation stays in place if its memory is from outside of the graph, or has another name that is read later.
    """
    for node in graph.nodes:
        base: Any = node.args[0] if node.args else None
        if node.target in _OPERATORS and not (isinstance(base, Node) and nodes.is_tensor(base)):
            node.target = _OPERATORS[node.target]  # `total += x` with a number is a new value
    memory = nodes.Memory(graph)
    if not memory.changes:
        return
    order = {node: place for place, node in enumerate(graph.nodes)}
    modes_change = any(nodes.is_barrier(node) for node in graph.nodes)
    outside: Set[Any] = set()
    last_use: Dict[Node, int] = {}
    names: Dict[Any, List[Node]] = {}  # for each memory, the nodes on it that later nodes may read
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
                pure = _pure_call(graph, node)
                if pure is not None:
                    pure.meta.update(node.meta)
                    memory.unite(pure, target)
                    for user in [user for user in target.users if order.get(user, -1) > here]:
                        user.replace_input_with(target, pure)
                    node.replace_all_uses_with(pure)
                    graph.erase_node(node)
                    order[pure], last_use[pure] = here, max((order[user] for user in pure.users), default=-1)
                    known[:] = [pure]
                    continue
        known.append(node)


def _pure_call(graph: Graph, node: Node) -> Optional[Node]:
    """Insert the same call without side effects before an in-place call; None if no function has the same result."""
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
        if len(args) != 1:
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
    operands = [nodes.value_of(one) for one in (*args[1:], *kwargs.values())]
    dtypes = [one.dtype for one in operands if isinstance(one, torch.Tensor)]
    if any(torch.promote_types(value.dtype, dtype) != value.dtype for dtype in dtypes):
        return None
    if not value.dtype.is_floating_point and name not in _OF_INTEGERS:
        return None
    if value.dtype in (torch.float16, torch.bfloat16) and name not in _OF_ANY_PRECISION:
        return None
    with graph.inserting_before(node):
        return graph.create_node(node.op, target, tuple(args), kwargs)


# Comparisons in place keep the dtype of their tensor.
_OUT_OF_PLACE = (
    nodes.ELEMENTWISE
    - nodes.COMPARISONS
    - {"detach", "zeros_like", "ones_like", "clone", "where", "heaviside", "copysign"}
) | {"dropout", "index_add", "scatter_add"}


def symbols(graph: Graph) -> Dict[Any, Node]:
    """Return the inputs that are symbolic sizes, by their expressions."""
    return {
        nodes.size_key(nodes.value_of(node)): node
        for node in graph.nodes
        if node.op == "placeholder" and isinstance(nodes.value_of(node), torch.SymInt)
    }


def shape_of(value: torch.Tensor, sizes: Dict[Any, Node]) -> Tuple[Any, ...]:
    """Return the sizes of a tensor as arguments of a call; None for a symbolic size that is not an input."""
    return tuple(size if isinstance(size, int) else sizes.get(nodes.size_key(size)) for size in value.shape)


_NOISE = {torch.rand_like: torch.rand, torch.randn_like: torch.randn}


def _separate_noise(graph: Graph) -> None:
    """Replace ``randn_like(x)`` by ``randn`` of the same shape: the same numbers, without a dependence on ``x``."""
    sizes = symbols(graph)
    for node in graph.nodes:
        value = nodes.value_of(node)
        function = _NOISE.get(node.target)
        if node.op != "call_function" or function is None or len(node.args) != 1 or not isinstance(value, torch.Tensor):
            continue
        shape = shape_of(value, sizes)
        if None in shape or not value.is_contiguous() or not set(node.kwargs) <= {"dtype", "device"}:
            continue
        node.target, node.args = function, (shape,)
        node.kwargs = {**node.kwargs, "dtype": value.dtype, "device": value.device}


def _split_masks(graph: Graph) -> None:
    """Replace dropout in training by a mask and a product. Only the mask has to stay in the order of random numbers.

    The mask is dropout of ones, which draws the same numbers for a contiguous tensor.
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
        drop = nodes.value_of(probability)
        if nodes.argument(node, "inplace", False) is not False or not isinstance(drop, (float, torch.SymFloat)):
            continue
        if not isinstance(value, torch.Tensor) or not 0 < drop < 1 or not value.dtype.is_floating_point:
            continue
        shape = shape_of(value, sizes)
        if name == "dropout":
            if not value.is_contiguous():
                continue
        elif value.dim() != int(name[-2]) + 2:
            continue
        else:  # whole channels, in any memory order
            shape = (*shape[:2], *(1 for _ in shape[2:]))
        if None in shape or 0 in value.shape:
            continue
        if value.device.type != "cpu":
            continue  # elsewhere a fused kernel draws and multiplies, in its own order
        with graph.inserting_before(node):
            ones = graph.call_function(torch.ones, (shape,), {"dtype": value.dtype, "device": value.device})
            mask = graph.call_function(torch.nn.functional.dropout, (ones, probability, True, False))
            product = graph.call_function(torch.mul, (source, mask))
        fake_mask = value.new_empty(
            tuple(size if isinstance(size, int) else value.shape[at] for at, size in enumerate(shape))
        )
        for part, like in ((ones, fake_mask), (mask, fake_mask), (product, value)):
            part.meta.update(node.meta)
            part.meta["example_value"] = like
        node.replace_all_uses_with(product)
        graph.erase_node(node)
