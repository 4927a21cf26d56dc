"""The backend ``snnipu`` of ``torch.compile``."""

import functools
import logging
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import snntorch.utils
import torch
from torch.fx import GraphModule

from snnipu._names import installed
from snnipu.compiler import distribute, nodes, own_functions, periods, recurrences, reset, tracing
from snnipu.compiler.emit import Emitter
from snnipu.compiler.patches import Patches
from snnipu.compiler.plan import STACK, Plan
from snnipu.compiler.prepare import prepare
from snnipu.compiler.report import GraphReport, report_of
from snnipu.neurons._instances import WeakInstances
from snnipu.ops import leaves
from snnipu.surrogate import spike_of

_LOG = logging.getLogger("snnipu.compiler")
_OPTIONS = ("then",)
# Before, TorchDynamo has no guard on a method that an instance replaces, and takes numbers of modules for sizes.
OLDEST = (2, 9)
# What a graph that was not understood does: it runs as it was; tests want the error.
strict = False


def version() -> Tuple[int, ...]:
    """PyTorch's, its first two numbers."""
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


# What is replaced while anybody compiles, and who does: ``snnipu.auto()``, or this module's own functions.
_patches, _patches_of_steps = Patches(), Patches()
_users: Set[Any] = set()


def enable(user: Any = "compile", unrolled: bool = True) -> None:
    """Make neurons' steps known to TorchDynamo as functions that it does not look into, until ``user`` is done.

    Args:
        unrolled: whether traces have all steps of a loop, for which more of TorchDynamo is replaced.

    Raises:
        RuntimeError: PyTorch is too old, or cannot compile with this Python.
    """
    _users.add(user)
    if unrolled and leaves.enabled and not _patches_of_steps:
        _enable_steps()
    if leaves.enabled:
        return
    if version() < OLDEST:
        raise RuntimeError(
            f"the backend snnipu needs PyTorch {OLDEST[0]}.{OLDEST[1]} or later: torch.compile of earlier ones "
            f"does not see all that a neuron's step depends on; this is {torch.__version__}. MultiStep runs with any"
        )
    disable_in_traces = torch._dynamo.disable  # type: ignore[attr-defined]

    _register()
    _patches.replace(leaves, "apart", disable_in_traces(leaves.apart))
    # TorchDynamo makes wrong calls of weak references.
    for name in ("__len__", "__getitem__", "__setitem__"):
        _patches.replace(WeakInstances, name, disable_in_traces(getattr(WeakInstances, name)))
    # Else a hook that is registered after compilation is not called. The guards cost no time that can be measured.
    _patches.configure("skip_nnmodule_hook_guards", False)
    # Else DistributedDataParallel's buckets cut a loop's graph into pieces, few of which have a neuron's steps.
    _patches.configure("optimize_ddp", False)
    _patches.replace(leaves, "enabled", True)
    if unrolled:
        _enable_steps()


def _enable_steps() -> None:
    """Replace what traces of all steps of a loop need."""
    periods.enable(_patches_of_steps)
    tracing.correct(_patches_of_steps)
    tracing.ResetCodes.enable(_patches_of_steps)


def disable(user: Any) -> None:
    """Undo :func:`enable` where nobody else compiles."""
    _users.discard(user)
    if not _users:
        _patches_of_steps.undo()
        _patches.undo()


@functools.lru_cache(maxsize=None)
def _register() -> None:
    """Tell TorchDynamo once which functions stand in a graph as they are."""
    from torch._dynamo import allow_in_graph
    from torch._dynamo.decorators import substitute_in_graph

    for function in (*leaves.SEQUENCES, reset.reset_others, spike_of, tracing.code_is, *distribute.MARKS):
        allow_in_graph(function)
    if installed.reset_reaches_others():  # one that does not is code as any other, and traced
        substitute_in_graph(snntorch.utils.reset, skip_signature_check=True)(reset.reset)


