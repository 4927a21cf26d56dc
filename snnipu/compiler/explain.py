"""A report of the loops of one call."""

import time
from typing import Any, List

import torch

from snnipu.compiler import automatic
from snnipu.compiler.report import LoopReport, Report, report_of
from snnipu.neurons import paths
from snnipu.ops.sparse_input import watched


def explain(function: Any, *inputs: Any, **keywords: Any) -> Report:
    """Call a network or a function with its loops over time compiled, and report how each part runs.

    .. code-block:: python

        print(snnipu.compiler.explain(net, images))

    Hidden states and random numbers change as in a call ``function(*inputs)``.

    Args:
        function: a module, or a function that contains the loop.
        inputs, keywords: the arguments of the call.

    Returns:
        A report whose ``str`` is a text. For each loop it has the layers of neurons, as one operator or step by step,
        and the operators, with their calls in the program's loop and in the compiled loop. For parts that run step by
        step it names the program's lines that cause it, and what to write instead. It ends with the linear layers and
        convolutions that can skip zeros of their input, and the time of the call.

    Raises:
        TypeError: ``function`` cannot be called.
        RuntimeError: this PyTorch cannot compile.
    """
    compiled = automatic.compile(function)
    discovery = automatic.discovery()
    before = {id(loop): loop.entries for loop in discovery.loops}
    for loop in discovery.loops:
        loop.reconsider()  # another network may have given it its reason
    started = time.perf_counter()
    with watched() as choices:
        compiled(*inputs, **keywords)
    seconds = time.perf_counter() - started
    ran = [loop for loop in discovery.loops if loop.entries > before.get(id(loop), 0)]
    modules = [value for value in (function, *inputs, *keywords.values()) if isinstance(value, torch.nn.Module)]
    loops: List[LoopReport] = []
    for loop in ran:
        if loop.distribution is not None:
            loops.append(report_of(loop.label, loop.distribution, loop.steps))
        elif loop.is_over_time():
            loops.append(LoopReport(loop.label, runs_as=loop.reason or "it has too few steps", reason=loop.note))
    return Report(tuple(loops), seconds, paths.paths_of_products(choices, modules))
