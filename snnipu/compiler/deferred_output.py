"""Output of a loop that waits until after the loop: ``print``, progress bars, logs, and records of NumPy arrays.

Such a call cannot be part of a graph. The compiled loop stores the values that the call reads at each step, and the
calls run after the loop, in their order. A statement is deferred if nothing else in the loop reads or sets the object
that it writes to: ``print``, a method of a progress bar or a logger, ``list.append(... .numpy())`` and
``array[...] = ... .numpy()``.
"""

import ast
import copy
from typing import AbstractSet, Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy
import torch

_METHODS = {
    *("set_description", "set_description_str", "set_postfix", "set_postfix_str", "refresh", "update", "write"),
    *("debug", "info", "warning", "error"),
}
_TO_NUMPY = {"numpy", "tolist"}
# Functions whose result only depends on their arguments.
_FUNCTIONS = {
    *("abs", "bool", "float", "format", "int", "list", "max", "min", "repr", "round", "sorted", "str", "sum", "tuple"),
}
_LIBRARIES = {"math", "np", "numpy", "torch"}
_OUTPUT_LIBRARIES = {
    *("tqdm", "logging", "loguru", "rich", "alive_progress", "progressbar", "tensorboardX", "io", "_io", "ipykernel"),
}
_IMMUTABLE = (type(None), bool, int, float, str)
_REFUSED = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr, ast.Await, ast.Yield)
_PLACES = (ast.Name, ast.Attribute, ast.Subscript)


class Parts(NamedTuple):
    """A loop without its output, and the output.

    Attributes:
        loop: the loop, which stores the values of the output in a list.
        after: the statements that run after the loop, and read this list.
        to: the objects that the output is written to.
        late: variables that the output reads after the loop, because the loop does not set them.
    """

    loop: ast.stmt
    after: List[ast.stmt]
    to: List[ast.expr]
    late: List[str]


def may_wait(to: Sequence[Any], late: Sequence[Any]) -> bool:
    """Return True if output to the objects ``to`` can wait, and the values ``late`` cannot change until then."""
    return all(map(_is_output, to)) and all(type(value) in _IMMUTABLE for value in late)


def _is_output(to: Any) -> bool:
    """Return True for a list, an array, a progress bar or a logger. A learner may have an ``update`` method, too."""
    if type(to) is numpy.ndarray:
        return to.base is None  # the array does not share memory with a tensor
    return type(to) is list or type(to).__module__.split(".")[0] in _OUTPUT_LIBRARIES


def kept(value: Any) -> Any:
    """Return a copy of a value for the output after the loop.

    Raises:
        TypeError: the value may change until then.
    """
    if isinstance(value, torch.Tensor):
        return value.clone()
    if type(value) is tuple:
        return tuple([kept(one) for one in value])
    if isinstance(value, (*_IMMUTABLE, torch.Size)):
        return value
    raise TypeError("a value that is printed or logged may have changed after the loop")


def split(loop: ast.stmt, name: str, keep: str, local: AbstractSet[str] = frozenset()) -> Optional[Parts]:
    """Split a loop from its output, or return None if no output can be deferred.

    Args:
        name: the name of the list of values.
        keep: the name of :func:`kept` in the program.
        local: local variables of the function, which no other function sets.
    """
    if not isinstance(loop, (ast.For, ast.While)):
        return None
    loop = copy.deepcopy(loop)
    work = _Deferral(loop, name, keep, local)
    for block in (loop.body, loop.orelse):
        work.visit_block(block)
    if not work.calls:
        return None
    which, values = f"{name}which", f"{name}given"
    branches = []
    for number, (statement, names) in enumerate(work.calls):
        assignment = f"{', '.join([*names.values(), ''])} = {values}" if names else "pass"
        branch = ast.parse(f"if {which} == {number}:\n {assignment}").body[0]
        assert isinstance(branch, ast.If)
        branch.body.append(statement)
        branches.append(branch)
    show = ast.parse(f"for {which}, {values} in {name}: pass").body[0]
    assert isinstance(show, ast.For)
    show.body = list(branches)
    return Parts(loop, [show], work.to, sorted(work.late))


