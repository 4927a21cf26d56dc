"""Analysis of a program's syntax tree: which loops can be compiled, and the variables that they read and set."""

import ast
from typing import Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# Methods that need results of a step immediately: a loop that calls one of them cannot be one graph.
_LEARNING = {"backward", "zero_grad"}
_EAGER_METHODS = {*_LEARNING, "numpy", "tolist", "update", "write", "set_description"}
# Functions that read the frame of their caller.
_FRAME_READERS = {"locals", "vars", "eval", "exec", "super", "globals", "dir", "__class__"}
_EAGER_FUNCTIONS = {*_FRAME_READERS, "print", "input", "open"}
_REFUSED = (
    ast.Return,
    ast.Yield,
    ast.YieldFrom,
    ast.Await,
    ast.AsyncFor,
    ast.AsyncWith,
    ast.Global,
    ast.Nonlocal,
    ast.Delete,
    ast.ClassDef,
)
# Functions that have consumed a generator when they return.
_CONSUMERS = {"all", "any", "dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple"}


def first_line(function: Function) -> int:
    """Return the first line of a function, decorators included, as in its code object."""
    return min(node.lineno for node in (function, *function.decorator_list))


def blocks(node: ast.AST) -> Iterator[List[ast.stmt]]:
    """Yield the blocks of a statement."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def statements_of(node: ast.AST) -> List[ast.stmt]:
    return [statement for block in blocks(node) for statement in block]


class Scope:
    """The variables of a function.

    Attributes:
        owner: the class whose method it is: private names are mangled.
        foreign: variables that the function declares global or nonlocal.
        outer: local variables of the functions around it.
        deleted: variables that may lose their value.
        cells: local variables that inner functions read or set.
        changed: variables that inner functions set.
        looks: True if the function reads its variables by ``locals()`` or similar.
        is_plain: True if it is no coroutine and no generator.
    """

    def __init__(self, node: Function, outer: Optional["Scope"], owner: str) -> None:
        self.node = node
        self.owner = owner
        _, stores = names_of(node.body)
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self.parameters = {argument.arg for argument in every if argument is not None}
        inside = list(_walk(node.body))
        declared = [one for one in inside if isinstance(one, (ast.Global, ast.Nonlocal))]
        self.foreign = {name for one in declared for name in one.names}
        self.locals = (self.parameters | stores) - self.foreign
        self.outer: Set[str] = set() if outer is None else outer.locals | outer.outer
        self.deleted = {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Del)}
        self.deleted |= {str(one.name) for one in inside if isinstance(one, ast.ExceptHandler)}
        self.cells: Set[str] = set()
        self.changed: Set[str] = set() if outer is None else set(outer.changed)
        for inner in deferred(node.body):
            changed = {n for part in ast.walk(inner) if isinstance(part, ast.Nonlocal) for n in part.names}
            self.cells |= (names_of([inner])[0] | changed) & self.locals
            self.changed |= changed
        self.looks = any(is_call_of(one, {"locals", "vars", "eval", "exec", "dir"}) for one in ast.walk(node))
        self.looks = self.looks or "locals" in self.locals | self.outer
        self.is_plain = isinstance(node, ast.FunctionDef) and not any(
            isinstance(one, (ast.Yield, ast.YieldFrom, ast.Await)) for one in inside
        )


def deferred(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the functions and generators that may run later than the statement around them, without nested ones."""
    for node in body:
        parts = list(ast.iter_child_nodes(node))
        consumed = parts if isinstance(node, ast.Starred) else []
        if isinstance(node, ast.Call) and (is_call_of(node, _CONSUMERS) or getattr(node.func, "attr", "") == "join"):
            consumed = list(node.args)
        for argument in consumed:
            if isinstance(argument, ast.GeneratorExp):
                parts = [*(part for part in parts if part is not argument), *ast.iter_child_nodes(argument)]
        if isinstance(node, (*FUNCTIONS, ast.Lambda, ast.GeneratorExp)):
            yield node
        else:
            yield from deferred(parts)


def has_private_names(node: ast.AST) -> bool:
    """Return True if private names, with two leading underscores, occur in other places than attributes."""
    for part in ast.walk(node):
        names = [getattr(part, field, None) for field in ("id", "arg", "name", "asname", "rest")]
        names += getattr(part, "kwd_attrs", ())
        if any(isinstance(name, str) and name.startswith("__") and not name.endswith("__") for name in names):
            return True
    return False


