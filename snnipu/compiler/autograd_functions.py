"""A ``torch.autograd.Function`` of a program's own as operations of a neuron's step, its backward pass the derivative.

TorchDynamo puts both of its passes into the graph, as modules that one node calls.
"""

import functools
from types import FunctionType
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from snnipu._generator import TraceError
from snnipu._generator.graph import FUNCTIONS, Value
from snnipu.compiler import nodes
from snnipu.compiler.private import SET_GRAD

# PyTorch's further names of operations that are recorded.
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
# Whose results may be the memory of what they take.
_VIEWS = ("positive", "detach", *CASTS)


class Passes:
    """Forward and backward pass of a function, equal to others that do the same.

    Attributes:
        change_inputs: whether they may change what they are given.
        is_random: whether the forward pass draws numbers.
        is_linear: whether the gradient of several results of one input is that of their gradients' sum.
        is_elementwise: whether each number depends on those in its place alone.
    """

    def __init__(self, forward: Graph, backward: Graph) -> None:
        self.forward, self.backward = forward, backward
        self.change_inputs = _changes_inputs(forward) or _changes_inputs(backward)
        self.is_random = any(map(nodes.is_random, forward.nodes))
        self.is_linear = not any(map(nodes.is_random, backward.nodes)) and _is_linear(backward)
        self.is_elementwise = all(map(_is_elementwise, (*forward.nodes, *backward.nodes)))
        self._text = text(forward), text(backward)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Passes) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _changes_inputs(graph: Graph) -> bool:
    memory = nodes.Memory(graph)
    inputs = {memory.root(node) for node in graph.nodes if node.op == "placeholder"}
    return any(memory.root(node) in inputs for changed in memory.changes.values() for node in changed)


# Linear in their first tensor; in either of two; in both together.
_OF_FIRST = {
    *("neg", "clone", "positive", "sum", "mean", "view", "reshape", "expand", "contiguous", "float", "t", "transpose"),
    *("permute", "flatten", "unsqueeze", "squeeze", "div"),
}
_OF_EITHER = {"mul", "matmul", "mm"}
_OF_BOTH = {"add", "sub"}


def _is_linear(backward: Graph) -> bool:
    """Whether a backward pass is linear in the gradient that it is given, as far as its operators tell."""
    inputs = [node for node in backward.nodes if node.op == "placeholder"]
    depends = set(inputs[:1])
    for node in backward.nodes:
        taken = [one in depends for one in node.args] if node.op != "output" else []
        name = SAME.get(nodes.name_of(node), nodes.name_of(node))
        if any(one in depends for one in nodes.leaves_of(list(node.kwargs.values()))):
            return False
        if node.op == "output":
            grads = [grad for grad in node.args[0] if grad is not None]
            return all(grad in depends for grad in grads)
        if not any(one in depends for one in nodes.leaves_of(node.args)):
            continue
        if name in _OF_FIRST:
            fits = taken[0] and not any(taken[1:])
        elif name in _OF_EITHER:
            fits = taken.count(True) == 1
        elif name in _OF_BOTH:
            fits = all(taken)
        elif name in ("masked_fill", "setitem"):
            fits = taken == [True, False, False] and node.args[2] == 0
        else:
            fits = name == "where" and not taken[0] and all(a or b == 0 for a, b in zip(taken[1:], node.args[1:]))
        if not fits:
            return False
        depends.add(node)
    return False


def _is_elementwise(node: Node) -> bool:
    if node.op in ("placeholder", "output") or node.target is SET_GRAD:
        return True
    return nodes.name_of(node) in nodes.ELEMENTWISE | {"float"} and not nodes.leaves_of(list(node.kwargs.values()))


def text(graph: Graph) -> str:
    """The same for all graphs that do the same in the same order."""
    places = {node: f"%{place}" for place, node in enumerate(graph.nodes)}

    def shown(argument: Any) -> str:
        return str(map_arg(argument, lambda node: places[node]))

    lines = []
    for node in graph.nodes:
        # A placeholder's target is its name. Two functions may have one name.
        target = "" if node.op == "placeholder" else f"{node.target} {id(node.target) if callable(node.target) else 0}"
        lines.append(f"{node.op} {target} {shown(node.args)} {shown(node.kwargs)}")
    return "\n".join(lines)


