"""What the nodes of a graph do: their operator, what they change, whether they are random, whether order matters."""

import contextlib
import functools
import inspect
import operator
from typing import Any, Dict, List, Set, Tuple

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.nn import functional

from snnipu import surrogate
from snnipu.compiler.private import FUNCTIONAL, LOG_USE
from snnipu.ops import step_operators

_NAMESPACES = [torch, functional, operator, surrogate, FUNCTIONAL]
_RANDOM = {
    "bernoulli",
    "bernoulli_",
    "multinomial",
    "normal",
    "normal_",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "random_",
    "uniform_",
    "exponential_",
    "geometric_",
    "cauchy_",
    "log_normal_",
    "gumbel_softmax",
    "seed",
    "manual_seed",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
}
# Random where they are told that this is training.
_RANDOM_IN_TRAINING = {
    "dropout",
    "alpha_dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "feature_alpha_dropout",
    "feature_dropout",
    "rrelu",
    "multi_head_attention_forward",
}
_NORMS_WITH_STATISTICS = {"batch_norm": (1, 2), "instance_norm": (1, 2)}
_IN_PLACE_OPERATORS = {
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "imatmul",
    "iand",
    "ior",
    "ixor",
}


def name_of(node: Node) -> str:
    """The operator's name, the same for function, method and Python's operator; empty where it is not known."""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    target: Any = node.target
    name = getattr(target, "__name__", "")
    return name if any(getattr(space, name, None) is target for space in _NAMESPACES) else ""


def value_of(argument: Any) -> Any:
    """What Dynamo found that an argument is: a fake tensor, a number that may be symbolic, a tuple of them."""
    return argument.meta.get("example_value") if isinstance(argument, Node) else argument


def is_tensor(argument: Any) -> bool:
    return isinstance(value_of(argument), torch.Tensor)


def size_key(size: Any) -> Any:
    """A size to compare by: symbolic ones by their expression, without a guard on their value."""
    if isinstance(size, int):
        return size
    expression = getattr(getattr(size, "node", None), "expr", size)
    # A size that a guard has made a number is that number.
    return int(expression) if getattr(expression, "is_Integer", False) else str(expression)


def key_of(value: Any) -> Any:
    """Shape, dtype and device of a fake tensor, or of each of a tuple; a number's own value."""
    if isinstance(value, torch.Tensor):
        return tuple(map(size_key, value.shape)), value.dtype, value.device
    if isinstance(value, (tuple, list)):
        return tuple(map(key_of, value))
    symbolic = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return type(value).__name__, size_key(value) if symbolic else value


def bound(node: Node, names: Tuple[str, ...]) -> Dict[str, Any]:
    """The arguments of a call by name, ``names`` being those of the positional ones."""
    return {**dict(zip(names, node.args)), **node.kwargs}


