"""Search for loops in a program's modules, its script and the cells of a notebook.

:func:`snnipu.auto` puts a branch in front of each loop that calls something (:mod:`snnipu.compiler.bodies`): in the
functions of the program's loaded modules and of modules that are imported later, in the cells of a notebook that run
later, and, with ``python -m snnipu run --compile``, in the script itself. :func:`snnipu.compile` puts branches into the
functions that a network or a function can call; they only take effect in calls of the compiled object. The first run of
a loop shows if it is a loop over time (:class:`snnipu.compiler.loop.Loop`).
"""

import ast
import copy
import functools
import importlib.abc
import itertools
import logging
import os
import sys
import threading
import types
import weakref
from collections import Counter
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import torch

from snnipu.compiler import backend, bodies, calls, deferred_output
from snnipu.compiler.items import Called
from snnipu.compiler.loop import FEWEST, Loop
from snnipu.compiler.reasons import PACKAGES
from snnipu.compiler.report import report_of
from snnipu.compiler.sources import Source, is_others
from snnipu.compiler.trace import at, stack

_LOG = logging.getLogger("snnipu.compiler")
_numbers = itertools.count(1)
# The search for functions that are defined later ends after this number of calls of neurons.
QUIET = 2000


class Unbound:
    """The value of an unbound variable. TorchDynamo makes no graph of an operation on it."""

    def __bool__(self) -> bool:
        raise UnboundLocalError("a variable is read before it has a value")


UNBOUND = Unbound()


class _RunningCalls(threading.local):
    """The number of calls of compiled objects that run in this thread."""

    depth = 0


