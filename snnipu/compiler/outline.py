"""Loops in the syntax tree of a program: where they stand, and the variables that they read and set."""

import ast
from typing import Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# A loop with one of these has its results on the way: no compiler takes it as one graph.
_LEARNING = {"backward", "zero_grad"}
_EAGER_METHODS = {*_LEARNING, "numpy", "tolist", "update", "write", "set_description"}
# These look at the function that they are called in.
_LOOKING = {"locals", "vars", "eval", "exec", "super", "globals", "dir", "__class__"}
_EAGER_FUNCTIONS = {*_LOOKING, "print", "input", "open"}
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
# Functions that are through with a generator when they return.
_CONSUMERS = {"all", "any", "dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple"}


def first_line(function: Function) -> int:
    """The first line, as the function's code has it."""
    return min(one.lineno for one in (function, *function.decorator_list))


def blocks(node: ast.AST) -> Iterator[List[ast.stmt]]:
    """The blocks of a statement."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def statements_of(node: ast.AST) -> List[ast.stmt]:
    return [statement for block in blocks(node) for statement in block]


class Scope:
    """What is known of a function."""

    def __init__(self, node: Function, outer: Optional["Scope"], owner: str) -> None:
        self.node = node
        self.owner = owner  # the class whose method it is: for names that begin with two underscores
        _, stores = names_of(node.body)
        arguments = node.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self.parameters = {one.arg for one in given if one is not None}
        inside = list(_walk(node.body))
        declared = [one for one in inside if isinstance(one, (ast.Global, ast.Nonlocal))]
        self.foreign = {name for one in declared for name in one.names}
        self.locals = (self.parameters | stores) - self.foreign
        self.outer: Set[str] = set() if outer is None else outer.locals | outer.outer
        # Those that may lose their value.
        self.deleted = {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Del)}
        self.deleted |= {str(one.name) for one in inside if isinstance(one, ast.ExceptHandler)}
        # What functions inside see of this one's variables, and may change.
        self.cells: Set[str] = set()
        self.changed: Set[str] = set() if outer is None else set(outer.changed)
        for one in deferred(node.body):
            changed = {n for part in ast.walk(one) if isinstance(part, ast.Nonlocal) for n in part.names}
            self.cells |= (names_of([one])[0] | changed) & self.locals
            self.changed |= changed
        self.looks = any(is_call_of(one, {"locals", "vars", "eval", "exec", "dir"}) for one in ast.walk(node))
        self.looks = self.looks or "locals" in self.locals | self.outer
        self.is_plain = isinstance(node, ast.FunctionDef) and not any(
            isinstance(one, (ast.Yield, ast.YieldFrom, ast.Await)) for one in inside
        )


def deferred(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The functions and generators that may run when what stands around them has run; not those in them."""
    for node in body:
        parts = list(ast.iter_child_nodes(node))
        through = parts if isinstance(node, ast.Starred) else []
        if isinstance(node, ast.Call) and (is_call_of(node, _CONSUMERS) or getattr(node.func, "attr", "") == "join"):
            through = list(node.args)
        for one in through:
            if isinstance(one, ast.GeneratorExp):
                parts = [*(part for part in parts if part is not one), *ast.iter_child_nodes(one)]
        if isinstance(node, (*FUNCTIONS, ast.Lambda, ast.GeneratorExp)):
            yield node
        else:
            yield from deferred(parts)


def has_private_names(node: ast.AST) -> bool:
    """Whether names that begin with two underscores are more than attributes."""
    for one in ast.walk(node):
        names = [getattr(one, field, None) for field in ("id", "arg", "name", "asname", "rest")]
        names += getattr(one, "kwd_attrs", ())
        if any(isinstance(name, str) and name.startswith("__") and not name.endswith("__") for name in names):
            return True
    return False


def is_call_of(node: ast.AST, names: Set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def may_be_compiled(node: ast.stmt) -> bool:
    """Whether the loop calls something, and nothing that ends every graph."""
    calls = any(isinstance(one, ast.Call) for one in ast.walk(node))
    return calls and obstacle(node) is None and not _leaves_another(getattr(node, "orelse", ()))


def _leaves_another(statements: Iterable[ast.stmt]) -> bool:
    """Whether a ``break`` or ``continue`` is one of a loop around these statements."""
    for node in statements:
        inside = node.orelse if isinstance(node, (*LOOPS, ast.AsyncFor)) else statements_of(node)
        if isinstance(node, (ast.Break, ast.Continue)):
            return True
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) and _leaves_another(inside):
            return True
    return False


def obstacle(node: ast.stmt) -> Optional[int]:
    """The first line of a loop that ends every graph; None: there is none.

    What stands under an ``if`` ends those alone whose trace comes there: ``if verbose: print(step)``.
    """
    return min(_obstacles(node, False), default=None)


