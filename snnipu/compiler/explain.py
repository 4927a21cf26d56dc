"""What the backend does with a network."""

import time
from typing import Any, List

import torch

from snnipu.compiler import backend
from snnipu.compiler.report import GraphReport, Report


def explain(function: Any, *inputs: Any, **keywords: Any) -> Report:
    """Compile a network or a function with the backend ``snnipu``, call it once, and tell what became of the loop.

    .. code-block:: python

        print(snnipu.compiler.explain(net, images))

    The call is a real one: hidden states and random numbers go on as after ``function(*inputs)``.

    Args:
        function: a module, or a function that contains the loop.
        inputs, keywords: what it is called with.

    Returns:
        A report whose ``str`` is a table: each layer of neurons, over how many steps, as one operator or step by step
        and why; each operator of the loop, how often it ran and runs; where a graph ends early, and the time it took.

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
    started = time.perf_counter()
    compiled(*inputs, **keywords)
    return Report(tuple(found), time.perf_counter() - started)
