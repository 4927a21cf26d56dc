"""What tests of the compiler share."""

import importlib
import traceback

import pytest
from torch._dynamo import exc, guards

from snnipu.compiler import backend


@pytest.fixture
def graphs(monkeypatch):
    """The reports of the graphs that ``snn.compile`` makes, in their order, as they are made."""
    importlib.import_module("snnipu.compiler.entry")  # which keeps the function that it finds
    found, run = [], backend.compile_graph

    def collect(module, inputs, *, options=None, observer=found.append):
        return run(module, inputs, options=options, observer=observer)

    monkeypatch.setattr(backend, "compile_graph", collect)
    return found


@pytest.fixture(autouse=True)
def _not_measured(monkeypatch):
    """What PyTorch's compiler measures of itself, for its makers, takes a seventh of these tests' time."""
    # It empties the processor's caches to time the guards.
    monkeypatch.setattr(guards, "profile_guard_manager", lambda *_: 0.0, raising=False)
    # The calls that led to a compiled function, pytest's.
    monkeypatch.setattr(exc, "_extract_stack_with_positions", traceback.StackSummary, raising=False)
