"""Fixtures of the operators' tests."""

import pytest
import torch
from oracle import poison_new_tensors
from support.interpreter import interpreted  # noqa: F401


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that is handed out without being set holds NaN, or a number that no id and no count can be."""
    poison_new_tensors(monkeypatch)
