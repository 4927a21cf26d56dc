"""Loops over time that run compiled: all of a program, or those of one network or function."""

import ast
import builtins
import functools
import itertools
import sys
import tokenize
import types
from typing import Any, Optional

import torch

from snnipu.compiler import backend
from snnipu.compiler.discovery import Discovery

_cells = itertools.count(1)
_found: Optional[Discovery] = None


def discovery() -> Discovery:
    """Return the loops that :func:`auto` and :func:`compile` have found in this process."""
    global _found
    if _found is None:
        _found = Discovery()
        shell = _shell()
        if shell is not None:
            shell.ast_transformers.append(_Cells(_found, shell))
    return _found


def auto() -> Discovery:
    """Compile the loops over time of this program from now on: in networks, functions, methods.

    .. code-block:: python

        import snnipu as snn

        found = snn.auto()

    The first two steps of a loop run as they are written, and show whether it is one over time: its neurons are called
    at each step. Then the other steps, and all later runs, are one graph: each neuron is an operator over all steps,
    layers run once over all steps. What cannot be compiled runs as it is written, and the logger ``snnipu.compiler``
    says so once.

    In a script, loops of functions are found, those at its top level only by ``python -m snnipu run --compile SCRIPT``;
    in a notebook, those of all cells that run later.

    Returns:
        An object whose ``str`` is a table of the loops. Its ``stop()`` ends the search: all functions have their own
        code again.

    Raises:
        RuntimeError: this PyTorch cannot compile.
    """
    found = discovery()
    found.start()
    return found


class Compiled(torch.nn.Module):
    """A network whose loops over time run compiled. Its attributes are the network's."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = network
        self._stops = -1

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self, self._orig_mod, args, kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in ("_orig_mod", "_stops", "training") or "_modules" not in vars(self) or not self._modules
        if own:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __getattr__(self, name: str) -> Any:
        network = super().__getattr__("_orig_mod")
        return network if name == "_orig_mod" else getattr(network, name)


def compile(function: Any, *, then: Any = None, **keywords: Any) -> Any:
    """Compile the loops over time of one network or function.

    Loops run as after :func:`auto`, but only in calls of the returned object: loops of its functions and methods, and
    of the functions in their modules that it calls.

    Args:
        function: a module, or a function.
        then: another backend of ``torch.compile``, by name or as a function. It compiles what is left of the whole
            function, which then has to be one graph: ``torch.compile(function, backend="snnipu", ...)``.
        keywords: those of ``torch.compile``, to compile the whole function in this way without another backend.

    Returns:
        A module, or a function, to be called in its place. Parameters and states are those of ``function``.

    Raises:
        TypeError: ``function`` cannot be called.
        RuntimeError: this PyTorch cannot compile.
    """
    if not callable(function):
        raise TypeError(f"function must be a module or a function, got {type(function).__name__}")
    if then is not None or keywords:
        return backend.whole(function, then=then, **keywords)
    backend.check_version()
    if isinstance(function, torch.nn.Module):
        return Compiled(function)
    state = types.SimpleNamespace(_stops=-1)

    @functools.wraps(function)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return _call(state, function, args, kwargs)

    return compiled


def _call(compiled: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """Call a function whose loops may run compiled."""
    if torch.compiler.is_compiling():
        return function(*args, **kwargs)
    found = discovery()
    if compiled._stops != found.stops:
        backend.enable()
        found.adopt_all_of(function)
        compiled._stops = found.stops
    found.calls.depth += 1
    try:
        return function(*args, **kwargs)
    finally:
        found.calls.depth -= 1


def run_script(script: str) -> None:
    """Run a script as ``__main__``, with its loops over time compiled."""
    found = auto()
    module = types.ModuleType("__main__")
    vars(module).update(__file__=script, __builtins__=builtins)
    with tokenize.open(script) as file:
        tree = found.outlined(ast.parse(file.read(), script), script, vars(module))
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(builtins.compile(tree, script, "exec", dont_inherit=True), vars(module))
    finally:
        sys.modules["__main__"] = before


class _Cells:
    """Puts branches into the cells of a notebook: IPython calls it with the syntax tree of each cell."""

    def __init__(self, found: Discovery, shell: Any) -> None:
        self._found, self._shell = found, shell

    def visit(self, tree: ast.Module) -> ast.Module:
        if not self._found.searches:
            return tree
        return self._found.outlined(tree, f"<cell {next(_cells)}>", self._shell.user_ns)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