def _obstacles(node: ast.AST, under_if: bool) -> Iterator[int]:
    functions, methods = (_LOOKING, _LEARNING) if under_if else (_EAGER_FUNCTIONS, _EAGER_METHODS)
    method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods
    if isinstance(node, _REFUSED) or method or is_call_of(node, functions) or _is_of_its_place(node):
        yield getattr(node, "lineno", 0) or node.target.lineno  # type: ignore[attr-defined]
    for name, value in ast.iter_fields(node):
        inside = under_if or (isinstance(node, (ast.If, ast.IfExp)) and name != "test")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST):
                yield from _obstacles(one, inside)


def _is_of_its_place(node: ast.AST) -> bool:
    """Whether it would do something else in another function."""
    return (
        (isinstance(node, ast.Name) and node.id in _LOOKING)
        or (isinstance(node, ast.ExceptHandler) and bool(node.name))  # a variable that has no value behind it
        or (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
        or (isinstance(node, ast.comprehension) and bool(node.is_async))
        or type(node).__name__ == "TypeAlias"
    )


def mangle(node: ast.AST, owner: str) -> None:
    """Names that begin with two underscores, as Python has them in a class."""
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute):
            one.attr = _mangled(one.attr, owner)


def _mangled(name: str, owner: str) -> str:
    stem = owner.lstrip("_")
    return f"_{stem}{name}" if stem and name.startswith("__") and not name.endswith("__") else name


def _walk(body: Iterable[ast.AST]) -> Iterable[ast.AST]:
    """The nodes of a function, without those of functions and classes in it."""
    for node in body:
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            yield from _walk(ast.iter_child_nodes(node))


def names_of(body: Iterable[ast.AST]) -> Tuple[Set[str], Set[str]]:
    """The variables that statements read, functions and comprehensions in them included, and those that they set."""
    loads: Set[str] = set()
    stores: Set[str] = set()
    for node in body:
        if isinstance(node, ast.Name):
            (loads if isinstance(node.ctx, ast.Load) else stores).add(node.id)
        elif isinstance(node, (*FUNCTIONS, ast.Lambda)):
            inner, own = names_of(node.body if isinstance(node.body, list) else [node.body])
            given = [one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)]
            loads |= inner - own - set(given)
            outside = [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]
            loads |= names_of([*outside, *getattr(node, "decorator_list", ())])[0]
            if not isinstance(node, ast.Lambda):
                stores.add(node.name)
        elif isinstance(node, ast.ClassDef):
            loads |= names_of(ast.iter_child_nodes(node))[0]
            stores.add(node.name)
        elif isinstance(node, _COMPREHENSIONS):
            inner, own = names_of(ast.iter_child_nodes(node))
            loads |= names_of([node.generators[0].iter])[0]  # which is no part of its scope
            walrus = {one.target.id for one in ast.walk(node) if isinstance(one, ast.NamedExpr)}
            loads |= inner - (own - walrus)
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
    """The variables that are read before they are surely set, and those that surely are."""
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
        first, one = flow(node.body)
        second, other = flow(node.orelse)
        return names_of([node.test])[0] | first | second, one & other
    if isinstance(node, ast.With):
        read = names_of([item.context_expr for item in node.items])[0]
        bound = names_of([item.optional_vars for item in node.items if item.optional_vars is not None])[1]
        inside, sets = flow(node.body)
        if not all(_lets_errors_through(item.context_expr) for item in node.items):
            sets = set()
        return read | inside - bound, sets | bound
    if isinstance(node, (ast.Expr, ast.Assert, ast.Raise, ast.Pass, ast.Break, ast.Continue)):
        return loads, set()
    return loads, set()


def _lets_errors_through(context: ast.expr) -> bool:
    """Whether a context manager of PyTorch's: no statement of its block is left out in silence."""
    while isinstance(context, (ast.Call, ast.Attribute)):
        context = context.func if isinstance(context, ast.Call) else context.value
    return isinstance(context, ast.Name) and context.id == "torch"


def loads_outside(function: Function, node: ast.stmt) -> Set[str]:
    """The variables that the rest of the function reads."""
    found: Set[str] = set()

    def visit(one: ast.AST) -> None:
        if one is node:
            return
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Store):
            found.add(one.id)
        if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name):
            found.add(one.target.id)
        for child in ast.iter_child_nodes(one):
            visit(child)

    visit(function)
    return found


def surely_bound(scope: Scope, node: ast.stmt) -> Set[str]:
    """The variables that have a value whenever the loop begins."""
    found = scope.parameters

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

    return (descend(scope.node.body, found) or found) - scope.deleted
