"""Rules for operators that can run once over all time steps.

A rule takes a call at one step, in which a :class:`Lifted` replaces each argument that differs from step to step. It
returns a function that makes the call over time, or None if the operator has to run step by step.
"""

from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch.fx import Graph, Node

from snnipu.compiler import autograd_functions, helpers
from snnipu.compiler.lifting import (
    Call,
    Lifted,
    Make,
    all_held,
    folded,
    only_first,
    same_call,
)
from snnipu.compiler.nodes import ELEMENTWISE, PASSES, argument, bound, key_of, name_of, training, value_of
from snnipu.compiler.shape_rules import SHAPE_RULES
from snnipu.ops import sparse_input, step_operators
from snnipu.ops.batch_norm import batch_norm_over_time
from snnipu.ops.dense_pool2d import avg_pool2d, max_pool2d


def _elementwise(call: Call) -> Optional[Make]:
    """Broadcast over time: each sequence gets all dimensions of the result first."""
    if not isinstance(call.out, torch.Tensor):
        return None
    dims = call.out.dim()
    if any(lifted.value.dim() > dims for lifted in call.lifted()):
        return None
    if any(value_of(node).dim() > dims for node in call.constant_tensors()):
        return None
    dtypes = {value_of(one).dtype for one in call.constant_tensors()} | {lifted.value.dtype for lifted in call.lifted()}
    if len(dtypes) > 1 and any(lifted.dims == 0 for lifted in call.lifted()):
        return None  # a tensor without dimensions does not promote the result's dtype; a sequence of such tensors would
    missing = [dims - lifted.dims for lifted in call.lifted()]

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        if not any(missing):
            return call.call_with(graph, args, kwargs)
        remaining = iter(missing)

        def widened(argument: Any, value: Any) -> Any:
            if isinstance(argument, Lifted):
                more = next(remaining)
                return graph.call_function(helpers.widen, (value, more)) if more else value
            if isinstance(argument, (tuple, list)):
                return type(argument)(widened(a, b) for a, b in zip(argument, value))
            return value

        new_args = [widened(a, b) for a, b in zip(call.args, args)]
        return call.call_with(graph, new_args, {key: widened(call.kwargs[key], value) for key, value in kwargs.items()})

    return make


def _sparse_product(function: Callable[..., Any], names: Tuple[str, ...]) -> Make:
    """Make the call with all steps as one batch, by a function that skips zeros if its input has few events."""

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        named = {**dict(zip(names, args)), **kwargs}
        sequence = named.pop("input")
        folded = graph.call_function(helpers.fold_time, (sequence,))
        out = graph.call_function(function, (folded,), named)
        return graph.call_function(helpers.split_time, (out, sequence))

    return make


def _linear(call: Call) -> Optional[Make]:
    first = only_first(call)
    if first is None:
        return None
    if first.dims == 1:
        return same_call(call)

    return _sparse_product(sparse_input.linear, ("input", "weight", "bias"))


def _maps(spatial: int) -> Callable[[Call], Optional[Make]]:
    def rule(call: Call) -> Optional[Make]:
        first = only_first(call)
        if first is None or first.dims != spatial + 2 or not isinstance(call.out, torch.Tensor):
            return None
        return folded(call)

    return rule


def _convolution(spatial: int, function: Callable[..., Any]) -> Callable[[Call], Optional[Make]]:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    make = _sparse_product(function, names)
    return lambda call: make if _maps(spatial)(call) is not None else None


def _pool2d(function: Callable[..., Any]) -> Callable[[Call], Optional[Make]]:
    """Return the rule of a pooling operator that calls snnipu's kernel."""

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


def _folded(call: Call, count: int) -> Make:
    """Make the call with all steps as one batch; its first ``count`` arguments are sequences."""

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        folded = [graph.call_function(helpers.fold_time, (sequence,)) for sequence in args[:count]]
        out = call.call_with(graph, (*folded, *args[count:]), kwargs)
        return graph.call_function(helpers.split_time, (out, args[0]))

    return make


def _bilinear(call: Call) -> Optional[Make]:
    lifted = call.lifted()
    if len(call.args) < 3 or lifted != list(call.args[:2]) or any(one.dims < 2 for one in lifted):
        return None
    return _folded(call, 2)


