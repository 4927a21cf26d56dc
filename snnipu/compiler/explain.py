"""What the backend does with a network."""

import time
from dataclasses import replace
from typing import Any, List, Optional

import snntorch
import torch

from snnipu.compiler import backend, reasons
from snnipu.compiler.reasons import Reason
from snnipu.compiler.report import GraphReport, Report
from snnipu.neurons import paths
from snnipu.ops.sparse_input import watched


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
        that cause it, and what to write instead; each linear layer and convolution that looked whether its input is
        mostly zeros, and what it found; where a graph ends early, and the time it took.

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
    with watched() as choices:
        try:
            # Of a loop with a graph break in it TorchDynamo makes no graph, and says nothing.
            with torch._dynamo.error_on_graph_break(True):
                compiled(*inputs, **keywords)
        except torch._dynamo.exc.Unsupported as error:
            refused = reasons.of_error(error)
            choices.clear()
            compiled(*inputs, **keywords)
    seconds = time.perf_counter() - started
    modules = _modules(function, *inputs, *keywords.values())
    report = Report(tuple(found), seconds, refused, products=paths.of_choices(choices, modules))
    if not report.graph_breaks:
        return report
    known = tuple(f".{neuron.name}" for neuron in report.neurons)
    names = _neurons(modules)
    return replace(report, alone=tuple(one for one in names if not any(n.endswith(f".{one}") for n in known)))


def _modules(*given: Any) -> List[torch.nn.Module]:
    return [one for one in given if isinstance(one, torch.nn.Module)]


def _neurons(modules: List[torch.nn.Module]) -> List[str]:
    """The names of the neurons in them."""
    pairs = [pair for one in modules for pair in one.named_modules()]
    return [name for name, module in pairs if isinstance(module, snntorch.SpikingNeuron)]
