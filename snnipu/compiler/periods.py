"""Loops whose steps repeat: TorchDynamo looks into the first few steps, the graph of the others is copied.

TorchDynamo interprets every step of a loop. What it does in a step depends on its state alone: the values of variables
and attributes, the guards and the gradient mode. Where the states before two consecutive steps are equal but for
tensors, each of which the step has replaced by its successor, all further steps add the same nodes with successors as
arguments. The state is compared whole; the number of the step may differ, and so may the lengths of records, lists
that are appended to, for both of which the bytecode must show that nothing else is done with them. A loop that goes
through tensors, by ``zip`` and ``enumerate`` too, is given the next of them in each step. The last step is
TorchDynamo's own again. Where anything is not as expected, TorchDynamo goes through all steps.
"""

import functools
import inspect
import logging
import opcode
import operator
import re
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
from torch.fx import Node

from snnipu.compiler import nodes, own_functions
from snnipu.compiler.patches import Patches
from snnipu.ops import leaves
from snnipu.surrogate import spike_of

_LOG = logging.getLogger("snnipu.compiler")
# Steps that are compared; loops with fewer left are not worth it.
_PERIODS, _LEAST_LEFT = 3, 3
# A loop that is not periodic by then is left alone.
_ATTEMPTS = 8
_PLAIN = {int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.layout}
_INDEXING = (operator.getitem, operator.setitem)
# Python 3.14 indexes by BINARY_OP.
_SUBSCRIPT = next((n for n, (name, _) in enumerate(getattr(opcode, "_nb_ops", ())) if name == "NB_SUBSCR"), None)


class _Unlike(Exception):
    """The steps are not known to repeat."""


@dataclass(frozen=True)
class _Number:
    """The number of the step, in a node's arguments: what it was in the last one, and what is added in each."""

    last: int
    step: int


@dataclass(eq=False)
class _Column:
    """One of the things that a loop is given in each step: a number, or the next of some tensors.

    Attributes:
        next: the number, or the tensor's place.
        step: what is added to it in each step.
        left: how often there is another one; None: always.
        tensors: empty for a number.
    """

    next: int
    step: int
    left: Optional[int]
    tensors: List[Any]


@dataclass(eq=False)
class _Item:
    """A value of a state; ``own``: what two states must have in common, ``parts``: the values inside."""

    kind: str
    own: Any = None
    parts: List["_Item"] = field(default_factory=list)
    of: Optional["_Item"] = None  # the item that stands for a value met before


@dataclass(eq=False)
class _State:
    """TorchDynamo's before a step.

    Attributes:
        values: of variables, attributes and modes.
        places: for each tensor, how to put another in its place, None where that is not known.
        records: lists that are only appended to, and what is in them.
        next: the numbers, and the places of the tensors, that the loop is given in the step that begins.
        counts: of guards and inputs: a step that adds some is not like the one before.
        size_guards: those on sizes.
    """

    values: List[_Item]
    places: List[Tuple[Any, Optional[Callable[[Any], None]]]]
    records: Dict[str, Tuple[Any, Tuple[Any, ...]]]
    next: Tuple[int, ...]
    counts: Tuple[Any, ...]
    size_guards: int


@dataclass(eq=False)
class _Loop:
    """A loop that is being traced."""

    iterator: Any
    numbers: List[str]  # variables that are set to the number of the step
    records: List[str]  # names of lists that are only appended to
    end: Optional[Node]  # the graph's last node before the step
    steps: List[List[Node]] = field(default_factory=list)
    states: List[_State] = field(default_factory=list)
    attempts: int = 0
    over: bool = False


_loops: "weakref.WeakKeyDictionary[Any, Dict[Any, _Loop]]" = weakref.WeakKeyDictionary()


def enable(patches: Patches) -> None:
    """Let TorchDynamo's interpreters copy what repeats."""
    from torch._dynamo import symbolic_convert

    kinds = [symbolic_convert.InstructionTranslatorBase]
    for kind in kinds:
        kinds.extend(one for one in kind.__subclasses__() if one not in kinds)
    own = symbolic_convert.InstructionTranslatorBase.FOR_ITER

    def for_iter(tx: Any, instruction: Any) -> Any:
        _before_step(tx, instruction)
        return own(tx, instruction)

    for kind in kinds:
        table = getattr(kind, "dispatch_table", None)
        if isinstance(table, list):
            patches.replace(kind, "dispatch_table", [for_iter if entry is own else entry for entry in table])


