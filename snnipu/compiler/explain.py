"""What the backend does with a network."""

import time
from dataclasses import replace
from typing import Any, List, Optional, Tuple

import snntorch
import torch

from snnipu.compiler import backend, reasons
from snnipu.compiler.reasons import Reason
from snnipu.compiler.report import GraphReport, Neuron, Report


def explain(function: Any, *inputs: Any, **keywords: Any) -> Report:
    """Compile a network or a function with the backend ``snnipu``, call it once, and tell what became of the loop.

    .. code-block:: python

        print(snnipu.compiler.explain(net, images))

    The call is a real one: hidden states and random numbers go on as after ``function(*inputs)``.

    Args:
        function: a module, or a function that contains the loop.
        inputs, keywords: what it is called with.

    Returns:
        A report whose ``str`` is a text: each layer of neurons, over how many steps, as one operator or step by step;
        each operator of the loop, how often it ran and runs; for what is called at every step the lines of the program
        that cause it, and what to write instead; where a graph ends early, and the time it took.

    Raises:
        TypeError: ``function`` cannot be called.
        RuntimeError: this PyTorch cannot compile.
    """
    if not callable(function):
        raise TypeError(f"function must be a module or a function, got {type(function).__name__}")
    found: List[GraphReport] = []

    def collect(module: Any, example_inputs: Any, **options: Any) -> Any:
        return backend.compile_graph(module, example_inputs, observer=found.append, **options)

    backend.enable()
    compiled = torch.compile(function, backend=collect)
    refused: Optional[Reason] = None
    started = time.perf_counter()
    try:
        # Of a loop with a graph break in it TorchDynamo makes no graph, and says nothing.
        with torch._dynamo.error_on_graph_break(True):
            compiled(*inputs, **keywords)
    except torch._dynamo.exc.Unsupported as error:
        refused = reasons.of_error(error)
        compiled(*inputs, **keywords)
    report = Report(tuple(found), time.perf_counter() - started, refused)
    known = {neuron.name for neuron in report.neurons}
    neurons = _neurons(function) if report.graph_breaks else []
    alone = [Neuron(name, kind, "", 1, report.graph_breaks[0]) for name, kind in neurons if name not in known]
    return replace(report, alone=tuple(alone))


def _neurons(function: Any) -> List[Tuple[str, str]]:
    """Names and classes of a module's neurons."""
    modules = function.named_modules() if isinstance(function, torch.nn.Module) else ()
    return [(name, type(one).__name__) for name, one in modules if isinstance(one, snntorch.SpikingNeuron)]
