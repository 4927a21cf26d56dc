"""Loops of a program as functions of their own: so they can be compiled where the code around them cannot.

A loop of a function becomes a function of the variables that it reads, which returns those that it sets; a loop of a
module, a function of its global variables. The program does what it did, line numbers and tracebacks included.
"""

import ast
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from snnipu.compiler import shown

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

PREFIX = "__snnipu_"
# Names that end with underscores are the same in a class.
LOOP, UNBOUND, REGISTER, KEPT, _OUT, _STEPS, _SHOWN = (
    f"{PREFIX}{name}" for name in ("loop_", "unbound__", "register__", "kept__", "out__", "steps__", "shown__")
)
# What follows the name of a loop that shows something in those of the loop that does not, of what shows it then, and of
# what returns the objects that are shown something, and the values that are read then.
COMPILED, AFTER, SHOWN_TO = "compiled__", "after__", "to__"

# A loop with one of these has its results on the way: no compiler takes it as one graph.
_LEARNING = {"backward", "zero_grad"}
_EAGER_METHODS = {*_LEARNING, "numpy", "tolist", "update", "write", "set_description"}
_LOOKING = {"locals", "vars", "eval", "exec", "super", "globals", "dir"}  # at the function that they are called in
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


class Loop(NamedTuple):
    """A loop that became a function.

    Attributes:
        name: the function's.
        host: name of the function, or ``<module>``, in which the loop stands.
        line: where it begins.
        nested: whether it stands in another loop of its function.
        shows: the objects that it shows something, as the program names them.
    """

    name: str
    host: str
    line: int
    nested: bool
    shows: Tuple[str, ...] = ()


def outline(tree: ast.Module, numbers: Iterable[int]) -> List[Loop]:
    """Take the loops out of a module, in place; the functions that they become are its first statements.

    Args:
        tree: the module.
        numbers: of the functions' names, each of which must be free in the module.
    """
    work = _Outliner(iter(numbers))
    tree.body = work.block(tree.body, None)
    start = 0
    for statement in tree.body:
        docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not docstring and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            break
        start += 1
    tree.body[start:start] = work.functions
    ast.fix_missing_locations(tree)
    return work.loops


class _Scope:
    """What is known of a function while its loops are taken out."""

    def __init__(self, node: Function, outer: Optional["_Scope"], owner: str) -> None:
        self.node = node
        self.owner = owner  # the class whose method it is: for names that begin with two underscores
        _, stores = names_of(node.body)
        arguments = node.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self.parameters = {one.arg for one in given if one is not None}
        declared = [one for one in _walk(node.body) if isinstance(one, (ast.Global, ast.Nonlocal))]
        self.foreign = {name for one in declared for name in one.names}
        self.locals = (self.parameters | stores) - self.foreign
        self.outer: Set[str] = set() if outer is None else outer.locals | outer.outer
        # What functions inside see of this one's variables, and may change.
        self.cells: Set[str] = set()
        self.changed: Set[str] = set() if outer is None else set(outer.changed)
        for one in ast.walk(node):
            if one is not node and isinstance(one, (*_FUNCTIONS, ast.Lambda)):
                changed = {n for part in ast.walk(one) if isinstance(part, ast.Nonlocal) for n in part.names}
                self.cells |= (names_of([one])[0] | changed) & self.locals
                self.changed |= changed
        self.looks = any(_is_call_of(one, {"locals", "vars", "eval", "exec", "dir"}) for one in ast.walk(node))