# Heads of loops that could not be copied: their code and where they stand in it.
_whole: Set[Tuple[Any, int]] = set()


def _before_step(tx: Any, instruction: Any) -> None:
    """TorchDynamo is at the head of a loop."""
    from torch._dynamo import exc

    place = (tx.f_code, instruction.offset)
    if place in _whole or tx.f_code is _enumerate():
        return
    try:
        made = _look(tx, instruction)
    except _Unlike as why:
        _LOG.debug("a loop is traced whole: %s", why)
        return
    except Exception as error:  # another version of TorchDynamo; nothing has been changed yet
        _LOG.debug("a loop is traced whole: %s: %s", type(error).__name__, error)
        _loops.setdefault(tx, {})[instruction] = _Loop(None, [], [], None, over=True)
        return
    if made is None:
        return
    try:
        made()
    except Exception as error:  # the graph is half changed: TorchDynamo begins anew, and goes through all steps
        _LOG.debug("a loop is traced whole: %s: %s", type(error).__name__, error)
        _whole.add(place)
        raise exc.RestartAnalysis(restart_reason="a loop that could not be copied") from error


def _look(tx: Any, instruction: Any) -> Optional[Callable[[], None]]:
    """Note the step that ended; what copies the further ones, where they are known."""
    loops = _loops.setdefault(tx, {})
    loop = loops.get(instruction)
    iterator = tx.stack[-1]
    columns = _columns(iterator)
    if not columns:
        return None
    tracer = tx.output.current_tracer
    if getattr(tracer, "parent", None) is not None:
        return None
    graph = tracer.graph
    end = next(iter(reversed(graph.nodes)), None)
    if loop is None or (loop.iterator is not iterator and not loop.over):
        loops[instruction] = _Loop(iterator, *_variables(tx, instruction, columns), end)
        return None
    if loop.over:
        return None
    step = _nodes_since(graph, loop.end)
    loop.end = end
    if not any(map(_is_of_a_neuron, step)):
        loop.steps, loop.states = [], []
        return None
    loop.steps = [*loop.steps, step][-_PERIODS:]
    loop.attempts += 1
    loop.over = loop.attempts > _ATTEMPTS or _left(columns) < _LEAST_LEFT
    if loop.over or loop.attempts < 2:
        return None
    loop.states = [*loop.states, _state(tx, loop)][-2:]
    if len(loop.steps) < _PERIODS or len(loop.states) < 2:
        return None
    return _copies(tx, loop)


def _is_of_a_neuron(node: Node) -> bool:
    """Whether a neuron makes a step, or one that is written out fires."""
    return node.target in leaves.SEQUENCES or node.target is spike_of or own_functions.is_applied(node)


def _columns(iterator: Any) -> List[_Column]:
    """What a loop is given in each step, one by one; empty: this is not known."""
    from torch._dynamo.variables.iter import ZipVariable
    from torch._dynamo.variables.lists import ListIteratorVariable, RangeIteratorVariable

    if type(iterator) is RangeIteratorVariable:
        left = len(range(iterator.start, iterator.stop, iterator.step))
        return [_Column(iterator.start, iterator.step, left, [])]
    if isinstance(iterator, ListIteratorVariable):
        items, place = list(iterator.items), int(iterator.index)
        tensors = all(type(one) is _tensor_variable() for one in items)
        return [_Column(place, 1, len(items) - place, items)] if tensors and items else []
    if type(iterator) is ZipVariable:
        parts = [_columns(one) for one in iterator.iterable.items]
        return [column for part in parts for column in part] if all(parts) else []
    # To TorchDynamo `enumerate` is a generator, which begins with the first step.
    inner = getattr(iterator, "inline_tracer", None)
    if inner is None or inner.f_code is not _enumerate() or not inner.stack:
        return []
    number = _realized(inner.symbolic_locals["start"]).as_python_constant()
    given = _columns(inner.stack[-1])
    return [_Column(number + 1, 1, None, []), *given] if given else []


