"""What PyTorch's compiler measures of itself, for its makers, takes a seventh of these tests' time."""

import traceback

import pytest
from torch._dynamo import exc, guards


@pytest.fixture(autouse=True)
def _not_measured(monkeypatch):
    # It empties the processor's caches to time the guards.
    monkeypatch.setattr(guards, "profile_guard_manager", lambda *_: 0.0, raising=False)
    # The calls that led to a compiled function, pytest's.
    monkeypatch.setattr(exc, "_extract_stack_with_positions", traceback.StackSummary, raising=False)