class Discovery:
    """The loops of a program; ``str`` gives a table of how they run.

    Attributes:
        loops: the loops with a branch.
        searches: True after :func:`snnipu.auto` until :meth:`stop`: all loops of the program may run compiled.
        calls: the number of running calls of compiled objects, during which loops may run compiled, too.
        stops: the number of calls of :meth:`stop`.
    """

    def __init__(self) -> None:
        self.loops: List[Loop] = []
        self.searches = False
        self.calls = _RunningCalls()
        self.stops = 0
        self._sources: Dict[str, Optional[Source]] = {}
        self._spaces: Dict[str, Any] = {}  # the global variables of each file's functions
        self._changed: List[Tuple[Any, Any]] = []
        self._finder = _Finder(self)
        self._size, self._calls = 0, 0
        self._of_script: Counter[str] = Counter()

    def __str__(self) -> str:
        lines: List[str] = []
        for loop in self.loops:
            lines += loop.text_lines()
            distribution = loop.distribution
            if distribution is not None:
                lines += [f"    {line}" for line in report_of(loop.label, distribution, loop.steps).notes() if line]
        return "\n".join(lines) or "no loop over time was found yet"

    def is_on(self) -> bool:
        """Return True if loops may run compiled in this thread."""
        return self.searches or self.calls.depth > 0

    def start(self) -> None:
        """Search for loops in all of the program."""
        backend.enable(self)
        if not self.searches:
            self.searches = True
            sys.meta_path.insert(0, self._finder)
            calls.listen(self._look_again)
        self.adopt_all()

    def stop(self) -> None:
        """End the search, and restore the code of all functions. A call of a compiled object changes it again."""
        self.searches = False
        self.stops += 1
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        calls.unlisten(self._look_again)
        for reference, code in reversed(self._changed):
            function = reference()
            if function is not None:
                function.__code__ = code
        self._changed.clear()
        for loop in self.loops:
            loop.stopped = True
        self._sources.clear()
        backend.disable(self)

    def _look_again(self) -> None:
        """Search again if the script has defined functions since the last search; called at each call of a neuron."""
        frame: Any = sys._getframe()
        while frame is not None and frame.f_code.co_filename.startswith(PACKAGES):
            frame = frame.f_back
        if frame is not None and frame.f_code.co_name == "<module>":
            self._warn_of_script(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        main = sys.modules.get("__main__")
        size = 0 if main is None else len(vars(main))
        self._calls += 1
        if size != self._size:
            self._size = size
            self.adopt_all()
        if self._calls > QUIET:
            calls.unlisten(self._look_again)

    def _warn_of_script(self, place: str) -> None:
        """Log once that a line at the top level of the script, which runs already, cannot be compiled."""
        self._of_script[place] += 1
        if self._of_script[place] == FEWEST:
            what = "the loop is at the top level of a script that calls snn.auto() itself"
            _LOG.warning("%s runs in Python: %s; `python -m snnipu run --compile` compiles it", place, what)

    # ---- programs

    def outlined(self, tree: ast.Module, filename: str, namespace: Dict[str, Any]) -> ast.Module:
        """Return a script or cell with branches in front of its loops, whose names are added to ``namespace``."""
        try:
            source = Source(copy.deepcopy(tree), filename)
            hosts = source.take_out(_numbers, of_module=True)
        except (SyntaxError, RecursionError):  # a cell that awaits something, say
            return tree
        self._sources[filename] = source
        self._spaces[filename] = namespace
        for host in hosts:
            self._define_names(host, namespace, filename)
        return source.tree

    def _define_names(self, host: bodies.Host, namespace: Dict[str, Any], filename: str) -> None:
        """Define the names that the code of a host reads."""
        label, where = os.path.basename(filename), f" ({host.name})" if host.name[0] != "<" else ""
        namespace.update(
            {
                bodies.UNBOUND: UNBOUND,
                bodies.CALLED: Called,
                bodies.KEPT: deferred_output.kept,
                bodies.AT: at,
                bodies.STACK: stack,
            }
        )
        for loop in host.loops:
            functions: Dict[str, Any] = {}
            exec(compile(ast.Module(loop.functions, []), filename, "exec", dont_inherit=True), namespace, functions)
            for function in functions.values():
                function.__code__ = function.__code__.replace(co_name=host.name)
            parts = [functions.get(loop.name + part) for part in bodies.PARTS]
            place = f"{label}:{loop.first}{where}"
            self.loops.append(Loop(parts[0], place, *bodies.CARRIES.pop(loop.name), *parts[1:]))
            self.loops[-1].unbound, self.loops[-1].is_on = UNBOUND, self.is_on
            namespace[loop.name] = self.loops[-1]

    def adopt(self, module: types.ModuleType) -> None:
        """Put branches into the functions of a module of the program."""
        filename = str(getattr(module, "__file__", None) or "")
        if filename.endswith(".py") and not is_others(filename):
            for function in functions_of(module):
                self.adopt_function(function)

    def adopt_function(self, function: types.FunctionType) -> None:
        """Put branches into a function."""
        code, filename = function.__code__, function.__code__.co_filename
        if is_others(filename):
            return
        if filename not in self._sources:
            source = self._sources[filename] = Source.of_file(filename)
            self._spaces[filename] = function.__globals__
            if source is not None:
                for host in source.take_out(_numbers):
                    self._define_names(host, function.__globals__, filename)
        source = self._sources[filename]
        if self._spaces.get(filename) is not function.__globals__:
            return  # the file runs twice, as a script and as a module
        key = None if source is None or not source.hosts else source.key(code)
        new = code if source is None or key is None else source.newest(key)
        if new is not code and new.co_freevars == code.co_freevars:
            self._changed.append((weakref.ref(function), code))
            function.__code__ = new

    def adopt_all_of(self, called: Any) -> None:
        """Put branches into the functions that a network or a function can call, and into their modules."""
        parts = called.modules() if isinstance(called, torch.nn.Module) else [called]
        functions: List[types.FunctionType] = []
        for part in parts:
            for kind in type(part).__mro__:
                functions += functions_in(vars(kind).values(), kind.__module__)
            functions += functions_in([part, *getattr(part, "__dict__", {}).values()])
        names = {function.__module__ for function in functions if not is_others(function.__code__.co_filename)}
        for function in functions:
            self.adopt_function(function)
        for name in names - {None}:
            if isinstance(sys.modules.get(name), types.ModuleType):
                self.adopt(sys.modules[name])

    def adopt_all(self) -> None:
        """Put branches into the modules beside the script, and in the working directory."""
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        folders = {os.getcwd(), os.path.dirname(os.path.abspath(main)) if main else os.getcwd()}
        for module in list(sys.modules.values()):
            filename = getattr(module, "__file__", None)
            if isinstance(filename, str) and filename.startswith(tuple(folder + os.sep for folder in folders)):
                self.adopt(module)


def functions_of(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yield the functions and methods of a module."""
    return functions_in(vars(module).values(), module.__name__)


def functions_in(values: Iterable[Any], module: Optional[str] = None) -> Iterator[types.FunctionType]:
    """Yield the functions among values and in classes; with ``module``, only the functions that it defines."""
    waiting = list(values)
    seen = set()
    for value in waiting:  # the list grows
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (staticmethod, classmethod, types.MethodType)):
            value = value.__func__
        if isinstance(value, functools.partial):
            waiting.append(value.func)
        elif isinstance(value, property):
            waiting += [value.fget, value.fset]
        elif isinstance(value, types.FunctionType):
            if module in (None, value.__module__):
                yield value
            waiting.append(getattr(value, "__wrapped__", None))
        elif isinstance(value, type) and value.__module__ == module:
            waiting.extend(vars(value).values())


class _Finder(importlib.abc.MetaPathFinder):
    """Puts branches into modules at their import."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                origin = str(spec.origin or "")
                if origin.endswith(".py") and not is_others(origin) and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self._discovery)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, discovery: Discovery) -> None:
        self._loader, self._discovery = loader, discovery

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        if self._discovery.searches:
            self._discovery.adopt(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
