"""Fixtures of the compiler's tests."""

import traceback

import pytest
import torch
from torch._dynamo import exc, guards

import snnipu as snn
from snnipu.compiler import automatic, discovery


@pytest.fixture
def found(monkeypatch):
    """A new search for loops: it only has the loops that ``snn.compile`` and ``snn.auto`` find in this test."""
    torch._dynamo.reset()
    loops = discovery.Discovery()
    monkeypatch.setattr(automatic, "_discovery", loops)
    yield loops
    loops.stop()


@pytest.fixture
def auto(found, monkeypatch, request):
    """The result of ``snn.auto()``, which only searches the test's module."""
    monkeypatch.setattr(discovery.Discovery, "adopt_all", lambda self: self.adopt(request.module))
    return snn.auto()


@pytest.fixture(autouse=True)
def _not_measured(monkeypatch):
    """Turn off measurements of PyTorch's compiler, which take a seventh of these tests' time."""
    # This function empties the processor's caches to time the guards.
    monkeypatch.setattr(guards, "profile_guard_manager", lambda *_: 0.0, raising=False)
    # TorchDynamo stores the stack of each compilation, which is deep in pytest.
    monkeypatch.setattr(exc, "_extract_stack_with_positions", traceback.StackSummary, raising=False)
