"""Autograd functions of the program: their passes as operations of a neuron's step, or as one call over all steps.

TorchDynamo traces the forward and the backward pass into two graph modules, which one node calls. In a neuron's step
the operations of the forward pass are recorded, and those of the backward pass as their derivative.
"""

import functools
from types import FunctionType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from snnipu._generator import TraceError
from snnipu._generator.graph import FUNCTIONS, Value
from snnipu.compiler import nodes
from snnipu.compiler.private import SET_GRAD

# Other names of PyTorch for operations that can be recorded.
SAME = {
    **{"truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub"},
    **{"greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne"},
    **{"negative": "neg", "absolute": "abs", "and_": "logical_and", "or_": "logical_or", "invert": "logical_not"},
}
COPIES = ("clone", "positive")
NUMBERS = {"zeros_like": 0.0, "ones_like": 1.0}
CASTS = ("to", "float", "type_as")
_BOUNDS = {"clamp": {"min", "max"}, "clip": {"min", "max"}}
_PLAIN = ("placeholder", "call_function", "call_method", "output")
# Operations whose result may share memory with their argument.
_VIEWS = ("positive", "detach", *CASTS)


class Passes:
    """The forward and backward pass of an autograd function; passes with the same operations compare equal.

    Attributes:
        change_inputs: True if a pass may change its inputs in place.
        is_random: True if the forward pass draws random numbers.
        is_linear: True if the backward pass is linear in the gradient.
        is_elementwise: True if each result depends only on the inputs' elements at the same position.
    """

    def __init__(self, forward: Graph, backward: Graph) -> None:
        self.forward, self.backward = forward, backward
        self.change_inputs = _changes_inputs(forward) or _changes_inputs(backward)
        self.is_random = any(map(nodes.is_random, forward.nodes))
        self.is_linear = not any(map(nodes.is_random, backward.nodes)) and _is_linear(backward)
        self.is_elementwise = all(map(_is_elementwise, (*forward.nodes, *backward.nodes)))
        self._text = graph_text(forward), graph_text(backward)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Passes) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _changes_inputs(graph: Graph) -> bool:
    memory = nodes.Memory(graph)
    return any(node.op == "placeholder" and memory.root(node) in memory.changed_roots() for node in graph.nodes)


# Operations that are linear in their first argument, in either of two arguments, and in both arguments together.
_LINEAR_IN_FIRST = {
    *("neg", "clone", "positive", "sum", "mean", "view", "reshape", "expand", "contiguous", "float", "t", "transpose"),
    *("permute", "flatten", "unsqueeze", "squeeze", "div"),
}
_LINEAR_IN_EITHER = {"mul", "matmul", "mm"}
_LINEAR_IN_BOTH = {"add", "sub"}


def _is_linear(backward: Graph) -> bool:
    """Return True if the operators of a backward pass are linear in the gradient, its first input."""
    inputs = [node for node in backward.nodes if node.op == "placeholder"]
    depends = set(inputs[:1])
    for node in backward.nodes:
        depend = [argument in depends for argument in node.args] if node.op != "output" else []
        name = SAME.get(nodes.name_of(node), nodes.name_of(node))
        if any(one in depends for one in nodes.leaves_of(list(node.kwargs.values()))):
            return False
        if node.op == "output":
            grads = [grad for grad in node.args[0] if grad is not None]
            return all(grad in depends for grad in grads)
        if not any(one in depends for one in nodes.leaves_of(node.args)):
            continue
        if name in _LINEAR_IN_FIRST:
            fits = depend[0] and not any(depend[1:])
        elif name in _LINEAR_IN_EITHER:
            fits = depend.count(True) == 1
        elif name in _LINEAR_IN_BOTH:
            fits = all(depend)
        elif name in ("masked_fill", "setitem"):
            fits = depend == [True, False, False] and node.args[2] == 0
        else:
            fits = name == "where" and not depend[0] and all(a or b == 0 for a, b in zip(depend[1:], node.args[1:]))
        if not fits:
            return False
        depends.add(node)
    return False


def _is_elementwise(node: Node) -> bool:
    if node.op in ("placeholder", "output") or node.target is SET_GRAD:
        return True
    return nodes.name_of(node) in nodes.ELEMENTWISE | {"float"} and not nodes.leaves_of(list(node.kwargs.values()))


