"""The bodies of a program's loops as functions.

The loop keeps its place in the code. A branch is put in front of it::

    for __snnipu_out__ in __snnipu_loop_7__ and __snnipu_loop_7__(range(5), x, mem) or ():
        mem = __snnipu_out__[0]
        break
    else:
        for step in range(5): ...

The name is a :class:`snnipu.compiler.loop.Loop`, which is false if the loop has to run in Python. Its arguments are the
iterable and the variables that the body reads; its results are the variables that the body sets.
"""

import ast
import copy
from collections import Counter
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from snnipu.compiler import deferred_output
from snnipu.compiler.outline import (
    FUNCTIONS,
    LOOPS,
    Function,
    Scope,
    blocks,
    deferred,
    flow,
    has_private_names,
    is_call_of,
    loads_outside,
    mangle,
    may_be_compiled,
    names_of,
    statements_of,
    surely_bound,
)

PREFIX = "__snnipu_"
# Python does not mangle names in a class that end with underscores.
LOOP, UNBOUND, KEPT, _OUT, _SHOWN = (f"{PREFIX}{name}" for name in ("loop_", "unbound__", "kept__", "out__", "shown__"))
_HEADS, _BARS = {"enumerate", "zip", "reversed"}, {"tqdm", "trange"}
CALLED, ITEM, AT, STACK = (f"{PREFIX}{name}__" for name in ("called", "item", "at", "stack"))
# For each loop, the positions of results among the arguments (-1: none), and the positions of records.
CARRIES: Dict[str, Tuple[Tuple[int, ...], Tuple[int, ...]]] = {}
# Suffixes of a loop's functions: the body, the traced body, the calls that print or log, the objects they write to.
PARTS = BODY, KEEPING, AFTER, SHOWN_TO = "body__", "keeping__", "after__", "to__"


class OutlinedLoop(NamedTuple):
    """A loop that became a function.

    Attributes:
        name: the name of the function.
        first: the number of the loop's first line.
        functions: the functions of its body, and of the calls that print or log.
    """

    name: str
    first: int
    functions: List[ast.stmt]


class Host(NamedTuple):
    """A function, or a module, whose loops became functions.

    Attributes:
        name: the name of the function, or ``<module>``.
        loops: the loops that became functions.
    """

    name: str
    loops: List[OutlinedLoop]


def outlined(
    tree: ast.Module, numbers: Iterable[int], chosen: Callable[[Function], bool], of_module: bool = False
) -> List[Host]:
    """Put branches in front of the loops of a module's functions, in place."""
    work = Bodies(tree, iter(numbers), chosen)
    host = Host("<module>", [])
    tree.body = work.block(tree.body, None, host if of_module else None)
    ast.fix_missing_locations(tree)
    return [each for each in (host, *work.hosts) if each.loops]


