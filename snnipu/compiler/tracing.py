"""TorchDynamo's traces: what surrounds them, and what those that fail leave behind."""

import contextlib
import ctypes
import functools
from typing import Any, Callable, ContextManager, Iterator, Optional

import torch


def one_graph(function: Any, backend: Callable[..., Any], around: Callable[[], ContextManager[None]]) -> Any:
    """``torch.compile(function, backend=backend, fullgraph=True)``, with ``around()`` entered for each trace.

    A call for which there is a graph already enters nothing.
    """
    # What torch.compile calls; sizes are numbers until another one comes, for arithmetic with unknown ones costs time
    # at each call.
    context: Any = torch._dynamo.optimize(backend, nopython=True)  # type: ignore[attr-defined]
    trace = context.callback

    @functools.wraps(trace)
    def traced(*args: Any, **kwargs: Any) -> Any:
        with around(), _settings():
            return trace(*args, **kwargs)

    context.callback = traced
    return context(function)


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    from torch._dynamo import config

    # NumPy's own random numbers, not others in their place: a loop that draws them is not compiled. And .item() is an
    # operation like any other, whose number the program may count or keep, not decide by.
    with config.patch(use_numpy_random_stream=True, capture_scalar_outputs=True):
        yield


def _of_python(name: str, result: Any, *arguments: Any) -> Optional[Callable[..., Any]]:
    try:
        function: Any = ctypes.pythonapi[name]
    except AttributeError:
        return None
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]


_interpreter = _of_python("PyInterpreterState_Get", ctypes.c_void_p)
_evaluator = _of_python("_PyInterpreterState_GetEvalFrameFunc", ctypes.c_void_p, ctypes.c_void_p)
_set_evaluator = _of_python("_PyInterpreterState_SetEvalFrameFunc", None, ctypes.c_void_p, ctypes.c_void_p)


class Restored:
    """``with Restored():`` Python's frames run afterwards as before.

    A trace that ends with an error leaves TorchDynamo's evaluation of frames in place of Python's own, which makes every
    call of a Python function half as slow again, in all of the process and for good.
    """

    def __enter__(self) -> None:
        self._before = _evaluator(_interpreter()) if _set_evaluator and _evaluator and _interpreter else None

    def __exit__(self, *error: Any) -> None:
        if self._before is not None and _evaluator(_interpreter()) != self._before:  # type: ignore[misc]
            _set_evaluator(_interpreter(), self._before)  # type: ignore[misc]
