"""What a loop shows on its way, behind it: ``print``, progress bars, logs, and records of NumPy's arrays.

No graph has such a call in it. The loop that is compiled keeps what the call is given instead, as it is at that step,
and the calls are made behind the loop, in their order. Taken for such a call is a statement that the rest of the loop
does not see: ``print``, a method of a progress bar or a logger, ``list.append(... .numpy())`` and
``array[...] = ... .numpy()``, of objects that the loop itself neither reads nor sets.
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
# Functions whose result is their arguments' alone.
_FUNCTIONS = {
    *("abs", "bool", "float", "format", "int", "list", "max", "min", "repr", "round", "sorted", "str", "sum", "tuple"),
}
_LIBRARIES = {"math", "np", "numpy", "torch"}
_SHOWING = {
    *("tqdm", "logging", "loguru", "rich", "alive_progress", "progressbar", "tensorboardX", "io", "_io", "ipykernel"),
}
_UNCHANGING = (type(None), bool, int, float, str)
_REFUSED = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr, ast.Await, ast.Yield)
_PLACES = (ast.Name, ast.Attribute, ast.Subscript)


class Parts(NamedTuple):
    """A loop in two.

    Attributes:
        loop: that keeps what is shown, in a list that the other part is given.
        after: statements that show it.
        to: the objects that are shown something.
        late: names of what they are shown that the loop does not set, and that is not kept.
    """

    loop: ast.stmt
    after: List[ast.stmt]
    to: List[ast.expr]
    late: List[str]


def may_wait(to: Sequence[Any], late: Sequence[Any]) -> bool:
    """Whether these objects may be shown something behind the loop, and these values be read there."""
    return all(map(_only_shows, to)) and all(type(value) in _UNCHANGING for value in late)


def _only_shows(to: Any) -> bool:
    """Whether nothing else is changed by what an object is shown: a learner, say, has an ``update``, too."""
    if type(to) is numpy.ndarray:
        return to.base is None  # memory of its own, no tensor's
    return type(to) is list or type(to).__module__.split(".")[0] in _SHOWING


def kept(value: Any) -> Any:
    """What a later call is to see of a value, as it is now.

    Raises:
        TypeError: it may change until then.
    """
    if isinstance(value, torch.Tensor):
        return value.clone()
    if type(value) is tuple:
        return tuple([kept(one) for one in value])
    if isinstance(value, (*_UNCHANGING, torch.Size)):
        return value
    raise TypeError("what is printed or logged at a step may have changed behind the loop")


def apart(loop: ast.stmt, name: str, keep: str, own: AbstractSet[str] = frozenset()) -> Optional[Parts]:
    """The loop without what it shows, and that; None where it shows nothing of this kind.

    Args:
        name: of the list.
        keep: of :func:`kept`.
        own: variables of its function, which nobody else sets.
    """
    if not isinstance(loop, (ast.For, ast.While)):
        return None
    loop = copy.deepcopy(loop)
    work = _Apart(loop, name, keep, own)
    for block in (loop.body, loop.orelse):
        work.visit_block(block)
    if not work.calls:
        return None
    which, given = f"{name}which", f"{name}given"
    branches = []
    for number, (statement, names) in enumerate(work.calls):
        taken = f"{', '.join([*names.values(), ''])} = {given}" if names else "pass"
        branch = ast.parse(f"if {which} == {number}:\n {taken}").body[0]
        assert isinstance(branch, ast.If)
        branch.body.append(statement)
        branches.append(branch)
    show = ast.parse(f"for {which}, {given} in {name}: pass").body[0]
    assert isinstance(show, ast.For)
    show.body = list(branches)
    return Parts(loop, [show], work.to, sorted(work.late))


class _Apart:
    def __init__(self, loop: ast.stmt, name: str, keep: str, own: AbstractSet[str]) -> None:
        self.calls: List[Tuple[ast.stmt, Dict[str, str]]] = []
        self.to: List[ast.expr] = []
        self.late: Set[str] = set()
        self._loop, self._name, self._keep = loop, name, keep
        self._set = {one.id for one in ast.walk(loop) if isinstance(one, ast.Name) and not _is_load(one)}
        statements = [one for one in ast.walk(loop) if isinstance(one, ast.stmt)]
        self._fixed = own - self._set
        self._changed = {name for one in ast.walk(loop) for name in _changed_in_place(one)}
        shown_to = [self._receiver(one) for one in statements]
        known = {id(part) for one in shown_to if one is not None for part in ast.walk(one)}
        self._read = {ast.unparse(one) for one in ast.walk(loop) if isinstance(one, _PLACES) and id(one) not in known}

    def visit_block(self, statements: List[ast.stmt]) -> None:
        for place, statement in enumerate(statements):
            made = self._kept(statement)
            if made is not None:
                statements[place] = made
            elif not isinstance(statement, (ast.Try, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for name in ("body", "orelse"):
                    if isinstance(getattr(statement, name, None), list):
                        self.visit_block(getattr(statement, name))

    def _receiver(self, statement: ast.stmt) -> Optional[ast.expr]:
        """What a statement of these shows its values to, ``print`` itself included; None: it is none of these."""
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
        """``place``, where it names an object that the loop does not set."""
        root: Any = place
        while isinstance(root, ast.Attribute):
            root = root.value
        return place if isinstance(root, ast.Name) and root.id not in self._set else None

    def _receivers(self, statement: ast.stmt) -> Optional[List[ast.expr]]:
        """Return the receivers of a statement, or of all that stand under an ``if`` whose condition the loop sets."""
        if not isinstance(statement, ast.If):
            receiver = self._receiver(statement)
            return None if receiver is None or ast.unparse(receiver) in self._read else [receiver]
        found = [self._receivers(one) for one in (*statement.body, *statement.orelse)]
        if None in found or _names(statement.test).isdisjoint(self._set):
            return None
        return [one for each in found for one in each or ()]

    def _kept(self, statement: ast.stmt) -> Optional[ast.stmt]:
        """What keeps the values of a call, which is noted; None: it is none of these."""
        receivers = self._receivers(statement)
        if receivers is None or any(isinstance(one, _REFUSED) for one in ast.walk(statement)):
            return None
        later = copy.deepcopy(statement)
        values: Dict[str, str] = {}
        if not self._take_all(later, values):
            return None
        # Appended arrays have the memory of what is changed afterwards.
        appends = any(isinstance(one, ast.Expr) and _gives_numpy(one.value) for one in ast.walk(later))
        if appends and any(_names(ast.parse(value)) & self._changed for value in values):
            return None
        taken = ", ".join([*(f"{self._keep}({value})" for value in values), ""]) if values else ""
        made = ast.parse(f"{self._name}.append(({len(self.calls)}, ({taken})))").body[0]
        if isinstance(statement, ast.If) and isinstance(statement.test, ast.BoolOp) and not statement.orelse:
            # ``verbose``, say, is read at the step: if it is false, nothing is kept.
            fixed = [one for one in statement.test.values if _names(one).isdisjoint(self._set)]
            if fixed and isinstance(statement.test.op, ast.And) and fixed == statement.test.values[: len(fixed)]:
                made = ast.If(ast.BoolOp(ast.And(), [*fixed, ast.Constant(True)]), [made], [])
        self.calls.append((later, values))
        self.to.extend(copy.deepcopy(one) for one in receivers if ast.unparse(one) != "print")
        for one in ast.walk(made):
            if "lineno" in one._attributes:
                ast.copy_location(one, statement)
        return made

    def _take_all(self, later: Any, values: Dict[str, str]) -> bool:
        """Put variables for the values that a statement reads; returns whether the rest may be computed later."""
        if isinstance(later, ast.If):
            inside = all(self._take_all(one, values) for one in (*later.body, *later.orelse))
            return self._take(later, "test", values) and inside
        if isinstance(later, ast.Assign):
            return self._take(later, "value", values) and self._take(later.targets[0], "slice", values)
        call = later.value
        fits = all(self._take(call.args, place, values) for place in range(len(call.args)))
        return fits and all(self._take(keyword, "value", values) for keyword in call.keywords)

    def _take(self, holder: Any, place: Any, values: Dict[str, str]) -> bool:
        """Put variables for the values that an expression reads; returns whether the rest may be computed later."""
        node = holder[place] if isinstance(holder, list) else getattr(holder, place)
        if not isinstance(node, ast.AST) or isinstance(node, (ast.expr_context, ast.operator, ast.cmpop, ast.boolop)):
            return True
        is_length = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len"
        if isinstance(node, ast.Name) and node.id in self._fixed and not isinstance(holder, ast.Attribute):
            self.late.add(node.id)  # the number of the epoch, say: in the graph, another one would be another graph
            return True
        if is_length or (_is_place(node) and _is_load(node)):
            text = ast.unparse(node)
            name = values.setdefault(text, f"{self._name}{len(values)}")
            made = ast.copy_location(ast.Name(name, ast.Load()), node)
            if isinstance(holder, list):
                holder[place] = made
            else:
                setattr(holder, place, made)
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
            given = all(self._take(node.args, at, values) for at in range(len(node.args)))
            return given and all(self._take(keyword, "value", values) for keyword in node.keywords)
        for name, value in ast.iter_fields(node):
            places: Any = range(len(value)) if isinstance(value, list) else [name]
            if not all(self._take(value if isinstance(value, list) else node, one, values) for one in places):
                return False
        return True


def _changed_in_place(node: ast.AST) -> Set[str]:
    """The variable whose value a statement, or a call of a method, changes in place."""
    changed: Any = None
    if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Subscript) and not _is_load(node)):
        changed = node.target if isinstance(node, ast.AugAssign) else node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        changed = node.func.value
    return set() if changed is None else _names(changed)


def _is_load(node: Any) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_place(node: ast.AST) -> bool:
    """Whether a variable, or what is found from one by attributes and indices."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Name)


def _names(node: ast.AST) -> Set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _gives_numpy(value: ast.expr) -> bool:
    """Whether an expression calls ``.numpy()`` or ``.tolist()``."""
    calls = (one.func for one in ast.walk(value) if isinstance(one, ast.Call))
    return any(isinstance(function, ast.Attribute) and function.attr in _TO_NUMPY for function in calls)