def is_call_of(node: ast.AST, names: Set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def may_be_compiled(node: ast.stmt) -> bool:
    """Return True if the loop calls a function, and has no statement that ends every graph."""
    calls = any(isinstance(one, ast.Call) for one in ast.walk(node))
    return calls and obstacle(node) is None and not _leaves_another(getattr(node, "orelse", ()))


def _leaves_another(statements: Iterable[ast.stmt]) -> bool:
    """Return True if a ``break`` or ``continue`` belongs to a loop around these statements."""
    for node in statements:
        inside = node.orelse if isinstance(node, (*LOOPS, ast.AsyncFor)) else statements_of(node)
        if isinstance(node, (ast.Break, ast.Continue)):
            return True
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) and _leaves_another(inside):
            return True
    return False


def obstacle(node: ast.stmt) -> Optional[int]:
    """Return the first line of a loop that ends every graph, or None.

    A statement inside an ``if``, as in ``if verbose: print(step)``, only ends a graph whose trace reaches it.
    """
    return min(_obstacles(node, False), default=None)


def _obstacles(node: ast.AST, under_if: bool) -> Iterator[int]:
    functions, methods = (_FRAME_READERS, _LEARNING) if under_if else (_EAGER_FUNCTIONS, _EAGER_METHODS)
    method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods
    if isinstance(node, _REFUSED) or method or is_call_of(node, functions) or _depends_on_function(node):
        yield getattr(node, "lineno", 0) or node.target.lineno  # type: ignore[attr-defined]
    for name, value in ast.iter_fields(node):
        inside = under_if or (isinstance(node, (ast.If, ast.IfExp)) and name != "test")
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _obstacles(part, inside)


def _depends_on_function(node: ast.AST) -> bool:
    """Return True if a node has another effect in another function."""
    return (
        (isinstance(node, ast.Name) and node.id in _FRAME_READERS)
        or (isinstance(node, ast.ExceptHandler) and bool(node.name))  # the variable has no value after the handler
        or (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
        or (isinstance(node, ast.comprehension) and bool(node.is_async))
        or type(node).__name__ == "TypeAlias"
    )


def mangle(node: ast.AST, owner: str) -> None:
    """Mangle private attributes, with two leading underscores, as Python does in a class."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            part.attr = _mangled(part.attr, owner)


def _mangled(name: str, owner: str) -> str:
    stem = owner.lstrip("_")
    return f"_{stem}{name}" if stem and name.startswith("__") and not name.endswith("__") else name


def _walk(body: Iterable[ast.AST]) -> Iterable[ast.AST]:
    """Yield the nodes of a function, without the nodes inside inner functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            yield from _walk(ast.iter_child_nodes(node))


def names_of(body: Iterable[ast.AST]) -> Tuple[Set[str], Set[str]]:
    """Return the variables that statements read, also in functions and comprehensions, and the variables they set."""
    loads: Set[str] = set()
    stores: Set[str] = set()
    for node in body:
        if isinstance(node, ast.Name):
            (loads if isinstance(node.ctx, ast.Load) else stores).add(node.id)
        elif isinstance(node, (*FUNCTIONS, ast.Lambda)):
            inner, assigned = names_of(node.body if isinstance(node.body, list) else [node.body])
            parameters = [one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)]
            loads |= inner - assigned - set(parameters)
            outside = [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]
            loads |= names_of([*outside, *getattr(node, "decorator_list", ())])[0]
            if not isinstance(node, ast.Lambda):
                stores.add(node.name)
        elif isinstance(node, ast.ClassDef):
            loads |= names_of(ast.iter_child_nodes(node))[0]
            stores.add(node.name)
        elif isinstance(node, _COMPREHENSIONS):
            inner, assigned = names_of(ast.iter_child_nodes(node))
            loads |= names_of([node.generators[0].iter])[0]  # Python evaluates it outside of the comprehension's scope
            walrus = {one.target.id for one in ast.walk(node) if isinstance(one, ast.NamedExpr)}
            loads |= inner - (assigned - walrus)
            stores |= walrus
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            stores |= {(one.asname or one.name).split(".")[0] for one in node.names}
        else:
            if isinstance(node, ast.ExceptHandler) and node.name:
                stores.add(node.name)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                loads.add(node.target.id)
            for field in ("name", "rest"):  # patterns of match
                if type(node).__name__.startswith("Match") and isinstance(getattr(node, field, None), str):
                    stores.add(getattr(node, field))
            more = names_of(ast.iter_child_nodes(node))
            loads |= more[0]
            stores |= more[1]
    return loads, stores


