"""Rules for operators that can run once over all time steps.

A rule takes a call at one step, in which a :class:`Lifted` replaces each argument that differs from step to step. It
returns a function that makes the call over time, or None. Operators without a rule run over time by ``torch.vmap``, or
step by step if ``torch.vmap`` cannot run them.
"""

from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch.fx import Graph, Node

from snnipu.compiler import autograd_functions, helpers
from snnipu.compiler.lifting import Call, Lifted, Make, only_first, same_call
from snnipu.compiler.nodes import ELEMENTWISE, PASSES, argument, bound, key_of, name_of, training, value_of
from snnipu.ops import sparse_input, step_operators
from snnipu.ops.batch_norm import batch_norm_over_time
from snnipu.ops.dense_pool2d import avg_pool2d, max_pool2d

Rule = Callable[[Call], Optional[Make]]


def _elementwise(call: Call) -> Optional[Make]:
    """Broadcast over time, if each sequence has as many dimensions as the result."""
    dims = call.out.dim() if isinstance(call.out, torch.Tensor) else 0
    same = all(lifted.dims == dims for lifted in call.lifted())
    return (
        same_call(call) if dims and same and all(value_of(n).dim() <= dims for n in call.constant_tensors()) else None
    )


def _trailing(call: Call) -> Optional[Make]:
    """Allow operators on the trailing dimensions of their first argument, or on each of its elements."""
    return same_call(call) if only_first(call) is not None and isinstance(call.out, torch.Tensor) else None


def _folded(dims: int, function: Any = None, names: Tuple[str, ...] = ()) -> Rule:
    """Return the rule that makes a call with all steps as one batch, ``[T * B, ...]``.

    Args:
        dims: the number of dimensions of the first argument.
        function: the function that is called instead.
        names: the names of its positional arguments.
    """

    def rule(call: Call) -> Optional[Make]:
        first = only_first(call)
        if first is None or first.dims != dims or (function is not None and not isinstance(call.out, torch.Tensor)):
            return None

        def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
            batch = graph.call_function(helpers.fold_time, (args[0],))
            if function is None:
                out = call.call_with(graph, (batch, *args[1:]), kwargs)
            else:
                named = dict(zip(names, args[1:]))
                out = graph.call_function(function, (batch, *args[1 + len(named) :]), {**named, **kwargs})
            return graph.call_function(helpers.split_time, (out, args[0]))

        return make

    return rule


def _linear(call: Call) -> Optional[Make]:
    first = only_first(call)
    if first is not None and first.dims == 1:
        return same_call(call)
    return None if first is None else _folded(first.dims, sparse_input.linear, ("weight", "bias"))(call)


def _matmul(call: Call) -> Optional[Make]:
    """Allow products of matrices, or of batches of matrices, that differ from step to step, or by one matrix."""
    if call.kwargs or len(call.args) != 2:
        return None
    a, b = call.args
    dims = [one.dims if isinstance(one, Lifted) else value_of(one).dim() for one in call.args]
    fits = isinstance(a, Lifted) and dims[0] >= 2 and (dims[0] == dims[1] if isinstance(b, Lifted) else dims[1] == 2)
    return (lambda graph, args, kwargs: graph.call_function(torch.matmul, args)) if fits else None


def _batch_norm(call: Call) -> Optional[Make]:
    """Normalise each step by its statistics in training, all steps as one batch else."""
    first = only_first(call)
    if first is None or first.dims < 2 or getattr(torch, name_of(call.node), None) is call.node.target:
        return None
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    named = bound(call.node, names)
    averages = [named.get(name) is not None for name in names[1:3]]
    if all(averages) and not training(call.node, default=False):
        return _folded(first.dims)(call)
    if named.get("training", False) is not True or averages[0] != averages[1]:
        return None
    if averages[0] and type(named.get("momentum", 0.1)) not in (int, float):
        return None
    defaults = {"weight": None, "bias": None, "momentum": 0.1, "eps": 1e-5}

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        values = {**defaults, **dict(zip(names, args)), **kwargs}
        return graph.call_function(batch_norm_over_time, tuple(values[name] for name in names))

    return make


def _attention(call: Call) -> Optional[Make]:
    """Allow ``scaled_dot_product_attention`` without a mask, if its three tensors differ from step to step."""
    three = list(call.args[:3])
    if len(three) < 3 or call.lifted() != three or any(one.dims < 3 for one in three) or call.constant_tensors():
        return None

    def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
        batches = [graph.call_function(helpers.fold_time, (one,)) for one in args[:3]]
        out = call.call_with(graph, (*batches, *args[3:]), kwargs)
        return graph.call_function(helpers.split_time, (out, args[0]))

    return make