def graph_text(graph: Graph) -> str:
    """Return a text of a graph's operations, the same for all graphs with the same operations in the same order."""
    places = {node: f"%{place}" for place, node in enumerate(graph.nodes)}

    def shown(argument: Any) -> str:
        return str(map_arg(argument, lambda node: places[node]))

    lines = []
    for node in graph.nodes:
        # A placeholder's target is its name. Two functions may have one name.
        target = "" if node.op == "placeholder" else f"{node.target} {id(node.target) if callable(node.target) else 0}"
        lines.append(f"{node.op} {target} {shown(node.args)} {shown(node.kwargs)}")
    return "\n".join(lines)


def is_apply_node(node: Node) -> bool:
    """Return True if a node is TorchDynamo's call of an autograd function."""
    return getattr(node.target, "__name__", "") == "autograd_function_apply"


def is_not_linear(node: Node) -> bool:
    """Return True if a node calls an autograd function whose backward pass may not be linear in the gradient."""
    return is_apply_node(node) and not (nodes.PASSES in node.meta and node.meta[nodes.PASSES].is_linear)


def note_passes(graph: Graph) -> None:
    """Store the passes of autograd functions with one result in ``meta`` of their nodes, which copies keep."""
    for node in graph.nodes:
        if is_apply_node(node):
            parts = [getattr(graph.owning_module, str(getattr(arg, "target", "")), None) for arg in node.args[:2]]
            if not node.kwargs.get("non_differentiable_idx") and all(isinstance(part, GraphModule) for part in parts):
                forward, backward = (part.graph for part in parts)  # type: ignore[union-attr]
                if _is_plain(forward, backward, len(node.args) - 2):
                    node.meta[nodes.PASSES] = Passes(forward, backward)


def _is_plain(forward: Graph, backward: Graph, count: int) -> bool:
    """Return True if the passes have the form of PyTorch 2.12 and later.

    ``forward`` returns its only result and the saved values; ``backward`` takes the gradient and the saved values.

    Args:
        count: the number of arguments of the function.
    """
    if not all(node.op in _PLAIN for graph in (forward, backward) for node in graph.nodes):
        return False
    inputs = [[node for node in graph.nodes if node.op == "placeholder"] for graph in (forward, backward)]
    returned, grads = (
        next(node for node in graph.nodes if node.op == "output").args[0] for graph in (forward, backward)
    )
    if not (_is_several(returned) and len(returned) == 2 and all(map(_is_several, returned)) and _is_several(grads)):
        return False
    results, saved = returned
    return (len(results), len(inputs[0]), len(inputs[1]), len(grads)) == (1, count, 1 + len(saved), count)


def _is_several(value: Any) -> bool:
    return isinstance(value, (tuple, list))


def call_directly(graph: Graph) -> None:
    """Let the nodes call autograd functions directly: TorchDynamo's operator creates a class at each call."""
    for node in graph.nodes:
        if is_autograd_function(node):
            node.args, node.kwargs = tuple(_arguments(node)), {}
            node.target = _autograd_function(node.meta[nodes.PASSES])


@functools.lru_cache(maxsize=256)
def _autograd_function(passes: Passes) -> Callable[..., Any]:
    run_forward, run_backward = (_function_of_pass(graph) for graph in (passes.forward, passes.backward))

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            results, saved = run_forward(*arguments)
            ctx.places = [place for place, value in enumerate(saved) if isinstance(value, torch.Tensor)]
            ctx.save_for_backward(*(saved[place] for place in ctx.places))
            ctx.others = [None if isinstance(value, torch.Tensor) else value for value in saved]
            return results[0]

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            saved = list(ctx.others)
            for place, tensor in zip(ctx.places, ctx.saved_tensors):
                saved[place] = tensor
            return run_backward(grad, *saved)

    def autograd_function_apply(*arguments: Any) -> Any:  # the name in reports
        return (Function.apply(*arguments),)

    return autograd_function_apply


def _function_of_pass(graph: Graph) -> Any:
    """Return a pass as a function, without its changes of the gradient mode: PyTorch sets that mode."""
    copy = Graph()
    copies: Dict[Node, Node] = {}
    for node in graph.nodes:
        if node.target is not SET_GRAD:
            copies[node] = copy.node_copy(node, copies.__getitem__)
    return GraphModule({}, copy).forward


def is_autograd_function(node: Any) -> bool:
    """Return True if a node calls an autograd function whose passes are known."""
    return isinstance(node, Node) and nodes.PASSES in node.meta


def is_called_directly(node: Node) -> bool:
    """Return True if :func:`call_directly` has changed the node."""
    return is_autograd_function(node) and isinstance(node.target, FunctionType)


def _arguments(node: Node) -> List[Any]:
    return list(node.args[2:] if node.args and getattr(node.args[0], "op", "") == "get_attr" else node.args)


