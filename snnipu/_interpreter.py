"""Check that this is the main Python interpreter of the process: PyTorch hangs when a sub-interpreter imports it."""

import importlib
from typing import Any


def _number(interpreter: Any) -> int:
    """Return an interpreter's number. From Python 3.13 on ``interpreter`` is a tuple that begins with the number."""
    return int(interpreter[0] if isinstance(interpreter, tuple) else interpreter)


def require_main_interpreter() -> None:
    """Raise ImportError in a sub-interpreter, before PyTorch is imported."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # the second name is that of Python before 3.13
        try:
            interpreters = importlib.import_module(name)
        except ImportError:  # this Python has no such module
            continue
        if _number(interpreters.get_current()) != _number(interpreters.get_main()):
            raise ImportError(
                "snnipu runs in the main interpreter alone: PyTorch hangs when a sub-interpreter imports it"
            )
        return