def roll(module: GraphModule, whole: bool = False) -> Tuple[GraphModule, Plan]:
    """The graph with chains of neuron steps as sequences.

    ``whole``: for another compiler. Nothing runs in parts of time, and a surrogate's numbers are those of this call, no
    inputs of the graph.
    """
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    originals = nodes.leaves_of(output.args[0])
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + STACK)
    try:
        plan = _planned(module.graph, fix_numbers=whole)
    finally:
        sys.setrecursionlimit(before)
    # Another compiler is to see all of it.
    emitter = Emitter(plan, originals, in_parts=not whole)
    made = emitter.run()
    made.lint()
    for name, stretch in emitter.stretches.items():
        setattr(module, name, stretch)
    return GraphModule(module, made), plan


def _planned(original: torch.fx.Graph, fix_numbers: bool) -> Plan:
    """The plan of a copy, with neurons in the places of the recurrences that then run over time."""
    without: Set[str] = set()
    own_functions.find(original)
    while True:
        graph = torch.fx.Graph()
        kept: Dict[Any, Any] = {}
        graph.output(graph.graph_copy(original, kept))
        for old, new in kept.items():
            new.meta = dict(old.meta)
        if not fix_numbers:
            own_functions.call_directly(graph)
        prepare(graph, fix_numbers)
        plan = Plan(graph)
        made = recurrences.as_neurons(plan, without)
        if not made:
            return plan
        plan = Plan(graph)
        over_time = {made.get(step) for chain in plan.chains if chain.reason is None for step in chain.steps}
        loops = {*made.values()} - over_time
        if not loops:
            return plan
        without |= loops


def compile(function: Any, *, then: Any = None, **keywords: Any) -> Any:
    """``torch.compile(function, backend="snnipu")``: loops over time steps run as sequences.

    Args:
        function: a module, or a function that contains the loop.
        then: another backend, by name or as a function, that compiles what is left, ``"inductor"`` say.
        keywords: further ones of ``torch.compile``: ``fullgraph``; ``dynamic``, which without ``then`` is True: one
            compilation serves every batch size but 1, which PyTorch compiles apart.

    Returns:
        What ``torch.compile`` returns.

    Raises:
        TypeError: ``function`` cannot be called.
        RuntimeError: this PyTorch cannot compile.
    """
    if not callable(function):
        raise TypeError(f"function must be a module or a function, got {type(function).__name__}")
    enable()
    if then is None:
        keywords.setdefault("dynamic", True)
    else:
        keywords["options"] = {**(keywords.get("options") or {}), "then": then}
    return torch.compile(function, backend=compile_graph, **keywords)


def compile_graph(
    module: GraphModule,
    example_inputs: List[Any],
    *,
    options: Optional[Dict[str, Any]] = None,
    observer: Optional[Callable[[GraphReport], None]] = None,
) -> Any:
    """What ``torch.compile(backend="snnipu")`` calls for each graph: the function that runs in its place.

    Args:
        options: ``{"then": backend}``: another backend, by name or as a function, compiles the rolled graph.
        observer: called with what was made of the graph.

    Raises:
        ValueError: an unknown option.
    """
    unknown = set(options or {}) - set(_OPTIONS)
    if unknown:
        raise ValueError(f"options of the backend snnipu are {', '.join(_OPTIONS)}, got {', '.join(sorted(unknown))}")
    then = (options or {}).get("then")
    started = time.perf_counter()
    plan: Optional[Plan] = None
    rolled, failed = module, ""
    try:
        rolled, plan = roll(module, whole=then is not None)
    except Exception as error:
        if strict:
            raise
        failed = f"{type(error).__name__}: {error}"
        _LOG.warning("a graph runs as it was, for rolling it failed: %s", failed)
    if observer is not None:
        observer(report_of(module, rolled, plan, time.perf_counter() - started, failed))
    run = rolled.forward
    if then is not None:
        from torch._dynamo import lookup_backend

        run = lookup_backend(then)(rolled, example_inputs)
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
