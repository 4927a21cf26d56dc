"""A graph in a form in which the same thing looks the same: before chains are looked for."""

import functools
import operator
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from snnipu.compiler import nodes, own_functions, rules
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
    _without_gradient_modes(graph)
    _drop_casts(graph)
    _differences(graph)
    _out_of_place(graph)
    _count_once(graph)
    _records_as_stacks(graph)
    _merge_equal(graph)
    if _norms_of_constants(graph):
        _merge_equal(graph)
    _masks_apart(graph)
    _noise_apart(graph)


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


def _without_gradient_modes(graph: Graph) -> None:
    """``with torch.no_grad()`` as ``detach`` of what its calls are given: no call need then stay where its mode is.

    Only where the graph's own mode is left for no gradient, and come back to, and what is called is known.
    """
    own = torch.is_grad_enabled()
    barriers = [node for node in graph.nodes if nodes.is_barrier(node)]
    modes = [node.args[0] for node in barriers if node.target is torch._C._set_grad_enabled]
    if not barriers or len(modes) < len(barriers) or modes[-1] is not own or (True in modes and not own):
        return
    changes = nodes.Memory(graph).changes
    inside: List[Node] = []
    enabled: Any = own
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
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
            with graph.inserting_before(node):
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


def _count_once(graph: Graph) -> None:
    """A number of the module that is counted up at each step, by whole numbers, and looked at by nobody: at once."""
    for node in graph.nodes:
        value = nodes.value_of(node)
        if node.op not in ("placeholder", "get_attr") or not isinstance(value, torch.Tensor):
            continue
        counts: List[Any] = list(node.users)
        if (
            len(counts) < 2
            or value.dtype != torch.int64
            or any(one.op != "call_method" or one.target != "add_" or one.users for one in counts)
            or any(len(one.args) != 2 or one.kwargs or type(one.args[1]) is not int for one in counts)
            or any(nodes.is_barrier(other) for other in graph.nodes)
        ):
            continue
        counts[0].args = (node, sum(one.args[1] for one in counts))
        for one in counts[1:]:
            graph.erase_node(one)


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


def _is_shown(node: Node) -> bool:
    """Whether a result of the graph may be the node's memory."""
    seen, waiting = {node}, [node]
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output":
                return True
            if user not in seen and not nodes.is_fresh(user):
                seen.add(user)
                waiting.append(user)
    return False


# Calls without a tensor that give the same at every step.
_SAME_NUMBERS = {"arange", "full", "ones", "zeros"}


def _merge_equal(graph: Graph) -> None:
    """Calls with the same arguments give the same result: of a constant input, say."""
    changed, _ = nodes.changed_memory(graph)
    if any(nodes.is_barrier(node) for node in graph.nodes):
        return
    known: Dict[Any, Node] = {}
    for node in list(graph.nodes):
        name = nodes.name_of(node)
        own = own_functions.is_called_directly(node) and node.meta[nodes.OWN].is_linear
        known_name = own or name in rules.RULES or name in _SAME_NUMBERS
        if node.op not in ("call_function", "call_method") or not known_name:
            continue
        if name in _SAME_NUMBERS and _is_shown(node):
            continue
        if node in changed or nodes.is_random(node):
            continue
        if any(source in changed and not nodes.is_norm_in_training(source) for source in node.all_input_nodes):
            continue
        try:
            key = (node.op, node.target, _hashable(node.args), _hashable(node.kwargs))
            first = known.setdefault(key, node)
        except TypeError:
            continue
        if first is not node:
            node.replace_all_uses_with(first, propagate_meta=False)
            graph.erase_node(node)


def _norms_of_constants(graph: Graph) -> bool:
    """Batch norms in training of one and the same batch, one after the other: one, of the momentum that all have.

    The running averages are those of all of them, to rounding. Returns whether there were any.
    """
    if any(nodes.is_barrier(node) for node in graph.nodes):
        return False
    found = False
    alike: Dict[Any, List[Node]] = {}
    for node in graph.nodes:
        if nodes.is_norm_in_training(node):
            alike.setdefault((_hashable(node.args), _hashable(node.kwargs)), []).append(node)
    for same in alike.values():
        first = same[0]
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        given = nodes.bound(first, names)
        momentum = given.get("momentum", 0.1)
        statistics = [given.get(name) for name in names[1:3]]
        if len(same) < 2 or type(momentum) is not float:
            continue
        if any(isinstance(one, Node) and set(one.users) != set(same) for one in statistics):
            continue
        first.args = (given.pop("input"),)
        first.kwargs = {**given, "momentum": 1 - (1 - momentum) ** len(same)}
        for node in same[1:]:
            node.replace_all_uses_with(first, propagate_meta=False)
            graph.erase_node(node)
        found = True
    return found


def _hashable(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value).__name__, tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, slice):
        return "slice", _hashable((value.start, value.stop, value.step))
    return type(value).__name__, value


def _symbols(graph: Graph) -> Dict[Any, Node]:
    """Symbols of sizes, by the inputs that have them."""
    return {
        nodes.size_key(nodes.value_of(node)): node
        for node in graph.nodes
        if node.op == "placeholder" and isinstance(nodes.value_of(node), torch.SymInt)
    }


def _shape(value: torch.Tensor, sizes: Dict[Any, Node]) -> Tuple[Any, ...]:
    """The sizes of a tensor as arguments of a call; None for one that no input has."""
    return tuple(size if isinstance(size, int) else sizes.get(nodes.size_key(size)) for size in value.shape)


_NOISE = {torch.rand_like: torch.rand, torch.randn_like: torch.randn}


def _noise_apart(graph: Graph) -> None:
    """``randn_like(x)`` as ``randn`` of the same shape, which draws the same numbers and need not wait for ``x``."""
    sizes = _symbols(graph)
    for node in graph.nodes:
        value = nodes.value_of(node)
        made = _NOISE.get(node.target)
        if node.op != "call_function" or made is None or len(node.args) != 1 or not isinstance(value, torch.Tensor):
            continue
        shape = _shape(value, sizes)
        if None in shape or not value.is_contiguous() or not set(node.kwargs) <= {"dtype", "device"}:
            continue
        node.target, node.args = made, (shape,)
        node.kwargs = {**node.kwargs, "dtype": value.dtype, "device": value.device}


def _masks_apart(graph: Graph) -> None:
    """Dropout in training as a product with a mask, drawn in the same order: the product need not wait for its turn.

    A mask is dropout of ones, which draws the same numbers where the tensor is dense in its dimensions' order.
    """
    sizes = _symbols(graph)
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
        shape = _shape(value, sizes)
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
