"""Which operators may run once over all time steps, and how.

A rule is given a call at one step, in which what differs from step to step is a :class:`Lifted`. It returns a function
that makes the call over time, or None: the operator stays one per step.
"""

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.fx import Graph, Node

from snnipu.compiler import autograd_functions, helpers
from snnipu.compiler.nodes import ELEMENTWISE, OWN, argument, bound, is_tensor, key_of, name_of, training, value_of
from snnipu.ops import sparse_input, step_operators
from snnipu.ops.batch_norm import batch_norm_over_time
from snnipu.ops.dense_pool2d import avg_pool2d, max_pool2d

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


def _only_first(call: Call) -> Optional[Lifted]:
    """The first argument where it alone differs from step to step."""
    lifted = call.lifted()
    first = call.args[0] if call.args else call.kwargs.get("input")
    return first if len(lifted) == 1 and lifted[0] is first and isinstance(first.value, torch.Tensor) else None


def _replace_first(args: Any, kwargs: Any, value: Any) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    return ((value, *args[1:]), kwargs) if args else (args, {**kwargs, "input": value})


def _first_of(args: Any, kwargs: Any) -> Any:
    return args[0] if args else kwargs["input"]


def _elementwise(call: Call) -> Optional[Make]:
    """Broadcasting takes care of time, once every step has all dimensions of the result."""
    if not isinstance(call.out, torch.Tensor):
        return None
    dims = call.out.dim()
    if any(lifted.value.dim() > dims for lifted in call.lifted()):
        return None
    if any(value_of(node).dim() > dims for node in call.constant_tensors()):
        return None
    dtypes = {value_of(one).dtype for one in call.constant_tensors()} | {one.value.dtype for one in call.lifted()}
    if len(dtypes) > 1 and any(lifted.dims == 0 for lifted in call.lifted()):
        return None  # a tensor without dimensions does not widen the others' dtype; a sequence of them would
    missing = [dims - lifted.dims for lifted in call.lifted()]

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        if not any(missing):
            return call.again(graph, args, kwargs)
        left = iter(missing)

        def widened(given: Any, made: Any) -> Any:
            if isinstance(given, Lifted):
                more = next(left)
                return graph.call_function(helpers.widen, (made, more)) if more else made
            if isinstance(given, (tuple, list)):
                return type(given)(widened(a, b) for a, b in zip(given, made))
            return made

        new_args = [widened(a, b) for a, b in zip(call.args, args)]
        return call.again(graph, new_args, {key: widened(call.kwargs[key], value) for key, value in kwargs.items()})

    return make


def _folded(call: Call) -> Make:
    """All steps as one batch."""

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        sequence = _first_of(args, kwargs)
        folded = graph.call_function(helpers.fold_time, (sequence,))
        out = call.again(graph, *_replace_first(args, kwargs, folded))
        return graph.call_function(helpers.split_time, (out, sequence))

    return make


def _same_call(call: Call) -> Make:
    """The same call on the sequence: it looks at trailing dimensions alone."""
    return lambda graph, args, kwargs: call.again(graph, args, kwargs)


def _of_few(function: Callable[..., Any], names: Tuple[str, ...]) -> Make:
    """All steps as one batch, by a function that looks whether its input is mostly zeros."""

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        given = {**dict(zip(names, args)), **kwargs}
        sequence = given.pop("input")
        folded = graph.call_function(helpers.fold_time, (sequence,))
        out = graph.call_function(function, (folded,), given)
        return graph.call_function(helpers.split_time, (out, sequence))

    return make


def _linear(call: Call) -> Optional[Make]:
    first = _only_first(call)
    if first is None:
        return None
    if first.dims == 1:
        return _same_call(call)

    return _of_few(sparse_input.linear, ("input", "weight", "bias"))


def _maps(spatial: int) -> Callable[[Call], Optional[Make]]:
    def rule(call: Call) -> Optional[Make]:
        first = _only_first(call)
        if first is None or first.dims != spatial + 2 or not isinstance(call.out, torch.Tensor):
            return None
        return _folded(call)

    return rule


def _convolution(spatial: int, function: Callable[..., Any]) -> Callable[[Call], Optional[Make]]:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    make = _of_few(function, names)
    return lambda call: make if _maps(spatial)(call) is not None else None