class Bodies:
    """Puts branches in front of loops whose bodies can be functions.

    Attributes:
        hosts: the functions with such loops.
        records: lists of the current function that only ``torch.stack`` reads.
    """

    def __init__(self, tree: ast.Module, numbers: Iterator[int], chosen: Callable[[Function], bool]) -> None:
        self.hosts: List[Host] = []
        self.records: Set[str] = set()
        self._tree, self._numbers, self._chosen = tree, numbers, chosen
        self._owner = ""  # the current class

    def block(self, statements: List[ast.stmt], scope: Optional[Scope], host: Optional[Host]) -> List[ast.stmt]:
        """Return the statements with branches in front of the loops of ``host``."""
        return [self._statement(node, scope, host) for node in statements]

    def _statement(self, node: ast.stmt, scope: Optional[Scope], host: Optional[Host]) -> ast.stmt:
        if isinstance(node, FUNCTIONS):
            return self._function(node, scope)
        if isinstance(node, ast.ClassDef):
            owner, self._owner = self._owner, node.name
            node.body = self.block(node.body, scope, None)
            self._owner = owner
            return node
        if isinstance(node, ast.Try):
            return node  # after an error the program may read variables of finished steps, which would be lost
        plain = copy.deepcopy(node) if host is not None and isinstance(node, LOOPS) else None
        for block in blocks(node):
            block[:] = self.block(block, scope, host)
        if plain is None or host is None:
            return node
        parts = deferred_output.split(plain, _SHOWN, KEPT, set() if scope is None else scope.locals | scope.outer)
        built = None
        if may_be_compiled(plain if parts is None else parts.loop):
            built = self._of_module(plain, parts) if scope is None else self._of_function(node, plain, scope, parts)
        if built is None:
            return node
        name, functions, branch = built
        host.loops.append(OutlinedLoop(name, node.lineno, [_relocate(function, node) for function in functions]))
        branch.orelse = [node]
        return _relocate(branch, node)  # type: ignore[no-any-return]

    def _function(self, node: Function, outer: Optional[Scope]) -> ast.stmt:
        """Put branches into a function; its records are found before its loops change."""
        scope = Scope(node, outer, self._owner)
        host = None
        if scope.is_plain and self._chosen(node):
            host = Host(node.name, [])
            self.hosts.append(host)
        before, self.records = self.records, _records_of(node)
        node.body = self.block(node.body, scope, host)
        _Stacks(self.records).visit(node)
        self.records = before
        return node

    def _of_module(self, loop: ast.stmt, parts: Optional[deferred_output.Parts]) -> Any:
        if any(isinstance(one, ast.AnnAssign) for one in ast.walk(loop)):
            return None  # a global variable has no annotation in a function
        _, stores = names_of([loop])
        # Functions may read the variables that the loop sets, or set those that it reads.
        inner = [one for one in ast.walk(self._tree) if isinstance(one, (*FUNCTIONS, ast.Lambda))]
        read = {one.id for function in inner for one in ast.walk(function) if isinstance(one, ast.Name)}
        if stores & read & _globals_of(inner, stores):
            return None
        module = ast.FunctionDef(
            name="module", args=_no_arguments(), body=self._tree.body, decorator_list=[], lineno=1, col_offset=0
        )
        known = names_of(self._tree.body)[1]
        return self._build(loop, loop, parts, known, loads_outside(module, loop) | stores, set(), "")

    def _of_function(self, node: ast.stmt, loop: ast.stmt, scope: Scope, parts: Optional[deferred_output.Parts]) -> Any:
        loads, stores = names_of([loop])
        if scope.looks or stores & (scope.cells | scope.foreign) or (loads | stores) & scope.changed:
            return None
        if scope.owner and has_private_names(loop):
            return None
        known, elsewhere = scope.locals | scope.outer, loads_outside(scope.node, node)
        return self._build(node, loop, parts, known, elsewhere, surely_bound(scope, node), scope.owner)

    def _build(self, node: Any, loop: Any, parts: Any, known: Any, elsewhere: Any, bound: Any, owner: str) -> Any:
        """Return name, functions and branch of a loop, or None if its body cannot be a function."""
        if not isinstance(loop, ast.For) or loop.orelse:
            return None
        if any(isinstance(one, (ast.Break, ast.Continue)) for one in _inside(loop.body)):
            return None
        if next(deferred([loop]), None) is not None:
            return None
        iterable = _head(loop.iter)
        if iterable is None:
            return None
        target = ast.Assign([loop.target], ast.Name(ITEM, ast.Load()))
        statements: List[Any] = [target, *loop.body]
        loads, stores = names_of(statements)
        exposed, surely = flow(statements)
        results = stores & (exposed | elsewhere)
        arguments = sorted((loads - stores - {ITEM}) & known | stores & exposed | results - surely)
        ordered = sorted(results | set(arguments) & stores)
        if owner:
            for tree in (loop, *([] if parts is None else [parts.loop, *parts.after, *parts.to])):
                mangle(tree, owner)
        name = f"{LOOP}{next(self._numbers)}__"
        bodies = {BODY: self._body(loop, target, arguments, ordered)}
        traced = loop if parts is None else parts.loop
        bodies[KEEPING] = [_Indices().visit(one) for one in self._body(traced, target, arguments, ordered)]
        parameters = {BODY: [ITEM, *arguments]}
        parameters[KEEPING] = [ITEM, *arguments, *([] if parts is None else [_SHOWN])]
        if parts is not None:
            bodies[AFTER] = parts.after
            late: List[ast.expr] = [ast.Name(one, ast.Load()) for one in parts.late]
            bodies[SHOWN_TO] = [
                ast.Return(ast.Tuple([ast.Tuple(each, ast.Load()) for each in (parts.to, late)], ast.Load()))
            ]
            parameters.update({AFTER: [*arguments, _SHOWN], SHOWN_TO: arguments})
        functions: List[Any] = []
        for part, body in bodies.items():
            (function,) = _parse_statements(f"def {name}{part}({', '.join(parameters[part])}): pass")
            function.body = body  # type: ignore[attr-defined]
            functions.append(function)
        carries = tuple(arguments.index(each) if each in arguments else -1 for each in ordered)
        values = [each if each in bound else f"locals().get({each!r}, {name}.unbound)" for each in arguments]
        lines = [f"{_branch(name, [iterable, *values])}:"]
        for place, each in enumerate(ordered):
            sure = each in arguments and each in bound
            when = "" if sure else f"if {_OUT}[{place}] is not {name}.unbound: "
            lines.append(f" {when}{each} = {_OUT}[{place}]")
        records = tuple(place for place, each in enumerate(arguments) if each in self.records)
        CARRIES[name] = carries, records
        return name, functions, _parse_statements("\n".join([*lines, f" del {_OUT}", " break"]))[0]

    def _body(self, loop: Any, target: ast.stmt, arguments: Sequence[str], results: Sequence[str]) -> List[Any]:
        fresh = "".join(f"{each} = {UNBOUND}\n" for each in results if each not in arguments)
        returned = _parse_statements(f"return {''.join(f'{each}, ' for each in results) or '()'}")
        return [*_parse_statements(fresh), *copy.deepcopy([target, *loop.body]), *returned]