class _Outliner:
    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers
        self.functions: List[ast.stmt] = []
        self.loops: List[Loop] = []
        self._owner = ""
        self._depth = 0  # of loops in this function

    def block(self, statements: List[ast.stmt], scope: Optional[_Scope]) -> List[ast.stmt]:
        made: List[ast.stmt] = []
        for statement in statements:
            made.extend(self._statement(statement, scope))
        return made

    def _statement(self, node: ast.stmt, scope: Optional[_Scope]) -> List[ast.stmt]:
        if isinstance(node, _FUNCTIONS):
            inner = _Scope(node, scope, self._owner)
            # A generator's or coroutine's loops stay where they are.
            if not any(isinstance(one, (ast.Yield, ast.YieldFrom, ast.Await)) for one in _walk(node.body)):
                depth, self._depth = self._depth, 0
                node.body = self.block(node.body, inner)
                self._depth = depth
            return [node]
        if isinstance(node, ast.ClassDef):
            owner, self._owner = self._owner, node.name
            node.body = [one for part in node.body for one in self._in_class(part, scope)]
            self._owner = owner
            return [node]
        self._depth += isinstance(node, _LOOPS)
        for name in ("body", "orelse", "finalbody"):
            part = getattr(node, name, None)
            if isinstance(part, list):
                setattr(node, name, self.block(part, scope))
        self._depth -= isinstance(node, _LOOPS)
        for handler in getattr(node, "handlers", ()):
            handler.body = self.block(handler.body, scope)
        if isinstance(node, _LOOPS):
            parts = shown.apart(node, _SHOWN, KEPT, set() if scope is None else scope.locals | scope.outer)
            if _may_be_compiled(node if parts is None else parts.loop):
                made = self._of_module(node, parts) if scope is None else self._of_function(node, scope, parts)
                if made is not None:
                    return made
        return [node]

    def _in_class(self, node: ast.stmt, scope: Optional[_Scope]) -> List[ast.stmt]:
        return self._statement(node, scope) if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) else [node]

    def _add(
        self,
        node: ast.stmt,
        host: str,
        arguments: Sequence[str],
        before: List[ast.stmt],
        results: Sequence[str],
        parts: Optional[shown.Parts],
    ) -> ast.expr:
        """A function of the loop; returns its name as an expression.

        Args:
            before: statements in front of the loop.
            results: variables that it returns.
            parts: the loop that is compiled, and what it shows; None: it is the loop.
        """
        name = f"{LOOP}{next(self.numbers)}__"
        made = {name: [*before, node, *_returned(results)]}
        if parts is not None:
            first = _parsed(f"{_SHOWN} = []")
            made[f"{name}{COMPILED}"] = [*before, *first, parts.loop, *_returned([*results, _SHOWN])]
            made[f"{name}{AFTER}"] = parts.after
            late: List[ast.expr] = [ast.Name(one, ast.Load()) for one in parts.late]
            shown_to = [ast.Tuple(each, ast.Load()) for each in (parts.to, late)]
            made[f"{name}{SHOWN_TO}"] = [ast.Return(ast.Tuple(list(shown_to), ast.Load()))]
        for each, body in reversed(list(made.items())):
            given = [*arguments, *([_SHOWN] if each.endswith(AFTER) else [])]
            function = _parsed(f"def {each}({', '.join(given)}): pass")[0]
            assert isinstance(function, ast.FunctionDef)
            function.body, function.decorator_list = body, [ast.Name(REGISTER, ast.Load())] if each == name else []
            _relocate(function, node)
            self.functions.append(function)
        shows = () if parts is None else tuple(map(ast.unparse, parts.to))
        self.loops.append(Loop(name, host, node.lineno, self._depth > 0, shows))
        return ast.Name(name, ast.Load())

    def _of_module(self, node: ast.stmt, parts: Optional[shown.Parts]) -> Optional[List[ast.stmt]]:
        _, stores = names_of([node])
        _plain_assignments(node)
        before: List[ast.stmt] = [ast.Global(sorted(stores))] if stores else []
        called = ast.Expr(ast.Call(self._add(node, "<module>", (), before, (), parts), [], []))
        return [_relocate(called, node)]

    def _of_function(self, node: ast.stmt, scope: _Scope, parts: Optional[shown.Parts]) -> Optional[List[ast.stmt]]:
        loads, stores = names_of([node])
        known = scope.locals | scope.outer
        if scope.looks or stores & (scope.cells | scope.foreign) or (loads | stores) & scope.changed:
            return None
        if any(isinstance(one, (*_FUNCTIONS, ast.Lambda)) for one in ast.walk(node)):
            return None  # it may be called when the variables have changed
        exposed, _ = _flow([node])
        arguments = sorted((loads - stores) & known | stores & exposed)
        elsewhere = _loads_outside(scope.node, node) - {_OUT}
        results = sorted(stores & (set(arguments) | elsewhere))
        sure = _surely_bound(scope, node)
        if scope.owner and any(name.startswith("__") and not name.endswith("__") for name in loads | stores):
            return None  # Python has other names for them in a class
        every = [node, *([] if parts is None else [parts.loop, *parts.after, *parts.to])]
        if scope.owner:
            for one in every:
                _mangle(one, scope.owner)
        steps = _asked_of_tensors(node)
        for one in every[:2] if steps else ():
            assert isinstance(one, ast.For)
            one.iter = ast.copy_location(ast.Name(_STEPS, ast.Load()), one.iter)
        fresh = [name for name in results if name not in arguments]
        before = _parsed("".join(f"{name} = {UNBOUND}\n" for name in fresh))
        given = [*arguments, *([_STEPS] if steps else [])]
        called = self._add(node, scope.node.name, given, before, results, parts)
        given = [name if name in sure else f"locals().get({name!r}, {UNBOUND})" for name in arguments]
        given += [steps] if steps else []
        assert isinstance(called, ast.Name)
        lines = [f"{_OUT} = {called.id}({', '.join(given)})"]
        for place, name in enumerate(results):
            set_it = f"{name} = {_OUT}[{place}]"
            bound = name in arguments and name in sure
            lines.append(set_it if bound else f"if {_OUT}[{place}] is not {UNBOUND}: {set_it}")
        lines.append(f"{_OUT} = None")
        return [_relocate(one, node) for one in _parsed("\n".join(lines))]