def _pool2d(function: Callable[..., Any]) -> Callable[[Call], Optional[Make]]:
    """By our own kernel."""

    def rule(call: Call) -> Optional[Make]:
        make = _maps(2)(call)
        if make is None or not call.node.args:
            return make

        def pooled(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
            folded = graph.call_function(helpers.fold_time, (args[0],))
            out = graph.call_function(function, (folded, *args[1:]), kwargs)
            return graph.call_function(helpers.split_time, (out, args[0]))

        return pooled

    return rule


def _bilinear(call: Call) -> Optional[Make]:
    lifted = call.lifted()
    if len(call.args) < 3 or lifted != list(call.args[:2]) or any(one.dims < 2 for one in lifted):
        return None

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        folded = [graph.call_function(helpers.fold_time, (sequence,)) for sequence in args[:2]]
        out = call.again(graph, (*folded, *args[2:]), kwargs)
        return graph.call_function(helpers.split_time, (out, args[0]))

    return make


def _matmul(call: Call) -> Optional[Make]:
    if call.kwargs or len(call.args) != 2:
        return None
    a, b = call.args
    if isinstance(a, Lifted) and isinstance(b, Lifted):
        # `mm` and `bmm` take matrices and batches of them alone.
        matmul = a.dims == b.dims and a.dims >= 2
        return (lambda graph, args, kwargs: graph.call_function(torch.matmul, args)) if matmul else None
    if isinstance(b, Lifted) and isinstance(a, Node) and name_of(call.node) == "matmul":
        return _same_call(call) if 2 <= value_of(a).dim() <= b.dims else None
    if isinstance(a, Lifted) and a.dims >= 2 and isinstance(b, Node) and value_of(b).dim() == 2:
        return _folded(call)
    return None


def _batch_norm(call: Call) -> Optional[Make]:
    first = _only_first(call)
    if first is None or first.dims < 2 or getattr(torch, name_of(call.node), None) is call.node.target:
        return None
    if training(call.node, default=False) or argument(call.node, "running_mean") is None:
        return _batch_norm_in_training(call)
    return _folded(call)


def _batch_norm_in_training(call: Call) -> Optional[Make]:
    """Each step by its own statistics."""
    given = bound(call.node, ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"))
    statistics = [given.get(name) is None for name in ("running_mean", "running_var")]
    if given.get("training", False) is not True or statistics[0] != statistics[1]:
        return None
    if not statistics[0] and type(given.get("momentum", 0.1)) not in (int, float):
        return None
    return lambda graph, args, kwargs: graph.call_function(batch_norm_over_time, _renamed(args, kwargs))


def _renamed(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[Any, ...]:
    """The arguments of ``batch_norm``, all by place."""
    defaults = {"weight": None, "bias": None, "training": True, "momentum": 0.1, "eps": 1e-5}
    names = ("input", "running_mean", "running_var", *defaults)
    given = {**defaults, **dict(zip(names, args)), **kwargs}
    return tuple(given[name] for name in names)


def _norm_of_samples(call: Call) -> Optional[Make]:
    first = _only_first(call)
    return _folded(call) if first is not None and first.dims >= 2 else None


def _instance_norm(call: Call) -> Optional[Make]:
    statistics = argument(call.node, "running_mean")
    return _norm_of_samples(call) if statistics is None else None


def _layer_norm(call: Call) -> Optional[Make]:
    first = _only_first(call)
    return _same_call(call) if first is not None else None


def _interpolate(call: Call) -> Optional[Make]:
    first = _only_first(call)
    return _folded(call) if first is not None and first.dims >= 3 else None


def _pad(call: Call) -> Optional[Make]:
    first = _only_first(call)
    mode = call.args[2] if len(call.args) > 2 else call.kwargs.get("mode", "constant")
    if first is None or (mode != "constant" and first.dims < 3):
        return None
    return _same_call(call) if mode == "constant" else _folded(call)


def _dropout(call: Call) -> Optional[Make]:
    if getattr(torch, name_of(call.node), None) is call.node.target and call.node.op == "call_function":
        return None
    first = _only_first(call)
    if first is None or training(call.node, default=True):
        return None
    name = name_of(call.node)
    if name[-2:] not in ("1d", "2d", "3d"):
        return _same_call(call)
    return _folded(call) if first.dims == int(name[-2]) + 2 else None


def _embedding(call: Call) -> Optional[Make]:
    first = _only_first(call)
    if first is None or argument(call.node, "max_norm") is not None:
        return None
    return _same_call(call)


def _dim(dim: Any) -> Any:
    """A dimension of a step as one of the sequence."""
    if isinstance(dim, bool) or not isinstance(dim, (int, tuple, list)):
        return None
    if isinstance(dim, (tuple, list)):
        moved = [_dim(one) for one in dim]
        return None if None in moved else type(dim)(moved)
    return dim + 1 if dim >= 0 else dim


_OTHER_DIMENSIONS = ("dim0", "dim1", "axis0", "axis1", "source", "destination")


def _along(place: int, name: str = "dim", default: Any = None, count: int = 1) -> Callable[[Call], Optional[Make]]:
    """Arguments ``place`` on, ``count`` of them, are dimensions of the step; ``default`` where there are none."""

    def rule(call: Call) -> Optional[Make]:
        first = _only_first(call)
        if first is None or any(key in call.kwargs for key in _OTHER_DIMENSIONS):
            return None

        def moved(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Tuple[Tuple[Any, ...], Dict[str, Any]]]:
            new, found = list(args), False
            for index in range(place, min(place + count, len(args))):
                new[index], found = _dim(args[index]), True
                if new[index] is None:
                    return None
            keywords = dict(kwargs)
            for key in (name, f"{name}s", "axis"):
                if key in keywords:
                    keywords[key], found = _dim(keywords[key]), True
                    if keywords[key] is None:
                        return None
            if not found:
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
            return call.again(graph, *arguments)

        return make

    return rule


def _all_dims(dims: int) -> List[int]:
    return list(range(1, dims + 1))


def _flatten(call: Call) -> Optional[Make]:
    first = _only_first(call)
    if first is None or first.dims == 0 or not 1 <= len(call.args) <= 3:
        return None
    start = call.args[1] if len(call.args) > 1 else call.kwargs.get("start_dim", 0)
    end = call.args[2] if len(call.args) > 2 else call.kwargs.get("end_dim", -1)
    dims = _dim((start, end))
    if dims is None:
        return None
    return lambda graph, args, kwargs: graph.call_function(torch.flatten, (args[0], *dims))


def _reshape(call: Call) -> Optional[Make]:
    first = _only_first(call)
    if first is None or call.kwargs or any(isinstance(size, torch.dtype) for size in call.args[1:]):
        return None
    return lambda graph, args, kwargs: graph.call_function(helpers.reshaped, args)


def _permute(call: Call) -> Optional[Make]:
    first = _only_first(call)
    if first is None or call.kwargs:
        return None
    given = call.args[1] if len(call.args) == 2 and isinstance(call.args[1], (tuple, list)) else call.args[1:]
    if not all(type(dim) is int for dim in given):
        return None
    dims = [0, *(dim % first.dims + 1 for dim in given)]
    return lambda graph, args, kwargs: graph.call_function(torch.permute, (args[0], dims))


def _transposed(call: Call) -> Optional[Make]:
    first = _only_first(call)
    if first is None or first.dims > 2:
        return None
    if first.dims < 2:
        return lambda graph, args, kwargs: args[0]
    return lambda graph, args, kwargs: graph.call_function(torch.transpose, (args[0], 1, 2))


def _unsqueeze(call: Call) -> Optional[Make]:
    first = _only_first(call)
    dim = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    if first is None or type(dim) is not int:
        return None
    at = dim % (first.dims + 1) + 1
    return lambda graph, args, kwargs: graph.call_function(torch.unsqueeze, (args[0], at))


def _squeeze(call: Call) -> Optional[Make]:
    first = _only_first(call)
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
    first = _only_first(call)
    if first is None or not isinstance(call.out, torch.Tensor) or call.out.dim() != first.dims or call.kwargs:
        return None
    given = call.args[1] if len(call.args) == 2 and isinstance(call.args[1], (tuple, list)) else call.args[1:]

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        sizes = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
        return graph.call_method("expand", (args[0], -1, *sizes))

    return make if given else None


def _repeat(call: Call) -> Optional[Make]:
    first = _only_first(call)
    if first is None or first.dims == 0 or not isinstance(call.out, torch.Tensor) or call.out.dim() != first.dims:
        return None
    if call.node.op != "call_method" or call.kwargs:
        return None

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        sizes = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
        return graph.call_method("repeat", (args[0], 1, *sizes))

    return make


def _one_hot(call: Call) -> Optional[Make]:
    """With the number of classes, which else is that of the largest one there is."""
    first = _only_first(call)
    classes = call.args[1] if len(call.args) > 1 else call.kwargs.get("num_classes")
    return _same_call(call) if first is not None and type(classes) is int and classes > 0 else None


def _attention(call: Call) -> Optional[Make]:
    """``scaled_dot_product_attention`` without dropout, all of whose three arguments differ from step to step."""
    three = list(call.args[:3])
    if len(three) < 3 or call.lifted() != three or any(one.dims < 3 for one in three) or call.constant_tensors():
        return None

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        folded = [graph.call_function(helpers.fold_time, (sequence,)) for sequence in args[:3]]
        out = call.again(graph, (*folded, *args[3:]), kwargs)
        return graph.call_function(helpers.split_time, (out, args[0]))

    return make


def _multi_head_attention(call: Call) -> Optional[Make]:
    """``multi_head_attention_forward`` of batches, with no mask but one for all of them."""
    three = call.args[:3]
    values = [one.value if isinstance(one, Lifted) else value_of(one) for one in three]
    if call.lifted() != [one for one in three if isinstance(one, Lifted)] or len(values) < 3:
        return None
    mask = argument(call.node, "attn_mask")
    given = ["key_padding_mask", "static_k", "static_v"]
    if any(argument(call.node, name) is not None for name in given) or (mask is not None and value_of(mask).dim() != 2):
        return None
    if any(not isinstance(value, torch.Tensor) or value.dim() != 3 for value in values):
        return None

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        return graph.call_function(helpers.attention_over_time, (*_all_held(graph, three, args[:3]), *args[3:]), kwargs)

    return make


def _all_held(graph: Graph, given: Sequence[Any], made: Sequence[Any]) -> List[Any]:
    """Sequences: what does not differ from step to step is one, too."""
    steps = next(node for one, node in zip(given, made) if isinstance(one, Lifted))
    if all(isinstance(one, Lifted) for one in given):
        return list(made)
    count = graph.call_function(len, (steps,))
    return [
        node if isinstance(one, Lifted) else graph.call_function(helpers.held, (node, count))
        for one, node in zip(given, made)
    ]


def _by_indices(vector: bool) -> Callable[[Call], Optional[Make]]:
    """``x.gather(dim, index)``, ``x.index_add(dim, index, source)`` and their like.

    Args:
        vector: the indices have one dimension, and are the same at every step.
    """

    def rule(call: Call) -> Optional[Make]:
        if len(call.args) < 3 or type(call.args[1]) is not int or not all(_is_tensor(one) for one in call.args[2:]):
            return None
        parts = [one for place, one in enumerate(call.args) if place != 1 and not (vector and place == 2)]
        if not _is_tensor(call.args[0]) or call.lifted() != [one for one in parts if isinstance(one, Lifted)]:
            return None
        if call.out.dim() == 0:
            return None

        def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
            made = [one for place, one in enumerate(args) if place != 1 and not (vector and place == 2)]
            left = iter(_all_held(graph, parts, made))
            moved = [
                args[1] % call.out.dim() + 1 if place == 1 else one if vector and place == 2 else next(left)
                for place, one in enumerate(args)
            ]
            return call.again(graph, moved, kwargs)

        return make

    return rule


def _is_tensor(value: Any) -> bool:
    return isinstance(value.value if isinstance(value, Lifted) else value_of(value), torch.Tensor)


def _joins(default: int) -> Callable[[Call], Optional[Make]]:
    """``cat`` and ``stack`` of tensors of one step."""

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
            values = _all_held(graph, parts, args[0])
            return graph.create_node("call_function", call.node.target, (values, moved), {})

        return make if call.node.op == "call_function" else None

    return rule


def _is_number(value: Any) -> bool:
    return not isinstance(value, (Lifted, Node))


def _index(call: Call) -> Optional[Make]:
    """``x[...]`` of each step; the index is the same at every step."""
    first = call.args[0]
    index = call.args[1]
    if not isinstance(first, Lifted) or len(call.lifted()) != 1:
        return None
    if isinstance(first.value, (tuple, list)):
        return (lambda graph, args, kwargs: call.again(graph, args, kwargs)) if type(index) is int else None
    plain = index if isinstance(index, tuple) else (index,)
    tensors = [place for place, one in enumerate(plain) if isinstance(one, Node) and _is_of_integers(one)]
    if tensors:
        # Apart from each other, they would put their dimensions in front of time.
        places = [place for place, one in enumerate(plain) if place in tensors or type(one) is int]
        if places != list(range(places[0], places[-1] + 1)):
            return None
    others = [one for place, one in enumerate(plain) if place not in tensors]
    if not all(one is None or one is Ellipsis or type(one) is int or _is_plain_slice(one) for one in others):
        return None

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        made = args[1] if isinstance(args[1], tuple) else (args[1],)
        return call.again(graph, (args[0], (slice(None), *made)), {})

    return make


def _is_of_integers(node: Node) -> bool:
    return is_tensor(node) and value_of(node).dtype == torch.int64


def _is_plain_slice(value: Any) -> bool:
    return isinstance(value, slice) and all(
        one is None or type(one) is int for one in (value.start, value.stop, value.step)
    )


def _cast(call: Call) -> Optional[Make]:
    """``to``, ``type_as`` and their like."""
    first = _only_first(call)
    return _same_call(call) if first is not None and isinstance(call.out, torch.Tensor) else None


_CASTS = ["to", "float", "double", "half", "bfloat16", "int", "long", "bool", "type", "type_as", "contiguous"]

RULES: Dict[str, Callable[[Call], Optional[Make]]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(_CASTS, _cast),
    "linear": _linear,
    "bilinear": _bilinear,
    "matmul": _matmul,
    "mm": _matmul,
    **{
        name.format(n): _maps(n)
        for n in (1, 2, 3)
        for name in (
            "conv{}d",
            "conv_transpose{}d",
            "max_pool{}d",
            "avg_pool{}d",
            "adaptive_avg_pool{}d",
            "adaptive_max_pool{}d",
        )
    },
    "lp_pool1d": _maps(1),
    "lp_pool2d": _maps(2),
    "conv1d": _convolution(1, sparse_input.conv1d),
    "conv2d": _convolution(2, sparse_input.conv2d),
    "max_pool2d": _pool2d(max_pool2d),
    "avg_pool2d": _pool2d(avg_pool2d),
    "batch_norm": _batch_norm,
    "group_norm": _norm_of_samples,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
    "prelu": _norm_of_samples,
    "pixel_shuffle": _maps(2),
    "pad": _pad,
    "interpolate": _interpolate,
    **dict.fromkeys(("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d"), _dropout),
    "embedding": _embedding,
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
    "one_hot": _one_hot,
    "gather": _by_indices(vector=False),
    "scatter_add": _by_indices(vector=False),
    "index_add": _by_indices(vector=True),
    "multi_head_attention_forward": _multi_head_attention,
    "scaled_dot_product_attention": _attention,
    "bmm": _matmul,
    "max": _along(1),
    "min": _along(1),
    "getitem": _index,
}


def _step(call: Call) -> Optional[Make]:
    """A neuron's steps none of which goes on from the one before."""
    x, states, _, _, _, rolls = call.args
    own = [one for one in (x, *states) if one is not None]
    if rolls or not all(isinstance(one, Lifted) for one in own) or len({key_of(one.value)[0] for one in own}) > 1:
        return None
    others = [one for one in call.lifted() if not any(one is given for given in own)]
    small = all(value_of(node).dim() <= x.dims for node in call.constant_tensors())
    return _same_call(call) if small and not others else None


def _own_function(call: Call) -> Optional[Make]:
    """An autograd function of the program's own, of tensors of one shape."""
    lifted = call.lifted()
    shapes = {key_of(one)[0] for one in (*(one.value for one in lifted), *call.out)}
    fits = call.node.meta[OWN].is_elementwise and len(shapes) == 1 and not call.constant_tensors()
    return _same_call(call) if fits and lifted[0].dims and all(one in call.args for one in lifted) else None


def over_time(call: Call) -> Optional[Make]:
    """How the call runs over time; None: it does not."""
    rule = _step if call.node.target is step_operators.neuron_step else RULES.get(name_of(call.node))
    if autograd_functions.is_called_directly(call.node):
        rule = _own_function
    if rule is None or not call.args:
        return None
    return rule(call)


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with its leaves changed, in tuples, lists, dictionaries and slices."""
    if isinstance(value, (tuple, list)):
        return type(value)(changed(item, change) for item in value)
    if isinstance(value, dict):
        return {key: changed(item, change) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(changed(item, change) for item in (value.start, value.stop, value.step)))
    return change(value)
