"""Rules for operators that reshape, join, reduce or index tensors. Time is the additional first dimension."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.fx import Graph, Node

from snnipu.compiler import helpers
from snnipu.compiler.lifting import Call, Lifted, Make, all_held, only_first, same_call
from snnipu.compiler.nodes import is_tensor, value_of


def _dim(dim: Any) -> Any:
    """Return the dimension of a sequence for a dimension of a step, or None if it is not constant."""
    if isinstance(dim, bool) or not isinstance(dim, (int, tuple, list)):
        return None
    if isinstance(dim, (tuple, list)):
        moved = [_dim(one) for one in dim]
        return None if None in moved else type(dim)(moved)
    return dim + 1 if dim >= 0 else dim


_OTHER_DIMENSIONS = ("dim0", "dim1", "axis0", "axis1", "source", "destination")


def _along(place: int, name: str = "dim", default: Any = None, count: int = 1) -> Callable[[Call], Optional[Make]]:
    """Return the rule of an operator with dimensions among its arguments.

    Args:
        place: the position of the first dimension.
        name: the keyword of the dimension.
        default: returns the dimensions of a call without any, from the number of dimensions of its input.
        count: the number of arguments that are dimensions.
    """

    def rule(call: Call) -> Optional[Make]:
        first = only_first(call)
        if first is None or any(key in call.kwargs for key in _OTHER_DIMENSIONS):
            return None

        def moved(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Tuple[Tuple[Any, ...], Dict[str, Any]]]:
            new, has_dim = list(args), False
            for index in range(place, min(place + count, len(args))):
                new[index], has_dim = _dim(args[index]), True
                if new[index] is None:
                    return None
            keywords = dict(kwargs)
            for key in (name, f"{name}s", "axis"):
                if key in keywords:
                    keywords[key], has_dim = _dim(keywords[key]), True
                    if keywords[key] is None:
                        return None
            if not has_dim:
                if default is None:
                    return None
                keywords[name] = default(first.dims)
                if not keywords[name]:
                    return None
            return tuple(new), keywords

        if moved(call.args, call.kwargs) is None:
            return None

        def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
            arguments = moved(args, kwargs)
            assert arguments is not None
            return call.call_with(graph, *arguments)

        return make

    return rule


def _all_dims(dims: int) -> List[int]:
    return list(range(1, dims + 1))


def _flatten(call: Call) -> Optional[Make]:
    first = only_first(call)
    if first is None or first.dims == 0 or not 1 <= len(call.args) <= 3:
        return None
    start = call.args[1] if len(call.args) > 1 else call.kwargs.get("start_dim", 0)
    end = call.args[2] if len(call.args) > 2 else call.kwargs.get("end_dim", -1)
    dims = _dim((start, end))
    if dims is None:
        return None
    return lambda graph, args, kwargs: graph.call_function(torch.flatten, (args[0], *dims))


def _sizes(args: Sequence[Any]) -> Any:
    """Return the sizes or dims after the tensor, given as one sequence or one by one."""
    return args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]


def _reshape(call: Call) -> Optional[Make]:
    first = only_first(call)
    if first is None or call.kwargs or any(isinstance(size, torch.dtype) for size in call.args[1:]):
        return None
    return lambda graph, args, kwargs: graph.call_function(helpers.reshaped, args)


def _permute(call: Call) -> Optional[Make]:
    first = only_first(call)
    if first is None or call.kwargs:
        return None
    order = _sizes(call.args)
    if not all(type(dim) is int for dim in order):
        return None
    dims = [0, *(dim % first.dims + 1 for dim in order)]
    return lambda graph, args, kwargs: graph.call_function(torch.permute, (args[0], dims))


def _transposed(call: Call) -> Optional[Make]:
    first = only_first(call)
    if first is None or first.dims > 2:
        return None
    if first.dims < 2:
        return lambda graph, args, kwargs: args[0]
    return lambda graph, args, kwargs: graph.call_function(torch.transpose, (args[0], 1, 2))


def _unsqueeze(call: Call) -> Optional[Make]:
    first = only_first(call)
    dim = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    if first is None or type(dim) is not int:
        return None
    at = dim % (first.dims + 1) + 1
    return lambda graph, args, kwargs: graph.call_function(torch.unsqueeze, (args[0], at))


def _squeeze(call: Call) -> Optional[Make]:
    first = only_first(call)
    if first is None:
        return None
    if len(call.args) == 1 and not call.kwargs:
        sizes = first.value.shape
        if not all(isinstance(size, int) for size in sizes):
            return None
        dims = [place + 1 for place, size in enumerate(sizes) if size == 1]

        def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
            out = args[0]
            for dim in reversed(dims):
                out = graph.call_function(torch.squeeze, (out, dim))
            return out

        return make
    dim = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    if type(dim) is not int or first.dims == 0:
        return None
    return lambda graph, args, kwargs: graph.call_function(torch.squeeze, (args[0], dim % first.dims + 1))


def _expand(call: Call) -> Optional[Make]:
    first = only_first(call)
    if first is None or not isinstance(call.out, torch.Tensor) or call.out.dim() != first.dims or call.kwargs:
        return None
    if not _sizes(call.args):
        return None
    return lambda graph, args, kwargs: graph.call_method("expand", (args[0], -1, *_sizes(args)))


def _repeat(call: Call) -> Optional[Make]:
    first = only_first(call)
    if first is None or first.dims == 0 or not isinstance(call.out, torch.Tensor) or call.out.dim() != first.dims:
        return None
    if call.node.op != "call_method" or call.kwargs:
        return None
    return lambda graph, args, kwargs: graph.call_method("repeat", (args[0], 1, *_sizes(args)))


def _joins(default: int) -> Callable[[Call], Optional[Make]]:
    """Return the rule of ``cat`` and ``stack`` of the tensors of a step."""

    def rule(call: Call) -> Optional[Make]:
        if not isinstance(call.args[0] if call.args else None, (tuple, list)):
            return None
        parts = call.args[0]
        dim = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", call.kwargs.get("axis", default))
        moved = _dim(dim) if isinstance(dim, int) else None
        dims = {one.dims if isinstance(one, Lifted) else value_of(one).dim() for one in parts if not _is_number(one)}
        if moved is None or len(dims) != 1 or any(_is_number(one) for one in parts):
            return None

        def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
            values = all_held(graph, parts, args[0])
            return graph.create_node("call_function", call.node.target, (values, moved), {})

        return make if call.node.op == "call_function" else None

    return rule


def _is_number(value: Any) -> bool:
    return not isinstance(value, (Lifted, Node))


def _index(call: Call) -> Optional[Make]:
    """Index each step by the same index."""
    first = call.args[0]
    index = call.args[1]
    if not isinstance(first, Lifted) or len(call.lifted()) != 1:
        return None
    if isinstance(first.value, (tuple, list)):
        return (lambda graph, args, kwargs: call.call_with(graph, args, kwargs)) if type(index) is int else None
    plain = index if isinstance(index, tuple) else (index,)
    tensors = [place for place, one in enumerate(plain) if isinstance(one, Node) and _is_of_integers(one)]
    if tensors:
        # Separated index tensors would put their dimensions before time.
        places = [place for place, one in enumerate(plain) if place in tensors or type(one) is int]
        if places != list(range(places[0], places[-1] + 1)):
            return None
    others = [one for place, one in enumerate(plain) if place not in tensors]
    if not all(one is None or one is Ellipsis or type(one) is int or _is_plain_slice(one) for one in others):
        return None

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        indices = args[1] if isinstance(args[1], tuple) else (args[1],)
        return call.call_with(graph, (args[0], (slice(None), *indices)), {})

    return make


def _is_of_integers(node: Node) -> bool:
    return is_tensor(node) and value_of(node).dtype == torch.int64


def _is_plain_slice(value: Any) -> bool:
    return isinstance(value, slice) and all(
        one is None or type(one) is int for one in (value.start, value.stop, value.step)
    )


def _cast(call: Call) -> Optional[Make]:
    """Allow ``to``, ``type_as`` and similar casts."""
    first = only_first(call)
    return same_call(call) if first is not None and isinstance(call.out, torch.Tensor) else None


_CASTS = ["to", "float", "double", "half", "bfloat16", "int", "long", "bool", "type", "type_as", "contiguous"]

SHAPE_RULES: Dict[str, Callable[[Call], Optional[Make]]] = {
    **dict.fromkeys(_CASTS, _cast),
    "flatten": _flatten,
    "view": _reshape,
    "reshape": _reshape,
    "permute": _permute,
    "t": _transposed,
    "transpose": _along(1, count=2),
    "swapaxes": _along(1, count=2),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "expand": _expand,
    "cat": _joins(0),
    "concat": _joins(0),
    "stack": _joins(0),
    "softmax": _along(1),
    "log_softmax": _along(1),
    "sum": _along(1, default=_all_dims),
    "mean": _along(1, default=_all_dims),
    "amax": _along(1, default=_all_dims),
    "amin": _along(1, default=_all_dims),
    "argmax": _along(1),
    "argmin": _along(1),
    "cumsum": _along(1),
    "std": _along(1, default=_all_dims),
    "var": _along(1, default=_all_dims),
    "norm": _along(2),
    "unflatten": _along(1),
    "narrow": _along(1),
    "index_select": _along(1),
    "movedim": _along(1, count=2),
    "flip": _along(1, count=8),
    "roll": _along(2),
    "split": _along(2, default=lambda dims: 1),
    "chunk": _along(2, default=lambda dims: 1),
    "tensor_split": _along(2, default=lambda dims: 1),
    "unbind": _along(1, default=lambda dims: 1),
    "repeat": _repeat,
    "max": _along(1),
    "min": _along(1),
    "getitem": _index,
}