class _Deferral:
    """Replaces the deferred statements of a loop by statements that store their values."""

    def __init__(self, loop: ast.stmt, name: str, keep: str, local: AbstractSet[str]) -> None:
        self.calls: List[Tuple[ast.stmt, Dict[str, str]]] = []
        self.to: List[ast.expr] = []
        self.late: Set[str] = set()
        self._loop, self._name, self._keep = loop, name, keep
        self._set = {one.id for one in ast.walk(loop) if isinstance(one, ast.Name) and not _is_load(one)}
        statements = [one for one in ast.walk(loop) if isinstance(one, ast.stmt)]
        self._fixed = local - self._set
        self._changed = {name for one in ast.walk(loop) for name in _changed_in_place(one)}
        shown_to = [self._receiver(one) for one in statements]
        known = {id(part) for one in shown_to if one is not None for part in ast.walk(one)}
        self._read = {ast.unparse(one) for one in ast.walk(loop) if isinstance(one, _PLACES) and id(one) not in known}

    def visit_block(self, statements: List[ast.stmt]) -> None:
        for place, statement in enumerate(statements):
            replacement = self._replaced(statement)
            if replacement is not None:
                statements[place] = replacement
            elif not isinstance(statement, (ast.Try, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for name in ("body", "orelse"):
                    if isinstance(getattr(statement, name, None), list):
                        self.visit_block(getattr(statement, name))

    def _receiver(self, statement: ast.stmt) -> Optional[ast.expr]:
        """Return the object that a statement writes to (for ``print`` the function), or None for other statements."""
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
            whole = len(statement.targets) == 1 and isinstance(target, ast.Subscript) and _gives_numpy(statement.value)
            return self._outside(target.value) if whole and isinstance(target, ast.Subscript) else None
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call):
            return None
        if isinstance(call.func, ast.Name):
            return call.func if call.func.id == "print" else None
        if not isinstance(call.func, ast.Attribute):
            return None
        appends = call.func.attr == "append" and any(map(_gives_numpy, call.args))
        return self._outside(call.func.value) if appends or call.func.attr in _METHODS else None

    def _outside(self, place: ast.expr) -> Optional[ast.expr]:
        """Return ``place`` if it names an object that the loop does not set, or None."""
        root: Any = place
        while isinstance(root, ast.Attribute):
            root = root.value
        return place if isinstance(root, ast.Name) and root.id not in self._set else None

    def _receivers(self, statement: ast.stmt) -> Optional[List[ast.expr]]:
        """Return the receivers of a statement, for an ``if`` of its statements; None if it cannot be deferred."""
        if not isinstance(statement, ast.If):
            receiver = self._receiver(statement)
            return None if receiver is None or ast.unparse(receiver) in self._read else [receiver]
        receivers = [self._receivers(one) for one in (*statement.body, *statement.orelse)]
        if None in receivers or _names(statement.test).isdisjoint(self._set):
            return None
        return [one for each in receivers for one in each or ()]

    def _replaced(self, statement: ast.stmt) -> Optional[ast.stmt]:
        """Note a statement that can be deferred, and return one that stores its values; None for other statements."""
        receivers = self._receivers(statement)
        if receivers is None or any(isinstance(one, _REFUSED) for one in ast.walk(statement)):
            return None
        later = copy.deepcopy(statement)
        values: Dict[str, str] = {}
        if not self._take_all(later, values):
            return None
        # An appended array shares memory with its tensor, which the loop may change later.
        appends = any(isinstance(one, ast.Expr) and _gives_numpy(one.value) for one in ast.walk(later))
        if appends and any(_names(ast.parse(value)) & self._changed for value in values):
            return None
        copies = ", ".join([*(f"{self._keep}({value})" for value in values), ""]) if values else ""
        store = ast.parse(f"{self._name}.append(({len(self.calls)}, ({copies})))").body[0]
        if isinstance(statement, ast.If) and isinstance(statement.test, ast.BoolOp) and not statement.orelse:
            # A condition that the loop does not set (``verbose``) is read at the step: if false, no value is stored.
            fixed = [one for one in statement.test.values if _names(one).isdisjoint(self._set)]
            if fixed and isinstance(statement.test.op, ast.And) and fixed == statement.test.values[: len(fixed)]:
                store = ast.If(ast.BoolOp(ast.And(), [*fixed, ast.Constant(True)]), [store], [])
        self.calls.append((later, values))
        self.to.extend(copy.deepcopy(one) for one in receivers if ast.unparse(one) != "print")
        for node in ast.walk(store):
            if "lineno" in node._attributes:
                ast.copy_location(node, statement)
        return store

    def _take_all(self, later: Any, values: Dict[str, str]) -> bool:
        """Replace the values that a statement reads by variables; return True if the rest can be computed later."""
        if isinstance(later, ast.If):
            inside = all(self._take_all(one, values) for one in (*later.body, *later.orelse))
            return self._take(later, "test", values) and inside
        if isinstance(later, ast.Assign):
            return self._take(later, "value", values) and self._take(later.targets[0], "slice", values)
        call = later.value
        fits = all(self._take(call.args, place, values) for place in range(len(call.args)))
        return fits and all(self._take(keyword, "value", values) for keyword in call.keywords)

    def _take(self, holder: Any, place: Any, values: Dict[str, str]) -> bool:
        """Replace the values that an expression reads by variables; return True if the rest can be computed later."""
        node = holder[place] if isinstance(holder, list) else getattr(holder, place)
        if not isinstance(node, ast.AST) or isinstance(node, (ast.expr_context, ast.operator, ast.cmpop, ast.boolop)):
            return True
        is_length = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len"
        if isinstance(node, ast.Name) and node.id in self._fixed and not isinstance(holder, ast.Attribute):
            self.late.add(node.id)  # for example the number of the epoch: as a constant it would need a graph per epoch
            return True
        if is_length or (_is_place(node) and _is_load(node)):
            text = ast.unparse(node)
            name = values.setdefault(text, f"{self._name}{len(values)}")
            variable = ast.copy_location(ast.Name(name, ast.Load()), node)
            if isinstance(holder, list):
                holder[place] = variable
            else:
                setattr(holder, place, variable)
            return True
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                if node.func.id not in _FUNCTIONS:
                    return False
            elif isinstance(node.func, ast.Attribute):
                root = node.func.value
                library = isinstance(root, ast.Name) and root.id in _LIBRARIES - self._set
                if "rand" in node.func.attr or not (library or self._take(node.func, "value", values)):
                    return False
            else:
                return False
            fits = all(self._take(node.args, at, values) for at in range(len(node.args)))
            return fits and all(self._take(keyword, "value", values) for keyword in node.keywords)
        for name, value in ast.iter_fields(node):
            places: Any = range(len(value)) if isinstance(value, list) else [name]
            if not all(self._take(value if isinstance(value, list) else node, one, values) for one in places):
                return False
        return True


def _changed_in_place(node: ast.AST) -> Set[str]:
    """Return the variables whose value a statement, or a call of a method, may change in place."""
    changed: Any = None
    if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Subscript) and not _is_load(node)):
        changed = node.target if isinstance(node, ast.AugAssign) else node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        changed = node.func.value
    return set() if changed is None else _names(changed)


def _is_load(node: Any) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_place(node: ast.AST) -> bool:
    """Return True for a variable, and for attributes and items of a variable."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Name)


def _names(node: ast.AST) -> Set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _gives_numpy(value: ast.expr) -> bool:
    """Return True if an expression calls ``.numpy()`` or ``.tolist()``."""
    calls = (one.func for one in ast.walk(value) if isinstance(one, ast.Call))
    return any(isinstance(function, ast.Attribute) and function.attr in _TO_NUMPY for function in calls)