@functools.lru_cache(maxsize=None)
def _enumerate() -> Any:
    """The code of what TorchDynamo has in its place."""
    from torch._dynamo.polyfills import builtins

    stand_in: Any = getattr(builtins, "enumerate", None)
    return getattr(inspect.unwrap(stand_in), "__code__", None)


def _left(columns: List[_Column]) -> int:
    return min(column.left for column in columns if column.left is not None)


def _nodes_since(graph: Any, end: Optional[Node]) -> List[Node]:
    found: List[Node] = []
    for node in reversed(graph.nodes):
        if node is end:
            return found[::-1]
        found.append(node)
    if end is None:  # the graph was empty
        return found[::-1]
    raise _Unlike("nodes were removed")


# ---- the loop's body


def _variables(tx: Any, head: Any, columns: List[_Column]) -> Tuple[List[str], List[str]]:
    """Those that are the number of the step, and the lists that are only appended to.

    The body uses the number as an index alone.
    """
    code = tx.f_code
    flat: List[Tuple[str, Any, bool]] = []  # name, argument, inside the loop
    inside = False
    for instruction in tx.instructions:
        if instruction is head:
            inside = True
            continue
        if instruction is head.target:
            inside = False
        argument = instruction.argval
        kinds = re.findall("(LOAD|STORE)_FAST", instruction.opname)
        if len(kinds) > 1 and isinstance(argument, tuple):
            flat.extend((f"{kind}_FAST", one, inside) for kind, one in zip(kinds, argument))
        elif instruction.opname not in ("NOP", "CACHE", "EXTENDED_ARG", "RESUME", "NOT_TAKEN"):
            name = instruction.opname.replace("_BORROW", "").replace("FAST_CHECK", "FAST")
            name = name.replace("LOAD_SMALL_INT", "LOAD_CONST")
            if name == "BINARY_OP" and instruction.arg == _SUBSCRIPT:
                name = "BINARY_SUBSCR"
            flat.append((name, argument, inside))
    _check_code(code, flat)
    body = [one[:2] for one in flat if one[2]]
    cells = {*code.co_cellvars, *code.co_freevars}
    start = next((place for place, (name, _) in enumerate(body) if name not in ("STORE_FAST", "UNPACK_SEQUENCE")), 0)
    targets: List[str] = []
    for place, (name, argument) in enumerate(body[:start]):
        if name == "STORE_FAST" and len(targets) < len(columns):
            targets.append(argument)
            start = place + 1
    if len(targets) < len(columns) or len({*targets}) < len(targets) or cells & {*targets}:
        raise _Unlike("what the loop is given is more than variables")
    numbers = [name for name, column in zip(targets, columns) if not column.tensors]
    for counter in numbers:
        for place in (place for place, (name, argument) in enumerate(body) if "FAST" in name and argument == counter):
            if place >= start and body[place][0] != "STORE_FAST":  # `_, mem = ...`: nobody reads the number
                _check_index(tx, body, place, counter)
    uses: Dict[str, List[int]] = {}
    for place, (name, argument) in enumerate(body):
        if "FAST" in name and argument not in cells:  # an attribute may have the name of a variable
            uses.setdefault(argument, []).append(place)
    records = [
        name
        for name, places in uses.items()
        if all(
            body[place][0] == "LOAD_FAST"
            and body[place + 1][0] in ("LOAD_METHOD", "LOAD_ATTR")
            and body[place + 1][1] == "append"
            for place in places
        )
    ]
    return numbers, records


def _check_code(code: Any, flat: List[Tuple[str, Any, bool]]) -> None:
    """Nothing catches errors, and nothing looks at variables by other ways than their names."""
    if {"locals", "vars", "dir", "eval", "exec"} & {*code.co_names}:
        raise _Unlike("variables are looked up by name")
    for (name, _, _), (following, _, _) in zip(flat, flat[1:]):
        # Python 3.10 and earlier have SETUP_FINALLY.
        if name == "SETUP_FINALLY" or (name == "PUSH_EXC_INFO" and following != "WITH_EXCEPT_START"):
            raise _Unlike("errors are caught")


