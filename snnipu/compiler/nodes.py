"""Properties of graph nodes: the operator, in-place changes, random numbers, shared memory and side effects."""

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
from snnipu.compiler.private import LOG_USE
from snnipu.ops import step_operators


def _words(text: str) -> Set[str]:
    return set(text.split())


# The module of linear also has functions such as pad, which TorchDynamo finds in functions of torch.nn.functional.
_NAMESPACES = [torch, functional, operator, surrogate, inspect.getmodule(functional.linear)]
_RANDOM = _words(
    """
    bernoulli bernoulli_ multinomial normal normal_ poisson rand rand_like randint randint_like randn randn_like
    randperm random_ uniform_ exponential_ geometric_ cauchy_ log_normal_ gumbel_softmax seed manual_seed
    fractional_max_pool2d fractional_max_pool3d pca_lowrank svd_lowrank
    """
)
# Operators that draw random numbers only in training.
_RANDOM_IN_TRAINING = _words(
    """
    dropout alpha_dropout dropout1d dropout2d dropout3d feature_alpha_dropout feature_dropout rrelu
    multi_head_attention_forward
    """
)
_NORMS_WITH_STATISTICS = {"batch_norm", "instance_norm"}
_IN_PLACE_OPERATORS = _words(
    """
    iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor
    """
)


def name_of(node: Node) -> str:
    """Return the operator's name, the same for function, method and Python operator; empty if it is unknown."""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    target: Any = node.target
    name = getattr(target, "__name__", "")
    return name if any(getattr(space, name, None) is target for space in _NAMESPACES) else ""


def value_of(argument: Any) -> Any:
    """Return TorchDynamo's example of an argument: a fake tensor, a number (perhaps symbolic), or a tuple of these."""
    return argument.meta.get("example_value") if isinstance(argument, Node) else argument


def is_tensor(argument: Any) -> bool:
    return isinstance(value_of(argument), torch.Tensor)


def size_key(size: Any) -> Any:
    """Return a comparable form of a size: for a symbolic size its expression, which needs no guard."""
    if isinstance(size, int):
        return size
    expression = getattr(getattr(size, "node", None), "expr", size)
    # A guard may have fixed a symbolic size to a number.
    return int(expression) if getattr(expression, "is_Integer", False) else str(expression)


def key_of(value: Any) -> Any:
    """Return shape, dtype and device of a fake tensor, or of each in a tuple; for a number its type and value."""
    if isinstance(value, torch.Tensor):
        return tuple(map(size_key, value.shape)), value.dtype, value.device
    if isinstance(value, (tuple, list)):
        return tuple(map(key_of, value))
    symbolic = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return type(value).__name__, size_key(value) if symbolic else value


def bound(node: Node, names: Tuple[str, ...]) -> Dict[str, Any]:
    """Return the arguments of a call by name; ``names`` are the names of the positional arguments."""
    return {**dict(zip(names, node.args)), **node.kwargs}


