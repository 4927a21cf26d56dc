"""Triton's interpreter beside Triton's compiler, in one process."""

import importlib
import sys
import types
from typing import Callable, Dict

import pytest

from snnipu.backends import triton as backend

# Modules as the interpreter needs them, from the first test that uses it to the next.
_interpreted: Dict[str, types.ModuleType] = {}


def _is_kernel_module(name):
    return name.startswith(backend.__name__ + ".")


def _has_two_lives(name):
    """Whether a module is one thing to the interpreter and another to the compiler: all that define kernels."""
    own_triton = name == "triton" or (name.startswith("triton.") and not name.startswith("triton._C"))
    return own_triton or _is_kernel_module(name)


def _exchange(modules):
    """Put ``modules`` in the place of those that have two lives, and return what was there."""
    before = {name: module for name, module in sys.modules.items() if _has_two_lives(name)}
    for name in before:
        del sys.modules[name]
        if _is_kernel_module(name):
            vars(backend).pop(name.rsplit(".", 1)[1], None)
    sys.modules.update(modules)
    for name, module in modules.items():
        if _is_kernel_module(name):
            setattr(backend, name.rsplit(".", 1)[1], module)
    return before


@pytest.fixture
def interpreted(monkeypatch) -> Callable[[str], types.ModuleType]:
    """``interpreted("lif")`` is ``snnipu.backends.triton.lif`` with its kernels run by the interpreter.

    Triton decides when a kernel is defined, and its own library is made of kernels: during the test both are imported
    anew, so that all other tests of the process keep those of the compiler.
    """
    reason = backend.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    compiled = _exchange(_interpreted)
    try:
        yield lambda name: importlib.import_module(f"{backend.__name__}.{name}")
    finally:
        _interpreted.update(_exchange(compiled))