def tensor_arguments(node: Node) -> List[Any]:
    """Return the arguments of an autograd function that are tensors."""
    return [argument for argument in _arguments(node) if nodes.is_tensor(argument)]


def keywords_are_known(node: Node) -> bool:
    """Return True if the recorded operation has all keywords of a call."""
    name = nodes.name_of(node)
    if name in NUMBERS:
        return True
    keywords = {key: value for key, value in node.kwargs.items() if (key, value) != ("inplace", False)}
    return set(keywords) <= _BOUNDS.get(name, set()) and not any(isinstance(one, Node) for one in keywords.values())


def is_cast_to_bool(node: Node) -> bool:
    """Return True for a cast to bool. A neuron's step has booleans only as results of comparisons."""
    return nodes.name_of(node) in CASTS and nodes.value_of(node).dtype is torch.bool


def apply_to_symbols(node: Node, arguments: List[Any]) -> Any:
    """Record the operation of a node on symbolic arguments, and return its symbolic result."""
    if is_autograd_function(node):
        return (_apply_function(node, arguments),)
    name = nodes.name_of(node)
    if name == "getitem":
        return arguments[0][arguments[1]]
    return _apply_operator(node, name, arguments)


def _apply_operator(node: Node, name: str, arguments: List[Any]) -> Any:
    if name in COPIES:
        return arguments[0]
    if name in NUMBERS:
        return NUMBERS[name]
    name = SAME.get(name, name)
    if name not in FUNCTIONS or not any(isinstance(one, Value) for one in arguments):
        raise TraceError(f"{name} is no operation of a neuron's step")
    if name in _BOUNDS:
        return FUNCTIONS[name](*arguments, **node.kwargs)
    if node.op == "call_method" and isinstance(arguments[0], Value) and name in ("where", *CASTS):
        return getattr(arguments[0], name)(*arguments[1:])
    return FUNCTIONS[name](*arguments)


def _apply_function(node: Node, tensors: Sequence[Any]) -> Value:
    passes: Passes = node.meta[nodes.PASSES]
    remaining = iter(tensors)
    # Sizes among the arguments are unknown here, and no operation of a step takes them.
    arguments = [next(remaining) if nodes.is_tensor(one) else None for one in _arguments(node)]
    (result,), saved = _run_on_symbols(passes.forward, arguments)
    if not isinstance(result, Value):
        raise TraceError("a function that gives a number")

    def gradient(g: Value) -> Tuple[Any, ...]:
        grads = _run_on_symbols(passes.backward, [g, *saved])
        return tuple(_gradient(grad) for grad, one in zip(grads, arguments) if isinstance(one, Value))

    return result.with_gradient(tuple(one for one in tensors if isinstance(one, Value)), gradient)


def _gradient(grad: Any) -> Optional[Value]:
    if grad is None or (isinstance(grad, (int, float)) and grad == 0):
        return None
    if not isinstance(grad, Value) or grad.is_bool:
        raise TraceError("a gradient that is a number")
    return grad


def _run_on_symbols(graph: Graph, arguments: Sequence[Any]) -> Any:
    """Run a pass of an autograd function on symbols in place of tensors, and return its results.

    Raises:
        TraceError: the pass has an operation that a neuron's step does not have.
    """
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    values: Dict[Node, Any] = dict(zip(inputs, arguments))
    shared = set(inputs)  # tensors whose memory others may read

    def value(argument: Any) -> Any:
        if isinstance(argument, (tuple, list)):  # the results and the saved values of a forward pass
            return [value(one) for one in argument]
        return values[argument] if isinstance(argument, Node) else argument

    for node in graph.nodes:
        name, traced = nodes.name_of(node), nodes.value_of(node)
        if node.op == "output":
            return value(node.args[0])
        if node.op == "placeholder" or node.target is SET_GRAD:
            continue
        if nodes.leaves_of(list(node.kwargs.values())) or not keywords_are_known(node):
            raise TraceError(f"{name} with keywords")
        if name == "setitem":
            target, mask, number = node.args
            chosen = value(mask)
            if not (isinstance(chosen, Value) and chosen.is_bool) or isinstance(number, Node) or target in shared:
                raise TraceError("setitem of other than a number where a comparison holds")
            values[target] = FUNCTIONS["where"](chosen, number, values[target])
            continue
        if not isinstance(traced, torch.Tensor) or traced.dtype not in (torch.float32, torch.bool):
            raise TraceError("a pass in another precision")
        if is_cast_to_bool(node):
            raise TraceError("a cast to bool")
        values[node] = _apply_operator(node, name, [value(one) for one in node.args])
        if name in _VIEWS:
            shared.update([node, *nodes.leaves_of(node.args)])
    return ()