def _matmul(call: Call) -> Optional[Make]:
    if call.kwargs or len(call.args) != 2:
        return None
    a, b = call.args
    if isinstance(a, Lifted) and isinstance(b, Lifted):
        # `mm` takes only matrices, and `bmm` only batches of matrices.
        matmul = a.dims == b.dims and a.dims >= 2
        return (lambda graph, args, kwargs: graph.call_function(torch.matmul, args)) if matmul else None
    if isinstance(b, Lifted) and isinstance(a, Node) and name_of(call.node) == "matmul":
        return same_call(call) if 2 <= value_of(a).dim() <= b.dims else None
    if isinstance(a, Lifted) and a.dims >= 2 and isinstance(b, Node) and value_of(b).dim() == 2:
        return folded(call)
    return None


def _batch_norm(call: Call) -> Optional[Make]:
    first = only_first(call)
    if first is None or first.dims < 2 or getattr(torch, name_of(call.node), None) is call.node.target:
        return None
    if training(call.node, default=False) or argument(call.node, "running_mean") is None:
        return _batch_norm_in_training(call)
    return folded(call)


def _batch_norm_in_training(call: Call) -> Optional[Make]:
    """Normalise each step by its statistics."""
    named = bound(call.node, ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"))
    statistics = [named.get(name) is None for name in ("running_mean", "running_var")]
    if named.get("training", False) is not True or statistics[0] != statistics[1]:
        return None
    if not statistics[0] and type(named.get("momentum", 0.1)) not in (int, float):
        return None
    return lambda graph, args, kwargs: graph.call_function(batch_norm_over_time, _positional(args, kwargs))


def _positional(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[Any, ...]:
    """Return the arguments of ``batch_norm`` as positional arguments."""
    defaults = {"weight": None, "bias": None, "training": True, "momentum": 0.1, "eps": 1e-5}
    names = ("input", "running_mean", "running_var", *defaults)
    named = {**defaults, **dict(zip(names, args)), **kwargs}
    return tuple(named[name] for name in names)


def _norm_of_samples(call: Call) -> Optional[Make]:
    first = only_first(call)
    return folded(call) if first is not None and first.dims >= 2 else None


def _instance_norm(call: Call) -> Optional[Make]:
    statistics = argument(call.node, "running_mean")
    return _norm_of_samples(call) if statistics is None else None


def _layer_norm(call: Call) -> Optional[Make]:
    first = only_first(call)
    return same_call(call) if first is not None else None


def _interpolate(call: Call) -> Optional[Make]:
    first = only_first(call)
    return folded(call) if first is not None and first.dims >= 3 else None


def _pad(call: Call) -> Optional[Make]:
    first = only_first(call)
    mode = call.args[2] if len(call.args) > 2 else call.kwargs.get("mode", "constant")
    if first is None or (mode != "constant" and first.dims < 3):
        return None
    return same_call(call) if mode == "constant" else folded(call)


def _dropout(call: Call) -> Optional[Make]:
    if getattr(torch, name_of(call.node), None) is call.node.target and call.node.op == "call_function":
        return None
    first = only_first(call)
    if first is None or training(call.node, default=True):
        return None
    name = name_of(call.node)
    if name[-2:] not in ("1d", "2d", "3d"):
        return same_call(call)
    return folded(call) if first.dims == int(name[-2]) + 2 else None


def _embedding(call: Call) -> Optional[Make]:
    first = only_first(call)
    if first is None or argument(call.node, "max_norm") is not None:
        return None
    return same_call(call)


def _one_hot(call: Call) -> Optional[Make]:
    """Allow ``one_hot`` only with a number of classes: the default is the largest class of the input plus one."""
    first = only_first(call)
    classes = call.args[1] if len(call.args) > 1 else call.kwargs.get("num_classes")
    return same_call(call) if first is not None and type(classes) is int and classes > 0 else None


def _attention(call: Call) -> Optional[Make]:
    """Allow ``scaled_dot_product_attention`` without dropout, if its three tensors differ from step to step."""
    three = list(call.args[:3])
    if len(three) < 3 or call.lifted() != three or any(one.dims < 3 for one in three) or call.constant_tensors():
        return None
    return _folded(call, 3)


def _multi_head_attention(call: Call) -> Optional[Make]:
    """Allow ``multi_head_attention_forward`` of batches, without a mask or with the same mask for all samples."""
    three = call.args[:3]
    values = [one.value if isinstance(one, Lifted) else value_of(one) for one in three]
    if call.lifted() != [one for one in three if isinstance(one, Lifted)] or len(values) < 3:
        return None
    mask = argument(call.node, "attn_mask")
    refused = ["key_padding_mask", "static_k", "static_v"]
    if any(argument(call.node, name) is not None for name in refused) or (
        mask is not None and value_of(mask).dim() != 2
    ):
        return None
    if any(not isinstance(value, torch.Tensor) or value.dim() != 3 for value in values):
        return None

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        return graph.call_function(helpers.attention_over_time, (*all_held(graph, three, args[:3]), *args[3:]), kwargs)

    return make


def _by_indices(vector: bool) -> Callable[[Call], Optional[Make]]:
    """Return the rule of ``x.gather(dim, index)``, ``x.index_add(dim, index, source)`` and similar operators.

    Args:
        vector: True if the indices have one dimension and are the same at every step.
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
            values = [one for place, one in enumerate(args) if place != 1 and not (vector and place == 2)]
            remaining = iter(all_held(graph, parts, values))
            moved = [
                args[1] % call.out.dim() + 1 if place == 1 else one if vector and place == 2 else next(remaining)
                for place, one in enumerate(args)
            ]
            return call.call_with(graph, moved, kwargs)

        return make

    return rule


def _is_tensor(value: Any) -> bool:
    return isinstance(value.value if isinstance(value, Lifted) else value_of(value), torch.Tensor)


RULES: Dict[str, Callable[[Call], Optional[Make]]] = {
    **SHAPE_RULES,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
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
    "one_hot": _one_hot,
    "gather": _by_indices(vector=False),
    "scatter_add": _by_indices(vector=False),
    "index_add": _by_indices(vector=True),
    "multi_head_attention_forward": _multi_head_attention,
    "scaled_dot_product_attention": _attention,
    "bmm": _matmul,
}


def _step(call: Call) -> Optional[Make]:
    """Allow steps of a neuron that do not start from the state of the step before."""
    x, states, _, _, _, rolls = call.args
    inputs = [one for one in (x, *states) if one is not None]
    if rolls or not all(isinstance(one, Lifted) for one in inputs) or len({key_of(one.value)[0] for one in inputs}) > 1:
        return None
    others = [one for one in call.lifted() if not any(one is other for other in inputs)]
    small = all(value_of(node).dim() <= x.dims for node in call.constant_tensors())
    return same_call(call) if small and not others else None


def _lstm_step(call: Call) -> Optional[Make]:
    """Make steps of a spiking LSTM that all start from zeros with all steps as one batch."""
    x, states, (threshold, graded, *_), _, _, rolls = call.args
    if rolls or any(one is not None for one in states) or call.lifted() != [x]:
        return None
    return folded(call) if all(value_of(one).dim() < x.dims for one in (threshold, graded)) else None


def _autograd_function(call: Call) -> Optional[Make]:
    """Allow elementwise autograd functions of tensors with the same shape."""
    lifted = call.lifted()
    shapes = {key_of(one)[0] for one in (*(one.value for one in lifted), *call.out)}
    fits = call.node.meta[PASSES].is_elementwise and len(shapes) == 1 and not call.constant_tensors()
    return same_call(call) if fits and lifted[0].dims and all(one in call.args for one in lifted) else None


_STEPS: Dict[Any, Callable[[Call], Optional[Make]]] = {
    step_operators.neuron_step: _step,
    step_operators.spiking_lstm_step: _lstm_step,
}


def over_time(call: Call) -> Optional[Make]:
    """Return the function that makes the call over time, or None if the call runs step by step."""
    rule = _STEPS.get(call.node.target) or RULES.get(name_of(call.node))
    if autograd_functions.is_called_directly(call.node):
        rule = _autograd_function
    if rule is None or not call.args:
        return None
    return rule(call)
