"""Entry points of the compiler: :func:`auto` for a whole program, :func:`compile` for a network or a function."""

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
_discovery: Optional[Discovery] = None


def discovery() -> Discovery:
    """Return the loops that :func:`auto` and :func:`compile` have found in this process."""
    global _discovery
    if _discovery is None:
        _discovery = Discovery()
        shell = _shell()
        if shell is not None:
            shell.ast_transformers.append(_Cells(_discovery, shell))
    return _discovery


def auto() -> Discovery:
    """Compile the loops over time of this program from now on, in networks, functions and methods.

    .. code-block:: python

        import snnipu as snn

        found = snn.auto()

    The first two steps of a loop run in Python. If both call the same neurons, the loop is a loop over time. The other
    steps, and all steps of later runs, then run as one graph: each neuron is one operator over all steps, and layers
    run once over all steps. A loop that cannot be compiled runs in Python, and the logger ``snnipu.compiler`` names the
    reason once.

    In a script, loops of functions are compiled, and with ``python -m snnipu run --compile SCRIPT`` also loops at its
    top level. In a notebook, the loops of all cells that run later are compiled.

    Returns:
        An object whose ``str`` is a table of the loops. Its ``stop()`` ends the search and restores the code of all
        functions.

    Raises:
        RuntimeError: this PyTorch cannot compile.
    """
    program = discovery()
    program.start()
    return program


class Compiled(torch.nn.Module):
    """A network whose loops over time run compiled. Its attributes are the network's."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = network
        self._stops = -1

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self, self._orig_mod, args, kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        is_wrapper = name in ("_orig_mod", "_stops", "training") or "_modules" not in vars(self) or not self._modules
        if is_wrapper:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __getattr__(self, name: str) -> Any:
        network = super().__getattr__("_orig_mod")
        return network if name == "_orig_mod" else getattr(network, name)


def compile(function: Any, *, then: Any = None, **keywords: Any) -> Any:
    """Compile the loops over time of one network or function.

    Loops run as after :func:`auto`, but only in calls of the returned object. This includes loops in functions that it
    calls, if their module is a module of the program.

    Args:
        function: a module, or a function.
        then: another backend of ``torch.compile``, by name or as a function. It compiles the rest of the function,
            which then has to be one graph: ``torch.compile(function, backend="snnipu", ...)``.
        keywords: arguments of ``torch.compile``. With any of them the whole function is compiled as one graph.

    Returns:
        A module or a function to call instead. It shares parameters and states with ``function``.

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
    program = discovery()
    if compiled._stops != program.stops:
        backend.enable()
        program.adopt_all_of(function)
        compiled._stops = program.stops
    program.calls.depth += 1
    try:
        return function(*args, **kwargs)
    finally:
        program.calls.depth -= 1


def run_script(script: str) -> None:
    """Run a script as ``__main__``, with its loops over time compiled."""
    program = auto()
    module = types.ModuleType("__main__")
    vars(module).update(__file__=script, __builtins__=builtins)
    with tokenize.open(script) as file:
        tree = program.outlined(ast.parse(file.read(), script), script, vars(module))
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(builtins.compile(tree, script, "exec", dont_inherit=True), vars(module))
    finally:
        sys.modules["__main__"] = before


class _Cells:
    """Puts branches into the cells of a notebook: IPython calls it with the syntax tree of each cell."""

    def __init__(self, discovery: Discovery, shell: Any) -> None:
        self._discovery, self._shell = discovery, shell

    def visit(self, tree: ast.Module) -> ast.Module:
        if not self._discovery.searches:
            return tree
        return self._discovery.outlined(tree, f"<cell {next(_cells)}>", self._shell.user_ns)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