@functools.lru_cache(maxsize=1024)
def parameters(function: Any) -> Tuple[str, ...]:
    """Return the names of a function's parameters, or none if Python does not know them."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def argument(node: Node, name: str, default: Any = None) -> Any:
    """Return the argument ``name`` of a call of a Python function of PyTorch."""
    if name in node.kwargs:
        return node.kwargs[name]
    names = parameters(node.target)
    place = names.index(name) if name in names else len(node.args)
    return node.args[place] if place < len(node.args) else default


# The key in ``meta`` of a node that calls an autograd function of the program: its Passes.
PASSES = "passes of the autograd function"


def is_random(node: Node) -> bool:
    if PASSES in node.meta:
        return bool(node.meta[PASSES].is_random)
    name = name_of(node)
    if name in _RANDOM or (node.kwargs.get("generator") is not None):
        return True
    if name == "scaled_dot_product_attention":
        dropout = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
        return not (isinstance(dropout, (int, float)) and dropout == 0)
    if name in _RANDOM_IN_TRAINING:
        return _dropout_probability(node, name) != 0 and training(node, default=True)
    return _draws(name)


@functools.lru_cache(maxsize=None)
def _draws(name: str) -> bool:
    """Return True if PyTorch marks an operator of this name as one that draws random numbers."""
    operators: Any = getattr(torch.ops.aten, name, None) if name else None
    overloads = [getattr(operators, one) for one in operators.overloads()] if hasattr(operators, "overloads") else []
    return any(torch.Tag.nondeterministic_seeded in one.tags for one in overloads)


def _dropout_probability(node: Node, name: str) -> Any:
    """Return the probability of a dropout, or None if it is unknown."""
    if getattr(torch, name, None) is node.target:
        return node.args[1] if len(node.args) > 1 else node.kwargs.get("p")
    return argument(node, "dropout_p" if name == "multi_head_attention_forward" else "p")


def training(node: Node, default: bool) -> bool:
    """Return the argument ``training`` (or ``train``) of a call, or ``default`` if the call does not have it."""
    target: Any = node.target
    if node.op == "call_function" and getattr(torch, getattr(target, "__name__", ""), None) is target:
        # torch.dropout(input, p, train) and similar functions
        value = node.kwargs.get("train", node.args[2] if len(node.args) > 2 else default)
    else:
        value = argument(node, "training", default)
        if value is default and "training" not in node.kwargs:
            parameters: Dict[str, Any] = {}
            with contextlib.suppress(TypeError, ValueError):
                parameters = dict(inspect.signature(target).parameters)
            if "training" in parameters:
                place = list(parameters).index("training")
                value = node.args[place] if place < len(node.args) else parameters["training"].default
    return bool(value) if isinstance(value, bool) else True


def changed_by(node: Node) -> List[Node]:
    """Return the tensors that a call changes in place; all of its tensors if that is unknown."""
    tensors = [n for n in node.all_input_nodes if is_tensor(n)]
    if PASSES in node.meta:
        return tensors if node.meta[PASSES].change_inputs else []
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
            return _statistics(node)
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


def _is_of_torch(node: Node) -> bool:
    """Return True for ``torch.batch_norm`` and ``torch.instance_norm``: the statistics are behind the weights."""
    return getattr(torch, name_of(node), None) is node.target


def _statistics(node: Node) -> List[Node]:
    first = 3 if _is_of_torch(node) else 1
    given = {**node.kwargs, **dict(zip(("running_mean", "running_var"), node.args[first:]))}
    values = [given.get(name) for name in ("running_mean", "running_var")]
    return [value for value in values if isinstance(value, Node)]


def _updates_statistics(node: Node) -> bool:
    name = "use_input_stats" if name_of(node) == "instance_norm" else "training"
    if _is_of_torch(node):
        return True
    return argument(node, name, name == "use_input_stats") is not False


# Elementwise functions whose result is bool.
COMPARISONS = _words(
    """
    eq ne gt ge lt le greater greater_equal less less_equal not_equal isfinite isinf isnan
    logical_and logical_not logical_or logical_xor
    """
)
# Elementwise functions, after broadcasting.
ELEMENTWISE = _words(
    """
    abs absolute add addcdiv addcmul and_ atan bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp
    clamp_max clamp_min clip clone copysign cos cosh detach div divide elu eq erf erfc exp expm1 fix float_power
    floor floor_divide floordiv fmod frac ge gelu greater greater_equal gt hardshrink hardsigmoid hardswish hardtanh
    heaviside hypot isfinite isinf isnan le leaky_relu lerp less less_equal log log10 log1p log2 logical_and
    logical_not logical_or logical_xor logit log_sigmoid lt masked_fill maximum minimum mish mod mul multiply
    nan_to_num ne neg negative not_equal ones_like or_ positive pow reciprocal relu relu6 remainder round rsqrt rsub
    selu sgn sigmoid sign silu sin sinh softplus softshrink softsign spike_of sqrt square sub subtract tan tanh
    tanhshrink threshold true_divide truediv trunc where xor zeros_like invert
    """
)
# Elementwise functions that may return their argument or a view of it.
_MAY_BE_ARGUMENT = {"detach", "positive"}
# Calls whose result is new memory, never a view of an argument.
_FRESH = (ELEMENTWISE - _MAY_BE_ARGUMENT) | _words(
    """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d amax amin arange argmax argmin avg_pool1d avg_pool2d
    avg_pool3d batch_norm bernoulli bilinear bmm cat concat conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d cross_entropy cumsum embedding empty empty_like flip full full_like gather group_norm index_add
    index_select item l1_loss layer_norm linear log_softmax matmul max_pool1d max_pool2d max_pool3d mean mm mse_loss
    multi_head_attention_forward new_full new_ones new_zeros nll_loss norm numel one_hot ones prelu prod rand
    rand_like randn randn_like repeat roll scaled_dot_product_attention scatter_add size softmax stack std sum
    tensor var zeros
    """
)


# Marks whose result is new memory: the loop owns the values that a step reads from the step before.
FRESH_MARKS: Set[Any] = set()


class Memory:
    """Groups of nodes that may share memory. A result that may be a view of an argument counts as a view.

    Inputs share memory if their traced values do. A check before each run of the graph makes sure that no other inputs
    do (:func:`snnipu.compiler.helpers.share_memory`).
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
        """Return the nodes that the result may be a view of."""
        if node in self.changes:
            if name_of(node) in _NORMS_WITH_STATISTICS:
                return []
            return self.changes[node] if name_of(node) else node.all_input_nodes
        if is_fresh(node):
            return []
        source = node.args[0] if node.args else None
        if name_of(node) == "getitem" and isinstance(source, Node) and source.target in step_operators.SEQUENCES:
            # The results of a neuron do not share memory, unless its spikes are one of its states.
            is_neuron = source.target is step_operators.neuron_step
            apart = is_neuron and step_operators.output_state(source.target, source.args[4]) is None
            return [(source, node.args[1])] if apart else [source]
        values = {one: value_of(one) for one in node.all_input_nodes}
        return [one for one, v in values.items() if v is None or isinstance(v, (torch.Tensor, tuple, list))]

    def root(self, item: Any) -> Any:
        """Return the representative of a group of nodes that may share memory."""
        parent = self._parent
        while parent.setdefault(item, item) is not item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def changed_roots(self) -> Set[Any]:
        """Return the representatives of memory that is changed in place."""
        return {self.root(node) for changed in self.changes.values() for node in changed}

    def changed_inputs(self) -> List[Node]:
        """Return the inputs that the graph changes in place."""
        roots = self.changed_roots()
        return [n for n in self.graph.nodes if n.op == "placeholder" and is_tensor(n) and self.root(n) in roots]

    def unite(self, a: Any, b: Any) -> None:
        self._parent[self.root(a)] = self.root(b)

    def __contains__(self, node: Node) -> bool:
        return node in self._parent