@functools.lru_cache(maxsize=1024)
def parameters(function: Any) -> Tuple[str, ...]:
    """The names of a function's parameters; none where Python does not know them."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def argument(node: Node, name: str, default: Any = None) -> Any:
    """The argument called ``name`` of a Python function of PyTorch."""
    if name in node.kwargs:
        return node.kwargs[name]
    names = parameters(node.target)
    place = names.index(name) if name in names else len(node.args)
    return node.args[place] if place < len(node.args) else default


# Under which a node that calls an autograd function of the program's has the passes of it.
OWN = "passes of own function"


def is_random(node: Node) -> bool:
    if OWN in node.meta:
        return bool(node.meta[OWN].is_random)
    name = name_of(node)
    if name in _RANDOM or (node.kwargs.get("generator") is not None):
        return True
    if name == "scaled_dot_product_attention":
        dropout = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
        return not (isinstance(dropout, (int, float)) and dropout == 0)
    if name not in _RANDOM_IN_TRAINING or _share_dropped(node, name) == 0:
        return False
    return training(node, default=True)


def _share_dropped(node: Node, name: str) -> Any:
    """The probability of a dropout; None: it is not known, or none."""
    if getattr(torch, name, None) is node.target:
        return node.args[1] if len(node.args) > 1 else node.kwargs.get("p")
    return argument(node, "dropout_p" if name == "multi_head_attention_forward" else "p")


def training(node: Node, default: bool) -> bool:
    """The argument ``training`` (or ``train``) of a call, ``default`` where nobody knows."""
    target: Any = node.target
    if node.op == "call_function" and getattr(torch, getattr(target, "__name__", ""), None) is target:
        # torch.dropout(input, p, train) and its like
        found = node.kwargs.get("train", node.args[2] if len(node.args) > 2 else default)
    else:
        found = argument(node, "training", default)
        if found is default and "training" not in node.kwargs:
            parameters: Dict[str, Any] = {}
            with contextlib.suppress(TypeError, ValueError):
                parameters = dict(inspect.signature(target).parameters)
            if "training" in parameters:
                place = list(parameters).index("training")
                found = node.args[place] if place < len(node.args) else parameters["training"].default
    return bool(found) if isinstance(found, bool) else True


def changed_by(node: Node) -> List[Node]:
    """The tensors that a call changes in place; all its tensors where that is not known."""
    tensors = [n for n in node.all_input_nodes if is_tensor(n)]
    if OWN in node.meta:
        return tensors if node.meta[OWN].change_inputs else []
    if node.op == "call_method":
        name = str(node.target)
        if (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__",) or _is_in_place_dunder(name):
            return [n for n in node.args[:1] if isinstance(n, Node)]
        return []
    if node.op != "call_function":
        return tensors if node.op == "call_module" else []
    if isinstance(node.kwargs.get("out"), (Node, tuple, list)):
        return tensors
    name = name_of(node)
    if name:
        first = [n for n in node.args[:1] if isinstance(n, Node)]
        if name in _IN_PLACE_OPERATORS or name in ("setitem", "delitem"):
            return first
        if name.endswith("_") and not name.endswith("__") and name not in ELEMENTWISE:
            return tensors
        if argument(node, "inplace", False) is not False:
            return tensors
        if name in _NORMS_WITH_STATISTICS and _updates_statistics(node):
            return [n for place in _NORMS_WITH_STATISTICS[name] for n in _argument_at(node, place)]
        return []
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return tensors if schema.is_mutable else []
    if getattr(node.target, "__module__", "") in (
        "snnipu.ops.step_operators",
        "snnipu.compiler.helpers",
        "snnipu.compiler.marks",
    ):
        return []
    return tensors


def _is_in_place_dunder(name: str) -> bool:
    return name.startswith("__i") and name.strip("_") in _IN_PLACE_OPERATORS


def _argument_at(node: Node, place: int) -> List[Node]:
    names = ("input", "running_mean", "running_var")
    found = node.args[place] if place < len(node.args) else node.kwargs.get(names[place])
    return [found] if isinstance(found, Node) else []


def _updates_statistics(node: Node) -> bool:
    name = "use_input_stats" if name_of(node) == "instance_norm" else "training"
    # torch.batch_norm takes weight and bias before the statistics: its arguments have other places.
    if getattr(torch, name_of(node), None) is node.target:
        return True
    return argument(node, name, name == "use_input_stats") is not False


# Functions of each element, after broadcasting.
ELEMENTWISE = {
    "abs",
    "absolute",
    "add",
    "addcdiv",
    "addcmul",
    "and_",
    "atan",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "ceil",
    "celu",
    "clamp",
    "clamp_max",
    "clamp_min",
    "clip",
    "clone",
    "copysign",
    "cos",
    "cosh",
    "detach",
    "div",
    "divide",
    "elu",
    "eq",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "fix",
    "float_power",
    "floor",
    "floor_divide",
    "floordiv",
    "fmod",
    "frac",
    "ge",
    "gelu",
    "greater",
    "greater_equal",
    "gt",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "heaviside",
    "hypot",
    "isfinite",
    "isinf",
    "isnan",
    "le",
    "leaky_relu",
    "lerp",
    "less",
    "less_equal",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "log_sigmoid",
    "lt",
    "masked_fill",
    "maximum",
    "minimum",
    "mish",
    "mod",
    "mul",
    "multiply",
    "nan_to_num",
    "ne",
    "neg",
    "negative",
    "not_equal",
    "ones_like",
    "or_",
    "positive",
    "pow",
    "reciprocal",
    "relu",
    "relu6",
    "remainder",
    "round",
    "rsqrt",
    "rsub",
    "selu",
    "sgn",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "softplus",
    "softshrink",
    "softsign",
    "spike_of",
    "sqrt",
    "square",
    "sub",
    "subtract",
    "tan",
    "tanh",
    "tanhshrink",
    "threshold",
    "true_divide",
    "truediv",
    "trunc",
    "where",
    "xor",
    "zeros_like",
    "invert",
}
# Of them, those that may return their argument, or a view of it.
_MAY_BE_ARGUMENT = {"detach", "positive"}
# Calls whose result is memory of its own, never a view of an argument.
_FRESH = (ELEMENTWISE - _MAY_BE_ARGUMENT) | {
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "amax",
    "amin",
    "arange",
    "argmax",
    "argmin",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "bernoulli",
    "bilinear",
    "bmm",
    "cat",
    "concat",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cross_entropy",
    "cumsum",
    "embedding",
    "empty",
    "empty_like",
    "flip",
    "full",
    "full_like",
    "gather",
    "group_norm",
    "index_add",
    "index_select",
    "item",
    "l1_loss",
    "layer_norm",
    "linear",
    "log_softmax",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "mean",
    "mm",
    "mse_loss",
    "multi_head_attention_forward",
    "new_full",
    "new_ones",
    "new_zeros",
    "nll_loss",
    "norm",
    "numel",
    "one_hot",
    "ones",
    "prelu",
    "prod",
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "repeat",
    "roll",
    "scaled_dot_product_attention",
    "scatter_add",
    "size",
    "softmax",
    "stack",
    "std",
    "sum",
    "tensor",
    "var",
    "zeros",
}


# Functions that mark values: what a step takes from the step before is memory of the loop's own.
FRESH_MARKS: Set[Any] = set()


class Memory:
    """Which nodes may share memory with which: what may be a view of something is taken for one.

    Inputs share memory with each other where their traced values do; that no others do is checked when the graph runs
    (:func:`written_inputs`).
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        changes = {node: changed_by(node) for node in graph.nodes}
        self.changes = {node: changed for node, changed in changes.items() if changed}
        self._parent: Dict[Any, Any] = {}
        if not self.changes:
            return
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                storage = _storage_of(node)
                if storage is not None:
                    self.unite(node, storage)
            elif node.op in ("call_method", "call_function", "call_module"):
                for source in self._views(node):
                    self.unite(node, source)

    def _views(self, node: Node) -> List[Any]:
        """What the result may be a view of."""
        if node in self.changes:
            if name_of(node) in _NORMS_WITH_STATISTICS:
                return []
            return self.changes[node] if name_of(node) else node.all_input_nodes
        if is_fresh(node):
            return []
        source = node.args[0] if node.args else None
        if name_of(node) == "getitem" and isinstance(source, Node) and source.target in step_operators.SEQUENCES:
            # Each result of a neuron is memory of its own, unless its spikes are a state.
            is_neuron = source.target is step_operators.neuron_step
            apart = is_neuron and step_operators.output_state(source.target, source.args[4]) is None
            return [(source, node.args[1])] if apart else [source]
        return [one for one in node.all_input_nodes if may_be_memory(one)]

    def root(self, item: Any) -> Any:
        """One and the same for all that may share memory."""
        parent = self._parent
        while parent.setdefault(item, item) is not item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def unite(self, a: Any, b: Any) -> None:
        self._parent[self.root(a)] = self.root(b)

    def __contains__(self, node: Node) -> bool:
        return node in self._parent