def is_applied(node: Node) -> bool:
    """Whether a node is TorchDynamo's of such a function."""
    return getattr(node.target, "__name__", "") == "autograd_function_apply"


def is_not_linear(node: Node) -> bool:
    """Return True if the backward pass of a function may not be linear in the gradient."""
    return is_applied(node) and not (nodes.OWN in node.meta and node.meta[nodes.OWN].is_linear)


def find(graph: Graph) -> None:
    """Note what functions of one result are with the nodes that call them, in copies of the graph, too."""
    for node in graph.nodes:
        if is_applied(node):
            parts = [getattr(graph.owning_module, str(getattr(one, "target", "")), None) for one in node.args[:2]]
            if not node.kwargs.get("non_differentiable_idx") and all(isinstance(part, GraphModule) for part in parts):
                forward, backward = (part.graph for part in parts)  # type: ignore[union-attr]
                if _is_plain(forward, backward, len(node.args) - 2):
                    node.meta[nodes.OWN] = Passes(forward, backward)


def _is_plain(forward: Graph, backward: Graph, count: int) -> bool:
    """Whether the passes, of so many arguments, are of the form that PyTorch 2.12 and later give them: ``forward``
    returns its one result and what it saves, ``backward`` takes the result's gradient and that."""
    if not all(node.op in _PLAIN for graph in (forward, backward) for node in graph.nodes):
        return False
    takes = [[node for node in graph.nodes if node.op == "placeholder"] for graph in (forward, backward)]
    made, grads = (next(node for node in graph.nodes if node.op == "output").args[0] for graph in (forward, backward))
    if not (_is_several(made) and len(made) == 2 and all(map(_is_several, made)) and _is_several(grads)):
        return False
    results, saved = made
    return (len(results), len(takes[0]), len(takes[1]), len(grads)) == (1, count, 1 + len(saved), count)


def _is_several(value: Any) -> bool:
    return isinstance(value, (tuple, list))


def call_directly(graph: Graph) -> None:
    """Call them as functions of PyTorch's: the operator that TorchDynamo has for them makes a class at each call."""
    for node in graph.nodes:
        if is_own(node):
            node.args, node.kwargs = tuple(_arguments(node)), {}
            node.target = _function(node.meta[nodes.OWN])


@functools.lru_cache(maxsize=256)
def _function(passes: Passes) -> Callable[..., Any]:
    run_forward, run_backward = (_runs(one) for one in (passes.forward, passes.backward))

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            made, saved = run_forward(*arguments)
            ctx.places = [place for place, one in enumerate(saved) if isinstance(one, torch.Tensor)]
            ctx.save_for_backward(*(saved[place] for place in ctx.places))
            ctx.others = [None if isinstance(one, torch.Tensor) else one for one in saved]
            return made[0]

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            saved = list(ctx.others)
            for place, one in zip(ctx.places, ctx.saved_tensors):
                saved[place] = one
            return run_backward(grad, *saved)

    def autograd_function_apply(*arguments: Any) -> Any:  # the name that it has in reports
        return (Own.apply(*arguments),)

    return autograd_function_apply


def _runs(graph: Graph) -> Any:
    """The pass as a function; PyTorch itself sets whether gradients are enabled in it."""
    made = Graph()
    found: Dict[Node, Node] = {}
    for node in graph.nodes:
        if node.target is not SET_GRAD:
            found[node] = made.node_copy(node, found.__getitem__)
    return GraphModule({}, made).forward


def is_own(node: Any) -> bool:
    """Whether a node calls such a function."""
    return isinstance(node, Node) and nodes.OWN in node.meta


def is_called_directly(node: Node) -> bool:
    """Whether :func:`call_directly` has made such a function's node plain."""
    return is_own(node) and isinstance(node.target, FunctionType)


def _arguments(node: Node) -> List[Any]:
    return list(node.args[2:] if node.args and getattr(node.args[0], "op", "") == "get_attr" else node.args)


def given(node: Node) -> List[Any]:
    """The tensors that the function takes."""
    return [one for one in _arguments(node) if nodes.is_tensor(one)]


def keywords_are_known(node: Node) -> bool:
    """Whether the recorded operation takes all keywords of a call."""
    name = nodes.name_of(node)
    if name in NUMBERS:
        return True
    found = {key: value for key, value in node.kwargs.items() if (key, value) != ("inplace", False)}
    return set(found) <= _BOUNDS.get(name, set()) and not any(isinstance(one, Node) for one in found.values())


