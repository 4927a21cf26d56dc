"""The backend ``snnipu`` of ``torch.compile``."""

import functools
import logging
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import snntorch.utils
import torch
from torch.fx import GraphModule

from snnipu._names import installed
from snnipu.compiler import helpers, nodes, reset, unrolled
from snnipu.compiler.marks import MARKS
from snnipu.compiler.patches import Patches
from snnipu.compiler.private import dynamo
from snnipu.neurons._instances import WeakInstances
from snnipu.ops import step_operators
from snnipu.surrogate import spike_of

_LOG = logging.getLogger("snnipu.compiler")
_OPTIONS = ("then",)
# Earlier versions have no guard on a method that an instance replaces, and treat numbers of modules as sizes.
OLDEST = (2, 9)


def version() -> Tuple[int, ...]:
    """Return the first two numbers of PyTorch's version."""
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


# The replaced attributes, and the users of the compiler: discoveries after ``snnipu.auto()``, or "compile".
_patches = Patches()
_users: Set[Any] = set()


def check_version() -> None:
    """Check that this PyTorch can compile.

    Raises:
        RuntimeError: PyTorch is too old, or cannot compile with this Python.
    """
    if version() < OLDEST:
        raise RuntimeError(
            f"the compiler needs PyTorch {OLDEST[0]}.{OLDEST[1]} or later, got {torch.__version__}: torch.compile of "
            "earlier versions misses changes that a neuron's step depends on. MultiStep runs with any version"
        )
    dynamo()  # raises an error if PyTorch cannot compile with this Python


def enable(user: Any = "compile") -> None:
    """Let TorchDynamo take neurons' steps as functions that it does not trace into, until ``disable(user)``.

    Raises:
        RuntimeError: PyTorch is too old, or cannot compile with this Python.
    """
    _users.add(user)
    if step_operators.enabled:
        return
    check_version()
    _register()
    _patches.replace(step_operators, "call_untraced", torch.compiler.disable(step_operators.call_untraced))
    # TorchDynamo traces weak references wrongly.
    for name in ("__len__", "__getitem__", "__setitem__"):
        _patches.replace(WeakInstances, name, torch.compiler.disable(getattr(WeakInstances, name)))
    if installed.reset_reaches_others():  # utils.reset searches the direct children of a module alone
        _patches.replace(snntorch.utils, "_layer_check", reset.of_network(snntorch.utils._layer_check))
    # With this option a hook that is registered after compilation is not called. The guards cost no measurable time.
    _patches.configure("skip_nnmodule_hook_guards", False)
    # This option cuts a loop's graph at the buckets of DistributedDataParallel. Most pieces have no steps of neurons.
    _patches.configure("optimize_ddp", False)
    _patches.replace(step_operators, "enabled", True)


def disable(user: Any) -> None:
    """Undo :func:`enable` for a user; the last user restores all attributes."""
    _users.discard(user)
    if not _users:
        _patches.undo()


@functools.lru_cache(maxsize=None)
def _register() -> None:
    """Register with TorchDynamo, once, the functions that it does not trace into."""
    for function in (*step_operators.SEQUENCES, reset.reset_others, spike_of, *MARKS):
        torch.compiler.allow_in_graph(function)
    if installed.reset_reaches_others():  # otherwise TorchDynamo can trace snnTorch's function
        torch.compiler.substitute_in_graph(snntorch.utils.reset, skip_signature_check=True)(reset.reset)


def whole(function: Any, *, then: Any = None, **keywords: Any) -> Any:
    """Compile a function as one graph: ``torch.compile(function, backend="snnipu")``.

    Args:
        function: a module, or a function that contains the loop.
        then: another backend that compiles the rest of the graph.
        keywords: arguments of ``torch.compile``. Without ``then``, ``dynamic`` is True: one compilation serves every
            batch size except 1.
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
    rolled = None
    try:
        rolled = unrolled.rolled(module, whole=then is not None)
    except Exception as error:
        _LOG.warning("a graph runs without sequences: %s: %s", type(error).__name__, error)
    rolled = module if rolled is None else rolled
    run = rolled.forward
    if then is not None:
        run = dynamo().lookup_backend(then)(rolled, example_inputs)
    return run if rolled is module else _with_check(module, run)


def _with_check(module: GraphModule, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``run`` with a check: the original graph runs if an input that it changes shares memory with another."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    changed = [inputs.index(node) for node in nodes.Memory(module.graph).changed_inputs()]

    def checked(*args: Any) -> Any:
        return module.forward(*args) if helpers.share_memory(args, changed) else run(*args)

    return checked if changed else run
