"""The backend ``snnipu`` of ``torch.compile``."""

import logging
import time
from typing import Any, Callable, Dict, List, Optional

import torch
from torch.fx import GraphModule
from torch.fx.node import map_arg

from snnipu.compiler.emit import Emitter
from snnipu.compiler.plan import Plan
from snnipu.compiler.prepare import prepare
from snnipu.compiler.report import GraphReport, report_of
from snnipu.ops import leaves

_LOG = logging.getLogger("snnipu.compiler")
_OPTIONS = ("then",)
# What a graph that was not understood does: it runs as it was; tests want the error.
strict = False
# Called with the report of every graph.
observers: List[Callable[[GraphReport], None]] = []


def enable() -> None:
    """Make neurons' steps known to TorchDynamo as functions that it does not look into."""
    if leaves.enabled:
        return
    from torch._dynamo import allow_in_graph

    for step in leaves.SEQUENCES:
        allow_in_graph(step)
    leaves.enabled = True


def roll(module: GraphModule) -> "tuple[GraphModule, Plan]":
    """The graph with chains of neuron steps as sequences."""
    graph = torch.fx.Graph()
    kept: Dict[Any, Any] = {}
    graph.output(graph.graph_copy(module.graph, kept))
    for old, new in kept.items():
        new.meta = dict(old.meta)
    originals: List[Any] = []
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    map_arg(output.args[0], lambda n: originals.append(n) or n)
    prepare(graph)
    plan = Plan(graph)
    made = Emitter(plan, originals).run()
    rolled = GraphModule(module, made)
    made.lint()
    return rolled, plan


def compile_graph(module: GraphModule, example_inputs: List[Any], *, options: Optional[Dict[str, Any]] = None) -> Any:
    """What ``torch.compile(backend="snnipu")`` calls for each graph: the function that runs in its place.

    Args:
        options: ``{"then": backend}``: another backend, by name or as a function, compiles the rolled graph.

    Raises:
        ValueError: an unknown option.
    """
    unknown = set(options or {}) - set(_OPTIONS)
    if unknown:
        raise ValueError(f"options of the backend snnipu are {', '.join(_OPTIONS)}, got {', '.join(sorted(unknown))}")
    started = time.perf_counter()
    plan: Optional[Plan] = None
    rolled, failed = module, ""
    try:
        rolled, plan = roll(module)
    except Exception as error:
        if strict:
            raise
        failed = f"{type(error).__name__}: {error}"
        _LOG.warning("a graph runs as it was, for rolling it failed: %s", failed)
    for observer in list(observers):
        observer(report_of(module, rolled, plan, time.perf_counter() - started, failed))
    then = (options or {}).get("then")
    if then is None:
        return rolled.forward
    from torch._dynamo import lookup_backend

    return lookup_backend(then)(rolled, example_inputs)