def flow(statements: Iterable[ast.stmt]) -> Tuple[Set[str], Set[str]]:
    """Return the variables that may be read before they are set, and the variables that are always set."""
    exposed: Set[str] = set()
    sure: Set[str] = set()
    for statement in statements:
        reads, sets = _flow_of(statement)
        exposed |= reads - sure
        sure |= sets
    return exposed, sure


def _flow_of(node: ast.stmt) -> Tuple[Set[str], Set[str]]:
    loads, stores = names_of([node])
    if isinstance(node, ast.Assign):
        return names_of([node.value])[0] | {n for t in node.targets for n in names_of([t])[0]}, stores
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, *FUNCTIONS, ast.Import, ast.ImportFrom)):
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return set(), set()
        return loads, stores
    if isinstance(node, (ast.For, ast.AsyncFor)):
        targets = names_of([node.target])[1]
        inside, _ = flow(node.body)
        return names_of([node.iter, node.target])[0] | inside - targets | flow(node.orelse)[0], set()
    if isinstance(node, ast.While):
        return names_of([node.test])[0] | flow(node.body)[0] | flow(node.orelse)[0], set()
    if isinstance(node, ast.If):
        first, set_by_body = flow(node.body)
        second, set_by_else = flow(node.orelse)
        return names_of([node.test])[0] | first | second, set_by_body & set_by_else
    if isinstance(node, ast.With):
        read = names_of([item.context_expr for item in node.items])[0]
        bound = names_of([item.optional_vars for item in node.items if item.optional_vars is not None])[1]
        inside, sets = flow(node.body)
        if not all(_propagates_errors(item.context_expr) for item in node.items):
            sets = set()
        return read | inside - bound, sets | bound
    if isinstance(node, (ast.Expr, ast.Assert, ast.Raise, ast.Pass, ast.Break, ast.Continue)):
        return loads, set()
    return loads, set()


def _propagates_errors(context: ast.expr) -> bool:
    """Return True for a context manager of PyTorch. Others may suppress an error and skip the rest of the block."""
    while isinstance(context, (ast.Call, ast.Attribute)):
        context = context.func if isinstance(context, ast.Call) else context.value
    return isinstance(context, ast.Name) and context.id == "torch"


def loads_outside(function: Function, node: ast.stmt) -> Set[str]:
    """Return the variables that the function reads outside of ``node``."""
    loads: Set[str] = set()

    def visit(part: ast.AST) -> None:
        if part is node:
            return
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Store):
            loads.add(part.id)
        if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            loads.add(part.target.id)
        for child in ast.iter_child_nodes(part):
            visit(child)

    visit(function)
    return loads


def surely_bound(scope: Scope, node: ast.stmt) -> Set[str]:
    """Return the variables that always have a value when the loop begins."""

    def descend(statements: Sequence[ast.stmt], bound: Set[str]) -> Optional[Set[str]]:
        for statement in statements:
            if statement is node:
                return bound
            inner = bound
            if isinstance(statement, (ast.For, ast.AsyncFor)):
                inner = bound | names_of([statement.target])[1]
            if isinstance(statement, (ast.With, ast.AsyncWith)):
                named = [item.optional_vars for item in statement.items if item.optional_vars is not None]
                inner = bound | names_of(named)[1]
            blocks = [getattr(statement, name, None) for name in ("body", "orelse", "finalbody")]
            blocks += [handler.body for handler in getattr(statement, "handlers", ())]
            if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                for block in blocks:
                    if isinstance(block, list):
                        within = descend(block, inner)
                        if within is not None:
                            return within
            bound = bound | flow([statement])[1]
        return None

    return (descend(scope.node.body, scope.parameters) or scope.parameters) - scope.deleted
