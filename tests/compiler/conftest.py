"""Fixtures of the compiler's tests."""

import traceback

import pytest
import torch
from torch._dynamo import exc, guards

import snnipu as snn
from snnipu.compiler import automatic, discovery


@pytest.fixture
def found(monkeypatch):
    """The loops of this test alone: those that ``snn.compile`` and ``snn.auto`` find in it."""
    torch._dynamo.reset()
    loops = discovery.Discovery()
    monkeypatch.setattr(automatic, "_discovery", loops)
    yield loops
    loops.stop()


@pytest.fixture
def auto(found, monkeypatch, request):
    """``snn.auto()`` in the test's module: the other modules are all tests that the process has read."""
    monkeypatch.setattr(discovery.Discovery, "adopt_all", lambda self: self.adopt(request.module))
    return snn.auto()


@pytest.fixture(autouse=True)
def _not_measured(monkeypatch):
    """What PyTorch's compiler measures of itself, for its makers, takes a seventh of these tests' time."""
    # It empties the processor's caches to time the guards.
    monkeypatch.setattr(guards, "profile_guard_manager", lambda *_: 0.0, raising=False)
    # The calls that led to a compiled function, pytest's.
    monkeypatch.setattr(exc, "_extract_stack_with_positions", traceback.StackSummary, raising=False)