def _asked_of_tensors(node: ast.stmt) -> str:
    """The steps of a loop whose number may be a tensor's, ``range(int(lengths.max()))``: computed before the loop, it
    is a number in its function. Empty where it is not of this kind."""
    if not (isinstance(node, ast.For) and _is_call_of(node.iter, {"range"})):
        return ""
    calls = [one for one in ast.walk(node.iter) if isinstance(one, ast.Call) and one is not node.iter]
    of_sizes = [_is_call_of(one, {"len"}) or getattr(one.func, "attr", "") == "size" for one in calls]
    return "" if all(of_sizes) else ast.unparse(node.iter)


def _relocate(made: Any, node: ast.stmt) -> Any:
    """New nodes stand where the loop does."""
    for one in ast.walk(made):
        if "lineno" in one._attributes and not hasattr(one, "lineno"):
            ast.copy_location(one, node)
    return made


def _parsed(source: str) -> List[ast.stmt]:
    """New statements, which stand nowhere yet."""
    statements = ast.parse(source).body
    for statement in statements:
        for one in ast.walk(statement):
            for name in one._attributes:
                one.__dict__.pop(name, None)
    return statements


def _returned(names: Sequence[str]) -> List[ast.stmt]:
    """The return statement that hands on the variables."""
    if not names:
        return []
    values: List[ast.expr] = [ast.Name(name, ast.Load()) for name in names]
    return [ast.Return(ast.Tuple(values, ast.Load()))]


def _is_call_of(node: ast.AST, names: Set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _may_be_compiled(node: ast.stmt) -> bool:
    """Whether the loop calls something, and nothing that ends every graph."""
    return any(isinstance(one, ast.Call) for one in ast.walk(node)) and obstacle(node) is None


def obstacle(node: ast.stmt) -> Optional[int]:
    """The first line of a loop that ends every graph; None: there is none.

    What stands under an ``if`` ends those alone whose trace comes there: ``if verbose: print(step)``.
    """
    return min(_obstacles(node, False), default=None)


def _obstacles(node: ast.AST, under_if: bool) -> Iterator[int]:
    if isinstance(node, (ast.stmt, ast.expr)):
        functions, methods = (_LOOKING, _LEARNING) if under_if else (_EAGER_FUNCTIONS, _EAGER_METHODS)
        method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods
        if isinstance(node, _REFUSED) or method or _is_call_of(node, functions):
            yield node.lineno
    for name, value in ast.iter_fields(node):
        inside = under_if or (isinstance(node, (ast.If, ast.IfExp)) and name != "test")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST):
                yield from _obstacles(one, inside)