def _no_arguments() -> ast.arguments:
    return ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def _globals_of(functions: Iterable[Any], names: Any) -> Any:
    """Return the names that functions may read or set as global variables."""
    read = set()
    for function in functions:
        loads, stores = names_of(function.body if isinstance(function.body, list) else [function.body])
        parameters = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
        declared = {n for one in ast.walk(function) if isinstance(one, ast.Global) for n in one.names}
        read |= (loads - (stores - declared) - parameters) | declared
    return read & names


def _records_of(function: Function) -> Set[str]:
    """Return the lists of a function that are only appended to and given to ``torch.stack``."""
    inside = list(ast.walk(function))
    inner = [one for one in inside if isinstance(one, (*FUNCTIONS, ast.Lambda)) and one is not function]
    hidden = {one.id for each in inner for one in ast.walk(each) if isinstance(one, ast.Name)}
    hidden |= {name for one in inside if isinstance(one, (ast.Global, ast.Nonlocal)) for name in one.names}
    hidden |= {one.arg for one in inside if isinstance(one, ast.arg)}
    appended = {one for one in map(_appended, inside) if one is not None}
    names = {one for one in inside if isinstance(one, ast.Name) and one not in appended}
    loads = Counter(one.id for one in names if isinstance(one.ctx, ast.Load))
    stores = Counter(one.id for one in names if not isinstance(one.ctx, ast.Load))
    stacked = Counter(one.id for one in map(_stacked, inside) if one in names)
    assigned = [one for one in inside if isinstance(one, ast.Assign) and len(one.targets) == 1]
    emptied = Counter(name for one in assigned for name in _emptied(one.targets[0], one.value))
    names_of_lists = {one.id for one in appended} - hidden
    return {one for one in names_of_lists if loads[one] == stacked[one] > 0 and stores[one] == emptied[one] > 0}


def _emptied(target: ast.expr, value: ast.expr) -> Iterator[str]:
    """Yield the variables that an assignment makes empty lists."""
    if isinstance(target, ast.Name) and isinstance(value, ast.List) and not value.elts:
        yield target.id
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for pair in zip(target.elts, value.elts):
            yield from _emptied(*pair)


