"""Triton's interpreter and Triton's compiler in one process."""

import functools
import importlib
import importlib.util
import sys
from types import SimpleNamespace

import pytest

from snnipu.backends import triton as backend

# Modules of the interpreter, reused by all tests that need it.
_interpreted = {}


def _is_kernel_module(name):
    return name.startswith(backend.__name__ + ".")


def _defines_kernels(name):
    """Return True if the module defines kernels, and thus differs between interpreter and compiler."""
    own_triton = name == "triton" or (name.startswith("triton.") and not name.startswith("triton._C"))
    return own_triton or _is_kernel_module(name)


def _replace_modules(modules):
    """Replace the modules that differ by ``modules``, and return the replaced ones."""
    before = {name: module for name, module in sys.modules.items() if _defines_kernels(name)}
    for name in before:
        del sys.modules[name]
        if _is_kernel_module(name):
            vars(backend).pop(name.rsplit(".", 1)[1], None)
    sys.modules.update(modules)
    for name, module in modules.items():
        if _is_kernel_module(name):
            setattr(backend, name.rsplit(".", 1)[1], module)
    return before


def _skip_repeated_work(monkeypatch):
    """Skip the interpreter's repeated work at each call of a function within a kernel: half of its time."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    if not hasattr(interpreter.InterpretedFunction, "rewrite"):  # an older Triton runs unchanged and slower
        return
    launch, call = interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.__call__
    exchanged = set()  # modules that use the interpreter's Triton in this launch

    def launch_anew(executor, *args, **kwargs):
        exchanged.clear()
        exchanged.add(id(executor.fn.__globals__))
        return launch(executor, *args, **kwargs)

    def call_directly(function, *args, **kwargs):
        module = id(function.fn.__globals__)
        if module in exchanged:
            return function.rewrite()(*args, **kwargs)
        exchanged.add(module)
        return call(function, *args, **kwargs)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch_anew)
    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call_directly)
    of_any = interpreter._get_np_dtype  # makes a table of all dtypes
    of_number = functools.lru_cache(None)(of_any)
    monkeypatch.setattr(
        interpreter,
        "_get_np_dtype",
        lambda dtype: of_any(dtype) if dtype.scalar.is_ptr() else of_number(dtype.scalar),
    )


@pytest.fixture
def interpreted(monkeypatch):
    """``interpreted("neurons")`` is ``snnipu.backends.triton.neurons`` with its kernels run by the interpreter.

    Triton chooses interpreter or compiler when a kernel is defined, and Triton's own library consists of kernels. Both
    are
    therefore imported again for the test, and restored for the other tests of the process.
    """
    reason = backend.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    if importlib.util.find_spec("triton.runtime.interpreter") is None:
        pytest.skip("this Triton has no TRITON_INTERPRET (3.0 or later)")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    compiled = _replace_modules(_interpreted)
    try:
        _skip_repeated_work(monkeypatch)
        yield lambda name: importlib.import_module(f"{backend.__name__}.{name}")
    finally:
        _interpreted.update(_replace_modules(compiled))


def event_driven(module_of):
    """Return the event-driven operators of all modules by name."""
    modules = map(module_of, ("sparse_layers", "sparse_select", "delay_linear"))
    return SimpleNamespace(**{name: value for module in modules for name, value in vars(module).items()})


def small_blocks(interpreted, monkeypatch):
    """Return the event-driven operators with several blocks per row, a partial last block, and gradients by kernels."""
    for name, constant, value in (
        ("sparse_linear", "by_product", lambda *_: False),
        ("sparse_linear", "_NEURON_BLOCK", 64),
        ("sparse_select", "_ROW_BLOCK", 64),
        ("sparse_conv", "_SPLITS", 2),
        ("sparse_conv", "_PLACE_BLOCK", 16),
    ):
        monkeypatch.setattr(interpreted(name), constant, value)
    return event_driven(interpreted)
