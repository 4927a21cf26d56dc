"""A report of the loops of one call."""

import time
from typing import Any, List

import torch

from snnipu.compiler import automatic
from snnipu.compiler.report import LoopReport, Report, report_of
from snnipu.neurons import paths
from snnipu.ops.sparse_input import watched


def explain(function: Any, *inputs: Any, **keywords: Any) -> Report:
    """Call a network or a function with its loops over time compiled, and tell what became of them.

    .. code-block:: python

        print(snnipu.compiler.explain(net, images))

    The call is a real one: hidden states and random numbers go on as after ``function(*inputs)``.

    Args:
        function: a module, or a function that contains the loop.
        inputs, keywords: the arguments of the call.

    Returns:
        A report whose ``str`` is a text: for each loop its layers of neurons, as one operator or step by step; the
        operators, how often the loop calls them and how often the compiled loop does; the lines of the program that
        cause what is called at each step, and what to write instead; linear layers and convolutions that looked
        whether their input is mostly zeros; the time of the call.

    Raises:
        TypeError: ``function`` cannot be called.
        RuntimeError: this PyTorch cannot compile.
    """
    compiled = automatic.compile(function)
    found = automatic.discovery()
    before = {id(loop): loop.entries for loop in found.loops}
    started = time.perf_counter()
    with watched() as choices:
        compiled(*inputs, **keywords)
    seconds = time.perf_counter() - started
    ran = [loop for loop in found.loops if loop.entries > before.get(id(loop), 0)]
    modules = [one for one in (function, *inputs, *keywords.values()) if isinstance(one, torch.nn.Module)]
    loops: List[LoopReport] = []
    for loop in ran:
        if loop.made is not None:
            loops.append(report_of(loop.label, loop.made, loop.steps))
        elif loop.is_over_time():
            loops.append(LoopReport(loop.label, runs_as=loop.reason or "it has too few steps", reason=loop.note))
    return Report(tuple(loops), seconds, paths.paths_of_products(choices, modules))