def _storage_of(node: Node) -> Any:
    """Return a key of an input's memory in the traced call."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return "storage", value.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return "storage", "unknown"


def changed_memory(graph: Graph) -> Set[Node]:
    """Return the nodes on memory that is changed in place."""
    memory = Memory(graph)
    roots = memory.changed_roots()
    members = {node for node in graph.nodes if node in memory and memory.root(node) in roots} | set(memory.changes)
    # Neurons of which a result is changed.
    members |= {
        source
        for node in members
        if name_of(node) == "getitem"
        for source in node.all_input_nodes
        if source.target in step_operators.SEQUENCES
    }
    return members


def is_norm_in_training(node: Node) -> bool:
    """Return True for a batch norm that updates its running averages."""
    return node.op == "call_function" and node.target is functional.batch_norm and _updates_statistics(node)


def is_fresh(node: Node) -> bool:
    """Return True if the result is new memory."""
    if name_of(node) in _IN_PLACE_OPERATORS:
        return not (node.args and is_tensor(node.args[0]))
    return name_of(node) in _FRESH or node.target in step_operators.SEQUENCES or node.target in FRESH_MARKS


def is_barrier(node: Node) -> bool:
    """Return True if the call changes how later calls run: gradient mode or autocast."""
    if node.op != "call_function" or name_of(node) or node.target is LOG_USE:
        return False
    return "example_value" not in node.meta


def leaves_of(argument: Any) -> List[Node]:
    """Return the nodes in an argument, in order."""
    leaves: List[Node] = []

    def visit(node: Node) -> Node:
        leaves.append(node)
        return node

    map_arg(argument, visit)
    return leaves