def _check_index(tx: Any, body: List[Tuple[str, Any]], place: int, counter: str) -> None:
    """The step's number is an index of a tensor, alone or beside whole dimensions."""
    whole = ("LOAD_CONST", "BUILD_SLICE")
    before, after = place - 1, place + 1
    while body[after][0] in whole:
        after += 1
    if body[after][0] == "BUILD_TUPLE":
        while body[before][0] in whole:
            before -= 1
        # A slice is made of its bounds.
        count = sum(
            1 if name == "LOAD_CONST" else 1 - bounds for name, bounds in body[before + 1 : after] if bounds != counter
        )
        indexes = count + 1 == body[after][1]
        after += 1
    else:
        indexes = after == place + 1
    name, tensor = body[before]
    indexes = indexes and body[place][0] == "LOAD_FAST" and body[after][0] in ("BINARY_SUBSCR", "STORE_SUBSCR")
    if not indexes or name != "LOAD_FAST":
        raise _Unlike("the number of the step is more than an index")
    if any(other == "STORE_FAST" and argument == tensor for other, argument in body):
        raise _Unlike("what the number of the step is an index of is not always the same")
    if type(_realized(tx.symbolic_locals.get(tensor))) is not _tensor_variable():
        raise _Unlike("the number of the step is an index of what is no tensor")


def _tensor_variable() -> Any:
    from torch._dynamo.variables.tensor import TensorVariable

    return TensorVariable


def _realized(value: Any) -> Any:
    """What a lazy variable stands for, once TorchDynamo has looked at it."""
    from torch._dynamo.variables.lazy import LazyVariableTracker

    # `isinstance` would make TorchDynamo look at it.
    while issubclass(type(value), LazyVariableTracker) and value.is_realized():
        value = value.unwrap()
    return value


# ---- states


class _Reader:
    """Reads a state. A value met twice is the same value in every state that equals this one."""

    def __init__(self, records: Dict[int, str], effects: Any) -> None:
        from torch._dynamo.variables.base import VariableTracker
        from torch._dynamo.variables.lazy import LazyVariableTracker

        self.lazy = LazyVariableTracker
        self.records = records
        self.known: Dict[int, Tuple[_Item, Any]] = {}
        self.places: List[Tuple[Any, Optional[Callable[[Any], None]]]] = []
        self.tracker = VariableTracker
        self.tensor = _tensor_variable()
        # Attributes that were set, which an object does not hold itself.
        self.set = {id(changed): (changed, set_) for changed, set_ in effects.store_attr_mutations.items()}

    def read(self, value: Any, put: Optional[Callable[[Any], None]] = None) -> _Item:
        """``put``: replaces the value where it stands."""
        inner = _realized(value)
        if inner is not value:
            value, put = inner, None
        kind = type(value)
        if kind in _PLAIN:
            return _Item("plain", (kind, value))
        is_tensor = issubclass(kind, self.tensor)
        if is_tensor:
            self.places.append((value, put))
        if id(value) in self.known:
            if id(value) in self.records:
                raise _Unlike("a list that is appended to is known by two names")
            return _Item("again", of=self.known[id(value)][0])
        item = _Item("", None)
        self.known[id(value)] = item, value  # alive, so that its id is its own
        if id(value) in self.records:
            item.kind, item.own = "record", value
        elif is_tensor:
            node = value.proxy.node
            item.kind, item.own = "tensor", (node, kind, _look_of(nodes.value_of(node)))
            item.parts = self._attributes(value, ("proxy",))
        elif issubclass(kind, self.lazy):
            item.kind, item.own = "other", value  # nobody has looked at it
        elif issubclass(kind, self.tracker) or self._is_mutation(value):
            item.kind, item.own = "object", kind
            item.parts = self._attributes(value, ())
        elif kind in (list, tuple):
            item.kind, item.own = "items", (kind, len(value))
            for place, one in enumerate(value):
                item.parts.append(self.read(one, _putter(value, place) if kind is list else None))
        elif kind in (set, frozenset) and _PLAIN.issuperset(map(type, value)):
            item.kind, item.own = "items", (kind, frozenset(value))
        elif issubclass(kind, dict):
            item.kind, item.own = "items", (kind, len(value))
            for key, one in value.items():
                item.parts.append(self.read(key))
                item.parts.append(self.read(one, _putter(value, key)))
        else:
            item.kind, item.own = "other", value
        if id(value) in self.set:
            item.parts.append(self.read(self.set[id(value)][1]))
        return item

    def _attributes(self, value: Any, without: Tuple[str, ...]) -> List[_Item]:
        own = {name: one for name, one in vars(value).items() if name not in without}
        if "value" in own and _is_of_the_trace(value):
            own["value"] = type(own["value"])  # an object without attributes: those of the trace's are noted apart
        return [self.read(part) for name in sorted(own) for part in (name, own[name])]

    def _is_mutation(self, value: Any) -> bool:
        return type(value).__module__.startswith("torch._dynamo.variables") and hasattr(value, "__dict__")


