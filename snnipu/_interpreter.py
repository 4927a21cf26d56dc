"""Which of a process's Python interpreters this is: PyTorch hangs where another than the main one imports it."""

import importlib


def refuse_others() -> None:
    """Raise ImportError in a sub-interpreter, before PyTorch is imported."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # the latter before Python 3.13
        try:
            interpreters = importlib.import_module(name)
        except ImportError:  # other Pythons have none
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError(
                "snnipu runs in the main interpreter alone: PyTorch hangs when a sub-interpreter imports it"
            )
        return
