"""The backend ``snnipu`` of ``torch.compile``."""

import functools
import logging
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import snntorch.utils
import torch
from torch.fx import GraphModule

from snnipu._names import installed
from snnipu.compiler import nodes, reset, unrolled
from snnipu.compiler.marks import MARKS
from snnipu.compiler.patches import Patches
from snnipu.compiler.private import dynamo
from snnipu.neurons._instances import WeakInstances
from snnipu.ops import step_operators
from snnipu.surrogate import spike_of

_LOG = logging.getLogger("snnipu.compiler")
_OPTIONS = ("then",)
# Before, TorchDynamo has no guard on a method that an instance replaces, and takes numbers of modules for sizes.
OLDEST = (2, 9)


def version() -> Tuple[int, ...]:
    """PyTorch's, its first two numbers."""
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


# What is replaced while anybody compiles, and who does: ``snnipu.auto()``, or this module's own functions.
_patches = Patches()
_users: Set[Any] = set()


def check_version() -> None:
    """
    Raises:
        RuntimeError: PyTorch is too old, or cannot compile with this Python.
    """
    if version() < OLDEST:
        raise RuntimeError(
            f"the compiler needs PyTorch {OLDEST[0]}.{OLDEST[1]} or later: torch.compile of earlier ones "
            f"does not see all that a neuron's step depends on; this is {torch.__version__}. MultiStep runs with any"
        )
    dynamo()  # raises the error of a Python that PyTorch cannot compile with


def enable(user: Any = "compile") -> None:
    """Make neurons' steps known to TorchDynamo as functions that it does not look into, until ``user`` is done.

    Raises:
        RuntimeError: PyTorch is too old, or cannot compile with this Python.
    """
    _users.add(user)
    if step_operators.enabled:
        return
    check_version()
    _register()
    _patches.replace(step_operators, "call_untraced", torch.compiler.disable(step_operators.call_untraced))
    # TorchDynamo makes wrong calls of weak references.
    for name in ("__len__", "__getitem__", "__setitem__"):
        _patches.replace(WeakInstances, name, torch.compiler.disable(getattr(WeakInstances, name)))
    # Else a hook that is registered after compilation is not called. The guards cost no time that can be measured.
    _patches.configure("skip_nnmodule_hook_guards", False)
    # Else DistributedDataParallel's buckets cut a loop's graph into pieces, few of which have a neuron's steps.
    _patches.configure("optimize_ddp", False)
    _patches.replace(step_operators, "enabled", True)


def disable(user: Any) -> None:
    """Undo :func:`enable` where nobody else compiles."""
    _users.discard(user)
    if not _users:
        _patches.undo()


@functools.lru_cache(maxsize=None)
def _register() -> None:
    """Tell TorchDynamo once which functions stand in a graph as they are."""
    for function in (*step_operators.SEQUENCES, reset.reset_others, spike_of, *MARKS):
        torch.compiler.allow_in_graph(function)
    if installed.reset_reaches_others():  # one that does not is code as any other, and traced
        torch.compiler.substitute_in_graph(snntorch.utils.reset, skip_signature_check=True)(reset.reset)


def whole(function: Any, *, then: Any = None, **keywords: Any) -> Any:
    """Compile a function as one graph: ``torch.compile(function, backend="snnipu")``.

    Args:
        function: a module, or a function that contains the loop.
        then: another backend that compiles what is left.
        keywords: those of ``torch.compile``. Without ``then``, ``dynamic`` is True: one compilation serves every batch
            size but 1.
    """
    enable()
    if then is None:
        keywords.setdefault("dynamic", True)
    else:
        keywords["options"] = {**(keywords.get("options") or {}), "then": then}
    return torch.compile(function, backend=compile_graph, **keywords)


def compile_graph(
    module: GraphModule, example_inputs: List[Any], *, options: Optional[Dict[str, Any]] = None
) -> Callable[..., Any]:
    """Return the function that ``torch.compile(backend="snnipu")`` calls in place of a graph.

    Args:
        options: ``{"then": backend}``: another backend, by name or as a function, compiles the graph.

    Raises:
        ValueError: an unknown option.
    """
    unknown = set(options or {}) - set(_OPTIONS)
    if unknown:
        raise ValueError(f"options of the backend snnipu are {', '.join(_OPTIONS)}, got {', '.join(sorted(unknown))}")
    then = (options or {}).get("then")
    found = None
    try:
        found = unrolled.rolled(module, whole=then is not None)
    except Exception as error:
        _LOG.warning("a graph runs without sequences: %s: %s", type(error).__name__, error)
    rolled = module if found is None else found
    run = rolled.forward
    if then is not None:
        run = dynamo().lookup_backend(then)(rolled, example_inputs)
    return run if rolled is module else _apart(module, run)


def _apart(module: GraphModule, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``; the graph as it was where an input that it changes shares memory with another one."""
    written = nodes.written_inputs(module.graph)
    if not written:
        return run
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    own = [place for place, node in enumerate(inputs) if node in written]
    others = [place for place, node in enumerate(inputs) if node not in written and nodes.is_tensor(node)]

    def checked(*args: Any) -> Any:
        storages = {args[place].untyped_storage().data_ptr() for place in own} - {0}
        alone = len(storages) == len(own) and all(
            args[place].untyped_storage().data_ptr() not in storages for place in others
        )
        return run(*args) if alone else module.forward(*args)

    return checked