def _is_of_the_trace(value: Any) -> bool:
    """Whether an object was made in the trace: only what refers to it makes it part of a state."""
    return type(getattr(value, "mutation_type", None)).__name__ in ("ValueMutationNew", "AttributeMutationNew")


def _putter(container: Any, key: Any) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        container[key] = value

    return put


def _look_of(value: Any) -> Any:
    """All that a trace can find out about a fake tensor."""
    if isinstance(value, torch.Tensor):
        stride = tuple(map(nodes.size_key, value.stride())) if value.layout is torch.strided else None
        return (type(value), nodes.key_of(value), stride, value.layout, value.requires_grad, value.is_leaf)
    if isinstance(value, (tuple, list)):
        return tuple(map(_look_of, value))
    return nodes.key_of(value)


def _state(tx: Any, loop: _Loop) -> _State:
    from torch._dynamo.variables.lazy import LazyVariableTracker
    from torch._dynamo.variables.lists import ListVariable

    # What was in a list that the loop was given, nobody need have looked at.
    kinds = (_tensor_variable(), LazyVariableTracker)
    records: Dict[str, Tuple[Any, Tuple[Any, ...]]] = {}
    for name in loop.records:
        value = _realized(tx.symbolic_locals.get(name))
        tensors = type(value) is ListVariable and all(issubclass(type(_realized(one)), kinds) for one in value.items)
        if tensors and (value.source is None or _has_one_name(tx, value.source)):
            records[name] = value, tuple(value.items)
    output, effects = tx.output, tx.output.side_effects
    reader = _Reader({id(value): name for name, (value, _) in records.items()}, effects)
    values = []
    for frame in _frames(tx):
        own = frame is tx
        for name, value in frame.symbolic_locals.items():
            # The number of the step that ended: only the loop's head writes it, and nothing reads it as a number.
            if not (own and name in loop.numbers) or type(value) is reader.tensor:
                values.append(_Item("plain", name))
                values.append(reader.read(value, _putter(frame.symbolic_locals, name)))
        stack = frame.stack[:-1] if own else frame.stack
        values.extend(reader.read(value) for value in stack)
        values.append(_Item("plain", (len(frame.stack), len(frame.block_stack))))
        values.append(reader.read(getattr(frame, "symbolic_globals", {})))
        values.append(reader.read(getattr(frame, "exn_vt_stack", None)))
    for key, value in effects.id_to_variable.items():
        if not _is_of_the_trace(value):
            values.append(_Item("plain", key))
            if id(_realized(value)) not in reader.records:  # a record that the loop was given is read by its name
                values.append(reader.read(value))
    modules = dict(getattr(output, "nn_modules", ()) or ())
    passes = {name for name, module in modules.items() if isinstance(module, torch.fx.GraphModule)}
    places = [
        node
        for node in output.current_tracer.graph.nodes
        if node.op == "placeholder" or (node.op == "get_attr" and node.target not in passes)
    ]
    counts = (
        _distinct(output.guards),
        len(places),
        len(effects.tensor_hooks),
        len(effects.save_for_backward),
        len(getattr(output, "random_calls", ()) or ()),
        len(modules) - len(passes),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        *((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")),
    )
    given = tuple(column.next for column in _columns(loop.iterator))
    return _State(values, reader.places, records, given, counts, len(output.shape_env.guards))


def _has_one_name(tx: Any, source: Any) -> bool:
    """Whether a list that the loop was given has been reached by its variable alone."""
    from torch._dynamo.source import LocalSource

    reached = getattr(tx.output.current_tracer, "traced_sources", None)
    if reached is None or type(source) is not LocalSource:
        return False

    def value_of(one: Any) -> Any:
        name = one.name if isinstance(one.name, str) else one.name()
        return eval(name, {"L": tx.output.local_scope, "G": tx.output.global_scope})

    try:
        given = value_of(source)
        return all(one == source or value_of(one) is not given for one in reached)
    except Exception:  # one that has no name in the program
        return False


def _distinct(guards: Any) -> int:
    """How many guards differ: TorchDynamo adds equal ones again."""
    found = set()
    for guard in guards:
        function: Any = guard.create_fn
        what: Any = function
        if isinstance(function, functools.partial):
            what = (function.func, function.args, tuple(sorted(function.keywords.items())))
        key = (guard.originating_source, what)
        try:
            hash(key)
        except TypeError:
            key = (guard.originating_source, id(guard))
        found.add(key)
    return len(found)


def _frames(tx: Any) -> List[Any]:
    found = []
    while tx is not None:
        found.append(tx)
        tx = getattr(tx, "parent", None)
    return found


# ---- two steps that are alike


class _Likeness:
    """Compares two consecutive steps and the states after them."""

    def __init__(self, loop: _Loop, modules: Dict[str, Any]) -> None:
        self.modules = modules
        before, first, second = loop.steps
        self.first, self.second = first, second
        if not len(before) == len(first) == len(second):
            raise _Unlike("steps do different things")
        # The tensors that the loop goes through, and their places.
        columns = _columns(loop.iterator)
        self.given = [[one.proxy.node for one in column.tensors] for column in columns]
        self.places = {node: (n, place) for n, given in enumerate(self.given) for place, node in enumerate(given)}
        looks = [{_look_of(nodes.value_of(node)) for node in given} for given in self.given]
        if len(self.places) < sum(map(len, self.given)) or max(map(len, looks)) > 1:
            raise _Unlike("the loop goes through a tensor twice, or through some that differ")
        # A node of a step, and the one in its place in the step behind.
        self.after = dict(zip((*before, *first), (*first, *second)))
        for given in self.given:
            self.after.update(zip(given, given[1:]))
        self.next = loop.states[1].next
        # States are those before the next step: a step's own number is one less.
        self.numbers: Dict[Any, _Number] = {}
        for n, column in enumerate(columns):
            if not column.tensors:
                one, two = (state.next[n] - column.step for state in loop.states)
                self.numbers[one, two] = _Number(two, column.step)
        self.paired: Dict[int, _Item] = {}
        self.indices = 0

    def successor(self, node: Node) -> Node:
        return self.after.get(node, node)

    def nodes(self) -> List[Tuple[Any, Any]]:
        """Arguments of the second step's nodes, with a mark where the number of the step stands."""
        return [self._node(one, two) for one, two in zip(self.first, self.second)]

    def _node(self, one: Node, two: Node) -> Tuple[Any, Any]:
        if one.op == two.op == "get_attr" and self._parts_are_equal(one, two):
            return (), {}
        if one.op != two.op or one.op not in ("call_function", "call_method") or one.target != two.target:
            raise _Unlike("steps call different functions")
        if _look_of(nodes.value_of(one)) != _look_of(nodes.value_of(two)):
            raise _Unlike("a result looks different in each step")
        indexing = one.op == "call_function" and one.target in _INDEXING and nodes.is_tensor(one.args[0])
        return self._argument(one.args, two.args, indexing), self._argument(one.kwargs, two.kwargs, False)

    def _parts_are_equal(self, one: Node, two: Node) -> bool:
        """Whether two nodes stand for the same pass of a function, of which TorchDynamo makes a module in each step."""
        graphs: List[Any] = [getattr(self.modules.get(str(node.target)), "graph", None) for node in (one, two)]
        return None not in graphs and len({own_functions.text(graph) for graph in graphs}) == 1

    def _argument(self, one: Any, two: Any, indexing: bool) -> Any:
        if type(one) is not type(two):
            raise _Unlike("steps have different arguments")
        if isinstance(one, Node):
            column, place = self.places.get(two, (0, -1))
            if self.successor(one) is not two or (place >= 0 and place >= self.next[column]):
                raise _Unlike("a step does not go on where the one before ended")
            return two
        if isinstance(one, (tuple, list)):
            if len(one) != len(two):
                raise _Unlike("steps have different arguments")
            made = [self._argument(a, b, indexing) for a, b in zip(one, two)]
            return tuple(made) if isinstance(one, tuple) else made
        if isinstance(one, dict):
            if list(one) != list(two):
                raise _Unlike("steps have different arguments")
            return {key: self._argument(one[key], two[key], indexing) for key in one}
        if isinstance(one, slice):
            bounds = [self._argument(getattr(one, n), getattr(two, n), False) for n in ("start", "stop", "step")]
            return slice(*bounds)
        if one is two or one == two:
            return two
        if indexing and type(one) is int and (one, two) in self.numbers:
            self.indices += 1
            return self.numbers[one, two]
        raise _Unlike("steps have different arguments")

    def states(self, one: _State, two: _State) -> None:
        if one.counts != two.counts:
            raise _Unlike("a step adds guards or inputs")
        if len(one.values) != len(two.values) or one.records.keys() != two.records.keys():
            raise _Unlike("there are more variables than before")
        for a, b in zip(one.values, two.values):
            self._item(a, b)

    def _item(self, one: _Item, two: _Item) -> None:
        if one.kind != two.kind or len(one.parts) != len(two.parts):
            raise _Unlike(f"a variable is no longer what it was: {type(one.own)}, {type(two.own)}")
        if one.kind == "again":
            if self.paired.get(id(one.of)) is not two.of:
                raise _Unlike("variables are no longer the same")
            return
        self.paired[id(one)] = two
        if one.kind == "tensor":
            if self.successor(one.own[0]) is not two.own[0] or one.own[1:] != two.own[1:]:
                raise _Unlike("a tensor is not its successor")
        elif one.kind in ("record", "other"):
            if one.own is not two.own and not self._equal_sources(one.own, two.own):
                raise _Unlike(f"a variable is no longer what it was: {type(one.own)}, {type(two.own)}")
        elif one.own != two.own:
            raise _Unlike(f"a variable is no longer what it was: {type(one.own)}, {type(two.own)}")
        for a, b in zip(one.parts, two.parts):
            self._item(a, b)

    @staticmethod
    def _equal_sources(one: Any, two: Any) -> bool:
        return isinstance(one, torch._guards.Source) and type(one) is type(two) and bool(one == two)

    def records(self, zero: Dict[str, Any], one: Dict[str, Any], two: Dict[str, Any]) -> Dict[str, List[Any]]:
        """What the second step appended, by record."""
        found = {}
        for name, (_, items) in two.items():
            earlier, between = zero[name][1], one[name][1]
            new, newer = between[len(earlier) :], items[len(between) :]
            same = (*earlier, *new, *newer)
            if len(same) != len(items) or any(a is not b for a, b in zip(same, items)) or len(new) != len(newer):
                raise _Unlike("a list is more than appended to")
            if any(type(one) is not _tensor_variable() for one in (*new, *newer)):
                raise _Unlike("what is appended is no tensor")
            if any(self.successor(a.proxy.node) is not b.proxy.node for a, b in zip(new, newer)):
                raise _Unlike("what is appended is not the successor of what was")
            if any(
                b.proxy.node not in set(self.second) and b.proxy.node is not a.proxy.node for a, b in zip(new, newer)
            ):
                raise _Unlike("what is appended is older than a step")
            found[name] = list(newer)
        return found


def _copies(tx: Any, loop: _Loop) -> Optional[Callable[[], None]]:
    one, two = loop.states
    like = _Likeness(loop, tx.output.nn_modules)
    template = like.nodes()
    like.states(one, two)
    more = two.size_guards - one.size_guards
    if more and more > like.indices:
        raise _Unlike("a step adds guards on sizes")
    zero = {
        name: (value, items[: len(items) - 2 * _grown(one, two, name)]) for name, (value, items) in two.records.items()
    }
    appended = like.records(zero, one.records, two.records)
    second, first = set(like.second), set(like.first)
    moved: List[Tuple[Any, Callable[[Any], None]]] = []
    for value, put in two.places:
        node = value.proxy.node
        if node in second or node in first or node in like.places:
            if put is None or type(value) is not _tensor_variable():
                raise _Unlike("a tensor stands where it cannot be replaced")
            moved.append((value, put))
    for value in (*(value for value, _ in moved), *(value for new in appended.values() for value in new)):
        value.clone(proxy=value.proxy, mutation_type=None)  # an error here changes nothing
    return lambda: _copy(tx, loop, like, template, moved, appended)


def _grown(one: _State, two: _State, name: str) -> int:
    return len(two.records[name][1]) - len(one.records[name][1])


def _copy(
    tx: Any,
    loop: _Loop,
    like: _Likeness,
    template: List[Tuple[Any, Any]],
    moved: List[Tuple[Any, Callable[[Any], None]]],
    appended: Dict[str, List[Any]],
) -> None:
    """Add the nodes of all steps but the last, and leave the state as it is before that one."""
    tracer = tx.output.current_tracer
    _, first, second = loop.steps
    of_first = dict(zip(first, second))
    now: Dict[Node, Node] = {node: node for node in second}  # a node of the second step -> the newest in its place
    previous: Dict[Node, Node] = {two: one for one, two in of_first.items()}
    kept = {value.proxy.node for new in appended.values() for value in new}

    def later(node: Node, steps: int) -> Node:
        column, place = like.places[node]
        return like.given[column][place + steps]

    def given(value: Any, new: Dict[Node, Node], steps: int) -> Any:
        if isinstance(value, Node):
            if value in like.places:
                return later(value, steps)
            if value in now:
                return new[value]
            return now[of_first[value]] if value in of_first else value
        if isinstance(value, _Number):
            return value.last + steps * value.step
        if isinstance(value, (tuple, list)):
            return type(value)([given(one, new, steps) for one in value])
        if isinstance(value, dict):
            return {key: given(one, new, steps) for key, one in value.items()}
        return value

    def tensor(value: Any, node: Node) -> Any:
        with tx.fake_mode if hasattr(tx, "fake_mode") else tx.output.fake_mode, torch.enable_grad():
            # One of its own: what follows may change its shape in place.
            node.meta["example_value"] = nodes.value_of(value.proxy.node).clone()
        return value.clone(proxy=torch.fx.Proxy(node, tracer), mutation_type=None)

    left = _left(_columns(loop.iterator)) - 1
    for steps in range(1, left + 1):
        loop.iterator.next_variable(tx)
        new: Dict[Node, Node] = {}
        for node, (args, kwargs) in zip(second, template):
            if node.op == "get_attr":
                new[node] = node  # TorchDynamo takes the name of such a node for its module's
                continue
            made = tracer.create_node(node.op, node.target, given(args, new, steps), given(kwargs, new, steps))
            own = made.meta.get("creation_timestamp")
            made.meta.update(node.meta)
            if own is not None:
                made.meta["creation_timestamp"] = own
            new[node] = made
        for name, values in appended.items():
            record = _realized(tx.symbolic_locals[name])
            for value in values:
                node = value.proxy.node
                record.items.append(tensor(value, new[node]) if node in kept and node in new else value)
        previous, now = now, new
    replaced: Dict[int, Any] = {}
    for value, put in moved:
        if id(value) not in replaced:
            node = value.proxy.node
            if node in like.places:
                successor = later(node, left)
            else:
                successor = now[node] if node in now else previous[of_first[node]]
            replaced[id(value)] = tensor(value, successor)
        put(replaced[id(value)])
    loop.over = True
