"""What tests of the compiler share."""

import importlib
import traceback

import pytest
import snntorch
import torch
from torch._dynamo import exc, guards

import snnipu as snn
from snnipu.compiler import automatic, backend


@pytest.fixture
def graphs(monkeypatch):
    """The reports of the graphs that ``snn.compile`` makes, in their order, as they are made."""
    importlib.import_module("snnipu.compiler.entry")  # which keeps the function that it finds
    found, run = [], backend.compile_graph

    def collect(module, inputs, *, options=None, observer=found.append):
        return run(module, inputs, options=options, observer=observer)

    monkeypatch.setattr(backend, "compile_graph", collect)
    return found


@pytest.fixture
def auto(monkeypatch, request):
    """A search of its own for each test, in the test's module: the others are all tests that the process has read."""
    torch._dynamo.reset()
    monkeypatch.setattr(automatic, "_auto", None)
    monkeypatch.setattr(snntorch.SpikingNeuron, "__init__", snntorch.SpikingNeuron.__init__)
    monkeypatch.setattr(automatic.Automatic, "adopt_all", lambda self: self.adopt(request.module))
    found = snn.auto()
    yield found
    found.stop()
    assert "__call__" not in vars(snntorch.SpikingNeuron)


@pytest.fixture(autouse=True)
def _not_measured(monkeypatch):
    """What PyTorch's compiler measures of itself, for its makers, takes a seventh of these tests' time."""
    # It empties the processor's caches to time the guards.
    monkeypatch.setattr(guards, "profile_guard_manager", lambda *_: 0.0, raising=False)
    # The calls that led to a compiled function, pytest's.
    monkeypatch.setattr(exc, "_extract_stack_with_positions", traceback.StackSummary, raising=False)
