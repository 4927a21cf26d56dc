"""Loops of a program as functions of their own: so they can be compiled where the code around them cannot.

A loop of a function becomes a function of the variables that it reads, which returns those that it sets; a loop of a
module, a function of its global variables. The loop itself stays where it is, in the other branch::

    for __snnipu_out__ in __snnipu_loop_7__ and __snnipu_loop_7__(x, mem) or ():
        mem = __snnipu_out__[0]
        break
    else:
        for step in range(5): ...

A function that may be compiled as a whole begins with such a branch. The names are False until a loop over time is
found there. What they call returns a tuple of the result, or nothing where the program's own code is to run.
"""

import ast
import copy
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from snnipu.compiler import shown

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

PREFIX = "__snnipu_"
# Names that end with underscores are the same in a class.
LOOP, CALL, UNBOUND, KEPT, _OUT, _STEPS, _SHOWN = (
    f"{PREFIX}{name}" for name in ("loop_", "call_", "unbound__", "kept__", "out__", "steps__", "shown__")
)
# What follows the name of a loop that shows something in those of the loop that does not, of what shows it then, and of
# what returns the objects that are shown something, and the values that are read then.
COMPILED, AFTER, SHOWN_TO = "compiled__", "after__", "to__"

# A loop with one of these has its results on the way: no compiler takes it as one graph.
_LEARNING = {"backward", "zero_grad"}
_EAGER_METHODS = {*_LEARNING, "numpy", "tolist", "update", "write", "set_description"}
# These look at the function that they are called in.
_LOOKING = {"locals", "vars", "eval", "exec", "super", "globals", "dir", "__class__"}
_EAGER_FUNCTIONS = {*_LOOKING, "print", "input", "open"}
# A function that calls one of these is no graph.
_EAGER_NAMES = {"backward", "item", "numpy", "tolist", "zero_grad", "print"}
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
# Of the number of steps: to compute them once more gives the same number.
_PURE = {"abs", "int", "len", "max", "min", "round", "item", "size", "sum", "amax", "amin"}


class Loop(NamedTuple):
    """A loop that became a function.

    Attributes:
        name: the function's.
        first, last: its lines.
        nested: whether it stands in another loop of its function.
        shows: the objects that it shows something, as the program names them.
        functions: its function, and those of what it shows.
    """

    name: str
    first: int
    last: int
    nested: bool
    shows: Tuple[str, ...]
    functions: List[ast.stmt]


class Host(NamedTuple):
    """A function, or a module, whose loops became functions.

    Attributes:
        name: the function's, or ``<module>``.
        original: its code before; None of a module.
        call: what is called in its place; empty: it is not compiled as a whole.
        loops: those that became functions.
        spans: first and last line of all loops.
    """

    name: str
    original: Any
    call: str
    loops: List[Loop]
    spans: List[Tuple[int, int]]

    @property
    def names(self) -> List[str]:
        return [*([self.call] if self.call else []), *(loop.name for loop in self.loops)]


def outline(
    tree: ast.Module, numbers: Iterable[int], chosen: Callable[[Function], Any], of_module: bool = False
) -> List[Host]:
    """Put branches beside the loops of a module's functions, in place.

    Args:
        tree: the module.
        numbers: of the names, each of which must be free in the module.
        chosen: returns the code of a function whose loops are wanted, None for another one.
        of_module: whether loops outside of functions are wanted, too.
    """
    work = _Outliner(iter(numbers), chosen)
    host = Host("<module>", None, "", [], [])
    tree.body = work.block(tree.body, None, host if of_module else None)
    ast.fix_missing_locations(tree)
    return [one for one in (host, *work.hosts) if one.names]


def _has_text(function: Any) -> bool:
    return ast.get_docstring(function, clean=False) is not None


def first_line(function: Function) -> int:
    """The first line, as the function's code has it."""
    return min(one.lineno for one in (function, *function.decorator_list))