def _storage_of(node: Node) -> Any:
    """The memory of an input as it was traced."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return "storage", value.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return "storage", "unknown"


def changed_memory(graph: Graph) -> Tuple[Set[Node], Dict[Node, List[Node]]]:
    """The nodes whose memory somebody may change in place, and for each node those that must run before it for that."""
    memory = Memory(graph)
    changes = memory.changes
    if not changes:
        return set(), {}
    changed_roots = {memory.root(node) for changed in changes.values() for node in changed}
    members = {node for node in graph.nodes if node in memory and memory.root(node) in changed_roots} | set(changes)
    # A neuron one of whose results is changed.
    members |= {
        source
        for node in members
        if name_of(node) == "getitem"
        for source in node.all_input_nodes
        if source.target in step_operators.SEQUENCES
    }
    before: Dict[Node, List[Node]] = {}
    written: Dict[Any, Node] = {}
    read: Dict[Any, List[Node]] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        writes = {memory.root(n) for n in changes.get(node, ())}
        reads = {memory.root(n) for n in node.all_input_nodes if n in memory}
        for root in (reads & changed_roots) | writes:
            earlier = [written[root]] if root in written else []
            if root in writes:
                earlier += read.pop(root, [])
                written[root] = node
            else:
                read.setdefault(root, []).append(node)
            before.setdefault(node, []).extend(earlier)
    return members, before


def is_norm_in_training(node: Node) -> bool:
    """A batch norm whose only effect is on its running averages."""
    return node.op == "call_function" and node.target is functional.batch_norm and _updates_statistics(node)


def written_inputs(graph: Graph) -> List[Node]:
    """The inputs that the graph changes, of which a caller must know that they share memory with no other input.

    Statistics of norms and numbers that are counted up are taken for memory of their own.
    """
    memory = Memory(graph)
    roots = {memory.root(node) for changed in memory.changes.values() for node in changed}
    return [
        node
        for node in graph.nodes
        if node.op in ("placeholder", "get_attr")
        and is_tensor(node)
        and memory.root(node) in roots
        and not _only_statistics(node)
    ]


_PRODUCTS = {"linear", "conv1d", "conv2d", "conv3d", "matmul", "mm", "bmm", "addmm"}


def may_be_memory(node: Node) -> bool:
    value = value_of(node)
    return value is None or isinstance(value, (torch.Tensor, tuple, list))


def is_fresh(node: Node) -> bool:
    """Whether the result is memory of its own."""
    if name_of(node) in _IN_PLACE_OPERATORS:
        return not (node.args and is_tensor(node.args[0]))
    return name_of(node) in _FRESH or node.target in step_operators.SEQUENCES or node.target in FRESH_MARKS


def _only_statistics(node: Node) -> bool:
    """Whether a tensor from outside is used by norms in training alone, or counted up."""
    return all(
        name_of(user) in _NORMS_WITH_STATISTICS
        or (name_of(user) in ("add_", "iadd") and not any(isinstance(one, Node) for one in user.args[1:]))
        for user in node.users
    )


def is_barrier(node: Node) -> bool:
    """Whether the call changes how later ones run: gradient mode, autocast."""
    if node.op != "call_function" or name_of(node) or node.target is LOG_USE:
        return False
    return not may_be_tensorial(node)


def may_be_tensorial(node: Node) -> bool:
    return "example_value" in node.meta


def leaves_of(argument: Any) -> List[Node]:
    """The nodes in an argument, in order."""
    found: List[Node] = []

    def visit(node: Node) -> Node:
        found.append(node)
        return node

    map_arg(argument, visit)
    return found