def _embedding(call: Call) -> Optional[Make]:
    return _trailing(call) if argument(call.node, "max_norm") is None else None


def _later(dim: Any) -> Any:
    """Return the dimension of a sequence for a dimension of a step, or None if it is not constant."""
    if isinstance(dim, (tuple, list)):
        moved = tuple(map(_later, dim))
        return None if None in moved else moved or None
    return None if type(dim) is not int else dim + 1 if dim >= 0 else dim


def _along(count: int = 1, of_all: bool = False) -> Rule:
    """Return the rule of an operator with dimensions behind its first argument.

    Args:
        count: the largest number of arguments that are dimensions.
        of_all: True if a call without dimensions is one of all dimensions.
    """

    def rule(call: Call) -> Optional[Make]:
        first = only_first(call)
        if first is None or not first.dims or not set(call.kwargs) <= {"dim", "keepdim", "dtype"}:
            return None
        every = tuple(range(first.dims)) if of_all else None
        dims = [_later(dim) for dim in call.args[1 : 1 + count] or (call.kwargs.get("dim", every),)]

        def make(graph: Graph, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Node:
            kwargs = {name: value for name, value in kwargs.items() if name != "dim"}
            return call.call_with(graph, (args[0], *dims, *args[1 + count :]), kwargs)

        return None if None in dims else make

    return rule


def _reshape(call: Call) -> Optional[Make]:
    if only_first(call) is None or call.kwargs or any(isinstance(size, torch.dtype) for size in call.args[1:]):
        return None
    return lambda graph, args, kwargs: graph.call_function(helpers.reshaped, args)


def _result(call: Call) -> Optional[Make]:
    """Allow ``getitem`` of several results."""
    return same_call(call) if isinstance(call.args[0].value, (tuple, list)) and type(call.args[1]) is int else None


_CASTS = ("to", "float", "double", "half", "bfloat16", "int", "long", "bool", "type", "type_as", "contiguous")
_CONVOLUTION = ("weight", "bias", "stride", "padding", "dilation", "groups")
_MAPS = ("conv{}d", "conv_transpose{}d", "max_pool{}d", "avg_pool{}d", "adaptive_avg_pool{}d", "adaptive_max_pool{}d")

RULES: Dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys((*_CASTS, "layer_norm", "rms_norm", "dropout"), _trailing),
    **{name.format(n): _folded(n + 2) for n in (1, 2, 3) for name in _MAPS},
    **dict.fromkeys(("softmax", "log_softmax", "amax", "argmax", "max", "unsqueeze", "squeeze", "unflatten"), _along()),
    **dict.fromkeys(("sum", "mean"), _along(of_all=True)),
    **dict.fromkeys(("transpose", "flatten"), _along(count=2)),
    **dict.fromkeys(("matmul", "mm", "bmm"), _matmul),
    **dict.fromkeys(("view", "reshape"), _reshape),
    "linear": _linear,
    "conv1d": _folded(3, sparse_input.conv1d, _CONVOLUTION),
    "conv2d": _folded(4, sparse_input.conv2d, _CONVOLUTION),
    "max_pool2d": _folded(4, max_pool2d),
    "avg_pool2d": _folded(4, avg_pool2d),
    "batch_norm": _batch_norm,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "getitem": _result,
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
    return _folded(x.dims)(call) if all(value_of(one).dim() < x.dims for one in (threshold, graded)) else None


def _autograd_function(call: Call) -> Optional[Make]:
    """Allow elementwise autograd functions of tensors with the same shape."""
    lifted = call.lifted()
    shapes = {key_of(one)[0] for one in (*(one.value for one in lifted), *call.out)}
    fits = call.node.meta[PASSES].is_elementwise and len(shapes) == 1 and not call.constant_tensors()
    return same_call(call) if fits and lifted[0].dims and all(one in call.args for one in lifted) else None


_STEPS: Dict[Any, Rule] = {
    step_operators.neuron_step: _step,
    step_operators.spiking_lstm_step: _lstm_step,
}


def over_time(call: Call) -> Optional[Make]:
    """Return the function that makes the call over time, or None if no rule allows it."""
    rule = _STEPS.get(call.node.target) or RULES.get(name_of(call.node))
    if autograd_functions.is_called_directly(call.node):
        rule = _autograd_function
    return None if rule is None or not call.args else rule(call)