def has_nested_loops(function: Function) -> bool:
    """Whether a loop of a function stands in another one."""
    loops = [one for one in _walk(function.body) if isinstance(one, _LOOPS)]
    return any(isinstance(one, _LOOPS) for loop in loops for one in _walk(_statements(loop)))


def _blocks(node: ast.AST) -> Iterator[List[ast.stmt]]:
    """The blocks of a statement."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _statements(node: ast.AST) -> List[ast.stmt]:
    return [statement for block in _blocks(node) for statement in block]


class _Scope:
    """What is known of a function."""

    def __init__(self, node: Function, outer: Optional["_Scope"], owner: str) -> None:
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
        for one in _deferred(node.body):
            changed = {n for part in ast.walk(one) if isinstance(part, ast.Nonlocal) for n in part.names}
            self.cells |= (names_of([one])[0] | changed) & self.locals
            self.changed |= changed
        self.looks = any(_is_call_of(one, {"locals", "vars", "eval", "exec", "dir"}) for one in ast.walk(node))
        self.looks = self.looks or "locals" in self.locals | self.outer
        self.is_plain = isinstance(node, ast.FunctionDef) and not any(
            isinstance(one, (ast.Yield, ast.YieldFrom, ast.Await)) for one in inside
        )


class _Outliner:
    def __init__(self, numbers: Iterator[int], chosen: Callable[[Function], Any]) -> None:
        self.hosts: List[Host] = []
        self._numbers, self._chosen = numbers, chosen
        self._owner = ""

    def block(
        self, statements: List[ast.stmt], scope: Optional[_Scope], host: Optional[Host], depth: int = 0
    ) -> List[ast.stmt]:
        """The statements, with branches beside the loops of ``host``; ``depth``: of loops in this function."""
        return [self._statement(node, scope, host, depth) for node in statements]

    def _statement(self, node: ast.stmt, scope: Optional[_Scope], host: Optional[Host], depth: int) -> ast.stmt:
        if isinstance(node, _FUNCTIONS):
            inner = _Scope(node, scope, self._owner)
            own = self._begun(node, inner)
            node.body = self.block(node.body, inner, own)
            if own is not None and own.call:
                node.body.insert(_has_text(node), self._beginning(node, inner, own))
            return node
        if isinstance(node, ast.ClassDef):
            owner, self._owner = self._owner, node.name
            node.body = self.block(node.body, scope, None)
            self._owner = owner
            return node
        plain = copy.deepcopy(node) if host is not None and isinstance(node, _LOOPS) else None
        for block in _blocks(node):
            block[:] = self.block(block, scope, host, depth + isinstance(node, _LOOPS))
        if plain is None or host is None:
            return node
        span = node.lineno, node.end_lineno or node.lineno
        host.spans.append(span)
        parts = shown.apart(plain, _SHOWN, KEPT, set() if scope is None else scope.locals | scope.outer)
        made = None
        if _may_be_compiled(plain if parts is None else parts.loop):
            made = self._of_module(plain, parts) if scope is None else self._of_function(node, plain, scope, parts)
        if made is None:
            return node
        name, functions, branch = made
        shows = () if parts is None else tuple(map(ast.unparse, parts.to))
        host.loops.append(Loop(name, *span, depth > 0, shows, [_relocate(one, node) for one in functions]))
        branch.orelse = [node]
        return _relocate(branch, node)  # type: ignore[no-any-return]

    def _begun(self, node: Function, scope: _Scope) -> Optional[Host]:
        """The host of a function whose loops are wanted; None for another one."""
        code = self._chosen(node) if scope.is_plain else None
        if code is None:
            return None
        used = {one.id for one in _walk(node.body) if isinstance(one, ast.Name)} - scope.locals
        used |= {one.attr for one in _walk(node.body) if isinstance(one, ast.Attribute)}
        empty = len(node.body) == _has_text(node)
        call = "" if empty or used & _EAGER_NAMES else f"{CALL}{next(self._numbers)}__"
        self.hosts.append(Host(node.name, code, call, [], []))
        return self.hosts[-1]

    def _beginning(self, node: Function, scope: _Scope, host: Host) -> ast.stmt:
        """The branch with which a function begins that may be compiled as a whole."""
        free, args = host.original.co_freevars, node.args
        given = [f"lambda: ({', '.join(free)},)" if free else "None"]
        given += [one.arg for one in (*args.posonlyargs, *args.args)]
        given += [f"*{args.vararg.arg}"] if args.vararg else []
        given += [f"{_mangled(one.arg, scope.owner)}={one.arg}" for one in args.kwonlyargs]
        given += [f"**{args.kwarg.arg}"] if args.kwarg else []
        (begins,) = _parsed(f"{_branch(host.call, given)}: return {_OUT}")
        return _relocate(begins, node.body[_has_text(node)])  # type: ignore[no-any-return]

    def _functions(
        self,
        loop: ast.stmt,
        arguments: Sequence[str],
        before: List[ast.stmt],
        results: Sequence[str],
        parts: Optional[shown.Parts],
    ) -> Tuple[str, List[ast.stmt]]:
        """The functions of a loop, and their name.

        Args:
            before: statements in front of the loop.
            results: variables that it returns.
            parts: the loop that is compiled, and what it shows; None: it is the loop.
        """
        name = f"{LOOP}{next(self._numbers)}__"
        made = {name: [*before, loop, _returned(results)]}
        if parts is not None:
            first = _parsed(f"{_SHOWN} = []")
            made[f"{name}{COMPILED}"] = [*before, *first, parts.loop, _returned([*results, _SHOWN])]
            made[f"{name}{AFTER}"] = parts.after
            late: List[ast.expr] = [ast.Name(one, ast.Load()) for one in parts.late]
            shown_to = [ast.Tuple(each, ast.Load()) for each in (parts.to, late)]
            made[f"{name}{SHOWN_TO}"] = [ast.Return(ast.Tuple(list(shown_to), ast.Load()))]
        functions: List[ast.stmt] = []
        for each, body in made.items():
            given = [*arguments, *([_SHOWN] if each.endswith(AFTER) else [])]
            (function,) = _parsed(f"def {each}({', '.join(given)}): pass")
            function.body = body  # type: ignore[attr-defined]
            functions.append(function)
        return name, functions

    def _of_module(self, loop: ast.stmt, parts: Optional[shown.Parts]) -> Any:
        if any(isinstance(one, ast.AnnAssign) for one in ast.walk(loop)):
            return None  # a global variable has no annotation in a function
        _, stores = names_of([loop])
        before: List[ast.stmt] = [ast.Global(sorted(stores))] if stores else []
        name, functions = self._functions(loop, (), before, (), parts)
        return name, functions, _parsed(f"if {name} and {name}(): pass")[0]

    def _of_function(self, node: ast.stmt, loop: ast.stmt, scope: _Scope, parts: Optional[shown.Parts]) -> Any:
        loads, stores = names_of([loop])
        known = scope.locals | scope.outer
        if scope.looks or stores & (scope.cells | scope.foreign) or (loads | stores) & scope.changed:
            return None
        if next(_deferred([loop]), None) is not None:
            return None  # it may be called when the variables have changed
        if scope.owner and _has_private_names(loop):
            return None  # Python has other names for them in a class
        exposed, _ = _flow([loop])
        arguments = sorted((loads - stores) & known | stores & exposed)
        elsewhere = _loads_outside(scope.node, node)
        results = sorted(stores & (set(arguments) | elsewhere))
        sure = _surely_bound(scope, node)
        every = [loop, *([] if parts is None else [parts.loop, *parts.after, *parts.to])]
        if scope.owner:
            for one in every:
                _mangle(one, scope.owner)
        steps = _asked_of_tensors(loop)
        for one in every[:2] if steps else ():
            assert isinstance(one, ast.For)
            one.iter = ast.copy_location(ast.Name(_STEPS, ast.Load()), one.iter)
        fresh = [name for name in results if name not in arguments]
        before = _parsed("".join(f"{name} = {UNBOUND}\n" for name in fresh))
        name, functions = self._functions(loop, [*arguments, *([_STEPS] if steps else [])], before, results, parts)
        given = [each if each in sure else f"locals().get({each!r}, {name}.unbound)" for each in arguments]
        lines = [f"{_branch(name, [*given, *([steps] if steps else [])])}:"]
        for place, result in enumerate(results):
            bound = result in arguments and result in sure
            when = "" if bound else f"if {_OUT}[{place}] is not {name}.unbound: "
            lines.append(f" {when}{result} = {_OUT}[{place}]")
        return name, functions, _parsed("\n".join([*lines, f" del {_OUT}", " break"]))[0]


def _branch(name: str, given: Iterable[str]) -> str:
    return f"for {_OUT} in {name} and {name}({', '.join(given)}) or ()"


def _deferred(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The functions and generators that may run when what stands around them has run; not those in them."""
    for node in body:
        parts = list(ast.iter_child_nodes(node))
        through = parts if isinstance(node, ast.Starred) else []
        if isinstance(node, ast.Call) and (_is_call_of(node, _CONSUMERS) or getattr(node.func, "attr", "") == "join"):
            through = list(node.args)
        for one in through:
            if isinstance(one, ast.GeneratorExp):
                parts = [*(part for part in parts if part is not one), *ast.iter_child_nodes(one)]
        if isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.GeneratorExp)):
            yield node
        else:
            yield from _deferred(parts)


