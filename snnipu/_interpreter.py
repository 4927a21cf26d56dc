"""Which of a process's Python interpreters this is: PyTorch hangs where another than the main one imports it."""

import importlib
from typing import Any


def _number(interpreter: Any) -> int:
    """From Python 3.13 on a tuple begins with it."""
    return int(interpreter[0] if isinstance(interpreter, tuple) else interpreter)


def refuse_others() -> None:
    """Raise ImportError in a sub-interpreter, before PyTorch is imported."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # the latter before Python 3.13
        try:
            interpreters = importlib.import_module(name)
        except ImportError:  # other Pythons have none
            continue
        if _number(interpreters.get_current()) != _number(interpreters.get_main()):
            raise ImportError(
                "snnipu runs in the main interpreter alone: PyTorch hangs when a sub-interpreter imports it"
            )
        return