def _stacked(node: ast.AST) -> Optional[ast.Name]:
    """Return the variable in a call ``torch.stack(variable)``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "stack" and node.args:
        first, of = node.args[0], node.func.value
        if isinstance(first, ast.Name) and isinstance(of, ast.Name) and of.id == "torch":
            return first
    return None


def _appended(node: ast.AST) -> Optional[ast.Name]:
    """Return the variable in a statement ``v.append(...)``, ``v.extend(...)`` or ``v += [...]``."""
    call = node.value if isinstance(node, ast.Expr) else None
    of: Any = node.target if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "extend"):
        of = call.func.value
    return of if isinstance(of, ast.Name) else None


class _Stacks(ast.NodeTransformer):
    """Replaces ``torch.stack`` of records by :func:`snnipu.compiler.trace.stack`, which also takes sequences."""

    def __init__(self, names: Set[str]) -> None:
        self._names = names

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        name = _stacked(node)
        if name is None or name.id not in self._names:
            return node
        return ast.copy_location(ast.Call(ast.Name(STACK, ast.Load()), [node.func, *node.args], node.keywords), node)


def _inside(statements: Any) -> Any:
    """Yield the statements of a loop, without those of inner loops."""
    for statement in statements:
        yield statement
        if not isinstance(statement, (ast.For, ast.While, ast.FunctionDef, ast.ClassDef)):
            yield from _inside(statements_of(statement))
        elif isinstance(statement, (ast.For, ast.While)):
            yield from _inside(statement.orelse)


class _Indices(ast.NodeTransformer):
    """Replaces ``x[:, step]`` by a call of ``at``, and ``x[:, step] = y`` by ``at(...)[...] = y``.

    TorchDynamo makes a number in such an index a constant.
    """

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        index: Any = node.slice
        index = getattr(index, "value", index) if type(index).__name__ == "Index" else index
        if isinstance(node.ctx, ast.Del) or not isinstance(index, (ast.Tuple, ast.Slice)):
            return node
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        bounds = [
            one for part in parts for one in ((part.lower, part.upper) if isinstance(part, ast.Slice) else (part,))
        ]
        if not any(isinstance(one, (ast.Name, ast.BinOp)) for one in bounds):
            return node
        slices = [_slice(one) for one in parts]
        argument = ast.Tuple(slices, ast.Load()) if isinstance(index, ast.Tuple) else slices[0]
        is_set = isinstance(node.ctx, ast.Store)
        part: ast.expr = ast.Call(ast.Name(AT, ast.Load()), [node.value, argument, ast.Constant(is_set)], [])
        if is_set:
            part = ast.Subscript(part, ast.Constant(...), node.ctx)
        return ast.copy_location(part, node)


def _slice(node: Any) -> Any:
    """Return a part of an index as an expression."""
    if not isinstance(node, ast.Slice):
        return node
    bounds = [ast.Constant(None) if one is None else one for one in (node.lower, node.upper, node.step)]
    return ast.copy_location(ast.Call(ast.Name("slice", ast.Load()), bounds, []), node)


def _head(node: ast.expr) -> Optional[str]:
    """Return the source of a loop's iterable, or None if its evaluation may have side effects.

    Calls of ``enumerate``, ``tqdm`` and similar functions become :class:`snnipu.compiler.items.Called`.
    """
    is_bar = isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in _BARS
    if isinstance(node, ast.Call) and (is_bar or (is_call_of(node, _HEADS) and not node.keywords)):
        inner = [_head(one) for one in node.args]
        named = [(repr(one.arg), _head(one.value)) for one in node.keywords if one.arg]
        if None in (*inner, *(value for _, value in named)) or len(named) < len(node.keywords):
            return None
        keywords = ", ".join(f"{name}: {value}" for name, value in named)
        return f"{CALLED}({ast.unparse(node.func)}, ({''.join(f'{one}, ' for one in inner)}), {{{keywords}}})"
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    names = [getattr(one.func, "id", "") or getattr(one.func, "attr", "") for one in calls]
    if any(
        isinstance(one, (ast.Yield, ast.Await, ast.NamedExpr, ast.Lambda, ast.GeneratorExp, ast.Starred))
        for one in ast.walk(node)
    ):
        return None
    if not set(names) <= _PURE:
        return None
    return ast.unparse(node)


# Functions and methods without side effects. If the loop runs in Python, its iterable is evaluated a second time.
_PURE = {
    *(
        "range",
        "len",
        "int",
        "size",
        "min",
        "max",
        "abs",
        "round",
        "float",
        "to",
        "detach",
        "contiguous",
        "view",
        "reshape",
    ),
    *(
        "unbind",
        "transpose",
        "permute",
        "movedim",
        "swapaxes",
        "flip",
        "squeeze",
        "unsqueeze",
        "flatten",
        "unflatten",
        "t",
    ),
}


def _branch(name: str, arguments: Iterable[str]) -> str:
    return f"for {_OUT} in {name} and {name}({', '.join(arguments)}) or ()"


def _relocate(tree: Any, node: ast.stmt) -> Any:
    """Give new nodes of a tree the line of the loop."""
    for part in ast.walk(tree):
        if "lineno" in part._attributes and not hasattr(part, "lineno"):
            ast.copy_location(part, node)
    return tree


def _parse_statements(source: str) -> List[ast.stmt]:
    """Return the statements of a source, without line numbers."""
    statements = ast.parse(source).body
    for statement in statements:
        for node in ast.walk(statement):
            for name in node._attributes:
                node.__dict__.pop(name, None)
    return statements