def _has_private_names(node: ast.AST) -> bool:
    """Whether names that begin with two underscores are more than attributes."""
    for one in ast.walk(node):
        names = [getattr(one, field, None) for field in ("id", "arg", "name", "asname", "rest")]
        names += getattr(one, "kwd_attrs", ())
        if any(isinstance(name, str) and name.startswith("__") and not name.endswith("__") for name in names):
            return True
    return False


def _asked_of_tensors(node: ast.stmt) -> str:
    """The steps of a loop whose number may be a tensor's, ``range(int(lengths.max()))``: computed before the loop, it
    is a number in its function. Empty where it is not of this kind."""
    if not (isinstance(node, ast.For) and _is_call_of(node.iter, {"range"})):
        return ""
    calls = [one for one in ast.walk(node.iter) if isinstance(one, ast.Call) and one is not node.iter]
    names = [getattr(one.func, "id", "") or getattr(one.func, "attr", "") for one in calls]
    others = [name for name in names if name not in ("len", "size")]
    return ast.unparse(node.iter) if others and _PURE.issuperset(names) else ""


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


def _returned(names: Sequence[str]) -> ast.stmt:
    """The return statement that hands on the variables."""
    values: List[ast.expr] = [ast.Name(name, ast.Load()) for name in names]
    return ast.Return(ast.Tuple(values, ast.Load()))


def _is_call_of(node: ast.AST, names: Set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _may_be_compiled(node: ast.stmt) -> bool:
    """Whether the loop calls something, and nothing that ends every graph."""
    calls = any(isinstance(one, ast.Call) for one in ast.walk(node))
    return calls and obstacle(node) is None and not _leaves_another(getattr(node, "orelse", ()))


def _leaves_another(statements: Iterable[ast.stmt]) -> bool:
    """Whether a ``break`` or ``continue`` is one of a loop around these statements."""
    for node in statements:
        inside = node.orelse if isinstance(node, (*_LOOPS, ast.AsyncFor)) else _statements(node)
        if isinstance(node, (ast.Break, ast.Continue)):
            return True
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and _leaves_another(inside):
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
    if isinstance(node, _REFUSED) or method or _is_call_of(node, functions) or _is_of_its_place(node):
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


def _mangle(node: ast.AST, owner: str) -> None:
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
            if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
                for block in blocks:
                    if isinstance(block, list):
                        within = descend(block, inner)
                        if within is not None:
                            return within
            bound = bound | _flow([statement])[1]
        return None

    return (descend(scope.node.body, found) or found) - scope.deleted