def _plain_assignments(node: ast.AST) -> None:
    """A global variable has no annotation."""

    class Plain(ast.NodeTransformer):
        def visit_AnnAssign(self, one: ast.AnnAssign) -> Any:
            if one.value is None:
                return ast.copy_location(ast.Pass(), one)
            return ast.copy_location(ast.Assign([one.target], one.value), one)

        def visit_FunctionDef(self, one: ast.FunctionDef) -> Any:
            return one

    Plain().visit(node)


def _mangle(node: ast.AST, owner: str) -> None:
    """Names that begin with two underscores, as Python has them in a class."""
    stem = owner.lstrip("_")
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and stem and one.attr.startswith("__") and not one.attr.endswith("__"):
            one.attr = f"_{stem}{one.attr}"


def _walk(body: Iterable[ast.AST]) -> Iterable[ast.AST]:
    """The nodes of a function, without those of functions and classes in it."""
    for node in body:
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
            yield from _walk(ast.iter_child_nodes(node))


def names_of(body: Iterable[ast.AST]) -> Tuple[Set[str], Set[str]]:
    """The variables that statements read, functions and comprehensions in them included, and those that they set."""
    loads: Set[str] = set()
    stores: Set[str] = set()
    for node in body:
        if isinstance(node, ast.Name):
            (loads if isinstance(node.ctx, ast.Load) else stores).add(node.id)
        elif isinstance(node, (*_FUNCTIONS, ast.Lambda)):
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


def _flow(statements: Iterable[ast.stmt]) -> Tuple[Set[str], Set[str]]:
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
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, *_FUNCTIONS, ast.Import, ast.ImportFrom)):
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return set(), set()
        return loads, stores
    if isinstance(node, (ast.For, ast.AsyncFor)):
        targets = names_of([node.target])[1]
        inside, _ = _flow(node.body)
        return names_of([node.iter, node.target])[0] | inside - targets | _flow(node.orelse)[0], set()
    if isinstance(node, ast.While):
        return names_of([node.test])[0] | _flow(node.body)[0] | _flow(node.orelse)[0], set()
    if isinstance(node, ast.If):
        first, one = _flow(node.body)
        second, other = _flow(node.orelse)
        return names_of([node.test])[0] | first | second, one & other
    if isinstance(node, ast.With):
        read = names_of([item.context_expr for item in node.items])[0]
        bound = names_of([item.optional_vars for item in node.items if item.optional_vars is not None])[1]
        inside, sets = _flow(node.body)
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


def _loads_outside(function: Function, node: ast.stmt) -> Set[str]:
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


def _surely_bound(scope: _Scope, node: ast.stmt) -> Set[str]:
    """The variables that have a value whenever the loop begins."""
    found = scope.parameters | scope.outer

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
            if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
                for block in blocks:
                    if isinstance(block, list):
                        within = descend(block, inner)
                        if within is not None:
                            return within
            bound = bound | _flow([statement])[1]
        return None

    return descend(scope.node.body, found) or found


def code_of(code: Any) -> Dict[Tuple[str, int], Any]:
    """The functions' code in a module's code, by name and first line."""
    found: Dict[Tuple[str, int], Any] = {}
    waiting = [code]
    while waiting:
        one = waiting.pop()
        found[one.co_name, one.co_firstlineno] = one
        waiting.extend(constant for constant in one.co_consts if hasattr(constant, "co_code"))
    return found