def is_cast_to_bool(node: Node) -> bool:
    """Whether a number becomes a truth value, which a neuron's step has from comparisons alone."""
    return nodes.name_of(node) in CASTS and nodes.value_of(node).dtype is torch.bool


def applied(node: Node, arguments: List[Any]) -> Any:
    """What a node does, with symbols."""
    if is_own(node):
        return (_called(node, arguments),)
    name = nodes.name_of(node)
    if name == "getitem":
        return arguments[0][arguments[1]]
    return _applied(node, name, arguments)


def _applied(node: Node, name: str, arguments: List[Any]) -> Any:
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


def _called(node: Node, tensors: Sequence[Any]) -> Value:
    passes: Passes = node.meta[nodes.OWN]
    left = iter(tensors)
    # Sizes among the arguments are unknown here, and no operation of a step takes them.
    arguments = [next(left) if nodes.is_tensor(one) else None for one in _arguments(node)]
    (result,), saved = _Pass(passes.forward, arguments).output
    if not isinstance(result, Value):
        raise TraceError("a function that gives a number")

    def gradient(g: Value) -> Tuple[Any, ...]:
        grads = _Pass(passes.backward, [g, *saved]).output
        return tuple(_gradient(grad) for grad, one in zip(grads, arguments) if isinstance(one, Value))

    return result.with_gradient(tuple(one for one in tensors if isinstance(one, Value)), gradient)


def _gradient(grad: Any) -> Optional[Value]:
    if grad is None or (isinstance(grad, (int, float)) and grad == 0):
        return None
    if not isinstance(grad, Value) or grad.is_bool:
        raise TraceError("a gradient that is a number")
    return grad


class _Pass:
    """One pass of a function, with symbols in the places of its tensors."""

    def __init__(self, graph: Graph, arguments: Sequence[Any]) -> None:
        self.values: Dict[Node, Any] = {}
        self.roots: Dict[Node, Node] = {}  # what else has a result's memory
        self.output: Any = ()
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self.values.update(zip(inputs, arguments))
        self.shared: Set[Node] = set(inputs)  # memory that is not the pass's own alone
        for node in graph.nodes:
            if node.op == "output":
                self.output = self._results(node.args[0])
            elif node.op != "placeholder":
                self._do(node)

    def _results(self, returned: Any) -> Any:
        """Its results with symbols; those of a forward pass are a list, and beside it what it saves."""
        if isinstance(returned, (tuple, list)):
            return [self._results(one) for one in returned]
        return self._value(returned)

    def _root(self, node: Node) -> Node:
        return self.roots.get(node, node)

    def _value(self, argument: Any) -> Any:
        return self.values[self._root(argument)] if isinstance(argument, Node) else argument

    def _do(self, node: Node) -> None:
        if nodes.leaves_of(list(node.kwargs.values())):
            raise TraceError("keywords of a pass that are not known")
        if node.target is SET_GRAD:
            return
        name = nodes.name_of(node)
        if name == "setitem":
            target, mask, number = node.args
            chosen = self._value(mask)
            if not (isinstance(chosen, Value) and chosen.is_bool) or isinstance(number, Node):
                raise TraceError("setitem of other than a number where a comparison holds")
            self.values[self._own(target)] = FUNCTIONS["where"](chosen, number, self._value(target))
            return
        value = nodes.value_of(node)
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.bool):
            raise TraceError("a pass in another precision")
        if not keywords_are_known(node) or is_cast_to_bool(node):
            raise TraceError(f"{name} with keywords")
        arguments = [self._value(one) for one in node.args]
        if name.endswith("_") and not name.endswith("__") and name not in SAME:
            root = self._own(node.args[0])
            self.values[root] = _applied(node, name[:-1], arguments)
            self.roots[node] = root
            return
        self.values[node] = _applied(node, name, arguments)
        if name in _VIEWS:
            self.shared.update([node, *self._roots_of(node.args)])

    def _roots_of(self, arguments: Any) -> Iterator[Node]:
        return (self._root(one) for one in nodes.leaves_of(arguments))

    def _own(self, target: Any) -> Node:
        """The memory that an operation writes into."""
        if not isinstance(target, Node) or self._root(target) in self.shared:
            raise TraceError("a pass that writes into what others read")
        return self._root(target)
